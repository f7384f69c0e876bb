"""Runs of all methods by nodes that guard themselves: no simulations, with the default policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import Asked, asked_first
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedkern_flwr.clients import (
    AlignmentClient,
    GramClient,
    HybridKernelClient,
    KernelPCAClient,
    OnlineKernelClient,
    RangesClient,
    StreamClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import InProcessGrid
from fedkern_flwr.strategies import (
    EMKOFL,
    FDSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    AlignIds,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
    PerFedAvg,
    SecureGram,
)


class SecureMean(SecureAggregation, FedAvg):
    """Any strategy that averages."""


KEY, ROWS, TESTS = b"k" * 16, 8, 6
Table = dict[str, Any]
ClientFn = Callable[[Context], PhaseClient]


# -- runs


def nodes(make: Callable[[Context, int], PhaseClient]) -> ClientFn:
    """Return a client function of nodes that are none of a simulation."""

    def client_fn(context: Context) -> PhaseClient:
        context.node_config["simulation"] = False
        return make(context, int(context.node_config["partition-id"]))

    return client_fn


def grid(client_fn: ClientFn, count: int) -> InProcessGrid:
    return InProcessGrid(ClientApp(client_fn=lambda c: client_fn(c).to_client()), count)


def names(first: int, count: int) -> list[str]:
    return [f"person {k}" for k in range(first, first + count)]


def online(strategy: Any, seed: int, folder: Path) -> Any:
    rng = np.random.default_rng(seed)
    tables = [(rng.uniform(-0.5, 0.5, (20, 3)), rng.random(20)) for _ in range(4)]

    def make(context: Context, k: int) -> PhaseClient:
        x, y = tables[k]
        client = OnlineKernelClient(context, x[:12], y[:12], x_test=x[12:], y_test=y[12:])
        # what so few samples show is not the question here
        client.policy = replace(client.policy, allow_small_sums=True)
        return client

    simulate(strategy, nodes(make), 4, num_rounds=1)
    return strategy


def stream(strategy: Any, seed: int, folder: Path) -> Any:
    rng = np.random.default_rng(seed)
    tables = [(rng.uniform(-0.5, 0.5, (40, 3)), rng.random(40)) for _ in range(4)]

    def make(context: Context, k: int) -> PhaseClient:
        rows = zip(*tables[k], strict=True)
        return StreamClient(context, rows, wait=0.0, state_dir=folder / f"{k}")

    simulate(strategy, nodes(make), 4, num_rounds=30)
    return strategy


def hybrid(strategy: Any, seed: int, folder: Path, *, hospitals: int = 3, **common: Any) -> Any:
    rng, count = np.random.default_rng(seed), hospitals
    each = ROWS + TESTS
    x, y = rng.random((count * each, 6)), rng.integers(0, 2, count * each)
    y[::each], y[1::each] = 0, 1
    common["alignment_key"] = KEY

    def make(context: Context, k: int) -> PhaseClient:
        if k >= count:
            own = x[:, 2 * (k - count) + 2 : 2 * (k - count) + 4]
            return HybridKernelClient(context, own, ids=names(0, count * each), **common)
        fit, held = slice(k * each, k * each + ROWS), slice(k * each + ROWS, (k + 1) * each)
        return HybridKernelClient(
            context,
            x[fit, :2],
            y[fit],
            ids=names(k * each, ROWS),
            x_test=x[held, :2],
            y_test=y[held],
            ids_test=names(k * each + ROWS, TESTS),
            classes=(0, 1),
            **common,
        )

    simulate(strategy, nodes(make), count + 2)
    return strategy


def vertical(strategy: Any, seed: int, folder: Path, *, actives: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    total = 2 * ROWS + 2 * TESTS
    x, y = rng.random((total, 8)), rng.integers(0, 2, total).astype(float)
    y[:4] = (0.0, 1.0, 0.0, 1.0)

    def make(context: Context, k: int) -> PhaseClient:
        own, more = x[:, 2 * k : 2 * k + 2], dict[str, Any]()
        held, fit = np.arange(2 * ROWS, total), np.arange(2 * ROWS)
        if k >= actives:
            return VerticalKernelClient(context, own, ids=names(0, total), alignment_key=KEY)
        mine = held[held % actives == k]
        more = {"x_test": own[mine], "y_test": y[mine], "classes": (0, 1)}
        more["ids_test"] = [f"person {i}" for i in mine]
        rest = np.setdiff1d(np.arange(total), mine)
        labels = np.where(np.isin(rest, fit[fit % actives == k]), y[rest], np.nan)
        ids = [f"person {i}" for i in rest]
        return VerticalKernelClient(context, own[rest], labels, ids=ids, alignment_key=KEY, **more)

    simulate(strategy, nodes(make), 4, num_rounds=3)
    return strategy


def gram(strategy: Any, seed: int, folder: Path, *, cross: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    tables = [rng.integers(0, 2, (9, 6)) for _ in range(4)]
    for table in tables:
        table[:2] = 1

    def make(context: Context, k: int) -> PhaseClient:
        x = tables[k]
        return GramClient(context, x, x_test=np.roll(x, 1, axis=1), x_new=x[:, :2])

    simulate(strategy, nodes(make), 4)
    if cross:
        SecureGram().cross(grid(nodes(make), 4), strategy.model())
    return strategy


def layers(strategy: Any, seed: int, folder: Path, *, groups: int = 2, agents: bool = True) -> Any:
    rng = np.random.default_rng(seed)
    each = ROWS + TESTS
    x, y = rng.random((4 * each, 3)), np.tile([-1.0, 1.0], 2 * each)

    def make(context: Context, k: int) -> PhaseClient:
        if k >= 4:
            return SVMClient(context, role="agent", group=k - 4)
        fit, held = slice(k * each, k * each + ROWS), slice(k * each + ROWS, (k + 1) * each)
        more: Table = {"x_test": x[held], "y_test": y[held], "classes": [-1.0, 1.0]}
        return SVMClient(context, x[fit], y[fit], group=k * groups // 4, **more)

    simulate(strategy, nodes(make), 4 + groups * agents, num_rounds=2)
    return strategy


def columns(strategy: Any, seed: int, folder: Path, *, predict: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    total = 2 * (ROWS + TESTS)
    x, y = rng.random((total, 4)), np.tile([-1.0, 1.0], total // 2)

    def make(context: Context, k: int) -> PhaseClient:
        state: Table = {"state_dir": folder / str(k)}
        if k in (4, 5):
            return SVMClient(context, role="agent", group=k - 4, **state)
        common: Table = {"alignment_key": KEY, **state}
        if k == 6:
            fit, held = slice(2 * ROWS), slice(2 * ROWS, total)
            common |= {"y_test": y[held], "ids_test": names(2 * ROWS, 2 * TESTS)}
            common |= {"classes": [-1.0, 1.0], "predictions": folder / "out.csv"}
            return SVMClient(context, None, y[fit], role="owner", ids=names(0, 2 * ROWS), **common)
        own, part = x[:, 2 * (k // 2) : 2 * (k // 2) + 2], np.arange(k % 2, total, 2)
        ids = [f"person {i}" for i in part]
        return SVMClient(context, own[part], group=k // 2, ids=ids, **common)

    simulate(strategy, nodes(make), 7, num_rounds=3)
    if predict:
        arrays, meta = strategy.model()
        again = HierarchicalSVM.of_model(meta)
        again.predict_at_nodes(grid(nodes(make), 7), arrays, meta)
    return strategy


def ranges(strategy: Any, seed: int, folder: Path, file: str = "ranges") -> Any:
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((ROWS, 2)) for _ in range(4)]

    def make(context: Context, k: int) -> PhaseClient:
        return RangesClient(context, tables[k], **{file: folder / f"{k}.json"})  # type: ignore[arg-type]

    simulate(strategy, nodes(make), 4)
    return strategy


def components(strategy: Any, seed: int, folder: Path) -> Any:
    x = np.random.default_rng(seed).random((4, ROWS + TESTS, 2))

    def make(context: Context, k: int) -> PhaseClient:
        return KernelPCAClient(context, x[k, :ROWS], x_test=x[k, ROWS:])

    simulate(strategy, nodes(make), 4)
    return strategy


def means(strategy: Any, seed: int, folder: Path) -> Any:
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((ROWS, 2)) for _ in range(4)]

    def load(context: Context) -> np.ndarray:
        context.node_config["simulation"] = False
        return tables[int(context.node_config["partition-id"])]

    mod = secure_aggregation_mod(load, held_out=load, policy=NodePolicy())
    app = ClientApp(mods=[mod])

    @app.train()
    @app.evaluate()
    def answer(message: Message, context: Context) -> Message:
        x = load(context)
        content = RecordDict({"metrics": MetricRecord({"loss": x.sum(), "num-examples": len(x)})})
        content["arrays"] = ArrayRecord([x.mean(axis=0)])
        return Message(content, reply_to=message)

    simulate(strategy, app, 4, num_rounds=1, initial_arrays=ArrayRecord([np.zeros(2)]))
    return strategy


def align(strategy: Any, seed: int, folder: Path) -> Any:
    def make(context: Context, k: int) -> PhaseClient:
        return AlignmentClient(context, names(3 * seed + k, ROWS), alignment=folder / f"{k}.npz")

    simulate(strategy, nodes(make), 3)
    return strategy


_STREAM: Table = {"schedule": "streaming", "directions": 2, "batch": 2, "step": 0.3, "gamma": 0.5}
RUNS: dict[str, Callable[[int, Path], Any]] = {
    "pof-mkl": lambda s, f: online(POFMKL(secure=True), s, f),
    "pof-rls": lambda s, f: online(POFRLS(features=1, secure=True), s, f),
    "pof-rls, whole": lambda s, f: online(POFRLS(features=1, secure=True, drop_outs=False), s, f),
    "vm-kofl, stream": lambda s, f: stream(VMKOFL(kernels=3, secure=True), s, f),
    "vm-kofl": lambda s, f: online(VMKOFL(secure=True), s, f),
    "em-kofl": lambda s, f: online(EMKOFL(secure=True), s, f),
    "per-fed-avg": lambda s, f: online(PerFedAvg(secure=True), s, f),
    "fed-cg": lambda s, f: hybrid(FedCG(landmarks=3, penalty="rkhs", sampling="N"), s, f),
    "fed-cg, tuned": lambda s, f: hybrid(FedCG(landmarks=3, sampling="C"), s, f),
    "fed-cg, weighed": lambda s, f: hybrid(FedCG(landmarks=3, class_weight="balanced"), s, f),
    "fed-cg, products": lambda s, f: hybrid(FedCG(landmarks=3, solver="cg"), s, f),
    "fed-cg, alone": lambda s, f: hybrid(
        FedCG(landmarks=3, allow_single=True), s, f, hospitals=1, allow_single=True
    ),
    "fdskl": lambda s, f: vertical(FDSKL(features=8, gamma=0.5), s, f),
    "fdskl, two": lambda s, f: vertical(FDSKL(**_STREAM), s, f, actives=2),
    "secure-gram": lambda s, f: gram(SecureGram(min_support=2), s, f, cross=True),
    "fed-cfk": lambda s, f: gram(FedCFK(min_support=2), s, f),
    "svm": lambda s, f: layers(HierarchicalSVM(seed=1), s, f),
    "svm, weighed": lambda s, f: layers(HierarchicalSVM(seed=1, class_weight="balanced"), s, f),
    "svm, flat": lambda s, f: layers(
        HierarchicalSVM(class_weight="balanced"), s, f, groups=1, agents=False
    ),
    "svm, budget": lambda s, f: layers(
        HierarchicalSVM(C=1.0, privacy_epsilon=3.0),
        s,
        f,
        groups=1,
        agents=False,
    ),
    "svm, columns": lambda s, f: columns(HierarchicalSVM(partition="vertical"), s, f, predict=True),
    "ranges": lambda s, f: ranges(ColumnRanges(), s, f),
    "ranges, encoded": lambda s, f: ranges(ColumnRanges(), s, f, "encoder"),
    "means of apps": lambda s, f: means(SecureMean(), s, f),
    "align": lambda s, f: align(AlignIds(), s, f),
    "kernel-pca": lambda s, f: components(KernelPCA(features=2), s, f),
}


@pytest.fixture(scope="session")
def guarded_runs() -> dict[str, Callable[[int, Path], Any]]:
    """Return runs of all methods, by name: (seed of the tables, folder) -> the strategy."""
    return RUNS


@pytest.fixture
def meet(tmp_path: Path) -> Callable[..., Asked]:
    """Return a function that runs a method until a certain order arrives at a node."""

    def run(name: str, node: int, phase: str, order: str, seed: int) -> Asked:
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        return asked_first(lambda: RUNS[name](seed, folder), node, phase, order)

    return run
