"""FedCG chooses width and lambda from sums of several widths and folds, in the same exchanges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedkern_flwr.hybrid.parties import Plan
from fedkern_flwr.method import Steps
from fedkern_flwr.solvers.tuning import (
    LAMBDAS,
    LAMBDAS_OF_NUMBERS,
    PLANS,
    choose,
    spread,
    widths_around,
)
from fedkern_flwr.solvers.tuning_sums import tuning_length
from fedkern_flwr.strategy import logger

from .fed_cg_solvers import solve_summed
from .fed_cg_system import Floats, HybridSystem

if TYPE_CHECKING:
    from .fed_cg import FedCG

_LEAST_ROWS = 5  # of a hospital in a fold
_LANDMARKS = (20, 400)  # least and most
_MOST_NUMBERS = 1 << 23  # of a hospital's message: 64 MB


def tune_and_solve(system: HybridSystem, strategy: FedCG) -> Steps:
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
    (folds, count), why = plan_sums(system, strategy)
    rows = system.plan.training_rows
    # without anybody to sum with: rows and landmarks uniform in the unit cube
    parties = [system.parties[holders[0]] for holders in system.plan.blocks.values()]
    rbf = strategy.kernel == "rbf"
    bound = sum(p.square_bound if rbf else p.absolute_bound for p in parties)
    distance = system.mean_distance or bound / (6.0 if rbf else 3.0) or 1.0
    # the last digits are those of the nodes' processors: engines take the same widths
    gammas = widths_around(float(f"{distance:.12g}"), count)
    if strategy.gamma is not None:
        gammas = np.array([strategy.gamma])
    lambdas = rows * (LAMBDAS if system.first.classes else LAMBDAS_OF_NUMBERS)
    if strategy.regularization is not None:
        lambdas = np.array([strategy.regularization])
    sums = yield from system.tuning_equations(of_landmarks(strategy, gammas), folds)
    found = choose(sums, lambdas, rows, numbers=not system.first.classes)
    gamma, weight = float(gammas[found.width]), float(lambdas[found.weight])
    tuned = {
        "by": f"{folds} folds" if folds > 1 else "generalised cross-validation",
        "why": why,
        "gammas": gammas.tolist(),
        "regularizations": lambdas.tolist(),
        "gamma": gamma,
        "regularization": weight,
        "error": float(found.errors[found.width, found.weight]),
        "numbers": tuning_length(system.landmarks, system.first.outputs, folds, len(gammas)),
    }
    logger.info("by %s: gamma %.3g, lambda %.3g (%s)", tuned["by"], gamma, weight, why)
    system.gammas = of_landmarks(strategy, gammas)[found.width]
    gram, right = sums.gram[:, found.width].sum(0), sums.right[:, found.width].sum(0)
    coefficients, metrics = yield from solve_summed(system, gram, right, weight)
    return coefficients, {**metrics, "gamma": gamma, "regularization": weight}, tuned


def of_landmarks(strategy: FedCG, gammas: Floats) -> Floats:
    """Return the widths of the landmarks, shape (w, m), one for all, (w, 1), where it is given."""
    return gammas[:, None] if strategy.gamma is not None else spread(gammas, strategy.landmarks_)


def auto_landmarks(plan: Plan, outputs: int, allowed: float) -> int:
    """Return how many landmarks are taken: those whose sums for one width may be released."""
    least, most = _LANDMARKS
    rows = max(1, sum(ward.total for ward in plan.wards.values()))
    most = max(least, min(most, _MOST_NUMBERS // rows))
    moments = 1 + outputs  # the mean distance, y^T y
    free = 8 * (min(allowed, 1e9) - moments) + (2 * outputs + 1) ** 2  # m (m + 1) / 2 + m k
    fits = math.isqrt(int(max(0.0, free)))
    return min(most, max(least, (fits - 2 * outputs - 1) // 2))


def plan_sums(system: HybridSystem, strategy: FedCG) -> tuple[tuple[int, int], str]:
    """Return (folds, widths) to be summed, the best that the nodes allow, and why not more."""
    wards = system.plan.wards
    allowed = strategy.counting_allows() - system.released
    wanted = [plan for plan in PLANS if strategy.tune != "gcv" or plan[0] == 1]
    if None not in (strategy.gamma, strategy.regularization):
        wanted = [(1, 1)]  # there is nothing to choose: the rows of rare classes weigh more
    elif strategy.gamma is not None:
        wanted = list(dict.fromkeys((folds, 1) for folds, _ in wanted))
    why, of_folds = "all that is tried", ""
    for folds, widths in wanted:
        numbers = tuning_length(system.landmarks, system.first.outputs, folds, widths)
        least = max(_LEAST_ROWS, *(system.parties[h].fold_rows for h in wards))
        most = max(system.parties[h].fold_sum_rows for h in wards)
        few = any(0 < ward.train < folds * least for ward in wards.values())
        few = few or sum(ward.train // folds for ward in wards.values()) < most
        if folds > 1 and few:
            why = "more folds would have too few rows"
        elif numbers > allowed:
            why = f"the rule of counting allows {math.floor(max(allowed, 0)):,} numbers"
        elif numbers > _MOST_NUMBERS:
            why = f"more would be {8 * numbers >> 20} MB"
        else:
            break
        if folds > 1:
            of_folds = why if few else f"{why}; use fewer landmarks"
    if strategy.tune == "folds" and folds == 1 and of_folds:
        logger.warning("generalised cross-validation chooses, not folds: %s", of_folds)
    return (folds, widths), why
