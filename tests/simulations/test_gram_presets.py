"""Secure Gram and FedCFK in comparisons: presets on ratings, and the machine that is tuned on K."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import make_scorer, mean_squared_error
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC, SVR

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.methods.gram_learner import choose_machine

USERS, ITEMS = 72, 30


@pytest.fixture
def movies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tastes, so that there is something to recommend."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(ITEMS)[None] % 2
    rated = rng.random((USERS, ITEMS)) < np.where(taste, 0.7, 0.15)
    rows = [
        (u + 1, i + 1, 3 + int(taste[u, i]) + int(rng.integers(2)), int(rng.integers(10**6)))
        for u, i in np.argwhere(rated).tolist()
    ]
    for name, separator in (("ml-100k/u.data", "\t"), ("ml-1m/ratings.dat", "::")):
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
    monkeypatch.setenv("FEDKERN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["compare", *arguments, "--json", "-", "--quiet", "--out", "here"]) == 0
    return dict(json.loads(capsys.readouterr().out)["datasets"])


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 2])
def test_tables_compare_participation_with_pooled_data(
    number: int, movies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, f"fed-cfk-table{number}", "--runs", "1")
    assert len(found) == 2
    for dataset in found.values():
        methods = {label: summary["metrics"] for label, summary in dataset["methods"].items()}
        assert list(methods) == ["pooled", "100 %", "90 %", "70 %", "50 %", "30 %"]
        assert methods.pop("pooled")["auc"] > 0.6
        assert all(metrics["centralised_difference"] < 1e-9 for metrics in methods.values())
        assert methods["100 %"]["rows"] == USERS
        if number == 1:  # nodes of 60 users are but two here
            assert methods["30 %"]["rows"] < USERS
    assert len(list(Path("here/plots").glob("*participation.png"))) == 2
    assert "0.808" in Path("here/report.html").read_text() or number == 2


def test_rounds_of_random_users_come_near_only_if_they_add_up(
    movies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset,) = compared(capsys, "fed-cfk-figure1").values()
    final = {k: v["metrics"]["kernel_error"] for k, v in dataset["methods"].items()}
    assert final["disjoint, 50 %"] == 0.0 < final["max, 50 %"]
    assert final["max, 10 %"] > final["max, 50 %"]
    assert dataset["methods"]["disjoint, 50 %"]["metrics"]["exact_from"] < 40
    assert Path("here/plots/ml-100k-kernel-error.png").is_file()


WIDTHS, COSTS = (0.25, 1.0, 4.0, 16.0), (1.0, 10.0, 100.0)


def problem(load: Any, rows: int) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    x, y = load(return_X_y=True)
    chosen = np.random.default_rng(3).permutation(len(x))[:rows]
    x, y = MinMaxScaler().fit_transform(x[chosen]), y[chosen].astype(float)
    if load is load_diabetes:
        return x, (y - y.mean()) / np.abs(y - y.mean()).max(), ()
    return x, y, tuple(np.unique(y).tolist())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "load", [pytest.param(load_breast_cancer, marks=pytest.mark.long), load_wine, load_diabetes]
)
def test_the_cell_is_the_one_that_grid_search_chooses(load: Any, seed: int) -> None:
    """Of cells that are as good as each other the first: narrow kernels last, small C first."""
    x, y, classes = problem(load, 150)
    gram = x @ x.T
    found = choose_machine(
        gram, x.shape[1], y, DotKernel("rbf"), classes,
        learner="svc", gamma=None, cost=None, seed=seed,
    )  # fmt: skip
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(y))
    fold = np.empty(len(y), int)
    fold[order] = np.arange(len(y)) // 30
    spread = float(np.square(x - x.mean(axis=0)).sum() / len(x))
    grid = {"gamma": [width / spread for width in WIDTHS], "C": list(COSTS)}
    machine: Any = SVC(tol=1e-5) if classes else SVR(epsilon=0.01, tol=1e-5)
    score = "accuracy" if classes else make_scorer(mean_squared_error, greater_is_better=False)
    search = GridSearchCV(machine, grid, scoring=score, cv=PredefinedSplit(fold)).fit(x, y)
    cells = {
        (round(cell["gamma"] * spread, 6), cell["C"]): mean
        for cell, mean in zip(
            search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
        )
    }
    best = max(cells.values())
    first = next(c for c in sorted(cells) if cells[c] == pytest.approx(best, abs=1e-9))
    assert (round(found.kernel.gamma * spread, 6), found.cost) == first
    assert len(set(cells.values())) > 1
