"""POF-MKL in plain loops; only the random draws are shared with the package."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedkern_flwr.kernels.dictionary import bandwidth_dictionary
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online.learning import select_subset
from fedkern_flwr.seeding import derive_seed, uniform

N, D, DIMENSION, CLIENTS, ROUNDS, SEED, LAMBDA = 9, 4, 3, 4, 30, 7, 1e-3

ETA = 1.0 / math.sqrt(ROUNDS)

Arrays = list[np.ndarray]


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


def features_of(streams: Any, *, paper: bool) -> Arrays:
    draw = "independent" if paper else "orthogonal"
    return plain_features(streams, bandwidth_dictionary(N), draw)
