"""Stock strategies with secure aggregation: the plain run, of which the server sees means only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, Krum

from fedkern_flwr.errors import CohortError, OptionError, ProtocolError, RefusedError
from fedkern_flwr.exchange import CONFIG
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.secure_aggregation import (
    SecureAggregation,
    averages,
    secure_aggregation_mod,
)
from fedkern_flwr.secure_aggregation.rounds import Averages
from fedkern_flwr.simulations import Fault, FaultPlan, Transcript, simulate
from fedkern_flwr.simulations.engines import Audit

NODES, ROUNDS = 4, 3
Fails = Callable[[int, int], bool]  # partition, round of the server -> whether the app raises


class SecureAvg(SecureAggregation, FedAvg):
    pass


class SecureAdam(SecureAggregation, FedAdam):
    pass


class SecureProx(SecureAggregation, FedProx):
    pass


STOCK = {SecureAvg: FedAvg, SecureAdam: FedAdam, SecureProx: FedProx}


def load(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of different numbers and laws."""
    k = int(context.node_config["partition-id"])
    x = np.random.default_rng(k).standard_normal((20 + 7 * k, 3))
    return x, x @ np.array([1.0, -2.0, 0.5 * k])


def initial() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros((3, 1))), "b": Array(np.zeros(()))})


def never(partition: int, number: int) -> bool:
    return False


def make_app(
    fails: Fails = never, change: Any = lambda k, number, content: None, **mod: Any
) -> ClientApp:
    """Return an app of least squares; ``change`` may spoil what a partition returns."""
    app = ClientApp(mods=[secure_aggregation_mod(load, **{"held_out": load, **mod})])

    def error(message: Message, context: Context) -> tuple[Any, ...]:
        k = int(context.node_config["partition-id"])
        if fails(k, int(message.content["config"]["server-round"])):
            raise ValueError("private value 4711")
        (x, y), net = load(context), message.content["arrays"]
        return k, x, x @ net["w"].numpy()[:, 0] + net["b"].numpy() - y, net

    def metrics(e: np.ndarray) -> MetricRecord:
        return MetricRecord(
            {"loss": float(e @ e / len(e)), "ends": [e.min(), e.max()], "num-examples": len(e)}
        )

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k, x, e, net = error(message, context)
        w = net["w"].numpy() - 0.1 * (x.T @ e / len(x))[:, None]
        arrays = {"w": Array(w), "b": Array(np.asarray(net["b"].numpy() - 0.1 * e.mean()))}
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics(e)})
        change(k, message.content["config"]["server-round"], content)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"metrics": metrics(error(message, context)[2])}), reply_to=message
        )

    return app


def run(strategy: Any, app: ClientApp | None = None, **more: Any) -> Any:
    more = {"num_rounds": ROUNDS, "initial_arrays": initial(), **more}
    return simulate(strategy, app or make_app(), NODES, **more)


def same(found: Any, expected: Any) -> None:
    """Check that two results are equal to 1e-9."""
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), rtol=0, atol=1e-9)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        assert ours.keys() == theirs.keys()
        for number, metrics in theirs.items():
            assert ours[number].keys() == metrics.keys()
            for name, value in metrics.items():
                np.testing.assert_allclose(ours[number][name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("fails", [never, lambda k, number: (k, number) == (1, 2)])
@pytest.mark.parametrize("secure", STOCK, ids=lambda cls: cls.__name__)
def test_a_secure_run_is_the_plain_run_over_the_same_survivors(secure: Any, fails: Fails) -> None:
    strategy = secure()
    found = run(strategy, make_app(fails), serialise=True)
    same(found, run(STOCK[secure](), make_app(fails)))
    gone = {1} if fails is not never else set()
    assert strategy.survivors_[1] == [k for k in range(NODES) if k not in gone]
    assert len(found.evaluate_metrics_clientapp) == ROUNDS
    assert strategy.ledger_.by_phase["average"] == ROUNDS


@pytest.mark.parametrize(
    ("phase", "kind", "without"),
    [
        ("average", "lost request", True),
        ("average", "lost reply", True),
        ("average", "vanished", True),
        ("average", "duplicate", False),
        ("unmask", "vanished", False),  # its vector is in, the others open the sum
        ("average-evaluate", "vanished", False),
    ],
)
def test_faults_leave_the_mean_of_the_survivors(phase: str, kind: Any, without: bool) -> None:
    places = [3] if phase != "average-evaluate" else [4]
    plan = FaultPlan([(1, phase, number, Fault(kind)) for number in places])
    found = run(SecureAvg(), faults=plan, timeout=0.5)
    plain = run(FedAvg(), make_app(lambda k, number: without and (k, number) == (1, 2)))
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), rtol=0, atol=1e-9)


