"""What a deployed node reads from its own disk: its table and its secret.

CHANGE THIS if your table needs more preparation.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.tables import Table, load_table


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
    """Read a table, with labels if it is ``labelled``, perhaps without features if ``bare``.

    Of a text label ``classes`` are all there are. ``missing`` says what to do with rows that lack
    anything: ``error`` or ``drop-row``.
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
    whole = np.isfinite(table.x).all(axis=1)
    if table.y is not None and labelled:
        whole &= np.isfinite(table.y)
    if table.ids is not None and table.ids.dtype.kind == "U":
        whole &= table.ids != ""
    lacking = table.rows - int(whole.sum())
    if lacking and missing == "error":
        raise TableError(
            f"{lacking} rows of {Path(path).name} lack a value, a label or an id",
            remedy='leave them out, or run with missing="drop-row"',
        )
    if lacking == table.rows:
        raise TableError(
            f"every row of {Path(path).name} lacks a value", remedy="fill in its cells"
        )
    return table.take(whole) if lacking else table


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
