"""Experiments with online methods: from a table to results, on any engine."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.scaling import Scaling
from fedkern_flwr.tables import Missing, Table, drop_constant_columns

from ..clients import OnlineKernelClient
from ..strategies.online import OnlineStrategy
from .datasets import load_data
from .engines import Audit, DropOut, Engine, SimulationStep, simulate_all
from .methods import method
from .splits import Split, split_rows

DEFAULT_ROUNDS, DEFAULT_CLIENTS = 500, 10
LARGEST_SEED = 2**62

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class DataSettings:
    """Which rows go to which client.

    Attributes
    ----------
    data : str
        Name of a built-in data set or path of a file.
    label, target, id_column, site_column : str or None
        Columns, see :func:`fedkern_flwr.tables.load_table`.
    missing : {"error", "drop-row"}
        What to do with rows that hold missing values.
    sites : tuple of str
        Sites to keep; all when empty.
    clients : int or None
        K; by default the number of sites for ``split="site"``, else 10.
    rounds : int or None
        T, samples per client; by default 500, or fewer when there are not so many rows.
    split : {"iid", "site", "dirichlet"}
        How rows are dealt.
    site_share : float
        Share of a client's rows that comes from its own site (``split="site"``).
    alpha : float
        Concentration of ``split="dirichlet"``.
    test_size : float
        Share of the rows held out for a last evaluation, dealt evenly to the clients.
    seed : int
        Seed of the split.
    """

    data: str
    label: str | None = None
    target: str | None = None
    id_column: str | None = None
    site_column: str | None = None
    missing: Missing = "error"
    sites: tuple[str, ...] = ()
    clients: int | None = None
    rounds: int | None = None
    split: Split = "iid"
    site_share: float = 1.0
    alpha: float = 0.5
    test_size: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Shard:
    """The rows of one client."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    x_test: NDArray[np.float64]
    y_test: NDArray[np.float64]


@dataclass(frozen=True)
class TableClients:
    """A ``client_fn``: builds the client of a node from its shard.

    Attributes
    ----------
    shards : tuple of Shard
        By partition.
    columns : tuple of str
        Names of the features.
    state_dir : path or None
        Where the simulated nodes keep private state for a resumed run.
    """

    shards: tuple[Shard, ...]
    columns: tuple[str, ...]
    state_dir: Path | None = None

    def __call__(self, context: Context) -> OnlineKernelClient:
        """Build the client of a node."""
        shard = self.shards[int(context.node_config["partition-id"])]
        return OnlineKernelClient(
            context,
            shard.x,
            shard.y,
            x_test=shard.x_test,
            y_test=shard.y_test,
            columns=self.columns,
            state_dir=self.state_dir,
        )


@dataclass(frozen=True)
class Prepared:
    """Data ready for an experiment."""

    clients: TableClients
    scaling: Scaling
    rounds: int
    notes: tuple[str, ...]

    @property
    def num_clients(self) -> int:
        """Number K of clients."""
        return len(self.clients.shards)


def prepare(settings: DataSettings) -> Prepared:
    """Load, scale and deal the data.

    Columns that are constant are dropped, x is min-max scaled and divided by the largest row norm,
    y is scaled to [0, 1]. In a simulation the scaling uses all rows; a deployment declares it.

    Raises
    ------
    TableError, OptionError
        See :func:`load_data` and :func:`split_rows`.
    """
    table = load_data(
        settings.data,
        label=settings.label,
        target=settings.target,
        id_column=settings.id_column,
        site_column=settings.site_column,
        missing=settings.missing,
    )
    if settings.sites:
        table = _keep_sites(table, settings.sites)
    table = drop_constant_columns(table)
    scaling = Scaling.fit(table)
    table = scaling.apply(table)
    table, x_test, y_test = _hold_out(table, settings)
    clients = _number_of_clients(table, settings)
    rounds, notes = _number_of_rounds(table, clients, settings)
    parts = split_rows(
        table,
        settings.split,
        clients,
        settings.seed,
        rounds,
        settings.site_share,
        settings.alpha,
    )
    assert table.y is not None
    test = np.array_split(np.arange(len(y_test)), clients)
    shards = tuple(
        Shard(
            np.ascontiguousarray(table.x[rows]),
            np.ascontiguousarray(table.y[rows]),
            x_test[held],
            y_test[held],
        )
        for rows, held in zip(parts, test, strict=True)
    )
    return Prepared(TableClients(shards, table.columns), scaling, rounds, (*table.notes, *notes))


