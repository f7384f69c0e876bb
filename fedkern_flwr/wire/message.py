"""Define messages: dataclasses sent as Flower's records of arrays and scalars."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast, dataclass_transform

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from ..errors import ProtocolError
from ..plain_text import QUOTED, plain_line, read_json

# -- NumPy's format, which Flower's arrays carry: headers that look alike are made and read once
#
# ``np.save`` and ``np.load`` spend most of a small array's time on its header, and a run of many
# iterations moves some hundred thousand small arrays.

_NUMPY = "numpy.ndarray"  # how Flower calls it
_EMPTY = "_empty"  # Flower's placeholder for an empty list of arrays


def write_array(value: NDArray[Any]) -> Array:
    """Return Flower's ``Array(value)``, byte for byte."""
    if not value.flags.c_contiguous or value.dtype.hasobject or value.dtype.names:
        return Array(value)
    head, name = _written(value.dtype, value.shape)
    return Array(name, value.shape, _NUMPY, head + value.tobytes())


def array_record(arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    return add_arrays(ArrayRecord(), arrays)


def add_arrays(record: ArrayRecord, arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    for number, value in enumerate(arrays, len(record)):
        record[str(number)] = write_array(value)
    return record


def read_arrays(record: ArrayRecord) -> list[NDArray[Any]]:
    """Return the arrays of a record, by :func:`read_array`."""
    return [read_array(value) for key, value in record.items() if key != _EMPTY]


def read_array(array: Any) -> NDArray[Any]:
    """Return the array of a record without a copy; its bytes are not trusted.

    Raises
    ------
    ValueError
        It is no plain array in NumPy's format, or not of the announced size.
    """
    try:
        start = 10 + int.from_bytes(array.data[8:10], "little")
        shape, fortran, dtype = _header(array.data[:start])
        if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(array.data) - start:
            raise ValueError
        flat = np.frombuffer(array.data, dtype, offset=start) if dtype.itemsize else None
        return flat.reshape(shape, order="F" if fortran else "C")  # type: ignore[union-attr]
    except Exception:  # a header can break its parser in many ways
        raise ValueError("not an array") from None


@lru_cache(maxsize=1024)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Parse a header; cached, as this takes longer than the rest of a small array."""
    stream = io.BytesIO(head)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError
    return np.lib.format.read_array_header_1_0(stream)


@lru_cache(maxsize=1024)
def _written(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[bytes, str]:
    stream = io.BytesIO()
    like = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, like)
    return stream.getvalue(), str(dtype)


# -- phase messages: the contract of server and client, packed for Flower's NumPy clients
#
# A phase message is a frozen dataclass. Its array fields travel as the list of NumPy arrays of a
# ``NumPyClient``, its scalar fields as the ``config`` (request) or ``metrics`` (reply) dictionary,
# next to the name of the phase and the protocol version. :meth:`PhaseMessage.unpack` trusts
# nothing: count, dtype, number of dimensions, agreeing sizes, finiteness, names and types of the
# scalars are checked on arrival, and the error names the party and the phase.

#: Raised whenever a message changes its meaning; both sides must have the same.
PROTOCOL_VERSION = 10

_NAMES = 40  # characters of a name that an error quotes
_LONG = 1 << 24  # characters of a text that a message declares to be long

Scalar = bool | bytes | float | int | str
Arrays = list[NDArray[Any]]

_DTYPES = {
    "real": (np.dtype(np.float32), np.dtype(np.float64)),
    "float64": (np.dtype(np.float64),),
    "index": (np.dtype(np.int32),),
    "byte": (np.dtype(np.uint8),),
    "ring": (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)),
}
_SCALARS: dict[str, type] = {"bool": bool, "bytes": bytes, "float": float, "int": int, "str": str}


def array(*dimensions: str, dtype: str = "real") -> Any:
    """Declare an array field of a phase message.

    Parameters
    ----------
    *dimensions : str
        A name per dimension. Equal names must have equal sizes within a message, and those that the
        receiver expects.
    dtype : {"real", "float64", "index", "byte", "ring"} (default: "real")
        ``real``: float32 or float64, ``index``: int32, ``byte``: uint8, ``ring``: uint16, uint32 or
        uint64.
    """
    return field(metadata={"dimensions": dimensions, "dtypes": _DTYPES[dtype], "many": False})


def arrays(*dimensions: str, dtype: str = "real") -> Any:
    """Declare a tuple of any number of arrays, as the last array field of a message."""
    return field(metadata={"dimensions": dimensions, "dtypes": _DTYPES[dtype], "many": True})


class _ArrayField(NamedTuple):
    name: str
    dimensions: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]
    many: bool


@cache  # mypy does not believe that classes are hashable: hence the casts
def _layout(cls: Any) -> tuple[tuple[_ArrayField, ...], tuple[tuple[str, type], ...]]:
    arrays = tuple(_ArrayField(f.name, **f.metadata) for f in fields(cls) if f.metadata)
    scalars = tuple((f.name, _SCALARS[str(f.type)]) for f in fields(cls) if not f.metadata)
    return arrays, scalars


@cache
def _pinned(cls: Any) -> tuple[tuple[str, str], ...]:
    own = ((kind.__name__, vars(kind).get("pinned", ())) for kind in cls.__mro__)
    return tuple((f"{kind}.{name}", name) for kind, names in own for name in names)


@dataclass(frozen=True)
class PhaseMessage:
    """Base class of all requests and replies."""

    phase: ClassVar[str] = ""
    #: Texts that may have more than 200 characters, such as JSON. All others are names: errors
    #: quote them, logs and terminals show them.
    long_texts: ClassVar[tuple[str, ...]] = ()
    #: Public options of the run: fields that stay as in its first request that states them.
    pinned: ClassVar[tuple[str, ...]] = ()

    @property
    def public_options(self) -> dict[str, Any]:
        """Pinned options: class and field -> value.

        Requests that inherit a field from one class share its value.
        """
        return {label: getattr(self, name) for label, name in _pinned(cast(Any, type(self)))}

    def __post_init__(self) -> None:
        """Check types, dtypes and common sizes of a new message."""
        array_fields, scalar_fields = _layout(cast(Any, type(self)))
        sizes: dict[str, int] = {}
        values = vars(self)
        try:
            for name, kind in scalar_fields:
                if type(values[name]) is not kind:
                    raise _mistyped(name, values[name], kind)
            for declared in array_fields:
                value = values[declared.name]
                if declared.many:
                    for one in value:
                        _check_layout(declared, one, dict(sizes))
                else:
                    _check_layout(declared, value, sizes)
        except _Broken as broken:
            raise TypeError(f"{type(self).__name__}: {broken}") from None

    def addressed(self, **known: Any) -> Self:
        """Return a copy with these values, checked before, of the fields that it has."""
        twin, own = object.__new__(type(self)), vars(self)
        vars(twin).update(own | {name: known[name] for name in known.keys() & own.keys()})
        return twin

    def arrays(self) -> Arrays:
        out: Arrays = []
        for declared in _layout(cast(Any, type(self)))[0]:
            value = vars(self)[declared.name]
            out += value if declared.many else [value]
        return out

    def scalars(self) -> dict[str, Scalar]:
        """Return the scalar fields, phase and protocol version."""
        own, names = vars(self), _layout(cast(Any, type(self)))[1]
        known: dict[str, Scalar] = {"phase": self.phase, "protocol": PROTOCOL_VERSION}
        return known | {name: own[name] for name, _ in names}

    @classmethod
    def unpack(
        cls,
        arrays: Sequence[NDArray[Any]],
        scalars: Mapping[str, Any],
        *,
        party: str,
        **sizes: int,
    ) -> Self:
        """Check and rebuild a message that arrived.

        Parameters
        ----------
        arrays : sequence of ndarray
            The arrays as they arrived.
        scalars : mapping
            The scalars as they arrived.
        party : str
            Sender, for errors.
        **sizes : int
            Expected sizes of named dimensions.

        Raises
        ------
        ProtocolError
            Anything differs from the declaration of the message.
        """
        try:
            _check_header(cls.phase, scalars)
            array_fields, scalar_fields = _layout(cast(Any, cls))
            values: dict[str, Any] = {
                n: _check_scalar(n, scalars, t, long=n in cls.long_texts) for n, t in scalar_fields
            }
            many = bool(array_fields) and array_fields[-1].many
            single = array_fields[:-1] if many else array_fields
            if len(arrays) < len(single) or (len(arrays) > len(single) and not many):
                raise _Broken(f"{len(arrays)} arrays instead of {len(single)}", "FK-MESSAGE-SHAPE")
            for declared, value in zip(single, arrays, strict=False):
                values[declared.name] = _check_array(declared, value, sizes)
            if many:
                rest, last = arrays[len(single) :], array_fields[-1]
                values[last.name] = tuple(_check_array(last, value, dict(sizes)) for value in rest)
        except _Broken as broken:
            remedy = "run the same release of fedkern-flwr on both sides"
            about = {"party": party, "phase": cls.phase, "code": broken.code}
            raise ProtocolError(str(broken), remedy=remedy, **about) from None
        found = object.__new__(cls)
        found.__dict__.update(values)  # all is checked, so no need to do it again
        return found


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(array, arrays))
@dataclass(frozen=True)
class Message(PhaseMessage):
    """A phase message; its subclasses become frozen dataclasses, each of its phase."""

    def __init_subclass__(cls, phase: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.phase = phase or cls.phase
        dataclass(frozen=True, kw_only=True)(cls)


class _Broken(Exception):
    def __init__(self, problem: str, code: str) -> None:
        super().__init__(problem)
        self.code = code


def _check_header(phase: str, scalars: Mapping[str, Any]) -> None:
    version = scalars.get("protocol")
    if version != PROTOCOL_VERSION:
        found = version if isinstance(version, int) else type(version).__name__
        raise _Broken(
            f"protocol version {found} instead of {PROTOCOL_VERSION}", "FK-MESSAGE-VERSION"
        )
    if scalars.get("phase") != phase:
        raise _Broken(
            f"the message belongs to phase {str(scalars.get('phase'))[:_NAMES]!r}",
            "FK-MESSAGE-PHASE",
        )


def _check_scalar(name: str, scalars: Mapping[str, Any], expected: type, *, long: bool) -> Any:
    value = scalars.get(name)
    if type(value) is not expected:
        raise _mistyped(name, value, expected)
    if isinstance(value, str) and not (
        len(value) <= _LONG if long else len(value) <= QUOTED and value.isprintable()
    ):
        raise _Broken(
            f"{name} is a text of {len(value)} characters, or has some that cannot be printed",
            "FK-MESSAGE-TEXT",
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise _Broken(f"{name} is not finite", "FK-MESSAGE-FINITE")
    return value


def _mistyped(name: str, value: Any, expected: type) -> _Broken:
    told = f"{name} is {type(value).__name__} instead of {expected.__name__}"
    return _Broken(told, "FK-MESSAGE-FIELD")


def _check_array(declared: _ArrayField, value: NDArray[Any], sizes: dict[str, int]) -> NDArray[Any]:
    _check_layout(declared, value, sizes)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise _Broken(f"{declared.name} holds NaN or infinite values", "FK-MESSAGE-FINITE")
    return value


def _check_layout(declared: _ArrayField, value: Any, sizes: dict[str, int]) -> None:
    name, dimensions, dtypes, _ = declared
    if not isinstance(value, np.ndarray):  # Flower's clients open archives, which hold anything
        raise _Broken(f"{name} is no array", "FK-MESSAGE-FIELD")
    if value.dtype not in dtypes:
        raise _Broken(
            f"{name} has dtype {plain_line(str(value.dtype), _NAMES)}", "FK-MESSAGE-FIELD"
        )
    if value.ndim != len(dimensions):
        raise _Broken(
            f"{name} has {value.ndim} dimensions instead of {len(dimensions)}", "FK-MESSAGE-SHAPE"
        )
    for dimension, size in zip(dimensions, value.shape, strict=True):
        if sizes.setdefault(dimension, size) != size:
            raise _Broken(
                f"{name} has {size} {dimension} instead of {sizes[dimension]}", "FK-MESSAGE-SHAPE"
            )


def content_digest(scalars: Mapping[str, Any], arrays: Iterable[NDArray[Any]]) -> str:
    """Return the SHA-256 of a message's content."""
    found = hashlib.sha256(json.dumps(sorted(scalars.items()), default=repr).encode())
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


# -- sections: further phase messages within the message of a phase
#
# A secure sum needs no exchange of its own if its messages can be part of the method's. The arrays
# of the sections follow those of the message. One scalar of the message is a JSON list of the
# sections' phases, numbers of arrays and scalars. Bytes are separate scalars, named by the number
# of their section.

Read = TypeVar("Read", bound=PhaseMessage)

_INDEX = "sections"


@dataclass(frozen=True)
class Section:
    """A section that arrived, not yet checked."""

    phase: str
    arrays: Arrays
    scalars: dict[str, Any]

    def read(self, message: type[Read], *, party: str, **sizes: int) -> Read:
        """Check and rebuild the message; see :meth:`PhaseMessage.unpack`."""
        return message.unpack(self.arrays, self.scalars, party=party, **sizes)


def attach(sections: Sequence[PhaseMessage]) -> tuple[Arrays, dict[str, Scalar]]:
    """Return the arrays and scalars that add sections to a message."""
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
    """Return how many of a message's arrays belong to sections; None without sections."""
    return sum(count for _, count, _ in _read_index(scalars)) if _INDEX in scalars else None


def detach(
    arrays: Sequence[NDArray[Any]], scalars: Mapping[str, Any], *, party: str
) -> tuple[Arrays, dict[str, Any], list[Section]]:
    """Split a message into its arrays, its scalars and its sections.

    Raises
    ------
    ProtocolError
        The sections are malformed.
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


# -- the records of a message in one: Flower moves each record and each array by calls of its own
#
# A deployed message passes server, SuperLink, SuperNode and the client's process, and at each of
# them every record costs a call, and every array two. Small arrays and all other values are packed
# into one record; large arrays stay as they are: Flower sends those that nodes share once.

_PACKED = "fedkern.packed"
_LARGEST = 65_536  # bytes of an array that is packed
_KINDS: dict[str, Any] = {"array": ArrayRecord, "config": ConfigRecord, "metric": MetricRecord}


def is_packed(content: RecordDict) -> bool:
    return _PACKED in content


def pack(content: RecordDict) -> RecordDict:
    """Pack small arrays and all other values of records into one record."""
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
    """Return the records before :func:`pack`; ProtocolError if they are damaged."""
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
