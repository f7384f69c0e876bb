"""What the cells of an Arrow column are: numbers, booleans, dates or categories."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from .table import Kind, how_many

Floats = NDArray[np.float64]

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"
_TRUTHS = ({"false", "true"}, {"no", "yes"}, {"n", "y"}, {"f", "t"})
_TRUE = {"true", "yes", "y", "t"}
_FALSE = {"false", "no", "n", "f"}
_ZEROS = r"^[+-]?0\d+$"  # such as zip codes
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?:[T ,]+(\d{1,2}:\d{2}(?::\d{2})?))?")
#: One cell of so many may be something else than the others: it is a typing error.
TYPING_ERRORS = 20

#: The order of dates such as 03/04/2024; iso: none but those such as 2024-04-03 are dates.
Dates = Literal["day-first", "month-first", "iso"]


class Cells(NamedTuple):
    """A column that was read.

    Attributes
    ----------
    kind : Kind
    values : ndarray of float64
        Numbers, 0 and 1, seconds since 1970, or positions among the names; NaN where one is
        missing.
    names : tuple of str
        Of categories, sorted.
    lost : int
        Cells that are not of the kind and count as missing.
    note : str
        What else was done.
    """

    kind: Kind
    values: Floats
    names: tuple[str, ...] = ()
    lost: int = 0
    note: str = ""


def read_cells(
    cells: Any, kind: Kind | None, name: str, source: str, dates: Dates | None = None
) -> Cells:
    """Read a column; one of text is what all its cells are.

    A column of numbers with a few cells of text is one of numbers, but not where numbers begin with
    a zero. Dates are in UTC where they say nothing else. Names of categories that differ in capital
    letters alone are one.

    Parameters
    ----------
    cells : pyarrow.ChunkedArray
        The column, see :func:`plain_cells`.
    kind : Kind or None
        What it is to be read as, whatever it looks like: other cells are missing.
    name, source : str
        Names of column and file, for errors.
    dates : {"day-first", "month-first", "iso"} or None (default: None)
        The order of dates such as 03/04/2024. By default what all dates of the column can be.

    Raises
    ------
    TableError
        Its type is none that can be read, or nothing tells the order of its dates.
    """
    import pyarrow as pa

    if pa.types.is_temporal(cells.type) and kind in (None, "date", "number"):
        seconds, dated = _seconds(cells)
        return Cells("date" if dated and kind != "number" else kind or "number", seconds)
    if not pa.types.is_string(cells.type) and kind != "category":
        values, _ = parse_numbers(cells)
        if values is None:
            raise TableError(
                f"column {name!r} of {source} is not numeric and holds neither text nor dates",
                remedy="leave it out",
                code="FK-COLUMN-UNREADABLE",
            )
        return Cells(kind or ("boolean" if pa.types.is_boolean(cells.type) else "number"), values)
    try:
        cells = cells.cast(pa.string())
    except pa.ArrowException:
        problem = f"column {name!r} of {source} cannot be read as text"
        raise TableError(problem, remedy="leave it out", code="FK-COLUMN-UNREADABLE") from None
    if kind in (None, "number"):
        known = len(cells) - cells.null_count
        _, text = parse_numbers(cells)
        typing = text.size * TYPING_ERRORS <= known and not _any(cells, _ZEROS)
        if kind == "number" or typing:
            return Cells("number", _numbers_of(cells, text), lost=text.size)
    return _text_cells(cells, kind, name, source, dates)


def _any(cells: Any, how: str) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.match_substring_regex(cells, how)).as_py())


def _text_cells(
    cells: Any, kind: Kind | None, name: str, source: str, dates: Dates | None
) -> Cells:
    """Return a column of text as booleans, dates or categories."""
    coded = cells.combine_chunks().dictionary_encode()
    if hasattr(coded, "chunks"):  # of some versions of pyarrow
        coded = coded.combine_chunks()
    found: list[str] = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.float64)
    known = np.isfinite(codes)
    if kind is None:
        kind = _kind_of([one for one in found if one != "-"] or found, dates)
    if kind == "category":
        return _categories(found, codes)
    note = ""
    read: Callable[[str], float] = _truth
    if kind == "date":
        read, note = _reader(found, name, source, dates)
    values: Floats = np.array([*map(read, found), np.nan])[_places(codes, len(found))]
    return Cells(kind, values, lost=int((known & np.isnan(values)).sum()), note=note)


def _categories(found: Sequence[str], codes: Floats) -> Cells:
    """Return a column of categories; of names that differ in capital letters the most frequent."""
    times = np.bincount(codes[np.isfinite(codes)].astype(np.intp), minlength=len(found)).tolist()
    spelled: dict[str, str] = {}
    for one, _ in sorted(zip(found, times, strict=True), key=lambda pair: (-pair[1], pair[0])):
        spelled.setdefault(one.casefold(), one)
    names, places = np.unique(
        np.array([spelled[one.casefold()] for one in found], dtype=np.str_), return_inverse=True
    )
    values: Floats = np.append(places.astype(np.float64), np.nan)
    merged = len(found) - len(names)
    note = f"{how_many(merged, 'name')} as another but for capital letters: taken for one"
    note = note if merged else ""
    return Cells("category", values[_places(codes, len(found))], tuple(names.tolist()), note=note)


def _places(codes: Floats, missing: int) -> NDArray[np.intp]:
    return np.where(np.isfinite(codes), codes, missing).astype(np.intp)


def _kind_of(found: Sequence[str], dates: Dates | None) -> Kind:
    if {one.lower() for one in found[:10]} in _TRUTHS and len(found) <= 10:
        return "boolean"
    if all(_is_date(one) for one in found):  # ends at the first that is none
        return (
            "date" if dates != "iso" or not np.isnan([*map(_moment, found)]).all() else "category"
        )
    return "category"


def _is_date(text: str) -> bool:
    return not np.isnan(_moment(text)) or _DATE.fullmatch(text) is not None


def _reader(
    found: Sequence[str], name: str, source: str, dates: Dates | None
) -> tuple[Callable[[str], float], str]:
    """Return what reads the dates of a column, and a note of their order if it was found out."""
    parts = [match for one in found if (match := _DATE.fullmatch(one))]
    if not parts or dates is not None:
        return lambda text: _moment(text, dates), ""
    months = {k for k in (1, 3) if any(int(match[k]) > 12 for match in parts)}
    if len(months) != 1:
        problem = (
            "some begin with the day, others with the month" if months else "no day is over 12"
        )
        raise TableError(
            f"nothing tells the order of day and month in column {name!r} of {source}: {problem}",
            remedy="use --dates day-first or month-first; iso if they are to be missing",
            code="FK-DATES-ORDER",
        )
    dates = "day-first" if 1 in months else "month-first"
    return lambda text: _moment(text, dates), f"dates are read as {dates}"


def _truth(text: str) -> float:
    word = text.lower()
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else np.nan


def _moment(text: str, dates: Dates | None = None) -> float:
    """Return the seconds since 1970 of a date, NaN if it is none; without an order, of ISO 8601."""
    match = _DATE.fullmatch(text) if dates in ("day-first", "month-first") else None
    if match is not None:
        first, _, second, year, clock = match.groups()
        day, month = (first, second) if dates == "day-first" else (second, first)
        century = "" if len(year) == 4 else "20" if int(year) < 69 else "19"
        text = f"{century}{year}-{month:0>2}-{day:0>2}" + (f" {clock:0>5}" if clock else "")
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return np.nan


def _seconds(cells: Any) -> tuple[Floats, bool]:
    """Return seconds: of dates since 1970, of times, of durations; and whether they are dates."""
    import pyarrow as pa

    dated = pa.types.is_date(cells.type) or pa.types.is_timestamp(cells.type)
    if pa.types.is_time(cells.type):
        cells = cells.cast(pa.time64("us"))
    else:
        unit: Any = pa.timestamp("us") if dated else pa.duration("us")
        cells = cells.cast(unit, safe=False)
    values: Floats = cells.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy()
    return values / 1e6, dated


def plain_cells(column: Any) -> Any:
    """Return a text column trimmed, with null for a missing cell; other columns unchanged."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    views = (getattr(pa.types, "is_string_view", lambda _: False),)  # of pyarrow >= 16
    kinds = (pa.types.is_string, pa.types.is_large_string, *views)
    if not any(is_text(column.type) for is_text in kinds):
        return column
    cells = pc.utf8_trim_whitespace(column.cast(pa.string()))
    absent = pc.is_in(cells, value_set=texts(_MISSING_TEXT))
    return pc.if_else(absent, nothing(), cells)


