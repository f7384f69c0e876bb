"""Kernel PCA: that of pooled rows, whoever drops out."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from sklearn.decomposition import PCA

from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.pca import features_of
from fedkern_flwr.simulations import Fault, FaultPlan, simulate
from fedkern_flwr.strategies import KernelPCA

CLIENTS = 6
X = np.random.default_rng(0).random((CLIENTS, 40, 3))
TRAIN = slice(0, 30)


def client(context: Context, **own: Any) -> KernelPCAClient:
    k = int(context.node_config["partition-id"])
    return KernelPCAClient(context, X[k, TRAIN], x_test=X[k, 30:], **own)


def pooled(strategy: KernelPCA, parties: list[int]) -> tuple[PCA, Any]:
    """Fit scikit-learn's PCA to the same features of the rows of some parties."""

    def features(x: Any) -> Any:
        kernel = {"bandwidth": np.sqrt(1.5), "features": 50, "seed": strategy.run_seed}
        return features_of(x.reshape(-1, 3), **kernel)

    fitted = PCA(strategy.components, svd_solver="full").fit(features(X[parties, TRAIN]))
    return fitted, features


@pytest.mark.parametrize("lost", [(), (1, 4)])
def test_components_are_those_of_pooled_rows(lost: tuple[int, ...]) -> None:
    """Of those who contributed; who vanished then is there again for the projections."""
    strategy = KernelPCA(components=3, seed=7, threshold=4)
    faults = FaultPlan([(k, "method", 1, Fault("vanished")) for k in lost])
    simulate(strategy, client, CLIENTS, faults=faults)
    alive = [k for k in range(CLIENTS) if k not in lost]
    assert strategy.metrics_["rows"] == 30 * len(alive)
    oracle, features = pooled(strategy, alive)
    signs = np.sign(np.vecdot(oracle.components_, strategy.model_["components"]))
    difference = strategy.model_["components"] - signs[:, None] * oracle.components_
    assert np.abs(difference).max() < 1e-9
    ratios = oracle.explained_variance_ratio_
    np.testing.assert_allclose(strategy.model_["shares"], ratios, rtol=0, atol=1e-9)
    z = features(X[:, 30:]) - oracle.mean_
    left = ((z - (z @ oracle.components_.T) @ oracle.components_) ** 2).sum() / (z**2).sum()
    assert strategy.metrics_["test_explained"] == pytest.approx(1.0 - left, abs=1e-9)


def test_each_node_writes_its_own_projections(tmp_path: Path) -> None:
    drawn = []

    def writing(context: Context) -> KernelPCAClient:
        k = int(context.node_config["partition-id"])
        ids = [f"{k}/{i}" for i in range(30)]
        results = tmp_path / str(k)
        return client(context, ids=ids, results=results, draw=lambda *a: drawn.append(a))

    strategy = KernelPCA(components=2, seed=1)
    simulate(strategy, writing, CLIENTS)
    oracle, features = pooled(strategy, [*range(CLIENTS)])
    for k in range(CLIENTS):
        with (tmp_path / str(k) / "projections.csv").open() as file:
            names, *rows = csv.reader(file)
        assert names == ["id", "component 1", "component 2"]
        assert [row[0] for row in rows] == [f"{k}/{i}" for i in range(30)]
        expected = np.abs(oracle.transform(features(X[k, TRAIN])))
        found = np.abs(np.array([row[1:] for row in rows], float))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert sorted(path.parent.name for path, *_ in drawn) == [str(k) for k in range(CLIENTS)]
    assert strategy.result()["metrics"].keys() == {"rows", "explained", "test_explained"}


def test_who_has_vanished_for_good_goes_without(tmp_path: Path) -> None:
    gone = FaultPlan([(2, "method", None, Fault("lost request"))])
    strategy = KernelPCA(threshold=4, attempts=2)
    simulate(strategy, client, CLIENTS, faults=gone, timeout=1.0)
    assert strategy.metrics_["rows"] == 30 * (CLIENTS - 1)


def test_more_components_than_features_are_refused() -> None:
    with pytest.raises(OptionError, match="5 components of 4 features"):
        simulate(KernelPCA(components=5, features=2), client, CLIENTS)
