"""Find the best method, the papers' figures that are missed, and who saw what.

A figure of a paper is missed where ours differs from it by more than its standard deviation over
repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..methods.common import COSTS, scientific
from ..methods.references import ALONE
from ..run.format import size
from ..run.report import Block, TableBlock
from .comparison import Comparison, pooled_labels

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
    ranked = [name for name in section.columns if section.column(name).rank is not None]
    if not ranked:
        return ""
    column = section.column(ranked[0])

    def best_of(labels: list[str]) -> str:
        assert column.rank is not None
        values = {label: column.rank(summaries[label]) for label in labels}
        found = {label: value for label, value in values.items() if value is not None}
        return min(found, key=lambda label: found[label], default="")

    def figure(label: str) -> str:
        return column.cells(summaries[label])[0]

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
        second = f"Max. difference to the pooled model: {scientific(difference)}"
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
    (plain,) = COSTS["plain"].cells(summary)
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
        if column.values is None:
            continue
        for label, paper in figures.items():
            if label in comparison.summaries:
                values = column.values(comparison.summaries[label])
                ours, spread, nearest = _reduce(values, paper)
                found.append(
                    PaperFigure(
                        comparison.dataset,
                        label,
                        column.headings[0],
                        ours,
                        spread,
                        paper,
                        len(column.paper(paper).partition(".")[2]),
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
