"""FDSKL streaming: accuracy on held-out rows against iterations and bytes, beside one-shot's.

A phase is never sent twice, so a party uploads at most n R of them in all; without that it would be
B r T (T + 1) / 2, which the table shows too. Bytes of the held-out rows' phases, which only the
evaluations need, are left out on both sides.

``--ends`` compares, on a made table of ten columns and 19,000 rows and on those of FEDKERN_DATA
that are named, what streaming is at the end: the last iterate of the given steps, or by default
what the active party solves on the phases that it has by then. Accuracy, or RMSE in units of the
label.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.plots import plot_sweep
from fedkern_flwr.strategies import FDSKL

OUT = Path(__file__).parent.parent / "docs" / "images" / "fdskl-streaming.png"
_BATCH, _DIRECTIONS = 64, 16


def made_table(path: Path, rows: int = 19_000, columns: int = 10) -> None:
    """Write a table whose classes depend on columns in a wave and a square, with noise."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((rows, columns))
    mixed = z @ (0.5 * rng.standard_normal((columns, columns)) + np.eye(columns))
    s = z @ rng.standard_normal((columns, 3)) / np.sqrt(columns)
    f = 1.2 * s[:, 0] + 1.5 * np.sin(2.0 * s[:, 1]) + s[:, 2] ** 2 - 1.0
    y = f / f.std() + 0.45 * rng.standard_normal(rows) > 0.0
    np.savez(path, X=mixed, y=y.astype(float))


def ends(options: argparse.Namespace, console: Console) -> list[Record]:
    """Compare one-shot with what streaming is at the end."""
    records = []
    table = new_table(
        f"{options.rounds} iterations, {options.parties} parties",
        "table | schedule | accuracy,\nRMSE | exchanges | MB up\nper party | CPU s",
        text="table",
    )
    kinds = {
        "one-shot": {},
        "streaming": {"schedule": "streaming"},
        "last iterate": {"schedule": "streaming", "step_schedule": "constant"},
    }
    with tempfile.TemporaryDirectory() as folder:
        made_table(Path(folder) / "made.npz")
        for name in options.ends.split(","):
            place = Path(folder if name == "made" else os.environ["FEDKERN_DATA"])
            own = {"target": "0"} if name == "naval" else {}
            file = str(place / f"{name}.npz")
            for kind, chosen in kinds.items():
                data = VerticalData(VerticalSettings(file, parties=options.parties, **own))
                strategy, started = FDSKL(seed=0, **chosen), time.process_time()
                rounds = {"num_rounds": options.rounds} if chosen else {}
                simulate(strategy, data.client_fn(strategy), options.parties, **rounds)
                found, ledger = strategy.metrics_, strategy.ledger_
                unit = data.split(0).scaling["y_half_range"]
                value = found.get("test_accuracy", unit * found.get("test_rmse", 0.0))
                cells = f"{value:.4g}", f"{ledger.exchanges}"
                sent = f"{ledger.bytes_up / options.parties / 1e6:.1f}"
                table.add_row(name, kind, *cells, sent, f"{time.process_time() - started:.0f}")
                records.append(Record(f"{name}, {kind}", value, "accuracy or RMSE"))
    console.print(table)
    return records


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run both schedules and print the curve."""
    if options.ends:
        return ends(options, console)
    name = options.data or "breast-cancer"
    if not options.data and "FEDKERN_DATA" in os.environ:
        name = str(Path(os.environ["FEDKERN_DATA"]) / "phishing.npz")
    data = VerticalData(VerticalSettings(name, parties=options.parties))
    train = int(data.split(0).train.sum())
    once = FDSKL(seed=0)
    simulate(once, data.client_fn(once), options.parties)
    streaming = FDSKL(
        seed=0,
        schedule="streaming",
        gamma=options.gamma,
        batch=_BATCH,
        directions=_DIRECTIONS,
        step=options.step,
        step_schedule="constant",  # its iterates
        evaluate_every=max(1, options.rounds // 10),
    )
    simulate(streaming, data.client_fn(streaming), options.parties, num_rounds=options.rounds)
    table = new_table(
        f"{Path(name).stem}, {options.parties} parties, {train:,} rows to learn from",
        "bytes /\none-shot | iterations | accuracy | MB up\nper party | "
        "without\ncache | seconds | exchanges",
    )
    own = 2.0 * train * once.features
    for row in streaming.history_:
        t, sent = int(row["round"]), row["bytes_up"] / options.parties
        table.add_row(
            f"{sent / own:.2f}",
            f"{t}",
            f"{row['test_accuracy']:.4f}",
            f"{sent / 1e6:.1f}",
            f"{_BATCH * _DIRECTIONS * t * (t + 1) / 1e6:.1f}",
            f"{row['seconds']:.1f}",
            f"{t + 4}",
        )
    table.add_section()
    accuracy, ledger = once.metrics_["test_accuracy"], once.ledger_
    table.add_row("1.00", "one-shot", f"{accuracy:.4f}", f"{own / 1e6:.1f}", "-",
                  f"{ledger.seconds:.1f}", f"{ledger.exchanges}")  # fmt: skip
    console.print(table)
    curves = {
        "streaming": [
            (row["bytes_up"] / options.parties / 1e6, row["test_accuracy"], 0.0)
            for row in streaming.history_
        ],
        "one-shot": [(own / 1e6, accuracy, 0.0)],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure = plot_sweep(
        curves,
        options.out,
        title=f"{Path(name).stem}: accuracy against what a party has uploaded",
        xlabel="phases of training rows uploaded per party (MB)",
        ylabel="accuracy on held-out rows",
    )
    console.print(f"figure: {figure}")
    sent = streaming.history_[-1]["bytes_up"] / options.parties / own
    rounds = f"{Path(name).stem}, {options.rounds} iterations"
    return [Record(rounds, sent, "bytes up, streaming / one-shot", "lower")]


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        data=("", "breast-cancer, or phishing if it is at hand"),
        rounds=200,
        gamma=0.06,
        step=None,
        ends=("", "made or names of FEDKERN_DATA, with commas: compare what streaming ends with"),
        parties=4,
        out=(OUT, "where to write the figure"),
    )
