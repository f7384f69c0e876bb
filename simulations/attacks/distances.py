"""Inversion of FedCG's naive protocol: what a server learns from a kernel of rows and landmarks.

The server sees K[i, j] = exp(-gamma |x_i - w_j|^2) for n rows x_i and m landmarks w_j. The
logarithm gives the squared distances

    D[i, j] = |x_i|^2 - 2 x_i^T w_j + |w_j|^2

and these are bilinear in (|x_i|^2, x_i, 1) and (1, w_j, |w_j|^2). What follows depends on what the
server knows:

1. the landmarks, :func:`.trilaterate`: differences of distances are linear in x_i, so that d + 1
   landmarks in general position give every row, each on its own. A secret width per landmark
   (eq. 4.1) does not prevent it, :func:`.trilaterate_secret_widths`;
2. gamma but not the landmarks, :func:`distances_by_svd`: D without its means is -2 X W^T, which
   gives X but for a linear map A, and the means of D, quadratic in X, give A A^T.

Distances among rows are the rows themselves up to a motion. With c = (d + 1) (d + 2) / 2 and rows
and landmarks in general position, these are exact (measured: relative errors of 2e-9 at most):

    =====================  ================================================
    1, known gamma         m >= d + 1, n >= 1
    1, secret gamma_j      m >= d + 2, min(n, d + 2) (m - d - 1) >= m
    2, closed form         m >= d + 1, n > c
    2, Gauss-Newton        m, n >= d + 1, n + m > c
    =====================  ================================================

In 2, n + m > c is when the complete bipartite graph is globally rigid (Connelly, Gortler and
Theran): the means are n + m - 1 equations for c - 1 unknowns, and n + m = c leaves several
solutions. For fewer rows :func:`distances_by_svd` returns a guess that supposes landmarks scattered
alike in all directions. It correlates with the truth by 0.96 and 0.995 on Sonar (d = 60) and
Ionosphere (d = 34) with 100 uniform landmarks.

Sources: follows from eq. 2.9 and 4.1 of FedCG; the means as linear equations for A A^T are metric
unfolding, Schönemann, "On Metric Multidimensional Unfolding", Psychometrika 35, 1970; Connelly,
Gortler and Theran, "Global Rigidity of Complete Bipartite Graphs", theorem 1.1, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError

from .phases import Floats
from .trilateration import EXPLAINED, ROUNDING, refuse_infinite

_STEPS = 60  # of Gauss-Newton, at most


@dataclass(frozen=True)
class DistanceRecovery:
    """Distances among rows computed from a kernel with unknown landmarks.

    Attributes
    ----------
    distances : ndarray, shape (n, n)
        Estimated |x_i - x_k|^2.
    dimension : int
        Number of dimensions that the rows were seen to span.
    misfit : float
        What is left unexplained, relative.
    consistent : bool
        Whether that is rounding, with more equations than unknowns, so that the server knows the
        distances to be right. If not, they are a guess.
    """

    distances: Floats
    dimension: int
    misfit: float
    consistent: bool


def distances_by_svd(distances: Floats, *, rounding: float = ROUNDING) -> DistanceRecovery:
    """Compute the distances among rows from their squared distances to unknown landmarks.

    1. D less its row and column means is -2 X W^T of centred X and W. Its singular value
       decomposition, of rank r, gives X = P A and W = Q A^-T with an unknown (r, r) matrix A.
    2. With M = A A^T, u = A w and w the mean of the landmarks, the means of the rows of D are
       p_i^T M p_i - 2 p_i^T u + constant: linear in M and u. Then |x_i - x_k|^2 =
       (p_i - p_k)^T M (p_i - p_k).
    3. If rows are too few for that, the means of the columns, (q_j + u)^T M^-1 (q_j + u) +
       constant, are added and all solved by Gauss-Newton.

    Landmarks may reach where rows do not (a constant feature) in step 2, not in step 3. Rows of
    few distinct values, as of a binary feature, may lie on a quadric and need step 3.

    O(n m min(n, m) + n r^4) time, O(n r^2) memory: a few times r^2 rows tell as much as more.

    Parameters
    ----------
    distances : ndarray, shape (n, m)
        Finite; in any unit, in which the result is too.
    rounding : float (default: 1e-11)
        Singular values are noise below it, relative to the distances; 1e-5 of a float32 kernel.

    Returns
    -------
    DistanceRecovery
        Its dimension is r, which is m - 1 where the landmarks are too few to see more. When the
        equations leave M open, the one nearest to landmarks scattered alike in all directions.

    Raises
    ------
    OptionError
        If distances are infinite, or there are less than two rows or landmarks.
    """
    seen = _Means(distances, rounding)
    explained = _explained(rounding)
    landmark_bound = seen.dimension == distances.shape[1] - 1
    isotropic = seen.isotropic()
    by_rows, enough_rows = seen.by_rows(isotropic)
    misfit = seen.misfit(by_rows)
    consistent = enough_rows and misfit < explained
    found = isotropic if landmark_bound and not consistent else by_rows
    for start in (by_rows, isotropic):
        if consistent or sum(distances.shape) <= seen.unknowns:
            break
        refined, left, unique = seen.refine(start)
        if left < explained:
            found, misfit, consistent = refined, left, unique
    return DistanceRecovery(seen.among_rows(found), seen.dimension, misfit, consistent)


def _explained(rounding: float) -> float:
    return EXPLAINED * max(1.0, rounding / ROUNDING)


@dataclass(frozen=True)
class _Geometry:
    """M = A A^T, shape (r, r), and u = A w, shape (r,)."""

    m: Floats
    u: Floats

    def moved(self, step: Floats) -> _Geometry:
        """Add the step (M's upper triangle, u)."""
        r = len(self.u)
        return _Geometry(self.m + _symmetric(step[:-r], r), self.u + step[-r:])


class _Means:
    """Distances as the product of their centred part, and the means that were taken out.

    Attributes
    ----------
    p : ndarray, shape (n, r)
    q : ndarray, shape (m, r)
        p q^T is -1/2 of the centred distances; p like rows seen through isotropic landmarks.
    rows, columns : ndarray, shape (n,) and (m,)
        Means of rows and columns, less that of all.
    mean : float
    dimension, unknowns : int
        r, and the number (r + 1) (r + 2) / 2 of M, u and a constant.
    """

    def __init__(self, distances: Floats, rounding: float) -> None:
        if distances.ndim != 2 or min(distances.shape) < 2:
            raise OptionError(f"distances of shape {distances.shape} are not of rows to landmarks")
        refuse_infinite(distances)
        self.mean = float(distances.mean())
        self.rows = distances.mean(axis=1) - self.mean
        self.columns = distances.mean(axis=0) - self.mean
        centred = distances - self.rows[:, None] - self.columns - self.mean
        left, size, right = np.linalg.svd(centred / -2.0, full_matrices=False)
        r = max(1, int((size > rounding * np.linalg.norm(distances)).sum()))
        root = np.sqrt(distances.shape[1])
        self.p = left[:, :r] * (size[:r] / root)
        self.q = right[:r].T * root
        self.dimension, self.unknowns = r, (r + 1) * (r + 2) // 2
        self._by_row = np.column_stack([_monomials(self.p), -2.0 * self.p])
        self._centred_by_row = _centred(self._by_row)

    def isotropic(self) -> _Geometry:
        """Fit the rows' means with M = s I."""
        r = self.dimension
        square = (self.p**2).sum(axis=1)
        system = _centred(np.column_stack([square, -2.0 * self.p]))
        solution = np.linalg.lstsq(system, self.rows, rcond=ROUNDING)[0]
        scale = solution[0]
        if scale <= 0.0:  # as many distances between rows as |x|^2 of centred rows can explain
            scale = self.mean / max(float(square.mean()), np.finfo(np.float64).tiny)
        return _Geometry(scale * np.eye(r), solution[1:])

    def by_rows(self, start: _Geometry) -> tuple[_Geometry, bool]:
        """Solve the rows' means for the geometry nearest to the start, and say if it is unique.

        Unique with an equation to spare.
        """
        scale = np.linalg.norm(self._centred_by_row, axis=0)
        scale[scale == 0.0] = 1.0
        missing = self._missing_rows(start)
        step, _, rank, _ = np.linalg.lstsq(self._centred_by_row / scale, missing, rcond=ROUNDING)
        return start.moved(step / scale), rank == len(step) and len(missing) > self.unknowns

    def misfit(self, geometry: _Geometry) -> float:
        """Return what is missing of the rows' means, relative to all means."""
        return float(np.linalg.norm(self._missing_rows(geometry)) / self._size())

    def refine(self, geometry: _Geometry) -> tuple[_Geometry, float, bool]:
        """Fit the means of rows, columns and all by damped Gauss-Newton.

        Returns
        -------
        geometry : _Geometry
        misfit : float
        unique : bool
            Whether no other is near.
        """
        if np.linalg.eigvalsh(geometry.m)[0] <= 0.0:
            return geometry, np.inf, False
        missing, w = self._missing(geometry)
        damping, unique = 1e-3, False
        for _ in range(_STEPS):
            slopes = self._slopes(w)
            scale = np.linalg.norm(slopes, axis=0)
            scale[scale == 0.0] = 1.0
            left, size, right = np.linalg.svd(slopes / scale, full_matrices=False)
            unique = len(size) == slopes.shape[1] and size[-1] > ROUNDING * size[0]
            if np.linalg.norm(missing) < 1e-3 * EXPLAINED * self._size():
                break
            target = left.T @ missing
            while damping < 1e6:
                weights = size / (size**2 + damping * size[0] ** 2)
                tried = geometry.moved(right.T @ (weights * target) / scale)
                if np.linalg.eigvalsh(tried.m)[0] > 0.0:
                    left_over, w_tried = self._missing(tried)
                    if np.linalg.norm(left_over) < np.linalg.norm(missing):
                        break
                damping *= 4.0
            else:
                break
            geometry, missing, w = tried, left_over, w_tried
            damping = max(damping / 10.0, 1e-15)
        return geometry, float(np.linalg.norm(missing) / self._size()), unique

    def among_rows(self, geometry: _Geometry) -> Floats:
        """Return the distances among rows, (n, n); M is made positive semi-definite."""
        values, vectors = np.linalg.eigh(geometry.m)
        x = self.p @ (vectors * np.sqrt(np.maximum(values, 0.0)))
        return cdist(x, x, "sqeuclidean")

    def _size(self) -> float:
        return float(np.linalg.norm(np.concatenate([self.rows, self.columns, [self.mean]])))

    def _norms(self, geometry: _Geometry) -> Floats:
        """Return |x_i|^2, with the rows' mean as origin."""
        norms: Floats = np.vecdot(self.p @ geometry.m, self.p)
        return norms

    def _missing_rows(self, geometry: _Geometry) -> Floats:
        explained: Floats = self._norms(geometry) - 2.0 * self.p @ geometry.u
        return np.asarray(self.rows - _centred(explained))

    def _missing(self, geometry: _Geometry) -> tuple[Floats, Floats]:
        """Return what is missing of the means, (n + m + 1,), and M^-1 (q_j + u), (m, r)."""
        shifted = self.q + geometry.u
        w = np.linalg.solve(geometry.m, shifted.T).T
        norms = np.vecdot(shifted, w)  # |w_j|^2
        mean = self.mean - self._norms(geometry).mean() - norms.mean()
        columns = self.columns - _centred(norms)
        return np.concatenate([self._missing_rows(geometry), columns, [mean]]), w

    def _slopes(self, w: Floats) -> Floats:
        """Return the derivatives of the means by M and u, (n + m + 1, unknowns - 1)."""
        by_column = np.column_stack([-_monomials(w), 2.0 * w])
        r = self.dimension
        mean = by_column.mean(axis=0)
        mean[:-r] += self._by_row[:, :-r].mean(axis=0)
        return np.vstack([self._centred_by_row, _centred(by_column), mean])


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean(axis=0)
    return centred


def _monomials(points: Floats) -> Floats:
    """Return x_a x_b of all points, (n, r (r + 1) / 2), twice where a < b: x^T M x is linear."""
    a, b = np.triu_indices(points.shape[1])
    return np.asarray(points[:, a] * points[:, b] * np.where(a == b, 1.0, 2.0))


def _symmetric(upper: Floats, size: int) -> Floats:
    """Return the symmetric matrix with this upper triangle."""
    matrix = np.zeros((size, size))
    a, b = np.triu_indices(size)
    matrix[a, b] = matrix[b, a] = upper
    return matrix
