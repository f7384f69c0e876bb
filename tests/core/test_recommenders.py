"""Recommenders: CF-KOMD, EASE and item-kNN against plain ones, their lambda, and what ranks say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pooled import over_simplex
from refusals import refuses

from fedkern_flwr.gram import recommenders as rec
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import pack

# -- the quadratic program of CF-KOMD


def violation(q: np.ndarray, c: np.ndarray, a: np.ndarray) -> float:
    """Return by how much the conditions of optimality are violated, relative to the problem."""
    assert a.min() >= 0.0
    assert a.sum() == pytest.approx(1.0, abs=1e-13)
    gradient = q @ a - c
    level = gradient[a > 0].mean()
    spread = np.abs(gradient[a > 0] - level).max()
    below = level - gradient.min()
    return float(max(spread, below) / max(np.abs(q).max(), np.abs(c).max()))


def cosine(items: int, users: int, seed: int) -> np.ndarray:
    """Return the cosine kernel of items that users have with probabilities like popularities."""
    rng = np.random.default_rng(seed)
    x = (rng.random((users, items)) < 0.5 / np.sqrt(1 + np.arange(items))).astype(float)
    x /= np.maximum(np.sqrt((x**2).sum(0)), 1.0)
    return x.T @ x


@st.composite
def programs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float]:
    """Kernels of few features, so singular ones, with duplicates; a mean; a regularization."""
    size, rank = draw(st.integers(1, 30)), draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(rank, size)) if draw(st.booleans()) else rng.integers(0, 2, (rank, size))
    x = x[:, rng.integers(0, size, size)] * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    kernel = x.T @ x
    mean = draw(st.sampled_from([kernel.mean(1), x.T @ rng.normal(size=rank), np.zeros(size)]))
    scale = max(float(kernel.max()), 1e-6)
    return kernel, mean, scale * draw(st.sampled_from([1e-6, 1e-3, 0.1, 10.0]))


@given(programs())
def test_the_conditions_of_optimality_hold(program: Any) -> None:
    kernel, mean, regularization = program
    before = kernel.copy(), mean.copy()
    a = rec.fit_user(kernel, mean, regularization)
    assert violation(kernel + regularization * np.eye(len(mean)), mean, a) < 1e-12
    for now, then in zip((kernel, mean), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("size", [60, 300, 700])
def test_users_of_many_items(size: int) -> None:
    kernel = cosine(900, 500, size)
    liked = np.random.default_rng(0).choice(900, size, replace=False)
    part, mean = kernel[np.ix_(liked, liked)], kernel.mean(1)[liked]
    for regularization in (1e-3, 0.1):
        a = rec.fit_user(part, mean, regularization)
        assert size == 60 or not a.all()
        assert violation(part + regularization * np.eye(size), mean, a) < 1e-12
    np.testing.assert_array_equal(rec.fit_user(part, mean, regularization), a)


def test_programs_and_scores_done_by_hand() -> None:
    a = rec.simplex_qp(np.eye(3), np.array([0.5, 0.25, -1.0]))
    np.testing.assert_allclose(a, [0.625, 0.375, 0.0], atol=1e-15)
    a = rec.fit_user(np.ones((4, 4)), np.full(4, 0.3), 0.1)  # equal items share their weight
    np.testing.assert_allclose(a, 0.25, atol=1e-14)
    assert rec.simplex_qp(np.array([[2.0]]), np.array([-7.0])).tolist() == [1.0]
    assert rec.simplex_qp(np.zeros((0, 0)), np.zeros(0)).shape == (0,)
    assert rec.fit_user(np.zeros((0, 0)), np.zeros(0), 0.1).shape == (0,)
    whole = np.array([[3, 1], [1, 2]])
    one, other = (rec.fit_user(k, np.ones(2), 0.5) for k in (whole, whole.astype(float)))
    np.testing.assert_array_equal(one, other)
    columns, alpha = np.array([[1, 0], [2, 4], [0, 1]]), np.array([0.25, 0.75])
    np.testing.assert_array_equal(rec.item_scores(columns, alpha), [0.25, 3.5, 0.75])
    np.testing.assert_array_equal(rec.item_scores(columns, alpha, np.ones(3)), [-0.75, 2.5, -0.25])
    assert rec.item_scores(np.zeros((3, 0)), np.zeros(0)).tolist() == [0.0, 0.0, 0.0]


@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_adding_one_item_at_a_time_comes_to_the_same(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, size))
    q, c = x.T @ x + 0.05 * np.eye(size), 3.0 * rng.normal(size=size)
    a = np.eye(size)[0]
    for _ in range(200):
        gradient = q @ a - c
        worst = int(np.argmin(np.where(a > 0, math.inf, gradient)))
        if not gradient[worst] < gradient @ a - 1e-12:
            break
        fallen = a @ q @ a - 2 * a @ c
        a = rec._add_one(q, c, a, worst)
        assert a @ q @ a - 2 * a @ c < fallen + 1e-13
    np.testing.assert_allclose(a, rec.simplex_qp(q, c), atol=1e-9)


def test_programs_that_cannot_be_solved_are_refused() -> None:
    split = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for quadratic in (np.ones((3, 3)), -np.eye(3), np.zeros((3, 3)), split):
        refuses("FK-EQUATIONS-SINGULAR", rec.simplex_qp, quadratic, np.ones(3))
    low, whole = cosine(40, 10, 0), cosine(50, 100, 0) + 0.1 * np.eye(50)  # of rank 10
    cases: list[tuple[str, Any]] = [
        ("FK-EQUATIONS-SINGULAR", lambda: rec.fit_user(low, low.mean(1), 0.0)),
        ("FK-EQUATIONS-SINGULAR", lambda: rec.simplex_qp(whole, whole.mean(1) * 5, tolerance=-1.0)),
        ("FK-SHAPE-DIFFERS", lambda: rec.simplex_qp(np.eye(3), np.ones(2))),
        ("FK-OPTION-RANGE", lambda: rec.fit_user(np.eye(2), np.ones(2), -1.0)),
    ]
    for bad in (math.nan, math.inf):
        wrong = np.array([1.0, bad])
        cases += [
            ("FK-VALUES-FINITE", partial(rec.simplex_qp, np.diag(wrong), np.ones(2))),
            ("FK-VALUES-FINITE", partial(rec.simplex_qp, np.eye(2), wrong)),
            ("FK-OPTION-RANGE", partial(rec.fit_user, np.eye(2), np.ones(2), bad)),
        ]
    for code, call in cases:
        refuses(code, call)


# -- the kernel of the items at a device

KERNELS = {
    **{name: DotKernel(name) for name in ("linear", "cosine")},
    **{name: DotKernel(name, degree=2) for name in ("conjunctive", "disjunctive")},
    "rbf": DotKernel("rbf", gamma=0.03),
    "poly": DotKernel("poly", degree=2, gamma=0.1),
    "series": DotKernel("series", coefficients=(0.0, 1.0, 0.5)),
}
USERS, CATALOGUE = 60, 30
#: Items of the matrix: others were suppressed.
ITEMS = np.delete(np.arange(CATALOGUE), [0, 3, 29]).astype(np.int32)


def ratings() -> np.ndarray:
    """Return those of users of two tastes; one likes all."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(CATALOGUE) % 2
    x: np.ndarray = (rng.random((USERS, CATALOGUE)) < np.where(taste, 0.5, 0.1)).astype(np.int64)
    x[40] = 1
    return x


