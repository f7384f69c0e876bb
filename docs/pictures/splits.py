"""Who holds what: rows, columns, or both."""

from __future__ import annotations

import numpy as np
from canvas import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PALE, PURPLE, save, sheet
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

ROWS, COLUMNS, CELL = 8, 6, 0.27  # the last column holds the labels


def table(axes: Axes, x: float, y: float, owner: np.ndarray, colors: list[str]) -> None:
    """Draw a table whose cells have the colour of their owner."""
    for r in range(ROWS):
        for c in range(COLUMNS):
            color = colors[owner[r, c]]
            gap = 0.12 if c == COLUMNS - 1 else 0.0
            axes.add_patch(
                Rectangle(
                    (x + c * CELL + gap, y - (r + 1) * CELL),
                    CELL - 0.03,
                    CELL - 0.03,
                    facecolor=PALE[color],
                    edgecolor=color,
                    linewidth=1.0,
                )
            )
    axes.text(x + 2.5 * CELL, y + 0.07, "features", ha="center", fontsize=9, color=FAINT)
    axes.text(x + 5.5 * CELL + 0.12, y + 0.07, "label", ha="center", fontsize=9, color=FAINT)


def key(axes: Axes, x: float, y: float, entries: list[tuple[str, str]]) -> None:
    """List the owners."""
    for i, (text, color) in enumerate(entries):
        axes.add_patch(
            Rectangle(
                (x, y - 0.23 * i), 0.15, 0.15, facecolor=PALE[color], edgecolor=color, linewidth=1.0
            )
        )
        axes.text(x + 0.24, y + 0.075 - 0.23 * i, text, va="center", fontsize=9)


def draw() -> None:
    """Draw the three splits side by side."""
    figure, axes = sheet(9.6, 4.5)
    lefts, top = (0.55, 3.75, 6.95), 3.45
    horizontal = np.repeat([0, 0, 0, 1, 1, 1, 2, 2], COLUMNS).reshape(ROWS, COLUMNS)
    vertical = np.tile([0, 0, 1, 1, 2, 0], (ROWS, 1))
    hybrid = np.zeros((ROWS, COLUMNS), int)
    hybrid[4:] = 1
    hybrid[:, 2:4], hybrid[:, 4] = 2, 3
    for x, name, text, owner, colors in (
        (lefts[0], "Horizontal", "each party has rows", horizontal, [BLUE, ORANGE, GREEN]),
        (lefts[1], "Vertical", "each party has columns", vertical, [BLUE, ORANGE, GREEN]),
        (lefts[2], "Hybrid", "rows here, columns there", hybrid, [BLUE, ORANGE, PURPLE, GREY]),
    ):
        axes.text(x, 4.12, name, fontsize=13, fontweight="bold", color=INK)
        axes.text(x, 3.88, text, fontsize=10, color=FAINT)
        table(axes, x, top, owner, colors)
    y = 0.92
    key(axes, lefts[0], y, [("bank 1", BLUE), ("bank 2", ORANGE), ("bank 3", GREEN)])
    owners = [("bank, with the labels", BLUE), ("shop", ORANGE), ("insurer", GREEN)]
    key(axes, lefts[1], y, owners)
    owners = [("hospital 1", BLUE), ("hospital 2", ORANGE), ("laboratory", PURPLE)]
    key(axes, lefts[2], y, [*owners, ("registry", GREY)])
    save(figure, "splits", "Horizontal, vertical and hybrid splits of a table")
