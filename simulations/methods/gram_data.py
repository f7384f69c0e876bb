"""Data of Secure Gram: a table whose columns are dealt to parties, or users' ratings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.interactions import is_interactions
from fedkern_flwr.vertical.parties import MissingRows

from ...clients import GramClient
from ...strategies import PhaseStrategy, SecureGram
from ..engines.ray import ClientFn
from ..run.datasets import BUILTIN_INTERACTIONS
from .labelled_data import (
    DealtData,
    LabelledSettings,
    constant_columns,
    labelled_rows,
    part_rows,
    pool_rows,
    read_task,
    scale,
)
from .pooled import PooledSplit, pool
from .rating_data import RatingData, RatingSettings

Floats = NDArray[np.float64]
_PARTIES = 4


@dataclass(frozen=True)
class GramSettings(LabelledSettings):
    """Which table or ratings are used, and who gets which columns or users.

    Attributes
    ----------
    test_size : float
        Of a table: share of each class's rows held out.
    missing : {"error", "drop-row"}
        Of a table: what to do with rows that lack a value.
    user, item, rating, time, min_rating, clients, users_per_client, rounds
        See :class:`~fedkern_flwr.simulations.methods.rating_data.RatingSettings`; a table's
        columns are dealt to 4 clients by default.
    """

    adjustable: ClassVar[frozenset[str]] = frozenset({"clients"})

    test_size: float = 0.25
    missing: MissingRows = "error"
    user: str | None = None
    item: str | None = None
    rating: str | None = None
    time: str | None = None
    min_rating: float | None = None
    clients: int | None = None
    users_per_client: int | None = None
    rounds: int | None = None

    @property
    def rates(self) -> bool:
        """Whether the data are ratings."""
        named = self.user is not None or self.item is not None
        return named or self.data in BUILTIN_INTERACTIONS or is_interactions(self.data)

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return self.ratings().describe() if self.rates else f"{self.clients or _PARTIES} parties"

    def ratings(self) -> RatingSettings:
        """Return the settings for ratings: nothing is held out."""
        names = {f.name for f in fields(RatingSettings)} & {f.name for f in fields(self)}
        return RatingSettings(**{**{n: getattr(self, n) for n in names}, "test_size": 0.0})


@dataclass(frozen=True)
class Instances:
    """One split of a table.

    Attributes
    ----------
    raw, x : ndarray, shape (n, d)
        Features as they are, and scaled to [0, 1] by the range of the training rows.
    y : ndarray, shape (n,)
        Labels; of a regression scaled so that those of the training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
    parts : tuple of ndarray
        Columns of each party.
    classes : tuple of float
        Empty for a regression.
    scaling : dict
        How the table was scaled, plain values.
    notes : tuple of str
    """

    raw: Floats
    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    parts: tuple[NDArray[np.intp], ...]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    notes: tuple[str, ...]

    def features(self, encoding: str) -> Floats:
        """Return what is summed: whole numbers as they are, or scaled features."""
        return self.raw if encoding == "counts" else self.x


@dataclass(frozen=True)
class InstanceClients:
    """A ``client_fn``: parties with columns of a table.

    Attributes
    ----------
    x : ndarray, shape (n, d)
    parts : tuple of ndarray
    merge : str
    state_dir : Path or None
    x_new : ndarray, shape (new, d), or None
    """

    x: Floats
    parts: tuple[NDArray[np.intp], ...]
    merge: Any = "disjoint"
    state_dir: Path | None = None
    x_new: Floats | None = None

    def __call__(self, context: Context) -> GramClient:
        """Build the client of a node."""
        columns = self.parts[int(context.node_config["partition-id"])]
        return GramClient(
            context,
            self.x[:, columns].T,
            x_new=None if self.x_new is None else self.x_new[:, columns].T,
            merge=self.merge,
            state_dir=self.state_dir,
        )


class InstanceData(DealtData[GramSettings, Instances]):
    """A table whose columns are dealt to parties.

    Parameters
    ----------
    settings : GramSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few columns to deal.
    """

    def __init__(self, settings: GramSettings) -> None:
        super().__init__(settings)
        for name in ("users_per_client", "min_rating", "rating", "time"):
            if getattr(settings, name) is not None:
                raise OptionError(
                    f"{name.replace('_', '-')} is for ratings, {settings.data} is a table",
                    remedy="leave it out, or name the columns of ratings with --user and --item",
                )
        first = self.split(settings.seed)
        self.columns = tuple(first.scaling["columns"])
        self.notes = first.notes + constant_columns(first.x[first.train], self.columns)

    @property
    def num_clients(self) -> int:
        """Number of parties."""
        return self.settings.clients or _PARTIES

    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the parties of a run."""
        assert isinstance(strategy, SecureGram)
        part = self.split(strategy.seed or 0)
        x = part.features(strategy.encoding)
        return InstanceClients(x, part.parts, strategy.merge, state_dir)

    def variant(self, strategy: PhaseStrategy) -> Hashable:
        """Return what the clients depend on: what is summed and how, and the split."""
        assert isinstance(strategy, SecureGram)
        seed = strategy.seed if self.settings.resplit else 0
        return strategy.encoding, strategy.merge, seed

    def start(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"num_rounds": self.settings.rounds or 1}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "columns": [[self.columns[c] for c in part] for part in first.parts],
            "rows": int(first.train.sum()),
            "held_out_rows": int((~first.train).sum()),
            "classes": list(first.classes),
        }

    def pooled(self, seed: int) -> PooledSplit:
        """Return the split of a run in the hands of a single owner."""
        return pool(self.split(seed))

    def deal(self, seed: int) -> Instances:
        """Load the table, split and scale it, deal its columns."""
        settings = self.settings
        table = settings.load(settings.missing)
        if settings.resplit and table.x_test is not None and table.y_test is not None:
            table = pool_rows(table)
        table, train = part_rows(settings, table, seed)
        rows = labelled_rows(settings, table, train, seed)
        table, train = table.take(rows), train[rows]
        x, y, classes, scaling = scale(settings, table, train)
        if not 2 <= self.num_clients <= len(table.columns):
            raise OptionError(
                f"{len(table.columns)} columns cannot be dealt to {self.num_clients} clients",
                remedy=f"use 2 to {len(table.columns)} clients",
            )
        parts = tuple(np.array_split(np.arange(len(table.columns)), self.num_clients))
        notes = (*table.notes, *read_task(settings, table)[1])
        return Instances(table.x, x, y, train, parts, classes, scaling, notes)


def prepare_gram(settings: GramSettings) -> RatingData | InstanceData:
    """Load ratings or a table."""
    return RatingData(settings.ratings()) if settings.rates else InstanceData(settings)
