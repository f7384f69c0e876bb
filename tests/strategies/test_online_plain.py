"""The online methods against separate plain implementations: POF-MKL, its baselines, PerFedAvg.

Loops over clients and kernels; only the random draws are shared with the package. POF-MKL has two
modes: equations 6-10 of the paper, with weights kept as plain products, and AdaGrad-norm with
AdaHedge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online.learning import select_subset
from fedkern_flwr.online.network import (
    initial_parameters,
    plan_layers,
    project,
    squared_loss_gradient,
)
from fedkern_flwr.seeding import derive_seed, uniform
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import EMKOFL, OFSKL, POFMKL, VMKOFL, LocalOnly, OFMKLAvg, PerFedAvg

N, D, DIMENSION, CLIENTS, ROUNDS, SEED, LAMBDA = 9, 4, 3, 4, 30, 7, 1e-3
ETA = 1.0 / math.sqrt(ROUNDS)
Arrays = list[np.ndarray]


@pytest.fixture
def streams(make_streams: Callable[..., Any]) -> Any:
    return make_streams(CLIENTS, ROUNDS, DIMENSION, seed=1)


def plain_features(streams: Any, bandwidths: np.ndarray, draw: Any = "independent") -> Arrays:
    """z_i(x) = [sin(rho^T x), cos(rho^T x)] / sqrt(D) for every row and kernel, (n, N, 2D)."""
    packed = np.asarray(bandwidths, "<f8").tobytes()
    rho = gaussian_frequencies(packed, DIMENSION, D, SEED, "float64", draw)
    out = []
    for x in streams.x:
        z = np.empty((len(x), len(bandwidths), 2 * D))
        for i in range(len(bandwidths)):
            phase = x @ rho[:, i * D : (i + 1) * D]
            z[:, i] = np.concatenate([np.sin(phase), np.cos(phase)], axis=1) / math.sqrt(D)
        out.append(z)
    return out


# -- POF-MKL


class Products:
    """Weights of the paper, eq. 7, kept as products."""

    def __init__(self, eta: float) -> None:
        self.eta, self.values = eta, [1.0] * N

    def weights(self) -> np.ndarray:
        return np.array([value / sum(self.values) for value in self.values])

    def learn(self, loss: np.ndarray) -> None:
        for i in range(N):
            self.values[i] *= math.exp(-self.eta * float(loss[i]))


class AdaHedge:
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


def choose(
    weights: np.ndarray, many: int, exploration: float, client: int, number: int, *, paper: bool
) -> tuple[Any, Any]:
    """Return kernels and probabilities: a bin of Algorithm 1, eq. 8, or a subset."""
    if not paper:
        rng = np.random.default_rng(derive_seed(SEED, "kernels", client, number))
        return select_subset(weights, many, exploration, rng)
    order = sorted(range(N), key=lambda i: (-weights[i], i))
    bins = [order[start : start + many] for start in range(0, N, many)]
    draw, reached, chosen, q = uniform(SEED, "kernels", client, number), 0.0, bins[0], 0.0
    for chosen in bins:
        share = sum(weights[i] for i in chosen)
        q = (1.0 - exploration) * share + exploration / len(bins)
        reached += q
        if draw < reached:
            break
    return chosen, [q] * len(chosen)


def plain_pof_mkl(
    z: Arrays,
    y: Arrays,
    *,
    paper: bool,
    many: int,
    exploration: float,
    samples: int = 1,
    mistake: str = "",
) -> SimpleNamespace:
    """Algorithms 1 and 2; ``mistake`` plants an error that the comparison must notice."""
    clients, rows = len(z), len(y[0])
    eta = 1.0 / math.sqrt(rows)
    theta, norms = np.zeros((N, 2 * D)), np.zeros(N)
    hedges = [Products(eta) if paper else AdaHedge() for _ in z]
    y = [labels if paper else labels - 0.5 for labels in y]
    own_error, kernel_error = np.zeros(clients), np.zeros((clients, N))
    mse, regret = [], []
    rounds = rows // samples
    for number in range(1, rounds + 1):  # the last message has the rest as well
        batch = range((number - 1) * samples, rows if number == rounds else number * samples)
        received = np.zeros((N, 2 * D))
        for k, hedge in enumerate(hedges):
            first, gradient = hedge.weights(), np.zeros((N, 2 * D))
            copy, sums = theta.copy(), 4.0 * kernel_error[k]
            for t in batch:
                f = np.array([copy[i] @ z[k][t, i] for i in range(N)])
                own_error[k] += (float(hedge.weights() @ f) - y[k][t]) ** 2  # eq. 6
                kernel_error[k] += (f - y[k][t]) ** 2
                penalty = np.array([LAMBDA * copy[i] @ copy[i] for i in range(N)])
                hedge.learn((f - y[k][t]) ** 2 + penalty)
                for i in range(N):
                    wrong = theta[i] @ z[k][t, i] - y[k][t]
                    gradient[i] += 2.0 * wrong * z[k][t, i] + 2.0 * LAMBDA * theta[i]
                    own = 2.0 * (f[i] - y[k][t]) * z[k][t, i] + 2.0 * LAMBDA * copy[i]
                    sums[i] += own @ own
                    if not paper and samples > 1 and mistake != "waits":
                        copy[i] = copy[i] - 0.5 * own / math.sqrt(sums[i])
            weights = hedge.weights() if mistake == "weights first" else first
            chosen, p = choose(weights, many, exploration, k, number, paper=paper)
            for i, probability in zip(chosen, p, strict=True):
                received[i] += gradient[i] / (1.0 if mistake == "not divided" else probability)
        for i in range(N):
            mean, before = received[i] / clients, norms[i]
            norms[i] += mean @ mean
            step = before if mistake == "latest forgotten" else norms[i]
            if paper:
                theta[i] = theta[i] - eta * mean  # eq. 10
            elif step > 0.0:
                theta[i] = theta[i] - mean / math.sqrt(step)
        mse.append(own_error.sum() / (clients * (batch[-1] + 1)))
        regret.append(own_error - kernel_error.min(axis=1))  # eq. 11
    weights = np.array([hedge.weights() for hedge in hedges])
    return SimpleNamespace(theta=theta, weights=weights, mse=mse, regret=regret, hedges=hedges)


def run(streams: Any, *, paper: bool, **options: Any) -> SimpleNamespace:
    """The package's own POF-MKL in process, and what its clients reported."""
    mode = "paper" if paper else "adaptive"
    options = {"features": D, "kernels": N, "precision": "float64", "step_size": mode, **options}
    strategy, record = POFMKL(**options), Transcript()
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS, transcript=record)
    reported: dict[int, list[float]] = {}
    for entry in record.entries(phase="online-personal", direction="up"):
        reported.setdefault(entry.scalars["round"], []).append(entry.scalars["regret"])
    account = np.array([streams.numbers(k) for k in range(CLIENTS)])
    losses, gaps = account[:, :N], account[:, 2 * N + 2]
    rates = np.full(CLIENTS, ETA) if paper else np.log(N) / gaps
    weights = np.exp(-rates[:, None] * (losses - losses.min(axis=1, keepdims=True)))
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


