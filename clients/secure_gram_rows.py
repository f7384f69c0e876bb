"""Rows of a node of Secure Gram: read, encoded for a sum, and the items of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import TableError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.values import count_values, is_sparse, quantise

from .secure_gram_released import disagreement

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Rows: TypeAlias = "NDArray[Any] | csr_array"


def read_rows(values: Any, what: str, party: str) -> Rows:
    """Return a matrix with a row per user or feature.

    Raises
    ------
    TableError
        It is none.
    """
    if is_sparse(values):
        from scipy.sparse import csr_array

        rows: Rows = csr_array(values)
        if rows.dtype.kind in "biu":  # entries of one place are added
            rows = rows.astype(np.int64)
    else:
        rows = np.atleast_2d(np.asarray(values))
        if rows.dtype.kind not in "fiub":
            problem = f"{what} has dtype {rows.dtype}"
            raise TableError(problem, remedy="pass numbers", party=party)
    if rows.ndim != 2 or not all(rows.shape):
        problem = f"{what} has shape {np.shape(values)}"
        raise TableError(problem, remedy="pass rows of items", party=party)
    return rows


def encode_rows(x: Rows, request: wire.SumRequest) -> Rows:
    """Return the whole numbers that are summed."""
    if request.encoding == "counts":
        counts: Rows = count_values(x, request.bound)
        return counts
    return quantise(dense_rows(x), request.fraction_bits, request.bound)


def dense_rows(x: Rows) -> NDArray[Any]:
    """Return rows as an array."""
    return x if isinstance(x, np.ndarray) else x.toarray()


def check_items(items: NDArray[Any], columns: int, party: str) -> NDArray[Any]:
    """Return what a message names of so many items, in their order.

    Raises
    ------
    ProtocolError
        It names none, or others.
    """
    if not len(items) or items[0] < 0 or (np.diff(items) < 1).any():
        raise disagreement("its items are not in order", party)
    if items[-1] >= columns:
        raise disagreement(f"it names items that are not among {columns}", party)
    return items


def liked_items(x: Rows, row: int) -> NDArray[np.intp]:
    """Return the items of a row that are not zero, ascending."""
    if isinstance(x, np.ndarray):
        return np.flatnonzero(x[row])
    part = slice(x.indptr[row], x.indptr[row + 1])
    return np.sort(x.indices[part][x.data[part] != 0]).astype(np.intp)
