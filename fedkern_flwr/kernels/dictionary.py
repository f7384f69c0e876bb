"""Kernel functions and dictionaries of bandwidths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Floats = NDArray[np.float64]


def bandwidth_dictionary(kernels: int) -> Floats:
    """Return ``kernels`` bandwidths spread evenly in the logarithm over [1e-2, 1e2].

    For 51 kernels these are the paper's s_i = 10^((2i - 52) / 25), i = 1..51.

    Parameters
    ----------
    kernels : int
        Number N of kernels, at least 1; a single kernel has bandwidth 1.

    Returns
    -------
    ndarray of float64, shape (N,)

    References
    ----------
    Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels",
    NeurIPS 2022, section 4.
    """
    if kernels < 1:
        raise OptionError(f"kernels is {kernels}", remedy="use at least 1", code="FK-OPTION-RANGE")
    exponents = np.linspace(-2.0, 2.0, kernels) if kernels > 1 else np.zeros(1)
    return np.asarray(10.0**exponents)


def gaussian_kernel(x: Floats, y: Floats, bandwidth: float) -> Floats:
    """Return exp(-|x_i - y_j|^2 / (2 s^2)) for all pairs of rows.

    Parameters
    ----------
    x, y : ndarray, shapes (n, d) and (m, d)
        The rows.
    bandwidth : float
        The bandwidth s > 0, in the units of x.

    Returns
    -------
    ndarray of float64, shape (n, m)
    """
    squared = (x**2).sum(1)[:, None] + (y**2).sum(1)[None, :] - 2.0 * x @ y.T
    return np.asarray(np.exp(-np.maximum(squared, 0.0) / (2.0 * bandwidth**2)))
