"""Columns of a table as numbers: gaps, bins, categories, dates."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import TableError

# -- facts of a column, measured on rows

Floats = NDArray[np.float64]

#: Values are far if the range is so many times as wide as without 1 % at each end, or as the middle
#: half of the values.
FAR, SKEWED = 3.0, 10.0
#: Number of quantiles kept of a column; with fewer rows all values are kept.
KNOTS = 1000
#: A category with fewer rows counts as "other".
MIN_ROWS = 5
#: Larger ratios of medians are reported: the units may differ.
UNLIKE = 8.0


@dataclass(frozen=True)
class NumberFacts:
    """Facts of a column of numbers.

    Attributes
    ----------
    rows, missing : int
        All rows, and those without a value.
    least, median, greatest, mean, deviation : float
        Of the values; 0 without values.
    knots : tuple of float
        Quantiles at equal ranks, ascending, from the least value to the greatest.
    """

    rows: int
    missing: int
    least: float
    median: float
    greatest: float
    mean: float
    deviation: float
    knots: tuple[float, ...]

    @classmethod
    def measure(cls, values: Floats) -> Self:
        known = np.sort(values[np.isfinite(values)])
        n = len(known)
        if not n:
            return cls(len(values), len(values), 0.0, 0.0, 0.0, 0.0, 0.0, ())
        places = np.rint(np.linspace(0, n - 1, min(n, KNOTS))).astype(np.intp)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(known.mean()), float(known.std())
        return cls(
            rows=len(values),
            missing=len(values) - n,
            least=float(known[0]),
            median=float(known[(n - 1) // 2] / 2.0 + known[n // 2] / 2.0),
            greatest=float(known[-1]),
            mean=mean,
            deviation=deviation,
            knots=tuple(known[places].tolist()),
        )

    @property
    def constant(self) -> bool:
        return self.least == self.greatest

    @property
    def far(self) -> bool:
        """Whether some values are so far from the others that their range says little."""
        cut, half = 1 + len(self.knots) // 100, len(self.knots) // 4
        near, wide = self.knots[cut:-cut], self.greatest - self.least
        middle = self.knots[-half - 1] - self.knots[half]
        skewed = wide > SKEWED * middle > 0.0  # if half of the values are equal, this is no sign
        return bool(near) and (skewed or wide > FAR * (near[-1] - near[0]))


def other_scale(values: Floats, facts: NumberFacts) -> float:
    """Return the ratio of a party's median to that of all, 0 if they are alike.

    They differ if the median of all is outside the middle half of the party's values and the
    medians differ by more than :data:`UNLIKE`: the party may use another unit.
    """
    known = values[np.isfinite(values)]
    if len(known) < MIN_ROWS or not facts.median:
        return 0.0
    low, middle, high = np.quantile(known, [0.25, 0.5, 0.75])
    times = float(middle / facts.median)
    unlike = times > UNLIKE or 0.0 < times < 1.0 / UNLIKE
    return times if unlike and not low <= facts.median <= high else 0.0


@dataclass(frozen=True)
class CategoryFacts:
    """Facts of a column of categories.

    Attributes
    ----------
    rows, missing : int
        All rows, and those without a category.
    counts : dict
        Category -> rows.
    """

    rows: int
    missing: int
    counts: dict[str, int]

    @classmethod
    def measure(cls, codes: Floats, names: Sequence[str]) -> Self:
        known = codes[np.isfinite(codes)].astype(np.intp)
        counts = np.bincount(known, minlength=len(names)).tolist()
        found = {name: count for name, count in zip(names, counts, strict=True) if count}
        return cls(len(codes), len(codes) - len(known), found)


# -- gaps: the column that marks missing cells, and its explanation

#: Treatment of gaps: the median and a column that marks them, or NaN.
Gaps = Literal["encode", "keep"]


def indicator(name: str, facts: NumberFacts | CategoryFacts, gaps: Gaps) -> tuple[str, ...]:
    """Return the name of the column that marks missing cells, if it varies."""
    varies = 0 < facts.missing < facts.rows
    return (f"{name}[missing]",) if varies and gaps == "encode" else ()


def stacked(
    found: Sequence[Floats], known: Any, facts: NumberFacts | CategoryFacts, gaps: Gaps
) -> Floats:
    if indicator("", facts, gaps):
        found = [*found, np.where(known, 0.0, 1.0)]
    return np.stack(found, axis=1) if found else np.empty((len(known), 0))


def explained(text: str, facts: NumberFacts | CategoryFacts, outputs: tuple[str, ...]) -> str:
    if facts.missing:
        own = " (a column says so)" if outputs and outputs[-1].endswith("[missing]") else ""
        text += f"; missing in {facts.missing} of {facts.rows} rows{own}"
    return text if outputs else f"left out: {text}"


# -- refined histograms: quantiles of the values of many holders, from two sums
#
#
# The bins of the first sum are public: powers of two below the bound. The sum also has the mean
# phases of the values on circles with lengths of powers of two. On a circle much longer than the
# column is wide the phases agree; on a much shorter one they cancel out. Followed from the longest
# circle down, as long as the mean phase has a length of at least one half, they show where most
# values are and how wide they are spread, independently of a few outliers.
#
#
# The bins of the second sum split those of the first: evenly about the mean and about that place,
# and by the rows of a bin, one more bin for five evenly spread rows. If all values have at most
# three decimals, second bins end between two such values, and a bin of one value represents it
# exactly.

_REACH = 40  # powers of two below the bound
_EVEN = 65  # edges about the mean, and about where most values are
_LEAST = 0.2  # weight of other parts of a first bin
_AGREE = 0.5  # length of the mean phase at which most values are within the circle
_WIDE, _HALVES = 16, 20  # even bins of a range, and how often a part near zero is halved

#: Bins of the first histogram, tested numbers of decimals, circles; most bins that the second
#: histogram adds by rows.
COARSE, DECIMALS, CIRCLES, SPLITS = 2 * _REACH, 4, 40, 512


def coarse_edges(bound: float) -> Floats:
    far = bound * 2.0 ** -np.arange(_REACH)
    return np.concatenate([-far, [0.0], far[:0:-1], [np.nextafter(bound, np.inf)]])


def range_edges(low: float, high: float) -> Floats:
    """Return the edges of the public bins of a range: even ones, and ever finer ones near zero.

    A column with a few values far from the others has these in bins of their own; what is zero in
    most rows is in a bin without the others. A row is in one bin, however many there are.
    """
    near = (high - low) * 2.0 ** -np.arange(_WIDE.bit_length(), _HALVES + 1.0)
    middle = min(max(0.0, low), high)
    found = np.concatenate([np.linspace(low, high, _WIDE + 1), middle - near, middle + near])
    found = np.unique(found[(found >= low) & (found <= high)])
    if low % 1.0 == high % 1.0 == 0.0 and high - low >= _WIDE:
        # values may be whole numbers, so that a wide bin ends between two of them
        wide = (found > low) & (found < high) & (abs(found - middle) > 1.0)
        found[wide] = np.floor(found[wide]) + 0.5
    return np.unique(found)


def fine_edges(
    counts: Floats,
    decimals: int,
    about: tuple[float, float],
    place: Floats,
    bound: float,
    most: int = SPLITS,
    each: float = MIN_ROWS,
) -> Floats:
    """Return the edges of the second bins of a column, ascending.

    ``counts`` are those of the first bins, ``about`` the mean and a number not below the deviation,
    ``place`` what :func:`read_phases` returned; ``most`` bins at most, of ``each`` rows on average,
    are added by splitting the first bins by their rows.
    """
    edges, n = coarse_edges(bound), max(float(counts.sum()), 1.0)
    windows = [(about[0], 4.0 * about[1]), (float(place[0]), float(place[1]) / 2.0)]
    within = [middle + half * np.linspace(-1.0, 1.0, _EVEN) for middle, half in windows]
    cuts = np.unique(np.clip(np.concatenate([edges, *within]), -bound, edges[-1]))
    own = np.searchsorted(edges, cuts[:-1], side="right") - 1
    width = np.diff(cuts)
    weight = _LEAST * width / np.bincount(own, width, COARSE)[own]
    for (_, half), part in zip(windows, within, strict=True):
        weight += (cuts[:-1] >= part[0]) * (cuts[1:] <= part[-1]) * width / (2.0 * half)
    weight *= counts[own] / np.bincount(own, weight, COARSE)[own]
    splits = min(most, n // each) / n
    parts = np.diff(np.rint(splits * np.cumsum(weight)), prepend=0.0).astype(np.intp) + 1
    # empty bins are not counted again: one bin up to the next non-empty one
    used = counts[own] > 0.0
    first = used | np.append(True, used[:-1])
    parts = np.where(used, parts, 1)[first]
    starts = cuts[:-1][first]
    steps = np.append(starts, cuts[-1])
    if decimals >= 0:
        steps = np.ceil(steps * 10.0**decimals)
    inside = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    inner = np.repeat(np.diff(steps), parts) * inside / np.repeat(parts, parts)
    if decimals >= 0:
        inner = np.floor(inner) - 0.5
    found = np.append(np.repeat(steps[:-1], parts) + inner, steps[-1] - 0.5 * (decimals >= 0))
    return np.unique(found / 10.0 ** max(decimals, 0))


def sum_phases(values: Floats, bound: float, circles: int = CIRCLES) -> Floats:
    """Return the sums of the values' cosines and sines on circles, (2 circles,)."""
    known = values[~np.isnan(values)]
    turns = [2.0 * np.pi * (known / length % 1.0) for length in _lengths(bound)[:circles]]
    return np.array([part(one).sum() for part in (np.cos, np.sin) for one in turns])


