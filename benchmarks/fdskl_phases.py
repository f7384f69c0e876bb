"""Phases of 16 bits against 32 bits and exact ones: error of the kernel, accuracy, bytes.

The kernel of pairs of rows is estimated from R = 5000 directions of a Gaussian kernel, drawn by
four parties for their own columns as FDSKL draws them; its error is |mean of phi phi' - k|, whose
maximum should be below 5 / sqrt(R) = 0.071 and whose mean below 0.02. Accuracy: FDSKL one-shot with
2000 directions, width and regularization given, trained on the same rows; "exact" trains on pooled
data with the cosines in float64.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from common import Record, new_table, run_script
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import linalg

from fedkern_flwr.kernels.random_features import draw_directions, draw_offsets
from fedkern_flwr.labels import decide, encode_classes
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.dealt_data import frequency_seed
from fedkern_flwr.simulations.methods.vertical import (
    VerticalData,
    VerticalSettings,
)
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical.phases import cosines

Floats = NDArray[np.float64]
DIRECTIONS, PAIRS, REGULARIZATION = 5000, 2000, 1e-5
CHUNK = 2048
GOAL = 0.02  # mean error of the kernel


def angles(x: Floats, parts: Any, upto: int, gamma: float) -> list[Floats]:
    """Return each party's part of omega^T x + b."""
    found = []
    for party, own in enumerate(parts):
        seed = frequency_seed(0, party)
        omega = draw_directions(seed, 0, upto, len(own), "rbf", gamma)
        found.append(x[:, own] @ omega.T + draw_offsets(seed, 0, upto, "rbf", gamma))
    return found


def features(found: list[Floats], bits: int) -> Floats:
    """Return sqrt(2) cos of the sum of angles, each rounded to so many bits; 0 for exact."""
    if not bits:
        return np.asarray(np.sqrt(2.0) * np.cos(np.sum(found, axis=0)))
    circle = Encoding.circle(bits)
    total = np.zeros(found[0].size, circle.dtype)
    for one in found:
        total += circle.encode(one.reshape(-1), len(found), name="phases")
    return np.asarray(np.sqrt(2.0) * cosines(total.reshape(found[0].shape)), np.float64)


def kernel_errors(data: VerticalData, gamma: float, bits: int) -> Floats:
    """Return the errors of the kernel over random pairs of rows."""
    pooled = data.split(0)
    rows = np.random.default_rng(1).integers(0, len(pooled.x), (2, PAIRS))
    estimate = np.empty(PAIRS)
    for start in range(0, PAIRS, 250):
        part = slice(start, start + 250)
        left, right = (
            features(angles(pooled.x[side[part]], pooled.parts, DIRECTIONS, gamma), bits)
            for side in rows
        )
        estimate[part] = (left * right).mean(axis=1)
    exact = np.exp(-gamma * ((pooled.x[rows[0]] - pooled.x[rows[1]]) ** 2).sum(axis=1))
    return np.asarray(np.abs(estimate - exact))


def exact_accuracy(data: VerticalData, gamma: float, width: int) -> float:
    """Return the accuracy of ridge regression on exact features of pooled data."""
    pooled = data.split(0)
    y = encode_classes(pooled.y, pooled.classes, "the pooled table")
    gram, right = np.zeros((width, width)), np.zeros((width, y.shape[1]))
    train, test = np.flatnonzero(pooled.train), np.flatnonzero(~pooled.train)
    scale = 1.0 / np.sqrt(width)
    for start in range(0, len(train), CHUNK):
        part = train[start : start + CHUNK]
        z = scale * features(angles(pooled.x[part], pooled.parts, width, gamma), 0)
        gram += z.T @ z
        right += z.T @ y[part]
    gram[np.diag_indices(width)] += REGULARIZATION * len(train) / 2.0
    weights = linalg.solve(gram, right, assume_a="pos")
    hits = 0
    for start in range(0, len(test), CHUNK):
        part = test[start : start + CHUNK]
        z = scale * features(angles(pooled.x[part], pooled.parts, width, gamma), 0)
        hits += int((decide(z @ weights) == decide(y[part])).sum())
    return hits / len(test)


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print errors and accuracies of each data set."""
    sets: dict[str, tuple[VerticalSettings, float]] = {
        "breast-cancer": (VerticalSettings("breast-cancer"), 0.5)
    }
    if "FEDKERN_DATA" in os.environ and not options.quick:
        folder = Path(os.environ["FEDKERN_DATA"])
        for name, gamma in (("svmguide1", 4.0), ("phishing", 0.05)):
            sets[name] = VerticalSettings(str(folder / f"{name}.npz")), gamma
        sets["a9a"] = VerticalSettings(str(folder / "a9a.npz"), train_rows=10_000), 0.03
    table = new_table(
        f"phases: kernel from R = {DIRECTIONS}, model from R = {options.features}",
        "mean error\n/ 0.02 | data | phases | kernel:\nmean error | maximum | "
        "accuracy | MB per\nparty",
        text="data | phases",
    )
    records = []
    for name, (settings, gamma) in track(sets.items(), transient=True):
        data = VerticalData(settings)
        for bits in (16, 32, 0):
            errors, sent = kernel_errors(data, gamma, bits), "-"
            if bits:
                strategy = FDSKL(
                    seed=0,
                    features=options.features,
                    phase_bits=bits,
                    gamma=gamma,
                    regularization=REGULARIZATION,
                    loss="square",
                )
                simulate(strategy, data.client_fn(strategy), data.num_clients)
                accuracy = strategy.metrics_["test_accuracy"]
                sent = f"{strategy.ledger_.bytes_up / data.num_clients / 1e6:.1f}"
            else:
                accuracy = exact_accuracy(data, gamma, options.features)
            label = f"{name}, {bits} bits" if bits else f"{name}, exact phases"
            records.append(Record(label, errors.mean() / GOAL, "mean error / goal", "lower"))
            table.add_row(
                f"{errors.mean() / GOAL:.2f}",
                name,
                f"{bits} bits" if bits else "exact",
                f"{errors.mean():.5f}",
                f"{errors.max():.5f}",
                f"{accuracy:.4f}",
                sent,
            )
        table.add_section()
    console.print(table)
    return records


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        features=2000,
    )
