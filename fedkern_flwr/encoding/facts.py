"""What an encoder knows of a column: facts that are measured on rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Values are far if the range is so many times as wide as without a hundredth at each end,
#: or as the middle half of the values.
FAR, SKEWED = 3.0, 10.0
#: Values at equal ranks that are kept of a column; of fewer rows all values are.
KNOTS = 1000
#: A category of fewer rows is one of the others.
MIN_ROWS = 5
#: Medians that differ by more than this factor are noted: units differ by more.
UNLIKE = 8.0


@dataclass(frozen=True)
class NumberFacts:
    """What is known of numbers.

    Attributes
    ----------
    rows, missing : int
        Rows, and those of them without a value.
    least, median, greatest, mean, deviation : float
        Of the values; 0 where there are none.
    knots : tuple of float
        Values at equal ranks, ascending, from the least to the greatest.
    """

    rows: int
    missing: int
    least: float
    median: float
    greatest: float
    mean: float
    deviation: float
    knots: tuple[float, ...]

    @classmethod
    def measure(cls, values: Floats) -> Self:
        """Measure values, NaN or infinite where one is missing."""
        known = np.sort(values[np.isfinite(values)])
        n = len(known)
        if not n:
            return cls(len(values), len(values), 0.0, 0.0, 0.0, 0.0, 0.0, ())
        places = np.rint(np.linspace(0, n - 1, min(n, KNOTS))).astype(np.intp)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(known.mean()), float(known.std())
        return cls(
            rows=len(values),
            missing=len(values) - n,
            least=float(known[0]),
            median=float(known[(n - 1) // 2] / 2.0 + known[n // 2] / 2.0),
            greatest=float(known[-1]),
            mean=mean,
            deviation=deviation,
            knots=tuple(known[places].tolist()),
        )

    @property
    def constant(self) -> bool:
        """Whether there is no second value."""
        return self.least == self.greatest

    @property
    def far(self) -> bool:
        """Whether some values are so far from the others that their range says little."""
        cut, half = 1 + len(self.knots) // 100, len(self.knots) // 4
        near, wide = self.knots[cut:-cut], self.greatest - self.least
        middle = self.knots[-half - 1] - self.knots[half]
        skewed = wide > SKEWED * middle > 0.0  # where half of the values are one it says nothing
        return bool(near) and (skewed or wide > FAR * (near[-1] - near[0]))


def other_scale(values: Floats, facts: NumberFacts) -> float:
    """Return how many times those of all the values of a party are, 0 if they are alike.

    They are not alike where the median of all is outside the middle half of the party's values, and
    their medians differ by more than a factor of :data:`UNLIKE`: maybe it has another unit.
    """
    known = values[np.isfinite(values)]
    if len(known) < MIN_ROWS or not facts.median:
        return 0.0
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    times = float(middle / facts.median)
    unlike = times > UNLIKE or 0.0 < times < 1.0 / UNLIKE
    return times if unlike and not low <= facts.median <= high else 0.0


@dataclass(frozen=True)
class CategoryFacts:
    """What is known of categories.

    Attributes
    ----------
    rows, missing : int
        Rows, and those of them without a category.
    counts : dict
        Category -> rows.
    """

    rows: int
    missing: int
    counts: dict[str, int]

    @classmethod
    def measure(cls, codes: Floats, names: Sequence[str]) -> Self:
        """Measure positions among names, NaN where a category is missing."""
        known = codes[np.isfinite(codes)].astype(np.intp)
        counts = np.bincount(known, minlength=len(names)).tolist()
        found = {name: count for name, count in zip(names, counts, strict=True) if count}
        return cls(len(codes), len(codes) - len(known), found)
