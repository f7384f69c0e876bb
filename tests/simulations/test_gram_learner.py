"""The coordinator tunes on the kernel as scikit-learn does on the features."""

from __future__ import annotations

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
from fedkern_flwr.simulations.methods.gram_learner import choose_machine

WIDTHS, COSTS = (0.25, 1.0, 4.0, 16.0), (1.0, 10.0, 100.0)


def problem(load: Any, rows: int) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    x, y = load(return_X_y=True)
    chosen = np.random.default_rng(3).permutation(len(x))[:rows]
    x, y = MinMaxScaler().fit_transform(x[chosen]), y[chosen].astype(float)
    if load is load_diabetes:
        return x, (y - y.mean()) / np.abs(y - y.mean()).max(), ()
    return x, y, tuple(np.unique(y).tolist())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_diabetes])
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
