"""A budget of privacy of methods of one's own, and kernel PCA, with a budget and without."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Context
from pooled import stacked
from refusals import refused, refuses
from scipy import stats
from sklearn.decomposition import PCA
from zoo import fit as fit_way

from fedkern_flwr.clients import KernelPCAClient, SVMClient
from fedkern_flwr.kernels.random_features import feature_map
from fedkern_flwr.method import Ask, MethodClient, Sum, answers, contributes
from fedkern_flwr.privacy.accounting import check_accountant
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.strategies import HierarchicalSVM, KernelPCA

CLIENTS, ALARM = 6, 1e-9  # the noise cannot be seeded: probability of a false alarm
X = np.random.default_rng(0).random((CLIENTS, 400, 3))
Y = np.where(X.sum(axis=2) > 1.5, 1.0, -1.0)


def served(method: Any, x: np.ndarray) -> Any:
    def client(context: Context) -> Any:
        k = int(context.node_config["partition-id"])
        if method is KernelPCA:
            return KernelPCAClient(context, x[k, :75], x_test=x[k, 75:100])
        labels: Any = {"y_test": Y[k, 75:100], "classes": (-1.0, 1.0)}
        return SVMClient(context, x[k, :75], Y[k, :75], x_test=x[k, 75:100], **labels)

    more: Any = {"architecture": "centralised", "C": 1.0} if method is HierarchicalSVM else {}
    made = method(privacy_epsilon=2.0, seed=0, **more)
    simulate(made, client, CLIENTS, num_rounds=3)
    return made


@pytest.mark.parametrize("method", [HierarchicalSVM, KernelPCA])
def test_the_result_has_the_budget_and_what_nodes_say_tells_no_values(method: Any) -> None:
    """Two tables of one size whose columns have few and many values."""
    found = []
    for x in (X, np.round(X)):
        made = served(method, x)
        told = [vars(replace(p, public_key=b"", nonce="")) for p in made.parties_.values()]
        found.append(repr(told))
    assert found[0] == found[1]
    budget = made.result()["privacy"]["budget"]
    assert budget["epsilon"] == 2.0
    assert budget["releases"]
    assert all(0.0 < one["epsilon"] <= 2.0 for one in budget["releases"])
    assert all(one["mechanism"] == "skellam" for one in budget["releases"])


# -- a method of one's own


class Total(PrivateMethod):
    """Sums two hundred numbers, as often as it is told."""

    method, title, times = "total", "Total", 1

    def rounds(self, parties: Any) -> Any:
        for k in range(self.times):
            found = yield Sum(f"numbers {k}", {"all": (200,)}, bound=1.0, sensitivity=1.0)
            self.model_ = {"all": found["all"]}
        return {}


class TotalClient(MethodClient):
    @contributes("numbers 0", bound=1.0, sensitivity=1.0)
    def first(self) -> Any:
        return {"all": np.full(200, len(self.x) / 200)}

    @contributes("numbers 1", bound=1.0, sensitivity=1.0)
    def second(self) -> Any:
        return {"all": np.full(200, len(self.x) / 300)}


def client(context: Context, kind: type[MethodClient] = KernelPCAClient) -> MethodClient:
    k = int(context.node_config["partition-id"])
    return kind(context, X[k, :300], x_test=X[k, 300:])


def run(strategy: Any, kind: type[MethodClient] = TotalClient, **more: Any) -> Any:
    simulate(strategy, lambda context: client(context, kind), CLIENTS, **more)
    return strategy


@pytest.mark.parametrize("lost", [(), (1, 4)])
def test_whoever_survives_there_is_the_noise_that_is_told(lost: tuple[int, ...]) -> None:
    faults = FaultPlan([(k, "method", 1, Fault("vanished")) for k in lost])
    made = run(Total(privacy_epsilon=2.0, threshold=4), faults=faults)
    budget = made.result()["privacy"]["budget"]
    (told,) = budget["releases"]
    noise = made.model_["all"] - 1.5 * (CLIENTS - len(lost))
    apart = abs(noise.std() / told["deviation"] - 1)
    assert apart < stats.norm.isf(ALARM) * math.sqrt(0.51 / noise.size)
    share = told["deviation"] / told["declared_deviation"]
    assert share == pytest.approx(math.sqrt((CLIENTS - len(lost)) / (4 - 1)))
    assert 1.99 < told["epsilon"] <= 2.0


def test_sums_about_the_same_rows_share_the_budget_and_no_more_are_made_than_were_said() -> None:
    class Twice(Total):
        times, releases = 2, 2

    class TwiceClient(TotalClient):
        releases: ClassVar[int] = 2

    budget = run(Twice(privacy_epsilon=2.0), TwiceClient).result()["privacy"]["budget"]
    one, other = budget["releases"]
    assert one["epsilon"] == other["epsilon"] < 1.5

    class Greedy(Total):
        times = 2

    refuses("FK-BUDGET-EXCEEDED", run, Greedy(privacy_epsilon=2.0))


class Asks(Total):
    """A server that sums, or asks, what it should not."""

    step: Any = Sum("numbers 0", {"all": (200,)}, bound=1.0)  # of no sensitivity

    def rounds(self, parties: Any) -> Any:
        yield self.step


class SilentClient(MethodClient):
    @contributes("numbers 0", bound=1.0)
    def first(self) -> Any:
        return {"all": np.zeros(200)}


class Talkative(TotalClient):
    @answers("mean")
    def mean(self) -> Any:
        return {"mean": float(self.x.mean())}


def asking(step: Any) -> Any:
    return type("Asks", (Asks,), {"step": step})


@pytest.mark.parametrize(
    ("method", "kind", "code"),
    [
        (Asks, TotalClient, "FK-BUDGET-SENSITIVITY"),
        (Total, SilentClient, "FK-BUDGET-METHOD"),
        (
            asking(Sum("numbers 0", {"all": (200,)}, bound=1.0, sensitivity=0.1)),
            TotalClient,
            "FK-ORDER-NOISE",
        ),
        (asking(Ask("mean")), Talkative, "FK-BUDGET-ANSWER"),
    ],
    ids=["no sensitivity", "no noise at the clients", "a smaller sensitivity", "an answer"],
)
def test_what_would_leave_without_its_noise_is_refused(method: Any, kind: Any, code: str) -> None:
    refuses(code, run, method(privacy_epsilon=2.0, attempts=1), kind)


# -- kernel PCA


def test_kernel_pca_with_much_budget_is_nearly_that_without() -> None:
    options: Any = {"features": 5, "seed": 0, "bandwidth": 1.0}
    plain = run(KernelPCA(**options), KernelPCAClient)
    noisy = run(KernelPCA(privacy_epsilon=20.0, **options), KernelPCAClient)
    alike = np.abs(np.vecdot(plain.model_["components"], noisy.model_["components"]))
    assert alike[0] > 0.6
    assert abs(plain.metrics_["explained"] - noisy.metrics_["explained"]) < 0.25
    budget = noisy.result()["privacy"]["budget"]
    assert [one["release"] for one in budget["releases"]] == ["moments", "evaluate/rest"]
    little = run(KernelPCA(privacy_epsilon=0.01, features=5, seed=0), KernelPCAClient)
    assert np.isfinite(little.model_["components"]).all()
    assert 0.0 <= little.metrics_["explained"] <= 1.0 + 1e-9


def test_a_node_without_the_accountant_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "fedkern_flwr.node.guarded.check_accountant"

    def lacking(party: str) -> None:
        with monkeypatch.context() as there:
            if party == "partition 2":
                there.setitem(sys.modules, "dp_accounting", None)
            check_accountant(party)

    monkeypatch.setattr(place, lacking)
    with refused("FK-PACKAGE-MISSING") as why:
        run(KernelPCA(privacy_epsilon=2.0, features=5, seed=0), KernelPCAClient)
    assert why.value.party == "partition 2"
    assert why.value.exit_code == 2


@pytest.mark.parametrize("phase", ["", "method", "always"])
def test_components_are_those_of_the_rows_that_were_summed(phase: str) -> None:
    """Who vanished then is there again for the projections, or goes without."""
    kind = Fault("vanished" if phase == "method" else "lost request")
    plan = FaultPlan([(2, "method", 1 if phase == "method" else None, kind)]) if phase else None
    more: Any = {"threshold": 3, "attempts": 2} if phase else {}
    found = fit_way("kernel-pca", faults=plan, start={"timeout": 0.2}, **more)
    strategy, tables = found.strategy, found.sites.tables
    packed = np.array([1.2], "<f8").tobytes()
    z = feature_map(packed, 3, 4, strategy.run_seed, "float64", "orthogonal")
    summed = [t for k, t in enumerate(tables) if not phase or k != 2]
    oracle = PCA(strategy.components, svd_solver="full").fit(z(stacked(summed))[:, 0])
    assert strategy.metrics_["rows"] == 15 * len(summed)
    for name, expected in (
        ("components", oracle.components_),
        ("shares", oracle.explained_variance_ratio_),
    ):
        got = np.abs(strategy.model_[name])
        np.testing.assert_allclose(got, np.abs(expected), rtol=0, atol=1e-9)
    seen = [t for k, t in enumerate(tables) if phase != "always" or k != 2]
    left = z(stacked(seen, "x_test"))[:, 0] - oracle.mean_
    lost = ((left - (left @ oracle.components_.T) @ oracle.components_) ** 2).sum()
    explained = 1.0 - lost / (left**2).sum()
    assert strategy.metrics_["test_explained"] == pytest.approx(explained, abs=1e-9)


def test_projections_may_be_drawn() -> None:
    drawn: list[Any] = []

    def draw(*arguments: Any) -> None:
        drawn.append(arguments)

    found = fit_way("kernel-pca", client={"draw": lambda: draw}, components=2)
    assert sorted(path.parent.name for path, *_ in drawn) == ["0", "1", "2", "3"]
    assert found.strategy.result()["metrics"].keys() == {"rows", "explained", "test_explained"}
    assert all(len(values) == 2 for values in found.predictions.values())
