"""FedCFK against a plain CF-KOMD on pooled ratings; metrics, who gets what."""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversation import watching
from item_rows import away
from pooled import over_simplex
from refusals import refuses
from scipy import sparse
from zoo import WAYS, Sites, Table

from fedkern_flwr.gram.recommenders import STEP, Recommender, rank_metrics
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.strategies import FedCFK

USERS, CATALOGUE = 30, 170
RANKING = ("auc", "ndcg@100", "recall@100", "ndcg@10", "recall@20")
PAPER: Table = {"learner": "cf-komd", "regularization": 0.1}
#: Users without training positives, one whose positives are all suppressed, one without test ones.
SILENT, ODD, UNTESTED = (4, 17), 9, 21


def make_ratings() -> tuple[np.ndarray, np.ndarray]:
    """Ratings of users of three tastes; some items of few, some of nobody."""
    rng = np.random.default_rng(3)
    taste = np.where(rng.random((3, CATALOGUE)) < 0.4, 0.6, 0.1) * rng.uniform(0.7, 1.3, CATALOGUE)
    taste[:, 100:115] = 0.03
    taste[:, 115:118] = 0.0
    likes = rng.random((USERS, CATALOGUE)) < taste[np.arange(USERS) % 3]
    held = rng.random(likes.shape) < 0.25
    x, tests = (likes & ~held).astype(int), (likes & held).astype(int)
    x[list(SILENT)] = 0
    x[ODD] = 0
    x[ODD, [119, 120]] = 1  # nobody else has them
    x[np.arange(USERS) != ODD, 119:121] = 0
    tests[UNTESTED] = 0
    return x, tests


X, TESTS = make_ratings()


# -- CF-KOMD, written once more


@dataclass
class Pooled:
    """The kernel between the items that enough users have, from all ratings."""

    users: Sequence[int]
    least: int = 5
    items: np.ndarray | None = None  # by default those that so many users have
    solved: Table = field(default_factory=dict)  # weights, by lambda and items

    def __post_init__(self) -> None:
        x = X[list(self.users)].astype(float)
        if self.items is None:
            self.items = np.flatnonzero(x.sum(axis=0) >= self.least)
        k = self.gram = x[:, self.items].T @ x[:, self.items]
        norms = np.sqrt(k.diagonal())
        scales = np.outer(norms, norms)
        self.kernel = np.zeros((CATALOGUE, CATALOGUE))
        self.kernel[np.ix_(self.items, self.items)] = np.divide(
            k, scales, out=np.zeros_like(k), where=scales > 0
        )
        self.mean = self.kernel.sum(axis=1) / len(self.items)

    def scores(self, user: int, lam: float, subtract: bool = True) -> np.ndarray:
        liked = np.intersect1d(np.flatnonzero(X[user]), self.items)
        if not liked.size:
            return self.mean
        case = lam, tuple(liked)
        if case not in self.solved:
            quadratic = self.kernel[np.ix_(liked, liked)] + lam * np.eye(liked.size)
            self.solved[case] = self.kernel[:, liked] @ over_simplex(quadratic, self.mean[liked])
        return self.solved[case] - self.mean if subtract else self.solved[case]


@functools.cache
def everybody() -> Pooled:
    """Return the kernel from the ratings of all."""
    return Pooled(range(USERS))


def expected(pooled: Pooled, users: Sequence[int] = range(USERS), **more: Any) -> Table:
    """Return the means over users that have positives in both parts."""
    liked = {u: np.flatnonzero(X[u]) for u in users if X[u].any()}
    scores = {u: pooled.scores(u, **{"lam": 0.1, **more}) for u in liked}
    found = [rank_metrics(scores[u], np.flatnonzero(TESTS[u]), liked[u]) for u in liked]
    judged = np.array([f for f in found if f is not None])
    return {**dict(zip(RANKING, judged.mean(axis=0), strict=True)), "evaluated_users": len(judged)}


# -- networks


