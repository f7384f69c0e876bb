"""Messages of the online methods (POF-MKL and its baselines), each reply below its request.

``add_to`` defines where the numbers of a reply go in the sum over clients. Without secure
aggregation the server adds up replies with it; in a secure run each client fills a vector of zeros
with it and masks that. A request defines its own sums (:meth:`StreamRequest.sum_specs`); the server
requests exactly these and each node compares. A node needs only the request, its table and its
state.

Sizes: ``kernels`` N, ``width`` 2D (sines and cosines), ``chosen`` at most M, ``parameters`` of a
network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..exchange import SumSpec
from ..kernels.random_features import Real
from ..privacy import Budget, Release
from ..secure_sum import Encoding
from ..wire.message import Message, array
from . import private, ridge
from .learning import pick_frequencies, place_frequencies, shared_frequencies, shared_subset

Floats = NDArray[np.float64]
Chosen = NDArray[np.int32]

#: Numbers in :meth:`StreamReport.statistics`.
STATISTICS = 6
#: Keeps squared regrets within the bound of a secure sum.
REGRET_SCALE = 1024.0
#: Largest mean squared error of the mean of labels in [0, 1].
LARGEST_VARIANCE = 0.25
#: Names of the secure sums, and the public bound on each of their numbers.
UPDATE_SUM, EVALUATE_SUM, SUM_BOUND = private.UPDATE_SUM, "evaluate", 2.0**20


# -- common parts of requests and replies


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Public facts of a run that decide what its requests sum.

    Attributes
    ----------
    columns : int
        Features of a row.
    parties, threshold : int
        Clients of a sum; fewest that can open one with self masks.
    budget : Budget or None
        Privacy budget.
    """

    columns: int
    parties: int
    threshold: int
    budget: Budget | None = None