def features_of(streams: Any, *, paper: bool) -> Arrays:
    draw = "independent" if paper else "orthogonal"
    return plain_features(streams, bandwidth_dictionary(N), draw)


@pytest.mark.parametrize("paper", [True, False], ids=["paper", "adaptive"])
@pytest.mark.parametrize(
    ("many", "exploration", "samples"),
    [(1, 1.0, 1), (1, 0.3, 1), (4, 1.0, 1), (4, 0.3, 1), (N, 1.0, 1), (4, 0.3, 4), (N, 1.0, 4)],
)
def test_both_modes_equal_the_plain_algorithm(
    streams: Any, many: int, exploration: float, samples: int, paper: bool
) -> None:
    """With four samples 30 in 7 messages: weights move per sample, one summed gradient travels.

    In the adaptive mode the client's copy of the parameters moves per sample, too.
    """
    options: dict[str, Any] = {"exploration": exploration, "paper": paper}
    ours = run(streams, kernels_per_round=many, samples_per_round=samples, **options)
    z = features_of(streams, paper=paper)
    plain = plain_pof_mkl(z, streams.y, many=many, samples=samples, **options)
    assert len(ours.mse) == len(ours.regret) == ROUNDS // samples
    assert distance(ours, plain) < (1e-10 if paper else 1e-9)
    assert ours.metrics["mse"] == pytest.approx(plain.mse[-1], abs=1e-9)
    assert ours.metrics["regret_mean"] == pytest.approx(np.mean(plain.regret[-1]), abs=1e-9)
    assert ours.metrics["regret_std"] == pytest.approx(np.std(plain.regret[-1]), abs=1e-9)
    if not paper:
        for k, hedge in enumerate(plain.hedges):
            numbers = streams.numbers(k)
            np.testing.assert_allclose(numbers[:N], hedge.losses, atol=1e-9)
            assert numbers[2 * N + 2] == pytest.approx(hedge.gap, abs=1e-9)


