"""A bug in client code is shown with file, line and text, once, whatever the engine.

The run is a program of its own: what is promised is what stands on its screen.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from dataclasses import replace
import numpy as np
from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import TableError
from fedkern_flwr.node.session_state import SessionState
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFMKL

X = np.random.default_rng(0).random((4, 6, 3)) / 2

class Client(OnlineKernelClient):
    def __init__(self, context, x, y):
        if context.node_config["partition-id"] < 2 and SessionState.load(context).round == 5:
            raise ValueError("nine lives")  # init
        super().__init__(context, x, y)

    def train_personal(self, request):  # none
        buggy = request.round if self.partition < 2 else 0
        if buggy == 1:
            np.ones((3, 4)) @ np.ones((5, 6))  # shape
        reply = super().train_personal(request)
        if buggy == 2:
            return replace(reply, round=np.int64(2))  # int64
        if buggy == 3:
            return None
        if buggy == 4:
            raise TableError("nine rows", remedy="count", party=self.name)
        return reply

def client_fn(context):
    return Client(context, X[context.node_config["partition-id"]], np.ones(6) / 2)

strategy = POFMKL(kernels=5, features=4, secure=False)
simulate(strategy, client_fn, 4, engine=sys.argv[1], num_rounds=6)
print(json.dumps(strategy.ledger_.failures))
"""
BUGS = {  # where it is, in what, and what is said of it
    "shape": ("train_personal", "ValueError: matmul: Input operand 1 has a mismatch"),
    "int64": ("train_personal", "TypeError: PersonalReply: round is int64 instead of int"),
    "none": ("train_personal", "NoReplyError: Client.train_personal returned NoneType"),
    "init": ("__init__", "ValueError: nine lives"),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("engine", ["in-process", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_bug_in_client_code_is_shown_with_its_place_once(engine: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    finished = subprocess.run(
        [sys.executable, str(program), engine],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    screen = finished.stderr
    for mark, (name, told) in BUGS.items():
        (line,) = [k for k, s in enumerate(PROGRAM.splitlines(), 1) if s.endswith(f"# {mark}")]
        assert screen.count(f'File "{program}", line {line}, in {name}\n') == 1, screen
        assert screen.count(told) == 1, screen
    assert screen.count(" raised ") == len(BUGS), screen  # an error of ours is told by the strategy
    assert "Traceback" not in screen
    failures = json.loads(finished.stdout.splitlines()[-1])
    own = "raised TableError: partition 1: nine rows; count"
    assert failures["1"] == {
        "raised ValueError": 2,
        "raised TypeError": 1,
        "raised NoReplyError": 1,
        own: 1,
    }
