"""Ratings of users, dealt to nodes of one or many users."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.interactions import (
    Interactions,
    encode_interactions,
    hold_out_latest,
    hold_out_random,
)
from fedkern_flwr.options import at_least, check_choice

from ...clients import GramClient
from ...strategies import FedCFK, Method
from ..run.data import Prepared, Settings
from ..run.datasets import read_interactions
from ..run.party_files import check_files
from .dealt_data import NodeClients

HoldOut = Literal["random", "time"]
_CLIENTS = 20


@dataclass(frozen=True)
class RatingColumns(Settings):
    """Columns of ratings, and users of each node.

    Attributes
    ----------
    user : str or None
        Column of users (.csv, .tsv, .parquet).
    item : str or None
        Column of items (.csv, .tsv, .parquet).
    rating : str or None
        Column of ratings (.csv, .tsv, .parquet).
    time : str or None
        Column of times (.csv, .tsv, .parquet).
    min_rating : float or None
        Least positive rating (default: all, or above the middle).
    clients : int or None
        Nodes (default: 20).
    users_per_client : int or None
        Users of each node, instead of --clients.
    rounds : int or None
        Rounds, each with half of the remaining nodes (default: 1, all).
    resplit : bool
        Split again for every run.
    party : tuple of str
        File of a node, once for each, instead of --data.
    """

    adjustable: ClassVar[frozenset[str]] = frozenset({"clients"})

    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None
    min_rating: float | None = None
    clients: int | None = None
    users_per_client: int | None = None
    rounds: int | None = None
    resplit: bool = False
    party: tuple[str, ...] = ()


@dataclass(frozen=True)
class RatingSettings(RatingColumns):
    """Ratings, held-out ratings, and users of each node.

    Attributes
    ----------
    data : str
        Built-in ratings (nyc-flights), or a file (u.data, .inter, .csv, .parquet).
    hold_out : {"random", "time"}
        Hold out random ratings, or the latest.
    """

    test_size: float = 0.1
    hold_out: HoldOut = "random"

    def describe(self) -> str:
        """Describe the split for a caption."""
        if self.users_per_client is not None:
            return f"nodes of {self.users_per_client} users"
        return f"{self.clients or _CLIENTS} nodes"

    def of_files(self) -> dict[str, Any]:
        """Return the number of nodes."""
        paths = [Path(text) for text in self.party]
        check_files(paths)
        return {"clients": len(paths), "data": " + ".join(path.name for path in paths)}

    def read(self) -> tuple[Interactions, list[int]]:
        """Load the positive ratings; return them and the users of each file."""
        named = {"user": self.user, "item": self.item, "rating": self.rating, "time": self.time}
        files = [read_interactions(file, **named) for file in self.party or (self.data,)]
        found = join_ratings(files) if self.party else files[0]
        return found.positive(self.min_rating), [file.users for file in files]


def join_ratings(files: Sequence[Interactions]) -> Interactions:
    """Join the ratings of all files; users in the order of the files."""
    import pyarrow as pa

    users = [name for file in files for name in file.user_ids]
    if repeated := len(users) - len(set(users)):
        raise TableError(f"{repeated} users are in two files", code="FK-IDS-PARTIES")
    if len({file.rated for file in files}) > 1:
        raise TableError(
            "some files have ratings, others none",
            remedy="give all of them ratings",
            code="FK-COLUMNS-DIFFER",
        )

    def column(name: str) -> Any:
        return pa.array(np.concatenate([getattr(file, name) for file in files]))

    def ids(name: str) -> Any:
        parts = [np.array(getattr(f, f"{name}_ids"))[getattr(f, name)] for f in files]
        return pa.array(np.concatenate(parts).tolist())

    timed = all(file.time is not None for file in files)
    rating, time = column("rating") if files[0].rated else None, column("time") if timed else None
    found = encode_interactions(ids("user"), ids("item"), rating, time, "the files")
    place = {name: k for k, name in enumerate(users)}
    code = np.array([place[name] for name in found.user_ids])
    notes = tuple(note for file in files for note in file.notes)
    return replace(found, user=code[found.user], user_ids=tuple(users), notes=notes)


def deal_users(settings: RatingSettings, users: int) -> list[slice]:
    """Return the users of each node, in order."""
    clients, each = settings.clients, settings.users_per_client
    if clients is not None and each is not None:
        raise OptionError("both clients and users-per-client are given", code="FK-OPTION-BOTH")
    for name, value in (("clients", clients), ("users-per-client", each)):
        if value is not None:
            at_least(name, value, 1)
    if each is not None:
        return [slice(k, min(k + each, users)) for k in range(0, users, each)]
    clients = min(_CLIENTS, users) if clients is None else clients
    if clients > users:
        raise OptionError(f"{clients} clients for {users} users", code="FK-ROWS-FEW")
    ends = np.linspace(0, users, clients + 1).astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True)
class PooledRatings:
    """One split of all positive ratings.

    Attributes
    ----------
    train, test : csr_array of int, shape (users, items)
    """

    train: csr_array
    test: csr_array


def _node(
    train: csr_array,
    test: csr_array | None,
    parts: list[slice],
    users: tuple[str, ...],
    items: tuple[str, ...],
    partition: int,
) -> dict[str, Any]:
    """Return the ratings of the users of a node."""
    part = parts[partition]
    held = None if test is None else test[part]
    return {"x": train[part], "x_test": held, "users": users[part], "items": items}


def _recommendations(folder: Path | None, partition: int) -> dict[str, Any]:
    """Return the recommendation file of a simulated node."""
    return {"recommendations": folder and folder / f"partition-{partition}.csv"}


class RatingData(Prepared):
    """Ratings dealt once, or again for every run.

    Parameters
    ----------
    settings : RatingSettings
    """

    settings: RatingSettings

    def __init__(self, settings: RatingSettings) -> None:
        check_choice("hold-out", settings.hold_out, get_args(HoldOut))
        self.settings = settings
        self.ratings, each = settings.read()
        self.parts = deal_users(settings, self.ratings.users)
        if settings.party:
            self.parts = [slice(a, b) for a, b in pairwise(np.cumsum([0, *each]).tolist())]
        self.notes = (*self.ratings.notes, f"{self.ratings.rows} positive ratings")
        self._split: tuple[int, PooledRatings] | None = None
        self.split(settings.seed)  # refuses shares that cannot be

    @property
    def num_clients(self) -> int:
        """Number of nodes."""
        return len(self.parts)

    def split(self, seed: int) -> PooledRatings:
        """Return training and held-out ratings of a run."""
        if not self.settings.resplit:
            seed = self.settings.seed
        if self._split is None or self._split[0] != seed:
            share, ratings = self.settings.test_size, self.ratings
            if self.settings.hold_out == "time":
                held = hold_out_latest(ratings, share)
            else:
                held = hold_out_random(ratings, share, seed)
            pooled = PooledRatings(ratings.matrix(~held), ratings.matrix(held))
            self._split = seed, pooled
        return self._split[1]

    def pooled(self, seed: int) -> PooledRatings:
        """Return the pooled ratings of a run."""
        return self.split(seed)

    def variant(self, strategy: Method) -> Hashable:
        """Return the split."""
        return (strategy.seed or 0) if self.settings.resplit else self.settings.seed

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return what builds the nodes."""
        pooled, users = self.split(strategy.seed or 0), self.ratings.user_ids
        train, test, folder = pooled.train + pooled.test, None, None
        if isinstance(strategy, FedCFK):  # of a matrix alone nothing is recommended
            train, test = pooled.train, pooled.test
            folder = state_dir and state_dir / "recommendations"
        return NodeClients(
            kind=GramClient,
            table=partial(_node, train, test, self.parts, users, self.ratings.item_ids),
            state_dir=state_dir,
            simulated=partial(_recommendations, folder),
        )

    def start(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"num_rounds": self.settings.rounds or 1}

    def facts(self) -> dict[str, Any]:
        """Return numbers of users, items and nodes."""
        return {
            "users": self.ratings.users,
            "items": self.ratings.items,
            "ratings": self.ratings.rows,
            "clients": self.num_clients,
        }

    def scaling_json(self) -> str:
        """Return the names of the items."""
        return json.dumps({"items": list(self.ratings.item_ids)})


def rows_of(parts: list[slice], partitions: list[int]) -> NDArray[np.intp]:
    """Return the users of some nodes."""
    rows = [np.arange(parts[p].start, parts[p].stop) for p in partitions]
    return np.concatenate(rows) if rows else np.zeros(0, np.intp)
