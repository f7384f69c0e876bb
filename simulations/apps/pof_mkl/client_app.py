"""Serve a node with its own table or stream."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import OnlineKernelClient, serve
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.node.client import Client
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.simulations.apps.node import Node, client_maker


def arguments(node: Node) -> dict[str, Any]:
    """Read the stream of a client, and held-out rows.

    Public ranges, which all nodes share, scale rows into the unit ball and labels into [0, 1];
    held-out values are clipped. Without the file the table must be scaled. The common ``encoder``
    comes first.
    """
    if "stream" in node.config:
        return stream_arguments(node)
    for key in {"stream-wait", "stream-columns"} & node.config.keys():
        raise OptionError(f"{key} is of a stream", code="FK-DATA-OPTION")
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
    return {
        **node.rows(table, held, "x", "y"),
        "x_test": table.x_test,
        "y_test": table.y_test,
        **found,
    }


def stream_arguments(node: Node) -> dict[str, Any]:
    """Read where the rows of a client come from during a run.

    They are scaled like a table. An ``encoder`` needs whole tables, so a stream has numbers.

    Raises
    ------
    OptionError
    """
    config = node.config
    for key in {"data", "encoder"} & config.keys():
        raise OptionError(f"this node has a stream and {key}", code="FK-DATA-OPTION")
    names = str(config.get("stream-columns", "")).split(",")
    found: dict[str, Any] = {
        "stream": str(config["stream"]),
        "label": config.get("label-column", config.get("label")),
        "id_column": config.get("id-column"),
        "columns": [name.strip() for name in names if name.strip()],
        "keep_weights": True,
        **{key: str(config[key]) for key in ("sep", "decimal", "na") if key in config},
    }
    if "stream-wait" in config:
        if type(config["stream-wait"]) not in (int, float):
            raise OptionError(
                "stream-wait is no number", remedy="give seconds, 0 or more", code="FK-OPTION-TYPE"
            )
        found["wait"] = float(config["stream-wait"])
    scaling = read_scaling(config["scaling"]) if "scaling" in config else None
    if scaling is not None:
        found |= {"scaling": scaling, "label_range": (scaling.y_min, scaling.y_max)}
    held = node.table("test-data")
    if held is not None:
        if scaling is not None:
            held = scaling.apply(replace(held, x=held.x[:0], y=None, x_test=held.x, y_test=held.y))
        found |= {"x_test": held.x_test, "y_test": held.y_test, "ids_test": held.ids}
    return found


def read_scaling(path: str) -> Scaling:
    """Read a file of public ranges."""
    try:
        return Scaling.from_json(Path(path).read_text())
    except (OSError, UnicodeDecodeError):
        raise TableError("the file of the scaling cannot be read", code="FK-FILE-READ") from None


def client(context: Context, **own: Any) -> Client:
    """Return the client of a node: of its table, or of its stream."""
    if "stream" not in own:
        return OnlineKernelClient(context, **own)
    from fedkern_flwr.clients import StreamClient

    return StreamClient(context, **own)


def simulated(context: Context) -> Client:
    """Build the client of a node of a simulation, which gets public data."""
    from fedkern_flwr.simulations.apps.simulated import simulated_client

    return simulated_client(str(context.run_config["method"]), context)


make_client = client_maker(client, arguments, own_table, keys=("predictions",), simulated=simulated)
app = serve(make_client)
