"""A hospital's own kernel rows between two messages: a private file, erased at the end of the run.

In a deployment every message may meet a new process, and the rows are too many to travel with the
node's state. They can be made again: a hospital without them says so, and the run goes back.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .run_file import RunFile

Floats = NDArray[np.float64]


class KernelRows(RunFile):
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
        super().__init__(folder, session, partition, "kernel")
        self.landmarks = landmarks

    def write(self, start: int, rows: Floats, *, first: int = 0) -> None:
        """Write rows from position ``start`` on; those of position ``first`` begin a new file.

        Raises
        ------
        StateError
            The rows before them are gone.
        """
        if start == first:
            self.path.unlink(missing_ok=True)
        else:
            self._check_length(start)
        with self.open() as file:
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
        with self.open() as file:
            return np.memmap(file, "<f8", mode="r", offset=offset, shape=shape)

    def _check_length(self, rows: int) -> None:
        if not self.path.is_file() or self.path.stat().st_size < 8 * self.landmarks * rows:
            raise self.gone("kernel rows", "they are made again")
