"""The family of FDSKL: dealing a table, the pooled twin, and what the options do to a model."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients import VerticalKernelClient
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.frequencies import draw_directions, draw_offsets
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods import vertical_oracle
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, summarise
from fedkern_flwr.simulations.methods.vertical import VerticalFamily
from fedkern_flwr.simulations.methods.vertical_data import (
    VerticalData,
    VerticalSettings,
    frequency_seed,
)
from fedkern_flwr.simulations.methods.vertical_oracle import centralised_difference
from fedkern_flwr.strategies import FDSKL


def write_csv(path: Path, columns: Mapping[str, Any]) -> str:
    """Write columns; NaN becomes an empty cell."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True):
            writer.writerow("" if cell != cell else cell for cell in row)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    """Return the columns of a table of 60 rows, which a test may change and write."""
    rng = np.random.default_rng(4)
    x = rng.uniform(-5.0, 5.0, (60, 6))
    columns: dict[str, Any] = {"id": [f"p{i}" for i in range(60)], "site": ["x", "y", "z"] * 20}
    columns |= {name: x[:, j] for j, name in enumerate("abcdef")}
    return {**columns, "y": (x.sum(axis=1) > 0.0).astype(float)}


def settings(path: str, **more: Any) -> VerticalSettings:
    return VerticalSettings(path, label="y", id_column="id", site_column="site", **more)


# --- Dealing --------------------------------------------------------------------------------


def test_columns_are_dealt_in_order_and_labels_to_the_first_parties():
    data = VerticalData(VerticalSettings("breast-cancer", parties=4, active_parties=3))
    pooled = data.split(0)
    assert np.concatenate(pooled.parts).tolist() == list(range(30))
    assert [len(part) for part in pooled.parts] == [8, 8, 7, 7]
    assert pooled.x[pooled.train].min() == 0.0
    assert pooled.x.max() == 1.0
    facts = data.facts()
    assert facts["clients"] == data.num_clients == facts["parties"] == 4
    assert facts["active_parties"] == 3
    assert (facts["rows"], facts["held_out_rows"]) == (427, 142)
    assert facts["columns"][3][-1] == "worst fractal dimension"
    assert [len(names) for names in facts["columns"]] == [8, 8, 7, 7]
    assert facts["classes"] == [0.0, 1.0]
    held = pooled.y[~pooled.train]
    assert held.mean() == pytest.approx(pooled.y[pooled.train].mean(), abs=0.01)  # of each class
    for part in (pooled.train, ~pooled.train):  # an equal share of the labels for each
        counts = np.bincount(pooled.owner[part])
        assert len(counts) == 3
        assert counts.max() - counts.min() <= 1


def test_every_label_is_at_one_party_and_every_row_at_all(table, tmp_path):
    data = VerticalData(settings(write_csv(tmp_path / "t.csv", table), parties=3, active_parties=2))
    pooled, clients = data.split(0), data.client_fn(FDSKL(schedule="streaming", seed=0))
    seen: dict[str, list[float]] = {"train": [], "test": []}
    orders = []
    for party in range(3):
        own = clients.table(party)
        ids = [*own["ids"], *own.get("ids_test", [])]
        assert sorted(map(int, ids)) == list(range(60))
        orders.append(list(own["ids"]))
        rows = np.array(own["ids"], int)
        np.testing.assert_array_equal(own["x"], pooled.x[np.ix_(rows, pooled.parts[party])])
        if party == 2:
            assert set(own) == {"x", "ids"}  # no label, and it is not told what is held out
            continue
        labelled = np.isfinite(own["y"])
        np.testing.assert_array_equal(own["y"][labelled], pooled.y[rows[labelled]])
        seen["train"] += rows[labelled].tolist()
        seen["test"] += np.array(own["ids_test"], int).tolist()
    assert sorted(seen["train"]) == np.flatnonzero(pooled.train).tolist()
    assert sorted(seen["test"]) == np.flatnonzero(~pooled.train).tolist()
    assert orders[0][:20] != orders[1][:20] != orders[2][:20]


