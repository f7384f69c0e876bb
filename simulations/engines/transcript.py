"""A transcript of all messages, for privacy tests and audits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.flower_compat import copy_message

from .wrapper import Direction, WatchingGrid


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
    """All messages of a run, in order. Keeps the messages as they passed, decodes on demand."""

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
    """Records the traffic of another grid.

    Parameters
    ----------
    grid : Grid
        The grid of an engine.
    transcript : Transcript
        Where to record.
    """

    def __init__(self, grid: Grid, transcript: Transcript) -> None:
        super().__init__(grid)
        self.transcript = transcript

    def watch(self, direction: Direction, message: Message) -> None:
        """Record a message."""
        self.transcript.add(direction, message)
