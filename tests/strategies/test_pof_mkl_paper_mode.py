"""POF-MKL in paper mode against a separate plain implementation of equations 6-10.

Loops over clients, kernels and frequencies; weights kept as plain products. Only the random draws
(frequencies, one uniform number per client and round) are shared with the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.seeding import uniform
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import POFMKL, LocalOnly

N, D, DIMENSION, CLIENTS, ROUNDS, SEED, LAMBDA = 51, 5, 3, 5, 50, 7, 1e-3
CASES = [(m, xi) for m in (1, 7, N) for xi in (1.0, 0.3)]


def plain_features(rows: np.ndarray) -> np.ndarray:
    """z_i(x) = [sin(rho^T x), cos(rho^T x)] / sqrt(D) for every row and kernel, (n, N, 2D)."""
    bandwidths = bandwidth_dictionary(N).astype("<f8").tobytes()
    rho = gaussian_frequencies(bandwidths, DIMENSION, D, SEED, "float64")
    z = np.empty((len(rows), N, 2 * D))
    for t, x in enumerate(rows):
        for i in range(N):
            for j in range(D):
                phase = sum(float(rho[f, i * D + j]) * float(x[f]) for f in range(DIMENSION))
                z[t, i, j] = math.sin(phase) / math.sqrt(D)
                z[t, i, D + j] = math.cos(phase) / math.sqrt(D)
    return z


def plain_pof_mkl(
    z: list[np.ndarray],
    y: list[np.ndarray],
    *,
    bin_size: int,
    exploration: float,
    samples: int = 1,
    mistake: str = "",
) -> SimpleNamespace:
    """Algorithms 1 and 2; ``mistake`` plants an error that the comparison must notice."""
    clients, rows = len(z), len(y[0])
    eta = 1.0 / math.sqrt(rows)
    theta = [np.zeros(2 * D) for _ in range(N)]
    weights = [[1.0] * N for _ in range(clients)]
    own_error, kernel_error = [0.0] * clients, np.zeros((clients, N))
    mse, regret = [], []
    rounds = rows // samples
    for number in range(1, rounds + 1):  # the last message has the rest as well
        batch = range((number - 1) * samples, rows if number == rounds else number * samples)
        received = [np.zeros(2 * D) for _ in range(N)]
        for k in range(clients):
            selecting = list(weights[k])
            gradient = [np.zeros(2 * D) for _ in range(N)]
            for t in batch:
                f = [float(theta[i] @ z[k][t, i]) for i in range(N)]
                total = sum(weights[k])
                prediction = sum(weights[k][i] / total * f[i] for i in range(N))  # eq. 6
                own_error[k] += (prediction - y[k][t]) ** 2
                for i in range(N):
                    kernel_error[k, i] += (f[i] - y[k][t]) ** 2
                    gradient[i] += 2.0 * (f[i] - y[k][t]) * z[k][t, i] + 2.0 * LAMBDA * theta[i]
                    loss = (f[i] - y[k][t]) ** 2 + LAMBDA * float(theta[i] @ theta[i])
                    weights[k][i] *= math.exp(-eta * loss)  # eq. 7
            if mistake == "weights first":
                selecting = list(weights[k])
            order = sorted(range(N), key=lambda i: (-selecting[i], i))
            bins = [order[start : start + bin_size] for start in range(0, N, bin_size)]
            everything = sum(selecting)
            draw, reached = uniform(SEED, "kernels", k, number), 0.0
            for chosen in bins:
                share = sum(selecting[i] for i in chosen) / everything
                q = (1.0 - exploration) * share + exploration / len(bins)  # eq. 8
                reached += q
                if draw < reached:
                    break
            for i in chosen:
                received[i] += gradient[i] / (1.0 if mistake == "not divided" else q)  # eq. 9
        for i in range(N):
            theta[i] = theta[i] - eta / clients * received[i]  # eq. 10
        done = batch[-1] + 1
        mse.append(sum(own_error) / (clients * done))
        regret.append([own_error[k] - min(kernel_error[k]) for k in range(clients)])  # eq. 11
    return SimpleNamespace(
        theta=np.array(theta),
        weights=np.array([np.array(w) / sum(w) for w in weights]),
        mse=mse,
        regret=regret,
    )


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=1)


@pytest.fixture
def z(streams: Any) -> list[np.ndarray]:
    return [plain_features(rows) for rows in streams.x]


def run(streams: Any, rounds: int = ROUNDS, **options: Any) -> SimpleNamespace:
    """The package's own POF-MKL in process, and what its clients reported."""
    strategy, record = POFMKL(features=D, precision="float64", **options), Transcript()
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=rounds, transcript=record)
    reported: dict[int, list[float]] = {}
    for entry in record.entries(phase="online-personal", direction="up"):
        reported.setdefault(entry.scalars["round"], []).append(entry.scalars["regret"])
    exponents = np.array([-streams.numbers(k)[:N] / math.sqrt(rounds) for k in range(CLIENTS)])
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return SimpleNamespace(
        theta=strategy.theta_,
        weights=weights / weights.sum(axis=1, keepdims=True),
        mse=[metrics["mse"] for metrics in strategy.history_],
        regret=[reported[t] for t in sorted(reported)],
        metrics=strategy.metrics_,
    )


