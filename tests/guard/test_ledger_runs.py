"""The ledger in whole runs: two runs that differ by a row or by a party, for several methods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from identities import pin_identities, pinned
from refusals import refused, refuses

from fedkern_flwr import clients
from fedkern_flwr.clients import (
    Client,
    GramClient,
    HybridKernelClient,
    OnlineKernelClient,
    RangesClient,
    SVMClient,
    VerticalKernelClient,
)
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import (
    FDSKL,
    POFMKL,
    POFRLS,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
)

pytestmark = pytest.mark.usefixtures("cheap_noise")
KEY, NODES, ROWS = bytes(32), 5, 30
RNG = np.random.default_rng(0)
X, Y = RNG.random((NODES, ROWS, 3)) / 2.0, (RNG.random((NODES, ROWS)) < 0.5).astype(float)
IDS = np.arange(ROWS)

#: Rows that a node has of those that it could have.
Held = Callable[[int], slice]


def online(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    return OnlineKernelClient(context, X[k, n], Y[k, n], **own)


def ranges(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    return RangesClient(context, X[k, n], **own)


def hybrid(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    """Hospitals 0 and 1 with patients of their own, centres that know all of them."""
    own |= {"alignment_key": KEY}
    if k < 2:
        ids = [f"{k}/{i}" for i in IDS[n]]
        return HybridKernelClient(context, X[k, n], Y[k, n], ids=ids, classes=(0.0, 1.0), **own)
    ids = [f"{h}/{i}" for h in (0, 1) for i in IDS[n]]
    return HybridKernelClient(context, np.concatenate([X[k, n], X[k, n]]), ids=ids, **own)


def vertical(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    y = Y[0, n] if k == 0 else None
    own |= {"alignment_key": KEY, "classes": (0.0, 1.0) if k == 0 else None}
    return VerticalKernelClient(context, X[k, n], y, ids=IDS[n], **own)


def svm(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    if k == nodes - 1:
        return SVMClient(context, role="agent", **own)
    return SVMClient(context, X[k, n], Y[k, n], classes=(0.0, 1.0), **own)


def gram(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
    return GramClient(context, (X[k, n] > 0.2).astype(int), **own)


METHODS: dict[str, tuple[Callable[..., Client], Callable[[], Any]]] = {
    "pof-mkl": (online, lambda: POFMKL(kernels=3, features=2, samples_per_round=5, secure=True)),
    "ranges": (ranges, ColumnRanges),
    "fed-cg": (hybrid, lambda: FedCG(landmarks=4)),
    "fdskl": (vertical, lambda: FDSKL(features=8, missing="drop-row")),
    "hierarchical-svm": (svm, lambda: HierarchicalSVM(tolerance=0.1)),
    "fed-cfk": (gram, lambda: FedCFK(min_support=0, allow_recovery=True)),
}


def all_rows(k: int) -> slice:
    return slice(0, 20)


class Federation:
    """Nodes with folders and pinned identities of their own, which are no simulation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pin_identities(folder, NODES)
        for k in range(NODES):
            self.ledger(k).make()

    def run(
        self,
        method: str,
        nodes: int,
        held: Held = all_rows,
        strategy: Any = None,
        policy: NodePolicy | None = None,
        agents: int = 1,
        samples: int = 10,
    ) -> Any:
        make, usual = METHODS[method]

        def client_fn(context: Context) -> Client:
            k = int(context.node_config["partition-id"])
            context.node_config["simulation"] = False
            own = policy or NodePolicy(counting="warn", allow_small_sums=True)
            known = pinned(self.folder, k)
            return make(context, k, held(k), nodes + 1 - agents, policy=own, **known)

        chosen = usual() if strategy is None else strategy
        windows = make.__name__ in ("online", "client")  # of five rows: fewer are refused
        rounds = {} if method == "fed-cfk" else {"num_rounds": samples if windows else 2}
        simulate(chosen, client_fn, nodes, **rounds)
        return chosen

    def ledger(self, k: int) -> NodeLedger:
        return NodeLedger(self.folder / str(k), k)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


class Unlike(HybridKernelClient):
    """Is told that other hospitals may have other landmarks."""

    def fit(self, parameters: Any, config: Any) -> Any:
        if str(config["phase"]).startswith("hybrid-own"):
            config = {**config, "alike": False}
        return super().fit(parameters, config)


