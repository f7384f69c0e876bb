"""The online methods with a budget of privacy: what a message says is of its own samples alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution
from faulty import PowerCutError
from flwr.app import Context

from fedkern_flwr import clients
from fedkern_flwr.clients import OnlineKernelClient, StreamClient
from fedkern_flwr.clients.pof_mkl_private import message_sum
from fedkern_flwr.errors import FedKernError, OptionError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.method import Method
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge, ridge_plan
from fedkern_flwr.online.private import ridge_release, ridge_sum, update_release
from fedkern_flwr.online.source import IteratorSource
from fedkern_flwr.privacy import Budget, NoisySum, budget, plan_release
from fedkern_flwr.privacy.accounting import ORDERS, epsilon_of
from fedkern_flwr.secure_sum import Party, encoding
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.registry import family
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.strategies import (
    EMKOFL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
    pof_rls,
)
from fedkern_flwr.strategies.kernel_online import KernelOnlineStrategy
from fedkern_flwr.strategies.online import OnlineStrategy

CLIENTS, ROUNDS = 4, 9
SOME: dict[str, Any] = {"kernels": 4, "features": 3, "seed": 3}
METHODS: dict[str, Callable[..., Any]] = {
    "pof-mkl": lambda **o: POFMKL(**SOME, **o),
    "paper": lambda **o: POFMKL(**SOME, step_size="paper", **o),
    "batches": lambda **o: POFMKL(**SOME, samples_per_round=4, **o),
    "shared": lambda **o: POFMKL(**SOME, kernels_per_round=2, subset="shared", **o),
    "frequencies": lambda **o: POFMKL(**SOME, frequencies_per_round=5, samples_per_round=2, **o),
    "whole": lambda **o: POFMKL(**SOME, drop_outs=False, **o),
    "party": lambda **o: POFMKL(**SOME, privacy_unit="party", samples_per_round=4, **o),
    "ofskl": lambda **o: OFSKL(features=3, seed=3, samples_per_round=4, **o),
    "ofmkl-avg": lambda **o: OFMKLAvg(**SOME, **o),
    "vm-kofl": lambda **o: VMKOFL(**SOME, samples_per_round=2, **o),
    "em-kofl": lambda **o: EMKOFL(**SOME, samples_per_round=2, **o),
    "pof-rls": lambda **o: POFRLS(features=3, seed=3, samples_per_round=4, **o),
    "pof-rls party": lambda **o: POFRLS(
        features=3, kernels=2, seed=3, samples_per_round=3, privacy_unit="party", **o
    ),
    "pof-rls columns": lambda **o: POFRLS(
        experts="global-ridge", seed=3, samples_per_round=3, forgetting=1.0, **o
    ),
}
BY_GRADIENTS = [name for name in METHODS if not name.startswith("pof-rls")]


class Nodes:
    """Nodes as deployed ones, what they add to sums and what they say besides.

    Attributes
    ----------
    added : dict
        (partition, round) -> what it added, before noise.
    said : list
        All that nodes said beside their sums.
    secrets : set
        (partition, secret that its noise is made with).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
        self.folder, self.policy = folder, NodePolicy(min_sum_rows=0)
        self.simulation, self.asking = False, 0
        self.added: dict[tuple[int, int], np.ndarray] = {}
        self.said: list[Any] = []
        self.secrets: set[tuple[int, bytes]] = set()
        nodes, contribute = self, Party.contribute

        def adds(party: Party, order: Any, values: Any, **more: Any) -> Any:
            place = party.partition, nodes.asking
            assert place not in nodes.added
            nodes.added[place] = np.array(values)
            nodes.secrets.add((party.partition, party.state.noise_key))
            return contribute(party, order, values, **more)

        monkeypatch.setattr(Party, "contribute", adds)

    def run(self, strategy: Any, x: Any, y: Any, rounds: int = ROUNDS, **more: Any) -> Any:
        self.added, nodes = {}, self

        class Client(OnlineKernelClient):
            def describe(self, request: Any) -> Any:
                found = super().describe(request)
                nodes.said.append(asdict(found))
                return found

            def answer(self, request: Any, method: Any) -> Any:
                nodes.asking = request.round
                found = super().answer(request, method)
                nodes.said.append(asdict(found))
                return found

        def client_fn(context: Context) -> OnlineKernelClient:
            k = int(context.node_config["partition-id"])
            context.node_config["simulation"] = self.simulation
            own = {} if self.folder is None else {"state_dir": self.folder / str(k)}
            return Client(context, x[k], y[k], policy=self.policy, **own)

        simulate(strategy, client_fn, len(x), num_rounds=rounds, **more)
        return strategy


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    return Nodes(monkeypatch)


