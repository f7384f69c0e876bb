"""What a node answered in other runs, and what it therefore does not answer in this one.

The difference of two sums over nearly the same rows is about the rows in which they differ; that
of two sums over nearly the same parties, about the party. Both are refused. A sum that is made row
by row, such as that of distances, is not a sum over rows: it may be of any of them, and what is
refused is another cohort for a row that was summed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rows import Digests, RowSet


@dataclass(frozen=True, eq=False)
class Entry:
    """A sum, as the ledger knows it.

    Attributes
    ----------
    purpose : str
        What is summed.
    rows : RowSet
        The node's own rows in it, sorted.
    group : str
        What its rows are compared with: sets of the same group.
    each : bool
        Whether it is made row by row.
    cohort : ndarray of uint64, or None
        Digests of the pinned keys of its parties; None where they are unknown.
    parties : int
        How many they are.
    run : int
        Number of the run in the ledger.
    """

    purpose: str
    rows: RowSet
    group: str = ""
    each: bool = False
    cohort: Digests | None = None
    parties: int = 0
    run: int = 0


@dataclass(frozen=True)
class Answer:
    """A sum that an answer is about.

    Attributes
    ----------
    purpose : str
        What is summed.
    rows : ndarray of int, optional
        Places of its rows in the node's table; by default all that are learned from.
    each : bool
        Whether it is made row by row.
    cohort : sequence of bytes, optional
        The pinned keys of its parties.
    parties : int
        How many they are; 0 for what is not a sum.
    again : bool
        Whether a sum that was entered before is opened, maybe over fewer parties.
    """

    purpose: str
    rows: NDArray[np.integer[Any]] | None = None
    each: bool = False
    cohort: Sequence[bytes] | None = None
    parties: int = 0
    again: bool = False


@dataclass(frozen=True, order=True)
class Conflict:
    """Why a sum is refused: the run with which it would be compared, the rule, and its code."""

    run: int
    rule: str
    code: str


def conflicts(
    new: Entry, earlier: Iterable[Entry], *, min_own_rows: int, records: bool
) -> list[Conflict]:
    """Return with which earlier runs a sum must not be compared, each once.

    Parameters
    ----------
    new : Entry
        What is to be answered.
    earlier : iterable of Entry
        What was answered, also in this run.
    min_own_rows : int
        Of the policy: two runs may not differ by fewer of the node's own rows.
    records : bool
        Whether the rows are records that must hide among others. Where they need not, such as the
        single user of a node, sets of fewer rows than the policy asks for are not compared.
    """
    found: dict[int, tuple[str, str]] = {}
    for old in earlier:
        few = min(len(new.rows), len(old.rows)) < min_own_rows and not records
        compared = new.group == old.group and not (new.each or old.each or few)
        if compared and 0 < rows_apart(new.rows, old.rows) < min_own_rows:
            rule = f"min_own_rows = {min_own_rows}: its own rows are nearly"
            found.setdefault(old.run, (rule, "FK-LEDGER-ROWS"))
        if old.run != new.run and new.purpose == old.purpose and one_party_apart(new, old):
            found.setdefault(old.run, ("the parties of a sum are all but one", "FK-LEDGER-PARTIES"))
    return [Conflict(run, *why) for run, why in sorted(found.items())]


def rows_apart(a: RowSet, b: RowSet) -> int:
    """Return in how many rows two sets differ, 0 if they are the same rows.

    A row that was edited counts once: it left and came. Where the names differ in fewer rows than
    the contents, such as after a change of units, the names count.
    """
    apart = [_apart(a.names, b.names), _apart(a.values, b.values)]
    return min((number for number in apart if number), default=0)


def one_party_apart(new: Entry, old: Entry) -> bool:
    """Tell whether the cohorts of two sums of the same rows differ by one pinned party."""
    if new.cohort is None or old.cohort is None or _apart(new.cohort, old.cohort) != 1:
        return False
    if new.each or old.each:
        return bool(np.isin(new.rows.names, old.rows.names, assume_unique=True).any())
    same_names = not _apart(new.rows.names, old.rows.names)
    return same_names or not _apart(new.rows.values, old.rows.values)


def _apart(a: Digests, b: Digests) -> int:
    common = len(np.intersect1d(a, b, assume_unique=True))
    return max(len(a), len(b)) - common
