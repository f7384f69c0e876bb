"""Reference methods on pooled data: beside strategies in comparisons, and each on its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn import datasets

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab import presets
from fedkern_flwr.simulations.lab.comparison import plan
from fedkern_flwr.simulations.lab.presets.online import weather
from fedkern_flwr.simulations.lab.references import REFERENCES
from fedkern_flwr.simulations.lab.references import dsg as vertical_dsg
from fedkern_flwr.simulations.lab.references.hybrid import HYBRID
from fedkern_flwr.simulations.lab.references.vertical import (
    VERTICAL,
    PooledSplit,
    boosting,
    dsg,
    kernel_ridge,
    linear,
    svc,
    two_trees,
)
from fedkern_flwr.simulations.methods.experiment import run_entries
from fedkern_flwr.simulations.methods.hybrid import ATTACKS
from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
from fedkern_flwr.simulations.methods.online import OnlineFamily
from fedkern_flwr.simulations.methods.online_data import DataSettings, Streams, prepare
from fedkern_flwr.simulations.methods.references import summarise_reference
from fedkern_flwr.simulations.methods.registry import METHODS
from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.solvers.losses import loss_derivatives
from fedkern_flwr.strategies import FDSKL
from fedkern_flwr.vertical.phases import draw_batch

#: What a reference takes beside its options.
GIVEN = {"seed": 3, "progress": lambda done, total: None}
QUICK_DSG = {"rounds": 300, "loss": "logistic", "step": 1.0}


def split(name: str, seed: int = 0) -> PooledSplit:
    """A data set of scikit-learn, a quarter held out, scaled by its training rows."""
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


# -- the seam


def mean_label(pooled, *, seed, progress, shift=0.0):
    """A reference for tests: it says what it was given."""
    progress(1, 2)
    return {"mse": float(pooled.mean() + shift)}, [{"round": 1, "mse": float(seed)}]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(REFERENCES, OnlineFamily, {"mean-label": mean_label})
    monkeypatch.setattr(Streams, "pooled", lambda self, seed: np.full(3, float(seed)))


def entries():
    return [
        Entry("mean", "mean-label", {"shift": 0.5}, reference=mean_label),
        Entry("OFSKL", "ofskl"),
    ]


@pytest.mark.usefixtures("fake")
def test_references_run_beside_strategies_on_the_data_of_each_draw():
    prepared, said, measured = prepare(DataSettings("iris", clients=3, rounds=4)), [], []
    pooled, federated = both = entries()
    run_entries(
        both,
        prepared,
        engine="in-process",
        seed=5,
        runs=2,
        progress=lambda *what: said.append(what),
        measure=lambda strategy: measured.append(strategy.method) or {},
    )
    assert [result["metrics"] for result in pooled.results] == [{"mse": 5.5}, {"mse": 6.5}]
    assert [result["history"][0]["mse"] for result in pooled.results] == [5.0, 6.0]
    first = pooled.results[0]
    assert (first["exchanges"], first["bytes_up"], first["bytes_down"]) == (0, 0, 0)
    assert first["seconds"] >= 0.0
    assert first["failures"] == {}
    assert "pooled" in first["privacy"]["server_sees"][0]
    assert first.keys() == federated.results[0].keys()
    assert measured == ["ofskl", "ofskl"]
    assert ("mean, draw 2 of 2", 1, 2) in said


@pytest.mark.usefixtures("fake")
def test_draws_that_an_entry_has_are_not_run_again():
    prepared = prepare(DataSettings("iris", clients=3, rounds=4))
    pooled = entries()[0]
    run_entries([pooled], prepared, engine="in-process", seed=5)
    run_entries([pooled], prepared, engine="in-process", seed=5, runs=3)
    assert [result["metrics"]["mse"] for result in pooled.results] == [5.5, 6.5, 7.5]
    summary = summarise_reference(pooled)
    assert summary["metrics"] == {"mse": 6.5}
    assert summary["history"] == [{"round": 1, "mse": 6.0}]


@pytest.mark.usefixtures("fake")
def test_a_section_plans_references_in_process_whatever_the_engine():
    section = replace(weather(), entries=(("mean", "mean-label", {}), ("OFSKL", "ofskl", {})))
    assert isinstance(section.family, OnlineFamily)
    (part,) = plan(presets.Preset("x", "", "", (section,), runs=2, engine="ray"), seed=3)
    cells = [(cell.method, cell.seed, cell.engine, cell.audited) for _, cell in part.named()]
    assert cells == [
        ("mean-label", 3, "in-process", False),
        ("mean-label", 4, "in-process", False),
        ("ofskl", 3, "ray", True),
        ("ofskl", 4, "ray", False),
    ]


@pytest.mark.usefixtures("fake")
def test_compare_shows_references_and_their_costs_as_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = replace(
        weather(),
        entries=(("OFSKL", "ofskl", {}), ("the mean", "mean-label", {})),
        columns=("mse", "exchanges", "megabytes", "seconds"),
        figures=("bytes",),
    )
    chosen = presets.Preset("demo", "Both", "Two methods.", (section,), runs=2)
    monkeypatch.setitem(presets._PRESETS, "demo", lambda datasets: chosen)
    options = ["--clients", "3", "--rounds", "5", "--out", "c", "--json", "-"]
    assert run(["compare", "demo", *options]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["datasets"]["NYC weather"]["methods"]["the mean"]
    assert (found["method"], found["exchanges"]) == ("mean-label", 0)
    assert found["draws"]["mse"] == [0.0, 1.0]
    row = next(line for line in captured.err.splitlines() if line.startswith(" the mean"))
    assert row.split()[-4:-1] == ["-", "-", "-"]
    report = Path("c/report.html").read_text()
    assert ">all data of all parties: it is pooled</th><td>server</td><td>the mean</td>" in report


def test_references_are_no_methods_of_the_command_line():
    assert not VERTICAL.keys() & METHODS.keys()


# -- the references


def hybrid_runs(*entries: Entry, data: str = "breast-cancer") -> list[dict]:
    prepared = HybridData(HybridSettings(data, positive="0"))
    for entry in entries:
        entry.reference = HYBRID.get(entry.method)
    run_entries(entries, prepared, engine="in-process", seed=4)
    return [entry.results[0] for entry in entries]


@pytest.mark.parametrize("sampling", ["U", "N"])
def test_the_papers_protocols_of_fedcg_have_its_landmarks_start_and_iterates(sampling):
    options = {"landmarks": 20, "sampling": sampling, "gamma": 0.5, "regularization": 1.0}
    options |= {"init": "random"}
    secure, *papers = hybrid_runs(
        Entry("secure", "fed-cg", {**options, "solver": "cg", "preconditioner_rank": 0}),
        Entry("chain", "fed-cg-paper", options),
        Entry("naive", "fed-cg-paper", {**options, "protocol": "naive"}),
    )
    first = [row["squared_residual"] for row in secure["history"][:4]]
    for paper in papers:
        np.testing.assert_allclose(
            [row["squared_residual"] for row in paper["history"][:4]], first, rtol=1e-6
        )
        assert abs(paper["metrics"]["iterations"] - secure["metrics"]["iterations"]) <= 1
        assert paper["metrics"]["centralised_difference"] < 1e-6
        assert paper["metrics"]["converged"]
        for rate in ("test_accuracy", "test_recall", "test_precision"):
            assert paper["metrics"][rate] == secure["metrics"][rate]
    assert papers[0]["privacy"]["server_sees"][0] == "v of hospital 0"
    assert papers[1]["privacy"]["server_sees"][-1] == "kernel of hospital 1"
    assert papers[1]["bytes_up"] == 8 * 398 * (3 * 20 + 1)  # three blocks of 398 rows, and labels


@pytest.mark.parametrize("penalty", ["ridge", "rkhs"])
def test_landmarks_that_are_rows(penalty):
    options = {"landmarks": 50, "sampling": "P", "gamma": 0.5, "regularization": 0.1}
    direct, chain = hybrid_runs(
        Entry("direct", "fed-cg-paper", {**options, "protocol": "direct", "penalty": penalty}),
        Entry("chain", "fed-cg-paper", options),
    )
    assert direct["metrics"]["test_accuracy"] > 0.95
    assert direct["metrics"]["centralised_difference"] < 1e-9
    same = direct["metrics"]["test_accuracy"] == chain["metrics"]["test_accuracy"]
    assert same or penalty == "rkhs"


def test_distances_from_the_naive_protocols_kernel():
    options = {"landmarks": 6, "sampling": "P"}
    (found,) = hybrid_runs(Entry("P", "fed-cg-distances", options), data="iris")
    assert found["metrics"].keys() == {f"reconstruction_{name}" for name in ATTACKS}
    assert found["metrics"]["reconstruction_trilateration"] < 1e-12  # more landmarks than columns
    assert found["metrics"]["reconstruction_rank-alternation"] > 0.1


@pytest.mark.parametrize(
    ("name", "reference", "options", "least"),
    [
        ("breast_cancer", svc, {}, 0.95),
        ("breast_cancer", svc, {"C": 10.0, "gamma": 0.5, "max_rows": 200}, 0.93),
        ("breast_cancer", kernel_ridge, {}, 0.95),
        ("breast_cancer", linear, {}, 0.95),
        ("breast_cancer", linear, {"loss": "square", "regularization": 1e-3}, 0.93),
        ("breast_cancer", linear, {"loss": "squared-hinge"}, 0.93),
        ("breast_cancer", boosting, {}, 0.92),
        ("breast_cancer", dsg, QUICK_DSG, 0.93),
        ("breast_cancer", dsg, {"rounds": 300, "kernel": "laplacian", "gamma": 0.1}, 0.9),
        ("iris", svc, {}, 0.85),
        ("iris", kernel_ridge, {"landmarks": 60}, 0.85),
        ("iris", linear, {}, 0.85),
        ("iris", linear, {"loss": "squared-hinge"}, 0.85),
        ("iris", boosting, {}, 0.85),
        ("iris", dsg, {**QUICK_DSG, "gamma": 4.0}, 0.85),
    ],
)
def test_classes_are_told_apart(name, reference, options, least):
    metrics, history = reference(split(name), **GIVEN, **options)
    assert metrics["test_accuracy"] > least
    assert history[-1]["test_error"] == pytest.approx(1.0 - metrics["test_accuracy"])
    assert history[-1]["seconds"] > 0.0
    rates = {"test_recall", "test_precision"} & metrics.keys()
    assert len(rates) == (2 if name == "breast_cancer" else 0)  # of two classes only
    assert all(metrics[rate] > 0.85 for rate in rates)


@pytest.mark.parametrize(
    ("reference", "options"),
    [
        (svc, {}),
        (kernel_ridge, {}),
        (linear, {}),
        (boosting, {}),
        (dsg, {"rounds": 600, "gamma": 0.1}),
    ],
)
def test_errors_of_a_regression_are_in_units_of_the_label(reference, options):
    data = split("diabetes")
    metrics, history = reference(data, **GIVEN, **options)
    plain = data.label_unit * np.sqrt(((data.y_test - data.y.mean()) ** 2).mean())
    assert 40.0 < metrics["test_rmse"] < 0.92 * plain
    assert history[-1]["test_error"] == metrics["test_rmse"]


@pytest.mark.parametrize("name", VERTICAL)
def test_the_seed_decides(name):
    data, options = split("wine"), QUICK_DSG if name == "dsg" else {}

    def run(seed):
        metrics, history = VERTICAL[name](
            data, seed=seed, progress=lambda done, total: None, **options
        )
        errors = [row["test_error"] for row in history]
        return errors, {k: v for k, v in metrics.items() if k != "tuning_seconds"}

    assert run(1) == run(1)
    if name == "dsg":
        assert run(1)[0] != run(2)[0]


@pytest.mark.parametrize(("reference", "gain"), [(svc, 0.03), (kernel_ridge, None)])
def test_smoother_kernels_are_tried_where_it_is_asked_for(reference, gain) -> None:
    """Ordered classes of a linear score: the widths about the default are all too narrow."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 7))
    score = x @ np.linspace(0.3, 1.0, 7) + 0.2 * rng.normal(size=600)
    y = np.digitize(score, np.quantile(score, [0.2, 0.5, 0.8])).astype(float)
    data = PooledSplit(x[:200], y[:200], x[200:], y[200:], (0.0, 1.0, 2.0, 3.0), 1.0)
    usual, wide = (reference(data, wide=w, **GIVEN)[0] for w in (False, True))
    assert wide["gamma"] < usual["gamma"] / 2.0
    assert gain is None or wide["test_accuracy"] > usual["test_accuracy"] + gain


