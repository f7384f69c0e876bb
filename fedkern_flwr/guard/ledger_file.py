"""Open the file of a node's ledger: one private, versioned SQLite database."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .rows import RowSet, digest

FILE = "ledger.sqlite"
VERSION = 9  # a file of an earlier one did not count numbers over runs: it is refused

_PATIENCE = 60.0  # seconds to wait for another process
#: Errors that waiting does not mend.
_HOPELESS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_SCHEMA = """
CREATE TABLE secret (key BLOB NOT NULL);
CREATE TABLE arrays (id INTEGER PRIMARY KEY, digest BLOB UNIQUE NOT NULL, data BLOB NOT NULL);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, session BLOB NOT NULL, partition INTEGER NOT NULL, kind TEXT NOT NULL,
    method TEXT NOT NULL, secure INTEGER NOT NULL, pinned INTEGER NOT NULL, opened TEXT NOT NULL,
    held INTEGER NOT NULL, learned INTEGER NOT NULL, content BLOB NOT NULL, about TEXT NOT NULL,
    places INTEGER, frozen BLOB NOT NULL DEFAULT x'', planned TEXT NOT NULL DEFAULT '',
    record TEXT NOT NULL DEFAULT '', noise BLOB NOT NULL DEFAULT x'',
    epsilon REAL NOT NULL DEFAULT 0,
    ended TEXT NOT NULL DEFAULT '', cleaned INTEGER NOT NULL DEFAULT 0,
    UNIQUE (session, partition));
CREATE TABLE opened (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL, apart TEXT NOT NULL, purpose TEXT NOT NULL,
    about BLOB NOT NULL, blocks BLOB NOT NULL, cohort BLOB NOT NULL, parties INTEGER NOT NULL,
    each INTEGER NOT NULL, done INTEGER NOT NULL, row REAL NOT NULL, others INTEGER NOT NULL,
    width INTEGER NOT NULL, rows INTEGER NOT NULL, numbers REAL NOT NULL, functions BLOB NOT NULL,
    function BLOB NOT NULL, how TEXT NOT NULL, UNIQUE (run, purpose, about, cohort, each));
CREATE TABLE evaluations (
    run INTEGER NOT NULL, asked BLOB NOT NULL, rows INTEGER NOT NULL, told TEXT NOT NULL,
    PRIMARY KEY (run, asked));
CREATE TABLE refusals (
    run INTEGER NOT NULL, rule TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (run, rule));
CREATE TABLE facts (
    partition INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (partition, name)) WITHOUT ROWID;
CREATE TABLE seen (
    partition INTEGER NOT NULL, content INTEGER NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (partition, content)) WITHOUT ROWID;
CREATE TABLE streamed (
    name INTEGER NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (name, run)) WITHOUT ROWID;
CREATE INDEX streamed_by ON streamed (run);
CREATE TABLE spending (
    run INTEGER NOT NULL, release BLOB NOT NULL, rows INTEGER NOT NULL, curve TEXT NOT NULL,
    delta REAL NOT NULL, pool TEXT NOT NULL, PRIMARY KEY (run, release));
CREATE TABLE pools (
    partition INTEGER NOT NULL, pool TEXT PRIMARY KEY, curve TEXT NOT NULL, delta REAL NOT NULL);
CREATE TABLE shown (
    run INTEGER NOT NULL, mark BLOB NOT NULL, among TEXT NOT NULL,
    PRIMARY KEY (run, mark)) WITHOUT ROWID;
"""


class Entries(sqlite3.Connection):
    partition: int  # the node that facts are about

    @cached_property
    def key(self) -> bytes:
        return bytes(self.value("SELECT key FROM secret"))

    def value(self, query: str, *about: Any) -> Any:
        found = self.execute(query, about).fetchone()
        return None if found is None else found[0]

    def keep_array(self, data: bytes) -> int:
        """Store an array, such as a set of digests, once; return its number."""
        name = digest(self.key, data)
        self.execute("INSERT OR IGNORE INTO arrays (digest, data) VALUES (?, ?)", (name, data))
        return int(self.value("SELECT id FROM arrays WHERE digest = ?", name))

    def array(self, number: int) -> bytes:
        return bytes(self.value("SELECT data FROM arrays WHERE id = ?", number))

    def row_set(self, number: int) -> RowSet:
        return RowSet.unpack(self.array(number))

    def fact(self, name: str) -> str:
        """Return a fact about the node; "" if it was never stored."""
        query = "SELECT value FROM facts WHERE partition = ? AND name = ?"
        return str(self.value(query, self.partition, name) or "")

    def keep_fact(self, name: str, value: object) -> None:
        self.execute("REPLACE INTO facts VALUES (?, ?, ?)", (self.partition, name, str(value)))


class LedgerFile:
    """The ledger's file in a node's folder; several nodes (``partition``) may share it."""

    def __init__(self, folder: Path, partition: int) -> None:
        self.path, self.partition = folder / FILE, partition
        self._db: Entries | None = None  # that of the message at hand
        self._held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Open the file at most once in the block, because opening takes longer than an entry."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._close()

    @contextmanager
    def writing(self) -> Iterator[Entries]:
        """Run the block as one transaction, on disk after it; an error undoes it.

        A block within another one joins its transaction.
        """
        with self.open() as db:
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.rollback()
                raise

    @contextmanager
    def open(self) -> Iterator[Entries]:
        """Open the file, readable by this user only; create it if it is missing.

        Raises
        ------
        OptionError
            The file is damaged, not writable, or from another release.
        """
        if self._db is not None and self._db.in_transaction:  # the outer block handles errors
            yield self._db
            return
        stays = self._held or self._db is not None
        try:
            self._db = self._db or self._connect()
            yield self._db
        except (sqlite3.Error, OSError) as error:
            stays = False  # whatever it had begun is undone
            reason = getattr(error, "sqlite_errorname", type(error).__name__)
            raise OptionError(f"{FILE} cannot be used ({reason})", code="FK-LEDGER-FILE") from None
        finally:
            if not stays:
                self._close()

    def _connect(self) -> Entries:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o600)
        os.fchmod(descriptor, 0o600)
        os.close(descriptor)
        how: Any = {"timeout": _PATIENCE, "isolation_level": None, "factory": Entries}
        db: Entries = sqlite3.connect(self.path, **how)
        try:
            db.partition = self.partition
            db.execute("PRAGMA synchronous = FULL")
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Create the tables of a new file; refuse a file of another release."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            _begin_log(db)
            db.execute("BEGIN IMMEDIATE")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:  # nobody else has made them meanwhile
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(32),))
                db.execute(f"PRAGMA user_version = {VERSION}")
                version = VERSION
            db.execute("COMMIT")
        if version != VERSION:
            raise OptionError(
                f"{FILE} has version {version}, this release knows {VERSION}",
                code="FK-LEDGER-VERSION",
            )


def _begin_log(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging; retry while another process opens the new file."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            kind = error.sqlite_errorcode & 0xFF  # without what SQLite knows beyond it
            if kind in _HOPELESS or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
