"""Read the cells of Arrow columns: normalise how people write them, and detect one kind."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ..errors import TableError
from .dialect import Decimal, Dialect
from .table import SEPARATORS, Dates, Kind, how_many, listing

Floats = NDArray[np.float64]

# -- what the cells of a column are: numbers, booleans, dates or categories

_MISSING_TEXT = ["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None"]
_NUMBER = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)$"
_TRUTHS = ({"false", "true"}, {"no", "yes"}, {"n", "y"}, {"f", "t"})
_TRUE = {"true", "yes", "y", "t"}
_FALSE = {"false", "no", "n", "f"}
_ZEROS = r"^[+-]?0\d+$"  # such as zip codes
_DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})(?:[T ,]+(\d{1,2}:\d{2}(?::\d{2})?))?")
#: One cell of so many may be something else than the others: it is a typing error.
TYPING_ERRORS = 20


class Cells(NamedTuple):
    """A column that was read.

    Attributes
    ----------
    values : ndarray of float64
        Numbers, 0 and 1, seconds since 1970, or positions in ``names``; NaN for a missing cell.
    names : tuple of str
        Sorted names of categories.
    lost : int
        Cells of another kind, which count as missing.
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
    """Read a column; detect the kind of text from all its cells.

    A column of numbers may have a few text cells, unless numbers begin with a zero. Dates without a
    time zone are in UTC. Names of categories that differ only in capital letters are merged. Cells
    of another kind than a given ``kind`` are missing.

    Raises
    ------
    TableError
        The type of the column cannot be read, or the order of its dates is ambiguous.
    """
    if pa.types.is_temporal(cells.type) and kind in (None, "date", "number"):
        seconds, dated = _seconds(cells)
        return Cells("date" if dated and kind != "number" else kind or "number", seconds)
    if not pa.types.is_string(cells.type) and kind != "category":
        values, _ = parse_numbers(cells)
        if values is None:
            raise TableError(
                f"column {name!r} of {source} is not numeric and holds neither text nor dates",
                code="FK-COLUMN-UNREADABLE",
            )
        return Cells(kind or ("boolean" if pa.types.is_boolean(cells.type) else "number"), values)
    try:
        cells = cells.cast(pa.string())
    except pa.ArrowException:
        problem = f"column {name!r} of {source} cannot be read as text"
        raise TableError(problem, code="FK-COLUMN-UNREADABLE") from None
    if kind in (None, "number"):
        known = len(cells) - cells.null_count
        _, text = parse_numbers(cells)
        typing = text.size * TYPING_ERRORS <= known and not _any(cells, _ZEROS)
        if kind == "number" or typing:
            return Cells("number", _numbers_of(cells, text), lost=text.size)
    return _text_cells(cells, kind, name, source, dates)


def _any(cells: Any, how: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(cells, how)).as_py())


def _text_cells(
    cells: Any, kind: Kind | None, name: str, source: str, dates: Dates | None
) -> Cells:
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
    """Return a function that reads the dates of a column, and a note if it detected their order."""
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
            code="FK-DATES-ORDER",
        )
    dates = "day-first" if 1 in months else "month-first"
    return lambda text: _moment(text, dates), f"dates are read as {dates}"


def _truth(text: str) -> float:
    word = text.lower()
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else np.nan


def _moment(text: str, dates: Dates | None = None) -> float:
    """Return the seconds since 1970 of a date, NaN if it is none. Default order: ISO 8601."""
    match = _DATE.fullmatch(text) if dates in ("day-first", "month-first") else None
    if match is not None:
        first, _, second, year, clock = match.groups()
        day, month = (first, second) if dates == "day-first" else (second, first)
        century = "" if len(year) == 4 else "20" if int(year) < 69 else "19"
        text = f"{century}{year}-{month:0>2}-{day:0>2}"
        if clock:  # ISO 8601 has two digits of the hour
            text += f" {'0' * (clock[1] == ':')}{clock}"
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return np.nan


