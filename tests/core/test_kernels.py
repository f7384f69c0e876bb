"""Landmarks, kernels of blocks and of dot products, random features: laws, exactness, bounds."""

from __future__ import annotations

import hashlib
import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.metrics import pairwise

import fedkern_flwr.gram.dot_kernels as dot_kernels
from fedkern_flwr import threads
from fedkern_flwr.gram.dot_kernels import KERNELS, DotKernel
from fedkern_flwr.hybrid import landmarks
from fedkern_flwr.hybrid.landmarks import draw_landmarks, moment_sums, public_seed, read_moments
from fedkern_flwr.kernels import product as product
from fedkern_flwr.kernels.product import kernel_from_distances, partial_distances
from fedkern_flwr.kernels.random_features import (
    FeatureMap,
    bandwidth_dictionary,
    feature_map,
    gaussian_frequencies,
)

METRICS = {"rbf": "sqeuclidean", "laplacian": "cityblock"}
KINDS: list[Any] = list(METRICS)
Array = np.ndarray


# -- the product kernel


def draw(n: int, m: int, d: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1.0, 1.0, (n, d)), rng.uniform(-1.0, 1.0, (m, d))


@pytest.mark.parametrize("kernel", KINDS)
@given(sizes=st.tuples(*[st.integers(1, 12)] * 3), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_a_kernel_is_that_of_its_blocks(kernel: Any, sizes: Any, cuts: list[int]) -> None:
    n, m, d = sizes
    x, w = draw(n, m, d, n + 13 * m + 169 * d)
    blocks = np.split(np.arange(d), sorted(min(cut, d) for cut in cuts))  # some may be empty
    parts = [partial_distances(x[:, b], w[:, b], kernel) for b in blocks]
    gamma = np.array([0.7])
    whole = np.exp(-0.7 * cdist(x, w, METRICS[kernel]))
    np.testing.assert_allclose(kernel_from_distances(sum(parts), gamma), whole, atol=1e-13)
    factors = [kernel_from_distances(part, gamma) for part in parts]
    np.testing.assert_allclose(np.prod(factors, axis=0), whole, atol=1e-13)
    far = product.mean_distances(x + 1e3, w + 1e3, kernel)
    np.testing.assert_allclose(far, cdist(x, w, METRICS[kernel]).mean(axis=1), atol=1e-9)


@pytest.mark.parametrize("kernel", KINDS)
def test_many_rows_are_shared_between_threads(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = draw(5003, 9, 4)
    expected = cdist(x, w, METRICS[kernel])
    for block, workers in ((9 * 7, 3), (1, 2), (1 << 15, 1)):
        monkeypatch.setattr(product, "_BLOCK", block)
        monkeypatch.setattr(threads, "processors", lambda workers=workers: workers)
        np.testing.assert_allclose(partial_distances(x, w, kernel), expected, atol=1e-14)


def test_a_row_that_is_a_landmark_has_no_distance_to_it() -> None:
    """Rounding must not make squared distances negative: kernel values beyond one break bounds."""
    x = np.random.default_rng(0).random((300, 30))
    found = partial_distances(x, x, "rbf")
    assert found.min() == 0.0
    assert np.diagonal(found).max() < 1e-13
    assert kernel_from_distances(found, np.array([50.0])).max() <= 1.0
    for kernel in KINDS:  # no features, or no rows
        empty = partial_distances(np.zeros((4, 0)), np.zeros((3, 0)), kernel)
        np.testing.assert_array_equal(empty, np.zeros((4, 3)))
        assert partial_distances(np.zeros((0, 2)), np.zeros((3, 2)), kernel).shape == (0, 3)
        assert product.mean_distances(np.zeros((0, 2)), np.zeros((4, 2)), kernel).shape == (0,)


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_no_landmark_is_farther_from_a_row_than_the_bound(spans: Any, seed: int) -> None:
    """Landmarks lie in the ball through the corners; opposite points of it are farthest apart."""
    ranges = np.array([[low, low + span] for low, span in spans]).reshape(-1, 2)
    low, high = ranges.T
    wide, rng = high > low, np.random.default_rng(seed)
    for kernel in KINDS:
        bound, metric = product.distance_bound(ranges, kernel), METRICS[kernel]
        if not wide.any():
            assert bound == 0.0
            continue
        corner, middle = (high - low) / 2.0, (low + high) / 2.0
        way = wide / np.sqrt(wide.sum()) if kernel == "laplacian" else corner / math.hypot(*corner)
        ends = np.stack([-way, way]) * math.hypot(*corner)
        farthest = cdist(ends[:1], ends[1:], metric)[0, 0]
        assert farthest == pytest.approx(bound, rel=1e-9, abs=1e-300)
        rows = rng.uniform(low, high, (20, len(ranges)))
        moments = np.stack([rng.uniform(low, high), rng.uniform(0.0, high - low)])
        limit = bound * (1.0 + 1e-9) + 1e-12 * np.abs(middle).max()
        for given_ in (None, moments):
            drawn = draw_landmarks(rng.bytes(32), 20, ranges, given_)
            assert cdist(np.vstack([rows, drawn]), drawn, metric).max() <= limit


def test_widths_per_landmark_are_log_uniform_around_gamma() -> None:
    found = product.landmark_gammas(0.5, 4000, 3)
    assert found.shape == (4000,)
    assert 0.25 <= found.min() <= found.max() <= 1.0
    logs = np.log2(found / 0.5)
    assert np.histogram(logs, 4, (-1.0, 1.0))[0].min() > 900
    np.testing.assert_array_equal(found, product.landmark_gammas(0.5, 4000, 3))
    assert not np.isclose(found, product.landmark_gammas(0.5, 4000, 4)).any()
    np.testing.assert_allclose(product.landmark_gammas(1.0, 4000, 3), 2.0 * found, rtol=1e-12)


# -- landmarks

SEED = public_seed(3, "genes")
RANGES = np.array([[0.0, 1.0], [-1.0, 1.0], [50.0, 250.0], [7.0, 7.0]])
WIDE = [0, 1, 2]  # the fourth range is a point
MOMENTS = np.array([[0.5, 0.9, 150.0, 7.0], [0.1, 0.3, 10.0, 0.0]])


def unturned(m: int, moments: Array | None = None) -> Array:
    """Landmarks as they are drawn before the turn: uniform, or normal and clipped."""
    digest = hashlib.sha256(b"fedkern-flwr landmarks " + SEED).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    low, high = RANGES.T
    if moments is None:
        return low + (high - low) * rng.random((m, 4))
    return np.clip(moments[0] + moments[1] * rng.standard_normal((m, 4)), low, high)


@pytest.mark.promise("fedcg-turned")
@pytest.mark.parametrize("moments", [None, MOMENTS])
@pytest.mark.parametrize("m", [1, 3, 4000])
def test_landmarks_are_drawn_in_a_box_that_is_turned(m: int, moments: Array | None) -> None:
    """Uniform and turned about the middle, or normal and turned about the mean."""
    about = RANGES.mean(axis=1) if moments is None else moments[0]
    found, straight = draw_landmarks(SEED, m, RANGES, moments), unturned(m, moments)
    assert found.shape == (m, 4)
    assert (found[:, 3] == 7.0).all()
    np.testing.assert_array_equal(found, draw_landmarks(SEED, m, RANGES, moments))
    flipped = bytes([SEED[0] ^ 1]) + SEED[1:]
    assert not np.isclose(found, draw_landmarks(flipped, m, RANGES, moments))[:, :2].any()
    a, b = (found - about)[:, WIDE], (straight - about)[:, WIDE]
    np.testing.assert_allclose(a[:50] @ a[:50].T, b[:50] @ b[:50].T, rtol=1e-12, atol=1e-8)
    assert not np.isclose(a, b).any() or m > 5
    if m < 4:
        return
    turn = np.linalg.lstsq(a, b)[0]
    np.testing.assert_allclose(turn.T @ turn, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(a @ turn, b, atol=1e-7)
    low, high = RANGES[WIDE].T
    for k, column in enumerate((a @ turn).T):
        if moments is None:
            share = (column + about[k] - low[k]) / (high - low)[k]
            assert stats.kstest(share, "uniform").pvalue > 1e-3
        elif k != 1:
            assert stats.kstest(column / moments[1, k], "norm").pvalue > 1e-3
    if moments is not None:
        clipped = (a @ turn)[:, 1] > 0.1 - 1e-9
        assert clipped.mean() == pytest.approx(stats.norm.sf(1 / 3), abs=0.03)


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
    moments = np.array([[3.9, 7.0], [1.0, 0.0]])
    for ranges, given_ in ((one, None), (one, moments[:, :1]), (constant, moments)):
        found = draw_landmarks(SEED, 400, ranges, given_)
        assert 2.0 <= found[:, 0].min() < found[:, 0].max() <= 4.0


#: Models that were saved name their seeds only: other landmarks would spoil them silently.
SQUARE = [[0.0, 1.0], [2.0, 4.0]]
FROZEN: list[tuple[Any, Any, list[float]]] = [
    (SQUARE, None, [0.8425573000798182, 2.270112783196475, 0.1720849585065673, 3.429483576909131]),
    ([[-9.0, 9.0]], [[1.0], [2.0]], [-1.5395939427377145, 1.7970872744915263]),
    (SQUARE, None, [-0.2984491587302204, 2.8879295131884692]),
]


@pytest.mark.parametrize(("ranges", "moments", "expected"), FROZEN)
def test_what_is_drawn_stays_the_same(ranges: Any, moments: Any, expected: list[float]) -> None:
    given_, m = None if moments is None else np.array(moments), len(expected) // len(ranges)
    found = draw_landmarks(bytes(range(32)), m, np.array(ranges), given_)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-12)


@given(n=st.integers(1, 60), parties=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_added_up_moments_are_those_of_the_pooled_table(n: int, parties: int, seed: int) -> None:
    rng, d = np.random.default_rng(seed), 1 + seed % 4
    low, spans = rng.uniform(-100.0, 100.0, d), rng.uniform(0.1, 100.0, d)
    ranges = np.stack([low, low + spans], axis=1)
    x = rng.uniform(*ranges.T, (n, d))
    parts = np.array_split(x[rng.permutation(n)], parties)
    mean, deviation = read_moments(sum(moment_sums(p, ranges) for p in parts), ranges)
    np.testing.assert_allclose(mean, x.mean(0), atol=1e-13 * 200)
    np.testing.assert_allclose(deviation / spans, x.std(0) / spans, atol=1e-7)
    if d > 1:  # a covariance, and as much of its level as a row for each feature
        sums = sum(moment_sums(p, ranges, "C") for p in parts)
        found, expected = read_moments(sums, ranges, "C"), np.cov((x / spans).T, bias=True)
        expected = (n * expected + np.trace(expected) * np.eye(d)) / (n + d)
        np.testing.assert_allclose(found[1:] / np.outer(spans, spans), expected, atol=1e-9)


def test_moments_are_within_their_bound_and_may_be_of_nothing() -> None:
    """A party adds at most its number of rows to each number: the bound of the secure sum."""
    low, high = RANGES.T
    assert moment_sums(np.tile(high, (9, 1)), RANGES).max() == 9.0
    assert moment_sums(np.tile(low, (9, 1)), RANGES)[1:].max() == 0.0
    mean, deviation = read_moments(moment_sums(np.zeros((0, 4)), RANGES), RANGES)
    np.testing.assert_array_equal(mean, low)
    np.testing.assert_array_equal(deviation, np.zeros(4))
    x = np.full((11, 4), 0.3) + low  # constant features have no deviation
    x[:, 3] = 7.0
    mean, deviation = read_moments(moment_sums(x, RANGES), RANGES)
    np.testing.assert_allclose(mean, x[0], rtol=1e-12)
    found = draw_landmarks(SEED, 3, RANGES, np.stack([mean, deviation]))
    np.testing.assert_allclose(found, x[:3], rtol=1e-6)  # turned about the mean


def test_a_fingerprint_tells_seeds_sessions_blocks_and_moments_apart() -> None:
    moments, other = np.array([[0.5], [0.1]]), public_seed(4, "genes")
    asked: list[Any] = [(SEED, "one", "genes"), (other, "one", "genes"), (SEED, "two", "genes")]
    asked += [(SEED, "one", "proteins"), *((*asked[0], moments + k) for k in (0.0, 1e-12))]
    found = [landmarks.seed_fingerprint(*one) for one in asked]
    assert len(set(found)) == len(found)
    assert {len(f) for f in found} == {16}
    assert landmarks.seed_fingerprint(*asked[0]) == found[0]
    assert not any(SEED[k : k + 4] in found[0] for k in range(29))
    seeds = {public_seed(seed, block) for seed in (0, 1, 10) for block in ("a", "b", "0/a", "")}
    assert (len(seeds), {len(seed) for seed in seeds}) == (12, {32})


def test_seeds_of_another_length_are_refused() -> None:
    landmarks.check_seed_bytes(bytes(32))
    for length in (0, 16, 31, 33):
        refuses("FK-KEY-LENGTH", landmarks.check_seed_bytes, bytes(length))


# -- random features

BANDWIDTHS = np.array([0.5, 1.0, 3.0])
PACKED = BANDWIDTHS.astype("<f8").tobytes()
DRAWS: list[Any] = ["independent", "orthogonal"]
ROWS = np.random.default_rng(0).uniform(-1, 1, (12, 6)) / np.sqrt(6)


def estimates(features: int, draw: Any, seeds: int) -> Array:
    """Estimated kernel matrices, (seeds, N, n, n)."""
    made = (FeatureMap(PACKED, 6, features, seed, "float64", draw)(ROWS) for seed in range(seeds))
    return np.array([np.einsum("ikw,jkw->kij", z, z) for z in made])


def gaussian_kernel(x: Array, bandwidth: float) -> Array:
    """exp(-|x_i - x_j|^2 / (2 s^2)) of all pairs of rows."""
    return np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2) / (2.0 * bandwidth**2))


def exact(factor: float = 1.0) -> Array:
    return np.stack([gaussian_kernel(ROWS, factor * s) for s in BANDWIDTHS])


def test_the_kernel_and_the_dictionary_are_those_of_the_paper() -> None:
    for k, s in zip(exact(), BANDWIDTHS, strict=True):
        np.testing.assert_allclose(k, np.exp(-cdist(ROWS, ROWS, "sqeuclidean") / (2 * s**2)))
    np.testing.assert_allclose(np.diag(gaussian_kernel(ROWS, 1e-3)), 1.0)
    paper = [10 ** ((2 * i - 52) / 25) for i in range(1, 52)]
    np.testing.assert_allclose(bandwidth_dictionary(51), paper, rtol=1e-12)
    assert bandwidth_dictionary(1).tolist() == [1.0]
    refuses("FK-OPTION-RANGE", bandwidth_dictionary, 0)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("features", [4, 6, 9])
def test_the_estimate_is_unbiased(draw: Any, features: int) -> None:
    """The mean over 400 draws lies within 5 standard errors of the exact kernel."""
    found = estimates(features, draw, 400)
    error = np.abs(found.mean(axis=0) - exact())
    bound = 5.0 * found.std(axis=0) / np.sqrt(400) + 1e-12
    assert (error <= bound).all()
    assert error.mean() < 0.01
    assert not (np.abs(found.mean(axis=0) - exact(1.3)) <= bound).all()
    many = estimates(4000, draw, 1)[0]
    assert np.abs(many - exact()).max() < 0.06
    np.testing.assert_allclose(np.diagonal(many, axis1=1, axis2=2), 1.0, atol=1e-12)


def test_orthogonal_features_have_a_smaller_variance() -> None:
    independent, orthogonal = (estimates(6, draw, 300).var(axis=0) for draw in DRAWS)
    ratio = orthogonal.mean(axis=(1, 2)) / independent.mean(axis=(1, 2))
    assert (ratio < 0.8).all()
    assert ratio[2] < 0.45  # a wide kernel gains most


@pytest.mark.parametrize("features", [3, 6, 8, 13])
def test_blocks_of_orthogonal_frequencies_stand_at_right_angles(features: int) -> None:
    rho = gaussian_frequencies(PACKED, 6, features, 4, "float64", "orthogonal")
    assert rho.shape == (6, 3 * features)
    for own in np.split(rho, 3, axis=1):
        for start in range(0, features, 6):
            block = own[:, start : start + 6]
            unit = block / np.linalg.norm(block, axis=0)
            np.testing.assert_allclose(unit.T @ unit, np.eye(block.shape[1]), atol=1e-12)
    assert np.linalg.matrix_rank(rho) == 6


def test_feature_maps_are_cached_and_frequencies_read_only() -> None:
    arguments: Any = (PACKED, 5, 7, 0, "float32", "independent")
    assert feature_map(*arguments) is feature_map(*arguments)
    first, other = (gaussian_frequencies(PACKED, 5, 7, seed, "float32") for seed in (0, 1))
    with pytest.raises(ValueError):  # noqa: PT011  (NumPy's)
        first[0, 0] = 1.0
    assert (first != other).all()
    for draw in DRAWS:  # float32 rounds the same draw
        maps = [FeatureMap(PACKED, 6, 20, 1, kind, draw)(ROWS) for kind in ("float32", "float64")]
        assert [one.dtype for one in maps] == [np.float32, np.float64]
        assert 0.0 < np.abs(maps[0] - maps[1]).max() < 1e-6


# -- kernels of dot products: against scikit-learn, brute force, and their own definitions


ALL = [
    DotKernel("linear"), DotKernel("poly", degree=3, gamma=0.5, coef0=2.0),
    DotKernel("rbf", gamma=0.3), DotKernel("cosine"), DotKernel("conjunctive", degree=2),
    DotKernel("disjunctive", degree=3), DotKernel("series", coefficients=(1.0, 0.0, 0.5)),
]  # fmt: skip
KERNEL = pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
DTYPE = pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float64])


