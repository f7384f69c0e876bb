"""The last answer of a run: all that a node keeps of its sums, in case the reply is lost.

Who has answered the last request has erased its secrets and cannot answer anew. It may be asked the
same again, and sends the same bytes: the server learns nothing that it was not sent before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from ..wire import Scalar

_SAID, _ARRAYS, _ASKED = "fedkern-last", "fedkern-last-arrays", "fedkern-last-asked"

Arrays = list[NDArray[Any]]
Answer = tuple[Arrays, int, dict[str, Scalar]]


def keep_answer(
    context: Context, asked: tuple[Arrays, Mapping[str, Scalar]], answer: Answer
) -> None:
    """Keep what was answered to a request."""
    arrays, samples, scalars = answer
    context.state[_ASKED] = ConfigRecord({"digest": _digest(*asked), "samples": samples})
    context.state[_ARRAYS] = ArrayRecord(arrays)
    context.state[_SAID] = ConfigRecord(dict(scalars))


def kept_answer(context: Context, arrays: Arrays, config: Mapping[str, Scalar]) -> Answer | None:
    """Return what was answered to the same request."""
    known = context.state.get(_ASKED)
    if not isinstance(known, ConfigRecord) or known["digest"] != _digest(arrays, config):
        return None
    said: Any = dict(context.state.config_records[_SAID])
    found = context.state.array_records[_ARRAYS].to_numpy_ndarrays()
    return found, int(known["samples"]), said  # type: ignore[arg-type]


def forget_answer(context: Context) -> None:
    """Erase it."""
    for name in (_SAID, _ARRAYS, _ASKED):
        context.state.pop(name, None)


def _digest(arrays: Arrays, config: Mapping[str, Scalar]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(config.items()), default=bytes.hex).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
