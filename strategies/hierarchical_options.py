"""Options of HierarchicalSVM, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups import members as groups
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import (
    Consensus,
    Floats,
    Residuals,
    RhoSchedule,
    growth,
    initial_rho,
    next_growth,
)
from fedkern_flwr.groups.linear_model import LOSS_OF, MODELS, Model
from fedkern_flwr.groups.members import DEFAULT_BOUND, Group
from fedkern_flwr.groups.orthogonal_product import Product
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.method import option
from fedkern_flwr.options import check_choice
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.solvers.local_solvers import Loss
from fedkern_flwr.vertical.parties import MissingRows

from .hierarchical_checks import check_private, check_together, one_after_the_other

Partition = Literal["horizontal", "vertical"]
Architecture = Literal["hierarchical", "centralised", "chain"]
_WIDTH = 3.0  # gamma by default for columns in [0, 1], in units of one over their number
_FEATURES, _RELAXATION, _RESIDUAL, _GAP = 500, 1.7, 0.01, 1e-3
#: What helps where iterations did not converge.
MORE_ROUNDS = "use more --rounds, or a larger --tolerance"


class SVMOptions(Judges, PrivateMethod):
    """Options of HierarchicalSVM.

    Parameters
    ----------
    model : {"linear", "rbf", "logistic", "ridge"} (default: "linear")
        Linear SVM, SVM on random Fourier features of a Gaussian kernel, logistic or ridge
        regression. More than two classes: one model per class against the rest.
    step_sizes : sequence of float, optional
        First rho of each group.
    checkpoint_every : int (default: 10)
        Iterations from one checkpoint to the next.
    **options
        The others, and those of :class:`~fedkern_flwr.method.Method`.
    """

    method, title = "hierarchical-svm", "HierarchicalSVM"
    left_whole = True
    described = wire.SVMDescribeReply
    default_rounds = 200
    reopens = True
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"min_clients", "max_missed", "threshold", "min_cohort"}
    )

    partition: Partition = option(
        "horizontal",
        "Users hold rows; or the users of a group rows of its block of columns.",
    )
    architecture: Architecture = option(
        "hierarchical",
        "Two layers; all users around the server, one exchange an iteration; or each user with its "
        'two neighbours (the paper\'s "fully distributed").',
    )
    consensus: Consensus = option(
        "exact",
        "Two-block ADMM, which reaches the pooled optimum; or our reading of the paper's equation "
        "11, which does not.",
    )
    C: float | None = option(
        None,
        "Weight of the losses. By default chosen of 0.01, 0.1, 1 and 10 by users' held-out folds "
        "in the first 12 iterations; 1 where that cannot be, as in a vertical split.",
        above=0.0,
    )
    class_weight: Literal["balanced"] | None = option(
        None,
        "Balanced: rows of rare classes weigh more, so that each class counts as much as all "
        "others together, as scikit-learn's balanced does for one class against the rest. Users' "
        "counts of the classes are summed securely.",
    )
    rho: float | None = option(
        None,
        "First penalty of the users, by default C where it rises and 3 C otherwise, with rbf times "
        "the root of the mean penalty of a weight.",
        above=0,
    )
    sigma: float | None = option(
        None, "Penalty of the agents, by default rho times users per group.", above=0.0
    )
    rho_schedule: RhoSchedule | None = option(
        None,
        "The penalty grows 20 times within 40 iterations, which is the default for one output; or "
        "is scaled to each output's duals, which is the default for several, as of classes of "
        "which some are rare; or follows the residuals; or stays, which is the default where rho "
        "or step_sizes are given.",
    )
    relaxation: float = option(
        None,
        "Over-relaxation in [1, 2), by default 1.7; with consensus paper 1.",
        least=1.0,
        below=2.0,
    )
    scale: Literal["standard", "none"] = option(
        "standard",
        "The model penalises the weights of columns that are brought to mean 0 and variance 1, or "
        "of the columns as they are; random features are made of them. Means and variances of all "
        "users' rows are summed securely.",
    )
    features: int | None = option(
        None, "Of rbf: number D of random frequencies, by default 500.", least=1
    )
    gamma: float | None = option(
        None, "Of rbf: width, by default 1 / number of columns.", above=0.0
    )
    agent_topology: Literal["pairwise", "ring"] = option(
        "pairwise",
        "Agents' terms are summed with pairwise masks, or passed round a ring of at least three.",
    )
    product: Product = option(
        "local",
        "Of vertical splits: the multiplier goes to the user; or the paper's secure matrix "
        "product.",
    )
    staleness: int = option(
        0,
        "D: how many iterations a group may be ahead of the slowest. 0 is synchronous.",
        least=0,
    )
    pipelined: bool = option(
        None,
        "Users and agents are asked together: one exchange an iteration instead of two, for the "
        "same model. The default, but for groups that do not wait or may be left out, the ring and "
        "the paper's consensus.",
    )
    tolerance: float = option(
        None,
        "The run ends when the relative primal and dual residuals are at most that, by default "
        "0.01, where the objective is about 1e-3 from the optimum; in a vertical split the "
        "relative duality gap, by default 1e-3.",
        above=0.0,
    )
    lost_groups: Literal["stop", "leave-out"] = option(
        None,
        "What to do with a group whose agent or user does not answer. Stop is the default; the "
        "ring leaves out.",
    )
    missing: MissingRows = option(
        "error",
        "Of vertical splits: labelled rows that some group does not hold end the run, or are left "
        "out.",
        of_model=False,
    )
    bound: float = option(
        DEFAULT_BOUND,
        "Public bound on the numbers that are summed.",
        above=0.0,
        of_model=False,
    )
    allow_single: bool = option(
        False, "Let agents see the models of users that are alone in their group.", of_model=False
    )

    def __init__(
        self,
        *,
        model: Model = "linear",
        step_sizes: Sequence[float] | None = None,
        checkpoint_every: int = 10,
        **options: Any,
    ) -> None:
        check_choice("model", model, MODELS)
        self.kind = model
        self.step_sizes = None if step_sizes is None else tuple(map(float, step_sizes))
        for k, size in enumerate(self.step_sizes or ()):
            if not 0.0 < size < np.inf:
                raise OptionError(f"step size {k} is {size}", remedy="use a positive number")
        super().__init__(checkpoint_every=checkpoint_every, **options)
        check_together(self)
        if self.budget is not None:
            check_private(self)
        slow = self.consensus == "paper" or self.architecture == "chain"
        given = self.rho is not None or self.step_sizes is not None
        if given or slow:
            self.fill_in(rho_schedule="fixed")
        self.fill_in(
            relaxation=1.0 if slow else _RELAXATION,
            tolerance=_GAP if self.partition == "vertical" else _RESIDUAL,
            lost_groups="leave-out" if self.ring else "stop",
        )
        self.fill_in(pipelined=not one_after_the_other(self))

    def _reset(self) -> None:
        super()._reset()
        self.groups_: tuple[Group, ...] = ()
        self.row_plan_ = groups.RowPlan(0, 0, np.zeros(0, np.int32), {}, {}, 0)
        self.trace_: list[tuple[float, int, Floats]] = []
        self.coefficients_ = np.zeros((0, 0))
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.C_ = 1.0 if self.C is None else self.C
        self.step = self.last_saved = 0
        self.predicting = ""

    # -- what follows from the options

    @property
    def ring(self) -> bool:
        """Whether the agents' terms go round a ring."""
        return self.agent_topology == "ring"

    @property
    def loss(self) -> Loss:
        """The loss of the model."""
        return LOSS_OF[self.kind]

    @property
    def frequencies(self) -> int:
        """D, 0 for models of the columns."""
        return (self.features or _FEATURES) if self.kind == "rbf" else 0

    @property
    def columns_(self) -> int:
        """Columns of the rows; in a vertical split of all groups together."""
        found = [self.party_of(group.users[0]).features for group in self.groups_]
        return sum(found) if self.partition == "vertical" else sum(found[:1])

    @property
    def chosen_gamma(self) -> float:
        """The width of the kernel, 0 without one."""
        if self.kind != "rbf":
            return 0.0
        wide = 1.0 if self.budget is None else _WIDTH
        return wide / max(1, self.columns_) if self.gamma is None else self.gamma

    @property
    def each_c(self) -> Floats:
        """C of each output, shape (k, 1)."""
        return np.full((self.outputs_, 1), self.C_)

    def first_rho(self, number: int) -> Floats:
        """Return the first rho of a group for each output, shape (k, 1)."""
        given = self.rho
        if self.step_sizes is not None:
            given = self.step_sizes[[g.number for g in self.groups_].index(number)]
        return self.default_rho() if given is None else np.full(self.each_c.shape, given)

    def default_rho(self) -> Floats:
        """Return the first rho where none is given, shape (k, 1)."""
        chain = self.architecture == "chain"
        return self.each_c if chain else initial_rho(self.schedule, self.each_c)

    def mean_rho(self) -> Floats:
        """Return the first rho, on average over the groups, shape (k, 1)."""
        return np.asarray(np.mean([self.first_rho(group.number) for group in self.groups_], 0))

    @property
    def schedule(self) -> RhoSchedule:
        """How rho grows."""
        several = self.outputs_ > 1 and not self.staleness
        return self.rho_schedule or ("scaled" if several else "rising")

    def grown(self, done: int, factor: Floats) -> Floats:
        """Return rho of each output in units of the first, shape (k, 1)."""
        return growth(self.schedule, done, factor)[:, None]

    def rho_of(self, number: int, done: int, factor: Floats) -> Floats:
        """Return rho of a group for each output, shape (k, 1), after so many iterations."""
        return self.first_rho(number) * self.grown(done, factor)

    def next_growth(self, now: Floats, residuals: Residuals, done: int) -> Floats:
        """Return the factors of rho in the next iteration."""
        return next_growth(self.schedule, now, residuals, self.mean_rho()[:, 0] * now, done)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "model": self.kind,
            "step_sizes": None if self.step_sizes is None else list(self.step_sizes),
        }

    # -- who is there

    @property
    def users_(self) -> list[int]:
        """All users, group by group."""
        return [user for group in self.groups_ for user in group.users]

    def described_parties(self) -> Iterable[Any]:
        """Return the descriptions of all parties by partition."""
        return self.parties_.values()

    def party_of(self, partition: int) -> Any:
        """Return the description of a party."""
        return next(p for p in self.described_parties() if p.partition == partition)

    @property
    def least_agents(self) -> int:
        """How many groups there must be at least where some may be left out."""
        return 3 if self.ring else max(2, len(self.groups_) // 2 + 1)

    @property
    def advice_of_classes(self) -> str:
        """What to do where rare classes are never found: columns of rows are not weighed."""
        if self.partition == "vertical":
            return "if they are rare, fdskl with --class-weight balanced finds more of them"
        return super().advice_of_classes
