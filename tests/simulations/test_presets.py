"""Presets of HierarchicalSVM, Secure Gram and FedCFK: who is compared, the papers' figures, plots.

And the machine that is tuned on a Gram matrix.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.metrics import make_scorer, mean_squared_error
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.preprocessing import MinMaxScaler
from sklearn.svm import SVC, SVR

from fedkern_flwr.gram.dot_kernels import DotKernel
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.comparison import pooled_labels
from fedkern_flwr.simulations.lab.presets import NAMES, preset
from fedkern_flwr.simulations.lab.presets import groups as hierarchical
from fedkern_flwr.simulations.lab.presets.demo import demo
from fedkern_flwr.simulations.lab.references import references_of
from fedkern_flwr.simulations.lab.references.groups import svm_columns_paper, svm_paper
from fedkern_flwr.simulations.methods.gram_learner import choose_machine
from fedkern_flwr.simulations.methods.groups_data import HierarchicalData
from fedkern_flwr.simulations.methods.groups_settings import HierarchicalSettings
from fedkern_flwr.simulations.methods.registry import family_with
from fedkern_flwr.simulations.papers import hierarchical_svm as paper
from fedkern_flwr.simulations.run import random_labels as toy
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.strategies import HierarchicalSVM

Compared = Callable[..., dict[str, Any]]
OWN = tuple(name for name in NAMES if name.startswith("hierarchical-"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small tables in place of the papers'."""
    rng = np.random.default_rng(0)
    for name in ("breast_cancer_original.npz", "svmguide1.npz"):
        x = rng.normal(size=(120, 4))
        y = (x @ [1.0, -2.0, 0.5, 1.0] + 0.5 * rng.normal(size=120) > 0).astype(float)
        np.savez(tmp_path / name, X=x, y=y)
    monkeypatch.setenv("FEDKERN_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(toy, "ROWS", 4)
    monkeypatch.setattr(toy, "COLUMNS", 3)
    return tmp_path


@pytest.fixture
def compared(commands: Any) -> Compared:
    """Return what compares; its data sets."""

    def compare(*arguments: str) -> dict[str, Any]:
        found = commands(
            "compare", *arguments, "--json", "-", "--quiet", "--out", "here", plots=True
        )
        assert found[0] == 0, found
        return dict(json.loads(found[1])["datasets"])

    return compare


def test_presets_say_what_the_paper_says(folder: Path) -> None:
    assert set(OWN) == {f"hierarchical-{number}" for number in (*FIGURES, "table2", "table3")}
    told = {method for section in demo(()).sections for _, method, _ in section.entries}
    assert {"hierarchical-svm", "linear-svm"} <= told
    for name in OWN:
        made = preset(name)
        assert made.name == name
        assert "aper" in made.text or name == "hierarchical-staleness"
        for section in made.sections:
            for dataset in section.data:
                for column, figures in section.paper.get(dataset, {}).items():
                    assert column in section.columns
                    assert set(figures) <= {label for label, _, _ in section.entries}
    paper = preset("hierarchical-table3").sections[0].paper["Breast cancer"]["accuracy"]
    assert sorted(paper.values()) == [0.8967, 0.9483, 0.955, 0.9683]


def test_higgs_takes_part_where_it_is(folder: Path) -> None:
    names = list(preset("hierarchical-table3").data)
    assert names == ["Breast cancer", "Svmguide1"]
    (folder / "higgs.npz").touch()
    assert list(preset("hierarchical-table3").data) == [*names, "Higgs"]
    (folder / "higgs.npz").unlink()
    asked = ["compare", "hierarchical-table3", "--datasets", "Higgs", "--jobs", "1"]
    assert run(asked) == 2  # there is no file


def test_without_the_data_the_user_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    for name in OWN:
        if name != "hierarchical-table2":
            with refused("FK-DATA-FOLDER"):
                preset(name)
    with refused("FK-COMPARE-OPTION"):
        preset("hierarchical-table2", ("Higgs",))
    with refused("FK-PRESET-DATA"):
        preset("hierarchical-figure8", ("Mars",))


@pytest.mark.long
def test_table3_compares_the_architectures(folder: Path, compared: Compared) -> None:
    arguments = ("--datasets", "Breast cancer", "--runs", "1", "--rounds", "25")
    found = compared("hierarchical-table3", *arguments)
    methods = found["Breast cancer"]["methods"]
    shown = ["linear SVM, pooled", "chain of neighbours", "centralised", "hierarchical"]
    assert [*methods] == shown
    for label in ("centralised", "hierarchical"):
        assert abs(methods[label]["metrics"]["objective_gap"]) < 0.02
    chain = methods["chain of neighbours"]
    assert 0.0 <= chain["metrics"]["objective_gap"] < 0.2
    assert chain["privacy"]["server_sees"] == ["nothing: there is none"]
    assert methods["linear SVM, pooled"]["exchanges"] == 0
    assert methods["centralised"]["exchanges"] < methods["hierarchical"]["exchanges"]
    report = Path("here/report.html").read_text()
    assert "0.9683" in report
    assert report.count("data:image/png") == 1


def test_table2_has_random_labels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, compared: Compared
) -> None:
    monkeypatch.setattr(hierarchical, "MANY_USERS", 10)
    found = compared("hierarchical-table2", "--rounds", "2")
    methods = found["Random labels"]["methods"]
    assert len(methods) == 3
    chain = methods["chain of neighbours, rho 5"]
    assert chain["metrics"]["iterations"] == 2
    assert chain["metrics"]["kilobytes_per_user"] == pytest.approx(chain["bytes_up"] / 1e4)
    assert "514" in Path("here/report.html").read_text()


