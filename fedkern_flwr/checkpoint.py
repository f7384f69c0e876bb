"""Files that survive a crash: arrays and JSON in one ``.npz``, never a pickle, written atomically.

The same format holds checkpoints and models.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CheckpointError

_META = "meta_json"
#: What reading a damaged archive raises.
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    EOFError,
    OSError,
    OverflowError,
    MemoryError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    With ``private`` the file, and a folder made for it, are for this user's eyes only.
    """
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600 if private else 0o666)
    temporary.write_bytes(data)
    temporary.replace(path)


def pack_arrays(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """Return named arrays and a JSON object as the bytes of an ``.npz`` file."""
    packed = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **{_META: packed}, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack_arrays(data: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return what :func:`pack_arrays` packed.

    Raises
    ------
    CheckpointError
        The bytes are damaged or of another kind.
    """
    return _read_arrays(io.BytesIO(data), "what was kept")


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Save named arrays and a JSON object to ``path`` (``.npz``)."""
    write_atomically(path, pack_arrays(arrays, meta))


def load_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Load what :func:`save_arrays` saved.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of another kind.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist", remedy="check the path or start anew")
    return _read_arrays(path, str(path))


def _read_arrays(
    source: Path | io.BytesIO, name: str
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    try:
        with np.load(source, allow_pickle=False) as data:
            arrays = {key: data[key] for key in data.files}
        meta = json.loads(bytes(arrays.pop(_META)))
    except _DAMAGE:
        meta = None
    if not isinstance(meta, dict):
        raise CheckpointError(f"{name} is damaged or not one of ours", remedy="start anew")
    return arrays, meta
