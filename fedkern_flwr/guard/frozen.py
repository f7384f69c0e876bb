"""Which rows of a node's freeze a client's own rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint import load_arrays, save_arrays
from ..private_files import make_private_folder
from .cells import Sum, lot_rows
from .freeze import FILE, USED, Change, Freeze, Places, Rows
from .orders import refusal
from .rows import OwnRows

#: Numbers and columns of a run that a lot of later rows must bear at least: 32 landmarks.
_LOT_NUMBERS, _LOT_WIDTH = 560.0, 32


_SAVED = 32  # runs whose rows are kept
#: What was read last: folder -> when the file was written, freeze.
_known: dict[Path, tuple[int, Freeze]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Frozen:
    """Own rows of a client, by their numbers in the freeze.

    Attributes
    ----------
    folder : Path
        Where the freeze is.
    rows : ndarray of int64, shape (own rows,)
        Number of each own row among all that were ever frozen: first those that are learned from,
        then those that are held out.
    learned : int
        How many are learned from.
    """

    folder: Path
    rows: Places
    learned: int

    def save(self, run: int) -> None:
        """Keep the rows of a run beside the freeze."""
        files = sorted(self.folder.glob("rows-*.npz"), key=lambda file: file.stat().st_mtime_ns)
        for file in files[: -_SAVED + 1]:
            file.unlink()
        save_arrays(self.folder / f"rows-{run}.npz", {"rows": self.rows}, {"learned": self.learned})

    @classmethod
    def load(cls, folder: Path, run: int) -> Frozen:
        """Read the rows of a run.

        Raises
        ------
        CheckpointError
            They are not there any more.
        """
        arrays, meta = load_arrays(folder / f"rows-{run}.npz")
        return cls(folder, arrays["rows"], int(meta["learned"]))


def freeze_folder(state_dir: Path, partition: int) -> Path:
    """Return the folder of a node's freeze: several nodes may share a ``state_dir``."""
    return state_dir / f"freeze-{partition}"


def open_freeze(folder: Path) -> Freeze:
    """Read the freeze of a folder, where there is one; an empty one otherwise."""
    path = folder / FILE
    if not path.is_file():
        return Freeze(b"", 1)
    written = path.stat().st_mtime_ns
    known = _known.get(folder)
    if known is None or known[0] != written:
        found = Freeze.load(folder)
        assert found is not None
        known = _known[folder] = written, found
    return known[1]


@contextmanager
def changing(folder: Path) -> Iterator[Freeze]:
    """Open the freeze of a folder; after the block its new blocks are written, or forgotten."""
    freeze = open_freeze(folder)
    blocks = len(freeze.blocks)
    try:
        yield freeze
        if len(freeze.blocks) > blocks:
            keep_freeze(folder, freeze)
    except BaseException:
        _known.pop(folder, None)
        raise


def keep_freeze(folder: Path, freeze: Freeze) -> None:
    """Write a freeze into its folder."""
    make_private_folder(folder)
    freeze.save(folder)
    _known[folder] = ((folder / FILE).stat().st_mtime_ns, freeze)


def frozen_arrays(
    folder: Path, own: OwnRows, sums: Sequence[Sum], *, least: int, party: str
) -> tuple[Frozen, Change]:
    """Freeze the rows of a client that has arrays, or find them in the freeze that there is.

    Raises
    ------
    RefusedError
        The rows have changed, and the changes form no whole blocks yet.
    """
    count = len(own.ids) if own.ids is not None else sum(part[0].shape[0] for part in own.parts)
    rows = Rows(columns=_columns(own), ids=own.ids, held_out=np.arange(count) >= own.learned)
    freeze = Freeze.load(folder)
    if freeze is None:
        freeze, change = Freeze.deal(rows, least=least)
    else:
        change = freeze.update(rows, needed=needed_rows(sums))
    found = rows.identify(freeze.key)
    order = np.argsort(freeze.names)
    at = np.searchsorted(freeze.names, found.names, sorter=order).clip(max=max(len(order) - 1, 0))
    numbers = order[at] if len(order) else np.zeros(0, np.int64)
    fits = len(numbers) == count == int(freeze.used.sum()) and bool(
        (freeze.names[numbers] == found.names).all()
        and (freeze.values[numbers] == found.values).all()
        and (freeze.blocks["state"][freeze.block[numbers]] == USED).all()
    )
    keep_freeze(folder, freeze)
    if not fits:
        raise refusal(
            "its table has changed, and the changes form no whole blocks",
            party,
            "give the table as it was frozen; the log of the node says which changes wait",
            code="FK-FREEZE-WAITS",
        )
    return Frozen(folder, numbers, own.learned), change


def needed_rows(sums: Sequence[Sum]) -> int:
    """Return the rows that a lot needs, so that the largest run so far may be repeated smaller."""
    return max(
        (lot_rows(min(s.numbers, _LOT_NUMBERS), s.row, min(s.width, _LOT_WIDTH)) for s in sums),
        default=0,
    )


def _columns(own: OwnRows) -> list[Any]:
    """Return the content of all rows: arrays with a row each; gaps where a part has none."""
    found: list[Any] = []
    for place in range(max((len(part) for part in own.parts), default=0)):
        known = next(part[place] for part in own.parts if len(part) > place)
        pieces = []
        for part in own.parts:
            if len(part) > place:
                pieces.append(part[place])
            else:
                pieces.append(np.full((part[0].shape[0], *known.shape[1:]), np.nan))
        if all(isinstance(piece, np.ndarray) for piece in pieces):
            found.append(np.concatenate(pieces))
        else:
            from scipy import sparse

            found.append(sparse.csr_array(sparse.vstack(pieces)))
    return found