def binary(features: int, instances: int, seed: int = 0, share: float = 0.4) -> np.ndarray:
    """Return features of 0 and 1, shape (features, instances): a column per instance."""
    rng = np.random.default_rng(seed)
    return (rng.random((features, instances)) < share).astype(np.int64)


def of(kernel: DotKernel, x: np.ndarray) -> np.ndarray:
    return kernel.matrix(x.T @ x, len(x))


# -- values


@DTYPE
def test_kernels_are_those_of_scikit_learn(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(-3, 4, (20, 15))
    x[:, 3] = 0
    gram = (x.T @ x).astype(dtype)
    np.testing.assert_array_equal(DotKernel().matrix(gram, 20), pairwise.linear_kernel(x.T))
    for degree in (1, 2, 5):
        found = DotKernel("poly", degree=degree, gamma=0.25, coef0=0.5).matrix(gram, 20)
        right = pairwise.polynomial_kernel(x.T, degree=degree, gamma=0.25, coef0=0.5)
        np.testing.assert_allclose(found, right, rtol=1e-13)
    found = DotKernel("rbf", gamma=0.05).matrix(gram, 20)
    np.testing.assert_allclose(found, pairwise.rbf_kernel(x.T, gamma=0.05), 1e-13)
    found = DotKernel("cosine").matrix(gram, 20)
    np.testing.assert_allclose(found, pairwise.cosine_similarity(x.T), atol=1e-15)
    assert found.diagonal().tolist() == [1.0] * 3 + [0.0] + [1.0] * 11
    assert not found[3].any()
    powers = np.array([[4, -2], [-2, 1]], dtype)
    found = DotKernel("series", coefficients=(1.0, 0.5, 0.0, 2.0)).matrix(powers, 1)
    np.testing.assert_array_equal(found, 1.0 + 0.5 * powers + 2.0 * powers.astype(float) ** 3)
    constant = DotKernel("series", coefficients=(3.0,)).matrix(powers, 1)
    assert constant.tolist() == [[3.0, 3.0], [3.0, 3.0]]


@DTYPE
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
def test_conjunctions_and_disjunctions_are_counted(degree: int, dtype: Any) -> None:
    x = binary(6, 8)
    x[:, 0], x[:, 1] = 0, 1
    gram = (x.T @ x).astype(dtype)
    subsets = [x[list(chosen)] for chosen in combinations(range(6), degree)]
    for name, holds in (("conjunctive", np.all), ("disjunctive", np.any)):
        truth = np.array([holds(subset, axis=0) for subset in subsets]).reshape(-1, 8)
        actual = DotKernel(name, degree=degree).matrix(gram, 6)
        np.testing.assert_array_equal(actual, truth.T.astype(float) @ truth)


@given(st.integers(1, 4000), st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_what_is_left_of_huge_numbers_is_exact(
    features: int, degree: int, left: float, right: float, overlap: float
) -> None:
    a, b = round(left * features), round(right * features)
    least = max(0, a + b - features)
    shared = least + round(overlap * (min(a, b) - least))
    rest = (features, features - a, features - b, features - a - b + shared)
    total, first, second, neither = (math.comb(n, degree) for n in rest)
    expected = {"disjunctive": total - first - second + neither}
    expected["conjunctive"] = math.comb(shared, degree)
    for name, value in expected.items():
        kernel = DotKernel(name, degree=degree)
        found = kernel.block(np.array([[shared]]), np.array([a]), np.array([b]), features)
        rounding = 1e-15 if name == "disjunctive" else 1e-14
        assert found[0, 0] == pytest.approx(value, rel=rounding, abs=0)


def test_distances_are_exact_do_not_wrap_around_and_are_never_negative() -> None:
    a = 2**29
    squared = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 5.0], [4.0, 5.0, 0.0]])
    found = of(DotKernel("rbf", gamma=1.0), np.array([[a, a + 1, a], [a, a, a + 2]]))
    np.testing.assert_allclose(found, np.exp(-squared), rtol=1e-15)
    gram = np.array([[2**62, -(2**62)], [-(2**62), 2**62]])
    found = DotKernel("rbf", gamma=2.0**-64).matrix(gram, 1)
    np.testing.assert_allclose(found, [[1.0, math.exp(-1)], [math.exp(-1), 1.0]])
    near = np.array([[1.0, 1.0 + 1e-15], [1.0 + 1e-15, 1.0]])
    assert DotKernel("rbf", gamma=1e14).matrix(near, 1).max() == 1.0
    assert of(DotKernel("rbf", gamma=1e300), np.array([[0, 2**20]]))[0, 1] == 0.0


