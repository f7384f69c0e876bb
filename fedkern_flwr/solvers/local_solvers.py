"""Local problems of consensus ADMM for linear models, one per user and iteration.

Each user solves, warm from the iteration before::

    w = argmin  C sum_n c_n loss(f_n, y_n) + 1/2 (w - v)^T diag(penalty) (w - v),   f = X w

c_n is 1 unless classes are weighted; hinge and squared loss take the weights into the rows. With u
= (w - v) / s and s = sqrt(C / penalty) this is sum_n c_n loss(f_n, y_n) + 1/2 |u|^2, f = X v + Z u,
Z = X diag(s), without C and penalty. With fewer rows than columns, Z^T = Q R and R^T replaces Z, so
no matrix is larger than min(n, d).

The hinge is solved in the dual (:mod:`fedkern_flwr.solvers.local_hinge`), the logistic loss by
Newton's method with a line search, the squared loss by normal equations with iterative refinement.

References
----------
Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed Optimization and Statistical Learning via
the Alternating Direction Method of Multipliers", 2011, section 8.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from .local_hinge import minimise_hinge, nearest
from .losses import ROUNDING, expit, line_search, reduced, solve_shifted

__all__ = ["LOSSES", "Loss", "solve_local", "total_loss"]

Floats = NDArray[np.float64]
Loss = Literal["hinge", "logistic", "squared"]
LOSSES = ("hinge", "logistic", "squared")


def solve_local(
    loss: Loss,
    x: Floats,
    y: Floats,
    v: Floats,
    penalty: Floats,
    c: float,
    start: Floats,
    weights: Floats | None = None,
    gram: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Solve one user's problem, see the module.

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        max(0, 1 - y f), log(1 + exp(-y f)) or 1/2 (y - f)^2.
    x : ndarray of float64, shape (n, d)
        The user's rows; n may be 0.
    y : ndarray of float64, shape (n,)
        Targets: -1 or 1, any number for the squared loss.
    v : ndarray of float64, shape (d,)
        Centre of the penalty.
    penalty : ndarray of float64, shape (d,)
        Positive weights.
    c : float
        C, positive.
    start : ndarray of float64
        Memory of the last call, ignored if of another size or not finite. For the hinge also
        several, (s, n), of which the best is used.
    weights : ndarray of float64, shape (n,), optional
        Positive weights of the rows.
    gram : ndarray of float64, shape (n, n), optional
        x x^T; saves time for the hinge with a constant penalty.

    Returns
    -------
    w : ndarray of float64, shape (d,)
        The solution, exact up to rounding of the data.
    memory : ndarray of float64
        The next start: alpha / weights, (n,), for the hinge, else w.
    """
    n, d = x.shape
    size = n if loss == "hinge" else d
    fits = start.shape == (size,) or (loss == "hinge" and start.shape[1:] == (size,))
    warm = fits and bool(np.isfinite(start).all())
    if x.size == 0:
        return v.copy(), np.zeros(n) if loss == "hinge" else v.copy()
    scale = np.sqrt(c / penalty)
    share: Floats | float = 1.0 if weights is None else weights
    rows = x * scale
    base = x @ v
    if loss == "hinge":
        signs = share * y
        if gram is not None:
            units = signs * scale[0]
            gram = None if np.ptp(penalty) else gram * np.outer(units, units)
        rows *= signs[:, None]
        margins = share - signs * base
        starts = np.clip(np.atleast_2d(start) / c, 0.0, 1.0) if warm else ()
        u, beta = minimise_hinge(rows, margins, nearest(rows, margins, starts), gram)
        return v + scale * u, c * beta
    shortfall = y - base
    if loss == "squared":
        rows *= np.sqrt(np.broadcast_to(share, n))[:, None]
        shortfall = np.sqrt(share) * shortfall
    basis, rows = reduced(rows)
    if loss == "logistic":
        u = (start - v) / scale if warm else np.zeros(d)
        u = _logistic(rows, base, y, u if basis is None else u @ basis, weights)
    elif loss == "squared":
        u = _squared(rows, shortfall)
    else:
        assert_never(loss)
    w = v + scale * (u if basis is None else basis @ u)
    return w, w.copy()


