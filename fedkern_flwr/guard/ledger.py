"""A node's ledger: what it answered, in one SQLite file that outlives runs and crashes.

An entry is committed, and forced to disk, before the answer that it is about leaves the node. So a
crash may leave an entry without its answer, and never an answer without its entry. Two runs at a
time take turns: a decision and the entries that follow from it are one transaction.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, ProtocolError
from .counting import mode
from .history import Answer, Conflict, Entry, conflicts
from .ledger_file import LedgerFile, keep_set, kept_set, secret_key
from .orders import refusal
from .policy import NodePolicy
from .rows import OwnRows, RowSet, digest, set_of
from .shown import keep_shown
from .spending import Charge, charge, kept_noise, pool_earlier, spent_in_all
from .streamed import Streamed, keep_place, keep_rows, kept_place, name_rows, runs_with, streamed_in
from .summaries import RunSummary, count, run_summaries

_ROUNDING = 1e-9


class NodeLedger:
    """The ledger in a node's folder; made where there is none.

    Parameters
    ----------
    folder : Path
        The node's own folder.
    partition : int
        Which node it is: several on one machine may share a folder.
    """

    def __init__(self, folder: Path, partition: int = 0) -> None:
        self.partition, self.party = partition, f"partition {partition}"
        self.file = LedgerFile(folder, self.party, pool_earlier)

    @property
    def exists(self) -> bool:
        """Whether there is a ledger; it is made when it is first written."""
        return self.file.path.is_file()

    def make(self) -> None:
        """Make the ledger of a new node; one that is there stays."""
        with self.file.writing():
            pass

    # -- a run

    def open_run(
        self,
        session: str,
        *,
        kind: str,
        method: str,
        secure: bool,
        pinned: bool,
        rows: OwnRows,
    ) -> None:
        """Note that a run was opened here, with which rows; asked again, with which rows now.

        Parameters
        ----------
        session : str
            Name of the run.
        kind : str
            What answers: runs of one kind are compared, whatever the server calls them.
        method : str
            What the server calls it.
        secure, pinned : bool
            Whether it takes secure sums, and whether its parties are known.
        rows : OwnRows
            The rows of the node's table.
        """
        with self.file.writing() as db:
            key = secret_key(db)
            held = rows.digests(key)
            learned = keep_set(db, key, held.take(slice(rows.learned)).sorted())
            values = (kind, method[:40], secure, pinned, keep_set(db, key, held), learned)
            db.execute(
                "INSERT INTO runs (session, partition, opened, kind, method, secure, pinned, held,"
                " learned) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
                " held = excluded.held, learned = excluded.learned",
                (digest(key, session.encode()), self.partition, _now(), *values),
            )

    def enter(
        self,
        session: str,
        sums: Iterable[Answer],
        policy: NodePolicy,
        *,
        records: bool,
        share: float = 0.0,
        charges: Sequence[Charge] = (),
        taken: RowSet | None = None,
        shown: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Enter what an answer is about; it may leave when this has returned.

        Parameters
        ----------
        session : str
            Name of the run.
        sums : iterable of Answer
            What is summed.
        policy : NodePolicy
            What the node's owner allows.
        records : bool
            See :func:`~fedkern_flwr.guard.history.conflicts`.
        share : float
            Numbers that the run has released so far about rows, for each unknown behind them; in
            all runs over some of the same rows at most one, unless the policy lets more pass.
        charges : sequence of Charge
            What is released with noise.
        taken : RowSet, optional
            Of a stream: the rows of the message at hand, see :meth:`take`.
        shown : mapping
            Mark of values that are opened -> digest of the parties, see :mod:`.shown`.

        Raises
        ------
        RefusedError
            It must not be compared with what was answered before. Nothing is entered then.
        ProtocolError
            The run was not opened here.
        """
        with self.file.writing() as db:
            run, kind = self._run(db, session)
            key = secret_key(db)
            for answer in sums:
                for entry in self._entries(db, key, run, answer):
                    self._enter(db, key, kind, entry, policy, records=records)
            if share:
                self._spend(db, run, share, policy)
            charge(db, key, run, charges, policy, self.party, taken=taken)
            keep_shown(db, key, run, shown, self.party)

    def record(self, session: str) -> str:
        """Return the node's record of a run; nothing of one that it does not know."""
        with self.file.open() as db:
            place = (digest(secret_key(db), session.encode()), self.partition)
            query = "SELECT record FROM runs WHERE session = ? AND partition = ?"
            found = db.execute(query, place).fetchone()
            return "" if found is None else str(found[0])

    def keep_record(self, session: str, record: str) -> None:
        """Keep the node's record of a run, before what it is about leaves the node."""
        with self.file.writing() as db:
            place = (record, digest(secret_key(db), session.encode()), self.partition)
            db.execute("UPDATE runs SET record = ? WHERE session = ? AND partition = ?", place)

    def fail(self) -> None:
        """Count a failure that may depend on values, over all runs."""
        with self.file.writing() as db:
            db.execute(
                "INSERT INTO failures VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1",
                (self.partition,),
            )

    def failures(self, *, reset: bool = False) -> int:
        """Return how often runs of this node failed by values; ``reset`` begins anew."""
        with self.file.writing() if reset else self.file.open() as db:
            query = "SELECT number FROM failures WHERE partition = ?"
            found = db.execute(query, (self.partition,)).fetchone()
            if reset:
                db.execute("DELETE FROM failures WHERE partition = ?", (self.partition,))
            return 0 if found is None else int(found[0])

    def has_exact_sums(self, session: str) -> bool:
        """Tell whether other runs of this node have summed without noise."""
        with self.file.open() as db:
            query = (
                "SELECT count(*) FROM sums JOIN runs ON runs.id = run WHERE partition = ?"
                " AND id <> ? AND parties > 0 AND run NOT IN (SELECT run FROM spending)"
            )
            number = self._number(db, session) or 0
            return bool(db.execute(query, (self.partition, number)).fetchone()[0])

    def spent(self) -> float:
        """Return epsilon of what all runs of this node have released with noise, of one row."""
        with self.file.open() as db:
            return spent_in_all(db, self.partition)

    def noise_key(self, session: str) -> bytes:
        """Return the key of the noise of a run: the same until the run is over."""
        with self.file.writing() as db:
            return kept_noise(db, self._run(db, session)[0])

    def split_key(self) -> bytes:
        """Return the key by which held-out rows are dealt to calibration and report, for good."""
        with self.file.writing() as db:
            return digest(secret_key(db), b"halves of held-out rows")

    def forget_noise(self, session: str) -> None:
        """Erase the key of the noise of a run."""
        with self.file.writing() as db:
            db.execute("DELETE FROM noise WHERE run = ?", (self._number(db, session),))

    def tell(
        self,
        session: str,
        asked: str,
        rows: NDArray[np.integer[Any]],
        figures: list[float],
        policy: NodePolicy,
    ) -> list[float]:
        """Enter figures about held-out rows; return those to tell: asked again, those told before.

        Parameters
        ----------
        session : str
            Name of the run.
        asked : str
            What is asked for: the same is answered in the same way.
        rows : ndarray of int
            The rows that they are about, by their places in the table.
        figures : list of float
            As computed now.
        policy : NodePolicy
            What the node's owner allows.

        Raises
        ------
        RefusedError
            Figures about these rows were told too often, in all runs.
        """
        with self.file.writing() as db:
            run, _ = self._run(db, session)
            key = secret_key(db)
            place = (run, digest(key, asked.encode()))
            found = db.execute(
                "SELECT told FROM evaluations WHERE run = ? AND asked = ?", place
            ).fetchone()
            if found is not None:
                told: list[float] = json.loads(found[0])
                return told
            about = self._held(db, run).take(rows).sorted()
            judged = keep_set(db, key, RowSet(about.names, about.names))
            (done,) = db.execute(
                "SELECT count(*) FROM evaluations WHERE rows = ?", (judged,)
            ).fetchone()
            if done >= policy.max_evaluations:
                rule = f"max_evaluations = {policy.max_evaluations} of these rows, in all runs"
                raise refusal(rule, self.party, code="FK-POLICY-EVALUATIONS")
            db.execute(
                "INSERT INTO evaluations VALUES (?, ?, ?, ?)", (*place, judged, json.dumps(figures))
            )
            return figures

    def place(self) -> str:
        """Return where this node's stream goes on; nothing at first."""
        with self.file.open() as db:
            return kept_place(db, self.partition)

    def take(self, session: str, taken: Streamed, *, compare: bool) -> RowSet:
        """Enter rows of a stream that take part in a run, and where the stream goes on.

        Returns their digests.

        With ``compare`` rows that took part before are refused: those of sums are.

        Raises
        ------
        RefusedError
            Some took part before. Nothing is entered then.
        """
        with self.file.writing() as db:
            run, _ = self._run(db, session)
            rows = name_rows(db, secret_key(db), self.partition, taken)
            before = runs_with(db, rows) if compare else set()
            if run in before or len(np.unique(rows.names)) < len(rows):
                remedy = "name an id-column whose values come once"
                raise refusal(
                    "stream: a row would take part twice",
                    self.party,
                    remedy,
                    code="FK-STREAM-TWICE",
                )
            rule = "stream: some of its new rows are among"
            self._permit(
                db, run, [Conflict(other, rule, "FK-LEDGER-STREAM") for other in sorted(before)]
            )
            keep_rows(db, run, rows)
            keep_place(db, self.partition, taken.place)
            return rows

    def refuse(self, session: str, rule: str) -> None:
        """Count a refusal."""
        with self.file.writing() as db:
            number = self._number(db, session)
            db.execute(
                "INSERT INTO refusals VALUES (?, ?, 1)"
                " ON CONFLICT DO UPDATE SET number = number + 1",
                (number or 0, rule.partition(":")[0]),
            )

    # -- the owner

    def allow(self, runs: Sequence[int]) -> None:
        """Let one run more be answered that must not be compared with these.

        Raises
        ------
        OptionError
            There is no such run.
        """
        with self.file.writing() as db:
            for run in runs:
                if not count(db, "runs WHERE id = ?", run):
                    raise OptionError(
                        f"there is no run {run} in the ledger",
                        remedy="take the number from the refusal or `fedkern node ledger show`",
                        code="FK-LEDGER-RUN",
                    )
                db.execute("INSERT INTO permissions VALUES (?, ?, NULL)", (run, _now()))

    def runs(self) -> list[RunSummary]:
        """Return what was answered, run by run."""
        with self.file.open() as db:
            return run_summaries(db)

    def refusals(self) -> list[tuple[int, str, int]]:
        """Return (run or 0, rule, how often) of what was refused."""
        with self.file.open() as db:
            query = "SELECT run, rule, number FROM refusals ORDER BY run, rule"
            return db.execute(query).fetchall()

    # -- entries

    def _entries(
        self, db: sqlite3.Connection, key: bytes, run: int, answer: Answer
    ) -> Iterator[Entry]:
        """Yield the entries of an answer: of the table, of its rows, or of those entered before."""
        cohort = None if answer.cohort is None else set_of(key, answer.cohort)
        entry = Entry(answer.purpose, RowSet.none(), "", False, cohort, answer.parties, run)
        if answer.again:
            for rows, of, each in db.execute(
                "SELECT DISTINCT rows, of, each FROM sums WHERE run = ? AND purpose = ?",
                (run, answer.purpose),
            ).fetchall():
                yield replace(entry, rows=kept_set(db, rows), group=of, each=bool(each))
        elif answer.rows is None:
            (learned,) = db.execute("SELECT learned FROM runs WHERE id = ?", (run,)).fetchone()
            yield replace(entry, rows=kept_set(db, learned))
        else:
            rows = self._held(db, run).take(answer.rows).sorted()
            yield replace(entry, rows=rows, group=answer.purpose, each=answer.each)

    def _enter(
        self,
        db: sqlite3.Connection,
        key: bytes,
        kind: str,
        entry: Entry,
        policy: NodePolicy,
        *,
        records: bool,
    ) -> None:
        """Enter one sum, unless it is there.

        Raises
        ------
        RefusedError
        """
        cohort = None
        if entry.cohort is not None:
            cohort = keep_set(db, key, RowSet(entry.cohort, entry.cohort))
        rows = entry.rows
        place = (entry.run, entry.purpose, entry.group, entry.each, cohort, entry.parties)
        where = "run = ? AND purpose = ? AND of = ? AND each = ? AND cohort IS ? AND parties = ?"
        before = db.execute(f"SELECT rows FROM sums WHERE {where}", place).fetchall()
        if entry.each and before:  # rows that were asked for one after the other are one entry
            known = kept_set(db, before[0][0])
            rows = known.union(rows)
            if len(rows) == len(known) and len(rows.values) == len(known.values):
                return
        kept = keep_set(db, key, rows)
        if (kept,) in before:
            return
        found = conflicts(
            entry,
            self._answered(db, kind, entry),
            min_own_rows=policy.min_own_rows,
            records=records,
        )
        self._permit(db, entry.run, found)
        if entry.each and before:
            db.execute(f"DELETE FROM sums WHERE {where}", place)
        names = "run, purpose, of, each, cohort, parties, rows, number"
        values = (*place, kept, len(rows))
        db.execute(f"INSERT INTO sums ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _spend(self, db: sqlite3.Connection, run: int, share: float, policy: NodePolicy) -> None:
        """Note which share of the unknowns of its rows a run has released, with other runs.

        Raises
        ------
        RefusedError
        """
        query = "SELECT share, learned FROM runs WHERE id = ?"
        before, learned = db.execute(query, (run,)).fetchone()
        if share <= before:
            return
        db.execute("UPDATE runs SET share = ? WHERE id = ?", (share, run))
        rows = kept_set(db, learned).union(streamed_in(db, run))
        others = {
            other: spent
            for other, spent, held in db.execute(
                "SELECT id, share, learned FROM runs WHERE share > 0 AND id <> ?", (run,)
            ).fetchall()
            if rows.meets(kept_set(db, held).union(streamed_in(db, other)))
        }
        strict = mode(policy, refuses=True) == "refuse"
        if strict and share + sum(others.values()) > 1.0 + _ROUNDING:
            rule = "counting: more numbers than unknowns would be released of its rows, with"
            self._permit(db, run, [Conflict(other, rule, "FK-LEDGER-COUNTING") for other in others])

    def _answered(self, db: sqlite3.Connection, kind: str, new: Entry) -> Iterator[Entry]:
        """Yield what was answered before in runs of the same kind, and could be compared."""
        for run, purpose, of, each, rows, cohort, parties in db.execute(
            "SELECT run, purpose, of, each, rows, cohort, parties FROM sums JOIN runs"
            " ON runs.id = run WHERE kind = ? AND (of = ? OR purpose = ?)",
            (kind, new.group, new.purpose),
        ):
            pinned = None if cohort is None else kept_set(db, cohort).names
            yield Entry(purpose, kept_set(db, rows), of, bool(each), pinned, parties, run)

    def _permit(self, db: sqlite3.Connection, run: int, found: list[Conflict]) -> None:
        """Use up the permissions that conflicts need, each once for a run.

        Raises
        ------
        RefusedError
            One is missing.
        """
        missing = []
        for conflict in found:
            given = db.execute(
                "SELECT rowid, used FROM permissions WHERE run = ? AND (used IS NULL OR used = ?)"
                " ORDER BY used IS NULL",
                (conflict.run, run),
            ).fetchone()
            if given is None:
                missing.append(conflict)
            elif given[1] is None:
                db.execute("UPDATE permissions SET used = ? WHERE rowid = ?", (run, given[0]))
        if missing:
            numbers = " ".join(str(conflict.run) for conflict in missing)
            runs = f"{'run' if len(missing) == 1 else 'runs'} {numbers}"
            command = f"fedkern node policy allow {numbers} --state-dir DIR"
            raise refusal(
                f"{missing[0].rule} those of {runs} in its ledger",
                self.party,
                f"its owner may allow it once, with `{command}`",
                code=missing[0].code,
            )

    def _run(self, db: sqlite3.Connection, session: str) -> tuple[int, str]:
        """Return number and kind of a run."""
        number = self._number(db, session)
        if number is None:
            raise ProtocolError(
                "its ledger knows nothing of this run",
                remedy="leave ledger.sqlite where it is, and start the run again",
                party=self.party,
                code="FK-LEDGER-GONE",
            )
        (kind,) = db.execute("SELECT kind FROM runs WHERE id = ?", (number,)).fetchone()
        return number, kind

    def _number(self, db: sqlite3.Connection, session: str) -> int | None:
        place = (digest(secret_key(db), session.encode()), self.partition)
        query = "SELECT id FROM runs WHERE session = ? AND partition = ?"
        found = db.execute(query, place).fetchone()
        return None if found is None else int(found[0])

    def _held(self, db: sqlite3.Connection, run: int) -> RowSet:
        (held,) = db.execute("SELECT held FROM runs WHERE id = ?", (run,)).fetchone()
        return kept_set(db, held)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
