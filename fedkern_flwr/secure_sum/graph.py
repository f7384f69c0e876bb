"""Who masks with whom: the complete graph for few parties, a random regular graph for many.

Up to 30 parties everybody masks with everybody. Above, the parties are put on a circle in an order
that a hash of all public keys decides, and each masks with its k nearest on the circle (k/2 to
either side), as in Bell et al. 2020, section 3. k grows with the logarithm of the number of parties
such that, with a fifth of the parties colluding and a tenth dropping out, no neighbourhood loses
its secrecy or its recovery but with negligible probability (see docs/security.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

COMPLETE_UP_TO = 30
_SIZES, _DEGREES = (50, 100, 200, 1000), (16, 32, 46, 68)
_SHARE = 0.65  # of k: shares that open a seed, of k neighbours and the party itself


def degree(parties: int) -> int:
    """Return k, the number of parties that one masks with."""
    if parties <= COMPLETE_UP_TO:
        return parties - 1
    if parties > _SIZES[-1]:
        slope = (_DEGREES[-1] - _DEGREES[-2]) / math.log2(_SIZES[-1] / _SIZES[-2])
        k = _DEGREES[-1] + slope * math.log2(parties / _SIZES[-1])
    else:
        k = float(np.interp(math.log2(parties), np.log2(_SIZES), _DEGREES))
    return 2 * math.ceil(k / 2)


def default_threshold(parties: int) -> int:
    """Return t = floor(2 N / 3) + 1, the least number of survivors of a sum."""
    return 2 * parties // 3 + 1


def share_threshold(parties: int, threshold: int) -> int:
    """Return how many holders must reveal their shares to reconstruct a seed of a party."""
    k = degree(parties)
    return threshold if k == parties - 1 else math.ceil(_SHARE * k)


def fewest_colluders(parties: int, threshold: int) -> int:
    """Return the bound on colluders: fewer cannot open a vector, whatever survivors they are told.

    It holds where all identities are pinned, for colluders in the worst places; see :mod:`.votes`.
    """
    return min(2 * threshold - parties, share_threshold(parties, threshold) - 1)


@lru_cache(maxsize=64)
def neighbourhoods(members: tuple[int, ...], digest: bytes) -> dict[int, tuple[int, ...]]:
    """Return party -> the parties that it masks with, in ascending order.

    Parameters
    ----------
    members : tuple of int
        Partitions, ascending.
    digest : bytes
        Digest of the roster, which no party can foresee.
    """
    k = degree(len(members))
    if k == len(members) - 1:
        return {i: tuple(j for j in members if j != i) for i in members}
    circle = sorted(members, key=lambda i: hashlib.sha256(digest + b"|%d" % i).digest())
    return {
        i: tuple(sorted(_beside(circle, position, k // 2))) for position, i in enumerate(circle)
    }


def _beside(circle: Sequence[int], position: int, reach: int) -> list[int]:
    n = len(circle)
    return [circle[(position + step) % n] for step in range(-reach, reach + 1) if step]
