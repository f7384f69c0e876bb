"""Families of FedCG and FDSKL: a table is dealt, and a run is compared with its pooled twin.

What parties make is that of plain NumPy in tests/strategies and of the contract over all ways.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from sklearn.model_selection import train_test_split

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods import vertical_oracle
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.hybrid_oracle import (
    centralised_difference as hybrid_difference,
)
from fedkern_flwr.simulations.methods.vertical_data import (
    VerticalData,
    VerticalSettings,
    frequency_seed,
)
from fedkern_flwr.simulations.methods.vertical_oracle import centralised_difference
from fedkern_flwr.strategies import FDSKL, FedCG

NAMES = {"label": "y", "id_column": "id", "site_column": "town"}


@pytest.fixture
def hybrid(table, tables, tmp_path):
    """Return what deals the table to hospitals and centres."""
    path = tmp_path / "t.csv"
    return lambda **more: HybridData(HybridSettings(tables.write(path, table), **NAMES, **more))


@pytest.fixture
def vertical(table, tables, tmp_path):
    """Return what deals the columns of the table."""
    path = tmp_path / "t.csv"
    return lambda **more: VerticalData(VerticalSettings(tables.write(path, table), **NAMES, **more))


# -- hospitals and centres


def test_a_hospital_holds_the_rows_of_its_site(table, hybrid):
    sites = np.array(table["town"])
    for hospitals, names in ((3, "xyz"), (5, "xyzxy")):
        pooled = hybrid(split="site", hospitals=hospitals).split(0)
        assert [set(sites[pooled.hospital == h]) for h in range(hospitals)] == [{s} for s in names]
    with refused("FK-SPLIT-SITES"):
        hybrid(split="site")
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
        with refused("FK-COLUMN-EMPTY"):
            hybrid(missing=missing)
    table["c"], table["d"] = np.where(np.arange(60) % 2, np.nan, 1.0), table["d"].copy()
    table["d"][::2] = np.nan
    with refused("FK-VALUES-NOROW"):  # every row lacks a column of a block
        hybrid(missing="neutral")


def test_rows_without_a_label_or_a_hospitals_value_are_left_out_and_noted(table, hybrid):
    table["y"][[3, 8]] = np.nan
    table["a"][5] = np.nan
    table["c"][9] = np.nan  # of a centre: the row lacks a block
    with refused("FK-VALUES-MISSING"):
        hybrid()
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
    "normal landmarks": ({}, {**PLAIN, "sampling": "N"}),
    "a width per landmark": ({}, {**PLAIN, "landmark_gamma": True}),
    "rkhs": ({}, {**PLAIN, "penalty": "rkhs", "regularization": 0.1}),
    "many classes": ({"data": "iris", "centres": 3}, PLAIN),
    "numbers": ({"data": "iris", "target": "0"}, {**PLAIN, "regularization": 0.1}),
    "other seed": ({"seed": 9, "resplit": True}, PLAIN),
    "chosen": ({}, {}),
    "chosen, covariances": ({}, {"sampling": "C"}),
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


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_the_pooled_solution_treats_missing_blocks_as_the_parties_do(
    missing, table, hybrid, tables
):
    for name, rows in {"c": [1, 2, 30], "e": [2, 40, 41]}.items():
        table[name][rows] = np.nan
    data = hybrid(missing=missing)
    strategy = FedCG(**PLAIN, missing=missing, allow_single=True, seed=0)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert hybrid_difference(strategy, data) < 1e-7
    hospitals = strategy.plan_.report()["hospitals"].values()
    assert sum(h["dropped_rows"] for h in hospitals) == (5 if missing == "drop-row" else 0)
    held = sum(h["held_out_rows"] for h in hospitals)
    assert len(tables.outputs(data.predictions)) == held


# -- columns


def test_every_label_is_at_one_party_and_every_row_at_all(vertical):
    data = vertical(parties=3, active_parties=2)
    pooled, clients = data.split(0), data.client_fn(FDSKL(schedule="streaming", seed=0))
    seen: dict[str, list[float]] = {"train": [], "test": []}
    orders = []
    for party in range(3):
        own = clients.table(party)
        assert sorted(map(int, [*own["ids"], *own.get("ids_test", [])])) == list(range(60))
        orders.append(list(own["ids"]))
        rows = np.array(own["ids"], int)
        np.testing.assert_array_equal(own["x"], pooled.x[np.ix_(rows, pooled.parts[party])])
        if party == 2:  # no label, nor what is held out
            shared = {"columns", "alignment_key", "frequency_seed"}
            assert set(own) == {"x", "ids"} | shared
            continue
        labelled = np.isfinite(own["y"])
        np.testing.assert_array_equal(own["y"][labelled], pooled.y[rows[labelled]])
        seen["train"] += rows[labelled].tolist()
        seen["test"] += np.array(own["ids_test"], int).tolist()
    assert sorted(seen["train"]) == np.flatnonzero(pooled.train).tolist()
    assert sorted(seen["test"]) == np.flatnonzero(~pooled.train).tolist()
    assert orders[0][:20] != orders[1][:20] != orders[2][:20]


def test_a_choice_of_training_rows_leaves_the_held_out_ones(vertical):
    whole, few, more = vertical(), vertical(train_rows=20), vertical(train_rows=500)
    assert [data.facts()["rows"] for data in (whole, few, more)] == [45, 20, 45]
    assert whole.facts()["held_out_rows"] == few.facts()["held_out_rows"] == 15
    np.testing.assert_array_equal(few.pooled(0).y_test, whole.pooled(0).y_test)
    other = vertical(train_rows=20, seed=1).split(1)
    assert not np.array_equal(few.split(0).y[few.split(0).train], other.y[other.train])


def test_pooled_numbers_are_what_the_parties_have(table, vertical):
    table["y"] = y = 500.0 + 40.0 * np.array(table["a"])
    data = vertical(test_size=0.2)
    pooled, columns = data.pooled(0), data.split(0)
    assert (pooled.classes, len(pooled.x), len(pooled.x_test)) == ((), 48, 12)
    np.testing.assert_array_equal(pooled.x, columns.x[columns.train])
    np.testing.assert_array_equal(pooled.y_test, columns.y[~columns.train])
    assert np.abs(pooled.y).max() == pytest.approx(1.0)
    train = y[columns.train]
    assert pooled.label_unit == pytest.approx((train.max() - train.min()) / 2.0)
    middle = columns.scaling["y_middle"]
    np.testing.assert_allclose(pooled.y * pooled.label_unit + middle, train, atol=1e-9)
    off = pooled.judge(pooled.y_test[:, None] + 0.1)["test_rmse"]
    assert off == pytest.approx(0.1 * pooled.label_unit)
    iris = VerticalData(VerticalSettings("iris"))  # clients are made anew only where they depend
    first = iris.variant(FDSKL(seed=0))
    assert first == iris.variant(FDSKL(seed=0, loss="logistic", gamma=3.0, features=5))
    assert first not in (
        iris.variant(FDSKL(seed=0, allow_single=True)),
        iris.variant(FDSKL(seed=1)),
    )


ONE = {"features": 30, "regularization": 0.02, "phase_bits": 32, "loss": "square"}
MANY = {"schedule": "streaming", "directions": 3, "batch": 5, "step": 0.4, "phase_bits": 32}
VERTICAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "smooth hinge": ({}, {**ONE, "loss": "smooth-hinge"}),
    "laplacian": ({}, {**ONE, "kernel": "laplacian"}),
    "chosen": ({}, {**ONE, "gamma": None, "regularization": None}),
    "many classes": ({"data": "iris"}, ONE),
    "numbers": ({"data": "iris", "target": "0"}, ONE),
    "two parties": ({"parties": 2, "allow_single": True}, {**ONE, "allow_single": True}),
    "other seed": ({"seed": 9, "resplit": True}, ONE),
    "16 bits": ({}, {**ONE, "phase_bits": 16}),
    "streaming": ({"train_rows": 25}, {**MANY, "loss": "logistic", "kernel": "laplacian"}),
    "all active": ({"active_parties": 3}, {**MANY, "loss": "square"}),
    "diminishing": ({}, {**MANY, "step_schedule": "diminishing", "regularization": 0.2}),
    "the paper's": ({"parties": 6}, {**MANY, "directions": 1, "batch": 1}),
    "streaming, numbers": ({"data": "iris", "target": "0", "active_parties": 2}, MANY),
}


@pytest.mark.parametrize("case", VERTICAL)
def test_the_pooled_twin_is_what_the_parties_made_and_notices_another_seed(
    case, vertical, tables, monkeypatch
):
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
            patch.setattr(vertical_oracle, "frequency_seed", seed_of)
            assert centralised_difference(strategy, data) > 10.0 * max(difference, 1e-3)
    outputs[next(iter(outputs))][0] += 0.1  # it is that of the worst prediction
    tables.put(data.predictions, outputs)
    assert centralised_difference(strategy, data) == pytest.approx(0.1, abs=2.0 * close)
