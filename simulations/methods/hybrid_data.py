"""Data of FedCG: one table dealt to hospitals (rows) and centres (columns)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.landmarks import Sampling, public_seed
from fedkern_flwr.hybrid.parties import CENTRE, HOSPITAL, MissingBlocks
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

from ...clients import HybridKernelClient
from ...strategies import FedCG, PhaseStrategy
from ..engines.ray import ClientFn
from ..run.splits import Split, split_rows
from ..run.toy import three_hospitals
from .labelled_data import (
    DealtData,
    LabelledSettings,
    Task,
    constant_columns,
    labelled_rows,
    part_rows,
    read_task,
    scale,
)

Floats = NDArray[np.float64]

OWN_BLOCK = "clinical"
_TOY = "three-hospitals"


@dataclass(frozen=True)
class HybridSettings(LabelledSettings):
    """Which rows go to which hospital and which columns to which centre.

    Columns are dealt in order: the hospitals' own block, then a block per centre.

    Attributes
    ----------
    test_size : float
        Share of each class's rows held out.
    missing : {"error", "drop-row", "neutral"}
        What to do with rows that lack a block.
    hospitals, centres : int
    own_block : bool
        Whether hospitals hold a block of their own.
    split : {"iid", "site", "dirichlet"}
        How rows are dealt.
    alpha : float
        Concentration of ``split="dirichlet"``.
    allow_single : bool
        See :class:`~fedkern_flwr.strategies.FedCG`.
    reconstruction : bool
        Whether to attack the naive protocol's kernel.
    """

    test_size: float = 0.3
    missing: MissingBlocks = "error"
    hospitals: int = 2
    centres: int = 2
    own_block: bool = True
    split: Split = "iid"
    alpha: float = 0.5
    allow_single: bool = False
    reconstruction: bool = False

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        own = "" if self.own_block else " (no own columns)"
        return f"{self.hospitals} hospitals{own} and {self.centres} centres"


@dataclass(frozen=True)
class Pooled:
    """One split of the pooled table, scaled.

    Attributes
    ----------
    x : ndarray, shape (n, d)
        In [0, 1] by the range of the training rows; NaN where a block is missing.
    y : ndarray, shape (n,)
        Labels; of a regression scaled so that those of the training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
    hospital : ndarray of int, shape (n,)
        To which hospital a row goes.
    blocks : dict
        Name of a block -> positions of its columns; the hospitals' own first, if they have one.
    classes : tuple of float
        Empty for regression.
    scaling : dict
        How the table was scaled, plain values.
    incomplete : int
        Rows left out at the hospitals: without a label, or with holes in the hospitals' block.
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    hospital: NDArray[np.intp]
    blocks: Mapping[str, NDArray[np.intp]]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    incomplete: int = 0

    @property
    def label_bound(self) -> float:
        """Bound of the scaled labels; held-out ones may lie beyond those of the training rows."""
        return float(np.fmax.reduce(np.abs(self.y), initial=1.0))

    @property
    def hospitals(self) -> int:
        """Number of hospitals."""
        return int(self.hospital.max()) + 1

    def landmarks(self, count: int, seed: int) -> Floats:
        """Return training rows drawn without replacement as landmarks (sampling P)."""
        complete = np.flatnonzero(self.train & np.isfinite(self.x).all(axis=1))
        if len(complete) < count:
            raise OptionError(
                f"{count} landmarks are asked of {len(complete)} training rows",
                remedy="use fewer landmarks, or sampling U or N",
            )
        rng = np.random.default_rng(derive_seed(seed, "landmark rows"))
        return np.asarray(self.x[rng.choice(complete, count, replace=False)])


