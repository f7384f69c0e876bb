"""What a node's ledger holds in all: counts for whoever watches the node, and nothing else."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .ledger_file import FILE
from .policy import RULES
from .summaries import near_limits

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
            runs, sums, told = db.execute(
                "SELECT (SELECT count(*) FROM runs),"
                " (SELECT count(*) FROM opened WHERE parties > 0),"
                " (SELECT coalesce(max(n), 0) FROM"
                " (SELECT count(*) AS n FROM evaluations GROUP BY rows))"
            ).fetchone()
            for rule, number in db.execute("SELECT rule, number FROM refusals"):
                name = rule.partition(" ")[0]
                refusals[name if name in RULES else OTHER] += number
            near = near_limits(db)
    except sqlite3.Error:
        return None
    return LedgerTotals(runs, sums, told, dict(sorted(refusals.items())), near)
