"""The example of the page on secure aggregation, in process and on real servers."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.deployment.local import LocalDeployment

EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/secure_aggregation"
NODES, MODULES = 4, ("task", "client_app", "server_app")
STOCK = {"fedavg": FedAvg, "fedadam": FedAdam}

pytestmark = [
    pytest.mark.skipif(not EXAMPLE.is_dir(), reason="no source tree here"),
    pytest.mark.timeout(280),
]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Return the modules of the example."""
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


class LosesNode(ClientApp):
    """An app whose last node fails from a round of the server on."""

    def __init__(self, app: ClientApp, first: int) -> None:
        super().__init__()
        self.app, self.first = app, first

    def __call__(self, message: Message, context: Context) -> Message:
        number = message.content.config_records.get("config", {}).get("server-round", 0)
        if context.node_config["partition-id"] == NODES - 1 and number >= self.first:
            raise RuntimeError("lost")
        return self.app(message, context)


def start(example: SimpleNamespace, strategy: Any, app: ClientApp, rounds: int) -> Any:
    arrays = ArrayRecord({name: Array(value) for name, value in example.task.initial().items()})
    return simulate(strategy, app, NODES, num_rounds=rounds, initial_arrays=arrays)


def gap(arrays: Any, expected: ArrayRecord) -> float:
    """Return the largest difference of two models."""
    assert set(arrays) == set(expected)
    return max(float(np.abs(arrays[name] - expected[name].numpy()).max()) for name in expected)


@pytest.mark.deployment
@pytest.mark.parametrize("name", STOCK)
def test_a_deployment_that_loses_a_node_is_the_plain_run_over_the_others(
    example: SimpleNamespace, tmp_path: Path, name: str
) -> None:
    """Nodes have the policy of a node and tables of their own; one is killed on the way."""
    nodes: list[dict[str, Any]] = []
    for k in range(NODES):
        config = {"partition-id": k, "num-partitions": NODES}
        x, y = example.task.table(Context(1, k, config, {}, {}))
        folder = tmp_path / "nodes" / str(k)
        folder.mkdir(parents=True)
        np.savetxt(folder / "data.csv", np.column_stack([x, y]), delimiter=",", fmt="%.17g")
        nodes.append({**config, "data": str(folder / "data.csv")})
    deployment, rounds, saved = LocalDeployment(tmp_path, nodes), 2, tmp_path / "model.npz"
    options: dict[str, Any] = {"num-rounds": rounds, "strategy": name, "model": str(saved)}
    options |= {"evaluate": 0.0, "timeout": 15.0}
    with deployment:
        run_id = deployment.run(EXAMPLE, options)
        log = tmp_path / "nodes" / str(NODES - 1) / "supernode.log"
        deadline = time.monotonic() + 60
        while log.read_text().count("Sent successfully") < 2:  # its first masked vector is sent
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        deployment.processes.kill(f"node {NODES - 1}")
        status = deployment.wait_for_run(run_id, 200.0)
        deployment.save_log(run_id, tmp_path / "log")
    assert status.endswith("completed"), (tmp_path / "log").read_text()[-3000:]
    with np.load(saved) as arrays:
        found = dict(arrays)
    app = example.client_app.app
    gaps = [
        gap(found, start(example, STOCK[name](), LosesNode(app, first), rounds).arrays)
        for first in range(1, rounds + 2)
    ]
    # it died before its vector of a round was in or after it: one of these is what happened
    assert min(gaps) < 1e-9, gaps
    assert max(gaps) > 1e-6
    assert gaps[rounds] > 1e-9, "it was there to the end"