def test_a_round_with_too_few_is_lost_and_leaves_the_model() -> None:
    strategy = SecureAvg()
    found = run(strategy, make_app(lambda k, number: k < 2 and number == 2))
    assert strategy.survivors_ == [[0, 1, 2, 3], [], [0, 1, 2, 3]]
    assert sorted(found.train_metrics_clientapp) == [1, 3]
    same_rounds = run(SecureAvg(), num_rounds=2)
    for name, array in same_rounds.arrays.items():
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), atol=1e-9)


def test_rounds_lost_in_a_row_end_the_run() -> None:
    with pytest.raises(CohortError, match="2 rounds in a row are lost"):
        run(SecureAvg(max_missed=2), make_app(lambda k, number: k < 2))


def test_the_server_sees_no_reply_of_a_node() -> None:
    audit, transcript = Audit(), Transcript()
    strategy = SecureAvg()
    run(strategy, audit=audit, transcript=transcript)
    kinds = audit.kinds("up")
    assert "masked" in kinds
    assert kinds <= {"masked", "sealed", "commitment", "share", "seed", "key", "size", "control"}
    assert audit.view("up")["sum-upload", "shares"].uniform > 1e-6
    sums = {entry["name"]: entry for entry in strategy.privacy()["sums"]}
    assert sums["average"]["numbers"] == ROUNDS * (4 + 1 + averages.SLOTS)
    assert sums.keys() == {"average", "evaluate"}


def test_arrays_keep_the_types_of_flower_s_own_averages() -> None:
    def typed(k: int, number: int, content: RecordDict) -> None:
        arrays = content["arrays"]
        arrays["w"] = Array(arrays["w"].numpy().astype(np.float32))
        arrays["steps"] = Array(np.array([k, 3 * k]))

    arrays = {**initial(), "w": Array(np.zeros((3, 1), np.float32))}
    arrays["steps"] = Array(np.zeros(2, np.int64))
    more = {"initial_arrays": ArrayRecord(arrays), "num_rounds": 1}
    found = run(SecureAvg(), make_app(change=typed), **more)
    plain = run(FedAvg(), make_app(change=typed), **more)
    for name, array in plain.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), rtol=1e-6)


# -- what is refused


