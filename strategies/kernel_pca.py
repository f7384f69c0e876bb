"""Kernel principal component analysis of rows that the clients keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernel_pca import MOMENTS, REST, principal, shapes
from fedkern_flwr.method import Ask, PrivateMethod, Rounds, option
from fedkern_flwr.planning import allowance
from fedkern_flwr.secure_sum.membership import default_threshold
from fedkern_flwr.wire import DescribeReply

if TYPE_CHECKING:
    from fedkern_flwr.fitted import FittedModel

_FEATURES = 50  # if the nodes allow it


class KernelPCA(PrivateMethod):
    """Kernel principal components by random features, the same as of pooled rows.

    The clients sum the moments of their features; each projects its own rows, which stay there.
    """

    method, title = "kernel-pca", "Kernel PCA"
    client = "fedkern_flwr.clients:KernelPCAClient"
    shows: ClassVar[Mapping[str, str]] = {
        "explained": "share of the variance explained",
        "test_explained": "  of held-out rows",
        "rows": "rows",
    }
    labels_of_row = 0
    left_whole = True

    components: int = option(2, "Principal components.", least=1)
    features: int | None = option(
        None,
        "Random frequencies, D (default: 50, within the release limits).",
        least=1,
    )
    bandwidth: float | None = option(
        None, "Width s of exp(-d^2 / (2 s^2)) (default: sqrt(columns / 2)).", above=0.0
    )

    def chosen_features(self, parties: Sequence[DescribeReply]) -> int:
        """Return D: the moments of 2 D features are 1 + 2 D + D (2 D + 1) numbers."""
        if self.features is not None:
            return self.features
        fewest = self.threshold or default_threshold(len(parties))
        allowed = allowance(parties, labels=self.labels_of_row, threshold=fewest)
        if not allowed.planned or self.budget is not None:
            return _FEATURES
        fits = allowed.square(1.0, taken=1.0) // 2
        found = max(1, -(-self.components // 2), min(_FEATURES, fits))
        self.note_plan(f"features {found}", allowed)
        return found

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        features, columns = self.chosen_features(parties), parties[0].features
        width = 2 * features
        if self.components > width:
            raise OptionError(
                f"{self.components} components of {width} features", code="FK-COMPONENTS-MANY"
            )
        bandwidth = float(np.sqrt(columns / 2.0)) if self.bandwidth is None else self.bandwidth
        kernel = {"bandwidth": bandwidth, "features": features, "seed": self.run_seed}
        self.planned = 4
        total = yield MOMENTS(shapes(width), **kernel)
        mean, components, shares = principal(total, self.components)
        self.model_ = {"mean": mean, "components": components, "shares": shares}
        model = {**kernel, "mean": mean, "components": components}
        self._kernel = {**kernel, "columns": columns}
        metrics = {"rows": int(np.rint(total["rows"])), "explained": float(shares.sum())}
        yield Ask("project", model, least=1)  # nodes that dropped out are not needed
        if any(party.test_rows for party in parties):
            left = yield REST({"left": (), "all": ()}, **model)
            if left["all"] > 0.0:
                metrics["test_explained"] = float(1.0 - left["left"] / left["all"])
        return metrics

    def fitted(self, classes: Sequence[Any] = ()) -> FittedModel:
        from fedkern_flwr.fitted import (
            FittedModel,  # nodes that import this module for their client do not need it
        )

        self.check_run()
        return FittedModel.of_server(self.method, "components", self.model_, self._kernel, ())
