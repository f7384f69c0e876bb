"""Gigabytes per second of mask streams: made and added to a vector in place, per stream.

The rate is that of ``add_streams`` with several streams on one vector: bytes of the vector times
streams, by the seconds. The yardstick is NumPy's addition of an array that is already there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from common import Record, interleave, new_table, run_script
from numpy.typing import NDArray
from rich.console import Console

from fedkern_flwr.secure_sum import CIPHERS, add_streams
from fedkern_flwr.secure_sum.masks import _PARALLEL

GOAL = 2e9  # bytes per second, core and stream
#: Bytes of the vector, streams added by one call, calls per measurement.
SIZES = ((64 << 20, 4, 1), (16 << 10, 16, 100))
DTYPES = (np.uint64, np.uint32, np.uint16)
THREADS, REPETITIONS = (1, 2), 7


def masking(size: int, streams: int, dtype: Any, cipher: str, threads: int) -> Callable[[], object]:
    """Return a call that masks a vector, half of the streams added and half subtracted."""
    rng = np.random.default_rng(0)
    target = np.zeros(size // np.dtype(dtype).itemsize, dtype)
    keys = [(rng.bytes(32), bool(k % 2)) for k in range(streams)]
    return lambda: add_streams(target, keys, cipher=cipher, threads=threads)


def repeat(call: Callable[[], object], times: int) -> None:
    """Call several times."""
    for _ in range(times):
        call()


def adding(size: int, streams: int, dtype: Any) -> Callable[[], object]:
    """Return a call that adds an array of the same size as often, without making it."""
    target = np.zeros(size // np.dtype(dtype).itemsize, dtype)
    noise: NDArray[Any] = np.ones_like(target)

    def add() -> None:
        for _ in range(streams):
            np.add(target, noise, out=target)

    return add


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave all variants of a size; print the best repetition of each."""
    table = new_table(
        f"mask streams: goal {GOAL / 1e9:g} GB/s per core, best of {REPETITIONS}",
        "this / goal | GB/s | per core | this / add | vector | dtype | cipher | cores",
        text="cipher | cores",
    )
    records = []
    repetitions = 3 if options.quick else REPETITIONS
    for size, streams, calls in SIZES:
        variants: dict[tuple[Any, str, int], Callable[[], object]] = {}
        for dtype in DTYPES:
            variants[dtype, "", 1] = adding(size, streams, dtype)
            for cipher in CIPHERS:
                for threads in THREADS:
                    variants[dtype, cipher, threads] = masking(
                        size, streams, dtype, cipher, threads
                    )
        timed = interleave(
            {name: partial(repeat, call, calls) for name, call in variants.items()}, repetitions
        )
        best = {name: min(seconds) for name, seconds in timed.items()}
        for (dtype, cipher, threads), seconds in best.items():
            rate = size * streams * calls / seconds
            bare = size * streams * calls / best[dtype, "", 1]
            working = min(threads, -(-size // _PARALLEL))
            vector = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
            if cipher and threads == 1:
                name = f"{cipher}, {np.dtype(dtype).name}, {vector}"
                records.append(Record(name, rate / bare, "this / NumPy's addition", "higher"))
            table.add_row(
                f"{rate / working / GOAL:.2f}" if cipher else "",
                f"{rate / 1e9:.2f}",
                f"{rate / working / 1e9:.2f}",
                f"{rate / bare:.2f}",
                vector,
                np.dtype(dtype).name,
                cipher or "only add",
                f"{working} of {threads}",
            )
        table.add_section()
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(__doc__, measure)
