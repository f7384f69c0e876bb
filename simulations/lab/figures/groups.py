"""Figures that compare runs of HierarchicalSVM: convergence, and sweeps within and over data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import (
    DrawAcross,
    DrawFigure,
    Styles,
    Value,
    against_data,
    against_option,
    draw_curves,
    file_of,
)

_BAND = "band: one standard deviation over runs"
#: What is swept over data sets: name -> how a figure calls it, and its value for one of them.
_SWEPT: dict[str, tuple[str, Callable[[Any], float]]] = {
    "groups": ("groups", lambda s: float(len(s.sizes))),
    "users": ("users", lambda s: float(s.users)),
    "ratio": ("users of the larger group / of the smaller", lambda s: max(s.sizes) / min(s.sizes)),
}
#: What is drawn: name -> how a figure calls it, and what it is of a draw's result.
_DRAWN: dict[str, tuple[str, Value]] = {
    "iterations": ("iterations", lambda r: _metric(r, "iterations")),
    "reached": (
        "iterations to 1e-3 of the pooled optimum",
        lambda r: _metric(r, "iterations_to_pooled"),
    ),
    "accuracy": ("accuracy on held-out rows", lambda r: _metric(r, "test_accuracy")),
    "seconds": ("seconds", lambda r: float(r["seconds"])),
}


def _consensus(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """|z_t - z_{t-1}| over the iterations of the first run (the paper's Figure 9)."""
    curves = {
        entry.label: [
            (float(row["round"]), _floor(row["consensus_difference"]), 0.0)
            for row in entry.results[0]["history"]
            if row.get("consensus_difference") is not None
        ]
        for entry in comparison.entries
    }
    return draw_curves(
        {label: points for label, points in curves.items() if points},
        file_of(stem, "consensus"),
        f"{comparison.dataset}: distance of the global model from that of the iteration before, "
        "first run",
        title=f"{comparison.dataset}: change of the global model",
        axes=("iteration", "consensus difference |z - z before|"),
        styles=styles,
    )


def _sweep(name: str) -> DrawFigure:
    """Return what draws a figure against the option of a sweep, a line per series."""
    what, value = _DRAWN[name]

    def draw(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
        dataset, option = comparison.dataset, comparison.section.sweep
        words = option.replace("_", " ")
        return draw_curves(
            against_option(comparison, value),
            file_of(stem, f"{option}-{name}"),
            f"{dataset}: {what} against {words}; {_BAND}",
            title=f"{dataset}: {what}",
            axes=(words, what),
            styles=styles,
        )

    return draw


def _over_data(name: str, swept: str) -> DrawAcross:
    """Return what draws a figure against a property of the data sets of a section."""
    (against, place), (what, value) = _SWEPT[swept], _DRAWN[name]

    def draw(comparisons: Sequence[Comparison], stem: Path, styles: Styles) -> FigureBlock:
        title = comparisons[0].section.title or what
        return draw_curves(
            against_data(comparisons, place, value),
            stem.with_name(f"{stem.name}.png"),
            f"{title}: {what} against {against}; {_BAND}",
            title=title,
            axes=(against, what),
            styles=styles,
        )

    return draw


def _metric(result: Mapping[str, Any], name: str) -> float:
    found = result["metrics"].get(name)
    return math.nan if found is None else float(found)


def _floor(value: float) -> float:
    """Return what a logarithmic axis can show."""
    return max(value, 1e-12)


FIGURES: dict[str, DrawFigure] = {
    "consensus": _consensus,
    **{f"sweep-{name}": _sweep(name) for name in _DRAWN},
}

ACROSS: dict[str, DrawAcross] = {
    f"{name}-over-{swept}": _over_data(name, swept) for name in _DRAWN for swept in _SWEPT
}
