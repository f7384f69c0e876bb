"""Compute the figures of a summary, and how a node differs from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .encoding.columns import (
    CIRCLES,
    COARSE,
    DECIMALS,
    MIN_ROWS,
    PARTS,
    SPLITS,
    Category,
    CategoryFacts,
    Date,
    NumberFacts,
    binned_facts,
    circle_lengths,
    coarse_edges,
    decimals_of,
    fine_edges,
    other_scale,
    range_edges,
)
from .encoding.columns import Number as Ranked
from .encoding.encoder import Encoder
from .planning import Allowance
from .statistics import (
    FEATURES,
    chi_square,
    features,
    kolmogorov_smirnov,
    mean_discrepancy,
    welch,
)
from .summary import (
    About,
    Column,
    Plan,
    moment_shapes,
    noisy_reach,
    place_shapes,
    width,
)

Floats = NDArray[np.float64]

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_ROUNDED = 1e-15
_BINS = 400  # of few rows, where there is no limit: a rank is to be within 1 % in any shape
NEAR_RANK = 0.01  # a rank that may be farther off is noted
_LEVELS = np.linspace(0.0, 1.0, 129)  # of noisy quantiles
_EMPTY = 2.0  # standard errors under which a noisy count is taken as none
_FINE = 16  # points of a bin at which its curve is computed
_BENT = 0.05  # by which share of a bin its curve is wrong, measured on columns of nine shapes


def split_words(plan: Plan, words: Floats) -> dict[str, Floats]:
    """Return column -> counts of its categories, with others last."""
    ends = np.cumsum([len(one.words) + 1 for one in plan.texts])[:-1]
    return dict(zip([one.name for one in plan.texts], np.split(words, ends), strict=False))


def read_places(
    total: Mapping[str, Floats], plan: Plan, bound: float, splits: int, **more: Any
) -> About:
    """Return where the values of each column are, and the bins of the second sum."""
    edges, found, bins = coarse_edges(bound), [], []
    rows = dict(zip([one.name for one in plan.columns], np.rint(total["rows"]), strict=True))
    for k, one in enumerate(plan.numbers):
        counts = np.rint(total["bins"][k])
        n = max(counts.sum(), 1.0)
        arcs = np.rint(total["arcs"][k])
        place, ends = read_arcs(arcs, n, bound), np.clip(edges, *read_range(arcs, n, bound))
        # about the middle of the bins, or nearer about the place of most values
        centres = [float(counts @ (ends[:-1] + ends[1:])) / 2.0 / n, float(place[0])]
        reaches = [_reach(ends, counts, centre) for centre in centres]
        best = int(place[1] / 4.0 < reaches[0][0])
        centre, far = centres[best], reaches[best]
        scale = float(np.exp2(np.ceil(np.log2(max(far[0], 1e-100)))))
        decimals = decimals_of(np.rint(total["strays"][k]))
        where: Any = (centre, scale), place, bound, splits, min(MIN_ROWS, n / _BINS)
        bins.append(fine_edges(counts, decimals, *where))
        spread = min(scale, float(place[1]) / 4.0)
        reach = max(1.0, far[1] / scale)
        found.append([n, centre, scale, reach, spread, rows[one.name] > counts.sum(), decimals])
    figures = np.array(found, np.float64).reshape(-1, 7).T
    sizes = np.array([len(one) for one in bins], np.float64)
    names = ("count", "centre", "scale", "reach", "spread", "gaps", "decimals")
    by_column: dict[str, Any] = dict(zip(names, figures, strict=True))
    return About(**by_column, edges=np.concatenate([*bins, np.zeros(0)]), sizes=sizes, **more)


def _reach(edges: Floats, counts: Floats, centre: float) -> tuple[float, float]:
    """Return upper bounds of the distance from a centre: root mean square, and largest."""
    far = np.maximum(abs(edges[:-1] - centre), abs(edges[1:] - centre)) * (counts > 0.0)
    return float(np.sqrt(counts @ far**2 / max(counts.sum(), 1.0))), float(far.max())


def read_arcs(arcs: Floats, n: float, bound: float) -> Floats:
    """Return where most of n values are, and the length of the last circle used.

    On a circle much longer than a column's width, two adjacent quarters have most values. Circles
    are used from the longest down, as long as these quarters have three quarters of the values; a
    few outliers do not matter.
    """
    place, last = 0.0, 4.0 * bound
    for length, counts in zip(circle_lengths(bound, len(arcs)), arcs, strict=True):
        pairs = counts + np.roll(counts, -1)
        if pairs.max() < 0.75 * n:
            break
        here = (pairs.argmax() + 1) / 4.0 * length
        place, last = here + np.rint((place - here) / length) * length, float(length)
    return np.array([place, last])


def _above(variance: Any) -> Floats:
    """Return variances in squares of the scale without what rounding makes of constant values."""
    return np.where(np.asarray(variance) > _ROUNDED, variance, 0.0)


def read_range(arcs: Floats, n: float, bound: float) -> tuple[float, float]:
    """Return between which numbers all of n values are.

    From the longest circle down the range is as long as two quarters. On the next circle it is all
    four, one after the other, and it becomes two adjacent ones that have all values.
    """
    low, high, rounding = -bound * (1.0 + 2.0**-40), bound * (1.0 + 2.0**-40), bound * 2.0**-50
    for length, counts in zip(circle_lengths(bound, len(arcs))[1:], arcs[1:], strict=True):
        own = np.roll(counts, -int(np.rint(low / length * 4.0)) % 4)
        whole = np.flatnonzero(own[:-1] + own[1:] == n)
        if not len(whole):
            break
        low += float(whole[0]) * length / 4.0
        high = low + length / 2.0
    return low - rounding, high + rounding


@dataclass(frozen=True)
class Number:
    """Figures of a column of numbers; deviation and skewness as in pandas."""

    name: str
    kind: str
    rows: int
    gaps: int
    mean: float
    deviation: float
    skewness: float
    least: float
    greatest: float
    quantiles: dict[str, float]
    rank_error: float
    histogram: list[list[float]]


@dataclass(frozen=True, eq=False)
class Totals:
    """The second sum, converted to rows of the parties in it."""

    plan: Plan
    about: About
    total: Mapping[str, Floats]

    @cached_property
    def rows(self) -> dict[str, int]:
        found = np.rint(self.total["rows"] * self.about.rows).astype(int).tolist()
        return dict(zip([one.name for one in self.plan.columns], found, strict=True))

    @cached_property
    def words(self) -> dict[str, Floats]:
        return split_words(self.plan, np.rint(self.total["words"] * self.about.rows))

    @cached_property
    def bins(self) -> list[Floats]:
        ends = np.cumsum(self.about.sizes.astype(np.intp) - 1)[:-1]
        parts = np.split(self.total["bins"], ends) if len(self.about.sizes) else []
        return [np.rint(a * b) for a, b in zip(parts, self.about.count, strict=True)]

    @cached_property
    def known(self) -> Floats:
        return np.array([one.sum() for one in self.bins])

    @cached_property
    def powers(self) -> Floats:
        """Means of z, its square and its cube, in units of the scale; shape (numbers, 3)."""
        count = self.about.count
        sums = self.total["powers"] * np.stack([count, count, count * self.about.reach], axis=1)
        return np.asarray(sums / np.maximum(self.known, 1.0)[:, None])

    def spread(self, k: int) -> tuple[float, float]:
        """Return mean and variance of a column, in units of its scale about its centre."""
        m, square, _ = self.powers[k]
        n = self.known[k]
        return float(m), float(_above(square - m * m) * n / max(n - 1.0, 1.0))


def read_numbers(found: Totals, bound: float) -> list[Number]:
    """Return the figures of each column of numbers.

    Least and greatest are powers of two that bound all values. The ranks of the quantiles are off
    by a share of ``rank_error`` of the values at most.
    """
    figures, about, coarse = [], found.about, coarse_edges(bound)
    for k, (one, edges) in enumerate(zip(found.plan.numbers, about.bins(), strict=True)):
        n, counts, rows = int(found.known[k]), found.bins[k], found.rows[one.name]
        (m, square, cube), (_, variance) = found.powers[k], found.spread(k)
        biased = (cube - 3.0 * m * square + 2.0 * m**3) / max(square - m * m, 1e-100) ** 1.5
        skewed = n > 2 and variance > 0.0
        skewness = np.sqrt(n * (n - 1.0)) / (n - 2.0) * biased if skewed else np.nan
        mean = about.centre[k] + about.scale[k] * m if n else np.nan
        deviation = about.scale[k] * np.sqrt(variance) if n > 1 else np.nan
        knots, error, ends = np.full(2, np.nan), 0.0, (np.nan, np.nan)
        levels = dict.fromkeys(_QUANTILES, float(mean))
        if n:
            decimals, filled = int(about.decimals[k]), np.flatnonzero(counts)
            knots = np.array(binned_facts(edges, counts, decimals, rows, mean, variance**0.5).knots)
            if variance > 0.0:
                levels, error = _quantiles(edges, counts, decimals)
            low, high = edges[filled[0]], edges[filled[-1] + 1]
            if decimals >= 0:  # bins end between two values
                unit = 10.0**decimals
                low, high = np.ceil(low * unit) / unit, np.floor(high * unit) / unit
            ends = (
                coarse[max(0, np.searchsorted(coarse, low, side="right") - 1)],
                coarse[min(len(coarse) - 1, np.searchsorted(coarse, high))],
            )
        figures.append(
            Number(
                name=one.name,
                kind=one.kind,
                rows=rows,
                gaps=rows - n,
                mean=float(mean),
                deviation=float(deviation),
                skewness=float(skewness),
                least=float(ends[0]),
                greatest=float(ends[1]),
                quantiles={f"{q:g}": value for q, value in levels.items()},
                rank_error=error,
                histogram=_bars(edges, counts, knots) if n else [],
            )
        )
    return figures


def _quantiles(edges: Floats, counts: Floats, decimals: int) -> tuple[dict[float, float], float]:
    """Return the quantiles, and by which share of the values a rank is off at most.

    Between bins of one value each a quantile is that of all values. Else it is the next edge of a
    bin, as its rank is known, or within the bin where both edges are too far.
    """
    ends, n, unit = np.cumsum(counts), counts.sum(), 10.0 ** max(decimals, 0)
    single = (np.diff(edges) * unit < 1.5) & (decimals >= 0)
    levels, error = {}, 0.0
    for q in _QUANTILES:
        place = (n - 1.0) * q
        bins = np.searchsorted(ends, [np.floor(place), np.ceil(place)], side="right")
        if single[bins].all():
            low, high = np.rint((edges[bins] + edges[bins + 1]) / 2.0 * unit) / unit
            levels[q] = float(low + place % 1.0 * (high - low))
            continue
        k = int(np.searchsorted(ends, q * n))
        below, above = q * n - ends[k] + counts[k], ends[k] - q * n  # rows to both edges
        if min(below, above) <= NEAR_RANK * n:
            off, value = min(below, above), edges[k + (above < below)]
        else:
            off = max(below, above)
            value = edges[k] + below / counts[k] * (edges[k + 1] - edges[k])
        error = max(error, off / n)
        levels[q] = float(np.ceil(value * unit) / unit if decimals >= 0 else value)
    return levels, float(error)


def _bars(edges: Floats, counts: Floats, knots: Floats, bars: int = 20) -> list[list[float]]:
    low, high = np.quantile(knots, [0.01, 0.99])
    if low >= high:
        low, high = low - 0.5, high + 0.5
    ends = np.linspace(low, high, bars + 1)
    below = np.interp(ends, edges, np.append(0.0, np.cumsum(counts)))
    return [ends.tolist(), np.diff(below).tolist()]


def read_correlations(found: Totals) -> list[tuple[list[str], Floats]]:
    """Return the correlations of columns that the same parties have, from rows with both values."""
    matrices, at, place = [], 0, 0
    for one in found.plan.sets(found.about.products):
        d, gaps = len(one), found.about.gaps[one] > 0.0
        n, m, square = found.known[one], *found.powers[one].T[:2]
        root, holes = np.sqrt(found.about.count[one]), np.flatnonzero(gaps)
        across, upper = np.outer(root, root[gaps]), np.zeros((d, d))
        size = d * (d + 1) // 2
        upper[np.triu_indices(d)] = found.total["products"][at : at + size]
        at += size
        mixed = (upper + np.triu(upper, 1).T) * np.outer(root, root)
        # of the rows where column j is known as well: how many, the sums of z_i and of its square
        both, first, second = (np.repeat(part[:, None], d, 1) for part in (n, n * m, n * square))
        ends = place + np.cumsum([0, d * len(holes), d * len(holes), len(holes) ** 2])
        place = int(ends[-1])
        parts = [found.total["known"][a:b] for a, b in pairwise(ends)]
        first[:, holes] = parts[0].reshape(d, len(holes)) * across
        second[:, holes] = parts[1].reshape(d, len(holes)) * found.about.count[one][:, None]
        both[:, holes] = n[holes]
        both[np.ix_(holes, holes)] = parts[2].reshape(len(holes), len(holes)) * across[gaps]
        both = np.maximum(np.rint(both), 1.0)
        mixed = mixed / both - first * first.T / both**2
        spread = _above(second / both - (first / both) ** 2)
        with np.errstate(invalid="ignore", divide="ignore"):
            matrix = np.clip(mixed / np.sqrt(spread * spread.T), -1.0, 1.0)
        matrix[spread * spread.T == 0.0] = np.nan
        matrices.append(([found.plan.numbers[k].name for k in one], matrix))
    return matrices


def read_groups(found: Totals) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return column -> count, mean and variance in each group; and column -> table of counts."""
    numbers, texts = found.plan.beside(found.about.group)
    groups, about = {}, found.about
    for place, k in enumerate(numbers):
        count, total, square = found.total["groups"][place].T * about.count[k]
        count = np.rint(count)
        mean = total / np.maximum(count, 1.0)
        variance = (square - count * mean**2) / np.maximum(count - 1.0, 1.0)
        mean = about.centre[k] + about.scale[k] * mean
        variance = about.scale[k] ** 2 * _above(variance)
        groups[found.plan.numbers[k].name] = np.stack([count, mean, variance])
    size = found.total["groups"].shape[1]
    ends = np.cumsum([size * len(one.words) for one in texts])[:-1]
    cross = np.split(np.rint(found.total["cross"] * found.about.rows), ends) if texts else []
    shape = {c.name: (size, len(c.words)) for c in texts}
    return groups, {c.name: t.reshape(shape[c.name]) for c, t in zip(texts, cross, strict=True)}


