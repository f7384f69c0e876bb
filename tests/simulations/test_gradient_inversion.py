"""The server against POF-MKL's clients: plain updates give every sample away, masked ones none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.online.messages import SUM_BOUND
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.simulations.lab.attacks.gradient_inversion import Inversion, invert_gradient
from fedkern_flwr.simulations.lab.attacks.transcripts import (
    Observation,
    invert,
    invert_sum,
    observe,
)
from fedkern_flwr.simulations.methods.online_data import DataSettings, prepare
from fedkern_flwr.strategies import POFMKL

DATA = os.environ.get("FEDKERN_DATA")
NORMALS = 6.0  # standard deviations: masks are not seeded, so chance must not fail a test


class Watched(POFMKL):
    """Keeps the sum of each round, as the server knows it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(samples_per_round=1, frequencies_per_round="all", **options)
        self.totals: list[np.ndarray] = []

    def step(self, total: np.ndarray, answers: int) -> Any:
        dense = np.zeros_like(self.theta_)
        chosen = self._chosen if self.subset == "shared" else np.arange(self.kernels)
        dense[chosen] = total.reshape(len(chosen), -1)
        self.totals.append(dense)
        return super().step(total, answers)


def run(
    rows: Any, rounds: int, *, client_fn: Any = None, **options: Any
) -> tuple[Watched, list[Observation]]:
    """Run POF-MKL on streams (or shards); return the strategy and what the server saw."""
    transcript = Transcript()
    strategy = Watched(**{"secure": False, "precision": "float64", **options})
    simulate(
        strategy,
        client_fn or rows.client_fn,
        len(rows.x),
        transcript=transcript,
        num_rounds=rounds,
    )
    seen = list(observe(transcript))
    assert len(seen) == len(rows.x) * rounds
    return strategy, seen


