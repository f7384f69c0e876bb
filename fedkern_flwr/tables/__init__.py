"""Load and check a party's table.

The file is NPZ, CSV (or TSV), Parquet or Feather. A problem is a one-line
:class:`~fedkern_flwr.errors.TableError` with cause and remedy. Data is private: no error and no
note repeats a cell, an id or a class, only column names, row numbers and counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, TableError
from .dialect import Dialect, file_kind
from .table import (
    Kind,
    Missing,
    Table,
    copies_note,
    drop_constant_columns,
    how_many,
    plain_notes,
    select_target,
    without_missing,
)

__all__ = [
    "Kind",
    "Missing",
    "Table",
    "drop_constant_columns",
    "load_ids",
    "load_table",
    "plain_notes",
    "select_target",
    "take_frame",
]

#: What can be read, for errors.
FILES = "a .npz, .csv, .tsv, .parquet or .feather file, or .csv.gz"
_SUFFIXES = (".npz", ".csv", ".tsv", ".parquet", ".feather")


def load_table(
    data: Any,
    *,
    label: str | None = None,
    target: str | None = None,
    id_column: str | None = None,
    site_column: str | None = None,
    missing: Missing = "error",
    labelled: bool = True,
    classes: Sequence[str] | None = None,
    bare: bool = False,
    kinds: Mapping[str, Kind] | None = None,
    needed: Collection[str] | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    na: str | Sequence[str] = (),
    dates: str | None = None,
    header: bool | str | None = None,
    class_of: str | Sequence[str] = (),
    source: str | None = None,
) -> Table:
    """Load a party's table from a file or a data frame.

    Text files may be compressed (``.csv.gz``), and are in UTF-8, UTF-16 or, failing these, Latin-1.

    An NPZ file has the arrays ``X`` (n, d) and ``y`` (n,), and may have ``site`` (n,), ``X_test``,
    ``y_test`` and ``feature_names``. Pickled objects are refused. In other files every column that
    is not label, id or site is a feature.

    Parameters
    ----------
    data : str, Path or data frame
        A ``.npz``, ``.csv``, ``.tsv``, ``.parquet`` or ``.feather`` file; or a data frame of
        pandas, polars or pyarrow, or a ``datasets.Dataset``.
    label : str or None (default: None)
        Label column; required unless ``target`` is given. A text label is encoded as 0..k-1 in
        sorted order of the classes in this file. NPZ: another array to use as y, or the column of a
        two-dimensional y (``"0"``).
    target : str or None (default: None)
        Name or index of a feature column to predict instead of the label.
    id_column, site_column : str or None (default: None)
        Columns (NPZ: arrays) with the record ids and the sites.
    missing : {"error", "drop-row", "keep", "encode"} (default: "error")
        Refuse, drop or keep rows with an empty, NaN or infinite cell; ``encode`` drops only rows
        without label, id or site.
    labelled : bool (default: True)
        Refuse a file without labels; otherwise y is then None.
    classes : sequence of str or None (default: None)
        All classes of a text label, encoded as the position in this list. Use the same list for
        every file. Not for NPZ.
    bare : bool (default: False)
        Allow a table without features.
    kinds : mapping or None (default: None)
        Kinds of some columns, such as the ``kinds`` of an :class:`~fedkern_flwr.encoding.Encoder`;
        others are detected. None refuses text and dates.
    needed : collection of str or None (default: None)
        The only columns that are features. Not for NPZ.
    sep : str or None (default: None)
        CSV: delimiter, a character or ``"tab"``. Default: comma, semicolon, tab or bar, detected; a
        tab for ``.tsv``.
    decimal : {".", ","} or None (default: None)
        Decimal mark of numbers in text. Default: detected for CSV, otherwise a point. Numbers with
        a decimal comma must be quoted if commas separate the columns.
    na : str or sequence of str (default: ())
        Further marks of missing cells, separated by commas. Always: an empty cell, ``NA``, ``N/A``,
        ``NaN``, ``null``, ``None``, ``?``, and ``-`` among numbers, dates or booleans.
    dates : {"day-first", "month-first", "iso"} or None (default: None)
        Order of dates such as 03/04/2024; ``iso`` does not read these as dates. Default: detected
        by column; an ambiguous column is refused.
    header : bool or None (default: None)
        CSV: whether the first line has the column names. Default: True, but a file is refused if
        its first line looks like data. Without names they are x0, x1, ...
    class_of : str or sequence of str (default: ())
        Class of each label, such as ``0=no,1=yes``. All labels must be listed. Not for NPZ.
    source : str or None (default: None)
        Name of the data in errors. Default: the file name.

    Raises
    ------
    TableError
        The file cannot be read, or its content cannot be used.
    OptionError
        An option has an unknown value.
    """
    given = {"sep": sep, "decimal": decimal, "na": na, "dates": dates, "header": header}
    dialect = Dialect.of({**given, "class_of": class_of})
    if missing not in get_args(Missing):
        raise OptionError(
            f"missing is {missing!r}",
            remedy="choose 'error', 'drop-row', 'keep' or 'encode'",
            code="FK-OPTION-CHOICE",
        )
    how = (label, id_column, site_column, target is None, labelled)
    path = Path(data) if isinstance(data, (str, Path)) else None
    source = source or ("the data frame" if path is None else path.name)
    if path is not None:
        check_file(path)
    if path is not None and file_kind(path) == ".npz":
        from .arrow import read_npz

        table, again = read_npz(path, *how), np.zeros(0, bool)
    else:
        from .arrow import file_columns, frame_columns, read_columns, repeated_rows

        file_notes: tuple[str, ...] = ()
        if path is None:
            columns, dialect = frame_columns(data), replace(dialect, sep=None)
        else:
            columns, dialect, file_notes = file_columns(path, dialect)
        table = read_columns(columns, source, *how, classes, kinds, dialect, needed)
        again = repeated_rows(columns, id_column, source)
        table = replace(table, notes=(*file_notes, *table.notes))
    if table.rows == 0:
        raise TableError(f"{source} has no rows", code="FK-ROWS-NONE")
    if not table.columns and not bare:
        raise TableError(f"{source} has no feature column", code="FK-COLUMNS-NONE")
    table = replace(table, places=np.arange(table.rows))
    if again.any():
        notes = (*table.notes, *copies_note(int(again.sum()), source))
        table = replace(table.take(~again), notes=notes)
    table = without_missing(table, missing, source)
    if table.ids is not None:
        _check_ids(table.ids, source)
    return table if target is None else select_target(table, target)


def load_ids(path: str | Path, id_column: str, **dialect: Any) -> NDArray[np.str_]:
    """Load the record ids of a party's table, as :func:`load_table` does, and nothing else.

    Parameters
    ----------
    path : str or Path
        A file as for :func:`load_table`. Other columns may contain anything.
    id_column : str
        Column (NPZ: array) with the ids.
    **dialect
        Format of a CSV file, such as ``sep``, see :func:`load_table`.

    Raises
    ------
    TableError
        The file cannot be read, or ids are missing or duplicate.
    """
    path = Path(path)
    check_file(path)
    if file_kind(path) == ".npz":
        from .arrow import read_npz_ids

        ids = read_npz_ids(path, id_column)
    else:
        from .arrow import read_id_column

        ids = read_id_column(path, id_column, Dialect.of(dialect))
    if ids.size == 0:
        raise TableError(f"{path.name} has no rows", code="FK-ROWS-NONE")
    if empty := int((ids == "").sum()):
        raise TableError(
            f"the id column of {path.name} is empty in {empty} rows", code="FK-IDS-MISSING"
        )
    _check_ids(ids, path.name)
    return ids


def _check_ids(ids: NDArray[Any], source: str) -> None:
    if repeated := len(ids) - np.unique(ids).size:
        raise TableError(
            f"the id column of {source} has {repeated} duplicate ids", code="FK-IDS-DUPLICATE"
        )


def check_file(path: Path, suffixes: Sequence[str] = _SUFFIXES, files: str = FILES) -> None:
    """Refuse a path that is not a readable file of these kinds."""
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:
        raise TableError(
            f"{path} is not readable", remedy="check who may read it", code="FK-FILE-READ"
        ) from None
    if is_folder:
        raise TableError(f"{path} is a directory", remedy=f"give {files}", code="FK-FILE-FOLDER")
    if not is_file:
        raise TableError(f"there is no file {path}", remedy="check the path", code="FK-FILE-READ")
    if (file_kind(path) if suffixes is _SUFFIXES else path.suffix.lower()) not in suffixes:
        raise TableError(
            f"{path.name} has an unknown suffix", remedy=f"give {files}", code="FK-FILE-SUFFIX"
        )
    if path.stat().st_size == 0:
        raise TableError(f"{path.name} is empty", code="FK-FILE-EMPTY")


def take_frame(x: Any, columns: Sequence[str] | None, party: str) -> tuple[Any, Any]:
    """Return the features of a data frame and its column names; return arrays unchanged.

    A data frame has the Arrow C stream or the DataFrame interchange protocol; a missing cell
    becomes NaN. ``columns`` are those to take, in this order; None for all.

    Raises
    ------
    TableError
        A column is missing or not numeric.
    """
    if not any(hasattr(x, name) for name in ("__arrow_c_stream__", "__dataframe__")):
        return x, columns
    from .arrow import frame_columns, read_columns  # loads PyArrow, which arrays do not need
    from .dialect import Dialect

    try:
        found = frame_columns(x)
        if columns:
            lacking = [name for name in columns if name not in found]
            if lacking:
                raise TableError(
                    f"the data frame lacks {how_many(len(lacking), 'column')}, "
                    f"the first is {lacking[0]!r}",
                    remedy="give rows and held-out rows the same columns",
                    code="FK-COLUMN-MISSING",
                )
            found = {name: found[name] for name in columns}
        how = (None, None, None, False, False, None, None, Dialect(), None)
        table = read_columns(found, "the data frame", *how)
    except TableError as error:
        raise TableError(error.problem, remedy=error.remedy, party=party, code=error.code) from None
    return table.x, table.columns
