"""Methods that are a generator of rounds, with a budget of privacy: kernel PCA and one's own."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from known_noise import know_noise
from scipy import stats

from fedkern_flwr import run as driver
from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.kernels.pca import REST_SENSITIVITY, SENSITIVITY, features_of, moments
from fedkern_flwr.method import Ask, MethodClient, Sum, answers, contributes
from fedkern_flwr.node import guarded
from fedkern_flwr.privacy import NoisySum
from fedkern_flwr.private_method import PrivateMethod
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.strategies import KernelPCA

CLIENTS, ALARM = 6, 1e-9  # the noise cannot be seeded: probability of a false alarm
X = np.random.default_rng(0).random((CLIENTS, 400, 3))


def client(context: Context, kind: type[MethodClient] = KernelPCAClient) -> MethodClient:
    k = int(context.node_config["partition-id"])
    return kind(context, X[k, :300], x_test=X[k, 300:])


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


def test_sums_about_the_same_rows_share_the_budget() -> None:
    class Twice(Total):
        times, releases = 2, 2

    class TwiceClient(TotalClient):
        releases: ClassVar[int] = 2

    budget = run(Twice(privacy_epsilon=2.0), TwiceClient).result()["privacy"]["budget"]
    one, other = budget["releases"]
    assert one["epsilon"] == other["epsilon"] < 1.5


def test_more_sums_than_were_said_are_refused() -> None:
    class Greedy(Total):
        times = 2

    with pytest.raises(FedKernError, match="more than the budget that it declared"):
        run(Greedy(privacy_epsilon=2.0))


@pytest.mark.parametrize("side", ["server", "clients"])
def test_a_sum_without_a_sensitivity_is_refused_in_a_line(side: str) -> None:
    class Silent(Total):
        def rounds(self, parties: Any) -> Any:
            yield Sum("numbers 0", {"all": (200,)}, bound=1.0)

    class SilentClient(MethodClient):
        @contributes("numbers 0", bound=1.0)
        def first(self) -> Any:
            return {"all": np.zeros(200)}

    method, kind = (Silent, TotalClient) if side == "server" else (Total, SilentClient)
    named = "no sensitivity" if side == "server" else "adds no noise"
    with pytest.raises(FedKernError, match=named) as why:
        run(method(privacy_epsilon=2.0), kind)
    assert "\n" not in str(why.value)


def test_a_server_that_claims_a_smaller_sensitivity_is_refused() -> None:
    class Liar(Total):
        def rounds(self, parties: Any) -> Any:
            yield Sum("numbers 0", {"all": (200,)}, bound=1.0, sensitivity=0.1)

    with pytest.raises(FedKernError, match="the noise of a sum"):
        run(Liar(privacy_epsilon=2.0))


def test_answers_without_noise_are_refused() -> None:
    class Curious(Total):
        def rounds(self, parties: Any) -> Any:
            yield Ask("mean")

    class Talkative(TotalClient):
        @answers("mean")
        def mean(self) -> Any:
            return {"mean": float(self.x.mean())}

    assert run(Curious(), Talkative) is not None
    with pytest.raises(FedKernError, match="without noise"):
        run(Curious(privacy_epsilon=2.0, attempts=1), Talkative)


# -- kernel PCA


def rows(rng: Any, n: int) -> np.ndarray:
    return np.asarray(rng.uniform(0.0, 30.0, (n, 3)))  # so far apart that features are unrelated


def test_one_row_moves_the_moments_no_farther_than_is_charged() -> None:
    rng, farthest = np.random.default_rng(0), 0.0
    for seed in range(300):
        x = rows(rng, 20)
        other = x.copy()
        other[0] = rows(rng, 1)
        found = [
            np.concatenate([np.ravel(v) for v in moments(features_of(a, **kernel)).values()])
            for kernel in [{"bandwidth": 0.5, "features": 1 + seed % 3, "seed": seed}]
            for a in (x, other)
        ]
        farthest = max(farthest, float(np.linalg.norm(found[0] - found[1])))
    assert 0.97 * SENSITIVITY < farthest <= SENSITIVITY


def test_no_mean_and_no_components_make_a_held_out_row_count_for_more() -> None:
    config: Any = {"partition-id": 0, "num-partitions": 6, "simulation": True}
    node = client(Context(1, 1, config, RecordDict(), {}))
    kernel: Any = {"bandwidth": 0.5, "features": 5, "seed": 0}
    rng = np.random.default_rng(0)
    for scale in (1.0, 100.0):
        about = {
            "mean": scale * rng.normal(size=10),
            "components": scale * rng.normal(size=(2, 10)),
        }
        before = node.add_rest(**about, **kernel)  # type: ignore[attr-defined]
        node.x_test = node.x_test.copy()
        node.x_test[0] += 7.0
        after = node.add_rest(**about, **kernel)  # type: ignore[attr-defined]
        moved = math.hypot(*(before[k] - after[k] for k in before))
        assert moved <= REST_SENSITIVITY
        assert all(0.0 <= v <= 4.0 * len(node.x_test) for v in after.values())


def test_kernel_pca_with_much_budget_is_nearly_that_without() -> None:
    options: Any = {"features": 5, "seed": 0, "bandwidth": 1.0}
    plain = run(KernelPCA(**options), KernelPCAClient)
    noisy = run(KernelPCA(privacy_epsilon=20.0, **options), KernelPCAClient)
    alike = np.abs(np.vecdot(plain.model_["components"], noisy.model_["components"]))
    assert alike[0] > 0.6
    assert abs(plain.metrics_["explained"] - noisy.metrics_["explained"]) < 0.25
    budget = noisy.result()["privacy"]["budget"]
    assert [one["release"] for one in budget["releases"]] == ["moments", "evaluate/rest"]


def test_kernel_pca_with_next_to_no_budget_ends() -> None:
    made = run(KernelPCA(privacy_epsilon=0.01, features=5, seed=0), KernelPCAClient)
    assert np.isfinite(made.model_["components"]).all()
    assert 0.0 <= made.metrics_["explained"] <= 1.0 + 1e-9


def test_noise_that_is_halved_on_the_way_is_refused(monkeypatch: Any) -> None:
    honest = driver.sum_release

    def less(*known: Any, **more: Any) -> Any:
        found = honest(*known, **more)
        return replace(found, noise=NoisySum(found.noise.variance // 2, found.noise.fraction))

    monkeypatch.setattr(driver, "sum_release", less)
    with pytest.raises(FedKernError, match="the noise of a sum"):
        run(KernelPCA(privacy_epsilon=2.0, features=5, seed=0), KernelPCAClient)


def test_a_run_that_lost_too_many_goes_on_with_the_noise_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but two have answered the last question, and are told that the run broke off."""
    know_noise(monkeypatch)

    def fit(name: str, faults: Any = None, **more: Any) -> KernelPCA:
        def serve(context: Context) -> MethodClient:
            context.node_config["simulation"] = False
            k = int(context.node_config["partition-id"])
            policy = NodePolicy(max_epsilon=2.0)
            own: Any = {"state_dir": tmp_path / name / str(k), "policy": policy}
            return KernelPCAClient(context, X[k, :300], x_test=X[k, 300:], **own)

        about: Any = {"features": 5, "seed": 0, "attempts": 2, "privacy_epsilon": 2.0, **more}
        made = KernelPCA(checkpoint=tmp_path / f"{name}.npz", **about)
        simulate(made, serve, CLIENTS, faults=faults)
        return made

    def gone(delivery: Any) -> Fault | None:
        late = delivery.phase == "method" and delivery.round > 3 and delivery.partition in (1, 4)
        return Fault("error") if late else None

    quiet = fit("quiet")
    with pytest.raises(FedKernError, match="resume from the checkpoint"):
        fit("run", gone)
    found = fit("run", resume=True)
    for name, values in quiet.model_.items():
        assert np.array_equal(found.model_[name], values), name
    assert found.metrics_ == quiet.metrics_
    assert found.privacy()["budget"] == quiet.privacy()["budget"]
    for k in range(CLIENTS):
        (run,) = NodeLedger(tmp_path / "run" / str(k), k).runs()
        assert run.epsilon == pytest.approx(2.0, rel=1e-2)


def test_a_node_without_the_accountant_is_named_in_a_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = guarded.check_accountant

    def lacking(party: str) -> None:
        with monkeypatch.context() as there:
            if party == "partition 2":
                there.setitem(sys.modules, "dp_accounting", None)
            honest(party)

    monkeypatch.setattr(guarded, "check_accountant", lacking)
    with pytest.raises(FedKernError, match="pip install 'fedkern-flwr") as why:
        run(KernelPCA(privacy_epsilon=2.0, features=5, seed=0), KernelPCAClient)
    assert str(why.value).startswith("partition 2, phase describe: differential privacy needs")
    assert "\n" not in str(why.value)
    assert why.value.exit_code == 2
