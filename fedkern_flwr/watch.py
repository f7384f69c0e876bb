"""Record what a run costs, and log its waiting in a deployment."""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import write_atomically

if TYPE_CHECKING:
    from .transport import Outcome


# -- what a run costs and what it shows to whom: exchanges, bytes, seconds, failures


@dataclass
class Ledger:
    """Running totals of a run, at the server.

    Attributes
    ----------
    exchanges : int
        Round trips, set-up included.
    bytes_up, bytes_down : int
        Array payload from clients to server and back, in bytes.
    messages : int
        Requests sent.
    seconds : float
        Wall-clock time of exchanges.
    by_phase : Counter
        Exchanges per phase.
    failures : dict
        Partition (as text) -> reason -> count.
    """

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    seconds: float = 0.0
    by_phase: Counter[str] = field(default_factory=Counter)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)

    def add_failure(self, partition: int, reason: str) -> None:
        """Count a request that a party did not answer properly."""
        reasons = self.failures.setdefault(str(partition), {})
        reasons[reason] = reasons.get(reason, 0) + 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**copy.deepcopy(vars(self)), "by_phase": dict(self.by_phase)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Ledger:
        """Rebuild from :meth:`to_dict`."""
        return cls(**{**values, "by_phase": Counter(values["by_phase"])})


# -- figures in Prometheus' text format, for node_exporter's textfile collector

_READABLE = 0o644  # the collector is another user; there are counts in it

#: Name, type, meaning, and the value; or samples of (suffix of the name, value).
Family = tuple[str, str, str, float | list[tuple[str, float]]]


def write_figures(file: Path, prefix: str, families: Iterable[Family]) -> None:
    """Write metric families for Prometheus, atomically.

    Parameters
    ----------
    file : Path
        Its name must end with ``.prom`` for the collector.
    prefix : str
        Prefix of all names.
    families : iterable of tuple
        Name, type, meaning, and value or samples of each.
    """
    lines = []
    for name, kind, text, samples in families:
        full = f"{prefix}_{name}"
        lines.append(f"# HELP {full} {text}\n# TYPE {full} {kind}\n")
        every = samples if isinstance(samples, list) else [("", samples)]
        lines += [f"{full}{rest} {float(value):.15g}\n" for rest, value in every]
    new = file.with_name(f"{file.name}.new")
    write_atomically(new, "".join(lines).encode())
    new.chmod(_READABLE)
    new.replace(file)


# -- what the server of a deployment knows of its nodes while it waits, and what it says meanwhile
#
# A run in a deployment takes hours and its nodes belong to others: who is awaited and why is said
# while it is so, in the log that ``flwr log`` shows.

logger = logging.getLogger("flwr")  # what `flwr log` shows

_EVERY = 10.0  # seconds from one line about a long exchange to the next
_EACH = 50  # exchanges that have a line each; of a longer run later ones every ten seconds
_NAMED = 5  # nodes that a line names
_LEAST, _TIMES = (
    20.0,
    5.0,
)  # seconds, and multiples of the longest answer, until a request is repeated
_FIGURES = 2.0  # seconds from one file of figures to the next


