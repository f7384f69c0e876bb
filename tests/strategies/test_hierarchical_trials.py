"""C is chosen by held-out folds, all that is tried side by side, in the iterations there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import At, PowerCutError
from flwr.app import Context, RecordDict
from numpy.typing import NDArray
from refusals import refused
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from zoo import WAYS, Sites, Table, new_folder
from zoo import fit as fit_way

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups.trials import FOLDS, ITERATIONS, TIE, TRIED, choose, deal
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import HierarchicalSVM

from .test_hierarchical_svm import Array, blobs, fit, horizontal, standard

USERS, ROWS = 5, 150
SIZES = [3, 2]


def digests(x: Array, y: Array, users: int) -> list[str]:
    """Return what stands for the tables of users: it deals their rows to folds."""
    sites = Sites(WAYS["hierarchical-svm"], new_folder(), horizontal(x, y, [users]))
    places = [
        {"partition-id": k, "num-partitions": users, "simulation": True} for k in range(users)
    ]
    states = [Context(run_id=1, node_id=k, node_config=p, state=RecordDict(), run_config={})
              for k, p in enumerate(places)]  # fmt: skip
    return [sites.client_fn(state).table.digest() for state in states]


def pooled_losses(
    x: Array, y: Array, kind: str, users: int = USERS, lost: tuple[int, ...] = ()
) -> Array:
    """Return the held-out loss per row of each C, of pooled models of the same folds."""
    parts = np.array_split(np.random.default_rng(1).permutation(len(x)), users)
    fold = np.empty(len(x), np.intp)
    for k, (rows, digest) in enumerate(zip(parts, digests(x, y, users), strict=True)):
        fold[rows] = -1 if k in lost else deal(len(rows), digest)
    own, found = standard(x), np.zeros(len(TRIED))
    for k, c in enumerate(TRIED):
        for f in range(FOLDS):
            seen, held = (fold != f) & (fold >= 0), fold == f
            model: Any = SVC(C=c, kernel="linear", tol=1e-6)
            if kind == "logistic":
                model = LogisticRegression(C=c, tol=1e-8, max_iter=1000)
            margin = y[held] * model.fit(own[seen], y[seen]).decision_function(own[held])
            loss = np.maximum(0.0, 1.0 - margin) if kind == "linear" else np.logaddexp(0, -margin)
            found[k] += loss.sum() / len(x)
    return found


@pytest.mark.promise("svm-folds-held-out")
@pytest.mark.parametrize("kind", ["linear", "logistic"])
def test_the_choice_is_that_of_pooled_rows_in_the_same_folds(kind: Any) -> None:
    x, y = blobs(ROWS)
    strategy = fit(horizontal(x, y, SIZES), model=kind, C=None)
    right, tuned = pooled_losses(x, y, kind), strategy.tuned_
    near = right <= 1.2 * right.min()  # the smallest C has the farthest way to its optimum
    np.testing.assert_allclose(np.array(tuned["losses"])[near], right[near], rtol=0.06)
    # twelve iterations are near the optima, and of C that are as good one is as good as another
    assert right[TRIED.index(strategy.C_)] <= 1.02 * (1.0 + TIE) * right.min()
    assert tuned["losses"][0] > (1.0 + TIE) * min(tuned["losses"])  # the choice was no toss-up
    given = fit(horizontal(x, y, SIZES), model=kind, C=strategy.C_)
    assert strategy.metrics_["converged"]
    assert strategy.metrics_["objective"] == pytest.approx(given.metrics_["objective"], rel=3e-3)
    # the exchanges are those of its iterations, as with a C that is given
    extra = given.ledger_.exchanges - given.metrics_["iterations"]
    assert strategy.ledger_.exchanges - strategy.metrics_["iterations"] == extra
    assert strategy.result()["tuned"]["C"] == strategy.C_ == strategy.model()[1]["C"]


def test_all_ways_of_asking_choose_the_same() -> None:
    x, y = blobs(90)
    one = fit(horizontal(x, y, [2, 2, 2]), C=None, rounds=24)
    other = fit(horizontal(x, y, [2, 2, 2]), C=None, rounds=24, lost_groups="leave-out")
    assert one.history_ == other.history_
    assert one.tuned_ == other.tuned_
    assert np.array_equal(one.coefficients_, other.coefficients_)


def test_groups_that_are_left_out_have_no_say_in_the_choice() -> None:
    x, y = blobs(ROWS)
    gone = At(partition=2, phase="svm-step", what=Fault("error"), number=3, always=True)
    nodes = horizontal(x, y, [2, 2, 2])
    strategy = fit(nodes, C=None, faults=gone, lost_groups="leave-out", rounds=30)
    assert strategy.metrics_["groups_left_out"] == 1
    right, losses = pooled_losses(x, y, "linear", 6, lost=(2, 3)), strategy.tuned_["losses"]
    near = right <= 1.2 * right.min()
    np.testing.assert_allclose(np.array(losses)[near], right[near], rtol=0.1)
    assert right[TRIED.index(strategy.C_)] <= 1.05 * (1.0 + TIE) * right.min()
    everybody = pooled_losses(x, y, "linear", 6)  # a control
    assert not np.allclose(np.array(losses)[near], everybody[near], rtol=0.2)


def test_before_and_after_the_choice_models_have_their_sizes() -> None:
    x, y = blobs(90)
    transcript = Transcript()
    fit(horizontal(x, y, [2, 2]), C=None, rounds=24, transcript=transcript)
    asked = [e.scalars for e in transcript.entries(phase="svm-combine", direction="down")]
    assert {r["outputs"] for r in asked if r["chosen"] < 0} == {FOLDS * len(TRIED)}
    assert {r["outputs"] for r in asked if r["chosen"] >= 0} == {1}
    assert max(r["round"] for r in asked if r["chosen"] < 0) == ITERATIONS


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rho": 2.0}, "penalties are given"),
        ({"staleness": 1}, "groups that wait"),
        ({"rounds": 23}, "fewer than 24 rounds"),
    ],
)
def test_where_nothing_is_tried_c_is_one_and_why_is_said(options: dict[str, Any], why: str) -> None:
    x, y = blobs(60)
    strategy = fit(horizontal(x, y, [2, 2]), C=None, **{"rounds": 24, **options})
    assert (strategy.C_, strategy.tuned_["by"]) == (1.0, "nothing")
    assert why in strategy.tuned_["why"]
    assert fit(horizontal(x, y, [2, 2]), C=0.3, **{"rounds": 3}).tuned_ == {}


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"min_own_rows": 26}, "a fold would have too few rows of a user"),
        ({"min_sum_rows": 51}, "a fold would have too few rows of a group"),
        ({"counting": "refuse"}, "release limits"),
    ],
)
def test_what_a_node_does_not_allow_is_not_tried(rules: dict[str, Any], why: str) -> None:
    x, y = blobs(300)  # 75 rows each, 25 in a fold, two users in a group
    policy = NodePolicy.of_simulations(**rules)
    strategy = fit(horizontal(x, y, [2, 2], policy=policy), C=None, rounds=24)
    assert (strategy.C_, why in strategy.tuned_["why"]) == (1.0, True)


@pytest.mark.parametrize(
    ("rows", "kind", "by"),
    [(800, "linear", "nothing"), (4000, "linear", "one fold of 3"), (1600, "rbf", "nothing")],
)
def test_a_run_keeps_within_the_share_of_its_nodes(
    rows: int, kind: Any, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all its iterations together; small tables have C = 1 and few random features."""
    x, y = blobs(rows)
    describe, policy = SVMClient.describe, NodePolicy.of_simulations(counting="refuse")
    monkeypatch.setattr(SVMClient, "describe", lambda *asked: replace(describe(*asked), share=0.2))
    nodes = horizontal(x, y, [2, 2], policy=policy)
    strategy = fit(nodes, model=kind, C=None, tolerance=1e-9)
    iterations, width = strategy.metrics_["iterations"], strategy.shape_[1] + 3
    tried = ITERATIONS * (len(TRIED) - 1) * width * (by != "nothing")
    most = 0.2 * rows / 4 * (x.shape[1] + 1)  # nodes without pinned identities: own rows alone
    opened = iterations * width + tried
    taken = 8 * x.shape[1] + 1 + 4 * strategy.frequencies
    assert most - width < opened + taken <= most
    assert strategy.tuned_["by"] == by
    note, end = strategy.result()["notes"]
    assert note.startswith(f"{iterations} iterations")
    assert "primal residual" in end
    assert "0.2 of what" in note


