"""Linear models of columns or of random Fourier features, and sums of columns of any size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from ..kernels.random_features import feature_map
from ..solvers.local_solvers import Loss

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
