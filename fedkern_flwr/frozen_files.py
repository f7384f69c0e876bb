"""Keep the frozen table of a deployed node: copies of its files with the rows of its freeze.

A node answers from these copies, never from its configured files. When a run starts, changes of the
files that form whole blocks are applied (:mod:`fedkern_flwr.guard.freeze`). All messages of a run
read the same copies. ``state_dir/freeze-K/`` of partition K has:

* ``freeze.npz``: the freeze, which names its frozen table. So a crash leaves the old freeze with
  the old table, or the new freeze with the new table.
* A folder per frozen table, named by a digest of its rows. ``data/`` and ``test-data/`` have a file
  each, like the node's file; ``rows.npz`` has the number of each row in the freeze.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .alignment import read_alignment
from .checkpoint import load_arrays, make_private_folder, save_arrays
from .errors import CheckpointError, OptionError, StateError
from .guard.cells import needed_rows
from .guard.freeze import HELD_OUT, Change, Freeze, freeze_folder, open_freeze
from .guard.ledger import NodeLedger
from .guard.ledger_file import Entries
from .guard.opened import check_freeze, opened_sums
from .guard.policy import NodePolicy
from .guard.rows import Places, Rows, places_in
from .tables.dialect import Dialect
from .tables.raw import RawTable
from .tables.table import copies

logger = logging.getLogger("fedkern_flwr")

_KINDS = ("data", "test-data")
_ROWS, _READ = "rows.npz", "frozen tables"  # in a folder, and in the ledger
_MOST_RUNS = 32  # runs with frozen tables that are kept


@dataclass(frozen=True)
class NodeFiles:
    """Files of a node's table, from its configuration.

    By the ``alignment_key``, a common secret of the parties, all hold out the same ids.
    """

    data: Path
    test_data: Path | None = None
    id_column: str | None = None
    dialect: Dialect = field(default_factory=Dialect)
    alignment_key: Path | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        return cls(
            Path(str(config["data"])),
            Path(str(config["test-data"])) if "test-data" in config else None,
            None if (name := config.get("id-column")) is None else str(name),
            Dialect.of(config),
            Path(str(config["alignment-key"])) if "alignment-key" in config else None,
        )

    def paths(self) -> Iterator[tuple[int, Path]]:
        """Yield 0 for ``data``, 1 for ``test-data``, and the path."""
        for kind, path in enumerate((self.data, self.test_data)):
            if path is not None:
                yield kind, path


@dataclass(frozen=True, eq=False, repr=False)
class FrozenTable:
    """A frozen table: files, and the number of each row in the freeze.

    ``files`` are ``data`` and ``test-data``, None if no row of it is in a block; ``numbers`` are in
    file order. ``columns`` has suffix and columns of each file.
    """

    folder: Path
    files: list[Path | None]
    numbers: list[NDArray[np.int64]]
    seps: list[str]
    columns: list[list[str] | None]

    def save(self) -> None:
        """Write what :meth:`load` reads in addition to the files."""
        numbers = dict(zip(_KINDS, self.numbers, strict=True))
        names = ["" if path is None else path.name for path in self.files]
        meta = {"files": names, "seps": self.seps, "columns": self.columns}
        save_arrays(self.folder / _ROWS, numbers, meta)

    def read(self) -> list[RawTable | None]:
        both = zip(self.files, self.seps, strict=True)
        return [
            None if path is None else RawTable.read(path, Dialect(sep, header=True))
            for path, sep in both
        ]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a frozen table; StateError if it is missing."""
        try:
            arrays, meta = load_arrays(folder / _ROWS)
            named = zip(_KINDS, meta["files"], strict=True)
            files = [folder / kind / name if name else None for kind, name in named]
            if all(path is None or path.is_file() for path in files):
                numbers = [arrays[kind] for kind in _KINDS]
                return cls(folder, files, numbers, list(meta["seps"]), list(meta["columns"]))
        except (CheckpointError, KeyError, TypeError, ValueError):
            pass
        raise StateError(
            "the frozen table with which this run began is gone",
            remedy="start a new run",
            code="FK-FREEZE-GONE",
        )

    @property
    def name(self) -> str:
        return self.folder.name

    def frozen(self, data: NDArray[Any], test: NDArray[Any] | None) -> Places:
        """Return the freeze numbers of a client's rows, from their places in the files."""
        held = np.zeros(0, np.int64) if test is None else self.numbers[1][test]
        return np.append(self.numbers[0][data], held)


