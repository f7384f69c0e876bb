"""Users in groups with agents, and columns of groups: runs of HierarchicalSVM in process."""

from __future__ import annotations

import csv
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, PowerCutError
from flwr.app import Context
from pooled import KEY
from sklearn.svm import SVC
from zoo import Table

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, Transcript
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import HierarchicalSVM

STALE = "asynchronous"


#: Ways to learn: kind of split, and options.
RUNS: dict[str, tuple[str, Table]] = {
    "pairwise": ("two layers", {}),
    "leave-out": ("two layers", {"lost_groups": "leave-out"}),
    "balanced": ("two layers", {"rho_schedule": "balanced", "model": "logistic"}),
    STALE: ("two layers", {"staleness": 2}),
    "asynchronous, leave-out": ("two layers", {"staleness": 2, "lost_groups": "leave-out"}),
    "one group": ("one group", {}),
    "centralised": ("one layer", {"architecture": "centralised"}),
    "vertical": ("columns", {"partition": "vertical"}),
}


USERS, GROUPS = 8, 4


def blobs(n: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    return rng.standard_normal((n, 4)) + 0.6 * y[:, None] + np.arange(4), y


def make_tables(split: str) -> list[Table]:
    """Deal rows to users of four groups of two; or two groups of columns, two users each."""
    (x, y), common = blobs(), {"classes": [-1.0, 1.0]}
    if split == "columns":
        ids, order = np.array([f"person {k}" for k in range(80)]), np.random.default_rng(1)
        tables: list[Table] = []
        own = {"alignment_key": KEY}
        for i in range(2):
            parts, columns = np.array_split(order.permutation(70), 2), slice(2 * i, 2 * i + 2)
            for j, rows in enumerate(parts):
                held = np.arange(70 + j, 80, 2)
                table = {"x": x[rows, columns], "ids": ids[rows], "group": i, **own}
                table |= {"x_test": x[held, columns], "ids_test": ids[held]}
                tables.append(table)
        tables += [{"role": "agent", "group": i} for i in range(2)]
        owner = {"role": "owner", "y": y[:70], "ids": ids[:70], "alignment_key": KEY, **common}
        return [*tables, {**owner, "y_test": y[70:], "ids_test": ids[70:]}]
    groups = {"two layers": GROUPS, "one group": 1, "one layer": 1}[split]
    tables = []
    for k, rows in enumerate(np.array_split(np.arange(72), USERS)):
        table = {"x": x[rows], "y": y[rows], "group": k * groups // USERS, **common}
        tables.append({**table, "x_test": x[72 + k : 73 + k], "y_test": y[72 + k : 73 + k]})
    agents = [{"role": "agent", "group": i} for i in range(groups)]
    return tables + agents * (split != "one layer")


@dataclass
class Network:
    """The nodes of a run, and what is left of it."""

    folder: Path
    tables: list[Table]
    options: Table
    state: bool = True

    @property
    def checkpoint(self) -> Path:
        return self.folder / "run.npz"

    @property
    def keep(self) -> Table:
        """Options of a run with a checkpoint."""
        return {"checkpoint": self.checkpoint, "checkpoint_every": 2}

    def client_fn(self, context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        table = dict(self.tables[k])
        if self.state:
            table["state_dir"] = self.folder / f"node-{k}"
        if table.get("role") == "owner":
            table["predictions"] = self.folder / "predictions.csv"
        return SVMClient(context, **table)

    def fit(
        self,
        faults: Any = None,
        rounds: int = 4,
        timeout: float = 60.0,
        transcript: Transcript | None = None,
        stop_at: int = 0,
        **options: Any,
    ) -> HierarchicalSVM:
        self.folder.mkdir(exist_ok=True, parents=True)
        common: Table = {"seed": 3, "tolerance": 1e-12}
        self.last = strategy = HierarchicalSVM(**{**common, **self.options, **options})

        def on_round(done: int, rounds: int, row: Any) -> None:
            if done == stop_at:
                raise PowerCutError

        strategy.on_round = on_round if stop_at else None
        how: Table = {"faults": faults, "num_rounds": rounds, "timeout": timeout}
        simulate(strategy, self.client_fn, len(self.tables), transcript=transcript, **how)
        return strategy

    def predictions(self) -> list[float]:
        path = self.folder / "predictions.csv"
        if not path.is_file():
            return []
        rows = list(csv.reader(path.open()))[1:]
        return [float(value) for row in sorted(rows) for value in row[1:]]


Open = Callable[[str], Network]  # what a fixture gives


def hits(partition: int, phase: str, what: Fault, nth: int = 1, *, always: bool = False) -> At:
    """Return what happens to a node the n-th time, or each time from the n-th on, in a phase."""
    return At(partition=partition, phase=phase, what=what, number=nth, always=always)


@pytest.fixture(autouse=True)
def same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)


@pytest.fixture
def network(tmp_path: Path) -> Open:
    folders = iter(range(10_000))

    def make(name: str) -> Network:
        split, options = RUNS[name]
        return Network(tmp_path / str(next(folders)), make_tables(split), options)

    return make


_QUIET: dict[tuple[str, int], tuple[HierarchicalSVM, list[float]]] = {}


@pytest.fixture
def check(network: Open) -> Callable[..., None]:
    """Return a function that compares with the run in which nothing happens."""

    def compare(name: str, found: Network, rounds: int = 4) -> None:
        if (name, rounds) not in _QUIET:
            quiet = network(name)
            strategy = quiet.fit(rounds=rounds)
            _QUIET[name, rounds] = strategy, quiet.predictions()
        right, predictions = _QUIET[name, rounds]
        rtol, coefficients = 1e-12, found.last.coefficients_
        np.testing.assert_allclose(coefficients, right.coefficients_, rtol=rtol, atol=1e-12)
        assert right.coefficients_.size or predictions
        np.testing.assert_allclose(found.predictions(), predictions, rtol=100 * rtol)
        assert found.last.metrics_ == pytest.approx(right.metrics_, rel=rtol)
        mine, theirs = ([r.get("objective", -1.0) for r in s.history_] for s in (found.last, right))
        assert mine == pytest.approx(theirs, rel=rtol)

    return compare


def check_optimum(
    strategy: HierarchicalSVM, network: Network, lost: Sequence[int] = (), rel: float = 5e-3
) -> None:
    """The optimum of the rows of all groups but the lost ones, in the coordinates of all.

    With the C that was chosen, where C was.
    """
    users = [t for t in network.tables if "y" in t]
    there = np.concatenate([np.full(len(t["y"]), t["group"] not in lost) for t in users])
    x, y = (np.concatenate([t[name] for t in users]) for name in ("x", "y"))
    z = (x - x.mean(0)) / x.std(0)

    def objective(w: np.ndarray, b: float) -> float:
        losses = np.maximum(0.0, 1.0 - y * (z @ w + b))[there]
        return float(0.5 * w @ w + strategy.C_ * losses.sum())

    best = SVC(kernel="linear", C=strategy.C_, tol=1e-9).fit(z[there], y[there])
    right = objective(best.coef_[0], best.intercept_[0])
    model = strategy.coefficients_[0]
    assert objective(model[:-1], model[-1]) == pytest.approx(right, rel=rel)
    assert strategy.metrics_["objective"] == pytest.approx(right, rel=rel)
    assert strategy.metrics_.get("groups_left_out", 0) == len(lost)
    if lost:  # a control
        everybody = SVC(kernel="linear", C=strategy.C_, tol=1e-9).fit(z, y)
        assert objective(everybody.coef_[0], everybody.intercept_[0]) > right * 1.01


def delays(seed: int, mean: float = 0.004) -> Callable[[Delivery], Fault | None]:
    """Exponential delays of groups, another draw for each group and iteration."""

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase != "svm-step":
            return None
        draw = uniform(seed, "delay", delivery.partition // 2, delivery.round)
        return Fault("delay", seconds=-mean * np.log(draw))

    return plan
