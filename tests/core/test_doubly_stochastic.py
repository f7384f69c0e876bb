"""Doubly stochastic gradients: steps, batches, coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.solvers.losses import LOSSES, Loss, loss_values
from fedkern_flwr.vertical.phases import draw_batch, new_coefficients, step_size


def test_steps_are_constant_or_diminish() -> None:
    assert [step_size(0.3, "constant", 0.1, t) for t in (1, 50, 10_000)] == [0.3] * 3
    assert step_size(0.3, "diminishing", 0.1, 1) == pytest.approx(0.3 / 1.03)
    assert step_size(0.3, "diminishing", 0.1, 100) == pytest.approx(0.3 / 4.0)
    t = 10**7
    assert step_size(0.3, "diminishing", 0.1, t) * 0.1 * t == pytest.approx(1.0, rel=1e-4)


@given(
    step=st.floats(1e-3, 1e3),
    regularization=st.floats(1e-6, 1e2),
    iteration=st.integers(1, 10**6),
)
def test_a_diminishing_step_never_turns_coefficients_around(
    step: float, regularization: float, iteration: int
) -> None:
    rate = step_size(step, "diminishing", regularization, iteration)
    assert 0.0 < rate < step
    assert rate * regularization < 1.0
    assert rate > step_size(step, "diminishing", regularization, iteration + 1)


@given(
    seed=st.integers(0, 2**62),
    iteration=st.integers(1, 10**6),
    rows=st.integers(1, 200),
    batch=st.integers(1, 250),
)
def test_batches_are_rows_without_repetition(
    seed: int, iteration: int, rows: int, batch: int
) -> None:
    found = draw_batch(seed, iteration, rows, batch)
    assert len(found) == min(rows, batch)
    assert (np.diff(found) > 0).all()
    assert 0 <= found.min() <= found.max() < rows
    np.testing.assert_array_equal(found, draw_batch(seed, iteration, rows, batch))


def test_all_rows_come_as_often() -> None:
    counts = np.zeros(40)
    for t in range(1, 2001):
        counts[draw_batch(3, t, 40, 8)] += 1
    expected = 2000 * 8 / 40
    assert np.abs(counts - expected).max() < 5.0 * np.sqrt(expected)
    assert any((draw_batch(3, 1, 40, 8) != draw_batch(4, 1, 40, 8)).tolist())
    assert any((draw_batch(3, 1, 40, 8) != draw_batch(3, 2, 40, 8)).tolist())


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_coefficients_are_a_step_down_the_mean_loss(loss: Loss, outputs: int) -> None:
    """alpha = -(gamma / r) of the slope of the mean loss in the coefficient, by differences."""
    rng = np.random.default_rng(0)
    f, y = rng.standard_normal((6, outputs)), np.sign(rng.standard_normal((6, outputs)))
    phi = np.sqrt(2.0) * np.cos(rng.uniform(0, 2 * np.pi, (6, 4)))
    found = new_coefficients(loss, f, y, phi, 0.3)
    assert found.shape == (4, outputs)
    tiny = 1e-6
    for j in range(4):
        for c in range(outputs):
            up, down = f.copy(), f.copy()
            up[:, c] += tiny * phi[:, j]
            down[:, c] -= tiny * phi[:, j]
            rise = (loss_values(loss, up, y) - loss_values(loss, down, y)).sum(axis=1).mean()
            assert found[j, c] == pytest.approx(-0.3 / 4 * rise / (2 * tiny), abs=1e-7)


def test_one_row_and_one_direction_are_the_papers() -> None:
    found = new_coefficients(
        "square", np.array([[0.25]]), np.array([[1.0]]), np.array([[1.2]]), 0.1
    )
    assert found == pytest.approx(-0.1 * 2.0 * (0.25 - 1.0) * 1.2)
    narrow = np.array([[1.2]], np.float32)  # phases of 16 bits
    again = new_coefficients("square", np.array([[0.25]]), np.array([[1.0]]), narrow, 0.1)
    assert again.dtype == np.float64
    np.testing.assert_allclose(again, found, rtol=1e-6)


def test_an_iteration_in_coefficients_is_one_in_functions() -> None:
    """Equation 7: f - gamma (zeta + lambda f), with r directions and B rows."""
    rng = np.random.default_rng(1)
    old, new = rng.standard_normal((12, 5)), rng.standard_normal((12, 3))  # phi of all rows
    alpha, y, rows = rng.standard_normal((5, 1)), rng.standard_normal((12, 1)), [2, 3, 7]
    f, gamma, regularization = old @ alpha, 0.2, 0.3
    fresh = new_coefficients("square", f[rows], y[rows], new[rows], gamma)
    after = old @ (alpha * (1.0 - gamma * regularization)) + new @ fresh
    zeta = np.mean([2.0 * (f[i] - y[i]) * (new @ new[i])[:, None] / 3.0 for i in rows], axis=0)
    np.testing.assert_allclose(after, f - gamma * (zeta + regularization * f), atol=1e-12)
