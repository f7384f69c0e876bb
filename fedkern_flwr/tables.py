"""A party's own table: loading it and checking it.

A data owner brings an NPZ, CSV or Parquet file. Everything that can be wrong with it is a
:class:`~fedkern_flwr.errors.TableError` of one line that names the cause and the remedy. Data is
private, so no error and no note ever repeats a cell, an id or a class: only column names, row
numbers and counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import ColumnError, OptionError, TableError

__all__ = ["Missing", "Table", "drop_constant_columns", "load_ids", "load_table", "select_target"]

#: What to do with rows that have an empty, NaN or infinite cell; kept ones are NaN.
Missing = Literal["error", "drop-row", "keep"]

_DROP_ROWS = "use --missing drop-row"


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """The rows that one party holds.

    Parameters
    ----------
    x : NDArray[np.float64], shape (n, d)
        The features.
    y : NDArray[np.float64], shape (n,), or None
        The labels; None for a party without labels.
    columns : tuple[str, ...]
        The d feature names.
    label : str or None (default: None)
        Name of the label column.
    ids : NDArray[np.str_], shape (n,), or None (default: None)
        The record ids.
    site : NDArray, shape (n,), or None (default: None)
        Where each row was measured (integers or text).
    x_test, y_test : NDArray[np.float64], shapes (t, d) and (t,), or None (default: None)
        Test rows that came with the data.
    notes : tuple[str, ...] (default: ())
        What was done to the data, for the user to read.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64] | None
    columns: tuple[str, ...]
    label: str | None = None
    ids: NDArray[np.str_] | None = None
    site: NDArray[Any] | None = None
    x_test: NDArray[np.float64] | None = None
    y_test: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # Tracebacks show this, so no cell may be in it.
        return f"Table({self.rows} rows, {len(self.columns)} columns, label {self.label!r})"

    @property
    def rows(self) -> int:
        """Number of rows n, without the test rows."""
        return len(self.x)

    def take(self, indices: ArrayLike) -> Table:
        """Return the rows at ``indices`` (positions or a mask), with the same test rows."""
        rows = np.asarray(indices)
        if rows.size == 0:
            rows = rows.astype(np.intp)
        return replace(
            self,
            x=self.x[rows],
            y=None if self.y is None else self.y[rows],
            ids=None if self.ids is None else self.ids[rows],
            site=None if self.site is None else self.site[rows],
        )


def load_table(
    path: str | Path,
    *,
    label: str | None = None,
    target: str | None = None,
    id_column: str | None = None,
    site_column: str | None = None,
    missing: Missing = "error",
    labelled: bool = True,
    classes: Sequence[str] | None = None,
    bare: bool = False,
) -> Table:
    """Load a party's table from an ``.npz``, ``.csv`` or ``.parquet`` file.

    An NPZ file holds the arrays ``X`` (n, d) and ``y`` (n,), and may hold ``site`` (n,),
    ``X_test``, ``y_test`` and ``feature_names``; other arrays are ignored. Pickled objects are
    refused. In a CSV or Parquet file every column that is not label, id or site is a feature.

    Parameters
    ----------
    path : str or Path
        The file.
    label : str or None (default: None)
        CSV and Parquet: the label column, required unless ``target`` is given. A text label is
        encoded as 0..k-1 in sorted order of the classes in this file. NPZ: another array to use
        as y, or the column of a two-dimensional y (``"0"``).
    target : str or None (default: None)
        Name or index of the feature column to predict instead of the label, which is not used.
    id_column, site_column : str or None (default: None)
        The columns (NPZ: arrays) with the record ids and the sites.
    missing : {"error", "drop-row", "keep"} (default: "error")
        Refuse, drop or keep rows with an empty, NaN or infinite cell.
    labelled : bool (default: True)
        Refuse a file without labels; else y is None where the file has none.
    classes : sequence of str or None (default: None)
        CSV and Parquet: all classes of a text label. It is encoded as the position in this list,
        the same in every file that is read with it.
    bare : bool (default: False)
        Whether a table without features will do, such as one of ids and labels.

    Raises
    ------
    TableError
        If the file cannot be read or its content cannot be used.
    OptionError
        If ``missing`` is not one of the choices.
    """
    path = Path(path)
    if missing not in get_args(Missing):
        raise OptionError(f"missing is {missing!r}", remedy="choose 'error', 'drop-row' or 'keep'")
    _check_file(path)
    use_label = target is None
    if path.suffix.lower() == ".npz":
        from .tables_npz import read_npz

        table = read_npz(path, label, id_column, site_column, use_label, labelled)
    else:
        from .tables_arrow import read_columns

        table = read_columns(path, label, id_column, site_column, use_label, labelled, classes)
    if table.rows == 0:
        raise TableError(f"{path.name} has no rows", remedy="give a file with data")
    if not table.columns and not bare:
        raise TableError(f"{path.name} has no feature column", remedy="add at least one")
    table = _without_missing(table, missing, path.name)
    if table.ids is not None:
        _check_ids(table.ids, path.name)
    return table if target is None else select_target(table, target)