X = ratings()


def of(
    x: np.ndarray, learner: str, lam: float = 5.0, neighbours: int = 100, kernel: str = "cosine"
) -> rec.Recommender:
    part = x[:, ITEMS]
    found = rec.ItemKernel.of_gram(part.T @ part, ITEMS, CATALOGUE, len(x), KERNELS[kernel])
    return rec.Recommender(found, learner, lam, True, neighbours)


@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_scores_are_those_of_cf_komd_with_the_whole_kernel(name: str, subtract: bool) -> None:
    kernel, device, part = KERNELS[name], of(X, "cf-komd", kernel=name).kernel, X[:, ITEMS]
    whole = np.zeros((CATALOGUE, CATALOGUE))  # 0 where an item is suppressed
    whole[np.ix_(ITEMS, ITEMS)] = kernel.matrix(part.T @ part, USERS)
    q, largest = whole.sum(axis=1) / len(ITEMS), np.abs(whole).max()
    np.testing.assert_allclose(device.mean, q[ITEMS], rtol=1e-14)
    for lam in (0.1 * largest, 10.0 * largest):
        for positives in ([1], [0, 2, 5, 7, 11, 28], np.flatnonzero(X[5])):
            liked = np.intersect1d(positives, ITEMS)
            a = over_simplex(whole[np.ix_(liked, liked)] + lam * np.eye(liked.size), q[liked])
            right = whole[:, liked] @ a - (q if subtract else 0.0)
            found = device.scores(np.array(positives), lam, subtract_mean=subtract)
            np.testing.assert_allclose(found, right, atol=1e-8 * largest, rtol=0)
    for nobody in (np.zeros(0, int), np.array([0, 3, 29])):  # what goes with many
        found = device.scores(nobody, 0.1, subtract_mean=subtract)
        np.testing.assert_array_equal(found[ITEMS], device.mean)
        assert not np.delete(found, ITEMS).any()


