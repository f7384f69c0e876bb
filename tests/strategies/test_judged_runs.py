"""Figures of held-out rows after whole runs, against the predictions that the nodes wrote."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nodes import Nodes, Table
from numpy.typing import NDArray
from refusals import refused
from scipy.spatial.distance import cdist
from sklearn import metrics

from fedkern_flwr.clients import HybridKernelClient, SVMClient, VerticalKernelClient
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.judging.calibration import Calibration
from fedkern_flwr.judging.counts import bins_of, calibrating
from fedkern_flwr.simulations import Transcript, simulate
from fedkern_flwr.strategies import FDSKL, FedCG, HierarchicalSVM

Floats = NDArray[np.float64]
KEY = b"a secret of the data's owners"
ROWS, TESTS = 240, 90
ONE_BY_ONE = {"label_bound": 3.0}


def draw(kind: str) -> tuple[Floats, Floats, Table]:
    """Return features, labels and what the clients are told of these."""
    rng = np.random.default_rng(8)
    x = rng.random((ROWS, 6))
    slope = np.sin(4.0 * x[:, 0]) + x[:, 1:].sum(axis=1) + 0.3 * rng.standard_normal(ROWS)
    if kind == "numbers":
        return x, np.clip(slope - slope.mean(), -3.0, 3.0), ONE_BY_ONE
    classes = {"two": 2, "three": 3}[kind]
    y = np.searchsorted(np.quantile(slope, np.arange(1, classes) / classes), slope)
    return x, y.astype(float), {"classes": [*map(float, range(classes))]}


def names(rows: NDArray[Any]) -> list[str]:
    return [f"person {k}" for k in rows]


def by_rows(kind: str, parties: int) -> tuple[list[Table], dict[str, float]]:
    """Deal rows; return tables, and the labels of held-out rows by id."""
    x, y, told = draw(kind)
    tables, truth = list[Table](), dict[str, float]()
    for k in range(parties):
        rows, held = np.arange(k, ROWS - TESTS, parties), np.arange(ROWS - TESTS + k, ROWS, parties)
        tables.append({"x": x[rows], "y": y[rows], "ids": names(rows), **told})
        tables[-1] |= {"x_test": x[held], "y_test": y[held], "ids_test": names(held)}
        truth |= dict(zip(names(held), y[held].tolist(), strict=True))
    return tables, truth


def fed_cg(kind: str, folder: Path, **options: Any) -> tuple[Nodes, Any, dict[str, float]]:
    tables, truth = by_rows(kind, 3)
    common = {"alignment_key": KEY, "landmark_seed": bytes(32), "block": "all"}
    nodes = Nodes(HybridKernelClient, tables, folder, common)
    return nodes, FedCG(landmarks=25, seed=1, **options), truth


def fdskl(kind: str, folder: Path, **options: Any) -> tuple[Nodes, Any, dict[str, float]]:
    x, y, told = draw(kind)
    fit, held = np.arange(ROWS - TESTS), np.arange(ROWS - TESTS, ROWS)
    tables: list[Table] = []
    for k in range(3):
        block = x[:, 2 * k : 2 * k + 2]
        tables.append({"x": block, "ids": names(np.arange(ROWS)), "alignment_key": KEY})
        if not k:
            tables[0] |= {"x": block[fit], "y": y[fit], "ids": names(fit), **told}
            tables[0] |= {"x_test": block[held], "y_test": y[held], "ids_test": names(held)}
    truth = dict(zip(names(held), y[held].tolist(), strict=True))
    return (
        Nodes(VerticalKernelClient, tables, folder),
        FDSKL(seed=1, features=200, **options),
        truth,
    )


def svm(kind: str, folder: Path, **options: Any) -> tuple[Nodes, Any, dict[str, float]]:
    tables, truth = by_rows(kind, 4)
    tables = [{**table, "group": k // 2} for k, table in enumerate(tables)]
    tables += [{"role": "agent", "group": k} for k in range(2)]
    model = "ridge" if kind == "numbers" else "linear"
    nodes = Nodes(SVMClient, tables, folder, {"alignment_key": KEY})
    return nodes, HierarchicalSVM(seed=1, model=model, **options), truth


METHODS: dict[str, Callable[..., Any]] = {"fed-cg": fed_cg, "fdskl": fdskl, "svm": svm}


def written(nodes: Nodes, truth: dict[str, float]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return outputs and labels of the held-out rows, and which calibrate: half at each party."""
    found, half = nodes.outputs(), dict[str, bool]()
    for table in nodes.tables:
        own = table.get("ids_test", [])
        half |= dict(zip(own, calibrating(own).tolist(), strict=True))
    ids = list(truth)
    outputs = np.array([found[i] for i in ids])
    return outputs, np.array([truth[i] for i in ids]), np.array([half[i] for i in ids])


