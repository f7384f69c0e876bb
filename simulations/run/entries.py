"""Entries of an experiment: a method, its results and their average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate

import numpy as np

from fedkern_flwr.errors import OptionError

LARGEST_SEED = 2**62

#: Metrics and history of a run.
Outcome = tuple[dict[str, Any], list[dict[str, Any]]]
#: A method that needs all data in one place, to compare with: called with what
#: :meth:`~fedkern_flwr.simulations.run.data.Prepared.pooled` returns and, as keywords, ``seed``,
#: ``progress`` (called with steps done and steps in all) and the options of the entry. Metrics of
#: a method that exchanges messages have its ``costs`` (exchanges, bytes_up, bytes_down) and what
#: the ``server_sees``.
Reference = Callable[Concatenate[Any, ...], Outcome]

#: What the result of a first draw says of its model and its plan, if it is there.
_NOTED = ("no_better_than", "never_found", "notes")


@dataclass
class Entry:
    """One method in an experiment.

    Attributes
    ----------
    label : str
        Name in tables and plots.
    method : str
        Name of the method.
    options : dict
        Options of the strategy or reference.
    results : list of dict
        One result per run.
    reference : callable or None
        Reference method instead of a strategy.
    """

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    reference: Reference | None = None


def draw_label(entry: Entry, draw: int, runs: int) -> str:
    """Return the name of a run in progress bars."""
    return entry.label if runs == 1 else f"{entry.label}, draw {draw + 1} of {runs}"


def check_seed(seed: int, runs: int = 1) -> None:
    """Refuse a seed that does not fit into a message, for any run."""
    if not 0 <= seed <= LARGEST_SEED - runs:
        raise OptionError(
            f"seed is {seed}", remedy="use a whole number from 0 to 2^62", code="FK-OPTION-RANGE"
        )


def average(
    results: Sequence[Mapping[str, Any]],
    *,
    metrics: Mapping[str, Any],
    history: list[dict[str, Any]],
    survivors: int,
) -> dict[str, Any]:
    """Average the results of an entry.

    Parameters
    ----------
    results : sequence of dict
        One per run.
    metrics : dict
        Further metrics.
    history : list of dict
        Averaged history.
    survivors : int
        Clients that replied to the end.

    Returns
    -------
    dict
        ``metrics``, ``history``, ``exchanges``, ``bytes_up``, ``bytes_down``, ``seconds``,
        ``cpu_seconds`` (means), ``survivors``, ``failures``, and of the first run ``privacy``,
        ``no_better_than``, ``never_found`` and ``notes``.
    """
    means = {n: mean([r["metrics"].get(n) for r in results]) for n in results[0]["metrics"]}
    if "converged" in means:  # not an average: if all have
        means["converged"] = all(r["metrics"].get("converged") for r in results)
    return {
        "metrics": {**means, **metrics},
        "history": history,
        **{
            name: mean([r.get(name) for r in results])
            for name in ("exchanges", "bytes_up", "bytes_down", "seconds", "cpu_seconds")
        },
        "survivors": survivors,
        "failures": _add_failures(r["failures"] for r in results),
        "privacy": results[0]["privacy"],
        **{name: results[0][name] for name in _NOTED if name in results[0]},
    }


def mean(values: Sequence[Any]) -> Any:
    """Return the mean, or None if a value is missing; whole means of whole numbers are int."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not numbers:
        return None
    result = float(np.mean(numbers))
    return int(result) if result.is_integer() and isinstance(numbers[0], int) else result


def _add_failures(all_failures: Iterable[Any]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for failures in all_failures:
        for partition, reasons in failures.items():
            counts = total.setdefault(partition, {})
            for reason, count in reasons.items():
                counts[reason] = counts.get(reason, 0) + count
    return total
