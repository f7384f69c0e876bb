"""Figures that compare runs of HierarchicalSVM: convergence, and sweeps within and over data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...methods.groups_settings import HierarchicalSettings
from ...run import plots
from ...run.entries import Entry
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import DrawAcross, DrawFigure, Styles, traffic

Point = tuple[float, float, float]

#: What is swept over data sets: name -> how a figure calls it, and its value for one of them.
_SWEPT: dict[str, tuple[str, Callable[[HierarchicalSettings], float]]] = {
    "groups": ("groups", lambda s: float(len(s.sizes))),
    "users": ("users", lambda s: float(s.users)),
    "ratio": ("users of the larger group / of the smaller", lambda s: max(s.sizes) / min(s.sizes)),
}
#: What is drawn: name -> how a figure calls it, and what it is of a draw's result.
_DRAWN: dict[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "iterations": ("iterations", lambda r: _metric(r, "iterations")),
    "reached": (
        "iterations to 1e-3 of the pooled optimum",
        lambda r: _metric(r, "iterations_to_pooled"),
    ),
    "accuracy": ("accuracy on held-out rows", lambda r: _metric(r, "test_accuracy")),
    "gap": ("excess objective / pooled optimum", lambda r: _floor(_metric(r, "objective_gap"))),
    "seconds": ("seconds", lambda r: float(r["seconds"])),
}


def _consensus(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """|z_t - z_{t-1}| over the iterations of the first run (the paper's Figure 9)."""
    curves = {
        label: [
            (float(row["round"]), _floor(row["consensus_difference"]), 0.0)
            for row in summary["history"]
            if row.get("consensus_difference") is not None
        ]
        for label, summary in comparison.summaries.items()
    }
    path = plots.plot_sweep(
        {label: points for label, points in curves.items() if points},
        stem.with_name(f"{stem.name}-consensus.png"),
        title=f"{comparison.dataset}: change of the global model",
        xlabel="iteration",
        ylabel="consensus difference |z - z before|",
        styles=styles,
    )
    return FigureBlock(
        f"{comparison.dataset}: distance of the global model from that of the iteration before, "
        "first run",
        path,
    )


def _sweep(name: str) -> DrawFigure:
    """Return what draws a figure against the option of a sweep, a line per series."""
    ylabel, value = _DRAWN[name]

    def draw(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
        option = comparison.section.sweep
        curves: dict[str, list[Point]] = {}
        for entry in comparison.entries:
            if option in entry.options:
                given = entry.options[option]
                x = float(np.mean(given))
                curves.setdefault(_series(entry.label), []).append((x, *_spread(entry, value)))
        path = plots.plot_sweep(
            curves,
            stem.with_name(f"{stem.name}-{option}-{name}.png"),
            title=f"{comparison.dataset}: {ylabel}",
            xlabel=option.replace("_", " "),
            ylabel=ylabel,
            styles=styles,
        )
        return FigureBlock(
            f"{comparison.dataset}: {ylabel} against {option.replace('_', ' ')}; band: one "
            "standard deviation over runs",
            path,
        )

    return draw


def _over_data(name: str, swept: str) -> DrawAcross:
    """Return what draws a figure against a property of the data sets of a section."""
    (xlabel, place), (ylabel, value) = _SWEPT[swept], _DRAWN[name]

    def draw(comparisons: Sequence[Comparison], stem: Path, styles: Styles) -> FigureBlock:
        curves: dict[str, list[Point]] = {}
        title = comparisons[0].section.title or ylabel
        for comparison in comparisons:
            settings = comparison.section.data[comparison.dataset]
            x = place(cast(HierarchicalSettings, settings))
            for entry in comparison.entries:
                curves.setdefault(entry.label, []).append((x, *_spread(entry, value)))
        path = plots.plot_sweep(
            curves,
            stem.with_name(f"{stem.name}.png"),
            title=title,
            xlabel=xlabel,
            ylabel=ylabel,
            styles=styles,
        )
        return FigureBlock(
            f"{title}: {ylabel} against {xlabel}; band: one standard deviation over runs", path
        )

    return draw


def _series(label: str) -> str:
    return label.rpartition(", ")[0] or label


def _spread(entry: Entry, value: Callable[[Mapping[str, Any]], float]) -> tuple[float, float]:
    """Return mean and standard deviation over an entry's draws."""
    values = np.array([value(result) for result in entry.results])
    return float(values.mean()), float(values.std())


def _metric(result: Mapping[str, Any], name: str) -> float:
    found = result["metrics"].get(name)
    return math.nan if found is None else float(found)


def _floor(value: float) -> float:
    """Return what a logarithmic axis can show."""
    return max(value, 1e-12)


FIGURES: dict[str, DrawFigure] = {
    "consensus": _consensus,
    **{f"sweep-{name}": _sweep(name) for name in _DRAWN},
    "bytes": traffic,
}

ACROSS: dict[str, DrawAcross] = {
    f"{name}-over-{swept}": _over_data(name, swept) for name in _DRAWN for swept in _SWEPT
}
