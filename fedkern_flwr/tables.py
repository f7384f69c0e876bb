"""A party's own table: loading it, checking it, and scaling it.

A data owner brings an NPZ, CSV or Parquet file. Everything that can be wrong with it is a
:class:`~fedkern_flwr.errors.TableError` of one line that names the cause and the remedy. Data is
private, so no error and no note ever repeats a cell, an id or a class: only column names, row
numbers and counts.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.errors import OptionError, TableError

__all__ = ["Missing", "Scaling", "Table", "drop_constant_columns", "load_table", "select_target"]

#: What to do with rows that have an empty, NaN or infinite cell.
Missing = Literal["error", "drop-row"]

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"
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
    missing : {"error", "drop-row"} (default: "error")
        Refuse or drop rows with an empty, NaN or infinite cell.

    Raises
    ------
    TableError
        If the file cannot be read or its content cannot be used.
    OptionError
        If ``missing`` is not one of the choices.
    """
    path = Path(path)
    if missing not in get_args(Missing):
        raise OptionError(f"missing is {missing!r}", remedy="choose 'error' or 'drop-row'")
    _check_file(path)
    use_label = target is None
    if path.suffix.lower() == ".npz":
        table = _read_npz(path, label, id_column, site_column, use_label)
    else:
        table = _read_columns(path, label, id_column, site_column, use_label)
    if table.rows == 0:
        raise TableError(f"{path.name} has no rows", remedy="give a file with data")
    if not table.columns:
        raise TableError(f"{path.name} has no feature column", remedy="add at least one")
    table = _without_missing(table, missing, path.name)
    if table.ids is not None:
        repeated = table.rows - np.unique(table.ids).size
        if repeated:
            raise TableError(
                f"the id column of {path.name} has {repeated} duplicate ids",
                remedy="keep one row per id",
            )
    return table if target is None else select_target(table, target)


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
        raise _no_such("feature column", target, "the data", table.columns)
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
    note = f"dropped {len(names)} constant column{plural}: {_listing(names)}"
    return replace(_keep_columns(table, ~constant), notes=(*table.notes, note))