def prepared(**more: Any) -> HierarchicalData:
    settings = HierarchicalSettings("breast-cancer", test_size=0.3, resplit=True, **more)
    return HierarchicalData(settings)


def test_programs_of_the_paper_get_the_rows_of_a_runs_users() -> None:
    """What they are given here is read off the nodes of a run instead."""
    data = prepared(users=5, group_sizes=(3, 2), rounds=4)
    strategy = HierarchicalSVM(seed=7, architecture="hierarchical")
    nodes = [data.client_fn(strategy).table(k) for k in range(5)]
    rows = np.concatenate([node["x"] for node in nodes])
    users = [
        ((n["x"] - rows.mean(axis=0)) / rows.std(axis=0), 2.0 * (n["y"] == 1.0) - 1.0)
        for n in nodes
    ]
    chain, _ = paper.fully_distributed(users, C=0.5, step=0.5, iterations=4)
    groups, _ = paper.hierarchical([users[:3], users[3:]], C=0.5, rho=1.5, iterations=4)
    assert np.abs(chain.models[3] - groups.models[3]).max() > 0.1
    for found, consensus in ((chain, "chain"), (groups, "equation 11")):
        more: Any = {"consensus": consensus, "C": 0.5}
        metrics, history = svm_paper(data.pooled(7), seed=1, progress=print, **more)
        moved = np.linalg.norm(np.diff([np.zeros(31), *found.models], axis=0), axis=1)
        np.testing.assert_allclose([row["consensus_difference"] for row in history], moved)
        assert metrics["objective"] == min(row["objective"] for row in history[:-1])
        assert (metrics["iterations"], metrics["converged"]) == (4, False)
        sent = metrics["costs"]["bytes_up"]
        assert metrics["kilobytes_per_user"] == pytest.approx(sent / 5e3)


def test_secure_products_of_columns_make_the_model_of_local_ones() -> None:
    columns = prepared(users=4, groups=2, partition="vertical")
    strategy = HierarchicalSVM(seed=3, architecture="hierarchical", partition="vertical", C=0.1)
    simulate(strategy, columns.client_fn(strategy), columns.nodes(strategy))
    ours, history = svm_columns_paper(columns.pooled(3), seed=3, progress=print, C=0.1)
    assert ours["converged"]
    assert 0.0 <= ours["objective_gap"] < 1e-3
    assert ours["objective"] == pytest.approx(strategy.metrics_["objective"], rel=1e-3)
    assert ours["test_accuracy"] == pytest.approx(strategy.metrics_["test_accuracy"], abs=0.01)
    assert ours["iterations"] == len(history)
    assert abs(len(history) - strategy.metrics_["iterations"]) <= 1  # factors are drawn otherwise
    rows = len(columns.pooled(3).y)
    assert ours["costs"]["bytes_down"] == (len(history) + 2) * 2 * rows * 8  # W of each message


def test_programs_of_the_paper_are_no_pooled_models() -> None:
    known = references_of(family_with(HierarchicalSettings("wine")))
    methods = ("linear-svm", "svm-paper", "svm-columns-paper", "alone")
    entries = [Entry(name, name, {}, reference=known[name]) for name in methods]
    assert pooled_labels(entries) == ["linear-svm"]


#: Figure -> entries, and its plots; ``make test-long`` has those that are like others.
FIGURES: dict[str, tuple[int, list[str]]] = {
    "figure5": (6, ["rho-accuracy", "rho-iterations"]),
    "figure7": (3, ["groups-accuracy-over-groups"]),
    "figure8": (3, ["users-iterations-over-users"]),
    "figure10a": (1, ["groups-iterations-over-groups", "groups-reached-over-groups"]),
    "figure10b": (1, ["ratio-of-users-iterations-over-ratio"]),
    "figure11": (3, ["columns-iterations-over-groups", "columns-seconds-over-groups"]),
    "figure12": (9, ["step_sizes-accuracy", "step_sizes-iterations"]),
    "figure13": (2, ["advance-iterations-over-groups", "advance-seconds-over-groups"]),
    "staleness": (4, ["staleness-seconds"]),
}
QUICK = ("figure7",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in FIGURES]
)
def test_figures(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, compared: Compared
) -> None:
    for counts in ("_FEW_GROUPS", "_ALL_GROUPS"):
        monkeypatch.setattr(hierarchical, counts, (2, 3))
    entries, plots = FIGURES[name]
    arguments = ("--datasets", "Breast cancer", "--runs", "1", "--rounds", "2")
    found = compared(f"hierarchical-{name}", *arguments)
    for dataset in found.values():
        assert len(dataset["methods"]) == entries
    if name == "figure7":
        assert list(found) == ["Breast cancer, 2 groups", "Breast cancer, 3 groups"]
    drawn = sorted(path.name for path in Path("here/plots").glob("*.png"))
    assert drawn == [f"breast-cancer-{plot}.png" for plot in plots]


