"""Scale by public statistics: rows into the unit ball and labels to [0, 1]; or columns by ranges.

Statistics from secure sums (:mod:`fedkern_flwr.align.column_ranges`) exclude a few values, so their
files have ``"clip": true``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import TableError
from .plain_text import read_json
from .tables.table import Table


@dataclass(frozen=True, eq=False)
class Scaling:
    """Public statistics that scale every row into the unit ball and the labels to [0, 1].

    Parameters
    ----------
    x_min, x_max : NDArray[np.float64], shape (d,)
        Smallest and largest value of each feature, in the units of the data.
    row_norm : float
        Largest Euclidean norm of a row with features scaled to [0, 1].
    y_min, y_max : float
        Smallest and largest label, in the units of the data.
    clip : bool (default: False)
        Whether to clip features and labels of training rows to these ranges. Features of test rows
        are always clipped, labels of test rows never.
    """

    x_min: NDArray[np.float64]
    x_max: NDArray[np.float64]
    row_norm: float
    y_min: float
    y_max: float
    clip: bool = False

    @classmethod
    def fit(cls, table: Table) -> Scaling:
        """Measure the training rows; without labels the label range is [0, 1].

        Raises
        ------
        TableError
            The table has no rows or the label is constant.
        """
        if table.rows == 0:
            raise TableError(
                "the table has no rows to scale by",
                remedy="give a table with data",
                code="FK-ROWS-NONE",
            )
        y_min, y_max = 0.0, 1.0
        if table.y is not None:
            y_min, y_max = float(table.y.min()), float(table.y.max())
        if y_min == y_max:
            raise TableError(
                "the label is constant", remedy="choose a label that varies", code="FK-CLASSES-ONE"
            )
        ranges = cls(table.x.min(axis=0), table.x.max(axis=0), 1.0, y_min, y_max)
        largest = float(np.linalg.norm(ranges._unit_interval(table.x), axis=1).max())
        return replace(ranges, row_norm=largest or 1.0)

    def apply(self, table: Table) -> Table:
        """Scale a table; features of test rows are clipped to [0, 1] before the norm.

        Raises
        ------
        TableError
            The number of columns differs from that of the statistics.
        """
        if table.x.shape[1] != self.x_min.size:
            raise TableError(
                f"the table has {table.x.shape[1]} columns but the scaling has {self.x_min.size}",
                remedy="use the columns the scaling was fitted on",
                code="FK-COLUMNS-DIFFER",
            )
        x_test = table.x_test
        x, y = self.rows(table.x, table.y if table.y is not None else np.zeros(table.rows))
        return replace(
            table,
            x=x,
            y=None if table.y is None else y,
            x_test=None if x_test is None else self.new_rows(x_test),
            y_test=None if table.y_test is None else self._scale_y(table.y_test),
        )

    def rows(
        self, x: NDArray[np.float64], y: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scale features, shape (n, d), and labels, shape (n,), of training rows."""
        if self.clip:
            x, y = np.clip(x, self.x_min, self.x_max), np.clip(y, self.y_min, self.y_max)
        return self._unit_interval(x) / self.row_norm, self._scale_y(y)

    def new_rows(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scale features of test rows, clipped to [0, 1] before the norm."""
        # Clipping first cannot overflow where a column is almost constant.
        return self._unit_interval(np.clip(x, self.x_min, self.x_max)) / self.row_norm

    def inverse_y(self, y: ArrayLike) -> NDArray[np.float64]:
        """Convert scaled labels or predictions to the units of the data."""
        return np.asarray(y, dtype=np.float64) * (self.y_max - self.y_min) + self.y_min

    def to_json(self) -> str:
        """Return the statistics as JSON, with exact numbers."""
        lists = {"x_min": self.x_min.tolist(), "x_max": self.x_max.tolist()}
        return json.dumps(vars(self) | lists)

    @classmethod
    def from_json(cls, text: str) -> Scaling:
        """Read the result of :meth:`to_json`.

        Raises
        ------
        TableError
            The text is no such JSON, or a range is empty or not finite.
        """
        try:
            content = read_json(text)
            x_min, x_max = (np.array(content[k], dtype=np.float64) for k in ("x_min", "x_max"))
            row_norm, y_min, y_max = (float(content[k]) for k in ("row_norm", "y_min", "y_max"))
            clip = _flag(content)
        except (ValueError, TypeError, KeyError):
            raise TableError(
                "this is not a scaling", remedy="give a scaling.json", code="FK-FILE-FORMAT"
            ) from None
        if x_min.ndim != 1 or x_min.shape != x_max.shape:
            raise TableError(
                "the scaling has not one least and one greatest value per column",
                remedy="write x_min and x_max as lists of equal length",
                code="FK-RANGES-WRONG",
            )
        proper = np.isfinite([*x_min, *x_max, row_norm, y_min, y_max]).all()
        if not (proper and (x_min <= x_max).all() and row_norm > 0.0 and y_min < y_max):
            raise TableError(
                "a range of the scaling is empty or infinite, or its row_norm is not positive",
                remedy="write x_min up to x_max, y_min below y_max",
                code="FK-RANGES-WRONG",
            )
        return cls(x_min, x_max, row_norm, y_min, y_max, clip)

    def _unit_interval(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        span = self.x_max - self.x_min
        return (x - self.x_min) / np.where(span > 0, span, 1.0)

    def _scale_y(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        return (y - self.y_min) / (self.y_max - self.y_min)


class Ranges(NamedTuple):
    """Ranges of columns.

    Attributes
    ----------
    low, high : ndarray of float64, shape (d,)
        Least and greatest value of each column, in the units of the data.
    clip : bool
        Whether values beyond them are clipped; otherwise refused.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clip: bool


_RANGES = 'write {"column": [least, greatest], ...}'


def ranges_to_json(
    columns: Sequence[str], low: ArrayLike, high: ArrayLike, *, clip: bool = False
) -> str:
    """Return ranges as JSON for :func:`read_ranges`, with exact numbers."""
    pairs = np.stack([np.asarray(low, np.float64), np.asarray(high, np.float64)], axis=1).tolist()
    ranges = dict(zip(columns, pairs, strict=True))
    return json.dumps({"ranges": ranges, "clip": True} if clip else ranges)


def read_ranges(columns: Sequence[str], ranges_file: str | Path) -> Ranges:
    """Read the ranges of some columns, in their order.

    Parameters
    ----------
    columns : sequence of str
        Names of the columns; others in the file are ignored.
    ranges_file : path
        JSON, ``{"column": [least, greatest], ...}``; or ``{"ranges": {...}, "clip": true}``.

    Raises
    ------
    TableError
        The file cannot be read, lacks a column, or has an empty range.
    """
    try:
        content = read_json(Path(ranges_file).read_text())
        limits, clip = content, False
        if isinstance(content.get("ranges"), dict):
            limits, clip = content["ranges"], _flag(content)
        pairs = np.array([limits[name] for name in columns], np.float64).reshape(len(columns), 2)
    except KeyError as error:
        raise TableError(
            f"there is no range of column {error}", remedy=_RANGES, code="FK-RANGES-MISSING"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError, OverflowError):
        raise TableError(
            "the file of ranges cannot be read", remedy=_RANGES, code="FK-FILE-READ"
        ) from None
    low, high = pairs.T
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    if not (np.isfinite(width) & (low < high)).all():
        raise TableError("a range is empty or infinite", remedy=_RANGES, code="FK-RANGES-WRONG")
    return Ranges(low, high, clip)


def scale_by_ranges(
    x: ArrayLike, columns: Sequence[str], ranges_file: str | Path
) -> NDArray[np.float64]:
    """Scale each column to [0, 1] by its range.

    Parameters
    ----------
    x : array, shape (n, d)
        Rows in the units of the data; NaN stays NaN.
    columns : sequence of str
        Names of the d columns.
    ranges_file : path
        See :func:`read_ranges`. With ``"clip": true`` values are clipped to the range.

    Raises
    ------
    TableError
        The file cannot be used, or values are outside a range that does not clip.
    """
    values = np.asarray(x, np.float64)
    low, high, clip = read_ranges(columns, ranges_file)
    if values.ndim != 2 or values.shape[1] != len(columns):
        raise TableError(
            f"rows of shape {values.shape} have {len(columns)} names of columns",
            remedy="name each column once",
            code="FK-COLUMN-NAMES",
        )
    if clip:
        values = np.clip(values, low, high)
    else:
        beyond = ((values < low) | (values > high)).sum(axis=0)
        for name, count in zip(columns, beyond.tolist(), strict=True):
            if count:
                raise TableError(
                    f"column {name!r} has {count} values beyond its range",
                    remedy='declare a wider range, or write {"ranges": {...}, "clip": true} to '
                    "have them clipped",
                    code="FK-RANGES-OUTSIDE",
                )
    return np.asarray((values - low) / (high - low))


def _flag(content: dict[str, Any]) -> bool:
    clip = content.get("clip", False)
    if not isinstance(clip, bool):
        raise TypeError
    return clip
