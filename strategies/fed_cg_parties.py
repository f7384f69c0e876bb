"""Who takes part in a run of FedCG: whose rows meet, and over whom is summed."""

from __future__ import annotations

from collections.abc import Sequence

from fedkern_flwr.errors import OptionError, TableError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.parties import HOSPITAL, MissingBlocks, Plan, check_alone, make_plan
from fedkern_flwr.strategy import logger

Parties = Sequence[wire.HybridDescribeReply]


def match_rows(
    parties: Parties, missing: MissingBlocks, *, predict: bool, secure: bool, allow_single: bool
) -> Plan:
    """Match the rows of all parties; log what of them is left out.

    Raises
    ------
    TableError, PartitionError, ProtocolError
        Nobody has rows to predict, rows do not meet, or a party would be shown.
    """
    if predict and not any(p.role == HOSPITAL and p.test_rows for p in parties):
        raise TableError(
            "no hospital holds rows to predict",
            remedy="name test-data in the --node-config of those that shall predict",
        )
    plan = make_plan(parties, missing, predict=predict)
    check_alone(plan, parties, secure=secure, allow_single=allow_single)
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


def summing_sets(plan: Plan, *, protocol: str, penalty: str) -> dict[str, list[int]]:
    """Return name -> partitions of the sets among which is summed, fixed by who holds what.

    Raises
    ------
    OptionError
        The penalty needs a sum, and there is one party.
    """
    wards = {f"ward {h}": sorted(w.rows) for h, w in plan.wards.items() if w.centres}
    if protocol == "chain":
        return wards
    shared = {f"block {b}": list(p) for b, p in plan.blocks.items() if len(p) > 1}
    alone = len(plan.hospitals) == 1
    sets = {**({} if alone else {"hospitals": list(plan.hospitals)}), **wards, **shared}
    if penalty == "rkhs":
        if len(plan.parties) == 1:
            raise OptionError(
                "penalty rkhs sums distances between landmarks over the parties, and there is one",
                remedy="use penalty ridge",
            )
        sets["everybody"] = list(plan.parties)
    return sets
