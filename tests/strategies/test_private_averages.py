"""Stock strategies with a clip and noise: what is in the mean, what it costs, what is refused."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.rdp import RdpAccountant
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fedkern_flwr.errors import FedKernError, OptionError, RefusedError
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.privacy import NoisySum
from fedkern_flwr.privacy.accounting import ORDERS
from fedkern_flwr.secure_aggregation import SecureAggregation, secure_aggregation_mod
from fedkern_flwr.secure_aggregation.clipping import Clip, NoisyMeans
from fedkern_flwr.simulations import Fault, FaultPlan, Transcript, simulate

NODES, LENGTH, ROUNDS, ALARM = 5, 300, 3, 1e-9  # noise has no seed: odds of a false alarm
CLIP, NOISE = 2.0, 1.5
OPTIONS: dict[str, Any] = {"clip": CLIP, "noise_multiplier": NOISE}


class SecureAvg(SecureAggregation, FedAvg):
    pass


class SecureAdam(SecureAggregation, FedAdam):
    pass


class SecureProx(SecureAggregation, FedProx):
    pass


def update(k: int, length: float = 10.0) -> np.ndarray:
    """Return how a node would move the model."""
    found = np.random.default_rng(k).standard_normal(LENGTH)
    return found * length / float(np.linalg.norm(found))


def clipped(k: int) -> np.ndarray:
    return update(k, CLIP)


def examples(context: Context) -> np.ndarray:
    k = int(context.node_config["partition-id"])
    return np.random.default_rng(k).standard_normal((20 + 7 * k, 3))


def make_app(change: Any = update, fails: Any = lambda k, number: False, **mod: Any) -> ClientApp:
    """Return an app that moves the model by an update of its own, far beyond the clip."""
    app = ClientApp(mods=[secure_aggregation_mod(examples, **{**OPTIONS, **mod})])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = int(context.node_config["partition-id"])
        if fails(k, int(message.content["config"]["server-round"])):
            raise ValueError("lost")
        sent = message.content["arrays"]
        move = change(k)
        moved = {
            "b": Array(np.asarray(sent["b"].numpy() + move[-1])),
            "w": Array(sent["w"].numpy() + move[:-1].reshape(-1, 13)),
        }
        record = ArrayRecord({name: moved[name] for name in sent})
        metrics = MetricRecord({"loss": 4711.0, "num-examples": 20 + 7 * k})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 1.0})}), reply_to=message
        )

    return app


def run(strategy: Any, app: ClientApp | None = None, nodes: int = NODES, **more: Any) -> Any:
    start = ArrayRecord({"w": Array(np.zeros((23, 13))), "b": Array(np.zeros(()))})
    more = {"num_rounds": 1, "initial_arrays": start, **more}
    return simulate(strategy, app or make_app(), nodes, **more)


def secure(kind: Any = SecureAvg, **more: Any) -> Any:
    return kind(**{"fraction_evaluate": 0.0, **OPTIONS, **more})


def flat(found: Any) -> np.ndarray:
    return np.concatenate([found.arrays["w"].numpy().ravel(), found.arrays["b"].numpy().ravel()])


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the noise away, and nothing else."""
    noiseless = "fedkern_flwr.secure_sum.party.skellam"
    monkeypatch.setattr(noiseless, lambda variance, size, key=None: np.zeros(size, np.int64))


