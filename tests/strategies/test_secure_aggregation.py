"""Stock strategies with secure aggregation: the plain run, of which the server sees means only."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from averaging_apps import (
    CLIP,
    NODES,
    NOISE,
    OPTIONS,
    initial,
    load,
    make_app,
    noisy_app,
    owned,
    update,
)
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping as Clipping
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, Krum
from identities import pin_identities
from refusals import raises, refused, refuses
from scipy import stats
from zoo import SecureMean

from fedkern_flwr.errors import CohortError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.privacy.accounting import ORDERS
from fedkern_flwr.secure_aggregation import SecureAggregation, averages
from fedkern_flwr.simulations import Fault, FaultPlan, InProcessGrid, Transcript, simulate

ROUNDS = 3


def secure(stock: type[Any]) -> type[Any]:
    return type(f"Secure{stock.__name__}", (SecureAggregation, stock), {})


def once(partition: int, number: int) -> bool:
    return (partition, number) == (1, 2)


def run(strategy: Any, app: ClientApp | None = None, **more: Any) -> Any:
    more = {"num_rounds": ROUNDS, "initial_arrays": initial(), **more}
    return simulate(strategy, app or make_app(), NODES, **more)


def same(found: Any, expected: Any, *, rtol: float = 0.0, figures: bool = True) -> None:
    """Check that the arrays of two results are equal to 1e-9, and perhaps their metrics."""
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), rtol=rtol, atol=1e-9)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp") if figures else ():
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        assert ours.keys() == theirs.keys()
        for number, metrics in theirs.items():
            assert ours[number].keys() == metrics.keys()
            for name, value in metrics.items():
                np.testing.assert_allclose(ours[number][name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("stock", [FedAvg, FedAdam, FedProx])
def test_a_secure_run_is_the_plain_run_over_the_same_survivors(stock: Any) -> None:
    strategy = secure(stock)()
    found = run(strategy, make_app(once), serialise=True)
    same(found, run(stock(), make_app(once)))
    assert strategy.survivors_ == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert len(found.evaluate_metrics_clientapp) == ROUNDS
    assert strategy.ledger_.by_phase["average"] == ROUNDS
    assert strategy.ledger_.failures["1"] == {"raised ValueError": 2}  # what it said is not sent


def test_a_round_with_too_few_is_lost_and_leaves_the_model() -> None:
    strategy = SecureMean()
    found = run(strategy, make_app(lambda k, number: k < 2 and number == 2))
    assert strategy.survivors_ == [[0, 1, 2, 3], [], [0, 1, 2, 3]]
    assert sorted(found.train_metrics_clientapp) == [1, 3]
    raises(CohortError, run, SecureMean(max_missed=2), make_app(lambda k, number: k < 2))
    same(found, run(SecureMean(), num_rounds=2), figures=False)


def test_arrays_keep_the_types_of_flower_s_own_averages() -> None:
    def typed(k: int, number: int, content: RecordDict) -> None:
        arrays = content["arrays"]
        arrays["w"] = Array(arrays["w"].numpy().astype(np.float32))
        arrays["steps"] = Array(np.array([k, 3 * k]))

    arrays = {**initial(), "w": Array(np.zeros((3, 1), np.float32))}
    arrays["steps"] = Array(np.zeros(2, np.int64))
    more = {"initial_arrays": ArrayRecord(arrays), "num_rounds": 1}
    found = run(SecureMean(), make_app(change=typed), **more)
    same(found, run(FedAvg(), make_app(change=typed), **more), rtol=1e-6, figures=False)


# -- what is refused


def spoil(key: str, value: Any) -> Any:
    """Return a change of what partition 1 returns in the second round."""

    def change(k: int, number: int, content: RecordDict) -> None:
        if once(k, number):
            if isinstance(value, Array):
                content["arrays"][key] = value
            elif value is None:
                del content["metrics"][key]
            else:
                content["metrics"][key] = value

    return change


@pytest.mark.parametrize(("key", "value", "code"), [
    ("w", Array(np.full((3, 1), 1e6)), "FK-ORDER-UNFIT"),
    ("w", Array(np.full((3, 1), np.nan)), "FK-ORDER-UNFIT"),
    ("w", Array(np.zeros((1, 3))), "FK-APP-ARRAYS"), ("v", Array(np.zeros(3)), "FK-APP-ARRAYS"),
    ("num-examples", None, "FK-APP-WEIGHT"), ("num-examples", 42, "FK-APP-WEIGHT-RANGE"),
    ("many", [0.0] * averages.SLOTS, "FK-APP-METRICS-MANY"), ("loss", 1e9, "FK-ORDER-UNFIT"),
    ("other", 1.0, ""), ("m" * 500, 1.0, "FK-APP-METRICS-MANY"),
])  # fmt: skip
def test_a_reply_that_does_not_fit_is_not_summed(key: str, value: Any, code: str) -> None:
    """The mean is that of the others, and what the server is told quotes no value."""
    strategy = SecureMean()
    found = run(strategy, make_app(change=spoil(key, value)), num_rounds=2)
    assert strategy.survivors_ == [[0, 1, 2, 3], [0, 2, 3]]
    same(found, run(FedAvg(), make_app(once), num_rounds=2), figures=False)
    text = json.dumps(strategy.ledger_.failures["1"])
    assert not code or f"[{code}]" in text
    assert not any(word in text for word in ("nan", "10000", "1e6", "1000000"))


class Personal(SecureMean):
    def configure_train(self, *args: Any) -> Any:
        for k, message in enumerate(super().configure_train(*args)):
            content = RecordDict({**message.content, "config": ConfigRecord({"k": k})})
            yield Message(content, message.metadata.dst_node_id, "train")


@pytest.mark.parametrize(("make", "code"), [
    (lambda: SecureMean(fraction_train=0.5), "FK-STRATEGY-SAMPLES"),
    (lambda: SecureMean(fraction_evaluate=0.5), "FK-STRATEGY-SAMPLES"),
    (secure(FedMedian), "FK-STRATEGY-SINGLE"), (secure(Krum), "FK-STRATEGY-SINGLE"),
    (lambda: secure(Clipping)(FedAvg(), 1.0, 1.0, 5), "FK-STRATEGY-SINGLE"),
    (Personal, "FK-STRATEGY-RECORDS"),
])  # fmt: skip
def test_what_is_no_mean_over_all_nodes_is_refused(make: Any, code: str) -> None:
    with refused(code):
        run(make())


@pytest.mark.promise("averages-own-clip")
@pytest.mark.parametrize("clip", [{}, {"clip": 2.0, "noise_multiplier": 1.5}])
def test_a_node_answers_no_server_without_the_mixin(clip: dict[str, float]) -> None:
    asked: list[int] = []
    policy = NodePolicy(require_secure_sums=not clip)
    app, seen = make_app(lambda k, n: bool(asked.append(k)), policy=policy, **clip), Transcript()
    found = run(FedAvg(), app, transcript=seen)
    assert not asked
    assert not found.arrays
    assert len(list(seen.entries(direction="down"))) == 2 * ROUNDS * NODES
    assert not list(seen.entries(direction="up"))  # errors


@pytest.mark.parametrize("disguised", [False, True])
def test_a_server_that_sends_nodes_different_models_opens_nothing(disguised: bool) -> None:
    """Else it sends all but one node a model of which it knows what comes back."""
    other = ArrayRecord({**initial(), "b": Array(np.ones(()))})

    class Lies(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            for message in (messages := list(messages)):
                sent = message.content.array_records
                if message.metadata.dst_node_id == 1000 and "arrays" in sent:
                    own = [k for k in ("arrays", "config") if k in message.content]
                    before = averages.sum_name(RecordDict({k: message.content[k] for k in own}))
                    message.content["arrays"] = other
                    if disguised:
                        after = averages.sum_name(RecordDict({k: message.content[k] for k in own}))
                        asked = message.content["fitins.config"]
                        asked["sections"] = asked["sections"].replace(before, after)
            return super().push_messages(messages)

    strategy = SecureMean(max_missed=2, fraction_evaluate=0.0)
    with refused("FK-PARTIES-LOST" if disguised else "FK-STRATEGY-RECORDS"):
        strategy.start(Lies(make_app(), NODES), initial(), num_rounds=ROUNDS)
    assert not any(strategy.survivors_)


# -- the guard


def test_survivors_are_voted_for_where_identities_are_pinned(tmp_path: Path) -> None:
    pin_identities(tmp_path, NODES)

    class Pinned(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            own = tmp_path / f"identity-{context.node_config['partition-id']}"
            keys = {"identity_key": own, "trusted_keys": tmp_path / "trusted"}
            return make_app(once, **keys)(message, context)

    strategy = SecureMean(fraction_evaluate=0.0)
    same(run(strategy, Pinned()), run(FedAvg(fraction_evaluate=0.0), make_app(once)))
    assert strategy.ledger_.by_phase["vote"] == 1


def test_the_policy_of_a_node_counts(caplog: pytest.LogCaptureFixture) -> None:
    few = {"fraction_evaluate": 0.0}
    run(SecureMean(**few), make_app(policy=NodePolicy()), num_rounds=60)
    assert caplog.text.count("only a budget of privacy protects single rows") == 1
    refuses("FK-POLICY-OWN-ROWS", run, SecureMean(), make_app(policy=NodePolicy(min_own_rows=30)))
    with refused("FK-POLICY-COUNTING"):
        run(SecureMean(**few), make_app(policy=NodePolicy(counting="refuse")), num_rounds=100)


def test_figures_are_told_as_often_as_the_policies_allow_and_training_goes_on() -> None:
    found = run(SecureMean(), make_app(policy=NodePolicy(max_evaluations=2)), num_rounds=5)
    assert sorted(found.evaluate_metrics_clientapp) == [1, 2]
    assert sorted(found.train_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_without_held_out_examples_no_figures_are_told() -> None:
    strategy = SecureMean()
    found = run(strategy, make_app(held_out=None))
    assert not found.evaluate_metrics_clientapp
    assert "average-evaluate" not in strategy.ledger_.by_phase


def test_the_ledger_knows_examples_again(tmp_path: Path) -> None:
    """A deployed node refuses a second run over all its examples but one."""
    for left_out in (0, 0, 1):
        rest = lambda c, n=left_out: tuple(part[n:] for part in load(c))  # noqa: E731
        app = owned(tmp_path, partial(make_app, examples=rest))
        with refused("FK-FREEZE-ROWS") if left_out else nullcontext():
            run(SecureMean(fraction_evaluate=0.0), app, num_rounds=1)


def test_a_damaged_layout_is_refused() -> None:
    damaged = '{ [["a"]] [["a",-1]] [["a",true]] [["a",33]] [["a",0],["a",0]]'
    for text in (*damaged.split(), "[" * 100_000):
        refuses("FK-MESSAGE-FIELD", averages.read_layout, text)


# -- with a clip and noise: what is averaged has a bound, its mean a budget


ALARM = 1e-9  # noise has no seed: odds of a false alarm
NONE: dict[str, Any] = dict.fromkeys(OPTIONS)


def clipped(*nodes: int) -> Any:
    return sum(update(k, CLIP) for k in nodes)


def noisy(kind: Any = SecureMean, app: ClientApp | None = None, **more: Any) -> tuple[Any, Any]:
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
def test_a_mean_has_the_declared_noise(gone: tuple[int, ...], colluders: int, least: int) -> None:
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


@pytest.mark.parametrize(("options", "code"), [
    ({"clip": None}, "FK-OPTION-PARTNER"), ({"noise_multiplier": None}, "FK-OPTION-PARTNER"),
    *(({**NONE, "bound": b}, "FK-OPTION-RANGE") for b in (0.0, -1.0, math.inf, math.nan)),
    ({"clip": math.inf}, "FK-OPTION-RANGE"), ({"noise_multiplier": -1.0}, "FK-OPTION-RANGE"),
    ({"delta": 0.0}, "FK-OPTION-RANGE"), ({"colluders": 3}, "FK-BUDGET-COLLUDERS"),
    ({"noise_multiplier": 0.05}, "FK-BUDGET-EXACT"), ({"clip": 1e-20}, "FK-CLIP-UNIT"),
    ({"fraction_evaluate": 1.0}, "FK-BUDGET-FIGURES"),
])  # fmt: skip
def test_what_keeps_no_budget_is_refused(options: dict[str, Any], code: str) -> None:
    refuses(code, noisy, **options)
    mod = {name: options[name] for name in {*OPTIONS, "bound"} & set(options)}
    if code == "FK-OPTION-PARTNER" or "bound" in options:
        refuses(code, noisy_app, **mod)  # at the node as well


@pytest.mark.parametrize(("server", "node", "code"), [
    ({"noise_multiplier": 1.0}, {}, "FK-ORDER-NOISE"), ({"clip": 1.0}, {}, "FK-ORDER-NOISE"),
    ({"clip": 1.0, "noise_multiplier": 3.0}, {}, "FK-ORDER-BOUND"), ({}, NONE, "FK-ORDER-DECLARED"),
    (NONE, {}, "FK-ORDER-DECLARED"), ({**NONE, "bound": 10.0}, NONE, "FK-ORDER-BOUND"),
    (NONE, {**NONE, "bound": 2048.0}, "FK-ORDER-BOUND"),
    ({**NONE, "weighted_by_key": "loss"}, NONE, "FK-ORDER-DECLARED"),
])  # fmt: skip
def test_a_node_keeps_its_options(server: dict[str, Any], node: dict[str, Any], code: str) -> None:
    refuses(code, noisy, app=noisy_app(**node), **server)


def test_runs_add_up_at_each_node_until_its_owner_s_limit(tmp_path: Path) -> None:
    """One run costs 2.996, two cost more than four."""
    app = owned(tmp_path, partial(noisy_app, noise_multiplier=3.0), max_epsilon=4.0)
    strategy, _ = noisy(app=app, noise_multiplier=3.0)
    assert 2.9 < strategy.privacy()["budget"]["spent"] < 3.1
    with refused("FK-BUDGET-SPENT", "FK-POLICY-EPSILON"):
        noisy(app=app, noise_multiplier=3.0)
    refuses("FK-POLICY-EPSILON", noisy, app=app, noise_multiplier=3.0, num_rounds=20)
