"""Plan the cells that a preset needs, and make tables of finished ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from ..methods.pooled import ALONE, FED_AVG, TWO_TREES, summarise_reference
from ..methods.registry import family_with
from ..run.entries import Entry, draw_label
from ..run.format import figure, size
from ..run.report import Block, TableBlock
from .cells import Cell, Record
from .columns import SCORED, Column, seen_plainly
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
        :func:`~fedkern_flwr.simulations.methods.pooled.summarise_reference`, with the figures
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
        reference = method in references_of(family_with(settings))
        check = section.check_pooled and not reference
        every = [
            Cell(settings, method, options, seed + k, k == 0 and not reference, check)
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
            found |= {other: section.column(other) for other in SCORED}

    def has_cells(name: str) -> bool:
        cells = (cell for summary in summaries for cell in found[name].written(summary))
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
            row += column.written(summary)
            row += [figure(paper[name].get(label), column.paper)] if name in paper else []
        rows.append(row)
    return rows


def best_cells(comparison: Comparison) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the best figure of the table's first column."""
    section = comparison.section
    column = section.column(section.columns[0])
    if not column.rank:
        return frozenset()
    values = [column.best(summary) for summary in comparison.summaries.values()]
    best = min((value for value in values if value is not None), default=None)
    return frozenset((row, 1) for row, value in enumerate(values) if value == best is not None)


# -- what a comparison finds

#: Lead of a pooled model that the verdict mentions: accuracy, and share of the RMSE.
MUCH_ACCURACY, MUCH_RMSE = 0.02, 0.05
_ALONE = ("local-only", ALONE)


def verdict(comparison: Comparison) -> str:
    """Write a few sentences on the methods of a comparison.

    They name the best federated method, compare it with pooled and local models, and say what its
    server saw.
    """
    section, summaries = comparison.section, comparison.summaries
    references = set(pooled_labels(comparison.entries))
    ranked = [name for name in section.columns if section.column(name).rank]
    if not ranked:
        return ""
    column = section.column(ranked[0])

    def best_of(labels: list[str]) -> str:
        values = {label: column.best(summaries[label]) for label in labels}
        found = {label: value for label, value in values.items() if value is not None}
        return min(found, key=lambda label: found[label], default="")

    def figure(label: str) -> str:
        return column.written(summaries[label])[0]

    alone = [
        one.label
        for one in comparison.entries
        if one.method in _ALONE or str(one.options.get("experts")).startswith("local")
    ]
    federated = [label for label in summaries if label not in references and label not in alone]
    best = best_of(federated)
    if not best:
        return ""
    head, several = column.headings[0], len(federated) > 1
    first = f"{comparison.dataset}: {best}, {head} {figure(best)}"
    first += f", the best of {len(federated)} federated methods" if several else ""
    pooled, single = best_of([one for one in summaries if one in references]), best_of(alone)
    simple = next((one.label for one in comparison.entries if one.method == "constant"), "")
    others = []
    if pooled:
        behind = _behind(summaries[best], summaries[pooled])
        more = f", {best} is {behind}" if behind else ""
        others.append(f"Pooled model: {figure(pooled)} ({pooled}){more}")
    if single:
        useless = simple and best_of([simple, single]) == simple
        more = f", no better than the {simple}, {figure(simple)}" if useless else ""
        others.append(f"Local models: {figure(single)} ({single}){more}")
    difference = summaries[best]["metrics"].get("centralised_difference")
    if others:
        second = ". ".join(others)
    elif difference is not None:
        second = f"Max. difference to the pooled model: {difference:.1e}"
    else:
        second = "It was compared with no pooled or local model"
    return f"{first}. {second}. {_seen(summaries[best])}."


