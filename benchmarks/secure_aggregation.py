"""FedAvg on the same work in plain, with our mixin and mod, and with Flower's SecAgg+.

What a user writes in each case is a file of the folder ``averaging``: its lines of code are counted
without blanks, comments and docstrings. The runs are in process, on one core, serialised as between
machines, interleaved; nobody drops. All holders of a secret are all clients, of which 2/3 must
answer. SecAgg+ gets the work's own bounds for clipping and weights.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import platform
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console
from secagg_plus import CountingGrid, one_core

from fedkern_flwr.simulations import InProcessGrid

USERS = Path(__file__).parent / "averaging"
NAMES = {"plain": "plain", "ours": "mixin and mod", "theirs": "SecAgg+"}


def lines_of_code(path: Path) -> set[int]:
    """Return the lines of a file that hold code."""
    tree = ast.parse(path.read_text())
    texts = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and ast.get_docstring(node) is not None
    ]
    hidden = {n for text in texts for n in range(text.lineno, (text.end_lineno or 0) + 1)}
    lines = path.read_text().splitlines()
    code = {n for n, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    return code - hidden


def more_lines(path: Path, plain: Path) -> int:
    """Return how many lines of a file are not in another."""
    known = {line.strip() for line in plain.read_text().splitlines()}
    lines = path.read_text().splitlines()
    return sum(lines[n - 1].strip() not in known for n in lines_of_code(path))


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave the three; print lines, seconds as ratios of pairs, bytes and errors."""
    repetitions = 2 if options.quick else options.repetitions
    os.environ["AVERAGING_CLIENTS"] = str(options.clients)
    os.environ["AVERAGING_LENGTH"] = str(options.length)
    sys.path.insert(0, str(USERS))
    users: dict[str, Any] = {name: importlib.import_module(name) for name in NAMES}
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    found: dict[str, Any] = {}
    up: dict[str, float] = {}
    with one_core():
        for _ in range(repetitions + 1):
            for name, user in users.items():
                grid = CountingGrid(InProcessGrid(user.app, options.clients, serialise=True))
                started = perf_counter()
                found[name] = user.run(grid, options.rounds)
                seconds[name].append(perf_counter() - started)
                up[name] = grid.up / options.clients / options.rounds
    pairs = list(zip(seconds["theirs"][1:], seconds["ours"][1:], strict=True))
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    low, high = min(a / b for a, b in pairs), max(a / b for a, b in pairs)
    table = new_table(
        f"{options.rounds} rounds of FedAvg, {options.clients} clients, "
        f"{options.length:,} numbers; SecAgg+ / ours {ratio:.1f} ({low:.1f} to {high:.1f})",
        "lines | not in plain | s, median | / plain | MB up a round | error | ",
        caption=f"flwr {version('flwr')}, numpy {version('numpy')}, "
        f"Python {platform.python_version()}",
    )
    plain = seconds["plain"][1:]
    for name, title in NAMES.items():
        path = USERS / f"{name}.py"
        over = [a / b for a, b in zip(seconds[name][1:], plain, strict=True)]
        table.add_row(
            str(len(lines_of_code(path))),
            str(more_lines(path, USERS / "plain.py")),
            f"{statistics.median(seconds[name][1:]):.2f}",
            f"{statistics.median(over):.1f}",
            f"{up[name] / 1e6:.2f}",
            f"{np.abs(found[name] - found['plain']).max():.1g}",
            title,
        )
    console.print(table)
    return [Record("FedAvg, one core", ratio, "SecAgg+ / ours", "higher")]


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        clients=10,
        length=100_000,
        rounds=5,
        repetitions=5,
    )
