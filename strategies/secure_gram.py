"""Secure Gram: an exact Gram matrix of columns whose rows different nodes hold, and its kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr.dot_kernels import KERNELS, DotKernel, KernelName
from fedkern_flwr.errors import (
    CheckpointError,
    CohortError,
    EngineError,
    FedKernError,
    OptionError,
    ProtocolError,
    SumError,
)
from fedkern_flwr.exchange import Failure, read_reply, request_messages
from fedkern_flwr.flower_compat import is_simulated
from fedkern_flwr.gram import pack, packed_diagonal, packed_size, unpack
from fedkern_flwr.gram_plan import (
    MERGES,
    GramEncoding,
    Merge,
    bind,
    check_values,
    combine,
    counts_encoding,
    disjoint_cohorts,
    drawn_rounds,
    matrix_encoding,
    shows_few,
    supported,
)
from fedkern_flwr.gram_values import quantisation_error
from fedkern_flwr.online import check_choice
from fedkern_flwr.secure_sum import Encoding, RunningSum
from fedkern_flwr.wire import PhaseMessage
from fedkern_flwr.wire import gram as wire

from .base import Arrays, at_least, logger, within
from .summing import SummingStrategy

#: Below so many rows per item a matrix of counts has been taken apart: all 943 users of MovieLens
#: 100k at 0.7, a third of 12 at 1.25, none of 300 and more at 1.2. No ratio is proven to be safe.
SAFER_ROWS_PER_ITEM = 2
_MIN_SUPPORT = 5
_FRACTION_BITS = 20
_MAX_WARNING = (
    "merge max is the paper's: sums over ever new sets of nodes are released, whose differences "
    "show single ones; items of few users show their profiles; the kernel need not be positive "
    "semi-definite"
)

#: (cohort, who is asked) -> requests, each for some of them.
Ask = Callable[[int, set[int]], Iterable[tuple[PhaseMessage, set[int]]]]


class SecureGram(SummingStrategy):
    """Secure Gram: the exact Gram matrix K = sum_u x_u^T x_u of rows that nodes keep to themselves.

    A row is a user (a feature), a column an item (an instance). The server gets the sum and derives
    any kernel that is a function of dot products; the matrix is an input of scikit-learn's
    ``kernel="precomputed"``.

    Parameters
    ----------
    kernel : {"linear", "poly", "rbf", "cosine", "conjunctive", "disjunctive", "series"}
        The kernel that ``kernel_`` returns, by default linear; ``series`` is sum_d a_d K^d.
    degree : int, optional
        Of poly, conjunctive and disjunctive, by default 2.
    gamma : float, optional
        Of rbf and poly, by default 1 / number of rows summed.
    coef0 : float, optional
        Of poly, by default 1.
    coefficients : sequence of float, optional
        Of series: a_0, a_1, ..., none negative.
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
    attempts : int (default: 5)
        An exchange that too few nodes answered is repeated so often in all.
    **common
        Options of :class:`~fedkern_flwr.strategies.summing.SummingStrategy`.

    Attributes
    ----------
    gram_ : ndarray of int64, shape (kept, kept)
        K of the items kept, in units of 4^-fraction_bits.
    items_ : ndarray of int, shape (kept,)
        These items, ascending.
    counts_ : ndarray of int64, shape (items,)
        Rows that have each item; zeros where nothing is suppressed.
    survivors_ : list of int
        Partitions whose rows are in K.
    rows_ : int
        Number of these rows.
    error_bound_ : float
        Bound on the error of K that rounding makes, 0 for counts.

    Notes
    -----
    Exchanges: describe, counts and their opening (unless nothing is suppressed), matrix and its
    opening. Bytes from a node: kept (kept + 1) / 2 numbers of the smallest ring of 2, 4 or 8 bytes
    that cannot overflow. Memory of the server: that, once for each cohort, and K twice.

    The server learns K, hence how often items occur together. See ``docs/secure-gram.md`` for what
    can be computed from it.

    References
    ----------
    Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
    Data", ESANN 2021, section 2.
    """

    method: ClassVar[str] = "secure-gram"
    title: ClassVar[str] = "Secure Gram"
    fixed: ClassVar[frozenset[str]] = frozenset({"checkpoint_every", "max_missed", "min_clients"})

    def __init__(
        self,
        *,
        kernel: KernelName = "linear",
        degree: int | None = None,
        gamma: float | None = None,
        coef0: float | None = None,
        coefficients: Sequence[float] | None = None,
        min_support: int | None = None,
        cohorts: int = 1,
        merge: Merge = "disjoint",
        participation: float = 1.0,
        encoding: GramEncoding = "counts",
        bound: float = 1.0,
        fraction_bits: int | None = None,
        rows_per_item: float = 0.0,
        allow_recovery: bool | None = None,
        attempts: int = 5,
        **common: Any,
    ) -> None:
        check_choice("kernel", kernel, KERNELS)
        check_choice("merge", merge, MERGES)
        at_least("cohorts", cohorts, 1)
        at_least("attempts", attempts, 1)
        within("participation", participation, 0.0, 1.0, open_low=True)
        if fraction_bits is None:
            fraction_bits = _FRACTION_BITS if encoding == "fixed-point" else 0
        check_values(encoding, bound, fraction_bits)
        given = {"degree": degree, "gamma": gamma, "coef0": coef0, "coefficients": coefficients}
        for name, value in given.items():
            if value is not None and kernel not in _KERNELS_WITH[name]:
                raise OptionError(f"{name} is not for kernel {kernel}", remedy="leave it out")
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
        self.kernel, self.gamma = kernel, gamma
        self.degree = 2 if degree is None else degree
        self.coef0 = 1.0 if coef0 is None else coef0
        self.coefficients = tuple(float(a) for a in coefficients or ())
        self.min_support, self.cohorts_, self.merge = min_support, cohorts, merge
        self.participation, self.encoding = participation, encoding
        self.bound, self.fraction_bits, self.attempts = float(bound), fraction_bits, attempts
        self.rows_per_item, self.allow_recovery = rows_per_item, allow_recovery
        self._kernel(1)  # refuses what cannot be
        if self._needs_binary and (encoding != "counts" or bound != 1):
            raise OptionError(
                f"kernel {kernel} is for zeros and ones",
                remedy="use encoding counts with bound 1",
            )
        super().__init__(**common)

    def _reset(self) -> None:
        super()._reset()
        self.gram_: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.items_: NDArray[np.int32] = np.zeros(0, np.int32)
        self.counts_: NDArray[np.int64] = np.zeros(0, np.int64)
        self.survivors_: list[int] = []
        self.rows_, self.catalogue_, self.error_bound_ = 0, 0, 0.0
        self.run_seed, self.rounds, self.step = 0, 1, 0
        self._members: list[list[int]] = []
        self._counted: list[list[int]] = []
        self._spent: set[int] = set()
        self._least_rows = 0.0  # in a matrix
        self._stage = ""  # what the run that is taken up had done
        self._replies = [0, 1]  # that came, that are expected

    # -- what a method tells about itself

    @property
    def _counts_items(self) -> bool:
        """Whether item counts are summed first."""
        return self.min_support > 1 or self.rows_per_item > 0

    @property
    def _needs_binary(self) -> bool:
        return self.kernel in ("conjunctive", "disjunctive")

    def _kernel(self, rows: int) -> DotKernel:
        """Return the kernel for a Gram matrix of so many rows."""
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
        """The kernel, with the width of the last run."""
        return self._kernel(self.rows_)

    @property
    def linear_(self) -> NDArray[np.float64]:
        """K in the units of the data, shape (kept, kept)."""
        return np.asarray(self.gram_ * 4.0**-self.fraction_bits, np.float64)

    @property
    def kernel_(self) -> NDArray[np.float64]:
        """The kernel between the items kept, shape (kept, kept); computed at each call."""
        return self.dot_kernel_.matrix(self.linear_, self.rows_)

    def options(self) -> dict[str, Any]:
        """Return the options that determine the model."""
        names = (
            "kernel",
            "degree",
            "gamma",
            "coef0",
            "min_support",
            "rows_per_item",
            "merge",
            "participation",
            "encoding",
            "bound",
            "fraction_bits",
        )
        return {
            **super().options(),
            **{name: getattr(self, name) for name in names},
            "coefficients": list(self.coefficients),
            "cohorts": self.cohorts_,
            "rounds": self.rounds,
            "seed": self.run_seed,
        }

    def model(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the Gram matrix, packed, its items, and what belongs to them."""
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
        """Return what is seen by whom."""
        seen = [
            f"products of pairs of {len(self.items_)} items, summed over {self.rows_} rows: exact",
            "numbers of rows and items per node, digest of the names of the items",
            "which nodes contributed to which sum",
        ]
        if self._counts_items:
            seen.append(f"in how many rows each of {self.catalogue_} items is")
        if self.rows_ < SAFER_ROWS_PER_ITEM * len(self.items_):
            what = "the rows" if self.encoding == "counts" else "the instances up to a rotation"
            seen.append(f"hence {what}, by computation: there are too few rows for so many items")
        if len(self._members) > 1:
            seen.append("each of these sums for every cohort")
        if self.merge == "max":
            seen.append("sums over random sets of nodes, whose differences show single ones")
        return {
            **self.sums_privacy(),
            "server_sees": seen,
            "clients_see": ["which nodes contributed to which sum", "which items are kept"],
            "never_leaves_the_client": ["rows", "names of rows"],
        }

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
        """Sum the Gram matrix; the result is in ``gram_``, ``items_`` and ``kernel_``.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        initial_arrays : ArrayRecord, optional
            Not used.
        num_rounds : int (default: 1)
            Rounds with merge max.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.
        train_config : ConfigRecord, optional
            ``seed`` is the run's seed for strategies that have none of their own.
        evaluate_config, evaluate_fn : optional
            Not used.

        Returns
        -------
        Result
            No arrays; metrics per round.

        Raises
        ------
        CohortError, ProtocolError, TableError, SumError, EngineError, CheckpointError, OptionError
            The run cannot start or go on; nothing is released that is not exact. A checkpoint, if
            one was written, stays.
        """
        at_least("num_rounds", num_rounds, 1)
        if num_rounds > 1 and self.merge == "disjoint":
            raise OptionError(
                f"num_rounds is {num_rounds}, and merge disjoint sums every row once",
                remedy="leave it out, or use merge max",
            )
        result = Result()
        self._reset()
        self.rounds = num_rounds
        config = ConfigRecord() if train_config is None else train_config
        self.run_seed = self.seed if self.seed is not None else int(config.get("seed", 0))  # type: ignore[arg-type]
        at_least("seed", self.run_seed, 0)
        if self.merge == "max":
            logger.warning(_MAX_WARNING)
        self.summary()
        self._open(grid)
        try:
            self._release(grid, timeout)
            self.use(grid, timeout)
        except EngineError:
            raise  # nobody can be reached any more
        except FedKernError:
            with contextlib.suppress(FedKernError):  # whoever is left erases its secrets
                self.finish_sums(grid, number=self.step + 1, timeout=timeout)
            raise
        self.finish_sums(grid, number=self.step + 1, timeout=timeout)
        for row in self.history_:
            numbers = {k: v for k, v in row.items() if k != "round"}
            result.train_metrics_clientapp[row["round"]] = MetricRecord(numbers)
        return result

    def use(self, grid: Grid, timeout: float) -> None:
        """Do with K what a method does with it; here nothing."""

    def after_round(self, grid: Grid, timeout: float) -> None:
        """Called when K has a new round; here nothing happens."""

    def progress(self) -> dict[str, Any]:
        """Return what else a checkpoint holds, as JSON."""
        return {}

    def take_up(self, meta: Mapping[str, Any]) -> None:
        """Go on with what :meth:`progress` returned."""

    def cross(
        self, grid: Grid, model: tuple[Mapping[str, Any], Mapping[str, Any]], timeout: float = 3600
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the products of new items with those of a model, to predict the new ones.

        The nodes hold the new items as ``x_new``. All nodes whose rows are in the model must take
        part.

        Parameters
        ----------
        grid : Grid
            Flower's grid, of any engine.
        model : (dict, dict)
            What :meth:`model` returned, saved or not.
        timeout : float (default: 3600)
            Seconds to wait for the replies of one exchange.

        Returns
        -------
        products : ndarray, shape (new items, kept)
        squares : ndarray, shape (new items,)
            Both in the units of the data; ``dot_kernel_.block(products, squares,
            linear_.diagonal(), rows_)`` is the kernel.

        Raises
        ------
        CheckpointError
            The model is not one of this method, or of other nodes.
        CohortError, ProtocolError, TableError
        """
        self._reset()
        arrays, meta = model
        self.check_model(meta)
        for name in ("encoding", "bound", "fraction_bits"):
            if meta[name] != getattr(self, name):
                raise CheckpointError(
                    f"the model has {name} {meta[name]}, not {getattr(self, name)}",
                    remedy="make the strategy with of_model",
                )
        self._load(arrays, meta)
        self._members = self._counted = [list(self.survivors_)]
        try:
            self.gather(grid, secure=True)
            return self._cross(grid, int(meta["largest"]), timeout)
        finally:
            with contextlib.suppress(FedKernError):
                self.finish_sums(grid, number=self.step + 1, timeout=timeout)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> SecureGram:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
        cls.check_model(meta)
        chosen = {name: meta[name] for name in _UNITS}
        for name, kernels in _KERNELS_WITH.items():
            if meta["kernel"] in kernels:
                chosen[name] = meta[name]
        return cls(**chosen, **{"seed": meta["seed"], **more})

    @classmethod
    def check_model(cls, meta: Mapping[str, Any]) -> None:
        """Refuse what is no model of this method.

        Raises
        ------
        CheckpointError
        """
        if meta.get("method") != cls.method or not set(_OF_MODELS) <= set(meta):
            raise CheckpointError(
                f"the model is one of {meta.get('method') or 'another method'}",
                remedy=f"give a model of {cls.method}",
            )

    # -- set-up

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
        self._spent = {p.partition for p in parties if p.answered > self.step}
        return [*self._members, *self.more_cohorts()]

    def more_cohorts(self) -> list[list[int]]:
        """Return sets of nodes among which a method sums something else."""
        return []

    def thresholds(self, cohorts: int) -> list[int | None]:
        """Return the thresholds of the sums: the option is that of matrices."""
        return [self.threshold if k < len(self._members) else None for k in range(cohorts)]

    def _open(self, grid: Grid) -> None:
        """Begin a run, or take one up."""
        restored = self.restore()
        if restored is not None:
            arrays, meta = restored
            self._stage, self.metrics_ = meta["stage"], meta["metrics"]
            self.take_up(meta)
            self.step = int(meta["round"])
            self._members = meta["members"]
            self._counted = meta["counted"]
            self.items_, self.counts_ = arrays["items"], arrays["counts"]
            if meta["stage"] != "counts":
                self._load(arrays, meta)
        self.gather(grid, resume_round=self.step, secure=True)
        if restored is not None and restored[1]["tables"] != self._tables():
            raise CheckpointError(
                f"the tables of the nodes are not those of the run of {self.checkpoint}",
                remedy="bring back the tables of that run, or start anew",
            )
        if not self._counted:
            self._counted = [*self._members, *self.more_cohorts()]
        phases = 2 * (1 + self._counts_items) * max(1, len(self._members))
        self._replies = [0, max(1, phases * max(map(len, self._members)))]

    def _tables(self) -> list[list[Any]]:
        """Return the sizes of the nodes' tables."""
        return [[p.partition, p.rows, p.features, p.columns] for p in self.parties_.values()]

    def _load(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.items_ = np.asarray(arrays["items"], np.int32)
        self.gram_ = unpack(np.asarray(arrays["gram"], np.int64), len(self.items_))
        self.survivors_, self.rows_ = list(meta["survivors"]), int(meta["rows"])
        self.catalogue_ = int(meta["catalogue"])

    def _save(self, stage: str) -> None:
        if self.checkpoint is None:
            return
        arrays, meta = ({"items": self.items_}, {}) if stage == "counts" else self.model()
        more = {
            "stage": stage,
            "members": self._members,
            "counted": self._counted,
            "tables": self._tables(),
            "metrics": self.metrics_,
            **self.progress(),
        }
        self.write_checkpoint(self.step, {**arrays, "counts": self.counts_}, {**meta, **more})

    # -- the sums

    def _release(self, grid: Grid, timeout: float) -> None:
        """Sum the counts, then the Gram matrix; or take them from a checkpoint."""
        if self._stage in ("", "counts"):
            if not self._stage:
                self._count(grid, timeout)
            self._check_recovery(grid)
            self._sum_matrices(grid, timeout)
            self._save("gram")
        if self.encoding == "fixed-point":
            self.error_bound_ = quantisation_error(self.rows_, self.bound, self.fraction_bits)
        self.metrics_ |= {
            "items": len(self.items_),
            "catalogue": self.catalogue_,
            "rows": self.rows_,
            "clients": len(self.survivors_),
        }

    def _count(self, grid: Grid, timeout: float) -> None:
        """Find the items that enough rows have."""
        self.items_ = np.arange(self.catalogue_, dtype=np.int32)
        self.counts_ = np.zeros(self.catalogue_, np.int64)
        if not self._counts_items:
            return

        def ask(cohort: int, there: set[int]) -> Iterable[tuple[PhaseMessage, set[int]]]:
            yield wire.CountsRequest(**self._public(cohort), merge=self.merge), there

        encodings = {
            c: counts_encoding(len(members), self._most_rows(members))
            for c, members in enumerate(self._members)
        }
        sums = self._sum(
            grid, wire.COUNTS_SUM, self.catalogue_, encodings, ask, wire.CountsReply, timeout
        )
        self._counted[: len(encodings)] = [list(sums[c].survivors) for c in encodings]
        totals = [self._total(sums[c]) for c in encodings]
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
        self._save("counts")

    def _check_recovery(self, grid: Grid) -> None:
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

    def _rows_of(self, partitions: Iterable[int]) -> int:
        chosen = set(partitions)
        return sum(p.rows for p in self.parties_.values() if p.partition in chosen)

    def _sum_matrices(self, grid: Grid, timeout: float) -> None:
        """Sum K over the cohorts at once, or round by round with merge max."""
        length = packed_size(len(self.items_)) + self._sums_supports * len(self.items_)
        encodings = {
            c: matrix_encoding(
                len(members), self._most_rows(members), self.bound, self.fraction_bits
            )
            for c, members in enumerate(self._members)
        }
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
                sums = self._sum(
                    grid,
                    wire.GRAM_SUM,
                    length,
                    chosen,
                    ask,
                    wire.MatrixReply,
                    timeout,
                    self._too_few,
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
                fresh, supports = self._parted(self._total(sums[cohort]))
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
        rows = {party.partition: party.rows for party in self.parties_.values()}
        self.survivors_ = sorted(everybody)
        self.rows_ = sum(rows[p] for p in self.survivors_)
        self.history_.append(
            {"round": number, "clients": len(present), "rows": sum(rows[p] for p in present)}
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
        if self._counts_items and shows_few(counted, sorted(summed), rows, hiding):
            missing = len(set(counted) - summed)
            return (
                f"{missing} node{'s' if missing > 1 else ''} dropped out after the item counts, "
                "whose difference to the diagonal would show what they have"
            )
        return ""

    def _cross(
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
            public = {**self._public(cohort), "rows": largest}
            yield wire.CrossRequest(**public, new_items=new, items=self.items_), there

        encoding = matrix_encoding(len(present), largest, self.bound, self.fraction_bits)
        sums = self._sum(
            grid,
            wire.CROSS_SUM,
            new * (kept + 1),
            {0: encoding},
            ask,
            wire.CrossReply,
            timeout,
            self_masks=False,
        )
        total = self._total(sums[0]) * 4.0**-self.fraction_bits
        return total[: new * kept].reshape(new, kept), total[new * kept :]

    # -- one sum, repeated if too few answered

    def _sum(
        self,
        grid: Grid,
        name: str,
        length: int,
        encodings: Mapping[int, Encoding],
        ask: Ask,
        reply: type[Any],
        timeout: float,
        problem: Callable[[int, RunningSum], str] = lambda cohort, running: "",
        self_masks: bool = True,
        bound_to_request: bool = True,
    ) -> dict[int, RunningSum]:
        """Sum vectors over cohorts in one exchange and open the sums.

        What too few answered is repeated with new masks. Nothing of the first attempt has been
        opened then, nor will it be.

        Parameters
        ----------
        grid : Grid
            Flower's grid.
        name : str
            Name of the sums.
        length : int
            Numbers per node.
        encodings : mapping
            Cohort -> encoding.
        ask : callable
            (cohort, who is asked) -> requests, each for some of them.
        reply : type
            Class of the replies.
        timeout : float
            Seconds to wait for the replies of one exchange.
        problem : callable
            (cohort, sum) -> what is wrong with those who contributed.
        self_masks : bool (default: True)
            Without them all must contribute.
        bound_to_request : bool (default: True)
            Whether all must have been asked the same, see :func:`fedkern_flwr.gram_plan.bind`.

        Raises
        ------
        CohortError
            Too few answered every time.
        """
        assert self.sums is not None
        done: dict[int, RunningSum] = {}
        lacking, found = list(encodings), ""
        for attempt in range(self.attempts):
            self.step += 1
            running, messages = {}, []
            for cohort in lacking:
                members = set(self.sums.membership.cohorts[cohort].members)
                there = members - self._spent - set(self.left_out_)
                requests = list(ask(cohort, there))
                bound = bind(name, requests[0][0]) if bound_to_request else name
                one = self.sums.order(
                    bound, length, encodings[cohort], cohort=cohort, self_masks=self_masks
                )
                running[cohort] = one
                for request, who in requests:
                    messages += self._address(request, who, one)
            self.ask_nodes(grid, messages, reply, timeout)
            for cohort, one in running.items():
                found = self._refused(one) or problem(cohort, one)
                if found:
                    self.sums.close(one)
                    logger.warning("%s: %s (attempt %d)", name, found, attempt + 1)
                else:
                    done[cohort] = one
                    lacking.remove(cohort)
            if not lacking:
                break
        if lacking:
            raise self.broken(f"{found}, {self.attempts} times in a row", reply.phase)
        self.step += 1
        self.unmask(grid, list(done.values()), number=self.step, timeout=timeout)
        return done

    def _refused(self, running: RunningSum) -> str:
        try:
            running.check_survivors(self.min_cohort)
        except SumError as error:
            return f"{error.party}: {error.problem}" if error.party else error.problem
        return ""

    def _address(
        self, request: PhaseMessage, who: Iterable[int], running: RunningSum
    ) -> list[Message]:
        """Return a request to some nodes to contribute to a sum."""
        assert self.sums is not None
        node_of = {party.partition: node for node, party in self.parties_.items()}
        sections = {node_of[p]: self.sums.sections(p, [running]) for p in sorted(who)}
        return request_messages(request, sections, group_id=str(self.step), sections=sections)

    def ask_nodes(
        self, grid: Grid, messages: Sequence[Message], reply: type[Any], timeout: float
    ) -> dict[int, Any]:
        """Exchange messages; return the proper replies by partition."""
        outcome = self.run_phase(
            grid, messages, phase=reply.phase, timeout=timeout, number=self.step, required=0
        )
        found = {}
        for failure in outcome.failures.values():
            if failure.detail.startswith(_FINAL):  # the same at every attempt
                raise ProtocolError(failure.detail.partition(": ")[2], phase=reply.phase)
        for message in self.in_order(outcome):
            node = message.metadata.src_node_id
            try:
                answer = read_reply(reply, message, party=self.party(node))
                if answer.round != self.step:
                    raise ProtocolError(f"the reply belongs to step {answer.round}")
            except ProtocolError as error:
                self.reject(node, Failure("invalid reply", error.problem), self.step)
                continue
            self.accept(node)
            found[self.parties_[node].partition] = answer
        return found

    def _total(self, running: RunningSum) -> NDArray[Any]:
        assert self.sums is not None
        return self.sums.total(running)

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
        }

    def on_reply(self) -> Callable[[int, Message], None] | None:
        """Take the sections of secure sums out of replies as they arrive, and show progress."""
        take = super().on_reply()

        def seen(node: int, message: Message) -> None:
            if take is not None:
                take(node, message)
            self._replies[0] += 1
            if self.on_round is not None:
                self._replies[1] = max(self._replies)
                self.on_round(self._replies[0], self._replies[1], {})

        return seen


_FINAL = ("ProtocolError:", "OptionError:", "TableError:")  # another attempt is no use
_UNITS = ("kernel", "encoding", "bound", "fraction_bits")
_OF_MODELS = (*_UNITS, "seed", "largest", "rows", "survivors", "catalogue")
_KERNELS_WITH: dict[str, tuple[str, ...]] = {
    "degree": ("poly", "conjunctive", "disjunctive"),
    "gamma": ("rbf", "poly"),
    "coef0": ("poly",),
    "coefficients": ("series",),
}
