"""Targets of least squares: classes as columns of -1 and 1, and what is counted on test rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import TableError

Floats = NDArray[np.float64]

#: A larger test error, in units of the labels' bound, counts as that, so that sums are bounded.
LARGEST_ERROR = 10.0


def encode_classes(y: NDArray[np.float64], classes: Sequence[float], party: str) -> Floats:
    """Return targets of -1 and 1: one column for two classes, else one per class.

    Parameters
    ----------
    y : ndarray, shape (n,)
        Labels.
    classes : sequence
        All classes of the task, ascending; the second of two is the positive one.
    party : str
        Whose labels they are, for errors.

    Raises
    ------
    TableError
        A label is none of the classes.
    """
    known = np.asarray(classes, np.float64)
    strange = int((~np.isin(y, known)).sum())
    if strange:
        raise TableError(
            f"{strange} labels are none of the {len(known)} classes",
            remedy="name the same classes on every node",
            party=party,
        )
    if len(known) == 2:
        return np.where(y == known[1], 1.0, -1.0)[:, None]
    return np.where(y[:, None] == known, 1.0, -1.0)


def decide(outputs: Floats) -> NDArray[np.intp]:
    """Return the position of the predicted class of each row, from outputs of shape (n, k)."""
    if outputs.shape[1] == 1:
        return (outputs[:, 0] >= 0.0).astype(np.intp)
    return np.asarray(np.argmax(outputs, axis=1))


def counts_length(outputs: int, classes: int) -> int:
    """Return how many numbers :func:`count_outcomes` makes."""
    return classes * classes if classes else 1 + outputs


def largest_count(classes: Sequence[float] | int) -> float:
    """Return what a single test row adds to one of the numbers of :func:`count_outcomes`."""
    return 1.0 if classes else LARGEST_ERROR**2


def count_outcomes(predictions: Floats, targets: Floats, classes: int, bound: float) -> Floats:
    """Return what is added up over the hospitals to judge a model on test rows.

    Parameters
    ----------
    predictions : ndarray, shape (n, k)
        Outputs of the model.
    targets : ndarray, shape (n, k)
        What they should be.
    classes : int
        Number of classes, 0 for regression.
    bound : float
        Bound of the labels in a regression.

    Returns
    -------
    ndarray of float64
        Classes: the confusion matrix, row by row (true class, predicted class). Regression: the
        number of rows, then the sum of squared errors of each output, in units of the bound.
    """
    if classes:
        pairs = decide(targets) * classes + decide(predictions)
        return np.bincount(pairs, minlength=classes * classes).astype(np.float64)
    errors = np.minimum(np.abs(predictions - targets) / bound, LARGEST_ERROR)
    return np.concatenate([[float(len(errors))], (errors**2).sum(0)])


def outcome_metrics(counts: Floats, classes: int, bound: float) -> dict[str, float]:
    """Return the metrics of test rows from added up counts.

    Returns
    -------
    dict
        Classes: ``test_accuracy``; for two also ``test_recall`` and ``test_precision`` of the
        second class, where defined. Regression: ``test_rmse`` over all outputs.
    """
    if not classes:
        rows, outputs = counts[0], len(counts) - 1
        return {"test_rmse": float(bound * np.sqrt(counts[1:].sum() / (rows * outputs)))}
    confusion = counts.reshape(classes, classes)
    found = {"test_accuracy": float(np.trace(confusion) / confusion.sum())}
    if classes == 2:
        hits = confusion[1, 1]
        if confusion[1].sum():
            found["test_recall"] = float(hits / confusion[1].sum())
        if confusion[:, 1].sum():
            found["test_precision"] = float(hits / confusion[:, 1].sum())
    return found
