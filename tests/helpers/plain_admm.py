"""Plain loops of what the documents say of HierarchicalSVM, with a plain local solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sklearn.svm import SVC

Array = np.ndarray


def blobs(n: int = 90, d: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Return two classes that overlap, in columns of different units, not centred."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    x = rng.standard_normal((n, d)) + 0.7 * y[:, None] * (np.arange(d) < 3)
    return x * np.geomspace(0.3, 6.0, d) + np.arange(d), y


def deal(rows: int, users: int, seed: int = 1) -> list[Array]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), users)


def standard(x: Array) -> Array:
    return (x - x.mean(0)) / x.std(0)


def least(x: Array, y: Array) -> float:
    """Return the least 1/2 |w|^2 + sum of hinge losses."""
    found = SVC(kernel="linear", C=1.0, tol=1e-9).fit(x, y)
    losses = np.maximum(0.0, 1.0 - y * found.decision_function(x))
    return float(0.5 * (found.coef_**2).sum() + losses.sum())


def local_hinge(x: Array, y: Array, v: Array, penalty: Array, c: float) -> Array:
    """argmin C sum hinge + 1/2 (w - v)^T diag(penalty) (w - v): interior point on the dual box."""
    scale = np.sqrt(1.0 / penalty)
    z, b = y[:, None] * x * scale, 1.0 - y * (x @ v)
    q, a = z @ z.T, np.full(len(y), c / 2.0)
    low, high = np.ones(len(y)), np.ones(len(y))
    for _ in range(100):
        gap = float(low @ a + high @ (c - a))
        rest = q @ a - b - low + high
        if gap < 1e-15 * c * len(y) and np.abs(rest).max() < 1e-13 * (1.0 + np.abs(b).max()):
            break
        mu = 0.1 * gap / (2 * len(y))
        right = -(q @ a - b) + mu / a - mu / (c - a)
        da = np.linalg.solve(q + np.diag(low / a + high / (c - a)), right)
        dlow = mu / a - low - low / a * da
        dhigh = mu / (c - a) - high + high / (c - a) * da
        pairs = [(a, da), (c - a, -da), (low, dlow), (high, dhigh)]
        step = min(1.0, 0.99 / max(1e-300, *(float((-d / p).max()) for p, d in pairs)))
        a, low, high = a + step * da, low + step * dlow, high + step * dhigh
    return v + scale * (z.T @ a)


def augment(x: Array, y: Array, users: int) -> tuple[list[Array], list[Array]]:
    """Return users' rows in standardised coordinates with a constant column, and their labels."""
    rows = np.column_stack([standard(x), np.ones(len(x))])
    parts = deal(len(x), users)
    return [rows[p] for p in parts], [y[p] for p in parts]


def rise(t: int) -> float:
    return 20.0 ** (min(t, 40) / 40)


def plain_admm(
    x: Array,
    y: Array,
    sizes: Sequence[int],
    iterations: int,
    *,
    c: float = 1.0,
    a: float = 1.7,
    first: Sequence[float] | None = None,
    sigma: float | None = None,
    grow: Callable[[int], float] = rise,
    q: Array | None = None,
) -> list[Array]:
    """Two-block ADMM as the module docstring of consensus.py has it; return z of each iteration."""
    users, d = sum(sizes), x.shape[1] + 1
    xs, ys = augment(x, y, users)
    group = np.repeat(np.arange(len(sizes)), sizes)
    first = [c] * len(sizes) if first is None else list(first)
    q = np.append(np.ones(d - 1), 0.0) if q is None else q
    zi, s = np.zeros((len(sizes), d)), np.zeros((len(sizes), d))
    r, z, out = np.zeros((users, d)), np.zeros(d), []
    for t in range(iterations):
        sig, nxt = (
            float(np.mean(first)) * grow(u) * users / len(sizes) if sigma is None else sigma
            for u in (t, t + 1)
        )
        before, h = zi.copy(), np.zeros((users, d))
        rho = [p * grow(t) for p in first]
        for j, i in enumerate(group):
            w = local_hinge(xs[j], ys[j], before[i] - r[j], np.full(d, rho[i]), c)
            h[j] = a * w + (1 - a) * before[i]
        for i in range(len(sizes)):
            mine = group == i
            hi = a * z + (1 - a) * before[i]
            top = rho[i] * (h[mine] + r[mine]).sum(0) + sig * (hi - s[i])
            zi[i] = top / (rho[i] * mine.sum() + sig)
            r[mine] += h[mine] - zi[i]
            s[i] += zi[i] - hi
        r *= grow(t) / grow(t + 1)
        s *= sig / nxt
        z = nxt * (zi + s).sum(0) / (nxt * len(sizes) + q)
        out.append(z)
    return out


def plain_central(x: Array, y: Array, users: int, iterations: int) -> list[Array]:
    d = x.shape[1] + 1
    xs, ys = augment(x, y, users)
    q, z, r, out = np.append(np.ones(d - 1), 0.0), np.zeros(d), np.zeros((users, d)), []
    for t in range(iterations):
        rho = rise(t)
        w = [local_hinge(xs[j], ys[j], z - r[j], np.full(d, rho), 1.0) for j in range(users)]
        h = 1.7 * np.array(w) - 0.7 * z
        z = rho * (h + r).sum(0) / (rho * users + q)
        r = (r + h - z) * rho / rise(t + 1)
        out.append(z)
    return out
