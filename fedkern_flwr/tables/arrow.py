"""Read tables of Arrow, Parquet, NumPy and pandas."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import ColumnError, TableError
from .cells import MOST_CLASSES, hint, parse_numbers, read_cells, read_plainly
from .dialect import Dialect, encoding_of, file_kind, ragged_line
from .table import Kind, Table, copies, is_number, listing, no_such, shortened

# -- tables in NPZ files


def read_npz(
    path: Path,
    label: str | None,
    id_column: str | None,
    site_column: str | None,
    use_label: bool,
    labelled: bool,
) -> Table:
    arrays = NpzArrays(path)
    x = arrays.numbers("X", ndim=2)
    n, d = x.shape
    columns = tuple(f"x{j}" for j in range(d))
    if "feature_names" in arrays.names:
        columns = tuple(str(name) for name in arrays.get("feature_names").ravel())
    y = y_test = label_name = None
    if use_label and (labelled or arrays.has_labels(label)):
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
                code="FK-SHAPE-DIFFERS",
            )
    ids = None if ids is None else np.char.strip(ids.astype(np.str_))
    return Table(x, y, columns, label_name, ids, site, x_test, y_test)


def read_npz_ids(path: Path, id_column: str) -> NDArray[np.str_]:
    """Read the ids of an NPZ file as trimmed text."""
    ids = NpzArrays(path).text_or_integers(id_column, "id array")
    return np.char.strip(ids.astype(np.str_))


class NpzArrays:
    """Read the arrays of an NPZ file on demand; errors are TableErrors."""

    def __init__(self, path: Path) -> None:
        self.source = path.name
        try:
            archive = np.load(path, allow_pickle=False)
            self.names: list[str] = list(archive.files)
        except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile):
            raise self._unreadable() from None
        self._archive = archive

    def _unreadable(self) -> TableError:
        return TableError(f"{self.source} is not a readable NPZ file", code="FK-FILE-FORMAT")

    def get(self, name: str, kind: str = "array") -> NDArray[Any]:
        if name not in self.names:
            raise no_such(kind, name, self.source, self.names)
        try:
            values: NDArray[Any] = self._archive[name]
        except ValueError as error:
            if "Object arrays" not in str(error):
                raise self._unreadable() from None
            raise TableError(
                f"array {name!r} of {self.source} holds pickled objects, which are never loaded",
                code="FK-FILE-PICKLED",
            ) from None
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error):
            raise self._unreadable() from None
        return values

    def numbers(self, name: str, ndim: int, kind: str = "array") -> NDArray[np.float64]:
        values = self.get(name, kind)
        if values.dtype.kind not in "biuf":
            raise TableError(
                f"array {name!r} of {self.source} is not numeric", code="FK-COLUMN-NUMBERS"
            )
        if values.ndim != ndim:
            raise TableError(
                f"array {name!r} of {self.source} has {values.ndim} dimensions, not {ndim}",
                code="FK-SHAPE-DIFFERS",
            )
        return values.astype(np.float64)

    def text_or_integers(self, name: str, kind: str) -> NDArray[Any]:
        values = self.get(name, kind)
        if values.ndim != 1 or values.dtype.kind not in "biuUS":
            raise TableError(
                f"{kind} {name!r} of {self.source} is not one list of integers or text",
                code="FK-SHAPE-DIFFERS",
            )
        return values.astype(np.str_) if values.dtype.kind == "S" else values

    def has_labels(self, label: str | None) -> bool:
        return (label or "y") in self.names or ("y" in self.names and str(label).isdecimal())

    def labels(
        self, label: str | None
    ) -> tuple[NDArray[np.float64], str, NDArray[np.float64] | None]:
        """Return y, its name and y_test; a label is an array or a column of y."""
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
            raise no_such("label array", str(column), self.source, self.names)
        if column is None or int(column) >= y.shape[1]:
            raise TableError(
                f"array {name!r} of {self.source} has {y.shape[1]} label columns",
                remedy=f"choose one with --label, an index from 0 to {y.shape[1] - 1}",
                code="FK-COLUMN-UNNAMED",
            )
        index = int(column)
        return y[:, index], f"{name}[{index}]", None if y_test is None else y_test[:, index]


# -- tables in CSV and Parquet files

_MANY_IDS = 30  # this many rows seldom have distinct integers by chance


def read_columns(
    columns: dict[str, Any],
    source: str,
    label: str | None,
    id_column: str | None,
    site_column: str | None,
    use_label: bool,
    labelled: bool,
    classes: Sequence[str] | None,
    kinds: Mapping[str, Kind] | None,
    dialect: Dialect,
    needed: Collection[str] | None,
) -> Table:
    if not labelled and label not in columns:
        label, use_label = None, False
    if label is None and use_label:
        raise ColumnError(
            f"the label column of {source} is not named",
            remedy=f"choose one with --label: {listing(columns)}",
            code="FK-COLUMN-UNNAMED",
        )
    named = [("label", label), ("id", id_column), ("site", site_column)]
    for kind, name in named:
        if name is not None and name not in columns:
            raise no_such(f"{kind} column", name, source, columns)
    given = [name for _, name in named if name is not None]
    if len(set(given)) < len(given):
        raise TableError(
            f"one column of {source} has two of the roles label, id and site",
            code="FK-COLUMN-TWICE",
        )
    features = [name for name in columns if name not in given]
    if needed is not None:
        features = [name for name in features if name in needed]
    x = np.empty((len(next(iter(columns.values()))), len(features)))
    labels = [label] if use_label and label is not None else []
    tsv = source.lower().endswith(".tsv")
    plain = read_plainly(columns, [*features, *labels], source, dialect, tsv=tsv, labels=labels)
    columns, notes = plain.columns, plain.notes
    special: dict[str, Kind] = {}
    categories: dict[str, tuple[str, ...]] = {}
    hints: tuple[str, ...] = ()
    for j, name in enumerate(features):
        if kinds is None:
            x[:, j] = _numbers(columns[name], name, source)
            continue
        cells = read_cells(columns[name], kinds.get(name), name, source, dialect.dates)
        x[:, j] = cells.values
        if cells.kind != "number":
            special[name] = cells.kind
        if cells.kind == "category":
            categories[name] = cells.names
            if name not in kinds:
                hints += hint(name, cells.names, cells.values, dialect.decimal)
        if cells.lost:
            notes += (f"{cells.lost} cells of {name!r} are no {cells.kind}s: taken as missing",)
        if infinite := int(np.isinf(cells.values).sum()):
            notes += (f"{infinite} cells of {name!r} are infinite: taken as missing",)
        if cells.note:
            notes += (f"{name!r}: {cells.note}",)
    notes += shortened(hints)
    if id_column is None and not kinds:
        numbers = [k for k, name in enumerate(features) if name not in special]
        notes += _like_ids([features[k] for k in numbers], x[:, numbers])
    y: NDArray[np.float64] | None = None
    found: tuple[str, ...] = ()
    if use_label and label is not None:
        y, found = _labels(columns[label], label, source, classes)
        if found:
            notes += (f"encoded the {len(found)} classes of {label!r} as 0 to {len(found) - 1}",)
            notes += hint(label, found, y) if classes is None else ()
    return Table(
        x,
        y,
        tuple(features),
        label if use_label else None,
        None if id_column is None else text_cells(columns[id_column], id_column, source),
        None if site_column is None else text_cells(columns[site_column], site_column, source),
        notes=notes,
        kinds=special,
        categories=categories,
        classes=found,
        units={name: unit for name, unit in plain.units.items() if name not in special},
    )


def read_id_column(path: Path, id_column: str, dialect: Dialect) -> NDArray[np.str_]:
    """Read the ids of a CSV or Parquet file as trimmed text; a missing one is ""."""
    columns, _, _ = file_columns(path, dialect)
    if id_column not in columns:
        raise no_such("id column", id_column, path.name, columns)
    ids = text_cells(columns[id_column], id_column, path.name)
    return ids[~repeated_rows(columns, id_column, path.name)]


def repeated_rows(
    columns: Mapping[str, Any], id_column: str | None, source: str
) -> NDArray[np.bool_]:
    """Return which rows repeat an earlier one, cell by cell; empty without an id column."""
    if id_column is None:
        return np.zeros(0, bool)
    others = [cells for name, cells in columns.items() if name != id_column]
    return copies(text_cells(columns[id_column], id_column, source), others)


def file_columns(path: Path, dialect: Dialect) -> tuple[dict[str, Any], Dialect, tuple[str, ...]]:
    """Return the columns by name, the detected format of the file, and notes.

    Cells of a CSV stay text, so that an id keeps its leading zeros.
    """
    kind = {".parquet": "Parquet", ".feather": "Feather"}.get(file_kind(path), "CSV")
    notes: tuple[str, ...] = ()
    said = "say otherwise what parts its columns (--sep), or " if dialect.sep else ""
    if kind == "CSV" and dialect.decimal == ",":
        said += "put numbers with a decimal comma in quotes if commas part the columns too, or "
    try:
        if kind == "CSV":
            from pyarrow import csv

            dialect, encoding = dialect.of_file(path), encoding_of(path)
            if encoding not in ("utf-16", "utf-8-sig"):
                notes = (f"{path.name} is not in UTF-8: read as Latin-1 (Windows-1252)",)
            read = csv.ReadOptions(
                encoding="utf8" if encoding == "utf-8-sig" else encoding,
                autogenerate_column_names=dialect.header is False,
            )
            parted = csv.ParseOptions(delimiter=str(dialect.sep))
            with csv.open_csv(path, read, parted) as reader:
                names = reader.schema.names
            text = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            table = csv.read_csv(path, read, parted, text)
            if dialect.header is False:
                table = table.rename_columns([f"x{k}" for k in range(table.num_columns)])
        elif kind == "Feather":
            from pyarrow import feather

            table = feather.read_table(path)
        else:
            from pyarrow import parquet

            with parquet.ParquetFile(path) as file:
                table = file.read()
    except (pa.ArrowException, OSError, ValueError, EOFError):  # their text repeats cells
        ragged = ragged_line(path, dialect.sep) if kind == "CSV" and dialect.sep else ""
        raise TableError(
            f"{path.name} is not a readable {kind} file" + f": {ragged}" * bool(ragged),
            remedy=said + ("mend the line" if ragged else "save it again (text as UTF-8)"),
            code="FK-FILE-COLUMNS" if ragged else "FK-FILE-FORMAT",
        ) from None
    if kind == "CSV" and dialect.header is None:
        said = _first_line(table)
        if said == "data":
            raise TableError(
                f"the first line of {path.name} holds data instead of column names",
                code="FK-FILE-HEADER",
            )
        if said:
            notes += (f"{path.name}: {said}",)
    return _by_name(table, path.name), dialect, notes


def frame_columns(frame: Any) -> dict[str, Any]:
    """Return the columns of a data frame by name.

    ``frame`` may be any object with the Arrow C stream, ``to_pandas`` or the DataFrame interchange
    protocol.
    """
    frame = _without_intervals(frame)
    try:
        if isinstance(frame, pa.Table):
            table = frame
        elif hasattr(frame, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(frame).read_all()
        elif hasattr(frame, "to_pandas"):  # a filtered Dataset: its own table has all rows
            return frame_columns(frame.to_pandas())
        else:
            from pyarrow.interchange.from_dataframe import from_dataframe

            table = from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, NotImplementedError):
        mixed = listing(map(repr, _mixed(frame)))
        raise TableError(
            f"the data frame cannot be read{': values of several types in ' * bool(mixed)}{mixed}",
            code="FK-COLUMN-UNREADABLE",
        ) from None
    names = [name for name in table.column_names if not name.startswith("__index_level_")]
    return _by_name(table.select(names), "the data frame")


def _mixed(frame: Any) -> list[Any]:
    names = []
    for name in getattr(frame, "columns", ()):
        try:
            pa.Array.from_pandas(frame[name])
        except (pa.ArrowException, TypeError, ValueError):
            names.append(name)
    return names


def _without_intervals(frame: Any) -> Any:
    """Convert intervals of a pandas data frame, such as of ``pandas.cut``, to text."""
    if not hasattr(frame, "select_dtypes"):
        return frame
    kinds = {name: str(getattr(k, "categories", k)) for name, k in frame.dtypes.items()}
    odd = [name for name, kind in kinds.items() if "nterval" in kind or kind.startswith("period")]
    return frame.astype(dict.fromkeys(odd, "string")) if odd else frame


def _by_name(table: Any, source: str) -> dict[str, Any]:
    names = table.column_names
    if "" in names:
        raise TableError(f"a column of {source} has no name", code="FK-COLUMN-NAMES")
    repeated = len(names) - len(set(names))
    if repeated:
        raise TableError(f"{source} has {repeated} repeated column names", code="FK-COLUMN-NAMES")
    if not names:
        raise TableError(f"{source} has no columns", code="FK-COLUMNS-NONE")
    return dict(zip(names, table.columns, strict=True))


def _first_line(table: Any) -> str:
    """Return ``"data"`` if the first line of a file is data, or a note if it may be.

    It is data if one of its texts occurs again below, or if its numbers cannot be names. Numbers
    can be names if they count (0, 1, 2), or increase as years and wavelengths do.
    """
    names = table.column_names
    numbers = [float(name) for name in names if is_number(name) and np.isfinite(float(name))]
    if all(number % 1.0 == 0.0 and 0 <= number <= len(names) for number in numbers):
        return ""
    steps = np.diff(numbers)
    grow = bool((steps > 0.0).all() or (steps < 0.0).all())
    even = len(steps) > 1 and np.ptp(steps) <= 0.05 * np.abs(steps).mean()
    years = all(1800 <= number <= 2200 and number % 1.0 == 0.0 for number in numbers)
    again = any(
        pc.any(pc.equal(table.column(k), name)).as_py()
        for k, name in enumerate(names)
        if name and not is_number(name)
    )
    if again or not grow or not (years or even):
        return "data"
    return "its first line is taken as names though it has numbers; use --no-header if it is data"


def _numbers(column: Any, name: str, source: str) -> NDArray[np.float64]:
    values, text = parse_numbers(column)
    if values is None or pa.types.is_temporal(column.type):
        where = f" (for example in row {text[0] + 1})" if text.size else ""
        raise TableError(
            f"column {name!r} of {source} is not numeric{where}", code="FK-COLUMN-NUMBERS"
        )
    return values


def _like_ids(names: Sequence[str], x: NDArray[np.float64]) -> tuple[str, ...]:
    for name, cells in zip(names, x.T, strict=True):
        if len(x) < _MANY_IDS or not np.isfinite(cells).all() or (cells % 1.0 != 0.0).any():
            continue
        if len(np.unique(cells)) == len(cells):
            text = f"{name!r} has another whole number in each row, as ids have"
            return (f"{text}: --id {name} keeps it out of the features",)
    return ()


def _labels(
    cells: Any, name: str, source: str, named: Sequence[str] | None
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    values, text = parse_numbers(cells)
    texts, found = np.empty(0, np.str_), np.empty(0, np.str_)
    if values is None and pa.types.is_string(cells.type):
        known = ~cells.is_null().to_numpy()
        texts = cells.to_numpy()[known].astype(np.str_)
        found, codes, counts = np.unique(texts, return_inverse=True, return_counts=True)
        # A few text cells among numbers are typing errors, not classes.
        if text.size < known.sum() and (len(found) > MOST_CLASSES or counts.min() < 2):
            found = found[:0]
    if not len(found):
        if named and not all(is_number(one) for one in named):
            raise TableError(
                f"column {name!r} of {source} holds numbers, the classes are text",
                code="FK-CLASSES-UNKNOWN",
            )
        return _numbers(cells, name, source), ()
    classes = found.tolist() if named is None else list(named)
    if strange := int((~np.isin(texts, classes)).sum()):
        raise TableError(
            f"{strange} labels in column {name!r} of {source} are none of {len(classes)} classes",
            code="FK-CLASSES-UNKNOWN",
        )
    y = np.full(len(cells), np.nan)
    y[known] = np.array([classes.index(one) for one in found])[codes]
    return y, tuple(classes)


def text_cells(column: Any, name: str, source: str) -> NDArray[np.str_]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    try:
        cells = pc.utf8_trim_whitespace(pc.fill_null(column.cast(pa.string()), ""))
    except pa.ArrowException:
        raise TableError(
            f"column {name!r} of {source} cannot be read as text", code="FK-COLUMN-UNREADABLE"
        ) from None
    text: NDArray[np.str_] = cells.to_numpy().astype(np.str_)
    return text