def _seconds(cells: Any) -> tuple[Floats, bool]:
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

    PyArrow's own conversion of Python values loads pandas, if installed, which takes longer than
    reading a small table.
    """
    parts = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32).tobytes()
    whole = pa.py_buffer(b"".join(parts))
    return pa.StringArray.from_buffers(len(parts), pa.py_buffer(ends), whole)


def nothing() -> Any:
    return pa.nulls(1, pa.string())[0]


def _in_numpy(cells: Any, kind: type[Any]) -> NDArray[Any]:
    """Return an Arrow array of numbers in NumPy, without loading pandas if possible."""
    if cells.null_count:
        return np.asarray(cells.to_numpy())
    chunks, size = getattr(cells, "chunks", [cells]), np.dtype(kind).itemsize
    parts = [np.frombuffer(c.buffers()[1], kind, len(c), c.offset * size) for c in chunks if len(c)]
    return np.concatenate([np.zeros(0, kind), *parts])


def parse_numbers(cells: Any) -> tuple[Floats | None, NDArray[np.intp]]:
    """Return the numbers of cells, or None with the positions of text."""
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
    if text.size:
        numeric = np.ones(len(cells), bool)
        numeric[text] = False
        cells = pc.if_else(pa.array(numeric), cells, nothing())
    values, _ = parse_numbers(cells)
    assert values is not None
    return values


# -- what a column of text may have been meant to be: numbers or dates that are written otherwise

_PLAIN_NUMBER = r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$"
_COMMAS = r"(?i)^[+-]?(\d+,\d*|,\d+|\d{1,3}([.,]\d{3})+([.,]\d+)?)(e[+-]?\d+)?$"
_LIMIT = r"^[<>≤≥]=? *[+-]?\d+([.,]\d+)?$"
_YEAR_LAST = r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})|\d{1,2}[. -]+[A-Za-z]{3,9}[., -]+\d{4}"
_LIKE_DATE = rf"^(\d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}}|{_YEAR_LAST})([T ,]+\d{{1,2}}:.*)?$"


def hint(
    column: str, names: Sequence[str], places: NDArray[np.float64], decimal: str | None = None
) -> tuple[str, ...]:
    """Return a note if at least half of the cells look like numbers or dates; it quotes no cell.

    If the numbers have a decimal comma, but ``decimal`` is a point, log a warning instead.
    ``names`` are the distinct cells, ``places`` the position of each cell in them, NaN if missing.
    """
    cells = pa.array(names, pa.string())
    times = np.bincount(places[np.isfinite(places)].astype(np.intp), minlength=len(names))
    known = int(times.sum())

    def count(how: str) -> int:
        return int(times[pc.match_substring_regex(cells, how).to_numpy(zero_copy_only=False)].sum())

    dates = count(_LIKE_DATE)
    if known and 2 * dates >= known:
        text = f"{dates} of {known} cells look like dates; write them as YYYY-MM-DD"
        return (f"{column!r} is read as text: {text}",)
    commas, limits = count(_COMMAS), count(_LIMIT)
    numbers = commas + count(_PLAIN_NUMBER)
    if not numbers or 2 * (numbers + limits) < known:
        return ()
    if count(r"^[+-]?0\d+$"):
        return (f"{column!r} is read as text: some of its numbers begin with 0",)
    text = f"{numbers} of {known} cells look like numbers" + " with a decimal comma" * bool(commas)
    text += f", {limits} have a mark such as <" * bool(limits)
    remedies = ["--decimal , reads them, --decimal . if commas mark thousands"] if commas else []
    if numbers < known:
        remedies.append("--na names what marks a missing cell")
    text = f"{column!r} is read as text: {text}; {', '.join(remedies)}"
    if commas and decimal == ".":
        logging.getLogger("fedkern_flwr").warning(text)
        return ()
    return (text,)


# -- numbers as people write them: with a unit, marks of thousands, a bracket, or a limit

# Units of one kind, that a column must not mix. Small and capital letters are alike.
_KINDS = {
    "money": "€=eur $=usd £=gbp ¥=jpy ₹=inr cny chf sek nok dkk pln=zł czk huf aud cad kr",
    "share": "%=percent ‰ ppm ppb",
    "mass": "ng µg=ug=mcg mg g kg t lb=lbs oz st",
    "length": "nm µm=um mm cm dm m km in=inch=inches ft=feet mi=mile=miles",
    "time": "ms s=sec=secs min=mins h=hr=hrs=hour=hours d=day=days wk=week=weeks mo=month=months "
    "y=yr=yrs=year=years",
    "volume": "fl nl µl=ul ml cl dl l",
    "amount": "fmol pmol nmol µmol=umol mmol mol",
    "temperature": "°c=℃ °f=℉",
    "pressure": "mmhg cmh2o pa hpa kpa mpa bar mbar psi atm",
    "activity": "iu u mu miu kiu ku kat µkat nkat meq eq mosm osm",
    "energy": "j kj mj cal kcal wh kwh",
    "power": "w kw mw hp",
    "frequency": "hz khz mhz ghz bpm rpm",
    "electric": "v mv kv a ma µa",
    "radiation": "gy mgy sv msv µsv bq kbq mbq gbq",
    "sound": "db",
    "angle": "°=deg",
}
_KIND_OF = {
    same: kind for kind, units in _KINDS.items() for one in units.split() for same in one.split("=")
}
_SAME = {  # how else a unit is written -> as it is first above
    same: one.split("=")[0]
    for units in _KINDS.values()
    for one in units.split()
    for same in one.split("=")
}


def _among(units: str) -> str:
    found = sorted(re.split("[ =]", units), key=len, reverse=True)
    return "|".join(map(re.escape, found)).replace("µ", "[µμ]")


_MONEY = _among(_KINDS["money"])
_SINGLE = f"(?:{_among(' '.join(_KINDS.values()))})(?:[²³]|\\^?-?[1-4])?"
# such as mg/dL, kg/m², /µL, 10^9/L, mL/min/1.73m2
_UNIT = (
    f"(?:[x×*] ?)?10(?:\\^|\\*\\*?|e)?[0-9⁰¹²³⁴-⁹]{{1,2}}/{_SINGLE}"
    f"|(?:{_SINGLE}|cells?)?(?:(?:/| per )(?:1[.,]73 ?)?{_SINGLE}){{1,2}}|{_SINGLE}"
)
_SPACES = "[ \u00a0\u2007\u2009\u202f]"
_DIGITS = f"\\d{{1,3}}(?:(?:{_SPACES}|['’])\\d{{3}})+(?:[.,]\\d+)?|\\d+(?:[.,]\\d+)*[.,]?|[.,]\\d+"
_WRITTEN = (
    "(?i)^(?P<limit>[<>≤≥]=?)?"
    f"{_SPACES}*(?P<open>\\()?(?P<sign>[+\u2212-])?{_SPACES}*(?P<before>{_MONEY})?{_SPACES}*"
    f"(?P<minus>[\u2212-])?(?P<number>(?:{_DIGITS})(?:e[+-]?\\d+)?)"
    f"{_SPACES}*(?P<after>{_UNIT})?{_SPACES}*(?P<close>\\))?$"
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
_POWER = re.compile(r"(?:[x×*] ?)?10(?:\^|\*\*?|e)?(\d{1,2})/")
_ODD = r"[^0-9.,eE+-]|[.,].*[.,]"  # what no plain number has
_GROUPS = (  # marks of thousands, where it is certain that they are
    (r"^(\d{1,3}(?:[ \x{a0}\x{2007}\x{2009}\x{202f}'’]\d{3})+)", _SPACES[:-1] + "'’]", ""),
    (r"^\d{1,3}(,\d{3})+\.\d+$|^\d{1,3}(,\d{3}){2,}$", ",", ""),
    (r"^\d{1,3}(\.\d{3})+,\d+$|^\d{1,3}(\.\d{3}){2,}$", r"\.", ""),
)


class Written(NamedTuple):
    """A column of numbers as people write them.

    Attributes
    ----------
    cells : pyarrow.Array
        The numbers as plain text; a limit is missing.
    unit : str
        Their unit, or "".
    limits : int
        Number of cells with a limit, such as <0.5.
    """

    cells: Any
    unit: str = ""
    limits: int = 0


def read_written(cells: Any, name: str, source: str) -> Written | None:
    """Return the numbers of a text column; None for other content or plain numbers.

    Raises
    ------
    TableError
        Numbers have several units of one kind, or only some have one.
    """
    if not pa.types.is_string(cells.type):
        return None
    if not pc.any(pc.match_substring_regex(cells, _ODD)).as_py():
        return None
    coded = cells.combine_chunks().dictionary_encode()
    coded = coded.combine_chunks() if hasattr(coded, "chunks") else coded
    found = pc.extract_regex(coded.dictionary, _WRITTEN)
    known = found.is_valid().to_numpy(zero_copy_only=False)
    codes = coded.indices.to_numpy(zero_copy_only=False)
    codes = codes[np.isfinite(codes)].astype(np.intp)
    times = np.bincount(codes, minlength=len(known))
    strange = int(times[~known].sum())
    if not known.any() or strange * TYPING_ERRORS > times.sum():
        return None
    part = {key: _part(found, key) for key in ("limit", "before", "after", "open", "close")}
    written = np.where(part["before"] != "", part["before"], part["after"])
    spelled, places = np.unique(np.where(known, written, ""), return_inverse=True)
    units = np.array([_spelled(one) for one in spelled.tolist()])[places]
    if (known & ((part["open"] != "") != (part["close"] != ""))).any():
        return None  # a bracket that is not closed
    if (known & (part["before"] != "") & (part["after"] != "")).any():
        return None
    unit = _one_unit(units, known & ~_zero(found), times, name, source)
    if unit is None:
        return None
    plain = _as_plain(found, part["open"] != "")
    limited = known & (part["limit"] != "")
    plain = pc.if_else(pa.array(limited), nothing(), plain)
    plain = pc.if_else(pa.array(known), plain, coded.dictionary)  # typing errors stay what they are
    taken = plain.take(coded.indices)
    return Written(pa.chunked_array([taken]), unit, int(times[limited].sum()))


def _part(found: Any, key: str) -> NDArray[np.str_]:
    return np.asarray(pc.fill_null(found.field(key), "").to_pylist(), dtype=np.str_)


def _zero(found: Any) -> NDArray[np.bool_]:
    return np.asarray(
        pc.fill_null(pc.match_substring_regex(found.field("number"), "^[0.,]+$"), False)
    )


def _one_unit(
    units: NDArray[np.str_],
    known: NDArray[np.bool_],
    times: NDArray[np.int64],
    name: str,
    source: str,
) -> str | None:
    found, places = np.unique(units[known], return_inverse=True)
    if len(found) < 2:
        return str(found[0]) if len(found) else ""
    counts = np.bincount(places, times[known])
    named = found[found != ""]
    kinds = {_kind(one) for one in named.tolist()}
    without = counts[found == ""].sum()
    if len(kinds) > 1 or 2 * without > counts.sum():
        return None
    most = np.argsort(-counts, kind="stable")[:2]
    told = [f"{int(counts[k])} in {found[k] or 'no unit'}" for k in most]
    raise TableError(
        f"column {name!r} of {source} has numbers in several units: {' and '.join(told)}",
        code="FK-UNITS-DIFFER",
    )


def _spelled(unit: str) -> str:
    text = unit.replace("μ", "µ").lower().translate(_RAISED)
    text = _POWER.sub(r"10^\1/", text) if _POWER.match(text) else text.replace("^", "")
    parts = re.split("(/| per )", text)
    text = "".join("/" if one == " per " else _SAME.get(one, one) for one in parts)
    return re.sub(r"(?<![a-z])([µmdncf]?)l(?![a-z])", r"\1L", text)


def _kind(unit: str) -> str:
    return "rate" if "/" in unit else _KIND_OF.get(unit.lower().rstrip("1234-"), unit)


def _as_plain(found: Any, negative: NDArray[np.bool_]) -> Any:
    numbers = pc.utf8_rtrim(found.field("number"), ".,")
    for where, what, new in _GROUPS:
        grouped = pc.match_substring_regex(numbers, where)
        numbers = pc.if_else(grouped, pc.replace_substring_regex(numbers, what, new), numbers)
    minus = pc.or_(
        *(
            pc.is_in(pc.fill_null(found.field(k), ""), value_set=texts(["-", "\u2212"]))
            for k in ("sign", "minus")
        )
    )
    minus = pc.xor(minus, pa.array(negative))
    return pc.if_else(minus, pc.binary_join_element_wise("-", numbers, ""), numbers)


# -- normalised columns

#: Different labels of text among which there may be numbers.
MOST_CLASSES = 20
_MARKS = ("?", "#N/A", "<NA>", "n/a")  # further marks of missing cells
_DECIMAL_COMMA = r"(?i)^[+-]?(\d+,\d*|,\d+)(e[+-]?\d+)?$"
_POINT = r"(?i)^[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?$"
#: Numbers with a comma or a point, and those that may have a thousands mark.
_FRACTIONS = (
    (",", _DECIMAL_COMMA, r"^[+-]?[1-9]\d{0,2},\d{3}$"),
    (".", _POINT, r"^[+-]?[1-9]\d{0,2}\.\d{3}$"),
)


class Plain(NamedTuple):
    """Normalised columns.

    Attributes
    ----------
    columns : dict
        Name -> cells.
    notes : tuple of str
        What was unusual.
    units : dict
        Name -> unit of its numbers, if any.
    """

    columns: dict[str, Any]
    notes: tuple[str, ...]
    units: dict[str, str]


def read_plainly(
    columns: dict[str, Any],
    names: Iterable[str],
    source: str,
    dialect: Dialect,
    *,
    tsv: bool,
    labels: Collection[str] = (),
) -> Plain:
    """Normalise columns, and note what was unusual.

    Text is trimmed, and null if missing. Numbers get a decimal point and lose units, thousands
    marks and accounting brackets; a limit such as <0.5 becomes missing. A dash is missing among
    numbers. Decimal commas are detected in CSV files only. If commas also separate the columns,
    such numbers must be quoted, and numbers with possible thousands marks are not used for
    detection. Few distinct values of a label column are classes, such as 5 mg and 10 mg.

    Raises
    ------
    TableError
        There are decimal commas and points, or several units.
    """
    read, units, notes = dict[str, Any](), dict[str, str](), list[str]()
    marks, limits = dict[str, int](), dict[str, int]()
    for name in names:
        cells = read[name] = _without_marks(plain_cells(columns[name]), dialect.na, marks)
        if name in labels and dialect.class_of:
            read[name] = _named(cells, dialect.class_of, name, source)
            continue
        classes = name in labels and len(cells.unique()) <= MOST_CLASSES
        written = None if classes else read_written(cells, name, source)
        if written is not None:
            read[name] = written.cells
            if written.unit:
                units[name] = written.unit
            if written.limits:
                limits[name] = written.limits
    if dialect.decimal is not None:  # what is no decimal mark may be one of thousands
        read = {name: _without_thousands(cells, dialect.decimal) for name, cells in read.items()}
    commas: Collection[str] = read if dialect.decimal == "," else ()
    if dialect.decimal is None and dialect.sep is not None:
        commas = _with_commas(read, source, dialect.sep)
    read |= {name: _with_points(read[name], name, source) for name in commas}
    if dialect.sep not in (None, "\t" if tsv else ","):
        notes.append(f"columns separated by {SEPARATORS.get(dialect.sep, 'the given mark')}")
    if commas:
        some = f" in {listing(commas)}" if len(commas) < len(read) else ""
        notes.append(f"a decimal comma{some}")
    notes += [f"{times} cells {mark!r}, taken as missing" for mark, times in marks.items()]
    told = [f"{source} has {' and '.join(notes)}"] if notes else []
    if units:
        told.append(
            f"numbers with a unit: {listing(f'{name!r} in {u}' for name, u in units.items())}"
        )
    told += [
        f"{times} cells of {name!r} are limits such as <0.5: taken as missing"
        for name, times in limits.items()
    ]
    return Plain({**columns, **read}, tuple(told), units)


def _without_marks(cells: Any, na: tuple[str, ...], marks: dict[str, int]) -> Any:
    if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
        read = [parse_numbers(pa.chunked_array([[mark]]))[0] for mark in na]
        numbers = [float(found[0]) for found in read if found is not None]
        if not numbers:
            return cells
        absent = pa.array(np.isin(cells.cast(pa.float64(), safe=False).to_numpy(), numbers))
        _count_marks(cells, absent, marks)
        return pc.if_else(absent, pa.scalar(None, cells.type), cells)
    if not pa.types.is_string(cells.type):
        return cells
    absent = pc.is_in(cells, value_set=texts([*_MARKS, *na]))
    _count_marks(cells, absent, marks)
    cells = pc.if_else(absent, nothing(), cells)
    dash = pc.is_in(cells, value_set=texts(["-"]))
    if pc.any(dash).as_py():
        less = pc.if_else(dash, nothing(), cells)
        if less.null_count < len(less) and _all_numbers(less):
            _count_marks(cells, dash, marks)
            return less
    return cells


def _count_marks(cells: Any, absent: Any, marks: dict[str, int]) -> None:
    for one in pc.value_counts(cells.filter(absent)).to_pylist():
        mark = str(one["values"])
        marks[mark] = marks.get(mark, 0) + one["counts"]


def _all_numbers(cells: Any) -> bool:
    values, _ = parse_numbers(pc.replace_substring_regex(cells, _DECIMAL_COMMA, "0"))
    return values is not None


def _named(cells: Any, names: tuple[tuple[str, str], ...], column: str, source: str) -> Any:
    if pa.types.is_floating(cells.type) and pc.all(pc.equal(pc.floor(cells), cells)).as_py():
        cells = cells.cast(pa.int64())
    cells = cells.cast(pa.string())
    known = {**{name: name for _, name in names}, **dict(names)}
    places = pc.index_in(cells, value_set=texts([*known]))
    if strange := places.null_count - cells.null_count:
        raise TableError(
            f"{strange} labels in column {column!r} of {source} have no class",
            code="FK-CLASSES-UNKNOWN",
        )
    return texts([*known.values()]).take(places.combine_chunks())


def _with_commas(columns: Mapping[str, Any], source: str, sep: str) -> list[str]:
    """Return the columns of numbers with a decimal comma.

    If all numbers of a column have three digits after their mark, it may be a thousands mark. Then
    the other columns decide.

    Raises
    ------
    TableError
        They do not decide.
    """
    if not any(_has_comma(cells) for cells in columns.values()):
        return []
    clear: dict[str, list[str]] = {",": [], ".": []}
    unclear: dict[str, list[str]] = {",": [], ".": []}
    for name, cells in columns.items():
        if not pa.types.is_string(cells.type) or not _all_numbers(cells):
            continue
        counts = {mark: (_count(cells, how), _count(cells, like)) for mark, how, like in _FRACTIONS}
        marks = [mark for mark, (numbers, _) in counts.items() if numbers]
        if len(marks) == 2:
            raise _mixed(source)
        for mark in marks:
            numbers, thousands = counts[mark]
            (unclear if numbers == thousands else clear)[mark].append(name)
    if sep == "," and not clear[","]:
        unclear[","] = []  # quoted numbers with possible thousands marks decide nothing
    if (unclear[","] and (clear["."] or unclear["."])) or (clear[","] and unclear["."]):
        raise _mixed(source)
    return clear[","] + unclear[","]


def _has_comma(cells: Any) -> bool:
    return pa.types.is_string(cells.type) and pc.any(pc.match_substring(cells, ",")).as_py()


def _without_thousands(cells: Any, decimal: Decimal) -> Any:
    mark, how, like = _FRACTIONS[decimal == ","]
    if not pa.types.is_string(cells.type) or not (numbers := _count(cells, how)):
        return cells
    mixed = _count(cells, _FRACTIONS[decimal != ","][1])  # then nothing is certain
    if mixed or numbers != _count(cells, like) or not _all_numbers(cells):
        return cells
    return pc.replace_substring(cells, mark, "")


def _mixed(source: str) -> TableError:
    return TableError(
        f"some numbers of {source} have a decimal comma, others a decimal point",
        code="FK-DECIMAL-MIXED",
    )


def _count(cells: Any, how: str) -> int:
    return pc.sum(pc.match_substring_regex(cells, how)).as_py() or 0


def _with_points(cells: Any, name: str, source: str) -> Any:
    if not pa.types.is_string(cells.type):
        return cells
    comma = pc.match_substring_regex(cells, _DECIMAL_COMMA)
    wrong = _count(cells, _POINT)
    if wrong and (pc.any(comma).as_py() or _all_numbers(cells)):  # else it is text, as versions are
        raise TableError(
            f"{wrong} cells of column {name!r} of {source} have a decimal point, not a comma",
            code="FK-DECIMAL-MIXED",
        )
    return pc.if_else(comma, pc.replace_substring(cells, ",", "."), cells)
