"""Deal public data to the nodes of a simulated app, as ``fedkern run`` does."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context

from fedkern_flwr.node.client import Client

from ..engines.ray import ClientFn
from ..methods.registry import family, method
from ..run.data import Prepared
from .server import make_strategy


def simulated_client(name: str, context: Context) -> Client:
    """Build the client of a node of a simulation.

    Parameters
    ----------
    name : str
        The method.
    context : Context
        The node's; the run's configuration has the settings of the data.

    Raises
    ------
    TableError, OptionError
        The data cannot be used, or there are too few nodes.
    """
    run = tuple(sorted(context.run_config.items()))
    _, clients = _dealt(name, int(context.node_config["num-partitions"]), run)
    client: Any = clients(context)
    if folder := context.run_config.get("predictions"):
        client.predictions = Path(str(folder)) / f"partition-{client.partition}.csv"
    return client  # type: ignore[no-any-return]


@lru_cache
def _dealt(name: str, nodes: int, run: tuple[tuple[str, Any], ...]) -> tuple[Prepared, ClientFn]:
    """Deal the data once for all nodes."""
    own, config = family(name), dict(run)
    values = {key.replace("-", "_"): value for key, value in run}
    values |= {"rounds": config["num-rounds"], **own.deal_nodes(values, nodes)}
    given = {
        f.name: None if f.default is None and not values[f.name] else values[f.name]
        for f in fields(own.settings)
        if f.name in values
    }
    usual = own.settings.of_runs  # defaults of the command line
    if given.get("missing") == "error":
        given.pop("missing")
    settings = own.settings(**{**usual, **given})
    data = own.prepare(settings)
    folder = config.get("state-dir")
    strategy = make_strategy(method(name), config)
    return data, data.client_fn(strategy, Path(folder) if folder else None)