USERS, ITEMS = 72, 30


@pytest.fixture
def movies(in_tmp: Path, tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tastes, so that there is something to recommend."""
    rng = np.random.default_rng(0)
    taste = np.arange(USERS)[:, None] % 2 == np.arange(ITEMS)[None] % 2
    rated = rng.random((USERS, ITEMS)) < np.where(taste, 0.7, 0.15)
    stars = rated * (3 + taste + rng.integers(2, size=taste.shape))
    for path in map(Path, ("ml-100k/u.data", "ml-1m/ratings.dat")):
        path.parent.mkdir()
        tables.ratings(path, stars)
    monkeypatch.setenv("FEDKERN_DATA", str(in_tmp))


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 2])
@pytest.mark.usefixtures("movies")
def test_tables_compare_participation_with_pooled_data(number: int, compared: Compared) -> None:
    found = compared(f"fed-cfk-table{number}", "--runs", "1")
    assert len(found) == 2
    for dataset in found.values():
        methods = {label: summary["metrics"] for label, summary in dataset["methods"].items()}
        assert list(methods) == ["pooled", "100 %", "90 %", "70 %", "50 %", "30 %"]
        assert methods.pop("pooled")["auc"] > 0.6
        assert all(metrics["centralised_difference"] < 1e-9 for metrics in methods.values())
        assert methods["100 %"]["rows"] == USERS
        if number == 1:  # nodes of 60 users are but two here
            assert methods["30 %"]["rows"] < USERS
    assert len(list(Path("here/plots").glob("*participation.png"))) == 2
    assert "0.808" in Path("here/report.html").read_text() or number == 2


@pytest.mark.usefixtures("movies")
def test_rounds_of_random_users_come_near_only_if_they_add_up(compared: Compared) -> None:
    (dataset,) = compared("fed-cfk-figure1").values()
    final = {k: v["metrics"]["kernel_error"] for k, v in dataset["methods"].items()}
    assert final["disjoint, 50 %"] == 0.0 < final["max, 50 %"]
    assert final["max, 10 %"] > final["max, 50 %"]
    assert dataset["methods"]["disjoint, 50 %"]["metrics"]["exact_from"] < 40
    assert Path("here/plots/ml-100k-kernel-error.png").is_file()


WIDTHS, COSTS = (0.25, 1.0, 4.0, 16.0), (1.0, 10.0, 100.0)


def problem(load: Any, rows: int) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    x, y = load(return_X_y=True)
    chosen = np.random.default_rng(3).permutation(len(x))[:rows]
    x, y = MinMaxScaler().fit_transform(x[chosen]), y[chosen].astype(float)
    if load is load_diabetes:
        return x, (y - y.mean()) / np.abs(y - y.mean()).max(), ()
    return x, y, tuple(np.unique(y).tolist())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "load", [pytest.param(load_breast_cancer, marks=pytest.mark.long), load_wine, load_diabetes]
)
def test_the_cell_is_the_one_that_grid_search_chooses(load: Any, seed: int) -> None:
    """Of cells that are as good as each other the first: narrow kernels last, small C first."""
    x, y, classes = problem(load, 150)
    gram = x @ x.T
    options: Any = {"learner": "svc", "gamma": None, "cost": None, "seed": seed}
    found = choose_machine(gram, x.shape[1], y, DotKernel("rbf"), classes, **options)
    order = np.random.default_rng(derive_seed(seed, "folds")).permutation(len(y))
    fold = np.empty(len(y), int)
    fold[order] = np.arange(len(y)) // 30
    spread = float(np.square(x - x.mean(axis=0)).sum() / len(x))
    grid = {"gamma": [width / spread for width in WIDTHS], "C": list(COSTS)}
    machine: Any = SVC(tol=1e-5) if classes else SVR(epsilon=0.01, tol=1e-5)
    score = "accuracy" if classes else make_scorer(mean_squared_error, greater_is_better=False)
    search = GridSearchCV(machine, grid, scoring=score, cv=PredefinedSplit(fold)).fit(x, y)
    tried = search.cv_results_
    means = zip(tried["params"], tried["mean_test_score"], strict=True)
    cells = {(round(cell["gamma"] * spread, 6), cell["C"]): mean for cell, mean in means}
    best = max(cells.values())
    first = next(c for c in sorted(cells) if cells[c] == pytest.approx(best, abs=1e-9))
    assert (round(found.kernel.gamma * spread, 6), found.cost) == first
    assert len(set(cells.values())) > 1
