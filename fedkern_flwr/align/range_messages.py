"""Messages of a run that sums the statistics of columns; see :mod:`.column_ranges`.

Columns travel without names. Where labels are asked for, they are the last column. Session and
number of the exchange are filled in as a request is sent, the number of a reply by the client.
"""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from ..wire.describe import DescribeReply
from ..wire.message import Message, array

#: Counts, sums and sums of squares of the columns of a block; of columns that are to be encoded
#: the first histograms.
MEANS_SUM = "column means"
#: Sums of their distances from the mean, and of the squares of these; of columns that are to be
#: encoded the second histograms, and how many rows have each category.
DEVIATIONS_SUM = "column deviations"

Floats = NDArray[Any]


class RangesDescribeReply(DescribeReply):
    """What a node tells about itself."""

    long_texts = ("kinds",)

    block: str  # nodes with the same block have the same columns
    labelled: bool  # whether it has labels
    units: str  # digest of the units of its columns
    kinds: str  # a letter for each column that is to be encoded, see encoding.common
    secret_digest: str  # of the session and what hides categories


class RangesRequest(Message):
    """What every request carries."""

    pinned: ClassVar[tuple[str, ...]] = ("labels",)

    session: str = ""
    round: int = 0
    labels: bool  # whether the labels are a column


class RangesReply(Message):
    """What every reply carries; a contribution travels in a secure sum."""

    round: int = 0


class MeansRequest(RangesRequest, phase="ranges-means"):
    """Contribute to the first pass."""

    pinned = ("bound", "circles")

    rows: int  # of all holders of the block
    bound: float  # public, on the magnitude of all values
    circles: int  # on which the place of most values of a column is looked for


class MeansReply(RangesReply, phase="ranges-means"):
    """See :class:`RangesReply`."""


class DeviationsRequest(RangesRequest, phase="ranges-deviations"):
    """Contribute to the second pass; see :class:`~fedkern_flwr.encoding.common.Coarse`."""

    count: Floats = array("columns", dtype="float64")
    mean: Floats = array("columns", dtype="float64")
    scale: Floats = array("columns", dtype="float64")
    places: Floats = array("encoded", "bounds", dtype="float64")
    counts: Floats = array("encoded", "bins", dtype="float64")
    strays: Floats = array("encoded", "decimals", dtype="float64")
    splits: int
    buckets: int


class DeviationsReply(RangesReply, phase="ranges-deviations"):
    """See :class:`RangesReply`."""


class WriteRequest(RangesRequest, phase="ranges-write"):
    """Write the files to the node's disk, and erase what belongs to the run."""

    long_texts = ("encoder",)

    encoder: str = ""  # the common encoder as JSON, without names of columns
    scaling: str = "auto"  # what encoded columns become, for a node that is alone
    categories: str = "auto"
    alone: bool  # the only holder of its block takes its least and greatest values
    clip: bool  # whether the files tell their readers to clip values beyond the ranges
    low: Floats = array("columns", dtype="float64")  # of no columns for a node that is alone
    high: Floats = array("columns", dtype="float64")


class WriteReply(RangesReply, phase="ranges-write"):
    """The files are written."""
