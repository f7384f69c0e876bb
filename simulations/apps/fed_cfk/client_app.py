"""Serve a node with its own users' ratings."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import app_release  # type: ignore[import-not-found]  # noqa: F401
import numpy as np
from numpy.typing import NDArray
from own_table import own_table  # type: ignore[import-not-found]  # the file beside this one

from fedkern_flwr.clients import GramClient, serve
from fedkern_flwr.errors import TableError
from fedkern_flwr.interactions import Interactions, read_catalogue
from fedkern_flwr.simulations.apps.node import Node, client_maker

logger = logging.getLogger("flwr")

_ROLES = ("user", "item", "rating")


def arguments(node: Node) -> dict[str, Any]:
    """Read the positive ratings of a node's users, in the order of the public catalogue."""
    config = node.config
    catalogue = node.need(
        "catalogue",
        "catalogue",
        "name the public list of all items in --node-config as catalogue",
    )
    data = node.need("data", "ratings", "name them in --node-config as data")
    columns = tuple((role, config.get(f"{role}-column")) for role in _ROLES)
    least = float(config["min-rating"]) if "min-rating" in config else None
    return own_ratings(data, config.get("test-data"), catalogue, columns, least)


@lru_cache  # a process reads its ratings once
def own_ratings(
    data: str,
    test_data: str | None,
    catalogue: str,
    columns: tuple[tuple[str, str | None], ...],
    min_rating: float | None,
) -> dict[str, Any]:
    """Read the ratings of one or more users.

    Ratings of at least ``min_rating`` count, by default all; it is required with negative ratings,
    since a node does not know the others' scale. A user without any stays. Users of ``test_data``
    who are not in ``data`` are left out.

    Raises
    ------
    TableError
        A file cannot be used, or has items that are not in the catalogue.
    OptionError
        Columns are named for a file without header.
    """
    items = read_catalogue(catalogue)
    how = {
        **dict(columns),
        "timed": False,
        "catalogue": items,
        "column_remedy": "add a header, or name the column as {role}-column",
    }
    known = own_table(data, **how)
    users, train = known.user_ids, known.matrix(likes(known, min_rating, data))
    found = {"x": train, "x_test": None, "users": users, "items": items}
    if test_data is None:
        return found
    held = own_table(test_data, allow_empty=True, **how)
    row_of = {name: row for row, name in enumerate(users)}
    rows = np.array([row_of.get(name, -1) for name in held.user_ids], np.intp)
    strangers = int((rows < 0).sum())
    if strangers:
        logger.warning("%d users of the test data have no ratings, they are left out", strangers)
    held = replace(held, user=rows[held.user], user_ids=users)
    test = held.matrix(likes(held, min_rating, test_data) & (held.user >= 0))
    both = train.multiply(test).nnz
    if both:
        raise TableError(
            f"{both} ratings are in the data and in the test data",
            remedy="hold them out of the data",
            code="FK-PAIRS-TWICE",
        )
    return {**found, "x_test": test}


def likes(found: Interactions, min_rating: float | None, path: str) -> NDArray[np.bool_]:
    """Return which ratings count as positive."""
    if min_rating is None:
        found.refuse_negative(Path(path).name)
        return np.ones(found.rows, np.bool_)
    if not found.rated:
        raise TableError(
            f"{Path(path).name} has no ratings",
            remedy="leave out min-rating",
            code="FK-COLUMN-MISSING",
        )
    return found.rating >= min_rating


make_client = client_maker(
    GramClient,
    arguments,
    own_table,
    keys=("recommendations", "top"),
    simulated="fed-cfk",
)
app = serve(make_client)
