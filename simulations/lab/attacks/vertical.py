"""What the server and every party of FDSKL see of a recorded run.

A viewer is the server, which sees all messages, or a party, which sees those that it is sent, opens
what is sealed or padded for it and has its own columns and secrets:

    ========  =======  ==========================================================================
    topology  viewer   what it has of the others
    ========  =======  ==========================================================================
    star      active   phases omega^T x + b modulo 2 pi of the others together, per row and
                       direction: :meth:`VerticalRun.phases`
    star      passive  nothing
    star      server   masked vectors: :meth:`VerticalRun.masked`
    tree      active   these phases, and what a worker has
    tree      worker   o + b of the parties below it in tree T1, as real numbers, and b of those
                       below it in T2: :meth:`VerticalRun.hops`
    tree      server   sealed bytes
    ========  =======  ==========================================================================

With ``frequencies="shared"`` everybody knows omega as well. What can be made of all that is in
:mod:`.vertical_inference`.

Source: Gu et al., "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data",
Algorithm 3, and the messages of :mod:`fedkern_flwr.vertical.messages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.kernels.frequencies import draw_directions, public_frequency_seed
from fedkern_flwr.secure_sum.envelope import unseal_message
from fedkern_flwr.vertical import messages as wire

from ...engines import Transcript
from .gradient_inversion import Floats
from .seen import SeenRun
from .vertical_insiders import VerticalInsiders


@dataclass(frozen=True)
class OthersPhases:
    """What an active party has of the rows of all others.

    Attributes
    ----------
    viewer : int
    rows : ndarray, shape (n,)
        Positions among the viewer's announced rows.
    angles : ndarray, shape (n, R)
        omega^T x + b modulo 2 pi of the others, in [0, 2 pi): its own part is taken away.
    noise : float
        Standard deviation of what rounding did to them.
    directions : ndarray, shape (R, d), or None
        omega of the others' columns, where everybody knows it.
    """

    viewer: int
    rows: NDArray[np.int32]
    angles: Floats
    noise: float
    directions: Floats | None


@dataclass(frozen=True)
class Hop:
    """A message within a tree, opened by the party that it was sealed for.

    Attributes
    ----------
    viewer, sender, owner : int
        Who received it, from whom, and the root of the tree.
    tree : {1, 2}
    parties : frozenset of int
        Whose values are in the sum; trees are public.
    rows : ndarray, shape (n,)
        Positions among the viewer's announced rows.
    values : ndarray, shape (n, R) or (R,)
        Sums of o + b in T1, of b in T2.
    directions : ndarray, shape (R, d), or None
        omega of the columns of ``parties``, where everybody knows it.
    """

    viewer: int
    sender: int
    owner: int
    tree: int
    parties: frozenset[int]
    rows: NDArray[np.int32]
    values: Floats
    directions: Floats | None


class VerticalRun(SeenRun):
    """A recorded run of FDSKL: messages, what each party can open of them, and the truth.

    Parameters
    ----------
    transcript : Transcript
        All messages.
    insiders : VerticalInsiders
        Who watched the same run.

    Attributes
    ----------
    settings : PhasesRequest
        The first: kernel, width, bits, topology, public seed.
    """

    name, kinds, opening = "FDSKL", wire, wire.PhasesRequest
    insiders: VerticalInsiders

    def __init__(self, transcript: Transcript, insiders: VerticalInsiders) -> None:
        super().__init__(transcript, insiders)
        self._matched: dict[int, dict[int, NDArray[np.int32]]] = {}
        for passed in self.messages:
            if isinstance(passed.message, wire.PhasesRequest) and len(passed.message.rows):
                rows = self._matched.setdefault(passed.message.collection, {})
                rows[passed.partition] = passed.message.rows

    # -- the truth

    def others(self, viewer: int) -> tuple[int, ...]:
        """Return the other parties with columns."""
        return tuple(p for p, about in self.parties.items() if about.features and p != viewer)

    def features(self, parties: Sequence[int], viewer: int, rows: NDArray[np.int32]) -> Floats:
        """Return the columns of parties, one after the other, at rows named as by the viewer."""
        parts = []
        for party in parties:
            places: dict[int, int] = {}
            for of in self._matched.values():
                places |= zip(of[viewer].tolist(), of[party].tolist(), strict=True)
            insider = self.insiders.parties[party]
            order = insider.kept.arrays["order"]
            parts.append(
                insider.client.table.features_of(order[[places[row] for row in rows.tolist()]])
            )
        return np.hstack(parts)

    def own_directions(self, party: int, owner: int, count: int) -> tuple[Floats, Floats]:
        """Return omega and b of a party, from its secret: shapes (R, d) and (R,)."""
        found: tuple[Floats, Floats] = (
            self.insiders.parties[party].again().directions(owner, 0, count)
        )
        return found

    def public_directions(self, parties: Sequence[int], owner: int, count: int) -> Floats | None:
        """Return omega of the columns of parties if anybody can draw it, else None."""
        settings = self.settings
        if settings.public_seed < 0:
            return None
        return np.hstack(
            [
                draw_directions(
                    public_frequency_seed(settings.public_seed, party),
                    owner,
                    count,
                    self.parties[party].features,
                    settings.kernel,
                    settings.gamma,
                )
                for party in parties
            ]
        )

    # -- what a party has

    def phases(self, viewer: int) -> OthersPhases | None:
        """Return what a party received in all as owner, without its own part.

        None for a party that received no phases; of rows that it received several times the last.
        """
        insider = self.insiders.parties[viewer]
        if not insider.phases:
            return None
        count = max(phases.shape[1] for _, phases in insider.phases)
        whole = [(rows, phases) for rows, phases in insider.phases if phases.shape[1] == count]
        rows, first = np.unique(np.concatenate([r for r, _ in whole])[::-1], return_index=True)
        phases = np.concatenate([p for _, p in whole])[::-1][first]
        omega, offsets = self.own_directions(viewer, viewer, count)
        own = insider.again().features_at(rows) @ omega.T + offsets
        turn = 2.0 * np.pi
        step = turn / 2.0**self.settings.phase_bits
        return OthersPhases(
            viewer=viewer,
            rows=rows,
            angles=np.asarray((phases * step - own) % turn),
            noise=float(step * np.sqrt(len(self.parties) / 12.0)),
            directions=self.public_directions(self.others(viewer), viewer, count),
        )

    def hops(self, viewer: int) -> Iterator[Hop]:
        """Yield what was sealed for a party on its way through the trees."""
        below: dict[tuple[int, int, int], frozenset[int]] = {}
        for passed in self.messages:
            request = passed.message
            if not isinstance(request, wire.HopsRequest):
                continue
            owner, received = request.receiver, list(request.received)
            for tree, children in ((1, request.firsts.tolist()), (2, request.seconds.tolist())):
                acts = passed.partition == owner or request.parents[tree - 1] >= 0
                if acts:
                    key = (request.collection, tree, passed.partition)
                    leaves = [below[request.collection, tree, child] for child in children]
                    below[key] = frozenset({passed.partition}).union(*leaves)
                for child in children:
                    sealed = received.pop(0).tobytes()
                    if passed.partition == viewer:
                        yield self._open(request, viewer, child, tree, below, sealed)

    def _open(
        self,
        request: wire.HopsRequest,
        viewer: int,
        child: int,
        tree: int,
        below: dict[tuple[int, int, int], frozenset[int]],
        sealed: bytes,
    ) -> Hop:
        place = ("hops", request.session, request.collection, tree - 1, child, viewer)
        secret = self.insiders.parties[viewer].secrets[child]
        values = np.frombuffer(unseal_message(secret, sealed, *place), "<f8")
        parties = below[request.collection, tree, child]
        count = int(request.upto[0])
        return Hop(
            viewer=viewer,
            sender=child,
            owner=request.receiver,
            tree=tree,
            parties=parties,
            rows=request.rows,
            values=values.reshape(len(request.rows), count) if tree == 1 else values,
            directions=self.public_directions(sorted(parties), request.receiver, count),
        )
