"""Define messages for methods without message classes: a name, and arguments by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError
from ..plain_text import read_json
from .message import Message, arrays

_WHOLE = ("i", "u", "b")  # kinds of arrays that travel as float64


class MethodRequest(Message, phase="method"):
    """Request what a method calls ``name``.

    Attributes
    ----------
    round : int
        Number of the exchange.
    checkpoint_every : int
        Rounds between saved states; 0 saves none.
    plain : bytes
        JSON: arguments that are no arrays, names and shapes of arrays, sizes of sums.
    given : tuple of ndarray, shape (n,) each
        The arrays, flat.
    """

    session: str
    round: int
    checkpoint_every: int
    name: str
    plain: bytes
    given: tuple[NDArray[Any], ...] = arrays("n")


class MethodReply(Message, phase="method"):
    """Answer such a request; ``plain`` is empty for a contribution to a sum."""

    round: int
    plain: bytes = b""
    given: tuple[NDArray[Any], ...] = arrays("n")


def pack(
    values: Mapping[str, Any], sizes: Mapping[str, int] | None = None
) -> tuple[bytes, tuple[NDArray[Any], ...]]:
    """Return values by name, arrays included, as JSON and flat arrays.

    Raises
    ------
    ProtocolError
        A value is neither plain nor an array of numbers.
    """
    plain: dict[str, Any] = {}
    shapes: list[tuple[str, list[int], str]] = []
    given = []
    for name, value in values.items():
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, np.ndarray):
            plain[name] = value
            continue
        if value.dtype.kind not in ("f", *_WHOLE):
            raise ProtocolError(
                f"{name} is an array of {value.dtype}, which cannot be sent", code="FK-MESSAGE-SEND"
            )
        dtype = value.dtype if value.dtype.kind == "f" else np.dtype(np.float64)
        dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
        given.append(np.ascontiguousarray(value, dtype).reshape(-1))
        shapes.append((name, list(value.shape), value.dtype.str))
    try:
        text = json.dumps([plain, shapes, dict(sizes or {})], allow_nan=False)
    except (TypeError, ValueError):
        odd = {name: type(value).__name__ for name, value in plain.items()}
        raise ProtocolError(f"values of {odd} cannot be sent", code="FK-MESSAGE-SEND") from None
    return text.encode(), tuple(given)


def unpack(
    text: bytes, given: tuple[NDArray[Any], ...], *, party: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values and sizes of :func:`pack`.

    Raises
    ------
    ProtocolError
        They do not fit together.
    """
    try:
        plain, shapes, sizes = read_json(text)
        values = dict(plain)
        for (name, shape, dtype), flat in zip(shapes, given, strict=True):
            if any(int(n) < 0 for n in shape):
                raise ValueError
            values[str(name)] = flat.reshape([int(n) for n in shape]).astype(_dtype(dtype))
        return values, {str(name): int(size) for name, size in sizes.items()}
    except (ValueError, TypeError, AttributeError):
        raise ProtocolError(
            "its values cannot be read",
            party=party,
            phase=MethodRequest.phase,
            code="FK-MESSAGE-DAMAGED",
        ) from None


def _dtype(name: str) -> np.dtype[Any]:
    found = np.dtype(name)
    if found.kind not in ("f", *_WHOLE):
        raise ValueError
    return found
