"""Messages of HierarchicalSVM: users in groups, an agent per group, perhaps a label owner.

Models are matrices, a row per output: coefficients, then bias. Sums are named here; statistics
follow the vector of a sum.

A request declares its sums by ``sum_specs(facts)``. The server takes the facts from the nodes'
descriptions. A node takes them from its table, its options and earlier requests, and refuses a
request with other sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..exchange import SumSpec, one_party
from ..judging.figures import Yardstick, outcomes_release
from ..privacy import Budget, Release
from ..secure_sum import Encoding
from ..wire.describe import TableReply
from ..wire.message import Message, array, arrays
from ..wire.sums import bind
from .linear_model import DIGITS, gradient_release, model_columns

Floats = NDArray[np.float64]
Ring = NDArray[np.uint64]
Index = NDArray[np.int32]
Bytes = NDArray[np.uint8]

#: Means and mean squares of the columns, over all users.
STATISTICS_SUM = "column statistics"
#: Users' models with their duals, then their statistics; for their agent. Users open the models
#: with the duals, too.
GROUP_SUM = "group"
#: Agents' models with their duals, then their groups' statistics.
AGENTS_SUM = "agents"
#: The same after a group was left out, with self masks.
LEFT_SUM = "agents that are left"
#: Users' models with their duals, then their statistics, in runs without agents.
FLAT_SUM = "users"
#: Outputs of all groups' blocks, row by row; only for the label owner.
OUTPUT_SUM = "outputs"
#: Outputs of the model, also for held-out rows; only for the label owner.
JUDGED_SUM = "judged outputs"
#: Outputs of a saved model for new rows; only for the label owner.
PREDICTED_SUM = "predicted outputs"
#: Loss on training rows, outcomes on held-out rows.
EVALUATION_SUM = "evaluation"
#: Per output, after the models: loss, primal residual, pull of a user. No user gets their pad.
USER_STATISTICS = 3
#: Loss, primal residual and its scale, dual residual, pull of a group.
AGENT_STATISTICS = 5
USER, AGENT, OWNER = "user", "agent", "owner"
ROLES = (USER, AGENT, OWNER)
#: Public bound on summed numbers.
DEFAULT_BOUND = 2.0**20
#: Cohort of all users and the label owner; then the groups, then the agents.
EVERYBODY = 0


@dataclass(frozen=True, kw_only=True)
class SVMFacts:
    """Public facts of a run that decide the sums of its exchanges.

    Attributes
    ----------
    bound : float
        Public bound on summed numbers.
    columns : int
        Of a row; in a vertical split of the group's block.
    features : int
        Random Fourier frequencies, 0 for plain columns.
    outputs, classes, label_bound
        Of the labels.
    trials : int
        Models per output: several while C is chosen.
    told : str
        Name of a sum that depends on all earlier requests to the users.
    rows, tests : sequence of int
        Signed training and held-out rows of each user.
    budget : Budget, optional
    agent, owner : int
        Parties that open sums in a vertical split.
    plan_rows, all_rows : int
        Training rows of a vertical split; with those held out.
    cohort, label
        For the server: see :class:`~fedkern_flwr.exchange.SumSpec`.
    """

    bound: float = DEFAULT_BOUND
    columns: int = 0
    features: int = 0
    outputs: int = 0
    classes: int = 0
    label_bound: float = 1.0
    trials: int = 1
    told: str = ""
    rows: Sequence[int] = ()
    tests: Sequence[int] = ()
    budget: Budget | None = None
    agent: int = -1
    owner: int = -1
    plan_rows: int = 0
    all_rows: int = 0
    cohort: int = 0
    label: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs * self.trials, model_columns(self.columns, self.features) + 1

    def sum(self, name: str, length: int | None, **more: Any) -> SumSpec:
        """Return a sum over a whole cohort, of numbers within the bound."""
        about: dict[str, Any] = {"cohort": self.cohort, **more}
        return SumSpec(name=name, length=length, encoding=Encoding.fixed_point(self.bound), **about)

    def models(self, name: str, statistics: int, receiver: int = -1) -> list[SumSpec]:
        outputs, width = self.shape
        return [self.sum(name, outputs * (width + statistics), receiver=receiver)]

    def for_agent(self, length: int, agent: int) -> SumSpec:
        return self.sum(GROUP_SUM, length, receiver=one_party(agent), label=self.label)

    def noisy(self, release: Release, length: int, rows: Sequence[int], **more: Any) -> SumSpec:
        """Return a sum with noise, of numbers that a row moves by at most one."""
        code = Encoding.fixed_point(float(max(1, *rows)))
        return SumSpec(name=release.name, length=length, encoding=code, release=release, **more)


class SVMDescribeReply(TableReply):
    """Description of a node; with ids only in a vertical split."""

    group: int  # number of its group, from 0; -1 for the label owner
    named: bool  # whether its rows have ids; otherwise they are numbered
    fold_rows: int = 0  # fewest training rows in a fold
    fold_sum_rows: int = 0  # fewest rows of all users in a fold of a sum


class SVMRequest(Message):
    """Fields of every request; ``role`` is the receivers' role, empty for all."""

    role: ClassVar[str] = ""
    session: str = ""
    round: int = 0
    attempt: int = 0  # number of earlier requests for the same

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        return []


