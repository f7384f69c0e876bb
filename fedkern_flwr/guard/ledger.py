"""A node's ledger: what it answered, in one SQLite file that outlives runs and crashes.

An entry is committed, and forced to disk, before the answer that it is about leaves the node. So a
crash may leave an entry without its answer, and never an answer without its entry. Two runs at a
time take turns: a decision and the entries that follow from it are one transaction.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import CheckpointError, OptionError, ProtocolError, RefusedError
from .cells import planned_share, repeated
from .counting import Mode
from .frozen import Frozen, changing, check_kept, freeze_folder, open_freeze, saved_rows
from .ledger_file import LedgerFile, keep_set, kept_set, secret_key
from .opened import Left, Opened, Opening, opened_sums, same_contents
from .orders import refusal
from .policy import NodePolicy
from .rows import OwnRows, RowSet, digest
from .shown import keep_shown
from .spending import Charge, charge, kept_noise, spent_in_all
from .streamed import (
    Streamed,
    check_streamed,
    keep_place,
    keep_rows,
    kept_place,
    name_rows,
    runs_with,
)
from .summaries import AboutRun, RunSummary, near_limits, run_summaries

logger = logging.getLogger("fedkern_flwr")

NO_ROWS = np.zeros(0, np.int64)
NOT_ENDED = "it has not ended"
_PARTS = (1, 2, 3, 4, 5)  # of a freeze: what is learned from


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
        self.partition, self.file = partition, LedgerFile(folder)

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
        about: AboutRun = AboutRun(),  # noqa: B008 - it is frozen
    ) -> tuple[str, ...]:
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
        about : AboutRun
            What joins it up with the coordinator's records; of a run that is resumed the last.

        Returns
        -------
        tuple of str
            What is nearly used up of what the policy allows.

        Raises
        ------
        RefusedError
            The node's owner has removed what it had kept of the run.
        """
        with self.file.writing() as db:
            key = secret_key(db)
            named = digest(key, session.encode())
            gone = "SELECT count(*) FROM runs WHERE session = ? AND cleaned"
            if db.execute(gone, (named,)).fetchone()[0]:
                raise refusal(
                    "what this node had kept of the run was removed by its owner",
                    remedy="start a new run",
                    code="FK-SESSION-CLEANED",
                )
            content = rows.digest(key)
            sets = db.execute(
                "SELECT held, learned FROM runs WHERE partition = ? AND content = ?",
                (self.partition, content),
            ).fetchone()
            if sets is None:
                held = rows.digests(key)
                learned = keep_set(db, key, held.take(slice(rows.learned)).sorted())
                sets = keep_set(db, key, held), learned
            db.execute(  # opened by another table: nobody can compare it
                "UPDATE opened SET function = x'' WHERE run IN (SELECT id FROM runs"
                " WHERE session = ? AND partition = ? AND content <> ?)",
                (named, self.partition, content),
            )
            values = (kind, method[:40], secure, pinned, *sets, content, json.dumps(vars(about)))
            db.execute(
                "INSERT INTO runs (session, partition, opened, kind, method, secure, pinned, held,"
                " learned, content, about) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET held = excluded.held, learned = excluded.learned,"
                " content = excluded.content, about = excluded.about, ended = ''",
                (named, self.partition, _now(), *values),
            )
            return near_limits(db)

    def freeze(
        self,
        session: str,
        rows: OwnRows,
        frozen: Frozen | None,
        *,
        least: int,
        apart: str = "",
    ) -> Left:
        """Freeze the rows of a client, or find them in the freeze that there is.

        Parameters
        ----------
        session : str
            Name of the run.
        rows : OwnRows
            The rows of a client that has arrays.
        frozen : Frozen, optional
            Of a client that has read frozen files: its rows in the freeze.
        least : int
            Rows of a block, at least.
        apart : str
            Name of a freeze beside that of the node's table.

        Returns
        -------
        Left
            What the run may plan with. It stays the same if the run is resumed.

        Raises
        ------
        RefusedError
            They have changed, and the changes form no whole blocks.
        """
        with self.file.writing() as db:
            run, kind = self._run(db, session)
            sums = opened_sums(db, self.partition, apart)
            check_kept(freeze_folder(self.file.path.parent, self.partition, apart), sums)
            if frozen is None:
                frozen = self._same_table(db, run, apart)
            if frozen is None:
                where = self.file.path.parent, self.partition
                frozen, change = Frozen.of_arrays(*where, rows, sums, least=least, apart=apart)
                if any(change.waiting.values()):
                    logger.warning("%s", change)
                if (frozen.rows < 0).any():
                    raise refusal(
                        "its table has changed, and the changes form no whole blocks",
                        remedy="give the table as it was frozen; the node's log says what waits",
                        code="FK-FREEZE-WAITS",
                    )
            self.check_own(db, frozen.place)
            last = "SELECT saved FROM runs WHERE partition = ? ORDER BY id DESC LIMIT 32"
            used = {name for (name,) in db.execute(last, (self.partition,))}
            name = frozen.save(rows.learned, used)
            db.execute("UPDATE runs SET saved = ? WHERE id = ?", (name, run))
            query = "SELECT share, again, how FROM runs WHERE id = ?"
            share, again, how = db.execute(query, (run,)).fetchone()
            if not share:
                freeze = open_freeze(frozen.place)
                about = freeze.blocks, sums, freeze.select(*_PARTS)
                share = planned_share(*about, kind)
                query = (  # the last function that a run asks for by default
                    "SELECT function, opened.how FROM opened JOIN runs ON runs.id = run"
                    " WHERE partition = ? AND kind = ? AND apart = ? AND opened.how <> ''"
                    " AND function <> x'' GROUP BY function ORDER BY max(opened.id) DESC"
                )
                for function, asked in db.execute(query, (self.partition, kind, apart)).fetchall():
                    numbers = repeated(*about, function)
                    if numbers and same_contents(db, frozen.place, run, function):
                        again, how = numbers, asked
                        break
                query = "UPDATE runs SET share = ?, again = ?, how = ? WHERE id = ?"
                db.execute(query, (share, again, how, run))
            return Left(share, again, how)

    def parts(self, session: str) -> NDArray[np.int8]:
        """Return for each own row of a run its part of the freeze, -1 for one that is not in it."""
        with self.file.open() as db:
            place = freeze_folder(self.file.path.parent, self.partition)
            rows, _ = saved_rows(place, self._rows(db, self._run(db, session)[0]))
            freeze = open_freeze(place)
            found: NDArray[np.int8] = freeze.blocks["part"][freeze.block[rows]]
            return np.where(rows < 0, np.int8(-1), found)

    def lasting_secret(self, purpose: bytes) -> bytes:
        """Return 32 bytes that last until a change of the table could not wait."""
        generation = open_freeze(freeze_folder(self.file.path.parent, self.partition)).generation
        with self.file.writing() as db:
            place = b"%s/%d" % (purpose, generation)
            return b"".join(
                digest(secret_key(db), b"lasting", place, half) for half in (b"0", b"1")
            )

    def enter(
        self,
        session: str,
        sums: Iterable[Opening],
        policy: NodePolicy,
        *,
        mode: Mode = "refuse",
        records: bool = True,
        enough: int = 3,
        apart: str = "",
        charges: Sequence[Charge] = (),
        taken: RowSet | None = None,
        shown: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Enter what an answer is about; it may leave when this has returned.

        Parameters
        ----------
        session : str
            Name of the run.
        sums : iterable of Opening
            What is summed, or opened.
        policy : NodePolicy
            What the node's owner allows.
        mode, records, enough
            See :meth:`~fedkern_flwr.guard.opened.Opened.enter`.
        apart : str
            Name of a freeze beside that of the node's table.
        charges : sequence of Charge
            What is released with noise.
        taken : RowSet, optional
            Of a stream: the rows of the message at hand, see :meth:`take`.
        shown : mapping
            Mark of values that are opened -> digest of the parties, see :mod:`.shown`.

        Returns
        -------
        list of str
            What is wrong with the sums and only warned of.

        Raises
        ------
        RefusedError
            Nothing is entered then.
        ProtocolError
            The run was not opened here.
        """
        with self.file.writing() as db:
            run, _ = self._run(db, session)
            key, said = secret_key(db), list[str]()
            if sums := list(sums):
                place = freeze_folder(self.file.path.parent, self.partition, apart)
                frozen = any(not one.again and (one.rows is None or len(one.rows)) for one in sums)
                own, learned = saved_rows(place, self._rows(db, run)) if frozen else (NO_ROWS, 0)
                how: Any = {"mode": mode, "records": records, "enough": enough}
                with changing(place) as freeze:
                    opened = Opened(db, key, run, freeze, place, apart)
                    for one in sums:
                        if one.again:
                            opened.open_again(one, policy, enough=enough)
                            continue
                        if one.share:
                            known = "SELECT learned FROM runs WHERE id = ?"
                            (held,) = db.execute(known, (run,)).fetchone()
                            check_streamed(db, run, kept_set(db, held))
                        rows = own[:learned] if one.rows is None or not len(own) else own[one.rows]
                        said.append(opened.enter(one, rows, policy, **how))
            charge(db, key, run, charges, policy, taken=taken)
            keep_shown(db, key, run, shown)
            return [problem for problem in said if problem]

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
                "SELECT count(*) FROM opened JOIN runs ON runs.id = run WHERE partition = ?"
                " AND runs.id <> ? AND numbers > 0"
            )
            number = self._number(db, session) or 0
            return bool(db.execute(query, (self.partition, number)).fetchone()[0])

    def spent(self) -> float:
        """Return epsilon of what all runs of this node have released with noise, of one row."""
        with self.file.open() as db:
            return spent_in_all(db, self.partition)

    def told_counts(self) -> dict[str, dict[str, Any]]:
        """Return column of text -> counts of its categories, as they were last told in a sum."""
        with self.file.open() as db:
            query = "SELECT counts FROM told WHERE partition = ?"
            found = db.execute(query, (self.partition,)).fetchone()
            return {} if found is None else dict(json.loads(found[0]))

    def keep_counts(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what is told of the categories of columns, before it leaves the node."""
        with self.file.writing() as db:
            db.execute("REPLACE INTO told VALUES (?, ?)", (self.partition, json.dumps(told)))

    def noise_key(self, session: str) -> bytes:
        """Return the key of the noise of a run: the same until the run is over."""
        with self.file.writing() as db:
            return kept_noise(db, self._run(db, session)[0])

    def split_key(self) -> bytes:
        """Return the key by which held-out rows are dealt to calibration and report, for good."""
        with self.file.writing() as db:
            return digest(secret_key(db), b"halves of held-out rows")

    def end_run(self, session: str) -> None:
        """Note that a run has ended, and erase the key of its noise."""
        with self.file.writing() as db:
            run = self._number(db, session)
            db.execute("DELETE FROM noise WHERE run = ?", (run,))
            db.execute("UPDATE runs SET ended = ? WHERE id = ?", (_now(), run))

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
            for (other,) in db.execute("SELECT DISTINCT rows FROM evaluations").fetchall():
                apart = len(np.setxor1d(kept_set(db, other).names, about.names))
                if 0 < apart < min(policy.min_evaluation_rows, len(about)):
                    raise refusal(
                        "figures of nearly the same held-out rows were told before",
                        remedy="ask for the rows of earlier runs",
                        code="FK-FREEZE-ROWS",
                    )
            if done >= policy.max_evaluations:
                rule = f"max_evaluations = {policy.max_evaluations} of these rows, in all runs"
                raise refusal(rule, code="FK-POLICY-EVALUATIONS")
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
                    "stream: a row would take part twice", remedy=remedy, code="FK-STREAM-TWICE"
                )
            if before:
                numbers = ", ".join(map(str, sorted(before)))
                raise refusal(
                    f"stream: some of its new rows took part in earlier runs ({numbers})",
                    remedy="go on after them",
                    code="FK-LEDGER-STREAM",
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

    def clean(self, session: str, *, unfinished: bool = False, dry_run: bool = False) -> str:
        """Note that what was kept of a run is to be removed, so that nobody resumes it here.

        Parameters
        ----------
        session : str
            Name of the run.
        unfinished : bool (default: False)
            Whether it may be one that has not ended. Of a run without secure sums no node is told
            that it has ended.
        dry_run : bool (default: False)
            Whether nothing is noted.

        Returns
        -------
        str
            Why it must stay; empty if it may be removed.
        """
        with self.file.writing() as db:
            place = (digest(secret_key(db), session.encode()),)
            query = "SELECT count(*), sum(secure AND ended = '') FROM runs WHERE session = ?"
            known, open_ = db.execute(query, place).fetchone()
            if not known:
                return "the ledger does not know it"
            if open_ and not unfinished:
                return NOT_ENDED
            if not dry_run:
                db.execute("UPDATE runs SET cleaned = 1 WHERE session = ?", place)
            return ""

    def runs(self) -> list[RunSummary]:
        """Return what was answered, run by run."""
        with self.file.open() as db:
            return run_summaries(db)

    def refusals(self) -> list[tuple[int, str, int]]:
        """Return (run or 0, rule, how often) of what was refused."""
        with self.file.open() as db:
            query = "SELECT run, rule, number FROM refusals ORDER BY run, rule"
            return db.execute(query).fetchall()

    # -- pieces

    def _rows(self, db: sqlite3.Connection, run: int) -> str:
        """Return the name of the file that has the rows of a run; nothing of one without."""
        return str(db.execute("SELECT saved FROM runs WHERE id = ?", (run,)).fetchone()[0])

    def _same_table(self, db: sqlite3.Connection, run: int, apart: str) -> Frozen | None:
        """Return the rows of an earlier run of the same table, if they are still frozen so."""
        query = (
            "SELECT saved FROM runs WHERE partition = ? AND id <> ? AND saved <> '' AND content ="
            " (SELECT content FROM runs WHERE id = ?) ORDER BY id DESC"
        )
        folder = self.file.path.parent
        for (name,) in db.execute(query, (self.partition, run, run)).fetchall():
            with suppress(CheckpointError, RefusedError):
                rows, _ = saved_rows(freeze_folder(folder, self.partition, apart), name)
                if len(rows) and (rows >= 0).all():
                    return Frozen(folder, self.partition, rows, apart)
        return None

    def check_own(self, db: sqlite3.Connection, place: Path) -> None:
        """Refuse a freeze whose sums another ledger has counted.

        Raises
        ------
        OptionError
        """
        mark, file = digest(secret_key(db), b"freeze").hex(), place / "ledger.state"
        if not file.exists():
            write_atomically(file, mark.encode(), private=True)
        elif file.read_text() != mark:
            raise OptionError(
                "the ledger that counted the sums of this freeze is gone",
                remedy="bring back a copy of the state_dir",
                code="FK-FREEZE-LEDGER",
            )

    def _run(self, db: sqlite3.Connection, session: str) -> tuple[int, str]:
        """Return number and kind of a run."""
        number = self._number(db, session)
        if number is None:
            raise ProtocolError(
                "its ledger knows nothing of this run",
                remedy="leave ledger.sqlite where it is, and start the run again",
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
