"""What scripted grids of tests are made of: replies as Flower's grids return them, and a clock."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict


class Clock:
    """A clock that only sleeping moves; takes the place of the module ``time``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def reply(
    to: str, *, error: Error | None = None, node: int = 1, arrays: Any = (), **scalars: Any
) -> Message:
    """A reply or an error to message ``to``, from the node that Flower says it comes from."""
    content = RecordDict(
        {"fitres.parameters": ArrayRecord(list(arrays)), "fitres.metrics": ConfigRecord(scalars)}
    )
    request = Message(RecordDict(), node, "train")
    request.metadata.__dict__["_message_id"] = "0"
    message = Message(error, reply_to=request) if error else Message(content, node, "train")
    known = message.metadata.__dict__
    known["_reply_to_message_id"], known["_src_node_id"] = to, node
    return message
