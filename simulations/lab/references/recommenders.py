"""What FedCFK is compared with: other learners on pooled ratings, and the paper's rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import local_support
from fedkern_flwr.gram.recommenders import Recommender
from fedkern_flwr.options import at_least
from fedkern_flwr.seeding import derive_seed

from ...methods.rating_data import PooledRatings
from ...methods.recommender_oracle import pooled_kernel, rank_all
from ...papers.secure_gram import kernel_round, random_users
from ...run.entries import Outcome, Reference

Progress = Callable[[int, int], None]
_FEW = 5  # users that a disjoint sum of a round has at least
_COSINE = DotKernel("cosine")


def recommender(
    pooled: PooledRatings,
    *,
    seed: int,
    progress: Progress,
    learner: str = "cf-komd",
    kernel: str = "cosine",
    regularization: float = 0.1,
    min_support: int = 0,
) -> Outcome:
    """Recommend from pooled ratings.

    Parameters
    ----------
    pooled : PooledRatings
        The data.
    seed : int
        Not used.
    progress : callable
        Called with steps done and steps in all.
    learner : str (default: "cf-komd")
        What ranks the items.
    kernel : str (default: "cosine")
        Kernel between items.
    regularization : float (default: 0.1)
        lambda.
    min_support : int (default: 0)
        Items of fewer users are left out.

    Returns
    -------
    metrics : dict
    history : list of dict
        Empty.
    """
    counts = local_support(pooled.train)
    items = np.flatnonzero(counts >= max(1, min_support))
    users = np.arange(pooled.train.shape[0])
    found = pooled_kernel(pooled.train, items, DotKernel(kernel))
    metrics = rank_all([(Recommender(found, learner, regularization), users)], pooled)
    progress(1, 1)
    return {**metrics, "items": len(items), "rows": len(users)}, []


def kernel_rounds(
    pooled: PooledRatings,
    *,
    seed: int,
    progress: Progress,
    share: float,
    disjoint: bool = False,
    rounds: int = 200,
) -> Outcome:
    """Improve the kernel over rounds in which a random share of the users answers (Figure 1).

    The paper keeps the entrywise maximum of the sums. Disjoint sums count a user once and add up: a
    round sums those who have not been counted before, and waits for more if they are fewer than
    five. A secure sum is exact, so the rounds are made here, without nodes; no items are left out.

    Parameters
    ----------
    pooled : PooledRatings
        The data.
    seed : int
        Of the users of each round, the same for both rules.
    progress : callable
        Called with rounds done and rounds in all.
    share : float
        Of the users, in a round.
    disjoint : bool (default: False)
        Whether a user counts once, and sums add up.
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
    at_least("rounds", rounds, 1)
    x = pooled.train + pooled.test
    exact = _COSINE.matrix(kernel_round(x, range(x.shape[0]))[0], 1)
    known: NDArray[np.int64] | None = None
    counted, waiting = set[int](), set[int]()
    history: list[dict[str, Any]] = []
    error = float((exact**2).mean())
    for number in range(1, rounds + 1):
        rng = np.random.default_rng(derive_seed(seed, "participants", number))
        fresh = set(random_users(x.shape[0], share, rng).tolist())
        if disjoint:
            waiting |= fresh - counted
            enough = len(waiting) >= _FEW or len(counted) + len(waiting) == x.shape[0]
            fresh, waiting = (waiting, set()) if enough else (set(), waiting)
        counted |= fresh
        if fresh and disjoint:
            more, _ = kernel_round(x, sorted(fresh))
            known = more if known is None else known + more
        elif fresh:
            known, _ = kernel_round(x, sorted(fresh), known)
        if fresh and known is not None:
            error = float(((_COSINE.matrix(known, 1) - exact) ** 2).mean())
        history.append({"round": number, "kernel_error": error, "users": len(counted)})
        progress(number, rounds)
    exact_from = next((r["round"] for r in history if r["kernel_error"] == 0.0), None)
    return {"kernel_error": error, "exact_from": exact_from, "rows": len(counted)}, history


RECOMMENDERS: dict[str, Reference] = {
    "cf-komd": recommender,
    "item-knn": partial(recommender, learner="knn", min_support=5),
    "kernel-rounds": kernel_rounds,
    "popularity": partial(recommender, learner="popularity", min_support=5),
}
