"""The server's side of one sum up to its survivors: adds what arrives, declares who is in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import SumError
from ..wire.sums import (
    Ballot,
    Order,
    Unmask,
    Upload,
    Vote,
)
from .enclosed import Enclosures
from .encoding import Encoding
from .identity import SIGNATURE_BYTES
from .keys import sum_label
from .membership import Cohort
from .party_state import order_terms
from .votes import votes_needed


@dataclass
class DeclaredSum:
    """A sum from its order to the requests that unmask it.

    Attributes
    ----------
    order : Order
        As sent, but for the fields that differ by party.
    cohort : Cohort
    session : str
    cipher : str
    voting : bool
        Whether all parties have pinned identities, and so vote for the survivors.
    survivors : tuple of int
        Declared by :meth:`declare`, empty before.
    backups : bool
        Whether the seeds of pairs are shared too.
    suspects : list of int
        Parties whose masks do not fit those of most others, for which the sum was aborted.
    """

    order: Order
    cohort: Cohort
    session: str
    cipher: str
    voting: bool = False
    survivors: tuple[int, ...] = ()
    suspects: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        order = self.order
        self.encoding = Encoding.of(order)
        self.label = sum_label(self.session, order.cohort, order.index, order_terms(order))
        self._vector = np.zeros(order.length, self.encoding.dtype)
        self.backups = order.self_masks and self.cohort.backs_up(self._vector.nbytes)
        self.enclosed = Enclosures(self.cohort, double=order.self_masks)
        self.repeated = False  # whether parties are asked to send once more what they have sent
        self._votes: dict[int, bytes] = {}
        self._conflicts: Counter[int] = Counter()  # pairs that committed to different seeds

    @property
    def uploaded(self) -> tuple[int, ...]:
        """Parties whose vectors are in, ascending."""
        return self.enclosed.uploaded

    # -- first exchange

    def add(self, partition: int, upload: Upload) -> None:
        """Add a masked vector.

        Raises
        ------
        SumError
            A stranger, a second or late vector, wrong sizes. The sum is as before.
        """
        order, party = self.order, f"partition {partition}"
        if partition not in self.cohort.members:
            raise SumError(
                "it is not in the cohort of the sum", party=party, code="FK-SUM-STRANGER"
            )
        if partition in self.uploaded and self.repeated:
            return
        if partition in self.uploaded:
            raise SumError("a second vector for the same sum", party=party, code="FK-SUM-NOT-ASKED")
        if self.survivors:
            raise SumError(
                "its vector came after the survivors were declared", party=party, code="FK-SUM-LATE"
            )
        if any(part.dtype != self.encoding.dtype for part in upload.masked):
            raise SumError(
                "its masked vector has the wrong dtype", party=party, code="FK-MESSAGE-SHAPE"
            )
        if sum(part.size for part in upload.masked) != order.length:
            raise SumError(
                f"its masked vector has not {order.length} numbers",
                party=party,
                code="FK-MESSAGE-SHAPE",
            )
        if not self.enclosed.fit(upload, backups=self.backups):
            raise SumError(
                "its sealed shares have the wrong size", party=party, code="FK-MESSAGE-SHAPE"
            )
        at_odds = self.enclosed.at_odds(partition, upload.commitments)
        if 2 * len(at_odds) > self.cohort.degree + 1:  # with most of all, so it is the odd one
            raise SumError(
                f"its masks do not fit those of {len(at_odds)} others",
                party=party,
                code="FK-SUM-MASKS",
            )
        for other in at_odds:  # nobody can say yet which of the two is wrong
            self._conflicts.update((partition, other))
        start = 0
        for part in upload.masked:
            target = self._vector[start : start + part.size]
            np.add(target, part, out=target)
            start += part.size
        self.enclosed.add(partition, upload)

    # -- second exchange

    def check_survivors(self, min_cohort: int) -> None:
        """Refuse to declare the survivors if the sum could not be opened or would reveal one.

        Raises
        ------
        SumError
            Too few, or the receiver or (without self masks) any other party is missing, or two
            parties masked with different seeds. Nothing is released.
        """
        alive, members, name = self.uploaded, self.cohort.members, self.order.name
        if self._conflicts:
            most = max(self._conflicts.values())
            self.suspects = sorted(p for p, count in self._conflicts.items() if count == most)
            raise SumError(
                f"its masks in {name} do not fit those of {most} other"
                f"{'s' if most > 1 else ', or those do not fit its'}",
                remedy="run the same release on all nodes; leave it out if it happens again",
                party=f"partition {self.suspects[0]}",
                code="FK-SUM-MASKS",
            )
        least = max(self.cohort.threshold, min_cohort)
        if len(alive) < least:
            raise SumError(
                f"{len(alive)} of {len(members)} parties contributed to {name}, "
                f"at least {least} must",
                remedy="bring the missing parties back, or lower the threshold",
                code="FK-SUM-FEW",
            )
        if not self.order.self_masks and len(alive) < len(members):
            raise SumError(
                f"{len(members) - len(alive)} parties are missing in {name}, which has no self "
                "masks",
                remedy="repeat it with the same parties, or end the run",
                code="FK-SUM-WHOLE",
            )
        survivors = set(alive)
        if self.order.self_masks and any(
            len(survivors.intersection(self.cohort.holders(p))) < self.cohort.share_threshold
            for p in alive
        ):
            raise SumError(
                f"too many neighbours of a party in {name} are missing to open it",
                remedy="bring the missing parties back",
                code="FK-SUM-FEW",
            )
        if self.order.receiver >= 0 and self.order.receiver not in alive:
            raise SumError(
                f"partition {self.order.receiver}, which receives {name}, is missing",
                code="FK-SUM-RECEIVER-GONE",
            )
        if self.order.receiver >= 0 and len(alive) == 2 < len(members):
            raise SumError(
                f"partition {self.order.receiver} would learn the values of the only other "
                f"survivor of {name}",
                remedy="bring the missing parties back",
                code="FK-SUM-SINGLE",
            )

    def declare(self, min_cohort: int) -> tuple[int, ...]:
        """Fix the survivors: the parties whose vectors are in. Final.

        Raises
        ------
        SumError
            See :meth:`check_survivors`.
        """
        if not self.survivors:
            self.check_survivors(min_cohort)
            self.survivors = self.uploaded
        return self.survivors

    @property
    def dead(self) -> frozenset[int]:
        """Members that are not survivors."""
        return frozenset(self.cohort.members).difference(self.survivors)

    @property
    def votes_missing(self) -> int:
        """Number of votes for the survivors that must still come in before they answer."""
        if not self.voting or not self.order.self_masks:
            return 0
        return max(0, votes_needed(self.cohort, len(self.survivors)) - len(self._votes))

    def ballot(self) -> Ballot:
        """Return the request to survivors to vote."""
        return Ballot(**self._place, alive=self.cohort.pack(self.survivors))

    def vote(self, partition: int, vote: Vote) -> None:
        """Take a vote; whether it is valid only those can tell who have pinned its sender.

        Raises
        ------
        SumError
            It was not asked to vote, or the vote has the wrong size.
        """
        party = f"partition {partition}"
        if partition not in self.survivors or not self.voting:
            raise SumError("it was not asked to vote", party=party, code="FK-SUM-NOT-ASKED")
        if len(vote.signature) != SIGNATURE_BYTES:
            raise SumError("its vote has the wrong size", party=party, code="FK-MESSAGE-SHAPE")
        self._votes[partition] = vote.signature

    def unmask_request(self, partition: int) -> Unmask:
        """Return the request to a survivor.

        Raises
        ------
        SumError
            Too few have voted for the survivors.
        """
        if self.votes_missing:
            raise SumError(
                f"{len(self._votes)} of {len(self.survivors)} survivors of {self.order.name} "
                f"voted, {len(self._votes) + self.votes_missing} must",
                remedy="repeat it with new values when more parties answer",
                code="FK-SUM-SILENT",
            )
        voters = sorted(self._votes)
        living = self._living(partition)
        return Unmask(
            **self._place,
            alive=self.cohort.pack(self.survivors),
            dead=self.cohort.pack(self.dead),
            shares=b"".join(self.enclosed.share(source, partition) for source in living),
            voters=self.cohort.pack(voters) if voters else b"",
            votes=b"".join(self._votes[p] for p in voters),
        )

    # -- pieces

    @property
    def _place(self) -> dict[str, Any]:
        return {"cohort": self.order.cohort, "index": self.order.index}

    def _living(self, partition: int) -> list[int]:
        dead = self.dead
        return [j for j in self.cohort.neighbours[partition] if j not in dead]
