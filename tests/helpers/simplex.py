"""The program of CF-KOMD by a method of its own: projected gradients."""

from __future__ import annotations

import numpy as np


def nearest(point: np.ndarray) -> np.ndarray:
    """Return the nearest point of the simplex."""
    falling = np.sort(point)[::-1]
    levels = (np.cumsum(falling) - 1.0) / np.arange(1, point.size + 1)
    return np.maximum(point - levels[np.flatnonzero(falling > levels)[-1]], 0.0)


def minimise(quadratic: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """Minimise a^T Q a - 2 a^T c over the simplex: accelerated, restarted when it turns back."""
    a = y = np.full(linear.size, 1.0 / linear.size)
    step, t = 1.0 / np.linalg.eigvalsh(quadratic)[-1], 1.0
    for _ in range(30_000):
        new = nearest(y - step * (quadratic @ y - linear))
        if (y - new) @ (new - a) > 0.0:
            t = 1.0
        after = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        y, moved = new + (t - 1.0) / after * (new - a), np.abs(new - a).max()
        a, t = new, after
        if moved < 1e-16:
            break
    return a
