"""Fitted columns: how the cells of one become numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..errors import TableError
from .categories import Category
from .facts import Floats, NumberFacts
from .gaps import Gaps, explained, indicator, stacked

#: How numbers are scaled.
Scale = Literal["rank", "standard", "range", "none"]
#: The same; auto: by the range where no value is far from the others, else by ranks.
Scaling = Literal["auto", "rank", "standard", "range", "none"]

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
    unit : str
        Of the numbers, if the table has it in its cells.
    """

    name: str
    scale: Scale
    gaps: Gaps
    facts: NumberFacts
    boolean: bool = False
    unit: str = ""

    @property
    def kind(self) -> str:
        """What it is."""
        return "boolean" if self.boolean else "number"

    @classmethod
    def fit(
        cls, name: str, values: Floats, scaling: Scaling, gaps: Gaps, *, boolean: bool = False
    ) -> Self:
        """Fit the values of rows, NaN or infinite where one is missing; see :meth:`of`."""
        return cls.of(name, NumberFacts.measure(values), scaling, gaps, boolean=boolean)

    @classmethod
    def of(
        cls, name: str, facts: NumberFacts, scaling: Scaling, gaps: Gaps, *, boolean: bool = False
    ) -> Self:
        """Make the column of its facts.

        Raises
        ------
        TableError
            Values are too large to be standardised or scaled by their range.
        """
        large = max(-facts.least, facts.greatest) > _LARGEST
        scale: Scale = "range" if scaling == "auto" else scaling
        if scaling == "auto" and (facts.constant or facts.far or large):
            scale = "rank"
        if scale in ("standard", "range") and large:
            raise TableError(
                f"column {name!r} has values beyond {_LARGEST:g}",
                remedy="scale it by rank",
                code="FK-VALUES-LARGE",
            )
        if scale != "rank" and facts.knots:  # of a few rows the knots are all their values
            facts = replace(facts, knots=(facts.least, facts.greatest))
        return cls(name, scale, gaps, facts, boolean)

    @property
    def useful(self) -> bool:
        """Whether the values say something: constant ones stay as they are in range and none."""
        known = self.facts.rows > self.facts.missing
        return known and (self.scale in ("range", "none") or not self.facts.constant)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it becomes."""
        return (self.name,) * self.useful + indicator(self.name, self.facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
        """Return the outputs of rows, shape (n, outputs)."""
        known = np.isfinite(values)
        fill = self.facts.median if self.gaps == "encode" else np.nan
        found = [self._scaled(np.where(known, values, fill))] if self.useful else []
        return stacked(found, known, self.facts, self.gaps)

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

    def far(self, values: Floats) -> Any:
        """Return which values are further from those of the rows to learn from than these lie."""
        facts = self.facts
        width = facts.greatest - facts.least
        beyond = np.fmax(facts.least - values, values - facts.greatest)
        return np.isfinite(values) & (beyond > width) & (width > 0.0)

    def explain(self) -> str:
        """Return what becomes of it, without a value."""
        how = {
            "rank": f"ranks of {self.facts.rows - self.facts.missing} values",
            "standard": "mean 0, deviation 1",
            "range": "0 to 1 by its range",
            "none": "as it is",
        }
        text = how[self.scale] if self.useful else "constant"
        text += f", in {self.unit}" * bool(self.unit)
        return explained(text, self.facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kind": self.kind,
            "name": self.name,
            "scale": self.scale,
            "gaps": self.gaps,
            "facts": {**vars(self.facts), "knots": list(self.facts.knots)},
            **({"unit": self.unit} if self.unit else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned."""
        facts = _number_facts(values["facts"])
        boolean = values["kind"] == "boolean"
        unit = str(values.get("unit", ""))
        return cls(str(values["name"]), values["scale"], values["gaps"], facts, boolean, unit)


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
        return names + indicator(self.name, self.parts[0].facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
        """Return the outputs of rows, shape (n, outputs)."""
        parts, known = parts_of_dates(values, self.first), np.isfinite(values)
        found = [part.transform(parts[k])[:, 0] for k, part in self._used]
        return stacked(found, known, self.parts[0].facts, self.gaps)

    def far(self, values: Floats) -> Any:
        """Return which dates are further from those of the rows to learn from than these lie."""
        return self.parts[0].far(parts_of_dates(values, self.first)[0])

    def explain(self) -> str:
        """Return what becomes of it, without a value."""
        parts = ", ".join(PARTS[k] for k, _ in self._used)
        return explained(parts or "constant", self.parts[0].facts, self.outputs)

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


def parts_of_dates(values: Floats, first: float) -> list[Floats]:
    """Return days, weekday, month and hour of seconds since 1970; NaN stays NaN."""
    known = np.isfinite(values)
    seconds = np.where(known, values, 0.0)
    day = np.floor(seconds / DAY).astype(np.int64)
    month = day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    hour = np.floor(seconds / 3600.0) % 24
    parts = ((seconds - first) / DAY, (day + 3) % 7, month, hour)
    return [np.where(known, part, np.nan) for part in parts]


def _number_facts(values: dict[str, Any]) -> NumberFacts:
    floats = ("least", "median", "greatest", "mean", "deviation")
    knots = tuple(float(value) for value in values["knots"])
    rows, missing = int(values["rows"]), int(values["missing"])
    if any(a > b for a, b in pairwise(knots)) or (rows > missing) != bool(knots):
        raise ValueError
    own = {name: float(values[name]) for name in floats}
    return NumberFacts(rows=rows, missing=missing, knots=knots, **own)
