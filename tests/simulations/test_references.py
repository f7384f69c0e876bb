"""Reference methods on pooled data, peers, and what a comparison says of them."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from refusals import refused, refuses

pytest.importorskip("sklearn")

from sklearn import datasets
from sklearn.svm import SVC

from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.lab.comparison import Comparison, paired_differences, verdict
from fedkern_flwr.simulations.lab.own import own_table
from fedkern_flwr.simulations.lab.presets import Section
from fedkern_flwr.simulations.lab.references import references_of
from fedkern_flwr.simulations.lab.references.papers import HYBRID, two_trees
from fedkern_flwr.simulations.lab.references.peers import fed_avg, parties_alike, xgboost
from fedkern_flwr.simulations.lab.references.tables import (
    TABLES,
    PooledSplit,
    alone,
    boosting,
    dsg,
    kernel_ridge,
    linear,
    svc,
)
from fedkern_flwr.simulations.methods.experiment import Entry, run_entries, versions
from fedkern_flwr.simulations.methods.hybrid import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.pooled import ALONE
from fedkern_flwr.simulations.methods.registry import family_with
from fedkern_flwr.simulations.methods.vertical import VerticalData, VerticalSettings
from fedkern_flwr.solvers.losses import loss_derivatives
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical.phases import draw_batch

#: What a reference takes beside its options.
GIVEN: dict[str, Any] = {"seed": 3, "progress": lambda done, total: None}
QUICK_DSG = {"rounds": 80, "loss": "logistic", "step": 1.0}


def split(name: str, seed: int = 0) -> PooledSplit:
    """Return a data set of scikit-learn, a quarter held out, scaled by its training rows."""
    bunch = getattr(datasets, f"load_{name}")()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    held, kept = np.split(order, [len(order) // 4])
    low, high = bunch.data[kept].min(0), bunch.data[kept].max(0)
    x = np.clip((bunch.data - low) / (high - low), 0.0, 1.0)
    y, classes, unit = bunch.target.astype(float), tuple(np.unique(bunch.target).tolist()), 1.0
    if name == "diabetes":
        middle, unit = (y[kept].min() + y[kept].max()) / 2, np.ptp(y[kept]) / 2
        y, classes = (y - middle) / unit, ()
    return PooledSplit(x[kept], y[kept], x[held], y[held], classes, float(unit))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return where outputs are noted when they are judged."""
    judged, real = list[Any](), PooledSplit.judge

    def judge(self: PooledSplit, outputs: Any, **more: Any) -> Any:
        judged.append(outputs.copy())
        return real(self, outputs, **more)

    monkeypatch.setattr(PooledSplit, "judge", judge)
    return judged


# -- beside strategies


def test_differences_are_paired_by_draw_and_reversals_are_told() -> None:
    draws = {"A": [1.0, 2.0, 3.0, 4.0], "B": [1.5, 2.5, 3.5, 3.0], "C": [0.5, 1.0, 2.0, 3.0]}
    summaries = {name: {"draws": {"mse": own}} for name, own in draws.items()}
    pairs = paired_differences(summaries, (("A",), ("B", "absent"), ("C",)))
    assert [(p.better, p.worse) for p in pairs] == [("A", "B"), ("A", "C"), ("B", "C")]
    first, second, _ = pairs
    assert (first.mean, first.wins, first.draws, first.reversed) == (0.125, 3, 4, False)
    assert (second.mean, second.wins, second.reversed) == (-0.875, 0, True)
    assert 0.0 < second.p_value <= 1.0
    one = {name: {"draws": {"mse": own[:1]}} for name, own in draws.items()}
    (pair,) = paired_differences(one, (("A",), ("B",)))
    assert (pair.std, pair.p_value, pair.wins) == (0.0, 1.0, 1)


