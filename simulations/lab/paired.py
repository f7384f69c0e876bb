"""Paired differences: does one method beat another on the same feature draws?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import wilcoxon


@dataclass(frozen=True)
class PairedDifference:
    """Mean squared error of one method minus that of another, draw by draw.

    Attributes
    ----------
    better, worse : str
        Labels; the paper says that ``better`` has the smaller error.
    mean, std : float
        Of the differences MSE(worse) - MSE(better) over the draws.
    wins : int
        Draws in which ``better`` is better.
    draws : int
        Draws in all.
    p_value : float
        Two-sided Wilcoxon signed-rank test of equal errors; 1 with fewer than two draws.
    reversed : bool
        Whether the mean difference contradicts the paper.
    """

    better: str
    worse: str
    mean: float
    std: float
    wins: int
    draws: int
    p_value: float
    reversed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def paired_differences(
    summaries: Mapping[str, Mapping[str, Any]], ranks: Sequence[Sequence[str]]
) -> list[PairedDifference]:
    """Compare every method with every method of a later rank.

    Parameters
    ----------
    summaries : mapping
        Label -> summary with the errors ``draws["mse"]``, draws in the same order.
    ranks : sequence of sequence of str
        Labels from the best rank to the worst, as the paper has them; labels that are not among
        the summaries are passed over.
    """
    found = []
    for number, rank in enumerate(ranks):
        later = [label for other in ranks[number + 1 :] for label in other]
        for better in rank:
            for worse in later:
                if better in summaries and worse in summaries:
                    found.append(_compare(better, worse, summaries))
    return found


def _compare(
    better: str, worse: str, summaries: Mapping[str, Mapping[str, Any]]
) -> PairedDifference:
    first, second = (np.array(summaries[label]["draws"]["mse"]) for label in (better, worse))
    difference = second - first
    several = len(difference) > 1 and bool(np.any(difference))
    return PairedDifference(
        better,
        worse,
        float(difference.mean()),
        float(difference.std(ddof=1)) if len(difference) > 1 else 0.0,
        int((difference > 0.0).sum()),
        len(difference),
        float(wilcoxon(difference).pvalue) if several else 1.0,
        bool(difference.mean() <= 0.0),
    )
