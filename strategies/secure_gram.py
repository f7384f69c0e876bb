"""Secure Gram: an exact Gram matrix of columns whose rows different nodes hold, and its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedkern_flwr.errors import CheckpointError, OptionError
from fedkern_flwr.gram.dot_kernels import DotKernel, KernelName
from fedkern_flwr.gram.matrix import pack, unpack
from fedkern_flwr.gram.values import quantisation_error
from fedkern_flwr.method import Rounds, Save, Steps, option
from fedkern_flwr.model_file import check_made_with, check_model
from fedkern_flwr.options import at_least
from fedkern_flwr.strategy import Arrays, logger
from fedkern_flwr.wire import DescribeReply

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
    ``kernel="precomputed"``. ``num_rounds`` are the rounds of merge max.

    Parameters
    ----------
    coefficients : sequence of float, optional
        Of series: a_0, a_1, ..., none negative.

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

    method, title = "secure-gram", "Secure Gram"
    no_budget = "releases a number for each pair of rows, where noise would leave nothing of one"
    left_whole = True
    labels_of_row: ClassVar[int] = 0
    fixed: ClassVar[frozenset[str]] = frozenset({"checkpoint_every", "max_missed", "min_clients"})
    #: Options that a model must be used with.
    of_kernel: ClassVar[tuple[str, ...]] = ("kernel", "encoding", "bound", "fraction_bits")
    #: What else a model must say of itself.
    of_models: ClassVar[frozenset[str]] = frozenset(
        {"merge", "seed", "largest", "rows", "survivors", "catalogue"}
    )

    kernel: KernelName = option(
        "linear", "The kernel that ``kernel_`` returns; ``series`` is sum_d a_d K^d."
    )
    degree: int = option(None, "Of poly, conjunctive and disjunctive, by default 2.")
    gamma: float | None = option(
        None, "Of rbf and poly, by default 1 / number of rows summed.", above=0.0
    )
    coef0: float = option(None, "Of poly, by default 1.")

    def __init__(self, *, coefficients: Sequence[float] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.coefficients = tuple(float(a) for a in coefficients or ())
        for name, kernels in _KERNELS_WITH.items():
            if getattr(self, name) not in (None, ()) and self.kernel not in kernels:
                raise OptionError(f"{name} is not for kernel {self.kernel}", remedy="leave it out")
        self.fill_in(degree=2, coef0=1.0)
        binary = self.encoding == "counts" and self.bound == 1
        if self._kernel(1).needs_binary and not binary:  # makes it: refuses what cannot be
            raise OptionError(
                f"kernel {self.kernel} is for zeros and ones",
                remedy="use encoding counts with bound 1",
            )

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
        return {
            **super().options(),
            "coefficients": list(self.coefficients),
            "cohorts": self.cohorts_,
            "rounds": self.num_rounds,
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

    # -- the run

    def begin(self, config: ConfigRecord | None = None) -> None:
        """Forget the last run; take the seed of the next."""
        super().begin(config)
        at_least("seed", self.run_seed, 0)

    def summary(self) -> None:
        """Log the configuration, and what the paper's scheme gives away.

        Raises
        ------
        OptionError
            Several rounds of a sum over every row once.
        """
        if self.num_rounds > 1 and self.merge == "disjoint":
            raise OptionError(
                f"num_rounds is {self.num_rounds}, and merge disjoint sums every row once",
                remedy="leave it out, or use merge max",
            )
        if self.merge == "max":
            logger.warning(_MAX_WARNING)
        super().summary()

    def rounds(self, parties: Sequence[DescribeReply]) -> Rounds:
        """Sum the counts, then the Gram matrix, and use it; or go on from a checkpoint."""
        known = self.saved_meta_ or {"stage": ""}
        if known["stage"] and known["tables"] != self._tables:
            raise CheckpointError(
                f"the tables of the nodes are not those of the run of {self.checkpoint}",
                remedy="bring back the tables of that run, or start anew",
            )
        if known["stage"]:
            self._counted = known["counted"]
            self.items_, self.counts_ = self.saved_["items"], self.saved_["counts"]
        if known["stage"] not in ("", "counts"):
            self._load(self.saved_, known)
        else:
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
        """Do with K what a method does with it, return metrics; here nothing."""
        yield from ()
        return {}

    def save(self, stage: str, **more: Any) -> Steps:
        """Keep what a run is resumed from: the items that are kept, or the model."""
        if self.checkpoint is None or (stage == "counts" and not self.counts_items):
            return
        arrays, meta = ({"items": self.items_}, {}) if stage == "counts" else self.model()
        known = {"stage": stage, "counted": self._counted, "tables": self._tables}
        yield Save({**arrays, "counts": self.counts_}, {**meta, **known, **more})

    @property
    def _tables(self) -> list[list[Any]]:
        """Sizes of the nodes' tables."""
        return [[p.partition, p.rows, p.features, p.columns] for p in self.parties_.values()]

    def _load(self, arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.items_ = np.asarray(arrays["items"], np.int32)
        self.gram_ = unpack(np.asarray(arrays["gram"], np.int64), len(self.items_))
        self.survivors_, self.rows_ = list(meta["survivors"]), int(meta["rows"])
        self.catalogue_ = int(meta["catalogue"])

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
        arrays, meta = model
        self.check_same(meta, ("encoding", "bound", "fraction_bits"))
        if meta["merge"] == "max":
            raise CheckpointError(
                "the model is a maximum of sums, new products would be sums",
                remedy="give a model of merge disjoint",
            )
        self.begin()
        self._load(arrays, meta)
        self._members = self._counted = [list(self.survivors_)]
        found: list[Any] = []

        def rounds(parties: Sequence[DescribeReply]) -> Rounds:
            found.extend((yield from self.sum_cross(int(meta["largest"]))))
            return {}

        self.conduct(grid, rounds, timeout=timeout)
        products, squares = found
        return products, squares

    def check_same(self, meta: Mapping[str, Any], names: Sequence[str]) -> None:
        """Refuse a model of another method, or one made with other options.

        Raises
        ------
        CheckpointError
        """
        check_model(self.method, {}, meta, {}, (*self.of_models, *self.of_kernel))
        check_made_with(type(self), {name: getattr(self, name) for name in names}, meta)

    @classmethod
    def of_model(cls, meta: Mapping[str, Any], **more: Any) -> Self:
        """Return a strategy with the options of a model that was saved.

        Raises
        ------
        CheckpointError
            It is not a model of this method.
        """
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
