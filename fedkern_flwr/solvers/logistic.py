"""The logistic function, which few runs need: SciPy is imported when it is called."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def expit(x: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / (1 + exp(-x)) of the shape of ``x``."""
    from scipy import special

    return np.asarray(special.expit(x))