def total_loss(loss: Loss, outputs: Floats, y: Floats, weights: Floats | None = None) -> float:
    """Return the (weighted) sum of the losses; parameters as in :func:`solve_local`."""
    if loss == "hinge":
        found = np.maximum(0.0, 1.0 - y * outputs)
    elif loss == "logistic":
        found = np.logaddexp(0.0, -y * outputs)
    elif loss == "squared":
        found = (y - outputs) ** 2
    else:
        assert_never(loss)
    total = found.sum() if weights is None else weights @ found
    return float(0.5 * total if loss == "squared" else total)


def balanced_weights(y: Floats, share: float) -> Floats:
    """Return weights with which both sides of an output count as half of all rows.

    ``share`` is the share of rows with y = 1 among all rows of the run.
    """
    if not 0.0 < share < 1.0:
        return np.ones(len(y))
    return np.where(y > 0.0, 0.5 / share, 0.5 / (1.0 - share))


def _logistic(
    z: Floats, base: Floats, y: Floats, u: Floats, weights: Floats | None = None
) -> Floats:
    """Minimise sum_n c_n log(1 + exp(-y_n f_n)) + 1/2 |u|^2, f = base + z u, from u."""
    share: Floats | float = 1.0 if weights is None else weights
    columns = np.sqrt(np.einsum("ij,ij->j", z, z))
    last = float(np.inf)
    for _ in range(100):
        f = base + z @ u
        q = expit(-y * f)
        p = share * q
        gradient = u - (p * y) @ z
        norm = float(np.sqrt(gradient @ gradient))
        bend = p * (1.0 - q)
        rounded = bend * (1.0 + np.abs(f))
        allowed = columns * np.sqrt(p @ p + rounded @ rounded) + np.sqrt(u @ u)
        if (np.abs(gradient) <= 0.1 * ROUNDING * allowed).all():
            break
        if norm > 0.5 * last and (np.abs(gradient) <= 100.0 * ROUNDING * allowed).all():
            break
        last = norm
        du = solve_shifted((z.T * bend) @ z, 1.0, -gradient)
        slope = _logistic_slope(u, du, f, z @ du, y, share)
        u = u + line_search(slope, float(gradient @ du)) * du
    return u


def _logistic_slope(
    u: Floats, du: Floats, f: Floats, df: Floats, y: Floats, share: Floats | float
) -> Callable[[float], tuple[float, float]]:
    """Return the first two derivatives along du of the objective of :func:`_logistic`."""
    across, along, ydf = float(u @ du), float(du @ du), y * df

    def slope(t: float) -> tuple[float, float]:
        q = expit(-y * (f + t * df))
        p = share * q
        return across + t * along - float(p @ ydf), along + float((p * (1.0 - q)) @ (df * df))

    return slope


def _squared(z: Floats, target: Floats) -> Floats:
    """Return argmin 1/2 |target - z u|^2 + 1/2 |u|^2, shape (e,).

    By the normal equations, or by least squares if refinement fails.
    """
    gram, e = z.T @ z, z.shape[1]
    u, gradient = np.zeros(e), target @ z
    first = float(gradient @ gradient)
    for _ in range(3):
        u = u + solve_shifted(gram, 1.0, gradient)
        gradient = (target - z @ u) @ z - u
    if gradient @ gradient <= (10.0 * ROUNDING) ** 2 * first:
        return u
    rows = np.vstack([z, np.eye(e)])
    solution = np.linalg.lstsq(rows, np.concatenate([target, np.zeros(e)]), rcond=0.0)[0]
    return np.asarray(solution, np.float64)
