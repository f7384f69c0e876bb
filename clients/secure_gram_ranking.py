"""What a node of FedCFK makes of the kernel of the items: ranks of all items for each user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.item_kernel import ItemKernel
from fedkern_flwr.gram.learners import LEARNERS, REGULARIZATION, Recommender
from fedkern_flwr.gram.plan import RANKING
from fedkern_flwr.gram.ranking import rank_metrics
from fedkern_flwr.gram.recommending import (
    are_positions,
    best_items,
    superset,
    write_recommendations,
)

from .secure_gram_released import disagreement
from .secure_gram_rows import Rows, check_items, liked_items

Ranked = tuple[int, NDArray[np.intp], NDArray[np.float64]]  # row, items that it likes, all scores


def noisy_request(x: Rows, items: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int32]:
    """Return the rows of the kernel of ``items`` that are asked for on behalf of all users."""
    wanted = [
        superset(np.flatnonzero(np.isin(items, liked_items(x, row))), len(items), rng)
        for row in range(x.shape[0])
    ]
    return np.unique(np.concatenate(wanted)).astype(np.int32)


def read_recommender(request: wire.RecommendRequest, columns: int, party: str) -> Recommender:
    """Return what a message brings to rank items with.

    Raises
    ------
    ProtocolError
        The kernel has not the size of the items kept, or of the rows asked for, there is no such
        learner, or the search for lambda is to start elsewhere.
    """
    items = check_items(request.items, columns, party)
    kept, wanted, full = len(items), request.wanted, request.request == "full"
    size = kept * (kept + 1) // 2 if full else len(wanted) * kept
    if request.products.size != size or not are_positions(wanted, kept):
        raise disagreement("its kernel has the wrong size", party)
    if request.learner not in LEARNERS or request.neighbours < 1:
        raise disagreement("it names a learner that is not there", party)
    start = REGULARIZATION[request.learner] if request.tune else request.regularization
    if not 0.0 < request.regularization == start:
        raise disagreement("it sends a lambda that none would send", party)
    numbers = request.degree, request.gamma, request.coef0
    kernel = DotKernel(request.kernel, *numbers, tuple(request.coefficients.tolist()))
    known = kernel, items, columns, request.users, request.mean, request.squares
    rows = (request.products,) if full else (request.products.reshape(-1, kept), wanted)
    how = request.regularization, request.subtract_mean, request.neighbours
    return Recommender(ItemKernel(*known, *rows), request.learner, *how)


def rank_items(x: Rows, recommender: Recommender) -> Iterator[Ranked]:
    """Yield (row, items that it likes, scores of all) of each user."""
    for row in range(x.shape[0]):
        liked = liked_items(x, row)
        yield row, liked, recommender.scores(liked)


def write_best(
    ranked: Iterable[Ranked],
    path: Path,
    top: int,
    missing: NDArray[np.intp],
    users: Sequence[Any] | None,
    items: Sequence[str] | None,
) -> Iterator[Ranked]:
    """Yield what is ranked; then write the best items that a user has not, and none missing."""
    lines = []
    for row, liked, scores in ranked:
        yield row, liked, scores
        user = row if users is None else users[row]
        lines += best_items(user, scores, np.union1d(liked, missing), top, items)
    write_recommendations(path, lines)


def judge(ranked: Iterable[Ranked], x_test: Rows | None) -> NDArray[np.float64]:
    """Return the metrics of the users with items that were held out, summed, and how many."""
    totals = np.zeros(len(RANKING) + 1)
    for row, liked, scores in ranked:
        if x_test is not None and len(liked):
            found = rank_metrics(scores, liked_items(x_test, row), liked)
            if found is not None:
                totals += (*found, 1.0)
    return totals
