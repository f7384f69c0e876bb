"""Figures of what federated methods cost: test error over exchanges, and over bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...run.entries import Entry
from ...run.report import FigureBlock
from ..comparison import Comparison
from ..error_plots import plot_error_panels, plot_error_time
from .common import DrawAcross, DrawFigure, Styles, error_unit, file_of, final_error

#: Cost -> how a figure calls it, and its unit.
_COSTS = {"exchanges": ("exchanges", 1.0), "bytes": ("MB up and down, all parties", 1e-6)}


def _over(cost: str) -> DrawFigure:
    """Return what draws the test error of each federated method over what it cost so far."""
    words, scale = _COSTS[cost]

    def draw(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
        name, (text, unit, factor) = comparison.dataset, error_unit(comparison)
        path = plot_error_time(
            _curves(comparison, cost, scale, factor),
            file_of(stem, f"error-{cost}"),
            title=f"{name}: {text} over {cost}",
            ylabel=f"{text} ({unit})",
            xlabel=words,
            styles=styles,
        )
        return FigureBlock(
            f"{name}: {text} on held-out rows over {words}; mean and one standard deviation over "
            "runs. Markers: methods with a model at the end only",
            path,
        )

    return draw


def _across(cost: str) -> DrawAcross:
    """Return what draws the same for several data sets, a panel each."""
    words, scale = _COSTS[cost]

    def draw(comparisons: Sequence[Comparison], stem: Path, styles: Styles) -> FigureBlock:
        text, unit, factor = error_unit(comparisons[0])
        path = plot_error_panels(
            {one.dataset: _curves(one, cost, scale, factor) for one in comparisons},
            stem.with_name(f"{stem.name}.png"),
            ylabel=f"{text} ({unit})",
            xlabel=words,
            styles=styles,
        )
        return FigureBlock(
            f"{text} on held-out rows over {words}, data set by data set; mean and one standard "
            "deviation over runs. Markers: methods with a model at the end only",
            path,
        )

    return draw


def _curves(
    comparison: Comparison, cost: str, scale: float, factor: float
) -> dict[str, list[tuple[float, float, float]]]:
    """Return a curve per federated method."""
    return {
        entry.label: _curve(entry, cost, scale, factor)
        for entry in comparison.entries
        if comparison.summaries[entry.label]["exchanges"]
    }


def _curve(
    entry: Entry, cost: str, scale: float, factor: float
) -> list[tuple[float, float, float]]:
    """Return (cost, mean error, std) of an entry's runs, evaluation by evaluation."""
    points = []
    for together in zip(*(_course(result, cost) for result in entry.results), strict=False):
        costs, errors = np.array(together).T
        points.append((scale * costs.mean(), factor * errors.mean(), factor * errors.std()))
    return points


def _course(result: Mapping[str, Any], cost: str) -> list[tuple[float, float]]:
    """Return (cost, error) of a run; its last error only, if its history does not tell costs."""
    found = [
        (row[cost], row["test_error"])
        for row in result["history"]
        if row.get("test_error") is not None and row.get(cost) is not None
    ]
    whole = (
        result["exchanges"] if cost == "exchanges" else result["bytes_up"] + result["bytes_down"]
    )
    return found or [(whole, final_error(result))]


COSTS: dict[str, DrawFigure] = {f"error-{cost}": _over(cost) for cost in _COSTS}
ACROSS: dict[str, DrawAcross] = {f"errors-{cost}": _across(cost) for cost in _COSTS}
