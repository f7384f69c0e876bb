"""Figures of a node in Prometheus' text format, for node_exporter's textfile collector."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedkern_flwr.checkpoint import write_atomically
from fedkern_flwr.guard.totals import LedgerTotals

from .status import NodeStatus, timestamp

_PREFIX = "fedkern_node"
_READABLE = 0o644  # the collector is another user; there are counts in it

_Sample = tuple[str, float]  # what stands behind the name, and the value


def write_metrics(
    file: Path, status: NodeStatus, totals: LedgerTotals | None, max_evaluations: int | None
) -> None:
    """Write all figures of a node.

    Parameters
    ----------
    file : Path
        Replaced as a whole; its name must end with ``.prom`` for the collector.
    status : NodeStatus
        What the node says of itself.
    totals : LedgerTotals, optional
        Of its ledger, if it could be read.
    max_evaluations : int, optional
        Of its policy.
    """
    text = "".join(_lines(_families(status, totals, max_evaluations)))
    new = file.with_name(f"{file.name}.new")
    write_atomically(new, text.encode())
    new.chmod(_READABLE)
    new.replace(file)


_Family = tuple[str, str, str, list[_Sample]]


def _families(
    status: NodeStatus, totals: LedgerTotals | None, max_evaluations: int | None
) -> Iterator[_Family]:
    """Yield name, type, meaning and samples."""

    def one(name: str, kind: str, text: str, value: float) -> _Family:
        return name, kind, text, [("", value)]

    info = f'{{version="{status.version}"}}'
    yield "info", "gauge", "Release of fedkern-flwr.", [(info, 1)]
    yield one("written_timestamp_seconds", "gauge", "When this was written.", time.time())
    yield one("connected", "gauge", "Whether the SuperLink is reached.", status.connected)
    yield one("start_timestamp_seconds", "gauge", "When it was started.", timestamp(status.started))
    yield one("busy_messages", "gauge", "Messages being answered.", status.busy)
    yield one("messages_total", "counter", "Messages taken.", status.messages)
    yield one("failures_total", "counter", "Messages that ended in an error.", status.failures)
    answered = status.messages - status.busy
    took = [("_sum", status.message_seconds), ("_count", answered)]
    yield "message_seconds", "summary", "What answering took.", took
    cpu = "Time of the processors for answering."
    yield one("client_cpu_seconds_total", "counter", cpu, status.cpu_seconds)
    last = "When the last message was taken, 0 for none."
    yield one("last_message_timestamp_seconds", "gauge", last, timestamp(status.last_message))
    if totals is not None:
        yield one("runs_total", "counter", "Runs in the ledger.", totals.runs)
        yield one("sums_total", "counter", "Sums in the ledger.", totals.sums)
        refused = [(f'{{rule="{rule}"}}', float(n)) for rule, n in totals.refusals.items()]
        yield "refusals_total", "counter", "Refusals in the ledger.", refused
        told = "How often figures about the same held-out rows were told, at most."
        yield one("evaluations_told", "gauge", told, totals.told)
    if max_evaluations is not None:
        allowed = "How often they may be told."
        yield one("evaluations_allowed", "gauge", allowed, max_evaluations)


def _lines(families: Iterable[_Family]) -> Iterator[str]:
    for name, kind, text, samples in families:
        full = f"{_PREFIX}_{name}"
        yield f"# HELP {full} {text}\n# TYPE {full} {kind}\n"
        yield from (f"{full}{rest} {float(value):.15g}\n" for rest, value in samples)
