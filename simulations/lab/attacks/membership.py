"""Was this patient learned from? Membership tests on what FedCG releases.

The server has K^T K summed over the hospitals. A party that holds a row, or may ask for its
prediction, has the row's kernel k. The two together subtract what they know of K^T K and test
whether k is among the rest by its leverage, h = k^T (K^T K)^+ k: of a row of K it is at most one,
whatever the others are; of another row, which would have h' if it were added, it is h' / (1 - h'),
and infinite outside of the span of the rows, which with fewer rows than landmarks is nearly
everything. Rows that are unusual have more leverage, learned from or not: that is taken off by
their leverage among rows that the party knows.

Whoever knows all rows but a few subtracts them, and what is left is the matrix of the few: without
noise, less k k^T it is positive definite still if k is one of them, and never otherwise
(:func:`definiteness`).

Without K^T K, whoever has label and prediction of a row compares them: what was learned from is
predicted better.

Source: the leverage of one row more follows from the formula of Sherman and Morrison; comparison
with what is usual as in Carlini et al., "Membership Inference Attacks From First Principles", 2022;
losses: Yeom et al., "Privacy Risk in Machine Learning", CSF 2018.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from .gradient_inversion import Floats

ROUNDING = 1e-12  # smallest eigenvalue of K^T K that counts, over its largest


def leverage(gram: Floats, rows: Floats) -> Floats:
    """Return the leverage of rows.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        K^T K.
    rows : ndarray, shape (n, m)
        Kernels of candidates.

    Returns
    -------
    ndarray, shape (n,)
        At most one for a row of K, but for rounding: eigenvalues are right to m eps of the largest,
        and count from `ROUNDING` of it, so one is exceeded by m eps / `ROUNDING` at most.
    """
    values, vectors = np.linalg.eigh(gram)
    floor = ROUNDING * values[-1]
    return np.asarray(((rows @ vectors) ** 2 / np.maximum(values, floor)).sum(axis=1))


def membership(gram: Floats, own: Floats, familiar: Floats, candidates: Floats) -> Floats:
    """Return how much candidates look like rows that others brought into a sum.

    Parameters
    ----------
    gram : ndarray, shape (m, m)
        K^T K as it was released.
    own : ndarray, shape (k, m)
        The rows of K that the attacker knows.
    familiar : ndarray, shape (r, m)
        Kernels of all rows that it has, learned from or not.
    candidates : ndarray, shape (n, m)
        Kernels of rows that may have been learned from.

    Returns
    -------
    ndarray, shape (n,)
        The higher, the more likely learned from.
    """
    unknown = leverage(gram - own.T @ own, candidates)
    usual = leverage(familiar.T @ familiar, candidates)
    return np.asarray(np.log(usual) - np.log(unknown))


def membership_of_folds(
    grams: Floats, own: Floats, folds: NDArray[np.intp], familiar: Floats, candidates: Floats
) -> Floats:
    """Return :func:`membership` in the likeliest of several sums.

    Parameters
    ----------
    grams : ndarray, shape (f, m, m)
        K^T K of each fold.
    own, familiar, candidates
        As of :func:`membership`.
    folds : ndarray of int, shape (k,)
        Folds of the rows that the attacker knows.

    Returns
    -------
    ndarray, shape (n,)
    """
    found = [membership(g, own[folds == f], familiar, candidates) for f, g in enumerate(grams)]
    return np.asarray(np.max(found, axis=0))


def definiteness(rest: Floats, candidates: Floats) -> Floats:
    """Return the smallest eigenvalue of a matrix without each of some candidates.

    Parameters
    ----------
    rest : ndarray, shape (m, m)
        What a release leaves when all rows that are known are taken off, of fewer than m rows.
    candidates : ndarray, shape (n, m)
        Features of rows that may be among the others.

    Returns
    -------
    ndarray, shape (n,)
        The higher, the more likely: zero up to rounding of a row behind the rest, without noise.
    """
    without = rest - candidates[:, :, None] * candidates[:, None, :]
    return np.asarray(np.linalg.eigvalsh(without)[:, 0])


def area_under_curve(members: Floats, others: Floats) -> float:
    """Return the probability that a member has a higher score than another row, ties by half."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    wins = ranks.sum() - len(members) * (len(members) + 1) / 2.0
    return float(wins / (len(members) * len(others)))
