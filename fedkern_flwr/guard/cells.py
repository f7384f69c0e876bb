"""The release limit: about no rows are more numbers opened than they have unknowns, over all runs.

A sum over rows is a set of equations for their columns. With as many equations as unknowns the rows
can be computed. So the numbers of all sums, over all runs and methods, are spread over the rows of
this node's blocks, and each row may get at most one number for each of its unknowns:

- The numbers of a function are spread over the hidden rows that were in *all* of its sums: this
  node's, and those of the other parties that hide among them.
- If a block was in some sums of a function and not in others, such as a block of new rows, the
  difference shows the function of such blocks alone. These numbers are counted again, and spread
  over this node's rows in such blocks only. (Blocks that came and blocks that left with the same
  change are such blocks together.)

Where such a spread exists, no set of rows has more equations of its own than unknowns (Hall's
theorem). Two functions of one kind, such as sums at other landmarks, are nearly the same: so the
rows in which any two sums differ must have as many unknowns as the shorter of both has numbers.
 The same function over the same blocks and cohort adds nothing, and neither do the first
numbers of a sequence that was opened further before, such as fewer landmarks of one sequence.

All here is about numbers of blocks, see :mod:`.freeze`. It knows no rows and no values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from .freeze import BARRED, SPLIT, USED, Blocks

#: Bits of a number: a column of two values has one of them, a count of n rows log2(n + 1).
_BITS = 64
#: Bytes of the digest of a pinned key.
KEY_BYTES = 8
#: Share of what is left that a run plans with, and what a block may cost it of its size.
SHARE, COST = 0.2, 0.1
#: Share of all unknowns of rows that came later, for each function that is repeated with them.
LATER = 1 / 6
#: Hidden rows that products of w columns need, for each of these.
ROWS_PER_COLUMN = 2
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """A sum over this node's blocks that the server opens.

    Attributes
    ----------
    function : bytes
        Digest of what is summed: name, public options, secrets, and which rows were asked for, such
        as "all" or "fold 2". Where a longer sum begins with the numbers of a shorter one, as with
        the first landmarks of one sequence, both have the same digest.
    cohort : frozenset of bytes
        Digests of the pinned keys of the parties, 8 bytes each; empty where there are none.
    blocks : frozenset of int
        Blocks of this node.
    numbers : float
        Numbers that are opened; counts have the weight of :func:`counts`.
    row : float
        Unknowns of a row in the columns that the sum uses, see :func:`unknowns`.
    others : int
        Rows of other parties in the sum that the server does not know.
    width : int
        Columns of which products are summed; 0 for other sums.
    """

    function: bytes
    cohort: frozenset[bytes]
    blocks: frozenset[int]
    numbers: float
    row: float
    others: int = 0
    width: int = 0

    def pack(self) -> tuple[Any, ...]:
        """Return the sum as a row of the ledger: two texts of bytes for blocks and cohort."""
        blocks = np.array(sorted(self.blocks), "<i4").tobytes()
        rest = self.numbers, self.row, self.others, self.width
        return blocks, b"".join(sorted(self.cohort)), self.function, *rest

    @classmethod
    def unpack(cls, blocks: bytes, cohort: bytes, function: bytes, *rest: Any) -> Sum:
        """Read from :meth:`pack`."""
        keys = [cohort[k : k + KEY_BYTES] for k in range(0, len(cohort), KEY_BYTES)]
        found = frozenset(np.frombuffer(blocks, "<i4").tolist())
        return cls(function, frozenset(keys), found, *rest)


def unknowns(columns: int, binary: int = 0) -> float:
    """Return the unknowns of a row: its columns, where one of two values counts 1/64."""
    return columns - binary + binary / _BITS


def counts(number: int, rows: int) -> float:
    """Return the numbers that so many counts of ``rows`` rows amount to."""
    return number * math.log2(rows + 1) / _BITS


# -- what was spent


@dataclass(frozen=True, eq=False)
class _Share:
    """Numbers of a function that are spread over some leaves; ``alone``: not those of the core."""

    leaves: NDArray[np.bool_]
    numbers: float
    row: float
    others: int
    width: int
    alone: bool

    def hidden(self, rows: NDArray[np.int64]) -> int:
        """Return the rows over which they are spread."""
        return int(rows[self.leaves].sum()) + self.others


class Cells:
    """What was opened about each leaf of the freeze.

    Parameters
    ----------
    blocks : Blocks
        Of the freeze.
    sums : iterable of Sum
        All that was opened since the freeze.
    """

    def __init__(self, blocks: Blocks, sums: Iterable[Sum]) -> None:
        self.blocks, self.sums = blocks, list(sums)
        self.leaves = np.flatnonzero(blocks["state"] != SPLIT)
        self.rows = blocks["rows"][self.leaves].astype(np.int64)
        self.versions = blocks["version"]

    def members(self, sums: Sequence[Sum]) -> NDArray[np.int64]:
        """Return in which version each leaf was in each sum, -1 if not; shape (leaves, sums)."""
        found = np.full((len(self.blocks), len(sums)), -1)
        for at, one in enumerate(sums):
            inside = list(one.blocks)
            found[inside, at] = self.versions[inside]
        for block, parent in enumerate(self.blocks["parent"]):
            if parent >= 0:
                found[block] = np.where(found[block] < 0, found[parent], found[block])
        return found[self.leaves]

    def functions(self) -> dict[tuple[bytes, frozenset[bytes]], list[Sum]]:
        """Return (function, cohort) -> its sums."""
        found: dict[tuple[bytes, frozenset[bytes]], list[Sum]] = {}
        for one in self.sums:
            found.setdefault((one.function, one.cohort), []).append(one)
        return found

    def loads(self, shares: Iterable[_Share]) -> NDArray[np.float64]:
        """Return the numbers for each unknown of each leaf, spread as evenly as may be."""
        loads = np.zeros(len(self.leaves))
        for share in sorted(shares, key=lambda s: s.hidden(self.rows)):
            hidden = share.hidden(self.rows)
            if share.numbers and not hidden:
                loads[share.leaves] = math.inf
            elif share.leaves.any() and hidden:  # the other parties' rows bear their part
                at = np.flatnonzero(share.leaves)
                more = share.numbers / share.row / hidden * self.rows[at].sum()
                loads[at] = np.maximum(loads[at], _level(loads[at], self.rows[at], more))
        return loads

    def all_shares(self, skip: tuple[bytes, frozenset[bytes]] | None = None) -> list[_Share]:
        """Return the shares of all functions, without one."""
        return [s for k, sums in self.functions().items() if k != skip for s in self.shares(sums)]

    def shares(self, sums: Sequence[Sum]) -> Iterator[_Share]:
        """Yield over which leaves the numbers of a function are spread."""
        member = self.members(sums)
        numbers = np.array([one.numbers for one in sums])
        widths = np.array([one.width for one in sums])
        row, others = min(one.row for one in sums), min(one.others for one in sums)
        core = (member >= 0).all(axis=1) & (member == member[:, :1]).all(axis=1)
        if core.any():
            yield _Share(core, numbers.max(), row, others, int(widths.max()), alone=False)
        patterns: dict[bytes, NDArray[np.bool_]] = {}
        for version in np.unique(member[member >= 0]):
            apart = member == version
            if core.any():  # differences of sums: what came and what left count alike
                apart ^= apart[:, :1]
            for leaf in np.flatnonzero(apart.any(axis=1)):
                places = patterns.setdefault(apart[leaf].tobytes(), np.zeros(len(member), bool))
                places[leaf] = True
        # A combination without the core has a pivot in its support, and one with k pivots is one
        # of k independent ones at most: so it is enough that pivots have room. The largest have.
        pivots = np.zeros((0, len(sums)), bool)
        for pattern in sorted(patterns, key=lambda p: -int(self.rows[patterns[p]].sum())):
            split = np.frombuffer(pattern, bool)
            more = np.vstack([pivots, split])
            if np.linalg.matrix_rank(more) == len(more):
                pivots = more
                both, width = numbers[split].max(), widths[split].max()
                if core.any():
                    both = min(both, numbers[~split].max())
                    width = min(width, widths[~split].max())
                yield _Share(patterns[pattern], both, row, 0, int(width), alone=True)

    def apart(self, new: Sum) -> float:
        """Return how many numbers a sum may open at most because of the rows in earlier ones.

        Changes that the owner forced, and withdrawals that could not wait, are not looked at.
        """
        inside = self.members([new, *self.sums])
        waived = self.blocks["forced"] | (self.blocks["state"] == BARRED)
        differs = (inside != inside[:, :1]) & ~waived[self.leaves][:, None]
        rows = self.rows @ differs
        bounds = [
            own * min(one.row, new.row)
            for own, one in zip(rows.tolist()[1:], self.sums, strict=True)
            if 0 < own * min(one.row, new.row) < one.numbers
        ]
        return min(bounds, default=math.inf)


# -- decisions


def check_sum(blocks: Blocks, sums: Sequence[Sum], new: Sum) -> None:
    """Refuse a sum with which more numbers would be opened than there are unknowns.

    Parameters
    ----------
    blocks : Blocks
        Of the freeze.
    sums : sequence of Sum
        All that was opened since the freeze.
    new : Sum
        What is to be opened.

    Raises
    ------
    RefusedError
        A leaf would have more numbers than unknowns, or products of more columns than half of the
        hidden rows.
    """
    same = [s for s in sums if replace(s, numbers=new.numbers) == new]
    if any(s.numbers >= new.numbers for s in same):
        return
    before, after = Cells(blocks, sums), Cells(blocks, [*sums, new])
    own = list(after.shares(after.functions()[new.function, new.cohort]))
    narrow = [s for s in own if s.hidden(after.rows) < ROWS_PER_COLUMN * s.width]
    if new.width and narrow:
        raise RefusedError(
            f"refused: products of {narrow[0].width} columns would be opened about "
            f"{narrow[0].hidden(after.rows)} hidden rows",
            remedy=f"use fewer columns or landmarks: each needs {ROWS_PER_COLUMN} rows",
            code="FK-CELLS-WIDTH",
        )
    loads = after.loads(after.all_shares())
    more = loads > before.loads(before.all_shares()) + _ROUNDING  # not what the owner let pass
    if (more & (loads >= 1.0)).any() or new.numbers > before.apart(new):
        raise RefusedError(
            "refused by the release limit: more numbers than unknowns would be opened about some "
            "rows, over all runs",
            remedy="use fewer landmarks, features, columns or rounds, or repeat an earlier run "
            "with its options, which costs nothing",
            code="FK-CELLS-NUMBERS",
        )


@dataclass(frozen=True)
class Plan:
    """What a run may plan with.

    Attributes
    ----------
    size : int
        Landmarks, features or rounds; 0 if nothing is left.
    blocks : list of int
        Blocks that take part.
    left_out : list of int
        Blocks that would cost the run a tenth of its size.
    """

    size: int
    blocks: list[int]
    left_out: list[int]


def plan(
    blocks: Blocks,
    sums: Sequence[Sum],
    candidates: Collection[int],
    sum_of: Callable[[int], Sum],
    most: int,
    *,
    max_left_out: float = 0.1,
) -> Plan:
    """Return the largest size with which a run keeps to its share of what is left.

    Of each leaf a run may take a fifth of what other functions have left of it, or what its own
    function has taken before.

    Parameters
    ----------
    blocks : Blocks
        Of the freeze.
    sums : sequence of Sum
        All that was opened since the freeze.
    candidates : collection of int
        Blocks that the run asks for.
    sum_of : callable
        Size -> the sum of the run; its blocks do not matter.
    most : int
        Largest size of interest.
    max_left_out : float (default: 0.1)
        Largest share of the candidates' rows that is left out. With more a run would rather be
        small than blind to the rows of the last months.
    """
    cells = Cells(blocks, sums)
    one = sum_of(1)
    known = cells.functions().get((one.function, one.cohort), [])
    others = cells.all_shares((one.function, one.cohort))
    rest = cells.rows * (1.0 - cells.loads(others))  # rows that other functions have left
    used = np.isin(cells.leaves, list(candidates)) & (blocks["state"][cells.leaves] == USED)

    def shares(size: int, inside: NDArray[np.bool_]) -> list[_Share]:
        taking = frozenset(cells.leaves[inside].tolist())
        return list(cells.shares([*known, replace(sum_of(size), blocks=taking)]))

    def fits(size: int, inside: NDArray[np.bool_]) -> bool:
        found, least = shares(size, inside), shares(1, inside)
        for share, low in zip(found, least, strict=True):
            hidden, own = share.hidden(cells.rows), cells.rows[share.leaves].sum()
            left = share.row * rest[share.leaves].sum() * hidden / max(own, 1)
            fair = SHARE * left
            if share.alone:
                fair = max(fair, min(left / 2, share.row * own * LATER))
            if share.numbers > max(low.numbers, fair) or (
                share.width > low.width and hidden < ROWS_PER_COLUMN * share.width
            ):
                return False
        new = replace(sum_of(size), blocks=frozenset(cells.leaves[inside].tolist()))
        return bool(
            new.numbers <= cells.apart(new)
            and cells.loads([*others, *found]).max(initial=0.0) < 1.0
        )

    def largest(inside: NDArray[np.bool_]) -> int:
        low, high = 0, most
        while low < high:
            size = (low + high + 1) // 2
            low, high = (size, high) if fits(size, inside) else (low, size - 1)
        return low

    tried = [used]
    groups = [s.leaves & used for s in shares(1, used) if s.alone]
    for group in sorted(groups, key=lambda g: int(cells.rows[g].sum())):
        fewer = tried[-1] & ~group
        if cells.rows[fewer].sum() >= (1.0 - max_left_out) * cells.rows[used].sum():
            tried.append(fewer)
    sizes = [largest(inside) for inside in tried]
    best = next(k for k, size in enumerate(sizes) if size >= (1.0 - COST) * max(sizes))
    inside, out = tried[best], used & ~tried[best]
    return Plan(sizes[best], cells.leaves[inside].tolist(), cells.leaves[out].tolist())


def lot_rows(numbers: float, row: float, width: int = 0) -> int:
    """Return the rows that a lot of later rows needs so that a repeated run may keep this size.

    Parameters
    ----------
    numbers : float
        Numbers that a run opens at the size that is to be kept, such as that of 32 landmarks.
    row : float
        Unknowns of a row.
    width : int
        Columns of which it sums products.
    """
    return max(math.ceil(numbers / (LATER * row)), ROWS_PER_COLUMN * width)


def check_parties(
    blocks: Blocks,
    sums: Sequence[Sum],
    new: Sum,
    *,
    least: int,
    allow_one: bool = False,
) -> None:
    """Refuse a sum whose blocks hide among too few parties.

    Parameters
    ----------
    blocks, sums, new
        As in :func:`check_sum`; sums that need their whole cohort. Those without pinned identities
        are not compared.
    least : int
        Parties, this node included, that were in every cohort with which a block was summed:
        ``min_parties``, and one for each colluder that the owner wants to bear.
    allow_one : bool (default: False)
        Whether a cohort may differ from an earlier one by one party.

    Raises
    ------
    RefusedError
    """
    cells = Cells(blocks, ())
    pinned = [one for one in sums if one.cohort]
    if not new.cohort:
        return
    member = cells.members([*pinned, new]) >= 0
    for leaf in np.flatnonzero(member[:, -1]):
        earlier = [
            one.cohort for one, there in zip(pinned, member[leaf, :-1], strict=True) if there
        ]
        if len(new.cohort.intersection(*earlier)) < least:
            raise RefusedError(
                f"refused: fewer than {least} parties were in every cohort with which some of its "
                "rows were summed",
                remedy="start the run with the parties of the earlier runs",
                code="FK-CELLS-PARTIES",
            )
        if not allow_one and any(len(new.cohort ^ cohort) == 1 for cohort in earlier):
            raise RefusedError(
                "refused: the cohort differs from that of an earlier run by one party, whose "
                "totals would be the difference",
                remedy="start the run with the parties of the earlier runs, or have the owners "
                "allow it",
                code="FK-CELLS-ONE-APART",
            )


def _level(loads: NDArray[np.float64], rows: NDArray[np.int64], more: float) -> float:
    """Return the level to which the emptiest are filled with so many rows more."""
    order = np.argsort(loads)
    ranked, wide = loads[order], np.cumsum(rows[order])
    room = np.cumsum(np.diff(ranked) * wide[:-1])
    full = int(np.searchsorted(room, more))
    before = room[full - 1] if full else 0.0
    return float(ranked[full] + (more - before) / wide[full])
