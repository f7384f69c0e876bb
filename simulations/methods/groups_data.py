"""Data of HierarchicalSVM: one table whose rows, or columns and rows, are dealt to groups."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.groups.messages import AGENT, OWNER, USER
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table, how_many

from ...clients import SVMClient
from ...strategies import HierarchicalSVM, Method
from ..engines.faults import DelayLaw, GroupDelays, Plan
from ..run.random_labels import RANDOM_LABELS, random_labels
from ..run.splits import split_rows
from .clients import KeptTable, TableClients
from .dealt_data import DealtData, DealtTable, named_columns
from .groups_settings import HierarchicalSettings
from .labelled_data import check_sites, owners
from .pooled import PooledSplit


@dataclass(frozen=True, kw_only=True, eq=False)
class Dealt(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    blocks : tuple of ndarray
        Columns of each block: of each group, or all of them.
    holders : tuple of ndarray of int, each of shape (n,)
        For each block, the user who holds a row of it.
    vertical : bool
        Whether the blocks are those of groups, and the labels at an owner of theirs.
    """

    blocks: tuple[NDArray[np.intp], ...]
    holders: tuple[NDArray[np.intp], ...]
    vertical: bool

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return the rows of each user, as if each had their labels, and its columns."""
        parts = zip(self.blocks, self.holders, strict=True)
        return [(who == user, block) for block, who in parts for user in np.unique(who)]


@dataclass(frozen=True, kw_only=True)
class HierarchicalClients(TableClients[Dealt]):
    """A ``client_fn``: users in the order of their groups, then agents, then the label owner.

    Attributes
    ----------
    sizes : tuple of int
        Users of each group.
    agents : bool
        Whether the groups have agents.
    """

    kind = SVMClient
    sizes: tuple[int, ...]
    agents: bool

    def predicts(self, partition: int) -> bool:
        """Tell whether a node owns the labels."""
        return self.roles[partition] == OWNER

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
            return {"role": OWNER, "table": KeptTable(), **own}
        group = group_of(self.sizes)[partition]
        block = group if self.dealt.vertical else 0
        rows = np.flatnonzero(self.dealt.holders[block] == partition)
        columns = self.dealt.blocks[block]
        own = self._parts("x", self.dealt.x[:, columns], rows)
        own |= self._ids(rows) if self.dealt.vertical else self._targets(rows)
        named = tuple(self.dealt.columns[c] for c in columns)
        return {"role": USER, "group": group, "table": KeptTable(), "columns": named, **own}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        own = self.arguments(partition)
        if self.dealt.ids is None or self.dealt.vertical or self.roles[partition] != USER:
            return own
        rows = np.flatnonzero(self.dealt.holders[0] == partition)
        return {**own, **self._parts("ids", np.arange(len(self.dealt.y)), rows)}

    def _parts(self, name: str, values: NDArray[Any], rows: NDArray[np.intp]) -> dict[str, Any]:
        """Return values of rows to learn from and, if any rows are held out, of these."""
        train = self.dealt.train
        found = {name: values[rows[train[rows]]]}
        return found if train.all() else {**found, f"{name}_test": values[rows[~train[rows]]]}

    def _ids(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        names = np.arange(len(self.dealt.y)).astype(str)
        return {**self._parts("ids", names, rows), "alignment_key": self.alignment_key}

    def _targets(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        dealt = self.dealt
        found = self._parts("y", dealt.y, rows)
        if not np.isfinite(found.get("y_test", 0.0)).all():  # of new rows nobody knows them
            del found["y_test"]
        return {**found, "classes": dealt.class_names or None, "label_bound": dealt.label_bound}


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupedSplit(PooledSplit):
    """Training and held-out rows, with who would hold what.

    Attributes
    ----------
    blocks : tuple of ndarray
        Columns of each block: of each group, or all of them.
    holders : tuple of ndarray of int, each of shape (n,)
        For each block, the user who holds a training row of it.
    sizes : tuple of int
        Users of each group.
    rounds : int or None
        Most iterations.
    """

    blocks: tuple[NDArray[np.intp], ...]
    holders: tuple[NDArray[np.intp], ...]
    sizes: tuple[int, ...]
    rounds: int | None


class HierarchicalData(DealtData[HierarchicalSettings, Dealt]):
    """A table dealt to groups.

    Parameters
    ----------
    settings : HierarchicalSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few rows or columns to deal.
    """

    clients, told = HierarchicalClients, ("allow_single",)
    drawn = {RANDOM_LABELS: random_labels}  # noqa: RUF012

    def __init__(self, settings: HierarchicalSettings) -> None:
        self.sizes = settings.sizes
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of users, agents and label owners."""
        owners = self.settings.partition == "vertical"
        return self.settings.users + len(self.sizes) + owners

    def nodes(self, strategy: Method) -> int:
        """Return the number of nodes of an architecture: agents are in the hierarchical one."""
        return self.num_clients if self.layers(strategy) else self.settings.users

    def sizes_of(self, strategy: Method) -> tuple[int, ...]:
        """Return the number of users of each group of an architecture."""
        return self.sizes if self.layers(strategy) else (self.settings.users,)

    def layers(self, strategy: Method) -> bool:
        """Tell whether groups have agents: by default they do where groups were named."""
        assert isinstance(strategy, HierarchicalSVM)
        unsaid = strategy.architecture is None and strategy.budget is None
        return strategy.layers or (unsaid and self.settings.grouped)

    def dealing(self, strategy: Method) -> dict[str, Any]:
        """Return the groups; nobody writes predictions."""
        agents = self.layers(strategy)
        return {"sizes": self.sizes_of(strategy), "agents": agents, "predictions": None}

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
        """Return what nodes and delays depend on."""
        settings = self.settings
        *told, seed = super().variant(strategy)
        own = settings.resplit or settings.delay or settings.partition == "vertical"
        return self.layers(strategy), *told, seed if own else 0

    def faults(self, strategy: Method) -> Plan | None:
        """Return the delays of a run; every run has draws of its own."""
        if self.settings.delay is None:
            return None
        groups = group_of(self.sizes_of(strategy))
        return GroupDelays(DelayLaw.parse(self.settings.delay), groups, strategy.seed or 0)

    def pooled(self, seed: int) -> GroupedSplit:
        """Return the split of a run in the hands of a single owner, who knows how it was dealt."""
        dealt = self.split(seed)
        return GroupedSplit(
            **vars(dealt.pooled()),
            blocks=dealt.blocks,
            holders=tuple(holder[dealt.train] for holder in dealt.holders),
            sizes=self.sizes,
            rounds=self.settings.rounds,
        )

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        return {
            **super().facts(),
            "users": self.settings.users,
            "group_sizes": list(self.sizes),
            "columns": named_columns(self.columns, self.split(self.settings.seed).blocks),
        }

    def deal(self, found: DealtTable, table: Table, seed: int) -> Dealt:
        """Deal columns and rows."""
        blocks, holders = self._deal(found, table, seed)
        vertical = self.settings.partition == "vertical"
        return Dealt(**vars(found), blocks=blocks, holders=holders, vertical=vertical)

    def _deal(
        self, found: DealtTable, table: Table, seed: int
    ) -> tuple[tuple[NDArray[np.intp], ...], tuple[NDArray[np.intp], ...]]:
        """Return the blocks of columns, and who holds the rows of each."""
        sizes, train = self.sizes, found.train
        if self.settings.partition == "horizontal":
            columns = np.arange(len(found.columns))
            return (columns,), (deal_rows(self.settings, table, train, self.settings.users, seed),)
        if found.width < len(sizes):
            raise OptionError(
                f"{how_many(found.width, 'column')} cannot be dealt to {len(sizes)} groups",
                remedy="use fewer groups",
                code="FK-COLUMNS-FEW",
            )
        first = np.cumsum([0, *sizes[:-1]])
        holders = tuple(
            first[g] + deal_rows(self.settings, table, train, size, derive_seed(seed, "group", g))
            for g, size in enumerate(sizes)
        )
        return found.share(len(sizes)), holders


