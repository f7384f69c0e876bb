"""Messages of HierarchicalSVM when rows are predicted with a model that was saved."""

from __future__ import annotations

from ..wire.message import array
from .messages import FeaturesRequest, Floats, Index, PlanRequest, StepRequest, SVMReply


class PredictRequest(FeaturesRequest, StepRequest, phase="svm-predict"):
    """To users of a horizontal split: predict the held-out rows with a model, and write them."""

    # Shapes (k, d) or (k, 2 D), and (k,).
    weights: Floats = array("outputs", "width", dtype="float64")
    bias: Floats = array("outputs", dtype="float64")
    calibration: Floats = array("calibration", dtype="float64")  # see Calibration


class PredictReply(SVMReply, phase="svm-predict"):
    """What the user has done."""

    samples: int  # rows that it predicted, 0 if it holds none out


class RecallRequest(StepRequest, phase="svm-recall"):
    """To agents of a vertical split: pass the group's part of a model on to the users."""

    model: str  # session of the run that made the model
    users: Index = array("users", dtype="index")  # of the group


class RecallReply(SVMReply, phase="svm-recall"):
    """Means and deviations of the columns, and the weights, sealed for each user in turn."""

    sealed: bytes


class ContributeRequest(PlanRequest, phase="svm-contribute"):
    """To users of a vertical split: contribute to the outputs of new rows."""

    rows: int  # of the plan
    width: int  # outputs of each
    sealed_round: int  # step in which the agent sealed its part
    sealed: bytes  # see RecallReply


class ContributeReply(SVMReply, phase="svm-contribute"):
    """Carries the upload."""


class WriteRequest(StepRequest, phase="svm-write"):
    """To the label owner: open the outputs of its held-out rows, and write them."""

    model: str  # session of the run that made the model
    # Positions of the plan's rows among those that the owner announced.
    take: Index = array("taken", dtype="index")
    calibration: Floats = array("calibration", dtype="float64")  # see Calibration


class WriteReply(SVMReply, phase="svm-write"):
    """What the owner has done."""

    samples: int  # rows that are predicted
