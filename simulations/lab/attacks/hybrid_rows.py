"""Rows, labels and gradients out of what FedCG's parties are told, see :mod:`.hybrid`."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError

from .distances import (
    distances_by_svd,
)
from .gradient_inversion import Floats
from .hybrid_insiders import SERVER, Matrix
from .hybrid_matrix import trilaterate_matrix
from .trilateration import trilaterate

_STARTS = 20  # of the search for axes


_STEPS = 200


_SIDE = 12.0**0.5  # a uniform number on [0, 1] times this has variance one


def gram_of_products(directions: Floats, products: Floats) -> Floats | None:
    """Compute K^T K from products with it.

    Parameters
    ----------
    directions, products : ndarray, shape (m, j)
        P and K^T K P.

    Returns
    -------
    ndarray, shape (m, m), or None
        None while the directions do not span the space; what is in their span is known even then.
    """
    if np.linalg.matrix_rank(directions) < len(directions):
        return None
    gram = np.linalg.lstsq(directions.T, products.T, rcond=None)[0]
    return np.asarray((gram + gram.T) / 2.0)


def labels_of_residual(residual: Floats, noise: Floats | None = None) -> Floats:
    """Compute targets from v = eta - y, which a chain that starts at zero shows.

    Parameters
    ----------
    residual : ndarray, shape (n, 1)
        v.
    noise : ndarray, shape (n, 1), optional
        eta, of which everybody knows the seed: then targets of any kind are exact. Without it those
        of -1 and 1 are, as eta lies between 0 and 1.
    """
    if noise is not None:
        return np.asarray(noise - residual)
    return np.where(residual < 0.5, 1.0, -1.0)


def gradient_of_others(
    kernel: Floats, targets: Floats, coefficients: Floats, regularization: float
) -> Floats:
    """Compute what the model tells a hospital of all others: their sum of K^T (K a - y).

    The coefficients solve (K^T K + lambda I) a = K^T y for all rows together, so that what the
    hospital's own rows leave of it are the others'.

    Parameters
    ----------
    kernel : ndarray, shape (n, m)
        Of the hospital's own training rows.
    targets : ndarray, shape (n, k)
        Theirs.
    coefficients : ndarray, shape (m, k)
        The model a.
    regularization : float
        lambda.

    Returns
    -------
    ndarray, shape (m, k)
    """
    own = kernel.T @ (targets - kernel @ coefficients)
    return np.asarray(own - regularization * coefficients)


def row_of_gradient(
    gradient: Floats, landmarks: Floats, gammas: Floats, coefficients: Floats
) -> tuple[Floats, float, bool]:
    """Compute the only row of another hospital from its k (k^T a - y), for one output.

    Its absolute value is the row of the kernel, times one number: trilateration does not mind.

    Parameters
    ----------
    gradient : ndarray, shape (m, 1)
        From :func:`gradient_of_others`.
    landmarks : ndarray, shape (m, d)
        Those of all blocks; of centres' blocks in any frame.
    gammas : ndarray, shape (1,) or (m,)
        The widths.
    coefficients : ndarray, shape (m, 1)
        The model a.

    Returns
    -------
    x : ndarray, shape (d,)
    target : float
    consistent : bool
        Whether the hospital can tell that there is one row and that it is this one.
    """
    size = np.abs(gradient[:, 0])
    exponents = -np.log(np.maximum(size / size.max(), np.finfo(np.float64).tiny))[None]
    whole = Matrix(SERVER, "gradient", 0, 0, (), exponents, gammas, landmarks, scaled=True)
    found = trilaterate_matrix(whole, landmarks)
    assert found.rows is not None
    kernel = np.exp(-gammas * cdist(found.rows, landmarks, "sqeuclidean"))[0]
    residual = float(kernel @ gradient[:, 0]) / float(kernel @ kernel)
    target = float(kernel @ coefficients[:, 0]) - residual
    return found.rows[0], target, found.consistent


def rows_in_box(distances: Floats) -> Floats:
    """Compute features from distances to unknown landmarks that are uniform on the unit box.

    1. :func:`.distances_by_svd` gives rows, and with them landmarks, up to a motion.
    2. Coordinates of uniform landmarks are independent and have small fourth moments: the rotation
       with the smallest sum of them finds the axes (independent component analysis).
    3. The rotation is refined until the smallest box around the landmarks is as small as it gets,
       by linear programs for small rotations; its middle is 1/2.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Squared, of patients to landmarks.

    Returns
    -------
    ndarray, shape (n, d)
        Which column is which feature stays open, and whether it is 1 less the feature.

    Raises
    ------
    OptionError
        There are fewer rows or landmarks than it takes.
    """
    x, w = _common_frame(distances)
    rotation = _smallest_box(w, independent_axes(w))
    turned = w @ rotation
    middle = (turned.min(axis=0) + turned.max(axis=0)) / 2.0
    return np.asarray(x @ rotation - middle + 0.5)


def rows_along_spread(distances: Floats) -> Floats:
    """Compute features from distances to unknown landmarks whose deviations differ by feature.

    Of normal landmarks (sampling N before they were turned) the principal axes are the features.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Squared, of patients to landmarks.

    Returns
    -------
    ndarray, shape (n, d)
        Features but for order, direction and a constant each.

    Raises
    ------
    OptionError
        There are fewer rows or landmarks than it takes.
    """
    x, w = _common_frame(distances)
    return np.asarray(x @ np.linalg.svd(w - w.mean(axis=0), full_matrices=False)[2].T)


def _common_frame(distances: Floats) -> tuple[Floats, Floats]:
    """Return rows and landmarks up to a motion, from their squared distances to each other."""
    found = distances_by_svd(distances)
    if not found.consistent:
        raise OptionError("too few rows and landmarks to know the distances among rows")
    centred = found.distances - found.distances.mean(axis=0)
    values, vectors = np.linalg.eigh((centred - centred.mean(axis=1, keepdims=True)) / -2.0)
    d = found.dimension
    x = vectors[:, -d:] * np.sqrt(np.maximum(values[-d:], 0.0))
    return x, trilaterate(distances.T, x)


def match_columns(found: Floats, truth: Floats) -> Floats:
    """Return the columns of ``found`` in the order and direction that fits the truth best."""
    d = truth.shape[1]
    together = np.corrcoef(found.T, truth.T)[:d, d:]
    order = linear_sum_assignment(-np.abs(together.T))[1]
    forward = together[order, np.arange(d)] > 0.0
    return np.where(forward, found[:, order], 1.0 - found[:, order])


def independent_axes(w: Floats) -> Floats:
    """Return the rotation to axes along which fourth moments are smallest, (d, d)."""
    z = (w - w.mean(axis=0)) * _SIDE
    best, least = np.eye(w.shape[1]), np.inf
    for seed in range(_STARTS):
        rng = np.random.default_rng(seed)
        rotation = np.linalg.qr(rng.standard_normal(best.shape))[0]
        for _ in range(_STEPS):
            y = z @ rotation
            left, _, right = np.linalg.svd(
                3.0 * rotation * (y**2).mean(axis=0) - z.T @ y**3 / len(z)
            )
            last, rotation = rotation, left @ right
            if np.abs(np.abs((last * rotation).sum(axis=0)) - 1.0).max() < 1e-12:
                break
        moment = float(((z @ rotation) ** 4).mean(axis=0).sum())
        if moment < least:
            best, least = rotation, moment
    return best


def _smallest_box(w: Floats, rotation: Floats) -> Floats:
    """Turn the axes until the box around the points is smallest in its sum of edges."""
    m, d = w.shape
    pairs = np.array(np.triu_indices(d, 1)).T
    if not len(pairs):
        return rotation
    for step in range(_STEPS):
        y = w @ rotation
        limit = 0.3 * 0.8**step
        shift = np.zeros((d, m, len(pairs)))  # of coordinate j per unit of a small rotation
        for k, (a, b) in enumerate(pairs):
            shift[b, :, k] += y[:, a]
            shift[a, :, k] -= y[:, b]
        edges = np.repeat(np.eye(d), m, axis=0)
        moved, nothing = shift.reshape(d * m, -1), np.zeros((d * m, d))
        system = np.block([[-moved, edges, nothing], [moved, nothing, -edges]])
        at = y.T.ravel()
        goal = np.concatenate([np.zeros(len(pairs)), -np.ones(d), np.ones(d)])
        bounds = [(-limit, limit)] * len(pairs) + [(None, None)] * (2 * d)
        solved = linprog(goal, A_ub=system, b_ub=np.concatenate([at, -at]), bounds=bounds)
        if solved.x is None:
            break
        small = np.zeros((d, d))
        small[pairs[:, 0], pairs[:, 1]] = solved.x[: len(pairs)]
        left, _, right = np.linalg.svd(rotation @ (np.eye(d) + small - small.T))
        rotation = left @ right
        if np.abs(small).max() < 1e-9:
            break
    return rotation