# -- a node compared with the others


def own_features(own: Mapping[str, Floats], found: Totals, one: Sequence[int]) -> Floats:
    """Return random features of a node's rows."""
    about, columns = found.about, [found.plan.numbers[k] for k in one]
    z = np.column_stack([about.units(own[c.name], k) for k, c in zip(one, columns, strict=True)])
    return features(np.nan_to_num(z) * (about.scale / about.spread)[list(one)], about.seed)


@dataclass(frozen=True)
class Difference:
    """How a column of a node differs from the others'; ``text`` is "" if it does not."""

    column: str
    check: str
    value: float
    p: float
    text: str = ""


def compare_with_others(
    own: Mapping[str, Floats], mine: Totals, others: Totals
) -> list[Difference]:
    """Compare each column of a node with that of the others."""
    found, plan, about = [], mine.plan, mine.about
    there = [
        k
        for k, one in enumerate(plan.numbers)
        if one.name in own and min(mine.known[k], others.known[k]) > 1
    ]
    shifts = {k: _shift(mine.spread(k), others.spread(k)) for k in there}
    for k, edges in enumerate(about.bins()):
        if k not in there:
            continue
        name, counts, decimals = plan.numbers[k].name, others.bins[k], int(about.decimals[k])
        (ours, v), (theirs, w) = mine.spread(k), others.spread(k)
        _, p = welch([mine.known[k], others.known[k]], [ours, theirs], [v, w])
        distance = kolmogorov_smirnov(mine.bins[k], counts)
        facts = binned_facts(edges, counts, decimals, int(counts.sum()), 0.0, 1.0)
        times, text = other_scale(own[name], facts), ""
        twins = [j for j in there if j != k and _swapped(mine, others, shifts, k, j)]
        if twins:
            text = f"looks like {plan.numbers[twins[0]].name!r} of the others: maybe swapped"
        elif times:
            text = f"about {times:.3g} times the values of the others: maybe another unit"
        elif distance[0] >= _UNLIKE and distance[1] < _RARE:
            side = f"{abs(shifts[k]):.1f} deviations {'above' if shifts[k] > 0.0 else 'below'}"
            text = f"unlike the others (distance {distance[0]:.2f}): the mean is {side} theirs"
        found.append(Difference(name, "standardised mean difference", shifts[k], p))
        found.append(Difference(name, "Kolmogorov-Smirnov", *distance, text))
    for one in plan.texts:
        known, rest = mine.words[one.name][:-1], others.words[one.name][:-1]
        if one.name in own and known.sum() and rest.sum():
            value, p = chi_square([known, rest])
            found.append(Difference(one.name, "chi-square", value, p))
    for place, part in enumerate(plan.sets()):
        names = [plan.numbers[k].name for k in part]
        rows = others.rows[names[0]]
        if mine.total["features"].shape[0] > place and rows > 1 and names[0] in own:
            mean = others.total["features"][place] * others.about.rows / rows
            rows_of = own_features(own, mine, part)
            value, p = mean_discrepancy(rows_of, mean, rows, seed=about.seed)
            found.append(Difference(", ".join(names), "mean discrepancy", value, p))
    return found


