"""Flower's own SecAgg+ and the secure sums of this package on the same work and engines.

Real vectors in [-8, 8], one sum over all clients, nobody drops, 17 holders of each secret of which
11 must answer. In process both run on one core; on Ray both have all cores. A sum counts from the
first key to the server's result.

SecAgg+ gets its best setting for this work: weight 1 for each client and the bound as its clipping
range. It returns the mean; its error is given for the sum.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
from common import Record, new_table, run_script
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from rich.console import Console

from fedkern_flwr.exchange import SumSpec
from fedkern_flwr.flower_compat import NumPyClient
from fedkern_flwr.node.client import Client
from fedkern_flwr.nodes import Nodes
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.membership import default_threshold, degree, share_threshold
from fedkern_flwr.simulations import InProcessGrid
from fedkern_flwr.simulations.engines.in_process import GridWrapper, as_client
from fedkern_flwr.simulations.engines.ray import run_on_ray
from fedkern_flwr.transport import request_messages
from fedkern_flwr.wire import DescribeReply, DescribeRequest
from fedkern_flwr.wire.sums import SumReply, SumRequest

BOUND, NAME, TIMEOUT = 8.0, "vector", 3600.0
THEIRS = "SecAgg+, 2^32"

Vector = NDArray[np.float64]
Times = tuple[list[float], Vector]  # seconds of each sum, and the last sum


def reals(length: int, partition: int) -> Vector:
    """Return the vector of a partition."""
    return np.random.default_rng(partition).uniform(-BOUND, BOUND, length)


class VectorRequest(SumRequest, phase=NAME):
    """Ask for a vector."""


class VectorClient(Client):
    """Contributes the vector of its partition."""

    length = 0

    def describe(self, request: DescribeRequest) -> DescribeReply:
        """Tell the partition; there is no table."""
        return DescribeReply(rows=0, features=0, test_rows=0, columns="")

    def handlers(self) -> dict[str, Any]:
        """Answer one phase."""
        return {NAME: (VectorRequest, self.give)}

    def give(self, request: VectorRequest) -> SumReply:
        """Contribute the vector."""
        assert self.sums is not None
        order = self.sums.order(NAME)
        encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        self.sums.check(SumSpec(name=NAME, encoding=encoding, self_masks=order.self_masks))
        self.sums.contribute(NAME, reals(self.length, self.partition))
        return SumReply()


def vector_client(length: int, context: Context) -> VectorClient:
    """Build our client of a node."""
    client = VectorClient(context)
    client.length = length
    return client


def sum_once(grid: Grid, length: int, encoding: Encoding) -> Vector:
    """Sum one vector of every client, with a set-up of its own."""
    nodes = Nodes("one-sum")
    nodes.gather(grid, secure=True)
    nodes.begin_sums()
    assert nodes.sums is not None
    spec = SumSpec(name=NAME, encoding=encoding, length=length, self_masks=True)
    running = nodes.sums.order(spec)
    request, sections = VectorRequest(session=nodes.session, round=1), nodes.sections([running])
    asked = request_messages(request, sections, group_id="1", sections=sections)
    nodes.ask(grid, asked, phase=NAME, timeout=TIMEOUT, number=1)
    nodes.unmask(grid, [running], number=1, timeout=TIMEOUT)
    total = nodes.sums.total(running)
    nodes.finish(grid, number=1, timeout=TIMEOUT)
    return total


class PlainClient(NumPyClient):
    """A stock client whose ``fit`` returns its vector, with weight 1."""

    def __init__(self, length: int, partition: int) -> None:
        self.length, self.partition = length, partition

    def fit(self, parameters: Any, config: Any) -> tuple[list[Vector], int, dict[str, Any]]:
        """Return the vector."""
        return [reals(self.length, self.partition)], 1, {}


def plain_client(length: int, context: Context) -> Any:
    """Build SecAgg+'s client of a node."""
    return PlainClient(length, int(context.node_config["partition-id"])).to_client()


class KeepMean(FedAvg):
    """Keeps the mean that SecAgg+ hands over in place of every client's result."""

    mean: Vector

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Average nothing more."""
        if failures or not results:
            raise RuntimeError(f"SecAgg+ failed: {failures}")
        self.mean = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


def drive_theirs(grid: Grid, context: Context, clients: int, sums: int) -> Times:
    """Run Flower's workflow as its documentation says; time its rounds of fitting."""
    strategy = KeepMean(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(1)]),
    )
    k = degree(clients)
    workflow = SecAggPlusWorkflow(
        k + 1,
        share_threshold(clients, default_threshold(clients)),
        max_weight=1.0,
        clipping_range=BOUND,
    )
    seconds: list[float] = []

    def timed(grid: Grid, context: Context) -> None:
        started = perf_counter()
        workflow(grid, context)
        seconds.append(perf_counter() - started)

    legacy = LegacyContext(context, ServerConfig(num_rounds=sums), strategy)
    DefaultWorkflow(fit_workflow=timed)(grid, legacy)
    return seconds, strategy.mean * clients


def drive_ours(grid: Grid, length: int, bits: int, sums: int) -> Times:
    """Sum with a fresh set-up each time."""
    encoding, seconds = Encoding.fixed_point(BOUND, bits), []
    for _ in range(sums):
        started = perf_counter()
        total = sum_once(grid, length, encoding)
        seconds.append(perf_counter() - started)
    return seconds, total


