"""Encoders, of one table and of several holders: as by scikit-learn, and as of the pooled rows."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet
from refusals import refused, refuses

from fedkern_flwr.align import column_ranges as summed
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.columns import BUCKETS, HASHED, KNOTS, NumberFacts, signed_bucket
from fedkern_flwr.encoding.encoder import Told, merge_rows
from fedkern_flwr.groups.linear_model import DIGITS, from_digits, to_digits
from fedkern_flwr.labels import decide, encode_classes
from fedkern_flwr.tables import Table, load_table, plain_notes

from ..helpers.awkward import LABEL, Awkward, awkward_tables, by_scikit_learn

TABLES = awkward_tables()
SCALINGS = ("rank", "standard", "range", "none")


def load(table: Any, kinds: dict[str, Any] | None = None) -> Table:
    return load_table(table, label=LABEL, missing="encode", kinds=kinds or {})


def expected(awkward: Awkward, train: np.ndarray, new: np.ndarray, scaling: str) -> np.ndarray:
    cells = {name: pa.array(column).to_pylist() for name, column in awkward.columns.items()}
    parts = [
        by_scikit_learn(
            kind, [cells[name][k] for k in train], [cells[name][k] for k in new], scaling
        )
        for name, kind in awkward.kinds.items()
    ]
    return np.concatenate(parts, axis=1)


# --- Twenty tables --------------------------------------------------------------------------


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_encoded_as_by_scikit_learn(name: str, scaling: Any) -> None:
    table = load(TABLES[name].arrow())
    rows = np.random.default_rng(5).permutation(table.rows)
    train, new = rows[:150], rows[150:]
    encoder = Encoder.fit(table.take(train), scaling)
    for part in (train, new):
        found = encoder.transform(table.take(part))
        wanted = expected(TABLES[name], train, part, scaling)
        assert found.shape == wanted.shape == (len(part), len(encoder.outputs))
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    if scaling in ("rank", "range"):
        assert found.min() >= 0.0
        assert found.max() <= 1.0


@pytest.mark.parametrize("name", TABLES)
def test_kinds_are_found_and_survive_files_as_encoders_do(name: str, tmp_path: Path) -> None:
    awkward = TABLES[name]
    table = load(awkward.arrow())
    assert {c: table.kinds.get(c, "number") for c in table.columns} == awkward.kinds
    csv.write_csv(awkward.arrow(), tmp_path / "a.csv")
    parquet.write_table(awkward.arrow(), tmp_path / "a.parquet")
    encoder = Encoder.fit(table)
    assert Encoder.from_json(encoder.to_json()) == encoder
    for file in ("a.csv", "a.parquet"):
        again = load(tmp_path / file)
        assert Encoder.fit(again).outputs == encoder.outputs
        np.testing.assert_array_equal(encoder.transform(again), encoder.transform(table))
        np.testing.assert_array_equal(again.y, table.y)


# --- New rows -------------------------------------------------------------------------------


def small() -> Encoder:
    cells = {
        "size": [1.0, 2.0, 2.0, 5.0, 9.0, 9.5] * 2, "colour": ["red"] * 6 + ["blue"] * 6,
        "flag": ["true", "false"] * 6, "day": ["2020-01-01", "2020-01-02", "2020-01-03"] * 4,
    }  # fmt: skip
    return Encoder.fit(load_table(pa.table(cells), labelled=False, kinds={}), "rank")


def test_new_rows_may_lack_cells_and_have_unknown_ones() -> None:
    encoder = small()
    new = pa.table({
        "more": ["not", "of", "the", "model"],
        "day": ["2020-01-02", "2031-05-05", "no date", None],
        "flag": ["true", "maybe", None, "FALSE"],
        "colour": ["green", "blue", None, "red"],
        "size": ["2", "-100", "1e9", "n/k"],
    })  # fmt: skip
    table = load_table(new, labelled=False, kinds=encoder.kinds, missing="keep")
    found = dict(zip(encoder.outputs, encoder.transform(table).T, strict=True))
    np.testing.assert_array_equal(found["colour[1]"], [0, 1, 0, 0])  # blue
    np.testing.assert_array_equal(found["colour[2]"], [0, 0, 0, 1])
    np.testing.assert_allclose(found["size"], [2.5 / 11 + 1 / 11, 0, 1, 5.5 / 11 + 0])
    np.testing.assert_array_equal(found["flag"][[0, 3]], [1, 0])
    np.testing.assert_array_equal(found["day[days]"], [0.5, 1, 0.5, 0.5])


def test_gaps_stay_where_the_method_deals_with_them() -> None:
    awkward = TABLES["text with gaps"]
    table = load(awkward.arrow())
    encoder = Encoder.fit(table, gaps="keep")
    found = encoder.transform(table)
    assert not any(name.endswith("[missing]") for name in encoder.outputs)
    lacks = [cell is None for cell in awkward.columns["colour"]]
    np.testing.assert_array_equal(np.isnan(found[:, 0]), lacks)
    refuses("FK-COLUMN-EMPTY", Encoder.fit, load(TABLES["empty"].arrow()), gaps="keep")


# --- Ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "far"), [
    (np.linspace(0.0, 1.0, 300), False),
    (np.random.default_rng(0).normal(size=100_000), False),
    (np.random.default_rng(0).lognormal(size=300), True),
    (np.append(np.linspace(0.0, 1.0, 300), 9.0), True),
    (np.repeat([0.0, 1.0, 16.0], [240, 30, 30]), False),  # mostly one value
])  # fmt: skip
def test_values_are_far_where_the_range_says_little(values: np.ndarray, far: bool) -> None:
    assert NumberFacts.measure(values).far is far


# --- Categories -----------------------------------------------------------------------------


def plain_hashing(cells: Sequence[str | None], column: str, secret: bytes) -> np.ndarray:
    """Hash words as scikit-learn's FeatureHasher does, with a sign each, by another hash."""
    key = hmac.new(secret, f"fedkern-flwr categories/{column}".encode(), hashlib.sha256).digest()
    found = np.zeros((len(cells), HASHED))
    for row, cell in zip(found, cells, strict=True):
        if cell is not None:
            digest = hmac.new(key, cell.casefold().encode(), hashlib.sha256).digest()
            row[int.from_bytes(digest[:8], "big") % HASHED] += -1.0 if digest[8] % 2 else 1.0
    return found


