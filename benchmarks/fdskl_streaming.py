"""FDSKL streaming: accuracy on held-out rows against iterations and bytes, beside one-shot's.

A phase is never sent twice, so a party uploads at most n R of them in all; without that it would be
B r T (T + 1) / 2, which the table shows too. Bytes of the held-out rows' phases, which only the
evaluations need, are left out on both sides.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.plots import plot_sweep
from fedkern_flwr.strategies import FDSKL

OUT = Path(__file__).parent.parent / "docs" / "images" / "fdskl-streaming.png"
_BATCH, _DIRECTIONS = 64, 16


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run both schedules and print the curve."""
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
        parties=4,
        out=(OUT, "where to write the figure"),
    )
