"""Compute common ranges and encoders of columns: messages, sums of holders, and their results."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..alignment import KEY_BYTES
from ..encoding.columns import (
    BUCKETS,
    CIRCLES,
    COARSE,
    DAY,
    DECIMALS,
    PARTS,
    SPLITS,
    Categories,
    Category,
    CategoryFacts,
    Column,
    Date,
    Number,
    NumberFacts,
    Scaling,
    binned_facts,
    bucket_of,
    coarse_edges,
    column_key,
    count_bins,
    count_strays,
    decimals_of,
    fine_edges,
    parts_of_dates,
    read_phases,
    sum_phases,
)
from ..encoding.encoder import Encoder, Told
from ..errors import OptionError, ProtocolError, TableError
from ..guard.cells import counts, histogram
from ..plain_text import read_json
from ..secure_sum import Encoding
from ..tables.table import Kind, Table
from ..wire.describe import DescribeReply
from ..wire.message import Message, array

# -- messages of a run that sums the statistics of columns
#
# Columns are sent without names. If labels are requested, they are the last column. Session and
# number of the exchange are set when a request is sent, the number of a reply by the client.

#: Counts, sums and sums of squares of the columns of a block; of columns that are to be encoded
#: the first histograms.
MEANS_SUM = "column means"
#: Sums of their distances from the mean, and of the squares of these; of columns that are to be
#: encoded the second histograms, and how many rows have each category.
DEVIATIONS_SUM = "column deviations"

Floats = NDArray[np.float64]


class RangesDescribeReply(DescribeReply):
    """Describe a node."""

    long_texts = ("kinds",)

    block: str  # nodes with the same block have the same columns
    labelled: bool  # whether it has labels
    units: str  # digest of the units of its columns
    kinds: str  # a letter for each column that is to be encoded, see LETTERS
    secret_digest: str  # of the session and what hides categories


class RangesRequest(Message):
    pinned: ClassVar[tuple[str, ...]] = ("labels",)

    session: str = ""
    round: int = 0
    labels: bool  # whether the labels are a column


class RangesReply(Message):
    round: int = 0


class MeansRequest(RangesRequest, phase="ranges-means"):
    """Request the first pass."""

    pinned = ("bound", "circles")

    rows: int  # of all holders of the block
    bound: float  # public, on the magnitude of all values
    circles: int  # on which the place of most values of a column is looked for


class MeansReply(RangesReply, phase="ranges-means"):
    """Reply of the first pass."""


class DeviationsRequest(RangesRequest, phase="ranges-deviations"):
    """Request the second pass; see :class:`Coarse`."""

    count: Floats = array("columns", dtype="float64")
    mean: Floats = array("columns", dtype="float64")
    scale: Floats = array("columns", dtype="float64")
    places: Floats = array("encoded", "bounds", dtype="float64")
    counts: Floats = array("encoded", "bins", dtype="float64")
    strays: Floats = array("encoded", "decimals", dtype="float64")
    splits: int
    buckets: int


class DeviationsReply(RangesReply, phase="ranges-deviations"):
    """Reply of the second pass."""


class WriteRequest(RangesRequest, phase="ranges-write"):
    """Request to write the files to the node's disk, and to erase the run."""

    long_texts = ("encoder",)

    encoder: str = ""  # the common encoder as JSON, without names of columns
    scaling: str = "auto"  # what encoded columns become, for a node that is alone
    categories: str = "auto"
    alone: bool  # the only holder of its block takes its least and greatest values
    clip: bool  # whether readers of the files clip values beyond the ranges
    low: Floats = array("columns", dtype="float64")  # of no columns for a node that is alone
    high: Floats = array("columns", dtype="float64")


class WriteReply(RangesReply, phase="ranges-write"):
    """The files are written."""


# -- ranges of columns from sums over all holders: two passes, so that no digit is lost
#
# The first pass sums count, values and squares in units of the public bound B. In a ring of 64
# bits, squares up to B^2 have few digits for a column with a small spread compared with its values,
# and float64 has lost them anyway. So the first pass only locates a column (``mean``, m) and bounds
# its spread (``scale``, S); the second sums (x - m) / S and its square.
#
# With N holders the error of each total is at most ``resolution(N)`` r, about N^2 2^-61. Mean and
# deviation are those of the pooled rows to 1e-9 of the deviation (and the rounding of a float64),
# if the deviation is at least 2^-32 B with up to ten holders: 2e-4 for B = 2^20, and some hundred
# times less for columns that are small compared with B. Deviations below S sqrt(16 r), about 2^-53
# B, count as zero.


