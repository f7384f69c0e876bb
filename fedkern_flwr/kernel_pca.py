"""Compute kernel principal components of random features from sums over rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .exchange import Sum

Floats = NDArray[np.float64]

#: How far a row that takes another's place moves :func:`moments`, of rows of length one. With the
#: inner product c of the two the square is 2 - 2 c of the sum of the rows, and of the triangle
#: (1 + 1 / D) (1 - c^2), see :func:`~fedkern_flwr.privacy.accounting.ridge`: together at most 4.5,
#: for D = 1 and c = -1 / 2.
SENSITIVITY = math.sqrt(4.5)
MOMENTS = Sum("moments", bound=1.0, sensitivity=SENSITIVITY, products="sum")
#: Of held-out rows: two numbers in [0, 4].
REST_SENSITIVITY = math.sqrt(2.0) * 4.0
REST = Sum("rest", bound=4.0, held_out=True, sensitivity=REST_SENSITIVITY)


def moments(z: Floats) -> dict[str, Floats | int]:
    """Return number, sum and upper triangle of the second moments of rows, shape (n, w)."""
    upper = (z.T @ z)[np.triu_indices(z.shape[1])]
    return {"rows": len(z), "sum": z.sum(axis=0), "products": upper}


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    return {"rows": (), "sum": (width,), "products": (width * (width + 1) // 2,)}


def principal(total: Mapping[str, Floats], components: int) -> tuple[Floats, Floats, Floats]:
    """Return mean, components and explained variance ratios.

    Parameters
    ----------
    total : mapping
        :func:`moments` summed over all rows.
    components : int
        k, number of components.

    Returns
    -------
    (ndarray of shape (w,), ndarray of shape (k, w), ndarray of shape (k,))
        The largest entry of each component is positive, which fixes its sign.
    """
    rows = max(float(total["rows"]), 1.0)  # it may have noise
    mean = total["sum"] / rows
    mean = mean / max(1.0, float(np.linalg.norm(mean)))
    square = np.zeros((len(mean), len(mean)))
    square[np.triu_indices(len(mean))] = total["products"]
    covariance = (square + np.triu(square, 1).T) / rows - np.outer(mean, mean)
    values, vectors = np.linalg.eigh(covariance)
    best = vectors[:, ::-1][:, :components].T
    largest = np.abs(best).argmax(axis=1)
    best *= np.sign(best[np.arange(len(best)), largest])[:, None]
    whole = 1.0 - float(mean @ mean)  # rows have length one
    shares = np.maximum(values[::-1][:components], 0.0) / max(whole, 1e-12)
    shares /= max(1.0, float(shares.sum()))
    return mean, best, shares
