"""Match the rows of a hybrid split: hospitals hold rows, any party may hold blocks of features.

The server matches keyed hashes of ids; it sees which rows a party has, and no id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..alignment import SAME_KEY, find_rows
from ..errors import CohortError, OptionError, TableError
from ..wire.describe import check_labels, check_tables, misfit
from .messages import HybridDescribeReply

logger = logging.getLogger("fedkern_flwr")

Positions = NDArray[np.int32]
MissingBlocks = Literal["error", "drop-row", "neutral"]

HOSPITAL, CENTRE = "hospital", "centre"
#: Refuses clashing partitions and duplicate pseudonyms.
check_parties = partial(
    check_tables,
    roles=(HOSPITAL, CENTRE),
    kinds="a hospital nor a centre",
    client="HybridKernelClient",
)


@dataclass(frozen=True)
class Ward:
    """The rows of one hospital in a run.

    Attributes
    ----------
    partition : int
    train, test : int
        Participating training and held-out rows.
    rows : dict
        Partition -> position of each row among its announced rows, -1 if missing; for the hospital
        and each centre with at least one of them.
    dropped : int
        Rows left out because a block is missing.
    lacking : dict
        Block -> participating rows without it.
    """

    partition: int
    train: int
    test: int
    rows: Mapping[int, Positions]
    dropped: int = 0
    lacking: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.train + self.test

    @cached_property
    def centres(self) -> tuple[int, ...]:
        return tuple(sorted(p for p in self.rows if p != self.partition))

    @cached_property
    def _single(self) -> NDArray[np.bool_]:
        """Rows of exactly one centre: the hospital would see its partial distances."""
        held = np.zeros(self.total, np.int64)
        for centre in self.centres:
            held += self.rows[centre] >= 0
        return np.asarray(held == 1)

    @cached_property
    def lonely(self) -> int:
        return int(self._single.sum())

    @cached_property
    def alone(self) -> tuple[int, ...]:
        return tuple(c for c in self.centres if (self._single & (self.rows[c] >= 0)).any())


@dataclass(frozen=True)
class Plan:
    """Rows and blocks of a run.

    Attributes
    ----------
    wards : dict
        Partition of a hospital -> its rows.
    blocks : dict
        Name of a block -> its holders, ascending.
    unknown : dict
        Partition of a centre -> its rows that no hospital has.
    """

    wards: Mapping[int, Ward]
    blocks: Mapping[str, tuple[int, ...]]
    unknown: Mapping[int, int]

    @property
    def hospitals(self) -> tuple[int, ...]:
        return tuple(self.wards)

    @property
    def parties(self) -> tuple[int, ...]:
        return tuple(sorted({p for ward in self.wards.values() for p in ward.rows}))

    @property
    def rows_alone(self) -> bool:
        """Whether no centre has rows, so that each hospital computes its own kernel."""
        return not any(ward.centres for ward in self.wards.values())

    @property
    def alike(self) -> bool:
        """Whether all hospitals compute their own kernels, of one block."""
        return self.rows_alone and [*map(set, self.blocks.values())] == [set(self.hospitals)]

    @property
    def training_rows(self) -> int:
        return sum(ward.train for ward in self.wards.values())

    @cached_property
    def whole(self) -> dict[int, int]:
        """Hospital -> its training rows, if all its centres have these, and only for it."""
        return {h: ward.train for h, ward in self.wards.items() if self._has_all(ward)}

    def _has_all(self, ward: Ward) -> bool:
        for centre in ward.centres:
            rows = ward.rows[centre]
            wards = [one for one in self.wards.values() if one is not ward and centre in one.rows]
            others = np.concatenate([rows[:0], *(one.rows[centre] for one in wards)])
            if np.isin(rows[rows >= 0], others).any() or (rows[: ward.train] < 0).any():
                return False
        return True

    def sampling(self, block: str, asked: str) -> str:
        """Return how a block's landmarks are drawn; ``auto`` needs no exchange."""
        if asked != "auto":
            return asked
        return "C" if len(self.blocks.get(block, ())) == 1 else "U"

    def report(self) -> dict[str, Any]:
        return {
            "hospitals": {
                str(h): {
                    "training_rows": ward.train,
                    "held_out_rows": ward.test,
                    "dropped_rows": ward.dropped,
                    "rows_without_block": dict(ward.lacking),
                    "centres": list(ward.centres),
                }
                for h, ward in self.wards.items()
            },
            "blocks": {block: list(holders) for block, holders in self.blocks.items()},
            "rows_no_hospital_knows": {str(c): n for c, n in self.unknown.items() if n},
        }


