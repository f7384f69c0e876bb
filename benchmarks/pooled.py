"""Every method beside what one would use on the pooled table: accuracy, AUC, CPU, growth with rows.

    FEDKERN_DATA=... python benchmarks/pooled.py [--tables a9a] [--methods FDSKL] [--sizes 2000]

A method runs as ``fedkern run`` does with its defaults: all parties in one process, secure sums
included, but without the check against a pooled twin. A pooled model has the same columns, brought
to mean 0 and variance 1. Its options are chosen as the methods choose theirs: by three folds of at
most 4,000 rows, then all rows are learned. Of each table 30 % of the rows are held out.

Every pair of table and model has a process and one thread of its own. ``CPU s`` counts learning,
choosing and predicting, but no import and no reading of the table. ``ratio`` is the CPU of a method
divided by that of its pooled counterpart, the last column. Of numbers the score is R2, of classes
the accuracy. What takes more than ``--limit`` CPU seconds, or is refused, is a row with the reason.

Made tables are the first rows of one large table of ``make_classification``. The size ``own`` is
that of the table: 19,000 x 10, 4,600 x 57, 58,000 x 9 with seven classes; a9a 32,561 x 123,
phishing 11,055 x 68, ccpp 9,568 x 4 (numbers).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, in_own_process, new_table, peak_memory, run_script
from numpy.typing import NDArray
from rich.console import Console
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, SVR, LinearSVC

from fedkern_flwr.errors import FedKernError
from fedkern_flwr.simulations.cli.run import run_options
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry

#: Made table -> its own rows, and how it is made.
MADE: dict[str, tuple[int, dict[str, Any]]] = {
    "made-10": (19_000, {"n_features": 10, "n_informative": 6, "n_clusters_per_class": 4}),
    "made-57": (4_600, {"n_features": 57, "n_informative": 12, "n_clusters_per_class": 3}),
    "made-9x7": (58_000, {"n_features": 9, "n_informative": 8, "n_classes": 7, "class_sep": 2.0}),
}
#: File of FEDKERN_DATA -> its rows.
FILES = {"a9a": 32_561, "phishing": 11_055, "ccpp": 9_568}
NUMBERS = ("ccpp",)
SIZES = ["500", "2000", "10000", "100000", "own"]
MOST_MADE, CHOICE, HELD_OUT, SEED = 100_000, 4_000, 0.3, 0
#: Method -> command, options, and its pooled counterpart.
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
    "FedCG": ("fed-cg", {"hospitals": 2, "centres": 2}, "Nystroem"),
    "FDSKL": ("fdskl", {"parties": 4}, "Nystroem"),
    "HierarchicalSVM": ("hierarchical-svm", {"users": 20, "groups": 4}, "linear"),
    "HierarchicalSVM rbf": ("hierarchical-svm", {"users": 20, "groups": 4, "model": "rbf"}, "SVC"),
    "Secure Gram": (
        "secure-gram",
        {"clients": 4, "kernel": "rbf", "encoding": "fixed-point"},
        "SVC",
    ),
    "POF-RLS": ("pof-rls", {"clients": 10, "secure": True}, "Nystroem"),
}
POOLED = ("Nystroem", "SVC", "linear", "boosting")
LARGEST = {"Secure Gram": 5_000}  # a kernel of all rows: 10,000 would be several GB
NO_CLASSES, NO_NUMBERS = ("POF-RLS",), ("HierarchicalSVM rbf",)
MOST_OFF = 0.02  # of an area that a method counts in bins; one farther off is left out
GROWS_FROM = 2_000  # rows, from which the growth is reckoned
Found = dict[str, Any]


def write_table(path: Path, name: str, rows: int) -> None:
    """Write the first rows of a made table, or some of a file's."""
    if name in MADE:
        most = max(rows, MOST_MADE)
        x, y = make_classification(
            most, n_redundant=0, flip_y=0.05, **MADE[name][1], random_state=1
        )
        chosen = np.arange(rows)
    else:
        with np.load(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz") as found:
            x, y = found["X"], found["y"]
        chosen = np.random.default_rng(SEED).permutation(len(y))[:rows]
    np.savez(path, X=x[chosen].astype(np.float64), y=y[chosen])


def prepared(method: str, path: Path, **given: Any) -> tuple[Any, dict[str, Any]]:
    """Return a table as ``fedkern run`` prepares it, and the configuration of the run."""
    own = family(method)
    values = {option.name: option.default for option in run_options(method)}
    values |= {"data": str(path), "test_size": HELD_OUT, "seed": SEED, **given}
    if "check_pooled" in values:
        values["check_pooled"] = False
    config = own.config(method, own.deal_files(values))
    own.check(config)
    data = own.prepare(own.settings.from_values(config["data"]))
    own.check_data(config, data)
    return data, config


def federated(method: str, options: dict[str, Any], path: Path, rows: int) -> Found:
    """Run a method; return its scores and CPU seconds."""
    if method == "pof-rls":  # one pass over all rows
        options = {**options, "rounds": int((1.0 - HELD_OUT) * rows) // options["clients"]}
    data, config = prepared(method, path, **options)
    own, entry = family(method), Entry(method, method, config["options"])
    more: dict[str, Any] = {}
    if method == "secure-gram":  # its training, which the coordinator does after the run
        more["measure"] = lambda strategy: own.measure(strategy, data, config)
    started = time.process_time()
    run_entries([entry], data, engine="in-process", seed=SEED, timeout=config["timeout"], **more)
    cpu, metrics = time.process_time() - started, entry.results[0]["metrics"]
    score = metrics.get("test_accuracy", metrics.get("test_r2"))
    if method == "pof-rls":
        labels = np.concatenate([shard.y_test for shard in data.shards])
        score = 1.0 - metrics["test_mse"] / float(labels.var())
    sharp = (metrics.get("test_auc_bin") or 0.0) <= MOST_OFF
    return {"score": score, "auc": metrics.get("test_auc") if sharp else None, "cpu": cpu}


def fitted(name: str, found: PooledSplit) -> Any:
    """Fit a pooled model; its options are chosen by some of the rows."""
    classes = bool(found.classes)
    if name == "boosting":
        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        return kind(random_state=SEED).fit(found.x, found.y)
    rows, columns = found.x.shape
    few = np.random.default_rng(SEED).permutation(rows)[:CHOICE]
    model: Any = SVC() if classes else SVR(epsilon=0.01)
    grid: dict[str, Sequence[float]] = {"C": (0.1, 1.0, 10.0, 100.0)}
    if name == "Nystroem":
        ridge = RidgeClassifier() if classes else Ridge()
        components = min(500, len(few) // 2)
        model = make_pipeline(Nystroem(n_components=components, random_state=SEED), ridge)
        grid = {f"{type(ridge).__name__.lower()}__alpha": (1e-4, 1e-2, 1.0)}
        grid["nystroem__gamma"] = [width / columns for width in (0.25, 1.0, 4.0)]
    elif name == "linear" and classes:
        model, grid = LinearSVC(), {"C": (0.01, 0.1, 1.0, 10.0)}
    elif name == "linear":
        model, grid = Ridge(), {"alpha": (0.01, 1.0, 100.0)}
    best = GridSearchCV(model, grid, cv=3, refit=False).fit(found.x[few], found.y[few]).best_params_
    if name == "Nystroem":
        best["nystroem__n_components"] = min(1000, rows // 2)
    return model.set_params(**best).fit(found.x, found.y)


def pooled(name: str, path: Path) -> Found:
    """Fit a pooled model; return its scores and CPU seconds."""
    found = prepared("fed-cg", path)[0].pooled(SEED)
    mean, deviation = found.x.mean(axis=0), found.x.std(axis=0)
    scale = np.where(deviation > 0.0, deviation, 1.0)
    x, tests = (found.x - mean) / scale, (found.x_test - mean) / scale
    found = PooledSplit(x, found.y, tests, found.y_test, found.classes)
    started = time.process_time()
    model = fitted(name, found)
    score = float(model.score(tests, found.y_test))
    cpu = time.process_time() - started
    return {"score": score, "auc": area(model, found) if found.classes else None, "cpu": cpu}


def area(model: Any, found: PooledSplit) -> float:
    """Return the area under the curve, of several classes the mean of one against the rest."""
    outputs = getattr(model, "decision_function", None) or model.predict_proba
    scores: NDArray[np.float64] = outputs(found.x_test)
    if len(found.classes) == 2:
        scores = scores if scores.ndim == 1 else scores[:, 1]
        return float(roc_auc_score(found.y_test == found.classes[1], scores))
    pairs = zip(found.classes, scores.T, strict=True)
    return float(np.mean([roc_auc_score(found.y_test == one, own) for one, own in pairs]))


def run(who: str, table: str, rows: int, limit: float = 0.0) -> Found:
    """Run one method or pooled model on one table; a refusal is a result as well."""
    if limit:  # CPU time, for a busy machine does not change it
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npz"
        write_table(path, table, rows)
        try:
            if who in METHODS:
                method, options, _ = METHODS[who]
                if table in NUMBERS and who == "HierarchicalSVM":
                    options = {**options, "model": "ridge"}
                found = federated(method, options, path, rows)
            else:
                found = pooled(who, path)
        except FedKernError as error:
            return {"why": error.problem}
    return {**found, "peak": peak_memory()}


def tried(who: str, table: str, rows: int, limit: float) -> Found:
    """Run one of them in a process of its own; say why where there is no result."""
    if rows > LARGEST.get(who, rows):
        return {"why": f"not run beyond {LARGEST[who]:,} rows"}
    if who in (NO_NUMBERS if table in NUMBERS else NO_CLASSES):
        return {"why": "not for such labels"}
    one = {"who": who, "table": table, "rows": rows, "limit": limit}
    try:
        return in_own_process(__file__, one, threads=1, timeout=20.0 * limit)
    except subprocess.TimeoutExpired:
        return {"why": f"over {20.0 * limit:g} s by the clock"}
    except subprocess.CalledProcessError as error:
        if error.returncode == -signal.SIGXCPU:
            return {"why": f"over {limit:g} s", "least": limit}
        return {"why": f"exit code {error.returncode}"}


def ratio(own: Found, other: Found) -> str:
    """Return by how much a method is slower, or a bound where one of them ran into the limit."""
    cpu, base = own.get("cpu", own.get("least")), other.get("cpu", other.get("least"))
    if cpu is None or base is None or ("least" in own and "least" in other):
        return ""
    return f"{'<' * ('least' in other)}{'>' * ('least' in own)}{cpu / base:.2f}"


def growth(cpu: dict[int, float]) -> float | None:
    """Return the exponent b of CPU = a rows^b, by least squares of the logarithms."""
    points = sorted((rows, seconds) for rows, seconds in cpu.items() if rows >= GROWS_FROM)
    if len(points) < 2:
        return None
    return float(np.polyfit(*np.log(np.array(points)).T, 1)[0])


def sizes_of(table: str, sizes: Sequence[str]) -> list[int]:
    """Return the rows of a table that are asked for and that it has."""
    own = MADE[table][0] if table in MADE else FILES[table]
    asked = {own if size == "own" else int(size) for size in sizes}
    return sorted(rows for rows in asked if table in MADE or rows <= own)


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Run all pairs of a table and a model, and print the tables."""
    if options.one:
        print(json.dumps(run(**json.loads(options.one))))
        return []
    sizes = ["500", "2000"] if options.quick else options.sizes
    tables = [t for t in options.tables if t in MADE or "FEDKERN_DATA" in os.environ]
    tables = tables[:1] if options.quick else tables
    records: list[Record] = []
    title, heads = f"CPU = a rows^b from {GROWS_FROM:,} rows", "table | method | b | rows"
    grown = new_table(title, heads, text="table | method")
    for table in tables:
        cpu: dict[str, dict[int, float]] = {}
        for rows in sizes_of(table, sizes):
            heads = "method | score | AUC | CPU s | peak GB | ratio | pooled counterpart"
            shown = new_table(f"{table}, {rows:,} rows", heads, text="method | pooled counterpart")
            asked = [*options.methods, *options.pooled]
            found = {who: tried(who, table, rows, options.limit) for who in asked}
            for who, one in found.items():
                base = METHODS[who][2] if who in METHODS else ""
                times = ratio(one, found[base]) if base in found else ""
                if "why" in one:
                    shown.add_row(who, "", "", one["why"], "", times, base)
                    continue
                cpu.setdefault(who, {})[rows] = one["cpu"]
                auc = "" if one["auc"] is None else f"{one['auc']:.4f}"
                cells = f"{one['score']:.4f}", auc, f"{one['cpu']:.1f}", f"{one['peak'] / 1e9:.2f}"
                shown.add_row(who, *cells, times, base)
                name = f"{who}, {table}, {rows:,} rows"
                records.append(Record(name, one["score"], "R2" if table in NUMBERS else "accuracy"))
                records.append(Record(name, one["cpu"], "CPU s", "lower"))
                if "cpu" in found.get(base, {}):
                    over = one["cpu"] / found[base]["cpu"]
                    records.append(Record(name, over, f"this / pooled {base}", "lower"))
            console.print(shown)
        for who, points in cpu.items():
            exponent = growth(points)
            if exponent is not None:
                grown.add_row(table, who, f"{exponent:.2f}", ", ".join(f"{n:,}" for n in points))
                records.append(Record(f"{who}, {table}", exponent, "exponent of rows", "lower"))
    if grown.row_count:
        console.print(grown)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        tables=([*MADE, *FILES], "made tables and files of FEDKERN_DATA"),
        methods=([*METHODS], "federated methods"),
        pooled=([*POOLED], "pooled models"),
        sizes=(SIZES, "rows of the tables; own is all that a file has"),
        limit=(600.0, "CPU seconds for one method on one table"),
    )
