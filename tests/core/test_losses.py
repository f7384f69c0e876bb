"""Losses: values by hand, derivatives by finite differences, no overflow far away."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.solvers.losses import LOSSES, Loss, loss_derivatives, loss_values


def test_values_are_those_of_the_table() -> None:
    z = np.array([-2.0, 0.0, 0.5, 1.0, 3.0])
    for y in (-1.0, 1.0):
        targets = np.full(5, y)
        np.testing.assert_allclose(
            loss_values("square", y * z, targets), [9.0, 1.0, 0.25, 0.0, 4.0]
        )
        np.testing.assert_allclose(
            loss_values("logistic", y * z, targets), np.log(1.0 + np.exp(-z)), rtol=1e-14
        )
        np.testing.assert_allclose(
            loss_values("smooth-hinge", y * z, targets), [2.5, 0.5, 0.125, 0.0, 0.0]
        )


@pytest.mark.parametrize("loss", LOSSES)
@given(f=st.floats(-20.0, 20.0), y=st.sampled_from([-1.0, 1.0]))
def test_derivatives_are_those_of_the_values(loss: Loss, f: float, y: float) -> None:
    step, targets = 1e-6, np.array([[y]])
    values = [loss_values(loss, np.array([[f + s]]), targets)[0, 0] for s in (-step, step)]
    found = loss_derivatives(loss, np.array([[f]]), targets)
    assert found.shape == (1, 1)
    assert found[0, 0] == pytest.approx((values[1] - values[0]) / (2.0 * step), abs=2e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_outputs_far_away_do_not_overflow(loss: Loss) -> None:
    f, y = np.array([-1e8, 1e8, -1e8, 1e8]), np.array([1.0, 1.0, -1.0, -1.0])
    assert np.isfinite(loss_values(loss, f, y)).all()
    assert np.isfinite(loss_derivatives(loss, f, y)).all()


def test_margin_losses_end_in_slopes_of_one_and_zero() -> None:
    f, y = np.array([-1e3, 1e3]), np.array([1.0, 1.0])
    for loss in ("logistic", "smooth-hinge"):
        np.testing.assert_allclose(loss_derivatives(loss, f, y), [-1.0, 0.0], atol=1e-300)
