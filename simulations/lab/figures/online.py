"""Figures that compare online methods: error, regret, traffic and sweeps of an option."""

from __future__ import annotations

from pathlib import Path

from ...run import plots
from ...run.report import FigureBlock
from ..comparison import Comparison
from .common import DrawFigure, Styles, against_option, draw_curves, file_of, traffic


def _errors(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    name, several = comparison.dataset, comparison.runs > 1
    bars = {
        k: (s["metrics"]["mse"], s["metrics"]["mse_std"] if several else None)
        for k, s in comparison.summaries.items()
    }
    path = plots.plot_mse_bars(
        bars, file_of(stem, "mse"), title=f"{name}: prediction error", styles=styles
    )
    return FigureBlock(f"{name}: mean squared error of each method", path)


def _regrets(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    name = comparison.dataset
    curves = {
        k: [(row["round"], row["regret"]) for row in s["history"]]
        for k, s in comparison.summaries.items()
        if s["metrics"]["regret_mean"] is not None and s["method"] != "ofskl"
    }
    path = plots.plot_average_regret(
        curves,
        file_of(stem, "regret"),
        title=f"{name}: average regret of the clients",
        styles=styles,
    )
    return FigureBlock(f"{name}: average regret of the clients over time", path)


def _sweep(comparison: Comparison, stem: Path, _: Styles) -> FigureBlock:
    """Regret against the option of a sweep, a line per value of the other options."""
    option = comparison.section.sweep
    return draw_curves(
        against_option(comparison, lambda result: float(result["metrics"]["regret_mean"])),
        file_of(stem, option),
        f"{comparison.dataset}: mean regret per client after the last sample; band: one standard "
        "deviation over feature draws",
        title=f"{comparison.dataset}: regret against the {option} rate",
        axes=(f"{option} rate", "mean regret per client (squared error)"),
    )


FIGURES: dict[str, DrawFigure] = {
    "mse": _errors,
    "regret": _regrets,
    "bytes": traffic,
    "sweep": _sweep,
}
