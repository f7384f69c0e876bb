"""Solvers of FedCG: the normal equations at once, or conjugate gradients, a product an exchange.

Width and lambda are chosen from normal equations of several widths and folds, in the same
exchanges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.hybrid.fourier import regularize
from fedkern_flwr.method import Round, Save, Steps
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.progress import part, progress
from fedkern_flwr.reporting import iterations_ended
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.solvers.conjugate_gradient import CGState, ConjugateGradient
from fedkern_flwr.solvers.least_squares import regularized, solve_equations
from fedkern_flwr.solvers.preconditioner import NystromPreconditioner
from fedkern_flwr.solvers.tuning import (
    LAMBDAS,
    LAMBDAS_OF_NUMBERS,
    choose,
    widths_around,
)
from fedkern_flwr.solvers.tuning_sums import spread, tuning_length

from .fed_cg_plan import plan_sums
from .fed_cg_system import Floats, HybridSystem

if TYPE_CHECKING:
    from .fed_cg import FedCG

#: Of rounding errors: the worst held-out row against the mean; which are told of.
_WORST, _TOLD = 50.0, 1e-3


def first_coefficients(
    shape: tuple[int, int], given: Sequence[NDArray[Any]], init: str, seed: int
) -> Floats:
    """Return what conjugate gradients start from: what was given, zeros or standard normal."""
    if given:
        (start,) = given
        if start.shape != shape:
            raise ProtocolError(
                f"initial_arrays has shape {start.shape} instead of {shape}",
                code="FK-INITIAL-SHAPE",
            )
        return np.asarray(start, np.float64)
    if init == "random":
        rng = np.random.default_rng(derive_seed(seed, "initial coefficients"))
        return np.asarray(rng.standard_normal(shape))
    return np.zeros(shape)


def solve_directly(system: HybridSystem, regularization: float) -> Steps:
    """Sum the normal equations, solve them; return coefficients, shape (m, k), and metrics."""
    gram, right = yield from system.equations()
    if not system.deviation:
        return (yield from solve_summed(system, gram, right, regularization))
    gram, regularization = regularize(gram, regularization, system.deviation)
    coefficients, metrics = yield from solve_summed(system, gram, right, regularization)
    return coefficients, {**metrics, "regularization": regularization}


def solve_summed(system: HybridSystem, gram: Floats, right: Floats, regularization: float) -> Steps:
    """Solve normal equations that are summed; return coefficients, shape (m, k), and metrics."""
    system.gram, pairs = gram, system.landmark_kernel
    with part("train"):
        coefficients = solve_equations(gram, right, regularization, pairs)
    rest = right - regularized(gram, regularization, pairs) @ coefficients
    lengths = np.linalg.norm(right, axis=0)
    residuals = np.linalg.norm(rest, axis=0) / np.where(lengths > 0.0, lengths, 1.0)
    if pairs is None and (error := rounding_error(system, gram, coefficients, regularization)):
        logger.warning(
            "lambda %.1g is lost in the rounding of the sums: predictions may be off by %.1g; use "
            "a larger regularization",
            regularization,
            error,
        )
    row = _row(system, residuals, (rest**2).sum(0))
    yield Round(1, row)
    return coefficients, {"iterations": 0, "residual": row["residual"]}


def rounding_error(
    system: HybridSystem, gram: Floats, coefficients: Floats, regularization: float
) -> float:
    """Return about how far predictions are from those of exact sums; 0 below what is told.

    Every number of K^T K is off by some 1e-16 of the largest, E, and the coefficients c by
    (K^T K + lambda I)^-1 E c. The mean over the training rows, times what the worst of held-out
    ones was seen to be off.
    """
    rows = system.plan.training_rows
    error = _WORST * np.finfo(np.float64).eps / 2.0 * float(gram.max(initial=0.0))
    error *= math.sqrt(1.0 + float((coefficients**2).sum()))
    if error * math.sqrt(len(gram) / (4.0 * regularization * rows)) < _TOLD:  # no more than this
        return 0.0
    values = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    error *= math.sqrt(float((values / (values + regularization) ** 2).sum()) / rows)
    return error if error >= _TOLD else 0.0


def iterate(
    system: HybridSystem,
    start: Floats,
    probes: Floats,
    most: int,
    saved: Arrays,
    save: Callable[[Arrays], Save],
    *,
    regularization: float,
    tolerance: float,
) -> Steps:
    """Run conjugate gradients; return coefficients and metrics.

    Parameters
    ----------
    system : HybridSystem
        Makes the products.
    start : ndarray, shape (m, k)
        Where to start.
    probes : ndarray, shape (m, r)
        Directions whose products make the preconditioner, none without.
    most : int
        Most iterations.
    saved : dict
        Arrays of the checkpoint of a run that broke off, else empty.
    save : callable
        Returns the step that keeps arrays.
    regularization : float
        lambda.
    tolerance : float
        Relative residual at which to stop.

    Returns
    -------
    ndarray, shape (m, k)
        The coefficients.
    dict
        Iterations and residual.
    """
    pairs = system.landmark_kernel

    def shifted(product: Floats, p: Floats) -> Floats:
        return product + regularization * (p if pairs is None else pairs @ p)

    begun: Arrays = dict(saved)
    options: dict[str, Any] = {"state": CGState.from_arrays(saved)} if saved else {}
    if not saved:  # one exchange
        right, sketch, product = yield from system.begin(probes, start)
        begun = {"right": right, **({"sketch": sketch, "probes": probes} if sketch.size else {})}
        if start.any():
            options = {"start": start, "start_product": shifted(product, start)}
    kept: Arrays = {name: begun[name] for name in ("right", "sketch", "probes") if name in begun}
    kept |= {} if pairs is None else {"landmark_kernel": pairs}
    if "sketch" in begun:
        options["precondition"] = NystromPreconditioner(
            begun["sketch"], begun["probes"], regularization
        )
    solver = ConjugateGradient(begun["right"], tolerance=tolerance, **options)
    state = solver.state
    while state.iteration < most and solver.active.any():
        p = solver.direction
        solver.take(shifted((yield from system.products(p))[1], p))
        row = _row(system, solver.residuals, state.squared[-1])
        yield Round(state.iteration, row, save=save({**state.arrays(), **kept}))
    if not state.iteration:
        yield Round(0, _row(system, solver.residuals, state.squared[-1]))
    residual = float(solver.residuals.max())
    remedy = "use a larger regularization, a larger preconditioner_rank or solver normal-equations"
    ended = iterations_ended(
        state.iteration, solver.result().converged, f"residual {residual:.1e}", remedy
    )
    return state.x, {**ended, "residual": residual}


def _row(system: HybridSystem, residuals: Floats, squared: Floats) -> dict[str, Any]:
    return {
        "residual": float(np.max(residuals)),
        "squared_residual": float(np.sum(squared)),
        "survivors": len(system.plan.parties),
    }


# -- choosing width and lambda


def tune_and_solve(system: HybridSystem) -> Steps:
    """Sum the equations of several widths and folds, choose, solve.

    Returns
    -------
    ndarray, shape (m, k)
        The coefficients.
    dict
        Metrics.
    dict
        What was tried and chosen, as plain values for a result file.
    """
    options = system.options
    taken = system.sums or plan_sums(system)
    folds, why = taken.folds, taken.why
    rows = system.plan.training_rows
    # where no mean distance is summed: that of rows uniform in the declared ranges
    parties = [system.parties[holders[0]] for holders in system.plan.blocks.values()]
    rbf = options.kernel == "rbf"
    bound = sum(p.square_bound if rbf else p.absolute_bound for p in parties)
    distance = system.mean_distance or bound / (6.0 if rbf else 3.0) or 1.0
    # the last digits are those of the nodes' processors: engines take the same widths
    gammas = widths_around(float(f"{distance:.12g}"), taken.widths)
    if options.gamma is not None:
        gammas = np.array([options.gamma])
    if taken.known:
        gammas = np.array(taken.known)
    lambdas = rows * (LAMBDAS if system.labels.classes else LAMBDAS_OF_NUMBERS)
    if options.regularization is not None:
        lambdas = np.array([options.regularization])
    widths = of_landmarks(options, gammas, system.landmarks)
    sums = yield from system.tuning_equations(widths, folds)
    progress(f"choosing width and lambda, {len(widths)} x {len(lambdas)} candidates")
    with part("train"):
        found = choose(sums, lambdas, rows, numbers=not system.labels.classes)
    gamma, weight = float(gammas[found.width]), float(lambdas[found.weight])
    tuned = {
        "by": f"{folds} folds" if folds > 1 else "generalised cross-validation",
        "why": why,
        "gammas": gammas.tolist(),
        "regularizations": lambdas.tolist(),
        "gamma": gamma,
        "regularization": weight,
        "error": float(found.errors[found.width, found.weight]),
        "numbers": tuning_length(system.landmarks, system.labels.outputs, folds, len(gammas)),
    }
    logger.info("by %s: gamma %.3g, lambda %.3g (%s)", tuned["by"], gamma, weight, why)
    system.gammas = widths[found.width]
    gram, right = sums.gram[:, found.width].sum(0), sums.right[:, found.width].sum(0)
    coefficients, metrics = yield from solve_summed(system, gram, right, weight)
    return coefficients, {**metrics, "gamma": gamma, "regularization": weight}, tuned


def of_landmarks(options: FedCG, gammas: Floats, landmarks: int) -> Floats:
    """Return the widths of the landmarks, shape (w, m), one for all, (w, 1), where it is given."""
    return gammas[:, None] if options.gamma is not None else spread(gammas, landmarks)