def match_rows(
    parties: Sequence[HybridDescribeReply],
    missing: MissingBlocks,
    *,
    predict: bool,
    allow_single: bool,
) -> Plan:
    """Match the rows of all parties; log what is left out.

    Raises
    ------
    TableError, PartitionError, ProtocolError
        There are no rows to predict, rows do not match, or a party's values would be revealed.
    """
    if predict and not any(p.role == HOSPITAL and p.test_rows for p in parties):
        raise TableError("no hospital holds rows to predict", code="FK-TEST-NONE")
    plan = make_plan(parties, missing, predict=predict)
    check_alone(plan, parties, allow_single=allow_single)
    for h, ward in plan.wards.items():
        if ward.dropped or ward.lacking:
            logger.warning(
                "partition %d: %d rows dropped, rows without a block: %s",
                h,
                ward.dropped,
                dict(ward.lacking) or "none",
            )
    for c, unknown in plan.unknown.items():
        if unknown:
            logger.info("partition %d: %d rows belong to no hospital", c, unknown)
    return plan


def summing_sets(plan: Plan, *, penalty: str, tunes: bool = False) -> dict[str, list[int]]:
    """Return name -> partitions of the sets that sum.

    ``tunes``: the mean distance to the landmarks is summed over all parties, if there are two.

    Raises
    ------
    OptionError
        The penalty needs a sum, and there is one party.
    """
    wards = {f"ward {h}": sorted(w.rows) for h, w in plan.wards.items() if w.centres}
    shared = {f"block {b}": list(p) for b, p in plan.blocks.items() if len(p) > 1}
    alone = len(plan.hospitals) == 1
    sets = {**({} if alone else {"hospitals": list(plan.hospitals)}), **wards, **shared}
    if penalty == "rkhs" and len(plan.parties) == 1:
        raise OptionError(
            "penalty rkhs sums distances between landmarks over the parties, and there is one",
            code="FK-RKHS-ALONE",
        )
    if penalty == "rkhs" or (tunes and len(plan.parties) > 1):
        sets["everybody"] = list(plan.parties)
    return sets


def make_plan(
    parties: Sequence[HybridDescribeReply], missing: MissingBlocks, *, predict: bool = False
) -> Plan:
    """Match the rows of all parties.

    For a row without a block ``missing`` says: refuse the run, drop the row, or set the
    block's factor of the kernel to one ("neutral"). ``predict``: only held-out rows count.

    Raises
    ------
    ProtocolError, CohortError, TableError
        The parties do not fit together; the text names party and remedy.
    """
    hospitals = [p for p in parties if p.role == HOSPITAL]
    centres = [p for p in parties if p.role == CENTRE]
    if not hospitals:
        raise CohortError(
            "there is no hospital: nobody has labels", phase="describe", code="FK-LABELS-NOBODY"
        )
    _check_blocks(parties)
    check_labels(hospitals, "hospitals")
    blocks: dict[str, tuple[int, ...]] = {}
    for party in parties:
        if party.features:
            blocks[party.block] = (*blocks.get(party.block, ()), party.partition)
    if not blocks:
        raise TableError("no party has features", code="FK-COLUMNS-NONE")
    wards = {h.partition: _admit(h, centres, blocks, missing, predict) for h in hospitals}
    if not predict and not any(ward.train for ward in wards.values()):
        raise CohortError("there are no training rows", code="FK-ROWS-NONE")
    known = {p for ward in wards.values() for p in ward.rows}
    unknown = {}
    for centre in centres:
        found = np.zeros(len(centre.ids), bool)
        for hospital in hospitals:
            positions = find_rows(hospital.ids, centre.ids)
            found[positions[positions >= 0]] = True
        unknown[centre.partition] = int((~found).sum())
        if centre.partition not in known:
            raise misfit(
                centre.partition,
                f"none of its {len(centre.ids)} ids belongs to a row of a hospital",
                code="FK-IDS-APART",
            )
    return Plan(wards, {b: h for b, h in blocks.items() if known & set(h)}, unknown)


