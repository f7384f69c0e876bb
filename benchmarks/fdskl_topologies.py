"""Star, ring and tree over slow links: the comparison of FDSKL's Figure 4 by a link model.

The sum of one vector per party at one of them, with 1 ms and 100 Mbit/s at every node; nothing is
measured. The formulas stand in `simulations/lab/links.py` and are tested against a simulation of
events. "direct" lets parties talk to each other, as the paper does; "server" is Flower, where every
message goes up to the server and down from it. "in turn" counts the messages of the critical path,
"two trees" is Algorithm 3, "masked star" what this package does by default.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import Record, new_table, run_script
from rich.console import Console

from fedkern_flwr.simulations.lab.links import Link
from fedkern_flwr.simulations.lab.topologies import (
    COLUMNS,
    PARTIES,
    SERVER_NOTE,
    SIZES,
    plot_topologies,
    size_text,
    table_rows,
    topology_rows,
)

OUT = Path(__file__).parent.parent / "docs" / "images" / "fdskl-topologies.png"


def measure(options: argparse.Namespace, console: Console) -> list[Record]:
    """Print a table for each size and draw the figure."""
    link = Link(options.latency, options.rate)
    for size in options.sizes:
        title = f"sum of a vector of {size_text(size)} per party, "
        title += f"{1e3 * link.latency:g} ms, {link.rate / 1e6:g} Mbit/s"
        table = new_table(title, " | ".join(COLUMNS), text="topology")
        for q in options.parties:
            for cells in table_rows(topology_rows([q], [size], link=link)):
                table.add_row(*cells)
            table.add_section()
        console.print(table)
    console.print(SERVER_NOTE)
    drawn = sorted({min(options.sizes), max(options.sizes)})
    console.print(f"figure: {plot_topologies(options.out, options.parties, drawn, link=link)}")
    return []


if __name__ == "__main__":
    run_script(
        __doc__,
        measure,
        parties=[*PARTIES],
        sizes=([*SIZES], "bytes of a vector"),
        latency=(Link.latency, "seconds"),
        rate=(Link.rate, "bits per second"),
        out=(OUT, "where to write the figure"),
    )
