"""The hinge's local problem, in the dual: 0 <= beta <= 1 with u = z^T beta.

Warm start: exchange rows between the bounds and the inside. Rows inside get margin 1 exactly; a row
with beta outside [0, 1] goes to that bound; one with its margin on the wrong side comes off its
bound. Usually two solves of a few rows suffice.

If this does not end, follow a path: the margins move from values for which the last beta is optimal
to the given ones, and the solution moves piecewise linearly. At the end of a piece one row comes to
a bound or off it. Between two iterations of ADMM there are 5 to 30 pieces.

Without a last beta, or if the path is too long, use Mehrotra's interior point method. It identifies
the rows inside and at a bound; an exchange, a path or a solve for exactly these rows then removes
all but rounding errors.

References
----------
Kunisch and Rendl, "An Infeasible Active Set Method for Quadratic Problems with Simple Bounds",
2003. Best, "An Algorithm for the Solution of the Parametric Quadratic Programming Problem", 1996
(path). Ferris and Munson, "Interior-Point Methods for Massive Support Vector Machines", 2002.
Mehrotra, "On the Implementation of a Primal-Dual Interior Point Method", 1992.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .losses import ROUNDING, reduced, solve_exactly

Floats = NDArray[np.float64]

EXCHANGES = 10  # most exchanges between the bounds and the inside
INVERTED = 1e-6  # largest error of an inverse at the start of a path
DEPENDENT = 1e-7  # relative length of a residual below which a row depends on others
PIECES = 50  # most pieces of a path, plus two per column
REFINED = 3  # refinements at the end of a path
PRECISION = 1e-12  # duality gap that identifies the rows inside
STEPS = 100  # most steps of the interior point method
DOUBT = 1e-4  # below this share of its slack a multiplier counts as zero
TINY = float(np.finfo(np.float64).tiny)


def minimise_hinge(
    z: Floats, margins: Floats, start: Floats | None, gram: Floats | None
) -> tuple[Floats, Floats]:
    """Minimise sum_n max(0, r_n) + 1/2 |u|^2, r = margins - z u; return u, (e,), and beta, (n,).

    z is (n, e), margins (n,), start the first beta or None, gram z z^T or None.
    """
    found = _exchange(z, margins, np.zeros(len(z)) if start is None else start, gram)
    if found is not None and _is_exact(z, margins, found):
        return found @ z, found
    basis, z = reduced(z)
    ended = None if start is None else _along_path(z, margins, start)
    u, beta = _from_inside(z, margins) if ended is None else ended
    return u if basis is None else basis @ u, beta


def nearest(z: Floats, margins: Floats, starts: Sequence[Floats] | Floats) -> Floats | None:
    """Return the beta, of several, with the least violations; or None."""
    if len(starts) < 2:
        return starts[0] if len(starts) else None
    far = [_violations(beta, margins - z @ (beta @ z)).sum() for beta in starts]
    return starts[int(np.argmin(far))]


def _is_exact(z: Floats, margins: Floats, beta: Floats) -> bool:
    u, allowed = beta @ z, 1.0 + np.abs(margins).max()
    wrong = _violations(beta, margins - z @ u).max()
    if wrong > ROUNDING * allowed:  # otherwise the lengths of the columns do not matter
        columns = np.sqrt(np.einsum("ij,ij->j", z, z))
        allowed += columns @ np.abs(u) / np.sqrt(len(z))
    return bool(wrong <= ROUNDING * allowed)


def _exchange(z: Floats, margins: Floats, beta: Floats, gram: Floats | None) -> Floats | None:
    """Exchange rows between the bounds and the inside; return beta, (n,), or None."""
    low, high = beta <= 0.0, beta >= 1.0
    allowed = ROUNDING * (1.0 + np.abs(margins).max())
    for _ in range(EXCHANGES):
        free = np.flatnonzero(~(low | high))
        if len(free) > z.shape[1]:
            return None
        beta = high.astype(np.float64)
        if gram is None:
            rows, u = z[free], beta @ z
            block = rows @ rows.T
            beta[free] = among = solve_exactly(block, margins[free] - rows @ u)
            r = margins - z @ (u + among @ rows)
        else:
            block = gram[np.ix_(free, free)]
            beta[free] = solve_exactly(block, margins[free] - gram[free] @ beta)
            r = margins - gram @ beta
        inside = ~(low | high)
        to_low, to_high = inside & (beta < 0.0), inside & (beta > 1.0)
        off = (low & (r > allowed)) | (high & (r < -allowed))
        if not (to_low | to_high | off).any():
            if np.abs(r[free]).max(initial=0.0) > allowed:
                beta[free] += solve_exactly(block, r[free])
            return np.clip(beta, 0.0, 1.0)
        low, high = (low & ~off) | to_low, (high & ~off) | to_high
    return None


def _along_path(z: Floats, margins: Floats, start: Floats) -> tuple[Floats, Floats] | None:
    if np.count_nonzero((start > 0.0) & (start < 1.0)) > z.shape[1]:
        return None
    beta = _Path(z, margins, start).follow()
    return None if beta is None or not _is_exact(z, margins, beta) else (beta @ z, beta)


class _Path:
    """The solution while the margins move, see the module.

    State: beta, (n,), and slack, (n,): how far r of each row at a bound is from zero, infinite
    inside. ``inverse``, (m, m), inverts the products of the m rows inside, ``rows``, (m, e), with
    numbers ``order``, (m,).
    """

    def __init__(self, z: Floats, margins: Floats, start: Floats) -> None:
        self.z, self.margins, self.beta, e = z, margins, start.copy(), z.shape[1]
        self.side = np.where(start >= 1.0, 1.0, -1.0)  # sign of r at this bound
        self.inside = int(((start > 0.0) & (start < 1.0)).sum())
        self.order, self.rows = np.empty(e + 1, np.intp), np.empty((e + 1, e))
        self.inverse = np.empty((e + 1, e + 1))

    def follow(self) -> Floats | None:
        """Return beta, (n,), at the end of the path; None if it is too long or not unique."""
        z, margins, beta, m = self.z, self.margins, self.beta, self.inside
        self.order[:m] = free = np.flatnonzero((beta > 0.0) & (beta < 1.0))
        self.rows[:m] = z[free]
        r = margins - z @ (beta @ z)
        slack = self.slack = self.side * r
        off = slack < -ROUNDING * (1.0 + np.abs(margins).max())
        off[free] = False
        change = np.zeros(len(z))  # of the margins, along the path
        slack[~off] = np.maximum(slack[~off], TINY)
        if off.any():
            begin = -slack[off].mean()
            change[off] = self.side[off] * (slack[off] - begin)
            slack[off] = begin
        change[free], slack[free] = r[free], np.inf
        products = self.rows[:m] @ self.rows[:m].T
        try:
            self.inverse[:m, :m] = inverse = np.linalg.inv(products)
        except np.linalg.LinAlgError:
            return None
        if m and np.abs(products @ inverse - np.eye(m)).max() > INVERTED:
            return None  # rows inside depend on each other, as in tables with few values
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if not self._follow(change, PIECES + 2 * z.shape[1]):
                return None
        free, inverse = self.order[: self.inside], self.inverse[: self.inside, : self.inside]
        for _ in range(REFINED):  # the inverse has lost precision on the way
            beta[free] += inverse @ (margins - z @ (beta @ z))[free]
        return np.clip(beta, 0.0, 1.0)

    def _follow(self, change: Floats, most: int) -> bool:
        left = 1.0  # of the path
        for _ in range(most):
            m = self.inside
            free = self.order[:m]
            move = self.inverse[:m, :m] @ change[free]
            drift = self.side * (change - self.z @ (move @ self.rows[:m]))
            inner, outer = _speeds(self.beta[free], move), -drift / self.slack
            k, j = int(inner.argmax()) if m else -1, int(outer.argmax())
            fastest = max(float(outer[j]), float(inner[k]) if m else 0.0)
            step = min(left, 1.0 / fastest) if fastest > 0.0 else left
            self.beta[free] += step * move
            self.slack += step * drift
            if step == left:
                return True
            left -= step
            if m and inner[k] >= outer[j]:
                self._leave(k, 1.0 if move[k] > 0.0 else -1.0)
            else:
                self._enter(j)
        return False

    def _leave(self, k: int, side: float) -> None:
        m = self.inside = self.inside - 1
        row, inverse = self.order[k], self.inverse
        self._stop(row, side)
        column = inverse[: m + 1, k].copy()
        inverse[: m + 1, : m + 1] -= np.multiply.outer(column, column / column[k])
        inverse[k, : m + 1] = inverse[m, : m + 1]  # the last row takes its place
        inverse[: m + 1, k] = inverse[: m + 1, m]
        self.rows[k], self.order[k] = self.rows[m], self.order[m]

    def _stop(self, row: int, side: float) -> None:
        self.beta[row], self.side[row] = max(side, 0.0), side
        self.slack[row] = TINY

    def _enter(self, j: int) -> None:
        """Let a row come off its bound.

        If it depends on the rows inside, u = z^T beta stays fixed while beta moves along the
        dependency until one of these rows reaches a bound.
        """
        new = self.z[j]
        while True:
            m = self.inside
            shares = self.inverse[:m, :m] @ (self.rows[:m] @ new)
            rest = new - shares @ self.rows[:m]
            length = float(rest @ rest)
            if m < len(new) and length > DEPENDENT**2 * float(new @ new):
                break
            way, free = -self.side[j], self.order[:m]
            shares[np.abs(shares) < DEPENDENT * np.abs(shares).max(initial=0.0)] = 0.0
            speeds = _speeds(self.beta[free], -way * shares)
            k = int(speeds.argmax()) if m else -1
            if k < 0 or speeds[k] <= 1.0:
                self.beta[free] -= way * shares
                self._stop(j, way)
                return
            self.beta[free] -= way * shares / speeds[k]
            self.beta[j] += way / speeds[k]
            self._leave(k, 1.0 if way * shares[k] < 0.0 else -1.0)
        inverse = self.inverse
        inverse[:m, :m] += np.multiply.outer(shares, shares / length)
        inverse[m, :m] = inverse[:m, m] = -shares / length
        inverse[m, m] = 1.0 / length
        self.rows[m], self.order[m], self.slack[j] = new, j, np.inf
        self.inside = m + 1


def _speeds(beta: Floats, move: Floats) -> Floats:
    """Return the inverse distance of each to 0 or 1, along ``move``."""
    return np.where(move > 0.0, move / (1.0 - beta), np.where(move < 0.0, -move / beta, 0.0))


def _from_inside(z: Floats, margins: Floats) -> tuple[Floats, Floats]:
    """Solve :func:`minimise_hinge` without a start."""
    ridge, unit = np.ones(z.shape[1]), max(float(np.abs(margins).mean()), TINY)
    u, a, above, below = interior_point(z, margins, ridge, 1.0, PRECISION)
    low, high = a * unit / above, (1.0 - a) * unit / below

    def beta(doubt: float) -> Floats:
        return np.where(low < doubt, 0.0, np.where(high < doubt, 1.0, a))

    found = _exchange(z, margins, beta(1.0), None)
    if found is not None and _is_exact(z, margins, found):
        return found @ z, found
    ended = _along_path(z, margins, beta(1.0))
    return _polish(z, margins, u, beta(DOUBT)) if ended is None else ended


def interior_point(
    rows: Floats, margins: Floats, ridge: Floats, cost: float, precision: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Minimise 1/2 p^T diag(ridge) p + C sum_n max(0, r_n), r = margins - rows p.

    Mehrotra's predictor-corrector on s = t - r >= 0 (multipliers a) and t >= 0 (multipliers C - a),
    t the slack; only equations of p's size are solved. rows are (n, m), margins (n,); ridge, (m,),
    may have zeros; ``precision`` is that of the duality gap, relative to the value. Return p, a, s
    and t.
    """
    n = len(margins)
    unit = max(float(np.abs(margins).mean()), TINY)
    point, a = np.zeros(rows.shape[1]), np.full(n, cost / 2.0)
    t, s = np.maximum(margins, 0.0) + unit, np.maximum(-margins, 0.0) + unit
    for _ in range(STEPS):
        rest, r = cost - a, margins - rows @ point
        primal = t - s - r
        gap = float(a @ s + rest @ t)
        value = 0.5 * float(point @ (ridge * point)) + cost * float(np.maximum(0.0, r).sum())
        if gap <= precision * value and np.abs(primal).max() <= precision * unit:
            break
        scale = s / a + t / rest
        hessian = np.diag(ridge) + rows.T @ (rows / scale[:, None])
        right_s, right_t = -a * s, -rest * t
        for corrector in (False, True):
            pull = right_s / a - right_t / rest - primal
            change = solve_exactly(hessian, rows.T @ (a + pull / scale) - ridge * point)
            da = (pull - rows @ change) / scale
            ds, dt = (right_s - s * da) / a, (right_t + t * da) / rest
            pairs = ((a, da), (rest, -da), (s, ds), (t, dt))  # all must stay non-negative
            step = 1.0 / max(1.0, *(float((-move / now).max()) for now, move in pairs))
            if not corrector:
                ahead = (a + step * da) @ (s + step * ds) + (rest - step * da) @ (t + step * dt)
                centre = (float(ahead) / gap) ** 3 * gap / (2 * n)
                right_s, right_t = centre - a * s - da * ds, centre - rest * t + da * dt
        step *= 0.99
        point, a, s, t = point + step * change, a + step * da, s + step * ds, t + step * dt
    return point, a, s, t


def _violations(beta: Floats, r: Floats) -> Floats:
    """Return how far each margin must move to make beta optimal, (n,)."""
    return np.maximum(np.where(beta < 1.0, r, 0.0), np.where(beta > 0.0, -r, 0.0))


def _polish(z: Floats, margins: Floats, u: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """Solve u = z^T beta with r = 0 in the rows inside, for u and their beta.

    Small singular values, from repeated rows, are dropped. The last of three solves refines.
    """
    rows = np.flatnonzero((beta > 0.0) & (beta < 1.0))
    left, values, right = np.linalg.svd(z[rows], full_matrices=False)
    keep = values > 1e-10 * values.max(initial=0.0)
    left, values, right = left[:, keep], values[keep], right[keep]
    for _ in range(3):
        gap = u - beta @ z
        along = ((margins - z @ u)[rows] @ left) / values + right @ gap
        beta = beta.copy()
        beta[rows] = np.clip(beta[rows] + left @ (along / values), 0.0, 1.0)
        u = u + along @ right - gap
    return u, beta