def check_alone(
    plan: Plan,
    parties: Sequence[HybridDescribeReply],
    *,
    allow_single: bool,
) -> None:
    """Refuse a run that would reveal a single party's values.

    Raises
    ------
    OptionError
        The run does not allow it.
    ProtocolError
        The run allows it, a centre does not.
    """
    if allow_single:
        strict = {p.partition for p in parties if not p.allow_single}
        for ward in plan.wards.values():
            for centre in strict.intersection(ward.alone):
                raise misfit(
                    centre,
                    f"it alone knows rows of partition {ward.partition}, which would learn its "
                    "distances, and it does not allow that",
                    code="FK-ALONE-REFUSED",
                )
        return
    own, more = "what is summed over hospitals would be its own", "let more hospitals take part"
    learning = [ward.partition for ward in plan.wards.values() if ward.train]
    found = [(f"there is one hospital: {own}", more)] if len(plan.hospitals) == 1 else []
    if len(learning) == 1:
        found.append((f"partition {learning[0]} alone has training rows: {own}", more))
    found += [
        (
            f"{ward.lonely} of {ward.total} rows of partition {partition} are known to one centre "
            "only: the hospital would learn that centre's distances",
            "let more centres take part, drop rows with missing blocks",
        )
        for partition, ward in plan.wards.items()
        if ward.lonely
    ]
    for problem, remedy in found:
        remedy += ", or allow it with --allow-single"
        raise OptionError(problem, remedy=remedy, code="FK-PARTIES-ALONE")


def _admit(
    hospital: HybridDescribeReply,
    centres: Sequence[HybridDescribeReply],
    blocks: Mapping[str, tuple[int, ...]],
    missing: MissingBlocks,
    predict: bool,
) -> Ward:
    announced = len(hospital.ids)
    rows: dict[int, Positions] = {hospital.partition: np.arange(announced, dtype=np.int32)}
    have = {block: np.zeros(announced, bool) for block in blocks}
    if hospital.features:
        have[hospital.block][:] = True
    for centre in centres:
        positions = find_rows(hospital.ids, centre.ids)
        here = positions >= 0
        twice = int((have[centre.block] & here).sum()) if centre.features else 0
        if twice:
            raise misfit(
                centre.partition,
                f"block {centre.block!r} of {twice} rows is held by another party as well",
                code="FK-BLOCK-TWICE",
            )
        if centre.features and here.any():
            have[centre.block] |= here
            rows[centre.partition] = positions
    keep = np.ones(announced, bool)
    if predict:
        keep[: hospital.rows] = False
    complete = np.logical_and.reduce(list(have.values()))
    lacking = {block: int((~own & keep).sum()) for block, own in have.items()}
    lacking = {block: count for block, count in lacking.items() if count}
    if missing == "error" and lacking:
        block, count = next(iter(lacking.items()))
        raise misfit(
            hospital.partition,
            f"{count} of its {int(keep.sum())} rows have no block {block!r}"
            + (f" ({len(lacking)} blocks are incomplete)" if len(lacking) > 1 else ""),
            "check the ids, "
            + (f"{SAME_KEY}, " if count == keep.sum() else "")
            + "or choose --missing drop-row or neutral",
            code="FK-ROWS-LACKING",
        )
    before = int(keep.sum())
    if missing == "drop-row":
        keep &= complete
        lacking = {}
    if before and not keep.any():
        raise misfit(hospital.partition, "every row lacks a block", code="FK-IDS-APART")
    kept = {p: positions[keep] for p, positions in rows.items()}
    kept = {p: v for p, v in kept.items() if p == hospital.partition or (v >= 0).any()}
    train = int(keep[: hospital.rows].sum())
    return Ward(
        hospital.partition, train, int(keep.sum()) - train, kept, before - int(keep.sum()), lacking
    )


def _check_blocks(parties: Sequence[HybridDescribeReply]) -> None:
    first: dict[str, HybridDescribeReply] = {}
    for party in parties:
        if not party.features:
            continue
        other = first.setdefault(party.block, party)
        if (party.features, party.columns) != (other.features, other.columns):
            raise misfit(
                party.partition,
                f"its block {party.block!r} has {party.features} columns that differ from the "
                f"{other.features} of partition {other.partition} in number, name or order",
                code="FK-COLUMNS-DIFFER",
            )
        bounds = {(p.square_bound, p.absolute_bound) for p in (party, other)}
        seeds = {(p.seeded, p.seeded and p.secret_digests) for p in (party, other)}
        if len(bounds) > 1 or len(seeds) > 1:
            what = "landmark seed" if len(seeds) > 1 else "ranges"
            raise misfit(
                party.partition,
                f"its {what} of block {party.block!r} and that of partition {other.partition} do "
                "not fit",
                f"configure the same {what} at all holders of the block",
                code="FK-BLOCK-DIFFERS",
            )