def texts(values: Sequence[str]) -> Any:
    """Return an Arrow array of texts.

    At the first Python value that PyArrow converts it loads pandas, if that is installed, which
    takes longer than reading a small table.
    """
    import pyarrow as pa

    parts = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32).tobytes()
    whole = pa.py_buffer(b"".join(parts))
    return pa.StringArray.from_buffers(len(parts), pa.py_buffer(ends), whole)


def nothing() -> Any:
    """Return a missing text, as PyArrow has it; see :func:`texts`."""
    import pyarrow as pa

    return pa.nulls(1, pa.string())[0]


def _in_numpy(cells: Any, kind: type[Any]) -> NDArray[Any]:
    """Return an Arrow array of numbers in NumPy; without gaps past pandas, as :func:`texts`."""
    if cells.null_count:
        return np.asarray(cells.to_numpy())
    chunks, size = getattr(cells, "chunks", [cells]), np.dtype(kind).itemsize
    parts = [np.frombuffer(c.buffers()[1], kind, len(c), c.offset * size) for c in chunks if len(c)]
    return np.concatenate([np.zeros(0, kind), *parts])


def parse_numbers(cells: Any) -> tuple[Floats | None, NDArray[np.intp]]:
    """Return the numbers of cells, or None with the positions of those that are text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(cells.type):
        numeric = pc.or_kleene(pc.is_null(cells), pc.match_substring_regex(cells, _NUMBER))
        text = _in_numpy(pc.indices_nonzero(pc.invert(numeric)), np.uint64).astype(np.intp)
        if text.size:
            return None, text
        cells = pc.utf8_ltrim(cells, "+")
    try:
        values: Floats = _in_numpy(cells.cast(pa.float64(), safe=False), np.float64)
    except (pa.ArrowException, ValueError):
        return None, np.arange(len(cells))
    return values, np.empty(0, dtype=np.intp)


def _numbers_of(cells: Any, text: NDArray[np.intp]) -> Floats:
    """Return the numbers of cells, NaN for those at the positions ``text``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if text.size:
        numeric = np.ones(len(cells), bool)
        numeric[text] = False
        cells = pc.if_else(pa.array(numeric), cells, nothing())
    values, _ = parse_numbers(cells)
    assert values is not None
    return values
