"""The figures of private streams are those of runs, made of all clients in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.secure_sum import party
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFMKL, LocalOnly

CLIENTS, ROUNDS = 4, 20
X = np.random.default_rng(0).random((CLIENTS, ROUNDS, 3)) / 2.0
Y = X.sum(axis=2) / 1.5


def error(strategy: Any) -> float:
    def client_fn(context: Context) -> OnlineKernelClient:
        k = int(context.node_config["partition-id"])
        return OnlineKernelClient(context, X[k], Y[k])

    simulate(strategy, client_fn, CLIENTS, num_rounds=ROUNDS)
    return float(strategy.metrics_["mse"])


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("private", [False, True])
def test_an_error_is_that_of_a_run(batch: int, private: bool, script: Any, monkeypatch: Any):
    """With a budget too, but for noise, which is drawn anew each time, and rounding."""
    streams, how = script("private_streams"), {"kernels": 5, "seed": 0, "samples_per_round": batch}
    for module in (party, streams):
        monkeypatch.setattr(module, "skellam", lambda v, n, key=None: np.zeros(n, np.int64))
    if private:
        made = error(POFMKL(privacy_epsilon=3.0, drop_outs=False, **how))
        found = streams.together(X, Y - 0.5, batch=batch, kernels=5, epsilon=3.0)
        assert found == pytest.approx(made, rel=1e-3)
        return
    made = error(POFMKL(secure=False, kernels_per_round=5, **how))
    assert streams.together(X, Y - 0.5, batch=batch, kernels=5) == pytest.approx(made, rel=1e-6)


def test_a_client_alone_is_that_of_a_run(script: Any) -> None:
    streams = script("private_streams")
    made = error(LocalOnly(kernels=5, seed=0))
    assert streams.alone(X, Y - 0.5, kernels=5) == pytest.approx(made, rel=1e-6)