#: Name of the label among the ranges.
LABEL = "label"
#: Of all sums: no contribution is larger than 1, but for rounding.
ENCODING = Encoding.fixed_point(2.0)
#: Public bound on the magnitude of all values.
DEFAULT_BOUND = 2.0**20

_ROUNDING = 2.0**-44  # relative, of sums of squares added up in float64


def resolution(holders: int) -> float:
    """Return the largest error of a total: each holder rounds to half a step of the ring."""
    return holders * 2.0 ** -(ENCODING.fraction_bits(holders) + 1)


@dataclass(frozen=True, eq=False)
class Centre:
    """Result of the first pass for the columns of a block.

    Attributes
    ----------
    count : ndarray of float64, shape (d,)
        Non-missing values of each column, over all holders.
    mean : ndarray of float64, shape (d,)
        Approximate mean.
    scale : ndarray of float64, shape (d,)
        Powers of two, at least the root mean square distance from ``mean``.
    """

    count: Floats
    mean: Floats
    scale: Floats


@dataclass(frozen=True, eq=False)
class Statistics:
    """Count, mean and standard deviation (of these rows) of non-missing values, shape (d,)."""

    count: Floats
    mean: Floats
    deviation: Floats


def check_values(x: Floats, names: Sequence[str], party: str) -> None:
    """Refuse columns with an infinite value or with none.

    If a column were empty at all holders but one, its sums would be those of that one.
    """
    for name, values in zip(names, x.T, strict=True):
        if infinite := int(np.isinf(values).sum()):
            raise TableError(
                f"column {name!r} is infinite in {infinite} rows",
                party=party,
                code="FK-VALUES-FINITE",
            )
        if np.isnan(values).all():
            raise TableError(
                f"column {name!r} has no value: its sums would be those of the other holders alone",
                party=party,
                code="FK-BLOCK-EMPTY",
            )


def beyond(x: Floats, bound: float) -> list[int]:
    """Return the numbers of the columns with a magnitude beyond the bound."""
    return np.flatnonzero(np.nanmax(np.abs(x), axis=0) > bound).tolist()


def first_pass(x: Floats, bound: float, rows: int) -> Floats:
    """Return a holder's counts, sums and sums of squares, divided by the block's rows.

    ``x`` has shape (n, d), with NaN for missing values, and magnitudes up to ``bound``. The result
    has shape (3 d,), numbers of at most 1.
    """
    known, values = _known(x)
    values /= bound
    return np.concatenate([known, values.sum(1), (values**2).sum(1)]) / rows


def read_first_pass(total: Floats, bound: float, rows: int, holders: int) -> Centre:
    """Decode the totals of the first pass; ProtocolError if they are impossible."""
    share, first, second = total.reshape(3, -1)
    count = np.rint(share * rows)
    if not ((count >= holders) & (count <= rows)).all():
        raise ProtocolError(
            "a column has fewer values than holders, or more than rows: a party did not keep to "
            "the protocol",
            remedy="run the same release on all nodes and look at their logs",
            code="FK-SUM-TOTAL",
        )
    per_value = rows / count
    mean, square = first * per_value, np.maximum(second * per_value, 0.0)
    slack = _ROUNDING * square + 4.0 * resolution(holders) * per_value
    spread = np.sqrt(np.maximum(square - mean**2, 0.0) + slack)
    return Centre(count, bound * mean, np.exp2(np.ceil(np.log2(bound * spread))))


def second_pass(x: Floats, centre: Centre) -> Floats:
    """Return a holder's sums of distances from the centre and of their squares, shape (2 d,).

    They are in units of ``scale``, divided by the column's count: numbers of at most 1.
    """
    distances = _known(x - centre.mean)[1]
    distances /= centre.scale[:, None]
    both = np.concatenate([distances.sum(1), (distances**2).sum(1)])
    return np.asarray(both / np.tile(centre.count, 2))


def read_second_pass(total: Floats, centre: Centre, holders: int) -> Statistics:
    """Return mean and deviation of each column."""
    shift, square = total.reshape(2, -1)
    variance = square - shift**2
    variance[variance <= 16.0 * resolution(holders)] = 0.0
    mean = centre.mean + centre.scale * shift
    return Statistics(centre.count, mean, centre.scale * np.sqrt(variance))


