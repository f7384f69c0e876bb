"""Compute rows, or the distances among them, from their squared distances to landmarks.

The server of FedCG's naive protocol sees K[i, j] = exp(-gamma |x_i - w_j|^2). Its logarithm gives

    D[i, j] = |x_i|^2 - 2 x_i^T w_j + |w_j|^2

With known landmarks :func:`trilaterate` gives each row from d + 1 of them in general position. With
gamma alone :func:`distances_by_svd` gives the rows up to a motion, exact for m >= d + 1 landmarks
and n > (d + 1) (d + 2) / 2 rows.

Sources: follows from eq. 2.9 and 4.1 of FedCG; the means as linear equations for A A^T are metric
unfolding, Schönemann, "On Metric Multidimensional Unfolding", Psychometrika 35, 1970.

**Completion.** Section 4 of FedCG judges itself by three iterative algorithms, which guess the
distances among rows from those to and among landmarks (:func:`reconstruction_errors`).

Sources: Dokmanić, Parhizkar, Ranieri and Vetterli, "Euclidean Distance Matrices", IEEE Signal
Processing Magazine 32, 2015, algorithms 2 and 4; Mazumder, Hastie and Tibshirani, "Spectral
Regularization Algorithms for Learning Large Incomplete Matrices", JMLR 11, 2010, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    minimum_spanning_tree,
)
from scipy.spatial.distance import cdist

from .inversion import nearest_turn
from .seen import Floats

#: Unexplained means of rows below this, relative to all means, are rounding.
EXPLAINED = 1e-8
#: Singular values of float64 below this, relative to the largest, are rounding.
ROUNDING = 1e-11


def trilaterate(distances: Floats, landmarks: Floats) -> Floats:
    """Compute rows, (n, d), from their squared distances (n, m) to known landmarks (m, d).

    With the landmarks' mean as origin, D[i, j] less its mean over j is -2 x_i^T w_j plus known
    numbers: m linear equations for x_i. Exact where the landmarks span all dimensions; else exact
    within their span, and the landmarks' mean across it.
    """
    origin = landmarks.mean(axis=0)
    w = landmarks - origin
    linear = (distances - (w**2).sum(axis=1)) / -2.0  # x_i^T w_j, and a constant per row
    linear -= linear.mean(axis=1, keepdims=True)
    return np.asarray(origin + np.linalg.lstsq(w, linear.T, rcond=ROUNDING)[0].T)


def distances_by_svd(distances: Floats) -> Floats:
    """Compute distances among rows, (n, n), from squared distances (n, m) to unknown landmarks.

    D less its row and column means is -2 X W^T of centred X and W. Its singular value decomposition
    gives X = P A with an unknown matrix A. With M = A A^T, u = A w and the landmarks' mean w, the
    row means of D are p_i^T M p_i - 2 p_i^T u + constant: linear in M and u. Where they do not
    determine M, it is the one nearest to landmarks scattered alike in all directions.
    """
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


# -- completion of a matrix of distances: of n rows and the landmarks, the block of the rows unknown

_CONVERGED = 1e-9  # relative change between two iterations
_PENALTIES = 15  # number of lambdas


def alternating_descent(
    distances: Floats, n: int, dimension: int, *, iterations: int = 50, seed: int = 0
) -> Floats:
    """Minimise the s-stress by one coordinate of one point at a time (Dokmanić et al., alg. 4).

    Moving a coordinate by t makes the s-stress, the sum of (|x_i - x_j|^2 - D[i, j])^2 over known
    entries, a quartic in t. No distance between rows is known, so all rows move at once.
    """
    known, size = _known(distances, n), len(distances)
    d = np.where(known, distances, 0.0)
    groups = [np.arange(n), *(np.array([landmark]) for landmark in range(n, size))]
    spread = 1e-3 * np.sqrt(d[known].mean() / dimension)
    x = np.random.default_rng(seed).normal(0.0, spread, (size, dimension))
    for _ in range(iterations):
        before = x.copy()
        for group in groups:
            weight = known[group].astype(np.float64)
            number = np.maximum(weight.sum(axis=1), 1.0)
            excess = cdist(x[group], x, "sqeuclidean") - d[group]
            for k in range(dimension):
                gap = x[group, k, None] - x[:, k]
                weighted = weight * gap
                # the stress, by t: sum over known of (t^2 + 2 gap t + excess)^2
                square = 3.0 * weighted.sum(axis=1) / number
                linear = np.vecdot(weighted, gap) * 2.0 + np.vecdot(weight, excess)
                step = _least_of_quartic(
                    square, linear / number, np.vecdot(weighted, excess) / number
                )
                x[group, k] += step
                excess += step[:, None] * (step[:, None] + 2.0 * gap)
        if np.linalg.norm(x - before) <= _CONVERGED * np.linalg.norm(x):
            break
    return cdist(x[:n], x[:n], "sqeuclidean")


def rank_alternation(
    distances: Floats, n: int, dimension: int, *, iterations: int = 300, seed: int = 0
) -> Floats:
    """Alternate between matrices of rank d + 2 and the known entries (Dokmanić et al., alg. 2).

    It keeps the d + 2 largest eigenvalues by magnitude, restores known entries and the zero
    diagonal, and sets negative entries to 0.
    """
    known = _known(distances, n)
    fixed = known | np.eye(len(known), dtype=np.bool_)
    values = np.where(known, distances, 0.0)
    current = np.where(fixed, values, values[known].mean())
    for _ in range(iterations):
        sizes, vectors = np.linalg.eigh(current)
        kept = np.argsort(-np.abs(sizes))[: dimension + 2]
        low = (vectors[:, kept] * sizes[kept]) @ vectors[:, kept].T
        following = np.where(fixed, values, np.maximum(low, 0.0))
        change = np.linalg.norm(following - current)
        current = following
        if change <= _CONVERGED * np.linalg.norm(current):
            break
    return current[:n, :n]


def soft_impute(
    distances: Floats, n: int, dimension: int, *, iterations: int = 300, seed: int = 0
) -> Floats:
    """Complete by matrices of small nuclear norm (Soft-Impute, Mazumder et al., alg. 1).

    For decreasing lambda, each from the solution before: fill the gaps and shrink all singular
    values, the magnitudes of eigenvalues, by lambda.
    """
    known = _known(distances, n)
    fixed = known | np.eye(len(known), dtype=np.bool_)
    values = np.where(known, distances, 0.0)
    current = np.zeros_like(values)
    largest = float(np.linalg.norm(values, 2))
    grid = np.geomspace(0.5 * largest, 1e-4 * largest, _PENALTIES)
    for k, penalty in enumerate(grid):
        for _ in range(iterations // _PENALTIES + (k < iterations % _PENALTIES)):
            sizes, vectors = np.linalg.eigh(np.where(fixed, values, current))
            shrunk = np.sign(sizes) * np.maximum(np.abs(sizes) - penalty, 0.0)
            following = (vectors * shrunk) @ vectors.T
            change = np.linalg.norm(following - current)
            current = following
            if change <= 1e-5 * np.linalg.norm(current):
                break
    return np.where(fixed, values, current)[:n, :n]


#: The algorithms by name.
COMPLETIONS: Mapping[str, Callable[..., Floats]] = {
    "alternating-descent": alternating_descent,
    "rank-alternation": rank_alternation,
    "soft-impute": soft_impute,
}


def _known(distances: Floats, n: int) -> NDArray[np.bool_]:
    """Mark all entries but those among the first n points, and the diagonal."""
    known = ~np.eye(len(distances), dtype=np.bool_)
    known[:n, :n] = False
    return known


def _least_of_quartic(square: Floats, linear: Floats, constant: Floats) -> Floats:
    """Return where quartics with derivative t^3 + square t^2 + linear t + constant are least.

    t = y - square / 3 gives y^3 + p y + q. The quartic is least at the root farthest from 0 on the
    side opposite to q, by the cosine where p < 0, else by hyperbolic functions.
    """
    shift = square / 3.0
    p = linear - 3.0 * shift**2
    q = 2.0 * shift**3 - shift * linear + constant
    root = np.sqrt(np.maximum(np.abs(p), 1e-24) / 3.0)
    t = np.abs(q) / (2.0 * root**3)
    down = np.where(
        t < 1.0,
        np.cos(np.arccos(np.minimum(t, 1.0)) / 3.0),
        np.cosh(np.arccosh(np.maximum(t, 1.0)) / 3.0),
    )
    y = 2.0 * root * np.where(p < 0.0, down, np.sinh(np.arcsinh(t) / 3.0))
    return np.asarray(np.where(q > 0.0, -y, y) - shift)


def reconstruction_errors(x: Floats, landmarks: Floats, *, seed: int = 0) -> dict[str, float]:
    """Compute the relative error of each algorithm on the distances among rows (figure 8).

    The completions know distances to and among landmarks, ``trilateration`` the landmarks, and
    ``svd`` the distances to them only.
    """
    points, n = np.vstack([x, landmarks]), len(x)
    distances = cdist(points, points, "sqeuclidean")
    truth, seen = distances[:n, :n], distances[:n, n:]
    found = {
        name: complete(distances, n, x.shape[1], seed=seed)
        for name, complete in COMPLETIONS.items()
    }
    rows = trilaterate(seen, landmarks)
    found["svd"] = distances_by_svd(seen)
    found["trilateration"] = cdist(rows, rows, "sqeuclidean")
    return {name: relative_error(block, truth) for name, block in found.items()}


def relative_error(estimate: Floats, truth: Floats) -> float:
    """Compute |estimate - truth| / |truth| in the Frobenius norm."""
    return float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth))


# -- columns of two values, from phases or distances

#: Most dimensions in which all guesses are tried: 2^18 of them, a few seconds.
MOST = 18
_NEAR = 0.25  # of a guessed value to 0 or 1: a wrong guess fails at one of many rows
_FITS = 0.02  # largest error of a column over all rows
_EQUAL, _ROUNDED = 1e-12, 1e-8  # errors of cosines, and of distances in fixed point
_TINY = 1e-9  # so that equal rows are neighbours in the tree, not strangers


def angles_apart(phases: Floats) -> Floats:
    """Compute 1 less the mean cosine of differences of phases, (n, n): 0 for equal rows."""
    turns = np.exp(1j * phases)
    return np.asarray(1.0 - np.real(turns @ turns.conj().T) / phases.shape[1])


def equal_rows(apart: Floats, tolerance: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return a row of each kind, (k,), and the kind of each row, (n,), by their distances."""
    kinds = connected_components(apart < tolerance, directed=False)[1]
    return np.unique(kinds, return_index=True)[1], np.asarray(kinds, np.intp)


