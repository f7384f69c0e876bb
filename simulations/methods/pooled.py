"""Pooled splits, for reference methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.judging.figures import Judged, Yardstick, bins_of, calibrating, in_units
from fedkern_flwr.labels import encode_classes

from ..run.data import Prepared
from ..run.entries import Entry, average, draw_label, mean

Floats = NDArray[np.float64]
#: Places of rows, and of columns.
Holding = tuple[NDArray[np.intp], NDArray[np.intp]]

_OWNER = "the pooled table"


@dataclass(frozen=True, eq=False)
class PooledSplit:
    """Training and held-out rows, scaled.

    Attributes
    ----------
    x, x_test : ndarray, shapes (n, d) and (m, d)
        Features in [0, 1].
    y, y_test : ndarray, shapes (n,) and (m,)
        Classes, or numbers with training rows in [-1, 1].
    classes : tuple of float
        All classes, ascending; empty for a regression.
    label_unit : float (default: 1.0)
        Unit of scaled labels; errors are reported in units of the label.
    parties : tuple of (ndarray, ndarray)
        Training rows and columns of each party, for local models.
    """

    x: Floats
    y: Floats
    x_test: Floats
    y_test: Floats
    classes: tuple[float, ...]
    label_unit: float = 1.0
    parties: tuple[Holding, ...] = ()

    def targets(self) -> Floats:
        """Return training targets, shape (n, k): -1 and 1, or numbers."""
        return self._targets(self.y)

    def judged(self, outputs: Floats, *, scores: bool = True, level: float = 0.9) -> Judged:
        """Count outputs for the held-out rows, as strategies do.

        Parameters
        ----------
        outputs : ndarray, shape (m, k)
            As :meth:`targets`: the sign or the largest one decides.
        scores : bool (default: True)
            Whether they are scores, not decisions.
        level : float
            Target coverage.
        """
        rows, classes = len(self.y_test), len(self.classes)
        bound = float(max(1.0, *(np.abs(y).max() for y in (self.y, self.y_test))))
        bins = bins_of(rows, classes) if scores else 0
        yard = Yardstick(classes, outputs.shape[1], bound, bins)
        halves = calibrating(map(str, range(rows)))
        return Judged(yard, yard.count(outputs, self._targets(self.y_test), halves), level)

    def judge(self, outputs: Floats, *, scores: bool = True) -> dict[str, float]:
        """Return metrics of outputs for the held-out rows, see :meth:`judged`."""
        metrics = self.judged(outputs, scores=scores).metrics()
        return metrics | in_units(metrics, self.label_unit)

    def judge_classes(self, predicted: NDArray[np.float64]) -> dict[str, float]:
        """Return metrics of predicted classes or numbers."""
        return self.judge(self._targets(predicted), scores=False)

    def check(self) -> None:
        """Refuse data without held-out rows or with a constant label."""
        if not len(self.y_test):
            raise OptionError(
                "no rows are held out to judge reference methods by", code="FK-HELD-OUT-NONE"
            )
        if len(np.unique(self.y)) < 2:
            raise TableError(
                "all training rows have the same label", party=_OWNER, code="FK-CLASSES-ONE"
            )

    def _targets(self, y: Floats) -> Floats:
        return encode_classes(y, self.classes, _OWNER) if self.classes else y[:, None]


def error_of(metrics: Mapping[str, float]) -> float:
    """Return the share of wrong classes, or the RMSE."""
    if "test_rmse" in metrics:
        return metrics["test_rmse"]
    return 1.0 - metrics["test_accuracy"]


# -- runs of references

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