def test_what_is_given_is_not_tuned():
    data, steps = split("breast_cancer"), []
    metrics, _ = svc(data, seed=0, progress=lambda *done: steps.append(done), C=2.0, gamma=0.3)
    assert (metrics["C"], metrics["gamma"], metrics["tuning_seconds"]) == (2.0, 0.3, 0.0)
    assert steps == [(2, 2)]
    steps.clear()
    metrics, _ = linear(data, seed=0, progress=lambda *done: steps.append(done))
    assert steps == [(k, 6) for k in range(1, 7)]
    assert metrics["tuning_seconds"] > 0.0


@pytest.mark.parametrize(
    ("reference", "options", "message"),
    [
        (svc, {"C": 0.0}, "C is 0; use a positive number"),
        (svc, {"max_rows": -1}, "max_rows is -1"),
        (kernel_ridge, {"landmarks": 0}, "landmarks is 0; use a positive number"),
        (linear, {"loss": "hinge"}, "loss is 'hinge'; choose one of square, logistic"),
        (dsg, {"rounds": 0}, "rounds is 0; use at least 1"),
        (dsg, {"gamma": -1.0}, "gamma is -1; use a positive number"),
        (dsg, {"regularization": -1.0}, "regularization is -1; use at least 0"),
        (dsg, {"kernel": "linear"}, "kernel is 'linear'; choose one of rbf, laplacian"),
        (dsg, {"step": 1e3, "rounds": 600}, "DSG diverges at step 1000"),
    ],
)
def test_options_that_cannot_work_are_refused(reference, options, message):
    with pytest.raises(OptionError, match=message):
        reference(split("wine"), **GIVEN, **options)


