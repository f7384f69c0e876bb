"""Plots and the HTML report of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import plots
from .comparison import (
    PAIR_HEADINGS,
    Comparison,
    best_cells,
    headings,
    pair_rows,
    table_rows,
)
from .presets import Preset
from .report import Block, FactsBlock, FigureBlock, TableBlock, TextBlock, write_report


def write_comparison_report(
    folder: Path, chosen: Preset, comparisons: list[Comparison], result: Mapping[str, Any]
) -> Path:
    """Draw the plots of a comparison and write ``report.html``; return its path."""
    blocks: list[Block] = [TextBlock("What was compared", [chosen.text])]
    styles = plots.assign_styles(entry[0] for entry in chosen.entries)
    for comparison in comparisons:
        blocks.append(
            TableBlock(
                _caption(chosen, comparison),
                headings(chosen, comparison.dataset),
                table_rows(chosen, comparison),
                best_cells(chosen, comparison),
            )
        )
        if comparison.pairs:
            caption = f"{comparison.dataset}: paired differences of the errors over feature draws"
            blocks.append(TableBlock(caption, PAIR_HEADINGS, pair_rows(comparison)))
        blocks += _figures(folder / "plots", chosen, comparison, styles)
        if comparison.notes:
            blocks.append(TextBlock(f"Notes on {comparison.dataset}", list(comparison.notes)))
    blocks.append(TextBlock("How to read the figures", _READING))
    blocks.append(TextBlock("What the server sees", _privacy(comparisons[0])))
    blocks.append(FactsBlock("Settings", _settings(chosen, result)))
    return write_report(
        folder / "report.html",
        title=chosen.title,
        subtitle=f"fedkern compare {chosen.name}",
        blocks=blocks,
    )


_READING = [
    "MSE: squared error of the predictions, each made before the label was known; mean over "
    "clients, samples and feature draws. Labels are scaled to [0, 1].",
    "Regret: a client's summed squared error above that of its best kernel in hindsight; mean and "
    "standard deviation over clients. PerFedAvg has no kernels and therefore no regret.",
    "Exchanges: messages to every client with their replies, the opening one included. MB: arrays "
    "sent by all clients (up) and to them (down). Seconds depend on the machine.",
]


def _caption(chosen: Preset, comparison: Comparison) -> str:
    settings = chosen.data[comparison.dataset]
    shares = len(comparison.entries[0].results)
    draws = f"{shares} feature draws" if shares > 1 else "one feature draw"
    return (
        f"{comparison.dataset}: {settings.clients} clients, {settings.rounds} samples each, "
        f"split {settings.split}, {draws}, engine {chosen.engine}"
    )


def _figures(
    folder: Path, chosen: Preset, comparison: Comparison, styles: Mapping[str, plots.Style]
) -> list[Block]:
    folder.mkdir(parents=True, exist_ok=True)
    stem = comparison.dataset.lower().replace(" ", "-")
    name, summaries = comparison.dataset, comparison.summaries
    blocks: list[Block] = []
    if "mse" in chosen.figures:
        bars = {
            k: (s["metrics"]["mse"], s["metrics"]["mse_std"] if chosen.runs > 1 else None)
            for k, s in summaries.items()
        }
        path = plots.plot_mse_bars(
            bars, folder / f"{stem}-mse.png", title=f"{name}: prediction error", styles=styles
        )
        blocks.append(FigureBlock(f"{name}: mean squared error of each method", path))
    if "regret" in chosen.figures:
        curves = {
            k: [(row["round"], row["regret"]) for row in s["history"]]
            for k, s in summaries.items()
            if s["metrics"]["regret_mean"] is not None and s["method"] != "ofskl"
        }
        path = plots.plot_average_regret(
            curves,
            folder / f"{stem}-regret.png",
            title=f"{name}: average regret of the clients",
            styles=styles,
        )
        blocks.append(FigureBlock(f"{name}: average regret of the clients over time", path))
    if "bytes" in chosen.figures:
        traffic = {k: (int(s["bytes_up"]), int(s["bytes_down"])) for k, s in summaries.items()}
        path = plots.plot_bytes(
            traffic, folder / f"{stem}-bytes.png", title=f"{name}: traffic", styles=styles
        )
        blocks.append(FigureBlock(f"{name}: arrays sent by all clients and to them", path))
    if "sweep" in chosen.figures:
        blocks.append(_sweep(folder / f"{stem}-{chosen.sweep}.png", chosen, comparison))
    return blocks


def _sweep(path: Path, chosen: Preset, comparison: Comparison) -> Block:
    """Regret against the option of a sweep, a line per value of the other options."""
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for label, summary in comparison.summaries.items():
        draws = [
            r["metrics"]["regret_mean"]
            for e in comparison.entries
            if e.label == label
            for r in e.results
        ]
        mean = sum(draws) / len(draws)
        spread = (sum((d - mean) ** 2 for d in draws) / len(draws)) ** 0.5
        series = label.split(f", {chosen.sweep}")[0]
        curves.setdefault(series, []).append(
            (float(summary["options"][chosen.sweep]), mean, spread)
        )
    plots.plot_sweep(
        curves,
        path,
        title=f"{comparison.dataset}: regret against the {chosen.sweep} rate",
        xlabel=f"{chosen.sweep} rate",
        ylabel="mean regret per client (squared error)",
    )
    return FigureBlock(
        f"{comparison.dataset}: mean regret per client after the last sample; band: one standard "
        "deviation over feature draws",
        path,
    )


def _privacy(comparison: Comparison) -> list[str]:
    lines = []
    for entry in comparison.entries:
        if entry.strategy is not None:
            seen = "; ".join(entry.strategy.privacy().get("server_sees", []))
            lines.append(f"{entry.label}: {seen}.")
    return lines


def _settings(chosen: Preset, result: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "engine": chosen.engine,
        "seed": str(result["seed"]),
        "feature draws": str(chosen.runs),
    }
    for label, method, options in chosen.entries:
        text = ", ".join(f"{k} {v}" for k, v in options.items()) or "defaults"
        facts[label] = f"{method}: {text}"
    return {**facts, **{f"version of {k}": v for k, v in result["versions"].items()}}
