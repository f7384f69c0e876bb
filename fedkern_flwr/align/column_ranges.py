"""Common ranges, categories and means of columns: the messages, and what is made of the sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolError, TableError
from ..secure_sum import Encoding
from ..wire.describe import DescribeReply
from ..wire.message import Message, array

# -- messages of a run that sums the statistics of columns; see :mod:`.column_ranges`
#
# Columns travel without names. Where labels are asked for, they are the last column. Session and
# number of the exchange are filled in as a request is sent, the number of a reply by the client.

#: Counts, sums and sums of squares of the columns of a block; of columns that are to be encoded
#: the first histograms.
MEANS_SUM = "column means"
#: Sums of their distances from the mean, and of the squares of these; of columns that are to be
#: encoded the second histograms, and how many rows have each category.
DEVIATIONS_SUM = "column deviations"

Floats = NDArray[np.float64]


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


# -- ranges of columns from sums over all holders: two passes, so that no digit is lost
#
# The first pass sums count, values and squares in units of the public bound B. In a ring of 64 bits
# squares up to B^2 leave few digits to a column whose spread is small against its values, and
# float64 has lost them anyway. So the first pass only says where a column is (``mean``, m) and that
# its spread is at most ``scale``, S; the second sums (x - m) / S and its square.
#
# With N holders each total is off by at most ``resolution(N)`` r, about N^2 2^-61. Mean and
# deviation are those of the pooled rows to 1e-9 of the deviation (and the rounding of a float64),
# where the deviation is at least 2^-32 B with up to ten holders: 2e-4 for B = 2^20, and some
# hundred times less for columns that are small against B. Deviations below S sqrt(16 r), about
# 2^-53 B, count as none.


#: Name of the label among the ranges.
LABEL = "label"
#: Of all sums: no contribution is larger than 1, but for rounding.
ENCODING = Encoding.fixed_point(2.0)
#: Public bound on the magnitude of all values.
DEFAULT_BOUND = 2.0**20

_ROUNDING = 2.0**-44  # relative, of sums of squares added up in float64


def resolution(holders: int) -> float:
    """Return by how much a total may be off: each holder rounds to half a step of the ring."""
    return holders * 2.0 ** -(ENCODING.fraction_bits(holders) + 1)


@dataclass(frozen=True, eq=False)
class Centre:
    """What the first pass says of the columns of a block.

    Attributes
    ----------
    count : ndarray of float64, shape (d,)
        Values of each column that are not missing, at all holders together.
    mean : ndarray of float64, shape (d,)
        About the mean.
    scale : ndarray of float64, shape (d,)
        Powers of two; no smaller than the root mean square distance from ``mean``.
    """

    count: Floats
    mean: Floats
    scale: Floats


@dataclass(frozen=True, eq=False)
class Statistics:
    """Statistics of the columns of a block over all its holders.

    Attributes
    ----------
    count, mean, deviation : ndarray of float64, shape (d,)
        Values that are not missing, their mean and standard deviation (of the rows as they are,
        not an estimate for others).
    """

    count: Floats
    mean: Floats
    deviation: Floats


def check_values(x: Floats, names: Sequence[str], party: str) -> None:
    """Refuse columns with an infinite value or none at all.

    Were a column empty at all holders but one, its sums would be those of that one.

    Raises
    ------
    TableError
    """
    for name, values in zip(names, x.T, strict=True):
        if infinite := int(np.isinf(values).sum()):
            raise TableError(
                f"column {name!r} is infinite in {infinite} rows",
                remedy="leave these cells empty: missing values are not counted",
                party=party,
                code="FK-VALUES-FINITE",
            )
        if np.isnan(values).all():
            raise TableError(
                f"column {name!r} has no value: its sums would be those of the other holders alone",
                remedy="remove it at all holders of the block, or give this node another block",
                party=party,
                code="FK-BLOCK-EMPTY",
            )


def beyond(x: Floats, bound: float) -> list[int]:
    """Return the numbers of the columns with a value whose magnitude is beyond the bound."""
    return np.flatnonzero(np.nanmax(np.abs(x), axis=0) > bound).tolist()


def first_pass(x: Floats, bound: float, rows: int) -> Floats:
    """Return a holder's counts, sums and sums of squares, per row of the block.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Its rows; NaN where a value is missing.
    bound : float
        B, no value is larger.
    rows : int
        Rows of all holders.

    Returns
    -------
    ndarray of float64, shape (3 d,)
        Numbers of at most 1.
    """
    known, values = _known(x)
    values /= bound
    return np.concatenate([known, values.sum(1), (values**2).sum(1)]) / rows


def read_first_pass(total: Floats, bound: float, rows: int, holders: int) -> Centre:
    """Return what the totals of the first pass say.

    Raises
    ------
    ProtocolError
        They cannot be those of rows that all holders have values in.
    """
    share, first, second = total.reshape(3, -1)
    count = np.rint(share * rows)
    if not ((count >= holders) & (count <= rows)).all():
        raise ProtocolError(
            "a column has fewer values than holders, or more than rows: a party did not keep to "
            "the protocol",
            remedy="run the same release on all nodes and look at their logs",
            code="FK-SUM-TOTAL",
        )
    per_value = rows / count
    mean, square = first * per_value, np.maximum(second * per_value, 0.0)
    slack = _ROUNDING * square + 4.0 * resolution(holders) * per_value
    spread = np.sqrt(np.maximum(square - mean**2, 0.0) + slack)
    return Centre(count, bound * mean, np.exp2(np.ceil(np.log2(bound * spread))))


def second_pass(x: Floats, centre: Centre) -> Floats:
    """Return a holder's sums of distances from the centre and of their squares.

    Returns
    -------
    ndarray of float64, shape (2 d,)
        In units of ``scale``, per value of the column: numbers of at most 1.
    """
    distances = _known(x - centre.mean)[1]
    distances /= centre.scale[:, None]
    both = np.concatenate([distances.sum(1), (distances**2).sum(1)])
    return np.asarray(both / np.tile(centre.count, 2))


def read_second_pass(total: Floats, centre: Centre, holders: int) -> Statistics:
    """Return mean and deviation of each column."""
    shift, square = total.reshape(2, -1)
    variance = square - shift**2
    variance[variance <= 16.0 * resolution(holders)] = 0.0
    mean = centre.mean + centre.scale * shift
    return Statistics(centre.count, mean, centre.scale * np.sqrt(variance))


def summed_ranges(found: Statistics, deviations: float) -> Floats:
    """Return mean - k and mean + k deviations of each column, shape (2, d)."""
    half = deviations * found.deviation
    return _widened(found.mean - half, found.mean + half)


def own_ranges(x: Floats) -> Floats:
    """Return the least and the greatest value of each column, shape (2, d)."""
    return _widened(np.nanmin(x, axis=0), np.nanmax(x, axis=0))


def _widened(low: Floats, high: Floats) -> Floats:
    """Return ranges; that of a constant column is as wide as its value, 1 at least.

    The value is in the middle then, and the range is never empty.
    """
    middle = 0.5 * low + 0.5 * high
    half = np.where(low < high, 0.0, 0.5 * np.maximum(1.0, np.abs(middle)))
    return np.stack([low - half, high + half])


def _known(x: Floats) -> tuple[Any, Floats]:
    """Return the count of each column, and the columns with 0 for what is missing.

    A row of the latter is a column of x: numbers in a row are added up in pairs, with next to no
    rounding.
    """
    columns = np.array(x.T, dtype=np.float64, order="C")
    missing = np.isnan(columns)
    columns[missing] = 0.0
    return (~missing).sum(axis=1), columns
