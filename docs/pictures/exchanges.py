"""Who sends what to whom: a lane for each side, a band for each exchange."""

from __future__ import annotations

from dataclasses import dataclass

from canvas import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PURPLE, arrow, box, save, sheet

WIDTH, LEFT, RIGHT = 9.6, 1.75, 8.2
STEP, NOTE = 0.42, 0.40
COLORS = {"plain": INK, "masked": GREEN, "sealed": PURPLE, "padded": ORANGE}
SAYS = {
    "plain": "in the clear",
    "masked": "masked: only a sum of several can be opened",
    "sealed": "sealed: the server passes it on unread",
    "padded": "a sum under a pad that its receiver added: the server passes it on unread",
}


@dataclass(frozen=True)
class Send:
    """A message from one lane to another."""

    start: int
    end: int
    text: str
    kind: str = "plain"


@dataclass(frozen=True)
class Note:
    """What a side does on its own."""

    lane: int
    text: str


Step = Send | Note
Exchange = tuple[str, list[Step]]


def draw_lanes(name: str, title: str, lanes: list[str], exchanges: list[Exchange]) -> None:
    """Draw the exchanges of a method from top to bottom."""
    kinds = [
        kind
        for kind in SAYS
        if any(isinstance(s, Send) and s.kind == kind for _, steps in exchanges for s in steps)
    ]
    lines = sum(len(steps) for _, steps in exchanges)
    foot = 0.2 + 0.22 * len(kinds)
    height = 0.95 + lines * STEP + len(exchanges) * 0.16 + foot
    figure, axes = sheet(WIDTH, height)
    gap = (RIGHT - LEFT - 0.7) / (len(lanes) - 1)
    at = [LEFT + 0.7 + gap * i for i in range(len(lanes))]
    colors = [BLUE, GREY, ORANGE] if len(lanes) == 3 else [BLUE, GREY]
    y = height - 0.8
    for x, lane, color in zip(at, lanes, colors, strict=True):
        axes.plot([x, x], [foot, y], color=FAINT, linewidth=0.9, zorder=0)
        box(axes, x - 0.9, y, 1.8, 0.58, lane, color=color, weight="bold")
    y -= 0.1
    for number, (label, steps) in enumerate(exchanges):
        band = len(steps) * STEP + 0.1
        if number % 2 == 0:
            axes.axhspan(y - band, y, color="#eceff3", zorder=-1)
        axes.text(0.15, y - band / 2, label, va="center", fontsize=9, color=INK)
        for step in steps:
            middle = y - STEP / 2 - 0.03
            if isinstance(step, Send):
                start, end = at[step.start], at[step.end]
                color = COLORS[step.kind]
                arrow(axes, (start, middle - 0.1), (end, middle - 0.1), color=color)
                place = ((start + end) / 2, middle - 0.04)
                axes.text(*place, step.text, ha="center", fontsize=9, color=color)
            else:
                width = 0.085 * len(step.text) + 0.25
                x = min(max(at[step.lane] - width / 2, LEFT - 0.1), WIDTH - 0.1 - width)
                corner, color = (x, middle - NOTE / 2 + 0.03), colors[step.lane]
                box(axes, *corner, width, NOTE - 0.08, step.text, color=color, size=9)
            y -= STEP
        y -= 0.16
    for i, kind in enumerate(kinds):
        line = foot - 0.16 - 0.22 * i
        arrow(axes, (0.15, line), (0.65, line), color=COLORS[kind])
        axes.text(0.75, line, SAYS[kind], va="center", fontsize=9, color=COLORS[kind])
    save(figure, name, title)


def draw() -> None:
    """Draw the picture of each method."""
    pof_mkl()
    fed_cg()
    fdskl()
    secure_gram()
    fed_cfk()
    hierarchical_svm()


def pof_mkl() -> None:
    """Draw a round of POF-MKL with secure sums."""
    exchanges: list[Exchange] = [
        ("once", [Send(0, 1, "size of the table, public key")]),
        (
            "every round",
            [
                Send(1, 0, "parameters of all kernels"),
                Note(0, "predict the next row, then learn its label; own weights stay here"),
                Send(0, 1, "gradients", "masked"),
            ],
        ),
        (
            "every round",
            [
                Send(1, 0, "who has answered"),
                Send(0, 1, "shares that open the sum of these"),
                Note(1, "step along the sum of the gradients"),
            ],
        ),
    ]
    draw_lanes("pof-mkl", "A round of POF-MKL", ["each client", "server"], exchanges)


