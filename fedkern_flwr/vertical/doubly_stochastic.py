"""Doubly stochastic gradients: random rows and random directions, coefficients that shrink.

References
----------
Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", KDD 2020, equation 7 and Algorithm 1; Dai, Xie, He, Liang, Raj, Balcan and Song, "Scalable
Kernel Methods via Doubly Stochastic Gradients", NIPS 2014.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..seeding import derive_seed
from ..solvers.losses import Loss, loss_derivatives

Floats = NDArray[np.float64]
StepSchedule = Literal["constant", "diminishing"]
STEP_SCHEDULES = ("constant", "diminishing")


def step_size(step: float, schedule: StepSchedule, regularization: float, iteration: int) -> float:
    """Return gamma_t: ``step``, or step / (1 + step lambda t), which tends to 1 / (lambda t).

    Parameters
    ----------
    step : float
        gamma.
    schedule : {"constant", "diminishing"}
        The former, or the latter.
    regularization : float
        lambda.
    iteration : int
        t, from 1.
    """
    return step if schedule == "constant" else step / (1.0 + step * regularization * iteration)


def draw_batch(seed: int, iteration: int, rows: int, batch: int) -> NDArray[np.int64]:
    """Return the positions of an iteration's batch among ``rows`` rows, without repetition."""
    rng = np.random.default_rng(derive_seed(seed, "batch", iteration))
    return np.sort(rng.choice(rows, size=min(batch, rows), replace=False))


def new_coefficients(
    loss: Loss, outputs: Floats, targets: Floats, features: NDArray[Any], rate: float
) -> Floats:
    """Return the coefficients of an iteration's new directions (Algorithm 1, line 9).

    alpha = -(gamma_t / r) mean over the batch of L'(f, y) phi, where phi = sqrt(2) cos(phase). A
    batch of one row and r = 1 is the paper's.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        L.
    outputs, targets : ndarray, shape (B, k)
        f and y of the batch.
    features : ndarray, shape (B, r)
        phi of the new directions.
    rate : float
        gamma_t.

    Returns
    -------
    ndarray of float64, shape (r, k)
    """
    slopes = loss_derivatives(loss, outputs, targets)
    batch, directions = features.shape
    return np.asarray(-rate / (directions * batch) * (features.T.astype(np.float64) @ slopes))
