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
theorem). The same function over the same blocks and cohort adds nothing, and neither do the first
numbers of a sequence that was opened further before, such as fewer landmarks of one sequence.

All here is about numbers of blocks, see :mod:`.freeze`. It knows no rows and no values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from .freeze import SPLIT, USED, Blocks

#: Bits of a number: a column of two values has one of them, a count of n rows log2(n + 1).
_BITS = 64
#: Share of what is left that a run plans with, and what a block may cost it of its size.
SHARE, COST = 0.2, 0.1
#: Hidden rows that products of w columns need, for each of these.
ROWS_PER_COLUMN = 2
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A sum over this node's blocks that the server opens.

    Attributes
    ----------
    function : bytes
        Digest of what is summed: name, public options, secrets, and which rows were asked for, such
        as "all" or "fold 2". Where a longer sum begins with the numbers of a shorter one, as with
        the first landmarks of one sequence, both have the same digest.
    cohort : frozenset of bytes
        Digests of the pinned keys of the parties; empty where identities are not pinned.
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

    def pack(self) -> tuple[bytes, bytes, bytes, float, float, int, int]:
        """Return the sum as a row of the ledger."""
        blocks = np.array(sorted(self.blocks), "<i4").tobytes()
        cohort = b"".join(sorted(self.cohort))
        return self.function, cohort, blocks, self.numbers, self.row, self.others, self.width

    @classmethod
    def unpack(
        cls,
        function: bytes,
        cohort: bytes,
        blocks: bytes,
        numbers: float,
        row: float,
        others: int,
        width: int,
        *,
        size: int = 8,
    ) -> Sum:
        """Read from :meth:`pack`; ``size`` is that of the digest of a key."""
        keys = frozenset(cohort[k : k + size] for k in range(0, len(cohort), size))
        return cls(
            function=function,
            cohort=keys,
            blocks=frozenset(np.frombuffer(blocks, "<i4").tolist()),
            numbers=numbers,
            row=row,
            others=others,
            width=width,
        )


def unknowns(columns: int, binary: int = 0) -> float:
    """Return the unknowns of a row: its columns, where one of two values counts 1/64."""
    return columns - binary + binary / _BITS


def counts(number: int, rows: int) -> float:
    """Return the numbers that so many counts of ``rows`` rows amount to."""
    return number * math.log2(rows + 1) / _BITS


# -- what was spent


