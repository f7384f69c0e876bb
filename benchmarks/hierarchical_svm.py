"""HierarchicalSVM against the pooled linear SVM, and groups that do not wait against those that do.

``horizontal``: iterations until the objective is within 1e-3 of scikit-learn's SVC, 20 users in S
groups, and accuracy on 30 % held-out rows. ``vertical``: the same with column blocks, 5 users each.
``exchanges``: with agents asked together with the users, and after them; also of wine and a sixth
of a9a. ``asynchronous``: seconds until the global model is within 1e-3,
staleness D against 0, with delays of the users injected; ``slow-group``: the same with one group
five times slower. ``speed``: 100 users x 100 rows x 25 columns with random labels, the data of the
paper's Table 2. With ``FEDKERN_DATA=folder`` on svmguide1 (standardised) and the original breast
cancer data (as it is), else on scikit-learn's breast cancer data.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from flwr.app import Context
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_wine
from sklearn.svm import SVC

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups.consensus import penalties_of
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines.delays import DelayLaw, GroupDelays
from fedkern_flwr.solvers.dual_subspace import objective, restricted_optimum
from fedkern_flwr.strategies import HierarchicalSVM

Floats = NDArray[np.float64]
CLOSE, KEY = 1e-3, bytes(32)


class Task:
    """A data set, split 70:30, with its pooled optimum for C = 1."""

    def __init__(self, name: str, x: Floats, y: Floats, scale: str, seed: int) -> None:
        self.name, self.scale = name, scale
        order = np.random.default_rng(seed).permutation(len(y))
        cut = int(0.7 * len(y))
        self.x, self.y = x[order[:cut]], np.where(y == y.max(), 1.0, -1.0)[order[:cut]]
        self.held, self.truth = x[order[cut:]], np.where(y == y.max(), 1.0, -1.0)[order[cut:]]
        deviation = self.x.std(0)
        self.mean, self.deviation = self.x.mean(0), np.where(deviation > 0.0, deviation, 1.0)
        own = self.standard(self.x) if scale == "standard" else self.x
        test = self.standard(self.held) if scale == "standard" else self.held
        if len(own) > 5000:  # where LIBSVM takes minutes
            best = restricted_optimum("hinge", own, self.y, 1.0)
            outputs = own @ best.weights + best.bias
            square = float(best.weights @ best.weights)
            self.optimum = objective("hinge", square, outputs, self.y, 1.0)
            self.accuracy = float((np.sign(test @ best.weights + best.bias) == self.truth).mean())
            return
        oracle = SVC(kernel="linear", C=1.0, tol=1e-6).fit(own, self.y)
        w, scores = oracle.coef_[0], own @ oracle.coef_[0]
        near = float(oracle.intercept_[0])

        def loss(b: float) -> float:
            return float(np.maximum(0.0, 1.0 - self.y * (scores + b)).sum())

        bias = minimize_scalar(loss, bounds=(near - 1.0, near + 1.0), method="bounded").x
        self.optimum = 0.5 * float(w @ w) + min(loss(bias), loss(near))
        self.accuracy = float((np.sign(test @ w + near) == self.truth).mean())

    def standard(self, x: Floats) -> Floats:
        """Return rows in standardised columns."""
        return np.asarray((x - self.mean) / self.deviation)

    def objective(self, model: Floats) -> float:
        """Return the objective of a model in standardised columns."""
        squares = np.ones(len(self.mean)) if self.scale == "standard" else self.deviation**-2.0
        outputs = self.standard(self.x) @ model[0, :-1] + model[0, -1]
        losses = np.maximum(0.0, 1.0 - self.y * outputs).sum()
        return float(penalties_of(model, np.append(squares, 0.0)).sum() + losses)


def tasks(seed: int) -> list[Task]:
    """Return the data sets that are there."""
    folder = os.environ.get("FEDKERN_DATA")
    if folder is None:
        from sklearn.datasets import load_breast_cancer

        return [Task("breast-cancer", *load_breast_cancer(return_X_y=True), "standard", seed)]
    found = []
    for name, scale in (("svmguide1", "standard"), ("breast_cancer_original", "none")):
        with np.load(Path(folder) / f"{name}.npz") as data:
            found.append(Task(name, data["X"].astype(float), data["y"], scale, seed))
    return found


def larger() -> list[Task]:
    """Return wine, a class against the others, and a sixth of a9a where it is there."""
    x, y = load_wine(return_X_y=True)
    found = [Task("wine", x, y == 1, "standard", 0)]
    if "FEDKERN_DATA" in os.environ:
        with np.load(Path(os.environ["FEDKERN_DATA"]) / "a9a.npz") as data:
            every = slice(None, None, 6)
            found.append(Task("a9a", data["X"][every].astype(float), data["y"][every], "none", 0))
    return found


def horizontal(task: Task, users: int, groups: int) -> tuple[Callable[[Context], Any], int]:
    """Return the clients of users in groups, with their agents; one user may be alone."""
    parts = np.array_split(np.arange(len(task.y)), users)
    tests = np.array_split(np.arange(len(task.truth)), users)
    group = np.repeat(np.arange(groups), [len(p) for p in np.array_split(np.arange(users), groups)])

    def client_fn(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        if k >= users:
            return SVMClient(context, role="agent", group=k - users, allow_single=True)
        return SVMClient(
            context,
            task.x[parts[k]],
            task.y[parts[k]],
            x_test=task.held[tests[k]],
            y_test=task.truth[tests[k]],
            group=int(group[k]),
            classes=[-1.0, 1.0],
            allow_single=True,
        )

    return client_fn, users + groups


def vertical(task: Task, groups: int, users: int = 5) -> tuple[Callable[[Context], Any], int]:
    """Return the clients of groups with column blocks, their agents and the label owner."""
    rows, tests = len(task.y), len(task.truth)
    blocks = np.array_split(np.arange(task.x.shape[1]), groups)
    rng = np.random.default_rng(0)
    parts = [np.array_split(rng.permutation(rows), users) for _ in range(groups)]
    held = np.array_split(np.arange(tests), users)

    def client_fn(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        common: dict[str, Any] = {"alignment_key": KEY}
        if k == groups * (users + 1):
            common |= {"ids": range(rows), "ids_test": range(rows, rows + tests), "role": "owner"}
            common |= {"classes": [-1.0, 1.0], "y_test": task.truth}
            return SVMClient(context, y=task.y, **common)
        if k >= groups * users:
            return SVMClient(context, role="agent", group=k - groups * users)
        group, number = divmod(k, users)
        own, new = parts[group][number], held[number]
        common |= {"x_test": task.held[new][:, blocks[group]], "ids_test": rows + new}
        return SVMClient(context, task.x[own][:, blocks[group]], ids=own, group=group, **common)

    return client_fn, groups * (users + 1) + 1


def run(
    task: Task, nodes: tuple[Callable[[Context], Any], int], rounds: int, **options: Any
) -> tuple[HierarchicalSVM, float]:
    """Return the strategy after a run, and the seconds that it took."""
    faults, engine = options.pop("faults", None), options.pop("engine", "in-process")
    strategy = HierarchicalSVM(scale=task.scale, allow_single=True, **options)  # type: ignore[arg-type]
    began = time.perf_counter()
    simulate(strategy, *nodes, engine=engine, num_rounds=rounds, faults=faults)
    return strategy, time.perf_counter() - began


def first_close(strategy: HierarchicalSVM, optimum: float) -> str:
    """Return the first iteration whose objective is within 1e-3."""
    for row in strategy.history_:
        if row.get("objective", np.inf) <= optimum * (1.0 + CLOSE):
            return str(row["round"])
    return "-"


def show_groups(data: list[Task], rounds: int, console: Console) -> list[Record]:
    """Print iterations and accuracy for every number of groups."""
    table = new_table(
        "groups",
        "data | split | groups | iterations / 1e-3 | to the end | gap | "
        "accuracy - SVC's, points | seconds | exchanges",
        text="data | split | groups | iterations / 1e-3 | to the end | gap",
    )
    records = []
    for task in data:
        for split, counts in (("horizontal", (1, 2, 5, 13)), ("vertical", (2, 4))):
            for groups in counts:
                nodes = horizontal(task, 20, groups) if split[0] == "h" else vertical(task, groups)
                strategy, seconds = run(task, nodes, rounds, partition=split)
                found = strategy.metrics_
                gap = found["objective"] / task.optimum
                name = f"{task.name}, {split}, {groups} groups"
                records.append(Record(name, gap, "objective / optimum", "lower"))
                table.add_row(
                    task.name,
                    split,
                    str(groups),
                    first_close(strategy, task.optimum),
                    str(found["iterations"]),
                    f"{gap - 1.0:.1e}",
                    f"{100.0 * (found['test_accuracy'] - task.accuracy):+.2f}",
                    f"{seconds:.1f}",
                    str(strategy.ledger_.exchanges),
                )
    console.print(table)
    for task in data:
        console.print(f"{task.name}: SVC {100.0 * task.accuracy:.2f} %, {task.optimum:.4f}")
    return records


def show_exchanges(data: list[Task], rounds: int, console: Console) -> list[Record]:
    """Print the exchanges of runs in which agents are asked with the users, and after them."""
    table = new_table(
        "exchanges",
        "data | groups | iterations | pooled within 1e-3: iteration, exchange, before | gap | "
        "exchanges | before | same model",
        text="data | pooled within 1e-3: iteration, exchange, before | same model",
    )
    records = []
    for task in data:
        for groups in (2, 5):
            nodes = horizontal(task, 20, groups)
            one, two = (run(task, nodes, rounds, pipelined=p)[0] for p in (True, False))
            near = next((n for _, n, z in one.trace_ if close(task, z)), None)
            same = np.array_equal(one.coefficients_, two.coefficients_)
            begun = 2  # describe, statistics
            when = "-" if near is None else f"{near}, {begun + 1 + near}, {begun + 1 + 2 * near}"
            gap = one.metrics_["objective"] / task.optimum - 1.0
            counts = one.ledger_.exchanges, two.ledger_.exchanges
            records.append(
                Record(f"{task.name}, {groups} groups", counts[0] / counts[1], "exchanges", "lower")
            )
            table.add_row(
                task.name,
                str(groups),
                str(one.metrics_["iterations"]),
                when,
                f"{gap:.1e}",
                *map(str, counts),
                str(same and one.metrics_ == two.metrics_ and one.history_ == two.history_),
            )
    console.print(table)
    return records


def close(task: Task, model: Floats) -> bool:
    """Tell whether a model is within 1e-3 of the pooled one."""
    return task.objective(model) <= task.optimum * (1.0 + CLOSE)


def seconds_to_close(
    task: Task, law: str, staleness: int, seed: int, engine: str, rounds: int
) -> tuple[float, int]:
    """Return seconds, and iterations of the slowest group, until the model is within 1e-3."""
    groups = 5
    delays = GroupDelays(DelayLaw.parse(law), tuple(k // 4 for k in range(20)), seed)
    strategy, _ = run(
        task,
        horizontal(task, 20, groups),
        rounds,
        staleness=staleness,
        tolerance=1e-9,
        pipelined=False,
        faults=delays,
        engine=engine,
    )
    for seconds, iterations, model in strategy.trace_:
        if close(task, model):
            return seconds, iterations
    return np.inf, strategy.history_[-1]["round"]


def show_asynchronous(
    task: Task, given: argparse.Namespace, rounds: int, console: Console
) -> list[Record]:
    """Print how long groups take that do not wait, against those that do."""
    engine, seeds, mean = given.engine, given.seeds, given.mean
    pairs = []
    for seed in range(seeds):
        law = f"exponential:{mean}"
        waiting, _ = seconds_to_close(task, law, 0, seed, engine, rounds)
        free, _ = seconds_to_close(task, law, 4, seed, engine, rounds)
        pairs.append((waiting, free))
        console.print(f"{engine} seed {seed}: D=0 {waiting:.2f} s, D=4 {free:.2f} s", style="dim")
    ratios = [free / waiting for waiting, free in pairs]
    console.print(
        f"{task.name}, {engine}, exponential delays of mean {mean} s, S=5: D=4 / D=0 "
        f"[bold]{np.mean(ratios):.3f}[/bold] (goal 0.65), {min(ratios):.3f} to {max(ratios):.3f}"
    )
    name = f"{task.name}, {engine}, groups that do not wait"
    return [Record(name, float(np.mean(ratios)), "seconds, D = 4 / D = 0", "lower")]


def show_slow_group(
    task: Task, engine: str, mean: float, rounds: int, console: Console
) -> list[Record]:
    """Print how long groups take where one of them is five times slower, against waiting."""
    table = Table(
        "D", "seconds", "ratio", "slowest group's iterations", title="one group 5x slower"
    )
    slow = f"fixed:{5 * mean},{mean},{mean},{mean},{mean}"
    base, records = 0.0, []
    for staleness in (0, 1, 4, 16):
        seconds, iterations = seconds_to_close(task, slow, staleness, 0, engine, rounds)
        base = base or seconds
        name = f"one group five times slower, D = {staleness}"
        records.append(Record(name, seconds / base, "seconds / D = 0", "lower"))
        table.add_row(str(staleness), f"{seconds:.2f}", f"{seconds / base:.2f}", str(iterations))
    console.print(table)
    return records


def show_speed(rounds: int, console: Console) -> None:
    """Print iterations and seconds on the data of Table 2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, 25))
    task = Task("random", np.r_[x, x[:4300]], rng.choice([-1.0, 1.0], 14_300), "standard", 0)
    table = Table("architecture", "iterations", "seconds", "gap", "paper", title="Table 2")
    for name, paper in (
        ("centralised", "67 its, 107 s"),
        ("chain", "514 its, 766 s"),
        ("hierarchical, 10 groups", ""),
    ):
        chosen = name.split(",")[0]
        client_fn, nodes = horizontal(task, 100, 10)
        count = nodes if chosen == "hierarchical" else 100
        strategy, seconds = run(task, (client_fn, count), rounds, architecture=chosen)
        found = strategy.metrics_
        gap = f"{found['objective'] / task.optimum - 1.0:.1e}"
        table.add_row(name, str(found["iterations"]), f"{seconds:.1f}", gap, paper)
    console.print(table)


def measure(given: argparse.Namespace, console: Console) -> list[Record]:
    """Print the tables of the parts; only that of groups if quick."""
    data, parts = tasks(0), ["groups"] if given.quick else given.parts.split(",")
    records = []
    if "groups" in parts:
        records += show_groups(data, given.rounds, console)
    if "exchanges" in parts:
        records += show_exchanges([*data, *larger()], given.rounds, console)
    if "asynchronous" in parts:
        records += show_asynchronous(data[0], given, 36, console)
    if "slow-group" in parts:
        records += show_slow_group(data[0], given.engine, given.mean, 45, console)
    if "speed" in parts:
        show_speed(given.rounds, console)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        parts="groups,exchanges,asynchronous,slow-group,speed",
        seeds=(3, "of asynchronous runs"),
        mean=(0.05, "mean delay in seconds"),
        engine="in-process",
        rounds=300,
    )
