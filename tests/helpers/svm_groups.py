"""Users in groups with agents, and columns of groups: runs of HierarchicalSVM in process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, PowerCutError
from sklearn.svm import SVC
from zoo import WAYS, Sites, Table, Way, new_folder, users

from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import HierarchicalSVM

USERS, GROUPS = 8, 4


def contrary() -> list[Table]:
    """Users of four groups, one of which has other labels: without it the optimum is another."""
    tables = users(groups=GROUPS)
    for table in tables[2:4]:
        table["y"] = 1 - table["y"]
    return tables


_CENTRAL = WAYS["hierarchical-svm, centralised"]
_LAYERS = replace(WAYS["hierarchical-svm"], tables=contrary)

#: Ways to learn, with options.
RUNS: dict[str, tuple[Way, Table]] = {
    "pairwise": (_LAYERS, {}),
    "leave-out": (_LAYERS, {"lost_groups": "leave-out"}),
    "asynchronous": (_LAYERS, {"staleness": 2}),
    "asynchronous, leave-out": (_LAYERS, {"staleness": 2, "lost_groups": "leave-out"}),
    "centralised": (_CENTRAL, {"architecture": "centralised"}),
    "vertical": (WAYS["hierarchical-svm, vertical"], {"partition": "vertical"}),
}


@dataclass
class Network(Sites):
    """The nodes of a run, and what is left of it."""

    last: HierarchicalSVM = field(init=False)

    @property
    def keep(self) -> Table:
        """Options of a run with a checkpoint."""
        return {"checkpoint": self.folder / "run.npz", "checkpoint_every": 2}

    def learn(
        self, faults: Any = None, rounds: int = 4, *, stop_at: int = 0, **more: Any
    ) -> HierarchicalSVM:
        """Run the strategy, perhaps until an iteration; more: of ``simulate``, or options."""

        def on_round(done: int, rounds: int, row: Any) -> None:
            if done == stop_at:
                raise PowerCutError

        how: Table = {"timeout": 60.0, "num_rounds": rounds, "faults": faults}
        how |= {name: more.pop(name) for name in ("timeout", "transcript") if name in more}
        self.last = self.way.make(**more)
        self.last.on_round = on_round if stop_at else None
        simulate(self.last, self.client_fn, len(self), **how)
        return self.last


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
        way, options = RUNS[name]
        (folder := tmp_path / str(next(folders))).mkdir()
        given = {"seed": 3, "tolerance": 1e-12, **options}
        return Network(replace(way, options=given), folder, way.tables())

    return make


def check_optimum(
    strategy: HierarchicalSVM, network: Network, lost: Sequence[int] = (), rel: float = 5e-3
) -> None:
    """The optimum of the rows of all groups but the lost ones, in the coordinates of all.

    With the C that was chosen, where C was.
    """
    parts = [t for t in network.tables if "y" in t]
    there = np.concatenate([np.full(len(t["y"]), t["group"] not in lost) for t in parts])
    x, y = (np.concatenate([t[name] for t in parts]) for name in ("x", "y"))
    z, y = (x - x.mean(0)) / x.std(0), np.where(y > 0, 1.0, -1.0)

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


# -- rows of two classes, dealt to groups of users


def blobs(n: int = 90, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return two classes that overlap, in columns of different units, not centred."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    x = rng.standard_normal((n, d)) + 0.7 * y[:, None] * (np.arange(d) < 3)
    return x * np.geomspace(0.3, 6.0, d) + np.arange(d), y


def deal(rows: int, users: int, seed: int = 1) -> list[np.ndarray]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), users)


def standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def horizontal(
    x: np.ndarray, y: np.ndarray, sizes: Sequence[int], *, agents: bool = True, **common: Any
) -> list[Table]:
    """Deal rows to groups of so many users."""
    common, parts = {"classes": [-1.0, 1.0], **common}, deal(len(x), sum(sizes))
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    tables: list[Table] = [
        {"x": x[rows], "y": y[rows], "group": group, **common}
        for rows, group in zip(parts, groups, strict=True)
    ]
    return tables + [{"role": "agent", "group": i} for i in range(len(sizes)) if agents]


def served(tables: list[Table]) -> Sites:
    return Sites(WAYS["hierarchical-svm"], new_folder(), tables)


def fit(nodes: list[Table] | Sites, rounds: int = 200, **options: Any) -> HierarchicalSVM:
    sites = nodes if isinstance(nodes, Sites) else served(nodes)
    start: Table = {"num_rounds": rounds, "timeout": 60.0}
    found: HierarchicalSVM = sites.fit(start=start, **{"C": 1.0, **options}).strategy
    return found
