"""Streams from the outside: files that grow, a feeder of a socket, a deployment."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.run_config import app_folder

# -- files of parties that are read while the run goes on


PARTIES = [word for k in range(3) for word in ("--party", f"{k}.csv")]
SMALL = ["--label", "power", "--samples-per-round", "5", "--quiet"]


def lines(k: int, rows: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.normal(20.0, 5.0, (90, 2))
    y = np.sin(x[:, 0] / 4.0) + 0.1 * x[:, 1]
    return "".join(",".join(map(repr, row)) + "\n" for row in np.c_[x, y][rows].tolist())


def write(rows: int) -> None:
    for k in range(3):
        Path(f"{k}.csv").write_text("a,b,power\n" + lines(k, slice(rows)))


def result(out: str, *more: str, method: str = "pof-rls") -> dict[str, Any]:
    assert run(["run", method, *PARTIES, *SMALL, *more, "--out", out]) == 0
    found: dict[str, Any] = json.loads(Path(out, "result.json").read_text())
    return found


@pytest.mark.usefixtures("in_tmp")
def test_files_that_do_not_grow_are_the_table() -> None:
    write(40)
    table, files = result("table"), result("files", "--stream-wait", "0")
    assert files["metrics"] == table["metrics"]
    assert files["history"] == table["history"]
    for out in ("table", "files"):
        run(["predict", out, "--data", "0.csv", "--out", f"{out}.csv"])
    assert Path("files.csv").read_text() == Path("table.csv").read_text()


@pytest.mark.usefixtures("in_tmp")
def test_rows_that_are_written_meanwhile_are_learned() -> None:
    write(30)

    def grow() -> None:
        for at in range(30, 90, 10):
            time.sleep(0.2)
            for k in range(3):
                with Path(f"{k}.csv").open("a") as file:
                    file.write(lines(k, slice(at, at + 10)))

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        found = result("growing", "--stream-wait", "60", "--rounds", "90", method="pof-mkl")
    finally:
        writer.join()
    assert found["history"][-1]["round"] == 90
    assert {row["survivors"] for row in found["history"]} == {3}


@pytest.mark.usefixtures("in_tmp")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--data", "0.csv", "--stream-wait", "0"], "FK-STREAM-PARTIES"),
        ([*PARTIES, "--stream-wait", "0", "--test-size", "0.2"], "FK-DATA-OPTION"),
        ([*PARTIES, "--stream-wait", "0", "--scaling", "rank"], "FK-DATA-OPTION"),
        ([*PARTIES, "--stream-wait", "-1"], "FK-OPTION-RANGE"),
        ([*PARTIES, "--stream-wait", "0", "--rounds", "0"], "FK-OPTION-RANGE"),
        ([*PARTIES, "--stream-wait", "0", "--columns", "text"], "FK-STREAM-TEXT"),
    ],
)
def test_what_a_stream_does_not_have_is_refused(
    options: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(30)
    if options[-1] == "text":
        options = options[:-2]
        for k in range(3):
            head, *rows = Path(f"{k}.csv").read_text().splitlines()
            rows = [f"{'red' if n % 2 else 'blue'},{row}" for n, row in enumerate(rows)]
            Path(f"{k}.csv").write_text("\n".join([f"colour,{head}", *rows]) + "\n")
    assert run(["run", "pof-rls", *options, *SMALL, "--out", "o"]) == 2
    assert " ".join(capsys.readouterr().err.split()).endswith(f"[{code}]")


# -- the feeder of a socket: whole lines of everybody, in one file that runs read


HEAD = b"a,b,y\n"

_MAIN = "from fedkern_flwr.simulations.cli.main import main; main()"

FEED = (sys.executable, "-c", _MAIN, "node", "feed", "--node-config")


def wait_for(what: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Feeder:
    """`fedkern node feed` in a process of its own."""

    def __init__(self, folder: Path, stream: str) -> None:
        self.stream, self.spool = stream, folder / "state/stream-1.rows"
        self.config = folder / "node.toml"
        state = folder / "state"
        self.config.write_text(f'stream = "{stream}"\npartition-id = 1\nstate-dir = "{state}"\n')
        self.start()

    def start(self) -> None:
        command = [*FEED, str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        wait_for(self.listens)

    def connect(self) -> socket.socket:
        if self.stream.startswith("unix:"):
            end = socket.socket(socket.AF_UNIX)
            end.connect(self.stream.removeprefix("unix:"))
        else:
            host, port = self.stream.split(":")
            end = socket.create_connection((host, int(port)))
        return end

    def listens(self) -> bool:
        assert self.process.poll() is None, self.process.stderr
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def lines(self) -> list[bytes]:
        return self.spool.read_bytes().splitlines(keepends=True)

    def end(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)
        self.process.wait(60)


@pytest.fixture(params=["unix", "tcp"])
def feeder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Feeder]:
    stream = f"unix:{tmp_path / 's'}" if request.param == "unix" else f"127.0.0.1:{free_port()}"
    found = Feeder(tmp_path, stream)
    yield found
    if found.process.poll() is None:
        found.end()


def test_lines_of_several_senders_become_rows(feeder: Feeder) -> None:
    """Whole ones, names of columns once; after a crash it goes on, without half a line."""
    with feeder.connect() as one, feeder.connect() as other:
        one.sendall(HEAD + b"1,2,3\n4,")
        wait_for(lambda: len(feeder.lines()) == 2)
        other.sendall(HEAD.replace(b"\n", b"\r\n") + b"5,6,7\n\n")
        wait_for(lambda: len(feeder.lines()) == 3)
        one.sendall(b"5,6\n8,9")
        wait_for(lambda: len(feeder.lines()) == 4)
    assert feeder.lines() == [HEAD, b"1,2,3\n", b"5,6,7\n", b"4,5,6\n"]
    assert stat.S_IMODE(feeder.spool.stat().st_mode) == 0o600
    if feeder.stream.startswith("unix:"):
        assert stat.S_IMODE(Path(feeder.stream.removeprefix("unix:")).stat().st_mode) == 0o600
    feeder.end()
    with feeder.spool.open("ab") as file:
        file.write(b"7,7")
    feeder.start()
    with feeder.connect() as one:
        one.sendall(HEAD + b"1,1,1\n")
        wait_for(lambda: len(feeder.lines()) == 5)
    assert feeder.lines() == [HEAD, b"1,2,3\n", b"5,6,7\n", b"4,5,6\n", b"1,1,1\n"]


def test_one_feeder_writes_and_one_listens(feeder: Feeder, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    text, free = feeder.config.read_text(), f"127.0.0.1:{free_port()}"
    for change, code in (
        (("partition-id = 1", "partition-id = 2"), "FK-LISTEN-ADDRESS"),
        ((feeder.stream, free), "FK-STREAM-TAKEN"),
    ):
        other.write_text(text.replace(*change))
        found = subprocess.run(
            [*FEED, str(other)], capture_output=True, text=True, timeout=120, check=False
        )
        assert found.returncode == 2
        assert " ".join(found.stderr.split()).endswith(f"[{code}]")
    assert feeder.listens()


@pytest.mark.parametrize(
    ("stream", "folder", "code"),
    [
        ("/data/readings.csv", True, "FK-STREAM-SOCKET"),
        ("0.0.0.0:80", True, "FK-STREAM-HOST"),
        ("unix:/run/x", False, "FK-STREAM-FOLDER"),
    ],
)
def test_what_needs_no_feeder_says_so(
    stream: str, folder: bool, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'stream = "{stream}"\n' + f'state-dir = "{tmp_path}"\n' * folder)
    assert run(["node", "feed", "--node-config", str(config)]) == 2
    assert " ".join(capsys.readouterr().err.split()).endswith(f"[{code}]")


# -- a deployment


NODES, FIRST, LAST, BATCH = 4, 30, 120, 30

OPTIONS = {"data": "", "samples-per-round": BATCH, "features": 4, "kernels": 3, "seed": 0}


def rows(k: int, part: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.uniform(-0.5, 0.5, (LAST, 3))
    both = np.column_stack([x, 0.5 + 0.4 * np.sin(3.0 * x[:, 0])])[part]
    return "".join(",".join(map(repr, row)) + "\n" for row in both.tolist())


def deploy(deployment: LocalDeployment, rounds: int) -> dict[str, Any]:
    told = deployment.folder / "told.json"
    told.unlink(missing_ok=True)
    config = {**OPTIONS, "num-rounds": rounds, "result": str(told)}
    deployment.wait_for_run(deployment.run(app_folder("pof_mkl"), config), 240.0)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


@pytest.mark.deployment
@pytest.mark.timeout(560)
def test_rows_that_come_while_a_run_goes_on_are_learned(tmp_path: Path) -> None:
    """Twice: the second run begins after the rows of the first."""
    nodes: list[dict[str, Any]] = []
    for k in range(NODES):
        (tmp_path / f"{k}.csv").write_text(NAMES + ("" if k == 1 else rows(k, slice(FIRST))))
        stream = f"unix:{tmp_path / 's'}" if k == 1 else str(tmp_path / f"{k}.csv")
        node = {"partition-id": k, "num-partitions": NODES, "stream": stream, "stream-wait": 60}
        nodes.append({**node, "label-column": "y", "state-dir": str(tmp_path / f"state{k}")})

    def grow() -> None:
        for at in range(FIRST, LAST, 15):
            time.sleep(0.5)
            part = slice(at, at + 15)
            for k in range(NODES):
                if k == 1:
                    sender.sendall(rows(k, part).encode())
                else:
                    with (tmp_path / f"{k}.csv").open("a") as file:
                        file.write(rows(k, part))

    with LocalDeployment(tmp_path / "deployment", nodes) as deployment:
        sender = socket.socket(socket.AF_UNIX)
        for _ in range(300):
            try:
                sender.connect(str(tmp_path / "s"))
                break
            except OSError:
                time.sleep(0.1)
        sender.sendall((NAMES + rows(1, slice(FIRST))).encode())
        writer = threading.Thread(target=grow)
        writer.start()
        try:
            found = [deploy(deployment, 60)]
        finally:
            writer.join()
        found.append(deploy(deployment, 60))
        sender.close()
    for one in found:
        assert [row["round"] for row in one["history"]] == [30, 60]
        assert [row["survivors"] for row in one["history"]] == [NODES, NODES]
    assert found[1]["metrics"]["mse"] < 0.1


NAMES = "a,b,c,y\n"
