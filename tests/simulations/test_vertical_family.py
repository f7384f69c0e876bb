"""The family of FDSKL: dealing a table, the pooled twin, and what the options do to a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.methods import vertical_oracle
from fedkern_flwr.simulations.methods.vertical_data import (
    VerticalData,
    VerticalSettings,
    frequency_seed,
)
from fedkern_flwr.simulations.methods.vertical_oracle import centralised_difference
from fedkern_flwr.strategies import FDSKL


def settings(path: str, **more: Any) -> VerticalSettings:
    return VerticalSettings(path, label="y", id_column="id", site_column="town", **more)


# --- Dealing --------------------------------------------------------------------------------


def test_every_label_is_at_one_party_and_every_row_at_all(table, tables, tmp_path):
    data = VerticalData(
        settings(tables.write(tmp_path / "t.csv", table), parties=3, active_parties=2)
    )
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
            shared = {"columns", "alignment_key", "frequency_seed"}
            assert set(own) == {"x", "ids"} | shared  # no label, nor what is held out
            continue
        labelled = np.isfinite(own["y"])
        np.testing.assert_array_equal(own["y"][labelled], pooled.y[rows[labelled]])
        seen["train"] += rows[labelled].tolist()
        seen["test"] += np.array(own["ids_test"], int).tolist()
    assert sorted(seen["train"]) == np.flatnonzero(pooled.train).tolist()
    assert sorted(seen["test"]) == np.flatnonzero(~pooled.train).tolist()
    assert orders[0][:20] != orders[1][:20] != orders[2][:20]


def test_a_choice_of_training_rows_leaves_the_held_out_ones(table, tables, tmp_path):
    path = tables.write(tmp_path / "t.csv", table)
    whole, few = VerticalData(settings(path)), VerticalData(settings(path, train_rows=20))
    assert (whole.facts()["rows"], few.facts()["rows"]) == (45, 20)
    assert whole.facts()["held_out_rows"] == few.facts()["held_out_rows"] == 15
    names = [tuple(row) for row in few.pooled(0).y_test[:, None]]
    assert names == [tuple(row) for row in whole.pooled(0).y_test[:, None]]
    more = VerticalData(settings(path, train_rows=500))  # as many as there are
    assert more.facts()["rows"] == 45
    other = VerticalData(settings(path, train_rows=20, seed=1)).split(1)
    assert not np.array_equal(few.split(0).y[few.split(0).train], other.y[other.train])


def test_pooled_data_is_what_the_parties_have(table, tables, tmp_path):
    y = 500.0 + 40.0 * np.array(table["a"])
    data = VerticalData(
        settings(tables.write(tmp_path / "t.csv", {**table, "y": y}), test_size=0.2)
    )
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


# --- The pooled twin ------------------------------------------------------------------------


def fit(data: VerticalData, rounds: int = 12, **options: Any) -> FDSKL:
    strategy = FDSKL(**{"seed": data.settings.seed, "gamma": 1.0, **options})
    clients = data.client_fn(strategy)
    simulate(strategy, clients, data.num_clients, num_rounds=rounds)
    return strategy


ONE = {"features": 30, "regularization": 0.02, "phase_bits": 32}
MANY = {"schedule": "streaming", "directions": 3, "batch": 5, "step": 0.4, "phase_bits": 32}
LOSSES = ("square", "logistic", "smooth-hinge")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{f"one-shot, {loss}": ({}, {**ONE, "loss": loss}) for loss in LOSSES},
    **{f"streaming, {loss}": ({}, {**MANY, "loss": loss}) for loss in LOSSES},
    "two active, logistic": ({"active_parties": 2}, {**MANY, "loss": "logistic"}),
    "all active": ({"active_parties": 3}, {**MANY, "loss": "square"}),
    "diminishing": ({}, {**MANY, "step_schedule": "diminishing", "regularization": 0.2}),
    "the paper's": ({}, {**MANY, "directions": 1, "batch": 1}),
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
    case, table, tables, tmp_path, monkeypatch
):
    """The negative control of every difference that a run reports.

    What parties make is that of plain NumPy in tests/strategies/test_fdskl.py.
    """
    of_data, options = CASES[case]
    of_data = {"parties": 3, **of_data}
    chosen = VerticalSettings(**of_data) if "data" in of_data else None
    data = VerticalData(chosen or settings(tables.write(tmp_path / "t.csv", table), **of_data))
    strategy = fit(data, **options)
    largest = max(max(map(abs, outputs)) for outputs in tables.outputs(data.predictions).values())
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
    assert all(noticed)


def test_the_difference_is_that_of_the_worst_prediction(table, tables, tmp_path):
    data = VerticalData(settings(tables.write(tmp_path / "t.csv", table), parties=3))
    strategy = fit(data, **ONE, loss="square")
    outputs = tables.outputs(data.predictions)
    row = next(iter(outputs))
    outputs[row][0] += 1e-3
    tables.put(data.predictions, outputs)
    assert centralised_difference(strategy, data) == pytest.approx(1e-3, rel=1e-2)


# --- Runs -----------------------------------------------------------------------------------


def test_clients_are_made_anew_only_where_they_depend_on_the_strategy():
    data = VerticalData(VerticalSettings("iris"))
    first = data.variant(FDSKL(seed=0))
    assert first == data.variant(FDSKL(seed=0, loss="logistic", gamma=3.0, features=5))
    assert data.variant(FDSKL(seed=0, allow_single=True)) != first
    assert data.variant(FDSKL(seed=1)) != first
