"""Messages of Secure Gram and FedCFK, their sums and rings, cohorts, and the items that are kept.

A row is a user's ratings, or a feature of all instances; a column is an item, or an instance.
Server and clients compute the rings from the same public numbers, so neither has to trust the
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..exchange import SumSpec
from ..secure_sum import Encoding
from ..seeding import derive_seed
from ..wire.message import Message, array
from .dot_kernels import DotKernel
from .matrix import entry_bound, packed_size, smallest_ring
from .recommenders import ItemKernel, Recommender, compact

#: Non-zero rows per item.
COUNTS_SUM = "item counts"
#: Packed Gram matrix of the kept items.
GRAM_SUM = "gram matrix"
#: Products of new items with the old ones, then the new items' squares.
CROSS_SUM = "cross products"
#: Sums of users' AUC, nDCG and recall, number of users; steps of lambda, times a node's users.
RANKING_SUM = "ranking metrics"

GramEncoding = Literal["counts", "fixed-point"]
ENCODINGS: tuple[str, ...] = get_args(GramEncoding)
RANKING = ("auc", "ndcg@100", "recall@100", "ndcg@10", "recall@20")

Counts = NDArray[np.int64]
Items = NDArray[Any]
Numbers = NDArray[Any]


@dataclass(frozen=True)
class GramFacts:
    """Public facts of a cohort that decide its sum.

    Attributes
    ----------
    parties : int
        Nodes in the cohort.
    rows : int
        Most rows of a node.
    items : int
        Of the catalogue.
    """

    parties: int
    rows: int
    items: int


class GramRequest(Message):
    """Fields of every request of the method."""

    what: ClassVar[str] = ""  # name of the sum
    session: str = ""
    round: int = 0  # grows with each exchange, so that duplicates are recognised

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare the request's sum; only nodes with the same request contribute to it.

        Raises
        ------
        OptionError
            No ring is large enough.
        """
        return []


class GramReply(Message):
    """Fields of every reply of the method."""

    round: int = 0


class SumRequest(GramRequest):
    """Fields of every request for a sum of products."""

    # "counts" (whole numbers from 0) or "fixed-point" (real numbers, rounded to multiples of
    # 2^-fraction_bits).
    encoding: str
    bound: float  # public, on the absolute value of a cell
    fraction_bits: int
    rows: int  # most rows of a node; with the bound it decides the ring
    parties: int  # nodes in the cohort, which decide the ring, too
    # Whether the sum survives dropouts; it is then opened in a separate exchange.
    self_masks: bool = True

    def ring(self, facts: GramFacts) -> Encoding:
        return matrix_encoding(facts.parties, facts.rows, self.bound, self.fraction_bits)


class CountsRequest(SumRequest, phase="gram-counts"):
    """Sum how many rows have each item."""

    what = COUNTS_SUM

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare the item counts."""
        return [
            _sum(self, facts.items, counts_encoding(facts.parties, facts.rows), self.self_masks)
        ]


class CountsReply(GramReply, phase="gram-counts"):
    """The node's counts are in the sum."""


class MatrixRequest(SumRequest, phase="gram-matrix"):
    """Sum the Gram matrix of some items."""

    what = GRAM_SUM
    # Nodes of the cohort with summed rows, one bit each, the same for all. A node that missed the
    # item counts adds zeros, as its masks are needed.
    counted: bytes
    supports: bool  # whether to count the rows with each item again, after the matrix
    items: Items = array("items", dtype="index")  # ascending

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare the packed matrix, and the rows that have each item."""
        length = packed_size(len(self.items)) + self.supports * len(self.items)
        return [_sum(self, length, self.ring(facts), self.self_masks)]


class MatrixReply(GramReply, phase="gram-matrix"):
    """The node's matrix is in the sum."""


class CrossRequest(SumRequest, phase="gram-cross"):
    """Sum the products of the node's new items with the old ones."""

    what = CROSS_SUM
    new_items: int  # required number
    items: Items = array("items", dtype="index")  # the old ones, ascending

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare the products and the squares, of all nodes of the model."""
        length = self.new_items * (len(self.items) + 1)
        return [_sum(self, length, self.ring(facts), False)]


class CrossReply(GramReply, phase="gram-cross"):
    """The node's products are in the sum."""


