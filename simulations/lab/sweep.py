"""Compute many cells: one after the other in this process, or side by side as Ray tasks.

Ray starts a task where a processor is free and the memory it asks for is left, on this machine or
on the nodes of a cluster. What a cell needs is measured on the first of its kind; the other draws
wait for it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from fedkern_flwr.errors import EngineError, FedKernError, OptionError

from ..engines.ray import connected
from .cells import Cell, Record, run_alike, run_cell

__all__ = ["CellFailed", "choose_jobs", "sweep"]

#: Called with a finished cell and what it leaves.
Done = Callable[[Cell, Record], None]
#: Called with (cell, steps done, steps in all) of a cell that is being computed in this process.
Progress = Callable[[Cell, int, int], None]

_WORTH_WORKERS = 12  # cells for which workers are worth the seconds they take to start
_FIRST_MEMORY = 1 << 30  # bytes that the first cell of a kind asks for
_MARGIN = 1.2  # of the measured memory that the others ask for


class CellFailed(Exception):
    """A cell could not be computed.

    Parameters
    ----------
    cell : Cell
    error : FedKernError
        What stopped it.
    """

    def __init__(self, cell: Cell, error: FedKernError) -> None:
        super().__init__(str(error))
        self.cell, self.error = cell, error


def choose_jobs(cells: Sequence[Cell], runs: int) -> int:
    """Return how many cells are computed at a time when the user does not say.

    As many as there are processors where draws are averaged; one by one where there is one draw,
    for then it is seconds that are compared, or there is little to do.
    """
    if runs < 2 or len(cells) < _WORTH_WORKERS:
        return 1
    return processors()


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
        Those of engine ``ray`` are computed one after the other: each takes all processors.
    jobs : int (default: 1)
        Cells at a time, if memory allows; with an address as many as the cluster has processors.
    ray_address : str, optional
        Of a Ray cluster; else Ray is started on this machine where there are several jobs.
    progress : callable
        See :data:`Progress`.
    done : callable
        See :data:`Done`.

    Raises
    ------
    CellFailed
        The first one; what was finished before it has been given to ``done``.
    """
    if jobs < 1:
        raise OptionError(f"jobs is {jobs}", remedy="use at least 1", code="FK-OPTION-RANGE")
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
    """Yield neighbours that Flower's engine can run without starting anew; others one by one."""
    for (engine, *_), group in groupby(
        cells, lambda cell: (cell.engine, cell.settings, cell.seed, cell.audited, cell.check_pooled)
    ):
        if engine == "ray":
            yield list(group)
        else:
            yield from ([cell] for cell in group)


def _run_tasks(ray: Any, cells: Sequence[Cell], done: Done) -> None:
    """Run cells as Ray tasks, the first of each kind before the others of its kind."""
    task = ray.remote(_compute)
    first = ray.remote(max_calls=1)(_compute)  # in a fresh process: memory is the most it has held
    largest = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    waiting: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        waiting[_kind(cell)].append(cell)
    running: dict[Any, Cell] = {}

    def submit(cell: Cell, memory: float) -> None:
        asked = (first if memory == _FIRST_MEMORY else task).options(
            num_cpus=1, max_retries=1, memory=int(min(memory, largest))
        )
        running[asked.remote(cell, cell.key)] = cell

    for group in waiting.values():
        submit(group.pop(0), _FIRST_MEMORY)
    while running:  # whatever ends this, Ray ends the tasks of a driver that leaves
        ready, _ = ray.wait(list(running), num_returns=1)
        cell = running.pop(ready[0])
        try:
            record = _get(ray, ready[0])
        except FedKernError as error:
            raise CellFailed(cell, error) from error
        done(cell, record)
        for other in waiting.pop(_kind(cell), ()):
            submit(other, _MARGIN * record["peak_memory"])


def _compute(cell: Cell, key: str) -> Record:
    """Compute a cell in a worker, with the same data, libraries and code."""
    here = replace(cell)  # without the key that the other side has computed
    file, party = Path(cell.settings.data), getattr(cell.settings, "party", ())
    if file.suffix and not file.is_file() and not party:
        return run_cell(here)  # which says what is missing
    if here.key != key:
        raise EngineError(
            "a node of the Ray cluster has other data, libraries or code",
            remedy="install the same on all nodes, and put the same files at the same path",
            code="FK-ENGINE-DIFFERS",
        )
    return run_cell(here)


def _get(ray: Any, reference: Any) -> Record:
    """Return what a task returned, or raise what it raised as it was."""
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


def _kind(cell: Cell) -> str:
    """Return what cells of the same size have in common."""
    settings = {**asdict(cell.settings), "seed": None}
    return json.dumps([cell.method, dict(cell.options), settings], sort_keys=True, default=str)
