"""Apply the release limit: a sum over rows has at most as many numbers as unknowns.

A sum over rows is a set of equations for their cells. With more equations than cells the rows can
be computed; for sums of gradients this has been shown in practice. Fewer numbers than unknowns do
not prove privacy.

The unknowns are those of all rows in the sum, except the rows of the strongest colluders: the
receiver of the sum, and the party with the most rows. A node's own rows always count as unknown. A
cell is one unknown, also the label; a cell of a two-valued column is 1 bit, that is 1/64 unknown.
The numbers are those of *all* sums over the same rows.

Row counts are as declared by the parties, signed where identities are pinned. Without pinned
identities a server may invent parties, so the limit binds an honest server only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError

#: Number of other parties with rows that count as known to the server.
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
    found = 0
    for table in tables:
        if len(table):
            columns = table.reshape(len(table), -1)
            low, high = columns.min(axis=0), columns.max(axis=0)
            found += int(((columns == low) | (columns == high)).all(axis=0).sum())
    return found


def unknowns_of_row(columns: int, binary: int = 0) -> float:
    """Return the unknowns of a row of ``columns`` cells, label included."""
    return bits_of_row(columns, binary) / _BITS


def bits_of_row(columns: int, binary: int = 0) -> int:
    """Return the same in bits, 64 a number, as parties declare it."""
    return _BITS * (columns - binary) + binary


def unknowns_of_bits(bits: int) -> float:
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

    ``rows`` maps each party to its rows in the sum, ``survivors`` took part. ``own`` is the party
    that always counts as hidden, ``receiver`` opens the sum (-1 for the server). The ``colluders``
    other parties with the most rows share these with the server.
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
        Rows of other parties over which numbers are spread.
    kept : int
        Rows of other parties that the strongest of them does not know.
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
    """Return what hides the rows of a party in a sum, if others have more columns of them.

    One party colludes: either one with further columns of the same rows, or one with rows in the
    sum. So a row counts without the widest of the further columns, and the other parties' rows are
    limited so that the product holds in the second case too. ``row`` is the number of unknowns of a
    row in the party's columns, ``beside`` that in the further columns of other parties. See also
    :func:`hidden_rows`.
    """
    sets = [hidden_rows(rows, survivors, own=own, receiver=receiver, colluders=c) for c in (1, 0)]
    columns = [unknowns for party, unknowns in beside.items() if party not in rows]
    mine, whole = rows.get(own, 0), row + sum(columns)
    least, kept = whole - max(columns, default=0.0), sets[0] - mine
    if not columns:
        return Hidden(least, kept, kept)
    return Hidden(least, min(sets[1], int(sets[0] * whole / least)) - mine, kept)


def least_survivors(rows: Mapping[int, int], threshold: int, *, own: int | None = None) -> set[int]:
    """Return the ``threshold`` parties with the fewest rows: the smallest sum to open."""
    ranked = sorted(rows, key=lambda j: (j != own, rows[j], j))
    return set(ranked[:threshold])


def least_samples(numbers: int, unknowns: float) -> int:
    """Return the samples per party that a release needs.

    ``unknowns`` are those of a sum with one sample of each party; 0 gives 0.
    """
    return math.ceil(numbers / unknowns) if unknowns > 0.0 else 0


def too_many(numbers: int, unknowns: float) -> str:
    if numbers <= unknowns:
        return ""
    return f"{numbers:,} numbers would be released about {math.floor(unknowns):,} unknowns"


def small_sum(problem: str, party: str = "") -> RefusedError:
    return RefusedError(
        f"refused by the rule of counting: {problem}", party=party, code="FK-POLICY-COUNTING"
    )


@dataclass
class Group:
    """The rows that a run has summed last, and the numbers of its sums about them.

    ``numbers`` maps the name of a sum to its numbers and its last values.
    """

    start: int = 0
    stop: int = 0
    row: float = math.inf
    numbers: dict[str, list[Any]] = field(default_factory=dict)

    def has(self, start: int, last: int) -> bool:
        """Return whether rows come before the group, or the ``last`` of them is in it.

        Releases about rows before the group are forgotten.
        """
        return self.start < self.stop and (start < self.start or last < self.stop)

    def enter(
        self, name: str, numbers: int, values: str, *, start: int, stop: int, row: float
    ) -> int:
        """Enter a sum; return the numbers released about its rows and those that overlap.

        ``values`` identifies the summed values: a repetition of the last ones adds nothing.
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
    return receiver < 0 and not name.startswith(OF_HELD_OUT + OF_NO_ROWS)


def released(name: str, numbers: int, unknowns: float) -> dict[str, Any]:
    return {"name": name, "numbers": int(numbers), "unknowns": int(np.floor(unknowns))}
