"""A front with many nodes: what holding their calls costs, and how soon a message is seen.

Starts a SuperLink and a front with TLS on this machine, and nodes that are not SuperNodes but make
the same calls, each with a key and a connection of its own: pull, confirm, heartbeat. An app sends
messages to single nodes, and one to every node. `--stock` has the nodes ask the SuperLink itself,
as SuperNodes do, and wait three seconds after each pull that finds nothing. Nodes register by
themselves here, as a SuperLink without `--enable-supernode-auth` lets them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from common import Record, new_table, run_script
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import heartbeat_pb2 as heartbeat
from flwr.proto import message_pb2 as message
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from rich.console import Console

from fedkern_flwr.simulations.deployment.local import LocalDeployment, free_port
from fedkern_flwr.simulations.deployment.processes import Processes

FEDKERN = Path(sys.executable).parent / "fedkern"
SLEEP, HEARTBEAT = 3.0, 24.0  # seconds; what SuperNodes do
HEADERS = {"content-type": "application/protobuf", "accept": "application/protobuf"}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "messages"
version = "0.1.0"
description = "Messages to nodes, one at a time and to all"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41,<1.43"]
[tool.flwr.app]
publisher = "fedkern"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
singles = 10
all = 1
pause = 1.0
times = ""
"""
SERVER = """
import json, random, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    nodes, times = list(grid.get_node_ids()), []
    def send(node, kind):
        content = Message(RecordDict(), dst_node_id=node, message_type="train", group_id=kind)
        began = time.time()
        grid.push_messages([content])
        times.append(time.time() - began)
    for node in random.choices(nodes, k=int(config["singles"])):
        send(node, "one")
        time.sleep(config["pause"] * random.uniform(0.5, 1.5))
    for _ in range(int(config["all"])):
        for node in nodes:
            send(node, "all")
        time.sleep(config["pause"])
    Path(config["times"]).write_text(json.dumps(times))
"""
CLIENT = "from flwr.clientapp import ClientApp\napp = ClientApp()\n"


class OpenProcesses(Processes):
    """A SuperLink with which nodes register by themselves."""

    def start(self, name: str, command: Sequence[str | Path], log: Path) -> int:
        return super().start(name, [p for p in command if p != "--enable-supernode-auth"], log)


class FakeNode:
    """A node that makes a SuperNode's calls and answers nothing."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self.private, public = generate_key_pairs()
        self.public = public_key_to_bytes(public)
        limits = httpx.Limits(keepalive_expiry=5.0)
        self.client = httpx.AsyncClient(base_url=url, verify=context, timeout=30.0, limits=limits)
        self.node = Node()
        self.seen: list[tuple[str, float]] = []
        self.failed: Counter[str] = Counter()

    async def call(self, path: str, request: Any, response: Any) -> Any:
        """Make a call until it is answered."""
        while True:
            signed = datetime.now(UTC).isoformat()
            signature = sign_message(self.private, signed.encode())
            identity = {
                "flwr-public-key": base64.b64encode(self.public).decode(),
                "flwr-timestamp": signed,
                "flwr-signature": base64.b64encode(signature).decode(),
            }
            try:
                reply = await self.client.post(
                    f"/v1/fleet/{path}",
                    content=request.SerializeToString(),
                    headers={**HEADERS, **identity},
                )
                if reply.status_code == httpx.codes.OK:
                    return response.FromString(reply.content)
                self.failed[f"{path}: {reply.status_code}"] += 1
            except httpx.TransportError as error:
                self.failed[f"{path}: {type(error).__name__}"] += 1
            await asyncio.sleep(1.0)

    async def connect(self) -> None:
        """Register and activate the node."""
        own = {"public_key": self.public}
        await self.call(
            "register-node",
            fleet.RegisterNodeFleetRequest(**own),
            fleet.RegisterNodeFleetResponse,
        )
        request = fleet.ActivateNodeRequest(**own, heartbeat_interval=30.0)
        reply = await self.call("activate-node", request, fleet.ActivateNodeResponse)
        self.node = Node(node_id=reply.node_id)

    async def beat(self) -> None:
        """Send heartbeats."""
        request = heartbeat.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30.0)
        while True:
            await asyncio.sleep(HEARTBEAT)
            await self.call("send-node-heartbeat", request, heartbeat.SendNodeHeartbeatResponse)

    async def serve(self) -> None:
        """Ask for messages."""
        pull = fleet.PullMessagesRequest(node=self.node)
        while True:
            reply = await self.call("pull-messages", pull, fleet.PullMessagesResponse)
            if not reply.messages_list:
                await asyncio.sleep(SLEEP)
                continue
            for one in reply.messages_list:
                known = one.metadata
                self.seen.append((known.group_id, time.time() - known.created_at))
                request = message.ConfirmMessageReceivedRequest(
                    node=self.node, run_id=known.run_id, message_object_id=known.message_id
                )
                done = message.ConfirmMessageReceivedResponse
                await self.call("confirm-message-received", request, done)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def write_app(folder: Path) -> Path:
    """Write the app that sends messages."""
    folder.mkdir()
    files = {"pyproject.toml": PROJECT, "server_app.py": SERVER, "client_app.py": CLIENT}
    for name, text in {**files, "LICENSE": "Apache-2.0\n", "README.md": "Messages.\n"}.items():
        (folder / name).write_text(text)
    return folder


async def one_size(count: int, given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Measure with so many nodes."""
    deployment = LocalDeployment(folder, [])
    deployment.processes = OpenProcesses(deployment.environment, folder / "pids")
    try:
        await asyncio.to_thread(deployment.start_superlink)
        pids = {"SuperLink": deployment.processes.pid("SuperLink")}
        address, keys = deployment.address, folder / "keys"
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        if not given.stock:
            address = f"127.0.0.1:{free_port()}"
            command = [FEDKERN, "front", "start", "--listen", address]
            command += ["--superlink", deployment.address, "--root-certificates", keys / "ca.crt"]
            command += ["--certificate", keys / "server.pem", "--key", keys / "server.key"]
            pids["front"] = deployment.processes.start("front", command, folder / "front.log")
            async with httpx.AsyncClient(verify=context) as client:
                while True:
                    try:
                        await client.get(f"https://{address}/health")
                        break
                    except httpx.TransportError:
                        await asyncio.sleep(0.2)
        empty = megabytes(pids["front"]) if "front" in pids else 0.0
        nodes = [FakeNode(f"https://{address}", context) for _ in range(count)]
        tasks = []
        for node in nodes:
            await node.connect()
            tasks += [asyncio.create_task(node.serve()), asyncio.create_task(node.beat())]
        await asyncio.sleep(given.settle)
        began, used = time.monotonic(), {name: cpu_seconds(pid) for name, pid in pids.items()}
        await asyncio.sleep(given.idle)
        lasted = time.monotonic() - began
        found = {
            f"CPU s a second, idle: {k}": (cpu_seconds(pid) - used[k]) / lasted
            for k, pid in pids.items()
        }
        found["MB of the front"] = megabytes(pids["front"]) if "front" in pids else 0.0
        found["MB per node"] = (found["MB of the front"] - empty) / count
        await messages(deployment, given, folder, nodes, found)
        failed = sum((node.failed for node in nodes), Counter())
        found["calls that failed"] = failed.total()
        for kind, number in failed.items():
            print(f"{count} nodes: {number} times {kind}")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in nodes:
            await node.client.aclose()
    finally:
        await asyncio.to_thread(deployment.processes.stop)
    return found