@pytest.mark.parametrize("kind", [HybridKernelClient, Unlike])
def test_rows_of_others_hide_where_all_have_the_same_landmarks(
    kind: type[HybridKernelClient], federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hospital(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
        return kind(context, X[k, n], Y[k, n], classes=(0.0, 1.0), **own)

    monkeypatch.setitem(METHODS, "fed-cg", (hospital, lambda: FedCG(landmarks=4)))
    federation.run("fed-cg", 5)
    with federation.ledger(0).file.open() as db:
        query = "SELECT max(others) FROM opened WHERE purpose = 'equations'"
        ((others,),) = db.execute(query).fetchall()
    assert (others > 0) == (kind is HybridKernelClient)


def one_less(k: int) -> slice:
    """All nodes but one have the same rows."""
    return slice(0, 19 if k == 1 else 20)


@pytest.mark.parametrize("method", METHODS)
def test_the_next_run_may_differ_by_no_row_nor_party(method: str, federation: Federation) -> None:
    """POF-MKL has windows of the first ten; FDSKL sums row by row, and tells figures of rows."""
    federation.run(method, 5)
    (answered,) = federation.ledger(1).runs()
    assert answered.rows == 20
    assert answered.sums
    assert answered.parties
    refuses("FK-CELLS-ONE-APART", federation.run, method, 4)
    if method == "pof-mkl":
        federation.run(method, 5, one_less)
        return
    error = refuses("FK-FREEZE-ROWS", federation.run, method, 5, one_less)
    assert error.exit_code == 2
    found = federation.ledger(0 if method == "fdskl" else 1).runs()[2]
    assert found.sums == (("phases/0",) if method == "fdskl" else ())
    assert found.refusals == 1
    refuses("FK-FREEZE-WAITS", federation.run, method, 5, lambda k: slice(0, 21))


def test_rows_that_a_further_centre_lacks_are_no_other_rows(federation: Federation) -> None:
    """Dropped, they would be told apart; with neutral blocks the rows are those of before."""
    policy = NodePolicy(allow_small_sums=True, allow_party_change=True)

    def run(nodes: int, missing: Any) -> None:
        strategy = FedCG(landmarks=4, missing=missing)
        lacks = slice(0, 18)
        federation.run(
            "fed-cg", nodes, lambda k: lacks if k == 4 else all_rows(k), strategy, policy
        )

    run(4, "drop-row")
    refuses("FK-FREEZE-ROWS", run, 5, "drop-row")
    run(5, "neutral")


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_the_same_passes_and_what_an_owner_allows(method: str, federation: Federation) -> None:
    federation.run(method, 4)
    federation.run(method, 4)
    policy = NodePolicy(allow_small_sums=True, allow_party_change=True)
    federation.run(method, 5, policy=policy)


def test_a_run_that_broke_off_is_resumed(federation: Federation, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "kernels": 3, "features": 2, "samples_per_round": 5, "secure": True,
        "checkpoint": tmp_path / "run.npz", "checkpoint_every": 1,
    }  # fmt: skip
    federation.run("pof-mkl", 4, strategy=POFMKL(**options))
    federation.run("pof-mkl", 4, strategy=POFMKL(**options, resume=True))
    assert [run.number for run in federation.ledger(0).runs()] == [1]


def test_numbers_of_streams_are_counted_over_runs(federation: Federation) -> None:
    """The second run would ask about the same rows again, whatever its kernels and samples."""

    def go(samples: int, seed: int = 0) -> None:
        strategy = POFMKL(
            kernels=3, features=2, samples_per_round=samples, subset="shared", secure=True,
            seed=seed,
        )  # fmt: skip
        federation.run("pof-mkl", 4, all_rows, strategy, NodePolicy())

    go(5)
    go(5)  # the same again tells nothing new
    error = refuses("FK-CELLS-NUMBERS", go, 5, seed=1)
    assert error.exit_code == 2
    assert not federation.ledger(1).runs()[2].sums


def test_the_places_of_others_hide_what_two_windows_differ_by(federation: Federation) -> None:
    """Five rows of a node bear no 22 numbers, those of the four parties do."""
    for samples in (10, 5):
        strategy = POFMKL(
            kernels=1, features=8, samples_per_round=samples, subset="shared", secure=True
        )
        federation.run("pof-mkl", 5, all_rows, strategy, NodePolicy())


def test_products_in_the_difference_of_two_windows_need_rows_too(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 columns: fewer than 50 hidden rows of whole numbers fall to lattice reduction."""
    x = np.random.default_rng(1).integers(0, 3, (NODES, 160, 24)) / 48.0

    def client(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
        return OnlineKernelClient(context, x[k], np.arange(160) % 2 / 1.0, **own)

    def run(samples: int) -> None:
        rls = POFRLS(experts="global-ridge", secure=True, samples_per_round=samples)
        federation.run("products", 5, strategy=rls, policy=NodePolicy(), samples=samples)

    monkeypatch.setitem(METHODS, "products", (client, POFRLS))
    for _ in range(2):
        run(40)
    with refused("FK-PARTIES-LOST") as error:
        run(50)
    assert "FK-FREEZE-ROWS" in str(error.value)


def test_figures_are_counted_over_runs(federation: Federation) -> None:
    """Ten by default, whatever the model."""

    def client(context: Context, k: int, n: slice, nodes: int, **own: Any) -> Client:
        held = {"x_test": X[k, 20:], "y_test": Y[k, 20:]}
        return OnlineKernelClient(context, X[k, n], Y[k, n], **held, **own)

    METHODS["evaluated"] = (client, METHODS["pof-mkl"][1])
    try:
        for seed in range(3):
            strategy = POFMKL(kernels=3, features=2, samples_per_round=5, secure=True, seed=seed)
            federation.run("evaluated", 4, strategy=strategy)
            told = federation.ledger(2).runs()[-1].evaluations
            assert told == 1
    finally:
        del METHODS["evaluated"]


def test_every_client_says_what_its_rows_are() -> None:
    """A method's author cannot forget it: the ledger would know nothing of its rows."""
    for name in clients.__all__:
        found = getattr(clients, name)
        if isinstance(found, type) and found is not Client:
            assert found.own_rows is not Client.own_rows, name


def test_runs_with_noise_add_up_at_each_node_until_its_limit(federation: Federation) -> None:
    """Whole runs on nodes that are no simulation; centres know what hospitals release of rows."""
    policy = NodePolicy(max_epsilon=3.0, min_own_rows=0)

    def private(epsilon: float | None) -> FedCG:
        return FedCG(basis="fourier", landmarks=4, privacy_epsilon=epsilon)

    for _ in range(2):
        federation.run("fed-cg", 5, strategy=private(1.5), policy=policy)
    spent = [run.epsilon for run in federation.ledger(0).runs()]
    assert spent == pytest.approx([1.5, 1.5], rel=1e-3)
    assert [run.epsilon for run in federation.ledger(3).runs()] == pytest.approx(spent, rel=1e-3)
    refuses("FK-BUDGET-SPENT", federation.run, "fed-cg", 5, strategy=private(2.5), policy=policy)
    assert federation.ledger(0).runs()[2].epsilon == 0.0
    for epsilon, code in ((4.0, "FK-POLICY-EPSILON"), (None, "FK-POLICY-NOISE")):
        refuses(code, federation.run, "fed-cg", 5, strategy=private(epsilon), policy=policy)


def test_three_methods_about_the_same_patients_are_one_budget(federation: Federation) -> None:
    """The node's limit is about people, whatever asks: one run is answered, the next are not."""
    policy = NodePolicy(max_epsilon=3.0, min_own_rows=0, min_sum_rows=0)
    budget: dict[str, Any] = {"privacy_epsilon": 3.0}
    online = {"kernels": 3, "features": 2, "samples_per_round": 5}
    runs = {
        "fed-cg": FedCG(basis="fourier", landmarks=4, **budget),
        "hierarchical-svm": HierarchicalSVM(C=1.0, architecture="centralised", **budget),
        "pof-mkl": POFMKL(**online, **budget),
    }
    for method, strategy in runs.items():
        with nullcontext() if method == "fed-cg" else refused("FK-BUDGET-SPENT"):
            federation.run(method, 5, strategy=strategy, policy=policy, agents=0)
    assert federation.ledger(0).spent() == pytest.approx(3.0, rel=1e-3)


@pytest.mark.promise("session-once")
def test_a_second_run_of_a_name_is_refused(federation: Federation, monkeypatch: Any) -> None:
    """With one party fewer its sums would be those of the first run less that party's."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "ab" * size)
    federation.run("pof-mkl", 5)
    for nodes in (4, 5):
        refuses("FK-SESSION-KNOWN", federation.run, "pof-mkl", nodes)
    assert federation.ledger(1).runs()[0].refusals == 2


@pytest.mark.promise("noise-ledger-kept")
def test_a_ledger_that_is_gone_is_no_new_start(federation: Federation) -> None:
    strategy = FedCG(basis="fourier", landmarks=4, privacy_epsilon=1.0)
    for file in (federation.folder / "0").glob("ledger*"):
        file.unlink()
    with refused("FK-BUDGET-LEDGER"):
        federation.run("fed-cg", 5, strategy=strategy, policy=NodePolicy(max_epsilon=3.0))
