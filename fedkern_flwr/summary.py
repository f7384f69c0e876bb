"""Summarise tables that stay at their nodes: what is summed, and what a node adds.

Columns are those of all parties together; a party adds zeros for a column that it lacks. The first
sum counts values in public bins and locates most of them (:mod:`.encoding.columns`). The second has
powers and products about that location, and finer bins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .encoding.columns import (
    COARSE,
    DAY,
    DECIMALS,
    coarse_edges,
    count_arcs,
    count_bins,
    count_strays,
    range_edges,
)
from .exchange import Sum
from .plain_text import read_json
from .statistics import FEATURES, features
from .wire.describe import DescribeReply
from .wire.message import array

Floats = NDArray[np.float64]
Terms = dict[str, Any]

#: Counts of rows in public bins, and on circles.
PLACES = Sum("places", bound=1.0)


def width(sizes: Mapping[str, int]) -> int:
    """Return the number of columns with products in the second sum, from the size of each key."""
    # Products of d numbers fill a triangle; n columns with missing values add 2 d n + n². Groups
    # and tables of counts are products with the columns of all categories.
    d = (isqrt(8 * sizes["products"] + 1) - 1) // 2
    n = isqrt(d * d + sizes["known"]) - d
    grouped = sizes["groups"] + sizes["cross"] > 0
    return max(d, sizes["powers"] // 3 if grouped else 0) + n + sizes["words"] * grouped


#: Powers and products, each over the number of values of all parties, or its root; finer bins.
MOMENTS = Sum("moments", bound=1.0, per="client", products=width)
#: All at once, of public columns, in units of :func:`noisy_reach`.
NOISY = Sum("noisy", bound=1.0, sensitivity=1.0)


class SummaryDescribeReply(DescribeReply):
    """What a party says of its table; in a run with a budget, of public columns, sizes only.

    Attributes
    ----------
    held : bytes
        JSON: names and kinds of its columns, and the categories that enough of its rows have.
    fewest : int
        Rows that a count must have to be shown: ``min_sum_rows`` of its policy.
    ids, spelled : ndarray of uint64, shape (ids, 2)
        Sorted pseudonyms of its ids, as they are and in one spelling.
    """

    held: bytes = b""
    fewest: int = 0
    ids: NDArray[Any] = array("ids", "words", dtype="ring")
    spelled: NDArray[Any] = array("ids", "words", dtype="ring")


@dataclass(frozen=True)
class Column:
    """A column: name, kind, partitions that have it, and categories.

    In a run with a budget ``words`` are public categories, and ``range`` is a public range.
    """

    name: str
    kind: str
    holders: tuple[int, ...]
    words: tuple[str, ...] = ()
    range: tuple[float, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The columns of a run, in the order of the sums."""

    columns: tuple[Column, ...]

    def write(self) -> str:
        return json.dumps([astuple(one) for one in self.columns])

    @classmethod
    def read(cls, text: str) -> Plan:
        found = read_json(text)
        return cls(tuple(Column(n, k, tuple(h), tuple(w), tuple(r)) for n, k, h, w, r in found))

    @cached_property
    def numbers(self) -> list[Column]:
        """Columns of numbers, booleans and dates (in days)."""
        return [one for one in self.columns if one.kind != "category"]

    @cached_property
    def texts(self) -> list[Column]:
        return [one for one in self.columns if one.kind == "category"]

    def sets(self, products: bool = True) -> list[list[int]]:
        """Return positions of numbers in sets that the same parties have."""
        found: dict[tuple[int, ...], list[int]] = {}
        for k, one in enumerate(self.numbers):
            found.setdefault(one.holders, []).append(k)
        return [places for places in found.values() if products and len(places) > 1]

    def beside(self, group: str) -> tuple[list[int], list[Column]]:
        """Return the numbers, and other categories, that the same parties have as a column."""
        one = next((c for c in self.texts if c.name == group), None)
        if one is None:
            return [], []
        numbers = [k for k, c in enumerate(self.numbers) if c.holders == one.holders]
        return numbers, [c for c in self.texts if c.holders == one.holders and c != one]