@pytest.mark.parametrize(("figures", "behind", "useless"), [
    (("test_accuracy", "accuracy", 0.90, 0.93, 0.6, 0.7), "3.0 points behind", True),
    (("test_accuracy", "accuracy", 0.92, 0.93, 0.8, 0.7), "", False),
    (("test_rmse", "rmse", 1.2, 1.0, 3.0, 2.0), "20 % behind", True),
    (("test_rmse", "rmse", 1.0, 0.0, 1.5, 2.0), "", False),
    (("test_rmse", "rmse", 1.04, 1.0, 1.5, 2.0), "", False),
])  # fmt: skip
def test_a_verdict_says_how_far_behind_pooled_models_and_whether_parties_alone_are_of_use(
    figures: tuple[str, str, float, float, float, float], behind: str, useless: bool
) -> None:
    metric, column, *values = figures
    settings, entries, summaries = HybridSettings("wine"), [], dict[str, dict[str, Any]]()
    known = references_of(family_with(settings))
    named = (("FedCG", "fed-cg"), ("SVC", "svc"), ("party", ALONE), ("nothing", "constant"))
    for (label, method), value in zip(named, values, strict=True):
        entries.append(Entry(label, method, {}, reference=known.get(method)))
        costs = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0, "privacy": {"server_sees": []}}
        summaries[label] = {"metrics": {metric: value}, **costs}
    section = Section({"wine": settings}, (), (column,), ())
    text = verdict(Comparison(section, "wine", 1, entries, summaries))
    text = text.split(". Pooled model: ")[1].split(". Its server")[0]
    assert (f"(SVC), FedCG is {behind}. Local" in text) if behind else ("behind" not in text)
    assert ("(party), no better than the nothing" in text) == useless


# -- of FedCG


def hybrid_runs(*entries: Entry, data: str = "breast-cancer") -> list[dict[str, Any]]:
    prepared = HybridData(HybridSettings(data, positive="0"))
    for entry in entries:
        entry.reference = HYBRID.get(entry.method)
    run_entries(entries, prepared, engine="in-process", seed=4)
    return [entry.results[0] for entry in entries]


@pytest.mark.parametrize("sampling", ["U", "N"])
def test_the_papers_protocols_of_fedcg_have_its_landmarks_start_and_iterates(sampling: str) -> None:
    options = {"landmarks": 20, "sampling": sampling, "gamma": 0.5, "regularization": 1.0}
    options |= {"init": "random"}
    secure, *papers = hybrid_runs(
        Entry("secure", "fed-cg", {**options, "solver": "cg", "preconditioner_rank": 0}),
        Entry("chain", "fed-cg-paper", options),
        Entry("naive", "fed-cg-paper", {**options, "protocol": "naive"}),
    )
    names = ("squared_residual", "residual")
    squared, relative = (np.array([row[n] for row in secure["history"]]) for n in names)
    np.testing.assert_allclose(np.square(relative / relative[0]), squared / squared[0], rtol=1e-9)
    assert relative[-1] == secure["metrics"]["residual"] <= 1e-10 < relative[-2]
    for paper in papers:
        found = np.array([row["squared_residual"] for row in paper["history"]])
        np.testing.assert_allclose(found[:4], squared[:4], rtol=1e-6)
        # later ones depend on rounding, which differs with each mask: what they reach does not
        best, ours = (np.minimum.accumulate(residuals)[:14] for residuals in (found, squared))
        assert np.abs(np.log10(best / ours)).max() < 1
        assert paper["metrics"]["centralised_difference"] < 1e-6
        for rate in ("test_accuracy", "test_recall", "test_precision"):
            assert paper["metrics"][rate] == secure["metrics"][rate]
    assert papers[0]["privacy"]["server_sees"][0] == "v of hospital 0"
    assert papers[1]["privacy"]["server_sees"][-1] == "kernel of hospital 1"
    assert papers[1]["bytes_up"] == 8 * 398 * (3 * 20 + 1)  # three blocks of 398 rows, and labels


# -- of scikit-learn


LEARN = [
    ("breast_cancer", kernel_ridge, {"landmarks": 60}, 0.93),
    ("breast_cancer", linear, {"regularization": 1e-3}, 0.93),
    ("breast_cancer", boosting, {}, 0.92),
    ("breast_cancer", dsg, {**QUICK_DSG, "gamma": 3.0}, 0.93),
    ("iris", svc, {}, 0.85), ("iris", dsg, {**QUICK_DSG, "gamma": 4.0}, 0.85),
    ("diabetes", linear, {}, 0.0), ("diabetes", boosting, {}, 0.0),
    ("diabetes", dsg, {"rounds": 120, "gamma": 0.1}, 0.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "reference", "options", "least"), LEARN)
