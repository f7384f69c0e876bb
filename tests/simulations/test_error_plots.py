"""Figures of test errors: valid files, odd numbers, and what they take from results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

import numpy as np
from matplotlib.figure import Figure

from fedkern_flwr.simulations.lab.comparison import Comparison
from fedkern_flwr.simulations.lab.error_plots import (
    plot_error_boxes,
    plot_error_panels,
    plot_error_time,
)
from fedkern_flwr.simulations.lab.figures.vertical import FIGURES
from fedkern_flwr.simulations.lab.presets.online import weather
from fedkern_flwr.simulations.run import drawing
from fedkern_flwr.simulations.run.entries import Entry

HOSTILE = ["_hidden", r"$\frac{", "x" * 300, ""]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect the figures that are drawn."""
    figures: list[Figure] = []
    make = drawing.new_figure

    def remember(height: float) -> Figure:
        figures.append(make(height))
        return figures[-1]

    monkeypatch.setattr(drawing, "new_figure", remember)
    return figures


def assert_valid(png: Path) -> None:
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.with_suffix(".svg").stat().st_size > 1000


def test_curves_and_single_points_are_drawn_over_time(tmp_path: Path, drawn: list[Figure]) -> None:
    curves = {
        "curve": [(2.0, 0.2, 0.01), (1.0, 0.4, 0.02), (4.0, math.nan, 0.0)],
        "point": [(3.0, 0.25, 0.05)],
        "nothing": [(1.0, math.nan, 0.0)],
    }
    assert_valid(plot_error_time(curves, tmp_path / "t", title="", ylabel="test error (%)"))
    (axes,) = drawn[0].axes
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
    assert [[1.0, 0.4], [2.0, 0.2]] in lines
    assert [[3.0, 0.25]] in lines
    assert axes.get_xlabel() == "training time (s)"
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert legend == ["curve", "point", "nothing (n/a)"]


def test_wide_ranges_of_times_and_errors_get_log_axes(tmp_path: Path, drawn: list[Figure]) -> None:
    curves = {"a": [(0.0, 50.0, 60.0), (1.0, 2.0, 3.0)], "b": [(40.0, 3.0, 0.0)]}
    assert_valid(plot_error_time(curves, tmp_path / "t", title="", ylabel="e"))
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_ylim()[0] == pytest.approx(2.0 / 1.3)


def test_panels_have_a_look_per_method_and_one_legend(tmp_path: Path, drawn: list[Figure]) -> None:
    panels = {
        "first": {"a": [(1.0, 3.0, 0.0)], "b": [(1.0, 2.0, 0.0), (2.0, 1.0, 0.0)]},
        "second": {"b": [(1.0, 4.0, 0.0), (5.0, 3.0, 0.1)]},
        "third": {},
    }
    assert_valid(plot_error_panels(panels, tmp_path / "p", ylabel="e", xlabel="exchanges"))
    first, second, third = drawn[0].axes
    assert [one.get_title(loc="left") for one in drawn[0].axes] == [*panels]
    assert first.lines[-1].get_color() == second.lines[-1].get_color()
    assert (first.get_xlabel(), second.get_xlabel(), third.get_xlabel()) == ("", *["exchanges"] * 2)
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


@pytest.mark.parametrize("curves", [{}, {"a": []}, {"a": [(1.0, 0.0, 0.0)]}])
def test_little_is_drawn_as_well(tmp_path: Path, curves: dict[str, Any]) -> None:
    assert_valid(plot_error_time(curves, tmp_path / "t", title="", ylabel="e"))


def test_boxes_span_quartiles_and_show_every_run(tmp_path: Path, drawn: list[Figure]) -> None:
    errors = {"a": [1.0, 2.0, 3.0, 4.0, 50.0], "b": [2.0, math.nan], "c": [math.nan]}
    assert_valid(plot_error_boxes(errors, tmp_path / "b", title="", xlabel="test error (%)"))
    (axes,) = drawn[0].axes
    box = axes.patches[0]
    assert (box.get_x(), box.get_width()) == (2.0, 2.0)
    whiskers = [list(line.get_xdata()) for line in axes.lines[:3]]
    assert whiskers == [[1.0, 2.0], [4.0, 4.0], [3.0, 3.0]]
    assert list(axes.lines[3].get_xdata()) == errors["a"]
    assert "n/a" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("errors", [{}, {"a": []}, {"a": [0.0, 0.0]}, {"a": [1e-9], "b": [1e9]}])
def test_extreme_boxes_are_drawn(tmp_path: Path, errors: dict[str, Any]) -> None:
    assert_valid(plot_error_boxes(errors, tmp_path / "b", title="", xlabel="e"))


def test_hostile_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    assert_valid(
        plot_error_boxes({n: [1.0, 2.0] for n in HOSTILE}, tmp_path / "b", title="$_{", xlabel="e")
    )
    curves = {n: [(1.0, 2.0, 0.0)] for n in HOSTILE}
    assert_valid(plot_error_time(curves, tmp_path / "t", title="$_{", ylabel="e"))


def comparison(metric: str) -> Comparison:
    streaming, final, unfinished = Entry("DSG", "dsg"), Entry("SVC", "svc"), Entry("x", "y")
    for shift in (0.0, 0.1):
        rows = [
            {"round": t, "test_error": error + shift, "seconds": t + shift}
            for t, error in ((1, 0.4), (2, 0.2))
        ]
        value = 0.2 + shift if metric == "test_rmse" else 0.8 - shift
        streaming.results.append({"metrics": {metric: value}, "history": rows, "seconds": 9.0})
        final.results.append({"metrics": {metric: 0.9}, "history": [], "seconds": 5.0})
        unfinished.results.append({"metrics": {}, "history": [{"round": 1}], "seconds": 1.0})
    entries = [streaming, final, unfinished]
    return Comparison(weather(), "Iris", 2, entries, {}, ())


def test_classes_are_compared_by_their_share_of_errors(tmp_path: Path, drawn: list[Figure]) -> None:
    for name in ("error-time", "errors-box"):
        block = FIGURES[name](comparison("test_accuracy"), tmp_path / "iris", {})
        assert (tmp_path / f"iris-{name}.png").is_file()
        assert "test error" in vars(block)["caption"]
    curve, point = (np.asarray(line.get_xydata()) for line in drawn[0].axes[0].lines[:2])
    np.testing.assert_allclose(curve, [[1.05, 45.0], [2.05, 25.0]])
    np.testing.assert_allclose(point, [[5.0, 10.0]])
    np.testing.assert_allclose(drawn[1].axes[0].lines[3].get_xdata(), [20.0, 30.0])
    assert drawn[1].axes[0].get_xlabel() == "test error (%)"


def test_regressions_are_compared_in_units_of_the_label(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    FIGURES["errors-box"](comparison("test_rmse"), tmp_path / "iris", {})
    np.testing.assert_allclose(drawn[0].axes[0].lines[3].get_xdata(), [0.2, 0.3])
    assert drawn[0].axes[0].get_xlabel() == "RMSE (units of the label)"
