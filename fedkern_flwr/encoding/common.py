"""Common encoders: what the holders of a block sum, and the encoder that the sums make.

Holders of a block have the same columns of different rows. Numbers, booleans and dates (in days)
are counted in bins (:mod:`.bins`); of dates weekday, month and hour as well. Categories are counted
in buckets, by a hash of their names under a secret of the holders: the server, which does not have
it, sees how many rows each has and not what it is called, and a holder encodes categories that it
does not have itself. Two categories in one bucket are one: of 20 some are with probability 1.2 %.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..align.column_ranges import Centre, Statistics
from ..errors import ProtocolError, TableError
from ..tables.table import Kind, Table
from .bins import (
    COARSE,
    DECIMALS,
    FINE,
    binned_facts,
    coarse_edges,
    count_bins,
    count_strays,
    decimals_of,
    fine_edges,
)
from .categories import BUCKETS, Categories, Category, bucket_of, column_key
from .columns import DAY, PARTS, Column, Date, Number, Scaling, parts_of_dates
from .encoder import Encoder
from .facts import CategoryFacts, Floats, NumberFacts

#: Letters of what columns hold, which are sent without names.
LETTERS: Mapping[Kind, str] = {"number": "n", "boolean": "b", "date": "d", "category": "c"}

_CLOCK = (7, 12, 24)  # weekdays, months, hours


@dataclass(frozen=True, eq=False)
class Histograms:
    """The first histograms of the columns that are not categories, over all holders.

    Attributes
    ----------
    counts : ndarray of float64, shape (d, COARSE)
        Values in each bin.
    strays : ndarray of float64, shape (d, DECIMALS)
        Values with more than 0, 1, 2 and 3 decimals.
    """

    counts: Floats
    strays: Floats

    def edges(self, centre: Centre, bound: float) -> list[Floats]:
        """Return the edges of the second bins of each column."""
        first = _first_edges(centre, bound, len(self.counts))
        columns = zip(first, self.counts, self.strays, strict=True)
        return [fine_edges(own, counts, decimals_of(strays)) for own, counts, strays in columns]


def numeric(kinds: str) -> int:
    """Return how many columns are not categories."""
    return len(kinds) - kinds.count("c")


def first_length(kinds: str) -> int:
    """Return how many numbers the first histograms of a block have."""
    return numeric(kinds) * (COARSE + DECIMALS)


def second_length(kinds: str) -> int:
    """Return how many numbers the second histograms and the counts of a block have."""
    dates, categories = kinds.count("d"), kinds.count("c")
    return numeric(kinds) * FINE + dates * sum(_CLOCK) + categories * BUCKETS


# -- at a holder


class OwnColumns:
    """The columns of a holder.

    Parameters
    ----------
    table : Table
        Its rows, with gaps as NaN.
    secret : bytes
        Of the holders, not of the server.

    Attributes
    ----------
    kinds : str
        What they hold, a letter for each column.
    keys : dict
        Column of categories -> its own key.
    x : ndarray of float64, shape (n, d)
        The cells; of categories the buckets, which are the same whatever other rows have.
    """

    def __init__(self, table: Table, secret: bytes) -> None:
        self.table = table
        found = [table.kinds.get(name, "number") for name in table.columns]
        self.kinds = "".join(LETTERS[kind] for kind in found)
        self.keys: dict[str, bytes] = {}
        self.x = table.x.copy()
        for k, (name, letter) in enumerate(zip(table.columns, self.kinds, strict=True)):
            if letter == "c":
                key = self.keys[name] = column_key(secret, name)
                buckets = [*(bucket_of(key, one) for one in table.categories[name]), np.nan]
                known = np.isfinite(table.x[:, k])
                places = np.where(known, table.x[:, k], len(buckets) - 1).astype(np.intp)
                self.x[:, k] = np.array(buckets)[places]

    @property
    def numeric(self) -> list[int]:
        """Positions of the columns that are not categories."""
        return [k for k, letter in enumerate(self.kinds) if letter != "c"]

    def numbers(self) -> Floats:
        """Return the columns that are not categories, dates in days."""
        units = np.array([DAY if self.kinds[k] == "d" else 1.0 for k in self.numeric])
        return np.asarray(self.x[:, self.numeric] / units)

    def first(self, centre: Centre, bound: float) -> Floats:
        """Return the first histograms and the counts of decimals, one after the other."""
        columns = self.numbers().T
        counts = zip(columns, _first_edges(centre, bound, len(columns)), strict=True)
        found = [count_bins(*one) for one in counts] + [count_strays(one) for one in columns]
        return np.concatenate([*found, np.zeros(0)])

    def second(self, edges: Sequence[Floats]) -> Floats:
        """Return the second histograms, the counts of parts of dates and those of buckets."""
        found = [count_bins(*one) for one in zip(self.numbers().T, edges, strict=True)]
        for k, letter in enumerate(self.kinds):
            if letter == "d":
                parts = parts_of_dates(self.x[:, k], 0.0)[1:]
                found += [count_bins(*one) for one in zip(parts, _CLOCK_EDGES, strict=True)]
        for k, letter in enumerate(self.kinds):
            if letter == "c":
                known = self.x[np.isfinite(self.x[:, k]), k].astype(np.intp)
                found.append(np.bincount(known, minlength=BUCKETS).astype(np.float64))
        return np.concatenate(found)

    def named(self, text: str) -> Encoder:
        """Return the common encoder, which came without names.

        Raises
        ------
        TableError
            It is none, or does not fit the columns.
        """
        try:
            encoder = Encoder.from_dict(json.loads(text, parse_constant=_refuse))
        except ValueError:
            encoder = Encoder(())
        found = "".join(LETTERS[one.kind] for one in encoder.columns)  # type: ignore[index]
        if found != self.kinds:
            raise TableError("the common encoder does not fit the columns of this node")
        columns = zip(encoder.columns, self.table.columns, strict=True)
        return Encoder(tuple(self._named(column, name) for column, name in columns))

    def _named(self, column: Column, name: str) -> Column:
        if isinstance(column, Category):
            return replace(column, name=name, key=self.keys[name].hex())
        if isinstance(column, Date):
            parts = zip(column.parts, PARTS, strict=True)
            own = tuple(replace(part, name=f"{name}[{one}]") for part, one in parts)
            return replace(column, name=name, parts=own)
        return replace(column, name=name)


# -- at the server


def read_first(total: Floats, kinds: str, rows: int) -> Histograms:
    """Return what the total of the first histograms says, which is per row of the block."""
    counts, strays = np.split(np.rint(total * rows), [numeric(kinds) * COARSE])
    return Histograms(counts.reshape(-1, COARSE), strays.reshape(-1, DECIMALS))


def common_encoder(
    total: Floats,
    kinds: str,
    rows: int,
    edges: Sequence[Floats],
    first: Histograms,
    found: Statistics,
    scaling: Scaling = "auto",
    categories: Categories = "auto",
) -> Encoder:
    """Return the encoder of a block, whose columns are called by their numbers.

    Parameters
    ----------
    total : ndarray
        Of the second histograms and the counts, per row of the block.
    kinds : str
        What the columns hold.
    rows : int
        Rows of the block.
    edges : sequence of ndarray
        Of the second bins.
    first : Histograms
        The first ones.
    found : Statistics
        Of the columns that are not categories.
    scaling, categories
        What columns become, see :meth:`.Encoder.fit`.

    Raises
    ------
    ProtocolError
        There are not so many values as in the sums before.
    """
    dates, texts = kinds.count("d"), kinds.count("c")
    sizes = [FINE] * numeric(kinds) + [*_CLOCK] * dates + [BUCKETS] * texts
    counts = np.split(np.rint(total * rows), np.cumsum(sizes)[:-1])
    known = np.array([part.sum() for part in counts])
    if (
        min(part.min() for part in counts) < 0.0
        or (known[: numeric(kinds)] != found.count[: numeric(kinds)]).any()
        or not ((known > 0.0) & (known <= rows)).all()
    ):
        raise ProtocolError(
            "histograms have other counts than the sums before: a party did not keep to the "
            "protocol",
            remedy="run the same release on all nodes and look at their logs",
        )
    bins, clocks = iter(counts), iter(counts[numeric(kinds) :])
    buckets = iter(counts[len(counts) - texts :])
    columns: list[Column] = []
    number = 0
    for k, letter in enumerate(kinds):
        name = str(k)
        if letter == "c":
            columns.append(_category(name, next(buckets), rows, categories))
            continue
        mean, deviation = float(found.mean[number]), float(found.deviation[number])
        decimals = decimals_of(first.strays[number])
        facts = binned_facts(edges[number], next(bins), decimals, rows, mean, deviation)
        own = Number.of(name, facts, scaling, "encode", boolean=letter == "b")
        if letter == "d":
            more = (_clock(next(clocks), start, rows) for start in _STARTS)
            parts = [own, *(Number.of(name, one, scaling, "encode") for one in more)]
            columns.append(Date(name, "encode", 0.0, tuple(parts)))
        else:
            columns.append(own)
        number += 1
    return Encoder(tuple(columns))


_STARTS = (0, 1, 0)  # Monday, January, midnight
_CLOCK_EDGES = [
    np.arange(start - 0.5, start + size) for start, size in zip(_STARTS, _CLOCK, strict=True)
]


def _clock(counts: Floats, start: int, rows: int) -> NumberFacts:
    """Return the facts of a part of dates, by how many rows have each value."""
    values = start + np.arange(len(counts))
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    edges = np.append(values - 0.5, values[-1] + 0.5)
    return binned_facts(edges, counts, 0, rows, float(mean), float(deviation))


def _category(name: str, counts: Floats, rows: int, how: Categories) -> Category:
    """Return a column of categories; rare ones are not told apart."""
    found = {str(k): int(counts[k]) for k in np.flatnonzero(counts)}
    facts = CategoryFacts(rows, rows - int(counts.sum()), found)
    return Category.of(name, facts, "encode", how=how)


def _first_edges(centre: Centre, bound: float, d: int) -> list[Floats]:
    """Return the edges of the first bins; the labels, which are not encoded, come last."""
    columns = zip(centre.mean[:d], centre.scale[:d], strict=True)
    return [coarse_edges(float(mean), float(scale), bound) for mean, scale in columns]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
