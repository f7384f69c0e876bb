"""Which sums FedCG takes: landmarks, folds and widths that fit what its nodes let out.

With m landmarks the normal equations of a width and fold are m (m + 1) / 2 + m k numbers about the
rows of that fold, k outputs. A fold is a cell of its own: what its rows hide is a fifth of what all
rows hide, of five folds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedkern_flwr.guard.counting import unknowns_of_bits
from fedkern_flwr.guard.freeze import FOLDS
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import moments_length
from fedkern_flwr.hybrid.parties import Plan
from fedkern_flwr.nodes import logger
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.solvers.tuning import PLANS
from fedkern_flwr.solvers.tuning_sums import tuning_length

if TYPE_CHECKING:
    from .fed_cg import FedCG
    from .fed_cg_system import HybridSystem

_LEAST_ROWS = 5  # of a hospital in a fold
_LEAST_LANDMARKS = (20, 400)  # least and most
_MOST_NUMBERS = 1 << 23  # of a hospital's message: 64 MB
_MOST_KEPT = 1 << 27  # of a hospital's rows without a message: 1 GB, in a file
#: Within a share: the landmarks that are worth more than folds and widths, and the least.
_ENOUGH, _LEAST_PLANNED = 200, 5

Parties = Mapping[int, wire.HybridDescribeReply]


@dataclass(frozen=True)
class Sums:
    """Which normal equations are summed to choose from, and why not more.

    Attributes
    ----------
    folds, widths : int
        Of how many folds and widths.
    why : str
    known : sequence of float
        The widths, where they are those of an earlier run.
    """

    folds: int
    widths: int
    why: str
    known: Sequence[float] = ()


def hospital_allowance(plan: Plan, parties: Parties, folds: int = 0) -> Allowance:
    """Return what may be opened about the hospitals' rows, or about those of each of some folds."""
    # nodes deal parts, five of them, to fewer folds
    share = (FOLDS // folds) / FOLDS if 1 < folds <= FOLDS else 1.0
    rows = {h: int(ward.train * share) for h, ward in plan.wards.items()} if folds else None
    beside = {
        h: {c: unknowns_of_bits(parties[c].bits) for c in ward.centres}
        for h, ward in plan.wards.items()
        if h in plan.whole
    }
    # others may have other landmarks than a hospital that makes its kernel by itself: it counts, as
    # without pinned identities, on its own rows
    own = [h for h, ward in plan.wards.items() if not (ward.centres or plan.alike)]
    cohort = [replace(parties[h], signature=b"") if h in own else parties[h] for h in plan.wards]
    return allowance(cohort, rows=rows, beside=beside)


def auto_landmarks(plan: Plan, outputs: int, allowed: Allowance, counts: int) -> int:
    """Return how many landmarks are taken: those whose sums for one width may be released.

    ``counts`` numbers are released besides, such as those of classes.
    """
    least, moments = _LEAST_LANDMARKS[0], 1 + outputs  # the mean distance, y^T y
    fits = allowed.square(outputs, taken=moments + counts)
    return min(_most_landmarks(plan), max(least, fits))


def plan_landmarks(
    options: FedCG, plan: Plan, parties: Parties, counts: int
) -> tuple[int, Sums | None]:
    """Return landmarks, and folds and widths if they are chosen, within the share of the nodes.

    Folds and several widths are taken where 200 landmarks are still allowed, else one width, with
    lambda by generalised cross-validation. What the user states is taken as stated.
    """
    outputs, stated = parties[plan.hospitals[0]].outputs, options.landmarks
    sampling, taken = options.chosen_sampling, float(counts)
    for holders in plan.blocks.values():
        if sampling in ("N", "C") and len(holders) > 1:
            taken += moments_length(parties[holders[0]].features, sampling)
    if not options.tunes:
        times = 2 if options.chosen_solver == "cg" else 1  # as much for probes and products
        allowed = hospital_allowance(plan, parties, 1)
        most = min(options.fixed_landmarks, allowed.square(outputs, times=times, taken=taken))
        most -= most % 2 if options.basis == "fourier" else 0
        landmarks = max(_LEAST_PLANNED + 1, most) if stated == "auto" else int(stated)
        options.note_plan(f"{landmarks} landmarks", allowed)
        return landmarks, None
    if known := known_widths(options, plan, parties):
        allowed, times = hospital_allowance(plan, parties), len(known)
        again = min(parties[h].again for h in plan.hospitals)
        allowed = replace(allowed, numbers=max(allowed.numbers, again))
        fits = allowed.square(outputs, times=times, taken=taken + outputs)
        most = min(_most_landmarks(plan), max(_LEAST_PLANNED, fits))
        landmarks = most if stated == "auto" else int(stated)
        options.note_plan(f"{landmarks} landmarks, widths of an earlier run: {times}", allowed)
        return landmarks, Sums(1, times, "the nodes' earlier run", known)
    wanted = [some for some in _wanted(options) if some[0] > 1 or options.tune != "folds"]
    for folds, widths in wanted:
        allowed = hospital_allowance(plan, parties, folds)
        fits = allowed.square(outputs, times=widths, taken=taken + 1 + outputs)
        enough = fits >= (_ENOUGH if stated == "auto" else int(stated))
        if enough and not _few_rows(plan, parties, folds):
            break
    most = min(_most_landmarks(plan), max(_LEAST_PLANNED, fits))
    landmarks = most if stated == "auto" else int(stated)
    how = f"{folds} folds" if folds > 1 else "generalised cross-validation"
    options.note_plan(f"{landmarks} landmarks, {how}, widths tried: {widths}", allowed)
    return landmarks, Sums(folds, widths, f"the nodes' share of {allowed.share:.0%}")


def known_widths(options: FedCG, plan: Plan, parties: Parties) -> list[float]:
    """Return the widths of an earlier run of all hospitals, if this run may take them again.

    Then it sums the same numbers of their rows again, which cost nothing. None where the user has
    a say in the widths, or centres have a part in the kernel.
    """
    said = {parties[h].how for h in plan.hospitals}
    free = options.gamma is None and options.class_weight is None and options.tune != "folds"
    same = all(plan.sampling(block, options.chosen_sampling) == "U" for block in plan.blocks)
    if not (options.tunes and free and same and plan.rows_alone) or len(said) > 1:
        return []
    kernel, widths = wire.read_widths(said.pop())
    return widths if kernel == options.kernel else []


def plan_sums(system: HybridSystem) -> Sums:
    """Return the best that the nodes allow."""
    options, plan, parties = system.options, system.plan, system.parties
    allowed = hospital_allowance(plan, parties).numbers - system.released
    why, of_folds = "all that is tried", ""
    for folds, widths in _wanted(options):
        numbers = tuning_length(system.landmarks, system.labels.outputs, folds, widths)
        few = _few_rows(plan, parties, folds)
        if few:
            why = "more folds would have too few rows"
        elif numbers > allowed:
            why = f"the rule of counting allows {math.floor(max(allowed, 0)):,} numbers"
        elif numbers > _MOST_NUMBERS:
            why = f"more would be {8 * numbers >> 20} MB"
        else:
            break
        if folds > 1:
            of_folds = why if few else f"{why}; use fewer landmarks"
    if options.tune == "folds" and folds == 1 and of_folds:
        logger.warning("generalised cross-validation chooses, not folds: %s", of_folds)
    return Sums(folds, widths, why)


def most_iterations(landmarks: int, rank: int, outputs: int, allowed: Allowance) -> int:
    """Return how many products conjugate gradients may take beside K^T y and the probes."""
    return max(1, int(allowed.numbers / landmarks - rank) // outputs - 1)


def _wanted(options: FedCG) -> list[tuple[int, int]]:
    wanted = [plan for plan in PLANS if options.tune != "gcv" or plan[0] == 1]
    if None not in (options.gamma, options.regularization):
        return [(1, 1)]  # there is nothing to choose: the rows of rare classes weigh more
    if options.gamma is not None:
        return list(dict.fromkeys((folds, 1) for folds, _ in wanted))
    return wanted


def _few_rows(plan: Plan, parties: Parties, folds: int) -> bool:
    """Tell whether folds have fewer rows than the nodes allow."""
    wards = plan.wards
    least = max(_LEAST_ROWS, *(parties[h].fold_rows for h in wards))
    most = max(parties[h].fold_sum_rows for h in wards)
    few = any(0 < ward.train < folds * least for ward in wards.values())
    few = few or sum(ward.train // folds for ward in wards.values()) < most
    return folds > 1 and few


def _most_landmarks(plan: Plan) -> int:
    """Return the most landmarks: distances travel in one message, or fit in a hospital's file."""
    least, most = _LEAST_LANDMARKS
    rows = [ward.total for ward in plan.wards.values()]
    fits = _MOST_KEPT // max(1, *rows) if plan.rows_alone else _MOST_NUMBERS // max(1, sum(rows))
    return max(least, min(most, fits))
