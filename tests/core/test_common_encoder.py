"""Common encoders: what the sums of several holders make is what their pooled rows make."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedkern_flwr.encoding import Encoder, bins
from fedkern_flwr.encoding import common as summed
from fedkern_flwr.encoding.categories import BUCKETS, HASHED, signed_bucket
from fedkern_flwr.encoding.facts import KNOTS
from fedkern_flwr.encoding.rare import Told, merge_rows
from fedkern_flwr.tables import Table

SECRET, BOUND, DAY = b"of the holders", 2.0**20, 86400.0
WORDS = np.array(["red", "blue", "green", "ochre", "Grün", "pale blue", "x", "y"])


class Common(NamedTuple):
    """A common encoder as the first holder has it, and what it was made of."""

    encoder: Encoder
    edges: list[np.ndarray]
    counts: list[np.ndarray]

    def outermost(self, j: int) -> float:
        """Return how wide the outermost bins with a value of a column are together."""
        used = np.flatnonzero(self.counts[j])
        return float(np.diff(self.edges[j])[[used[0], used[-1]]].sum())


def shared(columns: dict[str, tuple[str, Any]], n: int, holders: int = 3) -> Any:
    """Return how many holders' tables, and one of all their rows."""
    return deal(columns, np.array_split(np.arange(n), holders)), deal(columns, [np.arange(n)])[0]


def common(tables: Sequence[Table], scaling: Any = "rank", categories: Any = "auto") -> Common:
    """Return the encoder that the exact sums of holders make."""
    own = [summed.OwnColumns(table, SECRET) for table in tables]
    kinds, rows = own[0].kinds, sum(table.rows for table in tables)
    d, numbers = summed.numeric(kinds), [one.numbers() for one in own]
    how = BOUND, rows
    parts = [one.coarse(x, *how) for one, x in zip(own, numbers, strict=True)]
    assert {len(part) for part in parts} == {summed.coarse_length(kinds, d)}
    asked = summed.read_coarse(np.sum(parts, axis=0), kinds, d, *how, len(own))
    assert asked.fits(d, d)
    edges = asked.edges(BOUND)
    parts = [one.fine(x, asked, *how) for one, x in zip(own, numbers, strict=True)]
    assert {len(part) for part in parts} == {summed.fine_length(kinds, asked, BOUND, d)}
    total = np.sum(parts, axis=0)
    encoder = summed.read_fine(total, kinds, asked, *how, len(own), scaling, categories)[1]
    named = [one.named(encoder.to_json()) for one in own]
    assert all(other.to_json() == named[0].to_json() for other in named)
    sizes = np.cumsum([2 * d, *(len(one) - 1 for one in edges)])
    counts = np.split(np.rint(total * rows), sizes)[1:-1]
    return Common(named[0], edges, counts)


def deal(columns: dict[str, tuple[str, Any]], parts: Sequence[np.ndarray]) -> list[Table]:
    """Return tables of some rows each; a holder knows the categories that it has."""
    tables = []
    for rows in parts:
        x, kinds, categories = [], {}, {}
        for name, (kind, cells) in columns.items():
            values = np.asarray(cells)[rows]
            if kind == "category":
                known = values != ""
                found = np.unique(values[known])
                values = np.where(known, np.searchsorted(found, values), np.nan)
                categories[name] = tuple(found.tolist())
            if kind != "number":
                kinds[name] = kind
            x.append(values.astype(np.float64))
        tables.append(
            Table(np.column_stack(x), None, tuple(columns), kinds=kinds, categories=categories)  # type: ignore[arg-type]
        )
    return tables