#: Of four parties one that is wrong is a third of the others of each right one.
_UNLIKE, _RARE, _NEAR = 0.4, 1e-3, 0.5


def _shift(ours: tuple[float, float], theirs: tuple[float, float]) -> float:
    deviation = np.sqrt((ours[1] + theirs[1]) / 2.0)
    return float((ours[0] - theirs[0]) / deviation) if deviation > 0.0 else 0.0


def _swapped(mine: Totals, others: Totals, shifts: Mapping[int, float], k: int, j: int) -> bool:
    about = mine.about

    def distance(a: int, b: int) -> float:
        (ours, _), (theirs, variance) = mine.spread(a), others.spread(b)
        away = about.centre[a] + about.scale[a] * ours - about.centre[b] - about.scale[b] * theirs
        return float(abs(away) / max(about.scale[b] * np.sqrt(variance), 1e-300))

    unlike = min(abs(shifts[k]), abs(shifts[j])) > 1.0
    return unlike and max(distance(k, j), distance(j, k)) < _NEAR


# -- with a budget of privacy


def likely_counts(counts: Floats, total: float, sigma: float) -> Floats:
    """Return the nearest numbers that are not negative and add up to a positive total.

    Counts that may be only noise become none: else many empty bins would together have many rows.
    No count above the mean does, as there are few of these.
    """
    kept = counts > min(_EMPTY * sigma, total / len(counts))
    kept[counts.argmax()] = True
    found = np.zeros(len(counts))
    found[kept] = on_simplex(counts[kept], total)
    return found