def hashed(cells: Sequence[str | None], key: bytes) -> tuple[Encoder, Table]:
    table = load_table(
        pa.table({"town": pa.array(cells, pa.string()), "i": np.arange(float(len(cells)))}),
        labelled=False,
        missing="keep",
        kinds={"town": "category"},
    )
    return Encoder.fit(table, "none", categories="hashing", key=key), table


@given(
    cells=st.lists(st.sampled_from([None, "a", *(f"t{k}" for k in range(300))]), min_size=3),
    new=st.lists(st.none() | st.text(st.characters(categories=["L"]), min_size=1), max_size=5),
    key=st.binary(min_size=1, max_size=40),
)
def test_hashed_categories_are_signed_buckets(cells: Any, new: Any, key: bytes) -> None:
    """Those that the rows to learn from do not have as well."""
    encoder, _ = hashed(["a", "b", *cells], key)
    _, table = hashed(["a", "b", *cells, *new], key)
    encoder = Encoder.from_json(encoder.to_json())
    found = encoder.transform(table)[:, :HASHED]
    wanted = plain_hashing(["a", "b", *cells, *new], "town", key)
    np.testing.assert_array_equal(2.0 * found - 1.0, wanted)
    gaps = encoder.outputs[HASHED:-1]
    assert gaps == (("town[missing]",) if None in cells else ())


@pytest.mark.promise("common-encoder-secret")
def test_hashed_categories_are_kept_nowhere() -> None:
    cells = [f"Zeppelin {k % 40}" for k in range(240)]
    encoder, _ = hashed(cells, b"key")
    assert "Zeppelin" not in encoder.to_json()
    assert encoder.explain()[0].text == "40 categories, hashed to 32 columns"
    one = load_table(pa.table({"a": ["u"] * 9}), labelled=False, kinds={})
    refuses("FK-COLUMNS-CONSTANT", Encoder.fit, one, categories="hashing")


def test_categories_have_the_form_that_is_asked_for() -> None:
    cells = [f"town {k % 30}" for k in range(180)] + ["u"] * 20
    table = load_table(pa.table({"town": cells}), labelled=False, kinds={})
    auto, frequent, each = (
        Encoder.fit(table, categories=how) for how in ("auto", "frequency", "onehot")
    )
    assert auto == frequent
    assert len(each.outputs) == 31
    wanted = np.array([[float(cell == one) for one in sorted(set(cells))] for cell in cells])
    np.testing.assert_array_equal(each.transform(table), wanted)
    refuses("FK-OPTION-CHOICE", Encoder.fit, table, categories="embed")  # type: ignore[arg-type]


