"""Ratings: files of them, and recommenders against plain ones, their lambda, and what ranks say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pooled import over_simplex
from pyarrow import parquet
from refusals import refused, refuses

from fedkern_flwr import interactions as files
from fedkern_flwr.gram import recommenders as rec
from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.gram.matrix import pack
from fedkern_flwr.interactions import Interactions, load_interactions, read_catalogue

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
USERS, MANY = 60, 30
#: Items of the matrix: others were suppressed.
ITEMS = np.delete(np.arange(MANY), [0, 3, 29]).astype(np.int32)


def ratings() -> np.ndarray:
    """Return those of users of two tastes; one likes all."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(MANY) % 2
    x: np.ndarray = (rng.random((USERS, MANY)) < np.where(taste, 0.5, 0.1)).astype(np.int64)
    x[40] = 1
    return x


X = ratings()


def of(
    x: np.ndarray, learner: str, lam: float = 5.0, neighbours: int = 100, kernel: str = "cosine"
) -> rec.Recommender:
    part = x[:, ITEMS]
    found = rec.ItemKernel.of_gram(part.T @ part, ITEMS, MANY, len(x), KERNELS[kernel])
    return rec.Recommender(found, learner, lam, True, neighbours)


@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("name", KERNELS)
def test_scores_are_those_of_cf_komd_with_the_whole_kernel(name: str, subtract: bool) -> None:
    kernel, device, part = KERNELS[name], of(X, "cf-komd", kernel=name).kernel, X[:, ITEMS]
    whole = np.zeros((MANY, MANY))  # 0 where an item is suppressed
    whole[np.ix_(ITEMS, ITEMS)] = kernel.matrix(part.T @ part, USERS)
    q, largest = whole.sum(axis=1) / len(ITEMS), np.abs(whole).max()
    np.testing.assert_allclose(device.mean, q[ITEMS], rtol=1e-14)
    for lam in (0.1 * largest, 10.0 * largest):
        for positives in ([1], [0, 2, 5, 7, 11, 28], np.flatnonzero(X[5])):
            liked = np.intersect1d(positives, ITEMS)
            a = over_simplex(whole[np.ix_(liked, liked)] + lam * np.eye(liked.size), q[liked])
            right = whole[:, liked] @ a - (q if subtract else 0.0)
            ranks = rec.Recommender(device, "cf-komd", lam, subtract)
            found = ranks.scores(np.array(positives))
            np.testing.assert_allclose(found, right, atol=1e-8 * largest, rtol=0)
    for nobody in (np.zeros(0, int), np.array([0, 3, 29])):  # what goes with many
        found = rec.Recommender(device, "cf-komd", 0.1, subtract).scores(nobody)
        np.testing.assert_array_equal(found[ITEMS], device.mean)
        assert not np.delete(found, ITEMS).any()


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
    found = rec.Recommender(device, "cf-komd", 1e-4).scores(items)
    a = over_simplex(k + (1e-3 - least) * np.eye(6), q)
    np.testing.assert_allclose(found, k @ a - q, atol=1e-5)
    honest = of(X, "ease").kernel
    unfit = rec.Recommender(honest, "cf-komd", -1.0)
    np.testing.assert_array_equal(unfit.scores(np.array([1, 2])), unfit.scores(np.zeros(0, int)))
    forged = replace(honest, products=np.zeros_like(honest.products) + 1000)
    for learner in ("ease", "knn"):
        some = rec.Recommender(forged, learner, 1e-9)
        for own in (None, np.arange(MANY)):
            assert not np.isnan(some.scores(np.array([1, 4]), own)).any()


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
            liked = np.isin(np.arange(MANY), own[:-2]).astype(float)
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
    popular = rng.uniform(0.05, 0.6, MANY)
    x = (rng.random((USERS, MANY)) < popular).astype(np.int64)
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


# -- loading interactions of users with items, and holding some of them out


# Users 2 and 10, items 5 and 30: in numerical order, which is not that of the text.
ROWS = [("10", "30", "4", "300"), ("2", "30", "2.5", "100"), ("10", "5", "5", "200")]
HEADERS = {
    "ml.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n",
    "ml.tsv": "user_id\titem_id\trating\ttimestamp\n",
    "ml.csv": "userId,movieId,rating,timestamp\n",
}
SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ml.inter": "\t", "ml.tsv": "\t", "ml.csv": ","}
NAME = pytest.mark.parametrize("name", SEPARATORS)


