"""What a node has opened about its blocks, in its ledger; and what it therefore does not open.

An entry is about one purpose of a run, the same blocks and the same parties. It has the numbers
that were opened, and a digest of the node's own values for each sum: values that were opened over
the same parties before tell nothing new, so they are free.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, RefusedError
from .cells import KEY_BYTES, Sum, check_parties, check_rows, check_sum, line_of, same
from .counting import Mode
from .freeze import Freeze, Places
from .frozen import open_freeze, saved_rows
from .ledger_file import kept_set
from .policy import NodePolicy
from .rows import digest


@dataclass(frozen=True, eq=False)
class Opening:
    """A sum that a node is about to contribute to, or helps to open.

    Attributes
    ----------
    purpose : str
        What is summed.
    rows : ndarray of int, optional
        Places of its rows among the node's own; by default all that are learned from.
    each : bool
        Whether it is made row by row, so that it is no sum over rows.
    cohort : sequence of bytes, optional
        The pinned keys of its parties; None where they are unknown.
    parties : int
        How many they are.
    numbers : float
        Numbers that the server opens about rows; 0 of what is not counted.
    unknowns : float
        Unknowns of a row.
    others : int
        Hidden rows of other parties.
    width : int
        Columns of which products are summed.
    values : bytes
        Digest of the node's own values.
    function : bytes
        What determines the function of a row that is summed, as far as this node can tell that it
        is that of an earlier run; empty where it cannot.
    how : str
        What a server must ask for so that it is that function again; public.
    share : float
        Of a run that counts by itself: the numbers that it has opened for each unknown, at most.
    done : bool
        Whether it opens by itself; else :meth:`Opened.open_again` says over which parties.
    again : bool
        Whether a sum that was entered before is opened, maybe over fewer parties.
    parts : int
        Rows of a part of it, at least, that may be told apart, if that is more than the policy's.
    """

    purpose: str
    rows: NDArray[np.integer[Any]] | None = None
    each: bool = False
    cohort: Sequence[bytes] | None = None
    parties: int = 0
    numbers: float = 0.0
    unknowns: float = 1.0
    others: int = 0
    width: int = 0
    values: bytes = b""
    function: bytes = b""
    how: str = ""
    share: float = 0.0
    done: bool = True
    again: bool = False
    parts: int = 0


class Left(NamedTuple):
    """What a run may plan with.

    Attributes
    ----------
    share : float
        Share of the unknowns of the rows; 1 where nothing is counted.
    again : float
        Numbers of the function that an earlier run has summed, if that is asked for again.
    how : str
        What must be asked for then.
    """

    share: float = 1.0
    again: float = 0.0
    how: str = ""


class Opened:
    """What was opened about the blocks of a node.

    Parameters
    ----------
    db : sqlite3.Connection
        Of the ledger, in a transaction.
    key : bytes
        Of the digests.
    run : int
        Number of the run at hand.
    freeze : Freeze
        Of the node; changed in place where a sum cuts blocks.
    place : Path
        Its folder.
    apart : str
        What answers, where its rows are frozen apart; else empty.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        key: bytes,
        run: int,
        freeze: Freeze,
        place: Path,
        apart: str,
    ) -> None:
        self.db, self.key, self.run, self.freeze, self.apart = db, key, run, freeze, apart
        self.place = place
        self.kind, partition = db.execute(
            "SELECT kind, partition FROM runs WHERE id = ?", (run,)
        ).fetchone()
        self.sums = opened_sums(db, partition, apart)
        self.each = opened_sums(db, partition, apart, each=True)

    def enter(
        self,
        one: Opening,
        rows: Places,
        policy: NodePolicy,
        *,
        mode: Mode,
        records: bool,
        enough: int,
    ) -> str:
        """Enter a sum; return what is wrong with it if it is only warned of.

        Parameters
        ----------
        one : Opening
            The sum.
        rows : ndarray of int64
            Numbers of its rows in the freeze.
        policy : NodePolicy
            What the node's owner allows.
        mode : {"refuse", "warn", "off"}
            What is done where more numbers would be opened than there are unknowns.
        records : bool
            Whether the rows are records that must hide among each other.
        enough : int
            Parties that suffice, by what the method states.

        Raises
        ------
        RefusedError
        """
        if one.each:
            rows = rows[rows >= 0]
            blocks = [int(block) for block in np.unique(self.freeze.block[rows])]
        elif (rows < 0).any() and one.numbers:
            raise RefusedError(
                "refused: rows are asked for that are in no block of its freeze",
                remedy="wait until enough of them have come; the log of the node says more",
                code="FK-FREEZE-WAITS",
            )
        else:
            rows = rows[rows >= 0]
            blocks = self.freeze.split(rows)
        about = digest(self.key, np.sort(self.freeze.values[rows]).tobytes())
        cohort = self._cohort(one)
        value = digest(self.key, one.values)[:KEY_BYTES] if one.values else b""
        known = self.db.execute(
            "SELECT id, run, numbers, functions, blocks, function FROM opened"
            " WHERE purpose = ? AND about = ? AND cohort = ? AND each = ?",
            (one.purpose, about, b"".join(cohort), one.each),
        ).fetchall()
        numbers = one.numbers + one.share * len(rows) * one.unknowns
        mine = [k for k in known if k[1] == self.run]
        if any(not numbers or (value and value in _parts(f)) for *_, f, _, _ in known):
            if mine:
                return ""
            numbers = 0.0  # entered all the same, for the owner to see
        before, functions = (mine[0][2], mine[0][3]) if mine else (0.0, b"")
        if mine:  # blocks may have been split since
            blocks = np.frombuffer(mine[0][4], "<i4").tolist()
        numbers = max(before, numbers) if one.share else before + numbers
        new = self._sum(one, blocks, cohort, numbers)
        if mine:  # of another function as well: they have none
            new = replace(new, function=new.function if new.function == mine[0][5] else b"")
        if one.parties and one.done:
            self._check_parties(new, policy, enough)
        said = self._check(new, one, policy, mode=mode, records=records)
        if mine:
            self.db.execute(
                "UPDATE opened SET numbers = ?, functions = ?, function = ? WHERE id = ?",
                (numbers, functions + value, new.function, mine[0][0]),
            )
        else:
            self._insert(new, about, one, len(rows), value)
        if not one.each:
            self.sums = [*(s for s in self.sums if not same(s, new)), new]
        return said

    def open_again(self, one: Opening, policy: NodePolicy, *, enough: int) -> None:
        """Enter that sums are opened which this run has entered before, over these parties.

        Raises
        ------
        RefusedError
        """
        cohort = self._cohort(one)
        found = self.db.execute(
            "SELECT DISTINCT about, blocks, each, rows FROM opened WHERE run = ?"
            " AND (purpose = ? OR purpose GLOB ?)",
            (self.run, one.purpose, f"{one.purpose}/[0-9]*"),
        ).fetchall()
        for about, blocks, each, rows in found:
            new = self._sum(one, np.frombuffer(blocks, "<i4").tolist(), cohort, 0.0)
            self._check_parties(new, policy, enough)
            if any(same(new, s) for s in (*self.sums, *self.each)):
                self.db.execute(
                    "UPDATE opened SET done = 1 WHERE run = ? AND purpose = ? AND about = ?"
                    " AND cohort = ?",
                    (self.run, one.purpose, about, b"".join(cohort)),
                )
            else:
                self._insert(new, about, replace(one, each=bool(each)), rows, b"")
                (self.each if each else self.sums).append(new)

    def _cohort(self, one: Opening) -> list[bytes]:
        """Return the digests of the pinned keys of the parties."""
        return sorted(digest(self.key, k)[:KEY_BYTES] for k in one.cohort or ())

    def _check_parties(self, new: Sum, policy: NodePolicy, enough: int) -> None:
        """Refuse other parties than those with which its rows were summed before."""
        least, allowed = policy.least_parties(enough), policy.allow_party_change
        known = [*self.sums, *self.each]
        check_parties(self.freeze.blocks, known, new, least=least, allow_one=allowed)

    def _sum(self, one: Opening, blocks: list[int], cohort: list[bytes], numbers: float) -> Sum:
        rest = one.unknowns, one.others, one.width
        among, where = frozenset(cohort), frozenset(blocks)
        function = self._function(one.function) if one.function and numbers else b""
        return Sum(
            self.run, self.kind, one.purpose, among, where, numbers, *rest, one.done, function
        )

    def _function(self, function: bytes) -> bytes:
        """Return the digest of a function of a row: another one if rows had other contents before.

        Columns may be scaled or encoded otherwise than in an earlier run.
        """
        found = digest(self.key, function)
        while not same_contents(self.db, self.place, self.run, found):
            found = digest(self.key, found)
        return found

    def _insert(self, new: Sum, about: bytes, one: Opening, rows: int, value: bytes) -> None:
        packed = np.array(sorted(new.blocks), "<i4").tobytes(), b"".join(sorted(new.cohort))
        names = "run, apart, purpose, about, blocks, cohort, parties, each, done"
        values = self.run, self.apart, one.purpose, about, *packed, one.parties, one.each, one.done
        self.db.execute(
            f"INSERT INTO opened ({names}, unknowns, others, width, rows, how, numbers, functions,"
            f" function) VALUES ({', '.join('?' * 17)})",
            (
                *(*values, one.unknowns, one.others, one.width, rows, one.how),
                *(new.numbers, value, new.function),
            ),
        )

    def _check(
        self, new: Sum, one: Opening, policy: NodePolicy, *, mode: Mode, records: bool
    ) -> str:
        """Refuse a sum, or return what is wrong with it."""
        blocks, least = self.freeze.blocks, policy.min_own_rows
        if one.each:
            return ""
        rows = int(blocks["rows"][sorted(new.blocks)].sum())
        if not one.share and (records or rows >= least):
            check_rows(blocks, self.sums, new, least=least, parts=one.parts)
        if mode == "off" or not new.numbers:
            return ""
        try:
            check_sum(blocks, self.sums, new)
        except RefusedError as error:
            if mode == "refuse":
                raise
            return error.problem
        return ""