class StreamRequest(Message):
    """Fields of every request of an online method."""

    #: Name of the secure sum; empty if secure runs must not release the result.
    sum_name: ClassVar[str] = UPDATE_SUM

    session: str = ""
    round: int = 0  # from 1; a node refuses a round that it has already done
    step: int = 0  # index of the first sample of this round in the node's stream, from 0
    samples: int = 0  # B, samples to take
    checkpoint_every: int = 0  # rounds from one saved private state to the next; 0 saves none
    whole: bool = False  # whether secure sums are over all clients, and open without unmasking
    # With a privacy budget (see private.py): clip of residuals, samples of the largest message,
    # number of messages.
    clip: float = 0.0
    most: int = 0
    messages: int = 0

    # -- the sums. A node compares the server's request with its own, so they follow only from the
    # request and facts that both know.

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return the secure sums that the request declares."""
        if not self.sum_name:
            return []
        length, release = 2, None  # for held-out rows: their number and squared error
        if self.sum_name == UPDATE_SUM:
            length = self.numbers(facts.columns)
            release = None if facts.budget is None else self.release(facts, facts.budget)
            # statistics cover all samples so far, which the noise of one message does not hide
            length += STATISTICS if release is None else 0
        spec = SumSpec(
            name=self.sum_name,
            encoding=Encoding.fixed_point(SUM_BOUND),
            length=length,
            self_masks=not self.whole,
            everybody=True,
            release=release,
            rows=self.rows(),
        )
        return [spec]

    def numbers(self, columns: int) -> int:
        """Return how many numbers of each client are summed."""
        return 0

    def rows(self) -> tuple[int, int]:
        """Return the first sample in the sum, and the one after the last."""
        return self.step, self.step + self.samples

    def products(self, columns: int) -> list[tuple[int, int]]:
        """Return (columns, first sample) of each sum of products of columns."""
        return []

    def release(self, facts: Facts, budget: Budget) -> Release | None:
        """Return the noise of the sum; nodes refuse None."""
        return None

    def noise_problem(self) -> str:
        """Return why noise would not hide a sample; empty if it does."""
        return ""

    @property
    def chosen_alone(self) -> bool:
        """Whether each client chooses the kernels of its gradients by its own weights."""
        return False

    def losses(self) -> int:
        return 0

    def reply_sizes(self, columns: int) -> dict[str, int]:
        """Return the required dimensions of a reply."""
        return {}

    def _noise_problem(self, largest: float) -> str:
        # otherwise an overflow of the sum would depend on values
        if not 0.0 < self.samples * largest <= SUM_BOUND / 2 or self.messages < 1:
            return "residuals without a bound"
        return "" if self.samples <= self.most else "a message of more samples"

    def _times(self, facts: Facts) -> private.Times:
        least = facts.parties if self.whole else facts.threshold
        return private.Times(self.most, self.messages, facts.parties, least)


class DictionaryRequest(StreamRequest):
    pinned: ClassVar[tuple[str, ...]] = (
        "bandwidths",
        "features",
        "seed",
        "regularization",
        "precision",
        "frequency_draw",
        "centre",
    )

    bandwidths: bytes  # N of them, little-endian float64
    features: int  # D, frequencies per kernel
    seed: int  # of the frequencies and of public random choices
    regularization: float  # lambda
    precision: str  # arithmetic of the features
    frequency_draw: str  # "independent" or "orthogonal"
    centre: float  # prediction of theta = 0


class KernelRequest(DictionaryRequest):
    """Request with the global parameters of kernels."""

    # Number of frequencies, over all requested kernels, with gradients in the sum; chosen publicly.
    # 0 for all. A gradient then has a row, sine and cosine, per frequency.
    released: int
    theta: Real = array("kernels", "width")

    def kernels_summed(self) -> Chosen:
        """Return the summed kernels: all if clients choose their own."""
        return np.arange(len(self.theta), dtype=np.int32)

    def chance(self) -> float:
        """Return the probability of a publicly chosen kernel."""
        return len(self.kernels_summed()) / len(self.theta)

    def numbers(self, columns: int) -> int:
        return 2 * self.frequencies() + self.losses()

    def frequencies(self) -> int:
        return self.released or len(self.kernels_summed()) * self.features

    def pick(self, gradient: NDArray[Any]) -> NDArray[Any]:
        if not self.released:
            return gradient
        return pick_frequencies(gradient, self._picked(len(gradient)))

    def spread(self, total: Floats) -> Floats:
        """Return the gradient of all kernels, (N, 2D), from the sum of gradients.

        Chosen frequencies are divided by the probability of the choice.
        """
        kernels, found = self.kernels_summed(), np.zeros(self.theta.shape)
        shape = len(kernels), self.features
        if self.released:
            pairs = total.reshape(-1, 2) * (shape[0] * shape[1] / self.released)
            found[kernels] = place_frequencies(pairs, self._picked(len(kernels)), *shape)
        else:
            found[kernels] = total.reshape(len(kernels), -1)
        return found

    def _picked(self, kernels: int) -> Chosen:
        return shared_frequencies(kernels, self.features, self.released, self.seed, self.round)

    def release(self, facts: Facts, budget: Budget) -> Release:
        return private.update_release(
            budget,
            clip=self.clip,
            pairs=self.frequencies(),
            features=self.features,
            losses=self.losses(),
            times=self._times(facts),
        )

    def noise_problem(self) -> str:
        return self._noise_problem(self.clip)

    def reply_sizes(self, columns: int) -> dict[str, int]:
        width = 2 if self.released else 2 * self.features
        chosen = 2 * self.frequencies() // width
        return {"reported": self.losses(), "chosen": chosen, "width": width}


class StreamReport(Message):
    """Report of a node's prediction error so far."""

    round: int = 0  # of the request
    total_samples: int  # predicted so far
    total_squared_error: float  # summed over them

    def add_to(self, total: Floats) -> None:
        """Add the reply to the method's sum ``total``, (numbers,)."""

    def statistics(self) -> Floats:
        """Return numbers that, summed over clients, give the metrics.

        Samples, squared error, regret, its square / 1024, mean squared error, its square.
        """
        mean = self.total_squared_error / max(1, self.total_samples)
        regret = getattr(self, "regret", 0.0)
        spread = regret * regret / REGRET_SCALE
        errors = self.total_squared_error
        return np.array([self.total_samples, errors, regret, spread, mean, mean * mean])


class KernelReport(StreamReport):
    """Report with the client's regret (eq. 11, squared loss) and largest loss so far."""

    regret: float
    largest_loss: float


class LossReport(KernelReport):
    """Report with gradients of kernels, the same kernels for all clients, and losses."""

    gradient: Real = array("chosen", "width")
    losses: Floats = array("reported", dtype="float64")  # of all kernels, or none

    def add_to(self, total: Floats) -> None:
        total[: self.gradient.size] += self.gradient.reshape(-1)
        total[self.gradient.size :] += self.losses


class MaskedReply(Message, phase="online-masked"):
    """Reply of a secure run; its content is in a masked vector."""

    round: int = 0


class NoisyReply(KernelReport, phase="online-noisy"):
    """Reply of a run with a privacy budget: zeros, except in simulations.

    Errors depend on all samples so far, so a node must not report them.
    """


# -- POF-MKL