def test_held_out_rows_that_came_with_the_data_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 6)), np.arange(30) % 2
    file = tmp_path / "t.npz"
    np.savez(file, X=x, y=y, X_test=x[:9], y_test=y[:9])
    data = VerticalData(VerticalSettings(str(file)))
    assert (data.facts()["rows"], data.facts()["held_out_rows"]) == (30, 9)
    np.testing.assert_allclose(data.pooled(0).x_test, data.pooled(0).x[:9])


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"active_parties": 0}, "0 of 4 parties are active; use at least one"),
        ({"parties": 3, "active_parties": 4}, "4 of 3 parties are active"),
        ({"parties": 7}, "6 columns cannot be dealt to 7 parties; use fewer parties"),
        ({"train_rows": 0}, "train-rows is 0"),
        ({"test_size": 1.0}, "test-size is 1.0"),
        ({"task": "regression", "positive": 1.0}, "no class 1"),
        ({"positive": 7.0}, "no class 7"),
    ],
)
def test_settings_that_cannot_be_dealt_are_refused(table, tmp_path, more, text):
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(OptionError, match=text):
        VerticalData(settings(path, **more))


def test_whole_numbers_are_classes_and_all_else_is_a_regression(table, tmp_path):
    found = {}
    rows = np.arange(60)
    for name, y in {"classes": rows % 20, "many": rows % 21, "real": rows / 7.0}.items():
        path = write_csv(tmp_path / f"{name}.csv", {**table, "y": y})
        found[name] = len(VerticalData(settings(path)).split(0).classes)
    assert found == {"classes": 20, "many": 0, "real": 0}
    path = str(tmp_path / "classes.csv")
    assert VerticalData(settings(path, task="regression")).split(0).classes == ()
    assert VerticalData(settings(path, positive=3.0)).split(0).classes == (0.0, 1.0)


def test_a_choice_of_training_rows_leaves_the_held_out_ones(table, tmp_path):
    path = write_csv(tmp_path / "t.csv", table)
    whole, few = VerticalData(settings(path)), VerticalData(settings(path, train_rows=20))
    assert (whole.facts()["rows"], few.facts()["rows"]) == (45, 20)
    assert whole.facts()["held_out_rows"] == few.facts()["held_out_rows"] == 15
    names = [tuple(row) for row in few.pooled(0).y_test[:, None]]
    assert names == [tuple(row) for row in whole.pooled(0).y_test[:, None]]
    more = VerticalData(settings(path, train_rows=500))  # as many as there are
    assert more.facts()["rows"] == 45
    other = VerticalData(settings(path, train_rows=20, seed=1)).split(1)
    assert not np.array_equal(few.split(0).y[few.split(0).train], other.y[other.train])


def test_rows_with_empty_cells_are_refused_or_left_out(table, tmp_path):
    table["c"] = table["c"].copy()
    table["c"][[3, 8]] = np.nan
    table["y"][5] = np.nan
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(TableError, match=r"'c' of t.csv is empty or NaN in 2 rows .*3 bad rows"):
        VerticalData(settings(path))
    data = VerticalData(settings(path, missing="drop-row"))
    assert len(data.split(0).y) == 57
    assert np.isfinite(data.split(0).x).all()


def test_constant_columns_are_noted(table, tmp_path):
    table["b"] = np.full(60, 7.0)
    data = VerticalData(settings(write_csv(tmp_path / "t.csv", table)))
    assert "constant in the training rows: b" in data.notes
    assert set(data.split(0).x[:, 1]) == {0.0}


def test_pooled_data_is_what_the_parties_have(table, tmp_path):
    y = 500.0 + 40.0 * np.array(table["a"])
    data = VerticalData(settings(write_csv(tmp_path / "t.csv", {**table, "y": y}), test_size=0.2))
    pooled, columns = data.pooled(0), data.split(0)
    assert pooled.classes == ()
    assert (len(pooled.x), len(pooled.x_test)) == (48, 12)
    np.testing.assert_array_equal(pooled.x, columns.x[columns.train])
    np.testing.assert_array_equal(pooled.y_test, columns.y[~columns.train])
    assert np.abs(pooled.y).max() == pytest.approx(1.0)
    train = y[columns.train]
    assert pooled.label_unit == pytest.approx((train.max() - train.min()) / 2.0)
    middle = columns.scaling["y_middle"]
    np.testing.assert_allclose(pooled.y * pooled.label_unit + middle, train, atol=1e-9)
    off = pooled.judge(pooled.y_test[:, None] + 0.1)["test_rmse"]
    assert off == pytest.approx(0.1 * pooled.label_unit)


