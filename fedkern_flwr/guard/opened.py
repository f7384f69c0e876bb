"""What a node has opened about its blocks, in its ledger; and what it therefore does not open.

An entry is about one purpose of a run, the same blocks and the same parties. It has the numbers
that were opened, and a digest of the node's own values for each sum: values that were opened over
the same parties before tell nothing new, so they are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, RefusedError
from .cells import (
    KEY_BYTES,
    Sum,
    check_parties,
    check_rows,
    check_sum,
    line_of,
    planned_share,
    repeated,
    same,
)
from .counting import Mode
from .freeze import FILE, FOLDS, Freeze
from .ledger_file import Entries
from .policy import NodePolicy
from .rows import Places, digest


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a node's guard is asked with: its owner's policy, and what the client says of its rows.

    Attributes
    ----------
    policy : NodePolicy
        What the node's owner allows.
    mode : {"refuse", "warn", "off"}
        What is done where more numbers would be opened than there are unknowns.
    records : bool
        Whether the rows are records that must hide among each other.
    enough : int
        Parties of a sum that suffice, by what the method states.
    apart : str
        Name of the freeze of the rows, where they are others than the node's table; else empty.
    """

    policy: NodePolicy = NodePolicy()
    mode: Mode = "refuse"
    records: bool = True
    enough: int = 3
    apart: str = ""


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
    db : Entries
        Of the ledger, in a transaction.
    run : int
        Number of the run at hand.
    freeze : Freeze
        Of the node; changed in place where a sum cuts blocks.
    rules : Rules
        What the sums are compared with.
    """

    def __init__(self, db: Entries, run: int, freeze: Freeze, rules: Rules) -> None:
        self.db, self.key, self.run = db, db.key, run
        self.freeze, self.rules = freeze, rules
        self.kind: str = db.value("SELECT kind FROM runs WHERE id = ?", run)
        self.sums = opened_sums(db, rules.apart)
        self.each = opened_sums(db, rules.apart, each=True)

    # -- before a run

    def plan(self) -> Left:
        """Return what the run may plan with."""
        about = self.freeze.blocks, self.sums, self.freeze.select(*range(1, FOLDS + 1))
        share = planned_share(*about, self.kind)
        query = (  # the last function that a run asks for by default
            "SELECT function, opened.how FROM opened JOIN runs ON runs.id = run"
            " WHERE partition = ? AND kind = ? AND apart = ? AND opened.how <> ''"
            " AND function <> x'' GROUP BY function ORDER BY max(opened.id) DESC"
        )
        place = self.db.partition, self.kind, self.rules.apart
        for function, how in self.db.execute(query, place).fetchall():
            numbers = repeated(*about, function)
            if numbers and self._same_contents(function):
                return Left(share, numbers, how)
        return Left(share)

    # -- a sum

    def enter(self, one: Opening, rows: Places) -> str:
        """Enter a sum; return what is wrong with it if it is only warned of.

        Parameters
        ----------
        one : Opening
            The sum.
        rows : ndarray of int64
            Numbers of its rows in the freeze.

        Raises
        ------
        RefusedError
        """
        there = rows[rows >= 0]
        if len(there) < len(rows) and one.numbers and not one.each:
            raise RefusedError(
                "refused: rows are asked for that are in no block of its freeze",
                remedy="wait until enough of them have come; the log of the node says more",
                code="FK-FREEZE-WAITS",
            )
        of = self.freeze.block
        blocks = np.unique(of[there]).tolist() if one.each else self.freeze.split(there)
        about = digest(self.key, np.sort(self.freeze.values[there]).tobytes())
        cohort = self._cohort(one)
        value = digest(self.key, one.values)[:KEY_BYTES] if one.values else b""
        numbers = one.numbers + one.share * len(there) * one.unknowns
        before, values, function = 0.0, b"", None
        for run, known, told, packed, was in self.db.execute(
            "SELECT run, numbers, functions, blocks, function FROM opened"
            " WHERE purpose = ? AND about = ? AND cohort = ? AND each = ?",
            (one.purpose, about, b"".join(cohort), one.each),
        ).fetchall():
            if run == self.run:  # blocks may have been split since
                before, values, function, blocks = known, told, was, _numbers(packed)
            if value and value in _parts(told):
                numbers = 0.0
        if function is not None and not numbers:
            return ""
        # with numbers 0 it is entered all the same, for the owner to see
        numbers = max(before, numbers) if one.share else before + numbers
        new = self._sum(one, blocks, cohort, numbers)
        if function not in (None, new.function):  # of another function as well: they have none
            new = replace(new, function=b"")
        if one.parties and one.done:
            self._check_parties(new)
        said = self._check(new, one)
        self._keep(new, about, one, len(there), values + value)
        if not one.each:
            self.sums = [*(s for s in self.sums if not same(s, new)), new]
        return said

    def open_again(self, one: Opening) -> None:
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
            new = self._sum(one, _numbers(blocks), cohort, 0.0)
            self._check_parties(new)
            self._keep(new, about, replace(one, each=bool(each)), rows, b"")

    def _cohort(self, one: Opening) -> list[bytes]:
        """Return the digests of the pinned keys of the parties."""
        return sorted(digest(self.key, k)[:KEY_BYTES] for k in one.cohort or ())

    def _check_parties(self, new: Sum) -> None:
        """Refuse other parties than those with which its rows were summed before."""
        policy = self.rules.policy
        least, allowed = policy.least_parties(self.rules.enough), policy.allow_party_change
        known = [*self.sums, *self.each]
        check_parties(self.freeze.blocks, known, new, least=least, allow_one=allowed)

    def _sum(self, one: Opening, blocks: list[int], cohort: list[bytes], numbers: float) -> Sum:
        """Return what is counted of a sum.

        Its function is another one than in an earlier run if rows had other contents then: columns
        may be scaled or encoded otherwise.
        """
        function = digest(self.key, one.function) if one.function and numbers else b""
        while function and not self._same_contents(function):
            function = digest(self.key, function)
        what = self.run, self.kind, one.purpose, frozenset(cohort), frozenset(blocks), numbers
        return Sum(*what, one.unknowns, one.others, one.width, one.done, function)

    def _keep(self, new: Sum, about: bytes, one: Opening, rows: int, values: bytes) -> None:
        """Write a sum; one that is there has its numbers and function from the latest with any."""
        entry = {
            **vars(new),
            "blocks": np.array(sorted(new.blocks), "<i4").tobytes(),
            "cohort": b"".join(sorted(new.cohort)),
            **{"apart": self.rules.apart, "about": about, "rows": rows, "functions": values},
            **{name: getattr(one, name) for name in ("parties", "each", "how")},
        }
        del entry["kind"]  # that of the run
        again = "done = 1" if one.again else "numbers = excluded.numbers, "
        if not one.again:
            again += "functions = excluded.functions, function = excluded.function"
        self.db.execute(
            f"INSERT INTO opened ({', '.join(entry)}) VALUES (:{', :'.join(entry)})"
            f" ON CONFLICT DO UPDATE SET {again}",
            entry,
        )

    def _check(self, new: Sum, one: Opening) -> str:
        """Refuse a sum, or return what is wrong with it."""
        blocks, least, mode = self.freeze.blocks, self.rules.policy.min_own_rows, self.rules.mode
        if one.each:
            return ""
        rows = int(blocks["rows"][sorted(new.blocks)].sum())
        if not one.share and (self.rules.records or rows >= least):
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

    def _same_contents(self, function: bytes) -> bool:
        """Tell whether this run has the contents of all runs of a function, for the rows in common.

        These had the same contents among themselves. So the table of one is read only where a row
        was in its sums that is in no later table.
        """
        mine = self.db.execute(_TABLE, (self.run,)).fetchone()
        query = (
            "SELECT held, places, frozen, blocks FROM runs JOIN opened ON run = runs.id"
            " WHERE function = ? AND runs.id <> ? ORDER BY opened.id DESC"
        )
        try:
            rows, values = self._contents(*mine)
            here = np.zeros(len(self.freeze.names), np.bool_)
            ours = np.zeros(len(here), np.uint64)
            here[rows], ours[rows] = True, values
            unseen = here.copy()
            for *its, packed in self.db.execute(query, (function, self.run)):
                if tuple(its) == mine:
                    return True
                line = line_of(self.freeze.blocks, self.freeze.block[unseen])
                if line.isdisjoint(_numbers(packed)):
                    continue
                rows, values = self._contents(*its)
                if (here[rows] & (ours[rows] != values)).any():
                    return False
                unseen[rows] = False
        except RefusedError:  # nobody can tell
            return False
        return True

    def _contents(
        self, held: int, places: int | None, frozen: bytes
    ) -> tuple[Places, NDArray[np.uint64]]:
        """Return the numbers in the freeze of a run's rows, and digests of their contents."""
        rows = frozen_rows(self.db, self.freeze, places, frozen)
        return rows[rows >= 0], self.db.row_set(held).values[rows >= 0]


