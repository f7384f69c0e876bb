"""Pooled splits, for reference methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.judging.figures import Judged, Yardstick, bins_of, calibrating, in_units
from fedkern_flwr.labels import encode_classes

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
