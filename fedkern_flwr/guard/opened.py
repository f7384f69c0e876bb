"""Enter what a node opens about its blocks, and refuse what breaks a limit.

An entry is about one purpose of a run, the same blocks and the same parties. It has the numbers
that were opened, and a digest of the node's values for each sum. Values that were opened over the
same parties before reveal nothing new, so they cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, RefusedError, refusal
from ..privacy.accounting import ORDERS, Curve, epsilon_of
from ..privacy.budget import Release
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
from .freeze import FILE, FOLDS, Freeze
from .ledger_file import Entries
from .policy import NodePolicy, Rules
from .rows import Places, RowSet, digest


@dataclass(frozen=True, eq=False)
class Opening:
    """A sum that a node is about to contribute to, or helps to open.

    Attributes
    ----------
    rows : ndarray of int, optional
        Places of the summed rows in the node's table. Default: all training rows.
    each : bool
        Whether it is made row by row, and so is no sum over rows.
    cohort : sequence of bytes, optional
        Pinned keys of the parties; None if unknown.
    numbers : float
        Numbers about rows that the server opens; 0 if they are not counted.
    unknowns : float
        Unknowns of a row.
    others : int
        Hidden rows of other parties.
    width : int
        Number of columns, if products of columns are summed.
    values : bytes
        Digest of the node's values.
    function, how : bytes, str
        Identify the summed function of a row across runs (empty if unknown), and the public
        parameters with which a server requests it again.
    share : float
        For a run that counts by itself: numbers opened per unknown, at most.
    done, again : bool
        Whether this entry opens the sum, and whether it opens an earlier one.
    parts : int
        Least rows of a part that may be separated, if more than ``min_own_rows``.
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

    ``share`` is that of the unknowns of the rows, 1 if nothing is counted. ``again`` is the number
    of numbers if an earlier run's function is summed again, with the parameters ``how``.
    """

    share: float = 1.0
    again: float = 0.0
    how: str = ""


class Opened:
    """Compare sums with what was opened about a node's blocks.

    ``freeze`` is changed in place if a sum splits blocks.
    """

    def __init__(self, db: Entries, run: int, freeze: Freeze, rules: Rules) -> None:
        self.db, self.key, self.run = db, db.key, run
        self.freeze, self.rules = freeze, rules
        self.kind: str = db.value("SELECT kind FROM runs WHERE id = ?", run)
        self.sums = opened_sums(db, rules.apart)
        self.each = opened_sums(db, rules.apart, each=True)

    # -- before a run

    def plan(self) -> Left:
        about = self.freeze.blocks, self.sums, self.freeze.select(*range(1, FOLDS + 1))
        share = planned_share(*about, self.kind)
        query = (  # the latest function that a run requests by default
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
        """Enter a sum; return its problem if the policy only warns.

        ``rows`` are the numbers of its rows in the freeze, shape (n,).

        Raises
        ------
        RefusedError
            A rule is broken.
        """
        there = rows[rows >= 0]
        if len(there) < len(rows) and one.numbers and not one.each:
            raise RefusedError(
                "refused: rows are asked for that are in no block of its freeze",
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
        """Enter that sums of this run are opened over these parties, or refuse it."""
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
        return sorted(digest(self.key, k)[:KEY_BYTES] for k in one.cohort or ())

    def _check_parties(self, new: Sum) -> None:
        policy = self.rules.policy
        least, allowed = policy.least_parties(self.rules.enough), policy.allow_party_change
        known = [*self.sums, *self.each]
        check_parties(self.freeze.blocks, known, new, least=least, allow_one=allowed)

    def _sum(self, one: Opening, blocks: list[int], cohort: list[bytes], numbers: float) -> Sum:
        """Return the entry of a sum.

        Its function is new if rows had other contents in the earlier run, because columns may then
        be scaled or encoded differently.
        """
        function = digest(self.key, one.function) if one.function and numbers else b""
        while function and not self._same_contents(function):
            function = digest(self.key, function)
        what = self.run, self.kind, one.purpose, frozenset(cohort), frozenset(blocks), numbers
        return Sum(*what, one.unknowns, one.others, one.width, one.done, function)

    def _keep(self, new: Sum, about: bytes, one: Opening, rows: int, values: bytes) -> None:
        """Write a sum; an existing entry takes numbers and function from the latest sum."""
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
        """Return whether the rows of this run have the contents of all earlier runs of a function.

        Those agree with each other. So a table is read only if its sums have a row that is in no
        later table.
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
        except RefusedError:  # the contents are unknown
            return False
        return True

    def _contents(
        self, held: int, places: int | None, frozen: bytes
    ) -> tuple[Places, NDArray[np.uint64]]:
        rows = frozen_rows(self.db, self.freeze, places, frozen)
        return rows[rows >= 0], self.db.row_set(held).values[rows >= 0]


