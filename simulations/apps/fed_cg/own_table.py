"""What a deployed node reads from its own disk: its table, and public ranges to scale it by.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fedkern_flwr.scaling import read_ranges, scale_by_ranges
from fedkern_flwr.tables import Missing, Table, load_table


@lru_cache  # a process reads its tables once
def own_table(
    path: str,
    id_column: str | None,
    label: str | None,
    labelled: bool,
    classes: tuple[str, ...],
    ranges: str | None,
    missing: Missing,
) -> Table:
    """Read a table; without ``ranges`` its features must be in [0, 1] already.

    ``labelled`` refuses a file without labels. Of a text label ``classes`` are all there are.
    """
    table = load_table(
        path,
        id_column=id_column,
        label=label,
        labelled=labelled,
        classes=classes,
        missing=missing,
    )
    return table if ranges is None else scale(table, ranges)


def scale(table: Table, ranges: str) -> Table:
    """Scale each feature by its public range, in the units of the data.

    ``ranges`` names a JSON file, {"column": [least, greatest], ...}, or what the app ``ranges``
    wrote. The ranges become part of the columns' names, so that holders of a block with other
    ranges are refused.
    """
    low, high, _ = read_ranges(table.columns, ranges)
    bounds = zip(table.columns, low.tolist(), high.tolist(), strict=True)
    names = tuple(f"{name} in [{least}, {most}]" for name, least, most in bounds)
    x = scale_by_ranges(table.x, table.columns, ranges)
    return replace(table, x=x, columns=names)
