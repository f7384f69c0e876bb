"""Tables as people have them: every method runs on them or says in one line what it cannot do."""

from __future__ import annotations

import json
from csv import reader
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from fedkern_flwr.encoding import Encoder
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.online import OnlineFamily
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.simulations.methods.registry import METHODS
from fedkern_flwr.simulations.methods.rows import RowSettings, RowsFamily
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.datasets import load_data
from fedkern_flwr.tables import load_table

from ..helpers.awkward import LABEL, awkward_tables, everything

pytestmark = pytest.mark.usefixtures("in_tmp")

STREAM = ["--clients", "3", "--rounds", "20"]
SMALL = {
    **dict.fromkeys([cls.method for cls in OnlineFamily.strategies], STREAM),
    "fed-cg": ["--landmarks", "16"],
    "fdskl": ["--features", "30", "--gamma", "0.1", "--regularization", "0.01"],
    "secure-gram": ["--encoding", "fixed-point", "--learner", "ridge", "--cost", "1"],
    "hierarchical-svm": ["--users", "4", "--rounds", "8"],
    "kernel-pca": ["--clients", "3", "--features", "6"],
}
CLASSES = "3 classes are no numbers, and online methods predict numbers; use fed-cg, fdskl or hier"
#: What cannot be done with such a table.
CANNOT = {
    "fed-cfk": "has no columns that may be the user",
    **{cls.method: CLASSES for cls in OnlineFamily.strategies},
}
PREDICT = ("fed-cg", "fdskl", "secure-gram", "hierarchical-svm")
#: A method of each family, and what it cannot do with which table.
FAMILIES: dict[str, dict[str, str]] = {
    "fed-cg": {},
    "fdskl": {},
    "secure-gram": {},
    "hierarchical-svm": {},
    "kernel-pca": {},
    "pof-mkl": dict.fromkeys(("three classes", "dictionaries"), CLASSES),
}
#: What new rows have in place of cells of some kind: what is not known, gaps, what is no such cell.
NEW = {
    "category": ["violet", None, " red "],
    "date": ["yesterday", "", "2031-01-01"],
    "number": ["1e300", "", "?"],
    "boolean": ["maybe", None, "yes"],
}


def csv_rows(path: str) -> list[list[str]]:
    with Path(path).open(newline="") as file:
        return [*reader(file)]