def test_rows_in_chunks_make_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of(X, "cf-komd").kernel.mean
    for chunk in (1, 40, 10_000):
        monkeypatch.setattr(rec, "_CHUNK", chunk)
        np.testing.assert_array_equal(of(X, "cf-komd").kernel.mean, whole)


@pytest.mark.promise("gram-likes-untold")
def test_a_matrix_that_is_forged_or_cannot_be_fitted_to_still_ranks() -> None:
    """An error would tell the server, whose matrix it is, what the user likes."""
    rng = np.random.default_rng(1)
    parts = [(rng.random((2, 6)) < 0.7).astype(int) for _ in range(5)]
    k: np.ndarray = np.max([p.T @ p for p in parts], axis=0)
    least = np.linalg.eigvalsh(k)[0]
    assert least < -0.1  # no kernel
    items, q = np.arange(6, dtype=np.int32), k.mean(axis=1)
    device = rec.ItemKernel(DotKernel("linear"), items, 6, 5, q, k.diagonal(), pack(rec.compact(k)))
    found = device.scores(items, 1e-4)
    a = over_simplex(k + (1e-3 - least) * np.eye(6), q)
    np.testing.assert_allclose(found, k @ a - q, atol=1e-5)
    honest = of(X, "ease").kernel
    nobody = honest.scores(np.zeros(0, int), 0.1)
    np.testing.assert_array_equal(honest.scores(np.array([1, 2]), -1.0), nobody)
    forged = replace(honest, products=np.zeros_like(honest.products) + 1000)
    for learner in ("ease", "knn"):
        some = rec.Recommender(forged, learner, 1e-9)
        for own in (None, np.arange(CATALOGUE)):
            assert not np.isnan(some.scores(np.array([1, 4]), own)).any()


def test_numbers_take_as_few_bytes_as_they_can() -> None:
    ends = [(0, 2), (2**16 - 1, 2), (2**16, 4), (2**32 - 1, 4), (2**32, 8), (2**62, 8)]
    for largest, size in ends:
        numbers = np.array([[0, 1], [largest, 1]], np.int64)
        found = rec.compact(numbers)
        assert found.dtype == f"u{size}"
        np.testing.assert_array_equal(found.astype(np.int64), numbers)
    assert rec.compact(np.zeros((0, 0), np.int64)).dtype == "u2"


# -- EASE and item-kNN


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
    for user in range(5):
        found = of(X, "ease", lam).scores(np.flatnonzero(X[user]))
        np.testing.assert_allclose(found[ITEMS], ease(X, X[user], lam, X), atol=1e-10)
        assert np.isneginf(np.delete(found, ITEMS)).all()


@pytest.mark.parametrize("learner", ["ease", "cf-komd"])
def test_a_users_own_row_can_be_taken_out_of_the_matrix(learner: str) -> None:
    """What popular items weigh in EASE, and q, a mean over all items, keep the row."""
    for user in range(5):
        own, rest = np.flatnonzero(X[user]), np.delete(X, user, axis=0)
        found = of(X, learner).scores(own[:-2], own)
        if learner == "cf-komd":
            others = of(rest, learner)
            mean = of(X, learner).kernel.mean
            others = replace(others, kernel=replace(others.kernel, mean=mean))
            np.testing.assert_allclose(found, others.scores(own[:-2]), atol=1e-9)
        else:
            liked = np.isin(np.arange(CATALOGUE), own[:-2]).astype(float)
            np.testing.assert_allclose(found[ITEMS], ease(rest, liked, 5.0, X), atol=1e-9)


def test_knn_sums_the_cosines_to_those_neighbours_that_a_user_likes() -> None:
    part = X[:, ITEMS].astype(float)
    unit = part / np.linalg.norm(part, axis=0)
    near = unit.T @ unit
    np.fill_diagonal(near, 0.0)
    found = of(X, "knn", neighbours=7).scores(np.flatnonzero(X[4]))[ITEMS]
    for i in range(len(ITEMS)):
        last = np.sort(near[i])[-7]
        liked = [j for j in range(len(ITEMS)) if X[4, ITEMS[j]] and near[i, j] >= last - 1e-12]
        assert found[i] == pytest.approx(sum(near[i, liked]), abs=1e-12)
    for learner in ("ease", "knn", "popularity"):
        for unknown in (np.zeros(0, int), np.array([0, 3])):  # gets what most have
            found = of(X, learner).scores(unknown)[ITEMS]
            np.testing.assert_array_equal(found, X[:, ITEMS].sum(axis=0))


