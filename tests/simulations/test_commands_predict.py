"""`fedkern predict`: what a run found of held-out rows, it finds of the same rows in a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkern_flwr
from fedkern_flwr.judging.calibration import Calibration
from fedkern_flwr.model_file import load_model

pytestmark = pytest.mark.usefixtures("in_tmp")
NAMES = list("abcde")
LABELS = {
    "two classes": lambda x: (x.sum(axis=1) > 250.0) * 1.0,
    "three classes": lambda x: (x.sum(axis=1) > 250.0) * 1.0 + (x[:, 0] > 70.0),
    "numbers": lambda x: 1000.0 + np.sin(x[:, 0] / 20.0) + 3.0 * x[:, 1] - x[:, 2],
}


def given_split(labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Write a table with held-out rows of its own, return these."""
    x = np.random.default_rng(3).normal(50.0, 20.0, (110, 5))
    y = LABELS[labels](x)
    np.savez("t.npz", X=x[:80], y=y[:80], X_test=x[80:], y_test=y[80:], feature_names=NAMES)
    return x[80:], y[80:]


GRAM = "--encoding fixed-point --fraction-bits 28 --kernel rbf --gamma 1.5 --cost 10"
SVM = "--users 4 --rounds 15"
#: Method, options, labels.
RUNS = [
    ("fed-cg", "--landmarks 20", "three classes"),
    ("fed-cg", "--landmarks 20 --kernel laplacian --no-own-block", "two classes"),
    ("fed-cg", "--landmarks 20 --sampling N --gamma 0.3", "numbers"),
    ("fdskl", "--features 60 --kernel laplacian --phase-bits 16", "two classes"),
    ("fdskl", "--schedule streaming --rounds 20 --active-parties 2", "numbers"),
    ("secure-gram", f"{GRAM} --learner ridge", "three classes"),
    ("hierarchical-svm", f"{SVM} --model rbf --features 30 --gamma 0.001", "two classes"),
    ("hierarchical-svm", f"{SVM} --partition vertical --model ridge", "numbers"),
]


@pytest.mark.parametrize(("name", "options", "labels"), RUNS)
def test_predictions_of_a_file_are_those_of_the_run(name, options, labels, tables, commands):
    """Columns in another order, one more of them, a row beyond the range and one with a gap.

    The gap is filled with the median of the rows to learn from. The table is gone, the folder is
    elsewhere, and what the simulated nodes kept is erased.
    """
    x, y = given_split(labels)
    found = commands.result(name, "--data", "t.npz", *options.split())
    with np.load("t.npz") as data:
        most, median = data["X"].max(axis=0), np.median(data["X"], axis=0)
    gap, filled = (np.where(np.arange(5) == 1, fill, most) for fill in (np.nan, median))
    rows = np.vstack([x, most, most + 1000.0, gap, filled])
    columns = {"note": range(34), "id": [f"r{k}" for k in range(34)]}
    tables.write("new.csv", columns | {n: rows[:, k] for k, n in reversed(list(enumerate(NAMES)))})
    Path("t.npz").unlink()
    shutil.rmtree("here/private_state")
    Path("here").rename("moved")
    commands.shown("predict", "--force", "moved/model.npz", "--data", "new.csv", "--id", "id")
    made = tables.read("moved/predictions.csv")
    classes = {"two classes": ["output_0"], "three classes": [f"output_{k}" for k in range(3)]}
    heads = ["class", *classes[labels]] if labels in classes else ["prediction"]
    known = [f"probability_{k}" for k in range(len(set(y)))] if labels in classes else []
    assert list(made[0]) == ["id", *heads, *(["low", "high"] if not known else [*known, "set"])]
    assert [row["id"] for row in made] == [f"r{k}" for k in range(34)]
    values = np.array([[float(row[head]) for head in heads] for row in made])
    model = fedkern_flwr.load_model("moved")
    np.testing.assert_array_equal(model.predict(rows), values[:, 0])
    np.testing.assert_allclose(values[[30, 32]], values[[31, 33]], rtol=0.0, atol=1e-12)
    fitted = Calibration.read(found["held_out"]["fitted"], max(1, len(heads) - 1))
    if labels in classes:
        assert np.mean(values[:30, 0] == y) == pytest.approx(found["metrics"]["test_accuracy"])
        shares = np.array([[float(row[name]) for name in known] for row in made])
        np.testing.assert_allclose(shares, fitted.probabilities(values[:, 1:]), atol=1e-12)
    else:
        ends = np.array([[float(row[end]) for end in ("low", "high")] for row in made])
        width = found["metrics"]["test_interval_width"]
        np.testing.assert_allclose(np.diff(ends), width, rtol=1e-9)
        error = np.sqrt(np.mean((values[:30, 0] - y) ** 2))
        assert error == pytest.approx(found["metrics"]["test_rmse"], rel=1e-4)  # float32 cosines


