"""Baselines of the papers: averages of models, online federated kernel learning, no federation."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import current_weights, kernel_weights, step_rule
from fedkern_flwr.online.network import initial_parameters, plan_layers
from fedkern_flwr.seeding import uniform

from .kernel_online import DictionaryStrategy, KernelOnlineStrategy
from .online import Floats, OnlineStrategy

# -- OFMKL-Avg and OFSKL: online gradient descent without weights over kernels


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


# -- vM-KOFL and eM-KOFL: one vector of weights over the kernels for all clients

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


# -- local only: every client learns by itself, the yardstick for federation


class LocalOnly(DictionaryStrategy):
    """Online multi-kernel learning on each client alone; one exchange starts it all.

    The same learner, alone: each client runs the steps of POF-MKL with itself as the only client
    and updates all kernels with every sample. ``samples_per_round`` has no meaning
    here, and nothing is summed.
    """

    method = "local-only"
    title = "local only"
    left_whole = True
    fixed = DictionaryStrategy.fixed | {
        "samples_per_round",
        "checkpoint_every",
        "max_missed",
        "secure",
        "threshold",
        "min_cohort",
    }
    reply_class = wire.LocalReply

    def __init__(self, **common: Any) -> None:
        super().__init__(secure=False, **common)

    def privacy(self) -> dict[str, Any]:
        """Return what the server sees."""
        return {
            "protocol": "plain",
            "server_sees": [
                "each client's squared error and regret after every sample, its largest loss",
                "number of rows, held-out rows and columns per client, digest of the column names",
                "each client's squared error on its held-out rows, if there are any",
            ],
            "never_leaves_the_client": ["rows", "labels", "models"],
        }

    def set_up(self, dimension: int) -> None:
        """Begin with nothing: there is no server state."""

    def sent(self) -> list[NDArray[Any]]:
        """Send nothing."""
        return []

    def server_state(self) -> Arrays:
        """Return nothing."""
        return {}

    def load_server_state(self, arrays: Arrays) -> None:
        """Set nothing."""

    def batch_size(self) -> int:
        """Return T: one exchange is enough."""
        return self.num_rounds

    def reply_sizes(self) -> dict[str, int]:
        """Return the number of samples."""
        return {"samples": self.num_rounds}

    def sum_length(self) -> int:
        """Return 0: nothing is summed."""
        return 0

    def request(self, stream: dict[str, Any]) -> wire.LocalRequest:
        """Ask every client to learn from its whole stream."""
        fields = {**self.dictionary_fields(), **self.weight_fields()}
        return wire.LocalRequest(**stream, **fields, step_size=self.step_size)

    def step(self, total: Floats, answers: int) -> None:
        """Move nothing."""

    def update(self, replies: list[Any]) -> None:
        """Write the history of every sample from the clients' running totals."""
        errors = np.mean([reply.squared_errors for reply in replies], axis=0)
        regrets = np.mean([reply.regrets for reply in replies], axis=0)
        self.history_ = [
            {"round": t + 1, "mse": e / (t + 1), "regret": r, "survivors": len(replies)}
            for t, (e, r) in enumerate(zip(errors.tolist(), regrets.tolist(), strict=True))
        ][:-1]

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; the clients have predicted their held-out rows already."""
        metrics = super().final_metrics()
        replies = [r for r in self._reports.values() if isinstance(r, wire.LocalReply)]
        rows = sum(reply.test_samples for reply in replies)
        if rows:
            metrics["test_mse"] = sum(reply.test_squared_error for reply in replies) / rows
        return metrics


# -- perFedAvg: personalised federated averaging of a small network, online


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
