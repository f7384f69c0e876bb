"""The client of the app: a party with its own columns, served to the strategy."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from own_table import own_table, scale  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.alignment import read_alignment
from fedkern_flwr.clients import VerticalKernelClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.node_files import check_predictions, read_classes, read_secret


def deployed_client(context: Context) -> VerticalKernelClient:
    """Build a party from what the node's configuration names."""
    node: dict[str, Any] = context.node_config
    run: dict[str, Any] = context.run_config
    if node.get("role") not in ("active", "passive"):
        raise OptionError("this node has no role", remedy='add role="active" or role="passive"')
    names, classes = read_classes(str(node.get("classes", "")))
    columns = (node.get("id-column"), node.get("label-column"))
    active = node["role"] == "active"
    check_predictions(node, predicting=active and bool(run["predict"]))
    table = own_table(node["data"], *columns, active, names, run["missing"], active)
    held = None
    if "test-data" in node:
        held = own_table(node["test-data"], *columns, False, names, run["missing"], active)
    new = not run["predict"] and not run["resume"]
    table, held = scale(table, held, node.get("ranges"), new=new)
    return VerticalKernelClient(
        context,
        table.x,
        table.y,
        ids=table.ids,
        x_test=held.x if held else None,
        y_test=held.y if held else None,
        ids_test=held.ids if held else None,
        role=node["role"],
        columns=table.columns,
        classes=classes or None,
        label_bound=float(node.get("label-bound", 1.0)),
        alignment_key=read_alignment(node.get("alignment-key")),
        frequency_seed=read_secret(node.get("frequency-seed"), "the frequency seed"),
        frequencies=node.get("frequencies", "private"),
        topology=node.get("topology", "star"),
        allow_single=node.get("allow-single", False),
        predictions=node.get("predictions"),
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


@lru_cache
def simulated_clients(partitions: int, config: tuple[tuple[str, Any], ...]) -> Any:
    """Deal the columns of a public data set to the parties of a simulation."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.methods.vertical_data import VerticalData, VerticalSettings
    from fedkern_flwr.strategies import FDSKL

    run = dict(config)
    if not run["data"]:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    settings = VerticalSettings(
        data=run["data"],
        label=run["label"] or None,
        parties=partitions,
        active_parties=run["active-parties"],
        test_size=float(run["test-size"]),
        missing=run["missing"],
        seed=run["seed"],
    )
    chosen = {name: run[name] for name in ("frequencies", "topology", "seed")}
    strategy = FDSKL(**chosen, allow_single=run["allow-single"])
    data, state_dir = VerticalData(settings), run["state-dir"]
    clients: Any = data.client_fn(strategy, Path(state_dir) if state_dir else None)
    if run["predictions"]:
        clients = replace(clients, predictions=Path(run["predictions"]))
    return data, clients  # the folder for predictions goes with the data


def make_client(context: Context) -> VerticalKernelClient:
    """Build the client of one node; Flower asks for it with every message."""
    node = context.node_config
    if "data" in node:
        return deployed_client(context)
    _, clients = simulated_clients(
        node["num-partitions"], tuple(sorted(context.run_config.items()))
    )
    client: VerticalKernelClient = clients(as_simulated(context))
    return client


app = serve(make_client)