_TABLE = "SELECT held, places, frozen FROM runs WHERE id = ?"


def frozen_rows(db: Entries, freeze: Freeze, places: int | None, frozen: bytes) -> Places:
    """Return the numbers in the freeze of the rows of a run; none of a stream.

    Raises
    ------
    RefusedError
        Their contents have changed since the run was opened.
    """
    if places is None:
        return np.zeros(0, np.int64)
    rows: Places = np.frombuffer(db.array(places), np.int64)
    if frozen != contents_of(db, freeze, rows):
        raise RefusedError(
            "refused: its table has changed since the run was opened",
            remedy="start the run again",
            code="FK-FREEZE-WAITS",
        )
    return rows


def check_freeze(db: Entries, freeze: Freeze, sums: Sequence[Sum]) -> str:
    """Refuse a freeze that is gone, or whose sums another ledger has counted; return this one.

    Raises
    ------
    OptionError
    """
    mark = digest(db.key, b"freeze").hex()
    last = max((max(one.blocks, default=-1) for one in sums), default=-1)
    if last >= len(freeze.blocks):
        raise OptionError(
            f"{FILE} is gone, or is an old one",
            remedy="bring back a copy of the state_dir: without it nobody can tell what was opened",
            code="FK-FREEZE-FILE",
        )
    if freeze.ledger not in ("", mark):
        raise OptionError(
            "the ledger that counted the sums of this freeze is gone",
            remedy="bring back a copy of the state_dir",
            code="FK-FREEZE-LEDGER",
        )
    return mark


