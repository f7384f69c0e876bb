"""The references beside the online methods: each prediction is that of all rows before."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("name", ["local ridge", "global ridge", "local RFF", "global RFF"])
def test_recursive_least_squares_is_ridge_regression_of_all_rows_before(script, name):
    streams = script("streams")
    x, y = streams.rows_by_round(streams.generated("Friedman", 0, clients=3, rounds=40))
    found = streams.reference(name, x, y, seed=0)
    z = x if name.endswith("ridge") else streams.random_features(x, 0)
    z = np.concatenate([z, np.ones((*y.shape, 1))], axis=2)
    for t in (0, 1, 17, 39):
        for k in range(3):
            whose = slice(k, k + 1) if name.startswith("local") else slice(None)
            rows, labels = z[:t, whose].reshape(-1, z.shape[2]), y[:t, whose].reshape(-1)
            gram = rows.T @ rows + streams.PENALTY * np.eye(z.shape[2])
            guess = z[t, k] @ np.linalg.solve(gram, rows.T @ labels)
            assert found[t, k] == pytest.approx((guess - y[t, k]) ** 2, rel=1e-7, abs=1e-12)


def test_generated_streams_drift_at_all_clients_at_once(script):
    streams = script("streams")
    for name in streams.GENERATED:
        x, y = streams.rows_by_round(streams.generated(name, 1))
        assert x.shape == (500, 10, 10)
        assert (y.min(), y.max()) == (0.0, 1.0)
        of_all = streams.reference("global ridge", x, y, 0)[400:].mean(axis=0)
        of_new_rows = streams.reference("global ridge", x[250:], y[250:], 0)[150:].mean(axis=0)
        assert (of_new_rows < 0.9 * of_all).all()
