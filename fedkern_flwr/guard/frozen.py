"""The handle that a client has to the freeze of its node: which frozen row each of its rows is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .freeze import Freeze, Places, Rows


@dataclass(frozen=True, eq=False, repr=False)
class Frozen:
    """Which row of its node's freeze each row of a client is.

    Attributes
    ----------
    folder : Path
        The node's own folder, ``state_dir``.
    partition : int
        Which node it is: several on one machine may share a folder.
    rows : ndarray of int64, shape (rows learned + rows held out,)
        The number of each row among :attr:`~fedkern_flwr.guard.freeze.Freeze.names`, in the order
        of the client's ``own_rows()``: learned, then held out. -1 for a row that is in no block.
    """

    folder: Path
    partition: int
    rows: Places

    @property
    def place(self) -> Path:
        """The folder of the freeze."""
        return freeze_folder(self.folder, self.partition)

    def freeze(self) -> Freeze:
        """Read the freeze as it is now.

        Rows never change their numbers. Their blocks may have been split since this was made.

        Raises
        ------
        OptionError
            It is damaged or of a newer release.
        FileNotFoundError
            It is gone.
        """
        found = Freeze.load(self.place)
        if found is None:
            raise FileNotFoundError(self.place)
        return found

    @classmethod
    def find(cls, folder: Path, partition: int, rows: Rows, freeze: Freeze) -> Self:
        """Find rows by their names and contents in a freeze; those that are not there are -1."""
        return cls(folder, partition, numbers_of(rows, freeze))


def freeze_folder(state_dir: Path, partition: int) -> Path:
    """Return the folder of a node's freeze and frozen tables."""
    return state_dir / f"freeze-{partition}"


def numbers_of(rows: Rows, freeze: Freeze) -> NDArray[np.int64]:
    """Return the numbers of rows in a freeze, -1 for those that are not used with this content."""
    found = rows.identify(freeze.key)
    numbers = np.full(len(rows), -1, np.int64)
    if len(freeze.names):
        order = np.argsort(freeze.names)
        at = order[np.searchsorted(freeze.names[order[:-1]], found.names)]
        same = (freeze.names[at] == found.names) & (freeze.values[at] == found.values)
        same &= freeze.used[at]
        numbers[same] = at[same]
    return numbers
