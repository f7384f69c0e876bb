"""HierarchicalSVM against pooled data and plain loops of the documents; and how C is chosen."""

from __future__ import annotations

from collections.abc import Sequence
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
from zoo import WAYS, Found, Sites, Table, new_folder
from zoo import fit as fit_way

from fedkern_flwr.clients import SVMClient
from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.groups.trials import FOLDS, ITERATIONS, TIE, TRIED, choose
from fedkern_flwr.groups.trials import deal as folds_of
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.simulations import Transcript
from fedkern_flwr.simulations.engines import Fault
from fedkern_flwr.solvers.local_solvers import solve_local
from fedkern_flwr.strategies import HierarchicalSVM

Array = np.ndarray


def blobs(n: int = 90, d: int = 4, seed: int = 0) -> tuple[Array, Array]:
    """Return two classes that overlap, in columns of different units, not centred."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    x = rng.standard_normal((n, d)) + 0.7 * y[:, None] * (np.arange(d) < 3)
    return x * np.geomspace(0.3, 6.0, d) + np.arange(d), y


def deal(rows: int, users: int, seed: int = 1) -> list[Array]:
    return np.array_split(np.random.default_rng(seed).permutation(rows), users)


def standard(x: Array) -> Array:
    return (x - x.mean(0)) / x.std(0)


def least(x: Array, y: Array) -> float:
    """Return the least 1/2 |w|^2 + sum of hinge losses."""
    found = SVC(kernel="linear", C=1.0, tol=1e-9).fit(x, y)
    losses = np.maximum(0.0, 1.0 - y * found.decision_function(x))
    return float(0.5 * (found.coef_**2).sum() + losses.sum())


def local_hinge(x: Array, y: Array, v: Array, rho: float, c: float) -> Array:
    """argmin C sum hinge + rho/2 |w - v|^2, which core/test_local_solvers.py proves."""
    return solve_local("hinge", x, y, v, np.full(len(v), rho), c, np.empty(0))[0]


def augment(x: Array, y: Array, users: int) -> tuple[list[Array], list[Array]]:
    """Return users' rows in standardised coordinates with a constant column, and their labels."""
    rows = np.column_stack([standard(x), np.ones(len(x))])
    parts = deal(len(x), users)
    return [rows[p] for p in parts], [y[p] for p in parts]


def rise(t: int) -> float:
    return 20.0 ** (min(t, 40) / 40)


def plain_admm(x: Array, y: Array, sizes: list[int], iterations: int, **given: Any) -> list[Array]:
    """Two-block ADMM as the module docstring of consensus.py has it; return z of each iteration."""
    users, d = sum(sizes), x.shape[1] + 1
    c, a, sigma = (given.get(name, usual) for name, usual in (("c", 1.0), ("a", 1.7), ("sigma", 0)))
    first, grow = given.get("first", [c] * len(sizes)), given.get("grow", rise)
    q = given.get("q", np.append(np.ones(d - 1), 0.0))
    xs, ys = augment(x, y, users)
    group = np.repeat(np.arange(len(sizes)), sizes)
    zi, s = np.zeros((len(sizes), d)), np.zeros((len(sizes), d))
    r, z, out = np.zeros((users, d)), np.zeros(d), []
    for t in range(iterations):
        sig, nxt = (sigma or np.mean(first) * grow(u) * users / len(sizes) for u in (t, t + 1))
        before, h = zi.copy(), np.zeros((users, d))
        rho = [p * grow(t) for p in first]
        for j, i in enumerate(group):
            w = local_hinge(xs[j], ys[j], before[i] - r[j], rho[i], c)
            h[j] = a * w + (1 - a) * before[i]
        for i in range(len(sizes)):
            mine = group == i
            hi = a * z + (1 - a) * before[i]
            top = rho[i] * (h[mine] + r[mine]).sum(0) + sig * (hi - s[i])
            zi[i] = top / (rho[i] * mine.sum() + sig)
            r[mine] += h[mine] - zi[i]
            s[i] += zi[i] - hi
        r *= grow(t) / grow(t + 1)
        s *= sig / nxt
        z = nxt * (zi + s).sum(0) / (nxt * len(sizes) + q)
        out.append(z)
    return out