def streams(rows: int = ROUNDS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS, rows, 3)) / 2.0
    x[..., 2] = x[..., 2] > 0.25  # a column of two values
    return x, rng.random((CLIENTS, rows))


# -- one sample, one message


@pytest.mark.parametrize("name", METHODS)
def test_another_sample_changes_its_own_message_and_nothing_else(
    name: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has been made public before: here numbers that do not depend on the rows."""

    def public(strategy: Any, total: np.ndarray, answers: int) -> np.ndarray:
        return 3.0 * np.random.default_rng(strategy._number).standard_normal(total.size)

    def public_rows(strategy: Any, total: np.ndarray, answers: int) -> np.ndarray:
        rng = np.random.default_rng(strategy._number)
        shapes = [ridge.sums(rng.random((9, 4)), rng.random(9))] * (strategy.plan_.raw > 0)
        for _ in range(len(strategy._kernels)):
            shapes.append(ridge.sums(rng.random((9, 6)) / 3.0, rng.random(9)))
        return np.concatenate(shapes) * ridge_plan.scale(strategy._samples)

    monkeypatch.setattr(KernelOnlineStrategy, "gradients", public)
    monkeypatch.setattr(POFRLS, "gradients", public_rows)
    x, y = streams()
    other_x, other_y = x.copy(), y.copy()
    other_x[2, 4], other_y[2, 4] = (0.1, 0.5, 0.3), 1.0 - y[2, 4]
    found, said = [], []
    for rows in ((x, y), (other_x, other_y)):
        strategy = nodes.run(METHODS[name](privacy_epsilon=3.0), *rows)
        found.append(nodes.added)
        said.append(nodes.said)
        nodes.said = []
    messages = range(1, strategy.exchanges() + 1)
    own = 2, next(n for n in messages if strategy.stop(n) > 4)
    assert found[0].keys() == found[1].keys()
    for place, vector in found[0].items():
        assert (vector.tobytes() == found[1][place].tobytes()) == (place != own), place
    for one in said[0] + said[1]:
        one.pop("public_key", None)
    assert said[0] == said[1]
    assert len(found[0]) == CLIENTS * strategy.exchanges()


@pytest.mark.parametrize("name", METHODS)
def test_nodes_tell_no_errors_and_a_simulation_reports_them(name: str, nodes: Nodes) -> None:
    strategy = nodes.run(METHODS[name](privacy_epsilon=3.0), *streams())
    figures = ("total_samples", "total_squared_error", "regret", "largest_loss")
    told = [one for one in nodes.said if "regret" in one]
    assert len(told) == CLIENTS * strategy.exchanges()
    assert not any(one[figure] for one in told for figure in figures)
    assert strategy.metrics_["mse"] is None
    assert {row["mse"] for row in strategy.history_} == {None}
    assert "simulation" not in str(strategy.privacy()["server_sees"])
    nodes.simulation = True
    made = nodes.run(METHODS[name](privacy_epsilon=3.0), *streams())
    assert 0.0 < made.metrics_["mse"] < 2.0
    assert "which is no release" in str(made.privacy()["server_sees"])


# -- how far a sample moves its message


@pytest.mark.parametrize("losses", [0, 4])
@pytest.mark.parametrize("released", [0, 5])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e30, math.inf])
def test_a_sample_moves_a_message_no_farther_than_is_charged(
    losses: int, released: int, scale: float
) -> None:
    """The worst neighbours that were found, in units of the ring and with rounding."""
    rng = np.random.default_rng(0)
    features, kernels, clip = 3, 4, 0.2
    pairs = released or kernels * features
    release = update_release(
        Budget(3.0),
        clip=clip,
        pairs=pairs,
        features=features,
        losses=losses,
        most=6,
        messages=9,
        parties=5,
        least=4,
    )
    unit, farthest = 2.0**-release.noise.fraction, 0.0
    for number in range(150):
        theta = rng.choice([-scale, 0.0, scale], (kernels, 2 * features))
        about: dict[str, Any] = {
            "bandwidths": np.geomspace(1e-3, 10.0, kernels).astype("<f8").tobytes(),
            "features": features,
            "seed": number,
            "regularization": 0.1,
            "precision": "float32",
            "frequency_draw": "orthogonal",
            "centre": 0.5,
            "released": released,
            "theta": theta.astype(np.float32),
            "weights": np.ones(kernels),
            "send_losses": losses > 0,
            "samples": 6,
            "clip": clip,
        }
        request = wire.SharedRequest(**about)
        x, y = rng.random((6, 3)), rng.uniform(-5.0, 5.0, 6)
        other_x, other_y = x.copy(), y.copy()
        other_y[3] = -y[3]  # to the other side
        if number % 2:
            other_x[3] = 1e3 * rng.standard_normal(3)
        both = (x, y), (other_x, other_y)
        with np.errstate(all="ignore"):
            vectors = [message_sum(request, *one) for one in both]
        assert all(np.isfinite(v).all() for v in vectors)
        whole = [np.rint(v / unit) for v in vectors]
        farthest = max(farthest, float(np.linalg.norm(whole[0] - whole[1]) * unit))
    assert farthest <= release.sensitivity
    if scale <= 1.0 and not losses:
        assert farthest > 0.95 * release.sensitivity


@pytest.mark.parametrize("columns", [0, 1, 4])
@pytest.mark.parametrize(("kernels", "summed"), [(0, 3), (1, 3), (3, 2)])
def test_a_row_moves_sums_of_products_no_farther_than_is_charged(
    columns: int, kernels: int, summed: int
) -> None:
    if not columns and not kernels:
        return
    rng, farthest, features = np.random.default_rng(0), 0.0, 3
    about: dict[str, Any] = {"columns": columns, "kernels": kernels, "summed": summed}
    how: dict[str, int] = {"most": 5, "messages": 2, "parties": 5, "least": 5}
    release = ridge_release(Budget(3.0), features=features, **about, **how)
    unit = 2.0**-release.noise.fraction
    for number in range(300):
        request: Any = SimpleNamespace(
            raw=columns > 0,
            sums=kernels > 0,
            bandwidths=np.geomspace(0.02, 1.0, kernels).astype("<f8").tobytes(),
            features=features,
            summed=summed,
            shared=kernels,
            seed=number,
        )
        x, y = rng.standard_normal((5, columns or 4)), rng.uniform(-5.0, 5.0, 5)
        other_x, other_y = x.copy(), y.copy()
        towards = rng.standard_normal(columns or 4) if number % 3 else np.zeros(columns or 4)
        other_x[2] = rng.choice([3.0, 1e300]) * (towards - x[2])
        other_y[2] = -5.0 * np.sign(y[2])
        both = (x, y), (other_x, other_y)
        with np.errstate(all="ignore"):
            sums = [ridge_sum(request, *one) for one in both]
        assert all(np.isfinite(one).all() for one in sums)
        whole = [np.rint(one / unit) for one in sums]
        farthest = max(farthest, float(np.linalg.norm(whole[0] - whole[1]) * unit))
    assert 0.6 * release.sensitivity < farthest <= release.sensitivity


def test_losses_of_kernels_that_are_not_drawn_are_charged() -> None:
    """A label that is predicted exactly takes the place of one that is far from all kernels."""
    kernels, features, clip = 8, 3, 0.2
    request = wire.DrawnRequest(
        bandwidths=np.ones(kernels).astype("<f8").tobytes(),
        features=features,
        seed=0,
        regularization=0.1,
        precision="float32",
        frequency_draw="orthogonal",
        centre=0.5,
        released=0,
        theta=np.zeros((kernels, 2 * features), np.float32),
        kernel=3,
        probability=0.5,
        clip=clip,
    )
    about: dict[str, Any] = {"clip": clip, "pairs": features, "features": features}
    about |= {"losses": kernels, "most": 1, "messages": 9, "parties": 5, "least": 4}
    x = np.full((1, 3), 0.3)
    one, other = (message_sum(request, x, np.array([label])) for label in (0.5, 9.0))
    moved = float(np.linalg.norm(one - other))
    assert moved == pytest.approx(3.0 * clip, rel=1e-6)
    charged = update_release(Budget(3.0), **about)
    assert 2.5 * clip < moved <= charged.sensitivity
    assert len(one) == 2 * features + kernels


def test_features_that_are_no_numbers_do_not_show() -> None:
    """Frequencies so high that phases of some rows overflow: a refusal would tell which."""
    request = wire.SharedRequest(
        bandwidths=np.array([1e-38]).tobytes(),
        features=3,
        seed=0,
        regularization=0.0,
        precision="float32",
        frequency_draw="orthogonal",
        centre=0.5,
        released=0,
        theta=np.ones((1, 6), np.float32),
        send_losses=True,
        weights=np.ones(1),
        clip=0.1,
    )
    with np.errstate(all="ignore"):
        found = message_sum(request, np.full((1, 3), 30.0), np.zeros(1))
    assert np.isfinite(found).all()


@pytest.mark.parametrize(("unit", "messages"), [("row", 9), ("party", 9), ("party", 90)])
def test_epsilon_is_that_of_a_reckoning_by_hand(unit: Any, messages: int) -> None:
    least = 4 - 1
    release = update_release(
        Budget(3.0, 1e-5, unit),
        clip=0.1,
        pairs=12,
        features=3,
        losses=0,
        most=6,
        messages=messages,
        parties=5,
        least=4,
    )
    times, one = (1, 1) if unit == "row" else (messages, 6)
    scale = 2.0**release.noise.fraction
    length, variance = 24, release.noise.variance * least
    two = one * 2.0 * 0.1 * math.sqrt(4) * scale * (1.0 + 1e-5) + math.sqrt(length)
    first = min(math.sqrt(length) * two, two**2)
    second = ((2 * ORDERS - 1) * two**2 + 6 * first) / (4 * variance**2)
    curve = ORDERS * two**2 / (2 * variance) + np.minimum(second, 1.5 * first / variance)
    by_hand = rdp.compute_epsilon(ORDERS.tolist(), (times * curve).tolist(), 1e-5)[0]
    assert by_hand == pytest.approx(3.0, rel=1e-3)
    assert epsilon_of(times * release.curve, release.delta) == pytest.approx(by_hand, rel=1e-5)
    ratio = math.sqrt(variance) / two
    exact = privacy_loss_distribution.from_gaussian_mechanism(ratio, sensitivity=1.0)
    exact = exact.self_compose(times) if times > 1 else exact
    assert 0.85 * by_hand < exact.get_epsilon_for_delta(1e-5) < by_hand


# -- the model


@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_without_noise_and_clip_it_is_the_run_without_a_budget(
    name: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_module, "skellam", lambda v, n, key: np.zeros(n, np.int64))
    monkeypatch.setattr(budget, "_WIDEST", 1 << 27)  # a unit so fine that nothing is rounded
    monkeypatch.setattr(encoding, "MOST_VARIANCE", 1 << 60)
    x, y = streams()
    plan_release.cache_clear()
    made = nodes.run(METHODS[name](privacy_epsilon=3.0, privacy_clip=4.0), x, y)
    plan_release.cache_clear()

    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(context, x[k], y[k])

    usual = METHODS[name](secure=False)
    simulate(usual, client_fn, CLIENTS, num_rounds=ROUNDS)
    assert np.abs(usual.theta_).max() > 0.01
    np.testing.assert_allclose(made.theta_, usual.theta_, atol=2e-5)


def test_without_noise_pof_rls_is_ridge_regression_of_the_pooled_rows(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(party_module, "skellam", lambda v, n, key: np.zeros(n, np.int64))
    monkeypatch.setattr(budget, "_WIDEST", 1 << 27)
    monkeypatch.setattr(encoding, "MOST_VARIANCE", 1 << 60)
    monkeypatch.setattr(pof_rls, "steadied", lambda totals, *_: totals)
    plan_release.cache_clear()
    x, y = streams()
    x /= 2.0  # in the unit ball
    strategy = nodes.run(METHODS["pof-rls"](privacy_epsilon=3.0), x, y)
    plan_release.cache_clear()
    widths = strategy.model()[0]["bandwidths"].tobytes()
    assert np.frombuffer(widths, "<f8") == [2.0]  # and none that the rows tell
    flat, labels = x.reshape(-1, 3), y.reshape(-1) - 0.5
    for name, rows in (
        ("raw", ridge.raw_rows(flat)),
        ("kernels", ridge.kernel_rows(flat, widths, 3, 3)[0]),
    ):
        gram = rows.T @ rows + strategy.regularization * np.eye(rows.shape[1])
        found = strategy.model()[0][name]
        np.testing.assert_allclose(found[0], np.linalg.solve(gram, rows.T @ labels), atol=1e-3)


def test_with_noise_it_learns_where_there_are_many_clients(monkeypatch: Any) -> None:
    rng = np.random.default_rng(1)
    x = rng.random((40, 80, 2)) / 2.0
    y = x.sum(axis=2)
    found = {}
    for epsilon in (None, 8.0):
        how: dict[str, Any] = {"kernels": 1, "features": 10, "seed": 0, "samples_per_round": 8}

        def client_fn(context: Context) -> OnlineKernelClient:
            k = int(context.node_config["partition-id"])
            return OnlineKernelClient(context, x[k], y[k])

        strategy = POFMKL(privacy_epsilon=epsilon, drop_outs=False, **how)
        simulate(strategy, client_fn, 40, num_rounds=80)
        found[epsilon] = strategy.metrics_["mse"]
    spread = float(((y - 0.5) ** 2).mean())
    assert found[None] < found[8.0] < 0.9 * spread  # .72 at worst in a dozen runs


# -- what servers ask for that they must not get


class Statistics(POFMKL):
    def message_length(self) -> int:
        return self.sum_length() + wire.STATISTICS


class Chosen(POFMKL):
    def request(self, stream: dict[str, Any]) -> Any:
        found = super().request(stream)
        return replace(found, kernels_per_round=2, selection="subset")

    def plan_noise(self, **known: int) -> Any:
        return update_release(
            self.budget,  # type: ignore[arg-type]
            clip=self.privacy_clip,
            pairs=6,
            features=3,
            losses=0,
            **known,
        )

    def sum_length(self) -> int:
        return 12


class Lies(POFMKL):
    changed: dict[str, Any] = {}  # noqa: RUF012

    def request(self, stream: dict[str, Any]) -> Any:
        return replace(super().request(stream), **self.changed)


class SmallClip(Lies):
    changed = {"clip": 0.01}  # noqa: RUF012


class FewSamples(Lies):
    changed = {"most": 1}  # noqa: RUF012


class Evaluates(POFMKL):
    ended = False

    def noise(self) -> Any:
        return None if self.ended else super().noise()

    def _evaluate(self) -> Any:
        self.ended = True
        return OnlineStrategy._evaluate(self)


class LessNoise(POFMKL):
    def noise(self) -> Any:
        found = super().noise()
        if found is None:
            return None
        fewer = NoisySum(found.noise.variance // 2, found.noise.fraction)
        return replace(found, noise=fewer)


class SameRows(POFMKL):
    def request(self, stream: dict[str, Any]) -> Any:
        return super().request({**stream, "step": 0})


class Windows(POFRLS):
    def request(self, stream: dict[str, Any]) -> Any:
        return replace(super().request(stream), window=0)


class Unbound(Lies):
    changed = {"clip": 1e300}  # noqa: RUF012


class Negative(Lies):
    changed = {"regularization": -0.35}  # noqa: RUF012


class FewMessages(POFMKL):
    def _messages(self) -> dict[str, int]:
        return {**super()._messages(), "messages": 1}


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        (Statistics, {}, "the length of a sum"),
        (Chosen, {}, "kernels are chosen by weights of earlier samples"),
        (SmallClip, {}, "the noise of a sum"),
        (FewSamples, {"samples_per_round": 4}, "a message of more samples"),
        (LessNoise, {}, "the noise of a sum"),
        (Unbound, {}, "residuals without a bound"),
        (Negative, {}, "a negative regularization"),
        (Windows, {"samples_per_round": 3}, "a sum of earlier messages' samples"),
        (SameRows, {}, "rows of an earlier message are asked for again"),
        (FewMessages, {"privacy_unit": "party"}, "more than the budget that it declared"),
    ],
)
def test_a_server_that_asks_for_more_is_refused(
    kind: Any, more: dict[str, Any], named: str, nodes: Nodes
) -> None:
    strategy = kind(privacy_epsilon=3.0, **{**SOME, "kernels": 1 + 3 * (kind != Windows)}, **more)
    with pytest.raises(FedKernError, match=named) as why:
        nodes.run(strategy, *streams())
    assert "\n" not in str(why.value)


def test_an_evaluation_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    x, y = streams()

    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(context, x[k], y[k], x_test=x[k], y_test=y[k])

    for kind in (POFMKL, Evaluates):
        assert "refused by the node" not in caplog.text
        strategy = kind(privacy_epsilon=3.0, **SOME)
        simulate(strategy, client_fn, CLIENTS, num_rounds=ROUNDS)
        assert "test_mse" not in strategy.metrics_
    assert "refused by the node: privacy: the run opens a sum without noise" in caplog.text


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (POFMKL, {"kernels_per_round": 3, "kernels": 9}, "no client may choose kernels"),
        (POFMKL, {"secure": False}, "secure is False"),
        (PerFedAvg, {}, "adds no noise"),
        (LocalOnly, {}, "adds no noise"),
    ],
)
def test_what_a_budget_does_not_go_with_is_refused(kind: type[Method], options: Any, named: str):
    with pytest.raises(OptionError, match=named) as why:
        kind(privacy_epsilon=3.0, **options)
    assert "\n" not in str(why.value)


def test_a_node_writes_its_error_into_its_own_log(nodes: Nodes, caplog: Any) -> None:
    with caplog.at_level("INFO", logger="flwr"):  # of others a SuperNode shows warnings
        nodes.run(POFMKL(privacy_epsilon=3.0, **SOME), *streams())
    own = [r for r in caplog.records if r.message.startswith("own mean squared error, told to no")]
    assert [record.name for record in own] == ["flwr"] * CLIENTS


@pytest.mark.parametrize("kind", [POFMKL, POFRLS])
def test_whether_learning_goes_well_is_told_to_nobody(
    kind: Any, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a client's own learning depends on its earlier samples."""

    def fails(*_: Any) -> None:
        raise np.linalg.LinAlgError

    name = "weigh_samples" if kind is POFMKL else "learn_samples"
    monkeypatch.setattr(clients.pof_mkl if kind is POFMKL else clients.pof_rls, name, fails)
    options: dict[str, Any] = {"kernels": 1, "features": 3, "samples_per_round": 3}
    strategy = nodes.run(kind(privacy_epsilon=3.0, **options), *streams())
    assert [row["survivors"] for row in strategy.history_] == [CLIENTS] * 3


# -- what it costs


def test_result_has_the_budget(nodes: Nodes) -> None:
    for unit, said in (("row", "each of other rows"), ("party", "all add up")):
        options = {**SOME, "samples_per_round": 4, "privacy_unit": unit}
        strategy = nodes.run(POFMKL(privacy_epsilon=3.0, **options), *streams())
        told = strategy.result()["privacy"]["budget"]
        assert told["messages"].startswith("2, ")
        assert said in told["messages"]
        (one,) = told["releases"]
        curve = strategy.noised_["update"][0].curve
        total = curve * (1 if unit == "row" else 2)
        assert epsilon_of(total, 1e-5) == pytest.approx(3.0, rel=1e-3)
        assert one["declared_deviation"] < one["deviation"]


def test_runs_over_the_same_rows_add_up_until_the_owner_s_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is charged to its rows: a run with other rows costs them nothing."""
    nodes, (x, y) = Nodes(monkeypatch, tmp_path), streams(3 * ROUNDS)
    one = epsilon_of(2 * np.array(POFMKL_CURVE()), 1e-5)
    nodes.policy = NodePolicy(min_sum_rows=0, max_epsilon=one * 1.001)
    first, later = slice(0, ROUNDS), slice(2 * ROUNDS, None)
    for rows in (first, first, later):
        nodes.run(POFMKL(privacy_epsilon=1.0, **SOME), x[:, rows], y[:, rows])
    told = [run.epsilon for run in NodeLedger(tmp_path / "0").runs()]
    assert told == [pytest.approx(1.0, rel=1e-3)] * 3
    overlapping = slice(ROUNDS - 1, 2 * ROUNDS - 1)
    with pytest.raises(FedKernError, match="would lose") as why:
        nodes.run(POFMKL(privacy_epsilon=1.0, **SOME), x[:, overlapping], y[:, overlapping])
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("unit", ["row", "party"])
def test_rows_of_a_stream_are_charged_as_they_come(unit: Any, tmp_path: Path) -> None:
    x, y = streams(2 * ROUNDS)
    sources = [IteratorSource(zip(x[k], y[k], strict=True)) for k in range(CLIENTS)]

    def client_fn(context: Context) -> StreamClient:
        k = int(context.node_config["partition-id"])
        context.node_config["simulation"] = False
        policy = NodePolicy(min_sum_rows=0, max_epsilon=1.001)
        return StreamClient(
            context, sources[k], wait=0.0, state_dir=tmp_path / str(k), policy=policy
        )

    def run() -> None:
        options: dict[str, Any] = {**SOME, "samples_per_round": 3, "privacy_unit": unit}
        simulate(POFMKL(privacy_epsilon=1.0, **options), client_fn, CLIENTS, num_rounds=ROUNDS)

    run()
    if unit == "party":
        with pytest.raises(FedKernError, match="would lose"):
            run()
    else:
        run()
    told = [one.epsilon for one in NodeLedger(tmp_path / "0").runs()]
    assert told == [pytest.approx(1.0, rel=1e-3), pytest.approx(float(unit == "row"), rel=1e-3)]


def POFMKL_CURVE() -> Any:
    about: Any = {"clip": 0.1, "pairs": 12, "features": 3, "losses": 0, "most": 1}
    return update_release(Budget(1.0), **about, messages=9, parties=4, least=3).curve


@pytest.mark.parametrize("kind", [POFMKL, POFRLS])
def test_a_run_that_is_resumed_draws_no_noise_anew_and_pays_once(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, (x, y) = Nodes(monkeypatch, tmp_path), streams()
    nodes.policy = NodePolicy(min_sum_rows=0, max_epsilon=1.001)
    options = {**SOME, "checkpoint": tmp_path / "c.npz", "checkpoint_every": 3}
    options |= {"samples_per_round": 1}

    def cut(done: int, total: int, metrics: Any) -> None:
        if done == 5:
            raise PowerCutError

    first = kind(privacy_epsilon=1.0, **options)
    first.on_round = cut
    with pytest.raises(PowerCutError):
        nodes.run(first, x, y)
    before = nodes.added
    second = nodes.run(kind(privacy_epsilon=1.0, **options, resume=True), x, y)
    assert not before.keys() & nodes.added.keys()
    assert {k for _, k in before.keys() | nodes.added.keys()} == set(range(1, ROUNDS + 1))
    assert len(nodes.secrets) == CLIENTS
    assert [row["survivors"] for row in second.history_].count(0) == 2
    assert [run.epsilon for run in NodeLedger(tmp_path / "0").runs()] == [
        pytest.approx(1.0, rel=1e-3)
    ]


def test_what_a_deployment_shows_says_where_the_errors_are(nodes: Nodes, tmp_path: Path) -> None:
    strategy, own = nodes.run(POFMKL(privacy_epsilon=3.0, **SOME), *streams()), family("pof-mkl")
    entry = Entry("POF-MKL", "pof-mkl", {})
    entry.results.append({**strategy.result(), "seconds": 1.0})
    summary = own.summarise(entry)
    assert summary["metrics"]["mse"] is None
    result = {**strategy.result(), **summary, "config": {"runs": 1, "clients": CLIENTS}}
    shown = dict(own.figures(result))
    assert shown == {"errors": "each client's, in its own log: with a budget none is told"}
    assert own.plots(tmp_path, "POF-MKL", summary) == {}


def test_the_command_takes_secure_sums_and_nothing_that_all_rows_decide() -> None:
    own = family("pof-mkl")
    values = {o.name: o.default for o in own.parameters()} | {"seed": 0, "privacy_epsilon": 3.0}
    values |= {o.name: o.default for o in own.own_options} | {"secure": False, "runs": 1}
    values |= {"missing": "encode"}
    config = own.config("pof-mkl", values)
    assert config["secure"]
    assert config["options"]["secure"]
    assert config["data"]["missing"] == "error"
    own.check(config)
    with pytest.raises(OptionError, match="scaled by all rows") as why:
        own.check({**config, "data": {**config["data"], "scaling": "rank"}})
    assert "\n" not in str(why.value)
