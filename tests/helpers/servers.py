"""Flower's servers in tests: a SuperLink, and what is left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Self

import pytest

from fedkern_flwr.simulations.engines.ray import ENVIRONMENT

BIN = Path(sys.executable).parent


def processes_of(*homes: Path) -> list[int]:
    """Return the processes that have one of these homes of Flower in their environment."""
    marks, found = {f"FLWR_HOME={home}".encode() for home in homes}, []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marks & set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile, or not ours
    return found


def wait_for_end_of(*homes: Path) -> list[int]:
    """Return the processes that are left after some seconds."""
    deadline = time.monotonic() + 20.0
    while (left := processes_of(*homes)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


class SuperLink:
    """A SuperLink for simulations with a home of its own, and the `flwr` command that talks to it.

    Flower's commands take it by default where ``FLWR_HOME`` is its home.
    """

    def __init__(self, home: Path) -> None:
        home.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "{self.address}"\n'
            "insecure = true\n"
        )
        self.home = home
        own = {"FLWR_HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        own["RAY_ADDRESS"] = "local"  # a cluster that another test has left behind is not joined
        self.environment = {**os.environ, **ENVIRONMENT, **own}
        host, port = self.address.split(":")
        command = [BIN / "flower-superlink", "--insecure", "--simulation", "--host", host]
        with (home / "superlink.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", port], env=self.environment, stdout=log, stderr=log
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=2) as reply:
                    if reply.status == 200:
                        return self
            except OSError:
                time.sleep(0.1)
        self.process.kill()
        pytest.fail((self.home / "superlink.log").read_text()[-2000:])

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments], env=self.environment, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, config: str, clients: int) -> str:
        """Run an app to its end; return the run's id and fail with its log unless it completed."""
        size = f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus=2"
        options = ["--run-config", config, "--federation-config", size, "--format", "json"]
        run_id = str(json.loads(self.flwr("run", str(app), "sim", *options))["run-id"])
        deadline, status = time.monotonic() + 200, ""
        while not status.startswith("finished") and time.monotonic() < deadline:
            time.sleep(0.5)
            listed = self.flwr("ls", "--run-id", run_id, "sim", "--format", "json")
            status = json.loads(listed)["runs"][0]["status"]
        if status != "finished:completed":
            pytest.fail(f"{status}\n{self.log(run_id)[-3000:]}")
        return run_id

    def log(self, run_id: str) -> str:
        return self.flwr("log", run_id, "sim", "--show")

    def __exit__(self, *error: object) -> None:
        """Stop it; nothing may be left that did not end by itself."""
        self.process.terminate()
        self.process.wait(timeout=30)
        left = wait_for_end_of(self.home)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert left == [] or error[0] is not None
