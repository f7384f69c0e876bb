"""Training on random Fourier features that are held as phases: one exchange, then only local work.

The model is f(x) = phi(x) w with phi_j = sqrt(2 / R) cos(m angle_j), trained by minimising, for
each output, mean_i L(f(x_i), y_i) + lambda / 2 |w|^2. Features are made from their phases a few
rows at a time and never stored.

Width and regularization are chosen by cross-validation. Every candidate is local work of who holds
the labels: no exchange is needed for it.

References
----------
Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", 2020: the model and the objective.
Nocedal and Wright, "Numerical Optimization", 2006, section 7.2: L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from threadpoolctl import threadpool_limits

from ..errors import FedKernError, OptionError
from ..labels import decide
from ..seeding import derive_seed
from ..solvers.least_squares import check_regularization
from ..solvers.losses import LOSSES, Loss, loss_derivatives, loss_values
from .phases import (
    INTERCEPT,
    Chunks,
    Features,
    Floats,
    Phases,
    chunk_outputs,
    cosines,
    feature_chunks,
)

Scores = dict[tuple[int, float], float]

#: Multiples of the base frequencies that are tried: widths of a Gaussian up to 64 times the base.
MULTIPLES = (1, 2, 3, 4, 6, 8)
REGULARIZATIONS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
#: Numbers may be known exactly; float64 features, of phases of 32 bits, hold such small ones.
REGULARIZATIONS_OF_NUMBERS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, *REGULARIZATIONS)
_SEARCH_TOLERANCE = 1e-3
Mask = NDArray[np.bool_]

ITERATIONS = 500
LARGEST_CURVATURE: Mapping[Loss, float] = {"square": 2.0, "logistic": 0.25, "smooth-hinge": 1.0}
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
    chunks, basis = _chunks_of(phases, multiple, intercept)
    alone = intercept and basis is None
    equations = add_equations(chunks, targets, weights=weights, intercept=alone)
    found = solve(equations, regularization)
    return found if basis is None else basis @ found


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
    chunks, basis = _chunks_of(phases, multiple, intercept)
    alone = intercept and basis is None
    equations = add_equations(chunks, targets, weights=weights, intercept=alone)
    if start is not None and basis is not None:
        start = basis.T @ start
    found = descend(
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
    return found if basis is None else basis @ found


@dataclass(frozen=True)
class Fitted:
    """A model and how its options were chosen.

    Parameters
    ----------
    weights : ndarray of float64, shape (R, k) or, with an intercept, (R + 1, k)
        w.
    multiple : int
        m, which multiplies the frequencies.
    regularization : float
        lambda.
    scores : dict (default: empty)
        Accuracy (the larger the better) or root of the mean squared error (the smaller) by
        (multiple, regularization), from the cross-validation with the loss itself.
    widths : dict (default: empty)
        The same for all candidates, with the square loss.
    refined : dict (default: empty)
        The same for the best and their neighbours, from one fold of all rows, all directions.
    """

    weights: Floats
    multiple: int
    regularization: float
    scores: Scores = field(default_factory=dict)
    widths: Scores = field(default_factory=dict)
    refined: Scores = field(default_factory=dict)


def fit(
    loss: Loss,
    phases: Phases,
    targets: Floats,
    *,
    classes: int,
    seed: int,
    multiples: Sequence[int] = MULTIPLES,
    regularizations: Sequence[float] = REGULARIZATIONS,
    intercept: bool = False,
    weights: Floats | None = None,
    folds: int = 5,
    rows: int = 4000,
    directions: int | None = None,
) -> Fitted:
    """Choose width and regularization by cross-validation, then train on all rows.

    The width is chosen with the square loss, which costs one decomposition for all lambda, by
    K-fold cross-validation on a sample of the rows and the first directions; then lambda for that
    width with the loss itself. If there are more rows than the sample, the choices are compared
    with their neighbours (lambda within a factor of ten) on one fold held out of all rows, with
    all directions.
    Equal scores go to the smoother model: the smaller multiple, then the larger regularization.

    Parameters
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
        L.
    phases : ndarray of uint16 or uint32, shape (n, R)
        Angles as integers.
    targets : ndarray of float64, shape (n, k)
        y.
    classes : int
        Number of classes, 0 for regression.
    seed : int
        Seed of the sample and the folds.
    multiples : sequence of int (default: MULTIPLES)
        Candidates for m.
    regularizations : sequence of float (default: REGULARIZATIONS)
        Candidates for lambda. With one of each there is nothing to choose.
    intercept : bool (default: False)
        Whether there is a constant feature as well.
    weights : ndarray of float64, shape (n,), optional
        Of rows, such as those with which classes count alike, in what is minimised and in scores.
    folds : int (default: 5)
        K.
    rows : int (default: 4000)
        Most rows of the sample.
    directions : int, optional
        Most directions in the cross-validation: 500 of classes, 1000 of numbers, whose small
        lambda fits fewer directions and not more.

    Returns
    -------
    Fitted

    Raises
    ------
    OptionError
        No candidates or bad ones, or fewer rows than two folds need; as :func:`minimise`.
    FedKernError
        The tolerance is not reached.
    """
    check_training(phases, targets, loss)
    multiples = sorted(set(multiples))
    regularizations = sorted(set(regularizations), reverse=True)
    _check_candidates(multiples, regularizations, folds, len(targets))
    if len(multiples) * len(regularizations) == 1:
        multiple, regularization = multiples[0], regularizations[0]
        trained = _train(loss, phases, targets, regularization, multiple, intercept, weights)
        return Fitted(trained, multiple, regularization)
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(targets))
    sample, folds = order[:rows], min(folds, len(targets))
    directions = directions or (500 if classes else 1000)
    held = np.zeros(len(targets), np.bool_)
    held[order[: len(targets) // folds]] = True
    few, y, many = phases[:, :directions][sample], targets[sample], len(targets) > rows
    own = None if weights is None else weights[sample]

    def search(loss: Loss, multiple: int) -> Scores:
        z = _features(few, multiple, intercept)
        if _spans_little(z):
            narrow = _spanned(z)[1]
            z = narrow if z.dtype == np.float64 else narrow.astype(np.float32)
        with threadpool_limits(1, "blas"):  # the matrices are too small to share
            found = _cross_validate(loss, z, y, regularizations, classes, folds, own)
        return {(multiple, value): score for value, score in found.items()}

    def refine(loss: Loss, multiple: int, regularization: float) -> Scores:
        chunks = partial(feature_chunks, phases, multiple, intercept=intercept)
        near = [v for v in regularizations if 0.09 < v / regularization < 11.0]
        found = _hold_out(loss, chunks, targets, near, classes, held, intercept, weights)
        return {(multiple, value): score for value, score in found.items()}

    widths: Scores = {}
    refined: Scores = {}
    multiple = multiples[0]
    if loss == "square" or len(multiples) > 1:
        widths = {k: v for m in multiples for k, v in search("square", m).items()}
        multiple, regularization = _best(widths, classes)
        if many:
            place = multiples.index(multiple)
            for near in multiples[max(0, place - 1) : place + 2]:
                refined |= refine("square", near, regularization)
            multiple, regularization = _best(refined, classes)
    scores = widths
    if loss != "square":
        scores = search(loss, multiple)
        _, regularization = _best(scores, classes)
        if many:
            refined = refine(loss, multiple, regularization)
            _, regularization = _best(refined, classes)
    return Fitted(
        _train(loss, phases, targets, regularization, multiple, intercept, weights),
        multiple,
        regularization,
        scores=scores,
        widths=widths,
        refined=refined,
    )


def _train(
    loss: Loss,
    phases: Phases,
    targets: Floats,
    regularization: float,
    multiple: int,
    intercept: bool,
    weights: Floats | None,
) -> Floats:
    more: dict[str, Any] = {"intercept": intercept, "weights": weights}
    if loss == "square":
        return solve_square(phases, targets, regularization, multiple, **more)
    return minimise(loss, phases, targets, regularization, multiple, **more)


def _spans_little(rows: Phases | Features) -> bool:
    """Tell whether rows are so few that equations in what they span are smaller."""
    return bool(2 * rows.shape[0] < rows.shape[1])


def _spanned(z: Features) -> tuple[Floats, Floats]:
    """Return an orthonormal basis of what rows span, and the rows in it."""
    basis, rows = linalg.qr(z.T.astype(np.float64), mode="economic", overwrite_a=True)
    return np.asarray(basis), np.ascontiguousarray(rows.T)


def _chunks_of(phases: Phases, multiple: int, intercept: bool) -> tuple[Chunks, Floats | None]:
    """Return features a few rows at a time; of few rows in a basis of what they span, and that.

    The solution is in the span of the rows: n equations have it as well as R.
    """
    if not _spans_little(phases):
        return partial(feature_chunks, phases, multiple, intercept=intercept), None
    basis, rows = _spanned(_features(phases, multiple, intercept))
    return lambda: iter([(slice(0, len(rows)), rows)]), basis


def _features(phases: Phases, multiple: int, intercept: bool) -> Features:
    z = cosines(phases, multiple)
    z *= z.dtype.type(np.sqrt(2.0 / z.shape[1]))
    constant = np.full((len(z), 1), np.sqrt(INTERCEPT), z.dtype)
    return np.hstack([z, constant]) if intercept else z


def _cross_validate(
    loss: Loss,
    z: Features,
    targets: Floats,
    regularizations: Sequence[float],
    classes: int,
    folds: int,
    shares: Floats | None,
) -> dict[float, float]:
    """Return scores over all rows of stored features, each predicted without its fold.

    Features are turned into the eigenvectors of a fold's Z^T Z: one decomposition serves every
    lambda, there the square loss falls apart into single weights, and other losses are round
    but for a scale of each weight.
    """
    predictions = {value: np.empty_like(targets) for value in regularizations}
    place = np.arange(len(targets)) % folds
    root = None if shares is None else np.sqrt(shares)[:, None]
    zw, yw = (z, targets) if root is None else (z * root.astype(z.dtype), targets * root)
    gram, right = zw.T @ zw, zw.T @ yw.astype(z.dtype)
    for held in (place == fold for fold in range(folds)):
        left_out, rows = zw[held], int((~held).sum())
        values, vectors = linalg.eigh((gram - left_out.T @ left_out).astype(np.float64) / rows)
        values = np.maximum(values, 0.0)[:, None]
        side = vectors.T @ (right - left_out.T @ yw[held].astype(z.dtype)) / rows
        turned = z @ vectors.astype(z.dtype)
        train, last = turned[~held], turned[held].astype(np.float64)
        chunk = [(slice(0, rows), train)]
        each = shares_of(rows, None if shares is None else shares[~held])
        weights: Floats | None = None
        for value in regularizations:
            if loss == "square":
                weights = 2.0 * side / (2.0 * values + value)
            else:
                weights = descend(
                    loss,
                    lambda chunk=chunk: chunk,  # type: ignore[misc]
                    targets[~held],
                    each,
                    value,
                    scaled(np.sqrt(LARGEST_CURVATURE[loss] * values + value)),
                    np.zeros_like(side) if weights is None else weights,
                    _SEARCH_TOLERANCE,
                    ITERATIONS,
                )
            predictions[value][held] = last @ weights
    return {value: _score(found, targets, classes, shares) for value, found in predictions.items()}


def _hold_out(
    loss: Loss,
    chunks: Chunks,
    targets: Floats,
    regularizations: Sequence[float],
    classes: int,
    held: Mask,
    intercept: bool,
    weights_of_rows: Floats | None,
) -> dict[float, float]:
    """Return scores on the rows held out."""
    train = add_equations(chunks, targets, ~held, weights_of_rows, intercept=intercept)
    shares = np.where(held, 0.0, 1.0 / train.rows)[:, None]
    last = None
    if weights_of_rows is not None:
        shares, last = shares * weights_of_rows[:, None], weights_of_rows[held]
    models: list[Floats] = []
    for value in regularizations:
        if loss == "square":
            models.append(solve(train, value))
            continue
        weights = descend(
            loss,
            chunks,
            targets,
            shares,
            value,
            factored(factorise(train, LARGEST_CURVATURE[loss], value)),
            models[-1] if models else solve(train, value),
            _SEARCH_TOLERANCE,
            ITERATIONS,
        )
        models.append(weights)
    together = chunk_outputs(chunks, np.hstack(models), len(targets))[held]
    parts = np.split(together, len(models), axis=1)
    scores = [_score(part, targets[held], classes, last) for part in parts]
    return dict(zip(regularizations, scores, strict=True))


def _score(
    predictions: Floats, targets: Floats, classes: int, weights: Floats | None = None
) -> float:
    if classes:
        return float(np.average(decide(predictions) == decide(targets), weights=weights))
    return float(np.sqrt(((predictions - targets) ** 2).mean()))


def _best(scores: Scores, classes: int) -> tuple[int, float]:
    """Return the first of the best."""
    return (max if classes else min)(scores, key=lambda key: scores[key])


def _check_candidates(
    multiples: Sequence[int], regularizations: Sequence[float], folds: int, rows: int
) -> None:
    if not multiples or not regularizations:
        raise OptionError(
            "there are no candidates",
            remedy="name a multiple and a regularization",
            code="FK-OPTION-RANGE",
        )
    if multiples[0] < 1:
        raise OptionError(
            f"multiple is {multiples[0]}", remedy="use whole numbers from 1", code="FK-OPTION-RANGE"
        )
    for value in regularizations:
        check_regularization(value)
    if len(multiples) * len(regularizations) > 1 and min(folds, rows) < 2:
        raise OptionError(
            f"cross-validation in {folds} folds of {rows} rows",
            remedy="use at least two of both",
            code="FK-FOLDS-FEW",
        )


# -- sums over the rows, and the search


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
            code="FK-EQUATIONS-SINGULAR",
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
        code="FK-SOLVER-STEPS",
    )


def check_training(phases: Phases, targets: Floats, loss: Loss) -> None:
    """Raise OptionError for what no loss can be trained on."""
    if loss not in LOSSES:
        raise OptionError(
            f"loss is {loss}", remedy=f"use one of {', '.join(LOSSES)}", code="FK-OPTION-CHOICE"
        )
    if targets.shape[:1] != phases.shape[:1] or targets.ndim != 2 or not phases.size:
        raise OptionError(
            f"phases have shape {phases.shape}, targets {targets.shape}",
            remedy="give as many rows of both, at least one",
            code="FK-SHAPE-DIFFERS",
        )
    if loss != "square" and not (np.abs(targets) == 1.0).all():
        raise OptionError(
            f"the {loss} loss is for classes, targets are not -1 and 1",
            remedy="use the square loss",
            code="FK-LOSS-CLASSES",
        )
