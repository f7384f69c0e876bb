"""Files of parties that are read while they grow, as in a deployment: a rehearsal of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import OptionError
from fedkern_flwr.scaling import Scaling

from ...clients import StreamClient
from .online_data import DEFAULT_ROUNDS, DataSettings, StreamClients, Streams, prepare


@dataclass(frozen=True)
class FileStreams(StreamClients):
    """Builds the client of a node from the file of its party.

    Attributes
    ----------
    paths : tuple of Path
        By partition.
    how : dict
        What a :class:`~fedkern_flwr.clients.StreamClient` is told of them.
    """

    kind = StreamClient  # type: ignore[assignment]  # of another kind than the base infers
    paths: tuple[Path, ...] = ()
    how: Any = None

    def arguments(self, partition: int) -> dict[str, Any]:
        """Return where the rows of a node come from."""
        return {"stream": self.paths[partition], **self.how}


def read_on(settings: DataSettings) -> Streams:
    """Return data whose clients read the files of the parties, row by row.

    What is there already tells the ranges, to which later rows are clipped.

    Raises
    ------
    OptionError
        Settings that streams do not have, or a column that is no number.
    """
    if not settings.party:
        raise OptionError(
            "streams are files of parties",
            remedy="name them with --party",
            code="FK-STREAM-PARTIES",
        )
    if settings.test_size:
        raise OptionError(
            "no rows of a stream are held out",
            remedy="leave out --test-size",
            code="FK-DATA-OPTION",
        )
    if settings.scaling not in ("auto", "range"):
        raise OptionError(
            "streams are scaled by ranges", remedy="leave out --scaling", code="FK-DATA-OPTION"
        )
    if settings.rounds is not None and settings.rounds < 1:
        raise OptionError(
            f"rounds is {settings.rounds}", remedy="use at least 1", code="FK-OPTION-RANGE"
        )
    prepared = prepare(replace(settings, rounds=None))
    columns, clients = prepared.clients.columns, prepared.clients
    known = settings.load(settings.missing).columns
    if strange := [name for name in columns if name not in known]:
        raise OptionError(
            f"{strange[0]!r} was made of text, dates or gaps, and a stream has numbers",
            remedy="leave those columns out of the files, or run without --stream-wait",
            code="FK-STREAM-TEXT",
        )
    scaling: Scaling = replace(prepared.scaling, clip=True)
    how = {
        "label": settings.label,
        "id_column": settings.id_column,
        "columns": columns,
        "wait": settings.stream_wait,
        "scaling": scaling,
        "sep": settings.sep,
        "decimal": settings.decimal,
        "na": ",".join(settings.na),
    }
    paths = tuple(map(Path, settings.party))
    files = FileStreams(clients.shards, columns, clients.state_dir, paths, how)
    rounds, notes = prepared.rounds, prepared.notes
    if settings.rounds or settings.stream_wait:  # rows may come
        rounds = settings.rounds or DEFAULT_ROUNDS
        notes = tuple(note for note in notes if not note.endswith("no more rows"))
    notes = (*notes, "rows are read from the files while the run goes on")
    return replace(prepared, clients=files, scaling=scaling, rounds=rounds, notes=notes)
