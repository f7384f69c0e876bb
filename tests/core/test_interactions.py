"""Loading interactions of users with items, and holding some of them out."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from refusals import refused, refuses

from fedkern_flwr import interactions as files
from fedkern_flwr.interactions import Interactions, load_interactions, read_catalogue

# Users 2 and 10, items 5 and 30: in numerical order, which is not that of the text.
ROWS = [("10", "30", "4", "300"), ("2", "30", "2.5", "100"), ("10", "5", "5", "200")]
HEADERS = {
    "ml.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n",
    "ml.tsv": "user_id\titem_id\trating\ttimestamp\n",
    "ml.csv": "userId,movieId,rating,timestamp\n",
}
SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ml.inter": "\t", "ml.tsv": "\t", "ml.csv": ","}
NAME = pytest.mark.parametrize("name", SEPARATORS)


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
    assert repr(interactions) == "Interactions(3 rows, 2 users, 2 items)"  # and no id
    assert interactions.rated


# -- reading


@NAME
def test_every_text_format_is_read(tmp_path: Path, name: str) -> None:
    check(load_interactions(write(tmp_path, name)))
    turned = load_interactions(write(tmp_path, name, ROWS[::-1]))
    assert (turned.user_ids, turned.item_ids) == (("2", "10"), ("5", "30"))
    np.testing.assert_array_equal(turned.user, [1, 0, 1])
    untimed = [(*row[:3], "yesterday") for row in ROWS]
    found = load_interactions(write(tmp_path, name, untimed), timed=False)
    np.testing.assert_array_equal(found.rating, [4, 2.5, 5])
    assert found.time is None
    header = HEADERS.get(name, "").replace("\n", "").split(SEPARATORS[name])[:2]
    text = SEPARATORS[name].join(header) + "\n" if name in HEADERS else ""
    found = load_interactions(write(tmp_path, name, [row[:2] for row in ROWS], text))
    np.testing.assert_array_equal(found.rating, [1, 1, 1])
    assert found.time is None
    assert not found.rated
    assert files.has_header(name) == (name in HEADERS)


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
    path = write(tmp_path, "ml.inter", header="session:token\ta:token\tb:float\tc:float\n")
    for user in ("session", "session:token"):  # with its type, or without
        check(load_interactions(path, user=user, item="a", rating="b", time="c"))


def test_ids_are_ordered_as_text_unless_all_are_whole_numbers(tmp_path: Path) -> None:
    rows = [("10", "b", "1", "1"), ("9", "10", "1", "1"), ("x", "9", "1", "1")]
    found = load_interactions(write(tmp_path, "u.data", rows))
    assert (found.user_ids, found.item_ids) == (("10", "9", "x"), ("10", "9", "b"))
    rows = [("007", "-1", "1", "1"), ("7", "-20", "1", "1"), ("11", "0", "1", "1")]
    found = load_interactions(write(tmp_path, "u.data", rows))
    assert (found.user_ids, found.item_ids) == (("007", "7", "11"), ("-20", "-1", "0"))


def test_files_of_interactions_are_told_by_name() -> None:
    for name in ("u.data", "ml.data", "ratings.dat", "ml-1m.INTER"):
        assert files.is_interactions(f"/some/where/{name}")
    for name in ("ml.csv", "ml.parquet", "iris", "u.data.npz"):
        assert not files.is_interactions(Path(name))


# -- a catalogue

CATALOGUE = ("40", "30", "05", "5")


@NAME
def test_items_have_their_position_in_the_catalogue(tmp_path: Path, name: str) -> None:
    interactions = load_interactions(write(tmp_path, name), catalogue=CATALOGUE)
    assert interactions.item_ids == CATALOGUE
    np.testing.assert_array_equal(interactions.item, [1, 1, 3])
    np.testing.assert_array_equal(interactions.matrix().toarray(), [[0, 1, 0, 0], [0, 1, 0, 1]])
    assert interactions.notes == ()
    one = load_interactions(write(tmp_path, name, ROWS[:1]), catalogue=CATALOGUE)
    np.testing.assert_array_equal(one.matrix().toarray(), [[0, 1, 0, 0]])


def test_rows_of_unknown_items_are_refused_or_left_out_and_their_users_stay(tmp_path: Path) -> None:
    more = [("99", "s3cret", "1", "1"), ("10", "s3cret", "1", "1"), ("99", "s3cret", "1", "1")]
    path = write(tmp_path, "ml.csv", [*more, *ROWS])
    caught = refuses("FK-ITEMS-UNKNOWN", load_interactions, path, catalogue=("30", "7"))
    assert "4 rows of ml.csv name 2 items" in str(caught)
    assert "s3cret" not in str(caught)
    interactions = load_interactions(path, catalogue=("5", "30"), unknown="drop")
    assert interactions.user_ids == ("2", "10", "99")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 0])
    np.testing.assert_array_equal(interactions.time, [300, 100, 200])
    (note,) = interactions.notes
    assert "3 rows of ml.csv" in note
    assert load_interactions(path, catalogue=("6", "7"), unknown="drop").rows == 0
    refuses("FK-OPTION-CHOICE", load_interactions, path, unknown="keep")  # type: ignore[arg-type]


@pytest.mark.parametrize("catalogue", [CATALOGUE, ()])
def test_a_file_may_have_no_rows_if_that_is_said(tmp_path: Path, catalogue: Any) -> None:
    nothing = dict.fromkeys(("user", "item", "rating", "time"), pa.array([]))
    for path in (pq(tmp_path, **nothing), *(write(tmp_path, name, []) for name in HEADERS)):
        refuses("FK-ROWS-NONE", load_interactions, path, catalogue=catalogue or None)
        found = load_interactions(path, catalogue=catalogue or None, allow_empty=True)
        assert (found.rows, found.users, found.item_ids) == (0, 0, catalogue)
        assert found.rated
        assert found.time is not None
        assert found.matrix().shape == (0, len(catalogue))
        path.write_text("")
        with refused("FK-FILE-EMPTY", "FK-FILE-FORMAT"):
            load_interactions(path, catalogue=catalogue or None, allow_empty=True)


CATALOGUES = {
    "items.txt": "40\n 30\r\n05\n5\n\n",
    "items.csv": '\ufeffTitle,movieId,movie\n"a, b",40,1\n,30,2\nc,05,3\n"""",5,4\n',
    "items.tsv": 'item\ttitle\n40\t"a\n30\tb\n05\tc\n5\t\n',
    "ml.item": 'item_id:token\tmovie_title:token_seq\n40\t"a\n30\tb\n05\tc\n5\td"\n',
    "ids.CSV": "Item_ID\n40\n30\n05\n5\n",
}