class IterationRequest(SVMRequest):
    """``round`` is the receiver's next iteration, or its last one again."""


class StepRequest(SVMRequest):
    """``round`` grows with each exchange; the receiver may have missed some."""


class SVMReply(Message):
    """Fields of every reply, which often carries a masked vector."""

    round: int = 0


# -- rows at users


class FeaturesRequest(SVMRequest):
    """Inputs of the linear model."""

    role = USER
    pinned = ("raw_mean", "raw_deviation")

    features: int  # random Fourier frequencies, 0 for plain columns
    gamma: float  # width of the kernel; 0 without features
    feature_seed: int  # of the frequencies
    # Standardisation of columns before random features, or empty.
    raw_mean: Floats = array("raw columns", dtype="float64")
    raw_deviation: Floats = array("raw columns", dtype="float64")


class StatisticsRequest(FeaturesRequest, phase="svm-statistics"):
    """To users: contribute to the means of the columns."""

    loss: str  # "hinge", "logistic" or "squared"
    c: float  # C
    rows: int  # training rows of all users
    raw: bool  # whether it covers the columns before random features
    counted: bool  # whether to count positive rows of each output
    # Parties that exchange sealed messages with this user.
    partners: Index = array("partners", dtype="index")
    # Candidates for C, see :mod:`.consensus`, and the number of folds held out.
    tried: Floats = array("tried", dtype="float64")
    folds: int = 0

    def sum_name(self, before: str) -> str:
        """Name of the sum; only users with the same requests so far add to it."""
        alike = replace(self, partners=np.zeros(0, np.int32))
        return bind(STATISTICS_SUM, alike, session=before, round=0, attempt=0)

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Means and mean squares, of columns in digits; and counts of positive rows."""
        digits = DIGITS if self.raw or not self.features else 1
        columns = model_columns(facts.columns, 0 if self.raw else self.features)
        counted = facts.outputs if self.counted else 0
        return [facts.sum(facts.told, 2 * columns * digits + counted)]


class StatisticsReply(SVMReply, phase="svm-statistics"):
    """Carries the upload."""


class SolveRequest(IterationRequest):
    """To users: solve the local problem, contribute."""

    role = USER
    pinned: ClassVar[tuple[str, ...]] = ("mean", "deviation", "ridge")

    # Penalty of each output in this iteration, shape (k, 1).
    rho: Floats = array("penalties", "one", dtype="float64")
    # Model to evaluate, shape (k, d + 1) or (0, 0).
    judged: Floats = array("judged outputs", "judged width", dtype="float64")
    # Coordinates and penalties of the coefficients, in the first iteration; otherwise empty.
    mean: Floats = array("columns", dtype="float64")
    deviation: Floats = array("columns", dtype="float64")
    ridge: Floats = array("coefficients", dtype="float64")
    # Share of each output's positive rows, with weighted classes in the first iteration; otherwise
    # empty.
    shares: Floats = array("classes", dtype="float64")
    chosen: int = -1  # position of the C to continue with; -1 while C is tried, or if C was given


class LocalRequest(SolveRequest, phase="svm-local"):
    """To users without agents: take the server's center first."""

    pinned = ("relaxation",)

    relaxation: float
    # Shape (k, d + 1); before the first iteration (0, 0).
    center: Floats = array("outputs", "width", dtype="float64")

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Users' models with their duals, then their statistics."""
        return facts.models(FLAT_SUM, USER_STATISTICS)


