"""Match the rows of several parties by keyed hashes of their ids.

Ids are never sent. Parties that share records have a common secret, the alignment key. They send
HMAC-SHA256 of each id under a key of the session. The server, which lacks the secret, sees
pseudonyms: new in every run, and equal for equal ids. Without a common secret, parties first agree
on a secret tag per id (:mod:`.private_intersection`), which replaces the key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checkpoint import load_arrays, pack_arrays, write_atomically
from .errors import CheckpointError, OptionError, TableError

Ids = Sequence[Any] | NDArray[Any]
Hashes = NDArray[np.uint64]  # shape (n, 2)
Positions = NDArray[np.int32]

KEY_BYTES = 16  # least length of an alignment key
TAG_BYTES = 32
#: What to check where rows do not meet.
SAME_KEY = "that all parties have the same alignment key, or files of the same align run"

_FILE = "fedkern-flwr alignment 1"
_ARCHIVE = b"PK\x03\x04"  # how an .npz file begins
#: Lines of digits with leading zeros, or a point and zeros.
_ZEROS = re.compile(r"^(?:0+(\d+)(?:\.0*)?|(\d+)\.0*)$", re.MULTILINE)


@dataclass(frozen=True, eq=False, repr=False)  # its text would show secrets
class AlignmentTags:
    """Secret tags of a party's ids, from an align run.

    Attributes
    ----------
    run : str
        Name of the align run; tags of two runs never match.
    salt : bytes
        Random, for this file only.
    names : ndarray of uint64, shape (n, 2)
        Salted hashes of the ids, sorted.
    tags : ndarray of uint8, shape (n, 32)
        Secret of each id, equal at all parties.
    """

    run: str
    salt: bytes
    names: Hashes
    tags: NDArray[np.uint8]

    @classmethod
    def of(cls, run: str, ids: Ids, tags: Sequence[bytes]) -> AlignmentTags:
        salt = secrets.token_bytes(TAG_BYTES)
        names = hash_ids(ids, salt, _FILE)
        order = sort_order(names)
        found = np.frombuffer(b"".join(tags), np.uint8).reshape(len(names), TAG_BYTES)
        return cls(run, salt, names[order], found[order])

    def tags_of(self, ids: Ids) -> list[bytes]:
        """Return the tags of ids; TableError for an id outside the align run."""
        places = find_rows(hash_ids(ids, self.salt, _FILE), self.names)
        if unknown := int((places < 0).sum()):
            raise TableError(
                f"{unknown} of {len(places)} ids have no tag in the alignment file",
                remedy="run align again with these rows, at all parties",
                code="FK-ALIGN-UNTAGGED",
            )
        data = self.tags[places].tobytes()
        return [data[k : k + TAG_BYTES] for k in range(0, len(data), TAG_BYTES)]

    def save(self, path: Path) -> None:
        """Write the tags to an ``.npz`` file that only this user can read."""
        meta = {"kind": _FILE, "run": self.run, "salt": self.salt.hex()}
        data = pack_arrays({"names": self.names, "tags": self.tags}, meta)
        write_atomically(path, data, private=True)

    @classmethod
    def load(cls, path: Path) -> AlignmentTags:
        """Load the file of :meth:`save`; CheckpointError if it is not one."""
        arrays, meta = load_arrays(path)
        try:
            names, tags, salt = arrays["names"], arrays["tags"], bytes.fromhex(meta["salt"])
            found = cls(str(meta["run"]), salt, names, tags)
            shapes = (names.shape, tags.shape) == ((len(names), 2), (len(names), TAG_BYTES))
            dtypes = names.dtype == np.uint64 and tags.dtype == np.uint8
            proper = meta["kind"] == _FILE and len(salt) == TAG_BYTES and shapes and dtypes
        except (KeyError, TypeError, ValueError):
            proper = False
        if not proper:
            raise CheckpointError(
                f"{path} is not the file of an align run",
                remedy="run align, and name its file",
                code="FK-FILE-FORMAT",
            )
        return found


AlignmentKey = bytes | AlignmentTags


def read_alignment(path: str | Path | None) -> AlignmentKey | None:
    """Read a common secret in hexadecimal, or a party's file of an align run.

    Raises
    ------
    OptionError
        The file cannot be read, or is neither.
    """
    if path is None:
        return None
    try:
        data = Path(path).read_bytes()
        if data.startswith(_ARCHIVE):
            return AlignmentTags.load(Path(path))
        return bytes.fromhex(data.decode())
    except (OSError, ValueError, CheckpointError):
        raise OptionError(
            "the file of the alignment key cannot be read",
            remedy="put 64 hexadecimal digits into it, or name the alignment.npz of an align run",
            code="FK-KEY-FILE",
        ) from None


def id_texts(ids: Ids) -> list[str]:
    """Return ids as text."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "U":
        return [str(text) for text in ids.tolist()]
    return [str(value) for value in ids]


