"""One exchange: a message to each node concerned, and its replies or the reason for none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .errors import FedKernError, ProtocolError
from .failure import Failure, read_error
from .ledger import Ledger
from .plain_text import LONGEST
from .wire.message import PhaseMessage
from .wire.numpy_format import add_arrays, array_record, read_array, read_arrays
from .wire.sections import Section, attach, detach, section_arrays, section_bytes

Reply = TypeVar("Reply", bound=PhaseMessage)

#: Records of a request of ours, beside which a message may carry others, and of its reply.
CONFIG, PARAMETERS, REPLY = "fitins.config", "fitins.parameters", "fitres.metrics"
UPLOADS = "fitres.parameters"
_EMPTY = "_empty"  # Flower's placeholder for an empty list of arrays
_POLL_FIRST, _POLL_LAST = 0.1, 2.0  # seconds from one look for replies to the next
_POLL_SHARE = 0.05  # of what an exchange has taken
_GROUP = 32  # replies that are asked for at once: Flower's grids hold them all in memory
_LOOK = 10.0  # seconds from one look at who is connected to the next
FAREWELL = 60.0  # seconds that nodes are waited for that are told that the run is over
_GRACE = 1.0  # seconds that nodes get at least when the others' replies are enough


@dataclass(frozen=True)
class Outcome:
    """The outcome of one exchange, by node id."""

    replies: dict[int, Message] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)


def request_content(arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Lay records out as Flower's NumPy clients expect them."""
    return RecordDict({PARAMETERS: arrays, CONFIG: config})


def reply_content(arrays: list[NDArray[Any]], scalars: Mapping[str, Any]) -> RecordDict:
    """Lay out a reply as Flower's NumPy clients do, in a message of any type."""
    return RecordDict({UPLOADS: array_record(arrays), REPLY: ConfigRecord(dict(scalars))})


def request_messages(
    request: PhaseMessage,
    nodes: Iterable[int],
    *,
    group_id: str,
    arrays: ArrayRecord | None = None,
    sections: Mapping[int, Sequence[PhaseMessage]] | None = None,
) -> list[Message]:
    """Address one request to several nodes; the records are packed once and shared.

    Parameters
    ----------
    request : PhaseMessage
        What to ask.
    nodes : iterable of int
        Ids of the destinations.
    group_id : str
        Name of the exchange, such as the round.
    arrays : ArrayRecord, optional
        The request's arrays when they are packed already.
    sections : mapping, optional
        Node -> sections that its request carries.
    """
    packed = array_record(request.arrays()) if arrays is None else arrays
    config = ConfigRecord(dict(request.scalars()))
    shared = request_content(packed, config)
    messages = []
    for node in nodes:
        content = shared
        if sections and sections.get(node):
            more, extra = attach(sections[node])
            record, own = packed, config.copy()
            if more:
                record = add_arrays(packed.copy(), more)
            own.update(extra)
            content = request_content(record, own)
        messages.append(Message(content, dst_node_id=node, message_type="train", group_id=group_id))
    return messages


def payload_bytes(message: Message) -> int:
    """Return the payload of a message in bytes: its arrays, and what sections add to them."""
    if not message.has_content():
        return 0
    total = 0
    for record in message.content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        elif isinstance(record, ConfigRecord):
            total += section_bytes(record)
    return total


def take_sections(message: Message, *, party: str) -> list[Section]:
    """Remove the sections from a reply and return them; what is left is the method's own reply.

    Raises
    ------
    ProtocolError
        The sections are damaged.
    """
    if not message.has_content():
        return []
    scalars, record = message.content.get(REPLY), message.content.get(UPLOADS)
    if not isinstance(scalars, ConfigRecord) or not isinstance(record, ArrayRecord):
        return []
    try:
        count = section_arrays(scalars)
        if count is None:
            return []
        arrays, keys = [], [key for key in record if key != _EMPTY]
        for key in keys[len(keys) - count :]:
            arrays.append(read_array(record[key]))
            del record[key]  # so that no upload stands in memory twice
    except ValueError:
        raise ProtocolError(
            "its sections are damaged", party=party, code="FK-MESSAGE-DAMAGED"
        ) from None
    _, own, sections = detach(arrays, dict(scalars), party=party)
    for name in [name for name in scalars if name not in own]:
        del scalars[name]
    return sections


