"""Apply the release limit over all runs: no rows get more numbers than unknowns.

A sum over rows is a set of equations for their columns. With as many equations as unknowns the rows
can be computed. So the numbers of all sums, over all runs and methods, are spread over the rows of
this node's blocks. Each row may get at most one number per unknown:

- The numbers of a sum are spread over its hidden rows: this node's, and those of the other parties
  that hide among them.
- If a block was in some sums of one purpose and not in others, differences may show this block
  alone. So the numbers on the smaller side count again, over this node's rows in such blocks.
  Blocks that came and blocks that left with the same change count together.

Where such a spread exists, no set of rows has more equations than unknowns (Hall's theorem). The
same values over the same blocks and parties add nothing. Sums of one function of a row over
different blocks count once over the blocks common to all, plus their differences.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RefusedError
from .freeze import BARRED, SPLIT, Blocks

#: Bits of a number: a column of two values has one of them, a count of n rows log2(n + 1).
_BITS = 64
#: Bytes of the digest of a pinned key.
KEY_BYTES = 8
#: Share of what is left that a run plans with.
SHARE = 0.2
#: Share of all unknowns of rows that came later, for each run that is repeated with them.
LATER = 1 / 6
#: Hidden rows that products of w columns need, for each of these.
ROWS_PER_COLUMN = 2
#: Numbers and columns of a run that a lot of later rows must bear at least: 32 landmarks.
_LOT_NUMBERS, _LOT_WIDTH = 560.0, 32
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Sum:
    """A sum over this node's blocks that the server opens.

    Attributes
    ----------
    kind, purpose : str
        Kind of client, and what is summed. Sums of one kind may be of similar functions of a row,
        sums of one purpose of the same.
    cohort : frozenset of bytes
        8-byte digests of the parties' pinned keys; empty without pinned keys.
    numbers : float
        Numbers that are opened; for counts see :func:`counts`.
    row : float
        Unknowns of a row in the columns used.
    others : int
        Rows of other parties in the sum that the server does not know.
    width : int
        Number of columns, if products of columns are summed; else 0.
    done : bool
        Whether it was opened over these parties, and not only requested.
    function : bytes
        Digest of the summed function of a row; empty if it differs in each run.
    """

    run: int
    kind: str
    purpose: str
    cohort: frozenset[bytes]
    blocks: frozenset[int]
    numbers: float
    row: float
    others: int = 0
    width: int = 0
    done: bool = True
    function: bytes = b""

    @property
    def what(self) -> object:
        return self.function or (self.run, self.blocks, self.cohort)


def counts(number: int, rows: int) -> float:
    """Return the equivalent of ``number`` counts of ``rows`` rows, in 64-bit numbers."""
    return number * math.log2(rows + 1) / _BITS


def histogram(cells: int, rows: int) -> float:
    """Return the most numbers that a column's counts in ``cells`` cells are equivalent to."""
    return min(counts(cells, rows), rows * math.log2(max(cells, 2)) / _BITS)


# -- what was spent


@dataclass(frozen=True, eq=False)
class Share:
    """Numbers that are spread over some leaves; ``alone`` if they are differences of sums."""

    leaves: NDArray[np.bool_]
    numbers: float
    row: float
    others: int
    width: int
    alone: bool

    def hidden(self, rows: NDArray[np.int64]) -> int:
        return int(rows[self.leaves].sum()) + self.others


