"""What the data of every family has in common: where it comes from, what a run needs of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.errors import OptionError
from fedkern_flwr.tables.table import Missing, Table

from ...strategies import PhaseStrategy
from ..engines.faults import Plan
from ..engines.ray import ClientFn
from .datasets import load_data, usual_name

#: How numbers are scaled, or that it depends on the label.
AutoScale = Literal["auto", "rank", "standard", "range", "none"]


@dataclass(frozen=True)
class Settings(ABC):
    """Which data is used; a family adds who gets which part of it.

    The fields are options of the command line, which shows what is said of them here.

    Attributes
    ----------
    data : str
        Built-in table (iris, wine, breast-cancer, digits, diabetes, nyc-weather), or a .npz, .csv
        or .parquet file.
    test_size : float
        Share of rows held out for a last evaluation.
    seed : int
        Seed of the split.
    """

    #: Settings that ``fedkern compare`` may set for all data of a preset.
    adjustable: ClassVar[frozenset[str]] = frozenset({"rounds", "clients"})

    #: Settings that are options of the strategy, too.
    of_method: ClassVar[frozenset[str]] = frozenset()
    #: Settings whose default on the command line follows from other options.
    worked_out: ClassVar[frozenset[str]] = frozenset()
    #: Defaults of the command line where those of the papers' comparisons are others.
    of_runs: ClassVar[Mapping[str, Any]] = {}

    data: str
    test_size: float = 0.0
    seed: int = 0

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings off the values of a command line, or off a run's configuration."""
        own: dict[str, Any] = {f.name: values[f.name] for f in fields(cls)}
        own = {k: tuple(v) if isinstance(v, list) else v for k, v in own.items()}
        return cls(**own | {"data": usual_name(own["data"])})

    @abstractmethod
    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""


@dataclass(frozen=True)
class TableSettings(Settings):
    """Which table is used.

    Attributes
    ----------
    label : str or None
        Label column (npz: array, or column of y).
    target : str or None
        Feature column (index or name) to predict instead.
    id_column : str or None
        Column of record ids.
    site_column : str or None
        Column of sites.
    scaling : {"auto", "rank", "standard", "range", "none"}
        How numbers are scaled by the training rows: ranks, mean and deviation, or range. Auto:
        ranks, but the range where the label is a number to predict.
    """

    of_runs = {"scaling": "auto", "missing": "encode"}  # noqa: RUF012

    label: str | None = None
    target: str | None = None
    id_column: str | None = None
    site_column: str | None = None
    scaling: AutoScale = "range"

    def load(self, missing: Missing) -> Table:
        """Load the table.

        Raises
        ------
        TableError, OptionError
            See :func:`load_data`.
        """
        return load_data(
            self.data,
            label=self.label,
            target=self.target,
            id_column=self.id_column,
            site_column=self.site_column,
            missing=missing,
        )

    def encoder(self, train: Table) -> Encoder:
        """Fit an encoder on the rows to learn from.

        Gaps become columns of their own where missing cells are encoded, else they stay.

        Raises
        ------
        TableError, OptionError
            See :meth:`Encoder.fit`.
        """
        encode = getattr(self, "missing", "error") == "encode"
        scaling = self.scaling
        if scaling == "auto":  # ranks bend what a number depends on smoothly
            scaling = "range" if self.regresses(train) else "rank"
        return Encoder.fit(train, scaling, "encode" if encode else "keep")

    def regresses(self, train: Table) -> bool:
        """Tell whether the label is a number to predict: rows without labels have none."""
        return False


class Prepared(ABC):
    """Data ready for an experiment: tables that were loaded, scaled and dealt.

    Attributes
    ----------
    notes : tuple of str
        What was done to the data, for the user to read.
    """

    notes: tuple[str, ...]

    @property
    @abstractmethod
    def num_clients(self) -> int:
        """Number of clients."""

    def nodes(self, strategy: PhaseStrategy) -> int:
        """Return the number of nodes that a strategy runs on, by default one for each client."""
        return self.num_clients

    def faults(self, strategy: PhaseStrategy) -> Plan | None:
        """Return what goes wrong in the simulation of a strategy beside clients that vanish."""
        return None

    @abstractmethod
    def client_fn(self, strategy: PhaseStrategy, state_dir: Path | None = None) -> ClientFn:
        """Return what builds the clients that a strategy needs.

        Their private state goes to ``state_dir``.
        """

    def variant(self, strategy: PhaseStrategy) -> Hashable:
        """Return what the clients depend on of a strategy; by default on nothing.

        Strategies with the same variant run on the same nodes; the engine starts anew for others.
        """
        return None

    def pooled(self, seed: int) -> Any:
        """Return all data of a draw in one place, as the family's reference methods take it."""
        raise NotImplementedError

    @abstractmethod
    def start(self) -> dict[str, Any]:
        """Return arguments for the strategy's ``start``."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what the data decided, to be kept with the configuration of a run as JSON."""

    @abstractmethod
    def scaling_json(self) -> str:
        """Return how the data was scaled, to be kept beside the model."""

    def explain(self) -> list[Explanation]:
        """Return what became of the columns of a table."""
        return []


def hold_out(
    table: Table, test_size: float, seed: int
) -> tuple[Table, NDArray[np.float64], NDArray[np.float64]]:
    """Return the rows to learn from, and the features and labels (if any) of the test rows.

    Test rows that came with the data are used; else a random share of the rows is taken.

    Raises
    ------
    OptionError
        The share is not in [0, 1).
    """
    if not 0.0 <= test_size < 1.0:
        raise OptionError(f"test-size is {test_size}", remedy="use a share in [0, 1)")
    if table.x_test is not None and table.y_test is not None:
        return table, table.x_test, table.y_test
    order = np.random.default_rng([seed, 1]).permutation(table.rows)
    held, kept = np.split(order, [round(test_size * table.rows)])
    held, kept = np.sort(held), np.sort(kept)
    y_test = np.empty(0) if table.y is None else table.y[held]
    return table.take(kept), table.x[held], y_test