# -- what holds of all


@KERNEL
@DTYPE
def test_blocks_are_parts_of_the_whole(monkeypatch: Any, kernel: DotKernel, dtype: Any) -> None:
    assert tuple(kernel.name for kernel in ALL) == KERNELS
    x = binary(50, 131)
    gram = (x.T @ x).astype(dtype)
    before, norms = gram.copy(), gram.diagonal()
    whole = kernel.matrix(gram, 50)
    assert whole.dtype == np.float64
    np.testing.assert_array_equal(whole, whole.T)
    np.testing.assert_array_equal(gram, before)
    part = kernel.block(gram[:5, 5:], norms[:5], norms[5:], 50)
    np.testing.assert_allclose(part, whole[:5, 5:], rtol=1e-15)
    monkeypatch.setattr(dot_kernels, "_BLOCK_BYTES", 8 * 131 * 4)
    np.testing.assert_allclose(kernel.matrix(gram, 50), whole, rtol=1e-15)
    none = np.zeros(0, np.int64)
    assert kernel.block(np.zeros((0, 3), np.int64), none, np.ones(3), 5).shape == (0, 3)
    assert kernel.matrix(np.zeros((0, 0)), 5).shape == (0, 0)


# -- what cannot be


@pytest.mark.parametrize(("options", "code"), [
    ({"name": "sigmoid"}, "FK-OPTION-CHOICE"),
    *(({"name": "poly", "degree": wrong}, "FK-OPTION-RANGE") for wrong in (0, 1.5, True)),
    *(({"name": "rbf", "gamma": wrong}, "FK-OPTION-RANGE") for wrong in (0.0, math.nan)),
    ({"name": "poly", "coef0": -1.0}, "FK-OPTION-RANGE"), ({"name": "series"}, "FK-OPTION-PARTNER"),
    ({"name": "series", "coefficients": (1.0, -0.5)}, "FK-OPTION-RANGE"),
    ({"name": "series", "coefficients": (math.nan,)}, "FK-OPTION-RANGE"),
])  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any], code: str) -> None:
    refuses(code, DotKernel, **options)


def test_features_of_another_kind_shape_or_size_are_refused() -> None:
    for name in ("conjunctive", "disjunctive"):
        assert DotKernel(name).needs_binary
        refuses("FK-KERNEL-BINARY", of, DotKernel(name), np.array([[1, -1], [0, 1]]))
    assert not DotKernel("poly").needs_binary
    with refused("FK-KERNEL-BINARY"):  # more than all features
        of(DotKernel("disjunctive"), np.array([[2, 1], [0, 1]]))
    refuses("FK-SHAPE-DIFFERS", DotKernel().block, np.ones((2, 2)), np.ones(2), np.ones(1), 1)
    for kernel in (
        DotKernel("poly", degree=200), DotKernel("series", coefficients=(0.0,) * 150 + (1.0,)),
        DotKernel("conjunctive", degree=900), DotKernel("disjunctive", degree=900),
    ):  # fmt: skip
        refuses("FK-KERNEL-OVERFLOW", of, kernel, np.ones((2000, 2), np.int64))
