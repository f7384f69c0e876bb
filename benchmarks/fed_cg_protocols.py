"""What FedCG's protocols cost on a small data set: exchanges, bytes, seconds, accuracy.

Breast cancer (569 rows, 30 features), two hospitals with labels and a block of features, two
centres with a block each. The paper's protocols (naive, chain) show data to others; they stand here
for what privacy costs.

Bytes per party with protocol secure and normal equations: m landmarks, k outputs, r rows of the
party's table, n of them in kernels (at a centre those of all its H hospitals), held-out ones
included, P parties:

* centre, up: 8 m n (masked distances) + 16 r (pseudonyms) + 48 (key, fingerprint)
* centre, down: 4 n (which row stands where) + 16 H + 8 (width) + 100 P (keys, signatures)
* hospital, up: 8 m n (its masked zeros) + 16 r + 48 + 8 (m (m + 1) / 2 + m k) (K^T K and K^T y)
  + 32 (counts of a binary classification)
* hospital, down: 8 m n (padded distances) + 4 n + 16 + 8 + 100 P + 8 m k (coefficients)

With cg a hospital gets 8 m k and sends 8 m k per iteration, and 8 m rank and 8 m (rank + k) once,
instead of 8 (m (m + 1) / 2 + m k). Where the distances of a centre exceed 256 MB they take several
exchanges, each with 4 n + 16 H + 8 of its own. Counted are arrays and bytes among the scalars;
Flower's format adds 128 per array.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from flwr.app import Context
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import FedCG

HOSPITALS, CENTRES, HELD_OUT = 2, 2, 0.3
KEY = b"the parties' alignment key"
COUNTS = 4  # numbers: outcomes of a binary classification
ANNOUNCED = 32 + 16  # bytes: public key of the run, fingerprint of the landmarks
PER_PARTY = 4 + 32 + 64  # bytes of the roster: number, key, signature or its absence

#: Name -> protocol and options.
RUNS: dict[str, dict[str, Any]] = {
    "secure, normal equations": {"protocol": "secure"},
    "secure, cg": {"protocol": "secure", "solver": "cg"},
    "secure, cg, no preconditioner": {
        "protocol": "secure",
        "solver": "cg",
        "preconditioner_rank": 0,
    },
    "naive": {"protocol": "naive"},
    "chain, cg": {"protocol": "chain"},
}


class Parties:
    """``client_fn`` for one protocol: hospitals first, then centres."""

    def __init__(self, protocol: str, folder: str) -> None:
        x, y = load_breast_cancer(return_X_y=True)
        x = (x - x.min(0)) / (x.max(0) - x.min(0))
        ids = np.arange(len(x)).astype(str)
        blocks = np.array_split(np.arange(x.shape[1]), 1 + CENTRES)
        common = {"alignment_key": KEY, "protocol": protocol, "state_dir": folder}
        self.tables: list[dict[str, Any]] = []
        order = np.random.default_rng(0).permutation(len(x))
        for rows in np.array_split(order, HOSPITALS):
            test, train = np.split(rows, [round(HELD_OUT * len(rows))])
            own = {"x": x[train], "y": y[train], "ids": ids[train]}
            own |= {"x_test": x[test], "y_test": y[test], "ids_test": ids[test]}
            for name in ("x", "x_test"):
                own[name] = own[name][:, blocks[0]]
            seed = public_seed(0, "clinical")
            self.tables.append(own | common | {"classes": (0, 1), "landmark_seed": seed})
        for c, columns in enumerate(blocks[1:]):
            rows = np.random.default_rng(1 + c).permutation(len(x))
            seed = public_seed(0, f"centre {HOSPITALS + c}")
            own = {"x": x[np.ix_(rows, columns)], "ids": ids[rows], "landmark_seed": seed}
            self.tables.append(own | common)
        self.rows = [len(t["ids"]) + len(t.get("ids_test", ())) for t in self.tables]

    def __call__(self, context: Context) -> HybridKernelClient:
        """Build the client of a node."""
        return HybridKernelClient(context, **self.tables[int(context.node_config["partition-id"])])


class Measured:
    """A run and what it cost.

    Attributes
    ----------
    strategy : FedCG
    rows : list of int
        Of each party.
    seconds : float
    bytes : Counter
        (direction, partition) -> payload.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        with tempfile.TemporaryDirectory() as folder:
            chosen = {
                "landmarks": options.m,
                "sampling": "U",
                "gamma": options.gamma,
                "regularization": options.regularization,
                **RUNS[name],
            }
            parties = Parties(chosen["protocol"], folder)
            self.strategy, self.rows = FedCG(**chosen), parties.rows
            transcript = Transcript()
            started = time.perf_counter()
            simulate(
                self.strategy,
                parties,
                HOSPITALS + CENTRES,
                transcript=transcript,
                num_rounds=options.rounds,
            )
            self.seconds = time.perf_counter() - started
        partition_of = {
            entry.node: int(entry.scalars["partition"])
            for entry in transcript.entries(phase="describe", direction="up")
        }
        self.bytes: Counter[tuple[str, int]] = Counter()
        for entry in transcript.entries():
            texts = [value for value in entry.scalars.values() if isinstance(value, bytes)]
            size = sum(array.nbytes for array in entry.arrays) + sum(map(len, texts))
            self.bytes[entry.direction, partition_of[entry.node]] += size

    def row(self, name: str, base: Measured) -> list[str]:
        """Return a row of the table of protocols."""
        ledger, found = self.strategy.ledger_, self.strategy.metrics_
        return [
            f"{ledger.exchanges / base.strategy.ledger_.exchanges:.1f}",
            name,
            str(ledger.exchanges),
            str(found["iterations"]) + ("" if found.get("converged", True) else " (not done)"),
            f"{self.sent('up') / 1e3:,.0f}",
            f"{self.sent('down') / 1e3:,.0f}",
            f"{self.seconds:.2f}",
            f"{found['test_accuracy']:.4f}",
        ]

    def sent(self, direction: str) -> int:
        """Return the bytes of all parties."""
        return sum(size for (way, _), size in self.bytes.items() if way == direction)


