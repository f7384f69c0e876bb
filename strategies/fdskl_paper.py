"""The paper's sums over two trees (Algorithm 3), a level at a time; every hop passes the server.

Values travel end to end encrypted between the parties of a hop. Kept as the paper's mode and as the
target of the attacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.method import Answers, Steps
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.vertical import messages as wire
from fedkern_flwr.vertical.trees import Tree, make_trees

from .fdskl_phases import Collection, Need, Phases

Sealed = NDArray[np.uint8]


def kept_party(parties: Iterable[int], owner: int, seed: int) -> int:
    """Return l', the party whose b stays in an owner's phases (Algorithm 3, line 6)."""
    others = [p for p in parties if p != owner]
    return others[derive_seed(seed, "kept", owner) % len(others)]


class TreePhases(Phases):
    """Phases that are collected over trees: an exchange per level and one for the root."""

    bits, ends = 64, False

    def trees(self, owner: int) -> tuple[int, tuple[Tree, Tree]]:
        """Return l' and the trees of an owner, the same in all of the run."""
        parties, seed = self.plan.parties, self.seed
        kept = kept_party(parties, owner, seed)
        return kept, make_trees(parties, owner, kept, derive_seed(seed, "trees", owner))

    def _advance(self, need: Need | None, work: Mapping[str, Any]) -> Steps:
        for part in self.collections(need) if need is not None else ():
            rows = part.need.rows
            for owner, upto in part.need.upto.items():
                wanted = self.collection(rows, {owner: upto}, max(1, len(rows)))
                yield from self._sum(owner, wanted)
                self.note(wanted, owner)
        if work:
            yield from self.step(None, **work)

    def _sum(self, owner: int, wanted: Collection) -> Steps:
        kept, trees = self.trees(owner)
        sent: dict[tuple[int, int], Sealed] = {}  # (tree, sender) -> what it sealed
        for level in range(max(tree.depth for tree in trees)):
            acting = [set(tree.levels[level]) if level < tree.depth else set() for tree in trees]
            yield from self._hop(owner, kept, trees, acting, sent, wanted)
        yield from self._hop(owner, kept, trees, [{owner}, {owner}], sent, wanted)

    def _hop(
        self,
        owner: int,
        kept: int,
        trees: tuple[Tree, Tree],
        acting: Sequence[set[int]],
        sent: dict[tuple[int, int], Sealed],
        wanted: Collection,
    ) -> Steps:
        requests = {}
        for party in sorted(acting[0] | acting[1]):
            acts = [party in acting[k] for k in (0, 1)]
            children = [trees[k].children.get(party, ()) if acts[k] else () for k in (0, 1)]
            parents = [trees[k].parent.get(party, -1) if acts[k] else -1 for k in (0, 1)]
            requests[party] = wire.HopsRequest(
                **self.fields(party, wanted),
                receiver=owner,
                kept=kept,
                firsts=np.array(children[0], np.int32),
                seconds=np.array(children[1], np.int32),
                parents=np.array(parents, np.int32),
                received=tuple(sent[k, child] for k in (0, 1) for child in children[k]),
            )
        answers: Answers = yield from self.ask(requests, wire.HopsReply)
        for party, reply in answers.replies.items():
            for k, sealed in enumerate(reply.sealed):
                if party in acting[k]:
                    sent[k, party] = sealed
