"""What a strategy over a vertical split needs: the matched rows, and phases for their owners."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr import vertical
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.vertical import (
    MissingRows,
    VerticalPlan,
    check_alone,
    chunks,
    make_plan,
    name_sum,
)
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import vertical as wire

from .whole_cohort import WholeCohortStrategy

Rows = NDArray[np.int64]

_CHUNK = 1 << 22  # phases of a sum
_MESSAGE = 256 << 20  # bytes of phases in a message


@dataclass(frozen=True)
class Need:
    """Phases that the owners shall have.

    Attributes
    ----------
    rows : ndarray of int64, shape (n,)
        Rows of the plan, ascending.
    upto : dict
        Owner -> how many of its directions.
    """

    rows: Rows
    upto: Mapping[int, int]


@dataclass(frozen=True)
class Collection:
    """A set of phases that is asked for at once.

    Attributes
    ----------
    number : int
    need : Need
    known : dict
        Owner -> how many phases it has of each row.
    cuts : ndarray of int32
        Ends of the chunks of rows.
    """

    number: int
    need: Need
    known: Mapping[int, NDArray[np.int32]]
    cuts: NDArray[np.int32]

    def lengths(self, owner: int) -> list[int]:
        """Return how many phases of each chunk an owner lacks."""
        lacking = self.need.upto[owner] - self.known[owner]
        return [int(lacking[part].sum()) for part in chunks(self.cuts)]


class VerticalStrategy(WholeCohortStrategy):
    """Base class of strategies over parties that hold columns of the same rows.

    Parameters
    ----------
    phase_bits : {16, 32}
        Bits of a phase.
    missing : {"error", "drop-row"}
        What to do with rows that some party does not hold.
    **common
        Options of :class:`~fedkern_flwr.strategies.whole_cohort.WholeCohortStrategy`.

    Attributes
    ----------
    plan_ : VerticalPlan
        Who holds which rows.
    outputs_, classes_, label_bound_
        What the active parties have labels of.
    collection : int
        Number of the last set of phases asked for.
    """

    described = wire.VerticalDescribeReply

    def __init__(self, *, phase_bits: int, missing: MissingRows, **common: Any) -> None:
        self.phase_bits, self.missing = phase_bits, missing
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.plan_ = VerticalPlan((), (), {}, {}, {})
        self.outputs_, self.classes_, self.label_bound_ = 0, 0, 1.0
        self.collection = 0
        self._known: dict[int, NDArray[np.int32]] = {}
        self._deliveries: dict[int, tuple[int, list[RunningSum]]] = {}

    # -- set-up

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse partitions that clash and ids that come twice."""
        vertical.check_parties(parties)

    def cohorts(self) -> list[list[int]] | None:
        """Match the rows; all sums are over everybody."""
        parties = list(self.described_parties())
        self.plan_ = make_plan(parties, self.missing, predict=bool(self.model_of[0]))
        check_alone(self.plan_, parties, allow_single=self.allow_single)
        first = self.party_of(self.plan_.actives[0])
        self.outputs_, self.classes_ = first.outputs, first.classes
        self.label_bound_ = first.label_bound
        self.forget_phases()
        return None

    def matched(self) -> dict[str, Any]:
        """Return whose rows were matched."""
        return self.plan_.report() if self.plan_.actives else {}

    def forget_phases(self) -> None:
        """Note that no owner has any phases."""
        self._known = {a: np.zeros(self.plan_.total, np.int32) for a in self.plan_.actives}
        for owner in list(self._deliveries):
            self.delivered_to(owner)

    def rows_digest(self) -> str:
        """Return a digest of which rows, features and outputs each party has, in this session."""
        digest = hashlib.sha256()
        for party in self.described_parties():
            sizes = (party.partition, party.rows, party.features, party.outputs)
            digest.update(repr(sizes).encode() + party.ids.tobytes())
        return digest.hexdigest()

    @property
    def features_in_all(self) -> int:
        """Number of columns of all parties."""
        return sum(party.features for party in self.described_parties())

    def positions(self, partition: int, rows: Rows) -> NDArray[np.int32]:
        """Return the positions of rows of the plan among those that a party announced."""
        return np.ascontiguousarray(self.plan_.rows[partition][rows], np.int32)

    # -- phases

    def collections(self, need: Need, bits: int) -> Iterable[Collection]:
        """Yield what is asked for in one exchange each, so that no message is too large.

        Phases travel with so many bits.
        """
        width = max(need.upto.values())
        step = max(1, _MESSAGE * 8 // bits // max(1, width * len(need.upto)))
        for start in range(0, max(1, len(need.rows)), step):
            rows = need.rows[start : start + step]
            known = {owner: self._known[owner][rows] for owner in need.upto}
            chunk = max(1, _CHUNK // max(1, width))
            ends = [*range(chunk, len(rows), chunk), len(rows)]
            self.collection += 1
            part = Need(rows, need.upto)
            yield Collection(self.collection, part, known, np.array(ends, np.int32))

    def order_phases(self, wanted: Collection) -> dict[int, list[RunningSum]]:
        """Begin the sums of a collection; return owner -> sums."""
        assert self.sums is not None
        found: dict[int, list[RunningSum]] = {}
        names = self.plan_.names[wanted.need.rows]
        for owner, upto in wanted.need.upto.items():
            found[owner] = []
            parts = zip(chunks(wanted.cuts), wanted.lengths(owner), strict=True)
            for number, (part, length) in enumerate(parts):
                if length:
                    running = self.sums.order(
                        name_sum(owner, number, names[part], wanted.known[owner][part], upto),
                        length,
                        Encoding.circle(self.phase_bits),
                        receiver=owner,
                        self_masks=False,
                    )
                    found[owner].append(running)
        return found

    def phase_fields(self, partition: int, wanted: Collection | None) -> dict[str, Any]:
        """Return the fields of a request that say which phases a party shall contribute to."""
        if wanted is None:
            nothing = np.zeros(0, np.int32)
            return {
                "collection": 0,
                "owners": nothing,
                "upto": nothing,
                "known": np.zeros((0, 0), np.int32),
                "rows": nothing,
                "cuts": nothing,
            }
        owners = sorted(wanted.need.upto)
        return {
            "collection": wanted.number,
            "owners": np.array(owners, np.int32),
            "upto": np.array([wanted.need.upto[o] for o in owners], np.int32),
            "known": np.stack([wanted.known[o] for o in owners]),
            "rows": self.positions(partition, wanted.need.rows),
            "cuts": wanted.cuts,
        }

    def collected(self, wanted: Collection, sums: Mapping[int, list[RunningSum]]) -> None:
        """Note that all parties have contributed; the next requests to the owners deliver."""
        for owner, running in sums.items():
            for one in running:
                self.declare(one)
            self._deliveries[owner] = (wanted.number, running)
            self.note_known(wanted, owner)

    def note_known(self, wanted: Collection, owner: int) -> None:
        """Note which phases an owner has."""
        self._known[owner][wanted.need.rows] = wanted.need.upto[owner]

    def delivery_to(self, partition: int) -> tuple[int, list[RunningSum]]:
        """Return the number of the collection that waits for a party, and its sums."""
        return self._deliveries.get(partition, (0, []))

    def delivered_to(self, owner: int) -> None:
        """Note that an owner has its phases."""
        _, running = self._deliveries.pop(owner, (0, ()))
        for one in running:
            self.close(one)

    def step_fields(self, partition: int, save_as: int) -> dict[str, Any]:
        """Return what every request of the method carries."""
        return {
            "session": self.session,
            "round": self.step,
            "save_as": save_as,
            "delivered": self.delivery_to(partition)[0],
        }

    def ask_parties(
        self,
        grid: Grid,
        requests: Mapping[int, PhaseMessage],
        reply: type[Any],
        timeout: float,
        sums: Iterable[RunningSum] = (),
        more: Mapping[int, Sequence[RunningSum]] | None = None,
    ) -> dict[int, Any]:
        """Send requests with the phases that wait for their receivers, and ``more`` totals.

        Raises
        ------
        LostStateError
            A party has forgotten what it needs.
        """
        totals = {p: [*self.delivery_to(p)[1], *(more or {}).get(p, ())] for p in requests}
        replies = self.ask(grid, requests, reply, timeout, sums, totals)
        for partition in replies:
            self.delivered_to(partition)
        if self.lost_state:
            raise LostStateError
        return replies


class LostStateError(Exception):
    """A party has forgotten what the last request needed."""