def spoil(key: str, value: Any) -> Any:
    """Return a change of what partition 1 returns in the second round."""

    def change(k: int, number: int, content: RecordDict) -> None:
        if (k, number) == (1, 2):
            if isinstance(value, Array):
                content["arrays"][key] = value
            elif value is None:
                del content["metrics"][key]
            else:
                content["metrics"][key] = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("w", Array(np.full((3, 1), 1e6)), "the values of a sum"),
        ("w", Array(np.full((3, 1), np.nan)), "the values of a sum"),
        ("w", Array(np.zeros((1, 3))), "other arrays than it was sent"),
        ("v", Array(np.zeros(3)), "other arrays than it was sent"),
        ("num-examples", None, "no number 'num-examples'"),
        ("num-examples", -1.0, "not from 0 to the examples"),
        ("num-examples", 42, "not from 0 to the examples"),
        ("num-examples", [1.0], "no number 'num-examples'"),
        ("many", [0.0] * averages.SLOTS, "more than 32 numbers"),
        ("loss", 1e9, "the values of a sum"),
        ("other", 1.0, "its metrics have other names"),
        ("m" * 500, 1.0, "more than 400 characters"),
    ],
)
def test_a_reply_that_does_not_fit_is_not_summed(key: str, value: Any, said: str) -> None:
    """The mean is that of the others, and what the server is told quotes no value."""
    strategy = SecureAvg()
    found = run(strategy, make_app(change=spoil(key, value)), num_rounds=2)
    assert strategy.survivors_ == [[0, 1, 2, 3], [0, 2, 3]]
    same_arrays = run(FedAvg(), make_app(lambda k, n: (k, n) == (1, 2)), num_rounds=2).arrays
    for name, array in same_arrays.items():
        np.testing.assert_allclose(found.arrays[name].numpy(), array.numpy(), atol=1e-9)
    text = json.dumps(strategy.ledger_.failures["1"])
    assert said in text
    assert not any(word in text for word in ("nan", "10000", "1e6", "1000000"))


@pytest.mark.parametrize(
    ("server", "node", "said"),
    [
        ({"bound": 10.0}, {}, "the bound of a sum"),
        ({}, {"bound": 2048.0}, "the bound of a sum"),
        ({"weighted_by_key": "loss"}, {}, "the weight of the run"),
    ],
)
def test_options_that_differ_are_refused_in_one_line(
    server: dict[str, Any], node: dict[str, Any], said: str
) -> None:
    with pytest.raises(RefusedError, match=said) as caught:
        run(SecureAvg(**server), make_app(**node))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"fraction_train": 0.5}, {"fraction_evaluate": 0.5}])
def test_sums_over_changing_sets_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="2 of 4 nodes are asked"):
        run(SecureAvg(**options))


@pytest.mark.parametrize("stock", [FedMedian, Krum])
def test_strategies_of_single_replies_are_refused(stock: type[Any]) -> None:
    with pytest.raises(OptionError, match="needs the replies of single nodes"):
        type("Secure", (SecureAggregation, stock), {})()


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan")])
def test_bounds_that_are_none_are_refused(bound: float) -> None:
    for make in (lambda: SecureAvg(bound=bound), lambda: make_app(bound=bound)):
        with pytest.raises(OptionError, match="bound"):
            make()


def test_a_node_answers_no_server_without_the_mixin() -> None:
    asked: list[int] = []
    app = make_app(lambda k, number: bool(asked.append(k)), policy=NodePolicy())
    transcript = Transcript()
    found = run(FedAvg(), app, transcript=transcript)
    assert not asked
    assert not found.arrays
    assert not found.train_metrics_clientapp
    assert len(list(transcript.entries(direction="down"))) == 2 * ROUNDS * NODES
    assert not list(transcript.entries(direction="up"))  # errors


