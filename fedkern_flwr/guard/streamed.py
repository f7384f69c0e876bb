"""Rows of a stream in a node's ledger: entered when they take part, and never twice.

A stream has no table that could be known at the start of a run. Its rows are told apart as those
of tables are, see :mod:`.rows`: by their ids, or by their contents, equal ones by their number in
the file. With the rows the ledger keeps the place up to which the stream has been read, in one
transaction: a crash may lose rows for the run, and repeats none.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ledger_file import kept_set
from .orders import refusal
from .rows import OwnRows, RowSet, again


@dataclass(frozen=True)
class Streamed:
    """Rows of a stream that are about to take part.

    Attributes
    ----------
    rows : OwnRows
        The rows.
    place : str
        Where the stream goes on after them, in the client's own words.
    anew : bool
        Whether they are of another file than those before.
    """

    rows: OwnRows
    place: str
    anew: bool = False


def kept_place(db: sqlite3.Connection, partition: int) -> str:
    """Return where a node's stream goes on; nothing at first."""
    found = db.execute("SELECT place FROM places WHERE partition = ?", (partition,)).fetchone()
    return "" if found is None else str(found[0])


def keep_place(db: sqlite3.Connection, partition: int, place: str) -> None:
    """Keep where a node's stream goes on."""
    db.execute("INSERT OR REPLACE INTO places VALUES (?, ?)", (partition, place))


def name_rows(db: sqlite3.Connection, key: bytes, partition: int, taken: Streamed) -> RowSet:
    """Return the digests of rows; equal ones of a file are told apart by their number in it."""
    if taken.rows.ids is not None:
        return taken.rows.digests(key)
    if taken.anew:
        db.execute("DELETE FROM seen WHERE partition = ?", (partition,))
    plain = taken.rows.rows().contents(key)
    times = [
        db.execute(
            "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1"
            " RETURNING times",
            (partition, content),
        ).fetchone()[0]
        for content in _signed(plain)
    ]
    repeats = np.array(times, np.uint64) - np.uint64(1)
    names = np.where(repeats > 0, again(key, plain, repeats), plain)
    return RowSet(names, names)


def runs_with(db: sqlite3.Connection, rows: RowSet) -> set[int]:
    """Return the runs in which some of the rows took part: of streams, or of tables of theirs."""
    found = set()
    for name in _signed(rows.names):
        query = "SELECT run FROM streamed WHERE name = ?"
        found |= {int(run) for (run,) in db.execute(query, (name,)).fetchall()}
    windows = "SELECT run FROM opened WHERE purpose = 'windows'"
    tables = db.execute(f"SELECT id, learned FROM runs WHERE id IN ({windows})").fetchall()
    return found | {int(run) for run, learned in tables if rows.meets(kept_set(db, learned))}


def keep_rows(db: sqlite3.Connection, run: int, rows: RowSet) -> None:
    """Enter rows that take part in a run."""
    pairs = [(name, run) for name in _signed(rows.names)]
    db.executemany("INSERT OR IGNORE INTO streamed VALUES (?, ?)", pairs)


def check_streamed(db: sqlite3.Connection, run: int, rows: RowSet) -> None:
    """Refuse to count a table whose rows took part as rows of a stream.

    Raises
    ------
    RefusedError
    """
    found = db.execute("SELECT name FROM streamed WHERE run <> ?", (run,)).fetchall()
    names = np.array([name for (name,) in found], np.int64).view(np.uint64)
    if np.isin(rows.names, names).any() or np.isin(rows.values, names).any():
        raise refusal(
            "stream: some of its rows took part as rows of a stream",
            remedy="leave them out",
            code="FK-LEDGER-STREAM",
        )


def _signed(names: NDArray[np.uint64]) -> list[int]:
    """Return digests as the whole numbers of SQLite."""
    found: list[int] = np.ascontiguousarray(names).view(np.int64).tolist()
    return found
