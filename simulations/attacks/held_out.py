"""Read labels from counts of held-out rows, and categories from their frequencies.

An attacker with a person's columns and the model knows the score, and so the bin of the opened
counts. If all rows of that bin have one class, the label is certain. A server may also send a model
chosen for a person: a hyperplane that separates only this person, of which the confusion matrix
shows the label. Run as a program, it prints the tables of docs/held-out-rows.md.

**Names of categories.** A common encoder shows the server how many rows each category has; names
are hashed. Frequencies in the population give the names in that order (Naveed, Kamara and Wright,
"Inference attacks on property-preserving encrypted databases", CCS 2015).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedkern_flwr.judging.figures import Judged, Yardstick, bins_of, calibrating, places_of

Floats = NDArray[np.float64]

_CENTRE, _SPREAD = 0.4, 0.45  # of the scores of a class: an AUC of 0.9, as on the table magic
_MARGIN = 1e-9  # of the person to the hyperplane


@dataclass(frozen=True)
class Known:
    """Labels known from the counts of a run.

    Attributes
    ----------
    bins : int
        Bins of the histograms.
    known_half, unknown_half : float
        Share of the rows with a certain label.
    auc_error : float
        Largest binning error of the AUC.
    """

    bins: int
    known_half: float
    unknown_half: float
    auc_error: float


def former_bins(rows: int) -> int:
    """Return the bins before the rule of 64 rows: a power of two up to 256, two rows a bin."""
    return 1 << min(rows // 2, 256).bit_length() - 1


def draw_scores(rows: int, seed: int) -> tuple[Floats, Floats]:
    """Make scores and labels -1 and 1 of held-out rows, shapes (rows, 1)."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((rows, 1)) < 0.35, 1.0, -1.0)
    return _CENTRE * labels + _SPREAD * rng.standard_normal((rows, 1)), labels


def read_labels(scores: Floats, labels: Floats, bins: int) -> Known:
    """Count held-out rows as nodes do, and read labels -1 and 1 from the sum."""
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
    """Compute means over runs, with the former bins and with those of today."""
    means = []
    for bins in (former_bins(rows), bins_of(rows, 2)):
        found = [read_labels(*draw_scores(rows, seed), bins) for seed in range(runs)]
        names = ("known_half", "unknown_half", "auc_error")
        values = [float(np.mean([getattr(one, name) for one in found])) for name in names]
        means.append(Known(bins, *values))
    return means[0], means[1]


def choose_model(rows: int, columns: int, seed: int) -> bool:
    """Return whether a linear model chosen for one person shows the label.

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
    """Print a row for each number of held-out rows, and labels by chosen models."""
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
    """Find the most likely assignment of categories to counts, for rows drawn at random."""
    likely = counts[:, None] * np.log(shares)
    return np.asarray(linear_sum_assignment(likely, maximize=True)[1])


def named_rows(rows: int, seed: int) -> float:
    """Compute the share of random rows with a blood group that the server names."""
    shares = np.array(list(BLOOD_GROUPS.values()))
    counts = np.random.default_rng(seed).multinomial(rows, shares / shares.sum())
    right = names_of(counts, shares) == np.arange(len(shares))
    return float(counts[right].sum() / rows)


if __name__ == "__main__":
    main()