def test_every_kind_of_catalogue_is_read_in_its_order(tmp_path: Path) -> None:
    for name, text in CATALOGUES.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        assert read_catalogue(path) == read_catalogue(str(path)) == CATALOGUE, name
    assert read_catalogue(pq(tmp_path, itemId=[7, 3], item_genre=["a", "b"])) == ("7", "3")
    assert read_catalogue(pq(tmp_path, item=pa.array(CATALOGUE).dictionary_encode())) == CATALOGUE


# -- what is wrong with a file: its name, its content (None: no file), the code

Bad = dict[str, dict[str, list[bytes | None]]]
BAD_CATALOGUES: Bad = {
    "FK-FILE-READ": {"items.txt": [None]},
    "FK-FILE-EMPTY": {"items.txt": [b"", b"\n \n"]},
    "FK-FILE-SUFFIX": {"u.data": [b"1"]},
    "FK-FILE-FORMAT": {f"i.{end}": [b"item\n\xff\n\xfe\n"] for end in ("txt", "csv", "parquet")},
    "FK-IDS-MISSING": {"i.txt": [b"s3cret\n\nb\n"], "i.tsv": [b"item\tyear\ns3cret\t1\n\t2\n"]},
    "FK-IDS-DUPLICATE": {"items.txt": [b"s3cret\nb\ns3cret \n"]},
    "FK-ITEMS-FEW": {"items.txt": [b"s3cret"], "items.csv": [b"item,year\n"]},
    "FK-COLUMN-UNNAMED": {
        "items.csv": [b"s3cret\nb\nc\n", b"item,movieId\na,1\nb,2\n"],
        "u.item": [b"1|s3cret|1995\n2|b|1994\n"],
    },
    "FK-FILE-COLUMNS": {"items.csv": [b"item\na\nb,c\n"]},
}
BAD_FILES: Bad = {
    "FK-FILE-READ": {"u.data": [None]},
    "FK-FILE-SUFFIX": {"u.txt": [b"a"]},
    "FK-FILE-EMPTY": {"u.data": [b"", b"\n \n"]},
    "FK-ROWS-NONE": {"m.csv": [b"user,item\n"]},
    "FK-FILE-FORMAT": {"m.csv": [b"user,item\n\xff,\xff\n"], "m.parquet": [b"PAR1"]},
    "FK-FILE-COLUMNS": {
        "u.data": [b"1,2,3,4\n", b"1\t1\t1\t1\n1\t2\ts3cret\n"],
        "r.dat": [b"1::2::3::4::5\n"],
        "m.csv": [b"user,item\n1,1\n1,2,s3cret\n"],
    },
    "FK-FILE-HEADER": {"m.csv": [b"s3cret,2\n1,3\n"]},  # a cell is no name to be listed
    "FK-COLUMN-UNNAMED": {"m.csv": [b"who,movieId\na,b\n", b"user,item,movieId\na,b,c\n"]},
}


