"""A server that deviates, on real servers with TLS: what it asks beyond the method is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import cells, write
from identities import known_node

from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.run_config import app_folder

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(580)]

NODES, ROWS = 3, 80
#: Server apps of kernel PCA: what they do instead of what the method says.
MANY = """
from fedkern_flwr.simulations.attacks.many_kernels import ManyKernels
ManyKernels.widths = (1.0, 0.5)
app = server_app(lambda config: ManyKernels)
"""
NAMED = """
import secrets
secrets.token_hex = lambda size=32: "ab" * 16
"""
CHOSEN = """
import numpy as np
from fedkern_flwr.method import Sum
from fedkern_flwr.strategies import KernelPCA
class Chosen(KernelPCA):
    def rounds(self, parties):
        kernel = {"bandwidth": 1.0, "features": 4, "seed": 0}
        ask = {"mean": np.zeros(8), "components": np.eye(8)[:1], **kernel}
        yield Sum("rest", {"left": (), "all": ()}, bound=4.0, held_out=True, ask=ask)
        return {}
app = server_app(lambda config: Chosen)
"""


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    found, random = [], np.random.default_rng(0)
    for k in range(NODES):
        place = tmp_path / "nodes" / str(k)
        place.mkdir(parents=True)
        names = {"data": ROWS, "test-data": 20}
        files = {
            name: str(write(place / f"{name}.csv", "abc", *cells(random.random((rows, 3)))))
            for name, rows in names.items()
        }
        known = known_node(tmp_path / "known", k, NODES)
        own = {name.replace("_", "-"): str(path) for name, path in known.items()}
        found.append({"partition-id": k, "num-partitions": NODES, **files, **own})
    return found


def app(folder: Path, patch: str) -> Path:
    """Return a copy of the app of methods whose server is another."""
    shutil.copytree(app_folder("method"), folder)
    with (folder / "server_app.py").open("a") as file:
        file.write(patch)
    return folder


def go(deployment: LocalDeployment, place: Path) -> dict[str, Any]:
    """Run an app; return its result or its error."""
    path = deployment.folder / "result"
    path.unlink(missing_ok=True)
    options = json.dumps({"components": 2, "features": 4})
    config = {"method": "kernel-pca", "options": options, "seed": 0, "result": str(path)}
    deployment.wait_for_run(deployment.run(place, config), 300.0)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_what_deviates_is_refused(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    """The same sum of another width, a model that nobody made, a second run of one name."""
    ledger = NodeLedger(Path(str(nodes[0]["state-dir"])), 0)
    with LocalDeployment(tmp_path, nodes) as deployment:
        found = go(deployment, app(tmp_path / "many", MANY))
        assert "FK-SETTINGS-CHANGED" in found["error"], found
        assert [run.sums for run in ledger.runs()] == [("moments",)]
        found = go(deployment, app(tmp_path / "chosen", CHOSEN))
        assert "FK-ORDER-MODEL" in found["error"], found
        named = app(tmp_path / "named", NAMED)
        assert "error" not in go(deployment, named)
        found = go(deployment, named)
        assert "FK-SESSION-KNOWN" in found["error"], found
