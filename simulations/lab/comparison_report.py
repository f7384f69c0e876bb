"""Write the HTML report and the JSON of comparisons."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedkern_flwr.tables.table import how_many

from ..methods.experiment import versions
from ..run import drawing
from ..run.data import Settings
from ..run.provenance import source_of
from ..run.report import Block, FactsBlock, TableBlock, TextBlock, first_blocks, write_report
from .columns import Column
from .comparison import (
    HEADINGS,
    READING,
    Comparison,
    best_cells,
    columns_of,
    count_misses,
    headings,
    paper_figures,
    seen_tables,
    table_rows,
    verdict,
)
from .figures import ACROSS, FIGURES
from .presets import PAPERS
from .sections import Preset, Section

_COUNTED = (
    "Counted on the data set that a table names. On the others the same methods show the same "
    "kinds of bytes, in other amounts."
)


def write_comparison_report(
    folder: Path,
    compared: Sequence[tuple[Preset, list[Comparison]]],
    *,
    seed: int,
    left_out: Sequence[str] = (),
    alone: bool = False,
) -> Path:
    """Draw the plots and write ``report.html``, of one preset (``alone``) or of several."""
    absent: list[Block] = [TextBlock("Left out", list(left_out))] if left_out else []
    if alone:
        ((chosen, comparisons),) = compared
        return write_report(
            folder / "report.html",
            title=chosen.title,
            subtitle=f"fedkern compare {chosen.name}",
            blocks=_blocks(folder / "plots", chosen, comparisons, seed) + absent,
        )
    blocks = [*absent]
    for chosen, comparisons in compared:
        blocks.append(TextBlock(chosen.title, [f"fedkern compare {chosen.name}"]))
        blocks += _blocks(folder / "plots" / chosen.name, chosen, comparisons, seed)
    papers = all(chosen.name in PAPERS for chosen, _ in compared)
    what = "reproductions of the papers" if papers else "comparisons"
    return write_report(
        folder / "report.html",
        title=f"Federated kernel learning: {what}",
        subtitle="fedkern compare " + " ".join(chosen.name for chosen, _ in compared),
        blocks=blocks,
    )


def comparison_result(chosen: Preset, comparisons: list[Comparison], seed: int) -> dict[str, Any]:
    """Return a preset's results for JSON; infinite and missing numbers are null."""
    found = {
        "preset": chosen.name,
        "engine": "in-process",
        "seed": seed,
        "runs": chosen.runs,
        "versions": versions(),
        "datasets": {
            comparison.dataset: {
                "settings": _settings(chosen.data[comparison.dataset]),
                "source": source_of(chosen.data[comparison.dataset]),
                "notes": list(comparison.notes),
                "table": {
                    "caption": _caption(chosen, comparison),
                    "headings": headings(comparison),
                    "rows": table_rows(comparison),
                },
                "methods": comparison.summaries,
                "paired_differences": [dataclasses.asdict(pair) for pair in comparison.pairs],
                "paper_figures": [
                    {**dataclasses.asdict(figure), "misses": figure.misses}
                    for figure in paper_figures(comparison)
                ],
            }
            for comparison in comparisons
        },
    }
    finite: dict[str, Any] = json.loads(json.dumps(found), parse_constant=lambda _: None)
    return finite


def _settings(settings: Settings) -> dict[str, Any]:
    """Return settings with names of files, not paths: these may be private."""
    found = dataclasses.asdict(settings)
    if "party" in found:
        found["party"] = [Path(file).name for file in found["party"]]
    return {**found, "data": Path(settings.data).name}