def plain_central(x: Array, y: Array, users: int, iterations: int) -> list[Array]:
    d = x.shape[1] + 1
    xs, ys = augment(x, y, users)
    q, z, r, out = np.append(np.ones(d - 1), 0.0), np.zeros(d), np.zeros((users, d)), []
    for t in range(iterations):
        rho = rise(t)
        w = [local_hinge(xs[j], ys[j], z - r[j], rho, 1.0) for j in range(users)]
        h = 1.7 * np.array(w) - 0.7 * z
        z = rho * (h + r).sum(0) / (rho * users + q)
        r = (r + h - z) * rho / rise(t + 1)
        out.append(z)
    return out


same_session = svm_groups.same_session
SPLITS = {"rows": "hierarchical-svm", "columns": "hierarchical-svm, vertical"}


def horizontal(
    x: Array, y: Array, sizes: Sequence[int], *, agents: bool = True, **common: Any
) -> list[Table]:
    """Deal rows to groups of so many users."""
    common, parts = {"classes": [-1.0, 1.0], **common}, deal(len(x), sum(sizes))
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    tables: list[Table] = [
        {"x": x[rows], "y": y[rows], "group": group, **common}
        for rows, group in zip(parts, groups, strict=True)
    ]
    return tables + [{"role": "agent", "group": i} for i in range(len(sizes)) if agents]


def served(tables: list[Table]) -> Sites:
    return Sites(WAYS[SPLITS["rows"]], new_folder(), tables)


def fit(nodes: list[Table] | Sites, rounds: int = 200, **options: Any) -> HierarchicalSVM:
    sites = nodes if isinstance(nodes, Sites) else served(nodes)
    start: Table = {"num_rounds": rounds, "timeout": 60.0}
    found: HierarchicalSVM = sites.fit(start=start, **{"C": 1.0, **options}).strategy
    return found


def check_optimum(found: Found, near: float) -> None:
    """The objective is that of scikit-learn's optimum, and so are other numbers."""
    for got, expected in found.oracle():
        np.testing.assert_allclose(got, expected, rtol=0.0, atol=near)


def traced(strategy: HierarchicalSVM) -> list[Array]:
    """Return the global model after each iteration of one output."""
    return [z[0] for _, t, z in strategy.trace_ if t > 0]


def check_trace(strategy: HierarchicalSVM, right: Sequence[Array]) -> None:
    np.testing.assert_allclose(traced(strategy), right, rtol=0, atol=1e-7)
    assert np.linalg.norm(right[-1]) > 0.1


THREE, STEPS = [2, 3, 2], (0.5, 2.0, 1.0)
FLAT: Table = {"grow": lambda t: 1.0}
#: Name -> sizes of groups, options, and what they are to the plain loops.
ADMM: dict[str, tuple[list[int], Table, Table]] = {
    "one group": ([4], {}, {}),
    "five groups": ([2, 2, 3, 2, 2], {}, {}),
    "C": (THREE, {"C": 0.3}, {"c": 0.3}),
    "relaxation": ([2, 3], {"relaxation": 1.0}, {"a": 1.0}),
    "rho": (THREE, {"rho": 2.5}, {"first": [2.5] * 3, **FLAT}),
    "step sizes": (THREE, {"step_sizes": STEPS}, {"first": STEPS, **FLAT}),
    "rising": (THREE, {"step_sizes": STEPS, "rho_schedule": "rising"}, {"first": STEPS}),
    "sigma": (THREE, {"sigma": 0.7}, {"sigma": 0.7}),
    "fixed": (THREE, {"rho_schedule": "fixed", "C": 2.0}, {"c": 2.0, "first": [6.0] * 3, **FLAT}),
    # columns as they are: another penalty in the same coordinates
    "scale": ([3, 2], {"scale": "none"}, {"q": np.append(blobs(70)[0].std(0) ** -2.0, 0.0)}),
}


@pytest.mark.promise("svm-iterations", "svm-pads")
@pytest.mark.parametrize("case", ADMM)
def test_each_iteration_is_that_of_the_plain_admm(case: str) -> None:
    sizes, options, plain = ADMM[case]
    strategy = fit(horizontal(*blobs(70), sizes), 8, tolerance=1e-12, **options)
    check_trace(strategy, plain_admm(*blobs(70), sizes, 8, **plain))
    assert [row["round"] for row in strategy.history_] == list(range(1, 9))


def test_one_layer_is_the_plain_consensus_of_users() -> None:
    nodes = horizontal(*blobs(), [5], agents=False)
    strategy = fit(nodes, 12, architecture="centralised", tolerance=1e-12)
    check_trace(strategy, plain_central(*blobs(), 5, 12))
    assert strategy.ledger_.by_phase["svm-local"] == 12


