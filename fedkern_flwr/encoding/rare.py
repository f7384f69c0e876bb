"""Rare values, which a node merges with frequent ones before it adds to a sum.

One row with a 1 in a binary column is shown by the products of that column with all others, and a
category of one row by its count. A node therefore hides what fewer than ``min_sum_rows`` of its own
rows have, whatever the server asks for. It does not rely on counts over all parties: parties that
work together could subtract their own, and the counts would have to be opened first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def merge_counts(counts: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """Return how many rows have each category, and one more count: that of all rare ones.

    Rows of rare categories are counted together. If these are rare as well, they are counted as the
    most frequent category; without a frequent one they are not counted.

    >>> merge_counts(np.array([40, 2, 1, 0]), 5), merge_counts(np.array([40, 4, 4, 0]), 5)
    (array([43,  0,  0,  0,  0]), array([40,  0,  0,  0,  8]))
    """
    kept = np.append(np.where(counts < least, 0, counts), 0)
    others = int(counts.sum() - kept.sum())
    if others >= least:
        kept[-1] = others
    elif kept.any():
        kept[kept.argmax()] += others
    return kept


def merge_rows(x: Floats, least: int) -> Floats:
    """Return rows in which no rare value of a column can be told apart by sums of products.

    A column becomes constant if at least half of the rows have one value, and fewer than ``least``
    have another. Neighbouring binary columns that exclude each other are one category. Rows that
    have none of them get the most frequent one, if they are fewer than ``least``. Without that, the
    sum of the columns would show them. Other combinations of columns are not searched for.

    Parameters
    ----------
    x : ndarray of float64, shape (n, d)
        The rows of one sum.
    least : int
        ``min_sum_rows``. 0 or 1 merges nothing.

    Returns
    -------
    ndarray of float64, shape (n, d)
    """
    if least < 2:
        return x
    if len(x) < 3:  # nothing tells which of two values is the rare one
        return np.zeros_like(x)
    below, above = (len(x) - 1) // 2, len(x) // 2
    ranked = np.partition(x, (below, above), axis=0)  # one of them is a value that half of them are
    halves = (x == ranked[below]).sum(axis=0) > (x == ranked[above]).sum(axis=0)
    middle = np.where(halves, ranked[below], ranked[above])
    others = (x != middle).sum(axis=0)
    rare = (others < least) & (2 * others <= len(x))
    out = np.where(rare, middle, x)
    low, high = out.min(axis=0), out.max(axis=0)
    on = (out == high) & (low < high)
    binary = (on | (out == low)).all(axis=0)
    start, covered = 0, np.zeros(len(x), bool)
    for stop in range(x.shape[1] + 1):
        ends = stop == x.shape[1] or not binary[stop]
        while start < stop and (ends or (covered & on[:, stop]).any()):
            if 0 < len(x) - covered.sum() < least:
                largest = start + int(on[:, start:stop].sum(axis=0).argmax())
                out[~covered, largest] = high[largest]
                on[~covered, largest] = covered[:] = True
            covered &= ~on[:, start]
            start += 1
        if ends:
            start = stop + 1
        else:
            covered |= on[:, stop]
    return out
