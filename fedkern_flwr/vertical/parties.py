"""Match the rows of a vertical split: all parties hold columns of the same rows.

*Active* parties also hold labels, of all or some rows; *passive* ones have none. The server matches
keyed hashes of ids; it sees which rows a party has, and no id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..alignment import Hashes, Positions, count_duplicates, find_rows
from ..errors import CohortError, OptionError, ProtocolError, SmallCohortError, TableError
from ..wire.describe import check_labels, check_tables, misfit
from .messages import VerticalDescribeReply

logger = logging.getLogger("fedkern_flwr")

ACTIVE, PASSIVE = "active", "passive"
MissingRows = Literal["error", "drop-row"]
#: Refuses clashing partitions and duplicate pseudonyms.
check_parties = partial(
    check_tables,
    roles=(ACTIVE, PASSIVE),
    kinds="an active nor a passive party",
    client="VerticalKernelClient",
)


@dataclass(frozen=True)
class VerticalPlan:
    """Rows and parties of a run.

    Attributes
    ----------
    parties, actives : tuple of int
        Partitions, ascending.
    train, test : dict
        Active party -> its labelled and its held-out rows of the plan.
    rows : dict
        Partition -> announced position of each row of the plan.
    dropped : int
        Rows left out because some party lacks them.
    names : ndarray of uint64, shape (rows,)
        First half of each row's pseudonym.
    """

    parties: tuple[int, ...]
    actives: tuple[int, ...]
    train: Mapping[int, range]
    test: Mapping[int, range]
    rows: Mapping[int, Positions]
    dropped: int = 0
    names: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    @property
    def total(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    @property
    def training_rows(self) -> int:
        return sum(map(len, self.train.values()))

    @property
    def test_rows(self) -> int:
        return sum(map(len, self.test.values()))

    def report(self) -> dict[str, Any]:
        return {
            "active_parties": {
                str(a): {"training_rows": len(self.train[a]), "held_out_rows": len(self.test[a])}
                for a in self.actives
            },
            "passive_parties": [p for p in self.parties if p not in self.actives],
            "dropped_rows": self.dropped,
        }


def make_plan(
    parties: Sequence[VerticalDescribeReply], missing: MissingRows, *, predict: bool = False
) -> VerticalPlan:
    """Match the rows of all parties; ``missing`` says what to do with a row that one lacks.

    Raises
    ------
    ProtocolError, CohortError, TableError
        The parties do not fit together; the text names party and remedy.
    """
    actives = [p for p in parties if p.role == ACTIVE]
    if not actives:
        raise CohortError(
            "there is no active party: nobody has labels", phase="describe", code="FK-LABELS-NOBODY"
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
        raise TableError("no party has features", code="FK-COLUMNS-NONE")
    kinds = [(train, party) for train in (True, False) for party in actives]
    wanted: list[Hashes] = []
    for train, party in kinds:
        start, end = (0, party.rows) if train else (party.rows, party.rows + party.test_rows)
        wanted.append(party.ids[start : start if train and predict else end])
    hashes = np.concatenate(wanted)
    _check_once(hashes)
    positions = {p.partition: find_rows(hashes, p.ids) for p in parties}
    keep = _held_by_all(parties, positions, missing)
    parts: dict[bool, dict[int, range]] = {True: {}, False: {}}
    start = end = 0
    for (train, party), part in zip(kinds, wanted, strict=True):
        kept = int(keep[start : start + len(part)].sum())
        parts[train][party.partition] = range(end, end + kept)
        start, end = start + len(part), end + kept
    plan = VerticalPlan(
        tuple(p.partition for p in parties),
        tuple(p.partition for p in actives),
        parts[True],
        parts[False],
        {p: found[keep] for p, found in positions.items()},
        int((~keep).sum()),
        hashes[keep, 0],
    )
    if not predict and not plan.training_rows:
        raise CohortError("there are no labelled rows to learn from", code="FK-ROWS-NONE")
    if predict and not plan.test_rows:
        raise CohortError("there are no rows to predict", code="FK-TEST-NONE")
    return plan


def check_alone(
    plan: VerticalPlan, parties: Sequence[VerticalDescribeReply], *, allow_single: bool
) -> None:
    """Refuse a run in which an active party would see the phases of a single other one.

    Raises
    ------
    OptionError
        The run does not allow it.
    ProtocolError
        The run allows it, that party does not.
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
            raise misfit(party.partition, problem, code="FK-IDS-APART")
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
    """Refuse rows without ids (joined by their order) unless all parties have as many."""
    first = parties[0]
    for party in parties[1:]:
        if party.named != first.named:
            bare = first if party.named else party
            raise misfit(
                bare.partition,
                "its rows have no ids, those of other parties have",
                code="FK-IDS-SOME",
            )
        if not party.named and len(party.ids) != len(first.ids):
            raise misfit(
                party.partition,
                f"it has {len(party.ids)} rows without ids, partition {first.partition} has "
                f"{len(first.ids)}",
                code="FK-ROWS-DIFFER",
            )


def held_out_rows(plan: VerticalPlan) -> NDArray[np.int64]:
    return np.concatenate([rows_of(part) for part in plan.test.values()])


def rows_of(part: range) -> NDArray[np.int64]:
    return np.arange(part.start, part.stop)
