"""Messages of HierarchicalSVM: users in groups, an agent per group, at times a label owner.

Models are matrices, a row per output: the coefficients of the features, then the bias. What is
summed travels in secure sums, named here; what follows the vector of a sum are statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .describe import DescribeReply
from .message import PhaseMessage, array, arrays

__all__ = [
    "AGENTS_SUM",
    "EVALUATION_SUM",
    "FLAT_SUM",
    "GROUP_SUM",
    "JUDGED_SUM",
    "OUTPUT_SUM",
    "PREDICTED_SUM",
    "STATISTICS_SUM",
    "AgentReply",
    "AgentRequest",
    "BlockReply",
    "BlockRequest",
    "ChainReply",
    "ChainRequest",
    "ColumnsReply",
    "ColumnsRequest",
    "ContributeReply",
    "ContributeRequest",
    "EvaluateReply",
    "EvaluateRequest",
    "LocalReply",
    "LocalRequest",
    "MultiplierReply",
    "MultiplierRequest",
    "OwnerReply",
    "OwnerRequest",
    "PadReply",
    "PadRequest",
    "PredictReply",
    "PredictRequest",
    "RecallReply",
    "RecallRequest",
    "RingReply",
    "RingRequest",
    "SVMDescribeReply",
    "SaveReply",
    "SaveRequest",
    "StatisticsReply",
    "StatisticsRequest",
    "VisitReply",
    "VisitRequest",
    "WriteReply",
    "WriteRequest",
]

#: Means and mean squares of the columns, over all users.
STATISTICS_SUM = "column statistics"
#: Users' models with their duals, then their statistics; for their agent alone.
GROUP_SUM = "group"
#: Agents' models with their duals, then their groups' statistics.
AGENTS_SUM = "agents"
#: Users' models with their duals, then their statistics, where there is one layer.
FLAT_SUM = "users"
#: Outputs of all groups' blocks, row by row; for the label owner alone.
OUTPUT_SUM = "outputs"
#: Outputs of the model, those of held-out rows as well; for the label owner alone.
JUDGED_SUM = "judged outputs"
#: Outputs of a saved model for new rows; for the label owner alone.
PREDICTED_SUM = "predicted outputs"
#: Loss on the rows to learn from, outcomes on held-out rows.
EVALUATION_SUM = "evaluation"


@dataclass(frozen=True, kw_only=True)
class SVMDescribeReply(DescribeReply):
    """What a node tells about itself.

    Attributes
    ----------
    group : int
        The group that it belongs to, from 0; -1 for the label owner.
    outputs : int
        k, columns of the targets; 0 without labels.
    classes : int
        Number of classes, 0 for regression or without labels.
    labels : str
        Digest of the names of the classes.
    label_bound : float
        Declared bound of the targets of a regression.
    labelled : bool
        Whether the held-out rows have labels.
    named : bool
        Whether its rows have ids; else they are numbered.
    allow_single : bool
        Whether the agent may learn the model of this user alone.
    product : str
        The kind of matrix products in which a user of a vertical split takes part.
    ids : ndarray of uint64, shape (rows + test_rows, 2) or (0, 2)
        In a vertical split: keyed hashes of the ids, each part sorted.
    """

    group: int
    outputs: int
    classes: int
    labels: str
    label_bound: float
    labelled: bool
    named: bool
    allow_single: bool
    product: str
    ids: NDArray[Any] = array("ids", "words", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class SVMRequest(PhaseMessage):
    """What every request carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the iteration at the receiver, so that duplicates are noticed.
    attempt : int
        How often it has been asked before.
    """

    session: str
    round: int
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class SVMReply(PhaseMessage):
    """What every reply carries: the number of the iteration."""

    round: int


@dataclass(frozen=True, kw_only=True)
class StatisticsRequest(SVMRequest):
    """To users: contribute to the means of the columns.

    Attributes
    ----------
    loss : {"hinge", "logistic", "squared"}
    c : float
        C.
    features : int
        Random Fourier frequencies, 0 for the columns as they are.
    gamma : float
        Width of the kernel; 0 without features.
    feature_seed : int
        Seed of the frequencies.
    rows : int
        Rows to learn from at all users together.
    raw : bool
        Whether it is about the columns before random features are made of them.
    partners : ndarray of int32
        Parties with which this user will exchange sealed messages.
    raw_mean, raw_deviation : ndarray, shapes (d,), or empty
        By which columns are standardised before random features are made of them.
    """

    phase = "svm-statistics"
    loss: str
    c: float
    features: int
    gamma: float
    feature_seed: int
    rows: int
    raw: bool
    partners: NDArray[Any] = array("partners", dtype="index")
    raw_mean: NDArray[Any] = array("raw columns", dtype="float64")
    raw_deviation: NDArray[Any] = array("raw columns", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class StatisticsReply(SVMReply):
    """Carries the upload."""

    phase = "svm-statistics"


@dataclass(frozen=True, kw_only=True)
class LocalRequest(SVMRequest):
    """To users: take over the center of the last iteration, solve the local problem, contribute.

    Attributes
    ----------
    agent : int
        Partition that opens the sum, -1 for the server.
    rho : float
        Penalty of this iteration.
    relaxation : float
    sealed : bytes
        The center, sealed by the agent; empty if it comes plain or is zero.
    center : ndarray, shape (k, d + 1) or (0, 0)
        The center where the server makes it.
    judged : ndarray, shape (k, d + 1) or (0, 0)
        Model whose loss is counted.
    mean, deviation, ridge : ndarray, shapes (d,), (d,), (d + 1,), or empty
        Coordinates, with the first iteration.
    """

    phase = "svm-local"
    agent: int
    rho: float
    relaxation: float
    sealed: bytes
    center: NDArray[Any] = array("outputs", "width", dtype="float64")
    judged: NDArray[Any] = array("judged outputs", "judged width", dtype="float64")
    mean: NDArray[Any] = array("columns", dtype="float64")
    deviation: NDArray[Any] = array("columns", dtype="float64")
    ridge: NDArray[Any] = array("coefficients", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class LocalReply(SVMReply):
    """Carries the upload."""

    phase = "svm-local"


@dataclass(frozen=True, kw_only=True)
class ChainRequest(SVMRequest):
    """To users in a chain: take over the neighbours' models, solve, contribute.

    Attributes
    ----------
    rho : float
        eta, the penalty.
    left, right : int
        Partitions of the neighbours, -1 at the ends.
    from_left, from_right : bytes
        Their models of the last iteration, sealed.
    users : int
    judged, mean, deviation, ridge
        See :class:`LocalRequest`.
    """

    phase = "svm-chain"
    rho: float
    left: int
    right: int
    from_left: bytes
    from_right: bytes
    users: int
    judged: NDArray[Any] = array("judged outputs", "judged width", dtype="float64")
    mean: NDArray[Any] = array("columns", dtype="float64")
    deviation: NDArray[Any] = array("columns", dtype="float64")
    ridge: NDArray[Any] = array("coefficients", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class ChainReply(SVMReply):
    """Carries the upload and the model, sealed for each neighbour."""

    phase = "svm-chain"
    to_left: bytes
    to_right: bytes


@dataclass(frozen=True, kw_only=True)
class AgentRequest(SVMRequest):
    """To agents: combine the group's sum with the global model, contribute to the next.

    Attributes
    ----------
    advance : bool
        Whether the group has finished an iteration, whose sum is delivered with this request; else
        the agent contributes what it has.
    consensus : {"exact", "paper"}
    rho, sigma, next_sigma : float
        Penalties of this iteration, and sigma of the next.
    relaxation : float
    all_users, groups : int
        N and S.
    plain : bool
        Whether this is the only agent, whose term is the total.
    self_masks : bool
        Whether the sum may lose agents.
    ring : bool
        Whether the terms are summed around the ring instead.
    outputs, width : int
        Shape of a model.
    users : ndarray of int32
        Users of the group.
    center : ndarray, shape (k, d + 1)
        The global model; of ``paper`` the sum of all z_k.
    """

    phase = "svm-agent"
    advance: bool
    consensus: str
    rho: float
    sigma: float
    next_sigma: float
    relaxation: float
    all_users: int
    groups: int
    plain: bool
    self_masks: bool
    ring: bool
    outputs: int
    width: int
    users: NDArray[Any] = array("users", dtype="index")
    center: NDArray[Any] = array("outputs", "width", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class AgentReply(SVMReply):
    """Carries the upload.

    Attributes
    ----------
    sealed : bytes
        The new center, sealed for each user in turn.
    term : tuple of ndarray
        The only agent's contribution.
    """

    phase = "svm-agent"
    sealed: bytes
    term: tuple[NDArray[Any], ...] = arrays("numbers", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class RingRequest(SVMRequest):
    """To an agent: add your term to what went round the ring so far, and seal it for the next.

    Attributes
    ----------
    first : bool
        Whether this agent begins: it adds a mask of its own.
    last : bool
        Whether it has come round: the agent takes its mask off and tells the total.
    source, destination : int
        Partitions; ``source`` -1 where it begins, ``destination`` -1 where it ends.
    groups : int
        S.
    bound : float
        Public bound of the terms.
    sealed : bytes
        What went round so far.
    """

    phase = "svm-ring"
    first: bool
    last: bool
    source: int
    destination: int
    groups: int
    bound: float
    sealed: bytes


@dataclass(frozen=True, kw_only=True)
class RingReply(SVMReply):
    """What goes on round the ring, or the total."""

    phase = "svm-ring"
    sealed: bytes
    term: tuple[NDArray[Any], ...] = arrays("numbers", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(SVMRequest):
    """To users: judge the model on rows to learn from and on held-out rows.

    Attributes
    ----------
    self_masks : bool
        Whether the sum may lose users.
    model : ndarray, shape (k, d + 1)
    """

    phase = "svm-evaluate"
    self_masks: bool
    model: NDArray[Any] = array("outputs", "width", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class EvaluateReply(SVMReply):
    """Carries the upload."""

    phase = "svm-evaluate"


@dataclass(frozen=True, kw_only=True)
class SaveRequest(SVMRequest):
    """Keep the state on disk under the number of this round."""

    phase = "svm-save"


@dataclass(frozen=True, kw_only=True)
class SaveReply(SVMReply):
    """It is kept."""

    phase = "svm-save"


# -- vertical splits


@dataclass(frozen=True, kw_only=True)
class ColumnsRequest(SVMRequest):
    """To users of a vertical split: contribute to the statistics of the group's columns.

    Attributes
    ----------
    agent, owner : int
        Partitions that open the group's sums, and the sums of outputs.
    rows, all_rows : int
        Rows of the plan to learn from, and with those held out, which follow them.
    standardised : bool
        Whether columns are brought to variance 1; they are centred in any case.
    take : ndarray of int32, shape (m,)
        Positions of the plan's rows among those that the user announced.
    place : ndarray of int32, shape (m,)
        Their numbers in the plan.
    """

    phase = "svm-columns"
    agent: int
    owner: int
    rows: int
    all_rows: int
    standardised: bool
    take: NDArray[Any] = array("rows", dtype="index")
    place: NDArray[Any] = array("rows", dtype="index")


@dataclass(frozen=True, kw_only=True)
class ColumnsReply(SVMReply):
    """Carries the upload.

    Attributes
    ----------
    orthogonal : bytes
        With orthogonal products: the vectors, sealed for the agent.
    """

    phase = "svm-columns"
    orthogonal: bytes


@dataclass(frozen=True, kw_only=True)
class PadRequest(SVMRequest):
    """To whom sums belong: contribute the pad to the sums of this exchange."""

    phase = "svm-pad"


@dataclass(frozen=True, kw_only=True)
class PadReply(SVMReply):
    """Carries the uploads."""

    phase = "svm-pad"


@dataclass(frozen=True, kw_only=True)
class VisitRequest(SVMRequest):
    """To users of a vertical split: multiply a message and the last weights with the rows.

    Attributes
    ----------
    width : int
        Columns of messages and weights.
    message_round, weights_round : int
        Steps in which message and weights, or coordinates, were sealed.
    coordinates : bytes
        Means and deviations of the columns, sealed by the agent; once.
    message : bytes
        The label owner's message at the user's rows, sealed; empty if only the weights count.
    weights : bytes
        The group's weights, sealed by the agent; empty in the first visit.
    judge : bool
        Whether outputs are those of the model, for held-out rows as well.
    """

    phase = "svm-visit"
    width: int
    message_round: int
    weights_round: int
    coordinates: bytes
    message: bytes
    weights: bytes
    judge: bool


@dataclass(frozen=True, kw_only=True)
class VisitReply(SVMReply):
    """Carries the uploads."""

    phase = "svm-visit"


@dataclass(frozen=True, kw_only=True)
class BlockRequest(SVMRequest):
    """To agents of a vertical split: open the group's sum and pass it on to the users.

    Attributes
    ----------
    kind : {"columns", "weights", "model", "again"}
        Statistics of the columns; weights; weights of the model; or what was opened last.
    rows : int
        Rows to learn from.
    standardised : bool
        See :class:`ColumnsRequest`.
    users : ndarray of int32
        Users of the group.
    """

    phase = "svm-block"
    kind: str
    rows: int
    standardised: bool
    users: NDArray[Any] = array("users", dtype="index")


@dataclass(frozen=True, kw_only=True)
class BlockReply(SVMReply):
    """What was opened, sealed for each user in turn."""

    phase = "svm-block"
    sealed: bytes


@dataclass(frozen=True, kw_only=True)
class MultiplierRequest(SVMRequest):
    """To agents, with orthogonal products: mask the owner's message for the users.

    Attributes
    ----------
    owner, message_round : int
        Who sealed the message, and in which step.
    width : int
        Columns of the message.
    first : bool
        Whether the users' orthogonal vectors come with this request.
    users, sizes : ndarray of int32
        Users of the group, and rows to learn from of each.
    sealed : ndarray of uint8
        The message at each user's rows in turn, sealed by the owner for this agent.
    vectors : ndarray of uint8
        What the users sealed, one after the other.
    lengths : ndarray of int32
        Bytes of ``vectors`` from each user.
    """

    phase = "svm-multiplier"
    owner: int
    message_round: int
    width: int
    first: bool
    users: NDArray[Any] = array("users", dtype="index")
    sizes: NDArray[Any] = array("users", dtype="index")
    sealed: NDArray[Any] = array("sealed", dtype="byte")
    vectors: NDArray[Any] = array("vectors", dtype="byte")
    lengths: NDArray[Any] = array("lengths", dtype="index")


@dataclass(frozen=True, kw_only=True)
class MultiplierReply(SVMReply):
    """The masked message for each user in turn, sealed."""

    phase = "svm-multiplier"
    sealed: NDArray[Any] = array("sealed", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class OwnerRequest(SVMRequest):
    """To the label owner of a vertical split: take the outputs, make the next message.

    Attributes
    ----------
    kind : {"start", "first", "step", "last", "again", "judge"}
        Make the first message; the second, before any outputs; the next one; the model whatever the
        gap is; seal the last one once more; judge the outputs of the model.
    loss : str
    c : float
        C.
    tolerance : float
        Relative duality gap at which the message is that of the model.
    rows : int
        Rows to learn from.
    take : ndarray of int32
        Positions of the plan's rows among those that the owner announced; with ``start``.
    users, agents, sizes : ndarray of int32
        Users, for whom the parts of the message are sealed: their agents with orthogonal products,
        else -1; rows to learn from of each.
    place : ndarray of int32
        Numbers of these rows in the plan, user by user.
    """

    phase = "svm-owner"
    kind: str
    loss: str
    c: float
    tolerance: float
    rows: int
    take: NDArray[Any] = array("taken", dtype="index")
    users: NDArray[Any] = array("users", dtype="index")
    agents: NDArray[Any] = array("users", dtype="index")
    sizes: NDArray[Any] = array("users", dtype="index")
    place: NDArray[Any] = array("placed", dtype="index")


@dataclass(frozen=True, kw_only=True)
class OwnerReply(SVMReply):
    """The next message, and how far the run is.

    Attributes
    ----------
    model : bool
        Whether the message is that of the model.
    objective, bound : float
        Of the present model, and a lower bound of the optimum; 0 while they are not known.
    sealed : ndarray of uint8
        The message at each user's rows in turn, sealed.
    counts : ndarray of float64
        Outcomes on held-out rows, with ``judge``.
    """

    phase = "svm-owner"
    model: bool
    objective: float
    bound: float
    sealed: NDArray[Any] = array("sealed", dtype="byte")
    counts: NDArray[Any] = array("counts", dtype="float64")


# -- predictions with a model that was saved


@dataclass(frozen=True, kw_only=True)
class PredictRequest(SVMRequest):
    """To users of a horizontal split: predict the held-out rows with a model, and write them.

    Attributes
    ----------
    features : int
        Random Fourier frequencies, 0 for the columns as they are.
    gamma : float
        Width of the kernel; 0 without features.
    feature_seed : int
        Seed of the frequencies.
    weights, bias : ndarray, shapes (k, d) or (k, 2 D), and (k,)
    raw_mean, raw_deviation : ndarray, shapes (d,), or empty
        By which columns are standardised before random features are made of them.
    """

    phase = "svm-predict"
    features: int
    gamma: float
    feature_seed: int
    weights: NDArray[Any] = array("outputs", "width", dtype="float64")
    bias: NDArray[Any] = array("outputs", dtype="float64")
    raw_mean: NDArray[Any] = array("raw columns", dtype="float64")
    raw_deviation: NDArray[Any] = array("raw columns", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class PredictReply(SVMReply):
    """How many rows the user has predicted, 0 if it holds none out."""

    phase = "svm-predict"
    samples: int


@dataclass(frozen=True, kw_only=True)
class RecallRequest(SVMRequest):
    """To agents of a vertical split: pass the group's part of a model on to the users.

    Attributes
    ----------
    model : str
        Session of the run that made the model.
    users : ndarray of int32
        Users of the group.
    """

    phase = "svm-recall"
    model: str
    users: NDArray[Any] = array("users", dtype="index")


@dataclass(frozen=True, kw_only=True)
class RecallReply(SVMReply):
    """Means and deviations of the columns, and the weights, sealed for each user in turn."""

    phase = "svm-recall"
    sealed: bytes


@dataclass(frozen=True, kw_only=True)
class ContributeRequest(SVMRequest):
    """To users of a vertical split: contribute to the outputs of new rows.

    Attributes
    ----------
    agent, owner : int
        Partitions of the group's agent, and of the label owner.
    rows, width : int
        Rows of the plan, and outputs of each.
    sealed_round : int
        Step in which the agent sealed its part.
    sealed : bytes
        See :class:`RecallReply`.
    take, place : ndarray of int32, shape (m,)
        See :class:`ColumnsRequest`.
    """

    phase = "svm-contribute"
    agent: int
    owner: int
    rows: int
    width: int
    sealed_round: int
    sealed: bytes
    take: NDArray[Any] = array("rows", dtype="index")
    place: NDArray[Any] = array("rows", dtype="index")


@dataclass(frozen=True, kw_only=True)
class ContributeReply(SVMReply):
    """Carries the upload."""

    phase = "svm-contribute"


@dataclass(frozen=True, kw_only=True)
class WriteRequest(SVMRequest):
    """To the label owner: open the outputs of its held-out rows, and write them.

    Attributes
    ----------
    model : str
        Session of the run that made the model.
    take : ndarray of int32
        Positions of the plan's rows among those that the owner announced.
    """

    phase = "svm-write"
    model: str
    take: NDArray[Any] = array("taken", dtype="index")


@dataclass(frozen=True, kw_only=True)
class WriteReply(SVMReply):
    """How many rows are predicted."""

    phase = "svm-write"
    samples: int