@pytest.mark.parametrize("kind", [SecureAvg, SecureProx])
@pytest.mark.parametrize("gone", [(), (1,)])
def test_less_the_noise_the_mean_is_that_of_clipped_updates_of_equal_weight(
    kind: Any, gone: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes have from 20 to 48 examples; their updates are five times as long as the clip."""
    silent(monkeypatch)
    strategy = secure(kind)
    found = run(strategy, make_app(fails=lambda k, number: k in gone), serialise=True)
    left = [k for k in range(NODES) if k not in gone]
    assert strategy.survivors_ == [left]
    expected = np.mean([clipped(k) for k in left], axis=0)
    unit = 2.0 ** -Clip(CLIP, NOISE).fraction
    assert np.abs(flat(found) - expected).max() <= unit
    np.testing.assert_allclose(flat(found).sum(), expected.sum(), atol=unit * 5 * LENGTH**0.5)


@given(arrays(np.float64, 20, elements=st.floats(-1e300, 1e300)), st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_clip_and_shorter_ones_stay(
    found: np.ndarray, length: float
) -> None:
    short = Clip(length, 1.0).shorten(found)
    with np.errstate(over="ignore"):
        whole = float(np.linalg.norm(found))
    assert np.linalg.norm(short) <= length
    assert np.abs(short).max() <= length
    if whole <= length * (1 - 1e-9):
        assert np.array_equal(short, found)
    elif math.isfinite(whole):
        np.testing.assert_allclose(short, found * length / whole, rtol=1e-9)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_none_and_is_not_told(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(monkeypatch)
    strategy = secure()
    found = run(strategy, make_app(lambda k: np.full(LENGTH, wrong) if k == 1 else update(k)))
    assert strategy.survivors_ == [list(range(NODES))]
    assert not strategy.ledger_.failures
    expected = sum(clipped(k) for k in range(NODES) if k != 1) / NODES
    assert np.abs(flat(found) - expected).max() < 1e-3


@pytest.mark.parametrize(
    ("gone", "colluders", "threshold"), [((), 1, None), ((1,), 1, 4), ((1, 3), 2, 3), ((), 0, 5)]
)
def test_whoever_survives_the_mean_has_the_declared_noise_or_more(
    gone: tuple[int, ...], colluders: int, threshold: int | None
) -> None:
    strategy = secure(threshold=threshold, colluders=colluders)
    plan = FaultPlan([(k, "average", 1, Fault("vanished")) for k in gone])
    found = run(strategy, faults=plan, timeout=2.0)
    left = [k for k in range(NODES) if k not in gone]
    assert strategy.survivors_ == [left]
    noise = len(left) * flat(found) - sum(clipped(k) for k in left)
    (told,) = strategy.privacy()["budget"]["releases"]
    least = (threshold or 4) - colluders
    expected = NOISE * CLIP * math.sqrt(len(left) / least)
    assert told["declared_deviation"] == pytest.approx(NOISE * CLIP, rel=1e-3)
    assert told["deviation"] == pytest.approx(expected, rel=1e-3)
    apart = stats.norm.isf(ALARM) * math.sqrt(0.51 / LENGTH)
    assert abs(noise.std() / expected - 1.0) < apart


def test_rounds_have_noise_of_their_own() -> None:
    """The same update of the same model twice: no mean of two noises, no difference without."""
    totals = []

    class Fixed(SecureAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            (reply,) = replies
            totals.append(reply.content["arrays"]["w"].numpy().ravel())
            return ArrayRecord({"w": Array(np.zeros((23, 13))), "b": Array(np.zeros(()))}), None

    run(secure(Fixed), num_rounds=2)
    apart = float(np.std(NODES * (totals[0] - totals[1])))
    expected = math.sqrt(2.0) * NOISE * CLIP * math.sqrt(5 / 3)
    assert abs(apart / expected - 1.0) < stats.norm.isf(ALARM) * math.sqrt(0.51 / totals[0].size)


def test_rounds_add_up_and_epsilon_is_in_the_history() -> None:
    strategy = secure(threshold=4)
    found = run(strategy, num_rounds=ROUNDS)
    told = [found.train_metrics_clientapp[k]["epsilon"] for k in range(1, ROUNDS + 1)]
    assert told[0] < told[1] < told[2]
    budget = strategy.privacy()["budget"]
    assert budget["unit"] == "party"
    assert budget["epsilon"] == pytest.approx(told[-1])
    assert budget["spent"] == told[-1]
    assert len(budget["releases"]) == ROUNDS
    accountant = RdpAccountant(ORDERS.tolist())
    accountant.compose(GaussianDpEvent(NOISE / 2.0), ROUNDS)  # another node's data: 2 C
    assert told[-1] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)
    assert told[-1] >= accountant.get_epsilon(1e-5)
    assert found.train_metrics_clientapp[1].keys() == {"epsilon"}  # and no loss


def test_a_round_that_is_lost_is_charged_by_the_nodes_and_not_told_as_spent() -> None:
    strategy = secure()
    run(strategy, make_app(fails=lambda k, number: k < 2 and number == 2), num_rounds=ROUNDS)
    assert [len(alive) for alive in strategy.survivors_] == [5, 0, 5]
    budget = strategy.privacy()["budget"]
    assert budget["spent"] < budget["epsilon"]


def test_the_server_adapts_as_ever() -> None:
    found = run(secure(SecureAdam), num_rounds=ROUNDS)
    assert np.isfinite(flat(found)).all()
    assert flat(found).any()


def test_the_epsilon_of_a_run_is_that_of_its_nodes_whatever_their_number() -> None:
    told = set()
    for nodes in (3, 5, 9):
        strategy = secure()
        run(strategy, nodes=nodes)
        told.add(strategy.privacy()["budget"]["spent"])
    assert len(told) == 1


def test_nothing_but_masked_vectors_leaves_a_node() -> None:
    transcript = Transcript()
    run(secure(), transcript=transcript)
    for entry in transcript.entries(direction="up"):
        assert "loss" not in str(entry)


@pytest.mark.parametrize("nodes", [3, 40])
@pytest.mark.parametrize("multiplier", [1e-3, 0.5, 30.0])
def test_the_ring_is_the_smallest_with_room_for_updates_and_noise(
    nodes: int, multiplier: float
) -> None:
    clip, means = Clip(CLIP, multiplier), NoisyMeans(Clip(CLIP, multiplier), 1e-5, 1)
    release = clip.release(means.budget, LENGTH, nodes, nodes)
    found = clip.encoding(release, nodes)
    assert found.bits == 32
    assert clip.encoding(release, 40_000_000).bits == 64
    assert release.noise.variance * (nodes - 1) >= (multiplier * CLIP * 2.0**clip.fraction) ** 2


# -- what is refused


@pytest.mark.parametrize("side", ["server", "node"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": None}, "clip is missing"),
        ({"noise_multiplier": None}, "noise_multiplier is missing"),
        ({"clip": 0.0}, "clip is 0"),
        ({"clip": math.inf}, "clip is inf"),
        ({"noise_multiplier": -1.0}, "noise_multiplier is -1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier is nan"),
    ],
)
def test_a_clip_without_noise_is_refused_in_a_line(
    side: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=said) as why:
        (secure if side == "server" else make_app)(**options)
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delta": 0.0}, "privacy_delta"),
        ({"colluders": -1}, "privacy_colluders"),
        ({"colluders": 4}, "4 collude"),
        ({"noise_multiplier": 0.05}, "more than the noise is exact to"),
        ({"noise_multiplier": 1e-12}, "no unit fits"),
        ({"clip": 1e-20}, "no unit fits"),
        ({"fraction_evaluate": 1.0}, "without noise"),
    ],
)
def test_what_keeps_no_budget_is_refused_in_a_line(options: dict[str, Any], said: str) -> None:
    mod = {name: options[name] for name in OPTIONS if name in options}
    with pytest.raises(OptionError, match=said) as why:
        run(secure(**options), make_app(**mod))
    assert "\n" not in str(why.value)


def test_a_ring_that_is_too_small_is_refused_in_a_line() -> None:
    clip = Clip(1.0, 1e-7)
    release = clip.release(NoisyMeans(clip, 1e-5, 1).budget, LENGTH, 5, 4)
    with pytest.raises(OptionError, match="overflow a 64-bit ring") as why:
        clip.encoding(release, 10**9)
    assert "\n" not in str(why.value)


def test_without_dp_accounting_one_line_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(OptionError, match=r"pip install 'fedkern-flwr\[privacy\]'") as why:
        secure()
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("server", "node", "said"),
    [
        ({"noise_multiplier": 1.0}, {}, "the noise of a sum"),
        ({"clip": 1.0}, {}, "the noise of a sum"),
        ({"clip": 1.0, "noise_multiplier": 3.0}, {}, "the bound of a sum"),
        ({}, {"clip": None, "noise_multiplier": None}, "differ in clip and noise"),
        ({"clip": None, "noise_multiplier": None}, {}, "differ in clip and noise"),
    ],
)
def test_a_node_takes_part_with_its_own_clip_and_noise_only(
    server: dict[str, Any], node: dict[str, Any], said: str
) -> None:
    with pytest.raises(RefusedError, match=said) as why:
        run(secure(**server), make_app(**node))
    assert "\n" not in str(why.value)


def test_a_node_with_a_clip_answers_no_server_that_sums_in_plain() -> None:
    asked: list[int] = []
    app = make_app(fails=lambda k, number: bool(asked.append(k)))  # type: ignore[func-returns-value]
    found = run(FedAvg(fraction_evaluate=0.0), app)
    assert not asked
    assert not found.arrays


def test_a_server_that_halves_the_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = NoisyMeans.release

    def less(self: Any, *known: Any) -> Any:
        found = honest(self, *known)
        return replace(found, noise=NoisySum(found.noise.variance // 2, found.noise.fraction))

    monkeypatch.setattr(NoisyMeans, "release", less)
    with pytest.raises(RefusedError, match="the noise of a sum"):
        run(secure())


def test_more_rounds_than_were_paid_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that asks once more, of another model: the nodes have counted."""
    honest = NoisyMeans.open
    monkeypatch.setattr(NoisyMeans, "open", lambda self, numbers, rounds: honest(self, numbers, 2))
    strategy = secure(max_missed=1)
    with pytest.raises(FedKernError, match="1 rounds in a row are lost"):
        run(strategy, num_rounds=3)
    assert [len(alive) for alive in strategy.survivors_[:2]] == [5, 5]
    assert not any(strategy.survivors_[2:])


def test_a_server_that_asks_for_figures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SecureAvg, "configure_evaluate", FedAvg.configure_evaluate)
    strategy = secure()
    strategy.fraction_evaluate = 1.0
    with pytest.raises(OptionError, match="without noise"):
        run(strategy, make_app(held_out=examples))


