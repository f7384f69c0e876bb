"""Files and folders for this user's eyes only, from their first byte.

A file is made with ``O_CREAT | O_EXCL | O_NOFOLLOW`` and mode 0600: it is new, not what a link of
somebody else points to, and nobody else could ever open it. Whatever the package keeps of data,
models and secrets is made here.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from .errors import StateError

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS
_FILE, _FOLDER, _SHARED = 0o600, 0o700, 0o666
_OTHERS = 0o077


def create_file(path: Path, *, private: bool = True) -> BinaryIO:
    """Make a file that is not there yet and open it to read and write.

    Raises
    ------
    FileExistsError
        Something has its name, if only a link.
    """
    return os.fdopen(os.open(path, _NEW, _FILE if private else _SHARED), "r+b")


def open_private(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file of this user to read and write, or to append; it is made if it is not there.

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
    """Make a folder, and those above it that are missing; one that is there stays as it is."""
    missing = []
    for place in (folder, *folder.parents):
        if place.is_dir():
            break
        missing.append(place)
    for place in reversed(missing):
        place.mkdir(mode=_FOLDER, exist_ok=True)


def can_be_written(path: Path) -> bool:
    """Tell whether a file can be written here, as far as that can be told before."""
    folder = path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    return not path.is_dir() and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def temporary_folder() -> Path:
    """Return this user's folder in the system's place for temporary files.

    Raises
    ------
    StateError
        Somebody else made it, or may look into it.
    """
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"fedkern-flwr-{owner}"
    make_private_folder(folder)
    if folder.is_symlink() or not _own(folder.stat()):
        raise StateError(
            "the folder for temporary files belongs to somebody else",
            remedy="give the client a state_dir",
            code="FK-FOLDER-FOREIGN",
        )
    return folder


def _open_own(path: Path, flags: int) -> int:
    """Open a file that is there, if it is one that :func:`open_private` made."""
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
    """Tell whether something belongs to this user and is closed to all others."""
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & _OTHERS


def _foreign(path: Path) -> StateError:
    return StateError(
        f"{path} is a link, or others own it or may open it",
        remedy="remove it, then go on",
        code="FK-FILE-FOREIGN",
    )
