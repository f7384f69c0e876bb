"""What is counted on held-out rows in runs with a budget: the same at server and nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..privacy import Budget, Release, plan_sum, sensitivity

Floats = NDArray[np.float64]

OUTCOMES = "outcomes"


def outcomes_release(budget: Budget, *, classes: int, outputs: int, rows: Sequence[int]) -> Release:
    """Return the noise of what is counted on held-out rows; ``rows`` are those of each hospital."""
    moved = sensitivity.confusion() if classes else sensitivity.errors(outputs)
    length = classes**2 if classes else 1 + 4 * outputs
    return plan_sum(OUTCOMES, budget, sensitivity=moved, length=length, rows=rows, least=len(rows))


def tidy(counts: Floats, classes: int, rows: int) -> Floats:
    """Return noisy counts of held-out rows as such a sum may be; the number of rows is public.

    Of classes a confusion matrix of whole numbers from 0 on; of a regression the number of rows and
    sums from 0 on but for those of the labels.
    """
    if classes:
        found = np.maximum(counts, 0.0)
        total = found.sum()
        return np.rint(found * rows / total) if total > 0.0 else np.rint(found)
    outputs = (len(counts) - 1) // 4
    squared, absolute, labels, squares = counts[1:].reshape(4, outputs)
    positive = [np.maximum(part, 0.0) for part in (squared, absolute, squares)]
    return np.concatenate([[float(rows)], positive[0], positive[1], labels, positive[2]])
