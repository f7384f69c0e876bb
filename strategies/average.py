"""OFMKL-Avg and OFSKL: online gradient descent without weights over kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import option
from fedkern_flwr.online import messages as wire

from .kernel_online import KernelOnlineStrategy
from .online import Floats


class OFMKLAvg(KernelOnlineStrategy):
    """Online federated multi-kernel learning, prediction by the plain mean of the kernels.

    All kernels are updated in each round.

    References
    ----------
    Mitra, Hassani and Pappas, "Online Federated Learning", CDC 2021 (Fed-OMD), as used by Ghari
    and Shen, NeurIPS 2022, section 4.
    """

    method = "ofmkl-avg"
    title = "OFMKL-Avg"
    reply_class = wire.SharedReply

    features: int = option(
        9,
        "D, random frequencies per kernel; 2 N D stays below the paper's cap of 1000 numbers.",
        least=1,
    )

    #: Whether the clients report the losses of all kernels.
    sends_losses: ClassVar[bool] = False

    def prediction_weights(self) -> Floats:
        """Return the weights with which clients predict, shape (N,)."""
        return np.full(self.kernels, 1.0 / self.kernels)

    def sent(self) -> list[NDArray[Any]]:
        """Return theta and the weights of the prediction."""
        return [self.theta_.astype(self.precision), self.prediction_weights()]

    def request(self, stream: dict[str, Any]) -> wire.SharedRequest:
        """Ask for the gradients of all kernels."""
        weights, losses = self.prediction_weights(), self.sends_losses
        return wire.SharedRequest(
            **stream, **self.kernel_fields(), weights=weights, send_losses=losses
        )

    def reported(self) -> int:
        """Return the number of losses reported."""
        return self.kernels if self.sends_losses else 0

    def evaluation_weights(self) -> Floats:
        """Predict held-out rows with the server's weights."""
        return self.prediction_weights()


class OFSKL(OFMKLAvg):
    """Online federated learning with a single Gaussian kernel.

    References
    ----------
    As :class:`OFMKLAvg`.
    """

    method = "ofskl"
    title = "OFSKL"
    fixed = KernelOnlineStrategy.fixed | {"kernels", "bandwidths"}

    bandwidth: float = option(10.0, "The kernel's bandwidth.", above=0.0, of_model=False)
    features: int = option(100, "D, random frequencies.", least=1)

    def __init__(self, **common: Any) -> None:
        super().__init__(kernels=1, bandwidths=None, **common)
        self.bandwidths = np.array([self.bandwidth])