def write(folder: Path, name: str, rows: Any = ROWS, header: str | None = None) -> Path:
    lines = [SEPARATORS[name].join(row) for row in rows]
    text = (HEADERS.get(name, "") if header is None else header) + "\n".join(lines) + "\n"
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def pq(folder: Path, **columns: Any) -> Path:
    path = folder / "ml.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def check(interactions: Interactions) -> None:
    assert interactions.user_ids == ("2", "10")
    assert interactions.item_ids == ("5", "30")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 0])
    np.testing.assert_array_equal(interactions.rating, [4, 2.5, 5])
    np.testing.assert_array_equal(interactions.time, [300, 100, 200])
    assert interactions.user.dtype == interactions.item.dtype == np.intp
    assert interactions.rating.dtype == np.float64
    assert (interactions.rows, interactions.users, interactions.items) == (3, 2, 2)
    assert repr(interactions) == "Interactions(3 rows, 2 users, 2 items)"  # and no id
    assert interactions.rated


# -- reading


@NAME
def test_every_text_format_is_read(tmp_path: Path, name: str) -> None:
    check(load_interactions(write(tmp_path, name)))
    turned = load_interactions(write(tmp_path, name, ROWS[::-1]))
    assert (turned.user_ids, turned.item_ids) == (("2", "10"), ("5", "30"))
    np.testing.assert_array_equal(turned.user, [1, 0, 1])
    untimed = [(*row[:3], "yesterday") for row in ROWS]
    found = load_interactions(write(tmp_path, name, untimed), timed=False)
    np.testing.assert_array_equal(found.rating, [4, 2.5, 5])
    assert found.time is None
    header = HEADERS.get(name, "").replace("\n", "").split(SEPARATORS[name])[:2]
    text = SEPARATORS[name].join(header) + "\n" if name in HEADERS else ""
    found = load_interactions(write(tmp_path, name, [row[:2] for row in ROWS], text))
    np.testing.assert_array_equal(found.rating, [1, 1, 1])
    assert found.time is None
    assert not found.rated
    assert files.has_header(name) == (name in HEADERS)


def test_a_parquet_file_is_read_with_the_types_it_has(tmp_path: Path) -> None:
    path = pq(
        tmp_path,
        user_id=pa.array([10, 2, 10]),
        item_id=pa.array(["30", "30", "5"]).dictionary_encode(),
        rating=pa.array([4, 2.5, 5], pa.float32()),
        timestamp=pa.array([300, 100, 200], pa.timestamp("s")),
        title=["a", "b", "c"],
    )
    check(load_interactions(path))


def test_windows_lines_a_byte_order_mark_and_spaces_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "ml.csv"
    lines = (" {} , {} ,+{},{}\r\n".format(*row) for row in ROWS)
    path.write_bytes(b"\xef\xbb\xbfuser,item,rating,time\r\n" + "".join(lines).encode())
    check(load_interactions(path))


def test_columns_may_be_named_and_others_are_not_read(tmp_path: Path) -> None:
    rows = [("no number", *row) for row in ROWS]
    path = write(tmp_path, "ml.csv", rows, "rating,who,what,stars,when\n")
    check(load_interactions(path, user="who", item="what", rating="stars", time="when"))
    path = write(tmp_path, "ml.inter", header="session:token\ta:token\tb:float\tc:float\n")
    for user in ("session", "session:token"):  # with its type, or without
        check(load_interactions(path, user=user, item="a", rating="b", time="c"))


def test_ids_are_ordered_as_text_unless_all_are_whole_numbers(tmp_path: Path) -> None:
    rows = [("10", "b", "1", "1"), ("9", "10", "1", "1"), ("x", "9", "1", "1")]
    found = load_interactions(write(tmp_path, "u.data", rows))
    assert (found.user_ids, found.item_ids) == (("10", "9", "x"), ("10", "9", "b"))
    rows = [("007", "-1", "1", "1"), ("7", "-20", "1", "1"), ("11", "0", "1", "1")]
    found = load_interactions(write(tmp_path, "u.data", rows))
    assert (found.user_ids, found.item_ids) == (("007", "7", "11"), ("-20", "-1", "0"))


def test_files_of_interactions_are_told_by_name() -> None:
    for name in ("u.data", "ml.data", "ratings.dat", "ml-1m.INTER"):
        assert files.is_interactions(f"/some/where/{name}")
    for name in ("ml.csv", "ml.parquet", "iris", "u.data.npz"):
        assert not files.is_interactions(Path(name))


