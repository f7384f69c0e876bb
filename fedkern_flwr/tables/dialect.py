"""How a CSV file is written: what parts its columns, its decimal mark, marks of missing cells."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import OptionError, TableError
from .kinds import nothing, parse_numbers, plain_cells, texts
from .table import SEPARATORS, how_many

Decimal = Literal[".", ","]

_SAMPLE = 1 << 18  # characters of which the separator is told
_MARKS = ("?", "#N/A", "<NA>", "n/a")  # beside those that say nothing but that a cell is missing
_COMMA = r"(?i)^[+-]?(\d+,\d*|,\d+)(e[+-]?\d+)?$"
_POINT = r"(?i)^[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"


@dataclass(frozen=True)
class Dialect:
    """How a file is written; what is None is found out.

    Attributes
    ----------
    sep : str or None
        What parts the columns.
    decimal : {".", ","} or None
        The decimal mark.
    na : tuple of str
        Marks of missing cells, beside the usual ones.
    """

    sep: str | None = None
    decimal: Decimal | None = None
    na: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.sep is not None and len(self.sep) != 1:
            raise OptionError(
                "the separator is not one character",
                remedy="use tab or one of ,;|",
                code="FK-OPTION-CHOICE",
            )
        if self.decimal not in (None, ".", ","):
            raise OptionError(
                "the decimal mark is neither a point nor a comma",
                remedy="use , or .",
                code="FK-OPTION-CHOICE",
            )

    @classmethod
    def of(cls, sep: str | None, decimal: str | None, na: str | Iterable[str]) -> Dialect:
        """Read options: a tab may be written as a word, marks as one text with commas."""
        sep = {"tab": "\t", "\\t": "\t"}.get(sep or "", sep)
        marks = na.split(",") if isinstance(na, str) else na
        return cls(sep, decimal, tuple(m.strip() for m in marks if m.strip()))  # type: ignore[arg-type]

    def of_file(self, path: Path) -> Dialect:
        """Return it with the separator of a text file."""
        if self.sep is not None:
            return self
        return replace(self, sep="\t" if path.suffix.lower() == ".tsv" else find_separator(path))


def find_separator(path: Path) -> str:
    """Tell what parts the columns of a text file: what gives most of them, equally in all lines."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        text = file.read(_SAMPLE)
        whole = not file.read(1)
    found: dict[str, int] = {}
    for sep in SEPARATORS:
        try:
            lines = [line for line in csv.reader(text.splitlines(True), delimiter=sep) if line]
        except csv.Error:
            continue
        widths = [len(line) for line in (lines if whole or len(lines) == 1 else lines[:-1])]
        if len(set(widths)) == 1 and widths[0] > 1:
            found[sep] = widths[0]
    return max(found, key=lambda sep: found[sep], default=",")  # the first of equal ones


def ragged_line(path: Path, sep: str) -> str:
    """Say which line of a text file has more or fewer cells than the first; nothing if none."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file, delimiter=sep)
        try:
            first = len(next(reader, []))
            for line in reader:
                if line and len(line) != first:
                    cells = how_many(len(line), "cell")
                    return f"line {reader.line_num} has {cells}, the first has {first}"
        except csv.Error:
            pass
    return ""


def read_plainly(
    columns: dict[str, Any], names: Iterable[str], source: str, dialect: Dialect, *, tsv: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return columns whose cells are as everywhere, and a note of what was not.

    Text is trimmed, null where it is missing, and has a point as decimal mark. A dash is a missing
    cell where all others are numbers. Files other than CSV have a decimal point unless told. Where
    commas part the columns too, numbers with a decimal comma stand in quotes, and those that may
    have marks of thousands tell nothing.

    Raises
    ------
    TableError
        There are decimal commas and points.
    """
    read, marked = {}, 0
    for name in names:
        plain = plain_cells(columns[name])
        read[name] = _without_marks(plain, dialect.na)
        marked += read[name].null_count - plain.null_count
    decimal = dialect.decimal
    if decimal is None:
        decimal = "." if dialect.sep is None else _find_decimal(read, source, dialect.sep)
    if decimal == ",":
        read = {name: _with_points(cells, name, source) for name, cells in read.items()}
    told = []
    if dialect.sep not in (None, "\t" if tsv else ","):
        told.append(f"columns parted by {SEPARATORS.get(dialect.sep, 'the given mark')}")
    if decimal == ",":
        told.append("a decimal comma")
    if marked:
        told.append(f"{marked} cells that a mark such as ? says to be missing")
    return {**columns, **read}, (f"{source} has {' and '.join(told)}",) if told else ()


def _without_marks(cells: Any, na: tuple[str, ...]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
        read = [parse_numbers(pa.chunked_array([[mark]]))[0] for mark in na]
        numbers = [float(found[0]) for found in read if found is not None]
        if not numbers:
            return cells
        absent = np.isin(cells.cast(pa.float64(), safe=False).to_numpy(), numbers)
        return pc.if_else(pa.array(absent), pa.scalar(None, cells.type), cells)
    if not pa.types.is_string(cells.type):
        return cells
    absent = pc.is_in(cells, value_set=texts([*_MARKS, *na]))
    cells = pc.if_else(absent, nothing(), cells)
    dash = pc.is_in(cells, value_set=texts(["-"]))
    if pc.any(dash).as_py():
        less = pc.if_else(dash, nothing(), cells)
        if less.null_count < len(less) and _all_numbers(less):
            return less
    return cells


def _all_numbers(cells: Any) -> bool:
    import pyarrow.compute as pc

    values, _ = parse_numbers(pc.replace_substring_regex(cells, _COMMA, "0"))
    return values is not None


def _find_decimal(columns: dict[str, Any], source: str, sep: str) -> Decimal:
    """Tell the decimal mark of the columns that hold nothing but numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [c for c in columns.values() if pa.types.is_string(c.type) and c.null_count < len(c)]
    if not any(pc.any(pc.match_substring(cells, ",")).as_py() for cells in texts):
        return "."
    found = set()
    for cells in texts:
        marks = {mark for mark, how in ((",", _COMMA), (".", _POINT)) if _count(cells, how)}
        if sep == "," and _count(cells, _COMMA) == _count(cells, _THOUSANDS):
            marks.discard(",")
        if marks and _all_numbers(cells):
            found |= marks
    if len(found) > 1 and sep != ",":
        raise TableError(
            f"some numbers of {source} have a decimal comma, others a decimal point",
            remedy="say which it is with --decimal",
            code="FK-DECIMAL-MIXED",
        )
    return "," if found == {","} else "."


def _count(cells: Any, how: str) -> int:
    import pyarrow.compute as pc

    return pc.sum(pc.match_substring_regex(cells, how)).as_py() or 0


def _with_points(cells: Any, name: str, source: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(cells.type):
        return cells
    comma = pc.match_substring_regex(cells, _COMMA)
    wrong = _count(cells, _POINT)
    if wrong and (pc.any(comma).as_py() or _all_numbers(cells)):  # else it is text, as versions are
        raise TableError(
            f"{wrong} cells of column {name!r} of {source} have a decimal point, not a comma",
            remedy="remove marks of thousands, or use --decimal .",
            code="FK-DECIMAL-MIXED",
        )
    return pc.if_else(comma, pc.replace_substring(cells, ",", "."), cells)
