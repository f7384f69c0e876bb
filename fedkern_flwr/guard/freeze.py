"""Freeze a node's data: its rows are assigned once to blocks, and only blocks are summed.

As clinical studies freeze their data, so does a node. At its first run a keyed hash assigns each
row to the held-out share or to one of five folds. Later changes of the table wait until they form
whole blocks, so that no two runs differ by a few rows.

**Why no combination of sums shows fewer than ``least`` rows.** Each row that was ever frozen is in
one *leaf*, and every sum is over whole leaves. A change splits a leaf only into parts of at least
``least`` rows: those that are withdrawn, those that are edited, and those that stay. An edited row
keeps its place in the tree, so its old and new content have the same leaf. A row that gets the
content of an earlier sum back changes only together with others like it. A withdrawn row comes back
with at least ``least`` others of its leaf, or not at all.

Rows without an id are known by their content alone: an edited one counts as two rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import load_arrays, make_private_folder, save_arrays
from ..errors import CheckpointError, OptionError
from .rows import (
    Digests,
    Identity,
    Places,
    Rows,
    again,
    id_digests,
    mix,
    normalised,
    places_in,
    word,
)

FILE = "freeze.npz"
VERSION = 2
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
#: Equal rows of one id that are looked for, at most.
_MOST_ROWS = 1000
#: Largest share of the rows that may wait because of the strata.
_MAX_WAITING = 0.05
#: States of a block. Only USED blocks are summed. Rows of LEFT may come back, those of BARRED not.
#: SPLIT blocks have parts or a newer version.
USED, LEFT, BARRED, SPLIT = range(4)


# -- blocks


#: A block; there is one record for each that there ever was, at the place of its number.
#:
#: ``parent``: the block that it is a part, or an edited version, of; -1 for none. ``version``: how
#: often its rows were edited or came back. ``part``: 0 for held-out rows, 1 to 5
#: for the folds. ``group``: digest of the stratum. ``state``: see above; blocks that are not
#: SPLIT are *leaves*. ``forced``: whether the owner forced the change that made it, so that it may
#: have fewer rows than ``least``.
BLOCK = np.dtype(
    [
        ("parent", "<i4"),
        ("version", "<i4"),
        ("part", "i1"),
        ("group", "<u8"),
        ("state", "i1"),
        ("rows", "<i4"),
        ("forced", "?"),
    ]
)
PAST = np.dtype([("row", "<u8"), ("version", "<i4")])
Blocks = NDArray[Any]


#: Kinds of changes, as the owner reads them.
_NEW, _BACK, _EDIT, _GOES = _KINDS = ("new rows", "rows that came back", "edits", "withdrawals")


@dataclass(frozen=True, eq=False)
class Change:
    """What an update of a freeze did.

    Attributes
    ----------
    done, waiting : dict
        Kind of change (``"new rows"``, ``"rows that came back"``, ``"edits"``, ``"withdrawals"``)
        -> rows that changed, or wait.
    needed : int
        Training rows that must change together.
    near_misses : int
        New ids that differ from known ones only in leading zeros.
    """

    done: dict[str, int]
    waiting: dict[str, int]
    needed: int = 0
    near_misses: int = 0

    def __str__(self) -> str:
        waits = ", ".join(f"{rows} {kind}" for kind, rows in self.waiting.items() if rows)
        says = f"{waits} wait: a block needs {self.needed}" if waits else "nothing waits"
        near = f"; {self.near_misses} new ids differ from known ones in leading zeros only"
        return says + (near if self.near_misses else "")


# -- the freeze


@dataclass(eq=False, repr=False)
class Freeze:
    """The freeze of a node's table.

    The *frozen table* has the raw rows that the node answers from. The caller keeps it;
    :meth:`places` finds its rows in the current table.

    Attributes
    ----------
    key : bytes
        32 bytes, random or from a simulation's seed. Nodes that hold out a fifth use a common
        alignment key, if any, so that rows with equal ids are held out together.
    least : int
        Least rows of a block: ``min_own_rows`` of the policy.
    names, values, bare : ndarray of uint64, shape (rows ever frozen,)
        See :class:`Identity`.
    block : ndarray of int32, shape (rows ever frozen,)
        The leaf of each row.
    past : ndarray of PAST
        Earlier contents of edited rows: digest of name and content, and the version.
    generation : int
        Number of immediate withdrawals and forced changes. Each one renews landmarks, frequencies
        and first iterates: with the old ones, differences would show the changed rows.
    table : str
        The caller's name of the frozen table.
    ledger : str
        Digest of the ledger that counts the sums of its blocks.
    """

    key: bytes
    least: int
    names: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    values: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    bare: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    block: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    blocks: Blocks = field(default_factory=lambda: np.zeros(0, BLOCK))
    past: NDArray[Any] = field(default_factory=lambda: np.zeros(0, PAST))
    generation: int = 0
    table: str = ""
    ledger: str = ""

    # -- made, kept

    @classmethod
    def deal(
        cls,
        rows: Rows,
        *,
        least: int,
        key: bytes | None = None,
        lacking: int = 0,
        ledger: str = "",
    ) -> tuple[Self, Change]:
        """Assign the rows of a table to blocks of at least ``least`` rows.

        ``lacking`` further rows lack a stratum and wait. OptionError if more than 5 % would wait.
        """
        made = cls(secrets.token_bytes(32) if key is None else key, max(1, least), ledger=ledger)
        change = made.update(rows, needed=0)
        waits, every = change.waiting[_NEW] + lacking, len(rows) + lacking
        if rows.strata is not None and waits > _MAX_WAITING * every:
            raise OptionError(
                f"with these strata {waits} of {every} rows would be in no block",
                code="FK-FREEZE-STRATA",
            )
        return made, change

    def save(self, folder: Path) -> None:
        """Write the freeze into a folder, readable by this user only, completely or not at all."""
        make_private_folder(folder)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        meta = {name: getattr(self, name) for name in _META}
        save_arrays(folder / FILE, arrays, {"version": VERSION, "key": self.key.hex(), **meta})
        _known[folder] = _written(folder), self

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the freeze of a folder; None if there is none.

        Raises
        ------
        OptionError
            The file is damaged, or from another release.
        """
        path = folder / FILE
        if not path.exists():
            return None
        try:
            arrays, meta = load_arrays(path)
            if meta["version"] == VERSION:
                kept = {n: meta[n] for n in _META} | {n: arrays[n] for n in _ARRAYS}
                return cls(bytes.fromhex(meta["key"]), **kept)
        except (CheckpointError, KeyError, TypeError, ValueError):
            raise OptionError(f"{FILE} is damaged", code="FK-FREEZE-FILE") from None
        raise OptionError(
            f"{FILE} has version {meta['version']}, this release knows {VERSION}",
            code="FK-FREEZE-VERSION",
        )

    # -- what runs are answered with

    def places(self, rows: Rows) -> Places:
        """Return the numbers of rows, -1 for those that are not used with this content."""
        found = rows.identify(self.key)
        at = places_in(self.names, found.names)
        there = np.flatnonzero(at >= 0)
        known = at[there]
        at[there[(self.values[known] != found.values[there]) | ~self.used[known]]] = _NONE
        return at

    @property
    def used(self) -> NDArray[np.bool_]:
        used: NDArray[np.bool_] = (self.blocks["state"] == USED)[self.block]
        return used

    def select(self, *parts: int) -> list[int]:
        wanted = self.blocks["state"] == USED
        if parts:
            wanted &= np.isin(self.blocks["part"], parts)
        return [int(b) for b in np.flatnonzero(wanted)]

    def split(self, rows: Places) -> list[int]:
        """Split the leaves that a set of rows cuts; return the leaves of the set, sorted.

        ``rows`` are numbers of rows in use, among all that were ever frozen.
        """
        inside = np.zeros(len(self.names), bool)
        inside[rows] = True
        there = np.bincount(self.block[rows], minlength=len(self.blocks))
        for block in np.flatnonzero((there > 0) & (there < self.blocks["rows"])).tolist():
            own = np.flatnonzero(self.block == block)
            for piece in (own[inside[own]], own[~inside[own]]):
                self._cut(block, piece)
            self.blocks["state"][block] = SPLIT
        return [int(block) for block in np.unique(self.block[rows])]

    # -- changes

    def update(self, rows: Rows, *, needed: int, force: bool = False) -> Change:
        """Apply the changes of the table that form whole blocks.

        ``needed`` training rows must change together, see
        :func:`~fedkern_flwr.guard.cells.lot_rows`. With ``force``, which only the owner may
        request, all changes are applied now, whatever they expose.
        """
        lot = _Lot(self, rows, 1 if force else self.least)
        if lot.learned < needed and not force:
            lot.wait()
        self.generation += force
        done = self._apply(lot.pieces, lot.found, forced=force)
        return Change(done, lot.waiting, max(needed, self.least), lot.near_misses)

    def withdraw(self, ids: Sequence[Any]) -> Change:
        """Withdraw rows now and for good, each with others of its block.

        A block loses at least ``least`` rows: the withdrawn ones, and others with the lowest
        hashes. If fewer than ``least`` would stay, it loses all. All rows of an id are withdrawn.
        """
        gone = self._named(ids) & self.used
        draw, pieces = mix(self.names, word(self.key, b"deal")), []
        for block in np.unique(self.block[gone]):
            rows = np.flatnonzero(self.block == block)
            ranked = rows[np.lexsort((draw[rows], ~gone[rows]))]
            take = max(self.least, int(gone[rows].sum()))
            piece = ranked if len(rows) - take < self.least else ranked[:take]
            part, group = self.blocks[["part", "group"]][block]
            pieces.append(_Piece(_GOES, piece, part, group, piece))
        self.generation += bool(pieces)
        return Change(self._apply(pieces, left=BARRED), dict.fromkeys(_KINDS, 0))

    def _named(self, ids: Sequence[Any]) -> NDArray[np.bool_]:
        found = np.zeros(len(self.names), bool)
        for plain in np.unique(id_digests(self.key, normalised(ids))):
            several = mix(np.full(len(self.names), plain), self.values)
            found |= (self.names == plain) | (self.names == several)
            for repeat in range(1, _MOST_ROWS):
                more = again(self.key, several, np.array([repeat], np.uint64))
                if not (self.names == more).any():
                    break
                found |= self.names == more
        return found

    def _apply(
        self,
        pieces: Sequence[_Piece],
        found: Identity | None = None,
        *,
        left: int = LEFT,
        forced: bool = False,
    ) -> dict[str, int]:
        done, parents, start = dict.fromkeys(_KINDS, 0), set[int](), len(self.names)
        new = [piece.places for piece in pieces if piece.kind == _NEW]
        if new and found is not None:
            places = np.concatenate(new)
            for name in ("names", "values", "bare"):
                more = getattr(found, name)[places]
                setattr(self, name, np.append(getattr(self, name), more))
            self.block = np.append(self.block, np.zeros(len(places), np.int32))
        for piece in pieces:
            rows, parent, version, goes = piece.rows, _NONE, 0, piece.kind == _GOES
            if piece.kind == _NEW:
                rows = start + np.arange(len(rows))
                start += len(rows)
            else:
                parent = int(self.block[rows[0]])
                parents.add(parent)
                version = int(self.blocks["version"][parent])
            if piece.kind in (_EDIT, _BACK):
                old = np.zeros(len(rows), PAST)
                old["row"], old["version"] = mix(self.values[rows], self.names[rows]), version
                self.past, version = np.append(self.past, old), version + 1
            about = {"version": version, "part": piece.part, "group": piece.group}
            self._cut(parent, rows, state=left if goes else USED, forced=forced, **about)
            if found is not None and not goes:
                self.values[rows] = found.values[piece.places]
            done[piece.kind] += len(rows)
        for parent in parents:
            stay = np.flatnonzero(self.block == parent)
            if len(stay):
                self._cut(parent, stay, forced=len(stay) < self.least)
            self.blocks["state"][parent] = SPLIT
        return done

    def _cut(self, parent: int, rows: Places, **change: int) -> None:
        block = np.zeros(1, BLOCK) if parent == _NONE else self.blocks[[parent]]
        for name, value in {**change, "parent": parent, "rows": len(rows)}.items():
            block[name] = value
        self.block[rows] = len(self.blocks)
        self.blocks = np.append(self.blocks, block)


