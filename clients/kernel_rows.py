"""A hospital's own kernel rows between two messages: a private file, erased at the end of the run.

In a deployment every message may meet a new process, and the rows are too many to travel with the
node's state. They can be made again: a hospital without them says so, and the run goes back.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import StateError

Floats = NDArray[np.float64]


class KernelRows:
    """Rows of a kernel matrix in a file.

    Parameters
    ----------
    folder : Path or None
        Where; by default a folder for this user's eyes in the system's place for temporary files.
    session : str
        Name of the run.
    partition : int
    landmarks : int
        Numbers per row.
    """

    def __init__(self, folder: Path | None, session: str, partition: int, landmarks: int) -> None:
        base = folder if folder is not None else _temporary_folder()
        self.path = base / session / f"partition-{partition}.kernel"
        self.partition, self.landmarks = partition, landmarks

    def write(self, start: int, rows: Floats, *, first: int = 0) -> None:
        """Write rows from position ``start`` on; those of position ``first`` begin a new file.

        Raises
        ------
        StateError
            The rows before them are gone.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if start == first:
            self.path.unlink(missing_ok=True)
        else:
            self._check_length(start)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            file.seek(start * self.landmarks * 8)
            file.write(np.ascontiguousarray(rows, "<f8").data)

    def read(self, start: int, stop: int) -> Floats:
        """Return rows as a read-only array, without loading what is not used.

        Raises
        ------
        StateError
            The file is gone or too short.
        """
        if stop <= start:
            return np.zeros((0, self.landmarks))
        self._check_length(stop)
        offset, shape = 8 * self.landmarks * start, (stop - start, self.landmarks)
        return np.memmap(self.path, "<f8", mode="r", offset=offset, shape=shape)

    def _check_length(self, rows: int) -> None:
        if not self.path.is_file() or self.path.stat().st_size < 8 * self.landmarks * rows:
            raise StateError(
                "the kernel rows of this run are gone from its disk",
                remedy="they are made again",
                party=f"partition {self.partition}",
            )

    def erase(self) -> None:
        """Remove the file and, if it was the last, the run's folder."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty, or just removed by another party
            self.path.parent.rmdir()


_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


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
