"""One encoder for all nodes: what each says of its columns, and what they agree on."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..align.column_ranges import (
    Centre,
    Statistics,
    first_pass,
    read_first_pass,
    read_second_pass,
    second_pass,
)
from ..alignment import KEY_BYTES
from ..errors import OptionError, ProtocolError, TableError
from ..guard.cells import counts, histogram
from ..plain_text import read_json
from ..tables.table import Kind, Table
from .columns import (
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
    Floats,
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
from .encoder import Encoder, Told

# -- common encoders: what the holders of a block sum, and the encoder that the sums make
#
# Holders of a block have the same columns of different rows. Numbers, booleans and dates (in days)
# are summed up and counted in bins, twice (:mod:`.columns`, :mod:`..align.column_ranges`); of dates
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
    """What the first sum says, which the second is asked with.

    Attributes
    ----------
    centre : Centre
        Of the columns that are not categories; of labels, where they are summed, last.
    places : ndarray of float64, shape (d, 2)
        Where most values of an encoded column are, and within how much.
    counts : ndarray of float64, shape (d, COARSE)
        Values in each bin.
    strays : ndarray of float64, shape (d, DECIMALS)
        Values with more than 0, 1, 2 and 3 decimals.
    splits : int
        By how many bins the second sum splits those of the first, at most.
    buckets : int
        In how many buckets the second sum counts categories: none where they are hashed.
    """

    centre: Centre
    places: Floats
    counts: Floats
    strays: Floats
    splits: int = SPLITS
    buckets: int = BUCKETS

    @classmethod
    def nothing(cls) -> Coarse:
        """Return what is known of categories alone."""
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
        """A digest of all of it."""
        parts = [*vars(self.centre).values(), self.places, self.counts, self.strays]
        plain = b"".join(part.tobytes() for part in parts)
        return hashlib.sha256(b"%d/%d/" % (self.splits, self.buckets) + plain).hexdigest()

    def fits(self, columns: int, encoded: int) -> bool:
        """Tell whether it is of so many columns, of which so many are encoded."""
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


def numeric(kinds: str) -> int:
    """Return how many columns are not categories."""
    return len(kinds) - kinds.count("c")


def coarse_length(kinds: str, columns: int, circles: int = CIRCLES) -> int:
    """Return how many numbers the first sum has, of so many columns that are not categories."""
    return 3 * columns + numeric(kinds) * (COARSE + DECIMALS + 2 * circles)


def fine_length(kinds: str, asked: Coarse, bound: float, columns: int) -> int:
    """Return how many numbers the second sum has, for what it is asked with."""
    return 2 * columns + sum(_sizes(kinds, asked.edges(bound), asked.buckets))


def coarse_numbers(kinds: str, columns: int, rows: int, circles: int = CIRCLES) -> float:
    """Return the numbers that the first sum amounts to: counts are less than numbers."""
    own = histogram(COARSE, rows) + counts(DECIMALS, rows) + 2 * circles
    return 3 * columns + numeric(kinds) * own


def fine_numbers(kinds: str, length: int, columns: int, rows: int, buckets: int = BUCKETS) -> float:
    """Return the numbers that a second sum of that length amounts to."""
    dates, categories = kinds.count("d"), kinds.count("c")
    own = dates * sum(histogram(cells, rows) for cells in _CLOCK)
    own += categories * histogram(buckets + 1, rows)
    bins = length - 2 * columns - dates * sum(_CLOCK) - categories * (buckets + 1)
    return 2 * columns + own + counts(bins, rows)


def _sizes(kinds: str, edges: Sequence[Floats], buckets: int) -> list[int]:
    """Return how many numbers each of the second histograms has."""
    dates, categories = kinds.count("d"), kinds.count("c")
    # of categories one number more: rows of rare ones
    return [*(len(own) - 1 for own in edges), *[*_CLOCK] * dates, *[buckets + 1] * categories]


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

    def digest_of_key(self, secret: bytes, session: str) -> str:
        """Return what tells whether all holders have the same secret, and not which."""
        if not self.keys or len(secret) < KEY_BYTES:
            return ""  # of a short one the digest would tell more; see check_secret
        label = f"fedkern-flwr category key/{session}".encode()
        return hmac.digest(secret, label, "sha256").hex()[:16]

    def check_secret(self, secret: bytes, party: str) -> None:
        """Refuse to count categories under a secret that can be guessed.

        Raises
        ------
        OptionError
        """
        if self.keys and len(secret) < KEY_BYTES:
            raise OptionError(
                f"column {next(iter(self.keys))!r} holds text, and there is no secret of the "
                f"holders, {KEY_BYTES} bytes or longer, to hide its categories",
                remedy="draw one with python3 -c 'import secrets; print(secrets.token_hex(32))' "
                "and give it to all holders as category-key, not to the server",
                party=party,
                code="FK-CATEGORIES-KEY",
            )

    def coarse(self, x: Floats, bound: float, rows: int, circles: int = CIRCLES) -> Floats:
        """Return this holder's part of the first sum, per row of the block.

        ``x`` are :meth:`numbers`, and the labels where they are summed. With fewer ``circles`` the
        place of most values is found less exactly; without any it is unknown.
        """
        columns, edges = self.numbers().T, coarse_edges(bound)
        found = [first_pass(x, bound, rows), *(count_bins(one, edges) / rows for one in columns)]
        found += [count_strays(one) / rows for one in columns]
        return np.concatenate(
            [*found, *(sum_phases(one, bound, circles) / rows for one in columns)]
        )

    def tell(self, before: Mapping[str, Told], least: int) -> dict[str, Told]:
        """Return what may be told of each column of categories, after what was told before."""
        return {
            name: before.get(name, Told()).follow(counts, len(self.x), least)
            for name, counts in self.count_categories().items()
        }

    def count_categories(self) -> dict[str, dict[str, int]]:
        """Return column -> category -> rows."""
        found = {}
        for k, letter in enumerate(self.kinds):
            if letter == "c":
                name, column = self.table.columns[k], self.table.x[:, k]
                known = column[np.isfinite(column)].astype(np.intp)
                words = self.table.categories[name]
                counts = np.bincount(known, minlength=len(words)).tolist()
                found[name] = dict(zip(words, counts, strict=True))
        return found

    def fine(
        self,
        x: Floats,
        asked: Coarse,
        bound: float,
        rows: int,
        least: int = 0,
        told: Mapping[str, Told] | None = None,
    ) -> Floats:
        """Return its part of the second sum: distances and their squares, histograms, counts.

        ``told`` is what may be told of :meth:`count_categories`, by default all of it.
        """
        # never beyond 1 about the true centre; clipped, that about another one tells nothing
        found = [np.clip(second_pass(x, asked.centre), -1.0, 1.0)]
        columns = zip(self.numbers().T, asked.edges(bound), strict=True)
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
        """Return the common encoder, which came without names.

        Raises
        ------
        TableError
            It is none, or does not fit the columns.
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


