"""Messages of FDSKL: parties that hold columns of the same rows, some of them with labels.

Rows are named by their positions among those that the receiver has announced. *Owners* are the
active parties: each has random directions of its own, numbered from 0, and gets the phases of these
directions; ``known`` says how many of them the owner has of a row already, ``upto`` how many it
shall have. A sum per owner and chunk of rows holds what is missing, row by row.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..table_parties import TableReply
from ..wire.message import Message, array

Floats = NDArray[Any]
Index = NDArray[Any]


class VerticalDescribeReply(TableReply):
    """What a party tells about itself; ``rows`` are those with labels to learn from."""

    others: int  # rows of which it has features only
    named: bool  # whether its rows have ids; else they are numbered

    @property
    def announced(self) -> int:
        """Number of rows that it announces."""
        return self.rows + self.test_rows + self.others


class VerticalRequest(Message):
    """What every request of the method carries."""

    session: str = ""
    round: int = 0  # grows with every exchange, so that duplicates are noticed
    # Number under which the party keeps its state on disk, to resume or to predict; 0 for not.
    save_as: int = 0
    # Number of the last set of phases whose sums came with this request or before; 0 for none.
    delivered: int = 0


class VerticalReply(Message):
    """What every reply of the method carries."""

    round: int = 0


class StepRequest(VerticalRequest, phase="vertical-step"):
    """Go on by a step: finish an iteration, score the next batch, collect phases for a third."""

    kernel: str
    gamma: float  # width that the directions are drawn for
    phase_bits: int  # 16 or 32
    model: str  # for predictions: session and number of the state of the run that made the model
    model_round: int  # else empty and 0
    capacity: int  # directions that an owner may get at most
    collection: int  # number of the set of phases asked for; the same when the step is repeated
    owners: Index = array("owners", dtype="index")
    upto: Index = array("owners", dtype="index")
    known: Index = array("owners", "rows", dtype="index")
    rows: Index = array("rows", dtype="index")
    cuts: Index = array("cuts", dtype="index")  # where chunks of rows end: a sum per owner each
    loss: str
    finish: int  # iteration to finish with what came with this request; 0 for none
    leader: int  # partition whose batch it takes; -1 for none
    score: int  # iteration whose batch all owners score for its leader; 0 for none
    scorer: int  # that leader; -1 for none
    directions: int  # r, of which the leader gets a coefficient each
    rate: float  # gamma_t
    decay: float  # 1 - gamma_t lambda
    finish_rows: Index = array("finished", dtype="index")  # the batches
    score_rows: Index = array("scored", dtype="index")


class StepReply(VerticalReply, phase="vertical-step"):
    """The step is done; what it contributes is in the sums."""


class TrainRequest(VerticalRequest, phase="vertical-train"):
    """Fit a model to phases at once; the last of them come with this request."""

    pinned = ("loss", "directions", "seed", "intercept", "balanced", "multiples", "regularizations")

    loss: str
    directions: int  # how many of the first of a row's phases
    seed: int  # of the folds of the cross-validation
    count: bool  # whether to tell how good predictions of the held-out rows are
    bins: int = 0  # of the histograms that tell it, 0 for none
    intercept: bool = False  # whether there is a constant feature as well
    balanced: bool = False  # whether its rows weigh so much that all classes count alike
    multiples: Index = array("multiples", dtype="index")  # of the phases, to choose from
    regularizations: Floats = array("regularizations", dtype="float64")  # lambda to choose from
    rows: Index = array("rows", dtype="index")  # to learn from
    tests: Index = array("tests", dtype="index")  # held out


class TrainReply(VerticalReply, phase="vertical-train"):
    """What was chosen, not the model."""

    multiple: int
    regularization: float
    score: float  # accuracy or root mean squared error of the cross-validation, -1 without one
    counts: Floats = array("counts", dtype="float64")  # see OutcomeReply


class OutcomeRequest(VerticalRequest, phase="vertical-outcome"):
    """Predict held-out rows with what came with this request."""

    # Whether to add scores of the rows to sums for their owners now, and predict later; where there
    # is one owner it predicts at once.
    scoring: bool
    count: bool  # whether to tell how good the predictions are
    bins: int = 0  # of the histograms that tell it, 0 for none
    owners: Index = array("owners", dtype="index")  # whose held-out rows
    sizes: Index = array("owners", dtype="index")  # how many
    rows: Index = array("rows", dtype="index")  # these rows, one owner after the other
    calibration: Floats = array("calibration", dtype="float64")  # of a saved model, see Calibration


class OutcomeReply(VerticalReply, phase="vertical-outcome"):
    """How good the predictions are."""

    # Of this party's held-out rows (see ``Yardstick.count``), empty if not asked.
    counts: Floats = array("counts", dtype="float64")
