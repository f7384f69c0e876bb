"""Data of FDSKL: one table whose columns are dealt to parties, and its labels to some of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.tables.table import Table, how_many
from fedkern_flwr.vertical.parties import ACTIVE, PASSIVE, MissingRows

from ...clients import VerticalKernelClient
from ...strategies import Method
from ..run.party_files import PartyFiles
from .clients import TableClients
from .dealt_data import DealtData, DealtTable, named_columns
from .labelled_data import LabelledSettings


@dataclass(frozen=True)
class VerticalSettings(LabelledSettings):
    """Which columns go to which party.

    Columns are dealt to the parties in order; the first so many have the labels, of an equal share
    of the rows each.

    Attributes
    ----------
    parties : int
        Parties, which hold columns (default: 4).
    active_parties : int
        Parties that hold labels.
    allow_single : bool
        Let an active party learn the phases of the only other party with columns.
    rounds : int or None
        Iterations of schedule streaming (default: 200).
    """

    worked_out = frozenset({"parties"})
    holding = "columns"

    test_size: float = 0.25
    missing: Literal["encode", MissingRows] = "error"
    parties: int = 4
    active_parties: int = 1
    allow_single: bool = False
    rounds: int | None = None

    @classmethod
    def counted(cls, files: PartyFiles) -> dict[str, Any]:
        """Return how many parties there are, of which one has the labels."""
        return {"parties": len(files.blocks), "active_parties": 1}

    def describe(self) -> str:
        """Return who gets what, for the caption of a table."""
        return f"{self.parties} parties, {self.active_parties} with labels"


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns(DealtTable):
    """One split of the pooled table.

    Attributes
    ----------
    owner : ndarray of int, shape (n,)
        Active party that has the label of a row.
    parts : tuple of ndarray
        Columns of each party.
    labelled : tuple of int
        Other parties whose files have the labels, which they do not use.
    """

    owner: NDArray[np.intp]
    parts: tuple[NDArray[np.intp], ...]
    labelled: tuple[int, ...] = ()

    def alone(self) -> list[tuple[NDArray[np.bool_], NDArray[np.intp]]]:
        """Return the labelled rows of each party that has labels, and its columns."""
        found = [(self.owner == p, self.parts[p]) for p in np.unique(self.owner)]
        return found + [(self.complete(self.parts[p]), self.parts[p]) for p in self.labelled]


@dataclass(frozen=True, kw_only=True)
class VerticalClients(TableClients[Columns]):
    """A ``client_fn``: active parties come first.

    Attributes
    ----------
    actives : int
    """

    kind = VerticalKernelClient
    actives: int

    def predicts(self, party: int) -> bool:
        """Tell whether a party is active."""
        return party < self.actives

    def deployed(self, party: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        return {**self.arguments(party), "role": ACTIVE if party < self.actives else PASSIVE}

    def table(self, party: int) -> dict[str, Any]:
        """Return the rows, labels and secrets of a party; rows stand in an order of its own."""
        dealt = self.dealt
        columns = dealt.parts[party]
        rows = np.random.default_rng([self.seed, party]).permutation(len(dealt.y))
        x = dealt.x[np.ix_(rows, columns)]
        held = np.isfinite(x).all(axis=1)
        rows, x = rows[held], x[held]
        common = {
            "columns": tuple(dealt.columns[c] for c in columns),
            "alignment_key": self.alignment_key,
            "frequency_seed": frequency_seed(self.seed, party),
        }
        if not self.predicts(party):
            return {"x": x, "ids": rows.astype(str), **common}
        mine, train = dealt.owner[rows] == party, dealt.train[rows]
        tests = mine & ~train
        labels = np.where(mine & train, dealt.y[rows], np.nan)
        y_test = dealt.y[rows[tests]]
        return {
            "x": x[~tests],
            "y": labels[~tests],
            "weights": None if dealt.weights is None else dealt.weights[rows[~tests]],
            "ids": rows[~tests].astype(str),
            "x_test": x[tests],
            "y_test": y_test if np.isfinite(y_test).all() else None,
            "ids_test": rows[tests].astype(str),
            "classes": dealt.class_names or None,
            "label_bound": dealt.label_bound,
            **common,
        }


class VerticalData(DealtData[VerticalSettings, Columns]):
    """A table whose columns are dealt to parties.

    Parameters
    ----------
    settings : VerticalSettings

    Raises
    ------
    TableError, OptionError
        The table cannot be used, or there are too few columns to deal.
    """

    clients, told = VerticalClients, ("allow_single",)

    def __init__(self, settings: VerticalSettings) -> None:
        if not 1 <= settings.active_parties <= settings.parties:
            raise OptionError(
                f"{settings.active_parties} of {settings.parties} parties are active",
                remedy="use at least one, and no more than there are parties",
                code="FK-OPTION-RANGE",
            )
        super().__init__(settings)

    @property
    def num_clients(self) -> int:
        """Number q of parties."""
        return self.settings.parties

    def dealing(self, strategy: Method) -> dict[str, Any]:
        """Return the number of active parties."""
        return {"actives": self.settings.active_parties}

    def facts(self) -> dict[str, Any]:
        """Return who got which columns, and how many rows there are."""
        return {
            **super().facts(),
            "parties": self.settings.parties,
            "active_parties": self.settings.active_parties,
            "columns": named_columns(self.columns, self.split(self.settings.seed).parts),
        }

    def deal(self, found: DealtTable, table: Table, seed: int) -> Columns:
        """Deal the columns to the parties, and the labels to the active ones."""
        settings = self.settings
        if settings.files is not None:
            parts = settings.files.parts(found.source_names)
        elif found.width < settings.parties:
            raise OptionError(
                f"{how_many(found.width, 'column')} cannot be dealt to {settings.parties} parties",
                remedy="use fewer parties",
                code="FK-COLUMNS-FEW",
            )
        else:
            parts = found.share(settings.parties)
        owner = np.zeros(len(found.y), np.intp)
        for part in (found.train, ~found.train):
            owner[part] = np.arange(int(part.sum())) % settings.active_parties
        labelled = () if settings.files is None else [k + 1 for k in settings.files.labelled]
        return Columns(**vars(found), owner=owner, parts=parts, labelled=tuple(labelled))


def frequency_seed(seed: int, party: int) -> bytes:
    """Return the secret of a simulated party's directions."""
    return hashlib.sha256(b"simulated frequencies %d/%d" % (seed, party)).digest()
