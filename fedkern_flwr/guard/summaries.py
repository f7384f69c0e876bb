"""What a node's ledger shows of each run: no session, no digest, no id."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from .spending import spent


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


def run_summaries(db: sqlite3.Connection) -> list[RunSummary]:
    """Return what was answered, run by run."""
    out = []
    for number, opened, method, secure, pinned in db.execute(
        "SELECT id, opened, method, secure, pinned FROM runs ORDER BY id"
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
            )
        )
    return out


def count(db: sqlite3.Connection, where: str, run: int, what: str = "count(*)") -> int:
    """Return how many rows of a table are about a run."""
    return int(db.execute(f"SELECT {what} FROM {where}", (run,)).fetchone()[0] or 0)
