"""Run a section of a preset on one data set and lay its figures out as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .data import Prepared
from .engines import Engine
from .entries import Entry
from .experiment import Progress, run_entries
from .format import milli
from .paired import PairedDifference, paired_differences
from .presets import Section
from .references import summarise_reference


@dataclass(frozen=True)
class Comparison:
    """Results of a section of a preset on one data set.

    Attributes
    ----------
    section : Section
    dataset : str
    runs : int
        Draws per entry.
    entries : list of Entry
    summaries : dict
        Label -> what the family's :meth:`~Family.summarise` returns, with what it keeps of all
        draws (the mean squared errors as ``mse_draws``); of a reference method what
        :func:`~fedkern_flwr.simulations.references.summarise_reference` returns.
    notes : tuple of str
        What was done to the data.
    pairs : tuple of PairedDifference
        Methods that the paper ranks, compared draw by draw.
    """

    section: Section
    dataset: str
    runs: int
    entries: list[Entry]
    summaries: dict[str, dict[str, Any]]
    notes: tuple[str, ...]
    pairs: tuple[PairedDifference, ...] = ()


PAIR_HEADINGS = ("better in the paper", "than", "difference (10⁻³)", "std", "wins", "p", "order")


def pair_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row of text per paired difference."""
    return [
        [
            pair.better,
            pair.worse,
            milli(pair.mean),
            milli(pair.std),
            f"{pair.wins} of {pair.draws}",
            f"{pair.p_value:.1e}",
            "reversed" if pair.reversed else "holds",
        ]
        for pair in comparison.pairs
    ]


def compare_on(
    section: Section,
    dataset: str,
    prepared: Prepared,
    *,
    engine: Engine,
    seed: int,
    runs: int,
    progress: Progress,
) -> Comparison:
    """Run all entries of a section on the same clients, one engine for all."""
    family, entries = section.family, section.fresh_entries()
    run_entries(
        entries,
        prepared,
        engine=engine,
        seed=seed,
        runs=runs,
        progress=progress,
        measure=lambda strategy: family.measure(strategy, prepared, {}),
    )
    summaries = {}
    for entry in entries:
        if entry.reference is None:
            summary = {**family.summarise(entry), **family.per_draw(entry)}
        else:
            summary = summarise_reference(entry)
        summary["method"], summary["options"] = entry.method, entry.options
        summaries[entry.label] = summary
    pairs = tuple(paired_differences(summaries, section.ranks))
    return Comparison(section, dataset, runs, entries, summaries, prepared.notes, pairs)


def headings(section: Section, dataset: str) -> list[str]:
    """Return the headings of the table."""
    found, paper = ["method"], section.paper.get(dataset, {})
    for name in section.columns:
        found += section.family.columns[name].headings
        found += ["paper"] if name in paper else []
    return found


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row of text per method; figures of the paper stand beside ours."""
    section = comparison.section
    paper = section.paper.get(comparison.dataset, {})
    rows = []
    for label, summary in comparison.summaries.items():
        row = [label]
        for name in section.columns:
            column = section.family.columns[name]
            row += column.cells(summary)
            row += [column.paper(paper[name].get(label))] if name in paper else []
        rows.append(row)
    return rows


def best_cells(comparison: Comparison) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the best figure of the table's first column."""
    section = comparison.section
    rank = section.family.columns[section.columns[0]].rank
    if rank is None:
        return frozenset()
    values = [rank(summary) for summary in comparison.summaries.values()]
    known = [value for value in values if value is not None]
    return frozenset({(values.index(min(known)), 1)}) if known else frozenset()