def test_the_logistic_loss_is_refused_for_a_regression():
    for reference in (linear, dsg):
        with pytest.raises(OptionError, match="loss is 'logistic'; choose one of square"):
            reference(split("diabetes"), **GIVEN, loss="logistic")


@pytest.mark.parametrize("name", VERTICAL)
def test_data_that_nothing_can_be_learnt_from_is_refused(name):
    data = split("wine")
    with pytest.raises(OptionError, match="no rows are held out"):
        VERTICAL[name](replace(data, x_test=data.x_test[:0], y_test=data.y_test[:0]), **GIVEN)
    with pytest.raises(TableError, match="all training rows have the same label"):
        VERTICAL[name](replace(data, y=np.ones_like(data.y)), **GIVEN)


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)
    with pytest.raises(OptionError, match=r"scikit-learn; pip install .*simulation"):
        svc(split("wine"), **GIVEN)


# -- doubly stochastic gradients


@pytest.mark.parametrize("chunk", [1 << 14, 50])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("breast_cancer", {"loss": "logistic"}),
        ("iris", {"loss": "smooth-hinge", "step_schedule": "diminishing", "regularization": 0.1}),
        ("diabetes", {"kernel": "laplacian", "gamma": 0.2, "batch": 10_000}),
        ("wine", {"batch": 1, "directions": 1, "rounds": 70}),
    ],
)
def test_dsg_is_the_plain_sum_over_all_directions(monkeypatch, name, options, chunk):
    """Against a loop that sums over all directions so far, one row at a time."""
    data, drawn, judged = split(name), [], []
    draw = vertical_dsg._frequencies
    real = PooledSplit.judge

    def frequencies(*arguments):
        drawn.append(draw(*arguments))
        return drawn[-1]

    def judge(self, outputs):
        judged.append(outputs.copy())
        return real(self, outputs)

    offsets = []
    features = vertical_dsg._features

    def remember(x, omega, b):
        if not offsets or offsets[-1] is not b:
            offsets.append(b)
        return features(x, omega, b)

    monkeypatch.setattr(vertical_dsg, "_frequencies", frequencies)
    monkeypatch.setattr(vertical_dsg, "_features", remember)
    monkeypatch.setattr(vertical_dsg, "_CHUNK", chunk)
    monkeypatch.setattr(PooledSplit, "judge", judge)
    own = {"rounds": 30, "batch": 8, "directions": 3, "step": 0.3, "evaluations": 7, **options}
    _, history = dsg(data, **GIVEN, **own)

    loss, targets = own.get("loss", "square"), data.targets()
    penalty = own.get("regularization", 1e-4)
    model: list[list] = []  # omega, b, alpha of each direction

    def output(x):
        total = np.zeros(targets.shape[1])
        for omega, b, alpha in model:
            total += alpha * np.sqrt(2.0) * np.cos(omega @ x + b)
        return total

    expected = []
    for t in range(1, own["rounds"] + 1):
        rate = own["step"]
        if "step_schedule" in own:
            rate /= 1.0 + own["step"] * penalty * t
        rows = draw_batch(GIVEN["seed"], t, len(data.y), own["batch"])
        slopes = [
            loss_derivatives(loss, output(data.x[i])[None], targets[i][None])[0] for i in rows
        ]
        new = []
        for j in range(own["directions"]):
            omega, b = drawn[t - 1][:, j], offsets[t - 1][j]
            alpha = sum(
                s * np.sqrt(2.0) * np.cos(omega @ data.x[i] + b)
                for s, i in zip(slopes, rows, strict=True)
            )
            new.append([omega, b, -rate / own["directions"] * alpha / len(rows)])
        for direction in model:
            direction[2] = direction[2] * (1.0 - rate * penalty)
        model += new
        if t in [row["round"] for row in history]:
            expected.append(np.array([output(x) for x in data.x_test]))
    assert len(history) == len(judged) == 7
    assert history[-1]["round"] == own["rounds"]
    for ours, plain in zip(judged, expected, strict=True):
        assert np.abs(ours - plain).max() < 1e-5 * max(1.0, np.abs(plain).max())
    assert np.abs(expected[-1]).max() > 0.05