class Steered(HierarchicalSVM):
    """A server that chooses the point at which users begin."""

    def question(self, requests: Any, reply: Any, **more: Any) -> Any:
        """Send the first iteration another center than zero."""
        if type(requests[0]).__name__ == "LocalRequest" and self.step == 1:
            far = np.ones(self.shape_)
            requests = {user: replace(one, center=far) for user, one in requests.items()}
        return super().question(requests, reply, **more)


def test_users_begin_at_zero_whatever_the_server_sends() -> None:
    """So that a run that is repeated sums what it summed before."""
    x, y = blobs(60)
    with refused("FK-MESSAGE-FIELD", "FK-PARTIES-LOST") as error:
        tables = horizontal(x, y, [4], agents=False)
        sites = Sites(WAYS["hierarchical-svm"], new_folder(), tables)
        sites.fit(strategy=Steered(seed=3, C=1.0), start={"num_rounds": 3})
    assert "first center" in str(error.value)


class Forced(HierarchicalSVM):
    """A server that tries whatever the nodes allow."""

    def _why_not(self) -> str:
        return ""


@pytest.mark.promise("svm-folds-few-rows")
@pytest.mark.parametrize(
    ("rules", "architecture"),
    [
        ({"min_own_rows": 6}, "hierarchical"),
        ({"min_sum_rows": 11}, "hierarchical"),
        ({"min_own_rows": 6}, "centralised"),
    ],
)
def test_a_node_refuses_folds_of_few_rows_itself(rules: dict[str, int], architecture: Any) -> None:
    x, y = blobs(60)
    layers = architecture == "hierarchical"
    policy = NodePolicy.of_simulations(**rules)
    tables = horizontal(x, y, [2, 2] if layers else [4], agents=layers, policy=policy)
    sites = Sites(WAYS["hierarchical-svm"], new_folder(), tables)
    code = {"min_own_rows": "FK-POLICY-OWN-ROWS", "min_sum_rows": "FK-POLICY-SUM-ROWS"}
    with refused(code[next(iter(rules))]):
        sites.fit(
            strategy=Forced(C=None, seed=3, architecture=architecture), start={"num_rounds": 24}
        )


