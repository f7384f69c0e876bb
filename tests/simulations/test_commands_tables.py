"""Tables of every kind, tasks, sites, missing blocks: what runs make of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("in_tmp")

#: Options, how they change what a table is, and what is true of the result; of secure-gram.
OF_TABLES: dict[str, Callable[[Any], Any]] = {
    "--fraction-bits 8": lambda r: r["metrics"]["max_abs_error"] > 1e-4,
    "--bound 4": lambda r: r["metrics"]["error_bound"] > 1e-5,
    "--target 0": lambda r: r["metrics"]["test_rmse"] > 0.0,
    "--id id --site town": lambda r: r["config"]["rows"] == 45,
    "--task regression": lambda r: "test_rmse" in r["metrics"],
    "--positive 1": lambda r: r["config"]["classes"] == [0.0, 1.0],
    "--test-size 0.5": lambda r: r["config"]["rows"] == 30,
    "--kernel cosine": lambda r: r["metrics"]["test_accuracy"] > 0.5,
    "--kernel poly --degree 3 --gamma 0.5 --coef0 2": lambda r: r["metrics"]["gamma"] == 0.5,
    "--kernel series --coefficients 1 --coefficients 0.5": (
        lambda r: r["config"]["options"]["coefficients"] == [1.0, 0.5]
    ),
    "--cost 3": lambda r: r["metrics"]["cost"] == 3.0,
    "--cohorts 2": lambda r: len(r["privacy"]["cohorts"]) == 2,
    "--participation 0.5": lambda r: r["survivors"] == 2,
    "--runs 2 --resplit": lambda r: r["config"]["runs"] == 2,
}


@pytest.mark.parametrize("arguments", OF_TABLES)
def test_an_option_of_a_summed_table_does_what_it_should(arguments, tables, commands):
    columns = tables.columns(y=tables.columns()["y"])
    if "--id" not in arguments:
        del columns["id"], columns["town"]
    del columns["f"]
    tables.write("t.csv", columns)
    base = ["--data", "t.csv", "--label", "y", "--encoding", "fixed-point", "--cost", "1"]
    found = commands.result("secure-gram", *base, *arguments.split())
    assert found["metrics"]["max_abs_error"] <= found["metrics"]["error_bound"]
    assert OF_TABLES[arguments](found), found


TASKS = {
    "fed-cg": ([], 1e-8),
    "fdskl": (["--features", "100"], 5e-3),
    "hierarchical-svm": (["--users", "4", "--rounds", "25"], 1.0),
}


@pytest.mark.parametrize("name", TASKS)
def test_more_classes_and_regressions(name, commands):
    (more, close), run = TASKS[name], commands.result
    found = run(name, "--data", "wine", *more)
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["test_accuracy"] > 0.9
    ridge = ["--model", "ridge"] if name == "hierarchical-svm" else []
    iris = ["--data", "iris", "--target", "petal width (cm)"]
    parties = ["--parties", "3"] if name == "fdskl" else []
    found = run(name, *iris, *more, *parties, *ridge, out="iris")["metrics"]
    assert 0.05 < found["test_rmse"] < 0.5  # centimetres
    assert "test_accuracy" not in found
    assert found.get("centralised_difference", 0.0) < close
    number = run(name, "--data", "wine", "--task", "regression", *more, *ridge, out="number")
    assert number["metrics"]["test_rmse"] < 0.6
    none = run(*commands.small(name), "--test-size", "0", out="none")["metrics"]
    assert not {"test_accuracy", "centralised_difference"} & none.keys()


def test_tables_of_every_kind(tables, commands):
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    columns = tables.columns()
    tables.write("t.csv", columns)
    parquet.write_table(arrow_csv.read_csv("t.csv"), "t.parquet")
    np.savez("t.npz", X=np.column_stack([columns[c] for c in "abcdef"]), y=columns["y"])
    tables.write("text.csv", tables.columns(y=["no", "yes"] * 30))
    found, named = {}, ["--label", "y", "--id", "id", "--site", "town"]
    for path in ("t.csv", "t.parquet", "t.npz", "text.csv"):
        given = ["--data", path, *(named if path != "t.npz" else [])]
        given += ["--features", "30", "--loss", "square"]  # solved in closed form
        found[path] = commands.result("fdskl", *given, out=path[2:])
    first = found["t.csv"]
    assert first["metrics"]["centralised_difference"] < 5e-3
    assert [c for part in first["config"]["columns"] for c in part] == list("abcdef")
    for path in ("t.parquet", "t.npz"):
        assert found[path]["metrics"] == pytest.approx(first["metrics"])
    assert found["text.csv"]["config"]["classes"] == [0.0, 1.0]


def test_constant_columns_are_noted(tables, commands):
    tables.write("t.csv", tables.columns(a="5", d="0.5"))
    table = ["--data", "t.csv", "--label", "y", "--id", "id", "--site", "town"]
    shown = commands.shown("run", "fed-cg", *table)
    assert "left out 2 columns that say nothing: a, d" in shown
    shown = commands.shown("run", "fed-cg", *table, "--scaling", "range")
    assert "constant in the training rows: a, d" in shown


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_missing_blocks_are_counted_and_shown(missing, tables, commands):
    """Of columns that a centre has, the row stays and lacks a block."""
    tables.write("t.csv", tables.columns(**tables.holes("c", 4, 30, 55)))
    table = ["--data", "t.csv", "--label", "y", "--id", "id", "--site", "town", "--landmarks", "12"]
    arguments = ["run", "fed-cg", *table, "--missing", missing]
    if missing == "neutral":
        line = commands.complaint(*arguments, "--quiet")
        assert "known to one centre only" in line
        assert "--allow-single" in line
        allowed = commands.result(*arguments[1:], "--allow-single", out="allowed")
        assert allowed["metrics"]["centralised_difference"] < 1e-8
    _, _, shown = commands(*arguments, "--centres", "3", "--out", "here")
    text = {"drop-row": "rows left out for a missing block", "neutral": "missing blocks of rows"}
    *_, line = [line for line in shown.splitlines() if text[missing] in line]
    assert line.split()[-1] == "3"
    found = json.loads(Path("here/result.json").read_text())
    hospitals = found["matched"]["hospitals"].values()
    left_out = 3 if missing == "drop-row" else 0
    assert sum(h["training_rows"] + h["held_out_rows"] for h in hospitals) == 60 - left_out
    assert sum(h["dropped_rows"] for h in hospitals) == left_out
    lacking = sum(sum(h["rows_without_block"].values()) for h in hospitals)
    assert lacking == 3 - left_out
    assert found["metrics"]["centralised_difference"] < 1e-8


def test_three_classes_that_are_text(tables, commands):
    """One against the rest where a method tells classes; no numbers 0, 1, 2 where it does not."""
    tables.write("t.csv", tables.columns(y=["cat", "dog", "owl"] * 20))
    table = ["--data", "t.csv", "--label", "y", "--id", "id", "--site", "town"]
    text = "3 classes are no numbers, and online methods predict numbers; use fed-cg, fdskl or"
    for name in ("pof-mkl", "local-only"):
        said = commands.complaint("run", name, *table, "--clients", "3")
        assert text in said
        assert "owl" not in said
    closed = ["--features", "30", "--loss", "square", "--regularization", "0.01"]
    found = commands.result("fdskl", *table, *closed, out="fdskl")
    assert found["config"]["classes"] == [0.0, 1.0, 2.0]
    assert found["metrics"]["centralised_difference"] < 5e-3


def test_a_table_as_a_spreadsheet_writes_it_is_the_plain_one(commands, tables, in_tmp):
    """Runs and predictions; the columns that the model does not need may hold anything."""
    rng = np.random.default_rng(2)
    x = rng.normal(5.0, 2.0, (60, 4)).round(3)
    x[rng.random(x.shape) < 0.05] = np.nan
    y = np.where(np.nan_to_num(x[:, 0]) > 5.0, "ill", "well")

    def write(name, sep, decimal, mark, note=False):
        lines = [["a", "b", "c", "d", "out", *["note"] * note]]
        for k, row in enumerate(x):
            cells = [mark if np.isnan(v) else str(v).replace(".", decimal) for v in row]
            lines.append([*cells, y[k], *[f"row {k}, with 1,5 and 2.5"] * note])
        (in_tmp / name).write_text("\n".join(sep.join(line) for line in lines))

    write("plain.csv", ",", ".", "")
    write("sheet.csv", ";", ",", "?")
    write("new.tsv", "\t", ",", "-999", note=True)
    options = ["--label", "out", "--landmarks", "12"]
    plain = commands.result("fed-cg", "--data", "plain.csv", *options, out="one")
    code, _, shown = commands("run", "fed-cg", "--data", "sheet.csv", *options, "--out", "two")
    assert code == 0
    text = "sheet.csv has columns parted by semicolons and a decimal comma and"
    assert text in " ".join(shown.split())
    other = json.loads((in_tmp / "two" / "result.json").read_text())
    assert other["metrics"] == pytest.approx(plain["metrics"], rel=1e-9, abs=1e-9)
    one, two = ((in_tmp / name / "scaling.json").read_text() for name in ("one", "two"))
    assert one == two
    commands.shown("predict", "one", "--data", "plain.csv", "--out", "one.csv")
    again = ["predict", "one", "--data", "new.tsv", "--out", "two.csv"]
    commands.shown(*again, "--na=-999", "--decimal", ",")
    one, two = (tables.read(name) for name in ("one.csv", "two.csv"))
    assert [row["class"] for row in one] == [row["class"] for row in two]
    for row, other in zip(one, two, strict=True):
        assert float(row["output_0"]) == pytest.approx(float(other["output_0"]), abs=1e-9)
    line = commands.complaint(*again, "--force", "--sep", "--")
    assert "the separator is not one character" in line
