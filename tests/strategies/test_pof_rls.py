"""POF-RLS against pooled ridge regressions; its mathematics alone is in ``tests/core``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError
from pooled import ridges
from refusals import refused
from zoo import WAYS, Found, Way, fit, streams

from fedkern_flwr.online.hedge import hedge_bound
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan, Transcript
from fedkern_flwr.strategies import POFRLS

Make = Callable[..., Any]

ROUNDS, LAMBDA = 24, 1e-3


def run(strategy: POFRLS, streams: Any, rounds: int = ROUNDS, **more: Any) -> POFRLS:
    simulate(strategy, streams.client_fn, len(streams.x), num_rounds=rounds, **more)
    return strategy


UPLOAD = "online-ridge"
GONE = {(1, 2), (3, 4), (1, 5)}  # client, message


def check(found: Found, gone: Any = ()) -> None:
    for got, expected in ridges(found, gone):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-9)


def rls(clients: int, **options: Any) -> Way:
    tables = partial(streams, clients, held=0, rows=ROUNDS)
    return replace(WAYS["pof-rls"], tables=tables, options=options, rounds=ROUNDS)


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
        return sites.way.make(checkpoint=sites.folder / "run.npz", checkpoint_every=1, **more)

    strategy = again()
    with pytest.raises(PowerCutError):
        sites.fit(strategy=strategy, faults=cut)
    with refused("FK-MODEL-FAILED"):
        strategy.model()
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
