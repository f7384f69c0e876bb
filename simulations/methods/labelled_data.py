"""Tables with labels to tell classes or predict numbers, split, scaled, and dealt for every run."""

from __future__ import annotations

import json
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid.parties import MissingBlocks
from fedkern_flwr.seeding import derive_seed
from fedkern_flwr.tables.table import Table

from ...strategies import PhaseStrategy
from ..run.data import Prepared, TableSettings, hold_out
from .pooled import PooledSplit

Floats = NDArray[np.float64]
Task = Literal["auto", "classification", "regression"]

_MOST_CLASSES = 20  # whole numbers with more values than that are taken for a regression


@dataclass(frozen=True)
class LabelledSettings(TableSettings):
    """What the labels of a table are.

    Attributes
    ----------
    missing : {"error", "drop-row", "neutral"}
        Rows that lack a value.
    task : {"auto", "classification", "regression"}
        What the labels are (auto: few whole numbers).
    positive : float or None
        Class that is told from all others.
    train_rows : int or None
        Learn from a choice of so many rows.
    resplit : bool
        A split of its own for every run.
    """

    missing: MissingBlocks = "error"
    task: Task = "auto"
    positive: float | None = None
    train_rows: int | None = None
    resplit: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class DealtTable:
    """One split of a table, scaled; a method adds who has what of it.

    Attributes
    ----------
    x : ndarray, shape (n, d)
        In [0, 1] by the range of the training rows, or as the method needs them; NaN where a value
        is missing.
    y : ndarray, shape (n,)
        Labels; of a regression scaled so that those of the training rows are in [-1, 1].
    train : ndarray of bool, shape (n,)
        Which rows are for training.
    classes : tuple of float
        Empty for a regression.
    scaling : dict
        How the table was scaled, plain values.
    label_bound : float
        Bound of the scaled labels; held-out ones may lie beyond those of the training rows.
    notes : tuple of str
        What was done to the table, for the user to read.
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    label_bound: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.scaling["columns"])

    def pooled(self) -> PooledSplit:
        """Return it in the hands of a single owner."""
        train, test = self.train, ~self.train
        unit = float(self.scaling["y_half_range"])
        return PooledSplit(
            self.x[train], self.y[train], self.x[test], self.y[test], self.classes, unit
        )


S = TypeVar("S", bound=LabelledSettings)
D = TypeVar("D", bound=DealtTable)


class DealtData(Prepared, Generic[S, D]):
    """A table ready to be dealt, once or anew for every run.

    Parameters
    ----------
    settings : LabelledSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few rows or columns to deal.

    Attributes
    ----------
    clients : callable
        Builds what builds the clients, see :class:`~.clients.TableClients`.
    told : tuple of str
        Options of the strategy that the clients are told; they are made anew for others.
    drawn : dict
        Data sets that are drawn, by name.
    """

    clients: ClassVar[Callable[..., Callable[..., Any]]]
    told: ClassVar[tuple[str, ...]]
    drawn: ClassVar[Mapping[str, Callable[[int], Table]]] = {}

    def __init__(self, settings: S) -> None:
        self.settings = settings
        self._splits: dict[int, D] = {}
        self._folder: Any = None
        first = self.split(settings.seed)
        self.columns = first.columns
        self.notes = first.notes + constant_columns(first.x[first.train], first.columns)

    def start(self) -> dict[str, Any]:
        """Return the number of rounds, if it is given."""
        rounds = getattr(self.settings, "rounds", None)
        return {} if rounds is None else {"num_rounds": rounds}

    def facts(self) -> dict[str, Any]:
        """Return how many clients and rows there are, and the classes."""
        first = self.split(self.settings.seed)
        return {
            "clients": self.num_clients,
            "rows": int(first.train.sum()),
            "held_out_rows": int((~first.train).sum()),
            "classes": list(first.classes),
        }

    def scaling_json(self) -> str:
        """Return the ranges of the columns and of the labels."""
        return json.dumps(dict(self.split(self.settings.seed).scaling))

    @property
    def predictions(self) -> Path:
        """Folder to which simulated parties write, gone with this object."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fedkern-")
        return Path(self._folder.name)

    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> Any:
        """Return what builds the clients of a run."""
        seed = strategy.seed or 0
        common = {
            "dealt": self.split(seed),
            "seed": seed,
            "options": {name: getattr(strategy, name) for name in self.told},
            "predictions": self.predictions,
            "state_dir": state_dir,
        }
        return type(self).clients(**{**common, **self.dealing(strategy)})

    def dealing(self, strategy: PhaseStrategy) -> dict[str, Any]:
        """Return what else the method's clients are made of."""
        return {}

    def variant(self, strategy: PhaseStrategy) -> tuple[Hashable, ...]:
        """Return what the clients depend on: what they are told, and the seed."""
        return (*(getattr(strategy, name) for name in self.told), strategy.seed)

    def pooled(self, seed: int) -> PooledSplit:
        """Return the split of a run in the hands of a single owner."""
        return self.split(seed).pooled()

    def split(self, seed: int) -> D:
        """Return the split of a run."""
        if not self.settings.resplit:
            seed = self.settings.seed
        if seed not in self._splits:
            self._splits.clear()  # one at a time: tables may be large
            self._splits[seed] = self._make(seed)
        return self._splits[seed]

    def _make(self, seed: int) -> D:
        """Load the table, split and scale it, and deal it."""
        settings = self.settings
        table, train = self.load(seed)
        rows = self.usable(table, train, seed)
        table, train = table.take(rows), train[rows]
        x, y, classes, scaling = scale(settings, table, train)
        found = DealtTable(
            x=x,
            y=y,
            train=train,
            classes=classes,
            scaling=scaling,
            label_bound=bound_of(y, classes),
            notes=(*table.notes, *read_task(settings, table)[1]),
        )
        return self.deal(found, table, seed)

    def load(self, seed: int) -> tuple[Table, NDArray[np.bool_]]:
        """Return training and held-out rows as one table, and which of them are for training."""
        draw = self.drawn.get(self.settings.data)
        return part_rows(self.settings, self.read() if draw is None else draw(seed), seed)

    def read(self) -> Table:
        """Load the table."""
        settings = self.settings
        table = settings.load("keep" if settings.missing == "neutral" else settings.missing)
        if settings.resplit and table.x_test is not None and table.y_test is not None:
            table = pool_rows(table)
        return table

    def usable(self, table: Table, train: NDArray[np.bool_], seed: int) -> NDArray[np.intp]:
        """Return the rows that are used: those with a label."""
        return labelled_rows(self.settings, table, train, seed)

    @abstractmethod
    def deal(self, found: DealtTable, table: Table, seed: int) -> D:
        """Say who has what of a table, whose columns in ``table`` are as they were."""


