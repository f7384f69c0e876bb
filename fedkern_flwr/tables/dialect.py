"""How a file of text is written: separators, quotes, encodings, headers."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, TableError
from .table import SEPARATORS, Dates, how_many, listing, nothing, parse_numbers, plain_cells, texts
from .written import read_written

# -- what a column of text may have been meant to be: numbers or dates that are written otherwise

_NUMBER = r"(?i)^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$"
_COMMA = r"(?i)^[+-]?(\d+,\d*|,\d+|\d{1,3}([.,]\d{3})+([.,]\d+)?)(e[+-]?\d+)?$"
_LIMIT = r"^[<>≤≥]=? *[+-]?\d+([.,]\d+)?$"
_YEAR_LAST = r"\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2})|\d{1,2}[. -]+[A-Za-z]{3,9}[., -]+\d{4}"
_DATE = rf"^(\d{{4}}[./-]\d{{1,2}}[./-]\d{{1,2}}|{_YEAR_LAST})([T ,]+\d{{1,2}}:.*)?$"
_SHOWN = 5


def hint(
    column: str, names: Sequence[str], places: NDArray[np.float64], decimal: str | None = None
) -> tuple[str, ...]:
    """Return a note if half of the cells or more look like numbers or dates; it quotes no cell.

    Of numbers with a decimal comma, where a point was asked for, it is a warning.

    Parameters
    ----------
    column : str
        Its name.
    names : sequence of str
        The different cells.
    places : ndarray of float64, shape (n,)
        Positions of the n cells among them, NaN where one is missing.
    decimal : str or None
        The decimal mark that was asked for.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pa.array(names, pa.string())
    times = np.bincount(places[np.isfinite(places)].astype(np.intp), minlength=len(names))
    known = int(times.sum())

    def count(how: str) -> int:
        return int(times[pc.match_substring_regex(cells, how).to_numpy(zero_copy_only=False)].sum())

    dates = count(_DATE)
    if known and 2 * dates >= known:
        text = f"{dates} of {known} cells look like dates; write them as YYYY-MM-DD"
        return (f"{column!r} is read as text: {text}",)
    commas, limits = count(_COMMA), count(_LIMIT)
    numbers = commas + count(_NUMBER)
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


def shortened(hints: Sequence[str]) -> tuple[str, ...]:
    """Return the first hints, and how many columns are like these."""
    more = len(hints) - _SHOWN
    return (*hints[:_SHOWN], *([f"{more} more columns of text are so"] if more > 0 else []))


# -- how a text file is written: its encoding, what parts its columns, its decimal mark, its dates

Decimal = Literal[".", ","]

#: Options that say how a file is written, on the command line, of nodes and of saved models.
DIALECT = ("sep", "decimal", "na", "dates", "header", "class_of")

#: Different labels of text among which there may be numbers.
MOST_CLASSES = 20
_SAMPLE = 1 << 18  # characters of which the separator is told
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how a file in UTF-16 begins
_LATIN = "cp1252"  # what text files without Unicode are in most often
_MARKS = ("?", "#N/A", "<NA>", "n/a")  # beside those that say nothing but that a cell is missing
_DECIMAL_COMMA = r"(?i)^[+-]?(\d+,\d*|,\d+)(e[+-]?\d+)?$"
_POINT = r"(?i)^[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?$"
#: Numbers with a comma or a point, and those whose mark may be one of thousands.
_FRACTIONS = (
    (",", _DECIMAL_COMMA, r"^[+-]?[1-9]\d{0,2},\d{3}$"),
    (".", _POINT, r"^[+-]?[1-9]\d{0,2}\.\d{3}$"),
)


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
    dates : {"day-first", "month-first", "iso"} or None
        The order of dates such as 03/04/2024.
    header : bool or None
        Whether the first line has the names of the columns.
    class_of : tuple of (str, str)
        Labels of the file, and the class that each is.
    """

    sep: str | None = None
    decimal: Decimal | None = None
    na: tuple[str, ...] = ()
    dates: Dates | None = None
    header: bool | None = None
    class_of: tuple[tuple[str, str], ...] = ()

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
        if self.dates not in (None, *get_args(Dates)):
            raise OptionError(
                f"dates is {str(self.dates)[:40]!r}",
                remedy=f"choose {', '.join(get_args(Dates))}",
                code="FK-OPTION-CHOICE",
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Read options: a tab may be written as a word, marks as one text with commas.

        Parameters
        ----------
        options : mapping
            :data:`DIALECT` -> what was given; None, "" and what is not there are found out.
        """
        given = {key: value for key in DIALECT if (value := options.get(key)) not in (None, "", ())}
        if "sep" in given:
            given["sep"] = {"tab": "\t", "\\t": "\t"}.get(given["sep"], given["sep"])
        marks = given.get("na", ())
        marks = marks.split(",") if isinstance(marks, str) else marks
        given["na"] = tuple(mark.strip() for mark in marks if mark.strip())
        if "class_of" in given:
            given["class_of"] = read_class_of(given["class_of"])
        if (header := given.get("header")) is not None and not isinstance(header, bool):
            if (word := str(header).lower()) not in _WORDS:
                raise OptionError(
                    f"header is {word[:40]!r}", remedy="use true or false", code="FK-OPTION-CHOICE"
                )
            given["header"] = _WORDS[word]
        return cls(**given)

    def of_file(self, path: Path) -> Self:
        """Return it with the separator of a text file."""
        if self.sep is not None:
            return self
        return replace(self, sep="\t" if file_kind(path) == ".tsv" else find_separator(path))