_META = ("least", "generation", "table", "ledger")
_ARRAYS = ("names", "values", "bare", "block", "blocks", "past")


# -- what changes together


@dataclass(frozen=True, eq=False)
class _Piece:
    """Rows that change together.

    ``rows`` are numbers among all rows ever frozen, but for new rows places in the current table.
    ``places`` are always places in the table.
    """

    kind: str
    rows: Places
    part: int
    group: int
    places: Places


class _Lot:
    def __init__(self, freeze: Freeze, rows: Rows, least: int) -> None:
        self.freeze, self.least, self.found = freeze, least, rows.identify(freeze.key)
        self.pieces: list[_Piece] = []
        self.waiting = dict.fromkeys(_KINDS, 0)
        here = places_in(self.found.names, freeze.names)  # of each known row in the table
        fresh = np.ones(len(rows), bool)
        fresh[here[here >= 0]] = False
        new = np.flatnonzero(fresh)
        self._change_known(here, rows.held_out)
        self._deal_new(new, rows.held_out)
        known = np.append(freeze.names, freeze.bare)
        self.near_misses = int(np.isin(self.found.bare[new], known).sum())

    def _change_known(self, here: Places, held_out: NDArray[np.bool_] | None) -> None:
        """Find the pieces of leaves that are withdrawn, were edited or come back."""
        freeze, there = self.freeze, here >= 0
        of, cells = freeze.block, freeze.blocks[freeze.block]
        state, part, group = cells["state"], cells["part"].copy(), cells["group"].copy()
        now = here[there]
        group[there] = self.found.groups[now]
        if held_out is not None:  # whether a row moves into test-data, or out of it
            was = part[there] == HELD_OUT
            part[there] = np.where(was == held_out[now], part[there], np.where(was, 1, HELD_OUT))
        changed = (part != cells["part"]) | (group != cells["group"])
        changed[there] |= self.found.values[now] != freeze.values[there]
        like = cells["version"].copy()  # the version that has the same content
        like[there] = self._versions(there, now, like[there])
        goes = ~there & (state == USED)
        moves = there & ((state == LEFT) | (changed & (state == USED)))
        pieces: dict[int, list[_Piece]] = {}
        for rows in _alike(np.flatnonzero(moves | goes), of, goes, group, part, like):
            one = rows[0]
            kind = _GOES if goes[one] else _BACK if state[one] == LEFT else _EDIT
            piece = _Piece(kind, rows, int(part[one]), int(group[one]), here[rows])
            pieces.setdefault(int(of[one]), []).append(piece)
        for block, changing in pieces.items():
            fit = [piece for piece in changing if len(piece.rows) >= self.least]
            fit.sort(key=lambda piece: len(piece.rows), reverse=True)
            stay = freeze.blocks["rows"][block] - sum(len(piece.rows) for piece in fit)
            while fit and 0 < stay < self.least:
                stay += len(fit.pop().rows)
            self.pieces += fit
            for piece in changing:
                self.waiting[piece.kind] += 0 if piece in fit else len(piece.rows)

    def _versions(self, rows: NDArray[np.bool_], now: Places, last: NDArray[Any]) -> NDArray[Any]:
        values, freeze = self.found.values[now], self.freeze
        found = np.where(values == freeze.values[rows], last, _NONE)
        at = places_in(freeze.past["row"], mix(values, freeze.names[rows]))
        found[at >= 0] = freeze.past["version"][at[at >= 0]]
        return found

    def _deal_new(self, new: Places, held_out: NDArray[np.bool_] | None) -> None:
        """Assign new rows of each group, by their hashes, to the parts that lack rows most."""
        blocks, found = self.freeze.blocks, self.found
        fixed = np.full(len(found.names), _NONE) if held_out is None else held_out.astype(int)
        draw = mix(found.names, word(self.freeze.key, b"deal"))
        for rows in _alike(new, found.groups, fixed):
            group, ranked = found.groups[rows[0]], rows[np.argsort(draw[rows])]
            own = blocks[(blocks["state"] == USED) & (blocks["group"] == group)]
            filled = np.bincount(own["part"], own["rows"], minlength=FOLDS + 1)
            start, share = 0, int(fixed[rows[0]])
            # figures of few held-out rows have a rule of their own
            first = share == 1 and not len(blocks)
            least = min(self.least, len(rows)) if first else self.least
            for part, size in _sizes(len(rows), filled, _SHARES[share], least):
                piece = ranked[start : start + size]
                self.pieces.append(_Piece(_NEW, piece, part, int(group), piece))
                start += size
            self.waiting[_NEW] += len(rows) - start

    @property
    def learned(self) -> int:
        of, parts = self.freeze.block, self.freeze.blocks["part"]
        return sum(
            len(p.rows)
            for p in self.pieces
            if p.part != HELD_OUT or (p.kind != _NEW and parts[of[p.rows[0]]] != HELD_OUT)
        )

    def wait(self) -> None:
        for piece in self.pieces:
            self.waiting[piece.kind] += len(piece.rows)
        self.pieces = []


