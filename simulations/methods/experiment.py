"""Experiments: methods on prepared data, run by run."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

from fedkern_flwr.judging.judges import Judges
from fedkern_flwr.log_lines import utc_now
from fedkern_flwr.options import at_least
from fedkern_flwr.progress import Listener, part
from fedkern_flwr.reporting import RunFacts

from ...strategies import Method
from ..engines import Audit, DropOut, Engine, SimulationStep, simulate_all
from ..engines.faults import first_fault
from ..run.data import Prepared
from ..run.entries import Entry, draw_label
from ..run.provenance import code_digest
from .pooled import run_reference
from .registry import family, method

__all__ = ["Entry", "checkpoint_file", "run_entries", "summarise", "versions"]

Progress = Callable[[str, int, int], None]
Measure = Callable[[Method], dict[str, Any]]
DrawDone = Callable[[Entry, Method], None]
Watch = Callable[[Mapping[str, Any]], None]


def run_entries(
    entries: Sequence[Entry],
    prepared: Prepared,
    *,
    engine: Engine,
    seed: int,
    runs: int = 1,
    drop: float = 0.0,
    timeout: float = 3600.0,
    checkpoints: Path | None = None,
    state_dir: Path | None = None,
    resume: bool = False,
    audited: bool = False,
    ray_address: str | None = None,
    progress: Progress = lambda label, done, total: None,
    work: Progress = lambda text, done, total: None,
    measure: Measure = lambda strategy: {},
    draw_done: DrawDone = lambda entry, strategy: None,
    watch: Watch = lambda metrics: None,
) -> None:
    """Run methods on the same data.

    The engine starts again only if the clients differ, see :meth:`Prepared.variant`. Reference
    methods run last.

    Parameters
    ----------
    entries : sequence of Entry
        Methods; existing results are kept.
    prepared : Prepared
        Data.
    engine : {"in-process", "ray"}
        Engine.
    seed : int
        Run r uses ``seed + r``.
    runs : int (default: 1)
        Runs per method.
    drop : float (default: 0.0)
        Probability that a client drops out in a round.
    timeout : float (default: 3600.0)
        Seconds to wait for replies.
    checkpoints : path, optional
        Folder for checkpoints of a single entry.
    state_dir : path, optional
        Folder for private state of simulated nodes.
    resume : bool (default: False)
        Continue from the checkpoint of the first missing run.
    audited : bool (default: False)
        Count kinds of values that server and clients see in the first run.
    ray_address : str, optional
        Ray cluster; by default a local one.
    progress : callable
        Called with (label, exchanges done, exchanges in all); without a count after the exchanges.
    work : callable
        Called with (text, step, steps in all) of long work, see
        :func:`fedkern_flwr.progress.progress`.
    measure : callable
        Called with the strategy after each run; returns further metrics.
    draw_done : callable
        Called with (entry, strategy) after each run.
    watch : callable
        Called with the metrics of each round.
    """
    at_least("runs", runs, 1)

    def one_draw(entry: Entry, draw: int) -> SimulationStep[Method]:
        file = checkpoint_file(checkpoints, draw) if checkpoints is not None else None
        goes_on, label = bool(resume and file and file.is_file()), draw_label(entry, draw, runs)
        strategy = method(entry.method)(
            **entry.options, seed=seed + draw, checkpoint=file, resume=goes_on
        )
        started = used = 0.0
        facts, listener = RunFacts(strategy=strategy), Listener(work)

        def on_round(done: int, total: int, metrics: Mapping[str, Any]) -> None:
            progress(label, done, total)
            watch(metrics)

        def before(step: SimulationStep[Method]) -> None:
            nonlocal started, used
            started, used = time.monotonic(), time.process_time()
            facts.began = utc_now()
            progress(label, 0, 1)

        def after(step: SimulationStep[Method]) -> None:
            seconds, cpu = time.monotonic() - started, time.process_time() - used
            if step.audit is not None:
                seconds -= step.audit.seconds
                cpu -= step.audit.seconds
            progress(f"{label}: evaluation", 0, 0)
            with part("judge"):
                ledger, measured = strategy.ledger_, measure(strategy)
            seconds += measured.pop("seconds", 0.0)
            judged = measured.pop(
                "judged", strategy.judged_ if isinstance(strategy, Judges) else None
            )
            simple = measured.pop("no_better_than", "")
            noted = {"no_better_than": simple} if judged is None and simple else {}
            noted = noted if judged is None else judged.warnings()
            entry.results.append(
                {
                    **family(entry.method).outcome(strategy),
                    **({} if judged is None else {"held_out": judged.details()}),
                    **noted,
                    **({"notes": [*strategy.notes_]} if strategy.notes_ else {}),
                    "metrics": {**strategy.metrics_, **measured},
                    "history": strategy.history_,
                    "exchanges": ledger.exchanges,
                    "bytes_up": ledger.bytes_up,
                    "bytes_down": ledger.bytes_down,
                    "seconds": seconds,
                    "cpu_seconds": cpu,
                    "seconds_by_part": dict(listener.seconds),
                    "failures": ledger.failures,
                    "privacy": strategy.privacy(),
                    "run": {**facts.to_dict(), "code": code_digest()},
                }
            )
            if step.audit is not None:
                entry.results[-1]["privacy"]["seen"] = step.audit.to_dict()
            draw_done(entry, strategy)

        strategy.on_round = on_round
        step = SimulationStep(strategy, before=before, after=after, listener=listener)
        step.start = {**prepared.start(), "timeout": timeout}
        step.audit = Audit() if audited and draw == 0 else None
        return step

    steps = [
        one_draw(entry, draw)
        for entry in entries
        if entry.reference is None
        for draw in range(len(entry.results), runs)
    ]
    dropped = DropOut(drop, seed) if drop else None
    for _, group in groupby(steps, lambda step: prepared.variant(step.strategy)):
        alike = list(group)
        first = alike[0].strategy
        simulate_all(
            alike,
            prepared.client_fn(first, state_dir),
            prepared.nodes(first),
            engine=engine,
            faults=first_fault(dropped, prepared.faults(first)),
            ray_address=ray_address,
        )
    for entry in entries:
        if entry.reference is not None:
            run_reference(entry, prepared, seed=seed, runs=runs, progress=progress)


def checkpoint_file(folder: Path, draw: int) -> Path:
    """Return the checkpoint of a run."""
    return folder / f"checkpoint-{draw}.npz"


def summarise(entry: Entry) -> dict[str, Any]:
    """Average the runs of an entry."""
    return family(entry.method).summarise(entry)


@cache  # of metadata that take a tenth of a second to read
def versions() -> dict[str, str]:
    """Return the versions of packages."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    packages = "fedkern-flwr flwr numpy scipy scikit-learn cryptography ray xgboost xgboost-cpu"
    for package in packages.split():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