def plain_ids(ids: Ids) -> list[str]:
    """Return ids in one spelling: lower case, without leading zeros and ``.0``, in NFC.

    Rows are matched by the original ids. If more rows match in this spelling, the parties spell
    their ids differently.
    """
    texts = id_texts(ids)
    together = unicodedata.normalize("NFC", "\n".join(texts)).casefold()  # all at once: fast
    lines = [line.strip() for line in together.split("\n")]
    if len(lines) != len(texts):  # an id of several lines
        return [plain_ids([text.replace("\n", " ")])[0] for text in texts]
    together = "\n".join(lines)
    return _ZEROS.sub(r"\1\2", together).split("\n") if _ZEROS.search(together) else lines


def hash_ids(ids: Ids, key: AlignmentKey, session: str) -> Hashes:
    """Return the pseudonyms of ids.

    Parameters
    ----------
    ids : sequence, length n
        Record ids, compared as text: 7 equals "7".
    key : bytes or AlignmentTags
        The alignment key, or the tags of an align run.
    session : str
        Name of the run: pseudonyms of two runs cannot be linked.

    Returns
    -------
    ndarray of uint64, shape (n, 2)
        Pseudonyms.
    """
    label = f"fedkern-flwr ids/{session}".encode()
    if isinstance(key, AlignmentTags):
        digests = [hmac.digest(tag, label, "sha256")[:16] for tag in key.tags_of(ids)]
    else:
        tag = _keyed(hmac.digest(key, label, "sha256"))
        digests = [tag(text.encode())[:16] for text in id_texts(ids)]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def _keyed(key: bytes) -> Callable[[bytes], bytes]:
    """Return HMAC-SHA256 for a key of at most 64 bytes, with precomputed pads."""
    block = key.ljust(64, b"\0")
    inner, outer = (bytes(b ^ pad for b in block) for pad in (0x36, 0x5C))
    sha256 = hashlib.sha256
    return lambda text: sha256(outer + sha256(inner + text).digest()).digest()


def sort_order(hashes: Hashes) -> NDArray[np.intp]:
    """Return the order that sorts rows by pseudonym, which hides the table's order."""
    return np.lexsort((hashes[:, 1], hashes[:, 0]))


def find_rows(wanted: Hashes, known: Hashes) -> Positions:
    """Return the position in ``known`` of each of the ``wanted`` pseudonyms, -1 if absent.

    Parameters
    ----------
    wanted, known : ndarray of uint64, shapes (n, 2) and (k, 2)
        No duplicates in ``known``.
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
    """Return how many rows repeat an earlier pseudonym."""
    sorted_hashes = hashes[sort_order(hashes)]
    return int((sorted_hashes[1:] == sorted_hashes[:-1]).all(axis=1).sum())


@dataclass(frozen=True)
class Overlap:
    """How many rows a party shares with others.

    Attributes
    ----------
    rows : int
        Rows of the party.
    shared : dict
        Other party -> rows in common.
    known_to : tuple of int
        At k: rows that k other parties have.
    """

    rows: int
    shared: dict[int, int]
    known_to: tuple[int, ...]

    @property
    def in_all(self) -> int:
        return self.known_to[-1]


def count_overlaps(hashes: Mapping[int, Hashes]) -> dict[int, Overlap]:
    """Return party -> its overlap with others, from the pseudonyms of all parties."""
    found = {}
    for party, own in hashes.items():
        here = {k: find_rows(own, ids) >= 0 for k, ids in hashes.items() if k != party}
        times = np.sum([*here.values(), np.zeros(len(own), np.intp)], axis=0, dtype=np.intp)
        known_to = np.bincount(times, minlength=len(hashes))
        shared = {k: int(rows.sum()) for k, rows in here.items()}
        found[party] = Overlap(len(own), shared, tuple(known_to.tolist()))
    return found


def check_alignment_key(key: AlignmentKey) -> None:
    """Refuse an alignment key that can be guessed; tags cannot."""
    if isinstance(key, bytes) and len(key) < KEY_BYTES:
        raise OptionError(
            f"the alignment key has {len(key)} bytes, at least {KEY_BYTES} are needed",
            remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))' and "
            "give it to all parties that share records, not to the server",
            code="FK-KEY-LENGTH",
        )
