"""Messages of FedCG and their sums: hospitals with rows and labels, centres with features.

Hospitals and centres get the same requests. A request declares its secure sums by ``sum_specs``:
the strategy requests these, a client compares.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..exchange import SumSpec, one_party
from ..judging.figures import OUTCOMES, Yardstick, outcomes_release
from ..plain_text import read_json
from ..privacy import Budget
from ..secure_sum import Encoding
from ..solvers.least_squares import MOST_WIDTHS, equations_length, tuning_length
from ..wire.describe import TableReply
from ..wire.message import Message, array, arrays
from .landmarks import CIRCLE, EQUATIONS, equations_release, moments_length

Floats = NDArray[Any]
Bytes = NDArray[Any]
Index = NDArray[Any]

#: Name of the sum of the mean distances of training rows to the landmarks.
MEAN_DISTANCE = "mean distance"
#: Sum of the hospitals' training rows of each class, if classes are balanced.
CLASS_COUNTS = "class counts"
#: Sum of the distances between landmarks, which the penalty rkhs needs.
PAIRS = "landmark pairs"
#: Name of the sum of products. Nodes treat it like the equations, in which it is linear.
PRODUCTS = "equations#products"
#: Rounding may push a party's numbers slightly beyond their exact bound.
_ROUNDED = 1.0 + 1e-9


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Public facts of a run and a party that decide the sums of a request.

    The strategy knows the rows of all hospitals and the widest ranges, a party only its own: its
    bounds may be smaller than the requested ones.

    Attributes
    ----------
    landmarks : int
        m landmarks, or features.
    labels : Yardstick
        Kind of the labels.
    rows, tests : sequence of int
        Participating training and held-out rows of each hospital.
    block, features : str, int
        The party's block, and its number of features.
    distance : float
        Bound on the distance of a row to a landmark.
    budget : Budget or None
    signed : sequence of (int, int)
        Signed rows and held-out rows of each hospital in the sum.
    wanted : collection of str
        Names of optional sums that this run takes.
    cohorts : mapping
        Name of a set of parties -> its number, which a party does not compare.
    bits : int (default: 64)
        Of a number in sums of distances; a party accepts any.
    counted : int, optional
        For a party: its rows with counted classes, whatever rows a request names.
    """

    landmarks: int
    labels: Yardstick
    rows: Sequence[int]
    tests: Sequence[int]
    block: str
    features: int
    distance: float
    budget: Budget | None
    signed: Sequence[tuple[int, int]]
    wanted: Collection[str]
    cohorts: Mapping[str, int]
    bits: int = 64
    counted: int | None = None

    def over(
        self, parties: str, name: str, length: int, bound: float, *, bits: int = 64, **more: Any
    ) -> SumSpec:
        """Return a sum over all of a set of parties, of numbers up to ``bound``."""
        # a party with nothing to add has a bound of zero, which no encoding allows
        encoding = Encoding.fixed_point(max(bound * _ROUNDED, sys.float_info.min), bits)
        known: dict[str, Any] = {"encoding": encoding, "wider": True, **more}
        return SumSpec(name=name, length=length, cohort=self.cohorts[parties], **known)


class HybridDescribeReply(TableReply):
    """Description of a hospital or centre; training rows come first."""

    block: str  # parties with the same block of features have the same columns
    seeded: bool  # whether the node has a configured secret for the block's landmarks
    # Digests of the session and the secret of its landmarks: the configured one, or those of
    # earlier runs with other holders, "number of holders:digest" each.
    secret_digests: str = ""
    square_bound: float  # largest squared, and absolute, distance within the declared ranges
    absolute_bound: float
    fold_rows: int = 0  # fewest training rows in a fold
    fold_sum_rows: int = 0  # the same of all hospitals' rows

    def bound(self, kernel: str) -> float:
        return self.square_bound if kernel == "rbf" else self.absolute_bound

    def secret_digest(self, holders: int) -> str:
        """Return the digest of its secret for ``holders`` holders; empty without one."""
        if self.seeded:
            return self.secret_digests
        told = [text.partition(":") for text in self.secret_digests.split()]
        return next((digest for number, _, digest in told if number == str(holders)), "")