# -- a catalogue

CATALOGUE = ("40", "30", "05", "5")


@NAME
def test_items_have_their_position_in_the_catalogue(tmp_path: Path, name: str) -> None:
    interactions = load_interactions(write(tmp_path, name), catalogue=CATALOGUE)
    assert interactions.item_ids == CATALOGUE
    np.testing.assert_array_equal(interactions.item, [1, 1, 3])
    np.testing.assert_array_equal(interactions.matrix().toarray(), [[0, 1, 0, 0], [0, 1, 0, 1]])
    assert interactions.notes == ()
    one = load_interactions(write(tmp_path, name, ROWS[:1]), catalogue=CATALOGUE)
    np.testing.assert_array_equal(one.matrix().toarray(), [[0, 1, 0, 0]])


def test_rows_of_unknown_items_are_refused_or_left_out_and_their_users_stay(tmp_path: Path) -> None:
    more = [("99", "s3cret", "1", "1"), ("10", "s3cret", "1", "1"), ("99", "s3cret", "1", "1")]
    path = write(tmp_path, "ml.csv", [*more, *ROWS])
    caught = refuses("FK-ITEMS-UNKNOWN", load_interactions, path, catalogue=("30", "7"))
    assert "4 rows of ml.csv name 2 items" in str(caught)
    assert "s3cret" not in str(caught)
    interactions = load_interactions(path, catalogue=("5", "30"), unknown="drop")
    assert interactions.user_ids == ("2", "10", "99")
    np.testing.assert_array_equal(interactions.user, [1, 0, 1])
    np.testing.assert_array_equal(interactions.item, [1, 1, 0])
    np.testing.assert_array_equal(interactions.time, [300, 100, 200])
    (note,) = interactions.notes
    assert "3 rows of ml.csv" in note
    assert load_interactions(path, catalogue=("6", "7"), unknown="drop").rows == 0
    refuses("FK-OPTION-CHOICE", load_interactions, path, unknown="keep")  # type: ignore[arg-type]


@pytest.mark.parametrize("catalogue", [CATALOGUE, ()])
def test_a_file_may_have_no_rows_if_that_is_said(tmp_path: Path, catalogue: Any) -> None:
    nothing = dict.fromkeys(("user", "item", "rating", "time"), pa.array([]))
    for path in (pq(tmp_path, **nothing), *(write(tmp_path, name, []) for name in HEADERS)):
        refuses("FK-ROWS-NONE", load_interactions, path, catalogue=catalogue or None)
        found = load_interactions(path, catalogue=catalogue or None, allow_empty=True)
        assert (found.rows, found.users, found.item_ids) == (0, 0, catalogue)
        assert found.rated
        assert found.time is not None
        assert found.matrix().shape == (0, len(catalogue))
        path.write_text("")
        with refused("FK-FILE-EMPTY", "FK-FILE-FORMAT"):
            load_interactions(path, catalogue=catalogue or None, allow_empty=True)


CATALOGUES = {
    "items.txt": "40\n 30\r\n05\n5\n\n",
    "items.csv": '\ufeffTitle,movieId,movie\n"a, b",40,1\n,30,2\nc,05,3\n"""",5,4\n',
    "items.tsv": 'item\ttitle\n40\t"a\n30\tb\n05\tc\n5\t\n',
    "ml.item": 'item_id:token\tmovie_title:token_seq\n40\t"a\n30\tb\n05\tc\n5\td"\n',
    "ids.CSV": "Item_ID\n40\n30\n05\n5\n",
}


def test_every_kind_of_catalogue_is_read_in_its_order(tmp_path: Path) -> None:
    for name, text in CATALOGUES.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        assert read_catalogue(path) == read_catalogue(str(path)) == CATALOGUE, name
    assert read_catalogue(pq(tmp_path, itemId=[7, 3], item_genre=["a", "b"])) == ("7", "3")
    assert read_catalogue(pq(tmp_path, item=pa.array(CATALOGUE).dictionary_encode())) == CATALOGUE


# -- what is wrong with a file: its name, its content (None: no file), the code

