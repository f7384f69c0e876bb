"""How many numbers about rows a run may open, planned before its first sum.

Each node counts the numbers that the server opens about its rows, over all runs. It says in
``describe`` which share of the unknowns of its rows this run should use. A strategy chooses its
*default* sizes within that share of all nodes, and says so in the notes of the run. Sizes that the
user states are taken as stated, and may be refused by a node.

A simulation plans nothing: its nodes have a share of 1 and warn only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .guard.cells import ROWS_PER_COLUMN
from .guard.counting import Hidden, hidden_beside, least_survivors, unknowns_of_row
from .wire.describe import DescribeReply


@dataclass(frozen=True)
class Allowance:
    """What a run may open about the rows of its nodes.

    Attributes
    ----------
    numbers : float
        Numbers over all sums of the run; infinite where every node lets all pass.
    columns : float
        Columns whose products a sum may hold: half the hidden rows; infinite where nothing is
        planned.
    rows : float
        Hidden rows of the node with the fewest unknowns.
    share : float
        The least share of a node; 1 where nothing is planned.
    refuses : bool
        Whether a node refuses more: those of deployments do, unless their owners let more pass.
    """

    numbers: float = math.inf
    columns: float = math.inf
    rows: float = math.inf
    share: float = 1.0
    refuses: bool = False

    @property
    def planned(self) -> bool:
        """Whether default sizes are to keep within a share: a simulation keeps its own."""
        return self.share < 1.0 or self.refuses

    def square(self, linear: float = 0.0, *, times: int = 1, taken: float = 0.0) -> int:
        """Return the most columns m of sums of products that may be opened.

        Parameters
        ----------
        linear : float
            Further numbers for each column: m (m + 1) / 2 + linear m numbers in all.
        times : int
            How many such sums there are of the same rows.
        taken : float
            Numbers of other sums of the run.
        """
        if math.isinf(self.numbers):
            return 1 << 31
        free = max(0.0, self.numbers - taken) / times
        fits = math.isqrt(int(8.0 * free + (2.0 * linear + 1.0) ** 2))
        most = max(0, int(fits - 2.0 * linear - 1.0) // 2)
        return most if math.isinf(self.columns) else min(most, int(self.columns))


def allowance(
    parties: Iterable[DescribeReply],
    *,
    labels: int = 1,
    rows: Mapping[int, int] | None = None,
    columns: int | None = None,
    threshold: int | None = None,
    beside: Mapping[int, Mapping[int, float]] = MappingProxyType({}),
) -> Allowance:
    """Return what a run may open about the rows of some nodes, the least over them.

    A node counts its own rows and those of the others without its strongest colluder. Where
    something is planned and a node has no pinned identity, it counts its own rows alone: a server
    may have invented the others.

    Parameters
    ----------
    parties : iterable of DescribeReply
        The nodes whose rows are summed, the cohort.
    labels : int
        Columns of a row besides its features.
    rows : mapping, optional
        Partition -> its rows in the sums, such as those of a fold; by default all of them.
    columns : int, optional
        Columns of a row that the sums are about, labels included; by default all of them.
    threshold : int, optional
        The fewest parties with which a sum is opened; by default all.
    beside : mapping, optional
        Partition -> other party -> unknowns of a row in the columns that it has of all its rows,
        see :func:`~.guard.counting.hidden_beside`.
    """
    cohort = list(parties)
    counts = {p.partition: p.rows for p in cohort} if rows is None else rows
    found = Allowance()
    for party in cohort:
        if party.counting == "off" or not counts.get(party.partition):
            continue
        own = party.partition
        alive = counts if threshold is None else least_survivors(counts, threshold, own=own)
        limits = party.share < 1.0 or party.counting == "refuse"
        width = party.features + labels if columns is None else columns
        hides = Hidden(unknowns_of_row(width, min(party.binary, width)), 0, 0)
        if party.signature or not limits:
            hides = hidden_beside(counts, alive, hides.row, beside.get(own, {}), own=own)
        hidden = counts[own] + hides.others
        numbers = party.share * hidden * hides.row
        wide = (counts[own] + hides.kept) // ROWS_PER_COLUMN if limits else math.inf
        found = Allowance(
            min(found.numbers, numbers),
            min(found.columns, wide),
            min(found.rows, hidden),
            min(found.share, party.share),
            found.refuses or limits,
        )
    return found
