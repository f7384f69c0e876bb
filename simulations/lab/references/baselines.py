"""What every table is compared with: no model at all, and what parties have without each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...methods.pooled import PooledSplit, error_of
from ...run.entries import Outcome, mean
from .vertical import Progress, simple


def constant(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Predict the most frequent class of the training rows, or their mean.

    Returns
    -------
    metrics : dict
        See :meth:`PooledSplit.judge`.
    history : list of dict
        One row.
    """
    pooled.check()
    progress(1, 1)
    return _outcome(_constant(pooled))


def alone(pooled: PooledSplit, *, seed: int, progress: Progress) -> Outcome:
    """Train a model at each party that could, on its own rows and columns.

    It is logistic or ridge regression or a support vector machine, whichever is better in
    cross-validation at the party; and no model where all its rows have one label, or it has no
    column. All held-out rows are predicted, of which the party is given its columns.

    Returns
    -------
    metrics : dict
        Means over the parties, and ``parties``.
    history : list of dict
        One row.
    """
    pooled.check()
    found = []
    for k, (rows, columns) in enumerate(pooled.parties):
        own = replace(
            pooled,
            x=pooled.x[np.ix_(rows, columns)],
            y=pooled.y[rows],
            x_test=pooled.x_test[:, columns],
        )
        if len(columns) and len(np.unique(own.y)) > 1:
            metrics, _ = simple(own, seed=seed, progress=lambda done, total: None)
        else:
            metrics = _constant(own)
        found.append(metrics)
        progress(k + 1, len(pooled.parties))
    judged = [name for name in found[0] if name.startswith("test_")]
    means = {name: mean([metrics.get(name) for metrics in found]) for name in judged}
    metrics, history = _outcome(means)
    return {**metrics, "parties": len(found)}, history


def _constant(pooled: PooledSplit) -> dict[str, float]:
    values, counts = np.unique(pooled.y, return_counts=True)
    value = values[counts.argmax()] if pooled.classes else pooled.y.mean()
    return pooled.judge_classes(np.full(len(pooled.y_test), value))


def _outcome(metrics: Mapping[str, float]) -> Outcome:
    return dict(metrics), [{"round": 1, "test_error": error_of(metrics)}]
