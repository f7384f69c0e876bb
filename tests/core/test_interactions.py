"""Loading interactions of users with items, and holding some of them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.interactions import (
    Interactions,
    encode_interactions,
    has_header,
    hold_out_latest,
    hold_out_random,
    is_interactions,
    load_interactions,
    read_catalogue,
)

# Users 2 and 10, items 5 and 30: in numerical order, which is not that of the text.
ROWS = [("10", "30", "4", "300"), ("2", "30", "2.5", "100"), ("10", "5", "5", "200")]
HEADERS = {
    "ml.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n",
    "ml.tsv": "user_id\titem_id\trating\ttimestamp\n",
    "ml.csv": "userId,movieId,rating,timestamp\n",
}
SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ml.inter": "\t", "ml.tsv": "\t", "ml.csv": ","}


def write(folder: Path, name: str, rows: Any = ROWS, header: str | None = None) -> Path:
    lines = [SEPARATORS[name].join(row) for row in rows]
    text = (HEADERS.get(name, "") if header is None else header) + "\n".join(lines) + "\n"
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def pq(folder: Path, **columns: Any) -> Path:
    path = folder / "ml.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def check(interactions: Interactions) -> None:
    assert interactions.user_ids == ("2", "10")
    assert interactions.item_ids == ("5", "30")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 0])
    np.testing.assert_array_equal(interactions.rating, [4, 2.5, 5])
    np.testing.assert_array_equal(interactions.time, [300, 100, 200])
    assert interactions.user.dtype == interactions.item.dtype == np.intp
    assert interactions.rating.dtype == np.float64
    assert (interactions.rows, interactions.users, interactions.items) == (3, 2, 2)


# --- Reading --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEPARATORS)
def test_every_text_format_is_read(tmp_path: Path, name: str) -> None:
    check(load_interactions(write(tmp_path, name)))


def test_a_parquet_file_is_read_with_the_types_it_has(tmp_path: Path) -> None:
    path = pq(
        tmp_path,
        user_id=pa.array([10, 2, 10]),
        item_id=pa.array(["30", "30", "5"]).dictionary_encode(),
        rating=pa.array([4, 2.5, 5], pa.float32()),
        timestamp=pa.array([300, 100, 200], pa.timestamp("s")),
        title=["a", "b", "c"],
    )
    check(load_interactions(path))


def test_windows_lines_a_byte_order_mark_and_spaces_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "ml.csv"
    lines = (" {} , {} ,+{},{}\r\n".format(*row) for row in ROWS)
    path.write_bytes(b"\xef\xbb\xbfuser,item,rating,time\r\n" + "".join(lines).encode())
    check(load_interactions(path))


def test_columns_may_be_named_and_others_are_not_read(tmp_path: Path) -> None:
    rows = [("no number", *row) for row in ROWS]
    path = write(tmp_path, "ml.csv", rows, "rating,who,what,stars,when\n")
    check(load_interactions(path, user="who", item="what", rating="stars", time="when"))


def test_a_column_of_recbole_is_named_with_or_without_its_type(tmp_path: Path) -> None:
    path = write(tmp_path, "ml.inter", header="session:token\ta:token\tb:float\tc:float\n")
    for user in ("session", "session:token"):
        check(load_interactions(path, user=user, item="a", rating="b", time="c"))


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ml.inter", "ml.csv"])
def test_ratings_and_times_are_optional(tmp_path: Path, name: str) -> None:
    header = HEADERS.get(name, "").replace("\n", "").split(SEPARATORS[name])[:2]
    text = SEPARATORS[name].join(header) + "\n" if name in HEADERS else ""
    interactions = load_interactions(write(tmp_path, name, [row[:2] for row in ROWS], text))
    np.testing.assert_array_equal(interactions.rating, [1, 1, 1])
    assert interactions.time is None


def test_codes_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    first = load_interactions(write(tmp_path, "u.data"))
    second = load_interactions(write(tmp_path, "u.data", ROWS[::-1]))
    assert (first.user_ids, first.item_ids) == (second.user_ids, second.item_ids)
    np.testing.assert_array_equal(first.user, second.user[::-1])


def test_ids_are_ordered_as_text_unless_all_are_whole_numbers(tmp_path: Path) -> None:
    rows = [("10", "b", "1", "1"), ("9", "10", "1", "1"), ("x", "9", "1", "1")]
    interactions = load_interactions(write(tmp_path, "u.data", rows))
    assert interactions.user_ids == ("10", "9", "x")
    assert interactions.item_ids == ("10", "9", "b")
    rows = [("007", "-1", "1", "1"), ("7", "-20", "1", "1"), ("11", "0", "1", "1")]
    interactions = load_interactions(write(tmp_path, "u.data", rows))
    assert interactions.user_ids == ("007", "7", "11")
    assert interactions.item_ids == ("-20", "-1", "0")


def test_its_text_shows_counts_alone(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data"))
    assert repr(interactions) == "Interactions(3 rows, 2 users, 2 items)"


@pytest.mark.parametrize("name", ["u.data", "ml.data", "ratings.dat", "ml-1m.INTER"])
def test_files_of_interactions_are_told_by_name(name: str) -> None:
    assert is_interactions(f"/some/where/{name}")


@pytest.mark.parametrize("name", ["ml.csv", "ml.parquet", "iris", "u.data.npz"])
def test_other_files_may_be_tables(name: str) -> None:
    assert not is_interactions(Path(name))


@pytest.mark.parametrize("name", SEPARATORS)
def test_files_that_name_their_columns_are_told_by_name(name: str) -> None:
    assert has_header(name) == (name in HEADERS)


def test_whether_there_are_ratings_is_known(tmp_path: Path) -> None:
    assert load_interactions(write(tmp_path, "u.data")).rated
    assert not load_interactions(write(tmp_path, "u.data", [row[:2] for row in ROWS])).rated


@pytest.mark.parametrize("name", SEPARATORS)
def test_times_need_not_be_read(tmp_path: Path, name: str) -> None:
    rows = [(*row[:3], "yesterday") for row in ROWS]
    interactions = load_interactions(write(tmp_path, name, rows), timed=False)
    assert interactions.time is None
    np.testing.assert_array_equal(interactions.rating, [4, 2.5, 5])


# --- A catalogue ----------------------------------------------------------------------------

CATALOGUE = ("40", "30", "05", "5")


@pytest.mark.parametrize("name", SEPARATORS)
def test_items_have_their_position_in_the_catalogue(tmp_path: Path, name: str) -> None:
    interactions = load_interactions(write(tmp_path, name), catalogue=CATALOGUE)
    assert interactions.item_ids == CATALOGUE
    assert interactions.user_ids == ("2", "10")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 3])
    np.testing.assert_array_equal(interactions.rating, [4, 2.5, 5])
    np.testing.assert_array_equal(interactions.matrix().toarray(), [[0, 1, 0, 0], [0, 1, 0, 1]])
    assert interactions.notes == ()


def test_one_user_and_one_item_are_enough_with_a_catalogue(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data", ROWS[:1]), catalogue=CATALOGUE)
    np.testing.assert_array_equal(interactions.matrix().toarray(), [[0, 1, 0, 0]])


def test_items_that_are_not_in_the_catalogue_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "ml.csv", [*ROWS, ("10", "s3cret", "1", "1"), ("2", "007", "1", "1")])
    with pytest.raises(TableError) as caught:
        load_interactions(path, catalogue=("30", "7"))
    assert str(caught.value) == (
        "3 rows of ml.csv name 3 items that are not in the catalogue; leave out these rows, or "
        "add the items to the catalogue"
    )


def test_rows_of_unknown_items_may_be_left_out_and_their_users_stay(tmp_path: Path) -> None:
    more = [("99", "s3cret", "1", "1"), ("10", "s3cret", "1", "1"), ("99", "s3cret", "1", "1")]
    path = write(tmp_path, "ml.csv", [*more, *ROWS])
    interactions = load_interactions(path, catalogue=("5", "30"), unknown="drop")
    assert interactions.user_ids == ("2", "10", "99")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 0])
    np.testing.assert_array_equal(interactions.rating, [4, 2.5, 5])
    np.testing.assert_array_equal(interactions.time, [300, 100, 200])
    assert interactions.notes == ("left out 3 rows of ml.csv that name 1 unknown items",)
    assert load_interactions(path, catalogue=("6", "7"), unknown="drop").rows == 0


def test_a_repeated_pair_is_refused_with_a_catalogue(tmp_path: Path) -> None:
    path = write(tmp_path, "u.data", [*ROWS, ROWS[1]])
    with pytest.raises(TableError, match=r"u.data has 1 rows that repeat a pair"):
        load_interactions(path, catalogue=CATALOGUE)


def test_unknown_is_one_of_the_choices(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown is 'keep'; choose 'error' or 'drop'"):
        load_interactions(write(tmp_path, "u.data"), unknown="keep")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*HEADERS, "ml.parquet"])
@pytest.mark.parametrize("catalogue", [CATALOGUE, None])
def test_a_file_may_have_no_rows_if_that_is_said(
    tmp_path: Path, name: str, catalogue: tuple[str, ...] | None
) -> None:
    if name == "ml.parquet":
        path = pq(tmp_path, **dict.fromkeys(("user", "item", "rating", "time"), pa.array([])))
    else:
        path = write(tmp_path, name, [])
    with pytest.raises(TableError, match=f"{name} has no rows; give a file with data"):
        load_interactions(path, catalogue=catalogue)
    interactions = load_interactions(path, catalogue=catalogue, allow_empty=True)
    assert (interactions.rows, interactions.users) == (0, 0)
    assert interactions.item_ids == (catalogue or ())
    assert interactions.rated
    assert interactions.time is not None
    assert interactions.matrix().shape == (0, len(catalogue or ()))


def test_an_empty_file_is_refused_even_so(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("")
    with pytest.raises(TableError, match=r"u.data is empty"):
        load_interactions(tmp_path / "u.data", catalogue=CATALOGUE, allow_empty=True)


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ({}, "m.csv has no columns that may be the user"),
        ({"user": "who"}, "m.csv has no user column 'who'"),
    ],
)
def test_what_to_do_about_a_column_may_be_said(
    tmp_path: Path, named: dict[str, Any], problem: str
) -> None:
    (tmp_path / "m.csv").write_text("s3cret,item\na,b\n")
    with pytest.raises(TableError) as caught:
        load_interactions(tmp_path / "m.csv", **named, column_remedy="name the {role}")
    assert str(caught.value) == f"{problem}; name the user"


CATALOGUES = {
    "items.txt": "40\n 30\r\n05\n5\n\n",
    "items.csv": '\ufeffTitle,movieId,movie\n"a, b",40,1\n,30,2\nc,05,3\n"""",5,4\n',
    "items.tsv": 'item\ttitle\n40\t"a\n30\tb\n05\tc\n5\t\n',
    "ml.item": 'item_id:token\tmovie_title:token_seq\n40\t"a\n30\tb\n05\tc\n5\td"\n',
    "ids.CSV": "Item_ID\n40\n30\n05\n5\n",
}