def test_balanced_penalties_change_and_reach_the_same_optimum() -> None:
    nodes = horizontal(*blobs(), [2, 2])
    strategy = fit(nodes, 75, rho_schedule="balanced", rho=0.02, tolerance=1e-9)
    rhos = [row["rho"] for row in strategy.history_]
    assert max(rhos) > 2 * rhos[0]
    assert (np.array(rhos[1:]) / rhos[:-1]).max() <= 2.0 + 1e-12
    assert len(set(rhos[65:])) <= 1
    best = least(standard(blobs()[0]), blobs()[1])
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=1e-3)


# -- the pooled optimum; more in the contract of all ways


@pytest.mark.parametrize(
    ("kind", "scale", "c"),
    [("linear", "none", 0.5), ("logistic", "standard", 2.0), ("ridge", "standard", 0.1)],
)
def test_every_model_in_a_vertical_split(kind: Any, scale: Any, c: float) -> None:
    options: Table = {"model": kind, "scale": scale, "C": c, "tolerance": 1e-6}
    check_optimum(fit_way(SPLITS["columns"], **options), 2e-6)


@pytest.mark.parametrize("split", SPLITS)
def test_ridge_regression_of_several_targets(split: str) -> None:
    sites = WAYS[SPLITS[split]].sites()
    rng = np.random.default_rng(0)
    for table in sites.tables:
        for name in {"y", "y_test"} & set(table):
            table[name] = np.stack([3.0 * table[name], rng.normal(size=len(table[name]))], axis=1)
            table |= {"classes": None, "label_bound": 20.0}
    found = sites.fit(model="ridge", tolerance=1e-5 if split == "rows" else 1e-8)
    check_optimum(found, 1e-4)
    assert next(iter(found.oracle()))[0] == pytest.approx(1.0, rel=1e-7)
    if split == "rows":
        x, y = (stacked(sites.tables, name) for name in ("x_test", "y_test"))
        arrays = found.strategy.model()[0]
        errors = x @ arrays["weights"].T + arrays["bias"] - y
        rmse = np.sqrt((errors**2).mean())
        assert found.strategy.metrics_["test_rmse"] == pytest.approx(rmse)


@pytest.mark.parametrize("split", SPLITS)
def test_incomes_years_and_seconds_are_columns_as_others(split: str) -> None:
    """Their squares are far beyond the bound of sums; the model is that of standard columns."""
    plain, wide = WAYS[SPLITS[split]].sites(), WAYS[SPLITS[split]].sites()
    for table in wide.tables:
        for name in {"x", "x_test"} & set(table):
            d = table[name].shape[1]
            table[name] = table[name] * [3e5, 1e7, 1e-3][:d] + [1990.0, 1.7e9, 0.0][:d]
    found = [s.fit(model="logistic", start={"num_rounds": 30}).strategy for s in (plain, wide)]
    assert found[1].metrics_ == pytest.approx(found[0].metrics_, rel=1e-5)


def test_rbf_converges() -> None:
    """Random features vary little: with the penalties of columns it took hundreds of iterations."""
    x, y = blobs(120)
    strategy = fit(horizontal(x, y, [3, 3]), 70, model="rbf", features=100, tolerance=4e-3)
    assert strategy.metrics_["converged"]
    features = model_rows(standard(x), 100, 0.25, strategy.model()[1]["feature_seed"])
    assert strategy.metrics_["objective"] == pytest.approx(least(features, y), rel=3e-3)


@pytest.mark.parametrize("split", SPLITS)
def test_too_few_iterations_are_said_once(split: str, caplog: pytest.LogCaptureFixture) -> None:
    for rounds, tolerance in ((3, 1e-9), (200, 0.05)):
        caplog.clear()
        strategy = fit_way(
            SPLITS[split], tolerance=tolerance, start={"num_rounds": rounds}
        ).strategy
        said = [r.getMessage() for r in caplog.records if "not converged" in r.getMessage()]
        assert len(said) == (not strategy.metrics_["converged"]) == (rounds == 3)
        assert all("after 3 iterations" in s and "--rounds" in s for s in said)


def test_odd_tables_are_learned_from_as_if_pooled() -> None:
    """A constant column, users of one class and of one row, one of them alone in its group."""
    x, y = blobs(40)
    x[:, 1] = 7.0
    cuts, common = np.split(np.argsort(y), [1, 12, 30]), {"classes": [-1.0, 1.0]}
    tables: list[Table] = [
        {"x": x[p], "y": y[p], "group": group, "allow_single": True, **common}
        for p, group in zip(cuts, (0, 0, 0, 1), strict=True)
    ]
    tables += [{"role": "agent", "group": k} for k in (0, 1)]
    strategy = fit(tables, tolerance=1e-2, allow_single=True)
    best = least(standard(np.delete(x, 1, axis=1)), y)
    assert strategy.metrics_["objective"] == pytest.approx(best, rel=3e-3)


