"""POF-MKL: personalised online federated multi-kernel learning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.method import option
from fedkern_flwr.nodes import logger
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import LOCAL_STEP, Selection, Subset, regret_bound, shared_subset

from .kernel_online import KernelOnlineStrategy
from .online_models import PredictingStrategy

DEFAULT_KERNELS_PER_ROUND = 25
_FEW = 4  # clients whose sum hides them: sums of up to three samples have long been inverted
_NEGLIGIBLE = 1e-9


class POFMKL(PredictingStrategy, KernelOnlineStrategy):
    """Personalised online multi-kernel learning with few kernels per message.

    The server holds parameters theta_i for each of N kernels; every client keeps its own weights
    over the kernels. In a round a client predicts its next sample with all kernels, and sends the
    gradients of M of them, drawn by their weights.

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
        "M, kernels whose gradients a client sends. By default all N with secure sums and a "
        "private subset, which costs the same and leaves no kernel to few clients; else 25, or N "
        "if less.",
        least=1,
    )
    features: int = option(
        20,
        "D, random frequencies per kernel. The paper caps 2 M D at 1000 numbers.",
        least=1,
    )
    exploration: float = option(
        1.0, "xi in (0, 1]; with 1 all kernels are equally likely.", above=0.0, most=1.0
    )
    selection: Selection | None = option(
        None,
        "How a client chooses its kernels: the bins of Algorithm 1, or exactly M kernels, each "
        "with a probability of its own. By default ``bins`` with the paper's step size, else "
        "``subset``.",
    )
    subset: Subset = option(
        "private",
        "``shared``: all clients send the gradients of the same M kernels, drawn publicly each "
        "round. With secure sums a round then costs 2 M D numbers of a client instead of 2 N D.",
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

    def _reset(self) -> None:
        super()._reset()
        self._chosen = np.arange(0, dtype=np.int32)  # the shared kernels of the round

    def _many(self) -> int:
        """Return M of the run at hand."""
        if self._given is not None:
            return self._given
        shared = self.is_secure or self.budget is not None
        shared = shared or isinstance(self.frequencies_per_round, int)
        if shared and self.subset == "private":
            return self.kernels
        return min(DEFAULT_KERNELS_PER_ROUND, self.kernels)

    @property
    def lonely_kernels(self) -> float:
        """Chance that some kernel of a round is chosen by fewer than four clients.

        A secure sum over the clients is, for each kernel, a sum over those who chose it, and from
        sums of up to three clients the server can compute their samples.
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
        """Start from theta = 0; warn of what a private subset shows in spite of secure sums."""
        super().set_up(dimension)
        self.kernels_per_round = self._many()
        self._chosen = np.arange(self._many(), dtype=np.int32)
        if self.lonely_kernels > _NEGLIGIBLE:
            logger.warning(
                "in a round a kernel may be chosen by fewer than %d clients (chance up to %.1g): "
                "their samples can be computed from its sum; leave out kernels_per_round or use "
                "subset='shared'",
                _FEW,
                self.lonely_kernels,
            )

    def in_question(self) -> NDArray[np.int32]:
        """Return the kernels of the round, all where clients choose their own."""
        return self._chosen if self.subset == "shared" else super().in_question()

    def _may_choose(self) -> bool:
        return self.subset == "shared" or self._many() == self.kernels

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {**super().options(), "kernels_per_round": self._many()}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        seen = super().privacy()
        if not self._predicting and self.is_secure and self.lonely_kernels > _NEGLIGIBLE:
            chance = f"{self.lonely_kernels:.1g} a round"
            few = f"gradients of kernels that few clients chose (chance up to {chance})"
            seen["server_sees"].append(few)
        return seen

    def request(self, stream: dict[str, Any]) -> wire.PersonalRequest:
        """Ask for the gradients of M kernels."""
        many, shared = self._many(), self.subset == "shared"
        if shared:
            self._chosen = shared_subset(self.kernels, many, self.run_seed, self._number)
        return wire.PersonalRequest(
            **stream,
            **self.kernel_fields(),
            **self.weight_fields(),
            kernels_per_round=many,
            selection="shared" if shared else str(self.selection),
            exploration=self.exploration,
            local_step=0.0 if self.step_size == "paper" else LOCAL_STEP,
        )

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; in paper mode also the largest share of Theorem 1's bound reached."""
        metrics, rate = super().final_metrics(), self.weight_fields()["learning_rate"]
        if self.step_size == "paper" and self._reports:
            metrics["regret_to_bound"] = max(
                r.regret / regret_bound(self.kernels, rate, r.total_samples, r.largest_loss)
                for r in self._reports.values()
            )
        return metrics

    def reply_sizes(self) -> dict[str, int]:
        """Return the shape of the gradients, as far as it is known."""
        sizes = super().reply_sizes()
        return {**sizes, "named": 0} if self._frequencies else {"width": sizes["width"]}

    def check_answer(self, partition: int, answer: Any) -> None:
        """Refuse kernels that do not exist, come twice or are too many."""
        super().check_answer(partition, answer)
        if self._frequencies or not isinstance(answer, wire.PersonalReply):
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
        if self.subset == "shared" and not np.array_equal(kernels, self._chosen):
            raise ProtocolError("its kernels are not those of the round", code="FK-MESSAGE-FIELD")

    # -- predictions with a model that was saved

    def model_shapes(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of theta and the bandwidths."""
        return {"theta": (self.kernels, 2 * self.features), "bandwidths": (self.kernels,)}

    def load_model_arrays(
        self, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
    ) -> None:
        """Set theta."""
        self.theta_ = np.asarray(arrays["theta"], np.float64)

    def prediction(self, model: str) -> wire.PredictRequest:
        """Ask for predictions with theta and the weights that nodes kept."""
        return wire.PredictRequest(model=model, **self.weight_fields(), **self.kernel_fields())
