"""The hinge's local problem, in the dual: 0 <= beta <= 1 with u = z^T beta.

Warm from the last beta by exchanging rows between the bounds and the inside: those inside get
margin 1 exactly, a row whose beta leaves [0, 1] goes to that bound, one whose margin is on the
wrong side comes off its bound. Mostly two solves of a few rows are enough.

Where this does not end, along a path: the margins move from values for which the last beta is
optimal to those that are asked for, and the solution moves with them, piece by piece along straight
lines. At the end of a piece one row comes to a bound or off it. From one iteration of ADMM to the
next there are some five to thirty of these.

Without a last beta, or where the path is too long, by the proximal point method: the next beta
maximises the dual minus |b - beta|^2 / (2 tau), and tau grows. Each maximisation is the
minimisation of a piecewise quadratic, once differentiable function of u by semismooth Newton steps
with a line search; only rows with 0 < beta < 1 enter the Newton matrix. The path from there ends
it, or a solve for exactly these rows (tau infinite): their margins are 1 and u = z^T beta, both to
rounding.

References
----------
Kunisch and Rendl, "An Infeasible Active Set Method for Quadratic Problems with Simple Bounds",
2003. Best, "An Algorithm for the Solution of the Parametric Quadratic Programming Problem", 1996
(path). Rockafellar, "Augmented Lagrangians and Applications of the Proximal Point Algorithm in
Convex Programming", 1976. Li, Sun and Toh, "A Highly Efficient Semismooth Newton Augmented
Lagrangian Method for Solving Lasso Problems", 2018. Keerthi and DeCoste, "A Modified Finite Newton
Method for Fast Solution of Large Scale Linear SVMs", 2005 (line search and active rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .losses import ROUNDING, line_search, reduced, solve_exactly, solve_shifted

Floats = NDArray[np.float64]

EXCHANGES = 10  # most of rows between the bounds and the inside
INVERTED = 1e-6  # error of an inverse from which a path can begin
DEPENDENT = 1e-7  # relative length of what is left of a row that depends on others
PIECES = 50  # most of a path, and two for each column
REFINED = 3  # times that the end of a path is
GROWTH = 10.0  # of tau after each step of the proximal point method
NEWTON_STEPS = 15  # most of one step of the proximal point method; tau shrinks after these


def minimise_hinge(
    z: Floats, margins: Floats, start: Floats | None, gram: Floats | None
) -> tuple[Floats, Floats]:
    """Minimise sum_n max(0, r_n) + 1/2 |u|^2, r = margins - z u.

    z is (n, e), margins (n,), start the first beta, (n,), between 0 and 1, or None, gram z z^T or
    None. Return u, (e,), and beta, (n,), between 0 and 1, with u = z^T beta.
    """
    found = _exchange(z, margins, np.zeros(len(z)) if start is None else start, gram)
    if found is not None and _is_exact(z, margins, found):
        return found @ z, found
    basis, z = reduced(z)
    ended = None if start is None else _along_path(z, margins, start)
    u, beta = _proximal_points(z, margins, start) if ended is None else ended
    return u if basis is None else basis @ u, beta


def nearest(z: Floats, margins: Floats, starts: Sequence[Floats] | Floats) -> Floats | None:
    """Return the one of several betas, (n,), whose rows are least on the wrong side; or None."""
    if len(starts) < 2:
        return starts[0] if len(starts) else None
    far = [_violations(beta, margins - z @ (beta @ z)).sum() for beta in starts]
    return starts[int(np.argmin(far))]


def _is_exact(z: Floats, margins: Floats, beta: Floats) -> bool:
    """Tell whether beta, (n,), is optimal to rounding."""
    u, allowed = beta @ z, 1.0 + np.abs(margins).max()
    wrong = _violations(beta, margins - z @ u).max()
    if wrong > ROUNDING * allowed:  # else the lengths of the columns are of no matter
        columns = np.sqrt(np.einsum("ij,ij->j", z, z))
        allowed += columns @ np.abs(u) / np.sqrt(len(z))
    return bool(wrong <= ROUNDING * allowed)


def _exchange(z: Floats, margins: Floats, beta: Floats, gram: Floats | None) -> Floats | None:
    """Exchange rows between the bounds and the inside, see the top; return beta, (n,), or None."""
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
    """Return u, (e,), and beta, (n,), where the path from a beta comes to the solution."""
    if np.count_nonzero((start > 0.0) & (start < 1.0)) > z.shape[1]:
        return None
    beta = _Path(z, margins, start).follow()
    return None if beta is None or not _is_exact(z, margins, beta) else (beta @ z, beta)


class _Path:
    """The solution while the margins move to those that are asked for, see the top.

    At a time the solution has beta, (n,), and slack, (n,): how far the r of each row at a bound is
    from zero, infinite for the rows inside. ``inverse``, (m, m), is that of the products of the m
    rows inside, ``rows``, (m, e), which are those of the numbers ``order``, (m,).
    """

    def __init__(self, z: Floats, margins: Floats, start: Floats) -> None:
        self.z, self.margins, self.beta, e = z, margins, start.copy(), z.shape[1]
        self.side = np.where(start >= 1.0, 1.0, -1.0)  # sign of r at this bound
        self.inside = int(((start > 0.0) & (start < 1.0)).sum())
        self.order, self.rows = np.empty(e + 1, np.intp), np.empty((e + 1, e))
        self.inverse = np.empty((e + 1, e + 1))

    def follow(self) -> Floats | None:
        """Return beta, (n,), at the end of the path; None if it is too long, or not unique."""
        z, margins, beta, m = self.z, self.margins, self.beta, self.inside
        self.order[:m] = free = np.flatnonzero((beta > 0.0) & (beta < 1.0))
        self.rows[:m] = z[free]
        r = margins - z @ (beta @ z)
        slack = self.slack = self.side * r
        off = slack < -ROUNDING * (1.0 + np.abs(margins).max())
        off[free] = False
        change = np.zeros(len(z))  # of the margins, along the path
        slack[~off] = np.maximum(slack[~off], np.finfo(np.float64).tiny)
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
            return None  # rows inside depend on each other, as in tables of few values
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if not self._follow(change, PIECES + 2 * z.shape[1]):
                return None
        free, inverse = self.order[: self.inside], self.inverse[: self.inside, : self.inside]
        for _ in range(REFINED):  # the inverse has become less exact on the way
            beta[free] += inverse @ (margins - z @ (beta @ z))[free]
        return np.clip(beta, 0.0, 1.0)

    def _follow(self, change: Floats, most: int) -> bool:
        """Go to the end of the path, if it has at most so many pieces."""
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
        """Bring the k-th of the rows inside to a bound."""
        m = self.inside = self.inside - 1
        row, inverse = self.order[k], self.inverse
        self._stop(row, side)
        column = inverse[: m + 1, k].copy()
        inverse[: m + 1, : m + 1] -= np.multiply.outer(column, column / column[k])
        inverse[k, : m + 1] = inverse[m, : m + 1]  # the last takes its place
        inverse[: m + 1, k] = inverse[: m + 1, m]
        self.rows[k], self.order[k] = self.rows[m], self.order[m]

    def _stop(self, row: int, side: float) -> None:
        """Have a row stay at a bound."""
        self.beta[row], self.side[row] = max(side, 0.0), side
        self.slack[row] = np.finfo(np.float64).tiny

    def _enter(self, j: int) -> None:
        """Let a row come off its bound.

        If it depends on the rows inside, u = z^T beta stays as it is while beta moves along what
        the rows have in common, until the first of them, or this one, is at a bound.
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
    """Return the inverse of how far each can go before it is at 0 or 1."""
    return np.where(move > 0.0, move / (1.0 - beta), np.where(move < 0.0, -move / beta, 0.0))


def _proximal_points(z: Floats, margins: Floats, start: Floats | None) -> tuple[Floats, Floats]:
    """Do the same as :func:`minimise_hinge` by the proximal point method."""
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
        if (ended := _along_path(z, margins, beta)) is not None:
            return ended
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
            inverse = solve_shifted(free @ free.T, 1.0 / tau, free @ gradient)
            du = inverse @ free - gradient
        else:
            du = solve_shifted(tau * (free.T @ free), 1.0, -gradient)
        dr = z @ du
        length = line_search(_hinge_slope(u, du, q, dr, tau), float(gradient @ du))
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
