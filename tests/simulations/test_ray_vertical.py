"""FDSKL on Flower's Ray engine: the same model as in process, and a client that raises once.

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
from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.simulations import SimulationStep, simulate_all
from fedkern_flwr.strategies import FDSKL

quiet_flower(50)
HERE = Path.cwd()
rng = np.random.default_rng(0)
X, ROWS = rng.random((80, 6)), rng.permutation(80)
Y = np.sin(3.0 * X.sum(axis=1))
KEY = bytes(range(32))

class Client(VerticalKernelClient):
    def stumble(self, phase):
        flag = HERE / f"{phase}-{self.partition}"
        if flag.exists():
            flag.unlink()
            raise ValueError("private value 4711")

    def take_step(self, request):
        self.stumble(f"step{request.round}")
        return super().take_step(request)

    def train(self, request):
        self.stumble("train")
        return super().train(request)

    def predict_rows(self, request):
        self.stumble("predict")
        return super().predict_rows(request)

def client_fn(context):
    k, actives = context.node_config["partition-id"], int((HERE / "actives").read_text())
    columns = slice(2 * k, 2 * k + 2)
    common = {"alignment_key": KEY, "frequency_seed": bytes([k + 1]) * 32}
    common["state_dir"] = HERE / "state"
    if k >= actives:
        rows = np.random.default_rng(k).permutation(80)
        return Client(context, X[rows, columns], ids=rows, **common)
    held = ROWS[60 + k :: actives]
    rows = np.setdiff1d(ROWS, held)
    labels = np.where(np.isin(rows, ROWS[k:60:actives]), Y[rows], np.nan)
    return Client(context, X[rows, columns], labels, ids=rows, x_test=X[held, columns],
                  y_test=Y[held], ids_test=held, predictions=HERE / f"{k}.csv", **common)

def step(name, actives, options, *raising):
    found = {}
    def before(_):
        (HERE / "actives").write_text(str(actives))
        for flag in raising:
            (HERE / flag).touch()
    def after(_):
        lines = [line.split(",") for k in range(actives)
                 for line in (HERE / f"{k}.csv").read_text().splitlines()[1:]]
        found["predictions"] = {row: float(value) for row, value in lines}
        left = [flag for flag in raising if (HERE / flag).exists()]
        found["left"] = left
        found["metrics"] = strategy.metrics_
        found["history"] = [[row["round"], row["test_rmse"]] for row in strategy.history_]
        found["failures"] = strategy.ledger_.failures
        found["by_phase"] = dict(strategy.ledger_.by_phase)
    strategy = FDSKL(seed=5, **options)
    start = {"num_rounds": 7}
    return name, found, SimulationStep(strategy, before=before, after=after, start=start)

ONE_SHOT = {"features": 40}
STREAMING = {"schedule": "streaming", "directions": 4, "batch": 6, "evaluate_every": 4}
out = {}
for engine in ("in-process", "ray"):
    steps = [
        step("one-shot", 1, ONE_SHOT),
        step("streaming", 1, STREAMING),
        step("streaming, two active", 2, STREAMING),
        step("one-shot, raising", 1, ONE_SHOT, "step1-2", "train-0"),
        step("streaming, raising", 1, STREAMING, "step3-0", "step5-2", "predict-0"),
        step("streaming, two active, raising", 2, STREAMING, "step3-0", "step5-1", "predict-1"),
    ]
    simulate_all([step for _, _, step in steps], client_fn, 3, engine=engine)
    out[engine] = {name: found for name, found, _ in steps}
print(json.dumps(out))
"""


@pytest.mark.ray
@pytest.mark.timeout(150)
def test_model_equals_that_in_process_and_a_client_that_raises_once_is_asked_again(
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
        timeout=130,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "4711" not in finished.stdout
    found = json.loads(finished.stdout.strip().splitlines()[-1])
    failures = {
        "one-shot, raising": {0: 1, 2: 1},
        "streaming, raising": {0: 2, 2: 1},
        "streaming, two active, raising": {0: 1, 1: 2},
    }
    for name, here in found["in-process"].items():
        quiet = found["in-process"][name.removesuffix(", raising")]
        assert len(here["predictions"]) == 20
        assert np.std(list(here["predictions"].values())) > 0.01  # they are no constants
        for engine, runs in found.items():
            run = runs[name]
            assert run["predictions"] == pytest.approx(quiet["predictions"], rel=0, abs=1e-9), name
            assert run["metrics"] == pytest.approx(quiet["metrics"], rel=0, abs=1e-9), name
            np.testing.assert_allclose(run["history"], quiet["history"], rtol=0.0, atol=1e-9)
            assert run["left"] == []
            expected = {str(k): {"raised ValueError": n} for k, n in failures.get(name, {}).items()}
            assert run["failures"] == expected, (engine, name)
            run["by_phase"].pop("describe", None)  # Ray's nodes may come one after the other
        assert found["ray"][name]["by_phase"] == here["by_phase"]
