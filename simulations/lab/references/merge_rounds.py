"""Rounds of random users whose exact sums are merged: how fast the kernel comes near (Figure 1).

A secure sum is exact, so the rounds are made here from pooled ratings, without nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.plan import Merge, combine, drawn_rounds
from fedkern_flwr.options import check_choice

from ...methods.rating_data import PooledRatings
from ...run.entries import Outcome

_FEW = 5  # users that a sum of a round has at least
_COSINE = DotKernel("cosine")


def merge_rounds(
    pooled: PooledRatings,
    *,
    seed: int,
    progress: Callable[[int, int], None],
    merge: Merge = "disjoint",
    share: float = 0.1,
    rounds: int = 200,
) -> Outcome:
    """Merge the sums of rounds in which a random share of the users takes part.

    With merge disjoint a user counts once: a round sums those who have not been counted before, and
    waits for more if they are fewer than five. No items are suppressed.

    Parameters
    ----------
    pooled : PooledRatings
        The data.
    seed : int
        Of the users of each round, the same for both rules.
    progress : callable
        Called with rounds done and rounds in all.
    merge : {"disjoint", "max"} (default: "disjoint")
        Add up, or keep the entrywise maximum.
    share : float (default: 0.1)
        Of the users, in a round.
    rounds : int (default: 200)
        Number of rounds.

    Returns
    -------
    metrics : dict
        ``kernel_error`` after the last round, ``exact_from``: first round from which the kernel is
        exact, None if it never is.
    history : list of dict
        Per round ``kernel_error``, mean squared difference of the cosine-normalised matrices, and
        ``users`` counted.

    Raises
    ------
    OptionError
    """
    check_choice("merge", merge, get_args(Merge))
    if not 0.0 < share <= 1.0 or rounds < 1:
        raise OptionError(f"share is {share} and rounds {rounds}", remedy="use positive numbers")
    x = pooled.train + pooled.test
    exact = _cosine(_gram(x))
    known: NDArray[np.int64] | None = None
    counted: set[int] = set()
    waiting: set[int] = set()
    history: list[dict[str, Any]] = []
    error = float((exact**2).mean())
    for number, users in enumerate(drawn_rounds(range(x.shape[0]), share, rounds, seed), start=1):
        fresh = set(users)
        if merge == "disjoint":
            waiting |= fresh - counted
            enough = len(waiting) >= _FEW or len(counted) + len(waiting) == x.shape[0]
            fresh, waiting = (waiting, set()) if enough else (set(), waiting)
        counted |= fresh
        if fresh:
            known = combine(known, _gram(x[sorted(fresh)]), merge)
            error = float(((_cosine(known) - exact) ** 2).mean())
        history.append({"round": number, "kernel_error": error, "users": len(counted)})
        progress(number, rounds)
    exact_from = next((r["round"] for r in history if r["kernel_error"] == 0.0), None)
    return {"kernel_error": error, "exact_from": exact_from, "rows": len(counted)}, history


def _gram(x: csr_array) -> NDArray[np.int64]:
    return np.asarray((x.T @ x).toarray(), np.int64)


def _cosine(gram: NDArray[np.int64]) -> NDArray[np.float64]:
    return _COSINE.matrix(gram, 1)
