"""Compute sensitivities, and the cost of releases with noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

# -- how far one record moves what is released; the record is substituted, the number of rows public
#
# All are Euclidean lengths, before rounding: :func:`~fedkern_flwr.privacy.budget.plan_release` adds
# what rounding does.


def ridge(features: int, labels: float) -> float:
    """Return by how much a record moves the upper triangle of Phi^T Phi, and Phi^T y.

    ``features`` is the length m of a row of Phi, which has norm one; ``labels`` bounds the
    Euclidean norm of a row's labels.
    """
    # A row of Phi has D = m / 2 pairs of a sine and a cosine, each of length sqrt(1 / D), so its
    # length is one. Replacing u by v, with u^T v = c, moves Phi^T Phi by u u^T - v v^T, of squared
    # length 2 - 2 c^2. The upper triangle has half of that and half of the diagonal's. A pair with
    # inner product c_j / D has two diagonal entries, each moved by at most sqrt(1 - c_j^2) / D:
    # their squares sum to at most 2 (1 - c^2) / D. Phi^T y moves by at most sqrt(2 b^2 (1 +
    # abs(c))), for labels of length b. The sum of squares, k (1 - c^2) + 2 b^2 (1 + abs(c)) with k
    # = 1 + 1 / D, is largest at abs(c) = b^2 / k, or at 1 if that is more.
    squares, label = 1.0 + 2.0 / features, labels**2
    return 2.0 * labels if label > squares else (squares + label) / math.sqrt(squares)


def confusion() -> float:
    """Return how far a held-out row moves counts that have it once."""
    return math.sqrt(2.0)


def errors(outputs: int) -> float:
    """Return how far a held-out row moves the sums of a regression, in units of the bound."""
    # Per output, for predictions within the bound: squared errors in [0, 4], absolute errors in [0,
    # 2], labels in [-1, 1] and their squares in [0, 1].
    return math.sqrt(outputs * (4.0**2 + 2.0**2 + 2.0**2 + 1.0**2))


# -- what releases cost: Renyi divergences, added up and converted to epsilon by ``dp-accounting``
#
# The curve of a release is its Renyi divergence at the module's list of alphas. Curves of releases
# about the same records add up, even if a later one depends on earlier results; of disjoint records
# the larger one counts.
#
# References
# ----------
# Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
# 2021, Theorem 3.5 and Corollary 3.6. Mironov, "Renyi Differential Privacy", 2017.

Curve = NDArray[np.float64]

#: Alphas of the divergences: integers, as the theorem requires.
ORDERS = np.array([*range(2, 65), *range(68, 129, 4), *range(144, 513, 16), 640, 768, 1024])

_INSTALL = "pip install 'fedkern-flwr[privacy]'"


def skellam_curve(variance: float, euclidean: float, absolute: float) -> Curve:
    """Return the Renyi divergences of a vector of integers with Skellam noise.

    At order a: a S2^2 / (2 v) + min(((2 a - 1) S2^2 + 6 S1) / (4 v^2), 3 S1 / (2 v)).

    Parameters
    ----------
    variance : float
        v, variance of the noise on each integer.
    euclidean, absolute : float
        S2, S1: Euclidean and absolute length by which one record moves the vector.
    """
    square = euclidean**2
    extra = ((2.0 * ORDERS - 1.0) * square + 6.0 * absolute) / (4.0 * variance**2)
    bound = np.minimum(extra, 1.5 * absolute / variance)
    return np.asarray(ORDERS * square / (2.0 * variance) + bound)


def epsilon_of(curve: Curve, delta: float) -> float:
    """Return epsilon of a curve at a delta, infinity if there is none."""
    if not curve.any():
        return 0.0
    if delta <= 0.0:
        return math.inf
    found = _rdp().compute_epsilon(ORDERS.tolist(), curve.tolist(), delta)
    return float(found[0])


def least_variance(
    euclidean: float, absolute: float, epsilon: float, delta: float, *, least: int, times: int = 1
) -> int:
    """Return the least variance with which ``times`` releases cost at most (epsilon, delta).

    Raises
    ------
    OptionError
        There is none, or ``dp-accounting`` is not installed.
    """

    def fits(variance: int) -> bool:
        one = skellam_curve(variance, euclidean, absolute)
        return epsilon_of(times * one, delta) <= epsilon

    high = max(least, 1)
    if fits(high):
        return high
    while not fits(high):
        high *= 2
        if high > 1 << 200:
            raise OptionError(
                f"no noise gives epsilon {epsilon:g} at delta {delta:g}", code="FK-BUDGET-SMALL"
            )
    low = high // 2
    while high - low > max(1, high >> 12):  # a fortieth of a percent
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def check_accountant(party: str = "") -> None:
    """Raise OptionError if ``dp-accounting`` is not installed at ``party``."""
    _rdp(party)


def _rdp(party: str = "") -> Any:
    try:
        from dp_accounting import rdp
    except ImportError:
        raise OptionError(
            "differential privacy needs the package dp-accounting",
            remedy=f"run {_INSTALL}",
            party=party,
            code="FK-PACKAGE-MISSING",
        ) from None
    return rdp