@pytest.mark.parametrize(
    ("mistake", "paper", "samples"),
    [
        ("weights first", True, 1),
        ("weights first", True, 4),
        ("not divided", True, 1),
        ("waits", False, 4),
        ("latest forgotten", False, 1),
    ],
)
def test_the_comparison_notices_a_wrong_algorithm(
    streams: Any, mistake: str, paper: bool, samples: int
) -> None:
    options: dict[str, Any] = {"exploration": 0.3, "paper": paper}
    ours = run(streams, kernels_per_round=4, samples_per_round=samples, **options)
    z = features_of(streams, paper=paper)
    wrong = plain_pof_mkl(z, streams.y, many=4, samples=samples, mistake=mistake, **options)
    assert distance(ours, wrong) > 1e-6


def test_local_only_is_the_algorithm_with_a_single_client(streams: Any) -> None:
    strategy = LocalOnly(step_size="paper", kernels=N, features=D, precision="float64")
    simulate(strategy, streams.client_fn, CLIENTS, seed=SEED, num_rounds=ROUNDS)
    options: dict[str, Any] = {"paper": True, "many": N, "exploration": 1.0}
    z = features_of(streams, paper=True)
    alone = [plain_pof_mkl([z[k]], [streams.y[k]], **options) for k in range(CLIENTS)]
    for t, metrics in enumerate(strategy.history_):
        assert metrics["mse"] == pytest.approx(np.mean([a.mse[t] for a in alone]), abs=1e-10)
        regret = np.mean([a.regret[t][0] for a in alone])
        assert metrics["regret"] == pytest.approx(regret, abs=1e-10)
    assert strategy.ledger_.by_phase == {"describe": 1, "online-local": 1}


def test_float32_stays_near_float64(streams: Any) -> None:
    """The default precision costs nothing that a user would see."""
    double, single = (
        run(streams, paper=False, kernels_per_round=4, precision=precision)
        for precision in ("float64", "float32")
    )
    assert 0.0 < np.abs(double.theta - single.theta).max() < 1e-3
    assert single.metrics["mse"] == pytest.approx(double.metrics["mse"], rel=1e-4)


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


# -- OFSKL, OFMKL-Avg, vM-KOFL, eM-KOFL

PAPER: dict[str, Any] = {"step_size": "paper", "features": D, "precision": "float64"}


def plain_baseline(
    streams: Any, bandwidths: np.ndarray, *, weigh: str = "no", draw: bool = False
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
