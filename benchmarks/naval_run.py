"""A whole POF-MKL run of the naval experiment in process: 23 clients, 500 rounds."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from common import Record, run_script
from rich.console import Console
from rich.table import Table

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

CLIENTS, ROUNDS, GOAL = 23, 500, 10.0
SETTINGS = ((1, 100), (25, 20))


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print the seconds of each setting, data preparation not counted."""
    naval = Path(os.environ.get("FEDKERN_DATA", ""), "naval.npz")
    data: str = str(naval)
    target: str | None = "0"  # the lever position, as in the paper
    if not (os.environ.get("FEDKERN_DATA") and naval.is_file()):
        console.print("naval.npz is not there (set FEDKERN_DATA to its folder): using nyc-weather")
        data, target = "nyc-weather", None
    prepared = prepare(DataSettings(data, target=target, clients=CLIENTS, rounds=ROUNDS))
    columns = len(prepared.clients.columns)
    table = Table(title=f"{Path(data).stem}: {CLIENTS} clients, {ROUNDS} rounds, d={columns}")
    for column in ("goal / this", "seconds", "messages/s", "MSE (10^-3)"):
        table.add_column(column, justify="right")
    table.add_column("")
    records = []
    for kernels, features in SETTINGS[-1:] if options.quick else SETTINGS:
        for step_size in ("paper", "adaptive"):
            strategy = POFMKL(
                kernels_per_round=kernels,
                features=features,
                step_size=step_size,  # type: ignore[arg-type]
            )
            started = time.perf_counter()
            simulate(strategy, prepared.clients, CLIENTS, num_rounds=ROUNDS)
            seconds = time.perf_counter() - started
            name = f"M={kernels}, D={features}, {step_size}"
            records.append(Record(f"{Path(data).stem}: {name}", GOAL / seconds, "goal / this"))
            table.add_row(
                f"{GOAL / seconds:.2f}",
                f"{seconds:.2f}",
                f"{strategy.ledger_.messages / seconds:,.0f}",
                f"{1e3 * strategy.metrics_['mse']:.3f}",
                name,
            )
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure)
