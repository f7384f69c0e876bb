"""Engines: every method comes to the same on Flower's Ray engine, bit for bit, as in process.

The runs are a program of their own with a time-out, so that a stuck engine cannot hold the suite.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fdskl_bridge import TOLERANCE

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.engines.ray_cluster import address_of, check_ray_address
from fedkern_flwr.simulations.methods.registry import METHODS

PROGRAM = Path(__file__).with_name("both_engines.py")
EXAMPLE = PROGRAM.parents[2] / "docs/examples/secure_aggregation"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k != "FLWR_TELEMETRY_ENABLED"},
    "PYTHONPATH": f"{EXAMPLE}{os.pathsep}{PROGRAM.parents[1] / 'helpers'}",  # of Ray's workers too
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then keeps to 127.0.0.1 everywhere
}


def run_program(folder: Path, *arguments: str) -> tuple[Any, str]:
    """Return what the program found, and what it showed on the screen."""
    finished = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert "private value" not in finished.stdout
    *_, found, telemetry = finished.stdout.strip().splitlines()
    if arguments != ("bugs",):
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


#: Runs whose model does not depend on a node that raised once: it is asked again, or not needed.
WHOLE = {"fed-cg", "fdskl", "secure-gram", "fed-cfk", "hierarchical-svm", "kernel-pca"}
#: Runs with real numbers that are masked or rounded anew: equal but for the noise of the last bits.
ROUNDED = {"fed-cg", "fed-cg, cg", "fed-cg, cg as in the paper", "hierarchical-svm, vertical"}
#: A reply that comes too late is none, by run.
LATE = {"pof-mkl, slow": {"1": {"timed out after 8 s": 1}}}
#: What nodes raised, by run.
RAISED = {
    "pof-mkl": {"1": 2},
    "pof-mkl, secure": {"1": 1, "2": 1},
    "pof-rls": {"2": 1},
    "pof-rls, streams": {"2": 1},
    "ofskl": {"3": 1},
    "ofmkl-avg": {"0": 1},
    "vm-kofl": {"6": 1},
    "em-kofl": {"2": 1},
    "per-fed-avg": {"1": 1},
    "fed-cg": {"5": 1, "0": 1},
    "fed-cg, cg": {"1": 1},
    "fed-cg, cg as in the paper": {"1": 1, "2": 1},
    "fdskl": {"3": 1, "0": 1},
    "fdskl, streaming": {"0": 1, "2": 1},
    "fdskl, two active": {"1": 1},
    "secure-gram": {"3": 1},
    "secure-gram, in rounds": {"4": 1},
    "fed-cfk": {"2": 1},
    "fed-cfk, raising always": {"1": 1},
    "hierarchical-svm": {"1": 1, "6": 1},
    "hierarchical-svm, vertical": {"1": 1, "6": 1},
    "hierarchical-svm, left out": {"6": 1},
    "kernel-pca": {"4": 1},
}


def rows(made: Any) -> list[dict[str, Any]]:
    """Return metrics and history of a run but for the time it took."""
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in made["history"]]
    return [made["metrics"], *history]


@pytest.mark.ray
@pytest.mark.timeout(520)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_on_both_engines(name, found):
    """Nodes raise on both; the model of who is asked again is that of a run without errors."""
    runs = [run for run in found["ray"] if run.partition(",")[0] == name and "broken" not in run]
    assert name in runs
    for run in runs:
        ray, here, quiet = (found[engine][run] for engine in ("ray", "in-process", "quiet"))
        assert ray["left"] == here["left"] == []  # every node that was to raise did
        assert re.sub(r"#\w+", "", ray["ended"]) == re.sub(r"#\w+", "", here["ended"])
        failures = {k: {"raised ValueError": n} for k, n in RAISED.get(run, {}).items()}
        failures |= LATE.get(run, {})
        assert ray["failures"] == here["failures"] == failures, run
        if run.endswith("asynchronous"):
            best = found["quiet"]["hierarchical-svm, vertical"]["metrics"]["objective"]
            for made in (ray, here):
                assert made["metrics"]["objective"] == pytest.approx(best, rel=5e-3)
            continue
        assert ray["by_phase"] == here["by_phase"]
        for ours, theirs in zip(rows(ray), rows(here), strict=True):
            close = pytest.approx(theirs, rel=1e-9, abs=1e-9)
            assert ours == (close if run in ROUNDED else theirs), run
        assert ray["model"].keys() == here["model"].keys()
        for part, numbers in here["model"].items():
            least = 1e-9 if run in ROUNDED else 0.0
            np.testing.assert_allclose(ray["model"][part], numbers, rtol=0.0, atol=least)
        if run.endswith("always"):
            assert ray["ended"].startswith("CohortError: phase gram-matrix: 6 of 7 parties")
            assert ray["model"] != quiet["model"]
            continue
        assert ray["ended"] == ""
        assert ray["model"] or name in ("local-only", "hierarchical-svm")
        if run.endswith("left out"):
            assert ray["metrics"]["groups_left_out"] == 1
            assert ray["model"] != quiet["model"]
        elif name in WHOLE:
            assert ray["model"].keys() == quiet["model"].keys()
            for part, numbers in quiet["model"].items():  # sums of another exchange, rounded anew
                np.testing.assert_allclose(ray["model"][part], numbers, rtol=0.0, atol=1e-7)
        elif run in RAISED or run in LATE:
            assert ray["model"] != quiet["model"], run


@pytest.mark.ray
@pytest.mark.timeout(520)
@pytest.mark.parametrize("engine", ["in-process", "ray"])
def test_fdskl_streaming_makes_the_iterates_of_the_papers_program(engine, found):
    made = found[engine]["fdskl, Algorithm 1"]
    assert made["model"].keys() == made["paper"].keys() == {"partition-0", "partition-1"}
    for party, alpha in made["paper"].items():
        np.testing.assert_allclose(made["model"][party], alpha, rtol=0.0, atol=TOLERANCE[32])
        assert np.abs(alpha).max() > 0.05


@pytest.mark.ray
@pytest.mark.timeout(520)
def test_a_run_goes_on_on_the_other_engine(found):
    """One that was interrupted in process, and one whose node died with its Ray actor."""
    whole = found["quiet"]["pof-mkl"]
    error, text, run = found["died"]
    assert error == "EngineError"
    assert "Ray actor died" in text
    assert run == {"ended": ""}  # it did not come to its end
    for resumed in (found["ray"]["pof-mkl, broken off"], found["resumed"]):
        assert resumed["model"] == whole["model"]
        assert resumed["metrics"] == whole["metrics"]


@pytest.mark.ray
@pytest.mark.timeout(520)
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam"])
def test_the_example_of_secure_aggregation_is_the_plain_run_in_process(name, found):
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
        "raised ValueError": 2,
        "raised TypeError": 1,
        "raised NoReplyError": 1,
        "raised TableError: partition 1: nine rows; count": 1,
    }


def test_a_bug_in_client_code_is_shown_with_its_place_once(tmp_path):
    made, screen = run_program(tmp_path, "bugs")
    check_bugs(made["bugs"], screen)
    assert screen.count(" raised ") == len(BUGS), screen  # an error of ours the strategy tells


@pytest.mark.ray
@pytest.mark.timeout(520)
def test_a_bug_in_client_code_is_shown_on_ray_as_in_process(told):
    check_bugs(told[0]["ray"]["bugs"], told[1])
    # besides, once on each engine: what was to raise in the methods, the example's lost node, the
    # group that is left out, and the round that is put off
    assert told[1].count(" raised ") == len(BUGS) + 8


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
@pytest.mark.timeout(520)
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
    assert found["ray"].keys() == found["in-process"].keys() != set()
    for part, numbers in found["in-process"].items():
        np.testing.assert_allclose(found["ray"][part], numbers, rtol=0.0, atol=1e-9)
    assert found["left behind"] == []
    assert found["sweep"] is True
    assert found["no data"][0] == "TableError"
    assert "no.npz" in found["no data"][1]
    assert len([path for path in (tmp_path / "seen").iterdir() if path.name != "here"]) == 2
    assert "of the Ray cluster has fedkern-flwr" in found["other release"]
    assert "this machine 0.0.1" in found["other release"]


@pytest.mark.usefixtures("in_tmp")
def test_an_address_where_nothing_answers_ends_in_one_line(commands):
    """At once: Ray itself would try for minutes."""
    pytest.importorskip("ray")
    options = ["--engine", "ray", "--ray-address", "127.0.0.1:1", "--clients", "3", "--quiet"]
    line = commands.complaint("run", "pof-mkl", "--rounds", "5", *options)
    assert "no Ray cluster answers at" in line
    assert "ray start --head" in line


def test_an_address_goes_with_engine_ray_and_is_none_of_ray_client():
    with pytest.raises(OptionError, match="add --engine ray"):
        check_ray_address("in-process", "auto")
    with pytest.raises(OptionError, match="Ray Client"):
        check_ray_address("ray", "ray://127.0.0.1:10001")
    check_ray_address("ray", "127.0.0.1:6379")
    check_ray_address("in-process", None)


def test_the_address_of_the_environment_counts_where_none_is_given(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert address_of(None) == "10.0.0.1:6379"
    assert address_of("10.0.0.2:6379") == "10.0.0.2:6379"
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert address_of(None) is None
