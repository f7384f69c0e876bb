"""FedCG and FDSKL without a number chosen, beside what a careful person gets from pooled tables.

    FEDKERN_DATA=... python benchmarks/any_table.py [--sets iris wine digits] [--splits 10]

Accuracy, or the error of a regression in units of the label, of splits drawn anew: 30 % of the rows
held out (of large tables some 4,000), at most 4,000 learned from, the same rows for all. FedCG has
two hospitals and two centres, FDSKL four parties. ``0.1`` has the options that were the default in
release 0.1, ``paper`` those of FedCG's paper. The pooled method is scikit-learn's SVC or
KernelRidge on standardised columns, width and penalty by GridSearchCV with three folds; the
boosting is HistGradientBoosting. Single results are kept in ``--results``, from which a run goes
on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from rich.console import Console
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.svm import SVC

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry

HELD_OUT, TRAIN = 0.3, 4000
#: Name -> file of FEDKERN_DATA or built-in data set, and settings.
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "iris": ("iris", {}),
    "wine": ("wine", {}),
    "sonar": ("sonar.npz", {}),
    "ionosphere": ("ionosphere.npz", {}),
    "breast-cancer": ("breast-cancer", {}),
    "digits": ("digits", {}),
    "svmguide1": ("svmguide1.npz", {}),
    "phishing": ("phishing.npz", {}),
    "a9a": ("a9a.npz", {"test_size": 0.1}),
    "ccpp": ("ccpp.npz", {}),
    "naval": ("naval.npz", {"target": "0"}),
    "beijing": ("beijing_prsa.npz", {"test_size": 0.01}),
}
NUMBERS = ("ccpp", "naval", "beijing")
SMALL = ("iris", "wine", "sonar", "ionosphere")  # below 500 rows
_PLAIN = {"landmarks": 100, "sampling": "U", "tune": "off"}  # gamma 1 / d, lambda 1e-3
_NO_INTERCEPT = {"intercept": False}
_CG = {"solver": "cg", "preconditioner_rank": 0, "init": "random", "sampling": "U"}
#: Column of the table -> method, settings, options.
FEDERATED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "FedCG 0.1": ("fed-cg", {"scaling": "range", "missing": "drop-row"}, _PLAIN),
    "FedCG": ("fed-cg", {}, {}),
    "FedCG, paper": ("fed-cg", {}, {"landmarks": 50, "gamma": 0.5, "regularization": 1e-6, **_CG}),
    "FDSKL 0.1": ("fdskl", {"scaling": "range", "missing": "drop-row"}, _NO_INTERCEPT),
    "FDSKL": ("fdskl", {}, {}),
}
POOLED, BOOSTING = "pooled", "boosting"
COLUMNS = (*FEDERATED, POOLED, BOOSTING)
KEPT = (
    "test_interval_coverage",
    "test_set_coverage",
    "test_calibration_error_before",
    "test_calibration_error",
)


def prepared(name: str, split: int, method: str, **more: Any) -> Any:
    """Return a data set as ``fedkern run`` prepares it."""
    own, (data, settings) = family(method), SETS[name]
    path = str(Path(os.environ["FEDKERN_DATA"]) / data) if data.endswith(".npz") else data
    values = {option.name: option.default for option in own.parameters()}
    values |= {"data": path, "resplit": True, "seed": split}
    values |= {"hospitals": 2} if method == "fed-cg" else {"parties": 4}
    values |= {"test_size": HELD_OUT, "train_rows": TRAIN, **settings, **more}
    return own.prepare(own.settings.from_values(values))


def federated(name: str, split: int, column: str) -> dict[str, Any]:
    """Run FedCG or FDSKL in process; return what it got, and what it cost."""
    method, settings, options = FEDERATED[column]
    data = prepared(name, split, method, **settings)
    missing = data.settings.missing
    options = {**options, "missing": "error" if missing == "encode" else missing}
    entry = Entry(column, method, options)
    started = time.process_time()
    try:
        run_entries([entry], data, engine="in-process", seed=split)
    except FedKernError as error:
        return {"value": None, "why": error.problem}
    seconds, (result,) = time.process_time() - started, entry.results
    found, half = result["metrics"], data.split(split).scaling["y_half_range"]
    value = half * found["test_rmse"] if name in NUMBERS else found["test_accuracy"]
    released = sum(one["numbers"] for one in result["privacy"].get("sums", []))
    return {
        "value": value,
        "seconds": seconds,
        "bytes": result["bytes_up"] + result["bytes_down"],
        "numbers": released,
        **{kept: found[kept] for kept in KEPT if kept in found},
        "tuned": {k: v for k, v in result.get("tuned", {}).items() if k in ("by", "gammas", "why")},
    }


def alone(name: str, split: int, fit: Callable[[PooledSplit], Any]) -> dict[str, Any]:
    """Fit what has the whole table; return what it got."""
    found = prepared(name, split, "fed-cg", scaling="standard").pooled(split)
    started = time.process_time()
    guess = fit(found).predict(found.x_test)
    seconds, wrong = time.process_time() - started, guess - found.y_test
    rmse = found.label_unit * float(np.sqrt((wrong**2).mean()))
    return {"value": float((wrong == 0.0).mean()) if found.classes else rmse, "seconds": seconds}


def tuned(found: PooledSplit) -> Any:
    """Return the kernel method, width and penalty by a search of all training rows."""
    method: Any = SVC() if found.classes else KernelRidge(kernel="rbf")
    scale = 1.0 / (found.x.shape[1] * found.x.var())  # SVC's gamma="scale"
    grid = {"gamma": scale * np.array([0.25, 1.0, 4.0])}
    grid |= {"C": [0.1, 1, 10, 100]} if found.classes else {"alpha": [1e-6, 1e-4, 1e-2, 1]}
    score = "accuracy" if found.classes else "neg_mean_squared_error"
    folds = (StratifiedKFold if found.classes else KFold)(3, shuffle=True, random_state=0)
    return GridSearchCV(method, grid, cv=folds, scoring=score).fit(found.x, found.y)


def boosted(found: PooledSplit) -> Any:
    """Return the boosting."""
    kind = HistGradientBoostingClassifier if found.classes else HistGradientBoostingRegressor
    return kind(random_state=0).fit(found.x, found.y)


def result(name: str, split: int, column: str) -> dict[str, Any]:
    """Return what a column of the table has of one split."""
    if column in FEDERATED:
        return federated(name, split, column)
    return alone(name, split, tuned if column == POOLED else boosted)


def kept_results(path: Path) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Read the results that are there."""
    lines = path.read_text().splitlines() if path.is_file() else []
    found = [json.loads(line) for line in lines]
    return {(one["set"], one["split"], one["column"]): one for one in found}


