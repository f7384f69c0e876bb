"""What FedCG gets without a number chosen, beside the pooled kernel method that was tuned.

    FEDKERN_DATA=... python benchmarks/tuning.py [--sets iris wine digits] [--splits 10]

Two hospitals and two centres in process, columns dealt in order, at most 4,000 training and 2,000
held-out rows, drawn anew in each split: accuracy, or the error of a regression. ``before`` are 100
uniform landmarks, gamma 1 / d and lambda 1e-3; ``tuned`` chooses gamma and lambda; ``rank`` has
mid-ranks of the training rows instead of ranges. The pooled method is scikit-learn's SVC or
KernelRidge on the same columns, width and penalty by three-fold cross-validation on at most 1,500
of the same rows, then fitted to all of them.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, run_script
from flwr.app import Context
from rich.console import Console
from sklearn import datasets
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import FedCG

Floats = np.ndarray
BUILT_IN = {"iris": "iris", "wine": "wine", "digits": "digits", "breast-cancer": "breast_cancer"}
FROM_FILES = (
    "sonar",
    "ionosphere",
    "svmguide1",
    "phishing",
    "a9a",
    "ccpp",
    "beijing_prsa",
    "naval",
)
NUMBERS = ("ccpp", "beijing_prsa", "naval")
TRAIN, TEST, SEARCH = 4000, 2000, 1500
KEY = b"the parties' alignment key"
BEFORE: dict[str, Any] = {"landmarks": 100, "sampling": "U", "tune": "off"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "before": ("range", BEFORE),
    "tuned": ("range", {"landmarks": 100, "sampling": "U"}),
    "default": ("range", {}),
    "before, rank": ("rank", BEFORE),
    "default, rank": ("rank", {}),
}


def load(name: str) -> tuple[Floats, Floats]:
    """Return features and labels."""
    if name in BUILT_IN:
        return getattr(datasets, f"load_{BUILT_IN[name]}")(return_X_y=True)  # type: ignore[no-any-return]
    table = np.load(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz")
    x, y = table["X"].astype(float), table["y"]
    if name == "naval":
        x, y = x[:, 1:], x[:, 0]
    whole = np.isfinite(x).all(axis=1) & np.isfinite(y)
    return x[whole], y[whole]


def scaled(x: Floats, train: Floats, test: Floats, how: str) -> tuple[Floats, Floats]:
    """Return training and held-out rows with columns in [0, 1], by ranges or by mid-ranks."""
    a, b = x[train], x[test]
    if how == "range":
        low, high = a.min(axis=0), a.max(axis=0)
        span = np.where(high > low, high - low, 1.0)
        return (a - low) / span, np.clip((b - low) / span, 0.0, 1.0)
    out = np.empty_like(a), np.empty_like(b)
    for j in range(a.shape[1]):
        values, counts = np.unique(a[:, j], return_counts=True)
        ranks = (np.cumsum(counts) - counts / 2.0) / len(a)
        for found, rows in zip(out, (a, b), strict=True):
            found[:, j] = np.interp(rows[:, j], values, ranks)
    return out


def federated(
    a: Floats, b: Floats, y: Floats, z: Floats, seed: int, **options: Any
) -> dict[str, Any]:
    """Run FedCG with two hospitals and two centres; return its metrics."""
    rng, numbers = np.random.default_rng(seed), y.dtype.kind == "f"
    blocks = np.array_split(np.arange(a.shape[1]), 3)
    of_row, of_test = rng.integers(2, size=len(a)), rng.integers(2, size=len(b))
    names = np.arange(len(a) + len(b))

    def client(context: Context) -> HybridKernelClient:
        k = int(context.node_config["partition-id"])
        block = "clinical" if k < 2 else f"centre {k}"
        common: dict[str, Any] = {
            "block": block,
            "alignment_key": KEY,
            "landmark_seed": public_seed(seed, block),
        }
        if k > 1:
            columns = blocks[k - 1]
            both = np.vstack([a[:, columns], b[:, columns]])
            return HybridKernelClient(context, both, ids=names, **common)
        mine, held = np.flatnonzero(of_row == k), np.flatnonzero(of_test == k)
        return HybridKernelClient(
            context,
            a[np.ix_(mine, blocks[0])],
            y[mine],
            ids=names[mine],
            x_test=b[np.ix_(held, blocks[0])],
            y_test=z[held],
            ids_test=names[len(a) + held],
            classes=None if numbers else np.unique(y).tolist(),
            **common,
        )

    strategy = FedCG(seed=seed, **options)
    simulate(strategy, client, 4)
    return {**strategy.metrics_, **strategy.tuned_, "landmarks": strategy.landmarks_}


def pooled(a: Floats, b: Floats, y: Floats, z: Floats, seed: int) -> float:
    """Return accuracy or error of the pooled method, tuned."""
    gammas = 2.0 ** np.arange(-4, 5) / (2.0 * a.var(axis=0).sum())  # mean distance of two rows
    numbers = y.dtype.kind == "f"
    method: Any = KernelRidge(kernel="rbf") if numbers else SVC()
    grid = {"gamma": gammas, "alpha": 10.0 ** np.arange(-7, 1)}
    grid = grid if numbers else {"gamma": gammas, "C": 10.0 ** np.arange(-1, 4)}
    some = np.random.default_rng(seed).permutation(len(a))[:SEARCH]
    score = "neg_mean_squared_error" if numbers else "accuracy"
    found = GridSearchCV(method, grid, cv=3, scoring=score, refit=False).fit(a[some], y[some])
    guess = method.set_params(**found.best_params_).fit(a, y).predict(b)
    return float(np.sqrt(((guess - z) ** 2).mean()) if numbers else (guess == z).mean())


def figures(name: str, splits: int, reference: int) -> dict[str, tuple[list[float], str]]:
    """Return of each variant its figures of the splits, and what was chosen in the last."""
    x, y = load(name)
    numbers, half = name in NUMBERS, 1.0
    if numbers:
        half = (y.max() - y.min()) / 2.0
        y = (y - y.min()) / half - 1.0
    y = y.astype(float if numbers else int)
    found: dict[str, tuple[list[float], str]] = {}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(x))
        count = min(TRAIN, int(0.7 * len(x)))
        train, test = order[:count], order[count : count + TEST]
        for variant, (how, options) in VARIANTS.items():
            a, b = scaled(x, train, test, how)
            got = federated(a, b, y[train], y[test], seed, **options)
            value = half * got["test_rmse"] if numbers else got["test_accuracy"]
            told = (
                f"m = {got['landmarks']} {got.get('by', '')}, {len(got.get('gammas', []))} widths"
            )
            values = found.setdefault(variant, ([], told))[0]
            values.append(value)
        for how in ("range", "rank") if seed < reference else ():
            a, b = scaled(x, train, test, how)
            value = half * pooled(a, b, y[train], y[test], seed)
            found.setdefault(f"pooled, {how}", ([], ""))[0].append(value)
    return found


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print a line per data set and variant."""
    logging.getLogger("fedkern_flwr").setLevel(logging.ERROR)
    records = []
    for name in options.sets[:1] if options.quick else options.sets:
        found = figures(name, options.splits, options.reference)
        goal = [np.mean(values) for variant, (values, _) in found.items() if "pooled" in variant]
        best = min(goal) if name in NUMBERS else max(goal)
        for variant, (values, told) in found.items():
            mean = float(np.mean(values))
            ratio = best / mean if name in NUMBERS else mean / best
            records.append(Record(f"{name}, {variant}", ratio, "against the pooled method"))
            console.print(
                f"{name:14} {variant:14} {mean:10.4f} +- {np.std(values):.4f} "
                f"({len(values)} splits)  {ratio:.3f}  {told}",
                highlight=False,
            )
    return records


if __name__ == "__main__":
    names = [*BUILT_IN, *(FROM_FILES if "FEDKERN_DATA" in os.environ else ())]
    run_script(__doc__, measure, sets=names, splits=10, reference=10)
