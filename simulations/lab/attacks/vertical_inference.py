"""Inversion of FDSKL: from sums of o + b, or phases of them, to the rows of other parties.

o = omega^T x is a party's part of a direction (or that of several parties) for a row, b the number
that hides it: the same for all rows, uniform on [0, 2 pi). What follows depends on what is known:

    =============================  ==========  ===================================================
    seen                           omega       found
    =============================  ==========  ===================================================
    o + b as real numbers          known       differences of rows exactly, :func:`row_differences`;
                                               rows, :func:`row_of_bounds`
    o + b and b                    any         o, :func:`without_masks`
    o + b modulo 2 pi              known       differences of rows, :func:`differences_of_phases`
    o + b modulo 2 pi, private     unknown     distances, :func:`distances_of_phases`; rows up to a
    frequencies                                linear map, :func:`rows_up_to_map`
    and d + 1 records              unknown     all rows, :func:`rows_of_known`
    and columns that do not        unknown     all rows, up to the order, direction and range of
    depend on each other                       columns, :func:`independent_columns`
    o + b modulo 2 pi, again with  unknown     o, :func:`offsets_cancelled`
    another width
    =============================  ==========  ===================================================

The last is why a client draws new directions when the width is another one.

Source: follows from Algorithm 3 and section 3.2 of Gu et al., KDD 2020, whose Theorem 7 says that
there is no such attack; axes by fourth moments: see :mod:`.hybrid`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.frequencies import Kernel

from .gradient_inversion import Floats
from .hybrid_rows import independent_axes
from .phases import Phases
from .vertical import Hop

_TURN = 2.0 * np.pi
_GAP = np.pi  # empty part of the circle at which it can be cut
_SIGMAS = 6.0
_SIDE = 12.0**0.5  # a uniform number on [0, 1] times this has variance one


@dataclass(frozen=True)
class RowsUpToMap:
    """Rows but for a linear map and a shift, which nobody knows who has no directions.

    Attributes
    ----------
    rows : ndarray, shape (n, d)
    consistent : bool
        Whether all that is left of the phases is rounding, so that the viewer knows it to be right.
    """

    rows: Floats
    consistent: bool


# -- real-valued masks


def row_of_bounds(values: Floats, directions: Floats) -> Floats | None:
    """Compute a row from o + b and known directions: b lies in [0, 2 pi), so o has bounds.

    The centre of the largest ball in the polytope of all x that keep to the bounds.

    Parameters
    ----------
    values : ndarray, shape (R,)
        o + b of one row.
    directions : ndarray, shape (R, d)
        omega.

    Returns
    -------
    ndarray, shape (d,), or None
        None if there is no such x: these are not values of this kind.
    """
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    system = np.block([[directions, norms], [-directions, norms]])
    goal = np.zeros(system.shape[1])
    goal[-1] = -1.0
    bounds = [(None, None)] * directions.shape[1] + [(0.0, None)]
    solved = linprog(goal, A_ub=system, b_ub=np.r_[values, _TURN - values], bounds=bounds)
    return None if solved.x is None else np.asarray(solved.x[:-1], np.float64)


def row_differences(values: Floats, directions: Floats) -> Floats:
    """Compute x_i - x_0 from o + b: the same b in all rows cancels.

    Parameters
    ----------
    values : ndarray, shape (n, R)
        o + b.
    directions : ndarray, shape (R, d)
        omega, of rank d.

    Returns
    -------
    ndarray, shape (n, d)
    """
    return np.asarray(np.linalg.lstsq(directions, (values - values[0]).T, rcond=None)[0].T)


def without_masks(hops: Iterable[Hop]) -> list[tuple[frozenset[int], Floats]]:
    """Subtract the masks that came in T2 from the sums that came in T1, of one viewer and owner.

    See :func:`fedkern_flwr.vertical.trees.exposed_sums`.

    Returns
    -------
    list of (parties, ndarray of shape (n, R))
        Sums of o over parties.
    """
    listed = list(hops)
    groups: list[frozenset[int]] = []
    for hop in listed:
        joined = [group for group in groups if group & hop.parties]
        groups = [group for group in groups if not group & hop.parties]
        groups.append(hop.parties.union(*joined))
    found = []
    for group in groups:
        sums, masks = ([h for h in listed if h.tree == k and h.parties <= group] for k in (1, 2))
        covered = [frozenset().union(*(h.parties for h in part)) for part in (sums, masks)]
        if covered == [group, group]:
            total = np.sum([h.values for h in sums], axis=0)
            found.append((group, total - np.sum([h.values for h in masks], axis=0)))
    return found


# -- phases


def differences_of_phases(
    angles: Floats, directions: Floats, noise: float, radius: float
) -> Floats:
    """Compute x_i - x_0 from phases of known directions.

    Differences of angles are omega^T (x_i - x_0) modulo 2 pi; see :class:`.phases.Phases` for how
    the turns are found.

    Parameters
    ----------
    angles : ndarray, shape (n, R)
        o + b modulo 2 pi.
    directions : ndarray, shape (R, d)
        omega.
    noise : float
        Standard deviation of the angles.
    radius : float
        Bound of the differences' norms.

    Returns
    -------
    ndarray, shape (n, d)
        NaN where no x explains all angles.
    """
    error = np.full((1, len(directions)), np.sqrt(2.0) * noise)
    found = np.zeros((len(angles), directions.shape[1]))
    for i in range(1, len(angles)):
        seen = (angles[i] - angles[0])[None]
        turned = Phases(seen, error, np.ones(1), directions[None], radius)
        first = turned.unwrap()
        candidates = ([] if first is None else [first]) or turned.search()[:1]
        found[i] = np.nan
        for x in candidates:
            expected = directions @ x
            exact = expected + _nearest_turn(seen[0] - expected)
            better = np.linalg.lstsq(directions, exact, rcond=None)[0]
            if np.abs(exact - directions @ better).max() < _SIGMAS * error.max():
                found[i] = better
    return found


def offsets_cancelled(angles: Floats, again: Floats, gamma: float, gamma_again: float) -> Floats:
    """Compute o from phases of the same Gaussian directions and offsets at two near widths.

    Directions are proportional to sqrt(gamma), so that the difference is a small multiple of o.

    Parameters
    ----------
    angles, again : ndarray, shape (n, R)
        o + b modulo 2 pi.
    gamma, gamma_again : float
        Their widths.

    Returns
    -------
    ndarray, shape (n, R)
        o at ``gamma``, if its multiples are less than half a turn.
    """
    factor = np.sqrt(gamma_again / gamma) - 1.0
    return np.asarray(_nearest_turn(again - angles) / factor)


def distances_of_phases(angles: Floats, gamma: float, kernel: Kernel) -> Floats:
    """Estimate distances among rows: the mean cosine of differences of angles is the kernel.

    Parameters
    ----------
    angles : ndarray, shape (n, R)
        o + b modulo 2 pi; of R private directions the kernel is known to about 1 / sqrt(R).
    gamma : float
        Width.
    kernel : {"rbf", "laplacian"}
        The kernel.

    Returns
    -------
    ndarray, shape (n, n)
        Squared Euclidean distances, or sums of absolute differences; not above log(R) / (2 gamma).
    """
    turns = np.exp(1j * angles)
    count = angles.shape[1]
    mean = np.real(turns @ turns.conj().T) / count
    if kernel not in ("rbf", "laplacian"):
        raise OptionError(f"kernel is {kernel!r}", remedy="use 'rbf' or 'laplacian'")
    return np.asarray(-np.log(np.clip(mean, 1.0 / np.sqrt(count), 1.0)) / gamma)


def rows_up_to_map(angles: Floats, noise: float) -> RowsUpToMap:
    """Compute rows up to an affine map from phases of unknown directions.

    Where the angles of a direction leave a part of the circle empty it can be cut there, which
    gives o + b but for a constant. Less their means these are the centred rows times the
    directions: a matrix of rank d, whose singular vectors span the columns.

    Parameters
    ----------
    angles : ndarray, shape (n, R)
        o + b modulo 2 pi.
    noise : float
        Standard deviation of the angles.

    Returns
    -------
    RowsUpToMap
        Without columns if no direction can be cut: the rows are too far apart for these widths.
    """
    ordered = np.sort(angles, axis=0)
    gaps = np.diff(np.r_[ordered, ordered[:1] + _TURN], axis=0)
    widest = gaps.argmax(axis=0)
    usable = gaps[widest, np.arange(angles.shape[1])] > _GAP
    start = ordered[(widest + 1) % len(angles), np.arange(angles.shape[1])]
    cut = ((angles - start) % _TURN)[:, usable]
    n, count = cut.shape
    if not count:
        return RowsUpToMap(np.zeros((n, 0)), consistent=False)
    left, size, _ = np.linalg.svd(cut - cut.mean(axis=0), full_matrices=False)
    d = int(
        (size > _SIGMAS / 4.0 * noise * np.sqrt(n * count)).sum()
    )  # of rounding, whatever it is
    return RowsUpToMap(left[:, :d] * size[:d], consistent=0 < d < min(n - 1, count))


def rows_of_known(rows: RowsUpToMap, known: NDArray[Any], records: Floats) -> Floats | None:
    """Compute all rows from a few known records: they fix the affine map.

    Parameters
    ----------
    rows : RowsUpToMap
        Of d columns.
    known : ndarray of int, shape (m,)
        Which rows are known.
    records : ndarray, shape (m, d)
        Their columns.

    Returns
    -------
    ndarray, shape (n, d), or None
        None if the records are too few, or in special position: it takes d + 1.
    """
    system = np.c_[rows.rows, np.ones(len(rows.rows))]
    if np.linalg.matrix_rank(system[known]) < system.shape[1]:
        return None
    return np.asarray(system @ np.linalg.lstsq(system[known], records, rcond=None)[0])


def independent_columns(rows: RowsUpToMap) -> Floats:
    """Compute columns from rows up to a map if no column depends on another.

    Of all linear maps to uncorrelated columns that to independent ones has the smallest fourth
    moments, for columns whose tails are light, such as binary or uniform ones.

    Returns
    -------
    ndarray, shape (n, d)
        On [0, 1]; which column is which stays open, and whether it is 1 less the column.
    """
    centred = rows.rows - rows.rows.mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    white = left * (np.sqrt(len(left)) / _SIDE)
    found = white @ independent_axes(white)
    low, high = found.min(axis=0), found.max(axis=0)
    return np.asarray((found - low) / (high - low))


def _nearest_turn(angles: Floats) -> Floats:
    """Move angles to [-pi, pi]."""
    return np.asarray(angles - _TURN * np.rint(angles / _TURN))
