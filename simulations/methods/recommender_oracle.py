"""Pooled ranking and baselines for FedCFK."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.messages import RANKING
from fedkern_flwr.gram.recommenders import ItemKernel, Recommender, rank_metrics, top_items

from .rating_data import PooledRatings

COVERAGE = "coverage@10"
#: What a recommender must be better than: name -> learner on pooled ratings.
BASELINES = {"popularity": "popularity", "item-knn": "knn"}


def pooled_kernel(train: csr_array, items: NDArray[Any], kernel: DotKernel) -> ItemKernel:
    """Return the kernel between items from ratings, shape (users, items)."""
    part = train[:, items]
    gram = np.asarray((part.T @ part).toarray(), np.int64)
    return ItemKernel.of_gram(gram, items, train.shape[1], train.shape[0], kernel)


def likes(ratings: csr_array, user: int) -> NDArray[Any]:
    """Return what a user likes, ascending."""
    return np.sort(ratings.indices[ratings.indptr[user] : ratings.indptr[user + 1]])


def rank_all(
    groups: Iterable[tuple[Recommender, NDArray[np.intp]]], pooled: PooledRatings
) -> dict[str, float]:
    """Return the mean metrics of groups of users, each with its recommender.

    AUC, nDCG and recall are over users with ratings in both parts. Coverage is the share of items
    among the ten best of any user.
    """
    totals, judged, shown = np.zeros(len(RANKING)), 0, np.zeros(pooled.train.shape[1], np.bool_)
    for recommender, users in groups:
        missing = recommender.kernel.missing
        for user in users.tolist():
            liked, held = likes(pooled.train, user), likes(pooled.test, user)
            if not len(liked):
                continue
            scores = recommender.scores(liked)
            shown[top_items(scores, np.union1d(liked, missing), 10)] = True
            found = rank_metrics(scores, held, liked) if len(held) else None
            if found is not None:
                totals, judged = totals + found, judged + 1
    if not judged:
        return {}
    means = dict(zip(RANKING, (totals / judged).tolist(), strict=True))
    return {**means, COVERAGE: float(shown.mean())}
