"""Users in groups: how many, and who of them has which rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

from ..run.splits import split_rows
from .groups_settings import HierarchicalSettings


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
        )
    kind = settings.split
    if kind == "site" and table.site is not None:
        sites = len(np.unique(table.site[train]))
        if sites > users:
            raise OptionError(
                f"the rows come from {sites} sites, {users} users cannot hold them all",
                remedy="use more users, or another --split",
            )
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
