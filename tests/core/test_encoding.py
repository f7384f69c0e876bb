"""Encoders: what columns become is what scikit-learn makes of them; labels, and large numbers."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, parquet
from refusals import refused

from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.categories import HASHED
from fedkern_flwr.encoding.facts import NumberFacts
from fedkern_flwr.groups.digits import DIGITS, from_digits, to_digits
from fedkern_flwr.labels import decide, encode_classes
from fedkern_flwr.tables import Table, load_table

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
        "size": [1.0, 2.0, 2.0, 5.0, 9.0, 9.5] * 2,
        "colour": ["red"] * 6 + ["blue"] * 6,
        "flag": ["true", "false"] * 6,
        "day": ["2020-01-01", "2020-01-02", "2020-01-03"] * 4,
    }
    return Encoder.fit(load_table(pa.table(cells), labelled=False, kinds={}), "rank")


def test_new_rows_may_lack_cells_and_have_unknown_ones() -> None:
    encoder = small()
    new = pa.table(
        {
            "more": ["not", "of", "the", "model"],
            "day": ["2020-01-02", "2031-05-05", "no date", None],
            "flag": ["true", "maybe", None, "FALSE"],
            "colour": ["green", "blue", None, "red"],
            "size": ["2", "-100", "1e9", "n/k"],
        }
    )
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
    with refused("FK-COLUMN-EMPTY"):
        Encoder.fit(load(TABLES["empty"].arrow()), gaps="keep")


# --- Ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "far"),
    [
        (np.linspace(0.0, 1.0, 300), False),
        (np.random.default_rng(0).normal(size=100_000), False),
        (np.random.default_rng(0).lognormal(size=300), True),
        (np.append(np.linspace(0.0, 1.0, 300), 9.0), True),
        (np.repeat([0.0, 1.0, 16.0], [240, 30, 30]), False),  # mostly one value
    ],
)
def test_values_are_far_where_the_range_says_little(values: np.ndarray, far: bool) -> None:
    assert NumberFacts.measure(values).far is far


# --- Categories -----------------------------------------------------------------------------


def plain_hashing(cells: Sequence[str | None], column: str, secret: bytes) -> np.ndarray:
    """Hash words as scikit-learn's FeatureHasher does, with a sign each, by another hash."""
    key = hmac.new(secret, f"fedkern-flwr categories/{column}".encode(), hashlib.sha256).digest()
    found = np.zeros((len(cells), HASHED))
    for row, cell in zip(found, cells, strict=True):
        if cell is not None:
            digest = hmac.new(key, cell.encode(), hashlib.sha256).digest()
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
    with refused("FK-COLUMNS-CONSTANT"):
        Encoder.fit(one, categories="hashing")


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
    with refused("FK-OPTION-CHOICE"):
        Encoder.fit(table, categories="embed")  # type: ignore[arg-type]


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
def test_a_column_is_left_out_where_its_rows_are_alike_and_only_there(
    counts: dict[str, int], how: Any, least: int
) -> None:
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
    encoder = Encoder.fit(load_table(pa.table(cells), labelled=False, kinds={}))
    shown = json.dumps([encoder.outputs, encoder.notes, encoder.explain()])
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
    with refused("FK-OPTION-CHOICE"):
        Encoder.fit(words, "log")  # type: ignore[arg-type]
    nothing = load_table(pa.table({"a": [1, 1], "b": ["u", "v"]}), labelled=False, kinds={})
    with refused("FK-COLUMNS-CONSTANT"):
        Encoder.fit(nothing)
    far = load_table(pa.table({"a": [1.0, 2.0, 1e200]}), labelled=False, kinds={})
    with refused("FK-VALUES-LARGE"):
        Encoder.fit(far, "standard")
    np.testing.assert_array_equal(Encoder.fit(far).transform(far)[:, 0], [0, 0.5, 1])
    for text in ("", "[]", "{}", '{"columns": [{}]}', '{"columns": [{"kind": "date"}]}', "1"):
        with refused("FK-FILE-FORMAT"):
            Encoder.from_json(text)


def test_columns_that_say_nothing_are_named() -> None:
    encoder = Encoder.fit(load(TABLES["constant"].arrow()))
    assert encoder.notes == ("left out 2 columns that say nothing: still, same",)
    assert encoder.outputs == ("plain",)
    assert encoder.sources.tolist() == [2]


# --- Text that may be meant otherwise -------------------------------------------------------


LOOKS: list[tuple[list[Any], tuple[str, ...]]] = [
    (["0,25", "7,5", "41"] * 8 + ["lost", "none"], ("24 of 26", "--decimal", "--na")),
    (["41,5", "7,5"] * 8, ("16 of 16", "--decimal")),
    (["<7", "7.5", "41"] * 6 + [None], ("12 of 18", "--na")),
    (["31.12.2024", "1.1.2025", "7.11.2024 7:41"] * 6 + ["lost"], ("18 of 19", "YYYY-MM-DD")),
    (["12/31/24", "7 Nov 2024"] * 9, ("18 of 18", "YYYY-MM-DD")),
    (["<18", "18-64", ">64"] * 6, ()),
    (["7", "a", "b"] * 6, ()),
    (["1.2.3", "4.5.6"] * 9, ()),
    (["2024-12-31", "2025-01-01"] * 9, ()),
    (["7,5", "8,5", "a", "b", "c"] * 4, ()),
    ([None] * 9, ()),
]
SAID = {*(part for _, said in LOOKS for part in said)}


@pytest.mark.parametrize(("cells", "said"), LOOKS)
def test_text_that_looks_like_numbers_is_said(cells: list[Any], said: tuple[str, ...]) -> None:
    table = pa.table({"crp": pa.array(cells, pa.string())})
    found = load_table(table, labelled=False, missing="keep", kinds={})
    assert not said or found.kinds == {"crp": "category"}
    assert len(found.notes) == bool(said)
    note = "".join(found.notes)
    assert {part for part in SAID if part in note} == {*said}
    assert not any(cell in note for cell in {*cells} - {None, "<7"})
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