# -- at the server


def check_kinds(party: Any, first: Any) -> None:
    """Refuse a holder of a block that cannot have a common encoder with the first one.

    Raises
    ------
    ProtocolError
    """
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


def read_coarse(
    total: Floats, kinds: str, columns: int, bound: float, rows: int, holders: int
) -> Coarse:
    """Return what the first sum says, which is per row of the block.

    Raises
    ------
    ProtocolError
        It cannot be that of rows that all holders have values in.
    """
    d = numeric(kinds)
    ends = np.cumsum([3 * columns, d * COARSE, d * DECIMALS])
    passed, counts, strays, phases = np.split(total, ends)
    centre = read_first_pass(passed, bound, rows, holders)
    sums = zip(
        rows * phases.reshape(d, phases.size // max(d, 1)), centre.count.tolist(), strict=False
    )
    places = [read_phases(own, count, bound) for own, count in sums]
    return Coarse(
        centre,
        np.array(places).reshape(d, 2),
        np.rint(rows * counts).reshape(d, COARSE),
        np.rint(rows * strays).reshape(d, DECIMALS),
    )


def read_fine(
    total: Floats,
    kinds: str,
    asked: Coarse,
    bound: float,
    rows: int,
    holders: int,
    scaling: Scaling = "auto",
    categories: Categories = "auto",
) -> tuple[Statistics, Encoder]:
    """Return what the second sum says: statistics, and the encoder, named by numbers of columns.

    Parameters
    ----------
    total : ndarray
        The sum.
    kinds : str
        What the columns hold.
    asked : Coarse
        What it was asked with.
    bound : float
        B, no value is larger.
    rows, holders : int
        Of the block.
    scaling, categories
        What columns become, see :meth:`.Encoder.fit`.

    Raises
    ------
    ProtocolError
        There are not so many values as in the sum before.
    """
    edges, texts = asked.edges(bound), kinds.count("c")
    passed, histograms = np.split(total, [2 * len(asked.centre.mean)])
    found = read_second_pass(passed, asked.centre, holders)
    counts = np.split(
        np.rint(histograms * rows), np.cumsum(_sizes(kinds, edges, asked.buckets))[:-1]
    )
    known = np.array([part.sum() for part in counts])
    if (
        min(part.min() for part in counts) < 0.0
        or (known[: numeric(kinds)] != found.count[: numeric(kinds)]).any()
        or not ((known > 0.0) & (known <= rows))[: len(known) - texts].all()
        or not (known <= rows).all()
    ):
        raise ProtocolError(
            "histograms have other counts than the sums before: a party did not keep to the "
            "protocol",
            remedy="run the same release on all nodes and look at their logs",
            code="FK-SUM-TOTAL",
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
    """Return the facts of a part of dates, by how many rows have each value."""
    values = start + np.arange(len(counts))
    mean = np.average(values, weights=counts)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=counts))
    edges = np.append(values - 0.5, values[-1] + 0.5)
    return binned_facts(edges, counts, 0, rows, float(mean), float(deviation))


def _category(name: str, counts: Floats, rows: int, how: Categories) -> Category:
    """Return a column of categories; rare ones are not told apart."""
    found = {str(k): int(counts[k]) for k in np.flatnonzero(counts[:-1])}
    facts = CategoryFacts(rows, rows - int(counts.sum()), found)
    # a holder has at least two categories among those that it counts together
    return Category.of(name, facts, "encode", how=how, merged=2 * bool(counts[-1]))


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
