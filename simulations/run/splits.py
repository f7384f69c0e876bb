"""Splits of the rows of a table among simulated clients.

Each function returns one disjoint index array per client; equal seeds give equal splits.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.options import at_least, check_choice, within
from fedkern_flwr.tables.table import Table

#: The ways to deal rows to clients.
Split = Literal["iid", "site", "dirichlet"]

_MAX_CLASSES = 20
_QUANTILE_BINS = 10


def split_rows(
    table: Table,
    kind: Split,
    clients: int,
    seed: int,
    rows_per_client: int | None = None,
    own_share: float = 1.0,
    alpha: float = 0.5,
) -> list[NDArray[np.intp]]:
    """Split the rows of a table.

    Parameters
    ----------
    table : Table
        Data.
    kind : {"iid", "site", "dirichlet"}
        :func:`split_iid`, :func:`split_by_site` or :func:`split_dirichlet`.
    clients : int
        Number of clients.
    seed : int
        Seed.
    rows_per_client : int or None (default: None)
        Rows for each client; None uses all rows.
    own_share : float (default: 1.0)
        Site split: share of the rows of a client from its own site.
    alpha : float (default: 0.5)
        Dirichlet split: concentration; small values give few classes per client.

    Returns
    -------
    list[NDArray[np.intp]]
        Row positions of each client.
    """
    check_choice("split", kind, get_args(Split))
    if kind == "iid":
        return split_iid(table.rows, clients, seed, rows_per_client)
    if kind == "site":
        if table.site is None:
            raise TableError(
                "the data has no site column",
                remedy="name one with --site",
                code="FK-COLUMN-UNNAMED",
            )
        return split_by_site(table.site, clients, seed, rows_per_client, own_share)
    if table.y is None:
        raise TableError("the data has no labels to split by", code="FK-LABELS-MISSING")
    return split_dirichlet(table.y, clients, seed, rows_per_client, alpha)


def split_iid(
    rows: int, clients: int, seed: int, rows_per_client: int | None = None
) -> list[NDArray[np.intp]]:
    """Split a random permutation of the rows in equal parts."""
    _check_counts(rows, clients, rows_per_client)
    order = np.random.default_rng(seed).permutation(rows)
    return np.array_split(order[: clients * (rows_per_client or rows)], clients)


def split_by_site(
    site: ArrayLike,
    clients: int,
    seed: int,
    rows_per_client: int | None = None,
    own_share: float = 1.0,
) -> list[NDArray[np.intp]]:
    """Split rows by site.

    Client k belongs to site k mod S of the S sorted sites. With ``own_share=1`` it gets random rows
    of that site, in file order. With a smaller share the other rows come in equal parts from other
    sites, in random order: 0.7 of 500 rows at four sites is 350 + 3 x 50 rows (Air in POF-MKL).

    Parameters
    ----------
    site : array of int or str, shape (n,)
        Site of each row.
    clients, seed, rows_per_client, own_share
        See :func:`split_rows`; ``own_share < 1`` needs ``rows_per_client``.
    """
    site = np.asarray(site)
    _check_counts(site.size, clients, rows_per_client)
    within("own_share", own_share, "[0, 1]")
    rng = np.random.default_rng(seed)
    values, codes = np.unique(site, return_inverse=True)
    pools = [rng.permutation(np.flatnonzero(codes == s)) for s in range(values.size)]
    own = np.arange(clients) % len(pools)
    counts = np.zeros((clients, len(pools)), np.intp)
    if own_share == 1:
        for s, members in enumerate(np.flatnonzero(own == s) for s in range(len(pools))):
            rows = pools[s].size if rows_per_client is None else len(members) * rows_per_client
            for part, member in enumerate(members):
                counts[member, s] = (rows + len(members) - 1 - part) // len(members)
            _check_site(s, pools, len(members) * (rows_per_client or 1))
        return [np.sort(part) for part in _cut(pools, counts)]
    if rows_per_client is None:
        raise OptionError(
            "own_share below 1 needs the number of rows per client",
            remedy="set rows_per_client",
            code="FK-OPTION-PARTNER",
        )
    if len(pools) == 1:
        raise TableError("the data has one site only", code="FK-SPLIT-ONE")
    for client, mine in enumerate(own):
        shares = np.full(len(pools), (1 - own_share) / (len(pools) - 1))
        shares[mine] = own_share
        counts[client] = _largest_remainder(shares * rows_per_client, rows_per_client)
    for s, needed in enumerate(counts.sum(axis=0).tolist()):
        _check_site(s, pools, needed)
    return [rng.permutation(part) for part in _cut(pools, counts)]


def split_dirichlet(
    y: ArrayLike,
    clients: int,
    seed: int,
    rows_per_client: int | None = None,
    alpha: float = 0.5,
) -> list[NDArray[np.intp]]:
    """Split rows with skewed labels, in random order.

    Classes are the labels if there are at most 20, else ten quantile bins. With
    ``rows_per_client`` each client chooses class proportions from a Dirichlet distribution;
    exhausted classes are replaced by others. Without, each class is divided in Dirichlet
    proportions, and an empty client gets a row of the largest.

    Parameters
    ----------
    y : array of float, shape (n,)
        Labels.
    clients, seed, rows_per_client, alpha
        See :func:`split_rows`.
    """
    y = np.asarray(y)
    _check_counts(y.size, clients, rows_per_client)
    within("alpha", alpha, "(0, inf)")
    rng = np.random.default_rng(seed)
    codes = _classes(y)
    pools = [rng.permutation(np.flatnonzero(codes == c)) for c in range(codes.max() + 1)]
    if rows_per_client is None:
        counts = _divide_classes(pools, clients, alpha, rng)
    else:
        counts = _draw_classes(pools, clients, rows_per_client, alpha, rng)
    parts = _cut(pools, counts)
    for k in range(clients):  # nobody is without rows
        if parts[k].size == 0:
            largest = max(range(clients), key=lambda j: parts[j].size)
            parts[k], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return [rng.permutation(part) for part in parts]


def _check_counts(rows: int, clients: int, rows_per_client: int | None) -> None:
    at_least("clients", clients, 1)
    if rows_per_client is not None:
        at_least("rows_per_client", rows_per_client, 1)
    needed = clients * (rows_per_client or 1)
    if rows < needed:
        each = "" if rows_per_client is None else f" x {rows_per_client} rows"
        raise TableError(
            f"the data has {rows} rows but {clients} clients{each} need {needed}",
            code="FK-ROWS-FEW",
        )


def _cut(pools: list[NDArray[np.intp]], counts: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return ``counts[client, pool]`` rows of each pool for each client, in order."""
    return [
        np.concatenate(
            [pool[end - n : end] for pool, end, n in zip(pools, ends, each, strict=True)]
        )
        for ends, each in zip(counts.cumsum(axis=0), counts, strict=True)
    ]