def read_phases(sums: Floats, count: float, bound: float) -> Floats:
    """Return where most values are, and the last circle on which they agree."""
    cosines, sines = sums.reshape(2, -1) / max(count, 1.0)
    found = np.array([0.0, 4.0 * bound])
    for length, cosine, sine in zip(_lengths(bound), cosines, sines, strict=False):
        if np.hypot(cosine, sine) < _AGREE:
            break
        place = np.arctan2(sine, cosine) / (2.0 * np.pi) * length
        found[:] = place + np.rint((found[0] - place) / length) * length, length
    return found


def _lengths(bound: float) -> Floats:
    return np.asarray(4.0 * bound * 2.0 ** -np.arange(CIRCLES))


def circle_lengths(bound: float, circles: int) -> Floats:
    """Return the lengths of circles, from the longest on, each half of the one before.

    They are a little longer than the bound says, so that it is within the first quarter.
    """
    return np.asarray(4.0 * bound * (1.0 + 2.0**-40) * 2.0 ** -np.arange(circles))


def count_arcs(values: Floats, bound: float, circles: int) -> Floats:
    """Return the number of values in each quarter of circles, shape (circles, 4)."""
    turns = values[np.isfinite(values)] / circle_lengths(bound, circles)[:, None] % 1.0
    quarters = np.minimum(4.0 * turns, 3.0).astype(np.intp)
    return np.array([np.bincount(one, minlength=4) for one in quarters]).reshape(circles, 4)


