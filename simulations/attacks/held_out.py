"""What counts of held-out rows say of a person's label: how many labels are certain.

The attacker knows a person's columns and the model, so also the score, and reads the sum that the
server opens. The score says in which bin the person is. If that bin has rows of one class only, the
label is certain. Rows are counted in two halves; who knows the half looks at that half alone.

A server that makes the model from sums may send another one, chosen for one person: a hyperplane
beyond which nobody else is. Then the confusion matrix says the label of that person.

Run as a program, it prints the tables of docs/held-out-rows.md.

**Names of categories from how many rows each has, as the server sees them of a common encoder.**

The names are hashed under a secret of the holders, their counts are not hidden. Who knows how
frequent the categories of a column are in the population puts the names in that order
(a frequency attack, as on deterministic encryption: Naveed, Kamara and Wright, "Inference attacks
on property-preserving encrypted databases", CCS 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedkern_flwr.judging.figures import Judged, Yardstick, bins_of, calibrating, places_of

Floats = NDArray[np.float64]

_CENTRE, _SPREAD = 0.4, 0.45  # of the scores of a class: an AUC of 0.9, as on the table magic
_MARGIN = 1e-9  # by which the person is beyond the hyperplane


@dataclass(frozen=True)
class Known:
    """What is learned from the counts of a run.

    Attributes
    ----------
    bins : int
        Bins of the histograms.
    known_half, unknown_half : float
        Share of the rows whose label is certain.
    auc_error : float
        Largest error of the AUC that comes from the bins.
    """

    bins: int
    known_half: float
    unknown_half: float
    auc_error: float


def former_bins(rows: int) -> int:
    """Return the bins before the rule of 64 rows: a power of two up to 256, two rows a bin."""
    return 1 << min(rows // 2, 256).bit_length() - 1


def draw_scores(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Return scores and labels of -1 and 1 of held-out rows, shapes (rows, 1)."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((rows, 1)) < 0.35, 1.0, -1.0)
    return _CENTRE * labels + _SPREAD * rng.standard_normal((rows, 1)), labels


def read_labels(scores: Floats, labels: Floats, bins: int) -> Known:
    """Count held-out rows as nodes do, and read labels from the sum.

    Parameters
    ----------
    scores, labels : ndarray, shape (n, 1)
        Outputs of the model, and labels of -1 and 1.
    bins : int
        Bins of the histograms.
    """
    half = calibrating(map(str, range(len(scores))), b"of the node alone")
    yard = Yardstick(2, 1, bins=bins)
    total = yard.count(scores, labels, half)
    counts = yard.split(total)[1][:, 0]  # half, class, bin
    single = (counts > 0.0).sum(axis=1) == 1  # one class only, in a bin of a half
    place = places_of(scores, bins)[:, 0]
    found = single[np.where(half, 0, 1), place]
    whole = (counts.sum(axis=0) > 0.0).sum(axis=0) == 1
    judged = Judged(yard, total)
    ranked = np.argsort(np.argsort(scores[:, 0])) + 1.0
    positive = labels[:, 0] > 0.0
    p, n = positive.sum(), (~positive).sum()
    exact = (ranked[positive].sum() - p * (p + 1) / 2) / (p * n)
    return Known(
        bins, float(found.mean()), float(whole[place].mean()), abs(judged.areas()[0][0] - exact)
    )


def compare_bins(rows: int, runs: int = 20) -> tuple[Known, Known]:
    """Return the means over runs with the bins before that rule, and with those of today."""
    means = []
    for bins in (former_bins(rows), bins_of(rows, 2)):
        found = [read_labels(*draw_scores(rows, seed), bins) for seed in range(runs)]
        names = ("known_half", "unknown_half", "auc_error")
        values = [float(np.mean([getattr(one, name) for one in found])) for name in names]
        means.append(Known(bins, *values))
    return means[0], means[1]


def choose_model(rows: int, columns: int, seed: int) -> bool:
    """Judge a linear model that is chosen for one person; tell whether the label is read.

    The server knows this person's columns, and mean and covariance of all rows.
    """
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((rows, 1)) < 0.35, 1.0, -1.0)
    x = rng.standard_normal((rows, columns)) + 0.3 * labels * rng.standard_normal(columns)
    person, mean = x[0], x.mean(axis=0)
    normal = np.linalg.solve(np.cov(x.T), person - mean)
    scores = (x - mean) @ normal - (1.0 - _MARGIN) * (person - mean) @ normal
    half = calibrating(map(str, range(rows)), b"of the node alone")
    yard = Yardstick(2, 1)  # without any histogram
    confusion = yard.count(scores[:, None], labels, half)[: yard.plain].reshape(2, 2)
    beyond = confusion[:, 1]  # of each class, those with a positive score
    return bool(beyond.sum() == 1.0 and beyond[int(labels[0, 0] > 0.0)] == 1.0)


def main() -> None:
    """Print a row for each number of held-out rows, before and now; labels by chosen models."""
    for rows in (200, 2_000):
        for when, one in zip(("before", "now"), compare_bins(rows), strict=True):
            shares = f"{one.known_half:.3f} | {one.unknown_half:.3f} | {one.auc_error:.4f}"
            print(f"| {rows:,} | {when} | {one.bins} | {shares} |")
    for rows in (200, 2_000):
        found = [sum(choose_model(rows, d, seed) for seed in range(24)) for d in (5, 10, 30)]
        print(f"| {rows:,} | " + " | ".join(map(str, found)) + " |")


# -- names of categories

#: Blood groups, with shares as among donors in the United States (American Red Cross).
BLOOD_GROUPS = {
    "O+": 0.374,
    "A+": 0.357,
    "B+": 0.085,
    "O-": 0.066,
    "A-": 0.063,
    "AB+": 0.034,
    "B-": 0.015,
    "AB-": 0.006,
}


def names_of(counts: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the most likely category of each count, by its share of the population.

    Of all ways to give each count a category of its own it is the likeliest one, if rows are drawn
    at random.
    """
    likely = counts[:, None] * np.log(shares)
    return np.asarray(linear_sum_assignment(likely, maximize=True)[1])


def named_rows(rows: int, seed: int) -> float:
    """Return the share of so many random rows whose blood group the server names."""
    shares = np.array(list(BLOOD_GROUPS.values()))
    counts = np.random.default_rng(seed).multinomial(rows, shares / shares.sum())
    right = names_of(counts, shares) == np.arange(len(shares))
    return float(counts[right].sum() / rows)


if __name__ == "__main__":
    main()
