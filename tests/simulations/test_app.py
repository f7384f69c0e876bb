"""The Flower app: what `flwr run` computes is what `simulate` computes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.checkpoint import load_arrays
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines.ray import ENVIRONMENT
from fedkern_flwr.simulations.families.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

BIN = Path(sys.executable).parent
CONFIG = 'data="diabetes" num-rounds=20 samples-per-round=5 features=6 seed=3 secure="on"'


def app_folder() -> Path:
    """Return the folder of the app in the installed package."""
    return Path(str(files("fedkern_flwr.simulations"))) / "apps" / "pof_mkl"


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


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return a copy of the installed app, as a user makes one."""
    return Path(shutil.copytree(app_folder(), tmp_path / "pof-mkl"))


@pytest.mark.app
@pytest.mark.timeout(90)
def test_flwr_run_gives_the_model_of_simulate(
    superlink: SuperLink, app: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "model.npz"
    run_id = superlink.run(app, f'{CONFIG} model="{saved}"', clients=3)
    arrays, options = load_arrays(saved)

    prepared = prepare(DataSettings("diabetes", clients=3, rounds=20, seed=3))
    strategy = POFMKL(features=6, samples_per_round=5, seed=3, secure=True)
    simulate(strategy, prepared.clients, 3, num_rounds=20)

    expected_arrays, expected_options = strategy.model()
    assert options == expected_options
    assert arrays.keys() == expected_arrays.keys()
    assert np.abs(arrays["theta"]).max() > 0.0
    for name, expected in expected_arrays.items():
        np.testing.assert_allclose(arrays[name], expected, rtol=0.0, atol=1e-9)
    log = superlink.log(run_id)
    assert f"mean squared error: {strategy.metrics_['mse']:.4g}" in log
    assert f"regret per client: {strategy.metrics_['regret_mean']:.4g}" in log
    assert "the server saw: sums over the clients of a round" in log


def test_app_reads_a_deployed_node_s_own_table(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.array([[0.0, 10.0], [4.0, 20.0]]), np.array([-5.0, 15.0])
    np.savez(tmp_path / "site.npz", X=x, y=y, feature_names=np.array(["a", "b"]))
    scaling = {"x_min": [0, 0], "x_max": [4, 20], "row_norm": 2.0, "y_min": -5, "y_max": 35}
    (tmp_path / "scaling.json").write_text(json.dumps(scaling))
    node: dict[str, Any] = {"partition-id": 1, "num-partitions": 3}
    node |= {"data": str(tmp_path / "site.npz"), "scaling": str(tmp_path / "scaling.json")}

    monkeypatch.syspath_prepend(app)
    monkeypatch.delitem(sys.modules, "client_app", raising=False)
    import client_app
    from flwr.app import Context, RecordDict

    context = Context(
        run_id=1, node_id=7, node_config=node, state=RecordDict(), run_config={"data": ""}
    )
    client = client_app.make_client(context)

    np.testing.assert_array_equal(client.x, [[0.0, 0.25], [0.5, 0.5]])
    np.testing.assert_array_equal(client.y, [0.0, 0.5])
    assert (client.partition, client.columns) == (1, ("a", "b"))


def test_app_s_defaults_are_options_the_strategy_takes(app: Path) -> None:
    with (app / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
    used = {
        name
        for source in ("server_app.py", "client_app.py")
        for name in declared
        if f'["{name}"]' in (app / source).read_text()
    }
    assert used == set(declared)
    POFMKL(
        kernels=declared["kernels"],
        kernels_per_round=declared["kernels-per-round"] or None,
        features=declared["features"],
        exploration=declared["exploration"],
        step_size=declared["step-size"],
    )