def test_references_learn_and_their_seed_decides(name, reference, options, least):
    data = split(name)
    metrics, history = reference(data, **GIVEN, **options)
    last = history[-1]["test_error"]
    if least:
        assert metrics["test_accuracy"] > least
        assert last == pytest.approx(1.0 - metrics["test_accuracy"])
        rates = {"test_recall", "test_precision"} & metrics.keys()
        assert len(rates) == (2 if name == "breast_cancer" else 0)  # of two classes only
        assert 0.9 < metrics["test_auc"] <= 1.0
        assert 0.0 < metrics.get("test_log_loss", metrics.get("test_log_loss_ovr", 0.0)) < 0.6
    else:  # in units of the label
        plain = data.label_unit * np.sqrt(((data.y_test - data.y.mean()) ** 2).mean())
        assert 40.0 < metrics["test_rmse"] == last < 0.92 * plain
    if reference in (kernel_ridge, dsg):  # which draw
        assert reference(data, **GIVEN, **options)[1][-1]["test_error"] == last
    assert history[-1]["seconds"] > 0.0
    if reference is svc:  # what is given is not tuned
        own = SVC(C=2.0, gamma=0.3).fit(data.x, data.y).score(data.x_test, data.y_test)
        given, _ = svc(data, C=2.0, gamma=0.3, **GIVEN)
        assert (given["test_accuracy"], given["tuning_seconds"]) == (pytest.approx(own), 0.0)
        assert metrics["tuning_seconds"] > 0.0


@pytest.mark.parametrize("name", TABLES)
def test_data_that_nothing_can_be_learnt_from_is_refused(name, monkeypatch):
    data = split("wine")
    with refused("FK-HELD-OUT-NONE"):
        TABLES[name](replace(data, x_test=data.x_test[:0], y_test=data.y_test[:0]), **GIVEN)
    refuses("FK-CLASSES-ONE", TABLES[name], replace(data, y=np.ones_like(data.y)), **GIVEN)
    if name == "svc":
        monkeypatch.setitem(sys.modules, "sklearn.svm", None)
        refuses("FK-PACKAGE-MISSING", svc, data, **GIVEN)


# -- doubly stochastic gradients, and trees


@pytest.mark.parametrize(("name", "options"), [
    ("breast_cancer", {"loss": "logistic", "rounds": 8}), ("iris", {"loss": "smooth-hinge"}),
    ("diabetes", {"gamma": 0.2, "step": 0.1}), ("wine", {"rounds": 70, "step": 0.1}),
])  # fmt: skip
def test_dsg_is_the_plain_sum_over_all_directions(judged, name, options):
    """Against a loop that keeps the outputs of all rows."""
    data = split(name)
    own = {"rounds": 30, "step": 0.3, "gamma": 0.5} | options
    _, history = dsg(data, **GIVEN, **own)

    loss, targets = own.get("loss", "square"), data.targets()
    penalty, rate, (n, d), r = 1e-4, own["step"], data.x.shape, 16
    rng = np.random.default_rng(derive_seed(GIVEN["seed"], "pooled directions"))
    x, expected = np.vstack([data.x, data.x_test]), []
    f = np.zeros((len(x), targets.shape[1]))  # of all rows, kept up to date
    for t in range(1, own["rounds"] + 1):
        omegas = np.sqrt(2.0 * own["gamma"]) * rng.standard_normal((d, r))
        phi = np.sqrt(2.0) * np.cos(x @ omegas + rng.uniform(0.0, 2.0 * np.pi, r))
        rows = draw_batch(GIVEN["seed"], t, n, 64)
        alpha = -rate / r / len(rows) * phi[rows].T @ loss_derivatives(loss, f[rows], targets[rows])
        f = (1.0 - rate * penalty) * f + phi @ alpha
        if t in [row["round"] for row in history]:
            expected.append(f[n:])
    assert len(history) == len(judged) == min(50, own["rounds"])
    assert history[-1]["round"] == own["rounds"]
    for ours, plain in zip(judged, expected, strict=True):
        assert np.abs(ours - plain).max() < 1e-5 * max(1.0, np.abs(plain).max())
    assert np.abs(expected[-1]).max() > 0.01


def test_the_papers_two_trees_make_the_model_of_one_shot() -> None:
    """Of the same directions, with b of one worker in place of the sum; masks cost nothing."""
    data = VerticalData(VerticalSettings("breast-cancer", parties=5))
    options: dict[str, Any] = {"gamma": 0.5, "features": 400}
    strategy = FDSKL(seed=0, loss="smooth-hinge", **options)
    simulate(strategy, data.client_fn(strategy), 5)
    pooled = data.pooled(0)
    metrics, history = two_trees(pooled, **{**GIVEN, "seed": 0}, parties=5, **options)
    assert metrics["test_accuracy"] == pytest.approx(strategy.metrics_["test_accuracy"], abs=0.03)
    assert metrics["test_accuracy"] > 0.93
    assert 0.0 < metrics["centralised_difference"] < 0.05
    rows = len(pooled.x) + len(pooled.x_test)
    size = 8 * 400 * (4 * rows + 3)  # o + b of four workers and every row, b of three
    assert metrics["costs"] == {"exchanges": 3 + 2, "bytes_up": size, "bytes_down": size}
    assert len(history) == 1


