"""Steps that the solvers of local problems share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROUNDING = 1e-13  # relative error of what counts as solved


def reduced(z: Floats) -> tuple[Floats | None, Floats]:
    """Return a basis of the rows, (e, n), and z in it, (n, n), where n < e; else none, and z."""
    if len(z) >= z.shape[1]:
        return None, z
    basis, triangle = np.linalg.qr(z.T)
    return basis, np.ascontiguousarray(triangle.T)


def line_search(slope: Callable[[float], tuple[float, float]], begin: float) -> float:
    """Return a t > 0 where the slope of a convex function is a tenth of that at 0, t = 1 first.

    ``slope`` returns the slope and its derivative, ``begin`` is the slope at 0. Newton's method on
    the slope, kept in the bracket of its signs.
    """
    low, high, t = 0.0, np.inf, 1.0
    for _ in range(30):
        first, second = slope(t)
        if abs(first) <= 0.1 * abs(begin):
            break
        if first < 0.0:
            low = t
        else:
            high = t
        t -= first / second
        if not low < t < high:
            t = 0.5 * (low + high) if high < np.inf else 2.0 * low
    return t


def solve_shifted(matrix: Floats, shift: float, right: Floats) -> Floats:
    """Return (matrix + shift I)^-1 right, (m,), for a positive semidefinite (m, m) matrix.

    The matrix is changed and changed back. If the shift is lost in rounding, the shortest
    solution.
    """
    diagonal = matrix.diagonal().copy()
    matrix.flat[:: len(matrix) + 1] += shift
    try:
        return solve_exactly(matrix, right)
    finally:
        matrix.flat[:: len(matrix) + 1] = diagonal


def solve_exactly(matrix: Floats, right: Floats) -> Floats:
    """Return matrix^-1 right, (m,), for a positive semidefinite (m, m) matrix, or the shortest."""
    try:
        return np.asarray(np.linalg.solve(matrix, right), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0], np.float64)
