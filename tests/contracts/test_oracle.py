"""Every way of every method comes to what an owner of all rows would compute, whoever holds them.

Besides, what every strategy has in common: it is started like one of Flower's, counts what it
sends, and its seed decides all.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from refusals import refused, refuses
from zoo import MAIN, WAYS, Found, chosen, fit, quiet, same, streams

from fedkern_flwr import strategies
from fedkern_flwr.online.learning import regret_bound
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.strategies import LocalOnly, Method

#: Ways that have no oracle though they add no noise, and where their mathematics is tested.
ELSEWHERE = {
    "vm-kofl, streams",  # how rows come: tests/clients/test_streams.py
    "per-fed-avg",  # tests/strategies/test_online_plain.py
    "hierarchical-svm, rbf",  # tests/strategies/test_hierarchical_svm.py
}
ONLINE = [name for name, way in WAYS.items() if name.count(",") == 0 and way.rounds == 12]
#: One way a strategy.
FIRST = {way.strategy: name for name, way in reversed(WAYS.items())}
BASES = (Method,)


@pytest.mark.promise("oracle-pooled")
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.oracle])
def test_the_result_is_that_of_the_pooled_rows(name: str) -> None:
    found, compared = quiet(name), 0
    for got, expected in found.oracle():
        np.testing.assert_allclose(got, expected, rtol=0.0, atol=found.way.near)
        compared += np.size(expected)
    assert compared
    assert found.strategy.ledger_.failures == {}


def test_the_zoo_has_a_way_of_every_strategy() -> None:
    public = {getattr(strategies, name) for name in strategies.__all__} - set(BASES)
    used = {way.strategy for way in WAYS.values()}
    assert public < used
    assert len({m.method for m in public}) == len({m.title for m in public}) == len(public)
    without = {name for name, way in WAYS.items() if way.oracle is None and not way.private}
    assert without == ELSEWHERE


@pytest.mark.parametrize(
    "name", chosen([n for n, way in WAYS.items() if not way.private], {*MAIN, *FIRST.values()})
)
def test_the_seed_decides_the_run_and_serialised_messages_change_nothing(name: str) -> None:
    way = WAYS[name].few(6)
    found = quiet(name) if way == WAYS[name] else fit(way)
    near = max(1e-6, way.near)
    again = fit(way, start={"serialise": True})
    assert same(again.outcome(), found.outcome(), near)
    assert again.phases == found.phases


@pytest.mark.parametrize("name", WAYS)
def test_the_ledger_counts_what_the_transcript_shows(name: str) -> None:
    found = quiet(name)
    assert found.transcript is not None
    ledger, up, down = found.strategy.ledger_, 0, 0
    for entry in found.transcript.entries():
        size = sum(array.nbytes for array in entry.arrays)
        size += sum(len(v) for v in entry.scalars.values() if isinstance(v, bytes))
        size += sum(8 * len(v) for v in entry.scalars.values() if isinstance(v, list))
        up, down = (up + size, down) if entry.direction == "up" else (up, down + size)
    sent = sum(1 for _ in found.transcript.entries(direction="down"))
    assert ledger.messages == sent
    down = 0 if name == "local-only" else down  # which is sent no model
    for told, least in ((ledger.bytes_up, up), (ledger.bytes_down, down)):
        assert least <= told <= least + 4000 * sent
    assert ledger.exchanges == sum(ledger.by_phase.values())
    assert ledger.seconds > 0.0


@pytest.mark.parametrize("name", FIRST.values())
def test_options_and_what_is_seen_are_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    strategy = quiet(name).strategy
    assert isinstance(strategy, Strategy)
    if isinstance(strategy, FedAvg):
        assert strategy.privacy()["server_sees"]
        return
    assert strategy.options()["method"] == WAYS[name].method
    assert strategy.privacy()["server_sees"]
    with caplog.at_level(logging.INFO, "fedkern_flwr"):
        strategy.summary()
    assert f"method: {strategy.method}" in caplog.text
    ours = inspect.signature(type(strategy).start).parameters
    stock = inspect.signature(FedAvg.start).parameters
    assert [*ours] in ([*stock], ["self", "arguments", "named"])


# -- the online methods, which send a model in every round


def test_start_is_called_like_a_stock_strategy() -> None:
    """Arguments, their order and their defaults are Flower's; an object may be started again."""
    for name in ("pof-mkl", "pof-rls", "local-only"):
        sites, seen = WAYS[name].sites(), list[int]()
        strategy = WAYS[name].make(seed=None)
        told = list[tuple[int, int]]()
        strategy.on_round = lambda done, total, metrics, told=told: told.append((done, total))

        def evaluate(number: int, arrays: ArrayRecord, seen: list[int] = seen) -> MetricRecord:
            assert isinstance(arrays, ArrayRecord)
            seen.append(number)
            return MetricRecord({"n": number})

        for _ in range(2):
            seen.clear()
            result = strategy.start(
                grid=sites.grid(), initial_arrays=None, num_rounds=12, timeout=30.0,
                train_config=ConfigRecord({"seed": 3, "lr": 0.1}), evaluate_config=ConfigRecord(),
                evaluate_fn=evaluate,
            )  # fmt: skip
        assert isinstance(result, Result)
        count = len(seen) - 1
        assert seen == [*range(count + 1)]
        assert told == 2 * [(n, count) for n in range(1, count + 1)]
        assert result.evaluate_metrics_serverapp[count]["n"] == count
        last = result.train_metrics_clientapp[count]
        assert last["mse"] == strategy.metrics_["mse"] == strategy.history_[-1]["mse"]
        assert [row["survivors"] for row in strategy.history_] == [4] * len(strategy.history_)
        assert strategy.options()["seed"] == 3
        same_run = fit(name, seed=3)
        assert strategy.history_ == same_run.strategy.history_
        other = fit(name, seed=4).strategy
        assert other.metrics_["mse"] != strategy.metrics_["mse"]
        config = ConfigRecord()
        assert [*strategy.configure_train(1, ArrayRecord(), config, sites.grid())] == []