@pytest.mark.parametrize("read", [read_catalogue, load_interactions])
def test_a_bad_file_is_one_line_without_its_ids(tmp_path: Path, read: Any) -> None:
    cases = (BAD_CATALOGUES if read is read_catalogue else BAD_FILES).items()
    named = ((code, *one) for code, some in cases for one in some.items())
    found = ((code, name, content) for code, name, contents in named for content in contents)
    for code, name, content in found:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        caught = refuses(code, read, tmp_path / name)
        assert caught.remedy
        assert "s3cret" not in str(caught)
    (tmp_path / "folder.data").mkdir()
    refuses("FK-FILE-FOLDER", read, tmp_path / "folder.data")


@pytest.mark.parametrize(("name", "use", "barred"), [
    ("u.data", load_interactions, (Path, "read_bytes")),
    ("items.txt", read_catalogue, (Path, "read_bytes")),
    ("ml.parquet", read_catalogue, (parquet, "ParquetFile")),
])  # fmt: skip
def test_what_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Any, barred: tuple[Any, str]
) -> None:
    def forbid(*_: Any, **__: Any) -> None:
        raise PermissionError

    (tmp_path / name).write_bytes(b"1\t1\n")
    for owner, method in (barred, (Path, "is_file")):
        monkeypatch.setattr(owner, method, forbid)
        with refused("FK-FILE-READ", "FK-FILE-FORMAT"):
            use(tmp_path / name)


BAD_RATINGS = ("s3cret", "", "nan", "-inf", "1e999")
BAD_CELLS: list[tuple[tuple[str, ...], str]] = [
    *((("2", "5", rating, "1"), "FK-VALUES-FINITE") for rating in BAD_RATINGS),
    (("2", "5", "1", " "), "FK-VALUES-FINITE"),
    *((row, "FK-IDS-MISSING") for row in ((" ", "5", "1", "1"), ("2", "", "1", "1"))),
    (ROWS[1], "FK-PAIRS-TWICE"),
]


@pytest.mark.parametrize(("row", "code"), BAD_CELLS)
def test_a_bad_cell_is_counted_not_quoted(tmp_path: Path, row: tuple[str, ...], code: str) -> None:
    path = write(tmp_path, "u.data", [*ROWS, row])
    for catalogue in (None, CATALOGUE):
        caught = refuses(code, load_interactions, path, catalogue=catalogue)
        assert "1 rows" in str(caught)
        assert ("in row 4" in str(caught)) == (code != "FK-PAIRS-TWICE")
        assert "s3cret" not in str(caught)
    for few in (ROWS[::2], ROWS[:2]):  # one user; one item
        refuses("FK-ITEMS-FEW", load_interactions, write(tmp_path, "u.data", few))


