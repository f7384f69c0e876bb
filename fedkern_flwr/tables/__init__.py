"""A party's own table: loading it and checking it.

A data owner brings an NPZ, CSV (or TSV) or Parquet file. Everything that can be wrong with it is a
:class:`~fedkern_flwr.errors.TableError` of one line that names the cause and the remedy. Data is
private, so no error and no note ever repeats a cell, an id or a class: only column names, row
numbers and counts.
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

    Files are ``.npz``, ``.csv``, ``.tsv``, ``.parquet`` or ``.feather``; those of text may be
    compressed (``.csv.gz``), and are in UTF-8, UTF-16 or, else, Latin-1.

    An NPZ file holds the arrays ``X`` (n, d) and ``y`` (n,), and may hold ``site`` (n,),
    ``X_test``, ``y_test`` and ``feature_names``; other arrays are ignored. Pickled objects are
    refused. In a CSV or Parquet file every column that is not label, id or site is a feature.

    Parameters
    ----------
    data : str, Path or data frame
        The file; or a data frame of pandas, polars or pyarrow, or a ``datasets.Dataset``, which are
        as a Parquet file.
    label : str or None (default: None)
        CSV and Parquet: the label column, required unless ``target`` is given. A text label is
        encoded as 0..k-1 in sorted order of the classes in this file. NPZ: another array to use
        as y, or the column of a two-dimensional y (``"0"``).
    target : str or None (default: None)
        Name or index of the feature column to predict instead of the label, which is not used.
    id_column, site_column : str or None (default: None)
        The columns (NPZ: arrays) with the record ids and the sites.
    missing : {"error", "drop-row", "keep", "encode"} (default: "error")
        Refuse, drop or keep rows with an empty, NaN or infinite cell; or keep those that have
        label, id and site.
    labelled : bool (default: True)
        Refuse a file without labels; else y is None where the file has none.
    classes : sequence of str or None (default: None)
        CSV and Parquet: all classes of a text label. It is encoded as the position in this list,
        the same in every file that is read with it.
    bare : bool (default: False)
        Whether a table without features will do, such as one of ids and labels.
    kinds : mapping or None (default: None)
        What some columns are, such as the ``kinds`` of an
        :class:`~fedkern_flwr.encoding.Encoder`; others are what their cells look like. None refuses
        text and dates.
    needed : collection of str or None (default: None)
        CSV and Parquet: the only columns that are features; others may hold anything.
    sep : str or None (default: None)
        CSV: what parts the columns, a character or ``"tab"``. By default a comma, semicolon, tab
        or bar, whichever parts all lines alike; of a ``.tsv`` file a tab.
    decimal : {".", ","} or None (default: None)
        CSV and Parquet: the decimal mark of numbers that are text. By default a comma where that
        is what the numbers of a CSV have; in quotes where commas part its columns too.
    na : str or sequence of str (default: ())
        CSV and Parquet: marks of missing cells, separated by commas, beside an empty cell, ``NA``,
        ``N/A``, ``NaN``, ``null``, ``None``, ``?``, and ``-`` where all else is
        a number, a date or a boolean.
    dates : {"day-first", "month-first", "iso"} or None (default: None)
        CSV and Parquet: the order of dates such as 03/04/2024; ``iso`` leaves them out. By default
        what all dates of a column can be; a column that can be both is refused.
    header : bool or None (default: None)
        CSV: whether the first line has the names of the columns. By default it has, unless all its
        cells look like those below; such a file is refused. Without names they are x0, x1, ...
    class_of : str or sequence of str (default: ())
        CSV and Parquet: what classes labels are, such as ``0=no,1=yes``; all labels are named.
    source : str or None (default: None)
        What errors call the data; by default the name of the file.

    Raises
    ------
    TableError
        If the file cannot be read or its content cannot be used.
    OptionError
        If ``missing`` is not one of the choices, or ``sep`` or ``decimal`` is no such mark.
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
    """Load the record ids of a party's table, and nothing else of it.

    They are the texts that :func:`load_table` gives. Other columns may hold anything.

    Parameters
    ----------
    path : str or Path
        A file as :func:`load_table` reads them.
    id_column : str
        The column (NPZ: the array) with the ids.
    **dialect
        How a CSV file is written, such as ``sep``, see :func:`load_table`.

    Raises
    ------
    TableError
        If the file cannot be read, or ids are missing or come twice.
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
    """Refuse what is no file of one of some kinds that can be read.

    Raises
    ------
    TableError
    """
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
    """Return the features of a data frame and the names of its columns; other features as they are.

    Parameters
    ----------
    x : array or data frame
        Of pandas, polars or pyarrow: what has the Arrow C stream or the DataFrame interchange
        protocol. A missing cell is NaN.
    columns : sequence of str or None
        Which columns of the frame are taken, in this order; all of them where none are named.
    party : str
        Whose features they are, for errors.

    Raises
    ------
    TableError
        A column is not there, or holds something else than numbers.
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
