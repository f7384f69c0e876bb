"""Options of FedCG, and how many landmarks and folds a run can afford."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.counting import unknowns_of_bits
from fedkern_flwr.guard.freeze import FOLDS
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.landmarks import MOST_LANDMARKS, Sampling, moments_length
from fedkern_flwr.hybrid.parties import MissingBlocks, Plan
from fedkern_flwr.judging.judges import Weighted
from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.method import PrivateMethod, option
from fedkern_flwr.nodes import logger
from fedkern_flwr.planning import Allowance, allowance
from fedkern_flwr.solvers.least_squares import Penalty
from fedkern_flwr.solvers.tuning import PLANS
from fedkern_flwr.solvers.tuning_sums import tuning_length

if TYPE_CHECKING:
    from .fed_cg_system import HybridSystem


# -- options of FedCG, and what they stand for by default

Tune = Literal["auto", "folds", "gcv", "off"]
#: What basis fourier goes with, by option.
_OF_FOURIER: dict[str, tuple[Any, ...]] = {
    "penalty": ("ridge",),
    "sampling": ("U", "auto"),
    "missing": ("error", "drop-row"),
    "landmark_gamma": (False,),
    "tune": ("off", "auto"),
    "variance": (False,),
}
_DIRECT_UP_TO, _RANK = 1000, 200  # landmarks; of the preconditioner
_LANDMARKS, _LAMBDA = 100, 1e-3  # where it is neither given nor chosen


class HybridOptions(PrivateMethod, Weighted):
    """Base class of FedCG: its options."""

    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "checkpoint_every", "threshold", "min_cohort"}
    )

    landmarks: int | Literal["auto"] = option(
        "auto",
        "m, number of random landmarks. Auto: as many as the rule of counting lets the nodes "
        "release sums of, 20 to 400, and no more than a message of 64 MB holds (without centres a "
        "file of 1 GB); 100 where the width is not chosen.",
        least=1,
        most=MOST_LANDMARKS,
    )
    sampling: Literal[Sampling, "auto"] = option(
        "auto",
        "Landmarks uniform on each feature's range (U), normal with mean and deviation of the data "
        "and clipped to the range (N), both turned at random; or normal with mean and covariance "
        "of the block (C, see hybrid/landmarks.py). Auto: C for blocks of one holder, U for "
        "others.",
    )
    basis: Literal["landmarks", "fourier"] = option(
        "landmarks",
        "Kernel columns of random landmarks, or random Fourier features, whose phases are added up "
        "over the blocks: rows of length one, as privacy_epsilon needs them. Then landmarks is "
        "their number, twice that of the phases, and neither gamma nor regularization is chosen.",
    )
    kernel: ProductKernel = option(
        "rbf", "exp(-gamma d) of squared Euclidean or of absolute distances d."
    )
    gamma: float | None = option(
        None,
        "Width; by default chosen, see tune, half and double of it for one landmark after the "
        "other, or 1 / number of features, 20 / number^1.5 with basis fourier.",
        above=0.0,
    )
    landmark_gamma: bool = option(
        False, "A random width per landmark, log-uniform in [gamma / 2, 2 gamma] (eq. 4.1)."
    )
    regularization: float | None = option(
        None, "lambda; by default chosen, see tune, or 1e-3.", above=0.0
    )
    tune: Tune = option(
        "auto",
        "Choose what is not given of gamma and regularization, in the same exchanges: by folds of "
        "the rows, or by generalised cross-validation, which sums less. Auto: the better of those "
        "that the nodes' rules allow, with normal equations and penalty ridge; off elsewhere.",
    )
    penalty: Penalty = option(
        "ridge", "lambda I (eq. 2.9) or lambda K_mm with the pseudo-inverse (eq. 2.10)."
    )
    solver: Literal["auto", "normal-equations", "cg"] = option(
        "auto",
        "Sum the normal equations once, or iterate conjugate gradients, an exchange each. Auto: "
        "the former up to 1000 landmarks.",
        of_model=False,
    )
    preconditioner_rank: int | None = option(
        None,
        "Of cg: rank of the Nystrom preconditioner, 0 for none. By default 200, at most m / 2.",
        of_model=False,
    )
    init: Literal["zero", "random"] = option(
        "zero", "Of cg: where to start; random is standard normal, as in the paper."
    )
    tolerance: float = option(
        1e-10,
        "Of cg: stop when the residual is so small relative to K^T y.",
        above=0.0,
        below=1.0,
    )
    missing: MissingBlocks = option(
        "error",
        "Rows that lack a block: refuse the run, leave them out, or let the block's factor be one.",
    )
    allow_single: bool = option(
        False,
        "Allow a single hospital, and rows that a single centre knows: their values are then "
        "shown.",
        of_model=False,
    )
    distance_bits: int = option(
        64,
        "Bits of a number in the sums of distances, 32 or 64. With 32 they are half as large; the "
        "total of C centres' distances of at most b is then off by less than "
        "C 2^(ceil(log2(C + 1)) + floor(log2 b) - 30).",
    )
    variance: bool = option(
        False,
        "Of a regression: predict the variance of Bayesian ridge as well. Far from all landmarks "
        "it falls to that of held-out errors. Who has the model, and hospitals that predict with "
        "it, can then compute K^T K; of two hospitals each has the other's.",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        rank, direct = self.preconditioner_rank, self.chosen_solver == "normal-equations"
        if self.distance_bits not in (32, 64):
            raise OptionError(
                f"distance_bits is {self.distance_bits}",
                remedy="use 32 or 64",
                code="FK-OPTION-CHOICE",
            )
        if rank is not None and not 0 <= rank <= self.fixed_landmarks:
            raise OptionError(
                f"preconditioner_rank is {rank}",
                remedy=f"use 0 to {self.fixed_landmarks} (landmarks)",
                code="FK-OPTION-RANGE",
            )
        if direct and (rank or self.init == "random"):
            name = "preconditioner_rank" if rank else "init"
            raise OptionError(
                f"{name} is for solver cg",
                remedy="add solver cg, or leave it out",
                code="FK-OPTION-CONFLICT",
            )
        if self.penalty == "rkhs" and self.landmark_gamma:
            raise OptionError(
                "with a width per landmark the kernel of the landmarks is not symmetric",
                remedy="use penalty ridge, or one width",
                code="FK-RKHS-WIDTHS",
            )
        for name, wanted in (("chosen_solver", "normal-equations"), ("penalty", "ridge")):
            if self.variance and getattr(self, name) != wanted:
                raise OptionError(
                    f"there is no variance with {name.removeprefix('chosen_')} "
                    f"{getattr(self, name)}",
                    remedy=f"use {wanted}, or leave variance out",
                    code="FK-EQUATIONS-NEEDED",
                )
        self._check_basis(direct)
        self._check_tuning(direct)

    def _check_basis(self, direct: bool) -> None:
        private = self.privacy_epsilon is not None
        if private and self.basis != "fourier":
            raise OptionError(
                "privacy_epsilon is for basis fourier: kernel columns are too long for it",
                remedy="add --basis fourier, and leave columns at --scaling range",
                code="FK-BUDGET-OPTION",
            )
        if private and not direct:
            raise OptionError(
                "privacy_epsilon is for solver normal-equations: each product would cost as much",
                remedy="leave the solver out, or use fewer landmarks",
                code="FK-BUDGET-OPTION",
            )
        if self.basis != "fourier":
            return
        for name, wanted in _OF_FOURIER.items():
            if getattr(self, name) not in wanted:
                raise OptionError(
                    f"{name} {getattr(self, name)} is not for basis fourier",
                    remedy=f"use {wanted[0]}" if wanted[0] else "leave it out",
                    code="FK-OPTION-CONFLICT",
                )
        if self.fixed_landmarks % 2:
            raise OptionError(
                f"basis fourier has a sine and a cosine of each phase, not {self.landmarks}",
                remedy=f"use --landmarks {self.fixed_landmarks + 1}",
                code="FK-OPTION-RANGE",
            )

    def _check_tuning(self, direct: bool) -> None:
        possible = direct and self.penalty == "ridge"
        possible = possible and self.basis == "landmarks"
        given = self.landmark_gamma or None not in (self.gamma, self.regularization)
        weighs = self.class_weight is not None
        self.tunes = self.tune != "off" and possible and (weighs or not given)
        if weighs and not (self.tunes and not self.landmark_gamma):
            raise OptionError(
                "class_weight is for normal equations and penalty ridge, without tune off and "
                "landmark_gamma",
                remedy="leave it out",
                code="FK-EQUATIONS-NEEDED",
            )
        if self.tune in ("folds", "gcv") and given:
            raise OptionError(
                "gamma and regularization are given, and tune",
                remedy="leave it out",
                code="FK-OPTION-BOTH",
            )
        if self.tune in ("folds", "gcv") and not possible:
            raise OptionError(
                f"tune {self.tune} is for normal equations and penalty ridge",
                remedy="leave it out",
                code="FK-EQUATIONS-NEEDED",
            )

    @property
    def may_weigh(self) -> bool:
        """Whether rows of classes may be weighed, as the normal equations are summed at once."""
        return self.tunes

    @property
    def chosen_solver(self) -> str:
        """The solver that ``auto`` stands for."""
        if self.solver != "auto":
            return self.solver
        return "normal-equations" if self.fixed_landmarks <= _DIRECT_UP_TO else "cg"

    @property
    def fixed_landmarks(self) -> int:
        """Number of landmarks where it does not follow from the parties."""
        return _LANDMARKS if self.landmarks == "auto" else int(self.landmarks)

    @property
    def chosen_sampling(self) -> str:
        """How landmarks are drawn; basis fourier needs no moments of the rows."""
        return "U" if self.sampling == "auto" and self.basis == "fourier" else self.sampling

    @property
    def rank(self) -> int:
        """Rank of the preconditioner, 0 for none."""
        if self.preconditioner_rank is not None:
            return self.preconditioner_rank
        return min(_RANK, self.fixed_landmarks // 2)

    @property
    def chosen_regularization(self) -> float:
        """Lambda where it is not chosen in the run."""
        return _LAMBDA if self.regularization is None else self.regularization

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        rank = self.rank if self.chosen_solver == "cg" else 0
        return {**super().options(), "solver": self.chosen_solver, "preconditioner_rank": rank}


# -- which sums FedCG takes: landmarks, folds and widths that fit what its nodes let out
#
# With m landmarks the normal equations of a width and fold are m (m + 1) / 2 + m k numbers about
# the rows of that fold, k outputs. A fold is a cell of its own: what its rows hide is a fifth of
# what all rows hide, of five folds.

_LEAST_ROWS = 5  # of a hospital in a fold
_LEAST_LANDMARKS = (20, 400)  # least and most
_MOST_NUMBERS = 1 << 23  # of a hospital's message: 64 MB
_MOST_KEPT = 1 << 27  # of a hospital's rows without a message: 1 GB, in a file
#: Within a share: the landmarks that are worth more than folds and widths, and the least.
_ENOUGH, _LEAST_PLANNED = 200, 5

Parties = Mapping[int, wire.HybridDescribeReply]
Sums = tuple[tuple[int, int], str]


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
    options: HybridOptions, plan: Plan, parties: Parties, counts: int
) -> tuple[int, Sums | None]:
    """Return landmarks, and folds and widths if they are chosen, within the share of the nodes.

    Folds and several widths are taken where 200 landmarks are still allowed, else one width, with
    lambda by generalised cross-validation. What the user states is taken as stated.
    """
    first = parties[plan.hospitals[0]]
    outputs, stated = first.outputs, options.landmarks
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
        return landmarks, ((1, times), "the nodes' earlier run")
    wanted = _wanted(options)
    wanted = [some for some in wanted if some[0] > 1 or options.tune != "folds"]
    for folds, widths in wanted:
        allowed = hospital_allowance(plan, parties, folds)
        fits = allowed.square(outputs, times=widths, taken=taken + 1 + outputs)
        if fits >= (_ENOUGH if stated == "auto" else int(stated)) and not _few_rows(
            plan, parties, folds
        ):
            break
    most = min(_most_landmarks(plan), max(_LEAST_PLANNED, fits))
    landmarks = most if stated == "auto" else int(stated)
    how = f"{folds} folds" if folds > 1 else "generalised cross-validation"
    options.note_plan(f"{landmarks} landmarks, {how}, widths tried: {widths}", allowed)
    return landmarks, ((folds, widths), f"the nodes' share of {allowed.share:.0%}")


def known_widths(options: HybridOptions, plan: Plan, parties: Parties) -> list[float]:
    """Return the widths of an earlier run of all hospitals, if this run may take them again.

    Then it sums the same numbers of their rows again, which cost nothing. None where the user has
    a say in the widths, or centres have a part in the kernel.
    """
    said = {parties[h].how for h in plan.hospitals}
    free = options.gamma is None and options.class_weight is None and options.tune != "folds"
    same = all(plan.sampling(block, options.chosen_sampling) == "U" for block in plan.blocks)
    alone = not any(ward.centres for ward in plan.wards.values())
    if not (options.tunes and free and same and alone) or len(said) > 1:
        return []
    kernel, widths = wire.read_widths(said.pop())
    return widths if kernel == options.kernel else []


def plan_sums(system: HybridSystem) -> Sums:
    """Return (folds, widths) to be summed, the best that the nodes allow, and why not more."""
    options, plan, parties = system.options, system.plan, system.parties
    allowed = hospital_allowance(plan, parties).numbers - system.released
    why, of_folds = "all that is tried", ""
    for folds, widths in _wanted(options):
        numbers = tuning_length(system.landmarks, system.first.outputs, folds, widths)
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
    return (folds, widths), why


def most_iterations(landmarks: int, rank: int, outputs: int, allowed: Allowance) -> int:
    """Return how many products conjugate gradients may take beside K^T y and the probes."""
    return max(1, int(allowed.numbers / landmarks - rank) // outputs - 1)


def _wanted(options: HybridOptions) -> list[tuple[int, int]]:
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
