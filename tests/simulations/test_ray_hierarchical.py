"""HierarchicalSVM on Flower's Ray engine: the same model as in process, with users that raise.

The test is a program of its own with a time-out, so that a stuck engine cannot hold the suite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import json
from pathlib import Path
import numpy as np
from fedkern_flwr.clients import SVMClient
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.simulations import SimulationStep, simulate_all
from fedkern_flwr.simulations.engines.faults import Fault
from fedkern_flwr.strategies import HierarchicalSVM

quiet_flower(50)
HERE = Path.cwd()
rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4))
Y = np.where(X @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.normal(size=60) > 0.0, 1.0, -1.0)
KEY = bytes(range(32))
USERS, GROUPS = 6, 3

class Client(SVMClient):
    def _dispatch(self, parameters, config):
        flag = HERE / f"{config.get('phase')}-{config.get('round')}-{self.partition}"
        if flag.exists():
            flag.unlink()
            raise ValueError("private value 4711")
        return super()._dispatch(parameters, config)

def client_fn(context):
    k, split = context.node_config["partition-id"], (HERE / "split").read_text()
    common = {"alignment_key": KEY, "state_dir": HERE / "state"}
    if USERS <= k < USERS + GROUPS:
        return Client(context, role="agent", group=k - USERS, **common)
    if split == "horizontal":
        rows = slice(k, 48, USERS)
        return Client(context, X[rows], Y[rows], x_test=X[48 + 2 * k : 50 + 2 * k],
                      y_test=Y[48 + 2 * k : 50 + 2 * k], group=k // 2, classes=[-1.0, 1.0])
    if k == USERS + GROUPS:
        return Client(context, y=Y[:48], ids=range(48), role="owner", classes=[-1.0, 1.0],
                      y_test=Y[48:], ids_test=range(48, 60), **common)
    columns = [[0], [1], [2, 3]][k // 2]
    rows = np.arange(k % 2, 60, 2)
    return Client(context, X[rows][:, columns], ids=rows, group=k // 2, **common)

def step(name, split, options, *raising, rounds=6):
    found = {}
    def before(_):
        (HERE / "split").write_text(split)
        for flag in raising:
            (HERE / flag).touch()
    def after(_):
        arrays, _ = strategy.model()
        found["model"] = {name: value.tolist() for name, value in arrays.items()}
        found["metrics"] = {k: float(v) for k, v in strategy.metrics_.items()}
        found["objectives"] = [row.get("objective") for row in strategy.history_]
        found["left"] = [flag for flag in raising if (HERE / flag).exists()]
        found["failures"] = strategy.ledger_.failures
    strategy = HierarchicalSVM(partition=split, seed=5, tolerance=1e-9, **options)
    return name, found, SimulationStep(strategy, before=before, after=after,
                                       start={"num_rounds": rounds})

def delays(delivery):
    if delivery.phase == "svm-local" and delivery.partition < 2:  # the first group is slow
        return Fault("delay", seconds=0.2)
    return None

out = {}
for engine in ("in-process", "ray"):
    found = out[engine] = {}
    steps = [
        step("raising", "horizontal", {}, "svm-local-2-1", "svm-agent-3-7", "svm-evaluate-8-0"),
    ]
    if engine == "in-process":
        steps.append(step("horizontal", "horizontal", {}))
    steps.append(step("asynchronous", "horizontal", {"staleness": 4}, rounds=16))
    simulate_all([step for _, _, step in steps], client_fn, USERS + GROUPS, engine=engine,
                 faults=delays)
    found |= {name: result for name, result, _ in steps}
    steps = [
        step("vertical, raising", "vertical", {}, "svm-visit-5-1", "svm-owner-6-9", rounds=8),
    ]
    if engine == "in-process":
        steps.append(step("vertical", "vertical", {}, rounds=8))
    simulate_all([step for _, _, step in steps], client_fn, USERS + GROUPS + 1, engine=engine)
    found |= {name: result for name, result, _ in steps}
print(json.dumps(out))
"""


@pytest.mark.ray
@pytest.mark.timeout(200)
def test_model_equals_that_in_process_and_a_node_that_raises_once_is_asked_again(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    finished = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "4711" not in finished.stdout
    out = json.loads(finished.stdout.splitlines()[-1])
    local, ray = out["in-process"], out["ray"]
    for name, theirs in ray.items():
        ours = local[name]
        assert ours["left"] == theirs["left"] == []  # every node that was to raise did
        if name == "asynchronous":
            continue
        for part, values in ours["model"].items():
            np.testing.assert_allclose(theirs["model"][part], values, rtol=0.0, atol=1e-9)
        assert ours["objectives"] == pytest.approx(theirs["objectives"], rel=1e-9)
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-9)
    assert set(ray) == {"raising", "vertical, raising", "asynchronous"}
    assert len(ray["raising"]["objectives"]) == 6
    assert local["raising"]["model"] == local["horizontal"]["model"]
    assert set(ray["raising"]["failures"]) == {"0", "1", "7"}
    assert set(ray["vertical, raising"]["failures"]) == {"1", "9"}
    best = local["vertical"]["metrics"]["objective"]  # exact, of the same rows
    for engine in (local, ray):
        assert engine["asynchronous"]["metrics"]["objective"] == pytest.approx(best, rel=5e-3)