def expected(run: Measured, m: int, party: int) -> dict[str, int]:
    """Return the bytes of a party with protocol secure, by the formulas of the module."""
    hospital, k, rows = party < HOSPITALS, 1, run.rows
    n = rows[party] if hospital else sum(rows[:HOSPITALS])
    up = 8 * m * n + 16 * rows[party] + ANNOUNCED
    down = 4 * n + 16 * (1 if hospital else HOSPITALS) + 8 + PER_PARTY * len(rows)
    if hospital:
        up += 8 * COUNTS
        down += 8 * m * n + 8 * m * k
        if run.strategy.chosen_solver == "cg":
            iterations, rank = int(run.strategy.metrics_["iterations"]), run.strategy.rank
            up += 8 * m * (rank + k + iterations * k)
            down += 8 * m * (rank + iterations * k)
        else:
            up += 8 * (m * (m + 1) // 2 + m * k)
    return {"up": up, "down": down}


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run all; print two tables."""
    runs = {name: Measured(name, options) for name in RUNS}
    base = next(iter(runs.values()))
    table = new_table(
        f"FedCG on breast cancer: {HOSPITALS} hospitals, {CENTRES} centres, m={options.m}, "
        f"lambda={options.regularization:g}",
        "exchanges /\nthe first's | protocol | exchanges | iterations | kB up | "
        "kB down | s | test\naccuracy",
        text="protocol",
    )
    for name, run in runs.items():
        table.add_row(*run.row(name, base))
    console.print(table)
    first = base.strategy.ledger_.exchanges
    records = [
        Record(name, run.strategy.ledger_.exchanges / first, "exchanges / the first's", "lower")
        for name, run in runs.items()
    ]
    parts = new_table(
        "bytes of a party against the formulas in this script's docstring",
        "measured /\nformula | protocol | party | way | measured | formula | off by %",
        text="protocol | party | way",
    )
    for name, run in runs.items():
        for party in (0, HOSPITALS) if run.strategy.protocol == "secure" else ():
            for way, size in expected(run, options.m, party).items():
                measured = run.bytes[way, party]
                label = f"{name}, party {party}, {way}"
                records.append(Record(label, measured / size, "bytes / formula", "lower"))
                parts.add_row(
                    f"{measured / size:.3f}",
                    name,
                    f"{'hospital' if party < HOSPITALS else 'centre'} {party}",
                    way,
                    f"{measured:,}",
                    f"{size:,}",
                    f"{100 * (measured / size - 1):+.2f}",
                )
    console.print(parts)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        m=(50, "landmarks"),
        gamma=0.5,
        regularization=1e-3,
        rounds=(1000, "most iterations of cg"),
    )
