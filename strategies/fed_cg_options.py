"""Options of FedCG, and what they stand for by default."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fedkern_flwr.errors import OptionError
from fedkern_flwr.hybrid.landmarks import MOST_LANDMARKS, Sampling
from fedkern_flwr.hybrid.parties import MissingBlocks
from fedkern_flwr.judging.judges import Weighted
from fedkern_flwr.kernels.product import ProductKernel
from fedkern_flwr.method import option
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.solvers.least_squares import Penalty

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
