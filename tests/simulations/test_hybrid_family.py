"""The family of FedCG: dealing a table, the pooled solution, and what the options do to a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.hybrid_oracle import centralised_difference
from fedkern_flwr.strategies import FedCG


def settings(path: str, **more: Any) -> HybridSettings:
    return HybridSettings(path, label="y", id_column="id", site_column="town", **more)


# --- Dealing --------------------------------------------------------------------------------


def test_hospitals_without_a_block_hold_labels_alone():
    pooled = HybridData(HybridSettings("iris", centres=4, own_block=False)).split(0)
    assert list(pooled.blocks) == [f"centre {c}" for c in (1, 2, 3, 4)]


def test_a_hospital_holds_the_rows_of_its_site(table, tables, tmp_path):
    path = tables.write(tmp_path / "t.csv", table)
    data = HybridData(settings(path, split="site", hospitals=3))
    pooled = data.split(0)
    sites = np.array(table["town"])
    for h, site in enumerate("xyz"):
        assert set(sites[pooled.hospital == h]) == {site}
    more = HybridData(settings(path, split="site", hospitals=5)).split(0)
    assert [set(sites[more.hospital == h]) for h in range(5)] == [{s} for s in "xyzxy"]
    with pytest.raises(OptionError, match="3 sites, 2 hospitals cannot hold them all; use --hosp"):
        HybridData(settings(path, split="site"))


def test_a_site_without_held_out_rows_does_not_move_those_of_the_others(table, tables, tmp_path):
    table["town"] = ["x"] * 1 + ["y"] * 30 + ["z"] * 29
    data = HybridData(settings(tables.write(tmp_path / "t.csv", table), split="site", hospitals=3))
    pooled = data.split(0)
    assert not (~pooled.train & (pooled.hospital == 0)).any()
    assert pooled.hospital.tolist() == [0] * 1 + [1] * 30 + [2] * 29


def test_the_papers_split_is_that_of_scikit_learn_whatever_the_seed(table, tables, tmp_path):
    path = tables.write(tmp_path / "t.csv", table)
    data = HybridData(settings(path, paper_split=True, test_size=0.25, resplit=True, seed=3))
    _, test = train_test_split(np.arange(60), test_size=0.25, random_state=0)
    for seed in (3, 4):
        assert sorted(np.flatnonzero(~data.split(seed).train)) == sorted(test)


def test_constant_columns_are_noted_and_an_empty_one_is_refused(table, tables, tmp_path):
    table["b"] = np.full(60, 7.0)
    data = HybridData(settings(tables.write(tmp_path / "t.csv", table)))
    assert "constant in the training rows: b" in data.notes
    assert set(data.split(0).x[:, 1]) == {0.0}
    table["c"] = np.full(60, np.nan)
    path = tables.write(tmp_path / "t.csv", table)
    for missing in ("drop-row", "neutral"):
        with pytest.raises(TableError, match="column 'c' is empty in all training rows"):
            HybridData(settings(path, missing=missing))
    table["c"], table["d"] = np.where(np.arange(60) % 2, np.nan, 1.0), table["d"].copy()
    table["d"][::2] = np.nan
    path = tables.write(tmp_path / "t.csv", table)
    with pytest.raises(TableError, match="every row lacks a column of block 'centre 1'"):
        HybridData(settings(path, missing="neutral"))


def test_rows_without_a_label_or_a_hospitals_value_are_left_out_and_noted(table, tables, tmp_path):
    table["y"][[3, 8]] = np.nan
    table["a"][5] = np.nan
    table["c"][9] = np.nan  # of a centre: the row lacks a block
    path = tables.write(tmp_path / "t.csv", table)
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


def test_an_infinite_label_is_a_missing_one(table, tables, tmp_path):
    y = np.linspace(0.0, 100.0, 60)
    y[7] = np.inf
    pooled = HybridData(
        settings(tables.write(tmp_path / "t.csv", {**table, "y": y}), missing="drop-row")
    ).split(0)
    assert len(pooled.y) == 59
    assert np.abs(pooled.y[pooled.train]).max() == pytest.approx(1.0)


# --- The pooled solution --------------------------------------------------------------------


PLAIN = {"landmarks": 12, "sampling": "U", "tune": "off"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "laplacian": ({}, {"kernel": "laplacian", "gamma": 1.5}),
    "normal landmarks": ({}, {"sampling": "N"}),
    "a width per landmark": ({}, {"landmark_gamma": True}),
    "rkhs": ({}, {"penalty": "rkhs", "regularization": 0.1}),
    "many classes": ({"data": "iris", "centres": 3}, {}),
    "regression": ({"data": "iris", "target": "0"}, {"regularization": 0.1}),
    "one class of three": ({"data": "iris", "positive": 1.0}, {}),
    "other seed": ({"seed": 9, "resplit": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_pooled_solution_is_what_the_parties_made(case, table, tables, tmp_path):
    """Which is that of plain NumPy in tests/strategies/test_fed_cg.py; zeros are as far from it as
    it is large."""
    of_data, of_method = CASES[case]
    path = tables.write(tmp_path / "t.csv", table)
    chosen = HybridSettings(**of_data) if "data" in of_data else settings(path, **of_data)
    data = HybridData(chosen)
    strategy = FedCG(**{**PLAIN, **of_method}, seed=chosen.seed)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert centralised_difference(strategy, data) < 1e-7
    outputs = tables.outputs(data.predictions)
    split = data.split(chosen.seed)
    assert set(outputs) == set(np.flatnonzero(~split.train).tolist())
    largest = max(max(map(abs, values)) for values in outputs.values())
    assert largest > 0.5
    tables.put(data.predictions, {row: [0.0] * len(own) for row, own in outputs.items()})
    found = centralised_difference(strategy, data)
    assert found == pytest.approx(largest, rel=0, abs=1e-7)


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_pooled_solution_treats_missing_blocks_as_the_parties_do(missing, table, tables, tmp_path):
    for name, rows in {"c": [1, 2, 30], "e": [2, 40, 41]}.items():
        table[name][rows] = np.nan
    path, models = tables.write(tmp_path / "t.csv", table), []
    for way in dict.fromkeys((missing, "drop-row")):
        data = HybridData(settings(path, missing=way))
        strategy = FedCG(**PLAIN, missing=way, allow_single=True, seed=0)
        simulate(strategy, data.client_fn(strategy), data.num_clients)
        assert centralised_difference(strategy, data) < 1e-7
        hospitals = strategy.plan_.report()["hospitals"].values()
        assert sum(h["dropped_rows"] for h in hospitals) == (5 if way == "drop-row" else 0)
        models.append((strategy.coefficients_, len(tables.outputs(data.predictions))))
        assert models[-1][1] == sum(h["held_out_rows"] for h in hospitals)
    assert (np.abs(models[0][0] - models[-1][0]).max() > 1e-3) == (missing == "neutral")


@pytest.mark.parametrize("sampling", ["auto", "C"])
def test_pooled_solution_has_the_width_and_landmarks_that_were_chosen(
    sampling, table, tables, tmp_path
):
    data = HybridData(settings(tables.write(tmp_path / "t.csv", table)))
    strategy = FedCG(seed=0, sampling=sampling)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert strategy.tuned_
    assert centralised_difference(strategy, data) < 1e-6
    strategy.gammas_ = 2.0 * strategy.gammas_
    assert centralised_difference(strategy, data) > 1e-4
