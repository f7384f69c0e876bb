"""Run a comparison on one data set and lay its figures out as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .experiment import Entry, Prepared, Progress, run_entries, summarise
from .format import figure, megabytes, milli
from .paired import PairedDifference, paired_differences
from .presets import Column, Preset

_HEADINGS: dict[Column, tuple[str, ...]] = {
    "mse": ("MSE (10⁻³)",),
    "mse_std": ("std (draws)",),
    "regret": ("regret", "std (clients)"),
    "seconds": ("seconds",),
    "megabytes": ("MB up", "MB down"),
    "exchanges": ("exchanges",),
}


@dataclass(frozen=True)
class Comparison:
    """Results of a preset on one data set.

    Attributes
    ----------
    dataset : str
    entries : list of Entry
    summaries : dict
        Label -> what :func:`~fedkern_flwr.simulations.experiment.summarise` returns, with the mean
        squared errors of all draws as ``mse_draws``.
    notes : tuple of str
        What was done to the data.
    pairs : tuple of PairedDifference
        Methods that the paper ranks, compared draw by draw.
    """

    dataset: str
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
    chosen: Preset, dataset: str, prepared: Prepared, seed: int, progress: Progress
) -> Comparison:
    """Run all entries of a preset on the same clients, one engine for all."""
    entries = chosen.fresh_entries()
    run_entries(
        entries,
        prepared,
        engine=chosen.engine,
        seed=seed,
        runs=chosen.runs,
        progress=progress,
    )
    summaries = {}
    for entry in entries:
        summary = summarise(entry)
        summary["mse_draws"] = [result["metrics"]["mse"] for result in entry.results]
        summary["method"], summary["options"] = entry.method, entry.options
        summaries[entry.label] = summary
    pairs = tuple(paired_differences(summaries, chosen.ranks))
    return Comparison(dataset, entries, summaries, prepared.notes, pairs)


def headings(chosen: Preset, dataset: str) -> list[str]:
    """Return the headings of the table."""
    paper = ["paper"] if dataset in chosen.paper else []
    first, *others = chosen.columns
    rest = [heading for column in others for heading in _HEADINGS[column]]
    return ["method", *_HEADINGS[first], *paper, *rest]


def table_rows(chosen: Preset, comparison: Comparison) -> list[list[str]]:
    """Return a row of text per method."""
    rows = []
    for label, summary in comparison.summaries.items():
        first, *others = chosen.columns
        row = [label, *_cells(first, summary)]
        if comparison.dataset in chosen.paper:
            row.append(figure(chosen.paper[comparison.dataset].get(label)))
        rows.append(row + [cell for column in others for cell in _cells(column, summary)])
    return rows


def best_cells(chosen: Preset, comparison: Comparison) -> frozenset[tuple[int, int]]:
    """Return (row, column) of the smallest figure of the table's first column."""
    key = "mse" if chosen.columns[0] == "mse" else "regret_mean"
    values = [summary["metrics"][key] for summary in comparison.summaries.values()]
    known = [value for value in values if value is not None]
    return frozenset({(values.index(min(known)), 1)}) if known else frozenset()


def _cells(column: Column, summary: dict[str, Any]) -> list[str]:
    metrics = summary["metrics"]
    if column == "mse":
        return [milli(metrics["mse"])]
    if column == "mse_std":
        return [milli(metrics["mse_std"])]
    if column == "regret":
        return [figure(metrics["regret_mean"]), figure(metrics["regret_std"])]
    if column == "seconds":
        return [figure(summary["seconds"], 1)]
    if column == "exchanges":
        return [f"{summary['exchanges']:g}"]
    return [megabytes(summary["bytes_up"]), megabytes(summary["bytes_down"])]