#: Fields of a request that belong to a kernel, to its items, and to the learner.
_OF_KERNEL = ("degree", "gamma", "coef0")
_OF_ITEMS = ("users", "mean", "items", "products")
_OF_RANKS = ("learner", "regularization", "subtract_mean", "neighbours")


class RecommendRequest(GramRequest, phase="gram-recommend"):
    """The kernel, with which each device ranks the items for its users."""

    what = RANKING_SUM
    kernel: str  # this and the next three: see :class:`fedkern_flwr.gram.dot_kernels.DotKernel`
    degree: int
    gamma: float
    coef0: float
    users: int  # in the sum
    learner: str  # "ease", "cf-komd" or "knn"
    regularization: float
    tune: bool  # whether nodes choose lambda, from the learner's default on
    summed: bytes  # nodes of the cohort with rows in the matrix, one bit each; empty: none
    subtract_mean: bool
    neighbours: int  # of learner "knn"
    rows: int  # most users of a node
    self_masks: bool = True  # see :class:`SumRequest`
    items: Items = array("items", dtype="index")  # of the kernel, ascending
    coefficients: Numbers = array("terms", dtype="float64")  # of kernel "series"
    mean: Numbers = array("items", dtype="float64")  # of each row of the kernel
    squares: Numbers = array("items", dtype="ring")  # diagonal of the Gram matrix
    products: Numbers = array("products", dtype="ring")  # the Gram matrix, packed

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare the figures that :data:`RANKING_SUM` names."""
        return [_sum(self, len(RANKING) + 2, ranking_encoding(facts.rows), self.self_masks)]

    @classmethod
    def of(cls, ranks: Recommender, **more: Any) -> Self:
        items, kernel = ranks.kernel, ranks.kernel.kernel
        named = ((ranks, _OF_RANKS), (items, _OF_ITEMS), (kernel, _OF_KERNEL))
        found = {name: getattr(one, name) for one, names in named for name in names}
        found |= {"kernel": kernel.name, "coefficients": np.array(kernel.coefficients)}
        return cls(**found, squares=compact(items.squares), **more)

    def recommender(self, catalogue: int) -> Recommender:
        own = vars(self)
        terms = tuple(self.coefficients.tolist())
        kernel = DotKernel(self.kernel, coefficients=terms, **{k: own[k] for k in _OF_KERNEL})
        parts = {k: own[k] for k in (*_OF_ITEMS, "squares")}
        items = ItemKernel(kernel=kernel, catalogue=catalogue, **parts)
        return Recommender(kernel=items, **{k: own[k] for k in _OF_RANKS})


class RecommendReply(GramReply, phase="gram-recommend"):
    """The users have their recommendations, and the metrics are in the sum."""


class PredictRequest(RecommendRequest, phase="gram-predict"):
    """A saved kernel, with which each device ranks the items; nothing is summed."""

    def sum_specs(self, facts: GramFacts) -> list[SumSpec]:
        """Declare no sums."""
        return []


class PredictReply(GramReply, phase="gram-predict"):
    """The node is done."""

    users: int  # with recommendations, 0 if the node writes none


# -- sums and their rings, cohorts, and the items that are kept


def _sum(request: GramRequest, length: int, ring: Encoding, self_masks: bool) -> SumSpec:
    """Return a sum to which only nodes with the same request contribute."""
    return SumSpec(
        name=request.what, length=length, encoding=ring, self_masks=self_masks, bound=True
    )


def _integers(parties: int, entry: int) -> Encoding:
    bits = smallest_ring(parties, entry)
    bound = float(entry)
    return Encoding("integer", bits, bound if bound >= entry else math.nextafter(bound, math.inf))


def matrix_encoding(parties: int, rows: int, bound: float, fraction_bits: int) -> Encoding:
    """Return the ring of a Gram matrix; OptionError if none is large enough."""
    return _integers(parties, entry_bound(rows, bound, fraction_bits))


def counts_encoding(parties: int, rows: int) -> Encoding:
    return _integers(parties, rows)


def ranking_encoding(rows: int) -> Encoding:
    return Encoding.fixed_point(float(max(1, rows)))


def check_values(encoding: str, bound: float, fraction_bits: int) -> None:
    """Raise OptionError for an encoding that cannot hold anything."""
    if encoding not in ENCODINGS:
        raise OptionError(
            f"encoding is {encoding!r}",
            remedy=f"choose one of {', '.join(ENCODINGS)}",
            code="FK-OPTION-CHOICE",
        )
    if not 0.0 < bound < math.inf:
        raise OptionError(
            f"bound is {bound}", remedy="declare the largest absolute value", code="FK-OPTION-RANGE"
        )
    if encoding == "counts" and (bound != math.floor(bound) or fraction_bits):
        raise OptionError(
            f"encoding counts has whole numbers, not a bound of {bound:g} with {fraction_bits} "
            "fraction bits",
            remedy='use a whole bound, or encoding "fixed-point"',
            code="FK-GRAM-WHOLE",
        )
    if not 0 <= fraction_bits <= 30:
        raise OptionError(
            f"fraction_bits is {fraction_bits}", remedy="use 0 to 30", code="FK-OPTION-RANGE"
        )


def disjoint_cohorts(
    partitions: Sequence[int],
    participation: float,
    cohorts: int,
    seed: int,
    *,
    halves: bool = False,
) -> list[list[int]]:
    """Choose the participating nodes at random and split them into disjoint cohorts.

    Sizes differ by at most one. With ``halves`` each cohort takes half of the remaining nodes, and
    the last one all of them.

    Raises
    ------
    OptionError
        There are fewer than two nodes per cohort.
    """
    everybody = np.array(sorted(partitions), np.int64)
    many = min(len(everybody), max(2, round(participation * len(everybody))))
    rng = np.random.default_rng(derive_seed(seed, "participants", 0))
    chosen = rng.permutation(everybody)[:many]
    sets = "rounds" if halves else "cohorts"
    if len(chosen) < 2 * cohorts:
        raise OptionError(
            f"{len(chosen)} nodes that take part do not make {cohorts} {sets} of two or more",
            remedy=f"use fewer {sets}, or let more nodes take part",
            code="FK-COHORTS-MANY",
        )
    if not halves:
        return [sorted(part.tolist()) for part in np.array_split(chosen, cohorts)]
    drawn = []
    for later in range(cohorts - 1, -1, -1):
        most = len(chosen) - 2 * later  # two nodes at least for each cohort after this one
        size = min(max(2, len(chosen) // 2), most) if later else len(chosen)
        drawn.append(sorted(chosen[:size].tolist()))
        chosen = chosen[size:]
    return drawn


def supported(counts: Sequence[Counts], least: int) -> NDArray[np.int32]:
    """Return the items of which no cohort's sum reveals few rows.

    Every cohort's sum is released: an item is kept if each cohort has it in no row or in at least
    ``least`` rows. ``counts`` has the rows with each item, (items,), per cohort.
    """
    together = np.stack(counts)
    fine = (together == 0) | (together >= least)
    return np.flatnonzero(fine.all(axis=0) & together.any(axis=0)).astype(np.int32)


def shows_few(
    counted: Sequence[int], summed: Sequence[int], rows: Mapping[int, int], least: int
) -> bool:
    """Return whether the difference of two sums over nodes covers few rows.

    The item counts cover the nodes ``counted``; the diagonal of the Gram matrix covers ``summed``,
    a part of them. Their difference are the counts of nodes that dropped out in between.

    Parameters
    ----------
    counted, summed : sequence of int
        Nodes in the two sums.
    rows : mapping
        Node -> its rows.
    least : int
        Rows that hide each other; at least two nodes are needed, too.
    """
    missing = set(counted) - set(summed)
    return bool(missing) and (len(missing) < 2 or sum(rows[p] for p in missing) < least)
