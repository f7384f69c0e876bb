"""Counting: a released sum has at most as many numbers as there are unknowns behind it.

A sum over rows is a set of equations for their cells. With more equations than cells the rows can
be computed, and from sums of gradients they are. Fewer numbers than unknowns are no proof of
privacy; more are none at all.

The unknowns are those of the rows of all who took part, but for the node that asks (whose rows the
others cannot know) and its strongest colluders: the receiver of the sum, and the parties with the
most rows. A cell is one unknown, also the label; a cell of a column with two values is one bit of
the 64 that a number has. The numbers are those of *all* sums over the same rows.

Rows are counted as parties declared them, signed where identities are pinned. Without these a
server may invent parties: the rule then binds an honest server only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError

#: Parties other than the node itself whose rows count as known to the server.
COLLUDERS = 1
#: Last row of a table that is summed as a whole.
ENDLESS = 1 << 62
_BITS = 64
#: Beginnings of the names of sums about held-out rows, and of sums that are not about rows.
OF_HELD_OUT = (
    "evaluate",
    "evaluation",
    "outcome",
    "judged outputs",
    "predicted outputs",
    "ranking metrics",
)
OF_NO_ROWS = ("landmark pairs",)

#: What a node does with a release of too many numbers.
Mode = Literal["refuse", "warn", "off"]


def binary_columns(*tables: NDArray[Any]) -> int:
    """Return how many columns of tables of equal length have at most two values."""
    found = 0
    for table in tables:
        if len(table):
            columns = table.reshape(len(table), -1)
            low, high = columns.min(axis=0), columns.max(axis=0)
            found += int(((columns == low) | (columns == high)).all(axis=0).sum())
    return found


def unknowns_of_row(columns: int, binary: int = 0) -> float:
    """Return the unknowns of a row of so many columns, label included, some of them binary."""
    return bits_of_row(columns, binary) / _BITS


def bits_of_row(columns: int, binary: int = 0) -> int:
    """Return the same in bits, of which a number has 64: a whole number, as parties declare it."""
    return _BITS * (columns - binary) + binary


def unknowns_of_bits(bits: int) -> float:
    """Return the unknowns of a row of so many bits."""
    return bits / _BITS


def hidden_rows(
    rows: Mapping[int, int],
    survivors: Collection[int],
    *,
    own: int | None = None,
    receiver: int = -1,
    colluders: int = COLLUDERS,
) -> int:
    """Return how many rows of a sum a party's strongest colluders do not know.

    Parameters
    ----------
    rows : mapping
        Party -> its rows in the sum.
    survivors : collection of int
        Who took part.
    own : int, optional
        The party whose rows are to be hidden; by default the one that is worst off.
    receiver : int
        Who opens the sum, -1 for the server.
    colluders : int
        Other parties that tell the server their rows: those with the most.
    """
    others = sorted(rows.get(j, 0) for j in survivors if j not in (own, receiver))
    kept = others[: max(0, len(others) - colluders)]
    return sum(kept) + (0 if own is None else rows.get(own, 0))


class Hidden(NamedTuple):
    """What hides the rows of a party in a sum.

    Attributes
    ----------
    row : float
        Unknowns of a row.
    others : int
        Rows of other parties that bear numbers with its own.
    kept : int
        Rows of other parties that the strongest of these does not know.
    """

    row: float
    others: int
    kept: int


def hidden_beside(
    rows: Mapping[int, int],
    survivors: Collection[int],
    row: float,
    beside: Mapping[int, float],
    *,
    own: int,
    receiver: int = -1,
) -> Hidden:
    """Return what hides the rows of a party in a sum.

    Other parties may have further columns of the same rows. The colluder is one of these, or one
    that has rows of its own: a row counts without the columns of the former, and the others' rows
    are so many that the product is not more than what the latter leaves hidden.

    Parameters
    ----------
    rows, survivors, own, receiver
        See :func:`hidden_rows`.
    row : float
        Unknowns of a row in the party's own columns.
    beside : mapping
        Party -> unknowns of a row in the columns that it has of all rows of this party. Who has
        rows in the sum as well does not count.
    """
    sets = [hidden_rows(rows, survivors, own=own, receiver=receiver, colluders=c) for c in (1, 0)]
    columns = [unknowns for party, unknowns in beside.items() if party not in rows]
    mine, whole = rows.get(own, 0), row + sum(columns)
    least, kept = whole - max(columns, default=0.0), sets[0] - mine
    if not columns:
        return Hidden(least, kept, kept)
    return Hidden(least, min(sets[1], int(sets[0] * whole / least)) - mine, kept)


def least_survivors(rows: Mapping[int, int], threshold: int, *, own: int | None = None) -> set[int]:
    """Return the ``threshold`` parties with the fewest rows: the least sum that can be opened."""
    ranked = sorted(rows, key=lambda j: (j != own, rows[j], j))
    return set(ranked[:threshold])


def least_samples(numbers: int, unknowns: float) -> int:
    """Return the least number of samples per party so that a release of ``numbers`` passes.

    ``unknowns`` are those of a sum with one sample of each party; 0 of none is returned as 0.
    """
    return math.ceil(numbers / unknowns) if unknowns > 0.0 else 0


def too_many(numbers: int, unknowns: float) -> str:
    """Return what is wrong with a release, nothing if it passes."""
    if numbers <= unknowns:
        return ""
    return f"{numbers:,} numbers would be released about {math.floor(unknowns):,} unknowns"


def small_sum(problem: str, party: str = "") -> RefusedError:
    """Return the error with which a release of too many numbers is refused, on either side."""
    return RefusedError(
        f"refused by the rule of counting: {problem}", party=party, code="FK-POLICY-COUNTING"
    )


@dataclass
class Group:
    """The rows that a run has summed last, and the numbers of its sums about them.

    Attributes
    ----------
    start, stop : int
        The rows, those of every party alike.
    row : float
        Unknowns of a row.
    numbers : dict
        Name of a sum -> its numbers, and the last values that they were of.
    """

    start: int = 0
    stop: int = 0
    row: float = math.inf
    numbers: dict[str, list[Any]] = field(default_factory=dict)

    def has(self, start: int, last: int) -> bool:
        """Tell whether rows come before those of the group, or the ``last`` of them among these.

        What was released of rows before the group is forgotten.
        """
        return self.start < self.stop and (start < self.start or last < self.stop)

    def enter(
        self, name: str, numbers: int, values: str, *, start: int, stop: int, row: float
    ) -> int:
        """Enter a sum; return how many numbers are released of its rows and those that they meet.

        ``values`` is what it is of: the same values as last tell nothing new.
        """
        if start >= self.stop:  # other rows than before
            self.start, self.stop, self.row, self.numbers = start, stop, row, {}
        self.start, self.stop = min(self.start, start), max(self.stop, stop)
        self.row = min(self.row, row)
        known, last = self.numbers.get(name, (0, ""))
        if values != last:
            self.numbers = {**self.numbers, name: [known + numbers, values]}
        return sum(known for known, _ in self.numbers.values())


def is_counted(name: str, receiver: int) -> bool:
    """Tell whether a sum is about rows that are learned from, and opened by the server."""
    return receiver < 0 and not name.startswith(OF_HELD_OUT + OF_NO_ROWS)


def released(name: str, numbers: int, unknowns: float) -> dict[str, Any]:
    """Return an entry of ``privacy.sums``."""
    return {"name": name, "numbers": int(numbers), "unknowns": int(np.floor(unknowns))}
