"""Serve a party with its own columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
import numpy as np
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.clients import VerticalKernelClient, serve
from fedkern_flwr.errors import TableError
from fedkern_flwr.scaling import ranges_to_json, read_ranges
from fedkern_flwr.simulations.apps.node import Node, client_maker
from fedkern_flwr.tables.table import Table

KEYS = (
    "role",
    "classes",
    "label-bound",
    "alignment-key",
    "frequency-seed",
    "allow-single",
    "predictions",
)


def arguments(node: Node) -> dict[str, Any]:
    """Read the columns of a party.

    Rows without ids are joined by position, so none may be dropped. Labels may be missing where
    another party has them; an active party may have labels alone.
    """
    active = node.role("active", "passive") == "active"
    if active:
        node.check_predictions()
    numbered = "id-column" not in node.config
    how: Any = {"labelled": active, "bare": active, "missing": "keep"}
    encoded = "encoder" in node.config
    table, held = node.encoded(**how) if encoded else node.tables(**how)
    table = known(node.whole(table, labels=False, numbered=numbered))
    if held is not None:
        held = known(node.whole(held, "test-data", labels=False, numbered=numbered))
    new = not node.run["predict"] and not node.run["resume"]
    if not encoded:
        table, held = scale(table, held, node.config.get("ranges"), new=new)
    return node.rows(table, held, "x", "y", "ids")


def known(table: Table) -> Table:
    """Mark missing labels as NaN; drop the labels if all are missing."""
    if table.y is None:
        return table
    there = np.isfinite(table.y)
    return replace(table, y=np.where(there, table.y, np.nan) if there.any() else None)


def scale(
    table: Table, held: Table | None, ranges: str | None, *, new: bool
) -> tuple[Table, Table | None]:
    """Scale each feature to [0, 1] by its range, in the units of the data; values are clipped.

    ``ranges`` names a JSON file, {"column": [least, greatest], ...}. A ``new`` run writes the file
    if there is none, so that later runs and predictions scale alike. Without ``ranges`` the
    features must be in [0, 1].
    """
    if ranges is None:
        for part in (table, held):
            if part is not None and not ((part.x >= 0.0) & (part.x <= 1.0)).all():
                raise TableError(
                    "there are values beyond 0 and 1",
                    remedy="name a file of ranges; it is written if there is none",
                    code="FK-RANGES-OUTSIDE",
                )
        return table, held
    if not table.columns:
        return table, held
    if new:
        write_ranges(table, Path(ranges))
    low, high, _ = read_ranges(table.columns, ranges)

    def scaled(part: Table) -> Table:
        return replace(part, x=np.clip((part.x - low) / (high - low), 0.0, 1.0))

    return scaled(table), held and scaled(held)


def write_ranges(table: Table, path: Path) -> None:
    """Write the range of each column, unless the file exists."""
    try:
        if not path.exists():
            low, high = table.x.min(axis=0), table.x.max(axis=0)
            text = ranges_to_json(table.columns, low, np.where(high > low, high, low + 1.0))
            write_atomically(path, text.encode(), private=True)
    except OSError:
        raise TableError("the file of ranges cannot be written", code="FK-FILE-WRITE") from None


make_client = client_maker(VerticalKernelClient, arguments, own_table, keys=KEYS, simulated="fdskl")
app = serve(make_client)