def test_a_node_tells_no_figures_in_a_run_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server is: the node's own rule says that the run opens nothing without noise."""
    from fedkern_flwr.secure_aggregation.rounds import Averages

    ask = Averages.ask

    def lie(self: Any, grid: Any, messages: Any, timeout: float) -> Any:
        figures = messages and messages[0].metadata.message_type.startswith("evaluate")
        kept, self.noisy = self.noisy, None if figures else self.noisy
        try:
            return ask(self, grid, messages, timeout)
        finally:
            self.noisy = kept

    monkeypatch.setattr(Averages, "ask", lie)
    strategy = secure()
    strategy.fraction_evaluate = 1.0
    found = run(strategy, make_app(held_out=examples))
    assert not found.evaluate_metrics_clientapp
    assert "without noise" in str(strategy.ledger_.failures)


def owned(folder: Path, **policy: Any) -> ClientApp:
    """Return the app of deployed nodes with folders, whose owners have a policy."""

    def answer(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1.0})
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            context.node_config["simulation"] = False
            place = folder / str(context.node_config["partition-id"])
            about: Any = {"state_dir": place, "policy": NodePolicy(**policy)}
            mod = secure_aggregation_mod(examples, **about, clip=CLIP, noise_multiplier=3.0)
            return mod(message, context, answer)

    return App()