def read_class_of(text: str | Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Read labels and their classes, such as ``0=no,1=yes``; a label alone is its own class."""
    parts = text.split(",") if isinstance(text, str) else text
    pairs = [part.partition("=")[::2] for part in parts if part.strip()]
    return tuple((label.strip(), name.strip() or label.strip()) for label, name in pairs)


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def file_kind(path: Path) -> str:
    """Return the suffix of a file in small letters, without that of its compression."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix if path.suffix else ""


def encoding_of(path: Path) -> str:
    """Return how a text file is encoded: UTF-16 if it says so, UTF-8 if it is that, else Latin-1.

    Returns
    -------
    str
        The name of a codec: ``utf-16``, ``utf-8-sig`` or ``cp1252``.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _binary(path) as file:
        block = file.read(_SAMPLE)
        if block.startswith(_UTF16):
            return "utf-16"
        try:
            while block:
                decoder.decode(block)
                block = file.read(1 << 22)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return _LATIN
    return "utf-8-sig"


def _binary(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _open(path: Path) -> io.TextIOWrapper:
    """Open a text file to look at its lines."""
    with _binary(path) as file:
        encoding = "utf-16" if file.read(2) in _UTF16 else "utf-8-sig"
    return io.TextIOWrapper(_binary(path), encoding=encoding, errors="replace", newline="")


def find_separator(path: Path) -> str:
    """Tell what parts the columns of a text file: what gives most of them, equally in all lines."""
    with _open(path) as file:
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
    with _open(path) as file:
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


class Plain(NamedTuple):
    """Columns whose cells are as everywhere.

    Attributes
    ----------
    columns : dict
        Name -> cells.
    notes : tuple of str
        What was not as everywhere.
    units : dict
        Name -> the unit of its numbers, of those that have one.
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
    """Return columns whose cells are as everywhere, and notes of what was not.

    Text is trimmed, null where it is missing, and has a point as decimal mark. Numbers have no
    unit, no mark of thousands and no bracket for a minus; one beyond a limit is missing. A dash is
    a missing cell where all others are numbers. Files other than CSV have a decimal point unless
    told. Where commas part the columns too, numbers with a decimal comma stand in quotes, and those
    that may have marks of thousands tell nothing.

    Parameters
    ----------
    columns : dict
        Name -> cells, as the file has them.
    names : iterable of str
        Which of them are read.
    source : str
        Name of the file, for errors.
    dialect : Dialect
        How it is written.
    tsv : bool
        Whether tabs part its columns by its suffix.
    labels : collection of str
        Columns of labels. Few different ones are classes, such as 5 mg and 10 mg.

    Raises
    ------
    TableError
        There are decimal commas and points, or numbers in several units.
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
    """Return a column without marks of missing cells, which are counted in ``marks``."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
    import pyarrow.compute as pc

    for one in pc.value_counts(cells.filter(absent)).to_pylist():
        mark = str(one["values"])
        marks[mark] = marks.get(mark, 0) + one["counts"]


def _all_numbers(cells: Any) -> bool:
    import pyarrow.compute as pc

    values, _ = parse_numbers(pc.replace_substring_regex(cells, _DECIMAL_COMMA, "0"))
    return values is not None


def _named(cells: Any, names: tuple[tuple[str, str], ...], column: str, source: str) -> Any:
    """Return the classes of labels.

    Raises
    ------
    TableError
        A label has no class.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(cells.type) and pc.all(pc.equal(pc.floor(cells), cells)).as_py():
        cells = cells.cast(pa.int64())
    cells = cells.cast(pa.string())
    known = {**{name: name for _, name in names}, **dict(names)}
    places = pc.index_in(cells, value_set=texts([*known]))
    if strange := places.null_count - cells.null_count:
        raise TableError(
            f"{strange} labels in column {column!r} of {source} have no class",
            remedy="name every label, such as --classes 0=no,1=yes",
            code="FK-CLASSES-UNKNOWN",
        )
    return texts([*known.values()]).take(places.combine_chunks())


def _with_commas(columns: Mapping[str, Any], source: str, sep: str) -> list[str]:
    """Return the columns of numbers with a decimal comma.

    Where all numbers of a column have three digits behind their mark it may be one of thousands:
    then the other columns of the file tell.

    Raises
    ------
    TableError
        They do not tell.
    """
    import pyarrow as pa

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
        unclear[","] = []  # numbers in quotes that may have marks of thousands tell nothing
    if (unclear[","] and (clear["."] or unclear["."])) or (clear[","] and unclear["."]):
        raise _mixed(source)
    return clear[","] + unclear[","]


def _has_comma(cells: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pa.types.is_string(cells.type) and pc.any(pc.match_substring(cells, ",")).as_py()


def _without_thousands(cells: Any, decimal: Decimal) -> Any:
    """Return a column without marks of thousands, if each of its numbers may have one."""
    import pyarrow as pa
    import pyarrow.compute as pc

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
        remedy="say which it is with --decimal; the other then marks thousands where it can",
        code="FK-DECIMAL-MIXED",
    )


def _count(cells: Any, how: str) -> int:
    import pyarrow.compute as pc

    return pc.sum(pc.match_substring_regex(cells, how)).as_py() or 0


def _with_points(cells: Any, name: str, source: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(cells.type):
        return cells
    comma = pc.match_substring_regex(cells, _DECIMAL_COMMA)
    wrong = _count(cells, _POINT)
    if wrong and (pc.any(comma).as_py() or _all_numbers(cells)):  # else it is text, as versions are
        raise TableError(
            f"{wrong} cells of column {name!r} of {source} have a decimal point, not a comma",
            remedy="remove marks of thousands, or use --decimal .",
            code="FK-DECIMAL-MIXED",
        )
    return pc.if_else(comma, pc.replace_substring(cells, ",", "."), cells)
