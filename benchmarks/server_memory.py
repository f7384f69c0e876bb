"""Peak memory of the server while it sums large uploads, through the in-process engine.

Counted is the resident size of this process above that of the idle server: all clients known, no
sum ordered yet. In process the clients' own arrays are counted too, one client at a time: its
vector, the masked vector and its shares, so this is an upper bound of what a server needs. Every
client makes its vector when it is asked and drops it.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, peak_memory, run_script
from flwr.serverapp import Grid
from numpy.typing import NDArray
from rich.console import Console
from secure_sum import CaseClients, OneSum

from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.graph import degree
from fedkern_flwr.simulations import simulate

GOAL = 200e6  # bytes
BITS, BOUND = 32, 2**21  # 943 of them stay below 2^31
EVERY = 0.002  # seconds between two looks at the resident size


class Vectors:
    """Makes a partition's integers on the fly and keeps nothing but their sum."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.total = np.ones(length, np.int64)  # written to, hence resident before the start
        self.total -= 1

    def __call__(self, partition: int) -> NDArray[np.int32]:
        """Return the vector of a partition."""
        rng = np.random.default_rng(partition)
        vector = rng.integers(-BOUND, BOUND, self.length, dtype=np.int32)
        self.total += vector
        return vector


class WatchedSum(OneSum):
    """Looks at the resident size from the end of the set-up to the total.

    Attributes
    ----------
    idle_, peak_ : int
        Resident bytes before the sum is ordered, and at most until it is there.
    """

    idle_ = peak_ = 0

    def gather(self, grid: Grid, **options: Any) -> None:
        """Gather the clients, then begin to watch."""
        super().gather(grid, **options)
        self.idle_ = self.peak_ = resident()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def finish(self, grid: Grid, **options: Any) -> None:
        """End watching; the sum is there."""
        self._ended.set()
        self._watcher.join()
        super().finish(grid, **options)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            self.peak_ = max(self.peak_, resident())


def resident() -> int:
    """Return the resident size of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Sum once; print the peak."""
    clients = 50 if options.quick else options.clients
    vectors = Vectors(options.length)
    strategy = WatchedSum(options.length, Encoding.integers(BOUND, BITS))
    started = time.perf_counter()
    simulate(strategy, CaseClients(vectors), clients)
    seconds = time.perf_counter() - started
    highest = peak_memory()
    used = strategy.peak_ - strategy.idle_
    exact = np.array_equal(strategy.total_, vectors.total)
    upload, k = options.length * BITS / 8e6, degree(clients)
    table = new_table(
        f"memory of the server: {clients} uploads of {upload:.1f} MB, k={k}",
        "goal / this | MB above idle | idle MB | peak MB | uploads MB | seconds | exact",
    )
    table.add_row(
        f"{GOAL / used:.2f}",
        f"{used / 1e6:.0f}",
        f"{strategy.idle_ / 1e6:.0f}",
        f"{highest / 1e6:.0f}",
        f"{clients * upload:,.0f}",
        f"{seconds:.1f}",
        "yes" if exact else "NO",
    )
    console.print(table)
    return [Record(f"{clients} uploads of {upload:.1f} MB", GOAL / used, "goal / this", "higher")]


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        clients=200,
        length=700_000,
    )
