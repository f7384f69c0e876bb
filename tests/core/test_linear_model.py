"""Linear models of columns or of random Fourier features."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.groups.linear_model import LOSS_OF, MODELS, model_columns, model_rows, outputs

X = np.random.default_rng(0).standard_normal((40, 3))


def test_every_model_has_a_loss() -> None:
    assert set(LOSS_OF) == set(MODELS)


def test_columns_as_they_are() -> None:
    assert model_rows(X, 0, 0.0, 0) is X
    assert model_columns(3, 0) == 3


def test_random_features_approach_the_kernel() -> None:
    found = model_rows(X, 3000, 0.4, 1)
    assert found.shape == (40, model_columns(3, 3000)) == (40, 6000)
    squares = ((X[:, None] - X) ** 2).sum(-1)
    np.testing.assert_allclose(found @ found.T, np.exp(-0.4 * squares), atol=0.08)
    np.testing.assert_array_equal(found, model_rows(X, 3000, 0.4, 1))
    assert np.abs(found - model_rows(X, 3000, 0.4, 2)).max() > 0.001


@pytest.mark.parametrize("features", [0, 5])
def test_outputs_of_a_saved_model(features: int) -> None:
    rng = np.random.default_rng(1)
    weights, bias = rng.standard_normal((2, model_columns(3, features))), rng.standard_normal(2)
    meta = {"columns": 3, "features": features, "gamma": 0.4 * bool(features), "feature_seed": 7}
    arrays = {"weights": weights, "bias": bias}
    right = model_rows(X, features, 0.4, 7) @ weights.T + bias
    np.testing.assert_allclose(outputs(arrays, meta, X), right)
    with refused("FK-COLUMNS-DIFFER"):
        outputs(arrays, meta, X[:, :2])