def same_contents(db: sqlite3.Connection, place: Path, run: int, function: bytes) -> bool:
    """Tell whether a run has the contents of all runs of a function, for the rows in common.

    These had the same contents among themselves. So the table of one is read only where a row was
    in its sums that is in no later table.
    """
    query = "SELECT saved, held FROM runs WHERE id = ?"
    mine = db.execute(query, (run,)).fetchone()
    query = (
        "SELECT saved, held, blocks FROM runs JOIN opened ON run = runs.id WHERE function = ?"
        " AND runs.id <> ? ORDER BY opened.id DESC"
    )
    freeze = open_freeze(place)
    try:
        rows, values = _contents(db, place, *mine)
        here, ours = np.zeros(len(freeze.names), np.bool_), np.zeros(len(freeze.names), np.uint64)
        here[rows], ours[rows] = True, values
        unseen = here.copy()
        for *table, packed in db.execute(query, (function, run)):
            blocks = np.frombuffer(packed, "<i4").tolist()
            if tuple(table) == mine:
                return True
            if line_of(freeze.blocks, freeze.block[unseen]).isdisjoint(blocks):
                continue
            rows, values = _contents(db, place, *table)
            if (here[rows] & (ours[rows] != values)).any():
                return False
            unseen[rows] = False
    except (CheckpointError, RefusedError):  # nobody can tell
        return False
    return True


def _contents(
    db: sqlite3.Connection, place: Path, saved: str, held: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the numbers in the freeze of a run's rows, and digests of their contents."""
    rows, _ = saved_rows(place, saved)
    return rows[rows >= 0], kept_set(db, held).values[rows >= 0]


def opened_sums(
    db: sqlite3.Connection, partition: int, apart: str = "", *, each: bool = False
) -> list[Sum]:
    """Return all sums over the rows of a freeze of a node, or what was made row by row."""
    query = (
        "SELECT run, kind, purpose, cohort, blocks, numbers, unknowns, others, width, done,"
        " function FROM opened JOIN runs ON runs.id = run"
        " WHERE partition = ? AND each = ? AND apart = ? ORDER BY opened.id"
    )
    return [
        Sum(
            run,
            kind,
            purpose,
            frozenset(_parts(cohort)),
            frozenset(np.frombuffer(blocks, "<i4").tolist()),
            *rest,
        )
        for run, kind, purpose, cohort, blocks, *rest in db.execute(query, (partition, each, apart))
    ]


def _parts(packed: bytes) -> set[bytes]:
    return {packed[k : k + KEY_BYTES] for k in range(0, len(packed), KEY_BYTES)}