def fed_cg() -> None:
    """Draw the five exchanges of FedCG."""
    exchanges: list[Exchange] = [
        (
            "1  describe",
            [
                Send(0, 1, "sizes, hashed ids, public key"),
                Send(2, 1, "sizes, hashed ids, public key"),
            ],
        ),
        (
            "2  distances",
            [
                Note(0, "distances to landmarks, own columns"),
                Send(0, 1, "distances", "masked"),
                Send(2, 1, "a pad of its own", "masked"),
            ],
        ),
        (
            "3  equations",
            [
                Send(1, 2, "sum over all columns", "padded"),
                Note(2, "kernel K of own patients"),
                Send(2, 1, "KᵀK and Kᵀy", "masked"),
                Note(1, "add up, solve for the coefficients"),
            ],
        ),
        (
            "4  coefficients",
            [
                Send(1, 2, "coefficients"),
                Note(2, "predict own new patients"),
                Send(2, 1, "counts of right and wrong", "masked"),
            ],
        ),
        ("5  finish", [Note(1, "all sides erase their keys")]),
    ]
    lanes = ["each centre\ncolumns", "server", "each hospital\nrows, labels"]
    draw_lanes("fed-cg", "The five exchanges of FedCG", lanes, exchanges)


def fdskl() -> None:
    """Draw the three exchanges of one-shot FDSKL."""
    exchanges: list[Exchange] = [
        (
            "1  describe",
            [
                Send(0, 1, "size, hashed ids, public key"),
                Send(2, 1, "size, hashed ids, public key"),
            ],
        ),
        (
            "2  phases",
            [
                Note(0, "own part of each random angle"),
                Send(0, 1, "angles", "masked"),
                Send(2, 1, "own angles and a pad", "masked"),
            ],
        ),
        (
            "3  train",
            [
                Send(1, 2, "angles over all columns", "padded"),
                Note(2, "cross-validate, train, predict"),
                Send(2, 1, "what was chosen, counts"),
                Note(1, "all sides erase their keys"),
            ],
        ),
    ]
    lanes = ["passive party\ncolumns", "server", "active party\ncolumns, labels"]
    draw_lanes("fdskl", "The three exchanges of one-shot FDSKL", lanes, exchanges)


COUNTS: list[Exchange] = [
    ("1  describe", [Send(0, 1, "numbers of rows and items, public key")]),
    (
        "2  counts",
        [Send(0, 1, "rows that have each item", "masked"), Note(1, "drop items that few have")],
    ),
    (
        "3  matrix",
        [
            Send(1, 0, "items that are kept"),
            Send(0, 1, "products of all pairs of items", "masked"),
            Note(1, "add up: K, exactly"),
        ],
    ),
]


def secure_gram() -> None:
    """Draw the four exchanges of Secure Gram without drop-outs."""
    last: list[Exchange] = [("4  finish", [Note(1, "both sides erase their keys")])]
    title = "The four exchanges of Secure Gram"
    draw_lanes("secure-gram", title, ["each node\nrows", "server"], [*COUNTS, *last])


def fed_cfk() -> None:
    """Draw the five exchanges of FedCFK without drop-outs."""
    last: list[Exchange] = [
        (
            "4  recommend",
            [
                Send(1, 0, "the whole kernel between items"),
                Note(0, "rank items for own users; write the lists"),
                Send(0, 1, "sums of AUC, nDCG and recall", "masked"),
            ],
        ),
        ("5  finish", [Note(1, "both sides erase their keys")]),
    ]
    title = "The five exchanges of FedCFK"
    draw_lanes("fed-cfk", title, ["each device\nratings", "server"], [*COUNTS, *last])


def hierarchical_svm() -> None:
    """Draw an iteration of HierarchicalSVM in a horizontal split."""
    exchanges: list[Exchange] = [
        (
            "at the start",
            [
                Send(0, 1, "sums of columns", "masked"),
            ],
        ),
        (
            "every iteration",
            [
                Send(1, 0, "sum of the group, model of all", "padded"),
                Send(1, 0, "the agent's pad", "sealed"),
                Send(1, 2, "sum of the group, model of all", "padded"),
                Note(0, "model of the group"),
                Note(2, "model of the group"),
                Note(0, "fit own rows near it"),
                Send(0, 1, "own model", "masked"),
                Send(2, 1, "model of the group", "masked"),
                Send(2, 1, "pad of the next sum", "sealed"),
                Note(1, "new model of all, from the sum of the groups"),
            ],
        ),
        (
            "at the end",
            [
                Send(0, 1, "loss and counts on held-out rows", "masked"),
                Note(1, "all sides erase their keys"),
            ],
        ),
    ]
    lanes = ["each user\nrows, labels", "server", "each agent\nno data"]
    draw_lanes("hierarchical-svm", "An iteration of HierarchicalSVM", lanes, exchanges)
