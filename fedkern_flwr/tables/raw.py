"""Read, compare and write a file's cells unchanged, for a node's freeze.

Nothing here scales, encodes or imputes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import create_file, make_private_folder
from ..errors import TableError
from . import check_file
from .dialect import Dialect, file_kind
from .table import no_such

if TYPE_CHECKING:
    import pyarrow as pa

Words = NDArray[np.uint64]

#: Whole numbers up to here are floats without loss.
_EXACT = 2**53
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
#: The first k of eight bytes, k from 0 to 8.
_FIRST = np.array([(1 << 8 * k) - 1 for k in range(9)], np.uint64)
_OF_X = "X/"


@dataclass(frozen=True, eq=False, repr=False)
class RawTable:
    """The rows of a file, as a pyarrow table ``cells``.

    Columns of a CSV file are text; an NPZ file has a column per array with a value per row.
    ``more`` are arrays of an NPZ file about other rows, such as ``X_test``.
    """

    cells: pa.Table
    suffix: str
    sep: str = ","
    more: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, dialect: Dialect) -> Self:
        """Read a file, see :func:`fedkern_flwr.tables.load_table`."""
        import pyarrow as pa

        from .arrow import file_columns

        check_file(path)
        suffix = file_kind(path)
        if suffix == ".npz":
            columns, more = _read_arrays(path)
            return cls(pa.table({n: pa.array(v) for n, v in columns.items()}), suffix, more=more)
        columns, dialect, _ = file_columns(path, dialect)
        suffix = ".parquet" if suffix == ".feather" else suffix
        return cls(pa.table(columns), suffix, dialect.sep or ",")

    def __len__(self) -> int:
        return int(self.cells.num_rows)

    @property
    def columns(self) -> list[str]:
        return list(self.cells.column_names)

    def column(self, name: str, source: str, kind: str = "column") -> Any:
        """Return a column; for an NPZ file an array, or a feature."""
        if not self.has(name):
            raise no_such(kind, name, source, self.columns)
        return self.cells.column(name if name in self.columns else f"{_OF_X}{name}")

    def has(self, name: str) -> bool:
        return name in self.columns or f"{_OF_X}{name}" in self.columns

    def texts(self, name: str, source: str, kind: str = "column") -> NDArray[np.str_]:
        """Return a column as trimmed text; a missing cell is ""."""
        from .arrow import text_cells

        return text_cells(self.column(name, source, kind), name, source)

    def words(self, names: Sequence[str]) -> list[Words]:
        """Return a digest of each cell, 0 for an empty one or a missing column."""
        nothing = np.zeros(len(self), np.uint64)
        return [_words(self.cells.column(n)) if n in self.columns else nothing for n in names]

    def take(self, rows: NDArray[Any]) -> Self:
        return replace(self, cells=self.cells.take(rows))

    def joined(self, parts: Sequence[RawTable]) -> Self:
        """Return the rows of some tables, with the columns of this one, matched by name.

        A missing column becomes null.
        """
        import pyarrow as pa

        schema = self.cells.schema
        typed = [schema.empty_table(), *(_as_typed(one.cells, schema) for one in parts)]
        cells = pa.concat_tables(typed, promote_options="permissive").select(self.columns)
        return replace(self, cells=cells)

    def lacks(self, name: str, source: str, dialect: Dialect) -> NDArray[np.bool_]:
        """Return in which rows the cell of a column is missing."""
        from .cells import read_plainly

        column = self.column(name, source)
        plain = replace(dialect, sep=self.sep if self.suffix in (".csv", ".tsv") else None)
        read = read_plainly({name: column}, [name], source, plain, tsv=self.suffix == ".tsv")
        found: NDArray[np.bool_] = read.columns[name].is_null(nan_is_null=True).to_numpy()
        return found

    def write(self, path: Path) -> None:
        """Write a file of the same kind, readable by this user only, and force it to disk."""
        make_private_folder(path.parent)
        with create_file(path) as file:
            self._write(file)
            file.flush()
            os.fsync(file.fileno())

    def _write(self, file: BinaryIO) -> None:
        if self.suffix == ".npz":
            names = [name for name in self.columns if name.startswith(_OF_X)]
            arrays = {"X": _stacked(self.cells.select(names))}
            arrays["feature_names"] = np.array([name.removeprefix(_OF_X) for name in names])
            rest = [name for name in self.columns if not name.startswith(_OF_X)]
            for name in dict.fromkeys(name.partition("/")[0] for name in rest):
                parts = [one for one in rest if one.partition("/")[0] == name]
                values = _stacked(self.cells.select(parts))
                arrays[name] = values[:, 0] if parts == [name] else values
            np.savez(file, **arrays, **self.more)  # type: ignore[arg-type]
        elif self.suffix == ".parquet":
            from pyarrow import parquet

            parquet.write_table(self.cells, file)
        else:
            from pyarrow import csv

            csv.write_csv(self.cells, file, csv.WriteOptions(delimiter=self.sep))


def _read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    from .arrow import NpzArrays

    arrays = NpzArrays(path)
    x, columns, more = arrays.numbers("X", ndim=2), dict[str, Any](), dict[str, Any]()
    names = [f"x{j}" for j in range(x.shape[1])]
    if "feature_names" in arrays.names:
        names = [str(name) for name in arrays.get("feature_names").ravel()]
    if len(set(names)) != x.shape[1]:
        raise TableError(
            f"{path.name}: feature_names are not one name for each column of X",
            remedy="save arrays that belong together",
            code="FK-SHAPE-DIFFERS",
        )
    columns = {f"{_OF_X}{name}": x[:, j] for j, name in enumerate(names)}
    for name in set(arrays.names) - {"X", "feature_names"}:
        try:
            values = arrays.get(name)
        except TableError:  # no run can use it
            continue
        values = values.astype(np.str_) if values.dtype.kind == "S" else values
        if values.ndim not in (1, 2) or len(values) != len(x) or name.endswith("_test"):
            more[name] = values
        elif values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}/{j}": part for j, part in enumerate(values.T)}
    return columns, more


def _stacked(cells: pa.Table) -> NDArray[Any]:
    columns = [column.to_numpy() for column in cells.columns]
    texts = [c.astype(np.str_) if c.dtype.kind == "O" else c for c in columns]
    return np.column_stack(texts) if texts else np.zeros((cells.num_rows, 0))


def _as_typed(cells: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    for j, name in enumerate(cells.column_names):
        column = cells.column(j)
        wanted = schema.field(name).type if name in schema.names else column.type
        if wanted == column.type or all(_is_number(kind) for kind in (wanted, column.type)):
            continue
        try:
            column = column.cast(wanted)
        except pa.ArrowException:  # the column is of another kind now: the cell says nothing there
            column = pa.chunked_array([pa.nulls(len(column), wanted)])
        cells = cells.set_column(j, name, column)
    return cells


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _words(column: Any) -> Words:
    """Return a digest of each cell; equal cells have equal digests, whatever the column's type."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if _is_number(column.type):
        numbers = column.to_numpy()  # gaps make them floats
        if numbers.dtype.kind in "iu" and len(numbers) and np.abs(numbers).max() > _EXACT:
            return np.where(numbers == 0, 0, numbers.view(f"u{numbers.itemsize}")).astype(np.uint64)
        floats = numbers.astype(np.float64) + 0.0  # -0 is 0
        return np.where(np.isnan(floats), np.uint64(0), floats.view(np.uint64))
    try:
        column = column.cast(pa.large_binary() if _is_text(column.type) else pa.large_string())
    except pa.ArrowException:  # lists, structures
        column = pa.chunked_array([pa.array([repr(v) for v in column.to_pylist()])])
    chunks = [_text_words(chunk.cast(pa.large_binary())) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    one = pa.types
    return any(f(kind) for f in (one.is_string, one.is_large_string, one.is_binary))


def _text_words(chunk: Any) -> Words:
    """Return a digest of each text, computed for all texts at once, eight bytes at a time."""
    import pyarrow.compute as pc

    chunk = pc.fill_null(chunk, b"") if chunk.null_count else chunk
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    text = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    padded = np.append(text, np.zeros(8, np.uint8))
    eight = np.ndarray((len(text) + 1,), "<u8", padded, strides=(1,))
    lengths, starts = np.diff(ends), ends[:-1]
    words = lengths.astype(np.uint64)
    rows = np.flatnonzero(lengths)
    for start in range(0, int(lengths.max(initial=0)), 8):
        rows = rows[lengths[rows] > start]
        cells = eight[starts[rows] + start] & _FIRST[np.minimum(lengths[rows] - start, 8)]
        mixed = (words[rows] ^ cells) * _ODD[0]
        mixed ^= mixed >> np.uint64(29)
        mixed *= _ODD[1]
        words[rows] = mixed ^ mixed >> np.uint64(32)
    return words