async def messages(
    deployment: LocalDeployment,
    given: argparse.Namespace,
    folder: Path,
    nodes: list[FakeNode],
    found: dict[str, float],
) -> None:
    """Send messages, and note how long they took to be seen."""
    expected = given.singles + given.all * len(nodes)
    times = folder / "times.json"
    config = {"singles": given.singles, "all": given.all, "pause": 1.0, "times": str(times)}
    await asyncio.to_thread(deployment.run, write_app(folder / "app"), config)
    deadline = time.monotonic() + given.timeout
    while time.monotonic() < deadline and (
        not times.exists() or sum(len(n.seen) for n in nodes) < expected
    ):
        await asyncio.sleep(1.0)
    if times.exists():
        found["s to send a message"] = statistics.median(json.loads(times.read_text()))
    for kind, told in (("one", "to one node"), ("all", "to every node")):
        seconds = sorted(s for node in nodes for k, s in node.seen if k == kind)
        if len(seconds) > 1:
            found[f"s until seen, {told}: median"] = statistics.median(seconds)
            found[f"s until seen, {told}: 95 %"] = statistics.quantiles(seconds, n=20)[-1]
    found["messages not seen"] = expected - sum(len(node.seen) for node in nodes)


def measure(given: argparse.Namespace, console: Console) -> list[Record]:
    """Measure with each number of nodes; print the table."""
    records: list[Record] = []
    counts = [3] if given.quick else [int(n) for n in given.nodes.split(",")]
    found: dict[int, dict[str, float]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
            found[count] = asyncio.run(one_size(count, given, Path(place)))
        records += [Record(f"{count} nodes: {name}", v, "") for name, v in found[count].items()]
    nodes = " | ".join(f"{count} nodes" for count in counts)
    table = new_table(
        f"nodes {'by themselves' if given.stock else 'behind a front'}", f" | {nodes}"
    )
    for name in next(iter(found.values())):
        cells = (f"{found[n][name]:.3g}" if name in found[n] else "-" for n in counts)
        table.add_row(name, *cells)
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        nodes=("3,100,1000", "numbers of nodes"),
        stock=(False, "nodes ask the SuperLink itself"),
        singles=(40, "messages to one node"),
        all=(3, "messages to every node"),
        settle=(20.0, "seconds until idling begins"),
        idle=(60.0, "seconds of idling"),
        timeout=(600.0, "seconds for all messages to be seen"),
    )
