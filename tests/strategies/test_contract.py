"""What every strategy must satisfy; a new one is added to ``METHODS``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_cases import parties_with_columns
from fdskl_bridge import TOLERANCE, paper_run
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from nodes import Nodes

from fedkern_flwr import strategies
from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.exchange import payload_bytes
from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.online.learning import regret_bound
from fedkern_flwr.simulations import InProcessGrid, Transcript, simulate
from fedkern_flwr.strategies import (
    EMKOFL,
    FDSKL,
    OFSKL,
    POFMKL,
    POFRLS,
    VMKOFL,
    AlignIds,
    ColumnRanges,
    FedCFK,
    FedCG,
    HierarchicalSVM,
    KernelPCA,
    LocalOnly,
    OFMKLAvg,
    PerFedAvg,
    PhaseStrategy,
    SecureGram,
    SummingStrategy,
)

CLIENTS, ROUNDS = 3, 10
SMALL: dict[str, Any] = {"kernels": 6, "features": 4}
OPTIONS: dict[type[Any], dict[str, Any]] = {
    POFMKL: {**SMALL, "kernels_per_round": 2},
    POFRLS: {"features": 4},
    OFMKLAvg: SMALL,
    OFSKL: {"features": 4},
    VMKOFL: SMALL,
    EMKOFL: SMALL,
    PerFedAvg: {},
    LocalOnly: SMALL,
}
METHODS = list(OPTIONS)


def make(method: type[Any], **more: Any) -> Any:
    return method(**{**OPTIONS[method], **more})


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS + 5, seed=8, test_rows=5)


def run(strategy: Any, streams: Any, **more: Any) -> Result:
    return simulate(strategy, streams.client_fn, CLIENTS, **{"num_rounds": ROUNDS, **more})


def grid_of(streams: Any, clients: int = CLIENTS) -> InProcessGrid:
    return InProcessGrid(ClientApp(client_fn=lambda c: streams.client_fn(c).to_client()), clients)


def outcome(strategy: Any, result: Result) -> Any:
    model = {name: a.tobytes() for name, a in strategy.model()[0].items()}
    arrays = [a.tobytes() for a in result.arrays.to_numpy_ndarrays()]
    return model, arrays, strategy.history_, strategy.metrics_


def test_the_contract_covers_every_strategy() -> None:
    public = {getattr(strategies, name) for name in strategies.__all__} - {
        PhaseStrategy,
        SummingStrategy,
        FDSKL,  # sends no model, see test_fdskl.py
        FedCG,  # solves once, see test_fed_cg.py
        SecureGram,  # sums once, see test_secure_gram.py
        FedCFK,  # the same, see test_fed_cfk.py
        HierarchicalSVM,  # groups, see test_hierarchical.py
        ColumnRanges,  # makes no model, see test_column_ranges.py
        AlignIds,  # the same, see test_align_ids.py
        KernelPCA,  # solves once, see test_kernel_pca.py
    }
    assert public == set(METHODS)
    assert len({m.method for m in METHODS}) == len({m.title for m in METHODS}) == len(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_start_is_called_like_a_stock_strategy(method: type[Any], streams: Any) -> None:
    """Arguments, their order and their defaults are Flower's; more rounds are the default."""
    assert issubclass(method, Strategy)
    ours = inspect.signature(method.start).parameters
    stock = inspect.signature(FedAvg.start).parameters
    assert list(ours) == list(stock)
    assert ours["timeout"].default == stock["timeout"].default
    seen: list[int] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        assert isinstance(arrays, ArrayRecord)
        seen.append(number)
        return MetricRecord({"n": number})

    strategy = make(method)
    result = strategy.start(
        grid=grid_of(streams),
        initial_arrays=None,
        num_rounds=ROUNDS,
        timeout=30.0,
        train_config=ConfigRecord({"seed": 3, "lr": 0.1}),
        evaluate_config=ConfigRecord(),
        evaluate_fn=evaluate,
    )
    assert isinstance(result, Result)
    exchanges = 1 if method is LocalOnly else ROUNDS
    assert seen == list(range(exchanges + 1))
    assert result.evaluate_metrics_serverapp[exchanges]["n"] == exchanges
    assert list(result.train_metrics_clientapp) == list(range(1, exchanges + 1))
    last = result.train_metrics_clientapp[exchanges]
    assert last["mse"] == strategy.metrics_["mse"] == strategy.history_[-1]["mse"]
    assert [m["round"] for m in strategy.history_] == list(range(1, ROUNDS + 1))
    assert all(m["survivors"] == CLIENTS for m in strategy.history_)
    assert strategy.options()["seed"] == 3
    same = make(method)
    run(same, streams, seed=3)
    assert strategy.history_ == same.history_