def verdict(name: str, value: float, pooled: float) -> tuple[float, bool]:
    """Return how far a method is behind the pooled one, points or a share, and if it may be."""
    if name in NUMBERS:
        return value / pooled - 1.0, value <= 1.05 * pooled
    return pooled - value, pooled - value <= (0.02 if name in SMALL else 0.01)


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run what is missing, and print the tables."""
    path, splits = Path(options.results), 1 if options.quick else options.splits
    known = kept_results(path)
    for split in range(splits):
        for name in options.sets[:1] if options.quick else options.sets:
            for column in options.columns:
                if (name, split, column) not in known:
                    one = {"set": name, "split": split, "column": column}
                    one |= result(name, split, column)
                    known[name, split, column] = one
                    with path.open("a") as file:
                        file.write(json.dumps(one) + "\n")
    records: list[Record] = []
    goals = new_table("accuracy, RMSE; * misses the goal", " | ".join(["", *options.columns]))
    costs = new_table(
        "means", "column | CPU s | MB | numbers | coverage | before | calibration", text="column"
    )
    for name in options.sets:
        cells = [name]
        values: dict[str, list[float]] = {}
        for column in options.columns:
            found = [known[name, s, column] for s in range(splits) if (name, s, column) in known]
            values[column] = [one["value"] for one in found if one["value"] is not None]
            means = [_mean(found, key) for key in ("seconds", "bytes", "numbers")]
            more = [_mean(found, key) for key in KEPT]
            more = [more[0] if more[1] is None else more[1], *more[2:]]
            means[1] = None if means[1] is None else means[1] / 1e6
            figures = ["" if one is None else f"{one:,.4g}" for one in (*means, *more)]
            costs.add_row(f"{name}, {column}", *figures)
        pooled = float(np.mean(values.get(POOLED) or [np.nan]))
        for column, got in values.items():
            mean = float(np.mean(got or [np.nan]))
            behind, good = verdict(name, mean, pooled)
            text = f"{mean:.4g} ± {np.std(got or [np.nan]):.2g}"
            missed = column in ("FedCG", "FDSKL") and not good
            cells.append(text + " *" * missed)
            if column in FEDERATED:
                records.append(Record(f"{name}, {column}", behind, "behind the pooled method"))
        goals.add_row(*cells)
    console.print(goals)
    console.print(costs)
    return records


def _mean(found: list[dict[str, Any]], key: str) -> float | None:
    values = [one[key] for one in found if one.get(key) is not None]
    return float(np.mean(values)) if values else None


if __name__ == "__main__":
    there = "FEDKERN_DATA" in os.environ
    names = [name for name, (data, _) in SETS.items() if there or not data.endswith(".npz")]
    run_script(
        __doc__,
        measure,
        sets=names,
        columns=list(COLUMNS),
        splits=10,
        results="any_table.jsonl",
    )
