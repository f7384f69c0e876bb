"""Comparisons: the cells that a preset needs, and the tables that are made of finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from ..engines import Engine
from ..methods.common import SCORED_COLUMNS, Column
from ..methods.references import ALONE, FED_AVG, TWO_TREES, summarise_reference
from ..methods.registry import family_with
from ..run.entries import Entry, draw_label
from ..run.format import milli
from .cells import Cell, Record
from .references import references_of
from .sections import Preset, Section


@dataclass(frozen=True)
class PairedDifference:
    """Mean squared error of one method minus that of another, draw by draw.

    Attributes
    ----------
    better, worse : str
        Labels; the paper says that ``better`` has the smaller error.
    mean, std : float
        Of the differences MSE(worse) - MSE(better) over the draws.
    wins : int
        Draws in which ``better`` is better.
    draws : int
        Draws in all.
    p_value : float
        Two-sided Wilcoxon signed-rank test of equal errors; 1 with fewer than two draws.
    reversed : bool
        Whether the mean difference contradicts the paper.
    """

    better: str
    worse: str
    mean: float
    std: float
    wins: int
    draws: int
    p_value: float
    reversed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def paired_differences(
    summaries: Mapping[str, Mapping[str, Any]], ranks: Sequence[Sequence[str]]
) -> list[PairedDifference]:
    """Compare every method with every method of a later rank.

    Parameters
    ----------
    summaries : mapping
        Label -> summary with the errors ``draws["mse"]``, draws in the same order.
    ranks : sequence of sequence of str
        Labels from the best rank to the worst, as the paper has them; labels that are not among
        the summaries are passed over.
    """
    found = []
    for number, rank in enumerate(ranks):
        later = [label for other in ranks[number + 1 :] for label in other]
        for better in rank:
            for worse in later:
                if better in summaries and worse in summaries:
                    found.append(_compare(better, worse, summaries))
    return found


def _compare(
    better: str, worse: str, summaries: Mapping[str, Mapping[str, Any]]
) -> PairedDifference:
    first, second = (np.array(summaries[label]["draws"]["mse"]) for label in (better, worse))
    difference = second - first
    several = len(difference) > 1 and bool(np.any(difference))
    return PairedDifference(
        better,
        worse,
        float(difference.mean()),
        float(difference.std(ddof=1)) if len(difference) > 1 else 0.0,
        int((difference > 0.0).sum()),
        len(difference),
        float(wilcoxon(difference).pvalue) if several else 1.0,
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
        Draws per entry.
    entries : list of Entry
    summaries : dict
        Label -> what the family's :meth:`~Family.summarise` returns, of a reference method what
        :func:`~fedkern_flwr.simulations.methods.references.summarise_reference` does; with what
        the family keeps of all draws.
    facts : dict
        What the data decided, see :meth:`Prepared.facts`.
    notes : tuple of str
        What was done to the data.
    pairs : tuple of PairedDifference
        Methods that the paper ranks, compared draw by draw.
    columns : sequence of mapping
        What became of the columns of the data, see :class:`~fedkern_flwr.encoding.Explanation`.
    first_table : sequence of sequence of str
        What the data is, see :meth:`Prepared.first_table`; heads first.
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


PAIR_HEADINGS = ("better in the paper", "than", "difference (10⁻³)", "std", "wins", "p", "order")


@dataclass(frozen=True)
class Part:
    """What a section asks of one data set.

    Attributes
    ----------
    section : Section
    dataset : str
    runs : int
    cells : dict
        Label -> cells, a draw each.
    """

    section: Section
    dataset: str
    runs: int
    cells: dict[str, list[Cell]]

    def named(self) -> Iterator[tuple[str, Cell]]:
        """Yield cells with what a progress bar calls them, draw by draw."""
        for label, cells in self.cells.items():
            for draw, cell in enumerate(cells):
                entry = Entry(f"{self.dataset}: {label}", cell.method)
                yield draw_label(entry, draw, self.runs), cell


def plan(chosen: Preset, seed: int) -> list[Part]:
    """Return the parts of a preset, in the order of its sections."""
    return [
        Part(
            section,
            dataset,
            chosen.runs,
            {
                label: _cells(section, dataset, label, method, options, chosen, seed)
                for label, method, options in section.entries
            },
        )
        for section in chosen.sections
        for dataset in section.data
    ]


def _cells(
    section: Section,
    dataset: str,
    label: str,
    method: str,
    options: Mapping[str, Any],
    chosen: Preset,
    seed: int,
) -> list[Cell]:
    settings = section.settings(dataset, label)
    # A reference is computed the same way whatever the engine.
    reference = method in references_of(family_with(settings))
    engine: Engine = "in-process" if reference else chosen.engine
    return [
        Cell(
            settings,
            method,
            options,
            seed + draw,
            draw == 0 and not reference,
            engine,
            section.check_pooled and not reference,
        )
        for draw in range(chosen.runs)
    ]


def compare(part: Part, record_of: Callable[[Cell], Record]) -> Comparison:
    """Lay out the finished cells of a part."""
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
        if not facts and cells[0].settings is section.data[part.dataset]:
            facts, columns = records[0]["facts"], records[0]["columns"]
            first = records[0].get("first_table", first)
        notes += records[0]["notes"]
    _set_beside(summaries, pooled_labels(entries))
    pairs = tuple(paired_differences(summaries, section.ranks))
    return Comparison(
        section,
        part.dataset,
        part.runs,
        entries,
        summaries,
        facts,
        tuple(dict.fromkeys(notes)),
        pairs,
        columns,
        first,
    )


def pooled_labels(entries: Sequence[Entry]) -> list[str]:
    """Return the labels of the models of the pooled data."""
    others = (ALONE, FED_AVG, TWO_TREES)
    return [
        one.label
        for one in entries
        if one.reference is not None
        and one.method not in others
        and not one.method.endswith("-paper")
    ]


def _set_beside(summaries: dict[str, dict[str, Any]], pooled: Sequence[str]) -> None:
    """Say how far the accuracy, or RMSE, is from that of the best model of the pooled data."""
    for name, best in (("test_accuracy", max), ("test_rmse", min)):
        figures = {label: found["metrics"].get(name) for label, found in summaries.items()}
        known = [figures[label] for label in pooled if figures[label] is not None]
        for label, value in figures.items():
            if known and value is not None:
                summaries[label]["beside_pooled"] = value - best(known)


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


def columns_of(comparison: Comparison, *, wide: bool = False) -> dict[str, Column]:
    """Return the columns of the table.

    A wide one, that of the report, has those of scores behind the accuracy, and behind the first
    column none in which nothing stands.
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
        found += column.headings
        found += ["paper"] if name in paper else []
    return found


def table_rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """Return a row of text per method; figures of the paper stand beside ours."""
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
