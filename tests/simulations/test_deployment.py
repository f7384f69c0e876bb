"""Deployments with TLS and node authentication: what comes out is what a simulation computes.

A simulation gets the secrets that the deployed nodes drew. Without them it draws other landmarks,
and deals other held-out rows to calibration.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from identities import know_halves
from servers import wait_for_end_of

from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.deployment.node_files import read_secrets
from fedkern_flwr.simulations.methods.dealt_data import NodeClients

pytestmark = pytest.mark.timeout(280)

FEDKERN = Path(sys.executable).parent / "fedkern"
RESIDUAL = 1e-5  # at which conjugate gradients stop


def deployed(folder: Path, method: str, options: str) -> dict[str, Any]:
    """Deploy a method by the command line; return its result. Nothing may be left running."""
    command = [FEDKERN, "deploy-local", method, *options.split(), "--out", folder, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=270)
    assert done.returncode == 0, done.stderr
    assert wait_for_end_of(folder / "flwr") == []  # what is killed needs a moment
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.fixture
def with_secrets_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Return what gives simulated nodes the secrets of a deployment."""

    def share(folder: Path) -> None:
        usual = NodeClients.arguments

        def arguments(self: Any, k: int) -> dict[str, Any]:
            return {**usual(self, k), **read_secrets(folder / "nodes" / str(k))}

        monkeypatch.setattr(NodeClients, "arguments", arguments)
        know_halves(monkeypatch, folder / "nodes")

    return share


