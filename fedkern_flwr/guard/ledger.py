"""Keep a node's ledger: what it answered, in one SQLite file that outlives runs and crashes.

An entry is forced to disk before its answer is sent, so a crash never leaves an answer without its
entry. A decision and its entries are one transaction: two runs cannot pass a limit together.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError, refusal
from ..secure_sum.crypto import KEY_BYTES
from ..secure_sum.party import other_parties
from .cells import needed_rows
from .freeze import Freeze, changing, freeze_folder, open_freeze
from .ledger_file import FILE, Entries, LedgerFile
from .opened import (
    Charge,
    Left,
    Opened,
    Opening,
    charge,
    check_freeze,
    contents_of,
    frozen_rows,
    learned_rows,
    opened_sums,
    spent_in_all,
)
from .policy import RULES, Rules
from .rows import OwnRows, Places, RowSet, Streamed, again, digest

logger = logging.getLogger("fedkern_flwr")

Run = dict[str, Any]  # a row of the table of runs
Asked = TypeVar("Asked", bound=Callable[..., Any])

NO_ROWS = np.zeros(0, np.int64)
NOT_ENDED = "it has not ended"
_NEAR = 0.8  # share of what is allowed from which on the owner is warned
_FAILURES = 3  # over all runs: each may reveal something about values


# -- what it shows: no digest, no id, nothing of a row


@dataclass(frozen=True)
class AboutRun:
    """Link a run in a node's ledger to the coordinator's records of it.

    A resumed run keeps its ``session``, and gets a new ``flower_run`` number. ``app`` has
    publisher, name, version and first digits of the hash; ``settings_digest`` is the start of a
    SHA-256.
    """

    session: str = ""
    flower_run: str = ""
    release: str = ""
    app: str = ""
    settings: str = ""
    settings_digest: str = ""
    max_evaluations: int | None = None
    max_epsilon: float | None = None


@dataclass(frozen=True)
class RunSummary:
    number: int
    opened: str
    method: str
    secure: bool
    pinned: bool
    sums: tuple[str, ...]
    rows: int
    parties: int
    evaluations: int
    refusals: int
    epsilon: float  # of what it released with noise, 0 if nothing
    ended: str = ""  # empty while it goes on, if it broke off, and of runs without secure sums
    about: AboutRun = field(default_factory=AboutRun)


def otherwise(nothing: Any) -> Callable[[Asked], Asked]:

    def mark(method: Asked) -> Asked:
        @functools.wraps(method)
        def asked(ledger: NodeLedger, *about: Any, **more: Any) -> Any:
            return method(ledger, *about, **more) if ledger.counts else nothing

        return asked  # type: ignore[return-value]

    return mark


class NodeLedger:
    """Read and write the ledger in a node's folder; create it at the first write.

    In all methods ``session`` is the name of a run. A call that raises enters nothing. Without a
    ``folder`` nothing is remembered (``counts`` is False), and each run is answered as at a new
    node. Several nodes (``partition``) may share a folder.
    """

    file: LedgerFile

    def __init__(
        self,
        folder: Path | None,
        partition: int = 0,
        rules: Rules = Rules(),  # noqa: B008 - it is frozen
        *,
        simulated: bool = False,
    ) -> None:
        self.folder, self.partition, self.rules = folder, partition, rules
        self.simulated, self.counts = simulated, folder is not None
        if folder is not None:
            self.file = LedgerFile(folder, partition)

    @property
    def exists(self) -> bool:
        """Whether the file exists; reading this does not create it."""
        return self.counts and self.file.path.is_file()

    def make(self) -> None:
        with self.file.writing():
            pass

    @otherwise(nullcontext())
    def held(self) -> AbstractContextManager[object]:
        """Open the file once for the block, in which a message is answered."""
        return self.file.held()

    @otherwise(nullcontext())
    def entering(self) -> AbstractContextManager[object]:
        return self.file.writing()

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
        about: AboutRun = AboutRun(),
    ) -> tuple[str, ...]:
        """Enter that a run was opened with these rows; a repeated call updates the rows.

        Runs of one ``kind`` of client are compared, whatever ``method`` the server names. Returns
        policy limits that are nearly used up.

        Raises
        ------
        RefusedError
            The owner has removed the data kept for this run.
        """
        with self.file.writing() as db:
            key = db.key
            named = digest(key, session.encode())
            if db.value("SELECT 1 FROM runs WHERE session = ? AND cleaned", named):
                raise refusal(
                    "what this node had kept of the run was removed by its owner",
                    code="FK-SESSION-CLEANED",
                )
            content = rows.digest(key)
            known = "SELECT held FROM runs WHERE partition = ? AND content = ?"
            held = db.value(known, self.partition, content)
            if held is None:
                held = db.keep_array(rows.digests(key).pack())
            db.execute(  # opened by another table: nobody can compare it
                "UPDATE opened SET function = x'' WHERE run IN (SELECT id FROM runs"
                " WHERE session = ? AND partition = ? AND content <> ?)",
                (named, self.partition, content),
            )
            values = kind, method[:40], secure, pinned, held, rows.learned, content
            db.execute(
                "INSERT INTO runs (session, partition, opened, kind, method, secure, pinned, held,"
                " learned, content, about) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET held = excluded.held, learned = excluded.learned,"
                " content = excluded.content, about = excluded.about, ended = '',"
                " frozen = CASE content WHEN excluded.content THEN frozen ELSE x'00' END",
                (named, self.partition, _now(), *values, json.dumps(vars(about))),
            )
            return near_limits(db)

    @otherwise(Left())
    def freeze(self, session: str, rows: OwnRows, places: Places | None = None) -> Left:
        """Freeze the rows of a client, or find them in the existing freeze.

        A client that reads frozen files gives ``places``: each row's number in the freeze, -1 for
        none. Returns what the run may plan with; a resumed run gets the same.

        Raises
        ------
        RefusedError
            The rows have changed, and the changes form no whole blocks.
        """
        with self._within(session) as (db, run):
            sums = opened_sums(db, self.rules.apart)
            mark = check_freeze(db, open_freeze(self._folder), sums)
            if places is None:
                places = self._same_table(db, run, open_freeze(self._folder))
            if places is None:
                places = self._freeze_arrays(rows, needed=needed_rows(sums), ledger=mark)
            freeze = open_freeze(self._folder)
            place = db.keep_array(places.tobytes())
            self._note(session, places=place, frozen=contents_of(db, freeze, places))
            if run["planned"]:
                return Left(*json.loads(run["planned"]))
            left = Opened(db, run["id"], freeze, self.rules).plan()
            self._note(session, planned=json.dumps(left))
            return left

    def _same_table(self, db: Entries, run: Run, freeze: Freeze) -> Places | None:
        query = (
            "SELECT DISTINCT places, frozen FROM runs WHERE partition = ? AND id <> ?"
            " AND content = ? AND places IS NOT NULL"
        )
        about = self.partition, run["id"], run["content"]
        for number, frozen in db.execute(query, about).fetchall():
            places: Places = np.frombuffer(db.array(number), np.int64)
            there = len(places) and (places >= 0).all()
            if there and contents_of(db, freeze, places) == frozen:
                return places
        return None

    def _freeze_arrays(self, own: OwnRows, *, needed: int, ledger: str) -> Places:
        rows, freeze = own.rows(), Freeze.load(self._folder)
        if freeze is None:
            least = self.rules.policy.min_own_rows if self.rules.records else 1
            freeze, change = Freeze.deal(rows, least=least, ledger=ledger)
        else:
            change = freeze.update(rows, needed=needed)
        freeze.save(self._folder)
        places = freeze.places(rows)
        if any(change.waiting.values()):
            logger.warning("%s", change)
        if (places < 0).any():
            raise refusal(
                "its table has changed, and the changes form no whole blocks",
                code="FK-FREEZE-WAITS",
            )
        return places

    @otherwise(None)
    def parts(self, session: str) -> NDArray[np.int8] | None:
        """Return the part of each row of a run: 0 is held out, 1 to 5 are folds, -1 is none."""
        with self._within(session) as (db, run):
            freeze = open_freeze(self._folder)
            rows = frozen_rows(db, freeze, run["places"], run["frozen"])
            found: NDArray[np.int8] = freeze.blocks["part"][freeze.block[rows]]
            return np.where(rows < 0, np.int8(-1), found)

    @otherwise(None)
    def lasting_secret(self, purpose: bytes) -> bytes | None:
        """Return 32 secret bytes that change only with forced changes and withdrawals.

        Random numbers derived from them are equal in all runs, so a repeated run releases nothing
        new. None without a folder.
        """
        place = b"%s/%d" % (purpose, open_freeze(self._folder).generation)
        with self.file.writing() as db:
            return b"".join(digest(db.key, b"lasting", place, half) for half in (b"0", b"1"))

    def enter(
        self,
        session: str,
        sums: Iterable[Opening],
        *,
        charges: Sequence[Charge] = (),
        taken: RowSet | None = None,
        shown: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Enter what an answer releases. Send the answer only after this has returned.

        ``sums`` are summed or opened, ``charges`` released with noise, ``taken`` are the rows of a
        stream's current message. ``shown`` maps fingerprints of opened values to digests of the
        parties: two sums of the same values over different parties would reveal the values of the
        parties in which they differ. Returns problems that the policy only warns of; a broken rule
        raises RefusedError.
        """
        with self._within(session) as (db, run):
            number, learned, said = run["id"], run["learned"], list[str]()
            if sums := list(sums):
                with changing(self._folder) as freeze:
                    opened, own = Opened(db, number, freeze, self.rules), NO_ROWS
                    if any(not one.again and (one.rows is None or len(one.rows)) for one in sums):
                        own = frozen_rows(db, freeze, run["places"], run["frozen"])
                    for one in sums:
                        if one.again:
                            opened.open_again(one)
                            continue
                        if one.share:
                            self._check_streamed(db, number)
                        rows = own[:learned] if one.rows is None or not len(own) else own[one.rows]
                        said.append(opened.enter(one, rows))
            charge(db, number, charges, self.rules.policy, taken=taken)
            self._keep_shown(db, number, shown)
            return [problem for problem in said if problem]

    def _keep_shown(self, db: Entries, run: int, shown: Mapping[str, str]) -> None:
        for mark, among in shown.items():
            known = hashlib.blake2b(mark.encode(), key=db.key, digest_size=8).digest()
            db.execute("INSERT OR IGNORE INTO shown VALUES (?, ?, ?)", (run, known, among))
            query = "SELECT among FROM shown WHERE run = ? AND mark = ?"
            if db.value(query, run, known) != among:
                raise other_parties()

    @otherwise(None)
    def record(self, session: str) -> str | None:
        """Return the node's record of a run: "" for an unknown run, None without a folder."""
        if not self.exists:
            return ""
        with self.file.open() as db:
            run = self._find(db, session)
            return "" if run is None else str(run["record"])

    @otherwise(None)
    def keep_record(self, session: str, record: str) -> None:
        self._note(session, record=record)

    @otherwise(None)
    def fail(self) -> None:
        with self.file.writing() as db:
            number = int(db.fact("failures") or 0)
            db.keep_fact("failures", number + 1)

    def failures(self, *, reset: bool = False) -> int:
        """Return how many runs failed because of values; ``reset`` sets the count to 0."""
        with self.file.writing() if reset else self.file.open() as db:
            number = int(db.fact("failures") or 0)
            if reset:
                db.keep_fact("failures", 0)
            return number

    def check_failures(self) -> None:
        """Refuse all runs after three such failures: each may reveal something about values."""
        if self.exists and self.failures() >= _FAILURES:
            raise refusal(
                f"{_FAILURES} runs have failed here by values of rows", code="FK-NODE-FAILURES"
            )

    def has_exact_sums(self, session: str) -> bool:
        with self.file.open() as db:
            run = self._find(db, session)
            query = (
                "SELECT 1 FROM opened JOIN runs ON runs.id = run WHERE partition = ?"
                " AND runs.id <> ? AND numbers > 0"
            )
            return bool(db.value(query, self.partition, run["id"] if run else 0))

    def spent(self) -> float:
        """Return an upper bound of the epsilon spent on one row by all runs."""
        with self.file.open() as db:
            return spent_in_all(db, self.partition)

    @otherwise(MappingProxyType({}))
    def told_counts(self) -> Mapping[str, dict[str, Any]]:
        """Return text column -> counts of its categories, as last reported in a sum."""
        with self.file.open() as db:
            return dict(json.loads(db.fact("categories") or "{}"))

    @otherwise(None)
    def keep_counts(self, told: Mapping[str, Mapping[str, Any]]) -> None:
        with self.file.writing() as db:
            db.keep_fact("categories", json.dumps(told))

    def noise_key(self, session: str, known: bytes = b"") -> bytes:
        """Return the noise key of a run, kept until the run ends; ``known`` without a folder."""
        if not self.counts:
            return known or secrets.token_bytes(KEY_BYTES)
        with self._within(session) as (_, run):
            key = bytes(run["noise"]) or secrets.token_bytes(KEY_BYTES)
            self._note(session, noise=key)
            return key

    def split_key(self) -> bytes:
        """Return the secret key that splits held-out rows into calibration and report halves.

        With a folder it is the same in all runs. In simulations it is empty, because all three
        engines must make the same split.
        """
        if not self.counts:
            return b"" if self.simulated else secrets.token_bytes(KEY_BYTES)
        with self.file.writing() as db:
            return digest(db.key, b"halves of held-out rows")

    @otherwise(None)
    def end_run(self, session: str) -> None:
        self._note(session, ended=_now(), noise=b"")

    def tell(
        self, session: str, asked: str, rows: NDArray[np.integer[Any]], figures: list[float]
    ) -> list[float]:
        """Enter figures about held-out rows; return those to send.

        A repeated request (``asked``) gets the earlier figures, and counts once. ``rows`` are the
        places of the evaluated rows in the table.

        Raises
        ------
        RefusedError
            Figures about these rows were reported ``max_evaluations`` times, in all runs. Or
            figures were reported about nearly the same rows: the difference would show a few rows.
        """
        policy = self.rules.policy
        with self._within(session) as (db, run):
            place = run["id"], digest(db.key, asked.encode())
            told = db.value("SELECT told FROM evaluations WHERE run = ? AND asked = ?", *place)
            if told is not None:
                before: list[float] = json.loads(told)
                return before
            about = np.unique(db.row_set(run["held"]).names[rows])
            judged = db.keep_array(about.tobytes())
            for (other,) in db.execute("SELECT DISTINCT rows FROM evaluations").fetchall():
                apart = len(np.setxor1d(np.frombuffer(db.array(other), np.uint64), about))
                if 0 < apart < min(policy.min_evaluation_rows, len(about)):
                    raise refusal(
                        "figures of nearly the same held-out rows were told before",
                        code="FK-FREEZE-ROWS",
                    )
            done = db.value("SELECT count(*) FROM evaluations WHERE rows = ?", judged)
            if done >= policy.max_evaluations:
                rule = f"max_evaluations = {policy.max_evaluations} of these rows, in all runs"
                raise refusal(rule, code="FK-POLICY-EVALUATIONS")
            entry = *place, judged, json.dumps(figures)
            db.execute("INSERT INTO evaluations VALUES (?, ?, ?, ?)", entry)
            return figures

    @otherwise(None)
    def refuse(self, session: str, rule: str) -> None:
        with self.file.writing() as db:
            run = self._find(db, session)
            db.execute(
                "INSERT INTO refusals VALUES (?, ?, 1)"
                " ON CONFLICT DO UPDATE SET number = number + 1",
                (run["id"] if run else 0, rule.partition(":")[0]),
            )

    # -- streams: rows are entered when they take part, and never twice

    @otherwise("")
    def place(self) -> str:
        """Return where this node's stream continues; "" at the start."""
        with self.file.open() as db:
            return db.fact("place")

    def take(self, session: str, taken: Streamed, *, compare: bool) -> RowSet:
        """Enter the stream rows that take part in a run; return their digests.

        A crash may lose rows for the run, but never repeats one. ``compare`` also refuses rows of
        earlier runs, which sums need.

        Raises
        ------
        RefusedError
            A row would take part twice.
        """
        with self._within(session) as (db, known):
            run, rows = known["id"], self._name_rows(db, taken)
            before = self._runs_with(db, rows) if compare else set()
            if run in before or len(np.unique(rows.names)) < len(rows):
                remedy = "name an id-column whose values come once"
                raise refusal(
                    "stream: a row would take part twice", remedy=remedy, code="FK-STREAM-TWICE"
                )
            if before:
                numbers = ", ".join(map(str, sorted(before)))
                raise refusal(
                    f"stream: some of its new rows took part in earlier runs ({numbers})",
                    code="FK-LEDGER-STREAM",
                )
            pairs = [(name, run) for name in _signed(rows.names)]
            db.executemany("INSERT OR IGNORE INTO streamed VALUES (?, ?)", pairs)
            db.keep_fact("place", taken.place)
            return rows

    def _name_rows(self, db: Entries, taken: Streamed) -> RowSet:
        key = db.key
        if taken.rows.ids is not None:
            return taken.rows.digests(key)
        if taken.anew:
            db.execute("DELETE FROM seen WHERE partition = ?", (self.partition,))
        plain = taken.rows.rows().contents(key)
        query = (
            "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1"
            " RETURNING times"
        )
        times = [db.value(query, self.partition, content) for content in _signed(plain)]
        repeats = np.array(times, np.uint64) - np.uint64(1)
        names = np.where(repeats > 0, again(key, plain, repeats), plain)
        return RowSet(names, names)

    def _runs_with(self, db: Entries, rows: RowSet) -> set[int]:
        found, query = set[int](), "SELECT run FROM streamed WHERE name = ?"
        for name in _signed(rows.names):
            found |= {run for (run,) in db.execute(query, (name,)).fetchall()}
        windows = "SELECT DISTINCT run FROM opened WHERE purpose = 'windows'"
        tables = [run for (run,) in db.execute(windows).fetchall()]
        return found | {run for run in tables if rows.meets(learned_rows(db, run))}

    def _check_streamed(self, db: Entries, run: int) -> None:
        """Refuse to count a table with rows that took part in another run's stream."""
        found = db.execute("SELECT name FROM streamed WHERE run <> ?", (run,)).fetchall()
        names = np.array([name for (name,) in found], np.int64).view(np.uint64)
        rows = learned_rows(db, run)
        if np.isin(rows.names, names).any() or np.isin(rows.values, names).any():
            raise refusal(
                "stream: some of its rows took part as rows of a stream", code="FK-LEDGER-STREAM"
            )

    # -- the owner

    def clean(self, session: str, *, unfinished: bool = False, dry_run: bool = False) -> str:
        """Enter that the data kept for a run will be removed, so that it cannot be resumed here.

        Returns why the data must stay, "" if it may be removed. ``unfinished`` allows a run without
        an end: nodes do not learn the end of a run without secure sums. ``dry_run`` only checks.
        """
        with self.file.writing() as db:
            place = (digest(db.key, session.encode()),)
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
        with self.file.open() as db:
            return run_summaries(db)

    def refusals(self) -> list[tuple[int, str, int]]:
        with self.file.open() as db:
            query = "SELECT run, rule, number FROM refusals ORDER BY run, rule"
            return db.execute(query).fetchall()

    # -- pieces

    @property
    def _folder(self) -> Path:
        return freeze_folder(self.file.path.parent, self.partition, self.rules.apart)

    @contextmanager
    def _within(self, session: str) -> Iterator[tuple[Entries, Run]]:
        with self.file.writing() as db:
            run = self._find(db, session)
            if run is None:
                raise ProtocolError("its ledger knows nothing of this run", code="FK-LEDGER-GONE")
            yield db, run

    def _note(self, session: str, **known: Any) -> None:
        with self.file.writing() as db:
            place = digest(db.key, session.encode()), self.partition
            names = ", ".join(f"{name} = ?" for name in known)
            query = f"UPDATE runs SET {names} WHERE session = ? AND partition = ?"
            db.execute(query, (*known.values(), *place))

    def _find(self, db: Entries, session: str) -> Run | None:
        place = digest(db.key, session.encode()), self.partition
        found = db.execute("SELECT * FROM runs WHERE session = ? AND partition = ?", place)
        names = [name for name, *_ in found.description]
        values = found.fetchone()
        return None if values is None else dict(zip(names, values, strict=True))


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())


