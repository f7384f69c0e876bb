"""Figures that compare runs of FedCG: residuals, accuracy against an option, traffic."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...methods.hybrid import ATTACKS
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import (
    Curves,
    DrawFigure,
    Styles,
    against_option,
    draw_curves,
    file_of,
    traffic,
)


def _residuals(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Sum of squared residuals over the iterations, mean of the runs that got so far (Figure 6)."""
    curves = Curves()
    for label, summary in comparison.summaries.items():
        runs = [run for run in summary["squared_residuals"] if len(run) > 1]
        if not runs:
            continue
        length = min(map(len, runs))
        logs = np.log10([[max(v, 1e-300) for v in run[:length]] for run in runs])
        curves[label] = [(k + 1, float(10.0 ** logs[:, k].mean()), 0.0) for k in range(length)]
    return draw_curves(
        curves,
        file_of(stem, "residual"),
        f"{comparison.dataset}: sum of squared residuals, geometric mean over runs",
        title=f"{comparison.dataset}: residual",
        axes=("iteration", "sum of squared residuals"),
        styles=styles,
    )


def _accuracy(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Accuracy against the option of a sweep, a line per series (Figure 7)."""
    option = comparison.section.sweep
    return draw_curves(
        against_option(comparison, lambda result: float(result["metrics"]["test_accuracy"])),
        file_of(stem, option),
        f"{comparison.dataset}: accuracy against the number of {option}; band: one standard "
        "deviation over runs",
        title=f"{comparison.dataset}: accuracy on held-out rows",
        axes=(f"{option} (number)", "accuracy"),
    )


def _reconstruction(sampling: str) -> DrawFigure:
    """Errors of reconstructed distances against the number of landmarks (Figure 8)."""

    def draw(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
        curves = Curves()
        for label, summary in comparison.summaries.items():
            if label.rpartition(", ")[0] == sampling:
                for name, text in ATTACKS.items():
                    error = max(summary["metrics"][f"reconstruction_{name}"], 1e-16)
                    point = (float(summary["options"]["landmarks"]), error, 0.0)
                    curves.setdefault(text, []).append(point)
        return draw_curves(
            curves,
            file_of(stem, f"reconstruction-{sampling}"),
            f"{comparison.dataset}, landmarks {sampling}: relative error of the distances between "
            "training rows, from what protocol naive shows the server",
            title=f"{comparison.dataset}: distances between patients, landmarks {sampling}",
            axes=("landmarks (number)", "relative error of squared distances"),
        )

    return draw


FIGURES: dict[str, DrawFigure] = {
    **{f"reconstruction {sampling}": _reconstruction(sampling) for sampling in "PUN"},
    "residual": _residuals,
    "accuracy": _accuracy,
    "bytes": traffic,
}
