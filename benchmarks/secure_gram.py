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
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
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
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "error": int(np.abs(strategy.gram_ - exact).max()),
        "users": strategy.rows_,
        "items": len(strategy.items_),
        "bytes": strategy.ledger_.bytes_up / len(parts),
        "exchanges": strategy.ledger_.exchanges,
    }


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--drop", type=float, default=0.1)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.case:
        each, drop, support = chosen.case
        print(json.dumps(run(int(each), float(drop), int(support))))
        return
    name, x = ratings()
    print(f"{name}: {x.shape[0]} users, {x.shape[1]} items")
    print(
        "users/node  drop  support  s / goal   seconds  peak MB  items  users  error  MB/node"
        "  float64/ours  exchanges"
    )
    for each in (47, 1) if chosen.full else (47,):
        for drop, support in ((0.0, 0), (0.0, 5), (chosen.drop, 5)):
            command = [sys.executable, __file__, "--case", str(each), str(drop), str(support)]
            made = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(made.stdout)
            plain = 8.0 * found["items"] ** 2
            print(
                f"{each:10d} {drop:5.2f} {support:8d} {found['seconds'] / SECONDS[each]:9.2f} "
                f"{found['seconds']:9.1f} {found['peak'] / 1e6:8.0f} {found['items']:6d} "
                f"{found['users']:6d} {found['error']:6d} {found['bytes'] / 1e6:8.2f} "
                f"{plain / found['bytes']:13.1f} {found['exchanges']:10d}"
            )


if __name__ == "__main__":
    main()
