"""How far an estimate of distances or rows is from the truth."""

from __future__ import annotations

import numpy as np

from .gradient_inversion import Floats


def relative_error(estimate: Floats, truth: Floats, *, up_to_scale: bool = False) -> float:
    """Return |estimate - truth| / |truth| in the Frobenius norm.

    Parameters
    ----------
    estimate : ndarray, shape (...)
        What an attack found.
    truth : ndarray, shape (...)
        What is right.
    up_to_scale : bool (default: False)
        Multiply the estimate by the best factor first, for attacks that do not know the unit.

    Returns
    -------
    float
        With the best factor at most 1, which means nothing was found.
    """
    if up_to_scale:
        square = float((estimate**2).sum())
        estimate = estimate * (float((estimate * truth).sum()) / square if square else 0.0)
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


def correlation(estimate: Floats, truth: Floats) -> float:
    """Return Pearson's correlation over all entries; of a square matrix, off the diagonal.

    A distance of a row to itself is known to be 0 and must not count.
    """
    if truth.ndim == 2 and truth.shape[0] == truth.shape[1]:
        off = ~np.eye(len(truth), dtype=np.bool_)
        estimate, truth = estimate[off], truth[off]
    return float(np.corrcoef(estimate.ravel(), truth.ravel())[0, 1])
