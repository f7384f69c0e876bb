"""Options of HierarchicalSVM: which go together, and who sums with whom."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups import gradients
from fedkern_flwr.groups import members as groups
from fedkern_flwr.groups import messages as wire
from fedkern_flwr.groups.consensus import (
    Floats,
    Residuals,
    RhoSchedule,
    growth,
    initial_rho,
    next_growth,
)
from fedkern_flwr.groups.linear_model import LOSS_OF, MODELS, Model
from fedkern_flwr.groups.members import AGENT, DEFAULT_BOUND, Group
from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.method import Ask, PrivateMethod, Save, Steps, SumSpec, option
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.options import check_choice
from fedkern_flwr.reporting import iterations_ended
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.solvers.local_solvers import Loss
from fedkern_flwr.vertical.parties import MissingRows

Partition = Literal["horizontal", "vertical"]
Architecture = Literal["hierarchical", "centralised"]
USERS = 0  # cohort of all users, and of the label owner; the groups follow, then the agents
_WIDTH = 3.0  # gamma by default for columns in [0, 1], in units of one over their number
#: D by default.
FEATURES = 500
_RELAXATION, _RESIDUAL, _GAP = 1.7, 0.01, 1e-3
_LARGE_C = 1e3  # with a larger C the whole objective is divided by a number
_ADMM = ("rho", "sigma", "rho_schedule", "relaxation", "step_sizes")
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
    architecture: Architecture | None = option(
        None,
        "Hierarchical: groups with an agent each. Centralised: all users around the server. By "
        "default hierarchical where nodes are agents or in groups.",
    )
    C: float | None = option(
        None,
        "Weight of the losses. By default chosen of 0.01, 0.1, 1 and 10 by users' held-out folds "
        "in the first 12 iterations; 1 where that cannot be, as in a vertical split or where the "
        "nodes' release limits leave too few iterations.",
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
        "Over-relaxation in [1, 2).",
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
        None,
        "Of rbf: number D of random frequencies. By default 500, fewer where the nodes' release "
        "limits allow fewer.",
        least=1,
    )
    gamma: float | None = option(
        None, "Of rbf: width, by default 1 / number of columns.", above=0.0
    )
    staleness: int = option(
        0,
        "D: how many iterations a group may be ahead of the slowest. 0 is synchronous.",
        least=0,
    )
    tolerance: float = option(
        None,
        "The run ends when the relative primal and dual residuals are at most that, by default "
        "0.01, where the objective is about 1e-3 from the optimum; in a vertical split the "
        "relative duality gap, by default 1e-3.",
        above=0.0,
    )
    lost_groups: Literal["stop", "leave-out"] = option(
        "stop",
        "What to do with a group whose agent or user does not answer: end the run, or go on "
        "without the group.",
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
                raise OptionError(
                    f"step size {k} is {size}",
                    remedy="use a positive number",
                    code="FK-OPTION-RANGE",
                )
        super().__init__(checkpoint_every=checkpoint_every, **options)
        check_together(self)
        if self.budget is not None:
            check_private(self)
        if self.rho is not None or self.step_sizes is not None:
            self.fill_in(rho_schedule="fixed")
        self.fill_in(
            relaxation=_RELAXATION,
            tolerance=_GAP if self.partition == "vertical" else _RESIDUAL,
        )

    def _reset(self) -> None:
        super()._reset()
        self.groups_: tuple[Group, ...] = ()
        self.row_plan_ = groups.RowPlan(0, 0, np.zeros(0, np.int32), {}, {}, 0)
        self.trace_: list[tuple[float, int, Floats]] = []
        self.coefficients_ = np.zeros((0, 0))
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.C_ = 1.0 if self.C is None else self.C
        self.step = self.last_saved = 0
        self.fitting_ = 0  # D that the nodes' release limits allow, 0 for the default
        self.predicting = ""

    # -- what follows from the options

    @property
    def layers(self) -> bool:
        """Whether there are agents: in a run of which that is not said, as its nodes are."""
        if self.architecture is not None or self.budget is not None:
            return self.architecture == "hierarchical"
        parties = list(self.described_parties())
        declared = any(p.role == AGENT for p in parties) or any(p.group > 0 for p in parties)
        return declared or bool(needs_agents(self))

    @property
    def loss(self) -> Loss:
        """The loss of the model."""
        return LOSS_OF[self.kind]

    @property
    def frequencies(self) -> int:
        """D, 0 for models of the columns."""
        return (self.features or self.fitting_ or FEATURES) if self.kind == "rbf" else 0

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
    def unit_(self) -> float:
        """What the objective is divided by, so that a large C does not exceed the public bound.

        Duals and penalties grow with C. C and the penalty divided by one number have the same
        optimum, and the same iterations.
        """
        return 1.0 if self.budget is not None else max(1.0, self.C_ / _LARGE_C)

    @property
    def each_c(self) -> Floats:
        """C of each output in units of the objective, shape (k, 1)."""
        return np.full((self.outputs_, 1), self.C_ / self.unit_)

    def first_rho(self, number: int) -> Floats:
        """Return the first rho of a group for each output, shape (k, 1)."""
        given = self.rho
        if self.step_sizes is not None:
            given = self.step_sizes[[g.number for g in self.groups_].index(number)]
        if given is None:
            return self.default_rho()
        return np.full(self.each_c.shape, given / self.unit_)

    def default_rho(self) -> Floats:
        """Return the first rho where none is given, shape (k, 1)."""
        return initial_rho(self.schedule, self.each_c)

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
        return max(2, len(self.groups_) // 2 + 1)

    @property
    def advice_of_classes(self) -> str:
        """What to do where rare classes are never found: columns of rows are not weighed."""
        if self.partition == "vertical":
            return "if they are rare, fdskl with --class-weight balanced finds more of them"
        return super().advice_of_classes

    # -- who sums with whom

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse nodes that clash."""
        groups.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Return the sets of nodes that sum: all users, the groups, the agents."""
        parties, layers = list(self.described_parties()), self.layers
        self.groups_ = found = groups.read_groups(parties, layers=layers)
        check_groups(self, len(found))
        vertical = self.partition == "vertical"
        first = (
            groups.check_vertical(parties, found) if vertical else groups.check_horizontal(parties)
        )
        groups.check_single(found, parties, allow_single=self.allow_single)
        small = [group for group in found if group.agent >= 0 and len(group.users) <= 2]
        if small and not vertical and not self.predicting:
            logger.warning(
                "%d groups have one or two users: agents or partners see gradients of single "
                "users; form larger groups",
                len(small),
            )
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        if self.loss != "squared" and not self.classes_:
            raise OptionError(
                f"model {self.kind} is for classes, the labels are numbers",
                remedy="use model ridge, or name the classes at all nodes with labels",
                code="FK-LOSS-CLASSES",
            )
        if self.class_weight and not self.classes_:
            raise OptionError(
                "class_weight is for classes",
                remedy="leave it out for numbers",
                code="FK-WEIGHTS-NUMBERS",
            )
        if vertical:
            self.row_plan_ = groups.match_rows(
                parties, found, drop=self.missing == "drop-row", held_out=bool(self.predicting)
            )
        owner = [first.partition] if vertical else []
        agents = [group.agent for group in found]
        sets = [sorted([*self.users_, *owner])]
        if layers:
            sets += [group.members for group in found]
            if not vertical and len(agents) > 1:
                sets.append(sorted(agents))
        return sets

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds; where groups may be left out, more than half of the agents."""
        found: list[int | None] = [None] * cohorts
        if self.lost_groups == "leave-out":
            found[-1] = self.least_agents
        return found

    def nodes_digest(self) -> str:
        """Return a digest of who is there with how many rows, to be the same after a resume."""
        digest = hashlib.sha256()
        for p in self.described_parties():
            digest.update(
                repr((p.partition, p.role, p.group, p.rows, p.test_rows, p.features)).encode()
            )
        return digest.hexdigest()

    # -- what the splits share

    @property
    def encoding(self) -> Encoding:
        """Of all sums."""
        return Encoding.fixed_point(self.bound)

    def term(self, name: str, length: int, cohort: int = USERS, **more: Any) -> SumSpec:
        """Return a sum that needs its whole cohort."""
        common: dict[str, Any] = {"encoding": self.encoding, "cohort": cohort, **more}
        return SumSpec(name=name, length=length, **common)

    def question(self, requests: Mapping[int, Any], reply: Any, **more: Any) -> Ask:
        """Return the question of the step at hand."""
        return Ask(requests, reply=reply, number=self.step, **more)

    def note_end(self, last: int, *, converged: bool, apart: str) -> dict[str, Any]:
        """Return how the run ended; note it if it stopped at its share."""
        if self.notes_ and not converged and self.num_rounds < self.default_rounds:
            self.notes_.append(f"stopped after {last} iterations, which is its share: {apart}")
        return iterations_ended(last, converged, apart, MORE_ROUNDS)

    def is_due(self, done: int) -> bool:
        """Tell whether a checkpoint is due after so many iterations."""
        return self.checkpoint is not None and done - self.last_saved >= self.checkpoint_every

    def save(self, done: int, nodes: Iterable[int], arrays: Arrays, **meta: Any) -> Steps:
        """Have nodes keep their state under the step at hand; keep the run's if all did."""
        self.last_saved, asked = done, dict.fromkeys(nodes, wire.SaveRequest())
        answers = yield self.question(asked, wire.SaveReply, until="tried")
        if len(answers.replies) < len(asked):
            logger.warning("no checkpoint of iteration %d: not all nodes kept their state", done)
            return
        meta |= {"nodes": self.nodes_digest(), "done": done}
        yield Save(arrays, meta, kept=self.step)


