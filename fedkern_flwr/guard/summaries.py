"""What a node's ledger shows of each run: no digest, no id, nothing of a row."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field

from .spending import spent, spent_in_all

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
    out = []
    for number, opened, method, secure, pinned, ended, about in db.execute(
        "SELECT id, opened, method, secure, pinned, ended, about FROM runs ORDER BY id"
    ).fetchall():
        sums = db.execute(
            "SELECT purpose, rows, parties FROM opened WHERE run = ?", (number,)
        ).fetchall()
        out.append(
            RunSummary(
                number,
                opened,
                method,
                bool(secure),
                bool(pinned),
                tuple(sorted({purpose for purpose, _, parties in sums if parties})),
                max([count(db, "streamed WHERE run = ?", number), *(rows for _, rows, _ in sums)]),
                max((parties for *_, parties in sums), default=0),
                count(db, "evaluations WHERE run = ?", number),
                count(db, "refusals WHERE run = ?", number, "sum(number)"),
                spent(db, number),
                ended,
                AboutRun(**json.loads(about)),
            )
        )
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


def most_told(db: sqlite3.Connection, partition: int) -> int:
    """Return how often figures about the same rows of a node were told, where that was most."""
    query = (
        "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM evaluations"
        " JOIN runs ON runs.id = run WHERE partition = ? GROUP BY rows)"
    )
    return int(db.execute(query, (partition,)).fetchone()[0])


def count(db: sqlite3.Connection, where: str, run: int, what: str = "count(*)") -> int:
    """Return how many rows of a table are about a run."""
    return int(db.execute(f"SELECT {what} FROM {where}", (run,)).fetchone()[0] or 0)
