"""Intervals and sets are those of MAPIE, rounded outwards to the bins that are counted."""

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
