"""The scripts of ``benchmarks/``: the pages have what is kept."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from refusals import raises

from fedkern_flwr.simulations.lab.presets import PAPERS

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(FOLDER)  # no package: scripts find each other beside them
    return importlib.import_module("results")


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
    unexplained = raises(SystemExit, results.rendered)
    assert "P, Table 1, Iris, FedCG, accuracy" in str(unexplained.value)
    with (tmp_path / "catalogue.toml").open("a") as catalogue:
        catalogue.write('[[paper.reason]]\nbetter = [false]\ntext = "other rows"\n')
    made = results.rendered()
    assert "0 of 2 figures met, 0 better, 1 worse, 1 not computed" in made
    assert "| Iris | FedCG | accuracy | 0.95 | 0.900 | 0.010 | -0.050 ↓ | a |" in made
    assert "| Iris | no draws | accuracy | 0.95 | not computed |  |  | b |" in made
    assert "(a) other rows\n\n(b) too slow" in made
