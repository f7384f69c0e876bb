"""Rare values, which a node merges with frequent ones before it adds to a sum.

One row with a 1 in a binary column is shown by the products of that column with all others, and a
category of one row by its count. A node therefore hides what fewer than ``min_sum_rows`` of its own
rows have, whatever the server asks for. It does not rely on counts over all parties: parties that
work together could subtract their own, and the counts would have to be opened first.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def settled_counts(
    counts: Mapping[str, int], least: int, before: Mapping[str, int]
) -> dict[str, int]:
    """Return how many rows have each category, as far as it may be told.

    A category that fewer than ``least`` rows have is left out. It is told the same count as in the
    run ``before`` until at least ``least`` more or fewer rows have it: the difference of two runs
    counts no fewer rows either.

    >>> settled_counts({"flu": 40, "gout": 4}, 5, {})
    {'flu': 40}
    >>> settled_counts({"flu": 44, "gout": 5}, 5, {"flu": 40})
    {'flu': 40, 'gout': 5}
    """
    found = {}
    for name in {**before, **counts}:
        now, then = counts.get(name, 0), before.get(name, 0)
        now *= now >= least
        found[name] = then if abs(now - then) < least else now
    return {name: count for name, count in found.items() if count}


def merge_counts(counts: NDArray[np.int64], rows: int, least: int) -> NDArray[np.int64]:
    """Return how many rows have each category, and one more count: that of all rare ones.

    All ``rows`` that have a category are counted. It follows from the counts that may be told and
    from their number, so it tells no more.

    Rows of rare categories are counted together. If these are rare as well, they are counted as the
    most frequent category; without a frequent one they are not counted.

    >>> merge_counts(np.array([40, 0, 0]), 43, 5), merge_counts(np.array([40, 0, 0]), 48, 5)
    (array([43,  0,  0,  0]), array([40,  0,  0,  8]))
    """
    kept = np.append(counts, 0)
    others = rows - int(kept.sum())
    while others < 0:  # rows left of which the counts do not say it yet
        others += int(kept.max())
        kept[kept.argmax()] = 0
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
    if least < 2 or len(x) < 3:
        return x
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
