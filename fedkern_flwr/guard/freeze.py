"""The data freeze of a node: its rows, dealt once into blocks that never change.

A node sums blocks, never rows. Clinical studies freeze their data, and so does a node: at its first
run each row is dealt, by a keyed hash of its identity, into the held-out share or one of five
folds. Later changes of the table wait until they form whole blocks, so that no two runs differ by
a few rows.

**Why no combination of sums shows fewer than ``least`` rows.** Each row that was ever frozen lies
in one *leaf*. A change may split a leaf, and only into parts of at least ``least`` rows: those that
leave, those that were edited in the same way, and those that stay. An edited row keeps its place
in the tree, so its old and its new content have the same leaf. Every sum is over whole leaves.
A row that left comes back with at least ``least`` others of its leaf, or not at all. Rows without
an id are known by their content alone: the old and the new version of such a row are two rows.
"""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import load_arrays, save_arrays
from ..errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from scipy import sparse

Digests = NDArray[np.uint64]
Places = NDArray[np.int64]

FILE = "freeze.npz"
VERSION = 1
FOLDS = 5
#: Part of a block: 0 is the held-out share, 1 to 5 are the folds.
HELD_OUT = 0
_NONE = -1
#: Share of the rows that each part gets, as the table grows: where nothing says which rows are held
#: out, of rows that are learned from, and of those that are held out.
_SHARES = {
    _NONE: np.array([0.2] + [0.8 / FOLDS] * FOLDS),
    0: np.array([0.0] + [1.0 / FOLDS] * FOLDS),
    1: np.array([1.0] + [0.0] * FOLDS),
}
#: Largest share of the rows that may wait because of the strata.
_MAX_WAITING = 0.05
#: States of a block. Only USED blocks are summed; rows of LEFT may come back, those of BARRED not.
USED, LEFT, BARRED, SPLIT = range(4)


# -- identity of rows


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Rows:
    """A node's table as its file has it, before scaling, encoding and the filling of gaps.

    Nothing here may depend on what the server sent, such as ranges.

    Attributes
    ----------
    columns : sequence of arrays
        Raw content, labels included: arrays of shape (n,) or (n, k) of numbers or texts, or a CSR
        matrix. Empty where rows are known by their ids alone.
    ids : sequence, optional
        A name for each row. Without names a row is known by its content.
    strata : sequence of str, optional
        The stratum of each row, such as ``"female/north"``.
    labelled : ndarray of bool, optional
        Whether a row has its label; by default all have.
    held_out : ndarray of bool, optional
        Whether a row belongs to ``test-data``; by default a fifth of the rows is held out.
    """

    columns: Sequence[NDArray[Any] | sparse.csr_array] = ()
    ids: Sequence[Any] | NDArray[Any] | None = None
    strata: Sequence[str] | None = None
    labelled: NDArray[np.bool_] | None = None
    held_out: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.columns[0].shape[0] if self.ids is None else len(self.ids)

    def identify(self, key: bytes) -> Identity:
        """Return keyed digests of all rows."""
        count = len(self)
        values = _hash(key, b"content", self.columns, count)
        if self.ids is None:
            names = _number(key, values, values)
            return Identity(names, values, names)
        texts = normalised(self.ids)
        names = _number(key, _hash(key, b"id", [_bytes(texts)], count), values)
        if not any(text[:1] == "0" for text in texts):
            return Identity(names, values, names)
        bare = _hash(key, b"id", [_bytes([text.lstrip("0") for text in texts])], count)
        return Identity(names, values, _number(key, bare, values))


@dataclass(frozen=True, eq=False, repr=False)
class Identity:
    """Keyed digests of rows, shape (n,) each.

    Attributes
    ----------
    names : ndarray of uint64
        Of the normalised ids, or of the contents; equal ones are told apart by a number.
    values : ndarray of uint64
        Of the raw contents.
    bare : ndarray of uint64
        Of the ids without leading zeros.
    """

    names: Digests
    values: Digests
    bare: Digests


