"""Kernels of blocks and random features: exact where they can be, unbiased, within their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.spatial.distance import cdist

from fedkern_flwr import threads
from fedkern_flwr.hybrid.landmarks import draw_landmarks
from fedkern_flwr.kernels import product as product_kernel
from fedkern_flwr.kernels.dictionary import bandwidth_dictionary, gaussian_kernel
from fedkern_flwr.kernels.product import (
    distance_bound,
    kernel_from_distances,
    landmark_gammas,
    mean_distances,
    partial_distances,
    row_chunks,
)
from fedkern_flwr.kernels.random_features import FeatureMap, feature_map, gaussian_frequencies
from fedkern_flwr.strategies import FDSKL, FedCG, HierarchicalSVM

METRICS = {"rbf": "sqeuclidean", "laplacian": "cityblock"}
KERNELS: list[Any] = list(METRICS)
Array = np.ndarray


# -- the product kernel


def draw(n: int, m: int, d: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1.0, 1.0, (n, d)), rng.uniform(-1.0, 1.0, (m, d))


@pytest.mark.parametrize("kernel", KERNELS)
@given(sizes=st.tuples(*[st.integers(1, 12)] * 3), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_the_kernel_of_a_row_is_the_product_of_its_blocks(
    kernel: Any, sizes: tuple[int, int, int], cuts: list[int]
) -> None:
    n, m, d = sizes
    x, w = draw(n, m, d, n + 13 * m + 169 * d)
    blocks = np.split(np.arange(d), sorted(min(cut, d) for cut in cuts))  # some may be empty
    parts = [partial_distances(x[:, b], w[:, b], kernel) for b in blocks]
    gamma = np.array([0.7])
    whole = np.exp(-0.7 * cdist(x, w, METRICS[kernel]))
    np.testing.assert_allclose(kernel_from_distances(sum(parts), gamma), whole, atol=1e-13)
    factors = [kernel_from_distances(part, gamma) for part in parts]
    np.testing.assert_allclose(np.prod(factors, axis=0), whole, atol=1e-13)
    far = mean_distances(x + 1e3, w + 1e3, kernel)
    np.testing.assert_allclose(far, cdist(x, w, METRICS[kernel]).mean(axis=1), atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_many_rows_are_shared_between_threads(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = draw(5003, 9, 4)
    expected = cdist(x, w, METRICS[kernel])
    for block, workers in ((9 * 7, 3), (1, 2), (1 << 15, 1)):
        monkeypatch.setattr(product_kernel, "_BLOCK", block)
        monkeypatch.setattr(threads, "processors", lambda workers=workers: workers)
        np.testing.assert_allclose(partial_distances(x, w, kernel), expected, atol=1e-14)


def test_a_row_that_is_a_landmark_has_no_distance_to_it() -> None:
    """Rounding must not make squared distances negative: kernel values beyond one break bounds."""
    x = np.random.default_rng(0).random((300, 30))
    found = partial_distances(x, x, "rbf")
    assert found.min() == 0.0
    assert np.diagonal(found).max() < 1e-13
    assert kernel_from_distances(found, np.array([50.0])).max() <= 1.0
    for kernel in KERNELS:  # no features, or no rows
        empty = partial_distances(np.zeros((4, 0)), np.zeros((3, 0)), kernel)
        np.testing.assert_array_equal(empty, np.zeros((4, 3)))
        assert partial_distances(np.zeros((0, 2)), np.zeros((3, 2)), kernel).shape == (0, 3)
        assert mean_distances(np.zeros((0, 2)), np.zeros((4, 2)), kernel).shape == (0,)


def test_kernels_are_made_in_place_with_a_width_per_landmark() -> None:
    distances = np.array([[0.0, 1.0, 2.0], [3.0, 0.5, 0.0]])
    copy, gammas = distances.copy(), np.array([0.1, 1.0, 2.0])
    found = kernel_from_distances(distances, gammas)
    assert found is distances
    np.testing.assert_allclose(found, np.exp(-gammas * copy), rtol=1e-15)


@pytest.mark.promise("fedcg-distances-bound")
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_no_landmark_is_farther_from_a_row_within_the_ranges_than_the_bound(
    spans: list[tuple[float, float]], seed: int
) -> None:
    """Landmarks lie in the ball through the corners; opposite points of it are farthest apart."""
    ranges = np.array([[low, low + span] for low, span in spans]).reshape(-1, 2)
    low, high = ranges.T
    wide, rng = high > low, np.random.default_rng(seed)
    for kernel in KERNELS:
        bound, metric = distance_bound(ranges, kernel), METRICS[kernel]
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


@pytest.mark.parametrize("spans", [[1.0], [3.0, 3.0, 3.0], [0.5, 0.0, 0.5], [1e-200] * 4])
def test_the_bound_is_the_distance_of_corners_where_spans_are_equal(spans: list[float]) -> None:
    ranges = np.stack([np.zeros(len(spans)), spans], axis=1)
    assert distance_bound(ranges, "laplacian") == pytest.approx(sum(spans), rel=1e-12)
    assert distance_bound(ranges, "rbf") == pytest.approx(np.square(spans).sum(), rel=1e-12)


def test_widths_per_landmark_are_log_uniform_around_gamma() -> None:
    found = landmark_gammas(0.5, 4000, 3)
    assert found.shape == (4000,)
    assert 0.25 <= found.min() <= found.max() <= 1.0
    logs = np.log2(found / 0.5)
    assert np.histogram(logs, 4, (-1.0, 1.0))[0].min() > 900
    np.testing.assert_array_equal(found, landmark_gammas(0.5, 4000, 3))
    assert not np.isclose(found, landmark_gammas(0.5, 4000, 4)).any()
    np.testing.assert_allclose(landmark_gammas(1.0, 4000, 3), 2.0 * found, rtol=1e-12)


@given(rows=st.integers(0, 10**7), columns=st.integers(0, 10**7))
def test_chunks_make_up_all_rows_once(rows: int, columns: int) -> None:
    step = max(1, (1 << 22) // max(1, columns))
    rows, stop = min(rows, 2000 * step + 1), 0
    for part in row_chunks(rows, columns):
        assert part.start == stop
        assert 0 < part.stop - part.start <= step
        stop = part.stop
    assert stop == rows


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("method", [FedCG, FDSKL, partial(HierarchicalSVM, model="rbf")])
def test_a_width_that_is_no_positive_number_is_refused(
    method: Callable[..., Any], gamma: float
) -> None:
    method(gamma=1e-9)
    with refused("FK-OPTION-RANGE"):
        method(gamma=gamma)


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
    with refused("FK-OPTION-RANGE"):
        bandwidth_dictionary(0)


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


@pytest.mark.parametrize("draw", DRAWS)
def test_frequencies_are_normal_with_the_inverse_bandwidth(draw: Any) -> None:
    rho = gaussian_frequencies(PACKED, 5, 4000, 0, "float64", draw)
    for own, s in zip(np.split(rho, 3, axis=1), BANDWIDTHS, strict=True):
        assert np.abs((own * s).mean(axis=1)).max() < 0.08
        np.testing.assert_allclose((own * s).var(axis=1), 1.0, atol=0.1)
        assert np.mean((own * s) ** 4) == pytest.approx(3.0, abs=0.35)  # 5 standard errors
    maps = [FeatureMap(PACKED, 6, 20, 1, kind, draw)(ROWS) for kind in ("float32", "float64")]
    assert [one.dtype for one in maps] == [np.float32, np.float64]
    assert 0.0 < np.abs(maps[0] - maps[1]).max() < 1e-6  # float32 rounds the same draw


def test_feature_maps_are_cached_and_frequencies_read_only() -> None:
    arguments: Any = (PACKED, 5, 7, 0, "float32", "independent")
    assert feature_map(*arguments) is feature_map(*arguments)
    first, other = (gaussian_frequencies(PACKED, 5, 7, seed, "float32") for seed in (0, 1))
    with pytest.raises(ValueError, match="read-only"):  # NumPy's
        first[0, 0] = 1.0
    assert (first != other).all()
