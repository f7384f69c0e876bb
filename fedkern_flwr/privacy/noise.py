"""Draw exact Skellam noise from randomness of the operating system, never from a seed.

A Skellam variable of variance v is the difference of two Poisson variables of mean v / 2. Sums of
independent ones are Skellam, and variances add: whichever parties survive, the noise of a sum has
the same distribution as if one party had drawn it.

References
----------
Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private Federated Learning",
2021. Olver, "Numerical solution of second-order linear difference equations", 1967.
"""

from __future__ import annotations

import math
import secrets
from functools import lru_cache
from itertools import accumulate, takewhile

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

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