def test_runs_share_a_split_unless_each_is_to_have_its_own():
    for resplit in (False, True):
        data = VerticalData(VerticalSettings("wine", resplit=resplit))
        first, second = data.split(0).train.copy(), data.split(1).train.copy()
        assert np.array_equal(first, second) != resplit


def test_simulated_predictions_go_with_the_data():
    data = VerticalData(VerticalSettings("iris"))
    folder = data.predictions
    assert folder.is_dir()
    del data
    assert not folder.exists()


# --- The pooled twin ------------------------------------------------------------------------


def fit(data: VerticalData, rounds: int = 12, **options: Any) -> FDSKL:
    strategy = FDSKL(**{"seed": data.settings.seed, "gamma": 1.0, **options})
    clients = data.client_fn(strategy)
    simulate(strategy, clients, data.num_clients, num_rounds=rounds)
    return strategy


def read_predictions(data: VerticalData) -> dict[int, list[float]]:
    found = {}
    for file in data.predictions.glob("partition-*.csv"):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                outputs = [float(row[name]) for name in row if name.startswith("output_")]
                found[int(row["id"])] = outputs
    return found


def write_predictions(data: VerticalData, outputs: Mapping[int, list[float]]) -> None:
    """Put predictions where simulated active parties put theirs."""
    for file in data.predictions.glob("*.csv"):
        file.unlink()
    width = len(next(iter(outputs.values())))
    lines = [",".join(["id", *(f"output_{k}" for k in range(width))])]
    lines += [",".join(map(repr, [row, *values])) for row, values in outputs.items()]
    (data.predictions / "partition-0.csv").write_text("\n".join(lines))


