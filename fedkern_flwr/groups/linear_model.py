"""Linear models of columns or of random Fourier features: what users fit and what is predicted."""

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
    """Return how many coefficients a model has for so many columns: 2 D with D frequencies."""
    return 2 * features if features else columns


def model_rows(x: Floats, features: int, gamma: float, seed: int) -> Floats:
    """Return what the model is linear in: the columns, or random Fourier features of them.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Rows.
    features : int
        D, number of frequencies; 0 for the columns as they are.
    gamma : float
        Width of the kernel exp(-gamma |x - x'|^2).
    seed : int
        Seed of the frequencies.

    Returns
    -------
    ndarray, shape (n, d) or (n, 2 D)
        Memory: 16 n D bytes with features.
    """
    if not features:
        return x
    bandwidth = np.array([1.0 / np.sqrt(2.0 * gamma)], "<f8").tobytes()
    transform = feature_map(bandwidth, x.shape[1], features, seed, "float64", "orthogonal")
    return np.asarray(transform(x)[:, 0])


def outputs(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], x: Floats) -> Floats:
    """Return the outputs of a saved model.

    Parameters
    ----------
    arrays : mapping
        ``weights``, shape (k, d) or (k, 2 D), and ``bias``, shape (k,); perhaps ``raw_mean`` and
        ``raw_deviation``, shape (d,), by which columns are standardised before random features.
    meta : mapping
        ``columns`` and, with random features, ``features``, ``gamma`` and ``feature_seed``.
    x : ndarray, shape (n, d)
        Rows.

    Returns
    -------
    ndarray, shape (n, k)

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