class PersonalRequest(KernelRequest, phase="online-personal"):
    """POF-MKL: predict with the node's own weights, send the gradients of a few kernels."""

    pinned = (
        "released",
        "kernels_per_round",
        "selection",
        "exploration",
        "weight_rule",
        "learning_rate",
        "local_step",
    )

    kernels_per_round: int  # M
    selection: str  # bins, subset or shared
    exploration: float  # xi
    weight_rule: str  # exponential or adahedge
    learning_rate: float  # eta_k
    # Scale of the node's own steps between samples of a message, see learning.LOCAL_STEP; 0 for
    # none, as in the paper.
    local_step: float = 0.0

    def kernels_summed(self) -> Chosen:
        kernels = len(self.theta)
        if self.selection != "shared" or self.kernels_per_round >= kernels:
            return super().kernels_summed()
        return shared_subset(kernels, self.kernels_per_round, self.seed, self.round)

    @property
    def chosen_alone(self) -> bool:
        return self.selection != "shared" and self.kernels_per_round < len(self.theta)

    def noise_problem(self) -> str:
        chosen = "kernels are chosen by weights of earlier samples" * self.chosen_alone
        return chosen or super().noise_problem()

    def reply_sizes(self, columns: int) -> dict[str, int]:
        sizes = super().reply_sizes(columns)
        return {**sizes, "named": 0} if self.released else {"width": sizes["width"]}


class PersonalReply(KernelReport, phase="online-personal"):
    """Gradients of the chosen kernels, divided by the probability of the choice (eq. 9)."""

    kernels: NDArray[np.int32] = array("named", dtype="index")  # none if frequencies are chosen
    gradient: Real = array("chosen", "width")

    def add_to(self, total: Floats) -> None:
        if total.size == self.gradient.size:
            total += self.gradient.reshape(-1)
        else:
            total.reshape(-1, self.gradient.shape[1])[self.kernels] += self.gradient


# -- OFSKL, OFMKL-Avg, vM-KOFL, eM-KOFL


class SharedRequest(KernelRequest, phase="online-shared"):
    """OFSKL, OFMKL-Avg, vM-KOFL: predict with the server's weights, send all gradients."""

    pinned = ("released", "send_losses")

    send_losses: bool
    weights: Floats = array("kernels", dtype="float64")

    def losses(self) -> int:
        return len(self.theta) if self.send_losses else 0


class SharedReply(LossReport, phase="online-shared"):
    """Gradients of all kernels or chosen frequencies; losses if requested."""


class DrawnRequest(KernelRequest, phase="online-drawn"):
    """eM-KOFL: predict with the server's kernel, send its gradient and all losses."""

    pinned = ("released",)

    kernel: int
    probability: float  # by which the gradient is divided

    def kernels_summed(self) -> Chosen:
        return np.array([self.kernel], np.int32)

    def losses(self) -> int:
        return len(self.theta)

    def chance(self) -> float:
        return self.probability


class DrawnReply(LossReport, phase="online-drawn"):
    """Gradient of the drawn kernel over its probability, and all losses."""


# -- POF-RLS


class RidgeRequest(StreamRequest, phase="online-ridge"):
    """POF-RLS: predict with the node's mixture, send sums of products of features."""

    pinned = (
        "experts",
        "kernels",
        "features",
        "bandwidths",
        "seed",
        "regularization",
        "forgetting",
        "centre",
        "raw",
        "summed",
        "shared",
    )

    experts: str  # which learners take part
    kernels: int
    features: int  # D, frequencies per kernel of the node's own learners
    bandwidths: bytes  # of the kernels, little-endian float64; empty until a width is known
    seed: int  # of the frequencies
    regularization: float  # lambda
    forgetting: float  # of learners that forget; 1 without such learners
    centre: float  # around which labels are learned
    raw: bool  # whether raw columns are summed, in every message
    summed: int  # D', frequencies of each kernel that are summed in some messages
    shared: int  # number of summed kernels, the first ones
    sums: bool  # whether this message sums features
    window: int  # first sample that the received learners on features lack
    begun: bool  # whether an earlier message summed features
    inverses: int  # number of global learners that come with inverses
    starts: Floats = array("numbers", dtype="float64")  # initial state of the global learners

    def numbers(self, columns: int) -> int:
        raw = ridge.numbers(columns + 1) if self.raw else 0
        return raw + int(self.sums) * self.shared * ridge.numbers(2 * self.summed)

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return that of products of raw columns and of kernel features, if there is a sum."""
        width = facts.columns + 1 if self.raw and self.sum_name == UPDATE_SUM else 0
        return [replace(spec, products=width) for spec in super().sum_specs(facts)]

    def rows(self) -> tuple[int, int]:
        """Return the range of samples; feature sums may include earlier messages' samples."""
        return self.window, self.step + self.samples

    def products(self, columns: int) -> list[tuple[int, int]]:
        raw = [(columns + 1, self.step)] if self.raw else []
        return raw + ([(2 * self.summed, self.window)] if self.sums else [])

    def release(self, facts: Facts, budget: Budget) -> Release:
        return private.ridge_release(
            budget,
            columns=facts.columns if self.raw else 0,
            kernels=self.shared if self.sums else 0,
            features=self.features,
            summed=self.summed,
            times=self._times(facts),
        )

    def noise_problem(self) -> str:
        earlier = "a sum of earlier messages' samples" if self.window != self.step else ""
        return earlier or self._noise_problem(1.0)

    def reply_sizes(self, columns: int) -> dict[str, int]:
        return {"summed": self.numbers(columns)}


