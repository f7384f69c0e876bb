"""FedCFK against a plain CF-KOMD on pooled ratings; requests, metrics, who gets what."""

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
from flwr.app import Context
from scipy import sparse
from simplex import minimise

from fedkern_flwr.clients import GramClient
from fedkern_flwr.errors import CohortError, ProtocolError
from fedkern_flwr.gram.matrix import packed_size
from fedkern_flwr.gram.messages import disjoint_cohorts
from fedkern_flwr.gram.recommenders import STEP, Recommender
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines import Audit, Fault, FaultPlan, Transcript
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.strategies import FedCFK
from fedkern_flwr.wire.sections import detach

USERS, CATALOGUE, CUTOFF = 30, 170, 100
Table = dict[str, Any]
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
            self.solved[case] = self.kernel[:, liked] @ minimise(quadratic, self.mean[liked])
        return self.solved[case] - self.mean if subtract else self.solved[case]


@functools.cache
def everybody() -> Pooled:
    """Return the kernel from the ratings of all."""
    return Pooled(range(USERS))


def judge(scores: np.ndarray, user: int) -> tuple[float, ...] | None:
    """Return AUC, nDCG and recall by their definitions."""
    candidates = [i for i in range(CATALOGUE) if not X[user, i]]
    hits = [i for i in candidates if TESTS[user, i]]
    misses = [i for i in candidates if not TESTS[user, i]]
    if not hits or not misses:
        return None
    pairs = [(scores[h] > scores[m]) + 0.5 * (scores[h] == scores[m]) for h in hits for m in misses]
    ranked = sorted(candidates, key=lambda i: (-scores[i], i))[:CUTOFF]
    gain = sum(1.0 / np.log2(2 + r) for r, i in enumerate(ranked) if TESTS[user, i])
    best = sum(1.0 / np.log2(2 + r) for r in range(min(len(hits), CUTOFF)))
    return float(np.mean(pairs)), gain / best, sum(i in hits for i in ranked) / len(hits)


def expected(pooled: Pooled, users: Sequence[int] = range(USERS), **more: Any) -> Table:
    """Return the means over users that have positives in both parts."""
    more = {"lam": 0.1, **more}
    found = [judge(pooled.scores(u, **more), u) for u in users if X[u].any()]
    judged = np.array([f for f in found if f is not None])
    names = ("auc", "ndcg@100", "recall@100")
    return {**dict(zip(names, judged.mean(axis=0), strict=True)), "evaluated_users": len(judged)}


# -- networks


@dataclass
class Network:
    """Nodes with some users each."""

    folder: Path
    users: Sequence[Sequence[int]] = tuple(tuple(range(k, k + 5)) for k in range(0, USERS, 5))
    form: Any = np.asarray
    common: Table = field(default_factory=dict)
    tested: bool = True

    def client_fn(self, context: Context) -> GramClient:
        k = int(context.node_config["partition-id"])
        rows = list(self.users[k])
        more: Table = {"x_test": self.form(TESTS[rows])} if self.tested else {}
        return GramClient(
            context,
            self.form(X[rows]),
            users=rows,
            recommendations=self.folder / f"{k}.csv",
            top=CATALOGUE,
            **more,
            **self.common,
        )

    def fit(self, run: Table | None = None, **options: Any) -> FedCFK:
        if "learner" not in options:  # the paper's
            options = {"learner": "cf-komd", "regularization": 0.1, **options}
        strategy = FedCFK(**options)
        simulate(strategy, self.client_fn, len(self.users), **(run or {}))
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

    def check(self, pooled: Pooled, users: Sequence[int] = range(USERS), **more: Any) -> None:
        """All items of the kernel that a user does not have, with their scores when pooled."""
        more = {"lam": 0.1, **more}
        written = self.scores()
        assert sorted(written) == sorted(users)
        for user in users:
            found, right = written[user], pooled.scores(user, **more)
            others = np.setdiff1d(pooled.items, np.flatnonzero(X[user]))
            assert sorted(found) == others.tolist()
            for item, score in found.items():
                assert score == pytest.approx(right[item], abs=1e-6)


def same(found: Table, right: Table) -> None:
    for name, value in right.items():
        assert found[name] == pytest.approx(value, abs=1e-9), name


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_the_ratings_have_all_that_matters() -> None:
    pooled = everybody()
    assert 80 < len(pooled.items) < CATALOGUE - 30
    assert min((X[u] == 0).sum() for u in range(USERS)) > CUTOFF
    assert not np.isin(np.flatnonzero(X[ODD]), pooled.items).any()
    assert X[ODD].any()
    assert TESTS[ODD].any()
    assert all(not X[u].any() and TESTS[u].any() for u in SILENT)
    assert expected(pooled)["evaluated_users"] == USERS - len(SILENT) - 1
    assert expected(pooled)["recall@100"] < 0.9


