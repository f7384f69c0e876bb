"""The methods beside POF-MKL against plain implementations: OFSKL, OFMKL-Avg, KOFL, PerFedAvg."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from plain_online import CLIENTS, DIMENSION, ETA, LAMBDA, ROUNDS, SEED, D, N, plain_features

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import EMKOFL, VMKOFL, PerFedAvg

PAPER: dict[str, Any] = {"step_size": "paper", "features": D, "precision": "float64"}


def plain_baseline(
    streams: Any, bandwidths: np.ndarray, *, draw: bool = False
) -> tuple[np.ndarray, float]:
    """Return theta and the MSE; ``draw`` takes one kernel a round."""
    z, kernels = plain_features(streams, bandwidths), len(bandwidths)
    theta, weights, errors = np.zeros((kernels, 2 * D)), [1.0] * kernels, 0.0
    for t in range(ROUNDS):
        shares = [w / sum(weights) for w in weights]
        probabilities = [0.9 * share + 0.1 / kernels for share in shares]
        drawn, reached, point = 0, 0.0, uniform(SEED, "drawn kernel", t + 1)
        for drawn in range(kernels):
            reached += probabilities[drawn]
            if point < reached:
                break
        summed, received = [0.0] * kernels, np.zeros_like(theta)
        for k in range(CLIENTS):
            y = streams.y[k][t]
            f = [float(theta[i] @ z[k][t, i]) for i in range(kernels)]
            prediction = f[drawn] if draw else sum(s * v for s, v in zip(shares, f, strict=True))
            errors += (prediction - y) ** 2
            for i in range(kernels):
                summed[i] += (f[i] - y) ** 2 + LAMBDA * float(theta[i] @ theta[i])
                if not draw:
                    received[i] += 2 * (f[i] - y) * z[k][t, i] + 2 * LAMBDA * theta[i]
                elif i == drawn:
                    gradient = 2 * (f[i] - y) * z[k][t, i] + 2 * LAMBDA * theta[i]
                    received[i] += gradient / probabilities[i]
        weights = [w * math.exp(-ETA * s) for w, s in zip(weights, summed, strict=True)]
        theta = theta - ETA / CLIENTS * received
    return theta, errors / (CLIENTS * ROUNDS)


def close(strategy: Any, streams: Any, plain: tuple[np.ndarray, float]) -> bool:
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS)
    theta = float(np.abs(strategy.theta_ - plain[0]).max())
    return theta < 1e-10 and abs(strategy.metrics_["mse"] - plain[1]) < 1e-10


def test_kernels_are_weighed_by_the_sum_of_all_clients_losses(streams: Any) -> None:
    """Their mean, the default of vM-KOFL, is compared with a plain program for all methods."""
    plain = plain_baseline(streams, bandwidth_dictionary(N))
    assert close(VMKOFL(kernels=N, loss_aggregation="sum", **PAPER), streams, plain)
    assert not close(VMKOFL(kernels=N, **PAPER), streams, plain)


def test_em_kofl_moves_the_kernel_that_the_server_drew(streams: Any) -> None:
    plain = plain_baseline(streams, bandwidth_dictionary(N), draw=True)
    assert close(EMKOFL(kernels=N, **PAPER), streams, plain)


# -- PerFedAvg


def plain_network(parameters: np.ndarray, widths: Any, x: np.ndarray) -> float:
    """Output for one row: weights (in, out) row by row, then biases, ReLU between layers."""
    values, start = x, 0
    for layer, (a, b) in enumerate(pairwise(widths)):
        weights, start = parameters[start : start + a * b].reshape(a, b), start + a * b
        values, start = values @ weights + parameters[start : start + b], start + b
        if layer < len(widths) - 2:
            values = np.where(values > 0.0, values, 0.0)
    return float(values[0])


def numerical_gradient(
    parameters: np.ndarray, widths: Any, x: np.ndarray, y: np.ndarray
) -> np.ndarray:
    """Gradient of sum (output - y)^2 by central differences."""
    gradient, h = np.zeros_like(parameters), 1e-6

    def loss(at: np.ndarray) -> float:
        return sum((plain_network(at, widths, r) - v) ** 2 for r, v in zip(x, y, strict=True))

    for i in range(parameters.size):
        bump = np.zeros_like(parameters)
        bump[i] = h
        gradient[i] = (loss(parameters + bump) - loss(parameters - bump)) / (2 * h)
    return gradient


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=1)


@pytest.mark.parametrize("samples", [1, 2])
def test_per_fed_avg_adapts_then_moves_along_the_meta_gradient(
    make_streams: Callable[..., Any], samples: int
) -> None:
    clients, rounds = 2, 3
    streams = make_streams(clients, rounds * samples, DIMENSION, seed=6)
    strategy = PerFedAvg(step_size="paper", inner_step=0.05, samples_per_round=samples)
    how: dict[str, Any] = {"seed": SEED, "num_rounds": rounds * samples, "transcript": Transcript()}
    simulate(strategy, streams.client_fn, clients, **how)
    widths, errors = strategy.model()[1]["layers"], 0.0
    first = next(how["transcript"].entries(phase="online-network", direction="down"))
    parameters = first.arrays[0].astype(np.float64)
    for number in range(rounds):
        mean = np.zeros_like(parameters)
        batch = slice(number * samples, (number + 1) * samples)
        support = slice((number - 1) * samples, number * samples)
        for x, y in zip(streams.x, streams.y, strict=True):
            adapted = parameters
            if number:
                inner = numerical_gradient(parameters, widths, x[support], y[support])
                adapted = parameters - 0.05 * inner / samples
            for row, label in zip(x[batch], y[batch], strict=True):
                errors += (plain_network(adapted, widths, row) - label) ** 2
            mean += numerical_gradient(adapted, widths, x[batch], y[batch]) / clients
        parameters = parameters - mean / math.sqrt(rounds * samples)
    np.testing.assert_allclose(strategy.parameters_[0], parameters, atol=1e-5)
    expected = errors / (clients * rounds * samples)
    assert strategy.metrics_["mse"] == pytest.approx(expected, rel=1e-4)
