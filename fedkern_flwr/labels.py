"""Encode classes as targets of -1 and 1, and decide classes from outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TableError

Floats = NDArray[np.float64]


def encode_classes(y: NDArray[np.float64], classes: Sequence[float], party: str) -> Floats:
    """Return targets of -1 and 1: one column for two classes, otherwise one per class.

    Parameters
    ----------
    y : ndarray, shape (n,)
        Labels.
    classes : sequence
        All classes of the task, ascending; the second of two is positive.
    party : str
        Name of the party, for errors.

    Raises
    ------
    TableError
        A label is no class.
    """
    known = np.asarray(classes, np.float64)
    strange = int((~np.isin(y, known)).sum())
    if strange:
        raise TableError(
            f"{strange} labels are none of the {len(known)} classes",
            remedy="name the same classes on every node",
            party=party,
            code="FK-CLASSES-UNKNOWN",
        )
    if len(known) == 2:
        return np.where(y == known[1], 1.0, -1.0)[:, None]
    return np.where(y[:, None] == known, 1.0, -1.0)


def balanced_weights(targets: Floats, counts: Floats) -> Floats:
    """Return row weights n / (K n_c), as scikit-learn's ``class_weight="balanced"``.

    Classes without rows do not count; the mean over all rows is one.

    Parameters
    ----------
    targets : ndarray, shape (n, 1) or (n, K)
        Result of :func:`encode_classes`.
    counts : ndarray, shape (K,)
        Rows of each class, over all parties.
    """
    each = counts.sum() / ((counts > 0.0).sum() * np.maximum(counts, 1.0))
    return np.asarray(each[decide(targets)])


def class_counts(targets: Floats) -> Floats:
    """Return the number of rows of each class, shape (K,)."""
    classes = 2 if targets.shape[1] == 1 else targets.shape[1]
    return np.bincount(decide(targets), minlength=classes).astype(np.float64)


def name_classes(classes: Sequence[float | str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the names of classes and their labels: 0, 1, ... for text classes."""
    if not are_numbers(classes):
        return tuple(map(str, classes)), tuple(map(float, range(len(classes))))
    labels = tuple(float(one) for one in classes)
    return tuple(np.format_float_positional(one, trim="-") for one in labels), labels


def are_numbers(classes: Sequence[float | str]) -> bool:
    """Return whether all classes are numbers."""
    try:
        return all(np.isfinite(float(one)) for one in classes)
    except (TypeError, ValueError):
        return False


def label_rows(y: Any, classes: Sequence[float | str], party: str) -> Any:
    """Return text labels as positions in the class names, NaN if missing; others unchanged."""
    found, (names, labels) = np.asarray(y), name_classes(classes)
    cells = found.tolist() if found.ndim == 1 and found.dtype.kind in "UO" else []
    if are_numbers(names) or not any(isinstance(one, str) for one in cells):
        return y
    known = dict(zip(names, labels, strict=True))
    cells = [one.strip() if isinstance(one, str) else "" for one in cells]
    if strange := sum(1 for one in cells if one and one not in known):
        raise TableError(
            f"{strange} labels of text are none of the {len(known)} classes",
            remedy="name all classes, the same on every node",
            party=party,
            code="FK-CLASSES-UNKNOWN",
        )
    return np.array([known.get(one, np.nan) for one in cells])


def decide(outputs: Floats) -> NDArray[np.intp]:
    """Return the position of the predicted class of each row, from outputs (n, k)."""
    if outputs.shape[1] == 1:
        return (outputs[:, 0] >= 0.0).astype(np.intp)
    return np.asarray(np.argmax(outputs, axis=1))
