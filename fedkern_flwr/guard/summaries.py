"""What a node's ledger shows of each run: no digest, no id, nothing of a row."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .ledger_file import FILE, value_of
from .policy import RULES
from .spending import spent_in_all

_NEAR = 0.8  # share of what is allowed from which on the owner is warned


@dataclass(frozen=True)
class AboutRun:
    """What joins a run in a node's ledger up with the coordinator's records of it.

    Attributes
    ----------
    session : str
        Name of the run, as in its ``result.json``; a run that is resumed keeps it.
    flower_run : str
        Number of the run of Flower; a run that is resumed has another one.
    release : str
        Of fedkern-flwr, at this node.
    app : str
        Publisher, name, version and the first digits of the hash of the app that answered.
    settings : str
        What the run is configured with, shortened.
    settings_digest : str
        SHA-256 of all of it, the first 16 digits.
    max_evaluations, max_epsilon : int, float or None
        What the node's policy allowed; None for no limit.
    """

    session: str = ""
    flower_run: str = ""
    release: str = ""
    app: str = ""
    settings: str = ""
    settings_digest: str = ""
    max_evaluations: int | None = None
    max_epsilon: float | None = None


@dataclass(frozen=True)
class RunSummary:
    """What the ledger shows of a run."""

    number: int
    opened: str
    method: str
    secure: bool
    pinned: bool
    sums: tuple[str, ...]
    rows: int
    parties: int
    evaluations: int
    refusals: int
    epsilon: float  # of what it released with noise, 0 if nothing
    ended: str = ""  # empty while it goes on, if it broke off, and of runs without secure sums
    about: AboutRun = field(default_factory=AboutRun)


def run_summaries(db: sqlite3.Connection) -> list[RunSummary]:
    """Return what was answered, run by run."""
    query = "SELECT DISTINCT purpose FROM opened WHERE run = ? AND parties > 0 ORDER BY purpose"
    out = []
    for number, opened, method, secure, pinned, about, *counts in db.execute(
        "SELECT id, opened, method, secure, pinned, about,"
        " max((SELECT count(*) FROM streamed WHERE run = id),"
        " (SELECT coalesce(max(rows), 0) FROM opened WHERE run = runs.id)),"
        " (SELECT coalesce(max(parties), 0) FROM opened WHERE run = runs.id),"
        " (SELECT count(*) FROM evaluations WHERE run = id),"
        " (SELECT coalesce(sum(number), 0) FROM refusals WHERE run = id),"
        " epsilon, ended FROM runs ORDER BY id"
    ).fetchall():
        sums = tuple(purpose for (purpose,) in db.execute(query, (number,)))
        known = AboutRun(**json.loads(about))
        own: list[Any] = [number, opened, method, bool(secure), bool(pinned), sums]
        out.append(RunSummary(*[*own, *counts, known]))
    return out


def near_limits(db: sqlite3.Connection) -> tuple[str, ...]:
    """Return what is nearly used up of what the policies of the last runs allow."""
    found = []
    last = "SELECT partition, about, max(id) FROM runs GROUP BY partition"
    for partition, text, _ in db.execute(last).fetchall():
        about = AboutRun(**json.loads(text))
        used = {
            "max_evaluations": most_told(db, partition),  # of the same held-out rows
            "max_epsilon": spent_in_all(db, partition),
        }
        for rule, now in used.items():
            if (allowed := getattr(about, rule)) and now >= _NEAR * allowed:
                found.append(f"{now:.3g} of {rule} = {allowed:g} are used up")
    return tuple(found)


def most_told(db: sqlite3.Connection, partition: int | None = None) -> int:
    """Return how often figures about the same rows of a node were told, where that was most."""
    query = (
        "SELECT count(*) AS n FROM evaluations JOIN runs ON runs.id = run"
        " WHERE partition = coalesce(?, partition) GROUP BY rows ORDER BY n DESC"
    )
    return int(value_of(db, query, partition) or 0)


# -- counts for whoever watches the node, and nothing else

OTHER = "order"  # refused for what no rule of the policy says: an order that the method never gives
_PATIENCE = 0.5  # seconds to wait for who writes


@dataclass(frozen=True)
class LedgerTotals:
    """Counts of a node's ledger.

    Attributes
    ----------
    runs, sums : int
        Runs that were opened, and sums that were answered.
    told : int
        How often figures about the same held-out rows were told, where that was most; the policy's
        ``max_evaluations`` is about this number.
    refusals : mapping
        Rule of the policy, or ``order`` -> how often something was refused.
    near : tuple of str
        What is nearly used up of what the policy of the last run allows.
    """

    runs: int
    sums: int
    told: int
    refusals: Mapping[str, int]
    near: tuple[str, ...] = ()


def ledger_totals(folder: Path) -> LedgerTotals | None:
    """Return the counts of the ledger in a node's folder; None if it cannot be read just now.

    Nothing is made or written: a node that has answered nothing yet has no ledger.
    """
    file = folder.absolute() / FILE
    if not file.is_file():
        return LedgerTotals(0, 0, 0, {})
    refusals: Counter[str] = Counter()
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", _PATIENCE, uri=True)) as db:
            runs = value_of(db, "SELECT count(*) FROM runs")
            sums = value_of(db, "SELECT count(*) FROM opened WHERE parties > 0")
            for rule, number in db.execute("SELECT rule, number FROM refusals"):
                name = rule.partition(" ")[0]
                refusals[name if name in RULES else OTHER] += number
            told, near = most_told(db), near_limits(db)
    except sqlite3.Error:
        return None
    return LedgerTotals(runs, sums, told, dict(sorted(refusals.items())), near)