def count_bins(values: Floats, edges: Floats) -> Floats:
    """Count the values in each bin; those outside are in the outermost, NaN in none."""
    known = values[~np.isnan(values)]
    places = np.searchsorted(edges[1:-1], known, side="right")
    return np.bincount(places, minlength=len(edges) - 1).astype(np.float64)


def count_strays(values: Floats) -> Floats:
    """Return how many values have more than 0, 1, 2 and 3 decimals."""
    known, units = values[~np.isnan(values)], 10.0 ** np.arange(DECIMALS)[:, None]
    strays: NDArray[np.intp] = (np.rint(known * units) / units != known).sum(axis=1)
    return strays.astype(np.float64)


def decimals_of(strays: Floats) -> int:
    """Return the decimals of all values, -1 if some have more than three."""
    return int(np.argmin(strays)) if strays.min() == 0.0 else -1


def binned_facts(
    edges: Floats, counts: Floats, decimals: int, rows: int, mean: float, deviation: float
) -> NumberFacts:
    """Return the facts of a column, assuming values spread evenly in each bin.

    ``decimals`` are of all values, -1 for more; ``rows`` include those without a value.
    """
    ends = np.cumsum(counts).astype(np.int64)
    n, unit = int(ends[-1]), 10.0 ** max(decimals, 0)

    def values(places: Floats) -> Floats:
        if decimals < 0 and not deviation:
            return np.full(len(places), mean)
        k = np.searchsorted(ends, places, side="right")
        within = (places - (ends[k] - counts[k]) + 0.5) / counts[k]
        found = edges[k] + within * (edges[k + 1] - edges[k])
        return np.asarray(found if decimals < 0 else np.rint(found * unit) / unit)

    knots = values(np.rint(np.linspace(0, n - 1, min(n, KNOTS))))
    low, high = values(np.array([(n - 1) // 2, n // 2], np.float64)) / 2.0
    return NumberFacts(
        rows=rows,
        missing=rows - n,
        least=float(knots[0]),
        median=float(low + high),
        greatest=float(knots[-1]),
        mean=mean,
        deviation=deviation,
        knots=tuple(np.maximum.accumulate(knots).tolist()),
    )


# -- fitted columns of categories: a column each, their frequency, or signed buckets

#: Encoding of categories; auto: a column each up to ``MOST_COLUMNS``, else their frequency.
Categories = Literal["auto", "onehot", "frequency", "hashing"]

#: Most categories with a column each.
MOST_COLUMNS = 20
#: Columns for hashed categories.
HASHED = 32
#: Buckets in which holders count categories without their names.
BUCKETS = 2**14


@dataclass(frozen=True)
class Category:
    """Text: a column of 0 and 1 per category, their frequency, or signed buckets.

    A hashed category is -1 or 1 in one of a fixed number of columns, else 0, by a keyed hash of its
    name, scaled to 0 to 1. Over random keys, products of two categories average 0, so many can
    share few columns. Unknown categories are hashed too; no name is kept.

    Attributes
    ----------
    name : str
        Name of the column.
    gaps : {"encode", "keep"}
    facts : CategoryFacts
        Of the training rows, without rare categories; without all if hashed.
    rare : int
        Categories with too few rows, or hashed; a lower bound if holders merged some.
    how : {"onehot", "frequency", "hashing"}
    key : str
        Hexadecimal; for hashed categories or those identified by buckets.
    """

    kind: ClassVar[str] = "category"
    name: str
    gaps: Gaps
    facts: CategoryFacts
    rare: int
    how: Categories
    key: str = field(default="", repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        facts: CategoryFacts,
        gaps: Gaps,
        min_rows: int = MIN_ROWS,
        how: Categories = "auto",
        key: str = "",
        merged: int = 0,
    ) -> Self:
        """Make the column from its facts; ``merged`` further categories are not among them."""
        kept = {one: facts.counts[one] for one in sorted(facts.counts)}
        kept = {one: count for one, count in kept.items() if count >= min_rows}
        if how == "auto":
            how = "frequency" if len(kept) > MOST_COLUMNS else "onehot"
        if how == "hashing":
            kept = {}
        own = CategoryFacts(facts.rows, facts.missing, kept)
        return cls(name, gaps, own, len(facts.counts) - len(kept) + merged, how, key)

    @property
    def _values(self) -> list[str]:
        if self.how == "hashing":
            return [f"{self.name}[hash {k + 1}]" for k in range(HASHED)] if self.rare > 1 else []
        if len(self.facts.counts) + bool(self.rare) < 2:
            return []
        if self.how == "frequency":
            constant = not self.rare and len(set(self.facts.counts.values())) == 1
            return [] if constant else [f"{self.name}[frequency]"]
        names = [f"{self.name}[{k + 1}]" for k in range(len(self.facts.counts))]
        return names + [f"{self.name}[other]"] * bool(self.rare)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self._values, *indicator(self.name, self.facts, self.gaps))

    def transform(self, codes: Floats, names: Sequence[str]) -> Floats:
        """Return the outputs of rows, (n, outputs).

        A rare or unknown category counts as "other" (without others: no column, or frequency 0), or
        is hashed.
        """
        known = np.isfinite(codes)
        rows = np.where(known, codes, len(names)).astype(np.intp)
        found = self._cells(rows, names) if self._values else []
        if self.gaps == "keep":
            found = [np.where(known, values, np.nan) for values in found]
        return stacked(found, known, self.facts, self.gaps)

    def _cells(self, rows: Any, names: Sequence[str]) -> list[Floats]:
        if self.how == "hashing":
            table = np.full((len(names) + 1, HASHED), 0.5)
            for k, name in enumerate(names):
                bucket, sign = signed_bucket(bytes.fromhex(self.key), name)
                table[k, bucket] = (1 + sign) / 2
            return list(table[rows].T)
        names, kept = self._kept_as(names), list(self.facts.counts)
        places = {name: k for k, name in enumerate(kept)}
        missing = len(kept) + 1  # in no column
        place = np.array([*(places.get(name, len(kept)) for name in names), missing], np.intp)[rows]
        if self.how == "onehot":
            return [np.where(place == k, 1.0, 0.0) for k in range(len(self._values))]
        total = self.facts.rows - self.facts.missing
        shares = np.array([*(count / total for count in self.facts.counts.values()), 0.0, 0.0])
        return [shares[place]]

    def unknown(self, codes: Floats, names: Sequence[str]) -> Any:
        """Return which rows have a rare or unknown category; none if categories are hashed."""
        if self.how == "hashing" or not self._values:
            return np.zeros(len(codes), bool)
        known = np.append(np.isin(self._kept_as(names), list(self.facts.counts)), True)
        return ~known[np.where(np.isfinite(codes), codes, len(names)).astype(np.intp)]

    def _kept_as(self, names: Sequence[str]) -> Sequence[str]:
        """Map names to the kept ones, ignoring case, or to their buckets."""
        key = bytes.fromhex(self.key)
        if key:
            return [str(bucket_of(key, name)) for name in names]
        spelled = {name.casefold(): name for name in self.facts.counts}
        return [spelled.get(name.casefold(), name) for name in names]

    def explain(self) -> str:
        """Explain the encoding without naming a category."""
        kept, rare = len(self.facts.counts), self.rare
        text = f"{kept} categories, "
        if not self._values:
            text = f"fewer than {MIN_ROWS} rows have the same text" if self.rare > 1 else "constant"
        elif self.how == "hashing":
            text = f"{rare} categories, hashed to {HASHED} columns"
        else:
            frequent = self.how == "frequency"
            text += "their frequency" if frequent else "a column each"
            text += f"; {rare} rare ones are {'0' if frequent else 'others'}" if rare else ""
        return explained(text, self.facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        own = {"kind": self.kind, "name": self.name, "gaps": self.gaps, "rare": self.rare}
        own |= {"how": self.how, "facts": vars(self.facts)}
        return own | ({"key": self.key} if self.key else {})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        facts = values["facts"]
        counts = {str(name): int(count) for name, count in facts["counts"].items()}
        own = CategoryFacts(int(facts["rows"]), int(facts["missing"]), counts)
        key = bytes.fromhex(values.get("key", "")).hex()
        how: Any = values.get("how") or ("frequency" if len(counts) > MOST_COLUMNS else "onehot")
        if how not in get_args(Categories)[1:]:
            raise ValueError
        return cls(str(values["name"]), values["gaps"], own, int(values["rare"]), how, key)


def column_key(secret: bytes, name: str) -> bytes:
    """Return the key of the hash of a column's categories."""
    return hmac.digest(secret, f"fedkern-flwr categories/{name}".encode(), "sha256")


def bucket_of(key: bytes, name: str) -> int:
    """Return the bucket of a category, which reveals nothing without the key."""
    digest = hmac.digest(key, name.casefold().encode(), "sha256")
    return int.from_bytes(digest[:8], "big") % BUCKETS


def signed_bucket(key: bytes, name: str) -> tuple[int, int]:
    """Return a hashed category's column and sign, -1 or 1."""
    digest = hmac.digest(key, name.casefold().encode(), "sha256")
    return int.from_bytes(digest[:8], "big") % HASHED, 1 - 2 * (digest[8] & 1)


# -- fitted columns: numbers from cells

#: How numbers are scaled.
Scale = Literal["rank", "standard", "range", "none"]
#: The same; auto: by the range, with outliers by ranks.
Scaling = Literal["auto", "rank", "standard", "range", "none"]

DAY, FIRST_DAY = 86400.0, date(1970, 1, 1)
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
        Of the training rows.
    boolean : bool
        Whether cells are true or false.
    unit : str
        Unit, if the table's cells have one.
    """

    name: str
    scale: Scale
    gaps: Gaps
    facts: NumberFacts
    boolean: bool = False
    unit: str = ""

    @property
    def kind(self) -> str:
        return "boolean" if self.boolean else "number"

    @classmethod
    def fit(
        cls, name: str, values: Floats, scaling: Scaling, gaps: Gaps, *, boolean: bool = False
    ) -> Self:
        """Fit values, NaN or infinite where missing; see :meth:`of`."""
        return cls.of(name, NumberFacts.measure(values), scaling, gaps, boolean=boolean)

    @classmethod
    def of(
        cls, name: str, facts: NumberFacts, scaling: Scaling, gaps: Gaps, *, boolean: bool = False
    ) -> Self:
        """Make the column from its facts; TableError if values are too large for the scaling."""
        large = max(-facts.least, facts.greatest) > _LARGEST
        scale: Scale = "range" if scaling == "auto" else scaling
        if scaling == "auto" and (facts.constant or facts.far or large):
            scale = "rank"
        if scale in ("standard", "range") and large:
            raise TableError(
                f"column {name!r} has values beyond {_LARGEST:g}", code="FK-VALUES-LARGE"
            )
        if scale != "rank" and facts.knots:  # with few rows the knots would be all values
            facts = replace(facts, knots=(facts.least, facts.greatest))
        return cls(name, scale, gaps, facts, boolean)

    @property
    def useful(self) -> bool:
        """Whether the column is kept: constant ones are only for "range" and "none"."""
        known = self.facts.rows > self.facts.missing
        return known and (self.scale in ("range", "none") or not self.facts.constant)

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,) * self.useful + indicator(self.name, self.facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
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
        """Return which values are farther outside the training range than it is wide."""
        facts = self.facts
        width = facts.greatest - facts.least
        beyond = np.fmax(facts.least - values, values - facts.greatest)
        return np.isfinite(values) & (beyond > width) & (width > 0.0)

    def explain(self) -> str:
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
        First training date.
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
        """Fit dates, NaN where missing."""
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
        return [(k, one) for k, one in enumerate(self.parts) if not one.facts.constant]

    @property
    def outputs(self) -> tuple[str, ...]:
        names = tuple(part.name for _, part in self._used)
        return names + indicator(self.name, self.parts[0].facts, self.gaps)

    def transform(self, values: Floats, names: Sequence[str] = ()) -> Floats:
        parts, known = parts_of_dates(values, self.first), np.isfinite(values)
        found = [part.transform(parts[k])[:, 0] for k, part in self._used]
        return stacked(found, known, self.parts[0].facts, self.gaps)

    def far(self, values: Floats) -> Any:
        return self.parts[0].far(parts_of_dates(values, self.first)[0])

    def explain(self) -> str:
        parts = ", ".join(PARTS[k] for k, _ in self._used)
        return explained(parts or "constant", self.parts[0].facts, self.outputs)

    def to_dict(self) -> dict[str, Any]:
        own = {"kind": self.kind, "name": self.name, "gaps": self.gaps, "first": self.first}
        return {**own, "parts": [part.to_dict() for part in self.parts]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        parts = tuple(Number.from_dict(part) for part in values["parts"])
        if len(parts) != len(PARTS):
            raise ValueError
        return cls(str(values["name"]), values["gaps"], float(values["first"]), parts)


Column = Number | Date | Category


def ranks(values: Floats, knots: Floats) -> Floats:
    """Return the share of rows below values, 0 to 1, by quantiles; NaN stays NaN.

    Ties get their middle rank; values in between are interpolated, others clipped.
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