class HybridRequest(Message):
    """Fields of every request of the method."""

    session: str = ""
    round: int = 0  # grows with each exchange, so that duplicates are recognised

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return the secure sums of the request."""
        return []


class HybridReply(Message):
    """Fields of every reply of the method."""

    round: int = 0


class PlainReply(HybridReply):
    # Of its landmarks, as in DistancesReply; if the request says how to make the kernel.
    fingerprint: bytes = b""
    # The vector itself if a single hospital has no other to sum with, else nothing.
    plain: tuple[Floats, ...] = arrays("numbers", dtype="float64")


class RowsRequest(HybridRequest):
    """Request about rows of hospitals.

    It ends with the variadic ``rows``: for each hospital, the receiver's announced row at each
    position of that hospital's kernel, -1 for none.
    """

    hospitals: Index = array("hospitals", dtype="index")  # partitions
    trains: Index = array("hospitals", dtype="index")  # training rows of each, which come first
    starts: Index = array("hospitals", dtype="index")  # requested positions
    stops: Index = array("hospitals", dtype="index")

    @property
    def parts(self) -> list[tuple[int, int, int, int, Index]]:
        """Per hospital: partition, training rows, first and last position, rows."""
        columns = (self.hospitals, self.trains, self.starts, self.stops)
        rows: tuple[Index, ...] = self.rows  # type: ignore[attr-defined]  # the last field
        return list(zip(*(column.tolist() for column in columns), rows, strict=True))

    @property
    def training_positions(self) -> Index:
        named = [rows[:train] for _, train, *_, rows in self.parts]
        positions = np.concatenate([np.zeros(0, np.int32), *named])
        return positions[positions >= 0]


class MomentsRequest(RowsRequest, phase="hybrid-moments"):
    """Agree on the landmarks of blocks with several holders, before the distances."""

    moments: bool  # whether to sum moments of the block's training rows
    sampling: str  # kind of moments: see hybrid/landmarks.py
    # At the party that makes the block's secret: receivers of the sealed secret. Else empty.
    peers: Index = array("peers", dtype="index")
    rows: tuple[Index, ...] = arrays("rows", dtype="index")

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return that of the moments, at most one per row."""
        if not self.moments:
            return []
        name, length = f"moments/{facts.block}", moments_length(facts.features, self.sampling)
        products, bound = facts.features * (self.sampling == "C"), sum(facts.rows)
        return [facts.over(f"block {facts.block}", name, length, bound, products=products)]


class MomentsReply(HybridReply, phase="hybrid-moments"):
    """What the holders of a block agree on."""

    sealed: tuple[Bytes, ...] = arrays("bytes", dtype="byte")  # the secret, for each peer


class KernelRequest(HybridRequest):
    """How a party makes its landmarks and kernel."""

    pinned = (
        "kernel",
        "sampling",
        "landmarks",
        "basis",
        "model",
        "model_round",
        "fixed_gammas",
        "moments",
        "alike",
    )

    kernel: str
    sampling: str
    landmarks: int  # m; of basis "fourier" 2 D features
    basis: str = "landmarks"  # or "fourier": phases instead of distances
    # The holder of this block that sealed ``sealed_seed``, its secret; -1: the party's own. Two
    # holders need no seal: they use the secret of their pair.
    seed_from: int
    lasting: bool = False  # whether to use the same holders' secret of an earlier run
    holders: int = 1  # of this block
    # Whether all hospitals make their own kernels, of this block: with different landmarks or
    # requests they have no sum.
    alike: bool = False
    model: str  # for predictions: session and step of the model's run; else empty, 0
    model_round: int
    save_as: int  # step under which to save what resuming or predicting needs; 0 for none
    landmark_pairs: bool  # whether to add this block's distances between landmarks to a sum
    keep_training: bool  # whether a hospital keeps the kernel of its training rows
    # One width, or one per landmark; empty if it is chosen later: then hospitals keep distances.
    fixed_gammas: Floats = array("fixed", dtype="float64")
    moments: Floats = array("moments", dtype="float64")  # summed; empty for the party's own
    sealed_seed: Bytes = array("bytes", dtype="byte")  # empty if there is none


