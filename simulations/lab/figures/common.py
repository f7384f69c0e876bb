"""What figures of comparisons have in common, and the one that every family draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...methods.pooled import error_of
from ...run import drawing, plots
from ...run.data import Settings
from ...run.entries import Entry
from ...run.report import Block, FigureBlock
from ..comparison import Comparison

Styles = Mapping[str, drawing.Style]
#: Called with the comparison, the path of the figure without its end ``-<name>.png``, and the
#: styles of the entries.
DrawFigure = Callable[[Comparison, Path, Styles], Block]
#: The same over the comparisons of a section on several data sets.
DrawAcross = Callable[[Sequence[Comparison], Path, Styles], Block]
#: Series -> points (x, mean, standard deviation).
Curves = dict[str, list[tuple[float, float, float]]]
#: Called with the result of a draw.
Value = Callable[[Mapping[str, Any]], float]


def traffic(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw what all clients sent and got."""
    name = comparison.dataset
    traffic = {
        k: (int(s["bytes_up"]), int(s["bytes_down"]))
        for k, s in comparison.summaries.items()
        if s["exchanges"]
    }
    path = plots.plot_bytes(
        traffic, file_of(stem, "bytes"), title=f"{name}: traffic", styles=styles
    )
    return FigureBlock(f"{name}: arrays sent by all clients and to them", path)


def file_of(stem: Path, name: str) -> Path:
    """Return the path of a figure."""
    return stem.with_name(f"{stem.name}-{name}.png")


def draw_curves(
    curves: Curves,
    path: Path,
    caption: str,
    *,
    title: str,
    axes: tuple[str, str],
    styles: Styles | None = None,
) -> FigureBlock:
    """Draw curves with bands; ``axes`` says what x and y are."""
    xlabel, ylabel = axes
    drawn = plots.plot_sweep(curves, path, title=title, xlabel=xlabel, ylabel=ylabel, styles=styles)
    return FigureBlock(caption, drawn)


def against_option(comparison: Comparison, value: Value) -> Curves:
    """Return a curve per series, the labels but for their end, over the option that is swept."""
    option, curves = comparison.section.sweep, Curves()
    for entry in comparison.entries:
        if option in entry.options:
            x = float(np.mean(entry.options[option]))
            series = entry.label.rpartition(", ")[0] or entry.label
            curves.setdefault(series, []).append((x, *spread(entry, value)))
    return curves


def against_data(
    comparisons: Sequence[Comparison], place: Callable[[Settings], float], value: Value
) -> Curves:
    """Return a curve per entry over a property of the data sets."""
    curves = Curves()
    for comparison in comparisons:
        x = place(comparison.section.data[comparison.dataset])
        for entry in comparison.entries:
            curves.setdefault(entry.label, []).append((x, *spread(entry, value)))
    return curves


def spread(entry: Entry, value: Value) -> tuple[float, float]:
    """Return mean and standard deviation over an entry's draws."""
    values = np.array([value(result) for result in entry.results])
    return float(values.mean()), float(values.std())


def error_unit(comparison: Comparison) -> tuple[str, str, float]:
    """Return what the error is called, its unit, and the factor that brings it there."""
    if any("test_rmse" in r["metrics"] for entry in comparison.entries for r in entry.results):
        return "RMSE", "units of the label", 1.0
    return "test error", "%", 100.0


def final_error(result: Mapping[str, Any]) -> float:
    """Return the error of a draw on held-out rows, NaN where it has none."""
    metrics = result["metrics"]
    known = any(metrics.get(name) is not None for name in ("test_accuracy", "test_rmse"))
    return error_of(metrics) if known else math.nan
