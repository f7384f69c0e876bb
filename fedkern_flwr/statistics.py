"""Compute tests from sums: Welch's t, analysis of variance, chi-square, multiple testing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

FEATURES = 16  # random frequencies with which tables are compared


def _special() -> Any:
    """Import ``scipy.special`` at first use: a run without p-values starts sooner."""
    from scipy import special

    return special


def welch(counts: ArrayLike, means: ArrayLike, variances: ArrayLike) -> tuple[float, float]:
    """Return t and its two-sided p-value for two groups with unequal variances.

    Parameters
    ----------
    counts, means, variances : array_like, shape (2,)
        Size, mean and variance (divisor n - 1) of each group.

    >>> t, p = welch([10, 12], [1.0, 2.0], [1.0, 1.5])
    >>> round(t, 4), round(p, 4)
    (-2.1082, 0.0478)
    """
    n, m, v = (np.asarray(part, np.float64) for part in (counts, means, variances))
    if (n < 2).any() or not (v / n).sum() > 0.0:
        return np.nan, np.nan
    t = (m[0] - m[1]) / np.sqrt((v / n).sum())
    freedom = (v / n).sum() ** 2 / ((v / n) ** 2 / (n - 1.0)).sum()
    return float(t), float(2.0 * _special().stdtr(freedom, -abs(t)))


def anova(counts: ArrayLike, means: ArrayLike, variances: ArrayLike) -> tuple[float, float]:
    """Return F and its p-value for groups with equal variances; shapes (groups,)."""
    n, m, v = (np.asarray(part, np.float64) for part in (counts, means, variances))
    there = n > 0.0
    n, m, v = n[there], m[there], v[there]
    groups, freedom = len(n) - 1, n.sum() - len(n)
    within = ((n - 1.0) * v).sum()
    if groups < 1 or freedom < 1 or not within > 0.0:
        return np.nan, np.nan
    grand = (n * m).sum() / n.sum()
    f = (n * (m - grand) ** 2).sum() / groups / (within / freedom)
    return float(f), float(_special().fdtrc(groups, freedom, f))


def chi_square(table: ArrayLike) -> tuple[float, float]:
    """Return chi-square and its p-value for a table of counts, uncorrected.

    Rows and columns of zeros are ignored.
    """
    observed = np.asarray(table, np.float64)
    observed = observed[observed.sum(axis=1) > 0.0]
    observed = observed[:, observed.sum(axis=0) > 0.0]
    freedom = (observed.shape[0] - 1) * (observed.shape[1] - 1)
    if min(observed.shape) < 2:
        return np.nan, np.nan
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / observed.sum()
    found = float(((observed - expected) ** 2 / expected).sum())
    return found, float(_special().chdtrc(freedom, found))


def corrected(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for false discoveries (Benjamini and Hochberg 1995); NaN stays.

    >>> corrected([0.01, 0.04, 0.03])
    [0.03, 0.04, 0.04]
    """
    p = np.asarray(values, np.float64)
    known = np.flatnonzero(np.isfinite(p))
    order = known[np.argsort(p[known])[::-1]]
    ranks = np.arange(len(order), 0, -1)
    p[order] = np.minimum.accumulate(np.minimum(p[order] * len(order) / ranks, 1.0))
    return [float(value) for value in p]


def kolmogorov_smirnov(ours: Floats, theirs: Floats) -> tuple[float, float]:
    """Return the largest distance of two distributions in common bins, and its p-value.

    Bins make the distance smaller or equal.
    """
    n, m = ours.sum(), theirs.sum()
    distance = float(np.abs(np.cumsum(ours) / n - np.cumsum(theirs) / m).max())
    return distance, float(_special().kolmogorov(distance * np.sqrt(n * m / (n + m))))


def features(z: Floats, seed: int) -> Floats:
    """Return random features of rows in units of deviations, shape (n, 2 FEATURES)."""
    draw = np.random.default_rng(seed).standard_normal((z.shape[1], FEATURES))
    phase = np.clip(z, -4.0, 4.0) @ draw / np.sqrt(z.shape[1])
    return np.concatenate([np.cos(phase), np.sin(phase)], axis=1)


def mean_discrepancy(
    ours: Floats, theirs: Floats, others: int, *, seed: int, draws: int = 500, most: int = 5000
) -> tuple[float, float]:
    """Return the distance of the mean features of rows from those of others, and a p-value.

    The p-value is from random signs: up to ``most`` centred rows with random signs show the
    differences by chance. ``ours`` has shape (n, w), ``theirs`` is the mean of ``others`` rows,
    shape (w,).
    """
    n, rng = len(ours), np.random.default_rng(seed)
    away = float(np.linalg.norm(ours.mean(axis=0) - theirs))
    about = ours - ours.mean(axis=0)
    about = about[rng.permutation(n)[:most]]  # so many show what chance does
    signs = rng.choice([-1.0, 1.0], (draws, len(about)))
    chance = np.linalg.norm(signs @ about, axis=1) / np.sqrt(n * len(about))
    chance *= np.sqrt(1.0 + n / others)
    return away, float((1 + (chance >= away).sum()) / (draws + 1))


def inflation(correlations: Floats) -> list[float]:
    """Return the variance inflation of each column: the diagonal of the inverse correlations.

    Infinite if a column depends on others.
    """
    known = np.isfinite(np.diag(correlations))  # a constant column correlates with none
    unknown = ~np.isfinite(correlations)
    while (gaps := unknown[np.ix_(known, known)].sum(axis=1)).any():  # never known in one row
        known[np.flatnonzero(known)[int(np.argmax(gaps))]] = False
    found = np.full(len(correlations), np.nan)
    part = correlations[np.ix_(known, known)]
    if known.any():
        singular = np.linalg.matrix_rank(part, tol=1e-10, hermitian=True) < len(part)
        found[known] = np.inf if singular else np.diag(np.linalg.inv(part))
    return [float(value) for value in found]