def contents_of(db: Entries, freeze: Freeze, rows: Places) -> bytes:
    """Return a digest of what rows of a freeze are now; nothing of rows of another freeze."""
    there = rows[rows >= 0]
    if there.max(initial=-1) >= len(freeze.values):
        return b""
    return digest(db.key, freeze.values[there].tobytes())


def opened_sums(db: Entries, apart: str = "", *, each: bool = False) -> list[Sum]:
    """Return all sums over the rows of a freeze of the node, or what was made row by row."""
    query = (
        "SELECT run, kind, purpose, cohort, blocks, numbers, row, others, width, done,"
        " function FROM opened JOIN runs ON runs.id = run"
        " WHERE partition = ? AND each = ? AND apart = ? ORDER BY opened.id"
    )
    about = db.partition, each, apart
    return [
        Sum(run, kind, purpose, frozenset(_parts(cohort)), frozenset(_numbers(blocks)), *rest)
        for run, kind, purpose, cohort, blocks, *rest in db.execute(query, about)
    ]


def _numbers(blocks: bytes) -> list[int]:
    found: list[int] = np.frombuffer(blocks, "<i4").tolist()
    return found


def _parts(packed: bytes) -> set[bytes]:
    return {packed[k : k + KEY_BYTES] for k in range(0, len(packed), KEY_BYTES)}