@dataclass
class Entry:
    """One method in an experiment.

    Attributes
    ----------
    label : str
        How tables and plots call it.
    method : str
        Name of the method.
    options : dict
        Options of its strategy.
    results : list of dict
        One result per feature draw, filled by :func:`run_entries`.
    strategy : OnlineStrategy or None
        The strategy of the first draw, after its run.
    """

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    strategy: OnlineStrategy[Any] | None = None


DrawDone = Callable[[Entry, OnlineStrategy[Any]], None]


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
    resume: bool = False,
    audited: bool = False,
    progress: Progress = lambda label, done, total: None,
    draw_done: DrawDone = lambda entry, strategy: None,
) -> None:
    """Run methods one after the other on the same clients; the engine starts once.

    Parameters
    ----------
    entries : sequence of Entry
        Methods to run; draws that an entry has results of already are not run again.
    prepared : Prepared
        The data.
    engine : {"in-process", "ray"}
        The engine.
    seed : int
        Draw r uses ``seed + r`` for its features.
    runs : int (default: 1)
        Feature draws per method.
    drop : float (default: 0.0)
        Probability that a client vanishes in a round.
    timeout : float (default: 3600.0)
        Seconds to wait for the replies of an exchange.
    checkpoints : path, optional
        Folder for checkpoints, one per draw; for a single entry.
    resume : bool (default: False)
        Go on from the checkpoint of the first draw that is missing, if there is one.
    audited : bool (default: False)
        Count which kinds of values server and clients see in the first draw of each entry.
    progress : callable
        Called with (label, exchanges done, exchanges in all) of the draw at hand.
    draw_done : callable
        Called with (entry, strategy) when an entry has a new result.
    """
    if runs < 1:
        raise OptionError(f"runs is {runs}", remedy="use at least 1")
    steps: list[SimulationStep] = []
    for entry in entries:
        for draw in range(len(entry.results), runs):
            file = checkpoint_file(checkpoints, draw) if checkpoints is not None else None
            strategy = method(entry.method)(
                **entry.options,
                seed=seed + draw,
                checkpoint=file,
                resume=resume and file is not None and file.is_file(),
            )
            step = _step(entry, draw, runs, strategy, prepared, timeout, progress, draw_done)
            step.audit = Audit() if audited and draw == 0 else None
            steps.append(step)
    simulate_all(
        steps,
        prepared.clients,
        prepared.num_clients,
        engine=engine,
        faults=DropOut(drop, seed) if drop else None,
    )


def check_seed(seed: int, runs: int = 1) -> None:
    """Refuse a seed that cannot travel, for any of the feature draws.

    Raises
    ------
    OptionError
    """
    if not 0 <= seed <= LARGEST_SEED - runs:
        raise OptionError(f"seed is {seed}", remedy="use a whole number from 0 to 2^62")


def checkpoint_file(folder: Path, draw: int) -> Path:
    """Return the checkpoint of a feature draw."""
    return folder / f"checkpoint-{draw}.npz"


def summarise(entry: Entry) -> dict[str, Any]:
    """Average the results of an entry's feature draws.

    Returns
    -------
    dict
        ``metrics``, ``history``, ``exchanges``, ``bytes_up``, ``bytes_down``, ``seconds`` (means
        per draw; ``mse_std`` is the standard deviation over draws), ``survivors``, ``failures``,
        ``privacy`` (of the first draw).
    """
    results = entry.results
    metrics: dict[str, Any] = {
        name: _mean([r["metrics"].get(name) for r in results]) for name in results[0]["metrics"]
    }
    metrics["mse_std"] = float(np.std([r["metrics"]["mse"] for r in results]))
    history = [
        {
            "round": rows[0]["round"],
            "mse": _mean([row["mse"] for row in rows]),
            "regret": _mean([row["regret"] for row in rows]),
            "survivors": min(row["survivors"] for row in rows),
        }
        for rows in zip(*(r["history"] for r in results), strict=True)
    ]
    return {
        "metrics": metrics,
        "history": history,
        **{
            name: _mean([r[name] for r in results])
            for name in ("exchanges", "bytes_up", "bytes_down", "seconds")
        },
        "survivors": results[-1]["history"][-1]["survivors"],
        "failures": _add_failures(r["failures"] for r in results),
        "privacy": results[0]["privacy"],
    }


