"""What attacks are, and what they share: messages of a run, masked vectors, what parties have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.membership import Membership
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.message import PhaseMessage, detach
from fedkern_flwr.wire.sums import Delivery, Order, Roster, Upload

from ..engines import Transcript

Floats = NDArray[np.float64]
Verdict = Literal["fails", "admitted", "LEAK"]


@dataclass(frozen=True)
class Seen:
    """What somebody recovers.

    Attributes
    ----------
    viewer : str
        Who attacks.
    score : float
        How much is recovered, 0 to 1.
    admits : str (default: "")
        What the method's ``privacy()`` says of it, word for word; empty where it admits nothing.
    privacy : mapping, optional
        The ``privacy()`` of the run.
    """

    viewer: str
    score: float
    admits: str = ""
    privacy: Mapping[str, Any] | None = None

    @property
    def admitted(self) -> bool:
        """Whether ``privacy()`` says so."""
        return bool(self.admits) and self.admits in str(dict(self.privacy or {}))


Run = Callable[..., list[Seen]]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    name : str
    methods : sequence of str
        The methods that it is on, as the command line calls them.
    claim : str
        What a paper says and the attack refutes, or what a default must withstand.
    protocol : str
        The protocol on which it succeeds.
    measure : str
        What the score is.
    threshold : float
        A score above it counts as recovered.
    runs : (callable, callable)
        A seed -> what is recovered on that protocol, and on the default of the method.
    """

    name: str
    methods: Sequence[str]
    claim: str
    protocol: str
    measure: str
    threshold: float
    runs: tuple[Run, Run]

    def verdict(self, seen: Seen) -> Verdict:
        """Return what a score on the default means."""
        if seen.score <= self.threshold:
            return "fails"
        return "admitted" if seen.admitted else "LEAK"


