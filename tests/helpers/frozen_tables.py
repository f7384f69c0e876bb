"""Tables for a node's freeze, and the story of a table that changes between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedkern_flwr.frozen_files import FrozenFiles, NodeFiles
from fedkern_flwr.guard import NodePolicy
from fedkern_flwr.guard.freeze import Freeze
from fedkern_flwr.guard.rows import Rows

KEY = bytes(range(32))


def table(ids: Any, edits: Any = (), **more: Any) -> Rows:
    """Rows whose content follows from ids and edits: id -> version."""
    ids, versions = list(ids), dict(edits)
    content = np.array([(k, versions.get(k, 0)) for k in ids], float).reshape(-1, 2)
    return Rows(columns=[content], ids=ids, **more)


def freeze(rows: int, least: int = 5, **more: Any) -> Freeze:
    return Freeze.deal(table(range(rows), **more), least=least, key=KEY)[0]


def table_blocks(made: Freeze) -> Any:
    """Return the block of each row of the frozen table."""
    return made.block[made.used]


def rows_of(made: Freeze, blocks: Any) -> Any:
    """Return the places of blocks' rows in the frozen table."""
    return np.flatnonzero(np.isin(table_blocks(made), list(blocks)))


def whole_blocks(made: Freeze, wanted: Any) -> list[int]:
    """Return the blocks all of whose rows in the frozen table are wanted."""
    inside = np.bincount(table_blocks(made)[wanted], minlength=len(made.blocks))
    return [block for block in made.select() if inside[block] == made.blocks["rows"][block]]


def in_use(made: Freeze, ids: Any) -> list[int]:
    """Ids of the frozen table, in its order."""
    names = table(ids).identify(KEY).names
    known = dict(zip(names.tolist(), ids, strict=True))
    return [known[name] for name in made.names[made.used].tolist()]


class Story:
    """A node's table and freeze, and the rows of all sums that it was asked for."""

    def __init__(self, seed: int, rows: int, least: int, *, strata: bool, labels: bool) -> None:
        self.random = np.random.default_rng(seed)
        self.ids, self.edits, self.next = list(range(rows)), dict.fromkeys(range(rows), 0), rows
        self.strata, self.labels = strata, labels
        self.gone: list[int] = []
        self.sums: list[list[tuple[int, int]]] = []
        self.least = least
        self.moved: set[int] = set()
        self.freeze, _ = Freeze.deal(self.table(), least=least, key=KEY)
        self.frozen: list[tuple[int, int]] = []
        self.follow()

    def table(self) -> Rows:
        self.random.shuffle(self.ids)
        sex = ["fm"[self.strata and (k + (k in self.moved)) % 2] for k in self.ids]
        strata = [f"{s}{self.labels and k % 7 > 0}" for s, k in zip(sex, self.ids, strict=True)]
        return table(self.ids, self.edits, strata=strata if self.strata or self.labels else None)

    def follow(self) -> None:
        """Make the frozen table as a caller does: of the old one, and of the table as it is now."""
        known, used = dict[tuple[int, int], tuple[int, int]](), self.freeze.used
        for rows in (self.frozen, [(k, self.edits[k]) for k in self.ids]):
            content = [np.array(rows, float).reshape(-1, 2)]
            found = Rows(columns=content, ids=[k for k, _ in rows]).identify(KEY)
            both = zip(found.names.tolist(), found.values.tolist(), strict=True)
            known |= dict(zip(both, rows, strict=True))
        names, values = self.freeze.names[used].tolist(), self.freeze.values[used].tolist()
        self.frozen = [known[both] for both in zip(names, values, strict=True)]

    def some(self, among: list[int], most: int) -> list[int]:
        number = min(len(among), int(self.random.integers(1, most)))
        return [int(k) for k in self.random.choice(among, number, replace=False)]

    def happen(self, event: str, needed: int) -> None:
        if event == "new":
            fresh = list(range(self.next, self.next + int(self.random.integers(1, 30))))
            self.next += len(fresh)
            self.ids += fresh
            self.edits.update(dict.fromkeys(fresh, 0))
        elif event == "edit":
            for k in self.some(self.ids, 20):
                self.edits[k] = 0 if self.random.random() < 0.3 else self.edits[k] + 1
        elif event == "move":
            self.moved ^= set(self.some(self.ids, 20))
        elif event == "withdraw" and len(self.ids) > 30:
            away = self.some(self.ids, 20)
            self.ids = [k for k in self.ids if k not in away]
            self.gone += away
        elif event == "return" and self.gone:
            back = self.some(self.gone, 20)
            self.gone = [k for k in self.gone if k not in back]
            self.ids += back
        elif event == "hasty":
            self.freeze.withdraw(self.some(self.ids, 4))
            self.follow()
        elif event == "force":
            self.freeze.update(self.table(), needed=needed, force=True)
            self.follow()
        rows = self.table()
        self.freeze.update(rows, needed=needed)
        self.follow()

    def ask(self) -> None:
        """Let the server ask for rows: parts, some blocks, or rows of its choice."""
        kind = self.random.integers(4)
        if kind == 0:
            blocks = self.freeze.select(1, 2, 3, 4, 5)
        elif kind == 1:
            blocks = self.freeze.select(int(self.random.integers(6)))
        elif kind == 2:
            blocks = [b for b in self.freeze.select() if self.random.random() < 0.8]
        else:
            blocks = whole_blocks(self.freeze, self.random.random(len(self.frozen)) < 0.97)
        self.sums.append([self.frozen[k] for k in rows_of(self.freeze, blocks)])


def rows_that_wait(folder: Path, rows: int, **rules: Any) -> int:
    """Return how many rows of a file are not frozen: the first has no sex, the second no label."""
    return rows - len(frozen_numbers(folder, rows, **rules)[0])


def rows_held_out(folder: Path, rows: int, **rules: Any) -> int:
    """Return how many rows of the file are held out."""
    return len(frozen_numbers(folder, rows, **rules)[1])


def frozen_numbers(folder: Path, rows: int, **rules: Any) -> list[Any]:
    """Return the numbers of the rows of a file in a freeze, of those learned from and held out."""
    lines = ["id,sex,age,y", *(f"{k},{'fm'[k % 2]},{k},{k % 2}" for k in range(rows))]
    lines[1:3] = "0,,0,0", "1,m,1,"
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    files = FrozenFiles(folder / "state", 0, NodePolicy(**rules))
    made, _ = files.update(NodeFiles(folder / "a.csv", None, "id"))
    return [(), ()] if made is None else made.numbers


EVENTS = ["new", "new", "edit", "withdraw", "return", "move", "hasty"]
