"""One step of a POF-MKL client: predict, losses, weights, choice of a kernel, gradient.

Setting of the paper's naval experiment: d = 15, N = 51 kernels, D = 100 frequencies, M = 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from common import Record, new_table, run_script
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from rich.console import Console

from fedkern_flwr.clients import OnlineKernelClient
from fedkern_flwr.clients.pof_mkl_samples import (
    StreamAccount,
    book,
    choose_kernels,
    chosen_gradients,
)
from fedkern_flwr.guard.policy import SIMULATION
from fedkern_flwr.kernels.random_features import bandwidth_dictionary, gaussian_frequencies
from fedkern_flwr.online.learning import kernel_weights
from fedkern_flwr.online.messages import PersonalRequest
from fedkern_flwr.wire import DescribeRequest

DIMENSION, KERNELS, FEATURES, CHOSEN = 15, 51, 100, 1
ROUNDS, BLOCK, REPETITIONS, MANY = 500, 50, 4, 10
REGULARIZATION, EXPLORATION = 1e-3, 1.0
BANDWIDTHS = bandwidth_dictionary(KERNELS).astype("<f8").tobytes()

Floats = NDArray[np.float64]
Step = Callable[[int], object]


def plain_step(x: Floats, y: Floats, theta: Floats) -> Step:
    """The formulas of the paper, vectorised over kernels in float64, without a framework."""
    omega = gaussian_frequencies(BANDWIDTHS, DIMENSION, FEATURES, 0, "float64")
    rate, rng = 1.0 / np.sqrt(ROUNDS), np.random.default_rng(0)
    cumulative = np.zeros(KERNELS)
    squared = np.zeros(KERNELS)
    total = 0.0

    def step(t: int) -> object:
        nonlocal cumulative, squared, total
        phase = (x[t] @ omega).reshape(KERNELS, FEATURES)
        z = np.concatenate([np.sin(phase), np.cos(phase)], axis=1) / np.sqrt(FEATURES)
        predictions = np.einsum("nw,nw->n", z, theta)
        errors = (predictions - y[t]) ** 2
        losses = errors + REGULARIZATION * np.einsum("nw,nw->n", theta, theta)
        weights = np.exp(-rate * (cumulative - cumulative.min()))
        weights /= weights.sum()
        total += (weights @ predictions - y[t]) ** 2
        order = np.argsort(-weights)
        chances = (1.0 - EXPLORATION) * weights[order] + EXPLORATION / KERNELS  # bins of M = 1
        drawn = min(int(np.searchsorted(np.cumsum(chances), rng.random())), KERNELS - 1)
        i = order[drawn]
        gradient = 2.0 * (predictions[i] - y[t]) * z[i] + 2.0 * REGULARIZATION * theta[i]
        cumulative = cumulative + losses
        squared = squared + errors
        return i, gradient / chances[drawn]

    return step


class Ours:
    """The client of this package, with a request for every round as it comes off the wire."""

    def __init__(self, x: Floats, y: Floats, theta: Floats, mode: str, samples: int = 1) -> None:
        paper = mode == "paper"
        context = Context(
            run_id=1,
            node_id=1,
            node_config={SIMULATION: True, "partition-id": 0, "num-partitions": 1},
            state=RecordDict(),
            run_config={},
        )
        self.client = OnlineKernelClient(context, x, y)
        opening = DescribeRequest(session="bench", method="pof-mkl", resume_round=0)
        self.client.fit(opening.arrays(), opening.scalars())
        theta32 = theta.astype(np.float32)
        self.requests = [
            PersonalRequest(
                session="bench",
                round=t + 1,
                step=t,
                samples=samples,
                checkpoint_every=0,
                bandwidths=BANDWIDTHS,
                features=FEATURES,
                seed=0,
                regularization=REGULARIZATION,
                precision="float32",
                frequency_draw="independent" if paper else "orthogonal",
                theta=theta32,
                centre=0.0,
                released=0,
                kernels_per_round=CHOSEN,
                selection="bins" if paper else "subset",
                exploration=EXPLORATION,
                weight_rule="exponential" if paper else "adahedge",
                learning_rate=float(1.0 / np.sqrt(ROUNDS)),
            )
            for t in range(len(x) - samples + 1)
        ]
        self.account = StreamAccount(np.zeros(KERNELS), np.zeros(KERNELS))

    def calculate(self, t: int) -> object:
        """The calculation alone, as in ``OnlineKernelClient.train_personal``."""
        request, account = self.requests[t], self.account
        seen = self.client._predict(request)
        weights, losses, account.gap = kernel_weights(
            request.weight_rule,  # type: ignore[arg-type]
            account.losses,
            seen.losses,
            account.gap,
            request.learning_rate,
        )
        chosen, probabilities = choose_kernels(request, weights[0], self.client.partition)
        gradient = chosen_gradients(seen, request, chosen, probabilities)
        book(account, seen, losses, weights)
        return chosen, gradient

    def train(self, t: int) -> object:
        """The calculation and the private state, read from and written to Flower's context."""
        return self.client.train_personal(self.requests[t])


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Interleave the variants in blocks of samples; print the median sample of each."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, (ROUNDS, DIMENSION)) / np.sqrt(DIMENSION)
    y, theta = rng.uniform(0.0, 1.0, ROUNDS), rng.normal(0.0, 0.05, (KERNELS, 2 * FEATURES))
    plain = "plain NumPy, float64"
    times: dict[str, list[float]] = {}
    for _ in range(1 if options.quick else REPETITIONS):
        steps: dict[str, tuple[Step, int]] = {plain: (plain_step(x, y, theta), 1)}
        for mode in ("paper", "adaptive"):
            steps[f"{mode}, calculation"] = (Ours(x, y, theta, mode).calculate, 1)
            steps[f"{mode}, with its private state"] = (Ours(x, y, theta, mode).train, 1)
            many = Ours(x, y, theta, mode, MANY)
            steps[f"{mode}, B={MANY}, with its private state"] = (many.train, MANY)
        for start in range(0, ROUNDS, BLOCK):
            for name, (step, samples) in steps.items():
                for t in range(start, start + BLOCK, samples):
                    started = time.perf_counter()
                    step(t)
                    elapsed = time.perf_counter() - started
                    times.setdefault(name, []).append(elapsed / samples)
    medians = {name: statistics.median(values) for name, values in times.items()}
    title = f"client step, per sample: d={DIMENSION}, N={KERNELS}, D={FEATURES}, M={CHOSEN}"
    table = new_table(title, "plain / this | microseconds | ")
    for name, seconds in medians.items():
        table.add_row(f"{medians[plain] / seconds:.2f}", f"{seconds * 1e6:.1f}", name)
    console.print(table)
    return [
        Record(name, medians[plain] / seconds, "plain NumPy / this", "higher")
        for name, seconds in medians.items()
        if name != plain
    ]


if __name__ == "__main__":
    run_script(__doc__, measure)