def _check_site(s: int, pools: list[NDArray[np.intp]], needed: int) -> None:
    if pools[s].size < needed:
        raise TableError(
            f"site {s + 1} of {len(pools)} (sorted) has {pools[s].size} rows but its clients "
            f"need {needed}",
            code="FK-ROWS-FEW",
        )


def _largest_remainder(quotas: NDArray[np.float64], total: int) -> NDArray[np.intp]:
    """Round quotas to integers with sum ``total``; first ones win ties."""
    counts = np.floor(quotas + 1e-9).astype(np.intp)
    order = np.argsort(-np.round(quotas - counts, 9), kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def _classes(y: NDArray[Any]) -> NDArray[np.intp]:
    """Return the class of each row: label or quantile bin."""
    distinct, codes = np.unique(y, return_inverse=True)
    if distinct.size > _MAX_CLASSES:
        edges = np.quantile(y, np.arange(1, _QUANTILE_BINS) / _QUANTILE_BINS)
        codes = np.searchsorted(edges, y, side="right")
    return codes.astype(np.intp)


def _divide_classes(
    pools: list[NDArray[np.intp]], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return counts of rows by client and class, from shares of all rows."""
    counts = np.empty((clients, len(pools)), np.intp)
    for place, pool in enumerate(pools):
        shares = rng.dirichlet(np.full(clients, alpha))
        stops = np.round(np.cumsum(shares)[:-1] * pool.size).astype(np.intp)
        counts[:, place] = np.diff(stops, prepend=0, append=pool.size)
    return counts


def _draw_classes(
    pools: list[NDArray[np.intp]],
    clients: int,
    rows_per_client: int,
    alpha: float,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """Return counts of rows by client and class, with equal totals."""
    counts, left = np.empty((clients, len(pools)), np.intp), np.array([p.size for p in pools])
    for k in range(clients):
        wanted = rng.multinomial(rows_per_client, rng.dirichlet(np.full(left.size, alpha)))
        counts[k] = np.minimum(wanted, left)
        shortage = rows_per_client - int(counts[k].sum())
        if shortage:
            counts[k] += rng.multivariate_hypergeometric(left - counts[k], shortage)
        left -= counts[k]
    return counts
