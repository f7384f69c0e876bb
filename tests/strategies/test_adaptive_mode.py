"""Adaptive mode (AdaGrad-norm and AdaHedge) of POF-MKL against a plain implementation."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online.learning import select_subset
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import POFMKL

N, D, DIMENSION, CLIENTS, ROUNDS, SEED, LAMBDA = 9, 6, 3, 4, 40, 5, 1e-3


class PlainAdaHedge:
    """AdaHedge as printed in the JMLR paper: eta = ln N / Delta, Delta sums h - m."""

    def __init__(self) -> None:
        self.losses, self.gap = np.zeros(N), 0.0

    def weights(self) -> np.ndarray:
        if self.gap == 0.0:
            leaders = (self.losses == self.losses.min()).astype(float)
            return leaders / leaders.sum()
        eta = math.log(N) / self.gap
        scores = -eta * (self.losses - self.losses.min())
        return np.exp(scores - logsumexp(scores))

    def learn(self, loss: np.ndarray) -> None:
        hedge_loss = float(self.weights() @ loss)
        after = self.losses + loss
        if self.gap == 0.0:
            mix_loss = after.min() - self.losses.min()
        else:
            eta = math.log(N) / self.gap
            best = self.losses.min()
            mix_loss = logsumexp(-eta * (self.losses - best)) - logsumexp(-eta * (after - best))
            mix_loss /= eta
        self.gap += max(0.0, hedge_loss - mix_loss)
        self.losses = after


def plain_adaptive(
    z: list[np.ndarray],
    y: list[np.ndarray],
    *,
    many: int,
    exploration: float,
    samples: int,
    mistake: bool = False,
) -> SimpleNamespace:
    theta, squared_norms = np.zeros((N, 2 * D)), np.zeros(N)
    hedges, errors, mse = [PlainAdaHedge() for _ in z], 0.0, []
    y = [labels - 0.5 for labels in y]
    rounds = ROUNDS // samples
    for number in range(1, rounds + 1):  # the last message has the rest as well
        batch = range((number - 1) * samples, ROUNDS if number == rounds else number * samples)
        received = np.zeros((N, 2 * D))
        for k, hedge in enumerate(hedges):
            first, gradient = hedge.weights(), np.zeros((N, 2 * D))
            for t in batch:
                f = np.array([theta[i] @ z[k][t, i] for i in range(N)])
                errors += (float(hedge.weights() @ f) - y[k][t]) ** 2
                for i in range(N):
                    gradient[i] += 2 * (f[i] - y[k][t]) * z[k][t, i] + 2 * LAMBDA * theta[i]
                penalty = np.array([LAMBDA * theta[i] @ theta[i] for i in range(N)])
                hedge.learn((f - y[k][t]) ** 2 + penalty)
            rng = np.random.default_rng(derive_seed(SEED, "kernels", k, number))
            chosen, p = select_subset(first, many, exploration, rng)
            for i, probability in zip(chosen, p, strict=True):
                received[i] += gradient[i] / probability
        for i in range(N):
            mean = received[i] / len(z)
            step = squared_norms[i] if mistake else squared_norms[i] + mean @ mean
            squared_norms[i] += mean @ mean
            if step > 0.0:
                theta[i] = theta[i] - mean / math.sqrt(step)
        mse.append(errors / (len(z) * (batch[-1] + 1)))
    return SimpleNamespace(theta=theta, mse=mse, hedges=hedges)


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=2)


@pytest.fixture
def z(streams: Any) -> list[np.ndarray]:
    bandwidths = bandwidth_dictionary(N).astype("<f8").tobytes()
    rho = gaussian_frequencies(bandwidths, DIMENSION, D, SEED, "float64", "orthogonal")
    out = []
    for x in streams.x:
        phase = np.stack([x @ rho[:, i * D : (i + 1) * D] for i in range(N)], axis=1)
        out.append(np.concatenate([np.sin(phase), np.cos(phase)], axis=2) / math.sqrt(D))
    return out


def run(streams: Any, **options: Any) -> POFMKL:
    strategy = POFMKL(kernels=N, features=D, **{"precision": "float64", **options})
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS)
    return strategy


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(("many", "exploration"), [(1, 1.0), (4, 0.3), (N, 1.0)])
def test_adaptive_mode_equals_the_plain_algorithm(
    streams: Any, z: list[np.ndarray], many: int, exploration: float, samples: int
) -> None:
    ours = run(streams, kernels_per_round=many, exploration=exploration, samples_per_round=samples)
    plain = plain_adaptive(z, streams.y, many=many, exploration=exploration, samples=samples)
    np.testing.assert_allclose(ours.theta_, plain.theta, rtol=0, atol=1e-9)
    np.testing.assert_allclose([m["mse"] for m in ours.history_], plain.mse, rtol=0, atol=1e-9)
    for k, hedge in enumerate(plain.hedges):
        numbers = streams.numbers(k)
        np.testing.assert_allclose(numbers[:N], hedge.losses, atol=1e-9)
        assert numbers[2 * N + 2] == pytest.approx(hedge.gap, abs=1e-9)


def test_the_comparison_notices_a_step_that_forgets_the_latest_gradient(
    streams: Any, z: list[np.ndarray]
) -> None:
    ours = run(streams, kernels_per_round=4, exploration=0.3)
    wrong = plain_adaptive(z, streams.y, many=4, exploration=0.3, samples=1, mistake=True)
    assert np.abs(ours.theta_ - wrong.theta).max() > 1e-6


def test_float32_stays_near_float64(streams: Any) -> None:
    """The default precision costs nothing that a user would see."""
    double = run(streams, kernels_per_round=4)
    single = run(streams, kernels_per_round=4, precision="float32")
    assert 0.0 < np.abs(double.theta_ - single.theta_).max() < 1e-3
    assert single.metrics_["mse"] == pytest.approx(double.metrics_["mse"], rel=1e-4)


def test_adaptive_mode_predicts_better_than_the_papers_step(
    make_streams: Callable[..., Any],
) -> None:
    streams = make_streams(CLIENTS, 200, DIMENSION, seed=3)
    errors = {}
    for step_size in ("paper", "adaptive"):
        strategy = POFMKL(kernels_per_round=25, features=20, step_size=step_size)
        simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=200)
        errors[step_size] = strategy.metrics_["mse"]
    assert errors["adaptive"] < 0.6 * errors["paper"]
