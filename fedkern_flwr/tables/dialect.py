"""Detect the format of a text file: delimiter, quotes, encoding, header."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from ..errors import OptionError
from .table import SEPARATORS, Dates, how_many

# -- how a text file is written: its encoding, what parts its columns, its decimal mark, its dates

Decimal = Literal[".", ","]

#: Options that say how a file is written, on the command line, of nodes and of saved models.
DIALECT = ("sep", "decimal", "na", "dates", "header", "class_of")

_SAMPLE = 1 << 18  # characters from which the delimiter is detected
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how a file in UTF-16 begins
_LATIN = "cp1252"  # what text files without Unicode are in most often


@dataclass(frozen=True)
class Dialect:
    """The format of a file; None for detected.

    See :func:`fedkern_flwr.tables.load_table` for the attributes.
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
        """Read the options :data:`DIALECT`; None, "" and missing ones are detected.

        A tab may be written as a word, and marks as one text with commas.
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
        """Return it with the delimiter of a text file."""
        if self.sep is not None:
            return self
        return replace(self, sep="\t" if file_kind(path) == ".tsv" else find_separator(path))


def read_class_of(text: str | Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Read labels and their classes, such as ``0=no,1=yes``; a label without a class is its own."""
    parts = text.split(",") if isinstance(text, str) else text
    pairs = [part.partition("=")[::2] for part in parts if part.strip()]
    return tuple((label.strip(), name.strip() or label.strip()) for label, name in pairs)


_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def file_kind(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of a compression."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix if path.suffix else ""


def encoding_of(path: Path) -> str:
    """Return the codec of a text file: ``utf-16``, ``utf-8-sig`` or ``cp1252``."""
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
    with _binary(path) as file:
        encoding = "utf-16" if file.read(2) in _UTF16 else "utf-8-sig"
    return io.TextIOWrapper(_binary(path), encoding=encoding, errors="replace", newline="")


def find_separator(path: Path) -> str:
    """Return the delimiter that gives the most columns, equally in all lines."""
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
    """Return which line of a text file has more or fewer cells than the first; "" if none."""
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
