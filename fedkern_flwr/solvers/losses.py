"""Losses of a model's outputs, their derivatives, and steps of the solvers that minimise them.

The losses are those of Gu, Dang, Li and Huang 2020 (FDSKL), Table 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Loss = Literal["square", "logistic", "smooth-hinge"]
LOSSES = ("square", "logistic", "smooth-hinge")
ROUNDING = 1e-13  # relative error that counts as solved


def expit(x: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / (1 + exp(-x))."""
    from scipy import special  # few runs need it

    return np.asarray(special.expit(x))


def loss_values(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the loss of each output, of the same shape.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        (f - y)^2; log(1 + exp(-y f)); or, with z = y f, 1/2 - z up to z = 0, (1 - z)^2 / 2 up to z
        = 1 and 0 from there.
    outputs : ndarray of float64, any shape
        f.
    targets : ndarray of float64, same shape
        y; -1 or 1 except for the square loss.
    """
    if loss == "square":
        return np.asarray((outputs - targets) ** 2)
    if loss == "logistic":
        return np.asarray(np.logaddexp(0.0, -targets * outputs))
    if loss == "smooth-hinge":
        short = np.maximum(1.0 - targets * outputs, 0.0)
        return np.where(short > 1.0, short - 0.5, 0.5 * np.minimum(short, 1.0) ** 2)
    assert_never(loss)


def loss_derivatives(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the derivative of :func:`loss_values` in each output."""
    if loss == "square":
        return np.asarray(2.0 * (outputs - targets))
    if loss == "logistic":
        return np.asarray(-targets * expit(-targets * outputs))
    if loss == "smooth-hinge":
        return np.asarray(-targets * np.clip(1.0 - targets * outputs, 0.0, 1.0))
    assert_never(loss)


def loss_curvatures(loss: Loss, outputs: Floats, targets: Floats) -> Floats:
    """Return the second derivative of :func:`loss_values` in each output.

    It is 0 at the two kinks of the smooth hinge's derivative.
    """
    if loss == "square":
        return np.full(np.shape(outputs), 2.0)
    if loss == "logistic":
        probability = expit(targets * outputs)
        return np.asarray(probability * (1.0 - probability))
    if loss == "smooth-hinge":
        margin = targets * outputs
        return np.asarray(((margin > 0.0) & (margin < 1.0)).astype(np.float64))
    assert_never(loss)


# -- steps of the local solvers


def reduced(z: Floats) -> tuple[Floats | None, Floats]:
    """Return a basis of the rows, (e, n), and z in it, (n, n), if n < e; else None and z."""
    if len(z) >= z.shape[1]:
        return None, z
    basis, triangle = np.linalg.qr(z.T)
    return basis, np.ascontiguousarray(triangle.T)


def line_search(slope: Callable[[float], tuple[float, float]], begin: float) -> float:
    """Return a t > 0 where the slope of a convex function is a tenth of that at 0.

    Newton's method from t = 1, kept in the bracket of signs. ``slope`` returns the slope and its
    derivative; ``begin`` is the slope at 0.
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

    The matrix is changed and restored. If the shift is lost in rounding: the shortest solution.
    """
    diagonal = matrix.diagonal().copy()
    matrix.flat[:: len(matrix) + 1] += shift
    try:
        return solve_exactly(matrix, right)
    finally:
        matrix.flat[:: len(matrix) + 1] = diagonal


def solve_exactly(matrix: Floats, right: Floats) -> Floats:
    """Return matrix^-1 right, (m,), or the shortest least-squares solution."""
    try:
        return np.asarray(np.linalg.solve(matrix, right), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0], np.float64)
