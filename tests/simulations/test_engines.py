"""The in-process engine and the transcript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from fedkern_flwr.errors import OptionError
from fedkern_flwr.exchange import payload_bytes, request_messages
from fedkern_flwr.simulations import (
    Fault,
    FaultPlan,
    InProcessGrid,
    SimulationStep,
    Transcript,
    simulate,
    simulate_all,
)
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, VMKOFL, OFMKLAvg, PerFedAvg
from fedkern_flwr.wire import DescribeRequest

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


@pytest.mark.parametrize("method", [POFMKL, OFSKL, OFMKLAvg, VMKOFL, EMKOFL, PerFedAvg])
def test_serialised_messages_give_the_same_model_bit_for_bit(method: Any, streams: Any) -> None:
    results = []
    for serialise in (False, True):
        strategy = method()
        result = simulate(
            strategy, streams.client_fn, CLIENTS, seed=1, num_rounds=6, serialise=serialise
        )
        arrays = [a.tobytes() for a in result.arrays.to_numpy_ndarrays()]
        model = {k: v.tobytes() for k, v in strategy.model()[0].items()}
        results.append((arrays, model, strategy.history_, strategy.ledger_.bytes_up))
    assert results[0] == results[1]


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
    from fedkern_flwr.simulations.engines import in_process

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
