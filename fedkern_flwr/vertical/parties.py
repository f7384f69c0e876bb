"""Who holds what in a vertical split: all parties hold columns of the same rows.

*Active* parties also hold labels, of all rows or each of some; *passive* ones have none. The server
matches keyed hashes of ids; it sees which rows a party has, and no id.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..alignment import SAME_KEY, Hashes, Positions, count_duplicates, find_rows
from ..errors import CohortError, OptionError, ProtocolError, SmallCohortError, TableError
from ..table_parties import check_labels, check_tables, misfit
from .messages import VerticalDescribeReply

logger = logging.getLogger("fedkern_flwr")

ACTIVE, PASSIVE = "active", "passive"
MissingRows = Literal["error", "drop-row"]
MISSING_ROWS = ("error", "drop-row")
#: Refuses partitions that clash and pseudonyms that come twice.
check_parties = partial(
    check_tables,
    roles=(ACTIVE, PASSIVE),
    kinds="an active nor a passive party",
    client="VerticalKernelClient",
)
LARGEST_OUTPUT = 1e6  # beyond it an iteration has diverged; the bound of sums of outputs
LARGEST_LOSS = 100.0  # mean of a batch, beyond which as well; that of outputs of zero is at most 1


@dataclass(frozen=True)
class VerticalPlan:
    """All that follows from the descriptions of the parties.

    Attributes
    ----------
    parties, actives : tuple of int
        Partitions, ascending.
    train, test : dict
        Active party -> which rows of the plan it has labels of, and which are its held-out ones.
    rows : dict
        Partition -> position of each row of the plan among those that the party announced.
    dropped : int
        Rows left out because some party does not hold them.
    names : ndarray of uint64, shape (rows,)
        The first half of each row's pseudonym.
    """

    parties: tuple[int, ...]
    actives: tuple[int, ...]
    train: Mapping[int, slice]
    test: Mapping[int, slice]
    rows: Mapping[int, Positions]
    dropped: int = 0
    names: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def total(self) -> int:
        """Number of rows of the plan."""
        return len(next(iter(self.rows.values()))) if self.rows else 0

    @property
    def training_rows(self) -> int:
        """Number of rows to learn from."""
        return sum(part.stop - part.start for part in self.train.values())

    @property
    def test_rows(self) -> int:
        """Number of held-out rows."""
        return sum(part.stop - part.start for part in self.test.values())

    def report(self) -> dict[str, Any]:
        """Return what was matched, as plain values for a result file."""
        return {
            "active_parties": {
                str(a): {
                    "training_rows": self.train[a].stop - self.train[a].start,
                    "held_out_rows": self.test[a].stop - self.test[a].start,
                }
                for a in self.actives
            },
            "passive_parties": [p for p in self.parties if p not in self.actives],
            "dropped_rows": self.dropped,
        }


def chunks(cuts: NDArray[np.int32]) -> list[slice]:
    """Return the chunks of rows that end at ``cuts``."""
    ends = cuts.tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def name_sum(
    owner: int,
    number: int,
    names: NDArray[np.uint64],
    known: NDArray[np.int32],
    upto: int,
) -> str:
    """Return the name of a sum of phases, which binds it to its rows and directions.

    All parties make it from what they were asked for: masks of parties that were asked for
    different rows do not cancel.

    Parameters
    ----------
    owner, number : int
        Partition that receives the sum, and number of the chunk of rows.
    names : ndarray of uint64, shape (n,)
        Pseudonyms of the rows.
    known : ndarray of int32, shape (n,)
        Phases that the owner has of each row.
    upto : int
        Phases that it shall have.
    """
    digest = hashlib.sha256(np.ascontiguousarray(names, "<u8").tobytes())
    digest.update(np.ascontiguousarray(known, "<i4").tobytes() + b"%d" % upto)
    return f"phases/{owner}/{number}#{digest.hexdigest()[:32]}"


def make_plan(
    parties: Sequence[VerticalDescribeReply], missing: MissingRows, *, predict: bool = False
) -> VerticalPlan:
    """Match the rows of all parties.

    Parameters
    ----------
    parties : sequence of VerticalDescribeReply
        What all parties said about themselves.
    missing : {"error", "drop-row"}
        What to do with a row that some party does not hold: refuse the run, or leave the row out.
    predict : bool (default: False)
        Whether only held-out rows count.

    Raises
    ------
    ProtocolError, CohortError, TableError
        The parties do not fit together; the text names the party and the remedy.
    """
    actives = [p for p in parties if p.role == ACTIVE]
    if not actives:
        raise CohortError(
            "there is no active party: nobody has labels",
            remedy="start at least one node with labels",
            phase="describe",
            code="FK-LABELS-NOBODY",
        )
    if len(parties) == 1:
        raise SmallCohortError(
            "there is one party: no columns are split",
            remedy="start the nodes that hold the other columns",
            phase="describe",
            code="FK-PARTIES-FEW",
        )
    check_labels(actives, "active parties")
    _check_numbered(parties)
    if not any(p.features for p in parties):
        raise TableError(
            "no party has features",
            remedy="give at least one a feature column",
            code="FK-COLUMNS-NONE",
        )
    wanted: list[Hashes] = []
    kinds: list[tuple[int, bool]] = []
    for train in (True, False):
        for party in actives:
            end = party.rows
            part = party.ids[:end] if train else party.ids[end : end + party.test_rows]
            wanted.append(part[:0] if train and predict else part)
            kinds.append((party.partition, train))
    hashes = np.concatenate(wanted)
    _check_once(hashes)
    positions = {p.partition: find_rows(hashes, p.ids) for p in parties}
    keep = _held_by_all(parties, positions, missing)
    slices: dict[bool, dict[int, slice]] = {True: {}, False: {}}
    start = end = 0
    for (partition, train), part in zip(kinds, wanted, strict=True):
        kept = int(keep[start : start + len(part)].sum())
        slices[train][partition] = slice(end, end + kept)
        start, end = start + len(part), end + kept
    plan = VerticalPlan(
        tuple(p.partition for p in parties),
        tuple(p.partition for p in actives),
        slices[True],
        slices[False],
        {p: found[keep] for p, found in positions.items()},
        int((~keep).sum()),
        hashes[keep, 0],
    )
    if not predict and not plan.training_rows:
        raise CohortError(
            "there are no labelled rows to learn from",
            remedy="check the tables",
            code="FK-ROWS-NONE",
        )
    if predict and not plan.test_rows:
        raise CohortError(
            "there are no rows to predict", remedy="check the tables", code="FK-TEST-NONE"
        )
    return plan


def check_alone(
    plan: VerticalPlan, parties: Sequence[VerticalDescribeReply], *, allow_single: bool
) -> None:
    """Refuse what would show an active party the phases of a single other one.

    Raises
    ------
    OptionError
        The run does not allow it.
    ProtocolError
        The run does, that party does not.
    """
    holders = {p.partition: p for p in parties if p.features}
    for active in plan.actives:
        others = [p for partition, p in holders.items() if partition != active]
        if len(others) != 1:
            continue
        alone = others[0]
        if not allow_single:
            raise OptionError(
                f"partition {alone.partition} alone has columns beside partition {active}, which "
                "would learn the phases of that party's columns",
                remedy="let more parties take part, or allow it with --allow-single",
                code="FK-PARTIES-ALONE",
            )
        if not alone.allow_single:
            raise misfit(
                alone.partition,
                f"partition {active} would learn the phases of its columns, and it does not allow "
                "that",
                "let more parties take part, or set allow_single at this node",
                code="FK-ALONE-REFUSED",
            )


def _check_once(hashes: Hashes) -> None:
    if repeated := count_duplicates(hashes):
        raise ProtocolError(
            f"{repeated} rows have labels at two parties, or are held out and learned from",
            remedy="keep the label of a row at one active party, in one of its tables",
            phase="describe",
            code="FK-LABELS-TWICE",
        )


def _held_by_all(
    parties: Sequence[VerticalDescribeReply],
    positions: Mapping[int, Positions],
    missing: MissingRows,
) -> NDArray[np.bool_]:
    keep = np.ones(len(next(iter(positions.values()))), bool)
    for party in parties:
        held = positions[party.partition] >= 0
        lacking = int((~held).sum())
        if len(held) and not held.any():
            problem = f"it holds none of the {len(held)} rows"
            raise misfit(
                party.partition, problem, f"check its id column and {SAME_KEY}", code="FK-IDS-APART"
            )
        if lacking and missing == "error":
            problem = f"it does not hold {lacking} of the {len(held)} rows with labels"
            raise misfit(
                party.partition,
                problem,
                "check the ids, or choose --missing drop-row",
                code="FK-ROWS-LACKING",
            )
        keep &= held
    if len(keep) and not keep.any():
        raise ProtocolError(
            "no row is held by all parties",
            remedy="check the ids",
            phase="describe",
            code="FK-IDS-APART",
        )
    if not keep.all():
        logger.warning("%d rows are left out: some party does not hold them", int((~keep).sum()))
    return keep


def _check_numbered(parties: Sequence[VerticalDescribeReply]) -> None:
    """Refuse rows without ids unless all parties have as many: they are joined by their order."""
    first = parties[0]
    for party in parties[1:]:
        if party.named != first.named:
            bare = first if party.named else party
            raise misfit(
                bare.partition,
                "its rows have no ids, those of other parties have",
                "give all parties ids, or none and the rows in the same order",
                code="FK-IDS-SOME",
            )
        if not party.named and len(party.ids) != len(first.ids):
            raise misfit(
                party.partition,
                f"it has {len(party.ids)} rows without ids, partition {first.partition} has "
                f"{len(first.ids)}",
                "bring the same rows in the same order, or give ids",
                code="FK-ROWS-DIFFER",
            )
