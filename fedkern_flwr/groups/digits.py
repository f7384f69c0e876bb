"""Sums of numbers of any size under the bound of a run: digits, each of which is summed.

Means of squares of incomes or of seconds since 1970 are far beyond what models are summed with.
Numbers below 2^20 are their own last digit, so that their sums are the same to the bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Digits of a number; the first may be as large as the bound.
DIGITS = 4
_BASE = 2.0**20


def to_digits(values: Floats) -> Floats:
    """Return the digits of numbers, the last first, shape (4 n,)."""
    found, rest = [], np.asarray(values, np.float64)
    for place in range(DIGITS - 1, 0, -1):
        unit = _BASE**place
        digit = np.trunc(rest / unit)
        rest = rest - digit * unit
        found.append(digit)
    return np.concatenate([rest, *reversed(found)])


def from_digits(sums: Floats) -> Floats:
    """Return the sums of numbers, of those of their digits, shape (4 n,)."""
    return np.asarray(_BASE ** np.arange(DIGITS) @ sums.reshape(DIGITS, -1))
