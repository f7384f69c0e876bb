"""Asking the SuperNode for tasks, and answering one: each in a process of its own."""

from __future__ import annotations

import os
import select
import sys
import time
from importlib import import_module

from threadpoolctl import threadpool_limits

from fedkern_flwr import flower_compat
from fedkern_flwr.flower_compat import TaskQueue, answer_task

from .forked import limit

FREE, HINT = b"f", b"h"  # told to the one who asks: a process is free, a message has arrived
TASK = "task"  # first word of the line with which it tells of a task

_SOON, _LATER = 0.05, 1.0  # seconds from one question to the next: after a hint, and else
_FRESH = 0.5  # seconds for which a hint counts

#: What the clients of all methods need.
_WARM = (
    "flwr.clientapp.utils",
    "flwr.supernode.runtime.run_clientapp",
    *(f"pyarrow.{name}" for name in ("compute", "csv", "parquet")),
    *(f"scipy.{name}" for name in ("linalg", "optimize", "sparse", "spatial.distance", "special")),
    *(
        f"fedkern_flwr.clients.{name}"
        for name in (
            "alignment",
            "column_ranges",
            "fdskl",
            "fed_cg",
            "hierarchical_svm",
            "kernel_pca",
            "pof_mkl",
            "pof_rls",
            "secure_gram",
            "serving",
            "streaming",
        )
    ),
    "fedkern_flwr.registered",
    "fedkern_flwr.simulations.apps.node",
    "fedkern_flwr.tables.arrow",
    "fedkern_flwr.tables.npz",
    "fedkern_flwr.vertical.phase_training",
)


def warm_up() -> None:
    """Import what answering a message takes."""
    for module in _WARM:
        import_module(module)
    flower_compat.warm = True


def ask_for_tasks(address: str, secret: bytes) -> None:
    """Print a line per task of the SuperNode, as many as are told to be free.

    Standard input says when to ask; a SuperNode that does not answer yet is asked again.
    """
    queue, free, hinted = TaskQueue(address, secret), 0, -_FRESH
    while True:
        fresh = time.monotonic() < hinted + _FRESH
        pause = None if not free else _SOON if fresh else _LATER
        if select.select([0], [], [], pause)[0]:
            told = os.read(0, 1024)
            if not told:
                return
            free += told.count(FREE)
            if HINT in told:
                hinted = time.monotonic()
        if not free:
            continue
        try:
            found = queue.take()
        except ConnectionError:
            hinted = time.monotonic()
            continue
        if found is not None:
            print(TASK, *found, flush=True)
            free, hinted = free - 1, time.monotonic()


def answer(address: str, token: str, *, seconds: float, gigabytes: float, threads: int) -> None:
    """Answer the message of one task, within limits."""
    sys.stdin.close()
    threadpool_limits(threads)
    limit(seconds, gigabytes)
    answer_task(address, token, os.getppid())
