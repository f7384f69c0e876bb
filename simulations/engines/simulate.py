"""Run strategies against simulated clients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, get_args

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedkern_flwr.options import at_least, check_choice
from fedkern_flwr.progress import Listener, listening

from .audit import Audit, AuditingGrid
from .faults import FaultyGrid, Plan
from .in_process import InProcessGrid, RecordingGrid, ReportingApp, ReportingGrid, Transcript
from .ray import Clients, check_ray_address, run_on_ray, served

Engine = Literal["in-process", "ray"]
AnyStrategy = TypeVar("AnyStrategy", bound=Strategy)


@dataclass
class SimulationStep(Generic[AnyStrategy]):
    """One strategy in a simulation of several.

    ``before`` and ``after`` are called with this step, ``audit`` counts what is seen, ``listener``
    hears the progress, ``start`` are more arguments for ``strategy.start``. The simulation fills
    ``result``.
    """

    strategy: AnyStrategy
    seed: int = 0
    start: dict[str, Any] = field(default_factory=dict)
    before: Callable[[SimulationStep[AnyStrategy]], None] | None = None
    after: Callable[[SimulationStep[AnyStrategy]], None] | None = None
    audit: Audit | None = None
    listener: Listener | None = None
    result: Result | None = None


def simulate(
    strategy: Strategy,
    client_fn: Clients,
    num_clients: int,
    engine: Engine = "in-process",
    seed: int = 0,
    *,
    faults: Plan | None = None,
    transcript: Transcript | None = None,
    audit: Audit | None = None,
    serialise: bool = False,
    ray_address: str | None = None,
    shared_dir: Path | None = None,
    **start: Any,
) -> Result:
    """Run a strategy against simulated clients.

    Parameters
    ----------
    strategy : Strategy
        Any strategy of :mod:`fedkern_flwr.strategies`, or of Flower's Message API.
    client_fn : callable or ClientApp
        ``client_fn(context)`` returns one of the clients of :mod:`fedkern_flwr.clients`, with the
        table of node ``context.node_config["partition-id"]``; or the app of the nodes.
    num_clients : int
        Number of nodes.
    engine : {"in-process", "ray"} (default: "in-process")
        Results are the same.
    seed : int (default: 0)
        For a strategy without its own.
    faults : callable, optional
        Faults to inject, such as :class:`DropOut` or :class:`FaultPlan`.
    transcript : Transcript, optional
        Records all messages.
    audit : Audit, optional
        Counts which kinds of values the server and each client see.
    serialise : bool (default: False)
        In process: send messages through Flower's serialisation.
    ray_address, shared_dir : str, path, optional
        Engine ray: see :func:`.ray.run_on_ray`.
    **start
        More arguments for ``strategy.start``, such as ``num_rounds`` and ``timeout``.

    Returns
    -------
    flwr.serverapp.strategy.Result
        Of ``strategy.start``; see also the strategy's attributes ending in ``_``.

    Raises
    ------
    FedKernError
        See the strategy's ``start``.
    """
    step = SimulationStep(strategy, seed, start, audit=audit)
    simulate_all(
        [step],
        client_fn,
        num_clients,
        engine=engine,
        faults=faults,
        transcript=transcript,
        serialise=serialise,
        ray_address=ray_address,
        shared_dir=shared_dir,
    )
    assert step.result is not None
    return step.result


def simulate_all(
    steps: Sequence[SimulationStep[Any]],
    client_fn: Clients,
    num_clients: int,
    *,
    engine: Engine = "in-process",
    faults: Plan | None = None,
    transcript: Transcript | None = None,
    serialise: bool = False,
    ray_address: str | None = None,
    shared_dir: Path | None = None,
) -> None:
    """Run several strategies one after the other on the same nodes; Ray starts only once.

    Parameters are those of :func:`simulate`; the steps have the results.
    """
    check_choice("engine", engine, get_args(Engine))
    check_ray_address(engine, ray_address)
    at_least("clients", num_clients, 1)

    def drive(grid: Grid) -> None:
        grid = ReportingGrid(grid)
        if faults is not None:
            grid = FaultyGrid(grid, faults)
        if transcript is not None:
            grid = RecordingGrid(grid, transcript)
        for step in steps:
            watched = grid if step.audit is None else AuditingGrid(grid, step.audit)
            with listening(step.listener):
                if step.before is not None:
                    step.before(step)
                config = ConfigRecord({"seed": step.seed})
                step.result = step.strategy.start(grid=watched, train_config=config, **step.start)
                if step.after is not None:
                    step.after(step)

    if engine == "ray":
        run_on_ray(drive, client_fn, num_clients, ray_address=ray_address, shared_dir=shared_dir)
    else:
        app = ReportingApp(served(client_fn))
        drive(InProcessGrid(app, num_clients, serialise=serialise))


@contextmanager
def quiet() -> Iterator[None]:
    """Log errors only; ``strategy_`` has warnings."""
    loggers = [logging.getLogger(name) for name in ("fedkern_flwr", "flwr")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
