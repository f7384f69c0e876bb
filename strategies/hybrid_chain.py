"""The paper's chain protocol (Algorithms 1 and 2): partial products pass from party to party.

With L centres, a product K^T K p takes L + 1 exchanges on the way to the hospital, which begins the
way back in its reply, and L on the way back. All hospitals' chains move in the same exchanges. What
it shows, and what was corrected, is said at the clients' side, :mod:`fedkern_flwr.clients.chain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.wire import hybrid as wire

from .hybrid_system import Floats, HybridSystem


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

    @property
    def ended(self) -> bool:
        return self.done == len(self.hops)


class ChainSystem(HybridSystem):
    """See the module and :class:`~fedkern_flwr.strategies.hybrid_system.HybridSystem`."""

    def open(self) -> None:
        """Tell all parties rows, landmarks and widths (one exchange)."""
        self.check_one_output(self.run.outputs_)
        self.tell_everybody(wire.DistancesRequest, wire.DistancesReply)

    def gradient(self, coefficients: Floats) -> Floats:
        """Return K^T (K alpha - y), shape (m, 1) (Algorithm 1, lines 23-53)."""
        return self._pass("start", coefficients)

    def products(self, directions: Floats, *, labels: bool = False) -> tuple[Floats, Floats]:
        """Pass one direction along the chains, forth and back."""
        return directions[:, :0], self._pass("product", directions)

    def predict(self, coefficients: Floats) -> None:
        """Have each hospital predict its held-out rows (passes forward)."""
        self._pass("evaluate", coefficients)

    def _pass(self, purpose: Literal["start", "product", "evaluate"], vector: Floats) -> Floats:
        run, total = self.run, np.zeros((self.run.landmarks, 1))
        chains = {h: self._chain(h, purpose) for h in self.plan.hospitals}
        failed = 0
        while waiting := {h: c for h, c in chains.items() if not c.ended}:
            run.next_step()
            by_party: dict[int, list[int]] = {}
            for h, chain in waiting.items():
                by_party.setdefault(chain.hops[chain.done][0], []).append(h)
            requests = {
                p: self._request(purpose, vector, hospitals, chains)
                for p, hospitals in sorted(by_party.items())
            }
            replies = run.ask(self.grid, requests, wire.ChainReply, self.timeout)
            for p, reply in replies.items():
                if len(reply.sent) != len(by_party[p]):
                    raise ProtocolError("hops are missing in its reply", party=f"partition {p}")
                for h, sent in zip(by_party[p], reply.sent, strict=True):
                    chains[h].carried = sent
                    chains[h].done += 1
            failed = 0 if len(replies) == len(requests) else failed + 1
            if failed == run.attempts:
                raise run.gave_up("hybrid-chain")
        if purpose != "evaluate":
            for h, chain in chains.items():
                if chain.carried.size != 8 * len(total):
                    raise ProtocolError(
                        "a product of the wrong size", party=f"partition {chain.hops[-1][0]}"
                    )
                part = np.frombuffer(chain.carried.tobytes(), "<f8")
                if not np.isfinite(part).all():
                    raise ProtocolError("a product that is not finite", party=f"partition {h}")
                total[:, 0] += part
        return total

    def _chain(self, hospital: int, purpose: str) -> _Chain:
        ward = self.plan.wards[hospital]
        if purpose == "evaluate" and not ward.test:
            return _Chain([])
        forth = [*ward.centres, hospital]
        back = [] if purpose == "evaluate" else list(reversed(ward.centres))
        way = [*forth, *back]
        hops = []
        for k, p in enumerate(way):
            before = way[k - 1] if k else -1
            after = way[k + 1] if k + 1 < len(way) else -1
            hops.append((p, before, after, k >= len(forth)))
        return _Chain(hops)

    def _request(
        self, purpose: str, vector: Floats, hospitals: list[int], chains: dict[int, _Chain]
    ) -> wire.ChainRequest:
        wards = [self.plan.wards[h] for h in hospitals]
        hops = [chains[h].hops[chains[h].done] for h in hospitals]
        test = purpose == "evaluate"

        def index(values: list[int]) -> NDArray[np.int32]:
            return np.array(values, np.int32)

        return wire.ChainRequest(
            session=self.run.session,
            round=self.run.step,
            hospitals=index(hospitals),
            trains=index([w.train for w in wards]),
            starts=index([w.train if test else 0 for w in wards]),
            stops=index([w.total if test else w.train for w in wards]),
            purpose=purpose,
            froms=index([before for _, before, _, _ in hops]),
            tos=index([after for _, _, after, _ in hops]),
            backwards=index([int(back) for *_, back in hops]),
            vector=vector,
            received=tuple(chains[h].carried for h in hospitals),
        )
