"""The client of the app: a node's own table, served to the method that the run names."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedkern_flwr.clients import serve
from fedkern_flwr.errors import TableError
from fedkern_flwr.method import MethodClient
from fedkern_flwr.registered import client_of, find_method
from fedkern_flwr.scaling import scale_by_ranges
from fedkern_flwr.tables import load_table


@lru_cache  # a process reads its tables once
def own_table(text: str) -> dict[str, Any]:
    """Read what the node's configuration names; CHANGE THIS if your table needs more preparation.

    Keys: ``data``, ``test-data``, ``label-column``, ``id-column``, ``ranges`` (public ranges by
    which features are scaled to [0, 1]; without them they must be there already).
    """
    node = json.loads(text)
    label, identity = node.get("label-column"), node.get("id-column")
    found: dict[str, Any] = {}
    for key, end in (("data", ""), ("test-data", "_test")):
        if key not in node:
            continue
        table = load_table(node[key], label=label, id_column=identity, labelled=False)
        if found.setdefault("columns", table.columns) != table.columns:
            raise TableError(
                "the test data does not have the columns of the data, in this order",
                remedy="bring them to the same columns",
            )
        ranges = node.get("ranges")
        found[f"x{end}"] = scale_by_ranges(table.x, table.columns, ranges) if ranges else table.x
        if table.y is not None:
            found[f"y{end}"] = table.y
        if table.ids is not None:
            found[f"ids{end}"] = [str(name) for name in table.ids]
    return found


def make_client(context: Context) -> MethodClient:
    """Build the client of one node; Flower asks for it with every message."""
    node: dict[str, Any] = context.node_config
    if "data" not in node:
        raise TableError("this node has no table", remedy="name it in --node-config as data")
    draw = None
    if find_spec("matplotlib") is not None:
        from fedkern_flwr.simulations.run.scatter import plot_scatter

        draw = plot_scatter
    kind = client_of(find_method(str(context.run_config["method"])))
    names = ("data", "test-data", "label-column", "id-column", "ranges")
    text = json.dumps({name: node[name] for name in names if name in node})
    return kind(
        context,
        **own_table(text),
        results=Path(node["results"]) if "results" in node else None,
        draw=draw,
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


app = serve(make_client)
