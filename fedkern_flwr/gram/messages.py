"""Messages of Secure Gram and FedCFK: nodes that hold rows of a matrix whose columns are items.

A row is a user's ratings, or a feature of all instances; a column is an item, or an instance.
What is summed travels in secure sums, named here; session and number of the exchange are filled in
as a request is sent, the number of a reply by the client's base.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..wire.message import Message, array

#: Rows that are not zero, per item.
COUNTS_SUM = "item counts"
#: Packed Gram matrix of the items that are kept.
GRAM_SUM = "gram matrix"
#: Products of new items with the old ones, then the new items' squares.
CROSS_SUM = "cross products"
#: Summed AUC, nDCG and recall of users, how many they are; steps of lambda, times a node's users.
RANKING_SUM = "ranking metrics"

Items = NDArray[Any]
Reals = NDArray[Any]
Products = NDArray[Any]


class GramRequest(Message):
    """What every request of the method carries."""

    session: str = ""
    round: int = 0  # grows with every exchange, so that duplicates are noticed


class GramReply(Message):
    """What every reply of the method carries."""

    round: int = 0


class SumRequest(GramRequest):
    """What every request for a sum of products carries."""

    # "counts", whole numbers from 0, or "fixed-point", real ones that are rounded to multiples of
    # 2^-fraction_bits.
    encoding: str
    bound: float  # public, on the absolute value of a cell
    fraction_bits: int
    rows: int  # most rows of a node; with the bound it decides the ring
    parties: int  # nodes in the cohort, likewise
    # Whether the sum can do without nodes that drop out; it is opened in an exchange of its own.
    self_masks: bool = True


class CountsRequest(SumRequest, phase="gram-counts"):
    """Sum how many rows have each item."""


class CountsReply(GramReply, phase="gram-counts"):
    """The node's counts are in the sum."""


class MatrixRequest(SumRequest, phase="gram-matrix"):
    """Sum the Gram matrix of some items."""

    # The nodes of the cohort whose rows are summed, a bit each, the same for all. Who missed the
    # item counts adds zeros, for its masks.
    counted: bytes
    supports: bool  # whether the rows that have each item are counted again, after the matrix
    items: Items = array("items", dtype="index")  # ascending


class MatrixReply(GramReply, phase="gram-matrix"):
    """The node's matrix is in the sum."""


class CrossRequest(SumRequest, phase="gram-cross"):
    """Sum the products of the node's new items with the old ones."""

    new_items: int  # how many there must be
    items: Items = array("items", dtype="index")  # the old ones, ascending


class CrossReply(GramReply, phase="gram-cross"):
    """The node's products are in the sum."""


class RecommendRequest(GramRequest, phase="gram-recommend"):
    """The kernel. Rank the items for each user, on the device."""

    kernel: str  # this and the next three: see :class:`fedkern_flwr.gram.dot_kernels.DotKernel`
    degree: int
    gamma: float
    coef0: float
    users: int  # in the sum
    learner: str  # "ease", "cf-komd" or "knn"
    regularization: float
    tune: bool  # whether nodes choose lambda, from the learner's usual one on
    summed: bytes  # nodes of the cohort whose rows are in the matrix, a bit each; empty: none
    subtract_mean: bool
    neighbours: int  # of learner "knn"
    rows: int  # most users of a node
    self_masks: bool = True  # see :class:`SumRequest`
    items: Items = array("items", dtype="index")  # of the kernel, ascending
    coefficients: Reals = array("terms", dtype="float64")  # of kernel "series"
    mean: Reals = array("items", dtype="float64")  # of each row of the kernel
    squares: Products = array("items", dtype="ring")  # diagonal of the Gram matrix
    products: Products = array("products", dtype="ring")  # the Gram matrix, packed


class RecommendReply(GramReply, phase="gram-recommend"):
    """The node's users have their recommendations, and its metrics are in the sum."""


class PredictRequest(RecommendRequest, phase="gram-predict"):
    """A kernel that was saved. Rank the items for each user; nothing is summed."""


class PredictReply(GramReply, phase="gram-predict"):
    """The node is done."""

    users: int  # that have recommendations, 0 if the node writes none
