"""Figures that compare recommenders: participation, and kernels that come near over rounds."""

from __future__ import annotations

from pathlib import Path

from ...run import drawing
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import Curves, DrawFigure, Styles, draw_curves, file_of, spread, traffic


def _participation(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """AUC against the share of users in the kernel (Tables 1 and 2)."""
    points = [
        (
            100.0 * entry.options.get("participation", 1.0),
            *spread(entry, lambda result: float(result["metrics"]["auc"])),
        )
        for entry in comparison.entries
        if entry.reference is None
    ]
    return draw_curves(
        {"FedCFK": points},
        file_of(stem, "participation"),
        f"{comparison.dataset}: AUC against the share of users in the kernel; band: one standard "
        "deviation over repetitions",
        title=f"{comparison.dataset}: recommendations and participation",
        axes=("users whose ratings are in the kernel (%)", "AUC of held-out ratings"),
    )


def _kernel_error(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Error of the normalised kernel over rounds (Figure 1)."""
    curves, looks = Curves(), dict[str, drawing.Style]()
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
    return draw_curves(
        curves,
        file_of(stem, "kernel-error"),
        f"{comparison.dataset}: mean squared difference of the cosine-normalised matrices of all "
        "users and of the rounds so far",
        title=f"{comparison.dataset}: kernel after rounds of random users",
        axes=("round", "error of the normalised kernel (MSE)"),
        styles=looks,
    )


FIGURES: dict[str, DrawFigure] = {
    "participation": _participation,
    "kernel-error": _kernel_error,
    "bytes": traffic,
}