def check_sites(table: Table, holders: int, who: str, remedy: str) -> int:
    """Return the number of sites of some rows, which so many parties are to hold.

    Raises
    ------
    OptionError
        There are too many.
    """
    sites = 0 if table.site is None else len(np.unique(table.site))
    if sites > holders:
        raise OptionError(
            f"the rows come from {sites} sites, {holders} {who} cannot hold them all",
            remedy=f"use {remedy.format(sites)}, or another --split",
        )
    return sites


def named_columns(names: tuple[str, ...], parts: Sequence[NDArray[np.intp]]) -> list[list[str]]:
    """Return the names of the columns of each part."""
    return [[names[c] for c in part] for part in parts]


def bound_of(y: Floats, classes: tuple[float, ...]) -> float:
    """Return the bound of scaled labels, which clients do not need of classes."""
    return 1.0 if classes else float(np.fmax.reduce(np.abs(y), initial=1.0))


def part_rows(
    settings: LabelledSettings, table: Table, seed: int
) -> tuple[Table, NDArray[np.bool_]]:
    """Return training and held-out rows as one table, and which of them are for training.

    Raises
    ------
    TableError
        There are no labels.
    """
    if table.y is None:
        raise TableError("the data has no labels", remedy="name them with --label")
    if table.x_test is None or table.y_test is None:
        return table, hold_out_evenly(settings, table, seed)
    return pool_rows(table), np.arange(table.rows + len(table.y_test)) < table.rows


def labelled_rows(
    settings: LabelledSettings, table: Table, train: NDArray[np.bool_], seed: int
) -> NDArray[np.intp]:
    """Return the rows that have a label, of those for training the choice that is asked for.

    Raises
    ------
    OptionError
        Fewer than one is asked for.
    """
    assert table.y is not None
    keep = np.isfinite(table.y)
    if settings.train_rows is not None:
        if settings.train_rows < 1:
            raise OptionError(f"train-rows is {settings.train_rows}", remedy="use at least 1")
        rng = np.random.default_rng(derive_seed(seed, "training rows"))
        mine = np.flatnonzero(train & keep)
        keep &= ~train
        keep[rng.permutation(mine)[: settings.train_rows]] = True
    return np.flatnonzero(keep)


