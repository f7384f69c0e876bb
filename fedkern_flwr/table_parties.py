"""Describe parties with tables, and check that they fit together."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .alignment import count_duplicates, find_rows
from .errors import CheckpointError, ProtocolError, TableError
from .wire.describe import DescribeReply, check_partitions
from .wire.message import array


class TableReply(DescribeReply):
    """Description of a party with a table."""

    outputs: int  # k, columns of the targets; 0 without labels
    classes: int  # 0 for regression or without labels
    labels: str  # digest of the names of the classes
    label_bound: float  # declared, of the targets of a regression
    labelled: bool  # whether the held-out rows have labels
    allow_single: bool  # whether others may learn what is of this party alone, see the method
    # Keyed hashes of the ids of all rows that are announced, each part of them sorted.
    ids: NDArray[Any] = array("ids", "words", dtype="ring")
    # The same of ids in one spelling, see plain_ids; nothing where all are spelled so.
    spelled: NDArray[Any] = array("spelled", "words", dtype="ring")

    @property
    def announced(self) -> int:
        return self.rows + self.test_rows


def misfit(
    partition: int, problem: str, remedy: str | None = None, *, code: str = ""
) -> ProtocolError:
    """Return the error that refuses a party for its description."""
    party = f"partition {partition}"
    return ProtocolError(problem, remedy=remedy, party=party, phase="describe", code=code)


def check_tables(
    parties: Sequence[TableReply], roles: Collection[str], kinds: str, client: str
) -> None:
    """Refuse inconsistent partitions, other roles, and duplicate pseudonyms.

    Parameters
    ----------
    parties : sequence of TableReply
        Descriptions of all parties.
    roles : collection of str
        Roles of the method.
    kinds : str
        Their name in errors, such as ``"a hospital nor a centre"``.
    client : str
        Client class of the method.
    """
    check_partitions(parties)
    for party in parties:
        if party.role not in roles:
            remedy = f"serve a {client} on this node"
            raise misfit(party.partition, f"it is neither {kinds}", remedy, code="FK-NODE-METHOD")
        many = len(party.spelled) in (0, len(party.ids))
        words = party.ids.dtype == party.spelled.dtype == np.uint64
        if party.ids.shape != (party.announced, 2) or not (many and words):
            raise misfit(party.partition, "its hashes of ids do not fit", code="FK-MESSAGE-SHAPE")
        if repeated := count_duplicates(party.ids):
            name = f"partition {party.partition}"
            raise TableError(f"{repeated} duplicate ids", party=name, code="FK-IDS-DUPLICATE")
    check_spelling(parties)


def check_spelling(parties: Sequence[TableReply]) -> None:
    """Refuse ids of which more would match if all parties spelled them alike."""
    for one, other in combinations(parties, 2):
        if len(one.spelled) or len(other.spelled):
            plain = [party.spelled if len(party.spelled) else party.ids for party in (one, other)]
            found = int((find_rows(one.ids, other.ids) >= 0).sum())
            alike = int((find_rows(*plain) >= 0).sum())
            if alike > found:
                raise TableError(
                    f"{found} ids match those of partition {other.partition}, {alike} would if "
                    "both wrote them alike",
                    remedy="write ids alike at all parties: leading zeros, .0 and capital letters",
                    party=f"partition {one.partition}",
                    code="FK-IDS-SPELLED",
                )


def check_labels(parties: Sequence[TableReply], who: str) -> None:
    """Refuse labels with other outputs, classes or bounds than the first party's."""
    first, *others = (
        (p.partition, (p.outputs, p.classes, p.labels, p.label_bound)) for p in parties
    )
    for partition, task in others:
        if task != first[1]:
            raise misfit(
                partition,
                f"its labels differ from those of partition {first[0]} in number of outputs, "
                "classes or bound",
                f"declare the same classes or the same label bound at all {who}",
                code="FK-CLASSES-DIFFER",
            )


def rows_digest(
    parties: Sequence[TableReply], *more: str, saved: str | None, checkpoint: Path | None
) -> str:
    """Return a digest of each party's rows, features and outputs, in this session.

    ``more`` names further fields. Raises CheckpointError unless it equals ``saved``, if that is
    given.
    """
    digest = hashlib.sha256()
    for party in parties:
        names = ("partition", *more, "rows", "features", "outputs")
        sizes = tuple(getattr(party, name) for name in names)
        digest.update(repr(sizes).encode() + party.ids.tobytes())
    found = digest.hexdigest()
    if saved not in (None, found):
        raise CheckpointError(
            f"the rows of the parties are not those of the run of {checkpoint}",
            remedy="bring back the tables of that run, or start anew",
            code="FK-CHECKPOINT-PARTIES",
        )
    return found
