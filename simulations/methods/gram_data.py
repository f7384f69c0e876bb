"""Data of Secure Gram: a table whose columns are dealt to parties, or users' ratings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.interactions import is_interactions
from fedkern_flwr.tables.table import Table, how_many
from fedkern_flwr.vertical.parties import MissingRows

from ...clients import GramClient
from ...strategies import Method, SecureGram
from ..engines.ray import ClientFn
from ..run.datasets import BUILTIN_INTERACTIONS
from ..run.party_files import PartyFiles
from .clients import DealtClients
from .dealt_data import DealtData, DealtTable, named_columns
from .labelled_data import LabelledSettings
from .rating_data import RatingColumns, RatingData, RatingSettings

Floats = NDArray[np.float64]
_PARTIES = 4


@dataclass(frozen=True)
class GramSettings(RatingColumns, LabelledSettings):
    """Which table or ratings are used, and who gets which columns or users.

    A table's columns are dealt to 4 clients by default.

    Attributes
    ----------
    data : str
        Ratings (built-in, u.data, ratings.dat, .inter, or a table with --user and --item), or a
        table (built-in, .npz, .csv, .tsv, .parquet).
    missing : {"encode", "error", "drop-row"}
        Rows of a table that lack a value (encode: the median, and a column that says so).
    task : {"auto", "classification", "regression"}
        What a table's labels are.
    party : tuple of str
        File of a node, once for each, instead of --data; FILE:features if its label is not used.
    """

    holding = "columns"

    test_size: float = 0.25
    missing: Literal["encode", MissingRows] = "error"

    @property
    def rates(self) -> bool:
        """Whether the data are ratings."""
        named = self.user is not None or self.item is not None
        if self.party:
            return named or is_interactions(self.party[0])
        return named or self.data in BUILTIN_INTERACTIONS or is_interactions(self.data)

    def of_files(self) -> dict[str, Any]:
        """Return the number of parties or nodes."""
        return self.ratings().of_files() if self.rates else super().of_files()

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return how many parties have columns."""
        return {"clients": sum(map(bool, files.blocks))}

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return self.ratings().describe() if self.rates else f"{self.clients or _PARTIES} parties"

    def ratings(self) -> RatingSettings:
        """Return the settings for ratings: nothing is held out."""
        names = {f.name for f in fields(RatingSettings)} & {f.name for f in fields(self)}
        return RatingSettings(**{**{n: getattr(self, n) for n in names}, "test_size": 0.0})


@dataclass(frozen=True, kw_only=True, eq=False)
class Instances(DealtTable):
    """One split of a table.

    Attributes
    ----------
    raw : ndarray, shape (n, d), or None
        Features as they are, if all are numbers.
    parts : tuple of ndarray
        Columns of each party.
    """

    raw: Floats | None
    parts: tuple[NDArray[np.intp], ...]

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return all rows and the columns of each party, as if each had the labels."""
        return [(np.ones_like(self.train), part) for part in self.parts]

    def features(self, encoding: str) -> Floats:
        """Return what is summed: whole numbers as they are, or scaled features.

        Raises
        ------
        TableError
            They are to be whole numbers, and the table has others.
        """
        if encoding != "counts":
            return self.x
        if self.raw is None:
            raise TableError(
                "counts are whole numbers, the table has text, dates or booleans",
                remedy="use --encoding fixed-point",
                code="FK-VALUES-COUNTS",
            )
        return self.raw


@dataclass(frozen=True)
class InstanceClients(DealtClients):
    """A ``client_fn``: parties with columns of a table.

    Attributes
    ----------
    x : ndarray, shape (n, d)
    parts : tuple of ndarray
    state_dir : Path or None
    """

    kind = GramClient
    x: Floats
    parts: tuple[NDArray[np.intp], ...]
    state_dir: Path | None = None

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return the columns of a node."""
        own = self.parts[partition]
        return {"x": self.x[:, own].T}


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
        for name in ("users_per_client", "min_rating", "rating", "time"):
            if getattr(settings, name) is not None:
                raise OptionError(
                    f"{name.replace('_', '-')} is for ratings, {settings.data} is a table",
                    remedy="leave it out, or name the columns of ratings with --user and --item",
                    code="FK-DATA-OPTION",
                )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of parties."""
        return self.settings.clients or _PARTIES

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the parties of a run."""
        assert isinstance(strategy, SecureGram)
        part = self.split(strategy.seed or 0)
        x = part.features(strategy.encoding)
        return InstanceClients(x, part.parts, state_dir)

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return what the clients depend on: what is summed and how, and the split."""
        assert isinstance(strategy, SecureGram)
        seed = strategy.seed if self.settings.resplit else 0
        return strategy.encoding, seed

    def start(self) -> dict[str, Any]:
        """Return the number of rounds."""
        return {"num_rounds": self.settings.rounds or 1}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        parts = self.split(self.settings.seed).parts
        return {**super().facts(), "columns": named_columns(self.columns, parts)}

    def deal(self, found: DealtTable, table: Table, seed: int) -> Instances:
        """Deal the columns to the parties."""
        columns, parties = found.width, self.num_clients
        files = self.settings.files
        parts = None if files is None else [p for p in files.parts(found.source_names) if len(p)]
        if not 2 <= parties <= columns:
            raise OptionError(
                f"{how_many(columns, 'column')} cannot be dealt to {parties} clients",
                remedy=f"use 2 to {columns} clients",
                code="FK-COLUMNS-FEW",
            )
        raw = None if table.kinds else table.x[:, found.scaling["sources"]]
        return Instances(**vars(found), raw=raw, parts=tuple(parts or found.share(parties)))


def prepare_gram(settings: GramSettings) -> RatingData | InstanceData:
    """Load ratings or a table."""
    return RatingData(settings.ratings()) if settings.rates else InstanceData(settings)
