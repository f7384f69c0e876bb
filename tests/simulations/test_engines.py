"""The in-process engine, the transcript, and injected faults: what a run makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.errors import CohortError, OptionError
from fedkern_flwr.exchange import payload_bytes, request_messages
from fedkern_flwr.simulations import (
    DropOut,
    Fault,
    FaultPlan,
    InProcessGrid,
    SimulationStep,
    Transcript,
    simulate,
    simulate_all,
)
from fedkern_flwr.simulations.engines import in_process
from fedkern_flwr.simulations.engines.direct import DirectApp, as_client
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, VMKOFL, OFMKLAvg, PerFedAvg
from fedkern_flwr.wire import DescribeRequest

PHASE, ROUNDS, CLIENTS = "online-personal", 12, 3


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, 20)


def run(streams: Any, *faults: Any, method: Any = POFMKL, **more: Any) -> Any:
    engine = {n: more.pop(n) for n in ("faults", "transcript", "timeout") if n in more}
    if faults:
        engine["faults"] = FaultPlan(faults)
    if method is POFMKL:
        more["kernels_per_round"] = 4
    strategy = method(kernels=9, features=6, **more)
    simulate(strategy, streams.client_fn, CLIENTS, seed=1, num_rounds=ROUNDS, **engine)
    return strategy


def outcome(strategy: Any) -> tuple[Any, ...]:
    return strategy.theta_.tobytes(), strategy.history_, strategy.metrics_


class Noted(ClientApp):
    """Keeps what another app replies."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app, self.replies = app, list[Any]()

    def __call__(self, message: Message, context: Any) -> Message:
        reply = self.app(message, context)
        found = [(name, key, v) for name, r in reply.content.items() for key, v in r.items()]
        self.replies.append({(name, key): getattr(v, "data", v) for name, key, v in found})
        return reply


def test_clients_reply_as_on_the_way_of_flower(streams: Any) -> None:
    direct = Noted(DirectApp(streams.client_fn))
    stock = Noted(ClientApp(client_fn=lambda context: as_client(streams.client_fn(context))))
    for app in (direct, stock):
        simulate(POFMKL(kernels=9, features=6), app, CLIENTS, seed=1, num_rounds=3)
    empty = ("fitres.parameters", "_empty")  # where there are no arrays
    for ours, theirs in zip(direct.replies, stock.replies, strict=True):
        assert ours == {name: value for name, value in theirs.items() if name != empty}
    assert len(direct.replies) >= 3 * CLIENTS