def load_ids(path: str | Path, id_column: str) -> NDArray[np.str_]:
    """Load the record ids of a party's table, and nothing else of it.

    They are the texts that :func:`load_table` gives. Other columns may hold anything.

    Parameters
    ----------
    path : str or Path
        An ``.npz``, ``.csv`` or ``.parquet`` file.
    id_column : str
        The column (NPZ: the array) with the ids.

    Raises
    ------
    TableError
        If the file cannot be read, or ids are missing or come twice.
    """
    path = Path(path)
    _check_file(path)
    if path.suffix.lower() == ".npz":
        from .tables_npz import read_npz_ids

        ids = read_npz_ids(path, id_column)
    else:
        from .tables_arrow import read_id_column

        ids = read_id_column(path, id_column)
    if ids.size == 0:
        raise TableError(f"{path.name} has no rows", remedy="give a file with data")
    if empty := int((ids == "").sum()):
        raise TableError(
            f"the id column of {path.name} is empty in {empty} rows",
            remedy="fill it in, or leave these rows out",
        )
    _check_ids(ids, path.name)
    return ids


def select_target(table: Table, target: str) -> Table:
    """Use the feature column ``target`` (a name or an index) as label, the others as features.

    Raises
    ------
    TableError
        If there is no such column, or no feature would be left.
    """
    d = len(table.columns)
    if target in table.columns:
        index = table.columns.index(target)
    elif target.lstrip("-").isdecimal():
        index = int(target)
        if not 0 <= index < d:
            raise TableError(
                f"target {index} is out of range: there are {d} feature columns",
                remedy=f"choose an index from 0 to {d - 1}",
            )
    else:
        raise no_such("feature column", target, "the data", table.columns)
    if d == 1:
        raise TableError("the target is the only feature column", remedy="add feature columns")
    return replace(
        _keep_columns(table, np.arange(d) != index),
        y=table.x[:, index].copy(),
        y_test=None if table.x_test is None else table.x_test[:, index].copy(),
        label=table.columns[index],
    )


def drop_constant_columns(table: Table) -> Table:
    """Drop the feature columns that have one value in all rows, with a note of their names.

    Raises
    ------
    TableError
        If every column is constant.
    """
    constant = table.x.min(axis=0) == table.x.max(axis=0)
    if not constant.any():
        return table
    if constant.all():
        raise TableError("every feature column is constant", remedy="add columns that vary")
    names = [name for name, drop in zip(table.columns, constant, strict=True) if drop]
    plural = "s" if len(names) > 1 else ""
    note = f"dropped {len(names)} constant column{plural}: {listing(names)}"
    return replace(_keep_columns(table, ~constant), notes=(*table.notes, note))


def listing(names: Any) -> str:
    """List at most ten names."""
    names = [" ".join(str(name).split()) for name in names]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def no_such(kind: str, name: str, source: str, names: Any) -> ColumnError:
    """Return the error for a name that is not there."""
    return ColumnError(f"{source} has no {kind} {name!r}", remedy=f"choose from: {listing(names)}")


def _keep_columns(table: Table, keep: NDArray[np.bool_]) -> Table:
    return replace(
        table,
        x=table.x[:, keep],
        x_test=None if table.x_test is None else table.x_test[:, keep],
        columns=tuple(np.array(table.columns, dtype=object)[keep]),
    )


def _check_ids(ids: NDArray[Any], source: str) -> None:
    if repeated := len(ids) - np.unique(ids).size:
        raise TableError(
            f"the id column of {source} has {repeated} duplicate ids", remedy="keep one row per id"
        )


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise TableError(f"{path} is a directory", remedy="give a .npz, .csv or .parquet file")
    if not path.is_file():
        raise TableError(f"there is no file {path}", remedy="check the path")
    if path.suffix.lower() not in (".npz", ".csv", ".parquet"):
        raise TableError(
            f"{path.name} has an unknown suffix", remedy="give a .npz, .csv or .parquet file"
        )
    if path.stat().st_size == 0:
        raise TableError(f"{path.name} is empty", remedy="give a file with data")


def _without_missing(table: Table, missing: Missing, source: str) -> Table:
    if missing == "keep":
        return table
    if table.x_test is not None:
        test = Table(table.x_test, table.y_test, table.columns, table.label)
        test = _without_missing(test, missing, f"the test rows of {source}")
        notes = (*table.notes, *test.notes)
        table = replace(table, x_test=test.x, y_test=test.y, notes=notes)
    bad = ~np.isfinite(table.x).all(axis=1)
    if table.y is not None:
        bad |= ~np.isfinite(table.y)
    texts = [("id", table.ids), ("site", table.site)]
    texts = [
        (kind, cells) for kind, cells in texts if cells is not None and cells.dtype.kind == "U"
    ]
    for _, cells in texts:
        bad |= cells == ""
    dropped = int(bad.sum())
    if dropped == 0:
        return table
    if missing == "error":
        numbers = [*zip(table.columns, table.x.T, strict=True)]
        if table.y is not None:
            numbers.append((str(table.label), table.y))
        for name, values in numbers:
            for kind, is_bad in (("empty or NaN", np.isnan), ("infinite", np.isinf)):
                count = int(is_bad(values).sum())
                if count:
                    raise TableError(
                        f"column {name!r} of {source} is {kind} in {count} rows "
                        f"(all columns: {dropped} bad rows)",
                        remedy=_DROP_ROWS,
                    )
        kind = next(kind for kind, cells in texts if np.any(cells == ""))
        raise TableError(
            f"the {kind} column of {source} is empty in {dropped} rows", remedy=_DROP_ROWS
        )
    if dropped == table.rows:
        raise TableError(
            f"every row of {source} has a missing cell", remedy="remove the mostly empty columns"
        )
    note = f"dropped {dropped} of {table.rows} rows of {source} with missing or infinite cells"
    return replace(table.take(~bad), notes=(*table.notes, note))