def test_frequencies_are_shares_of_the_rows_that_have_a_value() -> None:
    """A row without one, or with a category that is rare or unknown, has the frequency 0."""
    table, new = (
        load_table(pa.table({"town": cells}), labelled=False, missing="keep", kinds={})
        for cells in (["u"] * 12 + ["v"] * 6 + ["w"] * 2 + [None] * 30, ["v", "w", "x", None, "u"])
    )
    encoder = Encoder.fit(table, "none", categories="frequency")
    found = encoder.transform(new)
    np.testing.assert_allclose(found[:, 0], [0.3, 0.0, 0.0, 0.0, 0.6], rtol=1e-15)
    assert found[:, 1:].tolist() == [[0.0]] * 3 + [[1.0]] + [[0.0]]  # which gaps are


@given(
    st.dictionaries(st.sampled_from("uvwxyz"), st.sampled_from([2, 4, 5, 9]), min_size=1),
    st.sampled_from(["onehot", "frequency"]),
    st.sampled_from([3, 5]),
)
def test_a_column_of_rows_alike_is_left_out(counts: dict[str, int], how: Any, least: int) -> None:
    """To whoever learns: rare categories are one, frequencies that are equal say nothing."""
    cells = [name for name, many in counts.items() for _ in range(many)]
    same = {"k": range(len(cells)), "a": cells}
    table = load_table(pa.table(same), labelled=False, kinds={"a": "category"})
    found = Encoder.fit(table, "none", categories=how, min_rows=least)
    kept = {name: many for name, many in counts.items() if many >= least}
    shares = {kept.get(name, 0) for name in counts}
    differ = len(shares) if how == "frequency" else len(kept) + (len(kept) < len(counts))
    assert any(name.startswith("a[") for name in found.outputs) == (differ > 1)


@pytest.mark.promise("encoding-names")
def test_names_of_outputs_and_explanations_say_no_category_and_no_value() -> None:
    secret = "Zeppelin"
    cells = {
        "kind": [secret, "Otto"] * 20 + ["Quince"],
        "size": [40961.5, *range(40)],
        "day": ["1987-03-04", *["1987-03-05"] * 40],
    }
    table = load_table(pa.table(cells), labelled=False, kinds={})
    encoder = Encoder.fit(table)
    shown = json.dumps([encoder.outputs, encoder.left_out(table), encoder.explain()])
    for word in (secret, "Otto", "Quince", "40961", "1987", "0.5"):
        assert word not in shown
    assert [tuple(one) for one in encoder.explain()] == [
        ("kind", "category", 3, "2 categories, a column each; 1 rare ones are others"),
        ("size", "number", 1, "ranks of 41 values"),
        ("day", "date", 2, "days, weekday"),
    ]


# --- What cannot be, and what says nothing --------------------------------------------------


def test_tables_that_do_not_fit_an_encoder_are_refused() -> None:
    with refused("FK-COLUMN-MISSING"):
        small().transform(load_table(pa.table({"size": [1.0]}), labelled=False, kinds={}))
    words = load_table(pa.table({"a": ["x", "y"] * 9}), labelled=False, kinds={})
    with refused("FK-COLUMN-KIND"):
        Encoder.fit(words).transform(load_table(pa.table({"a": [1.0]}), labelled=False, kinds={}))
    refuses("FK-OPTION-CHOICE", Encoder.fit, words, "log")  # type: ignore[arg-type]
    nothing = load_table(pa.table({"a": [1, 1], "b": ["u", "v"]}), labelled=False, kinds={})
    refuses("FK-COLUMNS-CONSTANT", Encoder.fit, nothing)
    far = load_table(pa.table({"a": [1.0, 2.0, 1e200]}), labelled=False, kinds={})
    refuses("FK-VALUES-LARGE", Encoder.fit, far, "standard")
    np.testing.assert_array_equal(Encoder.fit(far).transform(far)[:, 0], [0, 0.5, 1])
    for text in ("", "[]", "{}", '{"columns": [{}]}', '{"columns": [{"kind": "date"}]}', "1"):
        refuses("FK-FILE-FORMAT", Encoder.from_json, text)


