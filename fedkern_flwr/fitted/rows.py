"""Rows to predict: of a file, a data frame, an array, or of several parties' tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encoding import Encoder
from ..errors import ColumnError, TableError
from ..tables import load_table
from ..tables.dialect import DIALECT, file_kind
from ..tables.parties import PartyTables
from ..tables.table import Table

_NUMBERS = ("number", "boolean", "date")
_FRAMES = ("__arrow_c_stream__", "__dataframe__")


def read_rows(
    rows: Any,
    encoder: Encoder,
    meta: Mapping[str, Any],
    id_column: str | None,
    dialect: Mapping[str, Any],
    *,
    strict: bool,
) -> Table:
    """Return rows as a table with the columns of a model; see ``FittedModel.read``.

    Raises
    ------
    TableError, OptionError
    """
    kinds, notes, several = encoder.kinds, list[str](), _several(rows)
    how: dict[str, Any] = {key: dialect.get(key) or meta.get(key) for key in DIALECT}
    how = {key: value for key, value in how.items() if value}
    if several:
        id_column = id_column or meta.get("id")
        parties = PartyTables.of_new_rows(rows, meta["label"] or None, id_column, how, list(kinds))
        rows, _, notes = parties.frame(whole=True)
        lost = sum(one.rows for one in parties.owners) - rows.num_rows
        if strict and lost:
            raise TableError(
                f"{lost} rows are not in all of {parties.text}",
                remedy="leave them out, or predict model.read(...) of the tables, which does",
                code="FK-ROWS-LACKING",
            )
    if isinstance(rows, (np.ndarray, list, tuple)):
        if any(kind not in _NUMBERS for kind in kinds.values()):
            raise TableError(
                "the model has columns of categories, which an array does not hold",
                remedy="give a data frame, or a file",
                code="FK-COLUMNS-CATEGORIES",
            )
        table = Table(array_of(rows, len(kinds)), None, tuple(kinds), kinds=kinds)
        return replace(table, notes=encoder.strange(table))
    file = Path(rows) if isinstance(rows, (str, Path)) else None
    arrays = file is not None and file_kind(file) == ".npz"
    load = partial(
        load_table,
        rows,
        label=(meta["label"] or None) if arrays else None,  # an array of several
        missing="keep",
        labelled=False,
        bare=True,
        kinds=kinds,
        needed=kinds,
        source="the table of all parties" if several else None,
        **how,
    )
    usual = None if arrays or id_column else meta.get("id")
    try:
        table = load(id_column=id_column or usual)
    except TableError as error:
        if usual is None:
            raise
        table = load(id_column=None)
        if not isinstance(error, ColumnError):
            notes.append(f"{error.problem}: the rows are numbered")
    encoder.places(table, "the table" if file is None else file.name)
    return replace(table, notes=(*notes, *table.notes, *encoder.strange(table)))


def array_of(rows: Any, columns: int) -> NDArray[np.float64]:
    """Return rows of numbers, shape (n, columns).

    Raises
    ------
    TableError
        They are something else.
    """
    try:
        x = np.asarray(rows, np.float64)
    except (TypeError, ValueError):
        raise TableError(
            "the rows are not numbers",
            remedy="give a two-dimensional array",
            code="FK-COLUMN-NUMBERS",
        ) from None
    if x.ndim != 2 or x.shape[1] != columns:
        raise TableError(
            f"an array of shape {x.shape} is no rows of the model's {columns} columns",
            remedy="give its features in their order, or a data frame with their names",
            code="FK-COLUMNS-DIFFER",
        )
    return x


def _several(rows: Any) -> bool:
    """Tell whether rows are tables of several parties, in a mapping or a sequence."""
    if isinstance(rows, (list, tuple)):
        return any(
            isinstance(one, (str, Path)) or any(hasattr(one, name) for name in _FRAMES)
            for one in rows
        )
    return isinstance(rows, Mapping)