# -- which options go together


def needs_agents(strategy: SVMOptions) -> list[str]:
    """Return which of the options that were given are for runs with agents."""
    used = {
        "partition vertical": strategy.partition == "vertical",
        "staleness": strategy.staleness > 0,
        "step_sizes": strategy.step_sizes is not None,
        "sigma": strategy.sigma is not None,
        "lost_groups leave-out": strategy.lost_groups == "leave-out",
    }
    return [name for name, is_used in used.items() if is_used]


def check_together(strategy: SVMOptions) -> None:
    """Refuse options that do not go together."""
    vertical, layers = strategy.partition == "vertical", strategy.architecture != "centralised"
    given = [n for n in (*_ADMM, "features", "gamma") if getattr(strategy, n) is not None]
    split = [name for name in given if name in _ADMM]
    leaves, needs = strategy.lost_groups == "leave-out", needs_agents(strategy)
    rules = {
        "FK-OPTION-CONFLICT": {
            f"{n} is for model rbf; add model rbf, or leave it out": strategy.kind != "rbf"
            for n in given
            if n not in _ADMM
        }
        | {
            **{f"{n} has no meaning in a vertical split; leave it out": vertical for n in split},
            "a vertical split needs every group in every iteration; leave staleness and "
            "lost_groups out": vertical and (strategy.staleness > 0 or leaves),
            "class_weight is for horizontal splits; leave it out": vertical
            and strategy.class_weight is not None,
        },
        "FK-SPLIT-KERNEL": {
            "model rbf needs all columns of a row; use fdskl for vertical splits": vertical
            and strategy.kind == "rbf"
        },
        "FK-GROUPS-OPTION": {
            f"architecture {strategy.architecture} is for horizontal splits; use architecture "
            "hierarchical": vertical and not layers,
            **{f"{name} needs agents; use architecture hierarchical": not layers for name in needs},
        },
        "FK-OPTION-BOTH": {
            "rho and step_sizes are both given; give one of them": {"rho", "step_sizes"}
            <= set(given)
        },
        "FK-SVM-STALENESS": {
            "groups that do not wait have no residuals in common; use another rho_schedule": (
                strategy.staleness > 0 and strategy.rho_schedule in ("balanced", "scaled")
            )
        },
    }
    _refuse(rules)