def simulated(folder: Path, method: str, options: str) -> dict[str, Any]:
    """Run a method in process by the command line; return its result."""
    assert run(["run", method, *options.split(), "--out", str(folder), "--quiet"]) == 0
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def compare(one: Path, other: Path, results: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Check that two folders hold the same model and figures, to 1e-9.

    Coefficients solve a system whose condition follows from landmarks that differ from deployment
    to deployment: its rounding (2^-40 and the order of rows) moves them by more. Conjugate
    gradients amplify rounding, but with A = K^T K + I their solutions differ by at most the sum of
    their residuals. So their first iterates are compared as well.
    """
    metrics = tuple(result["metrics"] for result in results)
    squares = [[row.get("squared_residual") for row in result["history"]] for result in results]
    solved = sum(float(of_run[-1]) ** 0.5 for of_run in squares if of_run and of_run[-1])
    assert not solved or squares[0][:5] == pytest.approx(squares[1][:5], rel=1e-6)
    arrays, _ = load_model(one / "model.npz")
    expected, _ = load_model(other / "model.npz")
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        near = solved or 1e-7 * np.abs(values).max() if name == "coefficients" else 1e-9
        np.testing.assert_allclose(arrays[name], values, rtol=0.0, atol=near, err_msg=name)
    for name, value in metrics[0].items():
        if isinstance(value, float) and name in metrics[1]:
            near = RESIDUAL if name == "residual" else 0.0  # what is left is rounding, and more
            assert value == pytest.approx(metrics[1][name], rel=1e-6, abs=max(near, 1e-9)), name
            assert name != "residual" or value <= RESIDUAL


def predictions(file: Path) -> dict[str, list[float]]:
    """Read id -> outputs."""
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    return {
        row["id"]: [float(cell) for name, cell in row.items() if name.startswith("output_")]
        for row in rows
    }


#: By default a deployment plans fewer landmarks, folds and widths than a simulation.
STATED = "--allow-single --seed 4 --landmarks 20 --tune off"


@pytest.mark.app
def test_fed_cg_gives_the_model_of_a_simulation(
    tmp_path: Path, with_secrets_of: Callable[[Path], None]
) -> None:
    out, other = tmp_path / "deployed", tmp_path / "simulated"
    result = deployed(out, "fed-cg", f"--nodes 3 {STATED}")
    with_secrets_of(out)
    expected = simulated(other, "fed-cg", f"--hospitals 2 --centres 1 {STATED}")
    compare(out, other, (result, expected))
    assert (result["engine"], result["exchanges"], result["survivors"]) == ("deployment", 5, 3)
    assert result["metrics"]["test_accuracy"] > 0.9
    assert result["matched"]["blocks"] == {"clinical": [0, 1], "centre 1": [2]}
    assert re.fullmatch(r"[0-9a-f]{64}", result["run"]["fab_hash"])
    assert [node["partition"] for node in result["run"]["nodes"]] == [0, 1, 2]
    # a centre has nothing to predict; its log and the server's quote no id
    assert not (out / "nodes" / "2" / "predictions.csv").exists()

    assert len(predictions(out / "nodes" / "0" / "predictions.csv")) > 50
    assert wait_for_end_of(out / "flwr") == []  # what is killed needs a moment


@pytest.mark.deployment
def test_fed_cg_predicts_again_with_its_model(tmp_path: Path) -> None:
    out = tmp_path / "deployed"
    deployed(out, "fed-cg", "--nodes 3 --allow-single --seed 4")
    first = predictions(out / "nodes" / "0" / "predictions.csv")
    command = [FEDKERN, "deploy-local", "fed-cg", "--predict", out, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["predictions"]["nodes/0/predictions.csv"] == len(first)
    again = predictions(out / "nodes" / "0" / "predictions.csv")
    assert again.keys() == first.keys()
    for name, outputs in first.items():
        np.testing.assert_allclose(again[name], outputs, rtol=0.0, atol=1e-9)
    assert wait_for_end_of(out / "flwr") == []  # what is killed needs a moment


#: Method, options of the deployment, of the simulation, of both.
SAME = [
    (
        *("fed-cg", "--nodes 3", "--hospitals 2 --centres 1"),
        "--solver cg --init random --preconditioner-rank 0 --landmarks 20 "
        f"--tolerance {RESIDUAL} "
        "--gamma 1 --regularization 1 --allow-single",
    ),
    ("fdskl", "--nodes 3", "--parties 3", "--features 300 --gamma 0.5 --regularization 1e-3"),
    (  # whose iterates in process are those of the paper's program
        *("fdskl", "--nodes 3", "--parties 3"),
        "--schedule streaming --batch 1 --directions 1 --rounds 8 --step 0.3 --gamma 0.5 "
        "--regularization 1e-2 --phase-bits 32",
    ),
    # in a simulation sums are opened in exchanges of their own, unless all nodes must answer
    ("fed-cfk", "--nodes 3", "--clients 3 --no-drop-outs", "--min-support 5"),
    (  # half of them first
        *("fed-cfk", "--nodes 6 --rounds 2", "--clients 6 --no-drop-outs"),
        "--min-support 1",
    ),
    (
        *("pof-mkl", "--nodes 3", "--clients 3 --secure"),
        "--rounds 40 --samples-per-round 20 --data diabetes --kernels 3 --features 4",
    ),
    ("hierarchical-svm", "--nodes 5", "--users 3", "--groups 2 --allow-single --rounds 2"),
]


@pytest.mark.deployment
@pytest.mark.parametrize(("method", "nodes", "parties", "options"), SAME)
def test_a_deployment_gives_the_model_of_a_simulation(
    method: str,
    nodes: str,
    parties: str,
    options: str,
    tmp_path: Path,
    with_secrets_of: Callable[[Path], None],
) -> None:
    out, other = tmp_path / "deployed", tmp_path / "simulated"
    result = deployed(out, method, f"{nodes} {options} --seed 4")
    with_secrets_of(out)
    expected = simulated(other, method, f"{parties} {options} --seed 4")
    compare(out, other, (result, expected))
    assert result["exchanges"] == expected["exchanges"] + ("--rounds 2" in nodes)
    if method == "fed-cfk":  # describe, counts or a second round, matrix, recommendations, finish
        assert result["exchanges"] == 5
    if method == "pof-mkl":
        assert [row["mse"] for row in result["history"]] == pytest.approx(
            [row["mse"] for row in expected["history"]], abs=1e-9
        )
    if method == "fed-cg":
        assert result["metrics"]["iterations"] == expected["metrics"]["iterations"] > 5
    if method == "hierarchical-svm":
        assert result["matched"]["groups"]["1"] == {"users": [2], "agent": 4}
    if method == "fdskl":
        assert len(predictions(out / "nodes" / "0" / "predictions.csv")) == 142