@pytest.mark.parametrize("method", [POFMKL, OFSKL, OFMKLAvg, VMKOFL, EMKOFL, PerFedAvg])
def test_serialised_messages_give_the_same_model_bit_for_bit(
    method: Any, streams: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, sent = [], []
    real = in_process.message_round_trip
    monkeypatch.setattr(in_process, "message_round_trip", lambda m: sent.append(m) or real(m))
    for serialise in (False, True):
        strategy = method()
        result = simulate(
            strategy, streams.client_fn, CLIENTS, seed=1, num_rounds=6, serialise=serialise
        )
        arrays = [a.tobytes() for a in result.arrays.to_numpy_ndarrays()]
        model = {k: v.tobytes() for k, v in strategy.model()[0].items()}
        results.append((arrays, model, strategy.history_, strategy.ledger_.bytes_up))
    assert results[0] == results[1]
    assert len(sent) == 2 * strategy.ledger_.messages  # those of the second run, there and back


def test_the_transcript_holds_every_message(streams: Any) -> None:
    record = Transcript()
    strategy = run(streams, (1, PHASE, 4, Fault("error")), transcript=record)
    assert len(record) == 2 * CLIENTS * (1 + ROUNDS)
    down = list(record.entries(phase=PHASE, direction="down"))
    up = list(record.entries(phase=PHASE, direction="up"))
    assert (len(down), len(up)) == (CLIENTS * ROUNDS, CLIENTS * ROUNDS - 1)
    assert [e.group for e in down[:4]] == ["1", "1", "1", "2"]
    assert {e.node for e in up} == set(strategy.parties_) == {e.node for e in down}
    assert [a.shape for a in down[0].arrays] == [(9, 12)]
    assert [a.shape for a in up[0].arrays] == [(4,), (4, 12)]
    assert up[0].scalars["round"] == 1
    assert len(list(record.entries(phase="describe"))) == 2 * CLIENTS
    assert len(list(record.entries())) == len(record) - 1


def test_every_client_appears_in_the_ledger_of_bytes(streams: Any) -> None:
    record = Transcript()
    strategy = run(streams, transcript=record)
    messages = [m for way, m in record._messages if way == "up"]
    assert strategy.ledger_.bytes_up == sum(map(payload_bytes, messages))
    payload = sum(a.nbytes for e in record.entries(direction="up") for a in e.arrays)
    assert payload < strategy.ledger_.bytes_up < payload + 200 * 2 * len(messages)
    assert strategy.ledger_.exchanges == 1 + ROUNDS
    assert strategy.ledger_.by_phase == {"describe": 1, PHASE: ROUNDS}


def test_replies_of_many_clients_never_stand_in_memory_together(
    make_streams: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid hands out replies by volume: with 1 kB at a time, one reply per pull."""
    monkeypatch.setattr(in_process, "_PULL_BYTES", 1000)
    streams = make_streams(6, 8)
    strategy = POFMKL(kernels=9, features=20)
    volumes: list[int] = []
    pull = InProcessGrid.pull_messages

    def watched(self: InProcessGrid, ids: Any) -> Any:
        replies = list(pull(self, ids))
        volumes.append(sum(map(payload_bytes, replies)))
        return replies

    monkeypatch.setattr(InProcessGrid, "pull_messages", watched)
    simulate(strategy, streams.client_fn, 6, num_rounds=3)
    assert len([v for v in volumes if v]) == 6 * 3
    assert max(volumes) < 2500


def test_an_unknown_node_gets_the_empty_id(streams: Any) -> None:
    grid = InProcessGrid(ClientApp(client_fn=lambda c: streams.client_fn(c).to_client()), 2)
    request = DescribeRequest(session="s", method="m", resume_round=0)
    assert list(grid.push_messages(request_messages(request, [1000, 5], group_id="g"))) == ["1", ""]
    replies = list(grid.send_and_receive(request_messages(request, [1000, 5, 1001], group_id="g")))
    assert [r.metadata.src_node_id for r in replies] == [1000, 1001]
    assert grid.create_message(replies[0].content, "train", 1000, "g").metadata.group_id == "g"


def test_several_strategies_share_the_nodes(streams: Any) -> None:
    seen: list[str] = []
    steps = [
        SimulationStep(
            method(kernels=5, features=4),
            seed=3,
            start={"num_rounds": 5},
            before=lambda step: seen.append(f"before {step.strategy.method}"),
            after=lambda step: seen.append(f"after {step.strategy.method}"),
        )
        for method in (POFMKL, VMKOFL)
    ]
    simulate_all(steps, streams.client_fn, CLIENTS)
    assert seen == ["before pof-mkl", "after pof-mkl", "before vm-kofl", "after vm-kofl"]
    alone = VMKOFL(kernels=5, features=4)
    simulate(alone, streams.client_fn, CLIENTS, seed=3, num_rounds=5)
    together: Any = steps[1].strategy
    np.testing.assert_array_equal(alone.theta_, together.theta_)
    assert alone.history_ == together.history_


def test_wrong_options_of_a_simulation_are_refused(streams: Any) -> None:
    with pytest.raises(OptionError, match="engine is 'cloud'; choose one of in-process, ray"):
        simulate(POFMKL(), streams.client_fn, 3, engine="cloud")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="clients is 0; use at least 1"):
        simulate(POFMKL(), streams.client_fn, 0)


# -- faults


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


# -- replies that cannot be right


def with_arrays(change: Callable[..., list[Any]]) -> Fault:
    """Return a fault that puts other arrays into a reply."""

    def tamper(message: Message) -> Message:
        arrays = message.content["fitres.parameters"].to_numpy_ndarrays()  # type: ignore[union-attr]
        message.content["fitres.parameters"] = ArrayRecord(change(*map(np.copy, arrays)))
        return message

    return Fault("tamper", change=tamper)


def bad_gradient(value: float) -> Fault:
    """Return a fault that makes one number of a gradient another one."""

    def change(kernels: Any, gradient: Any) -> list[Any]:
        gradient[0, 0] = value
        return [kernels, gradient]

    return with_arrays(change)


def spoil(message: Message) -> Message:
    message.content["fitres.metrics"]["squared_error"] = float("nan")
    return message


@pytest.mark.parametrize(
    ("method", "phase", "fault", "reason"),
    [
        (POFMKL, PHASE, bad_gradient(np.nan), "gradient holds NaN or infinite values"),
        (POFMKL, PHASE, bad_gradient(np.inf), "gradient holds NaN or infinite values"),
        (POFMKL, PHASE, with_arrays(lambda k, g: [np.full_like(k, 99), g]), ""),
        (POFMKL, PHASE, with_arrays(lambda k, g: [np.full_like(k, -1), g]), ""),
        (VMKOFL, "online-shared", with_arrays(lambda g, losses: [g, losses[:-1]]), ""),
        (POFMKL, "online-evaluate", Fault("tamper", change=spoil), "squared_error is not finite"),
    ],
)
def test_a_reply_that_cannot_be_right_is_counted_and_is_like_none(
    make_streams: Callable[..., Any], method: Any, phase: str, fault: Fault, reason: str
) -> None:
    streams = make_streams(CLIENTS, 20, test_rows=5)
    number = None if phase == "online-evaluate" else 5
    bad, missing = (
        run(streams, (2, phase, number, what), method=method) for what in (fault, Fault("vanished"))
    )
    ((partition, found),) = bad.ledger_.failures.items()
    ((text, count),) = found.items()
    assert (partition, count) == ("2", 1)
    assert text.startswith("invalid reply")
    assert text.endswith(reason)
    assert np.isfinite(bad.theta_).all()
    assert outcome(bad) == outcome(missing)


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
        run(streams, (None, PHASE, 5, bad_gradient(np.nan)))


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
