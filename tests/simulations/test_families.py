"""What experiments and the families of methods promise of their data and figures."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.simulations.lab.presets import NAMES, preset
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, summarise
from fedkern_flwr.simulations.methods.groups_data import HierarchicalSettings
from fedkern_flwr.simulations.methods.hindsight import server_regret
from fedkern_flwr.simulations.methods.hybrid_data import HybridSettings
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.simulations.methods.registry import family, method
from fedkern_flwr.simulations.methods.vertical_data import VerticalSettings
from fedkern_flwr.simulations.run.datasets import BUILTIN, BUILTIN_INTERACTIONS
from fedkern_flwr.simulations.run.random_labels import RANDOM_LABELS

DATA = os.environ.get("FEDKERN_DATA")
Table = dict[str, Any]

# -- streams


def test_streams_are_scaled_dealt_and_as_long_as_the_data() -> None:
    prepared = prepare(DataSettings("diabetes", clients=5, rounds=60))
    x = np.concatenate([shard.x for shard in prepared.clients.shards])
    y = np.concatenate([shard.y for shard in prepared.clients.shards])
    assert np.linalg.norm(x, axis=1).max() <= 1.0 + 1e-12
    assert 0.0 <= y.min() < y.max() <= 1.0
    assert all(len(shard.x) == 60 for shard in prepared.clients.shards)
    prepared = prepare(DataSettings("iris"))
    assert (prepared.num_clients, prepared.rounds) == (10, 15)
    assert "15 rounds instead of 500" in prepared.notes[-1]
    assert prepare(DataSettings("nyc-weather", split="site", rounds=10)).num_clients == 3
    with refused("FK-SITES-UNKNOWN") as caught:
        prepare(DataSettings("nyc-weather", sites=("EWR", "CDG")))
    assert "JFK" not in str(caught.value)
    with refused("FK-OPTION-RANGE"):
        prepare(DataSettings("iris", test_size=-0.1))


def test_methods_that_need_other_clients_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of one variant share an engine, and results stay in order."""
    prepared = prepare(DataSettings("iris", clients=3, rounds=4))
    asked, real = list[str](), Streams.client_fn

    def client_fn(self: Streams, strategy: Any, state_dir: Any = None) -> Any:
        asked.append(strategy.method)
        return real(self, strategy, state_dir)

    def run() -> list[list[float]]:
        entries = [Entry(name, name) for name in ("ofskl", "per-fed-avg")]
        run_entries(entries, prepared, engine="in-process", seed=0, runs=2)
        return [[r["metrics"]["mse"] for r in entry.results] for entry in entries]

    monkeypatch.setattr(Streams, "client_fn", client_fn)
    first = run()
    assert asked == ["ofskl"]
    monkeypatch.setattr(Streams, "variant", lambda self, strategy: strategy.method)
    assert run() == first
    assert asked == ["ofskl", "ofskl", "per-fed-avg"]


def test_server_regret_is_against_the_best_ridge_fit() -> None:
    prepared, ended = prepare(DataSettings("diabetes", clients=4, rounds=50)), list[Any]()
    entry = Entry("OFSKL", "ofskl", {"features": 8, "precision": "float64"})
    done = lambda _, strategy: ended.append(strategy)  # noqa: E731
    run_entries([entry], prepared, engine="in-process", seed=0, draw_done=done)
    x = np.concatenate([shard.x for shard in prepared.clients.shards])
    y = np.concatenate([shard.y for shard in prepared.clients.shards]) - ended[0].centre
    widths = np.array([10.0]).tobytes()
    frequencies = gaussian_frequencies(widths, x.shape[1], 8, 0, "float64", "orthogonal")
    z = np.hstack([np.sin(x @ frequencies), np.cos(x @ frequencies)]) / np.sqrt(8)
    rows = np.vstack([z, np.sqrt(1e-3 * len(x)) * np.eye(16)])  # least squares with extra rows
    theta = np.linalg.lstsq(rows, np.append(y, np.zeros(16)), rcond=None)[0]
    expected = ended[0].metrics_["mse"] * len(x) - ((z @ theta - y) ** 2).sum()
    assert server_regret(ended[0], prepared) == pytest.approx(expected, rel=1e-8)


