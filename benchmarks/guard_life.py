"""The usual life of three nodes under the guard: 24 months of runs on tables that change.

    python benchmarks/guard_life.py [--rows 500 200] [--landmarks 32]

Each month 20 new rows come to each node, 1 % of its rows are edited, and a row is withdrawn; every
half-year one withdrawal cannot wait. Each month has a run of the next method. The table shows
what each month uses: rows in the run, rows that wait, and the size that the plan allows. FedCG
takes the widths and landmarks of its first run again, the others sum another function each time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import Record, new_table, peak_memory, run_script
from rich.console import Console

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.guard.cells import (
    Sum,
    check_rows,
    check_sum,
    counts,
    lot_rows,
    planned_share,
    repeated,
)
from fedkern_flwr.guard.counting import unknowns_of_row
from fedkern_flwr.guard.freeze import Change, Freeze
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.guard.opened import Opening
from fedkern_flwr.guard.policy import NodePolicy, Rules
from fedkern_flwr.guard.rows import OwnRows, Rows

COLUMNS, NODES, MONTHS, NEW, LEAST = 30, 3, 24, 20, 5
HEADS = "month | run | size | rows used | lot needs | new | back | edits | left"
ROW = unknowns_of_row(COLUMNS + 1, 1)


def square(size: int) -> float:
    """Return the numbers of a Gram matrix of so many columns, and of its right-hand side."""
    return size * (size + 3) / 2


#: Method -> its largest size by default, the numbers of a size, and whether they are products.
METHODS: dict[str, tuple[int, Callable[[int], float], bool]] = {
    "ranges": (64, lambda size: counts(size * COLUMNS, 1000), False),
    "FedCG": (100, square, True),
    "HierarchicalSVM": (100, lambda size: size * (COLUMNS + 1.0), False),
    "kernel PCA": (50, square, True),
    "POF-RLS": (50, square, True),
}


@dataclass
class Node:
    """A node: its table as it is now, its freeze, and what it has answered."""

    seed: int
    rows: int
    ids: list[int] = field(default_factory=list)
    edits: dict[int, int] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)
    next: int = 0

    def __post_init__(self) -> None:
        """Deal the first rows."""
        self.random = np.random.default_rng(self.seed)
        self.grow(self.rows)
        self.freeze, self.change = Freeze.deal(
            self.table(), least=LEAST, key=bytes([self.seed] * 32)
        )

    def grow(self, rows: int) -> None:
        """Add new rows to the table."""
        self.ids += range(self.next, self.next + rows)
        self.next += rows

    def table(self) -> Rows:
        """Return the table; contents follow from ids and edits."""
        content = np.array([(k, self.edits.get(k, 0)) for k in self.ids], float)
        return Rows(columns=[content], ids=self.ids)

    def month(self, number: int, needed: int) -> Change:
        """Let a month pass."""
        self.grow(NEW)
        for k in self.random.choice(self.ids, len(self.ids) // 100, replace=False):
            self.edits[int(k)] = self.edits.get(int(k), 0) + 1
        self.ids.remove(int(self.random.choice(self.ids)))
        if number % 6 == 5:
            gone = int(self.random.choice(self.ids))
            self.ids.remove(gone)
            self.freeze.withdraw([gone])
        self.change = self.freeze.update(self.table(), needed=needed)
        return self.change

    @property
    def learned(self) -> list[int]:
        """Blocks that are learned from."""
        return self.freeze.select(1, 2, 3, 4, 5)

    def sum_of(self, run: int, method: str, size: int, others: int) -> Sum:
        """Return the sum of a method."""
        _, numbers, products = METHODS[method]
        return Sum(
            run,
            method,
            "sum",
            frozenset(b"abc"[k : k + 1] for k in range(NODES)),
            frozenset(self.learned),
            numbers(size),
            ROW,
            others,
            size if products else 0,
            function=b"FedCG" if method == "FedCG" else b"",
        )


def life(rows: int, landmarks: int) -> tuple[list[list[object]], dict[str, float]]:
    """Return a line for each run, and figures; lots must allow so many landmarks."""
    needed = lot_rows(square(landmarks), ROW, landmarks)
    nodes = [Node(seed, rows) for seed in range(NODES)]
    methods, lines, waits, refusals = list(METHODS), [], 0, 0
    sizes: list[int] = []
    least, run = 1.0, 0
    for month in range(MONTHS + 1):
        if month:
            for node in nodes:
                node.month(month, needed)
        for method in methods if month == 0 else [methods[month % len(methods)]]:
            learned = [
                int(n.freeze.blocks["rows"][n.freeze.select(1, 2, 3, 4, 5)].sum()) for n in nodes
            ]
            others = min(learned)  # of two others one may tell the server its rows
            most, numbers, _ = METHODS[method]
            about = [(n.freeze.blocks, n.sums, n.learned) for n in nodes]
            shares = [planned_share(*node, method) for node in about]
            free = min(
                share * (own + others) * ROW for share, own in zip(shares, learned, strict=True)
            )
            free = max(free, min(repeated(*node, method.encode()) for node in about))
            fits = [s for s in range(1, most + 1) if numbers(s) <= free]
            size = fits[-1] if fits else 1
            used, run = [], run + 1
            for node in nodes:
                new = node.sum_of(run, method, size, others)
                try:
                    check_rows(node.freeze.blocks, node.sums, new, least=LEAST)
                    check_sum(node.freeze.blocks, node.sums, new)
                    node.sums.append(new)
                except RefusedError:
                    refusals += 1
                used.append(node.freeze.used.sum() / len(node.ids))
            if method == "FedCG":
                sizes.append(size)
            waiting = nodes[0].change.waiting
            least = min(least, float(np.mean(used)))
            lines.append([month, method, size, f"{np.mean(used):.1%}", needed, *waiting.values()])
        waits += nodes[0].change.waiting["new rows"] > 0
    final = np.mean([n.freeze.used.sum() / len(n.ids) for n in nodes])
    figures = {
        "refusals": refusals,
        "rows in blocks, month 24": float(final),
        "rows in the run, month 24": float(np.mean(used)),
        "least rows in a run": least,
        "landmarks, FedCG's fifth run": sizes[4] if len(sizes) > 4 else 0,
        "months in which new rows wait": waits,
    }
    return lines, figures


def cost(rows: int) -> dict[str, float]:
    """Return what a run's check of so many rows against 50 runs costs: CPU seconds and bytes."""
    x = np.random.default_rng(0).random((rows, COLUMNS))
    own = OwnRows([(x,)], [f"p{k}" for k in range(rows)], rows)
    about: dict[str, Any] = {"kind": "K", "method": "m", "secure": True, "pinned": True}
    parties = tuple(bytes([k]) for k in range(NODES))
    with TemporaryDirectory() as folder:
        rules = Rules(policy=NodePolicy(min_own_rows=LEAST))
        ledger, size = NodeLedger(Path(folder), rules=rules), 0
        for run in range(51):
            if run == 50:
                files = [file for file in Path(folder).rglob("*") if file.is_file()]
                size = sum(file.stat().st_size for file in files)
                start, before = time.process_time(), peak_memory()
            session = f"run{run}"
            if run in (0, 50):
                ledger.open_run(session, rows=own, **about)
                ledger.freeze(session, own)
            else:  # the rows of these are known
                ledger.open_run(session, rows=OwnRows(), **about)
                ledger.freeze(session, OwnRows((), None, rows), np.arange(rows))
            one = Opening("sum", None, False, parties, NODES, square(50), ROW, rows, 50)
            ledger.enter(session, [replace(one, values=session.encode())])
        took = time.process_time() - start
    return {"seconds": took, "bytes on disk": size, "rows": rows, "grown": peak_memory() - before}


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print the tables; return the figures."""
    records = []
    for rows in options.rows:
        lines, figures = life(rows, options.landmarks)
        title = f"{rows} rows a node, lots for {options.landmarks} landmarks"
        table = new_table(title, HEADS, text="run")
        for line in lines:
            table.add_row(*map(str, line))
        console.print(table)
        console.print(", ".join(f"{name}: {value:.3g}" for name, value in figures.items()))
        records += [Record(f"guard life, {rows} rows: {k}", v, "") for k, v in figures.items()]
    found = cost(10**5 if options.quick else 10**6)
    console.print(
        "a run's check of {rows:,} rows against 50 runs: {seconds:.2f} CPU seconds, {grown:,} "
        "bytes more than before; {bytes on disk:,} bytes on disk".format(**found)
    )
    return [*records, Record("guard life: check", found["seconds"], "s", "lower")]


if __name__ == "__main__":
    run_script(__doc__, measure, rows=[500, 200], landmarks=(32, "that lots must allow"))
