"""POF-MKL: personalised online federated multi-kernel learning; the dictionary of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.fitted import FittedModel
from fedkern_flwr.kernels.random_features import FrequencyDraw, Precision, bandwidth_dictionary
from fedkern_flwr.method import PrivateMethod, option
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import private
from fedkern_flwr.online.learning import (
    CENTRE,
    LOCAL_STEP,
    Selection,
    StepSize,
    Subset,
    current_weights,
    kernel_weights,
    regret_bound,
)
from fedkern_flwr.privacy import Budget

from . import online
from .online import Floats, OnlineStrategy

# -- options of methods with a dictionary of Gaussian kernels, besides those of ``OnlineStrategy``


class KernelOptions:
    """Options of a dictionary of Gaussian kernels.

    Attributes
    ----------
    bandwidths : ndarray, shape (N,)
    centre : float
        Prediction of the untrained model: 0 with the paper's step size, else 1/2, the middle of the
        labels' range.
    """

    step_size: StepSize  # and other attributes of a run
    num_rounds: int
    run_seed: int

    kernels: int = option(
        51, "Gaussian kernels, N, with bandwidths from 1e-2 to 1e2.", least=1, of_model=False
    )
    features: int = option(20, "Random frequencies per kernel, D.", least=1)
    regularization: float = option(
        1e-3, "Penalty lambda on the squared norm of the parameters.", least=0.0
    )
    precision: Precision = option(
        "float32",
        "Precision of features and messages; the server sums in float64.",
    )
    frequency_draw: FrequencyDraw | None = option(
        None,
        "Random frequencies (default: orthogonal; independent with the paper's step size).",
    )

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        paper = self.step_size == "paper"
        self.centre = 0.0 if paper else CENTRE
        self.frequency_draw = self.frequency_draw or ("independent" if paper else "orthogonal")
        self.bandwidths = bandwidth_dictionary(self.kernels)

    def derived(self) -> dict[str, Any]:
        return {"bandwidths": self.bandwidths.tolist(), "centre": self.centre}

    def dictionary_fields(self) -> dict[str, Any]:
        return {
            "bandwidths": self.bandwidths.astype("<f8").tobytes(),
            "features": self.features,
            "seed": self.run_seed,
            "regularization": self.regularization,
            "precision": self.precision,
            "frequency_draw": self.frequency_draw,
            "centre": self.centre,
        }

    def weight_fields(self) -> dict[str, Any]:
        """Return the rule of the kernel weights and its learning rate eta_k."""
        return {
            "weight_rule": "exponential" if self.step_size == "paper" else "adahedge",
            "learning_rate": float(1.0 / np.sqrt(self.num_rounds)),
        }


LossAggregation = Literal["mean", "sum"]


class KernelLearning(KernelOptions):
    """Options and state of methods with jointly learned parameters of kernels.

    Parameters
    ----------
    bandwidths : sequence of float, optional
        Bandwidths of the kernels (default: those of the paper).
    **common
        Options that the class declares, and those of ``Method``.
    """

    left_whole = True
    reply_class: ClassVar[type[wire.StreamReport]] = wire.SharedReply
    #: Origin of the kernel weights: each client has its own; or the server has equal ones, or ones
    #: from the losses of all clients.
    weighs: ClassVar[Literal["clients", "alike", "losses"]] = "clients"
    loss_aggregation: LossAggregation  # an option of methods that sum losses
    method: ClassVar[str]
    budget: Budget | None
    theta_: Floats
    request_: Any
    _dimension: int
    _more: Arrays

    privacy_clip: float = option(
        private.CLIP,
        "With a privacy budget: bound c on the residual of a prediction.",
        above=0.0,
    )
    frequencies_per_round: int | Literal["all", "auto"] = option(
        "auto",
        "Frequencies with gradients in a round (auto: all, or the release limit).",
        least=1,
    )

    def __init__(self, *, bandwidths: Iterable[float] | None = None, **common: Any) -> None:
        super().__init__(**common)
        if bandwidths is not None:
            self.bandwidths = np.array(list(bandwidths), np.float64)
        if not self.bandwidths.size or not np.all((self.bandwidths > 0) & (self.bandwidths < 1e9)):
            raise OptionError(
                "bandwidths are missing or not positive",
                remedy="give numbers > 0",
                code="FK-OPTION-RANGE",
            )
        self.kernels = self.bandwidths.size
        self._released_frequencies = 0  # of a round of this run, 0 for all

    # -- the model

    def model_arrays(self) -> Arrays:
        return {"theta": self.theta_, "bandwidths": self.bandwidths}

    def server_model(self) -> FittedModel | None:
        weights = self.evaluation_weights()
        if not weights.size:
            return None
        return FittedModel.of_server(self.method, "dictionary", *self.whole(weights[None]), ())

    def whole(self, weights: Floats) -> tuple[Arrays, dict[str, Any]]:
        names = ("features", "precision", "frequency_draw", "centre")
        own = {name: getattr(self, name) for name in names}
        return {**self.model_arrays(), "weights": weights}, {
            **own,
            "seed": self.run_seed,
            "columns": self._dimension,
        }

    def first_parameters(self, dimension: int) -> Floats:
        if self.weighs == "losses":
            self._more = {"losses": np.zeros(self.kernels), "gap": np.zeros(1)}
        return np.zeros((self.kernels, 2 * self.features))

    def evaluation_weights(self) -> Floats:
        """Return the server's kernel weights, (N,); empty if clients have their own."""
        if self.weighs == "clients":
            return np.zeros(0)
        if self.weighs == "alike":
            return np.full(self.kernels, 1.0 / self.kernels)
        rule, rate = self.weight_fields().values()
        return current_weights(rule, self._more["losses"], float(self._more["gap"][0]), rate)

    def weigh(self, losses: Floats, answers: int) -> None:
        losses = losses / answers if self.loss_aggregation == "mean" else losses
        rule, rate = self.weight_fields().values()
        before, gap = self._more["losses"], float(self._more["gap"][0])
        _, after, gap = kernel_weights(rule, before, losses[None], gap, rate)
        self._more = {"losses": after, "gap": np.array([gap])}

    def sent(self) -> list[NDArray[Any]]:
        weights = [self.evaluation_weights()] if self.reply_class is wire.SharedReply else []
        return [self.theta_.astype(self.precision), *weights]

    def request(self, stream: dict[str, Any]) -> wire.StreamRequest:
        return wire.SharedRequest(
            **stream,
            **self.kernel_fields(),
            weights=self.evaluation_weights(),
            send_losses=self.weighs == "losses",
        )

    # -- what is summed in a round

    def least_numbers(self, request: wire.KernelRequest) -> int:
        """Return the numbers of one frequency per kernel if they are chosen, else of all."""
        kernels, few = len(request.kernels_summed()), self.frequencies_per_round
        most = kernels * self.features
        if isinstance(few, str):
            few = kernels if self._adapts(request) else most
        return 2 * min(few, most) + request.losses()

    def fit_release(self, unknowns: float, request: wire.KernelRequest) -> None:
        given = self.frequencies_per_round
        most = len(request.kernels_summed()) * self.features
        wanted = most if isinstance(given, str) or request.chosen_alone else given
        if self._adapts(request) and unknowns < 2 * most + request.losses():
            wanted = int(unknowns - request.losses()) // 2
        self._released_frequencies = wanted if 0 < wanted < most else 0

    def _adapts(self, request: wire.KernelRequest) -> bool:
        return self.frequencies_per_round == "auto" and not request.chosen_alone

    def kernel_fields(self) -> dict[str, Any]:
        theta, own = self.theta_.astype(self.precision), self.dictionary_fields()
        if self.budget is not None:
            own["clip"] = self.privacy_clip
        return {**own, "released": self._released_frequencies, "theta": theta}

    def evaluation(self, **stream: Any) -> wire.EvaluateRequest:
        return wire.EvaluateRequest(
            **stream,
            weights=self.evaluation_weights(),
            **self.weight_fields(),
            **self.kernel_fields(),
        )

    def gradients(self, total: Floats, answers: int) -> Floats:
        """Return gradients and losses from sums with a budget, see :mod:`.private`."""
        request, losses = self.request_, self.request_.losses()
        samples = answers * request.samples
        penalty = self.regularization * samples * self.theta_[request.kernels_summed()]
        found = total.copy()
        found[: len(total) - losses] += request.pick(penalty).ravel()
        found[: len(total) - losses] *= 2.0 / request.chance()
        if losses:
            found[-losses:] *= self.privacy_clip
            squared = np.vecdot(self.theta_, self.theta_)
            found[-losses:] += self.regularization * samples * squared
        return found


