"""FDSKL one-shot in process: how time and memory grow with rows n and directions R.

Everything is timed from the dealt tables to the predictions: joining rows by hashed ids, phases of
all parties one after the other, masks, the sum, training with the square loss at a given width and
regularization, prediction. Each run is a process of its own, so its peak memory is its own too. The
ratio is time per row and direction against that of the largest problem: 1 everywhere means that
time is linear. Training alone costs n R^2 and R^3, which is what makes it grow faster with R.

With FEDKERN_DATA=folder a9a is run in full as well, with cross-validation: the goal is 45 s and
1.5 GB on two cores with q = 4 and R = 2000.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from flwr.app import Context
from rich.console import Console
from rich.progress import track

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.vertical import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.plots import plot_sweep
from fedkern_flwr.strategies import FDSKL

GOAL_SECONDS, GOAL_BYTES = 45.0, 1.5e9
OUT = Path(__file__).parent.parent / "docs" / "images" / "fdskl-one-shot-time.png"
KEY = b"the parties' alignment key"


class Parties:
    """``client_fn``: the first party has the labels; rows stand in the same random order."""

    def __init__(self, n: int, d: int, parties: int) -> None:
        rng = np.random.default_rng(0)
        x, names = rng.random((n, d)), np.arange(n).astype(str)
        y = (np.sin(4.0 * (x - 0.5) @ rng.standard_normal(d)) > 0.0).astype(np.float64)
        self.tables: list[dict[str, Any]] = []
        for k, own in enumerate(np.array_split(np.arange(d), parties)):
            table = {"x": np.ascontiguousarray(x[:, own]), "ids": names}
            self.tables.append(table | ({} if k else {"y": y, "classes": [0.0, 1.0]}))

    def __call__(self, context: Context) -> VerticalKernelClient:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        return VerticalKernelClient(context, **self.tables[partition], alignment_key=KEY)


def run(
    parties: int,
    features: int,
    rows: int = 0,
    columns: int = 0,
    loss: str = "square",
    a9a: bool = False,
) -> dict[str, Any]:
    """Run once, on random rows or on a9a; return seconds, bytes and exchanges."""
    if a9a:
        file = str(Path(os.environ["FEDKERN_DATA"]) / "a9a.npz")
        data = VerticalData(VerticalSettings(file, parties=parties))
        strategy = FDSKL(seed=0, features=features, loss=loss)  # type: ignore[arg-type]
        client_fn: Any = data.client_fn(strategy)
    else:
        client_fn = Parties(rows, columns, parties)
        chosen: dict[str, Any] = {"gamma": 0.5, "regularization": 1e-4, "loss": "square"}
        strategy = FDSKL(seed=0, features=features, **chosen)
    started = time.perf_counter()
    simulate(strategy, client_fn, parties)
    return {
        "seconds": time.perf_counter() - started,
        "exchanges": strategy.ledger_.exchanges,
        "up": strategy.ledger_.bytes_up / parties,
        "rows": strategy.plan_.total,
        "accuracy": strategy.metrics_.get("test_accuracy"),
        "peak": peak_memory(),
    }


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Measure how time grows with rows and with directions; a9a where it is at hand."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    rows, features = options.rows, options.features
    if options.quick:
        rows, features = 16_000, 500
    sizes = [(rows >> k, features) for k in (3, 2, 1, 0)]
    sizes += [(rows, features >> k) for k in (3, 2, 1)]
    found = {}
    for n, r in track(sizes, transient=True):
        shape = {"rows": n, "features": r, "columns": options.columns, "parties": options.parties}
        repetitions = 1 if options.quick else options.repetitions
        runs = [in_own_process(__file__, shape) for _ in range(repetitions)]
        found[n, r] = min(runs, key=lambda one: one["seconds"])
    unit = found[rows, features]["seconds"] / (rows * features)
    table = new_table(
        f"FDSKL one-shot, {options.parties} parties, square loss, in process",
        "per row and\ndirection | n | R | s | GB | MB up\nper party | by 2 n R",
    )
    for (n, r), one in sorted(found.items()):
        table.add_row(
            f"{one['seconds'] / (n * r) / unit:.2f}",
            f"{n:,}",
            f"{r:,}",
            f"{one['seconds']:.2f}",
            f"{one['peak'] / 1e9:.2f}",
            f"{one['up'] / 1e6:.2f}",
            f"{one['up'] / (2.0 * n * r):.3f}",
        )
    console.print(table)
    records = []
    for (n, r), one in found.items():
        name = f"n = {n:,}, R = {r:,}"
        records.append(Record(name, one["up"] / (2.0 * n * r), "bytes of a party / 2 n R", "lower"))
        if n == rows >> 3 or r == features >> 3:
            ratio = unit * n * r / one["seconds"]
            unit_text = "time per row and direction, largest / this"
            records.append(Record(name, ratio, unit_text, "lower"))
    if options.quick:
        return records
    curves = {
        f"{features} directions, n / {rows}": [
            (n / rows, one["seconds"], 0.0) for (n, r), one in found.items() if r == features
        ],
        f"{rows} rows, R / {features}": [
            (r / features, one["seconds"], 0.0) for (n, r), one in found.items() if n == rows
        ],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure = plot_sweep(
        curves,
        options.out,
        title="FDSKL one-shot: time of a run",
        xlabel="share of the largest problem",
        ylabel="seconds",
    )
    console.print(f"figure: {figure}")
    if "FEDKERN_DATA" in os.environ:
        shape = {"a9a": True, "features": 2000, "parties": 4, "loss": options.loss}
        one = in_own_process(__file__, shape)
        console.print(
            f"a9a, {one['rows']:,} rows, R = 2000, {options.loss} loss, cross-validation included: "
            f"{one['seconds']:.1f} s ({one['seconds'] / GOAL_SECONDS:.2f} of the goal), "
            f"{one['peak'] / 1e9:.2f} GB ({one['peak'] / GOAL_BYTES:.2f} of the goal), "
            f"{one['exchanges']} exchanges, {one['up'] / 1e6:.1f} MB per party, "
            f"accuracy {one['accuracy']:.4f}"
        )
        records += [
            Record("a9a", GOAL_SECONDS / one["seconds"], "goal of seconds / this"),
            Record("a9a", GOAL_BYTES / one["peak"], "goal of memory / this", "higher"),
        ]
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        rows=(32_000, "most rows"),
        columns=40,
        features=(1000, "most directions"),
        parties=4,
        repetitions=2,
        loss=("smooth-hinge", "of the run on a9a"),
        out=(OUT, "where to write the figure"),
    )
