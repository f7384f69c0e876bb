"""Sharing long loops over arrays between threads: NumPy lets go of the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def processors() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def share(work: Callable[[int, int], None], length: int, least: int) -> None:
    """Call ``work(start, stop)`` for ranges that make up 0 to ``length``, a thread each.

    Parameters
    ----------
    work : callable
        Touches nothing that belongs to another range.
    length : int
        Of the whole range.
    least : int
        Length that is worth a thread.
    """
    workers = min(processors(), length // max(1, least))
    if workers < 2:
        work(0, length)
        return
    step = -(-length // workers)
    with ThreadPoolExecutor(workers) as pool:
        starts = range(0, length, step)
        for done in [pool.submit(work, k, min(k + step, length)) for k in starts]:
            done.result()
