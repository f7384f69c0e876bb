"""PerFedAvg: personalised federated averaging of a small network, online."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fedkern_flwr.network import initial_parameters, plan_layers
from fedkern_flwr.online import step_rule
from fedkern_flwr.strategy import PLAIN_GRADIENTS, Arrays, at_least
from fedkern_flwr.wire import online as wire

from .online import Floats, OnlineStrategy


class PerFedAvg(OnlineStrategy[wire.NetworkReply]):
    """Model-agnostic meta-learning of a ReLU network with at most 1000 parameters.

    In a round a client adapts the network to its previous samples by one inner gradient step,
    predicts the new ones with the adapted network, and sends the first-order meta-gradient.

    Parameters
    ----------
    inner_step : float, optional
        Step size of the adaptation, by default 1/sqrt(T).
    **common
        Options of ``OnlineStrategy``.

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
    reply_class = wire.NetworkReply
    _evaluate_reply = wire.NetworkEvaluateReply

    def __init__(self, *, inner_step: float | None = None, **common: Any) -> None:
        super().__init__(**common)
        if inner_step is not None:
            at_least("inner_step", inner_step, 0.0)
        self.inner_step = inner_step
        self.parameters_ = np.zeros((1, 0))
        self._layers: tuple[int, ...] = ()

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {**super().options(), "inner_step": self.inner_step}

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        if self._is_secure:
            return self.secure_privacy("gradients and statistics")
        return {
            "protocol": "plain",
            "server_sees": list(PLAIN_GRADIENTS),
            "never_leaves_the_client": ["rows", "labels"],
        }

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the parameters and the widths of the layers."""
        return {"parameters": self.parameters_[0]}, {
            **self.options(),
            "layers": list(self._layers),
        }

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Start from a seeded initialisation of the largest network allowed."""
        self._layers = plan_layers(dimension)
        self.parameters_ = initial_parameters(self._layers, self._run_seed)[None]
        self._rule = step_rule(self.step_size, 1, self._samples)
        return self._sent()

    def server_state(self) -> Arrays:
        """Return the parameters and the memory of the step rule."""
        return {"parameters": self.parameters_, "step_state": self._rule.state}

    def load_server_state(self, arrays: Arrays) -> ArrayRecord:
        """Set what :meth:`server_state` returned."""
        self.parameters_ = arrays["parameters"].copy()
        self._rule.state = arrays["step_state"].copy()
        return self._sent()

    def reply_sizes(self) -> dict[str, int]:
        """Return the number of parameters."""
        return {"parameters": self.parameters_.size}

    def request(self, stream: dict[str, Any]) -> wire.NetworkRequest:
        """Ask for the meta-gradient."""
        return wire.NetworkRequest(**stream, **self._network_fields())

    def sum_length(self) -> int:
        """Return the number of parameters."""
        return self.parameters_.size

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Step along the mean meta-gradient over all clients."""
        self._rule.update(self.parameters_, total[None] / len(self.parties_))
        return self._sent()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients that hold rows out to predict them."""
        request = wire.NetworkEvaluateRequest(
            session=self._session,
            round=server_round + 1,
            checkpoint_every=1 if self.checkpoint else 0,
            step=self._samples,
            samples=self.batch_size(),
            **self._network_fields(),
        )
        return self.evaluation_messages(request)

    def _network_fields(self) -> dict[str, Any]:
        default = 1.0 / np.sqrt(self._samples)
        return {
            "layers": np.array(self._layers, "<i4").tobytes(),
            "seed": self._run_seed,
            "inner_step": float(default if self.inner_step is None else self.inner_step),
            "parameters": self.parameters_[0],
        }

    def _sent(self) -> ArrayRecord:
        return ArrayRecord([self.parameters_[0]])
