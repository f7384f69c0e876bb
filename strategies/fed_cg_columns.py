"""FedCG makes the encoders that the holders of a block have in common, in its own exchanges.

The coarse sum rides on the distances and the fine one takes an exchange, after which nobody but the
hospitals needs the encoder: a hospital's own block never travels. So it is where hospitals hold the
block. Where centres do, their distances need the encoder, and both sums come before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.align.column_ranges import ENCODING
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.common import (
    Coarse,
    check_kinds,
    coarse_length,
    fine_length,
    numeric,
    read_coarse,
    read_fine,
)
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.hybrid import messages as wire
from fedkern_flwr.hybrid.parties import COLUMNS, HISTOGRAMS, HOSPITAL, Plan
from fedkern_flwr.method import Ask, Steps, Term
from fedkern_flwr.strategy import logger
from fedkern_flwr.table_parties import misfit

#: Public bins about which the fine sum has more than the coarse one, at most, of a column.
_BINS = 800
Scaling = Literal["auto", "rank", "range"]
Parties = Mapping[int, wire.HybridDescribeReply]


@dataclass
class CommonColumns:
    """The blocks of a run whose holders have not encoded them.

    Attributes
    ----------
    holders : dict
        Block -> its holders, several each.
    cohorts : list of str
        Names of the sets among which is summed, by number.
    late : bool
        Whether the distances need no encoder: hospitals hold the blocks, and nothing else that is
        asked before the equations depends on them.
    scaling, categories
        What columns become.
    encoders : dict
        Block -> its encoder as JSON, once it is known.
    sent : bool
        Whether the holders are sent it: those of a saved model have kept it.
    """

    holders: Mapping[str, Sequence[wire.HybridDescribeReply]]
    cohorts: Sequence[str]
    late: bool
    scaling: Scaling
    categories: Any
    encoders: dict[str, str] = field(default_factory=dict)
    sent: bool = True
    _coarse: dict[str, Coarse] = field(default_factory=dict)
    _told: bool = False

    @property
    def missing(self) -> bool:
        """Whether encoders are to be made yet."""
        return bool(self.holders) and not self.encoders

    def terms(self) -> list[Term]:
        """Return the coarse sums that are to be made yet; they ride on whatever is asked."""
        if not self.missing or self._coarse:
            return []
        found = []
        for block, parties in self.holders.items():
            if d := numeric(parties[0].kinds):
                found.append(self._term(COLUMNS, block, coarse_length(parties[0].kinds, d)))
            if len(parties) == 2:
                logger.warning(
                    "block %r has two holders: each can compute the other's means, deviations and "
                    "histograms from those of both",
                    block,
                )
        return found

    def take(self, totals: Mapping[str, NDArray[np.float64]]) -> None:
        """Read the coarse sums."""
        for block, parties in self.holders.items() if self.missing and not self._coarse else ():
            kinds, d = parties[0].kinds, numeric(parties[0].kinds)
            found = Coarse.nothing()
            if d:
                own = parties[0].value_bound, _rows(parties), len(parties)
                found = read_coarse(totals[COLUMNS + block], kinds, d, *own)
            self._coarse[block] = found

    def sum_coarse(self) -> Steps:
        """Make the coarse sums in an exchange of their own."""
        terms = self.terms()
        asked = [p.partition for held in self.holders.values() for p in held]
        totals: Mapping[str, NDArray[np.float64]] = {}
        if terms:
            ask = Ask(wire.ColumnsRequest(), reply=wire.ColumnsReply, sums=terms, among=asked)
            totals = (yield ask).totals
        self.take(totals)

    def sum_fine(self) -> Steps:
        """Make the fine sums and of them the encoders: one exchange."""
        requests: dict[int, wire.HistogramsRequest] = {}
        terms = []
        for block, parties in self.holders.items():
            asked, kinds = self._coarse[block], parties[0].kinds
            own = {name: getattr(asked, name) for name in ("places", "counts", "strays")}
            request = wire.HistogramsRequest(**vars(asked.centre), **own)
            requests |= {p.partition: request for p in parties}
            length = fine_length(kinds, asked.edges(parties[0].value_bound), numeric(kinds))
            terms.append(self._term(HISTOGRAMS, block, length))
        answers = yield Ask(requests, reply=wire.HistogramsReply, sums=terms)
        for block, parties in self.holders.items():
            own_sums = parties[0].value_bound, _rows(parties), len(parties)
            encoder = read_fine(
                answers.totals[HISTOGRAMS + block],
                parties[0].kinds,
                self._coarse[block],
                *own_sums,
                self.scaling,
                self.categories,
            )[1]
            if not encoder.outputs:
                raise ProtocolError(
                    f"every column of block {block!r} is constant",
                    remedy="add columns that vary",
                )
            self.encoders[block] = encoder.to_json()

    def of(self, party: wire.HybridDescribeReply) -> str:
        """Return what a party is sent of the encoder of its block, empty if it is not known."""
        return self.encoders.get(party.block, "") if party.kinds and self.sent else ""

    def told(self, request: Any, parties: Parties, hospitals: Sequence[int]) -> Any:
        """Return a request to hospitals: the first after the encoders are known has them."""
        if not self.encoders or self._told or not self.sent:
            return request
        self._told = True
        return {h: replace(request, encoder=self.of(parties[h])) for h in hospitals}

    def features(self, party: wire.HybridDescribeReply) -> int:
        """Return how many features a party's block has, encoded if that is known."""
        text = self.encoders.get(party.block) if party.kinds else None
        return len(Encoder.from_json(text).outputs) if text else party.features

    @property
    def parties(self) -> list[wire.HybridDescribeReply]:
        """All holders."""
        return [party for held in self.holders.values() for party in held]

    def mean_distance(self, plan: Plan, kernel: str) -> float:
        """Return what hospitals' blocks of these add to the mean distance to the landmarks.

        Hospitals add nothing to its sum, since the encoder may come later: of uniform landmarks,
        turned about the middle, it follows from the distance of the rows from there.
        """
        found, own = 0.0, 1.0 / 12.0 if kernel == "rbf" else 1.0 / 4.0
        total = sum(ward.train for ward in plan.wards.values())
        for party in self.parties:
            if party.role == HOSPITAL:
                encoder = Encoder.from_json(self.encoders[party.block])
                share = plan.wards[party.partition].train / total
                found += share * (encoder.spread() + own * len(encoder.outputs))
        return found

    def explain(self) -> list[dict[str, Any]]:
        """Return what the columns of each block became, without a value, category or name."""
        return [
            {"block": block, **one._asdict()}
            for block, text in self.encoders.items()
            for one in Encoder.from_json(text).explain()
        ]

    def _term(self, sum_: str, block: str, length: int) -> Term:
        cohort = self.cohorts.index(f"block {block}")
        return Term(
            name=sum_ + block, length=length, encoding=ENCODING, cohort=cohort, self_masks=False
        )


