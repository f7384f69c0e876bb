"""The client of the app: a node with its own users' ratings, served to the strategy."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from own_ratings import own_ratings  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import GramClient, serve
from fedkern_flwr.errors import OptionError
from fedkern_flwr.guard.policy import as_simulated


def deployed_client(context: Context) -> GramClient:
    """Build a node from what its configuration names."""
    node: dict[str, Any] = context.node_config
    if "catalogue" not in node:
        raise OptionError(
            "this node has no catalogue",
            remedy="name the public list of all items in --node-config as catalogue",
        )
    columns = tuple(node.get(f"{role}-column") for role in ("user", "item", "rating"))
    least = float(node["min-rating"]) if "min-rating" in node else None
    ratings = own_ratings(node["data"], node["catalogue"], node.get("test-data"), columns, least)
    return GramClient(
        context,
        ratings.train,
        x_test=ratings.test,
        items=ratings.items,
        users=ratings.users,
        merge=node.get("merge", "disjoint"),
        request=node.get("request", "full"),
        recommendations=node.get("recommendations"),
        top=int(node.get("top", 100)),
        state_dir=node.get("state-dir"),
        identity_key=node.get("identity-key"),
        trusted_keys=node.get("trusted-keys"),
        policy=node.get("policy"),
    )


@lru_cache
def simulated_clients(partitions: int, config: tuple[tuple[str, Any], ...]) -> Any:
    """Deal the users of public ratings to the nodes of a simulation."""
    # not needed by a deployed node
    from fedkern_flwr.simulations.methods.rating_data import RatingData, RatingSettings
    from fedkern_flwr.strategies import FedCFK

    run = dict(config)
    if not run["data"]:
        raise OptionError("this node has no ratings", remedy="name them in --node-config as data")
    settings = RatingSettings(
        data=run["data"],
        user=run["user"] or None,
        item=run["item"] or None,
        rating=run["rating"] or None,
        time=run["time"] or None,
        min_rating=float(run["min-rating"]) or None,
        hold_out=run["hold-out"],
        test_size=float(run["test-size"]),
        clients=partitions,
        seed=run["seed"],
    )
    strategy = FedCFK(merge=run["merge"], request=run["request"], seed=run["seed"])
    state_dir = run["state-dir"]
    return RatingData(settings).client_fn(strategy, Path(state_dir) if state_dir else None)


def make_client(context: Context) -> GramClient:
    """Build the client of one node; Flower asks for it with every message."""
    node = context.node_config
    if "data" in node:
        return deployed_client(context)
    clients = simulated_clients(node["num-partitions"], tuple(sorted(context.run_config.items())))
    client: GramClient = clients(as_simulated(context))
    return client


app = serve(make_client)
