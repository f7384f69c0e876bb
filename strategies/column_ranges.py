"""Column ranges: a preparation run that sums the statistics of columns, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedkern_flwr.align import column_ranges as wire
from fedkern_flwr.align.column_ranges import (
    DEFAULT_BOUND,
    ENCODING,
    Floats,
    Statistics,
    read_second_pass,
    summed_ranges,
)
from fedkern_flwr.encoding import Encoder
from fedkern_flwr.encoding.columns import CIRCLES, Categories, Scaling
from fedkern_flwr.encoding.common import (
    Coarse,
    check_kinds,
    coarse_length,
    coarse_numbers,
    fine_length,
    numeric,
    read_coarse,
    read_fine,
)
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

Blocks = Mapping[str, Sequence[Any]]  # name -> its holders


class ColumnRanges(Method):
    """Column ranges: nodes with the same columns get the ranges of all their rows to scale by.

    Nodes of a block hold the same columns of different rows. Count, mean and deviation of each
    column are summed securely over the holders of a block, in two passes
    (:mod:`fedkern_flwr.align.column_ranges`); each node writes mean - k to mean + k deviations to
    its own disk. A node that holds a block alone sends nothing of it and takes its least and
    greatest values. Four exchanges: describe, means, deviations, write; two where all blocks have
    one holder.

    Where all holders of a block name a file for it they get a common encoder of their columns
    instead (:mod:`fedkern_flwr.encoding.common`): ranks, categories and gaps of all their rows, by
    the same two sums.

    Attributes
    ----------
    blocks_ : dict
        Name of each block -> partitions of its holders.
    statistics_ : dict
        Name of each block with several holders -> its :class:`Statistics`.
    ranges_ : dict
        Name of each of these -> ndarray, shape (2, d): the ranges. Labels are the last column;
        categories, which are encoded, have none.
    encoders_ : dict
        Name of each block with several holders that is encoded -> its
        :class:`~fedkern_flwr.encoding.Encoder`, without names of columns and categories.
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
        4.0,
        "k. Of any column at most 1 / k^2 of the values lie beyond the range, 6 in 100,000 of a "
        "normal one for k = 4.",
        above=0.0,
    )
    bound: float = option(
        DEFAULT_BOUND,
        "Public bound on the magnitude of all values; a node with a larger one refuses.",
        above=0.0,
    )
    labels: bool = option(
        False, "Whether the labels are one more column of blocks whose holders all have labels."
    )
    clip: bool = option(
        True, "Whether the files tell their readers to clip values beyond the ranges."
    )
    scaling: Scaling = option(
        "auto",
        "How encoded numbers are scaled: by the range of a column, but by ranks where some of its "
        "values are far from the others, or all of them one way.",
    )
    categories: Categories = option(
        "auto",
        "What encoded text becomes: a column per category, their shares of the rows, or signed "
        "buckets of a hash under the holders' secret; auto: columns of up to 20, else shares.",
    )

    def _reset(self) -> None:
        super()._reset()
        self.blocks_: dict[str, tuple[int, ...]] = {}
        self.statistics_: dict[str, Statistics] = {}
        self.ranges_: dict[str, Floats] = {}
        self.encoders_: dict[str, Encoder] = {}

    # -- what a method tells about itself

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the statistics and ranges of each block with several holders."""
        blocks = {block: list(holders) for block, holders in self.blocks_.items()}
        return dict(self.model_), {**self.options(), "blocks": blocks}

    def matched(self) -> dict[str, Any]:
        """Return who holds which block."""
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
        """Return what is seen by whom."""
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
        """Refuse partitions that clash, and holders of a block that do not fit together."""
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
        """Tell whether the labels are a column of a block."""
        return self.labels and bool(holders[0].labelled)

    def _columns(self, holders: Sequence[Any]) -> int:
        """Return how many columns of a block have means: categories have none."""
        kinds = holders[0].kinds
        return (numeric(kinds) if kinds else int(holders[0].features)) + self._labelled(holders)

    # -- a run

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Sum the statistics, let the nodes write their files."""
        blocks = _by_block(parties)
        shared = {block: holders for block, holders in blocks.items() if len(holders) > 1}
        measured = {block: found for block, found in shared.items() if self._columns(found)}
        encoded = {block: found for block, found in shared.items() if found[0].kinds}
        self.planned = 1 + bool(measured) + bool(measured or encoded)
        first = (yield from self._sum_means(measured)) if measured else {}
        if measured or encoded:
            asked = {block: first.get(block, Coarse.nothing()) for block in {**measured, **encoded}}
            if self.categories == "hashing":
                asked = {b: replace(one, buckets=0) for b, one in asked.items()}
            asked |= {b: self._plan_bins(shared[b], one) for b, one in asked.items()}
            yield from self._sum_deviations({b: shared[b] for b in asked}, asked)
        for block, found in self.statistics_.items():
            low, high = self.ranges_[block] = summed_ranges(found, self.deviations)
            parts = {**vars(found), "low": low, "high": high}
            self.model_ |= {f"{block}/{name}": values for name, values in parts.items()}

        def write(block: str) -> wire.RangesRequest:
            low, high = self.ranges_.get(block, np.zeros((2, 0)))
            alone, labels = block not in shared, self._labelled(blocks[block])
            encoder = self.encoders_[block].to_json() if block in encoded else ""
            return wire.WriteRequest(
                labels=labels,
                alone=alone,
                clip=self.clip,
                encoder=encoder,
                scaling=self.scaling,
                categories=self.categories,
                low=low,
                high=high,
            )

        wanted = _of_each(blocks, write)
        yield Ask(wanted, reply=wire.WriteReply, remedy=_REMEDY, last=True)
        return {"rows": _rows(parties), "blocks": len(blocks), "summed": len(shared)}

    def _sum_means(self, blocks: Blocks) -> Steps:
        """Sum the first pass; return what it says of each block."""
        rows = {block: _rows(holders) for block, holders in blocks.items()}
        columns = {block: self._columns(holders) for block, holders in blocks.items()}

        circles = {block: self._plan_circles(holders) for block, holders in blocks.items()}

        def ask(block: str) -> wire.RangesRequest:
            labels, size = self._labelled(blocks[block]), rows[block]
            found = circles[block]
            return wire.MeansRequest(labels=labels, rows=size, bound=self.bound, circles=found)

        lengths = {b: coarse_length(blocks[b][0].kinds, d, circles[b]) for b, d in columns.items()}
        totals = yield from self._sum(blocks, wire.MEANS_SUM, lengths, ask, wire.MeansReply)
        return {
            block: read_coarse(
                totals[block],
                holders[0].kinds,
                columns[block],
                self.bound,
                rows[block],
                len(holders),
            )
            for block, holders in blocks.items()
        }

    def _sum_deviations(self, blocks: Blocks, asked: Mapping[str, Coarse]) -> Steps:
        """Sum the second pass; make the statistics and the common encoders."""

        def ask(block: str) -> wire.RangesRequest:
            first = asked[block]
            own = {name: value for name, value in vars(first).items() if name != "centre"}
            labels = self._labelled(blocks[block])
            return wire.DeviationsRequest(labels=labels, **vars(first.centre), **own)

        lengths = {
            block: fine_length(holders[0].kinds, asked[block], self.bound, self._columns(holders))
            for block, holders in blocks.items()
        }
        totals = yield from self._sum(
            blocks, wire.DEVIATIONS_SUM, lengths, ask, wire.DeviationsReply
        )
        for block, holders in blocks.items():
            own = asked[block], self.bound, _rows(holders), len(holders)
            if not holders[0].kinds:
                self.statistics_[block] = read_second_pass(totals[block], own[0].centre, own[3])
                continue
            found, encoder = read_fine(
                totals[block], holders[0].kinds, *own, self.scaling, self.categories
            )
            if self._columns(holders):
                self.statistics_[block] = found
            if not encoder.outputs:
                raise ProtocolError(
                    f"every column of block {block!r} is constant",
                    remedy="add columns that vary",
                    code="FK-COLUMNS-CONSTANT",
                )
            self.encoders_[block] = encoder

    def _plan_circles(self, holders: Sequence[Any]) -> int:
        """Return on how many circles the place of most values is looked for, by half the share."""
        kinds, columns = holders[0].kinds, self._columns(holders)
        allowed = allowance(holders, labels=self._labelled(holders))
        if not allowed.planned or not numeric(kinds):
            return CIRCLES
        free = allowed.numbers / 2.0 - coarse_numbers(kinds, columns, _rows(holders), 0)
        return int(min(max(0.0, free / (2 * numeric(kinds))), CIRCLES))

    def _plan_bins(self, holders: Sequence[Any], first: Coarse) -> Coarse:
        """Return what the second sum is asked with: as many bins as the nodes' shares allow.

        A count of n rows is log2(n + 1) of the 64 bits of a number.
        """
        kinds, labels = holders[0].kinds, self._labelled(holders)
        allowed, columns = allowance(holders, labels=labels), self._columns(holders)
        if not allowed.planned or not numeric(kinds):
            return first
        weight = math.log2(_rows(holders) + 1) / 64
        circles = self._plan_circles(holders)
        taken = coarse_numbers(kinds, columns, _rows(holders), circles) + 2 * columns
        evenly = replace(first, splits=0)
        bins = fine_length(kinds, evenly, self.bound, columns) - 2 * columns
        spare = (allowed.numbers - taken) / weight - bins
        splits = int(max(0.0, min(first.splits, spare // numeric(kinds))))
        self.note_plan(f"{splits} bins of a column by its rows", allowed)
        return replace(first, splits=splits)

    def _sum(
        self,
        blocks: Blocks,
        name: str,
        lengths: Mapping[str, int],
        request: Callable[[str], wire.RangesRequest],
        reply: type[wire.RangesReply],
    ) -> Steps:
        """Sum so many numbers over the holders of each block; return block -> total."""
        shared = [block for block, holders in self.blocks_.items() if len(holders) > 1]
        terms = [
            SumSpec(
                name=name,
                length=lengths[block],
                encoding=ENCODING,
                cohort=shared.index(block),
                label=block,
            )
            for block in blocks
        ]
        answers = yield Ask(_of_each(blocks, request), reply=reply, sums=terms, remedy=_REMEDY)
        return answers.totals


def _by_block(parties: Any) -> dict[str, list[Any]]:
    """Return the parties of each block, by partition."""
    found: dict[str, list[Any]] = {}
    for party in sorted(parties, key=lambda p: p.partition):
        found.setdefault(party.block, []).append(party)
    return dict(sorted(found.items()))


def _of_each(
    blocks: Blocks, request: Callable[[str], wire.RangesRequest]
) -> dict[int, wire.RangesRequest]:
    """Return partition -> the request of its block."""
    requests = {block: request(block) for block in blocks}
    return {p.partition: requests[block] for block, holders in blocks.items() for p in holders}


def _rows(parties: Sequence[Any]) -> int:
    return sum(party.rows for party in parties)
