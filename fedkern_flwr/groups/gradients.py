"""HierarchicalSVM with a privacy budget: steps along noisy sums of gradients.

An ADMM user sends its local solution and dual, which contain all earlier iterations: a row moves
each answer farther than the last. With a budget it sends the gradient of its losses at the model
instead, and the server takes a proximal step (the penalty belongs to no user). A row moves that sum
by at most its own gradient, so T iterations cost as much as T releases.

Rows have length at most sqrt(2): columns in [0, 1] are mapped to [-1, 1] / sqrt(d), random features
have length one, longer rows are shortened to one, and a 1 is appended for the bias. Derivatives of
hinge and logistic loss are in [-1, 0]. The model is the mean of the second half of the iterations.

References
----------
Bassily, Smith and Thakurta, "Private Empirical Risk Minimization: Efficient Algorithms and Tight
Error Bounds", FOCS 2014 (noisy gradients, means of iterates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..privacy import Budget, Release, plan_sum
from ..solvers.local_solvers import Loss
from .consensus import Coordinates

Floats = NDArray[np.float64]

GRADIENT_SUM = "gradients"
#: Default number of iterations.
ITERATIONS = 100
#: Losses with bounded derivatives.
BOUNDED = ("hinge", "logistic")
_STEP = 16.0  # first step, in units of the inverse of the logistic loss' curvature
_LENGTH = math.sqrt(2.0)  # of a row


def public_coordinates(columns: int, features: int) -> Coordinates:
    """Return the coordinates of a run with a budget, in which rows have length at most one."""
    if features:
        return Coordinates.identity(2 * features)
    middle = np.full(columns, 0.5)
    return Coordinates(middle, np.full(columns, 0.5 * math.sqrt(columns)), True)


def shortened(rows: Floats) -> Floats:
    """Return rows shortened to length one, not counting the last column of ones."""
    out = rows.copy()
    lengths = np.linalg.norm(out[:, :-1], axis=1, keepdims=True)
    out[:, :-1] /= np.maximum(lengths, 1.0)
    out[~np.isfinite(out).all(axis=1), :-1] = 0.0
    return out


def gradient(loss: Loss, rows: Floats, y: Floats, model: Floats) -> Floats:
    """Return the gradient of the sum of losses, (k, d + 1), for a model per output.

    ``rows``, (n, d + 1), are as :func:`shortened` returns them; ``y``, (n, k), is -1 or 1.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow must not show
        margins = np.nan_to_num(y * (rows @ model.T))
    if loss == "hinge":
        slopes = (margins < 1.0).astype(np.float64)
    else:
        slopes = 0.5 * (1.0 - np.tanh(0.5 * margins))
    return np.asarray(-(slopes * y).T @ rows)


def gradient_release(
    budget: Budget, *, outputs: int, width: int, rows: Sequence[int], iterations: int
) -> Release:
    """Return the noise of one of ``iterations`` sums; ``rows`` has those of each user."""
    return plan_sum(
        GRADIENT_SUM,
        budget,
        sensitivity=2.0 * _LENGTH * math.sqrt(outputs),
        length=outputs * width,
        rows=rows,
        least=len(rows),
        releases=iterations,
    )


def next_model(
    model: Floats, total: Floats, done: int, *, loss: Loss, c: float, rows: int, ridge: Floats
) -> Floats:
    """Return the model after a proximal step on 1/2 sum q w^2 + C sum loss.

    ``total`` is the sum of gradients at ``model``, ``ridge`` q. Steps of the hinge, which is not
    smooth, shrink with the steps ``done``.
    """
    step = 4.0 * _STEP / (_LENGTH**2 * c * rows)
    if loss == "hinge":
        step /= math.sqrt(1.0 + done)
    return np.asarray((model - step * c * total) / (1.0 + step * ridge))