def truth(rows: Any, seen: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples behind the observations, shapes (n, d) and (n,)."""
    x = np.array([rows.x[s.partition][s.round - 1] for s in seen])
    return x, np.array([rows.y[s.partition][s.round - 1] for s in seen])


def errors(
    rows: Any, seen: Sequence[Observation], found: Sequence[Inversion | None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return |x_hat - x| and |y_hat - y| of each, infinite where nothing was found."""
    x, y = truth(rows, seen)
    guess = [(f.x, f.y) if f else (np.full(x.shape[1], np.inf), np.inf) for f in found]
    by_x = np.array([np.linalg.norm(g - row) for (g, _), row in zip(guess, x, strict=True)])
    return by_x, np.abs(np.array([label for _, label in guess]) - y)


def all_found(found: Sequence[Inversion | None]) -> list[Inversion]:
    """Return the solutions; each is one, and the server can tell."""
    assert all(f is not None and f.consistent for f in found)
    return [f for f in found if f is not None]


# -- plain updates


@pytest.mark.parametrize("dimension", [4, 15])
@pytest.mark.parametrize("step_size", ["adaptive", "paper"])
def test_every_sample_of_a_plain_run_is_recovered(make_streams, step_size, dimension):
    """100 % of the rounds, in bins even those of a single narrow kernel."""
    streams = make_streams(3, 9, dimension)
    strategy, seen = run(streams, 9, step_size=step_size)
    assert strategy.selection == {"adaptive": "subset", "paper": "bins"}[step_size]
    assert all(s.request.theta.any() for s in seen if s.round > 1)
    if step_size == "paper":
        widest = [np.frombuffer(s.request.bandwidths)[s.kernels].max() for s in seen]
        assert min(widest) < 0.1
    found = [invert(s) for s in seen]
    by_x, by_y = errors(streams, seen, all_found(found))
    assert by_x.max() < 1e-9
    assert by_y.max() < 1e-9


@pytest.mark.parametrize("step_size", ["adaptive", "paper"])
def test_single_precision_recovers_them_to_single_precision(make_streams, step_size):
    streams = make_streams(3, 16)
    _, seen = run(streams, 16, step_size=step_size, precision="float32")
    assert all(s.gradient.dtype == np.float32 for s in seen)
    by_x, by_y = errors(streams, seen, all_found([invert(s) for s in seen]))
    assert np.median(by_x) < 1e-7
    assert np.median(by_y) < 1e-7
    assert by_x.max() < 2e-6
    assert by_y.max() < 2e-6


def test_one_kernel_a_message_is_enough(make_streams):
    """Setting (1, 100) of the paper: no kernel is too narrow, its 100 phases fix four numbers."""
    streams = make_streams(3, 12)
    _, seen = run(streams, 12, kernels_per_round=1, features=100)
    seen = [s for s in seen if s.gradient.any()]
    by_x, by_y = errors(streams, seen, all_found([invert(s) for s in seen]))
    assert by_x.max() < 1e-9
    assert by_y.max() < 1e-9


@pytest.mark.parametrize("selection", ["bins", "subset"])
def test_unknown_probabilities_are_recovered_too(make_streams, selection):
    """With exploration below 1 the client's private weights enter p, and stand in its gradient."""
    streams = make_streams(3, 12)
    _, seen = run(streams, 12, exploration=0.3, selection=selection)
    by_x, by_y = errors(streams, seen, all_found([invert(s) for s in seen]))
    assert by_x.max() < 1e-6
    assert by_y.max() < 1e-6


def test_without_penalty_only_the_label_can_hide_behind_unknown_probabilities(make_streams):
    streams = make_streams(2, 6)
    _, seen = run(streams, 6, exploration=0.3, regularization=0.0)
    found = [f for s, f in zip(seen, map(invert, seen), strict=True) if s.round > 1]
    later = [s for s in seen if s.round > 1]
    by_x, _ = errors(streams, later, all_found(found))
    assert by_x.max() < 1e-9
    assert all(np.isnan(f.y) for f in found)


def test_replies_are_observed_in_the_order_in_which_they_came(make_streams):
    streams = make_streams(2, 3)
    _, seen = run(streams, 3, precision="float32", kernels_per_round=25)
    assert [(s.partition, s.round) for s in seen] == [(k, t) for t in (1, 2, 3) for k in (0, 1)]
    assert not any(s.masked for s in seen)


# -- what does not determine a sample


def test_the_wrong_frequencies_recover_nothing(make_streams):
    streams = make_streams(3, 12)
    _, seen = run(streams, 12)
    wrong = [replace(s, request=replace(s.request, seed=1)) for s in seen]
    found = [invert(s) for s in wrong]
    assert not any(f is not None and f.consistent for f in found)
    by_x, _ = errors(streams, seen, found)
    assert by_x.min() > 1e-2
    assert np.median(by_x) > 0.9 * np.median(chance(streams, seen)[0])


def test_too_few_frequencies_or_a_zero_gradient_determine_nothing():
    rng = np.random.default_rng(0)
    rho = rng.standard_normal((1, 2, 4))
    theta = np.zeros((1, 4))
    fixed = {"probability": 1.0, "regularization": 1e-3}
    assert invert_gradient(rng.standard_normal((1, 4)), theta, rho, **fixed) is None
    assert invert_gradient(theta, theta, rho, **fixed) is None


def test_two_samples_in_a_message_defeat_this_attack(make_streams):
    """Not every attack: the sum of two gradients has more numbers than two samples."""
    streams, transcript = make_streams(2, 8), Transcript()
    strategy = POFMKL(secure=False, precision="float64", samples_per_round=2)
    simulate(strategy, streams.client_fn, 2, transcript=transcript, num_rounds=8)
    found = [invert(seen) for seen in observe(transcript)]
    assert len(found) == 8
    assert not any(f is not None and f.consistent for f in found)


# -- sums over a cohort: what secure sums release


@pytest.mark.parametrize("clients", [2, 3])
def test_a_sum_in_which_all_clients_send_all_kernels_defeats_this_attack(make_streams, clients):
    """A stronger solver inverts sums of up to three samples; here nothing is left to try."""
    streams = make_streams(clients, 8)
    strategy, seen = run(streams, 8, kernels_per_round=51)
    requests = {s.round: s.request for s in seen}
    for number, total in enumerate(strategy.totals, start=1):
        assert not invert_sum(total, requests[number], 4)
        alone = replace(seen[0], request=requests[number], kernels=np.arange(51), gradient=total)
        guess = invert(alone)
        assert guess is not None
        assert not guess.consistent
        rows = np.array([x[number - 1] for x in streams.x])
        # a client whose label is next to the centre hides little of the other's sample
        assert np.linalg.norm(rows - guess.x, axis=1).min() > 1e-4


@pytest.mark.parametrize(
    ("clients", "options", "least", "most"),
    [
        (2, {"kernels_per_round": 25}, 0.99, 1.0),
        (5, {"kernels_per_round": 25}, 0.6, 0.95),
        (16, {"kernels_per_round": 25}, 0.0, 0.01),
        (12, {"kernels_per_round": 1, "features": 40}, 0.6, 0.95),
        (2, {}, 0.0, 0.0),
        (5, {}, 0.0, 0.0),
        (12, {"kernels_per_round": 1, "features": 40, "subset": "shared"}, 0.0, 0.0),
    ],
    ids=[
        "2 clients, 25 of 51",
        "5 clients, 25 of 51",
        "16 clients, 25 of 51",
        "12 clients, one kernel each",
        "2 clients, the default",
        "5 clients, the default",
        "12 clients, one shared kernel",
    ],
)
def test_a_kernel_that_one_client_chose_stands_alone_in_the_secure_sum(
    make_streams, clients, options, least, most
):
    """Why clients of a secure run send all kernels by default: a sparse sum is one of few."""
    rounds = 4
    streams = make_streams(clients, rounds)
    strategy, seen = run(streams, rounds, secure=True, **options)
    requests = {s.round: s.request for s in seen}
    given_away = 0
    for number, total in enumerate(strategy.totals, start=1):
        rows = np.array([x[number - 1] for x in streams.x])
        for found in invert_sum(total, requests[number], 4):
            assert np.linalg.norm(rows - found.x, axis=1).min() < 1e-6
            given_away += 1
    assert least <= given_away / len(seen) <= most


def test_sums_are_attacked_only_where_the_probability_is_public(make_streams):
    streams = make_streams(2, 2)
    strategy, seen = run(streams, 2, exploration=0.5)
    with pytest.raises(OptionError, match="exploration"):
        invert_sum(strategy.totals[1], seen[-1].request, 4)


# -- masked updates


def chance(rows: Any, seen: Sequence[Observation]) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of one who knows the law of the rows but saw no message."""
    x, y = truth(rows, seen)
    everything = np.concatenate([np.asarray(part) for part in rows.x])
    labels = np.concatenate([np.asarray(part) for part in rows.y])
    return np.linalg.norm(x - everything.mean(axis=0), axis=1), np.abs(y - np.median(labels))


def assert_no_better_than_chance(rows: Any, seen: Sequence[Observation]) -> None:
    """Median error, best case, and no correlation of any coordinate with the truth."""
    assert all(s.masked and len(s.kernels) == 51 for s in seen)
    found = [invert(s) for s in seen]
    assert all(f is not None for f in found)
    assert not any(f.consistent for f in found)
    x, y = truth(rows, seen)
    guesses = np.array([f.x for f in found])
    labels = np.clip([f.y for f in found], 0.0, 1.0)
    by_x = np.linalg.norm(guesses - x, axis=1)
    chance_x, chance_y = chance(rows, seen)
    assert np.median(by_x) >= 0.9 * np.median(chance_x)
    assert by_x.min() > 1e-2
    assert np.median(np.abs(labels - y)) >= 0.9 * np.median(chance_y)
    for guess, true in zip(guesses.T, x.T, strict=True):
        assert abs(np.corrcoef(guess, true)[0, 1]) < NORMALS / np.sqrt(len(seen))


@pytest.mark.parametrize("step_size", ["adaptive", "paper"])
def test_masked_updates_tell_no_more_than_chance(make_streams, step_size):
    streams = make_streams(4, 30)
    _, seen = run(streams, 30, step_size=step_size, secure=True)
    assert_no_better_than_chance(streams, seen)


def test_without_its_mask_the_same_vector_gives_the_sample_away(make_streams):
    """Positive control: it is the mask that protects, not the layout or the fixed point."""
    streams = make_streams(3, 10)
    _, seen = run(streams, 10)
    encoding, dense = Encoding.fixed_point(SUM_BOUND), []
    for s in seen:
        vector = np.zeros(s.request.theta.shape)
        vector[s.kernels] = s.gradient
        ring = encoding.encode(vector.ravel(), 3, name="update")
        decoded = encoding.decode(ring, 3).reshape(vector.shape)
        kernels = np.flatnonzero(decoded.any(axis=1))
        dense.append(replace(s, kernels=kernels, gradient=decoded[kernels]))
    by_x, by_y = errors(streams, seen, all_found([invert(s) for s in dense]))
    assert by_x.max() < 1e-6
    assert by_y.max() < 1e-6


def test_a_transcript_without_the_uploads_is_refused(make_streams):
    """Otherwise an audit would find nothing and say so."""
    streams, transcript = make_streams(3, 2), Transcript()
    simulate(
        POFMKL(secure=True, samples_per_round=1),
        streams.client_fn,
        3,
        transcript=transcript,
        num_rounds=2,
    )
    for way, message in transcript._messages:
        scalars = next(iter(message.content.config_records.values()))
        if way == "up" and scalars["phase"] == "online-masked":
            del scalars["sections"]
            next(iter(message.content.array_records.values())).clear()
    with pytest.raises(ProtocolError, match="a reply without its masked vectors"):
        list(observe(transcript))


# -- real data


class Shards:
    """Streams of a prepared data set."""

    def __init__(self, prepared: Any) -> None:
        self.client_fn = prepared.clients
        self.x = [shard.x for shard in prepared.clients.shards]
        self.y = [shard.y for shard in prepared.clients.shards]


@pytest.mark.skipif(not DATA, reason="FEDKERN_DATA is not set")
def test_naval_rows_are_read_off_plain_updates_and_not_off_masked_ones():
    path = str(Path(str(DATA)) / "naval.npz")
    shards = Shards(prepare(DataSettings(path, target="0", clients=23, rounds=4)))
    for step_size, precision in (("adaptive", "float32"), ("paper", "float64")):
        _, seen = run(shards, 4, step_size=step_size, precision=precision)
        silent = [s for s in seen if not s.gradient.any()]  # y = f = 0 before theta has moved
        assert len(silent) < 0.05 * len(seen)
        seen = [s for s in seen if s.gradient.any()]
        by_x, by_y = errors(shards, seen, all_found([invert(s) for s in seen]))
        tolerance = {"float32": 5e-6, "float64": 1e-9}[precision]
        assert by_x.max() < tolerance
        assert by_y.max() < tolerance
    _, seen = run(shards, 4, secure=True)
    assert_no_better_than_chance(shards, seen)
