"""Tables that are split, scaled and dealt, once or anew for every run."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.tables.table import Table

from ...strategies import Method
from ..run.data import Prepared
from .labelled_data import (
    LabelledSettings,
    constant_columns,
    labelled_rows,
    part_rows,
    pool_rows,
    read_task,
    scale,
)
from .pooled import PooledSplit

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class DealtTable:
    """One split of a table, scaled; a method adds who has what of it.

    Attributes
    ----------
    x : ndarray, shape (n, d)
        What the encoder made of the columns; NaN where a value is missing that is not encoded.
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
    ids : ndarray of str, shape (n,), or None
        Names of the rows, where a column of them is named.
    weights : ndarray, shape (n,), or None
        What the rows count where one party alone learns from the labels.
    """

    x: Floats
    y: Floats
    train: NDArray[np.bool_]
    classes: tuple[float, ...]
    scaling: Mapping[str, Any]
    label_bound: float = 1.0
    notes: tuple[str, ...] = ()
    ids: NDArray[np.str_] | None = None
    weights: Floats | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, empty for a regression."""
        return tuple(self.scaling["class_names"])

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.scaling["columns"])

    @property
    def width(self) -> int:
        """Number of columns of the table of which something is left."""
        return len(np.unique(self.scaling["sources"]))

    @property
    def source_names(self) -> list[str]:
        """For each column the one of the table that it comes from."""
        names = [one["name"] for one in self.scaling["encoder"]["columns"]]
        return [names[source] for source in self.scaling["sources"]]

    def share(self, count: int) -> tuple[NDArray[np.intp], ...]:
        """Deal the columns of the table evenly, in order; return what became of each share."""
        return deal_columns(self.scaling["sources"], count)

    def pooled(self) -> PooledSplit:
        """Return it in the hands of a single owner."""
        train, test = self.train, ~self.train
        unit = float(self.scaling["y_half_range"])
        place = np.cumsum(train) - 1  # of a row among those for training
        alone = tuple((place[rows & train], columns) for rows, columns in self.alone())
        return PooledSplit(
            self.x[train], self.y[train], self.x[test], self.y[test], self.classes, unit, alone
        )

    def complete(self, columns: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which rows have all of some columns."""
        return np.asarray(np.isfinite(self.x[:, columns]).all(axis=1))

    def alone(self) -> Iterable[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return rows with labels, and columns, of each party that could learn without others."""
        return ()


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
        self._folder: Path | None = None
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
            "class_names": list(first.class_names),
        }

    def scaling_json(self) -> str:
        """Return the encoder of the columns and the scale of the labels."""
        return json.dumps(dict(self.split(self.settings.seed).scaling))

    def explain(self) -> list[Explanation]:
        """Return what became of the columns of the table."""
        return Encoder.from_dict(self.split(self.settings.seed).scaling["encoder"]).explain()

    @property
    def predictions(self) -> Path:
        """Folder to which simulated parties write, gone with this object."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedkern-"))
            # A TemporaryDirectory that nobody closes would warn of it.
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> Any:
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

    def dealing(self, strategy: Method) -> dict[str, Any]:
        """Return what else the method's clients are made of."""
        return {}

    def variant(self, strategy: Method) -> tuple[Hashable, ...]:
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
            ids=table.ids,
            weights=table.weights,
            notes=(
                *table.notes,
                *Encoder.from_dict(scaling["encoder"]).left_out(table),
                *read_task(settings, table)[1],
            ),
        )
        return self.deal(found, table, seed)

    def load(self, seed: int) -> tuple[Table, NDArray[np.bool_]]:
        """Return training and held-out rows as one table, and which of them are for training."""
        draw = self.drawn.get(self.settings.data)
        table = self.read() if draw is None else draw(seed)
        again = draw is None and self.settings.resplit and table.y_test is not None
        return part_rows(self.settings, pool_rows(table) if again else table, seed)

    def read(self) -> Table:
        """Load the table."""
        settings = self.settings
        return settings.load("keep" if settings.missing == "neutral" else settings.missing)

    def usable(self, table: Table, train: NDArray[np.bool_], seed: int) -> NDArray[np.intp]:
        """Return the rows that are used: those with a label."""
        return labelled_rows(self.settings, table, train, seed)

    @abstractmethod
    def deal(self, found: DealtTable, table: Table, seed: int) -> D:
        """Say who has what of a table, whose columns in ``table`` are as they were."""


def deal_columns(sources: Sequence[int], count: int) -> tuple[NDArray[np.intp], ...]:
    """Deal columns evenly, in order; return the places of what became of those of each share.

    ``sources`` has for each place the column that it comes from.
    """
    parts = np.array_split(np.unique(sources), count)
    return tuple(np.flatnonzero(np.isin(sources, part)) for part in parts)


def named_columns(names: tuple[str, ...], parts: Sequence[NDArray[np.intp]]) -> list[list[str]]:
    """Return the names of the columns of each part."""
    return [[names[c] for c in part] for part in parts]


def bound_of(y: Floats, classes: tuple[float, ...]) -> float:
    """Return the bound of scaled labels, which clients do not need of classes."""
    return 1.0 if classes else float(np.fmax.reduce(np.abs(y), initial=1.0))
