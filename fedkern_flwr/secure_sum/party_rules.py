"""What a party refuses: orders, survivors, votes and deliveries that would show its values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..errors import RefusedError, SumError
from ..wire.sums import Ballot, Order, SumSection, Unmask
from .encoding import Encoding
from .membership import Cohort
from .party_state import OpenSum, PartyState
from .votes import Subject, check_votes

_LONGEST_LEAP = 1024  # sums that a party may have missed in a row


#: The rule by which the same values are not opened over other parties.
OTHER_PARTIES = "the parties of a sum: its values were summed over others before"


class Accepted(NamedTuple):
    """An order that was accepted, and what its vector is masked with."""

    cohort: Cohort
    encoding: Encoding
    label: bytes
    keys: dict[int, tuple[bytes, bytes]]


class PartyRules:
    """What one party remembers in a run, and what it refuses; see :class:`.Party`."""

    def __init__(
        self,
        partition: int,
        state: PartyState,
        *,
        identity: Ed25519PrivateKey | None = None,
        trusted: dict[int, bytes] | None = None,
        allow_single: bool = False,
        pair_secrets: bool = False,
        partners: Collection[int] = (),
        whole_cohorts: bool = False,
        allow_recovery: bool = True,
        same_parties: bool = False,
    ) -> None:
        self.same_parties = same_parties
        self.partition, self.state, self.partners = partition, state, partners
        self.pair_secrets, self.whole_cohorts = pair_secrets, whole_cohorts
        self.identity, self.trusted, self.allow_single = identity, trusted, allow_single
        self.allow_recovery = allow_recovery
        self.accepted: dict[tuple[int, int], Accepted] = {}
        #: Name of a sum to which noise was added just now -> the key of that noise.
        self.drawn: dict[str, bytes] = {}
        #: What this message has opened: mark of values -> digest of the parties.
        self.shown: dict[str, str] = {}

    def check_order(self, order: Order) -> tuple[Cohort, Encoding]:
        """Refuse an order that breaks a rule; return its cohort and encoding.

        The first order of a name fixes the terms of all sums of that name in the run.

        Raises
        ------
        SumError, OptionError
        """
        cohort = self.state.cohorts.get(order.cohort)
        if cohort is None:
            raise self.refuse("this party is not in the cohort of the sum", code="FK-SUM-STRANGER")
        leap = order.index - self.state.last[order.cohort]
        if leap < 1:
            raise self.refuse(
                f"number {order.index} of a sum has been used already", code="FK-SUM-NUMBER"
            )
        if leap > _LONGEST_LEAP:
            raise self.refuse(
                f"number {order.index} of a sum is too far ahead", code="FK-SUM-NUMBER"
            )
        if order.receiver >= 0:
            if order.receiver not in cohort.members:
                raise self.refuse("the receiver is not in the cohort", code="FK-SUM-RECEIVER")
            if len(cohort.members) == 2 and order.receiver != self.partition:
                self._check_single()
        if self.whole_cohorts and order.self_masks:
            raise self.refuse(
                "this method sums over whole cohorts, without self masks", code="FK-ORDER-TERMS"
            )
        self._check_fixed(order)
        encoding = Encoding.of(order)
        encoding.check_room(len(cohort.members))
        return cohort, encoding

    def check_survivors(self, opened: OpenSum, survivors: bytes) -> list[int]:
        """Refuse survivors for whom nobody should answer; return this party's living neighbours.

        Raises
        ------
        SumError
        """
        if not opened.order.self_masks:
            raise self.refuse("a sum without self masks is never unmasked", code="FK-SUM-SECRET")
        order, cohort = opened.order, self.state.cohorts[opened.order.cohort]
        alive = cohort.unpack(survivors)
        if opened.alive and opened.alive != survivors:
            raise self.refuse(
                "a second set of survivors for the same sum", code="FK-SUM-CONTRADICTED"
            )
        if len(alive) < cohort.threshold:
            raise self.refuse(
                f"{len(alive)} survivors are fewer than the threshold {cohort.threshold}",
                code="FK-SUM-FEW",
            )
        if self.partition not in alive or (order.receiver >= 0 and order.receiver not in alive):
            raise self.refuse(
                "the survivors leave out this party or the receiver", code="FK-SUM-SET"
            )
        if order.receiver not in (-1, self.partition) and len(alive) == 2:
            self._check_single()
        living = [j for j in cohort.neighbours[self.partition] if j in alive]
        if len(living) + 1 < cohort.share_threshold:
            raise self.refuse(
                "too few neighbours of this party survived to open the sum",
                code="FK-SUM-FEW",
            )
        return living

    def check_votes(self, cohort: Cohort, request: Unmask) -> None:
        """Refuse survivors for whom too few have voted; only where identities are pinned.

        Raises
        ------
        SumError
        """
        if self.trusted is None:
            return
        pinned = dict(self.trusted)
        if self.identity is not None:
            pinned[self.partition] = self.identity.public_key().public_bytes_raw()
        with self.named():
            check_votes(pinned, self.subject(cohort, request), request.voters, request.votes)

    def subject(self, cohort: Cohort, section: Ballot | Unmask) -> Subject:
        """Return what a vote for survivors is about."""
        return Subject(self.state.session, cohort, section.index, section.alive)

    def _check_fixed(self, order: Order) -> None:
        """A sum is repeated, under its name, only as it was: cohort, receiver, masks, encoding.

        The difference of sums of the same values over two cohorts is that of the parties in which
        they differ; and what is rounded to ever more digits shows the digits of single parties by
        the carries. What follows a # in a name tells what is summed, not under which rule.
        """
        members = self.state.cohorts[order.cohort].members
        terms = [members, order.receiver, order.self_masks, order.kind, order.bits, order.bound]
        terms += [order.noise, order.fraction]
        digest = hashlib.sha256(json.dumps(terms).encode()).hexdigest()[:32]
        name = order.name.partition("#")[0]
        if self.state.fixed.setdefault(name, digest) != digest:
            raise self.refuse(
                f"{name} was summed before and would be repeated otherwise",
                "repeat it with the same parties, or end the run",
                code="FK-ORDER-PARTIES",
            )

    def show(self, mark: str, parties: Iterable[int]) -> str:
        """Note over which parties marked values are about to be opened; return their digest."""
        among = hashlib.sha256(json.dumps(sorted(parties)).encode()).hexdigest()[:16]
        if mark:
            self.shown[mark] = among
        return among

    def check_shown(self, mark: str, survivors: Iterable[int]) -> None:
        """Refuse to have the same values, or the same noise, opened over other survivors.

        The difference of two such sums is that of the parties in which they differ; noise that all
        of them repeat goes with it.

        Raises
        ------
        RefusedError
            Counted by a node: it tells that values are the same.
        """
        among = self.show(mark, survivors)
        if mark and self.state.shown.setdefault(mark, among) != among:
            raise RefusedError(
                f"refused by the node: {OTHER_PARTIES}",
                remedy="go on with those, or start another run",
                party=f"partition {self.partition}",
                code="FK-ORDER-PARTIES",
            )

    def _check_single(self) -> None:
        if not self.allow_single:
            raise self.refuse(
                "the receiver of this sum would learn this party's values: there is no third",
                "let more parties take part, or allow it with allow_single",
                code="FK-SUM-SINGLE",
            )

    def opened(self, section: SumSection) -> tuple[OpenSum, Cohort]:
        """Return the open sum that a section is about.

        Raises
        ------
        SumError
        """
        opened = self.state.open.get((section.cohort, section.index))
        if opened is None:
            raise self.refuse(
                "the sum is closed, or this party had no part in it", code="FK-SUM-CLOSED"
            )
        return opened, self.state.cohorts[section.cohort]

    @property
    def name(self) -> str:
        """How errors name this party."""
        return f"partition {self.partition}"

    def refuse(self, problem: str, remedy: str = "", *, code: str) -> SumError:
        """Return the error with which this party refuses."""
        return SumError(problem, remedy=remedy, party=self.name, code=code)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name this party in what is refused in the block.

        Raises
        ------
        SumError
        """
        try:
            yield
        except SumError as error:
            raise self.refuse(error.problem, error.remedy, code=error.code) from None
