"""What may happen to a run: plans of faults that tell its exchanges apart, and broken messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Message

from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.simulations.engines.faults import Delivery

Exchange = tuple[str, list[int]]  # phase, and the partitions that are asked


class PowerCutError(Exception):
    """Ends the server in the middle of an exchange."""


def cut() -> None:
    """End the server."""
    raise PowerCutError


@dataclass
class Exchanges:
    """Notes the exchanges of a run; the base of the plans that follow.

    Who is told in the last exchange that the run is over, and nothing else, is left alone.
    """

    seen: list[Exchange] = field(default_factory=list)
    last: tuple[str, int] = ("", -1)

    def __call__(self, delivery: Delivery) -> Fault | None:
        if delivery.phase == "finish" and delivery.round == self.last[1]:
            return self.ride(delivery)
        again = bool(self.seen) and delivery.partition in self.seen[-1][1]
        if again or self.last != (delivery.phase, delivery.round):
            self.last = (delivery.phase, delivery.round)
            self.seen.append((delivery.phase, []))
        self.seen[-1][1].append(delivery.partition)
        return self.strike(delivery)

    def ride(self, delivery: Delivery) -> Fault | None:
        """Return what happens to a farewell that comes with another exchange."""
        return None

    def strike(self, delivery: Delivery) -> Fault | None:
        """Return what happens to a request."""
        return None


@dataclass
class At(Exchanges):
    """Something happens to a party in one phase: the n-th time that it comes, and ever after."""

    partition: int = 0
    phase: str = ""
    what: Fault = field(default_factory=lambda: Fault("error"))
    number: int = 1
    always: bool = False
    times: int = 0

    def strike(self, delivery: Delivery) -> Fault | None:
        """Return the fault when its time has come."""
        if (delivery.partition, delivery.phase) != (self.partition, self.phase):
            return None
        self.times += 1
        later = self.always and self.times > self.number
        return self.what if later or self.times == self.number else None


def never(partition: int, phase: str) -> At:
    """Return a plan by which a party never answers in a phase."""
    return At(partition=partition, phase=phase, always=True)


@dataclass
class Cut(Exchanges):
    """The server breaks down in the n-th exchange, when so many parties have their requests."""

    number: int = 0
    parties: int = 2

    def strike(self, delivery: Delivery) -> Fault | None:
        """Break down."""
        here = len(self.seen) - 1
        if here > self.number or (here == self.number and len(self.seen[-1][1]) >= self.parties):
            raise PowerCutError
        return None

    def ride(self, delivery: Delivery) -> Fault | None:
        """Break down as well."""
        if len(self.seen) > self.number:
            raise PowerCutError
        return None


# -- replies that are broken


def scramble(message: Message) -> Message:
    """Change what a reply says of itself."""
    for record in message.content.config_records.values():
        record["round"] = 77
    return message


def strip(message: Message) -> Message:
    """Take the sections with the vectors away; scramble a reply that has none."""
    for record in message.content.config_records.values():
        if "sections" not in record:
            return scramble(message)
        del record["sections"]
    return message


def flip(message: Message) -> Message:
    """Change a bit of what a reply has sealed for others: in its arrays, and in its fields."""
    for name, record in message.content.array_records.items():
        arrays = [array.numpy().copy() for array in record.values()]
        sealed = [array for array in arrays if array.dtype == np.uint8 and array.size > 5]
        if sealed:
            sealed[-1].flat[5] ^= 1
            message.content[name] = ArrayRecord(arrays)
    for fields in message.content.config_records.values():
        for name, value in fields.items():
            sealed_field = not name.startswith("_") and not name.endswith(".commitments")
            if isinstance(value, bytes) and len(value) > 40 and sealed_field:
                fields[name] = value[:30] + bytes([value[30] ^ 1]) + value[31:]
    return message


def change_reply(change: Callable[[Message], Message]) -> Fault:
    """Return the fault of a reply that is changed on its way."""
    return Fault("tamper", change=change)


#: All that may happen to one request or its reply, and passes.
PASSING = (
    Fault("vanished"), Fault("lost reply"), change_reply(strip), Fault("error"), Fault("duplicate"),
    change_reply(scramble), Fault("lost request"),
)  # fmt: skip