@pytest.mark.parametrize("disguised", [False, True])
def test_a_server_that_sends_nodes_different_models_opens_nothing(
    disguised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it sends all but one node a model of which it knows what comes back."""
    address = Averages._address

    def lie(self: Any, *args: Any) -> list[Message]:
        first, *rest = address(self, *args)
        before = averages.sum_name(_own(first))
        first.content["arrays"] = ArrayRecord({**initial(), "b": Array(np.ones(()))})
        if disguised:
            config = first.content[CONFIG]
            config["sections"] = config["sections"].replace(before, averages.sum_name(_own(first)))
        return [first, *rest]

    monkeypatch.setattr(Averages, "_address", lie)
    strategy = SecureAvg(max_missed=2, fraction_evaluate=0.0)
    expected = CohortError if disguised else RefusedError
    words = "masks in average.* do not fit" if disguised else "sent something else"
    with pytest.raises(expected, match=words):
        run(strategy)
    assert not any(strategy.survivors_)


def _own(message: Message) -> RecordDict:
    return RecordDict({n: r for n, r in message.content.items() if n in ("arrays", "config")})


def test_a_strategy_that_sends_nodes_different_records_is_refused() -> None:
    class Personal(SecureAvg):
        def configure_train(self, *args: Any) -> Any:
            for k, message in enumerate(super().configure_train(*args)):
                content = RecordDict({**message.content, "config": ConfigRecord({"k": k})})
                yield Message(content, message.metadata.dst_node_id, "train")

    with pytest.raises(OptionError, match="sends nodes different records"):
        run(Personal())


# -- the guard


def test_survivors_are_voted_for_where_identities_are_pinned(tmp_path: Path) -> None:
    lines = []
    for k in range(NODES):
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (tmp_path / f"identity-{k}").write_bytes(private)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        lines.append(f"{k} {public.decode()}")
    (tmp_path / "trusted").write_text("\n".join(lines))

    class Pinned(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            own = tmp_path / f"identity-{context.node_config['partition-id']}"
            keys = {"identity_key": own, "trusted_keys": tmp_path / "trusted"}
            return make_app(fails, **keys)(message, context)

    def fails(k: int, number: int) -> bool:
        return (k, number) == (1, 2)

    strategy = SecureAvg(fraction_evaluate=0.0)
    same(run(strategy, Pinned()), run(FedAvg(fraction_evaluate=0.0), make_app(fails)))
    assert strategy.ledger_.by_phase["vote"] == 1


def test_the_policy_of_a_node_counts() -> None:
    with pytest.raises(RefusedError, match="min_own_rows = 30: it has 20"):
        run(SecureAvg(), make_app(policy=NodePolicy(min_own_rows=30)))
    with pytest.raises(RefusedError, match="numbers would be released"):
        run(SecureAvg(), make_app(policy=NodePolicy(counting="refuse")), num_rounds=100)


def test_figures_are_told_as_often_as_the_policies_allow_and_training_goes_on() -> None:
    found = run(SecureAvg(), make_app(policy=NodePolicy(max_evaluations=2)), num_rounds=5)
    assert sorted(found.evaluate_metrics_clientapp) == [1, 2]
    assert sorted(found.train_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_without_held_out_examples_no_figures_are_told() -> None:
    strategy = SecureAvg()
    found = run(strategy, make_app(held_out=None))
    assert not found.evaluate_metrics_clientapp
    assert "average-evaluate" not in strategy.ledger_.by_phase


def test_the_ledger_knows_examples_again(tmp_path: Path) -> None:
    """A deployed node refuses a second run over all its examples but one."""
    left_out = [0]

    def deployed(context: Context) -> Any:
        return tuple(part[left_out[0] :] for part in load(context))

    def answer(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1.0})})
        content["arrays"] = message.content["arrays"]
        return Message(content, reply_to=message)

    def serve(message: Message, context: Context) -> Message:
        context.node_config["simulation"] = False
        folder = tmp_path / str(context.node_config["partition-id"])
        return secure_aggregation_mod(deployed, state_dir=folder)(message, context, answer)

    class App(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            return serve(message, context)

    def one() -> None:
        run(SecureAvg(fraction_evaluate=0.0), App(), num_rounds=1)

    one()
    one()
    left_out[0] = 1
    with pytest.raises(RefusedError, match="min_own_rows = 5"):
        one()


def test_of_what_an_app_raises_the_server_is_told_the_class() -> None:
    strategy = SecureAvg()
    run(strategy, make_app(lambda k, number: k == 1))
    assert strategy.ledger_.failures["1"] == {"raised ValueError": 2 * ROUNDS}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '[["a"]]',
        '[["a", -1]]',
        '[["a", true]]',
        "[[1, 1]]",
        f'[["a", {averages.SLOTS + 1}]]',
        '[["a", 0], ["a", 0]]',
        json.dumps([[str(k), 0] for k in range(averages.SLOTS + 1)]),
        "[" * 100_000,
    ],
)
def test_a_damaged_layout_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="layout"):
        averages.read_layout(text)