# -- how it is done must not matter


@pytest.mark.parametrize("way", ["", "asynchronous", "leave out", "vertical"])
def test_one_exchange_an_iteration_or_two(way: str) -> None:
    name = f"hierarchical-svm{way and f', {way}'}"
    how = [{"tolerance": 1e-12, "start": {"num_rounds": n}} for n in (2, 4)]
    few, more = (fit_way(name, **one).strategy.ledger_.exchanges for one in how)
    assert more - few == (4 if way == "vertical" else 2)


@pytest.mark.parametrize(("rounds", "c", "other"), [
    (8, 1.0, {"lost_groups": "leave-out"}), (24, None, {"lost_groups": "leave-out"}),
    (8, 1.0, {"staleness": 3}),
])  # fmt: skip
def test_groups_in_time_have_the_same_models(rounds: int, c: float | None, other: Table) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2])
    one, two = (fit(nodes, rounds, tolerance=1e-12, C=c, **more) for more in ({}, other))
    np.testing.assert_array_equal(traced(one), traced(two))
    assert [row["round"] for row in two.history_] == [row["round"] for row in one.history_]
    if "staleness" not in other:
        assert (two.history_, two.metrics_) == (one.history_, one.metrics_)
        assert two.tuned_ == one.tuned_


def test_without_groups_all_users_are_around_the_server() -> None:
    for agents, named in ((False, "centralised"), (True, "hierarchical")):
        nodes = horizontal(*blobs(60), [2, 2] if agents else [4], agents=agents)
        one, other = (fit(nodes, 5, architecture=how) for how in (None, named))
        assert ("svm-combine" in one.ledger_.by_phase) == agents
        np.testing.assert_array_equal(one.coefficients_, other.coefficients_)


# -- vertical splits


def test_rows_that_a_group_lacks_are_refused_or_left_out() -> None:
    sites = WAYS[SPLITS["columns"]].sites()
    for k, rows, kind in ((0, 5, ""), (2, 1, "_test")):
        for name in (f"x{kind}", f"ids{kind}"):
            sites.tables[k][name] = sites.tables[k][name][rows:]
    refuses("FK-ROWS-LACKING", sites.fit)
    found = sites.fit(missing="drop-row", tolerance=1e-6)
    assert found.strategy.row_plan_.dropped == 6
    check_optimum(found, 2e-6)


def test_rows_that_nobody_labelled_do_no_harm_and_none_need_be_held_out() -> None:
    sites = WAYS[SPLITS["columns"]].sites()
    for table in sites.tables:
        for name in {"x_test", "y_test", "ids_test"} & set(table):
            del table[name]
    for table in sites.tables[0:3:2]:
        table["x"] = np.concatenate([np.full((3, 2), 1e3), table["x"]])
        table["ids"] = np.concatenate([[f"stranger {j}" for j in range(3)], table["ids"]])
    found = sites.fit(tolerance=1e-6)
    assert set(found.strategy.metrics_) == {"objective", "iterations", "converged"}
    check_optimum(found, 2e-6)


# -- C is chosen by held-out folds, all that is tried side by side


def pooled_losses(sites: Sites, kind: str, lost: tuple[int, ...] = ()) -> Array:
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
@pytest.mark.parametrize("kind", ["linear", "logistic"])
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
    assert max(r["round"] for r in asked if r["chosen"] < 0) == ITERATIONS


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
    strategy = fit(nodes, C=None, **{"rounds": 24, **options})
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
    iterations, width = strategy.metrics_["iterations"], strategy.shape_[1] + 3
    fold = 5 / 3  # what is learned without a fold is about the other rows alone
    tried = ITERATIONS * (len(TRIED) * fold - 1) * width * (by != "nothing")
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
    raises(PowerCutError, made.fit, strategy=first)
    again, quiet = made.fit(**kept, resume=True).strategy, fit_way(way).strategy
    assert again.tuned_ == quiet.tuned_
    assert again.C_ == quiet.C_ != 1.0  # which it would be without a choice
    assert len(again.tuned_["losses"]) == len(TRIED)
    assert again.metrics_["objective"] == pytest.approx(quiet.metrics_["objective"], rel=1e-9)
