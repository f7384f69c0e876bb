"""A node whose files or configuration do not serve is refused in a line that quotes no data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_sites import Given, Make, Refuses

HEAD = "user,item,rating\n"
FILES = {
    "narrow.json": json.dumps({c: [20, 70] for c in "cd"}), "few.json": json.dumps({"c": [20, 80]}),
    "empty.json": json.dumps({c: [20, 20] for c in "cd"}),
    "unlabelled.csv": "key,a,b,state\np001,1,2,\np002,3,4,\n",
    "lacking.csv": "key,a,b,state\np001,1,,ok\n,3,4,ok\np003,3,4,ok\n",
    "few.csv": "a,b\n0.1,0.2\n", "few-ids.csv": "key,a\np001,0.1\n",
    "infinite.csv": "patient,age,days\na,inf,1\nb,2,1",
    "no-age.csv": "patient,age,days\na,,1\nb,,1",
    "unknown.csv": f"{HEAD}s3cret-1,film-01,4\ns3cret-1,s3cret-film,5\ns3cret-2,s3cret-film,5\n",
    "nan.csv": f"{HEAD}s3cret-1,film-01,nan\ns3cret-1,film-02,5\n",
    "unrated.csv": "user,item\ns3cret-1,film-01\n", "long.data": "s3cret-1\tfilm-01\t4\t1\t2\n",
    "twice.txt": "film-01\nfilm-02\nfilm-01\n", "one.txt": "film-01\n",
    "title.csv": "title\nfilm-01\n", "blank.csv": 'item\nfilm-01\n""\nfilm-02\n',
}  # fmt: skip
#: Site -> (node, change of its configuration, the code); {} is the folder of the files.
BAD: dict[str, list[tuple[int, dict[str, Any], str]]] = {
    "fed-cg": [
        (0, {"role": None}, "FK-NODE-ROLE"), (2, {"role": "doctor"}, "FK-NODE-ROLE"),
        (0, {"alignment_key": "gone"}, "FK-KEY-FILE"),
        (0, {"alignment_key": "{}/short"}, "FK-KEY-LENGTH"),
        (0, {"landmark_seed": "{}/ranges.json"}, "FK-KEY-FILE"),
        (0, {"landmark_seed": "{}/short"}, "FK-KEY-LENGTH"),
        (2, {"ranges": "{}/narrow.json"}, "FK-RANGES-OUTSIDE"),
        (2, {"ranges": None}, "FK-RANGES-OUTSIDE"),
        (2, {"ranges": "{}/few.json"}, "FK-RANGES-MISSING"),
        (2, {"ranges": "{}/empty.json"}, "FK-RANGES-WRONG"),
        (2, {"ranges": "{}/alignment"}, "FK-FILE-READ"),
        (0, {"test_data": "{}/known2.csv"}, "FK-COLUMNS-DIFFER"),
        (0, {"label_bound": 0}, "FK-OPTION-RANGE"),
    ],
    "fdskl": [
        (0, {"role": None}, "FK-NODE-ROLE"), (0, {"role": "passive"}, "FK-ROLE-DATA"),
        (2, {"role": "active"}, "FK-COLUMN-MISSING"), (1, {"role": "active"}, "FK-COLUMN-UNNAMED"),
        (0, {"data": "{}/unlabelled.csv", "classes": None}, "FK-ROLE-DATA"),
        (0, {"data": "{}/lacking.csv"}, "FK-VALUES-MISSING"),
        (0, {"alignment_key": None}, "FK-IDS-KEY"),
        (1, {"frequency_seed": "{}/known1.csv"}, "FK-KEY-FILE"),
        (1, {"frequency_seed": "{}/short"}, "FK-KEY-LENGTH"),
        (2, {"ranges": None}, "FK-RANGES-OUTSIDE"),
        (2, {"ranges": "{}/few.json"}, "FK-RANGES-MISSING"),
        (2, {"ranges": "{}/alignment/new.json"}, "FK-FILE-WRITE"),
        (1, {"test_data": "{}/new0.csv"}, "FK-COLUMNS-DIFFER"),
    ],
    "horizontal": [
        (0, {"role": "patient"}, "FK-NODE-ROLE"), (0, {"group": -1}, "FK-OPTION-RANGE"),
        (0, {"encoder": "own/e.json"}, "FK-FILE-READ"),
    ],
    "pof-mkl": [
        (1, {"scaling": "{}/bytes"}, "FK-FILE-READ"),
        (1, {"scaling": "{}/few.json"}, "FK-FILE-FORMAT"),
        (2, {"test_data": "{}/known1.csv", "label_column": None}, "FK-COLUMN-UNNAMED"),
        (2, {"test_data": "{}/few.csv"}, "FK-COLUMNS-DIFFER"),
        (1, {"encoder": "own/e.json"}, "FK-FILE-READ"),
    ],
    "ranges": [
        (0, {"ranges": None, "scaling": None}, "FK-NODE-KEY"),
        (0, {"encoder": "{}/e.json"}, "FK-OPTION-BOTH"),
        (0, {"categories": "ward"}, "FK-COLUMN-MISSING"),
        (0, {"category_key": "gone"}, "FK-KEY-FILE"),
        (0, {"data": "{}/infinite.csv"}, "FK-VALUES-FINITE"),
        (0, {"data": "{}/no-age.csv"}, "FK-BLOCK-EMPTY"),
    ],
    "align": [
        (0, {"data": None}, "FK-NODE-KEY"), (0, {"id_column": None}, "FK-NODE-KEY"),
        (0, {"alignment": None}, "FK-NODE-KEY"),
        (0, {"test_data": "{}/known.csv"}, "FK-IDS-DUPLICATE"),
        (0, {"alignment": "{}"}, "FK-FILE-WRITE"),
    ],
    "kernel-pca": [
        (0, {"test_data": "{}/few-ids.csv"}, "FK-COLUMNS-DIFFER"),
        (0, {"encoder": "own/e.json", "ranges": None}, "FK-FILE-READ"),
    ],
    "fed-cfk": [
        (2, {"data": "{}/gone.csv"}, "FK-FILE-READ"),
        (2, {"data": "{}/nan.csv", "item_column": "film"}, "FK-COLUMN-MISSING"),
        (2, {"data": "{}/known0.data", "user_column": "u"}, "FK-COLUMNS-FIXED"),
        (2, {"data": "{}/unknown.csv"}, "FK-ITEMS-UNKNOWN"),
        (2, {"data": "{}/unrated.csv"}, "FK-COLUMN-MISSING"),
        (2, {"data": "{}/long.data"}, "FK-FILE-COLUMNS"), (2, {"catalogue": None}, "FK-NODE-KEY"),
        (2, {"catalogue": "{}/gone.txt"}, "FK-FILE-READ"),
        (2, {"catalogue": "{}/twice.txt"}, "FK-IDS-DUPLICATE"),
        (2, {"catalogue": "{}/one.txt"}, "FK-ITEMS-FEW"),
        (2, {"catalogue": "{}/title.csv"}, "FK-COLUMN-UNNAMED"),
        (2, {"catalogue": "{}/blank.csv"}, "FK-IDS-MISSING"),
        (2, {"test_data": "{}/known2.tsv"}, "FK-PAIRS-TWICE"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_configuration_of_a_node_is_one_line(name, make_site, refuses, tmp_path):
    site = make_site(name)
    for file, content in FILES.items():
        (tmp_path / file).write_text(content)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for number in {number for number, _, _ in BAD[name]}:
        site.client(number)  # as it is it serves
    for number, change, code in BAD[name]:
        filled = {
            key: value.replace("{}", str(tmp_path)) if isinstance(value, str) else value
            for key, value in change.items()
        }
        refuses(code, site.client, number, **filled)
    assert not Path("own").exists()  # nobody encodes rows alone where others have some too


def test_the_first_row_of_a_file_without_header_stays_at_its_node(
    make_site: Make, refuses: Refuses, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site, result, path = make_site("align"), tmp_path / "result.json", tmp_path / "bare.csv"
    path.write_text("P-007,Smith\nP-008,Jones\n")
    text = refuses("FK-COLUMN-MISSING", site.run, site.changed(1, data=str(path)), result=result)
    assert "Smith" not in text + result.read_text()
    assert "choose from: P-007, Smith" in caplog.text  # of the node


@pytest.mark.parametrize(
    ("name", "number", "file"),
    [("fed-cg", 2, "known2.csv"), ("fdskl", 1, "known1.csv"), ("horizontal", 1, "known1.csv")],
)
def test_rows_that_lack_a_value_are_left_out_if_the_run_says_so(
    name: str, number: int, file: str, make_site: Make, given: Given, refuses: Refuses
) -> None:
    site = make_site(name)
    path, usual = site.folder / file, len(given(site, number)["x"])
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    cells[-2 if name == "horizontal" else -1] = ""
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    refuses("FK-VALUES-MISSING", site.client, number)

    def rows(missing: str) -> int:
        return len(given(site, number, run={"missing": missing})["x"])

    assert rows("drop-row") == usual - 1
    if name == "fed-cg":
        assert rows("neutral") == usual - 1  # lack the block
    else:
        refuses("FK-OPTION-CHOICE", site.client, number, run={"missing": "neutral"})
    path.write_text("\n".join([lines[0], ",".join(cells)]))
    assert path.name in refuses("FK-VALUES-NOROW", site.client, number, run={"missing": "drop-row"})


def test_rows_that_are_known_by_their_place_are_never_left_out(make_site, given, refuses, tmp_path):
    """Were each of two parties to drop another row, the rows in between would be joined wrongly."""
    path, run = tmp_path / "bare.csv", {"missing": "drop-row"}
    path.write_text("c,d\n0.1,\n0.2,0.4\n0.3,0.5\n")
    bare = {"data": str(path), "id_column": None, "test_data": None, "ranges": None}
    refuses("FK-VALUES-MISSING", make_site("fdskl").client, 1, run=run, **bare)
    site = make_site("horizontal")
    new = Path(site.nodes[0]["test-data"])
    lines = new.read_text().splitlines()
    lines[2] = "," + lines[2].partition(",")[2]
    new.write_text("\n".join(lines))
    refuses("FK-VALUES-MISSING", site.client, 0, run=run)  # a prediction has its place
    found = given(site, 0, run=run, predictions=None)  # counted only
    assert np.isfinite(found["x_test"]).all()
    assert len(found["x_test"]) == len(lines) - 2
