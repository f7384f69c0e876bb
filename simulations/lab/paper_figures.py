"""The papers' figures beside ours: which cells of a table miss them by more than their spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .comparison import Comparison

HEADINGS = ("data", "method", "figure", "ours", "± std", "paper", "difference", "ours is")


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper and ours.

    Attributes
    ----------
    dataset, label, column : str
        Where in the table; the column as its heading has it.
    ours : float or None
        Mean over the draws; None where a draw has no such figure.
    spread : float or None
        Standard deviation over the draws; None for a single draw.
    paper : float
    decimals : int
        That the paper's figure has been rounded to.
    better : bool or None
        Whether ours is the better one; None where it is missing.
    nearest : float or None
        The draw that is nearest to the paper's figure.
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

        Draws that diverge have a spread that excuses everything; so ours is missed as well where
        even the nearest draw is off by more than the paper's figure itself.
        """
        if self.ours is None or self.nearest is None:
            return True
        if abs(self.nearest - self.paper) > abs(self.paper):
            return True
        return abs(self.ours - self.paper) > (self.spread or 0.0) + 0.5 * 10.0**-self.decimals

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "misses": self.misses}

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
    """Return all figures of the paper that a comparison has figures of its own for."""
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
    """Return mean and standard deviation of the draws, and the one nearest to the paper's."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return None, None, None
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return float(np.mean(numbers)), spread, min(numbers, key=lambda value: abs(value - paper))


def count_misses(figures: list[PaperFigure]) -> Mapping[str, int]:
    """Return how many there are, how many miss, and how many of these are better or worse."""
    missed = [figure for figure in figures if figure.misses]
    return {
        "figures": len(figures),
        "missed": len(missed),
        "better": sum(figure.better is True for figure in missed),
        "worse": sum(figure.better is False for figure in missed),
    }
