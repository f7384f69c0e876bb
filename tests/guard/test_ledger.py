"""The ledger by itself: what is compared, what is allowed, and that it survives everything."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.errors import OptionError, RefusedError
from fedkern_flwr.guard import NodePolicy, ledger_file
from fedkern_flwr.guard.history import Entry, conflicts, rows_apart
from fedkern_flwr.guard.ledger import Answer, NodeLedger
from fedkern_flwr.guard.ledger_file import FILE
from fedkern_flwr.guard.rows import OwnRows, RowSet
from fedkern_flwr.simulations.cli.main import run

POLICY = NodePolicy()
RUN: dict[str, Any] = {"kind": "K", "method": "m", "secure": True, "pinned": True}
KEY = bytes(32)
COPY = "see that its folder can be written and has room, or bring back a copy"
PARTIES = [bytes([k]) for k in range(5)]


def table(ids: Any, seed: int = 0) -> OwnRows:
    """Rows whose content follows from their ids."""
    x = np.array([np.random.default_rng([seed, k]).random(2) for k in ids]).reshape(-1, 2)
    return OwnRows([(x,)], ids, len(x))


def open_run(ledger: NodeLedger, session: str, rows: OwnRows, **change: Any) -> None:
    ledger.open_run(session, rows=rows, **{**RUN, **change})


def answer(
    ledger: NodeLedger,
    session: str,
    *,
    policy: NodePolicy = POLICY,
    share: float = 0.0,
    **what: Any,
) -> None:
    values = {"purpose": "sum", "cohort": PARTIES, "parties": 5, **what}
    ledger.enter(session, [Answer(**values)], policy, records=True, share=share)


# -- what is compared


def members(numbers: Any) -> RowSet:
    found = np.unique(np.array(sorted(numbers), np.uint64))
    return RowSet(found, found)


SETS = st.sets(st.integers(0, 40), max_size=30)


@pytest.mark.promise("guard-own-rows")
@given(a=SETS, b=SETS, least=st.integers(0, 10), each=st.booleans())
def test_sets_are_refused_that_differ_by_few_rows(
    a: set[int], b: set[int], least: int, each: bool
) -> None:
    apart = max(len(a - b), len(b - a))
    new, old = Entry("s", members(a), each=each, run=2), Entry("s", members(b), run=1)
    assert rows_apart(new.rows, old.rows) == apart
    found = conflicts(new, [old], min_own_rows=least, records=True)
    assert bool(found) == (0 < apart < least and not each)
    few = min(len(a), len(b)) < least
    found = conflicts(new, [old], min_own_rows=least, records=False)
    assert bool(found) == (0 < apart < least and not each and not few)


@given(a=st.sets(st.integers(0, 7)), b=st.sets(st.integers(0, 7)), rows=SETS, other=SETS)
def test_cohorts_are_refused_that_differ_by_one_party(
    a: set[int], b: set[int], rows: set[int], other: set[int]
) -> None:
    def entry(run: int, cohort: set[int], own: set[int], **more: Any) -> Entry:
        return Entry("s", members(own), cohort=members(cohort).names, run=run, **more)

    one = max(len(a - b), len(b - a)) == 1
    found = conflicts(entry(2, a, rows), [entry(1, b, rows)], min_own_rows=5, records=True)
    assert bool(found) == one
    old = entry(1, b, other, each=True)
    found = conflicts(entry(2, a, rows, each=True), [old], min_own_rows=0, records=True)
    assert bool(found) == (one and bool(rows & other))
    unknown = Entry("s", members(rows), run=1)
    assert not conflicts(entry(2, a, rows), [unknown], min_own_rows=5, records=True)
    within = [entry(2, b, rows)]  # of the run itself
    assert not conflicts(entry(2, a, rows), within, min_own_rows=5, records=True)


def test_rows_are_told_apart_by_id_and_by_content() -> None:
    rows = table(range(20)).digests(KEY)
    edited = table(range(20))
    edited.parts[0][0][7] += 1.0
    new = edited.digests(KEY)
    assert rows_apart(rows.sorted(), new.sorted()) == 1
    np.testing.assert_array_equal(rows.names, new.names)
    scaled = OwnRows([(10.0 * table(range(21)).parts[0][0],)], range(21), 21)
    assert rows_apart(rows.sorted(), scaled.digests(KEY).sorted()) == 1  # in other units
    assert not np.isin(rows.values, table(range(20)).digests(bytes([1] * 32)).values).any()


def test_equal_rows_without_ids_are_several() -> None:
    x = np.ones((6, 2))
    rows = OwnRows([(x, np.zeros(6))], learned=6).digests(KEY)
    assert len(np.unique(rows.values)) == 6
    fewer = OwnRows([(x[:5], np.zeros(5))], learned=5).digests(KEY)
    assert rows_apart(rows.sorted(), fewer.sorted()) == 1
    labels = OwnRows([(x, np.array([0.0] * 5 + [1.0]))], learned=6).digests(KEY)
    assert rows_apart(rows.sorted(), labels.sorted()) == 1


# -- runs


@pytest.mark.promise("guard-permission")
@pytest.mark.parametrize(
    ("ids", "never"),
    [
        (range(20), False),
        (range(19), True),
        (range(21), True),
        (range(16), True),
        (range(15), False),
        (range(4, 24), True),
        (range(5, 25), False),
    ],
)
def test_a_run_over_nearly_the_same_rows_is_refused_and_allowed_once(
    ids: range, never: bool, tmp_path: Path
) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(20)))
    answer(ledger, "a")
    open_run(ledger, "b", table(ids), method="another name")
    if not never:
        answer(ledger, "b")
        return
    with refused("FK-LEDGER-ROWS"):
        answer(ledger, "b")
    assert ledger.runs()[1].sums == ()
    ledger.allow([1])
    for _ in range(2):  # the retry too
        answer(ledger, "b")
        answer(ledger, "b", purpose="another sum")
    open_run(ledger, "c", table(ids))
    with refused("FK-LEDGER-ROWS"):  # once
        answer(ledger, "c")


@pytest.mark.parametrize(
    ("cohort", "never"),
    [
        (PARTIES, False),
        (PARTIES[:4], True),
        ([*PARTIES, b"x"], True),
        ([*PARTIES[:4], b"x"], True),
        (PARTIES[:3], False),
        (None, False),
    ],
)
def test_a_run_without_one_pinned_party_is_refused(
    cohort: list[bytes] | None, never: bool, tmp_path: Path
) -> None:
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
    answer(ledger, "a")
    if never:
        with refused("FK-LEDGER-PARTIES"):
            answer(ledger, "b", cohort=cohort)
        ledger.allow([1])
    answer(ledger, "b", cohort=cohort)


def test_survivors_are_parties_too(tmp_path: Path) -> None:
    """A server that lets a party drop out in the second run gets no difference either."""
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
        answer(ledger, session)
    answer(ledger, "a", again=True)
    with refused("FK-LEDGER-PARTIES"):
        answer(ledger, "b", cohort=PARTIES[1:], parties=4, again=True)


def test_a_resumed_run_may_not_change_by_a_row(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for rows, fewer in ((20, False), (20, False), (19, True)):
        open_run(ledger, "a", table(range(rows)))
        if fewer:
            with refused("FK-LEDGER-ROWS"):
                answer(ledger, "a")
        else:
            answer(ledger, "a")
    assert len(ledger.runs()) == 1


def test_other_kinds_of_clients_and_other_nodes_are_compared_as_they_should(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(20)))
    answer(ledger, "a")
    open_run(ledger, "b", table(range(19)), kind="another client")
    answer(ledger, "b")
    other = NodeLedger(tmp_path, partition=1)
    open_run(other, "a", table(range(19)))  # shares the folder
    with refused("FK-LEDGER-ROWS"):
        answer(other, "a")


def test_rows_that_the_server_chose_are_compared_with_each_other(tmp_path: Path) -> None:
    ledger, first = NodeLedger(tmp_path), np.arange(10)
    open_run(ledger, "a", table(range(20)))
    open_run(ledger, "b", table(range(18)))
    answer(ledger, "a", purpose="rows of 1", rows=first)
    answer(ledger, "b", purpose="rows of 1", rows=first)
    with pytest.raises(RefusedError):
        answer(ledger, "b", purpose="rows of 1", rows=first[1:])
    answer(ledger, "b", purpose="rows of 2", rows=first[1:])


def test_rows_summed_one_by_one_make_one_entry(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
    for start in (0, 5, 0, 12):
        rows = np.arange(start, start + 5)
        answer(ledger, "a", rows=rows, each=True)
    assert ledger.runs()[0].rows == 15
    answer(ledger, "b", rows=np.array([3]), each=True)  # of few rows
    answer(ledger, "b", rows=np.array([10, 11]), each=True, cohort=PARTIES[1:])
    with refused("FK-LEDGER-PARTIES"):
        answer(ledger, "b", rows=np.array([11, 12]), each=True, cohort=PARTIES[1:])


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0.25, 0.5, 0.75, 1.0])),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=12, deadline=None)
def test_numbers_about_the_same_rows_are_counted_over_runs(runs: list[tuple[int, float]]) -> None:
    """Runs over tables of which each meets the next: never more numbers than unknowns."""
    with TemporaryDirectory() as folder:
        ledger, spent = NodeLedger(Path(folder)), [0.0] * 5
        for number, (place, share) in enumerate(runs):
            open_run(ledger, session := f"run{number}", table(range(10 * place, 10 * place + 20)))
            passes = share + sum(s for p, s in enumerate(spent) if abs(p - place) < 2) <= 1.0
            if passes:
                answer(ledger, session, share=share)
                answer(ledger, session, share=share / 2.0)  # of a later round, and retries
                spent[place] += share
                continue
            with refused("FK-LEDGER-COUNTING"):
                answer(ledger, session, share=share)
            assert not ledger.runs()[-1].sums
            answer(ledger, session)  # what is not counted


def test_an_owner_lets_more_numbers_pass_once_or_always(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for session in "abc":
        open_run(ledger, session, table(range(20)))
    answer(ledger, "a", share=1.0)
    with refused("FK-LEDGER-COUNTING"):
        answer(ledger, "b", share=0.5)
    ledger.allow([1])
    answer(ledger, "b", share=0.5)
    with refused("FK-LEDGER-COUNTING"):
        answer(ledger, "c", share=0.1)
    for counting in ("warn", "refuse"):
        lax = NodePolicy(counting=counting, allow_small_sums=counting == "refuse")
        answer(ledger, "c", share=0.1 if counting == "warn" else 7.0, policy=lax)
    open_run(ledger, "d", table(range(20)))
    with refused("FK-LEDGER-COUNTING"):  # it was entered all the same
        answer(ledger, "d", share=0.1)


def test_figures_about_the_same_rows_are_counted_over_runs(tmp_path: Path) -> None:
    ledger, rows = NodeLedger(tmp_path), np.arange(10, 20)
    policy = NodePolicy(max_evaluations=3)
    for number, session in enumerate("abcd"):
        open_run(ledger, session, table(range(20)))
        if number < 3:
            told = ledger.tell(session, "q", rows, [float(number)], policy)
            assert told == [float(number)]
            assert ledger.tell(session, "q", rows, [99.0], policy) == told  # of a resumed run
        else:
            with refused("FK-POLICY-EVALUATIONS"):
                ledger.tell(session, "q", rows, [0.0], policy)
            ledger.tell(session, "q", np.arange(10), [0.0], policy)  # other rows


# -- the file


def test_the_file_is_for_its_user_and_shows_nothing_of_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    ledger = NodeLedger(folder)
    ids = [f"patient-{k}" for k in range(20)]
    open_run(ledger, "aSession", OwnRows([(np.arange(20.0)[:, None],)], ids, 20))
    answer(ledger, "aSession")
    ledger.refuse("aSession", "min_parties = 3: a sum has 2")
    ledger.refuse("aSession", "min_parties = 3: a sum has 2")
    ledger.refuse("", "methods: x is not among them")
    assert [stat.S_IMODE(p.stat().st_mode) & 0o077 for p in (folder, *folder.iterdir())] == [
        0 for _ in (folder, *folder.iterdir())
    ]
    data = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"patient" not in data
    assert b"aSession" not in data
    assert np.arange(3.0, 5.0).tobytes() not in data
    assert run(["node", "ledger", "show", "--state-dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "aSession" not in shown
    words = shown.splitlines()[3].split()
    assert (words[0], words[3:6], words[-1]) == ("1", ["m", "20", "5"], "sum")
    assert "min_parties = 3" in shown
    assert run(["node", "policy", "allow", "1", "--state-dir", str(folder)]) == 0
    assert run(["node", "policy", "allow", "7", "--state-dir", str(folder)]) == 2
    assert "there is no run 7 in the ledger" in capsys.readouterr().err
    assert run(["node", "policy", "allow", "1", "--state-dir", str(tmp_path)]) == 2


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(9)))
    with refused("FK-LEDGER-GONE"):
        answer(ledger, "b")
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 5")
    with refused("FK-LEDGER-VERSION"):
        answer(ledger, "a")
    (tmp_path / FILE).write_bytes(b"not a database, and longer than a header would be" * 9)
    for name in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{name}").unlink(missing_ok=True)
    with refused("FK-LEDGER-FILE"):
        answer(ledger, "a")


# -- crashes, and two at a time

_FORK = multiprocessing.get_context("fork")


def _killed_at(place: int, folder: Path) -> None:
    """Answer; be killed at the given statement, or beside the answer."""
    steps = itertools.count(1)

    def step(_: str = "") -> None:
        if next(steps) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    connect = sqlite3.connect

    def traced(*args: Any, **more: Any) -> sqlite3.Connection:
        db = connect(*args, **more)
        db.set_trace_callback(step)
        return db

    sqlite3.connect = traced  # type: ignore[assignment]
    ledger = NodeLedger(folder)
    open_run(ledger, "a", table(range(20)))
    answer(ledger, "a", purpose="sum 0")
    step()
    (folder / "answer-0").touch()  # it has left
    step()


def test_no_answer_leaves_without_its_entry_whenever_the_process_is_killed(tmp_path: Path) -> None:
    """Killed at each statement and between them: what left is entered, and the run goes on."""
    killed = []
    for place in range(1, 1000):
        folder = tmp_path / str(place)
        folder.mkdir()
        process = _FORK.Process(target=_killed_at, args=(place, folder))
        process.start()
        process.join()
        left = {int(path.name[-1]) for path in folder.glob("answer-*")}
        ledger = NodeLedger(folder)
        entered = {int(name[-1]) for run in ledger.runs() for name in run.sums}
        assert left <= entered
        assert entered <= left | {len(left)}
        open_run(ledger, "a", table(range(20)))
        answer(ledger, "a", purpose="sum 0")
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed.append((len(left), len(entered)))
    assert set(killed) == {(0, 0), (0, 1), (1, 1)}
    assert len(killed) > 20


def test_a_full_disk_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new ledger waits for who makes it at the same time, and for nothing else."""

    class Full:
        def execute(self, statement: str) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

    monkeypatch.setattr(ledger_file.time, "sleep", lambda seconds: pytest.fail("waits"))
    with pytest.raises(sqlite3.OperationalError):
        ledger_file._begin_log(Full())  # type: ignore[arg-type]


