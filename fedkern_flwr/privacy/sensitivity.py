"""How far one record moves what is released; the record is substituted, the number of rows public.

All are Euclidean lengths, before rounding: :func:`~fedkern_flwr.privacy.budget.plan_release` adds
what rounding does.
"""

from __future__ import annotations

import math


def ridge(features: int, labels: float) -> float:
    """Return how far a record moves the upper triangle of Phi^T Phi, and Phi^T y.

    A row of Phi has D = ``features`` / 2 pairs of a sine and a cosine, each pair of length
    sqrt(1 / D), so that a row has length one. A record that takes the place of another, with
    u^T v = c, moves Phi^T Phi by u u^T - v v^T, whose squared length is 2 - 2 c^2. The upper
    triangle has half of that and half of what the diagonal has. Of a pair with the inner product
    c_j / D it has two entries, each moved by at most sqrt(1 - c_j^2) / D: all their squares add up
    to at most 2 (1 - c^2) / D. Phi^T y is moved by at most the root of 2 b^2 (1 + abs(c)), for
    labels of length b. The squares together, k (1 - c^2) + 2 b^2 (1 + abs(c)) with k = 1 + 1 / D,
    are largest at abs(c) = b^2 / k, or at 1 if that is more.

    Parameters
    ----------
    features : int
        m = 2 D.
    labels : float
        Bound of the Euclidean length of a row's labels.
    """
    squares, label = 1.0 + 2.0 / features, labels**2
    return 2.0 * labels if label > squares else (squares + label) / math.sqrt(squares)


def confusion() -> float:
    """Return how far a held-out row moves counts in which it stands once."""
    return math.sqrt(2.0)


def errors(outputs: int) -> float:
    """Return how far a held-out row moves the sums of a regression, in units of the labels' bound.

    Of each output: squared errors in [0, 4], absolute ones in [0, 2], labels in [-1, 1] and their
    squares in [0, 1], where predictions are within the bound.
    """
    return math.sqrt(outputs * (4.0**2 + 2.0**2 + 2.0**2 + 1.0**2))
