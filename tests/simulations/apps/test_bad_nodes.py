"""A node whose files or configuration do not serve is refused in a line that quotes no data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Site

HEAD = "user,item,rating\n"
FILES = {
    "narrow.json": json.dumps({c: [20, 70] for c in "cd"}),
    "few.json": json.dumps({"c": [20, 80]}),
    "empty.json": json.dumps({c: [20, 20] for c in "cd"}),
    "flat.json": json.dumps({"e": [20, 20], "f": [1, 2]}),
    "unlabelled.csv": "key,a,b,state\np001,1,2,\np002,3,4,\n",
    "lacking.csv": "key,a,b,state\np001,1,,ok\n,3,4,ok\np003,3,4,ok\n",
    "few.csv": "a,b,c\n0.1,0.2,0.3\n",
    "few-ids.csv": "key,a\np001,0.1\n",
    "rows.csv": "a,b,c,d,e,f,state\n1,,1,1,1,1,ok\n1,2,3,4,5,6,\n1,2,3,4,5,6,ok\n",
    "infinite.csv": "patient,age,days\na,inf,1\nb,2,1",
    "no-age.csv": "patient,age,days\na,,1\nb,,1",
    "nohead.csv": "s3cret-1,film-01,4\ns3cret-1,film-02,5\n",
    "letters.csv": "s3cret-1,film-01\ns3cret-1,film-02\n",
    "noitem.csv": "user,rating\ns3cret-1,4\n",
    "two.csv": "user,user_id,item\ns3cret-1,x,film-01\n",
    "unknown.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,s3cret-film,5\ns3cret-2,s3cret-film,5\n",
    "twice.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,film-01,5\n",
    "nan.csv": f"{HEAD}s3cret-1,film-01,nan\ns3cret-1,film-02,5\n",
    "text.csv": f"{HEAD}s3cret-1,film-01,s3cret\n",
    "gap.csv": f"{HEAD}s3cret-1,film-01,\n",
    "nobody.csv": f"{HEAD}s3cret-1,film-01,4\n,film-02,5\n",
    "short.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,film-02\n",
    "nothing.csv": "",
    "head.csv": HEAD,
    "unrated.csv": "user,item\ns3cret-1,film-01\n",
    "long.data": "s3cret-1\tfilm-01\t4\t1\t2\n",
    "ratings.xlsx": "s3cret",
    "broken.parquet": "s3cret",
    "twice.txt": "film-01\nfilm-02\nfilm-01\n",
    "one.txt": "film-01\n",
    "title.csv": "title\nfilm-01\n",
    "blank.csv": 'item\nfilm-01\n""\nfilm-02\n',
}
#: Site -> (node, change of its configuration, what the line says); {} is the folder of the files.
BAD: dict[str, list[tuple[int, dict[str, Any], str]]] = {
    "fed-cg": [
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"role": None}, 'this node has no role; add role="hospital" or role="centre"'),
        (2, {"role": "doctor"}, "this node has no role"),
        (0, {"data": None}, "this node has no table; name it in --node-config as data"),
        (0, {"alignment_key": None}, "there is no alignment key"),
        (0, {"alignment_key": "gone"}, "the file of the alignment key cannot be read"),
        (0, {"alignment_key": "{}/short"}, "the alignment key has 2 bytes, at least 16"),
        (0, {"landmark_seed": "{}/ranges.json"}, "the file of the landmark seed cannot be"),
        (0, {"landmark_seed": "{}/short"}, "the landmark seed has 2 bytes instead of 32"),
        (2, {"ranges": "{}/narrow.json"}, "beyond"),
        (2, {"ranges": None}, "column 'c' (and 1 more) has values outside its declared range"),
        (2, {"ranges": "{}/few.json"}, "there is no range of column 'd'"),
        (2, {"ranges": "{}/empty.json"}, "a range is empty or infinite"),
        (2, {"ranges": "{}/alignment"}, "the file of ranges cannot be read"),
        (0, {"classes": "ok,perhaps"}, "are none of 2 classes; name all classes"),
        (0, {"classes": "0,1"}, "are none of 2 classes"),
        (0, {"classes": None}, "are none of 0 classes"),
        (0, {"label_column": "fate"}, "known0.csv has no label column 'fate'"),
        (0, {"id_column": "name"}, "known0.csv has no id column 'name'"),
        (0, {"id_column": None}, "column 'key' of known0.csv is not numeric"),
        (0, {"test_data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"test_data": "{}/proteins.csv"}, "the test data does not have the columns of the"),
        (0, {"label_bound": 0}, "label_bound is 0"),
    ],
    "fdskl": [
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"role": None}, 'this node has no role; add role="active" or role="passive"'),
        (2, {"role": "doctor"}, "this node has no role"),
        (0, {"role": "passive"}, "a passive party has labels; leave them out, or make it an acti"),
        (2, {"role": "active"}, "all.npz has no label array 'y'"),
        (1, {"role": "active"}, "the label column of known1.csv is not named"),
        (0, {"data": "{}/unlabelled.csv", "classes": None}, "has no labels to learn from"),
        (0, {"data": "{}/lacking.csv"}, "2 rows of lacking.csv lack a value or an id; leave"),
        (0, {"alignment_key": None}, "there is no alignment key"),
        (0, {"alignment_key": "gone"}, "the file of the alignment key cannot be read"),
        (0, {"alignment_key": "{}/short"}, "the alignment key has 2 bytes, at least 16"),
        (1, {"frequency_seed": "{}/known1.csv"}, "the file of the frequency seed cannot be"),
        (1, {"frequency_seed": "{}/short"}, "2 bytes instead of 32"),
        (2, {"ranges": None}, "there are values beyond 0 and 1; name a file of ranges"),
        (2, {"ranges": "{}/ranges1.json"}, "there is no range of column 'e'"),
        (2, {"ranges": "{}/flat.json"}, "a range is empty or infinite"),
        (2, {"ranges": "{}/alignment"}, "the file of ranges cannot be read"),
        (2, {"ranges": "{}/alignment/new.json"}, "the file of ranges cannot be written"),
        (0, {"classes": "ok,perhaps"}, "are none of 2 classes; name all classes"),
        (0, {"classes": "0,1"}, "are none of 2 classes"),
        (0, {"label_column": "fate"}, "known0.csv has no label column 'fate'"),
        (0, {"id_column": "name"}, "known0.csv has no id column 'name'"),
        (0, {"id_column": None}, "column 'key' of known0.csv is not numeric"),
        (0, {"test_data": "gone.csv"}, "there is no file gone.csv"),
        (1, {"test_data": "{}/new0.csv"}, "the test data does not have the columns of the"),
        (0, {"label_bound": 0}, "label_bound is 0"),
    ],
    "horizontal": [
        (0, {"role": "patient"}, 'this node has no role; add role="user" or role="agent" or role='),
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"data": None}, "this node has no table"),
        (0, {"group": -1}, "group is -1"),
        (0, {"label_column": "fate"}, "known0.csv has no label column 'fate'"),
        (0, {"classes": "good,bad"}, "are none of 2 classes"),
        (0, {"test_data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"data": "{}/rows.csv"}, "2 rows of rows.csv lack a value, a label or an"),
    ],
    "pof-mkl": [
        (1, {"data": "gone.csv"}, "there is no file gone.csv"),
        (1, {"label_column": "fate"}, "known1.csv has no label column 'fate'"),
        (1, {"scaling": "{}/bytes"}, "the file of the scaling cannot be read; check its path"),
        (1, {"scaling": "gone.json"}, "the file of the scaling cannot be read; check its path"),
        (1, {"scaling": "{}/few.json"}, "this is not a scaling"),
        (2, {"test_data": "{}/known1.csv", "label_column": None}, "known2.csv"),
        (2, {"test_data": "{}/few.csv"}, "the test data does not have the columns of the data, in"),
    ],
    "ranges": [
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"ranges": None, "scaling": None}, "this node has nowhere to write its ranges; name a"),
        (0, {"encoder": "{}/e.json"}, "this node has ranges and an encoder; leave one of them out"),
        (
            0,
            {"categories": "ward"},
            "the table has no feature column 'ward'; choose from: age",
        ),
        (0, {"category_key": "gone"}, "the file of the category key cannot be read; put 64"),
        (0, {"label_column": "fate"}, "has no label column 'fate'"),
        (0, {"id_column": "name"}, "has no id column 'name'"),
        (0, {"id_column": None}, "column 'patient' of patients0.csv is not numeric"),
        (0, {"data": "{}/infinite.csv"}, "column 'age' is infinite in 1 rows"),
        (0, {"data": "{}/no-age.csv"}, "column 'age' has no value"),
    ],
    "align": [
        (0, {"data": None}, "this node has no table; name it in --node-config as data"),
        (0, {"id_column": None}, "does not name the column of the ids; add id-col"),
        (0, {"alignment": None}, "does not name the file to write; add alignment="),
        (0, {"data": "gone.csv"}, "there is no file gone.csv; check the path"),
        (0, {"id_column": "name"}, "known.csv has no id column 'name'; choose from: pa"),
        (0, {"test_data": "{}/known.csv"}, "partition 0: 3 duplicate ids; keep one row per id"),
        (0, {"alignment": "{}"}, "partition 0: the alignment file cannot be written; name"),
    ],
    "kernel-pca": [
        (0, {"data": None}, "this node has no table; name it in --node-config as data"),
        (0, {"data": "gone.csv"}, "there is no file gone.csv"),
        (0, {"test_data": "{}/infinite.csv"}, "infinite.csv has no id column 'key'"),
        (0, {"test_data": "{}/few-ids.csv"}, "the test data does not have the columns of the dat"),
    ],
    "fed-cfk": [
        (2, {"data": "gone.csv"}, "/gone.csv; check the path"),
        (2, {"data": "nohead.csv"}, "the first line of nohead.csv holds data instead of column"),
        (2, {"data": "letters.csv"}, "letters.csv has no columns that may be the user; add a "),
        (2, {"data": "noitem.csv"}, "noitem.csv has no columns that may be the item; add a header"),
        (2, {"data": "two.csv"}, "two.csv has 2 columns that may be the user; add a header, or"),
        (2, {"data": "nan.csv", "item_column": "film"}, "or name the column as item-column"),
        (2, {"data": "known0.data", "user_column": "u"}, "the columns of known0.data are fixed"),
        (2, {"data": "unknown.csv"}, "2 rows of unknown.csv name 1 items that are not in the"),
        (2, {"data": "twice.csv"}, "twice.csv has 1 rows that repeat a pair of user and item; k"),
        (2, {"data": "nan.csv"}, "in 1 rows of nan.csv, for example in row 1; give numbers"),
        (2, {"data": "text.csv"}, "the rating is not a finite number in 1 rows of text.csv"),
        (2, {"data": "gap.csv"}, "the rating is not a finite number in 1 rows of gap.csv"),
        (2, {"data": "nobody.csv"}, "the user id is empty in 1 rows of nobody.csv"),
        (2, {"data": "short.csv"}, "line 3 of short.csv has 2 columns instead of 3; mend it"),
        (2, {"data": "nothing.csv"}, "nothing.csv is empty; give a file with data"),
        (2, {"data": "head.csv"}, "head.csv has no rows; give a file with data"),
        (2, {"data": "unrated.csv"}, "unrated.csv has no ratings; leave out min-rating"),
        (2, {"data": "long.data"}, "line 1 of long.data has 5 columns; give user, item, rating"),
        (2, {"data": "ratings.xlsx"}, "ratings.xlsx has an unknown suffix; give a u.data, .dat"),
        (2, {"data": "broken.parquet"}, "broken.parquet is not a readable Parquet file"),
        (2, {"catalogue": None}, "this node has no catalogue; name the public list of all items"),
        (2, {"catalogue": "gone.txt"}, "/gone.txt; check the path"),
        (2, {"catalogue": "nothing.csv"}, "nothing.csv is empty"),
        (2, {"catalogue": "twice.txt"}, "twice.txt has 1 rows that repeat an item; keep one row"),
        (2, {"catalogue": "one.txt"}, "items in one.txt: 1; list all items"),
        (2, {"catalogue": "title.csv"}, "title.csv has no columns that may be the item; name"),
        (2, {"catalogue": "blank.csv"}, "the item id is empty in 1 rows of blank.csv"),
        (2, {"test_data": "known2.tsv"}, "ratings are in the data and in the test data; hold"),
        (2, {"test_data": "unknown.csv"}, "2 rows of unknown.csv name 1 items"),
    ],
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_configuration_of_a_node_is_one_line(
    name: str, make_site: Callable[[str], Site], refusal: Callable[..., str], tmp_path: Path
) -> None:
    site = make_site(name)
    for file, content in FILES.items():
        (tmp_path / file).write_text(content)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    paths = ("data", "catalogue", "test_data") if name == "fed-cfk" else ()
    for number in {number for number, _, _ in BAD[name]}:
        site.client(number)  # as it is it serves
    for number, change, text in BAD[name]:
        filled = {
            key: str(tmp_path / value)
            if key in paths and value
            else (value.replace("{}", str(tmp_path)) if isinstance(value, str) else value)
            for key, value in change.items()
        }
        assert text in refusal(site.client, number, **filled), (number, change)


def test_the_first_row_of_a_file_without_header_stays_at_its_node(
    make_site: Callable[[str], Site],
    refusal: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site, result, path = make_site("align"), tmp_path / "result.json", tmp_path / "bare.csv"
    path.write_text("P-007,Smith\nP-008,Jones\n")
    text = refusal(site.run, site.changed(1, data=str(path)), result=result)
    assert "bare.csv has no id column 'patient'; that node's log lists the columns" in text
    assert "Smith" not in text + result.read_text()
    assert "choose from: P-007, Smith" in caplog.text  # of the node


@pytest.mark.parametrize(
    ("name", "number", "file", "text"),
    [
        ("fed-cg", 2, "proteins.csv", "is empty or NaN in 1 rows"),
        ("fdskl", 1, "known1.csv", "1 rows of known1.csv lack a value"),
        ("horizontal", 1, "known1.csv", "1 rows of known1.csv lack a value"),
    ],
)
def test_rows_that_lack_a_value_are_left_out_if_the_run_says_so(
    name: str,
    number: int,
    file: str,
    text: str,
    make_site: Callable[[str], Site],
    given: Callable[..., dict[str, Any]],
    refusal: Callable[..., str],
) -> None:
    site = make_site(name)
    path, usual = site.folder / file, len(given(site, number)["x"])
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[-2 if name == "horizontal" else -1] = ""
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    assert text in refusal(site.client, number)

    def rows(missing: str) -> int:
        return len(given(site, number, run={"missing": missing})["x"])

    assert rows("drop-row") == usual - 1
    if name == "fed-cg":
        assert rows("neutral") == usual - 1  # lack the block
    else:
        assert "missing is 'neutral'" in refusal(site.client, number, run={"missing": "neutral"})
    path.write_text("\n".join([lines[0], ",".join(cells)]))
    lacks = refusal(site.client, number, run={"missing": "drop-row"})
    assert path.name in lacks


def test_rows_that_are_joined_by_their_order_are_never_left_out(
    make_site: Callable[[str], Site], refusal: Callable[..., str], tmp_path: Path
) -> None:
    """Were each of two parties to drop another row, the rows in between would be joined wrongly."""
    path = tmp_path / "bare.csv"
    path.write_text("c,d\n0.1,\n0.2,0.4\n0.3,0.5\n")
    bare = {"data": str(path), "id_column": None, "test_data": None, "ranges": None}
    text = refusal(make_site("fdskl").client, 1, run={"missing": "drop-row"}, **bare)
    assert "1 rows of bare.csv lack a value" in text
    assert "by their place" in text


def test_no_row_is_dropped_that_a_prediction_names_by_its_place(
    make_site: Callable[[str], Site],
    given: Callable[..., dict[str, Any]],
    refusal: Callable[..., str],
) -> None:
    site = make_site("horizontal")
    new = Path(site.nodes[0]["test-data"])
    lines = new.read_text().splitlines()
    lines[2] = "," + lines[2].partition(",")[2]
    new.write_text("\n".join(lines))
    text = refusal(site.client, 0, run={"missing": "drop-row"})
    assert "1 rows of new.csv lack a value" in text
    assert "by their place" in text
    found = given(site, 0, run={"missing": "drop-row"}, predictions=None)  # counted only
    assert np.isfinite(found["x_test"]).all()
    assert len(found["x_test"]) == len(lines) - 2
