"""Define the table that methods use: columns with kinds, rows with ids, labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ColumnError, TableError

#: The order of dates such as 03/04/2024; iso: none but those such as 2024-04-03 are dates.
Dates = Literal["day-first", "month-first", "iso"]
#: What to do with rows that have an empty, NaN or infinite cell; kept ones are NaN. Those that are
#: to be encoded are kept as long as label, id and site are there.
Missing = Literal["error", "drop-row", "keep", "encode"]
#: What a column holds.
Kind = Literal["number", "boolean", "date", "category"]


#: What parts the columns of text files.
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_DROP_ROWS = "use --missing drop-row"
_SHOWN = 5  # hints about columns


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """The rows of one party.

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
        Site of each row (integers or text).
    x_test, y_test : NDArray[np.float64], shapes (t, d) and (t,), or None (default: None)
        Test rows of the file.
    notes : tuple[str, ...] (default: ())
        What was done to the data, for the user.
    kinds : mapping (default: {})
        Kinds of columns other than numbers: "boolean" (0 and 1), "date" (seconds since 1970) or
        "category". An :class:`~fedkern_flwr.encoding.Encoder` turns them into features.
    categories : mapping (default: {})
        Column -> names of its categories; a cell is a position in them.
    classes : tuple[str, ...] (default: ())
        Names of the classes of a text label; a label is a position in them.
    units : mapping (default: {})
        Column of numbers -> unit in the file, such as kg.
    places : NDArray[np.int64], shape (n,), or None (default: None)
        Number of each row in the file, from 0; None without a file.
    weights : NDArray[np.float64], shape (n,), or None (default: None)
        Weight of each row, if a single party learns from the labels. Default: equal weights.
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
    """Return a table with the label as last column: a category if it is a class.

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


def _positions(values: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    places = np.searchsorted(found, values).astype(np.float64)
    return np.asarray(np.where(np.isfinite(values), places, np.nan))


def copies(ids: NDArray[Any], columns: Sequence[Any]) -> NDArray[np.bool_]:
    """Return which rows repeat an earlier one: same id, and same value in each column."""
    _, of, times = np.unique(ids, return_inverse=True, return_counts=True)
    again, seen = np.zeros(len(ids), bool), set[Any]()
    for row in np.flatnonzero((times[of] > 1) & (ids != "")).tolist():
        cells = (ids[row], *(_plain(column[row]) for column in columns))
        again[row] = cells in seen
        seen.add(cells)
    return again


def _plain(cell: Any) -> Any:
    """Make equal cells of arrays and of PyArrow comparable, including missing ones."""
    return cell.tobytes() if isinstance(cell, (np.ndarray, np.generic)) else str(cell)


def copies_note(count: int, source: str) -> tuple[str, ...]:
    return (f"{count} rows of {source} stand twice, cell by cell: used once",) * bool(count)


def select_target(table: Table, target: str) -> Table:
    """Use the feature column ``target`` (a name or an index) as label, the others as features.

    Raises
    ------
    TableError
        There is no such column, or no feature would remain.
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
        raise TableError("the target is the only feature column", code="FK-COLUMNS-NONE")
    return replace(
        _keep_columns(table, np.arange(d) != index),
        y=table.x[:, index].copy(),
        y_test=None if table.x_test is None else table.x_test[:, index].copy(),
        label=table.columns[index],
        classes=table.categories.get(table.columns[index], ()),
    )


def shortened(hints: Sequence[str]) -> tuple[str, ...]:
    more = len(hints) - _SHOWN
    return (*hints[:_SHOWN], *([f"{more} more columns of text are so"] if more > 0 else []))


class Note(str):
    """A note that shows cells to the table's owner; ``plain`` is the text without them."""

    plain: str

    def __new__(cls, text: str, plain: str = "") -> Self:
        found = super().__new__(cls, text)
        found.plain = plain
        return found


def plain_notes(notes: Iterable[str]) -> list[str]:
    """Return notes without cells, for files that others may read."""
    return [note.plain if isinstance(note, Note) else note for note in notes]


def choose_columns(table: Table, use: Sequence[str], ignore: Sequence[str]) -> Table:
    """Return a table with the feature columns ``use`` (default: all) except ``ignore``."""
    for name in (*use, *ignore):
        if name not in table.columns:
            raise no_such("feature column", name, "the data", table.columns)
    keep = chosen(table.columns, use, ignore)
    if not keep:
        raise TableError("no feature column is left", code="FK-COLUMNS-NONE")
    return _keep_columns(table, np.isin(table.columns, keep))


def chosen(names: Iterable[str], use: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """Return the names that are used (default: all) and not ignored."""
    return [name for name in names if name not in ignore and (name in use or not use)]


def drop_constant_columns(table: Table) -> Table:
    """Drop feature columns with a single value, and note their names.

    Raises
    ------
    TableError
        Every column is constant.
    """
    constant = table.x.min(axis=0) == table.x.max(axis=0)
    if not constant.any():
        return table
    if constant.all():
        raise TableError("every feature column is constant", code="FK-COLUMNS-CONSTANT")
    names = [name for name, drop in zip(table.columns, constant, strict=True) if drop]
    plural = "s" if len(names) > 1 else ""
    note = f"dropped {len(names)} constant column{plural}: {listing(names)}"
    return replace(_keep_columns(table, ~constant), notes=(*table.notes, note))


def listing(names: Any) -> str:
    names = [" ".join(str(name).split()) for name in names]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


def no_such(kind: str, name: str, source: str, names: Any) -> ColumnError:
    """Return the error for a missing name; the most similar name comes first in its remedy."""
    names = [str(one) for one in names]
    remedy = choices(name, names)
    for mark, word in SEPARATORS.items() if len(names) == 1 else ():
        if mark in names[0]:
            option = "tab" if mark == "\t" else f"'{mark}'"
            remedy = f"{word} seem to part its columns: use --sep {option}"
    return ColumnError(f"{source} has no {kind} {name!r}", remedy=remedy, code="FK-COLUMN-MISSING")


def choices(name: str, names: Sequence[str]) -> str:
    """Return the remedy for an unknown name; the most similar name comes first."""
    meant = near(name, names)
    listed = listing([*meant, *(one for one in names if one not in meant)])
    return "".join(f"did you mean {one!r}? " for one in meant) + f"choose from: {listed}"


def how_many(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def near(name: str, names: Iterable[str]) -> list[str]:
    """Return the most similar name, ignoring case and spaces, if any."""
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
    if encode and (infinite := np.isinf(table.x)).any():
        table = replace(table, x=np.where(infinite, np.nan, table.x))
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
        raise TableError(f"every row of {source} has a missing cell", code="FK-VALUES-NOROW")
    what = "without a label, an id or a site" if encode else "with missing or infinite cells"
    note = f"dropped {dropped} of {table.rows} rows of {source} {what}"
    return replace(table.take(~bad), notes=(*table.notes, note))


def is_number(text: str) -> bool:
    """Return whether a text is a number for Python."""
    try:
        float(text)
    except ValueError:
        return False
    return True