class Cells:
    """Compute what was opened about each leaf of the freeze, by all sums since."""

    def __init__(self, blocks: Blocks, sums: Iterable[Sum]) -> None:
        self.blocks, self.sums = blocks, list(sums)
        self.leaves = np.flatnonzero(blocks["state"] != SPLIT)
        self.rows = blocks["rows"][self.leaves].astype(np.int64)
        #: Leaves that the owner forced, or that could not wait, are not looked at alone.
        self.waived = (blocks["forced"] | (blocks["state"] == BARRED))[self.leaves]

    def members(self, sums: Sequence[Sum]) -> NDArray[np.int64]:
        """Return the version of each leaf in each sum, -1 if absent; shape (leaves, sums)."""
        found = np.full((len(self.blocks), len(sums)), -1)
        for at, one in enumerate(sums):
            inside = np.array(sorted(one.blocks), int)
            found[inside, at] = self.blocks["version"][inside]
        above = self.blocks["parent"]
        while (above >= 0).any():  # a part was in the sums of the whole: one level, 2, 4, ... up
            found = np.where((found < 0) & (above >= 0)[:, None], found[above], found)
            above = np.where(above >= 0, above[above], above)
        return found[self.leaves]

    @cached_property
    def shares(self) -> list[Share]:
        found, purposes = list[Share](), dict[tuple[str, str], list[Sum]]()
        for one in self.sums:
            purposes.setdefault((one.kind, one.purpose), []).append(one)
        for sums in purposes.values():
            member = self.members(sums)
            functions: dict[object, list[int]] = {}
            for at, one in enumerate(sums):
                functions.setdefault(one.what, []).append(at)
            for places in functions.values():
                equal: dict[bytes, list[int]] = {}
                for at in places:
                    equal.setdefault(member[:, at].tobytes(), []).append(at)
                # with another function, which may be nearly the same, theirs may be combined
                merged = len(functions) == 1 and _core(member[:, places]).any()
                for like in [places] if merged else equal.values():
                    found.append(_together([sums[at] for at in like], _core(member[:, like])))
            found += self._alone(sums, member)
        return found

    def _alone(self, sums: Sequence[Sum], member: NDArray[np.int64]) -> Iterator[Share]:
        row = min(one.row for one in sums)
        core = _core(member)
        patterns: dict[bytes, NDArray[np.bool_]] = {}
        for version in np.unique(member[member >= 0]):
            apart = member == version
            if core.any():  # differences of sums: what came and what left count alike
                apart ^= apart[:, :1]
            for leaf in np.flatnonzero(apart.any(axis=1) & ~self.waived):
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
                sides = [_numbers(itertools.compress(sums, side)) for side in (split, ~split)]
                both, width = map(min, zip(*sides, strict=True)) if core.any() else sides[0]
                yield Share(patterns[pattern], both, row, 0, int(width), alone=True)

    @cached_property
    def lacking(self) -> int:
        short = (ROWS_PER_COLUMN * s.width - s.hidden(self.rows) for s in self.shares if s.width)
        return sum(max(0, rows) for rows in short)

    @cached_property
    def loads(self) -> NDArray[np.float64]:
        """Numbers per unknown of each leaf, spread as evenly as possible."""
        loads = np.zeros(len(self.leaves))
        for share in sorted(self.shares, key=lambda s: s.hidden(self.rows)):
            hidden = share.hidden(self.rows)
            if share.numbers and not hidden:
                loads[share.leaves] = math.inf
            elif share.leaves.any() and hidden:  # the other parties' rows bear their part
                at = np.flatnonzero(share.leaves)
                more = share.numbers / share.row / hidden * self.rows[at].sum()
                loads[at] = np.maximum(loads[at], _level(loads[at], self.rows[at], more))
        return loads