class DistancesRequest(KernelRequest, RowsRequest, phase="hybrid-distances"):
    """Contribute partial distances of the rows to the hospitals' sums."""

    rows: tuple[Index, ...] = arrays("rows", dtype="index")

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return those of distances, or phases, and what is summed along with the first."""
        m, far, found = self.landmarks, facts.distance, list[SumSpec]()
        circle: dict[str, Any] = {"encoding": CIRCLE, "wider": False}
        phases = self.basis == "fourier"  # half as many as features
        for hospital, train, start, stop, _ in self.parts:
            if start == stop:  # the hospital makes its kernel alone
                continue
            whole = distances_sum(hospital, start, train)
            name = whole if whole in facts.wanted else distances_sum(hospital, start, None)
            length = (stop - start) * (m // 2 if phases else m)
            how = circle if phases else {"bits": facts.bits, "rings": (32, 64)}
            ward = f"ward {hospital}"
            found.append(facts.over(ward, name, length, far, receiver=one_party(hospital), **how))
        if PAIRS in facts.wanted:
            length, of_no_rows = m * (m - 1) // 2, self.sampling == "U"
            found.append(facts.over("everybody", PAIRS, length, far, nobodys=of_no_rows))
        if MEAN_DISTANCE in facts.wanted:
            found.append(facts.over("everybody", MEAN_DISTANCE, 1, sum(facts.rows) * far))
        if CLASS_COUNTS in facts.wanted:
            most = max(facts.rows) if facts.counted is None else facts.counted
            classes = facts.labels.classes
            found.append(facts.over("hospitals", CLASS_COUNTS, classes, most))
        return found


class DistancesReply(HybridReply, phase="hybrid-distances"):
    """The distances are in the sums."""

    fingerprint: bytes  # equal at all holders of a block if they have the same landmarks


class EquationsRequest(HybridRequest, phase="hybrid-equations"):
    """Add K_h^T K_h and K_h^T y_h to a secure sum; the last distances come with it.

    To choose a width: those of each width and fold, and y_h^T y_h of each fold.
    """

    folds: int = 1  # into which a hospital splits its training rows
    # Candidates: each one width, or one per landmark; empty if the width is known.
    gammas: Floats = array("widths", "gammas", dtype="float64")
    balanced: bool = False  # whether rows are weighted so that all classes count alike
    # If balanced: training rows per class; empty if one hospital has all rows.
    class_counts: Floats = array("classes", dtype="float64")

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return that of the equations: a row's products are at most one, or its labels' bound.

        Only those of Fourier features of a known width get noise.
        """
        m, outputs, label = facts.landmarks, facts.labels.outputs, facts.labels.bound
        most, release = max(facts.rows), None
        if not self.gammas.size:
            name, length, bound = EQUATIONS, equations_length(m, outputs), most * max(1.0, label)
            if facts.budget is not None:
                rows = [learned for learned, _ in facts.signed]
                release = equations_release(
                    facts.budget, features=m, outputs=outputs, bound=label, rows=rows
                )
        else:
            name = equations_sum(self)
            length = tuning_length(m, outputs, self.folds, len(self.gammas))
            # weights of balanced rows sum to the number of rows
            bound = self.class_counts.sum() if self.balanced else most * max(1.0, label**2)
        return [facts.over("hospitals", name, length, bound, release=release, products=m)]


class EquationsReply(PlainReply, phase="hybrid-equations"):
    """See :class:`PlainReply`."""


class ProductRequest(HybridRequest, phase="hybrid-product"):
    """Add K_h^T K_h times directions to a secure sum; with ``labels`` K_h^T y_h before it."""

    labels: bool
    directions: Floats = array("landmarks", "directions", dtype="float64")

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return that of the products: directions have length one, a kernel's row sqrt(m)."""
        m = facts.landmarks
        length = self.directions.size + m * facts.labels.outputs * self.labels
        bound = max(facts.rows) * max(math.sqrt(m), facts.labels.bound)
        return [facts.over("hospitals", PRODUCTS, length, bound, products=m)]


