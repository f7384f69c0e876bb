"""Random directions: drawn from secrets block by block, together of the kernel's law."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels import frequencies
from fedkern_flwr.kernels.frequencies import (
    check_frequency_seed,
    draw_directions,
    draw_offsets,
)
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.vertical.phases import cosines

ONE, TWO, THREE = (bytes([k]) * 32 for k in (1, 2, 3))
R = 5000


# -- draws


@given(
    few=st.integers(0, 700),
    more=st.integers(0, 1200),
    width=st.integers(0, 5),
    owner=st.integers(0, 4),
    kernel=st.sampled_from(["rbf", "laplacian"]),
)
def test_the_first_directions_of_a_longer_draw_are_the_same(
    few: int, more: int, width: int, owner: int, kernel: frequencies.Kernel
) -> None:
    short = draw_directions(ONE, owner, few, width, kernel, 0.7)
    long = draw_directions(ONE, owner, few + more, width, kernel, 0.7)
    assert short.shape == (few, width)
    assert long.shape == (few + more, width)
    np.testing.assert_array_equal(long[:few], short)
    b, longer = (draw_offsets(ONE, owner, n, kernel, 0.7) for n in (few, few + more))
    assert b.shape == (few,)
    np.testing.assert_array_equal(longer[:few], b)


@pytest.mark.parametrize("kernel", frequencies.KERNELS)
def test_draws_do_not_depend_on_what_was_drawn_before(kernel: frequencies.Kernel) -> None:
    """Also when the draws at hand were forgotten, as in another process."""
    first = draw_directions(ONE, 0, 300, 3, kernel, 0.5)
    b = draw_offsets(ONE, 0, 300, kernel, 0.5)
    frequencies._draw.cache_clear()
    frequencies._offsets.cache_clear()
    draw_directions(ONE, 0, 2000, 3, kernel, 0.5)
    draw_directions(TWO, 0, 10, 3, kernel, 0.5)
    np.testing.assert_array_equal(draw_directions(ONE, 0, 300, 3, kernel, 0.5), first)
    np.testing.assert_array_equal(draw_offsets(ONE, 0, 300, kernel, 0.5), b)


def test_draws_cannot_be_spoilt_by_whoever_got_them() -> None:
    found = draw_directions(ONE, 0, 4, 2, "rbf", 0.5)
    found[:] = 0.0  # a copy
    assert draw_directions(ONE, 0, 4, 2, "rbf", 0.5).all()
    with pytest.raises(ValueError, match="read-only"):
        draw_offsets(ONE, 0, 4, "rbf", 0.5)[:] = 0.0


def test_draws_are_what_the_documentation_says() -> None:
    """One stream per secret, owner, kernel and width, a direction after the other."""

    def stream(purpose: str, owner: int, seed: bytes, law: str) -> np.random.Generator:
        text = f"fedkern-flwr {purpose}/{owner}/{law}/".encode() + seed
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text).digest(), "little"))

    rng = stream("frequencies", 3, ONE, "rbf/0.8")
    normal = np.stack([rng.standard_normal(4) for _ in range(30)])
    np.testing.assert_array_equal(
        draw_directions(ONE, 3, 30, 4, "rbf", 0.8), normal * np.sqrt(2.0 * 0.8)
    )
    rng = stream("frequencies", 3, ONE, "laplacian/0.8")
    cauchy = np.stack([rng.standard_cauchy(4) for _ in range(30)])
    np.testing.assert_array_equal(draw_directions(ONE, 3, 30, 4, "laplacian", 0.8), cauchy * 0.8)
    np.testing.assert_array_equal(
        draw_offsets(ONE, 3, 30, "rbf", 0.8),
        2.0 * np.pi * stream("offsets", 3, ONE, "rbf/0.8").random(30),
    )


def test_different_secrets_owners_widths_and_purposes_have_nothing_in_common() -> None:
    each = [(s, o, g) for s in (ONE, TWO) for o in (0, 1) for g in (0.5, 0.6)]
    draws = [draw_directions(s, o, 400, 1, "rbf", g)[:, 0] for s, o, g in each]
    draws += [draw_offsets(s, o, 400, "rbf", g) for s, o, g in each]
    correlations = np.abs(np.corrcoef(draws) - np.eye(16))
    assert correlations.max() < 5.0 / np.sqrt(400)


def test_the_laws_of_the_numbers() -> None:
    normal = draw_directions(ONE, 0, 20_000, 2, "rbf", 1.7).ravel()
    assert stats.kstest(normal, "norm", (0.0, np.sqrt(3.4))).pvalue > 1e-3
    cauchy = draw_directions(ONE, 0, 20_000, 2, "laplacian", 1.7).ravel()
    assert stats.kstest(cauchy, "cauchy", (0.0, 1.7)).pvalue > 1e-3
    b = draw_offsets(ONE, 0, 20_000, "rbf", 1.7)
    assert stats.kstest(b, "uniform", (0.0, 2.0 * np.pi)).pvalue > 1e-3
    assert 0.0 <= b.min() <= b.max() < 2.0 * np.pi


# -- kernels


def rows(d: int = 7, n: int = 60) -> np.ndarray:
    return np.random.default_rng(8).random((n, d)) * 1.5


def exact(kernel: str, x: np.ndarray, gamma: float) -> np.ndarray:
    gaps = x[:, None] - x[None]
    distances = (gaps**2).sum(axis=2) if kernel == "rbf" else np.abs(gaps).sum(axis=2)
    return np.asarray(np.exp(-gamma * distances))


#: Which party holds which columns; one party holds all, or nothing at all.
SPLITS = {"one block": [7], "three blocks": [3, 0, 4], "a column each": [1] * 7}


@pytest.mark.parametrize("bits", [0, 16, 32])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kernel", frequencies.KERNELS)
def test_blocks_of_all_parties_together_make_the_kernel(
    kernel: frequencies.Kernel, split: str, bits: int
) -> None:
    """Secrets of their own, offsets added up: mean error below 0.02, all within 5 / sqrt(R).

    With ``bits`` each part travels as a phase, and phases are added modulo 2 pi.
    """
    x, gamma, start = rows(), 0.4, 0
    angle = np.zeros((len(x), R))
    phases = np.zeros((len(x), R), np.uint16 if bits == 16 else np.uint32)
    for k, width in enumerate(SPLITS[split]):
        seed = hashlib.sha256(f"party {k}".encode()).digest()
        omega = draw_directions(seed, 2, R, width, kernel, gamma)
        part = x[:, start : start + width] @ omega.T + draw_offsets(seed, 2, R, kernel, gamma)
        start += width
        angle += part
        if bits:
            ring = Encoding.circle(bits).encode(part.ravel(), 1, name="phases")
            phases += ring.reshape(part.shape).astype(phases.dtype)
    features = np.cos(angle) if not bits else cosines(phases)
    found = 2.0 / R * features.astype(float) @ features.T.astype(float)
    pairs = np.triu_indices(len(x), 1)
    errors = np.abs(found - exact(kernel, x, gamma))[pairs]
    assert errors.mean() < 0.02
    assert errors.max() < 5.0 / np.sqrt(R)


def test_what_the_law_is_not() -> None:
    """The bounds above tell the kernels, the widths and missing columns apart."""
    x = rows()
    omega = draw_directions(ONE, 0, R, 7, "rbf", 0.4)
    b = draw_offsets(ONE, 0, R, "rbf", 0.4)
    found = np.cos(x @ omega.T + b)
    pairs = np.triu_indices(len(x), 1)
    estimate = (2.0 / R * found @ found.T)[pairs]
    for other in (
        exact("laplacian", x, 0.4),
        exact("rbf", x, 0.6),
        exact("rbf", x[:, :6], 0.4),
    ):
        assert np.abs(estimate - other[pairs]).mean() > 0.02
    fresh = np.random.default_rng(0).uniform(0.0, 2.0 * np.pi, (len(x), R))  # b per call
    wrong = np.cos(x @ omega.T + fresh)
    assert np.abs((2.0 / R * wrong @ wrong.T)[pairs]).mean() < 0.02  # no kernel at all


# -- seeds


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_seed_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(OptionError, match=f"frequency seed has {size} bytes instead of 32; dr"):
        check_frequency_seed(bytes(size))
