"""What a node reads from its own disk, whatever its method: secrets, classes, whole rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .errors import OptionError, TableError
from .labels import are_numbers
from .tables.dialect import read_class_of
from .tables.table import Table


def read_secret(path: str | Path | None, name: str) -> bytes | None:
    """Read a secret from a file in hexadecimal; None without a file.

    Parameters
    ----------
    path : path or None
        The file.
    name : str
        What the secret is called in errors, such as ``"the alignment key"``.

    Raises
    ------
    OptionError
        The file cannot be read, or holds something else.
    """
    try:
        return None if path is None else bytes.fromhex(Path(path).read_text())
    except (OSError, ValueError):
        raise OptionError(
            f"the file of {name} cannot be read",
            remedy="put 64 hexadecimal digits into it",
            code="FK-KEY-FILE",
        ) from None


def read_classes(text: str) -> tuple[str, ...]:
    """Return the names of all classes, those of text sorted.

    Parameters
    ----------
    text : str
        The classes, separated by commas; empty for none. Or labels and their classes, such as
        ``0=no,1=yes``.
    """
    names = tuple(dict.fromkeys(name for _, name in read_class_of(text)))
    return names if are_numbers(names) else tuple(sorted(names))


def check_predictions(node: Mapping[str, object], *, predicting: bool) -> None:
    """Refuse a node that shall predict its test data and names no file for that.

    Parameters
    ----------
    node : mapping
        The node's configuration.
    predicting : bool
        Whether the run predicts with a saved model.

    Raises
    ------
    OptionError
    """
    if predicting and "test-data" in node and "predictions" not in node:
        raise OptionError(
            "there is nowhere to write the predictions",
            remedy="name predictions in --node-config",
            code="FK-PREDICT-NOWHERE",
        )


def whole_rows(
    table: Table, path: str | Path, missing: str, *, labels: bool, numbered: bool = False
) -> Table:
    """Return the rows that lack nothing.

    Parameters
    ----------
    table : Table
        Where a cell, a label or an id is missing it holds NaN or an empty id.
    path : path
        Its file, which errors name.
    missing : {"error", "drop-row"}
        Refuse a table that lacks something, or leave its rows out.
    labels : bool
        Whether a row needs a label.
    numbered : bool (default: False)
        Whether rows are known by their place in the file, so that none may be left out.

    Raises
    ------
    TableError
        A row lacks something and ``missing`` is ``error`` or it is ``numbered``, or every row does.
    OptionError
        ``missing`` is something else.
    """
    if missing not in ("error", "drop-row"):
        raise OptionError(
            f"missing is {missing!r}",
            remedy="choose 'error' or 'drop-row'",
            code="FK-OPTION-CHOICE",
        )
    whole = np.isfinite(table.x).all(axis=1)
    if labels and table.y is not None:
        whole &= np.isfinite(table.y)
    if table.ids is not None and table.ids.dtype.kind == "U":
        whole &= table.ids != ""
    lacking, name = table.rows - int(whole.sum()), Path(path).name
    code = "FK-VALUES-MISSING"
    if np.isfinite(table.x).all() and (table.y is None or np.isfinite(table.y).all()):
        code = "FK-IDS-MISSING"
    elif np.isinf(table.x).any() and not np.isnan(table.x).any():
        code = "FK-VALUES-FINITE"
    what = "a value, a label or an id" if labels else "a value or an id"
    if lacking and missing == "error":
        raise TableError(
            f"{lacking} rows of {name} lack {what}",
            remedy='leave them out, or run with missing="drop-row"',
            code=code,
        )
    if lacking and numbered:
        raise TableError(
            f"{lacking} rows of {name} lack {what}, and rows without ids are known by their place",
            remedy="fill in these cells, or take the rows out of the files of all nodes concerned",
            code=code,
        )
    if lacking == table.rows:
        raise TableError(
            f"every row of {name} lacks {what}", remedy="fill in its cells", code="FK-VALUES-NOROW"
        )
    return table.take(whole) if lacking else table