def write(name: str, table: Any) -> None:
    csv.write_csv(table, name)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_table_with_everything(name: str, commands: Any) -> None:
    table = everything()
    write("t.csv", table.arrow())
    label = [] if name == "fed-cfk" else ["--label", LABEL, *SMALL.get(name, [])]
    arguments = ["run", name, "--data", "t.csv", *label]
    if name in CANNOT:
        assert CANNOT[name] in commands.complaint(*arguments)
        return
    found = commands.result(*arguments[1:])
    shown = {one["column"]: one for one in found["columns"]}
    assert {c: one["kind"] for c, one in shown.items()} | {"still": "number"} == table.kinds
    assert shown["colour"]["outputs"] == 4  # three colours, and where it is missing
    if name in PREDICT:
        rows = len(table.labels)
        changed: dict[str, Any] = {c: list(v) for c, v in table.columns.items()}
        changed["colour"] = ["violet", None, " red "] * (rows // 3) + ["red"] * (rows % 3)
        changed["day"] = ["yesterday"] * rows
        changed["size"] = ["1e300", "", "?"] * (rows // 3) + ["0"] * (rows % 3)
        del changed["still"]
        write("new.csv", pa.table({**changed, "still": [4.0] * rows}))
        said = commands.shown("predict", "--force", "here", "--data", "new.csv")
        assert said.endswith(f"{rows} predictions: here/predictions.csv")
        made = Path("here/predictions.csv").read_text().splitlines()[1:]
        assert {line.split(",")[1] for line in made} <= {"a", "b", "c"}


@pytest.mark.parametrize("method", FAMILIES)
@pytest.mark.parametrize("name", awkward_tables())
def test_every_method_takes_each_table_or_says_why_not(
    name: str, method: str, commands: Any
) -> None:
    """New rows have unknown categories, gaps and cells that are something else."""
    table, rng = awkward_tables()[name], np.random.default_rng(7)
    for k in range(4):  # so that each party has a column
        table.columns[f"more {k}"] = rng.normal(size=len(table.labels)).tolist()
        table.kinds[f"more {k}"] = "number"
    write("t.csv", table.arrow())
    ridge = ["--model", "ridge"] if (name, method) == ("regression", "hierarchical-svm") else []
    run = [method, "--data", "t.csv", "--label", LABEL, *SMALL[method], *ridge]
    if why := FAMILIES[method].get(name):
        assert why in commands.complaint("run", *run)
        return
    metrics = commands.result(*run)["metrics"]
    assert metrics
    assert np.isfinite([v for v in metrics.values() if isinstance(v, float)]).all()
    if method not in PREDICT:
        return
    new = {column: NEW[kind] for column, kind in table.kinds.items()}
    write("new.csv", pa.table(new))
    assert "3 predictions: here/predictions.csv" in commands.shown(
        "predict", "here", "--data", "new.csv"
    )
    heads, *rows = csv_rows("here/predictions.csv")
    if name == "regression":
        assert heads[1] == "prediction"
        assert np.isfinite([float(row[1]) for row in rows]).all()
    else:
        assert {row[1] for row in rows} <= set(table.labels)


# --- The encoder is of the rows to learn from -----------------------------------------------


def encoded(**merged: str) -> tuple[Any, Any]:
    """Load the table with everything; ``merged`` renames classes."""
    table = everything()
    write("t.csv", table._replace(labels=[merged.get(y, y) for y in table.labels]).arrow())
    return load_table("t.csv", label=LABEL, missing="encode", kinds={}), "t.csv"


@pytest.mark.parametrize("scaling", ["rank", "standard", "range", "none"])
def test_features_are_those_of_an_encoder_of_the_training_rows(scaling: Any) -> None:
    table, data = encoded()
    how: Any = {"data": data, "label": LABEL, "scaling": scaling, "missing": "encode"}
    for prepared in (
        HybridData(HybridSettings(**how)),
        VerticalData(VerticalSettings(**how)),
    ):
        split = prepared.split(0)
        encoder = Encoder.fit(table.take(split.train), scaling)
        np.testing.assert_array_equal(split.x, encoder.transform(table))
        assert split.columns == encoder.outputs
        saved = json.loads(prepared.scaling_json())
        assert Encoder.from_dict(saved["encoder"]) == encoder
        assert saved["class_names"] == ["a", "b", "c"]


def test_what_a_column_became_stays_with_one_party() -> None:
    _, data = encoded()
    for parties in (2, 3, 7):
        how: Any = {"data": data, "label": LABEL, "scaling": "rank", "missing": "encode"}
        split = VerticalData(VerticalSettings(**how, parties=parties)).split(0)
        sources = np.array(split.scaling["sources"])
        owners = [set(sources[part]) for part in split.parts]
        assert sum(map(len, owners)) == len(set().union(*owners)) == split.width
        assert sorted(np.concatenate(split.parts)) == list(range(len(split.columns)))


def test_rows_and_streams_are_those_of_an_encoder_of_the_rows_that_are_not_held_out() -> None:
    table, data = encoded(c="a")
    how: Any = {"data": data, "label": LABEL, "missing": "encode", "test_size": 0.4}
    given = RowsFamily().prepare(RowSettings(**how, scaling="rank"))
    order = np.random.default_rng([0, 1]).permutation(table.rows)
    train = np.sort(order[round(0.4 * table.rows) :])
    assert given.encoder.outputs == Encoder.fit(table.take(train)).outputs
    found = np.concatenate([one["x"] for one in given.tables])
    wanted = given.encoder.transform(table.take(train))
    np.testing.assert_array_equal(sorted(found.tolist()), sorted(wanted.tolist()))
    streams = prepare(DataSettings(**how, scaling="rank", clients=2))
    assert streams.encoder.outputs == given.encoder.outputs
    shard = streams.clients.shards[0]
    assert np.linalg.norm(shard.x, axis=1).max() <= 1.0 + 1e-12
    saved = json.loads(streams.scaling_json())
    assert Encoder.from_dict(saved["encoder"]) == streams.encoder


def test_text_becomes_what_is_asked_for_in_runs_and_predictions(commands: Any) -> None:
    """Buckets of a hash know categories that the rows to learn from do not have."""
    towns = [f"town {k}" for k in range(90)]
    rng = np.random.default_rng(8)
    here = rng.integers(0, 90, 300)
    labels = np.where(here % 2, "odd", "even")
    table = {"town": [towns[k] for k in here], "size": rng.normal(size=300), "outcome": labels}
    write("t.csv", pa.table(table))
    run = ["fed-cg", "--data", "t.csv", "--label", "outcome", "--centres", "1"]
    run += ["--allow-single", "--landmarks", "60"]
    found = commands.result(*run, "--categories", "hashing")
    shown = {one["column"]: one for one in found["columns"]}
    assert shown["town"]["outputs"] == 32
    assert shown["town"]["text"].endswith("categories, hashed to 32 columns")
    assert found["metrics"]["test_accuracy"] > 0.65  # half of them by guessing
    for file in ("scaling.json", "result.json"):
        assert "town 1" not in Path("here", file).read_text()
    write("new.csv", pa.table({"town": ["nowhere", None, "elsewhere"], "size": [0.0, 0.0, 0.0]}))
    commands.shown("predict", "here", "--data", "new.csv")
    (_, *rows) = csv_rows("here/predictions.csv")
    assert len({row[2] for row in rows}) == 3  # each has a bucket of its own, or none


# --- What is shown --------------------------------------------------------------------------


def test_columns_are_explained_where_it_is_asked_for(commands: Any) -> None:
    write("t.csv", everything().arrow())
    run = ["run", "fed-cg", "--data", "t.csv", "--label", LABEL, "--landmarks", "8"]
    said = commands.shown(*run, "--explain-columns", "--out", "here")
    for text in (
        "What became of the columns",
        "colour category 3 categories, a column each; missing in",
        "x[1] number 0 to 1 by its range 1",
        "name category left out: says nothing 0",
        "day date days, weekday, month; missing in",
    ):
        assert text in said
    assert "What became" not in commands.shown(*run, "--out", "there")
    again = commands.shown("run", "fed-cg", "--resume", "here", "--explain-columns")
    assert "What became of the columns" in again


def test_no_category_is_in_what_a_run_shows_and_leaves_for_all(commands: Any) -> None:
    write("t.csv", everything().arrow())
    run = ["run", "fed-cg", "--data", "t.csv", "--label", LABEL, "--landmarks", "8"]
    code, out, err = commands(*run, "--explain-columns", "--out", "here", "--json", "-")
    assert code == 0
    for text in (out, err, Path("here/result.json").read_text()):
        for word in ("green", "town 1", "t24", "2020-"):
            assert word not in text
    assert Path("here/scaling.json").stat().st_mode & 0o077 == 0


def test_papers_have_ranges_and_commands_choose() -> None:
    for settings in (HybridSettings, VerticalSettings, DataSettings, RowSettings):
        assert settings("iris").scaling == "range"
        assert settings("iris").missing == "error"
        assert settings.of_runs == {"scaling": "auto", "missing": "encode"}


@pytest.mark.parametrize("data", ["diabetes", "iris"])
def test_columns_have_their_range_but_with_a_far_row_ranks(data: str) -> None:
    table = load_data(data)
    far = table.x.copy()
    far[7, 1] = 1e300
    for x, other in ((table.x, "range"), (far, "rank")):
        rows = replace(table, x=x)
        scalings: tuple[Any, ...] = ("auto", other)
        found, second = (Encoder.fit(rows, scaling).transform(rows) for scaling in scalings)
        rest = Encoder.fit(table, "range").transform(table)
        np.testing.assert_array_equal(found[:, 1], second[:, 1])
        np.testing.assert_array_equal(np.delete(found, 1, axis=1), np.delete(rest, 1, axis=1))
