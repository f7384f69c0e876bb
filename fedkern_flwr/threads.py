"""Share long array loops between threads, as NumPy releases the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def processors() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def share(work: Callable[[int, int], None], length: int, least: int) -> None:
    """Call ``work(start, stop)`` for ranges that cover 0 to ``length``, one thread each.

    Parameters
    ----------
    work : callable
        Changes nothing outside its range.
    length : int
        Length of the whole range.
    least : int
        Least length for a thread.
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