def on_simplex(counts: Floats, total: float) -> Floats:
    """Return the nearest numbers that are not negative and add up to a positive total."""
    ranked = np.sort(counts)[::-1]
    excess = (np.cumsum(ranked) - total) / np.arange(1, len(counts) + 1)
    return np.asarray(np.maximum(counts - excess[np.flatnonzero(ranked > excess)[-1]], 0.0))


def read_noisy(
    total: Mapping[str, Floats], plan: Plan, deviation: float
) -> tuple[list[Number], dict[str, dict[str, float]], dict[str, Floats], Encoder]:
    """Return figures of numbers, their errors (delta method), counts of categories, an encoder.

    ``deviation`` is that of the noise of each number.
    """
    reach, errors, found = noisy_reach(plan), dict[str, dict[str, float]](), list[Number]()
    sigma, names = deviation * reach, [one.name for one in plan.columns]
    rows = dict(zip(names, (total["rows"] * reach).tolist(), strict=True))
    words, columns = split_words(plan, total["words"] * reach), dict[str, Any]()
    places = np.cumsum([len(range_edges(*one.range)) - 1 for one in plan.numbers])[:-1]
    bins = np.split(total["bins"] * reach, places) if plan.numbers else []
    for one, powers, counts in zip(plan.numbers, total["powers"] * reach, bins, strict=True):
        figures, errors[one.name], knots = _read_number(one, rows[one.name], powers, counts, sigma)
        found.append(figures)
        facts = NumberFacts(
            rows=max(figures.rows, 1),
            missing=_known_gaps(figures.rows, figures.rows - figures.gaps, sigma * np.sqrt(2.0)),
            least=figures.least,
            median=figures.quantiles["0.5"],
            greatest=figures.greatest,
            mean=figures.mean,
            deviation=float(np.nan_to_num(figures.deviation)),
            knots=tuple(knots.tolist()),
        )
        ranked = _ranked_date if one.kind == "date" else _ranked
        columns[one.name] = ranked(one.name, facts)
    for one in plan.texts:
        counts, whole = words[one.name], max(round(rows[one.name]), 1)
        missing = _known_gaps(whole, float(counts.sum()), sigma * np.sqrt(len(counts) + 1.0))
        # all categories are public, so that each is kept, whatever noise has made of its count
        kept = np.maximum(np.rint(counts[:-1]), MIN_ROWS).astype(int).tolist()
        known = CategoryFacts(whole, missing, dict(zip(one.words, kept, strict=True)))
        columns[one.name] = Category.of(one.name, known, "encode", merged=1)
    return found, errors, words, Encoder(tuple(columns[name] for name in names))


