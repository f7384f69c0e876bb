"""Star, ring and tree: what a sum of vectors costs between parties and through Flower's server.

The comparison of FDSKL's Figure 4, by the link model of :mod:`.links` instead of a
stopwatch, as a table and as a figure. The paper's parties talk to each other; in Flower every
message passes the server, and the figure says so next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedkern_flwr.simulations.lab import links
from fedkern_flwr.simulations.lab.links import Link, LinkCost

from ..run import drawing

PARTIES = (4, 8, 16, 32, 64)
#: Bytes: phases of 64 rows x 16 directions at 4 bytes, and two sizes of kernel matrices.
SIZES = (4096.0, 1e6, 100e6)
SERVER_NOTE = (
    "In Flower every message passes the server, up and down, and its link carries all of them."
)

#: Headings of :func:`table_rows`.
COLUMNS = (
    "server:\ns / masked",
    "parties",
    "topology",
    "direct:\ns",
    "in turn",
    "MB",
    "server:\ns",
    "in turn",
    "MB",
    "exchanges",
)

_DIRECT: dict[str, Callable[..., LinkCost]] = {
    "star": links.star_time,
    "ring": links.ring_time,
    "tree": links.tree_time,
    "two trees": links.two_trees_time,
}
_STEPS: dict[str, Callable[[int], Sequence[int]]] = {
    "star": links.star_steps,
    "ring": links.ring_steps,
    "tree": links.tree_steps,
    "two trees": links.two_trees_steps,
}
_MASKED = "masked star"
_LABELS = {
    "star": "star",
    "ring": "ring",
    "tree": "tree",
    "two trees": "two trees (FDSKL)",
    _MASKED: "masked star (ours)",
}
_DASHES: dict[str, drawing.Dash] = {"ring": "--", "tree": ":", "two trees": "-."}


@dataclass(frozen=True)
class TopologyRow:
    """What one sum costs with one topology.

    Attributes
    ----------
    topology : {"star", "ring", "tree", "two trees", "masked star"}
    parties : int
        How many hold a vector; one of them gets the total.
    size : float
        Bytes of a vector.
    direct : LinkCost or None
        Between the parties; ``None`` for the masked star, which needs a server.
    server : LinkCost
        Through the server.
    exchanges : int
        Requests of the server to the parties and their replies, the delivery of the total included.
    """

    topology: str
    parties: int
    size: float
    direct: LinkCost | None
    server: LinkCost
    exchanges: int


def topology_rows(
    parties: Sequence[int] = PARTIES,
    sizes: Sequence[float] = SIZES,
    *,
    link: Link = links.LINK,
) -> list[TopologyRow]:
    """Return the costs by size, then parties, then topology.

    Parameters
    ----------
    parties : sequence of int (default: 4, 8, 16, 32, 64)
        How many sum, for each row.
    sizes : sequence of float (default: 4096, 1e6, 100e6)
        Bytes of a vector.
    link : Link (default: 1 ms, 100 Mbit/s)
        Of every party and of the server.

    Raises
    ------
    OptionError
        If there are fewer than two parties or a size is negative.
    """
    rows = []
    for size in sizes:
        for q in parties:
            for topology, time in _DIRECT.items():
                direct = time(q, size, link=link)
                steps = _STEPS[topology](q)
                server = links.relayed_cost(steps, size, link=link)
                rows.append(TopologyRow(topology, q, size, direct, server, len(steps) + 1))
            masked = links.masked_star_cost(q, size, link=link)
            rows.append(TopologyRow(_MASKED, q, size, None, masked, 2))
    return rows


def table_rows(rows: Sequence[TopologyRow]) -> list[list[str]]:
    """Return the cells under :data:`COLUMNS`; times in seconds, traffic in MB (1e6 bytes).

    Parameters
    ----------
    rows : sequence of TopologyRow
        Those of a masked star among them for each size and number of parties.
    """
    base = {(r.size, r.parties): r.server.seconds for r in rows if r.topology == _MASKED}
    return [
        [
            f"{row.server.seconds / base[row.size, row.parties]:.2f}",
            str(row.parties),
            row.topology,
            *(_cells(row.direct) if row.direct else ("-", "-", "-")),
            *_cells(row.server),
            str(row.exchanges),
        ]
        for row in rows
    ]


def plot_topologies(
    path: Path,
    parties: Sequence[int] = PARTIES,
    sizes: Sequence[float] = (SIZES[0], SIZES[-1]),
    *,
    link: Link = links.LINK,
) -> Path:
    """Draw the time of a sum against the number of parties, directly and through the server.

    Parameters
    ----------
    path : Path
        Where to write PNG and SVG; the suffix does not matter.
    parties : sequence of int (default: 4, 8, 16, 32, 64)
        The horizontal axis.
    sizes : sequence of float (default: 4096, 100e6)
        Bytes of a vector; a row of the figure each.
    link : Link (default: 1 ms, 100 Mbit/s)
        Of every party and of the server.

    Returns
    -------
    Path
        The PNG.

    Raises
    ------
    OptionError
        If matplotlib is not installed, there are fewer than two parties or a size is negative.
    """
    rows = topology_rows(parties, sizes, link=link)
    # Star, ring and tree coincide in places; through the gaps of one the other shows.
    looks = {
        topology: replace(style, dash=_DASHES.get(topology, "-"))
        for topology, style in drawing.assign_styles(_LABELS).items()
    }
    figure = drawing.new_figure(0.7 + 2.3 * len(sizes))
    grid = figure.subplots(len(sizes), 2, sharex=True, sharey="row", squeeze=False)
    for size, (direct, server) in zip(sizes, grid, strict=True):
        for axes, where in ((direct, "between the parties"), (server, "through the server")):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            for topology in _LABELS:
                points = [
                    (row.parties, cost.seconds)
                    for row in rows
                    if (row.topology, row.size) == (topology, size)
                    and (cost := row.direct if axes is direct else row.server)
                ]
                xs, ys = [q for q, _ in points], [seconds for _, seconds in points]
                drawing.draw_line(axes, xs, ys, looks[topology])
            drawing.finish_axes(axes, f"{size_text(size)}, {where}", "", "")
            axes.title.set_fontsize(9)
        direct.set_ylabel("time of a sum (s)")
    for axes in grid[-1]:
        axes.set_xticks(parties, [str(q) for q in parties])
        axes.set_xlabel("parties")
    figure.suptitle(SERVER_NOTE, fontsize=8, color=drawing.SOFT)
    drawing.legend_below(figure, _LABELS, looks)
    return drawing.save_figure(figure, path)


def size_text(size: float) -> str:
    """Return bytes in kB or MB."""
    return f"{size / 1e6:,.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"


def _cells(cost: LinkCost) -> tuple[str, str, str]:
    return _number(cost.seconds), str(cost.critical_messages), _number(cost.bytes / 1e6)


def _number(value: float) -> str:
    """Write three significant digits, whole numbers from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"
