"""Secure aggregation with a clip and noise: what is averaged has a bound, its mean a budget."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from averaging import NODES, ROUNDS, SecureAvg, load, owned, secure
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedProx
from refusals import refused
from scipy import stats

from fedkern_flwr.privacy.accounting import ORDERS
from fedkern_flwr.secure_aggregation import secure_aggregation_mod
from fedkern_flwr.simulations import Fault, FaultPlan, simulate

ALARM = 1e-9  # noise has no seed: odds of a false alarm
LENGTH, CLIP, NOISE = 300, 2.0, 1.5
OPTIONS: dict[str, Any] = {"clip": CLIP, "noise_multiplier": NOISE}
NONE: dict[str, Any] = dict.fromkeys(OPTIONS)


def update(k: int, length: float = 10.0) -> np.ndarray:
    """Return how a node would move the model."""
    found = np.random.default_rng(k).standard_normal(LENGTH)
    return found * length / float(np.linalg.norm(found))


def clipped(*nodes: int) -> Any:
    return sum(update(k, CLIP) for k in nodes)


def noisy_app(change: Any = update, **mod: Any) -> ClientApp:
    """Return an app that moves the model by an update of its own, far beyond the clip."""
    app = ClientApp(mods=[secure_aggregation_mod(load, **{**OPTIONS, **mod})])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        sent, move = message.content["arrays"], change(k)
        moved = {"b": Array(np.asarray(sent["b"].numpy() + move[-1]))}
        moved["w"] = Array(sent["w"].numpy() + move[:-1].reshape(-1, 13))
        record = ArrayRecord({name: moved[name] for name in sent})
        metrics = MetricRecord({"loss": 4711.0, "num-examples": 20 + 7 * k})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def noisy(kind: Any = SecureAvg, app: ClientApp | None = None, **more: Any) -> tuple[Any, Any]:
    """Run a strategy with clip and noise; return it and what it found."""
    how = {name: more.pop(name) for name in ("num_rounds", "faults", "timeout") if name in more}
    start = ArrayRecord({"w": Array(np.zeros((23, 13))), "b": Array(np.zeros(()))})
    strategy = kind(**{"fraction_evaluate": 0.0, **OPTIONS, **more})
    how = {"num_rounds": 1, "initial_arrays": start, **how}
    return strategy, simulate(strategy, app or noisy_app(), NODES, **how)


def flat(found: Any) -> np.ndarray:
    return np.concatenate([found.arrays["w"].numpy().ravel(), found.arrays["b"].numpy().ravel()])


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the noise away, and nothing else."""
    noiseless = "fedkern_flwr.secure_sum.party.skellam"
    monkeypatch.setattr(noiseless, lambda variance, size, key=None: np.zeros(size, np.int64))


