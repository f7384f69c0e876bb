"""One split of a table in the hands of a single owner: what reference methods learn from."""

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
        Classes; or the labels of a regression, those of the training rows in [-1, 1].
    classes : tuple of float
        All classes, ascending; empty for a regression.
    label_unit : float (default: 1.0)
        What a difference of 1 between scaled labels is in their own units; errors of a regression
        are reported in these.
    parties : tuple of (ndarray, ndarray)
        Training rows and columns of each party that could learn alone.
    """

    x: Floats
    y: Floats
    x_test: Floats
    y_test: Floats
    classes: tuple[float, ...]
    label_unit: float = 1.0
    parties: tuple[Holding, ...] = ()

    def targets(self) -> Floats:
        """Return targets of the training rows, shape (n, k): -1 and 1, or the labels."""
        return self._targets(self.y)

    def judged(self, outputs: Floats, *, scores: bool = True, level: float = 0.9) -> Judged:
        """Return what is counted of outputs for the held-out rows, as strategies count it.

        Parameters
        ----------
        outputs : ndarray, shape (m, k)
            As :meth:`targets` has them: the sign or the largest one decides.
        scores : bool (default: True)
            Whether they are scores, and not decisions.
        level : float
            Of intervals and sets.
        """
        rows, classes = len(self.y_test), len(self.classes)
        bound = float(max(1.0, *(np.abs(y).max() for y in (self.y, self.y_test))))
        bins = bins_of(rows, classes) if scores else 0
        yard = Yardstick(classes, outputs.shape[1], bound, bins)
        halves = calibrating(map(str, range(rows)))
        return Judged(yard, yard.count(outputs, self._targets(self.y_test), halves), level)

    def judge(self, outputs: Floats, *, scores: bool = True) -> dict[str, float]:
        """Return the metrics of outputs for the held-out rows, as strategies report them.

        Parameters
        ----------
        outputs : ndarray, shape (m, k)
            As :meth:`targets` has them.
        scores : bool (default: True)
            Whether they are scores, and not decisions.

        Returns
        -------
        dict
            See :meth:`fedkern_flwr.judging.figures.Judged.metrics`.
        """
        metrics = self.judged(outputs, scores=scores).metrics()
        return metrics | in_units(metrics, self.label_unit)

    def judge_classes(self, predicted: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics of predicted classes, or labels, of the held-out rows."""
        return self.judge(self._targets(predicted), scores=False)

    def check(self) -> None:
        """Refuse data that no model can be fitted to or judged by.

        Raises
        ------
        OptionError, TableError
        """
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
    """Return the test error: the share of wrong classes, or the RMSE in units of the labels."""
    if "test_rmse" in metrics:
        return metrics["test_rmse"]
    return 1.0 - metrics["test_accuracy"]
