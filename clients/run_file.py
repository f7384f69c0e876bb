"""A private file of a run on a node, for what is too large to travel with its state."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from fedkern_flwr.errors import StateError

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


class RunFile:
    """A file that only this user can read.

    Parameters
    ----------
    folder : Path or None
        Where; by default a folder for this user's eyes in the system's place for temporary files.
    session : str
        Name of the run.
    partition : int
    kind : str
        End of the file's name.
    """

    def __init__(self, folder: Path | None, session: str, partition: int, kind: str) -> None:
        base = folder if folder is not None else _temporary_folder()
        self.path = base / session / f"partition-{partition}.{kind}"

    def open(self) -> BinaryIO:
        """Open the file to read and write; it is made if it is not there."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o600)
        return os.fdopen(descriptor, "r+b")

    def erase(self) -> None:
        """Remove the file and, if it was the last, the run's folder."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or just removed by another party
            self.path.parent.rmdir()


def _temporary_folder() -> Path:
    owner = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"fedkern-flwr-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != owner):
        raise StateError(
            "the folder for temporary files belongs to somebody else",
            remedy="give the client a state_dir",
        )
    return folder