class LocalReply(SVMReply, phase="svm-local"):
    """Carries the upload."""


class StepWithAgentRequest(SolveRequest, phase="svm-step"):
    """To users of a group: first compute the group's last center, as its agent does.

    ``judged`` is also that center's global model.
    """

    pinned = ("relaxation",)

    agent: int  # partition that opens the sum
    relaxation: float
    sealed: bytes  # beginning of the agent's pad of the previous sum; at first empty
    index: int  # number of the group's previous sum; at first 0
    # Penalties of the agents, in the last iteration and in this one.
    sigma: Floats = array("penalties", "one", dtype="float64")
    next_sigma: Floats = array("penalties", "one", dtype="float64")
    # The previous sum under the agent's pad, without statistics; at first empty.
    padded: Ring = array("padded", dtype="ring")

    def sum_name(self, before: str) -> str:
        """Name of the group's sum; only users with the same requests, now and before, add to it.

        ``before`` is the name of the sum before, which led to the users' state.
        """
        return bind(GROUP_SUM, self, session=before, attempt=0, sealed=b"")

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Users' models with their duals, then their statistics; for their agent."""
        return facts.models(facts.told, USER_STATISTICS, one_party(self.agent))


class StepWithAgentReply(SVMReply, phase="svm-step"):
    """Carries the upload."""


class CombineRequest(IterationRequest, phase="svm-combine"):
    """To agents: combine the group's sum with the global model, contribute to the total.

    ``round`` counts the totals. The agent also contributes its pad to the sum that the users begin
    meanwhile.
    """

    role = AGENT
    pinned = ("relaxation",)

    # Whether the group has finished an iteration and its sum is delivered; otherwise the agent
    # contributes its present state.
    advance: bool
    relaxation: float
    plain: bool  # whether this is the only agent, so that its term is the total
    leave_out: bool  # whether the run goes on without lost groups
    outputs: int  # shape of a model
    width: int
    # Penalties of this iteration, and sigma of the next, shape (k, 1).
    rho: Floats = array("penalties", "one", dtype="float64")
    sigma: Floats = array("penalties", "one", dtype="float64")
    next_sigma: Floats = array("penalties", "one", dtype="float64")
    users: Index = array("users", dtype="index")  # of the group
    # The global model, shape (k, d + 1).
    center: Floats = array("outputs", "width", dtype="float64")
    # If C is chosen: its position, numbers of candidates and of held-out folds.
    chosen: int = -1
    tried: int = 0
    folds: int = 0

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """A total of all agents or the remaining ones; and the agent's pad of the users' sum.

        The users' request defines the pad's length. The agent checks it when sealing the pad.
        """
        length = self.outputs * (self.width + AGENT_STATISTICS)
        found = [facts.sum(AGENTS_SUM, length), facts.sum(LEFT_SUM, length, self_masks=True)]
        return [*found, facts.sum(facts.told, None, receiver=facts.agent)]


class CombineReply(SVMReply, phase="svm-combine"):
    """Beginning of the pad of the group's sum, sealed for each user; else nothing."""

    sealed: bytes
    term: tuple[Floats, ...] = arrays("numbers", dtype="float64")  # the only agent's contribution


