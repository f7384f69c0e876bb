"""The paper's protocols of FedCG, kept for parity with it and as the target of the attacks.

*Naive* (section 2.2): every party shows its kernel block to the server. With the landmarks known,
which the server is when it shares them out by a common seed, it computes every feature of every row
from the distances to more landmarks than features; without them, all distances between rows.

*Chain* (Algorithms 1 and 2): partial products pass from party to party. With L centres, a product
K^T K p takes L + 1 exchanges on the way to the hospital, which begins the way back in its reply,
and L on the way back. All hospitals' chains move in the same exchanges. What it shows, and what was
corrected, is said at the clients' side, :mod:`fedkern_flwr.clients.fed_cg_paper`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.method import Ask, Steps

from .fed_cg_system import Floats, HybridSystem


class NaiveSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.fed_cg_system.HybridSystem`."""

    def open(self) -> Steps:
        """Collect all kernel blocks and labels, multiply the blocks (one exchange)."""
        replies = yield from self.tell_everybody(wire.BlocksRequest, wire.BlocksReply)
        self._kernels, targets = {}, []
        for h, ward in self.plan.wards.items():
            kernel = np.ones((ward.total, self.landmarks))
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
            if replies[h].targets.shape != (ward.train, self.parties[h].outputs):
                raise ProtocolError("labels of another shape", party=f"partition {h}")
            targets.append(replies[h].targets)
        parts = [self._kernels[h][: w.train] for h, w in self.plan.wards.items()]
        self._kernel, self._targets = np.concatenate(parts), np.concatenate(targets)

    def equations(self) -> Steps:
        """Compute the normal equations here."""
        yield from ()
        return self._kernel.T @ self._kernel, self._kernel.T @ self._targets

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Compute the products here."""
        yield from ()
        right = self._kernel.T @ self._targets
        product = self._kernel.T @ (self._kernel @ directions)
        return right if labels else right[:, :0], product

    def predict(self, coefficients: Floats) -> Steps:
        """Predict the held-out rows here."""
        yield from ()
        wards = self.plan.wards
        return {h: self._kernels[h][ward.train :] @ coefficients for h, ward in wards.items()}


@dataclass
class _Chain:
    """The way of one hospital's partial product.

    Attributes
    ----------
    hops : list of (partition, partition before, partition after, whether on the way back)
    done : int
        Hops made.
    carried : ndarray of uint8
        What the last party sealed for the next.
    """

    hops: list[tuple[int, int, int, bool]]
    done: int = 0
    carried: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))


class ChainSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.fed_cg_system.HybridSystem`."""

    def open(self) -> Steps:
        """Tell all parties rows, landmarks and widths (one exchange)."""
        outputs = self.parties[self.plan.hospitals[0]].outputs
        if outputs != 1:
            raise OptionError(
                f"protocol {self.protocol!r} solves for one output, the labels make {outputs}",
                remedy="use protocol secure or naive",
            )
        yield from self.tell_everybody(wire.DistancesRequest, wire.DistancesReply)

    def begin(self, probes: Floats, start: Floats) -> Steps:
        """Return K^T y by the gradient K^T (K a - y) at the start (Algorithm 1, lines 23-53)."""
        gradient = yield from self._pass("start", start)
        product = (yield from self._pass("product", start)) if start.any() else start
        return product - gradient, probes, product

    def products(self, directions: Floats, *, labels: bool = False) -> Steps:
        """Pass one direction along the chains, forth and back."""
        product = yield from self._pass("product", directions)
        return directions[:, :0], product

    def predict(self, coefficients: Floats) -> Steps:
        """Have each hospital predict its held-out rows (passes forward)."""
        yield from self._pass("evaluate", coefficients)
        return {}

    def _pass(self, purpose: Literal["start", "product", "evaluate"], vector: Floats) -> Steps:
        total = np.zeros((self.landmarks, 1))
        chains = {h: _Chain(self._hops(h, purpose)) for h in self.plan.hospitals}
        while waiting := {h: c for h, c in chains.items() if c.done < len(c.hops)}:
            by_party: dict[int, list[int]] = {}
            for h, chain in waiting.items():
                by_party.setdefault(chain.hops[chain.done][0], []).append(h)
            requests = {
                p: self._request(purpose, vector, {h: chains[h] for h in hospitals})
                for p, hospitals in sorted(by_party.items())
            }
            answers = yield Ask(requests, reply=wire.ChainReply)
            for p, reply in answers.replies.items():
                if len(reply.sent) != len(by_party[p]):
                    raise ProtocolError("hops are missing in its reply", party=f"partition {p}")
                for h, sent in zip(by_party[p], reply.sent, strict=True):
                    chains[h].carried = sent
                    chains[h].done += 1
        for h, chain in chains.items() if purpose != "evaluate" else ():
            if chain.carried.size != 8 * len(total):
                raise ProtocolError(
                    "a product of the wrong size", party=f"partition {chain.hops[-1][0]}"
                )
            part = np.frombuffer(chain.carried.tobytes(), "<f8")
            if not np.isfinite(part).all():
                raise ProtocolError("a product that is not finite", party=f"partition {h}")
            total[:, 0] += part
        return total

    def _hops(self, hospital: int, purpose: str) -> list[tuple[int, int, int, bool]]:
        ward = self.plan.wards[hospital]
        if purpose == "evaluate" and not ward.test:
            return []
        forth = [*ward.centres, hospital]
        way = forth if purpose == "evaluate" else [*forth, *reversed(ward.centres)]
        return [
            (p, before, after, k >= len(forth))
            for k, (before, p, after) in enumerate(
                zip([-1, *way[:-1]], way, [*way[1:], -1], strict=True)
            )
        ]

    def _request(
        self, purpose: str, vector: Floats, chains: dict[int, _Chain]
    ) -> wire.ChainRequest:
        wards = [self.plan.wards[h] for h in chains]
        _, froms, tos, backwards = zip(*(c.hops[c.done] for c in chains.values()), strict=True)
        test = purpose == "evaluate"
        return wire.ChainRequest(
            hospitals=np.array(list(chains), np.int32),
            trains=np.array([w.train for w in wards], np.int32),
            starts=np.array([w.train if test else 0 for w in wards], np.int32),
            stops=np.array([w.total if test else w.train for w in wards], np.int32),
            purpose=purpose,
            froms=np.array(froms, np.int32),
            tos=np.array(tos, np.int32),
            backwards=np.array(backwards, np.int32),
            vector=vector,
            received=tuple(chain.carried for chain in chains.values()),
        )