class Watch:
    """Monitor the nodes of a run in a deployment.

    Parameters
    ----------
    node_timeout : float
        Seconds to wait for an absent node.
    name : callable
        Node -> its name.
    ledger : Ledger
        Totals of the run.
    figures : Path, optional
        File for Prometheus.

    Attributes
    ----------
    in_vain : set of int
        Nodes that did not come back in time. They are not awaited again, so that a lost party costs
        its time only once in a run.
    """

    def __init__(
        self,
        node_timeout: float,
        name: Callable[[int], str],
        ledger: Ledger,
        figures: Path | None = None,
    ) -> None:
        self.node_timeout, self.name = node_timeout, name
        self.ledger, self.figures = ledger, figures
        self.in_vain: set[int] = set()
        self._longest = 0.0  # seconds that a node took for an answer
        self._told = self._written = float("-inf")

    @property
    def silence(self) -> float:
        """Seconds after which a connected node counts as not answering.

        Before the first answer the time is unknown: a node may be reading a large table.
        """
        if not self._longest:
            return max(_LEAST, self.node_timeout / 2)
        return max(_LEAST, _TIMES * self._longest)

    def answered(self, node: int, seconds: float) -> None:
        """Enter that a node has answered, and after how many seconds."""
        self.in_vain.discard(node)
        self._longest = max(self._longest, seconds)

    def say(self, text: str, **facts: Any) -> bool:
        """Log a line, unless there was one recently; ``facts`` are fields of a JSON log."""
        now = time.monotonic()
        if now < self._told + _EVERY:
            return False
        self._told = now
        logger.info(text, extra={"facts": facts})
        return True

    def waits(
        self, phase: str, seconds: float, seen: Outcome, waiting: Sequence[int], away: set[int]
    ) -> None:
        """Log which nodes are awaited, and which of them are away."""
        there, names = len(seen.replies), [self.name(node) for node in waiting]
        text = f"waiting for {_some(names)}, {seconds:.0f} s: {self._title(phase)}, "
        text += f"{there} of {there + len(seen.failures) + len(names)} answered"
        text += f"; not connected: {_some(map(self.name, sorted(away)))}" if away else ""
        if self.say(text, **self._facts(phase, seconds, seen), awaited=names):
            self._write(there + len(names) - len(away), len(names))

    def done(self, phase: str, seconds: float, seen: Outcome, asked: int) -> None:
        """Log the end of an exchange; in a long run not of each."""
        text = f"{self._title(phase)}: {len(seen.replies)} of {asked} answered in {seconds:.1f} s"
        failed = [f"{self.name(node)} {why}" for node, why in sorted(seen.failures.items())]
        text += f"; failed: {_some(failed)}" if failed else ""
        if self.ledger.exchanges <= _EACH:
            self._told = float("-inf")
        self.say(text, **self._facts(phase, seconds, seen))
        self._write(len(seen.replies), 0)

    def close(self) -> None:
        """Write the last figures of a run."""
        self._written = float("-inf")
        self._write(0, 0)

    # -- pieces

    def _title(self, phase: str) -> str:
        return f"exchange {self.ledger.exchanges} ({phase})"

    def _facts(self, phase: str, seconds: float, seen: Outcome) -> dict[str, Any]:
        failed = {self.name(node): str(why) for node, why in seen.failures.items()}
        number, took = self.ledger.exchanges, round(seconds, 3)
        facts = {"exchange": number, "phase": phase, "seconds": took, "failed": failed}
        return {**facts, "answered": len(seen.replies)}

    def _write(self, online: int, awaited: int) -> None:
        now = time.monotonic()
        if self.figures is None or now < self._written + _FIGURES:
            return
        self._written, ledger = now, self.ledger
        failures = sum(sum(reasons.values()) for reasons in ledger.failures.values())
        families = [
            ("exchanges_total", "counter", "Exchanges.", ledger.exchanges),
            ("wait_seconds_total", "counter", "Time spent in exchanges.", ledger.seconds),
            ("received_bytes_total", "counter", "Sent by nodes.", ledger.bytes_up),
            ("sent_bytes_total", "counter", "Sent to nodes.", ledger.bytes_down),
            ("failures_total", "counter", "Requests not answered.", failures),
            ("online_parties", "gauge", "Parties of the exchange that are there.", online),
            ("awaited_parties", "gauge", "Parties whose replies are awaited.", awaited),
            ("last_exchange_timestamp_seconds", "gauge", "When this was.", time.time()),
        ]
        try:
            write_figures(self.figures, "fedkern_run", families)
        except OSError as error:
            logger.warning("%s cannot be written (%s): no figures", self.figures, error.strerror)
            self.figures = None


def _some(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more