def test_runs_add_up_at_each_node_until_its_owner_s_limit(tmp_path: Path) -> None:
    """One run costs 2.996, two cost more than four."""

    def one(rounds: int) -> Any:
        strategy = secure(noise_multiplier=3.0)
        run(strategy, owned(tmp_path, max_epsilon=4.0), num_rounds=rounds)
        return strategy

    assert 2.9 < one(1).privacy()["budget"]["spent"] < 3.1
    with pytest.raises(FedKernError, match="max_epsilon = 4"):
        one(1)
    with pytest.raises(FedKernError, match="max_epsilon = 4: the run costs"):
        one(20)


@pytest.mark.parametrize(
    ("options", "policy", "refused"),
    [
        ({"delta": 1e-4}, {}, "max_delta = 1e-05: that of the run is 0.0001"),
        ({"delta": 1e-4}, {"max_delta": 1e-4}, ""),
        ({"delta": 1e-6}, {"max_delta": 1e-7}, "max_delta = 1e-07: that of the run is 1e-06"),
        ({"colluders": 0}, {}, "max_epsilon: the run counts on nobody who tells its noise"),
        ({"colluders": 2}, {}, ""),
    ],
)
def test_a_node_with_a_limit_takes_no_weaker_delta_and_no_run_without_colluders(
    options: Any, policy: Any, refused: str, tmp_path: Path
) -> None:
    """Without a limit it takes the server's word for both."""
    weak = {"noise_multiplier": 3.0, **options}
    run(secure(**weak), owned(tmp_path / "free"))
    limited = owned(tmp_path / "limited", max_epsilon=9.0, **policy)
    if not refused:
        run(secure(**weak), limited)
        return
    with pytest.raises(FedKernError, match=refused) as why:
        run(secure(**weak), limited)
    assert "\n" not in str(why.value)
    assert why.value.exit_code == 2


def test_wrappers_of_flower_are_refused_with_what_to_take() -> None:
    kind = type("Secure", (SecureAggregation, DifferentialPrivacyClientSideFixedClipping), {})
    with pytest.raises(OptionError, match="clip and noise_multiplier"):
        kind(FedAvg(), 1.0, 1.0, 5)
