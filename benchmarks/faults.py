"""What a run on real servers does when something is broken on purpose, row by row.

Three warm nodes learn POF-MKL with secure sums, of which each round needs all three. In the middle
of the run one thing is broken, and mended after a while. A row says how the run ended, the seconds
from the fault to the end, those of a run without a fault left out, and the last words of both ends.

Refusals at the start (keys, certificates, clocks, an older release, a full disk) are rows of
``tests/simulations/test_deployment_faults.py`` and ``tests/packaging``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations.deployment.local import LocalDeployment, free_port
from fedkern_flwr.simulations.deployment.node_files import write_node
from fedkern_flwr.simulations.deployment.run_config import app_folder
from fedkern_flwr.simulations.methods.online import DataSettings, prepare

NODES, ROUNDS = 3, 140  # a round is a row of each stream
SAMPLES = 5  # rows of an exchange; the nodes only warn of what that shows
PING = Path(__file__).parent / "ping_app"
PAYLOAD = 20_000_000  # bytes of a message of the runs that are stopped: most are being pulled then
POLICY = NodePolicy(counting="warn")
VICTIM = 1  # the node that something happens to
#: Passes bytes on; stopped, it is a network that is cut.
PROXY = """
import asyncio, sys
async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def accept(reader, writer):
    try:
        far = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    except OSError:
        return writer.close()
    await asyncio.gather(pump(reader, far[1]), pump(far[0], writer))
