"""Apps as modules, and a SuperLink of our own for tests of the apps with `flwr run`."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.simulations.engines.ray import ENVIRONMENT

BIN = Path(sys.executable).parent


@pytest.fixture
def import_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Return what imports the modules of an app afresh, with its declared options."""

    def imported(name: str, *modules: str) -> SimpleNamespace:
        monkeypatch.syspath_prepend(app_folder(name))
        for module in modules:
            monkeypatch.delitem(sys.modules, module, raising=False)
        found = {module: importlib.import_module(module) for module in modules}
        return SimpleNamespace(**found, config=declared(app_folder(name)))

    return imported


class SuperLink:
    """A SuperLink of our own with its own home, and the `flwr` command that talks to it."""

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
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}
        host, port = self.address.split(":")
        command = [BIN / "flower-superlink", "--insecure", "--simulation", "--host", host]
        with (home / "superlink.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", port], env=self.environment, stdout=log, stderr=log
            )

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://{self.address}/health", timeout=2) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        pytest.fail((self.home / "superlink.log").read_text()[-2000:])

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, config: str, clients: int) -> str:
        """Run an app to its end; return the run's id and fail with its log unless it completed."""
        size = f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus=2"
        options = ["--run-config", config, "--federation-config", size, "--format", "json"]
        run_id = str(json.loads(self.flwr("run", str(app), "sim", *options))["run-id"])
        deadline, status = time.monotonic() + 60, ""
        while not status.startswith("finished") and time.monotonic() < deadline:
            time.sleep(0.5)
            listed = self.flwr("ls", "--run-id", run_id, "sim", "--format", "json")
            status = json.loads(listed)["runs"][0]["status"]
        if status != "finished:completed":
            pytest.fail(f"{status}\n{self.log(run_id)[-3000:]}")
        return run_id

    def log(self, run_id: str) -> str:
        return self.flwr("log", run_id, "sim", "--show")

    def processes(self) -> list[int]:
        """Return the ids of all processes of this SuperLink: its home is in their environment."""
        mark, found = f"FLWR_HOME={self.home}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # ended meanwhile, or not ours
        return found

    def stop(self) -> list[int]:
        """Stop it; return the processes that did not end by themselves and had to be killed."""
        self.process.terminate()
        self.process.wait(timeout=30)
        deadline = time.monotonic() + 15
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[SuperLink]:
    link = SuperLink(tmp_path / "home")
    try:
        link.wait_until_healthy()
        yield link
    finally:
        left = link.stop()
    assert left == []
