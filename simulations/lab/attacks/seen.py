"""What attacks share: the messages of a run, masked vectors, and what parties have in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.message import PhaseMessage
from fedkern_flwr.wire.sections import detach
from fedkern_flwr.wire.sums import Delivery, Order, Roster, Upload

from ...engines import Transcript
from .gradient_inversion import Floats

Reading = Literal["fixed point", "fraction", "doubles"]

_SECTIONS: dict[str, type[PhaseMessage]] = {
    cls.phase: cls for cls in (Roster, Order, Upload, Delivery)
}


@dataclass(frozen=True)
class Passed:
    """A message of the method, read.

    Attributes
    ----------
    up : bool
        From a party to the server, or the other way.
    partition : int
        That party.
    message : PhaseMessage
    sections : tuple of PhaseMessage
        Of secure sums: orders, uploads, deliveries.
    """

    up: bool
    partition: int
    message: Any
    sections: tuple[Any, ...]


@dataclass(frozen=True)
class MaskedVector:
    """A vector under masks, as the server keeps it.

    Attributes
    ----------
    partition : int
        Who sent it; of a total that was delivered, who receives it.
    order : Order
        Of the sum.
    request : PhaseMessage
        With which it was ordered.
    members : tuple of int
        The cohort.
    delivered : bool
        Whether it is a total, under the receiver's pad.
    ring : ndarray of unsigned integers
    """

    partition: int
    order: Order
    request: Any
    members: tuple[int, ...]
    delivered: bool
    ring: NDArray[np.unsignedinteger[Any]]

    @property
    def encoding(self) -> Encoding:
        """Of the sum."""
        return Encoding(self.order.kind, self.order.bits, self.order.bound)  # type: ignore[arg-type]

    def read(self, reading: Reading) -> Floats:
        """Return numbers, as if there were no mask.

        As the fixed point that they would be; as fractions of the ring times the bound; or as the
        doubles that have these bits, modulo the bound.
        """
        bound = self.order.bound
        if reading == "fixed point":
            return np.asarray(self.encoding.decode(self.ring, len(self.members)), np.float64)
        if reading == "fraction":
            return np.asarray(self.ring / 2.0**self.order.bits * bound)
        return np.fmod(np.nan_to_num(self.ring.view(np.float64)), bound)


def read_messages(
    transcript: Transcript,
    requests: Mapping[str, type[PhaseMessage]],
    replies: Mapping[str, type[PhaseMessage]],
) -> Iterator[Passed]:
    """Yield the messages of a method in the order in which they passed.

    Parameters
    ----------
    transcript : Transcript
        Of a whole run.
    requests, replies : mapping
        Phase -> class of the messages; others are left out.
    """
    partition_of: dict[int, int] = {}
    for entry in transcript.entries():
        up = entry.direction == "up"
        kind = (replies if up else requests).get(entry.phase)
        if kind is None:
            continue
        arrays, scalars, sections = detach(entry.arrays, entry.scalars, party="")
        message: Any = kind.unpack(arrays, scalars, party=f"node {entry.node}")
        if isinstance(message, DescribeReply):
            partition_of[entry.node] = message.partition
        party = f"partition {partition_of[entry.node]}"
        known = tuple(
            s.read(_SECTIONS[s.phase], party=party) for s in sections if s.phase in _SECTIONS
        )
        yield Passed(up, partition_of[entry.node], message, known)


def masked_vectors(
    messages: Iterable[Passed], cohorts: Mapping[int, tuple[int, ...]]
) -> Iterator[MaskedVector]:
    """Yield every masked vector that the server was sent, and every total that it passed on.

    Parameters
    ----------
    messages : iterable of Passed
        In the order in which they passed.
    cohorts : mapping
        Number of a cohort -> its members.

    Raises
    ------
    ProtocolError
        A reply came without any of the vectors that were ordered.
    """
    orders: dict[tuple[int, int], tuple[Order, Any]] = {}
    due: dict[int, bool] = {}
    for passed in messages:
        if not passed.up:
            ordered = [s for s in passed.sections if isinstance(s, Order)]
            orders |= {(s.cohort, s.index): (s, passed.message) for s in ordered}
            due[passed.partition] = bool(ordered)
        elif due.pop(passed.partition, False) and not passed.sections:
            raise ProtocolError(
                "the transcript holds a reply without its masked vectors",
                remedy="record all messages as they pass",
                party=f"partition {passed.partition}",
            )
        for section in passed.sections:
            if isinstance(section, Upload | Delivery):
                order, request = orders[section.cohort, section.index]
                delivered = isinstance(section, Delivery)
                parts = section.padded if isinstance(section, Delivery) else section.masked
                yield MaskedVector(
                    partition=passed.partition,
                    order=order,
                    request=request,
                    members=cohorts[section.cohort],
                    delivered=delivered,
                    ring=np.concatenate(parts),
                )


@dataclass
class Watched:
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    client : PhaseClient
    totals : list of (str, ndarray)
        Name and content of the sums that it opened.
    secrets : dict
        Partition -> secret of the pair, as far as it used it.
    """

    client: Any
    totals: list[tuple[str, NDArray[Any]]] = field(default_factory=list)
    secrets: dict[int, bytes] = field(default_factory=dict)


T = TypeVar("T", bound=Watched)


class Watcher(Generic[T]):
    """Watches all parties of one run in this process.

    Attributes
    ----------
    parties : dict
        Partition -> what that party has in hand.
    """

    insider: type[T]

    def __init__(self) -> None:
        self.parties: dict[int, T] = {}

    def watch(self, client_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a ``client_fn`` whose clients note what they open, and are as before."""

        def watched(context: Any) -> Any:
            client = client_fn(context)
            insider = self.parties.setdefault(client.partition, self.insider(client))
            insider.client = client
            _listen(client, insider)
            self.listen(client, insider)
            return client

        return watched

    def listen(self, client: Any, insider: T) -> None:
        """Have a client note what else it has in hand."""


def _listen(client: Any, insider: Watched) -> None:
    open_sums, pair_secret = client._open_sums, client.pair_secret

    def opened(session: str, sections: Any) -> Any:
        sums = open_sums(session, sections)
        if sums is not None:
            insider.totals += [(name, total.copy()) for name, total in sums.delivered.items()]
        return sums

    def shared(other: int) -> bytes:
        insider.secrets[other] = pair_secret(other)
        return insider.secrets[other]

    client._open_sums, client.pair_secret = opened, shared
