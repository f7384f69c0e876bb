"""A run with a budget of privacy on real nodes: it breaks off, goes on, and is paid once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from servers import processes_of, wait_for_end_of

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.model_file import load_model
from fedkern_flwr.node.ledger import ClientLedger
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.strategies import HierarchicalSVM

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(580)]

NODES, ROUNDS, EPSILON = 3, 12, 3.0
OPTIONS = {"C": 1.0, "privacy-epsilon": EPSILON, "seed": 0}


def table(k: int) -> dict[str, Any]:
    """Return the rows of a node."""
    x = np.random.default_rng(k).random((100, 4))
    y = np.where(x.sum(axis=1) > 2.0, 1.0, -1.0)
    held = {"x_test": x[80:], "y_test": y[80:]}
    return {"x": x[:80], "y": y[:80], **held, "classes": (-1.0, 1.0)}


def ledger(folder: Path, k: int) -> NodeLedger:
    return NodeLedger(folder / "nodes" / str(k) / "state", k)


def noise_keys(folder: Path) -> list[list[bytes]]:
    """Return the keys of noise that lie in the folders of the nodes."""
    found = []
    for k in range(NODES):
        with closing(sqlite3.connect(folder / f"nodes/{k}/state/ledger.sqlite")) as db:
            found.append([bytes(key) for (key,) in db.execute("SELECT key FROM noise")])
    return found


def run(deployment: LocalDeployment, **more: Any) -> dict[str, Any]:
    """Run the app to its end; return its result or its error."""
    told = deployment.folder / "told.json"
    told.unlink(missing_ok=True)
    deployment.wait_for_run(start(deployment, result=str(told), **more), 250.0)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def start(deployment: LocalDeployment, **more: Any) -> int:
    files = {"checkpoint": str(deployment.folder / "run.npz")}
    files |= {"saved-model": str(deployment.folder / "model.npz")}
    common = {"num-rounds": ROUNDS, "checkpoint-every": 3, "data": ""}
    return deployment.run(app_folder("hierarchical_svm"), {**OPTIONS, **common, **files, **more})


def expected(keys: list[bytes], monkeypatch: pytest.MonkeyPatch) -> HierarchicalSVM:
    """Return the run in one process, with the noise of the nodes."""
    known = lambda self, session, state: keys[self._partition]  # noqa: E731
    monkeypatch.setattr(ClientLedger, "noise_key", known)

    def client(context: Context) -> SVMClient:
        return SVMClient(context, **table(int(context.node_config["partition-id"])))

    options = {name.replace("-", "_"): value for name, value in OPTIONS.items()}
    made = HierarchicalSVM(**options)
    simulate(made, client, NODES, num_rounds=ROUNDS)
    return made


def test_a_run_with_a_budget_breaks_off_goes_on_and_is_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = NodePolicy(max_epsilon=EPSILON)
    nodes = [
        write_node(tmp_path / "nodes" / str(k), k, NODES, {**table(k), "role": "user"}, policy)
        for k in range(NODES)
    ]
    with LocalDeployment(tmp_path, nodes) as deployment:
        start(deployment)
        log = tmp_path / "nodes" / "0" / "supernode.log"
        while log.read_text().count("Sent successfully") < 6:  # past the second checkpoint
            time.sleep(0.1)
        os.kill(deployment.processes.pid("SuperLink"), signal.SIGKILL)
        deployment.processes.kill("SuperLink")
    for pid in processes_of(tmp_path / "flwr"):  # the app's server, which waits for its SuperLink
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "run.npz").exists()
    keys = noise_keys(tmp_path)
    assert [len(own) for own in keys] == [1] * NODES
    for k in range(NODES):
        (begun,) = ledger(tmp_path, k).runs()
        assert 0.0 < begun.epsilon < EPSILON

    with LocalDeployment(tmp_path, nodes) as deployment:  # all is started again
        result = run(deployment, resume=True)
        assert "error" not in result, result
        again = run(deployment, checkpoint="")
    quiet = expected([own[0] for own in keys], monkeypatch)
    found = load_model(tmp_path / "model.npz", "hierarchical-svm")[0]
    for name, values in quiet.model()[0].items():
        assert np.array_equal(found[name], values), name
    assert result["metrics"] == pytest.approx(quiet.metrics_)
    assert result["privacy"]["budget"] == quiet.privacy()["budget"]
    assert noise_keys(tmp_path) == [[]] * NODES  # of a run that is over
    assert wait_for_end_of(tmp_path / "flwr") == []

    assert "max_epsilon = 3: with this run its rows would lose" in again["error"]
    assert "\n" not in again["error"]
    assert again["exit_code"] == 2
    for k in range(NODES):
        paid, *later = ledger(tmp_path, k).runs()
        assert paid.epsilon == pytest.approx(EPSILON, rel=1e-2)
        assert not sum(run.epsilon or 0.0 for run in later)
