"""What a node tells those who watch it: status, logs, figures; and nothing of its data."""

from __future__ import annotations

import inspect
import json
import logging
import re
import stat
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.supercore.retry import make_simple_http_retry_invoker
from refusals import raises

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.flower_compat import CONNECTED, DISCONNECTED, RUN_OF_MESSAGE
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import LedgerTotals, NodeLedger, ledger_totals
from fedkern_flwr.guard.opened import Opening
from fedkern_flwr.guard.policy import Rules, write_policy
from fedkern_flwr.guard.rows import OwnRows
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment import report as reporting
from fedkern_flwr.simulations.deployment.report import (
    FILE,
    Line,
    LogReader,
    NodeReport,
    NodeStatus,
    connection,
    started_at,
    write_metrics,
)

LINK = "superlink.example.org:8000"
CELL = "4711.25"  # of a table


def show(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> tuple[int, str]:
    """Return exit code and output of ``fedkern node status``."""
    code = run(["node", "status", "--state-dir", str(folder), *more])
    out, err = capsys.readouterr()
    return code, out + err


# -- status


def test_status_says_whether_a_node_is_connected(tmp_path, capsys):
    code, text = show(capsys, tmp_path / "none")
    assert (code, text[-17:]) == (2, "[FK-NODE-FOLDER]\n")
    assert show(capsys, tmp_path)[0] == 3
    status = NodeStatus(LINK)
    status.write(tmp_path)
    assert show(capsys, tmp_path)[0] == 1
    replace(status, connected=True, connected_since=status.started).write(tmp_path)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    code, text = show(capsys, tmp_path)
    assert code == 0
    assert f"connected since {status.started}" in text
    assert LINK in text
    old = {**vars(status), "connected": True, "written": "2026-01-01T00:00:00Z"}
    (tmp_path / FILE).write_text(json.dumps(old))
    code, text = show(capsys, tmp_path, "--json")
    assert (code, json.loads(text)["connected"]) == (1, False)
    assert json.loads(text)["state"].startswith("no status for ")
    assert show(capsys, tmp_path, "--max-age", "1e12")[0] == 0
    age = time.time() - datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert NodeStatus(**old).age == pytest.approx(age, abs=60.0)
    newer = json.dumps({**vars(NodeStatus(LINK)), "more": 1})  # of another release
    for damage in ("[", "{}", '{"superlink": "x", "written": "then"}', newer):
        (tmp_path / FILE).write_text(damage)
        code, text = show(capsys, tmp_path)
        assert (code, text[-17:], text.count("\n")) == (2, "[FK-NODE-STATUS]\n", 1)


def test_a_node_that_is_stuck_on_a_message_is_no_healthy_one(tmp_path, capsys, monkeypatch):
    """It exits with 1 once parts of a message, its process or the end of it are overdue."""
    report = NodeReport(LINK, {"state-dir": str(tmp_path)}, tmp_path / "node.prom", longest=0.0)
    report.line(LogReader("supernode").line("INFO :      SuperNode ID: 5"))

    def shown() -> tuple[int, dict[str, Any]]:
        report.save(now=True)
        code, text = show(capsys, tmp_path, "--json")
        return code, json.loads(text)

    report.comes("123")
    code, told = shown()
    assert (code, told["state"], told["run"]) == (0, "connected", "123")
    since = "fedkern_node_message_start_timestamp_seconds"
    found = read_metrics((tmp_path / "node.prom").read_text())
    assert abs(found[f'{since}{{run="123"}}'] - time.time()) < 60
    assert found["fedkern_node_stuck"] == 0
    assert "run 123" in show(capsys, tmp_path)[1]
    report.there()
    assert shown()[0] == 0
    for step in (report.began, lambda: report.comes("124"), report.there):
        step()
        code, told = shown()
        assert (code, told["connected"]) == (1, True)
        assert told["run"] in told["state"]
        monkeypatch.setattr(reporting, "CONTENT_SECONDS", 0.0)
    assert read_metrics((tmp_path / "node.prom").read_text())["fedkern_node_stuck"] == 1
    assert "stuck" in show(capsys, tmp_path)[1]
    report.done()
    assert shown()[0] == 0
    assert since not in (tmp_path / "node.prom").read_text().replace(f"# TYPE {since}", "").replace(
        f"# HELP {since}", ""
    )


def test_a_message_whose_process_is_quick_has_its_time_to_be_answered(tmp_path, monkeypatch):
    """What the SuperNode says comes on another way than what the process says that takes tasks."""
    report = NodeReport(LINK, {"state-dir": str(tmp_path)})
    report.comes("123")
    report.began()
    monkeypatch.setattr(reporting, "CONTENT_SECONDS", 0.0)
    report.there()
    report.save(now=True)
    assert report.status.stuck == ""


def test_a_process_that_has_ended_or_got_the_number_of_another_does_not_run(tmp_path, capsys):
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = NodeStatus(LINK, pid=other.pid, process=started_at(other.pid), connected=True)
    reused = replace(status, process=NodeStatus(LINK).process)  # started at another time
    for found, code in ((status, 0), (reused, 3)):
        found.write(tmp_path)
        assert show(capsys, tmp_path)[0] == code
    status.write(tmp_path)
    other.kill()
    deadline = time.monotonic() + 10
    while started_at(other.pid) and time.monotonic() < deadline:  # it is not waited for: a zombie
        time.sleep(0.01)
    assert show(capsys, tmp_path)[0] == 3
    other.wait()
    assert show(capsys, tmp_path)[0] == 3


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Return a state-dir with a ledger: two runs, a sum each, figures told twice, refusals."""
    folder, rules = tmp_path / "state", Rules(policy=NodePolicy(max_evaluations=2))
    ledger = NodeLedger(folder, rules=rules)
    x = np.random.default_rng(0).random((20, 2)) + float(CELL)
    rows = OwnRows([(x,)], [f"patient-{k}" for k in range(20)], len(x))
    about: Any = {"kind": "K", "method": "m", "secure": True, "pinned": True, "rows": rows}
    for session in ("first", "second"):
        ledger.open_run(session, **about)
        ledger.enter(session, [Opening("gram", parties=3)])
        ledger.tell(session, "accuracy", np.arange(10), [0.5])
    raises(RefusedError, ledger.tell, "second", "again", np.arange(10), [0.5])
    for why in (
        "max_evaluations = 2 of these rows", "min_parties = 3: a sum has 2",
        "rows are asked for twice, or are none", 'x"} 1\nfedkern_node_connected: no',
    ):  # fmt: skip
        ledger.refuse("second", why)
    return folder


@pytest.mark.promise("status-no-cells")
def test_status_counts_what_the_ledger_holds(used, tmp_path, capsys):
    """Where there is no ledger, none is made."""
    refusals = {"max_evaluations": 1, "min_parties": 1, "order": 2}
    assert ledger_totals(used) == LedgerTotals(2, 2, 2, refusals)
    code, text = show(capsys, used)
    assert code == 3
    assert re.search(r"figures sent +2 times about the same rows", text)
    assert "max_evaluations 1, min_parties 1, order 2" in text
    (used / "ledger.sqlite").write_bytes(b"damaged" * 1000)
    assert ledger_totals(used) is None
    assert "cannot be read now" in show(capsys, used)[1]
    (tmp_path / "new").mkdir()
    assert ledger_totals(tmp_path / "new") == LedgerTotals(0, 0, 0, {})
    assert list((tmp_path / "new").iterdir()) == []


# -- lines


PRINTED = (
    ("\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode", "INFO", "Starting Flower SuperNode"),
    ("INFO:     Application startup complete.", "INFO", "Application startup complete."),
    ("\x1b[91mERROR \x1b[0m:     ClientApp raised", "ERROR", "ClientApp raised"),
    ("Traceback (most recent call last):", "ERROR", "Traceback (most recent call last):"),
    ('  File "x.py", line 3, in f', "ERROR", '  File "x.py", line 3, in f'),
    ("INFO 2026-11-23 11:40:00,123:      again", "INFO", "again"),
    ("\x1b[92mINFO \x1b[0m:      ", "INFO", ""),
    ("a line \x1b[31mof\x1b]0;title\x07 the app", "INFO", "a line of the app"),
    ("INFORMATION: of the app", "INFO", "INFORMATION: of the app"),
)


def test_every_line_is_one_json_object_without_colours() -> None:
    reader = LogReader("client", 17)
    for printed, level, text in PRINTED:
        told = json.loads(reader.line(printed).to_json())
        assert told.pop("time").endswith("Z")
        assert told == {"level": level, "source": "client", "run": "17", "text": text}
    for printed in ("\ud800", "x" * 30_000, "\x1b[", '"}{\\', "\u2028", "ERROR :"):
        told = reader.line(printed).to_json()
        assert "\n" not in told
        assert told.isascii() or "\u2028" not in told
        assert len(json.loads(told)["text"]) <= 10_000


def test_lines_of_the_supernode_alone_name_runs_and_connections() -> None:
    reader, client = LogReader("supernode"), LogReader("client")
    assert "run" not in json.loads(reader.line("INFO :  Starting").to_json())
    reader.line("INFO :      [RUN 16059081141777727729, ROUND 3]")
    assert reader.line("INFO :      Sent successfully").run == 16059081141777727729
    assert reader.line("INFO :      [RUN 7]").run == 7
    assert client.line("[RUN 7]").run is None
    for printed, found in (
        ("INFO :      SuperNode ID: 5", True),
        ("WARNING :   Connection attempt failed, retrying in 1.53 seconds", False),
        ("INFO :      Connection successful after 3.10 seconds and 2 tries.", True),
        ("ERROR :     Exit Code: 305", False),
        ("INFO :      Received successfully", None),
    ):
        assert connection(reader.line(printed)) is found
        assert connection(client.line(printed)) is None


def test_the_supernode_still_says_what_is_read(caplog: Any, monkeypatch: Any) -> None:
    """Flower 1.41. Who makes it fail: flower_compat's CONNECTED, DISCONNECTED, RUN_OF_MESSAGE."""
    source, ending, connecting = (
        inspect.getsource(import_module(f"flwr.{name}"))
        for name in (
            "supernode.start_client_internal",
            "supercore.exit.exit",
            "supernode.fleet_http_connection",
        )
    )
    assert f'log(INFO, "{CONNECTED[0]}%s", node_id)' in source
    assert source.count('"[RUN %s, ROUND %s]"') == source.count('"[RUN %s]"') == 2
    for text in ("[RUN 12, ROUND 3]", "[RUN 12]"):
        assert re.findall(RUN_OF_MESSAGE, text) == ["12"]
    assert f"{DISCONNECTED[2]}{{code}}" in ending
    assert "retry_invoker = make_simple_http_retry_invoker()" in connecting
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr")  # other tests quiet it
    answers = iter([httpx.ConnectError("down"), None])

    def ask() -> None:
        if error := next(answers):
            raise error

    make_simple_http_retry_invoker().invoke(ask)
    shown = [each.getMessage() for each in caplog.records if each.levelno >= logging.INFO]
    failed, worked = dict.fromkeys(shown)
    assert failed.startswith(DISCONNECTED[0])
    assert worked.startswith(CONNECTED[1])


# -- a running node


@pytest.mark.promise("status-no-cells")
def test_a_report_follows_connection_and_messages(used: Path, tmp_path: Path) -> None:
    metrics, policy = tmp_path / "fedkern.prom", tmp_path / "policy.toml"
    policy.write_text(write_policy(NodePolicy(max_evaluations=4)))
    report = NodeReport(LINK, {"state-dir": str(used), "policy": str(policy)}, metrics)
    report.save()
    assert NodeStatus.read(used) == report.status
    supernode, client = LogReader("supernode"), LogReader("client", 3)
    report.line(supernode.line("INFO :      SuperNode ID: 5"))
    report.began()
    report.line(client.line(f"ERROR :  ValueError: {CELL} is no id"))
    assert report.status.last_error == ""
    report.ended(2.5, 1.25, failed=False)
    report.began()
    report.ended(0.5, 0.25, failed=True)
    report.began()
    report.line(Line("node", "the client of run 3 was ended by signal 9", "ERROR"))
    report.save(now=True)

    found = NodeStatus.read(used)
    assert found is not None
    assert found.connected
    assert found.connected_since >= found.started
    assert (found.messages, found.failures, found.busy) == (3, 1, 1)
    assert (found.message_seconds, found.cpu_seconds) == (3.0, 1.5)
    assert found.last_error.endswith("ended by signal 9")
    samples, expected = read_metrics(metrics.read_text()), {"message_seconds_count": 2}
    expected |= {"message_seconds_sum": 3.0, 'refusals_total{rule="order"}': 2}
    expected |= {"evaluations_told": 2, "evaluations_allowed": 4, "connected": 1}
    expected |= {"messages_total": 3, "failures_total": 1, "busy_messages": 1}
    expected |= {"client_cpu_seconds_total": 1.5, "runs_total": 2, "sums_total": 2}
    assert {f"fedkern_node_{k}": v for k, v in expected.items()}.items() <= samples.items()
    assert abs(samples["fedkern_node_last_message_timestamp_seconds"] - time.time()) < 60
    assert stat.S_IMODE(metrics.stat().st_mode) == 0o644
    for file in (used / FILE, metrics):
        assert CELL not in file.read_text()
        assert "patient" not in file.read_text()

    report.line(supernode.line("WARNING :   Connection attempt failed, retrying in 1 seconds"))
    assert not report.status.connected
    assert report.status.connected_since == ""
    # not at once, since it was written just now, but later it is
    report.save()
    assert NodeStatus.read(used) == found
    NodeLedger(used).refuse("second", "min_parties = 3: a sum has 2")
    report.ended(0.0, 0.0, failed=False)
    report.save(now=True)  # what the ledger holds is read again
    samples = read_metrics(metrics.read_text())
    assert samples['fedkern_node_refusals_total{rule="min_parties"}'] == 2
    hasty = NodeReport(LINK, {"state-dir": str(used)}, pause=0.0)
    hasty.save()
    hasty.began()
    hasty.save()
    assert NodeStatus.read(used) == hasty.status


def test_a_report_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    report = NodeReport(LINK, {"state-dir": str(tmp_path / "file" / "x")}, say=said.append)
    for one in (report, report, NodeReport(LINK, {}, say=said.append)):  # the last has no folder
        one.save(now=True)
    (text,) = said
    assert text.startswith("status or metrics cannot be written: ")


_SAMPLE = re.compile(
    r'([a-z_:]+(?:\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"\})?) ([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)'
)


def read_metrics(text: str) -> dict[str, float]:
    """Read Prometheus' text format: every family has its head once, before its samples."""
    assert text.endswith("\n")
    heads, found = list[str](), dict[str, float]()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (kind == "counter") == name.endswith("_total")
            assert name not in heads
            heads.append(name)
        elif not line.startswith("# HELP "):
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert re.sub(r"_(sum|count)$", "", sample[1].split("{")[0]) == heads[-1]
            assert sample[1] not in found
            found[sample[1]] = float(sample[2])
    return found


def test_figures_without_a_ledger_are_in_the_format_of_prometheus(tmp_path: Path) -> None:
    file = tmp_path / "a" / "node.prom"
    status = NodeStatus(LINK, connected=True, messages=10**7, message_seconds=1234567.891)
    write_metrics(file, status, None, None)
    found = read_metrics(file.read_text())
    assert abs(found.pop("fedkern_node_written_timestamp_seconds") - time.time()) < 60
    expected = {"connected": 1, "messages_total": 10**7, "message_seconds_sum": 1234567.891}
    for name, value in {**expected, "last_message_timestamp_seconds": 0}.items():
        assert found[f"fedkern_node_{name}"] == value
    assert not {name for name in found if "refusals" in name or "evaluations" in name}
    assert [path.name for path in file.parent.iterdir()] == ["node.prom"]


def test_the_age_of_a_message_is_counted_from_its_first_part(monkeypatch: Any) -> None:
    report = NodeReport(LINK, {}, None)
    times = iter(f"2026-01-01T00:00:0{k}+00:00" for k in range(9))
    monkeypatch.setattr(f"{NodeReport.__module__}.utc_now", lambda: next(times))
    report.comes("7")
    first = report.status.message_since
    report.comes("7")
    assert report.status.message_since == first != ""
    report.done()
    assert report.status.message_since == ""
    report.comes("8")
    assert report.status.message_since > first