@pytest.mark.promise("averages-clipped")
@pytest.mark.parametrize(("gone", "wrong"), [((), None), ((1,), None), ((), np.nan), ((), np.inf)])
def test_less_the_noise_the_mean_is_that_of_clipped_updates_of_equal_weight(
    gone: tuple[int, ...], wrong: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes have from 20 to 41 examples; their updates are five times as long as the clip.

    An update that is not finite counts as none, and nobody is told.
    """
    silent(monkeypatch)
    plan = FaultPlan([(k, "average", 1, Fault("vanished")) for k in gone])
    app = noisy_app(lambda k: wrong * update(k) if wrong and k == 1 else update(k))
    strategy, found = noisy(secure(FedProx), app, faults=plan)
    left = [k for k in range(NODES) if k not in gone]
    assert strategy.survivors_ == [left]
    assert bool(strategy.ledger_.failures) == bool(gone)
    expected = clipped(*(k for k in left if not (wrong and k == 1))) / len(left)
    assert np.abs(flat(found) - expected).max() <= 2.0**-10


@pytest.mark.promise("averages-noise")
@pytest.mark.parametrize(("gone", "colluders", "least"), [((), 1, 3), ((1,), 1, 3), ((), 0, 4)])
def test_whoever_survives_the_mean_has_the_declared_noise_or_more(
    gone: tuple[int, ...], colluders: int, least: int
) -> None:
    plan = FaultPlan([(k, "average", 1, Fault("vanished")) for k in gone])
    strategy, found = noisy(threshold=least, colluders=colluders, faults=plan, timeout=2.0)
    left = [k for k in range(NODES) if k not in gone]
    noise = len(left) * flat(found) - clipped(*left)
    (told,) = strategy.privacy()["budget"]["releases"]
    expected = NOISE * CLIP * math.sqrt(len(left) / (least - colluders))
    assert told["declared_deviation"] == pytest.approx(NOISE * CLIP, rel=1e-3)
    assert told["deviation"] == pytest.approx(expected, rel=1e-3)
    apart = stats.norm.isf(ALARM) * math.sqrt(0.51 / noise.size)
    assert abs(noise.std() / expected - 1.0) < apart


def test_rounds_have_noise_of_their_own() -> None:
    """The same update of the same model twice: no mean of two noises, no difference without."""
    totals = []

    class Fixed(SecureAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            (reply,) = replies
            totals.append(reply.content["arrays"]["w"].numpy().ravel())
            return ArrayRecord({"w": Array(np.zeros((23, 13))), "b": Array(np.zeros(()))}), None

    noisy(Fixed, num_rounds=2, threshold=3)
    apart = float(np.std(NODES * (totals[0] - totals[1])))
    expected = math.sqrt(2.0) * NOISE * CLIP * math.sqrt(4 / 2)
    assert abs(apart / expected - 1.0) < stats.norm.isf(ALARM) * math.sqrt(0.51 / totals[0].size)


def test_rounds_add_up_and_epsilon_is_in_the_history() -> None:
    """A round that is lost is charged by the nodes, and not told as spent."""
    strategy, found = noisy(num_rounds=ROUNDS)
    told = [found.train_metrics_clientapp[k]["epsilon"] for k in range(1, ROUNDS + 1)]
    assert told[0] < told[1] < told[2]
    budget = strategy.privacy()["budget"]
    assert budget["unit"] == "party"
    assert budget["epsilon"] == pytest.approx(told[-1])
    accountant = RdpAccountant(ORDERS)
    accountant.compose(GaussianDpEvent(NOISE / 2.0), ROUNDS)  # another node's data: 2 C
    assert told[-1] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)
    assert told[-1] >= accountant.get_epsilon(1e-5)
    assert found.train_metrics_clientapp[1].keys() == {"epsilon"}  # and no loss
    lost = FaultPlan([(k, "average", 2, Fault("error")) for k in (0, 1)])
    strategy, _ = noisy(num_rounds=ROUNDS, faults=lost)
    assert [len(alive) for alive in strategy.survivors_] == [4, 0, 4]
    assert strategy.privacy()["budget"]["spent"] < strategy.privacy()["budget"]["epsilon"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"clip": None}, "FK-OPTION-PARTNER"),
        ({"noise_multiplier": None}, "FK-OPTION-PARTNER"),
        *(({**NONE, "bound": b}, "FK-OPTION-RANGE") for b in (0.0, -1.0, math.inf, math.nan)),
        ({"clip": math.inf}, "FK-OPTION-RANGE"),
        ({"noise_multiplier": -1.0}, "FK-OPTION-RANGE"),
        ({"delta": 0.0}, "FK-OPTION-RANGE"),
        ({"colluders": 3}, "FK-BUDGET-COLLUDERS"),
        ({"noise_multiplier": 0.05}, "FK-BUDGET-EXACT"),
        ({"clip": 1e-20}, "FK-CLIP-UNIT"),
        ({"fraction_evaluate": 1.0}, "FK-BUDGET-FIGURES"),
    ],
)
def test_what_keeps_no_budget_is_refused(options: dict[str, Any], code: str) -> None:
    with refused(code):
        noisy(**options)
    mod = {name: options[name] for name in {*OPTIONS, "bound"} & set(options)}
    if code == "FK-OPTION-PARTNER" or "bound" in options:
        with refused(code):  # at the node as well
            noisy_app(**mod)


def test_without_dp_accounting_one_line_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with refused("FK-PACKAGE-MISSING"):
        noisy()


@pytest.mark.parametrize(
    ("server", "node", "code"),
    [
        ({"noise_multiplier": 1.0}, {}, "FK-ORDER-NOISE"),
        ({"clip": 1.0}, {}, "FK-ORDER-NOISE"),
        ({"clip": 1.0, "noise_multiplier": 3.0}, {}, "FK-ORDER-BOUND"),
        ({}, NONE, "FK-ORDER-DECLARED"),
        (NONE, {}, "FK-ORDER-DECLARED"),
        ({**NONE, "bound": 10.0}, NONE, "FK-ORDER-BOUND"),
        (NONE, {**NONE, "bound": 2048.0}, "FK-ORDER-BOUND"),
        ({**NONE, "weighted_by_key": "loss"}, NONE, "FK-ORDER-DECLARED"),
    ],
)
def test_a_node_takes_part_with_its_own_options_only(
    server: dict[str, Any], node: dict[str, Any], code: str
) -> None:
    with refused(code):
        noisy(app=noisy_app(**node), **server)


CLIPPED: dict[str, Any] = {"clip": CLIP, "noise_multiplier": 3.0}


def test_runs_add_up_at_each_node_until_its_owner_s_limit(tmp_path: Path) -> None:
    """One run costs 2.996, two cost more than four."""
    app = owned(tmp_path, mod=CLIPPED, max_epsilon=4.0)
    strategy, _ = noisy(app=app, noise_multiplier=3.0)
    assert 2.9 < strategy.privacy()["budget"]["spent"] < 3.1
    with refused("FK-BUDGET-SPENT", "FK-POLICY-EPSILON"):
        noisy(app=app, noise_multiplier=3.0)
    with refused("FK-POLICY-EPSILON"):
        noisy(app=app, noise_multiplier=3.0, num_rounds=20)