def summed_ranges(found: Statistics, deviations: float) -> Floats:
    """Return mean - k and mean + k deviations of each column, shape (2, d)."""
    half = deviations * found.deviation
    return _widened(found.mean - half, found.mean + half)


def own_ranges(x: Floats) -> Floats:
    """Return the least and the greatest value of each column, shape (2, d)."""
    return _widened(np.nanmin(x, axis=0), np.nanmax(x, axis=0))


def _widened(low: Floats, high: Floats) -> Floats:
    """Widen the range of a constant column to its magnitude, at least 1, around its value."""
    middle = 0.5 * low + 0.5 * high
    half = np.where(low < high, 0.0, 0.5 * np.maximum(1.0, np.abs(middle)))
    return np.stack([low - half, high + half])


def _known(x: Floats) -> tuple[Any, Floats]:
    """Return the count of each column, and the transposed columns with 0 for missing values.

    Each column is then contiguous: NumPy sums it pairwise, with little rounding.
    """
    columns = np.array(x.T, dtype=np.float64, order="C")
    missing = np.isnan(columns)
    columns[missing] = 0.0
    return (~missing).sum(axis=1), columns


# -- common encoders: what the holders of a block sum, and the encoder that the sums make
#
# Holders of a block have the same columns of different rows. Numbers, booleans and dates (in days)
# are summed up and counted in bins, twice (see above and :mod:`..encoding.columns`); of dates
# weekday, month and hour as well. Categories are counted in buckets, by a hash of their names under
# a secret of the holders. The server does not have it and sees how many rows each category has. How
# many these are may name a category, such as a blood group, and with the secret anybody can test
# names. So a holder counts categories of fewer than ``min_sum_rows`` of its rows together, and its
# counts change from run to run by so many rows or not at all. Where categories are hashed, no
# holder counts them. A holder encodes categories that it does not have itself. Two categories in
# one bucket are one: of 20 some are with probability 1.2 %.
#
# Two sums, one after the other: the *coarse* one over public bins, the *fine* one over bins that
# follow from it.

#: Letters of what columns hold, which are sent without names.
LETTERS: Mapping[Kind, str] = {"number": "n", "boolean": "b", "date": "d", "category": "c"}

_CLOCK = (7, 12, 24)  # weekdays, months, hours


@dataclass(frozen=True, eq=False)
class Coarse:
    """Result of the first sum, which the second request sends.

    Attributes
    ----------
    centre : Centre
        Of the columns that are not categories; of summed labels, last.
    places : ndarray of float64, shape (d, 2)
        Where most values of an encoded column are, and within which distance.
    counts, strays : ndarray of float64, shapes (d, COARSE) and (d, DECIMALS)
        Values in each bin, and with more than 0, 1, 2 and 3 decimals.
    splits : int
        Into how many bins the second sum splits those of the first, at most.
    buckets : int
        Number of buckets for categories in the second sum: 0 if they are hashed.
    """

    centre: Centre
    places: Floats
    counts: Floats
    strays: Floats
    splits: int = SPLITS
    buckets: int = BUCKETS

    @classmethod
    def nothing(cls) -> Coarse:
        """Return the result if all columns are categories."""
        none = np.zeros((3, 0)), np.zeros((0, 2)), np.zeros((0, COARSE)), np.zeros((0, DECIMALS))
        return cls(Centre(*none[0]), *none[1:])

    def edges(self, bound: float) -> list[Floats]:
        """Return the edges of the second bins of each encoded column."""
        rows = zip(self.counts, self.strays, self.places, strict=True)
        about = zip(self.centre.mean.tolist(), self.centre.scale.tolist(), strict=True)
        return [
            fine_edges(counts, decimals_of(strays), where, place, bound, self.splits)
            for (counts, strays, place), where in zip(rows, about, strict=False)
        ]

    @property
    def digest(self) -> str:
        parts = [*vars(self.centre).values(), self.places, self.counts, self.strays]
        plain = b"".join(part.tobytes() for part in parts)
        return hashlib.sha256(b"%d/%d/" % (self.splits, self.buckets) + plain).hexdigest()

    def fits(self, columns: int, encoded: int) -> bool:
        """Return whether shapes and values fit this number of columns."""
        centre, counts = self.centre, self.counts
        shapes = centre.count.shape, self.places.shape, counts.shape, self.strays.shape
        return bool(
            shapes == ((columns,), (encoded, 2), (encoded, COARSE), (encoded, DECIMALS))
            and ((centre.count > 0.0) & (centre.scale > 0.0)).all()
            and 0 <= self.splits <= SPLITS
            and self.buckets in (0, BUCKETS)
            and (self.places[:, 1] > 0.0).all()
            and not (counts < 0.0).any()
            and (counts.sum(axis=1) == centre.count[:encoded]).all()
        )


