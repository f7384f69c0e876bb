"""What the cells of an Arrow column are: numbers, booleans, dates or categories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError
from .table import Kind

Floats = NDArray[np.float64]

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"
_TRUTHS = ({"false", "true"}, {"no", "yes"}, {"n", "y"}, {"f", "t"})
_TRUE = {"true", "yes", "y", "t"}
_FALSE = {"false", "no", "n", "f"}
_TYPING_ERRORS = 20  # one cell of so many may be text where the others are numbers


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
    """

    kind: Kind
    values: Floats
    names: tuple[str, ...] = ()
    lost: int = 0


def read_cells(cells: Any, kind: Kind | None, name: str, source: str) -> Cells:
    """Read a column; one of text is what all its cells are.

    A column of numbers with a few cells of text is one of numbers. Dates are those of ISO 8601,
    in UTC where they say nothing else.

    Parameters
    ----------
    cells : pyarrow.ChunkedArray
        The column, see :func:`plain_cells`.
    kind : Kind or None
        What it is to be read as, whatever it looks like: other cells are missing.
    name, source : str
        Names of column and file, for errors.

    Raises
    ------
    TableError
        Its type is none that can be read.
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
        if kind == "number" or text.size * _TYPING_ERRORS <= known:
            return Cells("number", _numbers_of(cells, text), lost=text.size)
    return _text_cells(cells, kind)


def _text_cells(cells: Any, kind: Kind | None) -> Cells:
    """Return a column of text as booleans, dates or categories."""
    coded = cells.combine_chunks().dictionary_encode()
    if hasattr(coded, "chunks"):  # of some versions of pyarrow
        coded = coded.combine_chunks()
    found: list[str] = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.float64)
    known = np.isfinite(codes)
    if kind is None:
        kind = _kind_of([one for one in found if one != "-"] or found)
    if kind == "category":
        names, places = np.unique(np.array(found, dtype=np.str_), return_inverse=True)
        values: Floats = np.append(places.astype(np.float64), np.nan)
        return Cells(kind, values[_places(codes, len(found))], tuple(names.tolist()))
    meaning = [_truth(one) if kind == "boolean" else _moment(one) for one in found]
    values = np.array([*meaning, np.nan])[_places(codes, len(found))]
    return Cells(kind, values, lost=int((known & np.isnan(values)).sum()))


def _places(codes: Floats, missing: int) -> NDArray[np.intp]:
    return np.where(np.isfinite(codes), codes, missing).astype(np.intp)


def _kind_of(found: Sequence[str]) -> Kind:
    if {one.lower() for one in found[:10]} in _TRUTHS and len(found) <= 10:
        return "boolean"
    if all(not np.isnan(_moment(one)) for one in found):  # ends at the first that is none
        return "date"
    return "category"


def _truth(text: str) -> float:
    word = text.lower()
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else np.nan


def _moment(text: str) -> float:
    """Return the seconds since 1970 of a date of ISO 8601, NaN if it is none."""
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