def as_summed(values: Floats, kind: str) -> Floats:
    return values / DAY if kind == "date" else values


def _one_hot(values: Floats, size: int) -> Floats:
    """Return a column for each of ``size`` categories, with zeros for missing values and others."""
    return np.asarray(values[:, None] == np.arange(size), np.float64)


# -- the first sum


def place_shapes(plan: Plan, circles: int) -> dict[str, tuple[int, ...]]:
    n = len(plan.numbers)
    shapes = {"rows": (len(plan.columns),), "bins": (n, COARSE), "strays": (n, DECIMALS)}
    return {**shapes, "arcs": (n, circles, 4)}


def places(plan: Plan, own: Mapping[str, Floats], bound: float, circles: int) -> Terms:
    """Return rows, bins, strays and arcs of a node's columns; zeros for others."""
    found = {name: np.zeros(shape) for name, shape in place_shapes(plan, circles).items()}
    found["rows"][:] = count_rows(plan, own)
    for k, one in enumerate(plan.numbers):
        if one.name in own:
            values = own[one.name]
            found["bins"][k] = count_bins(values, coarse_edges(bound))
            found["strays"][k] = count_strays(values)
            found["arcs"][k] = count_arcs(values, bound, circles)
    return found


def count_rows(plan: Plan, own: Mapping[str, Floats]) -> Floats:
    return np.array([len(own.get(one.name, ())) for one in plan.columns], np.float64)


def count_words(plan: Plan, own: Mapping[str, Floats]) -> Floats:
    """Return a node's rows of each category, and of others, for each column."""
    none = np.zeros(0)
    found = [
        count_bins(own.get(one.name, none), np.arange(len(one.words) + 2.0) - 0.5)
        for one in plan.texts
    ]
    return np.concatenate([*found, none])


@dataclass(frozen=True, eq=False)
class About:
    """Result of the first sum for the numbers, sent with the second; shape (numbers,).

    ``scale`` is a power of two, at least the root mean square distance from ``centre``; no value is
    farther than ``reach`` scales. ``spread`` approximates the deviation of most values; ``gaps`` is
    whether values are missing. The last four fields are not by column.
    """

    count: Floats
    centre: Floats
    scale: Floats
    reach: Floats
    spread: Floats
    gaps: Floats
    decimals: Floats
    edges: Floats
    sizes: Floats
    rows: float
    group: str
    products: bool
    seed: int

    def bins(self) -> list[Floats]:
        """Return the edges of the bins of each column."""
        ends = np.cumsum(self.sizes.astype(np.intp))[:-1]
        return np.split(self.edges, ends) if len(self.sizes) else []

    def units(self, values: Floats, k: int) -> Floats:
        """Return distances of values from a column's centre, in units of its scale."""
        return np.asarray((values - self.centre[k]) / self.scale[k])


# -- the second sum


