"""What Secure Gram releases: item counts, then an exact Gram matrix, by rules that hide rows.

Which nodes may be left in a sum is the method's own rule, see :meth:`GramRelease.too_few`: the
diagonal of the matrix counts the items once more, so the nodes that dropped out between counts and
matrix must be none or many, however many are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, CohortError, OptionError, ProtocolError, SumError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.matrix import packed_diagonal, packed_size, unpack
from fedkern_flwr.gram.plan import (
    combine,
    disjoint_cohorts,
    drawn_rounds,
    ring_of,
    shows_few,
    supported,
)
from fedkern_flwr.method import Ask, Round, Steps, Term
from fedkern_flwr.strategy import logger
from fedkern_flwr.wire import PhaseMessage

from .gram_options import MIN_SUPPORT, GramOptions

#: Below so many rows per item a matrix of counts has been taken apart: all 943 users of MovieLens
#: 100k at 0.7, a third of 12 at 1.25, none of 300 and more at 1.2. No ratio is proven to be safe.
SAFER_ROWS_PER_ITEM = 2
Request = wire.SumRequest | wire.RecommendRequest


class GramRelease(GramOptions):
    """Base class of methods that release a Gram matrix."""

    opens_once = True
    counts_replies = True

    def _reset(self) -> None:
        super()._reset()
        self.gram_: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.items_: NDArray[np.int32] = np.zeros(0, np.int32)
        self.counts_: NDArray[np.int64] = np.zeros(0, np.int64)
        self.survivors_: list[int] = []
        self.rows_, self.catalogue_, self.error_bound_ = 0, 0, 0.0
        self._members: list[list[int]] = []
        self._counted: list[list[int]] = []
        self._least_rows = 0.0  # in a matrix

    def cohorts(self) -> list[list[int]] | None:
        """Draw who sums with whom."""
        parties = list(self.parties_.values())
        partitions = [party.partition for party in parties]
        self.catalogue_ = parties[0].features
        if not self._members:
            self._members = (
                drawn_rounds(partitions, self.participation, self.num_rounds, self.run_seed)
                if self.merge == "max"
                else disjoint_cohorts(partitions, self.participation, self.cohorts_, self.run_seed)
            )
        if not set().union(*self._members) <= set(partitions):
            raise _other_nodes()
        self._counted = self._counted or [*self._members, *self.more_cohorts()]
        phases = 2 * (1 + self.counts_items) * max(1, len(self._members))
        self.planned = phases * max(map(len, self._members))
        return [*self._members, *self.more_cohorts()]

    def more_cohorts(self) -> list[list[int]]:
        """Return sets of nodes among which a method sums something else."""
        return []

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds of the sums: the option is that of matrices."""
        return [self.threshold if k < len(self._members) else None for k in range(cohorts)]

    # -- sums

    def sum_over(
        self,
        name: str,
        length: int,
        cohorts: Iterable[int],
        request: Callable[[int], Request | Mapping[int, Request]],
        reply: type[PhaseMessage],
        *,
        unfit: Callable[[int, Sequence[int]], str] = lambda cohort, who: "",
    ) -> Steps:
        """Sum vectors over cohorts at once; what too few have answered is repeated.

        A cohort is asked one request, to which its sum is bound, or each node one of its own.

        Returns
        -------
        dict
            Cohort -> (partitions in the sum, total).
        """
        assert self.sums is not None
        asked: dict[int, PhaseMessage] = {}
        terms = []
        for cohort in cohorts:
            own, bound = request(cohort), False
            if isinstance(own, PhaseMessage):
                members = self.sums.membership.cohorts[cohort].members
                own, bound = dict.fromkeys(members, own), True
            asked |= own
            one = next(iter(own.values()))
            terms.append(
                Term(
                    name=name,
                    length=length,
                    encoding=ring_of(one),
                    cohort=cohort,
                    self_masks=one.self_masks,
                    bound=bound,
                    unfit=partial(unfit, cohort),
                    label=str(cohort),
                )
            )
        found = yield Ask(asked, reply=reply, sums=terms, until="enough")
        return {int(c): (found.contributors[c], total) for c, total in found.totals.items()}

    def sum_counts(self) -> Steps:
        """Find the items that enough rows have."""
        self.items_ = np.arange(self.catalogue_, dtype=np.int32)
        self.counts_ = np.zeros(self.catalogue_, np.int64)
        for cohort in range(len(self._members)):
            ring_of(self._matrix_request(0, cohort))  # refused if it has no room, before any sum
        if not self.counts_items:
            return
        sums = yield from self.sum_over(
            wire.COUNTS_SUM,
            self.catalogue_,
            range(len(self._members)),
            lambda cohort: wire.CountsRequest(**self._public(cohort), merge=self.merge),
            wire.CountsReply,
        )
        self._counted[: len(sums)] = [who for who, _ in sums.values()]
        totals = [total for _, total in sums.values()]
        self.counts_ = np.sum(totals, axis=0)
        self.items_ = supported(totals, self.min_support)
        if self.rows_per_item:
            most = int(min(map(self._rows_of, self._counted)) / self.rows_per_item)
            best = np.argsort(-self.counts_[self.items_], kind="stable")[:most]
            self.items_ = np.sort(self.items_[best])
        if not len(self.items_):
            each = len(totals) > 1
            raise ProtocolError(
                f"no item is in {self.min_support} rows{' of every cohort' if each else ''}",
                remedy=f"lower min_support{', or use fewer cohorts' if each else ''}",
            )

    def check_recovery(self) -> None:
        """Warn of matrices from which rows can be computed; refuse them in a deployment.

        Raises
        ------
        OptionError
        """
        allowed = self.simulated if self.allow_recovery is None else self.allow_recovery
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

    def sum_matrices(self) -> Steps:
        """Sum K over the cohorts at once, or round by round with merge max."""
        length = packed_size(len(self.items_)) + self._sums_supports * len(self.items_)
        packed: NDArray[Any] | None = None
        everybody: set[int] = set()
        few = np.zeros(len(self.items_), bool)
        everyone = range(len(self._members))
        together = [everyone] if self.merge == "disjoint" else [[c] for c in everyone]
        for number, chosen in enumerate(together, start=1):
            sums = {}
            try:
                sums = yield from self.sum_over(
                    wire.GRAM_SUM,
                    length,
                    chosen,
                    partial(self._matrix_request, number),
                    wire.MatrixReply,
                    unfit=self.too_few,
                )
            except (CohortError, SumError) as error:
                if self.merge == "disjoint":
                    raise
                logger.warning("round %d is lost: %s", number, error)
            present: set[int] = set()
            for cohort, (who, total) in sums.items():
                present |= set(who) & set(self._counted[cohort])
                fresh, supports = np.split(total, [packed_size(len(self.items_))])
                if self.min_support > 1:  # nodes that dropped out may leave an item with too few
                    supports = supports if supports.size else packed_diagonal(fresh, len(few))
                    few |= (supports > 0) & (supports < self.min_support)
                packed = combine(packed, fresh, self.merge)
            everybody |= present
            self.survivors_, self.rows_ = sorted(everybody), self._rows_of(everybody)
            yield Round(number, {"clients": len(present), "rows": self._rows_of(present)})
            if packed is not None and sums:
                self.gram_ = unpack(packed, len(self.items_))
                yield from self.after_round()
        if packed is None:
            raise self.broken("no round could be opened", wire.MatrixRequest.phase)
        if few.any():
            logger.warning(
                "%d items are left out: fewer than %d rows had them when nodes dropped out",
                few.sum(),
                self.min_support,
            )
            self.gram_, self.items_ = self.gram_[np.ix_(~few, ~few)], self.items_[~few]

    def after_round(self) -> Steps:
        """Do what a method does when K has a new round; here nothing."""
        yield from ()

    def _matrix_request(self, number: int, cohort: int) -> wire.MatrixRequest:
        assert self.sums is not None
        return wire.MatrixRequest(
            **self._public(cohort),
            merge=self.merge,
            number=number,
            counted=self.sums.membership.cohorts[cohort].pack(self._counted[cohort]),
            supports=self._sums_supports,
            items=self.items_,
        )

    @property
    def _sums_supports(self) -> bool:
        """Whether supports are summed with the matrix; of zeros and ones they are its diagonal."""
        return self.min_support > 1 and self.bound != 1

    def too_few(self, cohort: int, who: Sequence[int]) -> str:
        """Say what is wrong with the nodes in a sum of matrices; empty if nothing is."""
        assert self.sums is not None
        counted = self._counted[cohort]
        summed = set(counted) & set(who)
        least = max(self.sums.membership.cohorts[cohort].threshold, self.min_cohort)
        if len(summed) < least:
            return f"{len(summed)} nodes with item counts are left, at least {least} must be"
        if self._rows_of(summed) < self._least_rows:
            return (
                f"{self._rows_of(summed)} rows are left for {len(self.items_)} items, at least "
                f"{self._least_rows:g} must be"
            )
        rows = {party.partition: party.rows for party in self.parties_.values()}
        hiding = max(self.min_support, MIN_SUPPORT)
        if self.counts_items and shows_few(counted, sorted(summed), rows, hiding):
            missing = len(set(counted) - summed)
            return (
                f"{missing} node{'s' if missing > 1 else ''} dropped out after the item counts, "
                "whose difference to the diagonal would show what they have"
            )
        return ""

    def sum_cross(self, largest: int) -> Steps:
        """Return the products of new items with those of K, and their squares."""
        present = [p for p in self.parties_.values() if p.partition in self.survivors_]
        if sum(p.rows for p in present) != self.rows_ or present[0].features != self.catalogue_:
            raise _other_nodes()
        sizes = sorted({party.test_rows for party in present})
        if len(sizes) > 1 or not sizes[0]:
            raise ProtocolError(
                f"the nodes have {' and '.join(map(str, sizes))} new items",
                remedy="give all nodes the same new items",
            )
        new, kept = sizes[0], len(self.items_)
        public = {**self._public(0), "rows": largest, "self_masks": False}
        request = wire.CrossRequest(**public, new_items=new, items=self.items_)
        sums = yield from self.sum_over(
            wire.CROSS_SUM,
            new * (kept + 1),
            [0],
            lambda cohort: request,
            wire.CrossReply,
        )
        total = sums[0][1] * 4.0**-self.fraction_bits
        return total[: new * kept].reshape(new, kept), total[new * kept :]

    def _rows_of(self, partitions: Iterable[int]) -> int:
        chosen = set(partitions)
        return sum(p.rows for p in self.parties_.values() if p.partition in chosen)

    def _public(self, cohort: int) -> dict[str, Any]:
        """Return the fields of every request for a sum of a cohort."""
        members = set(self._members[cohort])
        return {
            "encoding": self.encoding,
            "bound": self.bound,
            "fraction_bits": self.fraction_bits,
            "rows": max(p.rows for p in self.parties_.values() if p.partition in members),
            "parties": len(members),
            "self_masks": self.self_masks,
        }


def _other_nodes() -> CheckpointError:
    return CheckpointError(
        "the nodes are not those of the model",
        remedy="bring the nodes that the model was made with",
    )
