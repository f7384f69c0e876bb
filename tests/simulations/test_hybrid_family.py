"""The family of FedCG: dealing a table, the pooled solution, and what the options do to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.landmarks import draw_landmarks, public_seed
from fedkern_flwr.kernels.product import landmark_gammas
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
def test_pooled_solution_is_that_of_plain_numpy(case, table, tables, tmp_path):
    """Zeros are as far from it as NumPy's solution is large; NumPy's solution is not."""
    of_data, of_method = CASES[case]
    path = tables.write(tmp_path / "t.csv", table)
    chosen = HybridSettings(**of_data) if "data" in of_data else settings(path, **of_data)
    data, options = HybridData(chosen), {**PLAIN, **of_method}
    strategy = FedCG(**options, seed=chosen.seed)
    simulate(strategy, data.client_fn(strategy), data.num_clients)
    assert centralised_difference(strategy, data) < 1e-7
    coefficients, rows, outputs = plain_solution(data, options, chosen.seed)
    assert set(rows.tolist()) == set(tables.outputs(data.predictions))
    np.testing.assert_allclose(strategy.coefficients_, coefficients, rtol=0.0, atol=1e-5)
    tables.put(data.predictions, dict(zip(rows, outputs, strict=True)))
    assert centralised_difference(strategy, data) < 1e-8
    assert np.abs(outputs).max() > 0.5
    tables.put(data.predictions, dict(zip(rows, np.zeros_like(outputs), strict=True)))
    found = centralised_difference(strategy, data)
    assert found == pytest.approx(np.abs(outputs).max(), rel=0, abs=1e-8)


@pytest.mark.parametrize("missing", ["drop-row", "neutral"])
def test_pooled_solution_treats_missing_blocks_as_the_parties_do(missing, table, tables, tmp_path):
    for name, rows in {"c": [1, 2, 30], "e": [2, 40, 41]}.items():
        table[name][rows] = np.nan
    data = HybridData(settings(tables.write(tmp_path / "t.csv", table), missing=missing))
    options = {**PLAIN, "missing": missing, "allow_single": True}
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
