"""Local only: every client learns by itself, the yardstick for federation."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedkern_flwr.kernels import bandwidth_dictionary
from fedkern_flwr.online import check_choice
from fedkern_flwr.random_features import FrequencyDraw, Precision
from fedkern_flwr.strategy import Arrays, at_least
from fedkern_flwr.wire import online as wire

from .kernel_online import centre, resolve_draw
from .online import Floats, OnlineStrategy


class LocalOnly(OnlineStrategy[wire.LocalReply]):
    """Online multi-kernel learning on each client alone; one exchange starts it all.

    Each client runs the steps of POF-MKL with itself as the only client and updates all kernels
    with every sample. ``samples_per_round`` has no meaning here.

    Parameters
    ----------
    kernels : int (default: 51)
        N, Gaussian kernels with bandwidths from 1e-2 to 1e2.
    features : int (default: 20)
        D, random frequencies per kernel.
    regularization : float (default: 1e-3)
        lambda, weight of the squared norm of the parameters in the loss.
    precision : {"float32", "float64"} (default: "float32")
        Arithmetic of the features.
    frequency_draw : {"independent", "orthogonal"}, optional
        How random frequencies are drawn; by default ``independent`` with the paper's step size,
        else ``orthogonal``.
    **common
        Options of ``OnlineStrategy``.
    """

    method = "local-only"
    title = "local only"
    fixed = frozenset(
        {"samples_per_round", "checkpoint_every", "max_missed", "secure", "threshold", "min_cohort"}
    )
    reply_class = wire.LocalReply

    def __init__(
        self,
        *,
        kernels: int = 51,
        features: int = 20,
        regularization: float = 1e-3,
        precision: Precision = "float32",
        frequency_draw: FrequencyDraw | None = None,
        **common: Any,
    ) -> None:
        super().__init__(secure=False, **common)
        at_least("features", features, 1)
        at_least("regularization", regularization, 0.0)
        check_choice("precision", precision, ("float32", "float64"))
        self.frequency_draw = resolve_draw(frequency_draw, self.step_size)
        self.bandwidths, self.features = bandwidth_dictionary(kernels), features
        self.regularization, self.precision = regularization, precision
        self.centre = centre(self.step_size)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        return {
            **super().options(),
            "bandwidths": self.bandwidths.tolist(),
            "features": self.features,
            "regularization": self.regularization,
            "precision": self.precision,
            "frequency_draw": self.frequency_draw,
            "centre": self.centre,
        }

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

    def initial_arrays(self, dimension: int) -> ArrayRecord:
        """Send nothing."""
        return ArrayRecord([])

    def batch_size(self) -> int:
        """Return T: one exchange is enough."""
        return self._samples

    def server_state(self) -> Arrays:
        """Return nothing: there is no server state."""
        return {}

    def load_server_state(self, arrays: Arrays) -> ArrayRecord:
        """Send nothing."""
        return ArrayRecord([])

    def reply_sizes(self) -> dict[str, int]:
        """Return the number of samples."""
        return {"samples": self._samples}

    def request(self, stream: dict[str, Any]) -> wire.LocalRequest:
        """Ask every client to learn from its whole stream."""
        rate = float(1.0 / np.sqrt(self._samples))
        return wire.LocalRequest(
            **stream,
            bandwidths=self.bandwidths.astype("<f8").tobytes(),
            features=self.features,
            seed=self._run_seed,
            regularization=self.regularization,
            precision=self.precision,
            frequency_draw=self.frequency_draw,
            centre=self.centre,
            weight_rule="exponential" if self.step_size == "paper" else "adahedge",
            learning_rate=rate,
            step_size=self.step_size,
        )

    def final_metrics(self) -> dict[str, Any]:
        """Return the metrics; the clients have predicted their held-out rows already."""
        metrics = super().final_metrics()
        replies = [r for r in self._reports.values() if isinstance(r, wire.LocalReply)]
        rows = sum(reply.test_samples for reply in replies)
        if rows:
            metrics["test_mse"] = sum(reply.test_squared_error for reply in replies) / rows
        return metrics

    def sum_length(self) -> int:
        """Return 0: nothing is summed."""
        return 0

    def step(self, total: Floats, answers: int) -> ArrayRecord:
        """Send nothing."""
        return ArrayRecord([])

    def update(self, replies: list[wire.LocalReply]) -> ArrayRecord:
        """Write the history of every sample from the clients' running totals."""
        errors = np.mean([reply.squared_errors for reply in replies], axis=0)
        regrets = np.mean([reply.regrets for reply in replies], axis=0)
        self.history_ = [
            {"round": t + 1, "mse": e / (t + 1), "regret": r, "survivors": len(replies)}
            for t, (e, r) in enumerate(zip(errors.tolist(), regrets.tolist(), strict=True))
        ][:-1]
        return ArrayRecord([])
