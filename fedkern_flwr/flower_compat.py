"""Every import from Flower that is not public API, in one place (checked on flwr 1.41).

A future removal in Flower is mended here and nowhere else.
"""

from __future__ import annotations

import copy
import logging
import sys
from typing import Any

from flwr.app import Message, RecordDict
from flwr.client import Client, NumPyClient

__all__ = [
    "ACTOR_DIED",
    "CLIENT_RAISED",
    "NODE_UNAVAILABLE",
    "Client",
    "NumPyClient",
    "copy_message",
    "empty_run",
    "is_simulated",
    "is_started_for_message",
    "message_round_trip",
    "quiet_flower",
    "set_task_identity",
    "set_telemetry",
    "stamp_message",
]

#: Error codes of ``flwr.common.constant.ErrorCode``.
ACTOR_DIED, CLIENT_RAISED, NODE_UNAVAILABLE = 0, 2, 5

#: Whether this process was forked by one that is kept warm, which sets it before it forks.
warm = False


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


def is_started_for_message() -> bool:
    """Tell whether a stock SuperNode started this process, as it does for every message."""
    return not warm and "flwr.supernode.cli.flwr_clientapp" in sys.modules