def _blocks(
    folder: Path, chosen: Preset, comparisons: Sequence[Comparison], seed: int
) -> list[Block]:
    """Return the blocks of a preset."""
    verdicts = [text for text in map(verdict, comparisons) if text]
    blocks: list[Block] = [TextBlock("Verdict", verdicts)] if verdicts else []
    tables = {one.dataset: one.first_table for one in comparisons}
    for dataset, first in tables.items():
        alike = [name for name, other in tables.items() if other == first]  # the same data
        blocks += first_blocks(first, ", ".join(alike)) if dataset == alike[0] else []
    blocks.append(TextBlock("What was compared", [chosen.text]))
    styles = drawing.assign_styles(entry[0] for entry in chosen.entries)
    reading: dict[str, list[str]] = {}
    seen: list[Block] = []
    audited: list[list[str]] = []
    for section in chosen.sections:
        own = [c for c in comparisons if c.section is section]
        if section.title:
            blocks.append(TextBlock(section.title, [section.text]))
        if section.figures or section.across:
            folder.mkdir(parents=True, exist_ok=True)
        for comparison in own:
            blocks += _results(folder, chosen, comparison, styles)
        for name in section.across:
            stem = folder / _slug(f"{section.title} {name}")
            blocks.append(ACROSS[name](own, stem, styles))
        shown = [column for one in own for column in columns_of(one, wide=True).values()]
        _define(reading, section, shown)
        labels = [entry[0] for entry in section.entries]
        if labels not in audited:  # several sections may compare the same methods
            audited.append(labels)
            seen += seen_tables(own[0])
    blocks += _misses(comparisons)
    defined = [_join(texts) for texts in reading.values()]
    blocks.append(TextBlock("How to read the figures", [*defined, *READING]))
    blocks += [
        TextBlock("Who saw what", [_COUNTED] if len(comparisons) > len(audited) else ()),
        *seen,
    ]
    sources = {name: source_of(settings) for name, settings in chosen.data.items()}
    blocks.append(FactsBlock("Where the data comes from", sources))
    facts = {"seed": str(seed), "draws": str(chosen.runs)}
    blocks.append(FactsBlock("Settings", facts | _options(chosen)))
    blocks.append(FactsBlock("Versions", versions()))
    return blocks


def _define(reading: dict[str, list[str]], section: Section, shown: Sequence[Column]) -> None:
    """Add the definitions of a section's columns, by the defined word."""
    texts = [column.reading for column in shown]
    for text in filter(None, (*texts, *section.family.reading)):
        known = reading.setdefault(text.partition(":")[0], [])
        if text not in known:
            known.append(text)


def _join(texts: Sequence[str]) -> str:
    """Join definitions of a word that differ between sections."""
    first, *others = texts
    return " In other sections: ".join([first, *(o.partition(": ")[2] for o in others)])


def _results(
    folder: Path, chosen: Preset, comparison: Comparison, styles: Mapping[str, drawing.Style]
) -> list[Block]:
    section, dataset = comparison.section, comparison.dataset
    blocks: list[Block] = [
        TableBlock(
            _caption(chosen, comparison),
            headings(comparison, wide=True),
            table_rows(comparison, wide=True),
            best_cells(comparison),
        )
    ]
    stem = folder / _slug(dataset)
    for name in section.figures:
        blocks.append(FIGURES[name](comparison, stem, styles))
    blocks += columns_table(comparison.columns, dataset)
    if comparison.notes:
        blocks.append(TextBlock(f"Notes on {dataset}", list(comparison.notes)))
    return blocks


def columns_table(columns: Sequence[Mapping[str, Any]], dataset: str) -> list[Block]:
    """Return a table of the encoding of columns; none where all are alike."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for one in columns:
        kind = one["kind"], one["text"], str(one["outputs"])
        alike.setdefault(kind, []).append(one["column"])
    if len(alike) < 2:
        return []
    rows = [[", ".join(names), *kind] for kind, names in alike.items()]
    caption = f"Encoding of the columns of {dataset}, by the training rows"
    return [TableBlock(caption, ["columns", "type", "encoding", "columns each"], rows)]


def _misses(comparisons: Sequence[Comparison]) -> list[Block]:
    """Return the figures of the paper that ours miss."""
    figures = [figure for comparison in comparisons for figure in paper_figures(comparison)]
    if not figures:
        return []
    counts = count_misses(figures)
    if not counts["missed"]:
        text = f"All {counts['figures']} figures of the paper lie within the spread of ours."
        return [TextBlock("The paper's figures", [text])]
    text = (
        f"{counts['missed']} of {counts['figures']} figures differ from the paper's by more than "
        f"the standard deviation of ours over the draws, {counts['better']} for the better. A "
        "single draw has no spread: there every difference counts."
    )
    rows = [figure.cells() for figure in figures if figure.misses]
    table = TableBlock("Figures that miss the paper's by more than their spread", HEADINGS, rows)
    return [TextBlock("The paper's figures", [text]), table]


def _slug(text: str) -> str:
    return "-".join(text.lower().replace(",", "").split())


def _caption(chosen: Preset, comparison: Comparison) -> str:
    repeated = how_many(len(comparison.entries[0].results), "run")
    caption = comparison.section.caption(comparison.dataset)
    return f"{caption}, {repeated}"


def _options(chosen: Preset) -> dict[str, str]:
    """Return the options of each entry, with the data set where they differ."""
    found: dict[str, str] = {}
    for section in chosen.sections:
        for label, method, options in section.entries:
            text = ", ".join(f"{k} {v}" for k, v in options.items()) or "defaults"
            text = f"{method}: {text}"
            if found.setdefault(label, text) != text:
                found[f"{label} ({next(iter(section.data))})"] = text
    return found