# -- the same as pooled


@pytest.mark.parametrize("lam", [0.1, 3.0])
@pytest.mark.parametrize("subtract", [True, False])
def test_all_users_get_what_they_would_with_pooled_ratings(
    lam: float, subtract: bool, network: Network
) -> None:
    network.users = tuple(tuple(range(k, k + 3)) for k in range(0, USERS, 3))
    strategy = network.fit(regularization=lam, subtract_mean=subtract)
    pooled = everybody()
    assert strategy.items_.tolist() == pooled.items.tolist()
    np.testing.assert_array_equal(strategy.gram_, pooled.gram)
    np.testing.assert_allclose(
        strategy.kernel_, pooled.kernel[np.ix_(pooled.items, pooled.items)], atol=1e-12
    )
    network.check(pooled, lam=lam, subtract=subtract)
    same(strategy.metrics_, expected(pooled, lam=lam, subtract=subtract))
    assert strategy.judged_ == list(range(10))
    if subtract and lam == 0.1:
        assert strategy.metrics_["auc"] > 0.6  # it has learned something


def test_users_alone_on_their_nodes_get_the_same(network: Network, tmp_path: Path) -> None:
    network.users = tuple((u,) for u in range(USERS))
    alone = network.fit()
    together = Network(tmp_path / "x", ((0, 29, 5), tuple(range(1, 5)), tuple(range(6, 29))))
    together.form = sparse.csr_array
    other = together.fit()
    for name in ("auc", "ndcg@100", "recall@100"):
        assert other.metrics_[name] == pytest.approx(alone.metrics_[name], abs=1e-12)
    assert other.metrics_["evaluated_users"] == alone.metrics_["evaluated_users"]
    np.testing.assert_array_equal(other.gram_, alone.gram_)
    written, again = network.scores(), together.scores()
    for user, scores in written.items():
        for item, score in scores.items():
            assert again[user][item] == pytest.approx(score, abs=1e-8)


def test_users_outside_the_kernel_get_recommendations_too(network: Network) -> None:
    strategy = network.fit(participation=0.5, seed=2, min_support=3)
    (members,) = disjoint_cohorts(range(6), 0.5, 1, 2)
    assert strategy.survivors_ == members
    assert len(members) == 3
    pooled = Pooled([u for k in members for u in network.users[k]], 3)
    network.check(pooled)
    same(strategy.metrics_, expected(pooled))
    assert strategy.judged_ == list(range(6))


def test_cohorts_share_one_kernel(network: Network) -> None:
    strategy = network.fit(cohorts=2, min_support=2)
    items = strategy.items_
    np.testing.assert_array_equal(strategy.gram_, (X.T @ X)[np.ix_(items, items)])
    pooled = Pooled(range(USERS), items=items)
    network.check(pooled)
    same(strategy.metrics_, expected(pooled))