@pytest.mark.parametrize("name", ONLINE)
def test_held_out_rows_and_given_arrays(name: str) -> None:
    """A run without held-out rows learns the same; one may start from the arrays of another."""
    found, sites = quiet(name), WAYS[name].sites()
    for table in sites.tables:
        table |= {"x_test": None, "y_test": None}
    without = sites.fit()
    assert "test_mse" not in without.strategy.metrics_
    assert without.strategy.history_ == found.strategy.history_
    refuses("FK-OPTION-RANGE", fit, name, start={"num_rounds": 0})
    if WAYS[name].strategy is LocalOnly:
        given = fit(name, start={"initial_arrays": ArrayRecord([np.zeros(3)])})
        assert given.strategy.history_ == found.strategy.history_
        return
    assert 0.0 < found.strategy.metrics_["test_mse"] < 2.0
    starts: dict[int, np.ndarray] = {}

    def note(number: int, arrays: ArrayRecord) -> None:
        starts[number] = arrays.to_numpy_ndarrays()[0]

    given = found.result.arrays
    if not given:
        return
    warm = fit(name, start={"initial_arrays": given, "evaluate_fn": note})
    np.testing.assert_array_equal(starts[0], given.to_numpy_ndarrays()[0])
    assert warm.strategy.history_ != found.strategy.history_
    with refused("FK-INITIAL-SHAPE"):
        fit(name, start={"initial_arrays": ArrayRecord([np.zeros((2, 2))])})


def test_few_holders_of_held_out_rows_do_not_stop_a_run() -> None:
    """min_clients is about training rounds; evaluation asks only those that hold rows out."""
    sites = WAYS["pof-mkl"].sites()
    for table in sites.tables[1:]:
        table |= {"x_test": None, "y_test": None}
    strategy = sites.fit(min_clients=4).strategy
    assert strategy.metrics_["test_mse"] > 0.0
    assert strategy.ledger_.by_phase["online-evaluate"] == 1


# -- theory


def long_streams(rounds: int) -> Any:
    sites = WAYS["pof-mkl"].sites()
    sites.tables = streams(held=0, rows=rounds, dimension=4, seed=9)
    return sites


@pytest.mark.parametrize("samples", [1, 5])
def test_every_clients_regret_stays_below_theorem_one(samples: int) -> None:
    record, rounds = Transcript(), 100
    options = {"step_size": "paper", "features": 9, "samples_per_round": samples, "kernels": 51}
    start = {"num_rounds": rounds}
    found: Found = long_streams(rounds).fit(transcript=record, start=start, **options)
    reports = [e.scalars for e in record.entries(phase="online-personal", direction="up")][-4:]
    for report in reports:
        bound = regret_bound(51, 1.0 / np.sqrt(rounds), rounds, report["largest_loss"])
        assert report["total_samples"] == rounds
        assert report["regret"] <= bound
    assert max(r["largest_loss"] for r in reports) == found.strategy.metrics_["largest_loss"]


@pytest.mark.parametrize("name", [name for name in ONLINE if not WAYS[name].secure])
def test_what_clients_tell_of_their_samples_grows(name: str) -> None:
    """Samples, their squared errors, and the largest of these, which is more than their mean."""
    told: dict[int, list[Any]] = {}
    for entry in quiet(name).transcript.entries(direction="up"):  # type: ignore[union-attr]
        if "largest_loss" in (own := entry.scalars):
            row = [own[k] for k in ("total_samples", "total_squared_error", "largest_loss")]
            told.setdefault(entry.node, []).append(row)
    assert told or name == "per-fed-avg"
    for rows in (np.array(rows, float) for rows in told.values()):
        assert len(rows) > 1 or name == "local-only"
        assert (np.diff(rows, axis=0) >= 0.0).all()
        assert (rows[:, 1] <= rows[:, 0] * rows[:, 2] * (1.0 + 1e-6)).all()


# -- what a run that goes on takes up


@pytest.mark.parametrize(
    "name", [n for n, way in WAYS.items() if hasattr(way.strategy, "load_server_state")]
)
def test_a_server_takes_up_all_that_it_keeps(name: str) -> None:
    """Other numbers than it has, each of them; and what it had."""
    strategy = quiet(name).strategy
    own = {part: array.copy() for part, array in strategy.server_state().items()}
    for given in ({k: np.where(v == 1.0, 0.0, v + 1.0) for k, v in own.items()}, own):
        strategy.load_server_state({part: array.copy() for part, array in given.items()})
        for part, array in strategy.server_state().items():
            np.testing.assert_array_equal(array, given[part], err_msg=part)
