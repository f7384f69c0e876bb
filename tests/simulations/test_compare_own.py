"""``fedkern compare --data``: methods on a table of one's own, beside what else one would use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

pytest.importorskip("sklearn")

from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations.cli import compare as command
from fedkern_flwr.simulations.lab.figures import figures_of
from fedkern_flwr.simulations.lab.presets import own_table, preset
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import family_with

TWO = ("--methods", "fed-cg,secure-gram", "--splits", "2", "--parties", "2")
WIDTHS = (0.25, 1.0, 4.0, 0.1, 0.01, 0.001)  # of SVC, times scikit-learn's


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a table in which ids, a text and gaps stand."""
    folder = tmp_path_factory.mktemp("own")
    bunch, rng = load_wine(), np.random.default_rng(0)
    lines = ["bottle;" + ";".join(f"c{j}" for j in range(6)) + ";soil;grape"]
    for k, (row, y) in enumerate(zip(bunch.data[::2], bunch.target[::2], strict=True)):
        cells = [f"{value:.2f}".replace(".", ",") for value in row[:6]]
        cells[k % 6] = "" if rng.random() < 0.1 else cells[k % 6]
        soil = "clay" if rng.random() < 0.4 else "sand"
        lines.append(";".join([f"b{k}", *cells, soil, "abc"[y]]))
    (folder / "wine.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def wine(folder: Path, commands: Any) -> dict[str, Any]:
    """Return two methods on two splits of the table, whose finished draws are kept."""
    arguments = ["--data", str(folder / "wine.csv"), "--label", "grape", "--id", "bottle", *TWO]
    places = ["--cells", str(folder / "cells"), "--out", str(folder / "out")]
    code, printed, said = commands("compare", *arguments, *places, "--quiet", "--json", "-")
    assert code == 0, said
    return dict(json.loads(printed))


def methods(found: dict[str, Any]) -> dict[str, Any]:
    (data,) = found["datasets"].values()
    return dict(data["methods"])


def pooled_of(values: dict[str, Any], method: str, seed: int = 0) -> PooledSplit:
    """Return what a comparison on a table pools."""
    named = {"label": "grape", "id_column": "bottle", **values}
    (settings,) = own_table(named, [method])[0].data.values()
    pooled: PooledSplit = family_with(settings).prepare(settings).pooled(seed)
    return pooled


@pytest.mark.long
def test_pooled_models_are_those_of_scikit_learn(folder: Path, wine: dict[str, Any]) -> None:
    """The same rows and features, the same folds: the figures of every split."""
    found = methods(wine)
    expected: dict[str, list[float]] = {"logistic, pooled": [], "SVC, pooled": []}
    expected |= {"boosted trees, pooled": [], "most frequent class": []}
    for seed in range(2):
        part = pooled_of({"data": str(folder / "wine.csv")}, "fed-cg", seed)
        n, d = part.x.shape
        state = derive_seed(seed, "folds") % 2**32
        folds = StratifiedKFold(5, shuffle=True, random_state=state)
        weak = [1.0 / (n * strength) for strength in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
        inner = [{"C": [c * n / (n * 4 // 5)]} for c in weak]  # lambda, not C, is of a fold
        widths = [w / (d * part.x.var()) for w in WIDTHS]
        grids = {
            "logistic, pooled": (LogisticRegression(max_iter=1000), inner),
            "SVC, pooled": (SVC(), {"C": [1.0, 10.0, 100.0], "gamma": widths}),
        }
        for label, (model, grid) in grids.items():
            search = GridSearchCV(model, grid, cv=folds, refit=False).fit(part.x, part.y)
            best = dict(search.best_params_)
            if label.startswith("logistic"):
                best["C"] *= (n * 4 // 5) / n
            model.set_params(**best).fit(part.x, part.y)
            expected[label].append(accuracy_score(part.y_test, model.predict(part.x_test)))
        trees = HistGradientBoostingClassifier(random_state=derive_seed(seed, "boosting") % 2**32)
        score = trees.fit(part.x, part.y).score(part.x_test, part.y_test)
        expected["boosted trees, pooled"].append(score)
        most = np.bincount(part.y.astype(int)).argmax()
        expected["most frequent class"].append(float((part.y_test == most).mean()))
    for label, figures in expected.items():
        assert found[label]["draws"]["test_accuracy"] == pytest.approx(figures), label
    pooled = [label for label in found if label.endswith(", pooled")]
    best_pooled = max(np.mean(found[label]["draws"]["test_accuracy"]) for label in pooled)
    for label in ("FedCG", "Secure Gram", "SVC, pooled", "FedCG: a party alone"):
        mean = np.mean(found[label]["draws"]["test_accuracy"])
        assert found[label]["beside_pooled"] == pytest.approx(mean - best_pooled)
        assert mean > 0.6  # than the most frequent class


@pytest.mark.long
def test_a_comparison_goes_on_and_leaves_a_report(folder, wine, commands, monkeypatch):
    monkeypatch.setattr(command, "sweep", None)  # nothing may be computed
    table = Path("elsewhere.csv")
    table.write_bytes((folder / "wine.csv").read_bytes())  # its content counts
    arguments = ["--data", str(table), "--label", "grape", "--id", "bottle", *TWO]
    again = ["--cells", str(folder / "cells"), "--out", "again", "--json", "-"]
    code, printed, said = commands("compare", *arguments, *again)
    assert code == 0
    assert "20 of 20 draws are finished already" in said
    assert methods(json.loads(printed)) == methods(wine)
    report = Path("again/report.html").read_text()
    assert report.index("<h2>Verdict") < report.index("the same 30 % of the rows")
    assert "FedCG 2 hospitals and 2 centres; Secure Gram 2 parties" in report
    assert str(Path.cwd()) not in report + printed
    assert methods(wine)["FedCG: a party alone"]["privacy"] == {"server_sees": []}


def test_all_hold_out_the_same_rows_and_have_the_same_features(folder: Path) -> None:
    values = {"data": str(folder / "wine.csv")}
    first, other = (pooled_of(values, "fed-cg", seed) for seed in (1, 2))
    assert len(first.x_test) == len(other.x_test)
    assert not np.array_equal(first.x_test[:, 0], other.x_test[:, 0])
    for name in ("fdskl", "secure-gram", "hierarchical-svm"):
        part = pooled_of(values, name, 1)
        for own, same in ((part.x, first.x), (part.x_test, first.x_test), (part.y, first.y)):
            assert np.array_equal(own, same)


@pytest.mark.long
def test_numbers_are_compared_by_their_errors(commands: Any) -> None:
    arguments = "--data diabetes --hospitals 3 --groups 2 --users 4 --test-size 0.8 --splits 1"
    arguments += " --methods fed-cg,hierarchical-svm --json -"
    code, printed, _ = commands("compare", *arguments.split())
    assert code == 0
    found = methods(json.loads(printed))
    assert found["HierarchicalSVM"]["options"] == {"architecture": "hierarchical", "model": "ridge"}
    for label in ("ridge regression, pooled", "Nyström ridge, pooled", "FedCG: a party alone"):
        assert found[label]["metrics"]["test_rmse"] < found["mean"]["metrics"]["test_rmse"]
        assert found[label]["beside_pooled"] >= 0.0
    assert found["FedCG: a party alone"]["metrics"]["parties"] == 3


def test_methods_that_cannot_are_left_out_where_none_is_named() -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'ham' if a > b else 'spam'}" for a, b in rng.uniform(size=(60, 2)).round(3)]
    Path("two.csv").write_text("\n".join(["a,b,kind", *rows]))
    preset, left_out = own_table({"data": "two.csv", "label": "kind"}, [])
    assert preset.entries[0][1] == "hierarchical-svm"
    assert [text.partition(":")[0] for text in left_out] == ["fed-cg", "fdskl", "secure-gram"]
    assert left_out[1].endswith("[FK-COLUMNS-FEW]")


def test_files_of_parties(folder: Path) -> None:
    """What is held out and who is alone follow from the files, and so does what is kept."""
    lines = (folder / "wine.csv").read_text().splitlines()
    for name, part in (("a", lines[1::2]), ("b", lines[2::2])):
        Path(f"{name}.csv").write_text("\n".join([lines[0], *part]))
    pooled = pooled_of({"party": ["a.csv", "b.csv"]}, "hierarchical-svm")
    assert sum(len(rows) for rows, _ in pooled.parties) == len(pooled.y)
    assert [len(rows) for rows, _ in pooled.parties] == [32, 31]  # of 45 and 44


@pytest.mark.parametrize("name", ["fed-cg", "fdskl"])
def test_a_party_alone_may_be_one_whose_labels_are_not_used(name: str, folder: Path) -> None:
    """The laboratory of the second file could train; that of the third has no labels."""
    rows = [line.split(";") for line in (folder / "wine.csv").read_text().splitlines()]
    at, own = rows[0].index("grape"), rows[0].index("bottle")
    free = [k for k in range(len(rows[0])) if k not in (at, own)]
    kept = {"a": [*free[:2], at, own], "b": [*free[2:4], at, own], "c": [*free[4:6], own]}
    for file, columns in kept.items():
        Path(f"{file}.csv").write_text("\n".join(";".join(row[k] for k in columns) for row in rows))
    pooled = pooled_of({"party": ["a.csv", "b.csv:features", "c.csv"]}, name)
    assert len(pooled.parties) == 2
    assert all(2 <= len(columns) <= 4 for _, columns in pooled.parties)  # and those of gaps
    assert all(len(rows) == len(pooled.y) for rows, _ in pooled.parties)
    assert not set(pooled.parties[0][1]) & set(pooled.parties[1][1])


def test_the_tables_of_peers_are_tables_of_ones_own() -> None:
    """One section, so that pictures are over all tables; rows are capped, for all alike."""
    (section,) = preset("peers", ("Wine", "Digits")).sections
    for name, most in {"Wine": 125, "Digits": 1000}.items():
        (own,) = own_table({"data": name.lower()}, [])[0].sections
        assert section.entries == own.entries
        parts = []
        for label, *_ in section.entries:
            settings = section.settings(name, label)
            parts.append(family_with(settings).prepare(settings).pooled(1))
        assert {len(part.y) for part in parts} == {most}
        assert len({part.x_test.tobytes() for part in parts}) == 1


def test_fed_avg_takes_the_parties_of_the_first_method_that_has_enough() -> None:
    preset, left_out = own_table({"data": "wine"}, ["fed-cg", "hierarchical-svm"])
    (section,) = preset.sections
    (dealt,) = section.dealt.values()
    assert dealt["FedAvg, network"] == dealt["HierarchicalSVM"]
    assert "over the parties of HierarchicalSVM" in preset.text
    assert not [text for text in left_out if text.startswith("FedAvg")]
    assert set(section.figures) <= set(figures_of(section.family))


def test_a_data_set_of_a_preset_may_be_another_file(commands, monkeypatch):
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    x = np.random.default_rng(0).normal(size=(90, 6))
    np.savez("mine.npz", X=x, y=(x[:, 0] > 0).astype(float))
    given = ["compare", "hierarchical-table3", "--rounds", "2", "--runs", "1"]
    code, printed, _ = commands(*given, "--datasets", "Higgs=mine.npz", "--json", "-")
    assert code == 0
    assert json.loads(printed)["datasets"]["Higgs"]["source"].startswith("mine.npz, ")
    for name, asked in (
        ("pof-mkl-table2", "WEC"),
        ("fdskl-table4", "ijcnn1"),
        ("fdskl-figure5", "givemecredit"),
        ("fed-cfk-table2", "ml-1m"),
    ):
        made = preset(name, (asked,), {asked: "mine.npz"})
        assert {Path(one.data) for one in made.data.values()} == {Path("mine.npz").resolve()}
        with refused("FK-DATA-FOLDER"):
            preset(name, (asked,))
    unread = commands.complaint("compare", "cross-vertical", "--datasets", "Digits=mine.npz")
    assert unread.endswith("[FK-PRESET-DATA]")
    gone = commands.complaint(*given, "--datasets", "Higgs=nothing.npz")
    assert gone.endswith("[FK-FILE-READ]")
