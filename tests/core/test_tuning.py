"""Width and lambda from normal equations: ties, rounding, and what is never taken."""

from __future__ import annotations

import numpy as np
import pytest

from fedkern_flwr.solvers.tuning import choose, widths_around
from fedkern_flwr.solvers.tuning_sums import Equations, tuning_length

LAMBDAS = 10.0 ** np.arange(-8.0, 1.0)


def equations(y: np.ndarray, gammas: np.ndarray, folds: int, m: int = 12) -> Equations:
    """The equations of rows on the line, dealt to folds in turn."""
    x = np.linspace(0.0, 1.0, len(y))
    distances = (x[:, None] - np.linspace(0.0, 1.0, m)) ** 2
    sums = Equations.zeros(m, y.shape[1], folds, len(gammas))
    for f in range(folds):
        rows = np.arange(len(y)) % folds == f
        sums.add(f, distances[rows], y[rows], gammas)
    return sums


@pytest.mark.parametrize("folds", [1, 3])
def test_of_equal_errors_the_smoothest_model_is_taken(folds: int) -> None:
    gammas = widths_around(0.2, 9)
    found = choose(equations(np.zeros((30, 2)), gammas, folds), LAMBDAS, 30)
    assert (found.width, found.weight) == (0, len(LAMBDAS) - 1)
    same = choose(equations(np.ones((30, 1)), np.full(3, 2.0), folds), LAMBDAS, 30)
    assert same.width == 0
    errors = same.errors[0]
    assert same.weight == np.flatnonzero(errors <= errors.min() * (1.0 + 1e-6))[-1]


def test_of_numbers_gcv_takes_a_larger_lambda_that_is_as_good_to_a_hundredth() -> None:
    x = np.linspace(0.0, 1.0, 60)
    y = np.sin(6.0 * x)[:, None] + np.random.default_rng(2).standard_normal((60, 1))
    lambdas = 10.0 ** np.arange(-6.0, 3.0, 0.1)
    sums = equations(y, widths_around(0.2, 9), 1)
    strict, loose = (choose(sums, lambdas, 60, numbers=numbers) for numbers in (False, True))
    row = loose.errors[loose.width]
    assert loose.width == strict.width
    assert loose.weight > strict.weight
    assert loose.weight == np.flatnonzero(row <= 1.01 * row.min())[-1]
    folds = equations(y, widths_around(0.2, 9), 5)  # held-out errors are as they are
    assert choose(folds, lambdas, 60, numbers=True).weight == choose(folds, lambdas, 60).weight


@pytest.mark.parametrize("folds", [1, 5])
def test_errors_are_never_negative(folds: int) -> None:
    """Rounding takes sums of squares that vanish below zero: they count as zero."""
    x = np.linspace(0.0, 1.0, 40)
    y = 1e6 * np.exp(-5.0 * (x[:, None] - 0.5) ** 2)  # in the span of the landmarks, nearly
    found = choose(equations(y, np.array([5.0]), folds, m=11), 1e-30 * LAMBDAS, 40)
    assert (found.errors >= 0.0).all()
    assert np.isfinite(found.errors[found.width, found.weight])


def test_noise_is_not_learned_by_heart() -> None:
    """As many landmarks as rows: a model that interpolates has no residual, and is not taken."""
    y = np.random.default_rng(0).standard_normal((30, 1))
    gammas = widths_around(0.2, 9)
    for folds in (1, 5):
        found = choose(equations(y, gammas, folds, m=30), LAMBDAS, 30)
        assert found.errors[found.width, found.weight] > 0.5


@pytest.mark.parametrize("folds", [1, 2])
@pytest.mark.parametrize("widths", [1, 3])
def test_what_was_packed_is_unpacked(folds: int, widths: int) -> None:
    y = np.random.default_rng(1).standard_normal((20, 3))
    sums = equations(y, np.arange(1.0, widths + 1), folds)
    vector = sums.pack()
    assert len(vector) == tuning_length(12, 3, folds, widths)
    again = Equations.unpack(vector, 12, 3, folds, widths)
    for name in ("gram", "right", "squares"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sums, name))
    np.testing.assert_allclose(again.squares.sum(0), (y**2).sum(0))
