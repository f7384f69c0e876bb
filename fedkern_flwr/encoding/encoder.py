"""Encode a table of numbers and texts as a matrix of features within known ranges."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import write_atomically
from ..errors import OptionError, TableError
from ..plain_text import read_json
from ..tables.table import Kind, Note, Table, how_many, listing, shortened
from .columns import (
    MIN_ROWS,
    Categories,
    Category,
    CategoryFacts,
    Column,
    Date,
    Gaps,
    Number,
    Scaling,
    column_key,
)

# -- rare values, which a node merges with frequent ones before it adds to a sum
#
#
# The products of a binary column with all others reveal a single row with a 1 in it, and the count
# of a category reveals its single row. So a node hides everything with fewer than ``min_sum_rows``
# of its own rows, whatever the server requests. It does not rely on counts over all parties:
# colluding parties could subtract their own, and the counts would have to be opened first.

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """Category counts of a node's column, as far as they may be released.

    A count below ``least`` is reported as 0. A reported count changes only by at least ``least``,
    so that the difference of two runs hides as many rows.

    Attributes
    ----------
    names : dict
        Category -> rows. The first one also gets the remaining rows.
    gaps, others : int
        Rows without a category, and with rare ones.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    gaps: int = 0
    others: int = 0

    def follow(self, counts: Mapping[str, int], rows: int, least: int) -> Told:
        """Return the next releasable counts, for so many rows with these categories.

        >>> Told().follow({"flu": 40, "gout": 4}, 46, 5)
        Told(names={'flu': 40}, gaps=0, others=6)
        >>> Told({"flu": 40}).follow({"flu": 44, "gout": 5}, 49, 5)
        Told(names={'flu': 40, 'gout': 5}, gaps=0, others=0)
        """

        def settled(now: int, then: int) -> int:
            now = now if now >= least else 0
            return then if abs(now - then) < least else now

        ranked = dict(sorted(counts.items(), key=lambda one: -one[1]))
        known = {name: self.names.get(name, 0) for name in {**self.names, **ranked}}
        names = {name: settled(counts.get(name, 0), then) for name, then in known.items()}
        names = {name: count for name, count in names.items() if count}
        gaps = settled(rows - sum(counts.values()), self.gaps)
        return Told(names, gaps, settled(rows - sum(names.values()) - gaps, self.others))

    def fill(self, places: Mapping[str, int], size: int, rows: int, least: int) -> Floats:
        """Return the rows in each bucket, then the others.

        All rows except gaps are counted. Remaining rows count as the first category, so that no
        difference reveals them.

        >>> Told({"flu": 40}).fill({"flu": 0}, 2, 43, 5), Told().fill({}, 2, 3, 5)
        (array([43.,  0.,  0.]), array([0., 0., 0.]))
        """
        found = np.zeros(size + 1)
        for name in self.names if size else ():
            found[places[name]] += self.names[name]
        found[-1] = self.others if size else 0.0
        left = max(0, rows - self.gaps) - found.sum()
        while left < 0.0:  # some rows are gone, and the counts still contain them
            left += found.max()
            found[found.argmax()] = 0.0
        if found.any() or left >= least:
            found[places[next(iter(self.names))] if size and self.names else -1] += left
        return found


def merge_rows(x: Floats, least: int) -> Floats:
    """Return rows, (n, d), in which sums of products reveal no rare value of a column.

    A column becomes constant if at least half of the rows have one value and fewer than ``least``
    (``min_sum_rows``) another; 0 or 1 merges nothing. Neighbouring, mutually exclusive binary
    columns are one category: rows with none of them get the most frequent one if they are fewer
    than ``least``, else the sum of the columns would reveal them. Other combinations are not
    searched.
    """
    if least < 2:
        return x
    if len(x) < 3:  # too few rows to see which of two values is rare
        return np.zeros_like(x)
    below, above = (len(x) - 1) // 2, len(x) // 2
    ranked = np.partition(x, (below, above), axis=0)  # one of these is the majority value, if any
    halves = (x == ranked[below]).sum(axis=0) > (x == ranked[above]).sum(axis=0)
    middle = np.where(halves, ranked[below], ranked[above])
    others = (x != middle).sum(axis=0)
    rare = (others < least) & (2 * others <= len(x))
    out = np.where(rare, middle, x)
    low, high = out.min(axis=0), out.max(axis=0)
    on = (out == high) & (low < high)
    binary = (on | (out == low)).all(axis=0)
    start, covered = 0, np.zeros(len(x), bool)
    for stop in range(x.shape[1] + 1):
        ends = stop == x.shape[1] or not binary[stop]
        while start < stop and (ends or (covered & on[:, stop]).any()):
            if 0 < len(x) - covered.sum() < least:
                largest = start + int(on[:, start:stop].sum(axis=0).argmax())
                out[~covered, largest] = high[largest]
                on[~covered, largest] = covered[:] = True
            covered &= ~on[:, start]
            start += 1
        if ends:
            start = stop + 1
        else:
            covered |= on[:, stop]
    return out