class Network(Sites):
    """Nodes with some users each, who get scores of the whole catalogue."""

    @classmethod
    def of(cls, folder: Path, users: Any, form: Any = np.asarray, **more: Any) -> Network:
        tables: list[Table] = [
            {"x": form(X[[*own]]), "x_test": form(TESTS[[*own]]), "users": [*own], **more}
            for own in users
        ]
        files = {"recommendations": "{}.csv"}
        way = replace(WAYS["fed-cfk"], options=PAPER, paths=files, common={"top": CATALOGUE})
        return cls(way, folder, tables)

    def learn(self, **more: Any) -> FedCFK:
        for path in self.folder.glob("*.csv"):
            path.unlink()
        strategy: FedCFK = self.fit(**more).strategy
        return strategy

    def scores(self) -> dict[int, dict[int, float]]:
        """Return user -> item -> score of what the nodes wrote; ranks must fall."""
        out: dict[int, dict[int, float]] = {}
        for path in self.folder.glob("*.csv"):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    mine = out.setdefault(int(row["user"]), {})
                    assert int(row["rank"]) == len(mine) + 1
                    mine[int(row["item"])] = float(row["score"])
        assert all(list(s.values()) == sorted(s.values(), reverse=True) for s in out.values())
        return out

    def check(self, strategy: Any, pooled: Pooled, users: Any = range(USERS), **more: Any) -> None:
        """The kernel; all items in it that a user does not have, with their scores when pooled."""
        assert strategy.items_.tolist() == pooled.items.tolist()
        np.testing.assert_array_equal(strategy.gram_, pooled.gram)
        written = self.scores()
        assert sorted(written) == sorted(users)
        for user in users:
            found, right = written[user], pooled.scores(user, **{"lam": 0.1, **more})
            others = np.setdiff1d(pooled.items, np.flatnonzero(X[user]))
            assert sorted(found) == others.tolist()
            for item, score in found.items():
                assert score == pytest.approx(right[item], abs=1e-6)
        if self.tables[0]["x_test"] is not None:
            right = expected(pooled, users, **more)
            assert {name: strategy.metrics_[name] for name in right} == pytest.approx(
                right, abs=1e-9
            )


def by(count: int) -> list[range]:
    """Return users by so many a node."""
    return [range(k, k + count) for k in range(0, USERS, count)]


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network.of(tmp_path, by(5))


# -- the same as pooled


@pytest.mark.parametrize("lam", [0.1, pytest.param(3.0, marks=pytest.mark.long)])
def test_all_users_get_what_they_would_with_pooled_ratings(lam: float, tmp_path: Path) -> None:
    network, pooled = Network.of(tmp_path, by(3)), everybody()
    assert 80 < len(pooled.items) < CATALOGUE - 30  # the ratings have all that matters
    assert not np.isin(np.flatnonzero(X[ODD]), pooled.items).any()
    assert expected(pooled)["evaluated_users"] == USERS - len(SILENT) - 1
    for subtract in (True, False):
        strategy = network.learn(regularization=lam, subtract_mean=subtract)
        kernel = pooled.kernel[np.ix_(pooled.items, pooled.items)]
        np.testing.assert_allclose(strategy.kernel_, kernel, atol=1e-12)
        network.check(strategy, pooled, lam=lam, subtract=subtract)
        assert strategy.judged_ == list(range(10))
    if lam == 0.1:
        assert network.learn().metrics_["auc"] > 0.6  # it has learned something
        network.way = replace(network.way, common={"top": 3})
        network.learn()
        assert {len(best) for best in network.scores().values()} == {3}


def test_users_alone_on_nodes_get_the_same_and_nobody_to_judge_no_metrics(tmp_path: Path) -> None:
    network = Network.of(tmp_path, by(1))
    network.check(network.learn(), everybody())
    parts = ((0, 29, 5), range(1, 5), range(6, 29))
    network = Network.of(tmp_path, parts, sparse.csr_array)
    for table in network.tables:
        table["x_test"] = None
    strategy = network.learn()
    network.check(strategy, everybody())
    assert strategy.metrics_["evaluated_users"] == 0
    assert "auc" not in strategy.metrics_


