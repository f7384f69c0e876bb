"""Messages of FedCG: hospitals with rows and labels, centres with blocks of features.

Hospitals and centres are told what to do by the same requests. ``hospitals`` lists the partitions
whose rows a request is about; the variadic ``rows`` holds, for each of them, which of the
receiver's announced rows stands at each position of that hospital's kernel, -1 for none. Training
rows come first, ``trains`` says how many they are; ``starts`` and ``stops`` cut out the positions
that are asked for now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from .describe import DescribeReply
from .message import PhaseMessage, array, arrays

__all__ = [
    "BlocksReply",
    "BlocksRequest",
    "ChainReply",
    "ChainRequest",
    "CoefficientsReply",
    "CoefficientsRequest",
    "DistancesReply",
    "DistancesRequest",
    "EquationsReply",
    "EquationsRequest",
    "HybridDescribeReply",
    "MomentsReply",
    "MomentsRequest",
    "ProductReply",
    "ProductRequest",
]


@dataclass(frozen=True, kw_only=True)
class HybridDescribeReply(DescribeReply):
    """What a hospital or centre tells about itself.

    Attributes
    ----------
    block : str
        Name of its block of features; parties with the same block have the same columns.
    seeded : bool
        Whether the secret of the block's landmarks is configured at the node.
    square_bound, absolute_bound : float
        Largest squared and absolute distance within the block's declared ranges.
    outputs : int
        k, columns of the targets; 0 at a centre.
    classes : int
        Number of classes, 0 for regression or at a centre.
    labels : str
        Digest of the names of the classes.
    label_bound : float
        Declared bound of the targets.
    labelled : bool
        Whether the held-out rows have labels.
    allow_single : bool
        Whether a centre may be the only one that knows a row.
    ids : ndarray of uint64, shape (rows + test_rows, 2)
        Keyed hashes of the ids, training rows first, each part sorted.
    """

    block: str
    seeded: bool
    square_bound: float
    absolute_bound: float
    outputs: int
    classes: int
    labels: str
    label_bound: float
    labelled: bool
    allow_single: bool
    ids: NDArray[Any] = array("ids", "words", dtype="ring")


@dataclass(frozen=True, kw_only=True)
class HybridRequest(PhaseMessage):
    """What every request of the method carries.

    Attributes
    ----------
    session : str
    round : int
        Number of the step; grows with every exchange, so that duplicates are noticed.
    """

    session: str
    round: int


@dataclass(frozen=True, kw_only=True)
class HybridReply(PhaseMessage):
    """What every reply of the method carries: the number of the step."""

    round: int


@dataclass(frozen=True, kw_only=True)
class RowsRequest(HybridRequest):
    """A request about rows of hospitals; see the module."""

    hospitals: NDArray[Any] = array("hospitals", dtype="index")
    trains: NDArray[Any] = array("hospitals", dtype="index")
    starts: NDArray[Any] = array("hospitals", dtype="index")
    stops: NDArray[Any] = array("hospitals", dtype="index")


@dataclass(frozen=True, kw_only=True)
class MomentsRequest(RowsRequest):
    """Agree on the landmarks of blocks that several parties hold, before distances are asked for.

    Attributes
    ----------
    moments : bool
        Whether to add up count, sums and squares of the block's training rows.
    peers : ndarray of int32
        At the party that draws the block's secret: for whom to seal it. Else empty.
    rows : tuple of ndarray of int32
    """

    phase = "hybrid-moments"
    moments: bool
    peers: NDArray[Any] = array("peers", dtype="index")
    rows: tuple[NDArray[Any], ...] = arrays("rows", dtype="index")


@dataclass(frozen=True, kw_only=True)
class MomentsReply(HybridReply):
    """What the holders of a block agree on.

    Attributes
    ----------
    plain : ndarray of float64
        Of the paper's protocols: count, sums and squares. Empty in the secure one.
    sealed : tuple of ndarray of uint8
        The block's secret, sealed for each peer.
    """

    phase = "hybrid-moments"
    plain: NDArray[Any] = array("numbers", dtype="float64")
    sealed: tuple[NDArray[Any], ...] = arrays("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class LandmarksRequest(RowsRequest):
    """All that a party needs to compute its distances.

    Attributes
    ----------
    variant : {"secure", "naive", "chain"}
    kernel : {"rbf", "laplacian"}
    sampling : {"U", "N", "P"}
    landmarks : int
        m.
    seed_from : int
        Partition that shares this block's secret: alone with this party (then both derive it from
        the secret of their pair), or the one that sealed ``sealed_seed``; -1 for its own.
    public_seed : int
        Of the paper's protocols: seed that all parties know; -1 for secret ones.
    model, model_round : str, int
        For predictions: session and step of the run that made the model; empty and 0 else.
    save_as : int
        Step under which the party keeps what it needs to resume the run, or to predict later.
    landmark_pairs : bool
        Whether to add this block's distances between landmarks to a secure sum.
    keep_training : bool
        Whether a hospital keeps the kernel of its training rows for the steps that follow.
    gammas : ndarray of float64, shape (1,) or (m,)
    moments : ndarray of float64
        Added up count, sums and squares of the block; empty for the party's own.
    sealed_seed : ndarray of uint8
        Empty if there is none.
    """

    variant: str
    kernel: str
    sampling: str
    landmarks: int
    seed_from: int
    public_seed: int
    model: str
    model_round: int
    save_as: int
    landmark_pairs: bool
    keep_training: bool
    gammas: NDArray[Any] = array("gammas", dtype="float64")
    moments: NDArray[Any] = array("moments", dtype="float64")
    sealed_seed: NDArray[Any] = array("bytes", dtype="byte")
    rows: tuple[NDArray[Any], ...] = arrays("rows", dtype="index")


@dataclass(frozen=True, kw_only=True)
class DistancesRequest(LandmarksRequest):
    """Contribute partial distances of the rows to sums that belong to their hospitals."""

    phase = "hybrid-distances"


@dataclass(frozen=True, kw_only=True)
class DistancesReply(HybridReply):
    """``fingerprint``: equal at all holders of a block if they have the same landmarks."""

    phase = "hybrid-distances"
    fingerprint: bytes


@dataclass(frozen=True, kw_only=True)
class BlocksRequest(LandmarksRequest):
    """Naive protocol: send the kernel of this party's block."""

    phase = "hybrid-blocks"


