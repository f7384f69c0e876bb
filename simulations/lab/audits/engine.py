"""Runs to be attacked: as many as the trials of every check take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import Context
from threadpoolctl import threadpool_limits

from fedkern_flwr.errors import OptionError
from fedkern_flwr.seeding import derive_seed

from ...engines import Transcript, simulate
from ...methods.registry import family, method
from ...run.data import Prepared
from ...run.entries import check_seed
from .evidence import Evidence, Sheet, Subject
from .findings import Finding, doubtful, judge
from .plan import ALLOW_SMALL_SUMS, Plan, Recorded

#: Runs after which an audit makes do with the trials it has.
MOST_RUNS = 24

Progress = Callable[[str, int, int], None]


def audit(
    plan: Plan,
    config: Mapping[str, Any],
    *,
    trials: int,
    progress: Progress = lambda label, done, total: None,
) -> list[Finding]:
    """Attack a method with some options; checks that are doubtful are made once more.

    Parameters
    ----------
    plan : Plan
        Of the method's family.
    config : mapping
        Configuration of a run.
    trials : int
        Least trials of a check.
    progress : callable
        Called with (what is done, trials so far, trials in all).

    Returns
    -------
    list of Finding

    Raises
    ------
    FedKernError
        The options cannot work, or a run broke down.
    """
    evidence = collect(plan, config, config["seed"], trials, progress)
    again = frozenset(f.subject for f in judge(evidence) if doubtful(f))
    if again:
        seed = config["seed"] + MOST_RUNS
        fresh = collect(plan, config, seed, trials, progress, again)
        evidence = {s: fresh.get(s, e) if s in again else e for s, e in evidence.items()}
    return judge(evidence, again)


def collect(
    plan: Plan,
    config: Mapping[str, Any],
    seed: int,
    trials: int,
    progress: Progress,
    wanted: frozenset[Subject] | None = None,
) -> dict[Subject, Evidence]:
    """Run and attack until every check, or every one that is wanted, has its trials."""
    sheet = Sheet(derive_seed(seed, "audit"), trials, wanted)
    check_seed(seed, MOST_RUNS)
    for number in range(MOST_RUNS):
        with threadpool_limits(1, "blas"):  # thousands of small matrices, too small to share
            plan.inspect(record(plan, config, seed + number), sheet)
        found = {
            s: e
            for s, e in sheet.evidence.items()
            if not s.documented and (wanted is None or s in wanted)
        }
        if not found:
            raise OptionError(
                "no attack has anything to look at", remedy="use more rows, users or rounds"
            )
        least = min((min(len(e.hits), trials) for e in found.values() if e.hits), default=trials)
        label = "once more" if wanted is not None else "attacking"
        progress(f"{config['method']}: {label}, run {number + 1}", least, trials)
        if all(e.enough(trials) for e in found.values()):
            break
    return sheet.evidence


def record(plan: Plan, config: Mapping[str, Any], seed: int) -> Recorded:
    """Run a method in this process and keep everything."""
    own = family(config["method"])
    settings = own.settings.from_values(config["data"])
    prepared: Prepared = own.prepare(replace(settings, seed=seed))
    own.check_data(config, prepared)
    strategy = method(config["method"])(**config["options"], seed=seed)
    clients: Any = prepared.client_fn(strategy)
    if config.get(ALLOW_SMALL_SUMS.name):
        clients = _allowing_small_sums(clients)
    watcher = plan.watcher() if plan.watcher is not None else None
    transcript = Transcript()
    recorded = Recorded(strategy, prepared, clients, transcript, watcher)
    plan.spy(strategy, recorded.released)
    simulate(
        strategy,
        clients if watcher is None else watcher.watch(clients),
        prepared.nodes(strategy),
        seed=seed,
        transcript=transcript,
        **{**prepared.start(), "timeout": config["timeout"]},
    )
    return recorded


def _allowing_small_sums(clients: Callable[[Context], Any]) -> Callable[[Context], Any]:
    """Return clients whose owners let any sum be released."""

    def client_fn(context: Context) -> Any:
        client = clients(context)
        client.policy = replace(client.policy, allow_small_sums=True)
        return client

    return client_fn