def test_users_outside_the_kernel_get_items_and_cohorts_share_one(network: Network) -> None:
    strategy = network.learn(participation=0.5, seed=2, min_support=3)
    members = strategy.survivors_
    assert len(members) == 3
    network.check(strategy, Pooled([u for k in members for u in network.tables[k]["users"]], 3))
    assert strategy.judged_ == list(range(6))
    assert [cohort["parties"] for cohort in strategy.privacy()["cohorts"]] == [3, 6]
    strategy = network.learn(cohorts=2, min_support=2)
    network.check(strategy, Pooled(range(USERS), items=strategy.items_))


def test_who_drops_out_gets_nothing_and_the_others_what_is_right(tmp_path: Path) -> None:
    network = Network.of(tmp_path, by(3))
    counts, offer = away([2], "gram-counts", "error"), away([7], "gram-recommend", "error")
    strategy = network.learn(faults=lambda d: counts(d) or offer(d))
    assert strategy.survivors_ == [k for k in range(10) if k != 2]
    assert strategy.judged_ == [k for k in range(10) if k != 7]
    kernel, there = ([u for u in range(USERS) if u // 3 != k] for k in (2, 7))
    network.check(strategy, Pooled(kernel), there)
    lost = away(range(4), "gram-recommend", "error")
    refuses("FK-PARTIES-LOST", network.learn, faults=lost, attempts=2)


# -- what everybody gets and what is seen


def test_everybody_gets_the_whole_kernel_and_no_metric_of_a_user_is_seen(network: Network) -> None:
    asked, record = dict[int, Any](), Transcript()
    with watching(
        lambda client, request, _: asked.update(
            {client.partition: request} if request.phase == "gram-recommend" else {}
        )
    ):
        strategy = network.learn(transcript=record)
    upper = strategy.gram_[np.triu_indices(len(strategy.items_))]
    assert sorted(asked) == list(range(6))
    for request in asked.values():
        np.testing.assert_array_equal(request.products, upper)
        np.testing.assert_array_equal(request.items, strategy.items_)
        assert request.products.dtype == np.uint16
    for entry in record.entries(phase="gram-recommend", direction="up"):
        (masked,) = (array for array in entry.arrays if array.dtype == np.uint64)
        assert masked.size == 7
        assert not any(isinstance(value, float) for value in entry.scalars.values())
    arrays, meta = strategy.model()
    assert json.loads(json.dumps(meta))["catalogue"] == CATALOGUE
    assert set(arrays) == {"gram", "items"}
    assert {"ratings", "recommendations"} <= set(strategy.privacy()["never_leaves_the_client"])


@pytest.mark.promise("gram-lambda")
@pytest.mark.parametrize(
    ("sizes", "steps"),
    [((9, 6, 3), 2.0 * 15 / 18), ((9, 4, 3), 0.0), ((8, 6, 6, 4), 2.0 * 20 / 24)],
)
def test_a_lambda_is_told_of_two_nodes_with_enough_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], steps: float
) -> None:
    """The mean over all users of the steps; nodes of few users make none."""

    def tuned(ranks: Recommender, users: Any, *, fewest: int, **_: Any) -> tuple[Recommender, int]:
        found = replace(ranks, regularization=ranks.regularization * STEP**2)
        return (found, 2) if len(list(users)) >= fewest else (ranks, 0)

    monkeypatch.setattr(Recommender, "tuned", tuned)
    stops = np.cumsum(sizes)
    users = [range(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
    network = Network.of(tmp_path, users)
    ease: Table = {"learner": "ease", "min_support": 0}
    strategy = network.learn(**ease, regularization=None)
    mean = 200.0 * STEP**steps
    assert strategy.tuned_["regularization"] == pytest.approx(mean, rel=1e-9)
    if sizes[-1] == 4:  # the last of four is lost: its users have no part in the mean
        lost = network.learn(
            **ease, regularization=None, faults=away([3], "gram-recommend", "error")
        )
        assert lost.judged_ == [0, 1, 2]
        assert lost.tuned_["regularization"] == pytest.approx(200.0 * STEP**2.0, rel=1e-9)
    again = FedCFK.of_model(strategy.model()[1])
    assert again.regularization_ == strategy.regularization_
    given = network.learn(**ease, regularization=3.0)
    assert given.tuned_ == FedCFK.of_model(given.model()[1]).tuned_ == {}
