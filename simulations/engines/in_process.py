"""The in-process engine: a Flower ``Grid`` that calls the ``ClientApp`` directly."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedkern_flwr.flower_compat import (
    CLIENT_RAISED,
    empty_run,
    message_round_trip,
    pack_context,
    set_task_identity,
    stamp_message,
    unpack_context,
)
from fedkern_flwr.guard.policy import SIMULATION
from fedkern_flwr.transport import payload_bytes

from .wrapper import PollingGrid

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_BYTES = 1 << 30
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> None:
    """Have glibc keep freed memory, unless the user has configured it.

    Otherwise the kernel takes back every array of some megabytes and clears its pages at the next
    allocation: a fifth of the time of a simulation with large messages.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SET_BY_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _BYTES)
        mallopt(_MMAP_THRESHOLD, _BYTES)


_RUN_ID, _SERVER_NODE, _FIRST_NODE = 1, 1, 1000
_PULL_BYTES = 64 * 2**20


class InProcessGrid(PollingGrid):
    """Drive the clients in this process, one after the other.

    ``pull_messages`` answers queued requests and returns about 64 MB of replies at a time, so that
    replies of many clients are never in memory together.

    Parameters
    ----------
    client_app : ClientApp
        The app of the clients.
    num_clients : int
        Number of nodes.
    serialise : bool (default: False)
        Send messages and states of nodes through Flower's protobuf code.
    node_config : dict, optional
        More entries for every node's configuration.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_clients: int,
        *,
        serialise: bool = False,
        node_config: dict[str, Any] | None = None,
    ) -> None:
        set_task_identity(_RUN_ID, _SERVER_NODE)
        keep_freed_memory()
        self.client_app, self.serialise = client_app, serialise
        self.contexts = {
            _FIRST_NODE + k: Context(
                run_id=_RUN_ID,
                node_id=_FIRST_NODE + k,
                node_config={
                    SIMULATION: True,
                    **(node_config or {}),
                    "partition-id": k,
                    "num-partitions": num_clients,
                },
                state=RecordDict(),
                run_config={},
            )
            for k in range(num_clients)
        }
        self._queue: dict[str, Message] = {}
        self._numbers = itertools.count(1)
        self._run: Any = None

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run."""
        if self._run is None:
            self._run = empty_run(_RUN_ID)
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; an unknown node gets the empty id, as in Flower."""
        ids = []
        for message in messages:
            known = message.metadata.dst_node_id in self.contexts
            message_id = str(next(self._numbers)) if known else ""
            if known:
                stamp_message(message, message_id=message_id)
                self._queue[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let clients answer queued messages until the replies fill the budget."""
        replies: list[Message] = []
        volume = 0
        for message_id in sorted(message_ids, key=int):
            message = self._queue.pop(message_id, None)
            if message is None:
                continue
            replies.append(self._answer(message))
            volume += payload_bytes(replies[-1])
            if volume > _PULL_BYTES:
                break
        return replies

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        if self.serialise:
            message = message_round_trip(message)
            context.state = unpack_context(pack_context(context)).state
        try:
            reply = self.client_app(message, context)
        except Exception as error:  # whatever the client raises is reported, as Flower does
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=CLIENT_RAISED, reason=reason), reply_to=message)
        return message_round_trip(reply) if self.serialise else reply