def test_ties_go_to_the_smaller_c() -> None:
    losses = np.array([3.0, 1.0 + 0.5 * TIE, 1.0, 2.0])
    assert choose(losses, 1, TRIED)[0] == 1
    two: NDArray[np.float64] = np.concatenate([losses, losses[::-1]])
    assert choose(two, 2, TRIED)[1] == pytest.approx((losses + losses[::-1]).tolist())


@pytest.mark.parametrize("rows", [1, 4, 31])
def test_folds_of_a_user_are_even_and_its_own(rows: int) -> None:
    dealt = deal(rows, "ab" * 32)
    counts = np.bincount(dealt, minlength=FOLDS)
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(dealt, deal(rows, "ab" * 32))
    if rows > 20:
        assert not np.array_equal(dealt, deal(rows, "cd" * 32))


@pytest.mark.parametrize("at", [11, 12])
def test_a_run_goes_on_where_it_was_cut_around_the_choice(tmp_path: Path, at: int) -> None:
    def cut(done: int, rounds: int, row: Any) -> None:
        if done == at + 2:
            raise PowerCutError

    options: Table = {"seed": 3, "tolerance": 1e-12, "model": "ridge"}
    way = replace(WAYS["hierarchical-svm"], options=options, rounds=24)
    made, kept = way.sites(), {"checkpoint": tmp_path / "run.npz", "checkpoint_every": at}
    first = way.make(**kept)
    first.on_round = cut
    with pytest.raises(PowerCutError):
        made.fit(strategy=first)
    again, quiet = made.fit(**kept, resume=True).strategy, fit_way(way).strategy
    assert again.tuned_ == quiet.tuned_
    assert again.C_ == quiet.C_ != 1.0  # which it would be without a choice
    assert len(again.tuned_["losses"]) == len(TRIED)
    assert again.metrics_["objective"] == pytest.approx(quiet.metrics_["objective"], rel=1e-9)