@dataclass(frozen=True, eq=False)
class _Share:
    """Numbers of a function that are spread over some leaves."""

    leaves: NDArray[np.bool_]
    numbers: float
    row: float
    others: int
    width: int

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
        self.leaves = np.flatnonzero(blocks.state != SPLIT)
        self.rows = blocks.rows[self.leaves].astype(np.int64)
        self.versions = np.cumsum(np.zeros(len(blocks), int))
        for block, parent in enumerate(blocks.parent):  # parents come before their parts
            above = self.versions[parent] if parent >= 0 else 0
            self.versions[block] = above + blocks.edited[block]

    def members(self, sums: Sequence[Sum]) -> NDArray[np.int64]:
        """Return in which version each leaf was in each sum, -1 if not; shape (leaves, sums)."""
        found = np.full((len(self.blocks), len(sums)), -1)
        for at, one in enumerate(sums):
            inside = list(one.blocks)
            found[inside, at] = self.versions[inside]
        for block, parent in enumerate(self.blocks.parent):
            if parent >= 0:
                found[block] = np.where(found[block] < 0, found[parent], found[block])
        return found[self.leaves]

    def functions(self) -> dict[tuple[bytes, frozenset[bytes]], list[Sum]]:
        """Return (function, cohort) -> its sums."""
        found: dict[tuple[bytes, frozenset[bytes]], list[Sum]] = {}
        for one in self.sums:
            found.setdefault((one.function, one.cohort), []).append(one)
        return found

    def loads(self) -> NDArray[np.float64]:
        """Return the numbers for each unknown that were opened about each leaf, shape (leaves,)."""
        total = np.zeros(len(self.leaves))
        for sums in self.functions().values():
            total += self.load(sums)
        return total

    def load(self, sums: Sequence[Sum]) -> NDArray[np.float64]:
        """Return the same of one function."""
        total = np.zeros(len(self.leaves))
        for share in self.shares(sums):
            hidden = share.hidden(self.rows) * share.row
            total[share.leaves] += share.numbers / hidden if hidden else math.inf
        return total

    def shares(self, sums: Sequence[Sum]) -> Iterator[_Share]:
        """Yield over which leaves the numbers of a function are spread."""
        member = self.members(sums)
        numbers = np.array([one.numbers for one in sums])
        widths = np.array([one.width for one in sums])
        row, others = min(one.row for one in sums), min(one.others for one in sums)
        core = (member >= 0).all(axis=1) & (member == member[:, :1]).all(axis=1)
        if not core.any():
            core = member[:, -1] >= 0
        yield _Share(core, numbers.max(), row, others, int(widths.max()))
        patterns: dict[bytes, NDArray[np.bool_]] = {}
        for version in np.unique(member[member >= 0]):
            inside = member == version
            apart = inside ^ inside[:, :1]  # of what came and of what left alike
            for leaf in np.flatnonzero(apart.any(axis=1)):
                places = patterns.setdefault(apart[leaf].tobytes(), np.zeros(len(member), bool))
                places[leaf] = True
        for pattern, places in patterns.items():
            split = np.frombuffer(pattern, bool)
            both = min(numbers[split].max(), numbers[~split].max())
            width = min(widths[split].max(), widths[~split].max())
            yield _Share(places, both, row, 0, int(width))


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
    before, after = Cells(blocks, sums), Cells(blocks, [*sums, new])
    own = after.functions()[new.function, new.cohort]
    for share in after.shares(own) if new.width else ():
        if share.hidden(after.rows) < ROWS_PER_COLUMN * share.width:
            raise RefusedError(
                f"refused: products of {share.width} columns would be opened about "
                f"{share.hidden(after.rows)} hidden rows, {ROWS_PER_COLUMN * share.width} are "
                "needed",
                remedy="use fewer columns or landmarks, or more rows",
                code="FK-CELLS-WIDTH",
            )
    loads = after.loads()
    more = loads > before.loads() + _ROUNDING  # not what the owner let pass before
    if (more & (loads >= 1.0)).any():
        raise RefusedError(
            f"refused by the release limit: {loads[more].max():.2f} numbers would be opened for "
            "each unknown of some rows, over all runs",
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
    spent = cells.load(known) if known else np.zeros(len(cells.leaves))
    share = np.maximum(spent, SHARE * (1.0 - cells.loads() + spent))
    at = np.flatnonzero(
        np.isin(cells.leaves, list(candidates)) & (blocks.state[cells.leaves] == USED)
    )

    def room(size: int, inside: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what each leaf has left of its share; negative if it is too little."""
        taking = frozenset(cells.leaves[inside].tolist())
        tried = [*known, replace(sum_of(size), blocks=taking)]
        left = share - cells.load(tried)
        for part in cells.shares(tried):
            if part.hidden(cells.rows) < ROWS_PER_COLUMN * part.width:
                left[part.leaves] = -math.inf
        left[left >= -_ROUNDING] += 0.0
        return left

    def largest(inside: NDArray[np.int64]) -> int:
        low, high = 0, most
        while low < high:
            size = (low + high + 1) // 2
            low, high = (size, high) if room(size, inside).min() >= -_ROUNDING else (low, size - 1)
        return low

    if not len(at):
        return Plan(0, [], [])
    ranked = at[np.argsort(room(most, at)[at], kind="stable")]  # the weakest first
    limit = max_left_out * cells.rows[at].sum()
    tried = [ranked]
    for end in range(1, len(ranked)):
        if cells.rows[ranked[:end]].sum() > limit:
            break
        tried.append(ranked[end:])
    sizes = [largest(inside) for inside in tried]
    best = next(k for k, size in enumerate(sizes) if size >= (1.0 - COST) * max(sizes))
    inside, out = np.sort(tried[best]), np.sort(ranked[:best])
    return Plan(sizes[best], cells.leaves[inside].tolist(), cells.leaves[out].tolist())


def needed_rows(numbers: float, row: float, width: int = 0) -> int:
    """Return how many rows a lot needs so that its own rows alone pass a sum of this size."""
    return max(math.floor(numbers / row) + 1 if row else 0, ROWS_PER_COLUMN * width)


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
