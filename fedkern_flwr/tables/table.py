"""A table as methods take it: columns with kinds, rows with ids, labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ColumnError, TableError

# -- what the cells of an Arrow column are: numbers, booleans, dates or categories

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


# -- what a party's table is, and what can be done with one

#: What to do with rows that have an empty, NaN or infinite cell; kept ones are NaN. Those that are
#: to be encoded are kept as long as label, id and site are there.
Missing = Literal["error", "drop-row", "keep", "encode"]
#: What a column holds.
Kind = Literal["number", "boolean", "date", "category"]


#: What parts the columns of text files.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
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
    kinds : mapping (default: {})
        What the columns hold that are not numbers: "boolean" (0 and 1), "date" (seconds since 1970)
        or "category". An :class:`~fedkern_flwr.encoding.Encoder` makes features of them.
    categories : mapping (default: {})
        For each column of categories, their names; a cell is a position among them.
    classes : tuple[str, ...] (default: ())
        Names of the classes of a text label, which is a position among them.
    units : mapping (default: {})
        For columns of numbers that the file has with a unit: the unit, such as kg.
    places : NDArray[np.int64], shape (n,), or None (default: None)
        Number of each row in the file, from 0; None where it was not read from one.
    weights : NDArray[np.float64], shape (n,), or None (default: None)
        What each row counts where one party alone learns from the labels; by default all alike.
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
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    places: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None

    def __repr__(self) -> str:
        # Tracebacks show this, so no cell may be in it.
        return f"Table({self.rows} rows, {len(self.columns)} columns, label {self.label!r})"

    @property
    def rows(self) -> int:
        """Number of rows n, without the test rows."""
        return len(self.x)

    @property
    def _placed(self) -> bool:
        """Whether the places are of these rows, and not of those before others were added."""
        return self.places is not None and len(self.places) == self.rows

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
            weights=None if self.weights is None else self.weights[rows],
            places=self.places[rows] if self.places is not None and self._placed else None,
        )


_CLASSES = 20  # whole labels of more values are numbers


def with_label(table: Table) -> Table:
    """Return a table whose labels are its last column: categories where they are classes.

    Raises
    ------
    ColumnError
        A feature has the name of the label.
    """
    if table.y is None:
        return table
    name, values = table.label or "label", np.asarray(table.y, np.float64)
    if name in table.columns:
        raise ColumnError(
            f"a feature is named {name!r}, as the label is",
            remedy="rename it",
            code="FK-NAMES-LABEL",
        )
    found = np.unique(values[np.isfinite(values)])
    kinds, categories = dict(table.kinds), dict(table.categories)
    if table.classes or (len(found) <= _CLASSES and (found == np.rint(found)).all()):
        kinds[name] = "category"
        categories[name] = table.classes or tuple(f"{one:g}" for one in found)
        values = values if table.classes else _positions(values, found)
    x = np.column_stack([table.x, values])
    columns = (*table.columns, name)
    return replace(table, x=x, y=None, columns=columns, kinds=kinds, categories=categories)


def _positions(values: Floats, found: Floats) -> Floats:
    """Return the places of values among those that there are, NaN for a gap."""
    places = np.searchsorted(found, values).astype(np.float64)
    return np.asarray(np.where(np.isfinite(values), places, np.nan))


def copies(ids: NDArray[Any], columns: Sequence[Any]) -> NDArray[np.bool_]:
    """Tell which rows stand above already: with the same id, and the same in each column."""
    _, of, times = np.unique(ids, return_inverse=True, return_counts=True)
    again, seen = np.zeros(len(ids), bool), set[Any]()
    for row in np.flatnonzero((times[of] > 1) & (ids != "")).tolist():
        cells = (ids[row], *(_plain(column[row]) for column in columns))
        again[row] = cells in seen
        seen.add(cells)
    return again


def _plain(cell: Any) -> Any:
    """Return what is equal for equal cells of arrays and of PyArrow, gaps among them."""
    return cell.tobytes() if isinstance(cell, (np.ndarray, np.generic)) else str(cell)


def copies_note(count: int, source: str) -> tuple[str, ...]:
    """Return the note of rows that were left out as copies."""
    return (f"{count} rows of {source} stand twice, cell by cell: used once",) * bool(count)


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
                code="FK-COLUMN-MISSING",
            )
    else:
        raise no_such("feature column", target, "the data", table.columns)
    if d == 1:
        raise TableError(
            "the target is the only feature column",
            remedy="add feature columns",
            code="FK-COLUMNS-NONE",
        )
    return replace(
        _keep_columns(table, np.arange(d) != index),
        y=table.x[:, index].copy(),
        y_test=None if table.x_test is None else table.x_test[:, index].copy(),
        label=table.columns[index],
        classes=table.categories.get(table.columns[index], ()),
    )


class Note(str):
    """A note that shows cells to who holds the table; ``plain`` says the same without them."""

    plain: str

    def __new__(cls, text: str, plain: str = "") -> Self:
        """Make a note of both texts."""
        found = super().__new__(cls, text)
        found.plain = plain
        return found


def plain_notes(notes: Iterable[str]) -> list[str]:
    """Return notes for files that others may read: without cells."""
    return [note.plain if isinstance(note, Note) else note for note in notes]


def choose_columns(table: Table, use: Sequence[str], ignore: Sequence[str]) -> Table:
    """Return a table with the feature columns ``use`` (by default all) without ``ignore``.

    Raises
    ------
    ColumnError, TableError
        There is no such column, or none is left.
    """
    for name in (*use, *ignore):
        if name not in table.columns:
            raise no_such("feature column", name, "the data", table.columns)
    keep = chosen(table.columns, use, ignore)
    if not keep:
        raise TableError(
            "no feature column is left", remedy="leave some in", code="FK-COLUMNS-NONE"
        )
    return _keep_columns(table, np.isin(table.columns, keep))


def chosen(names: Iterable[str], use: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Return the names that are used and not ignored; all are used where none are named."""
    return [name for name in names if name not in ignore and (name in use or not use)]


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
        raise TableError(
            "every feature column is constant",
            remedy="add columns that vary",
            code="FK-COLUMNS-CONSTANT",
        )
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
    """Return the error for a name that is not there; one that is like it is named first."""
    names = [str(one) for one in names]
    remedy = choices(name, names)
    for mark, word in SEPARATORS.items() if len(names) == 1 else ():
        if mark in names[0]:
            option = "tab" if mark == "\t" else f"'{mark}'"
            remedy = f"{word} seem to part its columns: use --sep {option}"
    return ColumnError(f"{source} has no {kind} {name!r}", remedy=remedy, code="FK-COLUMN-MISSING")


