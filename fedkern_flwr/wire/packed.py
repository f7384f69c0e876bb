"""The records of a message in one: Flower moves each record and each array by calls of its own.

A deployed message passes server, SuperLink, SuperNode and the client's process, and at each of
them every record costs a call, and every array two. Small arrays and all other values are packed
into one record; large arrays stay as they are: Flower sends those that nodes share once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..errors import ProtocolError
from ..plain_text import read_json

_PACKED = "fedkern.packed"
_LARGEST = 65_536  # bytes of an array that is packed
_KINDS: dict[str, Any] = {"array": ArrayRecord, "config": ConfigRecord, "metric": MetricRecord}
_NUMPY = "numpy.ndarray"  # how Flower calls NumPy's format


def is_packed(content: RecordDict) -> bool:
    """Tell whether records were packed."""
    return _PACKED in content


def pack(content: RecordDict) -> RecordDict:
    """Return records of which small arrays and other values are packed into one."""
    index: list[tuple[str, str, list[tuple[str, int, Any]]]] = []
    blobs: list[bytes] = []
    packed: dict[str, Any] = {}
    for name, record in content.items():
        large: dict[str, Array] = {}
        entries: list[tuple[str, int, Any]] = []  # key, bytes or -1, value
        for key, value in record.items():
            data = value.data if isinstance(value, Array) else value
            if not isinstance(data, bytes):
                entries.append((key, -1, value))
            elif isinstance(value, Array) and len(data) > _LARGEST:
                entries.append((key, -1, None))
                large[key] = value
            else:
                entries.append((key, len(data), None))
                blobs.append(data)
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(record, cls))
        index.append((name, kind, entries))
        if large:
            packed[name] = ArrayRecord(large)
    values: dict[str, Any] = {"index": json.dumps(index), "blobs": b"".join(blobs)}
    return RecordDict({_PACKED: ConfigRecord(values), **packed})


def unpack(content: RecordDict, *, party: str) -> RecordDict:
    """Return the records as they were before they were packed.

    Raises
    ------
    ProtocolError
        They are damaged.
    """
    try:
        packed: Any = content[_PACKED]
        blobs, place, found = packed["blobs"], 0, {}
        for name, kind, entries in read_json(packed["index"]):
            record: Mapping[str, Any] = content.get(name, {})
            values: dict[str, Any] = {}
            for key, size, value in entries:
                if size >= 0:
                    value = blobs[place : place + size]
                    place += size
                    if kind == "array":
                        value = Array(dtype="", shape=(), stype=_NUMPY, data=value)
                elif kind == "array":
                    value = record[key]
                values[key] = value
            found[name] = _KINDS[kind](values)
        if place != len(blobs):
            raise ValueError
        return RecordDict(found)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ProtocolError(
            "a packed message is damaged", party=party, code="FK-MESSAGE-DAMAGED"
        ) from None
