"""Rare values, which a node merges with frequent ones before it adds to a sum.

One row with a 1 in a binary column is shown by the products of that column with all others, and a
category of one row by its count. A node therefore hides what fewer than ``min_sum_rows`` of its own
rows have, whatever the server asks for. It does not rely on counts over all parties: parties that
work together could subtract their own, and the counts would have to be opened first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """How many of a node's rows have each category of a column, as far as it may be told.

    What fewer than ``least`` rows have is told as 0. A count stays the one that was told until it
    is at least ``least`` more or less: the difference of two runs counts no fewer rows either.

    Attributes
    ----------
    names : dict
        Category -> rows. The first one has those of the rows as well that are left over.
    gaps, others : int
        Rows without a category, and those of all rare ones.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    gaps: int = 0
    others: int = 0

    def follow(self, counts: Mapping[str, int], rows: int, least: int) -> Told:
        """Return what may be told after this, of so many rows that have these categories.

        >>> Told().follow({"flu": 40, "gout": 4}, 46, 5)
        Told(names={'flu': 40}, gaps=0, others=6)
        >>> Told({"flu": 40}).follow({"flu": 44, "gout": 5}, 49, 5)
        Told(names={'flu': 40, 'gout': 5}, gaps=0, others=0)
        """

        def settled(now: int, then: int) -> int:
            now = now if now >= least else 0
            return then if abs(now - then) < least else now

        ranked = dict(sorted(counts.items(), key=lambda one: -one[1]))
        known = {name: self.names.get(name, 0) for name in {**self.names, **ranked}}
        names = {name: settled(counts.get(name, 0), then) for name, then in known.items()}
        names = {name: count for name, count in names.items() if count}
        gaps = settled(rows - sum(counts.values()), self.gaps)
        return Told(names, gaps, settled(rows - sum(names.values()) - gaps, self.others))

    def fill(self, places: Mapping[str, int], size: int, rows: int, least: int) -> Floats:
        """Return how many of so many rows are in each bucket, and one more count: of the others.

        All rows but the gaps are counted; without a bucket they are others. Rows that are left over
        are counted as the first category, so that no difference shows them.

        >>> Told({"flu": 40}).fill({"flu": 0}, 2, 43, 5), Told().fill({}, 2, 3, 5)
        (array([43.,  0.,  0.]), array([0., 0., 0.]))
        """
        found = np.zeros(size + 1)
        for name in self.names if size else ():
            found[places[name]] += self.names[name]
        found[-1] = self.others if size else 0.0
        left = max(0, rows - self.gaps) - found.sum()
        while left < 0.0:  # rows have gone of which the counts do not say it yet
            left += found.max()
            found[found.argmax()] = 0.0
        if found.any() or left >= least:
            found[places[next(iter(self.names))] if size and self.names else -1] += left
        return found


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
