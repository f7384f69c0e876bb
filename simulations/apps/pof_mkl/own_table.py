"""What a deployed node reads from its own disk: its table, and public ranges to scale it by.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fedkern_flwr.errors import TableError
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables import Table, load_table


@lru_cache  # a process reads its tables once
def own_table(path: str, label: str | None, id_column: str | None) -> Table:
    """Read the table of the stream, which has labels."""
    return load_table(path, label=label, id_column=id_column)


@lru_cache
def held_out(path: str, label: str | None, id_column: str | None) -> Table:
    """Read rows that are predicted and not learned from, with labels or without."""
    return load_table(path, label=label, id_column=id_column, labelled=False)


def scale(table: Table, held: Table | None, scaling: Scaling | None) -> Table:
    """Bring rows into the unit ball and labels into [0, 1]; held-out values are clipped.

    ``scaling`` has the public ranges that all nodes agreed on; without it the table must be scaled
    already.
    """
    if held is not None:
        if held.columns != table.columns:
            raise TableError(
                "the test data does not have the columns of the data, in this order",
                remedy="bring them to the same columns",
            )
        table = replace(table, x_test=held.x, y_test=held.y)
    return table if scaling is None else scaling.apply(table)


def read_scaling(path: str | None) -> Scaling | None:
    """Read a file of public ranges, if there is one."""
    try:
        return None if path is None else Scaling.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError):
        raise TableError(
            "the file of the scaling cannot be read", remedy="check its path"
        ) from None
