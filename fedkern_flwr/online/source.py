"""Sources of a stream's rows: an iterator, or a growing file.

A source keeps no state. The client stores the place and moves it once rows have taken part, so it
may be rebuilt for every message.
"""

from __future__ import annotations

import csv
import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError, TableError
from ..plain_text import read_json

#: Number of rows that a stream's client reports: each message takes its own number.
ROWS = 1 << 40
#: Reasons for too few rows, which the server may see.
LATE, ENDED = "its stream has too few new rows yet", "its stream has ended"

_LOOK = 0.2  # seconds between two checks for new rows
_HEAD = 1024  # bytes that identify a file
_SEPARATORS = ",;\t|"
_MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
_WORDS = {"true": 1.0, "false": 0.0}
_GAP, _TEXT = "with gaps", "with text where numbers are"
_AGAIN = "with the id of another"
_WIDTH, _SHAPE = "with another number of cells", "that are none"
_UNIX = "unix:"
_LOCAL = ("127.0.0.1", "localhost", "[::1]")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """How far a stream has been read.

    Attributes
    ----------
    offset : int
        Bytes of a file, or items of an iterator.
    head : str
        Digest of the beginning of the file.
    skipped : int
        Unusable rows so far.
    """

    offset: int = 0
    head: str = ""
    skipped: int = 0


@dataclass(frozen=True)
class Found:
    """Rows of a stream, and the place after them.

    Attributes
    ----------
    x, y : ndarray, shape (n, d) and (n,)
    ids : list of str or None
    place : Place
    skipped : Counter
        Reasons why rows were unusable.
    ended : bool
        Whether no others will come.
    anew : bool
        Whether the file was replaced since the last read.
    """

    x: Floats
    y: Floats
    ids: list[str] | None
    place: Place
    skipped: Counter[str] = field(default_factory=Counter)
    ended: bool = False
    anew: bool = False


@runtime_checkable
class Source(Protocol):
    """Interface of a stream's rows."""

    def names(self, wait: float) -> tuple[str, ...]:
        """Return the names of the features; wait up to ``wait`` seconds."""

    def take(self, place: Place, rows: int, wait: float) -> Found:
        """Return up to ``rows`` rows after a place; wait up to ``wait`` seconds."""


class IteratorSource:
    """Rows of an iterator of (features, label); None means that no row is ready yet.

    Create it anew for every message (it skips up to the place), or pass one object to all clients.
    ``columns`` are the names of the features.
    """

    def __init__(self, rows: Iterable[Any], columns: Sequence[str] = ()) -> None:
        self._rows, self._columns = iter(rows), tuple(columns)
        self._ahead: deque[Any] = deque()  # items that were read and not used yet
        self._first = 0  # place of the first of them

    def names(self, wait: float) -> tuple[str, ...]:
        """Return the names of the features, by default x0, x1, ..."""
        if self._columns:
            return self._columns
        found = self.take(Place(self._first), 1, wait)
        return tuple(f"x{k}" for k in range(found.x.shape[1]))

    def take(self, place: Place, rows: int, wait: float) -> Found:
        """Return the next rows after a place."""
        deadline, found = time.monotonic() + wait, _Rows(rows, width=len(self._columns))
        number, ended = place.offset, False
        if number < self._first:
            raise TableError(
                "the iterator of the stream is past the rows that are asked for",
                remedy="make it anew with the client, or keep one IteratorSource for all",
                code="FK-STREAM-PAST",
            )
        while self._first < number and (self._ahead or self._read(deadline)):
            self._ahead.popleft()
            self._first += 1
        at = 0
        while len(found.y) < rows:
            if at == len(self._ahead) and not self._read(deadline):
                ended = self._over
                break
            item, at, number = self._ahead[at], at + 1, number + 1
            if problem := _pair(item, found.width):
                found.why[problem] += 1
            else:
                found.width = len(item[0])  # of the first row, without column names
                found.put(item[0], float(item[1]))
        after = Place(number, skipped=place.skipped + found.why.total())
        return found.result(after, ended=ended, anew=False)

    _over = False

    def _read(self, deadline: float) -> bool:
        while True:
            item = next(self._rows, self)
            self._over = item is self
            if item is not None:
                break
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(_LOOK, max(0.0, deadline - time.monotonic())))
        if not self._over:
            self._ahead.append(item)
        return not self._over


