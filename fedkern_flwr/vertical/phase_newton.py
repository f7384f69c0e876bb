"""Newton's method for a regularised mean loss of stored features, all outputs at once.

The objective of each output is F(w) = sum_i s_i L(f_i, y_i) + lambda / 2 |w|^2 with f = Z w. A step
solves (Z^T D Z + lambda I) d = -F'(w), where D holds s_i times the curvature of the loss at each
row, and goes along d to where the slope is small. Z^T D Z is kept: a step adds the rows whose
curvature has changed. Of the smooth hinge these are the rows that enter or leave its bend, few
after the first steps and few between neighbouring lambda.

References
----------
Keerthi and DeCoste, "A Modified Finite Newton Method for Fast Solution of Large Scale Linear SVMs",
JMLR 6, 2005: Newton steps on the rows in the bend, with a line search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ..errors import FedKernError, OptionError
from ..solvers.losses import Loss, loss_curvatures, loss_derivatives
from ..solvers.newton import line_search, reduced
from .phases import INTERCEPT, Features, Floats, Phases, blocks, keep_features

LARGEST_CURVATURE = {"square": 2.0, "logistic": 0.25, "smooth-hinge": 1.0}
#: The search ends where the quadratic model promises less than half the square of this.
TOLERANCE = 1e-4
STEPS = 100
#: A curvature that has changed by a smaller part of itself is not added again: the direction is at
#: most as much off, which the next step mends.
_CHANGE = 0.1
_KEPT = 1 << 28  # bytes of the matrices that are kept, 256 MB


@dataclass(frozen=True)
class Kept:
    """Features of all rows at a width, or of few rows in a basis of what they span.

    The solution is in the span of the rows: n equations have it as well as R.

    Parameters
    ----------
    z : ndarray of float32 or float64, shape (n, R) or (n, n)
    basis : ndarray of float64, shape (R, n), or None
    intercept : bool
        Whether the last column of z is the constant.
    """

    z: Features
    basis: Floats | None
    intercept: bool

    @classmethod
    def make(
        cls, phases: Phases, multiple: int, intercept: bool, folder: Path | None = None
    ) -> Kept:
        """Make the features of phases at a width."""
        z = keep_features(phases, multiple, intercept=intercept, folder=folder)
        if len(z) >= 0.75 * z.shape[1]:  # the basis costs as much as a few equations
            return cls(z, None, intercept)
        basis, rows = reduced(z.astype(np.float64))
        return cls(rows, basis, False)

    def whole(self, weights: Floats) -> Floats:
        """Return weights of the features themselves."""
        return weights if self.basis is None else np.asarray(self.basis @ weights)

    def inside(self, weights: Floats) -> Floats:
        """Return weights of the features as weights of what z holds."""
        return weights if self.basis is None else np.asarray(self.basis.T @ weights)

    def of(self, rows: NDArray[np.bool_]) -> Kept:
        """Return those of some rows, copied."""
        return Kept(self.z[rows], self.basis, self.intercept)


@dataclass(frozen=True)
class Equations:
    """Sums over rows: Z^T Z, shape (R, R), and Z^T y, shape (R, k)."""

    gram: Floats
    right: Floats
    rows: int


@dataclass
class Curvatures:
    """Z^T D Z of each output, and the D that it was made with; from one fit to the next.

    Parameters
    ----------
    matrices : dict
        Output -> Z^T D Z, shape (R, R).
    of_rows : dict
        Output -> the diagonal of D without s_i, shape (n,).
    """

    matrices: dict[int, Floats] = field(default_factory=dict)
    of_rows: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """What is minimised.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
    kept : Kept
        Features of all rows.
    targets, shares : ndarray of float64, shapes (n, k) and (n, 1)
        y, and by what the losses of rows are multiplied.
    equations : Equations, optional
        Of the rows whose shares are not zero, from which rows without a curvature may be taken.
    """

    loss: Loss
    kept: Kept
    targets: Floats
    shares: Floats
    equations: Equations | None

    def minimise(
        self,
        regularization: float,
        start: Floats,
        known: Curvatures | None = None,
        *,
        tolerance: float = TOLERANCE,
        steps: int = STEPS,
    ) -> Floats:
        """Return the weights of the smallest objective, shape (R, k).

        Parameters
        ----------
        regularization : float
            lambda.
        start : ndarray of float64, shape (R, k)
            First weights.
        known : Curvatures, optional
            Those of an earlier call with the same rows and shares, which are brought up to date.
        tolerance : float (default: 1e-4)
            Root of twice what a step promises, at which the search ends.
        steps : int (default: 100)
            Most steps.

        Raises
        ------
        OptionError
            lambda is too small for the precision of the features.
        FedKernError
            The tolerance is not reached.
        """
        outputs, width = self.targets.shape[1], self.kept.z.shape[1]
        together = max(1, _KEPT // (8 * width * width))
        found = np.empty_like(start)
        for first in range(0, outputs, together):
            columns = list(range(first, min(first + together, outputs)))
            kept = known if known is not None and outputs <= together else Curvatures()
            part = self._search(columns, regularization, start[:, columns], kept, tolerance, steps)
            found[:, columns] = part
        return found

    def _search(
        self,
        columns: list[int],
        penalty: float,
        start: Floats,
        known: Curvatures,
        tolerance: float,
        steps: int,
    ) -> Floats:
        """Minimise the objective of some outputs.

        Where the rounding of float32 leaves no smaller steps, the search goes on in float64.
        """
        w, y, open_ = start.copy(), self.targets[:, columns], list(range(len(columns)))
        exact = False
        f = multiply(self.kept.z, w)
        last = np.full(len(columns), np.inf)
        for _ in range(steps):
            pull = self.shares * loss_derivatives(self.loss, f[:, open_], y[:, open_])
            slope = penalty * w[:, open_] + multiply_back(self.kept.z, pull, exact=exact)
            left, directions, stalled = [], [], False
            for place, k in enumerate(open_):
                direction = self._direction(known, columns[k], f[:, k], penalty, slope[:, place])
                promised = float(np.sqrt(max(0.0, -float(direction @ slope[:, place]))))
                stalled |= tolerance < promised > 0.5 * last[k] and last[k] < np.inf
                last[k] = promised
                if promised > tolerance:
                    left.append(k)
                    directions.append(direction)
            if not left:
                return w
            open_, step = left, np.stack(directions, axis=1)
            along = multiply(self.kept.z, step, exact=exact)
            for place, k in enumerate(open_):
                d, df = step[:, place], along[:, place]
                t = self._length(penalty, w[:, k], d, f[:, k], df, y[:, k])
                w[:, k] += t * d
                f[:, k] += t * df
            if stalled and not exact and self.kept.z.dtype != np.float64 and last.max() < 0.1:
                exact = True
                f = multiply(self.kept.z, w, exact=True)
        raise FedKernError(
            f"the {self.loss} loss stopped {last.max():.1e} from its minimum after {steps} steps",
            remedy="use a larger regularization or tolerance, or more iterations",
            code="FK-SOLVER-STEPS",
        )

    def _length(
        self, penalty: float, w: Floats, d: Floats, f: Floats, df: Floats, y: Floats
    ) -> float:
        """Return how far to go along d."""
        shares, linear, square = self.shares[:, 0], penalty * float(w @ d), penalty * float(d @ d)

        def slope(t: float) -> tuple[float, float]:
            at = f + t * df
            first = float((shares * loss_derivatives(self.loss, at, y)) @ df) + linear + t * square
            curvature = float((shares * loss_curvatures(self.loss, at, y)) @ (df * df)) + square
            return first, curvature

        return line_search(slope, slope(0.0)[0])

    def _direction(
        self, known: Curvatures, output: int, f: Floats, penalty: float, slope: Floats
    ) -> Floats:
        """Return the Newton direction of an output from where the slope is this.

        Of few rows with a curvature, A = D^1/2 Z of these, it comes from their equations:
        (A^T A + lambda I)^-1 = (I - A^T (A A^T + lambda I)^-1 A) / lambda.
        """
        curvatures = loss_curvatures(self.loss, f, self.targets[:, output])
        curvatures[self.shares[:, 0] == 0.0] = 0.0
        rows = np.flatnonzero(curvatures)
        if 2 * len(rows) > len(slope):
            self._bring_up(known, output, curvatures)
            factor = factorise_near(known.matrices[output], penalty)
            return np.asarray(-linalg.cho_solve((factor, True), slope, check_finite=False))
        a = self.kept.z[rows] * np.sqrt(curvatures[rows] * self.shares[rows, 0])[:, None]
        factor = factorise(a @ a.T, penalty)
        return np.asarray((a.T @ linalg.cho_solve((factor, True), a @ slope) - slope) / penalty)

    def _bring_up(self, known: Curvatures, output: int, wanted: Floats) -> None:
        """Make Z^T D Z of an output that of these D, by the rows whose curvature has changed."""
        largest = LARGEST_CURVATURE[self.loss]
        if output not in known.matrices:
            full, begin = np.where(self.shares[:, 0] > 0.0, largest, 0.0), self.equations
            if begin is not None and 2.0 * wanted.sum() > full.sum():  # less to take than to add
                known.matrices[output] = (largest / begin.rows) * begin.gram
                known.of_rows[output] = full
            else:
                known.matrices[output] = np.zeros((self.kept.z.shape[1],) * 2)
                known.of_rows[output] = np.zeros_like(full)
        before, matrix = known.of_rows[output], known.matrices[output]
        change = wanted - before
        for sign in (1, -1):
            rows = np.flatnonzero(sign * change > _CHANGE * np.maximum(before, wanted))
            root = np.sqrt(np.abs(change[rows]) * self.shares[rows, 0])
            for part in blocks(len(rows), self.kept.z.strides[0]):
                z = self.kept.z[rows[part]]
                add_gram(matrix, z, root[part], intercept=self.kept.intercept, sign=sign)
            before[rows] = wanted[rows]


def add_gram(
    matrix: Floats, z: Features, root: Floats | None, *, intercept: bool, sign: int = 1
) -> None:
    """Add Z^T D Z of rows to a matrix, or take it away; ``root`` is the diagonal of D^1/2.

    With an intercept, the sums of features are those of float64: rounded to float32 they would
    make equations of a small lambda singular.
    """
    scale: Any = None if root is None else root.astype(z.dtype)[:, None]
    z = z if scale is None else z * scale
    gram = z.T @ z
    if intercept:
        sums = (z if scale is None else z * scale).sum(axis=0, dtype=np.float64)
        gram[-1] = gram[:, -1] = 0.0
        matrix[-1] += sign * np.sqrt(INTERCEPT) * sums
        matrix[:-1, -1] = matrix[-1, :-1]
    (np.add if sign > 0 else np.subtract)(matrix, gram, out=matrix)


def factorise(matrix: Floats, regularization: float) -> Floats:
    """Return the lower Cholesky factor of a matrix plus lambda I."""
    shifted = matrix.copy()
    shifted[np.diag_indices_from(shifted)] += regularization
    try:
        # the transpose of a symmetric matrix in C order is what LAPACK can overwrite
        options = {"overwrite_a": True, "check_finite": False}  # cosines are finite
        return np.asarray(linalg.cholesky(shifted.T, lower=True, **options))
    except linalg.LinAlgError:
        raise OptionError(
            f"the normal equations are singular at regularization {regularization:g}",
            remedy="use a larger regularization, or phases of 32 bits",
            code="FK-EQUATIONS-SINGULAR",
        ) from None


def factorise_near(matrix: Floats, regularization: float) -> Floats:
    """Return the factor of a direction: where rounding makes lambda too small, of a larger one.

    The direction is a little shorter then; where the search ends is not changed.
    """
    for times in (1.0, 10.0, 100.0):
        try:
            return factorise(matrix, times * regularization)
        except OptionError:
            continue
    return factorise(matrix, 1000.0 * regularization)


def multiply(z: Features, weights: Floats, *, exact: bool = False) -> Floats:
    """Return Z w in float64, (n, k); exact: with products of float64."""
    out = np.empty((len(z), weights.shape[1]))
    dtype: Any = np.float64 if exact else z.dtype
    small = weights.astype(dtype)
    for part in blocks(len(z), z.strides[0]):
        out[part] = z[part].astype(dtype, copy=False) @ small
    return out


def multiply_back(z: Features, values: NDArray[np.float64], *, exact: bool = False) -> Floats:
    """Return Z^T v in float64, (R, k), of values of rows, (n, k)."""
    out = np.zeros((values.shape[1], z.shape[1]))
    dtype: Any = np.float64 if exact else z.dtype
    small = np.ascontiguousarray(values.T, dtype)  # BLAS is twice as fast with Z on the right
    for part in blocks(len(z), z.strides[0]):
        out += small[:, part] @ z[part].astype(dtype, copy=False)
    return out.T
