"""Random features estimate the kernels without bias; orthogonal ones with less variance."""

from __future__ import annotations

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.dictionary import bandwidth_dictionary, gaussian_kernel
from fedkern_flwr.kernels.random_features import FeatureMap, feature_map, gaussian_frequencies

BANDWIDTHS = np.array([0.5, 1.0, 3.0])
PACKED = BANDWIDTHS.astype("<f8").tobytes()
DRAWS = ["independent", "orthogonal"]


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (12, 6)) / np.sqrt(6)


def estimates(rows: np.ndarray, features: int, draw: str, seeds: range) -> np.ndarray:
    """Estimated kernel matrices, (seeds, N, n, n)."""
    out = []
    for seed in seeds:
        z = FeatureMap(PACKED, rows.shape[1], features, seed, "float64", draw)(rows)  # type: ignore[arg-type]
        out.append(np.einsum("ikw,jkw->kij", z, z))
    return np.array(out)


def test_the_gaussian_kernel_is_the_formula() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    for s in (0.3, 2.0):
        k = gaussian_kernel(x, y, s)
        for i, a in enumerate(x):
            for j, b in enumerate(y):
                exact = np.exp(-np.sum((a - b) ** 2) / (2 * s**2))
                assert k[i, j] == pytest.approx(exact, rel=1e-9)
    np.testing.assert_allclose(np.diag(gaussian_kernel(x, x, 1e-3)), 1.0)


def test_the_dictionary_is_that_of_the_paper() -> None:
    paper = [10 ** ((2 * i - 52) / 25) for i in range(1, 52)]
    np.testing.assert_allclose(bandwidth_dictionary(51), paper, rtol=1e-12)
    assert bandwidth_dictionary(1).tolist() == [1.0]
    with pytest.raises(OptionError, match="kernels is 0; use at least 1"):
        bandwidth_dictionary(0)


@pytest.mark.parametrize("draw", DRAWS)
def test_many_features_come_near_the_exact_kernel(rows: np.ndarray, draw: str) -> None:
    found = estimates(rows, 4000, draw, range(1))[0]
    for k, s in enumerate(BANDWIDTHS):
        error = np.abs(found[k] - gaussian_kernel(rows, rows, s))
        assert error.mean() < 0.02
        assert error.max() < 0.06
        np.testing.assert_allclose(np.diag(found[k]), 1.0, atol=1e-12)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("features", [4, 6, 9])
def test_the_estimate_is_unbiased(rows: np.ndarray, draw: str, features: int) -> None:
    """The mean over 400 draws lies within 5 standard errors of the exact kernel."""
    found = estimates(rows, features, draw, range(400))
    exact = np.stack([gaussian_kernel(rows, rows, s) for s in BANDWIDTHS])
    error = np.abs(found.mean(axis=0) - exact)
    bound = 5.0 * found.std(axis=0) / np.sqrt(400) + 1e-12
    assert (error <= bound).all()
    assert error.mean() < 0.01
    wrong = np.stack([gaussian_kernel(rows, rows, 1.3 * s) for s in BANDWIDTHS])
    assert not (np.abs(found.mean(axis=0) - wrong) <= bound).all()


def test_orthogonal_features_have_a_smaller_variance(rows: np.ndarray) -> None:
    independent = estimates(rows, 6, "independent", range(300)).var(axis=0)
    orthogonal = estimates(rows, 6, "orthogonal", range(300)).var(axis=0)
    ratio = orthogonal.mean(axis=(1, 2)) / independent.mean(axis=(1, 2))
    assert (ratio < 0.8).all()
    assert ratio[2] < 0.45  # a wide kernel gains most


@pytest.mark.parametrize("features", [3, 6, 8, 13])
def test_blocks_of_orthogonal_frequencies_stand_at_right_angles(features: int) -> None:
    dimension = 6
    rho = gaussian_frequencies(PACKED, dimension, features, 4, "float64", "orthogonal")
    assert rho.shape == (dimension, 3 * features)
    for kernel in range(3):
        own = rho[:, kernel * features : (kernel + 1) * features]
        for start in range(0, features, dimension):
            block = own[:, start : start + dimension]
            unit = block / np.linalg.norm(block, axis=0)
            np.testing.assert_allclose(unit.T @ unit, np.eye(block.shape[1]), atol=1e-12)
    assert np.linalg.matrix_rank(rho) == dimension


@pytest.mark.parametrize("draw", DRAWS)
def test_frequencies_are_normal_with_the_inverse_bandwidth(draw: str) -> None:
    rho = gaussian_frequencies(PACKED, 5, 4000, 0, "float64", draw)  # type: ignore[arg-type]
    for k, s in enumerate(BANDWIDTHS):
        own = rho[:, k * 4000 : (k + 1) * 4000] * s
        assert np.abs(own.mean(axis=1)).max() < 0.08
        np.testing.assert_allclose(own.var(axis=1), 1.0, atol=0.1)
        assert np.mean(own**4) == pytest.approx(3.0, abs=0.35)  # kurtosis, 5 standard errors


@pytest.mark.parametrize("draw", DRAWS)
def test_float32_rounds_the_same_draw(rows: np.ndarray, draw: str) -> None:
    single = FeatureMap(PACKED, 6, 20, 1, "float32", draw)(rows)  # type: ignore[arg-type]
    double = FeatureMap(PACKED, 6, 20, 1, "float64", draw)(rows)  # type: ignore[arg-type]
    assert single.dtype == np.float32
    assert double.dtype == np.float64
    assert 0.0 < np.abs(single - double).max() < 1e-6


def test_feature_maps_are_cached_and_frequencies_read_only() -> None:
    arguments = (PACKED, 5, 7, 0, "float32", "independent")
    assert feature_map(*arguments) is feature_map(*arguments)  # type: ignore[arg-type]
    first = gaussian_frequencies(PACKED, 5, 7, 0, "float32")
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0
    other = gaussian_frequencies(PACKED, 5, 7, 1, "float32")
    assert (first != other).all()
