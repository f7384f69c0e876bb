"""HierarchicalSVM against pooled data, and against plain loops of the documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import svm_groups
from pooled import stacked
from refusals import refuses
from sklearn.svm import SVC
from svm_groups import blobs, deal, fit, horizontal, standard
from zoo import WAYS, Found, Table
from zoo import fit as fit_way

from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.solvers.local_solvers import solve_local
from fedkern_flwr.strategies import HierarchicalSVM

Array = np.ndarray


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
    strategy = fit(horizontal(*blobs(70), sizes), 5, tolerance=1e-12, **options)
    check_trace(strategy, plain_admm(*blobs(70), sizes, 5, **plain))
    assert [row["round"] for row in strategy.history_] == list(range(1, 6))


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
    (8, 1.0, {"lost_groups": "leave-out"}), (8, 1.0, {"staleness": 3}),
    pytest.param(24, None, {"lost_groups": "leave-out"}, marks=pytest.mark.long),
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
