"""Define attacks, and what they share: recorded runs, masked vectors, what parties open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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

from ..engines import Transcript, simulate

Floats = NDArray[np.float64]
Verdict = Literal["fails", "admitted", "LEAK"]


@dataclass(frozen=True)
class Seen:
    """What a viewer recovers.

    Attributes
    ----------
    viewer : str
        The attacker.
    score : float
        How much is recovered, 0 to 1.
    admits : str (default: "")
        The sentence of ``privacy()`` that admits it; empty for none.
    privacy : mapping, optional
        The ``privacy()`` of the run.
    """

    viewer: str
    score: float
    admits: str = ""
    privacy: Mapping[str, Any] | None = None

    @property
    def admitted(self) -> bool:
        """Whether ``privacy()`` has the sentence."""
        return bool(self.admits) and self.admits in str(dict(self.privacy or {}))


Run = Callable[..., list[Seen]]


def attack_on(
    run: Callable[[int], Any],
    measure: Callable[[Any, int], float],
    viewer: str = "server",
    admits: str = "",
) -> Run:
    """Attack a run.

    Parameters
    ----------
    run : callable
        Seed -> the run. Its ``strategy`` has the ``privacy()`` that may admit something.
    measure : callable
        (run, seed) -> score.
    viewer, admits : str
        See :class:`Seen`.
    """

    def tried(seed: int) -> list[Seen]:
        one = run(seed)
        privacy = one.strategy.privacy() if admits else None
        return [Seen(viewer, float(measure(one, seed)), admits, privacy)]

    return tried


def together(*runs: Run) -> Run:
    """Attack by several viewers."""
    return lambda seed: [seen for run in runs for seen in run(seed)]


def both(
    measure: Callable[[Any, int], float],
    paper: Callable[[int], Any],
    default: Callable[[int], Any],
    viewer: str = "server",
    admits: str = "",
    *,
    by: str = "",
) -> tuple[Run, Run]:
    """Attack the paper's protocol and the default alike; ``by`` is the default's viewer."""
    return attack_on(paper, measure, viewer), attack_on(default, measure, by or viewer, admits)


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    name : str
    methods : sequence of str
        Their names on the command line.
    claim : str
        A paper's claim that it refutes, or a claim that a default must withstand.
    protocol : str
        The protocol on which it succeeds.
    measure : str
        Meaning of the score.
    threshold : float
        A higher score counts as recovered.
    runs : (callable, callable)
        Seed -> what is recovered on that protocol, and on the default of the method.
    """

    name: str
    methods: Sequence[str]
    claim: str
    protocol: str
    measure: str
    threshold: float
    runs: tuple[Run, Run]

    def verdict(self, seen: Seen) -> Verdict:
        """Judge a score on the default."""
        if seen.score <= self.threshold:
            return "fails"
        return "admitted" if seen.admitted else "LEAK"


