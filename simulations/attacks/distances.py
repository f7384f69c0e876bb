"""Rows, or the distances among them, from their squared distances to landmarks.

The server of FedCG's naive protocol sees K[i, j] = exp(-gamma |x_i - w_j|^2) for n rows x_i and m
landmarks w_j. The logarithm gives the squared distances

    D[i, j] = |x_i|^2 - 2 x_i^T w_j + |w_j|^2

and these are bilinear in (|x_i|^2, x_i, 1) and (1, w_j, |w_j|^2). What follows depends on what the
server knows:

1. the landmarks, :func:`trilaterate`: differences of distances are linear in x_i, so that d + 1
   landmarks in general position give every row, each on its own;
2. gamma but not the landmarks, :func:`distances_by_svd`: D without its means is -2 X W^T, which
   gives X but for a linear map A, and the means of D, quadratic in X, give A A^T. These are the
   rows up to a motion: exact with m >= d + 1 and n > (d + 1) (d + 2) / 2. For fewer rows it is a
   guess that supposes landmarks scattered alike in all directions, which correlates with the truth
   by 0.96 and 0.995 on Sonar (d = 60) and Ionosphere (d = 34) with 100 uniform landmarks.

Sources: follows from eq. 2.9 and 4.1 of FedCG; the means as linear equations for A A^T are metric
unfolding, Schönemann, "On Metric Multidimensional Unfolding", Psychometrika 35, 1970.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError

from .phases import Floats

#: What is missing of the means of rows, relative to all means, is rounding below this.
EXPLAINED = 1e-8
#: Singular values of float64 below this, relative to the largest, are rounding.
ROUNDING = 1e-11


def trilaterate(distances: Floats, landmarks: Floats) -> Floats:
    """Compute rows from their squared distances to known landmarks.

    With the landmarks' mean as origin, D[i, j] less its mean over j is -2 x_i^T w_j plus what is
    known: m linear equations for x_i. O(n m d).

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Finite.
    landmarks : ndarray, shape (m, d)
        Their positions.

    Returns
    -------
    ndarray, shape (n, d)
        Exact where the landmarks span all dimensions, which takes m > d. Else exact within what
        they span, and the landmarks' mean across it.

    Raises
    ------
    OptionError
        If the shapes differ, or distances are infinite.
    """
    _check(distances, landmarks)
    origin = landmarks.mean(axis=0)
    w = landmarks - origin
    linear = (distances - (w**2).sum(axis=1)) / -2.0  # x_i^T w_j, and a constant per row
    linear -= linear.mean(axis=1, keepdims=True)
    return np.asarray(origin + np.linalg.lstsq(w, linear.T, rcond=ROUNDING)[0].T)


def distances_by_svd(distances: Floats) -> Floats:
    """Compute the distances among rows from their squared distances to unknown landmarks.

    1. D less its row and column means is -2 X W^T of centred X and W. Its singular value
       decomposition, of rank r, gives X = P A with an unknown (r, r) matrix A.
    2. With M = A A^T, u = A w and w the mean of the landmarks, the means of the rows of D are
       p_i^T M p_i - 2 p_i^T u + constant: linear in M and u. Then |x_i - x_k|^2 =
       (p_i - p_k)^T M (p_i - p_k).

    O(n m min(n, m) + n r^4) time, O(n r^2) memory.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Finite; in any unit, in which the result is too.

    Returns
    -------
    ndarray, shape (n, n)
        Where the equations leave M open, with the M nearest to that of landmarks scattered alike in
        all directions; with M of these landmarks where they are too few to see all dimensions.

    Raises
    ------
    OptionError
        If distances are infinite, or there are less than two rows or landmarks.
    """
    if distances.ndim != 2 or min(distances.shape) < 2:
        raise OptionError(
            f"distances of shape {distances.shape} are not of rows to landmarks",
            code="FK-SHAPE-DIFFERS",
        )
    _check(distances, distances.T)
    mean = distances.mean()
    rows, columns = distances.mean(axis=1) - mean, distances.mean(axis=0) - mean
    left, size, _ = np.linalg.svd(
        (distances - rows[:, None] - columns - mean) / -2.0, full_matrices=False
    )
    r = max(1, int((size > ROUNDING * np.linalg.norm(distances)).sum()))
    p = left[:, :r] * (size[:r] / np.sqrt(distances.shape[1]))
    upper = np.triu_indices(r)
    # M = s I fits the means as well as such an M can
    square = (p**2).sum(axis=1)
    scale, *u = np.linalg.lstsq(_centred(np.column_stack([square, -2.0 * p])), rows, ROUNDING)[0]
    if scale <= 0.0:  # as many distances between rows as |x|^2 of centred rows can explain
        scale = mean / max(float(square.mean()), np.finfo(np.float64).tiny)
    start = np.concatenate([(scale * np.eye(r))[upper], u])
    # the nearest M and u that explain the means
    twice = np.where(upper[0] == upper[1], 1.0, 2.0)
    system = _centred(np.column_stack([p[:, upper[0]] * p[:, upper[1]] * twice, -2.0 * p]))
    weight = np.linalg.norm(system, axis=0)
    weight[weight == 0.0] = 1.0
    step, _, rank, _ = np.linalg.lstsq(system / weight, rows - system @ start, rcond=ROUNDING)
    found = start + step / weight
    missing = np.linalg.norm(rows - system @ found)
    all_means = np.linalg.norm(np.concatenate([rows, columns, [mean]]))
    sure = rank == len(found) < len(rows) - 1 and missing < EXPLAINED * all_means
    if r == distances.shape[1] - 1 and not sure:
        found = start
    m = np.zeros((r, r))
    m[upper] = m.T[upper] = found[: len(upper[0])]
    values, vectors = np.linalg.eigh(m)
    x = p @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    return np.asarray(cdist(x, x, "sqeuclidean"))


def _centred(values: Floats) -> Floats:
    return np.asarray(values - values.mean(axis=0))


def _check(distances: Floats, landmarks: Floats) -> None:
    if distances.ndim != 2 or landmarks.ndim != 2 or distances.shape[1] != len(landmarks):
        raise OptionError(
            f"distances of shape {distances.shape} do not fit landmarks of shape {landmarks.shape}",
            remedy="give (n, m) and (m, d)",
            code="FK-SHAPE-DIFFERS",
        )
    if not np.isfinite(distances).all():
        raise OptionError(
            "infinite or missing distances",
            remedy="leave out the rows or landmarks that have any",
            code="FK-VALUES-FINITE",
        )
