"""Local problems of consensus ADMM for linear models, one per user and iteration.

Each user solves, warm from the iteration before::

    w = argmin  C sum_n c_n loss(f_n, y_n) + 1/2 (w - v)^T diag(penalty) (w - v),   f = X w

The weights c_n are one unless classes are weighted; the hinge and the squared loss take them into
the rows. In u = (w - v) / s with s = sqrt(C / penalty) this is sum_n c_n loss(f_n, y_n)
+ 1/2 |u|^2 with f = X v + Z u, Z = X diag(s): neither C nor the penalty is left. With fewer rows
than columns the solution is in the span of the rows, Z^T = Q R, and R^T takes the place of Z, so
that no matrix is larger than min(n, d).

hinge
    The dual, 0 <= beta <= 1 with u = Z^T beta (rows of Z times y, alpha = C beta), by the proximal
    point method: the next beta maximises the dual minus |b - beta|^2 / (2 tau), and tau grows.
    Each maximisation is the minimisation of a piecewise quadratic, once differentiable function
    of u by semismooth Newton steps with a line search; only rows with 0 < beta < 1 enter the
    Newton matrix. A solve for exactly these rows (tau infinite) ends it: their margins are 1 and
    u = Z^T beta, both to rounding.
logistic
    Newton's method with the same line search.
squared
    The normal equations with iterative refinement.

References
----------
Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed Optimization and Statistical Learning via
the Alternating Direction Method of Multipliers", 2011, section 8.2. Rockafellar, "Augmented
Lagrangians and Applications of the Proximal Point Algorithm in Convex Programming", 1976. Li, Sun
and Toh, "A Highly Efficient Semismooth Newton Augmented Lagrangian Method for Solving Lasso
Problems", 2018. Keerthi and DeCoste, "A Modified Finite Newton Method for Fast Solution of Large
Scale Linear SVMs", 2005 (line search and active rows).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from .logistic import expit

__all__ = ["LOSSES", "Loss", "solve_local", "total_loss"]

Floats = NDArray[np.float64]
Loss = Literal["hinge", "logistic", "squared"]
LOSSES = ("hinge", "logistic", "squared")

ROUNDING = 1e-13  # relative error of what counts as solved
GROWTH = 10.0  # of tau after each step of the proximal point method
NEWTON_STEPS = 15  # most of one step of the proximal point method; tau shrinks after these


def solve_local(
    loss: Loss,
    x: Floats,
    y: Floats,
    v: Floats,
    penalty: Floats,
    c: float,
    start: Floats,
    weights: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Solve one user's problem, see the top of this module.

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        max(0, 1 - y f), log(1 + exp(-y f)) or 1/2 (y - f)^2.
    x : ndarray of float64, shape (n, d)
        The user's rows; n may be 0.
    y : ndarray of float64, shape (n,)
        Targets: -1 or 1, any number for the squared loss.
    v : ndarray of float64, shape (d,)
        Where the penalty is zero.
    penalty : ndarray of float64, shape (d,)
        Weights of the penalty, positive.
    c : float
        C, the weight of the losses, positive.
    start : ndarray of float64
        Memory of the last call; one of another size or that is not finite counts as none.
    weights : ndarray of float64, shape (n,), optional
        Weights of the rows, positive.

    Returns
    -------
    w : ndarray of float64, shape (d,)
        The solution, the exact one of data that differ by rounding.
    memory : ndarray of float64
        The next call's start: alpha / weights, shape (n,), for the hinge, w for the others.
    """
    n, d = x.shape
    size = n if loss == "hinge" else d
    warm = start.shape == (size,) and bool(np.isfinite(start).all())
    if x.size == 0:
        return v.copy(), np.zeros(n) if loss == "hinge" else v.copy()
    scale = np.sqrt(c / penalty)
    rows = x * scale
    if loss == "hinge":
        rows *= y[:, None]
    base = x @ v
    margins, shortfall = 1.0 - y * base, y - base
    if weights is not None and loss == "hinge":
        rows *= weights[:, None]
        margins = weights * margins
    elif weights is not None and loss == "squared":
        rows *= np.sqrt(weights)[:, None]
        shortfall = np.sqrt(weights) * shortfall
    basis: Floats | None = None
    if n < d:
        basis, triangle = np.linalg.qr(rows.T)
        rows = np.ascontiguousarray(triangle.T)
    if loss == "hinge":
        u, beta = _hinge(rows, margins, np.clip(start / c, 0.0, 1.0) if warm else None)
        w = v + scale * (u if basis is None else basis @ u)
        return w, c * beta
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
    """Return the sum of the losses.

    Parameters
    ----------
    loss : {"hinge", "logistic", "squared"}
        See :func:`solve_local`.
    outputs : ndarray of float64, shape (n,)
        f.
    y : ndarray of float64, shape (n,)
        Targets.
    weights : ndarray of float64, shape (n,), optional
        Of the rows.

    Returns
    -------
    float
    """
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

    Parameters
    ----------
    y : ndarray of float64, shape (n,)
        Targets, -1 or 1.
    share : float
        Share of the rows with 1 among all rows of the run.
    """
    if not 0.0 < share < 1.0:
        return np.ones(len(y))
    return np.where(y > 0.0, 0.5 / share, 0.5 / (1.0 - share))


def _hinge(z: Floats, margins: Floats, start: Floats | None) -> tuple[Floats, Floats]:
    """Minimise sum_n max(0, r_n) + 1/2 |u|^2, r = margins - z u.

    z is (n, e), margins (n,), start the first beta, (n,), between 0 and 1, or None. Return u, (e,),
    and beta, (n,), between 0 and 1, with u = z^T beta.
    """
    n, e = z.shape
    columns = np.sqrt(np.einsum("ij,ij->j", z, z))
    size = max(float(columns @ columns) / n, 1e-200)
    beta = np.zeros(n) if start is None else start
    u = beta @ z
    r = margins - z @ u
    wrong, apart = _violations(beta, r), False
    unit = 1.0 + np.abs(margins).max()
    tau = 0.0
    for _ in range(60):
        if not apart and wrong.max() <= ROUNDING * (unit + columns @ np.abs(u) / np.sqrt(n)):
            break
        if tau == 0.0:
            free = (beta > 0.0) & (beta < 1.0)
            inside = np.minimum(beta, 1.0 - beta)[free]  # how far beta may be expected to move
            room = inside.mean() if len(inside) else min(1.0, 1.0 / size)
            tau = room * wrong.sum() / (wrong @ wrong) / GROWTH
        tau = min(GROWTH * tau, 1e13 / size)
        u, r, found = _proximal_step(z, columns, beta, u, r, tau)
        if found is None:
            tau /= GROWTH**2
            continue
        beta, r = found, margins - z @ u
        wrong, apart = _violations(beta, r), _apart(columns, u, beta, u - beta @ z)
        rows = np.flatnonzero((beta > 0.0) & (beta < 1.0))
        if len(rows) <= 2 * e:
            polished = _polish(z, margins, rows, u, r, beta)
            new = _violations(polished[2], polished[1])
            gap = polished[0] - polished[2] @ z
            if new.max() < wrong.max() and not _apart(columns, polished[0], polished[2], gap):
                (u, r, beta), wrong, apart = polished, new, False
    return u, beta


def _violations(beta: Floats, r: Floats) -> Floats:
    """Return by how much each margin would have to move for beta to be optimal, shape (n,)."""
    return np.maximum(np.where(beta < 1.0, r, 0.0), np.where(beta > 0.0, -r, 0.0))


def _apart(columns: Floats, u: Floats, beta: Floats, gap: Floats) -> bool:
    """Whether the gap u - z^T beta, shape (e,), is more than rounding."""
    allowed = columns * np.sqrt(beta @ beta) + np.sqrt(u @ u)
    return bool((np.abs(gap) > ROUNDING * allowed).any())


def _proximal_step(
    z: Floats, columns: Floats, center: Floats, u: Floats, r: Floats, tau: float
) -> tuple[Floats, Floats, Floats | None]:
    """Minimise 1/2 |u|^2 + sum_n max_b (b r_n - (b - center_n)^2 / (2 tau)), 0 <= b <= 1.

    center is the last beta, (n,), columns the norms of those of z, (n, e); u, (e,), and its r,
    (n,), are where to begin. Return u and r, of the minimum or of the last step, and the maximising
    beta, (n,), None if the steps did not suffice. |u - z^T beta| is at most half of
    |beta - center| / sqrt(tau), so that the outer method converges (Rockafellar's criterion B).
    """
    pieces = np.empty(0)
    full = False
    for step in range(NEWTON_STEPS):
        q = center + tau * r
        beta = np.clip(q, 0.0, 1.0)
        gradient = u - beta @ z
        if (np.abs(gradient) <= 0.01 * ROUNDING * columns * np.sqrt(beta @ beta)).all():
            return u, r, beta
        moved = beta - center
        if step and gradient @ gradient <= 0.25 * (moved @ moved) / tau:
            return u, r, beta
        last, pieces = pieces, np.sign(q - beta)
        if full and np.array_equal(last, pieces):  # the minimum of this piece
            return u, r, beta
        free = z[(q > 0.0) & (q < 1.0)]
        if len(free) < z.shape[1]:
            inverse = _solve(free @ free.T, 1.0 / tau, free @ gradient)
            du = inverse @ free - gradient
        else:
            du = _solve(tau * (free.T @ free), 1.0, -gradient)
        dr = z @ du
        length = _line_search(_hinge_slope(u, du, q, dr, tau), float(gradient @ du))
        full = length == 1.0
        u, r = u + length * du, r - length * dr
    return u, r, None


def _hinge_slope(
    u: Floats, du: Floats, q: Floats, dr: Floats, tau: float
) -> Callable[[float], tuple[float, float]]:
    """Return the first two derivatives along du of what :func:`_proximal_step` minimises."""
    across, along, dq = float(u @ du), float(du @ du), tau * dr

    def slope(t: float) -> tuple[float, float]:
        moved = q - t * dq
        free = dr[(moved > 0.0) & (moved < 1.0)]
        first = across + t * along - float(np.clip(moved, 0.0, 1.0) @ dr)
        return first, along + tau * float(free @ free)

    return slope


def _polish(
    z: Floats, margins: Floats, rows: NDArray[np.intp], u: Floats, r: Floats, beta: Floats
) -> tuple[Floats, Floats, Floats]:
    """Solve u = z^T beta, r = 0 in the given rows, for u and these rows' beta; return u, r, beta.

    The singular values leave out what repeated rows do not determine. The last of the three
    solves refines; beta is kept between 0 and 1.
    """
    left, values, right = np.linalg.svd(z[rows], full_matrices=False)
    keep = values > 1e-10 * values.max(initial=0.0)
    left, values, right = left[:, keep], values[keep], right[keep]
    for _ in range(3):
        gap = u - beta @ z
        along = (r[rows] @ left) / values + right @ gap
        beta = beta.copy()
        beta[rows] = np.clip(beta[rows] + left @ (along / values), 0.0, 1.0)
        u = u + along @ right - gap
        r = margins - z @ u
    return u, r, beta


def _logistic(
    z: Floats, base: Floats, y: Floats, u: Floats, weights: Floats | None = None
) -> Floats:
    """Minimise sum_n c_n log(1 + exp(-y_n f_n)) + 1/2 |u|^2, f = base + z u, from u on.

    z is (n, e), base, y and weights are (n,), u and the result (e,).
    """
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
        du = _solve((z.T * bend) @ z, 1.0, -gradient)
        slope = _logistic_slope(u, du, f, z @ du, y, share)
        u = u + _line_search(slope, float(gradient @ du)) * du
    return u


def _logistic_slope(
    u: Floats, du: Floats, f: Floats, df: Floats, y: Floats, share: Floats | float
) -> Callable[[float], tuple[float, float]]:
    """Return the first two derivatives along du of what :func:`_logistic` minimises."""
    across, along, ydf = float(u @ du), float(du @ du), y * df

    def slope(t: float) -> tuple[float, float]:
        q = expit(-y * (f + t * df))
        p = share * q
        return across + t * along - float(p @ ydf), along + float((p * (1.0 - q)) @ (df * df))

    return slope


def _squared(z: Floats, target: Floats) -> Floats:
    """Return argmin 1/2 |target - z u|^2 + 1/2 |u|^2, shape (e,), z (n, e), target (n,).

    By the normal equations, or where refinement cannot mend these by least squares.
    """
    gram, e = z.T @ z, z.shape[1]
    u, gradient = np.zeros(e), target @ z
    first = float(gradient @ gradient)
    for _ in range(3):
        u = u + _solve(gram, 1.0, gradient)
        gradient = (target - z @ u) @ z - u
    if gradient @ gradient <= (10.0 * ROUNDING) ** 2 * first:
        return u
    rows = np.vstack([z, np.eye(e)])
    solution = np.linalg.lstsq(rows, np.concatenate([target, np.zeros(e)]), rcond=0.0)[0]
    return np.asarray(solution, np.float64)


def _line_search(slope: Callable[[float], tuple[float, float]], begin: float) -> float:
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


def _solve(matrix: Floats, shift: float, right: Floats) -> Floats:
    """Return (matrix + shift I)^-1 right, (m,), for a positive semidefinite (m, m) matrix.

    The matrix is changed and changed back. If the shift is lost in rounding, the shortest
    solution.
    """
    diagonal = matrix.diagonal().copy()
    matrix.flat[:: len(matrix) + 1] += shift
    try:
        return np.asarray(np.linalg.solve(matrix, right), np.float64)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0], np.float64)
    finally:
        matrix.flat[:: len(matrix) + 1] = diagonal