def unwrapped(phases: Floats, apart: Floats) -> Floats:
    """Compute phases of rows, (n, R), less those of the first row, with their turns."""
    tree = minimum_spanning_tree(np.maximum(apart, 0.0) + _TINY)
    order, before = breadth_first_order(tree, 0, directed=False)
    found = np.zeros_like(phases)
    for row in order[1:]:
        parent = before[row]
        found[row] = found[parent] + nearest_turn(phases[row] - phases[parent])
    return found


def coordinates(values: Floats, noise: float) -> Floats:
    """Compute rows up to a linear map, (n, r), from values that are linear in them, (n, m).

    Rows must differ, since equal ones have equal errors of standard deviation ``noise``.
    """
    left, size, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
    above = 1.5 * noise * np.sum(np.sqrt(values.shape)) + 1e-10 * size[0]
    return np.asarray(left[:, size > above])


def columns_of_phases(phases: Floats, noise: float) -> NDArray[np.bool_]:
    """Compute the columns of two values of rows from their phases."""
    apart = angles_apart(phases)
    first, kinds = equal_rows(apart, max(_EQUAL, (4.0 * noise) ** 2))
    values = unwrapped(phases[first], apart[np.ix_(first, first)])
    return _for_all(two_valued(coordinates(values, noise)), kinds)


