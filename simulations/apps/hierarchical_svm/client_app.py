"""The client of the app: a user, an agent or the label owner, served to the strategy."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.alignment import read_alignment
from fedkern_flwr.clients import SVMClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.node_files import read_classes

ROLES = ("user", "agent", "owner")


def deployed_client(context: Context) -> SVMClient:
    """Build a node from what its configuration names."""
    node: dict[str, Any] = context.node_config
    run: dict[str, Any] = context.run_config
    if node.get("role") not in ROLES:
        raise OptionError("this node has no role", remedy='add role="user", "agent" or "owner"')
    common = {
        "allow_single": node.get("allow-single", False),
        "state_dir": node.get("state-dir"),
        "identity_key": node.get("identity-key"),
        "trusted_keys": node.get("trusted-keys"),
        "policy": node.get("policy"),
    }
    if node["role"] == "agent":
        return SVMClient(context, **common)
    if "data" not in node:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    names, classes = read_classes(str(node.get("classes", "")))
    columns = (node.get("id-column"), node.get("label-column"))
    user = node["role"] == "user"
    labelled = not user or run["partition"] == "horizontal"
    table = own_table(node["data"], *columns, labelled, names, run["missing"], not user)
    held = None
    if "test-data" in node:
        numbered = user and labelled and "predictions" in node  # which name rows by their place
        how = (run["missing"], not user, numbered)
        held = own_table(node["test-data"], *columns, False, names, *how)
    return SVMClient(
        context,
        table.x if user else None,
        table.y if labelled else None,
        ids=table.ids if run["partition"] == "vertical" else None,
        x_test=held.x if held and user else None,
        y_test=held.y if held and labelled else None,
        ids_test=held.ids if held and run["partition"] == "vertical" else None,
        columns=table.columns if user else None,
        classes=classes if classes and labelled else None,
        label_bound=float(node.get("label-bound", 1.0)),
        alignment_key=read_alignment(node.get("alignment-key")),
        product=node.get("product", "local"),
        predictions=node.get("predictions"),
        **common,
    )


@lru_cache
def simulated_clients(partitions: int, config: tuple[tuple[str, Any], ...]) -> Any:
    """Deal a public data set to the nodes of a simulation: users, then agents, then the owner."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.methods.groups_data import HierarchicalData
    from fedkern_flwr.simulations.methods.groups_settings import HierarchicalSettings
    from fedkern_flwr.strategies import HierarchicalSVM

    run = dict(config)
    if not run["data"]:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    layers, vertical = run["architecture"] == "hierarchical", run["partition"] == "vertical"
    users = partitions - (run["groups"] if layers else 0) - vertical
    if users < 1:
        raise OptionError(
            f"{partitions} nodes are too few for {run['groups']} groups",
            remedy="use more nodes: users, an agent per group and, if vertical, a label owner",
        )
    settings = HierarchicalSettings(
        data=run["data"],
        label=run["label"] or None,
        partition=run["partition"],
        users=users,
        groups=run["groups"] if layers else 1,
        test_size=float(run["test-size"]),
        missing=run["missing"],
        seed=run["seed"],
    )
    strategy = HierarchicalSVM(
        partition=run["partition"],
        architecture=run["architecture"],
        product=run["product"],
        allow_single=run["allow-single"],
        seed=run["seed"],
    )
    data, state_dir = HierarchicalData(settings), run["state-dir"]
    return data.client_fn(strategy, Path(state_dir) if state_dir else None)


def make_client(context: Context) -> SVMClient:
    """Build the client of one node; Flower asks for it with every message."""
    node = context.node_config
    if "role" in node or "data" in node:
        return deployed_client(context)
    clients = simulated_clients(node["num-partitions"], tuple(sorted(context.run_config.items())))
    client: SVMClient = clients(as_simulated(context))
    if folder := context.run_config["predictions"]:
        client.predictions = Path(str(folder)) / f"partition-{client.partition}.csv"
    return client


app = serve(make_client)
