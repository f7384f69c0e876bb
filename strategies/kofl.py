"""vM-KOFL and eM-KOFL: one vector of weights over the kernels for all clients."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import current_weights, kernel_weights
from fedkern_flwr.seeding import uniform

from .average import OFMKLAvg
from .kernel_online import KernelOnlineStrategy
from .online import Floats

LossAggregation = Literal["mean", "sum"]

_UNIFORM_SHARE = 0.1  # eM-KOFL draws kernels from the weights mixed with 10 % uniform


class GlobalWeights(KernelOnlineStrategy):
    """Base class of strategies whose server weighs the kernels by the clients' losses."""

    in_sums = "gradients, losses and statistics"
    server_sees = ("the loss of every kernel at each client",)

    loss_aggregation: LossAggregation = option(
        "mean", "The clients' losses enter the weights as their mean or their sum."
    )

    def set_up(self, dimension: int) -> None:
        """Start from theta = 0 and equal weights."""
        super().set_up(dimension)
        self._losses, self._gap = np.zeros(self.kernels), 0.0

    def server_state(self) -> Arrays:
        """Return theta, the memory of the step rule and the losses summed."""
        return {**super().server_state(), "losses": self._losses, "gap": np.array([self._gap])}

    def load_server_state(self, arrays: Arrays) -> None:
        """Set what :meth:`server_state` returned."""
        super().load_server_state(arrays)
        self._losses, self._gap = arrays["losses"].copy(), float(arrays["gap"][0])

    def current_weights(self) -> Floats:
        """Return the weights over the kernels, shape (N,)."""
        rule, rate = self.weight_fields().values()
        return current_weights(rule, self._losses, self._gap, rate)

    def reported(self) -> int:
        """Return N: the losses of all kernels are summed."""
        return self.kernels

    def step(self, total: Floats, answers: int) -> None:
        """Enter the losses into the weights, then step along the mean gradient."""
        if answers:
            losses = total[-self.kernels :]
            losses = losses / answers if self.loss_aggregation == "mean" else losses
            rule, rate = self.weight_fields().values()
            found = kernel_weights(rule, self._losses, losses[None], self._gap, rate)
            _, self._losses, self._gap = found
        super().step(total, answers)

    def evaluation_weights(self) -> Floats:
        """Predict held-out rows with the global weights."""
        return self.current_weights()


class VMKOFL(GlobalWeights, OFMKLAvg):
    """Vector multi-kernel online federated learning: all kernels updated, global weights.

    References
    ----------
    Hong and Chae, "Communication-Efficient Randomized Algorithm for Multi-Kernel Online
    Federated Learning", IEEE TPAMI 2021.
    """

    method = "vm-kofl"
    title = "vM-KOFL"
    sends_losses = True

    def prediction_weights(self) -> Floats:
        """Predict with the global weights."""
        return self.current_weights()


class EMKOFL(GlobalWeights):
    """Ensemble multi-kernel online federated learning: one kernel per round for all clients.

    The server draws a kernel from the global weights mixed with 10 % uniform; the clients predict
    with it and send its gradient divided by its probability, and the losses of all kernels.

    References
    ----------
    As :class:`VMKOFL`.
    """

    method = "em-kofl"
    title = "eM-KOFL"
    reply_class = wire.DrawnReply

    features: int = option(100, "D, random frequencies per kernel.", least=1)
    loss_aggregation: LossAggregation = option(
        "sum", "The clients' losses enter the weights as their sum or their mean."
    )
    importance_weighting: bool = option(
        True,
        "Divide gradients by the probability of the draw. With the paper's step size this "
        "diverges: eta divided by a probability of 0.1 / N exceeds the largest stable step by far.",
    )

    def _reset(self) -> None:
        super()._reset()
        self._drawn, self._probability = 0, 1.0

    def in_question(self) -> NDArray[np.int32]:
        """Return the single kernel drawn."""
        return np.array([self._drawn], np.int32)

    def chance(self) -> float:
        """Return the probability of the kernel drawn, 1 where gradients are not divided by it."""
        return self._probability

    def request(self, stream: dict[str, Any]) -> wire.DrawnRequest:
        """Draw the kernel of the round and ask for its gradient."""
        share = _UNIFORM_SHARE
        probabilities = (1.0 - share) * self.current_weights() + share / self.kernels
        draw = uniform(self.run_seed, "drawn kernel", self._number)
        drawn = int(np.searchsorted(np.cumsum(probabilities), draw, side="right"))
        self._drawn = min(drawn, self.kernels - 1)
        likely = float(probabilities[self._drawn])
        self._probability = likely if self.importance_weighting else 1.0
        return wire.DrawnRequest(
            **stream,
            **self.kernel_fields(),
            kernel=self._drawn,
            probability=self._probability,
        )
