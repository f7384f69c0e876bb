"""Messages of the online methods (POF-MKL and its baselines).

What a method learns from is a sum over the clients. ``add_to`` says which numbers of a reply go
where in it; the server sums plain replies with it, and in a secure run each client puts its own
reply into an empty vector with it and masks that. Both ways are the same sum.

Sizes: ``kernels`` N, ``width`` 2D (sines and cosines), ``chosen`` at most M, ``parameters`` of a
network. Every request is complete in itself: a node needs nothing but its own table and state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..random_features import Real
from .message import PhaseMessage, array

Floats = NDArray[np.float64]

#: Numbers in :meth:`StreamReport.statistics`.
STATISTICS = 6
#: Keeps squared regrets within the bound of a secure sum.
REGRET_SCALE = 1024.0
#: Names of the secure sums, and the public bound on each of their numbers.
UPDATE_SUM, EVALUATE_SUM, SUM_BOUND = "update", "evaluate", 2.0**20


@dataclass(frozen=True, kw_only=True)
class StreamRequest(PhaseMessage):
    """What every request of an online method carries.

    Attributes
    ----------
    session : str
        The session opened by ``describe``.
    round : int
        Number of this exchange, from 1. A node refuses a round that it has already done.
    step : int
        Index of the first sample of this round in the node's stream, from 0.
    samples : int
        Number B of samples to take.
    checkpoint_every : int
        Nodes with a state folder save their private state every so many rounds; 0 for never.
    """

    session: str
    round: int
    step: int
    samples: int
    checkpoint_every: int


@dataclass(frozen=True, kw_only=True)
class KernelRequest(StreamRequest):
    """A request with the global parameters of a dictionary of kernels.

    Attributes
    ----------
    bandwidths : bytes
        The N bandwidths as little-endian float64.
    features : int
        Number D of frequencies per kernel.
    seed : int
        Seed of the frequencies and of the public draws.
    regularization : float
        lambda.
    precision : str
        Arithmetic of the features.
    frequency_draw : str
        ``independent`` or ``orthogonal``.
    centre : float
        Around which labels are learned: what theta = 0 predicts.
    released : int
        How many frequencies of the kernels in question, drawn publicly, gradients are sent of; 0
        for all. Then a gradient has a row, sine and cosine, for each of them.
    theta : ndarray, shape (N, 2D)
    """

    bandwidths: bytes
    features: int
    seed: int
    regularization: float
    precision: str
    frequency_draw: str
    centre: float
    released: int
    theta: Real = array("kernels", "width")


@dataclass(frozen=True, kw_only=True)
class PersonalRequest(KernelRequest):
    """POF-MKL: predict with the node's own weights, send the gradients of a few kernels."""

    phase = "online-personal"
    kernels_per_round: int
    selection: str
    exploration: float
    weight_rule: str
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class SharedRequest(KernelRequest):
    """OFSKL, OFMKL-Avg, vM-KOFL: predict with the server's weights, send all gradients."""

    phase = "online-shared"
    send_losses: bool
    weights: NDArray[np.float64] = array("kernels", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class DrawnRequest(KernelRequest):
    """eM-KOFL: predict with the kernel that the server drew, send its gradient and all losses."""

    phase = "online-drawn"
    kernel: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class StreamReport(PhaseMessage):
    """How well a node has predicted so far.

    Attributes
    ----------
    round : int
        The round that is answered.
    total_samples : int
        Samples predicted so far.
    total_squared_error : float
        Squared errors summed over them.
    """

    round: int
    total_samples: int
    total_squared_error: float

    def add_to(self, total: Floats) -> None:
        """Add what the method sums to ``total``, shape (numbers,)."""

    def statistics(self) -> Floats:
        """Return what the metrics are made of, so that their sum over clients will do.

        Samples, squared error, regret, its square / 1024, mean squared error, its square.
        """
        mean = self.total_squared_error / max(1, self.total_samples)
        regret = getattr(self, "regret", 0.0)
        return np.array(
            [
                self.total_samples,
                self.total_squared_error,
                regret,
                regret * regret / REGRET_SCALE,
                mean,
                mean * mean,
            ]
        )


@dataclass(frozen=True, kw_only=True)
class MaskedReply(PhaseMessage):
    """The reply of a secure run: what it says is in a masked vector beside it."""

    phase = "online-masked"
    round: int


@dataclass(frozen=True, kw_only=True)
class KernelReport(StreamReport):
    """A report with the client's regret (eq. 11, squared loss) and largest loss so far."""

    regret: float
    largest_loss: float


@dataclass(frozen=True, kw_only=True)
class PersonalReply(KernelReport):
    """Gradients of the chosen kernels, divided by the probability of the choice (eq. 9).

    Of chosen frequencies the reply names none: the choice is public.
    """

    phase = "online-personal"
    kernels: NDArray[np.int32] = array("named", dtype="index")
    gradient: Real = array("chosen", "width")

    def add_to(self, total: Floats) -> None:
        """Add the gradients to a total of all kernels, (N 2D,), or of what was chosen for all."""
        if total.size == self.gradient.size:
            total += self.gradient.reshape(-1)
        else:
            total.reshape(-1, self.gradient.shape[1])[self.kernels] += self.gradient


@dataclass(frozen=True, kw_only=True)
class SharedReply(KernelReport):
    """Gradients of all kernels or chosen frequencies and, when asked for, all kernels' losses."""

    phase = "online-shared"
    gradient: Real = array("chosen", "width")
    losses: NDArray[np.float64] = array("reported", dtype="float64")

    def add_to(self, total: Floats) -> None:
        """Add the gradients, then the losses reported, total of shape (N 2D + reported,)."""
        total[: self.gradient.size] += self.gradient.reshape(-1)
        total[self.gradient.size :] += self.losses


@dataclass(frozen=True, kw_only=True)
class DrawnReply(KernelReport):
    """Gradient of the drawn kernel divided by its probability, and the losses of all kernels."""

    phase = "online-drawn"
    gradient: Real = array("chosen", "width")
    losses: NDArray[np.float64] = array("kernels", dtype="float64")

    def add_to(self, total: Floats) -> None:
        """Add the gradient of the drawn kernel, then the losses, total of shape (2D + N,)."""
        total[: self.gradient.size] += self.gradient.reshape(-1)
        total[self.gradient.size :] += self.losses


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(KernelRequest):
    """Predict the node's held-out rows with its own weights or, if given, with the server's."""

    phase = "online-evaluate"
    weight_rule: str
    learning_rate: float
    weights: NDArray[np.float64] = array("given", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class EvaluateReply(PhaseMessage):
    """Squared error summed over the node's held-out rows."""

    phase = "online-evaluate"
    samples: int
    squared_error: float


@dataclass(frozen=True, kw_only=True)
class PredictRequest(KernelRequest):
    """Predict the node's held-out rows with the weights it kept of an earlier run; write them.

    Attributes
    ----------
    model : str
        Session of the run that made the model.
    weight_rule, learning_rate
        As in that run.
    """

    phase = "online-predict"
    model: str
    weight_rule: str
    learning_rate: float


@dataclass(frozen=True, kw_only=True)
class PredictReply(PhaseMessage):
    """How many rows the node has predicted, 0 if it holds none out."""

    phase = "online-predict"
    round: int
    samples: int


@dataclass(frozen=True, kw_only=True)
class NetworkRequest(StreamRequest):
    """PerFedAvg: adapt the network to the previous samples, send the meta-gradient.

    Attributes
    ----------
    layers : bytes
        Widths of the layers as little-endian int32, from the input to the output.
    seed : int
        Seed of the fixed projection in front of the network.
    inner_step : float
        Step size of the adaptation.
    """

    phase = "online-network"
    layers: bytes
    seed: int
    inner_step: float
    parameters: NDArray[np.float64] = array("parameters", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class NetworkReply(StreamReport):
    """First-order meta-gradient of the network."""

    phase = "online-network"
    gradient: Real = array("parameters")

    def add_to(self, total: Floats) -> None:
        """Add the gradient, total of shape (parameters,)."""
        total += self.gradient


@dataclass(frozen=True, kw_only=True)
class LocalRequest(StreamRequest):
    """Local only: learn from the whole stream without anybody's help."""

    phase = "online-local"
    bandwidths: bytes
    features: int
    seed: int
    regularization: float
    precision: str
    frequency_draw: str
    centre: float
    weight_rule: str
    learning_rate: float
    step_size: str


@dataclass(frozen=True, kw_only=True)
class LocalReply(KernelReport):
    """Running totals after each sample, and the error on the held-out rows."""

    phase = "online-local"
    test_samples: int
    test_squared_error: float
    squared_errors: NDArray[np.float64] = array("samples", dtype="float64")
    regrets: NDArray[np.float64] = array("samples", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class NetworkEvaluateRequest(PhaseMessage):
    """PerFedAvg: adapt to the last samples of the stream, then predict the held-out rows.

    Attributes
    ----------
    session : str
        The session opened by ``describe``.
    round : int
        One more than the last round of the run.
    checkpoint_every : int
        As in ``StreamRequest``.
    step, samples : int
        The support set is the ``samples`` rows of the stream before row ``step``.
    """

    phase = "online-network-evaluate"
    session: str
    round: int
    checkpoint_every: int
    step: int
    samples: int
    layers: bytes
    seed: int
    inner_step: float
    parameters: NDArray[np.float64] = array("parameters", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class NetworkEvaluateReply(EvaluateReply):
    """Squared error summed over the node's held-out rows."""

    phase = "online-network-evaluate"
