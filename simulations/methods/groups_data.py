"""Data of HierarchicalSVM: one table whose rows, or columns and rows, are dealt to groups."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.groups.members import AGENT, OWNER, USER
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

from ...clients import SVMClient
from ...strategies import HierarchicalSVM, PhaseStrategy
from ..engines.delays import DelayLaw, GroupDelays
from ..engines.faults import Plan
from ..engines.ray import ClientFn
from ..run.random_labels import RANDOM_LABELS, random_labels
from .groups_settings import HierarchicalSettings
from .groups_users import deal_rows, group_of
from .labelled_data import (
    DealtData,
    constant_columns,
    labelled_rows,
    part_rows,
    pool_rows,
    read_task,
    scale,
)
from .pooled import PooledSplit, pool
from .vertical_data import alignment_key

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Dealt:
    """One split of the pooled table, its columns as they are.

    Attributes
    ----------
    x : ndarray, shape (n, d)
    y : ndarray, shape (n,)
        Labels; of a regression scaled so that those of the training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
    blocks : tuple of ndarray
        Columns of each block: of each group, or all of them.
    holders : tuple of ndarray of int, each of shape (n,)
        For each block, the user who holds a row of it.
    classes : tuple of float
        Empty for regression.
    scaling : dict
        What is needed to read new rows, plain values.
    vertical : bool
        Whether the blocks are those of groups, and the labels at an owner of theirs.
    label_bound : float
        Bound of the scaled labels; held-out ones may lie beyond those of the training rows.
    notes : tuple of str
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    blocks: tuple[NDArray[np.intp], ...]
    holders: tuple[NDArray[np.intp], ...]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    vertical: bool
    label_bound: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class HierarchicalClients:
    """A ``client_fn``: users in the order of their groups, then agents, then the label owner.

    Attributes
    ----------
    dealt : Dealt
    sizes : tuple of int
        Users of each group.
    columns : tuple of str
    seed : int
        Of the order in which the label owner holds its rows.
    agents : bool
        Whether the groups have agents.
    allow_single : bool
    product : str
    state_dir : Path or None
    """

    dealt: Dealt
    sizes: tuple[int, ...]
    columns: tuple[str, ...]
    seed: int
    agents: bool
    allow_single: bool
    product: Any
    state_dir: Path | None
    _tables: dict[int, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, context: Context) -> SVMClient:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        return SVMClient(context, **self.arguments(partition), state_dir=self.state_dir)

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return role, table, secrets and options of a node."""
        if partition not in self._tables:  # a run asks for the same tables with every message
            self._tables[partition] = self.table(partition)
        options = {"product": self.product, "allow_single": self.allow_single}
        return {**self._tables[partition], **options}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        return self.arguments(partition)

    @property
    def roles(self) -> tuple[str, ...]:
        """The role of each partition."""
        users, groups = sum(self.sizes), len(self.sizes)
        agents = groups if self.agents else 0
        return (*(USER,) * users, *(AGENT,) * agents, *(OWNER,) * self.dealt.vertical)

    def table(self, partition: int) -> dict[str, Any]:
        """Return role, group and table of a node."""
        role, users = self.roles[partition], sum(self.sizes)
        if role == AGENT:
            return {"role": AGENT, "group": partition - users}
        if role == OWNER:
            rng = np.random.default_rng(derive_seed(self.seed, "label owner"))
            rows = rng.permutation(len(self.dealt.y))
            own = self._ids(rows) | self._targets(rows)
            return {"role": OWNER, **own}
        group = group_of(self.sizes)[partition]
        block = group if self.dealt.vertical else 0
        rows = np.flatnonzero(self.dealt.holders[block] == partition)
        columns = self.dealt.blocks[block]
        own = self._parts("x", self.dealt.x[:, columns], rows)
        own |= self._ids(rows) if self.dealt.vertical else self._targets(rows)
        named = tuple(self.columns[c] for c in columns)
        return {"role": USER, "group": group, "columns": named, **own}

    def _parts(self, name: str, values: NDArray[Any], rows: NDArray[np.intp]) -> dict[str, Any]:
        """Return values of rows to learn from and, if any rows are held out, of these."""
        train = self.dealt.train
        found = {name: values[rows[train[rows]]]}
        return found if train.all() else {**found, f"{name}_test": values[rows[~train[rows]]]}

    def _ids(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        names = np.arange(len(self.dealt.y)).astype(str)
        return {**self._parts("ids", names, rows), "alignment_key": alignment_key(self.seed)}

    def _targets(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        dealt = self.dealt
        named = {"classes": dealt.classes or None, "label_bound": dealt.label_bound}
        return {**self._parts("y", dealt.y, rows), **named}


class HierarchicalData(DealtData[HierarchicalSettings, Dealt]):
    """A table ready to be dealt, once or anew for every run.

    Parameters
    ----------
    settings : HierarchicalSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few rows or columns to deal.
    """

    def __init__(self, settings: HierarchicalSettings) -> None:
        self.sizes = settings.sizes
        super().__init__(settings)
        first = self.split(settings.seed)
        self.columns = tuple(first.scaling["columns"])
        self.notes = first.notes + constant_columns(first.x[first.train], self.columns)

    # -- what every family's data has

    @property
    def num_clients(self) -> int:
        """Number of users, agents and label owners."""
        owners = self.settings.partition == "vertical"
        return self.settings.users + len(self.sizes) + owners

    def nodes(self, strategy: PhaseStrategy) -> int:
        """Return the number of nodes of an architecture: agents are in the hierarchical one."""
        assert isinstance(strategy, HierarchicalSVM)
        hierarchical = strategy.architecture == "hierarchical"
        return self.num_clients if hierarchical else self.settings.users

    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the nodes of a run."""
        assert isinstance(strategy, HierarchicalSVM)
        hierarchical = strategy.architecture == "hierarchical"
        return HierarchicalClients(
            self.split(strategy.seed or 0),
            self.sizes if hierarchical else (self.settings.users,),
            self.columns,
            strategy.seed or 0,
            hierarchical,
            strategy.allow_single,
            strategy.product,
            state_dir,
        )

    def variant(self, strategy: PhaseStrategy) -> Hashable:
        """Return what nodes and delays depend on."""
        assert isinstance(strategy, HierarchicalSVM)
        own = self.settings.resplit or self.settings.delay or self.settings.partition == "vertical"
        return (
            strategy.architecture,
            strategy.allow_single,
            strategy.product,
            strategy.seed if own else 0,
        )

    def faults(self, strategy: PhaseStrategy) -> Plan | None:
        """Return the delays of a run; every run has draws of its own."""
        assert isinstance(strategy, HierarchicalSVM)
        if self.settings.delay is None:
            return None
        sizes = self.sizes
        if strategy.architecture != "hierarchical":
            sizes = (self.settings.users,)
        return GroupDelays(DelayLaw.parse(self.settings.delay), group_of(sizes), strategy.seed or 0)

    def start(self) -> dict[str, Any]:
        """Return the largest number of iterations."""
        rounds = self.settings.rounds
        return {} if rounds is None else {"num_rounds": rounds}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "users": self.settings.users,
            "group_sizes": list(self.sizes),
            "columns": [[self.columns[c] for c in block] for block in first.blocks],
            "rows": int(first.train.sum()),
            "held_out_rows": int((~first.train).sum()),
            "classes": list(first.classes),
        }

    def pooled(self, seed: int) -> PooledSplit:
        """Return the split of a run in the hands of a single owner."""
        return pool(self.split(seed))

    def deal(self, seed: int) -> Dealt:
        """Load the table, split and deal it."""
        settings = self.settings
        table, train = self._load(seed)
        rows = labelled_rows(settings, table, train, seed)
        table, train = table.take(rows), train[rows]
        _, y, classes, scaling = scale(settings, table, train)
        blocks, holders = self._deal(table, train, seed)
        return Dealt(
            table.x,
            y,
            train,
            blocks,
            holders,
            classes,
            scaling,
            settings.partition == "vertical",
            1.0 if classes else float(np.abs(y).max(initial=1.0)),
            (*table.notes, *read_task(settings, table)[1]),
        )

    def _load(self, seed: int) -> tuple[Table, NDArray[np.bool_]]:
        """Return training and held-out rows as one table, and which of them are for training."""
        settings = self.settings
        if settings.data == RANDOM_LABELS:
            return part_rows(settings, random_labels(seed), seed)
        table = settings.load(settings.missing)
        if settings.resplit and table.x_test is not None and table.y_test is not None:
            table = pool_rows(table)
        return part_rows(settings, table, seed)

    def _deal(
        self, table: Table, train: NDArray[np.bool_], seed: int
    ) -> tuple[tuple[NDArray[np.intp], ...], tuple[NDArray[np.intp], ...]]:
        """Return the blocks of columns, and who holds the rows of each."""
        columns, sizes = np.arange(len(table.columns)), self.sizes
        if self.settings.partition == "horizontal":
            return (columns,), (deal_rows(self.settings, table, train, self.settings.users, seed),)
        if len(columns) < len(sizes):
            raise OptionError(
                f"{len(columns)} columns cannot be dealt to {len(sizes)} groups",
                remedy="use fewer groups",
            )
        first = np.cumsum([0, *sizes[:-1]])
        holders = tuple(
            first[g] + deal_rows(self.settings, table, train, size, derive_seed(seed, "group", g))
            for g, size in enumerate(sizes)
        )
        return tuple(np.array_split(columns, len(sizes))), holders
