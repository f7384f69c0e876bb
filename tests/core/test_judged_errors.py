"""Errors judged: intervals and sets are those of MAPIE; where the error of messages rises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from fedkern_flwr.judging.calibration import Calibration
from fedkern_flwr.judging.counts import Yardstick, error_edges, places_of
from fedkern_flwr.labels import encode_classes
from fedkern_flwr.online.drift import message_errors, recent_errors, rises

LEVELS = (0.5, 0.8, 0.9, 0.95)


class Known(RegressorMixin, BaseEstimator):
    """A regressor that says the first column."""

    def fit(self, x: Any, y: Any) -> Known:
        self.n_features_in_ = x.shape[1]
        return self

    def predict(self, x: Any) -> Any:
        return x[:, 0]


class Sure(ClassifierMixin, BaseEstimator):
    """A classifier that says the probabilities which it is given."""

    def fit(self, x: Any, y: Any) -> Sure:
        self.n_features_in_, self.classes_ = x.shape[1], np.arange(x.shape[1])
        return self

    def predict(self, x: Any) -> Any:
        return np.argmax(x, axis=1)

    def predict_proba(self, x: Any) -> Any:
        return x


def calibrated(yard: Yardstick, outputs: Any, targets: Any, level: float) -> Calibration:
    """Return what is fitted where all rows calibrate."""
    counts = yard.count(outputs, targets, np.ones(len(outputs), bool))
    return Calibration.fit(yard, yard.split(counts)[1][0], level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [25, 40, 501])
def test_an_interval_is_mapie_s_up_to_the_edge_of_its_bin(rows: int, level: float) -> None:
    rng = np.random.default_rng(rows)
    outputs, bound = rng.normal(size=(rows, 1)), 3.0
    y = outputs[:, 0] + 0.3 * rng.standard_t(4, size=rows)
    oracle = SplitConformalRegressor(Known().fit(outputs, y), confidence_level=level)
    _, ends = oracle.conformalize(outputs, y).predict_interval(outputs)
    width = float(np.diff(ends[:, :, 0]).mean()) / 2
    edges = bound * error_edges(64)
    found = calibrated(Yardstick(0, 1, bound, 64), outputs, y[:, None], level).widths[0]
    assert found == edges[np.searchsorted(edges, width)]
    assert np.isfinite(found)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_set_is_mapie_s_with_the_whole_bin_of_its_threshold(classes: int, level: float) -> None:
    """Scores are made of probabilities p such that equal bins of them are equal bins of p."""
    rng, rows, bins = np.random.default_rng(classes), 300, 64
    p = rng.dirichlet(np.full(classes, 0.7), rows)
    true = (p.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    oracle = SplitConformalClassifier(Sure().fit(p, true), confidence_level=level)
    _, sets = oracle.conformalize(p, true).predict_set(p)
    bounded = np.clip(2.0 * p - 1.0, -1.0 + 1e-12, 1.0 - 1e-12)
    scores = bounded / np.sqrt(1.0 - bounded**2)
    least = scores[sets[:, :, 0]].min()  # the threshold: it is that of one of these rows
    outputs = scores[:, 1:] if classes == 2 else scores
    targets = encode_classes(true.astype(float), tuple(map(float, range(classes))), "here")
    yard = Yardstick(classes, outputs.shape[1], bins=bins)
    found = calibrated(yard, outputs, targets, level).sets(outputs)
    np.testing.assert_array_equal(found, places_of(scores, bins) >= places_of(least, bins))
    assert (found >= sets[:, :, 0]).all()


# -- drift: where the error of a run's messages rises, and that it is not found elsewhere


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
