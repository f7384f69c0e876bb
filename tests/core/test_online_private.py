"""Runs with a budget of privacy: the online methods and HierarchicalSVM; what a node refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from flwr.app import Context
from identities import known_node
from pooled import kernel_ridge
from refusals import raises, refused, refuses
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from zoo import fit

from fedkern_flwr import nodes as server
from fedkern_flwr.clients import OnlineKernelClient, StreamClient, SVMClient
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.groups import linear_model
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.source import IteratorSource
from fedkern_flwr.privacy import Budget, NoisySum, plan_release
from fedkern_flwr.privacy.accounting import ORDERS, epsilon_of
from fedkern_flwr.secure_sum import Party
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import (
    EMKOFL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    HierarchicalSVM,
    OFMKLAvg,
    pof_rls,
)
from fedkern_flwr.strategies.hierarchical_runs import RowRun

CLIENTS, ROUNDS = 3, 9
pytestmark = pytest.mark.usefixtures("cheap_noise")

SOME: dict[str, Any] = {"kernels": 4, "features": 3, "seed": 3}

RLS: dict[str, Any] = {"seed": 3, "samples_per_round": 3}
METHODS: dict[str, Callable[..., Any]] = {
    "pof-mkl": partial(POFMKL, **SOME), "paper": partial(POFMKL, **SOME, step_size="paper"),
    "batches": partial(POFMKL, **SOME, samples_per_round=4),
    "shared": partial(POFMKL, **SOME, kernels_per_round=2, subset="shared"),
    "frequencies": partial(POFMKL, **SOME, frequencies_per_round=5, samples_per_round=2),
    "whole": partial(POFMKL, **SOME, drop_outs=False),
    "party": partial(POFMKL, **SOME, privacy_unit="party", samples_per_round=4),
    "ofskl": partial(OFSKL, features=3, seed=3, samples_per_round=4),
    "ofmkl-avg": partial(OFMKLAvg, **SOME), "vm-kofl": partial(VMKOFL, **SOME, samples_per_round=2),
    "em-kofl": partial(EMKOFL, **SOME, samples_per_round=2),
    "pof-rls": partial(POFRLS, features=3, seed=3, samples_per_round=4),
    "pof-rls party": partial(POFRLS, features=3, kernels=2, privacy_unit="party", **RLS),
    "pof-rls columns": partial(POFRLS, experts="global-ridge", forgetting=1.0, **RLS),
}  # fmt: skip

RIDGES = [name for name in METHODS if name.startswith("pof-rls")]
BY_GRADIENTS = [name for name in METHODS if not name.startswith("pof-rls")]


class Nodes:
    """Nodes as deployed ones, what they add to sums before noise, and what they say besides.

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
            own = {} if self.folder is None else known_node(self.folder, k, len(x))
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


@pytest.mark.promise("budget-own-samples")
@pytest.mark.parametrize("name", METHODS)
def test_another_sample_changes_its_own_message(name: str, nodes: Nodes, monkeypatch: Any) -> None:
    """Whatever has been made public before: here numbers that do not depend on the rows."""

    def public(strategy: Any, total: np.ndarray, answers: int) -> np.ndarray:
        rng = np.random.default_rng(strategy.request_.round)
        if kind is not POFRLS:
            return 3.0 * rng.standard_normal(total.size)
        shapes = [ridge.sums(rng.random((9, 4)), rng.random(9))] * (strategy.plan_.raw > 0)
        for _ in range(len(strategy._kernels)):
            shapes.append(ridge.sums(rng.random((9, 6)) / 3.0, rng.random(9)))
        return np.concatenate(shapes) / 64.0

    kind = type(METHODS[name]())
    monkeypatch.setattr(kind, "gradients", public)
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


