"""``SecureSum``: the server's side of all sums of a run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..errors import OptionError, SumError
from ..wire import sums as wire
from ..wire.message import PhaseMessage, Section
from .encoding import CIPHERS
from .identity import Counts
from .membership import Membership, check_cohort, make_roster
from .running_sum import Reply, RunningSum

if TYPE_CHECKING:
    from ..exchange import SumSpec

logger = logging.getLogger("fedkern_flwr")

#: Sections of replies.
_REPLIES: dict[str, type[Reply]] = {
    kind.phase: kind for kind in (wire.Upload, wire.Vote, wire.UnmaskReply, wire.RecoverReply)
}


class SecureSum:
    """All sums of a run, on the server.

    A method says what is summed (:meth:`order`); everything else travels in sections of messages.

    Parameters
    ----------
    session : str
        Name of the run.
    keys : dict
        Partition -> (X25519 public key, signature or nothing), from ``describe``.
    cohorts : sequence of sequences of int, optional
        The sets of parties among which sums are taken, by default everybody. They cannot change
        in a run.
    threshold : int, or a sequence of int or None, optional
        t, least number of survivors, of all cohorts or of each; by default floor(2 N / 3) + 1.
    min_cohort : int (default: 2)
        Least number of survivors whatever the threshold.
    cipher : {"aes-256-ctr", "chacha20"}
    allow_single : bool (default: False)
        Whether a sum of two parties may belong to one of them.
    relays_only : bool (default: False)
        Whether nothing is summed: the keys of the roster only seal messages between clients.
    counts : dict, optional
        Partition -> (rows that it learns from, held-out rows), as it declared and signed them.

    Raises
    ------
    SmallCohortError
        A cohort is smaller than the minimum.
    OptionError
        A threshold that cannot work.
    """

    def __init__(
        self,
        session: str,
        keys: Mapping[int, tuple[bytes, bytes]],
        *,
        cohorts: Sequence[Sequence[int]] | None = None,
        threshold: int | Sequence[int | None] | None = None,
        min_cohort: int = 2,
        cipher: str = CIPHERS[0],
        allow_single: bool = False,
        relays_only: bool = False,
        counts: Mapping[int, Counts] | None = None,
    ) -> None:
        chosen = [sorted(keys)] if cohorts is None else cohorts
        if not chosen:
            raise OptionError("there is no cohort to sum over", code="FK-SUM-COHORTS")
        thresholds: list[int | None]
        if threshold is None or isinstance(threshold, int):
            thresholds = [threshold] * len(chosen)
        else:
            thresholds = list(threshold)
        for members, least in zip(chosen, thresholds, strict=True):
            check_cohort(len(members), least, min_cohort)
        if min(map(len, chosen)) < 3 and not relays_only:
            logger.warning(
                "a sum has two parties: with one of them, whoever opens it has the other's part; "
                "let a third take part, or take it into account: each has what the sum tells "
                "of the other"
            )
        self._next = [1] * len(chosen)
        self._keys, self._chosen, self._thresholds, self._cipher = keys, chosen, thresholds, cipher
        self._rows = counts or {}
        self._write_roster(session)
        self.min_cohort, self.allow_single = min_cohort, allow_single
        self._knows: set[int] = set()
        self._open: dict[tuple[int, int], RunningSum] = {}
        self._counted: dict[tuple[int, int], int] = {}
        #: Name of a sum, cohort -> numbers released to the server.
        self.released: dict[tuple[str, int], int] = {}
        self._asked: dict[tuple[int, int, int], wire.Recover] = {}

    def _write_roster(self, session: str) -> None:
        self.roster = make_roster(
            self._keys, self._chosen, self._thresholds, self._cipher, self._next, self._rows
        )
        self.membership = Membership.read(self.roster, session)

    def order(self, spec: SumSpec, name: str = "") -> RunningSum:
        """Begin a sum, as it is declared; under a ``name`` of its own where one is given.

        Raises
        ------
        OptionError
            The ring has no room, or the receiver would learn the other party's values.
        """
        name, cohort, receiver, length = name or spec.name, spec.cohort, spec.receiver, spec.length
        if not length or length < 1 or not 0 <= cohort < len(self.membership.cohorts):
            raise OptionError(
                f"{name} has length {length} and cohort {cohort}", code="FK-SUM-LENGTH"
            )
        members = self.membership.cohorts[cohort]
        parties = len(members.members)
        encoding = spec.encoding.noisy(spec.noise) if spec.release else spec.encoding
        encoding.check_room(parties)
        if receiver >= 0 and receiver not in members.members:
            raise OptionError(
                f"partition {receiver} is not in the cohort of {name}", code="FK-SUM-RECEIVER"
            )
        if receiver >= 0 and parties == 2 and not self.allow_single:
            raise OptionError(
                f"partition {receiver} would learn the values of the only other party in {name}",
                code="FK-SUM-SINGLE",
            )
        order = wire.Order(
            cohort=cohort,
            index=self._next[cohort],
            name=name,
            length=length,
            kind=encoding.kind,
            bits=encoding.bits,
            bound=encoding.bound,
            receiver=receiver,
            self_masks=spec.self_masks,
            open_from=min((k for c, k in self._open if c == cohort), default=self._next[cohort]),
            counted=0,
            noise=encoding.noise.variance,
            fraction=encoding.noise.fraction,
        )
        self._next[cohort] += 1
        known = self.membership
        running = RunningSum(order, members, known.session, known.cipher, known.signed)
        self._open[cohort, order.index] = running
        return running

    def sections(self, partition: int, sums: Iterable[RunningSum]) -> list[PhaseMessage]:
        """Return what the request to a party must carry so that it contributes to ``sums``."""
        out: list[PhaseMessage] = [] if partition in self._knows else [self.roster]
        for running in sums:
            if partition in running.cohort.members:
                counted = self._counted.get((partition, running.order.cohort), 0)
                out.append(dataclasses.replace(running.order, counted=counted))
        return out

    def ballot_sections(self, sums: Iterable[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Declare the survivors of sums; return what those must be sent who are to vote for them.

        Nobody is, but where identities are pinned and :func:`.votes_needed` says so.

        Raises
        ------
        SumError
            A sum has too few survivors. Then no sum is declared.
        """
        declared = [running for running in self._declare(sums) if running.votes_missing]
        return _by_party((p, running.ballot()) for running in declared for p in running.survivors)

    def unmask_sections(self, sums: Iterable[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Declare the survivors of sums; return per party what its next request must carry.

        The sections may ride on the next request of the method.

        Raises
        ------
        SumError
            A sum has too few survivors: then no sum is declared. Or too few have voted for them.
        """
        masked = [running for running in self._declare(sums) if running.order.self_masks]
        return _by_party((p, one.unmask_request(p)) for one in masked for p in one.survivors)

    def _declare(self, sums: Iterable[RunningSum]) -> list[RunningSum]:
        sums = list(sums)
        for running in sums:
            if not running.survivors:
                running.check_survivors(self.min_cohort)
        for running in sums:
            running.survivors = running.survivors or running.uploaded  # for good
        return sums

    def recover_sections(self, sums: Iterable[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Return what to ask next when survivors fell silent: they again, and their neighbours."""
        out: list[tuple[int, PhaseMessage]] = []
        for running in [one for one in sums if not one.complete]:
            out += [(party, running.unmask_request(party)) for party in running.silent]
            for party, request in running.recover_requests().items():
                self._asked[party, request.cohort, request.index] = request
                out.append((party, request))
        return _by_party(out)

    def take(self, partition: int, sections: Iterable[Section]) -> None:
        """Take the sections of a party's reply.

        Raises
        ------
        ProtocolError, SumError
            A section is malformed, or does not belong to an open sum.
        """
        party = f"partition {partition}"
        for section in sections:
            kind = _REPLIES.get(section.phase)
            if kind is None:
                raise SumError(
                    f"unexpected section {section.phase[:20]!r}",
                    party=party,
                    code="FK-MESSAGE-FIELD",
                )
            reply = section.read(kind, party=party)
            place = reply.cohort, reply.index
            asked = (
                self._asked.pop((partition, *place), None) if kind is wire.RecoverReply else None
            )
            if kind is wire.RecoverReply and asked is None:
                raise SumError(
                    "it was not asked to recover anything", party=party, code="FK-SUM-NOT-ASKED"
                )
            if place not in self._open:
                raise SumError(
                    "its message belongs to no open sum", party=party, code="FK-SUM-CLOSED"
                )
            self._open[place].take(partition, reply, asked)
        self._knows.add(partition)

    def total(self, running: RunningSum) -> NDArray[Any]:
        """Return the decoded sum over the survivors, shape (length,), and close it.

        Raises
        ------
        SumError
            It cannot be opened, or belongs to a receiver.
        """
        total, order = running.total(), running.order
        for party in running.survivors:
            self._counted[party, order.cohort] = order.index
        key = order.name.partition("#")[0], order.cohort
        self.released[key] = self.released.get(key, 0) + order.length
        self.close(running)
        return total

    def close(self, running: RunningSum) -> None:
        """Forget a sum; the parties erase what belongs to it with the next order or at the end."""
        self._open.pop((running.order.cohort, running.order.index), None)
        running.close()

    @property
    def contributors(self) -> int:
        """Number of parties whose vectors were counted in at least one sum."""
        return len({party for party, _ in self._counted})

    def progress(self) -> dict[str, list[list[int]]]:
        """Return what a resumed run must know: the numbers used, and who was counted when."""
        return {
            "next": [[cohort, index] for cohort, index in enumerate(self._next)],
            "counted": [[*key, index] for key, index in self._counted.items()],
        }

    def go_on(self, progress: Mapping[str, list[list[int]]]) -> None:
        """Take up the numbers of a run that broke off, before the roster is sent.

        The keys are fresh all the same.
        """
        for cohort, index in progress["next"]:
            self._next[cohort] = index
        self._write_roster(self.membership.session)
        self._counted = {(party, cohort): index for party, cohort, index in progress["counted"]}


def _by_party(messages: Iterable[tuple[int, PhaseMessage]]) -> dict[int, list[PhaseMessage]]:
    """Return party -> its messages, by party."""
    out: dict[int, list[PhaseMessage]] = {}
    for party, message in sorted(messages, key=itemgetter(0)):
        out.setdefault(party, []).append(message)
    return out
