"""Tables written in other ways hold what a plain CSV holds."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.tables import load_ids, load_table
from fedkern_flwr.tables.dialect import find_separator
from fedkern_flwr.tables.table import Table

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
def tables(draw: st.DrawFn) -> list[list[str]]:
    rows = draw(st.integers(2, 12))
    cells = st.lists(st.one_of(NUMBERS, st.just("")), min_size=rows, max_size=rows)
    first, second = draw(cells), draw(cells)
    words = draw(st.lists(WORDS, min_size=rows, max_size=rows))
    labels = [str(k % 2) for k in range(rows)]
    ids = [f"{k:03}" for k in range(rows)]
    columns = (ids, first, words, second, labels)
    return [["key", "a", "colour", "b", "y"], *(list(row) for row in zip(*columns, strict=True))]


@settings(max_examples=60, deadline=None)
@given(tables(), st.sampled_from(SEPARATORS), st.booleans(), st.sampled_from(["", "?", "n/a"]))
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
    assert table.notes == ("data.csv has a decimal comma",)
    assert table.ids is not None
    assert table.ids.tolist() == ["1,5", "2,5", "3,5"]
    assert_same(load(text, id_column="key", decimal=","), table)
    assert_same(load(text, id_column="key", decimal=",", sep=","), table)


@pytest.mark.parametrize(
    "text",
    [
        'a,b,y\n"1,234",x,0\n"2,345",u,1\n',  # marks of thousands, maybe
        'a,b,y\n"1,2",1.5,0\n"2,34",2.5,1\n',  # other numbers have a point
        'a,b,y\n"1,2",x,0\n"2,3,4",u,1\n',
    ],
)
def test_other_commas_in_cells_change_nothing(text: str) -> None:
    table = load(text)
    assert (table.kinds["a"], load(text, decimal=".").kinds["a"]) == ("category", "category")
    assert not any("decimal comma" in note and "has" in note for note in table.notes)


def test_text_with_some_points_is_left_as_it_is() -> None:
    table = load('a,b,y\n"1,5",1.2,0\n"2,5",beta,1\n')
    assert table.categories == {"b": ("1.2", "beta")}
    np.testing.assert_array_equal(table.x[:, 0], [1.5, 2.5])


@given(st.sampled_from(SEPARATORS), st.integers(2, 6), st.integers(0, 5))
def test_what_parts_all_lines_alike_is_the_separator(sep: str, width: int, rows: int) -> None:
    rng = np.random.default_rng([width, rows])
    cells = [[f"c{k}" for k in range(width)]]
    cells += [
        [f"t {''.join(rng.choice(SEPARATORS, 2))}" for _ in range(width)] for _ in range(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_text(written(cells, sep, csv.QUOTE_ALL))
        assert find_separator(path) == sep


def test_what_was_found_is_said_once_and_plain_files_say_nothing() -> None:
    table = load("a;b;y\n1,5;?;0\n2,5;x;1\n?;x;1\n")
    assert table.notes == (
        "data.csv has columns parted by semicolons and a decimal comma "
        "and 2 cells that a mark such as ? says to be missing",
    )
    assert load("a,b,y\n1.5,,0\n2.5,NA,1\n").notes == ()
    assert load("a\tb\ty\n1.5\t2\t0\n2.5\t3\t1\n", "data.tsv").notes == ()
    assert "parted by tabs" in load("a\tb\ty\n1.5\t2\t0\n2.5\t3\t1\n").notes[0]


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


def test_ids_are_read_as_they_stand_and_found_in_any_file(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("key;a;y\n1,5;1,5;0\n?;2,5;1\n")
    assert load_ids(path, "key").tolist() == ["1,5", "?"]
    assert load_table(path, label="y", id_column="key").ids.tolist() == ["1,5", "?"]  # type: ignore[union-attr]


def test_a_column_that_is_not_needed_may_hold_anything() -> None:
    text = "free;a;y\n1.5 and more;1,5;0\n2.5;2,5;1\n"
    table = load(text, needed=["a"], kinds=None, missing="error")
    np.testing.assert_array_equal(table.x, [[1.5], [2.5]])


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        (
            "a;b;y\n1,5;2.5;0\n2,5;3.5;1\n",
            {},
            "data.csv have a decimal comma, others a .*--decimal",
        ),
        ("a;y\n1,5;0\n1.234;1\n", {}, "some numbers of data.csv have a decimal comma, others"),
        ("a;y\n1,5;0\n1.234;1\n", {"decimal": ","}, "1 cells of column 'a' of data.csv have a dec"),
    ],
)
def test_numbers_of_two_kinds_are_refused_without_a_cell(
    text: str, how: dict[str, Any], expected: str
) -> None:
    with pytest.raises(TableError, match=expected) as caught:
        load(text, **how)
    assert "\n" not in str(caught.value)
    assert "1.234" not in str(caught.value)


@pytest.mark.parametrize("how", [{"sep": ";;"}, {"decimal": ";"}])
def test_marks_that_cannot_be_are_refused(how: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        load("a,y\n1,0\n2,1\n", **how)


def test_a_file_that_is_not_parted_as_was_said_names_the_option() -> None:
    text = "a;b;y\n1,5;2,5;0\n2;3;1\n"
    with pytest.raises(
        TableError, match=r"file: line 2 has 3 cells, the first has 1; say otherwise .*--sep"
    ):
        load(text, sep=",")
    assert load(text).x.shape == (2, 2)
    for sep in (None, ","):
        with pytest.raises(TableError, match="put numbers with a decimal comma in quotes if"):
            load("a,b,y\n1,5,2,5,0\n2,3,1\n", sep=sep, decimal=",")