def served(build: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """Make a ``client_fn`` of what builds a client from context and partition."""
    return lambda context: build(context, int(context.node_config["partition-id"]))


def correlation(found: Floats, truth: Floats) -> float:
    """Compute Pearson's correlation; 0 where nothing was found or values do not vary."""
    if not np.isfinite(found).all() or not np.ptp(found) or not np.ptp(truth):
        return 0.0
    return float(np.corrcoef(found.ravel(), truth.ravel())[0, 1])


def closeness(found: Any, truth: Any) -> float:
    """Compute 1 less the relative error, at least 0."""
    error = np.linalg.norm(np.ravel(found) - np.ravel(truth)) / np.linalg.norm(np.ravel(truth))
    return max(0.0, 1.0 - float(error))


def made_up_table(rows: int, columns: int, seed: int) -> tuple[Floats, Floats]:
    """Make correlated features on [0, 1], shape (rows, columns), and labels 0 or 1."""
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((rows, 3))
    x = hidden @ rng.standard_normal((3, columns)) + rng.standard_normal((rows, columns))
    y = (hidden[:, 0] + 0.3 * rng.standard_normal(rows) > 0.0).astype(np.float64)
    return (x - x.min(axis=0)) / np.ptp(x, axis=0), y


# -- a recorded run

_SECTIONS: dict[str, type[PhaseMessage]] = {
    cls.phase: cls for cls in (Roster, Order, Upload, Delivery)
}


@dataclass(frozen=True)
class Passed:
    """A message of the method, read.

    Attributes
    ----------
    up : bool
        Whether it goes to the server.
    partition : int
        The party.
    message : PhaseMessage
    sections : tuple of PhaseMessage
        Of secure sums.
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
        The sender; of a delivered total, the receiver.
    order : Order
        Of the sum.
    request : PhaseMessage
        The request for it.
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
        """Decode it as if it had no mask."""
        found = Encoding.of(self.order).decode(self.ring, len(self.members))
        return np.asarray(found, np.float64)


@dataclass
class Watched:
    """What a party has besides its messages.

    Attributes
    ----------
    client : Client
    totals : list of (str, ndarray)
        Name and content of the sums that it opened.
    noted : dict
        What else :meth:`SeenRun.listen` notes.
    """

    client: Any
    totals: list[tuple[str, NDArray[Any]]] = field(default_factory=list)
    noted: dict[str, Any] = field(default_factory=dict)


class SeenRun:
    """Run a method in this process, and keep its messages and the sums that parties open.

    Parameters
    ----------
    strategy : Strategy
    build : callable
        (context, partition) -> client.
    parties : int
    **start
        More arguments of :func:`simulate`.

    Attributes
    ----------
    watched : dict
        Partition -> :class:`Watched`.
    """

    kinds: ModuleType
    opening: type[PhaseMessage]

    def __init__(
        self, strategy: Any, build: Callable[[Any, int], Any], parties: int, **start: Any
    ) -> None:
        self.strategy, self.transcript = strategy, Transcript()
        self.watched: dict[int, Watched] = {}

        def watched(context: Any, partition: int) -> Any:
            client = build(context, partition)
            insider = self.watched.setdefault(partition, Watched(client))
            insider.client = client
            self.listen(client, insider)
            return client

        simulate(strategy, served(watched), parties, transcript=self.transcript, **start)

    def listen(self, client: Any, insider: Watched) -> None:
        """Have a client note the sums that it opens."""
        open_sums = client._open_sums

        def opened(session: str, sections: Any) -> Any:
            sums = open_sums(session, sections)
            if sums is not None:
                insider.totals += [(name, total.copy()) for name, total in sums.delivered.items()]
            return sums

        client._open_sums = opened

    @cached_property
    def messages(self) -> list[Passed]:
        """Read the transcript.

        Raises
        ------
        ProtocolError
            The method's first request is missing: nothing could be attacked.
        """
        found = list(read_messages(self.transcript, self.kinds))
        if not any(isinstance(passed.message, self.opening) for passed in found):
            raise ProtocolError(
                f"the transcript holds no run of {self.strategy.method}",
                code="FK-ATTACK-TRANSCRIPT",
            )
        return found

    @property
    def settings(self) -> Any:
        """The first request of the kind :attr:`opening`."""
        return next(p.message for p in self.messages if isinstance(p.message, self.opening))

    @property
    def session(self) -> str:
        """Of the run."""
        found: str = self.settings.session
        return found

    @cached_property
    def parties(self) -> dict[int, Any]:
        """Descriptions by partition."""
        described = (p for p in self.messages if isinstance(p.message, DescribeReply))
        return {p.partition: p.message for p in described}

    @cached_property
    def cohorts(self) -> dict[int, tuple[int, ...]]:
        """Members by cohort."""
        rosters = [s for p in self.messages for s in p.sections if isinstance(s, Roster)]
        members = Membership.read(rosters[0], self.session).cohorts if rosters else ()
        return {c.number: c.members for c in members}

    def requests(self, kind: type[Any], partition: int | None = None) -> Iterator[Any]:
        """Yield the requests of a kind, to one party or to all."""
        for passed in self.messages:
            if type(passed.message) is kind and partition in (None, passed.partition):
                yield passed.message

    def answered(self, *replies: type[PhaseMessage]) -> Iterator[tuple[Passed, Any]]:
        """Yield replies of some kinds with their requests."""
        sent: dict[int, Any] = {}
        for passed in self.messages:
            if not passed.up:
                sent[passed.partition] = passed.message
            elif isinstance(passed.message, replies) and passed.partition in sent:
                yield passed, sent[passed.partition]

    def masked(self) -> Iterator[MaskedVector]:
        """Yield each masked vector that the server received, and each total that it passed on.

        Raises
        ------
        ProtocolError
            A reply lacks its vectors.
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
                    party=f"partition {passed.partition}",
                    code="FK-ATTACK-TRANSCRIPT",
                )
            for section in passed.sections:
                if isinstance(section, Upload | Delivery):
                    order, request = orders[section.cohort, section.index]
                    delivered = isinstance(section, Delivery)
                    parts = section.padded if isinstance(section, Delivery) else section.masked
                    members = self.cohorts[section.cohort]
                    ring = np.concatenate(parts)
                    yield MaskedVector(passed.partition, order, request, members, delivered, ring)


def read_messages(transcript: Transcript, messages: ModuleType) -> Iterator[Passed]:
    """Yield the messages of a method, with the classes of a module, in sequence."""
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
