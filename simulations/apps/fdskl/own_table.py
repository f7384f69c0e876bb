"""What a deployed node reads from its own disk: its table, and ranges to scale it by.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import TableError
from fedkern_flwr.node_files import whole_rows
from fedkern_flwr.tables import Table, load_table

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]

_REMEDY = 'write {"column": [least, greatest], ...}'


@lru_cache  # a process reads its tables once
def own_table(
    path: str,
    id_column: str | None,
    label: str | None,
    labelled: bool,
    classes: tuple[str, ...],
    missing: str,
    bare: bool,
) -> Table:
    """Read a table. Labels may be missing, which marks rows whose label another party has.

    ``labelled`` refuses a file without labels, ``bare`` takes one without features. Of a text label
    ``classes`` are all there are. ``missing`` says what to do with rows that lack anything else:
    ``error`` or ``drop-row``; without ids rows are joined by their order, and none may be dropped.
    """
    table = load_table(
        path,
        id_column=id_column,
        label=label,
        labelled=labelled,
        classes=classes,
        missing="keep",
        bare=bare,
    )
    table = whole_rows(table, path, missing, labels=False, numbered=id_column is None)
    if table.y is None:
        return table
    known = np.isfinite(table.y)
    return replace(table, y=np.where(known, table.y, np.nan) if known.any() else None)


def scale(
    table: Table, held: Table | None, ranges: str | None, *, new: bool
) -> tuple[Table, Table | None]:
    """Scale each feature to [0, 1] by its range, in the units of the data; values are clipped.

    ``ranges`` names a JSON file, {"column": [least, greatest], ...}. Where there is none yet, a
    ``new`` run writes that of the table, so that later runs and predictions scale alike. Without
    ``ranges`` the features must be in [0, 1] already.
    """
    if held is not None and held.columns != table.columns:
        raise TableError(
            "the test data does not have the columns of the data, in this order",
            remedy="bring them to the same columns",
        )
    if ranges is None:
        for part in (table, held):
            if part is not None and not ((part.x >= 0.0) & (part.x <= 1.0)).all():
                raise TableError(
                    "there are values beyond 0 and 1",
                    remedy="name a file of ranges; it is written if there is none",
                )
        return table, held
    if not table.columns:
        return table, held
    low, high = read_ranges(table, Path(ranges), new=new)

    def scaled(part: Table) -> Table:
        return replace(part, x=np.clip((part.x - low) / (high - low), 0.0, 1.0))

    return scaled(table), None if held is None else scaled(held)


def read_ranges(table: Table, path: Path, *, new: bool) -> Bounds:
    """Return the least and the greatest value of each column; see :func:`scale`."""
    try:
        if new and not path.exists():
            low, high = table.x.min(axis=0), table.x.max(axis=0)
            high = np.where(high > low, high, low + 1.0)
            pairs = np.stack([low, high], axis=1).tolist()
            text = json.dumps(dict(zip(table.columns, pairs, strict=True)))
            write_atomically(path, text.encode(), private=True)
        limits = json.loads(path.read_text())
        low, high = np.array([limits[name] for name in table.columns], np.float64).T
    except KeyError as error:
        raise TableError(f"there is no range of column {error}", remedy=_REMEDY) from None
    except (OSError, ValueError, TypeError):
        raise TableError("the file of ranges cannot be read or written", remedy=_REMEDY) from None
    if not (np.isfinite(high - low) & (low < high)).all():
        raise TableError("a range is empty or infinite", remedy=_REMEDY)
    return low, high
