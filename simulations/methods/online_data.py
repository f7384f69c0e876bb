"""Streams of rows for online methods, also from growing files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.encoding import Encoder, Explanation
from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.options import at_least
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables.table import Table, drop_constant_columns

from ...clients import OnlineKernelClient, StreamClient
from ...strategies import Method
from ..run.data import Prepared, TableSettings, held_out_of, hold_out
from ..run.splits import Split, split_rows
from .dealt_data import NodeClients

DEFAULT_ROUNDS, DEFAULT_CLIENTS = 500, 10

_FEW = 20  # values of a label that may be classes

Missing = Literal["encode", "error", "drop-row"]


@dataclass(frozen=True)
class DataSettings(TableSettings):
    """Rows of each client.

    Attributes
    ----------
    sites : tuple of str
        Sites to keep, separated by commas.
    missing : {"encode", "error", "drop-row"}
        Rows with missing values (encode: median and indicator).
    clients : int or None
        Number of clients, K (default: 10, or one per site).
    split : {"iid", "site", "dirichlet"}
        Split of the rows among clients.
    site_share : float
        Share of the rows of a client from its own site.
    alpha : float
        Concentration of the Dirichlet split.
    rounds : int or None
        Samples per client, T (default: 500, or all).
    stream_wait : float or None
        Read growing files of --party; seconds to wait for rows.
    """

    sites: tuple[str, ...] = ()
    missing: Missing = "error"
    clients: int | None = None
    split: Split = "iid"
    site_share: float = 1.0
    alpha: float = 0.5
    rounds: int | None = None
    stream_wait: float | None = None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings; ``sites`` may be text with commas."""
        sites = values["sites"] or ()
        if isinstance(sites, str):
            sites = tuple(site.strip() for site in sites.split(",") if site.strip())
        return super().from_values({**values, "sites": tuple(sites)})

    def describe(self) -> str:
        """Describe the split for a caption."""
        return f"{self.clients} clients, {self.rounds} samples each, split {self.split}"