@pytest.mark.skipif(not DATA, reason="FEDKERN_DATA is not set")
def test_presets_describe_the_papers_experiments() -> None:
    named = (*BUILTIN, *BUILTIN_INTERACTIONS, "three-hospitals", RANDOM_LABELS)
    for name in NAMES:
        if name.startswith("fed-cfk"):
            continue  # MovieLens may not be there, see test_gram_presets.py
        chosen = preset(name)
        assert chosen.entries
        assert all(s.data in named or Path(s.data).is_file() for s in chosen.data.values())
    air = prepare(preset("pof-mkl-table1").data["Air"])
    assert {len(shard.x) for shard in air.clients.shards} == {500}
    assert air.num_clients == 240


@pytest.mark.long
@pytest.mark.skipif(not DATA, reason="FEDKERN_DATA is not set")
@pytest.mark.parametrize(
    ("data", "options", "most"),
    [
        ({"data": "naval.npz", "target": "0", "clients": 23}, (25, 20), 1.6e-3),
        ({"data": "naval.npz", "target": "0", "clients": 23}, (1, 100), 5.0e-3),
        ({"data": "ujiindoorloc.npz", "label": "0", "clients": 39}, (25, 20), 28e-3),
    ],
)
def test_adaptive_mode_reaches_the_promised_error(data, options, most):
    settings = DataSettings(**{**data, "data": str(Path(str(DATA)) / data["data"])}, rounds=500)
    given = dict(zip(("kernels_per_round", "features"), options, strict=True))
    entry = Entry("POF-MKL", "pof-mkl", given)
    run_entries([entry], prepare(settings), engine="in-process", seed=0)
    assert entry.results[0]["metrics"]["mse"] <= most


# -- families that hold rows out

#: Settings with few parties, and options of a quick run.
FAMILIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fed-cg": (HybridSettings, {"landmarks": 12}),
    "fdskl": (VerticalSettings, {"features": 40, "gamma": 1.0, "regularization": 0.01}),
    "hierarchical-svm": (HierarchicalSettings, {"rho": 1.0}),
}
DIFFERENCE = {"fed-cg": 1e-6, "fdskl": 1e-2}
every_family = pytest.mark.parametrize("name", FAMILIES)
every_solution = pytest.mark.parametrize("name", DIFFERENCE)


def dealt(name: str, data: str, **more: Any) -> Any:
    """Return the data of a family; a file has all the columns that a table may have."""
    named = {"label": "y", "id_column": "id", "site_column": "town"} if data[-3:] == "csv" else {}
    users = {"users": 6, "rounds": 5} if name == "hierarchical-svm" else {}
    parties = {"parties": 3} if name == "fdskl" else {}
    return family(name).prepare(FAMILIES[name][0](data, **{**named, **users, **parties, **more}))


def measured(name: str, data: Any, runs: int = 1) -> Entry:
    """Run a method on data and measure it."""
    entry = Entry(method(name).title, name, FAMILIES[name][1])
    measure = lambda strategy: family(name).measure(strategy, data, {})  # noqa: E731
    run_entries([entry], data, engine="in-process", seed=0, runs=runs, measure=measure)
    return entry


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
        with refused("FK-CLASSES-UNKNOWN"):
            dealt(name, path, **more)


@every_family
def test_held_out_rows_that_came_with_the_data_are_kept_unless_each_run_has_its_own(
    name: str, table: Table, tmp_path: Path
) -> None:
    x = np.column_stack([table[c] for c in "abcdef"])
    own, path = FAMILIES[name][0], str(tmp_path / "t.npz")
    np.savez(path, X=x[:40], y=np.arange(40) % 2, X_test=x[40:], y_test=[0, 1] * 10)
    users = {"users": 6} if name == "hierarchical-svm" else {}
    facts = family(name).prepare(own(path, **users)).facts()
    assert (np.sum(facts["rows"]), np.sum(facts["held_out_rows"])) == (40, 20)
    for data in ("wine", path):
        for resplit in (False, True):
            made = family(name).prepare(own(data, resplit=resplit, **users))
            first, second = (places(made.split(seed)) for seed in (0, 1))
            same = all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
            assert same != resplit


def places(split: Any) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, (split.train, *getattr(split, "holders", ())[:1])))


