"""The feeder of a node's socket: whole lines of everybody, in one file that runs read."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.online.source import FileSource, Place
from fedkern_flwr.online.stream_files import fed_by_socket, spool_file
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.warm_node.feeder import Spool

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
        self.stream, self.spool = stream, spool_file(folder / "state", 1)
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
    found = FileSource(feeder.spool, "y").take(Place(), 2, 0.0)
    assert found.y.tolist() == [3.0, 7.0]
    feeder.end()
    with feeder.spool.open("ab") as file:
        file.write(b"7,7")
    feeder.start()
    with feeder.connect() as one:
        one.sendall(HEAD + b"1,1,1\n")
        wait_for(lambda: len(feeder.lines()) == 5)
    again = FileSource(feeder.spool, "y").take(found.place, 3, 0.0)
    assert (again.y.tolist(), again.anew) == ([6.0, 1.0], False)


def test_one_feeder_writes_and_one_listens(feeder: Feeder, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"another process writes into stream-1.rows"):
        Spool(feeder.spool)
    other = tmp_path / "other.toml"
    text = feeder.config.read_text().replace("partition-id = 1", "partition-id = 2")
    other.write_text(text)
    found = subprocess.run(
        [*FEED, str(other)], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 2
    assert "cannot be listened to" in found.stderr
    assert found.stderr.count("\n") < 4
    assert feeder.listens()


@pytest.mark.parametrize(
    ("stream", "line"),
    [
        ("/data/readings.csv", "names no socket as stream"),
        ("0.0.0.0:80", "rows are taken from this machine only"),
    ],
)
def test_what_needs_no_feeder_says_so(
    stream: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'stream = "{stream}"\nstate-dir = "{tmp_path}"\n')
    assert run(["node", "feed", "--node-config", str(config)]) == 2
    assert line in " ".join(capsys.readouterr().err.split())
    with pytest.raises(OptionError, match="a socket needs a folder of the node"):
        fed_by_socket({"stream": "unix:/run/x"})
