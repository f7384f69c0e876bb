"""Engine ray on a Ray cluster that is there already: two nodes of one CPU each on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.engines.ray_cluster import address_of, check_ray_address

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray then keeps to 127.0.0.1 everywhere
}
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
PROGRAM = """
import json, os, sys
from pathlib import Path
import numpy as np
import ray
from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.errors import EngineError, FedKernError
from fedkern_flwr.flower_compat import quiet_flower
from fedkern_flwr.landmarks import public_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.lab.cells import Cell, run_cell
from fedkern_flwr.simulations.methods.online_data import DataSettings
from fedkern_flwr.simulations.lab.sweep import CellFailed, sweep
from fedkern_flwr.strategies import FedCG

quiet_flower(50)
address, shared, seen = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
rng = np.random.default_rng(0)
x, ids = rng.random((60, 6)), np.arange(60).astype(str)
y = (x.sum(axis=1) > 3.0).astype(float)
KEY = b"the parties' alignment key"

def client_fn(context):
    k = context.node_config["partition-id"]
    if ray.is_initialized():
        name = f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}-{k}"
        (seen / name).touch()
    if k >= 4:
        block = x[:, 2:4] if k == 4 else x[:, 4:]
        seed = public_seed(0, f"centre {k}")
        return HybridKernelClient(context, block, ids=ids, alignment_key=KEY, landmark_seed=seed)
    own = slice(15 * k, 15 * k + 15)
    return HybridKernelClient(
        context,
        x[own, :2],
        y[own],
        ids=ids[own],
        classes=(0, 1),
        alignment_key=KEY,
        landmark_seed=public_seed(0, "hospitals"),
    )

def fit(**options):
    strategy = FedCG(landmarks=10, seed=0)
    simulate(strategy, client_fn, 6, seed=0, **options)
    return strategy.coefficients_.ravel().tolist()

found = {
    "here": fit(),
    "cluster": fit(engine="ray", ray_address=address, shared_dir=shared),
    "left behind": [path.name for path in shared.iterdir()],
}

def draw(seed, data="iris"):
    settings = DataSettings(data, clients=3, rounds=6)
    return Cell(settings, "pof-mkl", {"features": 4}, seed, False, "in-process")

swept, cells = {}, [draw(seed) for seed in range(5)]
sweep(
    cells,
    ray_address=address,
    progress=lambda *_: None,
    done=lambda cell, record: swept.update({cell.seed: record["result"]["metrics"]}),
)
alone = {cell.seed: run_cell(cell)["result"]["metrics"] for cell in cells}
found["sweep"] = swept == alone and len(swept) == 5
try:
    sweep([draw(0, "no.npz")], ray_address=address, progress=print, done=print)
except CellFailed as failed:
    found["no data"] = [type(failed.error).__name__, str(failed.error)]
os.environ["RAY_ADDRESS"] = address  # the cluster is still there
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
import fedkern_flwr.simulations.engines.ray_cluster as cluster
cluster.version = lambda package: "0.0.1"
try:
    simulate(FedCG(landmarks=10), client_fn, 6, engine="ray")
except EngineError as error:
    found["other release"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start two nodes in a process of their own; yield their address."""
    folder = tempfile.mkdtemp(prefix="ray-")  # a short name, for sockets
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, folder],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_the_model_of_a_cluster_is_that_of_one_process(cluster: str, tmp_path: Path):
    """Both nodes work, files are shared and cleared away, other releases are refused."""
    program, shared, seen = tmp_path / "program.py", tmp_path / "shared", tmp_path / "seen"
    program.write_text(PROGRAM)
    seen.mkdir()
    finished = subprocess.run(
        [sys.executable, str(program), cluster, str(shared), str(seen)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found = json.loads(finished.stdout.strip().splitlines()[-1])
    assert found["cluster"] == found["here"]
    assert found["left behind"] == []
    assert found["sweep"] is True
    assert found["no data"][0] == "TableError"
    assert "no.npz" in found["no data"][1]
    node_ids = {path.name.split("-")[0] for path in seen.iterdir()}
    assert len(node_ids) == 2
    assert "of the Ray cluster has fedkern-flwr" in found["other release"]
    assert "this machine 0.0.1" in found["other release"]


def test_an_address_where_nothing_answers_ends_in_one_line(tmp_path, monkeypatch, capfd):
    """Exit code 2, at once: Ray itself would try for minutes."""
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    options = ["--engine", "ray", "--ray-address", "127.0.0.1:1", "--clients", "3", "--quiet"]
    assert run(["run", "pof-mkl", "--rounds", "5", *options]) == 2
    text = capfd.readouterr().err
    assert "no Ray cluster answers at" in text
    assert "ray start --head" in text
    assert len(text.strip().splitlines()) == 1


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
