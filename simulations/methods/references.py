"""Reference methods on pooled data."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..run.data import Prepared
from ..run.entries import Entry, average, draw_label, mean

#: The reference with local models.
ALONE = "alone"
#: The reference that is federated.
FED_AVG = "fed-avg"
#: FDSKL's sums as the paper has them: parties send, though one process plays all of them.
TWO_TREES = "fdskl-two-trees"
_SEEN = "all data of all parties: it is pooled"


def run_reference(
    entry: Entry,
    prepared: Prepared,
    *,
    seed: int,
    runs: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Compute the missing runs of a reference method.

    Parameters
    ----------
    entry : Entry
        Entry with a ``reference``.
    prepared : Prepared
        Data.
    seed : int
        Run r uses ``seed + r``.
    runs : int
        Number of runs.
    progress : callable
        Called with (label, steps done, steps in all).
    """
    assert entry.reference is not None
    for draw in range(len(entry.results), runs):
        label = draw_label(entry, draw, runs)
        progress(label, 0, 1)
        pooled = prepared.pooled(seed + draw)
        started, used = time.monotonic(), time.process_time()
        metrics, history = entry.reference(
            pooled, seed=seed + draw, progress=partial(progress, label), **entry.options
        )
        metrics = dict(metrics)
        costs = metrics.pop("costs", {"exchanges": 0, "bytes_up": 0, "bytes_down": 0})
        seen = metrics.pop("server_sees", [] if entry.method == ALONE else [_SEEN])
        entry.results.append(
            {
                "metrics": metrics,
                "history": history,
                **costs,
                "seconds": time.monotonic() - started,
                "cpu_seconds": time.process_time() - used,
                "failures": {},
                "privacy": {"server_sees": seen},
            }
        )


def summarise_reference(entry: Entry) -> dict[str, Any]:
    """Average the runs of a reference method, as :func:`.entries.average`."""
    results = entry.results
    history = [
        {name: mean([row.get(name) for row in rows]) for name in rows[0]}
        for rows in zip(*(r["history"] for r in results), strict=False)
    ]
    return average(results, metrics={}, history=history, survivors=0)
