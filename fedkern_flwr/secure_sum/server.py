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
    """Run all sums of a run, on the server.

    A method says what is summed (:meth:`order`); all else is sent in sections of its messages.

    Parameters
    ----------
    session : str
        Name of the run.
    keys : dict
        Partition -> (X25519 public key, signature or nothing), from ``describe``.
    cohorts : sequence of sequences of int, optional
        Sets of parties among which sums are made, fixed for the run. Default: one of all parties.
    threshold : int, or a sequence of int or None, optional
        t, least number of survivors, of all cohorts or of each. Default: floor(2 N / 3) + 1.
    min_cohort : int (default: 2)
        Least number of survivors whatever the threshold.
    cipher : {"aes-256-ctr", "chacha20"}
        Cipher of the masks.
    allow_single : bool (default: False)
        Whether one of two parties may be the receiver of their sum.
    relays_only : bool (default: False)
        Whether nothing is summed: the keys only encrypt messages between clients.
    counts : dict, optional
        Partition -> (training rows, held-out rows), as declared and signed.
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
                "a sum has two parties: with the total each can compute what the other one added; "
                "let a third party take part, or accept this"
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
        """Start a sum, under ``name`` if given.

        Raises
        ------
        OptionError
            The sum could overflow the ring, or the receiver would learn another party's values.
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
        """Return the sections of a request to a party that contributes to ``sums``."""
        out: list[PhaseMessage] = [] if partition in self._knows else [self.roster]
        for running in sums:
            if partition in running.cohort.members:
                counted = self._counted.get((partition, running.order.cohort), 0)
                out.append(dataclasses.replace(running.order, counted=counted))
        return out

    def ballot_sections(self, sums: Iterable[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Declare the survivors of sums; return the ballots, by party.

        There are none unless identities are pinned and :func:`.votes_needed` requires votes.

        Raises
        ------
        SumError
            A sum has too few survivors; then none is declared.
        """
        declared = [running for running in self._declare(sums) if running.votes_missing]
        return _by_party((p, running.ballot()) for running in declared for p in running.survivors)

    def unmask_sections(self, sums: Iterable[RunningSum]) -> dict[int, list[PhaseMessage]]:
        """Declare the survivors of sums; return the sections of the next requests, by party.

        Raises
        ------
        SumError
            A sum has too few survivors (then none is declared), or too few votes.
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
        """Return the next requests, to survivors that dropped out and to their neighbours."""
        out: list[tuple[int, PhaseMessage]] = []
        for running in [one for one in sums if not one.complete]:
            out += [(party, running.unmask_request(party)) for party in running.silent]
            for party, request in running.recover_requests().items():
                self._asked[party, request.cohort, request.index] = request
                out.append((party, request))
        return _by_party(out)

    def take(self, partition: int, sections: Iterable[Section]) -> None:
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
        """Return the decoded sum over the survivors, shape (length,), and close it."""
        total, order = running.total(), running.order
        for party in running.survivors:
            self._counted[party, order.cohort] = order.index
        key = order.name.partition("#")[0], order.cohort
        self.released[key] = self.released.get(key, 0) + order.length
        self.close(running)
        return total

    def close(self, running: RunningSum) -> None:
        """Forget a sum. The parties erase it with the next order, or at the end of the run."""
        self._open.pop((running.order.cohort, running.order.index), None)
        running.close()

    @property
    def contributors(self) -> int:
        return len({party for party, _ in self._counted})

    def progress(self) -> dict[str, list[list[int]]]:
        """Return what a resumed run needs: the numbers used, and the last count of each party."""
        return {
            "next": [[cohort, index] for cohort, index in enumerate(self._next)],
            "counted": [[*key, index] for key, index in self._counted.items()],
        }

    def go_on(self, progress: Mapping[str, list[list[int]]]) -> None:
        """Restore the numbers of an interrupted run, before the roster is sent; keys are new."""
        for cohort, index in progress["next"]:
            self._next[cohort] = index
        self._write_roster(self.membership.session)
        self._counted = {(party, cohort): index for party, cohort, index in progress["counted"]}


def _by_party(messages: Iterable[tuple[int, PhaseMessage]]) -> dict[int, list[PhaseMessage]]:
    out: dict[int, list[PhaseMessage]] = {}
    for party, message in sorted(messages, key=itemgetter(0)):
        out.setdefault(party, []).append(message)
    return out
