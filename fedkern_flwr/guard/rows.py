"""A node's own rows, told apart by digests under a key that only the node has.

A row has two digests: of its name, which is its id, or its content where there are no ids; and of
its content with its id. A row that was edited keeps its name and has another content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

Digests = NDArray[np.uint64]
_SIZE = 8  # bytes of a digest


@dataclass(frozen=True, eq=False, repr=False)
class OwnRows:
    """The rows of a node's table.

    Attributes
    ----------
    parts : sequence of tuples of arrays
        Blocks of rows, one after the other; the arrays of a block hold its features, labels, ...
        and have a row each per row.
    ids : sequence, optional
        Names of all rows.
    learned : int
        How many of them, from the first, are learned from; the next are held out.
    """

    parts: Sequence[tuple[NDArray[Any] | sparse.csr_array, ...]] = ()
    ids: Sequence[Any] | NDArray[Any] | None = None
    learned: int = 0

    def digest(self, key: bytes) -> bytes:
        """Return a keyed digest of the whole table, which takes a fraction of that of its rows."""
        found = hashlib.blake2b(b"%d" % self.learned, key=key, digest_size=16)
        for array in (array for part in self.parts for array in part):
            pieces: tuple[NDArray[Any], ...]
            if isinstance(array, np.ndarray):
                pieces = (array,)
            else:
                pieces = array.indptr, array.indices, array.data
            for values in pieces:
                found.update(repr(values.shape).encode() + np.ascontiguousarray(values).tobytes())
        found.update("\0".join(map(str, () if self.ids is None else self.ids)).encode())
        return found.digest()

    def contents(self) -> Iterator[bytes]:
        """Yield the content of each row."""
        for part in self.parts:
            readers = [_rows(array) for array in part]
            yield from map(b"/".join, zip(*readers, strict=True))

    def digests(self, key: bytes) -> RowSet:
        """Return the digests of all rows in the order of the table."""
        ids = None if self.ids is None else [str(name).encode() for name in self.ids]
        contents = list(self.contents()) if self.parts else [b""] * len(ids or ())
        if ids is None:
            plain = hashes(key, contents)
            return RowSet(numbered := _number(key, plain), numbered)
        both = [name + b"/" + content for name, content in zip(ids, contents, strict=True)]
        return RowSet(hashes(key, ids), hashes(key, both))


@dataclass(frozen=True, eq=False)
class RowSet:
    """Digests of rows: of their names and of their contents, shape (n,) each."""

    names: Digests
    values: Digests

    @classmethod
    def none(cls) -> RowSet:
        """Return a set without rows."""
        empty = np.zeros(0, np.uint64)
        return cls(empty, empty)

    def take(self, rows: NDArray[Any] | slice) -> RowSet:
        """Return some of the rows."""
        return RowSet(self.names[rows], self.values[rows])

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.names)

    def sorted(self) -> RowSet:
        """Return the same rows whatever their order, each once."""
        return RowSet(np.unique(self.names), np.unique(self.values))

    def meets(self, other: RowSet) -> bool:
        """Tell whether a row is in both: who has the same content with its id has the id."""
        return bool(np.isin(self.names, other.names).any())

    def union(self, other: RowSet) -> RowSet:
        """Return the rows of both."""
        return RowSet(np.union1d(self.names, other.names), np.union1d(self.values, other.values))

    def pack(self) -> bytes:
        """Return the digests as bytes."""
        count = np.array([len(self.names)], "<u8")
        return b"".join(a.astype("<u8").tobytes() for a in (count, self.names, self.values))

    @classmethod
    def unpack(cls, data: bytes) -> RowSet:
        """Read from :meth:`pack`."""
        numbers = np.frombuffer(data, "<u8").astype(np.uint64)
        names = int(numbers[0])
        return cls(numbers[1 : names + 1], numbers[names + 1 :])


def digest(key: bytes, *parts: bytes) -> bytes:
    """Return a keyed digest of 16 bytes."""
    found = hashlib.blake2b(key=key, digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


def set_of(key: bytes, members: Sequence[bytes]) -> Digests:
    """Return the digests of a set, sorted."""
    return np.unique(hashes(key, members))


def _rows(array: NDArray[Any] | sparse.csr_array) -> Iterator[bytes]:
    if isinstance(array, np.ndarray):
        flat = np.ascontiguousarray(array if array.ndim > 1 else array[:, None])
        raw, size = flat.tobytes(), flat.dtype.itemsize * flat.shape[1]
        return (raw[k * size : (k + 1) * size] for k in range(len(flat)))
    array = array.sorted_indices()
    ends = array.indptr.tolist()
    return (
        array.indices[a:b].astype("<i8").tobytes() + array.data[a:b].tobytes()
        for a, b in pairwise(ends)
    )


def hashes(key: bytes, texts: Sequence[bytes]) -> Digests:
    """Return keyed digests of texts, shape (n,)."""
    make = hashlib.blake2b
    raw = b"".join(make(text, digest_size=_SIZE, key=key).digest() for text in texts)
    return np.frombuffer(raw, "<u8").astype(np.uint64)


def _number(key: bytes, plain: Digests) -> Digests:
    """Tell equal rows apart: the second of them, the third, ..."""
    order = np.argsort(plain, kind="stable")
    ranked = plain[order]
    first = np.concatenate([[True], ranked[1:] != ranked[:-1]]) if len(plain) else np.zeros(0, bool)
    places = np.arange(len(plain))
    repeats = places - np.maximum.accumulate(np.where(first, places, 0))
    out = plain.copy()
    again = repeats > 0
    texts = [b"%d/%d" % pair for pair in zip(ranked[again], repeats[again], strict=True)]
    out[order[again]] = hashes(key, texts)
    return out
