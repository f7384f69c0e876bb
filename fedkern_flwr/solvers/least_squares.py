"""Kernel regularised least squares on landmarks: the solution of the normal equations.

References
----------
Damiani, Rodina and Decherchi, "A Hybrid Federated Kernel Regularized Least Squares Algorithm",
2024, equations 2.9 and 2.10.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ..errors import OptionError

Floats = NDArray[np.float64]
Penalty = Literal["ridge", "rkhs"]


def regularized(gram: Floats, regularization: float, landmark_kernel: Floats | None) -> Floats:
    """Return K^T K + lambda I, or K^T K + lambda K_mm when the kernel of the landmarks is given."""
    if landmark_kernel is not None:
        return np.asarray(gram + regularization * landmark_kernel)
    out = gram.copy()
    out[np.diag_indices_from(out)] += regularization
    return out


def solve_equations(
    gram: Floats, right: Floats, regularization: float, landmark_kernel: Floats | None = None
) -> Floats:
    """Solve the normal equations.

    Parameters
    ----------
    gram : ndarray of float64, shape (m, m)
        K^T K.
    right : ndarray of float64, shape (m, k)
        K^T y for k right-hand sides.
    regularization : float
        lambda.
    landmark_kernel : ndarray of float64, shape (m, m), optional
        K_mm, for the penalty of the function's norm (eq. 2.10).

    Returns
    -------
    ndarray of float64, shape (m, k)
        (K^T K + lambda I)^-1 K^T y by Cholesky (eq. 2.9), or (K^T K + lambda K_mm)^+ K^T y with the
        pseudo-inverse, eigenvalues below m times the machine's precision of the largest counting
        as zero.

    Raises
    ------
    OptionError
        The matrix is not positive definite within the precision of the numbers.
    """
    matrix = regularized(gram, regularization, landmark_kernel)
    if landmark_kernel is not None:
        return np.asarray(linalg.pinvh(matrix) @ right)
    try:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(matrix, lower=True), right))
    except linalg.LinAlgError:
        raise OptionError(
            f"the normal equations are singular at regularization {regularization:g}",
            remedy="use a larger --regularization",
            code="FK-EQUATIONS-SINGULAR",
        ) from None


def check_regularization(value: float) -> None:
    """Refuse a lambda that is not positive.

    Raises
    ------
    OptionError
    """
    if not 0.0 < value < np.inf:
        raise OptionError(
            f"regularization is {value}", remedy="use a positive number", code="FK-OPTION-RANGE"
        )