@pytest.mark.parametrize("name", CATALOGUES)
def test_every_kind_of_catalogue_is_read_in_its_order(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(CATALOGUES[name], encoding="utf-8", newline="")
    assert read_catalogue(path) == read_catalogue(str(path)) == CATALOGUE


def test_a_catalogue_may_be_a_parquet_file(tmp_path: Path) -> None:
    assert read_catalogue(pq(tmp_path, itemId=[7, 3], item_genre=["a", "b"])) == ("7", "3")
    ids = pa.array(CATALOGUE).dictionary_encode()
    assert read_catalogue(pq(tmp_path, item=ids)) == CATALOGUE


BAD_CATALOGUES: dict[str, tuple[str, bytes | None, str]] = {
    "no file": ("items.txt", None, "there is no file"),
    "no content": ("items.txt", b"", "items.txt is empty; give a file with data"),
    "blank lines": ("items.txt", b"\n \n", "items.txt is empty"),
    "a suffix": ("u.data", b"1", "u.data has an unknown suffix; give a .txt, .csv, .tsv, .item"),
    "latin text": ("items.txt", b"\xff\n\xfe\n", "items.txt is not a readable text file; save it"),
    "latin": ("items.csv", b"item\n\xff\n\xfe\n", "items.csv is not a readable text file"),
    "no Parquet": ("i.parquet", b"PAR1", "i.parquet is not a readable Parquet file"),
    "an empty line": (
        "items.txt",
        b"s3cret\n\nb\n",
        "the item id is empty in 1 rows of items.txt, for example in row 2; fill it in or remove",
    ),
    "an empty cell": ("items.tsv", b"item\tyear\ns3cret\t1\n\t2\n", "empty in 1 rows of items.tsv"),
    "a duplicate": (
        "items.txt",
        b"s3cret\nb\ns3cret \n",
        "items.txt has 1 rows that repeat an item; keep one row of each item",
    ),
    "one item": ("items.txt", b"s3cret", "items in items.txt: 1; list all items"),
    "no item": ("items.csv", b"item,year\n", "items in items.csv: 0; list all items"),
    "no header": (
        "items.csv",
        b"s3cret\nb\nc\n",
        "items.csv has no columns that may be the item; name one column item in the first line",
    ),
    "u.item": ("u.item", b"1|s3cret|1995\n2|b|1994\n", "u.item has no columns that may be the"),
    "two columns": ("items.csv", b"item,movieId\na,1\nb,2\n", "items.csv has 2 columns that may"),
    "a long line": ("items.csv", b"item\na\nb,c\n", "line 3 of items.csv has 2 columns instead of"),
}


@pytest.mark.parametrize("case", BAD_CATALOGUES)
def test_a_bad_catalogue_is_one_line_without_its_ids(tmp_path: Path, case: str) -> None:
    name, content, text = BAD_CATALOGUES[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError) as caught:
        read_catalogue(tmp_path / name)
    assert text in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_ids_of_a_catalogue_are_text_or_whole_numbers(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"item ids of ml.parquet are neither text nor whole"):
        read_catalogue(pq(tmp_path, item=[1.5, 2.5]))


def test_a_directory_is_no_catalogue(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"is a directory; give a .txt, .csv, .tsv, .item or"):
        read_catalogue(tmp_path)


@pytest.mark.parametrize("method", ["read_bytes", "is_file"])
def test_an_unreadable_catalogue_is_a_table_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    (tmp_path / "items.txt").write_text("a\nb\n")
    monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(TableError, match=r"items.txt is not readable; check who may read it"):
        read_catalogue(tmp_path / "items.txt")


# --- Positives and the matrix ---------------------------------------------------------------


def test_positives_keep_all_users_and_items(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data"))
    liked = interactions.positive(4)
    np.testing.assert_array_equal(liked.user, [1, 1])
    np.testing.assert_array_equal(liked.item, [1, 0])
    np.testing.assert_array_equal(liked.rating, [4, 5])
    np.testing.assert_array_equal(liked.time, [300, 200])
    assert (liked.users, liked.items) == (2, 2)
    assert interactions.positive(None).rows == 3
    with pytest.raises(TableError, match="no rating is at least 6; choose a lower one"):
        interactions.positive(6)


def test_the_matrix_counts_the_chosen_rows(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data"))
    matrix = interactions.matrix()
    assert matrix.dtype == np.int64
    np.testing.assert_array_equal(matrix.toarray(), [[0, 1], [1, 1]])
    chosen = interactions.matrix(np.array([True, False, True]))
    np.testing.assert_array_equal(chosen.toarray(), [[0, 0], [1, 1]])
    assert interactions.matrix(np.zeros(3, dtype=bool)).nnz == 0


# --- What is wrong with a file --------------------------------------------------------------

BAD_FILES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a directory": (lambda p: p.mkdir(), "u.data", "is a directory"),
    "no file": (lambda p: None, "u.data", "there is no file"),
    "an unknown suffix": (lambda p: p.write_text("a"), "u.txt", "u.txt has an unknown suffix"),
    "no content": (lambda p: p.write_text(""), "u.data", "u.data is empty; give a file with data"),
    "blank lines": (lambda p: p.write_text("\n \n"), "u.data", "u.data is empty"),
    "a header alone": (lambda p: p.write_text("user,item\n"), "m.csv", "m.csv has no rows"),
    "bytes": (lambda p: p.write_bytes(b"user,item\n\xff,\xff\n"), "m.csv", "save it again as UTF"),
    "no Parquet": (lambda p: p.write_text("PAR1"), "m.parquet", "not a readable Parquet file"),
    "one column": (
        lambda p: p.write_text("1,2,3,4\n"),
        "u.data",
        "line 1 of u.data has 1 columns; give user, item, rating and time, separated by tabs",
    ),
    "five columns": (
        lambda p: p.write_text("1::2::3::4::5\n"),
        "r.dat",
        "line 1 of r.dat has 5 columns; give user, item, rating and time, separated by ::",
    ),
    "a short line": (
        lambda p: p.write_text("1\t1\t1\t1\n1\t2\t1\n"),
        "u.data",
        "line 2 of u.data has 3 columns instead of 4; mend it",
    ),
    "a long line": (
        lambda p: p.write_text("user,item\n1,1\n1,2,1\n"),
        "m.csv",
        "line 3 of m.csv has 3 columns instead of 2",
    ),
    "no header": (
        lambda p: p.write_text("s3cret,2\n1,3\n"),
        "m.csv",
        "the first line of m.csv holds data instead of column names; add a line with column names",
    ),
    "unknown columns": (
        lambda p: p.write_text("who,movieId\na,b\n"),
        "m.csv",
        "m.csv has no columns that may be the user; choose one with --user: who, movieId",
    ),
    "two known columns": (
        lambda p: p.write_text("user,item,movieId\na,b,c\n"),
        "m.csv",
        "m.csv has 2 columns that may be the item; choose one with --item: user, item, movieId",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_one_line_with_a_remedy(tmp_path: Path, case: str) -> None:
    make, name, text = BAD_FILES[case]
    path = tmp_path / name
    make(path)
    with pytest.raises(TableError) as caught:
        load_interactions(path)
    assert text in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def with_row(*row: str) -> list[tuple[str, ...]]:
    return [*ROWS, row]


BAD_CELLS = {
    "text": (with_row("2", "5", "s3cret", "1"), "the rating is not a finite number in 1 rows"),
    "no rating": (with_row("2", "5", "", "1"), "rating is not a finite number .* in row 4;"),
    "nan": (with_row("2", "5", "nan", "1"), "rating is not a finite number"),
    "infinite": (with_row("2", "5", "-inf", "1"), "rating is not a finite number"),
    "too large": (with_row("2", "5", "1e999", "1"), "rating is not a finite number"),
    "no time": (with_row("2", "5", "1", " "), "the time is not a finite number in 1 rows"),
    "no user": (
        with_row(" ", "5", "1", "1"),
        "the user id is empty in 1 rows of u.data, for example in row 4; fill it in or remove",
    ),
    "no item": (with_row("2", "", "1", "1"), "the item id is empty in 1 rows"),
    "a repeated pair": (
        [*ROWS, *ROWS[:2]],
        "u.data has 2 rows that repeat a pair of user and item; keep one row of each pair",
    ),
    "one user": (ROWS[::2], "users in u.data: 1, items: 2; give at least 2 of each"),
    "one item": (ROWS[:2], "users in u.data: 2, items: 1"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_bad_cell_is_counted_and_never_quoted(tmp_path: Path, case: str) -> None:
    rows, text = BAD_CELLS[case]
    with pytest.raises(TableError, match=text) as caught:
        load_interactions(write(tmp_path, "u.data", rows))
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)


def test_no_cell_is_taken_for_a_column_name(tmp_path: Path) -> None:
    path = tmp_path / "ml.csv"
    path.write_text("s3cret,2\n1,3\n", encoding="utf-8")
    with pytest.raises(TableError) as caught:
        load_interactions(path)
    assert "s3cret" not in str(caught.value)


def test_a_named_column_must_be_there(tmp_path: Path) -> None:
    expected = "ml.csv has no rating column 'stars'; choose from: userId, movieId, rating, time"
    with pytest.raises(TableError, match=expected):
        load_interactions(write(tmp_path, "ml.csv"), rating="stars")


def test_a_column_has_one_role(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"one column of ml.csv has two of the roles"):
        load_interactions(write(tmp_path, "ml.csv"), user="movieId")


def test_columns_without_names_cannot_be_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"columns of u.data are fixed: .*; do not name them"):
        load_interactions(write(tmp_path, "u.data"), user="a")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"user": [1.0, 2.0]}, "the user ids of ml.parquet are neither text nor whole numbers"),
        ({"item": [None, "a"]}, "the item id is empty in 1 rows"),
        ({"rating": [None, 1.0]}, "the rating is not a finite number in 1 rows"),
        ({"rating": [[1], [2]]}, "the rating column of ml.parquet is not numeric"),
        ({"time": pa.array([1, 2], pa.time32("s"))}, "the time column of ml.parquet is not num"),
    ],
)
def test_a_bad_type_in_a_parquet_file_is_named(
    tmp_path: Path, columns: dict[str, Any], text: str
) -> None:
    path = pq(tmp_path, **{"user": ["a", "b"], "item": ["c", "d"], **columns})
    with pytest.raises(TableError, match=text):
        load_interactions(path)