def unencoded_blocks(
    parties: Sequence[wire.HybridDescribeReply],
) -> dict[str, list[wire.HybridDescribeReply]]:
    """Return block -> its holders, where they have not encoded it.

    Raises
    ------
    ProtocolError
        A node is alone with it, or holders do not fit together.
    """
    found: dict[str, list[wire.HybridDescribeReply]] = {}
    for party in parties:
        if party.features:
            found.setdefault(party.block, []).append(party)
    for block, holders in found.items():
        for party in holders:
            check_kinds(party, holders[0])
            if party.kinds and party.value_bound != holders[0].value_bound:
                raise misfit(
                    party.partition,
                    f"its value bound is not that of partition {holders[0].partition}, which holds "
                    f"block {block!r} as well",
                    "declare the same value-bound at all holders of the block",
                )
        if holders[0].kinds and len(holders) == 1:
            raise misfit(
                holders[0].partition,
                f"it alone holds block {block!r}, and there is nobody to sum with",
                "encode its features at the node: name an encoder in --node-config, not encode",
            )
    return {block: holders for block, holders in found.items() if holders[0].kinds}


def most_numbers(holders: Sequence[wire.HybridDescribeReply]) -> int:
    """Return how many numbers the sums of a block have, at most."""
    kinds = holders[0].kinds
    d = numeric(kinds)
    return coarse_length(kinds, d) + fine_length(kinds, [], d) + d * _BINS


def are_late(holders: Mapping[str, Sequence[wire.HybridDescribeReply]]) -> bool:
    """Tell whether hospitals alone hold the blocks."""
    return all(party.role == HOSPITAL for held in holders.values() for party in held)


def _rows(parties: Sequence[wire.HybridDescribeReply]) -> int:
    return sum(party.rows for party in parties)
