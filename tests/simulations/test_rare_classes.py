"""What a run says of its model: classes never found or of no use, not converged, and their names.

Classes have names from end to end: options, figures, what nodes write, predictions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.svm import SVC
from sklearn.utils.class_weight import compute_sample_weight

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.simulations.methods import gram
from fedkern_flwr.simulations.methods.gram import Machine
from fedkern_flwr.simulations.methods.vertical import VerticalData, VerticalSettings
from fedkern_flwr.strategies import FedCG

pytestmark = pytest.mark.usefixtures("in_tmp")

BALANCED = ("--class-weight", "balanced")


def rare(rows: int = 600, few: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two clouds that overlap, one of them of few rows."""
    rng = np.random.default_rng(3)
    y = np.zeros(rows)
    y[rng.permutation(rows)[:few]] = 1.0
    return rng.normal(size=(rows, 4)) + 1.0 * y[:, None], y


@pytest.mark.parametrize(("method", "difference"), [
    ("fed-cg", 1e-5), ("fdskl --features 60 --gamma 0.2 --regularization 1e-2", 1e-3),
    ("secure-gram --encoding fixed-point", 1e-2), ("hierarchical-svm --users 4 --C 1", None),
])  # fmt: skip
def test_rare_rows_are_found_where_classes_are_balanced_and_said_where_not(
    method: str, difference: float | None, in_tmp: Path, tables: Any, commands: Any
) -> None:
    x, y = rare()
    label = np.where(y > 0, "fraud", "fine")
    path = tables.write(in_tmp / "t.csv", dict(zip("abcd", x.T, strict=True)) | {"y": label})
    found = []
    for more in ((), BALANCED):
        options = ["--data", path, "--label", "y", *more, "--force", "--out", "o"]
        shown = commands.shown("run", *method.split(), *options)
        found.append(json.loads(Path("o/result.json").read_text()))
        useless = f"predicts no better than {found[0]['no_better_than']}" in shown
        told = "classes never found" in shown
        assert told == useless == (not more) == ("--class-weight balanced" in shown)
    plain, weighed = found
    metrics = plain["metrics"]
    assert (plain["never_found"], metrics["test_recall"]) == (1, 0.0)
    assert metrics["test_most_frequent"] == metrics["test_accuracy"] > 0.9
    assert "never_found" not in weighed
    assert "no_better_than" not in weighed
    assert weighed["metrics"]["test_recall"] >= 0.6
    assert weighed["metrics"]["test_balanced_accuracy"] > 0.75
    assert weighed["exchanges"] == plain["exchanges"] or method.startswith("hierarchical")
    sums = [[one["name"] for one in run["privacy"].get("sums", [])] for run in found]
    counted = method == "fed-cg"
    assert ["class counts" in names for names in sums] == [False, counted]
    seen = [" ".join(run["privacy"]["server_sees"]) for run in found]
    assert "rows each class has" not in seen[0]
    assert "rows each class has" in seen[1] or not counted
    if difference is not None:  # to the same machine, weighed, on pooled rows
        assert weighed["metrics"]["centralised_difference"] < difference


@pytest.mark.parametrize("learner", ["svc", "ridge"])
def test_a_balanced_machine_is_scikit_learns(learner: str) -> None:
    x, y = rare(200)
    kernel = np.exp(-0.3 * ((x[:, None] - x) ** 2).sum(axis=2))
    machine = Machine(DotKernel("linear"), 1, learner, 0.5, (0.0, 1.0), balanced=True)
    found = machine.outputs(kernel, y, kernel)[:, 0]
    if learner == "svc":
        right = SVC(kernel="precomputed", C=0.5, class_weight="balanced", tol=1e-6).fit(kernel, y)
        np.testing.assert_allclose(found, right.decision_function(kernel), atol=1e-3)
        return
    weights, targets = compute_sample_weight("balanced", y), np.where(y > 0, 1.0, -1.0)
    dual = np.linalg.solve(kernel * weights[:, None] + 0.5 * 200 * np.eye(200), weights * targets)
    np.testing.assert_allclose(found, kernel @ dual, atol=1e-10)


