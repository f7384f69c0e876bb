"""Format a summary: Table 1 of a paper, figures of columns, plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .encoding.columns import CIRCLES, FIRST_DAY, SPLITS
from .encoding.encoder import Encoder
from .statistics import anova, chi_square, corrected, inflation, welch
from .summary import Column, Plan, as_summed, moments
from .summary import places as places_of
from .summary_figures import (
    NEAR_RANK,
    Number,
    Totals,
    read_correlations,
    read_groups,
    read_noisy,
    read_numbers,
    read_places,
)
from .tables.table import Table as Rows

Floats = NDArray[np.float64]
Table = list[list[str]]

_QUARTILES = ("0.25", "0.5", "0.75")
_ROUGH = 0.25  # quantiles that may be farther off are not shown


@dataclass(frozen=True, eq=False)
class Figures:
    """All results of a summary.

    ``words`` maps a column of categories to their counts, with others last; ``names`` to their
    names; ``rows`` to the rows of its holders. For ``groups`` see :func:`compare_groups`.
    ``errors`` maps a column to standard errors of its figures, due to noise. Counts below
    ``fewest`` are not shown in tables.
    """

    numbers: Sequence[Number]
    words: Mapping[str, Floats]
    names: Mapping[str, Sequence[str]]
    rows: Mapping[str, float]
    correlations: Sequence[tuple[list[str], Floats]] = ()
    groups: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fewest: int = 0

    @classmethod
    def of(cls, found: Totals, bound: float, fewest: int = 0, *, tested: bool = True) -> Figures:
        """Return what the second sum says."""
        texts = found.plan.texts
        return cls(
            numbers=read_numbers(found, bound),
            words=found.words,
            names={one.name: one.words for one in texts},
            rows={one.name: found.rows[one.name] for one in texts},
            correlations=read_correlations(found),
            groups=compare_groups(found, tested=tested) if found.about.group else {},
            fewest=fewest,
        )

    @classmethod
    def of_noisy(
        cls, total: Mapping[str, Floats], plan: Plan, deviation: float
    ) -> tuple[Figures, Encoder]:
        """Return what a sum with noise of that deviation says, and an encoder made of it."""
        numbers, errors, words, encoder = read_noisy(total, plan, deviation)
        names = {one.name: one.words for one in plan.texts}
        known = {name: float(counts.sum()) for name, counts in words.items()}
        return cls(numbers, words, names, known, errors=errors), encoder

    def gaps(self, name: str) -> int:
        """Return the number of rows without a category in a column."""
        return round(float(self.rows[name] - self.words[name].sum()))

    @property
    def most_rows(self) -> int:
        return round(max([0.0, *self.rows.values(), *(float(one.rows) for one in self.numbers)]))

    def metrics(self, significance: float) -> dict[str, Any]:
        tests = [one["corrected"] for one in self.groups.get("tests", ())]
        missing = sum(one.gaps for one in self.numbers) + sum(map(self.gaps, self.words))
        found = {
            "rows": self.most_rows,
            "columns": len(self.numbers) + len(self.words),
            "gaps": max(missing, 0),  # noise may make it negative
            "rank_error": max((one.rank_error for one in self.numbers), default=0.0),
        }
        return {**found, "different": sum(p < significance for p in tests)} if tests else found

    def model(self) -> dict[str, NDArray[Any]]:
        """Return the figures as arrays, columns of numbers in their order."""
        parts = ("rows", "gaps", "mean", "deviation", "skewness")
        found = {k: np.array([getattr(one, k) for one in self.numbers], np.float64) for k in parts}
        found["quantiles"] = np.array([[*one.quantiles.values()] for one in self.numbers])
        found |= {f"counts {name}": np.asarray(counts) for name, counts in self.words.items()}
        return found | {f"correlations {k}": m for k, (_, m) in enumerate(self.correlations)}

    def details(self) -> dict[str, Any]:
        found = {
            "columns": [asdict(one) for one in self.numbers],
            "categories": {
                name: {
                    "rows": round(float(self.rows[name])),
                    "counts": dict(zip((*self.names[name], "other"), counts.tolist(), strict=True)),
                }
                for name, counts in self.words.items()
            },
            "correlations": [
                {"columns": names, "matrix": matrix.tolist(), "inflation": inflation(matrix)}
                for names, matrix in self.correlations
            ],
            "groups": self.groups,
            "standard_errors": self.errors,
        }
        return {name: _plain(one) for name, one in found.items() if one}

    def columns(self) -> Table:
        """Return the table of all columns, for a file."""
        factors = dict[str, float]()
        for names, matrix in self.correlations:
            factors |= dict(zip(names, inflation(matrix), strict=True))
        levels = [f"{float(q):.0%}" for q in (self.numbers[0].quantiles if self.numbers else ())]
        heads = ["column", "kind", "rows", "missing", "mean", "SD", "skewness"]
        heads += ["not below", *levels, "not above", "rank error", "VIF", "SE of mean"]
        table = [heads]
        for one in self.numbers:
            figures = [one.mean, one.deviation, one.skewness, one.least, *one.quantiles.values()]
            figures += [one.greatest, one.rank_error, factors.get(one.name, np.nan)]
            figures.append(self.errors.get(one.name, {}).get("mean", np.nan))
            table.append([one.name, one.kind, str(one.rows), str(one.gaps), *map(_full, figures)])
        for name in self.words:
            counts = [str(round(float(self.rows[name]))), str(self.gaps(name))]
            table.append([name, "category", *counts, *[""] * (len(heads) - 4)])
        return table

    def first_table(self) -> Table:
        """Return Table 1 of a paper."""
        groups = self.groups
        heads = ["", f"all (n={self.most_rows})"]
        titles = zip(groups.get("names", ()), groups.get("rows", ()), strict=True)
        heads += [f"{name} (n={self._small(n) or f'{n:.0f}'})" for name, n in titles]
        tests = {test["column"]: test for test in groups.get("tests", ())}
        tested = any(np.isfinite(test["p"]) for test in tests.values())
        heads += ["p", "corrected p"] * tested
        blank, table = [""] * (len(heads) - 2), [heads]
        for one in self.numbers:
            test, known = tests.get(one.name), one.rows - one.gaps
            cells, title = blank, "n (%)" if one.kind == "boolean" else "mean (SD)"
            if test is not None:
                own = test["groups"]
                each = zip(own["n"], own["mean"], own["deviation"], strict=True)
                cells = [self._centre(one.kind, *group) for group in each]
                cells += [_level(test["p"]), _level(test["corrected"])] * tested
            whole = self._centre(one.kind, known, one.mean, one.deviation)
            table.append([f"{one.name}, {title}", whole, *cells])
            rough = self._rank_error(one)
            if one.kind != "boolean" and rough <= _ROUGH:
                low, middle, high = (_value(one.quantiles[q], one.kind) for q in _QUARTILES)
                off = f", rank ± {rough:.1%}" if rough > NEAR_RANK else ""
                title = f"  median [quartiles]{off}"
                table.append([title, f"{middle} [{low}, {high}]", *blank])
            if one.gaps > 0:
                table.append(["  missing, n (%)", self._share(one.gaps, one.rows), *blank])
        for name, counts in self.words.items():
            test, there = tests.get(name), float(counts.sum())
            levels = [_level(test["p"]), _level(test["corrected"])] * tested if test else []
            ends = [*[""] * (len(blank) - len(levels)), *levels] if levels else blank
            table.append([f"{name}, n (%)", "", *ends])
            for k, word in enumerate((*self.names[name], "other")):
                cells = blank
                if test is not None and k < len(self.names[name]):
                    own = np.array(test["groups"]["counts"])
                    cells = [self._share(n[k], n.sum()) for n in own] + ["", ""] * tested
                if counts[k] > 0.0 or word != "other":
                    table.append([f"  {word}", self._share(counts[k], there), *cells])
            if (gaps := self.gaps(name)) > 0:
                table.append(["  missing", self._share(gaps, float(self.rows[name])), *blank])
        return table

    def _rank_error(self, one: Number) -> float:
        """Return by how much ranks of the quartiles are off: at most, or the standard error."""
        errors = self.errors.get(one.name)
        return max(errors[f"rank of {q}"] for q in _QUARTILES) if errors else one.rank_error

    def _small(self, count: float) -> str:
        """Return what is shown of a count that is too small to be shown; of others nothing."""
        return f"<{self.fewest}" if 0.5 < count < self.fewest else ""

    def _share(self, count: float, whole: float) -> str:
        count = max(count, 0.0)  # noise may have made it negative
        return self._small(count) or f"{count:.0f} ({100.0 * count / max(whole, 1.0):.1f})"

    def _centre(self, kind: str, n: float, mean: float, deviation: float) -> str:
        """Return how many are true, or mean and deviation; that of dates is in days."""
        if kind == "boolean":
            return self._share(n * mean, n)
        return self._small(n) or f"{_value(mean, kind)} ({_value(deviation)})"


def pooled_table(table: Rows, group: str = "", fewest: int = 5) -> Table:
    """Return the first table of rows in one place, without p-values, made as that of many places.

    Parameters
    ----------
    table : ~fedkern_flwr.tables.table.Table
        Gaps are NaN, text is positions among its categories.
    group : str
        A column of categories: the others are compared between its groups.
    fewest : int
        Rarer categories are among the others, and smaller counts are not shown.
    """
    columns, own = list[Column](), dict[str, Floats]()
    for name, values in zip(table.columns, table.x.T, strict=True):
        kind, words = table.kinds.get(name, "number"), np.array(table.categories.get(name, ()))
        values = np.where(np.isfinite(values), values, np.nan)
        if kind == "category":
            counts = np.bincount(values[~np.isnan(values)].astype(int), minlength=len(words))
            kept = counts >= fewest
            places = np.where(kept, np.cumsum(kept) - 1.0, float(kept.sum()))
            values = np.append(places, np.nan)[np.nan_to_num(values, nan=len(words)).astype(int)]
            words = words[kept]
        columns.append(Column(name, kind, (0,), tuple(words.tolist())))
        own[name] = as_summed(values, kind)
    plan = Plan(tuple(columns))
    if not any(one.name == group and len(one.words) > 1 for one in columns):
        group = ""
    most = [np.nan_to_num(np.abs(own[one.name])).max(initial=1.0) for one in plan.numbers]
    bound = float(np.exp2(np.ceil(np.log2(max(most, default=1.0)))))
    how: Any = {"rows": float(table.rows), "group": group, "products": False, "seed": 0}
    about = read_places(places_of(plan, own, bound, CIRCLES), plan, bound, SPLITS, **how)
    found = Totals(plan, about, moments(plan, own, about))
    return Figures.of(found, bound, fewest, tested=False).first_table()


def compare_groups(found: Totals, *, tested: bool = True) -> dict[str, Any]:
    """Return each column by group, with tests between the groups unless not ``tested``.

    Two groups: Welch's t; more: analysis of variance; counts: chi-square. Displayed p-values are
    corrected together.
    """
    group, (numbers, tables) = found.about.group, read_groups(found)
    words = next(c.words for c in found.plan.texts if c.name == group)
    truths = [one.name for one in found.plan.numbers if one.kind == "boolean"]
    tests: list[dict[str, Any]] = []

    def run(test: Callable[..., tuple[float, float]], *values: Any) -> tuple[float, float]:
        return test(*values) if tested else (np.nan, np.nan)

    for name, (count, mean, variance) in numbers.items():
        deviation = np.sqrt(variance)
        own = {"n": count.tolist(), "mean": mean.tolist(), "deviation": deviation.tolist()}
        about = {"column": name, "groups": own}
        if name in truths:
            statistic, p = run(chi_square, np.stack([count * mean, count * (1.0 - mean)], axis=1))
            tests.append({**about, "test": "chi-square", "statistic": statistic, "p": p})
            continue
        statistic, p = run(anova, count, mean, variance)
        tests.append({**about, "test": "ANOVA", "statistic": statistic, "p": p})
        if len(words) == 2:
            statistic, p = run(welch, count, mean, variance)
            tests.append({**about, "test": "Welch", "statistic": statistic, "p": p})
    for name, table in tables.items():
        statistic, p = run(chi_square, table)
        own = {"counts": table.tolist()}
        about = {"column": name, "groups": own, "test": "chi-square"}
        tests.append({**about, "statistic": statistic, "p": p})
    # of two tests of one column the one that is shown counts: Welch's
    shown = [t for t in tests if not (t["test"] == "ANOVA" and len(words) == 2)]
    for test, p in zip(shown, corrected([t["p"] for t in shown]), strict=True):
        test["corrected"] = p
    counts = found.words[group][: len(words)]
    return {"names": list(words), "rows": counts.tolist(), "tests": shown, "all": tests}


def _value(value: float, kind: str = "number") -> str:
    if value is None or not np.isfinite(value):
        return "-"
    if kind == "date":
        return str(FIRST_DAY + timedelta(days=float(value)))
    return f"{value + 0.0:,.4g}"


def _level(p: float) -> str:
    if not np.isfinite(p):
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _full(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.10g}"


def _plain(value: Any) -> Any:
    """Convert to plain values, with None for numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (float, np.floating)) and not np.isfinite(value):
        return None
    return value
