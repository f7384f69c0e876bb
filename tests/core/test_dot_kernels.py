"""Kernels of dot products: against scikit-learn, brute force, and their own definitions."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sklearn.metrics import pairwise

import fedkern_flwr.gram.dot_kernels as dot_kernels
from fedkern_flwr.gram.dot_kernels import KERNELS, DotKernel

ALL = [
    DotKernel("linear"),
    DotKernel("poly", degree=3, gamma=0.5, coef0=2.0),
    DotKernel("rbf", gamma=0.3),
    DotKernel("cosine"),
    DotKernel("conjunctive", degree=2),
    DotKernel("disjunctive", degree=3),
    DotKernel("series", coefficients=(1.0, 0.0, 0.5)),
]
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


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"name": "sigmoid"}, "FK-OPTION-CHOICE"),
        *(({"name": "poly", "degree": wrong}, "FK-OPTION-RANGE") for wrong in (0, 1.5, True)),
        *(({"name": "rbf", "gamma": wrong}, "FK-OPTION-RANGE") for wrong in (0.0, math.nan)),
        ({"name": "poly", "coef0": -1.0}, "FK-OPTION-RANGE"),
        ({"name": "series"}, "FK-OPTION-PARTNER"),
        ({"name": "series", "coefficients": (1.0, -0.5)}, "FK-OPTION-RANGE"),
        ({"name": "series", "coefficients": (math.nan,)}, "FK-OPTION-RANGE"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], code: str) -> None:
    with refused(code):
        DotKernel(**options)


def test_features_of_another_kind_shape_or_size_are_refused() -> None:
    for name in ("conjunctive", "disjunctive"):
        assert DotKernel(name).needs_binary
        with refused("FK-KERNEL-BINARY"):
            of(DotKernel(name), np.array([[1, -1], [0, 1]]))
    assert not DotKernel("poly").needs_binary
    with refused("FK-KERNEL-BINARY"):  # more than all features
        of(DotKernel("disjunctive"), np.array([[2, 1], [0, 1]]))
    with refused("FK-SHAPE-DIFFERS"):
        DotKernel().block(np.ones((2, 2)), np.ones(2), np.ones(1), 1)
    for kernel in (
        DotKernel("poly", degree=200),
        DotKernel("series", coefficients=(0.0,) * 150 + (1.0,)),
        DotKernel("conjunctive", degree=900),
        DotKernel("disjunctive", degree=900),
    ):
        with refused("FK-KERNEL-OVERFLOW"):
            of(kernel, np.ones((2000, 2), np.int64))
