"""What bought ranks are worth: a share of epsilon goes to noisy quantiles, the rest to the model.

    FEDKERN_DATA=... python benchmarks/private_ranks.py [--method hierarchical-svm] [--splits 3]

It prints accuracy on held-out rows, a line for each table and epsilon: of FedCG on Fourier
features, or of HierarchicalSVM on 100 random features.

The sums are made in one place with the library's terms and models, as in ``private_accuracy.py``,
and normal noise of the variance that the library adds, which makes no difference there. Four
parties of which one colludes, nothing tuned, at most 4,000 rows to learn from. Ranges are those of
the columns, taken to be public. A share s of epsilon buys ranks, and the model has the largest
epsilon with which both cost no more than the whole, as a node's ledger counts. ``free`` ranks are
exact and cost nothing: no run can have them. The tables are those of ``guard_limits.py``, their
last class or label above the median against the others, and two made ones with heavy tails: 57
columns of counts, 12 of sums.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from guard_limits import BUILT_IN, FILES, prepared
from numpy.typing import NDArray
from private_accuracy import DELTA, FEATURES, HOSPITALS, Split
from private_steps import learn

from fedkern_flwr.encoding.encoder import Encoder
from fedkern_flwr.hybrid import landmarks
from fedkern_flwr.privacy import Budget, plan_release, plan_sum
from fedkern_flwr.privacy.accounting import epsilon_of
from fedkern_flwr.summary import Column, Plan, noisy_terms
from fedkern_flwr.summary_figures import read_noisy
from fedkern_flwr.tables.table import Table

Floats = NDArray[np.float64]

EPSILONS = (1.0, 3.0, 10.0)
RNG = np.random.default_rng(0)
MADE = ("made counts", "made sums")
TRAIN = 4000  # most rows to learn from
#: Accuracy of features in [0, 1] and labels, of a split, at an epsilon.
Method = Callable[[Floats, Floats, float, int], float]


def load(name: str, seed: int) -> tuple[Floats, Floats]:
    """Return columns that vary and labels of -1 and 1, of as many rows as a split has."""
    if name in MADE:
        rng, columns = np.random.default_rng(0), 57 if name == "made counts" else 12
        z = rng.standard_normal((4600, columns))
        y = z[:, :8] @ rng.standard_normal(8) + z[:, 0] * z[:, 1] + rng.standard_normal(4600)
        x = np.exp(2.0 * z)
        x, y = (rng.poisson(x / 4.0).astype(float) if columns == 57 else x), y > 0.0
    else:
        table = prepared(name, seed, "fed-cg", hospitals=2).load(seed)[0]
        kept = np.isfinite(table.x).all(axis=1) & np.isfinite(table.y)
        x, y = table.x[kept], table.y[kept]
        two = len(np.unique(y)) == 2
        y = y == y.max() if two else y > np.median(y)
    rows = np.random.default_rng([seed, 1]).permutation(len(x))[: round(TRAIN / 0.7)]
    x, y = x[rows], y[rows]
    return x[:, np.ptp(x, axis=0) > 0.0], np.where(y, 1.0, -1.0)


@lru_cache
def rest(epsilon: float, share: float) -> float:
    """Return the epsilon that is left for the model, to a thousandth."""

    def curve(part: float) -> Floats:
        about: dict[str, Any] = {
            "sensitivity": 1.0,
            "length": 1000,
            "parties": HOSPITALS,
            "least": HOSPITALS,
        }
        return plan_release("part", Budget(part, DELTA), **about).curve

    paid, low, high = curve(share * epsilon), 0.0, epsilon
    while high - low > 1e-3 * epsilon:
        middle = (low + high) / 2.0
        fits = epsilon_of(paid + curve(middle), DELTA) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def by_range(x: Floats) -> Floats:
    """Return columns in [0, 1] by their ranges."""
    low, high = x.min(axis=0), x.max(axis=0)
    return (x - low) / (high - low)


def bought(x: Floats, train: NDArray[np.intp], epsilon: float) -> Floats:
    """Return ranks by quantiles of the rows to learn from, with noise for that epsilon."""
    names = tuple(map(str, range(x.shape[1])))
    ends = zip(names, x.min(axis=0).tolist(), x.max(axis=0).tolist(), strict=True)
    plan = Plan(tuple(Column(name, "number", (0,), (), between) for name, *between in ends))
    total = noisy_terms(plan, dict(zip(names, x[train].T, strict=True)))
    length = sum(part.size for part in total.values())
    planned = plan_sum(
        "noisy",
        Budget(epsilon, DELTA),
        sensitivity=1.0,
        length=length,
        rows=[len(train) // HOSPITALS] * HOSPITALS,
        least=HOSPITALS,
    )
    deviation = planned.noise.deviation(HOSPITALS)
    for name, part in total.items():
        total[name] = part + deviation * RNG.standard_normal(part.shape)
    encoder = read_noisy(total, plan, deviation)[-1]
    return encoder.transform(Table(x, None, names))


def fed_cg(x: Floats, y: Floats, epsilon: float, seed: int) -> float:
    """Return the accuracy of FedCG on Fourier features, a mean over three noisy sums."""
    split = Split(x, y, seed)
    planned = landmarks.equations_release(
        Budget(epsilon, DELTA),
        features=FEATURES,
        outputs=1,
        bound=1.0,
        rows=[split.rows // HOSPITALS] * HOSPITALS,
    )
    found, deviation = [], planned.noise.deviation(HOSPITALS)
    for _ in range(3):
        noisy = split.sums + deviation * RNG.standard_normal(split.sums.size)
        found.append(split.accuracy(noisy, deviation))
    return float(np.mean(found))


def hierarchical_svm(x: Floats, y: Floats, epsilon: float, seed: int) -> float:
    """Return the accuracy of HierarchicalSVM on 100 random features."""
    return learn(x, y, 50, epsilon, seed)


METHODS: dict[str, Method] = {"fed-cg": fed_cg, "hierarchical-svm": hierarchical_svm}


def measure(name: str, method: Method, splits: int, repeats: int, shares: list[float]) -> None:
    """Print the figures of a table: by range, of each share, and with ranks for free."""
    tables = []
    for seed in range(splits):
        x, y = load(name, seed)
        train = np.random.default_rng(seed).permutation(len(x))[: (7 * len(x)) // 10]
        names = tuple(map(str, range(x.shape[1])))
        exact = Encoder.fit(Table(x[train], None, names), "rank").transform(Table(x, None, names))
        tables.append((seed, x, y, train, exact))

    def mean(epsilon: float, share: float | None, *, free: bool = False) -> float:
        """Return the mean accuracy of the splits and of so many repetitions."""
        left, found = epsilon if share is None else rest(epsilon, share), []
        for seed, x, y, train, exact in tables:
            for _ in range(repeats):
                z = exact if free else by_range(x)
                z = z if share is None else bought(x, train, share * epsilon)
                found.append(method(z, y, left, seed))
        return float(np.mean(found))

    for epsilon in EPSILONS:
        means = [mean(epsilon, share) for share in (None, *shares)]
        means.append(mean(epsilon, None, free=True))
        cells = " | ".join(f"{one:.3f}" for one in means)
        print(f"| {name} | {epsilon:g} | {cells} |", flush=True)


def main() -> None:
    """Print a line for each table and epsilon."""
    found = argparse.ArgumentParser(description=__doc__)
    found.add_argument("--method", choices=METHODS, default="fed-cg")
    found.add_argument("--splits", type=int, default=3)
    found.add_argument("--repeats", type=int, default=3)
    found.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5])
    found.add_argument("--sets", nargs="+", default=[*BUILT_IN, *FILES, *MADE])
    given = found.parse_args()
    print("| table | epsilon | range | " + " | ".join(map(str, given.shares)) + " | free |")
    print("|---|---|" + "---|" * (len(given.shares) + 2))
    for name in given.sets:
        measure(name, METHODS[given.method], given.splits, given.repeats, given.shares)


if __name__ == "__main__":
    main()