def test_a_fault_at_any_statement_lets_no_answer_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full at any time; what was not entered is refused, what was stays."""
    connect, left = sqlite3.connect, [0]

    def failing(*args: Any, **more: Any) -> sqlite3.Connection:
        db = connect(*args, **more)

        def authorise(*_: Any) -> int:
            left[0] -= 1
            return sqlite3.SQLITE_DENY if left[0] == 0 else sqlite3.SQLITE_OK

        db.set_authorizer(authorise)
        return db

    monkeypatch.setattr(sqlite3, "connect", failing)
    ledger, faults = NodeLedger(tmp_path), 0
    open_run(ledger, "a", table(range(20)))
    for place in range(1, 1000):
        left[0] = place
        name, failed = f"sum {place}", ""
        try:
            answer(ledger, "a", purpose=name)
        except OptionError as error:
            failed, faults = str(error), faults + 1
        done = left[0] > 0
        left[0] = -1
        assert (name in ledger.runs()[0].sums) is not bool(failed)
        assert failed in (
            "",
            f"partition 0: ledger.sqlite cannot be used (SQLITE_AUTH); {COPY} [FK-LEDGER-FILE]",
        )
        if done:
            break
    assert faults > 20


def _race(folder: Path, number: int, results: Any) -> None:
    ledger = NodeLedger(folder)
    open_run(ledger, f"run{number}", table(range(20 + number)))
    try:
        answer(ledger, f"run{number}")
    except RefusedError:
        results.put((number, False))
    else:
        results.put((number, True))


def test_of_runs_at_the_same_time_one_is_answered(tmp_path: Path) -> None:
    """Four processes make the file at once; their rows differ by one to three."""
    results = _FORK.Queue()
    workers = [_FORK.Process(target=_race, args=(tmp_path, k, results)) for k in range(4)]
    for worker in workers:
        worker.start()
    found = dict(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert sum(found.values()) == 1
    assert [bool(run.sums) for run in NodeLedger(tmp_path).runs()].count(True) == 1
