"""Secure Gram at MovieLens scale: seconds, memory, bytes, in process.

    FEDKERN_DATA=... python benchmarks/secure_gram.py [--full] [--drop 0.1]

With ``ml-100k`` in the folder, else with random ratings of its size. 21 nodes of 47 users; with
``--full`` also 943 nodes of one user each, about a minute. Each run is a process of its own, since
memory is measured. Every K is compared with that of the users who were summed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from rich.console import Console
from scipy import sparse

from fedkern_flwr.clients import GramClient
from fedkern_flwr.interactions import load_interactions
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import DropOut
from fedkern_flwr.strategies import SecureGram

USERS, ITEMS, RATINGS = 943, 1682, 100_000
SECONDS, BYTES = {1: 150.0, 47: 20.0}, 1e9
FILES = ("ml-100k/u.data", "ml-100k/ml-100k.inter", "u.data", "ml-100k.inter")


def ratings() -> tuple[str, sparse.csr_array]:
    """Return the name of the data and who rated what, shape (users, items)."""
    folder = os.environ.get("FEDKERN_DATA", "")
    for file in FILES:
        if folder and (Path(folder) / file).is_file():
            return "ml-100k", load_interactions(Path(folder) / file).matrix()
    rng = np.random.default_rng(0)
    popularity = 1.0 / (1.0 + np.arange(ITEMS)) ** 0.8
    chosen = rng.random((USERS, ITEMS)) < popularity * RATINGS / USERS / popularity.sum()
    return "random ratings", sparse.csr_array(chosen.astype(np.int64))


def run(each: int, drop: float, min_support: int) -> dict[str, float]:
    """Sum K over nodes of so many users."""
    _, x = ratings()
    parts = [x[k : k + each] for k in range(0, x.shape[0], each)]
    strategy = SecureGram(min_support=min_support, seed=0)
    started = time.perf_counter()
    simulate(
        strategy,
        lambda context: GramClient(context, parts[int(context.node_config["partition-id"])]),
        len(parts),
        faults=DropOut(drop, 0) if drop else None,
    )
    seconds = time.perf_counter() - started
    summed = sparse.vstack([parts[k] for k in strategy.survivors_])[:, strategy.items_]
    exact = (summed.T @ summed).toarray()
    return {
        "seconds": seconds,
        "peak": peak_memory(),
        "error": int(np.abs(strategy.gram_ - exact).max()),
        "users": strategy.rows_,
        "items": len(strategy.items_),
        "bytes": strategy.ledger_.bytes_up / len(parts),
        "exchanges": strategy.ledger_.exchanges,
    }


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print a row per case."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    name, x = ratings()
    table = new_table(
        f"{name}: {x.shape[0]} users, {x.shape[1]} items",
        "goal /\nthis | users\nper node | drop | support | seconds | peak MB | items | "
        "users | error | MB up\nper node | float64 /\nours | exchanges",
    )
    cases = [(0.0, 0), (0.0, 5), (options.drop, 5)]
    records = []
    for each in (47, 1) if options.full else (47,):
        for drop, support in cases[:1] if options.quick else cases:
            found = in_own_process(__file__, {"each": each, "drop": drop, "min_support": support})
            plain = 8.0 * found["items"] ** 2
            label = f"{each} users per node, drop {drop:g}, support {support}"
            records += [
                Record(label, SECONDS[each] / found["seconds"], "goal of seconds / this"),
                Record(label, BYTES / found["peak"], "goal of memory / this", "higher"),
                Record(label, plain / found["bytes"], "float64 matrix / bytes up", "higher"),
            ]
            table.add_row(
                f"{SECONDS[each] / found['seconds']:.1f}",
                str(each),
                f"{drop:.2f}",
                str(support),
                f"{found['seconds']:.1f}",
                f"{found['peak'] / 1e6:.0f}",
                str(found["items"]),
                str(found["users"]),
                str(found["error"]),
                f"{found['bytes'] / 1e6:.2f}",
                f"{plain / found['bytes']:.1f}",
                str(found["exchanges"]),
            )
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        full=False,
        drop=0.1,
    )