@pytest.mark.parametrize("method", METHODS)
def test_two_classes(method: str, tmp_path: Path) -> None:
    nodes, strategy, truth = METHODS[method]("two", tmp_path)
    nodes.run(strategy, num_rounds=20)
    found = strategy.metrics_
    outputs, y, half = written(nodes, truth)
    scores = outputs[:, 0]
    area = metrics.roc_auc_score(y, scores)
    assert area > 0.8
    assert abs(found["test_auc"] - area) <= found["test_auc_bin"] + 1e-12
    assert found["test_auc_bin"] < 0.01
    chosen = (scores >= 0.0).astype(float)
    assert found["test_accuracy"] == pytest.approx(metrics.accuracy_score(y, chosen))
    balanced = metrics.balanced_accuracy_score(y, chosen)
    assert found["test_balanced_accuracy"] == pytest.approx(balanced)
    held_out = strategy.result()["held_out"]
    assert held_out["confusion"] == metrics.confusion_matrix(y, chosen).tolist()
    assert held_out["bins"] == bins_of(TESTS, 2) == 32
    made = Calibration.read(strategy.model()[1]["calibration"], 1)
    assert made is not None
    q = made.probabilities(outputs)[~half, 1]  # of the scores themselves, and not of their bins
    assert found["test_log_loss"] == pytest.approx(metrics.log_loss(y[~half], q), abs=0.02)
    assert found["test_brier"] == pytest.approx(metrics.brier_score_loss(y[~half], q), abs=0.005)
    sets = made.sets(outputs)
    assert found["test_set_size"] == pytest.approx(sets[~half].sum(1).mean())
    own = sets[np.arange(TESTS), y.astype(int)]
    assert found["test_set_coverage"] == pytest.approx(own[~half].mean())
    assert own[half].mean() >= 0.9


@pytest.mark.parametrize("method", METHODS)
def test_three_classes(method: str, tmp_path: Path) -> None:
    nodes, strategy, truth = METHODS[method]("three", tmp_path)
    nodes.run(strategy, num_rounds=20)
    outputs, y, half = written(nodes, truth)
    found, own = strategy.metrics_, y[:, None] == np.arange(3)
    areas = [metrics.roc_auc_score(own[:, k], outputs[:, k]) for k in range(3)]
    assert abs(found["test_auc"] - np.mean(areas)) <= found["test_auc_bin"] + 1e-12
    matrix = metrics.confusion_matrix(y, outputs.argmax(1))
    assert strategy.result()["held_out"]["confusion"] == matrix.tolist()
    made = Calibration.read(strategy.model()[1]["calibration"], 3)
    assert made is not None
    q = made.one_against_rest(outputs)
    assert found["test_brier_ovr"] == pytest.approx(((q - own)[~half] ** 2).mean(), abs=0.01)
    covered = made.sets(outputs)[own]
    assert found["test_set_coverage"] == pytest.approx(covered[~half].mean())


@pytest.mark.parametrize("method", METHODS)
def test_numbers(method: str, tmp_path: Path) -> None:
    nodes, strategy, truth = METHODS[method]("numbers", tmp_path, level=0.8)
    nodes.run(strategy, num_rounds=20)
    outputs, y, half = written(nodes, truth)
    found, errors = strategy.metrics_, np.abs(outputs[:, 0] - y)
    assert found["test_mae"] == pytest.approx(metrics.mean_absolute_error(y, outputs[:, 0]))
    assert found["test_r2"] == pytest.approx(metrics.r2_score(y, outputs[:, 0]))
    made = Calibration.read(strategy.model()[1]["calibration"], 1)
    assert made is not None
    assert (made.level, 2.0 * made.widths[0]) == (0.8, found["test_interval_width"])
    exact = np.sort(errors[half])[math.ceil((half.sum() + 1) * 0.8) - 1]
    assert exact <= made.widths[0] <= 1.14 * exact  # of 64 bins
    inside = errors <= made.widths[0]
    assert found["test_interval_coverage"] == pytest.approx(inside[~half].mean())


def test_figures_cost_no_exchange_and_no_score_leaves_a_node(tmp_path: Path) -> None:
    """The server sees masked vectors, and their sum: the counts of a yardstick."""
    nodes, strategy, _ = fed_cg("two", tmp_path)
    transcript = Transcript()
    simulate(strategy, nodes.client_fn, len(nodes.tables), transcript=transcript)
    made = strategy.ledger_.by_phase
    assert set(made.values()) == {1}
    assert len(made) <= 5
    scores = np.concatenate([*nodes.outputs().values()])
    told = [*transcript.entries(phase="hybrid-coefficients", direction="up")]
    assert len(told) == 3
    for entry in told:
        for values in entry.arrays:
            assert values.dtype.kind != "f"
            assert not np.isin(scores, values).any()


@pytest.mark.parametrize("method", METHODS)
def test_a_node_that_has_few_rows_tells_no_histogram(method: str, tmp_path: Path) -> None:
    """Its owner asks for more of them than there are; the server then knows no figure at all."""
    nodes, strategy, _ = METHODS[method]("two", tmp_path)
    nodes.common |= {"policy": NodePolicy(min_evaluation_rows=TESTS + 1)}
    nodes.run(strategy, num_rounds=5)
    assert not [name for name in strategy.metrics_ if name.startswith("test_")]
    assert "held_out" not in strategy.result() or not strategy.result()["held_out"]["rows"]
    assert strategy.model()[1]["calibration"] == []


