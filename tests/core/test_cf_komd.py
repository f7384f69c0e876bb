"""CF-KOMD's quadratic program: the conditions of optimality, and slower methods that agree."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from simplex import minimise

import fedkern_flwr.gram.recommenders as cf_komd
from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.recommenders import fit_user, item_scores, simplex_qp


def violation(q: np.ndarray, c: np.ndarray, a: np.ndarray) -> float:
    """Return by how much the conditions of optimality are violated, relative to the problem."""
    assert a.min() >= 0.0
    assert a.sum() == pytest.approx(1.0, abs=1e-13)
    gradient = q @ a - c
    level = gradient[a > 0].mean()
    spread = np.abs(gradient[a > 0] - level).max()
    below = level - gradient.min()
    return float(max(spread, below) / max(np.abs(q).max(), np.abs(c).max()))


def cosine(items: int, users: int, seed: int) -> np.ndarray:
    """Return the cosine kernel of items that users have with probabilities like popularities."""
    rng = np.random.default_rng(seed)
    x = (rng.random((users, items)) < 0.5 / np.sqrt(1 + np.arange(items))).astype(float)
    x /= np.maximum(np.sqrt((x**2).sum(0)), 1.0)
    return x.T @ x


@st.composite
def programs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float]:
    """Kernels of few features, so singular ones, with duplicates; a mean; a regularization."""
    size, rank = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(rank, size)) if draw(st.booleans()) else rng.integers(0, 2, (rank, size))
    x = x[:, rng.integers(0, size, size)] * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    kernel = x.T @ x
    mean = draw(st.sampled_from([kernel.mean(1), x.T @ rng.normal(size=rank), np.zeros(size)]))
    scale = max(float(kernel.max()), 1e-6)
    return kernel, mean, scale * draw(st.sampled_from([1e-6, 1e-3, 0.1, 10.0]))


@given(programs())
def test_the_conditions_of_optimality_hold(
    program: tuple[np.ndarray, np.ndarray, float],
) -> None:
    kernel, mean, regularization = program
    a = fit_user(kernel, mean, regularization)
    assert violation(kernel + regularization * np.eye(len(mean)), mean, a) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_a_general_solver_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(12, 12))
    q, c = x.T @ x + 0.1 * np.eye(12), rng.normal(size=12)
    result = minimize(
        lambda a: a @ q @ a - 2 * a @ c,
        np.full(12, 1 / 12),
        jac=lambda a: 2 * (q @ a - c),
        bounds=[(0, 1)] * 12,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(simplex_qp(q, c), result.x, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_projected_gradient_agrees(seed: int) -> None:
    kernel = cosine(60, 200, seed)
    q, c = kernel + 0.1 * np.eye(60), kernel.mean(1)
    np.testing.assert_allclose(simplex_qp(q, c), minimise(q, c), atol=1e-12)


@pytest.mark.parametrize("size", [60, 300, 700])
@pytest.mark.parametrize("regularization", [1e-3, 0.1])
def test_users_of_many_items(size: int, regularization: float) -> None:
    kernel = cosine(900, 500, size)
    liked = np.random.default_rng(0).choice(900, size, replace=False)
    part, mean = kernel[np.ix_(liked, liked)], kernel.mean(1)[liked]
    a = fit_user(part, mean, regularization)
    assert size == 60 or not a.all()
    assert violation(part + regularization * np.eye(size), mean, a) < 1e-12
    np.testing.assert_array_equal(fit_user(part, mean, regularization), a)


def test_a_program_solved_by_hand() -> None:
    a = simplex_qp(np.eye(3), np.array([0.5, 0.25, -1.0]))
    np.testing.assert_allclose(a, [0.625, 0.375, 0.0], atol=1e-15)


def test_equal_items_share_their_weight() -> None:
    a = fit_user(np.ones((4, 4)), np.full(4, 0.3), 0.1)
    np.testing.assert_allclose(a, 0.25, atol=1e-14)


def test_one_item_and_none() -> None:
    assert simplex_qp(np.array([[2.0]]), np.array([-7.0])).tolist() == [1.0]
    assert simplex_qp(np.zeros((0, 0)), np.zeros(0)).shape == (0,)
    assert fit_user(np.zeros((0, 0)), np.zeros(0), 0.1).shape == (0,)


def test_the_input_is_kept() -> None:
    kernel, mean = cosine(20, 50, 0), np.linspace(0, 1, 20)
    before = kernel.copy()
    fit_user(kernel, mean, 0.1)
    np.testing.assert_array_equal(kernel, before)
    np.testing.assert_array_equal(mean, np.linspace(0, 1, 20))


def test_integer_kernels_are_as_good_as_real_ones() -> None:
    kernel = np.array([[3, 1], [1, 2]])
    np.testing.assert_array_equal(
        fit_user(kernel, np.ones(2), 0.5), fit_user(kernel.astype(float), np.ones(2), 0.5)
    )


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_adding_one_item_at_a_time_comes_to_the_same(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, size))
    q, c = x.T @ x + 0.05 * np.eye(size), 3.0 * rng.normal(size=size)
    expected = simplex_qp(q, c)
    a = np.zeros(size)
    a[0] = 1.0
    for _ in range(200):
        gradient = q @ a - c
        worst = int(np.argmin(np.where(a > 0, math.inf, gradient)))
        if not gradient[worst] < gradient @ a - 1e-12:
            break
        fallen = a @ q @ a - 2 * a @ c
        a = cf_komd._add_one(q, c, a, worst)
        assert a @ q @ a - 2 * a @ c < fallen + 1e-13
    np.testing.assert_allclose(a, expected, atol=1e-9)


@pytest.mark.parametrize(
    "quadratic",
    [
        np.ones((3, 3)),
        -np.eye(3),
        np.zeros((3, 3)),
        np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
def test_matrices_that_are_not_positive_definite_are_refused(quadratic: np.ndarray) -> None:
    with pytest.raises(OptionError, match="not positive definite; use a larger regularization"):
        simplex_qp(quadratic, np.ones(3))


def test_equal_items_need_a_regularization() -> None:
    kernel = cosine(40, 10, 0)  # of rank 10
    with pytest.raises(OptionError, match="use a larger regularization"):
        fit_user(kernel, kernel.mean(1), 0.0)


@given(st.integers(1, 25), st.integers(0, 2**32 - 1), st.floats(-16, -6))
def test_badly_conditioned_programs_end(size: int, seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3, size))
    kernel = x.T @ x
    with contextlib.suppress(OptionError):
        a = fit_user(kernel, rng.normal(size=size), 10.0**exponent)
        assert a.min() >= 0.0
        assert a.sum() == pytest.approx(1.0, abs=1e-12)


def test_a_tolerance_that_cannot_be_reached_is_an_error() -> None:
    kernel = cosine(50, 100, 0)
    with pytest.raises(OptionError, match=r"50 items are not found to a tolerance of -"):
        simplex_qp(kernel + 0.1 * np.eye(50), kernel.mean(1) * 5, tolerance=-1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    for q, c in ((np.diag([1.0, bad]), np.ones(2)), (np.eye(2), np.array([1.0, bad]))):
        with pytest.raises(OptionError, match="NaN or infinite"):
            simplex_qp(q, c)
    with pytest.raises(OptionError, match="regularization is"):
        fit_user(np.eye(2), np.ones(2), bad)


def test_shapes_and_regularizations_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match="same items"):
        simplex_qp(np.eye(3), np.ones(2))
    with pytest.raises(OptionError, match="regularization is -1"):
        fit_user(np.eye(2), np.ones(2), -1.0)


def test_scores_are_weighted_columns_less_the_mean() -> None:
    columns = np.array([[1, 0], [2, 4], [0, 1]])
    alpha = np.array([0.25, 0.75])
    np.testing.assert_array_equal(item_scores(columns, alpha), [0.25, 3.5, 0.75])
    np.testing.assert_array_equal(item_scores(columns, alpha, np.ones(3)), [-0.75, 2.5, -0.25])
    assert item_scores(np.zeros((3, 0)), np.zeros(0)).tolist() == [0.0, 0.0, 0.0]
