"""Sums over the rows of a model on phases, and the search for its weights, chunk by chunk.

References
----------
Nocedal and Wright, "Numerical Optimization", 2006, section 7.2: L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ..errors import FedKernError, OptionError
from ..solvers.losses import LOSSES, Loss, loss_derivatives, loss_values
from .phases import INTERCEPT, Chunks, Floats, Phases

Mask = NDArray[np.bool_]

ITERATIONS = 500
LARGEST_CURVATURE: Mapping[Loss, float] = {"square": 2.0, "logistic": 0.25, "smooth-hinge": 1.0}


@dataclass(frozen=True)
class Equations:
    """Sums over rows: Z^T Z, shape (R, R), and Z^T y, shape (R, k)."""

    gram: Floats
    right: Floats
    rows: int


def add_equations(
    chunks: Chunks,
    targets: Floats,
    chosen: Mask | None = None,
    weights: Floats | None = None,
    *,
    intercept: bool = False,
) -> Equations:
    """Add up the equations of the chosen rows, times their weights, in float64 over the chunks.

    With an intercept, the sums of features are those of float64: rounded to float32 they would
    make equations of a small lambda singular.
    """
    gram: Floats | None = None
    sums: Floats | float = 0.0
    for part, features in chunks():
        z, y = features, targets[part]
        if chosen is not None:
            z, y = z[chosen[part]], y[chosen[part]]
        if weights is not None:
            w = weights[part] if chosen is None else weights[part][chosen[part]]
            root = np.sqrt(w)[:, None]
            z, y = z * root.astype(z.dtype), y * root
        if gram is None:
            gram, right = np.zeros((z.shape[1],) * 2), np.zeros((z.shape[1], y.shape[1]))
        gram += z.T @ z
        right += z.T @ y.astype(z.dtype)
        if intercept:
            own = z if weights is None else z * root
            sums = sums + own.sum(axis=0, dtype=np.float64)
    assert gram is not None
    if intercept:
        gram[-1] = gram[:, -1] = np.sqrt(INTERCEPT) * sums
    return Equations(gram, right, len(targets) if chosen is None else int(chosen.sum()))


def shares_of(rows: int, weights: Floats | None) -> Floats:
    """Return by what the losses of rows are multiplied in their mean, shape (n, 1)."""
    return np.full((rows, 1), 1.0 / rows) if weights is None else weights[:, None] / rows


def factorise(equations: Equations, curvature: float, regularization: float) -> Floats:
    """Return the lower Cholesky factor of c/n Z^T Z + lambda I."""
    matrix = (curvature / equations.rows) * equations.gram
    matrix[np.diag_indices_from(matrix)] += regularization
    try:
        # the transpose of a symmetric matrix in C order is what LAPACK can overwrite
        return np.asarray(linalg.cholesky(matrix.T, lower=True, overwrite_a=True))
    except linalg.LinAlgError:
        raise OptionError(
            f"the normal equations are singular at regularization {regularization:g}",
            remedy="use a larger regularization, or phases of 32 bits",
        ) from None


def solve(equations: Equations, regularization: float) -> Floats:
    """Return the weights of the square loss."""
    factor = factorise(equations, 2.0, regularization)
    return np.asarray(linalg.cho_solve((factor, True), (2.0 / equations.rows) * equations.right))


@dataclass(frozen=True)
class Coordinates:
    """Coordinates v of the weights in which no curvature of the objective exceeds one.

    ``slope`` turns the gradient in w into that in v.
    """

    of: Callable[[Floats], Any]
    weights: Callable[[Floats], Any]
    slope: Callable[[Floats], Any]


def factored(factor: Floats) -> Coordinates:
    """Return v = C^T w with C C^T = c/n Z^T Z + lambda I."""
    return Coordinates(
        lambda w: factor.T @ w,
        lambda v: linalg.solve_triangular(factor, v, lower=True, trans="T"),
        lambda slope: linalg.solve_triangular(factor, slope, lower=True),
    )


def scaled(scales: Floats) -> Coordinates:
    """Return v = D w: the same where Z^T Z is diagonal."""
    return Coordinates(lambda w: scales * w, lambda v: v / scales, lambda slope: slope / scales)


def descend(
    loss: Loss,
    chunks: Chunks,
    targets: Floats,
    shares: Floats,
    regularization: float,
    coordinates: Coordinates,
    start: Floats,
    tolerance: float,
    iterations: int,
) -> Floats:
    """Minimise the sum of the losses weighted by ``shares``, shape (n, 1), by L-BFGS.

    Where the rounding of float32 leaves nothing lower to be found before the tolerance is met,
    the search goes on in float64.
    """

    def objective(v: Floats, precision: type[np.floating[Any]]) -> tuple[float, Floats]:
        w = coordinates.weights(v.reshape(start.shape))
        value, slope = 0.5 * regularization * float((w * w).sum()), regularization * w
        for part, features in chunks():
            z = features.astype(np.result_type(features, precision), copy=False)
            y, share = targets[part], shares[part]
            f = (z @ w.astype(z.dtype)).astype(np.float64)
            value += float((share * loss_values(loss, f, y)).sum())
            slope += z.T @ (share * loss_derivatives(loss, f, y)).astype(z.dtype)
        return value, coordinates.slope(slope).ravel()

    from scipy import optimize  # other methods do without, and it loads as slowly as all of them

    at, steps, largest = coordinates.of(start).ravel(), 0, np.inf
    for precision in (np.float32, np.float64):
        found = optimize.minimize(
            objective,
            at,
            (precision,),
            method="L-BFGS-B",
            jac=True,
            options={
                "maxiter": iterations - steps,
                "maxfun": 4 * iterations,
                "gtol": tolerance,
                "ftol": 0.0,
                "maxcor": 20,
            },
        )
        at, steps, largest = found.x, steps + found.nit, float(np.abs(found.jac).max())
        if largest <= tolerance:
            return np.asarray(coordinates.weights(at.reshape(start.shape)))
        if steps >= iterations:
            break
    raise FedKernError(
        f"the {loss} loss stopped at a gradient of {largest:.1e} after {steps} steps",
        remedy="use a larger regularization or tolerance, or more iterations",
    )


def check_training(phases: Phases, targets: Floats, loss: Loss) -> None:
    """Raise OptionError for what no loss can be trained on."""
    if loss not in LOSSES:
        raise OptionError(f"loss is {loss}", remedy=f"use one of {', '.join(LOSSES)}")
    if targets.shape[:1] != phases.shape[:1] or targets.ndim != 2 or not phases.size:
        raise OptionError(
            f"phases have shape {phases.shape}, targets {targets.shape}",
            remedy="give as many rows of both, at least one",
        )
    if loss != "square" and not (np.abs(targets) == 1.0).all():
        raise OptionError(
            f"the {loss} loss is for classes, targets are not -1 and 1",
            remedy="use the square loss",
        )
