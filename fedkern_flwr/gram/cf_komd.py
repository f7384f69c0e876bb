"""Collaborative filtering by kernels, CF-KOMD: a small quadratic program for each user.

With K the kernel between m items and P the p items that a user likes, the user's weights alpha
minimise alpha^T K_PP alpha + lambda |alpha|^2 - 2 alpha^T q_P over the simplex, where q_i is the
mean of row i of K. The score of item i is then sum_j K_ij alpha_j - q_i: how much closer the item
is to what the user likes than to all items.

References
----------
Polato and Aiolli, "Exploiting sparsity to build efficient kernel based collaborative filtering for
top-N item recommendation", Neurocomputing 268, 2017.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..errors import OptionError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_ONE_THREAD = 100  # items from which on BLAS would use more threads


def simplex_qp(quadratic: Floats, linear: Floats, *, tolerance: float = 1e-12) -> Floats:
    """Return the minimiser of a^T Q a - 2 a^T c over all a >= 0 that sum to 1.

    An active-set method. On a support, the set of weights that may differ from 0, the minimiser
    comes from a Cholesky factorisation. Starting with all weights, those that come out negative are
    dropped together until none does. Then weights that would lower the objective are added: all of
    them together if that works, else the best of them alone, which lowers it in any case. No
    support may come up twice, so the method ends.

    Parameters
    ----------
    quadratic : ndarray, shape (p, p)
        Q, symmetric positive definite.
    linear : ndarray, shape (p,)
        c.
    tolerance : float (default: 1e-12)
        By how much the conditions of optimality may be violated, relative to the largest number of
        the diagonal of Q and of c: the gradient Q a - c is the same on the support, and nowhere
        smaller than there.

    Returns
    -------
    ndarray of float64, shape (p,)
        Weights outside of the support are exactly 0. Without weights, an empty array.

    Raises
    ------
    OptionError
        If Q is not positive definite to working precision, if there are NaN or infinite values, or
        if Q is so badly conditioned that the tolerance is not reached.
    """
    size = len(linear)
    if quadratic.shape != (size, size):
        raise OptionError("the kernel and the mean do not have the same items")
    quadratic, linear = np.asarray(quadratic, np.float64), np.asarray(linear, np.float64)
    if size == 0:
        return np.zeros(0)
    if not (np.isfinite(quadratic).all() and np.isfinite(linear).all()):
        raise OptionError("the kernel holds NaN or infinite values", remedy="clean the data")
    scale = max(float(np.abs(quadratic.diagonal()).max()), float(np.abs(linear).max()))
    # a processor that is busy with other clients takes a hundred times as long with threads
    with threadpool_limits(1, "blas") if size > _ONE_THREAD else nullcontext():
        return _active_set(quadratic, linear, tolerance * scale)


def fit_user(kernel: Floats, mean: Floats, regularization: float) -> Floats:
    """Return the weights of a user's positive items.

    Parameters
    ----------
    kernel : ndarray, shape (p, p)
        K_PP, symmetric positive semi-definite.
    mean : ndarray, shape (p,)
        q_P, the means over all m items of the rows of K that belong to P.
    regularization : float
        lambda, at least 0; must be positive if K_PP is singular, as with equal items.

    Returns
    -------
    ndarray of float64, shape (p,)
        alpha, at least 0 and of sum 1.

    Raises
    ------
    OptionError
        If lambda is negative or not finite, or as :func:`simplex_qp`.
    """
    if not 0.0 <= regularization < math.inf:
        raise OptionError(f"regularization is {regularization}", remedy="use at least 0")
    quadratic = np.array(kernel, np.float64)
    quadratic.ravel()[:: len(quadratic) + 1] += regularization  # the diagonal
    return simplex_qp(quadratic, mean)


def item_scores(columns: NDArray[Any], alpha: Floats, mean: Floats | None = None) -> Floats:
    """Return a user's scores of all items, K[:, P] alpha - q.

    Parameters
    ----------
    columns : ndarray, shape (m, p)
        K[:, P].
    alpha : ndarray, shape (p,)
        The weights of the user's positive items.
    mean : ndarray, shape (m,), or None (default: None)
        q, the means of the rows of K; without it nothing is subtracted.

    Returns
    -------
    ndarray of float64, shape (m,)
        Higher is better.
    """
    scores = np.asarray(columns @ alpha, np.float64)
    return scores if mean is None else scores - mean


def _active_set(quadratic: Floats, linear: Floats, tolerance: float) -> Floats:
    """Return the minimiser over the simplex to an absolute tolerance, see :func:`simplex_qp`."""
    size = linear.size
    weights = _drop_negative(quadratic, linear, np.ones(size, np.bool_))
    seen = {(weights > 0.0).tobytes()}
    for _ in range(10 * size + 10):  # two to six in practice
        support = weights > 0.0
        gradient = quadratic @ weights - linear
        level = float(gradient @ weights)  # what it is on the support, as the weights sum to 1
        missing = ~support & (gradient < level - tolerance)
        if not missing.any():
            return weights
        candidate = _drop_negative(quadratic, linear, support | missing)
        objective = float(weights @ (gradient - linear))
        lower = candidate @ (quadratic @ candidate - 2.0 * linear) <= objective
        if not lower or (candidate > 0.0).tobytes() in seen:
            best = int(np.argmin(np.where(missing, gradient, math.inf)))
            candidate = _add_one(quadratic, linear, weights, best)
            if (candidate > 0.0).tobytes() in seen:  # only rounding errors are left to gain
                break
        weights = candidate
        seen.add((weights > 0.0).tobytes())
    raise OptionError(
        f"the weights of {size} items are not found to a tolerance of {tolerance:.2g}",
        remedy="use a larger regularization",
    )


def _minimiser(quadratic: Floats, linear: Floats, support: Mask) -> Floats:
    """Return the weights on a support that sum to 1 and minimise the objective, of any sign.

    Q a = c + t 1 with the t that makes the sum 1: a = Q^-1 c + t Q^-1 1. One step of iterative
    refinement takes away what the two terms lose when they nearly cancel.
    """
    from scipy.linalg.lapack import dposv, dpotrs  # a node that ranks nothing does without

    items = np.flatnonzero(support)
    matrix, target = quadratic[np.ix_(items, items)], linear[items]
    sides = np.stack((target, np.ones(items.size))).T
    # the transpose is in the order of LAPACK, and the same
    factor, solutions, failed = dposv(matrix.T, sides)
    precision = items.size * np.finfo(np.float64).eps * matrix.diagonal().max()
    if failed or factor.diagonal().min() ** 2 <= precision:
        raise OptionError(
            "the kernel is not positive definite", remedy="use a larger regularization"
        )
    weights, ones = solutions.T
    level = (1.0 - weights.sum()) / ones.sum()
    weights = weights + level * ones
    rest, _ = dpotrs(factor, target + level - matrix @ weights)
    weights += rest + (1.0 - weights.sum() - rest.sum()) / ones.sum() * ones
    out = np.zeros(linear.size)
    out[items] = weights
    return out


def _drop_negative(quadratic: Floats, linear: Floats, support: Mask) -> Floats:
    """Return the minimiser on the support without what comes out negative, again and again."""
    while True:  # ends, as the positive weights remain: they sum to at least 1
        weights = _minimiser(quadratic, linear, support)
        negative = weights < 0.0
        if not negative.any():
            return weights
        support = support & ~negative


def _add_one(quadratic: Floats, linear: Floats, weights: Floats, item: int) -> Floats:
    """Return the minimiser on a support with one item more.

    Where weights would turn negative, the step towards the minimiser ends at the first that reach
    0; these are dropped, and the next step starts from there. The objective falls all the way.
    """
    support = weights > 0.0
    support[item] = True
    while True:  # ends, as each step drops an item and the last one left has weight 1
        target = _minimiser(quadratic, linear, support)
        negative = target < 0.0
        if not negative.any():
            return target
        steps = np.full(weights.size, math.inf)
        steps[negative] = weights[negative] / (weights[negative] - target[negative])
        length = float(steps.min())
        weights = weights + length * (target - weights)
        support &= steps > length
        weights[~support] = 0.0
