"""``fedkern compare --data``: methods on a table of one's own, beside scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

from fedkern_flwr.errors import TableError
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.simulations.cli import compare as command
from fedkern_flwr.simulations.cli.main import run
from fedkern_flwr.simulations.lab.presets import own_table, preset
from fedkern_flwr.simulations.lab.references.baselines import alone
from fedkern_flwr.simulations.methods.pooled import PooledSplit
from fedkern_flwr.simulations.methods.registry import family_with

TWO = ("--methods", "fed-cg,secure-gram", "--splits", "2", "--parties", "2")
WIDTHS = (0.25, 1.0, 4.0, 0.1, 0.01, 0.001)  # of SVC, times scikit-learn's
GIVEN = {"seed": 3, "progress": lambda done, total: None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in which ids, a text and gaps stand, and one with numbers to predict."""
    folder = tmp_path_factory.mktemp("own")
    bunch = load_wine()
    rng = np.random.default_rng(0)
    lines = ["bottle;" + ";".join(f"c{j}" for j in range(6)) + ";soil;grape"]
    for k, (row, y) in enumerate(zip(bunch.data[::2], bunch.target[::2], strict=True)):
        cells = [f"{value:.2f}".replace(".", ",") for value in row[:6]]
        cells[k % 6] = "" if rng.random() < 0.1 else cells[k % 6]
        lines.append(
            ";".join([f"b{k}", *cells, "clay" if rng.random() < 0.4 else "sand", "abc"[y]])
        )
    (folder / "wine.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def wine(folder: Path) -> dict[str, Any]:
    """Two methods on two splits of the text table, with a folder of finished draws."""
    arguments = ["--data", str(folder / "wine.csv"), "--label", "grape", "--id", "bottle", *TWO]
    places = ["--cells", str(folder / "cells"), "--out", str(folder / "out")]
    assert run(["compare", *arguments, *places, "--quiet"]) == 0
    found: dict[str, Any] = json.loads((folder / "out" / "compare.json").read_text())
    return found


def methods(found: dict[str, Any]) -> dict[str, Any]:
    (data,) = found["datasets"].values()
    return dict(data["methods"])


def split_of(folder: Path, seed: int, method: str = "fed-cg") -> PooledSplit:
    values = {"data": str(folder / "wine.csv"), "label": "grape", "id_column": "bottle"}
    preset, _ = own_table(values, [method])
    (settings,) = preset.data.values()
    pooled: PooledSplit = family_with(settings).prepare(settings).pooled(seed)
    return pooled


def test_pooled_models_are_those_of_scikit_learn(folder: Path, wine: dict[str, Any]) -> None:
    """The same rows and features, the same folds: the figures of every split."""
    found = methods(wine)
    expected: dict[str, list[float]] = {"logistic, pooled": [], "SVC, pooled": []}
    expected |= {"boosted trees, pooled": [], "most frequent class": []}
    for seed in range(2):
        part = split_of(folder, seed)
        n, d = part.x.shape
        state = derive_seed(seed, "folds") % 2**32
        folds = StratifiedKFold(5, shuffle=True, random_state=state)
        weak = [1.0 / (n * strength) for strength in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)]
        inner = [{"C": [c * n / (n * 4 // 5)]} for c in weak]  # lambda, not C, is of a fold
        unit = 1.0 / (d * part.x.var())
        grids = {
            "logistic, pooled": (LogisticRegression(max_iter=1000), inner),
            "SVC, pooled": (
                SVC(),
                {"C": [1.0, 10.0, 100.0], "gamma": [w * unit for w in WIDTHS]},
            ),
        }
        for label, (model, grid) in grids.items():
            search = GridSearchCV(model, grid, cv=folds, refit=False).fit(part.x, part.y)
            best = dict(search.best_params_)
            if label.startswith("logistic"):
                best["C"] *= (n * 4 // 5) / n
            model.set_params(**best).fit(part.x, part.y)
            expected[label].append(accuracy_score(part.y_test, model.predict(part.x_test)))
        trees = HistGradientBoostingClassifier(random_state=derive_seed(seed, "boosting") % 2**32)
        expected["boosted trees, pooled"].append(
            trees.fit(part.x, part.y).score(part.x_test, part.y_test)
        )
        counts = np.bincount(part.y.astype(int))
        expected["most frequent class"].append(float((part.y_test == counts.argmax()).mean()))
    for label, figures in expected.items():
        assert found[label]["draws"]["test_accuracy"] == pytest.approx(figures), label
    pooled = [label for label in found if label.endswith(", pooled")]
    best_pooled = max(np.mean(found[label]["draws"]["test_accuracy"]) for label in pooled)
    for label in ("FedCG", "Secure Gram", "SVC, pooled", "FedCG: a party alone"):
        mean = np.mean(found[label]["draws"]["test_accuracy"])
        assert found[label]["beside_pooled"] == pytest.approx(mean - best_pooled)
        assert mean > 0.6  # than the most frequent class


def test_all_hold_out_the_same_rows_and_have_the_same_features(folder: Path) -> None:
    first, other = split_of(folder, 1), split_of(folder, 2)
    assert len(first.x_test) == len(other.x_test)
    assert not np.array_equal(first.x_test[:, 0], other.x_test[:, 0])
    for name in ("fdskl", "secure-gram", "hierarchical-svm"):
        part = split_of(folder, 1, name)
        assert np.array_equal(part.x, first.x)
        assert np.array_equal(part.x_test, first.x_test)
        assert np.array_equal(part.y, first.y)


def test_a_comparison_goes_on_and_leaves_a_report(
    folder: Path,
    wine: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "sweep", None)  # nothing may be computed
    table = Path("elsewhere.csv")
    table.write_bytes((folder / "wine.csv").read_bytes())  # its content counts
    arguments = ["--data", str(table), "--label", "grape", "--id", "bottle", *TWO]
    again = ["--cells", str(folder / "cells"), "--out", "again", "--json", "-"]
    assert run(["compare", *arguments, *again]) == 0
    captured = capsys.readouterr()
    assert "20 of 20 draws are finished already" in captured.err
    assert methods(json.loads(captured.out)) == methods(wine)
    report = Path("again/report.html").read_text()
    assert report.index("<h2>Verdict") < report.index("the same 30 % of the rows")
    assert "FedCG 2 hospitals and 2 centres; Secure Gram 2 parties" in report
    assert str(Path.cwd()) not in report + captured.out
    assert methods(wine)["FedCG: a party alone"]["privacy"] == {"server_sees": []}


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
        metrics, history = alone(whole, **GIVEN)
        figures.append(metrics["test_accuracy"])
        assert history[0]["test_error"] == pytest.approx(1.0 - metrics["test_accuracy"])
    best, worst, single, mean = figures
    assert best > 0.9
    assert worst < 0.75
    assert single == pytest.approx((y[60:] == 1).mean())  # it knows one class only
    assert mean == pytest.approx(np.mean([best, worst, single]))


def test_numbers_and_what_cannot_be_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "diabetes", "--hospitals", "3", "--groups", "2", "--users", "4"]
    arguments += ["--test-size", "0.8"]
    arguments += ["--methods", "fed-cg,hierarchical-svm", "--splits", "1", "--json", "-"]
    assert run(["compare", *arguments]) == 0
    found = methods(json.loads(capsys.readouterr().out))
    assert found["HierarchicalSVM"]["options"] == {"architecture": "hierarchical", "model": "ridge"}
    for label in ("ridge regression, pooled", "Nyström ridge, pooled", "FedCG: a party alone"):
        assert found[label]["metrics"]["test_rmse"] < found["mean"]["metrics"]["test_rmse"]
        assert found[label]["beside_pooled"] >= 0.0
    assert found["FedCG: a party alone"]["metrics"]["parties"] == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "iris", "--methods", "fedcg"], "no method 'fedcg'; did you mean fed-cg?"),
        (["--data", "iris", "--methods", "pof-mkl"], "predicts each row before it learns it"),
        (["--data", "iris", "--methods", "kernel-pca"], "use fedkern compare kernel-pca --data"),
        (["--data", "iris", "--methods", "fdskl", "--users", "3"], "none of fdskl has users"),
        (["--data", "iris", "--parties", "9", "--methods", "fdskl"], "9 parties"),
        (["--data", "iris", "--clients", "3"], "--clients is for presets"),
        (["demo", "--data", "iris"], "a preset has data of its own"),
        (["demo", "--id", "patient"], "--id is for a table of your own"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        ([], "there is nothing to compare"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert text in said
    assert "\n" not in said


def test_methods_that_cannot_are_left_out_where_none_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'ham' if a > b else 'spam'}" for a, b in rng.uniform(size=(60, 2)).round(3)]
    Path("two.csv").write_text("\n".join(["a,b,kind", *rows]))
    preset, left_out = own_table({"data": "two.csv", "label": "kind"}, [])
    assert preset.entries[0][1] == "hierarchical-svm"
    assert [text.partition(":")[0] for text in left_out] == ["fed-cg", "fdskl", "secure-gram"]
    assert "columns cannot be dealt" in left_out[1]


def test_files_of_parties(folder: Path) -> None:
    """What is held out and who is alone follow from the files, and so does what is kept."""
    lines = (folder / "wine.csv").read_text().splitlines()
    for name, part in (("a", lines[1::2]), ("b", lines[2::2])):
        Path(f"{name}.csv").write_text("\n".join([lines[0], *part]))
    values = {"party": ["a.csv", "b.csv"], "label": "grape", "id_column": "bottle"}
    preset, _ = own_table(values, ["hierarchical-svm"])
    ((name, settings),) = preset.data.items()
    assert name == "a.csv + b.csv"
    pooled = family_with(settings).prepare(settings).pooled(0)
    assert sum(len(rows) for rows, _ in pooled.parties) == len(pooled.y)
    assert [len(rows) for rows, _ in pooled.parties] == [32, 31]  # of 45 and 44


def test_the_tables_of_peers_are_tables_of_ones_own() -> None:
    """One section, so that pictures are over all tables; rows are capped, for all alike."""
    (section,) = preset("peers", ("Wine", "Digits")).sections
    assert list(section.data) == ["Wine", "Digits"]
    for name in section.data:
        (own,) = own_table({"data": name.lower()}, [])[0].sections
        assert section.entries == own.entries
        parts = []
        for label, *_ in section.entries:
            settings = section.settings(name, label)
            parts.append(family_with(settings).prepare(settings).pooled(1))
        assert {len(part.y) for part in parts} == {{"Wine": 125, "Digits": 1000}[name]}
        assert len({part.x_test.tobytes() for part in parts}) == 1


@pytest.mark.parametrize("name", ["fed-cg", "fdskl"])
def test_a_party_alone_may_be_one_whose_labels_are_not_used(name: str, folder: Path) -> None:
    """The laboratory of the second file could train; that of the third has no labels."""
    rows = [line.split(";") for line in (folder / "wine.csv").read_text().splitlines()]
    at, own = rows[0].index("grape"), rows[0].index("bottle")
    free = [k for k in range(len(rows[0])) if k not in (at, own)]
    kept = {"a": [*free[:2], at, own], "b": [*free[2:4], at, own], "c": [*free[4:6], own]}
    for file, columns in kept.items():
        Path(f"{file}.csv").write_text("\n".join(";".join(row[k] for k in columns) for row in rows))
    party = ["a.csv", "b.csv:features", "c.csv"]
    values = {"party": party, "label": "grape", "id_column": "bottle"}
    preset, _ = own_table(values, [name])
    (settings,) = preset.data.values()
    pooled = family_with(settings).prepare(settings).pooled(0)
    assert len(pooled.parties) == 2
    assert all(2 <= len(columns) <= 4 for _, columns in pooled.parties)  # and those of gaps
    assert all(len(rows) == len(pooled.y) for rows, _ in pooled.parties)
    assert not set(pooled.parties[0][1]) & set(pooled.parties[1][1])


def test_a_data_set_of_a_preset_may_be_another_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDKERN_DATA", raising=False)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 6))
    np.savez("mine.npz", X=x, y=(x[:, 0] > 0).astype(float))
    given = ["hierarchical-table3", "--rounds", "2", "--runs", "1", "--json", "-"]
    assert run(["compare", *given, "--datasets", "Higgs=mine.npz"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["datasets"]) == ["Higgs"]
    assert found["datasets"]["Higgs"]["source"].startswith("mine.npz, ")
    for name, asked in (
        ("pof-mkl-table2", "WEC"),
        ("pof-mkl-figure2", "WEC"),
        ("fdskl-table4", "ijcnn1"),
        ("fdskl-figure6", "real-sim"),
        ("fdskl-figure5", "givemecredit"),
        ("fed-cfk-table2", "ml-1m"),
    ):
        made = preset(name, (asked,), {asked: "mine.npz"})
        assert made.sections
        assert {Path(one.data) for one in made.data.values()} == {Path("mine.npz").resolve()}
        with pytest.raises(TableError, match="FEDKERN_DATA"):
            preset(name, (asked,))
    assert run(["compare", "cross-vertical", "--datasets", "Digits=mine.npz"]) == 2
    assert "the preset reads no file digits.npz" in capsys.readouterr().err
    assert run(["compare", *given, "--datasets", "Higgs=nothing.npz"]) == 2
    assert "nothing.npz is not a file" in capsys.readouterr().err
