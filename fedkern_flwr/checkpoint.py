"""Files that survive a crash: arrays and JSON in one ``.npz``, never a pickle, written atomically.

The same format holds checkpoints and models.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CheckpointError

_META = "meta_json"


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    With ``private`` the file, and a folder made for it, are for this user's eyes only.
    """
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.touch(mode=0o600 if private else 0o666)
    temporary.write_bytes(data)
    temporary.replace(path)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Save named arrays and a JSON object to ``path`` (``.npz``)."""
    packed = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **{_META: packed}, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def load_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Load what :func:`save_arrays` saved.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of another kind.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist", remedy="check the path or start anew")
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        meta = json.loads(bytes(arrays.pop(_META)))
    except (KeyError, TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile):
        meta = None
    if not isinstance(meta, dict):
        raise CheckpointError(f"{path} is damaged or not one of ours", remedy="start anew")
    return arrays, meta