def _alike(rows: Places, *labels: NDArray[Any]) -> list[Places]:
    if not len(rows):
        return []
    order = rows[np.lexsort([label[rows] for label in labels])]
    apart = np.any([label[order[1:]] != label[order[:-1]] for label in labels], axis=0)
    return np.split(order, np.flatnonzero(apart) + 1)


def _sizes(
    rows: int, filled: NDArray[Any], shares: NDArray[np.float64], least: int
) -> list[tuple[int, int]]:
    """Return (part, rows) that keep the shares, each piece with at least ``least`` rows.

    If there are too few rows for all parts, fewer parts get rows, or none.
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


# -- in a node's folder

#: What was read last: folder -> when the file was written, freeze.
_known: dict[Path, tuple[Any, Freeze]] = {}


def freeze_folder(state_dir: Path, partition: int, apart: str = "") -> Path:
    """Return the folder of a node's freeze; ``apart`` names a freeze of other rows."""
    return state_dir / f"freeze-{partition}{apart and '-'}{apart}"


def open_freeze(place: Path) -> Freeze:
    if not (place / FILE).is_file():
        return Freeze(b"", 1)
    if place not in _known or _known[place][0] != _written(place):
        written, found = _written(place), Freeze.load(place)
        assert found is not None
        _known[place] = written, found
    return _known[place][1]


def _written(place: Path) -> tuple[int, ...]:
    found = (place / FILE).stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


@contextmanager
def changing(place: Path) -> Iterator[Freeze]:
    """Open the freeze of a folder; save its new blocks after the block, or forget them on error."""
    freeze = open_freeze(place)
    blocks = len(freeze.blocks)
    try:
        yield freeze
        if len(freeze.blocks) > blocks:
            freeze.save(place)
    except BaseException:
        _known.pop(place, None)
        raise
