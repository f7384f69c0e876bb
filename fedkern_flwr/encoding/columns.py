"""Fitted columns: how the cells of one become numbers."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..errors import TableError
from .facts import MIN_ROWS, CategoryFacts, Floats, NumberFacts

#: How numbers are scaled.
Scale = Literal["rank", "standard", "range", "none"]
#: The same, or by the range where no value is far from the others, else by ranks.
Scaling = Literal[Scale, "auto"]
#: What becomes of a gap: the median and a column that says so, or NaN.
Gaps = Literal["encode", "keep"]

#: Up to so many categories become a column each.
MOST_COLUMNS = 20
#: Among which categories are that holders of a column count without their names.
BUCKETS = 2**14

DAY = 86400.0
PARTS = ("days", "weekday", "month", "hour")

_LARGEST = 1e150  # beyond it sums of squares overflow


@dataclass(frozen=True)
class Number:
    """Numbers, or booleans as 0 and 1.

    Attributes
    ----------
    name : str
        Name of the column.
    scale : {"rank", "standard", "range", "none"}
    gaps : {"encode", "keep"}
    facts : NumberFacts
        Of the rows to learn from.
    boolean : bool
        Whether cells are read as true or false.
    """

    name: str
    scale: Scale
    gaps: Gaps
    facts: NumberFacts
    boolean: bool = False

    @property
    def kind(self) -> str:
        """What it is."""
        return "boolean" if self.boolean else "number"

    @classmethod
    def fit(
        cls, name: str, values: Floats, scaling: Scaling, gaps: Gaps, *, boolean: bool = False
    ) -> Self:
        """Fit the values of rows, NaN or infinite where one is missing.

        Raises
        ------
        TableError
            Values are too large to be standardised or scaled by their range.
        """
        facts = NumberFacts.measure(values)
        large = max(-facts.least, facts.greatest) > _LARGEST
        scale: Scale = "range" if scaling == "auto" else scaling
        if scaling == "auto" and (facts.constant or facts.far or large):
            scale = "rank"
        if scale in ("standard", "range") and large:
            raise TableError(
                f"column {name!r} has values beyond {_LARGEST:g}", remedy="scale it by rank"
            )
        return cls(name, scale, gaps, facts, boolean)

    @property
    def useful(self) -> bool:
        """Whether the values say something: constant ones stay as they are in range and none."""
        known = self.facts.rows > self.facts.missing
        return known and (self.scale in ("range", "none") or not self.facts.constant)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it becomes."""
        return (self.name,) * self.useful + _indicator(self.name, self.facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
        """Return the outputs of rows, shape (n, outputs)."""
        known = np.isfinite(values)
        fill = self.facts.median if self.gaps == "encode" else np.nan
        found = [self._scaled(np.where(known, values, fill))] if self.useful else []
        return _stacked(found, known, self.facts, self.gaps)

    def _scaled(self, values: Floats) -> Floats:
        facts = self.facts
        if self.scale == "rank":
            return ranks(values, np.array(facts.knots))
        if self.scale == "standard":
            return (values - facts.mean) / (facts.deviation or 1.0)
        if self.scale == "range":
            width = facts.greatest - facts.least
            return np.clip((values - facts.least) / (width if width > 0 else 1.0), 0.0, 1.0)
        return values

    def explain(self) -> str:
        """Return what becomes of it, without a value."""
        how = {
            "rank": f"ranks of {self.facts.rows - self.facts.missing} values",
            "standard": "mean 0, deviation 1",
            "range": "0 to 1 by its range",
            "none": "as it is",
        }
        return _explained(how[self.scale] if self.useful else "constant", self.facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "scale": self.scale,
            "gaps": self.gaps,
            "facts": {**vars(self.facts), "knots": list(self.facts.knots)},
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        facts = _number_facts(values["facts"])
        boolean = values["kind"] == "boolean"
        return cls(str(values["name"]), values["scale"], values["gaps"], facts, boolean)


@dataclass(frozen=True)
class Date:
    """Dates in seconds since 1970: days since the first, weekday, month and hour.

    Attributes
    ----------
    name : str
        Name of the column.
    gaps : {"encode", "keep"}
    first : float
        The first date of the rows to learn from.
    parts : tuple of Number
        Days since the first, weekday (Monday is 0), month and hour.
    """

    kind: ClassVar[str] = "date"
    name: str
    gaps: Gaps
    first: float
    parts: tuple[Number, ...]

    @classmethod
    def fit(cls, name: str, values: Floats, scaling: Scaling, gaps: Gaps) -> Self:
        """Fit the dates of rows, NaN where one is missing."""
        first = float(np.fmin.reduce(values, initial=np.inf))
        first = first if np.isfinite(first) else 0.0
        parts = parts_of_dates(values, first)
        fitted = (
            Number.fit(f"{name}[{part}]", found, scaling, gaps)
            for part, found in zip(PARTS, parts, strict=True)
        )
        return cls(name, gaps, first, tuple(fitted))

    @property
    def _used(self) -> list[tuple[int, Number]]:
        """The parts that vary."""
        return [(k, one) for k, one in enumerate(self.parts) if not one.facts.constant]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it becomes."""
        names = tuple(part.name for _, part in self._used)
        return names + _indicator(self.name, self.parts[0].facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
        """Return the outputs of rows, shape (n, outputs)."""
        parts, known = parts_of_dates(values, self.first), np.isfinite(values)
        found = [part.transform(parts[k])[:, 0] for k, part in self._used]
        return _stacked(found, known, self.parts[0].facts, self.gaps)

    def explain(self) -> str:
        """Return what becomes of it, without a value."""
        parts = ", ".join(PARTS[k] for k, _ in self._used)
        return _explained(parts or "constant", self.parts[0].facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        own = {"kind": self.kind, "name": self.name, "gaps": self.gaps, "first": self.first}
        return {**own, "parts": [part.to_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        parts = tuple(Number.from_dict(part) for part in values["parts"])
        if len(parts) != len(PARTS):
            raise ValueError
        return cls(str(values["name"]), values["gaps"], float(values["first"]), parts)


@dataclass(frozen=True)
class Category:
    """Text: a column of 0 and 1 for each category, or how frequent it is where there are many.

    Attributes
    ----------
    name : str
        Name of the column.
    gaps : {"encode", "keep"}
    facts : CategoryFacts
        Of the rows to learn from, without rare categories.
    rare : int
        Categories that have too few rows.
    key : str
        In hexadecimal, where categories are told apart by their buckets.
    """

    kind: ClassVar[str] = "category"
    name: str
    gaps: Gaps
    facts: CategoryFacts
    rare: int
    key: str = field(default="", repr=False)

    @classmethod
    def fit(
        cls,
        name: str,
        codes: Floats,
        names: Sequence[str],
        gaps: Gaps,
        min_rows: int = MIN_ROWS,
    ) -> Self:
        """Fit the categories of rows, given by their positions among the names."""
        return cls.of(name, CategoryFacts.measure(codes, names), gaps, min_rows)

    @classmethod
    def of(cls, name: str, facts: CategoryFacts, gaps: Gaps, min_rows: int = MIN_ROWS) -> Self:
        """Make the column of its facts."""
        kept = {one: facts.counts[one] for one in sorted(facts.counts)}
        kept = {one: count for one, count in kept.items() if count >= min_rows}
        own = CategoryFacts(facts.rows, facts.missing, kept)
        return cls(name, gaps, own, len(facts.counts) - len(kept))

    @property
    def many(self) -> bool:
        """Whether there are too many for a column each."""
        return len(self.facts.counts) > MOST_COLUMNS

    @property
    def _values(self) -> list[str]:
        """Names of the columns, without that of gaps."""
        kinds = len(self.facts.counts) + bool(self.rare)
        if kinds < 2:
            return []
        if self.many:
            constant = not self.rare and len(set(self.facts.counts.values())) == 1
            return [] if constant else [f"{self.name}[frequency]"]
        names = [f"{self.name}[{k + 1}]" for k in range(len(self.facts.counts))]
        return names + [f"{self.name}[other]"] * bool(self.rare)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it becomes; they say no category."""
        return (*self._values, *_indicator(self.name, self.facts, self.gaps))

    def transform(self, codes: Floats, names: Sequence[str]) -> Floats:
        """Return the outputs of rows, shape (n, outputs).

        A category that is rare or unknown is one of the others; where there are no others, it has
        no column, or the frequency 0.
        """
        known, kept = np.isfinite(codes), list(self.facts.counts)
        if self.key:
            names = [str(bucket_of(bytes.fromhex(self.key), name)) for name in names]
        places = {name: k for k, name in enumerate(kept)}
        table = np.array([*(places.get(name, len(kept)) for name in names), len(kept)], np.intp)
        place = table[np.where(known, codes, len(names)).astype(np.intp)]
        found: list[Floats] = []
        if self._values and self.many:
            total = self.facts.rows - self.facts.missing
            shares = np.array([*(count / total for count in self.facts.counts.values()), 0.0])
            found = [shares[place]]
        elif self._values:
            found = [np.where(place == k, 1.0, 0.0) for k in range(len(self._values))]
        empty = np.nan if self.gaps == "keep" else 0.0
        found = [np.where(known, values, empty) for values in found]
        return _stacked(found, known, self.facts, self.gaps)

    def explain(self) -> str:
        """Return what becomes of it, without a category."""
        kept, rare = len(self.facts.counts), self.rare
        how = "their frequency" if self.many else "a column each"
        text = f"{kept} categories, {how}" if self._values else "says nothing"
        if self._values and rare:
            text += f"; {rare} rare ones are " + ("0" if self.many else "others")
        return _explained(text, self.facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        own = {"kind": self.kind, "name": self.name, "gaps": self.gaps, "rare": self.rare}
        return {**own, "facts": vars(self.facts)} | ({"key": self.key} if self.key else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        facts = values["facts"]
        counts = {str(name): int(count) for name, count in facts["counts"].items()}
        own = CategoryFacts(int(facts["rows"]), int(facts["missing"]), counts)
        key = bytes.fromhex(values.get("key", "")).hex()
        return cls(str(values["name"]), values["gaps"], own, int(values["rare"]), key)


Column = Number | Date | Category


def ranks(values: Floats, knots: Floats) -> Floats:
    """Return the share of rows below values, between 0 and 1, by values at equal ranks.

    Ties get the middle of their ranks, the least value 0 and the greatest 1. Values between two
    known ones are interpolated, others clipped. NaN stays NaN.
    """
    levels = np.linspace(0.0, 1.0, len(knots))
    above = np.interp(values, knots, levels)
    below = -np.interp(-values, -knots[::-1], -levels[::-1])
    found = np.where(values <= knots[0], 0.0, (above + below) / 2.0)
    return np.asarray(np.where(values >= knots[-1], 1.0, found))


def bucket_of(key: bytes, name: str) -> int:
    """Return the bucket of a category, which tells nothing of it without the key."""
    digest = hmac.digest(key, name.encode(), "sha256")
    return int.from_bytes(digest[:8], "big") % BUCKETS


def parts_of_dates(values: Floats, first: float) -> list[Floats]:
    """Return days, weekday, month and hour of seconds since 1970; NaN stays NaN."""
    known = np.isfinite(values)
    seconds = np.where(known, values, 0.0)
    day = np.floor(seconds / DAY).astype(np.int64)
    month = day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    hour = np.floor(seconds / 3600.0) % 24
    parts = ((seconds - first) / DAY, (day + 3) % 7, month, hour)
    return [np.where(known, part, np.nan) for part in parts]


def _stacked(
    found: list[Floats], known: Any, facts: NumberFacts | CategoryFacts, gaps: Gaps
) -> Floats:
    if _indicator("", facts, gaps):
        found = [*found, np.where(known, 0.0, 1.0)]
    return np.stack(found, axis=1) if found else np.empty((len(known), 0))


def _indicator(name: str, facts: NumberFacts | CategoryFacts, gaps: Gaps) -> tuple[str, ...]:
    """Return the name of the column that says where a cell is missing, if it varies."""
    varies = 0 < facts.missing < facts.rows
    return (f"{name}[missing]",) if varies and gaps == "encode" else ()


def _explained(text: str, facts: NumberFacts | CategoryFacts, outputs: tuple[str, ...]) -> str:
    if facts.missing:
        own = " (a column says so)" if outputs and outputs[-1].endswith("[missing]") else ""
        text += f"; missing in {facts.missing} of {facts.rows} rows{own}"
    return text if outputs else f"left out: {text}"


def _number_facts(values: dict[str, Any]) -> NumberFacts:
    floats = ("least", "median", "greatest", "mean", "deviation")
    knots = tuple(float(value) for value in values["knots"])
    rows, missing = int(values["rows"]), int(values["missing"])
    if any(a > b for a, b in pairwise(knots)) or (rows > missing) != bool(knots):
        raise ValueError
    own = {name: float(values[name]) for name in floats}
    return NumberFacts(rows=rows, missing=missing, knots=knots, **own)
