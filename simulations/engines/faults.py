"""Inject faults into messages and replies, on every engine.

A plan decides from partition, phase and round alone, so a resumed run meets the same faults.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedkern_flwr.errors import OptionError
from fedkern_flwr.flower_compat import CLIENT_RAISED, NODE_UNAVAILABLE, stamp_message
from fedkern_flwr.options import within
from fedkern_flwr.seeding import uniform

from .in_process import GridWrapper

Kind = Literal["lost request", "lost reply", "vanished", "error", "delay", "tamper", "duplicate"]


@dataclass(frozen=True)
class Fault:
    """Fault of one request and its reply.

    Attributes
    ----------
    kind : str
        ``lost request``: never arrives. ``lost reply``: the client works, the server hears nothing.
        ``vanished``: as lost reply, but the engine reports the node as gone. ``error``: the client
        never runs, an exception is reported. ``delay``: the reply comes ``seconds`` later.
        ``tamper``: ``change`` is applied to the reply. ``duplicate``: the request arrives twice.
    seconds : float
        For ``delay``.
    change : callable, optional
        For ``tamper``: message -> message.
    """

    kind: Kind
    seconds: float = 0.0
    change: Callable[[Message], Message] | None = None


@dataclass(frozen=True)
class Delivery:
    """The facts of a request that a plan may use."""

    partition: int
    phase: str
    round: int
    attempt: int = 0


Plan = Callable[[Delivery], Fault | None]


@dataclass(frozen=True)
class DropOut:
    """Let each client vanish in each training round with the same probability.

    Parameters
    ----------
    fraction : float
        Probability in [0, 1).
    seed : int (default: 0)
    """

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        within("drop", self.fraction, "[0, 1)")

    def __call__(self, delivery: Delivery) -> Fault | None:
        """Decide whether the client vanishes."""
        if delivery.round < 1 or delivery.phase.endswith("evaluate"):
            return None
        place = (delivery.partition, delivery.phase, delivery.round)
        again = (delivery.attempt,) if delivery.attempt else ()
        draw = uniform(self.seed, "drop", *place, *again)
        return Fault("vanished") if draw < self.fraction else None


@dataclass(frozen=True)
class FaultPlan:
    """A list of faults, each for one partition, phase and round; None matches any.

    Parameters
    ----------
    faults : sequence of (partition, phase, round, Fault)
    """

    faults: Sequence[tuple[int | None, str | None, int | None, Fault]] = field(default_factory=list)

    def __call__(self, delivery: Delivery) -> Fault | None:
        """Return the first fault that fits."""
        for partition, phase, number, fault in self.faults:
            if (
                partition in (None, delivery.partition)
                and phase in (None, delivery.phase)
                and number in (None, delivery.round)
            ):
                return fault
        return None


class FaultyGrid(GridWrapper):
    """Inject the faults of a plan into the traffic of another grid.

    Partitions are read from replies to ``describe``; before these nodes are numbered by their ids.
    """

    def __init__(self, grid: Grid, plan: Plan) -> None:
        super().__init__(grid)
        self.plan = plan
        self._partitions: dict[int, int] = {}
        self._faults: dict[str, Fault] = {}
        self._invented: dict[str, Message] = {}
        self._held: dict[str, tuple[float, Message]] = {}
        self._second: set[str] = set()  # second deliveries, without a waiting caller
        self._numbers = itertools.count(1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push the messages that arrive."""
        ids: list[str] = []
        for message in messages:
            fault = self.plan(self._delivery(message))
            if fault is not None and fault.kind in ("lost request", "error"):
                message_id = f"-{next(self._numbers)}"
                stamp_message(message, message_id=message_id)
                if fault.kind == "error":
                    error = Error(CLIENT_RAISED, "<class 'InjectedError'>:<'injected'>")
                    self._invented[message_id] = Message(error, reply_to=message)
                self._faults[message_id] = fault
                ids.append(message_id)
                continue
            (message_id,) = self.grid.push_messages([message])
            if fault is not None and message_id:
                self._faults[message_id] = fault
                if fault.kind == "duplicate":
                    self._second.update(self.grid.push_messages([_copy(message)]))
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and apply the plan."""
        wanted = set(message_ids)
        out = [self._invented.pop(i) for i in wanted & set(self._invented)]
        now = time.monotonic()
        for message_id in [i for i, (due, _) in self._held.items() if due <= now and i in wanted]:
            out.append(self._held.pop(message_id)[1])
        real = {i for i in wanted if not i.startswith("-") and i not in self._held}
        for reply in self.grid.pull_messages(real | self._second):
            message_id = reply.metadata.reply_to_message_id
            self._second.discard(message_id)
            self._learn_partition(reply)
            fault = self._faults.get(message_id)
            if fault is None or fault.kind == "duplicate":
                out.append(reply)
            elif fault.kind == "vanished":
                out.append(_unavailable(reply))
            elif fault.kind == "delay":
                self._held[message_id] = (time.monotonic() + fault.seconds, reply)
            elif fault.kind == "tamper" and fault.change is not None:
                out.append(fault.change(reply))
        return out

    def _delivery(self, message: Message) -> Delivery:
        node = message.metadata.dst_node_id
        config: Mapping[str, Any] = next(iter(message.content.config_records.values()), {})
        number, attempt = config.get("round", 0), config.get("attempt", 0)
        return Delivery(
            partition=self._partition(node),
            phase=str(config.get("phase", "")),
            round=number if isinstance(number, int) else 0,
            attempt=attempt if isinstance(attempt, int) else 0,
        )

    def _partition(self, node: int) -> int:
        if node in self._partitions:
            return self._partitions[node]
        nodes = sorted(self.grid.get_node_ids())
        return nodes.index(node) if node in nodes else -1

    def _learn_partition(self, reply: Message) -> None:
        if reply.has_content():
            for record in reply.content.config_records.values():
                if record.get("phase") == "describe":
                    self._partitions[reply.metadata.src_node_id] = int(record["partition"])  # type: ignore[arg-type]


def _copy(message: Message) -> Message:
    return Message(
        message.content,
        dst_node_id=message.metadata.dst_node_id,
        message_type=message.metadata.message_type,
        group_id=message.metadata.group_id,
    )


def _unavailable(reply: Message) -> Message:
    """Turn a reply into the error of a SuperLink for a node that is gone."""
    lost = Message(Error(NODE_UNAVAILABLE, "node unavailable (injected)"), reply_to=reply)
    lost.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return lost


# -- delays of groups of users: some are slow in every iteration, or now and then

Law = Literal["exponential", "fixed"]

#: Phases whose replies are held back: those in which users work.
DELAYED = frozenset({"svm-local", "svm-step", "svm-visit"})

_LONGEST = 3600.0  # seconds
_REMEDY = "use exponential:SECONDS or fixed:SECONDS, for all groups or a number for each"


@dataclass(frozen=True)
class DelayLaw:
    """Delays of the groups' replies.

    Attributes
    ----------
    law : {"exponential", "fixed"}
        Random with these means, or constant.
    means : tuple of float
        Seconds: one number for all groups, or one for each.

    Examples
    --------
    >>> DelayLaw.parse("exponential:0.05,0.25")
    DelayLaw(law='exponential', means=(0.05, 0.25))
    """

    law: Law
    means: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LAW:SECONDS`` or ``LAW:SECONDS,SECONDS,...``.

        Raises
        ------
        OptionError
        """
        law, _, numbers = text.partition(":")
        try:
            means = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            raise OptionError(f"delay is {text!r}", remedy=_REMEDY, code="FK-OPTION-TYPE") from None
        if law not in get_args(Law) or not all(0.0 <= mean <= _LONGEST for mean in means):
            raise OptionError(f"delay is {text!r}", remedy=_REMEDY, code="FK-OPTION-TYPE")
        return cls(law, means)  # type: ignore[arg-type]

    def check(self, groups: int) -> None:
        """Refuse a number of means that does not fit the groups.

        Raises
        ------
        OptionError
        """
        if len(self.means) not in (1, groups):
            raise OptionError(
                f"delay has {len(self.means)} numbers for {groups} groups",
                remedy=_REMEDY,
                code="FK-GROUPS-DIFFER",
            )

    def seconds(self, group: int, number: int, seed: int) -> float:
        """Return the delay of a group in an iteration; it depends on the arguments only."""
        mean = self.means[group if len(self.means) > 1 else 0]
        if self.law == "fixed":
            return mean
        return -mean * math.log1p(-uniform(seed, "delay", group, number))


@dataclass(frozen=True)
class GroupDelays:
    """Hold back the replies of all users of a group by the same time, drawn per iteration.

    ``groups`` has the group of each user, by partition; other partitions have no delay.

    Raises
    ------
    OptionError
        See :meth:`DelayLaw.check`.
    """

    law: DelayLaw
    groups: Sequence[int]
    seed: int = 0

    def __post_init__(self) -> None:
        self.law.check(len(set(self.groups)))

    def __call__(self, delivery: Delivery) -> Fault | None:
        """Return the delay of the reply."""
        if delivery.phase not in DELAYED or not 0 <= delivery.partition < len(self.groups):
            return None
        seconds = self.law.seconds(self.groups[delivery.partition], delivery.round, self.seed)
        return Fault("delay", seconds=seconds) if seconds > 0.0 else None


def first_fault(*plans: Plan | None) -> Plan | None:
    """Join plans: the first one that has a fault decides."""
    given = [plan for plan in plans if plan is not None]
    if len(given) < 2:
        return given[0] if given else None
    return lambda delivery: next((f for plan in given if (f := plan(delivery)) is not None), None)
