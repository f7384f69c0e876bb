"""The client of the app: a node's own table, served to the strategy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import OnlineKernelClient, serve
from fedkern_flwr.errors import TableError
from fedkern_flwr.node.client import PhaseClient
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations.apps.node import Node, client_maker, rows


def arguments(node: Node) -> dict[str, Any]:
    """Read the stream of a client, and rows that it predicts and does not learn from.

    Rows are brought into the unit ball and labels into [0, 1] by the public ranges that all nodes
    agreed on, held-out values clipped; without such a file the table must be scaled already. The
    common ``encoder`` comes first, if there is one.
    """
    if "encoder" in node.config:
        table, held = node.encoded(common=True, missing="encode")
    else:
        table, held = node.tables()
    found: dict[str, Any] = {"keep_weights": True, "ids_test": held.ids if held else None}
    if held is not None:
        table = replace(table, x_test=held.x, y_test=held.y)
    if "scaling" in node.config:
        scaling = read_scaling(node.config["scaling"])
        table = scaling.apply(table)
        found["label_range"] = (scaling.y_min, scaling.y_max)
    return {**rows(table, None, "x", "y"), "x_test": table.x_test, "y_test": table.y_test, **found}


def read_scaling(path: str) -> Scaling:
    """Read a file of public ranges."""
    try:
        return Scaling.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError):
        raise TableError(
            "the file of the scaling cannot be read", remedy="check its path"
        ) from None


def simulated(context: Context) -> PhaseClient:
    """Build the client of a node of a simulation, which gets public data."""
    from fedkern_flwr.simulations.apps.simulated import simulated_client

    return simulated_client(str(context.run_config["method"]), context)


make_client = client_maker(
    OnlineKernelClient, arguments, own_table, keys=("predictions",), simulated=simulated
)
app = serve(make_client)
