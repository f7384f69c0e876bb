"""Kernels of rows and landmarks, and the solvers of FedCG: laws, exactness, textbook versions."""

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
from scipy import linalg, stats
from scipy.spatial.distance import cdist
from sklearn.linear_model import Ridge
from sklearn.metrics import pairwise

import fedkern_flwr.gram.dot_kernels as dot_kernels
from fedkern_flwr import threads
from fedkern_flwr.errors import CheckpointError, ProtocolError
from fedkern_flwr.gram.dot_kernels import KERNELS, DotKernel
from fedkern_flwr.hybrid import landmarks
from fedkern_flwr.hybrid.landmarks import draw_landmarks, moment_sums, public_seed, read_moments
from fedkern_flwr.kernels import product as product
from fedkern_flwr.kernels.dictionary import bandwidth_dictionary, gaussian_kernel
from fedkern_flwr.kernels.product import kernel_from_distances, partial_distances
from fedkern_flwr.kernels.random_features import FeatureMap, feature_map, gaussian_frequencies
from fedkern_flwr.solvers.conjugate_gradient import CGState, conjugate_gradient
from fedkern_flwr.solvers.equations import equations_length, pack_equations, unpack_equations
from fedkern_flwr.solvers.least_squares import check_regularization, regularized, solve_equations
from fedkern_flwr.solvers.losses import LOSSES, Loss, loss_derivatives, loss_values
from fedkern_flwr.solvers.preconditioner import NystromPreconditioner, probe_vectors
from fedkern_flwr.solvers.tuning import choose, widths_around
from fedkern_flwr.solvers.tuning_sums import Equations, tuning_length

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


def test_kernels_are_made_in_place_with_a_width_per_landmark() -> None:
    distances = np.array([[0.0, 1.0, 2.0], [3.0, 0.5, 0.0]])
    copy, gammas = distances.copy(), np.array([0.1, 1.0, 2.0])
    found = kernel_from_distances(distances, gammas)
    assert found is distances
    np.testing.assert_allclose(found, np.exp(-gammas * copy), rtol=1e-15)


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


