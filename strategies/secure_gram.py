"""Secure Gram: an exact Gram matrix of rows that different nodes hold, and its kernels.

Item counts are released before the matrix, under rules that hide rows. The diagonal of the matrix
counts the items again, so the nodes that drop out in between must be none or many, see
:meth:`SecureGram.too_few`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, CohortError, OptionError, ProtocolError
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.dot_kernels import DotKernel, KernelName
from fedkern_flwr.gram.matrix import pack, packed_diagonal, packed_size, quantisation_error, unpack
from fedkern_flwr.gram.messages import (
    GramEncoding,
    GramFacts,
    check_values,
    disjoint_cohorts,
    shows_few,
    supported,
)
from fedkern_flwr.method import Ask, Method, Round, Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.nodes import Arrays, logger
from fedkern_flwr.options import at_least
from fedkern_flwr.secure_sum.membership import Cohort
from fedkern_flwr.wire import DescribeReply, PhaseMessage

MIN_SUPPORT = 5
#: The same in deployments: row i of K is a sum over the users with item i.
DEPLOYED_SUPPORT = 20
#: Below so many rows per item a matrix of counts can be inverted. Recovered: all 943 users of
#: MovieLens 100k at 0.7, a third of 12 users at 1.25, none of 300 and more at 1.2. No ratio is
#: proven to be safe.
SAFER_ROWS_PER_ITEM = 2
_FRACTION_BITS = 20


class SecureGram(Method):
    """Secure Gram: the exact Gram matrix K = sum_u x_u^T x_u of rows that nodes keep to themselves.

    A row is a user (a feature), a column an item (an instance). The server gets the sum and derives
    any kernel that is a function of dot products, such as for scikit-learn's
    ``kernel="precomputed"``. With ``num_rounds`` K grows: each round sums half of the nodes that
    are not in K yet, the last one all of them. A round whose nodes do not all answer is summed
    after the others; with drop_outs it goes on without them.

    Parameters
    ----------
    cohorts : int (default: 1)
        Disjoint sets of nodes; their sums are released one by one and added up.
    coefficients : sequence of float, optional
        Series: coefficients a_0, a_1 and so on, none negative.

    Attributes
    ----------
    gram_ : ndarray of int64, shape (kept, kept)
        K of the items kept, in units of 4^-fraction_bits; during a run, of the rows so far.
    items_ : ndarray of int, shape (kept,)
        These items, ascending.
    counts_ : ndarray of int64, shape (items,)
        Rows with each item; zeros if nothing is suppressed.
    survivors_ : list of int
        Partitions with rows in K.
    rows_ : int
        Number of these rows.
    error_bound_ : float
        Bound on the rounding error of K, 0 for counts.

    Notes
    -----
    Exchanges: describe, counts (unless nothing is suppressed), matrix, and one in which nodes erase
    their secrets; with drop_outs two more to open counts and matrix. A node sends kept (kept + 1) /
    2 numbers of the smallest ring of 2, 4 or 8 bytes that cannot overflow. The server holds these
    once per cohort, and K twice.

    The server learns K, hence how often items occur together; ``docs/secure-gram.md`` says what can
    be computed from it.

    References
    ----------
    Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
    Data", ESANN 2021, section 2.
    """

    method, title = "secure-gram", "Secure Gram"
    no_budget = "releases a number for each pair of rows, where noise would leave nothing of one"
    left_whole = True
    opens_once = True
    counts_replies = True
    labels_of_row: ClassVar[int] = 0
    fixed: ClassVar[frozenset[str]] = frozenset({"checkpoint_every", "max_missed", "min_clients"})
    #: Options that must be those of a model.
    of_kernel: ClassVar[tuple[str, ...]] = ("kernel", "encoding", "bound", "fraction_bits")
    #: Further facts that a model must contain.
    of_models: ClassVar[frozenset[str]] = frozenset(
        {"seed", "largest", "rows", "survivors", "catalogue"}
    )

    min_support: int = option(
        None,
        "Counts: least rows of an item (default: 20; 5 in simulations).",
        least=0,
    )
    participation: float = option(1.0, "Share of the nodes in a sum.", above=0.0, most=1.0)
    encoding: GramEncoding = option(
        "counts",
        "Whole numbers (counts), or features rounded to 2^-fraction_bits.",
    )
    bound: float = option(1.0, "Public bound on the absolute value of a cell.")
    fraction_bits: int = option(None, "Fixed-point: bits of the fraction (default: 20).")
    rows_per_item: float = option(
        0.0,
        "Counts: keep only the items with so many rows each per sum.",
        least=0.0,
    )
    allow_recovery: bool | None = option(
        None,
        "Sum fewer than two rows per item (default: only in simulations).",
        of_model=False,
    )
    drop_outs: bool | None = option(
        None,
        "Continue without nodes that drop out, in another exchange (default: if needed).",
        of_model=False,
    )

    kernel: KernelName = option("linear", "Kernel of the matrix; series is the sum of a_d K^d.")
    degree: int = option(None, "Poly, conjunctive and disjunctive: degree (default: 2).")
    gamma: float | None = option(
        None, "RBF and poly: gamma (default: 1 / number of summed rows).", above=0.0
    )
    coef0: float = option(None, "Poly: constant (default: 1).")

    def __init__(
        self, *, cohorts: int = 1, coefficients: Sequence[float] | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        at_least("cohorts", cohorts, 1)
        self.cohorts_ = cohorts
        counts = self.encoding == "counts"
        self.fill_in(fraction_bits=0 if counts else _FRACTION_BITS)
        check_values(self.encoding, self.bound, self.fraction_bits)
        for name in ("min_support", "rows_per_item"):
            if getattr(self, name) and not counts:
                raise not_for(name, "real features, which have no support")
        self._by_place = counts and self.min_support is None
        self.fill_in(min_support=MIN_SUPPORT if counts else 0)
        if self.drop_outs is False and self.threshold is not None:
            raise OptionError(
                "a threshold is given, and all must answer",
                remedy="leave out drop_outs",
                code="FK-THRESHOLD-WHOLE",
            )
        self.coefficients = tuple(float(a) for a in coefficients or ())
        for name, kernels in _KERNELS_WITH.items():
            if getattr(self, name) not in (None, ()) and self.kernel not in kernels:
                raise not_for(name, f"kernel {self.kernel}")
        self.fill_in(degree=2, coef0=1.0)
        binary = self.encoding == "counts" and self.bound == 1
        if self._kernel(1).needs_binary and not binary:  # also checks the kernel's options
            raise OptionError(
                f"kernel {self.kernel} is for zeros and ones",
                remedy="use encoding counts with bound 1",
                code="FK-KERNEL-BINARY",
            )

    def _reset(self) -> None:
        super()._reset()
        self.gram_: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.items_: NDArray[np.int32] = np.zeros(0, np.int32)
        self.counts_: NDArray[np.int64] = np.zeros(0, np.int64)
        self.survivors_: list[int] = []
        self.rows_, self.catalogue_, self.error_bound_ = 0, 0, 0.0
        self._members: list[list[int]] = []
        self._counted: list[list[int]] = []
        self._least_rows = 0.0  # for a matrix

    # -- what a method reports

    def _kernel(self, rows: int) -> DotKernel:
        gamma = 1.0 / max(1, rows) if self.gamma is None else self.gamma
        return DotKernel(
            self.kernel,
            degree=self.degree,
            gamma=gamma,
            coef0=self.coef0,
            coefficients=self.coefficients,
        )

    @property
    def dot_kernel_(self) -> DotKernel:
        return self._kernel(self.rows_)

    @property
    def linear_(self) -> NDArray[np.float64]:
        """K in the units of the data, shape (kept, kept)."""
        return np.asarray(self.gram_ * 4.0**-self.fraction_bits, np.float64)

    @property
    def kernel_(self) -> NDArray[np.float64]:
        """The kernel between the items kept, shape (kept, kept); computed at each call."""
        return self.dot_kernel_.matrix(self.linear_, self.rows_)

    @property
    def self_masks(self) -> bool:
        if self.drop_outs is None:
            return self.threshold is not None or (self.simulated and self.num_rounds == 1)
        return self.drop_outs

    @property
    def counts_items(self) -> bool:
        return self.min_support > 1 or self.rows_per_item > 0

    def options(self) -> dict[str, Any]:
        return {
            **super().options(),
            "coefficients": list(self.coefficients),
            "cohorts": self.cohorts_,
            "rounds": self.num_rounds,
        }

    def learned(self) -> tuple[Arrays, dict[str, Any]]:
        arrays = {"gram": pack(self.gram_), "items": self.items_}
        meta = {
            **self.options(),
            "catalogue": self.catalogue_,
            "rows": self.rows_,
            "survivors": self.survivors_,
            "largest": max((p.rows for p in self.parties_.values()), default=0),
        }
        return arrays, meta

    def privacy(self) -> dict[str, Any]:
        seen = [
            f"products of pairs of {len(self.items_)} items, summed over {self.rows_} rows: exact",
            "numbers of rows and items per node, digest of the names of the items",
            "which nodes contributed to which sum",
        ]
        if self.counts_items:
            seen.append(f"in how many rows each of {self.catalogue_} items is")
        summed = [set(who) & set(self.survivors_) for who in self._counted[: len(self._members)]]
        rows = min([self.rows_, *(self._rows_of(who) for who in summed if who)])
        if rows < SAFER_ROWS_PER_ITEM * len(self.items_):  # in the smallest released sum
            what = "the rows" if self.encoding == "counts" else "the instances up to a rotation"
            seen.append(f"hence {what}, by computation: there are too few rows for so many items")
        if self.encoding == "counts":
            seen.append(
                "whether a known row, or one more item of it, is in the sum; no ratio of "
                "rows to items hides that"
            )
        if len(self._members) > 1:
            seen.append("each of these sums for every cohort")
        return {
            **self.sums_privacy(),
            "server_sees": seen,
            "clients_see": ["which nodes contributed to which sum", "which items are kept"],
            "never_leaves_the_client": ["rows", "names of rows"],
        }

    # -- the run

    def begin(self, config: ConfigRecord | None = None) -> None:
        super().begin(config)
        at_least("seed", self.run_seed, 0)

    def takes_sums(self, grid: Grid) -> bool:
        """Take secure sums; set the support of items, which is larger in deployments."""
        if self._by_place:
            self.min_support = MIN_SUPPORT if is_simulated(grid) else DEPLOYED_SUPPORT
        return super().takes_sums(grid)

    def cohorts(self) -> list[list[int]] | None:
        """Draw the nodes that sum.

        Raises
        ------
        OptionError
            Both cohorts and rounds are given, or there are too few nodes.
        """
        parties = list(self.parties_.values())
        partitions = [party.partition for party in parties]
        self.catalogue_ = parties[0].features
        rounds = self.num_rounds
        if rounds > 1 and self.cohorts_ > 1:
            raise OptionError(
                f"{self.cohorts_} cohorts are summed at once, and {rounds} rounds one by one",
                remedy="leave out cohorts or num_rounds",
                code="FK-OPTION-BOTH",
            )
        if not self._members:
            number = max(rounds, self.cohorts_)
            drawn = partitions, self.participation, number, self.run_seed
            self._members = disjoint_cohorts(*drawn, halves=rounds > 1)
        if not set().union(*self._members) <= set(partitions):
            raise _other_nodes()
        self._counted = self._counted or [*self._members, *self.more_cohorts()]
        phases = 2 * (1 + self.counts_items) * max(1, len(self._members))
        self.planned = phases * max(map(len, self._members))
        return [*self._members, *self.more_cohorts()]

    def more_cohorts(self) -> list[list[int]]:
        """Return further sets of nodes that sum something else."""
        return []

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds of the sums; the option is for matrices."""
        return [self.threshold if k < len(self._members) else None for k in range(cohorts)]

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Sum the counts, then the Gram matrix, and use it; or resume from a checkpoint."""
        known = self.saved_meta_ or {"stage": ""}
        if known["stage"] and known["tables"] != self._tables:
            raise CheckpointError(
                f"the tables of the nodes are not those of the run of {self.checkpoint}",
                remedy="bring back the tables of that run, or start anew",
                code="FK-CHECKPOINT-PARTIES",
            )
        if known["stage"]:
            self._counted = known["counted"]
            self.items_, self.counts_ = self.saved_["items"], self.saved_["counts"]
        if known["stage"] not in ("", "counts"):
            self._load(self.saved_, known)
        if known["stage"] in ("", "counts", "round"):
            if not known["stage"]:
                yield from self.sum_counts()
                yield from self.save("counts")
            self.check_recovery()
            yield from self.sum_matrices()
            yield from self.save("gram")
        if self.encoding == "fixed-point":
            self.error_bound_ = quantisation_error(self.rows_, self.bound, self.fraction_bits)
        metrics = {
            "items": len(self.items_),
            "catalogue": self.catalogue_,
            "rows": self.rows_,
            "clients": len(self.survivors_),
        }
        return {**metrics, **(yield from self.use())}

    def use(self) -> Steps:
        yield from ()
        return {}

    def save(self, stage: str, **more: Any) -> Steps:
        step = self.state(stage, **more)
        if step is not None:
            yield step

    def state(self, stage: str, **more: Any) -> Save | None:
        if self.checkpoint is None or (stage == "counts" and not self.counts_items):
            return None
        arrays, meta = ({"items": self.items_}, {}) if stage == "counts" else self.learned()
        known = {"stage": stage, "counted": self._counted, "tables": self._tables}
        return Save({**arrays, "counts": self.counts_}, {**meta, **known, **more})

    @property
    def _tables(self) -> list[list[Any]]:
        return [[p.partition, p.rows, p.features, p.columns] for p in self.parties_.values()]

    def _load(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.items_ = np.asarray(arrays["items"], np.int32)
        self.gram_ = unpack(np.asarray(arrays["gram"], np.int64), len(self.items_))
        self.survivors_, self.rows_ = list(meta["survivors"]), int(meta["rows"])
        self.catalogue_ = int(meta["catalogue"])

    # -- sums

    def sum_over(
        self,
        requests: Mapping[int, wire.GramRequest],
        reply: type[PhaseMessage],
        *,
        unfit: Callable[[int, Sequence[int]], str] = lambda cohort, who: "",
    ) -> Steps:
        """Sum vectors over cohorts at once; repeat those with too few answers.

        ``requests`` are cohort -> the request to all of its members. Return cohort -> (partitions
        in the sum, total).
        """
        asked: dict[int, PhaseMessage] = {}
        sums = []
        for cohort, request in requests.items():
            asked |= dict.fromkeys(self._cohort(cohort).members, request)
            own: dict[str, Any] = {"cohort": cohort, "label": str(cohort)}
            own["unfit"] = partial(unfit, cohort)
            sums += [replace(spec, **own) for spec in request.sum_specs(self.facts(cohort))]
        found = yield Ask(asked, reply=reply, sums=sums, until="enough")
        return {int(c): (found.contributors[c], total) for c, total in found.totals.items()}

    def facts(self, cohort: int) -> GramFacts:
        """Return a cohort's public facts, which its nodes compare with the signed ones."""
        members = self._cohort(cohort).members
        rows = (p.rows for p in self.parties_.values() if p.partition in members)
        return GramFacts(len(members), max(rows), self.catalogue_)

    def _cohort(self, number: int) -> Cohort:
        assert self.sums is not None
        return self.sums.membership.cohorts[number]

    def sum_counts(self) -> Steps:
        self.items_ = np.arange(self.catalogue_, dtype=np.int32)
        self.counts_ = np.zeros(self.catalogue_, np.int64)
        for cohort in range(len(self._members)):
            self._matrix_request(cohort).sum_specs(
                self.facts(cohort)
            )  # checks that a ring is large enough, before anything is summed
        if not self.counts_items:
            return
        cohorts = range(len(self._members))
        requests = {cohort: wire.CountsRequest(**self._public(cohort)) for cohort in cohorts}
        sums = yield from self.sum_over(requests, wire.CountsReply)
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
                code="FK-ITEMS-SUPPORT",
            )

    def check_recovery(self) -> None:
        """Warn of matrices from which rows can be computed; in a deployment raise OptionError."""
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
                code="FK-GRAM-RECOVERY",
            )
        logger.warning("%s; %s", few, remedy)  # without numbers, so that the warning appears once

    def sum_matrices(self) -> Steps:
        """Sum K over the cohorts at once, or round by round, also in a resumed run.

        A cohort that does not answer in its round is summed later: nothing of it has been opened.

        Raises
        ------
        CohortError
            None of the remaining cohorts answers.
        """
        size = packed_size(len(self.items_))
        few = np.zeros(len(self.items_), bool)
        known = self.saved_meta_ if self.saved_meta_.get("stage") == "round" else {}
        done = list(known.get("done", []))
        few[known.get("few", [])] = True
        packed: NDArray[Any] | None = pack(self.gram_) if done else None
        everybody = set(self.survivors_)
        left = [[c] for c in range(len(self._members)) if c not in done]
        if self.num_rounds == 1:
            left = [list(range(len(self._members)))]
        late = 0
        while left:
            chosen = left.pop(0)
            try:
                requests = {cohort: self._matrix_request(cohort) for cohort in chosen}
                sums = yield from self.sum_over(requests, wire.MatrixReply, unfit=self.too_few)
            except CohortError as error:
                late += 1
                if late > len(left):
                    raise
                logger.warning("a round is put off: %s", error)
                # a party that misses a round may take part in the next
                self.nodes.forgive()
                left.append(chosen)
                continue
            late, present = 0, set[int]()
            for cohort, (who, total) in sums.items():
                present |= set(who) & set(self._counted[cohort])
                fresh, supports = np.split(total, [size])
                if self.min_support > 1:  # after dropouts an item may have too few rows
                    supports = supports if supports.size else packed_diagonal(fresh, len(few))
                    few |= (supports > 0) & (supports < self.min_support)
                packed = fresh if packed is None else np.add(packed, fresh, out=packed)
            everybody |= present
            done += chosen
            self.survivors_, self.rows_ = sorted(everybody), self._rows_of(everybody)
            assert packed is not None
            self.gram_ = unpack(packed, len(self.items_))
            number = len(done) if self.num_rounds > 1 else 1
            row = {"clients": len(present), "rows": self._rows_of(present)}
            more = {"done": [*done], "few": np.flatnonzero(few).tolist()}
            yield Round(number, row, save=self.state("round", **more) if left else None)
        if few.any():
            logger.warning(
                "%d items are left out: fewer than %d rows had them when nodes dropped out",
                few.sum(),
                self.min_support,
            )
            self.gram_, self.items_ = self.gram_[np.ix_(~few, ~few)], self.items_[~few]

    def _matrix_request(self, cohort: int) -> wire.MatrixRequest:
        return wire.MatrixRequest(
            **self._public(cohort),
            counted=self._cohort(cohort).pack(self._counted[cohort]),
            supports=self.min_support > 1 and self.bound != 1,  # for 0 and 1: the diagonal
            items=self.items_,
        )

    def too_few(self, cohort: int, who: Sequence[int]) -> str:
        """Return what is wrong with the nodes in a sum of matrices; empty if nothing is."""
        counted = self._counted[cohort]
        summed = set(counted) & set(who)
        least = max(self._cohort(cohort).threshold, self.min_cohort)
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

    def sum_cross(self, catalogue: int) -> Steps:
        """Return the products of new items with those of K, and their squares."""
        present = [p for p in self.parties_.values() if p.partition in self.survivors_]
        if sum(p.rows for p in present) != self.rows_ or present[0].features != catalogue:
            raise _other_nodes()
        sizes = sorted({party.test_rows for party in present})
        if len(sizes) > 1 or not sizes[0]:
            raise ProtocolError(
                f"the nodes have {' and '.join(map(str, sizes))} new items",
                remedy="give all nodes the same new items",
                code="FK-ITEMS-NEW",
            )
        new, kept = sizes[0], len(self.items_)
        public = {**self._public(0), "self_masks": False}
        request = wire.CrossRequest(**public, new_items=new, items=self.items_)
        sums = yield from self.sum_over({0: request}, wire.CrossReply)
        total = sums[0][1] * 4.0**-self.fraction_bits
        return total[: new * kept].reshape(new, kept), total[new * kept :]

    def _rows_of(self, partitions: Iterable[int]) -> int:
        chosen = set(partitions)
        return sum(p.rows for p in self.parties_.values() if p.partition in chosen)

    def _public(self, cohort: int) -> dict[str, Any]:
        facts = self.facts(cohort)
        return {
            "encoding": self.encoding,
            "bound": self.bound,
            "fraction_bits": self.fraction_bits,
            "rows": facts.rows,
            "parties": facts.parties,
            "self_masks": self.self_masks,
        }

    def cross(
        self, grid: Grid, model: tuple[Mapping[str, Any], Mapping[str, Any]], timeout: float = 3600
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the products of new items with those of a model, to predict the new ones.

        The nodes hold the new items as ``x_new``; all nodes in the model must take part. ``model``
        is what :meth:`model` returned; ``timeout`` is in seconds per exchange.

        Returns
        -------
        products : ndarray, shape (new items, kept)
        squares : ndarray, shape (new items,)
            Both in the units of the data; ``dot_kernel_.block(products, squares,
            linear_.diagonal(), rows_)`` is the kernel.

        Raises
        ------
        CheckpointError
            The model has another method or other nodes.
        CohortError, ProtocolError, TableError
            See :meth:`start`.
        """
        arrays, meta = model
        self.check_same(meta, ("encoding", "bound", "fraction_bits"))
        self.begin()
        self._load(arrays, meta)
        self._members = self._counted = [list(self.survivors_)]
        found: list[Any] = []

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            found.extend((yield from self.sum_cross(int(meta["catalogue"]))))
            return {}

        self.conduct(grid, rounds, timeout=timeout)
        products, squares = found
        return products, squares

    def check_same(self, meta: Mapping[str, Any], names: Sequence[str]) -> None:
        """Raise CheckpointError for a model of another method or with other options."""
        check_model(self.method, {}, meta, {}, (*self.of_models, *self.of_kernel))
        check_made_with(type(self), {name: getattr(self, name) for name in names}, meta)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        """Return a strategy with the options of a saved model of this method (CheckpointError)."""
        check_model(cls.method, {}, meta, {}, (*cls.of_models, *cls.of_kernel))
        chosen = {name: meta[name] for name in cls.of_kernel}
        for name, kernels in _KERNELS_WITH.items():
            if meta["kernel"] in kernels:
                chosen[name] = meta[name]
        return cls(**chosen, **{"seed": meta["seed"], **more})


_KERNELS_WITH: dict[str, tuple[str, ...]] = {
    "degree": ("poly", "conjunctive", "disjunctive"),
    "gamma": ("rbf", "poly"),
    "coef0": ("poly",),
    "coefficients": ("series",),
}


def not_for(name: str, what: str) -> OptionError:
    return OptionError(
        f"{name} is not for {what}", remedy="leave it out", code="FK-OPTION-CONFLICT"
    )


def _other_nodes() -> CheckpointError:
    return CheckpointError(
        "the nodes are not those of the model",
        remedy="bring the nodes that the model was made with",
        code="FK-MODEL-PARTIES",
    )
