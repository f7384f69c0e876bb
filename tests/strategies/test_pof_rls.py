"""POF-RLS against pooled ridge regressions, and its plan, its mixture and its learners."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.clients.pof_mkl_account import StreamAccount
from fedkern_flwr.clients.pof_rls import learn_samples
from fedkern_flwr.errors import OptionError
from fedkern_flwr.online import ridge, ridge_plan
from fedkern_flwr.online.hedge import Hedge, hedge_bound
from fedkern_flwr.online.messages import RidgeRequest
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


@pytest.mark.parametrize("memory", [1.0, 0.98, 0.9])
@pytest.mark.parametrize("several", [1, 7, 70])
@pytest.mark.parametrize("features", [6, 40])
def test_a_learner_of_single_rows_is_a_ridge_regression(
    memory: float, several: int, features: int
) -> None:
    """However many rows it is given at once, and with its state kept between them."""
    rng, each = np.random.default_rng(0), np.arange(features)
    phi, y = rng.standard_normal((2, 70, features)), rng.standard_normal(70)
    more = {"memory": memory, "ridge": 0.5}

    def fresh() -> ridge.Ridges:
        start = np.stack([ridge.unlearned(features, 0.5)] * 2)
        return ridge.from_start(start, features, **more)

    learner, found = fresh(), []
    for t in range(0, 70, several):
        found.append(learner.learn(phi[:, t : t + several], y[t : t + several]))
        learner = ridge.from_state(learner.state, (2,), features, **more)
    matrix, vector = np.stack([0.5 * np.eye(features)] * 2), np.zeros((2, features))
    expected = np.zeros((2, 70))
    for t in range(70):
        row = phi[:, t]
        expected[:, t] = np.vecdot(row, np.linalg.solve(matrix, vector[..., None])[..., 0])
        matrix = memory * matrix + row[:, None] * row[..., None]
        j = each[t % features]
        matrix[:, j, j] += features * 0.5 * (1.0 - memory)
        vector = memory * vector + row * y[t]
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=0, atol=1e-9)
    theta = np.linalg.solve(matrix, vector[..., None])[..., 0]
    np.testing.assert_allclose(learner.theta, theta, atol=1e-9)
    for last in (False, True):  # what is predicted does not depend on what comes after
        np.testing.assert_allclose(fresh().learn(phi, y, last=last), expected, atol=1e-9)
    np.testing.assert_allclose(learner.theta, theta, atol=1e-9)
    start = ridge.solve(ridge.sums(phi, y), features, 0.5)
    again = ridge.from_start(start, features)
    again.learn(phi[:, :1], y[:1])
    twice = np.concatenate([phi, phi[:, :1]], axis=1), np.append(y, y[0])
    expected = ridge.solve(ridge.sums(*twice), features, 0.5)
    np.testing.assert_allclose(again.theta, expected[:, -features:], atol=1e-10)
    one = sum(ridge.sums(phi[:, [t]], y[[t]], 4.0) for t in range(70))
    np.testing.assert_allclose(one, 4.0 * ridge.sums(phi, y), atol=1e-9)


def test_rows_that_are_not_summed_yet_are_learned_again() -> None:
    """Features of messages before the one at hand, which the server has not sent back."""
    rng, account = np.random.default_rng(5), StreamAccount()
    x, y = rng.random((9, 3)) / 2, rng.random(9)
    strategy = POFRLS(features=4, experts="global-kernels", forgetting=1.0, width=1.0)
    strategy.width_ = 1.0
    known = ridge.kernel_rows(x[:2], ridge.widths(1, 1.0), 4, 0)[0]
    start = ridge.solve(ridge.sums(known, y[:2] - 0.5), 8, LAMBDA)
    fields = {
        **strategy._fields(),
        "summed": 4,
        "shared": 1,
        "begun": True,
        "inverses": 1,
        "starts": start,
    }
    fields |= {"seed": 0, "sums": True}
    request = RidgeRequest(step=6, samples=3, window=2, **fields)
    total = learn_samples(request, account, lambda at, many: (x[at : at + many], y[at : at + many]))
    phi = ridge.kernel_rows(x, ridge.widths(1, 1.0), 4, 0)[0]
    expected = 0.0
    for t in range(6, 9):
        matrix = phi[:t].T @ phi[:t] + LAMBDA * np.eye(8)
        found = phi[t] @ np.linalg.solve(matrix, phi[:t].T @ (y[:t] - 0.5)) + 0.5
        expected += (found.clip(0.0, 1.0) - y[t]) ** 2
    assert account.total == pytest.approx(expected, abs=1e-9)
    summed = ridge.sums(phi[2:], y[2:] - 0.5) * ridge_plan.scale(7)
    np.testing.assert_allclose(total, summed, rtol=1e-9)


def test_regret_against_the_best_learner_stays_within_the_bound_of_adahedge(
    make_streams: Make,
) -> None:
    streams, record = make_streams(3, 120, seed=4), Transcript()
    run(POFRLS(features=4), streams, 120, transcript=record)
    reports = [e.scalars for e in record.entries(phase=UPLOAD, direction="up")]
    for report in reports:
        best = report["total_squared_error"] - report["regret"]
        assert report["regret"] <= hedge_bound(8, report["total_samples"], best)


def test_who_cannot_learn_yet_stays_asleep_through_a_long_message() -> None:
    """Kernels without a width have the mixture's loss of each sample, however many come."""
    rng, account = np.random.default_rng(3), StreamAccount()
    strategy = POFRLS(features=4, regularization=LAMBDA)
    start = np.concatenate([ridge.unlearned(4, LAMBDA)] * 2)
    fields = {**strategy._fields(), "inverses": 2, "raw": True, "starts": start}
    request = RidgeRequest(step=1, samples=60, window=1, **fields)
    x = rng.random((60, 3)) / 2
    learn_samples(request, account, lambda start, many: (x[:many], x[:many].sum(axis=1)))
    raw, kernels = account.losses[:4], account.losses[4:]
    assert len(kernels) == 2
    np.testing.assert_allclose(kernels, account.total, rtol=1e-12)
    assert (np.abs(raw - account.total) > 1e-6 * account.total).all()