def _ranked(name: str, facts: NumberFacts) -> Ranked:
    return Ranked.of(name, facts, "rank", "encode")


def _ranked_date(name: str, facts: NumberFacts) -> Date:
    """Return dates by the ranks of their days; weekdays and months are within public ranges."""
    parts = [_ranked(f"{name}[{PARTS[0]}]", facts)]
    for part, low, high in zip(PARTS[1:], (0.0, 1.0, 0.0), (6.0, 12.0, 0.0), strict=True):
        middle = (low + high) / 2.0  # of hours there is one: bounds are whole days
        own = replace(
            facts,
            least=low,
            median=middle,
            greatest=high,
            mean=middle,
            knots=(low, high),
            deviation=(high - low) / 12.0**0.5,  # of equally frequent ones
        )
        parts.append(Ranked.of(f"{name}[{part}]", own, "range", "encode"))
    return Date(name, "encode", 0.0, tuple(parts))


def _read_number(
    one: Column, rows: float, powers: Floats, counts: Floats, sigma: float
) -> tuple[Number, dict[str, float], Floats]:
    """Return the figures of a column, their standard errors, and the values at equal ranks.

    As far as noise may have moved these ranks, they are places in the public range.
    """
    edges, (low, high) = range_edges(*one.range), one.range
    half = (high - low) / 2.0
    n = max(float(powers[0]), 1.0)
    m, q = float(np.clip(powers[1] / n, -1.0, 1.0)), float(powers[2]) / n
    spread = np.sqrt(q - m * m) if q > m * m else np.nan  # noise may make the variance negative
    bins = likely_counts(counts, n, sigma)
    below = np.append(0.0, np.cumsum(bins)) / n
    curve = _smooth(edges, below)
    doubt = min(1.0, float(sigma * np.sqrt(len(bins) / 2.0) / n))
    ranks = (1.0 - doubt) * below + doubt * (edges - low) / (high - low)
    of_spread = sigma / n * np.sqrt(1.0 + 4.0 * m * m + (2.0 * m * m - q) ** 2) / 2.0 / spread
    errors = {
        "rows": sigma,
        "gaps": sigma * np.sqrt(2.0),
        "mean": float(half * sigma / n * np.sqrt(1.0 + m * m)),
        "deviation": float(half * of_spread),
        **{f"rank of {p:g}": _rank_error(bins, p, n, sigma) for p in _QUANTILES},
    }
    figures = Number(
        name=one.name,
        kind=one.kind,
        rows=round(rows),
        gaps=round(rows - n),
        mean=low + half * (m + 1.0),
        deviation=float(half * spread),
        skewness=np.nan,
        least=low,
        greatest=high,
        quantiles={f"{p:g}": float(np.interp(p, *curve)) for p in _QUANTILES},
        rank_error=float(bins.max() / n),
        histogram=_bars(edges, bins, np.interp(_LEVELS, *curve)),
    )
    return figures, errors, np.interp(_LEVELS, ranks, edges)