@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_started_and_not_driven_by_hand(method: type[Any], streams: Any) -> None:
    strategy, grid, config = make(method), grid_of(streams), ConfigRecord()
    assert list(strategy.configure_train(1, ArrayRecord(), config, grid)) == []
    assert strategy.aggregate_train(1, []) == (None, None)


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_determines_the_run(method: type[Any], streams: Any) -> None:
    def once(run_seed: int, **more: Any) -> Any:
        strategy = make(method, **more)
        return outcome(strategy, run(strategy, streams, seed=run_seed))

    first = once(4)
    assert once(4) == first
    assert once(9, seed=4) == first  # the strategy's own seed comes first
    other = once(5)
    assert other[2] != first[2]
    assert other[3]["mse"] != first[3]["mse"]


@pytest.mark.parametrize("method", METHODS)
def test_an_object_can_be_started_again(method: type[Any], streams: Any) -> None:
    strategy = make(method)
    first = outcome(strategy, run(strategy, streams))
    exchanges = strategy.ledger_.exchanges
    assert outcome(strategy, run(strategy, streams)) == first
    assert strategy.ledger_.exchanges == exchanges


@pytest.mark.parametrize("method", METHODS)
def test_the_ledger_counts_what_the_transcript_shows(method: type[Any], streams: Any) -> None:
    strategy, record = make(method), Transcript()
    run(strategy, streams, transcript=record)
    ledger, messages = strategy.ledger_, record._messages
    up = sum(payload_bytes(m) for way, m in messages if way == "up")
    down = sum(payload_bytes(m) for way, m in messages if way == "down")
    assert (ledger.bytes_up, ledger.bytes_down) == (up, down)
    assert up > 0
    assert down > 0 or method is LocalOnly
    assert ledger.messages == sum(way == "down" for way, _ in messages)
    training = 1 if method is LocalOnly else ROUNDS
    assert ledger.by_phase[strategy.reply_class.phase] == training
    assert ledger.failures == {}
    assert ledger.seconds > 0.0


@pytest.mark.parametrize("method", [m for m in METHODS if m is not LocalOnly])
def test_held_out_rows_are_predicted_at_the_end(method: type[Any], streams: Any) -> None:
    strategy = make(method)
    result = run(strategy, streams)
    test_mse = strategy.metrics_["test_mse"]
    assert 0.0 < test_mse < 1.0
    assert result.evaluate_metrics_clientapp[ROUNDS]["test_mse"] == test_mse
    streams.test_rows = 0
    without = make(method)
    assert not run(without, streams).evaluate_metrics_clientapp
    assert "test_mse" not in without.metrics_
    assert without.history_ == strategy.history_


def test_pof_mkl_predicts_held_out_rows_with_each_clients_own_weights(streams: Any) -> None:
    from fedkern_flwr.kernels.random_features import FeatureMap

    strategy = make(POFMKL, step_size="paper", precision="float64")
    run(strategy, streams)
    features = FeatureMap(strategy.bandwidths.astype("<f8").tobytes(), 4, 4, 0, "float64")
    errors = []
    for k in range(CLIENTS):
        weights = np.exp(-streams.numbers(k)[:6] / np.sqrt(ROUNDS))
        weights /= weights.sum()
        for x, y in zip(streams.x[k][ROUNDS:], streams.y[k][ROUNDS:], strict=True):
            f = [strategy.theta_[i] @ features(x[None])[0, i] for i in range(6)]
            errors.append((weights @ f - y) ** 2)
    assert strategy.metrics_["test_mse"] == pytest.approx(np.mean(errors), abs=1e-12)


def test_few_holders_of_held_out_rows_do_not_stop_a_run(make_streams: Callable[..., Any]) -> None:
    """min_clients is about training rounds; evaluation asks only those that hold rows out."""
    streams = make_streams(3, ROUNDS + 5, test_rows=5)
    serve = streams.client_fn

    def client_fn(context: Any) -> Any:
        streams.test_rows = 5 if context.node_config["partition-id"] == 0 else 0
        return serve(context)

    strategy = make(POFMKL, min_clients=3)
    simulate(strategy, client_fn, 3, num_rounds=ROUNDS)
    assert strategy.metrics_["test_mse"] > 0.0
    assert strategy.ledger_.by_phase["online-evaluate"] == 1


@pytest.mark.parametrize("method", [m for m in METHODS if m is not LocalOnly])
def test_training_can_start_from_the_arrays_of_another_run(method: type[Any], streams: Any) -> None:
    given = run(make(method), streams).arrays
    starts: dict[int, np.ndarray] = {}
    warm, cold = make(method), make(method)

    def note(number: int, arrays: ArrayRecord) -> None:
        starts[number] = arrays.to_numpy_ndarrays()[0]

    run(warm, streams, initial_arrays=given, evaluate_fn=note)
    run(cold, streams)
    np.testing.assert_array_equal(starts[0], given.to_numpy_ndarrays()[0])
    assert warm.history_ != cold.history_


