"""Kernels of dot products: against scikit-learn, brute force, and their own definitions."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import pairwise

import fedkern_flwr.gram.dot_kernels as dot_kernels
from fedkern_flwr.errors import OptionError
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


def binary(features: int, instances: int, seed: int = 0, share: float = 0.4) -> np.ndarray:
    """Return features of 0 and 1, shape (features, instances): a column per instance."""
    rng = np.random.default_rng(seed)
    return (rng.random((features, instances)) < share).astype(np.int64)


def of(kernel: DotKernel, x: np.ndarray) -> np.ndarray:
    return kernel.matrix(x.T @ x, len(x))


def test_all_kernels_are_tested() -> None:
    assert tuple(kernel.name for kernel in ALL) == KERNELS


class TestScikitLearn:
    x = np.random.default_rng(0).integers(-3, 4, (20, 15))

    def test_linear(self) -> None:
        np.testing.assert_array_equal(of(DotKernel(), self.x), pairwise.linear_kernel(self.x.T))

    @pytest.mark.parametrize("degree", [1, 2, 5])
    def test_poly(self, degree: int) -> None:
        expected = pairwise.polynomial_kernel(self.x.T, degree=degree, gamma=0.25, coef0=0.5)
        actual = of(DotKernel("poly", degree=degree, gamma=0.25, coef0=0.5), self.x)
        np.testing.assert_allclose(actual, expected, rtol=1e-13)

    @pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float64])
    def test_rbf(self, dtype: Any) -> None:
        gram = (self.x.T @ self.x).astype(dtype)
        expected = pairwise.rbf_kernel(self.x.T, gamma=0.05)
        np.testing.assert_allclose(DotKernel("rbf", gamma=0.05).matrix(gram, 20), expected, 1e-13)

    @pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float64])
    def test_cosine(self, dtype: Any) -> None:
        x = self.x.copy()
        x[:, 3] = 0
        actual = DotKernel("cosine").matrix((x.T @ x).astype(dtype), 20)
        np.testing.assert_allclose(actual, pairwise.cosine_similarity(x.T), atol=1e-15)
        assert actual.diagonal().tolist() == [1.0] * 3 + [0.0] + [1.0] * 11
        assert not actual[3].any()


class TestBoolean:
    @pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
    @pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float64])
    def test_conjunctions_and_disjunctions_are_counted(self, degree: int, dtype: Any) -> None:
        x = binary(6, 8)
        x[:, 0], x[:, 1] = 0, 1
        gram = (x.T @ x).astype(dtype)
        subsets = [x[list(chosen)] for chosen in combinations(range(6), degree)]
        for name, holds in (("conjunctive", np.all), ("disjunctive", np.any)):
            truth = np.array([holds(subset, axis=0) for subset in subsets]).reshape(-1, 8)
            expected = truth.T.astype(float) @ truth
            actual = DotKernel(name, degree=degree).matrix(gram, 6)
            np.testing.assert_array_equal(actual, expected)

    @given(
        st.integers(1, 4000), st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)
    )
    def test_what_is_left_of_huge_numbers_is_exact(
        self, features: int, degree: int, left: float, right: float, overlap: float
    ) -> None:
        a, b = round(left * features), round(right * features)
        least = max(0, a + b - features)
        shared = least + round(overlap * (min(a, b) - least))
        kernel = DotKernel("disjunctive", degree=degree)
        value = kernel.block(np.array([[shared]]), np.array([a]), np.array([b]), features)[0, 0]
        rest = (features, features - a, features - b, features - a - b + shared)
        total, first, second, neither = (math.comb(n, degree) for n in rest)
        assert value == pytest.approx(total - first - second + neither, rel=1e-15, abs=0)
        kernel = DotKernel("conjunctive", degree=degree)
        value = kernel.block(np.array([[shared]]), np.array([a]), np.array([b]), features)[0, 0]
        assert value == pytest.approx(math.comb(shared, degree), rel=1e-14, abs=0)

    @pytest.mark.parametrize("name", ["conjunctive", "disjunctive"])
    def test_other_features_are_noticed(self, name: str) -> None:
        x = np.array([[1, -1], [0, 1]])
        assert DotKernel(name).needs_binary
        assert not DotKernel("poly").needs_binary
        with pytest.raises(OptionError, match="not those of features of 0 and 1"):
            of(DotKernel(name), x)

    def test_more_than_all_features_are_noticed(self) -> None:
        with pytest.raises(OptionError, match="not those of features of 0 and 1"):
            of(DotKernel("disjunctive"), np.array([[2, 1], [0, 1]]))


class TestSeries:
    def test_powers_are_added_with_their_coefficients(self) -> None:
        gram = np.array([[4, -2], [-2, 1]])
        actual = DotKernel("series", coefficients=(1.0, 0.5, 0.0, 2.0)).matrix(gram, 1)
        np.testing.assert_array_equal(actual, 1.0 + 0.5 * gram + 2.0 * gram**3)

    def test_a_constant(self) -> None:
        actual = DotKernel("series", coefficients=(3.0,)).matrix(np.eye(2), 1)
        assert actual.tolist() == [[3.0, 3.0], [3.0, 3.0]]


class TestAll:
    @KERNEL
    def test_blocks_are_parts_of_the_matrix(self, kernel: DotKernel) -> None:
        x = binary(30, 12)
        gram, whole = x.T @ x, of(kernel, x)
        norms = gram.diagonal()
        part = kernel.block(gram[:5, 5:], norms[:5], norms[5:], 30)
        np.testing.assert_allclose(part, whole[:5, 5:], rtol=1e-15)

    @KERNEL
    def test_blocks_of_rows_change_nothing(
        self, monkeypatch: pytest.MonkeyPatch, kernel: DotKernel
    ) -> None:
        x = binary(30, 75)
        whole = of(kernel, x)
        monkeypatch.setattr(dot_kernels, "_BLOCK_BYTES", 8 * 75 * 4)
        np.testing.assert_allclose(of(kernel, x), whole, rtol=1e-15)

    @KERNEL
    @pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float64])
    def test_matrices_are_exactly_symmetric_and_the_input_is_kept(
        self, kernel: DotKernel, dtype: Any
    ) -> None:
        x = binary(50, 131)
        gram = (x.T @ x).astype(dtype)
        before = gram.copy()
        matrix = kernel.matrix(gram, 50)
        assert matrix.dtype == np.float64
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_array_equal(gram, before)

    @KERNEL
    @given(features=st.integers(1, 12), instances=st.integers(1, 10), seed=st.integers(0, 999))
    def test_they_are_positive_semi_definite(
        self, kernel: DotKernel, features: int, instances: int, seed: int
    ) -> None:
        x = binary(features, instances, seed)
        if not kernel.needs_binary:
            x *= np.random.default_rng(seed).integers(-3, 4, x.shape)
        values = np.linalg.eigvalsh(of(kernel, x))
        assert values.min() >= -1e-12 * max(1.0, values.max())

    @KERNEL
    def test_nothing_gives_nothing(self, kernel: DotKernel) -> None:
        none = np.zeros(0, np.int64)
        assert kernel.block(np.zeros((0, 3), np.int64), none, np.ones(3), 5).shape == (0, 3)
        assert kernel.matrix(np.zeros((0, 0)), 5).shape == (0, 0)

    def test_shapes_that_do_not_match_are_refused(self) -> None:
        with pytest.raises(OptionError, match="do not match"):
            DotKernel().block(np.ones((2, 2)), np.ones(2), np.ones(1), 1)


class TestRange:
    def test_distances_of_large_integers_are_exact(self) -> None:
        a = 2**29
        x = np.array([[a, a + 1, a], [a, a, a + 2]])
        actual = of(DotKernel("rbf", gamma=1.0), x)
        squared = [[0, 1, 4], [1, 0, 5], [4, 5, 0]]
        np.testing.assert_allclose(actual, np.exp(-np.array(squared, float)), rtol=1e-15)

    def test_distances_beyond_the_integers_do_not_wrap_around(self) -> None:
        gram = np.array([[2**62, -(2**62)], [-(2**62), 2**62]])
        actual = DotKernel("rbf", gamma=2.0**-64).matrix(gram, 1)
        np.testing.assert_allclose(actual, [[1.0, math.exp(-1)], [math.exp(-1), 1.0]])

    def test_negative_distances_are_clipped(self) -> None:
        gram = np.array([[1.0, 1.0 + 1e-15], [1.0 + 1e-15, 1.0]])
        assert DotKernel("rbf", gamma=1e14).matrix(gram, 1).max() == 1.0

    def test_far_instances_have_a_kernel_of_zero(self) -> None:
        assert of(DotKernel("rbf", gamma=1e300), np.array([[0, 2**20]]))[0, 1] == 0.0

    @pytest.mark.parametrize(
        "kernel",
        [
            DotKernel("poly", degree=200),
            DotKernel("series", coefficients=(0.0,) * 150 + (1.0,)),
            DotKernel("conjunctive", degree=900),
            DotKernel("disjunctive", degree=900),
        ],
    )
    def test_values_beyond_the_range_of_floats_are_refused(self, kernel: DotKernel) -> None:
        with pytest.raises(OptionError, match=f"the {kernel.name} kernel has values beyond"):
            of(kernel, np.ones((2000, 2), np.int64))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "sigmoid"}, "no kernel 'sigmoid'; use one of linear, poly, rbf, cosine"),
        ({"name": "poly", "degree": 0}, "degree is 0"),
        ({"name": "poly", "degree": 1.5}, "degree is 1.5"),
        ({"name": "poly", "degree": True}, "degree is True"),
        ({"name": "rbf", "gamma": 0.0}, "gamma is 0.0"),
        ({"name": "rbf", "gamma": math.nan}, "gamma is nan"),
        ({"name": "poly", "coef0": -1.0}, "coef0 is -1.0; .* positive semi-definite"),
        ({"name": "series"}, "the series has no coefficients"),
        ({"name": "series", "coefficients": (1.0, -0.5)}, "coefficients are .* semi-definite"),
        ({"name": "series", "coefficients": (math.nan,)}, "coefficients are"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem) as caught:
        DotKernel(**options)
    assert "\n" not in str(caught.value)
