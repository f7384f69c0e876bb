"""One split of a table in the hands of a single owner: what reference methods learn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.labels import count_outcomes, encode_classes, outcome_metrics

Floats = NDArray[np.float64]

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
    """

    x: Floats
    y: Floats
    x_test: Floats
    y_test: Floats
    classes: tuple[float, ...]
    label_unit: float = 1.0

    def targets(self) -> Floats:
        """Return targets of the training rows, shape (n, k): -1 and 1, or the labels."""
        return self._targets(self.y)

    def judge(self, outputs: Floats) -> dict[str, float]:
        """Return the metrics of outputs for the held-out rows, as strategies report them.

        Parameters
        ----------
        outputs : ndarray, shape (m, k)
            As :meth:`targets` has them: the sign or the largest one decides.

        Returns
        -------
        dict
            See :func:`fedkern_flwr.labels.outcome_metrics`.
        """
        classes = len(self.classes)
        bound = float(max(1.0, *(np.abs(y).max() for y in (self.y, self.y_test))))
        counts = count_outcomes(outputs, self._targets(self.y_test), classes, bound)
        metrics = outcome_metrics(counts, classes, bound)
        if not classes:
            metrics["test_rmse"] *= self.label_unit
        return metrics

    def judge_classes(self, predicted: NDArray[np.float64]) -> dict[str, float]:
        """Return the metrics of predicted classes, or labels, of the held-out rows."""
        return self.judge(self._targets(predicted))

    def check(self) -> None:
        """Refuse data that no model can be fitted to or judged by.

        Raises
        ------
        OptionError, TableError
        """
        if not len(self.y_test):
            raise OptionError(
                "no rows are held out to judge reference methods by",
                remedy="hold some out with --test-size",
            )
        if len(np.unique(self.y)) < 2:
            raise TableError(
                "all training rows have the same label", remedy="hold fewer rows out", party=_OWNER
            )

    def _targets(self, y: Floats) -> Floats:
        return encode_classes(y, self.classes, _OWNER) if self.classes else y[:, None]


def error_of(metrics: Mapping[str, float]) -> float:
    """Return the test error: the share of wrong classes, or the RMSE in units of the labels."""
    if "test_rmse" in metrics:
        return metrics["test_rmse"]
    return 1.0 - metrics["test_accuracy"]
