"""Handle the secure sums of one message at a client: read its sections, answer them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError, RefusedError, SumError
from ..exchange import SumSpec
from ..guard import check_size, refusal
from ..guard.counting import ENDLESS, Hidden, hidden_beside, least_survivors
from ..guard.opened import Charge
from ..guard.policy import Rules, check_cohort, check_order
from ..secure_sum import Encoding, Party
from ..secure_sum.membership import Cohort, asked, digest_of
from ..wire import PhaseMessage
from ..wire import sums as wire
from ..wire.message import Section

logger = logging.getLogger("fedkern_flwr")

_SERVER = "server"
#: Sums of a cohort that a node may miss and go on.
_MOST_MISSED = 20_000


class ClientSums:
    """The sums of a request, and the sections of the reply.

    A handler contributes by name to requested sums, and reads delivered totals; the rest is done
    here.

    Attributes
    ----------
    specs, orders : dict
        Name -> checked specification of a sum, and the request that awaits this client's vector.
    delivered : dict
        Name -> total of a sum that this client receives, shape (length,).
    opened, survivors : dict
        Name -> (cohort, number) of a sum that this request unmasks, and its declared survivors.
    values : dict
        Name -> digest of the request and this node's values.
    functions : dict
        Name -> summed function of a row, see :class:`~..guard.opened.Opening`.
    charges : list of Charge
        Releases with noise, for the ledger.
    ends : bool
        Whether the run is over after this request.
    """

    def __init__(self, party: Party, rules: Rules) -> None:
        self.party, self.rules = party, rules
        self.specs: dict[str, SumSpec] = {}
        #: Whether the run has a budget of privacy: what the server opens must have noise.
        self.noisy = bool(party.state.noise_key)
        self.charges: list[Charge] = []
        self.orders: dict[str, wire.Order] = {}
        self.delivered: dict[str, NDArray[Any]] = {}
        self.opened: dict[str, tuple[int, int]] = {}
        self.survivors: dict[str, frozenset[int]] = {}
        self.contributed: list[wire.Order] = []
        self.values: dict[str, bytes] = {}
        self.functions: dict[str, dict[str, Any]] = {}
        self.replies: list[PhaseMessage] = []
        self.ends = False
        #: Called with the name of a sum that has been checked.
        self.on_check: Callable[[str], None] = lambda name: None
        #: Names the request and what was settled before, for the noise of its sums.
        self.question: Callable[[], str] = lambda: ""

    def take(self, sections: Iterable[Section]) -> None:
        """Read the sections of a request; vote, unmask and recover now, accept requested sums.

        Raises
        ------
        ProtocolError, SumError
            A section is malformed or breaks a rule of the protocol.
        """
        answered: dict[Any, Callable[[Any], PhaseMessage | None]] = {
            wire.Roster: self.party.join,
            wire.Order: self._accept,
            wire.Ballot: self.party.vote,
            wire.Unmask: self._unmask,
            wire.Recover: self.party.recover,
            wire.Delivery: self._take_total,
            wire.End: self._note_end,
        }
        by_phase = {kind.phase: (kind, answer) for kind, answer in answered.items()}
        for section in sections:
            if section.phase not in by_phase:
                raise ProtocolError(
                    f"there is no section {section.phase[:20]!r}",
                    party=_SERVER,
                    code="FK-MESSAGE-FIELD",
                )
            kind, answer = by_phase[section.phase]
            reply = answer(section.read(kind, party=_SERVER))
            if reply is not None:
                self.replies.append(reply)

    def _accept(self, order: wire.Order) -> None:
        state = self.party.state
        if order.name in self.orders:
            raise SumError(f"two sums {order.name!r} in one request", code="FK-SUM-NAMED-TWICE")
        check_size(order.length)
        if order.index - state.last.get(order.cohort, 0) > _MOST_MISSED:  # each costs a hash
            raise refusal("a sum of a later run", code="FK-ORDER-SIZE")
        cohort, counts = state.cohorts.get(order.cohort), state.counts
        if cohort is not None:  # a stranger is refused by the party
            holds = any(counts.get(self.party.partition, ())[:2])
            check_cohort(cohort, counts, self.rules, holds=holds)
        self.party.accept(order)
        self.orders[order.name] = order

    def _unmask(self, request: wire.Unmask) -> wire.UnmaskReply:
        reply, cohort = self.party.unmask(request), self.party.state.cohorts[request.cohort]
        place = request.cohort, request.index
        name = self.party.state.open[place].order.name
        self.opened[name], self.survivors[name] = place, cohort.unpack(request.alive)
        return reply

    def _note_end(self, end: wire.End) -> None:
        self.ends = True

    def _take_total(self, delivery: wire.Delivery) -> None:
        """Open a total; hide why it fails, as that could reveal something about the total."""
        try:
            name, total = self.party.receive(delivery)
        except SumError as error:
            logger.error("%s", error)
            raise refusal(
                "a total that was delivered, its log says more", code="FK-ORDER-UNFIT"
            ) from None
        self.delivered[name] = total

    def order(self, name: str) -> wire.Order:
        if name not in self.orders:
            raise SumError(f"no sum {name!r} was ordered", code="FK-SUM-UNASKED")
        return self.orders[name]

    def cohort(self, name: str) -> Cohort:
        return self.party.state.cohorts[self.order(name).cohort]

    def rows(self, name: str) -> list[int]:
        """Return how many training rows each party of a sum has, as signed."""
        counts = self.party.state.counts
        return [counts[member][0] for member in self.cohort(name).members]

    def hidden(
        self,
        order: wire.Order,
        row: float,
        beside: Mapping[int, float] = MappingProxyType({}),
        *,
        start: int = 0,
        stop: int = ENDLESS,
    ) -> tuple[dict[int, int], Hidden]:
        """Return the rows of each party in a sum, and what hides this party's.

        It is the smallest sum that can be opened. ``start`` and ``stop`` limit the rows of all
        tables; see :func:`~..guard.counting.hidden_beside` for the rest.
        """
        counts, cohort = self.party.state.counts, self.party.state.cohorts[order.cohort]
        own, members = self.party.partition, cohort.members
        rows = {k: max(0, min(counts.get(k, (0, 0))[0], stop) - start) for k in members}
        alive = least_survivors(rows, cohort.threshold if order.self_masks else len(rows), own=own)
        return rows, hidden_beside(rows, alive, row, beside, own=own, receiver=order.receiver)

    def check(self, spec: SumSpec) -> None:
        """Refuse a sum other than the one that the method means.

        The server says who opens a sum, and of what. So a method must check each sum before it
        contributes, and before it reads its rows.
        """
        cohorts = len(self.party.state.cohorts)
        check_order(self.order(spec.name), spec, cohorts=cohorts)
        if self.noisy and spec.release is None and spec.receiver < 0 and not spec.nobodys:
            raise refusal("privacy: the run opens a sum without noise", code="FK-BUDGET-NOISELESS")
        self.specs[spec.name] = spec
        self.on_check(spec.name)

    def check_all(self, specs: Iterable[SumSpec]) -> None:
        """Check all requested sums against those that an exchange declares.

        An exchange may declare more sums, which other parties contribute to.
        """
        declared = {spec.name: spec for spec in specs}
        for name in self.orders:
            if name not in declared:
                raise SumError(f"no sum {name!r} belongs to this exchange", code="FK-SUM-UNASKED")
            self.check(declared[name])

    def encode(self, name: str, angles: NDArray[Any]) -> NDArray[Any]:
        """Return ring elements of some of the angles of a sum, for :meth:`contribute`."""
        try:
            return Encoding.of(self.order(name)).encode(angles, 1, name=name)
        except SumError as error:
            raise _unfit(error) from None

    def contribute(
        self,
        name: str,
        values: NDArray[Any],
        *,
        overwrite: bool = False,
        release: str = "",
        common: bytes = b"",
        told: bytes = b"",
    ) -> None:
        """Add this client's vector to the sum of that name.

        With ``overwrite`` its memory may be reused. ``release`` names the public inputs of a sum
        with noise. ``common`` is a digest of what all parties must agree on without the server,
        ``told`` one of what determines the values, whatever their encoding (default: of these).

        Raises
        ------
        SumError
            The sum was not requested or not checked.
        RefusedError
            The values do not fit the declaration; only the log says why.
        """
        order, told = self.order(name), told or digest_of(values)
        self.contributed.append(order)
        self.values[name] = hashlib.sha256(self.question().encode() + b"/" + told).digest()
        self._add(order, values, release, told=told, overwrite=overwrite, common=common)

    def contribute_nothing(self, name: str, *, release: str = "") -> None:
        """Take part in the sum of that name with zeros."""
        order = self.order(name)
        self._add(order, np.broadcast_to(0, order.length), release)

    def _add(self, order: wire.Order, values: NDArray[Any], release: str, **about: Any) -> None:
        if order.name not in self.specs:
            raise SumError(
                f"nothing says what the sum {order.name!r} must be", code="FK-CLIENT-CHECK"
            )
        spec = self.specs[order.name]
        if spec.release is not None and not release:
            raise SumError(
                f"nothing says which question the sum {order.name!r} with noise answers",
                code="FK-CLIENT-CHECK",
            )
        if spec.release is not None:
            release = asked(release, self.question())
        try:
            upload = self.party.contribute(order, values, release=release, **about)
        except SumError as error:
            raise _unfit(error) from None
        if spec.release is not None:
            key = self.party.drawn.pop(order.name)
            self.charges.append(Charge(key, spec.release, spec.held_out, spec.rows))
        self.replies.append(upload)
        del self.orders[order.name]

    def fixed(self) -> dict[str, str]:
        """Return the fixed terms of the sums that were checked in this message."""
        names, fixed = {name.partition("#")[0] for name in self.specs}, self.party.state.fixed
        return {name: digest for name, digest in fixed.items() if name in names}

    def check_done(self) -> None:
        """Refuse to answer while a sum lacks this client's vector."""
        if self.orders:
            raise SumError(
                f"this phase contributes nothing to {', '.join(sorted(self.orders))}",
                code="FK-SUM-UNASKED",
            )


def _unfit(error: SumError) -> RefusedError:
    logger.error("%s", error)
    return refusal("the values of a sum, its log says more", code="FK-ORDER-UNFIT")
