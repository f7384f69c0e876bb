"""Messages of FDSKL: parties that hold columns of the same rows, some of them with labels.

Rows are named by their positions among those that the receiver has announced. *Owners* are the
active parties: each has random directions of its own, numbered from 0, and gets the phases of these
directions; ``known`` says how many of them the owner has of a row already, ``upto`` how many it
shall have. A sum per owner and chunk of rows holds what is missing, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .describe import DescribeReply
from .message import PhaseMessage, array, arrays

__all__ = [
    "HopsReply",
    "HopsRequest",
    "OutcomeReply",
    "OutcomeRequest",
    "StepReply",
    "StepRequest",
    "TrainReply",
    "TrainRequest",
    "VerticalDescribeReply",
]


@dataclass(frozen=True, kw_only=True)
class VerticalDescribeReply(DescribeReply):
    """What a party tells about itself; ``rows`` are those with labels to learn from.

    Attributes
    ----------
    others : int
        Rows of which it has features only.
    outputs : int
        k, columns of the targets; 0 at a passive party.
    classes : int
        Number of classes, 0 for regression or at a passive party.
    labels : str
        Digest of the names of the classes.
    label_bound : float
        Declared bound of the targets of a regression.
    labelled : bool
        Whether the held-out rows have labels.
    named : bool
        Whether its rows have ids; else they are numbered.
    allow_single : bool
        Whether an active party may learn the phases of this party alone.
    ids : ndarray of uint64, shape (rows + test_rows + others, 2)
        Keyed hashes of the ids in this order, each part sorted.
    """

    others: int
    outputs: int
    classes: int
    labels: str
    label_bound: float
    labelled: bool
    named: bool
    allow_single: bool
    ids: NDArray[Any] = array("ids", "words", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class VerticalRequest(PhaseMessage):
    """What every request of the method carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the step; grows with every exchange, so that duplicates are noticed.
    save_as : int
        Number under which the party keeps its state on disk, to resume or to predict; 0 for not.
    delivered : int
        Number of the set of phases whose sums come with this request; 0 if there are none.
    """

    session: str
    round: int
    save_as: int
    delivered: int


@dataclass(frozen=True, kw_only=True)
class VerticalReply(PhaseMessage):
    """What every reply of the method carries: the number of the step."""

    round: int


@dataclass(frozen=True, kw_only=True)
class PhasesRequest(VerticalRequest):
    """All that a party needs to compute its part of phases.

    Attributes
    ----------
    kernel : {"rbf", "laplacian"}
    gamma : float
        Width that the directions are drawn for.
    phase_bits : {16, 32}
    topology : {"star", "tree"}
    public_seed : int
        Seed of directions that all parties know; -1 for private ones.
    model, model_round : str, int
        For predictions: session and number of the state of the run that made the model; empty and
        0 else.
    capacity : int
        Directions that an owner may get at most.
    collection : int
        Number of the set of phases asked for; the same when the step is repeated.
    owners, upto : ndarray of int32, shape (owners,)
    known : ndarray of int32, shape (owners, rows)
    rows : ndarray of int32, shape (rows,)
    cuts : ndarray of int32, shape (cuts,)
        Where the chunks of rows end, one sum per owner each.
    """

    kernel: str
    gamma: float
    phase_bits: int
    topology: str
    public_seed: int
    model: str
    model_round: int
    capacity: int
    collection: int
    owners: NDArray[Any] = array("owners", dtype="index")
    upto: NDArray[Any] = array("owners", dtype="index")
    known: NDArray[Any] = array("owners", "rows", dtype="index")
    rows: NDArray[Any] = array("rows", dtype="index")
    cuts: NDArray[Any] = array("cuts", dtype="index")


@dataclass(frozen=True, kw_only=True)
class StepRequest(PhasesRequest):
    """Go on by a step: finish an iteration, score the next batch, collect phases for a third.

    Attributes
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
    finish : int
        Iteration to finish with what came with this request; 0 for none.
    score : int
        Iteration whose batch is to be scored by all owners, for its leader; 0 for none.
    leader, scorer : int
        Partitions whose batches these are; -1 for none.
    directions : int
        r, directions that the leader gets a coefficient of.
    rate : float
        gamma_t.
    decay : float
        1 - gamma_t lambda.
    finish_rows, score_rows : ndarray of int32
        The batches.
    """

    phase = "vertical-step"
    loss: str
    finish: int
    leader: int
    score: int
    scorer: int
    directions: int
    rate: float
    decay: float
    finish_rows: NDArray[Any] = array("finished", dtype="index")
    score_rows: NDArray[Any] = array("scored", dtype="index")


@dataclass(frozen=True, kw_only=True)
class StepReply(VerticalReply):
    """See :class:`StepRequest`."""

    phase = "vertical-step"


@dataclass(frozen=True, kw_only=True)
class HopsRequest(PhasesRequest):
    """Topology tree (Algorithm 3): add this party's part to what its children sent, pass it on.

    Attributes
    ----------
    receiver : int
        The owner at the root of both trees; the only entry of ``owners``.
    kept : int
        l', the party whose b stays in the phase.
    firsts, seconds : ndarray of int32
        Children in T1 and in T2.
    parents : ndarray of int32, shape (2,)
        Parents in T1 and T2; -1 where the party does not send now, or in that tree.
    received : tuple of ndarray of uint8
        What the children sealed, those of T1 first.
    """

    phase = "vertical-hops"
    receiver: int
    kept: int
    firsts: NDArray[Any] = array("firsts", dtype="index")
    seconds: NDArray[Any] = array("seconds", dtype="index")
    parents: NDArray[Any] = array("trees", dtype="index")
    received: tuple[NDArray[Any], ...] = arrays("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class HopsReply(VerticalReply):
    """What is sealed for the parent in T1, and for that in T2; empty where there is none."""

    phase = "vertical-hops"
    sealed: tuple[NDArray[Any], ...] = arrays("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class TrainRequest(VerticalRequest):
    """Fit a model to all phases at once; the last of them come with this request.

    Attributes
    ----------
    loss : {"square", "logistic", "smooth-hinge"}
    seed : int
        Of the folds of the cross-validation.
    multiples : ndarray of int32
        Multiples of the phases to choose from.
    regularizations : ndarray of float64
        lambda to choose from.
    count : bool
        Whether to tell how good predictions of the held-out rows are.
    rows, tests : ndarray of int32
        Rows to learn from, and those held out.
    """

    phase = "vertical-train"
    loss: str
    seed: int
    count: bool
    multiples: NDArray[Any] = array("multiples", dtype="index")
    regularizations: NDArray[Any] = array("regularizations", dtype="float64")
    rows: NDArray[Any] = array("rows", dtype="index")
    tests: NDArray[Any] = array("tests", dtype="index")


@dataclass(frozen=True, kw_only=True)
class TrainReply(VerticalReply):
    """What was chosen, not the model.

    Attributes
    ----------
    multiple : int
    regularization : float
    score : float
        Accuracy or root mean squared error of the cross-validation, -1 without one.
    counts : ndarray of float64
        See :class:`OutcomeReply`.
    """

    phase = "vertical-train"
    multiple: int
    regularization: float
    score: float
    counts: NDArray[Any] = array("counts", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class OutcomeRequest(VerticalRequest):
    """Predict held-out rows with what came with this request.

    Attributes
    ----------
    scoring : bool
        Whether to add scores of the rows to sums for their owners now, and predict later; where
        there is one owner it predicts at once.
    count : bool
        Whether to tell how good the predictions are.
    owners, sizes : ndarray of int32, shape (owners,)
        Whose held-out rows, and how many.
    rows : ndarray of int32, shape (rows,)
        These rows, one owner after the other.
    """

    phase = "vertical-outcome"
    scoring: bool
    count: bool
    owners: NDArray[Any] = array("owners", dtype="index")
    sizes: NDArray[Any] = array("owners", dtype="index")
    rows: NDArray[Any] = array("rows", dtype="index")


@dataclass(frozen=True, kw_only=True)
class OutcomeReply(VerticalReply):
    """``counts``: of this party's held-out rows (see ``count_outcomes``), empty if not asked."""

    phase = "vertical-outcome"
    counts: NDArray[Any] = array("counts", dtype="float64")
