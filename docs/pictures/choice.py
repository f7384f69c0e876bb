"""Which method when: from what the parties hold to a method."""

from __future__ import annotations

from canvas import BLUE, FAINT, GREEN, ORANGE, PURPLE, arrow, box, save, sheet

#: What parties hold -> (what is wanted, method, exchanges).
TREE = [
    (
        "rows\nhorizontal",
        BLUE,
        [
            ("a stream, each row predicted\nbefore its label is known", "POF-MKL", "2 per message"),
            ("no stream: the model of\nthe pooled table", "FedCG, no centres", "5"),
            ("users in groups,\none classifier for all", "HierarchicalSVM", "1 per iteration + 5"),
        ],
    ),
    (
        "columns\nvertical",
        ORANGE,
        [
            ("labels at one owner, who may\nlearn the geometry of the rows", "FDSKL", "3"),
            ("the server may learn it,\nany machine on top of it", "Secure Gram", "4"),
            (
                "columns at groups of users,\na linear model",
                "HierarchicalSVM",
                "2 per iteration + 9",
            ),
        ],
    ),
    (
        "rows and columns\nhybrid",
        PURPLE,
        [("the model of the pooled table,\nclasses or numbers", "FedCG", "5")],
    ),
    (
        "ratings of\nshared items",
        GREEN,
        [("recommendations\non the device", "FedCFK", "5")],
    ),
]
ROW = 0.78


def draw() -> None:
    """Draw the tree from left to right."""
    rows = sum(len(branches) for *_, branches in TREE)
    height = rows * ROW + 0.6
    figure, axes = sheet(9.6, height)
    for x, text in (
        (0.3, "What does a party hold?"),
        (2.85, "What do you want?"),
        (6.0, "Method"),
        (8.0, "Exchanges"),
    ):
        axes.text(x, height - 0.32, text, fontsize=10, color=FAINT)
    y = height - 0.55
    for holds, color, branches in TREE:
        middle = y - len(branches) * ROW / 2
        box(axes, 0.3, middle - 0.3, 1.75, 0.6, holds, color=color, weight="bold")
        for wanted, method, exchanges in branches:
            line = y - ROW / 2
            arrow(axes, (2.05, middle), (2.8, line), color=color)
            box(axes, 2.85, line - 0.29, 2.6, 0.58, wanted, color=color, size=9)
            arrow(axes, (5.45, line), (5.95, line), color=color)
            box(axes, 6.0, line - 0.23, 1.75, 0.46, method, color=color, weight="bold")
            axes.text(8.0, line, exchanges, va="center", fontsize=9)
            y -= ROW
    save(figure, "which-method", "Which method for which data")
