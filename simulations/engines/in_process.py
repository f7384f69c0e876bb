"""The in-process engine: a Flower ``Grid`` that calls the ``ClientApp`` directly."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.failure import describe_raised, mark_error
from fedkern_flwr.flower_compat import (
    CLIENT_RAISED,
    config_record,
    copy_message,
    empty_run,
    message_round_trip,
    pack_context,
    set_task_identity,
    stamp_message,
    unpack_context,
)
from fedkern_flwr.flower_compat import Client as FlowerClient
from fedkern_flwr.guard.policy import SIMULATION
from fedkern_flwr.node.client import Client
from fedkern_flwr.transport import CONFIG, PARAMETERS, REPLY, UPLOADS, payload_bytes
from fedkern_flwr.wire.message import array_record, read_arrays

# -- grids that poll, and that watch another

Direction = Literal["up", "down"]


class PollingGrid(Grid):
    """A grid with a ``send_and_receive`` that pushes and then pulls."""

    #: What a strategy reads to tell a simulation from a deployment.
    simulation = True

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies until all are there or time is up."""
        waiting = set(self.push_messages(messages)) - {""}
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            arrived = list(self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
            replies += arrived
            if waiting and not arrived:
                time.sleep(0.05)
        return replies


class GridWrapper(PollingGrid):
    """Pass everything on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run."""
        return self.grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies."""
        return self.grid.pull_messages(message_ids)


class WatchingGrid(GridWrapper):
    """Show all messages of another grid as they pass."""

    @abstractmethod
    def watch(self, direction: Direction, message: Message) -> None:
        """Look at a message ``down`` to a client or ``up`` from one."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and show them."""
        listed = list(messages)
        for message in listed:
            self.watch("down", message)
        return self.grid.push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and show them."""
        replies = list(self.grid.pull_messages(message_ids))
        for reply in replies:
            self.watch("up", reply)
        return replies


# -- a transcript of all messages, for privacy tests and audits


@dataclass(frozen=True)
class TranscriptEntry:
    """One message, as the server sees it.

    Attributes
    ----------
    direction : {"down", "up"}
        To a client or from one.
    node : int
        Id of the client's node.
    phase : str
    group : str
        The message's group id, such as the round.
    arrays : tuple of ndarray
    scalars : dict
    """

    direction: Direction
    node: int
    phase: str
    group: str
    arrays: tuple[NDArray[Any], ...]
    scalars: dict[str, Any]


@dataclass
class Transcript:
    """All messages of a run in sequence, decoded on demand."""

    _messages: list[tuple[Direction, Message]] = field(default_factory=list)

    def add(self, direction: Direction, message: Message) -> None:
        """Append a message; the receiver may take it apart afterwards."""
        self._messages.append((direction, copy_message(message)))

    def __len__(self) -> int:
        return len(self._messages)

    def entries(self, *, phase: str | None = None, direction: str | None = None) -> Iterator[Any]:
        """Yield the messages of a phase and a direction as :class:`TranscriptEntry`."""
        for way, message in self._messages:
            if message.has_error() or direction not in (None, way):
                continue
            scalars: dict[str, Any] = {}
            for record in message.content.config_records.values():
                scalars.update(record)
            if phase in (None, scalars.get("phase")):
                meta = message.metadata
                yield TranscriptEntry(
                    direction=way,
                    node=meta.dst_node_id if way == "down" else meta.src_node_id,
                    phase=str(scalars.get("phase", "")),
                    group=meta.group_id,
                    arrays=tuple(
                        array.numpy()
                        for record in message.content.array_records.values()
                        for key, array in record.items()
                        if key != "_empty"
                    ),
                    scalars=scalars,
                )


class RecordingGrid(WatchingGrid):
    """Record the traffic of another grid."""

    def __init__(self, grid: Grid, transcript: Transcript) -> None:
        super().__init__(grid)
        self.transcript = transcript

    def watch(self, direction: Direction, message: Message) -> None:
        """Record a message."""
        self.transcript.add(direction, message)


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


# -- clients without Flower's records, and their errors

_LARGE = 1 << 20  # bytes


class DirectApp(ClientApp):
    """Serve the clients of a simulation.

    Parameters
    ----------
    clients : callable
        Context -> one of our clients, or any ``Client`` of Flower's.
    """

    def __init__(self, clients: Callable[[Context], Any]) -> None:
        super().__init__()
        self.clients = clients

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the client of a node answer."""
        client = self.clients(context)
        if not isinstance(client, Client) or message.metadata.message_type != "train":
            found = as_client(client)
            return ClientApp(client_fn=lambda context: found)(message, context)
        asked: Any = message.content
        # Small ones may be written to, as with Flower; copies of large ones would fill the memory.
        read = read_arrays(asked[PARAMETERS])
        arrays = [a if a.nbytes > _LARGE else a.copy(order="K") for a in read]
        uploads, samples, told = client.fit(arrays, dict(asked[CONFIG].items()))
        content = RecordDict()
        content[REPLY] = config_record(told)
        content["fitres.num_examples"] = MetricRecord({"num_examples": samples})
        content[UPLOADS] = array_record(uploads)
        content["fitres.status"] = config_record({"code": 0, "message": "Success"})
        return Message(content, reply_to=message)


def as_client(client: Any) -> FlowerClient:
    """Return what Flower serves for one of our clients or a ``Client``."""
    return client if isinstance(client, FlowerClient) else client.to_client()


# -- what client code raises: class, text and place, once, on any engine

logger = logging.getLogger("fedkern_flwr")


class ReportingApp(ClientApp):
    """Answer what another app raises as an error with class, text and place.

    Our own errors keep their words. Of others the first line is the class, which strategies read.
    Flower's engine logs a raised error four times, and an answered one never.
    """

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app = app

    def __call__(self, message: Message, context: Context) -> Message:
        """Let the app answer."""
        party = f"partition {context.node_config.get('partition-id', '?')}"
        try:
            return self.app(message, context)
        except FedKernError as error:
            reason = str(error)
            if reason != mark_error(reason):  # it was raised outside the client's answer
                place = "" if error.party else f"{party}: "
                reason = mark_error(f"{type(error).__name__}: {place}{reason}")
        except MemoryError as error:  # where it was raised is of no use
            reason = mark_error(f"MemoryError\n{party} raised MemoryError: {error}")
        except Exception as error:
            raised = describe_raised(error, text=True)
            reason = mark_error(f"{type(error).__name__}\n{party} raised {raised}")
        return Message(Error(code=CLIENT_RAISED, reason=reason), reply_to=message)


class ReportingGrid(WatchingGrid):
    """Log errors of :class:`ReportingApp`, once for all nodes that raise at the same place."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._seen: set[tuple[str, ...]] = set()

    def watch(self, direction: Direction, message: Message) -> None:
        """Log a reply with an exception."""
        if direction == "up" and message.has_error():
            kind, _, text = (message.error.reason or "").partition("\n")
            place = (kind, *(s for s in text.splitlines() if s.startswith("  File ")))
            if kind == mark_error(kind) and text and place not in self._seen:
                self._seen.add(place)
                logger.error("%s", text)
