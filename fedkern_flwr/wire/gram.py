"""Messages of Secure Gram and FedCFK: nodes that hold rows of a matrix whose columns are items.

A row is a user's ratings, or a feature of all instances; a column is an item, or an instance.
What is summed travels in secure sums, named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .message import PhaseMessage, array

__all__ = [
    "COUNTS_SUM",
    "CROSS_SUM",
    "GRAM_SUM",
    "RANKING_SUM",
    "AskReply",
    "AskRequest",
    "CountsReply",
    "CountsRequest",
    "CrossReply",
    "CrossRequest",
    "MatrixReply",
    "MatrixRequest",
    "PredictReply",
    "PredictRequest",
    "RecommendReply",
    "RecommendRequest",
]

#: Rows that are not zero, per item.
COUNTS_SUM = "item counts"
#: Packed Gram matrix of the items that are kept.
GRAM_SUM = "gram matrix"
#: Products of new items with the old ones, then the new items' squares.
CROSS_SUM = "cross products"
#: Summed AUC, nDCG and recall of users, and how many they are.
RANKING_SUM = "ranking metrics"


@dataclass(frozen=True, kw_only=True)
class GramRequest(PhaseMessage):
    """What every request carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the exchange, so that duplicates are noticed.
    """

    session: str
    round: int


@dataclass(frozen=True, kw_only=True)
class SumRequest(GramRequest):
    """What every request for a sum of products carries.

    Attributes
    ----------
    encoding : {"counts", "fixed-point"}
        Whole numbers from 0, or real ones that are rounded to multiples of 2^-fraction_bits.
    bound : float
        Public bound on the absolute value of a cell.
    fraction_bits : int
    rows : int
        Most rows of a node; with the bound it decides the ring.
    parties : int
        Nodes in the cohort, likewise.
    self_masks : bool
        Whether the sum can do without nodes that drop out; it is opened in an exchange of its own.
    """

    encoding: str
    bound: float
    fraction_bits: int
    rows: int
    parties: int
    self_masks: bool = True


@dataclass(frozen=True, kw_only=True)
class CountsRequest(SumRequest):
    """Server to node: sum how many rows have each item.

    Attributes
    ----------
    merge : {"disjoint", "max"}
    """

    phase = "gram-counts"
    merge: str


@dataclass(frozen=True, kw_only=True)
class CountsReply(PhaseMessage):
    """Node to server: its counts are in the sum."""

    phase = "gram-counts"
    round: int


@dataclass(frozen=True, kw_only=True)
class MatrixRequest(SumRequest):
    """Server to node: sum the Gram matrix of some items.

    Attributes
    ----------
    merge : {"disjoint", "max"}
        Whether each row is summed once, or the entrywise maximum of many sums is kept.
    number : int
        Number of the round with merge max, else 1.
    counted : bytes
        The nodes of the cohort whose rows are summed, a bit each, the same for all. Who missed the
        item counts adds zeros, for its masks.
    supports : bool
        Whether the rows that have each item are counted again, after the matrix.
    items : ndarray of int32, shape (items,)
        The items, ascending.
    """

    phase = "gram-matrix"
    merge: str
    number: int
    counted: bytes
    supports: bool
    items: NDArray[Any] = array("items", dtype="index")


@dataclass(frozen=True, kw_only=True)
class MatrixReply(PhaseMessage):
    """Node to server: its matrix is in the sum."""

    phase = "gram-matrix"
    round: int


@dataclass(frozen=True, kw_only=True)
class CrossRequest(SumRequest):
    """Server to node: sum the products of the node's new items with the old ones.

    Attributes
    ----------
    new_items : int
        How many there must be.
    items : ndarray of int32, shape (items,)
        The old items, ascending.
    """

    phase = "gram-cross"
    new_items: int
    items: NDArray[Any] = array("items", dtype="index")


@dataclass(frozen=True, kw_only=True)
class CrossReply(PhaseMessage):
    """Node to server: its products are in the sum."""

    phase = "gram-cross"
    round: int


@dataclass(frozen=True, kw_only=True)
class AskRequest(GramRequest):
    """Server to node: which rows of the kernel does it want? The paper's noisy request.

    Attributes
    ----------
    items : ndarray of int32, shape (items,)
        The items of the kernel, ascending.
    """

    phase = "gram-ask"
    items: NDArray[Any] = array("items", dtype="index")


@dataclass(frozen=True, kw_only=True)
class AskReply(PhaseMessage):
    """Node to server: positions among the items of the kernel, ascending."""

    phase = "gram-ask"
    round: int
    wanted: NDArray[Any] = array("wanted", dtype="index")


@dataclass(frozen=True, kw_only=True)
class RecommendRequest(GramRequest):
    """Server to node: the kernel. Rank the items for each user, on the device.

    Attributes
    ----------
    request : {"full", "noisy"}
        Whether ``products`` is the whole packed matrix, or some rows of it one after the other.
    kernel, degree, gamma, coef0 : str, int, float, float
        The kernel, see :class:`fedkern_flwr.dot_kernels.DotKernel`.
    users : int
        Users in the sum.
    regularization : float
    subtract_mean : bool
    rows : int
        Most users of a node.
    self_masks : bool
        See :class:`SumRequest`.
    items : ndarray of int32, shape (items,)
        The items of the kernel, ascending.
    coefficients : ndarray, shape (terms,)
        Of kernel ``series``.
    mean : ndarray, shape (items,)
        Mean of each row of the kernel.
    squares : ndarray, shape (items,)
        Diagonal of the Gram matrix.
    wanted : ndarray of int32, shape (wanted,)
        Positions of the rows among ``items``; empty if all are there.
    products : ndarray, shape (products,)
        The Gram matrix.
    """

    phase = "gram-recommend"
    request: str
    kernel: str
    degree: int
    gamma: float
    coef0: float
    users: int
    regularization: float
    subtract_mean: bool
    rows: int
    self_masks: bool = True
    items: NDArray[Any] = array("items", dtype="index")
    coefficients: NDArray[Any] = array("terms", dtype="float64")
    mean: NDArray[Any] = array("items", dtype="float64")
    squares: NDArray[Any] = array("items", dtype="ring")
    wanted: NDArray[Any] = array("wanted", dtype="index")
    products: NDArray[Any] = array("products", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class RecommendReply(PhaseMessage):
    """Node to server: its users have their recommendations, and its metrics are in the sum."""

    phase = "gram-recommend"
    round: int


@dataclass(frozen=True, kw_only=True)
class PredictRequest(RecommendRequest):
    """Server to node: a kernel that was saved. Rank the items for each user; nothing is summed."""

    phase = "gram-predict"


@dataclass(frozen=True, kw_only=True)
class PredictReply(PhaseMessage):
    """Node to server: how many users have recommendations, 0 if the node writes none."""

    phase = "gram-predict"
    round: int
    users: int
