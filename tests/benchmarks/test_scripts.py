"""The scripts of ``benchmarks/``: the pages have what is kept; references of online methods."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

from fedkern_flwr.simulations.lab.presets import PAPERS

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)  # no package: scripts find each other beside them
    return importlib.import_module("results")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("streams")


def items(results):
    papers = tomllib.loads((results.KEPT / "catalogue.toml").read_text())["paper"]
    return [item for paper in papers for item in paper["items"]]


def test_the_page_is_what_the_script_makes_of_the_kept_tables(results) -> None:
    """With a reason for each figure that differs: without one there is no page."""
    assert results.PAGE.read_text() == results.rendered()


def test_every_preset_of_a_paper_is_on_the_list_or_is_ours(results) -> None:
    named = {item["preset"].partition(" ")[0] for item in items(results) if "preset" in item}
    ours = {"pof-mkl-adaptive", "fed-cfk-learners", "hierarchical-staleness"}
    assert named == set(PAPERS) - ours


def test_every_item_has_a_preset_or_a_reason_and_every_file_an_item(results) -> None:
    assert all(("preset" in item) != ("why" in item) for item in items(results))
    known = {results.file_of(item["preset"]) for item in items(results) if "preset" in item}
    assert set(results.KEPT.glob("*.json")) <= known | {results.file_of("peers")}


def test_a_figure_that_misses_is_on_the_page(results, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(results, "KEPT", tmp_path)
    (tmp_path / "catalogue.toml").write_text(
        '[[paper]]\nname = "P"\nsource = "S"\nitems = [{item = "Table 1", what = "w", '
        'preset = "fed-cg-table2"}]\n[[paper.reason]]\nlabel = ["no draws"]\ntext = "too slow"\n'
    )
    figure = {
        "dataset": "Iris", "label": "FedCG", "column": "accuracy", "ours": 0.9, "spread": 0.01,
        "paper": 0.95, "decimals": 2, "better": False, "nearest": 0.91, "misses": True,
    }  # fmt: skip
    kept = {"command": "fedkern compare x", "date": "2026-01-01", "versions": {}}
    absent = {**figure, "label": "no draws", "ours": None, "better": None}
    of = {"source": "", "notes": [], "table": {}, "paper_figures": [figure, absent]}
    results.file_of("fed-cg-table2").write_text(json.dumps({**kept, "datasets": {"Iris": of}}))
    with pytest.raises(SystemExit, match="P, Table 1, Iris, FedCG, accuracy"):
        results.rendered()
    with (tmp_path / "catalogue.toml").open("a") as catalogue:
        catalogue.write('[[paper.reason]]\nbetter = [false]\ntext = "other rows"\n')
    made = results.rendered()
    assert "0 of 2 figures met, 0 better, 1 worse, 1 not computed" in made
    assert "| Iris | FedCG | accuracy | 0.95 | 0.900 | 0.010 | -0.050 ↓ | a |" in made
    assert "| Iris | no draws | accuracy | 0.95 | not computed |  |  | b |" in made
    assert "(a) other rows\n\n(b) too slow" in made


def test_what_is_missing_is_kept_and_what_fails_stops_nothing(results, monkeypatch, tmp_path):
    (tmp_path / "catalogue.toml").write_text(
        '[[paper]]\nname = "P"\nsource = "S"\nitems = [{item = "1", preset = "a --paper-split"}, '
        '{item = "2", preset = "b"}, {item = "3", preset = "c"}, {item = "4", why = "diagram"}]\n'
    )
    monkeypatch.setattr(results, "KEPT", tmp_path)
    results.file_of("b").touch()
    asked = []

    class Done:
        returncode = 1

    monkeypatch.setattr(
        results.subprocess, "run", lambda command, check: asked.append(command[2:]) or Done()
    )
    found = CliRunner().invoke(results.app, ["missing", "--runs", "1"])
    assert found.exit_code == 1
    assert asked == [["keep", "a", "--paper-split", "--runs", "1"], ["keep", "c", "--runs", "1"]]


# -- streams: each prediction is that of all rows before


@pytest.mark.parametrize("name", ["local ridge", "global ridge", "local RFF", "global RFF"])
def test_recursive_least_squares_is_ridge_regression_of_all_rows_before(streams, name):
    x, y = streams.rows_by_round(streams.generated("Friedman", 0, clients=3, rounds=40))
    found = streams.reference(name, x, y, seed=0)
    z = x if name.endswith("ridge") else streams.random_features(x, 0)
    z = np.concatenate([z, np.ones((*y.shape, 1))], axis=2)
    for t in (0, 1, 17, 39):
        for k in range(3):
            whose = slice(k, k + 1) if name.startswith("local") else slice(None)
            rows, labels = z[:t, whose].reshape(-1, z.shape[2]), y[:t, whose].reshape(-1)
            gram = rows.T @ rows + streams.PENALTY * np.eye(z.shape[2])
            guess = z[t, k] @ np.linalg.solve(gram, rows.T @ labels)
            assert found[t, k] == pytest.approx((guess - y[t, k]) ** 2, rel=1e-7, abs=1e-12)


def test_generated_streams_drift_at_all_clients_at_once(streams):
    for name in streams.GENERATED:
        x, y = streams.rows_by_round(streams.generated(name, 1))
        assert x.shape == (500, 10, 10)
        assert (y.min(), y.max()) == (0.0, 1.0)
        of_all = streams.reference("global ridge", x, y, 0)[400:].mean(axis=0)
        of_new_rows = streams.reference("global ridge", x[250:], y[250:], 0)[150:].mean(axis=0)
        assert (of_new_rows < 0.9 * of_all).all()
