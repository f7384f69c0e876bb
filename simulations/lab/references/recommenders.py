"""CF-KOMD, item-kNN and popularity on pooled ratings: what FedCFK is compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.learners import Recommender
from fedkern_flwr.gram.matrix import local_support

from ...methods.rating_data import PooledRatings
from ...methods.recommender_oracle import pooled_kernel, rank_all
from ...run.entries import Outcome, Reference

Progress = Callable[[int, int], None]


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


RECOMMENDERS: dict[str, Reference] = {
    "cf-komd": recommender,
    "item-knn": partial(recommender, learner="knn", min_support=5),
    "popularity": partial(recommender, learner="popularity", min_support=5),
}
