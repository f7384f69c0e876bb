"""Histograms that are refined once: the values of many holders at equal ranks, from their sums.

The first bins are public, by powers of two below the bound, and even ones about the mean, so that
few rows far away hide nothing. The second split each of the first by how many rows it has, so that
five or more are in one where they are spread evenly. Where all values have at most three decimals a
second bin ends between two of them, and a bin of one value stands for it exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .facts import KNOTS, MIN_ROWS, Floats, NumberFacts

_REACH = 40  # powers of two below the bound
_NEAR = 65  # edges about the mean, up to four of its powers of two away

#: Bins of the first histogram, of the second, and how many numbers of decimals are tried.
COARSE, FINE, DECIMALS = 2 * _REACH + _NEAR, 512, 4


def coarse_edges(mean: float, scale: float, bound: float) -> Floats:
    """Return the edges of the first bins of a column, shape (COARSE + 1,).

    Parameters
    ----------
    mean, scale : float
        Where it is, and a number not below its deviation.
    bound : float
        B, no value is larger.
    """
    far = bound * 2.0 ** -np.arange(_REACH)
    near = np.clip(mean + scale * np.linspace(-4.0, 4.0, _NEAR), -bound, bound)
    return np.sort(np.concatenate([-far, [0.0], far[1:], [np.nextafter(bound, np.inf)], near]))


def fine_edges(edges: Floats, counts: Floats, decimals: int) -> Floats:
    """Return the edges of the second bins of a column, shape (FINE + 1,).

    Parameters
    ----------
    edges, counts : ndarray, shapes (COARSE + 1,) and (COARSE,)
        The first bins.
    decimals : int
        Of all values, -1 if they have more.
    """
    n = max(float(counts.sum()), 1.0)
    more = min(FINE - COARSE, n // MIN_ROWS)
    parts = 1 + np.floor(more * counts / n).astype(np.intp)
    steps = np.ceil(edges * 10.0**decimals) if decimals >= 0 else edges
    within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    inner = np.repeat(np.diff(steps), parts) * within / np.repeat(parts, parts)
    if decimals >= 0:
        inner = np.floor(inner) - 0.5
    found = np.append(np.repeat(steps[:-1], parts) + inner, steps[-1] - 0.5 * (decimals >= 0))
    found = np.pad(found, (0, FINE + 1 - len(found)), "edge")
    return np.maximum.accumulate(found / 10.0 ** max(decimals, 0))


def count_bins(values: Floats, edges: Floats) -> Floats:
    """Return how many values are in each bin; NaN in none, what is outside in the outermost."""
    known = values[~np.isnan(values)]
    places = np.searchsorted(edges[1:-1], known, side="right")
    return np.bincount(places, minlength=len(edges) - 1).astype(np.float64)


def count_strays(values: Floats) -> Floats:
    """Return how many values have more than 0, 1, 2 and 3 decimals."""
    known, units = values[~np.isnan(values)], 10.0 ** np.arange(DECIMALS)[:, None]
    strays: NDArray[np.intp] = (np.rint(known * units) / units != known).sum(axis=1)
    return strays.astype(np.float64)


def decimals_of(strays: Floats) -> int:
    """Return the decimals of all values, -1 if some have more than three."""
    return int(np.argmin(strays)) if strays.min() == 0.0 else -1


def binned_facts(
    edges: Floats, counts: Floats, decimals: int, rows: int, mean: float, deviation: float
) -> NumberFacts:
    """Return the facts of a column whose values are spread evenly in each bin.

    Parameters
    ----------
    edges, counts : ndarray
        Bins, and how many values are in each.
    decimals : int
        Of all values, -1 if they have more.
    rows : int
        With those that lack a value.
    mean, deviation : float
        Of the values.
    """
    ends = np.cumsum(counts).astype(np.int64)
    n, unit = int(ends[-1]), 10.0 ** max(decimals, 0)

    def values(places: Floats) -> Floats:
        if decimals < 0 and not deviation:
            return np.full(len(places), mean)
        k = np.searchsorted(ends, places, side="right")
        within = (places - (ends[k] - counts[k]) + 0.5) / counts[k]
        found = edges[k] + within * (edges[k + 1] - edges[k])
        return np.asarray(found if decimals < 0 else np.rint(found * unit) / unit)

    knots = values(np.rint(np.linspace(0, n - 1, min(n, KNOTS))))
    low, high = values(np.array([(n - 1) // 2, n // 2], np.float64)) / 2.0
    return NumberFacts(
        rows=rows,
        missing=rows - n,
        least=float(knots[0]),
        median=float(low + high),
        greatest=float(knots[-1]),
        mean=mean,
        deviation=deviation,
        knots=tuple(np.maximum.accumulate(knots).tolist()),
    )