class EvaluateRequest(SVMRequest, phase="svm-evaluate"):
    """To users: evaluate the model on training and held-out rows."""

    role = USER
    self_masks: bool  # whether the sum may lose users
    bins: int = 0  # of the histograms of held-out rows, 0 for none
    model: Floats = array("outputs", "width", dtype="float64")  # shape (k, d + 1)

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Loss, and outcomes on held-out rows."""
        yard = Yardstick(facts.classes, facts.outputs, facts.label_bound, self.bins)
        return [facts.sum(EVALUATION_SUM, 1 + yard.length, self_masks=self.self_masks)]


class EvaluateReply(SVMReply, phase="svm-evaluate"):
    """Carries the upload."""


class SaveRequest(SVMRequest, phase="svm-save"):
    """Save the state under the number of this round."""


class SaveReply(SVMReply, phase="svm-save"):
    pass


class PadRequest(SVMRequest, phase="svm-pad"):
    """To receivers of sums: contribute the pad to the sums of this exchange."""

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """All that an agent or the label owner may open; the users check their lengths."""
        to_agent = [facts.sum(GROUP_SUM, None, receiver=facts.agent)]
        names = (OUTPUT_SUM, JUDGED_SUM, PREDICTED_SUM)
        return to_agent + [facts.sum(name, None, receiver=facts.owner) for name in names]


class PadReply(SVMReply, phase="svm-pad"):
    """Carries the uploads."""


# -- vertical splits


class PlanRequest(StepRequest):
    """To users of a vertical split: the rows that they hold."""

    role = USER
    pinned = ("agent", "owner")

    agent: int  # partitions that open the group's sums, and the sums of outputs
    owner: int
    # Positions of the plan's rows among the user's announced rows, and their numbers in the plan.
    take: Index = array("rows", dtype="index")
    place: Index = array("rows", dtype="index")


class ColumnsRequest(PlanRequest, phase="svm-columns"):
    """Contribute to the statistics of the group's columns."""

    rows: int  # training rows of the plan
    all_rows: int  # with those held out, which follow them
    standardised: bool  # whether columns are scaled to variance 1; they are always centred

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Means and mean squares of the group's columns, in digits; for its agent."""
        return [facts.for_agent(2 * DIGITS * facts.columns, self.agent)]


class ColumnsReply(SVMReply, phase="svm-columns"):
    """Carries the upload."""


class VisitRequest(StepRequest, phase="svm-visit"):
    """To users of a vertical split: multiply a message and the last weights with rows."""

    role = USER
    width: int  # columns of messages and weights
    message_round: int  # steps that sealed the message, and the weights or coordinates
    weights_round: int
    coordinates: bytes  # means and deviations of the columns, sealed by the agent; sent once
    # The label owner's message at the user's rows, sealed; empty if only the weights matter.
    message: bytes
    weights: bytes  # the group's weights, sealed by the agent; empty in the first visit
    judge: bool  # whether outputs are those of the model, also for held-out rows

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Products of the group's columns with a message, and outputs of the last weights."""
        found, length = list[SumSpec](), facts.columns * self.width
        if self.message:
            found.append(facts.for_agent(length, facts.agent))
        if self.weights:
            name = JUDGED_SUM if self.judge else OUTPUT_SUM
            rows = facts.all_rows if self.judge else facts.plan_rows
            own = {"receiver": one_party(facts.owner), "cohort": EVERYBODY}
            found.append(facts.sum(name, rows * self.width, **own))
        return found


class VisitReply(SVMReply, phase="svm-visit"):
    """Carries the uploads."""


class BlockRequest(StepRequest, phase="svm-block"):
    """To agents of a vertical split: open the group's sum for the users."""

    role = AGENT
    # "columns": statistics of the columns; "weights"; "model": weights of the model; "again": the
    # sum that was opened last.
    kind: str
    rows: int  # training rows
    standardised: bool  # see ColumnsRequest
    users: Index = array("users", dtype="index")  # of the group


class BlockReply(SVMReply, phase="svm-block"):
    """The opened sum, sealed for each user."""

    sealed: bytes


class OwnerRequest(StepRequest, phase="svm-owner"):
    """To the label owner: take the outputs, make the next message."""

    role = OWNER
    pinned = ("loss", "c", "tolerance", "rows")

    # "start": make the first message; "first": the second, before any outputs; "step": the next;
    # "last": the model, whatever the gap; "again": seal the last one again; "judge": the outputs of
    # the model.
    kind: str
    loss: str
    c: float  # C
    tolerance: float  # relative duality gap at which the message becomes that of the model
    rows: int  # training rows
    bins: int = 0  # of the histograms of held-out rows, with "judge"
    # All else only with "start". Positions of the plan's rows among the owner's announced rows.
    take: Index = array("taken", dtype="index")
    users: Index = array("users", dtype="index")
    sizes: Index = array("users", dtype="index")  # training rows of each
    place: Index = array("placed", dtype="index")  # their numbers in the plan, by user


