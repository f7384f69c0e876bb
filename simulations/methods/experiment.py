"""Experiments: methods run on prepared data, on any engine, draw by draw."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
from .references import run_reference
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
    """Run methods one after the other on the same data; the engine starts once.

    It starts more often where methods need other clients, see :meth:`Prepared.variant`. Reference
    methods need no clients; they are run last, when the engine has ended.

    Parameters
    ----------
    entries : sequence of Entry
        Methods to run; draws that an entry has results of already are not run again.
    prepared : Prepared
        The data.
    engine : {"in-process", "ray"}
        The engine.
    seed : int
        Draw r uses ``seed + r``.
    runs : int (default: 1)
        Draws per method.
    drop : float (default: 0.0)
        Probability that a client vanishes in a round.
    timeout : float (default: 3600.0)
        Seconds to wait for the replies of an exchange.
    checkpoints : path, optional
        Folder for checkpoints, one per draw; for a single entry.
    state_dir : path, optional
        Folder for the private state of the simulated nodes.
    resume : bool (default: False)
        Go on from the checkpoint of the first draw that is missing, if there is one.
    audited : bool (default: False)
        Count which kinds of values server and clients see in the first draw of each entry.
    ray_address : str, optional
        Ray cluster that engine ``ray`` runs on; one of its own if not given.
    progress : callable
        Called with (label, exchanges done, exchanges in all) of the draw at hand; with nothing
        of nothing while what follows the exchanges is at work.
    work : callable
        Called with (text, step, steps in all) of long local work within the draw, see
        :func:`fedkern_flwr.progress.progress`.
    measure : callable
        Called with the strategy after each draw of one; returns metrics to be added to its result.
    draw_done : callable
        Called with (entry, strategy) when the entry of a strategy has a new result.
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
    """Return the checkpoint of a draw."""
    return folder / f"checkpoint-{draw}.npz"


def summarise(entry: Entry) -> dict[str, Any]:
    """Average the results of an entry's draws as its family does."""
    return family(entry.method).summarise(entry)


def versions() -> dict[str, str]:
    """Return the versions of what a run depends on."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    packages = "fedkern-flwr flwr numpy scipy scikit-learn cryptography ray xgboost xgboost-cpu"
    for package in packages.split():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
