"""Star, ring and tree: how long the sum of a vector per party takes over slow links, by formula.

The comparison of FDSKL's Figure 4. Every node, the server too, has one link of latency L seconds. A
vector of S bytes occupies the links of sender and receiver for T = 8 S / rate seconds; its first
bit arrives L after it left. A link carries one message at a time, in either direction. Additions
take no time. So one message takes L + T, and n messages that leave n nodes together for the same
one take L + n T.

In Flower parties cannot reach each other: every message goes up to the server and down from it,
and the server's link carries them all. A step of n messages then takes 2 (L + n T), and nothing is
left of the tree's advantage. A server that may add, as it does with masked vectors, takes q of them
in and sends one total: 2 L + (q + 1) T.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from ..run import drawing

PARTIES = (4, 8, 16, 32, 64)
#: Bytes: phases of 64 rows x 16 directions at 4 bytes, and a kernel matrix.
SIZES = (4096.0, 100e6)
LATENCY, RATE = 1e-3, 100e6  # seconds, bits per second
SERVER_NOTE = (
    "In Flower every message passes the server, up and down, and its link carries all of them."
)
_LABELS = {
    "star": "star",
    "ring": "ring",
    "tree": "tree",
    "two trees": "two trees (FDSKL)",
    "masked star": "masked star (ours)",
}
_DASHES: dict[str, drawing.Dash] = {"ring": "--", "tree": ":", "two trees": "-."}


def tree_steps(parties: int) -> list[int]:
    """Return the number of messages in each step of a tree of simultaneous pairs (Figure 2)."""
    steps = []
    while parties > 1:
        steps.append(parties // 2)
        parties -= parties // 2
    return steps


def direct_seconds(parties: int, size: float) -> dict[str, float]:
    """Return the time of a sum between parties that reach each other.

    The two trees of Algorithm 3 run one after the other, over all parties and over all but one.

    Parameters
    ----------
    parties : int
        q, at least 2; one of them gets the total.
    size : float
        S, bytes of a vector.
    """
    message = 8 * size / RATE
    hop, depths = LATENCY + message, [len(tree_steps(q)) for q in (parties, parties - 1)]
    return {
        "star": LATENCY + (parties - 1) * message,
        "ring": (parties - 1) * hop,
        "tree": depths[0] * hop,
        "two trees": sum(depths) * hop,
    }


def relayed_seconds(parties: int, size: float) -> dict[str, float]:
    """Return the time of a sum whose messages all pass the server.

    The two trees run at the same time, as their inputs are known from the start. Parameters as for
    :func:`direct_seconds`.
    """
    trees = zip_longest(tree_steps(parties), tree_steps(parties - 1), fillvalue=0)
    steps = {
        "star": [parties - 1],
        "ring": [1] * (parties - 1),
        "tree": tree_steps(parties),
        "two trees": [first + second for first, second in trees],
    }
    message = 8 * size / RATE
    found = {name: 2 * (len(n) * LATENCY + sum(n) * message) for name, n in steps.items()}
    return {**found, "masked star": 2 * LATENCY + (parties + 1) * message}


def plot_topologies(path: Path) -> Path:
    """Draw the time of a sum against the number of parties, directly and through the server.

    Parameters
    ----------
    path : Path
        Where to write PNG and SVG; the suffix does not matter.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed.
    """
    # Star, ring and tree coincide in places; through the gaps of one the other shows.
    looks = {
        topology: replace(style, dash=_DASHES.get(topology, "-"))
        for topology, style in drawing.assign_styles(_LABELS).items()
    }
    figure = drawing.new_figure(0.7 + 2.3 * len(SIZES))
    grid = figure.subplots(len(SIZES), 2, sharex=True, sharey="row", squeeze=False)
    for size, (direct, server) in zip(SIZES, grid, strict=True):
        text = f"{size / 1e6:,.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
        for axes, seconds, where in (
            (direct, direct_seconds, "between the parties"),
            (server, relayed_seconds, "through the server"),
        ):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            times = [seconds(q, size) for q in PARTIES]
            for topology in times[0]:
                ys = [found[topology] for found in times]
                drawing.draw_line(axes, PARTIES, ys, looks[topology])
            drawing.finish_axes(axes, f"{text}, {where}", "", "")
            axes.title.set_fontsize(9)
        direct.set_ylabel("time of a sum (s)")
    for axes in grid[-1]:
        axes.set_xticks(PARTIES, [str(q) for q in PARTIES])
        axes.set_xlabel("parties")
    figure.suptitle(SERVER_NOTE, fontsize=8, color=drawing.SOFT)
    drawing.legend_below(figure, _LABELS, looks)
    return drawing.save_figure(figure, path)