@dataclass(frozen=True, kw_only=True)
class BlocksReply(DistancesReply):
    """Naive protocol: labels of a hospital's training rows, kernel blocks in the order asked."""

    phase = "hybrid-blocks"
    targets: NDArray[Any] = array("trains", "outputs", dtype="float64")
    blocks: tuple[NDArray[Any], ...] = arrays("rows", "landmarks", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class EquationsRequest(HybridRequest):
    """Add K_h^T K_h and K_h^T y_h to a secure sum; the last distances come with it."""

    phase = "hybrid-equations"


@dataclass(frozen=True, kw_only=True)
class PlainReply(HybridReply):
    """A reply to what is summed.

    Attributes
    ----------
    plain : tuple of ndarray
        The vector itself where a single hospital has nobody to sum with, else nothing.
    """

    plain: tuple[NDArray[Any], ...] = arrays("numbers", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class EquationsReply(PlainReply):
    """See :class:`PlainReply`."""

    phase = "hybrid-equations"


@dataclass(frozen=True, kw_only=True)
class ProductRequest(HybridRequest):
    """Add K_h^T K_h times directions to a secure sum; with ``labels`` K_h^T y_h before it."""

    phase = "hybrid-product"
    labels: bool
    directions: NDArray[Any] = array("landmarks", "directions", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class ProductReply(PlainReply):
    """See :class:`PlainReply`."""

    phase = "hybrid-product"


@dataclass(frozen=True, kw_only=True)
class ChainRequest(RowsRequest):
    """A hop of the paper's chain: multiply what came with this party's block and pass it on.

    One hop per entry of ``hospitals``.

    Attributes
    ----------
    purpose : {"start", "product", "evaluate"}
        What the forward pass is for; see the client.
    froms, tos : ndarray of int32, shape (hospitals,)
        The parties before and after this one, -1 at the ends.
    backwards : ndarray of int32, shape (hospitals,)
        1 on the way back, 0 on the way forth.
    vector : ndarray of float64, shape (landmarks, directions)
        p, or the coefficients; for the first party of a pass.
    received : tuple of ndarray of uint8
        Per hospital: what the party before sealed for this one, empty at the start.
    """

    phase = "hybrid-chain"
    purpose: str
    froms: NDArray[Any] = array("hospitals", dtype="index")
    tos: NDArray[Any] = array("hospitals", dtype="index")
    backwards: NDArray[Any] = array("hospitals", dtype="index")
    vector: NDArray[Any] = array("landmarks", "directions", dtype="float64")
    received: tuple[NDArray[Any], ...] = arrays("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class ChainReply(HybridReply):
    """Per hospital: what is sealed for the next party; at the end of a pass what the server gets.

    Attributes
    ----------
    residual : ndarray of float64, shape (rows, outputs)
        From a hospital at the start: v = K alpha - y + eta (Algorithm 2, line 20), which the paper
        lets the server see.
    sent : tuple of ndarray of uint8
    """

    phase = "hybrid-chain"
    residual: NDArray[Any] = array("rows", "outputs", dtype="float64")
    sent: tuple[NDArray[Any], ...] = arrays("bytes", dtype="byte")


@dataclass(frozen=True, kw_only=True)
class CoefficientsRequest(HybridRequest):
    """The model for a hospital, which predicts its held-out rows and counts how good it is.

    Attributes
    ----------
    count : bool
        Whether to add the counts of the held-out rows to a secure sum.
    coefficients : ndarray of float64, shape (landmarks, outputs)
    predictions : ndarray of float64, shape (test rows, outputs)
        Naive protocol: the server has the kernel and predicts. Else empty.
    """

    phase = "hybrid-coefficients"
    count: bool
    coefficients: NDArray[Any] = array("landmarks", "outputs", dtype="float64")
    predictions: NDArray[Any] = array("rows", "outputs", dtype="float64")


@dataclass(frozen=True, kw_only=True)
class CoefficientsReply(PlainReply):
    """See :class:`PlainReply`."""

    phase = "hybrid-coefficients"
