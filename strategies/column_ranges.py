"""Column ranges: a preparation run that sums the statistics of columns, block by block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedkern_flwr.column_ranges import (
    DEFAULT_BOUND,
    ENCODING,
    Centre,
    Floats,
    Statistics,
    read_first_pass,
    read_second_pass,
    summed_ranges,
)
from fedkern_flwr.errors import (
    CohortError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
)
from fedkern_flwr.strategy import Arrays, logger
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import ranges as wire
from fedkern_flwr.wire.describe import check_columns, check_partitions

from .whole_cohort import WholeCohortStrategy

Block = str


class ColumnRanges(WholeCohortStrategy):
    """Column ranges: nodes with the same columns get the ranges of all their rows to scale by.

    Nodes of a block hold the same columns of different rows. Count, mean and deviation of each
    column are summed securely over the holders of a block, in two passes
    (:mod:`fedkern_flwr.column_ranges`); each node writes mean - k to mean + k deviations to its own
    disk. A node that holds a block alone sends nothing of it and takes its least and greatest
    values. Four exchanges: describe, means, deviations, write; two where all blocks have one
    holder.

    Parameters
    ----------
    deviations : float (default: 4.0)
        k. Of any column at most 1 / k^2 of the values lie beyond the range, 6 in 100,000 of a
        normal one for k = 4.
    bound : float (default: 2**20)
        Public bound on the magnitude of all values; a node with a larger one refuses.
    labels : bool (default: False)
        Whether the labels are one more column of blocks whose holders all have labels.
    clip : bool (default: True)
        Whether the files tell their readers to clip values beyond the ranges.
    attempts : int (default: 5)
        An exchange that somebody failed to answer is repeated so often in all, with all nodes of
        its block.
    min_cohort : int (default: 2)
        Least number of holders of a block that is not held by one node alone.
    node_timeout : float (default: 60.0)
        Seconds to wait for the nodes at the start.

    Attributes
    ----------
    blocks_ : dict
        Name of each block -> partitions of its holders.
    statistics_ : dict
        Name of each block with several holders -> its :class:`Statistics`.
    ranges_ : dict
        Name of each of these -> ndarray, shape (2, d): the ranges. Labels are the last column.
    """

    method: ClassVar[str] = "ranges"
    title: ClassVar[str] = "Column ranges"
    fixed: ClassVar[frozenset[str]] = WholeCohortStrategy.fixed | {
        "allow_single",
        "checkpoint",
        "resume",
        "seed",
    }
    described = wire.RangesDescribeReply

    def __init__(
        self,
        *,
        deviations: float = 4.0,
        bound: float = DEFAULT_BOUND,
        labels: bool = False,
        clip: bool = True,
        attempts: int = 5,
        min_cohort: int = 2,
        node_timeout: float = 60.0,
    ) -> None:
        for name, value in {"deviations": deviations, "bound": bound}.items():
            if not 0.0 < value < np.inf:
                raise OptionError(f"{name} is {value}", remedy="use a positive number")
        self.deviations, self.bound = float(deviations), float(bound)
        self.labels, self.clip = labels, clip
        super().__init__(attempts=attempts, min_cohort=min_cohort, node_timeout=node_timeout)

    def _reset(self) -> None:
        super()._reset()
        self.blocks_: dict[Block, tuple[int, ...]] = {}
        self.statistics_: dict[Block, Statistics] = {}
        self.ranges_: dict[Block, Floats] = {}
        self._sums_privacy: dict[str, Any] = {}

    # -- what a method tells about itself

    def options(self) -> dict[str, Any]:
        """Return the options that determine the ranges."""
        names = ("deviations", "bound", "labels", "clip")
        return {**super().options(), **{name: getattr(self, name) for name in names}}

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the statistics and ranges of each block with several holders."""
        arrays: Arrays = {}
        for block, found in self.statistics_.items():
            low, high = self.ranges_[block]
            parts = {**vars(found), "low": low, "high": high}
            arrays |= {f"{block}/{name}": values for name, values in parts.items()}
        return arrays, {**self.options(), "blocks": {b: list(p) for b, p in self.blocks_.items()}}

    def matched(self) -> dict[str, Any]:
        """Return who holds which block."""
        found = {}
        for block, holders in self.blocks_.items():
            parties = [self.party_of(k) for k in holders]
            facts = {"holders": list(holders), "rows": sum(p.rows for p in parties)}
            found[block] = {**facts, "columns": parties[0].features + self._with_labels(block)}
        return {"blocks": found} if found else {}

    def privacy(self) -> dict[str, Any]:
        """Return what is seen by whom."""
        return {
            **self._sums_privacy,
            "server_sees": [
                "who holds which block, with how many rows and columns; digests of their names",
                "of blocks with several holders: counts, means and variances of the columns over "
                "all holders",
            ],
            "client_sees": [
                "of its own columns over all holders: counts, about the means, powers of two not "
                "below the deviations, and the ranges"
            ],
        }

    # -- set-up

    def check_parties(self, parties: Sequence[Any]) -> None:
        """Refuse partitions that clash, and holders of a block that do not fit together."""
        check_partitions(parties)
        for holders in _by_block(parties).values():
            check_columns(holders)
            first = holders[0]
            for party in holders:
                if self.labels and party.labelled != first.labelled:
                    raise ProtocolError(
                        f"it has {'' if party.labelled else 'no '}labels, unlike partition "
                        f"{first.partition} in the same block",
                        remedy="give all holders of a block labels or none, or blocks of their own",
                        party=f"partition {party.partition}",
                        phase="describe",
                    )

    def cohorts(self) -> list[list[int]] | None:
        """Return the holders of each block that several nodes hold."""
        blocks = _by_block(list(self.described_parties()))
        self.blocks_ = {b: tuple(p.partition for p in found) for b, found in blocks.items()}
        for block, holders in self._shared.items():
            if len(holders) == 2:
                logger.warning(
                    "block %r has two holders: each can compute the other's means and deviations "
                    "from those of both",
                    block,
                )
        return [list(holders) for holders in self._shared.values()]

    @property
    def _shared(self) -> dict[Block, tuple[int, ...]]:
        """Holders of the blocks that are not held by one node alone."""
        return {block: holders for block, holders in self.blocks_.items() if len(holders) > 1}

    def _with_labels(self, block: Block) -> bool:
        """Tell whether the labels are a column of a block."""
        return self.labels and bool(self.party_of(self.blocks_[block][0]).labelled)

    # -- Flower's interface

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Sum the statistics, let the nodes write their ranges.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        initial_arrays, num_rounds, train_config, evaluate_config, evaluate_fn
            Not used: there is nothing to train.

        Returns
        -------
        Result
            The arrays of :meth:`model`, in its order.

        Raises
        ------
        CohortError, ProtocolError, SumError, EngineError, OptionError
            The run cannot start or go on. Nodes that have written their files keep them.
        """
        self._reset()
        self.summary()
        self.gather(grid, secure=True)
        try:
            self._sum_statistics(grid, timeout)
            self._sums_privacy = self.whole_sums_privacy()
            self._write(grid, timeout)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            with contextlib.suppress(FedKernError):
                self.finish(grid, number=self.step + 1, timeout=timeout)
            raise
        rows = sum(party.rows for party in self.described_parties())
        self.metrics_ = {"rows": rows, "blocks": len(self.blocks_), "summed": len(self._shared)}
        return Result(arrays=ArrayRecord(list(self.model()[0].values())))

    def _sum_statistics(self, grid: Grid, timeout: float) -> None:
        blocks = {b: [self.party_of(k) for k in holders] for b, holders in self._shared.items()}
        rows = {block: sum(party.rows for party in found) for block, found in blocks.items()}
        width = {b: found[0].features + self._with_labels(b) for b, found in blocks.items()}

        def ask_means(block: Block) -> PhaseMessage:
            common = self._common(block)
            return wire.MeansRequest(rows=rows[block], bound=self.bound, **common)

        lengths = {block: 3 * d for block, d in width.items()}
        totals = self._sum(grid, wire.MEANS_SUM, lengths, ask_means, wire.MeansReply, timeout)
        centres: dict[Block, Centre] = {
            block: read_first_pass(total, self.bound, rows[block], len(blocks[block]))
            for block, total in totals.items()
        }

        def ask_deviations(block: Block) -> PhaseMessage:
            return wire.DeviationsRequest(**vars(centres[block]), **self._common(block))

        lengths = {block: 2 * d for block, d in width.items()}
        totals = self._sum(
            grid, wire.DEVIATIONS_SUM, lengths, ask_deviations, wire.DeviationsReply, timeout
        )
        for block, total in totals.items():
            found = read_second_pass(total, centres[block], len(blocks[block]))
            self.statistics_[block] = found
            self.ranges_[block] = summed_ranges(found, self.deviations)

    def _common(self, block: Block) -> dict[str, Any]:
        return {
            "session": self.session,
            "round": self.step,
            "labels": self._with_labels(block),
        }

    def _sum(
        self,
        grid: Grid,
        name: str,
        lengths: Mapping[Block, int],
        request: Callable[[Block], PhaseMessage],
        reply: type[Any],
        timeout: float,
    ) -> dict[Block, Floats]:
        """Sum a vector over the holders of each block; repeat those that lack somebody.

        Raises
        ------
        CohortError
        """
        number = {block: k for k, block in enumerate(self._shared)}
        totals: dict[Block, Floats] = {}
        for _ in range(self.attempts):
            missing = [block for block in lengths if block not in totals]
            if not missing:
                break
            assert self.sums is not None
            self.next_step()
            sums = {
                block: self.sums.order(
                    name, lengths[block], ENCODING, cohort=number[block], self_masks=False
                )
                for block in missing
            }
            requests = {k: request(block) for block in missing for k in self.blocks_[block]}
            self.ask(grid, requests, reply, timeout, sums.values())
            for block, running in sums.items():
                if self.whole(running):
                    totals[block] = self.total(running)
                else:
                    self.close(running)
        if len(totals) < len(lengths):
            raise self.gave_up(reply.phase)
        return totals

    def _write(self, grid: Grid, timeout: float) -> None:
        """Let all nodes write their files and forget the run, those again who did not answer.

        Raises
        ------
        CohortError
        """
        self.sums = None  # the request is the last and carries no sections
        waiting = {k: block for block, holders in self.blocks_.items() for k in holders}
        none = np.zeros(0)
        for _ in range(self.attempts):
            self.next_step()
            requests = {}
            for k, block in sorted(waiting.items()):
                low, high = self.ranges_.get(block, (none, none))
                requests[k] = wire.WriteRequest(
                    alone=block not in self.ranges_,
                    clip=self.clip,
                    low=low,
                    high=high,
                    **self._common(block),
                )
            for k in self.ask(grid, requests, wire.WriteReply, timeout):
                del waiting[k]
            if not waiting:
                return
        raise self.gave_up("ranges-write")

    def gave_up(self, phase: str) -> CohortError:
        """Return the error with which a run ends when a node does not answer."""
        remedy = (
            "mend it and start again, with more attempts if it answers at times; two runs that "
            "differ in their nodes show single ones"
        )
        return CohortError(super().gave_up(phase).problem, remedy=remedy, phase=phase)


def _by_block(parties: Sequence[Any]) -> dict[Block, list[Any]]:
    """Return the parties of each block, by partition."""
    found: dict[Block, list[Any]] = {}
    for party in sorted(parties, key=lambda p: p.partition):
        found.setdefault(party.block, []).append(party)
    return dict(sorted(found.items()))
