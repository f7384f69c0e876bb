"""Classes have names from end to end: options, figures, plots, what nodes write, predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.strategies import FDSKL, FedCG

pytestmark = pytest.mark.usefixtures("in_tmp")

WORDS = ("eggs", "ham", "[b]spam[/b]")
SMALL = {
    "fed-cg": ["--landmarks", "16"],
    "fdskl": ["--features", "30", "--gamma", "1", "--regularization", "0.01"],
    "secure-gram": ["--encoding", "fixed-point", "--kernel", "rbf", "--cost", "1"],
    "hierarchical-svm": ["--users", "4", "--rounds", "8"],
}


def write(labels: Any, rows: int = 120) -> np.ndarray:
    """Write a table whose first column says much of the label; return the label of each row."""
    rng = np.random.default_rng(3)
    place = np.arange(rows) % len(labels)
    x = rng.normal(size=(rows, 4))
    x[:, 0] += 3.0 * place
    with Path("t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*"abcd", "kind"])
        writer.writerows([*row, labels[k]] for row, k in zip(x.tolist(), place, strict=True))
    return np.array(labels)[place]


def predictions(path: str = "here/predictions.csv") -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("name", SMALL)
def test_three_classes_of_text_have_their_names(name: str, commands: Any) -> None:
    true = write(WORDS)
    run = [name, "--data", "t.csv", "--label", "kind", *SMALL[name]]
    shown = commands.shown("run", *run, "--out", "here")
    found = json.loads(Path("here/result.json").read_text())
    names, held_out = sorted(WORDS), found["held_out"]
    assert found["config"]["class_names"] == held_out["class_names"] == names
    assert "positive" not in held_out
    for row, cells in zip(names, held_out["confusion"], strict=True):
        taken = (f"{n} as {other}" for n, other in zip(cells, names, strict=True) if n)
        assert f"held-out rows of {row} {', '.join(taken)}" in shown
    commands.shown("predict", "here", "--data", "t.csv")
    made = predictions()
    assert {f"probability_{one}" for one in names} < made[0].keys()
    assert np.mean([row["class"] for row in made] == true) > 0.7
    assert set("|".join(row["set"] for row in made).split("|")) <= {*names, ""}


@pytest.mark.parametrize("name", SMALL)
def test_one_class_is_told_from_the_others_by_its_name(name: str, commands: Any) -> None:
    """Recall and precision are those of the class that was named."""
    spam = WORDS[-1]
    true = write(WORDS) == spam
    run = [name, "--data", "t.csv", "--label", "kind", "--positive", spam, *SMALL[name]]
    shown = commands.shown("run", *run, "--out", "here")
    assert f"positive class {spam}" in shown
    found = json.loads(Path("here/result.json").read_text())
    held_out = found["held_out"]
    assert (held_out["class_names"], held_out["positive"]) == ([f"not {spam}", spam], spam)
    (_, wrong), (missed, right) = held_out["confusion"]
    assert missed + right == pytest.approx(true.mean() * np.sum(held_out["confusion"]), abs=1)
    assert found["metrics"]["test_recall"] == pytest.approx(right / (missed + right))
    assert found["metrics"]["test_precision"] == pytest.approx(right / (wrong + right))
    commands.shown("predict", "here", "--data", "t.csv")
    made = np.array([row["class"] for row in predictions()])
    assert set(made) == {spam, f"not {spam}"}
    assert np.mean((made == spam) == true) > 0.8


def test_a_class_of_numbers_is_named_as_well(commands: Any) -> None:
    write([10, 2000002, 7.0])
    run = ["fed-cg", "--data", "t.csv", "--label", "kind", "--landmarks", "16"]
    found = commands.result(*run)
    assert found["held_out"]["class_names"] == ["7", "10", "2000002"]
    for given in ("2000002", "2000002.0", "2000002.00"):
        found = commands.result(*run, "--positive", given, out=given)
        assert found["held_out"]["positive"] == given
        assert found["held_out"]["class_names"][0] == f"not {given}"
    for wrong in ("8", "spam", "nan"):
        line = commands.complaint("run", *run, "--positive", wrong)
        assert line.endswith("[FK-CLASSES-UNKNOWN]")


def test_a_class_without_rows_has_no_number() -> None:
    """Labels and names stay together where all rows of a class are left out."""
    write(WORDS)
    lines = Path("t.csv").read_text().splitlines()
    kept = [line.replace(line.split(",")[1], "") if "eggs" in line else line for line in lines]
    Path("t.csv").write_text("\n".join(kept))
    data = VerticalData(VerticalSettings("t.csv", label="kind", missing="drop-row"))
    split = data.split(0)
    assert split.classes == (0.0, 1.0)
    assert split.class_names == ("[b]spam[/b]", "ham")
    assert set(split.y) == {0.0, 1.0}


@pytest.mark.parametrize("method", ["fed-cg", "fdskl"])
def test_what_nodes_write_has_the_names(method: str) -> None:
    from flwr.clientapp import ClientApp

    from fedkern_flwr.simulations.engines import InProcessGrid

    true = write(WORDS)
    how: Any = {"data": "t.csv", "label": "kind"}
    data: Any = HybridData(HybridSettings(**how))
    strategy: Any = FedCG(landmarks=16, seed=0)
    if method == "fdskl":
        data, strategy = VerticalData(VerticalSettings(**how)), FDSKL(features=30, seed=0)
    make = data.client_fn(strategy)
    app = ClientApp(lambda context: make(context).to_client())
    strategy.start(InProcessGrid(app, data.nodes(strategy)), **data.start())
    made = [
        row for path in data.predictions.glob("partition-*.csv") for row in predictions(str(path))
    ]
    assert len(made) == (~data.split(0).train).sum()
    right = [true[int(row["id"])] == row["class"] for row in made]
    assert np.mean(right) == pytest.approx(strategy.metrics_["test_accuracy"])
    assert {row["class"] for row in made} <= set(WORDS)


def test_of_two_names_the_other_is_not_lost(commands: Any) -> None:
    write(["spam", "ham"])
    run = ["fed-cg", "--data", "t.csv", "--label", "kind", "--landmarks", "16"]
    found = commands.result(*run, "--positive", "ham")
    assert found["held_out"]["class_names"] == ["spam", "ham"]
