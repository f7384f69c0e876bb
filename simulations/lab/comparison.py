"""Plan the cells that a preset needs, and make tables of finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from ..engines import Engine
from ..methods.common import SCORED_COLUMNS, Column
from ..methods.references import ALONE, FED_AVG, TWO_TREES, summarise_reference
from ..methods.registry import family_with
from ..run.entries import Entry, draw_label
from .cells import Cell, Record
from .references import references_of
from .sections import Preset, Section

Summaries = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class PairedDifference:
    """Mean squared error of one method minus that of another, over repetitions.

    Attributes
    ----------
    better, worse : str
        Labels; ``better`` has the smaller error in the paper.
    mean, std : float
        Of MSE(worse) - MSE(better).
    wins, draws : int
        Repetitions in which ``better`` is better, and all.
    p_value : float
        Two-sided Wilcoxon signed-rank test of equal errors.
    reversed : bool
        Whether the mean contradicts the paper.
    """

    better: str
    worse: str
    mean: float
    std: float
    wins: int
    draws: int
    p_value: float
    reversed: bool


def paired_differences(
    summaries: Summaries, ranks: Sequence[Sequence[str]]
) -> list[PairedDifference]:
    """Compare the errors of every method with those of the paper's later ranks."""
    known = [[label for label in rank if label in summaries] for rank in ranks]
    return [
        _compare(better, worse, summaries)
        for number, rank in enumerate(known)
        for better in rank
        for later in known[number + 1 :]
        for worse in later
    ]


def _compare(better: str, worse: str, summaries: Summaries) -> PairedDifference:
    first, second = (np.array(summaries[label]["draws"]["mse"]) for label in (better, worse))
    difference = second - first
    several = len(difference) > 1
    return PairedDifference(
        better,
        worse,
        float(difference.mean()),
        float(difference.std(ddof=1)) if several else 0.0,
        int((difference > 0.0).sum()),
        len(difference),
        float(wilcoxon(difference).pvalue) if several and np.any(difference) else 1.0,
        bool(difference.mean() <= 0.0),
    )


