"""Joining the rows of several parties by keyed hashes of their ids.

Ids never leave a party. Parties that share records hold a common secret, the alignment key, and
send HMAC-SHA256 of each id under a key of the session; the server, which does not have the secret,
sees pseudonyms that are fresh in every run and equal where ids are equal.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import OptionError

Hashes = NDArray[np.uint64]  # shape (n, 2)
Positions = NDArray[np.int32]

KEY_BYTES = 16  # least length of an alignment key


def hash_ids(ids: Sequence[Any] | NDArray[Any], key: bytes, session: str) -> Hashes:
    """Return the pseudonyms of ids.

    Parameters
    ----------
    ids : sequence, length n
        Record ids; their text counts, so that 7 and "7" are the same.
    key : bytes
        The alignment key.
    session : str
        Name of the run: pseudonyms of two runs cannot be linked.

    Returns
    -------
    ndarray of uint64, shape (n, 2)
    """
    own = hmac.digest(key, f"fedkern-flwr ids/{session}".encode(), "sha256")
    texts = ids.tolist() if isinstance(ids, np.ndarray) and ids.dtype.kind == "U" else map(str, ids)
    digests = [hmac.digest(own, text.encode(), "sha256")[:16] for text in texts]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def sort_order(hashes: Hashes) -> NDArray[np.intp]:
    """Return the order that sorts rows by pseudonym: it tells nothing about the table's order."""
    return np.lexsort((hashes[:, 1], hashes[:, 0]))


def find_rows(wanted: Hashes, known: Hashes) -> Positions:
    """Return the position in ``known`` of each of the ``wanted`` pseudonyms, -1 where it is not.

    Parameters
    ----------
    wanted, known : ndarray of uint64, shapes (n, 2) and (k, 2)
        Without duplicates in ``known``.

    Returns
    -------
    ndarray of int32, shape (n,)
    """
    if not len(known):
        return np.full(len(wanted), -1, np.int32)
    order = np.argsort(known[:, 0], kind="stable")
    place = np.searchsorted(known[order, 0], wanted[:, 0])
    found = order[np.minimum(place, len(known) - 1)]
    # two ids agree in the first 64 bits with probability 2^-64: then one of them is not found
    equal = (known[found] == wanted).all(axis=1)
    return np.where(equal, found, -1).astype(np.int32)


def count_duplicates(hashes: Hashes) -> int:
    """Return how many rows have a pseudonym that came before."""
    sorted_hashes = hashes[sort_order(hashes)]
    return int((sorted_hashes[1:] == sorted_hashes[:-1]).all(axis=1).sum())


def check_alignment_key(key: bytes) -> None:
    """Refuse an alignment key that can be guessed.

    Raises
    ------
    OptionError
    """
    if len(key) < KEY_BYTES:
        raise OptionError(
            f"the alignment key has {len(key)} bytes, at least {KEY_BYTES} are needed",
            remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))' and "
            "give it to all parties that share records, not to the server",
        )
