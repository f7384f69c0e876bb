"""Sums of whole gradients give away all rows; sums with fewer numbers than unknowns do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.lab.attacks.joint_inversion import Release, invert_release
from fedkern_flwr.simulations.lab.attacks.sum_membership import sum_membership
from fedkern_flwr.simulations.lab.attacks.transcripts import observe
from fedkern_flwr.simulations.lab.audits.evidence import Sheet, Subject
from fedkern_flwr.simulations.lab.audits.released_sums import keep_sums, release_of, returned
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL


def sums(
    clients: int, rounds: int, centre: float | None = None, **options: Any
) -> list[tuple[Release, np.ndarray]]:
    """Return each round's sum and the rows and labels behind it, of a secure run."""
    streams = prepare(DataSettings("nyc-weather", clients=clients, rounds=rounds))
    strategy, transcript = POFMKL(secure=True, seed=0, **options), Transcript()
    strategy.centre = strategy.centre if centre is None else centre
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
    with threadpool_limits(1, "blas"):  # small matrices, too small to share
        found = invert_release(release, 0, **effort)
    computed = np.column_stack([found.x, found.y + 0.5 - release.middle])
    share = float(returned(computed, true).mean())
    assert found.consistent == (share == 1.0)
    return share


@pytest.mark.parametrize(
    ("step_size", "centre"), [("adaptive", 0.0), ("adaptive", 0.5), ("paper", 0.0)]
)
def test_whole_gradients_of_ten_samples_give_all_of_them_away(step_size, centre):
    """A first round and the last; release 0.1 learned labels around 0."""
    whole = {"samples_per_round": 1, "frequencies_per_round": "all", "step_size": step_size}
    of_rounds = sums(10, 5, centre, kernels_per_round=51, **whole)
    share = {k: recovered(*of_rounds[k]) for k in (0, 4)}
    assert all(found >= 0.95 for found in share.values()), share


@pytest.mark.parametrize("clients", [2, 5])
def test_the_last_message_is_no_exception(clients):
    """Five samples of each client in messages of two: the last has three of each."""
    whole = {"samples_per_round": 2, "frequencies_per_round": "all"}
    of_rounds = sums(clients, 5, **whole)
    assert recovered(*of_rounds[-1]) >= 0.95


def few(release: Release, rng: np.random.Generator, share: float = 0.9) -> Release:
    """Return a part of the numbers of a release, as many as its unknowns or fewer."""
    kept = rng.permutation(release.total.size) < release.unknowns * share
    part = np.where(kept.reshape(release.total.shape), release.total, np.nan)
    return replace(release, total=part)


def test_fewer_numbers_than_unknowns_return_no_row():
    """The same sums and the same effort, but a part of the numbers."""
    rng = np.random.default_rng(0)
    for release, true in sums(10, 12, samples_per_round=1, frequencies_per_round="all")[2:4]:
        part = few(release, rng)
        assert part.numbers < part.unknowns
        assert recovered(part, true) == 0.0


def test_fewer_numbers_than_unknowns_tell_whether_a_row_is_behind_them():
    """What the rule of counting does not prevent; of rows that are not there nothing is told."""
    rng, sheet = np.random.default_rng(0), Sheet(0)
    here, absent = (Subject("membership in a sum", "server", w) for w in ("in it", "not in it"))
    of_rounds = sums(10, 18, samples_per_round=1, frequencies_per_round="all")
    everything = np.concatenate([true for _, true in of_rounds])
    for number, (release, true) in enumerate(of_rounds):
        others = np.delete(everything, np.s_[10 * number : 10 * number + 10], axis=0)
        known, decoys, candidates = np.split(rng.permutation(others), [70, 160])
        middle = np.append(np.zeros(true.shape[1] - 1), 0.5 - release.middle)
        for subject, rows in ((here, true), (absent, candidates)):
            drawn = decoys[rng.permutation(len(decoys))[: 9 * len(rows)]].reshape(len(rows), 9, -1)
            among = np.concatenate([rows[:, None], drawn], axis=1) - middle
            scores = sum_membership(few(release, rng), known - middle, among.reshape(-1, 13))
            sheet.guesses(subject, -scores.reshape(len(rows), 10))
    assert np.mean(sheet.evidence[here].hits) > 0.25
    low, high = sheet.evidence[absent].interval
    assert low <= np.mean(sheet.evidence[absent].hits) <= high


def test_only_rows_that_are_right_in_all_columns_count_as_returned():
    true = np.array([[0.1, 0.2, 0.5], [0.3, 0.1, 0.9]])
    computed = true[::-1] + np.array([[9e-4, -9e-4, 9e-4], [0.0, 0.0, 1.1e-3]])
    assert returned(computed, true).tolist() == [False, True]
