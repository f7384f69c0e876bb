"""The client of the app: a node's own table, served to the strategy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flwr.app import Context
from own_table import (  # type: ignore[import-not-found]  # the file beside this one
    held_out,
    own_table,
    read_scaling,
    scale,
)

from fedkern_flwr.clients import OnlineKernelClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables import Table, drop_constant_columns


def deployed_client(context: Context) -> OnlineKernelClient:
    """Build a client from what the node's configuration names."""
    node: dict[str, Any] = context.node_config
    columns = (node.get("label-column", node.get("label")), node.get("id-column"))
    scaling = read_scaling(node.get("scaling"))
    held = held_out(node["test-data"], *columns) if "test-data" in node else None
    table = scale(own_table(node["data"], *columns), held, scaling)
    return OnlineKernelClient(
        context,
        table.x,
        table.y,
        x_test=table.x_test,
        y_test=table.y_test,
        ids_test=held.ids if held else None,
        columns=table.columns,
        label_range=(scaling.y_min, scaling.y_max) if scaling else (0.0, 1.0),
        predictions=node.get("predictions"),
        keep_weights=True,
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


@lru_cache
def simulated_tables(data: str, split: Any, clients: int, rows: int, seed: int) -> list[Table]:
    """Deal a public data set to the clients of a simulation."""
    from fedkern_flwr.simulations.run.datasets import load_data  # not needed by a deployed node
    from fedkern_flwr.simulations.run.splits import split_rows

    if not data:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    table = drop_constant_columns(load_data(data))
    table = Scaling.fit(table).apply(table)
    return [table.take(part) for part in split_rows(table, split, clients, seed, rows)]


def make_client(context: Context) -> OnlineKernelClient:
    """Build the client of one node; Flower asks for it with every message."""
    node: dict[str, Any] = context.node_config
    if "data" in node:
        return deployed_client(context)
    run: dict[str, Any] = context.run_config
    clients, rows = node["num-partitions"], run["num-rounds"]
    tables = simulated_tables(run["data"], run["split"], clients, rows, run["seed"])
    table = tables[node["partition-id"]]
    return OnlineKernelClient(as_simulated(context), table.x, table.y, columns=table.columns)


app = serve(make_client)