TYPES: list[tuple[str, Any, str]] = [
    ("user", [1.0, 2.0], "FK-IDS-TYPE"), ("item", [1.5, 2.5], "FK-IDS-TYPE"),
    ("item", [None, "a"], "FK-IDS-MISSING"), ("rating", [None, 1.0], "FK-VALUES-FINITE"),
    ("rating", [[1], [2]], "FK-COLUMN-NUMBERS"),
    ("time", pa.array([1, 2], pa.time32("s")), "FK-COLUMN-NUMBERS"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cells", "code"), TYPES)
def test_a_bad_type_is_named(tmp_path: Path, column: str, cells: Any, code: str) -> None:
    path = pq(tmp_path, **{"user": ["a", "b"], "item": ["c", "d"], column: cells})
    caught = refuses(code, load_interactions, path)
    assert f"{column} " in str(caught)


def test_columns_that_are_named_must_be_there_once_and_have_one_role(tmp_path: Path) -> None:
    path = write(tmp_path, "ml.csv")
    with refused("FK-COLUMN-MISSING") as caught:
        load_interactions(path, rating="stars")
    assert "userId, movieId, rating, timestamp" in str(caught.value)
    refuses("FK-COLUMN-TWICE", load_interactions, path, user="movieId")
    refuses("FK-COLUMNS-FIXED", load_interactions, write(tmp_path, "u.data"), user="a")
    path.write_text("s3cret,item\na,b\n")  # what to do about a column may be said otherwise
    for named, code in (({}, "FK-COLUMN-UNNAMED"), ({"user": "who"}, "FK-COLUMN-MISSING")):
        with refused(code) as caught:
            load_interactions(path, **named, column_remedy="name the {role}")
        assert caught.value.remedy == "name the user"
        assert "s3cret" not in str(caught.value)


# -- positives and the matrix


def test_positives_keep_all_users_and_items(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data"))
    liked = interactions.positive(4)
    np.testing.assert_array_equal(liked.user, [1, 1])
    np.testing.assert_array_equal(liked.item, [1, 0])
    np.testing.assert_array_equal(liked.rating, [4, 5])
    np.testing.assert_array_equal(liked.time, [300, 200])
    assert (liked.users, liked.items) == (2, 2)
    assert interactions.positive(None).rows == 3
    refuses("FK-RATINGS-LOW", interactions.positive, 6)
    matrix = interactions.matrix()
    assert matrix.dtype == np.int64
    np.testing.assert_array_equal(matrix.toarray(), [[0, 1], [1, 1]])
    chosen = interactions.matrix(np.array([True, False, True]))
    np.testing.assert_array_equal(chosen.toarray(), [[0, 0], [1, 1]])
    assert interactions.matrix(np.zeros(3, dtype=bool)).nnz == 0


# -- holding out


def grid(order: Any = None) -> Interactions:
    """20 users and 10 items, all pairs; three rows share each time."""
    user, item = np.divmod(np.arange(200), 10)
    order = np.arange(200) if order is None else order
    time = pa.array(((user * 10 + item) // 3)[order])
    return files.encode_interactions(pa.array(user[order]), pa.array(item[order]), None, time)


def test_the_held_out_share_is_of_all_rows_whatever_their_order() -> None:
    order = np.random.default_rng(0).permutation(200)
    for share, count in ((0.0, 0), (0.1, 20), (0.999, 199)):
        one, other = files.hold_out_random(grid(), share, 1), files.hold_out_latest(grid(), share)
        for mask in (one, other):
            assert mask.dtype == np.bool_
            assert mask.shape == (200,)
            assert mask.sum() == count
        shuffled = grid(order)
        np.testing.assert_array_equal(one[order], files.hold_out_random(shuffled, share, 1))
        np.testing.assert_array_equal(other[order], files.hold_out_latest(shuffled, share))
    assert np.flatnonzero(files.hold_out_latest(grid(), 0.02)).tolist() == [196, 197, 198, 199]
    drawn = [files.hold_out_random(grid(), 0.5, seed) for seed in (1, 2)]
    assert (drawn[0] != drawn[1]).sum() > 50


def test_a_share_outside_0_and_1_and_latest_rows_without_times_are_refused() -> None:
    ways = files.hold_out_latest, partial(files.hold_out_random, seed=0)
    for share, hold_out in product((-0.1, 1.0, np.nan), ways):
        refuses("FK-OPTION-RANGE", hold_out, grid(), share)
    untimed = files.encode_interactions(pa.array(["a", "b"]), pa.array(["c", "d"]))
    refuses("FK-TIMES-MISSING", files.hold_out_latest, untimed, 0.1)
