"""Sensitivities of releases, exact Skellam noise, and what releases with noise cost.

A Skellam variable of variance v is the difference of two Poisson variables of mean v / 2. Sums of
independent ones are Skellam, and variances add: whichever parties survive, the noise of a sum has
the same distribution as if one party had drawn it.

References
----------
Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
2021, Theorem 3.5 and Corollary 3.6. Mironov, "Renyi Differential Privacy", 2017. Olver, "Numerical
solution of second-order linear difference equations", 1967.
"""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
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


# -- exact noise, drawn from randomness of the operating system, never from a seed

Integers = NDArray[np.int64]
Words = NDArray[np.uint64]

# The probabilities e^-v I_k(v) are computed with integers. The Bessel functions obey I_(k-1) = (2k
# / v) I_k + I_(k+1). Started far out and run inwards (Miller's algorithm), all terms are positive,
# and with integers of more than 180 bits each step loses less than 2^-180 of its value.
#
# A sample takes a sign and 63 random bits u, and counts the thresholds below u of the distribution
# of the absolute value, kept to 127 bits. If u equals the upper half of a threshold, once in some
# 2^43 samples, 64 more bits decide.
#
# The total variation distance of a sample assumes that the key stream of AES-256 is random. At most
# 2^21 thresholds are wrong by 2^-127 each. A tail of mass below 2^-100 is cut. The recurrence loses
# at most 2^20 times 2^-180. Started at 14 standard deviations, Miller's algorithm has a relative
# error of the square of I at 14 over I at the cut, which is at 12 or less: below e^-48, on a mass
# below 2^-90. The total is below 2^-99.
#: How far the law of one draw is from Skellam's in total variation, at most.
TOTAL_VARIATION = 2.0**-99
#: Bytes of the key of a stream of noise.
KEY_BYTES = 32
#: Variances for which the bound above is argued: standard deviations of 2^8 to 2^16.
LEAST_VARIANCE, MOST_VARIANCE = 1 << 16, 1 << 32

_BEGIN = 1 << 190
_TAIL = 100  # bits: a tail of a mass below 2^-100 is cut
_HALF, _LOW = 1 << 63, (1 << 64) - 1
_BLOCK = 1 << 17  # samples at once: their words stay in the processor's cache


def skellam(variance: int, size: int, key: bytes | None = None) -> Integers:
    """Sample integers from a Skellam distribution with mean zero.

    Parameters
    ----------
    variance : int
        Variance, from 2^16 to 2^32.
    size : int
        Number of samples.
    key : bytes, optional
        32 secret random bytes, for one vector only: the same key gives the same noise. Default: new
        bytes from the operating system.

    Returns
    -------
    ndarray of int64, shape (size,)
        Absolute values are at most :func:`reach`.
    """
    if not LEAST_VARIANCE <= variance <= MOST_VARIANCE:
        raise ValueError(f"variance {variance} is outside {LEAST_VARIANCE}..{MOST_VARIANCE}")
    stream = _stream(secrets.token_bytes(KEY_BYTES) if key is None else key)
    out = np.empty(size, np.int64)
    for start in range(0, size, _BLOCK):
        part = out[start : start + _BLOCK]
        part[:] = _draw(_words(stream, len(part)), *_thresholds(variance), stream)
    return out


def reach(variance: int) -> int:
    """Return the largest absolute value of a sample: 14 standard deviations."""
    return 14 * (math.isqrt(variance) + 1) if variance else 0


def _draw(words: Words, upper: Words, lower: Words, stream: CipherContext) -> Integers:
    bits = words >> np.uint64(1)
    found = np.searchsorted(upper, bits)  # thresholds with a smaller upper half
    ties = np.flatnonzero(upper[np.minimum(found, len(upper) - 1)] == bits)
    for place in ties:
        size, further = int(found[place]), _words(stream, 1)[0]
        while size < len(upper) and upper[size] == bits[place] and lower[size] <= further:
            size += 1
        found[place] = size
    out = found.astype(np.int64)
    np.negative(out, out=out, where=(words & np.uint64(1)).astype(bool))
    return out


@lru_cache(maxsize=8)
def _thresholds(variance: int) -> tuple[Words, Words]:
    """Return P(abs(X) <= k) for k = 0, 1, ... as 63 + 64 bits, without the tail."""
    weights = bessel(variance)
    total = weights[0] + 2 * sum(weights[1:])
    sums = accumulate(weights[1:], lambda below, weight: below + 2 * weight, initial=weights[0])
    end = total - (total >> _TAIL)
    kept = [(below << 127) // total for below in takewhile(lambda below: below < end, sums)]
    return (
        np.array([bound >> 64 for bound in kept], np.uint64),
        np.array([bound & _LOW for bound in kept], np.uint64),
    )


def bessel(variance: int) -> list[int]:
    """Return integers proportional to I_k(variance), k = 0, 1, ..."""
    after, here = 0, _BEGIN
    found = [here]
    for k in range(reach(variance), 0, -1):
        after, here = here, 2 * k * here // variance + after
        found.append(here)
    return found[::-1]


def _stream(key: bytes) -> CipherContext:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()


def _words(stream: CipherContext, count: int) -> Words:
    return np.frombuffer(stream.update(bytes(8 * count)), "<u8").astype(np.uint64, copy=False)


# -- what releases cost: Renyi divergences, added up and converted to epsilon by ``dp-accounting``
#
# The curve of a release is its Renyi divergence at the module's list of alphas. Curves of releases
# about the same records add up, even if a later one depends on earlier results; of disjoint records
# the larger one counts.

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
