"""OFMKL-Avg and OFSKL: online gradient descent without weights over kernels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord

from fedkern_flwr.strategy import PLAIN_GRADIENTS, within
from fedkern_flwr.wire import online as wire

from .kernel_online import KernelOnlineStrategy
from .online import Floats


class OFMKLAvg(KernelOnlineStrategy[wire.SharedReply]):
    """Online federated multi-kernel learning, prediction by the plain mean of the kernels.

    Parameters
    ----------
    kernels : int (default: 51)
        N, all of them updated in each round.
    features : int (default: 9)
        D; 2 N D stays below the paper's cap of 1000 numbers.
    **common
        Options of ``KernelOnlineStrategy``.

    References
    ----------
    Mitra, Hassani and Pappas, "Online Federated Learning", CDC 2021 (Fed-OMD), as used by Ghari
    and Shen, NeurIPS 2022, section 4.
    """

    method = "ofmkl-avg"
    title = "OFMKL-Avg"
    reply_class = wire.SharedReply

    def __init__(self, *, kernels: int = 51, features: int = 9, **common: Any) -> None:
        super().__init__(kernels=kernels, features=features, **common)

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if self._is_secure:
            what = (
                "gradients, losses and statistics"
                if self.sends_losses
                else "gradients and statistics"
            )
            return self.secure_privacy(what)
        return {
            "protocol": "plain",
            "server_sees": [
                *PLAIN_GRADIENTS,
                *(["the loss of every kernel at each client"] if self.sends_losses else []),
            ],
            "never_leaves_the_client": ["rows", "labels"],
        }

    def prediction_weights(self) -> Floats:
        """Return the weights with which clients predict, shape (N,)."""
        return np.full(self.kernels, 1.0 / self.kernels)

    def sent_arrays(self) -> ArrayRecord:
        """Return theta and the weights of the prediction."""
        return ArrayRecord([self.theta_.astype(self.precision), self.prediction_weights()])

    #: Whether the clients report the losses of all kernels.
    sends_losses: ClassVar[bool] = False

    def reply_sizes(self) -> dict[str, int]:
        """Return the shape of the gradients and the number of losses reported."""
        return {**super().reply_sizes(), "reported": self.reported()}

    def request(self, stream: dict[str, Any]) -> wire.SharedRequest:
        """Ask for the gradients of all kernels."""
        return wire.SharedRequest(
            **stream,
            **self.kernel_fields(),
            weights=self.prediction_weights(),
            send_losses=self.sends_losses,
        )

    def reported(self) -> int:
        """Return the number of losses reported."""
        return self.kernels if self.sends_losses else 0

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Step along the mean gradient."""
        return self.move(self.spread(total[: len(total) - self.reported()]))

    def evaluation_weights(self) -> Floats:
        """Predict held-out rows with the server's weights."""
        return self.prediction_weights()


class OFSKL(OFMKLAvg):
    """Online federated learning with a single Gaussian kernel.

    Parameters
    ----------
    bandwidth : float (default: 10.0)
        The kernel's bandwidth.
    features : int (default: 100)
        D, random frequencies.
    **common
        Options of ``KernelOnlineStrategy``.

    References
    ----------
    As :class:`OFMKLAvg`.
    """

    method = "ofskl"
    title = "OFSKL"
    fixed = frozenset({"kernels", "bandwidths"})

    def __init__(self, *, bandwidth: float = 10.0, features: int = 100, **common: Any) -> None:
        within("bandwidth", bandwidth, 0.0, float("inf"), open_low=True)
        super().__init__(kernels=1, bandwidths=[bandwidth], features=features, **common)
