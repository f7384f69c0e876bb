"""Injected faults and drop-outs: what a run makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import CohortError, OptionError
from fedkern_flwr.simulations import (
    DropOut,
    Fault,
    FaultPlan,
    simulate,
)
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import POFMKL, VMKOFL

PHASE, ROUNDS, CLIENTS = "online-personal", 12, 3


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, 20)


def run(streams: Any, *faults: Any, rounds: int = ROUNDS, **more: Any) -> POFMKL:
    names = ("faults", "transcript", "serialise", "timeout")
    engine = {n: more.pop(n) for n in names if n in more}
    if faults:
        engine["faults"] = FaultPlan(faults)
    strategy = POFMKL(kernels=9, kernels_per_round=4, features=6, **more)
    simulate(strategy, streams.client_fn, CLIENTS, seed=1, num_rounds=rounds, **engine)
    return strategy


def outcome(strategy: POFMKL) -> tuple[Any, ...]:
    return strategy.theta_.tobytes(), strategy.history_, strategy.metrics_


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("lost request"), "timed out after 0.06 s"),
        (Fault("lost reply"), "timed out after 0.06 s"),
        (Fault("vanished"), "unreachable"),
        (Fault("error"), "raised InjectedError"),
        (Fault("delay", seconds=5.0), "timed out after 0.06 s"),
    ],
)
def test_a_faulty_round_is_counted_and_the_run_goes_on(
    streams: Any, fault: Fault, reason: str
) -> None:
    strategy = run(streams, (1, PHASE, 4, fault), timeout=0.06)
    assert strategy.ledger_.failures == {"1": {reason: 1}}
    assert [m["survivors"] for m in strategy.history_] == [3, 3, 3, 2] + [3] * 8
    assert strategy.left_out_ == []
    worked = fault.kind in ("lost reply", "vanished", "delay")  # the client learned all the same
    assert streams.numbers(1)[19] == ROUNDS - (not worked)
    assert outcome(strategy) != outcome(run(streams))


def test_a_client_that_answers_in_time_after_a_delay_changes_nothing(streams: Any) -> None:
    slow = run(streams, (1, PHASE, 4, Fault("delay", seconds=0.05)), timeout=10)
    assert slow.ledger_.failures == {}
    assert outcome(slow) == outcome(run(streams))


def test_silence_in_both_directions_costs_the_same_replies(streams: Any) -> None:
    """Only the server's view counts for theta: a vanished reply is a lost reply."""
    lost = run(streams, (0, PHASE, 2, Fault("lost reply")), timeout=0.06)
    assert outcome(lost) == outcome(run(streams, (0, PHASE, 2, Fault("vanished"))))