def test_columns_that_are_left_out_are_named_with_cells_for_their_holder_alone() -> None:
    frame = pa.table({"a": ["Ann", "Bob", "Zoe"] * 2, "b": [*range(6)]})
    names = load_table(frame, labelled=False, kinds={})
    (note,) = Encoder.fit(names).left_out(names)
    assert note == "left out 'a': fewer than 5 rows have the same text, such as 'Ann', 'Bob', 'Zoe'"
    assert plain_notes([note]) == ["left out 'a': fewer than 5 rows have the same text"]
    table = load(TABLES["constant"].arrow())
    encoder = Encoder.fit(table)
    assert encoder.left_out(table) == ("left out 2 constant columns: still, same",)
    assert encoder.outputs == ("plain",)
    assert encoder.sources.tolist() == [2]


# --- Text that may be meant otherwise -------------------------------------------------------


LOOKS: list[tuple[list[Any], tuple[str, ...]]] = [
    (["0,25", "7,5", "41"] * 8 + ["lost", "none"], ("24 of 26", "--decimal", "--na")),
    (["41,5", "7,5"] * 8, ("16 of 16", "--decimal")),
    (["31.12.2024", "1.1.2025", "7.11.2024 7:41"] * 6 + ["lost"], ("18 of 19", "YYYY-MM-DD")),
    (["12/31/24", "7 Nov 2024"] * 9, ("18 of 18", "YYYY-MM-DD")),
    (["00123", "4041"] * 9, ("begin with 0",)), (["<18", "18-64", ">64"] * 6, ()),
    (["7", "a", "b"] * 6, ()), (["1.2.3", "4.5.6"] * 9, ()), (["2024-12-31", "2025-01-01"] * 9, ()),
    (["7,5", "8,5", "a", "b", "c"] * 4, ()), ([None] * 9, ()),
]  # fmt: skip
SAID = {*(part for _, said in LOOKS for part in said)}


@pytest.mark.parametrize(("cells", "said"), LOOKS)
def test_text_that_looks_like_numbers_is_said(cells: list[Any], said: tuple[str, ...]) -> None:
    table = pa.table({"crp": pa.array(cells, pa.string())})
    found = load_table(table, labelled=False, missing="keep", kinds={})
    assert not said or found.kinds == {"crp": "category"}
    assert len(found.notes) == bool(said)
    note = "".join(found.notes)
    assert {part for part in SAID if part in note} == {*said}
    assert not any(cell in note for cell in {*cells} - {None})
    named = load_table(table, labelled=False, missing="keep", kinds={"crp": "category"})
    assert not named.notes


# --- Labels as targets, large numbers as digits ---------------------------------------------


@given(labels=st.lists(st.sampled_from([2.0, 5.0, 9.0]), max_size=20), classes=st.integers(2, 3))
def test_decisions_on_the_targets_are_the_labels(labels: list[float], classes: int) -> None:
    known = [2.0, 5.0, 9.0][:classes]
    y = np.array([label for label in labels if label in known])
    targets = encode_classes(y, known, "me")
    assert targets.shape == (len(y), 1 if classes == 2 else 3)
    assert np.isin(targets, (-1.0, 1.0)).all()
    np.testing.assert_array_equal(np.array(known)[decide(targets)], y)
    if classes == 3:
        assert (targets.sum(axis=1) == -1.0).all()


def test_the_second_of_two_classes_is_the_positive_one() -> None:
    y = np.array([1.0, 0.0, 1.0])
    assert encode_classes(y, (0, 1), "me")[:, 0].tolist() == [1.0, -1.0, 1.0]
    assert encode_classes(y, (1, 0), "me")[:, 0].tolist() == [-1.0, 1.0, -1.0]
    assert decide(np.array([[0.0], [-1e-300], [3.0]])).tolist() == [1, 0, 1]
    assert decide(np.array([[0.1, 0.3, 0.2], [-3.0, -2.0, -1.0]])).tolist() == [1, 2]


NUMBERS = st.lists(st.floats(-(2.0**79), 2.0**79), min_size=1, max_size=5)


@given(NUMBERS)
def test_digits_are_within_the_bound_and_make_the_number_again(numbers: list[float]) -> None:
    values = np.array(numbers)
    digits = to_digits(values)
    assert digits.shape == (DIGITS * len(values),)
    assert np.abs(digits).max() <= 2.0**20
    rest = digits[len(values) :]
    np.testing.assert_array_equal(rest, np.rint(rest))
    np.testing.assert_allclose(from_digits(digits), values, rtol=1e-15)


