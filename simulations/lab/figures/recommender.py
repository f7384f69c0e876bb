"""Figures that compare recommenders: participation, and kernels that come near over rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...run import drawing, plots
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import DrawFigure, Styles, traffic


def _participation(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """AUC against the share of users in the kernel (Tables 1 and 2)."""
    points = []
    for entry in comparison.entries:
        if entry.reference is None:
            values = np.array([result["metrics"]["auc"] for result in entry.results])
            share = 100.0 * entry.options.get("participation", 1.0)
            points.append((share, float(values.mean()), float(values.std())))
    path = plots.plot_sweep(
        {"FedCFK": points},
        stem.with_name(f"{stem.name}-participation.png"),
        title=f"{comparison.dataset}: recommendations and participation",
        xlabel="users whose ratings are in the kernel (%)",
        ylabel="AUC of held-out ratings",
    )
    return FigureBlock(
        f"{comparison.dataset}: AUC against the share of users in the kernel; band: one standard "
        "deviation over repetitions",
        path,
    )


def _kernel_error(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Error of the normalised kernel over rounds (Figure 1)."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    looks: dict[str, drawing.Style] = {}
    for label, summary in comparison.summaries.items():
        exact = summary["metrics"].get("exact_from")
        name = label if exact is None else f"{label} (exact from round {exact:g})"
        curves[name] = [
            (row["round"], row["kernel_error"], 0.0)
            for row in summary["history"]
            if row["kernel_error"] > 0.0
        ]
        if label in styles:
            looks[name] = styles[label]
    path = plots.plot_sweep(
        curves,
        stem.with_name(f"{stem.name}-kernel-error.png"),
        title=f"{comparison.dataset}: kernel after rounds of random users",
        xlabel="round",
        ylabel="error of the normalised kernel (MSE)",
        styles=looks,
    )
    return FigureBlock(
        f"{comparison.dataset}: mean squared difference of the cosine-normalised matrices of all "
        "users and of the rounds so far",
        path,
    )


FIGURES: dict[str, DrawFigure] = {
    "participation": _participation,
    "kernel-error": _kernel_error,
    "bytes": traffic,
}
