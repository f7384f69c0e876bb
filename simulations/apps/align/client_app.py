"""Serve a party with the ids of its own table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
import numpy as np
from flwr.app import Context
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.checkpoint import temporary_folder
from fedkern_flwr.clients import AlignmentClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.options import at_least, within
from fedkern_flwr.simulations.apps.node import Node, client_maker


def arguments(node: Node) -> dict[str, Any]:
    """Read the ids of a party."""
    for name, what in (("id-column", "the column of the ids"), ("alignment", "the file to write")):
        if name not in node.config:
            raise OptionError(
                f"this node's configuration does not name {what}",
                remedy=f'add {name}="..." to --node-config',
                code="FK-NODE-KEY",
            )
    return {"ids": node.table(), "ids_test": node.table("test-data")}


def simulated_client(context: Context) -> AlignmentClient:
    """Give a node of a simulation some of all ids."""
    run, partition = context.run_config, int(context.node_config["partition-id"])
    rows, share = int(run["rows"]), float(run["share"])
    at_least("rows", rows, 1)
    within("share", share, "(0, 1]")
    rng = np.random.default_rng([int(run["seed"]), partition])
    ids = rng.permutation(rows)[: max(1, round(share * rows))]
    folder = run["folder"] or temporary_folder() / f"align-run-{context.run_id}"
    return AlignmentClient(context, ids, alignment=Path(str(folder)) / f"alignment-{partition}.npz")


make_client = client_maker(
    AlignmentClient,
    arguments,
    own_table,
    keys=("alignment",),
    simulated=simulated_client,
    freezes=False,  # ids are in no sum
)
app = serve(make_client)
