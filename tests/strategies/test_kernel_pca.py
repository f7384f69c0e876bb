"""Kernel PCA: that of pooled rows of who contributed, projections of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from pooled import stacked
from refusals import refused
from sklearn.decomposition import PCA
from zoo import fit

from fedkern_flwr.clients import KernelPCAClient
from fedkern_flwr.errors import TableError
from fedkern_flwr.kernels.random_features import feature_map
from fedkern_flwr.simulations import Fault, FaultPlan
from fedkern_flwr.strategies import KernelPCA


@pytest.mark.parametrize("phase", ["", "method", "always"])
def test_components_are_those_of_the_rows_that_were_summed(phase: str) -> None:
    """Who vanished then is there again for the projections, or goes without."""
    kind = Fault("vanished" if phase == "method" else "lost request")
    plan = FaultPlan([(2, "method", 1 if phase == "method" else None, kind)]) if phase else None
    more: Any = {"threshold": 3, "attempts": 2} if phase else {}
    found = fit("kernel-pca", faults=plan, start={"timeout": 1.0}, **more)
    strategy, tables = found.strategy, found.sites.tables
    packed = np.array([1.2], "<f8").tobytes()
    z = feature_map(packed, 3, 4, strategy.run_seed, "float64", "orthogonal")
    summed = [t for k, t in enumerate(tables) if not phase or k != 2]
    oracle = PCA(strategy.components, svd_solver="full").fit(z(stacked(summed))[:, 0])
    assert strategy.metrics_["rows"] == 15 * len(summed)
    for name, expected in (
        ("components", oracle.components_),
        ("shares", oracle.explained_variance_ratio_),
    ):
        got = np.abs(strategy.model_[name])
        np.testing.assert_allclose(got, np.abs(expected), rtol=0, atol=1e-9)
    seen = [t for k, t in enumerate(tables) if phase != "always" or k != 2]
    left = z(stacked(seen, "x_test"))[:, 0] - oracle.mean_
    lost = ((left - (left @ oracle.components_.T) @ oracle.components_) ** 2).sum()
    explained = 1.0 - lost / (left**2).sum()
    assert strategy.metrics_["test_explained"] == pytest.approx(explained, abs=1e-9)


def test_more_components_than_features_are_refused() -> None:
    with refused("FK-COMPONENTS-MANY"):
        fit("kernel-pca", strategy=KernelPCA(components=5, features=2))


def test_text_in_a_table_is_refused_and_not_quoted() -> None:
    rows = np.full((3, 2), "s3cret", object)
    place = Context(1, 1, {"partition-id": 0, "num-partitions": 3}, RecordDict(), {})
    with refused("FK-COLUMN-NUMBERS", kind=TableError) as caught:
        KernelPCAClient(place, rows)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_projections_may_be_drawn() -> None:
    drawn: list[Any] = []

    def draw(*arguments: Any) -> None:
        drawn.append(arguments)

    found = fit("kernel-pca", client={"draw": lambda: draw}, components=2)
    assert sorted(path.parent.name for path, *_ in drawn) == ["0", "1", "2", "3"]
    assert found.strategy.result()["metrics"].keys() == {"rows", "explained", "test_explained"}
    assert all(len(values) == 2 for values in found.predictions.values())
