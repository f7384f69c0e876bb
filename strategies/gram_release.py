"""What Secure Gram releases: item counts, then an exact Gram matrix, by rules that hide rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, CohortError, OptionError, ProtocolError, SumError
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.gram import packed_diagonal, packed_size, unpack
from fedkern_flwr.gram_plan import (
    MERGES,
    GramEncoding,
    Merge,
    check_values,
    combine,
    counts_encoding,
    disjoint_cohorts,
    drawn_rounds,
    matrix_encoding,
    shows_few,
    supported,
)
from fedkern_flwr.online import check_choice
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.strategy import at_least, logger, within
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import gram as wire

from .repeated_sums import RepeatedSumsStrategy

#: Below so many rows per item a matrix of counts has been taken apart: all 943 users of MovieLens
#: 100k at 0.7, a third of 12 at 1.25, none of 300 and more at 1.2. No ratio is proven to be safe.
SAFER_ROWS_PER_ITEM = 2
_MIN_SUPPORT = 5
_FRACTION_BITS = 20


class GramRelease(RepeatedSumsStrategy):
    """Base class of strategies that release a Gram matrix.

    Parameters
    ----------
    min_support : int, optional
        Items that fewer rows have are left out before K is summed, by default 5; 0 keeps all. Only
        for counts.
    cohorts : int (default: 1)
        Disjoint sets of nodes whose sums are released one by one and added up.
    merge : {"disjoint", "max"} (default: "disjoint")
        Each row is summed once; or the paper's entrywise maximum over rounds of random nodes.
    participation : float (default: 1.0)
        Share of the nodes that take part, of each round with merge max.
    encoding : {"counts", "fixed-point"} (default: "counts")
        Whole numbers from 0, or real features rounded to multiples of 2^-fraction_bits.
    bound : float (default: 1.0)
        Public bound on the absolute value of a cell.
    fraction_bits : int, optional
        Of fixed-point, by default 20.
    rows_per_item : float (default: 0.0)
        Keep only so many items, those that most rows have, that every released sum has so many rows
        for each. Only for counts.
    allow_recovery : bool, optional
        Whether to sum a matrix of fewer than two rows per item, from which rows can be computed. By
        default only in simulations.
    drop_outs : bool, optional
        Whether a sum goes on without nodes that drop out: it is then opened in an exchange of its
        own. Without, all nodes must answer; an exchange is repeated until they do. By default in
        simulations, with merge max, and where a threshold is given.
    **common
        Options of :class:`~fedkern_flwr.strategies.repeated_sums.RepeatedSumsStrategy`.
    """

    def __init__(
        self,
        *,
        min_support: int | None = None,
        cohorts: int = 1,
        merge: Merge = "disjoint",
        participation: float = 1.0,
        encoding: GramEncoding = "counts",
        bound: float = 1.0,
        fraction_bits: int | None = None,
        rows_per_item: float = 0.0,
        allow_recovery: bool | None = None,
        drop_outs: bool | None = None,
        **common: Any,
    ) -> None:
        check_choice("merge", merge, MERGES)
        at_least("cohorts", cohorts, 1)
        within("participation", participation, 0.0, 1.0, open_low=True)
        if fraction_bits is None:
            fraction_bits = _FRACTION_BITS if encoding == "fixed-point" else 0
        check_values(encoding, bound, fraction_bits)
        suppressing = {
            "cohorts": cohorts > 1,
            "min_support": min_support,
            "rows_per_item": rows_per_item,
        }
        for name, asked in suppressing.items():
            if merge == "max" and asked:
                raise OptionError(
                    f"{name} is for merge disjoint: the paper's rounds are drawn at random and "
                    "suppress nothing",
                    remedy="leave it out",
                )
        at_least("rows_per_item", rows_per_item, 0.0)
        for name, value in (("min_support", min_support), ("rows_per_item", rows_per_item)):
            if value and encoding != "counts":
                raise OptionError(
                    f"{name} is for encoding counts: real features have no support",
                    remedy="leave it out",
                )
        if min_support is None:
            min_support = _MIN_SUPPORT if merge == "disjoint" and encoding == "counts" else 0
        at_least("min_support", min_support, 0)
        self.min_support, self.cohorts_, self.merge = min_support, cohorts, merge
        self.participation, self.encoding = participation, encoding
        self.bound, self.fraction_bits = float(bound), fraction_bits
        self.rows_per_item, self.allow_recovery = rows_per_item, allow_recovery
        super().__init__(**common)
        self.drop_outs = drop_outs
        if drop_outs is False and (merge == "max" or self.threshold is not None):
            what = "merge max draws nodes" if merge == "max" else "a threshold is given"
            raise OptionError(f"{what}, and all must answer", remedy="leave out drop_outs")

    def _reset(self) -> None:
        super()._reset()
        self.gram_: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.items_: NDArray[np.int32] = np.zeros(0, np.int32)
        self.counts_: NDArray[np.int64] = np.zeros(0, np.int64)
        self.survivors_: list[int] = []
        self.rows_, self.catalogue_ = 0, 0
        self.run_seed, self.rounds = 0, 1
        self._members: list[list[int]] = []
        self._counted: list[list[int]] = []
        self._least_rows = 0.0  # in a matrix
        self.self_masks = True  # of sums: without them all must contribute

    def save_counts(self) -> None:
        """Called when the counts are known; here nothing happens."""

    def choose_masks(self, grid: Grid) -> None:
        """Decide whether sums go on without nodes that drop out."""
        chosen = self.drop_outs
        if chosen is None:
            chosen = is_simulated(grid) or self.merge == "max" or self.threshold is not None
        self.self_masks = chosen

    @property
    def counts_items(self) -> bool:
        """Whether item counts are summed first."""
        return self.min_support > 1 or self.rows_per_item > 0

    def cohorts(self) -> list[list[int]] | None:
        """Draw who sums with whom."""
        parties = list(self.parties_.values())
        self.catalogue_ = parties[0].features
        if not self._members:
            partitions = [party.partition for party in parties]
            draw = (
                drawn_rounds(partitions, self.participation, self.rounds, self.run_seed)
                if self.merge == "max"
                else disjoint_cohorts(partitions, self.participation, self.cohorts_, self.run_seed)
            )
            self._members = draw
        if not set().union(*self._members) <= {party.partition for party in parties}:
            raise CheckpointError(
                "the nodes are not those of the model",
                remedy="bring the nodes that the model was made with",
            )
        self.spent = {p.partition for p in parties if p.answered > self.step}
        return [*self._members, *self.more_cohorts()]

    def more_cohorts(self) -> list[list[int]]:
        """Return sets of nodes among which a method sums something else."""
        return []

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds of the sums: the option is that of matrices."""
        return [self.threshold if k < len(self._members) else None for k in range(cohorts)]

    def after_round(self, grid: Grid, timeout: float) -> None:
        """Called when K has a new round; here nothing happens."""

    def sum_counts(self, grid: Grid, timeout: float) -> None:
        """Find the items that enough rows have."""
        self.items_ = np.arange(self.catalogue_, dtype=np.int32)
        self.counts_ = np.zeros(self.catalogue_, np.int64)
        self._matrix_encodings()  # refuses what has no room, before anything is released
        if not self.counts_items:
            return

        def ask(cohort: int, there: set[int]) -> Iterable[tuple[PhaseMessage, set[int]]]:
            yield wire.CountsRequest(**self._public(cohort), merge=self.merge), there

        encodings = {
            c: counts_encoding(len(members), self._most_rows(members))
            for c, members in enumerate(self._members)
        }
        sums = self.sum_over(
            grid,
            wire.COUNTS_SUM,
            self.catalogue_,
            encodings,
            ask,
            wire.CountsReply,
            timeout,
            self_masks=self.self_masks,
        )
        self._counted[: len(encodings)] = [list(sums[c].survivors) for c in encodings]
        totals = [self.total(sums[c]) for c in encodings]
        self.counts_ = np.sum(totals, axis=0)
        self.items_ = supported(totals, self.min_support)
        if self.rows_per_item:
            most = int(min(map(self._rows_of, self._counted)) / self.rows_per_item)
            best = np.argsort(-self.counts_[self.items_], kind="stable")[:most]
            self.items_ = np.sort(self.items_[best])
        if not len(self.items_):
            raise ProtocolError(
                f"no item is in {self.min_support} rows"
                + (" of every cohort" if len(totals) > 1 else ""),
                remedy="lower min_support" + (", or use fewer cohorts" if len(totals) > 1 else ""),
            )
        self.save_counts()

    def check_recovery(self, grid: Grid) -> None:
        """Warn of matrices from which rows can be computed; refuse them in a deployment.

        Raises
        ------
        OptionError
        """
        allowed = is_simulated(grid) if self.allow_recovery is None else self.allow_recovery
        least = max(self.rows_per_item, 0 if allowed else SAFER_ROWS_PER_ITEM)
        self._least_rows = least * len(self.items_)
        rows = min(map(self._rows_of, self._counted[: len(self._members)]))
        if rows >= SAFER_ROWS_PER_ITEM * len(self.items_):
            return
        if self.encoding == "counts":
            few = "fewer than two rows per item: these rows can be computed from the matrix"
            remedy = f"use rows_per_item={SAFER_ROWS_PER_ITEM}, or sum more rows"
        else:
            few = (
                "fewer than two features per instance: the matrix shows the instances up to a "
                "rotation, and all of them to who knows as many as there are features"
            )
            remedy = "give it only to who may know that"
        if not allowed:
            raise OptionError(
                f"{rows} rows and {len(self.items_)} items are {few}",
                remedy=f"{remedy}; or accept it with allow_recovery",
            )
        logger.warning("%s; %s", few, remedy)  # without numbers, so that it is shown once

    def _matrix_encodings(self) -> dict[int, Encoding]:
        """Return the ring of each cohort's matrix.

        Raises
        ------
        OptionError
            None has room.
        """
        return {
            c: matrix_encoding(
                len(members), self._most_rows(members), self.bound, self.fraction_bits
            )
            for c, members in enumerate(self._members)
        }

    def sum_matrices(self, grid: Grid, timeout: float) -> None:
        """Sum K over the cohorts at once, or round by round with merge max."""
        length = packed_size(len(self.items_)) + self._sums_supports * len(self.items_)
        encodings = self._matrix_encodings()
        total: NDArray[Any] | None = None
        everybody: set[int] = set()
        few = np.zeros(len(self.items_), bool)
        together = [list(encodings)] if self.merge == "disjoint" else [[c] for c in encodings]
        for number, cohorts in enumerate(together, start=1):

            def ask(
                cohort: int, there: set[int], number: int = number
            ) -> Iterable[tuple[PhaseMessage, set[int]]]:
                assert self.sums is not None
                members = self.sums.membership.cohorts[cohort]
                yield (
                    wire.MatrixRequest(
                        **self._public(cohort),
                        merge=self.merge,
                        number=number,
                        counted=members.pack(self._counted[cohort]),
                        supports=self._sums_supports,
                        items=self.items_,
                    ),
                    there,
                )

            chosen = {c: encodings[c] for c in cohorts}
            try:
                sums = self.sum_over(
                    grid,
                    wire.GRAM_SUM,
                    length,
                    chosen,
                    ask,
                    wire.MatrixReply,
                    timeout,
                    self._too_few,
                    self_masks=self.self_masks,
                )
            except (CohortError, SumError) as error:
                if self.merge == "disjoint":
                    raise
                logger.warning("round %d is lost: %s", number, error)
                self._enter(number, everybody, [])
                continue
            present: list[int] = []
            for cohort in cohorts:
                present += sorted(set(sums[cohort].survivors) & set(self._counted[cohort]))
                fresh, supports = self._parted(self.total(sums[cohort]))
                few |= (supports > 0) & (supports < self.min_support)
                total = combine(total, fresh, self.merge)
            everybody |= set(present)
            self.gram_ = unpack(total, len(self.items_))  # type: ignore[arg-type]
            self._enter(number, everybody, present)
            self.after_round(grid, timeout)
        if total is None:
            raise self.broken("no round could be opened", wire.MatrixRequest.phase)
        if few.any():
            logger.warning(
                "%d items are left out: fewer than %d rows had them when nodes dropped out",
                few.sum(),
                self.min_support,
            )
            self.gram_, self.items_ = self.gram_[np.ix_(~few, ~few)], self.items_[~few]

    @property
    def _sums_supports(self) -> bool:
        """Whether supports are summed with the matrix; of zeros and ones they are its diagonal."""
        return self.min_support > 1 and self.bound != 1

    def _parted(self, total: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the packed matrix, and in how many of its rows each item is.

        Nodes that dropped out after the counts may have left an item with too few.
        """
        kept = len(self.items_)
        packed = total[: packed_size(kept)]
        if self._sums_supports:
            return packed, total[packed_size(kept) :]
        if self.min_support < 2:
            return packed, np.zeros(kept, np.int64)
        return packed, packed_diagonal(packed, kept)

    def _enter(self, number: int, everybody: set[int], present: Sequence[int]) -> None:
        self.survivors_, self.rows_ = sorted(everybody), self._rows_of(everybody)
        self.history_.append(
            {"round": number, "clients": len(present), "rows": self._rows_of(present)}
        )

    def _too_few(self, cohort: int, running: RunningSum) -> str:
        """Say what is wrong with the survivors of a sum of matrices; empty if nothing is."""
        counted = self._counted[cohort]
        summed = set(counted) & set(running.uploaded)
        least = max(running.cohort.threshold, self.min_cohort)
        if len(summed) < least:
            return f"{len(summed)} nodes with item counts are left, at least {least} must be"
        if self._rows_of(summed) < self._least_rows:
            return (
                f"{self._rows_of(summed)} rows are left for {len(self.items_)} items, at least "
                f"{self._least_rows:g} must be"
            )
        rows = {party.partition: party.rows for party in self.parties_.values()}
        hiding = max(self.min_support, _MIN_SUPPORT)
        if self.counts_items and shows_few(counted, sorted(summed), rows, hiding):
            missing = len(set(counted) - summed)
            return (
                f"{missing} node{'s' if missing > 1 else ''} dropped out after the item counts, "
                "whose difference to the diagonal would show what they have"
            )
        return ""

    def sum_cross(
        self, grid: Grid, largest: int, timeout: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        parties = {party.partition: party for party in self.parties_.values()}
        present = [parties[p] for p in self.survivors_ if p in parties]
        rows = sum(party.rows for party in present)
        if rows != self.rows_ or present[0].features != self.catalogue_:
            raise CheckpointError(
                "the nodes are not those of the model",
                remedy="bring the nodes that the model was made with",
            )
        sizes = sorted({party.test_rows for party in present})
        if len(sizes) > 1 or not sizes[0]:
            raise ProtocolError(
                f"the nodes have {' and '.join(map(str, sizes))} new items",
                remedy="give all nodes the same new items",
            )
        new, kept = sizes[0], len(self.items_)

        def ask(cohort: int, there: set[int]) -> Iterable[tuple[PhaseMessage, set[int]]]:
            public = {**self._public(cohort), "rows": largest, "self_masks": False}
            yield wire.CrossRequest(**public, new_items=new, items=self.items_), there

        encoding = matrix_encoding(len(present), largest, self.bound, self.fraction_bits)
        sums = self.sum_over(
            grid,
            wire.CROSS_SUM,
            new * (kept + 1),
            {0: encoding},
            ask,
            wire.CrossReply,
            timeout,
            self_masks=False,
        )
        total = self.total(sums[0]) * 4.0**-self.fraction_bits
        return total[: new * kept].reshape(new, kept), total[new * kept :]

    def _rows_of(self, partitions: Iterable[int]) -> int:
        chosen = set(partitions)
        return sum(p.rows for p in self.parties_.values() if p.partition in chosen)

    def _most_rows(self, members: Sequence[int]) -> int:
        chosen = set(members)
        return max(p.rows for p in self.parties_.values() if p.partition in chosen)

    def _public(self, cohort: int) -> dict[str, Any]:
        """Return the fields of every request for a sum of a cohort."""
        members = self._members[cohort]
        return {
            "session": self._session,
            "round": self.step,
            "encoding": self.encoding,
            "bound": self.bound,
            "fraction_bits": self.fraction_bits,
            "rows": self._most_rows(members),
            "parties": len(members),
            "self_masks": self.self_masks,
        }
