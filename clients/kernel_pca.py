"""The client of kernel PCA: moments of its rows for the sum, projections for its own folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.kernel_pca import features_of, moments
from fedkern_flwr.method import MethodClient, answers, contributes

Floats = NDArray[np.float64]


class KernelPCAClient(MethodClient):
    """Client of :class:`~fedkern_flwr.strategies.KernelPCA`.

    Parameters
    ----------
    *table
        See :class:`~fedkern_flwr.method.MethodClient`.
    projections : path, optional
        CSV file for the projections of its rows: row or id, then a column per component.
    on_projected : callable, optional
        Called with the projections, shape (n, k), such as to draw them.
    **common
        Options of :class:`~fedkern_flwr.method.MethodClient`.
    """

    labels_of_row = 0

    def __init__(
        self,
        *table: Any,
        projections: str | Path | None = None,
        on_projected: Callable[[Floats], object] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(*table, **common)
        self.projections = None if projections is None else Path(projections)
        self.on_projected = on_projected

    @contributes("moments", bound=1.0)
    def add_moments(self, **kernel: Any) -> dict[str, Any]:
        """Return number, sum and second moments of the features of its rows."""
        return moments(features_of(self.x, **kernel))

    @contributes("rest", bound=4.0, held_out=True)
    def add_rest(self, mean: Floats, components: Floats, **kernel: Any) -> dict[str, Any]:
        """Return the variance of held-out rows, and how much of it the components leave."""
        z = features_of(self.x_test, **kernel) - mean
        whole = float(np.vecdot(z, z).sum())
        return {"left": whole - float(((z @ components.T) ** 2).sum()), "all": whole}

    @answers("project")
    def project(self, mean: Floats, components: Floats, **kernel: Any) -> None:
        """Project its own rows, and write them where its owner wants them."""
        scores = (features_of(self.x, **kernel) - mean) @ components.T
        if self.projections is not None:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            names = range(len(scores)) if self.ids is None else self.ids
            writer.writerow(["row", *(f"component {k + 1}" for k in range(scores.shape[1]))])
            writer.writerows([n, *row] for n, row in zip(names, scores.tolist(), strict=True))
            write_atomically(self.projections, text.getvalue().encode(), private=True)
        if self.on_projected is not None:
            self.on_projected(scores)