def moment_shapes(plan: Plan, about: About) -> dict[str, tuple[int, ...]]:
    sets, (numbers, texts) = plan.sets(about.products), plan.beside(about.group)
    size = next((len(one.words) for one in plan.texts if one.name == about.group), 0)
    gaps = [int(about.gaps[one].sum()) for one in sets]
    pairs = [(len(one), n) for one, n in zip(sets, gaps, strict=True)]
    return {
        "rows": (len(plan.columns),),
        "words": (sum(len(one.words) + 1 for one in plan.texts),),
        "powers": (len(plan.numbers), 3),
        "bins": (int(about.sizes.sum()) - len(plan.numbers),),
        "products": (sum(d * (d + 1) // 2 for d, _ in pairs),),
        "known": (sum(2 * d * n + n * n for d, n in pairs),),
        "features": (len(sets), 2 * FEATURES),
        "groups": (len(numbers), size, 3),
        "cross": (size * sum(len(one.words) for one in texts),),
    }


def moments(plan: Plan, own: Mapping[str, Floats], about: About) -> Terms:
    """Return powers, bins, products and groups of a node's columns.

    Each number is divided by the number of values of all parties, so no party adds more than 1.
    """
    shapes = moment_shapes(plan, about)
    found: Terms = {name: np.zeros(shape) for name, shape in shapes.items()}
    found["rows"] = count_rows(plan, own) / about.rows
    found["words"] = count_words(plan, own) / about.rows
    units, bins = dict[int, Floats](), []
    for k, (one, edges) in enumerate(zip(plan.numbers, about.bins(), strict=True)):
        values = own.get(one.name, np.zeros(0))
        bins.append(count_bins(values, edges) / about.count[k])
        units[k] = z = about.units(values, k)
        z, n = z[np.isfinite(z)], about.count[k]
        found["powers"][k] = z.sum() / n, (z**2).sum() / n, (z**3).sum() / n / about.reach[k]
    found["bins"] = np.concatenate([*bins, np.zeros(0)])
    parts: dict[str, list[Floats]] = {"products": [], "known": [], "features": []}
    for whole in plan.sets(about.products):
        z = np.column_stack([units[k] for k in whole])
        there, z = np.isfinite(z).astype(np.float64), np.nan_to_num(z)
        root, gaps = np.sqrt(about.count[whole]), about.gaps[whole] > 0.0
        part = there[:, gaps]
        parts["products"].append((z.T @ z / np.outer(root, root))[np.triu_indices(len(whole))])
        across = np.outer(root, root[gaps])
        parts["known"] += [
            (z.T @ part / across).ravel(),
            ((z**2).T @ part / about.count[whole][:, None]).ravel(),
            (part.T @ part / across[gaps]).ravel(),
        ]
        z = z * (about.scale / about.spread)[whole]
        parts["features"].append(features(z, about.seed).sum(axis=0) / about.rows)
    for name in ("products", "known"):
        found[name] = np.concatenate([*parts[name], np.zeros(0)])
    found["features"] = np.array(parts["features"]).reshape(shapes["features"])
    numbers, texts = plan.beside(about.group)
    if about.group in own:
        hot = _one_hot(own[about.group], shapes["groups"][1])
        for place, k in enumerate(numbers):
            z = units[k]
            powers = np.stack([np.isfinite(z), np.nan_to_num(z), np.nan_to_num(z) ** 2], axis=1)
            found["groups"][place] = hot.T @ powers / about.count[k]
        cross = [(hot.T @ _one_hot(own[c.name], len(c.words))).ravel() / about.rows for c in texts]
        found["cross"] = np.concatenate([*cross, np.zeros(0)])
    return {name: np.clip(part, -1.0, 1.0) for name, part in found.items()}


# -- with a budget of privacy: public columns, one sum


def noisy_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    words = sum(len(one.words) + 1 for one in plan.texts)
    n = len(plan.numbers)
    return {
        "rows": (len(plan.columns),),
        "powers": (n, 3),
        "bins": (sum(len(range_edges(*one.range)) - 1 for one in plan.numbers),),
        "words": (words,),
    }


def noisy_reach(plan: Plan) -> float:
    """Return by how much replacing a row moves the terms, before the division."""
    # A known number in [-1, 1] has the terms 1, z, its square and a bin. Two rows differ by squares
    # of at most 4 in the first three, and 2 in the bins; by 2 in a category.
    return float(np.sqrt(6.0 * len(plan.numbers) + 2.0 * len(plan.texts)))


def noisy_terms(plan: Plan, own: Mapping[str, Floats]) -> Terms:
    """Return rows, powers, bins and categories, divided by the reach of a row."""
    found = {name: np.zeros(shape) for name, shape in noisy_shapes(plan).items()}
    found["rows"][:], found["words"][:] = count_rows(plan, own), count_words(plan, own)
    bins = [np.zeros(0)]
    for k, one in enumerate(plan.numbers):
        low, high = one.range
        values = own.get(one.name, np.zeros(0))
        values = np.clip(values[np.isfinite(values)], low, high)
        z = np.clip(2.0 * (values - low) / (high - low) - 1.0, -1.0, 1.0)
        found["powers"][k] = len(z), z.sum(), (z**2).sum()
        bins.append(count_bins(values, range_edges(low, high)))
    found["bins"] = np.concatenate(bins)
    return {name: part / noisy_reach(plan) for name, part in found.items()}