def choices(name: str, names: Sequence[str]) -> str:
    """Return what to do about a name that is none of some; one that is like it is named first."""
    meant = near(name, names)
    listed = listing([*meant, *(one for one in names if one not in meant)])
    return "".join(f"did you mean {one!r}? " for one in meant) + f"choose from: {listed}"


def how_many(number: int, what: str) -> str:
    """Return a number of things, of which ``what`` is the singular."""
    return f"{number} {what}{'s' * (number != 1)}"


def near(name: str, names: Iterable[str]) -> list[str]:
    """Return the name that is most like another, but for capital letters and spaces, if any."""
    spelled = {one.strip().lower(): one for one in names}
    return [spelled[one] for one in get_close_matches(name.strip().lower(), spelled, n=1)]


def _keep_columns(table: Table, keep: NDArray[np.bool_]) -> Table:
    return replace(
        table,
        x=table.x[:, keep],
        x_test=None if table.x_test is None else table.x_test[:, keep],
        columns=tuple(np.array(table.columns, dtype=object)[keep]),
    )


def without_missing(table: Table, missing: Missing, source: str) -> Table:
    if missing == "keep":
        return table
    if table.x_test is not None:
        test = Table(table.x_test, table.y_test, table.columns, table.label)
        test = without_missing(test, missing, f"the test rows of {source}")
        notes = (*table.notes, *test.notes)
        table = replace(table, x_test=test.x, y_test=test.y, notes=notes)
    encode = missing == "encode"
    bad = np.zeros(table.rows, bool) if encode else ~np.isfinite(table.x).all(axis=1)
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
                        code="FK-VALUES-FINITE" if kind == "infinite" else "FK-VALUES-MISSING",
                    )
        kind = next(kind for kind, cells in texts if np.any(cells == ""))
        raise TableError(
            f"the {kind} column of {source} is empty in {dropped} rows",
            remedy=_DROP_ROWS,
            code="FK-IDS-MISSING" if kind == "id" else "FK-VALUES-MISSING",
        )
    if dropped == table.rows:
        raise TableError(
            f"every row of {source} has a missing cell",
            remedy="remove the mostly empty columns",
            code="FK-VALUES-NOROW",
        )
    what = "without a label, an id or a site" if encode else "with missing or infinite cells"
    note = f"dropped {dropped} of {table.rows} rows of {source} {what}"
    return replace(table.take(~bad), notes=(*table.notes, note))
