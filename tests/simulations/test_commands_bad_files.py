"""Bad files of every command: one line, exit code 2, nothing made, and no data quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("in_tmp")

TABLES = {
    "fed-cg": "--id id --site town --landmarks 12",
    "fdskl": "--id id --site town --features 30",
    "secure-gram": "--id id --site town --encoding fixed-point",
    "hierarchical-svm": "--id id --site town --users 4",
    "pof-mkl": "--id id --site town --clients 3 --rounds 5",
    "kernel-pca": "--id id --site town --clients 3",
}
TWICE = {"id": ["s3cret-1"] * 2 + [str(k) for k in range(58)]}
#: Changes of a table, more options, methods (all of them where none is named), the complaint.
FILES: list[tuple[dict[str, Any], str, str, str]] = [
    ({}, "--label z", "", "t.csv has no label column 'z'"),
    ({}, "--id z", "", "t.csv has no id column 'z'"),
    ({}, "--site z", "", "t.csv has no site column 'z'"),
    ({}, "--target z", "fed-cg fdskl hierarchical-svm", "the data has no feature column 'z'"),
    ({"b": ["s3cret"] + ["1"] * 59}, "--missing error", "", "column 'b' of t.csv is empty or NaN"),
    ({"y": ["s3cret"] + ["1"] * 59}, "", "", "column 'y' of t.csv is not numeric"),
    (TWICE, "", "fed-cg fdskl", "has 1 duplicate ids"),
    ({"y": "1"}, "", "fed-cg fdskl", "the label is constant"),
    ({"b": ""}, "--missing drop-row", "fdskl pof-mkl kernel-pca", "every row of t.csv has a"),
    ({"b": ""}, "--missing neutral", "fed-cg", "column 'b' is empty in all training rows"),
    ({"y": ""}, "--missing neutral", "fed-cg", "no row has a label"),
    ({}, "--split site", "fed-cg", "3 sites, 2 hospitals cannot hold them all; use --hospitals 3"),
    ({}, "--centres 6", "fed-cg", "6 columns cannot be dealt to 7 blocks; use fewer centres"),
    ({}, "--hospitals 19", "fed-cg", "18 of 60 rows cannot be dealt to 19 hospitals"),
    ({}, "--parties 7", "fdskl", "6 columns cannot be dealt to 7 parties; use fewer parties"),
    ({}, "--positive 5", "fed-cg fdskl hierarchical-svm", "there is no class 5"),
    ({}, "--task regression --loss logistic", "fdskl", "is for classes, the labels are"),
]
TROUBLES = [(*f[:2], n, f[3]) for f in FILES for n in (f[2].split() or TABLES)]


@pytest.mark.parametrize(("changes", "more", "name", "text"), TROUBLES)
def test_a_bad_table_is_one_line_without_its_data(changes, more, name, text, tables, commands):
    tables.write("t.csv", tables.columns(**changes))
    given = ["--data", "t.csv", "--label", "y", *TABLES[name].split(), *more.split()]
    line = commands.complaint("run", name, *given)
    assert text in line
    assert "s3cret" not in line
    assert not Path("runs").exists()


@pytest.mark.parametrize("column", ["a", "f", "y"])
@pytest.mark.parametrize("name", TABLES)
def test_empty_cells_are_refused_unless_asked_for(name, column, tables, commands):
    tables.write("t.csv", tables.columns(**tables.holes(column, 4, 30, 55)))
    given = [name, "--data", "t.csv", "--label", "y", *TABLES[name].split()]
    line = commands.complaint("run", *given, "--missing", "error")
    assert f"column '{column}' of t.csv is empty or NaN in 3 rows" in line
    assert "--missing drop-row" in line
    assert not Path("runs").exists()
    if column != "a" and name == "hierarchical-svm":
        return  # one run is enough
    quick = {"fdskl": ["--gamma", "1", "--regularization", "0.01", "--loss", "square"]}
    quick["hierarchical-svm"] = ["--rounds", "5"]
    found = commands.result(*given, "--missing", "drop-row", *quick.get(name, []))
    if (name, column) == ("fed-cg", "f"):  # of a centre: the parties find it when they match rows
        hospitals = found["matched"]["hospitals"].values()
        assert sum(hospital["dropped_rows"] for hospital in hospitals) == 3
        return
    assert any("3 of 60 rows" in note for note in found["config"]["notes"])
    if name in ("fed-cg", "fdskl", "hierarchical-svm"):
        rows = [found["config"][kind] for kind in ("rows", "held_out_rows")]
        assert np.sum(rows[0]) + np.sum(rows[1]) == 57


RATINGS = {
    "twice.csv": "user,item\ns3cret,1\ns3cret,1\nb,2\n",
    "gap.csv": "user,item\ns3cret,1\n,2\n",
    "nan.csv": "user,item,rating\ns3cret,1,nan\nb,2,3\n",
    "one.csv": "user,item\ns3cret,1\ns3cret,2\n",
    "empty.csv": "",
    "short.csv": "user,item\ns3cret,1\nb\n",
    "other.csv": "person,thing\ns3cret,1\nb,2\n",
    "head.csv": "s3cret,1\nb,2\n",
}


@pytest.mark.parametrize(
    ("path", "more", "text"),
    [
        ("twice.csv", "", "twice.csv has 1 rows that repeat a pair of user and item"),
        ("gap.csv", "", "the user id is empty in 1 rows of gap.csv, for example in row 2"),
        ("nan.csv", "", "the rating is not a finite number in 1 rows of nan.csv"),
        ("one.csv", "", "users in one.csv: 1, items: 2; give at least 2 of each"),
        ("empty.csv", "", "empty.csv is empty; give a file with data"),
        ("short.csv", "", "line 3 of short.csv has 1 columns instead of 2; mend it"),
        ("other.csv", "", "no columns that may be the user; choose one with --user: person, thing"),
        ("other.csv", "--user person --item x", "other.csv has no item column 'x'"),
        ("other.csv", "--user person --item person", "has two of the roles"),
        ("head.csv", "", "the first line of head.csv holds data instead of column names"),
    ],
)
@pytest.mark.parametrize("name", ["secure-gram", "fed-cfk"])
def test_bad_ratings_are_one_line_without_their_content(name, path, more, text, commands):
    Path(path).write_text(RATINGS[path])
    if name == "secure-gram" and not more:  # else it is a table
        if path in ("other.csv", "head.csv"):
            return
        more = "--user user --item item" + " --rating rating" * (path == "nan.csv")
    line = commands.complaint("run", name, "--data", path, *more.split())
    assert text in line
    assert "s3cret" not in line
    assert not Path("runs").exists()
