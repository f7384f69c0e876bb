"""The phases that an active party has received: a private file, erased at the end of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.vertical.phases import Phases

from .run_file import RunFile

Positions = NDArray[np.signedinteger[Any]]
_COUNT = np.dtype("<i4")


class PhaseStore(RunFile):
    """Phases of the rows of a table, row by row, in a sparse file.

    It begins with the number of phases of each row: rows that a file lost are never read as zeros.

    Parameters
    ----------
    folder, session, partition
        See :class:`~fedkern_flwr.clients.run_file.RunFile`.
    rows : int
        Rows of the table.
    capacity : int
        Phases that a row may have.
    bits : {16, 32}
    """

    def __init__(
        self, folder: Path | None, session: str, partition: int, rows: int, capacity: int, bits: int
    ) -> None:
        super().__init__(folder, session, partition, "phases")
        self.shape = (rows, capacity)
        self.dtype = np.dtype(np.uint16 if bits == 16 else np.uint32).newbyteorder("<")

    def take(self, rows: Positions, known: Positions, upto: int, phases: Phases) -> None:
        """Keep new phases.

        Parameters
        ----------
        rows : ndarray, shape (n,)
            Positions in the table, none twice.
        known : ndarray, shape (n,)
            How many phases of each row are here already.
        upto : int
            How many there shall be.
        phases : ndarray of unsigned integers
            What is missing, row by row.

        Raises
        ------
        StateError
            The phases that should be here are gone.
        """
        counts, store = self._map(begin=not known.any())
        if (counts[rows] < known).any():
            raise self.gone("phases", "they are sent again")
        first = int(known.min()) if len(known) else 0
        if (known == first).all():
            block = phases.reshape(len(rows), upto - first)
        else:
            block = store[rows, first:upto]
            block[np.arange(first, upto) >= known[:, None]] = phases
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            store[rows[0] : rows[-1] + 1, first:upto] = block
        else:
            store[rows, first:upto] = block
        counts[rows] = upto

    def read(self, rows: Positions, upto: int) -> Phases:
        """Return the first phases of rows, shape (n, upto).

        Raises
        ------
        StateError
            The file is gone, or was gone and came back without these rows.
        """
        counts, whole = self._map(begin=False)
        if (counts[rows] < upto).any():
            raise self.gone("phases", "they are sent again")
        store = whole[:, :upto]
        if len(rows) and (np.diff(rows) == 1).all():
            return store[rows[0] : rows[-1] + 1].view(np.ndarray)
        return store[rows].view(np.ndarray)

    def _map(self, *, begin: bool) -> tuple[NDArray[np.int32], Phases]:
        """Return how many phases each row has, and the phases, as they are in the file."""
        rows, capacity = self.shape
        size = rows * (_COUNT.itemsize + capacity * self.dtype.itemsize)
        if not self.path.is_file() or self.path.stat().st_size != size:
            if not begin:
                raise self.gone("phases", "they are sent again")
            with self.open() as file:
                file.truncate(0)
                file.truncate(size)
        with self.open() as file:
            counts = np.memmap(file, _COUNT, mode="r+", shape=(rows,))
            place = rows * _COUNT.itemsize
            return counts, np.memmap(file, self.dtype, mode="r+", offset=place, shape=self.shape)