@dataclass(frozen=True)
class HybridClients:
    """A ``client_fn``: hospitals are partitions 0 to H - 1, centres follow.

    Attributes
    ----------
    pooled : Pooled
    hospitals : int
    columns : tuple of str
    seed : int
        Of the landmarks and of the centres' row orders.
    given : ndarray of shape (m, d) or None
        Landmarks that were chosen from the pooled rows.
    protocol : str
    allow_single : bool
    predictions : Path
        Folder for the hospitals' predictions.
    state_dir : Path or None
    """

    pooled: Pooled
    hospitals: int
    columns: tuple[str, ...]
    seed: int
    given: Floats | None
    protocol: Any
    allow_single: bool
    predictions: Path
    state_dir: Path | None

    def __call__(self, context: Context) -> HybridKernelClient:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        own = self.arguments(partition)
        if partition < self.hospitals:
            own["predictions"] = self.predictions / f"partition-{partition}.csv"
        return HybridKernelClient(context, **own, state_dir=self.state_dir)

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return table, secrets and options of a node."""
        pooled, centre = self.pooled, partition - self.hospitals
        names = list(pooled.blocks)
        block = OWN_BLOCK if centre < 0 else names[centre + (OWN_BLOCK in pooled.blocks)]
        columns = pooled.blocks.get(block, np.zeros(0, np.intp))
        common: dict[str, Any] = {
            "block": block,
            "columns": tuple(self.columns[c] for c in columns),
            "alignment_key": hashlib.sha256(b"simulated alignment %d" % self.seed).digest(),
            "landmark_seed": public_seed(self.seed, block),
            "landmarks": None if self.given is None else self.given[:, columns],
            "protocol": self.protocol,
            "allow_single": self.allow_single,
        }
        if centre < 0:
            mine = pooled.hospital == partition
            train, test = (np.flatnonzero(mine & part) for part in (pooled.train, ~pooled.train))
            return {
                "x": pooled.x[np.ix_(train, columns)],
                "y": pooled.y[train],
                "ids": train,
                "x_test": pooled.x[np.ix_(test, columns)],
                "y_test": pooled.y[test] if np.isfinite(pooled.y[test]).all() else None,
                "ids_test": test,
                "classes": pooled.classes or None,
                "label_bound": pooled.label_bound,
                **common,
            }
        x = pooled.x[:, columns]
        rows = np.flatnonzero(np.isfinite(x).all(axis=1))
        rows = np.random.default_rng([self.seed, partition]).permutation(rows)
        return {"x": x[rows], "ids": rows, **common}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say.

        Raises
        ------
        OptionError
            Landmarks are rows of all parties.
        """
        if self.given is not None:
            raise OptionError("sampling P needs all rows in one place", remedy="use U or N")
        role = HOSPITAL if partition < self.hospitals else CENTRE
        return {**self.arguments(partition), "role": role}


