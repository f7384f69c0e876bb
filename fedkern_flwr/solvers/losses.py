"""Losses of a model's outputs and their derivatives.

References
----------
Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", 2020, Table 1.
"""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from .logistic import expit

Floats = NDArray[np.float64]
Loss = Literal["square", "logistic", "smooth-hinge"]
LOSSES = ("square", "logistic", "smooth-hinge")


def loss_values(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the loss of each output.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        (f - y)^2; log(1 + exp(-y f)); or, with z = y f, 1/2 - z up to z = 0, (1 - z)^2 / 2 up to
        z = 1 and 0 from there.
    outputs : ndarray of float64, any shape
        f.
    targets : ndarray of float64, same shape
        y; -1 or 1 for the logistic loss and the smooth hinge.

    Returns
    -------
    ndarray of float64, same shape
    """
    if loss == "square":
        return np.asarray((outputs - targets) ** 2)
    if loss == "logistic":
        return np.asarray(np.logaddexp(0.0, -targets * outputs))
    if loss == "smooth-hinge":
        short = np.maximum(1.0 - targets * outputs, 0.0)
        return np.where(short > 1.0, short - 0.5, 0.5 * np.minimum(short, 1.0) ** 2)
    assert_never(loss)


def loss_derivatives(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the derivative of :func:`loss_values` in each output, of the same shape."""
    if loss == "square":
        return np.asarray(2.0 * (outputs - targets))
    if loss == "logistic":
        return np.asarray(-targets * expit(-targets * outputs))
    if loss == "smooth-hinge":
        return np.asarray(-targets * np.clip(1.0 - targets * outputs, 0.0, 1.0))
    assert_never(loss)


def loss_curvatures(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the second derivative of :func:`loss_values` in each output, of the same shape.

    At the two kinks of the smooth hinge's derivative it is 0.
    """
    if loss == "square":
        return np.full(np.shape(outputs), 2.0)
    if loss == "logistic":
        probability = expit(targets * outputs)
        return np.asarray(probability * (1.0 - probability))
    if loss == "smooth-hinge":
        margin = targets * outputs
        return np.asarray(((margin > 0.0) & (margin < 1.0)).astype(np.float64))
    assert_never(loss)
