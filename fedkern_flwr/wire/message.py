"""Phase messages: the contract of server and client, packed for Flower's NumPy clients.

A phase message is a frozen dataclass. Its array fields travel as the list of NumPy arrays of a
``NumPyClient``, its scalar fields as the ``config`` (request) or ``metrics`` (reply) dictionary,
next to the name of the phase and the protocol version. :meth:`PhaseMessage.unpack` trusts
nothing: count, dtype, number of dimensions, agreeing sizes, finiteness, names and types of the
scalars are checked on arrival, and the error names the party and the phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError
from ..plain_text import QUOTED, plain_line

#: Raised whenever a message changes its meaning; both sides must have the same.
PROTOCOL_VERSION = 9

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
        A name per dimension. Equal names must have equal sizes within a message and agree with
        the sizes that the receiver expects.
    dtype : {"real", "float64", "index", "byte", "ring"} (default: "real")
        ``real`` admits float32 and float64, ``index`` is int32, ``byte`` uint8, ``ring`` the larger
        unsigned integers.
    """
    return field(metadata={"dimensions": dimensions, "dtypes": _DTYPES[dtype], "many": False})


def arrays(*dimensions: str, dtype: str = "real") -> Any:
    """Declare a tuple of arrays: the last array field of a message, whatever their number."""
    return field(metadata={"dimensions": dimensions, "dtypes": _DTYPES[dtype], "many": True})


def _any(cls: type) -> Any:
    """Hide a class from mypy, which does not believe that classes are hashable."""
    return cls


class _ArrayField(NamedTuple):
    """What an array field was declared with."""

    name: str
    dimensions: tuple[str, ...]
    dtypes: tuple[np.dtype[Any], ...]
    many: bool


@cache
def _layout(cls: Any) -> tuple[tuple[_ArrayField, ...], tuple[tuple[str, type], ...]]:
    """Split the fields of a message class into array fields and (name, type) of scalars."""
    arrays = tuple(_ArrayField(f.name, **f.metadata) for f in fields(cls) if f.metadata)
    scalars = tuple((f.name, _SCALARS[str(f.type)]) for f in fields(cls) if not f.metadata)
    return arrays, scalars


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
        """What this class and its bases pin: class and field -> value.

        Requests that inherit a field from one class share its value.
        """
        return {
            f"{kind.__name__}.{name}": getattr(self, name)
            for kind in type(self).__mro__
            for name in vars(kind).get("pinned", ())
        }

    def __post_init__(self) -> None:
        """Check the fields where the message is made: types, dtypes, and sizes that must agree.

        Raises
        ------
        TypeError
            A mistake of the code that makes it. Values are checked on arrival.
        """
        array_fields, scalar_fields = _layout(_any(type(self)))
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

    def arrays(self) -> Arrays:
        """Return the array fields in the order of their declaration."""
        out: Arrays = []
        for declared in _layout(_any(type(self)))[0]:
            value = vars(self)[declared.name]
            out += value if declared.many else [value]
        return out

    def scalars(self) -> dict[str, Scalar]:
        """Return the scalar fields together with the phase and the protocol version."""
        own, names = vars(self), _layout(_any(type(self)))[1]
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
            Who sent the message, for the text of errors.
        **sizes : int
            Expected sizes of named dimensions.

        Raises
        ------
        ProtocolError
            If anything differs from the declaration of the message.
        """
        try:
            _check_header(cls.phase, scalars)
            array_fields, scalar_fields = _layout(_any(cls))
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
            raise ProtocolError(
                str(broken),
                remedy=broken.remedy,
                party=party,
                phase=cls.phase,
                code=broken.code,
            ) from None
        found = object.__new__(cls)
        found.__dict__.update(values)  # all is checked, so no need to do it again
        return found


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(array, arrays))
@dataclass(frozen=True)
class Message(PhaseMessage):
    """A phase message whose subclasses are frozen dataclasses by themselves, each of its phase."""

    def __init_subclass__(cls, phase: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.phase = phase or cls.phase
        dataclass(frozen=True, kw_only=True)(cls)


class _Broken(Exception):
    """What is wrong with a message, before it is known who sent it."""

    remedy = "run the same release of fedkern-flwr on both sides"

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
