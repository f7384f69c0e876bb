"""HierarchicalSVM with a budget of privacy: its noisy sums, what they cost, refuse, and resume."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import Cut, PowerCutError
from flwr.app import Context
from identities import know_noise, known_node
from refusals import refused
from scipy import stats
from sklearn.datasets import load_breast_cancer

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups import gradients
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.ledger import NodeLedger
from fedkern_flwr.privacy import Budget, NoisySum
from fedkern_flwr.privacy.accounting import epsilon_of
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import HierarchicalSVM, hierarchical_private
from fedkern_flwr.strategies.hierarchical_private import PrivateRounds

USERS, ALARM = 4, 1e-9  # noise has no seed: odds of a false alarm
STEPS = 6


def table(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.min(0)) / np.ptp(x, axis=0)
    return x[:n, :8], np.where(y[:n] > 0, 1.0, -1.0)


X, Y = table()


def nodes(folder: Path | None = None, **more: Any) -> Any:
    """Clients; with a folder they are deployed ones, which have theirs in it."""

    def client(context: Context) -> SVMClient:
        k = int(context.node_config["partition-id"])
        rows, held = np.arange(k, 300, USERS), np.arange(300 + k, len(X), USERS)
        own: Any = {"x_test": X[held], "y_test": Y[held], "classes": (-1.0, 1.0), **more}
        if folder is not None:
            context.node_config["simulation"] = False
            own |= known_node(folder, k, USERS)
        return SVMClient(context, X[rows], Y[rows], **own)

    return client


def strategy(**options: Any) -> HierarchicalSVM:
    base: Any = {"architecture": "centralised", "C": 1.0, "seed": 0, "privacy_epsilon": 3.0}
    return HierarchicalSVM(**{**base, **options})


def run(made: HierarchicalSVM, rounds: int | None = STEPS, **more: Any) -> HierarchicalSVM:
    simulate(made, nodes(**more), USERS, num_rounds=rounds)
    return made


@pytest.fixture
def opened(monkeypatch: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The models at which gradients were asked for, and the sums that the server opened."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    honest = gradients.next_model

    def record(model: np.ndarray, total: np.ndarray, *known: Any, **more: Any) -> Any:
        seen.append((model.copy(), total.copy()))
        return honest(model, total, *known, **more)

    monkeypatch.setattr(gradients, "next_model", record)
    return seen


def plain_gradient(model: np.ndarray, kind: str) -> np.ndarray:
    """Term by term, of the pooled rows."""
    total = np.zeros(X.shape[1] + 1)
    for x, y in zip(X[:300], Y[:300], strict=True):
        z = np.append((2.0 * x - 1.0) / math.sqrt(X.shape[1]), 1.0)
        margin = float(y * (z @ model[0]))
        slope = float(margin < 1.0) if kind == "linear" else 1.0 / (1.0 + math.exp(margin))
        total -= slope * y * z
    return total


@pytest.mark.parametrize("kind", ["linear", "logistic"])
@pytest.mark.parametrize("colluders", [0, 3])
def test_all_that_is_opened_has_the_noise_that_is_told(
    kind: Any, colluders: int, opened: Any
) -> None:
    made = run(strategy(model=kind, privacy_colluders=colluders), 20)
    noise = np.concatenate([total[0] - plain_gradient(w, kind) for w, total in opened])
    budget = made.result()["privacy"]["budget"]
    told, outcomes = budget["releases"]
    assert [told["release"], outcomes["release"]] == ["gradients", "outcomes"]
    assert told["times"] == 20
    apart = noise.std() / told["deviation"] - 1.0
    assert abs(apart) < stats.norm.isf(ALARM) * math.sqrt(0.51 / noise.size)
    share = told["deviation"] / told["declared_deviation"]
    assert share == pytest.approx(math.sqrt(USERS / (USERS - colluders)))


def test_the_iterations_together_cost_the_budget_and_no_figures_are_told_besides() -> None:
    made = run(strategy())
    (release, parties), (counts, _) = (made.noised_[n] for n in ("gradients", "outcomes"))
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
    planned = gradients.gradient_release(Budget(1.0), **about)
    unit, coordinates = 2.0**-planned.noise.fraction, gradients.public_coordinates(5, 0)
    for scale in np.geomspace(0.01, 100.0, 300):
        model = scale * rng.standard_normal((outputs, 6))
        x, y = rng.uniform(-scale, scale, (20, 5)), rng.choice([-1.0, 1.0], (20, outputs))
        other, labels = x.copy(), y.copy()
        labels[0] = -y[0]
        if rng.random() < 0.5:
            other[0] = rng.uniform(-scale, scale, 5)
        found = []
        for a, b in ((x, y), (other, labels)):
            rows = gradients.shortened(coordinates.rows(a))
            found.append(np.rint(gradients.gradient(kind, rows, b, model) / unit))
        farthest = max(farthest, float(np.linalg.norm((found[0] - found[1]).ravel())) * unit)
    assert farthest <= planned.sensitivity
    assert farthest > (0.4 if kind == "logistic" else 0.6) * planned.sensitivity


def test_the_public_coordinates_hold_columns_between_0_and_1_as_they_are() -> None:
    rows = gradients.public_coordinates(8, 0).rows(X)
    assert np.array_equal(gradients.shortened(rows), rows)
    assert np.linalg.norm(rows, axis=1).max() <= math.sqrt(2.0)


def test_with_much_budget_it_is_nearly_the_machine_without() -> None:
    plain = HierarchicalSVM(architecture="centralised", C=1.0, seed=0)
    simulate(plain, nodes(), USERS, num_rounds=50)
    best = float(np.mean(plain.predict(X[300:]) == (Y[300:] > 0)))
    for options, rounds, made_in in (
        ({"model": "linear"}, 30, 30),
        ({"model": "rbf", "features": 20}, None, gradients.ITERATIONS),
    ):
        made = run(strategy(privacy_epsilon=12.0, **options), rounds)
        assert made.num_rounds == made_in
        right = float(np.mean(made.predict(X[300:]) == (Y[300:] > 0)))
        assert right > best - 0.08
        assert made.metrics_["test_accuracy"] == pytest.approx(right, abs=0.15)


def test_with_next_to_no_budget_it_ends() -> None:
    made = run(strategy(privacy_epsilon=0.01))
    assert np.isfinite(made.coefficients_).all()
    # no figure where the noise leaves no row to count
    assert 0.0 <= made.metrics_.get("test_accuracy", 0.0) <= 1.0


def test_a_budget_for_parties_is_for_all_their_rows() -> None:
    about: Any = {"outputs": 1, "width": 9, "rows": [60, 40], "iterations": 5}
    rows = gradients.gradient_release(Budget(1.0), **about)
    whole = gradients.gradient_release(Budget(1.0, unit="party"), **about)
    ratio = whole.noise.deviation(2) / rows.noise.deviation(2)
    assert ratio == pytest.approx(60 * math.sqrt(2.0), rel=0.05)  # and counts of a party
    made = run(strategy(privacy_unit="party"))
    assert made.result()["privacy"]["budget"]["unit"] == "party"


# -- what is refused


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"partition": "vertical", "architecture": "hierarchical"}, "FK-BUDGET-SPLIT"),
        ({"architecture": "hierarchical"}, "FK-BUDGET-OPTION"),
        ({"architecture": None, "staleness": 1}, "FK-BUDGET-OPTION"),
        ({"model": "ridge"}, "FK-BUDGET-LOSS"),
        ({"C": None}, "FK-BUDGET-CHOICE"),
        ({"class_weight": "balanced"}, "FK-BUDGET-WEIGHTS"),
        ({"scale": "none"}, "FK-BUDGET-OPTION"),
        ({"rho": 1.0}, "FK-BUDGET-OPTION"),
        ({"privacy_delta": 1.0}, "FK-OPTION-RANGE"),
    ],
)
def test_what_does_not_go_with_a_budget_is_refused_in_a_line(options: Any, code: str) -> None:
    with refused(code) as why:
        strategy(**options)
    assert "\n" not in str(why.value)


@pytest.mark.parametrize("weaker", [0.5, 0.99])
def test_a_server_that_orders_less_noise_is_refused(weaker: float, monkeypatch: Any) -> None:
    original = PrivateRounds._noisy_sum

    def less(self: Any, name: str, request: Any, reply: Any, release: Any, *more: Any) -> Any:
        noise = NoisySum(int(release.noise.variance * weaker), release.noise.fraction)
        return original(self, name, request, reply, replace(release, noise=noise), *more)

    monkeypatch.setattr(PrivateRounds, "_noisy_sum", less)
    with refused("FK-ORDER-NOISE"):
        run(strategy())


def test_more_iterations_than_were_said_are_refused(monkeypatch: Any) -> None:
    """A server that says six and asks for seven: what they cost is counted by the nodes."""
    release, request = gradients.gradient_release, PrivateRounds._request

    def planned(*known: Any, **about: Any) -> Any:
        return release(*known, **{**about, "iterations": STEPS})

    monkeypatch.setattr(hierarchical_private.gradients, "gradient_release", planned)

    def lie(*known: Any) -> Any:
        return replace(request(*known), iterations=STEPS)

    monkeypatch.setattr(PrivateRounds, "_request", lie)
    run(strategy(), STEPS)
    with refused("FK-BUDGET-EXCEEDED"):
        run(strategy(), STEPS + 1)


@pytest.mark.parametrize("rounds", ["central_rounds", "measure_columns", ""])
def test_both_sides_have_a_budget_or_none(rounds: str, monkeypatch: Any) -> None:
    """No solutions are asked for where there is one, no gradients where there is none."""
    honest = HierarchicalSVM.gather

    def without(self: Any, *known: Any, **more: Any) -> None:
        kept, self.budget = self.budget, None
        honest(self, *known, **more)
        self.budget = kept

    if rounds:
        monkeypatch.setattr(HierarchicalSVM, "private_rounds", getattr(HierarchicalSVM, rounds))
    else:
        monkeypatch.setattr(HierarchicalSVM, "gather", without)
    with refused("FK-BUDGET-SIDES"):
        run(strategy())


@pytest.mark.parametrize(
    ("epsilon", "code"), [(None, "FK-POLICY-NOISE"), (3.1, "FK-POLICY-EPSILON"), (3.0, "")]
)
def test_a_node_takes_part_within_its_limit(epsilon: float | None, code: str) -> None:
    made, policy = strategy(privacy_epsilon=epsilon), NodePolicy.of_simulations(max_epsilon=3.0)
    with refused(code) if code else nullcontext():
        run(made, policy=policy)
        assert HierarchicalSVM.of_model(made.model()[1]).budget == made.budget


def test_an_equal_answer_to_another_question_is_another_release(monkeypatch: Any) -> None:
    """Else a server sees, without noise, whether a row is past the margin of some model."""
    totals, honest = [], PrivateRounds._noisy_sum

    def twice(self: Any, name: str, request: Any, *rest: Any, **more: Any) -> Any:
        for scale in (0.0, 1e-3, 0.0):  # no row is past the margin of either
            other = replace(request, model=np.full_like(request.model, scale))
            totals.append((yield from honest(self, name, other, *rest, **more)))
        return totals[-1]

    monkeypatch.setattr(PrivateRounds, "_noisy_sum", twice)
    with refused("FK-BUDGET-EXCEEDED"):
        run(strategy(), 2)
    assert len(totals) == 3
    assert not np.array_equal(totals[0], totals[1])
    assert np.array_equal(totals[0], totals[2])  # the same question again


def test_models_for_which_rows_overflow_are_answered_whatever_the_rows() -> None:
    """A refusal would tell of a row."""
    rng = np.random.default_rng(0)
    for kind in ("hinge", "logistic"):
        for scale in (1e300, 1.7e308):
            model = scale * rng.choice([-1.0, 1.0], (1, 65))
            rows = gradients.public_coordinates(64, 0).rows(rng.choice([0.0, 1.0], (400, 64)))
            found = gradients.gradient(kind, gradients.shortened(rows), Y[:, None], model)  # type: ignore[arg-type]
            assert np.abs(found).max() <= len(rows)


# -- a run that breaks off goes on: the same noise, paid once

FEW = 5
LAST = FEW + 1  # exchange of the counts; 0 describes, 1 is the first iteration


@dataclass
class Users:
    """Users with folders, whose owners allow one run about their rows."""

    folder: Path
    last: Any = None

    def fit(
        self, plan: Any = None, rounds: int = FEW, state: bool = True, **more: Any
    ) -> HierarchicalSVM:
        own = {"attempts": 2, "checkpoint": self.folder / "run.npz", "checkpoint_every": 2}
        self.last = strategy(**{**own, **more})
        policy = NodePolicy(max_epsilon=3.0 if state else math.inf)
        clients = nodes(self.folder if state else None, policy=policy)
        simulate(self.last, clients, USERS, num_rounds=rounds, faults=plan)
        return self.last


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Users:
    """Users whose noise is known to the test: drawn again it is other noise."""
    know_noise(monkeypatch)
    return Users(tmp_path)


@pytest.fixture
def quiet(users: Users, tmp_path: Path) -> HierarchicalSVM:
    """The run that nothing happens to."""
    return Users(tmp_path / "quiet").fit()


def check(users: Users, quiet: HierarchicalSVM) -> None:
    """The same model and figures, byte for byte; paid once."""
    assert np.array_equal(users.last.coefficients_, quiet.coefficients_)
    assert (users.last.metrics_, users.last.history_) == (quiet.metrics_, quiet.history_)
    assert users.last.privacy()["budget"] == quiet.privacy()["budget"]
    for k in range(USERS):
        (paid,) = NodeLedger(users.folder / str(k), k).runs()
        assert paid.epsilon == pytest.approx(3.0, rel=1e-2)


def test_the_noise_of_these_tests_is_one(quiet: HierarchicalSVM, users: Users) -> None:
    """So that a model can be compared; with keys of the system it is another each time."""
    users.fit()
    check(users, quiet)


@pytest.mark.parametrize("number", range(2, LAST + 1))
@pytest.mark.parametrize("parties", [1, USERS])
def test_a_server_that_broke_down_goes_on(
    number: int, parties: int, users: Users, quiet: HierarchicalSVM
) -> None:
    """Some users have answered the exchange, or none of them; one costs nothing twice."""
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=number, parties=parties))
    users.fit(resume=True)
    check(users, quiet)


@pytest.mark.parametrize(
    ("what", "code"),
    [("rounds", "SETTINGS-CHANGED"), ("state", "STATE-GONE"), ("noise", "BUDGET-EXCEEDED")],
)
def test_what_a_run_cannot_go_on_with(what: str, code: str, users: Users) -> None:
    """Another number of iterations, among which the cost was divided; a node without a folder.

    Noise that was lost is not drawn again: the mean of two noises has less of it.
    """
    state = what != "state"
    with pytest.raises(PowerCutError):
        users.fit(Cut(number=5 if what == "noise" else 4), state=state)
    if what == "noise":
        NodeLedger(users.folder / "1", 1).forget_noise(users.last.session)
    with refused(f"FK-{code}") as why:
        users.fit(rounds=FEW + (what == "rounds"), resume=True, state=state)
    assert "\n" not in str(why.value)
    assert state or "state_dir" in str(why.value)
