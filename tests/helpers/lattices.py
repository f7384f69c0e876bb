"""Rows of whole numbers from sums of their products: what lattice reduction finds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]

_LOVASZ, _NOTHING = 0.99, 1e-6


def reduced(gram: Whole) -> tuple[Whole, Whole]:
    """Return vectors of a lattice that LLL finds, and their inner products.

    The lattice has any number of generators, of which some may depend on others. Their inner
    products stay exact; only the projections are rounded.

    Parameters
    ----------
    gram : ndarray of int64, shape (w, w)
        Inner products of the generators.

    Returns
    -------
    vectors : ndarray, shape (r, w)
        Each as a combination of the generators.
    products : ndarray, shape (r, r)
    """
    found, inner = np.eye(len(gram), dtype=np.int64), gram.copy()
    mu, length = np.zeros(gram.shape), np.zeros(len(gram))
    k = 0
    while k < len(inner):
        for _ in range(50):  # rounding of large projections: until there is nothing to subtract
            row = inner[k, :k].astype(float)
            for j in range(1, k):
                row[j] -= mu[j, :j] @ row[:j]
            mu[k, :k] = np.where(length[:k] > 0.0, row / np.maximum(length[:k], _NOTHING), 0.0)
            length[k] = inner[k, k] - mu[k, :k] @ row
            part, whole = mu[k, :k].copy(), np.zeros(k, np.int64)
            for j in range(k - 1, -1, -1):
                if abs(part[j]) > 0.51:
                    whole[j] = round(part[j])
                    part[:j] -= whole[j] * mu[j, :j]
            if not whole.any():
                break
            found[k] -= whole @ found[:k]
            inner[k] -= whole @ inner[:k]
            inner[:, k] -= inner[:, :k] @ whole
        if inner[k, k] == 0:  # it depends on those before
            found = np.delete(found, k, 0)
            inner = np.delete(np.delete(inner, k, 0), k, 1)
            k = max(k - 1, 0)
            continue
        length[k] = length[k] if length[k] > _NOTHING * inner[k, k] else 0.0
        if k and length[k] < (_LOVASZ - mu[k, k - 1] ** 2) * length[k - 1]:
            found[[k - 1, k]] = found[[k, k - 1]]
            inner[[k - 1, k]] = inner[[k, k - 1]]
            inner[:, [k - 1, k]] = inner[:, [k, k - 1]]
            k -= 1
        else:
            k += 1
    return found, inner


def exposed_rows(gram: Whole) -> Whole:
    """Return the rows that sums of products show, of columns of which the last is one.

    A vector of length one in the lattice of the columns is a unit vector: its inner products with
    the columns are the cells of a row, but for their sign.
    """
    found, inner = reduced(gram)
    rows = found[np.diag(inner) == 1] @ gram
    return np.asarray(rows * np.sign(rows[:, -1:]))
