"""What a node's ledger says of its runs, and how old files of runs are removed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedkern_flwr.guard.ledger import AboutRun, NodeLedger, ledger_totals
from fedkern_flwr.guard.opened import Opening
from fedkern_flwr.guard.policy import Rules
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.report import NodeStatus

DAY = 86400.0
ROWS = OwnRows([(np.random.default_rng(0).random((20, 2)),)], None, 20)
SETTINGS = json.dumps({"method": "fed-cg", "node-timeout": 120})


def open_run(ledger: NodeLedger, session: str, **more: Any) -> tuple[str, ...]:
    """Open a run with secure sums, unless it is said."""
    about = AboutRun(session, "1" * 19, "0.2.0", "us.app.1.0.0.5e5e5e5e", SETTINGS, "ab" * 8, 10, 4)
    given: dict[str, Any] = {"kind": "K", "method": "fed-cg", "secure": True, "pinned": True}
    return ledger.open_run(session, rows=ROWS, about=about, **{**given, **more})


def show(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> str:
    """Return what the command prints."""
    command = ["node", "ledger", "show", "--state-dir", str(folder), *more]
    assert run(command) == 0
    return capsys.readouterr().out


def test_a_run_is_told_so_that_it_joins_up(tmp_path: Path, capsys: Any) -> None:
    ledger = NodeLedger(tmp_path, rules=Rules(mode="off"))
    for session in ("first", "second"):
        open_run(ledger, session, method="a method of a very long name"[:40])
        sums = [Opening(f"a sum of a long name {k}", parties=12) for k in range(4)]
        ledger.enter(session, sums)
    ledger.end_run("first")
    lines = show(capsys, tmp_path).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines] == ["run", "1", "2"]
    told = show(capsys, tmp_path, "--run", "1")
    for word in ("first", "1" * 19, "0.2.0", "5e5e5e5e", SETTINGS, "ab" * 8, "a long name 3"):
        assert word in told
    assert "second" not in told
    first, second = json.loads(show(capsys, tmp_path, "--json"))
    assert first["about"]["session"] == "first"
    assert first["ended"] > first["opened"][:10]
    assert not second["ended"]
    assert run(["node", "ledger", "show", "--state-dir", str(tmp_path), "--run", "3"]) == 2


def test_an_owner_is_warned_when_little_is_left(tmp_path: Path, capsys: Any) -> None:
    ledger = NodeLedger(tmp_path)
    for number in range(8):
        assert open_run(ledger, f"run{number}") == ()
        ledger.tell(f"run{number}", "accuracy", np.arange(10), [0.5])
    (warned,) = open_run(ledger, "another")
    assert "8 of max_evaluations = 10" in warned
    totals = ledger_totals(tmp_path)
    assert totals is not None
    assert totals.near == (warned,)
    assert warned in show(capsys, tmp_path)
    assert run(["node", "status", "--state-dir", str(tmp_path)]) == 3
    assert warned in capsys.readouterr().out


# -- files of old runs

FILES = (".opened", "-round-3.state", ".model", ".weights", ".last", ".context", ".released")
FILES += (".context.0a1b.tmp",)  # of a process that was killed as it wrote
STAY = {"ledger.sqlite", "identity", "landmarks-5e", "stream-0.rows", "freeze-0", "notes"}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a node's folder with runs that ended, go on, sum in plain, broke off; and the rest."""
    ledger = NodeLedger(tmp_path)
    for session in ("ended", "recent", "open", "plain"):
        open_run(ledger, session, secure=session != "plain")
    ledger.end_run("ended")
    ledger.end_run("recent")
    old = time.time() - 40 * DAY
    for name in ("2026-01-01T0000Z-ended", "2026-01-01T0000Z-recent", "open", "plain", "strange"):
        (tmp_path / name).mkdir()
        for ending in FILES:
            file = tmp_path / name / f"{'.' * ending.endswith('.tmp')}partition-0{ending}"
            file.write_text("own")
            if "recent" not in name:
                os.utime(file, (old, old))
    for name in ("freeze-0", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "partition-0.model").write_text("own")
        os.utime(tmp_path / name / "partition-0.model", (old, old))
    for name in STAY - {"freeze-0", "notes", "ledger.sqlite"}:
        (tmp_path / name).write_text("own")
    return tmp_path


def clean(folder: Path, *more: str, older_than: str = "30d") -> int:
    return run(["node", "clean", "--state-dir", str(folder), "--older-than", older_than, *more])


def runs(folder: Path) -> dict[str, int]:
    """Return how many files each folder of a run has."""
    names = ("ended", "recent", "open", "plain", "strange")
    found = {name: list(folder.glob(f"*{name}/*")) for name in names}
    return {name: len(files) for name, files in found.items()}


def test_files_of_old_runs_are_removed_and_no_others(state: Path, capsys: Any) -> None:
    whole = dict.fromkeys(("ended", "recent", "open", "plain", "strange"), len(FILES))
    assert clean(state, "--dry-run") == 0
    assert runs(state) == whole
    told = capsys.readouterr().out
    assert "2026-01-01T0000Z-ended: 5 files, 3 of its model stay" in told
    assert "recent" not in told
    assert clean(state) == 0
    fewer = {"ended": 3, "plain": 3, "open": len(FILES) - 2}  # keys of its session help nobody
    assert runs(state) == {**whole, **fewer}
    left = {path.suffix for path in (state / "2026-01-01T0000Z-ended").iterdir()}
    assert left == {".state", ".model", ".weights"}
    assert clean(state, "--models", "--unfinished") == 0
    assert runs(state) == {**whole, "ended": 0, "plain": 0, "open": 0}
    assert not (state / "open").exists()
    assert {path.name for path in state.iterdir()} >= STAY
    assert (state / "notes" / "partition-0.model").exists()
    ledger = NodeLedger(state)
    assert len(ledger.runs()) == 4
    refuses("FK-SESSION-CLEANED", open_run, ledger, "ended")
    open_run(ledger, "recent")


def test_nothing_is_removed_while_a_node_answers(state: Path, capsys: Any) -> None:
    status = NodeStatus("127.0.0.1:9092", busy=1)
    status.write(state)
    assert clean(state) == 2
    assert "[FK-NODE-BUSY]" in capsys.readouterr().err
    status.busy = 0
    status.write(state)
    assert clean(state) == 0
    assert clean(state, older_than="30") == 2
    assert "[FK-OPTION-TYPE]" in capsys.readouterr().err
