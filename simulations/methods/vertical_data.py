"""Data of FDSKL: one table whose columns are dealt to parties, and its labels to some of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.vertical.parties import ACTIVE, PASSIVE, MissingRows

from ...clients import VerticalKernelClient
from ...strategies import FDSKL, PhaseStrategy
from ..engines.ray import ClientFn
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

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class VerticalSettings(LabelledSettings):
    """Which columns go to which party.

    Attributes
    ----------
    test_size : float
        Share of each class's rows held out.
    missing : {"error", "drop-row"}
        What to do with rows that lack a value: refuse the table, or leave them out.
    parties : int
        q, all parties; columns are dealt to them in order.
    active_parties : int
        The first so many have the labels, of an equal share of the rows each.
    allow_single : bool
        See :class:`~fedkern_flwr.strategies.FDSKL`.
    rounds : int or None
        Iterations of schedule streaming, 200 by default.
    """

    test_size: float = 0.25
    missing: MissingRows = "error"
    parties: int = 4
    active_parties: int = 1
    allow_single: bool = False
    rounds: int | None = None

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return f"{self.parties} parties, {self.active_parties} with labels"


@dataclass(frozen=True)
class Columns:
    """One split of the pooled table, scaled.

    Attributes
    ----------
    x : ndarray, shape (n, d)
        In [0, 1] by the range of the training rows; NaN where a value is missing.
    y : ndarray, shape (n,)
        Labels; of a regression scaled so that those of the training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
    owner : ndarray of int, shape (n,)
        Active party that has the label of a row.
    parts : tuple of ndarray
        Columns of each party.
    classes : tuple of float
        Empty for regression.
    scaling : dict
        How the table was scaled, plain values.
    label_bound : float
        Bound of the scaled labels; held-out ones may lie beyond those of the training rows.
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    owner: NDArray[np.intp]
    parts: tuple[NDArray[np.intp], ...]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    label_bound: float = 1.0


