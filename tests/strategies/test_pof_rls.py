"""POF-RLS against pooled ridge regressions; its mathematics alone is in ``tests/core``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.online import ridge
from fedkern_flwr.online.hedge import hedge_bound
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan, Transcript
from fedkern_flwr.strategies import POFRLS

Make = Callable[..., Any]

ROUNDS, LAMBDA = 24, 1e-3


def run(strategy: POFRLS, streams: Any, rounds: int = ROUNDS, **more: Any) -> POFRLS:
    simulate(strategy, streams.client_fn, len(streams.x), num_rounds=rounds, **more)
    return strategy


def pooled(strategy: POFRLS, streams: Any, rows: Callable[[int, int], bool]) -> Any:
    """Solve the ridge regressions of all rows of ``rows(client, message)``, weighted by age."""
    plan = strategy.plan_
    messages = list(zip((0, *plan.stops), plan.starts, plan.stops, plan.sums, strict=False))
    parts: dict[str, Any] = {"raw": [], "kernels": []}
    width = np.array([strategy.width_]).astype("<f8").tobytes()
    for memory in (1.0, strategy.forgetting):
        sums: dict[str, Any] = {"raw": [0.0, 0.0], "kernels": [0.0, 0.0]}
        for message, (before, window, stop, summed) in enumerate(messages, 1):
            asked = [k for k in range(len(streams.x)) if rows(k, message)]
            if not asked:
                continue
            for name, start in {"raw": before, **({"kernels": window} if summed else {})}.items():
                found, many = sums[name], stop - start
                found[0], found[1] = (memory**many * one for one in found)
                for k in asked:
                    x, y = streams.x[k][start:stop], streams.y[k][start:stop] - 0.5
                    phi = np.column_stack([x, np.ones(many)])
                    if name == "kernels":
                        both = ridge.kernel_rows(x, width, strategy.features, strategy.run_seed)[0]
                        half = np.arange(plan.features)
                        phi = both[:, [*half, *(strategy.features + half)]]
                    found[0], found[1] = found[0] + phi.T @ phi, found[1] + phi.T @ y
        for name, (matrix, vector) in sums.items():
            parts[name].append(np.linalg.solve(matrix + LAMBDA * np.eye(len(matrix)), vector))
    return parts


UPLOAD = "online-ridge"

GONE = {(1, 2), (3, 4), (1, 5)}  # client, message


@pytest.mark.parametrize(("secure", "drop"), [(False, False), (True, False), (True, True)])
def test_the_global_learners_are_ridge_regressions_of_the_pooled_rows(
    secure: bool, drop: bool, make_streams: Make
) -> None:
    """With forgetting, secure sums and clients that vanish: of the rows that were summed."""
    streams = make_streams(8, ROUNDS)
    strategy = POFRLS(features=3, samples_per_round=6, secure=secure, seed=5)
    faults = FaultPlan([(k, UPLOAD, n, Fault("vanished")) for k, n in GONE] if drop else [])
    run(strategy, streams, faults=faults)
    assert strategy.plan_.features == 3
    assert min(row["survivors"] for row in strategy.history_) == 8 - drop
    found = strategy.model()[0]
    expected = pooled(strategy, streams, lambda k, n: not drop or (k, n) not in GONE)
    np.testing.assert_allclose(found["raw"], expected["raw"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["kernels"], expected["kernels"], rtol=0, atol=1e-9)


@pytest.mark.promise("rls-exact")
def test_sums_of_features_over_several_messages_forget_by_their_rows(make_streams: Make) -> None:
    """As short messages as the rule of counting allows, features in every other one."""
    streams = make_streams(6, ROUNDS)
    strategy = run(POFRLS(features=4, secure=True, seed=5, forgetting=0.9), streams)
    plan = strategy.plan_
    assert 1 < sum(plan.sums) <= len(plan.sums) / 2
    found, expected = strategy.model()[0], pooled(strategy, streams, lambda k, n: True)
    np.testing.assert_allclose(found["raw"], expected["raw"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(found["kernels"], expected["kernels"], rtol=0, atol=1e-9)


def test_between_messages_a_client_learns_from_its_own_rows(make_streams: Make) -> None:
    """Global ridge alone: what a client predicts is exact recursive least squares, by hand."""
    streams = make_streams(3, ROUNDS, seed=2)
    strategy = run(POFRLS(experts="global-ridge", forgetting=1.0, samples_per_round=5), streams)
    rows = [np.column_stack([x, np.ones(len(x))]) for x in streams.x]
    errors = []
    for start, stop in zip((0, *strategy.plan_.stops), strategy.plan_.stops, strict=False):
        for k in range(3):
            for t in range(start, stop):
                known = [(rows[j][:start], streams.y[j][:start]) for j in range(3)]
                known.append((rows[k][start:t], streams.y[k][start:t]))
                phi, y = (np.concatenate(part) for part in zip(*known, strict=True))
                matrix = phi.T @ phi + LAMBDA * np.eye(5)
                found = rows[k][t] @ np.linalg.solve(matrix, phi.T @ (y - 0.5)) + 0.5
                errors.append((found.clip(0.0, 1.0) - streams.y[k][t]) ** 2)
    assert strategy.metrics_["mse"] == pytest.approx(np.mean(errors), abs=1e-12)
    frozen = run(
        POFRLS(experts="global-ridge", forgetting=1.0, samples_per_round=5, down=5), streams
    )
    assert frozen.metrics_["mse"] > 1.01 * strategy.metrics_["mse"]  # coefficients alone
    np.testing.assert_allclose(frozen.model()[0]["raw"], strategy.model()[0]["raw"], atol=1e-12)


def test_regret_against_the_best_learner_stays_within_the_bound_of_adahedge(
    make_streams: Make,
) -> None:
    streams, record = make_streams(3, 120, seed=4), Transcript()
    run(POFRLS(features=4), streams, 120, transcript=record)
    reports = [e.scalars for e in record.entries(phase=UPLOAD, direction="up")]
    for report in reports:
        best = report["total_squared_error"] - report["regret"]
        assert report["regret"] <= hedge_bound(8, report["total_samples"], best)


@pytest.mark.parametrize("experts", ["local-ridge", "local-kernels", "local"])
def test_local_learners_release_statistics_only(experts: Any, make_streams: Make) -> None:
    streams = make_streams(4, ROUNDS)
    strategy = run(POFRLS(experts=experts, features=4, secure=True), streams)
    assert strategy.sum_length() == 0
    assert not strategy.model()[0].get("raw", np.zeros(0)).size
    assert 0.0 < strategy.metrics_["mse"] < 0.1


def test_drift_is_followed_by_learners_that_forget(make_streams: Make) -> None:
    streams = make_streams(2, 160, seed=1)
    for y in streams.y:
        y[80:] = 1.0 - y[80:]
    errors = [
        run(POFRLS(features=4, forgetting=memory), streams, 160).metrics_["mse"]
        for memory in (1.0, 0.95)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_a_budget_leaves_out_kernels_before_frequencies_of_one(make_streams: Make) -> None:
    """Whatever the budget, no message is longer; and what is left out is learned locally."""
    streams, found = make_streams(4, ROUNDS), []
    for up, down in ((None, None), (120, None), (80, 150), (40, 24), (None, 24), (25, 10)):
        record = Transcript()
        strategy = POFRLS(features=4, kernels=3, up=up, down=down, samples_per_round=8)
        run(strategy, streams, transcript=record)
        for entry in record.entries(phase=UPLOAD):
            sizes = [array.size for array in entry.arrays]
            most = (up if entry.direction == "up" else down) or math.inf
            assert sum(sizes) + 6 * (entry.direction == "up") <= most
        found.append((strategy.plan_.kernels, strategy.plan_.features, strategy.plan_.raw > 0))
    assert found[0] == (3, 4, True)
    assert {(2, 4, True), (1, 4, True), (1, 2, True)} <= set(found)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"experts": "global", "up": 5}, "FK-RIDGE-ROOM"),
        ({"experts": "all", "up": 5}, "FK-RIDGE-ROOM"),
        ({"experts": "global-ridge", "secure": True}, "FK-RIDGE-GLOBAL"),
        ({"drop_outs": False, "threshold": 3}, "FK-THRESHOLD-WHOLE"),
    ],
)
def test_what_may_not_be_summed_is_said_before_anything_is_sent(
    options: dict[str, Any], code: str, make_streams: Make
) -> None:
    with refused(code):
        run(POFRLS(**options), make_streams(3, ROUNDS), 2)
