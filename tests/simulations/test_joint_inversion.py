"""Sums of whole gradients give away all rows; sums with fewer numbers than unknowns do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.attacks.joint_inversion import Release, invert_release
from fedkern_flwr.simulations.attacks.transcripts import observe
from fedkern_flwr.simulations.audits.evidence import Sheet, Subject
from fedkern_flwr.simulations.audits.released_sums import SERVER, keep_sums, release_of
from fedkern_flwr.simulations.families.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

FOUND = 1e-4


def sums(clients: int, rounds: int, **options: Any) -> list[tuple[Release, np.ndarray]]:
    """Return each round's sum and the rows and labels behind it, of a secure run."""
    streams = prepare(DataSettings("nyc-weather", clients=clients, rounds=rounds))
    strategy, transcript = POFMKL(secure=True, seed=0, **options), Transcript()
    strategy.centre = 0.0  # as in release 0.1
    released: list[Any] = []
    keep_sums(strategy, released)
    simulate(strategy, streams.clients, clients, transcript=transcript, num_rounds=rounds)
    requests = {seen.round: seen.request for seen in observe(transcript)}
    found = []
    for number, total in released:
        asked = requests[number]
        taken = slice(asked.step, asked.step + asked.samples)
        rows = [np.column_stack([s.x[taken], s.y[taken]]) for s in streams.clients.shards]
        true = np.concatenate(rows)
        found.append((release_of(asked, total, len(true), true.shape[1] - 1), true))
    return found


def recovered(release: Release, true: np.ndarray, **effort: Any) -> float:
    """Return the share of rows, with their labels, that the attack computes."""
    found = invert_release(release, 0, **effort)
    computed = np.column_stack([found.x, found.y + 0.5 - release.middle])
    share = float((cdist(true, computed).min(axis=1) < FOUND).mean())
    assert found.consistent == (share == 1.0)
    return share


@pytest.mark.parametrize("step_size", ["adaptive", "paper"])
def test_whole_gradients_of_ten_samples_give_all_of_them_away(step_size):
    """What release 0.1 released: a first round, a later one and the last."""
    whole = {"samples_per_round": 1, "frequencies_per_round": "all", "step_size": step_size}
    of_rounds = sums(10, 5, kernels_per_round=51, **whole)
    share = {k: recovered(*of_rounds[k], starts=24) for k in (0, 2, 4)}
    assert all(found >= 0.95 for found in share.values()), share


@pytest.mark.parametrize("clients", [2, 5])
def test_the_last_message_is_no_exception(clients):
    """Five samples of each client in messages of two: the last has three of each."""
    whole = {"samples_per_round": 2, "frequencies_per_round": "all"}
    of_rounds = sums(clients, 5, **whole)
    assert recovered(*of_rounds[-1], starts=24) >= 0.95


def test_fewer_numbers_than_unknowns_give_nothing_away():
    """The same sums and the same effort, but a part of the numbers."""
    rng = np.random.default_rng(0)
    sheet, subject = Sheet(0), Subject("joint inversion", SERVER, "samples of a sum")
    of_rounds = sums(10, 12, samples_per_round=1, frequencies_per_round="all")
    everything = np.concatenate([true for _, true in of_rounds])
    for release, true in of_rounds[2:5]:
        kept = rng.permutation(release.total.size) < release.unknowns * 0.9
        few = np.where(kept.reshape(release.total.shape), release.total, np.nan)
        part = replace(release, total=few)
        assert part.numbers < part.unknowns
        found = invert_release(part, 0, starts=2)
        assert not found.consistent
        computed = np.column_stack([found.x, found.y + 0.5 - release.middle])
        assert (cdist(true, computed).min(axis=1) > FOUND).all()
        others = everything[(cdist(everything, true) > 0.0).all(axis=1)]
        sheet.members(subject, computed, true, others)
    assert sheet.evidence[subject].p_value > 1e-4
