"""Data of FedCG: one table dealt to hospitals (rows) and centres (columns)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.landmarks import public_seed
from fedkern_flwr.hybrid.parties import CENTRE, HOSPITAL
from fedkern_flwr.tables.table import Table, how_many

from ...clients import HybridKernelClient
from ...strategies import Method
from ..run.data import hold_out
from ..run.party_files import PartyFiles
from ..run.splits import Split, split_rows
from ..run.toy import three_hospitals
from .clients import TableClients
from .dealt_data import DealtData, DealtTable, bound_of
from .labelled_data import LabelledSettings, check_sites, owners
from .pooled import PooledSplit

Floats = NDArray[np.float64]

OWN_BLOCK = "clinical"


@dataclass(frozen=True)
class HybridSettings(LabelledSettings):
    """Which rows go to which hospital and which columns to which centre.

    Columns are dealt in order: the hospitals' own block, then a block per centre.

    Attributes
    ----------
    missing : {"error", "drop-row", "neutral"}
        Rows that lack a block of features.
    hospitals : int
        Hospitals, which hold rows (default: 2).
    centres : int
        Centres, which hold columns.
    own_block : bool
        Hospitals hold the first block of columns.
    split : {"iid", "site", "dirichlet"}
        How rows are dealt to hospitals.
    alpha : float
        Concentration of the Dirichlet split.
    allow_single : bool
        Allow a single hospital, and rows that a single centre knows.
    paper_split : bool
        Hold out the rows that the paper's programs do: scikit-learn's train_test_split, seed 0.
    """

    worked_out = frozenset({"hospitals"})
    holding = "rows and columns"

    test_size: float = 0.3
    hospitals: int = 2
    centres: int = 2
    own_block: bool = True
    split: Split = "iid"
    alpha: float = 0.5
    allow_single: bool = False
    paper_split: bool = False

    def training(self, table: Table, seed: int) -> NDArray[np.bool_]:
        """Return which rows are for training."""
        if not self.paper_split:
            return super().training(table, seed)
        hold_out(table, self.test_size, seed)  # refuses shares that cannot be
        from sklearn.model_selection import train_test_split

        rows, _ = train_test_split(np.arange(table.rows), test_size=self.test_size, random_state=0)
        return np.isin(np.arange(table.rows), rows)

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return how many hospitals and centres there are: owners of labels, and others."""
        found = {"hospitals": len(files.owners), "centres": len(files.others), "split": "site"}
        return {**found, "own_block": bool(files.blocks[0])}

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        own = "" if self.own_block else " (no own columns)"
        return f"{how_many(self.hospitals, 'hospital')}{own} and {how_many(self.centres, 'centre')}"