@pytest.mark.parametrize("name", ["u.data", "ml.parquet"])
def test_an_unreadable_file_is_a_table_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    path = tmp_path / name
    path.write_bytes(b"1\t1\n")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setattr(parquet, "ParquetFile", refuse)
    with pytest.raises(TableError, match=f"{name} is not .*readable"):
        load_interactions(path)


# --- Holding out ----------------------------------------------------------------------------


def grid(order: Any = None) -> Interactions:
    """20 users and 10 items, all pairs; three rows share each time."""
    user, item = np.divmod(np.arange(200), 10)
    order = np.arange(200) if order is None else order
    time = pa.array(((user * 10 + item) // 3)[order])
    return encode_interactions(pa.array(user[order]), pa.array(item[order]), None, time)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 20), (0.999, 199)])
def test_the_held_out_share_is_of_all_rows(share: float, count: int) -> None:
    for mask in (hold_out_random(grid(), share, 0), hold_out_latest(grid(), share)):
        assert mask.dtype == np.bool_
        assert mask.shape == (200,)
        assert mask.sum() == count


def test_a_random_share_follows_the_seed() -> None:
    first = hold_out_random(grid(), 0.5, 1)
    np.testing.assert_array_equal(first, hold_out_random(grid(), 0.5, 1))
    assert (first != hold_out_random(grid(), 0.5, 2)).sum() > 50


