"""Hospitals' own block as it is in a file, whose encoder they make in the run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.common import OwnColumns
from fedkern_flwr.tables.table import Table

from ...strategies import FedCG

if TYPE_CHECKING:
    from .hybrid_data import Pooled


def own_columns(pooled: Pooled, block: str) -> Table:
    """Return the columns of a block as they are in the table."""
    assert pooled.raw is not None
    table = pooled.raw
    used = np.unique(np.array(pooled.scaling["sources"])[pooled.blocks[block]])
    names = tuple(table.columns[k] for k in used)
    return Table(
        table.x[:, used],
        None,
        names,
        kinds={name: kind for name, kind in table.kinds.items() if name in names},
        categories={name: table.categories[name] for name in names if name in table.categories},
    )


def unencoded(
    pooled: Pooled, block: str, train: NDArray[np.intp], test: NDArray[np.intp], seed: int
) -> dict[str, Any]:
    """Return the arguments of a hospital's client: its rows, and a secret of all hospitals."""
    table = own_columns(pooled, block)
    return {
        "encode": True,
        "x": table.x[train],
        "x_test": table.x[test],
        "columns": table.columns,
        "kinds": table.kinds,
        "categories": table.categories,
        "category_key": category_key(seed),
        "value_bound": pooled.value_bound,
    }


def category_key(seed: int) -> bytes:
    """Return the secret of simulated hospitals that hides categories."""
    return hashlib.sha256(b"simulated categories %d" % seed).digest()


def with_common(pooled: Pooled, block: str, strategy: FedCG, seed: int) -> Pooled:
    """Return a split that is encoded as the hospitals have encoded it in a run."""
    assert pooled.raw is not None
    own, table = own_columns(pooled, block), pooled.raw
    common = OwnColumns(own, category_key(seed)).named(strategy.encoders_[block])
    named = {column.name: column for column in common.columns}
    before = Encoder.from_dict(pooled.scaling["encoder"])
    encoder = Encoder(tuple(named.get(column.name, column) for column in before.columns))
    sources = encoder.sources
    old = np.array(pooled.scaling["sources"])
    scaling = {
        **pooled.scaling,
        "columns": list(encoder.outputs),
        "sources": sources.tolist(),
        "encoder": encoder.to_dict(),
    }
    blocks = {
        name: np.flatnonzero(np.isin(sources, old[columns]))
        for name, columns in pooled.blocks.items()
    }
    return replace(pooled, x=encoder.transform(table), scaling=scaling, blocks=blocks)
