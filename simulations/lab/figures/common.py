"""What figures of comparisons have in common, and the one that every family draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...run import drawing, plots
from ...run.report import Block, FigureBlock
from ..comparison import Comparison

Styles = Mapping[str, drawing.Style]
#: Called with the comparison, the path of the figure without its end ``-<name>.png``, and the
#: styles of the entries.
DrawFigure = Callable[[Comparison, Path, Styles], Block]
#: The same over the comparisons of a section on several data sets.
DrawAcross = Callable[[Sequence[Comparison], Path, Styles], Block]


def traffic(comparison: Comparison, stem: Path, styles: Styles) -> FigureBlock:
    """Draw what all clients sent and got."""
    name = comparison.dataset
    traffic = {
        k: (int(s["bytes_up"]), int(s["bytes_down"]))
        for k, s in comparison.summaries.items()
        if s["exchanges"]
    }
    path = plots.plot_bytes(
        traffic, file_of(stem, "bytes"), title=f"{name}: traffic", styles=styles
    )
    return FigureBlock(f"{name}: arrays sent by all clients and to them", path)


def file_of(stem: Path, name: str) -> Path:
    """Return the path of a figure."""
    return stem.with_name(f"{stem.name}-{name}.png")