def read_reply(reply: type[Reply], message: Message, *, party: str, **sizes: int) -> Reply:
    """Check and rebuild the reply that a message carries.

    Raises
    ------
    ProtocolError
        If the message is not a proper reply of this phase, or a text in it is no plain line.
    """
    content = message.content
    try:
        record: Any = content[UPLOADS]
        arrays, scalars = read_arrays(record), dict(content[REPLY])
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ProtocolError(
            "the reply is not one of a fedkern-flwr client",
            remedy="serve one of the clients in fedkern_flwr.clients on this node",
            party=party,
            phase=reply.phase,
            code="FK-NODE-FOREIGN",
        ) from None
    found = reply.unpack(arrays, scalars, party=party, **sizes)
    for name, value in found.scalars().items():
        if isinstance(value, str) and (len(value) > LONGEST or not value.isprintable()):
            raise ProtocolError(
                f"its {name} is no line of at most {LONGEST} printable characters",
                remedy="correct that node's configuration",
                party=party,
                phase=reply.phase,
                code="FK-MESSAGE-TEXT",
            )
    return found


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    *,
    phase: str,
    timeout: float,
    ledger: Ledger,
    on_reply: Callable[[int, Message], None] | None = None,
    enough: Callable[[], bool] | None = None,
    idle: Iterable[int] = (),
) -> Outcome:
    """Send messages; wait for every reply or error, for enough of them, or the time-out.

    Replies and errors are matched by the id of the request, because an error for a node that
    cannot be reached comes from another node. Messages that answer nothing we wait for (late or
    duplicate ones) are ignored.

    Parameters
    ----------
    grid : Grid
        Flower's grid, of any engine.
    messages : sequence of Message
        At most one per node.
    phase : str
        Name for the ledger.
    timeout : float
        Seconds to wait for all replies together.
    ledger : Ledger
        Totals to add to.
    on_reply : callable, optional
        Called with (node, reply) as a reply arrives. What it takes out of the reply is free to go,
        so large uploads need not wait for each other. An error of ours that it raises counts as an
        invalid reply.
    enough : callable, optional
        Whether the replies so far will do, asked after each batch. Then the others get as long
        again as it took, and a second at least; who is later than that has not failed, it is
        neither in ``replies`` nor in ``failures``.
    idle : iterable of int
        Nodes that are only told something: they are waited for a minute longer than the others at
        most, and have not failed whatever they answer.

    Raises
    ------
    EngineError
        If a Ray actor died: Flower's engine keeps handing messages to it.
    """
    started = time.monotonic()
    courier = Courier(grid, ledger, on_reply)
    outcome = Outcome(failures=courier.send(messages, phase=phase))
    limit, satisfied, told = timeout, False, set(idle)
    while courier.waiting:
        arrived = courier.collect(outcome)
        if not courier.waiting:
            break
        elapsed = time.monotonic() - started
        if enough is not None and not satisfied and enough():
            satisfied, limit = True, min(limit, elapsed + max(_GRACE, elapsed))
        if told and told.issuperset(courier.waiting):
            limit, told = min(limit, elapsed + FAREWELL), set()
        if elapsed > limit:
            break
        if not arrived:
            time.sleep(min(pause(elapsed), max(0.0, limit - elapsed)))
    for node in () if satisfied else courier.waiting:
        outcome.failures[node] = Failure("timed out", f"after {timeout:g} s")
    for node in idle:
        outcome.failures.pop(node, None)
    ledger.seconds += time.monotonic() - started
    return outcome


