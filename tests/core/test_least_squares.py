"""The normal equations: packed, unpacked, solved as scikit-learn's and SciPy's solvers do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg
from sklearn.linear_model import Ridge

from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.solvers.equations import equations_length, pack_equations, unpack_equations
from fedkern_flwr.solvers.least_squares import (
    check_regularization,
    regularized,
    solve_equations,
)


def problem(n: int = 40, m: int = 7, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((n, m)), rng.standard_normal((n, k))


@given(m=st.integers(1, 12), k=st.integers(1, 4), seed=st.integers(0, 99))
def test_equations_survive_the_packing_and_add_up(m: int, k: int, seed: int) -> None:
    total = np.zeros(equations_length(m, k))
    grams, rights = np.zeros((m, m)), np.zeros((m, k))
    for part in range(3):
        kernel, y = problem(9, m, k, seed + part)
        gram, right = kernel.T @ kernel, kernel.T @ y
        packed = pack_equations(gram, right)
        assert packed.shape == (equations_length(m, k),)
        assert packed.size == m * (m + 1) // 2 + m * k
        total += packed
        grams, rights = grams + gram, rights + right
    gram, right = unpack_equations(total, m, k)
    np.testing.assert_allclose(gram, grams, rtol=1e-14)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_allclose(right, rights, rtol=1e-14)


def test_the_packed_numbers_are_the_upper_triangle_then_the_right_side() -> None:
    gram = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    right = np.array([[7.0, 8.0], [9.0, 10.0], [11.0, 12.0]])
    assert pack_equations(gram, right).tolist() == [float(k) for k in range(1, 13)]


@pytest.mark.parametrize("regularization", [1e-4, 1e-2, 3.0])
def test_the_solution_is_that_of_ridge_regression(regularization: float) -> None:
    kernel, y = problem()
    gram, right = kernel.T @ kernel, kernel.T @ y
    copies = gram.copy(), right.copy()
    found = solve_equations(gram, right, regularization)
    ridge = Ridge(regularization, fit_intercept=False, solver="svd").fit(kernel, y)
    np.testing.assert_allclose(found, ridge.coef_.T, rtol=1e-9)
    np.testing.assert_array_equal(gram, copies[0])
    np.testing.assert_array_equal(right, copies[1])


def test_the_penalty_of_the_function_s_norm_uses_the_kernel_of_the_landmarks() -> None:
    """Equation 2.10, against a general solver; singular matrices give the least-norm solution."""
    kernel, y = problem()
    w = np.random.default_rng(1).random((7, 7))
    pairs = w @ w.T
    gram, right = kernel.T @ kernel, kernel.T @ y
    found = solve_equations(gram, right, 0.3, pairs)
    np.testing.assert_allclose(found, linalg.solve(gram + 0.3 * pairs, right), rtol=1e-9)
    np.testing.assert_array_equal(regularized(gram, 0.3, pairs), gram + 0.3 * pairs)
    twice = np.repeat(np.arange(4), 2)[:7]  # equal landmarks
    gram, right, pairs = gram[np.ix_(twice, twice)], right[twice], pairs[np.ix_(twice, twice)]
    found = solve_equations(gram, right, 0.3, pairs)
    expected = linalg.lstsq(gram + 0.3 * pairs, right, cond=1e-12)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8)


def test_only_the_diagonal_is_changed_by_a_ridge() -> None:
    gram = np.arange(9.0).reshape(3, 3)
    found = regularized(gram, 0.5, None)
    np.testing.assert_array_equal(found - gram, 0.5 * np.eye(3))


def test_equations_that_are_singular_are_refused() -> None:
    gram = np.ones((3, 3))
    with pytest.raises(FedKernError, match=r"singular at regularization 1e-30; use a larger --reg"):
        solve_equations(gram, np.ones((3, 1)), 1e-30)


@pytest.mark.parametrize("value", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_regularization_that_is_not_positive_is_refused(value: float) -> None:
    check_regularization(1e-12)
    with pytest.raises(OptionError, match=r"regularization is .*; use a positive number"):
        check_regularization(value)
