"""Plan how many numbers about rows a run may open, before its first sum.

Each node counts the numbers opened about its rows, over all runs. In ``describe`` it reports which
share of its unknowns this run should use. A strategy chooses its *default* sizes within the shares
of all nodes. A node may refuse larger sizes that the user sets. A simulation plans nothing.
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

    ``numbers`` are those in all sums, infinite without limits. ``columns`` are the most in sums of
    products: half the hidden rows. ``rows`` are the hidden rows of the node with the fewest.
    ``share`` is the least of a node, 1 if nothing is planned. ``refuses`` is whether a node refuses
    more, the default in deployments.
    """

    numbers: float = math.inf
    columns: float = math.inf
    rows: float = math.inf
    share: float = 1.0
    refuses: bool = False

    @property
    def planned(self) -> bool:
        """Whether default sizes are limited; not in simulations."""
        return self.share < 1.0 or self.refuses

    def square(self, linear: float = 0.0, *, times: int = 1, taken: float = 0.0) -> int:
        """Return the most columns m in sums of products.

        There are ``times`` such sums over the same rows, of m (m + 1) / 2 + ``linear`` m numbers
        each, and ``taken`` numbers in other sums.
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

    A node counts its rows and those of the others without its strongest colluder. A node with
    limits and without pinned identities counts only its rows: a server may have invented the
    others.

    Parameters
    ----------
    parties : iterable of DescribeReply
        Nodes of the cohort.
    labels : int
        Columns of a row besides its features.
    rows : mapping, optional
        Partition -> its rows in the sums. Default: all.
    columns : int, optional
        Columns used by the sums, labels included. Default: all.
    threshold : int, optional
        Fewest parties with which a sum is opened. Default: all.
    beside : mapping, optional
        Partition -> further columns, see :func:`~.guard.counting.hidden_beside`.
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
