"""How well the scores of one user rank the items that were held out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError

Items = NDArray[np.integer[Any]]


def rank_metrics(
    scores: NDArray[np.floating[Any]],
    relevant: Items,
    excluded: Items,
    cutoffs: tuple[tuple[int, int], ...] = ((100, 100), (10, 20)),
) -> tuple[float, ...] | None:
    """Return AUC, nDCG and recall of one user's scores.

    Candidates are all items that are not excluded. The AUC is the share of pairs of a relevant and
    an irrelevant candidate that are in the right order; ties count half. nDCG has gains of 1 and
    discounts log2(1 + rank), and is relative to the best order of the relevant items; recall is the
    share of the relevant items in the list. For both items of equal score are ranked by their
    index.

    Parameters
    ----------
    scores : ndarray of float, shape (m,)
        Higher is better.
    relevant : ndarray of int
        Indices of the items held out; those that are excluded as well do not count.
    excluded : ndarray of int
        Indices of the items of training.
    cutoffs : tuple of (int, int)
        Lengths of the lists that nDCG and recall look at, pair by pair.

    Returns
    -------
    tuple of float or None
        AUC, then nDCG and recall of each pair of cutoffs, all from 0 to 1; None if there is no
        relevant or no irrelevant candidate.

    Raises
    ------
    OptionError
        If a cutoff is below 1 or a score is NaN.
    """
    candidates, values = _candidates(scores, excluded)
    held_out = np.zeros(len(scores), np.bool_)
    held_out[relevant] = True
    hits = held_out[candidates]
    positives = int(hits.sum())
    negatives = hits.size - positives
    lengths = [length for pair in cutoffs for length in pair]
    if min(lengths) < 1:
        raise OptionError(f"cutoff is {min(lengths)}", remedy="use at least 1")
    if not (positives and negatives):
        return None
    others = np.sort(values[~hits])
    below = np.searchsorted(others, values[hits], "left")
    not_above = np.searchsorted(others, values[hits], "right")
    auc = float(below.sum() + not_above.sum()) / (2.0 * positives * negatives)
    listed = hits[_best(values, max(lengths))]
    found = [auc]
    for cutoff, most in cutoffs:
        part = listed[:cutoff]
        gains = 1.0 / np.log2(2.0 + np.arange(max(part.size, min(positives, cutoff))))
        found.append(
            float(gains[: part.size] @ part) / float(gains[: min(positives, cutoff)].sum())
        )
        found.append(float(listed[:most].sum()) / positives)
    return tuple(found)


def top_items(scores: NDArray[np.floating[Any]], excluded: Items, count: int) -> NDArray[np.int64]:
    """Return the items of the highest scores that are not excluded.

    Parameters
    ----------
    scores : ndarray of float, shape (m,)
        Higher is better.
    excluded : ndarray of int
        Indices of items not to return.
    count : int
        How many to return; fewer if there are no more.

    Returns
    -------
    ndarray of int64, shape (count,)
        Indices, best first, equal scores by index.

    Raises
    ------
    OptionError
        If the count is below 1 or a score is NaN.
    """
    if count < 1:
        raise OptionError(f"count is {count}", remedy="use at least 1")
    candidates, values = _candidates(scores, excluded)
    return candidates[_best(values, count)]


def _candidates(
    scores: NDArray[np.floating[Any]], excluded: Items
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the items that are not excluded, ascending, and their scores."""
    allowed = np.ones(len(scores), np.bool_)
    allowed[excluded] = False
    candidates = np.flatnonzero(allowed)
    values = scores[candidates].astype(np.float64)
    if np.isnan(values).any():
        raise OptionError("scores hold NaN", remedy="clean the data")
    return candidates.astype(np.int64), values


def _best(values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return where the highest values are, best first, equal ones in order."""
    return np.argsort(-values, kind="stable")[:count].astype(np.int64)
