"""HierarchicalSVM against pooled data and against plain loops of what the documents say."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from plain_admm import Array, blobs, deal, least, plain_admm, plain_central, standard
from pooled import stacked
from refusals import refused
from zoo import WAYS, Found, Sites, Table, new_folder
from zoo import fit as fit_way

from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.strategies import HierarchicalSVM

SPLITS = {"rows": "hierarchical-svm", "columns": "hierarchical-svm, vertical"}


@pytest.fixture(autouse=True)
def _same_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda n: "5e" * n)


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


def fit(tables: list[Table], rounds: int = 200, **options: Any) -> HierarchicalSVM:
    sites = Sites(WAYS[SPLITS["rows"]], new_folder(), tables)
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


@pytest.mark.promise("svm-iterations")
@pytest.mark.promise("svm-pads")
@pytest.mark.parametrize("case", ADMM)
def test_each_iteration_is_that_of_the_plain_admm(case: str) -> None:
    sizes, options, plain = ADMM[case]
    strategy = fit(horizontal(*blobs(70), sizes), 8, tolerance=1e-12, **options)
    check_trace(strategy, plain_admm(*blobs(70), sizes, 8, **plain))
    assert [row["round"] for row in strategy.history_] == list(range(1, 9))


def test_one_layer_is_the_plain_consensus_of_users() -> None:
    x, y = blobs()
    nodes = horizontal(x, y, [5], agents=False)
    strategy = fit(nodes, 12, architecture="centralised", tolerance=1e-12)
    check_trace(strategy, plain_central(x, y, 5, 12))
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
def test_iterations_that_were_too_few_are_said_in_one_line(
    split: str, caplog: pytest.LogCaptureFixture
) -> None:
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


@pytest.mark.parametrize("other", [{"lost_groups": "leave-out"}, {"staleness": 3}])
def test_groups_that_are_all_there_in_time_have_the_same_models(other: Table) -> None:
    nodes = horizontal(*blobs(72), [2, 2, 2])
    one, two = (fit(nodes, 8, tolerance=1e-12, **options) for options in ({}, other))
    np.testing.assert_array_equal(traced(one), traced(two))
    assert [row["round"] for row in two.history_] == [row["round"] for row in one.history_]
    if "staleness" not in other:
        assert two.history_ == one.history_
        assert two.metrics_ == one.metrics_


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
    with refused("FK-ROWS-LACKING"):
        sites.fit()
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


# -- nodes that do not fit; more in tests/core/test_groups.py


def change(k: int, **changes: Any) -> Callable[[list[Table]], Any]:
    return lambda tables: tables[k].update(changes)


def as_it_is(tables: list[Table]) -> None:
    """Nothing is wrong with the tables."""


def around_the_server(tables: list[Table]) -> None:
    del tables[4:]
    for table in tables:
        table["group"] = 0


def numbers(tables: list[Table]) -> None:
    for table in tables:
        table.pop("classes", None)


ALONE: Table = {"allow_single": True}
ACROSS: Table = {"partition": "vertical"}
#: Name -> code, what is wrong with the nodes of a way, options.
BAD_NODES: dict[str, tuple[str, Callable[[list[Table]], Any], Table]] = {
    "no users": ("FK-GROUPS-SHAPE", lambda t: t.__delitem__(slice(4)), {}),
    "staleness, no agents": ("FK-GROUPS-SHAPE", around_the_server, {"staleness": 1}),
    "a budget with agents": ("FK-GROUPS-NO-AGENT", as_it_is, {"privacy_epsilon": 1.0}),
    "numbers": ("FK-LOSS-CLASSES", numbers, {}),
    "step sizes": ("FK-GROUPS-DIFFER", as_it_is, {"step_sizes": (1, 1, 1)}),
    "none may go": ("FK-GROUPS-LEFT", as_it_is, {"lost_groups": "leave-out"}),
    "a single user": ("FK-GROUPS-SINGLE", lambda t: t.pop(3), {}),
    "that refuses": ("FK-ALONE-REFUSED", lambda t: t.pop(3), ALONE),
    "no owner": ("FK-GROUPS-OWNER", lambda t: t.pop(), ACROSS),
    "no ids": ("FK-IDS-SOME", change(2, ids=None, ids_test=None), ACROSS),
    "another key": ("FK-ROWS-LACKING", change(0, alignment_key=bytes(16)), ACROSS),
    "an owner": ("FK-GROUPS-OWNER", as_it_is, {"partition": "horizontal"}),
    "one class": ("FK-LOSS-CLASSES", change(6, y=np.ones(48)), ACROSS),
}


@pytest.mark.promise("svm-alone")
@pytest.mark.parametrize("name", BAD_NODES)
def test_nodes_that_do_not_fit_are_refused_in_one_line(name: str) -> None:
    code, spoil, options = BAD_NODES[name]
    sites: Sites = WAYS[SPLITS["columns" if "partition" in options else "rows"]].sites()
    spoil(sites.tables)
    with refused(code) as caught:
        sites.fit(**options)
    assert "\n" not in str(caught.value)
