"""Every import from Flower that is not public API, in one place (checked on flwr 1.41).

A future removal in Flower is mended here and nowhere else.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from flwr.app import Message, RecordDict
from flwr.client import Client, NumPyClient

__all__ = [
    "ACTOR_DIED",
    "CLIENT_RAISED",
    "FLEET_PATH",
    "MESSAGE_CALLS",
    "NODE_KEY_HEADER",
    "NODE_TIMEOUT",
    "NODE_UNAVAILABLE",
    "PULL_CALL",
    "PULL_FILLER",
    "SIGNATURE_SECONDS",
    "TIMESTAMP_HEADER",
    "Client",
    "NumPyClient",
    "copy_message",
    "empty_run",
    "is_simulated",
    "message_round_trip",
    "quiet_flower",
    "set_task_identity",
    "set_telemetry",
    "stamp_message",
]

#: Error codes of ``flwr.common.constant.ErrorCode``.
ACTOR_DIED, CLIENT_RAISED, NODE_UNAVAILABLE = 0, 2, 5

#: The Fleet API of a SuperLink: its paths, the call by which a SuperNode asks for messages, and
#: those which it makes about a message that it has.
FLEET_PATH, PULL_CALL = "/v1/fleet/", "pull-messages"
MESSAGE_CALLS = frozenset(
    {
        "get-run",
        "get-fab",
        "pull-object",
        "confirm-message-received",
        "push-messages",
        "push-object",
    }
)
#: Who signed a call, and when; for how long that holds, and how long a SuperNode waits (seconds).
NODE_KEY_HEADER, TIMESTAMP_HEADER = "flwr-public-key", "flwr-timestamp"
SIGNATURE_SECONDS, NODE_TIMEOUT = 300.0, 30.0
#: What a reply to a pull may begin with to show that it will come: protobuf reads over a field that
#: it does not know, here the last one that there can be.
PULL_FILLER = bytes.fromhex("f8ffffff0f00")


def set_task_identity(run_id: int, node_id: int) -> None:
    """Let this process create messages; ``flwr.app.Message`` refuses to without an identity."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, 1


def set_telemetry(enabled: str) -> None:
    """Switch Flower's telemetry on ("1") or off; it reads the environment on import only."""
    from flwr.supercore import telemetry

    telemetry.FLWR_TELEMETRY_ENABLED = enabled


def empty_run(run_id: int) -> Any:
    """Return the ``Run`` that a grid outside a SuperLink reports."""
    from flwr.supercore.run import Run

    return Run.create_empty(run_id=run_id)


def is_simulated(grid: Any) -> bool:
    """Tell whether a grid belongs to a simulation; any grid that is not known does not.

    Our own grids say so; Flower's engine uses ``InMemoryGrid``, which is not public.
    """
    names = {cls.__name__ for cls in type(grid).__mro__}
    return bool(getattr(grid, "simulation", False)) or "InMemoryGrid" in names


def stamp_message(message: Message, *, message_id: str) -> None:
    """Give a message the id that a SuperLink would give it."""
    message.metadata.__dict__["_message_id"] = message_id


def copy_message(message: Message) -> Message:
    """Copy a message and its records, but not the values in them."""
    if message.has_error():
        return message
    content = RecordDict({n: type(r)(dict(r)) for n, r in message.content.items()})  # type: ignore[arg-type]
    twin = copy.copy(message)
    twin.__dict__["_content"] = content
    return twin


def message_round_trip(message: Message) -> Message:
    """Serialise a message with Flower's protobuf code and read it back."""
    from flwr.common.serde import message_from_proto, message_to_proto

    copy = message_from_proto(message_to_proto(message))
    stamp_message(copy, message_id=message.metadata.message_id)
    return copy


def quiet_flower(level: int = logging.WARNING) -> None:
    """Set the level of Flower's own log, which otherwise reports every round."""
    logging.getLogger("flwr").setLevel(level)
