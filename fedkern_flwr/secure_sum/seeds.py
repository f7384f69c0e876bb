"""Commitments to seeds, and seeds opened from shares that may be forged."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from ..errors import SumError
from .shamir import reconstruct_seed

COMMITMENT_BYTES = 16


def commitment(label: bytes, seed: bytes) -> bytes:
    """Return a digest of a 32-byte seed, bound to its sum."""
    return hashlib.sha256(b"seed of " + label + b"|" + seed).digest()[:COMMITMENT_BYTES]


def open_seed(
    shares: Mapping[int, bytes], threshold: int, label: bytes, committed: bytes
) -> tuple[bytes, int | None]:
    """Reconstruct a seed and check it against its owner's commitment.

    Parameters
    ----------
    shares : dict
        Point -> share, at least ``threshold``.
    threshold : int
        Shares needed.
    label, committed : bytes
        Label of the sum, what its owner committed to.

    Returns
    -------
    (bytes, int or None)
        The seed, and the point of a forged share that was found and left out.

    Raises
    ------
    SumError
        The shares do not give the seed, whichever one of them is left out.
    """
    points = sorted(shares)
    attempts: list[int | None] = [None]
    if len(points) > threshold:
        attempts += points[:threshold]  # only these were used, so the forged one is among them
    for left_out in attempts:
        used = [x for x in points if x != left_out][:threshold]
        seed = reconstruct_seed({x: shares[x] for x in used})
        if seed is not None and hmac.compare_digest(commitment(label, seed), committed):
            return seed, left_out
    raise SumError("shares do not fit the seed that its owner committed to", code="FK-SUM-SEED")
