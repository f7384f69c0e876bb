"""The client of the app: a hospital or a centre with its own table, served to the strategy."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.alignment import read_alignment
from fedkern_flwr.clients import HybridKernelClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.node_files import check_predictions, read_classes, read_secret


def deployed_client(context: Context) -> HybridKernelClient:
    """Build a hospital or a centre from what the node's configuration names."""
    node: dict[str, Any] = context.node_config
    if node.get("role") not in ("hospital", "centre"):
        raise OptionError("this node has no role", remedy='add role="hospital" or role="centre"')
    hospital = node["role"] == "hospital"
    check_predictions(node, predicting=hospital and bool(context.run_config["predict"]))
    names, classes = read_classes(str(node.get("classes", "")))
    missing = "error" if context.run_config["missing"] == "error" else "drop-row"
    columns, rest = (node.get("id-column"), node.get("label-column")), (node.get("ranges"), missing)
    table = own_table(node["data"], *columns, hospital, names, *rest)
    held = None
    if "test-data" in node:
        held = own_table(node["test-data"], *columns, False, names, *rest)
    return HybridKernelClient(
        context,
        table.x,
        table.y if hospital else None,
        ids=table.ids,
        x_test=held.x if held else None,
        y_test=held.y if held and hospital else None,
        ids_test=held.ids if held else None,
        columns=table.columns,
        block=node.get("block"),
        classes=classes or None,
        label_bound=float(node.get("label-bound", 1.0)),
        alignment_key=read_alignment(node.get("alignment-key")),
        landmark_seed=read_secret(node.get("landmark-seed"), "the landmark seed"),
        protocol=node.get("protocol", "secure"),
        allow_single=node.get("allow-single", False),
        predictions=node.get("predictions"),
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


@lru_cache
def simulated_clients(partitions: int, config: tuple[tuple[str, Any], ...]) -> Any:
    """Deal a public data set to the hospitals and centres of a simulation."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.methods.hybrid_data import HybridData, HybridSettings
    from fedkern_flwr.strategies import FedCG

    run = dict(config)
    if not run["data"]:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    settings = HybridSettings(
        data=run["data"],
        label=run["label"] or None,
        hospitals=run["hospitals"],
        centres=partitions - run["hospitals"],
        split=run["split"],
        test_size=float(run["test-size"]),
        missing=run["missing"],
        seed=run["seed"],
    )
    chosen = {name: run[name] for name in ("landmarks", "sampling", "protocol", "seed")}
    strategy = FedCG(**chosen, allow_single=run["allow-single"])
    data, state_dir = HybridData(settings), run["state-dir"]
    clients: Any = data.client_fn(strategy, Path(state_dir) if state_dir else None)
    if run["predictions"]:
        clients = replace(clients, predictions=Path(run["predictions"]))
    return data, clients  # the folder for predictions goes with the data


def make_client(context: Context) -> HybridKernelClient:
    """Build the client of one node; Flower asks for it with every message."""
    node = context.node_config
    if "data" in node:
        return deployed_client(context)
    _, clients = simulated_clients(
        node["num-partitions"], tuple(sorted(context.run_config.items()))
    )
    client: HybridKernelClient = clients(as_simulated(context))
    return client


app = serve(make_client)