def test_numbers_below_the_bound_are_their_own_last_digit() -> None:
    values = np.array([0.1, -3.75, 2.0**20 - 1.0 / 3.0])
    np.testing.assert_array_equal(to_digits(values), [*values, *np.zeros(9)])


# -- common encoders: what the sums of several holders make is what their pooled rows make


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
    numbers = [one.numbers() for one in own]
    d = numbers[0].shape[1]
    block = summed.Block(kinds, d, rows, len(own), BOUND)
    assert block.numeric == d
    parts = [one.coarse(x, block) for one, x in zip(own, numbers, strict=True)]
    assert {len(part) for part in parts} == {block.coarse_length()}
    asked = block.read_coarse(np.sum(parts, axis=0))
    assert asked.fits(d, d)
    edges = asked.edges(BOUND)
    parts = [one.fine(x, block, asked) for one, x in zip(own, numbers, strict=True)]
    assert {len(part) for part in parts} == {block.fine_length(asked)}
    total = np.sum(parts, axis=0)
    encoder = block.read_fine(total, asked, scaling, categories)[1]
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
        "normal": lambda: rng.normal(3.0, 7.0, n), "tiny": lambda: 1e5 + 1e-2 * rng.normal(size=n),
        "tails": lambda: rng.standard_cauchy(n).clip(-9e5, 9e5),
        "incomes": lambda: np.exp(3.0 * rng.normal(size=n)).clip(0.0, 1e6),
        "far": lambda: np.where(np.arange(n) == n // 2, 1e6, rng.random(n)),
        "ages": lambda: rng.integers(1, 90, n).astype(float),
        "tenths": lambda: np.round(10.0 * rng.random(n), 1),
        "few": lambda: rng.choice([0.1, 1.0 / 3.0, 7.0], n), "constant": lambda: np.full(n, np.pi),
        "years": lambda: np.where(rng.random(n) < 0.1, 0.0, 1950.0 + rng.integers(0, 70, n)),
        "shifted": lambda: 1e5 + np.exp(2.0 * rng.normal(size=n)),
        "late": lambda: 20_000.0 - np.round(np.exp(rng.normal(3.0, 1.5, n))),
    }  # fmt: skip
    return made[how]()


SHAPES = ("normal", "tiny", "tails", "incomes", "far", "ages", "tenths", "few", "constant")
ODD = ("years", "shifted", "late")


def awkward_columns(
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
    columns = awkward_columns(rng, n, keep, gaps)
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
    columns = awkward_columns(np.random.default_rng(4), n, np.zeros(n, bool), 0.2)
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
    tables, pooled = shared(
        awkward_columns(np.random.default_rng(5), 900, np.zeros(900, bool), 0.0), 900
    )
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
        np.array([[0.0], [1.0], [2.0], [3.0], [np.nan]]), None, ("c",), kinds={"c": "category"},
        categories={"c": ("blue", "red", "rare", "unseen")},
    )  # fmt: skip
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


def test_totals_that_contradict_each_other_are_refused() -> None:
    """A row fewer in the fullest bin; a category of fewer than no rows; one of too many."""
    columns = {"a": ("number", np.arange(40.0)), "c": ("category", np.array(["u", "v"] * 20))}
    own = summed.OwnColumns(deal(columns, [np.arange(40)])[0], SECRET)
    x = own.numbers()
    block = summed.Block(own.kinds, 1, 40, 1, BOUND)
    asked = block.read_coarse(own.coarse(x, block))
    honest = own.fine(x, block, asked)

    def read(places: list[int], more: list[float]) -> None:
        total = honest.copy()
        total[places] += more
        block.read_fine(total, asked)

    read([0], [0.0])
    fullest = 2 + int(np.argmax(honest[2 : -BUCKETS - 1]))
    for places, more in (([fullest], [-1 / 40]), ([-2, -1], [-1.0, 1.0]), ([-1], [1.0])):
        refuses("FK-SUM-TOTAL", read, places, more)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=2),
    numbers=st.integers(0, 1),
    least=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_sum_is_of_few_rows(sizes: list[int], numbers: int, least: int, seed: int) -> None:
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


def test_of_one_row_or_two_there_are_no_products_of_columns() -> None:
    """Nothing tells which of two values is the rare one."""
    x = np.array([[0.1, 1.0, 2.0], [0.2, 0.0, 3.0]])
    assert not merge_rows(x, 5).any()
    assert not merge_rows(x[:1], 2).any()


@pytest.mark.promise("rare-differences")
@settings(max_examples=100)
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