Bad = dict[str, dict[str, list[bytes | None]]]
BAD_CATALOGUES: Bad = {
    "FK-FILE-READ": {"items.txt": [None]},
    "FK-FILE-EMPTY": {"items.txt": [b"", b"\n \n"]},
    "FK-FILE-SUFFIX": {"u.data": [b"1"]},
    "FK-FILE-FORMAT": {f"i.{end}": [b"item\n\xff\n\xfe\n"] for end in ("txt", "csv", "parquet")},
    "FK-IDS-MISSING": {"i.txt": [b"s3cret\n\nb\n"], "i.tsv": [b"item\tyear\ns3cret\t1\n\t2\n"]},
    "FK-IDS-DUPLICATE": {"items.txt": [b"s3cret\nb\ns3cret \n"]},
    "FK-ITEMS-FEW": {"items.txt": [b"s3cret"], "items.csv": [b"item,year\n"]},
    "FK-COLUMN-UNNAMED": {
        "items.csv": [b"s3cret\nb\nc\n", b"item,movieId\na,1\nb,2\n"],
        "u.item": [b"1|s3cret|1995\n2|b|1994\n"],
    },
    "FK-FILE-COLUMNS": {"items.csv": [b"item\na\nb,c\n"]},
}
BAD_FILES: Bad = {
    "FK-FILE-READ": {"u.data": [None]},
    "FK-FILE-SUFFIX": {"u.txt": [b"a"]},
    "FK-FILE-EMPTY": {"u.data": [b"", b"\n \n"]},
    "FK-ROWS-NONE": {"m.csv": [b"user,item\n"]},
    "FK-FILE-FORMAT": {"m.csv": [b"user,item\n\xff,\xff\n"], "m.parquet": [b"PAR1"]},
    "FK-FILE-COLUMNS": {
        "u.data": [b"1,2,3,4\n", b"1\t1\t1\t1\n1\t2\ts3cret\n"],
        "r.dat": [b"1::2::3::4::5\n"],
        "m.csv": [b"user,item\n1,1\n1,2,s3cret\n"],
    },
    "FK-FILE-HEADER": {"m.csv": [b"s3cret,2\n1,3\n"]},  # a cell is no name to be listed
    "FK-COLUMN-UNNAMED": {"m.csv": [b"who,movieId\na,b\n", b"user,item,movieId\na,b,c\n"]},
}


@pytest.mark.parametrize("read", [read_catalogue, load_interactions])
def test_a_bad_file_is_one_line_without_its_ids(tmp_path: Path, read: Any) -> None:
    cases = (BAD_CATALOGUES if read is read_catalogue else BAD_FILES).items()
    named = ((code, *one) for code, some in cases for one in some.items())
    found = ((code, name, content) for code, name, contents in named for content in contents)
    for code, name, content in found:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        caught = refuses(code, read, tmp_path / name)
        assert caught.remedy
        assert "s3cret" not in str(caught)
    (tmp_path / "folder.data").mkdir()
    refuses("FK-FILE-FOLDER", read, tmp_path / "folder.data")


BAD_RATINGS = ("s3cret", "", "nan", "-inf", "1e999")
BAD_CELLS: list[tuple[tuple[str, ...], str]] = [
    *((("2", "5", rating, "1"), "FK-VALUES-FINITE") for rating in BAD_RATINGS),
    (("2", "5", "1", " "), "FK-VALUES-FINITE"),
    *((row, "FK-IDS-MISSING") for row in ((" ", "5", "1", "1"), ("2", "", "1", "1"))),
    (ROWS[1], "FK-PAIRS-TWICE"),
]


@pytest.mark.parametrize(("row", "code"), BAD_CELLS)
def test_a_bad_cell_is_counted_not_quoted(tmp_path: Path, row: tuple[str, ...], code: str) -> None:
    path = write(tmp_path, "u.data", [*ROWS, row])
    for catalogue in (None, CATALOGUE):
        caught = refuses(code, load_interactions, path, catalogue=catalogue)
        assert "1 rows" in str(caught)
        assert ("in row 4" in str(caught)) == (code != "FK-PAIRS-TWICE")
        assert "s3cret" not in str(caught)
    for few in (ROWS[::2], ROWS[:2]):  # one user; one item
        refuses("FK-ITEMS-FEW", load_interactions, write(tmp_path, "u.data", few))