@dataclass(frozen=True)
class FileSource:
    """Rows of a CSV or JSONL file, one per line, that may grow while it is read.

    A last line without a line end waits. A file that begins differently, or is shorter than what
    was read, is new and read from its beginning.

    Parameters
    ----------
    path : Path
        A CSV file begins with column names, a JSONL file with ``{``.
    label : str
        The column to predict.
    id_column : str, optional
        The column of row ids.
    columns : sequence of str, optional
        The features, in order; by default all other columns (of JSONL's first line).
    sep, decimal : str, optional
        CSV delimiter, by default detected, and decimal mark.
    na : str
        Further marks of missing cells, separated by commas.
    follow : bool (default: True)
        Whether further rows may come.
    """

    path: Path
    label: str
    id_column: str | None = None
    columns: tuple[str, ...] = ()
    sep: str | None = None
    decimal: str = "."
    na: str = ""
    follow: bool = True

    def names(self, wait: float) -> tuple[str, ...]:
        """Return the names of the features; TableError if the file or its label is missing."""
        deadline = time.monotonic() + wait
        while not (head := self._head()):
            if time.monotonic() >= deadline:
                raise self._unfit(
                    "has no first line yet", "start what writes it", "FK-STREAM-EMPTY"
                )
            time.sleep(_LOOK)
        return self._layout(head)[1]

    def take(self, place: Place, rows: int, wait: float) -> Found:
        """Return the next rows after a place."""
        deadline, found = time.monotonic() + wait, _Rows(rows)
        start, anew = place, False
        while True:
            known = self._known(place)
            if not known:
                place = start = Place(skipped=start.skipped)
                found, anew = _Rows(rows), True
            place = self._read(place, found)
            if len(found.y) == rows or time.monotonic() >= deadline:
                break
            time.sleep(min(_LOOK, max(0.0, deadline - time.monotonic())))
        place = replace(place, skipped=start.skipped + found.why.total())
        few = len(found.y) < rows
        return found.result(place, ended=few and not self.follow, anew=anew)

    # -- the file

    def _head(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                line = file.readline()
        except OSError as error:
            if self.follow and isinstance(error, FileNotFoundError):
                return b""
            raise self._unfit("cannot be read", "check its path", "FK-FILE-READ") from None
        return line if line.endswith(b"\n") else b""

    def _known(self, place: Place) -> bool:
        return not place.head or self._digest(place.offset) == place.head

    def _digest(self, offset: int) -> str:
        try:
            with self.path.open("rb") as file:
                begin = file.read(min(offset, _HEAD))
                if file.seek(0, 2) < offset:
                    return "shorter"
        except OSError:
            return "gone"
        return hashlib.blake2b(begin, digest_size=16).hexdigest()

    def _read(self, place: Place, found: _Rows) -> Place:
        head = self._head()
        if not head:
            return place
        cells, names, width = self._layout(head)
        offset = place.offset
        if not offset and not head.lstrip().startswith(b"{"):
            offset = len(head)
        with self.path.open("rb") as file:
            file.seek(offset)
            for line in file:
                if len(found.y) == found.most or not line.endswith(b"\n"):
                    break
                offset += len(line)
                text = line.decode("utf-8", "replace").strip()
                if text:
                    self._add(found, cells(text), names, _WIDTH if width else _SHAPE)
        return replace(place, offset=offset, head=self._digest(offset)) if offset else place

    def _add(
        self, found: _Rows, cells: Mapping[str, Any] | None, names: Sequence[str], bad: str
    ) -> None:
        found.width = len(names)
        if cells is None:
            found.why[bad] += 1
            return
        wanted = [self._number(cells.get(name)) for name in (*names, self.label)]
        problems = [one for one in wanted if isinstance(one, str)]
        name = "" if self.id_column is None else str(cells.get(self.id_column, "")).strip()
        if self.id_column is not None and (not name or name in found.ids):
            problems.append(_AGAIN if name else _GAP)
        if problems:
            found.why[problems[0]] += 1
            return
        *features, target = (float(one) for one in wanted)
        found.put(features, target, name)

    def _layout(self, head: bytes) -> tuple[Callable[[str], Any], tuple[str, ...], int]:
        text = head.decode("utf-8-sig", "replace").strip()
        read: Callable[[str], Any] = _json_cells
        width = 0
        if text.startswith("{"):
            columns = tuple(_json_cells(text) or ())
        else:
            tab = "\t" if self.sep == "tab" else self.sep
            sep = tab or max(_SEPARATORS, key=text.count)
            columns = tuple(name.strip() for name in next(csv.reader([text], delimiter=sep)))
            width = len(columns)

            def read(line: str) -> Any:
                row = next(csv.reader([line], delimiter=sep), [])
                return dict(zip(columns, row, strict=True)) if len(row) == width else None

        for name in (self.label, self.id_column, *self.columns):
            if name is not None and name not in columns:
                problem = f"has no column {name!r}"
                raise self._unfit(problem, "name those in its first line", "FK-COLUMN-MISSING")
        others = (self.label, self.id_column)
        return read, self.columns or tuple(n for n in columns if n not in others), width

    def _number(self, cell: Any) -> float | str:
        if isinstance(cell, str):
            text = cell.strip()
            if text.lower() in _MISSING or text in self.na.split(","):
                return _GAP
            if text.lower() in _WORDS:
                return _WORDS[text.lower()]
            cell = text.replace(self.decimal, ".") if self.decimal != "." else text
        if cell is None:
            return _GAP
        try:
            value = float(cell)
        except (TypeError, ValueError):
            return _TEXT
        return value if math.isfinite(value) else _GAP

    def _unfit(self, problem: str, remedy: str, code: str) -> TableError:
        return TableError(f"the stream {self.path.name} {problem}", remedy=remedy, code=code)


@dataclass
class _Rows:
    most: int
    x: list[Any] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    width: int = 0

    def put(self, features: Any, target: float, name: str = "") -> None:
        self.x.append(features)
        self.y.append(target)
        self.ids.append(name)

    def result(self, place: Place, *, ended: bool, anew: bool) -> Found:
        x = np.array(self.x, np.float64).reshape(len(self.y), self.width)
        named = self.ids if any(self.ids) else None
        return Found(x, np.array(self.y), named, place, self.why, ended, anew)


def _pair(item: Any, width: int) -> str:
    try:
        features, label = np.asarray(item[0], np.float64), float(item[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return _TEXT
    if features.ndim != 1 or (width and len(features) != width):
        return _WIDTH
    return "" if np.isfinite(features).all() and math.isfinite(label) else _GAP


def _json_cells(line: str) -> dict[str, Any] | None:
    try:
        found = read_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


# -- the file of a stream: the node's own, or that of its feeder for rows from a socket


class Address(NamedTuple):
    """Where rows come in: a Unix socket, or a port of this machine."""

    path: str
    port: int = 0


def read_address(stream: str | Path) -> Address | None:
    """Return the socket that a stream names, None if it names a file.

    Raises
    ------
    OptionError
        The address is invalid, or other machines could reach it.
    """
    text = str(stream)
    if text.startswith(_UNIX):
        if len(text) == len(_UNIX):
            raise OptionError(
                "the stream names no socket", remedy='write "unix:/path"', code="FK-STREAM-SOCKET"
            )
        return Address(text.removeprefix(_UNIX))
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or "/" in text:
        return None
    if host not in _LOCAL:
        raise OptionError(
            f"the stream is to come from {host}: rows are taken from this machine only",
            remedy='write "127.0.0.1:PORT" or "unix:/path"',
            code="FK-STREAM-HOST",
        )
    if not 0 < int(port) < 1 << 16:
        raise OptionError(
            f"there is no port {port}", remedy="write one of 1 to 65535", code="FK-STREAM-SOCKET"
        )
    return Address("", int(port))


def spool_file(state_dir: Path, partition: int) -> Path:
    """Return the file into which a feeder writes a socket's rows."""
    return state_dir / f"stream-{partition}.rows"


def open_stream(
    stream: str | Path, state_dir: Path | None, partition: int, *, label: str | None, **how: Any
) -> FileSource:
    """Return the rows of a file, or of a socket (from its feeder's file).

    Raises
    ------
    OptionError
        Without a label, or a socket without a folder for its rows.
    """
    if label is None:
        raise OptionError(
            "the stream has no label", remedy="name the column to predict", code="FK-LABELS-MISSING"
        )
    path = Path(stream)
    if read_address(stream) is not None:
        if state_dir is None:
            raise OptionError(
                "a socket needs a folder of the node",
                remedy="name it as state_dir",
                code="FK-STREAM-FOLDER",
            )
        path = spool_file(state_dir, partition)
    return FileSource(path, label, **how)


def fed_by_socket(config: Mapping[str, Any]) -> tuple[Address, Path] | None:
    """Return socket and file of a node's feeder, None if it needs none; raise OptionError."""
    address = read_address(str(config.get("stream", "")))
    if address is None:
        return None
    if not config.get("state-dir"):
        raise OptionError(
            "a socket needs a folder of the node",
            remedy="name it as state-dir",
            code="FK-STREAM-FOLDER",
        )
    return address, spool_file(Path(str(config["state-dir"])), int(config.get("partition-id", 0)))