@dataclass(frozen=True, kw_only=True, eq=False)
class HybridSplit(PooledSplit):
    """Training and held-out rows, with who would hold what.

    Attributes
    ----------
    hospital : ndarray of int, shape (n,)
        To which hospital a training row goes.
    blocks : dict
        Name of a block -> positions of its columns; the hospitals' own first, if they have one.
    """

    hospital: NDArray[np.intp]
    blocks: Mapping[str, NDArray[np.intp]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    hospital : ndarray of int, shape (n,)
        To which hospital a row goes.
    blocks : dict
        Name of a block -> positions of its columns; the hospitals' own first, if they have one.
    labelled : tuple of str
        Blocks of centres whose files have the labels, which they do not use.
    """

    hospital: NDArray[np.intp]
    blocks: Mapping[str, NDArray[np.intp]]
    labelled: tuple[str, ...] = ()

    @property
    def hospitals(self) -> int:
        """Number of hospitals."""
        return int(self.hospital.max()) + 1

    def pooled(self) -> HybridSplit:
        """Return it in the hands of a single owner, who knows how it was dealt."""
        mine = self.hospital[self.train]
        return HybridSplit(**vars(super().pooled()), hospital=mine, blocks=self.blocks)

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return the rows of each hospital with their block, and of centres that have labels."""
        own = self.blocks.get(OWN_BLOCK, np.empty(0, np.intp))
        found = [(self.hospital == h, own) for h in range(self.hospitals)]
        return found + [(self.complete(self.blocks[b]), self.blocks[b]) for b in self.labelled]


@dataclass(frozen=True, kw_only=True)
class HybridClients(TableClients[Pooled]):
    """A ``client_fn``: hospitals are partitions 0 to H - 1, centres follow.

    Attributes
    ----------
    hospitals : int
    """

    kind = HybridKernelClient
    hospitals: int

    def predicts(self, partition: int) -> bool:
        """Tell whether a node is a hospital."""
        return partition < self.hospitals

    def table(self, partition: int) -> dict[str, Any]:
        """Return the block of a node, its rows and secrets."""
        dealt, centre = self.dealt, partition - self.hospitals
        names = list(dealt.blocks)
        block = OWN_BLOCK if centre < 0 else names[centre + (OWN_BLOCK in dealt.blocks)]
        columns = dealt.blocks.get(block, np.zeros(0, np.intp))
        common: dict[str, Any] = {
            "block": block,
            "columns": tuple(dealt.columns[c] for c in columns),
            "alignment_key": self.alignment_key,
            "landmark_seed": public_seed(self.seed, block),
        }
        if centre < 0:
            mine = dealt.hospital == partition
            train, test = (np.flatnonzero(mine & part) for part in (dealt.train, ~dealt.train))
            x, x_test = (dealt.x[np.ix_(rows, columns)] for rows in (train, test))
            return {
                "x": x,
                "x_test": x_test,
                "y": dealt.y[train],
                "ids": train,
                "y_test": dealt.y[test] if np.isfinite(dealt.y[test]).all() else None,
                "ids_test": test,
                "classes": dealt.class_names or None,
                "label_bound": dealt.label_bound,
                **common,
            }
        x = dealt.x[:, columns]
        rows = np.flatnonzero(np.isfinite(x).all(axis=1))
        rows = np.random.default_rng([self.seed, partition]).permutation(rows)
        return {"x": x[rows], "ids": rows, **common}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        role = HOSPITAL if partition < self.hospitals else CENTRE
        return {**self.arguments(partition), "role": role}


class HybridData(DealtData[HybridSettings, Pooled]):
    """A table dealt to hospitals and centres.

    Parameters
    ----------
    settings : HybridSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few rows or columns to deal.
    """

    clients, told = HybridClients, ("allow_single",)
    drawn = {"three-hospitals": three_hospitals}  # noqa: RUF012

    def __init__(self, settings: HybridSettings) -> None:
        if settings.hospitals < 1 or settings.centres < 0:
            raise OptionError(
                f"{settings.hospitals} hospitals and {settings.centres} centres",
                remedy="use at least one hospital",
                code="FK-PARTIES-FEW",
            )
        if not settings.centres and not settings.own_block:
            raise OptionError(
                "nobody has columns",
                remedy="use --own-block or more centres",
                code="FK-COLUMNS-FEW",
            )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number of hospitals and centres."""
        return self.settings.hospitals + self.settings.centres

    def dealing(self, strategy: Method) -> dict[str, Any]:
        """Return the number of hospitals."""
        return {"hospitals": self.settings.hospitals}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns and how many rows."""
        first = self.split(self.settings.seed)
        rows, held_out = (
            [int((first.hospital[part] == h).sum()) for h in range(first.hospitals)]
            for part in (first.train, ~first.train)
        )
        return {
            **super().facts(),
            "hospitals": self.settings.hospitals,
            "centres": self.settings.centres,
            "columns": {
                block: [self.columns[c] for c in columns] for block, columns in first.blocks.items()
            },
            "rows": rows,
            "held_out_rows": held_out,
        }

    def read(self) -> Table:
        """Load the table; which rows lack a block is found when the parties match theirs."""
        missing = self.settings.missing
        return self.settings.load(missing if missing in ("error", "encode") else "keep")

    def usable(self, table: Table, train: NDArray[np.bool_], seed: int) -> NDArray[np.intp]:
        """Return all rows, or those that are chosen: those left out are counted first."""
        if self.settings.train_rows is None:
            return np.arange(table.rows)
        return super().usable(table, train, seed)

    def deal(self, found: DealtTable, table: Table, seed: int) -> Pooled:
        """Deal the columns to blocks, and the rows that hospitals can use."""
        settings, d, notes = self.settings, found.width, found.notes
        shares = settings.centres + settings.own_block
        if settings.files is not None:
            parts = settings.files.parts(found.source_names)[not settings.own_block :]
        elif d < shares:
            raise OptionError(
                f"{how_many(d, 'column')} cannot be dealt to {shares} blocks",
                remedy="use fewer centres",
                code="FK-COLUMNS-FEW",
            )
        else:
            parts = found.share(shares)
        names = [OWN_BLOCK] if settings.own_block else []
        names += [f"centre {c + 1}" for c in range(settings.centres)]
        blocks = dict(zip(names, parts, strict=True))
        keep = np.isfinite(found.y)
        if settings.own_block:
            keep &= np.isfinite(found.x[:, blocks[OWN_BLOCK]]).all(axis=1)
        rows = np.flatnonzero(keep)
        if len(rows) < len(keep):
            lack = "the label" + " or a value of the hospitals' block" * settings.own_block
            notes += (f"left out {int((~keep).sum())} of {len(keep)} rows that lack {lack}",)
        x, y, train = found.x[rows], found.y[rows], found.train[rows]
        for block, columns in blocks.items():
            if not np.isfinite(x[:, columns]).all(axis=1).any():
                raise TableError(
                    f"every row lacks a column of block {block!r}",
                    remedy="leave out columns that are mostly empty, or use more centres",
                    code="FK-VALUES-NOROW",
                )
        return Pooled(
            x=x,
            y=y,
            train=train,
            classes=found.classes,
            scaling=found.scaling,
            label_bound=bound_of(y, found.classes),
            notes=notes,
            ids=None if found.ids is None else found.ids[rows],
            hospital=_deal_rows(settings, table.take(rows), train, seed),
            blocks=blocks,
            labelled=tuple(f"centre {k + 1}" for k in settings.files.labelled)
            if settings.files is not None
            else (),
        )


def _deal_rows(
    settings: HybridSettings, table: Table, train: NDArray[np.bool_], seed: int
) -> NDArray[np.intp]:
    """Return to which hospital each row goes."""
    if settings.files is not None:
        return owners(table, train, settings.hospitals)
    hospitals, parts = settings.hospitals, [part for part in (train, ~train) if part.any()]
    if settings.split == "site" and table.site is not None:
        sites = check_sites(table, hospitals, "hospitals", "--hospitals {}")
        if any(len(np.unique(table.site[part])) < sites for part in parts):
            parts = [np.ones_like(train)]  # else a hospital's two parts would be of two sites
    hospital = np.empty(table.rows, np.intp)
    for held in map(np.flatnonzero, parts):  # so that every hospital has rows of both kinds
        if len(held) < hospitals:
            raise OptionError(
                f"{len(held)} of {table.rows} rows cannot be dealt to {hospitals} hospitals",
                remedy="use fewer hospitals, or another test-size",
                code="FK-ROWS-FEW",
            )
        rows = table.take(held)
        dealt = split_rows(rows, settings.split, hospitals, seed, alpha=settings.alpha)
        for h, mine in enumerate(dealt):
            hospital[held[mine]] = h
    if (np.bincount(hospital[train], minlength=hospitals) == 0).any():
        raise OptionError(
            "a hospital has no training rows", remedy="use fewer hospitals", code="FK-ROWS-FEW"
        )
    return hospital
