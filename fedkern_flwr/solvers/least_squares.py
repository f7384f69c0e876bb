"""Kernel least squares on landmarks: the normal equations as a vector, their solution, and tuning.

Hospitals sum the normal equations as one vector, for one or several widths and folds
(:class:`Equations`). :func:`solve_equations` solves them. :func:`choose` chooses width and lambda:
given the equations of all rows by generalised cross-validation (GCV), given those of each fold by
the squared error on held-out folds. Both are in closed form.

References
----------
Damiani, Rodina and Decherchi 2024 (FedCG), equations 2.9 and 2.10. Golub, Heath and Wahba,
"Generalized Cross-Validation as a Method for Choosing a Good Ridge Parameter", Technometrics 21(2),
1979. Kim and Gu, "Smoothing Spline Gaussian Regression: More Scalable Computation via Efficient
Approximation", JRSS B 66(2), 2004 (the factor 1.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..kernels.product import kernel_from_distances

Floats = NDArray[np.float64]
Penalty = Literal["ridge", "rkhs"]

# -- the normal equations as one vector

#: Most widths and folds that a hospital accepts.
MOST_WIDTHS, MOST_FOLDS = 9, 5
#: Factors of the width for successive landmarks, repeated.
SPREAD = (0.5, 2.0)


def pack_equations(gram: Floats, right: Floats) -> Floats:
    """Return the upper triangle of K^T K, (m, m), and K^T y, (m, k), as one vector."""
    return np.concatenate([gram[np.triu_indices(len(gram))], right.ravel()])


def unpack_equations(vector: Floats, landmarks: int, outputs: int) -> tuple[Floats, Floats]:
    """Invert :func:`pack_equations`."""
    gram = np.empty((landmarks, landmarks))
    upper = np.triu_indices(landmarks)
    split = len(upper[0])
    gram[upper] = vector[:split]
    gram.T[upper] = vector[:split]
    return gram, vector[split:].reshape(landmarks, outputs)


def equations_length(landmarks: int, outputs: int) -> int:
    """Return how many numbers :func:`pack_equations` makes."""
    return landmarks * (landmarks + 1) // 2 + landmarks * outputs


def spread(gammas: Floats, landmarks: int) -> Floats:
    """Return the widths of each landmark, half and double ``gammas`` in turn, shape (w, m).

    The same sums then see the rows at two scales, so the width matters less.
    """
    return np.asarray(np.multiply.outer(gammas, np.resize(SPREAD, landmarks)))


def tuning_length(landmarks: int, outputs: int, folds: int, widths: int) -> int:
    return folds * (widths * equations_length(landmarks, outputs) + outputs)


@dataclass
class Equations:
    """The normal equations of several widths and folds.

    Attributes
    ----------
    gram : ndarray of float64, shape (folds, widths, m, m)
        K^T K.
    right : ndarray of float64, shape (folds, widths, m, k)
        K^T y.
    squares : ndarray of float64, shape (folds, k)
        y^T y.
    """

    gram: Floats
    right: Floats
    squares: Floats

    @classmethod
    def zeros(cls, landmarks: int, outputs: int, folds: int, widths: int) -> Equations:
        shape = (folds, widths, landmarks)
        gram, right = np.zeros((*shape, landmarks)), np.zeros((*shape, outputs))
        return cls(gram, right, np.zeros((folds, outputs)))

    def add(
        self,
        fold: int,
        distances: Floats,
        y: Floats,
        gammas: Floats,
        weights: Floats | None = None,
    ) -> None:
        """Add rows of a fold, by their distances, shape (n, m), and targets, shape (n, k).

        ``gammas`` has shape (widths, 1), or (widths, m) for a width per landmark; ``weights``,
        (n,), multiply squared errors.
        """
        root = None if weights is None else np.sqrt(weights)[:, None]
        y = y if root is None else y * root
        self.squares[fold] += (y**2).sum(0)
        for w, gamma in enumerate(gammas):
            kernel = kernel_from_distances(distances.copy(), gamma)
            if root is not None:
                kernel *= root
            self.gram[fold, w] += kernel.T @ kernel
            self.right[fold, w] += kernel.T @ y

    def pack(self) -> Floats:
        """Return one vector, as nodes sum it."""
        parts = [self.squares.ravel()]
        for grams, rights in zip(self.gram, self.right, strict=True):
            parts += [pack_equations(g, r) for g, r in zip(grams, rights, strict=True)]
        return np.concatenate(parts)

    @classmethod
    def unpack(
        cls, vector: Floats, landmarks: int, outputs: int, folds: int, widths: int
    ) -> Equations:
        """Invert :meth:`pack`."""
        out = cls.zeros(landmarks, outputs, folds, widths)
        out.squares[:] = vector[: folds * outputs].reshape(folds, outputs)
        cells = vector[folds * outputs :].reshape(folds, widths, -1)
        for f, w in np.ndindex(folds, widths):
            out.gram[f, w], out.right[f, w] = unpack_equations(cells[f, w], landmarks, outputs)
        return out


# -- the solution


def regularized(gram: Floats, regularization: float, landmark_kernel: Floats | None) -> Floats:
    """Return K^T K + lambda I, or K^T K + lambda K_mm if the kernel of the landmarks is given."""
    if landmark_kernel is not None:
        return np.asarray(gram + regularization * landmark_kernel)
    out = gram.copy()
    out[np.diag_indices_from(out)] += regularization
    return out


def solve_equations(
    gram: Floats, right: Floats, regularization: float, landmark_kernel: Floats | None = None
) -> Floats:
    """Solve the normal equations for k right-hand sides, (m, k).

    (K^T K + lambda I)^-1 K^T y by Cholesky (eq. 2.9), or (K^T K + lambda K_mm)^+ K^T y by the
    pseudo-inverse (eq. 2.10).

    Parameters
    ----------
    gram : ndarray of float64, shape (m, m)
        K^T K.
    right : ndarray of float64, shape (m, k)
        K^T y.
    regularization : float
        lambda.
    landmark_kernel : ndarray of float64, shape (m, m), optional
        K_mm, to penalise the function's norm.

    Raises
    ------
    OptionError
        The matrix is not positive definite to working precision.
    """
    from scipy import linalg  # nodes need the layout of the equations alone

    matrix = regularized(gram, regularization, landmark_kernel)
    if landmark_kernel is not None:
        return np.asarray(linalg.pinvh(matrix) @ right)
    try:
        return np.asarray(linalg.cho_solve(linalg.cho_factor(matrix, lower=True), right))
    except linalg.LinAlgError:
        raise OptionError(
            f"the normal equations are singular at regularization {regularization:g}",
            code="FK-EQUATIONS-SINGULAR",
        ) from None


def check_regularization(value: float) -> None:
    """Raise OptionError for a lambda that is not positive."""
    if not 0.0 < value < np.inf:
        raise OptionError(
            f"regularization is {value}", remedy="use a positive number", code="FK-OPTION-RANGE"
        )


# -- width and lambda, chosen from the normal equations of several widths

#: Numbers of folds and widths to sum, the best first; one fold means GCV.
PLANS = ((5, 9), (5, 5), (5, 3), (3, 3), (1, 9), (1, 5), (5, 1), (1, 3), (3, 1), (1, 1))
#: Candidates for the penalty's weight per training row.
LAMBDAS = 10.0 ** np.arange(-10.0, 0.1, 0.5)
#: The same for regression, which may be without noise. Sums are rounded by some 10^-16.
LAMBDAS_OF_NUMBERS = 10.0 ** np.arange(-13.0, 0.1, 0.5)
#: Errors within this relative difference of the least are ties: the smoother model is used.
TIE = 1e-6
#: The same for GCV of regression. Rows far from all others count little in a mean error, and too
#: small a lambda makes them much worse.
TIE_OF_NUMBERS = 1e-2
_STEPS = {9: range(-4, 5), 5: range(-2, 3), 3: range(-1, 2), 1: range(1)}
_CAUTION = 1.4


def widths_around(distance: float, count: int) -> Floats:
    """Return ``count`` widths gamma = 2^k / ``distance``, k about 0, ascending."""
    return np.asarray(2.0 ** np.array(_STEPS[count]) / distance)


@dataclass(frozen=True)
class Choice:
    """The chosen width and lambda.

    Attributes
    ----------
    width, weight : int
        Positions among the widths and lambdas.
    errors : ndarray of float64, shape (widths, lambdas)
        Estimated mean squared error of a row, over all outputs.
    """

    width: int
    weight: int
    errors: Floats


def choose(equations: Equations, lambdas: Floats, rows: int, *, numbers: bool = False) -> Choice:
    """Choose a width and a lambda by held-out folds, or by GCV if there is one fold.

    Among errors within :data:`TIE` take the smallest gamma, then the largest lambda (by GCV of
    numbers: within :data:`TIE_OF_NUMBERS`).

    Parameters
    ----------
    equations : Equations
        Widths from the smoothest on.
    lambdas : ndarray of float64, shape (j,)
        Ascending.
    rows : int
        Training rows in the equations.
    numbers : bool (default: False)
        Whether targets are numbers, not classes.
    """
    folds, widths = equations.gram.shape[:2]
    score = _held_out if folds > 1 else _gcv
    errors = np.array([score(equations, w, lambdas, rows) for w in range(widths)])
    width = int(np.argmax(errors.min(axis=1) <= errors.min() * (1.0 + TIE)))
    tie = TIE_OF_NUMBERS if numbers and folds == 1 else TIE
    weight = int(np.flatnonzero(errors[width] <= errors.min() * (1.0 + tie))[-1])
    return Choice(width, weight, errors)


def _gcv(equations: Equations, width: int, lambdas: Floats, rows: int) -> Floats:
    """Return |y - K c|^2 / n / (1 - 1.4 tr(H) / n)^2, summed over outputs, for each lambda.

    Without the factor, with as many landmarks as rows, a model that interpolates wins.
    """
    (gram,), (right,) = equations.gram[:, width], equations.right[:, width]
    values, vectors = _eigen(gram)
    turned, out = vectors.T @ right, np.empty(len(lambdas))
    for j, weight in enumerate(lambdas):
        c = turned / (values + weight)[:, None]
        rest = equations.squares[0] - 2.0 * (c * turned).sum(0) + (values[:, None] * c**2).sum(0)
        free = 1.0 - _CAUTION * (values / (values + weight)).sum() / rows
        error = np.maximum(rest, 0.0).sum() / rows
        out[j] = error / free**2 if free > 0.0 else np.inf
    return out


def _held_out(equations: Equations, width: int, lambdas: Floats, rows: int) -> Floats:
    grams, rights = equations.gram[:, width], equations.right[:, width]
    gram, right, out = grams.sum(0), rights.sum(0), np.zeros(len(lambdas))
    for held, seen, squares in zip(grams, rights, equations.squares, strict=True):
        values, vectors = _eigen(gram - held)
        turned = vectors.T @ (right - seen)
        for j, weight in enumerate(lambdas):
            c = vectors @ (turned / (values + weight)[:, None])
            error = squares - 2.0 * (c * seen).sum(0) + (c * (held @ c)).sum(0)
            out[j] += np.maximum(error, 0.0).sum() / rows
    return out


def _eigen(gram: Floats) -> tuple[Floats, Floats]:
    from scipy import linalg  # nodes need the layout of the equations alone

    values, vectors = linalg.eigh(gram)
    return np.maximum(values, 0.0), vectors
