"""Local only: every client learns by itself, the yardstick for federation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.nodes import Arrays
from fedkern_flwr.online import messages as wire

from .kernel_online import DictionaryStrategy
from .online import Floats


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