def pause(elapsed: float) -> float:
    """Return for how many seconds not to look for replies in an exchange that has taken some.

    Examples
    --------
    >>> [pause(seconds) for seconds in (0.1, 1.0, 10.0, 100.0)]
    [0.1, 0.1, 0.5, 2.0]
    """
    return min(max(_POLL_FIRST, _POLL_SHARE * elapsed), _POLL_LAST)


class Courier:
    """Messages under way: some are sent while others are still waited for.

    Parameters
    ----------
    grid : Grid
        Flower's grid, of any engine.
    ledger : Ledger
        Totals to add to; seconds are the caller's.
    on_reply : callable, optional
        See :func:`exchange`.
    """

    def __init__(
        self,
        grid: Grid,
        ledger: Ledger,
        on_reply: Callable[[int, Message], None] | None = None,
    ) -> None:
        self.grid, self.ledger, self.on_reply = grid, ledger, on_reply
        self._under_way: dict[str, tuple[int, str]] = {}
        self._looked = time.monotonic()
        self._absent: set[int] = set()  # not connected when last looked for

    @property
    def waiting(self) -> list[int]:
        """The nodes whose replies are waited for, in the order in which they were asked."""
        return [node for node, _ in self._under_way.values()]

    def send(self, messages: Sequence[Message], *, phase: str) -> dict[int, Failure]:
        """Send messages, which count as one exchange; return who cannot be reached."""
        failures: dict[int, Failure] = {}
        ids = list(self.grid.push_messages(messages))
        for message_id, message in zip(ids, messages, strict=True):
            node = message.metadata.dst_node_id
            if message_id:
                self._under_way[message_id] = (node, phase)
            else:
                failures[node] = Failure("unreachable")
        self.ledger.exchanges += 1
        self.ledger.by_phase[phase] += 1
        self.ledger.messages += len(messages)
        payloads = {id(message.content): message for message in messages}  # often shared by all
        sizes = {content: payload_bytes(message) for content, message in payloads.items()}
        self.ledger.bytes_down += sum(sizes[id(message.content)] for message in messages)
        return failures

    def forget(self, nodes: Iterable[int]) -> None:
        """Wait no longer for some nodes: what they send is ignored."""
        dropped = set(nodes)
        for message_id in [i for i, (node, _) in self._under_way.items() if node in dropped]:
            del self._under_way[message_id]

    def collect(self, outcome: Outcome) -> int:
        """Add what has arrived to ``outcome``; return how many replies and errors that were.

        Raises
        ------
        EngineError
            See :func:`exchange`.
        """
        arrived = 0
        for group in _groups(list(self._under_way)):
            for reply in self.grid.pull_messages(group):
                place = self._under_way.pop(reply.metadata.reply_to_message_id, None)
                if place is None:
                    continue
                arrived += 1
                node, phase = place
                if reply.has_error():
                    outcome.failures[node] = read_error(reply, phase)
                    continue
                self.ledger.bytes_up += payload_bytes(reply)
                try:
                    if self.on_reply is not None:
                        self.on_reply(node, reply)
                    outcome.replies[node] = reply
                except FedKernError as error:
                    outcome.failures[node] = Failure.invalid(error)
        return arrived or self._give_up(outcome)

    def _give_up(self, outcome: Outcome) -> int:
        """Wait no longer for nodes that two looks in a row have not found connected.

        Whoever comes back in time still has its request; a killed one would be waited for until
        the time-out, which is hours in a deployment.
        """
        now = time.monotonic()
        if now < self._looked + _LOOK:
            return 0
        self._looked = now
        absent = set(self.waiting) - set(self.grid.get_node_ids())
        gone, self._absent = absent & self._absent, absent
        self.forget(gone)
        outcome.failures.update(dict.fromkeys(gone, Failure("unreachable", "(disconnected)")))
        return len(gone)


def _groups(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _GROUP):
        yield ids[start : start + _GROUP]