def _signed(names: NDArray[np.uint64]) -> list[int]:
    found: list[int] = np.ascontiguousarray(names).view(np.int64).tolist()
    return found


def run_summaries(db: Entries) -> list[RunSummary]:
    query = "SELECT DISTINCT purpose FROM opened WHERE run = ? AND parties > 0 ORDER BY purpose"
    out = []
    for number, opened, method, secure, pinned, about, *counts in db.execute(
        "SELECT id, opened, method, secure, pinned, about,"
        " max((SELECT count(*) FROM streamed WHERE run = id),"
        " (SELECT coalesce(max(rows), 0) FROM opened WHERE run = runs.id)),"
        " (SELECT coalesce(max(parties), 0) FROM opened WHERE run = runs.id),"
        " (SELECT count(*) FROM evaluations WHERE run = id),"
        " (SELECT coalesce(sum(number), 0) FROM refusals WHERE run = id),"
        " epsilon, ended FROM runs ORDER BY id"
    ).fetchall():
        sums = tuple(purpose for (purpose,) in db.execute(query, (number,)))
        known = AboutRun(**json.loads(about))
        own: list[Any] = [number, opened, method, bool(secure), bool(pinned), sums]
        out.append(RunSummary(*[*own, *counts, known]))
    return out


def near_limits(db: Entries) -> tuple[str, ...]:
    found = []
    last = "SELECT partition, about, max(id) FROM runs GROUP BY partition"
    for partition, text, _ in db.execute(last).fetchall():
        about = AboutRun(**json.loads(text))
        used = {
            "max_evaluations": most_told(db, partition),  # of the same held-out rows
            "max_epsilon": spent_in_all(db, partition),
        }
        for rule, now in used.items():
            if (allowed := getattr(about, rule)) and now >= _NEAR * allowed:
                found.append(f"{now:.3g} of {rule} = {allowed:g} are used up")
    return tuple(found)