def served(build: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Return the ``client_fn`` that builds a client of a context and its number."""
    return lambda context: build(context, int(context.node_config["partition-id"]))


def correlation(found: Floats, truth: Floats) -> float:
    """Return Pearson's correlation, 0 where nothing was found or it is the same everywhere."""
    if not np.isfinite(found).all() or not np.ptp(found) or not np.ptp(truth):
        return 0.0
    return float(np.corrcoef(found.ravel(), truth.ravel())[0, 1])


def made_up_table(rows: int, columns: int, seed: int) -> tuple[Floats, Floats]:
    """Return features on [0, 1] that hang together, (rows, columns), and labels 0 or 1."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((rows, 3))
    x = hidden @ rng.standard_normal((3, columns)) + rng.standard_normal((rows, columns))
    y = (hidden[:, 0] + 0.3 * rng.standard_normal(rows) > 0.0).astype(np.float64)
    return (x - x.min(axis=0)) / np.ptp(x, axis=0), y


# -- what is seen of a run

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

    def read(self) -> Floats:
        """Return the numbers of fixed point that it would be without masks."""
        found = Encoding.of(self.order).decode(self.ring, len(self.members))
        return np.asarray(found, np.float64)


def read_messages(transcript: Transcript, messages: ModuleType) -> Iterator[Passed]:
    """Yield the messages of a method, those of a module, in the order in which they passed."""
    own = [m for m in vars(messages).values() if getattr(m, "phase", "")]
    requests, replies = (
        {kind.phase: kind for kind in own if kind.__name__.endswith(end)}
        for end in ("Request", "Reply")
    )
    replies.setdefault(DescribeReply.phase, DescribeReply)
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


class SeenRun:
    """A recorded run of a method: its messages, who took part, and what is under masks.

    Parameters
    ----------
    transcript : Transcript
        All messages, what came late included.
    insiders : Watcher, optional
        Who watched the same run.

    Attributes
    ----------
    messages : list of Passed
        In the order in which they passed.
    settings : PhaseMessage
        The first request of the kind :attr:`opening`.
    session : str
    parties : dict
        Partition -> its description.
    cohorts : dict
        Number -> partitions that sum together; none of a run without secure sums.

    Raises
    ------
    ProtocolError
        Messages are missing: nothing could be audited.
    """

    name: str
    kinds: ModuleType
    opening: type[PhaseMessage]
    settings: Any

    def __init__(self, transcript: Transcript, insiders: Any = None) -> None:
        self.transcript, self.insiders = transcript, insiders
        self.messages = list(read_messages(transcript, self.kinds))
        opened: list[Any] = [
            p.message for p in self.messages if isinstance(p.message, self.opening)
        ]
        if not opened:
            raise ProtocolError(
                f"the transcript holds no run of {self.name}",
                remedy="record all messages as they pass",
                code="FK-ATTACK-TRANSCRIPT",
            )
        self.settings = opened[0]
        self.session: str = self.settings.session
        self.parties: dict[int, Any] = {
            p.partition: p.message for p in self.messages if isinstance(p.message, DescribeReply)
        }
        rosters = [s for p in self.messages for s in p.sections if isinstance(s, Roster)]
        members = Membership.read(rosters[0], self.session).cohorts if rosters else ()
        self.cohorts: dict[int, tuple[int, ...]] = {c.number: c.members for c in members}

    def requests(self, kind: type[Any], partition: int | None = None) -> Iterator[Any]:
        """Yield the requests of a kind, to one party or to all."""
        for passed in self.messages:
            if type(passed.message) is kind and partition in (None, passed.partition):
                yield passed.message

    def answered(self, *replies: type[PhaseMessage]) -> Iterator[tuple[Passed, Any]]:
        """Yield replies of some kinds, and the requests that they answer."""
        asked: dict[int, Any] = {}
        for passed in self.messages:
            if not passed.up:
                asked[passed.partition] = passed.message
            elif isinstance(passed.message, replies) and passed.partition in asked:
                yield passed, asked[passed.partition]

    def masked(self) -> Iterator[MaskedVector]:
        """Yield every masked vector that the server was sent, and every total that it passed on.

        Raises
        ------
        ProtocolError
            A reply came without any of the vectors that were ordered.
        """
        orders: dict[tuple[int, int], tuple[Order, Any]] = {}
        due: dict[int, bool] = {}
        for passed in self.messages:
            if not passed.up:
                ordered = [s for s in passed.sections if isinstance(s, Order)]
                orders |= {(s.cohort, s.index): (s, passed.message) for s in ordered}
                due[passed.partition] = bool(ordered)
            elif due.pop(passed.partition, False) and not passed.sections:
                raise ProtocolError(
                    "the transcript holds a reply without its masked vectors",
                    remedy="record all messages as they pass",
                    party=f"partition {passed.partition}",
                    code="FK-ATTACK-TRANSCRIPT",
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
                        members=self.cohorts[section.cohort],
                        delivered=delivered,
                        ring=np.concatenate(parts),
                    )


@dataclass
class Watched:
    """What a party has besides the messages that it is sent.

    Attributes
    ----------
    client : Client
    totals : list of (str, ndarray)
        Name and content of the sums that it opened.
    """

    client: Any
    totals: list[tuple[str, NDArray[Any]]] = field(default_factory=list)


class Watcher:
    """Watches all parties of one run in this process.

    Attributes
    ----------
    parties : dict
        Partition -> what that party has in hand.
    """

    insider: type[Any] = Watched

    def __init__(self) -> None:
        self.parties: dict[int, Any] = {}

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

    def listen(self, client: Any, insider: Any) -> None:
        """Have a client note what else it has in hand."""


def _listen(client: Any, insider: Watched) -> None:
    open_sums = client._open_sums

    def opened(session: str, sections: Any) -> Any:
        sums = open_sums(session, sections)
        if sums is not None:
            insider.totals += [(name, total.copy()) for name, total in sums.delivered.items()]
        return sums

    client._open_sums = opened
