"""What FedCFK is compared with in a simulation: the kernel and the ranking of pooled ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.item_kernel import ItemKernel
from fedkern_flwr.gram.plan import RANKING
from fedkern_flwr.gram.ranking import rank_metrics

from .rating_data import PooledRatings


def pooled_kernel(train: csr_array, items: NDArray[Any], kernel: DotKernel) -> ItemKernel:
    """Return the kernel between some items from the ratings of users, shape (users, items)."""
    part = train[:, items]
    gram = np.asarray((part.T @ part).toarray(), np.int64)
    return ItemKernel.of_gram(gram, items, train.shape[1], train.shape[0], kernel)


def rank_all(
    kernel: ItemKernel,
    pooled: PooledRatings,
    users: NDArray[np.intp],
    regularization: float,
    *,
    subtract_mean: bool = True,
) -> dict[str, float]:
    """Return the mean AUC, nDCG@100 and recall@100 of users with ratings in both parts."""
    totals, judged = np.zeros(len(RANKING)), 0
    for user in users.tolist():
        liked, held = (np.sort(part[[user]].indices) for part in (pooled.train, pooled.test))
        if not len(liked) or not len(held):
            continue
        scores = kernel.scores(liked, regularization, subtract_mean=subtract_mean)
        found = rank_metrics(scores, held, liked)
        if found is not None:
            totals, judged = totals + found, judged + 1
    if not judged:
        return {}
    return dict(zip(RANKING, (totals / judged).tolist(), strict=True))