@dataclass(frozen=True)
class Comparison:
    """Results of a section of a preset on one data set.

    Attributes
    ----------
    section : Section
    dataset : str
    runs : int
        Repetitions per entry.
    entries : list of Entry
    summaries : dict
        Label -> :meth:`~Family.summarise`, of a reference method
        :func:`~fedkern_flwr.simulations.methods.references.summarise_reference`, with the figures
        of each repetition.
    facts : dict
        See :meth:`Prepared.facts`.
    notes : tuple of str
        Notes on the data.
    pairs : tuple of PairedDifference
        Methods that the paper ranks.
    columns : sequence of mapping
        Encoding of the columns, see :class:`~fedkern_flwr.encoding.Explanation`.
    first_table : sequence of sequence of str
        The table of the data, see :attr:`Prepared.first_table`; headings first.
    """

    section: Section
    dataset: str
    runs: int
    entries: list[Entry]
    summaries: dict[str, dict[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pairs: tuple[PairedDifference, ...] = ()
    columns: Sequence[Mapping[str, Any]] = ()
    first_table: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Part:
    """The cells of a section on one data set, by label."""

    section: Section
    dataset: str
    runs: int
    cells: dict[str, list[Cell]]

    def named(self) -> Iterator[tuple[str, Cell]]:
        """Yield cells with their labels in a progress bar."""
        for label, cells in self.cells.items():
            for draw, cell in enumerate(cells):
                entry = Entry(f"{self.dataset}: {label}", cell.method)
                yield draw_label(entry, draw, self.runs), cell


def plan(chosen: Preset, seed: int) -> list[Part]:
    """Return the parts of a preset, in the order of its sections."""

    def cells(section: Section, dataset: str, label: str, method: str, options: Any) -> list[Cell]:
        settings = section.settings(dataset, label)
        # the engine makes no difference to a reference
        reference = method in references_of(family_with(settings))
        engine: Engine = "in-process" if reference else chosen.engine
        more: dict[str, Any] = {"check_pooled": section.check_pooled and not reference}
        every = [
            Cell(settings, method, options, seed + k, k == 0 and not reference, engine, **more)
            for k in range(chosen.runs)
        ]
        if label == section.describer(dataset):
            every[0] = replace(every[0], describes=True)
        return every

    return [
        Part(
            section,
            dataset,
            chosen.runs,
            {entry[0]: cells(section, dataset, *entry) for entry in section.entries},
        )
        for section in chosen.sections
        for dataset in section.data
    ]


def compare(part: Part, record_of: Callable[[Cell], Record]) -> Comparison:
    """Summarise the finished cells of a part."""
    section, entries, summaries = part.section, [], {}
    facts: dict[str, Any] = {}
    columns: list[dict[str, Any]] = []
    first: list[list[str]] = []
    notes: list[str] = []
    for label, cells in part.cells.items():
        records = [record_of(cell) for cell in cells]
        family, method = family_with(cells[0].settings), cells[0].method
        reference = references_of(family).get(method)
        entry = Entry(label, method, dict(cells[0].options), reference=reference)
        entry.results = [record["result"] for record in records]
        summarise = family.summarise if reference is None else summarise_reference
        summary = {**summarise(entry), **family.per_draw(entry)}
        summary["method"], summary["options"] = method, entry.options
        summaries[label] = summary
        entries.append(entry)
        if summary["metrics"].get("converged") is False:
            notes.append(f"{label}: not converged after its iterations")
        if simple := summary.get("no_better_than"):
            notes.append(f"{label} predicts no better than {simple}")
        if label == section.describer(part.dataset):
            facts, columns = records[0]["facts"], records[0]["columns"]
            first = records[0]["first_table"]
        notes += records[0]["notes"]
    _compare_with_pooled(summaries, pooled_labels(entries))
    pairs, kept = paired_differences(summaries, section.ranks), tuple(dict.fromkeys(notes))
    named = section, part.dataset, part.runs
    return Comparison(*named, entries, summaries, facts, kept, tuple(pairs), columns, first)


def pooled_labels(entries: Sequence[Entry]) -> list[str]:
    """Return the labels of pooled models."""
    others = (ALONE, FED_AVG, TWO_TREES)
    return [
        one.label
        for one in entries
        if one.reference is not None
        and one.method not in others
        and not one.method.endswith("-paper")
    ]


def _compare_with_pooled(summaries: dict[str, dict[str, Any]], pooled: Sequence[str]) -> None:
    """Note how far accuracy, or RMSE, is from that of the best pooled model."""
    for name, best in (("test_accuracy", max), ("test_rmse", min)):
        figures = {label: found["metrics"].get(name) for label, found in summaries.items()}
        known = [figures[label] for label in pooled if figures[label] is not None]
        for label, value in figures.items():
            if known and value is not None:
                summaries[label]["beside_pooled"] = value - best(known)


# -- as a table


def columns_of(comparison: Comparison, *, wide: bool = False) -> dict[str, Column]:
    """Return the columns of the table.

    A wide one, that of the report, has the columns of scores after the accuracy, and no empty
    columns after the first.
    """
    section, found = comparison.section, dict[str, Column]()
    summaries, paper = comparison.summaries.values(), section.paper.get(comparison.dataset, {})
    known = {name for summary in summaries for name in summary["metrics"]}
    for name in section.columns:
        column = section.column(name)
        if column.wide and not wide:
            continue
        found[name] = column
        if wide and name in ("accuracy", "accuracies") and "test_auc" in known:
            found |= SCORED_COLUMNS

    def has_cells(name: str) -> bool:
        cells = (cell for summary in summaries for cell in found[name].cells(summary))
        return name in paper or any(cell not in ("-", "") for cell in cells)

    first, *others = found
    return {name: found[name] for name in [first, *filter(has_cells, others)]} if wide else found


def headings(comparison: Comparison, *, wide: bool = False) -> list[str]:
    """Return the headings of the table."""
    found, paper = ["method"], comparison.section.paper.get(comparison.dataset, {})
    for name, column in columns_of(comparison, wide=wide).items():
        found += [*column.headings, *(["paper"] if name in paper else [])]
    return found


def table_rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """Return a row of text per method, with the paper's figures after ours."""
    paper, rows = comparison.section.paper.get(comparison.dataset, {}), []
    for label, summary in comparison.summaries.items():
        row = [label]
        for name, column in columns_of(comparison, wide=wide).items():
            row += column.cells(summary)
            row += [column.paper(paper[name].get(label))] if name in paper else []
        rows.append(row)
    return rows


def best_cells(comparison: Comparison) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the best figure of the table's first column."""
    section = comparison.section
    rank = section.column(section.columns[0]).rank
    if rank is None:
        return frozenset()
    values = [rank(summary) for summary in comparison.summaries.values()]
    best = min((value for value in values if value is not None), default=None)
    return frozenset((row, 1) for row, value in enumerate(values) if value == best is not None)
