"""Write private files, atomically: folders, arrays, tables."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import secrets
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from numpy.typing import NDArray

from . import __version__
from .errors import CheckpointError, ProtocolError, StateError
from .plain_text import read_json

# -- files and folders for this user's eyes only, from their first byte
#
# A file is made with ``O_CREAT | O_EXCL | O_NOFOLLOW`` and mode 0600: it is new, not what a link of
# somebody else points to, and nobody else could ever open it. Whatever the package keeps of data,
# models and secrets is made here.

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS
_FILE, _FOLDER, _SHARED = 0o600, 0o700, 0o666
_OTHERS = 0o077


def create_file(path: Path, *, private: bool = True) -> BinaryIO:
    """Create a file and open it to read and write; an existing name, even a link, is an error."""
    return os.fdopen(os.open(path, _NEW, _FILE if private else _SHARED), "r+b")


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file of this user to read and write, or to append; create it if it is missing.

    Raises
    ------
    StateError
        It is a link, or others own it or may open it.
    """
    make_private_folder(path.parent)
    more = os.O_APPEND if append else 0
    try:
        descriptor = os.open(path, _NEW | more, _FILE)
    except FileExistsError:
        descriptor = _open_own(path, os.O_RDWR | more)
    return os.fdopen(descriptor, "ab" if append else "r+b")


def make_private_folder(folder: Path) -> None:
    """Create a private folder with its missing parents; do not change an existing one."""
    missing = []
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        place.mkdir(mode=_FOLDER, exist_ok=True)


def can_be_written(path: Path) -> bool:
    """Return whether a file can probably be written here."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    return not path.is_dir() and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
    """Return this user's folder among the system's temporary files.

    Raises
    ------
    StateError
        Another user made it, or may read it.
    """
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"fedkern-flwr-{owner}"
    make_private_folder(folder)
    if folder.is_symlink() or not _own(folder.stat()):
        raise StateError(
            "the folder for temporary files belongs to somebody else", code="FK-FOLDER-FOREIGN"
        )
    return folder


def _open_own(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | _NO_LINKS)
    except OSError:
        raise _foreign(path) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or not _own(found):
        os.close(descriptor)
        raise _foreign(path)
    return descriptor


def _own(found: os.stat_result) -> bool:
    """Return whether a file belongs to this user and is closed to all others."""
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS


def _foreign(path: Path) -> StateError:
    return StateError(f"{path} is a link, or others own it or may open it", code="FK-FILE-FOREIGN")


# -- which run a message belongs to, and where a node keeps what belongs to a run

_LENGTH = 64
_RUN_FOLDER = re.compile(r"(?:\d{4}-\d\d-\d\dT\d{4}Z-)?([^\W_]+)")
_session: ContextVar[str | None] = ContextVar("_session", default=None)


def with_session(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Remember the session of a message while it is answered.

    This is a mod of Flower's ``ClientApp``, which builds a client from the context only.
    ProtocolError if the message names two sessions: rows would be read for one and summed in the
    other.
    """
    named = {
        str(record["session"])
        for record in (message.content.values() if message.has_content() else ())
        if isinstance(record, ConfigRecord) and "session" in record
    }
    if len(named) > 1:
        raise ProtocolError("a message names two sessions", code="FK-MESSAGE-FIELD")
    session = "".join(named)
    found = session[:_LENGTH] if session.isalnum() else ""
    before = _session.set(found)
    try:
        return call_next(message, context)
    finally:
        _session.reset(before)


def run_name(context: Context) -> str | None:
    """Return the session of the current run, which a resumed run keeps.

    None if no message is being answered, such as in a script.
    """
    session = _session.get()
    return f"run {context.run_id}" if session == "" else session


def run_folder(state_dir: Path, session: str, partition: int) -> Path:
    """Return the folder of a run in a node's folder; it may not exist yet.

    Names have time and session, such as ``2026-11-27T0812Z-5e1f``, in earlier releases the session
    only. Nodes that share a folder may start a run in different minutes: each finds the folder with
    its files.
    """
    plain = state_dir / session
    found = [plain] if plain.is_dir() else sorted(state_dir.glob(f"????-??-??T????Z-{session}"))
    own = (one for one in found if any(one.glob(f"partition-{partition}[.-]*")))
    fresh = state_dir / f"{time.strftime('%Y-%m-%dT%H%MZ', time.gmtime())}-{session}"
    return next(own, found[0]) if len(found) > 1 else [*found, fresh][0]


def session_of(folder: Path) -> str:
    """Return the session in the name of a run's folder; "" for other folders."""
    found = _RUN_FOLDER.fullmatch(folder.name)
    return found[1] if found else ""


# -- files that survive a crash: arrays and JSON in one ``.npz``, never a pickle, written atomically
#
# The same format holds checkpoints and models.

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

    With ``private`` the file, and new folders, are readable by this user only.
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
    """Return a cell that a spreadsheet does not run as a formula.

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
    """Write a private CSV file, header first, with cells from :func:`plain_cell`."""
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
    """Return the content of :func:`pack_arrays`; CheckpointError if damaged."""
    return _read_arrays(io.BytesIO(data), len(data), "what was kept")


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
    """Save named arrays and a JSON object to a private ``.npz`` file."""
    write_atomically(path, pack_arrays(arrays, meta), private=True)


def load_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Load the file of :func:`save_arrays`.

    Raises
    ------
    CheckpointError
        The file is missing, damaged or of another kind.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist", code="FK-FILE-READ")
    return _read_arrays(path, path.stat().st_size, str(path))


def other_release(name: object, meta: Mapping[str, Any]) -> CheckpointError:
    """Return the error for a checkpoint of another release, which ``meta`` names."""
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

    Ours are not compressed. An archive with parts larger than the whole is refused: a compressed
    one, or parts that share bytes, could fill the memory.
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
        raise CheckpointError(f"{name} is damaged or not one of ours", code="FK-CHECKPOINT-DAMAGED")
    return arrays, meta
