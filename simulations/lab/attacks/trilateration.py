"""Rows by their distances to landmarks that are known, see :mod:`.distances`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError

from .gradient_inversion import Floats

#: Misfit below which a solution explains what the server saw: right ones reach 1e-11, and the
#: nearest that Gauss-Newton was seen to miss stayed at 2e-6.
EXPLAINED = 1e-8
#: Singular values of float64 below this, relative to the largest, are rounding.
ROUNDING = 1e-11


@dataclass(frozen=True)
class Trilateration:
    """Rows and widths computed from a kernel with known landmarks.

    Attributes
    ----------
    x : ndarray, shape (n, d)
    gamma : ndarray, shape (m,)
    misfit : float
        Norm of what they leave unexplained of the exponents, relative to the exponents.
    consistent : bool
        Whether that is rounding, with more numbers explained than found, so that the server knows
        the rows to be right. If not, they are a guess.
    """

    x: Floats
    gamma: Floats
    misfit: float
    consistent: bool


def distances_from_kernel(kernel: NDArray[np.floating[Any]], gamma: float | Floats) -> Floats:
    """Invert the Gaussian kernel: D = -log(K) / gamma.

    Parameters
    ----------
    kernel : ndarray, shape (n, m)
        Values in [0, 1].
    gamma : float or ndarray, shape (m,)
        Known width, or that of each landmark; 1 gives the exponents gamma_j D[i, j].

    Returns
    -------
    ndarray, shape (n, m)
        Squared distances; infinite where the kernel underflowed, for there nothing is known but a
        lower bound. Of a value K they are known to about eps / gamma, whatever K is.

    Raises
    ------
    OptionError
        If the values cannot be those of a Gaussian kernel, or gamma is not positive.
    """
    values = np.asarray(kernel)
    precision = np.finfo(values.dtype)
    if not ((values >= 0.0) & (values <= 1.0 + 10.0 * precision.eps)).all():
        raise OptionError("values of a Gaussian kernel lie between 0 and 1, these do not")
    if not np.all(np.asarray(gamma) > 0.0):
        raise OptionError("gamma must be positive")
    seen = values >= precision.tiny  # smaller ones have lost their digits
    logarithm = np.log(np.where(seen, np.minimum(values, 1.0), 1.0).astype(np.float64))
    return np.where(seen, -logarithm / gamma, np.inf)


def trilaterate(distances: Floats, landmarks: Floats) -> Floats:
    """Compute rows from their squared distances to known landmarks.

    With the landmarks' mean as origin, D[i, j] less its mean over j is -2 x_i^T w_j plus what is
    known: m linear equations for x_i. O(n m d).

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Infinite ones are left out.
    landmarks : ndarray, shape (m, d)
        Their positions.

    Returns
    -------
    ndarray, shape (n, d)
        Exact where the landmarks span all dimensions, which takes m > d. Else exact within what
        they span, and the landmarks' mean across it. NaN for a row without finite distance.

    Raises
    ------
    OptionError
        If the shapes differ.
    """
    _check(distances, landmarks)
    finite = np.isfinite(distances)
    if finite.all():
        return _trilaterate(distances, landmarks)
    x = np.full((len(distances), landmarks.shape[1]), np.nan)
    for i in np.flatnonzero(finite.any(axis=1)):
        x[i] = _trilaterate(distances[i, finite[i]][None], landmarks[finite[i]])[0]
    return x


def trilaterate_unknown_width(exponents: Floats, landmarks: Floats) -> Trilateration:
    """Compute rows and the one gamma from gamma D and known landmarks.

    A combination v of landmarks with sum_j v_j = 0 and sum_j v_j w_j = 0 has sum_j v_j D[i, j] =
    sum_j v_j |w_j|^2: rows cancel, which leaves a linear equation for 1 / gamma. O(n m^2).

    Parameters
    ----------
    exponents : ndarray, shape (n, m)
        -log K, finite.
    landmarks : ndarray, shape (m, d)
        Their positions.

    Raises
    ------
    OptionError
        If the shapes differ, exponents are infinite, or m < d + 2: then no such v exists.
    """
    v, known = _cancelling(exponents, landmarks)
    seen = exponents @ v
    inverse = (seen @ known).sum() / max((seen**2).sum(), np.finfo(np.float64).tiny)
    return _with_widths(exponents, landmarks, np.full(exponents.shape[1], inverse), unknowns=1)


def trilaterate_secret_widths(exponents: Floats, landmarks: Floats) -> Trilateration:
    """Compute rows and the gamma_j of every landmark from gamma_j D[i, j] and known landmarks.

    As in :func:`trilaterate_unknown_width`, sum_j v_j (1 / gamma_j) E[i, j] = sum_j v_j |w_j|^2
    for every row i and m - d - 1 combinations v: a linear system for the m numbers 1 / gamma_j.
    E has rank d + 2, so that as many combinations of its rows say all. O(n m^2 + d m^3).

    Parameters
    ----------
    exponents : ndarray, shape (n, m)
        E = -log K, finite. Of eq. 4.1 as printed, with distances not squared: (-log K)^2.
    landmarks : ndarray, shape (m, d)
        Their positions.

    Raises
    ------
    OptionError
        If the shapes differ, exponents are infinite, or m < d + 2.
    """
    v, known = _cancelling(exponents, landmarks)
    left, size, right = np.linalg.svd(exponents, full_matrices=False)
    few = slice(landmarks.shape[1] + 2)
    rows, weights = size[few, None] * right[few], left[:, few].sum(axis=0)
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0.0] = 1.0
    system = (v.T * (rows / scale)[:, None]).reshape(-1, exponents.shape[1])
    inverse = np.linalg.lstsq(system, np.outer(weights, known).ravel(), rcond=ROUNDING)[0] / scale
    return _with_widths(exponents, landmarks, inverse, unknowns=exponents.shape[1])


def _check(distances: Floats, landmarks: Floats) -> None:
    if distances.ndim != 2 or landmarks.ndim != 2 or distances.shape[1] != len(landmarks):
        raise OptionError(
            f"distances of shape {distances.shape} do not fit landmarks of shape {landmarks.shape}",
            remedy="give (n, m) and (m, d)",
        )


def _trilaterate(distances: Floats, landmarks: Floats) -> Floats:
    origin = landmarks.mean(axis=0)
    w = landmarks - origin
    linear = (distances - (w**2).sum(axis=1)) / -2.0  # x_i^T w_j, and a constant per row
    linear -= linear.mean(axis=1, keepdims=True)
    return np.asarray(origin + np.linalg.lstsq(w, linear.T, rcond=ROUNDING)[0].T)


def _cancelling(exponents: Floats, landmarks: Floats) -> tuple[Floats, Floats]:
    """Return combinations of landmarks in which rows cancel, (m, m - d - 1), and theirs of |w|^2.

    Around the landmarks' mean, which changes both sides alike.
    """
    _check(exponents, landmarks)
    refuse_infinite(exponents)
    m, d = landmarks.shape
    if m < d + 2:
        raise OptionError(
            f"{m} landmarks in {d} dimensions fix no width",
            remedy=f"it takes {d + 2} or more",
        )
    w = landmarks - landmarks.mean(axis=0)
    basis, _ = np.linalg.qr(np.column_stack([np.ones(m), w]), mode="complete")
    v = np.asarray(basis[:, d + 1 :])
    return v, (w**2).sum(axis=1) @ v


def refuse_infinite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise OptionError(
            "infinite or missing distances", remedy="leave out the rows or landmarks that have any"
        )


def _with_widths(
    exponents: Floats, landmarks: Floats, inverse: Floats, *, unknowns: int
) -> Trilateration:
    """Trilaterate with given 1 / gamma_j and see what that explains."""
    x = _trilaterate(exponents * inverse, landmarks)
    with np.errstate(divide="ignore"):
        gamma = np.where(inverse == 0.0, np.inf, 1.0 / inverse)
    explained = cdist(x, landmarks, "sqeuclidean")
    # as distances: a wrong width cannot hide behind large ones
    size = np.linalg.norm(exponents * inverse, axis=0)
    missing = np.linalg.norm(exponents * inverse - explained, axis=0)
    misfit = float(np.sqrt(np.mean((missing / np.maximum(size, np.finfo(np.float64).tiny)) ** 2)))
    surplus = exponents.size > x.size + unknowns
    return Trilateration(
        x, gamma, misfit, bool(surplus and misfit < EXPLAINED and (inverse > 0.0).all())
    )