@given(st.integers(2, 6), st.integers(1, 300), st.integers(0, 4000))
def test_the_mixture_keeps_adahedges_bound_on_any_losses(
    experts: int, samples: int, seed: int
) -> None:
    """Also where some are asleep, which have the mixture's loss."""
    rng = np.random.default_rng(seed)
    hedge, mixed = Hedge(np.zeros(experts)), 0.0
    better = rng.random(experts) ** 3
    for _ in range(samples):
        awake = rng.random(experts) < 0.8
        awake[rng.integers(experts)] = True
        losses = (rng.random(experts) < better).astype(float)
        loss = float(hedge.weights(awake) @ losses)
        hedge.learn(np.where(awake, losses, loss))
        mixed += loss
    best = float(hedge.losses.min())
    assert mixed - best <= hedge_bound(experts, samples, best) + 1e-9


@given(
    st.integers(1, 600),
    st.floats(1.0, 2000.0),
    st.one_of(st.none(), st.integers(1, 60)),
    st.integers(0, 24),
    st.integers(0, 3),
    st.integers(1, 30),
    st.one_of(st.just(math.inf), st.integers(1, 2000)),
    st.one_of(st.just(math.inf), st.integers(1, 200)),
)
def test_no_message_of_a_plan_releases_more_numbers_than_it_has_unknowns(
    samples: int,
    unknowns: float,
    given: int | None,
    columns: int,
    kernels: int,
    features: int,
    up: float,
    down: float,
) -> None:
    """Nor than its budget has, up and down."""
    sizes = {"columns": columns, "kernels": kernels, "features": features, "fixed": 0}
    plan = ridge_plan.plan(samples, unknowns, given=given, **sizes, up=up, down=down)
    raw = ridge.numbers(columns) if columns else 0
    lengths = np.diff([0, *plan.stops])
    assert lengths.sum() == samples
    assert lengths.min() >= 1
    if given:
        assert lengths.max() < 2 * given
    kept, released = plan.kernels * ridge.numbers(2 * plan.features), 0
    assert raw * (plan.raw > 0) + kept <= up
    assert columns * (plan.raw > 0) + plan.kernels * 2 * plan.features <= down
    if plan.kernels > 1:
        assert plan.features in (0, features)
    starts = (0, *plan.stops)
    for before, length, start, summed in zip(starts, lengths, plan.starts, plan.sums, strict=False):
        one = raw * (plan.raw > 0)
        assert one <= unknowns * length
        released = one + kept * summed + (released if start < before else 0)
        assert released <= unknowns * (before + length - start)
        assert start <= before
        if before and length != lengths[-1]:
            assert length <= max(before, lengths[0])


@pytest.mark.parametrize("experts", ["local-ridge", "local-kernels", "local"])
def test_local_learners_release_statistics_only(experts: Any, make_streams: Make) -> None:
    streams = make_streams(4, ROUNDS)
    strategy = run(POFRLS(experts=experts, features=4, secure=True), streams)
    assert strategy.sum_length() == 0
    assert not strategy.model()[0].get("raw", np.zeros(0)).size
    assert 0.0 < strategy.metrics_["mse"] < 0.1


def test_drift_is_followed_by_learners_that_forget(make_streams: Make) -> None:
    streams = make_streams(4, 160, seed=1)
    for y in streams.y:
        y[80:] = 1.0 - y[80:]
    errors = [
        run(POFRLS(features=4, forgetting=memory), streams, 160).metrics_["mse"]
        for memory in (1.0, 0.95)
    ]
    assert errors[1] < 0.5 * errors[0]


def test_what_may_not_be_summed_is_said_before_anything_is_sent(make_streams: Make) -> None:
    text = (
        "up=5 and down=None leave room for nothing that all learn from; allow 11 numbers up and 4"
    )
    for experts in ("global", "all"):
        with pytest.raises(OptionError, match=text):
            run(POFRLS(experts=experts, up=5), make_streams(4, ROUNDS))
    with pytest.raises(OptionError, match="nothing may be summed that 'global-ridge' learners"):
        run(POFRLS(experts="global-ridge", secure=True), make_streams(3, 2), 2)


def test_a_budget_leaves_out_kernels_before_frequencies_of_one(make_streams: Make) -> None:
    """Whatever the budget, no message is longer; and what is left out is learned locally."""
    streams, found = make_streams(4, ROUNDS), []
    for up in (None, 120, 80, 40, 25):
        for down in (None, 150, 24, 10):
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