async def main():
    async with await asyncio.start_server(accept, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


class Deployment(LocalDeployment):
    """Three nodes of which one reaches the SuperLink through a process that can be stopped."""

    proxy: subprocess.Popen[bytes]

    def start_node(self, number: int, key: Path | None = None) -> None:
        """Start a SuperNode, the victim behind the proxy."""
        real = self.address
        if number == VICTIM:
            if not hasattr(self, "proxy"):
                self.port = free_port()
                command = [sys.executable, "-c", PROXY, str(self.port), real.rpartition(":")[2]]
                self.proxy = subprocess.Popen(command)
            self.address = f"127.0.0.1:{self.port}"
        super().start_node(number, key)
        self.address = real

    def submit(self, name: str = "run", **more: Any) -> int:
        """Start a run of which each round needs all nodes."""
        files = {key: str(self.folder / f"{name}-{key}") for key in ("result", "model")}
        files["checkpoint"] = str(self.folder / f"{name}.npz")
        Path(files["result"]).unlink(missing_ok=True)
        own = {"data": "", "num-rounds": ROUNDS, "samples-per-round": SAMPLES, "features": 4}
        own |= {"kernels": 3, "secure": "on", "seed": 0, "min-clients": NODES}
        return self.run(app_folder("pof_mkl"), {**own, "checkpoint-every": 1, **files, **more})

    def node_log(self) -> str:
        """Return what the victim's node has printed."""
        return (self.node_folder(VICTIM) / "supernode.log").read_text(errors="replace")

    def await_messages(self, count: int) -> None:
        """Wait until the victim has sent so many messages."""
        before = self.node_log().count("Sent successfully")
        late = time.monotonic() + 120.0
        while self.node_log().count("Sent successfully") < before + count:
            if time.monotonic() > late:
                raise SystemExit("the run stands before anything was broken")
            time.sleep(0.1)

    def of_victim(self) -> list[int]:
        """Return the processes of the victim, its first process first."""
        leader = self.processes.pid(f"node {VICTIM}")
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(entry.read_text().rpartition(")")[2].split()[3]) == leader:
                    found.append(int(entry.parent.name))
        return sorted(found, key=lambda pid: pid != leader)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the victim."""
        for pid in self.of_victim():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def kill_client(deployment: Deployment) -> None:
    """Kill the process that answers a message."""
    known = set(deployment.of_victim())
    late = time.monotonic() + 30.0
    while not (fresh := set(deployment.of_victim()) - known) and time.monotonic() < late:
        time.sleep(0.002)
    for pid in fresh:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def restart(seconds: float, *, clean: bool = False) -> Callable[[Deployment], None]:
    """Return what ends the victim and starts it again."""

    def work(deployment: Deployment) -> None:
        if clean:
            deployment.processes.end(f"node {VICTIM}")
        else:
            deployment.signal(signal.SIGKILL)
            deployment.processes.kill(f"node {VICTIM}")
        time.sleep(seconds)
        deployment.start_node(VICTIM)

    return work


def pause(seconds: float) -> Callable[[Deployment], None]:
    """Return what stops all processes of the victim for a while."""

    def work(deployment: Deployment) -> None:
        deployment.signal(signal.SIGSTOP)
        time.sleep(seconds)
        deployment.signal(signal.SIGCONT)

    return work


def cut(seconds: float) -> Callable[[Deployment], None]:
    """Return what cuts the victim's network for a while."""

    def work(deployment: Deployment) -> None:
        deployment.proxy.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        deployment.proxy.send_signal(signal.SIGCONT)

    return work


FAULTS: dict[str, Callable[[Deployment], None]] = {
    "nothing": lambda deployment: None,
    "kill -9 client": kill_client,
    "kill -9 node, back after 5 s": restart(5),
    "kill -9 node, back after 15 s": restart(15),
    "kill -9 node, back after 60 s": restart(60),
    "clean restart": restart(0, clean=True),
    "SIGSTOP 30 s": pause(30),
    "SIGSTOP 60 s": pause(60),
    "SIGSTOP 90 s": pause(90),
    "network cut 20 s": cut(20),
    "network cut 75 s": cut(75),
    "gone for 200 s, then resumed": restart(200),
}


@dataclass
class Seen:
    """How a run ended."""

    status: str
    seconds: float
    survivors: int | None
    server: str
    node: str


@contextmanager
def deployed(nodes: int = NODES) -> Iterator[Deployment]:
    """Start a SuperLink and nodes in a folder of their own."""
    streams = prepare(DataSettings("diabetes", clients=NODES, rounds=ROUNDS, seed=0))
    with tempfile.TemporaryDirectory(prefix="fedkern-") as place:
        folder = Path(place)
        own = [streams.clients.deployed(k) for k in range(NODES)]
        configs = [
            write_node(folder / "nodes" / str(k), k, NODES, one, POLICY)
            for k, one in enumerate(own)
        ]
        found = Deployment(folder, configs[:nodes])
        try:
            with found:
                yield found
        finally:
            if hasattr(found, "proxy"):
                found.proxy.kill()


def last_words(text: str, *, own: str = "") -> str:
    """Return the last line of a log that tells of something, without its level."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip() for line in plain.splitlines() if len(line.split(":", 1)[-1].strip()) > 3]
    chosen = [line for line in lines if own in line] or lines or [""]
    return re.sub(r"^(INFO|WARNING|ERROR) *:\s*", "", chosen[-1])[:160]


def observe(deployment: Deployment, number: int, name: str, began: float) -> Seen:
    """Wait for the end of a run; return how it ended."""
    with suppress(Exception):
        deployment.wait_for_run(number, 300.0)
    status = deployment._ask(lambda control: control.status(number))
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        found = json.loads((deployment.folder / f"{name}-result").read_text())
    log = deployment._ask(lambda control: control.log(number))
    words = found.get("error") or last_words(log, own="waiting") or last_words(log)
    node = last_words(deployment.node_log())
    survivors = found.get("survivors")
    return Seen(status, time.monotonic() - began, survivors, str(words)[:200], node)


def break_and_watch(fault: str) -> Seen:
    """Break something in the middle of a run and wait for its end."""
    with deployed() as deployment:
        number = deployment.submit()
        deployment.await_messages(6)
        began = time.monotonic()
        FAULTS[fault](deployment)
        seen = observe(deployment, number, "run", began)
        if "resumed" in fault and not seen.status.endswith("completed"):
            again = deployment.submit(resume=True)
            more = observe(deployment, again, "run", time.monotonic())
            seen.status += f", resumed: {more.status}"
            seen.server += f" | {more.server}"
        return seen


def too_few() -> Seen:
    """Start a run with a node less than there must be."""
    with deployed(NODES - 1) as deployment:
        began = time.monotonic()
        return observe(deployment, deployment.submit(), "run", began)


def stop_others(times: int) -> Seen:
    """Stop runs again and again while another one goes on at the same nodes."""
    with deployed() as deployment:
        draw = random.Random(0)
        number, stopped = deployment.submit("long"), 0
        began = time.monotonic()
        for k in range(times):
            sizes = {"nodes": NODES, "exchanges": 100, "payload": PAYLOAD, "swift": True}
            told = {"result": str(deployment.folder / f"other-{k}")}
            other = deployment.run(PING, {**sizes, **told})
            time.sleep(draw.uniform(4.0, 9.0))
            deployment._ask(lambda control, run=other: control.stop(run))  # type: ignore[misc]
            stopped += 1
        ended = time.monotonic()
        seen = observe(deployment, number, "long", began)
        seen.server = f"{stopped} stopped in {ended - began:.0f} s; {seen.server}"
        return seen


def measure(given: argparse.Namespace, console: Console) -> list[Record]:
    """Break what was asked for, one thing after the other; print the table."""
    rows: dict[str, Callable[[], Seen]] = {
        name: (lambda name=name: break_and_watch(name))
        for name in FAULTS  # type: ignore[misc]
    }
    rows["one node too few"] = too_few
    rows["flwr stop of one of two runs"] = lambda: stop_others(given.stops)
    chosen = [name for name in rows if re.search(given.rows, name)]
    table = new_table(
        "what happens to a run", "fault | end | survivors | seconds | server | node", text="fault"
    )
    records = []
    for name in chosen:
        seen = rows[name]()
        line = (name, seen.status, str(seen.survivors), f"{seen.seconds:.0f}")
        table.add_row(*line, seen.server, seen.node)
        print(json.dumps([*line, seen.server, seen.node]), flush=True)
        records.append(Record(name, seen.seconds, "seconds from the fault to the end", "lower"))
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure, rows=(".", "regular expression"), stops=20)
