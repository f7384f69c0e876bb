"""Several runs on one SuperLink, and a SuperLink that is killed while one goes on."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.model_file import load_model
from fedkern_flwr.private_files import create_file
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.strategies import POFMKL, KernelPCA

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(580)]

NODES, ROUNDS = 3, 30
POF = {"num-rounds": ROUNDS, "samples-per-round": 10, "features": 5, "kernels": 11, "data": ""}
PCA = {"method": "kernel-pca", "options": json.dumps({"components": 3, "features": 40})}
Arrays = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def streams() -> Streams:
    """Return the data of the nodes."""
    return prepare(DataSettings("diabetes", clients=NODES, rounds=ROUNDS, seed=0))


def write_nodes(folder: Path, streams: Streams) -> list[dict[str, Any]]:
    """Write the files of the nodes, whose owners let streams be learned from several times."""
    policy = NodePolicy(counting="warn")
    return [
        write_node(folder / "nodes" / str(k), k, NODES, streams.clients.deployed(k), policy)
        for k in range(NODES)
    ]


def start(deployment: LocalDeployment, app: str, name: str, **options: Any) -> tuple[int, str]:
    """Start a run that writes its result and its model under a name."""
    files = {key: str(deployment.folder / f"{name}-{key}") for key in ("result", "model")}
    config = {**(POF if app == "pof_mkl" else PCA), "seed": 0, **files, **options}
    return deployment.run(app_folder(app), config), name


def wait(deployment: LocalDeployment, run: tuple[int, str]) -> Arrays:
    """Wait for the end of a run; return its model."""
    number, name = run
    told = deployment.folder / f"{name}-result"
    status = deployment.wait_for_run(number, 500.0)
    assert status.endswith("completed"), told.read_text()
    kind = "pof-mkl" if name.startswith("pof") else "kernel-pca"
    return dict(load_model(deployment.folder / f"{name}-model", kind)[0])


def check_pof_mkl(found: Arrays, streams: Streams) -> None:
    """Compare a model with that of a simulation."""
    strategy = POFMKL(kernels=11, features=5, samples_per_round=10, seed=0, secure=True)
    simulate(strategy, streams.clients, NODES, num_rounds=ROUNDS)
    np.testing.assert_allclose(found["theta"], strategy.model()[0]["theta"], rtol=0, atol=1e-9)


def check_kernel_pca(found: Arrays, streams: Streams) -> None:
    """Compare a model with that of a simulation."""
    strategy = KernelPCA(components=3, features=40, seed=0)
    rows = [streams.clients.deployed(k)["x"] for k in range(NODES)]
    simulate(strategy, lambda c: KernelPCAClient(c, rows[c.node_config["partition-id"]]), NODES)
    for name, values in strategy.model()[0].items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9, err_msg=name)


def test_runs_at_the_same_time_and_after_one_another_give_their_models(
    tmp_path: Path, streams: Streams
) -> None:
    with LocalDeployment(tmp_path, write_nodes(tmp_path, streams)) as deployment:
        both = [start(deployment, "pof_mkl", "pof-1"), start(deployment, "method", "pca-1")]
        check_pof_mkl(wait(deployment, both[0]), streams)
        check_kernel_pca(wait(deployment, both[1]), streams)
        check_kernel_pca(wait(deployment, start(deployment, "method", "pca-2")), streams)
    for k in range(NODES):  # messages of both runs came in turns, and were answered one by one
        log = (tmp_path / "nodes" / str(k) / "supernode.log").read_text()
        runs = [int(run) for run in re.findall(r"\[RUN (\d+), .*\n.*Receiving:", log)]
        first, second = (number for number, _ in both)
        assert runs.index(second) < len(runs) - 1 - runs[::-1].index(first)
        assert runs.index(first) < len(runs) - 1 - runs[::-1].index(second)
        done = re.findall(r"(Receiving|Sending):", log)
        assert done == ["Receiving", "Sending"] * len(runs)


class SurvivingRuns(LocalDeployment):
    """Runs are started by a process of its own, which the end of the SuperLink leaves alone."""

    def start_superlink(self, port: int = 0) -> None:
        """Start the SuperLink and, once, the process that starts runs."""
        secret, usual = self.folder / "superexec-secret", self.processes.start
        if not secret.exists():
            with create_file(secret) as file:
                file.write(secrets.token_bytes(32))
        own = ["--superexec-auth-secret-file", str(secret)]
        kept = ["--isolation", "process", "--database", self.folder / "state.db", *own]

        def isolated(name: str, command: Sequence[str | Path], log: Path) -> int:
            return usual(name, [*command, *(kept if name == "SuperLink" else ())], log)

        self.processes.start = isolated  # type: ignore[method-assign]
        try:
            super().start_superlink(port)
        finally:
            self.processes.start = usual  # type: ignore[method-assign]
        if "SuperExec" not in self.processes.names():
            command = ["flower-superexec", "--runtime-api-address", self.address, *own]
            command += ["--root-certificates", str(self.folder / "keys" / "ca.crt")]
            usual("SuperExec", command, self.folder / "superexec.log")


@pytest.fixture
def surviving(tmp_path: Path, streams: Streams) -> Iterator[LocalDeployment]:
    """Return a deployment in which runs survive the SuperLink."""
    with SurvivingRuns(tmp_path, write_nodes(tmp_path, streams)) as deployment:
        yield deployment


def test_a_run_goes_on_when_the_superlink_was_killed_and_is_back(
    surviving: LocalDeployment, streams: Streams
) -> None:
    run = start(surviving, "pof_mkl", "pof", timeout=60.0)
    log = surviving.folder / "nodes" / "0" / "supernode.log"
    while log.read_text().count("Sent successfully") < 3:  # described, and a sum was opened
        time.sleep(0.1)
    port = int(surviving.address.rpartition(":")[2])
    os.kill(surviving.processes.pid("SuperLink"), signal.SIGKILL)
    surviving.processes.kill("SuperLink")
    surviving.start_superlink(port)
    check_pof_mkl(wait(surviving, run), streams)
    result = json.loads((surviving.folder / "pof-result").read_text())
    assert result["survivors"] == NODES
