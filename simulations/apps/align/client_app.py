"""The client of the app: a party with a table of its own, of which it reads the ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from fedkern_flwr.clients import AlignmentClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated
from fedkern_flwr.private_files import temporary_folder
from fedkern_flwr.tables import load_ids


def deployed_client(context: Context) -> AlignmentClient:
    """Build a party from what the node's configuration names."""
    node: dict[str, Any] = context.node_config
    for name, what in (("id-column", "the column of the ids"), ("alignment", "the file to write")):
        if name not in node:
            raise OptionError(
                f"this node's configuration does not name {what}",
                remedy=f'add {name}="..." to --node-config',
            )
    held_out = load_ids(node["test-data"], node["id-column"]) if "test-data" in node else None
    return AlignmentClient(
        context,
        load_ids(node["data"], node["id-column"]),
        alignment=node["alignment"],
        ids_test=held_out,
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


def simulated_client(context: Context) -> AlignmentClient:
    """Give a node of a simulation some of all ids."""
    run, partition = context.run_config, int(context.node_config["partition-id"])
    rows, share = int(run["rows"]), float(run["share"])
    if not rows:
        raise OptionError("this node has no table", remedy="name it in --node-config as data")
    if rows < 1 or not 0.0 < share <= 1.0:
        raise OptionError(
            f"rows is {rows} and share is {share}", remedy="use rows from 1, share in (0, 1]"
        )
    rng = np.random.default_rng([int(run["seed"]), partition])
    ids = rng.permutation(rows)[: max(1, round(share * rows))]
    folder = run["folder"] or temporary_folder() / f"align-run-{context.run_id}"
    path = Path(str(folder)) / f"alignment-{partition}.npz"
    return AlignmentClient(as_simulated(context), ids, alignment=path)


def make_client(context: Context) -> AlignmentClient:
    """Build the client of one node; Flower asks for it with every message."""
    return (deployed_client if "data" in context.node_config else simulated_client)(context)


app = serve(make_client)
