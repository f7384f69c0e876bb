"""What releases cost: Renyi divergences, added up, turned into epsilon by ``dp-accounting``.

The curve of a release is its Renyi divergence at :data:`ORDERS`. Curves of releases about the same
records add up, also where a later one depends on what earlier ones told; of disjoint records the
larger one counts.

References
----------
Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
2021, Theorem 3.5 and Corollary 3.6. Mironov, "Renyi Differential Privacy", 2017.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Curve = NDArray[np.float64]

#: Orders of the divergences: whole numbers, as the theorem asks.
ORDERS = np.array([*range(2, 65), *range(68, 129, 4), *range(144, 513, 16), 640, 768, 1024])

_INSTALL = "pip install 'fedkern-flwr[privacy]'"


def skellam_curve(variance: float, euclidean: float, absolute: float) -> Curve:
    """Return the divergences of a vector of integers with Skellam noise.

    At order a: a S2^2 / (2 v) + min(((2 a - 1) S2^2 + 6 S1) / (4 v^2), 3 S1 / (2 v)).

    Parameters
    ----------
    variance : float
        v, of the noise on each integer.
    euclidean, absolute : float
        S2, S1: by how much one record moves the vector, as the root of the sum of squares and as
        the sum of absolute values.
    """
    square = euclidean**2
    extra = ((2.0 * ORDERS - 1.0) * square + 6.0 * absolute) / (4.0 * variance**2)
    bound = np.minimum(extra, 1.5 * absolute / variance)
    return np.asarray(ORDERS * square / (2.0 * variance) + bound)


def epsilon_of(curve: Curve, delta: float) -> float:
    """Return epsilon of a curve at a delta, infinity where there is none.

    Raises
    ------
    OptionError
        ``dp-accounting`` is not installed.
    """
    if not curve.any():
        return 0.0
    if delta <= 0.0:
        return math.inf
    found = _rdp().compute_epsilon(ORDERS.tolist(), curve.tolist(), delta)
    return float(found[0])


def least_variance(
    euclidean: float, absolute: float, epsilon: float, delta: float, *, least: int, times: int = 1
) -> int:
    """Return the least variance with which ``times`` releases cost no more than (epsilon, delta).

    Raises
    ------
    OptionError
        ``dp-accounting`` is not installed, or there is none.
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
                f"no noise gives epsilon {epsilon:g} at delta {delta:g}",
                remedy="use a larger epsilon or delta",
                code="FK-BUDGET-SMALL",
            )
    low = high // 2
    while high - low > max(1, high >> 12):  # a fortieth of a percent
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def check_accountant(party: str = "") -> None:
    """Refuse to begin without the library that accounts; ``party`` is who has it not.

    Raises
    ------
    OptionError
    """
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
