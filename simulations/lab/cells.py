"""Compute cells, one repetition of one method on one data set, and keep them in a folder.

The key of a cell is a digest of everything that its result depends on: settings and content of the
data, method, options, engine, seed, and code. So a finished cell is never computed again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import OptionError
from fedkern_flwr.tables import plain_notes

from ..engines import Engine
from ..methods.experiment import run_entries, versions
from ..methods.registry import family_with
from ..run.data import Prepared, Settings
from ..run.entries import Entry
from ..run.folders import make_folder
from ..run.party_files import FEATURES
from ..run.provenance import code_digest, file_digest, provenance
from .references import references_of

#: Called with (steps done, steps in all) of a cell.
CellProgress = Callable[[int, int], None]
#: Of a finished cell: ``result``, ``facts``, ``notes`` and ``columns`` of its data, and
#: ``peak_memory`` (bytes) of the process that computed it.
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """One repetition of one method.

    Attributes
    ----------
    settings : Settings
        The data.
    method : str
        Name of a strategy or a reference.
    options : dict
    seed : int
    audited : bool
        Whether the traffic is audited.
    engine : {"in-process", "ray"}
    check_pooled : bool (default: False)
        Whether the model is compared with that of the pooled rows.
    describes : bool (default: False)
        Whether the record has the first table of the data; one cell of a comparison's data set.
    """

    settings: Settings
    method: str
    options: Mapping[str, Any]
    seed: int
    audited: bool
    engine: Engine
    check_pooled: bool = False
    describes: bool = False

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the result depends on, for JSON."""
        data = asdict(self.settings)
        party = data.get("party", ())
        if party:
            ends = (FEATURES * file.endswith(FEATURES) for file in party)
            files = (file_digest(file.removesuffix(FEATURES)) for file in party)
            data["party"] = [*map("".join, zip(files, ends, strict=True))]
        elif Path(data["data"]).is_file():  # the content counts, not the path
            data["data"] = file_digest(data["data"])
        else:
            data["source"] = provenance(data["data"])
        return {
            "data": data,
            "kind": type(self.settings).__name__,
            "method": self.method,
            "options": dict(self.options),
            "seed": self.seed,
            "audited": self.audited,
            "engine": self.engine,
            "check_pooled": self.check_pooled,
            "describes": self.describes,
            "versions": versions(),
            "code": code_digest(),
        }

    @cached_property
    def key(self) -> str:
        """The digest of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


class CellStore:
    """A folder of finished cells.

    Parameters
    ----------
    folder : Path
    fresh : bool (default: False)
        Ignore cells that were kept before.

    Raises
    ------
    OptionError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder, self._fresh = folder, fresh
        self._own: set[str] = set()
        make_folder(folder, "--cells")

    def find(self, cell: Cell) -> Record | None:
        """Return the record of a cell; None if it is not finished."""
        if self._fresh and cell.key not in self._own:
            return None
        try:
            kept = json.loads(self._file(cell).read_text())
            record: Record = kept["record"]
            whole = {"metrics", "history", "privacy"} <= record["result"].keys()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, or damaged
            return None
        return record if whole and kept["cell"] == json.loads(json.dumps(cell.identity)) else None

    def keep(self, cell: Cell, record: Record) -> Record:
        """Keep a finished cell; return its record as :meth:`find` does."""
        text = json.dumps({"cell": cell.identity, "record": record})
        try:
            write_atomically(self._file(cell), text.encode())
        except OSError as error:
            raise OptionError(
                f"{self.folder} cannot be written ({error.strerror})",
                remedy="make room, or choose another --cells",
                code="FK-FILE-WRITE",
            ) from None
        self._own.add(cell.key)
        kept: Record = json.loads(text)["record"]
        return kept

    def _file(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"


def run_cell(cell: Cell, progress: CellProgress = lambda done, total: None) -> Record:
    """Compute a cell, see :func:`run_alike`."""
    records: list[Record] = []
    run_alike(
        [cell],
        progress=lambda _, done, total: progress(done, total),
        finished=lambda _, record: records.append(record),
    )
    return records[0]


def run_alike(
    cells: Sequence[Cell],
    *,
    progress: Callable[[int, int, int], None],
    finished: Callable[[int, Record], None],
    ray_address: str | None = None,
) -> None:
    """Compute cells that differ in method and options only, in this process, on one thread.

    Parameters
    ----------
    cells : sequence of Cell
        With the same data, seed and engine.
    progress : callable
        Called with (index of the cell, steps done, steps in all).
    finished : callable
        Called with (index of the cell, its record).
    ray_address : str, optional
        Of the cluster for engine ``ray``.

    Raises
    ------
    FedKernError
        See the family's ``prepare`` and the strategy's ``start``.
    """
    first = cells[0]
    own, prepared = family_with(first.settings), _prepare(first.settings)
    known = references_of(own)
    entries = [
        Entry(str(k), cell.method, dict(cell.options), reference=known.get(cell.method))
        for k, cell in enumerate(cells)
    ]

    def keep(entry: Entry) -> None:
        place = int(entry.label)
        finished(
            place,
            {
                "result": entry.results[0],
                "facts": prepared.facts(),
                "notes": plain_notes(prepared.notes),
                "columns": [one._asdict() for one in prepared.explain()],
                "first_table": prepared.first_table if cells[place].describes else [],
                "peak_memory": _peak_memory(),
            },
        )

    def progress_of(label: str, done: int, total: int) -> None:
        if total:  # training in one place has no steps
            progress(int(label), done, total)

    with threadpool_limits(1):  # sums depend on the number of threads
        run_entries(
            entries,
            prepared,
            engine=first.engine,
            seed=first.seed,
            audited=first.audited,
            ray_address=ray_address,
            progress=progress_of,
            measure=lambda strategy: own.measure(
                strategy, prepared, {"check_pooled": first.check_pooled}
            ),
            draw_done=lambda entry, _: keep(entry),
        )
    for entry in entries:
        if entry.reference is not None:
            keep(entry)


def _peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 where it is not known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@lru_cache(maxsize=1)
def _prepare(settings: Settings) -> Prepared:
    prepared: Prepared = family_with(settings).prepare(settings)
    return prepared
