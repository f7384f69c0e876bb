"""The engine in process, and what injected faults do to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from refusals import refused, refuses
from zoo import WAYS, Found, fit, quiet

from fedkern_flwr.simulations import (
    DropOut,
    Fault,
    FaultPlan,
    SimulationStep,
    Transcript,
    simulate,
    simulate_all,
)
from fedkern_flwr.strategies import POFMKL, VMKOFL

PHASE, ROUNDS, CLIENTS, WAY = "online-personal", 12, 4, "pof-mkl"
IN_TIME = 0.06  # seconds that a lost reply is waited for


def run(*faults: Any, name: str = WAY, timeout: float | None = None, **more: Any) -> Found:
    start = {} if timeout is None else {"timeout": timeout}
    plan = FaultPlan(faults) if faults else more.pop("faults", None)
    return fit(name, faults=plan, transcript=Transcript(), start=start, **more)


def outcome(found: Found) -> tuple[Any, ...]:
    theta = found.strategy.model()[0]["theta"].tobytes()
    return theta, found.strategy.history_, found.strategy.metrics_


def learned(found: Found, partition: int) -> int:
    """Return how many samples a client had learned from when it replied last."""
    assert found.transcript is not None
    replies = [*found.transcript.entries(phase=PHASE, direction="up")]
    return int([e for e in replies if e.node == 1000 + partition][-1].scalars["total_samples"])


def stock(sites: Any) -> ClientApp:
    """Return the app that Flower itself makes of clients."""
    return ClientApp(client_fn=lambda context: sites.client_fn(context).to_client())


@pytest.mark.promise("engine-as-flower")
@pytest.mark.parametrize("name", [WAY, "fed-cg", "kernel-pca"])
def test_clients_reply_as_on_the_way_of_flower(name: str) -> None:
    """Which takes each message apart into records, lists and arrays, and costs a third of a run."""
    replies = []
    for wrap in (False, True):
        sites, record = WAYS[name].sites(), Transcript()
        clients, strategy = stock(sites) if wrap else sites.client_fn, WAYS[name].make()
        simulate(strategy, clients, len(sites), num_rounds=3, transcript=record)
        secret = {"public_key", "signature", "fingerprint", "nonce", "secret_digests"}
        replies.append(
            [
                (
                    {k: v for k, v in e.scalars.items() if k not in secret and "." not in k},
                    [(a.shape, a.dtype) for a in e.arrays],
                )
                for e in record.entries(direction="up")
            ]
        )
    assert replies[0] == replies[1]
    assert len(replies[0]) >= 3 * len(sites)


def test_an_unknown_node_gets_the_empty_id() -> None:
    grid = WAYS[WAY].sites().grid()
    known, stranger = (grid.create_message(RecordDict(), "train", n, "g") for n in (1000, 5))
    assert known.metadata.group_id == "g"
    assert list(grid.push_messages([known, stranger])) == ["1", ""]


def test_several_strategies_share_the_nodes() -> None:
    steps = [
        SimulationStep(method(kernels=5, features=4), seed=3, start={"num_rounds": 5})
        for method in (POFMKL, VMKOFL)
    ]
    simulate_all(steps, WAYS[WAY].sites().client_fn, CLIENTS)
    alone = VMKOFL(kernels=5, features=4)
    simulate(alone, WAYS[WAY].sites().client_fn, CLIENTS, seed=3, num_rounds=5)
    together: Any = steps[1].strategy
    assert alone.history_ == together.history_


def test_wrong_options_of_a_simulation_are_refused() -> None:
    sites = WAYS[WAY].sites()
    with refused("FK-OPTION-CHOICE"):
        simulate(POFMKL(), sites.client_fn, 3, engine="cloud")  # type: ignore[arg-type]
    refuses("FK-OPTION-RANGE", simulate, POFMKL(), sites.client_fn, 0)


# -- faults


@pytest.mark.parametrize(("fault", "reason"), [
    (Fault("lost request"), "timed out after 0.06 s"),
    (Fault("lost reply"), "timed out after 0.06 s"), (Fault("vanished"), "unreachable"),
    (Fault("error"), "raised InjectedError"),
    (Fault("delay", seconds=5.0), "timed out after 0.06 s"),
])  # fmt: skip
def test_a_faulty_round_is_counted_and_the_run_goes_on(fault: Fault, reason: str) -> None:
    found = run((1, PHASE, 4, fault), timeout=IN_TIME)
    assert found.strategy.ledger_.failures == {"1": {reason: 1}}
    assert [m["survivors"] for m in found.strategy.history_] == [4, 4, 4, 3] + [4] * 8
    assert found.strategy.left_out_ == []
    worked = fault.kind in ("lost reply", "vanished", "delay")  # the client learned all the same
    assert learned(found, 1) == ROUNDS - (not worked)
    assert outcome(found) != outcome(quiet(WAY))


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


@pytest.mark.parametrize(("name", "phase", "fault"), [
    (WAY, PHASE, bad_gradient(np.inf)),
    (WAY, PHASE, with_arrays(lambda k, g: [np.full_like(k, 99), g])),
    ("vm-kofl", "online-shared", with_arrays(lambda g, losses: [g, losses[:-1]])),
    (WAY, "online-evaluate", Fault("tamper", change=spoil)),
])  # fmt: skip
def test_an_impossible_reply_is_counted_and_like_none(name: str, phase: str, fault: Fault) -> None:
    number = None if phase == "online-evaluate" else 5
    bad, missing = (run((2, phase, number, f), name=name) for f in (fault, Fault("vanished")))
    ((partition, found),) = bad.strategy.ledger_.failures.items()
    ((text, count),) = found.items()
    assert (partition, count) == ("2", 1)
    assert text.startswith("invalid reply")
    assert np.isfinite(bad.strategy.model()[0]["theta"]).all()
    assert outcome(bad) == outcome(missing)


def test_a_client_that_fails_too_many_rounds_in_a_row_is_left_out() -> None:
    strategy = run(*[(1, PHASE, t, Fault("error")) for t in (2, 3, 4)], max_missed=3).strategy
    assert strategy.left_out_ == [1]
    assert [m["survivors"] for m in strategy.history_] == [4] + [3] * 11
    assert strategy.ledger_.failures == {"1": {"raised InjectedError": 3}}
    faults = [(1, PHASE, t, Fault("error")) for t in (2, 3, 5, 6)]
    assert run(*faults, max_missed=3).strategy.left_out_ == []
    assert run((1, PHASE, 2, Fault("error")), max_missed=1).strategy.left_out_ == [1]


def test_faults_in_many_rounds_are_all_counted() -> None:
    """Ids of lost and of refused requests must not clash."""
    faults = [(k, PHASE, t, Fault("error")) for t in (2, 3) for k in (0, 1)]
    faults += [(k, PHASE, 4, Fault("lost request")) for k in (0, 1)]
    strategy = run(*faults, timeout=IN_TIME, max_missed=9).strategy
    expected = {"raised InjectedError": 2, "timed out after 0.06 s": 1}
    assert strategy.ledger_.failures == {"0": expected, "1": expected}


def test_too_few_clients_stop_the_run() -> None:
    faults = [(k, PHASE, 3, Fault("error")) for k in (0, 1, 2)]
    refuses("FK-PARTIES-LOST", run, *faults, min_clients=2)
    refuses("FK-PARTIES-LOST", run, (None, PHASE, 5, bad_gradient(np.nan)))


def test_drop_outs_are_seeded_and_equal_to_missing_replies() -> None:
    first, second = (run(faults=DropOut(0.3, seed=4)) for _ in range(2))
    assert outcome(first) == outcome(second)
    assert outcome(first) != outcome(run(faults=DropOut(0.3, seed=5)))
    assert first.transcript is not None
    came = {
        (e.node - 1000, int(e.group)) for e in first.transcript.entries(phase=PHASE, direction="up")
    }
    places = [(k, t) for k in range(CLIENTS) for t in range(1, ROUNDS + 1)]
    gone = [(k, PHASE, t, Fault("lost reply")) for k, t in places if (k, t) not in came]
    assert 5 <= len(gone) <= 24
    assert outcome(run(*gone, timeout=IN_TIME)) == outcome(first)
    survivors = [
        CLIENTS - sum(t == m["round"] for _, _, t, _ in gone) for m in first.strategy.history_
    ]
    assert [m["survivors"] for m in first.strategy.history_] == survivors
    refuses("FK-OPTION-RANGE", DropOut, 1.0)