def versions() -> dict[str, str]:
    """Return the versions of what a run depends on."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for package in ("fedkern-flwr", "flwr", "numpy", "scipy", "cryptography", "ray"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _step(
    entry: Entry,
    draw: int,
    runs: int,
    strategy: OnlineStrategy[Any],
    prepared: Prepared,
    timeout: float,
    progress: Progress,
    draw_done: DrawDone,
) -> SimulationStep:
    label = entry.label if runs == 1 else f"{entry.label}, draw {draw + 1} of {runs}"
    started = 0.0

    def on_round(done: int, total: int, _: Mapping[str, Any]) -> None:
        progress(label, done, total)

    def before(step: SimulationStep) -> None:
        nonlocal started
        started = time.monotonic()
        progress(label, 0, 1)

    def after(step: SimulationStep) -> None:
        ledger = strategy.ledger_
        entry.results.append(
            {
                "metrics": strategy.metrics_,
                "history": strategy.history_,
                "exchanges": ledger.exchanges,
                "bytes_up": ledger.bytes_up,
                "bytes_down": ledger.bytes_down,
                "seconds": time.monotonic() - started,
                "failures": ledger.failures,
                "privacy": strategy.privacy(),
            }
        )
        if step.audit is not None:
            entry.results[-1]["privacy"]["seen"] = step.audit.to_dict()
        if entry.strategy is None:
            entry.strategy = strategy
        draw_done(entry, strategy)

    strategy.on_round = on_round
    start = {"num_rounds": prepared.rounds, "timeout": timeout}
    return SimulationStep(strategy, start=start, before=before, after=after)


def _keep_sites(table: Table, sites: Sequence[str]) -> Table:
    if table.site is None:
        raise TableError("the data has no sites to choose from", remedy="leave out --sites")
    names = np.asarray(table.site).astype(str)
    unknown = sorted(set(sites) - set(names))
    if unknown:
        raise TableError(
            f"{len(unknown)} of the sites asked for are not in the data",
            remedy=f"the data has {len(set(names))} sites",
        )
    return table.take(np.flatnonzero(np.isin(names, list(sites))))


def _hold_out(
    table: Table, settings: DataSettings
) -> tuple[Table, NDArray[np.float64], NDArray[np.float64]]:
    if not 0.0 <= settings.test_size < 1.0:
        raise OptionError(f"test-size is {settings.test_size}", remedy="use a share in [0, 1)")
    assert table.y is not None
    if table.x_test is not None and table.y_test is not None:
        return table, table.x_test, table.y_test
    order = np.random.default_rng([settings.seed, 1]).permutation(table.rows)
    held, kept = np.split(order, [round(settings.test_size * table.rows)])
    held, kept = np.sort(held), np.sort(kept)
    return table.take(kept), table.x[held], table.y[held]


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
        if settings.rounds < 1:
            raise OptionError(f"rounds is {settings.rounds}", remedy="use at least 1")
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


def _mean(values: Sequence[Any]) -> Any:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return None
    mean = float(np.mean(numbers))
    return int(mean) if mean.is_integer() and isinstance(numbers[0], int) else mean


def _add_failures(all_failures: Any) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for failures in all_failures:
        for partition, reasons in failures.items():
            counts = total.setdefault(partition, {})
            for reason, count in reasons.items():
                counts[reason] = counts.get(reason, 0) + count
    return total


def with_state_dir(prepared: Prepared, state_dir: Path) -> Prepared:
    """Let the simulated nodes keep private state in a folder."""
    clients = dataclasses.replace(prepared.clients, state_dir=state_dir)
    return dataclasses.replace(prepared, clients=clients)
