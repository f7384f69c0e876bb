"""Messages of a run that sums the statistics of columns; see :mod:`fedkern_flwr.column_ranges`.

Columns travel without names. Where labels are asked for, they are the last column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .describe import DescribeReply
from .message import PhaseMessage, array

__all__ = [
    "DEVIATIONS_SUM",
    "MEANS_SUM",
    "DeviationsReply",
    "DeviationsRequest",
    "MeansReply",
    "MeansRequest",
    "RangesDescribeReply",
    "WriteReply",
    "WriteRequest",
]

#: Counts, sums and sums of squares of the columns of a block.
MEANS_SUM = "column means"
#: Sums of their distances from the mean, and of the squares of these.
DEVIATIONS_SUM = "column deviations"


@dataclass(frozen=True, kw_only=True)
class RangesDescribeReply(DescribeReply):
    """What a node tells about itself.

    Attributes
    ----------
    block : str
        Name of its block of columns; nodes with the same block have the same columns.
    labelled : bool
        Whether it has labels.
    """

    block: str
    labelled: bool


@dataclass(frozen=True, kw_only=True)
class RangesRequest(PhaseMessage):
    """What every request carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the exchange, so that duplicates are noticed.
    labels : bool
        Whether the labels are a column.
    """

    session: str
    round: int
    labels: bool


@dataclass(frozen=True, kw_only=True)
class RangesReply(PhaseMessage):
    """What every reply carries.

    Attributes
    ----------
    round : int
        Number of the exchange.
    """

    round: int


@dataclass(frozen=True, kw_only=True)
class MeansRequest(RangesRequest):
    """Contribute to the first pass.

    Attributes
    ----------
    rows : int
        Rows of all holders of the block.
    bound : float
        Public bound on the magnitude of all values.
    """

    phase = "ranges-means"
    rows: int
    bound: float


@dataclass(frozen=True, kw_only=True)
class MeansReply(RangesReply):
    """The contribution travels in a secure sum."""

    phase = "ranges-means"


@dataclass(frozen=True, kw_only=True)
class DeviationsRequest(RangesRequest):
    """Contribute to the second pass.

    Attributes
    ----------
    count, mean, scale : ndarray of float64, shape (d,)
        What the first pass said, see :class:`~fedkern_flwr.column_ranges.Centre`.
    """

    phase = "ranges-deviations"
    count: NDArray[Any] = array("columns", dtype="float64")
    mean: NDArray[Any] = array("columns", dtype="float64")
    scale: NDArray[Any] = array("columns", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class DeviationsReply(RangesReply):
    """The contribution travels in a secure sum."""

    phase = "ranges-deviations"


@dataclass(frozen=True, kw_only=True)
class WriteRequest(RangesRequest):
    """Write the ranges to the node's disk, and erase what belongs to the run.

    Attributes
    ----------
    alone : bool
        The node is the only holder of its block: it takes its least and greatest values.
    clip : bool
        Whether the files tell their readers to clip values beyond the ranges.
    low, high : ndarray of float64, shape (d,)
        The ranges; of no columns for a node that is alone.
    """

    phase = "ranges-write"
    alone: bool
    clip: bool
    low: NDArray[Any] = array("columns", dtype="float64")
    high: NDArray[Any] = array("columns", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class WriteReply(RangesReply):
    """The files are written."""

    phase = "ranges-write"
