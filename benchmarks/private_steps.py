"""Accuracy against epsilon of HierarchicalSVM's release: noisy sums of gradients, on real tables.

``FEDKERN_DATA=FOLDER python benchmarks/private_steps.py [SPLITS [TABLE ...]]`` prints a table.

What a run with a budget releases is sums and noise, as ``test_hierarchical_private.py`` shows; the
sums are made in one place here, with the library's gradients, noise and steps: four users of
equal size, one of which colludes, columns scaled to [0, 1] by ranges that are taken to be public,
the default iterations, width and C = 1: nothing is chosen by the data. The splits are those of
``private_accuracy.py``.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from private_accuracy import DELTA, HOSPITALS, SETS, load

from fedkern_flwr.groups import linear_model
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.privacy import Budget, skellam

EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)
MACHINES = {"linear": 0, "rbf, 100 features": 50, "rbf, 500 features": 250}


def learn(x: np.ndarray, y: np.ndarray, frequencies: int, epsilon: float, seed: int) -> float:
    """Return the share of held-out rows that a model is right about."""
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[: (7 * len(x)) // 10], order[(7 * len(x)) // 10 :]
    coordinates = linear_model.public_coordinates(x.shape[1], frequencies)
    z = coordinates.rows(model_rows(x, frequencies, 3.0 / x.shape[1], seed))
    kept, rows, labels = linear_model.shortened(z[train]), len(train), y[train, None]
    shape, steps = (1, z.shape[1]), linear_model.ITERATIONS
    noise = None
    if math.isfinite(epsilon):
        noise = linear_model.gradient_release(
            Budget(epsilon, DELTA),
            outputs=1,
            width=shape[1],
            rows=[rows // HOSPITALS] * HOSPITALS,
            iterations=steps,
        ).noise
    model, mean = np.zeros(shape), np.zeros(shape)
    for done in range(steps):
        total = linear_model.gradient("hinge", kept, labels, model)
        for _ in range(HOSPITALS if noise is not None else 0):
            assert noise is not None
            drawn = skellam(noise.variance, total.size).reshape(shape)
            total = total + drawn * 2.0**-noise.fraction
        known = {"loss": "hinge", "c": 1.0, "rows": rows, "ridge": coordinates.ridge()}
        model = linear_model.next_model(model, total, done, **known)  # type: ignore[arg-type]
        mean += model * (2 * done >= steps) * 2 / steps
    return float(np.mean((z[test] @ mean[0] >= 0.0) == (y[test] > 0.0)))


def main() -> None:
    """Print a row for each table and machine."""
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print("| table | machine | none |" + "".join(f" eps {e:g} |" for e in EPSILONS[1:]))
    for name in sys.argv[2:] or SETS:
        for machine, frequencies in MACHINES.items():
            found = [
                np.mean([learn(*load(name), frequencies, epsilon, k) for k in range(splits)])
                for epsilon in EPSILONS
            ]
            print(f"| {name} | {machine} | " + " | ".join(f"{a:.3f}" for a in found), flush=True)


if __name__ == "__main__":
    main()