@dataclass(frozen=True)
class Block:
    """Public facts of the columns of a block, which decide its sums.

    ``kinds`` has a letter for each encoded column. ``columns`` are those with means: all but
    categories, plus summed labels. ``bound`` is that of all values.
    """

    kinds: str
    columns: int
    rows: int
    holders: int = 0
    bound: float = DEFAULT_BOUND

    @property
    def numeric(self) -> int:
        return len(self.kinds) - self.kinds.count("c")

    def coarse_length(self, circles: int = CIRCLES) -> int:
        """Return the length of the first sum."""
        return 3 * self.columns + self.numeric * (COARSE + DECIMALS + 2 * circles)

    def fine_length(self, asked: Coarse) -> int:
        """Return the length of the second sum."""
        return 2 * self.columns + sum(self._sizes(asked))

    def coarse_numbers(self, circles: int = CIRCLES) -> float:
        """Return the numbers that the first sum is equivalent to; counts weigh less."""
        own = histogram(COARSE, self.rows) + counts(DECIMALS, self.rows) + 2 * circles
        return 3 * self.columns + self.numeric * own

    def fine_numbers(self, length: int, buckets: int = BUCKETS) -> float:
        """Return the numbers that a second sum of ``length`` is equivalent to."""
        rows, dates, categories = self.rows, self.kinds.count("d"), self.kinds.count("c")
        own = dates * sum(histogram(cells, rows) for cells in _CLOCK)
        own += categories * histogram(buckets + 1, rows)
        bins = length - 2 * self.columns - dates * sum(_CLOCK) - categories * (buckets + 1)
        return 2 * self.columns + own + counts(bins, rows)

    def _sizes(self, asked: Coarse) -> list[int]:
        dates, categories = self.kinds.count("d"), self.kinds.count("c")
        bins = [len(own) - 1 for own in asked.edges(self.bound)]
        # of categories one number more: rows of rare ones
        return [*bins, *[*_CLOCK] * dates, *[asked.buckets + 1] * categories]

    def read_coarse(self, total: Floats) -> Coarse:
        """Decode the first sum, which is divided by the block's rows.

        Raises
        ------
        ProtocolError
            It is impossible for rows of all holders.
        """
        d, rows = self.numeric, self.rows
        ends = np.cumsum([3 * self.columns, d * COARSE, d * DECIMALS])
        passed, bins, strays, phases = np.split(total, ends)
        centre = read_first_pass(passed, self.bound, rows, self.holders)
        circles = rows * phases.reshape(d, phases.size // max(d, 1))
        places = [
            read_phases(own, count, self.bound)
            for own, count in zip(circles, centre.count.tolist(), strict=False)
        ]
        return Coarse(
            centre,
            np.array(places).reshape(d, 2),
            np.rint(rows * bins).reshape(d, COARSE),
            np.rint(rows * strays).reshape(d, DECIMALS),
        )

    def read_fine(
        self,
        total: Floats,
        asked: Coarse,
        scaling: Scaling = "auto",
        categories: Categories = "auto",
    ) -> tuple[Statistics, Encoder]:
        """Decode the second sum: statistics, and the encoder, with column numbers as names.

        Raises
        ------
        ProtocolError
            Its counts differ from the first sum's.
        """
        passed, histograms = np.split(total, [2 * self.columns])
        found = read_second_pass(passed, asked.centre, self.holders)
        if not self.kinds:
            return found, Encoder(())
        rows, d, edges = self.rows, self.numeric, asked.edges(self.bound)
        cells = np.split(np.rint(histograms * rows), np.cumsum(self._sizes(asked))[:-1])
        known, dated = np.array([part.sum() for part in cells]), len(cells) - self.kinds.count("c")
        if (
            min(part.min() for part in cells) < 0.0
            or (known[:d] != found.count[:d]).any()
            or not (known[:dated] > 0.0).all()
            or not (known <= rows).all()
        ):
            raise ProtocolError(
                "histograms have other counts than the sums before: a party did not keep to the "
                "protocol",
                remedy="run the same release on all nodes and look at their logs",
                code="FK-SUM-TOTAL",
            )
        bins, clocks, buckets = iter(cells), iter(cells[d:]), iter(cells[dated:])
        columns: list[Column] = []
        number = 0
        for k, letter in enumerate(self.kinds):
            name = str(k)
            if letter == "c":
                columns.append(_category(name, next(buckets), rows, categories))
                continue
            mean, deviation = float(found.mean[number]), float(found.deviation[number])
            decimals = decimals_of(asked.strays[number])
            facts = binned_facts(edges[number], next(bins), decimals, rows, mean, deviation)
            own = Number.of(name, facts, scaling, "encode", boolean=letter == "b")
            if letter == "d":
                more = (_clock(next(clocks), start, rows) for start in _STARTS)
                parts = [own, *(Number.of(name, one, scaling, "encode") for one in more)]
                columns.append(Date(name, "encode", 0.0, tuple(parts)))
            else:
                columns.append(own)
            number += 1
        return found, Encoder(tuple(columns))


_STARTS = (0, 1, 0)  # Monday, January, midnight
_CLOCK_EDGES = [
    np.arange(start - 0.5, start + size) for start, size in zip(_STARTS, _CLOCK, strict=True)
]


def _clock(counts: Floats, start: int, rows: int) -> NumberFacts:
    values = start + np.arange(len(counts))
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    edges = np.append(values - 0.5, values[-1] + 0.5)
    return binned_facts(edges, counts, 0, rows, float(mean), float(deviation))


def _category(name: str, counts: Floats, rows: int, how: Categories) -> Category:
    found = {str(k): int(counts[k]) for k in np.flatnonzero(counts[:-1])}
    facts = CategoryFacts(rows, rows - int(counts.sum()), found)
    # a holder has at least two categories among those that it counts together
    return Category.of(name, facts, "encode", how=how, merged=2 * bool(counts[-1]))


# -- at a holder


class OwnColumns:
    """The columns of a holder.

    ``secret`` is that of the holders, unknown to the server. ``x`` are the cells, shape (n, d); of
    categories the buckets, which do not depend on other rows.
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
        return [k for k, letter in enumerate(self.kinds) if letter != "c"]

    def numbers(self) -> Floats:
        """Return the columns that are not categories, dates in days."""
        units = np.array([DAY if self.kinds[k] == "d" else 1.0 for k in self.numeric])
        return np.asarray(self.x[:, self.numeric] / units)

    def digest_of_key(self, secret: bytes, session: str) -> str:
        """Return a digest that shows whether all holders have the same secret, but not which."""
        if not self.keys or len(secret) < KEY_BYTES:
            return ""  # the digest of a short one could be inverted; see check_secret
        label = f"fedkern-flwr category key/{session}".encode()
        return hmac.digest(secret, label, "sha256").hex()[:16]

    def check_secret(self, secret: bytes, party: str) -> None:
        """Refuse to count categories under a secret that can be guessed."""
        if self.keys and len(secret) < KEY_BYTES:
            raise OptionError(
                f"column {next(iter(self.keys))!r} holds text, and there is no secret of the "
                f"holders, {KEY_BYTES} bytes or longer, to hide its categories",
                remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))' "
                "and give it to all holders as category-key, not to the server",
                party=party,
                code="FK-CATEGORIES-KEY",
            )

    def coarse(self, x: Floats, block: Block, circles: int = CIRCLES) -> Floats:
        """Return this holder's part of the first sum, divided by the block's rows.

        ``x`` are :meth:`numbers`, and summed labels. With fewer ``circles`` the place of most
        values is less exact; with none it is unknown.
        """
        columns, bound, rows = self.numbers().T, block.bound, block.rows
        found = [first_pass(x, bound, rows)]
        found += [count_bins(one, coarse_edges(bound)) / rows for one in columns]
        found += [count_strays(one) / rows for one in columns]
        found += [sum_phases(one, bound, circles) / rows for one in columns]
        return np.concatenate(found)

    def tell(self, before: Mapping[str, Told], least: int) -> dict[str, Told]:
        """Return what may be reported of each column of categories, given earlier reports."""
        return {
            name: before.get(name, Told()).follow(rows, len(self.x), least)
            for name, rows in self.count_categories().items()
        }

    def count_categories(self) -> dict[str, dict[str, int]]:
        found = {}
        for k, letter in enumerate(self.kinds):
            if letter == "c":
                name, column = self.table.columns[k], self.table.x[:, k]
                known = column[np.isfinite(column)].astype(np.intp)
                words = self.table.categories[name]
                rows = np.bincount(known, minlength=len(words)).tolist()
                found[name] = dict(zip(words, rows, strict=True))
        return found

    def fine(
        self,
        x: Floats,
        block: Block,
        asked: Coarse,
        least: int = 0,
        told: Mapping[str, Told] | None = None,
    ) -> Floats:
        """Return its part of the second sum: distances and their squares, histograms, counts.

        ``told`` is what may be reported of :meth:`count_categories`. Default: all of it.
        """
        # at most 1 about the true centre; clipping makes a false centre useless
        found, rows = [np.clip(second_pass(x, asked.centre), -1.0, 1.0)], block.rows
        columns = zip(self.numbers().T, asked.edges(block.bound), strict=True)
        found += [count_bins(*one) / rows for one in columns]
        for k, letter in enumerate(self.kinds):
            if letter == "d":
                parts = parts_of_dates(self.x[:, k], 0.0)[1:]
                clocks = zip(parts, _CLOCK_EDGES, strict=True)
                found += [count_bins(*one) / rows for one in clocks]
        for name, one in (self.tell({}, 0) if told is None else told).items():
            places = {word: bucket_of(self.keys[name], word) for word in one.names}
            found.append(one.fill(places, asked.buckets, len(self.x), least) / rows)
        return np.concatenate(found)

    def named(self, text: str) -> Encoder:
        """Return the common encoder with this node's column names.

        Raises
        ------
        TableError
            It does not fit the columns.
        """
        try:
            encoder = Encoder.from_dict(read_json(text, parse_constant=_refuse))
        except ValueError:
            encoder = Encoder(())
        found = "".join(LETTERS[one.kind] for one in encoder.columns)  # type: ignore[index]
        if found != self.kinds:
            raise TableError(
                "the common encoder does not fit the columns of this node", code="FK-COLUMNS-DIFFER"
            )
        columns = zip(encoder.columns, self.table.columns, strict=True)
        return Encoder(tuple(self._named(column, name) for column, name in columns))

    def _named(self, column: Column, name: str) -> Column:
        if isinstance(column, Category):
            return replace(column, name=name, key=self.keys[name].hex())
        if isinstance(column, Date):
            parts = zip(column.parts, PARTS, strict=True)
            own = tuple(replace(part, name=f"{name}[{one}]") for part, one in parts)
            return replace(column, name=name, parts=own)
        return replace(column, name=name, unit=self.table.units.get(name, ""))


def check_kinds(party: Any, first: Any) -> None:
    """Refuse a holder that cannot have a common encoder with the first one of its block."""
    problem = ""
    if party.kinds and (
        len(party.kinds) != party.features or set(party.kinds) - set(LETTERS.values())
    ):
        problem = "what its columns hold is not told of each, unlike"
        remedy, code = "run the same release at all nodes", "FK-MESSAGE-VERSION"
    elif bool(party.kinds) != bool(first.kinds):
        problem = f"it makes {'an' if party.kinds else 'no'} encoder, unlike"
        remedy = "name encoder in --node-config of all holders of a block, or of none"
        code = "FK-ENCODERS-SOME"
    elif party.kinds != first.kinds:
        pairs = enumerate(zip(party.kinds, first.kinds, strict=True))
        k = next(k for k, (own, other) in pairs if own != other)
        problem = f"its column {k + 1} is read as something else than that of"
        remedy = "mend its cells, or name it among the categories in --node-config of all holders"
        code = "FK-COLUMN-KIND"
    elif party.secret_digest != first.secret_digest:
        problem = "its categories are hidden by another secret than those of"
        remedy = "give all holders of the block the same category-key"
        code = "FK-CATEGORIES-KEY"
    if problem:
        raise ProtocolError(
            f"{problem} partition {first.partition} in the same block",
            remedy=remedy,
            party=f"partition {party.partition}",
            phase="describe",
            code=code,
        )


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