class HybridData(DealtData[HybridSettings, Pooled]):
    """A table ready to be dealt, once or anew for every run.

    Parameters
    ----------
    settings : HybridSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few rows or columns to deal.
    """

    def __init__(self, settings: HybridSettings) -> None:
        if settings.hospitals < 1 or settings.centres < 0:
            raise OptionError(
                f"{settings.hospitals} hospitals and {settings.centres} centres",
                remedy="use at least one hospital",
            )
        if not settings.centres and not settings.own_block:
            raise OptionError("nobody has columns", remedy="use --own-block or more centres")
        super().__init__(settings)
        table, _ = self._load(settings.seed)
        self.columns, self.notes = table.columns, table.notes
        self.notes += read_task(settings, table)[1]
        first = self.split(settings.seed)
        if first.incomplete:
            rows = first.incomplete + len(first.y)
            lack = "the label" + " or a value of the hospitals' block" * settings.own_block
            self.notes += (f"left out {first.incomplete} of {rows} rows that lack {lack}",)
        self.notes += constant_columns(first.x[first.train], self.columns)

    # -- what every family's data has

    @property
    def num_clients(self) -> int:
        """Number of hospitals and centres."""
        return self.settings.hospitals + self.settings.centres

    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the hospitals and centres of a run."""
        assert isinstance(strategy, FedCG)
        seed = strategy.seed or 0
        pooled = self.split(seed)
        return HybridClients(
            pooled,
            self.settings.hospitals,
            self.columns,
            seed,
            self.given(strategy),
            strategy.protocol,
            strategy.allow_single,
            self.predictions,
            state_dir,
        )

    def variant(self, strategy: PhaseStrategy) -> Hashable:
        """Return what the clients depend on: protocol, seed, landmarks that are training rows."""
        assert isinstance(strategy, FedCG)
        rows = strategy.landmarks if strategy.sampling == "P" else 0
        return strategy.protocol, strategy.allow_single, strategy.seed, rows

    def facts(self) -> dict[str, Any]:
        """Return who got which columns and how many rows."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "hospitals": self.settings.hospitals,
            "centres": self.settings.centres,
            "columns": {
                block: [self.columns[c] for c in columns] for block, columns in first.blocks.items()
            },
            "rows": [int((first.hospital[first.train] == h).sum()) for h in range(first.hospitals)],
            "held_out_rows": [
                int((first.hospital[~first.train] == h).sum()) for h in range(first.hospitals)
            ],
            "classes": list(first.classes),
        }

    # -- what the family needs

    def given(self, strategy: FedCG) -> Floats | None:
        """Return landmarks chosen from the pooled training rows, where the sampling is P."""
        if strategy.sampling != "P":
            return None
        seed = strategy.seed or 0
        return self.split(seed).landmarks(strategy.landmarks, seed)

    def _load(self, seed: int) -> tuple[Table, NDArray[np.bool_]]:
        """Return training and held-out rows as one table, and which of them are for training."""
        settings = self.settings
        if settings.data == _TOY:
            return part_rows(settings, three_hospitals(seed), seed)
        table = settings.load("error" if settings.missing == "error" else "keep")
        return part_rows(settings, table, seed)

    def deal(self, seed: int) -> Pooled:
        """Load the table, split, scale and deal it."""
        return self._deal(*self._load(seed), seed)

    def _deal(self, table: Table, train: NDArray[np.bool_], seed: int) -> Pooled:
        settings, d = self.settings, len(table.columns)
        if settings.train_rows is not None:
            rows = labelled_rows(settings, table, train, seed)
            table, train = table.take(rows), train[rows]
        x, y, classes, scaling = scale(settings, table, train)
        shares = settings.centres + settings.own_block
        if d < shares:
            raise OptionError(
                f"{d} columns cannot be dealt to {shares} blocks", remedy="use fewer centres"
            )
        parts = np.array_split(np.arange(d), shares)
        names = [OWN_BLOCK] if settings.own_block else []
        names += [f"centre {c + 1}" for c in range(settings.centres)]
        blocks = dict(zip(names, parts, strict=True))
        keep = np.isfinite(y)
        if settings.own_block:
            keep &= np.isfinite(x[:, blocks[OWN_BLOCK]]).all(axis=1)
        rows = np.flatnonzero(keep)
        x, y, train = x[rows], y[rows], train[rows]
        for block, columns in blocks.items():
            if not np.isfinite(x[:, columns]).all(axis=1).any():
                raise TableError(
                    f"every row lacks a column of block {block!r}",
                    remedy="leave out columns that are mostly empty, or use more centres",
                )
        hospital = _deal_rows(settings, table.take(rows), train, seed)
        return Pooled(x, y, train, hospital, blocks, classes, scaling, int((~keep).sum()))


def _deal_rows(
    settings: HybridSettings, table: Table, train: NDArray[np.bool_], seed: int
) -> NDArray[np.intp]:
    """Return to which hospital each row goes."""
    hospitals, parts = settings.hospitals, [part for part in (train, ~train) if part.any()]
    if settings.split == "site" and table.site is not None:
        sites = len(np.unique(table.site))
        if sites > hospitals:
            raise OptionError(
                f"the rows come from {sites} sites, {hospitals} hospitals cannot hold them all",
                remedy=f"use --hospitals {sites}, or another --split",
            )
        if any(len(np.unique(table.site[part])) < sites for part in parts):
            parts = [np.ones_like(train)]  # else a hospital's two parts would be of two sites
    hospital = np.empty(table.rows, np.intp)
    for held in map(np.flatnonzero, parts):  # so that every hospital has rows of both kinds
        if len(held) < hospitals:
            raise OptionError(
                f"{len(held)} of {table.rows} rows cannot be dealt to {hospitals} hospitals",
                remedy="use fewer hospitals, or another test-size",
            )
        rows = table.take(held)
        dealt = split_rows(rows, settings.split, hospitals, seed, alpha=settings.alpha)
        for h, mine in enumerate(dealt):
            hospital[held[mine]] = h
    if (np.bincount(hospital[train], minlength=hospitals) == 0).any():
        raise OptionError("a hospital has no training rows", remedy="use fewer hospitals")
    return hospital


__all__ = ["HybridClients", "HybridData", "HybridSettings", "Pooled", "Sampling", "Task"]
