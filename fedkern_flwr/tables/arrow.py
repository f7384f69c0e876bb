"""Tables in CSV and Parquet files, read with pyarrow (imported when needed)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ColumnError, TableError
from .table import Table, listing, no_such

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"


def read_columns(
    path: Path,
    label: str | None,
    id_column: str | None,
    site_column: str | None,
    use_label: bool,
    labelled: bool,
    classes: Sequence[str] | None,
) -> Table:
    """Read a CSV or Parquet file; see :func:`load_table` for the columns."""
    columns = _arrow_columns(path)
    if not labelled and label not in columns:
        label, use_label = None, False
    if label is None and use_label:
        raise ColumnError(
            f"the label column of {path.name} is not named",
            remedy=f"choose one with --label: {listing(columns)}",
        )
    named = [("label", label), ("id", id_column), ("site", site_column)]
    for kind, name in named:
        if name is not None and name not in columns:
            raise no_such(f"{kind} column", name, path.name, columns)
    given = [name for _, name in named if name is not None]
    if len(set(given)) < len(given):
        raise TableError(
            f"one column of {path.name} has two of the roles label, id and site",
            remedy="name different columns",
        )
    features = [name for name in columns if name not in given]
    x = np.empty((len(next(iter(columns.values()))), len(features)))
    for j, name in enumerate(features):
        x[:, j] = _numbers(columns[name], name, path.name)
    y: NDArray[np.float64] | None = None
    notes, names = tuple[str, ...](), tuple[str, ...]()
    if use_label and label is not None:
        y, notes, names = _labels(columns[label], label, path.name, classes)
    return Table(
        x,
        y,
        tuple(features),
        label if use_label else None,
        None if id_column is None else _text(columns[id_column], id_column, path.name),
        None if site_column is None else _text(columns[site_column], site_column, path.name),
        notes=notes,
        classes=names,
    )


def read_id_column(path: Path, id_column: str) -> NDArray[np.str_]:
    """Read the ids of a CSV or Parquet file as trimmed text; a missing one is empty."""
    columns = _arrow_columns(path)
    if id_column not in columns:
        raise no_such("id column", id_column, path.name, columns)
    return _text(columns[id_column], id_column, path.name)


def _arrow_columns(path: Path) -> dict[str, Any]:
    """Read the columns by name; cells of a CSV stay text, so that an id keeps its leading zeros."""
    import pyarrow as pa

    kind = "CSV" if path.suffix.lower() == ".csv" else "Parquet"
    try:
        if kind == "CSV":
            from pyarrow import csv

            with csv.open_csv(path) as reader:
                names = reader.schema.names
            text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            table = csv.read_csv(path, convert_options=text)
        else:
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                table = file.read()
    except (pa.ArrowException, OSError, ValueError):  # their text repeats cells
        raise TableError(
            f"{path.name} is not a readable {kind} file", remedy="save it again (text as UTF-8)"
        ) from None
    names = table.column_names
    if kind == "CSV" and any(_looks_like_data(name, len(names)) for name in names):
        raise TableError(
            f"the first line of {path.name} holds data instead of column names",
            remedy="add a line with column names",
        )
    if "" in names:
        raise TableError(f"a column of {path.name} has no name", remedy="name it or remove it")
    repeated = len(names) - len(set(names))
    if repeated:
        raise TableError(
            f"{path.name} has {repeated} repeated column names", remedy="rename the columns"
        )
    if not names:
        raise TableError(f"{path.name} has no columns", remedy="give a file with data")
    return dict(zip(names, table.columns, strict=True))


def _looks_like_data(name: str, columns: int) -> bool:
    # Names such as 0, 1, 2 are common; any other number is the first row of a headerless file.
    return int(name) > columns if name.isdecimal() else _is_number(name)


def _cells(column: Any) -> Any:
    """Return a text column trimmed, with null for a missing cell; other columns unchanged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    cells = pc.utf8_trim_whitespace(column.cast(pa.string()))
    absent = pc.is_in(cells, value_set=pa.array(_MISSING_TEXT))
    return pc.if_else(absent, pa.scalar(None, pa.string()), cells)


def _parse(column: Any) -> tuple[NDArray[np.float64] | None, NDArray[np.intp]]:
    """Return the numbers of a column, or None with the positions of the cells that are text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = _cells(column)
    if pa.types.is_string(cells.type):
        numeric = pc.fill_null(pc.match_substring_regex(cells, _NUMBER), True)
        text = np.flatnonzero(~numeric.to_numpy())
        if text.size:
            return None, text
        cells = pc.utf8_ltrim(cells, "+")
    try:
        values: NDArray[np.float64] = cells.cast(pa.float64(), safe=False).to_numpy()
    except (pa.ArrowException, ValueError):
        return None, np.arange(len(cells))
    return values, np.empty(0, dtype=np.intp)


def _numbers(column: Any, name: str, source: str) -> NDArray[np.float64]:
    import pyarrow as pa

    values, text = _parse(column)
    if values is None or pa.types.is_temporal(column.type):
        where = f" (for example in row {text[0] + 1})" if text.size else ""
        raise TableError(
            f"column {name!r} of {source} is not numeric{where}",
            remedy="encode it as numbers or remove it",
        )
    return values


def _labels(
    column: Any, name: str, source: str, named: Sequence[str] | None
) -> tuple[NDArray[np.float64], tuple[str, ...], tuple[str, ...]]:
    """Return labels, a note, classes; text becomes 0..k-1 in sorted order or that of ``named``."""
    import pyarrow as pa

    values, text = _parse(column)
    cells = _cells(column)
    known = ~cells.is_null().to_numpy()
    # A few text cells among numbers are typing errors, not classes.
    if values is not None or not pa.types.is_string(cells.type) or text.size < known.sum():
        if named and not all(_is_number(one) for one in named):
            raise TableError(
                f"column {name!r} of {source} holds numbers, the classes are text",
                remedy="name the classes as they are in the file",
            )
        return _numbers(column, name, source), (), ()
    texts = cells.to_numpy()[known].astype(np.str_)
    found, codes = np.unique(texts, return_inverse=True)
    classes = found.tolist() if named is None else list(named)
    if strange := int((~np.isin(texts, classes)).sum()):
        raise TableError(
            f"{strange} labels in column {name!r} of {source} are none of {len(classes)} classes",
            remedy="name all classes, the same on every node",
        )
    y = np.full(len(cells), np.nan)
    y[known] = np.array([classes.index(one) for one in found])[codes]
    note = f"encoded the {len(classes)} classes of {name!r} as 0 to {len(classes) - 1}"
    return y, (note,), tuple(classes)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(column: Any, name: str, source: str) -> NDArray[np.str_]:
    """Return ids or sites as trimmed text; a missing cell is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        cells = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    except pa.ArrowException:
        raise TableError(
            f"column {name!r} of {source} cannot be read as text", remedy="save it as text"
        ) from None
    text: NDArray[np.str_] = cells.to_numpy().astype(np.str_)
    return text
