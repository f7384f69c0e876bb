"""Linear models of columns or of random Fourier features: outputs, digits, gradients with noise.

Without a privacy budget the models are those of :mod:`.consensus`. There a user sends its
local solution and dual, which contain all earlier iterations: a row moves each answer farther than
the last. With a budget it sends the gradient of its losses at the model instead, and the server
takes a proximal step (the penalty belongs to no user). A row moves that sum by at most its own
gradient, so T iterations cost as much as T releases.

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
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from ..kernels.random_features import feature_map
from ..privacy import Budget, Release, plan_sum
from ..solvers.local_solvers import Loss
from .consensus import Coordinates

Floats = NDArray[np.float64]
Model = Literal["linear", "rbf", "logistic", "ridge"]
MODELS = ("linear", "rbf", "logistic", "ridge")
#: The loss of each model.
LOSS_OF: Mapping[str, Loss] = {
    "linear": "hinge",
    "rbf": "hinge",
    "logistic": "logistic",
    "ridge": "squared",
}


def model_columns(columns: int, features: int) -> int:
    return 2 * features if features else columns


def model_rows(x: Floats, features: int, gamma: float, seed: int) -> Floats:
    """Return the inputs of the linear model: the columns, or their random Fourier features.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Rows.
    features : int
        D frequencies; 0 for the columns themselves.
    gamma : float
        Width of the kernel exp(-gamma |x - x'|^2).
    seed : int
        Of the frequencies.

    Returns
    -------
    ndarray, shape (n, d) or (n, 2 D)
        16 n D bytes with features.
    """
    if not features:
        return x
    bandwidth = np.array([1.0 / np.sqrt(2.0 * gamma)], "<f8").tobytes()
    transform = feature_map(bandwidth, x.shape[1], features, seed, "float64", "orthogonal")
    return np.asarray(transform(x)[:, 0])


def outputs(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], x: Floats) -> Floats:
    """Return the outputs of a saved model, (n, k).

    Parameters
    ----------
    arrays : mapping
        ``weights``, (k, d) or (k, 2 D), and ``bias``, (k,); if columns are standardised before
        random features, ``raw_mean`` and ``raw_deviation``, (d,).
    meta : mapping
        ``columns``; with random features ``features``, ``gamma``, ``feature_seed``.
    x : ndarray, shape (n, d)
        Rows.

    Raises
    ------
    CheckpointError
        The rows have other columns than the model.
    """
    if x.shape[1] != meta["columns"]:
        raise CheckpointError(
            f"the rows have {x.shape[1]} columns, the model {meta['columns']}",
            remedy="bring the rows to the columns that the model was fitted on",
            code="FK-COLUMNS-DIFFER",
        )
    if "raw_mean" in arrays:
        x = (x - arrays["raw_mean"]) / arrays["raw_deviation"]
    rows = model_rows(x, int(meta["features"]), float(meta["gamma"]), int(meta["feature_seed"]))
    return np.asarray(rows @ arrays["weights"].T + arrays["bias"])


# -- sums of numbers of any size under a run's bound: each digit is summed
#
#
# Means of squares of incomes or of seconds since 1970 exceed the bound of models. Numbers below
# 2^20 are their own last digit, so their sums are unchanged to the last bit.

#: Digits of a number; the first may be as large as the bound.
DIGITS = 4
_BASE = 2.0**20


def to_digits(values: Floats) -> Floats:
    """Return the digits of numbers, the last first, (4 n,)."""
    found, rest = [], np.asarray(values, np.float64)
    for place in range(DIGITS - 1, 0, -1):
        unit = _BASE**place
        digit = np.trunc(rest / unit)
        rest = rest - digit * unit
        found.append(digit)
    return np.concatenate([rest, *reversed(found)])


def from_digits(sums: Floats) -> Floats:
    """Return the sums of numbers from the sums of their digits, (4 n,)."""
    return np.asarray(_BASE ** np.arange(DIGITS) @ sums.reshape(DIGITS, -1))


# -- with a privacy budget: steps along noisy sums of gradients

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
