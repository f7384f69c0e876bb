"""EASE, item-kNN and popularity from the matrix, against plain ones on the ratings; lambda."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.recommenders import MOST_STEPS, REGULARIZATION, STEP, ItemKernel, Recommender

USERS, CATALOGUE = 60, 30
#: Items of the matrix: others were suppressed.
ITEMS = np.delete(np.arange(CATALOGUE), [0, 3, 29]).astype(np.int32)


def ratings(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(CATALOGUE) % 2
    x: np.ndarray = (rng.random((USERS, CATALOGUE)) < np.where(taste, 0.5, 0.1)).astype(np.int64)
    return x


def of(x: np.ndarray, learner: str, lam: float = 5.0, neighbours: int = 100) -> Recommender:
    part = x[:, ITEMS]
    kernel = ItemKernel.of_gram(part.T @ part, ITEMS, CATALOGUE, len(x), DotKernel("cosine"))
    return Recommender(kernel, learner, lam, True, neighbours)


def ease(x: np.ndarray, row: np.ndarray, lam: float, counted: np.ndarray) -> np.ndarray:
    """Ridge regression of each item on the others, from the ratings themselves.

    Other items are penalised by lambda and by a quarter of how many rows they have: those that a
    share of a fifth is left out of.
    """
    part, scores = x[:, ITEMS].astype(float), np.empty(len(ITEMS))
    penalty = lam + 0.25 * counted[:, ITEMS].sum(axis=0)
    for i in range(len(ITEMS)):
        others = np.delete(part, i, axis=1)
        ridge = others.T @ others + np.diag(np.delete(penalty, i))
        scores[i] = np.delete(row[ITEMS], i) @ np.linalg.solve(ridge, others.T @ part[:, i])
    return scores


@pytest.mark.parametrize("lam", [0.5, 30.0])
def test_ease_is_a_ridge_regression_of_each_item_on_the_others(lam: float) -> None:
    x = ratings()
    for user in range(5):
        found = of(x, "ease", lam).scores(np.flatnonzero(x[user]))
        np.testing.assert_allclose(found[ITEMS], ease(x, x[user], lam, x), atol=1e-10)
        assert np.isneginf(found[[0, 3, 29]]).all()


@pytest.mark.parametrize("learner", ["ease", "cf-komd"])
def test_a_users_own_row_can_be_taken_out_of_the_matrix(learner: str) -> None:
    x = ratings()
    for user in range(5):
        own = np.flatnonzero(x[user])
        others = of(np.delete(x, user, axis=0), learner)
        if learner == "cf-komd":  # q, a mean over all items, keeps the row
            mean = of(x, learner).kernel.mean
            others = replace(others, kernel=replace(others.kernel, mean=mean))
        found, right = of(x, learner).scores(own[:-2], own), others.scores(own[:-2])
        if learner == "ease":  # what popular items weigh keeps the row
            liked = np.isin(np.arange(CATALOGUE), own[:-2])
            right[ITEMS] = ease(np.delete(x, user, axis=0), liked.astype(float), 5.0, x)
        np.testing.assert_allclose(found, right, atol=1e-9)


def test_knn_sums_the_cosines_to_those_neighbours_that_a_user_likes() -> None:
    x = ratings()
    part = x[:, ITEMS].astype(float)
    unit = part / np.linalg.norm(part, axis=0)
    cosine = unit.T @ unit
    np.fill_diagonal(cosine, 0.0)
    found = of(x, "knn", neighbours=7).scores(np.flatnonzero(x[4]))[ITEMS]
    for i in range(len(ITEMS)):
        near = np.sort(cosine[i])[-7]
        liked = [j for j in range(len(ITEMS)) if x[4, ITEMS[j]] and cosine[i, j] >= near - 1e-12]
        assert found[i] == pytest.approx(sum(cosine[i, liked]), abs=1e-12)


@pytest.mark.parametrize("learner", ["ease", "knn", "popularity"])
def test_who_likes_nothing_of_the_matrix_gets_what_most_have(learner: str) -> None:
    x = ratings()
    for liked in (np.zeros(0, int), np.array([0, 3])):
        found = of(x, learner).scores(liked)[ITEMS]
        np.testing.assert_array_equal(found, x[:, ITEMS].sum(axis=0))


def test_a_forged_matrix_gives_popularity_and_no_error() -> None:
    """An error would tell the server, whose matrix it is, what the user likes."""
    honest = of(ratings(), "ease").kernel
    forged = replace(honest, products=np.zeros_like(honest.products) + 1000)
    for learner in ("ease", "knn"):
        some = Recommender(forged, learner, 1e-9)
        for own in (None, np.arange(CATALOGUE)):
            assert not np.isnan(some.scores(np.array([1, 4]), own)).any()


def test_lambda_is_chosen_by_ratings_that_the_matrix_never_saw() -> None:
    """Of ratings without any taste the best lambda is large; those of the matrix want a small."""
    rng = np.random.default_rng(1)
    popular = rng.uniform(0.05, 0.6, CATALOGUE)
    x = (rng.random((USERS, CATALOGUE)) < popular).astype(np.int64)
    liked = [np.flatnonzero(row) for row in x]
    start = of(x, "ease", 2.0)
    honest, up = start.tuned(liked)
    seen, down = start.tuned(liked, summed=False)
    assert honest.regularization == 2.0 * STEP**up > 2.0 > seen.regularization
    assert -MOST_STEPS <= down < 0 < up <= MOST_STEPS
    assert start.tuned(liked[:4]) == start.tuned(liked, fewest=USERS + 1) == (start, 0)
    assert of(x, "knn").tuned(liked)[1] == 0
    assert set(REGULARIZATION) == {"ease", "cf-komd", "knn"}


def test_no_single_user_moves_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged matrix may be one of which a single user's figure depends on lambda."""
    rng = np.random.default_rng(2)
    liked = [np.array([1, 2])] * 17
    for gain in rng.random(200):
        for movers, moves in ((1, False), (2, True)):
            gains = np.where(np.arange(len(liked)) < movers, gain, 0.0)

            def figures(recommender: Recommender, *_: Any, gains: Any = gains) -> Any:
                return gains * (recommender.regularization > 5.0)

            monkeypatch.setattr(Recommender, "_validate", figures)
            assert (of(ratings(), "ease").tuned(liked)[1] > 0) == moves