def test_held_out_pairs_do_not_depend_on_the_order_of_rows() -> None:
    order = np.random.default_rng(0).permutation(200)
    shuffled = grid(order)
    np.testing.assert_array_equal(
        hold_out_random(grid(), 0.3, 1)[order], hold_out_random(shuffled, 0.3, 1)
    )
    np.testing.assert_array_equal(
        hold_out_latest(grid(), 0.3)[order], hold_out_latest(shuffled, 0.3)
    )


def test_the_latest_rows_are_held_out_with_ties_by_user_and_item() -> None:
    held_out = hold_out_latest(grid(), 0.02)
    np.testing.assert_array_equal(np.flatnonzero(held_out), [196, 197, 198, 199])


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_outside_0_and_1_is_refused(share: float) -> None:
    with pytest.raises(OptionError, match=r"the held-out share is .*; choose from 0 to below 1"):
        hold_out_random(grid(), share, 0)
    with pytest.raises(OptionError, match="held-out share"):
        hold_out_latest(grid(), share)


def test_the_latest_rows_need_times() -> None:
    interactions = encode_interactions(pa.array(["a", "b"]), pa.array(["c", "d"]))
    with pytest.raises(TableError, match="have no times; hold out a random share"):
        hold_out_latest(interactions, 0.1)