@dataclass(frozen=True)
class VerticalClients:
    """A ``client_fn``: active parties come first.

    Attributes
    ----------
    pooled : Columns
    actives : int
    columns : tuple of str
    seed : int
        Of the parties' secrets and row orders.
    frequencies, topology : str
    allow_single : bool
    predictions : Path
        Folder for the active parties' predictions.
    state_dir : Path or None
    """

    pooled: Columns
    actives: int
    columns: tuple[str, ...]
    seed: int
    frequencies: Any
    topology: Any
    allow_single: bool
    predictions: Path
    state_dir: Path | None
    _tables: dict[int, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, context: Context) -> VerticalKernelClient:
        """Build the client of a node."""
        party = int(context.node_config["partition-id"])
        active = party < self.actives
        return VerticalKernelClient(
            context,
            **self.arguments(party),
            state_dir=self.state_dir,
            predictions=self.predictions / f"partition-{party}.csv" if active else None,
        )

    def arguments(self, party: int) -> dict[str, Any]:
        """Return table, secrets and options of a node."""
        if party not in self._tables:  # a run asks for the same tables with every message
            self._tables[party] = self.table(party)
        return {
            **self._tables[party],
            "columns": tuple(self.columns[c] for c in self.pooled.parts[party]),
            "alignment_key": alignment_key(self.seed),
            "frequency_seed": frequency_seed(self.seed, party),
            "frequencies": self.frequencies,
            "topology": self.topology,
            "allow_single": self.allow_single,
        }

    def deployed(self, party: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        return {**self.arguments(party), "role": ACTIVE if party < self.actives else PASSIVE}

    def table(self, party: int) -> dict[str, Any]:
        """Return the rows and labels of a party; rows stand in an order of its own."""
        pooled, active = self.pooled, party < self.actives
        rows = np.random.default_rng([self.seed, party]).permutation(len(pooled.y))
        x = pooled.x[np.ix_(rows, pooled.parts[party])]
        held = np.isfinite(x).all(axis=1)
        rows, x = rows[held], x[held]
        if not active:
            return {"x": x, "ids": rows.astype(str)}
        mine, train = pooled.owner[rows] == party, pooled.train[rows]
        tests = mine & ~train
        labels = np.where(mine & train, pooled.y[rows], np.nan)
        y_test = pooled.y[rows[tests]]
        return {
            "x": x[~tests],
            "y": labels[~tests],
            "ids": rows[~tests].astype(str),
            "x_test": x[tests],
            "y_test": y_test if np.isfinite(y_test).all() else None,
            "ids_test": rows[tests].astype(str),
            "classes": pooled.classes or None,
            "label_bound": pooled.label_bound,
        }


class VerticalData(DealtData[VerticalSettings, Columns]):
    """A table ready to be dealt, once or anew for every run.

    Parameters
    ----------
    settings : VerticalSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few columns to deal.
    """

    def __init__(self, settings: VerticalSettings) -> None:
        if not 1 <= settings.active_parties <= settings.parties:
            raise OptionError(
                f"{settings.active_parties} of {settings.parties} parties are active",
                remedy="use at least one, and no more than there are parties",
            )
        super().__init__(settings)
        first = self.split(settings.seed)
        self.columns = tuple(first.scaling["columns"])
        self.notes = self._notes + constant_columns(first.x[first.train], self.columns)

    @property
    def num_clients(self) -> int:
        """Number q of parties."""
        return self.settings.parties

    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the parties of a run."""
        assert isinstance(strategy, FDSKL)
        seed = strategy.seed or 0
        return VerticalClients(
            self.split(seed),
            self.settings.active_parties,
            self.columns,
            seed,
            strategy.frequencies,
            strategy.topology,
            strategy.allow_single,
            self.predictions,
            state_dir,
        )

    def variant(self, strategy: PhaseStrategy) -> Hashable:
        """Return what the clients depend on: what they take part in, and the seed."""
        assert isinstance(strategy, FDSKL)
        return strategy.frequencies, strategy.topology, strategy.allow_single, strategy.seed

    def start(self) -> dict[str, Any]:
        """Return the number of iterations."""
        rounds = self.settings.rounds
        return {} if rounds is None else {"num_rounds": rounds}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "parties": self.settings.parties,
            "active_parties": self.settings.active_parties,
            "columns": [[self.columns[c] for c in part] for part in first.parts],
            "rows": int(first.train.sum()),
            "held_out_rows": int((~first.train).sum()),
            "classes": list(first.classes),
        }

    def pooled(self, seed: int) -> PooledSplit:
        """Return the split of a run in the hands of a single owner."""
        return pool(self.split(seed))

    def deal(self, seed: int) -> Columns:
        """Load the table, split, scale and deal it."""
        settings = self.settings
        table = settings.load(settings.missing)
        if settings.resplit and table.x_test is not None and table.y_test is not None:
            table = pool_rows(table)
        table, train = part_rows(settings, table, seed)
        rows = labelled_rows(settings, table, train, seed)
        table, train = table.take(rows), train[rows]
        x, y, classes, scaling = scale(settings, table, train)
        self._notes = (*table.notes, *read_task(settings, table)[1])
        if len(table.columns) < settings.parties:
            raise OptionError(
                f"{len(table.columns)} columns cannot be dealt to {settings.parties} parties",
                remedy="use fewer parties",
            )
        owner = np.zeros(len(y), np.intp)
        for part in (train, ~train):
            owner[part] = np.arange(int(part.sum())) % settings.active_parties
        parts = tuple(np.array_split(np.arange(len(table.columns)), settings.parties))
        bound = 1.0 if classes else float(np.abs(y).max(initial=1.0))
        return Columns(x, y, train, owner, parts, classes, scaling, bound)


def alignment_key(seed: int) -> bytes:
    """Return the alignment key of simulated parties."""
    return hashlib.sha256(b"simulated alignment %d" % seed).digest()


def frequency_seed(seed: int, party: int) -> bytes:
    """Return the secret of a simulated party's directions."""
    return hashlib.sha256(b"simulated frequencies %d/%d" % (seed, party)).digest()
