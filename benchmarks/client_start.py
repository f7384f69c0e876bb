"""CPU seconds of a stock SuperNode's process before its client works: Flower, our code, its table.

Flower starts a process for every message. A node of each app, with small files of its own, answers
its first one, in a fork of a process that has imported Flower; medians. ``--other`` takes the
Python of another installation, measured in turns: what a change is worth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from common import Record, new_table, run_script
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from other_sites import SITES
from started_client import Started, start_clients

NODES = (
    ("fed-cg", 0),
    ("fed-cg", 3),
    ("fdskl", 0),
    ("fdskl", 2),
    ("horizontal", 0),
    ("horizontal", 4),
    ("vertical", 6),
    ("pof-mkl", 0),
    ("fed-cfk", 0),
    ("kernel-pca", 0),
    ("align", 0),
    ("ranges", 0),
)


def measure(chosen: argparse.Namespace, console: Console) -> list[Record]:
    """Start them so often, print the table."""
    pythons = [sys.executable, *([chosen.other] if chosen.other else [])]
    found: dict[str, list[list[Started]]] = {python: [] for python in pythons}
    for _ in range(2 if chosen.quick else chosen.times):
        for python in pythons:
            with tempfile.TemporaryDirectory() as folder:
                sites = {}
                for name, _number in NODES:
                    (own := Path(folder) / name).mkdir(exist_ok=True)
                    sites[name] = sites.get(name) or SITES[name](own, None)  # type: ignore[arg-type]
                nodes = [(sites[name], number) for name, number in NODES]
                found[python].append(start_clients(nodes, python=python))
    headings = "app | who | Flower | our code | its answer | both | both, other"
    table, records = new_table("CPU seconds", headings, text="app | who"), []
    for place, (name, number) in enumerate(NODES):
        middles = []
        for python in pythons:
            runs = [run[place].seconds for run in found[python]]
            middles.append([statistics.median(part) for part in zip(*runs, strict=True)])
            middles[-1].append(statistics.median(sum(run[1:]) for run in runs))
        who = found[sys.executable][0][place].role
        cells = [f"{value:.2f}" for value in [*middles[0], *(one[3] for one in middles[1:])]]
        table.add_row(name, who, *cells)
        records.append(Record(f"{name} {number}, {who}", middles[0][3], "CPU seconds"))
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure, times=5, other=("", "Python of another installation"))
