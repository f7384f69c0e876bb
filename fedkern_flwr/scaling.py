"""Scaling by public statistics: rows into the unit ball, labels into [0, 1]."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import TableError
from .tables import Table


@dataclass(frozen=True, eq=False)
class Scaling:
    """Public statistics that put every row in the unit ball and the labels in [0, 1].

    Parameters
    ----------
    x_min, x_max : NDArray[np.float64], shape (d,)
        Smallest and largest value of each feature, in the units of the data.
    row_norm : float
        Largest Euclidean norm of a row after its features were scaled to [0, 1].
    y_min, y_max : float
        Smallest and largest label, in the units of the data.
    """

    x_min: NDArray[np.float64]
    x_max: NDArray[np.float64]
    row_norm: float
    y_min: float
    y_max: float

    @classmethod
    def fit(cls, table: Table) -> Scaling:
        """Measure the training rows; without labels the label range is [0, 1].

        Raises
        ------
        TableError
            If the table has no rows or the label is constant.
        """
        if table.rows == 0:
            raise TableError("the table has no rows to scale by", remedy="give a table with data")
        y_min, y_max = 0.0, 1.0
        if table.y is not None:
            y_min, y_max = float(table.y.min()), float(table.y.max())
        if y_min == y_max:
            raise TableError("the label is constant", remedy="choose a label that varies")
        ranges = cls(table.x.min(axis=0), table.x.max(axis=0), 1.0, y_min, y_max)
        largest = float(np.linalg.norm(ranges._unit_interval(table.x), axis=1).max())
        return replace(ranges, row_norm=largest or 1.0)

    def apply(self, table: Table) -> Table:
        """Scale a table; features of test rows are clipped to [0, 1] before the norm.

        Raises
        ------
        TableError
            If the table has another number of columns than the statistics.
        """
        if table.x.shape[1] != self.x_min.size:
            raise TableError(
                f"the table has {table.x.shape[1]} columns but the scaling has {self.x_min.size}",
                remedy="use the columns the scaling was fitted on",
            )
        x_test = table.x_test
        if x_test is not None:
            # Clipping first cannot overflow where a column is almost constant.
            x_test = self._unit_interval(np.clip(x_test, self.x_min, self.x_max)) / self.row_norm
        return replace(
            table,
            x=self._unit_interval(table.x) / self.row_norm,
            y=None if table.y is None else self._scale_y(table.y),
            x_test=x_test,
            y_test=None if table.y_test is None else self._scale_y(table.y_test),
        )

    def inverse_y(self, y: ArrayLike) -> NDArray[np.float64]:
        """Return scaled labels or predictions to the units of the data."""
        return np.asarray(y, dtype=np.float64) * (self.y_max - self.y_min) + self.y_min

    def to_json(self) -> str:
        """Return the statistics as JSON; every number survives exactly."""
        lists = {"x_min": self.x_min.tolist(), "x_max": self.x_max.tolist()}
        return json.dumps(vars(self) | lists)

    @classmethod
    def from_json(cls, text: str) -> Scaling:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        TableError
            If the text is not such JSON.
        """
        try:
            content = json.loads(text)
            x_min, x_max = (np.array(content[k], dtype=np.float64) for k in ("x_min", "x_max"))
            numbers = [float(content[k]) for k in ("row_norm", "y_min", "y_max")]
        except (ValueError, TypeError, KeyError):
            raise TableError("this is not a scaling", remedy="give a scaling.json") from None
        return cls(x_min, x_max, *numbers)

    def _unit_interval(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        span = self.x_max - self.x_min
        return (x - self.x_min) / np.where(span > 0, span, 1.0)

    def _scale_y(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        return (y - self.y_min) / (self.y_max - self.y_min)