def numbers(rng: np.random.Generator, n: int, how: str) -> np.ndarray:
    """Return numbers of many shapes."""
    made = {
        "normal": lambda: rng.normal(3.0, 7.0, n),
        "tiny": lambda: 1e5 + 1e-2 * rng.normal(size=n),
        "tails": lambda: rng.standard_cauchy(n).clip(-9e5, 9e5),
        "incomes": lambda: np.exp(3.0 * rng.normal(size=n)).clip(0.0, 1e6),
        "far": lambda: np.where(np.arange(n) == n // 2, 1e6, rng.random(n)),
        "ages": lambda: rng.integers(1, 90, n).astype(float),
        "tenths": lambda: np.round(10.0 * rng.random(n), 1),
        "few": lambda: rng.choice([0.1, 1.0 / 3.0, 7.0], n),
        "constant": lambda: np.full(n, np.pi),
        "years": lambda: np.where(rng.random(n) < 0.1, 0.0, 1950.0 + rng.integers(0, 70, n)),
        "shifted": lambda: 1e5 + np.exp(2.0 * rng.normal(size=n)),
        "late": lambda: 20_000.0 - np.round(np.exp(rng.normal(3.0, 1.5, n))),
    }
    return made[how]()


SHAPES = ("normal", "tiny", "tails", "incomes", "far", "ages", "tenths", "few", "constant")
ODD = ("years", "shifted", "late")


def awkward(
    rng: np.random.Generator, n: int, keep: np.ndarray, gaps: float
) -> dict[str, tuple[str, Any]]:
    """Return columns of all kinds with gaps, but for rows to ``keep``."""
    found: dict[str, tuple[str, Any]] = {how: ("number", numbers(rng, n, how)) for how in SHAPES}
    found["flag"] = ("boolean", (rng.random(n) < 0.3).astype(float))
    day = 18_000 + rng.integers(0, 400, n)
    found["day"] = ("date", DAY * day)
    found["moment"] = ("date", DAY * day + np.round(rng.random(n) * DAY))
    shares = rng.dirichlet(np.ones(len(WORDS)) / 2.0)
    found["colour"] = ("category", rng.choice(WORDS, n, p=shares))
    found["town"] = ("category", np.array([f"town {k}" for k in rng.geometric(0.02, n) % 150]))
    for name, (kind, cells) in found.items():
        gap = (rng.random(n) < gaps) & ~keep
        if name != "constant":
            found[name] = (kind, np.where(gap, "" if kind == "category" else np.nan, cells))
    return found


def as_set(found: np.ndarray, names: Sequence[str], column: str) -> list[Any]:
    """Return the outputs of categories whatever their order, the others by their names."""
    mine = {name: found[:, k] for k, name in enumerate(names) if name.startswith(f"{column}[")}
    numbered = [name for name in mine if name[len(column) + 1 : -1].isdecimal()]
    every = sorted(tuple(mine[name].tolist()) for name in numbered)
    return [every, *({n: v.tolist()} for n, v in mine.items() if n not in numbered)]


@pytest.mark.promise("common-encoder-pooled")
@settings(max_examples=12, deadline=None)
@given(
    holders=st.integers(2, 5),
    rows=st.integers(6, 300),
    gaps=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_common_encoder_is_of_all_rows(holders: int, rows: int, gaps: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = holders * rows
    parts = np.array_split(rng.permutation(n), holders)
    keep = np.zeros(n, bool)
    keep[[part[0] for part in parts]] = True  # no column of a holder is empty
    columns = awkward(rng, n, keep, gaps)
    tables, (pooled,) = deal(columns, parts), deal(columns, [np.arange(n)])
    made, expected = common(tables), Encoder.fit(pooled, "rank")
    assert made.encoder.outputs == expected.outputs
    assert made.encoder.kinds == expected.kinds
    found, wanted = made.encoder.transform(pooled), expected.transform(pooled)
    for part, table in zip(parts, tables, strict=True):  # by a holder's own names
        np.testing.assert_array_equal(made.encoder.transform(table), found[part])
    names = expected.outputs
    for column in ("colour", "town"):
        assert as_set(found, names, column) == as_set(wanted, names, column)
    exact = {"flag", *(name for name in names if name.endswith(("[missing]", "day]", "th]")))}
    exact.add("moment[hour]")
    tied = n > KNOTS  # values at equal ranks are then not all values
    for name in exact & set(names):
        k = names.index(name)
        np.testing.assert_allclose(found[:, k], wanted[:, k], rtol=0, atol=1e-12, err_msg=name)
    numeric_names = [name for name, (kind, _) in columns.items() if kind != "category"]
    for j, name in enumerate(numeric_names):
        output = name if columns[name][0] != "date" else f"{name}[days]"
        if output not in names or name == "flag":
            continue
        k = names.index(output)
        cells = np.asarray(columns[name][1], float) / (DAY if columns[name][0] == "date" else 1.0)
        known = np.isfinite(cells)
        places = np.searchsorted(made.edges[j][1:-1], cells[known], side="right")
        share = made.counts[j] / (known.sum() - 1)
        gap, slack = np.abs(found[:, k] - wanted[:, k]), 1e-9 + tied * 3.0 / KNOTS
        assert (gap[known] <= share[places] + slack).all(), name
        assert (gap[~known] <= share.max() + 1.0 / (known.sum() - 1) + slack).all(), name
        assert (np.diff(found[known, k][np.argsort(cells[known])]) >= -1e-12).all()  # in order


@pytest.mark.parametrize("how", [*SHAPES[:-1], *ODD])
def test_bins_are_small_whatever_the_column(how: str) -> None:
    """Ranks are those of the pooled rows to half a hundredth, to the last bit for ages and years.

    Whatever far values there are: of years a tenth are 0; others trail off from most of them.
    """
    rng = np.random.default_rng(3)
    tables, pooled = shared({"x": ("number", numbers(rng, 6000, how))}, 6000)
    expected = Encoder.fit(pooled, "rank").transform(pooled)
    gap = np.abs(common(tables).encoder.transform(pooled) - expected).max()
    # a value of many decimals and rows is anywhere in its bin
    most = {"ages": 1e-12, "years": 1e-12, "few": 0.51, "shifted": 0.01}
    assert gap <= most.get(how, 0.005)


@pytest.mark.promise("common-encoder-pooled")
def test_every_column_has_the_scale_that_its_pooled_rows_have() -> None:
    """Ranges where no value is far; they end within the outermost bins that have a value."""
    n = 6000
    columns = awkward(np.random.default_rng(4), n, np.zeros(n, bool), 0.2)
    tables, pooled = shared(columns, n)
    made, expected = common(tables, "auto"), Encoder.fit(pooled)
    assert made.encoder.outputs == expected.outputs
    found, wanted = made.encoder.transform(pooled), expected.transform(pooled)
    numeric = [k for k, (kind, _) in enumerate(columns.values()) if kind != "category"]
    scales = set()
    for j, (k, own) in enumerate(zip(numeric, made.encoder.columns, strict=False)):
        of = expected.columns[j]
        pairs = zip(*(getattr(one, "parts", (one,)) for one in (own, of)), strict=True)
        for mine, theirs in pairs:
            assert getattr(mine, "scale", None) == getattr(theirs, "scale", None)
            scales.add(getattr(mine, "scale", None))
        if getattr(of, "scale", "") == "range":
            place, known = expected.outputs.index(pooled.columns[k]), np.isfinite(pooled.x[:, k])
            spread = of.facts.greatest - of.facts.least  # type: ignore[union-attr]
            gap = np.abs(found[known, place] - wanted[known, place]).max()
            assert gap <= made.outermost(j) / spread + 1e-12, pooled.columns[k]
    assert scales >= {"range", "rank"}


@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_columns_that_are_not_of_bins_are_those_of_the_pooled_rows(scaling: str) -> None:
    tables, pooled = shared(awkward(np.random.default_rng(5), 900, np.zeros(900, bool), 0.0), 900)
    made, expected = common(tables, scaling).encoder, Encoder.fit(pooled, scaling)  # type: ignore[arg-type]
    assert made.outputs == expected.outputs
    found, wanted = made.transform(pooled), expected.transform(pooled)
    chosen = [n[:4] not in ("colo", "day[", "mome", "town") for n in expected.outputs]
    unit = wanted[:, chosen].std(axis=0)
    unit[unit == 0.0] = 1.0
    np.testing.assert_allclose(found[:, chosen] / unit, wanted[:, chosen] / unit, atol=1e-6)


def test_hashed_categories_are_those_of_the_holders_secret() -> None:
    """No count of a category is in the encoder, and one that nobody has has its bucket."""
    towns = np.array([f"town {k}" for k in range(200)])
    columns = {"c": ("category", towns)}
    made = common(deal(columns, np.array_split(np.arange(200), 4)), categories="hashing").encoder
    (category,) = made.columns
    assert category.facts.counts == {}  # type: ignore[union-attr]
    (table,) = deal({"c": ("category", np.array([*towns, "unseen"]))}, [np.arange(201)])
    key = summed.OwnColumns(table, SECRET).keys["c"]
    wanted = np.full((201, HASHED), 0.5)
    for row, code in zip(wanted, table.x[:, 0].astype(int), strict=True):
        bucket, sign = signed_bucket(key, table.categories["c"][code])
        row[bucket] = (1 + sign) / 2
    np.testing.assert_array_equal(made.transform(table), wanted)


def test_unknown_categories_are_known_by_their_buckets() -> None:
    """A holder encodes what only others have seen; what nobody has is none of them."""
    colours = np.array(["red"] * 12 + ["blue"] * 12 + ["rare"] * 2)
    first, second = deal({"c": ("category", colours)}, [np.arange(12), np.arange(12, 26)])
    assert first.categories["c"] == ("red",)
    encoder = common([first, second]).encoder
    new = Table(
        np.array([[0.0], [1.0], [2.0], [3.0], [np.nan]]),
        None,
        ("c",),
        kinds={"c": "category"},
        categories={"c": ("blue", "red", "rare", "unseen")},
    )
    found = dict(zip(encoder.outputs, encoder.transform(new).T.tolist(), strict=True))
    assert found.keys() == {"c[1]", "c[2]", "c[other]"}
    assert sorted([found["c[1]"], found["c[2]"]]) == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert found["c[other]"] == [0, 0, 1, 1, 0]


@pytest.mark.promise("common-encoder-secret")
def test_buckets_depend_on_the_secret_and_the_column() -> None:
    words = {"c": ("category", WORDS), "d": ("category", WORDS)}
    (table,) = deal(words, [np.arange(len(WORDS))])
    one, other = summed.OwnColumns(table, b"one"), summed.OwnColumns(table, b"other")
    assert (one.x != other.x).mean() > 0.9
    assert (one.x[:, 0] != one.x[:, 1]).mean() > 0.8
    assert "6f6e65" not in "".join(key.hex() for key in one.keys.values())  # the secret itself


def test_a_split_bin_has_five_rows_where_they_are_spread_evenly() -> None:
    """Bins are no finer than rows allow: of few rows single values are not told apart."""
    edges = bins.coarse_edges(1.0)
    for n in (20, 100, 1000):
        x = (np.arange(n) + 0.5) / n
        counts, place = bins.count_bins(x, edges), bins.read_phases(bins.sum_phases(x, 1.0), n, 1.0)
        fine = bins.fine_edges(counts, -1, (0.5, 0.5), place, 1.0)
        assert (np.diff(fine) > 0.0).all()
        public = 2 * 64 + len(edges)  # even ones about two places, powers of two
        assert len(fine) <= public + n / 5
        assert bins.count_bins(x, fine).sum() == n


def test_what_is_known_to_be_empty_is_not_counted_again() -> None:
    x = np.array([1.0, 3.0] * 50)
    counts = bins.count_bins(x, bins.coarse_edges(BOUND))
    fine = bins.fine_edges(
        counts, 0, (2.0, 2.0), bins.read_phases(bins.sum_phases(x, BOUND), 100, BOUND), BOUND
    )
    assert fine.tolist() == [-BOUND - 0.5, 0.5, 1.5, 2.5, 3.5, BOUND + 0.5]


@pytest.mark.parametrize("where", [-9e5, -0.3, 0.0, 2024.0, 1e5])
@pytest.mark.parametrize("wide", [1e-3, 1.0, 300.0])
def test_phases_find_most_values_whatever_some_far_ones(where: float, wide: float) -> None:
    rng = np.random.default_rng(0)
    x = where + wide * rng.random(1000)
    x[:150] = rng.uniform(-BOUND, BOUND, 150)
    middle, length = bins.read_phases(bins.sum_phases(x, BOUND), 1000, BOUND)
    assert abs(middle - where - wide / 2) < wide / 4
    assert wide < length < 4 * wide


def test_totals_that_contradict_each_other_are_refused() -> None:
    """A row fewer in the fullest bin; a category of fewer than no rows; one of too many."""
    columns = {"a": ("number", np.arange(40.0)), "c": ("category", np.array(["u", "v"] * 20))}
    own = summed.OwnColumns(deal(columns, [np.arange(40)])[0], SECRET)
    x = own.numbers()
    asked = summed.read_coarse(own.coarse(x, BOUND, 40), own.kinds, 1, BOUND, 40, 1)
    honest = own.fine(x, asked, BOUND, 40)

    def read(places: list[int], more: list[float]) -> None:
        total = honest.copy()
        total[places] += more
        summed.read_fine(total, own.kinds, asked, BOUND, 40, 1)

    read([0], [0.0])
    fullest = 2 + int(np.argmax(honest[2 : -BUCKETS - 1]))
    for places, more in (([fullest], [-1 / 40]), ([-2, -1], [-1.0, 1.0]), ([-1], [1.0])):
        with refused("FK-SUM-TOTAL"):
            read(places, more)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=2),
    numbers=st.integers(0, 1),
    least=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_sum_of_categories_is_of_few_rows(
    sizes: list[int], numbers: int, least: int, seed: int
) -> None:
    """The columns of a category, some of them left out, and a one: whatever is added up."""
    rng, n = np.random.default_rng(seed), 40
    codes = [rng.choice(size, n, p=rng.dirichlet(np.full(size, 0.3))) for size in sizes]
    dropped = rng.integers(0, 2)
    parts = [np.eye(size)[code][:, dropped:] for size, code in zip(sizes, codes, strict=True)]
    for _ in range(numbers):
        parts.insert(1, rng.random((n, 1)))
    x = np.column_stack(parts)
    merged = merge_rows(x, least)
    for part, end in zip(parts, np.cumsum([part.shape[1] for part in parts]), strict=True):
        own = merged[:, end - part.shape[1] : end]
        if own.shape[1] > 1 or own.max() == 1.0:
            for signs in itertools.product((0.0, 1.0), repeat=own.shape[1]):
                for one in (0.0, 1.0):
                    rows = np.count_nonzero(own @ signs - one)
                    assert not 0 < rows < least
    assert merge_rows(x, 0) is x


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_half_of_the_rows_are_few_as_well(sign: float) -> None:
    x = sign * np.array([0.0, 0.0, 0.0, 1.0, 2.0, 3.0])[:, None]
    assert np.ptp(merge_rows(x, 5)) == 0.0


@pytest.mark.promise("rare-differences")
@given(
    least=st.integers(1, 6),
    runs=st.lists(st.lists(st.integers(0, 12), min_size=4, max_size=4), min_size=1, max_size=6),
)
def test_no_two_runs_tell_of_few_rows(least: int, runs: list[list[int]]) -> None:
    """Rows with a category come and go between runs; the last number are rows without one."""
    told, names = Told(), ("flu", "gout", "rash")
    for run in runs:
        counts, rows = dict(zip(names, run, strict=False)), sum(run)
        before, told = told, told.follow(counts, rows, least)
        pairs = [(told.names.get(name, 0), before.names.get(name, 0)) for name in names]
        pairs += [(told.gaps, before.gaps), (told.others, before.others)]
        for now, then in pairs:
            assert now >= least or not now
            assert abs(now - then) >= least or now == then
        assert told.follow(counts, rows, least) == told  # asked again
        found = told.fill({name: k for k, name in enumerate(names)}, 3, rows, least)
        known = max(0, rows - told.gaps)
        assert found.min() >= 0.0
        assert found.sum() == known or (known < least and not found.any())
        assert told.fill({}, 0, rows, least) in (known, 0.0)
