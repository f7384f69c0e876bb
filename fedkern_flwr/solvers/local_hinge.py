"""The hinge's local problem, in the dual: 0 <= beta <= 1 with u = z^T beta.

Warm from the last beta by exchanging rows between the bounds and the inside: those inside get
margin 1 exactly, a row whose beta leaves [0, 1] goes to that bound, one whose margin is on the
wrong side comes off its bound. Mostly two solves of a few rows are enough.

Where this does not end, by the proximal point method: the next beta maximises the dual minus
|b - beta|^2 / (2 tau), and tau grows. Each maximisation is the minimisation of a piecewise
quadratic, once differentiable function of u by semismooth Newton steps with a line search; only
rows with 0 < beta < 1 enter the Newton matrix. A solve for exactly these rows (tau infinite) ends
it: their margins are 1 and u = z^T beta, both to rounding.

References
----------
Kunisch and Rendl, "An Infeasible Active Set Method for Quadratic Problems with Simple Bounds",
2003. Rockafellar, "Augmented Lagrangians and Applications of the Proximal Point Algorithm in
Convex Programming", 1976. Li, Sun and Toh, "A Highly Efficient Semismooth Newton Augmented
Lagrangian Method for Solving Lasso Problems", 2018. Keerthi and DeCoste, "A Modified Finite Newton
Method for Fast Solution of Large Scale Linear SVMs", 2005 (line search and active rows).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .newton import ROUNDING, line_search, reduced, solve_shifted

Floats = NDArray[np.float64]

EXCHANGES = 20  # most of rows between the bounds and the inside
GROWTH = 10.0  # of tau after each step of the proximal point method
NEWTON_STEPS = 15  # most of one step of the proximal point method; tau shrinks after these


def minimise_hinge(
    z: Floats, margins: Floats, start: Floats | None, gram: Floats | None
) -> tuple[Floats, Floats]:
    """Minimise sum_n max(0, r_n) + 1/2 |u|^2, r = margins - z u.

    z is (n, e), margins (n,), start the first beta, (n,), between 0 and 1, or None, gram z z^T or
    None. Return u, (e,), and beta, (n,), between 0 and 1, with u = z^T beta.
    """
    n = len(z)
    columns = np.sqrt(np.einsum("ij,ij->j", z, z))
    unit = 1.0 + np.abs(margins).max()
    found = _exchange(z, margins, np.zeros(n) if start is None else start, gram)
    if found is not None:
        u = found @ z
        wrong = _violations(found, margins - z @ u)
        if wrong.max() <= ROUNDING * (unit + columns @ np.abs(u) / np.sqrt(n)):
            return u, found
    basis, z = reduced(z)
    u, beta = _proximal_points(z, margins, start)
    return u if basis is None else basis @ u, beta


def _exchange(z: Floats, margins: Floats, beta: Floats, gram: Floats | None) -> Floats | None:
    """Exchange rows between the bounds and the inside, see the top; return beta, (n,), or None."""
    low, high = beta <= 0.0, beta >= 1.0
    allowed = ROUNDING * (1.0 + np.abs(margins).max())
    for _ in range(EXCHANGES):
        free = np.flatnonzero(~(low | high))
        if len(free) > z.shape[1]:
            return None
        block = z[free] @ z[free].T if gram is None else gram[np.ix_(free, free)]
        beta = np.where(high, 1.0, 0.0)
        beta[free] = solve_shifted(block, 0.0, (margins - z @ (beta @ z))[free])
        r = margins - z @ (beta @ z)
        inside = ~(low | high)
        to_low, to_high = inside & (beta < 0.0), inside & (beta > 1.0)
        off = (low & (r > allowed)) | (high & (r < -allowed))
        if not (to_low | to_high | off).any():
            beta[free] += solve_shifted(block, 0.0, r[free])  # refines
            return np.clip(beta, 0.0, 1.0)
        low, high = (low & ~off) | to_low, (high & ~off) | to_high
    return None


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