def pool_rows(table: Table) -> Table:
    """Return a table whose held-out rows stand below the others."""
    assert table.y is not None
    assert table.x_test is not None
    assert table.y_test is not None
    site = None
    if table.site is not None:  # held-out rows of a data set have no sites: dealt in turn
        site = np.concatenate([table.site, np.resize(table.site, len(table.y_test))])
    return replace(
        table,
        x=np.concatenate([table.x, table.x_test]),
        y=np.concatenate([table.y, table.y_test]),
        ids=None,
        site=site,
        x_test=None,
        y_test=None,
    )


def scale(
    settings: LabelledSettings, table: Table, train: NDArray[np.bool_]
) -> tuple[Floats, Floats, tuple[float, ...], dict[str, Any]]:
    """Scale features to [0, 1] and the labels of a regression to [-1, 1] by the training rows.

    Returns
    -------
    (ndarray, ndarray, tuple, dict)
        Features, clipped and NaN where they are missing; labels; the classes, empty for a
        regression; how it was scaled, plain values.

    Raises
    ------
    TableError
        No label, or a column without a value.
    """
    assert table.y is not None
    classes, _ = read_task(settings, table)
    x, y = (np.where(np.isfinite(v), v, np.nan) for v in (table.x, table.y))
    if not np.isfinite(y[train]).any():
        raise TableError("no training row has a label", remedy="hold out fewer rows")
    low, high = (bound.reduce(x[train], axis=0) for bound in (np.fmin, np.fmax))
    empty = np.isnan(low)
    if empty.any():
        raise TableError(
            f"column {table.columns[int(np.argmax(empty))]!r} is empty in all training rows"
            + (f" ({int(empty.sum())} columns are)" if empty.sum() > 1 else ""),
            remedy="leave it out",
        )
    span = np.where(high > low, high - low, 1.0)
    x = np.clip((x - low) / span, 0.0, 1.0)
    middle, half = 0.0, 1.0
    if settings.positive is not None:
        y = np.where(np.isnan(y), np.nan, y == settings.positive)
    elif not classes:
        least, most = float(np.nanmin(y[train])), float(np.nanmax(y[train]))
        middle, half = (least + most) / 2.0, (most - least) / 2.0 or 1.0
        y = (y - middle) / half
    scaling = {
        "columns": list(table.columns),
        "x_min": low.tolist(),
        "x_max": high.tolist(),
        "y_middle": middle,
        "y_half_range": half,
        "classes": list(classes),
    }
    return x, y, classes, scaling


def constant_columns(x: Floats, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note that names columns without variation, if there are any."""
    constant = np.ptp(np.nan_to_num(x), axis=0) == 0.0
    names = [c for c, flat in zip(columns, constant, strict=True) if flat]
    return (f"constant in the training rows: {', '.join(names[:10])}",) if names else ()


def hold_out_evenly(settings: LabelledSettings, table: Table, seed: int) -> NDArray[np.bool_]:
    """Return which rows are for training; the same share of every class is held out."""
    hold_out(table, settings.test_size, seed)  # refuses shares that cannot be
    classes, _ = read_task(settings, table)
    assert table.y is not None
    groups = np.zeros(table.rows)
    if settings.positive is not None:
        groups = (table.y == settings.positive).astype(np.float64)
    elif classes:
        groups = table.y
    rng = np.random.default_rng(derive_seed(seed, "held-out rows"))
    train = np.ones(table.rows, bool)
    for group in np.unique(groups[np.isfinite(groups)]):
        rows = rng.permutation(np.flatnonzero(groups == group))
        train[rows[: round(settings.test_size * len(rows))]] = False
    return train


def read_task(
    settings: LabelledSettings, table: Table
) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the classes, none for a regression, and notes for the user."""
    if settings.task not in get_args(Task):
        raise OptionError(f"there is no task {settings.task!r}", remedy="see --help")
    assert table.y is not None
    y = table.y if table.y_test is None else np.concatenate([table.y, table.y_test])
    values = np.unique(y[np.isfinite(y)])
    if not len(values):
        raise TableError("no row has a label", remedy="choose another label")
    if settings.positive is not None:
        if settings.task == "regression" or settings.positive not in values:
            raise OptionError(
                f"there is no class {settings.positive:g} to tell from the others",
                remedy="choose one of the labels",
            )
        return (0.0, 1.0), ()
    whole = bool((values == np.rint(values)).all()) and len(values) <= _MOST_CLASSES
    if settings.task == "regression" or (settings.task == "auto" and not whole):
        return (), ()
    if len(values) < 2:
        raise TableError("the label is constant", remedy="choose a label that varies")
    note = (f"{len(values)} classes",) if settings.task == "auto" else ()
    return tuple(values.tolist()), note