@dataclass(frozen=True)
class Shard:
    """The rows of one client."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.float64]


@dataclass(frozen=True)
class Streams(Prepared):
    """Data of an online method.

    Attributes
    ----------
    shards : tuple of Shard
        Rows of each client.
    columns : tuple of str
        Names of the features.
    encoder, scaling
        Encoder and scale of the rows.
    rounds : int
        Samples per client, T.
    files : tuple of dict
        Files that clients read; empty if rows are dealt.
    """

    shards: tuple[Shard, ...]
    columns: tuple[str, ...]
    encoder: Encoder
    scaling: Scaling
    rounds: int
    notes: tuple[str, ...]
    settings: DataSettings
    files: tuple[dict[str, Any], ...] = ()

    @property
    def num_clients(self) -> int:
        """Number K of clients."""
        return len(self.shards)

    @property
    def clients(self) -> NodeClients:
        """Client function of all methods."""
        dealt = [{**vars(shard), "columns": self.columns} for shard in self.shards]
        kind = StreamClient if self.files else OnlineKernelClient
        return NodeClients(kind=kind, table=(self.files or dealt).__getitem__)

    def client_fn(self, strategy: Method, state_dir: Path | None = None) -> NodeClients:
        """Return the client function."""
        return replace(self.clients, state_dir=state_dir)

    def start(self) -> dict[str, Any]:
        """Return the samples per client."""
        return {"num_rounds": self.rounds}

    def facts(self) -> dict[str, Any]:
        """Return numbers of clients and samples."""
        return {"clients": self.num_clients, "rounds": self.rounds}

    def scaling_json(self) -> str:
        """Return encoder and scale."""
        unit = self.scaling.y_max - self.scaling.y_min
        labels = {"classes": [], "y_middle": self.scaling.y_min, "y_half_range": unit}
        both = {**json.loads(self.scaling.to_json()), "encoder": self.encoder.to_dict()}
        return json.dumps(both | labels)

    def explain(self) -> list[Explanation]:
        """Return how columns were encoded."""
        return self.encoder.explain()


def prepare(settings: DataSettings) -> Streams:
    """Load, scale and deal the data, or let clients read their files.

    Constant columns are dropped. Features are scaled to the unit ball and labels to [0, 1], by
    the rows that are not held out.
    """
    if settings.stream_wait is not None:
        return _read_on(settings)
    if settings.scaling == "auto":  # they predict numbers
        settings = replace(settings, scaling="range")
    if settings.scaling == "none":
        raise OptionError("online methods need rows of the unit ball", code="FK-SCALING-RANGE")
    table = settings.load(settings.missing)
    if settings.target is None and len(table.classes) > 2:
        raise TableError(
            f"{len(table.classes)} classes are no numbers, and online methods predict numbers",
            code="FK-TASK-TEXT",
        )
    said = _regression_note(table)
    if settings.sites:
        table = _keep_sites(table, settings.sites)
    table = drop_constant_columns(table)
    whole, each = table, settings.files is not None
    kept, x_test, y_test = hold_out(table, settings.test_size, settings.seed, each_site=each)
    if len(x_test):  # else the order in memory would change, and with it the rounding of norms
        table = kept
    table = replace(table, x_test=x_test, y_test=y_test)
    scale = "none" if settings.scaling == "range" else settings.scaling  # ranges come afterwards
    encoder = replace(settings, scaling=scale).encoder(table)
    left_out = encoder.left_out(table)
    table = encoder.apply(table)
    scaling = Scaling.fit(table)
    table = scaling.apply(table)
    assert table.x_test is not None
    assert table.y_test is not None
    x_test, y_test = table.x_test, table.y_test
    clients = _number_of_clients(table, settings)
    rounds, notes = _number_of_rounds(table, clients, settings)
    parts = split_rows(
        table, settings.split, clients, settings.seed, rounds, settings.site_share, settings.alpha
    )
    assert table.y is not None
    test = np.array_split(np.arange(len(y_test)), clients)
    if settings.files is not None:
        test = held_out_of(whole, kept)
    shards = tuple(
        Shard(
            np.ascontiguousarray(table.x[rows]),
            np.ascontiguousarray(table.y[rows]),
            x_test[held],
            y_test[held],
        )
        for rows, held in zip(parts, test, strict=True)
    )
    notes = (*table.notes, *left_out, *said, *notes)
    return Streams(shards, table.columns, encoder, scaling, rounds, notes, settings)


def _regression_note(table: Table) -> tuple[str, ...]:
    """Return a note if labels may be meant as classes."""
    values = np.unique(table.y[np.isfinite(table.y)]) if table.y is not None else np.empty(0)
    if len(values) > _FEW:
        return ()
    what = "classes" if table.classes else "values of the label"
    text = f"online methods predict numbers: the {len(values)} {what} are numbers from 0 to 1"
    return (f"{text}; fed-cg, fdskl and hierarchical-svm predict classes",)


def _keep_sites(table: Table, sites: Sequence[str]) -> Table:
    if table.site is None:
        raise TableError("the data has no sites to choose from", code="FK-SITES-UNKNOWN")
    names = np.asarray(table.site).astype(str)
    unknown = sorted(set(sites) - set(names))
    if unknown:
        raise TableError(
            f"{len(unknown)} of the chosen sites are not in the data", code="FK-SITES-UNKNOWN"
        )
    return table.take(np.flatnonzero(np.isin(names, list(sites))))


def _number_of_clients(table: Table, settings: DataSettings) -> int:
    if settings.clients is not None:
        return settings.clients
    if settings.split == "site" and table.site is not None:
        return int(np.unique(table.site).size)
    return DEFAULT_CLIENTS


def _number_of_rounds(
    table: Table, clients: int, settings: DataSettings
) -> tuple[int, tuple[str, ...]]:
    if settings.rounds is not None:
        at_least("rounds", settings.rounds, 1)
        return settings.rounds, ()
    available = table.rows // max(1, clients)
    if settings.split == "site" and table.site is not None:
        _, counts = np.unique(table.site, return_counts=True)
        owners = np.bincount(np.arange(max(1, clients)) % len(counts), minlength=len(counts))
        available = int(min(counts[owners > 0] // owners[owners > 0]))
    if available >= DEFAULT_ROUNDS or available < 1:
        return DEFAULT_ROUNDS, ()
    return available, (
        f"{available} rounds instead of {DEFAULT_ROUNDS}: the data has no more rows",
    )


def _read_on(settings: DataSettings) -> Streams:
    """Make clients that read files row by row.

    Ranges are those of the rows that exist; later rows are clipped.
    """
    if not settings.party:
        raise OptionError("streams are files of parties", code="FK-STREAM-PARTIES")
    if settings.test_size:
        raise OptionError("no rows of a stream are held out", code="FK-DATA-OPTION")
    if settings.scaling not in ("auto", "range") or settings.ranks is not None:
        raise OptionError("streams are scaled by ranges", code="FK-DATA-OPTION")
    if settings.rounds is not None:
        at_least("rounds", settings.rounds, 1)
    prepared = prepare(replace(settings, rounds=None, stream_wait=None))
    known = settings.load(settings.missing).columns
    if strange := [name for name in prepared.columns if name not in known]:
        raise OptionError(
            f"{strange[0]!r} was made of text, dates or gaps, and a stream has numbers",
            code="FK-STREAM-TEXT",
        )
    scaling: Scaling = replace(prepared.scaling, clip=True)
    how = {
        "label": settings.label,
        "id_column": settings.id_column,
        "columns": prepared.columns,
        "wait": settings.stream_wait,
        "scaling": scaling,
        "sep": settings.sep,
        "decimal": settings.decimal,
        "na": ",".join(settings.na),
    }
    files = tuple({"stream": Path(file), **how} for file in settings.party)
    rounds, notes = prepared.rounds, prepared.notes
    if settings.rounds or settings.stream_wait:  # rows may come
        rounds = settings.rounds or DEFAULT_ROUNDS
        notes = tuple(note for note in notes if not note.endswith("no more rows"))
    notes = (*notes, "rows are read from the files while the run goes on")
    return replace(prepared, files=files, scaling=scaling, rounds=rounds, notes=notes)
