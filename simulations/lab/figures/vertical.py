"""Figures that compare vertical methods: test errors over training time and over runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...run.entries import Entry
from ...run.report import FigureBlock
from ..comparison import Comparison
from ..error_plots import plot_error_boxes, plot_error_time
from ..topologies import SERVER_NOTE, plot_topologies
from .common import (
    DrawAcross,
    DrawFigure,
    Styles,
    against_data,
    draw_curves,
    error_unit,
    file_of,
    final_error,
    traffic,
)
from .costs import COSTS


def _error_time(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Test error against the training time, mean of the runs (Figure 3)."""
    name, (text, unit, scale) = comparison.dataset, error_unit(comparison)
    path = plot_error_time(
        {entry.label: _curve(entry, scale) for entry in comparison.entries},
        file_of(stem, "error-time"),
        title=f"{name}: {text} against training time",
        ylabel=f"{text} ({unit})",
        styles=styles,
    )
    return FigureBlock(
        f"{name}: {text} on held-out rows against the seconds of training, without those of "
        "evaluations and cross-validation; mean and one standard deviation over runs. Markers: "
        "methods with a model at the end only",
        path,
    )


def _errors_box(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Test errors of the runs of each method (Figure 6)."""
    name, (text, unit, scale) = comparison.dataset, error_unit(comparison)
    path = plot_error_boxes(
        {
            entry.label: [scale * final_error(result) for result in entry.results]
            for entry in comparison.entries
            if entry.method != "constant"  # others would be hard to tell apart beside it
        },
        file_of(stem, "errors-box"),
        title=f"{name}: {text} over runs",
        xlabel=f"{text} ({unit})",
        styles=styles,
    )
    return FigureBlock(
        f"{name}: {text} on held-out rows; a dot per run, quartiles and median as a box", path
    )


def _curve(entry: Entry, scale: float) -> list[tuple[float, float, float]]:
    """Return (seconds, mean error, std) of an entry's runs, evaluation by evaluation."""
    runs = [_evaluations(result) for result in entry.results]
    points = []
    for together in zip(*runs, strict=False):
        seconds, errors = np.array(together).T
        points.append((float(seconds.mean()), scale * errors.mean(), scale * errors.std()))
    return points


def _evaluations(result: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return (seconds, error) of a run; its last error only, if its history has none."""
    found = [
        (row["seconds"], row["test_error"])
        for row in result["history"]
        if row.get("test_error") is not None and row.get("seconds") is not None
    ]
    return found or [(result["seconds"], final_error(result))]


def _topologies(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Draw link times of star, ring and tree (Figure 4)."""
    path = plot_topologies(file_of(stem, "topologies"))
    return FigureBlock(
        "Link time of one sum by star, ring, tree and two trees, computed: 1 ms of latency, "
        f"100 Mbit/s. {SERVER_NOTE}",
        path,
    )


def _time_size(comparisons: Sequence[Comparison], stem: Path, styles: Styles) -> FigureBlock:
    """Draw the seconds of a run against the number of training rows (Figure 5)."""
    return draw_curves(
        against_data(comparisons, _training_rows, lambda result: float(result["seconds"])),
        stem.with_name(f"{stem.name}.png"),
        "Seconds of a run, masking, training and prediction included",
        title="Time of a run against the number of training rows",
        axes=("training rows", "seconds"),
        styles=styles,
    )


def _training_rows(settings: Any) -> float:
    return float(settings.train_rows)


ACROSS: dict[str, DrawAcross] = {"time-size": _time_size}

FIGURES: dict[str, DrawFigure] = {
    "topologies": _topologies,
    "error-time": _error_time,
    "errors-box": _errors_box,
    "bytes": traffic,
    **COSTS,
}
