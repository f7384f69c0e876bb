"""Messages of FDSKL: parties that hold columns of the same rows, some of them with labels.

Rows are named by their positions among those that the receiver announced. *Owners* are the active
parties. Each has random directions, numbered from 0, and receives their phases: it has the first
``known`` of a row and will have ``upto``. A sum per owner and chunk of rows holds the missing ones,
row by row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..exchange import SumSpec, one_party
from ..secure_sum import Encoding
from ..wire.describe import TableReply
from ..wire.message import Message, array

Floats = NDArray[Any]
Index = NDArray[Any]

LARGEST_OUTPUT = 1e6  # bound of sums of outputs; beyond it an iteration has diverged


@dataclass(frozen=True)
class VerticalFacts:
    """Public facts of a run that decide its sums.

    Attributes
    ----------
    phase_bits : int
        16 or 32.
    outputs : int or None
        Columns of the targets; unknown to a party without labels.
    names : ndarray of uint64, shape (n,)
        First half of the pseudonym of each requested row.
    """

    phase_bits: int
    outputs: int | None
    names: NDArray[np.uint64]

    def scores(self, name: str, rows: int, receiver: int) -> SumSpec:
        """Return the sum of all parties' outputs at rows of one party."""
        return SumSpec(
            name=name,
            encoding=Encoding.fixed_point(LARGEST_OUTPUT),
            length=None if self.outputs is None else rows * self.outputs,
            receiver=one_party(receiver),
            everybody=True,
        )


def phase_parts(
    owner: int, names: NDArray[np.uint64], cuts: Index, known: Index, upto: int
) -> Iterator[tuple[slice, str]]:
    """Yield the chunks of rows of an owner's phases and the names of their sums.

    A name binds a sum to its rows and directions. Each party derives it from its own request: masks
    of parties with different requests do not cancel. ``owner`` receives the sums, ``names`` are the
    rows' pseudonyms, ``cuts`` the ends of the chunks.
    """
    ends = cuts.tolist()
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        span = slice(start, end)
        digest = hashlib.sha256(np.ascontiguousarray(names[span], "<u8").tobytes())
        digest.update(np.ascontiguousarray(known[span], "<i4").tobytes() + b"%d" % upto)
        yield span, f"phases/{owner}/{number}#{digest.hexdigest()[:32]}"


class VerticalDescribeReply(TableReply):
    others: int  # rows with features only
    named: bool  # whether its rows have ids; otherwise they are numbered

    @property
    def announced(self) -> int:
        return self.rows + self.test_rows + self.others


class VerticalRequest(Message):
    """Fields of every request of the method."""

    session: str = ""
    round: int = 0  # grows with each exchange, so that duplicates are recognised
    # Number under which the party saves its state, to resume or to predict; 0 for none.
    save_as: int = 0
    # Number of the last set of phases that was delivered, with this request or before; 0 for none.
    delivered: int = 0

    def sum_specs(self, facts: VerticalFacts) -> list[SumSpec]:
        """Declare the sums of the request; here none."""
        return []


class VerticalReply(Message):
    """Fields of every reply of the method."""

    round: int = 0


class StepRequest(VerticalRequest, phase="vertical-step"):
    """Take a step: finish an iteration, score the next batch, collect phases for a third."""

    kernel: str
    gamma: float  # width of the directions
    phase_bits: int  # 16 or 32
    model: str  # for predictions: session and state number of the model's run
    model_round: int  # otherwise empty and 0
    capacity: int  # most directions of an owner
    collection: int  # number of the requested set of phases; the same if the step is repeated
    owners: Index = array("owners", dtype="index")
    upto: Index = array("owners", dtype="index")
    known: Index = array("owners", "rows", dtype="index")
    rows: Index = array("rows", dtype="index")
    cuts: Index = array("cuts", dtype="index")  # ends of row chunks; one sum per owner and chunk
    loss: str
    finish: int  # iteration to finish with this delivery; 0 for none
    leader: int  # partition with the batch; -1 for none
    score: int  # iteration with a batch that all owners score for its leader; 0 for none
    scorer: int  # that leader; -1 for none
    directions: int  # r, the leader's new coefficients
    rate: float  # gamma_t
    decay: float  # 1 - gamma_t lambda
    finish_rows: Index = array("finished", dtype="index")  # the batches
    score_rows: Index = array("scored", dtype="index")

    def sum_specs(self, facts: VerticalFacts) -> list[SumSpec]:
        """Declare the sums: the phases that each owner lacks, and the scores of a batch."""
        found, circle = list[SumSpec](), Encoding.circle(facts.phase_bits)
        for owner, known, upto in self.wanted():
            for span, name in phase_parts(owner, facts.names, self.cuts, known, upto):
                if length := int((upto - known[span]).sum()):
                    about: dict[str, Any] = {"length": length, "receiver": one_party(owner)}
                    found.append(SumSpec(name=name, encoding=circle, everybody=True, **about))
        if many := len(self.score_rows):
            found.append(facts.scores(f"scores/{self.scorer}", many, self.scorer))
        return found

    def wanted(self) -> Iterator[tuple[int, Index, int]]:
        """Yield (owner, known phases of each row, phases it will have)."""
        return zip(self.owners.tolist(), self.known, self.upto.tolist(), strict=True)


class StepReply(VerticalReply, phase="vertical-step"):
    pass


class TrainRequest(VerticalRequest, phase="vertical-train"):
    """Fit a model to phases; the last of them come with this request."""

    pinned = ("loss", "directions", "seed", "intercept", "balanced", "multiples", "regularizations")

    loss: str
    directions: int  # number of phases per row, the first ones
    seed: int  # of the folds of the cross-validation
    count: bool  # whether to evaluate held-out rows
    bins: int = 0  # of the histograms, 0 for none
    intercept: bool = False  # whether to add a constant feature
    balanced: bool = False  # whether rows are weighted so that all classes count alike
    multiples: Index = array("multiples", dtype="index")  # of the phases, to choose from
    regularizations: Floats = array("regularizations", dtype="float64")  # lambda to choose from
    rows: Index = array("rows", dtype="index")  # to learn from
    tests: Index = array("tests", dtype="index")  # held out


class TrainReply(VerticalReply, phase="vertical-train"):
    """What was chosen, without the model."""

    multiple: int
    regularization: float
    score: float  # accuracy or root mean squared error of the cross-validation, -1 without one
    counts: Floats = array("counts", dtype="float64")  # see OutcomeReply


class OutcomeRequest(VerticalRequest, phase="vertical-outcome"):
    """Predict held-out rows; the last outputs come with this request."""

    # Whether to add scores of the rows to their owners' sums now, and predict later. A single owner
    # predicts at once.
    scoring: bool
    count: bool  # whether to evaluate the predictions
    bins: int = 0  # of the histograms, 0 for none
    owners: Index = array("owners", dtype="index")  # of held-out rows
    sizes: Index = array("owners", dtype="index")  # numbers of rows
    rows: Index = array("rows", dtype="index")  # these rows, one owner after the other
    calibration: Floats = array("calibration", dtype="float64")  # of a saved model, see Calibration

    def sum_specs(self, facts: VerticalFacts) -> list[SumSpec]:
        """Declare the sums: the scores of each owner's held-out rows."""
        owners = zip(self.owners.tolist(), self.sizes.tolist(), strict=True)
        return [facts.scores(f"outcome/{a}", n, a) for a, n in owners if self.scoring and n]


class OutcomeReply(VerticalReply, phase="vertical-outcome"):
    # Of this party's held-out rows (see ``Yardstick.count``); empty if not requested.
    counts: Floats = array("counts", dtype="float64")
