"""Figures that compare runs of FedCG: residuals, accuracy against an option, traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...methods.hybrid_oracle import ATTACKS
from ...run import plots
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import DrawFigure, Styles, traffic


def _residuals(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Sum of squared residuals over the iterations, mean of the runs that got so far (Figure 6)."""
    curves = {}
    for label, summary in comparison.summaries.items():
        runs = [run for run in summary["squared_residuals"] if len(run) > 1]
        if not runs:
            continue
        length = min(map(len, runs))
        logs = np.log10([[max(v, 1e-300) for v in run[:length]] for run in runs])
        curves[label] = [(k + 1, float(10.0 ** logs[:, k].mean()), 0.0) for k in range(length)]
    path = plots.plot_sweep(
        curves,
        stem.with_name(f"{stem.name}-residual.png"),
        title=f"{comparison.dataset}: residual",
        xlabel="iteration",
        ylabel="sum of squared residuals",
        styles=styles,
    )
    return FigureBlock(
        f"{comparison.dataset}: sum of squared residuals, geometric mean over runs", path
    )


def _accuracy(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Accuracy against the option of a sweep, a line per series (Figure 7)."""
    option = comparison.section.sweep
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for label, summary in comparison.summaries.items():
        values = np.array(summary["draws"]["test_accuracy"], float)
        series = label.rpartition(", ")[0]
        point = (float(summary["options"][option]), float(values.mean()), float(values.std()))
        curves.setdefault(series, []).append(point)
    path = plots.plot_sweep(
        curves,
        stem.with_name(f"{stem.name}-{option}.png"),
        title=f"{comparison.dataset}: accuracy on held-out rows",
        xlabel=f"{option} (number)",
        ylabel="accuracy",
    )
    return FigureBlock(
        f"{comparison.dataset}: accuracy against the number of {option}; band: one standard "
        "deviation over runs",
        path,
    )


def _reconstruction(sampling: str) -> DrawFigure:
    """Errors of reconstructed distances against the number of landmarks (Figure 8)."""

    def draw(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
        curves: dict[str, list[tuple[float, float, float]]] = {}
        for label, summary in comparison.summaries.items():
            if label.rpartition(", ")[0] == sampling:
                for name, text in ATTACKS.items():
                    error = max(summary["metrics"][f"reconstruction_{name}"], 1e-16)
                    point = (float(summary["options"]["landmarks"]), error, 0.0)
                    curves.setdefault(text, []).append(point)
        path = plots.plot_sweep(
            curves,
            stem.with_name(f"{stem.name}-reconstruction-{sampling}.png"),
            title=f"{comparison.dataset}: distances between patients, landmarks {sampling}",
            xlabel="landmarks (number)",
            ylabel="relative error of squared distances",
        )
        return FigureBlock(
            f"{comparison.dataset}, landmarks {sampling}: relative error of the distances between "
            "training rows, from what protocol naive shows the server",
            path,
        )

    return draw


FIGURES: dict[str, DrawFigure] = {
    **{f"reconstruction {sampling}": _reconstruction(sampling) for sampling in "PUN"},
    "residual": _residuals,
    "accuracy": _accuracy,
    "bytes": traffic,
}
