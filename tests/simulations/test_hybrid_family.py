"""The family of FedCG: dealing a table, the pooled solution, and what the options do to a model."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.clients import HybridKernelClient
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.landmarks import draw_landmarks, public_seed
from fedkern_flwr.product_kernel import landmark_gammas
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, summarise
from fedkern_flwr.simulations.methods.hybrid import HybridFamily
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.hybrid_oracle import centralised_difference
from fedkern_flwr.strategies import FedCG


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


def settings(path: str, **more: Any) -> HybridSettings:
    return HybridSettings(path, label="y", id_column="id", site_column="site", **more)


# --- Dealing --------------------------------------------------------------------------------


def test_columns_are_dealt_in_order_and_every_row_goes_to_one_hospital():
    data = HybridData(HybridSettings("breast-cancer", hospitals=3, centres=3))
    pooled = data.split(0)
    assert list(pooled.blocks) == ["clinical", "centre 1", "centre 2", "centre 3"]
    assert np.concatenate(list(pooled.blocks.values())).tolist() == list(range(30))
    assert [len(block) for block in pooled.blocks.values()] == [8, 8, 7, 7]
    assert pooled.x.min() == 0.0
    assert pooled.x.max() == 1.0
    facts = data.facts()
    assert facts["clients"] == data.num_clients == 6
    assert sum(facts["rows"]) + sum(facts["held_out_rows"]) == 569
    assert max(facts["rows"]) - min(facts["rows"]) <= 1
    assert facts["columns"]["centre 3"][-1] == "worst fractal dimension"
    held = pooled.y[~pooled.train]
    assert held.mean() == pytest.approx(pooled.y[pooled.train].mean(), abs=0.01)  # of each class


def test_hospitals_without_a_block_hold_labels_alone():
    pooled = HybridData(HybridSettings("iris", centres=4, own_block=False)).split(0)
    assert list(pooled.blocks) == [f"centre {c}" for c in (1, 2, 3, 4)]


def test_a_hospital_holds_the_rows_of_its_site(table, tmp_path):
    path = write_csv(tmp_path / "t.csv", table)
    data = HybridData(settings(path, split="site", hospitals=3))
    pooled = data.split(0)
    sites = np.array(table["site"])
    for h, site in enumerate("xyz"):
        assert set(sites[pooled.hospital == h]) == {site}
    more = HybridData(settings(path, split="site", hospitals=5)).split(0)
    assert [set(sites[more.hospital == h]) for h in range(5)] == [{s} for s in "xyzxy"]
    with pytest.raises(OptionError, match="3 sites, 2 hospitals cannot hold them all; use --hosp"):
        HybridData(settings(path, split="site"))


def test_a_site_without_held_out_rows_does_not_move_those_of_the_others(table, tmp_path):
    table["site"] = ["x"] * 1 + ["y"] * 30 + ["z"] * 29
    data = HybridData(settings(write_csv(tmp_path / "t.csv", table), split="site", hospitals=3))
    pooled = data.split(0)
    assert not (~pooled.train & (pooled.hospital == 0)).any()
    assert pooled.hospital.tolist() == [0] * 1 + [1] * 30 + [2] * 29


def test_held_out_rows_that_came_with_the_data_are_kept(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 6)), np.arange(30) % 2
    file = tmp_path / "t.npz"
    np.savez(file, X=x, y=y, X_test=x[:9], y_test=y[:9])
    facts = HybridData(HybridSettings(str(file))).facts()
    assert facts["rows"] == [15, 15]
    assert facts["held_out_rows"] == [5, 4]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"hospitals": 0}, "use at least one hospital"),
        ({"centres": -1}, "2 hospitals and -1 centres"),
        ({"centres": 0, "own_block": False}, "nobody has columns"),
        ({"centres": 6}, "6 columns cannot be dealt to 7 blocks; use fewer centres"),
        ({"hospitals": 19}, "18 of 60 rows cannot be dealt to 19 hospitals"),
        ({"test_size": 1.0}, "test-size is 1.0"),
        ({"task": "regression", "positive": 1.0}, "no class 1"),
        ({"positive": 7.0}, "no class 7"),
        ({"split": "dirichlet", "alpha": 0.0}, "alpha is 0"),
    ],
)
def test_settings_that_cannot_be_dealt_are_refused(table, tmp_path, more, text):
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(OptionError, match=text):
        HybridData(settings(path, **more))


def test_whole_numbers_are_classes_and_all_else_is_a_regression(table, tmp_path):
    found = {}
    rows = np.arange(60)
    for name, y in {"classes": rows % 20, "many": rows % 21, "real": rows / 7.0}.items():
        path = write_csv(tmp_path / f"{name}.csv", {**table, "y": y})
        found[name] = len(HybridData(settings(path)).split(0).classes)
    assert found == {"classes": 20, "many": 0, "real": 0}
    path = str(tmp_path / "classes.csv")
    assert HybridData(settings(path, task="regression")).split(0).classes == ()
    assert HybridData(settings(path, positive=3.0)).split(0).classes == (0.0, 1.0)


def test_constant_columns_are_noted_and_an_empty_one_is_refused(table, tmp_path):
    table["b"] = np.full(60, 7.0)
    data = HybridData(settings(write_csv(tmp_path / "t.csv", table)))
    assert "constant in the training rows: b" in data.notes
    assert set(data.split(0).x[:, 1]) == {0.0}
    table["c"] = np.full(60, np.nan)
    path = write_csv(tmp_path / "t.csv", table)
    for missing in ("drop-row", "neutral"):
        with pytest.raises(TableError, match="column 'c' is empty in all training rows"):
            HybridData(settings(path, missing=missing))
    table["c"], table["d"] = np.where(np.arange(60) % 2, np.nan, 1.0), table["d"].copy()
    table["d"][::2] = np.nan
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(TableError, match="every row lacks a column of block 'centre 1'"):
        HybridData(settings(path, missing="neutral"))


def test_rows_without_a_label_or_a_hospitals_value_are_left_out_and_noted(table, tmp_path):
    table["y"][[3, 8]] = np.nan
    table["a"][5] = np.nan
    table["c"][9] = np.nan  # of a centre: the row lacks a block
    path = write_csv(tmp_path / "t.csv", table)
    with pytest.raises(TableError, match=r"'a' of t.csv is empty or NaN in 1 rows .*4 bad rows"):
        HybridData(settings(path))
    for more in ({}, {"positive": 1.0}):  # a missing label is no class, not even the other one
        data = HybridData(settings(path, missing="neutral", **more))
        assert len(data.split(0).y) == 57
        assert (
            "left out 3 of 60 rows that lack the label or a value of the hospitals' block"
            in data.notes
        )
        assert np.isnan(data.split(0).x).any()


def test_an_infinite_label_is_a_missing_one(table, tmp_path):
    y = np.linspace(0.0, 100.0, 60)
    y[7] = np.inf
    pooled = HybridData(
        settings(write_csv(tmp_path / "t.csv", {**table, "y": y}), missing="drop-row")
    ).split(0)
    assert len(pooled.y) == 59
    assert np.abs(pooled.y[pooled.train]).max() == pytest.approx(1.0)


def test_held_out_labels_beyond_the_training_range_are_not_cut_off(table, tmp_path):
    """The error is in the units of the labels and of the labels as they are."""
    y = np.array(table["a"]) * 10.0
    npz = tmp_path / "t.npz"
    x = np.column_stack([table[c] for c in "abcdef"])
    np.savez(npz, X=x[:40], y=y[:40], X_test=x[40:], y_test=y[40:] + 500.0)
    data = HybridData(HybridSettings(str(npz)))
    entry = Entry("FedCG", "fed-cg", {"landmarks": 10})
    run_entries([entry], data, engine="in-process", seed=0, measure=measure(data))
    found = entry.results[0]["metrics"]["test_rmse"]
    pooled, outputs = data.split(0), np.full(60, np.nan)
    for row, values in read_predictions(data).items():
        outputs[row] = values[0]
    scaling = pooled.scaling
    predicted = outputs[40:] * scaling["y_half_range"] + scaling["y_middle"]
    assert found == pytest.approx(np.sqrt(np.mean((predicted - y[40:] - 500.0) ** 2)), rel=1e-9)
    assert found > 400.0


# --- The pooled solution --------------------------------------------------------------------


def measure(data: HybridData) -> Any:
    family = HybridFamily()
    return lambda strategy: family.measure(strategy, data, {})


def read_predictions(data: HybridData) -> dict[int, list[float]]:
    found = {}
    for file in data.predictions.glob("partition-*.csv"):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                outputs = [float(row[name]) for name in row if name.startswith("output_")]
                found[int(row["id"])] = outputs
    return found


def write_predictions(data: HybridData, rows: np.ndarray, outputs: np.ndarray) -> None:
    """Put predictions where simulated hospitals put theirs."""
    for file in data.predictions.glob("*.csv"):
        file.unlink()
    heads = ["id", *(f"output_{k}" for k in range(outputs.shape[1]))]
    lines = [",".join(map(repr, [int(r), *o.tolist()])) for r, o in zip(rows, outputs, strict=True)]
    (data.predictions / "partition-0.csv").write_text("\n".join([",".join(heads), *lines]))


def plain_solution(
    data: HybridData, options: Mapping[str, Any], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return coefficients, held-out rows and their outputs, in loops over the definitions."""
    pooled = data.split(seed)
    m, kernel = options["landmarks"], options.get("kernel", "rbf")
    complete = np.isfinite(pooled.x).all(axis=1)
    part = complete if options.get("missing") == "drop-row" else np.ones(len(complete), bool)
    train, test = np.flatnonzero(part & pooled.train), np.flatnonzero(part & ~pooled.train)
    landmarks = np.empty((m, pooled.x.shape[1]))
    for block, columns in pooled.blocks.items():
        x, moments = pooled.x[np.ix_(train, columns)], None
        x = x[np.isfinite(x).all(axis=1)]
        if options.get("sampling") == "N":
            moments = np.array([x.mean(axis=0), x.std(axis=0)])
        unit = np.array([[0.0, 1.0]] * len(columns))
        landmarks[:, columns] = draw_landmarks(public_seed(seed, block), m, unit, moments)
    if options.get("sampling") == "P":
        landmarks = data.given(FedCG(**options, seed=seed))
        rows = {row.tobytes() for row in pooled.x[train]}
        assert {landmark.tobytes() for landmark in landmarks} <= rows
        assert len(np.unique(landmarks, axis=0)) == m
    gamma = np.full(m, options.get("gamma") or 1.0 / pooled.x.shape[1])
    if options.get("landmark_gamma"):
        gamma = landmark_gammas(gamma[0], m, seed)
        assert 0.5 <= gamma.min() * pooled.x.shape[1] < 1.0 < gamma.max() * pooled.x.shape[1] <= 2.0

    def factor(row: np.ndarray, landmark: np.ndarray, width: float) -> float:
        difference = np.abs(row - landmark)
        return np.exp(-width * np.sum(difference**2 if kernel == "rbf" else difference))

    def kernel_of(rows: np.ndarray) -> np.ndarray:
        k = np.ones((len(rows), m))
        for i, row in enumerate(rows):
            for j in range(m):
                for columns in pooled.blocks.values():
                    if np.isfinite(pooled.x[row, columns]).all():  # else the block's factor is one
                        k[i, j] *= factor(pooled.x[row, columns], landmarks[j, columns], gamma[j])
        return k

    y = pooled.y[train][:, None]
    if len(pooled.classes) == 2:
        y = 2.0 * y - 1.0
    elif pooled.classes:
        y = np.where(y == np.array(pooled.classes), 1.0, -1.0)
    k, penalty = kernel_of(train), options.get("regularization", 1e-3) * np.eye(m)
    if options.get("penalty") == "rkhs":
        pairs = [[factor(a, b, gamma[0]) for b in landmarks] for a in landmarks]
        penalty = options["regularization"] * np.array(pairs)
    coefficients = np.linalg.pinv(k.T @ k + penalty, hermitian=True) @ (k.T @ y)
    return coefficients, test, kernel_of(test) @ coefficients


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "laplacian": ({}, {"kernel": "laplacian", "gamma": 1.5}),
    "normal landmarks": ({}, {"sampling": "N"}),
    "training rows as landmarks": ({}, {"sampling": "P"}),
    "a width per landmark": ({}, {"landmark_gamma": True}),
    "rkhs": ({}, {"penalty": "rkhs", "regularization": 0.1}),
    "many classes": ({"data": "iris", "centres": 3}, {}),
    "regression": ({"data": "iris", "target": "0"}, {"regularization": 0.1}),
    "one class of three": ({"data": "iris", "positive": 1.0}, {}),
    "other seed": ({"seed": 9, "resplit": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_pooled_solution_is_that_of_plain_numpy(case, table, tmp_path):
    """Zeros are as far from it as NumPy's solution is large; NumPy's solution is not."""
    of_data, of_method = CASES[case]
    path = write_csv(tmp_path / "t.csv", table)
    chosen = HybridSettings(**of_data) if "data" in of_data else settings(path, **of_data)
    data, options = HybridData(chosen), {"landmarks": 12, **of_method}
    strategy = FedCG(**options, seed=chosen.seed)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert centralised_difference(strategy, data) < 1e-7
    coefficients, rows, outputs = plain_solution(data, options, chosen.seed)
    assert set(rows.tolist()) == set(read_predictions(data))
    np.testing.assert_allclose(strategy.coefficients_, coefficients, rtol=0.0, atol=1e-5)
    write_predictions(data, rows, outputs)
    assert centralised_difference(strategy, data) < 1e-8
    assert np.abs(outputs).max() > 0.5
    write_predictions(data, rows, np.zeros_like(outputs))
    found = centralised_difference(strategy, data)
    assert found == pytest.approx(np.abs(outputs).max(), rel=0, abs=1e-8)
    moved = outputs.copy()
    moved[-1, -1] += 1e-3
    write_predictions(data, rows, moved)
    assert centralised_difference(strategy, data) == pytest.approx(1e-3, rel=1e-4)


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_pooled_solution_treats_missing_blocks_as_the_parties_do(missing, table, tmp_path):
    for name, rows in {"c": [1, 2, 30], "e": [2, 40, 41]}.items():
        table[name][rows] = np.nan
    data = HybridData(settings(write_csv(tmp_path / "t.csv", table), missing=missing))
    options = {"landmarks": 12, "missing": missing, "allow_single": True}
    strategy = FedCG(**options, seed=0)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert centralised_difference(strategy, data) < 1e-7
    coefficients, _, outputs = plain_solution(data, options, 0)
    np.testing.assert_allclose(strategy.coefficients_, coefficients, rtol=0.0, atol=1e-5)
    other = plain_solution(data, {**options, "missing": "drop-row"}, 0)[0]
    assert (np.abs(other - coefficients).max() > 1e-3) == (missing == "neutral")
    hospitals = strategy.plan_.report()["hospitals"].values()
    assert sum(h["dropped_rows"] for h in hospitals) == (5 if missing == "drop-row" else 0)
    assert len(outputs) == sum(h["held_out_rows"] for h in hospitals)


def test_coefficients_that_are_a_little_wrong_are_noticed(monkeypatch):
    """The negative control of every difference that a run reports."""
    data = HybridData(HybridSettings("iris", positive=1.0))
    real = HybridKernelClient.take_coefficients

    @wraps(real)
    def perturbed(client: HybridKernelClient, request: Any) -> Any:
        return real(client, replace(request, coefficients=request.coefficients * (1.0 + 1e-4)))

    entries = []
    for change in (real, perturbed):
        monkeypatch.setattr(HybridKernelClient, "take_coefficients", change)
        entries.append(Entry("FedCG", "fed-cg", {"landmarks": 15}))
        run_entries(entries[-1:], data, engine="in-process", seed=0, measure=measure(data))
    right, wrong = (e.results[0]["metrics"]["centralised_difference"] for e in entries)
    assert right < 1e-7
    assert wrong > 2e-5


def test_no_difference_is_reported_without_held_out_rows():
    data = HybridData(HybridSettings("iris", test_size=0.0))
    entry = Entry("FedCG", "fed-cg", {"landmarks": 15})
    run_entries([entry], data, engine="in-process", seed=0, measure=measure(data))
    assert set(entry.results[0]["metrics"]) == {"iterations", "residual"}


# --- Runs -----------------------------------------------------------------------------------


def test_runs_are_averaged_each_with_its_own_landmarks():
    data = HybridData(HybridSettings("wine"))
    entry = Entry("FedCG", "fed-cg", {"landmarks": 10, "solver": "cg"})
    run_entries([entry], data, engine="in-process", seed=2, runs=3, measure=measure(data))
    summary, each = summarise(entry), HybridFamily().per_draw(entry)
    differences = each["draws"]["centralised_difference"]
    assert len(set(differences)) == 3
    assert max(differences) < 1e-6
    for name, values in each["draws"].items():
        mean = summary[name] if name == "seconds" else summary["metrics"][name]
        assert mean == pytest.approx(np.mean(values)), name
    assert [len(run) for run in each["squared_residuals"]] == each["draws"]["iterations"]
    assert summary["history"] == entry.results[0]["history"]
    assert summary["survivors"] == 4
    assert summary["matched"]["blocks"] == {"clinical": [0, 1], "centre 1": [2], "centre 2": [3]}


def test_where_the_rows_are_does_not_matter():
    """Any number of hospitals, any split: the same training rows, the same model."""
    models = []
    for more in ({"hospitals": 2}, {"hospitals": 5}, {"hospitals": 3, "split": "dirichlet"}):
        data = HybridData(HybridSettings("iris", **more))
        strategy = FedCG(landmarks=10, regularization=0.1, seed=0)
        simulate(strategy, data.client_fn(strategy), data.num_clients)
        models.append(strategy.coefficients_)
    np.testing.assert_allclose(models[1], models[0], rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(models[2], models[0], rtol=0.0, atol=1e-8)


def test_runs_share_a_split_unless_each_is_to_have_its_own():
    for resplit in (False, True):
        data = HybridData(HybridSettings("wine", resplit=resplit))
        first, second = data.split(0).train.copy(), data.split(1).train.copy()
        assert np.array_equal(first, second) != resplit


def test_simulated_predictions_go_with_the_data():
    data = HybridData(HybridSettings("iris"))
    folder = data.predictions
    assert folder.is_dir()
    del data
    assert not folder.exists()