@every_family
def test_rows_with_empty_cells_are_refused_or_left_out(name, table, tables, tmp_path):
    table["c"][[3, 8]] = np.nan
    table["y"][5] = np.nan
    path = tables.write(tmp_path / "t.csv", table)
    with refused("FK-VALUES-MISSING"):
        dealt(name, path)
    facts = dealt(name, path, missing="drop-row").facts()
    lost = 0 if name == "fed-cg" else 2  # there the parties find them, when they match rows
    assert np.sum(facts["rows"]) + np.sum(facts["held_out_rows"]) == 59 - lost


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
    notes = dealt("fed-cg", tables.write(tmp_path / "t.csv", table)).notes
    assert [note for note in notes if note[0].isdigit()] == expected


@every_solution
def test_columns_are_dealt_in_order_and_rows_in_equal_shares(name: str) -> None:
    hybrid = name == "fed-cg"
    more = {"hospitals": 3, "centres": 3} if hybrid else {"parties": 4, "active_parties": 3}
    data = dealt(name, "breast-cancer", **more)
    split, facts = data.split(0), data.facts()
    parts = list(split.blocks.values()) if hybrid else split.parts
    assert np.concatenate(parts).tolist() == list(range(30))
    named = list(facts["columns"].values()) if hybrid else facts["columns"]
    assert [len(p) for p in parts] == [len(n) for n in named] == [8, 8, 7, 7]
    assert named[3][-1] == "worst fractal dimension"
    assert (split.x[split.train].min(), split.x.max()) == (0.0, 1.0)
    assert facts["clients"] == data.num_clients == (6 if hybrid else 4)
    assert np.sum(facts["rows"]) + np.sum(facts["held_out_rows"]) == 569
    share = split.y[split.train].mean()
    assert split.y[~split.train].mean() == pytest.approx(share, abs=0.01)  # of each class
    holders = split.hospital if hybrid else split.owner
    for part in (split.train, ~split.train):
        counts = np.bincount(holders[part])
        assert len(counts) == 3
        assert counts.max() - counts.min() <= 1
    folder = data.predictions
    assert folder.is_dir()
    del data
    assert not folder.exists()


@every_family
def test_runs_are_averaged_each_with_its_own_seed(name: str) -> None:
    data = dealt(name, "iris", positive=1.0, resplit=name == "hierarchical-svm")
    entry = measured(name, data, 3)
    summary, each = summarise(entry), family(name).per_draw(entry)
    for metric, values in each["draws"].items():
        mean = summary[metric] if metric == "seconds" else summary["metrics"][metric]
        assert mean == pytest.approx(np.mean(values)), metric
    key = "centralised_difference" if name in DIFFERENCE else "objective"
    assert len(set(each["draws"][key])) == 3
    sent = entry.results[0]
    if name in DIFFERENCE:
        assert max(each["draws"][key]) < DIFFERENCE[name]
    else:
        each_user = pytest.approx(sent["bytes_up"] / 6e3)
        assert sent["metrics"]["kilobytes_per_user"] == each_user
    assert summary["history"] == sent["history"]
    blocks = {"clinical": [0, 1], "centre 1": [2], "centre 2": [3]}
    if name == "fed-cg":
        assert summary["matched"]["blocks"] == blocks
    if name == "fdskl":
        assert summary["matched"]["passive_parties"] == [1, 2]
    metrics = measured(name, dealt(name, "iris", positive=1.0, test_size=0.0)).results[0]["metrics"]
    judged = {"centralised_difference", "test_accuracy", "centralised_test_accuracy"}
    assert metrics  # nothing is judged without held-out rows
    assert not judged & metrics.keys()


@every_solution
def test_errors_are_those_of_the_held_out_rows_in_the_units_of_the_labels(
    name: str, table: Table, tables: Any, tmp_path: Path
) -> None:
    """Labels as they are, beyond the range of the training rows too; the classes that are right."""
    y, x = table["a"] * 10.0, np.column_stack([table[c] for c in "abcdef"])
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
    data = dealt(name, "iris")
    metrics = measured(name, data).results[0]["metrics"]
    pooled, found = data.split(0), tables.outputs(data.predictions)
    right = [np.argmax(values) == pooled.y[row] for row, values in found.items()]
    assert metrics["test_accuracy"] == pytest.approx(np.mean(right))
    assert len(right) == (~pooled.train).sum() > 30
    assert metrics["test_accuracy"] > 0.85