def distance(ours: SimpleNamespace, plain: SimpleNamespace) -> float:
    """Largest difference in theta, weights, MSE and regret."""
    pairs = [(getattr(ours, n), getattr(plain, n)) for n in ("theta", "weights", "mse", "regret")]
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


@pytest.mark.parametrize(("bin_size", "exploration"), CASES)
def test_paper_mode_equals_the_plain_algorithm(
    streams: Any, z: list[np.ndarray], bin_size: int, exploration: float
) -> None:
    ours = run(streams, step_size="paper", kernels_per_round=bin_size, exploration=exploration)
    plain = plain_pof_mkl(z, streams.y, bin_size=bin_size, exploration=exploration)
    assert len(ours.mse) == len(ours.regret) == ROUNDS
    assert distance(ours, plain) < 1e-10
    assert ours.metrics["mse"] == pytest.approx(plain.mse[-1], abs=1e-10)
    assert ours.metrics["regret_mean"] == pytest.approx(np.mean(plain.regret[-1]), abs=1e-10)
    assert ours.metrics["regret_std"] == pytest.approx(np.std(plain.regret[-1]), abs=1e-10)


@pytest.mark.parametrize("mistake", ["weights first", "not divided"])
def test_the_comparison_notices_a_wrong_algorithm(
    streams: Any, z: list[np.ndarray], mistake: str
) -> None:
    ours = run(streams, step_size="paper", kernels_per_round=7, exploration=0.3)
    wrong = plain_pof_mkl(z, streams.y, bin_size=7, exploration=0.3, mistake=mistake)
    assert distance(ours, wrong) > 1e-6


@pytest.mark.parametrize("exploration", [1.0, 0.3])
def test_three_samples_per_round_equal_the_plain_algorithm(
    streams: Any, z: list[np.ndarray], exploration: float
) -> None:
    """50 samples in 16 messages: weights move per sample, one summed gradient travels."""
    options: dict[str, Any] = {"kernels_per_round": 7, "exploration": exploration}
    ours = run(streams, step_size="paper", samples_per_round=3, **options)
    plain = plain_pof_mkl(z, streams.y, bin_size=7, exploration=exploration, samples=3)
    assert len(ours.mse) == 16
    assert distance(ours, plain) < 1e-10
    late = {"bin_size": 7, "exploration": exploration, "samples": 3, "mistake": "weights first"}
    if exploration < 1.0:
        assert distance(ours, plain_pof_mkl(z, streams.y, **late)) > 1e-6


def test_local_only_is_the_algorithm_with_a_single_client(
    streams: Any, z: list[np.ndarray]
) -> None:
    strategy = LocalOnly(step_size="paper", features=D, precision="float64")
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS)
    alone = [
        plain_pof_mkl([z[k]], [streams.y[k]], bin_size=N, exploration=1.0) for k in range(CLIENTS)
    ]
    for t, metrics in enumerate(strategy.history_):
        assert metrics["mse"] == pytest.approx(np.mean([a.mse[t] for a in alone]), abs=1e-10)
        regret = np.mean([a.regret[t][0] for a in alone])
        assert metrics["regret"] == pytest.approx(regret, abs=1e-10)
    assert strategy.ledger_.by_phase == {"describe": 1, "online-local": 1}
