"""A party's table in a vertical split, and the file of phases that an active party has received."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.alignment import AlignmentKey, Hashes, hash_ids
from fedkern_flwr.labels import label_rows
from fedkern_flwr.vertical.phases import Phases

from .party_table import Floats, Ids, PartyTable
from .run_file import RunFile

Positions = NDArray[np.signedinteger[Any]]
_COUNT = np.dtype("<i4")

_ROW_NUMBERS = b"fedkern-flwr rows in the same order at all parties"


class VerticalTable(PartyTable):
    """Rows of one party: features of all rows; at an active party labels of some or all of them.

    Rows are announced in three parts: those with a label, held-out ones, and the others.

    Parameters
    ----------
    party, x, y, ids, x_test, y_test, ids_test
        See :class:`~fedkern_flwr.clients.party_table.PartyTable`. NaN in y marks a row whose label
        another party has. Without ids the rows of all parties stand in the same order.
    **common
        Options of :class:`~fedkern_flwr.clients.party_table.PartyTable`.

    Attributes
    ----------
    known : ndarray of bool, shape (rows given,)
        Which of the rows that were given have a label.
    order_seed : int
        Rows are announced in an order that depends on it, on the alignment key and the ids; at -1
        in one that depends on the session.
    """

    order_seed = -1

    def __init__(
        self,
        party: str,
        x: ArrayLike | None,
        y: ArrayLike | None,
        ids: Ids | None,
        *held_out: Any,
        **common: Any,
    ) -> None:
        self.party = party
        rows = next((len(v) for v in (x, y, ids) if v is not None), 0)  # type: ignore[arg-type]
        features, names = self._features(x, rows), self._names(ids, rows, "row")
        labels = None
        if y is not None:
            labels = self._numbers(label_rows(y, common["classes"], party), "labels")
        known: NDArray[np.bool_] = np.zeros(rows, bool)
        if labels is not None:
            if labels.ndim not in (1, 2) or len(labels) != rows:
                raise self._bad(
                    f"labels of shape {labels.shape} do not fit {rows} rows",
                    "pass one label per row",
                    code="FK-SHAPE-DIFFERS",
                )
            missing = np.isnan(labels)
            known = np.asarray(~(missing.any(axis=1) if labels.ndim == 2 else missing), bool)
            labels = labels[known]
        self.known = known
        super().__init__(party, features[known], labels, names[known], *held_out, **common)
        self.identified = ids is not None or held_out[-1] is not None
        self.x_other = features[~known]
        self._ids = np.concatenate([self._ids, names[~known]])
        if y is None:  # to a passive party no row is held out
            self.x_other = np.concatenate([self.x_other, self.x_test])
            self._ids = np.concatenate([names, self._ids[: self.tests]])
            self.x_test = self.x_test[:0]

    @property
    def parts(self) -> tuple[Floats, ...]:
        """The features of rows with labels, of held-out rows, and of the others."""
        return self.x, self.x_test, self.x_other

    @property
    def announced_rows(self) -> int:
        """Number of all rows."""
        return sum(len(part) for part in self.parts)

    @property
    def others(self) -> int:
        """Number of rows that are neither labelled nor held out."""
        return len(self.x_other)

    def digest(self) -> str:
        """Return a digest of the features of all rows, and of the targets to learn from."""
        digest = hashlib.sha256(super().digest().encode())
        for part in self.parts[1:]:
            digest.update(b"/" + part.tobytes())
        return digest.hexdigest()

    def _ranks(self, hashes: Hashes, session: str, key: AlignmentKey) -> Hashes:
        if self.order_seed < 0:
            return hashes
        return hash_ids(self._ids, key, f"order {self.order_seed}")

    def _own_key(self) -> bytes:
        return _ROW_NUMBERS


class PhaseStore(RunFile):
    """The phases that an active party has received, row by row, in a sparse private file.

    It is erased at the end of the run. It begins with the number of phases of each row: rows that a
    file lost are never read as zeros.

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
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk kills later writes
        with self.open() as file:
            counts = np.memmap(file, _COUNT, mode="r+", shape=(rows,))
            place = rows * _COUNT.itemsize
            return counts, np.memmap(file, self.dtype, mode="r+", offset=place, shape=self.shape)
