"""The client of kernel PCA: sums moments of its rows, writes their projections."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernel_pca import MOMENTS, REST, moments
from fedkern_flwr.kernels.product import features_of
from fedkern_flwr.node.client import answers
from fedkern_flwr.node.method_client import MethodClient, contributes

Floats = NDArray[np.float64]
_FAR = 1e100


class KernelPCAClient(MethodClient):
    """Client of :class:`~fedkern_flwr.strategies.KernelPCA`.

    It writes ``projections.csv``, a column per component, into its folder for results, and plots
    the first two components.
    """

    labels_of_row = 0
    pinned = ("bandwidth", "features", "seed")

    @contributes(MOMENTS)
    def add_moments(self, **kernel: Any) -> dict[str, Any]:
        return moments(features_of(self.x, **kernel))

    @contributes(REST)
    def add_rest(self, mean: Floats, components: Floats, **kernel: Any) -> dict[str, Any]:
        """Return the variance of held-out rows, and the part not explained."""
        z = features_of(self.x_test, **kernel) - mean
        # for any mean and components
        whole = np.nan_to_num(np.vecdot(z, z), nan=4.0).clip(0.0, 4.0)
        kept = np.nan_to_num(((z @ components.T) ** 2).sum(axis=1)).clip(0.0, whole)
        return {"left": float((whole - kept).sum()), "all": float(whole.sum())}

    @answers("project")
    def project(self, mean: Floats, components: Floats, **kernel: Any) -> None:
        """Project the rows, and write and plot the result here."""
        scores = (features_of(self.x, **kernel) - mean) @ components.T
        scores = np.nan_to_num(scores).clip(-_FAR, _FAR)  # an error of the plot would show
        names = [f"component {k + 1}" for k in range(len(components))]
        self.write_rows("projections", names, scores)
        self.scatter("projections", scores)
