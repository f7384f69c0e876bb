"""The client of the app: a node's own table, whose columns are to be scaled."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedkern_flwr.clients import RangesClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.tables import Table, load_table


@lru_cache  # a process reads its table once
def own_table(path: str, id_column: str | None, label: str | None) -> Table:
    """Read a table. CHANGE THIS if your table needs more preparation.

    Prepare it here as the app that scales by the ranges does. Empty cells are not counted.
    """
    labelled = label is not None
    return load_table(path, id_column=id_column, label=label, labelled=labelled, missing="keep")


def deployed_client(context: Context) -> RangesClient:
    """Build a client from what the node's configuration names."""
    node: dict[str, Any] = context.node_config
    if "ranges" not in node and "scaling" not in node:
        raise OptionError(
            "this node has nowhere to write its ranges",
            remedy="name a file in --node-config as ranges, or as scaling for pof-mkl",
        )
    table = own_table(node["data"], node.get("id-column"), node.get("label-column"))
    return RangesClient(
        context,
        table.x,
        table.y,
        columns=table.columns,
        block=str(node.get("block", "all")),
        ranges=node.get("ranges"),
        scaling=node.get("scaling"),
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


@lru_cache
def simulated_tables(data: str, label: str, split: Any, clients: int, seed: int) -> list[Table]:
    """Deal a public data set to the nodes of a simulation."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.run.datasets import load_data
    from fedkern_flwr.simulations.run.splits import split_rows

    if not data:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    table = load_data(data, label=label or None)
    return [table.take(part) for part in split_rows(table, split, clients, seed)]


def simulated_client(context: Context) -> RangesClient:
    """Build a client from its share of a public data set."""
    node, run = context.node_config, context.run_config
    k = int(node["partition-id"])
    options: Any = (run["data"], run["label"], run["split"], node["num-partitions"], run["seed"])
    table = simulated_tables(*options)[k]
    folder = Path(str(run["files"])) if run["files"] else None
    return RangesClient(
        as_simulated(context),
        table.x,
        table.y,
        columns=table.columns,
        ranges=folder and folder / f"ranges-{k}.json",
        scaling=folder and folder / f"scaling-{k}.json",
    )


def make_client(context: Context) -> RangesClient:
    """Build the client of one node; Flower asks for it with every message."""
    return (deployed_client if "data" in context.node_config else simulated_client)(context)


app = serve(make_client)
