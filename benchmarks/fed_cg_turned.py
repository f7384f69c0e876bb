"""What turning the landmarks of FedCG costs in accuracy.

    FEDKERN_DATA=... python benchmarks/fed_cg_turned.py [--sets iris wine breast-cancer ionosphere]

Accuracy: 50 landmarks, three blocks, 20 splits, width and regularization by five-fold
cross-validation in each, pooled in NumPy. ``straight`` landmarks are those before the turn.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from common import Record, run_script
from rich.console import Console
from scipy.spatial.distance import cdist
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold, train_test_split

from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed

SPLITS, LANDMARKS, BLOCKS = 20, 50, 3
LAMBDAS, GAMMAS = 10.0 ** np.arange(-5, 2), 2.0 ** np.arange(-6, 3)
METRICS: dict[str, Any] = {"rbf": "sqeuclidean", "laplacian": "cityblock"}
BUILT_IN = {
    "iris": (load_iris, 0),
    "wine": (load_wine, 1),
    "breast-cancer": (load_breast_cancer, 0),
}


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and whether rows are of the positive class."""
    if name in BUILT_IN:
        function, positive = BUILT_IN[name]
        x, y = function(return_X_y=True)
        return x, y == positive
    table: Any = np.load(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz", allow_pickle=True)
    return table["X"].astype(float), table["y"] == np.unique(table["y"])[1]


def solutions(k: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Solve (K^T K + lambda I) a = K^T y for all lambdas."""
    values, vectors = np.linalg.eigh(k.T @ k)
    right = vectors.T @ (k.T @ np.where(y, 1.0, -1.0))
    return [vectors @ (right / (np.maximum(values, 0.0) + lam)) for lam in LAMBDAS]


def accuracy(x: np.ndarray, y: np.ndarray, split: int, kernel: str, sampling: str) -> float:
    """Return the accuracy on the held-out rows of a split."""
    train, test = train_test_split(np.arange(len(x)), test_size=0.3, stratify=y, random_state=split)
    low, high = x[train].min(axis=0), x[train].max(axis=0)
    z = np.clip((x - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    drawn = []
    for number, columns in enumerate(np.array_split(np.arange(x.shape[1]), BLOCKS)):
        own, moments = z[np.ix_(train, columns)], None
        if sampling == "N":
            moments = np.stack([own.mean(axis=0), own.std(axis=0)])
        ranges = np.tile([0.0, 1.0], (len(columns), 1))
        drawn.append(draw_landmarks(public_seed(split, str(number)), LANDMARKS, ranges, moments))
    distances = cdist(z, np.hstack(drawn), METRICS[kernel])
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(train, y[train]))
    right = np.zeros((len(GAMMAS), len(LAMBDAS)))
    for g, gamma in enumerate(GAMMAS):
        k = np.exp(-gamma * distances)
        for fit, check in folds:
            for column, a in enumerate(solutions(k[train[fit]], y[train[fit]])):
                right[g, column] += ((k[train[check]] @ a > 0.0) == y[train[check]]).sum()
    best, chosen = np.unravel_index(right.argmax(), right.shape)
    k = np.exp(-GAMMAS[best] * distances)
    outputs = k[test] @ solutions(k[train], y[train])[chosen]
    return float(((outputs > 0.0) == y[test]).mean())


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print a line per data set, kernel and sampling."""
    records = []
    for name in options.sets[:1] if options.quick else options.sets:
        x, y = load(name)
        for kernel in METRICS:
            for sampling in "UN":
                turned = [accuracy(x, y, s, kernel, sampling) for s in range(SPLITS)]
                with mock.patch("fedkern_flwr.hybrid.landmarks._turn", lambda points, _: points):
                    straight = [accuracy(x, y, s, kernel, sampling) for s in range(SPLITS)]
                change = np.subtract(turned, straight)
                error = change.std(ddof=1) / SPLITS**0.5
                label = f"{name}, {kernel}, {sampling}"
                records.append(Record(label, float(change.mean()), "accuracy, turned - straight"))
                console.print(
                    f"{name:14} {kernel:9} {sampling}  straight {np.mean(straight):.4f}  turned "
                    f"{np.mean(turned):.4f}  change {change.mean():+.4f} +- {error:.4f}",
                )
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        sets=[*BUILT_IN, *(["ionosphere", "sonar"] if "FEDKERN_DATA" in os.environ else [])],
    )