# -- encoders: all columns of a table, fitted on training rows and applied to any rows

_SHOWN, _LONG = 3, 30  # cells per column in a note, and letters per cell

_TYPES: dict[str, type[Number] | type[Date] | type[Category]] = {
    "number": Number,
    "boolean": Number,
    "date": Date,
    "category": Category,
}


class Explanation(NamedTuple):
    """Encoding of a column.

    Attributes
    ----------
    column, kind : str
        Its name and kind.
    outputs : int
        Number of output columns.
    text : str
        How, without values and categories.
    """

    column: str
    kind: str
    outputs: int
    text: str


@dataclass(frozen=True)
class Encoder:
    """Fitted columns of a table.

    Attributes
    ----------
    columns : tuple of Number, Date or Category
        In the order of the table.
    """

    columns: tuple[Column, ...]

    @classmethod
    def fit(
        cls,
        table: Table,
        scaling: Scaling = "auto",
        gaps: Gaps = "encode",
        categories: Categories = "auto",
        *,
        key: bytes = b"",
        min_rows: int = MIN_ROWS,
    ) -> Self:
        """Fit the training rows.

        Parameters
        ----------
        table : Table
            Its held-out rows are not used.
        scaling : {"auto", "rank", "standard", "range", "none"} (default: "auto")
            Scaling of numbers, booleans and dates. Ranks are shares of the rows, 0 to 1; "auto" is
            "range", or "rank" for columns with outliers. "range" and "none" keep constant columns,
            the others drop them.
        gaps : {"encode", "keep"} (default: "encode")
            Missing cells become the median, marked by a further column, or stay NaN.
        categories : {"auto", "onehot", "frequency", "hashing"} (default: "auto")
            One column per category, the share of rows with it, or signed buckets of a keyed hash.
            "auto" is "onehot" up to 20 categories, else "frequency".
        key : bytes
            Of the hash; default random.
        min_rows : int (default: 5)
            Categories of fewer rows become "other", unless hashed.

        Raises
        ------
        TableError
            All columns are constant, or one is empty with gaps "keep".
        OptionError
            Unknown scaling or form of categories.
        """
        check_choices(scaling, categories)
        key = key or secrets.token_bytes(32)
        found: list[Column] = []
        for name, values in zip(table.columns, table.x.T, strict=True):
            kind = table.kinds.get(name, "number")
            if kind == "category":
                facts = CategoryFacts.measure(values, table.categories[name])
                own = column_key(key, name).hex() if categories == "hashing" else ""
                found.append(Category.of(name, facts, gaps, min_rows, categories, own))
            elif kind == "date":
                found.append(Date.fit(name, values, scaling, gaps))
            else:
                one = Number.fit(name, values, scaling, gaps, boolean=kind == "boolean")
                found.append(replace(one, unit=table.units.get(name, "")))
        if gaps == "keep":
            _refuse_empty(table)
        encoder = cls(tuple(found))
        if table.columns and not encoder.outputs:
            raise TableError("every feature column is constant", code="FK-COLUMNS-CONSTANT")
        return encoder

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, which contain no category."""
        return tuple(name for column in self.columns for name in column.outputs)

    @property
    def sources(self) -> NDArray[np.intp]:
        """For each output, the number of its column."""
        widths = [len(column.outputs) for column in self.columns]
        return np.repeat(np.arange(len(self.columns)), widths)

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column, for :func:`~fedkern_flwr.tables.load_table`."""
        return {column.name: column.kind for column in self.columns}  # type: ignore[misc]

    def left_out(self, table: Table) -> tuple[str, ...]:
        """Return notes on left-out columns, for the table's owner only: they show text cells."""
        constant, notes = list[str](), list[str]()
        for column in self.columns:
            cells = table.categories.get(column.name, ())[:_SHOWN]
            if column.outputs:
                continue
            if isinstance(column, Category) and len(cells) > 1:
                shown = ", ".join(repr(cell[:_LONG]) for cell in cells)
                text = f"fewer than {MIN_ROWS} rows have the same text"
                notes.append(
                    Note(
                        f"left out {column.name!r}: {text}, such as {shown}",
                        f"left out {column.name!r}: {text}",
                    )
                )
            else:
                constant.append(column.name)
        what = f"left out {how_many(len(constant), 'constant column')}: {listing(constant)}"
        return (*[what] * bool(constant), *shortened(notes))

    def transform(self, table: Table) -> NDArray[np.float64]:
        """Return the outputs of a table's rows, (n, outputs).

        Columns are matched by name; others are ignored.

        Raises
        ------
        TableError
            A column is missing or of another kind.
        """
        return self._transform(table, table.x)

    def apply(self, table: Table) -> Table:
        """Return a table of the outputs, with its held-out rows."""
        return replace(
            table,
            x=self.transform(table),
            x_test=None if table.x_test is None else self._transform(table, table.x_test),
            columns=self.outputs,
            kinds={},
            categories={},
        )

    def places(self, table: Table, source: str) -> dict[str, int]:
        """Return each column's position in a table, called ``source`` in errors (TableError)."""
        places = {name: k for k, name in enumerate(table.columns)}
        lacking = [column.name for column in self.columns if column.name not in places]
        if lacking:
            raise TableError(
                f"{source} lacks {how_many(len(lacking), 'column')} of the model, "
                f"the first is {lacking[0]!r}",
                remedy="give the columns of the training data",
                code="FK-COLUMN-MISSING",
            )
        return places

    def _transform(self, table: Table, x: NDArray[np.float64]) -> NDArray[np.float64]:
        places = self.places(table, "the table")
        for column in self.columns:
            if table.kinds.get(column.name, "number") != column.kind:
                raise TableError(
                    f"column {column.name!r} does not hold what it held in the training data",
                    remedy="read it with the kinds of the encoder",
                    code="FK-COLUMN-KIND",
                )
            unit, known = table.units.get(column.name, ""), getattr(column, "unit", "")
            if unit and known and unit != known:
                raise TableError(
                    f"column {column.name!r} is in {unit}, in the training data in {known}",
                    remedy="bring it to the unit of the training data",
                    code="FK-UNITS-DIFFER",
                )
        found = [
            column.transform(x[:, places[column.name]], table.categories.get(column.name, ()))
            for column in self.columns
        ]
        made = np.concatenate(found, axis=1) if found else np.empty((len(x), 0))
        # Another memory order would change rounding, and with it figures of the papers' runs.
        return np.asarray(made, order="C" if x.flags.c_contiguous else "F")

    def strange(self, table: Table) -> tuple[str, ...]:
        """Return notes on rows unlike the training rows, without values.

        One line each for rare or unknown categories, for values farther outside the training range
        than it is wide, and for new gaps.
        """
        places = self.places(table, "the table")
        categories, rare, far, gaps = [], False, [], []
        for column in self.columns:
            cells, count = table.x[:, places[column.name]], f"{column.name!r} in "
            if not column.outputs:
                continue
            if isinstance(column, Category):
                if found := int(column.unknown(cells, table.categories[column.name]).sum()):
                    categories.append(f"{count}{found}")
                    rare = rare or column.rare > 0
            elif found := int(column.far(cells).sum()):
                far.append(f"{count}{found}")
            facts = column.parts[0].facts if isinstance(column, Date) else column.facts
            if (
                column.gaps == "encode"
                and not facts.missing
                and (found := int((~np.isfinite(cells)).sum()))
            ):
                gaps.append(f"{count}{found}")
        what = "rare or unknown" if rare else "unknown"
        return tuple(
            f"{text}: {listing(found)} of {table.rows} rows"
            for text, found in (
                (f"{what} categories, taken as others", categories),
                ("values far outside those of training, so that predictions are guesses", far),
                ("gaps in columns that had none in training", gaps),
            )
            if found
        )

    def explain(self) -> list[Explanation]:
        return [
            Explanation(one.name, one.kind, len(one.outputs), one.explain()) for one in self.columns
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; JSON keeps every number exactly."""
        return {"columns": [column.to_dict() for column in self.columns]}

    def to_json(self) -> str:
        """Return JSON; it reveals much of the rows and must be protected like them."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Read what :meth:`to_dict` returned; TableError for anything else."""
        try:
            return cls(tuple(_TYPES[one["kind"]].from_dict(one) for one in values["columns"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise TableError(
                "this is not an encoder", remedy="fit it again", code="FK-FILE-FORMAT"
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote; TableError for anything else."""
        try:
            values = read_json(text)
        except ValueError:
            values = None
        return cls.from_dict(values)


def check_choices(scaling: Any, categories: Any) -> None:
    """Raise OptionError for an unknown scaling or form of categories."""
    for what, found, choices in (
        ("scaling", scaling, get_args(Scaling)),
        ("form of categories", categories, get_args(Categories)),
    ):
        if found not in choices:
            raise OptionError(
                f"there is no {what} {found!r}",
                remedy=f"choose of {', '.join(choices)}",
                code="FK-OPTION-CHOICE",
            )


def _refuse_empty(table: Table) -> None:
    empty = ~np.isfinite(table.x).any(axis=0)
    if empty.any():
        names: Sequence[str] = table.columns
        raise TableError(
            f"column {names[int(np.argmax(empty))]!r} is empty in all training rows"
            + (f" ({int(empty.sum())} columns are)" if empty.sum() > 1 else ""),
            code="FK-COLUMN-EMPTY",
        )


# -- encoders that a node keeps with its state, for later runs and predictions


class KeptEncoder:
    """The encoder of a block of columns: of the node's rows, or common to all holders.

    ``mark`` is a random number of the fit (a common encoder's is that of its run). Column names
    with it differ from those of another holder's encoder, and reveal nothing of the rows.
    ``epsilon`` is that of the noisy sums that it was made of, 0 if there was no noise.
    """

    def __init__(self, encoder: Encoder, mark: str, epsilon: float = 0.0) -> None:
        self.encoder, self.mark, self.epsilon = encoder, mark, epsilon

    @classmethod
    def fit(cls, path: Path, table: Table, scaling: Any = "auto", categories: Any = "auto") -> Self:
        """Fit a table's rows and save the encoder to a private file.

        Raises
        ------
        TableError
            The file cannot be written, or all columns are constant.
        OptionError
            Unknown scaling or form of categories.
        """
        encoder = Encoder.fit(table, scaling, categories=categories)
        kept = cls(encoder, secrets.token_hex(8))
        kept.write(path)
        return kept

    def write(self, path: Path) -> None:
        """Save the encoder to a private file; TableError if that fails."""
        text = json.dumps(self.to_dict())
        try:
            write_atomically(path, text.encode(), private=True)
        except OSError:
            raise TableError(
                "the file of the encoder cannot be written", code="FK-FILE-WRITE"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        noise = {"epsilon": self.epsilon} if self.epsilon else {}
        return {**self.encoder.to_dict(), "mark": self.mark, **noise}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the encoder of an earlier run, also from the ``result.json`` of a noisy summary.

        Raises
        ------
        TableError
            The file cannot be read, or has no encoder.
        """
        try:
            values = read_json(path.read_text())
            values = values.get("details", {}).get("encoder", values)
        except (OSError, ValueError, AttributeError):
            raise TableError(
                "the file of the encoder cannot be read", code="FK-FILE-READ"
            ) from None
        encoder = Encoder.from_dict(values)
        noise = values.get("epsilon")
        epsilon = float(noise) if isinstance(noise, (int, float)) else 0.0
        return cls(encoder, str(values.get("mark", "")), epsilon)

    def check_noise(self) -> None:
        """Refuse an encoder that shows rows, in a run with a budget of privacy.

        Raises
        ------
        OptionError
        """
        if not self.epsilon:
            raise OptionError(
                "privacy_epsilon does not hold for columns that are scaled by all rows",
                remedy="take the result.json of a summary with a budget, or public ranges",
                code="FK-BUDGET-SCALING",
            )

    def within(self, table: Table, gaps: Gaps = "encode") -> Self:
        """Return what it has of the columns of a table; noisy sums may be of further columns.

        Raises
        ------
        TableError
            A column of the table is none of them.
        """
        known, found = {one.name: one for one in self.encoder.columns}, list[Column]()
        for name in table.columns:
            if name not in known:
                raise TableError(
                    f"column {name!r} is not in the summary, whose quantiles are taken",
                    remedy="write it into the bounds of the summary, or leave it out here",
                    code="FK-COLUMN-MISSING",
                )
            one = replace(known[name], gaps=gaps)
            if isinstance(one, Number):
                one = replace(one, boolean=table.kinds.get(name) == "boolean")
            elif isinstance(one, Date):
                one = replace(one, parts=tuple(replace(part, gaps=gaps) for part in one.parts))
            found.append(one)
        return type(self)(Encoder(tuple(found)), self.mark, self.epsilon)

    def apply(self, table: Table) -> Table:
        return self.encoder.apply(table)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs, unique to this encoder."""
        return tuple(f"{name} of {self.mark}" for name in self.encoder.outputs)
