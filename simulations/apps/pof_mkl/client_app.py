"""The client of the app: a node's own table, served to the strategy."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedkern_flwr.clients import OnlineKernelClient, serve
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables import Table, drop_constant_columns, load_table


@lru_cache  # a process reads its table once
def own_table(path: str, label: str | None, scaling: str | None) -> Table:
    """Read the file of a deployed node. CHANGE THIS if your table needs more preparation.

    Rows must lie in the unit ball and labels in [0, 1]. ``scaling`` names a file with the public
    ranges that all nodes agreed on; without it the table must be scaled already.
    """
    table = load_table(path, label=label)
    return Scaling.from_json(Path(scaling).read_text()).apply(table) if scaling else table


@lru_cache
def simulated_tables(data: str, split: Any, clients: int, rows: int, seed: int) -> list[Table]:
    """Deal a public data set to the clients of a simulation."""
    from fedkern_flwr.simulations.datasets import load_data  # not needed by a deployed node
    from fedkern_flwr.simulations.splits import split_rows

    table = drop_constant_columns(load_data(data))
    table = Scaling.fit(table).apply(table)
    return [table.take(part) for part in split_rows(table, split, clients, seed, rows)]


def make_client(context: Context) -> OnlineKernelClient:
    """Build the client of one node; Flower asks for it with every message."""
    node: dict[str, Any] = context.node_config
    run: dict[str, Any] = context.run_config
    if "data" in node:
        table = own_table(node["data"], node.get("label"), node.get("scaling"))
    else:
        clients, rows = node["num-partitions"], run["num-rounds"]
        tables = simulated_tables(run["data"], run["split"], clients, rows, run["seed"])
        table = tables[node["partition-id"]]
    return OnlineKernelClient(
        context,
        table.x,
        table.y,
        columns=table.columns,
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
    )


app = serve(make_client)
