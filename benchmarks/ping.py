"""What an exchange costs in a deployment, whatever is computed: a message and the same one back.

Servers on this machine with TLS and node authentication, in two ways: stock SuperNodes, and nodes
that stay warm (``fedkern node start``). Seconds are medians over the exchanges but for the first,
in which nodes fetch the app. CPU seconds are those of a node and of the coordinator's processes
together, for each exchange.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.simulations.deployment.local import LocalDeployment
from fedkern_flwr.simulations.deployment.node_files import NodeConfig

APP = Path(__file__).parent / "ping_app"
WAYS = {
    "stock": False,
    "warm": True,
}
TICK = os.sysconf("SC_CLK_TCK")


def processor_seconds(deployment: LocalDeployment) -> dict[str, float]:
    """Return the CPU seconds of each part, with those of its processes that have ended."""
    leaders = {process.pid: name for name, process in deployment.processes.started.items()}
    found = dict.fromkeys(leaders.values(), 0.0)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if (leader := int(fields[3])) in leaders:  # its session
            found[leaders[leader]] += sum(map(int, fields[11:15])) / TICK
    return found


def ping(way: str, nodes: int, exchanges: int, payload: int) -> tuple[float, float, float]:
    """Return seconds, and CPU seconds of a node and of the coordinator, of an exchange."""
    configs: list[NodeConfig] = [{"partition-id": k, "num-partitions": nodes} for k in range(nodes)]
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        result = Path(place, "seconds.json")
        deployment = LocalDeployment(Path(place), configs, warm=WAYS[way])
        with deployment:
            before = processor_seconds(deployment)
            settings = {"nodes": nodes, "exchanges": exchanges, "payload": payload}
            settings["swift"] = way != "stock"  # as methods do
            run = deployment.run(APP, {**settings, "result": str(result)})
            if deployment.wait_for_run(run, 3600.0) != "finished:completed":
                raise SystemExit(f"{way} with {nodes} nodes failed")
            after = processor_seconds(deployment)
        found = json.loads(result.read_text())
    assert all(replies == nodes for _, replies in found)
    used = {name: (after[name] - before[name]) / exchanges for name in after}
    of_nodes = [value for name, value in used.items() if name.startswith("node ")]
    own = sum(value for name, value in used.items() if not name.startswith("node "))
    return statistics.median(s for s, _ in found[1:]), sum(of_nodes) / nodes, own


def measure(given: argparse.Namespace, console: Console) -> list[Record]:
    """Measure each way with each number of nodes and each payload; print the table."""
    records = []
    table = new_table(
        f"an exchange with all nodes, median of {given.exchanges - 1}",
        "way | nodes | bytes | seconds | stock / this | CPU s per node | CPU s of the coordinator",
        text="way",
    )
    for nodes in map(int, given.nodes.split(",")):
        for payload in map(int, given.payloads.split(",")):
            stock = None
            for way in given.ways.split(";"):
                seconds, of_node, own = ping(way, nodes, given.exchanges, payload)
                stock = seconds if way == "stock" else stock
                name = f"{way}, {nodes} nodes, {payload} bytes"
                records += [
                    Record(name, seconds, "seconds per exchange", "lower"),
                    Record(name, of_node, "CPU seconds per node and exchange", "lower"),
                ]
                ratio = "" if stock is None else f"{stock / seconds:.1f}"
                row = (way, str(nodes), str(payload), f"{seconds:.2f}", ratio)
                table.add_row(*row, f"{of_node:.2f}", f"{own:.2f}")
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        ways=(";".join(WAYS), "separated by semicolons"),
        nodes="3",
        payloads="1000,1000000",
        exchanges=20,
    )
