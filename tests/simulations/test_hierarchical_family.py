"""The family of HierarchicalSVM: dealing a table, delays, the pooled optimum, what is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fedkern_flwr.groups.linear_model import model_rows
from fedkern_flwr.simulations import DropOut, simulate
from fedkern_flwr.simulations.engines.delays import DelayLaw, GroupDelays, first_fault
from fedkern_flwr.simulations.engines.faults import Delivery
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries
from fedkern_flwr.simulations.methods.groups import HierarchicalFamily
from fedkern_flwr.simulations.methods.groups_data import HierarchicalData
from fedkern_flwr.simulations.methods.groups_oracle import linear_svm, pooled_optimum
from fedkern_flwr.simulations.methods.groups_settings import HierarchicalSettings
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.run.options import options as options_of
from fedkern_flwr.simulations.run.random_labels import random_labels
from fedkern_flwr.strategies import HierarchicalSVM

VERTICAL = {"partition": "vertical"}


def data(name: str = "wine", **more: Any) -> HierarchicalData:
    return HierarchicalData(HierarchicalSettings(name, **{"users": 6, "groups": 2, **more}))


def tables(prepared: HierarchicalData, **options: Any) -> list[dict[str, Any]]:
    strategy = HierarchicalSVM(seed=0, **options)
    clients = prepared.client_fn(strategy)
    return [clients.table(k) for k in range(prepared.nodes(strategy))]


# --- Who is in which group ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("users", "more", "sizes", "text"),
    [
        (20, {"groups": 3}, (7, 7, 6), "20 users in 3 groups"),
        (4, {"groups": 4}, (1, 1, 1, 1), "4 users in 4 groups"),
        (7, {"groups": 1}, (7,), "7 users in 1 group"),
        (6, {"group_sizes": (1, 5)}, (1, 5), "groups of 1, 5 users"),
    ],
)
def test_users_are_dealt_to_groups_evenly_unless_sizes_are_given(
    users: int, more: dict[str, Any], sizes: tuple[int, ...], text: str
) -> None:
    settings = HierarchicalSettings("iris", users=users, **more)
    assert (settings.sizes, settings.describe()) == (sizes, text)


def test_every_row_is_at_one_user_and_agents_hold_nothing() -> None:
    prepared = data(group_sizes=(4, 2))
    nodes = tables(prepared)
    assert [n["role"] for n in nodes] == ["user"] * 6 + ["agent"] * 2
    assert [n["group"] for n in nodes] == [0, 0, 0, 0, 1, 1, 0, 1]
    assert nodes[6] == {"role": "agent", "group": 0}
    paid: dict[str, Any] = {"C": 1.0, "privacy_epsilon": 1.0}
    for groups, options in ((3, {"architecture": "centralised"}), (None, {}), (3, paid)):
        alone = tables(data(groups=groups), **options)  # without groups all nodes are users
        assert {(n["role"], n["group"]) for n in alone} == {("user", 0)}
    part = prepared.split(0)
    for name, rows in (("x", part.x[part.train]), ("x_test", part.x[~part.train])):
        held = np.concatenate([n[name] for n in nodes[:6]])
        np.testing.assert_array_equal(held[np.lexsort(held.T)], rows[np.lexsort(rows.T)])
    sizes = [len(n["y"]) for n in nodes[:6]]
    assert max(sizes) - min(sizes) <= 1
    assert sum(len(n["y_test"]) for n in nodes[:6]) == prepared.facts()["held_out_rows"]
    assert nodes[0]["classes"] == ("0", "1", "2")
    row = nodes[3]["x"][0]
    (place,) = np.flatnonzero((part.x == row).all(axis=1))
    assert part.y[place] == nodes[3]["y"][0]
    assert part.x.max() > 1000.0  # columns stay as they are: the method standardises them


#: What is typed, users and groups of the run.
NEEDED: list[tuple[dict[str, Any], int, int]] = [
    ({}, 20, 1), ({"groups": 1, "architecture": "centralised"}, 20, 1), ({"groups": 3}, 20, 3),
    ({"groups": 1}, 20, 1), ({"group_sizes": "4,2"}, 6, 2), ({"staleness": 2}, 20, 2),
    ({"lost_groups": "leave-out"}, 20, 2), ({"partition": "vertical"}, 20, 2),
    ({"architecture": "hierarchical", "users": 8}, 8, 2),
]  # fmt: skip


@pytest.mark.parametrize(("values", "users", "groups"), NEEDED)
def test_groups_that_are_named_or_needed_have_agents(
    values: dict[str, Any], users: int, groups: int
) -> None:
    flat = not values or values.get("architecture") == "centralised"
    family, architecture = HierarchicalFamily(), "centralised" if flat else "hierarchical"
    every = [*options_of(HierarchicalSVM), *family.parameters()]
    config = family.config("hierarchical-svm", {**{o.name: o.default for o in every}, **values})
    assert (config["data"]["users"], config["data"]["groups"]) == (users, groups)
    assert config["options"]["architecture"] == architecture
    nodes = family.deal_nodes(values, 12)
    vertical = values.get("partition") == "vertical"
    assert nodes["users"] == 12 - groups * (architecture == "hierarchical") - vertical


def test_a_vertical_split_gives_every_group_all_rows_of_its_columns() -> None:
    prepared = data(groups=2, **VERTICAL)
    nodes = tables(prepared, partition="vertical")
    assert [n["role"] for n in nodes] == ["user"] * 6 + ["agent"] * 2 + ["owner"]
    part = prepared.split(0)
    owner = nodes[-1]
    held = {"role", "table", "ids", "ids_test", "y", "y_test"}
    assert set(owner) == held | {"classes", "label_bound", "alignment_key"}
    np.testing.assert_array_equal(owner["y"], part.y[owner["ids"].astype(int)])
    np.testing.assert_array_equal(owner["y_test"], part.y[owner["ids_test"].astype(int)])
    assert not np.array_equal(owner["ids"], sorted(owner["ids"], key=int))
    dealt = []
    for group, block in enumerate(part.blocks):
        users = [n for n in nodes[:6] if n["group"] == group]
        assert len(users) == 3
        for suffix in ("", "_test"):
            ids = np.concatenate([n[f"ids{suffix}"] for n in users])
            assert sorted(ids) == sorted(owner[f"ids{suffix}"])  # each row at one user
            x = np.concatenate([n[f"x{suffix}"] for n in users])
            np.testing.assert_array_equal(x, part.x[np.ix_(ids.astype(int), block)])
        assert all("y" not in n for n in users)
        dealt.append([set(n["ids"]) for n in users])
    assert dealt[0] != dealt[1]  # other rows go together in another group
    assert [len(block) for block in part.blocks] == [7, 6]
    assert nodes[0]["columns"] == prepared.columns[:7]


def test_random_labels_are_those_of_the_papers_table() -> None:
    table = random_labels(0)
    assert table.x.shape == (10000, 25)
    assert set(table.y.tolist()) == {-1.0, 1.0}
    assert abs(float(table.y.mean())) < 0.05
    assert not np.array_equal(table.y, random_labels(1).y)


# --- Delays ---------------------------------------------------------------------------------


def test_delays_are_drawn_per_group_and_iteration() -> None:
    plan = GroupDelays(DelayLaw.parse("exponential:0.05,0.25"), (0, 0, 1), seed=3)
    other = GroupDelays(plan.law, (0, 0, 1), seed=4)
    first, second, third = (plan(Delivery(k, "svm-step", 7)) for k in range(3))
    assert first == second != third  # one draw for all users of a group
    assert first is not None
    assert first.kind == "delay"
    assert plan(Delivery(0, "svm-visit", 7)) == first  # users of a vertical split
    assert first not in (plan(Delivery(0, "svm-step", 8)), other(Delivery(0, "svm-step", 7)))
    assert plan(Delivery(3, "svm-step", 7)) is None  # an agent
    assert plan(Delivery(0, "svm-combine", 7)) is None
    for group, mean in ((0, 0.05), (1, 0.25)):
        drawn = np.array([plan.law.seconds(group, t, 0) for t in range(4000)])
        assert drawn.min() >= 0.0
        assert drawn.mean() == pytest.approx(mean, rel=0.06)
        assert drawn.std() == pytest.approx(mean, rel=0.1)
    assert GroupDelays(DelayLaw.parse("fixed:0"), (0,))(Delivery(0, "svm-step", 1)) is None


@pytest.mark.parametrize(
    "text", ["0.1", "fixed", "fixed:", "fixed:x", "normal:1", "fixed:-1", "exponential:inf", ""]
)
def test_delays_that_cannot_be_read_are_refused(text: str) -> None:
    with refused("FK-OPTION-TYPE"):
        DelayLaw.parse(text)
    law, alike = DelayLaw.parse("fixed:0.1,0.2"), DelayLaw.parse("fixed:0.1")
    with refused("FK-GROUPS-DIFFER"):  # numbers are for all groups, or for each
        law.check(3)
    law.check(2)
    alike.check(3)


def test_plans_are_joined_and_the_first_decides() -> None:
    delays, drops = GroupDelays(DelayLaw.parse("fixed:1"), (0, 0)), DropOut(0.5, seed=1)
    joined = first_fault(drops, delays)
    assert joined is not None
    kinds = {fault.kind for t in range(1, 30) if (fault := joined(Delivery(0, "svm-step", t)))}
    assert kinds == {"vanished", "delay"}
    assert first_fault(None, delays) is delays
    assert first_fault(None, None) is None


def test_delays_belong_to_the_data_and_differ_from_run_to_run() -> None:
    prepared = data(delay="exponential:0.2", groups=2)
    place = Delivery(4, "svm-step", 3)
    plans = [prepared.faults(HierarchicalSVM(seed=seed)) for seed in (0, 0, 1)]
    found = [plan(place) for plan in plans if plan is not None]
    assert found[0] == found[1] != found[2]
    first = prepared.variant(HierarchicalSVM(seed=0))
    assert first == prepared.variant(HierarchicalSVM(seed=0, C=3.0, staleness=4))
    assert first != prepared.variant(HierarchicalSVM(seed=1))
    assert data().faults(HierarchicalSVM(seed=0)) is None
    assert data().variant(HierarchicalSVM(seed=0)) == data().variant(HierarchicalSVM(seed=1))


# --- The pooled optimum ---------------------------------------------------------------------


def pooled(classes: int = 2, rows: int = 120) -> PooledSplit:
    rng = np.random.default_rng(5)
    units = (1.0, 10.0, 0.1, 3.0)
    x = rng.normal(size=(rows, 4))
    scores = x @ rng.normal(size=(4, max(classes, 1))) + 0.5 * rng.normal(size=(rows, 1))
    y = scores.argmax(axis=1).astype(float) if classes else scores[:, 0] / np.abs(scores).max()
    x = x * units + 5.0
    names = tuple(map(float, range(classes)))
    return PooledSplit(x[:80], y[:80], x[80:], y[80:], names, 2.0)


@pytest.mark.parametrize(
    ("loss", "scale", "classes"),
    [*(("hinge", scale, n) for scale in ("standard", "none") for n in (2, 3)),
     ("logistic", "standard", 2)],
)  # fmt: skip
def test_the_optimum_is_that_of_scikit_learn(loss: str, scale: str, classes: int) -> None:
    split = pooled(classes)
    best = pooled_optimum(split, loss, 0.7, scale)
    assert best is not None
    by = StandardScaler(with_mean=scale == "standard", with_std=scale == "standard").fit(split.x)
    x, x_test = by.transform(split.x), by.transform(split.x_test)
    total, outputs = 0.0, []
    for y in split.targets().T:
        machine: Any = SVC(kernel="linear", C=0.7, tol=1e-7)
        if loss == "logistic":
            machine = LogisticRegression(C=0.7, tol=1e-10, max_iter=10000)
        w, margins = machine.fit(x, y).coef_[0], y * machine.decision_function(x)
        losses = np.maximum(0.0, 1.0 - margins) if loss == "hinge" else np.logaddexp(0, -margins)
        total += 0.5 * w @ w + 0.7 * losses.sum()
        outputs.append(machine.decision_function(x_test))
    assert best.objective <= total * (1.0 + 1e-9)
    assert best.objective == pytest.approx(total, rel=1e-5 if loss == "hinge" else 1e-7)
    assert best.metrics == split.judge(np.array(outputs).T)
    assert 0.5 < best.metrics["test_accuracy"] <= 1.0


def test_the_optimum_of_ridge_is_the_closed_form_in_the_labels_unit() -> None:
    split = pooled(0)
    best = pooled_optimum(split, "squared", 2.0, "standard")
    assert best is not None
    by, y = StandardScaler().fit(split.x), split.y - split.y.mean()
    x = by.transform(split.x)
    w = np.linalg.solve(x.T @ x + np.eye(4) / 2.0, x.T @ y)
    residual = y - x @ w
    assert best.objective == pytest.approx(0.5 * w @ w + residual @ residual, rel=1e-9)
    error = split.y_test - split.y.mean() - by.transform(split.x_test) @ w
    assert best.metrics["test_rmse"] == pytest.approx(2.0 * np.sqrt(np.mean(error**2)))


def test_random_features_are_made_first() -> None:
    split = pooled()
    features = partial(model_rows, features=20, gamma=0.05, seed=7)
    made = replace(split, x=features(split.x), x_test=features(split.x_test))
    found = pooled_optimum(split, "hinge", 1.0, "none", features)
    assert found == pooled_optimum(made, "hinge", 1.0, "none")


def test_the_reference_is_the_optimum_and_huge_problems_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split, given = pooled(), {"seed": 0, "progress": lambda done, total: None}
    metrics, history = linear_svm(split, **given, C=0.5)
    best = pooled_optimum(split, "hinge", 0.5, "standard")
    assert best is not None
    assert metrics["objective"] == metrics["centralised_objective"] == best.objective
    assert metrics["test_accuracy"] == 1.0 - history[0]["test_error"]
    with refused("FK-OPTION-CHOICE"):
        linear_svm(split, **given, model="rbf")
    monkeypatch.setattr("fedkern_flwr.simulations.methods.groups_oracle.MOST_WORK", 80 * 25.0 - 1.0)
    assert pooled_optimum(split, "hinge", 1.0, "none") is None
    assert linear_svm(split, **given)[0] == {}


# --- Runs -----------------------------------------------------------------------------------


def run_one(prepared: HierarchicalData, **options: Any) -> Entry:
    entry, family = Entry("HierarchicalSVM", "hierarchical-svm", options), HierarchicalFamily()
    measure = lambda strategy: family.measure(strategy, prepared, {})  # noqa: E731
    run_entries([entry], prepared, engine="in-process", seed=0, measure=measure)
    return entry


TWO = {"name": "iris", "positive": 1.0}
#: Of the data, and of the method; ``make test-long`` has the first four.
SOLVED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "iris"}, {"model": "logistic"}),
    (TWO, {"scale": "none"}),
    (TWO, {"architecture": "centralised"}),
    (TWO, {"model": "rbf", "features": 6, "gamma": 0.5}),
    ({"name": "iris", "target": "0"}, {"model": "ridge"}),
    (TWO | VERTICAL, VERTICAL),
    ({"name": "iris", **VERTICAL}, {**VERTICAL, "model": "logistic"}),
    ({"name": "iris", "target": "0", **VERTICAL}, {**VERTICAL, "model": "ridge"}),
]


@pytest.mark.parametrize(
    ("of_data", "options"),
    [pytest.param(*one, marks=[pytest.mark.long] * (k < 4)) for k, one in enumerate(SOLVED)],
)
def test_runs_come_to_the_pooled_optimum(of_data: dict[str, Any], options: dict[str, Any]) -> None:
    prepared = data(**of_data, users=4, rounds=200)
    metrics = run_one(prepared, tolerance=1e-4, **options).results[0]["metrics"]
    assert abs(metrics["objective_gap"]) < 1e-3
    assert metrics["objective"] > 0.0
    assert metrics["iterations"] >= 2
    kind = "test_rmse" if "target" in of_data else "test_accuracy"
    assert metrics[kind] == pytest.approx(metrics[f"centralised_{kind}"], rel=0.03)
    if kind == "test_rmse":
        assert 0.1 < metrics[kind] < 1.0  # centimetres


def test_another_c_is_another_optimum() -> None:
    """The negative control of the gap that a run reports."""
    prepared = data("iris", positive=1.0, users=4)
    strategy = HierarchicalSVM(seed=0, C=0.1, tolerance=1e-4)
    simulate(strategy, prepared.client_fn(strategy), prepared.nodes(strategy))
    right = HierarchicalFamily().measure(strategy, prepared, {})
    assert abs(right["objective_gap"]) < 1e-3
    accuracy = pytest.approx(right["centralised_test_accuracy"], rel=0.03)
    assert strategy.metrics_["test_accuracy"] == accuracy
    for name, value in (("C_", 0.2), ("scale", "none")):
        before = getattr(strategy, name)
        setattr(strategy, name, value)
        wrong = HierarchicalFamily().measure(strategy, prepared, {})
        assert abs(wrong["objective_gap"]) > 0.03, name
        setattr(strategy, name, before)


def test_delays_make_a_run_last_and_change_nothing_else() -> None:
    options: dict[str, Any] = {"C": 0.5}
    quick = run_one(data("iris", positive=1.0, rounds=5), **options).results[0]
    slow = run_one(data("iris", positive=1.0, rounds=5, delay="fixed:0.1,0.2"), **options)
    assert slow.results[0]["metrics"]["objective"] == quick["metrics"]["objective"]
    assert slow.results[0]["seconds"] >= 5 * 0.2