@pytest.mark.parametrize(("name", "options"), [("fed-cg", "--landmarks 20"), ("secure-gram", GRAM)])
def test_rows_with_gaps_are_left_out_where_they_are_not_encoded(name, options, tables, commands):
    x, _ = given_split("two classes")
    more = ["--missing", "error", "--scaling", "range"]
    commands.result(name, "--data", "t.npz", *options.split(), *more)
    x[3, 1] = np.nan
    tables.write("new.csv", {n: x[:, k] for k, n in enumerate(NAMES)})
    commands.shown("predict", "--force", "here", "--data", "new.csv")
    assert len(tables.read("here/predictions.csv")) == 29
    tables.write("empty.csv", {n: [np.nan] * 2 for n in NAMES})
    line = commands.complaint("predict", "--force", "here", "--data", "empty.csv")
    assert line.endswith("[FK-VALUES-NOROW]")


@pytest.mark.parametrize("name", ["fed-cg", "fed-cfk", "pof-mkl"])
def test_what_cannot_be_predicted_is_one_line(name, finished, tables, commands):
    here = str(finished(name).folder)
    tables.write("few.csv", {"who": [1, 2], "what": [900, 901]})
    for words, codes in (
        (["--data", "few.csv"], ("COLUMN-MISSING", "PREDICT-METHOD", "ITEMS-NONE")),
        (["--data", "gone.csv"], ("FILE-READ",)),
        (["--data", "few.csv", "--out", "no/such.csv"], ("FILE-WRITE",)),
    ):
        line = commands.complaint("predict", here, *words)
        assert line.endswith(tuple(f"[FK-{code}]" for code in codes))


def test_foreign_models_are_refused(tables, commands):
    commands.result(*commands.small("hierarchical-svm"), "--rounds", "5")
    names = json.loads(Path("here/scaling.json").read_text())["columns"]
    tables.write("new.csv", {name: [float(k)] for k, name in enumerate(names)})
    predict = ["predict", "--force", "here", "--data", "new.csv"]
    commands.shown(*predict)
    assert commands.complaint(*predict, "--client", "0").endswith("[FK-MODEL-CLIENT]")
    config = Path("here/config.json")
    config.write_text(config.read_text().replace("hierarchical-svm", "fdskl"))
    assert commands.complaint(*predict).endswith("[FK-MODEL-OTHER]")


# --- Recommendations ------------------------------------------------------------------------


def test_recommendations_for_users_of_a_file(stars, tables, commands):
    """Users of the run get from `predict` what their own nodes recommended."""
    commands.result(*commands.small("fed-cfk"), "--test-size", "0")
    folder = Path("here/private_state/recommendations")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"partition-{k}.csv" for k in range(6)
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    own = [row for path in folder.iterdir() for row in tables.read(path)]
    assert {row["user"] for row in own} == {str(u + 1) for u in range(24)}
    commands.shown("predict", "here", "--data", str(commands.ratings), "--out", "p.csv")
    assert sorted(map(str, tables.read("p.csv"))) == sorted(map(str, own))
    strangers = stars[:3].copy()
    strangers[1:] = 0
    strangers[2, 5] = 4  # an item that is not in the kernel
    strangers[1, [0, 1]] = 5
    few = (stars > 0)[:, 5].sum() < 3
    for path in ("new.csv", "new.data"):
        tables.ratings(path, strangers)
        commands.shown("predict", "--force", "here/model.npz", "--data", path)
        rows = tables.read("here/predictions.csv")
        assert {row["user"] for row in rows} == {"1", "2"} | (set() if few else {"3"})
        assert [r for r in rows if r["user"] == "1"] == [r for r in own if r["user"] == "1"]


@pytest.fixture
def rated(commands: Any, in_tmp: Path) -> set[str]:
    """Run FedCFK on ratings of 3 and more; return the items of its kernel."""
    commands.result(*commands.small("fed-cfk"), "--rating", "stars", "--min-rating", "3")
    return {str(i + 1) for i in load_model(Path("here/model.npz"))[0]["items"].tolist()}


def test_recommendations_for_a_single_user_who_rated_unknown_items(rated, tables, commands):
    """Neither what the user rated, if badly, nor what is not in the kernel is recommended."""
    assert {"1", "2"} < rated
    ratings = {"1": 5, "2": 1, "s3cret-a": 5, "s3cret-b": 1}
    lines = [f"{r},{i},x,s3cret-user,monday" for i, r in ratings.items()]
    Path("new.csv").write_text("\n".join(["stars,what,note,who,when", *lines]))
    text = commands.shown("predict", "--force", "here", "--data", "new.csv")
    assert "s3cret" not in text
    rows = tables.read("here/predictions.csv")
    assert {row["user"] for row in rows} == {"s3cret-user"}
    assert {row["item"] for row in rows} == rated - {"1", "2"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))


@pytest.mark.usefixtures("rated")
def test_ratings_to_predict_for_have_the_columns_of_the_run(commands):
    for content, code in (
        ("user,item,stars\n1,1,5\n", "FK-COLUMN-MISSING"),
        ("who,what\n1,1\n", "FK-COLUMN-MISSING"),
        ("who,what,stars\n", "FK-ROWS-NONE"),
        ("who,what,stars\n1,1,1\n", "FK-ITEMS-NONE"),
    ):
        Path("t.csv").write_text(content)
        line = commands.complaint("predict", "here", "--data", "t.csv")
        assert line.endswith(f"[{code}]"), line
