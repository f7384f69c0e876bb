"""Secure Gram: an exact Gram matrix of columns whose rows different nodes hold, and its kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedkern_flwr.dot_kernels import KERNELS, DotKernel, KernelName
from fedkern_flwr.errors import (
    CheckpointError,
    EngineError,
    FedKernError,
    OptionError,
)
from fedkern_flwr.gram import pack, unpack
from fedkern_flwr.gram_values import quantisation_error
from fedkern_flwr.online import check_choice
from fedkern_flwr.strategy import Arrays, at_least, logger

from .gram_release import SAFER_ROWS_PER_ITEM, GramRelease

_MAX_WARNING = (
    "merge max is the paper's: sums over ever new sets of nodes are released, whose differences "
    "show single ones; items of few users show their profiles; the kernel need not be positive "
    "semi-definite"
)


class SecureGram(GramRelease):
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
    **common
        Options of :class:`~fedkern_flwr.strategies.gram_release.GramRelease`.

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
    Exchanges: describe, counts (unless nothing is suppressed), matrix, a last one in which nodes
    erase their secrets; with drop_outs two more, in which counts and matrix are opened. Bytes
    from a node: kept (kept + 1) / 2 numbers of the smallest ring of 2, 4 or 8 bytes that cannot
    overflow. Memory of the server: that, once for each cohort, and K twice.

    The server learns K, hence how often items occur together. See ``docs/secure-gram.md`` for what
    can be computed from it.

    References
    ----------
    Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
    Data", ESANN 2021, section 2.
    """

    method: ClassVar[str] = "secure-gram"
    labels_of_row: ClassVar[int] = 0
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
        **common: Any,
    ) -> None:
        check_choice("kernel", kernel, KERNELS)
        given = {"degree": degree, "gamma": gamma, "coef0": coef0, "coefficients": coefficients}
        for name, value in given.items():
            if value is not None and kernel not in _KERNELS_WITH[name]:
                raise OptionError(f"{name} is not for kernel {kernel}", remedy="leave it out")
        self.kernel, self.gamma = kernel, gamma
        self.degree = 2 if degree is None else degree
        self.coef0 = 1.0 if coef0 is None else coef0
        self.coefficients = tuple(float(a) for a in coefficients or ())
        self._kernel(1)  # refuses what cannot be
        super().__init__(**common)
        binary = self.encoding == "counts" and self.bound == 1
        if kernel in ("conjunctive", "disjunctive") and not binary:
            raise OptionError(
                f"kernel {kernel} is for zeros and ones",
                remedy="use encoding counts with bound 1",
            )

    def _reset(self) -> None:
        super()._reset()
        self.error_bound_ = 0.0
        self._stage = ""  # what the run that is taken up had done

    # -- what a method tells about itself

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
        if self.counts_items:
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
        if meta["merge"] == "max":
            raise CheckpointError(
                "the model is a maximum of sums, new products would be sums",
                remedy="give a model of merge disjoint",
            )
        self._load(arrays, meta)
        self._members = self._counted = [list(self.survivors_)]
        try:
            self.gather(grid, secure=True)
            return self.sum_cross(grid, int(meta["largest"]), timeout)
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

    def _open(self, grid: Grid) -> None:
        """Begin a run, or take one up."""
        self.choose_masks(grid)
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
        phases = 2 * (1 + self.counts_items) * max(1, len(self._members))
        self.expect(phases * max(map(len, self._members)))

    def _tables(self) -> list[list[Any]]:
        """Return the sizes of the nodes' tables."""
        return [[p.partition, p.rows, p.features, p.columns] for p in self.parties_.values()]

    def _load(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.items_ = np.asarray(arrays["items"], np.int32)
        self.gram_ = unpack(np.asarray(arrays["gram"], np.int64), len(self.items_))
        self.survivors_, self.rows_ = list(meta["survivors"]), int(meta["rows"])
        self.catalogue_ = int(meta["catalogue"])

    def save_counts(self) -> None:
        """Write a checkpoint of the items kept."""
        self._save("counts")

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

    # -- one sum, repeated if too few answered

    def _release(self, grid: Grid, timeout: float) -> None:
        """Sum the counts, then the Gram matrix; or take them from a checkpoint."""
        if self._stage in ("", "counts"):
            if not self._stage:
                self.sum_counts(grid, timeout)
            self.check_recovery(grid)
            self.sum_matrices(grid, timeout)
            self._save("gram")
        if self.encoding == "fixed-point":
            self.error_bound_ = quantisation_error(self.rows_, self.bound, self.fraction_bits)
        self.metrics_ |= {
            "items": len(self.items_),
            "catalogue": self.catalogue_,
            "rows": self.rows_,
            "clients": len(self.survivors_),
        }


_UNITS = ("kernel", "encoding", "bound", "fraction_bits")
_OF_MODELS = (*_UNITS, "merge", "seed", "largest", "rows", "survivors", "catalogue")
_KERNELS_WITH: dict[str, tuple[str, ...]] = {
    "degree": ("poly", "conjunctive", "disjunctive"),
    "gamma": ("rbf", "poly"),
    "coef0": ("poly",),
    "coefficients": ("series",),
}
