"""Compute cells, one repetition of one method on one data set, and keep them in a folder.

The key of a cell is a digest of everything that its result depends on: settings and content of the
data, method, options, seed, and code. So a finished cell is never computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.errors import EngineError, FedKernError, OptionError
from fedkern_flwr.options import at_least
from fedkern_flwr.tables import plain_notes
from fedkern_flwr.threads import processors

from ..engines.ray import connected
from ..methods.experiment import run_entries, versions
from ..methods.registry import family_with
from ..run.data import Prepared, Settings
from ..run.entries import Entry
from ..run.party_files import FEATURES
from ..run.provenance import code_digest, file_digest, provenance
from ..run.run_folder import make_folder
from .references import references_of

#: Called with (steps done, steps in all) of a cell.
CellProgress = Callable[[int, int], None]
#: Of a finished cell: ``result``, ``facts``, ``notes`` and ``columns`` of its data.
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
                f"{self.folder} cannot be written ({error.strerror})", code="FK-FILE-WRITE"
            ) from None
        self._own.add(cell.key)
        kept: Record = json.loads(text)["record"]
        return kept

    def _file(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"


def run_cell(cell: Cell, progress: CellProgress = lambda done, total: None) -> Record:
    """Compute a cell in this process, on one thread; return its record.

    Raises
    ------
    FedKernError
        The run failed.
    """
    own, prepared = family_with(cell.settings), _prepare(cell.settings)
    reference = references_of(own).get(cell.method)
    entry = Entry("", cell.method, dict(cell.options), reference=reference)
    check = {"check_pooled": cell.check_pooled}
    with threadpool_limits(1):  # sums depend on the number of threads
        run_entries(
            [entry],
            prepared,
            engine="in-process",
            seed=cell.seed,
            audited=cell.audited,
            progress=lambda _, done, total: progress(done, total) if total else None,
            measure=lambda strategy: own.measure(strategy, prepared, check),
        )
    return {
        "result": entry.results[0],
        "facts": prepared.facts(),
        "notes": plain_notes(prepared.notes),
        "columns": [one._asdict() for one in prepared.explain()],
        "first_table": prepared.first_table if cell.describes else [],
    }


@lru_cache(maxsize=1)
def _prepare(settings: Settings) -> Prepared:
    prepared: Prepared = family_with(settings).prepare(settings)
    return prepared


# -- many cells: one after the other, or in parallel as Ray tasks

__all__ = ["CellFailed", "choose_jobs", "sweep"]

#: Called with a finished cell and its record.
Done = Callable[[Cell, Record], None]
#: Called with (cell, steps done, steps in all) of the current cell in this process.
Progress = Callable[[Cell, int, int], None]

_WORTH_WORKERS = 12  # with fewer cells, starting workers takes longer than it saves


class CellFailed(Exception):
    """A cell could not be computed.

    Parameters
    ----------
    cell : Cell
    error : FedKernError
    """

    def __init__(self, cell: Cell, error: FedKernError) -> None:
        super().__init__(str(error))
        self.cell, self.error = cell, error


def choose_jobs(cells: Sequence[Cell], runs: int) -> int:
    """Choose how many cells are computed at a time.

    All processors are used where repetitions are averaged. A single repetition, of which seconds
    are compared, runs alone.
    """
    if runs < 2 or len(cells) < _WORTH_WORKERS:
        return 1
    return processors()


def sweep(
    cells: Sequence[Cell],
    *,
    jobs: int = 1,
    ray_address: str | None = None,
    progress: Progress,
    done: Done,
) -> None:
    """Compute cells.

    Parameters
    ----------
    cells : sequence of Cell
        Repetitions to compute.
    jobs : int (default: 1)
        Cells at a time; with an address as many as the cluster has processors.
    ray_address : str, optional
        Of a Ray cluster (default: with several jobs Ray is started on this machine).
    progress, done : callable
        See :data:`Progress`, :data:`Done`.

    Raises
    ------
    CellFailed
        The first one, after ``done`` for each cell that finished before.
    """
    at_least("jobs", jobs, 1)
    if ray_address is not None or jobs > 1:
        with connected(ray_address or "local", num_cpus=jobs) as ray:
            _run_tasks(ray, cells, done)
        return
    for cell in cells:
        try:
            record = run_cell(cell, partial(progress, cell))
        except FedKernError as error:
            raise CellFailed(cell, error) from error
        done(cell, record)


def _run_tasks(ray: Any, cells: Sequence[Cell], done: Done) -> None:
    """Run cells as Ray tasks; Ray itself repeats those that memory is too short for."""
    task = ray.remote(_compute).options(num_cpus=1, max_retries=1)
    running = {task.remote(cell, cell.key): cell for cell in cells}
    while running:  # Ray ends the tasks of a driver that exits
        ready, _ = ray.wait(list(running), num_returns=1)
        cell = running.pop(ready[0])
        try:
            record = _get(ray, ready[0])
        except FedKernError as error:
            raise CellFailed(cell, error) from error
        done(cell, record)


def _compute(cell: Cell, key: str) -> Record:
    """Compute a cell in a worker, if it has the same data, libraries and code."""
    here = replace(cell)  # the copy computes its key here
    file, party = Path(cell.settings.data), getattr(cell.settings, "party", ())
    if file.suffix and not file.is_file() and not party:
        return run_cell(here)  # raises an error about the missing file
    if here.key != key:
        raise EngineError(
            "a node of the Ray cluster has other data, libraries or code", code="FK-ENGINE-DIFFERS"
        )
    return run_cell(here)


def _get(ray: Any, reference: Any) -> Record:
    """Return the result of a task, or raise its error."""
    try:
        record: Record = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FedKernError):
            raise error.cause from None
        raise EngineError(
            f"a cell failed: {type(error.cause).__name__}: {error.cause}", code="FK-ENGINE-CELL"
        ) from None
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"a worker of Ray ended ({type(error).__name__})", code="FK-ENGINE-ACTOR"
        ) from None
    return record