ROWS = 200
DRAWN = np.random.default_rng(5)
FEATURES = DRAWN.normal(size=(ROWS, 4))
CLASSES = np.where(DRAWN.random(ROWS) < 0.5, "yes", "no")  # of which the features know nothing
RARE = np.where(np.arange(ROWS) % 50 == 0, "bad", "good")
NOISE = DRAWN.normal(size=ROWS)

SVM = "hierarchical-svm --users 4 --C 1 --rounds"
TOO_FEW: dict[str, Any] = {
    f"{SVM} 3": CLASSES, f"{SVM} 3 --groups 2": CLASSES, f"{SVM} 3 --staleness 2": CLASSES,
    f"{SVM} 2 --partition vertical --id id": CLASSES,
    "fed-cg --solver cg --preconditioner-rank 0 --id id": CLASSES,
    "fdskl --schedule streaming --rounds 5 --id id": RARE,
    "secure-gram --encoding fixed-point --id id --kernel linear --cost 1e4": CLASSES,
    **{f"{name} --clients 3 --rounds 40": NOISE for name in ("pof-rls", "per-fed-avg")},
}  # fmt: skip
#: How each says in its table that it did not converge.
ROWS_OF = ("not converged", "converged no")


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what has no option for it take few steps."""
    monkeypatch.setattr(FedCG, "default_rounds", 2)
    monkeypatch.setattr(gram, "STEPS", 1)
    monkeypatch.setattr(gram, "STEPS_A_ROW", 1)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("arguments", TOO_FEW)
def test_what_has_not_converged_says_so_once_and_goes_on(
    arguments: str, in_tmp: Path, tables: Any, commands: Any
) -> None:
    columns = dict(zip("abcd", FEATURES.T, strict=True)) | {"y": TOO_FEW[arguments]}
    file = tables.write(in_tmp / "t.csv", {"id": [f"r{k}" for k in range(ROWS)], **columns})
    given = (*arguments.split(), "--data", file, "--label", "y", "--out", "o")
    code, table, err = commands("run", *given)
    line, table = " ".join(err.split()), " ".join(table.split())
    assert code == 0, line
    assert line.count("not converged") == 1
    assert sum(table.count(text) for text in ROWS_OF) == 1, table
    assert json.loads(Path("o/result.json").read_text())["metrics"]["converged"] is False


@pytest.mark.parametrize(
    "case",
    ["hierarchical-svm", "pof-mkl", "pof-rls", "fed-cg --data iris --positive 2 --solver cg"],
)
def test_what_has_converged_says_nothing(case: str, finished: Any) -> None:
    done = finished(*case.split())
    assert done.result["metrics"]["converged"] is True
    assert "converged" not in done.shown


WORDS = ("eggs", "ham", "[b]spam[/b]")
SMALL = {
    "fed-cg": ["--landmarks", "16"],
    "fdskl": ["--features", "30", "--gamma", "1", "--regularization", "0.01"],
    "secure-gram": ["--encoding", "fixed-point", "--kernel", "rbf", "--cost", "1"],
    "hierarchical-svm": ["--users", "4", "--rounds", "8"],
}


def write(tables: Any, labels: Any, rows: int = 120) -> np.ndarray:
    """Write a table whose first column says much of the label; return the label of each row."""
    place = np.arange(rows) % len(labels)
    x = np.random.default_rng(3).normal(size=(rows, 4))
    x[:, 0] += 3.0 * place
    named = np.array(labels, object)[place]
    tables.write("t.csv", dict(zip("abcd", x.T, strict=True)) | {"kind": named})
    return named


@pytest.mark.parametrize(("name", "spam"), [
    ("fdskl", ""), ("secure-gram", ""), ("fed-cg", WORDS[-1]), ("hierarchical-svm", WORDS[-1]),
])  # fmt: skip
def test_classes_of_text_have_their_names(name: str, spam: str, tables: Any, commands: Any) -> None:
    """One may be told from the others: recall and precision are those of the class so named."""
    true = write(tables, WORDS)
    positive, names = ["--positive", spam] if spam else [], sorted(WORDS)
    if spam:
        true, names = np.where(true == spam, spam, f"not {spam}"), [f"not {spam}", spam]
    run = [name, "--data", "t.csv", "--label", "kind", *positive, *SMALL[name]]
    shown = commands.shown("run", *run, "--out", "here")
    found = json.loads(Path("here/result.json").read_text())
    held_out, metrics = found["held_out"], found["metrics"]
    assert (held_out["class_names"], held_out.get("positive", "")) == (names, spam)
    assert f"positive class {spam}" in shown or not spam
    for row, cells in zip(names, held_out["confusion"], strict=True):
        assert f"{row} {' '.join(map(str, cells))}" in shown
    if spam:
        (_, wrong), (missed, right) = held_out["confusion"]
        share = (true == spam).mean() * np.sum(held_out["confusion"])
        assert missed + right == pytest.approx(share, abs=1)
        assert metrics["test_recall"] == pytest.approx(right / (missed + right))
        assert metrics["test_precision"] == pytest.approx(right / (wrong + right))
    commands.shown("predict", "here", "--data", "t.csv")
    made = tables.read("here/predictions.csv")
    assert np.mean([row["class"] for row in made] == true) > (0.8 if spam else 0.7)
    assert {row["class"] for row in made} <= {*names}
    assert {f"probability_{one}" for one in names} < made[0].keys()
    assert set("|".join(row["set"] for row in made).split("|")) <= {*names, ""}


def test_a_class_of_numbers_is_named_as_well(tables: Any, commands: Any) -> None:
    write(tables, [10, 2000002, 7.0])
    run = ["fed-cg", "--data", "t.csv", "--label", "kind", "--landmarks", "16"]
    found = commands.result(*run)
    assert found["held_out"]["class_names"] == ["7", "10", "2000002"]
    for given in ("2000002", "2000002.0", "2000002.00"):
        found = commands.result(*run, "--positive", given, out=given)
        assert found["held_out"]["positive"] == given
        assert found["held_out"]["class_names"][0] == f"not {given}"
    for wrong in ("8", "spam", "nan"):
        told = commands.complaint("run", *run, "--positive", wrong)
        assert told.endswith("[FK-CLASSES-UNKNOWN]")
        assert "7, 10, 2000002" in told


def test_a_class_without_rows_has_no_number(tables: Any) -> None:
    """Labels and names stay together where all rows of a class are left out."""
    write(tables, WORDS)
    lines = Path("t.csv").read_text().splitlines()
    kept = [line.replace(line.split(",")[1], "") if "eggs" in line else line for line in lines]
    Path("t.csv").write_text("\n".join(kept))
    data = VerticalData(VerticalSettings("t.csv", label="kind", missing="drop-row"))
    split = data.split(0)
    assert split.classes == (0.0, 1.0)
    assert split.class_names == ("[b]spam[/b]", "ham")
    assert set(split.y) == {0.0, 1.0}


def test_of_two_names_the_other_is_not_lost(tables: Any, commands: Any) -> None:
    write(tables, ["spam", "ham"])
    run = ["fed-cg", "--data", "t.csv", "--label", "kind", "--landmarks", "16"]
    found = commands.result(*run, "--positive", "ham")
    assert found["held_out"]["class_names"] == ["spam", "ham"]


@pytest.mark.parametrize(
    "arguments",
    ["fdskl --features 30 --gamma 9 --regularization 1e-6", "pof-mkl --clients 3 --rounds 40"],
)
def test_numbers_that_nothing_explains_are_predicted_no_better_than_by_their_mean(
    arguments: str, tables: Any, commands: Any, finished: Any
) -> None:
    tables.write("t.csv", dict(zip("abcd", FEATURES.T, strict=True)) | {"y": NOISE})
    options = ["--data", "t.csv", "--label", "y", "--out", "o"]
    shown = commands.shown("run", *arguments.split(), *options)
    found = json.loads(Path("o/result.json").read_text())
    assert f"predicts no better than {found['no_better_than']}" in shown
    assert "no_better_than" not in finished(arguments.split()[0]).result