def normalised(ids: Sequence[Any] | NDArray[Any]) -> list[str]:
    """Return ids as texts in one spelling: trimmed, in NFC, ``12.0`` as ``12``.

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


def _key(key: bytes, *place: bytes) -> np.uint64:
    digest = hashlib.blake2b(b"/".join(place), key=key, digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(words: Digests, key: np.uint64 | Digests) -> Digests:
    """Return a keyed bijection of 64-bit words: the finaliser of SplitMix64, twice."""
    for add in (key, key ^ np.uint64(0x9E3779B97F4A7C15)):
        words = words + add
        words ^= words >> np.uint64(30)
        words *= np.uint64(0xBF58476D1CE4E5B9)
        words ^= words >> np.uint64(27)
        words *= np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
    return words


def _hash(
    key: bytes, what: bytes, columns: Sequence[NDArray[Any] | sparse.csr_array], rows: int
) -> Digests:
    """Return a keyed hash of each row.

    A hash in Python would take seconds for 10^6 rows. The digests never leave the node, so nobody
    can search for collisions, and 64 bits make a chance one unlikely (10^-8 for 10^6 rows). Zeros
    add nothing: a sparse table and a dense one, or texts in wider arrays, have the same hashes.
    """
    total = np.zeros(rows, np.uint64)
    for number, column in enumerate(columns if rows else ()):
        place = b"%d" % number
        own: np.uint64 | Digests
        if not isinstance(column, np.ndarray):
            column = column.sorted_indices()
            used = np.unique(column.indices)
            keys = np.array([_key(key, what, place, b"%d" % j) for j in used], np.uint64)
            words = _words(np.asarray(column.data))
            own = keys[np.searchsorted(used, column.indices)]
            mixed = np.where(words == 0, np.uint64(0), _mix(words ^ own, own))
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
                own = _key(key, what, place, b"%d" % j, *([b"%d" % w] if w else []))
                words = _words(table[:, j, w])
                total += np.where(words == 0, np.uint64(0), _mix(words ^ own, own))
    return _mix(total, _key(key, what))


def _words(values: NDArray[Any]) -> Digests:
    """Return numbers as 64-bit words; -0 is 0, and every gap is the same."""
    if values.dtype == np.uint64:
        return values
    numbers = values.astype(np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)


def _number(key: bytes, names: Digests, values: Digests) -> Digests:
    """Tell rows of the same name apart: the second by content, the third, ..."""
    ranked = np.sort(names)
    if (ranked[1:] != ranked[:-1]).all():
        return names
    order = np.lexsort((values, names))
    first = np.append(True, ranked[1:] != ranked[:-1])
    places = np.arange(len(names))
    repeats = (places - np.maximum.accumulate(np.where(first, places, 0))).astype(np.uint64)
    out = names.copy()
    more = repeats > 0
    out[order[more]] = _mix(ranked[more] ^ _mix(repeats[more], _key(key, b"n")), _key(key, b"m"))
    return out


# -- blocks


@dataclass(eq=False)
class Blocks:
    """All blocks that there ever were, by their numbers; arrays of shape (blocks,).

    Attributes
    ----------
    parent : ndarray of int32
        The block that it is a part, or an edited version, of; -1 for none.
    edited : ndarray of bool
        Whether its rows have another content than in its parent.
    part : ndarray of int8
        0 for held-out rows, 1 to 5 for the folds.
    group : ndarray of int32
        Twice the number of the stratum, plus one for rows without a label.
    state : ndarray of int8
        ``USED``, ``LEFT`` (may come back), ``BARRED`` (never), ``SPLIT`` (has parts or a newer
        version, so that it is no leaf).
    rows : ndarray of int32
        Its rows.
    forced : ndarray of bool
        Whether the owner forced the change that made it: it may have fewer rows than ``least``.
    """

    parent: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    edited: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    part: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    group: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    state: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    rows: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    forced: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.parent)

    def add(self, **values: Any) -> int:
        """Add a block; return its number."""
        for name, array in vars(self).items():
            setattr(self, name, np.append(array, np.array([values[name]], array.dtype)))
        return len(self) - 1


#: Kinds of changes, as the owner reads them.
_NEW, _BACK, _EDIT, _GOES = _KINDS = ("new rows", "rows that came back", "edits", "withdrawals")


@dataclass(frozen=True, eq=False)
class Change:
    """What an update of a freeze did.

    Attributes
    ----------
    source : ndarray of int64, shape (rows used now,)
        Where each row of the frozen table comes from: its place in the old frozen table, or the
        length of the old one plus its place in the table at hand.
    done, waiting : dict
        ``"new rows"``, ``"rows that came back"``, ``"edits"``, ``"withdrawals"`` -> rows whose
        change took effect, or waits.
    needed : int
        Rows outside of the held-out share that a lot needs.
    near_misses : int
        New ids that differ from known ones in leading zeros only.
    """

    source: Places
    done: dict[str, int]
    waiting: dict[str, int]
    needed: int = 0
    near_misses: int = 0

    def __str__(self) -> str:
        """Say what waits, for the owner of the node."""
        waits = ", ".join(f"{rows} {kind}" for kind, rows in self.waiting.items() if rows)
        says = f"{waits} wait: a block needs {self.needed}" if waits else "nothing waits"
        near = f"; {self.near_misses} new ids differ from known ones in leading zeros only"
        return says + (near if self.near_misses else "")


# -- the freeze


@dataclass(eq=False, repr=False)
class Freeze:
    """The freeze of a node's table.

    The *frozen table* is what the node answers from: the raw rows that are used, in the order of
    this object. It is the caller's to keep; :attr:`Change.source` says how to make it.

    Attributes
    ----------
    key : bytes
        32 bytes. The node draws it itself; simulations hand in one from their seed, and matched
        rows are dealt under the alignment key, so that all parties come to the same blocks.
    least : int
        Rows of a block, at least: ``min_own_rows`` of the policy.
    names, values, bare : ndarray of uint64, shape (rows ever frozen,)
        See :class:`Identity`.
    block : ndarray of int32, shape (rows ever frozen,)
        The leaf of each row.
    blocks : Blocks
        All blocks.
    strata : ndarray of uint64
        Digests of the strata, by their numbers.
    generation : int
        Counts hasty withdrawals and forced changes. Landmarks, frequencies and first iterates are
        drawn anew with each: with the old ones the difference would be the rows that changed.
    """

    key: bytes
    least: int
    names: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    values: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    bare: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    block: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    blocks: Blocks = field(default_factory=Blocks)
    strata: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    generation: int = 0

    # -- made, kept

    @classmethod
    def deal(cls, rows: Rows, *, least: int, key: bytes | None = None) -> tuple[Self, Change]:
        """Deal the rows of a table into blocks.

        Parameters
        ----------
        rows : Rows
            The table.
        least : int
            Rows of a block, at least.
        key : bytes, optional
            Of the hashes; drawn by default.

        Raises
        ------
        OptionError
            Because of the strata more than 5 % of the rows would wait.
        """
        made = cls(secrets.token_bytes(32) if key is None else key, max(1, least))
        change = made.update(rows, needed=0)
        grouped = rows.strata is not None or rows.labelled is not None
        waits = change.waiting[_NEW]
        if grouped and waits > _MAX_WAITING * len(rows):
            raise OptionError(
                f"with these strata {waits} of {len(rows)} rows would be in no block",
                remedy="name fewer strata, or merge rare values",
                code="FK-FREEZE-STRATA",
            )
        return made, change

    def save(self, folder: Path) -> None:
        """Write the freeze into a folder, for this user's eyes only, whole or not at all."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"blocks_{name}": array for name, array in vars(self.blocks).items()}
        meta = {
            "version": VERSION,
            "key": self.key.hex(),
            "least": self.least,
            "generation": self.generation,
        }
        save_arrays(folder / FILE, arrays, meta)

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the freeze of a folder; None where there is none.

        Raises
        ------
        OptionError
            The file is damaged, or was written by a newer release.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            arrays, meta = load_arrays(path)
            if meta["version"] == VERSION:
                inner = {f.name: arrays[f"blocks_{f.name}"] for f in fields(Blocks)}
                made = cls(bytes.fromhex(meta["key"]), int(meta["least"]), blocks=Blocks(**inner))
                made.generation = int(meta["generation"])
                for name in _ARRAYS:
                    setattr(made, name, arrays[name])
                return made
        except (CheckpointError, KeyError, TypeError, ValueError):
            raise OptionError(
                f"{FILE} is damaged",
                remedy="bring back a copy: without it nobody can tell what was answered",
                code="FK-FREEZE-FILE",
            ) from None
        raise OptionError(
            f"{FILE} has version {meta['version']}, this release knows {VERSION}",
            remedy="run the release of fedkern-flwr that wrote it",
            code="FK-FREEZE-VERSION",
        )

    # -- what runs are answered with

    @property
    def used(self) -> NDArray[np.bool_]:
        """Whether each row that was ever frozen is in the frozen table, shape (rows,)."""
        used: NDArray[np.bool_] = (self.blocks.state == USED)[self.block]
        return used

    def table_blocks(self) -> NDArray[np.int32]:
        """Return the block of each row of the frozen table."""
        return self.block[self.used]

    def select(self, *parts: int) -> list[int]:
        """Return the blocks in use, of some parts or of all."""
        wanted = self.blocks.state == USED
        if parts:
            wanted &= np.isin(self.blocks.part, parts)
        return [int(b) for b in np.flatnonzero(wanted)]

    def whole_blocks(self, wanted: NDArray[np.bool_]) -> list[int]:
        """Return the blocks all of whose rows are wanted.

        Parameters
        ----------
        wanted : ndarray of bool, shape (rows of the frozen table,)
            The rows that a run asks for. They are answered with the whole blocks among them.
        """
        blocks = self.table_blocks()
        inside = np.bincount(blocks[wanted], minlength=len(self.blocks))
        return [b for b in self.select() if inside[b] == self.blocks.rows[b]]

    def rows_of(self, blocks: Collection[int]) -> Places:
        """Return the places of blocks' rows in the frozen table, in its order."""
        return np.flatnonzero(np.isin(self.table_blocks(), list(blocks)))

    # -- changes

    def update(self, rows: Rows, *, needed: int, force: bool = False) -> Change:
        """Let those changes of the table take effect that form whole blocks.

        Parameters
        ----------
        rows : Rows
            The table as it is now.
        needed : int
            Rows that a lot needs outside of the held-out share: so many that its own rows alone
            have more unknowns than a run opens numbers about them.
        force : bool (default: False)
            Whether everything takes effect at once, whatever it exposes; the owner's order.

        Returns
        -------
        Change
            What took effect, and what waits.
        """
        found, groups = rows.identify(self.key), self._groups(rows)
        here, new = self._match(found.names)
        lot = _Lot(self, 1 if force else self.least)
        lot.change_known(found, here, groups, rows.held_out)
        lot.add_new(found, new, groups, rows.held_out)
        known = np.sort(np.concatenate([self.names, self.bare])) if len(new) else self.names[:0]
        at = np.searchsorted(known[:-1], found.bare[new])
        near = known[at] == found.bare[new] if len(known) else at
        if lot.learned < needed and not force:
            lot.wait()
        self.generation += force
        change = lot.apply(found, forced=force)
        return replace(change, needed=max(needed, self.least), near_misses=int(near.sum()))

    def withdraw(self, ids: Sequence[Any]) -> Change:
        """Withdraw rows at once, each with others of its block, all of them for good.

        A block loses at least ``least`` rows; if fewer than ``least`` would stay, it goes as a
        whole. The others are those with the lowest hashes.
        """
        gone = np.isin(self.names, Rows(ids=ids).identify(self.key).names) & self.used
        lot = _Lot(self, self.least)
        for block in np.unique(self.block[gone]):
            rows = np.flatnonzero(self.block == block)
            draw = _mix(self.names[rows], _key(self.key, b"deal"))
            ranked = rows[np.lexsort((draw, ~gone[rows]))]
            take = max(self.least, int(gone[rows].sum()))
            piece = ranked if len(rows) - take < self.least else ranked[:take]
            lot.pieces.append(_Piece(_GOES, piece, HELD_OUT, 0, piece))
        self.generation += bool(lot.pieces)
        return lot.apply(None, left=BARRED)

    def _match(self, names: Digests) -> tuple[Places, Places]:
        """Return for each known row its place in the table or -1, and the places of new rows."""
        here = np.full(len(self.names), _NONE, np.int64)
        new = np.ones(len(names), bool)
        if len(names):
            order, known = np.argsort(names), np.argsort(self.names)  # sorted searches are fast
            at = order[np.searchsorted(names[order[:-1]], self.names[known])]
            same = names[at] == self.names[known]
            here[known[same]] = at[same]
            new[at[same]] = False
        return here, np.flatnonzero(new)

    def _groups(self, rows: Rows) -> NDArray[np.int32]:
        """Return the group of each row; strata that were not there before are added."""
        groups = np.zeros(len(rows), np.int32)
        if rows.strata is not None:
            found = _hash(self.key, b"stratum", [_bytes(rows.strata)], len(rows))
            self.strata = np.append(self.strata, np.setdiff1d(found, self.strata))
            order = np.argsort(self.strata)
            groups += 2 * order[np.searchsorted(self.strata, found, sorter=order)].astype(np.int32)
        if rows.labelled is not None:
            groups += ~np.asarray(rows.labelled, bool)
        return groups


