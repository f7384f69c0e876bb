"""What the process of a deployed node has loaded when its client has said who it is.

Flower starts a process for every message: a package costs a tenth of a second or more each time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from app_sites import SITES, Site
from flwr.common.serde import message_to_proto

from fedkern_flwr.flower_compat import set_task_identity
from fedkern_flwr.simulations.deployment.run_config import app_folder, declared
from fedkern_flwr.transport import request_messages
from fedkern_flwr.wire import DescribeRequest

# Flower's process of a message imports what stands first, then the app, which answers. Here it is
# forked for each client: Flower is imported once.
_PROGRAM = """
import json, logging, os, sys, time
from flwr.supernode.cli import flwr_clientapp
from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message
from flwr.supercore.task_identity import TaskIdentity

class NoPandas:  # PyArrow loads it where it is there; a node needs none
    def find_spec(name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name=name)

def answer(given):
    before, log, handler = set(sys.modules), [], logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())
    logging.getLogger("flwr").addHandler(handler)
    sys.path.insert(0, given["app"])
    started = time.process_time()
    import client_app
    sys.modules["fedkern_flwr.flower_compat"].warm = given["warm"]
    loaded = time.process_time()
    context = Context(1, 2, given["node"], RecordDict(), given["run"])
    told = client_app.app(message, context).content["fitres.metrics"]["role"]
    seconds = [loaded - started, time.process_time() - loaded]
    client_app.app(message, context)
    added = sorted(set(sys.modules) - before)
    return {"added": added, "seconds": seconds, "role": told, "log": log}

sys.meta_path.insert(0, NoPandas)
flower = time.process_time()
given = json.load(sys.stdin)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 2, 1
message = message_from_proto(Message.FromString(bytes.fromhex(given["message"])))
for client in given["clients"]:
    if not os.fork():
        print(json.dumps({"flower": flower, **answer(client)}), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit("a client failed")
"""


class Started(NamedTuple):
    """A client that has answered.

    Attributes
    ----------
    role : str
        What it says that it is.
    added : set of str
        Modules that were not in Flower's process before the app was loaded.
    seconds : tuple of float
        CPU seconds: of Flower's process before, of loading the app, of the first answer.
    log : list of str
        What it wrote into Flower's log, of two messages.
    """

    role: str
    added: set[str]
    seconds: tuple[float, float, float]
    log: list[str]


def start_clients(
    nodes: Iterable[tuple[Site, int]], *, warm: Iterable[tuple[Site, int]] = ()
) -> list[Started]:
    """Load the apps of some nodes, each in a fork of Flower's process; ask who they are.

    Those of warm processes come last.
    """
    set_task_identity(1, 2)
    opening = DescribeRequest(session="s" * 16, method="m", resume_round=0, secure=True)
    (message,) = request_messages(opening, [2], group_id="describe")
    clients = [{**_given(*node), "warm": False} for node in nodes]
    clients += [{**_given(*node), "warm": True} for node in warm]
    given = {"message": message_to_proto(message).SerializeToString().hex(), "clients": clients}
    command, text = [sys.executable, "-P", "-c", _PROGRAM], json.dumps(given)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        Started(one["role"], set(one["added"]), (one["flower"], *one["seconds"]), one["log"])
        for one in told
    ]


def _given(site: Site, number: int) -> dict[str, Any]:
    """Return the app of a node, and its configuration; its policy takes two rows."""
    folder, policy = app_folder(site.app), Path(site.folder) / "policy.toml"
    policy.write_text("min_own_rows = 2\n")
    node = {**site.nodes[number], "policy": str(policy)}
    node |= {"partition-id": number, "num-partitions": len(site.nodes)}
    run = {**declared(folder), **site.run_keys({"data": ""}), **site.run_keys(site.config)}
    return {"app": str(folder), "node": node, "run": run}


#: Parts of packages that are loaded one by one.
_PARTS = {"linalg", "optimize", "parquet", "sparse", "spatial", "special", "stats"}
#: What PyArrow and SciPy load where it is there.
_THEIRS = {"cloudpickle", "dateutil", "threadpoolctl"}
_OURS = {"app_release", "client_app", "own_table", "fedkern_flwr"}

#: Node of an app -> what it says that it is, and the packages that are there because of it. Flower
#: itself loads NumPy, cryptography, Typer, Rich, FastAPI and gRPC.
EXPECTED = {
    ("fed-cg", 3): ("centre", {"pyarrow"}),  # an NPZ file: when a run begins its rows are frozen
    ("fdskl", 2): ("passive", {"pyarrow"}),
    ("horizontal", 4): ("agent", set()),  # which has no table
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
    ours = ("strategies", "nodes", "steps", "run", "method", "simulations.engines")
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