class OwnerReply(SVMReply, phase="svm-owner"):
    """The next message, and the state of convergence."""

    model: bool = False  # whether the message is that of the model
    objective: float = 0.0  # of the present model; 0 if unknown
    bound: float = 0.0  # lower bound of the optimum; 0 if unknown
    sealed: Bytes = array("sealed", dtype="byte")  # the message at each user's rows
    counts: Floats = array("counts", dtype="float64")  # outcomes on held-out rows, with "judge"


# -- predictions with a model that was saved


class PredictRequest(FeaturesRequest, StepRequest, phase="svm-predict"):
    """To users of a horizontal split: predict the held-out rows and write them."""

    # Shapes (k, d) or (k, 2 D), and (k,).
    weights: Floats = array("outputs", "width", dtype="float64")
    bias: Floats = array("outputs", dtype="float64")
    calibration: Floats = array("calibration", dtype="float64")  # see Calibration


class PredictReply(SVMReply, phase="svm-predict"):
    samples: int  # predicted rows, 0 if none are held out


class RecallRequest(StepRequest, phase="svm-recall"):
    """To agents of a vertical split: send the users the group's part of a model."""

    role = AGENT
    model: str  # session of the model's run
    users: Index = array("users", dtype="index")  # of the group


class RecallReply(SVMReply, phase="svm-recall"):
    """Means and deviations of the columns, and the weights, sealed for each user."""

    sealed: bytes


class ContributeRequest(PlanRequest, phase="svm-contribute"):
    """To users of a vertical split: contribute to the outputs of new rows."""

    rows: int  # of the plan
    width: int  # outputs of each
    sealed_round: int  # step in which the agent sealed its part
    sealed: bytes  # see RecallReply

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Outputs for new rows; for the label owner."""
        own = {"receiver": one_party(self.owner), "cohort": EVERYBODY}
        return [facts.sum(PREDICTED_SUM, self.rows * self.width, **own)]


class ContributeReply(SVMReply, phase="svm-contribute"):
    """Carries the upload."""


class WriteRequest(StepRequest, phase="svm-write"):
    """To the label owner: open and write the outputs of its held-out rows."""

    role = OWNER
    model: str  # session of the model's run
    # Positions of the plan's rows among the owner's announced rows.
    take: Index = array("taken", dtype="index")
    calibration: Floats = array("calibration", dtype="float64")  # see Calibration


class WriteReply(SVMReply, phase="svm-write"):
    samples: int  # predicted rows


# -- runs with a budget of privacy


class GradientRequest(SVMRequest, phase="svm-gradient"):
    """To users: contribute the gradient of the losses at a model.

    ``round`` is the iteration, from 1.
    """

    role = USER
    loss: str  # "hinge" or "logistic"
    features: int  # random Fourier frequencies, 0 for plain columns
    gamma: float  # width of the kernel; 0 without features
    feature_seed: int
    iterations: int  # of the run; the budget is divided among them
    model: Floats = array("outputs", "width", dtype="float64")

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """The gradient of the losses, with noise."""
        assert facts.budget is not None
        outputs, width = self.model.shape
        release = gradient_release(
            facts.budget, outputs=outputs, width=width, rows=facts.rows, iterations=self.iterations
        )
        return [facts.noisy(release, self.model.size, facts.rows)]


class GradientReply(SVMReply, phase="svm-gradient"):
    """Carries the upload."""


class CountRequest(GradientRequest, phase="svm-count"):
    """To users: count outcomes of held-out rows, write the predictions."""

    def sum_specs(self, facts: SVMFacts) -> list[SumSpec]:
        """Counts of held-out rows, with noise."""
        assert facts.budget is not None
        classes, outputs = facts.classes, facts.outputs
        release = outcomes_release(facts.budget, classes=classes, outputs=outputs, rows=facts.tests)
        return [facts.noisy(release, classes**2, facts.tests, held_out=True)]


class CountReply(SVMReply, phase="svm-count"):
    """Carries the upload."""
