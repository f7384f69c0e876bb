"""Hospitals of a simulation bring columns as they are, and encode them in the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("in_tmp")


def write(tables: Any) -> None:
    """Write a table whose first columns, which hospitals get, hold text, dates, gaps, outliers."""
    rng, n = np.random.default_rng(3), 240
    age, town = rng.normal(50.0, 9.0, n), rng.choice(["Ulm", "Trier", "Kiel"], n)
    dose = rng.lognormal(1.0, 1.5, n)
    columns = {
        "age": np.where(rng.random(n) < 0.1, np.nan, age),
        "town": town,
        "dose": dose,
        "seen": [f"2024-0{1 + k % 9}-1{k % 7}" for k in range(n)],
        "gene": rng.random(n),
        "other": rng.random(n),
        "more": rng.random(n),
        "rest": rng.random(n),
        "state": np.where(age + 8.0 * (town == "Ulm") + np.log(dose) > 52.0, "ill", "well"),
    }
    tables.write("t.csv", columns)


@pytest.mark.parametrize("scaling", ["auto", "rank"])
def test_a_run_makes_the_encoder_itself(tables: Any, commands: Any, scaling: str) -> None:
    write(tables)
    common = ["--data", "t.csv", "--label", "state", "--scaling", scaling]
    before = commands.result("fed-cg", *common)
    Path("here").rename("before")
    found = commands.result("fed-cg", *common, "--common-encoders")
    assert (before["exchanges"], found["exchanges"]) == (5, 6)
    assert found["metrics"]["centralised_difference"] < 1e-9
    assert found["columns"] == before["columns"]
    names = [entry["name"] for entry in found["privacy"]["sums"]]
    assert {"columns/clinical", "histograms/clinical"} <= set(names)
    scale = json.loads(Path("here/scaling.json").read_text())
    made = {column["name"]: column for column in scale["encoder"]["columns"]}
    assert len(made["town"]["key"]) == 64  # told apart by buckets, in no order of their names
    assert not {"Ulm", "Trier", "Kiel"} & set(made["town"]["facts"]["counts"])
    assert found["metrics"]["test_accuracy"] > 0.75


def test_what_columns_became_is_shown_after_the_run(tables: Any, commands: Any) -> None:
    write(tables)
    shown = commands.shown(
        "run", "fed-cg", "--data", "t.csv", "--label", "state", "--common-encoders",
        "--explain-columns", "--out", "here",
    )  # fmt: skip
    assert "What became of the columns" in shown
    assert "3 categories, a column each" in shown


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--hospitals", "1", "--allow-single"], "are of columns that several hospitals have"),
        (["--no-own-block"], "are of columns that several hospitals have; leave out --common-enco"),
        (["--protocol", "naive"], "are for protocol secure and sampling U, N or C; leave out"),
        (["--sampling", "P"], "are for protocol secure and sampling U, N or C"),
        (["--value-bound", "3"], "has values beyond the public bound of 3; write it in larger"),
    ],
)
def test_what_cannot_be_encoded_in_a_run_is_refused(
    tables: Any, commands: Any, options: list[str], text: str
) -> None:
    write(tables)
    own = ["--data", "t.csv", "--label", "state", "--common-encoders"]
    code, _, said = commands("run", "fed-cg", *own, *options)
    assert code == 2 or (code == 1 and "bound" in text)
    assert text in " ".join(said.split())