def test_dsg_reports_training_time_without_that_of_evaluations(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(vertical_dsg.time, "perf_counter", lambda: clock[0])
    real, batch = PooledSplit.judge, vertical_dsg._Rows.batch

    def judge(self, outputs):
        clock[0] += 100.0
        return real(self, outputs)

    def draw(self, t):
        clock[0] += 1.0
        return batch(self, t)

    monkeypatch.setattr(PooledSplit, "judge", judge)
    monkeypatch.setattr(vertical_dsg._Rows, "batch", draw)
    steps = []
    _, history = dsg(
        split("iris"),
        seed=0,
        progress=lambda *done: steps.append(done),
        rounds=9,
        evaluations=3,
    )
    assert [(row["round"], row["seconds"]) for row in history] == [(3, 3.0), (6, 6.0), (9, 9.0)]
    assert steps == [(3, 9), (6, 9), (9, 9)]


def test_frequencies_have_the_spread_of_their_kernel():
    rng = np.random.default_rng(0)
    x, z = np.array([[0.2, 0.9]]), np.array([[0.6, 0.4]])
    for kernel, expected in (
        ("rbf", np.exp(-1.5 * ((x - z) ** 2).sum())),
        ("laplacian", np.exp(-1.5 * np.abs(x - z).sum())),
    ):
        omega = vertical_dsg._frequencies(kernel, 1.5, 2, 200_000, rng)
        offsets = rng.uniform(0.0, 2.0 * np.pi, 200_000)
        products = vertical_dsg._features(x, omega, offsets) @ (
            vertical_dsg._features(z, omega, offsets).T / 200_000
        )
        assert products[0, 0] == pytest.approx(expected, abs=0.01)


def test_the_papers_two_trees_make_the_model_of_one_shot() -> None:
    """Of the same directions, with b of one worker in place of the sum; masks cost nothing."""
    of_data = VerticalSettings("breast-cancer", parties=5)
    data = VerticalData(of_data)
    strategy = FDSKL(seed=0, gamma=0.5, features=400, loss="smooth-hinge")
    simulate(strategy, data.client_fn(strategy), 5)
    pooled = data.pooled(0)
    options = {"parties": 5, "gamma": 0.5, "features": 400}
    metrics, history = two_trees(pooled, **{**GIVEN, "seed": 0}, **options)
    assert metrics["test_accuracy"] == pytest.approx(strategy.metrics_["test_accuracy"], abs=0.03)
    assert metrics["test_accuracy"] > 0.93
    assert 0.0 < metrics["centralised_difference"] < 0.05
    rows = len(pooled.x) + len(pooled.x_test)
    size = 8 * 400 * (4 * rows + 3)  # o + b of four workers and every row, b of three
    assert metrics["costs"] == {"exchanges": 3 + 2, "bytes_up": size, "bytes_down": size}
    assert len(history) == 1
