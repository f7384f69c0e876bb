"""Files that survive a crash: arrays and JSON in one ``.npz``, never a pickle, written atomically.

The same format holds checkpoints and models.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .errors import CheckpointError
from .plain_text import read_json
from .private_files import create_file, make_private_folder

#: Version of what the checkpoint of a run holds; 1 and 2 were those of release 0.1.
VERSION = 3
#: With what a cell begins that a spreadsheet may run; tab and line breaks it skips.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
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

    With ``private`` the file, and folders made for it, are for this user's eyes only.

    Raises
    ------
    OSError
        It cannot be written, or what is there is no file, such as a device.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(errno.EEXIST, "what is there is no file", str(path))
    if private:
        make_private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    with create_file(temporary, private=private) as file:
        try:
            file.write(data)
            if private:  # what a node must not forget outlives a power cut
                file.flush()
                os.fsync(file.fileno())
            file.close()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def plain_cell(cell: Any) -> Any:
    """Return a cell as a spreadsheet may have it.

    >>> [plain_cell(cell) for cell in ("=A1", "-1.5", "-cmd", -2.0, "@x", "a=b")]
    ["'=A1", '-1.5', "'-cmd", -2.0, "'@x", 'a=b']
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def write_csv(path: Path, rows: Iterable[Iterable[Any]], *, ends: str = "\r\n") -> None:
    """Write a CSV file, heads first, for this user's eyes only.

    A spreadsheet runs a cell that begins with = + - or @: such a cell gets an apostrophe before it,
    unless it is a number.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator=ends).writerows(map(plain_cell, row) for row in rows)
    write_atomically(path, text.getvalue().encode(), private=True)


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
    return _read_arrays(io.BytesIO(data), len(data), "what was kept")


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Save named arrays and a JSON object to ``path`` (``.npz``) for this user's eyes only."""
    write_atomically(path, pack_arrays(arrays, meta), private=True)


def load_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Load what :func:`save_arrays` saved.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or of another kind.
    """
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist", remedy="check the path or start anew", code="FK-FILE-READ"
        )
    return _read_arrays(path, path.stat().st_size, str(path))


def other_release(name: object, meta: Mapping[str, Any]) -> CheckpointError:
    """Return the error of a run that another release began, with which this one cannot go on.

    Parameters
    ----------
    name : path
        The checkpoint, or the folder of the run.
    meta : mapping
        What it says of itself; ``fedkern_flwr`` is the release that wrote it.
    """
    release = f"fedkern-flwr {meta.get('fedkern_flwr', '0.1')}"
    return CheckpointError(
        f"{name} was written by {release}, this is {__version__}",
        remedy=f"resume with {release}, or start anew",
        code="FK-CHECKPOINT-VERSION",
    )


def _read_arrays(
    source: Path | io.BytesIO, size: int, name: str
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read an archive of ``size`` bytes.

    Ours are not compressed. One whose parts claim to be more than the whole is not read: a
    thousand times as much may come of a compressed one, and more of parts that share their bytes.
    """
    try:
        with np.load(source, allow_pickle=False) as data:
            if sum(part.file_size for part in data.zip.infolist()) > size:
                raise ValueError
            arrays = {key: data[key] for key in data.files}
        meta = read_json(bytes(arrays.pop(_META)))
    except _DAMAGE:
        meta = None
    if not isinstance(meta, dict):
        raise CheckpointError(
            f"{name} is damaged or not one of ours",
            remedy="start anew",
            code="FK-CHECKPOINT-DAMAGED",
        )
    return arrays, meta
