"""Targets of least squares: classes as columns of -1 and 1, and what outputs decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import TableError

Floats = NDArray[np.float64]


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
