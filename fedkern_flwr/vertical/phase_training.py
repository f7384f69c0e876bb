"""Training on random Fourier features that are held as phases: one exchange, then only local work.

The model is f(x) = phi(x) w with phi_j = sqrt(2 / R) cos(m angle_j), trained by minimising, for
each output, mean_i L(f(x_i), y_i) + lambda / 2 |w|^2. Features are made from their phases a few
rows at a time and never stored.

References
----------
Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", 2020: the model and the objective.
Nocedal and Wright, "Numerical Optimization", 2006, section 7.2: L-BFGS.
"""

from __future__ import annotations

from functools import partial

from ..solvers.least_squares import check_regularization
from ..solvers.losses import Loss
from .phase_descent import (
    ITERATIONS,
    LARGEST_CURVATURE,
    add_equations,
    check_training,
    descend,
    factored,
    factorise,
    shares_of,
    solve,
)
from .phases import Floats, Phases, feature_chunks

#: L-BFGS stops when no component of the gradient, in coordinates in which the square loss is
#: round, is larger: the objective is then within about its square, times R, of the smallest.
TOLERANCE = 1e-4


def solve_square(
    phases: Phases,
    targets: Floats,
    regularization: float,
    multiple: int = 1,
    *,
    intercept: bool = False,
    weights: Floats | None = None,
) -> Floats:
    """Minimise the square loss in closed form: (2/n Z^T Z + lambda I) w = 2/n Z^T y.

    Parameters
    ----------
    phases : ndarray of uint16 or uint32, shape (n, R)
        Angles as integers.
    targets : ndarray of float64, shape (n, k)
        y.
    regularization : float
        lambda.
    multiple : int (default: 1)
        m, which multiplies the frequencies.
    intercept : bool (default: False)
        Whether there is a constant feature as well.
    weights : ndarray of float64, shape (n,), optional
        By which the losses of rows are multiplied; their mean is one.

    Returns
    -------
    ndarray of float64, shape (R, k) or (R + 1, k)
        w.

    Raises
    ------
    OptionError
        lambda is not positive, or too small for the precision of the features.
    """
    check_training(phases, targets, "square")
    check_regularization(regularization)
    chunks = partial(feature_chunks, phases, multiple, intercept=intercept)
    equations = add_equations(chunks, targets, weights=weights, intercept=intercept)
    return solve(equations, regularization)


def minimise(
    loss: Loss,
    phases: Phases,
    targets: Floats,
    regularization: float,
    multiple: int = 1,
    start: Floats | None = None,
    *,
    intercept: bool = False,
    weights: Floats | None = None,
    tolerance: float = TOLERANCE,
    iterations: int = ITERATIONS,
) -> Floats:
    """Minimise the regularised mean loss by L-BFGS, all outputs at once.

    The search runs in the coordinates v = C^T w, where C C^T = c/n Z^T Z + lambda I and c is the
    largest curvature of the loss: there no curvature exceeds one, and few steps are enough.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        L.
    phases : ndarray of uint16 or uint32, shape (n, R)
        Angles as integers.
    targets : ndarray of float64, shape (n, k)
        y.
    regularization : float
        lambda.
    multiple : int (default: 1)
        m, which multiplies the frequencies.
    start : ndarray of float64, of the shape of w, optional
        First weights; those of the square loss if not given.
    intercept : bool (default: False)
        Whether there is a constant feature as well.
    weights : ndarray of float64, shape (n,), optional
        By which the losses of rows are multiplied; their mean is one.
    tolerance : float (default: 1e-4)
        Largest component of the gradient in v at which the search ends.
    iterations : int (default: 500)
        Most steps.

    Returns
    -------
    ndarray of float64, shape (R, k) or (R + 1, k)
        w.

    Raises
    ------
    OptionError
        lambda is not positive, or too small for the precision of the features; targets of a loss
        for classes are not -1 and 1.
    FedKernError
        The tolerance is not reached.
    """
    check_training(phases, targets, loss)
    check_regularization(regularization)
    chunks = partial(feature_chunks, phases, multiple, intercept=intercept)
    equations = add_equations(chunks, targets, weights=weights, intercept=intercept)
    return descend(
        loss,
        chunks,
        targets,
        shares_of(len(targets), weights),
        regularization,
        factored(factorise(equations, LARGEST_CURVATURE[loss], regularization)),
        solve(equations, regularization) if start is None else start,
        tolerance,
        iterations,
    )