class CountingGrid(GridWrapper):
    """Counts what clients send: arrays and texts in records, no headers."""

    up = 0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and count them."""
        replies = list(self.grid.pull_messages(message_ids))
        self.up += sum(map(_size, replies))
        return replies


def _size(message: Message) -> int:
    total = 0
    for record in message.content.values() if message.has_content() else ():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            for value in record.values():
                texts = value if isinstance(value, list) else [value]
                total += sum(len(text) for text in texts if isinstance(text, bytes))
    return total


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those it starts, on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Contest:
    """The same sums by several methods.

    Parameters
    ----------
    clients, length : int
    sums : int
        Sums per start of Ray, of which the first warms up.
    """

    def __init__(self, clients: int, length: int, sums: int) -> None:
        self.clients, self.length, self.sums = clients, length, sums
        self.methods: tuple[str | int, ...] = (THEIRS, 64, 32)
        self.in_process: dict[str | int, list[float]] = {m: [] for m in self.methods}
        self.on_ray: dict[str | int, list[float]] = {m: [] for m in self.methods}
        self.up: dict[str | int, float] = {}
        self.error: dict[str | int, float] = {}
        self.expected = np.zeros(length)
        for partition in range(clients):
            self.expected += reals(length, partition)

    def run_in_process(self, method: str | int) -> None:
        """One sum in this process, on one core."""
        if isinstance(method, int):
            ours = partial(vector_client, self.length)
            app = ClientApp(client_fn=lambda context: as_client(ours(context)))
        else:
            app = self.app_of_theirs()
        grid = CountingGrid(InProcessGrid(app, self.clients, serialise=True))
        if isinstance(method, int):
            seconds, total = drive_ours(grid, self.length, method, 1)
        else:
            context = Context(1, 1, node_config={}, state=RecordDict(), run_config={})
            seconds, total = drive_theirs(grid, context, self.clients, 1)
        self.in_process[method] += seconds
        self.up[method] = grid.up / self.clients
        self.check(method, total)

    def run_on_ray(self, method: str | int) -> None:
        """Several sums on Flower's engine."""

        def drive(grid: Grid, context: Context | None = None) -> None:
            if isinstance(method, int):
                seconds, total = drive_ours(grid, self.length, method, self.sums)
            else:
                assert context is not None
                seconds, total = drive_theirs(grid, context, self.clients, self.sums)
            self.on_ray[method] += seconds[1:]
            self.check(method, total)

        if isinstance(method, int):
            run_on_ray(drive, partial(vector_client, self.length), self.clients)
            return
        server = ServerApp()
        server.main()(drive)
        backend: Any = {  # as in run_on_ray, which takes no mods
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": os.cpu_count() or 1,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "log_to_driver": False,
                "logging_level": logging.ERROR,
            },
        }
        run_simulation(server, self.app_of_theirs(), self.clients, backend_config=backend)

    def app_of_theirs(self) -> ClientApp:
        """Return the app that serves SecAgg+."""
        plain = partial(plain_client, self.length)
        return ClientApp(client_fn=lambda context: plain(context), mods=[secaggplus_mod])

    def check(self, method: str | int, total: Vector) -> None:
        """Note the largest error of a sum."""
        error = float(np.abs(total - self.expected).max())
        self.error[method] = max(error, self.error.get(method, 0.0))


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave the methods; print the best sum of each on each engine, if not quick."""
    contest = Contest(options.clients, options.length, options.sums)
    with one_core():
        for _ in range(options.repetitions + 1):
            for method in contest.methods:
                contest.run_in_process(method)
    for _ in range(0 if options.quick else options.repetitions):
        for method in contest.methods:
            contest.run_on_ray(method)
    libraries = ("flwr", "ray", "numpy", "cryptography")
    versions = ", ".join(f"{name} {version(name)}" for name in libraries)
    table = new_table(
        f"one sum of {options.clients} vectors of {options.length:,} numbers, "
        f"{degree(options.clients) + 1} shares",
        "SecAgg+ / this | on Ray | s, one core | s on Ray | MB up | error | ",
        caption=f"{versions}, Python {platform.python_version()}",
    )
    here = {method: min(seconds) for method, seconds in contest.in_process.items()}
    ray = {method: min(seconds, default=math.nan) for method, seconds in contest.on_ray.items()}
    for method in contest.methods:
        table.add_row(
            f"{here[THEIRS] / here[method]:.1f}",
            f"{ray[THEIRS] / ray[method]:.1f}",
            f"{here[method]:.2f}",
            f"{ray[method]:.2f}",
            f"{contest.up[method] / 1e6:.2f}",
            f"{contest.error[method]:.1g}",
            f"ours, 2^{method}" if isinstance(method, int) else method,
        )
    console.print(table)
    return [
        Record(f"2^{bits}, one core", here[THEIRS] / here[bits], "SecAgg+ / ours", "higher")
        for bits in (64, 32)
    ]


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        clients=50,
        length=50_000,
        repetitions=(1, "starts of Ray per method"),
        sums=(2, "sums per start, the first not counted"),
    )
