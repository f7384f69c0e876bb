"""The handle that a client has to the freeze of its node: which frozen row each of its rows is."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import load_arrays, make_private_folder, save_arrays
from ..errors import OptionError, RefusedError
from .cells import Sum, lot_rows
from .freeze import FILE, Change, Freeze, Places
from .rows import OwnRows, Rows

#: Numbers and columns of a run that a lot of later rows must bear at least: 32 landmarks.
_LOT_NUMBERS, _LOT_WIDTH = 560.0, 32
#: What was read last: folder -> when the file was written, freeze.
_known: dict[Path, tuple[Any, Freeze]] = {}


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
    apart : str (default: "")
        Name of a freeze beside that of the node's table, of rows that only one client has.
    """

    folder: Path
    partition: int
    rows: Places
    apart: str = ""

    @property
    def place(self) -> Path:
        """The folder of the freeze."""
        return freeze_folder(self.folder, self.partition, self.apart)

    @classmethod
    def of_arrays(
        cls,
        folder: Path,
        partition: int,
        own: OwnRows,
        sums: Sequence[Sum],
        *,
        least: int,
        apart: str = "",
    ) -> tuple[Self, Change]:
        """Freeze the rows of a client that has arrays, or find them in the freeze that there is."""
        rows, place = own.rows(), freeze_folder(folder, partition, apart)
        if (place / FILE).is_file():
            freeze = open_freeze(place)
            change = freeze.update(rows, needed=needed_rows(sums))
        else:
            freeze, change = Freeze.deal(rows, least=least)
        keep_freeze(place, freeze)
        return cls(folder, partition, numbers_of(rows, freeze), apart), change

    def save(self, learned: int, used: Collection[str] = ()) -> str:
        """Keep these rows beside the freeze, and how many of them are learned from.

        Returns the name of the file. Others than those that are ``used`` are removed.
        """
        values, there = np.zeros(len(self.rows), np.uint64), self.rows >= 0
        values[there] = open_freeze(self.place).values[self.rows[there]]
        content = b"%d/" % learned + self.rows.tobytes() + values.tobytes()
        name = hashlib.blake2b(content, digest_size=8).hexdigest()
        make_private_folder(self.place)
        for file in self.place.glob("rows-*.npz"):
            if file.stem[5:] not in {name, *used}:
                file.unlink()
        if not (file := self.place / f"rows-{name}.npz").exists():
            save_arrays(file, {"rows": self.rows, "values": values}, {"learned": learned})
        return name


def saved_rows(place: Path, name: str) -> tuple[Places, int]:
    """Return the rows of a run, and how many of them are learned from; none without a name.

    Raises
    ------
    CheckpointError
        They are not there any more.
    RefusedError
        Their contents have changed since the run was opened.
    """
    if not name:  # a stream
        return np.zeros(0, np.int64), 0
    arrays, meta = load_arrays(place / f"rows-{name}.npz")
    rows: Places = arrays["rows"]
    there = rows[rows >= 0]
    values = open_freeze(place).values
    if there.max(initial=-1) >= len(values) or (values[there] != arrays["values"][rows >= 0]).any():
        raise RefusedError(
            "refused: its table has changed since the run was opened",
            remedy="start the run again",
            code="FK-FREEZE-WAITS",
        )
    return rows, int(meta["learned"])


def freeze_folder(state_dir: Path, partition: int, apart: str = "") -> Path:
    """Return the folder of a node's freeze and frozen tables."""
    return state_dir / f"freeze-{partition}{apart and '-'}{apart}"


def numbers_of(rows: Rows, freeze: Freeze) -> NDArray[np.int64]:
    """Return the numbers of rows in a freeze, -1 for those that are not used with this content."""
    found = rows.identify(freeze.key)
    numbers = np.full(len(rows), -1, np.int64)
    if len(freeze.names):
        order = np.argsort(freeze.names)
        at = order[np.searchsorted(freeze.names[order][:-1], found.names)]
        same = (freeze.names[at] == found.names) & (freeze.values[at] == found.values)
        same &= freeze.used[at]
        numbers[same] = at[same]
    return numbers


def needed_rows(sums: Sequence[Sum]) -> int:
    """Return the rows that a lot needs, so that the largest run so far may be repeated smaller."""
    return max(
        (lot_rows(min(s.numbers, _LOT_NUMBERS), s.row, min(s.width, _LOT_WIDTH)) for s in sums),
        default=0,
    )


def check_kept(place: Path, sums: Sequence[Sum]) -> None:
    """Refuse to freeze a table anew whose sums were counted by a freeze that is gone.

    Raises
    ------
    OptionError
    """
    last = max((max(one.blocks, default=-1) for one in sums), default=-1)
    if last >= len(open_freeze(place).blocks):
        raise OptionError(
            f"{FILE} is gone, or is an old one",
            remedy="bring back a copy of the state_dir: without it nobody can tell what was opened",
            code="FK-FREEZE-FILE",
        )


def open_freeze(place: Path) -> Freeze:
    """Read the freeze of a folder; an empty one where there is none."""
    if not (place / FILE).is_file():
        return Freeze(b"", 1)
    written = _written(place)
    known = _known.get(place)
    if known is None or known[0] != written:
        found = Freeze.load(place)
        assert found is not None
        known = _known[place] = written, found
    return known[1]


def keep_freeze(place: Path, freeze: Freeze) -> None:
    """Write a freeze into its folder."""
    make_private_folder(place)
    freeze.save(place)
    _known[place] = _written(place), freeze


def _written(place: Path) -> tuple[int, ...]:
    """Return what tells one writing of the file from the next."""
    found = (place / FILE).stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


@contextmanager
def changing(place: Path) -> Iterator[Freeze]:
    """Open the freeze of a folder; after the block its new blocks are written, or forgotten."""
    freeze = open_freeze(place)
    blocks = len(freeze.blocks)
    try:
        yield freeze
        if len(freeze.blocks) > blocks:
            keep_freeze(place, freeze)
    except BaseException:
        _known.pop(place, None)
        raise
