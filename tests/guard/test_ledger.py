"""The ledger by itself: what is compared, what is allowed, and that it survives everything."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sqlite3
import stat
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused, refuses

from fedkern_flwr.errors import OptionError, RefusedError
from fedkern_flwr.guard import NodePolicy, ledger_file
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.ledger_file import FILE
from fedkern_flwr.guard.opened import Opening
from fedkern_flwr.guard.policy import Rules
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.simulations.cli.main import run

POLICY = NodePolicy()
RUN: dict[str, Any] = {"kind": "K", "method": "m", "secure": True, "pinned": True}
PARTIES = [bytes([k]) for k in range(5)]


def table(ids: Any, seed: int = 0) -> OwnRows:
    """Rows whose content follows from their ids."""
    x = np.array([np.random.default_rng([seed, k]).random(2) for k in ids]).reshape(-1, 2)
    return OwnRows([(x,)], ids, len(x))


def open_run(ledger: NodeLedger, session: str, rows: OwnRows, **change: Any) -> float:
    ledger.open_run(session, rows=rows, **{**RUN, **change})
    return ledger.freeze(session, rows).share


def answer(
    ledger: NodeLedger,
    session: str,
    *,
    policy: NodePolicy = POLICY,
    mode: Any = "refuse",
    records: bool = True,
    **what: Any,
) -> list[str]:
    values = {"purpose": "sum", "cohort": PARTIES, "parties": 5, "values": session.encode(), **what}
    one = Opening(**values)
    ledger.rules = Rules(policy=policy, mode=mode, records=records)
    return ledger.enter(session, [one])


# -- what is compared


@pytest.mark.promise("guard-own-rows")
@pytest.mark.parametrize(("rows", "code"), [
    (range(20), ""), (range(19), "FK-FREEZE-ROWS"), (range(16), "FK-FREEZE-ROWS"),
    (range(15), ""), (range(5, 20), ""), (range(5), ""), (range(4), "FK-FREEZE-ROWS"),
])  # fmt: skip
def test_a_run_that_tells_few_rows_apart_is_refused(rows: range, code: str, tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
    answer(ledger, "a")
    with refused(code) if code else nullcontext():
        answer(ledger, "b", rows=np.array(rows))
    assert bool(ledger.runs()[1].sums) == (not code)


@pytest.mark.promise("guard-own-rows")
def test_subsets_that_the_server_chooses_show_no_row(tmp_path: Path) -> None:
    """Four subsets showed one row to 6e-15: all, those with the row, others, both."""
    ledger, rows = NodeLedger(tmp_path), np.arange(30)
    open_run(ledger, "a", table(range(30)))
    answer(ledger, "a", rows=rows[:15])
    answer(ledger, "a", rows=rows[10:])
    refuses("FK-FREEZE-ROWS", answer, ledger, "a", rows=rows[9:])
    with refused("FK-FREEZE-ROWS"):  # whatever the sum is called
        answer(ledger, "a", rows=rows[:14], purpose="another sum")
    open_run(ledger, "b", table(range(30)), kind="another client")
    answer(ledger, "b", rows=rows[:14])


def test_rows_of_nodes_that_hold_one_need_not_hide_among_others(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path, rules=Rules(records=False))
    ledger.open_run("a", rows=table(range(3)), **RUN)
    ledger.freeze("a", table(range(3)))
    answer(ledger, "a", records=False)
    answer(ledger, "a", records=False, rows=np.array([1]))


def test_a_table_that_has_changed_waits_for_whole_blocks(tmp_path: Path) -> None:
    """Also with a patient less and all values moved in the ninth digit, as by other ranges."""
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(40)))
    edited, moved = table(range(40)), table(range(39))
    edited.parts[0][0][7] += 1.0
    moved.parts[0][0][:] *= 1.0 + 1e-9
    for rows in (edited, table(range(43)), moved):
        refuses("FK-FREEZE-WAITS", open_run, ledger, "b", rows)
    open_run(ledger, "c", table(range(80)))
    answer(ledger, "c")
    for session in "de":  # numbers of the largest run need more new rows than these
        if session == "d":
            open_run(ledger, session, table(range(80)))
            answer(ledger, session, numbers=20.0, unknowns=2.0)
        else:
            refuses("FK-FREEZE-WAITS", open_run, ledger, session, table(range(110)))


def test_a_run_goes_on_with_the_table_that_it_began_with(tmp_path: Path) -> None:
    """Else old contents would be summed and entered as new ones."""
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(40)))
    open_run(ledger, "b", table(range(40), seed=1))
    refuses("FK-FREEZE-WAITS", answer, ledger, "a")
    answer(ledger, "b")


def test_the_difference_of_two_windows_is_a_sum_too(tmp_path: Path) -> None:
    """Five rows are enough to hide among each other, and not for products of three columns."""
    ledger, rows = NodeLedger(tmp_path), np.arange(40)
    for session in "ab":
        open_run(ledger, session, table(range(40)))
    answer(ledger, "a", rows=rows[:20], parts=6)
    refuses("FK-FREEZE-ROWS", answer, ledger, "b", rows=rows[:25], parts=6)
    answer(ledger, "b", rows=rows[:25], parts=5)


@pytest.mark.parametrize(("cohort", "code"), [
    (PARTIES, ""), (PARTIES[:4], "FK-CELLS-ONE-APART"), ([*PARTIES, b"x"], "FK-CELLS-ONE-APART"),
    (PARTIES[:3], ""), ([*PARTIES[:2], b"x"], "FK-CELLS-PARTIES"), (None, ""),
])  # fmt: skip
def test_a_run_needs_pinned_parties(cohort: list[bytes] | None, code: str, tmp_path: Path) -> None:
    """By whatever way: as a cohort, or as the survivors of one."""
    ledger = NodeLedger(tmp_path)
    for session in "abc":
        open_run(ledger, session, table(range(20)))
    answer(ledger, "a")
    with refused(code) if code else nullcontext():
        answer(ledger, "b", cohort=cohort)
    if code == "FK-CELLS-ONE-APART":
        answer(ledger, "c", cohort=cohort, policy=NodePolicy(allow_party_change=True))
    other = NodeLedger(tmp_path, partition=1)  # shares the folder
    open_run(other, "a", table(range(20)))
    answer(other, "a")
    answer(other, "a", cohort=PARTIES[1:], parties=4)  # within a run the protocol sees to it


def test_each_colluder_needs_one_party_more_that_was_always_there(tmp_path: Path) -> None:
    """Three parties were in both sums: two of them tell the server theirs, and nothing hides."""
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
    answer(ledger, "a")
    with refused("FK-CELLS-PARTIES"):
        answer(ledger, "b", cohort=PARTIES[:3], parties=3, policy=NodePolicy(colluders=1))
    answer(ledger, "b", cohort=PARTIES[:3], parties=3)


def test_rows_summed_one_by_one_may_be_any_of_the_same_parties(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    for session in "ab":
        open_run(ledger, session, table(range(20)))
    for start in (0, 5, 0, 12):
        answer(ledger, "a", rows=np.arange(start, start + 5), each=True)
    answer(ledger, "b", rows=np.array([3]), each=True)
    with refused("FK-CELLS-ONE-APART"):
        answer(ledger, "b", rows=np.array([11, 12]), each=True, cohort=PARTIES[1:])


# -- numbers


@pytest.mark.promise("cells-numbers")
def test_numbers_about_the_same_rows_are_counted_over_runs_and_methods(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    shares = [
        open_run(ledger, session, table(range(40)), kind=kind)
        for session, kind in zip("abcd", "KLKM", strict=True)
    ]
    assert shares == [0.2] * 4
    answer(ledger, "a", numbers=40.0, unknowns=2.0)  # of 80
    answer(ledger, "a", numbers=40.0, unknowns=2.0)  # the same values
    answer(ledger, "c", numbers=40.0, unknowns=2.0, values=b"a")  # in another run
    refuses("FK-CELLS-NUMBERS", answer, ledger, "b", numbers=40.0, unknowns=2.0)
    assert not ledger.runs()[1].sums
    assert answer(ledger, "b", numbers=40.0, unknowns=2.0, others=1) == []
    (said,) = answer(ledger, "d", numbers=9.0, unknowns=2.0, mode="warn")
    assert "unknowns" in said
    answer(ledger, "d", numbers=99.0, unknowns=2.0, mode="off", purpose="more")
    assert open_run(ledger, "e", table(range(40))) < 1e-6
    with refused("FK-CELLS-NUMBERS"):  # it was entered all the same
        answer(ledger, "e", numbers=0.5, unknowns=2.0)
    refuses("FK-CELLS-WIDTH", answer, ledger, "e", numbers=0.5, unknowns=2.0, width=21)


@pytest.mark.promise("cells-numbers")
def test_other_numbers_about_the_same_rows_add_up_within_a_run(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(40)))
    for values in (b"first", b"second", b"first"):  # of which the last is known
        answer(ledger, "a", numbers=30.0, unknowns=2.0, values=values)
    with refused("FK-CELLS-NUMBERS"):  # 90 of 80
        answer(ledger, "a", numbers=30.0, unknowns=2.0, values=b"third")


@given(
    runs=st.lists(
        st.tuples(st.sampled_from([0.25, 0.5, 0.75, 0.99]), st.booleans()), min_size=1, max_size=5
    )
)
@settings(max_examples=8, deadline=None)
def test_runs_that_count_by_themselves_add_up(runs: list[tuple[float, bool]]) -> None:
    with TemporaryDirectory() as folder:
        ledger, spent = NodeLedger(Path(folder)), 0.0
        for number, (share, again) in enumerate(runs):
            open_run(ledger, session := f"run{number}", table(range(20)))
            more: dict[str, Any] = {"purpose": "windows", "unknowns": 3.0}
            if share + spent < 1.0:
                answer(ledger, session, share=share, **more)
                answer(ledger, session, share=share / 2.0 if again else share, **more)
                spent += share
                continue
            refuses("FK-CELLS-NUMBERS", answer, ledger, session, share=share, **more)
            answer(ledger, session, share=0.0)  # what is not counted


def test_a_freeze_or_a_ledger_that_is_gone_is_no_new_start(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(20)))
    answer(ledger, "a")
    (tmp_path / "freeze-0" / "freeze.npz").rename(tmp_path / "kept")
    refuses("FK-FREEZE-FILE", open_run, ledger, "b", table(range(20)))
    (tmp_path / "kept").rename(tmp_path / "freeze-0" / "freeze.npz")
    for file in tmp_path.glob("ledger*"):
        file.unlink()
    refuses("FK-FREEZE-LEDGER", open_run, ledger, "a", table(range(20)))


@pytest.mark.promise("cells-again")
def test_a_function_is_that_of_the_rows_as_they_were(tmp_path: Path) -> None:
    """Of a run that was opened again with other rows nobody can tell."""
    ledger, about = NodeLedger(tmp_path), {"numbers": 30.0, "unknowns": 2.0, "function": b"f"}
    open_run(ledger, "a", table(range(40)))
    answer(ledger, "a", **about, how="so")
    left = ledger.freeze("a", table(range(40)))
    assert (left.again, left.how) == (0.0, "")  # it is its own run
    ledger.open_run("b", rows=table(range(40)), **RUN)
    left = ledger.freeze("b", table(range(40)))
    assert (left.again, left.how) == (30.0, "so")
    refuses("FK-FREEZE-WAITS", open_run, ledger, "a", table(range(42)))
    refuses("FK-FREEZE-WAITS", answer, ledger, "a")  # with a table of which it can enter no rows
    ledger.open_run("c", rows=table(range(40)), **RUN)
    assert ledger.freeze("c", table(range(40))).again == 0.0


@pytest.mark.promise("cells-again")
def test_contents_are_compared_where_no_later_run_had_the_rows(tmp_path: Path) -> None:
    """The rows of the first run are in that of the second."""
    ledger, about = NodeLedger(tmp_path), {"numbers": 30.0, "unknowns": 2.0, "function": b"f"}

    def again(session: str, rows: int, seed: int = 0) -> float:
        ledger.open_run(session, rows=table(range(rows), seed), **RUN)
        frozen = np.arange(rows) if seed else None
        return ledger.freeze(session, table(range(rows), seed), frozen).again

    again("a", 40)
    answer(ledger, "a", **about, how="so")
    again("b", 140)
    answer(ledger, "b", **about, how="so")
    assert again("c", 140) == 30.0
    assert again("d", 140, seed=1) == 0.0  # scaled otherwise


def test_figures_about_the_same_rows_are_counted_over_runs(tmp_path: Path) -> None:
    rules, rows = Rules(policy=NodePolicy(max_evaluations=3)), np.arange(10, 20)
    ledger = NodeLedger(tmp_path, rules=rules)
    for number, session in enumerate("abcd"):
        open_run(ledger, session, table(range(20)))
        if number < 3:
            told = ledger.tell(session, "q", rows, [float(number)])
            assert told == [float(number)]
            assert ledger.tell(session, "q", rows, [99.0]) == told  # of a resumed run
        else:
            refuses("FK-POLICY-EVALUATIONS", ledger.tell, session, "q", rows, [0.0])
            ledger.tell(session, "q", np.arange(10), [0.0])  # other rows
            with refused("FK-FREEZE-ROWS"):  # of nearly the same: the difference is one label
                ledger.tell(session, "r", np.arange(9), [0.0])


# -- the file


def test_the_file_shows_nothing_of_a_row_and_is_closed(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "state"
    ledger = NodeLedger(folder)
    ids = [f"patient-{k}" for k in range(20)]
    open_run(ledger, "aSession", OwnRows([(np.arange(20.0)[:, None],)], ids, 20))
    answer(ledger, "aSession")
    ledger.refuse("aSession", "min_parties = 3: a sum has 2")
    ledger.refuse("aSession", "min_parties = 3: a sum has 2")
    ledger.refuse("", "methods: x is not among them")
    there = [folder, *folder.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in there} == {0}
    data = b"".join(path.read_bytes() for path in there if path.is_file())
    assert b"patient" not in data
    assert b"aSession" not in data
    assert np.arange(3.0, 5.0).tobytes() not in data
    assert run(["node", "ledger", "show", "--state-dir", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "aSession" not in shown
    words = shown.splitlines()[1].split()
    assert (words[0], words[3:6], words[-1]) == ("1", ["m", "20", "5"], "sum")
    assert "min_parties = 3" in shown


def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    ledger = NodeLedger(tmp_path)
    open_run(ledger, "a", table(range(9)))
    with refused("FK-LEDGER-GONE"):
        answer(ledger, "b")
    for version in (1, 8, 99):  # nothing of another release is ignored, and nothing overwritten
        with sqlite3.connect(tmp_path / FILE) as db:
            db.execute(f"PRAGMA user_version = {version}")
        with refused("FK-LEDGER-VERSION"):
            answer(ledger, "a")
        with refused("FK-LEDGER-VERSION"):
            ledger.make()
    (tmp_path / FILE).write_bytes(b"not a database, and longer than a header would be" * 9)
    for name in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{name}").unlink(missing_ok=True)
    refuses("FK-LEDGER-FILE", answer, ledger, "a")


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
    with ledger.held():  # as a node answers
        open_run(ledger, "a", table(range(20)))
        with ledger.entering():
            answer(ledger, "a", purpose="sum 0")
            ledger.keep_record("a", "what it remembers")
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


def test_an_error_within_an_entry_of_another_has_its_reason_and_undoes_both(tmp_path: Path) -> None:
    """The file stays open for the outer entry: it says what went wrong, and ends it."""
    file = ledger_file.LedgerFile(tmp_path, 0)
    with refused("FK-LEDGER-FILE") as caught, file.held(), file.writing() as outer:
        outer.execute("CREATE TABLE half (n)")
        with file.writing():
            raise sqlite3.OperationalError
    assert "OperationalError" in str(caught.value)
    with file.open() as db:
        assert db.execute("SELECT * FROM sqlite_master WHERE name = 'half'").fetchall() == []


def test_a_fault_anywhere_lets_no_answer_go(tmp_path: Path, monkeypatch: Any) -> None:
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
            failed, faults = error.code, faults + 1
        done = left[0] > 0
        left[0] = -1
        assert (name in ledger.runs()[0].sums) is not bool(failed)
        assert failed in ("", "FK-LEDGER-FILE")
        if done:
            break
    assert faults > 20


def _race(folder: Path, number: int, results: Any) -> None:
    ledger = NodeLedger(folder)
    try:
        open_run(ledger, f"run{number}", table(range(20 + number)))
        answer(ledger, f"run{number}")
    except RefusedError:
        results.put((number, False))
    else:
        results.put((number, True))


def test_of_runs_at_the_same_time_one_is_answered(tmp_path: Path) -> None:
    """Four processes make the file and the freeze at once; their rows differ by one to three."""
    results = _FORK.Queue()
    workers = [_FORK.Process(target=_race, args=(tmp_path, k, results)) for k in range(4)]
    for worker in workers:
        worker.start()
    found = dict(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()
    assert sum(found.values()) == 1
    assert [bool(run.sums) for run in NodeLedger(tmp_path).runs()].count(True) == 1
