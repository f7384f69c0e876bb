"""The paper's naive protocol (section 2.2): every party shows its kernel block to the server.

With the landmarks known, which the server is when it shares them out by a common seed, it computes
every feature of every row from the distances to more landmarks than features; without them, all
distances between rows. Kept for parity with the paper and as the target of the attacks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.wire import hybrid as wire

from .hybrid_system import Floats, HybridSystem


class NaiveSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.hybrid_system.HybridSystem`."""

    def open(self) -> None:
        """Collect all kernel blocks and labels, multiply the blocks (one exchange)."""
        run = self.run
        replies = self.tell_everybody(wire.BlocksRequest, wire.BlocksReply)
        self._kernels, targets = {}, []
        for h, ward in self.plan.wards.items():
            kernel = np.ones((ward.total, run.landmarks))
            for p in sorted(ward.rows):
                asked = [w.partition for w in self.plan.wards.values() if p in w.rows]
                if len(replies[p].blocks) != len(asked):
                    raise ProtocolError("kernel blocks are missing", party=f"partition {p}")
                block = replies[p].blocks[asked.index(h)]
                if block.shape != kernel.shape:
                    raise ProtocolError(
                        f"a kernel block of shape {block.shape} instead of {kernel.shape}",
                        party=f"partition {p}",
                    )
                kernel *= block
            self._kernels[h] = kernel
            if replies[h].targets.shape != (ward.train, run.outputs_):
                raise ProtocolError("labels of another shape", party=f"partition {h}")
            targets.append(replies[h].targets)
        parts = [self._kernels[h][: w.train] for h, w in self.plan.wards.items()]
        self._kernel, self._targets = np.concatenate(parts), np.concatenate(targets)

    def equations(self) -> tuple[Floats, Floats]:
        """Compute the normal equations here."""
        return self._kernel.T @ self._kernel, self._kernel.T @ self._targets

    def products(self, directions: Floats, *, labels: bool = False) -> tuple[Floats, Floats]:
        """Compute the products here."""
        right = self._kernel.T @ self._targets
        product = self._kernel.T @ (self._kernel @ directions)
        return right if labels else right[:, :0], product

    def predictions(self, coefficients: Floats) -> Mapping[int, Floats]:
        """Predict the held-out rows here."""
        return {
            h: self._kernels[h][ward.train :] @ coefficients for h, ward in self.plan.wards.items()
        }