def _core(member: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.asarray((member[:, :1] >= 0).all(axis=1) & (member == member[:, :1]).all(axis=1))


def _together(sums: Sequence[Sum], leaves: NDArray[np.bool_]) -> Share:
    numbers, width = _numbers(sums)
    row, others = min(one.row for one in sums), min(one.others for one in sums)
    return Share(leaves, numbers, row, others, width, alone=False)


def _numbers(sums: Iterable[Sum]) -> tuple[float, int]:
    most, width = dict[object, float](), 0
    for one in sums:
        most[one.what], width = max(most.get(one.what, 0.0), one.numbers), max(width, one.width)
    return sum(most.values()), width


# -- decisions


def check_rows(
    blocks: Blocks, sums: Sequence[Sum], new: Sum, *, least: int, parts: int = 0
) -> None:
    """Refuse a sum that would separate fewer than ``least`` rows from all others.

    A linear combination of sums of one function weights all rows alike that were in the same sums,
    in the same versions. So there must be at least ``least`` such rows (``min_own_rows``), or
    ``parts`` if that is more. Sums of the new one's kind are compared.
    """
    line = line_of(blocks, sorted(new.blocks))
    known = [one for one in sums if one.kind == new.kind]
    like = [one for one in known if not line.isdisjoint(one.blocks)]
    cells = Cells(blocks, like)
    apart = frozenset[int]().union(*(one.blocks for one in known if one not in like))
    elsewhere = cells.members([replace(new, blocks=apart)])[:, 0] >= 0

    def few(members: NDArray[np.int64]) -> set[bytes]:
        patterns, of = np.unique(members, axis=0, return_inverse=True)
        of[elsewhere] = len(patterns)
        rows = np.bincount(of, cells.rows, minlength=len(patterns))[: len(patterns)]
        known = (rows > 0) & (patterns >= 0).any(axis=1)
        small = {
            (of == k).tobytes()
            for k in np.flatnonzero(known & (rows < max(least, parts)))
            if not cells.waived[of == k].all()
        }
        whole = {(column >= 0).tobytes() for column in members.T}
        tiny = {(of == k).tobytes() for k in np.flatnonzero(known & (rows < least))}
        return small - (whole - tiny)

    before = few(cells.members(like)) if like else set()
    if few(cells.members([*like, new])) - before:
        raise RefusedError(
            f"refused: fewer than {max(least, parts)} rows would be told apart from all others",
            code="FK-FREEZE-ROWS",
        )


def line_of(blocks: Blocks, some: Sequence[int] | NDArray[np.integer[Any]]) -> set[int]:
    line, above = set[int](), np.unique(np.asarray(some, int))
    while len(above):
        line.update(above.tolist())
        above = np.unique(blocks["parent"][above])
        above = above[above >= 0]
    return line


def check_sum(blocks: Blocks, sums: Sequence[Sum], new: Sum) -> None:
    """Refuse a sum with which more numbers than unknowns would be opened.

    ``new`` replaces a sum of the same run, purpose, blocks and parties. Products of columns need
    two hidden rows for each column.
    """
    sums = [one for one in sums if one.numbers]
    rest = [one for one in sums if not same(one, new)]
    before, after = Cells(blocks, sums), Cells(blocks, [*rest, new])
    if new.width and after.lacking > before.lacking:
        raise RefusedError(
            f"refused: products of {new.width} columns would be opened about too few hidden rows",
            code="FK-CELLS-WIDTH",
        )
    loads = after.loads
    more = loads > before.loads + _ROUNDING  # not what the owner let pass
    if (more & (loads >= 1.0)).any():
        raise RefusedError(
            "refused by the release limit: more numbers than unknowns would be opened about some "
            "rows, over all runs",
            code="FK-CELLS-NUMBERS",
        )


def same(one: Sum, other: Sum) -> bool:
    return (one.run, one.kind, one.purpose, one.blocks, one.cohort) == (
        other.run,
        other.kind,
        other.purpose,
        other.blocks,
        other.cohort,
    )


def repeated(blocks: Blocks, sums: Sequence[Sum], among: Iterable[int], function: bytes) -> float:
    """Return how many numbers a run may open that sums an earlier function again.

    About rows of the earlier run it reveals nothing new. Later rows bear the numbers, within the
    shares of :func:`planned_share`. Returns 0 if the function was summed for several purposes.
    """
    sums = [one for one in sums if one.numbers]
    last = [one for one in sums if one.function == function]
    if not last or len({one.purpose for one in last}) > 1:
        return 0.0
    learned, before = frozenset(among), Cells(blocks, sums)
    fair = _fair(before, last)

    def fits(numbers: float) -> bool:
        width = last[-1].width and math.isqrt(int(2.0 * numbers))
        new = replace(last[-1], run=-1, blocks=learned, numbers=numbers, width=width)
        after = Cells(blocks, [*sums, new])
        fair_to_all = (after.loads - before.loads <= fair + _ROUNDING).all()
        return after.lacking <= before.lacking and bool(fair_to_all)

    most = int(last[-1].numbers)
    numbers = bisect.bisect_left(range(1, most + 1), True, key=lambda n: not fits(n))
    return float(numbers)


def planned_share(blocks: Blocks, sums: Sequence[Sum], among: Iterable[int], kind: str) -> float:
    """Return the share of the unknowns of its rows that a run may plan with.

    It is a fifth of what is left. Blocks that were in no earlier run of this kind must bear the
    numbers alone: a fifth of what they have left, or a sixth of all they had. ``among`` are the
    blocks to learn from.
    """
    sums = [one for one in sums if one.numbers]
    cells = Cells(blocks, sums)
    used = np.isin(cells.leaves, list(among))
    left = 1.0 - cells.loads
    share = SHARE * float(left[used].min(initial=1.0))
    like = [one for one in sums if one.kind == kind]
    fair, learned = _fair(cells, like), frozenset(cells.leaves[used].tolist())
    for purpose in {one.purpose for one in like}:
        alike = [one for one in like if one.purpose == purpose]
        others = max(one.others for one in alike)
        row, wide = max(one.row for one in alike), max(one.width for one in alike)
        new = Sum(-1, kind, purpose, frozenset(), learned, 0.0, 1.0, others)
        for one in Cells(blocks, [*alike, new]).shares:
            if one.alone:
                whole = float(cells.rows[used].sum() + others)
                hidden = one.hidden(cells.rows)
                share = min(share, float(fair[one.leaves].min()) * hidden / whole)
                if wide > (most := hidden // ROWS_PER_COLUMN):  # nor may it be wider
                    share = min(share, most * (most + 1) / 2 / (whole * row))
    return max(_ROUNDING, share)


def _fair(cells: Cells, like: Sequence[Sum]) -> NDArray[np.float64]:
    """Return how much of each leaf a run may use: more of a leaf that is new to this kind."""
    left = np.maximum(1.0 - cells.loads, 0.0)
    later = (cells.members(like) < 0).all(axis=1)
    return np.where(later, np.maximum(SHARE * left, np.minimum(left / 2.0, LATER)), SHARE * left)


def lot_rows(numbers: float, row: float, width: int = 0) -> int:
    """Return the rows that later changes need, so that a repeated run can keep its size.

    ``numbers`` and ``width`` are those of a run of this size; ``row`` is the number of unknowns of
    a row.
    """
    return max(math.ceil(numbers / (LATER * row)), ROWS_PER_COLUMN * width)


def needed_rows(sums: Iterable[Sum]) -> int:
    """Return the rows that later changes need, so that the largest run can repeat.

    Of larger runs it is enough that 32 landmarks can repeat.
    """
    return max(
        (lot_rows(min(s.numbers, _LOT_NUMBERS), s.row, min(s.width, _LOT_WIDTH)) for s in sums),
        default=0,
    )


def check_parties(
    blocks: Blocks, sums: Sequence[Sum], new: Sum, *, least: int, allow_one: bool = False
) -> None:
    """Refuse a sum in which blocks hide among too few parties.

    Sums of the same purpose, of other runs and with pinned identities are compared; within a run
    the protocol ensures it. ``least`` parties, this node included, must be common to all cohorts of
    a block. With ``allow_one`` a cohort may differ from an earlier one by one party.
    """
    about, line = (new.kind, new.purpose), line_of(blocks, sorted(new.blocks))
    known = [s for s in sums if s.cohort and s.done and s.run != new.run]
    known = [s for s in known if (s.kind, s.purpose) == about and not line.isdisjoint(s.blocks)]
    if not (new.cohort and known):
        return
    member = Cells(blocks, ()).members([*known, new]) >= 0
    for there in np.unique(member[member[:, -1]][:, :-1], axis=0):
        earlier = [one.cohort for one, was in zip(known, there, strict=True) if was]
        if len(new.cohort.intersection(*earlier)) < least:
            raise RefusedError(
                f"refused: fewer than {least} parties were in every cohort with which some of its "
                "rows were summed",
                code="FK-CELLS-PARTIES",
            )
        if not allow_one and any(len(new.cohort ^ cohort) == 1 for cohort in earlier):
            raise RefusedError(
                "refused: its parties are those of an earlier run and one more or less, whose "
                "totals would be the difference",
                code="FK-CELLS-ONE-APART",
            )


def _level(loads: NDArray[np.float64], rows: NDArray[np.int64], more: float) -> float:
    """Return the load to which the least loaded leaves are filled with ``more`` numbers."""
    order = np.argsort(loads)
    ranked, wide = loads[order], np.cumsum(rows[order])
    room = np.cumsum(np.diff(ranked) * wide[:-1])
    full = int(np.searchsorted(room, more))
    before = room[full - 1] if full else 0.0
    return float(ranked[full] + (more - before) / wide[full])
