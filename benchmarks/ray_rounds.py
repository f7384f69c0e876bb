"""Time per round of POF-MKL (M = 25, D = 20) on the Ray engine and in process."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping

import numpy as np
from common import Record, run_script
from rich.console import Console
from rich.table import Table

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Engine
from fedkern_flwr.simulations.methods.online_data import Shard, StreamClients
from fedkern_flwr.strategies import POFMKL

ROUNDS, DIMENSION = 30, 15


def clients(count: int) -> StreamClients:
    """Return clients with seeded streams of their own."""
    rng = np.random.default_rng(0)
    shards = []
    for _ in range(count):
        x = rng.uniform(-1.0, 1.0, (ROUNDS, DIMENSION)) / np.sqrt(DIMENSION)
        shards.append(Shard(x, rng.uniform(0.0, 1.0, ROUNDS), x[:0], np.zeros(0)))
    return StreamClients(tuple(shards), tuple(f"x{j}" for j in range(DIMENSION)))


def run(engine: Engine, count: int) -> tuple[float, float, POFMKL]:
    """Return the median seconds of a round, those of the whole run, and the strategy."""
    strategy = POFMKL(kernels_per_round=25, features=20)
    ends: list[float] = []

    def note(number: int, rounds: int, metrics: Mapping[str, float]) -> None:
        ends.append(time.perf_counter())

    strategy.on_round = note
    started = time.perf_counter()
    simulate(strategy, clients(count), count, engine=engine, num_rounds=ROUNDS)
    whole = time.perf_counter() - started
    return statistics.median(np.diff(ends)), whole, strategy


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run both engines on the same streams, for 23 and for 240 clients."""
    records = []
    table = Table(title=f"ms per round on Ray and in process: POF-MKL, M=25, D=20, {ROUNDS} rounds")
    for column in ("Ray / here", "Ray ms", "here ms", "Ray run s", "difference"):
        table.add_column(column, justify="right")
    table.add_column("clients", justify="right")
    for count in (23,) if options.quick else (23, 240):
        here, _, strategy = run("in-process", count)
        ray, whole, on_ray = run("ray", count)
        records.append(Record(f"round of {count} clients", ray / here, "Ray / in process", "lower"))
        table.add_row(
            f"{ray / here:.1f}",
            f"{ray * 1e3:.0f}",
            f"{here * 1e3:.1f}",
            f"{whole:.1f}",
            f"{np.abs(strategy.theta_ - on_ray.theta_).max():.1g}",
            str(count),
        )
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure)
