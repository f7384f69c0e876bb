"""Rows by their distances to landmarks that are known, see :mod:`.distances`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError

from .phases import Floats

#: Misfit below which a solution explains what the server saw: right ones reach 1e-11, and the
#: nearest that Gauss-Newton was seen to miss stayed at 2e-6.
EXPLAINED = 1e-8
#: Singular values of float64 below this, relative to the largest, are rounding.
ROUNDING = 1e-11


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


def trilaterate_secret_widths(exponents: Floats, landmarks: Floats) -> Floats:
    """Compute rows from gamma_j D[i, j] and known landmarks, each with a secret gamma_j (eq. 4.1).

    A combination v of landmarks with sum_j v_j = 0 and sum_j v_j w_j = 0 has sum_j v_j D[i, j] =
    sum_j v_j |w_j|^2: rows cancel. With E = (gamma_j D[i, j]) that is a linear system for the m
    numbers 1 / gamma_j. E has rank d + 2, so that as many combinations of its rows say all.

    Parameters
    ----------
    exponents : ndarray, shape (n, m)
        E = -log K, finite. Of eq. 4.1 as printed, with distances not squared: (-log K)^2.
    landmarks : ndarray, shape (m, d)
        Their positions.

    Returns
    -------
    ndarray, shape (n, d)

    Raises
    ------
    OptionError
        If the shapes differ, exponents are infinite, or m < d + 2: then no such v exists.
    """
    _check(exponents, landmarks)
    refuse_infinite(exponents)
    m, d = landmarks.shape
    if m < d + 2:
        raise OptionError(f"{m} landmarks in {d} dimensions fix no width", remedy=f"use {d + 2}")
    w = landmarks - landmarks.mean(axis=0)  # changes both sides alike
    basis, _ = np.linalg.qr(np.column_stack([np.ones(m), w]), mode="complete")
    v = basis[:, d + 1 :]
    left, size, right = np.linalg.svd(exponents, full_matrices=False)
    few = slice(d + 2)
    rows, weights = size[few, None] * right[few], left[:, few].sum(axis=0)
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0.0] = 1.0
    system = (v.T * (rows / scale)[:, None]).reshape(-1, m)
    right_side = np.outer(weights, (w**2).sum(axis=1) @ v).ravel()
    inverse = np.linalg.lstsq(system, right_side, rcond=ROUNDING)[0] / scale
    return _trilaterate(exponents * inverse, landmarks)


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


def refuse_infinite(values: Floats) -> None:
    if not np.isfinite(values).all():
        raise OptionError(
            "infinite or missing distances", remedy="leave out the rows or landmarks that have any"
        )