def _smooth(edges: Floats, below: Floats) -> tuple[Floats, Floats]:
    """Return shares of rows on a smooth curve through those below the edges, and their values.

    Where the natural cubic spline is too steep to rise everywhere its slope is lowered.
    """
    from scipy.interpolate import CubicHermiteSpline, CubicSpline  # as nodes need neither

    low, width = edges[0], edges[-1] - edges[0]
    at = (edges - low) / width  # slopes in units of the column may overflow
    mean = np.diff(below) / np.diff(at)
    most = 3.0 * np.minimum(np.append(mean[0], mean), np.append(mean, mean[-1]))
    slope = np.clip(CubicSpline(at, below, bc_type="natural")(at, 1), 0.0, most)
    places = np.arange(_FINE * len(mean) + 1.0) / _FINE
    values = np.interp(places, np.arange(len(at)), at)
    return np.asarray(CubicHermiteSpline(at, below, slope)(values)), low + width * values


def _rank_error(bins: Floats, p: float, n: float, sigma: float) -> float:
    """Return the standard error of the rank of a quantile: of noise, and within its bin."""
    ends, full = np.cumsum(bins) / n, bins > 0.0
    k = min(int(np.searchsorted(ends, p)), len(bins) - 1)
    share = float(bins[k] / n)
    within = float(np.clip((p - ends[k] + share) / max(share, 1e-100), 0.0, 1.0))
    # so many bins are below the quantile; all add up to n, and one that is small may be lost
    number, every = full[:k].sum() + within, full.sum()
    terms = full[:k].sum() + within**2 - number**2 / every + (number / every - p) ** 2 + 1.0
    inside = share * within * (1.0 - within)  # variance of the rows of a bin that are below
    return float(np.sqrt(terms * (sigma / n) ** 2 + inside / n + (_BENT * inside) ** 2))


