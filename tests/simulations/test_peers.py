"""What one would use instead: XGBoost, and FedAvg on the same parties beside a plain loop."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations.lab.figures import figures_of
from fedkern_flwr.simulations.lab.presets import own_table
from fedkern_flwr.simulations.lab.references import peers
from fedkern_flwr.simulations.lab.references.peers import fed_avg, parties_alike, xgboost
from fedkern_flwr.simulations.methods.experiment import versions
from fedkern_flwr.simulations.methods.pooled import PooledSplit

GIVEN = {"seed": 3, "progress": lambda done, total: None}


@pytest.fixture
def pooled() -> PooledSplit:
    """Three parties with rows of the first two columns, one with the third."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(160, 3))
    y = (x[:, 0] > x[:, 1]).astype(float)
    columns = np.array([0, 1])
    parties = [(np.arange(k, 120, 3), columns) for k in range(3)]
    parties.append((np.arange(120), np.array([2])))
    return PooledSplit(x[:120], y[:120], x[120:], y[120:], (0.0, 1.0), parties=tuple(parties))


def plain(pooled: PooledSplit, rounds: int) -> np.ndarray:
    """Logistic regression averaged by the rows of three parties, written out."""
    parties, columns = parties_alike(pooled)
    x, wanted = pooled.x[:, columns], (pooled.targets() + 1) / 2
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    x, weights, bias = (x - mean) / deviation, np.zeros((2, 1)), np.zeros(1)
    for number in range(1, rounds + 1):
        found = []
        for party, rows in enumerate(parties):
            rng = np.random.default_rng([derive_seed(3, f"batches of {party}"), number])
            w, b = weights.copy(), bias.copy()
            for _ in range(5):
                for batch in np.array_split(rng.permutation(len(rows)), len(rows) // 32):
                    own = rows[batch]
                    error = 1 / (1 + np.exp(-(x[own] @ w + b))) - wanted[own]
                    w -= 0.1 * x[own].T @ error / len(own)
                    b -= 0.1 * error.mean(axis=0)
            found.append((w, b, len(rows)))
        total = sum(n for *_, n in found)
        weights = sum(w * n for w, _, n in found) / total
        bias = sum(b * n for _, b, n in found) / total
    return (pooled.x_test[:, columns] - mean) / deviation @ weights + bias


def test_fed_avg_is_the_plain_loop(pooled: PooledSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    scores = peers._scores
    monkeypatch.setattr(
        peers, "_scores", lambda pooled, outputs: (seen.append(outputs), scores(pooled, outputs))[1]
    )
    metrics, history = fed_avg(pooled, model="logistic", rounds=4, **GIVEN)
    assert np.allclose(seen[-1], plain(pooled, 4), atol=1e-8)
    outputs = plain(pooled, 4)[:, 0]
    assert metrics["test_accuracy"] == pytest.approx(((outputs > 0) == pooled.y_test).mean())
    assert metrics["parties"] == 3
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert history[-1]["exchanges"] <= metrics["costs"]["exchanges"] == 2 + 2 * 4
    assert history[0]["bytes"] < history[-1]["bytes"]


def test_a_network_learns_what_a_line_cannot(pooled: PooledSplit) -> None:
    y, y_test = (np.hypot(*(x[:, :2].T - 0.5)) < 0.35 for x in (pooled.x, pooled.x_test))
    ring = PooledSplit(
        pooled.x, y * 1.0, pooled.x_test, y_test * 1.0, (0.0, 1.0), parties=pooled.parties
    )
    network, line = (
        fed_avg(ring, model=model, rounds=30, **GIVEN)[0]["test_accuracy"]
        for model in ("mlp", "logistic")
    )
    assert network > line + 0.05


def test_two_parties_are_too_few(pooled: PooledSplit) -> None:
    few = PooledSplit(
        pooled.x, pooled.y, pooled.x_test, pooled.y_test, (0.0, 1.0), parties=pooled.parties[1:]
    )
    with pytest.raises(TableError, match="needs 3 parties with rows of the same columns"):
        fed_avg(few, **GIVEN)


def test_xgboost_is_the_librarys(pooled: PooledSplit) -> None:
    library = pytest.importorskip("xgboost")
    state = {"random_state": derive_seed(3, "xgboost") % 2**31, "n_jobs": 1}
    trees = library.XGBClassifier(**state).fit(pooled.x, pooled.y)
    names = PooledSplit(  # classes need not be 0 and 1
        pooled.x, 3 * pooled.y + 2, pooled.x_test, 3 * pooled.y_test + 2, (2.0, 5.0)
    )
    expected = trees.score(pooled.x_test, pooled.y_test)
    assert xgboost(names, **GIVEN)[0]["test_accuracy"] == pytest.approx(expected)
    assert library.__version__ in versions().values()  # of the report, whatever it is called
    label, label_test = pooled.x[:, 0] * 2 - 1, pooled.x_test[:, 0] * 2 - 1
    numbers = PooledSplit(pooled.x, label, pooled.x_test, label_test, ())
    predicted = library.XGBRegressor(**state).fit(pooled.x, label).predict(pooled.x_test)
    error = np.sqrt(np.mean((predicted - label_test) ** 2))
    assert xgboost(numbers, **GIVEN)[0]["test_rmse"] == pytest.approx(error, rel=1e-4)


def test_without_xgboost_it_is_left_out(
    pooled: PooledSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(OptionError, match="XGBoost is not installed; pip install 'fedkern-flwr"):
        xgboost(pooled, **GIVEN)
    preset, left_out = own_table({"data": "wine"}, ["fdskl"])
    assert "xgboost" not in [method for _, method, _ in preset.entries]
    assert [text.partition(":")[0] for text in left_out] == ["XGBoost", "FedAvg"]


def test_fed_avg_takes_the_parties_of_the_first_method_that_has_enough() -> None:
    preset, left_out = own_table({"data": "wine"}, ["fed-cg", "hierarchical-svm"])
    (section,) = preset.sections
    (dealt,) = section.dealt.values()
    assert dealt["FedAvg, network"] == dealt["HierarchicalSVM"]
    assert "over the parties of HierarchicalSVM" in preset.text
    assert not [text for text in left_out if text.startswith("FedAvg")]
    assert set(section.figures) <= set(figures_of(section.family))
