"""Online methods against plain programs, with loops over clients, kernels and samples.

Only the random draws are shared with the package. POF-MKL has two modes: equations 6-10 of the
paper, and AdaGrad-norm with AdaHedge. Its plain program is ``plain_online`` of tests/helpers, which
the contract of all ways uses as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from pooled import plain_online, ridges
from refusals import raises, refuses
from zoo import WAYS, Found, Way, fit
from zoo import streams as tables_of_streams

from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan
from fedkern_flwr.strategies import POFMKL, POFRLS, PerFedAvg

DIMENSION, CLIENTS, ROUNDS, SEED = 3, 4, 30, 7
MANY: dict[str, Any] = {"features": 4, "kernels": 8, "precision": "float64", "seed": SEED}


def pof_mkl(**options: Any) -> Found:
    tables = partial(tables_of_streams, CLIENTS, held=0, rows=ROUNDS)
    return fit(replace(WAYS["pof-mkl"], tables=tables, options={**MANY, **options}, rounds=ROUNDS))


@pytest.mark.promise("online-before-label", "online-gradients-weighed")
@pytest.mark.parametrize("mode", ["paper", "adaptive"])
@pytest.mark.parametrize(
    ("many", "exploration", "samples"), [(1, 1.0, 1), (3, 0.3, 1), (3, 0.3, 4), (8, 1.0, 4)]
)
def test_modes_equal_plain_loops(many: int, exploration: float, samples: int, mode: str) -> None:
    """With four samples 30 in 7 messages: weights move per sample, one summed gradient travels.

    In the adaptive mode the client's copy of the parameters moves per sample, too.
    """
    options: dict[str, Any] = {"exploration": exploration, "step_size": mode}
    found = pof_mkl(kernels_per_round=many, samples_per_round=samples, **options)
    assert len(found.strategy.history_) == ROUNDS // samples
    for got, expected in found.oracle():
        np.testing.assert_allclose(got, expected, rtol=0.0, atol=1e-10 if mode == "paper" else 1e-9)


def test_float32_stays_near_float64() -> None:
    """The default precision costs nothing that a user would see."""
    double, single = (
        pof_mkl(kernels_per_round=4, precision=precision).strategy
        for precision in ("float64", "float32")
    )
    assert 0.0 < np.abs(double.theta_ - single.theta_).max() < 1e-3
    assert single.metrics_["mse"] == pytest.approx(double.metrics_["mse"], rel=1e-4)


def test_by_default_every_client_updates_every_kernel_of_a_dense_sum(
    make_streams: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Else the sum of a kernel that few clients chose would be nearly their own gradient."""
    streams = make_streams(7, 5)
    common: dict[str, Any] = {"kernels": 7, "features": 4, "seed": 3, "samples_per_round": 1}
    common |= {"frequencies_per_round": "all", "secure": True}
    for options, many, warned in (
        ({}, 7, False),
        ({"kernels_per_round": 3}, 3, True),
        ({"kernels_per_round": 3, "subset": "shared"}, 3, False),
        ({"subset": "shared", "kernels": 40}, 25, False),
        ({"kernels": 40, "secure": False}, 25, False),
    ):
        caplog.clear()
        strategy = POFMKL(**{**common, **options})
        simulate(strategy, streams.client_fn, 7, num_rounds=3)
        assert strategy.kernels_per_round == strategy.options()["kernels_per_round"] == many
        assert ("chosen by fewer than 4 clients" in caplog.text) == warned
        seen = strategy.privacy()["server_sees"]
        assert any("few clients chose" in line for line in seen) == warned
        assert (strategy.lonely_kernels > 1e-9) == warned


# -- the methods beside it; more in the contract of all ways


@pytest.mark.parametrize(("way", "drawn"), [("vm-kofl", False), ("em-kofl", True)])
def test_kernels_are_weighed_by_the_sum_of_all_clients_losses(way: str, drawn: bool) -> None:
    """Their mean is compared in the contract."""
    found = fit(way, loss_aggregation="sum", step_size="paper")
    pairs = {w: list(plain_online(found, weigh=w, drawn=drawn)) for w in ("sum", "mean")}
    for got, expected in pairs["sum"]:
        np.testing.assert_allclose(got, expected, rtol=0.0, atol=1e-8)
    assert not all(np.allclose(*pair, rtol=0.0, atol=1e-8) for pair in pairs["mean"])


# -- PerFedAvg


