"""Landmarks: the same at all who have the seed, in range, with the moments of the pooled data."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedkern_flwr.errors import OptionError
from fedkern_flwr.hybrid.landmarks import (
    check_seed_bytes,
    draw_landmarks,
    moment_sums,
    public_seed,
    read_moments,
    seed_fingerprint,
)

SEED = public_seed(3, "genes")
RANGES = np.array([[0.0, 1.0], [-1.0, 1.0], [50.0, 250.0], [7.0, 7.0]])


WIDE = [0, 1, 2]  # the fourth range is a point
MOMENTS = np.array([[0.5, 0.9, 150.0, 7.0], [0.1, 0.3, 10.0, 0.0]])


def unturned(seed: bytes, m: int, moments: np.ndarray | None = None) -> np.ndarray:
    """Landmarks as they are drawn before the turn: uniform, or normal and clipped."""
    digest = hashlib.sha256(b"fedkern-flwr landmarks " + seed).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    low, high = RANGES.T
    if moments is None:
        return low + (high - low) * rng.random((m, 4))
    return np.clip(moments[0] + moments[1] * rng.standard_normal((m, 4)), low, high)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 4000])
def test_landmarks_are_uniform_on_a_box_that_is_turned_about_its_middle(m: int) -> None:
    found, straight = draw_landmarks(SEED, m, RANGES), unturned(SEED, m)
    assert found.shape == (m, 4)
    assert (found[:, 3] == 7.0).all()
    middle = RANGES.mean(axis=1)
    a, b = (found - middle)[:, WIDE], (straight - middle)[:, WIDE]
    np.testing.assert_allclose(a @ a.T, b @ b.T, rtol=1e-12, atol=1e-8)  # turned as a whole
    assert not np.isclose(a, b).any()
    if m > 4:
        low, high = RANGES[WIDE].T
        turn = np.linalg.lstsq(a, b)[0]
        np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-9)
        for column, least, most in zip((a @ turn).T + middle[WIDE, None], low, high, strict=True):
            assert stats.kstest((column - least) / (most - least), "uniform").pvalue > 1e-3


def test_landmarks_are_normal_turned_about_the_mean_and_within_the_ball() -> None:
    found, straight = draw_landmarks(SEED, 4000, RANGES, MOMENTS), unturned(SEED, 4000, MOMENTS)
    assert (found[:, 3] == 7.0).all()
    a, b = (found - MOMENTS[0])[:, WIDE], (straight - MOMENTS[0])[:, WIDE]
    turn = np.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(a @ turn, b, atol=1e-9)
    for k in (0, 2):
        standard = (a @ turn)[:, k] / MOMENTS[1, k]
        assert stats.kstest(standard, "norm").pvalue > 1e-3
    clipped = (a @ turn)[:, 1] > 0.1 - 1e-9
    assert clipped.mean() == pytest.approx(stats.norm.sf(1 / 3), abs=0.03)


@pytest.mark.parametrize("moments", [None, "of a corner"])
def test_no_landmark_is_farther_from_the_middle_than_a_corner(moments: str | None) -> None:
    low, high = RANGES.T
    given = None if moments is None else np.stack([low, high - low])
    away = np.linalg.norm(draw_landmarks(SEED, 4000, RANGES, given) - RANGES.mean(axis=1), axis=1)
    corner = np.linalg.norm(high - low) / 2.0
    assert away.max() <= corner * (1.0 + 1e-12)
    if given is not None:  # some were beyond
        assert (away > corner * (1.0 - 1e-12)).mean() > 0.1


@pytest.mark.parametrize("m", [2, 40])
def test_no_direction_is_preferred_to_another(m: int) -> None:
    """Haar: where a turn takes a vector is uniform on the sphere; on it coordinates are uniform."""
    unit = np.tile([-1.0, 1.0], (3, 1))
    drawn = np.array([draw_landmarks(public_seed(k, "turn"), m, unit)[0] for k in range(1500)])
    directions = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    for column in directions.T:
        assert stats.kstest((column + 1.0) / 2.0, "uniform").pvalue > 1e-3


def test_a_single_feature_is_not_turned() -> None:
    one, constant = np.array([[2.0, 4.0]]), np.array([[2.0, 4.0], [7.0, 7.0]])
    for ranges, moments in (
        (one, None),
        (one, np.array([[3.9], [1.0]])),
        (constant, np.array([[3.9, 7.0], [1.0, 0.0]])),
    ):
        found = draw_landmarks(SEED, 400, ranges, moments)
        assert found[:, 0].min() >= 2.0
        assert found[:, 0].max() <= 4.0


@pytest.mark.parametrize("moments", [None, np.array([[0.5] * 4, [0.2] * 4])])
def test_the_seed_determines_the_landmarks(moments: np.ndarray | None) -> None:
    first = draw_landmarks(SEED, 5, RANGES, moments)
    np.testing.assert_array_equal(first, draw_landmarks(SEED, 5, RANGES, moments))
    flipped = bytes([SEED[0] ^ 1]) + SEED[1:]
    assert not np.isclose(first, draw_landmarks(flipped, 5, RANGES, moments))[:, :2].any()


def test_what_is_drawn_stays_the_same() -> None:
    """Models that were saved name their seeds only: other landmarks would spoil them silently."""
    found = draw_landmarks(bytes(range(32)), 2, np.array([[0.0, 1.0], [2.0, 4.0]]))
    np.testing.assert_allclose(found, FROZEN_UNIFORM, rtol=1e-12)
    found = draw_landmarks(bytes(range(32)), 2, np.array([[-9.0, 9.0]]), np.array([[1.0], [2.0]]))
    np.testing.assert_allclose(found, FROZEN_NORMAL, rtol=1e-12)
    moments = np.array([[0.5, 3.0], [0.1, 0.4]])
    found = draw_landmarks(bytes(range(32)), 2, np.array([[0.0, 1.0], [2.0, 4.0]]), moments)
    np.testing.assert_allclose(found, FROZEN_TURNED_NORMAL, rtol=1e-12)
    found = draw_landmarks(bytes(range(32)), 1, np.array([[0.0, 1.0], [2.0, 4.0]]))
    np.testing.assert_allclose(found, FROZEN_SINGLE, rtol=1e-12)


FROZEN_UNIFORM = [[0.8425573000798182, 2.270112783196475], [0.1720849585065673, 3.429483576909131]]
FROZEN_NORMAL = [[-1.5395939427377145], [1.7970872744915263]]
FROZEN_TURNED_NORMAL = [
    [0.2965064191083886, 2.988680505879785],
    [0.48745702070082464, 2.881510225040117],
]
FROZEN_SINGLE = [[-0.2984491587302204, 2.8879295131884692]]


def test_public_seeds_differ_by_seed_and_block() -> None:
    seeds = {public_seed(seed, block) for seed in (0, 1, 10) for block in ("a", "b", "0/a", "")}
    assert len(seeds) == 12
    assert {len(seed) for seed in seeds} == {32}


# -- moments


tables = st.integers(1, 60).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(1, 5))
)


@given(tables)
def test_added_up_moments_are_those_of_the_pooled_table(shape: tuple[int, int, int, int]) -> None:
    n, d, seed, parties = shape
    rng = np.random.default_rng(seed)
    low = rng.uniform(-100.0, 100.0, d)
    ranges = np.stack([low, low + rng.uniform(0.1, 100.0, d)], axis=1)
    x = rng.uniform(*ranges.T, (n, d))
    parts = np.array_split(x[rng.permutation(n)], parties)
    mean, deviation = read_moments(np.sum([moment_sums(p, ranges) for p in parts], axis=0), ranges)
    spans = ranges[:, 1] - ranges[:, 0]
    np.testing.assert_allclose(mean, x.mean(0), atol=1e-13 * 200)
    np.testing.assert_allclose(deviation / spans, x.std(0) / spans, atol=1e-7)


def test_moments_are_within_their_bound() -> None:
    """A party adds at most its number of rows to each number: the bound of the secure sum."""
    x = np.tile(RANGES[:, 1], (9, 1))
    assert moment_sums(x, RANGES).max() == 9.0
    assert moment_sums(np.tile(RANGES[:, 0], (9, 1)), RANGES)[1:].max() == 0.0


def test_constant_features_have_no_deviation() -> None:
    x = np.full((11, 4), 0.3) + RANGES[:, 0]
    x[:, 3] = 7.0
    mean, deviation = read_moments(moment_sums(x, RANGES), RANGES)
    np.testing.assert_allclose(mean, x[0], rtol=1e-12)
    assert (deviation < 1e-7 * np.array([1.0, 2.0, 200.0, 1.0])).all()
    found = draw_landmarks(SEED, 3, RANGES, np.stack([mean, deviation]))
    np.testing.assert_allclose(found, x[:3], rtol=1e-6)  # turned about the mean


def test_no_rows_have_no_moments() -> None:
    mean, deviation = read_moments(moment_sums(np.zeros((0, 4)), RANGES), RANGES)
    np.testing.assert_array_equal(mean, RANGES[:, 0])
    np.testing.assert_array_equal(deviation, np.zeros(4))


# -- fingerprints


def test_a_fingerprint_tells_seeds_sessions_blocks_and_moments_apart() -> None:
    other = public_seed(4, "genes")
    moments = np.array([[0.5], [0.1]])
    found = [
        seed_fingerprint(SEED, "one", "genes"),
        seed_fingerprint(other, "one", "genes"),
        seed_fingerprint(SEED, "two", "genes"),
        seed_fingerprint(SEED, "one", "proteins"),
        seed_fingerprint(SEED, "one", "genes", moments),
        seed_fingerprint(SEED, "one", "genes", moments + 1e-12),
    ]
    assert len(set(found)) == len(found)
    assert {len(f) for f in found} == {16}
    assert seed_fingerprint(SEED, "one", "genes") == found[0]
    assert not any(SEED[k : k + 4] in found[0] for k in range(29))


def test_seeds_of_another_length_are_refused() -> None:
    check_seed_bytes(bytes(32))
    for length in (0, 16, 31, 33):
        with pytest.raises(OptionError, match=rf"has {length} bytes instead of 32; draw one with"):
            check_seed_bytes(bytes(length))