def test_who_drops_out_gets_nothing_and_the_others_what_is_right(network: Network) -> None:
    network.users = tuple(tuple(range(k, k + 3)) for k in range(0, USERS, 3))
    gone = FaultPlan(
        [(2, "gram-counts", None, Fault("error")), (7, "gram-recommend", None, Fault("error"))]
    )
    strategy = network.fit(run={"faults": gone})
    left = [u for u in range(USERS) if u // 3 != 2]
    assert strategy.survivors_ == [k for k in range(10) if k != 2]
    assert strategy.judged_ == [k for k in range(10) if k != 7]
    there = [u for u in range(USERS) if u // 3 != 7]
    network.check(Pooled(left), there)
    same(strategy.metrics_, expected(Pooled(left), there))


@pytest.mark.parametrize("phase", ["gram-recommend", "unmask"])
@pytest.mark.parametrize("kind", ["vanished", "duplicate"])
def test_faults_that_pass_do_not_change_the_metrics(
    phase: str, kind: Any, network: Network
) -> None:
    quiet = network.fit()
    seen: set[int] = set()

    def plan(delivery: Delivery) -> Fault | None:
        if delivery.phase == phase and delivery.partition in (1, 3):
            seen.add(delivery.round)
            last = phase == "unmask" and len(seen) < 3  # the third opens the metrics
            return None if last or delivery.round != max(seen) or len(seen) > 3 else Fault(kind)
        return None

    strategy = network.fit(run={"faults": plan}, attempts=3, threshold=4)
    assert seen
    np.testing.assert_array_equal(strategy.gram_, quiet.gram_)
    judged = [u for k in strategy.judged_ for u in network.users[k]]
    same(strategy.metrics_, expected(everybody(), judged))


def test_nobody_to_judge_no_metrics(network: Network) -> None:
    network.tested = False
    strategy = network.fit()
    assert strategy.metrics_["evaluated_users"] == 0
    assert "auc" not in strategy.metrics_
    network.check(everybody())


# -- what everybody gets


def delivered(record: Transcript) -> list[tuple[int, Table]]:
    """Return (partition, fields) of each recommendation request."""
    names = ("items", "coefficients", "mean", "squares", "products")
    out = []
    for entry in record.entries(phase="gram-recommend", direction="down"):
        arrays, scalars, _ = detach(entry.arrays, entry.scalars, party="")
        out.append((entry.node - 1000, {**scalars, **dict(zip(names, arrays, strict=True))}))
    return out


def test_everybody_gets_the_whole_kernel(network: Network) -> None:
    record = Transcript()
    strategy = network.fit(run={"transcript": record})
    found = delivered(record)
    assert [k for k, _ in found] == list(range(6))
    upper = strategy.gram_[np.triu_indices(len(strategy.items_))]
    for _, fields in found:
        np.testing.assert_array_equal(fields["products"], upper)
        np.testing.assert_array_equal(fields["items"], strategy.items_)
        assert fields["products"].dtype == np.uint16
        assert fields["products"].size == packed_size(len(strategy.items_))


# -- what is seen


def test_no_metric_of_a_user_is_seen(network: Network) -> None:
    seen, record = Audit(), Transcript()
    network.fit(run={"audit": seen, "transcript": record})
    up = seen.view("up")
    assert {entry.kind for entry in up.values()} <= {
        "control", "size", "key", "commitment", "sealed", "masked", "share", "seed",
    }  # fmt: skip
    mine = {name for phase, name in up if phase == "gram-recommend"}
    assert mine <= {"phase", "protocol", "round", "num_examples", "code", "message"}
    for entry in record.entries(phase="gram-recommend", direction="up"):
        arrays, scalars, (upload,) = detach(entry.arrays, entry.scalars, party="")
        assert not arrays
        assert set(scalars) <= {"phase", "protocol", "round", "code", "message", "sections"}
        (masked,) = upload.arrays
        assert masked.dtype == np.uint64
        assert masked.size == 7


@pytest.mark.parametrize(("sizes", "steps"), [((9, 6, 3), 2.0 * 15 / 18), ((9, 4, 4), 0.0)])
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
    strategy = Network(tmp_path, users).fit(learner="ease", min_support=0)
    mean = 200.0 * STEP**steps
    assert strategy.tuned_["regularization"] == pytest.approx(mean, rel=1e-9)
    again = FedCFK.of_model(strategy.model()[1])
    assert again.regularization_ == strategy.regularization_
    given = Network(tmp_path, users).fit(learner="ease", regularization=3.0, min_support=0)
    assert given.tuned_ == FedCFK.of_model(given.model()[1]).tuned_ == {}


def test_a_run_tells_its_options_and_what_is_seen(network: Network) -> None:
    strategy = network.fit(participation=0.5)
    options = strategy.options()
    assert options["method"] == "fed-cfk"
    assert (options["regularization"], options["subtract_mean"]) == (0.1, True)
    found = strategy.privacy()
    assert "sums of the users' AUC, nDCG and recall" in found["server_sees"]
    assert {"ratings", "recommendations", "rows"} <= set(found["never_leaves_the_client"])
    assert [cohort["parties"] for cohort in found["cohorts"]] == [3, 6]
    arrays, meta = strategy.model()
    assert json.loads(json.dumps(meta))["catalogue"] == CATALOGUE
    assert set(arrays) == {"gram", "items"}
    assert strategy.ledger_.by_phase == {
        "describe": 1, "gram-counts": 1, "gram-matrix": 1, "gram-recommend": 1, "unmask": 3,
        "finish": 1,
    }  # fmt: skip


# -- what cannot be


def test_held_out_ratings_of_another_shape_are_refused(network: Network) -> None:
    network.form = np.asarray
    serve = network.client_fn

    def client_fn(context: Context) -> GramClient:
        client = serve(context)
        return GramClient(context, client.x, x_test=TESTS[:1, :-1])

    with pytest.raises(ProtocolError, match=r"^partition 0, phase describe: x_test has shape"):
        simulate(FedCFK(), client_fn, 4)


def test_too_few_that_take_the_kernel_end_the_run_without_metrics(network: Network) -> None:
    gone = FaultPlan([(k, "gram-recommend", None, Fault("error")) for k in range(2)])
    strategy = FedCFK(attempts=2)
    with pytest.raises(
        CohortError, match="phase gram-recommend: 4 of 6 parties contributed to ran"
    ):
        simulate(strategy, network.client_fn, 6, faults=gone)
    assert "auc" not in strategy.metrics_
