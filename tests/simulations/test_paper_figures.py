"""Which of the papers' figures are missed by more than the spread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedkern_flwr.simulations.lab.comparison import Comparison
from fedkern_flwr.simulations.lab.paper_figures import (
    HEADINGS,
    PaperFigure,
    count_misses,
    paper_figures,
)
from fedkern_flwr.simulations.lab.presets import PAPERS, preset
from fedkern_flwr.simulations.lab.presets.hybrid import hospitals

FIGURE = PaperFigure("Iris", "FedCG", "accuracy", 0.95, 0.01, 0.96, 2, False, 0.96)


def made(values: list[float | None], paper: float, column: str = "accuracy") -> list[PaperFigure]:
    section = replace(hospitals(), paper={"Breast cancer": {column: {"FedCG": paper}}})
    names = {"accuracy": "test_accuracy", "recall": "test_recall"}
    summaries: dict[str, dict[str, Any]] = {"FedCG": {"draws": {names[column]: values}}}
    return paper_figures(Comparison(section, "Breast cancer", len(values), [], summaries))


def test_a_figure_within_its_spread_and_the_papers_rounding_is_met() -> None:
    (found,) = made([0.94, 0.96], 0.96)
    assert found.ours == pytest.approx(0.95)
    assert found.spread == pytest.approx(0.0141421356)
    assert (found.decimals, found.misses, found.better) == (2, False, False)
    assert not made([0.956, 0.956], 0.96)[0].misses  # 0.956 may be printed as 0.96
    assert made([0.954, 0.954], 0.96)[0].misses


def test_draws_that_diverge_miss_whatever_their_spread() -> None:
    (found,) = made([14.4, 6.7e12], 0.029)
    assert found.spread is not None
    assert found.ours is not None
    assert abs(found.ours - found.paper) < found.spread
    assert (found.nearest, found.misses) == (14.4, True)


def test_a_miss_is_better_or_worse_in_the_direction_of_its_column() -> None:
    better, worse = made([0.99, 0.99], 0.96)[0], made([0.90, 0.90], 0.96, "recall")[0]
    assert (better.misses, better.better) == (True, True)
    assert (worse.misses, worse.better) == (True, False)
    assert count_misses([better, worse, FIGURE]) == {
        "figures": 3,
        "missed": 2,
        "better": 1,
        "worse": 1,
    }
    assert worse.cells() == [
        "Breast cancer",
        "FedCG",
        "recall",
        "0.900",
        "0.000",
        "0.96",
        "-0.060",
        "worse",
    ]
    assert len(HEADINGS) == len(worse.cells())


def test_a_figure_that_a_draw_lacks_is_missing() -> None:
    (found,) = made([0.9, None], 0.96)
    assert (found.ours, found.spread, found.misses, found.better) == (None, None, True, None)
    assert found.cells()[3:] == ["-", "-", "0.96", "-", "missing"]


def test_a_single_draw_has_no_spread() -> None:
    (found,) = made([0.95], 0.96)
    assert found.spread is None
    assert found.misses


def test_every_figure_of_a_paper_can_be_compared_draw_by_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDKERN_DATA", "somewhere")
    monkeypatch.setattr("pathlib.Path.is_file", lambda self: True)
    compared = 0
    for name in PAPERS:
        for section in preset(name).sections:
            for figures in section.paper.values():
                for column, own in figures.items():
                    assert section.family.columns[column].values is not None, (name, column)
                    compared += len(own)
    assert compared > 150
