"""`fedkern predict`: what a run found of held-out rows, it finds of the same rows in a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import MinMaxScaler, QuantileTransformer, StandardScaler

import fedkern_flwr
from fedkern_flwr.judging.calibration import Calibration
from fedkern_flwr.model_file import load_model
from fedkern_flwr.simulations.methods.registry import METHODS

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


STREAM = "--schedule streaming --rounds 20"
VERTICAL = "--partition vertical"
GRAM = "--encoding fixed-point --fraction-bits 28 --kernel rbf --gamma 1.5 --cost 10"
SVM = "--users 4 --rounds 15"
#: Method, options, labels.
RUNS = [
    ("fed-cg", "--landmarks 20", "three classes"),
    ("fed-cg", "--landmarks 20 --solver cg", "numbers"),
    ("fed-cg", "--landmarks 20 --kernel laplacian --no-own-block", "two classes"),
    ("fed-cg", "--landmarks 20 --sampling N --gamma 0.3", "numbers"),
    ("fdskl", "--features 60", "three classes"),
    ("fdskl", "--features 60", "numbers"),
    ("fdskl", "--features 60 --kernel laplacian --phase-bits 16", "two classes"),
    ("fdskl", STREAM, "numbers"),
    ("fdskl", f"{STREAM} --active-parties 2", "numbers"),
    ("secure-gram", GRAM, "two classes"),
    ("secure-gram", GRAM, "three classes"),
    ("secure-gram", GRAM, "numbers"),
    ("secure-gram", f"{GRAM} --learner ridge", "numbers"),
    ("secure-gram", f"{GRAM} --learner ridge", "three classes"),
    ("secure-gram", "--encoding fixed-point", "two classes"),
    ("hierarchical-svm", SVM, "two classes"),
    ("hierarchical-svm", f"{SVM} --model logistic", "three classes"),
    ("hierarchical-svm", f"{SVM} --model rbf --features 30 --gamma 0.001", "two classes"),
    ("hierarchical-svm", f"{SVM} --groups 2", "two classes"),
    ("hierarchical-svm", f"{SVM} {VERTICAL}", "two classes"),
    ("hierarchical-svm", f"{SVM} --model ridge", "numbers"),
    ("hierarchical-svm", f"{SVM} {VERTICAL} --model ridge", "numbers"),
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
    shown = commands.shown(
        "predict", "--force", "moved/model.npz", "--data", "new.csv", "--id", "id"
    )
    assert "34 predictions: moved/predictions.csv" in shown
    assert "left out" not in shown
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
    assert np.std(values[:30, -1]) > 0.0
    fitted = Calibration.read(found["held_out"]["fitted"], max(1, len(heads) - 1))
    if labels in classes:
        assert np.mean(values[:30, 0] == y) == pytest.approx(found["metrics"]["test_accuracy"])
        shares = np.array([[float(row[name]) for name in known] for row in made])
        np.testing.assert_allclose(shares, fitted.probabilities(values[:, 1:]), atol=1e-12)
        chosen = np.array(
            [[str(k) in row["set"].split("|") for k in range(len(known))] for row in made]
        )
        np.testing.assert_array_equal(chosen, fitted.sets(values[:, 1:]))
    else:
        ends = np.array([[float(row[end]) for end in ("low", "high")] for row in made])
        width = found["metrics"]["test_interval_width"]
        np.testing.assert_allclose(np.diff(ends), width, rtol=1e-9)
        np.testing.assert_allclose(ends.mean(axis=1), values[:, 0], rtol=1e-9)
        error = np.sqrt(np.mean((values[:30, 0] - y) ** 2))
        assert error == pytest.approx(found["metrics"]["test_rmse"], rel=1e-4)  # float32 cosines
        assert error < (np.std(y) if name == "hierarchical-svm" else 1500.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fed-cg", "--landmarks 20"),
        ("fdskl", "--features 60"),
        ("secure-gram", GRAM),
        ("hierarchical-svm", SVM),
        ("hierarchical-svm", f"{SVM} {VERTICAL}"),
    ],
)
def test_rows_with_gaps_are_left_out_where_they_are_not_encoded(name, options, tables, commands):
    x, _ = given_split("two classes")
    more = ["--missing", "error", "--scaling", "range"]
    commands.result(name, "--data", "t.npz", *options.split(), *more)
    x[3, 1] = np.nan
    tables.write("new.csv", {n: x[:, k] for k, n in enumerate(NAMES)})
    shown = commands.shown("predict", "--force", "here", "--data", "new.csv")
    assert "29 predictions: here/predictions.csv, 1 left out" in shown
    tables.write("empty.csv", {n: [np.nan] * 2 for n in NAMES})
    line = commands.complaint("predict", "--force", "here", "--data", "empty.csv")
    assert "every row lacks" in line


SCALERS: dict[str, Any] = {
    "range": MinMaxScaler(clip=True),
    "standard": StandardScaler(),
    "rank": QuantileTransformer(n_quantiles=80),
}


@pytest.mark.parametrize("scaling", SCALERS)
def test_predictions_of_a_summed_kernel_are_those_of_scikit_learn(scaling, tables, commands):
    """The same machine on pooled features: rbf kernel and C of the run."""
    from sklearn.svm import SVC

    held, _ = given_split("two classes")
    bound = ["--bound", "8", "--fraction-bits", "20"] if scaling == "standard" else []
    commands.result("secure-gram", "--data", "t.npz", *GRAM.split(), "--scaling", scaling, *bound)
    with np.load("t.npz") as data:
        x, y = data["X"], data["y"]
    scaler = SCALERS[scaling].fit(x)
    x, held_out = scaler.transform(x), scaler.transform(held)
    machine = SVC(kernel="rbf", gamma=1.5, C=10.0, tol=1e-5).fit(x, y)
    tables.write("new.csv", {name: held[:, k] for k, name in enumerate(NAMES)})
    commands.shown("predict", "--force", "here", "--data", "new.csv", "--out", "p.csv")
    ours = [float(row["output_0"]) for row in tables.read("p.csv")]
    expected = machine.decision_function(held_out)
    np.testing.assert_allclose(ours, expected, rtol=0.0, atol=1e-3)  # of LIBSVM


def test_predictions_of_counts(tables, commands):
    rng = np.random.default_rng(4)
    x = rng.integers(0, 4, (90, 6))
    y = 100.0 + x[:, 0] * 3.5 - x[:, 5]
    np.savez("t.npz", X=x[:70], y=y[:70], feature_names=list("abcdef"))
    arguments = ["--data", "t.npz", "--bound", "3", "--learner", "ridge", "--min-support", "0"]
    commands.result("secure-gram", *arguments, "--cost", "0.00001", "--test-size", "0.1")
    tables.write("new.csv", {name: x[70:, k] for k, name in enumerate("abcdef")})
    assert commands("predict", "--force", "here", "--data", "new.csv", "--quiet") == (0, "", "")
    ours = [float(row["prediction"]) for row in tables.read("here/predictions.csv")]
    np.testing.assert_allclose(ours, y[70:], rtol=0.0, atol=25.0)  # no intercept
    assert np.corrcoef(ours, y[70:])[0, 1] > 0.5


# --- What cannot be predicted ---------------------------------------------------------------

WHY = dict.fromkeys(METHODS, "columns of the model, the first is") | {
    "secure-gram": "ratings have no labels to predict; use fedkern run fed-cfk",
    "fed-cfk": "few.csv names no item of the kernel; give ratings of",
}


@pytest.mark.parametrize("name", METHODS)
def test_what_cannot_be_predicted_is_one_line(name, finished, tables, commands):
    here = str(finished(name).folder)
    tables.write("few.csv", {"who": [1, 2], "what": [900, 901]})
    assert WHY[name] in commands.complaint("predict", here, "--data", "few.csv")
    line = commands.complaint("predict", here, "--data", "gone.csv")
    assert "there is no file gone.csv; check the path" in line
    line = commands.complaint("predict", here, "--data", "few.csv", "--out", "no/such.csv")
    assert "--out no/such.csv cannot be written" in line


def test_damaged_and_foreign_models_are_one_line(finished, tables, commands):
    small = [*commands.small("hierarchical-svm"), "--rounds", "5"]
    commands.result(*small)
    names = json.loads(Path("here/scaling.json").read_text())["columns"]
    tables.write("new.csv", {name: [float(k)] for k, name in enumerate(names)})
    commands.shown("predict", "--force", "here", "--data", "new.csv")
    whole, config = Path("here/predictor.npz"), Path("here/config.json")
    line = commands.complaint("predict", "--force", "here", "--data", "new.csv", "--client", "0")
    assert "there is no client 0 with weights of its own; leave it out" in line
    content = whole.read_bytes()
    config.write_text(config.read_text().replace("hierarchical-svm", "fdskl"))
    line = commands.complaint("predict", "--force", "here", "--data", "new.csv")
    assert "here is a run of fdskl with a model of hierarchical-svm; bring back its files" in line
    whole.write_bytes(content[:-30])
    line = commands.complaint("predict", "--force", "here", "--data", "new.csv")
    assert "here/predictor.npz is damaged or not a model" in line
    whole.write_bytes(Path("here/model.npz").read_bytes())
    line = commands.complaint("predict", "--force", "here", "--data", "new.csv")
    assert "here/predictor.npz is the part of a model that a server has; name the folder" in line
    whole.unlink()
    line = commands.complaint("predict", "--force", "here", "--data", "new.csv")
    assert "here has no predictor.npz: no run, one of an older release, or one whose" in line


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
    data = str(commands.ratings)
    assert "24 predictions: p.csv" in commands.shown(
        "predict", "--force", "here", "--data", data, "--out", "p.csv"
    )
    assert sorted(map(str, tables.read("p.csv"))) == sorted(map(str, own))

    strangers = stars[:3].copy()
    strangers[1:] = 0
    strangers[2, 5] = 4  # an item that is not in the kernel
    strangers[1, [0, 1]] = 5
    few = (stars > 0)[:, 5].sum() < 3
    for path in ("new.csv", "new.data"):
        tables.ratings(path, strangers)
        text = commands.shown("predict", "--force", "here/model.npz", "--data", path)
        assert f"{3 - few} predictions: here/predictions.csv" in text
        assert ("1 left out" in text) == few
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
    assert len(rated) < 14
    head = ["stars,what,note,who,when"]
    ratings = {"1": 5, "2": 1, "s3cret-a": 5, "s3cret-b": 1}
    lines = [f"{r},{i},x,s3cret-user,monday" for i, r in ratings.items()]
    Path("new.csv").write_text("\n".join(head + lines))
    text = commands.shown("predict", "--force", "here", "--data", "new.csv")
    assert "left out 2 rows of new.csv that name 2 unknown items" in text
    assert "1 predictions: here/predictions.csv" in text
    assert "s3cret" not in text
    rows = tables.read("here/predictions.csv")
    assert list(rows[0]) == ["user", "rank", "item", "score"]
    assert {row["user"] for row in rows} == {"s3cret-user"}
    assert {row["item"] for row in rows} == rated - {"1", "2"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    more = [f"{r},{i},x,{u},1" for u, i, r in (("b", "1", 2), ("c", "900", 5), ("d", 3, 4))]
    Path("new.csv").write_text("\n".join([*head, "5,1,x,s3cret-user,1", *more]))
    text = commands.shown("predict", "--force", "here", "--data", "new.csv", "--out", "p.csv")
    assert "left out 1 rows of new.csv that name 1 unknown items" in text
    assert "2 predictions: p.csv, 2 left out" in text
    assert {row["user"] for row in tables.read("p.csv")} == {"s3cret-user", "d"}


@pytest.mark.usefixtures("rated")
def test_ratings_to_predict_for_have_the_columns_of_the_run(stars, tables, commands):
    tables.ratings("u.data", stars)
    plain = ["--data", "u.data", "--clients", "6", "--min-support", "3", "--min-rating", "3"]
    commands.result("fed-cfk", *plain, out="plain")
    columns = "give the columns of the run: who, what, stars"
    for folder, name, content, text in (
        ("here", "other.csv", "user,item,stars\n1,1,5\n", f"has no user column 'who'; {columns}"),
        ("here", "unrated.csv", "who,what\n1,1\n", "has no rating column 'stars'; give the"),
        ("here", "id.csv", "who,what,stars\n1,1,5\n", "ratings have no ids of records; leave out"),
        ("plain", "who.csv", "who,what,stars\n1,1,5\n", "has no columns that may be the user;"),
        ("plain", "u.inter", "session:token\titem_id:token\n1\t1\n", "that may be the user; give"),
        ("plain", "two.csv", "user,item\n1,1\n", "has no ratings, the run counts those of at"),
        ("plain", "low.csv", "user,item,rating\n1,1,2\n", "rates no item of the kernel 3 or more"),
        ("plain", "head.csv", "user,item,rating\n", "head.csv has no rows; give a file with data"),
    ):
        Path(name).write_text(content)
        by_id = ["--id", "who"] if name == "id.csv" else []
        line = commands.complaint("predict", folder, "--data", name, *by_id)
        assert text in line
        assert "--" not in line or by_id
