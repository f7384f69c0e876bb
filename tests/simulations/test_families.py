"""What experiments and the families of methods promise of their data and figures."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import complaint, refused, refuses
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.method import option
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.engines.faults import DelayLaw, Delivery, GroupDelays
from fedkern_flwr.simulations.lab import own as own_tables
from fedkern_flwr.simulations.methods import rows as of_rows
from fedkern_flwr.simulations.methods import vertical as of_vertical
from fedkern_flwr.simulations.methods.dealt_data import frequency_seed
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries
from fedkern_flwr.simulations.methods.groups import (
    HierarchicalData,
    HierarchicalFamily,
    HierarchicalSettings,
    linear_svm,
    pooled_optimum,
)
from fedkern_flwr.simulations.methods.hybrid import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.hybrid import (
    centralised_difference as hybrid_difference,
)
from fedkern_flwr.simulations.methods.online import DataSettings, prepare, server_regret
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import METHODS, family, family_with, method
from fedkern_flwr.simulations.methods.vertical import (
    VerticalData,
    VerticalSettings,
    centralised_difference,
)
from fedkern_flwr.simulations.run.options import options as options_of
from fedkern_flwr.strategies import FDSKL, FedCG, HierarchicalSVM, KernelPCA

Table = dict[str, Any]

# -- streams


def test_streams_are_scaled_dealt_and_as_long_as_the_data() -> None:
    prepared = prepare(DataSettings("diabetes", clients=5, rounds=60))
    x = np.concatenate([shard.x for shard in prepared.shards])
    y = np.concatenate([shard.y for shard in prepared.shards])
    assert np.linalg.norm(x, axis=1).max() <= 1.0 + 1e-12
    assert 0.0 <= y.min() < y.max() <= 1.0
    assert all(len(shard.x) == 60 for shard in prepared.shards)
    prepared = prepare(DataSettings("iris"))
    assert (prepared.num_clients, prepared.rounds) == (10, 15)
    assert "15 rounds instead of 500" in prepared.notes[-1]
    assert prepare(DataSettings("nyc-weather", split="site", rounds=10)).num_clients == 3
    caught = refuses("FK-SITES-UNKNOWN", prepare, DataSettings("nyc-weather", sites=("EWR", "CDG")))
    assert "JFK" not in str(caught)
    refuses("FK-OPTION-RANGE", prepare, DataSettings("iris", test_size=-0.1))


# -- families that hold rows out

FAMILIES: dict[str, Callable[..., Any]] = {
    "fed-cg": HybridSettings, "fdskl": VerticalSettings, "hierarchical-svm": HierarchicalSettings,
}  # fmt: skip
every_family = pytest.mark.parametrize("name", FAMILIES)


def dealt(name: str, data: str, **more: Any) -> Any:
    """Return the data of a family; a file has all the columns that a table may have."""
    named = {"label": "y", "id_column": "id", "site_column": "town"} if data[-3:] == "csv" else {}
    users = {"users": 6, "rounds": 5} if name == "hierarchical-svm" else {}
    parties = {"parties": 3} if name == "fdskl" else {}
    return family(name).prepare(FAMILIES[name](data, **{**named, **users, **parties, **more}))


@every_family
def test_whole_numbers_are_classes_and_all_else_is_a_regression(name, table, tables, tmp_path):
    rows, found = np.arange(60), {}
    for kind, y in {"classes": rows % 20, "many": rows % 21, "real": rows / 7.0}.items():
        path = tables.write(tmp_path / f"{kind}.csv", {**table, "y": y, "b": np.full(60, 7.0)})
        found[kind] = len(dealt(name, path).split(0).classes)
        assert "constant in the training rows: b" in dealt(name, path).notes
    assert found == {"classes": 20, "many": 0, "real": 0}
    path = str(tmp_path / "classes.csv")
    assert dealt(name, path, task="regression").split(0).classes == ()
    assert dealt(name, path, positive=3.0).split(0).classes == (0.0, 1.0)
    for more in ({"task": "regression", "positive": 1.0}, {"positive": 77.0}):
        with refused("FK-CLASSES-UNKNOWN", "FK-OPTION-CONFLICT"):
            dealt(name, path, **more)


@every_family
def test_held_out_rows_that_came_with_the_data_are_kept_unless_each_run_has_its_own(
    name: str, table: Table, tmp_path: Path
) -> None:
    x = np.column_stack([table[c] for c in "abcdef"])
    own, path = FAMILIES[name], str(tmp_path / "t.npz")
    np.savez(path, X=x[:40], y=np.arange(40) % 2, X_test=x[40:], y_test=[0, 1] * 10)
    users = {"users": 6} if name == "hierarchical-svm" else {}
    facts = family(name).prepare(own(path, **users)).facts()
    assert (np.sum(facts["rows"]), np.sum(facts["held_out_rows"])) == (40, 20)
    for resplit in (False, True):
        made = family(name).prepare(own(path, resplit=resplit, **users))
        first, second = (places(made.split(seed)) for seed in (0, 1))
        same = all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
        assert same != resplit


def parameters(name: str) -> dict[str, Any]:
    """Return all options of a run at their defaults."""
    return {o.name: o.default for o in (*options_of(method(name)), *family(name).parameters())}


@pytest.mark.parametrize("name", [one for one in METHODS if "resplit" in parameters(one)])
def test_a_run_has_a_split_of_its_own_if_asked_for(name: str, commands: Any) -> None:
    """Of ratings too; and the first again, whichever was made in between."""
    for resplit in (False, True):
        given = {**parameters(name), "resplit": resplit, "test_size": 0.2}
        if "user" in given:  # the flights of a year are many
            given |= {"data": str(commands.ratings), "user": "who", "item": "what"}
        config = family(name).config(name, given)
        made = family(name).prepare(family(name).settings.from_values(config["data"]))
        first, other, again = (pickle.dumps(made.pooled(seed)) for seed in (0, 1, 0))
        assert first == again
        assert (first != other) == (resplit and name != "secure-gram")  # holds nothing out


def places(split: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, (split.train, *getattr(split, "holders", ())[:1])))


TWELVE = [f"c{k:02}" for k in range(12)]
NOTED: list[tuple[list[Any], list[str]]] = [
    (["u", "v"], ["2 classes: u 30, v 30"]), (["[red]", "v\tw"], ["2 classes: [red] 30, v w 30"]),
    (["u", "v", "w1"], ["3 classes: u 29, v 30, w1 1; w1 has 1 row: a typo?"]),
    (["u", "w1", "w2"], ["3 classes: u 58, w1 1, w2 1; w1, w2 have 1 row each: typos?"]),
    (TWELVE, []), ([*TWELVE, "w1"], ["13 classes; w1 has 1 row: a typo?"]), ([0.0, 1.0], []),
]  # fmt: skip


@pytest.mark.parametrize(("classes", "expected"), NOTED)
def test_classes_of_text_are_named_with_their_rows(classes, expected, table, tables, tmp_path):
    alone = [one for one in classes if str(one).startswith("w")]
    many = [one for one in classes if one not in alone]
    table["y"] = [*alone, *(many[k % len(many)] for k in range(len(alone), 60))]
    notes = dealt("fed-cg", tables.write(tmp_path / "t.csv", table)).notes
    assert [note for note in notes if note[0].isdigit()] == expected


NAMED = {"label": "y", "id_column": "id", "site_column": "town"}


@pytest.fixture
def hybrid(table, tables, tmp_path):
    """Return what deals the table to hospitals and centres."""
    path = tmp_path / "t.csv"
    return lambda **more: HybridData(HybridSettings(tables.write(path, table), **NAMED, **more))


@pytest.fixture
def vertical(table, tables, tmp_path):
    """Return what deals the columns of the table."""
    path = tmp_path / "t.csv"
    return lambda **more: VerticalData(VerticalSettings(tables.write(path, table), **NAMED, **more))


# -- hospitals and centres


def test_a_hospital_holds_the_rows_of_its_site(table, hybrid):
    sites = np.array(table["town"])
    for hospitals, names in ((3, "xyz"), (5, "xyzxy")):
        pooled = hybrid(split="site", hospitals=hospitals).split(0)
        assert [set(sites[pooled.hospital == h]) for h in range(hospitals)] == [{s} for s in names]
    refuses("FK-SPLIT-SITES", hybrid, split="site")
    table["town"] = ["x"] * 1 + ["y"] * 30 + ["z"] * 29  # one of them without held-out rows
    pooled = hybrid(split="site", hospitals=3).split(0)
    assert not (~pooled.train & (pooled.hospital == 0)).any()
    assert pooled.hospital.tolist() == [0] * 1 + [1] * 30 + [2] * 29


def test_the_papers_split_is_that_of_scikit_learn_whatever_the_seed(hybrid):
    data = hybrid(paper_split=True, test_size=0.25, resplit=True, seed=3)
    _, test = train_test_split(np.arange(60), test_size=0.25, random_state=0)
    for seed in (3, 4):
        assert sorted(np.flatnonzero(~data.split(seed).train)) == sorted(test)
    alone = HybridData(HybridSettings("iris", centres=4, own_block=False)).split(0)
    assert list(alone.blocks) == [f"centre {c}" for c in (1, 2, 3, 4)]  # labels alone


def test_columns_without_values_are_noted_or_refused(table, hybrid):
    table["b"] = np.full(60, 7.0)
    data = hybrid()
    assert "constant in the training rows: b" in data.notes
    assert set(data.split(0).x[:, 1]) == {0.0}
    table["c"] = np.full(60, np.nan)
    for missing in ("drop-row", "neutral"):
        refuses("FK-COLUMN-EMPTY", hybrid, missing=missing)
    table["c"], table["d"] = np.where(np.arange(60) % 2, np.nan, 1.0), table["d"].copy()
    table["d"][::2] = np.nan
    refuses("FK-VALUES-NOROW", hybrid, missing="neutral")  # every row lacks a column of a block


def test_rows_without_a_label_or_a_hospitals_value_are_left_out_and_noted(table, hybrid):
    table["y"][[3, 8]] = np.nan
    table["a"][5] = np.nan
    table["c"][9] = np.nan  # of a centre: the row lacks a block
    refuses("FK-VALUES-MISSING", hybrid)
    for more in ({}, {"positive": 1.0}):  # a missing label is no class, not even the other one
        data = hybrid(missing="neutral", **more)
        assert len(data.split(0).y) == 57
        assert any("left out 3 of 60 rows" in note for note in data.notes)
        assert np.isnan(data.split(0).x).any()
    table["y"] = np.linspace(0.0, 100.0, 60)
    table["y"][7], table["a"][5] = np.inf, 1.0  # an infinite label is a missing one
    pooled = hybrid(missing="drop-row").split(0)
    assert len(pooled.y) == 59
    assert np.abs(pooled.y[pooled.train]).max() == pytest.approx(1.0)


PLAIN = {"landmarks": 12, "sampling": "U", "tune": "off"}
HYBRID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "laplacian": ({}, {**PLAIN, "kernel": "laplacian", "gamma": 1.5}),
    "a width per landmark": ({}, {**PLAIN, "landmark_gamma": True}),
    "rkhs": ({}, {**PLAIN, "penalty": "rkhs", "regularization": 0.1}),
    "many classes": ({"data": "iris", "centres": 3}, PLAIN),
    "numbers": ({"data": "iris", "target": "0"}, {**PLAIN, "regularization": 0.1}),
    "chosen, other seed": ({"seed": 9, "resplit": True}, {}),
}


@pytest.mark.parametrize("case", HYBRID)
def test_the_pooled_solution_is_what_the_parties_made(case, hybrid, tables):
    """Zeros are as far from it as it is large, another width is noticed."""
    of_data, of_method = HYBRID[case]
    data = HybridData(HybridSettings(**of_data)) if "data" in of_data else hybrid(**of_data)
    strategy = FedCG(**of_method, seed=of_data.get("seed", 0))
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert bool(strategy.tuned_) == (of_method.get("tune") != "off")
    assert hybrid_difference(strategy, data) < (1e-6 if strategy.tuned_ else 1e-7)
    outputs = tables.outputs(data.predictions)
    assert set(outputs) == {*np.flatnonzero(~data.split(strategy.seed).train).tolist()}
    largest = max(max(map(abs, values)) for values in outputs.values())
    assert largest > 0.5
    strategy.gammas_ = 2.0 * strategy.gammas_
    assert hybrid_difference(strategy, data) > 1e-4
    strategy.gammas_ = strategy.gammas_ / 2.0
    tables.put(data.predictions, {row: [0.0] * len(own) for row, own in outputs.items()})
    assert hybrid_difference(strategy, data) == pytest.approx(largest, rel=0, abs=1e-6)


# -- columns


#: Settings of data, and the strategy that they are dealt for.
PARTED: dict[str, tuple[Any, Any]] = {
    "fed-cg": (HybridSettings("wine", hospitals=3, centres=2), FedCG),
    "fdskl": (VerticalSettings("wine", parties=3, active_parties=2),
              partial(FDSKL, schedule="streaming")),
    "users": (HierarchicalSettings("wine", users=6, group_sizes=(4, 2)), HierarchicalSVM),
    "groups": (HierarchicalSettings("wine", users=6, groups=2, partition="vertical"),
               partial(HierarchicalSVM, partition="vertical")),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTED)
def test_what_nodes_are_dealt_is_the_table(case: str) -> None:
    """A cell is that of its row and column, whoever has it; each label is at one node."""
    settings, kind = PARTED[case]
    data, strategy = family_with(settings).prepare(settings), kind(seed=0)
    split, clients = data.split(0), data.client_fn(strategy)
    nodes: list[Table] = [clients.table(k) for k in range(data.nodes(strategy))]
    known = {row.tobytes(): k for k, row in enumerate(split.x)}
    names = [*dict.fromkeys(name for own in nodes for name in own.get("columns", ()))]
    labelled: dict[str, list[int]] = {"": [], "_test": []}
    for own, (part, seen) in product(nodes, labelled.items()):
        x, y, ids = (own.get(f"{name}{part}") for name in ("x", "y", "ids"))
        if x is None and ids is None:
            continue
        rows = np.array([known[row.tobytes()] for row in x] if ids is None else ids, int)
        if x is not None:
            columns = [names.index(name) for name in own["columns"]]
            np.testing.assert_array_equal(x, split.x[np.ix_(rows, columns)])
        if y is not None:
            there = np.isfinite(y)
            np.testing.assert_array_equal(y[there], split.y[rows[there]])
            seen += rows[there].tolist()
    assert sorted(labelled[""]) == np.flatnonzero(split.train).tolist()
    assert sorted(labelled["_test"]) == np.flatnonzero(~split.train).tolist()
    orders = [tuple(map(str, own["ids"][:20])) for own in nodes if "ids" in own]
    assert len(set(orders)) == len(orders)
    if case == "fdskl":  # a passive party has no label, nor what is held out
        shared = {"columns", "alignment_key", "frequency_seed"}
        assert set(nodes[2]) == {"x", "ids"} | shared
        for own in nodes:
            assert len({*own["ids"], *own.get("ids_test", [])}) == len(split.y)


def test_a_choice_of_training_rows_leaves_the_held_out_ones(vertical):
    whole, few, more = vertical(), vertical(train_rows=20), vertical(train_rows=500)
    assert [data.facts()["rows"] for data in (whole, few, more)] == [45, 20, 45]
    assert whole.facts()["held_out_rows"] == few.facts()["held_out_rows"] == 15
    np.testing.assert_array_equal(few.pooled(0).y_test, whole.pooled(0).y_test)
    other = vertical(train_rows=20, seed=1).split(1)
    assert not np.array_equal(few.split(0).y[few.split(0).train], other.y[other.train])


ONE = {"features": 30, "regularization": 0.02, "phase_bits": 32, "loss": "square"}
MANY = {"schedule": "streaming", "directions": 3, "batch": 5, "step": 0.4, "phase_bits": 32}
VERTICAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "smooth hinge, laplacian": ({}, {**ONE, "loss": "smooth-hinge", "kernel": "laplacian"}),
    "chosen": ({}, {**ONE, "gamma": None, "regularization": None}),
    "many classes": ({"data": "iris"}, ONE),
    "two parties": ({"parties": 2, "allow_single": True}, {**ONE, "allow_single": True}),
    "other seed": ({"seed": 9, "resplit": True}, {**ONE, "phase_bits": 16}),
    "streaming": ({"train_rows": 25}, {**MANY, "loss": "logistic", "kernel": "laplacian"}),
    "diminishing": ({}, {**MANY, "step_schedule": "diminishing", "regularization": 0.2}),
    "streaming, numbers": ({"data": "iris", "target": "0", "active_parties": 2}, MANY),
}  # fmt: skip


@pytest.mark.parametrize("case", VERTICAL)
def test_the_pooled_twin_is_what_parties_made_of_their_seeds(case, vertical, tables, monkeypatch):
    """The negative control of every difference that a run reports."""
    of_data, options = VERTICAL[case]
    of_data = {"parties": 3, **of_data}
    data = VerticalData(VerticalSettings(**of_data)) if "data" in of_data else vertical(**of_data)
    strategy = FDSKL(**{"seed": data.settings.seed, "gamma": 1.0, **options})
    simulate(strategy, data.client_fn(strategy), data.num_clients, num_rounds=12)
    outputs = tables.outputs(data.predictions)
    assert max(max(map(abs, values)) for values in outputs.values()) > 0.05
    # what is minimised in steps ends where the steps are small enough
    stepwise = strategy.schedule == "one-shot" and strategy.chosen_loss != "square"
    close = 1e-4 if stepwise else 1e-6 if options["phase_bits"] == 32 else 3e-3
    difference = centralised_difference(strategy, data)
    assert difference < close
    for party in range(data.num_clients):
        changed = frequency_seed(1000, party)

        def seed_of(seed: int, whose: int, party: int = party, changed: bytes = changed) -> bytes:
            return changed if whose == party else frequency_seed(seed, whose)

        with monkeypatch.context() as patch:
            patch.setattr(of_vertical, "frequency_seed", seed_of)
            assert centralised_difference(strategy, data) > 10.0 * max(difference, 1e-3)
    outputs[next(iter(outputs))][0] += 0.1  # it is that of the worst prediction
    tables.put(data.predictions, outputs)
    assert centralised_difference(strategy, data) == pytest.approx(0.1, abs=2.0 * close)


# -- the family of HierarchicalSVM: delays, the pooled optimum, what is measured


COLUMNS = {"partition": "vertical"}


def data(name: str = "wine", **more: Any) -> HierarchicalData:
    return HierarchicalData(HierarchicalSettings(name, **{"users": 6, "groups": 2, **more}))


def tables(prepared: HierarchicalData, **options: Any) -> list[Any]:
    strategy = HierarchicalSVM(seed=0, **options)
    clients = prepared.client_fn(strategy)
    return [clients.table(k) for k in range(prepared.nodes(strategy))]


# --- Who is in which group ------------------------------------------------------------------


@pytest.mark.parametrize(("users", "more", "sizes", "text"), [
    (20, {"groups": 3}, (7, 7, 6), "20 users in 3 groups"),
    (4, {"groups": 4}, (1, 1, 1, 1), "4 users in 4 groups"),
    (7, {"groups": 1}, (7,), "7 users in 1 group"),
    (6, {"group_sizes": (1, 5)}, (1, 5), "groups of 1, 5 users"),
])  # fmt: skip
def test_users_are_dealt_to_groups_evenly_unless_sizes_are_given(
    users: int, more: dict[str, Any], sizes: tuple[int, ...], text: str
) -> None:
    settings = HierarchicalSettings("iris", users=users, **more)
    assert (settings.sizes, settings.describe()) == (sizes, text)


def test_users_have_agents_and_an_owner_has_the_labels_of_columns() -> None:
    nodes = tables(data(group_sizes=(4, 2)))
    assert [n["role"] for n in nodes] == ["user"] * 6 + ["agent"] * 2
    assert [n["group"] for n in nodes] == [0, 0, 0, 0, 1, 1, 0, 1]
    assert nodes[6] == {"role": "agent", "group": 0}
    paid: dict[str, Any] = {"C": 1.0, "privacy_epsilon": 1.0}
    for groups, options in ((3, {"architecture": "centralised"}), (None, {}), (3, paid)):
        alone = tables(data(groups=groups), **options)  # without groups all nodes are users
        assert {(n["role"], n["group"]) for n in alone} == {("user", 0)}
    *nodes, owner = tables(data(groups=2, **COLUMNS), partition="vertical")
    assert [n["role"] for n in nodes] == ["user"] * 6 + ["agent"] * 2
    assert (owner["role"], all("y" not in n for n in nodes)) == ("owner", True)
    dealt = []
    for users in ([n for n in nodes[:6] if n["group"] == group] for group in range(2)):
        for suffix in ("", "_test"):
            ids = np.concatenate([n[f"ids{suffix}"] for n in users])
            assert sorted(ids) == sorted(owner[f"ids{suffix}"])  # each row at one user
        dealt.append([set(n["ids"]) for n in users])
    assert dealt[0] != dealt[1]  # other rows go together in another group


#: What is typed, users and groups of the run.
NEEDED: list[tuple[dict[str, Any], int, int]] = [
    ({}, 20, 1), ({"groups": 1, "architecture": "centralised"}, 20, 1), ({"groups": 3}, 20, 3),
    ({"groups": 1}, 20, 1), ({"group_sizes": "4,2"}, 6, 2), ({"staleness": 2}, 20, 2),
    ({"lost_groups": "leave-out"}, 20, 2), ({"partition": "vertical"}, 20, 2),
    ({"architecture": "hierarchical", "users": 8}, 8, 2),
]  # fmt: skip


@pytest.mark.parametrize(("values", "users", "groups"), NEEDED)
def test_needed_groups_have_agents(values: dict[str, Any], users: int, groups: int) -> None:
    flat = not values or values.get("architecture") == "centralised"
    family, architecture = HierarchicalFamily(), "centralised" if flat else "hierarchical"
    every = [*options_of(HierarchicalSVM), *family.parameters()]
    config = family.config("hierarchical-svm", {**{o.name: o.default for o in every}, **values})
    assert (config["data"]["users"], config["data"]["groups"]) == (users, groups)
    assert config["options"]["architecture"] == architecture
    nodes = family.deal_nodes(values, 12)
    vertical = values.get("partition") == "vertical"
    assert nodes["users"] == 12 - groups * (architecture == "hierarchical") - vertical


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
    refuses("FK-OPTION-TYPE", DelayLaw.parse, text)
    law, alike = DelayLaw.parse("fixed:0.1,0.2"), DelayLaw.parse("fixed:0.1")
    refuses("FK-GROUPS-DIFFER", law.check, 3)  # numbers are for all groups, or for each
    law.check(2)
    alike.check(3)


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


def test_the_reference_is_the_optimum_unless_it_is_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    split, given = pooled(), {"seed": 0, "progress": lambda done, total: None}
    metrics, history = linear_svm(split, **given, C=0.5)
    best = pooled_optimum(split, "hinge", 0.5, "standard")
    assert best is not None
    assert metrics["objective"] == metrics["centralised_objective"] == best.objective
    assert metrics["test_accuracy"] == 1.0 - history[0]["test_error"]
    refuses("FK-OPTION-CHOICE", linear_svm, split, **given, model="rbf")
    monkeypatch.setattr("fedkern_flwr.simulations.methods.groups.MOST_WORK", 80 * 25.0 - 1.0)
    assert pooled_optimum(split, "hinge", 1.0, "none") is None
    assert linear_svm(split, **given)[0] == {}


# --- Runs -----------------------------------------------------------------------------------


def run_one(prepared: HierarchicalData, **options: Any) -> Entry:
    entry, family = Entry("HierarchicalSVM", "hierarchical-svm", options), HierarchicalFamily()
    measure = lambda strategy: family.measure(strategy, prepared, {})  # noqa: E731
    run_entries([entry], prepared, engine="in-process", seed=0, measure=measure)
    return entry


#: Of the data, and of the method.
SOLVED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "iris", "target": "0"}, {"model": "ridge"}),
    ({"name": "iris", **COLUMNS}, {**COLUMNS, "model": "logistic"}),
]  # fmt: skip


@pytest.mark.parametrize(("of_data", "options"), SOLVED)
def test_runs_come_to_the_pooled_optimum(of_data: dict[str, Any], options: dict[str, Any]) -> None:
    prepared = data(**of_data, users=4, rounds=200)
    metrics = run_one(prepared, tolerance=1e-3, **options).results[0]["metrics"]
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
    strategy = HierarchicalSVM(seed=0, C=0.1, tolerance=1e-3)
    simulate(strategy, prepared.client_fn(strategy), prepared.nodes(strategy))
    right = HierarchicalFamily().measure(strategy, prepared, {})
    assert abs(right["objective_gap"]) < 1e-3
    accuracy = pytest.approx(right["centralised_test_accuracy"], rel=0.03)
    assert strategy.metrics_["test_accuracy"] == accuracy
    for holder, name, value in ((strategy.choice_, "C", 0.2), (strategy, "scale", "none")):
        before = getattr(holder, name)
        setattr(holder, name, value)
        wrong = HierarchicalFamily().measure(strategy, prepared, {})
        assert abs(wrong["objective_gap"]) > 0.03, name
        setattr(holder, name, before)


# -- methods of rows, registered by whoever


def test_held_out_rows_of_a_method_of_rows_keep_their_ids(tmp_path: Path) -> None:
    lines = [f"{k / 40},row{k}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["x,name", *lines]))
    settings = of_rows.RowSettings(
        str(tmp_path / "a.csv"), id_column="name", test_size=0.3, scaling="none", clients=3
    )
    held = 0
    for table in of_rows.prepare(settings).tables:
        for part in ("", "_test"):
            of_ids = [int(name.removeprefix("row")) / 40 for name in table[f"ids{part}"]]
            np.testing.assert_allclose(table[f"x{part}"][:, 0], of_ids)
        held += len(table["ids_test"])
    assert held == 12


def test_an_option_with_the_name_of_one_of_the_table_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Named(KernelPCA):
        classes: int = option(3, "Number of classes.")

    monkeypatch.setattr(of_rows, "find_method", lambda name: Named)
    refuses("FK-METHOD-CLASS", of_rows.RowsFamily().check, {"method": "named"})
    monkeypatch.setattr(of_rows, "find_method", lambda name: KernelPCA)
    assert of_rows.usable("kernel-pca") is KernelPCA


def test_a_method_that_needs_labels_is_not_compared_on_a_file_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Labelled(KernelPCA):
        labels_of_row = 1

    monkeypatch.setattr(own_tables, "find_method", lambda name: Labelled)
    file = tmp_path / "a.csv"
    file.write_text("\n".join(["x,z", *(f"{k / 40},{k % 3}" for k in range(40))]))
    said = complaint("compare", "kernel-pca", "--datasets", str(file))
    assert said.endswith("[FK-LABELS-MISSING]")
    assert [*own_tables.registered_methods(["kernel-pca"], ("wine",)).data] == ["wine"]


def test_server_regret_is_against_the_best_ridge_fit() -> None:
    prepared, ended = prepare(DataSettings("diabetes", clients=4, rounds=50)), list[Any]()
    entry = Entry("OFSKL", "ofskl", {"features": 8, "precision": "float64"})
    done = lambda _, strategy: ended.append(strategy)  # noqa: E731
    run_entries([entry], prepared, engine="in-process", seed=0, draw_done=done)
    x = np.concatenate([shard.x for shard in prepared.shards])
    y = np.concatenate([shard.y for shard in prepared.shards]) - ended[0].centre
    widths = np.array([10.0]).tobytes()
    frequencies = gaussian_frequencies(widths, x.shape[1], 8, 0, "float64", "orthogonal")
    z = np.hstack([np.sin(x @ frequencies), np.cos(x @ frequencies)]) / np.sqrt(8)
    rows = np.vstack([z, np.sqrt(1e-3 * len(x)) * np.eye(16)])  # least squares with extra rows
    theta = np.linalg.lstsq(rows, np.append(y, np.zeros(16)), rcond=None)[0]
    expected = ended[0].metrics_["mse"] * len(x) - ((z @ theta - y) ** 2).sum()
    assert server_regret(ended[0], prepared) == pytest.approx(expected, rel=1e-8)