@dataclass(frozen=True, eq=False)
class Scaling:
    """Public statistics that put every row in the unit ball and the labels in [0, 1].

    Parameters
    ----------
    x_min, x_max : NDArray[np.float64], shape (d,)
        Smallest and largest value of each feature, in the units of the data.
    row_norm : float
        Largest Euclidean norm of a row after its features were scaled to [0, 1].
    y_min, y_max : float
        Smallest and largest label, in the units of the data.
    """

    x_min: NDArray[np.float64]
    x_max: NDArray[np.float64]
    row_norm: float
    y_min: float
    y_max: float

    @classmethod
    def fit(cls, table: Table) -> Scaling:
        """Measure the training rows; without labels the label range is [0, 1].

        Raises
        ------
        TableError
            If the table has no rows or the label is constant.
        """
        if table.rows == 0:
            raise TableError("the table has no rows to scale by", remedy="give a table with data")
        y_min, y_max = 0.0, 1.0
        if table.y is not None:
            y_min, y_max = float(table.y.min()), float(table.y.max())
        if y_min == y_max:
            raise TableError("the label is constant", remedy="choose a label that varies")
        ranges = cls(table.x.min(axis=0), table.x.max(axis=0), 1.0, y_min, y_max)
        largest = float(np.linalg.norm(ranges._unit_interval(table.x), axis=1).max())
        return replace(ranges, row_norm=largest or 1.0)

    def apply(self, table: Table) -> Table:
        """Scale a table; features of test rows are clipped to [0, 1] before the norm.

        Raises
        ------
        TableError
            If the table has another number of columns than the statistics.
        """
        if table.x.shape[1] != self.x_min.size:
            raise TableError(
                f"the table has {table.x.shape[1]} columns but the scaling has {self.x_min.size}",
                remedy="use the columns the scaling was fitted on",
            )
        x_test = table.x_test
        if x_test is not None:
            # Clipping first cannot overflow where a column is almost constant.
            x_test = self._unit_interval(np.clip(x_test, self.x_min, self.x_max)) / self.row_norm
        return replace(
            table,
            x=self._unit_interval(table.x) / self.row_norm,
            y=None if table.y is None else self._scale_y(table.y),
            x_test=x_test,
            y_test=None if table.y_test is None else self._scale_y(table.y_test),
        )

    def inverse_y(self, y: ArrayLike) -> NDArray[np.float64]:
        """Return scaled labels or predictions to the units of the data."""
        return np.asarray(y, dtype=np.float64) * (self.y_max - self.y_min) + self.y_min

    def to_json(self) -> str:
        """Return the statistics as JSON; every number survives exactly."""
        lists = {"x_min": self.x_min.tolist(), "x_max": self.x_max.tolist()}
        return json.dumps(vars(self) | lists)

    @classmethod
    def from_json(cls, text: str) -> Scaling:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        TableError
            If the text is not such JSON.
        """
        try:
            content = json.loads(text)
            x_min, x_max = (np.array(content[k], dtype=np.float64) for k in ("x_min", "x_max"))
            numbers = [float(content[k]) for k in ("row_norm", "y_min", "y_max")]
        except (ValueError, TypeError, KeyError):
            raise TableError("this is not a scaling", remedy="give a scaling.json") from None
        return cls(x_min, x_max, *numbers)

    def _unit_interval(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        span = self.x_max - self.x_min
        return (x - self.x_min) / np.where(span > 0, span, 1.0)

    def _scale_y(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        return (y - self.y_min) / (self.y_max - self.y_min)


def _listing(names: Any) -> str:
    names = [" ".join(str(name).split()) for name in names]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def _no_such(kind: str, name: str, source: str, names: Any) -> TableError:
    return TableError(f"{source} has no {kind} {name!r}", remedy=f"choose from: {_listing(names)}")


def _keep_columns(table: Table, keep: NDArray[np.bool_]) -> Table:
    return replace(
        table,
        x=table.x[:, keep],
        x_test=None if table.x_test is None else table.x_test[:, keep],
        columns=tuple(np.array(table.columns, dtype=object)[keep]),
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


# --- NPZ ------------------------------------------------------------------------------------


def _read_npz(
    path: Path, label: str | None, id_column: str | None, site_column: str | None, use_label: bool
) -> Table:
    """Read an NPZ file; see :func:`load_table` for the arrays."""
    arrays = _NpzArrays(path)
    x = arrays.numbers("X", ndim=2)
    n, d = x.shape
    columns = tuple(f"x{j}" for j in range(d))
    if "feature_names" in arrays.names:
        columns = tuple(str(name) for name in arrays.get("feature_names").ravel())
    y = y_test = label_name = None
    if use_label:
        y, label_name, y_test = arrays.labels(label)
    x_test = arrays.numbers("X_test", ndim=2) if "X_test" in arrays.names else None
    site_column = "site" if site_column is None and "site" in arrays.names else site_column
    ids = None if id_column is None else arrays.text_or_integers(id_column, "id array")
    site = None if site_column is None else arrays.text_or_integers(site_column, "site array")
    counts = [
        (label_name or "y", y, "rows", n),
        (id_column or "", ids, "rows", n),
        (site_column or "", site, "rows", n),
        ("feature_names", np.array(columns), "columns", d),
    ]
    if x_test is None:
        y_test = None
    else:
        counts += [("X_test", x_test.T, "columns", d), ("y_test", y_test, "test rows", len(x_test))]
    for name, values, unit, expected in counts:
        if values is not None and len(values) != expected:
            raise TableError(
                f"{path.name}: {name} has {len(values)} entries but X has {expected} {unit}",
                remedy="save arrays that belong together",
            )
    ids = None if ids is None else np.char.strip(ids.astype(np.str_))
    return Table(x, y, columns, label_name, ids, site, x_test, y_test)


class _NpzArrays:
    """The arrays of an NPZ file, read when asked for, with errors in our words."""

    def __init__(self, path: Path) -> None:
        self.source = path.name
        try:
            archive = np.load(path, allow_pickle=False)
            self.names: list[str] = list(archive.files)
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile):
            raise self._unreadable() from None
        self._archive = archive

    def _unreadable(self) -> TableError:
        return TableError(f"{self.source} is not a readable NPZ file", remedy="save it again")

    def get(self, name: str, kind: str = "array") -> NDArray[Any]:
        if name not in self.names:
            raise _no_such(kind, name, self.source, self.names)
        try:
            values: NDArray[Any] = self._archive[name]
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise self._unreadable() from None
            raise TableError(
                f"array {name!r} of {self.source} holds pickled objects, which are never loaded",
                remedy="save it as numbers or text",
            ) from None
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
            raise self._unreadable() from None
        return values

    def numbers(self, name: str, ndim: int, kind: str = "array") -> NDArray[np.float64]:
        values = self.get(name, kind)
        if values.dtype.kind not in "biuf":
            raise TableError(
                f"array {name!r} of {self.source} is not numeric", remedy="encode it as numbers"
            )
        if values.ndim != ndim:
            raise TableError(
                f"array {name!r} of {self.source} has {values.ndim} dimensions, not {ndim}",
                remedy="save X as (rows, columns) and labels as (rows,)",
            )
        return values.astype(np.float64)

    def text_or_integers(self, name: str, kind: str) -> NDArray[Any]:
        values = self.get(name, kind)
        if values.ndim != 1 or values.dtype.kind not in "biuUS":
            raise TableError(
                f"{kind} {name!r} of {self.source} is not one list of integers or text",
                remedy="save one integer or text per row",
            )
        return values.astype(np.str_) if values.dtype.kind == "S" else values

    def labels(
        self, label: str | None
    ) -> tuple[NDArray[np.float64], str, NDArray[np.float64] | None]:
        """Return y, its name and y_test for a label that is an array or a column of y."""
        if label is not None and (label in self.names or not label.isdecimal()):
            name, column = label, None
        else:
            name, column = "y", label
        choices = self.get(name, "label array")
        test_name = f"{name}_test"
        ndim = 2 if choices.ndim == 2 else 1
        y = self.numbers(name, ndim)
        y_test = self.numbers(test_name, ndim) if test_name in self.names else None
        if ndim == 1 and column is None:
            return y, name, y_test
        if ndim == 1:
            raise _no_such("label array", str(column), self.source, self.names)
        if column is None or int(column) >= y.shape[1]:
            raise TableError(
                f"array {name!r} of {self.source} has {y.shape[1]} label columns",
                remedy=f"choose one with --label, an index from 0 to {y.shape[1] - 1}",
            )
        index = int(column)
        return y[:, index], f"{name}[{index}]", None if y_test is None else y_test[:, index]


# --- CSV and Parquet ------------------------------------------------------------------------


def _read_columns(
    path: Path, label: str | None, id_column: str | None, site_column: str | None, use_label: bool
) -> Table:
    """Read a CSV or Parquet file; see :func:`load_table` for the columns."""
    columns = _arrow_columns(path)
    if label is None and use_label:
        raise TableError(
            f"the label column of {path.name} is not named",
            remedy=f"choose one with --label: {_listing(columns)}",
        )
    named = [("label", label), ("id", id_column), ("site", site_column)]
    for kind, name in named:
        if name is not None and name not in columns:
            raise _no_such(f"{kind} column", name, path.name, columns)
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
    notes: tuple[str, ...] = ()
    if use_label and label is not None:
        y, notes = _labels(columns[label], label, path.name)
    return Table(
        x,
        y,
        tuple(features),
        label if use_label else None,
        None if id_column is None else _text(columns[id_column], id_column, path.name),
        None if site_column is None else _text(columns[site_column], site_column, path.name),
        notes=notes,
    )


def _arrow_columns(path: Path) -> dict[str, Any]:
    """Read the columns by name; cells of a CSV stay text, so that an id keeps its leading zeros."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    kind = "CSV" if path.suffix.lower() == ".csv" else "Parquet"
    try:
        if kind == "CSV":
            with csv.open_csv(path) as reader:
                names = reader.schema.names
            text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            table = csv.read_csv(path, convert_options=text)
        else:
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
    if name.isdecimal():
        return int(name) > columns
    try:
        float(name)
    except ValueError:
        return False
    return True


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


def _labels(column: Any, name: str, source: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the labels; text becomes 0..k-1 in sorted order, with a note of k."""
    import pyarrow as pa

    values, text = _parse(column)
    cells = _cells(column)
    known = ~cells.is_null().to_numpy()
    # A few text cells among numbers are typing errors, not classes.
    if values is not None or not pa.types.is_string(cells.type) or text.size < known.sum():
        return _numbers(column, name, source), ()
    classes, codes = np.unique(cells.to_numpy()[known].astype(np.str_), return_inverse=True)
    y = np.full(len(cells), np.nan)
    y[known] = codes
    return y, (f"encoded the {classes.size} classes of {name!r} as 0 to {classes.size - 1}",)


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