class ProductReply(PlainReply, phase="hybrid-product"):
    """See :class:`PlainReply`."""


class CoefficientsRequest(HybridRequest, phase="hybrid-coefficients"):
    """The model for a hospital, which predicts its held-out rows and counts outcomes."""

    count: bool  # whether to add the counts of the held-out rows to a secure sum
    bins: int = 0  # of the histograms among them, 0 for none
    coefficients: Floats = array("landmarks", "outputs", dtype="float64")
    # The width, or one per landmark, if chosen in this run.
    gammas: Floats = array("gammas", dtype="float64")
    calibration: Floats = array("calibration", dtype="float64")  # of a saved model, see Calibration
    # For a saved model with variances: s^2 of each output, and the transposed inverse of the
    # Cholesky factor of K^T K + lambda I.
    noise: Floats = array("noise", dtype="float64")
    factor: Floats = array("factors", "factors", dtype="float64")

    def sum_specs(self, facts: Facts) -> list[SumSpec]:
        """Return that of the counts of held-out rows, if requested."""
        if not self.count:
            return []
        yard, release = replace(facts.labels, bins=self.bins), None
        if facts.budget is not None:
            tests = [held_out for _, held_out in facts.signed]
            sizes = {"classes": yard.classes, "outputs": yard.outputs}
            release = outcomes_release(facts.budget, rows=tests, **sizes)
        about: dict[str, Any] = {"release": release, "held_out": True}
        bound = max(facts.tests) * yard.largest
        return [facts.over("hospitals", OUTCOMES, yard.length, bound, **about)]


class CoefficientsReply(PlainReply, phase="hybrid-coefficients"):
    """See :class:`PlainReply`."""


# If no centre has rows, each hospital makes the kernel of its own rows. Then the first request says
# how, and no distances are sent before it.


class OwnEquationsRequest(KernelRequest, EquationsRequest, phase="hybrid-own-equations"):
    """Compute the kernel, then answer as to an EquationsRequest."""


class OwnProductRequest(KernelRequest, ProductRequest, phase="hybrid-own-product"):
    """Compute the kernel, then answer as to a ProductRequest."""


#: Phase of a request -> the request that also says how to make the kernel.
OWN: dict[str, type[KernelRequest]] = {
    EquationsRequest.phase: OwnEquationsRequest,
    ProductRequest.phase: OwnProductRequest,
}


def distances_sum(hospital: int, start: int, whole: int | None) -> str:
    """Return the name of the sum of distances of a hospital's rows from a position on.

    Masks depend on the name: parties with different requests have no sum. ``whole`` is the number
    of training rows if every centre of the sum has all of them, else None.
    """
    return f"distances/{hospital}{'' if whole is None else f'/whole {whole}'}#{start}"


def write_widths(kernel: str, gammas: Sequence[float]) -> str:
    """Return the widths of a run as text, for repeated requests."""
    return json.dumps([kernel, *gammas])


def read_widths(text: str) -> tuple[str, list[float]]:
    """Return kernel and widths of :func:`write_widths`; none for any other text."""
    try:
        kernel, *gammas = read_json(text)
        widths = [float(gamma) for gamma in gammas]
    except (ValueError, TypeError, OverflowError):
        return "", []
    fits = isinstance(kernel, str) and len(widths) <= MOST_WIDTHS
    fits = fits and all(0.0 < gamma < math.inf for gamma in widths)
    return (kernel, widths) if fits else ("", [])


def equations_sum(request: EquationsRequest) -> str:
    """Return the name of the sum of the normal equations.

    Masks depend on it: hospitals with different widths, folds or class counts have no sum.
    """
    if not request.gammas.size:
        return "equations"
    asked = [request.folds, request.gammas.tolist(), request.class_counts.tolist()]
    return f"equations#{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}"