def _behind(best: Mapping[str, Any], pooled: Mapping[str, Any]) -> str:
    """Write how far a method is behind the pooled model, if far."""
    own, other = best["metrics"], pooled["metrics"]
    if "test_rmse" in own.keys() & other.keys():
        more = own["test_rmse"] - other["test_rmse"]
        much = more > MUCH_RMSE * other["test_rmse"] > 0.0
        return f"{100.0 * more / other['test_rmse']:.0f} % behind" if much else ""
    if "test_accuracy" in own.keys() & other.keys():
        less = other["test_accuracy"] - own["test_accuracy"]
        return f"{100.0 * less:.1f} points behind" if less > MUCH_ACCURACY else ""
    return ""


def _seen(summary: Mapping[str, Any]) -> str:
    """Write what the server saw of a run, the most important first."""
    plain = seen_plainly(summary)
    most = next(iter(summary["privacy"].get("server_sees", ())), "nothing")
    single = f"; {plain} came from single parties in plain" if plain not in ("-", "0 B") else ""
    return f"Its server saw {most}{single}"


# -- the papers' figures beside ours

HEADINGS = ("data", "method", "figure", "ours", "± std", "paper", "difference", "ours is")


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper and ours.

    Attributes
    ----------
    dataset, label, column : str
        Place in the table; the column is its heading.
    ours : float or None
        Mean over repetitions; None if one has no such figure.
    spread : float or None
        Standard deviation over repetitions; None for a single one.
    paper : float
    decimals : int
        Of the paper's figure.
    better : bool or None
        Whether ours is better; None where it is missing.
    nearest : float or None
        The repetition that is nearest to the paper's figure.
    """

    dataset: str
    label: str
    column: str
    ours: float | None
    spread: float | None
    paper: float
    decimals: int
    better: bool | None
    nearest: float | None

    @property
    def misses(self) -> bool:
        """Whether ours differs by more than its spread and the rounding of the paper.

        The spread of runs that diverge would accept any figure. So ours is missed as well where the
        nearest run differs by more than the paper's figure itself.
        """
        if self.ours is None or self.nearest is None:
            return True
        if abs(self.nearest - self.paper) > abs(self.paper):
            return True
        return abs(self.ours - self.paper) > (self.spread or 0.0) + 0.5 * 10.0**-self.decimals

    def cells(self) -> list[str]:
        """Return a row of text, see :data:`HEADINGS`."""
        digits = self.decimals + 1

        def write(value: float | None, sign: str = "") -> str:
            if value is None:
                return "-"
            return f"{value:{sign}.{digits}f}" if abs(value) < 1e6 else f"{value:{sign}.1e}"

        difference = None if self.ours is None else self.ours - self.paper
        verdict = {True: "better", False: "worse", None: "missing"}[self.better]
        return [
            self.dataset,
            self.label,
            self.column,
            write(self.ours),
            write(self.spread),
            f"{self.paper:.{self.decimals}f}",
            write(difference, "+"),
            verdict,
        ]


def paper_figures(comparison: Comparison) -> list[PaperFigure]:
    """Return all figures of the paper that the comparison has computed."""
    section, found = comparison.section, []
    for name, figures in section.paper.get(comparison.dataset, {}).items():
        column = section.column(name)
        for label, paper in figures.items():
            if label in comparison.summaries:
                values = column.drawn(comparison.summaries[label])
                ours, spread, nearest = _reduce(values, paper)
                found.append(
                    PaperFigure(
                        comparison.dataset,
                        label,
                        column.headings[0],
                        ours,
                        spread,
                        paper,
                        column.paper,
                        None if ours is None else (ours > paper) == column.higher_is_better,
                        nearest,
                    )
                )
    return found


def _reduce(
    values: list[float | None], paper: float
) -> tuple[float | None, float | None, float | None]:
    """Compute mean, standard deviation, and the value nearest to the paper's."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return None, None, None
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return float(np.mean(numbers)), spread, min(numbers, key=lambda value: abs(value - paper))


def count_misses(figures: list[PaperFigure]) -> Mapping[str, int]:
    """Count figures, those that miss, and how many of these are better or worse."""
    missed = [figure for figure in figures if figure.misses]
    return {
        "figures": len(figures),
        "missed": len(missed),
        "better": sum(figure.better is True for figure in missed),
        "worse": sum(figure.better is False for figure in missed),
    }


