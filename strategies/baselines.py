"""Baselines of the papers: averages of models, online federated kernel learning, no federation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import PrivateMethod, option
from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.network import initial_parameters, plan_layers
from fedkern_flwr.seeding import uniform

from .online import Floats, OnlineStrategy
from .pof_mkl import KernelLearning, KernelOptions, LossAggregation

# -- OFMKL-Avg and OFSKL: online gradient descent without weights over kernels


class OFMKLAvg(KernelLearning, OnlineStrategy, PrivateMethod):
    """Online federated multi-kernel learning, prediction by the plain mean of the kernels.

    All kernels are updated in each round.

    References
    ----------
    Mitra, Hassani and Pappas, "Online Federated Learning", CDC 2021 (Fed-OMD), as used by Ghari
    and Shen, NeurIPS 2022, section 4.
    """

    method = "ofmkl-avg"
    title = "OFMKL-Avg"
    weighs = "alike"

    features: int = option(
        9,
        "Random frequencies per kernel, D (paper: 2 N D up to 1000).",
        least=1,
    )


class OFSKL(KernelLearning, OnlineStrategy, PrivateMethod):
    """Online federated learning with a single Gaussian kernel.

    References
    ----------
    As :class:`OFMKLAvg`.
    """

    method = "ofskl"
    title = "OFSKL"
    fixed = OnlineStrategy.fixed | {"kernels", "bandwidths"}
    weighs = "alike"

    bandwidth: float = option(10.0, "Bandwidth of the kernel.", above=0.0, of_model=False)
    features: int = option(100, "Random frequencies, D.", least=1)

    def __init__(self, **common: Any) -> None:
        super().__init__(kernels=1, bandwidths=None, **common)
        self.bandwidths = np.array([self.bandwidth])


# -- vM-KOFL and eM-KOFL: one vector of weights over the kernels for all clients

_UNIFORM_SHARE = 0.1  # eM-KOFL samples kernels from the weights mixed with 10 % uniform
_LOSSES = ("the loss of every kernel at each client",)


class VMKOFL(KernelLearning, OnlineStrategy, PrivateMethod):
    """Vector multi-kernel online federated learning: all kernels updated, global weights.

    References
    ----------
    Hong and Chae, "Communication-Efficient Randomized Algorithm for Multi-Kernel Online
    Federated Learning", IEEE TPAMI 2021.
    """

    method = "vm-kofl"
    title = "vM-KOFL"
    weighs = "losses"
    in_sums = "gradients, losses and statistics"
    server_sees = _LOSSES

    features: int = option(
        9,
        "Random frequencies per kernel, D (paper: 2 N D up to 1000).",
        least=1,
    )
    loss_aggregation: LossAggregation = option(
        "mean", "Losses of the clients enter the weights as mean or sum."
    )


class EMKOFL(KernelLearning, OnlineStrategy, PrivateMethod):
    """Ensemble multi-kernel online federated learning: one kernel per round for all clients.

    The server samples a kernel from the global weights mixed with 10 % uniform. The clients predict
    with it and send its gradient, divided by its probability, and all kernels' losses.

    References
    ----------
    As :class:`VMKOFL`.
    """

    method = "em-kofl"
    title = "eM-KOFL"
    reply_class = wire.DrawnReply
    weighs = "losses"
    in_sums = "gradients, losses and statistics"
    server_sees = _LOSSES

    features: int = option(100, "Random frequencies per kernel, D.", least=1)
    loss_aggregation: LossAggregation = option(
        "sum", "Losses of the clients enter the weights as sum or mean."
    )
    importance_weighting: bool = option(
        True,
        "Divide gradients by kernel probabilities; diverges with the paper's step size.",
    )

    def request(self, stream: dict[str, Any]) -> wire.DrawnRequest:
        share = _UNIFORM_SHARE
        probabilities = (1.0 - share) * self.evaluation_weights() + share / self.kernels
        draw = uniform(self.run_seed, "drawn kernel", stream["round"])
        drawn = int(np.searchsorted(np.cumsum(probabilities), draw, side="right"))
        drawn = min(drawn, self.kernels - 1)
        likely = float(probabilities[drawn])
        return wire.DrawnRequest(
            **stream,
            **self.kernel_fields(),
            kernel=drawn,
            probability=likely if self.importance_weighting else 1.0,
        )


# -- local only: every client learns by itself, the baseline for federation


class LocalOnly(KernelOptions, OnlineStrategy):
    """Online multi-kernel learning on each client alone; one exchange starts it all.

    Each client runs the steps of POF-MKL as the only client and updates all kernels with every
    sample. ``samples_per_round`` is unused, and nothing is summed.
    """

    method = "local-only"
    title = "local only"
    left_whole = True
    fixed = OnlineStrategy.fixed | {
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
        return {
            "protocol": "plain",
            "server_sees": [
                "each client's squared error and regret after every sample, its largest loss",
                "number of rows, held-out rows and columns per client, digest of the column names",
                "each client's squared error on its held-out rows, if there are any",
            ],
            "never_leaves_the_client": ["rows", "labels", "models"],
        }

    def sent(self) -> list[NDArray[Any]]:
        return []

    def batch_size(self) -> int:
        return self.num_rounds

    def request(self, stream: dict[str, Any]) -> wire.LocalRequest:
        fields = {**self.dictionary_fields(), **self.weight_fields()}
        return wire.LocalRequest(**stream, **fields, step_size=self.step_size)

    def update(self, replies: list[Any]) -> None:
        """Compute the history of every sample from the clients' running totals."""
        errors = np.mean([reply.squared_errors for reply in replies], axis=0)
        regrets = np.mean([reply.regrets for reply in replies], axis=0)
        self.history_ = [
            {"round": t + 1, "mse": e / (t + 1), "regret": r, "survivors": len(replies)}
            for t, (e, r) in enumerate(zip(errors.tolist(), regrets.tolist(), strict=True))
        ][:-1]

    def final_metrics(self) -> dict[str, Any]:
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
    predicts the new ones, and sends the first-order meta-gradient.

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

    learns = "parameters"

    inner_step: float | None = option(
        None, "Step size of the adaptation (default: 1/sqrt(T)).", least=0.0
    )

    @property
    def parameters_(self) -> Floats:
        return self.theta_

    def model_arrays(self) -> Arrays:
        return {"parameters": self.theta_[0]}

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        arrays, meta = super().learned()
        return arrays, {**meta, "layers": list(self._layers)}

    def first_parameters(self, dimension: int) -> Floats:
        return initial_parameters(self._layers, self.run_seed)[None]

    @property
    def _layers(self) -> tuple[int, ...]:
        return plan_layers(self._dimension) if self._dimension else ()

    def sent(self) -> list[NDArray[Any]]:
        return [self.theta_[0]]

    def request(self, stream: dict[str, Any]) -> wire.NetworkRequest:
        return wire.NetworkRequest(**stream, **self._fields())

    def evaluation(self, **stream: Any) -> wire.NetworkEvaluateRequest:
        """Request the error of predictions after an adaptation to the last samples."""
        about: dict[str, Any] = {"step": self.num_rounds, "samples": self.batch_size()}
        return wire.NetworkEvaluateRequest(**stream, **about, **self._fields())

    def _fields(self) -> dict[str, Any]:
        default = 1.0 / np.sqrt(self.num_rounds)
        return {
            "layers": np.array(self._layers, "<i4").tobytes(),
            "seed": self.run_seed,
            "inner_step": float(default if self.inner_step is None else self.inner_step),
            "parameters": self.theta_[0],
        }