def group_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the group of each user."""
    return tuple(np.repeat(np.arange(len(sizes)), sizes).tolist())


def deal_rows(
    settings: HierarchicalSettings, table: Table, train: NDArray[np.bool_], users: int, seed: int
) -> NDArray[np.intp]:
    """Return to which of so many users each row goes; every user gets rows to learn from.

    Raises
    ------
    OptionError, TableError
        There are too few rows or users.
    """
    if train.sum() < users:
        raise TableError(
            f"{int(train.sum())} training rows cannot be dealt to {users} users",
            remedy="use fewer users, or hold out fewer rows",
            code="FK-ROWS-FEW",
        )
    if settings.files is not None:
        return owners(table, train, users)
    kind = settings.split
    if kind == "site":
        check_sites(table.take(np.flatnonzero(train)), users, "users", "more users")
    holder = np.empty(table.rows, np.intp)
    rows, held_out = np.flatnonzero(train), np.flatnonzero(~train)
    for user, mine in enumerate(
        split_rows(table.take(rows), kind, users, seed, alpha=settings.alpha)
    ):
        holder[rows[mine]] = user
    rng = np.random.default_rng(derive_seed(seed, "held-out rows of users"))
    for user, mine in enumerate(np.array_split(rng.permutation(held_out), users)):
        holder[mine] = user  # whoever judges a row, the sum is the same
    return holder
