"""Serve a node's own table to the method of the run."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import serve
from fedkern_flwr.method import MethodClient
from fedkern_flwr.registered import client_of, find_method
from fedkern_flwr.scaling import scale_by_ranges
from fedkern_flwr.simulations.apps.node import Node, client_maker
from fedkern_flwr.tables.table import with_label


def arguments(node: Node) -> dict[str, Any]:
    """Read the rows of a client and held-out rows, with labels and ids if there are any."""
    if client_of(find_method(str(node.run["method"]))).raw:
        read = node.unencoded(labelled=False, missing="encode")
        table, held = with_label(read[0]), None if read[1] is None else with_label(read[1])
        found = node.rows(table, held, "x", "ids")
        found |= {"kinds": table.kinds, "categories": table.categories}
    elif "encoder" in node.config:
        table, held = node.encoded(common=True, labelled=False, missing="encode")
        found = node.rows(table, held, "x", "y", "ids")
    else:
        table, held = node.tables(labelled=False)
        found = node.rows(table, held, "x", "y", "ids")
        if ranges := node.config.get("ranges"):
            for name in found.keys() & {"x", "x_test"}:
                found[name] = scale_by_ranges(found[name], table.columns, ranges)
    for name in found.keys() & {"ids", "ids_test"}:
        found[name] = None if found[name] is None else [str(one) for one in found[name]]
    return {name: value for name, value in found.items() if value is not None}


def method_client(context: Context, **own: Any) -> MethodClient:
    """Build the client of the method; with matplotlib it can draw."""
    kind = client_of(find_method(str(context.run_config["method"])))
    return kind(context, **own, draw=plot if find_spec("matplotlib") else None)


def plot(*what: Any) -> None:
    """Draw rows; matplotlib is imported here only."""
    from fedkern_flwr.simulations.run.scatter import plot_scatter

    plot_scatter(*what)


KEYS = ("results", "alignment-key")
make_client = client_maker(method_client, arguments, own_table, keys=KEYS, simulated="")
app = serve(make_client)
