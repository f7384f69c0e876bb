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
from .report import Block, FactsBlock, TableBlock, TextBlock, write_report


def write_comparison_report(
    folder: Path, chosen: Preset, comparisons: list[Comparison], result: Mapping[str, Any]
) -> Path:
    """Draw the plots of a comparison and write ``report.html``; return its path."""
    blocks: list[Block] = [TextBlock("What was compared", [chosen.text])]
    styles = plots.assign_styles(entry[0] for entry in chosen.entries)
    reading: list[str] = []
    privacy: list[str] = []
    for section in chosen.sections:
        own = [c for c in comparisons if c.section is section]
        if section.title:
            blocks.append(TextBlock(section.title, [section.text]))
        for comparison in own:
            blocks += _results(folder / "plots", chosen, comparison, styles)
        for name in section.across:
            blocks.append(section.family.across[name](own, folder / "plots" / name, styles))
        reading += section.family.reading
        privacy += _privacy(own[0])
    reading = [*dict.fromkeys(reading), _READING_COSTS]
    blocks.append(TextBlock("How to read the figures", reading))
    blocks.append(TextBlock("What the server sees", privacy))
    blocks.append(FactsBlock("Settings", _settings(chosen, result)))
    return write_report(
        folder / "report.html",
        title=chosen.title,
        subtitle=f"fedkern compare {chosen.name}",
        blocks=blocks,
    )


_READING_COSTS = (
    "Exchanges: messages to every client with their replies, the opening one included. MB: arrays "
    "sent by all clients (up) and to them (down). Seconds depend on the machine."
)


def _results(
    folder: Path, chosen: Preset, comparison: Comparison, styles: Mapping[str, plots.Style]
) -> list[Block]:
    section, dataset = comparison.section, comparison.dataset
    blocks: list[Block] = [
        TableBlock(
            _caption(chosen, comparison),
            headings(section, dataset),
            table_rows(comparison),
            best_cells(comparison),
        )
    ]
    if comparison.pairs:
        caption = f"{dataset}: paired differences of the errors over feature draws"
        blocks.append(TableBlock(caption, PAIR_HEADINGS, pair_rows(comparison)))
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / dataset.lower().replace(" ", "-")
    for name in section.figures:
        blocks.append(section.family.figures[name](comparison, stem, styles))
    if comparison.notes:
        blocks.append(TextBlock(f"Notes on {dataset}", list(comparison.notes)))
    return blocks


def _caption(chosen: Preset, comparison: Comparison) -> str:
    settings = comparison.section.data[comparison.dataset]
    draws = comparison.section.family.draws
    shares = len(comparison.entries[0].results)
    repeated = f"{shares} {draws}" if shares > 1 else f"one {draws.removesuffix('s')}"
    return f"{comparison.dataset}: {settings.describe()}, {repeated}, engine {chosen.engine}"


def _privacy(comparison: Comparison) -> list[str]:
    lines = []
    for entry in comparison.entries:
        seen = "; ".join(entry.results[0]["privacy"].get("server_sees", []))
        lines.append(f"{entry.label}: {seen}.")
    return lines


def _settings(chosen: Preset, result: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "engine": chosen.engine,
        "seed": str(result["seed"]),
        chosen.sections[0].family.draws: str(chosen.runs),
    }
    for label, method, options in chosen.entries:
        text = ", ".join(f"{k} {v}" for k, v in options.items()) or "defaults"
        facts[label] = f"{method}: {text}"
    return {**facts, **{f"version of {k}": v for k, v in result["versions"].items()}}
