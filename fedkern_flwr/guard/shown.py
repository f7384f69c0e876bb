"""Over which parties a node's values were summed and opened, in all that a run's name was given to.

The difference of two sums of the same values over other parties is that of the parties in which
they differ. What a node remembers of secure sums ends with a message that ends them, and a server
may give one name to several runs; the ledger stays.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping

from ..secure_sum.party import OTHER_PARTIES
from .orders import refusal


def keep_shown(db: sqlite3.Connection, key: bytes, run: int, shown: Mapping[str, str]) -> None:
    """Enter what is about to be opened: mark of the values -> digest of the parties.

    Raises
    ------
    RefusedError
        The same values were opened over other parties.
    """
    for mark, among in shown.items():
        known = hashlib.blake2b(mark.encode(), key=key, digest_size=8).digest()
        db.execute("INSERT OR IGNORE INTO shown VALUES (?, ?, ?)", (run, known, among))
        query = "SELECT among FROM shown WHERE run = ? AND mark = ?"
        if db.execute(query, (run, known)).fetchone()[0] != among:
            raise refusal(
                OTHER_PARTIES,
                remedy="go on with those, or start another run",
                code="FK-ORDER-PARTIES",
            )
