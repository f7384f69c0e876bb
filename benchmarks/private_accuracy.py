"""Accuracy against epsilon: FedCG's release beside central ones, on real tables.

``FEDKERN_DATA=FOLDER python benchmarks/private_accuracy.py [SPLITS [DRAWS]]`` prints a table and
draws ``docs/images/privacy-accuracy.png``.

What a run of FedCG releases is an exact sum and noise, as ``test_fed_cg_fourier.py`` shows; so that
50 draws of noise take minutes, the sum is made once per split, in one place, and noise of the
library is added to it: four hospitals, one of which colludes. Width 20 / columns^1.5 on columns
scaled to [0, 1] by ranges that are taken to be public, 100 features, lambda of the noise: nothing
is chosen by the data.

Beside it, on the same splits:

* ``declared``: the noise of three hospitals, which is what is declared: what the price N / (t - c)
  of a fourth that nobody counts on costs.
* ``gauss``: Gaussian noise of the same variance on the same numbers without rounding, paired.
* ``central``: a curator who is trusted with all rows adds the least Gaussian noise (Balle and Wang,
  "Improving the Gaussian Mechanism for Differential Privacy", 2018).
* ``logistic``: objective perturbation (Chaudhuri, Monteleoni and Sarwate, "Differentially Private
  Empirical Risk Minimization", 2011, Algorithm 2; delta is 0), a curator as well; its penalty is
  the best of three on the held-out rows, in its favour.
"""

from __future__ import annotations

import math
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from fedkern_flwr.hybrid import landmarks
from fedkern_flwr.privacy import Budget, skellam
from fedkern_flwr.privacy import accounting as sensitivity
from fedkern_flwr.solvers.least_squares import pack_equations, solve_equations, unpack_equations

SETS = ("phishing", "a9a", "svmguide1", "breast_cancer_original", "beijing_prsa")
EPSILONS = (math.inf, 8.0, 3.0, 1.0, 0.3)
DELTA, HOSPITALS, FEATURES, LEAST_LAMBDA = 1e-5, 4, 100, 1e-3
PENALTIES = (1e-4, 1e-3, 1e-2)
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "privacy-accuracy.png"


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return columns in [0, 1] and labels of -1 and 1; of Beijing whether CO is above 900."""
    data = np.load(Path(os.environ["FEDKERN_DATA"]) / f"{name}.npz")
    x, y = data["X"].astype(float), data["y"]
    if name == "beijing_prsa":
        kept = np.isfinite(x).all(axis=1) & np.isfinite(y)
        kept &= np.arange(len(y)) % 7 == 0  # neighbours in time are alike
        x, y = x[kept], y[kept] > 900.0
    low, high = x.min(axis=0), x.max(axis=0)
    x = (x - low) / np.where(high > low, high - low, 1.0)
    return x, np.where(y == y.max(), 1.0, -1.0)


def gaussian_deviation(moved: float, epsilon: float) -> float:
    """Return the least deviation of Gaussian noise, by Balle and Wang's Theorem 8."""

    def excess(deviation: float) -> float:
        a, b = moved / (2.0 * deviation), epsilon * deviation / moved
        lower = math.exp(epsilon + stats.norm.logcdf(-a - b))
        return float(stats.norm.cdf(a - b) - lower - DELTA)

    return float(optimize.brentq(excess, 1e-3 * moved, 1e4 * moved))