TYPES: list[tuple[str, Any, str]] = [
    ("user", [1.0, 2.0], "FK-IDS-TYPE"), ("item", [1.5, 2.5], "FK-IDS-TYPE"),
    ("item", [None, "a"], "FK-IDS-MISSING"), ("rating", [None, 1.0], "FK-VALUES-FINITE"),
    ("rating", [[1], [2]], "FK-COLUMN-NUMBERS"),
    ("time", pa.array([1, 2], pa.time32("s")), "FK-COLUMN-NUMBERS"),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cells", "code"), TYPES)
def test_a_bad_type_is_named(tmp_path: Path, column: str, cells: Any, code: str) -> None:
    path = pq(tmp_path, **{"user": ["a", "b"], "item": ["c", "d"], column: cells})
    caught = refuses(code, load_interactions, path)
    assert f"{column} " in str(caught)


def test_columns_that_are_named_must_be_there_once_and_have_one_role(tmp_path: Path) -> None:
    path = write(tmp_path, "ml.csv")
    with refused("FK-COLUMN-MISSING") as caught:
        load_interactions(path, rating="stars")
    assert "userId, movieId, rating, timestamp" in str(caught.value)
    refuses("FK-COLUMN-TWICE", load_interactions, path, user="movieId")
    refuses("FK-COLUMNS-FIXED", load_interactions, write(tmp_path, "u.data"), user="a")
    path.write_text("s3cret,item\na,b\n")  # what to do about a column may be said otherwise
    for named, code in (({}, "FK-COLUMN-UNNAMED"), ({"user": "who"}, "FK-COLUMN-MISSING")):
        with refused(code) as caught:
            load_interactions(path, **named, column_remedy="name the {role}")
        assert caught.value.remedy == "name the user"
        assert "s3cret" not in str(caught.value)


# -- positives and the matrix


def test_positives_keep_all_users_and_items(tmp_path: Path) -> None:
    interactions = load_interactions(write(tmp_path, "u.data"))
    liked = interactions.positive(4)
    np.testing.assert_array_equal(liked.user, [1, 1])
    np.testing.assert_array_equal(liked.item, [1, 0])
    np.testing.assert_array_equal(liked.rating, [4, 5])
    np.testing.assert_array_equal(liked.time, [300, 200])
    assert (liked.users, liked.items) == (2, 2)
    assert interactions.positive(None).rows == 3
    refuses("FK-RATINGS-LOW", interactions.positive, 6)
    matrix = interactions.matrix()
    assert matrix.dtype == np.int64
    np.testing.assert_array_equal(matrix.toarray(), [[0, 1], [1, 1]])
    chosen = interactions.matrix(np.array([True, False, True]))
    np.testing.assert_array_equal(chosen.toarray(), [[0, 0], [1, 1]])
    assert interactions.matrix(np.zeros(3, dtype=bool)).nnz == 0


# -- holding out


def grid(order: Any = None) -> Interactions:
    """20 users and 10 items, all pairs; three rows share each time."""
    user, item = np.divmod(np.arange(200), 10)
    order = np.arange(200) if order is None else order
    time = pa.array(((user * 10 + item) // 3)[order])
    return files.encode_interactions(pa.array(user[order]), pa.array(item[order]), None, time)


def test_the_held_out_share_is_of_all_rows_whatever_their_order() -> None:
    order = np.random.default_rng(0).permutation(200)
    for share, count in ((0.0, 0), (0.1, 20), (0.999, 199)):
        one, other = files.hold_out_random(grid(), share, 1), files.hold_out_latest(grid(), share)
        for mask in (one, other):
            assert mask.dtype == np.bool_
            assert mask.shape == (200,)
            assert mask.sum() == count
        shuffled = grid(order)
        np.testing.assert_array_equal(one[order], files.hold_out_random(shuffled, share, 1))
        np.testing.assert_array_equal(other[order], files.hold_out_latest(shuffled, share))
    assert np.flatnonzero(files.hold_out_latest(grid(), 0.02)).tolist() == [196, 197, 198, 199]
    drawn = [files.hold_out_random(grid(), 0.5, seed) for seed in (1, 2)]
    assert (drawn[0] != drawn[1]).sum() > 50


def test_a_share_outside_0_and_1_and_latest_rows_without_times_are_refused() -> None:
    ways = files.hold_out_latest, partial(files.hold_out_random, seed=0)
    for share, hold_out in product((-0.1, 1.0, np.nan), ways):
        refuses("FK-OPTION-RANGE", hold_out, grid(), share)
    untimed = files.encode_interactions(pa.array(["a", "b"]), pa.array(["c", "d"]))
    refuses("FK-TIMES-MISSING", files.hold_out_latest, untimed, 0.1)
