"""Loading, checking and scaling a party's table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables import load_table
from fedkern_flwr.tables.table import Table, drop_constant_columns, select_target

X = np.array([[1.0, 10.0], [2.0, 30.0], [3.0, 20.0]])
Y = np.array([5.0, 7.0, 6.0])
SECRET = "s3cret"


def npz(folder: Path, **content: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **content)
    return path


def csv(folder: Path, text: str) -> Path:
    path = folder / "data.csv"
    path.write_text(text, encoding="utf-8")
    return path


def pq(folder: Path, **columns: Any) -> Path:
    path = folder / "data.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


# --- Reading --------------------------------------------------------------------------------


def test_npz_gives_all_parts(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        X=X.astype(np.float32),
        y=Y.astype(np.int64),
        site=np.array(["b", "a", "b"]),
        X_test=X[:2],
        y_test=Y[:2],
        feature_names=np.array(["lever", "speed"]),
        other=np.arange(7),
    )
    table = load_table(path)
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    np.testing.assert_array_equal(table.x_test, X[:2])
    np.testing.assert_array_equal(table.y_test, Y[:2])
    assert table.x.dtype == np.float64
    assert table.columns == ("lever", "speed")
    assert table.site is not None
    assert table.site.tolist() == ["b", "a", "b"]
    assert (table.label, table.ids, table.notes, table.rows) == ("y", None, (), 3)


def test_npz_without_names_counts_the_columns(tmp_path: Path) -> None:
    assert load_table(npz(tmp_path, X=X, y=Y)).columns == ("x0", "x1")


def test_npz_label_is_another_array_or_a_column_of_y(tmp_path: Path) -> None:
    path = npz(tmp_path, X=X, y=np.column_stack([Y, -Y]), y2=2 * Y)
    np.testing.assert_array_equal(load_table(path, label="y2").y, 2 * Y)
    table = load_table(path, label="1")
    np.testing.assert_array_equal(table.y, -Y)
    assert table.label == "y[1]"


def test_npz_ids_and_integer_sites(tmp_path: Path) -> None:
    path = npz(tmp_path, X=X, y=Y, key=np.array([7, 8, 9]), station=np.array([2, 0, 2]))
    table = load_table(path, id_column="key", site_column="station")
    assert table.ids is not None
    assert table.site is not None
    assert table.ids.tolist() == ["7", "8", "9"]
    assert table.site.tolist() == [2, 0, 2]


def test_csv_columns_have_their_roles(tmp_path: Path) -> None:
    text = "key,a,b,place,out\n007, 1,+10,N,5\n008,2e0,30,S,7\n009,3.0,20,N,6\n"
    table = load_table(csv(tmp_path, text), label="out", id_column="key", site_column="place")
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    assert table.columns == ("a", "b")
    assert table.ids is not None
    assert table.site is not None
    assert table.ids.tolist() == ["007", "008", "009"]
    assert table.site.tolist() == ["N", "S", "N"]


def test_parquet_equals_csv(tmp_path: Path) -> None:
    path = pq(tmp_path, key=[7, 8, 9], a=[1, 2, 3], b=[10.0, 30.0, 20.0], out=[5, 7, 6])
    table = load_table(path, label="out", id_column="key")
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.y, Y)
    assert table.ids is not None
    assert table.ids.tolist() == ["7", "8", "9"]


def test_text_labels_become_classes_in_sorted_order(tmp_path: Path) -> None:
    table = load_table(csv(tmp_path, "a,out\n1,pear\n2,apple\n3,pear\n4,fig\n"), label="out")
    np.testing.assert_array_equal(table.y, [2, 0, 2, 1])
    assert table.notes == ("encoded the 3 classes of 'out' as 0 to 2",)


def test_dictionary_labels_of_parquet_become_classes(tmp_path: Path) -> None:
    path = pq(tmp_path, a=[1, 2, 3], out=pa.array(["v", "u", "v"]).dictionary_encode())
    np.testing.assert_array_equal(load_table(path, label="out").y, [1, 0, 1])


def test_text_labels_have_names_and_numbers_among_them_may_be_classes(tmp_path: Path) -> None:
    table = load_table(csv(tmp_path, "a,out\n1,1\n2,2b\n3,1\n4,2b\n"), label="out")
    assert (table.classes, table.y.tolist()) == (("1", "2b"), [0, 1, 0, 1])
    table = load_table(csv(tmp_path, "a,out\n1,yes\n2,no\n"), label="out")
    assert (table.classes, table.y.tolist()) == (("no", "yes"), [1, 0])


class Stream:
    """A data frame of a library that we do not know, with the Arrow C stream."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Interchanged:
    """One with the interchange protocol only."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __dataframe__(self, **how: Any) -> Any:
        return self.table.__dataframe__(**how)


@pytest.mark.parametrize("wrap", [lambda table: table, Stream, Interchanged])
def test_a_data_frame_is_as_its_file(tmp_path: Path, wrap: Any) -> None:
    cells = {"key": ["u", "v", "w"], "a": [1, 2, 3], "b": ["x", "y", "x"], "out": ["p", "q", "p"]}
    how: dict[str, Any] = {"label": "out", "id_column": "key", "kinds": {}}
    frame, file = load_table(wrap(pa.table(cells)), **how), load_table(pq(tmp_path, **cells), **how)
    for name, value in vars(file).items():
        np.testing.assert_array_equal(getattr(frame, name), value)
    assert frame.categories == {"b": ("x", "y")}


def test_a_data_frame_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "a": [1.5, None, 3.0],
            "b": pandas.Categorical(["x", None, "y"]),
            "c": ["u", None, "v"],
            "d": pandas.to_datetime(["1970-01-02", None, "1970-01-01"]),
            "e": [True, False, True],
        },
        index=["r", "s", "t"],
    )
    table = load_table(frame, labelled=False, missing="keep", kinds={})
    gap = np.nan
    np.testing.assert_array_equal(
        table.x, [[1.5, 0, 0, 86400, 1], [gap, gap, gap, gap, 0], [3, 1, 1, 0, 1]]
    )
    assert table.kinds == {"b": "category", "c": "category", "d": "date", "e": "boolean"}


def test_what_is_no_data_frame_is_refused() -> None:
    with pytest.raises(TableError, match="the data frame cannot be read; give each"):
        load_table(object())


@pytest.mark.parametrize("target", ["b", "1"])
def test_target_is_a_feature_by_name_or_index(tmp_path: Path, target: str) -> None:
    text = "a,b,out\n1,10,5\n2,30,7\n3,20,6\n"
    table = load_table(csv(tmp_path, text), label="out", target=target)
    np.testing.assert_array_equal(table.y, X[:, 1])
    np.testing.assert_array_equal(table.x, X[:, :1])
    assert (table.columns, table.label) == (("a",), "b")


def test_target_applies_to_test_rows_and_needs_no_y(tmp_path: Path) -> None:
    table = load_table(npz(tmp_path, X=X, X_test=X[1:]), target="0")
    np.testing.assert_array_equal(table.y_test, [2, 3])
    np.testing.assert_array_equal(table.x_test, [[30], [20]])


def test_drop_row_drops_with_a_note(tmp_path: Path) -> None:
    text = "a,b,out\n1,10,5\n,30,7\n3,NA,6\n4,inf,6\n5,20,nan\n6,1,8\n"
    table = load_table(csv(tmp_path, text), label="out", missing="drop-row")
    np.testing.assert_array_equal(table.x, [[1, 10], [6, 1]])
    np.testing.assert_array_equal(table.y, [5, 8])
    assert table.notes == ("dropped 4 of 6 rows of data.csv with missing or infinite cells",)


def test_gaps_to_be_encoded_are_kept_where_the_label_is_there(tmp_path: Path) -> None:
    text = "a,b,out\n1,10,5\n,30,7\n3,NA,\n4,inf,6\n"
    table = load_table(csv(tmp_path, text), label="out", missing="encode")
    np.testing.assert_array_equal(table.y, [5, 7, 6])
    np.testing.assert_array_equal(table.x, [[1, 10], [np.nan, 30], [4, np.inf]])
    assert table.notes == ("dropped 1 of 4 rows of data.csv without a label, an id or a site",)


def test_a_few_cells_of_text_among_numbers_are_gaps(tmp_path: Path) -> None:
    cells = [*map(str, range(38)), "n/k", ">40"]
    path = csv(tmp_path, "a\n" + "\n".join(cells) + "\n")
    table = load_table(path, labelled=False, missing="keep", kinds={})
    np.testing.assert_array_equal(table.x[:, 0], [*range(38), np.nan, np.nan])
    assert table.notes == ("2 cells of 'a' are no numbers: taken as missing",)


def test_drop_row_covers_test_rows_and_empty_sites(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        X=X,
        y=Y,
        site=np.array(["a", "", "b"]),
        X_test=[[1, np.nan], [1, 2]],
        y_test=Y[:2],
    )
    table = load_table(path, missing="drop-row")
    assert table.rows == 2
    np.testing.assert_array_equal(table.y_test, [7])
    assert len(table.notes) == 2


# --- Errors ---------------------------------------------------------------------------------

Case = tuple[Callable[[Path], Path], dict[str, Any], str]


def _pickled(folder: Path) -> Path:
    return npz(folder, X=np.array([[SECRET, None]], dtype=object), y=Y[:1])


def _raw(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return write


HEAD = "key,a,b,out\n"
GOOD = HEAD + f"{SECRET},1,2,3\nk2,4,5,6\n"
AS_LABEL = {"label": "out", "id_column": "key"}


def npz_of(**content: Any) -> Callable[[Path], Path]:
    return lambda folder: npz(folder, **content)


def csv_of(text: str) -> Callable[[Path], Path]:
    return lambda folder: csv(folder, text)


def pq_of(**columns: Any) -> Callable[[Path], Path]:
    return lambda folder: pq(folder, **columns)


def bad(make: Callable[[Path], Path], text: str, **options: Any) -> Case:
    return make, options, text


ERRORS: dict[str, Case] = {
    "missing file": bad(lambda d: d / "no.csv", "there is no file .*no.csv; check the path"),
    "directory": bad(lambda d: d, "is a directory; give a .npz, .csv, .tsv or .parquet file"),
    "suffix": bad(_raw("a.xlsx", b"1"), "a.xlsx has an unknown suffix; give a .npz, .csv"),
    "empty file": bad(_raw("a.csv", b""), "a.csv is empty; give a file with data"),
    "corrupt npz": bad(_raw("a.npz", b"s3cret"), "a.npz is not a readable NPZ file; save it"),
    "truncated npz": bad(_raw("a.npz", b"PK\x03\x04s3cret"), "not a readable NPZ file"),
    "corrupt parquet": bad(_raw("a.parquet", b"s3cret"), "not a readable Parquet file; save it"),
    "ragged csv": bad(
        csv_of(HEAD + f"1,{SECRET}\n"),
        "data.csv is not a readable CSV file: line 2 has 2 cells, the first has 4; mend the line",
        **AS_LABEL,
    ),
    "not utf-8": bad(_raw("a.csv", b"a,out\n\xff,1\n"), "text as UTF-8", label="out"),
    "pickled": bad(_pickled, "array 'X' of data.npz holds pickled objects, which are never"),
    "no X": bad(npz_of(y=Y, z=Y), "has no array 'X'; choose from: y, z"),
    "no y": bad(npz_of(X=X), "has no label array 'y'; choose from: X"),
    "no label array": bad(npz_of(X=X, y=Y), "no label array 'y2'; .*: y, X", label="y2"),
    "no column of y": bad(npz_of(X=X, y=Y), "has no label array '0'", label="0"),
    "y 2-D": bad(npz_of(X=X, y=X), "has 2 label columns; choose one with --label, .* 0 to 1"),
    "y 2-D range": bad(npz_of(X=X, y=X), "has 2 label columns; choose one", label="2"),
    "X 1-D": bad(npz_of(X=Y, y=Y), r"'X' of data.npz has 1 dimensions, not 2; save X"),
    "X text": bad(npz_of(X=np.array([[SECRET]]), y=Y[:1]), "array 'X' of data.npz is not numeric"),
    "rows differ": bad(npz_of(X=X, y=Y[:2]), "y has 2 entries but X has 3 rows; save"),
    "site rows differ": bad(npz_of(X=X, y=Y, site=[1]), "site has 1 entries but X has 3 rows"),
    "names differ": bad(
        npz_of(X=X, y=Y, feature_names=["a"]), "feature_names has 1 entries .* 2 col"
    ),
    "test columns differ": bad(
        npz_of(X=X, y=Y, X_test=X[:, :1]), "X_test has 1 entries but X has 2 columns"
    ),
    "test rows differ": bad(
        npz_of(X=X, y=Y, X_test=X, y_test=Y[:1]), "y_test has 1 entries .* 3 test rows"
    ),
    "site of floats": bad(
        npz_of(X=X, y=Y, site=Y), "site array 'site' .* not one list of integers or"
    ),
    "no site array": bad(
        npz_of(X=X, y=Y), "has no site array 'place'; choose", site_column="place"
    ),
    "no id array": bad(npz_of(X=X, y=Y), "has no id array 'key'", id_column="key"),
    "npz zero rows": bad(npz_of(X=X[:0], y=Y[:0]), "data.npz has no rows; give a file"),
    "npz no columns": bad(npz_of(X=X[:, :0], y=Y), "data.npz has no feature column"),
    "npz NaN": bad(
        npz_of(X=X, y=np.array([1, np.nan, np.nan])),
        r"column 'y' of data.npz is empty or NaN in 2 rows \(all columns: 2 bad rows\); use --miss",
    ),
    "test NaN": bad(
        npz_of(X=X, y=Y, X_test=X * np.nan), "of the test rows of data.npz is empty or"
    ),
    "label not named": bad(
        csv_of(GOOD), "label column of data.csv is not named; .* --label: key, a, b, out"
    ),
    "no label column": bad(
        csv_of(GOOD), "no label column 'z'; choose from: key, a, b, out$", label="z"
    ),
    "misspelt": bad(csv_of(GOOD), r"'Out'; did you mean 'out'\? choose from: out, k", label="Out"),
    "no id column": bad(csv_of(GOOD), "no id column 'z'; choose from", label="out", id_column="z"),
    "no site column": bad(csv_of(GOOD), "no site column 'z'; choose", label="out", site_column="z"),
    "many columns": bad(
        csv_of(",".join(f"c{j}" for j in range(12)) + "\n"),
        "choose from: c0, c1, c2, c3, c4, c5, c6, c7, c8, c9 and 2 more$",
        label="z",
    ),
    "two roles": bad(csv_of(GOOD), "has two of the roles", label="out", id_column="out"),
    "text feature": bad(
        csv_of(HEAD + f"k1,1,2,3\nk2,4,{SECRET},6\n"),
        r"column 'b' of data.csv is not numeric \(for example in row 2\); encode it as numbers",
        **AS_LABEL,
    ),
    "text among labels": bad(
        csv_of(HEAD + f"k1,1,2,3\nk2,4,5,{SECRET}\n"),
        r"column 'out' of data.csv is not numeric \(for example in row 2\)",
        **AS_LABEL,
    ),
    "date feature": bad(
        pq_of(a=pa.array([0], pa.timestamp("s")), out=[1]), "not numeric", label="out"
    ),
    "list feature": bad(pq_of(a=[[1, 2]], out=[1]), "'a' .* not numeric", label="out"),
    "csv NaN": bad(
        csv_of(HEAD + f"{SECRET},1,2,3\nk2,,NA,6\nk3,nan,1,1\n"),
        r"column 'a' of data.csv is empty or NaN in 2 rows \(all columns: 2 bad rows\); ",
        **AS_LABEL,
    ),
    "csv infinite": bad(
        csv_of(HEAD + "k1,1,-inf,3\n"), "column 'b' of data.csv is infinite in 1", **AS_LABEL
    ),
    "parquet null": bad(pq_of(a=[1, None], out=[1, 2]), "NaN in 1 rows", label="out"),
    "empty id": bad(
        csv_of(HEAD + ",1,2,3\n"), "the id column of data.csv is empty in 1 rows", **AS_LABEL
    ),
    "all missing": bad(
        csv_of(HEAD + "k,1,,3\n"), "every row of data", **AS_LABEL, missing="drop-row"
    ),
    "duplicate ids": bad(
        csv_of(HEAD + f"{SECRET},1,2,3\n{SECRET} ,4,5,6\nk,1,1,1\n"),
        "the id column of data.csv has 1 duplicate ids; keep one row per id",
        **AS_LABEL,
    ),
    "csv zero rows": bad(csv_of(HEAD), "data.csv has no rows; give a file", **AS_LABEL),
    "no features": bad(csv_of("out\n1\n"), "has no feature column", label="out"),
    "headerless": bad(
        csv_of(f"{SECRET},1.5,2\nk,2.5,3\n"), "first line .* holds data ins", label="z"
    ),
    "repeated names": bad(csv_of("a,a,b\n1,2,3\n"), "has 1 repeated column", label="b"),
    "no name": bad(csv_of(",a,out\n0,1,2\n"), "has no name; name it", label="out"),
    "target range": bad(
        npz_of(X=X, y=Y), "target 2 is out of range: .* 2 feature .* 0 to 1", target="2"
    ),
    "target negative": bad(npz_of(X=X, y=Y), "target -1 is out of range", target="-1"),
    "target name": bad(npz_of(X=X, y=Y), "no feature column 'z'; choose from: x0, x1", target="z"),
    "target only": bad(npz_of(X=X[:, :1]), "is the only feature column", target="0"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_error_is_one_line_without_data(tmp_path: Path, case: str) -> None:
    make, options, expected = ERRORS[case]
    with pytest.raises(TableError, match=expected) as caught:
        load_table(make(tmp_path), **options)
    text = str(caught.value)
    assert "\n" not in text
    assert "; " in text
    assert SECRET not in text
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_unknown_missing_lists_the_choices(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="choose 'error', 'drop-row', 'keep' or 'encode'"):
        load_table(npz(tmp_path, X=X, y=Y), missing="skip")  # type: ignore[arg-type]


# --- Tables ---------------------------------------------------------------------------------


def test_take_keeps_the_parts_together() -> None:
    site = np.array([0, 1, 2])
    table = Table(X, Y, ("a", "b"), "y", np.array(["p", "q", "r"]), site, X, Y, ("note",))
    part = table.take([2, 0])
    np.testing.assert_array_equal(part.x, X[[2, 0]])
    np.testing.assert_array_equal(part.y, Y[[2, 0]])
    assert part.ids is not None
    assert part.site is not None
    assert (part.ids.tolist(), part.site.tolist()) == (["r", "p"], [2, 0])
    assert part.x_test is X
    assert part.notes == ("note",)
    assert table.take([]).rows == 0


def test_the_repr_shows_no_cell() -> None:
    ids = np.array([SECRET] * 3)
    assert repr(Table(X, Y, ("a", "b"), "y", ids)) == "Table(3 rows, 2 columns, label 'y')"


def test_constant_columns_are_dropped_with_their_names() -> None:
    x = np.column_stack([X, np.ones(3), np.zeros(3)])
    table = drop_constant_columns(Table(x, Y, ("a", "b", "c", "d"), x_test=x[:1]))
    np.testing.assert_array_equal(table.x, X)
    np.testing.assert_array_equal(table.x_test, X[:1])
    assert table.columns == ("a", "b")
    assert table.notes == ("dropped 2 constant columns: c, d",)
    assert drop_constant_columns(table) is table


def test_only_constant_columns_is_an_error() -> None:
    with pytest.raises(TableError, match="every feature column is constant"):
        drop_constant_columns(Table(np.ones((3, 2)), Y, ("a", "b")))


def test_a_column_name_wins_over_an_index() -> None:
    assert select_target(Table(X, Y, ("1", "0")), "0").columns == ("1",)


# --- Scaling --------------------------------------------------------------------------------


def test_scaling_by_hand() -> None:
    # Columns become (0, .5, 1) and (0, 1, .5); rows have norms 0, sqrt(1.25), sqrt(1.25).
    table = Table(X, Y, ("a", "b"), x_test=np.array([[5.0, 0.0]]), y_test=np.array([9.0]))
    scaling = Scaling.fit(table)
    scaled = scaling.apply(table)
    r = np.sqrt(1.25)
    assert scaled.x_test is not None
    assert scaling.row_norm == pytest.approx(r, rel=1e-15)
    np.testing.assert_allclose(scaled.x, np.array([[0, 0], [0.5, 1], [1, 0.5]]) / r, rtol=1e-15)
    np.testing.assert_array_equal(scaled.y, [0, 1, 0.5])
    np.testing.assert_allclose(scaled.x_test, [[1 / r, 0]], rtol=1e-15)
    np.testing.assert_array_equal(scaled.y_test, [2])
    np.testing.assert_array_equal(scaling.inverse_y([0, 1, 0.5]), Y)


def test_scaling_maps_constant_columns_to_zero() -> None:
    table = Table(np.full((3, 2), 4.0), Y, ("a", "b"))
    np.testing.assert_array_equal(Scaling.fit(table).apply(table).x, np.zeros((3, 2)))


def test_scaling_of_test_rows_far_from_an_almost_constant_column_does_not_overflow() -> None:
    table = Table(np.array([[0.0], [1e-310]]), Y[:2], ("a",), x_test=np.array([[1e6], [-1e6]]))
    np.testing.assert_array_equal(Scaling.fit(table).apply(table).x_test, [[1], [0]])


def test_scaling_without_labels() -> None:
    table = Table(X, None, ("a", "b"))
    scaling = Scaling.fit(table)
    assert (scaling.y_min, scaling.y_max) == (0, 1)
    assert scaling.apply(table).y is None


def test_scaling_refuses_a_constant_label() -> None:
    with pytest.raises(TableError, match="the label is constant; choose a label that varies"):
        Scaling.fit(Table(X, np.ones(3), ("a", "b")))


def test_scaling_refuses_other_columns_and_no_rows() -> None:
    table = Table(X, Y, ("a", "b"))
    with pytest.raises(TableError, match="has 1 columns but the scaling has 2"):
        Scaling.fit(table).apply(Table(X[:, :1], Y, ("a",)))
    with pytest.raises(TableError, match="no rows"):
        Scaling.fit(table.take([]))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"x_min": "a"}'])
def test_scaling_refuses_other_json(text: str) -> None:
    with pytest.raises(TableError, match="not a scaling"):
        Scaling.from_json(text)


numbers = st.floats(-1e6, 1e6)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n, d, t = (draw(st.integers(low, 8)) for low in (2, 1, 0))
    y = draw(arrays(np.float64, n, elements=numbers).filter(lambda y: np.ptp(y) > 0))
    x, x_test = (draw(arrays(np.float64, (k, d), elements=numbers)) for k in (n, t))
    return Table(x, y, tuple(f"x{j}" for j in range(d)), "y", x_test=x_test)


@given(tables())
def test_scaled_rows_lie_in_the_unit_ball_and_labels_in_the_unit_interval(table: Table) -> None:
    scaling = Scaling.fit(table)
    scaled = scaling.apply(table)
    assert table.y is not None
    assert scaled.y is not None
    assert scaled.x_test is not None
    assert scaled.x.min() >= 0
    assert np.linalg.norm(scaled.x, axis=1).max() <= 1 + 1e-12
    assert scaled.y.min() == 0
    assert scaled.y.max() == 1
    assert ((scaled.x_test >= 0) & (scaled.x_test <= 1 / scaling.row_norm)).all()
    np.testing.assert_allclose(scaling.inverse_y(scaled.y), table.y, rtol=1e-9, atol=1e-9)


@given(tables())
def test_scaling_survives_json_exactly(table: Table) -> None:
    scaling = Scaling.fit(table)
    again = Scaling.from_json(scaling.to_json())
    np.testing.assert_array_equal(again.x_min, scaling.x_min)
    np.testing.assert_array_equal(again.x_max, scaling.x_max)
    assert (again.row_norm, again.y_min, again.y_max) == (
        scaling.row_norm,
        scaling.y_min,
        scaling.y_max,
    )


# --- Public data ----------------------------------------------------------------------------


@pytest.mark.skipif("FEDKERN_DATA" not in os.environ, reason="FEDKERN_DATA is not set")
@pytest.mark.parametrize(
    ("name", "options", "shape", "test_rows"),
    [
        ("a9a", {}, (32561, 123), 16281),
        ("beijing_prsa", {"missing": "drop-row"}, (383585, 10), 0),
        ("breast_cancer_original", {}, (683, 9), 0),
        ("ccpp", {}, (9568, 4), 0),
        ("ionosphere", {}, (351, 34), 0),
        ("naval", {"target": "0"}, (11934, 15), 0),
        ("phishing", {}, (11055, 68), 0),
        ("sonar", {}, (208, 60), 0),
        ("svmguide1", {}, (3089, 4), 4000),
        ("ujiindoorloc", {"label": "0"}, (19937, 520), 0),
    ],
)
def test_public_data_loads(
    name: str, options: dict[str, Any], shape: tuple[int, int], test_rows: int
) -> None:
    path = Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"FEDKERN_DATA has no {name}.npz")
    table = load_table(path, **options)
    assert table.x.shape == shape
    assert table.y is not None
    assert table.y.shape == shape[:1]
    assert (0 if table.x_test is None else len(table.x_test)) == test_rows


# --- Parties of a table split by columns ------------------------------------------------------


def test_a_file_without_labels_is_loaded_where_none_are_needed(tmp_path: Path) -> None:
    """As a centre has, or new patients; labels are read where the file has them."""
    path = csv(tmp_path, "id,a,b\np1,1,2\np2,3,4\n")
    for label in (None, "y"):
        table = load_table(path, label=label, id_column="id", labelled=False)
        assert (table.y, table.label, table.columns) == (None, None, ("a", "b"))
        with pytest.raises(TableError, match="label column"):
            load_table(path, label=label, id_column="id")
    table = load_table(path, label="b", id_column="id", labelled=False)
    assert table.y is not None
    assert (table.y.tolist(), table.columns) == ([2.0, 4.0], ("a",))

    bare = npz(tmp_path, X=X)
    assert load_table(bare, labelled=False).y is None
    assert load_table(bare, label="1", labelled=False).y is None
    with pytest.raises(TableError, match="no label array 'y'"):
        load_table(bare)
    table = load_table(npz(tmp_path, X=X, y=Y), labelled=False)
    assert table.y is not None
    np.testing.assert_array_equal(table.y, Y)


def test_text_labels_are_encoded_alike_in_every_file_when_their_classes_are_named(
    tmp_path: Path,
) -> None:
    classes = ("ill", "healthy", SECRET)
    for cells, expected in ((("healthy", "healthy"), [1.0, 1.0]), (("ill", SECRET), [0.0, 2.0])):
        path = csv(tmp_path, "a,y\n" + "".join(f"1,{cell}\n" for cell in cells))
        table = load_table(path, label="y", classes=classes)
        assert table.y is not None
        assert table.y.tolist() == expected
        assert table.notes == ("encoded the 3 classes of 'y' as 0 to 2",)
    for known in (("ill", "healthy"), ("0", "1"), ()):
        with pytest.raises(
            TableError, match=f"labels .* are none of {len(known)} classes"
        ) as error:
            load_table(path, label="y", classes=known)
        assert SECRET not in str(error.value)
    numbers = csv(tmp_path, "a,y\n1,0\n2,1\n")
    table = load_table(numbers, label="y", classes=("0", "1"))
    assert table.y is not None
    assert table.y.tolist() == [0.0, 1.0]
    with pytest.raises(TableError, match="holds numbers, the classes are text"):
        load_table(numbers, label="y", classes=classes)
