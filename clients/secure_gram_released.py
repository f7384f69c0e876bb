"""What a node of Secure Gram has released of its rows, and what it therefore refuses."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.secure_sum.party_state import PartyState


@dataclass
class Released:
    """What a node remembers of a release, in its state and, with a ``state_dir``, on disk.

    Attributes
    ----------
    opened : dict
        Name -> [cohort, number] of the sums that it has helped to open.
    survivors : list of int
        Nodes whose rows are in the item counts.
    counted : dict
        "cohort/number" of a sum of matrices -> the nodes whose rows are to be in it, a bit each.
    asked : dict
        Name -> digest of what was asked for in sums that open by themselves when all contribute.
    """

    opened: dict[str, list[int]] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    counted: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)

    @classmethod
    def unpack(cls, data: bytes) -> Released:
        """Rebuild from :meth:`pack`; an empty one from nothing."""
        return cls(**json.loads(data)) if data else cls()

    def pack(self) -> bytes:
        """Return as bytes."""
        return json.dumps(vars(self)).encode()

    def check_survivors(
        self, name: str, place: tuple[int, int], state: PartyState, party: str
    ) -> None:
        """Refuse to open a matrix whose difference to the counts is one node."""
        cohort = state.cohorts[place[0]]
        alive = cohort.unpack(state.open[place].alive)
        if name == wire.COUNTS_SUM:
            if self.counted:
                raise disagreement("item counts come before the matrix", party)
            self.survivors = sorted(alive)
        elif name == wire.GRAM_SUM:
            counted = cohort.unpack(bytes.fromhex(self.counted["{}/{}".format(*place)]))
            summed = alive.intersection(counted)
            if len(summed) < cohort.threshold:
                raise disagreement(
                    f"{len(summed)} nodes count, at least {cohort.threshold} must", party
                )
            self.check_summed(summed, party)

    def check_summed(self, summed: Collection[int], party: str) -> None:
        """Refuse nodes of a matrix from which those of the item counts differ by one, or more."""
        if len(set(self.survivors).difference(summed)) == 1:
            raise disagreement("a single node dropped out after the item counts", party)
        counted = wire.COUNTS_SUM in self.opened or wire.COUNTS_SUM in self.asked
        if counted and not set(summed) <= set(self.survivors):
            raise disagreement("nodes count that are not in the item counts", party)

    def ask_once(self, what: str, digest: str, *, self_masks: bool, party: str) -> None:
        """Refuse a second sum of the same rows: other than one that was asked for, or open."""
        before = self_masks or what in self.opened
        if before or self.asked.setdefault(what, digest) != digest:
            raise disagreement(f"a second {what} of the same rows in one release", party)


def disagreement(problem: str, party: str, remedy: str = "") -> ProtocolError:
    """Return the error of a node that is asked for what its own release would not ask for."""
    remedy = remedy or "run the same release of fedkern-flwr on both sides"
    return ProtocolError(problem, remedy=remedy, party=party)