class FrozenFiles:
    def __init__(self, state_dir: Path, partition: int, policy: NodePolicy) -> None:
        self.state_dir, self.partition, self.policy = state_dir, partition, policy
        self.folder = freeze_folder(state_dir, partition)
        self._ledger = NodeLedger(state_dir, partition)

    # -- runs

    def open_run(self, run: str, files: NodeFiles, *, resumed: bool = False) -> FrozenTable | None:
        """Return the frozen table of a run; for a new run, apply changes first.

        A ``resumed`` run needs its earlier table.

        Raises
        ------
        StateError
            The table of a resumed run is missing.
        TableError, OptionError
            A file, or the content of ``state_dir``, cannot be used.
        """
        with self._ledger.file.writing() as db:
            runs = self._runs(db)
            if run in runs or (resumed and db.fact(_READ)):
                return FrozenTable.load(self.folder / runs.get(run, "gone"))
            table, change = self._update(db, files)
            if any(change.waiting.values()) or change.near_misses:
                logger.warning("partition %d: %s", self.partition, change)
            if table is not None:
                self._remember(db, {**runs, run: table.name})
            return table

    def may_begin(self) -> bool:
        """Return whether there is a ledger, or one may be created: not with ``max_epsilon``."""
        limited = isfinite(self.policy.max_epsilon)
        return not limited or self._ledger.exists

    def load(self, table: str) -> FrozenTable:
        return FrozenTable.load(self.folder / table)

    def unfrozen(self, files: NodeFiles) -> FrozenTable | None:
        """Return the current files, for a prediction; None without a freeze.

        Rows that are not in the freeze with these cells have the number -1.
        """
        freeze, now = Freeze.load(self.folder), _Files(files, self.policy)
        if freeze is None:
            return None
        sizes = [0 if one is None else len(one) for one in now.tables]
        numbers = np.full(sum(sizes), -1)
        numbers[now.kept] = freeze.places(now.rows)
        parts = np.split(numbers, sizes[:1])
        return FrozenTable(self.folder, [files.data, files.test_data], parts, ["", ""], [])

    def _current(self, freeze: Freeze) -> FrozenTable:
        try:
            return FrozenTable.load(self.folder / freeze.table)
        except StateError:
            raise OptionError(
                "the frozen table in the node's state_dir is damaged or gone",
                remedy="bring back a copy: without it nobody can tell what was answered",
                code="FK-FREEZE-FILE",
            ) from None

    def _runs(self, db: Entries) -> dict[str, str]:
        return dict(json.loads(db.fact(_READ) or "{}"))

    def _remember(self, db: Entries, runs: Mapping[str, str]) -> None:
        kept = dict([*runs.items()][-_MOST_RUNS:])
        db.keep_fact(_READ, json.dumps(kept))
        freeze = Freeze.load(self.folder)
        used = {*kept.values(), "" if freeze is None else freeze.table}
        for place in self.folder.iterdir():
            if place.is_dir() and place.name not in used:
                shutil.rmtree(place, ignore_errors=True)

    # -- changes

    def preview(self, files: NodeFiles) -> Change:
        """Return what an update would do; there must be a freeze."""
        freeze, now = Freeze.load(self.folder), _Files(files, self.policy)
        if freeze is None:
            raise FileNotFoundError(self.folder)
        with self._ledger.file.writing() as db:
            return self._change(db, freeze, now)

    def _change(self, db: Entries, freeze: Freeze, now: _Files, *, force: bool = False) -> Change:
        needed = needed_rows(opened_sums(db))
        change = freeze.update(now.rows, needed=needed, force=force)
        change.waiting["new rows"] += now.lacking
        return change

    def update(
        self, files: NodeFiles, *, force: bool = False, withdraw: Sequence[str] = ()
    ) -> tuple[FrozenTable | None, Change]:
        """Apply changes of the files; create the freeze if there is none.

        ``force`` applies all changes now, whatever they expose. ``withdraw`` are ids of rows to
        withdraw now, each with others of its block. Returns None instead of a table if there are
        too few rows for a block.
        """
        with self._ledger.file.writing() as db:
            found = self._update(db, files, force=force, withdraw=withdraw)
            if found[0] is not None:  # who leaves at once is in no copy that an older run may read
                self._remember(db, {} if withdraw else self._runs(db))
            return found

    def _update(
        self,
        db: Entries,
        files: NodeFiles,
        *,
        force: bool = False,
        withdraw: Sequence[str] = (),
    ) -> tuple[FrozenTable | None, Change]:
        mark = check_freeze(db, open_freeze(self.folder), opened_sums(db))
        freeze, now = Freeze.load(self.folder), _Files(files, self.policy)
        old = None if freeze is None else self._current(freeze)
        if freeze is None:
            if withdraw:
                raise OptionError(
                    "nothing is frozen yet",
                    remedy="take the rows out of the node's file",
                    code="FK-FREEZE-NONE",
                )
            least = self.policy.min_own_rows
            key = None if now.rows.held_out is not None else _common_key(files)
            about: dict[str, Any] = {"lacking": now.without_stratum, "key": key, "ledger": mark}
            freeze, change = Freeze.deal(now.rows, least=least, **about)
            change.waiting["new rows"] += now.lacking
        else:
            left = freeze.withdraw(withdraw).done if withdraw else {}
            change = self._change(db, freeze, now, force=force)
            change.done.update({kind: n + left.get(kind, 0) for kind, n in change.done.items()})
        if old is None and not freeze.used.any():
            return None, change
        known = [None, None] if old is None else old.columns
        both = zip(now.tables, known, strict=True)
        columns = [then if new is None else [new.suffix, *new.columns] for new, then in both]
        before_it, freeze.table = freeze.table, _fingerprint(freeze, columns)
        if not (self.folder / freeze.table).is_dir():
            self._write(freeze, old, now)
        if freeze.table != before_it or any(change.done.values()) or force:
            freeze.save(self.folder)  # from here on it is this table
        return FrozenTable.load(self.folder / freeze.table), change

    def _write(self, freeze: Freeze, old: FrozenTable | None, now: _Files) -> None:
        """Write the frozen table after a change.

        Earlier rows keep their order, because files without ids are matched by it. New rows follow
        in file order.
        """
        olds, known = [None, None] if old is None else old.read(), np.zeros(0, np.int64)
        if old is not None:
            known = np.concatenate(old.numbers)
        used = np.flatnonzero(freeze.used)
        place, here = places_in(known, used), places_in(freeze.places(now.rows), used)
        cells = place.copy()  # places among all rows, old ones first
        # the file may again have columns that the old table lacks
        cells[here >= 0] = len(known) + now.kept[here[here >= 0]]
        ranked = np.where(place < 0, cells, place)
        like = [then if new is None else new for new, then in zip(now.tables, olds, strict=True)]
        held = freeze.blocks["part"][freeze.block[used]] == HELD_OUT
        names = ["", ""] if old is None else [path.name if path else "" for path in old.files]
        if held.any() and like[1] is None:  # of a fifth there is no file but that of all rows
            like, now.names = [like[0]] * 2, [now.names[0]] * 2
        folder = self.folder / f".{secrets.token_hex(8)}.tmp"
        make_private_folder(folder)
        try:
            found = FrozenTable(folder, [None, None], [], ["", ""], [None, None])
            for k, table in enumerate(like):
                rows = np.flatnonzero(held == bool(k))
                rows = rows[np.argsort(ranked[rows])]
                found.numbers.append(used[rows])
                if table is None:
                    continue
                found.columns[k], found.seps[k] = [table.suffix, *table.columns], table.sep
                if len(rows) or not k:
                    path = folder / _KINDS[k] / (now.names[k] or names[k])
                    _gather(table, [*olds, *now.tables], cells[rows]).write(path)
                    found.files[k] = path
            found.save()
            folder.rename(self.folder / freeze.table)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


