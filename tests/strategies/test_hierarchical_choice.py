"""How HierarchicalSVM chooses C: by held-out folds, all that is tried side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import svm_groups
from faulty import At, PowerCutError
from numpy.typing import NDArray
from pooled import stacked
from refusals import raises, refuses
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from svm_groups import blobs, fit, horizontal, served, standard
from zoo import WAYS, Sites, Table, Way
from zoo import fit as fit_way

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups.consensus import FOLDS, TIE, TRIAL_ROUNDS, TRIED, choose
from fedkern_flwr.groups.consensus import deal as folds_of
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.strategies import HierarchicalSVM

same_session = svm_groups.same_session


def pooled_losses(sites: Sites, kind: str, lost: tuple[int, ...] = ()) -> np.ndarray:
    """Return the held-out loss per row of each C, of pooled models of the same folds."""
    users = range(sum("x" in table for table in sites.tables))
    dealt = [sites.client_fn(sites.contexts[k]).table.digest() for k in users]
    sizes = [len(sites.tables[k]["y"]) for k in users]
    folds = [folds_of(n, own) for n, own in zip(sizes, dealt, strict=True)]
    fold = np.concatenate([np.full(sizes[k], -1) if k in lost else folds[k] for k in users])
    x, y, found = standard(stacked(sites.tables)), stacked(sites.tables, "y"), np.zeros(len(TRIED))
    for k, c in enumerate(TRIED):
        for f in range(FOLDS):
            seen, held = (fold != f) & (fold >= 0), fold == f
            model: Any = SVC(C=c, kernel="linear", tol=1e-6)
            if kind == "logistic":
                model = LogisticRegression(C=c, tol=1e-8, max_iter=1000)
            margin = y[held] * model.fit(x[seen], y[seen]).decision_function(x[held])
            loss = np.maximum(0.0, 1.0 - margin) if kind == "linear" else np.logaddexp(0, -margin)
            found[k] += loss.sum() / len(x)
    return found


@pytest.mark.promise("svm-folds-held-out")
@pytest.mark.parametrize("kind", [pytest.param("linear", marks=pytest.mark.long), "logistic"])
def test_the_choice_is_that_of_pooled_rows_in_the_same_folds(kind: Any) -> None:
    nodes = served(horizontal(*blobs(150), [3, 2]))
    strategy = fit(nodes, model=kind, C=None)
    right, tuned = pooled_losses(nodes, kind), strategy.tuned_
    near = right <= 1.2 * right.min()  # the smallest C has the farthest way to its optimum
    np.testing.assert_allclose(np.array(tuned["losses"])[near], right[near], rtol=0.06)
    # twelve iterations are near the optima, and of C that are as good one is as good as another
    assert right[TRIED.index(strategy.C_)] <= 1.02 * (1.0 + TIE) * right.min()
    assert tuned["losses"][0] > (1.0 + TIE) * min(tuned["losses"])  # the choice was no toss-up
    given = fit(nodes.tables, model=kind, C=strategy.C_)
    assert given.tuned_ == {}
    assert strategy.metrics_["converged"]
    assert strategy.metrics_["objective"] == pytest.approx(given.metrics_["objective"], rel=3e-3)
    # the exchanges are those of its iterations, as with a C that is given
    extra = given.ledger_.exchanges - given.metrics_["iterations"]
    assert strategy.ledger_.exchanges - strategy.metrics_["iterations"] == extra
    assert strategy.result()["tuned"]["C"] == strategy.C_ == strategy.model()[1]["C"]


def test_groups_that_are_left_out_have_no_say_in_the_choice() -> None:
    gone = At(partition=2, phase="svm-step", what=Fault("error"), number=3, always=True)
    nodes = served(horizontal(*blobs(150), [2, 2, 2]))
    strategy = fit(nodes, C=None, faults=gone, lost_groups="leave-out", rounds=30)
    assert strategy.metrics_["groups_left_out"] == 1
    right, losses = pooled_losses(nodes, "linear", (2, 3)), strategy.tuned_["losses"]
    near = right <= 1.2 * right.min()
    np.testing.assert_allclose(np.array(losses)[near], right[near], rtol=0.1)
    assert right[TRIED.index(strategy.C_)] <= 1.05 * (1.0 + TIE) * right.min()
    everybody = pooled_losses(nodes, "linear")  # a control
    assert not np.allclose(np.array(losses)[near], everybody[near], rtol=0.2)


def test_before_and_after_the_choice_models_have_their_sizes() -> None:
    transcript = Transcript()
    fit(horizontal(*blobs(90), [2, 2]), C=None, rounds=24, transcript=transcript)
    asked = [e.scalars for e in transcript.entries(phase="svm-combine", direction="down")]
    assert {r["outputs"] for r in asked if r["chosen"] < 0} == {FOLDS * len(TRIED)}
    assert {r["outputs"] for r in asked if r["chosen"] >= 0} == {1}
    assert max(r["round"] for r in asked if r["chosen"] < 0) == TRIAL_ROUNDS


@pytest.mark.parametrize(("options", "rules", "why"), [
    ({"rho": 2.0}, {}, "penalties are given"), ({"staleness": 1}, {}, "groups that wait"),
    ({"rounds": 23}, {}, "fewer than 24 rounds"),
    ({}, {"min_own_rows": 26}, "a fold would have too few rows of a user"),
    ({}, {"min_sum_rows": 51}, "a fold would have too few rows of a group"),
    ({}, {"counting": "refuse"}, "release limits"),
])  # fmt: skip
def test_untried_c_is_one_and_why_is_said(options: Table, rules: Table, why: str) -> None:
    """Of 75 rows each, 25 in a fold, two users in a group."""
    policy = NodePolicy.of_simulations(**rules)
    nodes = horizontal(*blobs(300), [2, 2], policy=policy)
    strategy = fit(nodes, C=None, **{"rounds": 24, "tolerance": 0.5, **options})
    assert (strategy.C_, strategy.tuned_["by"]) == (1.0, "nothing")
    assert why in strategy.tuned_["why"]


@pytest.mark.parametrize(
    ("rows", "kind", "by"),
    [(800, "linear", "nothing"), (4000, "linear", "one fold of 3"), (1600, "rbf", "nothing")],
)
def test_a_run_keeps_within_its_share(rows: int, kind: Any, by: str, monkeypatch: Any) -> None:
    """Of all its iterations together; small tables have C = 1 and few random features."""
    x, y = blobs(rows)
    describe, policy = SVMClient.describe, NodePolicy.of_simulations(counting="refuse")
    monkeypatch.setattr(SVMClient, "describe", lambda *asked: replace(describe(*asked), share=0.2))
    nodes = horizontal(x, y, [2, 2], policy=policy)
    strategy = fit(nodes, model=kind, C=None, tolerance=1e-9)
    iterations, width = strategy.metrics_["iterations"], strategy.coefficients_.shape[1] + 3
    fold = 5 / 3  # what is learned without a fold is about the other rows alone
    tried = TRIAL_ROUNDS * (len(TRIED) * fold - 1) * width * (by != "nothing")
    most = 0.2 * rows / 4 * (x.shape[1] + 1)  # nodes without pinned identities: own rows alone
    opened = iterations * width + tried
    taken = 8 * x.shape[1] + 1 + 4 * strategy.frequencies
    assert most - width < opened + taken <= most
    assert strategy.tuned_["by"] == by
    note, end = strategy.result()["notes"]
    assert note.startswith(f"{iterations} iterations")
    assert "primal residual" in end
    assert "0.2 of what" in note


class Forced(HierarchicalSVM):
    """A server that tries whatever the nodes allow."""

    def _why_not(self) -> str:
        return ""


@pytest.mark.promise("svm-folds-few-rows")
@pytest.mark.parametrize(("rules", "architecture"), [
    ({"min_own_rows": 6}, "hierarchical"), ({"min_sum_rows": 11}, "hierarchical"),
    ({"min_own_rows": 6}, "centralised"),
])  # fmt: skip
def test_a_node_refuses_folds_of_few_rows_itself(rules: dict[str, int], architecture: Any) -> None:
    layers, policy = architecture == "hierarchical", NodePolicy.of_simulations(**rules)
    tables = horizontal(*blobs(60), [2, 2] if layers else [4], agents=layers, policy=policy)
    code = "FK-POLICY-OWN-ROWS" if "min_own_rows" in rules else "FK-POLICY-SUM-ROWS"
    forced = Forced(C=None, seed=3, architecture=architecture)
    refuses(code, served(tables).fit, strategy=forced, start={"num_rounds": 24})


def test_ties_go_to_the_smaller_c() -> None:
    losses = np.array([3.0, 1.0 + 0.5 * TIE, 1.0, 2.0])
    assert choose(losses, 1, TRIED)[0] == 1
    two: NDArray[np.float64] = np.concatenate([losses, losses[::-1]])
    assert choose(two, 2, TRIED)[1] == pytest.approx((losses + losses[::-1]).tolist())


@pytest.mark.parametrize("rows", [1, 4, 31])
def test_folds_of_a_user_are_even_and_its_own(rows: int) -> None:
    dealt = folds_of(rows, "ab" * 32)
    counts = np.bincount(dealt, minlength=FOLDS)
    assert counts.max() - counts.min() <= 1
    assert np.array_equal(dealt, folds_of(rows, "ab" * 32))
    if rows > 20:
        assert not np.array_equal(dealt, folds_of(rows, "cd" * 32))


def resumed(way: Way, at: int, folder: Path) -> tuple[Any, Any]:
    """Return a run that broke off two rounds after its checkpoint and went on; and a quiet one."""

    def cut(done: int, rounds: int, row: Any) -> None:
        if done == at + 2:
            raise PowerCutError

    made, kept = way.sites(), {"checkpoint": folder / "run.npz", "checkpoint_every": at}
    first = way.make(**kept)
    first.on_round = cut
    raises(PowerCutError, made.fit, strategy=first)
    return made.fit(**kept, resume=True).strategy, fit_way(way).strategy


@pytest.mark.parametrize("at", [pytest.param(11, marks=pytest.mark.long), 12])
def test_a_run_goes_on_where_it_was_cut_around_the_choice(tmp_path: Path, at: int) -> None:
    options: Table = {"seed": 3, "tolerance": 1e-12, "model": "ridge"}
    way = replace(WAYS["hierarchical-svm"], options=options, rounds=24)
    again, quiet = resumed(way, at, tmp_path)
    assert again.tuned_ == quiet.tuned_
    assert again.C_ == quiet.C_ != 1.0  # which it would be without a choice
    assert len(again.tuned_["losses"]) == len(TRIED)
    assert again.metrics_["objective"] == pytest.approx(quiet.metrics_["objective"], rel=1e-9)


@pytest.mark.parametrize("name", ["hierarchical-svm", "hierarchical-svm, centralised"])
def test_penalties_that_follow_the_residuals_go_on_as_well(name: str, tmp_path: Path) -> None:
    options: Table = {"C": 0.1, "seed": 3, "tolerance": 1e-12, "rho_schedule": "balanced"}
    again, quiet = resumed(replace(WAYS[name], options=options, rounds=12), 8, tmp_path)
    rhos, found = ([row["rho"] for row in one.history_] for one in (quiet, again))
    assert len(set(rhos[:8])) > 1
    assert found[-4:] == pytest.approx(rhos[-4:], rel=1e-9)
