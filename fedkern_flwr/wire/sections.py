"""Sections: further phase messages that travel within the message of a phase.

A secure sum needs no exchange of its own where its messages can ride on those of the method. The
arrays of the sections follow those of the message; one scalar of the message is a JSON list of the
sections' phases, numbers of arrays and scalars, but for bytes, which stand beside it under the
number of their section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

from ..errors import ProtocolError
from ..plain_text import read_json
from .message import Arrays, PhaseMessage, Scalar

Message = TypeVar("Message", bound=PhaseMessage)

_INDEX = "sections"


@dataclass(frozen=True)
class Section:
    """A section that arrived, not yet checked."""

    phase: str
    arrays: Arrays
    scalars: dict[str, Any]

    def read(self, message: type[Message], *, party: str, **sizes: int) -> Message:
        """Check and rebuild the message; see :meth:`PhaseMessage.unpack`."""
        return message.unpack(self.arrays, self.scalars, party=party, **sizes)


def attach(sections: Sequence[PhaseMessage]) -> tuple[Arrays, dict[str, Scalar]]:
    """Return arrays and scalars to add to a message."""
    if not sections:
        return [], {}
    arrays: Arrays = []
    scalars: dict[str, Scalar] = {}
    index = []
    for number, section in enumerate(sections):
        own, values = section.arrays(), section.scalars()
        arrays += own
        for name in [name for name, value in values.items() if isinstance(value, bytes)]:
            scalars[f"{number}.{name}"] = values.pop(name)
        index.append((section.phase, len(own), values))
    scalars[_INDEX] = json.dumps(index)
    return arrays, scalars


def section_arrays(scalars: Mapping[str, Any]) -> int | None:
    """Return how many of a message's arrays belong to sections; None if it carries none.

    Raises
    ------
    ValueError
        The sections are not laid out as :func:`attach` does.
    """
    return sum(count for _, count, _ in _read_index(scalars)) if _INDEX in scalars else None


def detach(
    arrays: Sequence[NDArray[Any]], scalars: Mapping[str, Any], *, party: str
) -> tuple[Arrays, dict[str, Any], list[Section]]:
    """Split a message into its own arrays and scalars and its sections.

    Raises
    ------
    ProtocolError
        The sections are not laid out as :func:`attach` does.
    """
    if _INDEX not in scalars:
        return list(arrays), dict(scalars), []
    try:
        index = _read_index(scalars)
        if sum(count for _, count, _ in index) > len(arrays):
            raise ValueError
    except ValueError:
        raise ProtocolError(
            "its sections are damaged", party=party, code="FK-MESSAGE-DAMAGED"
        ) from None
    own: dict[str, Any] = {}
    parts = {str(number): part for number, (_, _, part) in enumerate(index)}
    for name, value in scalars.items():
        number, dot, rest = name.partition(".")
        if dot and number in parts:
            parts[number][rest] = value
        elif name != _INDEX:
            own[name] = value
    first = start = len(arrays) - sum(count for _, count, _ in index)
    sections = []
    for phase, count, part in index:
        sections.append(Section(phase, list(arrays[start : start + count]), part))
        start += count
    return list(arrays[:first]), own, sections


def section_bytes(scalars: Mapping[str, Any]) -> int:
    """Return the bytes that sections carry in their scalars, for the ledger."""
    if _INDEX not in scalars:
        return 0
    return sum(len(v) for name, v in scalars.items() if isinstance(v, bytes) and "." in name)


def _read_index(scalars: Mapping[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    try:
        index = [(phase, count, own) for phase, count, own in read_json(scalars[_INDEX])]
    except (TypeError, RecursionError):
        raise ValueError from None
    for phase, count, own in index:
        if type(phase) is not str or type(count) is not int or type(own) is not dict or count < 0:
            raise ValueError
    return index
