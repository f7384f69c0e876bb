"""Messy tables through every door: read as the clean table that they stand for, and said so.

A row of ``CASES`` is a table as people have it and the numbers that it means. The doors are a file,
the node of an app, files of parties, a data frame and an estimator; a run is dealt from one of the
first three. What release 6f0b6ef made of the rows stands in the changelog.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, RecordDict
from pyarrow import feather
from refusals import refuses

from fedkern_flwr.interactions import Interactions
from fedkern_flwr.simulations.apps.node import Node
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.estimators import FedCGClassifier
from fedkern_flwr.simulations.methods.hybrid_data import HybridSettings
from fedkern_flwr.simulations.run.party_files import PartyFiles
from fedkern_flwr.tables import Table, load_ids, load_table

NAN = np.nan
#: Methods of tables, and what makes a run of them short.
DEALT_TO = {
    "fed-cg": "--landmarks 8", "fdskl": "--features 20 --gamma 1 --regularization 0.01",
    "hierarchical-svm": "--users 4 --C 1 --rounds 10", "pof-mkl": "--clients 3 --rounds 20",
    "secure-gram": "--encoding fixed-point --kernel rbf --cost 1",
    "kernel-pca": "--clients 3 --features 6",
}  # fmt: skip
#: Name -> cells of a column, the numbers that they are, what a note says.
NUMBERS: dict[str, tuple[Sequence[str], Sequence[float], str]] = {
    "percent": (["45.3%", "7 %", "0"], [45.3, 7, 0], "'a' in %"),
    "euros": (["€ 5,25", "€7", "-€ 1,5"], [5.25, 7, -1.5], "'a' in €"),
    "dollars": (["$1,234.50", "($3.25)", "-$2"], [1234.5, -3.25, -2], "'a' in $"),
    "kilograms": (["75.0 kg", "80kg", "8.1e1 KG"], [75, 80, 81], "'a' in kg"),
    "days": (["1 day", "12 days", "3 d"], [1, 12, 3], "'a' in d"),
    "a clinical unit": (["90 mL/min/1.73m2", "61.5 mL/min/1.73m²", "7 ml/min/1.73m2"],
                        [90, 61.5, 7], "'a' in mL/min/1.73m2"),
    "cells in a volume": (["5.1 x10^9/L", "6 10^9/L", "7 ×10⁹/L"], [5.1, 6, 7], "'a' in"),
    "spaces for thousands": (["1 234,5", "12\u00a0345,5", "3,5"], [1234.5, 12345.5, 3.5], "comma"),
    "marks for thousands": (["1'234.5", "1,234,567.5", "8.5"], [1234.5, 1234567.5, 8.5], ""),
    "brackets": (["(12.5)", "13.5", "\u22127"], [-12.5, 13.5, -7], ""),
    "limits": (["<0.5", "1.5", "≥ 30"], [NAN, 1.5, NAN], "limits"),
    "infinite": (["inf", "1.5", "-Infinity"], [NAN, 1.5, NAN], "infinite"),
    "marked as missing": (["n/a", "1.5", "#N/A"], [NAN, 1.5, NAN], "'n/a'"),
}  # fmt: skip
DAY = 86400.0
MARCH = 1709510400.0  # 2024-03-04
DATES: dict[str, tuple[Sequence[str], str | None, Sequence[float]]] = {
    "the day is first": (["04/03/2024", "29/03/2024", "2024-03-05"], None, [0, 25, 1]),
    "the month is first": (["03-04-2024", "03-29-2024", "3-5-24"], None, [0, 25, 1]),
    "said": (["04.03.2024", "05.03.2024 06:00", "4.3.24"], "day-first", [0, 1.25, 0]),
    "others are missing": (["2024-03-04", "05/03/2024", "2024-03-05"], "iso", [0, NAN, 1]),
}


def text_of(columns: Mapping[str, Sequence[Any]], sep: str = ";") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=sep, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()


def node_table(path: Path, **config: Any) -> Table:
    """Return the table that a node of an app reads from what its configuration names."""
    own = {"data": str(path), "label-column": "out", **config}
    node = Node(Context(1, 1, own, RecordDict(), {"predict": ""}), load_table, ("classes",))
    table = node.table(missing="keep", kinds=())
    assert isinstance(table, Table)
    return table


def doors(columns: Mapping[str, Sequence[Any]], place: Path, **how: Any) -> dict[str, Table]:
    """Return the table as each door reads it."""
    whole = {**columns, "out": [k % 2 for k in range(len(next(iter(columns.values()))))]}
    path, other = place / "one.csv", place / "two.csv"
    path.write_text(text_of(whole), encoding="utf-8")
    other.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    parties = PartyFiles.read([str(path), str(other)], "rows", "out", None, how)
    both = parties.table("keep")
    found = {
        "file": load_table(path, label="out", missing="keep", kinds={}, **how),
        "node": node_table(path, **{name: str(value) for name, value in how.items()}),
        "parties": both.take(both.site == "00000"),
    }
    for name, table in found.items():
        assert found["file"].units == table.units, name
    return found


@pytest.mark.promise("cells-as-meant")
@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_what_they_mean(case: str, tmp_path: Path) -> None:
    cells, numbers, said = NUMBERS[case]
    for door, table in doors({"a": cells * 4, "b": range(12)}, tmp_path).items():
        x = np.where(np.isfinite(table.x), table.x, NAN)
        np.testing.assert_array_equal(x[:, 0], [*numbers] * 4, door)
        assert "a" not in table.kinds
        assert said in " ".join(table.notes), (door, table.notes)


@pytest.mark.promise("cells-as-meant")
@pytest.mark.parametrize("case", DATES)
def test_dates_are_read_in_their_order(case: str, tmp_path: Path) -> None:
    cells, order, days = DATES[case]
    how = {} if order is None else {"dates": order}
    for door, table in doors({"a": cells}, tmp_path, **how).items():
        np.testing.assert_array_equal((table.x[:, 0] - MARCH) / DAY, days, door)
        assert table.kinds == {"a": "date"}


def test_names_that_differ_in_capital_letters_are_one_everywhere(tmp_path: Path) -> None:
    cells = ["F", "f ", "M", "F", "00123", "4041"] * 3
    for door, table in doors({"a": cells, "zip": ["00123", "4041"] * 9}, tmp_path).items():
        assert table.categories["a"] == ("00123", "4041", "F", "M"), door
        assert table.categories["zip"] == ("00123", "4041")
        assert any("capital letters" in note for note in table.notes)
    data = pd.DataFrame({"sex": ["Female", "male"] * 30, "b": np.arange(60.0)})
    model = FedCGClassifier(random_state=0).fit(data, [0, 1] * 30)
    again = data.assign(sex=["FEMALE", "Male"] * 30)
    np.testing.assert_array_equal(model.decision_function(again), model.decision_function(data))


def test_an_estimator_reads_a_frame_as_it_is_meant() -> None:
    clean = pd.DataFrame({"a": np.arange(60.0), "b": -(np.arange(60.0) % 7)})
    brackets = [f"({-k:.1f})" if k else "0" for k in clean.b]
    messy = pd.DataFrame({"a": [f"{k:.1f} kg" for k in clean.a], "b": brackets})
    y = (clean.a > 30).astype(int)
    found = [FedCGClassifier().fit(table, y).decision_function(table) for table in (clean, messy)]
    np.testing.assert_allclose(*found, atol=1e-9)


#: Columns of two parties, or of one, and the code; None where they fit.
SITES: list[tuple[dict[str, Sequence[str]], dict[str, Sequence[str]], str]] = [
    ({"a": ["75 kg", "80 kg"]}, {"a": ["165 lb", "170 lb"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80 kg"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80000 g"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["75 kg", "80"]}, {"a": ["75", "80"]}, "FK-UNITS-DIFFER"),
    ({"a": ["03/04/2024", "2024-03-04"]}, {"a": ["03/04/2024"] * 2}, "FK-DATES-ORDER"),
    ({"a": ["13/04/2024", "04/13/2024"]}, {"a": ["03/04/2024"] * 2}, "FK-DATES-ORDER"),
    ({"out": ["Yes", "No"]}, {"out": ["yes", "no"]}, "FK-CLASSES-SPELLED"),
    ({"out": ["Benign", "benign"]}, {"out": ["benign", "benign"]}, "FK-CLASSES-SPELLED"),
    ({"out": ["0", "1"]}, {"out": ["no", "yes"]}, "FK-CLASSES-SPELLED"),
]


@pytest.mark.promise("sites-written-alike")
@pytest.mark.parametrize(("one", "other", "code"), SITES)
def test_parties_that_write_differently_are_refused(
    one: Any, other: Any, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["run", "hierarchical-svm", "--label", "out", "--out", str(tmp_path / "run")]
    for name, cells in (("north", one), ("south", other)):
        columns = {"out": ["no", "yes"], "a": ["1", "2"], "b": ["3", "4"], **cells}
        path = tmp_path / f"{name}.csv"
        path.write_text(text_of({n: [*c] * 20 for n, c in columns.items()}), encoding="utf-8")
        typed += ["--party", str(path)]
    assert run(typed) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(f"[{code}]"), line
    if code == "FK-CLASSES-SPELLED":
        assert "20" in line  # counts of the parties
        names = {name: name[0].lower() in "y1b" for c in (one, other) for name in c["out"]}
        said = ",".join(f"{name}={'bad' if bad else 'good'}" for name, bad in names.items())
        assert run([*typed, "--classes", said, "--quiet"]) == (2 if all(names.values()) else 0)


#: Cells of ids at two parties, and whether they are the same ids.
KEYS = [
    (["12.0", "13.0"], ["12", "13"]), (["00012", "13"], ["12", "13"]),
    (["a1", "b2"], ["A1", "B2"]), (["e\u0301", "x"], ["\u00e9", "x"]),
]  # fmt: skip


@pytest.mark.promise("ids-spelled-alike")
@pytest.mark.parametrize(("mine", "theirs"), KEYS)
def test_similar_ids_are_never_guessed(mine: list[str], theirs: list[str], tmp_path: Path) -> None:
    rows = {"id": mine, "a": [1, 2], "out": [0, 1]}
    for name, columns in (("one", rows), ("two", {"id": theirs, "b": [3, 4]})):
        (tmp_path / f"{name}.csv").write_text(text_of(columns), encoding="utf-8")
    paths = [str(tmp_path / f"{name}.csv") for name in ("one", "two")]
    parties = PartyFiles.read(paths, "columns", "out", "id", {})
    refuses("FK-IDS-SPELLED", parties.table, "encode")


#: Name and bytes of a file, how it is read, its columns.
WORDS = "größe,b,out\n1,2,0\n3,4,1\n"
WRITTEN: list[tuple[str, bytes, dict[str, Any], tuple[str, ...]]] = [
    ("a.csv", b"2019,2020,out\n1,2,0\n3,4,1\n", {}, ("2019", "2020")),
    ("a.csv", b"400.5,401,401.5,out\n1,2,3,0\n3,4,5,1\n", {}, ("400.5", "401", "401.5")),
    ("a.csv", b"nan,b,out\n1,2,0\n3,4,1\n", {}, ("nan", "b")),
    ("a.csv", b"1,2,0\n3,4,1\n", {"header": False, "label": "x2"}, ("x0", "x1")),
    ("a.csv", b"5.1,2,out\n1,2,0\n3,4,1\n", {"header": True}, ("5.1", "2")),
    ("a.csv.gz", gzip.compress(b"a,b,out\n1,2,0\n3,4,1\n", mtime=0), {}, ("a", "b")),
    ("a.csv", WORDS.encode("utf-16"), {}, ("größe", "b")),
    ("a.csv", WORDS.encode("utf-8-sig"), {}, ("größe", "b")),
    ("a.csv", WORDS.encode("latin-1"), {}, ("größe", "b")),
]


@pytest.mark.parametrize(("name", "data", "how", "columns"), WRITTEN)
def test_files_are_read_as_they_are_written(
    name: str, data: bytes, how: dict[str, Any], columns: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    table = load_table(tmp_path / name, kinds={}, **{"label": "out", **how})
    assert table.columns == columns
    assert (table.x[:, 0].tolist(), table.rows) == ([1, 3], 2)
    found = node_table(tmp_path / name, **{"label-column": how.get("label", "out")} | how)
    assert found.columns == columns
    feather.write_feather(
        pd.DataFrame(table.x, columns=columns).assign(out=table.y), tmp_path / "a.feather"
    )
    assert load_table(tmp_path / "a.feather", label="out").columns == columns


@pytest.mark.parametrize("text", ["5.1,3.5,setosa\n4.9,3,setosa\n", "1,2\n3,4\n5,6\n"])
def test_a_first_line_of_data_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    if text.startswith("1,"):
        text = text.replace("1,2", "7.5,2.25")
        (tmp_path / "a.csv").write_text(text)
    refuses("FK-FILE-HEADER", load_table, tmp_path / "a.csv", label="out")


def test_intervals_and_data_sets_are_columns() -> None:
    class Rows:
        """A data set whose table has more rows than it: only ``to_pandas`` knows which."""

        def to_pandas(self) -> Any:
            return pd.DataFrame({"a": [3.0, 1.0], "out": [1, 0]})

    assert load_table(Rows(), label="out").x.tolist() == [[3.0], [1.0]]
    frame = pd.DataFrame({"a": pd.cut(np.arange(8.0), 2), "out": [0, 1] * 4})
    table = load_table(frame, label="out", kinds={})
    assert table.kinds == {"a": "category"}
    assert len(table.categories["a"]) == 2


def test_dislikes_are_no_likes() -> None:
    places = np.arange(4)
    found = Interactions(
        places, places, np.array([-1.0, 1.0, 0.0, 0.5]), None, tuple("abcd"), tuple("wxyz")
    )
    assert found.positive(None).rating.tolist() == [1.0, 0.5]
    assert "2 of 4 are left out" in found.positive(None).notes[0]
    assert found.positive(-1.0).rows == 4


def test_a_party_in_another_unit_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        own = {"a": np.exp(rng.normal(size=40)) * (1000 if k == 2 else 1), "b": rng.normal(size=40)}
        (tmp_path / f"{k}.csv").write_text(text_of({**own, "out": [0, 1] * 20}, ","))
    party = tuple(str(tmp_path / f"{k}.csv") for k in range(3))
    settings = HybridSettings(data="x", label="out", id_column="b", party=party)
    notes = settings.load("encode").notes
    assert [note for note in notes if "another unit" in note and "2.csv" in note and "'a'" in note]
    assert not [note for note in notes if "another unit" in note and "'b'" in note]


def test_a_row_that_stands_twice_is_used_once_and_other_ids_are_counted_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{name}{k},{k % 7}.5,{k % 5},{k % 2}" for name in "ns" for k in range(40)]
    write = lambda name, own: Path(name).write_text("\n".join(["id,a,b,y", *own]))  # noqa: E731
    write("north.csv", [*rows[:40], rows[3], rows[3]])
    write("south.csv", rows[40:])
    table = load_table("north.csv", id_column="id", label="y")
    assert table.rows == 40
    assert any("2 rows of north.csv stand twice" in note for note in table.notes)
    assert len(load_ids("north.csv", "id")) == 40
    typed = ["run", "fed-cg", "--label", "y", "--id", "id", "--landmarks", "6", "--out", "o"]
    typed += ["--party", "north.csv", "--party", "south.csv", "--test-size", "0.2"]
    assert run(typed) == 0
    assert "2 rows of north.csv stand twice, cell by cell: used once" in capsys.readouterr().err
    write("north.csv", [*rows[:40], "n1,0,0,0", "n2,0,0,0"])
    write("south.csv", [*rows[40:], "s1,0,0,0"])
    assert run([*typed, "--force"]) == 2
    told = capsys.readouterr().err
    assert "2 in north.csv, 1 in south.csv" in told
    assert told.strip().endswith("[FK-IDS-DUPLICATE]")


def test_a_column_of_several_types_is_named() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "dose": ["x", 3.5], "y": [0, 1]})
    caught = refuses("FK-COLUMN-UNREADABLE", load_table, frame, label="y")
    assert "'dose'" in str(caught)


@pytest.mark.parametrize(("method", "more"), DEALT_TO.items())
def test_columns_are_chosen_and_a_leak_is_noted_by_every_method(
    method: str, more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).random((120, 5)).round(4)
    x[:, 4] = (x[:, 0] + x[:, 1] > 1.0) + 0.01 * x[:, 2]  # a second label
    rows = [[f"p{k}", *row, int(row[4])] for k, row in enumerate(x.tolist())]
    with Path("t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", *"abcd", "late", "y"], *rows])
    typed = ["run", method, *more.split(), "--data", "t.csv", "--label", "y", "--id", "id"]
    for chosen, noted in (((), True), (("--ignore", "late"), False)):
        assert run([*typed, *chosen, "--out", "o", "--force"]) == 0
        columns = {
            one["column"] for one in json.loads(Path("o/result.json").read_text())["columns"]
        }
        assert columns == {*"abcd", *(("late",) if noted else ())}
        assert ("possible leak" in capsys.readouterr().err) == noted