# -- who saw what: the audited traffic as tables

READING = (
    "Who saw what: bytes of the first draw that were seen, counted message by message. Plain: "
    "computed from a client's own rows, for the server to read. Total: a sum over several clients. "
    "Masked: one-time padded; sealed: encrypted for another client; both are tested to be uniform. "
    "Declared: sizes, ranges and classes as their owner states them. Pseudonyms: keyed hashes of "
    "ids. Keys: public keys, digests, shares and seeds of masks. Public: chosen by the server or "
    "made of released sums. Matching: which rows belong together. Own: about the client's rows.",
)

_SERVER = {
    "plain": ("plain",),
    "total": ("total",),
    "masked": ("masked",),
    "sealed": ("sealed",),
    "declared": ("declared", "size"),
    "pseudonyms": ("pseudonym",),
    "keys": ("key", "commitment", "share", "seed"),
}
_CLIENTS = {
    "public": ("public",),
    "matching": ("matching",),
    "masked": ("masked",),
    "sealed": ("sealed",),
    "keys": ("key",),
}
_SUSPICIOUS = 1e-6  # p-value below which bytes are not uniform


def seen_tables(comparison: Comparison) -> list[Block]:
    """Make tables of what each party sees, in words and as bytes by kind."""
    return [_in_words(comparison), *_in_bytes(comparison)]


def _in_words(comparison: Comparison) -> TableBlock:
    """Make the table of what is seen, by which party, of which methods."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in comparison.entries:
        for key, seen in entry.results[0]["privacy"].items():
            if key.endswith(("_sees", "_see")):
                who = key.rpartition("_")[0].replace("_", " ")
                for what in seen:
                    found.setdefault((who, what), []).append(entry.label)
    every = len(comparison.entries)
    return TableBlock(
        f"{comparison.section.title or comparison.dataset}: who sees what",
        ["seen", "by", "of"],
        [
            [what, who, "all" if len(labels) == every > 1 else ", ".join(labels)]
            for (who, what), labels in found.items()
        ],
    )


def _in_bytes(comparison: Comparison) -> list[Block]:
    audited = {
        entry.label: entry.results[0]["privacy"]["seen"]
        for entry in comparison.entries
        if "seen" in entry.results[0]["privacy"]
    }
    if not audited:
        return []
    name = comparison.dataset
    return [
        _table(
            f"{name}: what the server saw; in bold what single clients sent in plain",
            {label: seen["server"] for label, seen in audited.items()},
            _SERVER,
        ),
        _table(
            f"{name}: what the clients got",
            {label: seen["clients"] for label, seen in audited.items()},
            _CLIENTS,
        ),
    ]


def _table(
    caption: str,
    seen: Mapping[str, Sequence[Mapping[str, Any]]],
    columns: Mapping[str, tuple[str, ...]],
) -> TableBlock:
    used = [
        column
        for column, kinds in columns.items()
        if any(row["kind"] in kinds for rows in seen.values() for row in rows)
    ]
    cells = [
        [label, *(_cell(rows, columns[column]) for column in used), _random(rows)]
        for label, rows in seen.items()
    ]
    bold = frozenset(
        (place, 1 + used.index("plain"))
        for place, rows in enumerate(seen.values())
        if any(row["kind"] == "plain" for row in rows)
    )
    return TableBlock(caption, ["method", *used, "uniform"], cells, bold)


def _random(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return whether masked and sealed bytes look uniform."""
    tested = [row["uniform_p"] for row in rows if row.get("uniform_p") is not None]
    if not tested:
        return "-"
    return "no" if min(tested) < _SUSPICIOUS else "yes"


def _cell(rows: Sequence[Mapping[str, Any]], kinds: tuple[str, ...]) -> str:
    """Write the bytes of some kinds."""
    mine = [row["bytes"] for row in rows if row["kind"] in kinds]
    return size(sum(mine)) if mine else "-"