@given(rows=st.integers(0, 10**7), columns=st.integers(0, 10**7))
def test_chunks_make_up_all_rows_once(rows: int, columns: int) -> None:
    step = max(1, (1 << 22) // max(1, columns))
    rows, stop = min(rows, 2000 * step + 1), 0
    for part in product.row_chunks(rows, columns):
        assert part.start == stop
        assert 0 < part.stop - part.start <= step
        stop = part.stop
    assert stop == rows


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


def exact(factor: float = 1.0) -> Array:
    return np.stack([gaussian_kernel(ROWS, ROWS, factor * s) for s in BANDWIDTHS])


def test_the_kernel_and_the_dictionary_are_those_of_the_paper() -> None:
    for k, s in zip(exact(), BANDWIDTHS, strict=True):
        np.testing.assert_allclose(k, np.exp(-cdist(ROWS, ROWS, "sqeuclidean") / (2 * s**2)))
    np.testing.assert_allclose(np.diag(gaussian_kernel(ROWS, ROWS, 1e-3)), 1.0)
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


# -- solvers of FedCG: against textbook versions, SciPy and scikit-learn, and what they refuse


def normal(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def gram(m: int, spectrum: Array, seed: int = 0) -> Array:
    """A symmetric matrix (m, m) with these eigenvalues, the others zero."""
    q, _ = np.linalg.qr(normal((m, len(spectrum)), seed))
    return (q * spectrum) @ q.T


def positive(m: int, condition: float = 100.0, seed: int = 0) -> Array:
    return gram(m, np.geomspace(1.0, condition, m), seed)


# -- conjugate gradients


class Products:
    """Multiplies with a matrix and counts columns; ``noise`` is relative."""

    def __init__(self, a: Array, noise: float = 0.0) -> None:
        self.a, self.noise, self.columns = a, noise, list[int]()
        self.rng = np.random.default_rng(0)

    def __call__(self, p: Array) -> Array:
        self.columns.append(p.shape[1])
        q = self.a @ p
        p[:] = np.nan  # whoever multiplies may use what it was given as it likes
        return q + self.noise * np.abs(q).max(axis=0) * self.rng.uniform(-1, 1, q.shape)


def textbook(a: Array, b: Array, tolerance: float = 1e-8, x: Array | None = None) -> list[Array]:
    """Plain conjugate gradients for one right-hand side: all iterates."""
    x = np.zeros(len(b)) if x is None else x.copy()
    r = b - a @ x
    p, iterates = r.copy(), [x.copy()]
    while np.sqrt(r @ r) > tolerance * np.sqrt(b @ b):
        q, old = a @ p, r @ r
        step = old / (p @ q)
        x, r = x + step * p, r - step * q
        p = r + (r @ r) / old * p
        iterates.append(x.copy())
    return iterates


def followed(multiply: Any, b: Array, **options: Any) -> tuple[Any, list[CGState], list[Array]]:
    """The result, and the state and the iterate after each iteration."""
    states, seen = list[CGState](), list[tuple[Array, Array, Array]]()

    def note(state: CGState, residuals: Array) -> None:
        states.append(state)
        seen.append((state.x.copy(), residuals, state.arrays()["x"]))

    result = conjugate_gradient(multiply, b, on_iteration=note, **options)
    for (x, told, kept), residuals in zip(seen, result.residuals[1:], strict=True):
        np.testing.assert_array_equal(told, residuals)
        np.testing.assert_array_equal(kept, x)  # a copy, which later iterations leave alone
    return result, states, [x for x, *_ in seen]


@pytest.mark.parametrize("started", [False, True])
def test_every_iterate_is_that_of_the_textbook(started: bool) -> None:
    a, b = positive(40, 10.0, seed=2), normal((40, 1), 3)
    start = 10.0 * normal((40, 1), 4) if started else None
    expected = textbook(a, b[:, 0], x=start[:, 0] if started else None)
    multiply = Products(a)
    found, _, seen = followed(multiply, b, tolerance=1e-8, start=start)
    assert found.iterations == len(expected) - 1 == len(seen)
    assert len(multiply.columns) == found.iterations + started
    for x, y in zip(seen, expected[1:], strict=True):
        np.testing.assert_allclose(x[:, 0], y, rtol=1e-11, atol=1e-11)
    norms = [np.linalg.norm(b[:, 0] - a @ y) / np.linalg.norm(b) for y in expected]
    np.testing.assert_allclose(found.residuals[:, 0], norms, rtol=1e-6)
    np.testing.assert_allclose(found.squared, found.residuals**2 * (b**2).sum(), rtol=1e-12)
    if started:  # its product may be known
        known = conjugate_gradient(Products(a), b, start=start, start_product=a @ start)
        np.testing.assert_allclose(known.x, found.x, rtol=1e-12)
        assert known.iterations == found.iterations


def test_right_hand_sides_share_the_calls_and_stop_one_by_one() -> None:
    """Each column goes as if it were alone; a call carries the columns still under way."""
    a = positive(30, 10.0, seed=8)
    values, vectors = np.linalg.eigh(a)
    b = normal((30, 4), 9)
    b[:, 1] = vectors[:, 3] * values[3]  # solved in one iteration
    b[:, 2] = 0.0
    multiply = Products(a)
    found = conjugate_gradient(multiply, b)
    alone = [textbook(a, b[:, j]) for j in range(4)]
    counts = [len(one) - 1 for one in alone]
    assert counts[1:3] == [1, 0]
    assert found.iterations == max(counts) == len(multiply.columns)
    assert multiply.columns == [sum(i < n for n in counts) for i in range(found.iterations)]
    for j in range(4):
        np.testing.assert_allclose(found.x[:, j], alone[j][-1], rtol=1e-11, atol=1e-12)
    assert (np.diff(found.squared[1:, 1]) == 0).all()
    multiply.columns.clear()
    zero = conjugate_gradient(multiply, 0.0 * b, start=b)  # of zero it is zero, from any start
    assert zero.converged
    assert (zero.iterations, multiply.columns, zero.x.any()) == (0, [], False)
    assert not zero.residuals.any()


def test_a_preconditioner_gives_the_iterates_of_the_transformed_system() -> None:
    """With P = L L^T the iterates are those of L^-1 A L^-T, and the exact inverse needs one."""
    a, b = positive(15, seed=17), normal((15, 2), 18)
    lower = np.linalg.cholesky(positive(15, 5.0, seed=19))
    inverse = np.linalg.inv(lower)
    found, _, seen = followed(lambda p: a @ p, b, precondition=lambda r: inverse.T @ inverse @ r)
    for j in range(2):
        transformed = textbook(inverse @ a @ inverse.T, inverse @ b[:, j], 1e-14)
        for x, y in zip(seen[:8], transformed[1:9], strict=True):
            np.testing.assert_allclose(x[:, j], inverse.T @ y, rtol=1e-9, atol=1e-11)
    assert found.converged
    exact = conjugate_gradient(lambda p: a @ p, b, precondition=lambda r: np.linalg.solve(a, r))
    assert exact.iterations == 1


def test_what_cannot_converge_ends_its_column_and_is_told() -> None:
    b, a, ones = np.ones((4, 2)), positive(30, 1e4, seed=21), np.ones((30, 1))
    b[2] = 3.0, 0.0
    rng = np.random.default_rng(26)
    indefinite = conjugate_gradient(Products(np.diag([1.0, 2.0, -1.0, 3.0])), b)
    np.testing.assert_allclose(indefinite.x[:, 1], [1.0, 0.5, 0.0, 1 / 3], rtol=1e-9, atol=1e-12)
    assert indefinite.residuals[-1, 0] > 0.1
    assert indefinite.iterations < 10
    zero = conjugate_gradient(lambda p: 0.0 * p, b)
    assert (zero.iterations, zero.x.any()) == (1, False)
    negative = conjugate_gradient(lambda p: a @ p, a[:, :1], precondition=lambda r: -r)
    short, none = (conjugate_gradient(Products(a), ones, max_iterations=n) for n in (5, 0))
    assert [one.iterations for one in (negative, short, none)] == [0, 5, 0]
    assert short.residuals.shape == short.squared.shape == (6, 1)
    noisy = conjugate_gradient(lambda p: a @ p + rng.standard_normal(p.shape), a[:, :1])
    for one in (indefinite, zero, negative, short, none, noisy):
        assert not one.converged
        assert np.isfinite(one.x).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    a, b, fine, calls = positive(5), np.ones((5, 1)), lambda p: positive(5) @ p, []

    def breaks_later(p: Array) -> Array:
        calls.append(p)
        return a @ p if len(calls) < 3 else np.full(p.shape, bad)

    cases: list[tuple[Any, Array, dict[str, Any]]] = [
        (breaks_later, b, {}),
        (fine, b * bad, {}),
        (fine, b, {"start": b * bad}),
        (fine, b, {"start": b, "start_product": b * bad}),
        (fine, b, {"precondition": lambda r: r * bad}),
        (lambda p: 1e200 * p, 1e100 * b, {}),  # A p
        (lambda p: p * [[1.0], [2.0**-50 - 1.0]], 1e150 * b[:2], {}),  # the residual
    ]
    for multiply, right, options in cases:
        with refused("FK-MESSAGE-FINITE", kind=ProtocolError):
            conjugate_gradient(multiply, right, **options)
    probes = probe_vectors(6, 3, 0)
    with refused("FK-MESSAGE-FINITE", kind=ProtocolError):
        NystromPreconditioner(probes * bad, probes, 1.0)


ONES = np.ones((4, 1))
STATE = followed(lambda p: 2.0 * p, ONES)[1][0]


@pytest.mark.parametrize(("options", "code"), [
    ({"tolerance": -1.0}, "FK-OPTION-RANGE"), ({"tolerance": float("nan")}, "FK-OPTION-RANGE"),
    ({"max_iterations": -1}, "FK-OPTION-RANGE"), ({"start_product": ONES}, "FK-OPTION-PARTNER"),
    ({"start": ONES, "state": STATE}, "FK-OPTION-PARTNER"),
    ({"start": np.ones((3, 1))}, "FK-SHAPE-DIFFERS"), ({"b": np.ones(4)}, "FK-SHAPE-DIFFERS"),
    ({"b": np.ones((5, 1)), "state": STATE}, "FK-CHECKPOINT-OTHER"),
    ({"multiply": lambda _: np.ones((4, 2))}, "FK-MESSAGE-SHAPE"),
])  # fmt: skip
def test_what_cannot_work_is_refused(options: dict[str, Any], code: str) -> None:
    refuses(code, conjugate_gradient, **{"multiply": lambda p: p, "b": ONES, **options})


def test_a_state_that_is_damaged_is_refused() -> None:
    good = STATE.arrays()
    for name in good:
        broken = [{**good, name: good[name][..., :0]}, {k: v for k, v in good.items() if k != name}]
        if name != "ended":
            broken.append({**good, name: good[name] * np.nan})
        for arrays in broken:
            with refused("FK-CHECKPOINT-DAMAGED", kind=CheckpointError):
                CGState.from_arrays(arrays)


# -- the preconditioner


def test_probes_are_orthonormal_seeded_and_point_everywhere() -> None:
    """The mean of q q^T over 2,000 draws is I s / m, within 5 standard errors."""
    probes = probe_vectors(40, 7, 3)
    np.testing.assert_allclose(probes.T @ probes, np.eye(7), atol=1e-14)
    np.testing.assert_array_equal(probes, probe_vectors(40, 7, 3))
    assert np.abs(probes - probe_vectors(40, 7, 4)).max() > 0.1
    assert probe_vectors(5, 9, 0).shape == (5, 5)
    draws = np.array([probe_vectors(6, 2, seed) for seed in range(2000)])
    outer = draws @ draws.transpose(0, 2, 1)
    error = np.abs(outer.mean(axis=0) - np.eye(6) * 2 / 6)
    assert (error < 5 * outer.std(axis=0) / np.sqrt(2000)).all()
    assert (np.abs(draws.mean(axis=0)) < 5 / np.sqrt(6 * 2000)).all()  # no preferred sign


def test_the_formula_holds_and_the_sketched_space_is_inverted_exactly() -> None:
    """P^-1 (A_nys + lambda I) is (l_s + lambda) on the span of U; beyond it P^-1 is 1 (eq. 5.3)."""
    a, probes = gram(40, np.geomspace(1e3, 1e-3, 40)), probe_vectors(40, 10, 4)
    inverse = NystromPreconditioner(a @ probes, probes, 0.1)
    basis, values = inverse.basis, inverse.eigenvalues
    approximation = a @ probes @ np.linalg.solve(probes.T @ a @ probes, probes.T @ a)
    np.testing.assert_allclose((basis * values) @ basis.T, approximation, atol=1e-9)
    assert (np.diff(values) <= 0).all()
    beyond = np.eye(40) - basis @ basis.T
    p = (basis * (values + 0.1)) @ basis.T / (values[-1] + 0.1) + beyond
    np.testing.assert_allclose(inverse(np.eye(40)), np.linalg.inv(p), rtol=1e-6, atol=1e-9)


@given(
    m=st.integers(1, 25), rank=st.integers(1, 30), true_rank=st.integers(0, 25),
    decades=st.floats(0.0, 16.0), lam=st.floats(-8.0, 2.0).map(lambda x: 10.0**x),
    noise=st.sampled_from([0.0, 1e-15, 1e-12, 1e-6, 1e-1]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_it_is_symmetric_and_positive_definite_whatever_the_sketch(
    m: int, rank: int, true_rank: int, decades: float, lam: float, noise: float, seed: int
) -> None:
    a = gram(m, np.geomspace(1e3, 1e3 * 10.0**-decades, min(m, true_rank)), seed)
    probes, rng = probe_vectors(m, rank, seed), np.random.default_rng(seed)
    inverse = NystromPreconditioner(Products(a, noise)(probes.copy()), probes, lam)
    dense, values = inverse(np.eye(m)), inverse.eigenvalues
    np.testing.assert_allclose(dense, dense.T, atol=1e-12)
    smallest = values[-1] if values.size else 0.0
    exact = (smallest + lam) / (values + lam)
    expected = np.sort(np.concatenate([exact, np.ones(m - values.size)]))
    np.testing.assert_allclose(np.linalg.eigvalsh(dense), expected, rtol=1e-6, atol=1e-12)
    r = rng.standard_normal((m, 4))
    assert (np.einsum("ij,ij->j", r, inverse(r)) > 0).all()


def test_a_sketch_that_is_not_positive_is_cut() -> None:
    """Symmetric noise: no asymmetry gives it away, and Cholesky fails."""
    a, probes = gram(30, np.array([100.0, 10.0, 1.0])), probe_vectors(30, 6, 10)
    inverse = NystromPreconditioner(a @ probes - 1e-9 * probes, probes, 1e-3)
    np.testing.assert_allclose(inverse.eigenvalues, [100.0, 10.0, 1.0], rtol=1e-6)
    b = np.ones((30, 1))
    assert conjugate_gradient(lambda p: a @ p + 1e-3 * p, b, precondition=inverse).iterations <= 3
    negative = NystromPreconditioner(-probes, probes, 1.0)  # no positive eigenvalue at all
    assert negative.eigenvalues.size == 0
    np.testing.assert_array_equal(negative(b), b)


# -- normal equations


@given(m=st.integers(1, 12), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_equations_survive_the_packing_and_add_up(m: int, k: int, seed: int) -> None:
    total = np.zeros(equations_length(m, k))
    assert total.size == m * (m + 1) // 2 + m * k
    grams, rights = np.zeros((m, m)), np.zeros((m, k))
    for part in range(3):
        kernel = normal((9, m), seed + part)
        one, right = kernel.T @ kernel, kernel.T @ normal((9, k), seed + part + 1)
        total += pack_equations(one, right)
        grams, rights = grams + one, rights + right
    found, right = unpack_equations(total, m, k)
    np.testing.assert_allclose(found, grams, rtol=1e-14)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(right, rights, rtol=1e-14)
    three = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    packed = pack_equations(three, np.arange(7.0, 13.0).reshape(3, 2))
    assert packed.tolist() == [float(n) for n in range(1, 13)]  # the upper triangle first


def test_the_solution_is_that_of_ridge_regression_or_has_a_penalty_of_the_functions_norm() -> None:
    """Equation 2.10, against a general solver; singular matrices give the least-norm solution."""
    kernel, y = np.random.default_rng(0).random((40, 7)), normal((40, 3))
    left, right = kernel.T @ kernel, kernel.T @ y
    copies = left.copy(), right.copy()
    for regularization in (1e-4, 1e-2, 3.0):
        found = solve_equations(left, right, regularization)
        ridge = Ridge(regularization, fit_intercept=False, solver="svd").fit(kernel, y)
        np.testing.assert_allclose(found, ridge.coef_.T, rtol=1e-9)
    np.testing.assert_array_equal(left, copies[0])
    np.testing.assert_array_equal(right, copies[1])
    w = np.random.default_rng(1).random((7, 7))
    pairs = w @ w.T
    found = solve_equations(left, right, 0.3, pairs)
    np.testing.assert_allclose(found, linalg.solve(left + 0.3 * pairs, right), rtol=1e-9)
    np.testing.assert_array_equal(regularized(left, 0.3, pairs), left + 0.3 * pairs)
    np.testing.assert_allclose(regularized(left, 0.3, None) - left, 0.3 * np.eye(7), atol=1e-15)
    twice = np.repeat(np.arange(4), 2)[:7]  # equal landmarks
    left, right, pairs = left[np.ix_(twice, twice)], right[twice], pairs[np.ix_(twice, twice)]
    found = solve_equations(left, right, 0.3, pairs)
    expected = linalg.lstsq(left + 0.3 * pairs, right, cond=1e-12)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)


@pytest.mark.parametrize("value", [0.0, -1e-3, float("nan"), float("inf")])
def test_numbers_that_give_no_solution_are_refused(value: float) -> None:
    check_regularization(1e-12)
    probes = probe_vectors(6, 3, 0)
    refuses("FK-OPTION-RANGE", check_regularization, value)
    if not value > 0.0:
        refuses("FK-OPTION-RANGE", NystromPreconditioner, probes, probes, value)
    for m, rank in ((0, 3), (3, 0)):
        refuses("FK-OPTION-RANGE", probe_vectors, m, rank, 0)
    refuses("FK-MESSAGE-SHAPE", NystromPreconditioner, probes[:, :2], probes, 1.0)
    refuses("FK-EQUATIONS-SINGULAR", solve_equations, np.ones((3, 3)), np.ones((3, 1)), 1e-30)


# -- losses


def test_losses_are_those_of_the_table() -> None:
    z = np.array([-2.0, 0.0, 0.5, 1.0, 3.0])
    table = {
        "square": [9.0, 1.0, 0.25, 0.0, 4.0],
        "logistic": np.log(1.0 + np.exp(-z)),
        "smooth-hinge": [2.5, 0.5, 0.125, 0.0, 0.0],
    }
    assert set(table) == set(LOSSES)
    for loss, expected in table.items():
        for y in (-1.0, 1.0):
            found = loss_values(loss, y * z, np.full(5, y))  # type: ignore[arg-type]
            np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
@given(f=st.floats(-20.0, 20.0), y=st.sampled_from([-1.0, 1.0]))
def test_derivatives_are_those_of_the_values(loss: Loss, f: float, y: float) -> None:
    values = loss_values(loss, np.array([f - 1e-6, f + 1e-6]), np.full(2, y))
    (found,) = loss_derivatives(loss, np.array([f]), np.array([y]))
    assert found == pytest.approx(np.diff(values)[0] / 2e-6, abs=2e-6)
    far, y2 = np.array([-1e8, 1e8, -1e8, 1e8]), np.array([1.0, 1.0, -1.0, -1.0])
    slopes = loss_derivatives(loss, far, y2)
    assert np.isfinite([loss_values(loss, far, y2), slopes]).all()  # no overflow far away
    if loss != "square":
        np.testing.assert_allclose(slopes, [-1.0, 0.0, 0.0, 1.0], atol=1e-300)


# -- width and lambda from normal equations

LAMBDAS = 10.0 ** np.arange(-8.0, 1.0)


def line(y: Array, gammas: Array, folds: int, m: int = 12) -> Equations:
    """The equations of rows on the line, dealt to folds in turn."""
    distances = (np.linspace(0.0, 1.0, len(y))[:, None] - np.linspace(0.0, 1.0, m)) ** 2
    sums = Equations.zeros(m, y.shape[1], folds, len(gammas))
    for f in range(folds):
        rows = np.arange(len(y)) % folds == f
        sums.add(f, distances[rows], y[rows], gammas)
    return sums


@pytest.mark.parametrize("folds", [1, 3])
def test_of_equal_errors_the_smoothest_model_is_taken(folds: int) -> None:
    gammas = widths_around(0.2, 9)
    found = choose(line(np.zeros((30, 2)), gammas, folds), LAMBDAS, 30)
    assert (found.width, found.weight) == (0, len(LAMBDAS) - 1)
    same = choose(line(np.ones((30, 1)), np.full(3, 2.0), folds), LAMBDAS, 30)
    errors = same.errors[0]
    assert same.width == 0
    assert same.weight == np.flatnonzero(errors <= errors.min() * (1.0 + 1e-6))[-1]


def test_of_numbers_gcv_takes_a_larger_lambda_that_is_as_good_to_a_hundredth() -> None:
    y = np.sin(6.0 * np.linspace(0.0, 1.0, 60))[:, None] + normal((60, 1), 2)
    lambdas, gammas = 10.0 ** np.arange(-6.0, 3.0, 0.1), widths_around(0.2, 9)
    sums, folds = line(y, gammas, 1), line(y, gammas, 5)
    strict, loose = (choose(sums, lambdas, 60, numbers=numbers) for numbers in (False, True))
    row = loose.errors[loose.width]
    assert loose.width == strict.width
    assert loose.weight > strict.weight
    assert loose.weight == np.flatnonzero(row <= 1.01 * row.min())[-1]
    # held-out errors are as they are
    assert choose(folds, lambdas, 60, numbers=True).weight == choose(folds, lambdas, 60).weight


@pytest.mark.parametrize("folds", [1, 5])
def test_errors_are_never_negative_and_noise_is_not_learned_by_heart(folds: int) -> None:
    """Rounding takes sums of squares that vanish below zero: they count as zero."""
    x = np.linspace(0.0, 1.0, 40)
    y = 1e6 * np.exp(-5.0 * (x[:, None] - 0.5) ** 2)  # in the span of the landmarks, nearly
    found = choose(line(y, np.array([5.0]), folds, m=11), 1e-30 * LAMBDAS, 40)
    assert (found.errors >= 0.0).all()
    assert np.isfinite(found.errors[found.width, found.weight])
    # as many landmarks as rows: a model that interpolates has no residual, and is not taken
    found = choose(line(normal((30, 1)), widths_around(0.2, 9), folds, m=30), LAMBDAS, 30)
    assert found.errors[found.width, found.weight] > 0.5


@pytest.mark.parametrize(("folds", "widths"), [(1, 1), (1, 3), (2, 3)])
def test_what_was_packed_for_tuning_is_unpacked(folds: int, widths: int) -> None:
    y = normal((20, 3), 1)
    sums = line(y, np.arange(1.0, widths + 1), folds)
    assert len(sums.pack()) == tuning_length(12, 3, folds, widths)
    again = Equations.unpack(sums.pack(), 12, 3, folds, widths)
    for name in ("gram", "right", "squares"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sums, name))
    np.testing.assert_allclose(again.squares.sum(0), (y**2).sum(0))
