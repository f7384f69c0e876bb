"""Which noise a party adds to a sum: the same to the same release, and to no other.

A sum that is repeated, because a party or a message was lost, must have the noise that it had:
else whoever sees both has the mean of two noises. And noise that has been added to one release must
never be added to another: their difference would have none.

So the key of the noise is a keyed digest of the question and of the very numbers that answer it,
under a secret of the run that was drawn from the operating system and is kept until the run is
over. The same answer to the same question has the same noise, byte for byte. Another question has
noise of its own and is another release, which is charged, also if the numbers are the same: else a
server would learn without noise whether they are. And so are other numbers, which would be told by
the difference of two sums with one noise. What the question was, a method says by :func:`asked`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..wire.sums import Order
from .encoding import RingArray
from .membership import Cohort

KEY_BYTES = 32


def asked(*public: str | bytes | NDArray[Any]) -> str:
    """Return a short name of a question: of all that is public on which its answer depends."""
    found = hashlib.blake2b(digest_size=16)
    for part in public:
        known: Any = part.encode() if isinstance(part, str) else part
        encoded = memoryview(known)
        found.update(f"{encoded.nbytes}/".encode())
        found.update(encoded)
    return found.hexdigest()


def noise_key(
    secret: bytes, order: Order, cohort: Cohort, release: str, numbers: RingArray
) -> bytes:
    """Return the key of the noise of a party.

    Parameters
    ----------
    secret : bytes
        Of the run and the party.
    order : Order
        Of the sum; what follows a # in its name, its number and its masks are those of an attempt.
    cohort : Cohort
        The parties among whom the sum is made: the difference of two sums with one noise over
        others is that of the parties in which they differ. Its number is the server's to choose.
    release : str
        The question: :func:`asked`.
    numbers : ndarray of unsigned integers
        What the noise is added to, before it is masked.
    """
    name = order.name.partition("#")[0]
    among = [*cohort.members, cohort.threshold, order.receiver]
    terms = [among, name, release, order.length, order.bits, order.noise, order.fraction]
    found = hashlib.blake2b(json.dumps(terms).encode(), key=secret, digest_size=KEY_BYTES)
    found.update(b"/" + numbers.tobytes())
    return found.digest()


def digest_of(values: NDArray[Any]) -> bytes:
    """Return a digest of values; of one zero, as often as a sum is long, an empty one."""
    if values.strides == (0,):
        return b""
    return hashlib.sha256(np.ascontiguousarray(values).data).digest()


def value_mark(order: Order, told: bytes) -> str:
    """Return the mark of what a party adds to a sum, however it is encoded; of nothing, none.

    ``told`` is the digest of the values.
    """
    if not told:
        return ""
    terms = [order.name.partition("#")[0], order.length, order.receiver]
    found = hashlib.blake2b(json.dumps(terms).encode(), digest_size=8)
    found.update(told)
    return found.hexdigest()