@pytest.mark.promise("budget-tells-no-errors")
@pytest.mark.parametrize("name", ["pof-mkl", "paper", "batches", "party", *RIDGES])
def test_nodes_tell_no_errors_to_a_server(name: str, nodes: Nodes, caplog: Any) -> None:
    caplog.set_level("INFO", logger="flwr")  # of others a SuperNode shows warnings
    strategy = nodes.run(METHODS[name](privacy_epsilon=3.0), *streams())
    figures = ("total_samples", "total_squared_error", "regret", "largest_loss")
    told = [one for one in nodes.said if "regret" in one]
    assert len(told) == CLIENTS * strategy.exchanges()
    own = [r for r in caplog.records if r.message.startswith("own mean squared error, told to no")]
    assert [record.name for record in own] == ["flwr"] * CLIENTS  # in each node's own log
    assert not any(one[figure] for one in told for figure in figures)
    assert strategy.metrics_["mse"] is None
    assert {row["mse"] for row in strategy.history_} == {None}
    assert "simulation" not in str(strategy.privacy()["server_sees"])
    nodes.simulation = True
    made = nodes.run(METHODS[name](privacy_epsilon=3.0), *streams())
    assert 0.0 < made.metrics_["mse"] < 2.0
    assert "which is no release" in str(made.privacy()["server_sees"])


# -- the model


