"""POF-MKL: personalised online federated multi-kernel learning."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.online import Selection, Subset, check_choice, regret_bound, shared_subset
from fedkern_flwr.wire import online as wire

from .base import PLAIN_GRADIENTS, at_least, logger, within
from .kernel_online import KernelOnlineStrategy
from .online import FEW, Floats

DEFAULT_KERNELS_PER_ROUND = 25
_NEGLIGIBLE = 1e-9


class POFMKL(KernelOnlineStrategy[wire.PersonalReply]):
    """Personalised online multi-kernel learning with few kernels per message.

    The server holds parameters theta_i for each of N kernels; every client keeps its own weights
    over the kernels. In a round a client predicts its next sample with all kernels, and sends the
    gradients of M of them, drawn by their weights.

    Parameters
    ----------
    kernels : int (default: 51)
        N, Gaussian kernels with bandwidths from 1e-2 to 1e2.
    kernels_per_round : int, optional
        M, kernels whose gradients a client sends. By default all N with secure sums and a private
        subset, which costs the same and leaves no kernel to few clients; else 25, or N if less.
    features : int (default: 20)
        D, random frequencies per kernel. The paper caps 2 M D at 1000 numbers.
    exploration : float (default: 1.0)
        xi in (0, 1]; with 1 all kernels are equally likely.
    selection : {"bins", "subset"}, optional
        How a client chooses its kernels: the bins of Algorithm 1, or exactly M kernels, each with
        a probability of its own. By default ``bins`` with the paper's step size, else ``subset``.
    subset : {"private", "shared"} (default: "private")
        ``shared``: all clients send the gradients of the same M kernels, drawn publicly each round.
        With secure sums a round then costs 2 M D numbers of a client instead of 2 N D.
    **common
        Options of ``KernelOnlineStrategy``: ``regularization``, ``step_size``,
        ``samples_per_round``, ``precision``, ``seed``, ``checkpoint``, ...

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

    def __init__(
        self,
        *,
        kernels: int = 51,
        kernels_per_round: int | None = None,
        features: int = 20,
        exploration: float = 1.0,
        selection: Selection | None = None,
        subset: Subset = "private",
        **common: Any,
    ) -> None:
        super().__init__(kernels=kernels, features=features, **common)
        if kernels_per_round is not None:
            at_least("kernels_per_round", kernels_per_round, 1)
            if kernels_per_round > self.kernels:
                raise OptionError(
                    f"kernels_per_round is {kernels_per_round} but there are {self.kernels} "
                    "kernels",
                    remedy=f"use at most {self.kernels}",
                )
        within("exploration", exploration, 0.0, 1.0, open_low=True)
        self._kernels_per_round, self.exploration = kernels_per_round, exploration
        if selection is None:
            selection = "bins" if self.step_size == "paper" else "subset"
        check_choice("selection", selection, ("bins", "subset"))
        check_choice("subset", subset, ("private", "shared"))
        self.selection: Selection = selection
        self.subset: Subset = subset
        self._chosen = np.arange(self.kernels, dtype=np.int32)  # the shared kernels of the round

    @property
    def kernels_per_round(self) -> int:
        """M, kernels whose gradients a client sends."""
        if self._kernels_per_round is not None:
            return self._kernels_per_round
        if self._is_secure and self.subset == "private":
            return self.kernels
        return min(DEFAULT_KERNELS_PER_ROUND, self.kernels)

    @property
    def lonely_kernels(self) -> float:
        """Chance that some kernel of a round is chosen by fewer than four clients.

        A secure sum over the clients is, for each kernel, a sum over those who chose it, and from
        sums of up to three clients the server can compute their samples.
        """
        everybody = self.subset == "shared" or self.kernels_per_round == self.kernels
        if self.sums is None or everybody:
            return 0.0
        survivors = self.sums.membership.cohorts[0].threshold
        share = self.exploration * self.kernels_per_round / self.kernels
        few = sum(
            math.comb(survivors, n) * share**n * (1.0 - share) ** (survivors - n)
            for n in range(min(FEW, survivors))
        )
        return min(1.0, self.kernels * few)

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Start from theta = 0; warn of what a private subset shows in spite of secure sums."""
        if self.lonely_kernels > _NEGLIGIBLE:
            logger.warning(
                "in a round a kernel may be chosen by fewer than %d clients (chance up to %.1g): "
                "their samples can be computed from its sum; leave out kernels_per_round or use "
                "subset='shared'",
                FEW,
                self.lonely_kernels,
            )
        return super().initial_arrays(dimension)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "kernels_per_round": self.kernels_per_round,
            "exploration": self.exploration,
            "selection": self.selection,
            "subset": self.subset,
        }

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if self._is_secure:
            seen = self.secure_privacy("gradients and statistics", "weights over the kernels")
            if self.lonely_kernels > _NEGLIGIBLE:
                chance = f"{self.lonely_kernels:.1g} a round"
                few = f"gradients of kernels that few clients chose (chance up to {chance})"
                seen["server_sees"].append(few)
            return seen
        return {
            "protocol": "plain",
            "server_sees": [
                *PLAIN_GRADIENTS,
                "which kernels a client chose, hence something of the order of its weights",
            ],
            "never_leaves_the_client": ["rows", "labels", "weights over the kernels"],
        }

    def request(self, stream: dict[str, Any]) -> wire.PersonalRequest:
        """Ask for the gradients of M kernels."""
        rule, rate = self.weight_rule()
        many = self.kernels_per_round
        if self.subset == "shared":
            self._chosen = shared_subset(self.kernels, many, self._run_seed, stream["round"])
        return wire.PersonalRequest(
            **stream,
            **self.kernel_fields(),
            kernels_per_round=many,
            selection="shared" if self.subset == "shared" else self.selection,
            exploration=self.exploration,
            weight_rule=rule,
            learning_rate=rate,
        )

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; in paper mode also the largest share of Theorem 1's bound reached."""
        metrics = super().final_metrics()
        rule, rate = self.weight_rule()
        if rule == "exponential" and self._reports:
            metrics["regret_to_bound"] = max(
                report.regret
                / regret_bound(self.kernels, rate, report.total_samples, report.largest_loss)
                for report in self._reports.values()
                if isinstance(report, wire.KernelReport)
            )
        return metrics

    def check_reply(self, reply: wire.PersonalReply, number: int) -> None:
        """Refuse kernels that do not exist, come twice or are too many."""
        super().check_reply(reply, number)
        kernels = reply.kernels
        inside = not kernels.size or (kernels.min() >= 0 and kernels.max() < self.kernels)
        if not inside or np.unique(kernels).size < kernels.size:
            raise ProtocolError("its kernels do not exist or come twice")
        if kernels.size > self.kernels_per_round:
            raise ProtocolError(f"it sends {kernels.size} kernels, {self.kernels_per_round} asked")
        if self.subset == "shared" and not np.array_equal(kernels, self._chosen):
            raise ProtocolError("its kernels are not those of the round")

    def sum_length(self) -> int:
        """Return N 2D, or M 2D with a shared subset."""
        kernels = self.kernels_per_round if self.subset == "shared" else self.kernels
        return kernels * 2 * self.features

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Equation 10: a step along the mean of the weighted gradients."""
        if self.subset == "private":
            return self.move(total.reshape(self.theta_.shape))
        gradient = np.zeros_like(self.theta_)
        gradient[self._chosen] = total.reshape(-1, gradient.shape[1])
        return self.move(gradient)
