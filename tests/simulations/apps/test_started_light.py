"""What the process of a deployed node has loaded when its client has said who it is.

Flower starts a process for every message: a package costs a tenth of a second or more each time.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from other_sites import SITES
from started_client import start_clients

#: Parts of packages that are loaded one by one.
_PARTS = {"linalg", "optimize", "parquet", "sparse", "spatial", "special", "stats"}
#: What PyArrow and SciPy load where it is there.
_THEIRS = {"cloudpickle", "dateutil", "threadpoolctl"}
_OURS = {"client_app", "own_table", "fedkern_flwr"}

#: Node of an app -> what it says that it is, and the packages that are there because of it. Flower
#: itself loads NumPy, cryptography, Typer, Rich, FastAPI and gRPC.
EXPECTED = {
    ("fed-cg", 0): ("hospital", {"pyarrow"}),
    ("fed-cg", 3): ("centre", {"pyarrow"}),  # an NPZ file: when a run begins its rows are frozen
    ("fdskl", 0): ("active", {"pyarrow"}),
    ("fdskl", 2): ("passive", {"pyarrow"}),
    ("horizontal", 0): ("user", {"pyarrow"}),
    ("horizontal", 4): ("agent", set()),  # which has no table
    ("vertical", 6): ("owner", {"pyarrow"}),
    ("pof-mkl", 0): ("client", {"pyarrow"}),
    ("fed-cfk", 0): ("client", {"pyarrow", "scipy", "scipy.sparse"}),
    ("align", 0): ("party", {"pyarrow"}),
    ("ranges", 3): ("client", {"pyarrow"}),
    ("kernel-pca", 0): ("client", {"pyarrow"}),
}


def packages(modules: set[str]) -> set[str]:
    """Return the packages among modules, and their parts, as the table above names them."""
    found = {m for m in modules if "." not in m} - set(sys.stdlib_module_names) - _THEIRS - _OURS
    parts = {m for m in modules if m.count(".") == 1 and m.split(".")[1] in _PARTS}
    foreign = {m for m in parts if m.split(".")[0] in ("pyarrow", "scipy")}
    return {m for m in found if not m.startswith("_")} | foreign


def server_side(modules: set[str]) -> set[str]:
    """Return what a node has no use for: strategies, their driver, engines, Flower's server."""
    ours = ("strategies", "strategy", "summing", "steps", "run", "method", "simulations.engines")
    theirs = ("flwr.simulation", "flwr.superlink", "flwr.server.strategy")
    names = (*(f"fedkern_flwr.{one}" for one in ours), *theirs)
    return {m for m in modules for name in names if m == name or m.startswith(f"{name}.")}


def test_a_node_loads_what_its_client_uses(tmp_path: Path, import_app: Any) -> None:
    sites = {}
    for name in dict.fromkeys(name for name, _ in EXPECTED):
        (folder := tmp_path / name).mkdir()
        sites[name] = SITES[name](folder, import_app)
    nodes = [(sites[name], number) for name, number in EXPECTED]
    *started, warm = start_clients(nodes, warm=[(sites["align"], 0)])
    found = {
        node: (one.role, packages(one.added)) for node, one in zip(EXPECTED, started, strict=True)
    }
    assert found == EXPECTED
    for (name, _), one in zip(EXPECTED, started, strict=True):
        assert name == "kernel-pca" or not server_side(one.added), name
        assert "fedkern_flwr.node.client" in one.added
        (cost,) = told_costs(one.log)  # of two messages
        assert 0.0 < cost <= sum(one.seconds[1:]) + 0.1  # a fork's clock starts at 0
    assert (warm.role, told_costs(warm.log)) == ("party", [])  # which costs nothing


def told_costs(log: list[str]) -> list[float]:
    """Return what a node told of the cost of its process, in seconds."""
    lines = [line for line in log if "`fedkern node start` keeps one warm" in line]
    return [float(line.removeprefix("this message cost ").split(" s of")[0]) for line in lines]


@pytest.mark.parametrize("module", ["fedkern_flwr.clients", "fedkern_flwr.strategies"])
def test_a_room_loads_what_is_asked_for(module: str) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    found = {m for m in done.stdout.split() if m.split(".")[0] in ("fedkern_flwr", "flwr", "numpy")}
    assert found == {"fedkern_flwr", "fedkern_flwr.errors", module}, done.stderr