@pytest.fixture
def silent(cheap_noise: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the noise away, also the cheap one, and have a unit so fine that nothing is rounded."""
    noiseless = "fedkern_flwr.secure_sum.party.skellam"
    monkeypatch.setattr(noiseless, lambda variance, size, key=None: np.zeros(size, np.int64))
    budget = "fedkern_flwr.privacy.budget."
    monkeypatch.setattr(f"{budget}least_variance", lambda *_, least, **more: max(least, 1 << 20))
    monkeypatch.setattr(f"{budget}skellam_curve", lambda *_: np.zeros(len(ORDERS)))
    yield
    plan_release.cache_clear()


def of_tables(x: Any, y: Any, tests: bool = False) -> Callable[[Context], OnlineKernelClient]:
    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        held = {"x_test": x[k], "y_test": y[k]} if tests else {}
        return OnlineKernelClient(context, x[k], y[k], **held)

    return client_fn


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_without_noise_and_clip_it_is_the_run_without_a_budget(name: str, nodes: Nodes) -> None:
    made = nodes.run(METHODS[name](privacy_epsilon=3.1, privacy_clip=4.0), *streams())
    usual = METHODS[name](secure=False)
    simulate(usual, of_tables(*streams()), CLIENTS, num_rounds=ROUNDS)
    assert np.abs(usual.theta_).max() > 0.01
    np.testing.assert_allclose(made.theta_, usual.theta_, atol=2e-5)


@pytest.mark.usefixtures("silent")
def test_noiseless_pof_rls_is_pooled_ridge(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pof_rls, "steadied", lambda totals, *_: totals)
    x, y = streams()
    x /= 2.0  # in the unit ball
    strategy = nodes.run(METHODS["pof-rls"](privacy_epsilon=3.1), x, y)
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


@pytest.mark.usefixtures("silent")
def test_noiseless_fedcg_is_pooled_ridge() -> None:
    for found, expected in kernel_ridge(fit("fed-cg, private")):
        np.testing.assert_allclose(found, expected, atol=1e-4)


# -- what servers ask for that they must not get


def lying(kind: Any = POFMKL, order: Any = lambda spec: spec, **said: Any) -> Any:
    """Return a server whose messages say something else than it orders, or orders something."""

    def ask(self: Any, request: Any, reply: Any, **more: Any) -> Any:
        found = kind.ask(self, request, reply, **more)
        specs = [order(spec) for spec in found.sums]
        return replace(found, what=replace(found.what, **said), sums=specs)

    return type("Lying", (kind,), {"ask": ask})


def other(**said: Any) -> Any:
    """Return a server that asks for something else, and orders what belongs to it."""

    def request(self: Any, stream: Any) -> Any:
        return replace(POFMKL.request(self, stream), **said)

    return type("Other", (POFMKL,), {"request": request})


def less_noise(spec: Any) -> Any:
    noise = spec.release.noise
    less = NoisySum(noise.variance // 2, noise.fraction)
    return replace(spec, release=replace(spec.release, noise=less))


def with_statistics(spec: Any) -> Any:
    return replace(spec, length=spec.length + wire.STATISTICS)


class Evaluates(POFMKL):
    """A server that has no budget any more when its rounds are over."""

    def _evaluate(self) -> Any:
        self.budget = None
        return super()._evaluate()


@pytest.mark.parametrize(("kind", "more", "code"), [
    (lying(order=with_statistics), {}, "FK-ORDER-TERMS"),
    (lying(kernels_per_round=2, selection="subset"), {}, "FK-ORDER-NOISE"),
    (lying(most=1), {"samples_per_round": 4}, "FK-ORDER-NOISE"),
    (lying(POFRLS, window=0), {"samples_per_round": 3, "kernels": 1}, "FK-ORDER-NOISE"),
    (lying(clip=0.01), {}, "FK-ORDER-NOISE"), (lying(order=less_noise), {}, "FK-ORDER-NOISE"),
    (lying(clip=1e300), {}, "FK-ORDER-NOISE"),
    (lying(regularization=-0.35), {}, "FK-MESSAGE-FIELD"),
    (other(step=0), {}, "FK-ORDER-AGAIN"),
    (other(messages=1), {"privacy_unit": "party"}, "FK-BUDGET-EXCEEDED"),
])  # fmt: skip
def test_a_server_that_asks_for_more_is_refused(
    kind: Any, more: dict[str, Any], code: str, nodes: Nodes
) -> None:
    with pytest.raises(FedKernError) as caught:  # of the first message, or a later one
        nodes.run(kind(privacy_epsilon=3.0, **{**SOME, **more}), *streams())
    assert f"[{code}]" in str(caught.value)


def test_an_evaluation_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    for kind in (POFMKL, Evaluates):
        assert "FK-BUDGET-NOISELESS" not in caplog.text
        strategy = kind(privacy_epsilon=3.0, **SOME)
        simulate(strategy, of_tables(*streams(), tests=True), CLIENTS, num_rounds=ROUNDS)
        assert "test_mse" not in strategy.metrics_
    assert "FK-BUDGET-NOISELESS" in caplog.text


# -- what it costs


@pytest.mark.parametrize(
    ("kind", "learns"),
    [(POFMKL, "pof_mkl_samples.weigh_samples"), (POFRLS, "pof_rls.learn_samples")],
)
def test_whether_learning_goes_well_is_told_to_nobody(
    kind: Any, learns: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of a client's own learning depends on its earlier samples."""

    def fails(*_: Any) -> None:
        raise np.linalg.LinAlgError

    monkeypatch.setattr(f"fedkern_flwr.clients.{learns}", fails)
    options: dict[str, Any] = {"kernels": 1, "features": 3, "samples_per_round": 3}
    strategy = nodes.run(kind(privacy_epsilon=3.0, **options), *streams())
    assert [row["survivors"] for row in strategy.history_] == [CLIENTS] * 3


@pytest.mark.promise("budget-party-pays")
def test_result_has_the_budget(nodes: Nodes) -> None:
    for unit, said in (("row", "each of other rows"), ("party", "all add up")):
        options = {**SOME, "samples_per_round": 4, "privacy_unit": unit}
        strategy = nodes.run(POFMKL(privacy_epsilon=3.0, **options), *streams())
        told = strategy.result()["privacy"]["budget"]
        assert told["messages"].startswith("2, ")
        assert said in told["messages"]
        (one,) = told["releases"]
        curve = strategy.noise_.noised["update"][0].curve
        total = curve * (1 if unit == "row" else 2)
        assert epsilon_of(total, 1e-5) == pytest.approx(3.0, rel=1e-3)
        assert one["declared_deviation"] < one["deviation"]


@pytest.mark.parametrize("unit", ["row", "party"])
def test_rows_of_a_stream_are_charged_as_they_come(unit: Any, tmp_path: Path) -> None:
    """A second run has other rows of the same parties."""
    x, y = streams(2 * ROUNDS)
    sources = [IteratorSource(zip(x[k], y[k], strict=True)) for k in range(CLIENTS)]

    def client_fn(context: Context) -> StreamClient:
        k = int(context.node_config["partition-id"])
        context.node_config["simulation"] = False
        own: Any = {"wait": 0.0, **known_node(tmp_path, k, CLIENTS)}
        policy = NodePolicy(min_sum_rows=0, max_epsilon=1.001)
        return StreamClient(context, sources[k], policy=policy, **own)

    options: dict[str, Any] = {**SOME, "samples_per_round": 3, "privacy_unit": unit}
    for expected in (
        nullcontext(),
        refused("FK-BUDGET-SPENT") if unit == "party" else nullcontext(),
    ):
        with expected:
            made = POFMKL(privacy_epsilon=1.0, **options)
            simulate(made, client_fn, CLIENTS, num_rounds=ROUNDS)


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
    raises(PowerCutError, nodes.run, first, x, y)
    before = nodes.added
    second = nodes.run(kind(privacy_epsilon=1.0, **options, resume=True), x, y)
    assert not before.keys() & nodes.added.keys()
    assert {k for _, k in before.keys() | nodes.added.keys()} == set(range(1, ROUNDS + 1))
    assert len(nodes.secrets) == CLIENTS
    assert [row["survivors"] for row in second.history_].count(0) == 2


@pytest.mark.parametrize("name", ["pof-rls", "pof-rls party"])
def test_what_is_forgotten_of_the_sums_is_forgotten_of_their_noise(
    name: str, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The total that forgets has the noise of each message by the square of its weight."""
    told, steadied = list[float](), pof_rls.steadied

    def keep(totals: Any, features: int, deviation: float) -> Any:
        if features == 4:  # raw columns: 3 and a one
            told.append(deviation**2)
        return steadied(totals, features, deviation)

    monkeypatch.setattr(pof_rls, "steadied", keep)
    strategy = nodes.run(METHODS[name](privacy_epsilon=3.1, forgetting=0.9), *streams(12))
    whole, forgetful = np.reshape(told, (-1, 2)).T
    stops = np.array(strategy.plan_.stops)
    assert len(stops) == len(whole) > 1
    each = whole[0]
    np.testing.assert_allclose(whole, each * np.arange(1, len(whole) + 1))
    weights = 0.9 ** (stops[:, None] - stops)  # of message j in the total after message k
    np.testing.assert_allclose(forgetful, each * (np.tril(weights) ** 2).sum(axis=1))


# -- HierarchicalSVM with a budget


USERS, STEPS = 4, 6


def table(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.min(0)) / np.ptp(x, axis=0)
    return x[:n, :8], np.where(y[:n] > 0, 1.0, -1.0)


X, Y = table()


def svm_client(context: Context) -> SVMClient:
    k = int(context.node_config["partition-id"])
    rows, held = np.arange(k, 300, USERS), np.arange(300 + k, len(X), USERS)
    own: Any = {"x_test": X[held], "y_test": Y[held], "classes": (-1.0, 1.0)}
    return SVMClient(context, X[rows], Y[rows], **own)


def strategy(**options: Any) -> HierarchicalSVM:
    base: Any = {"architecture": "centralised", "C": 1.0, "seed": 0, "privacy_epsilon": 3.0}
    return HierarchicalSVM(**{**base, **options})


def run(made: HierarchicalSVM, rounds: int | None = STEPS) -> HierarchicalSVM:
    simulate(made, svm_client, USERS, num_rounds=rounds)
    return made


def test_the_iterations_together_cost_the_budget_and_no_figures_are_told_besides() -> None:
    made = run(strategy())
    (release, parties), (counts, _) = (made.noise_.noised[n] for n in ("gradients", "outcomes"))
    assert parties == USERS
    assert 2.98 < epsilon_of(STEPS * release.curve, release.delta) <= 3.0
    assert 2.98 < counts.epsilon <= 3.0
    assert {*made.history_[-1]} == {"round", "consensus_difference"}
    assert "objective" not in made.metrics_
    assert {entry["name"] for entry in made.privacy()["sums"]} == {"gradients", "outcomes"}
    assert "bins" not in made.result()["held_out"]


@pytest.mark.promise("svm-budget-row")
@pytest.mark.parametrize("kind", ["hinge", "logistic"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_one_row_moves_a_gradient_no_farther_than_is_charged(kind: Any, outputs: int) -> None:
    """Whatever the model, the row (far outside of [0, 1] too) and its label."""
    rng, farthest = np.random.default_rng(0), 0.0
    about: Any = {"outputs": outputs, "width": 6, "rows": [20, 20], "iterations": 3}
    planned = linear_model.gradient_release(Budget(1.0), **about)
    unit, coordinates = 2.0**-planned.noise.fraction, linear_model.public_coordinates(5, 0)
    for scale in np.geomspace(0.01, 100.0, 300):
        model = scale * rng.standard_normal((outputs, 6))
        x, y = rng.uniform(-scale, scale, (20, 5)), rng.choice([-1.0, 1.0], (20, outputs))
        other, labels = x.copy(), y.copy()
        labels[0] = -y[0]
        if rng.random() < 0.5:
            other[0] = rng.uniform(-scale, scale, 5)
        found = []
        for a, b in ((x, y), (other, labels)):
            rows = linear_model.shortened(coordinates.rows(a))
            found.append(np.rint(linear_model.gradient(kind, rows, b, model) / unit))
        farthest = max(farthest, float(np.linalg.norm((found[0] - found[1]).ravel())) * unit)
    assert farthest <= planned.sensitivity
    assert farthest > (0.4 if kind == "logistic" else 0.6) * planned.sensitivity


def test_the_public_coordinates_hold_columns_between_0_and_1_as_they_are() -> None:
    rows = linear_model.public_coordinates(8, 0).rows(X)
    assert np.array_equal(linear_model.shortened(rows), rows)
    assert np.linalg.norm(rows, axis=1).max() <= math.sqrt(2.0)


def test_with_much_budget_it_is_nearly_the_machine_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_model, "ITERATIONS", 30)
    best = LogisticRegression().fit(X[:300], Y[:300]).score(X[300:], Y[300:])
    for options, rounds in (({"model": "linear"}, 20), ({"model": "rbf", "features": 20}, None)):
        made = run(strategy(privacy_epsilon=12.0, **options), rounds)
        assert made.num_rounds == (rounds or linear_model.ITERATIONS)
        right = float(np.mean(made.predict(X[300:]) == (Y[300:] > 0)))
        assert right > best - 0.08
        assert made.metrics_["test_accuracy"] == pytest.approx(right, abs=0.15)


def test_with_next_to_no_budget_it_ends() -> None:
    made = run(strategy(privacy_epsilon=0.01), 2)
    assert np.isfinite(made.coefficients_).all()
    # no figure where the noise leaves no row to count
    assert 0.0 <= made.metrics_.get("test_accuracy", 0.0) <= 1.0


def test_a_budget_for_parties_is_for_all_their_rows() -> None:
    about: Any = {"outputs": 1, "width": 9, "rows": [60, 40], "iterations": 5}
    rows, whole = (
        linear_model.gradient_release(Budget(1.0, unit=unit), **about) for unit in ("row", "party")
    )
    ratio = whole.noise.deviation(2) / rows.noise.deviation(2)
    assert ratio == pytest.approx(60 * math.sqrt(2.0), rel=0.05)  # and counts of a party


# -- what is refused


@pytest.mark.parametrize("rounds", ["central_rounds", "measure", ""])
def test_both_sides_have_a_budget_or_none(rounds: str, monkeypatch: Any) -> None:
    """No solutions are asked for where there is one, no gradients where there is none."""
    honest = server.Nodes.gather

    def without(self: Any, *known: Any, **more: Any) -> None:
        honest(self, *known, **{**more, "privacy": ""})

    if rounds:
        known: Any = ({}, {}) if rounds == "central_rounds" else ()
        other = getattr(RowRun, rounds)
        monkeypatch.setattr(RowRun, "private_rounds", lambda run, arrays: other(run, *known))
    else:
        monkeypatch.setattr(server.Nodes, "gather", without)
    refuses("FK-BUDGET-SIDES", run, strategy())


def test_models_for_which_rows_overflow_are_answered_whatever_the_rows() -> None:
    """A refusal would tell of a row."""
    rng = np.random.default_rng(0)
    for kind in ("hinge", "logistic"):
        for scale in (1e300, 1.7e308):
            model = scale * rng.choice([-1.0, 1.0], (1, 65))
            rows = linear_model.public_coordinates(64, 0).rows(rng.choice([0.0, 1.0], (400, 64)))
            found = linear_model.gradient(kind, linear_model.shortened(rows), Y[:, None], model)  # type: ignore[arg-type]
            assert np.abs(found).max() <= len(rows)
