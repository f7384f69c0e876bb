"""Shamir's secret sharing of 32-byte seeds over a prime field.

A seed s is a field element; its share at x is f(x) for a random polynomial f of degree t - 1 with
f(0) = s. Any t shares give s, fewer say nothing about it. Shares take 33 bytes.

Shamir, "How to share a secret", Communications of the ACM 22(11), 1979.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

#: The least prime above 2^256: every 32-byte seed is a field element.
PRIME = 2**256 + 297
SEED_BYTES, SHARE_BYTES = 32, 33
_RANDOM_BYTES = 48  # reduced modulo the prime: within 2^-127 of uniform


def share_seeds(seeds: Sequence[bytes], points: Sequence[int], threshold: int) -> list[bytes]:
    """Share several seeds at once.

    Parameters
    ----------
    seeds : sequence of bytes
        32 bytes each.
    points : sequence of int
        Distinct positive points x, one per holder.
    threshold : int
        t, shares needed to reconstruct.

    Returns
    -------
    list of bytes
        Per point, the shares of all seeds joined, 33 bytes each.

    Notes
    -----
    All polynomials are evaluated together by Horner's rule: a long integer holds one slot per
    seed, wide enough that no slot overflows before the single reduction modulo the prime.
    """
    count = len(seeds)
    growth = threshold * max(points).bit_length()
    slot = _RANDOM_BYTES + growth // 8 + 2
    coefficients = np.zeros((threshold, count, slot), np.uint8)
    noise = secrets.token_bytes((threshold - 1) * count * _RANDOM_BYTES)
    coefficients[:-1, :, :_RANDOM_BYTES] = np.frombuffer(noise, np.uint8).reshape(
        threshold - 1, count, _RANDOM_BYTES
    )
    coefficients[-1, :, :SEED_BYTES] = np.frombuffer(b"".join(seeds), np.uint8).reshape(count, -1)
    packed = [int.from_bytes(row.tobytes(), "little") for row in coefficients]
    out = []
    for x in points:
        value = 0
        for coefficient in packed:
            value = value * x + coefficient
        raw = value.to_bytes(count * slot, "little")
        slots = (raw[k : k + slot] for k in range(0, count * slot, slot))
        out.append(
            b"".join(
                (int.from_bytes(s, "little") % PRIME).to_bytes(SHARE_BYTES, "little") for s in slots
            )
        )
    return out


def reconstruct_seed(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the seed from exactly t shares by point; None when they do not belong together."""
    points = tuple(sorted(shares))
    total = sum(
        weight * int.from_bytes(shares[x], "little")
        for weight, x in zip(_weights_at_zero(points), points, strict=True)
    )
    seed = total % PRIME
    return seed.to_bytes(SEED_BYTES, "little") if seed < 2**256 else None


def cut(data: bytes, size: int) -> list[bytes]:
    """Cut what was joined into pieces of ``size`` bytes, at least 1."""
    return [data[k : k + size] for k in range(0, len(data), size)]


@lru_cache(maxsize=1024)
def _weights_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's weights for the value at 0."""
    weights = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
