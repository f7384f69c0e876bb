"""Bases of grids: polling for replies, wrapping another grid, watching and recording traffic."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.flower_compat import copy_message

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
