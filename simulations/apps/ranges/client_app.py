"""Serve a node's own table, to find the ranges of its columns."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import RangesClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.simulations.apps.node import Node, client_maker, rows
from fedkern_flwr.tables.table import Table


def arguments(node: Node) -> dict[str, Any]:
    """Read the columns of a node; empty cells are not counted.

    With an encoder they may have text and dates; ``categories`` are always text.
    """
    if not node.config.keys() & {"ranges", "scaling", "encoder"}:
        raise OptionError(
            "this node has nowhere to write its ranges",
            remedy="name a file in --node-config as ranges or encoder, or as scaling for pof-mkl",
            code="FK-NODE-KEY",
        )
    how: Any = {"labelled": "label-column" in node.config, "missing": "keep"}
    if "encoder" not in node.config:
        table = node.table(**how)
        node.check_named(table)
        return {**node.rows(table, None, "x", "y"), "units": table.units}
    table, _ = node.unencoded(**how)
    return {
        **node.rows(table, None, "x", "y"),
        "kinds": table.kinds,
        "categories": table.categories,
        "units": table.units,
    }


@lru_cache
def simulated_tables(data: str, label: str, split: Any, clients: int, seed: int) -> list[Table]:
    """Deal a public data set to the nodes of a simulation."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.run.datasets import load_data
    from fedkern_flwr.simulations.run.splits import split_rows

    table = load_data(data, label=label or None)
    return [table.take(part) for part in split_rows(table, split, clients, seed)]


def simulated_client(context: Context) -> RangesClient:
    """Build a client from its share of a public data set."""
    node, run = context.node_config, context.run_config
    k = int(node["partition-id"])
    options: Any = (run["data"], run["label"], run["split"], node["num-partitions"], run["seed"])
    folder = Path(str(run["files"])) if run["files"] else None
    return RangesClient(
        context,
        **rows(simulated_tables(*options)[k], None, "x", "y"),
        ranges=folder and folder / f"ranges-{k}.json",
        scaling=folder and folder / f"scaling-{k}.json",
    )


make_client = client_maker(
    RangesClient,
    arguments,
    own_table,
    keys=("block", "ranges", "scaling", "encoder", "category-key"),
    simulated=simulated_client,
)
app = serve(make_client)
