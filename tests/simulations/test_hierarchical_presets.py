"""Presets of HierarchicalSVM: who is compared, the paper's figures beside ours, and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkern_flwr.errors import TableError
from fedkern_flwr.simulations import simulate
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.comparison import pooled_labels
from fedkern_flwr.simulations.lab.presets import NAMES, preset
from fedkern_flwr.simulations.lab.presets import groups as hierarchical
from fedkern_flwr.simulations.lab.presets.demo import demo
from fedkern_flwr.simulations.lab.references import references_of
from fedkern_flwr.simulations.lab.references.groups import svm_columns_paper, svm_paper
from fedkern_flwr.simulations.methods.groups_data import HierarchicalData
from fedkern_flwr.simulations.methods.groups_settings import HierarchicalSettings
from fedkern_flwr.simulations.methods.registry import family_with
from fedkern_flwr.simulations.papers import hierarchical_svm as paper
from fedkern_flwr.simulations.run import random_labels as toy
from fedkern_flwr.simulations.run.entries import Entry
from fedkern_flwr.strategies import HierarchicalSVM

OWN = tuple(name for name in NAMES if name.startswith("hierarchical-"))


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["compare", *arguments, "--json", "-", "--quiet", "--out", "here"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_table_and_figure_of_the_issue_has_a_preset() -> None:
    numbers = ("table2", "table3", "figure5", "figure7", "figure8", "figure10a", "figure10b")
    numbers += ("figure11", "figure12", "figure13", "staleness")
    assert set(OWN) == {f"hierarchical-{number}" for number in numbers}


def test_presets_say_what_the_paper_says(tables: Path) -> None:
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


def test_higgs_takes_part_where_it_is(tables: Path) -> None:
    names = list(preset("hierarchical-table3").data)
    assert names == ["Breast cancer", "Svmguide1"]
    (tables / "higgs.npz").touch()
    assert list(preset("hierarchical-table3").data) == [*names, "Higgs"]
    (tables / "higgs.npz").unlink()
    asked = ["compare", "hierarchical-table3", "--datasets", "Higgs", "--jobs", "1"]
    assert run(asked) == 2  # there is no file


def test_without_the_data_the_user_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    for name in OWN:
        if name != "hierarchical-table2":
            with pytest.raises(TableError, match="FEDKERN_DATA is not set"):
                preset(name)
    with pytest.raises(TableError, match="Table 2 has its own data"):
        preset("hierarchical-table2", ("Higgs",))
    with pytest.raises(TableError, match="no data set 'Mars'"):
        preset("hierarchical-figure8", ("Mars",))


def test_table3_compares_the_architectures(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--datasets", "Breast cancer", "--runs", "1", "--rounds", "25")
    found = compared(capsys, "hierarchical-table3", *arguments)
    methods = found["datasets"]["Breast cancer"]["methods"]
    assert [*methods] == [
        "linear SVM, pooled",
        "chain of neighbours",
        "centralised",
        "hierarchical",
    ]
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
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hierarchical, "MANY_USERS", 10)
    found = compared(capsys, "hierarchical-table2", "--rounds", "2")
    methods = found["datasets"]["Random labels"]["methods"]
    assert len(methods) == 3
    chain = methods["chain of neighbours, rho 5"]
    assert chain["metrics"]["iterations"] == 2
    assert chain["metrics"]["kilobytes_per_user"] == pytest.approx(chain["bytes_up"] / 1e4)
    assert "514" in Path("here/report.html").read_text()


def prepared(**more: Any) -> HierarchicalData:
    settings = HierarchicalSettings("breast-cancer", test_size=0.3, resplit=True, **more)
    return HierarchicalData(settings)


def quiet(done: int, total: int) -> None:
    """Show no progress."""


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
        metrics, history = svm_paper(
            data.pooled(7), seed=1, progress=quiet, consensus=consensus, C=0.5
        )
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
    ours, history = svm_columns_paper(columns.pooled(3), seed=3, progress=quiet, C=0.1)
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
QUICK = ("figure7", "figure10b", "staleness")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in FIGURES]
)
def test_figures(
    name: str, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for counts in ("_FEW_GROUPS", "_ALL_GROUPS"):
        monkeypatch.setattr(hierarchical, counts, (2, 3))
    entries, plots = FIGURES[name]
    arguments = ("--datasets", "Breast cancer", "--runs", "1", "--rounds", "2")
    found = compared(capsys, f"hierarchical-{name}", *arguments)
    for dataset in found["datasets"].values():
        assert len(dataset["methods"]) == entries
    if name == "figure7":
        assert list(found["datasets"]) == ["Breast cancer, 2 groups", "Breast cancer, 3 groups"]
    drawn = sorted(path.name for path in Path("here/plots").glob("*.png"))
    assert drawn == [f"breast-cancer-{plot}.png" for plot in plots]


def test_the_demo_has_the_method() -> None:
    (section,) = [
        s for s in demo(()).sections if "hierarchical-svm" in {m for _, m, _ in s.entries}
    ]
    (settings,) = section.data.values()
    assert settings.data == "breast-cancer"
    assert [method for _, method, _ in section.entries] == ["hierarchical-svm", "linear-svm"]
