"""Derive seeds and uniform numbers by hashing, equal on every engine and without hidden state.

For experiments and public randomness only; never for secrets or masks.
"""

from __future__ import annotations

import hashlib

_SEED_BITS, _MANTISSA = 63, 53


def derive_seed(seed: int, *labels: int | str) -> int:
    """Return a 63-bit seed for the purpose named by ``labels``.

    >>> derive_seed(0, "features", 1) == derive_seed(0, "features", 1)
    True
    """
    text = "/".join(map(str, (seed, *labels)))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _SEED_BITS)


def uniform(seed: int, *labels: int | str) -> float:
    """Return a uniform number in [0, 1), a function of its arguments alone."""
    return (derive_seed(seed, *labels) >> (_SEED_BITS - _MANTISSA)) / (1 << _MANTISSA)