@pytest.mark.parametrize("method", [m for m in METHODS if m is not LocalOnly])
def test_arrays_of_another_shape_are_refused(method: type[Any], streams: Any) -> None:
    wrong = ArrayRecord([np.zeros((2, 2))])
    with pytest.raises(ProtocolError, match=r"initial_arrays has shape \(2, 2\) instead of"):
        run(make(method), streams, initial_arrays=wrong)


def test_local_only_has_no_use_for_given_arrays(streams: Any) -> None:
    strategy, plain = make(LocalOnly), make(LocalOnly)
    run(strategy, streams, initial_arrays=ArrayRecord([np.zeros(3)]))
    run(plain, streams)
    assert strategy.history_ == plain.history_


@pytest.mark.parametrize("method", METHODS)
def test_no_rounds_are_refused(method: type[Any], streams: Any) -> None:
    with pytest.raises(OptionError, match="num_rounds is 0; use at least 1"):
        run(make(method), streams, num_rounds=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_strategy_tells_its_options_and_what_the_server_sees(
    method: type[Any], streams: Any, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = make(method)
    run(strategy, streams)
    assert strategy.options()["method"] == method.method
    assert strategy.privacy()["server_sees"]
    assert "rows" in strategy.privacy()["never_leaves_the_client"]
    with caplog.at_level(logging.INFO, "fedkern_flwr"):
        strategy.summary()
    assert f"method: {method.method}" in caplog.text


@pytest.mark.parametrize("method", METHODS)
def test_progress_is_reported_after_each_exchange(method: type[Any], streams: Any) -> None:
    told: list[tuple[int, int, float]] = []
    strategy = make(method)
    strategy.on_round = lambda done, total, metrics: told.append((done, total, metrics["mse"]))
    run(strategy, streams)
    exchanges = 1 if method is LocalOnly else ROUNDS
    assert [t[:2] for t in told] == [(n, exchanges) for n in range(1, exchanges + 1)]
    assert told[-1][2] == strategy.metrics_["mse"]


# -- the paper's systems on Flower


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian"])
@pytest.mark.parametrize("actives", [1, 2, 3])
def test_fdskl_streaming_makes_the_first_iterates_of_the_papers_program(
    actives: int, kernel: str, bits: int, tmp_path: Path
) -> None:
    """With B = r = 1 and the same directions; what is left is the rounding of phases."""
    loss = ("square", "logistic", "smooth-hinge")[actives - 1]
    strategy = FDSKL(
        **{"schedule": "streaming", "batch": 1, "directions": 1, "loss": loss, "kernel": kernel},
        **{"step": 0.3, "regularization": 0.05, "gamma": 0.5, "phase_bits": bits, "seed": 6},
    )
    key, tables = b"k" * 16, parties_with_columns(actives)
    nodes = Nodes(VerticalKernelClient, tables, tmp_path, {"alignment_key": key})
    nodes.run(strategy, num_rounds=ROUNDS)
    coefficients, scores = paper_run(strategy, tables, key, ROUNDS)
    for path in tmp_path.rglob(f"*-round-{ROUNDS}.state"):
        owner = int(path.name.split("-")[1])
        found = KeptState.unpack(path.read_bytes()).arrays.get("alpha")
        if owner in coefficients:
            np.testing.assert_allclose(found, coefficients.pop(owner), atol=TOLERANCE[bits])
            assert np.abs(found).max() > 0.05
    assert not coefficients
    outputs = {name: f for name, (f,) in nodes.outputs().items()}
    assert outputs == pytest.approx(scores, abs=TOLERANCE[bits])


# -- theory


@pytest.mark.parametrize("samples", [1, 5])
def test_every_clients_regret_stays_below_theorem_one(
    make_streams: Callable[..., Any], samples: int
) -> None:
    streams, record, rounds = make_streams(5, 200, seed=9), Transcript(), 200
    strategy = POFMKL(step_size="paper", features=9, samples_per_round=samples)
    simulate(strategy, streams.client_fn, 5, num_rounds=rounds, transcript=record)
    reports = [e.scalars for e in record.entries(phase="online-personal", direction="up")][-5:]
    eta = 1.0 / np.sqrt(rounds)
    for report in reports:
        assert report["total_samples"] == rounds
        assert report["regret"] <= regret_bound(51, eta, rounds, report["largest_loss"])
    assert max(r["largest_loss"] for r in reports) == strategy.metrics_["largest_loss"]


@pytest.mark.parametrize("method", [POFMKL, VMKOFL, LocalOnly])
@pytest.mark.parametrize("step_size", ["paper", "adaptive"])
def test_the_average_regret_falls(
    method: type[Any], step_size: str, make_streams: Callable[..., Any]
) -> None:
    streams, rounds = make_streams(4, 300, seed=10), 300
    strategy = method(features=9, step_size=step_size)
    simulate(strategy, streams.client_fn, 4, num_rounds=rounds)
    average = [m["regret"] / m["round"] for m in strategy.history_]
    if step_size == "paper":
        assert average[299] < average[149] < average[49]
    else:  # soon about zero
        assert average[299] < average[9] / 4
