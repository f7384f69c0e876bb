"""A class of few rows: that it is never found is said, and balanced classes are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.svm import SVC
from sklearn.utils.class_weight import compute_sample_weight

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.labels import balanced_weights, class_counts, encode_classes
from fedkern_flwr.simulations.methods.gram_learner import Machine
from fedkern_flwr.vertical import phase_training
from fedkern_flwr.vertical.phase_training import fit
from fedkern_flwr.vertical.phases import angles, outputs

BALANCED = ("--class-weight", "balanced")


def rare(rows: int = 600, few: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of two clouds that overlap, one of them of few rows."""
    rng = np.random.default_rng(3)
    y = np.zeros(rows)
    y[rng.permutation(rows)[:few]] = 1.0
    return rng.normal(size=(rows, 4)) + 1.0 * y[:, None], y


@pytest.mark.promise("classes-never-found")
@pytest.mark.parametrize(
    ("method", "difference"),
    [
        ("fed-cg", 1e-5),
        ("fdskl --features 60 --gamma 0.2 --regularization 1e-2", 1e-3),
        ("secure-gram --encoding fixed-point", 1e-2),
        ("hierarchical-svm --users 4", None),
    ],
)
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
        told = "classes never found" in shown
        assert told == (not more) == ("--class-weight balanced" in shown)
    plain, weighed = found
    assert (plain["never_found"], plain["metrics"]["test_recall"]) == (1, 0.0)
    assert "never_found" not in weighed
    assert "no_better_than" not in weighed
    assert weighed["metrics"]["test_recall"] >= 0.6
    assert weighed["metrics"]["test_balanced_accuracy"] > 0.75
    assert weighed["exchanges"] == plain["exchanges"] or method.startswith("hierarchical")
    sums = [[one["name"] for one in run["privacy"].get("sums", [])] for run in found]
    counted = method == "fed-cg"
    assert ["class counts" in names for names in sums] == [False, counted]
    seen = [" ".join(run["privacy"]["server_sees"]) for run in found]
    assert ["rows each class has" in text for text in seen][: 1 + counted] == [False, True][
        : 1 + counted
    ]
    if difference is not None:  # to the same machine, weighed, on pooled rows
        assert weighed["metrics"]["centralised_difference"] < difference


@pytest.mark.parametrize(
    "method", ["fed-cg", "fdskl", "secure-gram --encoding fixed-point", "hierarchical-svm"]
)
def test_numbers_have_no_classes_to_balance(
    method: str, in_tmp: Path, tables: Any, commands: Any
) -> None:
    x, _ = rare(60)
    columns = dict(zip("abcd", x.T, strict=True)) | {"y": x.sum(axis=1)}
    path = tables.write(in_tmp / "t.csv", columns)
    more = ("--model", "ridge") if method == "hierarchical-svm" else ()
    options = ["--data", path, "--label", "y", *BALANCED, *more, "--out", "o"]
    line = commands.complaint("run", *method.split(), *options)
    assert line.endswith("[FK-WEIGHTS-NUMBERS]")


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_a_balanced_model_on_phases_is_scikit_learns(dtype: type) -> None:
    x, y = rare(300)
    rng = np.random.default_rng(1)
    turns = (x @ rng.standard_normal((4, 30)) * 0.7) / (2 * np.pi) + rng.random(30)
    size = int(np.iinfo(dtype).max) + 1
    phases = (np.floor((turns % 1.0) * size).astype(np.int64) % size).astype(dtype)
    z = np.sqrt(2 / 30) * np.cos(angles(phases))
    targets = encode_classes(y, (0.0, 1.0), "")
    weights = balanced_weights(targets, class_counts(targets))
    one = {"classes": 2, "seed": 0, "multiples": [1], "weights": weights}
    chosen = fit("square", phases, targets, regularizations=[1e-2], **one)
    ridge = RidgeClassifier(alpha=1e-2 * 300 / 2, fit_intercept=False, class_weight="balanced")
    right = ridge.fit(z, y).decision_function(z)
    np.testing.assert_allclose(outputs(phases, chosen.weights)[:, 0], right, atol=2e-3)
    several = fit("smooth-hinge", phases, targets, **one)
    share = ((outputs(phases, several.weights)[:, 0] > 0) == (y > 0))[y > 0].mean()
    assert share > 0.6
    # scores of the choice count classes alike: to find one of two is half
    assert phase_training._score(-np.ones((300, 1)), targets, 2, weights) == pytest.approx(0.5)


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