def _refuse(rules: Mapping[str, Mapping[str, bool]]) -> None:
    """Raise the first rule that is broken, with its code."""
    for code, texts in rules.items():
        for text, broken in texts.items():
            if broken:
                problem, _, remedy = text.partition("; ")
                raise OptionError(problem, remedy=remedy, code=code)


def check_private(strategy: SVMOptions) -> None:
    """Refuse what a run with a budget cannot have.

    Raises
    ------
    OptionError
    """
    given = [name for name in _ADMM if getattr(strategy, name) is not None]
    rules = {
        "FK-BUDGET-SPLIT": {
            "privacy_epsilon is for horizontal splits; of columns fed-cg with basis fourier keeps "
            "a budget": strategy.partition == "vertical"
        },
        "FK-BUDGET-OPTION": {
            "privacy_epsilon is for one sum of all users; use architecture centralised, where no "
            "group needs noise of its own": strategy.architecture == "hierarchical"
            or bool(needs_agents(strategy)),
            "scale none has no meaning with privacy_epsilon; leave it out, columns are to lie in "
            "[0, 1]": strategy.scale == "none",
            f"{' and '.join(given)} are those of ADMM, privacy_epsilon takes steps of its own; "
            "leave them out": bool(given),
        },
        "FK-BUDGET-LOSS": {
            "privacy_epsilon is for losses whose derivatives are bounded; use model linear, rbf or "
            "logistic, or for numbers fed-cg with basis fourier": strategy.loss
            not in gradients.BOUNDED
        },
        "FK-BUDGET-CHOICE": {
            "C is not chosen by the rows in a run with privacy_epsilon; give C, such as 1": (
                strategy.C is None
            )
        },
        "FK-BUDGET-WEIGHTS": {
            "class_weight counts classes without noise; leave it out": strategy.class_weight
            is not None
        },
    }
    _refuse(rules)


def check_groups(strategy: SVMOptions, count: int) -> None:
    """Refuse options that do not go with so many groups."""
    if strategy.step_sizes is not None and len(strategy.step_sizes) != count:
        raise OptionError(
            f"{len(strategy.step_sizes)} step sizes for {count} groups",
            remedy="give each group one",
            code="FK-GROUPS-DIFFER",
        )
    if strategy.lost_groups == "leave-out" and count < 3:
        raise OptionError(
            f"of {count} groups none can be left out: the total would be that of one",
            remedy="use lost_groups stop",
            code="FK-GROUPS-LEFT",
        )