# -- POF-MKL

DEFAULT_KERNELS_PER_ROUND = 25
_FEW = 4  # clients that hide each other in a sum: sums of up to three samples can be inverted
_NEGLIGIBLE = 1e-9


class POFMKL(KernelLearning, OnlineStrategy, PrivateMethod):
    """Personalised online multi-kernel learning with few kernels per message.

    The server holds parameters theta_i for each of N kernels; every client keeps its own kernel
    weights. In a round a client predicts its next sample with all kernels, and sends the gradients
    of M of them, drawn by their weights.

    Attributes
    ----------
    theta_ : ndarray, shape (N, 2D)
        The learned parameters.

    Notes
    -----
    Without secure sums the server can compute a client's sample and label from its gradient. With
    them it sees sums over at least ``threshold`` clients, each of ``samples_per_round`` samples.

    References
    ----------
    Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels",
    NeurIPS 2022, Algorithms 1 and 2, eq. 6-10.
    """

    method = "pof-mkl"
    title = "POF-MKL"
    reply_class = wire.PersonalReply
    server_sees = ("which kernels a client chose, hence something of the order of its weights",)
    kept = ("weights over the kernels",)
    of_models = (
        "bandwidths",
        "features",
        "regularization",
        "precision",
        "frequency_draw",
        "step_size",
        "seed",
        "centre",
    )

    kernels_per_round: int | None = option(
        None,
        "Kernels per round of a client, M (default: by selection).",
        least=1,
    )
    features: int = option(
        20,
        "Random frequencies per kernel, D (paper: 2 M D up to 1000).",
        least=1,
    )
    exploration: float = option(
        1.0,
        "Exploration xi in (0, 1]; with 1, all kernels are equally likely.",
        above=0.0,
        most=1.0,
    )
    selection: Selection | None = option(
        None,
        "Draw kernels by Algorithm 1 (bins), or exactly M (subset).",
    )
    subset: Subset = option(
        "private",
        "Private: each client chooses its kernels; shared: all send the same.",
    )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        many = self._given = self.kernels_per_round
        if many is not None and many > self.kernels:
            raise OptionError(
                f"kernels_per_round is {many} but there are {self.kernels} kernels",
                remedy=f"use at most {self.kernels}",
                code="FK-OPTION-RANGE",
            )
        own = self.subset == "private" and (many or self.kernels) < self.kernels
        if own and isinstance(self.frequencies_per_round, int):
            raise OptionError(
                "clients choose kernels of their own and frequencies_per_round is given",
                remedy="use subset='shared' or leave out kernels_per_round",
                code="FK-OPTION-BOTH",
            )
        if own and self.budget is not None:
            raise OptionError(
                "with a budget of privacy no client may choose kernels, by weights of earlier rows",
                remedy="use subset='shared' or leave out kernels_per_round",
                code="FK-BUDGET-KERNELS",
            )
        self.selection = self.selection or ("bins" if self.step_size == "paper" else "subset")
        self.kernels_per_round = self._many()

    def _many(self) -> int:
        if self._given is not None:
            return self._given
        shared = self.is_secure or self.budget is not None
        shared = shared or isinstance(self.frequencies_per_round, int)
        if shared and self.subset == "private":
            return self.kernels
        return min(DEFAULT_KERNELS_PER_ROUND, self.kernels)

    @property
    def lonely_kernels(self) -> float:
        """Chance that fewer than four clients choose some kernel of a round.

        For each kernel a secure sum covers the clients that chose it; from sums of up to three
        clients the server can compute their samples.
        """
        everybody = self.subset == "shared" or self._many() == self.kernels
        if self.sums is None or everybody:
            return 0.0
        survivors = self.sums.membership.cohorts[0].threshold
        share = self.exploration * self._many() / self.kernels
        few = sum(
            math.comb(survivors, n) * share**n * (1.0 - share) ** (survivors - n)
            for n in range(min(_FEW, survivors))
        )
        return min(1.0, self.kernels * few)

    def set_up(self, dimension: int) -> None:
        """Start from theta = 0; warn if a private subset reveals samples."""
        super().set_up(dimension)
        self.kernels_per_round = self._many()
        if self.lonely_kernels > _NEGLIGIBLE:
            logger.warning(
                "in a round a kernel may be chosen by fewer than %d clients (chance up to %.1g): "
                "their samples can be computed from its sum; leave out kernels_per_round or use "
                "subset='shared'",
                _FEW,
                self.lonely_kernels,
            )

    def options(self) -> dict[str, Any]:
        return {**super().options(), "kernels_per_round": self._many()}

    def privacy(self) -> dict[str, Any]:
        seen = super().privacy()
        if self._model is None and self.is_secure and self.lonely_kernels > _NEGLIGIBLE:
            chance = f"{self.lonely_kernels:.1g} a round"
            few = f"gradients of kernels that few clients chose (chance up to {chance})"
            seen["server_sees"].append(few)
        return seen

    def request(self, stream: dict[str, Any]) -> wire.PersonalRequest:
        return wire.PersonalRequest(
            **stream,
            **self.kernel_fields(),
            **self.weight_fields(),
            kernels_per_round=self._many(),
            selection="shared" if self.subset == "shared" else str(self.selection),
            exploration=self.exploration,
            local_step=0.0 if self.step_size == "paper" else LOCAL_STEP,
        )

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; in paper mode also the largest share of Theorem 1's bound."""
        metrics, rate = super().final_metrics(), self.weight_fields()["learning_rate"]
        if self.step_size == "paper" and self._reports:
            metrics["regret_to_bound"] = max(
                r.regret / regret_bound(self.kernels, rate, r.total_samples, r.largest_loss)
                for r in self._reports.values()
            )
        return metrics

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse unknown, repeated or too many kernels."""
        super().check_answer(partition, answer)
        if not isinstance(answer, wire.PersonalReply) or self.request_.released:
            return
        kernels, many = answer.kernels, self._many()
        if len(kernels) != len(answer.gradient):
            raise ProtocolError(
                f"gradients of {len(answer.gradient)} kernels for {len(kernels)}",
                code="FK-MESSAGE-SHAPE",
            )
        inside = not kernels.size or (kernels.min() >= 0 and kernels.max() < self.kernels)
        if not inside or np.unique(kernels).size < kernels.size:
            raise ProtocolError("its kernels do not exist or come twice", code="FK-MESSAGE-FIELD")
        if kernels.size > many:
            raise ProtocolError(
                f"it sends {kernels.size} kernels, {many} asked", code="FK-MESSAGE-FIELD"
            )
        expected = self.request_.kernels_summed()
        if self.subset == "shared" and not np.array_equal(kernels, expected):
            raise ProtocolError("its kernels are not those of the round", code="FK-MESSAGE-FIELD")

    # -- predictions with a saved model

    predict_at_nodes = online.predict_at_nodes

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        """Return a strategy with the options of a saved model."""
        return cls(**online.options_of(cls, meta), **more)

    def model_shapes(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        return {"theta": (self.kernels, 2 * self.features), "bandwidths": (self.kernels,)}

    def load_model_arrays(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> None:
        self.theta_ = np.asarray(arrays["theta"], np.float64)

    def prediction(self, model: str) -> wire.PredictRequest:
        return wire.PredictRequest(model=model, **self.weight_fields(), **self.kernel_fields())