class Split:
    """The release of a split, and the accuracy of what is made of it."""

    def __init__(self, x: np.ndarray, y: np.ndarray, seed: int) -> None:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(x))
        train, test = order[: (7 * len(x)) // 10], order[(7 * len(x)) // 10 :]
        drawn = landmarks.draw_block(
            rng.bytes(32), FEATURES // 2, x.shape[1], "rbf", landmarks.usual_gamma(x.shape[1])
        )
        z = landmarks.fourier_features(landmarks.block_phases(x, drawn))
        self.x, self.y, self.train, self.test = x, y, train, test
        self.z_test, self.rows = z[test], len(train)
        right = z[train].T @ y[train, None] * landmarks.label_weight(1.0, 1)
        self.sums = pack_equations(z[train].T @ z[train], right)

    def accuracy(self, sums: np.ndarray, deviation: float) -> float:
        """Solve noisy normal equations as FedCG does; judge the model without noise."""
        gram, right = unpack_equations(sums, FEATURES, 1)
        penalty = LEAST_LAMBDA
        if deviation:
            gram, penalty = landmarks.regularize(gram, penalty, deviation)
        coefficients = solve_equations(gram, right / landmarks.label_weight(1.0, 1), penalty)
        return self.right(self.z_test @ coefficients[:, 0])

    def right(self, outputs: np.ndarray) -> float:
        """Return the share of held-out rows that are told right."""
        return float(np.mean((outputs >= 0.0) == (self.y[self.test] > 0.0)))


def logistic(split: Split, epsilon: float, penalty: float, rng: np.random.Generator) -> float:
    """Return the accuracy of logistic regression by objective perturbation."""
    x = np.column_stack([split.x, np.ones(len(split.x))]) / math.sqrt(split.x.shape[1] + 1)
    signed, n = x[split.train] * split.y[split.train, None], split.rows
    shift, more = np.zeros(x.shape[1]), 0.0
    if math.isfinite(epsilon):
        curved = 0.25  # of the second derivative of the loss
        left = epsilon - 2.0 * math.log(1.0 + curved / (n * penalty))
        if left <= 0.0:
            more, left = curved / (n * math.expm1(epsilon / 4.0)) - penalty, epsilon / 2.0
        direction = rng.standard_normal(x.shape[1])
        length = rng.gamma(x.shape[1], 2.0 / left)
        shift = direction / np.linalg.norm(direction) * length

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = signed @ w
        value = np.logaddexp(0.0, -margin).mean() + (penalty + more) / 2.0 * w @ w + shift @ w / n
        slope = -signed.T @ special.expit(-margin) / n + (penalty + more) * w + shift / n
        return value, slope

    found = optimize.minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B")
    return split.right(x[split.test] @ found.x)


def measure(name: str, splits: int, draws: int) -> dict[tuple[str, float], np.ndarray]:
    """Return (what, epsilon) -> accuracy per split, a mean over draws of noise."""
    x, y = load(name)
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    moved = sensitivity.ridge(FEATURES, 0.5)
    for seed in range(splits):
        split, rng = Split(x, y, seed), np.random.default_rng(seed)
        share = [split.rows // HOSPITALS] * HOSPITALS
        for epsilon in EPSILONS:
            repeats = range(1 if math.isinf(epsilon) else min(draws, 3))
            for penalty in PENALTIES:
                one = [logistic(split, epsilon, penalty, rng) for _ in repeats]
                found[f"logistic {penalty:g}", epsilon].append(float(np.mean(one)))
            if math.isinf(epsilon):
                plain = split.accuracy(split.sums, 0.0)
                for what in ("ours", "declared", "gauss", "central"):
                    found[what, epsilon].append(plain)
                continue
            planned = landmarks.equations_release(
                Budget(epsilon, DELTA), features=FEATURES, outputs=1, bound=1.0, rows=share
            )
            unit, actual = 2.0**-planned.noise.fraction, planned.noise.deviation(HOSPITALS)
            declared = planned.noise.deviation(planned.honest)
            least = gaussian_deviation(moved, epsilon)
            each: dict[str, list[float]] = defaultdict(list)
            for _ in range(draws):
                size = split.sums.size
                shares = [skellam(planned.noise.variance, size) for _ in range(HOSPITALS)]
                whole = np.rint(split.sums / unit)
                noisy = (whole + sum(shares)) * unit
                each["ours"].append(split.accuracy(noisy, actual))
                less = (whole + sum(shares[: planned.honest])) * unit
                each["declared"].append(split.accuracy(less, declared))
                other = rng.standard_normal(size)
                each["gauss"].append(split.accuracy(split.sums + actual * other, actual))
                each["central"].append(split.accuracy(split.sums + least * other, least))
            for what, values in each.items():
                found[what, epsilon].append(float(np.mean(values)))
    return {key: np.array(values) for key, values in found.items()}


def hindsight(found: dict[tuple[str, float], np.ndarray]) -> None:
    """Keep the best penalty of logistic regression at each epsilon."""
    for epsilon in EPSILONS:
        best = max((found.pop((f"logistic {p:g}", epsilon)) for p in PENALTIES), key=np.mean)
        found["logistic", epsilon] = best


def draw(results: dict[str, dict[tuple[str, float], np.ndarray]]) -> None:
    """Draw accuracy over epsilon, a panel per table."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    labels = {
        "ours": "FedCG, four hospitals",
        "declared": "the same at the declared variance",
        "central": "same release, trusted curator",
        "logistic": "logistic regression, trusted curator",
    }
    figure, axes = plt.subplots(1, len(results), figsize=(3.0 * len(results), 3.2))
    private_ones = sorted(e for e in EPSILONS if math.isfinite(e))
    for axis, (name, found) in zip(np.atleast_1d(axes), results.items(), strict=True):
        for k, (what, label) in enumerate(labels.items()):
            means = [float(found[what, e].mean()) for e in private_ones]
            axis.plot(private_ones, means, "o-", color=f"C{k}", label=label)
            axis.axhline(float(found[what, math.inf].mean()), color=f"C{k}", lw=0.8, ls=":")
        axis.set(title=name.partition("_")[0], xscale="log", xlabel="epsilon")
        axis.set_xticks(private_ones, [f"{e:g}" for e in private_ones])
        axis.minorticks_off()
    first: Any = np.atleast_1d(axes)[0]
    first.set_ylabel("accuracy on held-out rows")
    figure.legend(*first.get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0.0, 0.1, 1.0, 1.0))
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Print the table, draw the picture."""
    given = [int(word) for word in sys.argv[1:3]]
    splits, draws = given + [10, 50][len(given) :]
    results = {}
    print("| table | | none | eps 8 | eps 3 | eps 1 | eps 0.3 |")
    print("|---|---|---|---|---|---|---|")
    for name in SETS:
        found = measure(name, splits, draws)
        hindsight(found)
        results[name] = found
        for what in ("ours", "declared", "gauss", "central", "logistic"):
            means = [f"{found[what, e].mean():.3f}" for e in EPSILONS]
            print(f"| {name} | {what} | {' | '.join(means)} |", flush=True)
        for what in ("gauss", "declared", "central"):
            apart = [np.abs((found["ours", e] - found[what, e]).mean()) for e in EPSILONS]
            told = ", ".join(f"{value:.4f}" for value in apart)
            print(f"{name}: ours and {what} differ by {told}", file=sys.stderr)
    draw(results)


if __name__ == "__main__":
    main()