def plain_network(parameters: np.ndarray, widths: Any, x: np.ndarray) -> float:
    """Output for one row: weights (in, out) row by row, then biases, ReLU between layers."""
    values, start = x, 0
    for layer, (a, b) in enumerate(pairwise(widths)):
        weights, start = parameters[start : start + a * b].reshape(a, b), start + a * b
        values, start = values @ weights + parameters[start : start + b], start + b
        if layer < len(widths) - 2:
            values = np.where(values > 0.0, values, 0.0)
    return float(values[0])


def numerical_gradient(
    parameters: np.ndarray, widths: Any, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Gradient of sum (output - y)^2 by central differences."""
    gradient, h = np.zeros_like(parameters), 1e-6

    def loss(at: np.ndarray) -> float:
        return sum((plain_network(at, widths, r) - v) ** 2 for r, v in zip(x, y, strict=True))

    for i in range(parameters.size):
        bump = np.zeros_like(parameters)
        bump[i] = h
        gradient[i] = (loss(parameters + bump) - loss(parameters - bump)) / (2 * h)
    return gradient


@pytest.mark.parametrize("samples", [1, 2])
def test_per_fed_avg_adapts_and_then_moves(make_streams: Callable[..., Any], samples: int) -> None:
    clients, rounds = 2, 3
    streams = make_streams(clients, rounds * samples, DIMENSION, seed=6)
    strategy = PerFedAvg(step_size="paper", inner_step=0.05, samples_per_round=samples)
    how: dict[str, Any] = {"seed": SEED, "num_rounds": rounds * samples, "transcript": Transcript()}
    simulate(strategy, streams.client_fn, clients, **how)
    widths, errors = strategy.model()[1]["layers"], 0.0
    first = next(how["transcript"].entries(phase="online-network", direction="down"))
    parameters = first.arrays[0].astype(np.float64)
    for number in range(rounds):
        mean = np.zeros_like(parameters)
        batch = slice(number * samples, (number + 1) * samples)
        support = slice((number - 1) * samples, number * samples)
        for x, y in ((table["x"], table["y"]) for table in streams.tables):
            adapted = parameters
            if number:
                inner = numerical_gradient(parameters, widths, x[support], y[support])
                adapted = parameters - 0.05 * inner / samples
            for row, label in zip(x[batch], y[batch], strict=True):
                errors += (plain_network(adapted, widths, row) - label) ** 2
            mean += numerical_gradient(adapted, widths, x[batch], y[batch]) / clients
        parameters = parameters - mean / math.sqrt(rounds * samples)
    np.testing.assert_allclose(strategy.parameters_[0], parameters, atol=1e-5)
    expected = errors / (clients * rounds * samples)
    assert strategy.metrics_["mse"] == pytest.approx(expected, rel=1e-4)


# -- POF-RLS against pooled ridge regressions; its mathematics alone is in tests/core


Make = Callable[..., Any]

MESSAGES, PENALTY = 24, 1e-3


def learn(strategy: POFRLS, streams: Any, rounds: int = MESSAGES, **more: Any) -> POFRLS:
    simulate(strategy, streams.client_fn, len(streams), num_rounds=rounds, **more)
    return strategy


UPLOAD = "online-ridge"
GONE = {(1, 2), (3, 4), (1, 5)}  # client, message


def check(found: Found, gone: Any = ()) -> None:
    for got, expected in ridges(found, gone):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


def rls(clients: int, **options: Any) -> Way:
    tables = partial(tables_of_streams, clients, held=0, rows=MESSAGES)
    return replace(WAYS["pof-rls"], tables=tables, options=options, rounds=MESSAGES)


def test_the_global_learners_are_ridge_regressions_of_the_rows_that_were_summed() -> None:
    """With forgetting, secure sums and clients that vanish."""
    faults = FaultPlan([(*one, Fault("vanished")) for one in ((k, UPLOAD, n) for k, n in GONE)])
    found = fit(rls(8, features=3, samples_per_round=6, secure=True, seed=5), faults=faults)
    assert found.strategy.plan_.features == 3
    assert min(row["survivors"] for row in found.strategy.history_) == 7
    check(found, GONE)


def test_features_of_a_message_that_was_lost_when_the_run_broke_off_are_in_no_model() -> None:
    """The only one with sums of features: some have answered, so it is not repeated."""
    sites = WAYS["pof-rls, secure"].sites(keep_weights=True)

    def cut(delivery: Any) -> None:
        if (delivery.phase, delivery.round) == ("unmask", 2):
            raise PowerCutError

    def again(**more: Any) -> Any:
        return sites.way.make(checkpoint=sites.folder / "learn.npz", checkpoint_every=1, **more)

    strategy = again()
    raises(PowerCutError, sites.fit, strategy=strategy, faults=cut)
    refuses("FK-MODEL-FAILED", strategy.model)
    found = sites.fit(strategy=again(resume=True))
    assert found.strategy.plan_.sums == (False, True, False)
    check(found, {(k, 2) for k in range(len(sites))})
    arrays, meta = found.strategy.model()
    later = POFRLS.of_model(meta)
    later.predict_at_nodes(sites.grid(), arrays, meta)
    assert later.metrics_["predicted_rows"] > 0


@pytest.mark.promise("rls-exact")
def test_sums_of_features_over_several_messages_forget_by_their_rows() -> None:
    """As short messages as the rule of counting allows, features in every other one."""
    found = fit(rls(6, features=4, secure=True, seed=5, forgetting=0.9))
    plan = found.strategy.plan_
    assert 1 < sum(plan.sums) <= len(plan.sums) / 2
    check(found)


def test_between_messages_a_client_learns_from_its_own_rows(make_streams: Make) -> None:
    """Global ridge alone: what a client predicts is exact recursive least squares, by hand."""
    streams = make_streams(3, MESSAGES, seed=2)
    strategy = learn(POFRLS(experts="global-ridge", forgetting=1.0, samples_per_round=5), streams)
    labels = [table["y"] for table in streams.tables]
    rows = [np.column_stack([table["x"], np.ones(MESSAGES)]) for table in streams.tables]
    errors = []
    for start, stop in zip((0, *strategy.plan_.stops), strategy.plan_.stops, strict=False):
        for k in range(3):
            for t in range(start, stop):
                known = [(rows[j][:start], labels[j][:start]) for j in range(3)]
                known.append((rows[k][start:t], labels[k][start:t]))
                phi, y = (np.concatenate(part) for part in zip(*known, strict=True))
                matrix = phi.T @ phi + PENALTY * np.eye(5)
                found = rows[k][t] @ np.linalg.solve(matrix, phi.T @ (y - 0.5)) + 0.5
                errors.append((found.clip(0.0, 1.0) - labels[k][t]) ** 2)
    assert strategy.metrics_["mse"] == pytest.approx(np.mean(errors), abs=1e-12)
    frozen = learn(
        POFRLS(experts="global-ridge", forgetting=1.0, samples_per_round=5, down=5), streams
    )
    assert frozen.metrics_["mse"] > 1.01 * strategy.metrics_["mse"]  # coefficients alone
    np.testing.assert_allclose(frozen.model()[0]["raw"], strategy.model()[0]["raw"], atol=1e-12)


def test_local_learners_release_statistics_only(make_streams: Make) -> None:
    streams = make_streams(4, MESSAGES)
    strategy = learn(POFRLS(experts="local", features=4, secure=True), streams)
    assert strategy.sum_length() == 0
    assert not strategy.model()[0].get("raw", np.zeros(0)).size
    assert 0.0 < strategy.metrics_["mse"] < 0.1


def test_drift_is_followed_by_learners_that_forget(make_streams: Make) -> None:
    streams = make_streams(2, 160, seed=1)
    for table in streams.tables:
        table["y"][80:] = 1.0 - table["y"][80:]
    errors = [
        learn(POFRLS(features=4, forgetting=memory), streams, 160).metrics_["mse"]
        for memory in (1.0, 0.95)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_a_budget_leaves_out_kernels_before_frequencies_of_one(make_streams: Make) -> None:
    """Whatever the budget, no message is longer; and what is left out is learned locally."""
    streams, found = make_streams(4, MESSAGES), []
    for up, down in ((None, None), (120, None), (80, 150), (40, 24), (None, 24), (25, 10)):
        record = Transcript()
        strategy = POFRLS(features=4, kernels=3, up=up, down=down, samples_per_round=8)
        learn(strategy, streams, transcript=record)
        for entry in record.entries(phase=UPLOAD):
            sizes = [array.size for array in entry.arrays]
            most = (up if entry.direction == "up" else down) or math.inf
            assert sum(sizes) + 6 * (entry.direction == "up") <= most
        found.append((strategy.plan_.kernels, strategy.plan_.features, strategy.plan_.raw > 0))
    assert found[0] == (3, 4, True)
    assert {(2, 4, True), (1, 4, True), (1, 2, True)} <= set(found)
