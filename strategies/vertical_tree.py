"""The paper's sums over two trees (Algorithm 3), a level at a time; every hop passes the server.

Values travel end to end encrypted between the parties of a hop. Kept as the paper's mode and as the
target of the attacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.trees import Tree, make_trees
from fedkern_flwr.wire import vertical as wire

from .vertical_base import Collection, Need

if TYPE_CHECKING:
    from .fdskl import FDSKL

Sealed = NDArray[np.uint8]
_NOTHING = np.zeros(0, np.int32)


def kept_party(parties: Iterable[int], owner: int, seed: int) -> int:
    """Return l', the party whose b stays in an owner's phases (Algorithm 3, line 6)."""
    others = [p for p in parties if p != owner]
    return others[derive_seed(seed, "kept", owner) % len(others)]


class TreeSums:
    """Collects phases over trees; see the module and :class:`~.fdskl_steps.Steps`."""

    def __init__(self, run: FDSKL, grid: Grid, timeout: float) -> None:
        self.run, self.grid, self.timeout = run, grid, timeout

    def collect(self, wanted: Collection) -> None:
        """Let every owner have its phases: an exchange per level and one for the root.

        Raises
        ------
        CohortError, LostStateError
        """
        for owner, upto in wanted.need.upto.items():
            self.run.collection += 1
            part = Collection(
                self.run.collection,
                Need(wanted.need.rows, {owner: upto}),
                {owner: wanted.known[owner]},
                np.array([len(wanted.need.rows)], np.int32),
            )
            self._sum(owner, part)
            self.run.note_known(part, owner)

    def trees(self, owner: int) -> tuple[int, Tree, Tree]:
        """Return l' and the trees of an owner, the same in all of the run."""
        parties, seed = self.run.plan_.parties, self.run.run_seed
        kept = kept_party(parties, owner, seed)
        return kept, *make_trees(parties, owner, kept, derive_seed(seed, "trees", owner))

    def _sum(self, owner: int, wanted: Collection) -> None:
        kept, *trees = self.trees(owner)
        sent: dict[tuple[int, int], Sealed] = {}  # (tree, sender) -> what it sealed
        for level in range(max(tree.depth for tree in trees)):
            acting = [set(tree.levels[level]) if level < tree.depth else set() for tree in trees]
            for party, sealed in self._hop(
                sorted(acting[0] | acting[1]), owner, kept, trees, acting, sent, wanted
            ):
                for tree in (0, 1):
                    if party in acting[tree]:
                        sent[tree, party] = sealed[tree]
        list(self._hop([owner], owner, kept, trees, [{owner}, {owner}], sent, wanted))

    def _hop(
        self,
        parties: list[int],
        owner: int,
        kept: int,
        trees: list[Tree],
        acting: list[set[int]],
        sent: dict[tuple[int, int], Sealed],
        wanted: Collection,
    ) -> Iterable[tuple[int, tuple[Sealed, ...]]]:
        run, waiting = self.run, set(parties)
        for _ in range(run.attempts):
            run.next_step()
            requests = {}
            for party in sorted(waiting):
                children = [
                    trees[k].children.get(party, ()) if party in acting[k] else () for k in (0, 1)
                ]
                parents = [
                    trees[k].parent.get(party, -1) if party in acting[k] else -1 for k in (0, 1)
                ]
                received = [sent[k, child] for k in (0, 1) for child in children[k]]
                requests[party] = wire.HopsRequest(
                    **run.step_fields(party, 0),
                    **run.settings(),
                    **run.phase_fields(party, wanted),
                    receiver=owner,
                    kept=kept,
                    firsts=np.array(children[0], np.int32),
                    seconds=np.array(children[1], np.int32),
                    parents=np.array(parents, np.int32),
                    received=tuple(received),
                )
            replies = run.ask_parties(self.grid, requests, wire.HopsReply, self.timeout)
            for party, reply in replies.items():
                waiting.discard(party)
                yield party, reply.sealed
            if not waiting:
                return
        raise run.gave_up(wire.HopsReply.phase)
