"""PerFedAvg: personalised federated averaging of a small network, online."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import step_rule
from fedkern_flwr.online.network import initial_parameters, plan_layers

from .online import Floats, OnlineStrategy


class PerFedAvg(OnlineStrategy):
    """Model-agnostic meta-learning of a ReLU network with at most 1000 parameters.

    In a round a client adapts the network to its previous samples by one inner gradient step,
    predicts the new ones with the adapted network, and sends the first-order meta-gradient.

    Attributes
    ----------
    parameters_ : ndarray, shape (1, parameters)
        The learned initialisation.

    References
    ----------
    Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees",
    NeurIPS 2020; the network is that of Ghari and Shen, NeurIPS 2022, appendix C.
    """

    method = "per-fed-avg"
    title = "PerFedAvg"
    left_whole = True
    reply_class = wire.NetworkReply
    evaluate_reply = wire.NetworkEvaluateReply

    inner_step: float | None = option(
        None, "Step size of the adaptation, by default 1/sqrt(T).", least=0.0
    )

    def _reset(self) -> None:
        super()._reset()
        self.parameters_ = np.zeros((1, 0))
        self._layers: tuple[int, ...] = ()

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the parameters and the widths of the layers."""
        meta = {**super().learned()[1], "layers": list(self._layers)}
        return {"parameters": self.parameters_[0]}, meta

    def set_up(self, dimension: int) -> None:
        """Start from a seeded initialisation of the largest network allowed."""
        self._layers = plan_layers(dimension)
        self.parameters_ = initial_parameters(self._layers, self.run_seed)[None]
        self._rule = step_rule(self.step_size, 1, self.num_rounds)

    def sent(self) -> list[NDArray[Any]]:
        """Return the parameters."""
        return [self.parameters_[0]]

    def server_state(self) -> Arrays:
        """Return the parameters and the memory of the step rule."""
        return {"parameters": self.parameters_, "step_state": self._rule.state}

    def load_server_state(self, arrays: Arrays) -> None:
        """Set what :meth:`server_state` returned."""
        self.parameters_ = arrays["parameters"].copy()
        self._rule.state = arrays["step_state"].copy()

    def reply_sizes(self) -> dict[str, int]:
        """Return the number of parameters."""
        return {"parameters": self.parameters_.size}

    def sum_length(self) -> int:
        """Return the number of parameters."""
        return self.parameters_.size

    def step(self, total: Floats, answers: int) -> None:
        """Step along the mean meta-gradient over all clients."""
        self._rule.update(self.parameters_, total[None] / len(self.parties_))

    def request(self, stream: dict[str, Any]) -> wire.NetworkRequest:
        """Ask for the meta-gradient."""
        return wire.NetworkRequest(**stream, **self._network_fields())

    def evaluation(self) -> wire.NetworkEvaluateRequest:
        """Ask for the error of predictions after an adaptation to the last samples."""
        return wire.NetworkEvaluateRequest(
            checkpoint_every=1 if self.checkpoint else 0,
            step=self.num_rounds,
            samples=self.batch_size(),
            **self._network_fields(),
        )

    def _network_fields(self) -> dict[str, Any]:
        default = 1.0 / np.sqrt(self.num_rounds)
        return {
            "layers": np.array(self._layers, "<i4").tobytes(),
            "seed": self.run_seed,
            "inner_step": float(default if self.inner_step is None else self.inner_step),
            "parameters": self.parameters_[0],
        }
