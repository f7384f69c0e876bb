"""What a deployed node reads from its own disk: its table, public ranges, secrets.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedkern_flwr.errors import OptionError, TableError
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

    ``ranges`` names a JSON file, {"column": [least, greatest], ...}. The ranges become part of the
    columns' names, so that holders of a block with other ranges are refused.
    """
    remedy = 'write {"column": [least, greatest], ...}'
    try:
        limits = json.loads(Path(ranges).read_text())
        low, high = np.array([limits[name] for name in table.columns], np.float64).T
    except KeyError as error:
        raise TableError(f"there is no range of column {error}", remedy=remedy) from None
    except (OSError, ValueError, TypeError):
        raise TableError("the file of ranges cannot be read", remedy=remedy) from None
    if not (np.isfinite(high - low) & (low < high)).all():
        raise TableError("a range is empty or infinite", remedy=remedy)
    bounds = zip(table.columns, low.tolist(), high.tolist(), strict=True)
    names = tuple(f"{name} in [{least}, {most}]" for name, least, most in bounds)
    return replace(table, x=(table.x - low) / (high - low), columns=names)


def read_secret(path: str | None, name: str) -> bytes | None:
    """Read a secret from a file in hexadecimal."""
    try:
        return None if path is None else bytes.fromhex(Path(path).read_text())
    except (OSError, ValueError):
        raise OptionError(
            f"the file of {name} cannot be read", remedy="put 64 hexadecimal digits into it"
        ) from None


def read_classes(text: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return the names of all classes and their numbers; those of text count from 0, sorted."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        return names, tuple(map(float, names))
    except ValueError:
        return tuple(sorted(names)), tuple(map(float, range(len(names))))
