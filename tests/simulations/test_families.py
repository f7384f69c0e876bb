"""What the families of methods that hold rows out promise of their data and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, summarise
from fedkern_flwr.simulations.methods.groups_data import HierarchicalSettings
from fedkern_flwr.simulations.methods.hybrid_data import HybridSettings
from fedkern_flwr.simulations.methods.registry import family, method
from fedkern_flwr.simulations.methods.vertical_data import VerticalSettings

#: Settings with few parties, and options of a quick run.
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fed-cg": (HybridSettings, {"landmarks": 12}),
    "fdskl": (VerticalSettings, {"features": 40, "gamma": 1.0, "regularization": 0.01}),
    "hierarchical-svm": (HierarchicalSettings, {"rho": 1.0}),
}
ACTIVE = {"active_parties": 3}
DIFFERENCE = {"fed-cg": 1e-6, "fdskl": 1e-2}
every_family = pytest.mark.parametrize("name", FAMILIES)
every_solution = pytest.mark.parametrize("name", DIFFERENCE)


def prepare(name: str, data: str, **more: Any) -> Any:
    """Return the data of a family; a file has all the columns that a table may have."""
    named = {"label": "y", "id_column": "id", "site_column": "town"} if "/" in data else {}
    users = {"users": 6, "rounds": 5} if name == "hierarchical-svm" else {}
    parties = {"parties": 3} if name == "fdskl" else {}
    return family(name).prepare(FAMILIES[name][0](data, **{**named, **users, **parties, **more}))


def measured(name: str, data: Any, runs: int = 1, **options: Any) -> Entry:
    """Run a method on data and measure it."""
    entry = Entry(method(name).title, name, {**FAMILIES[name][1], **options})
    run_entries(
        [entry],
        data,
        engine="in-process",
        seed=0,
        runs=runs,
        measure=lambda strategy: family(name).measure(strategy, data, {}),
    )
    return entry


@every_family
def test_whole_numbers_are_classes_and_all_else_is_a_regression(name, table, tables, tmp_path):
    rows, found = np.arange(60), {}
    for kind, y in {"classes": rows % 20, "many": rows % 21, "real": rows / 7.0}.items():
        path = tables.write(tmp_path / f"{kind}.csv", {**table, "y": y})
        found[kind] = len(prepare(name, path).split(0).classes)
    assert found == {"classes": 20, "many": 0, "real": 0}
    path = str(tmp_path / "classes.csv")
    assert prepare(name, path, task="regression").split(0).classes == ()
    assert prepare(name, path, positive=3.0).split(0).classes == (0.0, 1.0)
    for more in ({"task": "regression", "positive": 1.0}, {"positive": 77.0}):
        with pytest.raises(OptionError, match=r"no class (1|77)"):
            prepare(name, path, **more)


@every_family
def test_held_out_rows_that_came_with_the_data_are_kept(name, table, tmp_path):
    x = np.column_stack([table[c] for c in "abcdef"])
    np.savez(tmp_path / "t.npz", X=x[:30], y=np.arange(30) % 2, X_test=x[:9], y_test=[0, 1, 1] * 3)
    settings = FAMILIES[name][0](str(tmp_path / "t.npz"))
    if name == "hierarchical-svm":
        settings = replace(settings, users=6)
    facts = family(name).prepare(settings).facts()
    assert np.sum(facts["rows"]) == 30
    assert np.sum(facts["held_out_rows"]) == 9


@every_family
def test_rows_with_empty_cells_are_refused_or_left_out(name, table, tables, tmp_path):
    table["c"][[3, 8]] = np.nan
    table["y"][5] = np.nan
    path = tables.write(tmp_path / "t.csv", table)
    with pytest.raises(TableError, match=r"'c' of t.csv is empty or NaN in 2 rows .*3 bad rows"):
        prepare(name, path)
    pooled = prepare(name, path, missing="drop-row")
    facts = pooled.facts()
    lost = 0 if name == "fed-cg" else 2  # there the parties find them, when they match rows
    assert np.sum(facts["rows"]) + np.sum(facts["held_out_rows"]) == 59 - lost


@every_family
def test_constant_columns_are_noted(name, table, tables, tmp_path):
    table["b"] = np.full(60, 7.0)
    notes = prepare(name, tables.write(tmp_path / "t.csv", table)).notes
    assert "constant in the training rows: b" in notes


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["u", "v"], ["2 classes: u 30, v 30"]),
        (["[red]", "v\tw"], ["2 classes: [red] 30, v w 30"]),
        (["u", "v", "w1"], ["3 classes: u 29, v 30, w1 1; w1 has 1 row: a typo?"]),
        (["u", "w1", "w2"], ["3 classes: u 58, w1 1, w2 1; w1, w2 have 1 row each: typos?"]),
        ([f"c{k:02}" for k in range(12)], []),
        ([*(f"c{k:02}" for k in range(12)), "w1"], ["13 classes; w1 has 1 row: a typo?"]),
        ([0.0, 1.0], []),
    ],
)
def test_classes_of_text_are_named_with_their_rows(classes, expected, table, tables, tmp_path):
    alone = [one for one in classes if str(one).startswith("w")]
    many = [one for one in classes if one not in alone]
    table["y"] = [*alone, *(many[k % len(many)] for k in range(len(alone), 60))]
    notes = prepare("fed-cg", tables.write(tmp_path / "t.csv", table)).notes
    assert [note for note in notes if note[0].isdigit()] == expected


@every_family
def test_runs_share_a_split_unless_each_is_to_have_its_own(name):
    for resplit in (False, True):
        splits = [prepare(name, "wine", resplit=resplit).split(seed) for seed in (0, 1)]
        same = all(np.array_equal(*pair) for pair in zip(*map(_places, splits), strict=True))
        assert same != resplit


@every_family
def test_rows_that_came_held_out_are_split_anew_as_well(name, tmp_path):
    x = np.random.default_rng(0).random((60, 6))
    np.savez(tmp_path / "t.npz", X=x[:40], y=np.arange(40) % 2, X_test=x[40:], y_test=[0, 1] * 10)
    own, users = FAMILIES[name][0], {"users": 6} if name == "hierarchical-svm" else {}
    for resplit in (False, True):
        data = family(name).prepare(own(str(tmp_path / "t.npz"), resplit=resplit, **users))
        splits = [data.split(seed) for seed in (0, 1)]
        same = all(np.array_equal(*pair) for pair in zip(*map(_places, splits), strict=True))
        assert same != resplit


def _places(split: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, (split.train, *getattr(split, "holders", ())[:1])))


@every_solution
def test_columns_are_dealt_in_order_and_rows_in_equal_shares(name):
    more = {"hospitals": 3, "centres": 3} if name == "fed-cg" else {"parties": 4}
    data = prepare(name, "breast-cancer", **(more if name == "fed-cg" else more | ACTIVE))
    split, facts = data.split(0), data.facts()
    parts = list(split.blocks.values()) if name == "fed-cg" else split.parts
    assert np.concatenate(parts).tolist() == list(range(30))
    assert [len(part) for part in parts] == [8, 8, 7, 7]
    named = facts["columns"]
    named = list(named.values()) if name == "fed-cg" else named
    assert [len(names) for names in named] == [8, 8, 7, 7]
    assert named[3][-1] == "worst fractal dimension"
    assert (split.x[split.train].min(), split.x.max()) == (0.0, 1.0)
    assert facts["clients"] == data.num_clients == {"fed-cg": 6, "fdskl": 4}[name]
    assert np.sum(facts["rows"]) + np.sum(facts["held_out_rows"]) == 569
    assert facts["classes"] == [0.0, 1.0]
    held = split.y[~split.train]
    assert held.mean() == pytest.approx(split.y[split.train].mean(), abs=0.01)  # of each class
    holders = split.hospital if name == "fed-cg" else split.owner
    for part in (split.train, ~split.train):
        counts = np.bincount(holders[part])
        assert len(counts) == 3
        assert counts.max() - counts.min() <= 1


@every_solution
def test_simulated_predictions_go_with_the_data(name):
    data = prepare(name, "iris")
    folder = data.predictions
    assert folder.is_dir()
    del data
    assert not folder.exists()


@every_family
def test_nothing_is_judged_without_held_out_rows(name):
    metrics = measured(name, prepare(name, "iris", positive=1.0, test_size=0.0)).results[0]
    judged = {"centralised_difference", "test_accuracy", "centralised_test_accuracy"}
    assert metrics["metrics"]
    assert not judged & metrics["metrics"].keys()


@every_family
def test_runs_are_averaged_each_with_its_own_seed(name):
    data = prepare(name, "iris", positive=1.0, resplit=name == "hierarchical-svm")
    entry = measured(name, data, 3)
    summary, each = summarise(entry), family(name).per_draw(entry)
    for metric, values in each["draws"].items():
        mean = summary[metric] if metric == "seconds" else summary["metrics"][metric]
        assert mean == pytest.approx(np.mean(values)), metric
    differing = each["draws"][
        "objective" if name == "hierarchical-svm" else "centralised_difference"
    ]
    assert len(set(differing)) == 3
    if name in DIFFERENCE:
        assert max(differing) < DIFFERENCE[name]
    else:
        sent = entry.results[0]
        expected = sent["bytes_up"] / 6e3
        assert sent["metrics"]["kilobytes_per_user"] == pytest.approx(expected)
    assert summary["history"] == entry.results[0]["history"]
    matched = {"fed-cg": "blocks", "fdskl": "passive_parties"}
    if name in matched:
        expected = {"clinical": [0, 1], "centre 1": [2], "centre 2": [3]}
        found = summary["matched"][matched[name]]
        assert found == (expected if name == "fed-cg" else [1, 2])


@every_solution
def test_errors_are_those_of_the_held_out_rows_in_the_units_of_the_labels(
    name, table, tables, tmp_path
):
    """Labels as they are, beyond the range of the training rows too; the classes that are right."""
    y = table["a"] * 10.0
    x = np.column_stack([table[c] for c in "abcdef"])
    np.savez(tmp_path / "t.npz", X=x[:40], y=y[:40], X_test=x[40:], y_test=y[40:] + 500.0)
    data = family(name).prepare(FAMILIES[name][0](str(tmp_path / "t.npz")))
    metrics = measured(name, data).results[0]["metrics"]
    scaling, found = data.split(0).scaling, tables.outputs(data.predictions)
    outputs = np.array([found[row][0] for row in range(40, 60)])
    predicted = outputs * scaling["y_half_range"] + scaling["y_middle"]
    expected = np.sqrt(np.mean((predicted - y[40:] - 500.0) ** 2))
    assert metrics["test_rmse"] == pytest.approx(expected, rel=1e-6)
    assert metrics["test_rmse"] > 400.0
    assert metrics["centralised_difference"] < DIFFERENCE[name]
    data = prepare(name, "iris")
    metrics = measured(name, data).results[0]["metrics"]
    pooled, found = data.split(0), tables.outputs(data.predictions)
    right = [np.argmax(values) == pooled.y[row] for row, values in found.items()]
    assert metrics["test_accuracy"] == pytest.approx(np.mean(right))
    assert len(right) == (~pooled.train).sum() > 30
    assert metrics["test_accuracy"] > 0.85