# -- peers, and parties alone


@pytest.fixture
def pooled() -> PooledSplit:
    """Three parties with rows of the first two columns, one with the third."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(160, 3))
    y = (x[:, 0] > x[:, 1]).astype(float)
    parties = [(np.arange(k, 120, 3), np.array([0, 1])) for k in range(3)]
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


def test_fed_avg_is_the_plain_loop(pooled: PooledSplit, judged: list[Any]) -> None:
    metrics, history = fed_avg(pooled, model="logistic", rounds=4, **GIVEN)
    outputs = plain(pooled, 4)
    np.testing.assert_allclose(judged[-1], 2.0 / (1.0 + np.exp(-outputs)) - 1.0, atol=1e-8)
    right = (outputs[:, 0] > 0) == pooled.y_test
    assert metrics["test_accuracy"] == pytest.approx(right.mean())
    assert metrics["parties"] == 3
    assert [row["round"] for row in history] == [1, 2, 3, 4]
    assert history[-1]["exchanges"] <= metrics["costs"]["exchanges"] == 2 + 2 * 4
    assert history[0]["bytes"] < history[-1]["bytes"]
    refuses("FK-PARTIES-ALIKE", fed_avg, replace(pooled, parties=pooled.parties[1:]), **GIVEN)
    y, y_test = ((np.hypot(*(x[:, :2].T - 0.5)) < 0.35) * 1.0 for x in (pooled.x, pooled.x_test))
    ring = replace(pooled, y=y, y_test=y_test)  # a network learns what a line cannot
    network, line = (
        fed_avg(ring, model=model, rounds=30, **GIVEN)[0]["test_accuracy"]
        for model in ("mlp", "logistic")
    )
    assert network > line + 0.05


@pytest.mark.extra("xgboost-cpu")
def test_xgboost_is_the_librarys(pooled: PooledSplit) -> None:
    library = import_module("xgboost")
    state = {"random_state": derive_seed(3, "xgboost") % 2**31, "n_jobs": 1}
    trees = library.XGBClassifier(**state).fit(pooled.x, pooled.y)
    y, y_test = (3 * one + 2 for one in (pooled.y, pooled.y_test))  # they need not be 0 and 1
    names = replace(pooled, y=y, y_test=y_test, classes=(2.0, 5.0))
    expected = trees.score(pooled.x_test, pooled.y_test)
    assert xgboost(names, **GIVEN)[0]["test_accuracy"] == pytest.approx(expected)
    assert library.__version__ in versions().values()  # of the report, whatever it is called
    label, label_test = pooled.x[:, 0] * 2 - 1, pooled.x_test[:, 0] * 2 - 1
    predicted = library.XGBRegressor(**state).fit(pooled.x, label).predict(pooled.x_test)
    error = np.sqrt(np.mean((predicted - label_test) ** 2))
    numbers = replace(pooled, y=label, y_test=label_test, classes=())
    assert xgboost(numbers, **GIVEN)[0]["test_rmse"] == pytest.approx(error, rel=1e-4)


def test_xgboost_is_left_out_where_it_is_not(pooled, monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    refuses("FK-PACKAGE-MISSING", xgboost, pooled, **GIVEN)
    preset, left_out = own_table({"data": "wine"}, ["fdskl"])
    assert "xgboost" not in [method for _, method, _ in preset.entries]
    assert [text.partition(":")[0] for text in left_out] == ["XGBoost", "FedAvg"]


def test_a_party_alone_has_its_rows_and_columns() -> None:
    """Labels follow the first column, which one party has; the other has nothing to learn from."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(80, 2))
    y = (x[:, 0] > 0.5).astype(float)
    rows, few = np.arange(60), np.flatnonzero(y[:60] == 1)
    parts = ((rows, np.array([0])), (rows, np.array([1])), (few, np.array([0, 1])))
    figures = []
    for part in (*((one,) for one in parts), parts):
        whole = PooledSplit(x[:60], y[:60], x[60:], y[60:], (0.0, 1.0), parties=part)
        figures.append(alone(whole, **GIVEN)[0]["test_accuracy"])
    best, worst, single, mean = figures
    assert best > 0.9
    assert worst < 0.75
    assert single == pytest.approx((y[60:] == 1).mean())  # it knows one class only
    assert mean == pytest.approx(np.mean([best, worst, single]))