@pytest.mark.promise("few-rows-no-histogram")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bins", [64, 3])
def test_a_node_refuses_more_bins_than_its_rows_are_enough_for(
    method: str, bins: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for room in ("fed_cg_system", "fdskl", "hierarchical_rows"):
        monkeypatch.setattr(f"fedkern_flwr.strategies.{room}.bins_of", lambda *_: bins)
    nodes, strategy, _ = METHODS[method]("two", tmp_path)
    with refused("FK-ORDER-BINS"):
        nodes.run(strategy, num_rounds=5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["two", "numbers"])
def test_nodes_write_probabilities_and_intervals_with_a_saved_model(
    method: str, kind: str, tmp_path: Path
) -> None:
    nodes, strategy, _ = METHODS[method](kind, tmp_path)
    nodes.run(strategy, num_rounds=20)
    first = nodes.written()
    assert not {"set", "low"} & set(first[0])  # it is known when all have counted
    arrays, meta = strategy.model()
    made = Calibration.read(meta["calibration"], 1)
    assert made is not None
    again = type(strategy).of_model(meta)
    model = {"meta": meta} if method == "fdskl" else {"arrays": arrays, "meta": meta}
    again.predict_at_nodes(nodes.grid(), **model)
    rows = nodes.written()
    outputs = np.array([[float(row["output_0"])] for row in rows])
    assert [row["id"] for row in rows] == [row["id"] for row in first]
    if kind == "numbers":
        low, high = (np.array([float(row[f"{end}"]) for row in rows]) for end in ("low", "high"))
        np.testing.assert_allclose(high - low, 2.0 * made.widths[0])
        np.testing.assert_allclose(low + high, 2.0 * outputs[:, 0], atol=1e-12)
        return
    q = [[float(row[f"probability_{k}"]) for k in (0, 1)] for row in rows]
    np.testing.assert_allclose(q, made.probabilities(outputs))
    chosen = [["|".join(np.array(["0", "1"])[here])] for here in made.sets(outputs)]
    assert [[row["set"]] for row in rows] == chosen


# -- FedCG's variance


def test_variances_are_those_of_bayesian_ridge(tmp_path: Path) -> None:
    nodes, strategy, truth = fed_cg("numbers", tmp_path, variance=True, gamma=2.0)
    nodes.run(strategy)
    arrays, meta = strategy.model()
    x = np.concatenate([table["x"] for table in nodes.tables])
    tests = np.concatenate([table["x_test"] for table in nodes.tables])
    from fedkern_flwr.hybrid.landmarks import draw_landmarks

    landmarks = draw_landmarks(bytes(32), 25, np.tile([0.0, 1.0], (6, 1)), None)
    k, k_test = (np.exp(-2.0 * cdist(part, landmarks, "sqeuclidean")) for part in (x, tests))
    inverse = np.linalg.inv(k.T @ k + strategy.regularization_ * np.eye(25))
    outputs, y, _ = written(nodes, truth)
    noise = ((outputs[:, 0] - y) ** 2).mean()
    assert meta["noise"] == [pytest.approx(noise)]
    expected = np.sqrt(noise * (1.0 + np.einsum("ij,jk,ik->i", k_test, inverse, k_test)))
    FedCG.of_model(meta).predict_at_nodes(nodes.grid(), arrays, meta)
    found = [float(row["deviation_0"]) for row in nodes.written()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    far = (np.zeros((1, 25)) @ arrays["factor"]) ** 2  # of a row without kernel to any landmark
    assert far.sum() == 0.0  # its variance is s^2
    assert any("K^T K" in line for line in strategy.privacy()["hospitals_see"][-1:])


def test_without_the_option_the_model_does_not_hold_the_sums(tmp_path: Path) -> None:
    nodes, strategy, _ = fed_cg("numbers", tmp_path)
    nodes.run(strategy)
    arrays, meta = strategy.model()
    assert set(arrays) == {"coefficients", "gammas"}
    assert meta["noise"] == []
    for options in ({"solver": "cg"}, {"penalty": "rkhs"}):
        with refused("FK-VARIANCE-EQUATIONS"):
            FedCG(variance=True, **options)


def test_a_run_that_goes_on_judges_as_the_one_that_broke_off(tmp_path: Path) -> None:
    """FDSKL's figures are in its checkpoint, with what calibrates."""
    nodes, strategy, _ = fdskl("two", tmp_path, checkpoint=tmp_path / "run.npz")
    nodes.run(strategy)
    _, again, _ = fdskl("two", tmp_path, checkpoint=tmp_path / "run.npz", resume=True)
    nodes.run(again)
    assert again.metrics_ == strategy.metrics_
    assert again.result()["held_out"] == strategy.result()["held_out"]
    assert again.model()[1]["calibration"] == strategy.model()[1]["calibration"] != []
