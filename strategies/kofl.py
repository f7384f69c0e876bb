"""vM-KOFL and eM-KOFL: one vector of weights over the kernels for all clients."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedkern_flwr.online import check_choice, current_weights, kernel_weights
from fedkern_flwr.seeding import uniform
from fedkern_flwr.strategy import PLAIN_GRADIENTS, Arrays
from fedkern_flwr.wire import online as wire

from .average import OFMKLAvg
from .kernel_online import KernelOnlineStrategy
from .online import Floats, Report

LossAggregation = Literal["mean", "sum"]

_UNIFORM_SHARE = 0.1  # eM-KOFL draws kernels from the weights mixed with 10 % uniform


class GlobalWeights(KernelOnlineStrategy[Report]):
    """Base class of strategies whose server weighs the kernels by the clients' losses.

    Parameters
    ----------
    loss_aggregation : {"mean", "sum"}
        How the clients' losses enter the weights.
    **common
        Options of ``KernelOnlineStrategy``.
    """

    def __init__(self, *, loss_aggregation: LossAggregation, **common: Any) -> None:
        super().__init__(**common)
        check_choice("loss_aggregation", loss_aggregation, ("mean", "sum"))
        self.loss_aggregation: LossAggregation = loss_aggregation
        self._losses, self._gap = np.zeros(self.kernels), 0.0

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {**super().options(), "loss_aggregation": self.loss_aggregation}

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Start from theta = 0 and equal weights."""
        self._losses, self._gap = np.zeros(self.kernels), 0.0
        return super().initial_arrays(dimension)

    def server_state(self) -> Arrays:
        """Return theta, the memory of the step rule and the losses summed."""
        return {**super().server_state(), "losses": self._losses, "gap": np.array([self._gap])}

    def load_server_state(self, arrays: Arrays) -> ArrayRecord:
        """Set what :meth:`server_state` returned."""
        self._losses, self._gap = arrays["losses"].copy(), float(arrays["gap"][0])
        return super().load_server_state(arrays)

    def current_weights(self) -> Floats:
        """Return the weights over the kernels, shape (N,)."""
        rule, rate = self.weight_rule()
        return current_weights(rule, self._losses, self._gap, rate)  # type: ignore[arg-type]

    def learn_weights(self, losses: Floats, answers: int) -> None:
        """Enter the losses of a round, summed over the clients, into the weights."""
        if not answers:
            return
        total = losses / answers if self.loss_aggregation == "mean" else losses
        rule, rate = self.weight_rule()
        _, self._losses, self._gap = kernel_weights(
            rule,  # type: ignore[arg-type]
            self._losses,
            total[None],
            self._gap,
            rate,
        )


class VMKOFL(GlobalWeights[wire.SharedReply], OFMKLAvg):
    """Vector multi-kernel online federated learning: all kernels updated, global weights.

    Parameters
    ----------
    kernels : int (default: 51)
        N, Gaussian kernels with bandwidths from 1e-2 to 1e2.
    features : int (default: 9)
        D, random frequencies per kernel.
    loss_aggregation : {"mean", "sum"} (default: "mean")
        The clients' losses enter the weights as their mean or their sum.
    **common
        Options of ``KernelOnlineStrategy``.

    References
    ----------
    Hong and Chae, "Communication-Efficient Randomized Algorithm for Multi-Kernel Online
    Federated Learning", IEEE TPAMI 2021.
    """

    method = "vm-kofl"
    title = "vM-KOFL"
    sends_losses = True

    def __init__(
        self,
        *,
        kernels: int = 51,
        features: int = 9,
        loss_aggregation: LossAggregation = "mean",
        **common: Any,
    ) -> None:
        super().__init__(
            kernels=kernels, features=features, loss_aggregation=loss_aggregation, **common
        )

    def prediction_weights(self) -> Floats:
        """Predict with the global weights."""
        return self.current_weights()

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Learn the weights, then step along the mean gradient."""
        self.learn_weights(total[len(total) - self.reported() :], answers)
        return OFMKLAvg.step(self, total, answers)


class EMKOFL(GlobalWeights[wire.DrawnReply]):
    """Ensemble multi-kernel online federated learning: one kernel per round for all clients.

    The server draws a kernel from the global weights mixed with 10 % uniform; the clients predict
    with it and send its gradient divided by its probability, and the losses of all kernels.

    Parameters
    ----------
    kernels : int (default: 51)
        N, Gaussian kernels with bandwidths from 1e-2 to 1e2.
    features : int (default: 100)
        D, random frequencies per kernel.
    loss_aggregation : {"mean", "sum"} (default: "sum")
        The clients' losses enter the weights as their sum or their mean.
    importance_weighting : bool (default: True)
        Divide gradients by the probability of the draw. With the paper's step size this diverges:
        eta divided by a probability of 0.1 / N exceeds the largest stable step by far.
    **common
        Options of ``KernelOnlineStrategy``.

    References
    ----------
    As :class:`VMKOFL`.
    """

    method = "em-kofl"
    title = "eM-KOFL"
    reply_class = wire.DrawnReply

    def __init__(
        self,
        *,
        kernels: int = 51,
        features: int = 100,
        loss_aggregation: LossAggregation = "sum",
        importance_weighting: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(
            kernels=kernels, features=features, loss_aggregation=loss_aggregation, **common
        )
        self.importance_weighting = importance_weighting
        self._drawn = 0

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {**super().options(), "importance_weighting": self.importance_weighting}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if self._is_secure:
            return self.secure_privacy("gradients, losses and statistics")
        return {
            "protocol": "plain",
            "server_sees": [*PLAIN_GRADIENTS, "the loss of every kernel at each client"],
            "never_leaves_the_client": ["rows", "labels"],
        }

    def reply_sizes(self) -> dict[str, int]:
        """Return the shape of the drawn kernel's gradient, and N."""
        return {**super().reply_sizes(), "kernels": self.kernels}

    def in_question(self) -> NDArray[np.int32]:
        """Return the single kernel drawn."""
        return np.array([self._drawn], np.int32)

    def reported(self) -> int:
        """Return N: the losses of all kernels are summed."""
        return self.kernels

    def request(self, stream: dict[str, Any]) -> wire.DrawnRequest:
        """Draw the kernel of the round and ask for its gradient."""
        share = _UNIFORM_SHARE
        probabilities = (1.0 - share) * self.current_weights() + share / self.kernels
        draw = uniform(self._run_seed, "drawn kernel", stream["round"])
        drawn = int(np.searchsorted(np.cumsum(probabilities), draw, side="right"))
        self._drawn = min(drawn, self.kernels - 1)
        return wire.DrawnRequest(
            **stream,
            **self.kernel_fields(),
            kernel=self._drawn,
            probability=float(probabilities[self._drawn]) if self.importance_weighting else 1.0,
        )

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Learn the weights, then step along the mean gradient of the drawn kernel."""
        self.learn_weights(total[-self.kernels :], answers)
        return self.move(self.spread(total[: -self.kernels]))

    def evaluation_weights(self) -> Floats:
        """Predict held-out rows with the global weights."""
        return self.current_weights()