def change_gradient(value: float) -> Callable[[Message], Message]:
    def change(message: Message) -> Message:
        kernels, gradient = message.content["fitres.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
        bad = gradient.copy()
        bad[0, 0] = value
        message.content["fitres.parameters"] = ArrayRecord([kernels, bad])
        return message

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_rejected_and_counted(streams: Any, value: float) -> None:
    bad = run(streams, (2, PHASE, 5, Fault("tamper", change=change_gradient(value))))
    reason = "invalid reply gradient holds NaN or infinite values"
    assert bad.ledger_.failures == {"2": {reason: 1}}
    assert np.isfinite(bad.theta_).all()
    missing = run(streams, (2, PHASE, 5, Fault("vanished")))
    assert outcome(bad) == outcome(missing)


@pytest.mark.parametrize("index", [99, -1])
def test_a_kernel_that_does_not_exist_is_rejected_and_counted(streams: Any, index: int) -> None:
    def change(message: Message) -> Message:
        kernels, gradient = message.content["fitres.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
        message.content["fitres.parameters"] = ArrayRecord([np.full_like(kernels, index), gradient])
        return message

    bad = run(streams, (2, PHASE, 5, Fault("tamper", change=change)))
    assert list(bad.ledger_.failures) == ["2"]
    assert outcome(bad) == outcome(run(streams, (2, PHASE, 5, Fault("vanished"))))


def test_losses_of_the_wrong_length_are_rejected_and_counted(streams: Any) -> None:
    def change(message: Message) -> Message:
        gradient, losses = message.content["fitres.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
        message.content["fitres.parameters"] = ArrayRecord([gradient, losses[:-1]])
        return message

    strategy = VMKOFL(kernels=5, features=4)
    plan = FaultPlan([(2, "online-shared", 3, Fault("tamper", change=change))])
    simulate(strategy, streams.client_fn, CLIENTS, num_rounds=5, faults=plan)
    assert list(strategy.ledger_.failures) == ["2"]


class CountingClient(OnlineKernelClient):
    """Counts requests and refusals."""

    requests = refusals = 0

    def open_round(self, session: str, number: int, checkpoint_every: int) -> Any:
        CountingClient.requests += 1
        try:
            return super().open_round(session, number, checkpoint_every)
        except Exception:
            CountingClient.refusals += 1
            raise


def test_a_request_that_arrives_twice_is_refused_the_second_time(streams: Any) -> None:
    expected = outcome(run(streams))
    streams.client = CountingClient
    CountingClient.requests = CountingClient.refusals = 0
    strategy = run(streams, (1, PHASE, 4, Fault("duplicate")))
    assert outcome(strategy) == expected
    assert streams.numbers(1)[19] == ROUNDS
    assert CountingClient.requests == CLIENTS * ROUNDS + 1
    assert CountingClient.refusals == 1
    assert strategy.ledger_.failures == {}


def test_a_client_that_fails_too_many_rounds_in_a_row_is_left_out(streams: Any) -> None:
    strategy = run(streams, *[(1, PHASE, t, Fault("error")) for t in (2, 3, 4)], max_missed=3)
    assert strategy.left_out_ == [1]
    assert [m["survivors"] for m in strategy.history_] == [3] + [2] * 11
    assert strategy.ledger_.failures == {"1": {"raised InjectedError": 3}}
    assert strategy.ledger_.messages == CLIENTS + 4 * CLIENTS + 8 * 2
    patient = run(streams, *[(1, PHASE, t, Fault("error")) for t in (2, 3, 5, 6)], max_missed=3)
    assert patient.left_out_ == []
    strict = run(streams, (1, PHASE, 2, Fault("error")), max_missed=1)
    assert strict.left_out_ == [1]


def test_faults_in_many_rounds_are_all_counted(streams: Any) -> None:
    """Ids of lost and of refused requests must not clash."""
    faults = [(k, PHASE, t, Fault("error")) for t in (2, 3) for k in (0, 1)]
    faults += [(k, PHASE, 4, Fault("lost request")) for k in (0, 1)]
    strategy = run(streams, *faults, timeout=0.06, max_missed=9)
    expected = {"raised InjectedError": 2, "timed out after 0.06 s": 1}
    assert strategy.ledger_.failures == {"0": expected, "1": expected}


def test_too_few_clients_stop_the_run(streams: Any) -> None:
    faults = [(0, PHASE, 3, Fault("error")), (1, PHASE, 3, Fault("vanished"))]
    text = (
        r"phase online-personal: 1 of 3 clients answered round 3, at least 2 must "
        r"\(1 raised InjectedError, 1 unreachable\); mend the clients and start again"
    )
    with pytest.raises(CohortError, match=text):
        run(streams, *faults, min_clients=2)
    with pytest.raises(CohortError, match="0 of 3 clients answered round 5, at least 1 must"):
        run(streams, (None, PHASE, 5, Fault("tamper", change=change_gradient(float("nan")))))


def test_drop_outs_are_seeded_and_equal_to_missing_replies(streams: Any) -> None:
    plan = DropOut(0.3, seed=4)
    first, second = (run(streams, faults=plan) for _ in range(2))
    assert outcome(first) == outcome(second)
    assert outcome(first) != outcome(run(streams, faults=DropOut(0.3, seed=5)))
    gone = [
        (k, PHASE, t)
        for k in range(CLIENTS)
        for t in range(1, ROUNDS + 1)
        if plan(Delivery(k, PHASE, t)) is not None
    ]
    assert 4 <= len(gone) <= 18
    explicit = run(streams, *[(*place, Fault("lost reply")) for place in gone], timeout=0.06)
    assert outcome(explicit) == outcome(first)
    survivors = [CLIENTS - sum(t == m["round"] for *_, t in gone) for m in first.history_]
    assert [m["survivors"] for m in first.history_] == survivors


def test_drop_outs_have_their_probability_and_spare_the_start() -> None:
    plan = DropOut(0.2, seed=0)
    hits = [plan(Delivery(k, PHASE, t)) is not None for k in range(40) for t in range(1, 101)]
    assert np.mean(hits) == pytest.approx(0.2, abs=0.03)
    assert all(plan(Delivery(k, "describe", 0)) is None for k in range(100))
    with pytest.raises(OptionError, match=r"drop is 1.0; use a fraction in \[0, 1\)"):
        DropOut(1.0)


def test_a_broken_reply_to_the_evaluation_does_not_end_a_finished_run(
    make_streams: Callable[..., Any],
) -> None:
    def change(message: Message) -> Message:
        message.content["fitres.metrics"]["squared_error"] = float("nan")
        return message

    streams = make_streams(CLIENTS, 20, test_rows=5)
    place = (2, "online-evaluate", None)
    bad = run(streams, (*place, Fault("tamper", change=change)))
    assert bad.ledger_.failures == {"2": {"invalid reply squared_error is not finite": 1}}
    without = run(streams, (*place, Fault("vanished")))
    assert bad.metrics_["test_mse"] == without.metrics_["test_mse"]
