"""A deployment whose nodes have streams: files that grow, and a socket."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.run_config import app_folder

pytestmark = [pytest.mark.timeout(560), pytest.mark.deployment]
NODES, FIRST, LAST, BATCH = 4, 30, 120, 30
OPTIONS = {"data": "", "samples-per-round": BATCH, "features": 4, "kernels": 3, "seed": 0}
HEAD = "a,b,c,y\n"


def rows(k: int, part: slice) -> str:
    rng = np.random.default_rng(k)
    x = rng.uniform(-0.5, 0.5, (LAST, 3))
    both = np.column_stack([x, 0.5 + 0.4 * np.sin(3.0 * x[:, 0])])[part]
    return "".join(",".join(map(repr, row)) + "\n" for row in both.tolist())


def run(deployment: LocalDeployment, rounds: int) -> dict[str, Any]:
    told = deployment.folder / "told.json"
    told.unlink(missing_ok=True)
    config = {**OPTIONS, "num-rounds": rounds, "result": str(told)}
    deployment.wait_for_run(deployment.run(app_folder("pof_mkl"), config), 240.0)
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def test_rows_that_come_while_a_run_goes_on_are_learned(tmp_path: Path) -> None:
    """Twice: the second run begins after the rows of the first."""
    nodes: list[dict[str, Any]] = []
    for k in range(NODES):
        (tmp_path / f"{k}.csv").write_text(HEAD + ("" if k == 1 else rows(k, slice(FIRST))))
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
        sender.sendall((HEAD + rows(1, slice(FIRST))).encode())
        writer = threading.Thread(target=grow)
        writer.start()
        try:
            found = [run(deployment, 60)]
        finally:
            writer.join()
        found.append(run(deployment, 60))
        sender.close()
    for one in found:
        assert [row["round"] for row in one["history"]] == [30, 60]
        assert [row["survivors"] for row in one["history"]] == [NODES, NODES]
    assert found[1]["metrics"]["mse"] < 0.1
    for k in range(NODES):
        ledger = NodeLedger(tmp_path / f"state{k}", k)
        assert [one.rows for one in ledger.runs()] == [60, 60]
        assert ledger.refusals() == []
