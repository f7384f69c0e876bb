"""Identify a node's rows by digests, under a key that only the node has.

A row has two digests: of its name (its id, or its content if there are no ids) and of its content.
An edited row keeps its name and gets another content.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

    Column = NDArray[Any] | sparse.csr_array

Digests = NDArray[np.uint64]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class OwnRows:
    """The rows of a client, as it sums them: scaled and encoded.

    ``parts`` are consecutive blocks of rows. The arrays of a block hold features, labels, ..., one
    entry a row. The first ``learned`` rows are training rows; the others are held out.
    """

    parts: Sequence[tuple[Column, ...]] = ()
    ids: Sequence[Any] | NDArray[Any] | None = None
    learned: int = 0

    def digest(self, key: bytes) -> bytes:
        """Return a keyed digest of the whole table, much faster than digests of its rows."""
        found = hashlib.blake2b(b"%d" % self.learned, key=key, digest_size=16)
        for array in (array for part in self.parts for array in part):
            pieces: tuple[NDArray[Any], ...] = ()
            if isinstance(array, np.ndarray):
                pieces = (array,)
            else:
                pieces = array.indptr, array.indices, array.data
            for values in pieces:
                found.update(repr(values.shape).encode())
                found.update(np.ascontiguousarray(values).data)  # a copy would take as long
        found.update("\0".join(map(str, () if self.ids is None else self.ids)).encode())
        return found.digest()

    def rows(self) -> Rows:
        """Return the rows in one table; a part without labels gets NaN."""
        count = len(self.ids) if self.ids is not None else sum(p[0].shape[0] for p in self.parts)
        columns: list[Any] = []
        for place in range(max(map(len, self.parts), default=0)):
            known = next(part[place] for part in self.parts if len(part) > place)
            pieces: list[Any] = [
                part[place]
                if len(part) > place
                else np.full((part[0].shape[0], *known.shape[1:]), np.nan)
                for part in self.parts
            ]
            if len(pieces) == 1:  # a copy of a large table would need as much memory again
                columns += pieces
            elif all(isinstance(piece, np.ndarray) for piece in pieces):
                columns.append(np.concatenate(pieces))
            else:
                from scipy import sparse

                columns.append(sparse.csr_array(sparse.vstack(pieces)))
        return Rows(columns=columns, ids=self.ids, held_out=np.arange(count) >= self.learned)

    def digests(self, key: bytes) -> RowSet:
        """Return the digests of all rows, in the order of the table; equal ids have equal names."""
        rows = self.rows()
        values = rows.contents(key)
        if self.ids is None:
            return RowSet(numbered := _number(key, values, values), numbered)
        return RowSet(names := id_digests(key, normalised(self.ids)), mix(values, names))


@dataclass(frozen=True)
class Streamed:
    """Rows of a stream that are about to take part.

    ``place`` is where the stream continues after them, in the client's format; ``anew`` is whether
    a new file starts with them.
    """

    rows: OwnRows
    place: str
    anew: bool = False


@dataclass(frozen=True, eq=False)
class RowSet:
    """Digests of the names and contents of rows, shape (n,) each."""

    names: Digests
    values: Digests

    def take(self, rows: NDArray[Any] | slice) -> RowSet:
        return RowSet(self.names[rows], self.values[rows])

    def __len__(self) -> int:
        return len(self.names)

    def sorted(self) -> RowSet:
        """Return each row once, in an order that depends on the digests only."""
        return RowSet(np.unique(self.names), np.unique(self.values))

    def meets(self, other: RowSet) -> bool:
        """Return whether a row is in both; names suffice, as equal ids have equal names."""
        return bool(np.isin(self.names, other.names).any())

    def union(self, other: RowSet) -> RowSet:
        return RowSet(np.union1d(self.names, other.names), np.union1d(self.values, other.values))

    def pack(self) -> bytes:
        return len(self).to_bytes(8, "little") + self.names.tobytes() + self.values.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> RowSet:
        numbers = np.frombuffer(data, np.uint64)
        return cls(numbers[1 : (names := int(numbers[0])) + 1], numbers[names + 1 :])


def places_in(known: NDArray[Any], wanted: NDArray[Any]) -> Places:
    """Return the first place of each wanted number among the known ones, -1 if it is missing."""
    places = np.full(len(wanted), -1, np.int64)
    if len(known):
        order, ranked = np.argsort(known, kind="stable"), np.argsort(wanted)
        at = order[np.searchsorted(known[order[:-1]], wanted[ranked])]  # sorted searches are fast
        same = known[at] == wanted[ranked]
        places[ranked[same]] = at[same]
    return places


def digest(key: bytes, *parts: bytes) -> bytes:
    found = hashlib.blake2b(key=key, digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Rows:
    """A node's table as in its file, before scaling, encoding and imputation.

    Nothing here may depend on what the server sent, such as ranges.

    Attributes
    ----------
    columns : sequence of arrays
        Raw content with labels: arrays of shape (n,) or (n, k), or a CSR matrix. Empty if rows are
        known by ids alone.
    ids : sequence, optional
        Name of each row. Default: its content.
    strata : sequence of str, optional
        Stratum of each row, such as ``"female/north"``.
    held_out : ndarray of bool, optional
        Whether a row belongs to ``test-data``. Default: a fifth of the rows is held out.
    """

    columns: Sequence[Column] = ()
    ids: Sequence[Any] | NDArray[Any] | None = None
    strata: Sequence[str] | None = None
    held_out: NDArray[np.bool_] | None = None
    _known: dict[bytes, Identity] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        return self.columns[0].shape[0] if len(self.columns) else 0

    def contents(self, key: bytes) -> Digests:
        return hash_rows(key, b"content", self.columns, len(self))

    def identify(self, key: bytes) -> Identity:
        """Return keyed digests of all rows; cached, as a million rows take seconds."""
        if key not in self._known:
            self._known[key] = self._identify(key)
        return self._known[key]

    def _identify(self, key: bytes) -> Identity:
        groups = np.zeros(len(self), np.uint64)
        if self.strata is not None:
            groups = hash_rows(key, b"group", [_bytes(self.strata)], len(self))
        values = self.contents(key)
        if self.ids is None:
            names = _number(key, values, values)
            return Identity(names, values, names, groups)
        texts = normalised(self.ids)
        names = bare = _number(key, _several(id_digests(key, texts), values), values)
        if any(text[:1] == "0" for text in texts):
            plain = id_digests(key, [text.lstrip("0") for text in texts])
            bare = _number(key, _several(plain, values), values)
        return Identity(names, values, bare, groups)


@dataclass(frozen=True, eq=False, repr=False)
class Identity:
    """Keyed digests of rows, shape (n,) each.

    Attributes
    ----------
    names : ndarray of uint64
        Of the normalised ids, or of the contents; repetitions are numbered.
    values : ndarray of uint64
        Of the raw contents.
    bare : ndarray of uint64
        Of the ids without leading zeros.
    groups : ndarray of uint64
        Of the stratum.
    """

    names: Digests
    values: Digests
    bare: Digests
    groups: Digests


def normalised(ids: Sequence[Any] | NDArray[Any]) -> list[str]:
    """Return ids as text in one spelling: trimmed, in NFC, ``12.0`` as ``12``.

    >>> normalised([12, "12.0", " 12 ", "0012"])
    ['12', '12', '12', '0012']
    """
    texts = [str(name).strip() for name in ids]
    if not all(map(str.isascii, texts)):
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    return [_whole(text) if "." in text else text for text in texts]


def _whole(text: str) -> str:
    number, _, zeros = text.partition(".")
    return number if zeros and not zeros.strip("0") and number.lstrip("+-").isdigit() else text


def _bytes(texts: Sequence[str]) -> NDArray[np.bytes_]:
    return np.array([text.encode("utf-8", "surrogatepass") for text in texts], np.bytes_)


def id_digests(key: bytes, ids: Sequence[str]) -> Digests:
    return hash_rows(key, b"id", [_bytes(ids)], len(ids))


def word(key: bytes, *place: bytes) -> np.uint64:
    digest = hashlib.blake2b(b"/".join(place), key=key, digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def mix(words: Digests, key: np.uint64 | Digests) -> Digests:
    """Apply a keyed bijection to 64-bit words: the finaliser of SplitMix64, twice."""
    for add in (key, key ^ np.uint64(0x9E3779B97F4A7C15)):
        words = words + add
        words ^= words >> np.uint64(30)
        words *= np.uint64(0xBF58476D1CE4E5B9)
        words ^= words >> np.uint64(27)
        words *= np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
    return words


def hash_rows(key: bytes, what: bytes, columns: Sequence[Column], rows: int) -> Digests:
    """Return a keyed hash of each row.

    Hashing in Python would take seconds for 10^6 rows. The digests stay at the node, so nobody can
    search for collisions; one by chance has probability 10^-8 for 10^6 rows. Zeros add nothing:
    sparse and dense tables, and texts in wider arrays, have equal hashes.
    """
    total = np.zeros(rows, np.uint64)
    for number, column in enumerate(columns if rows else ()):
        place = b"%d" % number
        own: np.uint64 | Digests
        if not isinstance(column, np.ndarray):
            column = column.sorted_indices()
            used = np.unique(column.indices)
            keys = np.array([word(key, what, place, b"%d" % j) for j in used], np.uint64)
            words = _words(np.asarray(column.data))
            own = keys[np.searchsorted(used, column.indices)]
            mixed = np.where(words == 0, np.uint64(0), mix(words ^ own, own))
            sums = np.concatenate([[np.uint64(0)], np.cumsum(mixed)])
            total += np.diff(sums[column.indptr])  # sums are modulo 2^64, and so are differences
            continue
        table = column[:, None] if column.ndim == 1 else column
        if table.dtype.kind in "OU":
            table = np.column_stack([_bytes([str(v) for v in part]) for part in table.T])
        if table.dtype.kind == "S":
            wide = -(-table.dtype.itemsize // 8) * 8
            whole = np.ascontiguousarray(table.astype(f"S{wide}"))
            table = whole.view("<u8").reshape(rows, table.shape[1], -1)
        else:
            table = table[:, :, None]
        for j in range(table.shape[1]):
            for w in range(table.shape[2]):
                own = word(key, what, place, b"%d" % j, *([b"%d" % w] if w else []))
                words = _words(table[:, j, w])
                total += np.where(words == 0, np.uint64(0), mix(words ^ own, own))
    return mix(total, word(key, what))


def _words(values: NDArray[Any]) -> Digests:
    """Return numbers as 64-bit words; -0 becomes 0, and all NaN are equal."""
    if values.dtype == np.uint64:
        return values
    numbers = values.astype(np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)


def _several(names: Digests, values: Digests) -> Digests:
    """Add the content to names that occur more than once.

    If such a row is edited, it counts as new: which of the old rows it was cannot be known.
    """
    _, of, times = np.unique(names, return_inverse=True, return_counts=True)
    return np.where(times[of] > 1, mix(names, values), names)


def _number(key: bytes, names: Digests, values: Digests) -> Digests:
    """Number rows of equal name: the second by content, the third, ..."""
    ranked = np.sort(names)
    if (ranked[1:] != ranked[:-1]).all():
        return names
    order = np.lexsort((values, names))
    first = np.append(True, ranked[1:] != ranked[:-1])
    places = np.arange(len(names))
    repeats = (places - np.maximum.accumulate(np.where(first, places, 0))).astype(np.uint64)
    out = names.copy()
    more = repeats > 0
    out[order[more]] = again(key, ranked[more], repeats[more])
    return out


def again(key: bytes, names: Digests, repeats: Digests) -> Digests:
    return mix(names ^ mix(repeats, word(key, b"n")), word(key, b"m"))