_ARRAYS = ("names", "values", "bare", "block", "strata")


# -- what changes together


@dataclass(frozen=True, eq=False)
class _Piece:
    """Rows that change together.

    ``rows`` are their numbers among all that were ever frozen, but of new rows their places in the
    table at hand; ``places`` are those of all.
    """

    kind: str
    rows: Places
    part: int
    group: int
    places: Places


class _Lot:
    """The changes that take effect together, or wait together."""

    def __init__(self, freeze: Freeze, least: int) -> None:
        self.freeze, self.least = freeze, least
        self.pieces: list[_Piece] = []
        self.waiting = dict.fromkeys(_KINDS, 0)

    def change_known(
        self,
        found: Identity,
        here: Places,
        groups: NDArray[np.int32],
        held_out: NDArray[np.bool_] | None,
    ) -> None:
        """Find the pieces of leaves that leave, that were edited or that come back."""
        freeze, there = self.freeze, here >= 0
        of, blocks = freeze.block, freeze.blocks
        state, part, group = blocks.state[of], blocks.part[of].copy(), blocks.group[of].copy()
        moves = there & (state == LEFT)
        if there.any():
            now = here[there]
            group[there] = groups[now]
            if held_out is not None:  # whether a row moves into test-data, or out of it
                was = part[there] == HELD_OUT
                part[there] = np.where(was == held_out[now], part[there], np.where(was, 1, 0))
            changed = (part != blocks.part[of]) | (group != blocks.group[of])
            changed[there] |= found.values[now] != freeze.values[there]
            moves |= there & changed & (state == USED)
        goes = ~there & (state == USED)
        cell = np.where(goes, _NONE, group.astype(np.int64) * (FOLDS + 1) + part)
        pieces: dict[int, list[Places]] = {}
        for rows in _alike(np.flatnonzero(moves | goes), of, cell):
            pieces.setdefault(int(of[rows[0]]), []).append(rows)
        for block, changing in pieces.items():
            fit = [len(rows) >= self.least for rows in changing]
            stay = blocks.rows[block] - sum(len(r) for r, f in zip(changing, fit, strict=True) if f)
            for rows, fits in zip(changing, fit, strict=True):
                one = rows[0]
                kind = _GOES if goes[one] else _BACK if state[one] == LEFT else _EDIT
                target = (int(part[one]), int(group[one]))
                piece = _Piece(kind, rows, *target, here[rows])
                if fits and not 0 < stay < self.least:
                    self.pieces.append(piece)
                else:
                    self.waiting[kind] += len(rows)

    def add_new(
        self,
        found: Identity,
        new: Places,
        groups: NDArray[np.int32],
        held_out: NDArray[np.bool_] | None,
    ) -> None:
        """Deal new rows of each group, by their hashes, to the parts that lack rows most."""
        blocks = self.freeze.blocks
        fixed = np.full(len(groups), _NONE) if held_out is None else held_out.astype(np.int64)
        draw = _mix(found.names, _key(self.freeze.key, b"deal"))
        for rows in _alike(new, groups, fixed):
            group, apart = int(groups[rows[0]]), fixed[rows[0]]
            ranked = rows[np.argsort(draw[rows], kind="stable")]
            own = (blocks.state == USED) & (blocks.group == group)
            filled = np.bincount(blocks.part[own], blocks.rows[own], minlength=FOLDS + 1)
            start = 0
            for part, size in _sizes(len(rows), filled, _SHARES[apart], self.least):
                piece = ranked[start : start + size]
                self.pieces.append(_Piece(_NEW, piece, part, group, piece))
                start += size
            self.waiting[_NEW] += len(rows) - start

    @property
    def learned(self) -> int:
        """Rows of the lot that are outside of the held-out share, or were."""
        of, parts = self.freeze.block, self.freeze.blocks.part
        return sum(
            len(p.rows)
            for p in self.pieces
            if p.part != HELD_OUT or (p.kind != _NEW and parts[of[p.rows[0]]] != HELD_OUT)
        )

    def wait(self) -> None:
        """Let nothing take effect."""
        for piece in self.pieces:
            self.waiting[piece.kind] += len(piece.rows)
        self.pieces = []

    def apply(self, found: Identity | None, *, left: int = LEFT, forced: bool = False) -> Change:
        """Let all pieces take effect; rows that leave get the state ``left``."""
        freeze, blocks = self.freeze, self.freeze.blocks
        before = np.cumsum(freeze.used) - 1  # places in the old frozen table
        old = int(before[-1]) + 1 if len(before) else 0
        pieces: dict[int, list[_Piece]] = {}
        done = dict.fromkeys(_KINDS, 0)
        for piece in self.pieces:
            done[piece.kind] += len(piece.rows)
            pieces.setdefault(-1 if piece.kind == _NEW else freeze.block[piece.rows[0]], []).append(
                piece
            )
        source = before.copy()
        for parent, changing in pieces.items():
            if parent < 0:
                continue
            was = {"part": blocks.part[parent], "group": blocks.group[parent]}
            state = blocks.state[parent]
            own = np.flatnonzero(freeze.block == parent)
            blocks.state[parent] = SPLIT
            for piece in changing:
                cell = {"part": piece.part, "group": piece.group}
                kept = {**was, "edited": False, "state": left}
                new = {**cell, "edited": True, "state": USED}
                freeze.block[piece.rows] = blocks.add(
                    **(kept if piece.kind == _GOES else new),
                    parent=parent,
                    rows=len(piece.rows),
                    forced=forced,
                )
                if piece.kind != _GOES and found is not None:
                    source[piece.rows] = old + piece.places
                    freeze.values[piece.rows] = found.values[piece.places]
            stay = own[freeze.block[own] == parent]
            if len(stay):
                freeze.block[stay] = blocks.add(
                    **was, parent=parent, edited=False, state=state, rows=len(stay), forced=forced
                )
        for piece in pieces.get(-1, []):
            assert found is not None
            block = blocks.add(
                parent=_NONE,
                edited=False,
                part=piece.part,
                group=piece.group,
                state=USED,
                rows=len(piece.rows),
                forced=forced,
            )
            freeze.block = np.append(freeze.block, np.full(len(piece.rows), block, np.int32))
            source = np.append(source, old + piece.rows)
            for name in ("names", "values", "bare"):
                known, now = getattr(freeze, name), getattr(found, name)
                setattr(freeze, name, np.concatenate([known, now[piece.rows]]))
        return Change(source[freeze.used], done, self.waiting)


def _alike(rows: Places, *labels: NDArray[Any]) -> list[Places]:
    """Return the rows in groups that have the same labels."""
    if not len(rows):
        return []
    order = rows[np.lexsort([label[rows] for label in labels])]
    apart = np.any([label[order[1:]] != label[order[:-1]] for label in labels], axis=0)
    return np.split(order, np.flatnonzero(apart) + 1)


def _sizes(
    rows: int, filled: NDArray[Any], shares: NDArray[np.float64], least: int
) -> list[tuple[int, int]]:
    """Return (part, rows of it) so that the shares are kept and no piece has fewer than ``least``.

    Fewer parts get rows where there are too few for all; none if there are fewer than ``least``.
    """
    lacks = np.maximum(shares * (filled.sum() + rows) - filled, 0.0)
    order = np.argsort(-lacks, kind="stable")
    for count in range(int((lacks > 0).sum()), 0, -1):
        parts = order[:count]
        sizes = np.floor(rows * lacks[parts] / lacks[parts].sum()).astype(int)
        sizes[0] += rows - sizes.sum()
        if sizes.min() >= least:
            return list(zip(parts.tolist(), sizes.tolist(), strict=True))
    return []
