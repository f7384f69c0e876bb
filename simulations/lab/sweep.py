"""Compute many cells: one after the other in this process, or in parallel as Ray tasks.

Ray starts a task where a processor is free, on this machine or on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import EngineError, FedKernError
from fedkern_flwr.options import at_least
from fedkern_flwr.threads import processors

from ..engines.ray import connected
from .cells import Cell, Record, run_alike, run_cell

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
        Those of engine ``ray`` run one after the other: each takes all processors.
    jobs : int (default: 1)
        Cells at a time, if memory allows; with an address as many as the cluster has processors.
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
    together = [cell for cell in cells if cell.engine == "in-process"]
    rest = [cell for cell in cells if cell.engine != "in-process"]
    if ray_address is None and jobs == 1:
        rest, together = list(cells), []
    for alike in _alike(rest):
        _run_here(alike, ray_address, progress, done)
    if together:
        with connected(ray_address or "local", num_cpus=jobs) as ray:
            _run_tasks(ray, together, done)


def _run_here(cells: Sequence[Cell], address: str | None, progress: Progress, done: Done) -> None:
    """Compute cells that differ in method and options only in this process."""
    at_hand = cells[0]

    def on_step(place: int, steps: int, total: int) -> None:
        nonlocal at_hand
        at_hand = cells[place]
        progress(at_hand, steps, total)

    try:
        run_alike(
            cells,
            progress=on_step,
            finished=lambda place, record: done(cells[place], record),
            ray_address=address,
        )
    except FedKernError as error:
        raise CellFailed(at_hand, error) from error


def _alike(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Group neighbours that Flower's engine can run in one start; yield others one by one."""
    for (engine, *_), group in groupby(
        cells, lambda cell: (cell.engine, cell.settings, cell.seed, cell.audited, cell.check_pooled)
    ):
        if engine == "ray":
            yield list(group)
        else:
            yield from ([cell] for cell in group)


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
            "a node of the Ray cluster has other data, libraries or code",
            remedy="install the same on all nodes, and put the same files at the same path",
            code="FK-ENGINE-DIFFERS",
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
            f"a cell failed: {type(error.cause).__name__}: {error.cause}",
            remedy="repeat it alone with --jobs 1",
            code="FK-ENGINE-CELL",
        ) from None
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"a worker of Ray ended ({type(error).__name__})",
            remedy="use fewer --jobs if memory is short; finished cells are kept",
            code="FK-ENGINE-ACTOR",
        ) from None
    return record
