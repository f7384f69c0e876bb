"""Histograms that are refined once: the values of many holders at equal ranks, from two sums.

The bins of the first sum are public, by powers of two below the bound. Beside them it has the mean
phases of the values on circles whose lengths are powers of two. On a circle much longer than the
column is wide they agree, on a much shorter one they cancel out: followed from the longest circle
down, as long as they agree by half, they say where most values are and how wide they lie, whatever
a few far ones do to mean and deviation, and of these no more than a mean can.

The bins of the second sum split those of the first: evenly about the mean and about that place, and
by how many rows a bin has, one more for five rows that are spread evenly. Where all values have at
most three decimals a second bin ends between two of them, and a bin of one value stands for it
exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .facts import KNOTS, MIN_ROWS, Floats, NumberFacts

_REACH = 40  # powers of two below the bound
_EVEN = 65  # edges about the mean, and about the place of most values
_LEAST = 0.2  # weight of the parts of a first bin that are not about either
_AGREE = 0.5  # length of a mean phase where most values are within the circle

#: Bins of the first histogram, how many numbers of decimals are tried, circles; and by how many
#: bins the second splits those of the first by their rows, at most.
COARSE, DECIMALS, CIRCLES, SPLITS = 2 * _REACH, 4, 40, 512


def coarse_edges(bound: float) -> Floats:
    """Return the edges of the first bins, shape (COARSE + 1,), where no value is beyond a bound."""
    far = bound * 2.0 ** -np.arange(_REACH)
    return np.concatenate([-far, [0.0], far[:0:-1], [np.nextafter(bound, np.inf)]])


def fine_edges(
    counts: Floats,
    decimals: int,
    about: tuple[float, float],
    place: Floats,
    bound: float,
    most: int = SPLITS,
) -> Floats:
    """Return the edges of the second bins of a column, from the least on.

    Parameters
    ----------
    counts : ndarray, shape (COARSE,)
        Values in the first bins.
    decimals : int
        Of all values, -1 if they have more.
    about : (float, float)
        Where it is, and a number not below its deviation.
    place : ndarray, shape (2,)
        Where most values are, and within how much, see :func:`read_phases`.
    bound : float
        B, no value is larger.
    most : int
        By how many bins those of the first sum are split by their rows, at most.
    """
    edges, n = coarse_edges(bound), max(float(counts.sum()), 1.0)
    windows = [(about[0], 4.0 * about[1]), (float(place[0]), float(place[1]) / 2.0)]
    within = [middle + half * np.linspace(-1.0, 1.0, _EVEN) for middle, half in windows]
    cuts = np.unique(np.clip(np.concatenate([edges, *within]), -bound, edges[-1]))
    own = np.searchsorted(edges, cuts[:-1], side="right") - 1
    width = np.diff(cuts)
    weight = _LEAST * width / np.bincount(own, width, COARSE)[own]
    for (_, half), part in zip(windows, within, strict=True):
        weight += (cuts[:-1] >= part[0]) * (cuts[1:] <= part[-1]) * width / (2.0 * half)
    weight *= counts[own] / np.bincount(own, weight, COARSE)[own]
    splits = min(most, n // MIN_ROWS) / n
    parts = np.diff(np.rint(splits * np.cumsum(weight)), prepend=0.0).astype(np.intp) + 1
    # what is known to be empty is not counted again: one bin up to the next that is not
    used = counts[own] > 0.0
    first = used | np.append(True, used[:-1])
    parts = np.where(used, parts, 1)[first]
    starts = cuts[:-1][first]
    steps = np.append(starts, cuts[-1])
    if decimals >= 0:
        steps = np.ceil(steps * 10.0**decimals)
    inside = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    inner = np.repeat(np.diff(steps), parts) * inside / np.repeat(parts, parts)
    if decimals >= 0:
        inner = np.floor(inner) - 0.5
    found = np.append(np.repeat(steps[:-1], parts) + inner, steps[-1] - 0.5 * (decimals >= 0))
    return np.unique(found / 10.0 ** max(decimals, 0))


def sum_phases(values: Floats, bound: float, circles: int = CIRCLES) -> Floats:
    """Return the sums of the values' cosines and sines on circles, shape (2 circles,)."""
    known = values[~np.isnan(values)]
    turns = [2.0 * np.pi * (known / length % 1.0) for length in _lengths(bound)[:circles]]
    return np.array([part(one).sum() for part in (np.cos, np.sin) for one in turns])


def read_phases(sums: Floats, count: float, bound: float) -> Floats:
    """Return where most of so many values are and the length of the last circle they agree on."""
    cosines, sines = sums.reshape(2, -1) / max(count, 1.0)
    found = np.array([0.0, 4.0 * bound])
    for length, cosine, sine in zip(_lengths(bound), cosines, sines, strict=False):
        if np.hypot(cosine, sine) < _AGREE:
            break
        place = np.arctan2(sine, cosine) / (2.0 * np.pi) * length
        found[:] = place + np.rint((found[0] - place) / length) * length, length
    return found


def _lengths(bound: float) -> Floats:
    return np.asarray(4.0 * bound * 2.0 ** -np.arange(CIRCLES))


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
