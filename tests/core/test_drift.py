"""Drift: where the error of a run's messages rises, and that it is not found elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkern_flwr.online.drift import message_errors, recent_errors, rises


def told(errors: np.ndarray, samples: int = 1) -> list[dict[str, Any]]:
    """The history of a run in which each message takes so many samples."""
    count = np.arange(1, len(errors) + 1)
    so_far = (np.cumsum(errors) / count).tolist()
    return [{"round": samples * n, "mse": mse} for n, mse in enumerate(so_far, 1)]


def test_the_error_of_late_shows_a_drift_that_the_error_so_far_hides():
    errors = np.where(np.arange(100) < 80, 0.01, 0.05)
    so_far = np.cumsum(errors) / np.arange(1, 101)
    history = [{"round": t, "mse": so_far[t - 1]} for t in range(5, 101, 5)]
    recent = dict(recent_errors(history))
    assert list(recent) == list(range(10, 101, 5))
    for t, mse in recent.items():
        assert mse == pytest.approx(errors[t - 10 : t].mean())
    assert recent[100] > 2.5 * so_far[-1]
    assert recent_errors([{"round": 5, "mse": None}, {"round": 10, "mse": 0.1}]) == [(10, 0.1)]


def noisy(seed: int, messages: int, clients: int = 20, start: float = 20.0) -> np.ndarray:
    """Errors of a learner that gets better, sums of squares over so many clients."""
    rng, n = np.random.default_rng(seed), np.arange(messages)
    return 0.01 * (1.0 + start / (1.0 + n)) * rng.chisquare(clients, messages) / clients


@pytest.mark.parametrize("messages", [12, 60, 300, 3000])
def test_learning_and_noise_are_no_drift(messages: int) -> None:
    assert not any(rises(told(noisy(seed, messages))) for seed in range(20))


@pytest.mark.parametrize(("messages", "samples"), [(100, 1), (100, 7), (300, 1), (2500, 3)])
def test_an_error_that_trebles_is_found_where_it_does(messages: int, samples: int) -> None:
    """In any unit, and once; two of them are two."""
    at = messages // 2
    for seed in range(10):
        errors = noisy(seed, messages)
        errors[at:] *= 3.0
        found = rises(told(errors, samples))
        assert found == rises(told(1e-6 * errors, samples))
        assert len(found) == 1
        assert found[0] == pytest.approx(at * samples, rel=0.05)
    errors[at + at // 2 :] *= 4.0
    assert len(rises(told(errors, samples))) == 2


def test_messages_that_told_nothing_count_to_the_next() -> None:
    history = told(np.array([1.0, 3.0, 2.0, 4.0]), 5)
    history[1]["mse"] = None
    history[0]["mse"] = None
    t, errors = message_errors(history)
    np.testing.assert_allclose(t, [15, 20])
    np.testing.assert_allclose(errors, [2.0, 4.0])
    assert [len(part) for part in message_errors([{"round": 5, "mse": None}])] == [0, 0]
    assert rises([]) == []