def columns_of_distances(distances: Floats) -> NDArray[np.bool_]:
    """Compute the columns of two values of rows from squared distances to any landmarks."""
    first, kinds = equal_rows(cdist(distances, distances, "chebyshev"), _ROUNDED)
    values = distances[first]
    values = values - values.mean(axis=1, keepdims=True)
    return _for_all(two_valued(coordinates(values, _ROUNDED)), kinds)


def _for_all(found: NDArray[np.bool_], kinds: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return columns at all rows, False at the first."""
    return np.asarray(found[kinds] ^ found[kinds[0]])


def two_valued(points: Floats) -> NDArray[np.bool_]:
    """Find all linear functions of points that take two values, (n, k): False at the first row.

    Of two exclusive columns their sum is among them.
    """
    n, r = points.shape
    if r == 0 or r > MOST or n <= r:
        return np.zeros((n, 0), np.bool_)
    lifted = np.column_stack([np.ones(n), points * np.sqrt(n)])
    chosen = qr(lifted.T, mode="r", pivoting=True)[1][: r + 1]
    effects = np.linalg.solve(lifted[chosen].T, lifted.T).T  # of the values at the chosen rows
    guesses = (np.arange(1, 1 << r)[:, None] >> np.arange(r) & 1).astype(np.float32)
    free, rest = effects[:, 1:].astype(np.float32), np.setdiff1d(np.arange(n), chosen)
    for row in rest:  # the first is 0: a column and its opposite are one
        with np.errstate(invalid="ignore", over="ignore"):  # where chosen rows nearly depend
            value = guesses @ free[row]
        guesses = guesses[np.abs(value - (value > 0.5)) < _NEAR]
    values = effects[:, 1:] @ guesses.T.astype(np.float64)
    fitted = lifted @ np.linalg.lstsq(lifted, (values > 0.5).astype(np.float64), rcond=None)[0]
    found = fitted > 0.5
    right = np.abs(fitted - found).max(axis=0) < _FITS
    return np.asarray((found ^ found[0])[:, right])


def share_of_columns(found: NDArray[np.bool_], truth: Floats) -> float:
    """Compute the share of the columns of two values that were found, up to 0 and 1."""
    binary = [column != column[0] for column in truth.T if len(np.unique(column)) == 2]
    known = {column.tobytes() for column in np.ascontiguousarray(found.T)}
    return float(np.mean([column.tobytes() in known for column in binary])) if binary else 0.0


def from_known(values: Floats, rows: NDArray[np.intp], known: Floats) -> Floats:
    """Compute all rows from values that are linear in them, and known rows.

    ``rows`` are the indices of d + 1 or more known rows, and ``known`` their columns.
    """
    points = values - values[rows[0]]
    map_ = np.linalg.lstsq(known - known[0], points[rows], rcond=None)[0]
    return np.asarray(known[0] + np.linalg.lstsq(map_.T, points.T, rcond=None)[0].T)
