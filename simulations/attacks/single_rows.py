"""Compute equal rows, columns of two values and known rows from values of single rows.

The active party of FDSKL has phases of the others' rows x_i, a hospital of FedCG squared distances
of its patients to unknown landmarks. Both become linear in x_i: phases along the minimum spanning
tree of the rows, where no phase moves by half a turn; distances less their means, which are
-2 (x_i - mean)^T (w_j - mean).

So the party has all rows up to one linear map (:func:`coordinates`). A column of two values is a
linear function of them. :func:`two_valued` guesses it at as many rows as there are unknowns, and
the other rows verify the guess. As many known records give the map itself (:func:`from_known`).

Source: follows from Algorithm 3 of Gu et al., KDD 2020, and from eq. 2.9 of FedCG.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    minimum_spanning_tree,
)
from scipy.spatial.distance import cdist

from .inversion import nearest_turn
from .seen import Floats

#: Most dimensions in which all guesses are tried: 2^18 of them, a few seconds.
MOST = 18
_NEAR = 0.25  # of a guessed value to 0 or 1: a wrong guess fails at one of many rows
_FITS = 0.02  # largest error of a column over all rows
_EQUAL, _ROUNDED = 1e-12, 1e-8  # errors of cosines, and of distances in fixed point
_TINY = 1e-9  # so that equal rows are neighbours in the tree, not strangers


def angles_apart(phases: Floats) -> Floats:
    """Compute 1 less the mean cosine of differences of phases, (n, n): 0 for equal rows."""
    turns = np.exp(1j * phases)
    return np.asarray(1.0 - np.real(turns @ turns.conj().T) / phases.shape[1])


def equal_rows(apart: Floats, tolerance: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return a row of each kind, (k,), and the kind of each row, (n,), by their distances."""
    kinds = connected_components(apart < tolerance, directed=False)[1]
    return np.unique(kinds, return_index=True)[1], np.asarray(kinds, np.intp)


def unwrapped(phases: Floats, apart: Floats) -> Floats:
    """Compute phases of rows, (n, R), less those of the first row, with their turns."""
    tree = minimum_spanning_tree(np.maximum(apart, 0.0) + _TINY)
    order, before = breadth_first_order(tree, 0, directed=False)
    found = np.zeros_like(phases)
    for row in order[1:]:
        parent = before[row]
        found[row] = found[parent] + nearest_turn(phases[row] - phases[parent])
    return found


def coordinates(values: Floats, noise: float) -> Floats:
    """Compute rows up to a linear map, (n, r), from values that are linear in them, (n, m).

    Rows must differ, since equal ones have equal errors of standard deviation ``noise``.
    """
    left, size, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    above = 1.5 * noise * np.sum(np.sqrt(values.shape)) + 1e-10 * size[0]
    return np.asarray(left[:, size > above])


def columns_of_phases(phases: Floats, noise: float) -> NDArray[np.bool_]:
    """Compute the columns of two values of rows from their phases."""
    apart = angles_apart(phases)
    first, kinds = equal_rows(apart, max(_EQUAL, (4.0 * noise) ** 2))
    values = unwrapped(phases[first], apart[np.ix_(first, first)])
    return _for_all(two_valued(coordinates(values, noise)), kinds)


def columns_of_distances(distances: Floats) -> NDArray[np.bool_]:
    """Compute the columns of two values of rows from squared distances to any landmarks."""
    first, kinds = equal_rows(cdist(distances, distances, "chebyshev"), _ROUNDED)
    values = distances[first]
    values = values - values.mean(axis=1, keepdims=True)
    return _for_all(two_valued(coordinates(values, _ROUNDED)), kinds)


def _for_all(found: NDArray[np.bool_], kinds: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return columns at all rows, False at the first."""
    return np.asarray(found[kinds] ^ found[kinds[0]])


def two_valued(points: Floats) -> NDArray[np.bool_]:
    """Find all linear functions of points that take two values, (n, k): False at the first row.

    Of two exclusive columns their sum is among them.
    """
    n, r = points.shape
    if r == 0 or r > MOST or n <= r:
        return np.zeros((n, 0), np.bool_)
    lifted = np.column_stack([np.ones(n), points * np.sqrt(n)])
    chosen = qr(lifted.T, mode="r", pivoting=True)[1][: r + 1]
    effects = np.linalg.solve(lifted[chosen].T, lifted.T).T  # of the values at the chosen rows
    guesses = (np.arange(1, 1 << r)[:, None] >> np.arange(r) & 1).astype(np.float32)
    free, rest = effects[:, 1:].astype(np.float32), np.setdiff1d(np.arange(n), chosen)
    for row in rest:  # the first is 0: a column and its opposite are one
        with np.errstate(invalid="ignore", over="ignore"):  # where chosen rows nearly depend
            value = guesses @ free[row]
        guesses = guesses[np.abs(value - (value > 0.5)) < _NEAR]
    values = effects[:, 1:] @ guesses.T.astype(np.float64)
    fitted = lifted @ np.linalg.lstsq(lifted, (values > 0.5).astype(np.float64), rcond=None)[0]
    found = fitted > 0.5
    right = np.abs(fitted - found).max(axis=0) < _FITS
    return np.asarray((found ^ found[0])[:, right])


def share_of_columns(found: NDArray[np.bool_], truth: Floats) -> float:
    """Compute the share of the columns of two values that were found, up to 0 and 1."""
    binary = [column != column[0] for column in truth.T if len(np.unique(column)) == 2]
    known = {column.tobytes() for column in np.ascontiguousarray(found.T)}
    return float(np.mean([column.tobytes() in known for column in binary])) if binary else 0.0


def from_known(values: Floats, rows: NDArray[np.intp], known: Floats) -> Floats:
    """Compute all rows from values that are linear in them, and known rows.

    ``rows`` are the indices of d + 1 or more known rows, and ``known`` their columns.
    """
    points = values - values[rows[0]]
    map_ = np.linalg.lstsq(known - known[0], points[rows], rcond=None)[0]
    return np.asarray(known[0] + np.linalg.lstsq(map_.T, points.T, rcond=None)[0].T)
