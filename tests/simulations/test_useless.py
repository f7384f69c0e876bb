"""A model that is of no use says so: in what a run shows, in its result, and in the report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROWS = 300
FEATURES = np.random.default_rng(5).normal(size=(ROWS, 4))
RARE = np.where(np.arange(ROWS) % 50 == 0, "bad", "good")  # of which features know nothing
NOISE = np.random.default_rng(6).normal(size=ROWS)

ONE_CLASS = "their most frequent class (one class only is predicted)"


def file(tables: Any, label: np.ndarray, folder: Path) -> list[str]:
    columns = dict(zip("abcd", FEATURES.T, strict=True)) | {"y": label}
    return ["--data", tables.write(folder / "t.csv", columns), "--label", "y"]


@pytest.mark.parametrize(
    ("arguments", "label", "simple"),
    [
        ("fed-cg", RARE, ONE_CLASS),
        ("fdskl --features 30", RARE, ONE_CLASS),
        ("hierarchical-svm --users 4", RARE, ONE_CLASS),
        ("secure-gram --encoding fixed-point", RARE, ONE_CLASS),
        ("fdskl --features 30 --gamma 9 --regularization 1e-6", NOISE, "their mean"),
        ("pof-mkl --clients 3 --rounds 40", NOISE, "the mean of all labels"),
    ],
)
def test_a_useless_model_says_so(
    arguments: str, label: Any, simple: str, in_tmp: Path, tables: Any, commands: Any
) -> None:
    shown = commands.shown("run", *arguments.split(), *file(tables, label, in_tmp), "--out", "o")
    assert f"predicts no better than {simple}" in shown
    found = json.loads(Path("o/result.json").read_text())
    assert found["no_better_than"] == simple
    if simple == ONE_CLASS:
        most = found["metrics"]["test_most_frequent"]
        assert most == found["metrics"]["test_accuracy"] > 0.9
        assert re.search(rf"of the most frequent class +{most:.4f}", shown)


@pytest.mark.parametrize("method", ["fed-cg", "fdskl", "hierarchical-svm", "pof-mkl"])
def test_a_model_that_learns_says_nothing(method: str, finished: Any) -> None:
    done = finished(method)
    assert "no_better_than" not in done.result
    assert "no better than" not in done.shown


def test_ranking_no_better_than_what_is_popular_is_said(commands: Any, finished: Any) -> None:
    learner = ("--learner", "cf-komd", "--regularization", "0.1")
    found = finished(*commands.small("fed-cfk"), *learner).result
    assert found["metrics"]["auc"] < 0.5
    assert found["no_better_than"] == "the most popular items"


def test_of_an_online_method_the_rows_that_are_held_out_are_judged(
    in_tmp: Path, tables: Any, commands: Any
) -> None:
    """The errors of the first samples, before anything was learned, do not count then."""
    x = np.random.default_rng(1).random((ROWS, 2))
    y = 1.0 - np.exp(-4.0 * x[:, 0])
    tables.write(in_tmp / "t.csv", {"a": x[:, 0], "b": x[:, 1], "y": y})
    own = ["local-only", "--data", "t.csv", "--label", "y", "--clients", "3", "--rounds", "20"]
    shown = commands.shown("run", *own, "--test-size", "0.5", "--out", "o")
    metrics = json.loads(Path("o/result.json").read_text())["metrics"]
    assert metrics["test_mse"] < y.var() < metrics["mse"]
    assert "no better than" not in shown
