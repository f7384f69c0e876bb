"""Column ranges: a preparation run that sums the statistics of columns, block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedkern_flwr.align import column_ranges as wire
from fedkern_flwr.align.column_ranges import (
    DEFAULT_BOUND,
    ENCODING,
    Block,
    Coarse,
    Floats,
    Statistics,
    check_kinds,
    summed_ranges,
)
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.columns import CIRCLES, Categories, Scaling
from fedkern_flwr.errors import ProtocolError
from fedkern_flwr.method import Ask, Method, Rounds, Steps, SumSpec, option
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.planning import allowance
from fedkern_flwr.wire import DescribeReply
from fedkern_flwr.wire.describe import check_columns, check_partitions

_REMEDY = (
    "mend it and start again, with more attempts if it answers at times; two runs that differ in "
    "their nodes show single ones"
)

Requests = Mapping[str, wire.RangesRequest]  # to all holders of a block


class ColumnRanges(Method):
    """Column ranges: nodes with the same columns get the ranges of all their rows to scale by.

    Nodes of a block hold the same columns of different rows. Count, mean and deviation of each
    column are summed securely over the holders of a block, in two passes
    (:mod:`fedkern_flwr.align.column_ranges`); each node writes mean - k to mean + k deviations to
    its own disk. A single holder sends nothing and takes its least and greatest values. Four
    exchanges: describe, means, deviations, write; two if all blocks have one holder.

    If all holders of a block name a file for it, they get a common encoder of their columns
    instead: ranks, categories and gaps of all their rows, by the same two sums.

    Attributes
    ----------
    blocks_ : dict
        Block -> partitions of its holders.
    statistics_ : dict
        Block with several holders -> its :class:`Statistics`.
    ranges_ : dict
        The same -> ndarray, shape (2, d). Labels are the last column; encoded categories have none.
    encoders_ : dict
        Encoded block with several holders -> its :class:`~fedkern_flwr.encoding.Encoder`, without
        names of columns and categories.
    """

    method, title = "ranges", "Column ranges"
    no_budget = "tells the ranges of columns, without noise"
    whole_cohorts = True
    fixed: ClassVar[frozenset[str]] = frozenset(
        {"seed", "min_clients", "max_missed", "threshold"}
        | {"checkpoint", "checkpoint_every", "resume"}
    )
    described = wire.RangesDescribeReply

    deviations: float = option(
        4.0, "k: ranges are mean - k to mean + k standard deviations.", above=0.0
    )
    bound: float = option(
        DEFAULT_BOUND,
        "Public bound on the magnitude of all values; a node with a larger one refuses.",
        above=0.0,
    )
    labels: bool = option(
        False, "Whether labels are one more column of blocks whose holders all have labels."
    )
    clip: bool = option(
        True, "Whether the files tell their readers to clip values beyond the ranges."
    )
    scaling: Scaling = option(
        "auto", "How encoded numbers are scaled. Auto: by range, by ranks where some are far."
    )
    categories: Categories = option(
        "auto", "What encoded text becomes. Auto: a column each of up to 20, else their shares."
    )

    def _reset(self) -> None:
        super()._reset()
        self.blocks_: dict[str, tuple[int, ...]] = {}
        self.statistics_: dict[str, Statistics] = {}
        self.ranges_: dict[str, Floats] = {}
        self.encoders_: dict[str, Encoder] = {}

    # -- what a method reports

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        blocks = {block: list(holders) for block, holders in self.blocks_.items()}
        return dict(self.model_), {**self.options(), "blocks": blocks}

    def matched(self) -> dict[str, Any]:
        found = {
            block: {
                "holders": [p.partition for p in holders],
                "rows": _rows(holders),
                "columns": int(holders[0].features) + self._labelled(holders),
            }
            for block, holders in _by_block(self.parties_.values()).items()
        }
        return {"blocks": found} if found else {}

    def privacy(self) -> dict[str, Any]:
        server, client = [], []
        if self.encoders_:
            counted = (
                "how many rows have a category; which one nobody counts"
                if self.categories == "hashing"
                else "how many rows have each category, which may name it; those of fewer than "
                "min_sum_rows rows of a node are counted together"
            )
            server = [
                "of those that are encoded: what each column holds, histograms of numbers and "
                f"dates over all holders, {counted}"
            ]
            client = ["of its columns that are encoded: the first histograms and the encoder"]
        return {
            **self.sums_privacy(),
            "server_sees": [
                "who holds which block, with how many rows and columns; digests of their names",
                "of blocks with several holders: counts, means and variances of the columns over "
                "all holders",
                *server,
            ],
            "client_sees": [
                "of its own columns over all holders: counts, about the means, powers of two not "
                "below the deviations, and the ranges",
                *client,
            ],
        }

    # -- parties

    def check_parties(self, parties: Sequence[Any]) -> None:
        check_partitions(parties)
        for holders in _by_block(parties).values():
            check_columns(holders)
            first = holders[0]
            for party in holders:
                check_kinds(party, first)
                if party.units != first.units:
                    raise ProtocolError(
                        f"its columns have other units than those of partition {first.partition}",
                        remedy="bring them to the same units, written in all cells or in none",
                        party=f"partition {party.partition}",
                        phase="describe",
                        code="FK-UNITS-DIFFER",
                    )
                if self.labels and party.labelled != first.labelled:
                    raise ProtocolError(
                        f"it has {'' if party.labelled else 'no '}labels, unlike partition "
                        f"{first.partition} in the same block",
                        remedy="give all holders of a block labels or none, or blocks of their own",
                        party=f"partition {party.partition}",
                        phase="describe",
                        code="FK-LABELS-DIFFER",
                    )

    def cohorts(self) -> list[list[int]] | None:
        """Return the holders of each block that several nodes hold."""
        blocks = _by_block(self.parties_.values())
        self.blocks_ = {b: tuple(p.partition for p in found) for b, found in blocks.items()}
        shared = {b: list(holders) for b, holders in self.blocks_.items() if len(holders) > 1}
        for block, holders in shared.items():
            if len(holders) == 2:
                logger.warning(
                    "block %r has two holders: each can compute the other's means and deviations "
                    "from those of both%s",
                    block,
                    ", and its histograms" if blocks[block][0].kinds else "",
                )
        return list(shared.values())

    def _labelled(self, holders: Sequence[Any]) -> bool:
        return self.labels and bool(holders[0].labelled)

    def _block(self, holders: Sequence[Any]) -> Block:
        first, rows = holders[0], _rows(holders)
        block = Block(first.kinds, 0, rows, len(holders), self.bound)
        columns = block.numeric if first.kinds else int(first.features)
        return replace(block, columns=columns + self._labelled(holders))

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        holders = _by_block(parties)
        shared = {name: self._block(held) for name, held in holders.items() if len(held) > 1}
        measured = {name: block for name, block in shared.items() if block.columns}
        labels = {name: self._labelled(held) for name, held in holders.items()}
        circles = {name: self._plan_circles(holders[name], block) for name, block in shared.items()}
        self.planned = 1 + bool(measured) + bool(shared)
        asked = {name: Coarse.nothing() for name in shared}
        if measured:
            about: dict[str, Any] = {"bound": self.bound}
            requests = {
                b: wire.MeansRequest(labels=labels[b], rows=one.rows, circles=circles[b], **about)
                for b, one in measured.items()
            }
            lengths = {b: one.coarse_length(circles[b]) for b, one in measured.items()}
            totals = yield from self._sum(requests, wire.MEANS_SUM, lengths, wire.MeansReply)
            asked |= {b: one.read_coarse(totals[b]) for b, one in measured.items()}
        if self.categories == "hashing":
            asked = {b: replace(one, buckets=0) for b, one in asked.items()}
        if shared:
            known = [*measured, *(b for b in shared if b not in measured)]
            asked = {b: self._plan_bins(holders[b], shared[b], asked[b]) for b in known}
            yield from self._sum_deviations(shared, asked, labels)
        for name, found in self.statistics_.items():
            low, high = self.ranges_[name] = summed_ranges(found, self.deviations)
            parts = {**vars(found), "low": low, "high": high}
            self.model_ |= {f"{name}/{part}": values for part, values in parts.items()}
        written = dict[str, wire.RangesRequest]()
        for name in holders:
            encoder = self.encoders_.get(name)
            low, high = self.ranges_.get(name, np.zeros((2, 0)))
            written[name] = wire.WriteRequest(
                labels=labels[name],
                alone=name not in shared,
                clip=self.clip,
                encoder="" if encoder is None else encoder.to_json(),
                scaling=self.scaling,
                categories=self.categories,
                low=low,
                high=high,
            )
        wanted = self._of_each(written)
        yield Ask(wanted, reply=wire.WriteReply, remedy=_REMEDY, last=True)
        return {"rows": _rows(parties), "blocks": len(holders), "summed": len(shared)}

    def _sum_deviations(
        self, blocks: Mapping[str, Block], asked: Mapping[str, Coarse], labels: Mapping[str, bool]
    ) -> Steps:
        requests, lengths = dict[str, wire.RangesRequest](), dict[str, int]()
        for name, first in asked.items():
            own = {part: value for part, value in vars(first).items() if part != "centre"}
            request = wire.DeviationsRequest(labels=labels[name], **vars(first.centre), **own)
            requests[name], lengths[name] = request, blocks[name].fine_length(first)
        reply = wire.DeviationsReply
        totals = yield from self._sum(requests, wire.DEVIATIONS_SUM, lengths, reply)
        for name in asked:
            block = blocks[name]
            how = asked[name], self.scaling, self.categories
            found, encoder = block.read_fine(totals[name], *how)
            if block.columns:
                self.statistics_[name] = found
            if block.kinds and not encoder.outputs:
                raise ProtocolError(
                    f"every column of block {name!r} is constant",
                    remedy="add columns that vary",
                    code="FK-COLUMNS-CONSTANT",
                )
            if block.kinds:
                self.encoders_[name] = encoder

    def _plan_circles(self, holders: Sequence[Any], block: Block) -> int:
        """Return the number of circles to locate most values, within half the share."""
        allowed = allowance(holders, labels=self._labelled(holders))
        if not allowed.planned or not block.numeric:
            return CIRCLES
        free = allowed.numbers / 2.0 - block.coarse_numbers(0)
        return int(min(max(0.0, free / (2 * block.numeric)), CIRCLES))

    def _plan_bins(self, holders: Sequence[Any], block: Block, first: Coarse) -> Coarse:
        """Return the request for the second sum, with as many bins as the nodes' shares allow.

        A count of n rows takes log2(n + 1) of the 64 bits of a number.
        """
        allowed = allowance(holders, labels=self._labelled(holders))
        if not allowed.planned or not block.numeric:
            return first
        weight = math.log2(block.rows + 1) / 64
        taken = block.coarse_numbers(self._plan_circles(holders, block)) + 2 * block.columns
        bins = block.fine_length(replace(first, splits=0)) - 2 * block.columns
        spare = (allowed.numbers - taken) / weight - bins
        splits = int(max(0.0, min(first.splits, spare // block.numeric)))
        self.note_plan(f"{splits} bins of a column by its rows", allowed)
        return replace(first, splits=splits)

    def _sum(self, requests: Requests, name: str, lengths: Mapping[str, int], reply: Any) -> Steps:
        shared = [block for block, holders in self.blocks_.items() if len(holders) > 1]
        how: dict[str, Any] = {"name": name, "encoding": ENCODING}
        terms = [
            SumSpec(length=lengths[block], cohort=shared.index(block), label=block, **how)
            for block in requests
        ]
        answers = yield Ask(self._of_each(requests), reply=reply, sums=terms, remedy=_REMEDY)
        return answers.totals

    def _of_each(self, requests: Requests) -> dict[int, wire.RangesRequest]:
        return {p: one for block, one in requests.items() for p in self.blocks_[block]}


def _by_block(parties: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for party in sorted(parties, key=lambda p: p.partition):
        found.setdefault(party.block, []).append(party)
    return dict(sorted(found.items()))


def _rows(parties: Sequence[Any]) -> int:
    return sum(party.rows for party in parties)
