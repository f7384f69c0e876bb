"""What the pictures have in common: a light card, boxes, arrows, and files that do not change.

Text is drawn as outlines, so that it looks the same everywhere; the card has a background of its
own, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

FOLDER = Path(__file__).parent
INK, FAINT, CARD = "#1f2933", "#7b8794", "#f7f9fb"
BLUE, ORANGE, GREEN, PURPLE, GREY = "#2f6fb0", "#c4660c", "#2e8556", "#7b4fa3", "#9aa5b1"
#: The same colours where text stands on them.
PALE = {
    BLUE: "#d6e6f5",
    ORANGE: "#fbe3cb",
    GREEN: "#d3eddd",
    PURPLE: "#e6daf1",
    GREY: "#e4e7eb",
}

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": INK,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "path",
        "svg.hashsalt": "fedkern-flwr",  # equal pictures are equal files
        "savefig.facecolor": CARD,
        "figure.facecolor": CARD,
        "axes.facecolor": CARD,
    }
)


def sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty sheet whose coordinates are inches from the lower left corner."""
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    *,
    color: str = GREY,
    size: float = 10,
    weight: str = "normal",
) -> None:
    """Draw a rounded box with its lower left corner at (x, y) and text in its middle."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=PALE[color],
            edgecolor=color,
            linewidth=1.0,
        )
    )
    middle = (x + width / 2, y + height / 2)
    axes.text(*middle, text, ha="center", va="center", fontsize=size, fontweight=weight)


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    color: str = INK,
    dashed: bool = False,
) -> None:
    """Draw an arrow."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=11,
            shrinkA=0,
            shrinkB=0,
            linewidth=1.3,
            color=color,
            linestyle="--" if dashed else "-",
        )
    )


def save(figure: Figure, name: str, title: str) -> None:
    """Write a picture as SVG, without the date."""
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None, "Title": title})
    plt.close(figure)
