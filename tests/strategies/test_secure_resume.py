"""A secure run that breaks off repeats no sum: two sums of the same values show a client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import PowerCutError

from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.online.messages import STATISTICS
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Fault, FaultPlan, Transcript
from fedkern_flwr.strategies import POFMKL, PerFedAvg

Make = Callable[..., Any]

CLIENTS, ROUNDS, CHECKPOINT, CUT = 5, 8, 3, 5


KERNELS: dict[str, Any] = {
    "kernels": 5,
    "features": 4,
    "seed": 1,
    "samples_per_round": 1,
    "frequencies_per_round": "all",
}


class Watching(POFMKL):
    """A semi-honest server that keeps every total it is shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**KERNELS, secure=True, threshold=4, **options)
        self.totals: dict[int, np.ndarray] = {}

    def step(self, total: np.ndarray, answers: int) -> Any:
        self.totals[len(self.history_) + 1] = total.copy()
        return super().step(total, answers)


def two_lives(streams: Any, folder: Path, **more: Any) -> tuple[Watching, Watching]:
    """Cut a run after round 5, resume it from the checkpoint of round 3 with client 3 away."""

    def cut(done: int, total: int, metrics: Any) -> None:
        if done == CUT:
            raise PowerCutError

    options: dict[str, Any] = {"checkpoint": folder / "c.npz", "checkpoint_every": CHECKPOINT}
    first = Watching(**options)
    first.on_round = cut
    with pytest.raises(PowerCutError):
        simulate(first, streams.client_fn, CLIENTS, num_rounds=ROUNDS)
    second = Watching(**options, resume=True)
    gone = FaultPlan([(3, "online-personal", 4, Fault("vanished"))])
    simulate(second, streams.client_fn, CLIENTS, num_rounds=ROUNDS, faults=gone, **more)
    return first, second


def vector_of(client: int, number: int, streams: Any) -> np.ndarray:
    """What the client contributed, read from a plain run."""
    plain, record = POFMKL(**KERNELS, secure=False), Transcript()
    simulate(plain, streams.client_fn, CLIENTS, num_rounds=ROUNDS, transcript=record)
    (entry,) = (
        e
        for e in record.entries(phase="online-personal", direction="up")
        if e.node == 1000 + client and e.scalars["round"] == number
    )
    return entry.arrays[1].reshape(-1).astype(float)


def test_rounds_that_were_answered_are_lost_not_repeated(
    make_streams: Make, tmp_path: Path
) -> None:
    streams, record = make_streams(CLIENTS, ROUNDS, state_dir=tmp_path / "state"), Transcript()
    first, second = two_lives(streams, tmp_path, transcript=record)
    assert sorted(first.totals) == [1, 2, 3, 4, 5]
    assert sorted(second.totals) == [6, 7, 8]
    assert [row["survivors"] for row in second.history_] == [5, 5, 5, 0, 0, 5, 5, 5]
    asked = {e.scalars["round"] for e in record.entries(phase="online-personal")}
    assert asked == {6, 7, 8}
    assert second.metrics_["mse"] > 0


def test_without_that_rule_the_difference_of_two_sums_is_one_clients_vector(
    make_streams: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: nodes that do not note what they have answered."""
    monkeypatch.setattr(PhaseClient, "note_answered", lambda *a, **k: None)
    streams = make_streams(CLIENTS, ROUNDS, state_dir=tmp_path / "state")
    first, second = two_lives(streams, tmp_path)
    difference = first.totals[4] - second.totals[4]
    assert difference.size == 5 * 8
    target = vector_of(3, 4, make_streams(CLIENTS, ROUNDS))
    np.testing.assert_allclose(difference, target, atol=1e-6)
    assert STATISTICS == 6


@pytest.mark.parametrize(
    "make", [Watching, lambda **o: PerFedAvg(secure=True, seed=1, samples_per_round=1, **o)]
)
def test_held_out_rows_are_evaluated_once(make: Make, make_streams: Make, tmp_path: Path) -> None:
    streams = make_streams(CLIENTS, ROUNDS + 3, test_rows=3, state_dir=tmp_path / "state")
    first = make(checkpoint=tmp_path / "c.npz")
    simulate(first, streams.client_fn, CLIENTS, num_rounds=ROUNDS)
    assert first.metrics_["test_mse"] > 0
    second = make(checkpoint=tmp_path / "c.npz", resume=True)
    simulate(second, streams.client_fn, CLIENTS, num_rounds=ROUNDS)
    assert "test_mse" not in second.metrics_
    assert second.metrics_["mse"] == first.metrics_["mse"]
    assert second.ledger_.by_phase["online-evaluate"] == 0


def test_a_run_that_broke_off_before_anything_was_answered_goes_on_as_if_nothing_happened(
    make_streams: Make, tmp_path: Path
) -> None:
    """Cut right after the checkpoint: nothing is lost, and the end is that of an unbroken run."""

    def cut(done: int, total: int, metrics: Any) -> None:
        if done == CHECKPOINT:
            raise PowerCutError

    whole = Watching()
    simulate(whole, make_streams(CLIENTS, ROUNDS).client_fn, CLIENTS, num_rounds=ROUNDS)
    streams = make_streams(CLIENTS, ROUNDS, state_dir=tmp_path / "state")
    options: dict[str, Any] = {"checkpoint": tmp_path / "c.npz", "checkpoint_every": CHECKPOINT}
    first, second = Watching(**options), Watching(**options, resume=True)
    first.on_round = cut
    with pytest.raises(PowerCutError):
        simulate(first, streams.client_fn, CLIENTS, num_rounds=ROUNDS)
    simulate(second, streams.client_fn, CLIENTS, num_rounds=ROUNDS)
    np.testing.assert_array_equal(second.theta_, whole.theta_)
    assert second.metrics_["mse"] == pytest.approx(whole.metrics_["mse"], rel=1e-9)
    assert second.metrics_["regret_std"] == pytest.approx(whole.metrics_["regret_std"], rel=1e-6)
