"""Messages of HierarchicalSVM in runs with a budget of privacy."""

from __future__ import annotations

from ..wire.message import array
from .messages import Floats, SVMReply, SVMRequest


class GradientRequest(SVMRequest, phase="svm-gradient"):
    """To users: contribute the gradient of the losses at a model.

    ``round`` is the iteration, from 1.
    """

    loss: str  # "hinge" or "logistic"
    features: int  # random Fourier frequencies, 0 for the columns as they are
    gamma: float  # width of the kernel; 0 without features
    feature_seed: int
    iterations: int  # of the run: what they may cost is divided among them
    model: Floats = array("outputs", "width", dtype="float64")


class GradientReply(SVMReply, phase="svm-gradient"):
    """Carries the upload."""


class CountRequest(GradientRequest, phase="svm-count"):
    """To users: count how held-out rows are predicted, and write the predictions."""


class CountReply(SVMReply, phase="svm-count"):
    """Carries the upload."""
