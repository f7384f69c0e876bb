"""What an encoder knows of a column: facts that are measured on rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Values are far if the range is so many times as wide as without a hundredth at each end.
FAR = 3.0
#: Values at equal ranks that are kept of a column; of fewer rows all values are.
KNOTS = 1000
#: A category of fewer rows is one of the others.
MIN_ROWS = 5


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
        cut = 1 + len(self.knots) // 100
        near = self.knots[cut:-cut]
        return bool(near) and self.greatest - self.least > FAR * (near[-1] - near[0])


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
