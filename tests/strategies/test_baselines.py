"""OFSKL, OFMKL-Avg, vM-KOFL, eM-KOFL and PerFedAvg against separate plain implementations."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online.network import (
    initial_parameters,
    plan_layers,
    project,
    squared_loss_gradient,
)
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import simulate
from fedkern_flwr.strategies import EMKOFL, OFSKL, VMKOFL, OFMKLAvg, PerFedAvg

N, D, DIMENSION, CLIENTS, ROUNDS, SEED, LAMBDA = 7, 4, 3, 4, 30, 11, 1e-3
ETA = 1.0 / math.sqrt(ROUNDS)
PAPER: dict[str, Any] = {"step_size": "paper", "features": D, "precision": "float64"}


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=4)


def plain_features(streams: Any, bandwidths: np.ndarray) -> list[np.ndarray]:
    packed = np.asarray(bandwidths, "<f8").tobytes()
    rho = gaussian_frequencies(packed, DIMENSION, D, SEED, "float64")
    out = []
    for x in streams.x:
        z = np.empty((len(x), len(bandwidths), 2 * D))
        for i in range(len(bandwidths)):
            phase = x @ rho[:, i * D : (i + 1) * D]
            z[:, i] = np.concatenate([np.sin(phase), np.cos(phase)], axis=1) / math.sqrt(D)
        out.append(z)
    return out


def plain_baseline(
    streams: Any,
    bandwidths: np.ndarray,
    *,
    weigh: str = "no",
    draw: bool = False,
) -> tuple[np.ndarray, float]:
    """Return theta and the MSE; ``weigh`` is no, mean or sum, ``draw`` takes one kernel a round."""
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
        if weigh != "no":
            parts = CLIENTS if weigh == "mean" else 1
            weights = [w * math.exp(-ETA * s / parts) for w, s in zip(weights, summed, strict=True)]
        theta = theta - ETA / CLIENTS * received
    return theta, errors / (CLIENTS * ROUNDS)


def close(strategy: Any, streams: Any, plain: tuple[np.ndarray, float]) -> bool:
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS)
    theta = float(np.abs(strategy.theta_ - plain[0]).max())
    return theta < 1e-10 and abs(strategy.metrics_["mse"] - plain[1]) < 1e-10


def test_ofskl_is_gradient_descent_with_one_kernel_of_bandwidth_ten(streams: Any) -> None:
    plain = plain_baseline(streams, np.array([10.0]))
    assert close(OFSKL(**PAPER), streams, plain)
    assert not close(OFSKL(bandwidth=1.0, **PAPER), streams, plain)


def test_ofmkl_avg_predicts_with_the_plain_mean(streams: Any) -> None:
    plain = plain_baseline(streams, bandwidth_dictionary(N))
    assert close(OFMKLAvg(kernels=N, **PAPER), streams, plain)


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_vm_kofl_weighs_kernels_by_all_clients_losses(streams: Any, aggregation: Any) -> None:
    plain = plain_baseline(streams, bandwidth_dictionary(N), weigh=aggregation)
    assert close(VMKOFL(kernels=N, loss_aggregation=aggregation, **PAPER), streams, plain)
    other = "sum" if aggregation == "mean" else "mean"
    strategy = VMKOFL(kernels=N, loss_aggregation=other, **PAPER)  # type: ignore[arg-type]
    assert not close(strategy, streams, plain)


def test_vm_kofl_takes_the_mean_by_default() -> None:
    assert VMKOFL().loss_aggregation == "mean"


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
def test_em_kofl_moves_the_kernel_that_the_server_drew(streams: Any, aggregation: Any) -> None:
    plain = plain_baseline(streams, bandwidth_dictionary(N), weigh=aggregation, draw=True)
    assert close(EMKOFL(kernels=N, loss_aggregation=aggregation, **PAPER), streams, plain)
    assert not close(OFMKLAvg(kernels=N, **PAPER), streams, plain)


# -- PerFedAvg


def plain_network(parameters: np.ndarray, widths: tuple[int, ...], x: np.ndarray) -> float:
    """Output for one row: weights (in, out) row by row, then biases, ReLU between layers."""
    values, start = x, 0
    for layer, (a, b) in enumerate(pairwise(widths)):
        weights, start = parameters[start : start + a * b].reshape(a, b), start + a * b
        values, start = values @ weights + parameters[start : start + b], start + b
        if layer < len(widths) - 2:
            values = np.where(values > 0.0, values, 0.0)
    return float(values[0])


def numerical_gradient(
    parameters: np.ndarray, widths: tuple[int, ...], x: np.ndarray, y: np.ndarray
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


def test_gradient_of_the_network_equals_finite_differences() -> None:
    rng = np.random.default_rng(0)
    for widths in [(3, 4, 1), (3, 5, 4, 1), (2, 3, 3, 3, 1)]:
        x, y = rng.standard_normal((4, widths[0])), rng.random(4)
        parameters = initial_parameters(widths, 3) + 0.1 * rng.standard_normal(
            initial_parameters(widths, 3).size
        )
        output, gradient = squared_loss_gradient(parameters, widths, x, y)
        plain = [plain_network(parameters, widths, row) for row in x]
        np.testing.assert_allclose(output, plain, atol=1e-12)
        expected = numerical_gradient(parameters, widths, x, y)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("dimension", [1, 3, 15, 24, 48, 529])
def test_the_network_has_at_most_a_thousand_parameters(dimension: int) -> None:
    widths = plan_layers(dimension)
    size = sum((a + 1) * b for a, b in pairwise(widths))
    larger = size + 20 * 21
    assert size <= 1000 < larger
    assert widths[-1] == 1
    assert set(widths[1:-1]) == {20}
    rows = np.ones((2, dimension))
    assert project(rows, widths[0], 0).shape == (2, widths[0])


@pytest.mark.parametrize("samples", [1, 2])
def test_per_fed_avg_adapts_then_moves_along_the_meta_gradient(
    make_streams: Callable[..., Any], samples: int
) -> None:
    clients, rounds = 2, 3
    streams = make_streams(clients, rounds * samples, DIMENSION, seed=6)
    strategy = PerFedAvg(step_size="paper", inner_step=0.05, samples_per_round=samples)
    simulate(strategy, streams.client_fn, clients, seed=SEED, num_rounds=rounds * samples)
    widths = plan_layers(DIMENSION)
    parameters, errors = initial_parameters(widths, SEED), 0.0
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
