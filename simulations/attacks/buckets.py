"""Names of categories from how many rows each has, as the server sees them of a common encoder.

The names are hashed under a secret of the holders, their counts are not hidden. Who knows how
frequent the categories of a column are in the population puts the names in that order
(a frequency attack, as on deterministic encryption: Naveed, Kamara and Wright, "Inference attacks
on property-preserving encrypted databases", CCS 2015).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

#: Blood groups, with shares as among donors in the United States (American Red Cross).
BLOOD_GROUPS = {
    "O+": 0.374,
    "A+": 0.357,
    "B+": 0.085,
    "O-": 0.066,
    "A-": 0.063,
    "AB+": 0.034,
    "B-": 0.015,
    "AB-": 0.006,
}


def names_of(counts: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the most likely category of each count, by its share of the population.

    Of all ways to give each count a category of its own it is the likeliest one, if rows are drawn
    at random.
    """
    likely = counts[:, None] * np.log(shares)
    return np.asarray(linear_sum_assignment(likely, maximize=True)[1])


def named_rows(rows: int, seed: int) -> float:
    """Return the share of so many random rows whose blood group the server names."""
    shares = np.array(list(BLOOD_GROUPS.values()))
    counts = np.random.default_rng(seed).multinomial(rows, shares / shares.sum())
    right = names_of(counts, shares) == np.arange(len(shares))
    return float(counts[right].sum() / rows)
