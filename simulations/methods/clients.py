"""A ``client_fn`` for simulated nodes: each builds its client of what was dealt to it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import Context

from fedkern_flwr.clients.table_client import PartyTable

from .dealt_data import DealtTable

_IDS = ("ids", "ids_test")

D = TypeVar("D", bound=DealtTable)


class DealtClients(ABC):
    """A ``client_fn``: builds the client of a node. Workers of Ray get a copy of it.

    Attributes
    ----------
    kind : type
        The client of the method.
    state_dir : Path or None
        Where the simulated nodes keep private state for a resumed run.
    """

    kind: type[Any]
    state_dir: Path | None

    def __call__(self, context: Context) -> Any:
        """Build the client of a node."""
        partition = int(context.node_config["partition-id"])
        own = {**self.arguments(partition), **self.simulated(partition)}
        return self.kind(context, **own, state_dir=self.state_dir)

    @abstractmethod
    def arguments(self, partition: int) -> dict[str, Any]:
        """Return table, secrets and options of a node."""

    def simulated(self, partition: int) -> dict[str, Any]:
        """Return what a node has in a simulation only."""
        return {}

    def deployed(self, partition: int) -> dict[str, Any]:
        """Return what the files and the configuration of a deployed node say."""
        return self.arguments(partition)

    def named(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return what a deployed node says, with the ids of its rows where the table has some."""
        return own


@dataclass(frozen=True, kw_only=True)
class TableClients(DealtClients, Generic[D]):
    """Builds the clients of parties that a table was dealt to.

    Attributes
    ----------
    dealt : DealtTable
    seed : int
        Of the parties' secrets and row orders.
    options : dict
        What they are told of the strategy's options.
    predictions : Path or None
        Folder for what parties predict.
    """

    dealt: D
    seed: int
    options: Mapping[str, Any]
    predictions: Path | None
    state_dir: Path | None
    _tables: dict[int, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    @abstractmethod
    def table(self, partition: int) -> dict[str, Any]:
        """Return the rows and secrets of a node."""

    def named(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return what a deployed node says, with the ids of its rows where the table has some."""
        names, numbered = self.dealt.ids, [key for key in _IDS if own.get(key) is not None]
        if names is None:
            return own
        return {**own, **{key: names[np.asarray(own[key], np.intp)] for key in numbered}}

    def predicts(self, partition: int) -> bool:
        """Tell whether a node writes predictions."""
        return False

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return table, secrets and options of a node."""
        if partition not in self._tables:  # a run asks for the same tables with every message
            self._tables[partition] = self.table(partition)
        return {**self._tables[partition], **self.options}

    def simulated(self, partition: int) -> dict[str, Any]:
        """Return the file of a node that predicts."""
        if self.predictions is None or not self.predicts(partition):
            return {}
        return {"predictions": self.predictions / f"partition-{partition}.csv"}

    @property
    def alignment_key(self) -> bytes:
        """The alignment key of the simulated parties."""
        return alignment_key(self.seed)


class KeptTable:
    """Makes the table of a simulated node when its first message comes; it stays as it is."""

    made: PartyTable | None = None

    def __call__(self, *rows: Any, **how: Any) -> PartyTable:
        """Return the table of a node."""
        if self.made is None:
            self.made = PartyTable(*rows, **how)
        return self.made


def alignment_key(seed: int) -> bytes:
    """Return the alignment key of simulated parties."""
    return hashlib.sha256(b"simulated alignment %d" % seed).digest()