ONE = {"features": 30, "regularization": 0.02, "phase_bits": 32}
MANY = {"schedule": "streaming", "directions": 3, "batch": 5, "step": 0.4, "phase_bits": 32}
LOSSES = ("square", "logistic", "smooth-hinge")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"one-shot, {loss}": ({}, {**ONE, "loss": loss}) for loss in LOSSES},
    **{f"streaming, {loss}": ({}, {**MANY, "loss": loss}) for loss in LOSSES},
    "two active, logistic": ({"active_parties": 2}, {**MANY, "loss": "logistic"}),
    "all active": ({"active_parties": 3}, {**MANY, "loss": "square"}),
    "diminishing": ({}, {**MANY, "step_schedule": "diminishing", "regularization": 0.2}),
    "the paper's": (
        {},
        {**MANY, "directions": 1, "batch": 1, "frequencies": "shared", "topology": "tree"},
    ),
    "one-shot, shared": ({}, {**ONE, "loss": "square", "frequencies": "shared"}),
    "one-shot, tree": ({}, {**ONE, "loss": "square", "topology": "tree"}),
    "streaming, shared": ({}, {**MANY, "frequencies": "shared"}),
    "two active, tree": ({"active_parties": 2}, {**MANY, "topology": "tree"}),
    "two active, tree, shared": (
        {"active_parties": 2},
        {**MANY, "topology": "tree", "frequencies": "shared"},
    ),
    "laplacian": ({}, {**ONE, "loss": "square", "kernel": "laplacian"}),
    "laplacian, streaming": ({}, {**MANY, "kernel": "laplacian"}),
    "chosen": ({}, {**ONE, "gamma": None, "regularization": None, "loss": "square"}),
    "chosen, laplacian": (
        {},
        {**ONE, "gamma": None, "regularization": None, "kernel": "laplacian"},
    ),
    "many classes": ({"data": "iris"}, {**ONE, "loss": "square"}),
    "many classes, logistic": ({"data": "iris", "active_parties": 2}, {**MANY, "loss": "logistic"}),
    "regression": ({"data": "iris", "target": "0"}, ONE),
    "regression, streaming": ({"data": "iris", "target": "0", "active_parties": 2}, MANY),
    "two parties": ({"parties": 2, "allow_single": True}, {**ONE, "allow_single": True}),
    "six parties": ({"parties": 6}, MANY),
    "some rows": ({"train_rows": 25}, {**MANY, "loss": "square"}),
    "other seed": ({"seed": 9, "resplit": True}, ONE),
    "16 bits": ({}, {**ONE, "loss": "square", "phase_bits": 16}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_pooled_twin_is_what_the_parties_made_and_notices_another_seed(
    case, table, tmp_path, monkeypatch
):
    """The negative control of every difference that a run reports."""
    of_data, options = CASES[case]
    of_data = {"parties": 3, **of_data}
    chosen = VerticalSettings(**of_data) if "data" in of_data else None
    data = VerticalData(chosen or settings(write_csv(tmp_path / "t.csv", table), **of_data))
    strategy = fit(data, **options)
    largest = max(max(map(abs, outputs)) for outputs in read_predictions(data).values())
    assert largest > 0.05
    bits = options["phase_bits"]
    # what is minimised in steps ends where the steps are small enough
    stepwise = strategy.schedule == "one-shot" and strategy.chosen_loss != "square"
    close = 1e-4 if stepwise else 1e-6 if bits == 32 else 3e-3
    difference = centralised_difference(strategy, data)
    assert difference is not None
    assert difference < close
    noticed = []
    for party in range(data.num_clients):
        changed = frequency_seed(1000, party)

        def seed_of(seed: int, whose: int, party: int = party, changed: bytes = changed) -> bytes:
            return changed if whose == party else frequency_seed(seed, whose)

        with monkeypatch.context() as patch:
            patch.setattr(vertical_oracle, "frequency_seed", seed_of)
            wrong = centralised_difference(strategy, data)
        assert wrong is not None
        noticed.append(wrong > 10.0 * max(difference, 1e-3))
    # of known directions in trees nobody's secret matters but that of the b that stays
    one = strategy.topology == "tree" and strategy.frequencies == "shared"
    assert any(noticed) if one else all(noticed)


def test_the_difference_is_that_of_the_worst_prediction(table, tmp_path):
    data = VerticalData(settings(write_csv(tmp_path / "t.csv", table), parties=3))
    strategy = fit(data, **ONE, loss="square")
    outputs = read_predictions(data)
    row = next(iter(outputs))
    outputs[row][0] += 1e-3
    write_predictions(data, outputs)
    assert centralised_difference(strategy, data) == pytest.approx(1e-3, rel=1e-2)


def test_the_twin_is_plain_numpy(table, tmp_path):
    """Ridge regression on features of the pooled table, written out."""
    data = VerticalData(settings(write_csv(tmp_path / "t.csv", table), parties=3))
    fit(data, **ONE, loss="square")
    pooled, found = data.split(0), read_predictions(data)
    angles = np.zeros((60, 30))
    for party, columns in enumerate(pooled.parts):
        seed = frequency_seed(0, party)
        omega = draw_directions(seed, 0, 30, len(columns), "rbf", 1.0)
        angles += pooled.x[:, columns] @ omega.T + draw_offsets(seed, 0, 30, "rbf", 1.0)
    z = np.sqrt(2.0 / 30) * np.cos(angles)
    train, y = z[pooled.train], 2.0 * pooled.y[pooled.train] - 1.0
    n = len(train)
    weights = np.linalg.solve(2.0 / n * train.T @ train + 0.02 * np.eye(30), 2.0 / n * train.T @ y)
    rows = np.flatnonzero(~pooled.train)
    expected = z[rows] @ weights
    assert set(found) == set(rows.tolist())
    assert [found[row][0] for row in rows] == pytest.approx(expected, rel=0, abs=1e-7)


def test_coefficients_that_are_a_little_wrong_are_noticed(monkeypatch):
    data = VerticalData(VerticalSettings("iris", positive=1.0))
    real = VerticalKernelClient._scores

    def perturbed(client: VerticalKernelClient, *arguments: Any) -> Any:
        return real(client, *arguments) * (1.0 + 1e-3)

    found = []
    for change in (real, perturbed):
        monkeypatch.setattr(VerticalKernelClient, "_scores", change)
        found.append(centralised_difference(fit(data, **ONE, loss="square"), data))
    assert found[0] < 1e-6
    assert found[1] > 1e-4


# --- Runs -----------------------------------------------------------------------------------


def measure(data: VerticalData) -> Any:
    family = VerticalFamily()
    return lambda strategy: family.measure(strategy, data, {})


def run_one(data: VerticalData, runs: int = 1, **options: Any) -> Entry:
    entry = Entry("FDSKL", "fdskl", options)
    run_entries([entry], data, engine="in-process", seed=0, runs=runs, measure=measure(data))
    return entry


def test_errors_of_a_regression_are_in_the_units_of_the_labels(table, tmp_path):
    """Labels as they are, beyond the range of the training rows too."""
    y = np.array(table["a"]) * 10.0
    npz = tmp_path / "t.npz"
    x = np.column_stack([table[c] for c in "abcdef"])
    np.savez(npz, X=x[:40], y=y[:40], X_test=x[40:], y_test=y[40:] + 500.0)
    data = VerticalData(VerticalSettings(str(npz), parties=3))
    assert data.split(0).label_bound > 5.0
    metrics = run_one(data, features=40).results[0]["metrics"]
    scaling, found = data.split(0).scaling, read_predictions(data)
    outputs = np.array([found[row][0] for row in range(40, 60)])
    predicted = outputs * scaling["y_half_range"] + scaling["y_middle"]
    expected = np.sqrt(np.mean((predicted - y[40:] - 500.0) ** 2))
    assert metrics["test_rmse"] == pytest.approx(expected, rel=1e-6)
    assert metrics["test_rmse"] > 400.0
    assert 0.1 < metrics["validation_score"] < np.std(y)
    assert metrics["centralised_difference"] < 1e-2


def test_accuracy_of_many_classes_is_that_of_the_largest_output():
    data = VerticalData(VerticalSettings("iris", parties=3))
    metrics = run_one(data, features=60).results[0]["metrics"]
    pooled, found = data.split(0), read_predictions(data)
    right = [np.argmax(values) == pooled.y[row] for row, values in found.items()]
    assert metrics["test_accuracy"] == pytest.approx(np.mean(right))
    assert len(right) == 36  # a quarter of each class
    assert metrics["test_accuracy"] > 0.9


def test_no_difference_is_reported_without_held_out_rows():
    data = VerticalData(VerticalSettings("iris", test_size=0.0))
    metrics = run_one(data, features=15, gamma=1.0, regularization=0.1).results[0]["metrics"]
    assert set(metrics) == {"gamma", "regularization"}


def test_runs_are_averaged_each_with_its_own_directions():
    data = VerticalData(VerticalSettings("wine"))
    entry = run_one(data, 3, features=60, gamma=0.5, regularization=0.01)
    summary, each = summarise(entry), VerticalFamily().per_draw(entry)
    differences = each["draws"]["centralised_difference"]
    assert len(set(differences)) == 3
    assert max(differences) < 5e-3
    for name, values in each["draws"].items():
        mean = summary[name] if name == "seconds" else summary["metrics"][name]
        assert mean == pytest.approx(np.mean(values)), name
    assert summary["history"] == entry.results[0]["history"]
    assert summary["survivors"] == 4
    assert summary["matched"]["passive_parties"] == [1, 2, 3]


def test_clients_are_made_anew_only_where_they_depend_on_the_strategy():
    data = VerticalData(VerticalSettings("iris"))
    first = data.variant(FDSKL(seed=0))
    assert first == data.variant(FDSKL(seed=0, loss="logistic", gamma=3.0, features=5))
    for other in ({"frequencies": "shared"}, {"topology": "tree"}, {"allow_single": True}):
        assert data.variant(FDSKL(seed=0, **other)) != first
    assert data.variant(FDSKL(seed=1)) != first


def test_number_of_iterations_goes_to_the_strategy():
    assert VerticalData(VerticalSettings("iris")).start() == {}
    assert VerticalData(VerticalSettings("iris", rounds=7)).start() == {"num_rounds": 7}