class _Files:
    """The current files of a node.

    ``rows`` are those that may be in a block, ``kept`` their places among all rows of both files.
    ``lacking`` rows wait for a label or a stratum, ``without_stratum`` of them for a stratum.
    """

    def __init__(self, files: NodeFiles, policy: NodePolicy) -> None:
        self.tables: list[RawTable | None] = [None, None]
        self.names = ["", ""]
        ids, strata, lacks, unlabelled = [], [], [], []
        for kind, path in files.paths():
            self.names[kind] = path.name
            table = self.tables[kind] = RawTable.read(path, files.dialect)
            if files.id_column is not None:
                ids.append(table.texts(files.id_column, path.name, "id column"))
            absent, none = np.zeros((2, len(table)), bool)
            texts = [np.zeros(len(table), "U1")]
            for name in policy.strata:
                absent |= table.lacks(name, path.name, files.dialect)
                texts.append(table.texts(name, path.name))
            for name in policy.labels:
                if kind == 0 or table.has(name):  # rows to be predicted have none
                    none |= table.lacks(name, path.name, files.dialect)
            lacks.append(absent)
            unlabelled.append(none)
            strata.append(
                ["/".join(cells) for cells in zip(*texts, strict=True)] if policy.strata else []
            )
        there = [table for table in self.tables if table is not None]
        absent, none = np.concatenate(lacks), np.concatenate(unlabelled)
        self.without_stratum, self.lacking = int(absent.sum()), int((absent | none).sum())
        # Columns by name, so that their order does not matter; the spelling of an id neither.
        names = sorted({n for one in there for n in one.columns} - {str(files.id_column)})
        words = [one.words(names) for one in there]
        held = np.repeat([False, True][: len(there)], [len(one) for one in there])
        columns = [np.concatenate(parts) for parts in zip(*words, strict=True)]
        again = np.zeros(len(held), bool)  # duplicate rows of a file count once
        if ids:
            again = copies(np.concatenate(ids), [held, *columns])
        self.kept = kept = np.flatnonzero(~(absent | none | again))
        self.rows = Rows(
            columns=[column[kept] for column in columns],
            ids=np.concatenate(ids)[kept] if ids else None,
            strata=np.concatenate(strata)[kept].tolist() if policy.strata else None,
            held_out=None if policy.held_out and files.test_data is None else held[kept],
        )


def _common_key(files: NodeFiles) -> bytes | None:
    secret = read_alignment(files.alignment_key)
    return hashlib.sha256(b"freeze/" + secret).digest() if isinstance(secret, bytes) else None


def _fingerprint(freeze: Freeze, columns: Sequence[list[str] | None]) -> str:
    """Return a keyed digest of frozen rows and columns, which split blocks do not change."""
    used = freeze.used
    held = freeze.blocks["part"][freeze.block[used]] == HELD_OUT
    found = hashlib.blake2b(json.dumps(columns).encode(), key=freeze.key, digest_size=8)
    for array in (freeze.names[used], freeze.values[used], held):
        found.update(array.tobytes())
    return found.hexdigest()


def _gather(
    like: RawTable, tables: Sequence[RawTable | None], places: NDArray[np.int64]
) -> RawTable:
    sizes = [0 if one is None else len(one) for one in tables]
    starts = np.cumsum([0, *sizes])
    of = np.searchsorted(starts, places, side="right") - 1
    parts = [
        one.take(places[of == k] - starts[k]) for k, one in enumerate(tables) if one is not None
    ]
    order = np.argsort(of, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return like.joined(parts).take(back)