def _known_gaps(rows: float, known: float, deviation: float) -> int:
    """Return how many values are missing, 0 where noise may have made them up."""
    gaps = rows - known
    return min(round(gaps), int(rows) - 1) if gaps > 5.0 * deviation else 0


# -- sizes that the nodes' release limits allow


def plan_sizes(plan: Plan, allowed: Allowance) -> tuple[int, int, bool]:
    """Return circles, splits of bins, and whether there are products, within the release limits.

    A third of the numbers is for the first sum. Missing values and groups are not known yet, see
    :func:`fits`.
    """
    n, sets = len(plan.numbers), plan.sets()
    products = max(map(len, sets), default=0) <= allowed.columns
    if not allowed.planned or not n:
        return CIRCLES, SPLITS, products
    first = n * (COARSE + DECIMALS) + len(plan.columns)
    circles = int(np.clip((allowed.numbers / 3.0 - first) / (4 * n), 0, CIRCLES))
    taken = float(first + n * (4 * circles + 3) + len(plan.columns))
    taken += sum(len(one.words) + 1 for one in plan.texts)
    taken += products * sum(len(one) * (len(one) + 1) / 2 + 2 * FEATURES for one in sets)
    splits = int(np.clip((allowed.numbers - taken) / n - 2 * COARSE, 0, SPLITS))
    return circles, splits, products


def fits(plan: Plan, about: About, circles: int, allowed: Allowance) -> bool:
    """Return whether nodes may open both sums, with enough rows for the products."""
    first, second = (
        {name: int(np.prod(shape)) for name, shape in shapes.items()}
        for shapes in (place_shapes(plan, circles), moment_shapes(plan, about))
    )
    if not allowed.planned:
        return True
    numbers = sum(first.values()) + sum(second.values())
    return width(second) <= allowed.columns and numbers <= allowed.numbers
