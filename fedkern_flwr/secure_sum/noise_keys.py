"""Which noise a party adds to a sum: the same to the same release, and to no other.

A sum that is repeated, because a party or a message was lost, must have the noise that it had:
else whoever sees both has the mean of two noises. And noise that has been added to one release must
never be added to another: their difference would have none.

So the key of the noise is a keyed digest of the release and of the very numbers that it is added
to, under a secret of the run that was drawn from the operating system and is kept until the run is
over. To the same numbers of the same release the same noise is added, byte for byte. What differs
in a single digit gets noise of its own, and is another release, which is charged. Which release it
is, the method says where the same numbers may be right twice, such as the zeros of a party without
rows in one round and in the next.
"""

from __future__ import annotations

import hashlib
import json

from ..wire.sums import Order
from .encoding import RingArray

KEY_BYTES = 32


def noise_key(secret: bytes, order: Order, release: str, numbers: RingArray) -> bytes:
    """Return the key of the noise of a party.

    Parameters
    ----------
    secret : bytes
        Of the run and the party.
    order : Order
        Of the sum; what follows a # in its name, its number and its masks are those of an attempt.
    release : str
        Which of the releases of that name it is.
    numbers : ndarray of unsigned integers
        What the noise is added to, before it is masked.
    """
    name = order.name.partition("#")[0]
    terms = [order.cohort, name, release, order.length, order.bits, order.noise, order.fraction]
    found = hashlib.blake2b(json.dumps(terms).encode(), key=secret, digest_size=KEY_BYTES)
    found.update(b"/" + numbers.tobytes())
    return found.digest()