class RidgeReply(KernelReport, phase="online-ridge"):
    """Sums of products of features and labels, over a public power of two."""

    total: Floats = array("summed", dtype="float64")

    def add_to(self, total: Floats) -> None:
        total += self.total


class RidgeEvaluateRequest(RidgeRequest, phase="online-ridge-evaluate"):
    """Predict the held-out rows with the node's mixture."""

    sum_name = EVALUATE_SUM


# -- held-out rows


class EvaluateRequest(KernelRequest, phase="online-evaluate"):
    """Predict the held-out rows with the node's weights or, if given, the server's."""

    sum_name = EVALUATE_SUM
    pinned = ("weight_rule", "learning_rate")

    weight_rule: str
    learning_rate: float
    weights: Floats = array("given", dtype="float64")


class EvaluateReply(Message, phase="online-evaluate"):
    """Squared error summed over the held-out rows."""

    round: int = 0
    samples: int
    squared_error: float


class RidgeEvaluateReply(EvaluateReply, phase="online-ridge-evaluate"):
    pass


class PredictRequest(KernelRequest, phase="online-predict"):
    """Predict the held-out rows with an earlier run's weights, and write them."""

    sum_name = ""

    model: str  # session of the run that made the model
    weight_rule: str  # as in that run
    learning_rate: float


class RidgePredictRequest(RidgeRequest, phase="online-ridge-predict"):
    """The same with the mixture that it kept."""

    sum_name = ""

    model: str  # session of the run that made the model


class PredictReply(Message, phase="online-predict"):
    """Number of predicted rows, 0 if none are held out."""

    round: int = 0
    samples: int


class RidgePredictReply(PredictReply, phase="online-ridge-predict"):
    """Number of predicted rows."""


# -- PerFedAvg


class NetworkRequest(StreamRequest, phase="online-network"):
    """PerFedAvg: adapt the network to the previous samples, send the meta-gradient."""

    pinned = ("layers", "seed", "inner_step")

    layers: bytes  # widths, little-endian int32, from the input to the output
    seed: int  # of the fixed projection in front of the network
    inner_step: float  # step size of the adaptation
    parameters: Floats = array("parameters", dtype="float64")

    def numbers(self, columns: int) -> int:
        return self.parameters.size

    def rows(self) -> tuple[int, int]:
        return max(0, self.step - self.samples), self.step + self.samples

    def spread(self, total: Floats) -> Floats:
        return total[None]

    def reply_sizes(self, columns: int) -> dict[str, int]:
        return {"parameters": self.parameters.size}


class NetworkReply(StreamReport, phase="online-network"):
    """First-order meta-gradient of the network."""

    gradient: Real = array("parameters")

    def add_to(self, total: Floats) -> None:
        total += self.gradient


class NetworkEvaluateRequest(NetworkRequest, phase="online-network-evaluate"):
    """PerFedAvg: adapt to the ``samples`` rows before ``step``, predict held-out rows."""

    sum_name = EVALUATE_SUM


class NetworkEvaluateReply(EvaluateReply, phase="online-network-evaluate"):
    pass


# -- local only


class LocalRequest(DictionaryRequest, phase="online-local"):
    """Local only: learn from the whole stream without other parties."""

    sum_name = ""
    pinned = ("weight_rule", "learning_rate", "step_size")

    weight_rule: str
    learning_rate: float
    step_size: str

    def reply_sizes(self, columns: int) -> dict[str, int]:
        return {"samples": self.samples}


class LocalReply(KernelReport, phase="online-local"):
    """Running totals after each sample, and the error on the held-out rows."""

    test_samples: int
    test_squared_error: float
    squared_errors: Floats = array("samples", dtype="float64")
    regrets: Floats = array("samples", dtype="float64")


def ridge_scale(samples: int) -> float:
    """Return the factor by which ridge sums of ``samples`` samples fill the bound of secure sums.

    A power of two. Products of features and labels are at most 1; half of the bound is reserve.
    """
    return float(SUM_BOUND) / 2.0 ** (1 + math.ceil(math.log2(samples)))
