"""Every door leads to the same run: in process, on Flower's Ray engine, estimators, commands.

Of deployed apps see tests/simulations/test_deployment.py. The runs on Ray are a program of their
own with a time-out, so that a stuck engine cannot hold the suite; Ray starts once for each number
of nodes.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import engines_program
import numpy as np
import pytest
from engines_program import CLIENTS, RUNS, SECONDS, SLOW, Runs
from refusals import refuses
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from zoo import same

from fedkern_flwr import load_model
from fedkern_flwr.simulations.engines.ray import address_of, check_ray_address
from fedkern_flwr.simulations.estimators import (
    FDSKLClassifier,
    FedCGClassifier,
    HierarchicalSVMClassifier,
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/helpers/engines_program.py"
OURS = [ROOT / "docs/examples/secure_aggregation", ROOT / "tests", ROOT / "tests/helpers"]
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k != "FLWR_TELEMETRY_ENABLED"},
    "PYTHONPATH": os.pathsep.join(map(str, OURS)),  # of Ray's workers too
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then keeps to 127.0.0.1 everywhere
}


def run_program(folder: Path, *arguments: str) -> tuple[Any, str]:
    """Return what the program found, and what it showed on the screen."""
    finished = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], cwd=folder, env=ENVIRONMENT,
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "private value" not in finished.stdout
    *_, found, telemetry = finished.stdout.strip().splitlines()
    assert telemetry == "telemetry 0"  # though Flower was imported before the engine started
    return json.loads(found), finished.stderr


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """Return what all runs on both engines came to, and what was on the screen."""
    return run_program(tmp_path_factory.mktemp("engines"))


@pytest.fixture(scope="module")
def found(told: tuple[Any, str]) -> Any:
    """Return what all runs on both engines came to."""
    return told[0]


#: Ways whose result does not depend on a node that raised once: it is asked again.
WHOLE = ("fed-cg", "fdskl", "secure-gram", "hierarchical-svm", "kernel-pca", "summary")


@pytest.mark.ray
@pytest.mark.timeout(820)
@pytest.mark.parametrize("name", [*RUNS, SLOW])
def test_every_method_is_the_same_on_both_engines(name: str, found: Any) -> None:
    """Nodes raise on both; the result of who is asked again is that of a run without errors."""
    ray, here = (found[engine][name] for engine in ("ray", "in-process"))
    assert ray["left"] == here["left"] == []  # every node that was to raise did
    assert ray["ended"] == here["ended"] == ""
    raised = Counter(place.rpartition("-")[2] for place in RUNS.get(name, ()))
    failures = {k: {"raised ValueError": n} for k, n in raised.items()}
    for engine, run in (("ray", ray), ("in-process", here)):
        late = {"1": {f"timed out after {SECONDS[engine]:g} s": 1}} if name == SLOW else {}
        assert run["failures"] == failures | late
    if name.endswith("asynchronous"):  # who comes when is up to the engine
        objective = found["quiet"][name]["outcome"]["metrics"]["objective"]
        assert ray["outcome"]["metrics"]["objective"] == pytest.approx(objective, rel=5e-3)
        return
    assert ray["phases"] == here["phases"]
    if name == SLOW:  # on Ray the node has not learned yet when it is asked to judge
        assert all(o["outcome"]["metrics"].pop("test_mse") > 0 for o in (ray, here))
    assert same(ray["outcome"], here["outcome"], 1e-7)
    quiet = found["quiet"].get(name, found["quiet"]["pof-mkl"])
    again = same(ray["outcome"], quiet["outcome"], 1e-6)
    assert again == (name.startswith(WHOLE) or name == "local-only")


@pytest.mark.ray
@pytest.mark.timeout(820)
def test_a_run_goes_on_on_the_other_engine(found: Any) -> None:
    """One that was interrupted in process, and one whose node died with its Ray actor."""
    whole = found["quiet"]["pof-mkl"]["outcome"]
    error, text, run = found["died"]
    assert error == "EngineError"
    assert text.endswith("[FK-ENGINE-ACTOR]")
    assert run == {"ended": ""}  # it did not come to its end
    for resumed in (found["ray"]["pof-mkl, broken off"], found["resumed"]):
        ours = resumed["outcome"]
        assert resumed["ended"] == ""
        assert (ours["theta"], ours["metrics"]) == (whole["theta"], whole["metrics"])


@pytest.mark.ray
@pytest.mark.timeout(820)
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_the_example_of_secure_aggregation_is_the_plain_run(name: str, found: Any) -> None:
    """Of stock Flower; a node is lost on the way, on both."""
    ours, plain = found["ray"][f"example, Secure{name}"], found["in-process"][f"example, {name}"]
    assert ours.keys() == plain.keys() > {"w1", "b1"}
    for part in ours.keys() - {"ended", "left"}:
        np.testing.assert_allclose(ours[part], plain[part], rtol=0.0, atol=1e-9)


BUGS = {  # the mark of its line, the function it is in, and what is said of it
    "shape": ("train_personal", "ValueError: matmul: Input operand 1 has a mismatch"),
    "int64": ("train_personal", "TypeError: PersonalReply: round is int64 instead of int"),
    "none": ("train_personal", "NoReplyError: Buggy.train_personal returned NoneType"),
    "init": ("__init__", "ValueError: nine lives"),
}


def check_bugs(failures: Any, screen: str) -> None:
    """Check that a bug in client code is shown with file, line and text, once."""
    places = dict.fromkeys(BUGS, 0)
    for mark, (function, said) in BUGS.items():
        lines = PROGRAM.read_text().splitlines()
        (number,) = [k for k, s in enumerate(lines, 1) if s.endswith(f"# {mark}")]
        places[mark] = screen.count(f'File "{PROGRAM}", line {number}, in {function}\n')
        assert screen.count(said) == 1, screen
    assert set(places.values()) == {1}, screen
    assert "Traceback" not in screen
    assert failures["1"] == {
        "raised ValueError": 2, "raised TypeError": 1, "raised NoReplyError": 1,
        "raised TableError: partition 1: nine rows; count": 1,
    }  # fmt: skip


def test_a_bug_in_client_code_is_shown_with_its_place_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engines_program, "HERE", tmp_path)
    runs = Runs(CLIENTS)
    runs.add_bugs()
    with caplog.at_level(logging.ERROR, "flwr"):  # of our own, below, the strategy warns
        made = runs.run("in-process")
    check_bugs(made["bugs"]["failures"], caplog.text)
    assert caplog.text.count(" raised ") == len(BUGS), caplog.text


@pytest.mark.ray
@pytest.mark.timeout(820)
def test_a_bug_in_client_code_is_shown_on_ray_as_in_process(told: Any) -> None:
    check_bugs(told[0]["ray"]["bugs"]["failures"], told[1])


# --- A cluster that is there already --------------------------------------------------------

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}
# A folder of its own: in Ray's own one, programs that start Ray would find this cluster.
head = {**node, "include_dashboard": False, "temp_dir": sys.argv[1]}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(**node)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.deployment
@pytest.mark.timeout(820)
def test_the_model_of_a_cluster_is_that_of_one_process(tmp_path: Path) -> None:
    """Two nodes of one CPU: both work, files are cleared away, other releases are refused."""
    (tmp_path / "seen").mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,  # a short name, for sockets
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER, folder],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        found, _ = run_program(tmp_path, process.stdout.readline().strip())
        process.communicate(timeout=30)
    assert same(found["ray"], found["in-process"], 1e-9)
    assert found["left behind"] == []
    assert found["sweep"] is True
    assert found["no data"][0] == "TableError"
    assert len([path for path in (tmp_path / "seen").iterdir() if path.name != "here"]) == 2
    assert found["other release"].endswith("[FK-ENGINE-DIFFERS]")


@pytest.mark.ray  # it is loaded: 60 MB
@pytest.mark.usefixtures("in_tmp")
def test_an_address_where_nothing_answers_ends_in_one_line(commands: Any) -> None:
    """At once: Ray itself would try for minutes."""
    pytest.importorskip("ray")
    options = ["--engine", "ray", "--ray-address", "127.0.0.1:1", "--clients", "3", "--quiet"]
    line = commands.complaint("run", "pof-mkl", "--rounds", "5", *options)
    assert line.endswith("[FK-ENGINE-ADDRESS]")


def test_an_address_goes_with_ray_and_not_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses("FK-ENGINE-RAY", check_ray_address, "in-process", "auto")
    refuses("FK-ENGINE-CLIENT", check_ray_address, "ray", "ray://127.0.0.1:10001")
    check_ray_address("ray", "127.0.0.1:6379")
    check_ray_address("in-process", None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(None) == "10.0.0.1:6379"  # where none is given
    assert address_of("10.0.0.2:6379") == "10.0.0.2:6379"
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert address_of(None) is None


# -- estimators and commands


@pytest.mark.promise("estimator-is-the-run")
@pytest.mark.parametrize(("command", "estimator"), [
    ("fed-cg", FedCGClassifier(held_out=0.3)),
    ("fdskl --features 20", FDSKLClassifier(features=20, held_out=0.25)),
    (
        "hierarchical-svm --users 4 --C 1 --tolerance 0.05",
        HierarchicalSVMClassifier(C=1.0, held_out=0.3, options={"tolerance": 0.05}),
    ),
])  # fmt: skip
def test_an_estimator_is_the_run_of_a_command(
    command: str, estimator: Any, tmp_path: Path, commands: Any
) -> None:
    x, y = (part[:90] for part in load_breast_cancer(return_X_y=True))
    x, out = x[:, :4], tmp_path / "run"
    names = [f"x{k}" for k in range(x.shape[1])]
    cells = zip(x.tolist(), y.tolist(), strict=True)
    lines = [",".join([*names, "y"]), *(",".join(map(repr, [*row, c])) for row, c in cells)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    given = [*command.split(), "--data", str(tmp_path / "t.csv"), "--label", "y"]
    metrics = commands.result(*given, out=str(out))["metrics"]
    model, fitted = load_model(out), clone(estimator).fit(x, y)
    assert np.allclose(model.outputs(x), fitted.model_.outputs(x), rtol=0, atol=1e-9)
    assert np.allclose(model.predict_proba(x), fitted.predict_proba(x), rtol=0, atol=1e-9)
    assert metrics["test_accuracy"] == fitted.strategy_.metrics_["test_accuracy"]
