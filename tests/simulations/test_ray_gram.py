"""FedCFK on Flower's Ray engine: the same matrix as in process, and nodes that raise.

The test is a program of its own with a time-out, so that a stuck engine cannot hold the suite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
from pathlib import Path
import numpy as np
from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.simulations import SimulationStep, simulate_all
from fedkern_flwr.strategies import FedCFK

quiet_flower(50)
HERE = Path.cwd()
rng = np.random.default_rng(0)
TASTE = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 25))
LIKES = TASTE + 0.5 * rng.normal(size=TASTE.shape) > 0.4
HELD = LIKES & (rng.random(LIKES.shape) < 0.2)

class Client(GramClient):
    def stumble(self, phase):
        flag = HERE / f"{phase}-{self.partition}"
        if flag.exists():
            if (HERE / "once").exists():
                flag.unlink()
            raise ValueError("private value 4711")

    def sum_counts(self, request):
        self.stumble("counts")
        return super().sum_counts(request)

    def sum_matrix(self, request):
        self.stumble("matrix")
        return super().sum_matrix(request)

    def recommend(self, request):
        self.stumble("recommend")
        return super().recommend(request)

def client_fn(context):
    k = context.node_config["partition-id"]
    rows = slice(10 * k, 10 * k + 10)
    return Client(context, (LIKES & ~HELD)[rows].astype(int), x_test=HELD[rows].astype(int),
                  state_dir=HERE / "state", recommendations=HERE / f"{k}.csv")

class Broken(FedCFK):
    # an error must not end the steps that follow
    def start(self, **more):
        try:
            return super().start(**more)
        except FedKernError as error:
            self.ended = f"{type(error).__name__}: {error}"

def step(name, options, *raising, once=True):
    found = {}
    def before(_):
        for path in HERE.glob("*-*"):
            path.unlink()
        (HERE / "once").unlink(missing_ok=True)
        for flag in (*raising, *["once"] * once):
            (HERE / flag).touch()
    def after(_):
        found["ended"] = strategy.ended
        found["gram"] = strategy.gram_.tolist()
        found["items"] = strategy.items_.tolist()
        found["metrics"] = strategy.metrics_
        found["survivors"] = strategy.survivors_
        found["failures"] = strategy.ledger_.failures
        found["best"] = [(HERE / f"{k}.csv").read_text() for k in range(4)]
    strategy = Broken(seed=5, min_support=3, **options)
    strategy.ended = ""
    return name, found, SimulationStep(strategy, before=before, after=after)

out = {}
for engine in ("in-process", "ray"):
    steps = [
        step("quiet", {}),
        step("rbf, two cohorts", {"kernel": "rbf", "gamma": 0.05, "cohorts": 2}),
        step("raising", {}, "recommend-2"),
        step("raising always", {"attempts": 2, "threshold": 4}, "matrix-1", once=False),
    ]
    simulate_all([step for _, _, step in steps], client_fn, 4, engine=engine)
    out[engine] = {name: found for name, found, _ in steps}
print(json.dumps(out))
"""


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_matrix_and_ranks_equal_those_in_process_and_a_node_that_raises_ends_clearly(
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
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "4711" not in finished.stdout
    found = json.loads(finished.stdout.strip().splitlines()[-1])
    for name in ("quiet", "rbf, two cohorts"):
        ours, theirs = found["ray"][name], found["in-process"][name]
        assert ours["ended"] == theirs["ended"] == ""
        assert ours["gram"] == theirs["gram"]
        assert len(ours["items"]) > 15
        assert ours["items"] == theirs["items"]
        assert ours["survivors"] == [0, 1, 2, 3]
        assert 0.5 < ours["metrics"]["auc"] < 1.0
        assert ours["metrics"]["evaluated_users"] > 20
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=0, abs=1e-9)
        assert ours["best"] == theirs["best"]
        assert ours["failures"] == theirs["failures"] == {}
    quiet = found["in-process"]["quiet"]
    for runs in found.values():
        # a node that has not judged its users is left out of the means, not of the matrix
        run = runs["raising"]
        assert run["ended"] == ""
        assert run["gram"] == quiet["gram"]
        assert run["failures"] == {"2": {"raised ValueError": 1}}
        assert 0 < run["metrics"]["evaluated_users"] < quiet["metrics"]["evaluated_users"]
        run = runs["raising always"]
        assert run["ended"].startswith("CohortError: phase gram-matrix: 3 of 4 parties contributed")
        assert "2 times in a row" in run["ended"]
        assert run["failures"] == {"1": {"raised ValueError": 2}}
        assert run["gram"] == []