_TABLE = "SELECT held, places, frozen FROM runs WHERE id = ?"


def frozen_rows(db: Entries, freeze: Freeze, places: int | None, frozen: bytes) -> Places:
    """Return a run's rows as numbers in the freeze; none for a stream.

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
    """Return the mark of this ledger; raise OptionError if it does not belong to the freeze."""
    mark = digest(db.key, b"freeze").hex()
    last = max((max(one.blocks, default=-1) for one in sums), default=-1)
    if last >= len(freeze.blocks):
        raise OptionError(f"{FILE} is gone, or is an old one", code="FK-FREEZE-FILE")
    if freeze.ledger not in ("", mark):
        raise OptionError(
            "the ledger that counted the sums of this freeze is gone", code="FK-FREEZE-LEDGER"
        )
    return mark


def contents_of(db: Entries, freeze: Freeze, rows: Places) -> bytes:
    """Return a digest of the current contents of frozen rows; empty for rows of another freeze."""
    there = rows[rows >= 0]
    if there.max(initial=-1) >= len(freeze.values):
        return b""
    return digest(db.key, freeze.values[there].tobytes())


def opened_sums(db: Entries, apart: str = "", *, each: bool = False) -> list[Sum]:
    """Return all sums over the rows of a freeze, or with ``each`` what was made row by row."""
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


# -- what releases with noise have cost the rows of a node, in all runs

_ROUNDING = 1e-6
_FEW = 1000  # rows that are compared one by one

#: Of a release: whether it is about held-out rows, its curve (or the key of an earlier release that
#: has the same one), its delta, and of one about some rows where these end, else 0.
Spent = tuple[bool, list[float] | str, float, int]

_BEFORE = "before"  # of a party: all releases about earlier rows


@dataclass(frozen=True)
class Charge:
    """A release with noise.

    A repeated release with the same noise (``key``) is charged once. ``rows`` are the first row,
    and the one after the last; None for all.
    """

    key: bytes
    release: Release
    held_out: bool = False
    rows: tuple[int, int] | None = None


def charge(
    db: Entries,
    run: int,
    charges: Sequence[Charge],
    policy: NodePolicy,
    *,
    taken: RowSet | None = None,
) -> None:
    """Enter what releases cost; refuse those that cost a row more than ``max_epsilon``.

    Releases of different runs add up, whichever rows they are about: the same patient may have
    another id, order or scale in the next run. Two releases do not add up only if no row can be in
    both: other rows of the same run, other places of one stream, or other ids declared permanent.
    Releases about a whole party always add up.
    """
    partition, key = db.partition, db.key
    for one in charges:
        rows = _rows(db, run, one) if taken is None else taken
        if not len(rows):
            continue
        pool = f"{partition}: run {run}"
        if taken is not None:
            pool = f"{partition}: stream"
        elif policy.permanent_ids and not np.array_equal(rows.names, rows.values):
            pool = f"{partition}: ids"
        if one.release.budget.unit == "party":
            everything = np.array(np.frombuffer(digest(key, b"party")[:8], "<u8"))
            rows = rows.union(RowSet(everything, everything))
        curve, delta = json.dumps(one.release.curve.tolist()), one.release.delta
        entry = run, digest(key, one.key), db.keep_array(rows.pack()), curve, delta, pool
        found = db.execute("INSERT OR IGNORE INTO spending VALUES (?, ?, ?, ?, ?, ?)", entry)
        if found.rowcount:
            cost = _epsilon(_about(db, rows, "run = ?", run))
            _check_run(cost, one.release)
            db.execute("UPDATE runs SET epsilon = max(epsilon, ?) WHERE id = ?", (cost, run))
            about = _about(db, rows, "pool = ?", pool)
            others = db.execute(
                "SELECT curve, delta FROM pools WHERE partition = ? AND pool <> ?",
                (partition, pool),
            ).fetchall()
            _check(_epsilon([*about, *others]), policy)
            _keep_most(db, pool, about)


def _keep_most(db: Entries, pool: str, about: Sequence[tuple[str, float]]) -> None:
    """Save the largest loss of any row of a pool, for each order of the curve."""
    most, delta = _total(about), min(delta for _, delta in about)
    before = db.execute("SELECT curve, delta FROM pools WHERE pool = ?", (pool,)).fetchone()
    if before is not None:
        most, delta = np.maximum(most, json.loads(before[0])), min(delta, before[1])
    values = (db.partition, pool, json.dumps(most.tolist()), delta)
    db.execute("INSERT OR REPLACE INTO pools VALUES (?, ?, ?, ?)", values)


def spend(spent: Mapping[str, Spent], charges: Sequence[Charge]) -> dict[str, Spent]:
    """Add releases to those of a run, by noise key; refuse more than the run's budget.

    A server that requests the same sum with other numbers gets other noise, and so another release.
    Rows of an earlier message are refused.
    """
    found = dict(spent)
    for one in charges:
        release, name, stop = one.release, one.key.hex(), 0
        whole = release.budget.unit == "party"
        if one.rows is not None:
            start, stop = one.rows
            earlier = {k: s for k, s in found.items() if s[3] and k != name}
            if any(s[3] > start for s in earlier.values()):
                raise refusal(
                    "privacy: rows of an earlier message are asked for again",
                    code="FK-BUDGET-AGAIN",
                )
            found = {k: s for k, s in found.items() if k not in earlier}
            if whole and earlier:
                curve = np.sum([s[1] for s in earlier.values()], axis=0).tolist()
                least = min(s[2] for s in earlier.values())
                found[_BEFORE] = (False, curve, least, start)
        elif not (whole or one.held_out or name in found) and any(s[3] for s in found.values()):
            raise refusal("privacy: rows of messages are asked for again", code="FK-BUDGET-AGAIN")
        if name not in found:
            curve = release.curve.tolist()
            alike = (k for k, s in found.items() if not (stop or s[3]) and s[1] == curve)
            found[name] = (one.held_out, next(alike, curve), release.delta, stop)
        about = [s for s in found.values() if whole or s[0] == one.held_out]
        curves = [found[s[1]][1] if isinstance(s[1], str) else s[1] for s in about]
        epsilon = epsilon_of(np.sum(curves, axis=0), min(s[2] for s in about))
        _check_run(epsilon, release)
    return found


def _check_run(epsilon: float, release: Release) -> None:
    if epsilon > release.budget.epsilon * (1.0 + _ROUNDING):
        raise refusal(
            "privacy: the run would cost more than the budget that it declared",
            code="FK-BUDGET-EXCEEDED",
        )


def spent_in_all(db: Entries, partition: int) -> float:
    """Return an upper bound of the epsilon spent on one row, by all runs together."""
    query = "SELECT curve, delta FROM pools WHERE partition = ?"
    return _epsilon(db.execute(query, (partition,)).fetchall())


def _check(total: float, policy: NodePolicy) -> None:
    if total > policy.max_epsilon * (1.0 + _ROUNDING):
        raise refusal(
            f"max_epsilon = {policy.max_epsilon:g}: with this run its rows would lose {total:.3g} "
            "in all runs",
            code="FK-BUDGET-SPENT",
        )


def _total(found: Sequence[tuple[str, float]]) -> Curve:
    total: Curve = np.zeros(len(ORDERS))
    for curve, _ in found:
        total = total + np.array(json.loads(curve))
    return total


def _epsilon(found: Sequence[tuple[str, float]]) -> float:
    return epsilon_of(_total(found), min(delta for _, delta in found)) if found else 0.0


def _about(db: Entries, rows: RowSet, where: str, value: int | str) -> list[tuple[str, float]]:
    """Return curve and delta of releases of a run, or pool, about some of the rows."""
    query = f"SELECT data, curve, delta FROM spending JOIN arrays ON arrays.id = rows WHERE {where}"
    about = db.execute(query, (value,))
    meets = rows.meets
    if len(rows) < _FEW:  # of a stream there are many small sets
        names = set(rows.names.tolist())

        def meets(other: RowSet) -> bool:
            return not names.isdisjoint(other.names.tolist())

    return [(curve, delta) for data, curve, delta in about if meets(RowSet.unpack(data))]


def _rows(db: Entries, run: int, one: Charge) -> RowSet:
    """Return the rows of a release; all rows of the table if it is about a party."""
    whole, first = db.row_set(db.value(_HELD, run)), learned_rows(db, run)
    if one.release.budget.unit == "party":
        return whole.sorted()
    if one.rows is not None:
        return whole.take(slice(*one.rows)).sorted()
    return whole.take(~np.isin(whole.values, first.values)).sorted() if one.held_out else first


_HELD = "SELECT held FROM runs WHERE id = ?"


def learned_rows(db: Entries, run: int) -> RowSet:
    learned = db.value("SELECT learned FROM runs WHERE id = ?", run)
    return db.row_set(db.value(_HELD, run)).take(slice(learned)).sorted()