# -- the choice of lambda


def test_lambda_is_chosen_by_ratings_that_the_matrix_never_saw() -> None:
    """Of ratings without any taste the best lambda is large; those of the matrix want a small."""
    rng = np.random.default_rng(1)
    popular = rng.uniform(0.05, 0.6, CATALOGUE)
    x = (rng.random((USERS, CATALOGUE)) < popular).astype(np.int64)
    liked = [np.flatnonzero(row) for row in x]
    start = of(x, "ease", 2.0)
    honest, up = start.tuned(liked)
    seen, down = start.tuned(liked, summed=False)
    assert honest.regularization == 2.0 * rec.STEP**up > 2.0 > seen.regularization
    assert -rec.MOST_STEPS <= down < 0 < up <= rec.MOST_STEPS
    assert start.tuned(liked[:4]) == start.tuned(liked, fewest=USERS + 1) == (start, 0)
    assert of(x, "knn").tuned(liked)[1] == 0
    assert set(rec.REGULARIZATION) == {"ease", "cf-komd", "knn"}


@pytest.mark.promise("gram-lambda")
def test_no_single_user_moves_lambda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forged matrix may be one of which a single user's figure depends on lambda."""
    ranks, liked = of(X, "ease"), [np.array([1, 2])] * 17
    for gain in np.random.default_rng(2).random(50):
        for movers, moves in ((1, False), (2, True)):
            gains = np.where(np.arange(len(liked)) < movers, gain, 0.0)

            def figures(recommender: rec.Recommender, *_: Any, gains: Any = gains) -> Any:
                return gains * (recommender.regularization > 5.0)

            monkeypatch.setattr(rec.Recommender, "_validate", figures)
            assert (ranks.tuned(liked)[1] > 0) == moves


# -- how good ranks are

NONE = np.array([], np.int64)


@st.composite
def users(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of up to 12 items with many ties, and the role of each: held out, excluded, other."""
    items = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=12))
    scores, roles = np.array(items).T
    return scores.astype(float), np.flatnonzero(roles == 0), np.flatnonzero(roles == 1)


@given(users(), st.integers(1, 5))
def test_ties_count_half_and_are_ranked_by_index(user: Any, cutoff: int) -> None:
    scores, relevant, excluded = user
    candidates = [k for k in range(scores.size) if k not in excluded]
    others = [k for k in candidates if k not in relevant]
    assume(relevant.size > 0 and others)
    pairs = [
        (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i in relevant for j in others
    ]
    ranked = sorted(candidates, key=lambda k: (-scores[k], k))
    gains = [1.0 / math.log2(2 + rank) for rank in range(scores.size)]
    found = [rank for rank, k in enumerate(ranked[:cutoff]) if k in relevant]
    ideal = sum(gains[: min(relevant.size, cutoff)])
    assert rec.rank_metrics(scores, relevant, excluded, ((cutoff, cutoff),)) == pytest.approx(
        (np.mean(pairs), sum(gains[rank] for rank in found) / ideal, len(found) / relevant.size)
    )
    assert rec.top_items(scores, excluded, cutoff).tolist() == ranked[:cutoff]


def test_metrics_done_by_hand() -> None:
    falling, rising = np.arange(10.0)[::-1], np.arange(3.0)
    assert rec.rank_metrics(falling, np.arange(5), NONE, ((2, 2),)) == (1.0, 1.0, 0.4)
    # what is held out and excluded does not count
    assert rec.rank_metrics(rising, np.array([1, 2]), np.array([1])) == (1.0,) * 5
    for relevant, excluded in (([], [0]), ([0, 1, 2], []), ([0], [1, 2]), ([0], [0])):
        held_out, seen = np.array(relevant, np.int64), np.array(excluded, np.int64)
        assert rec.rank_metrics(rising, held_out, seen) is None  # there are no pairs
    scores = np.array([1.0, 5.0, 5.0, 7.0])
    assert rec.top_items(scores, np.arange(4), 2).tolist() == []
    assert rec.top_items(scores, NONE, 9).tolist() == [3, 1, 2, 0]
    for code, call in (
        ("FK-OPTION-RANGE", lambda: rec.rank_metrics(rising, np.array([0]), NONE, ((0, 1),))),
        ("FK-OPTION-RANGE", lambda: rec.top_items(rising, NONE, 0)),
        ("FK-VALUES-FINITE", lambda: rec.top_items(np.array([1.0, math.nan]), NONE, 1)),
    ):
        refuses(code, call)