def most_told(db: Entries, partition: int | None = None) -> int:
    """Return the largest number of evaluations reported about the same held-out rows."""
    query = (
        "SELECT count(*) AS n FROM evaluations JOIN runs ON runs.id = run"
        " WHERE partition = coalesce(?, partition) GROUP BY rows ORDER BY n DESC"
    )
    return int(db.value(query, partition) or 0)


# -- counts for monitoring

OTHER = "order"  # refused for what no rule of the policy says: an order that the method never gives
_PATIENCE = 0.5  # seconds to wait for who writes


@dataclass(frozen=True)
class LedgerTotals:
    """Counts of a node's ledger, for monitoring.

    ``told`` is the largest number of evaluations of the same held-out rows, limited by
    ``max_evaluations``. ``refusals`` maps a rule of the policy, or ``order`` for other refusals, to
    its count. ``near`` are limits that are nearly used up.
    """

    runs: int
    sums: int
    told: int
    refusals: Mapping[str, int]
    near: tuple[str, ...] = ()


def ledger_totals(folder: Path) -> LedgerTotals | None:
    """Return the counts of the ledger in a node's folder; None if it cannot be read now.

    The file is opened read-only. A node without a ledger has counts of 0.
    """
    file = folder.absolute() / FILE
    if not file.is_file():
        return LedgerTotals(0, 0, 0, {})
    refusals: Counter[str] = Counter()
    try:
        how: Any = {"timeout": _PATIENCE, "uri": True, "factory": Entries}
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", **how)) as db:
            runs = db.value("SELECT count(*) FROM runs")
            sums = db.value("SELECT count(*) FROM opened WHERE parties > 0")
            for rule, number in db.execute("SELECT rule, number FROM refusals"):
                name = rule.partition(" ")[0]
                refusals[name if name in RULES else OTHER] += number
            told, near = most_told(db), near_limits(db)
    except sqlite3.Error:
        return None
    return LedgerTotals(runs, sums, told, dict(sorted(refusals.items())), near)
