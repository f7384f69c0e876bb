"""The attack on POF-MKL over a whole transcript, plain or secure, and on the sums of cohorts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError, ProtocolError
from fedkern_flwr.kernels.random_features import (
    FrequencyDraw,
    Precision,
    Real,
    gaussian_frequencies,
)
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online.learning import (
    Selection,
    place_frequencies,
    shared_frequencies,
    shared_subset,
)
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.wire.sections import Section, detach
from fedkern_flwr.wire.sums import Order, Upload

from ...engines import Transcript, TranscriptEntry
from .gradient_inversion import TOLERANCE, Floats, Inversion, invert_gradient

_SAME = 1e-3  # distance below which two solutions are one client
_CURVED = 1e5  # times the tolerance: squared frequency above which a kernel is not linear


@dataclass(frozen=True)
class Observation:
    """What the server sees of one client in one round.

    Attributes
    ----------
    node, partition, round : int
    dimension : int
        Number d of features of the client's rows, from its description.
    request : PersonalRequest
        What the server asked, with theta.
    kernels : ndarray, shape (m,)
        The kernels that the client chose, or those in which its vector is not zero.
    gradient : ndarray, shape (m, 2D)
        Their gradients. Of a secure run: the masked vector decoded as if it were not masked.
    masked : bool
    """

    node: int
    partition: int
    round: int
    dimension: int
    request: wire.PersonalRequest
    kernels: NDArray[np.integer[Any]]
    gradient: Real
    masked: bool


@dataclass(frozen=True)
class Recovery:
    """The attack on one client in one round.

    Attributes
    ----------
    node, partition, round : int
    inversion : Inversion or None
        None when the gradient does not fix x.
    """

    node: int
    partition: int
    round: int
    inversion: Inversion | None


def attack_transcript(transcript: Transcript) -> Iterator[Recovery]:
    """Attack every client in every round of a POF-MKL run.

    Parameters
    ----------
    transcript : Transcript
        All messages of the run.

    Yields
    ------
    Recovery
        In the order of the replies. Rounds of more than one sample come out inconsistent.

    Raises
    ------
    ProtocolError
        See :func:`observe`.
    """
    for seen in observe(transcript):
        yield Recovery(seen.node, seen.partition, seen.round, invert(seen))


def observe(transcript: Transcript) -> Iterator[Observation]:
    """Yield what the server sees of each client in each round.

    The vectors of a secure run are read as if they carried no mask: without it a client's vector
    is zero but for the kernels it chose.

    Raises
    ------
    ProtocolError
        A masked reply without its vector: the transcript was stripped, nothing can be audited.
    """
    described: dict[int, TranscriptEntry] = {}
    asked: dict[int, TranscriptEntry] = {}
    for entry in transcript.entries():
        if entry.direction == "down":
            asked[entry.node] = entry
        elif entry.phase == "describe":
            described[entry.node] = entry
        elif entry.phase in (wire.PersonalReply.phase, wire.MaskedReply.phase):
            question = asked[entry.node]
            answers = question.scalars.get("round") == entry.scalars["round"]
            if answers and question.phase == wire.PersonalRequest.phase:
                yield _read(described[entry.node].scalars, question, entry)


def _read(party: dict[str, Any], question: TranscriptEntry, answer: TranscriptEntry) -> Observation:
    name = f"partition {party['partition']}"
    arrays, scalars, orders = detach(question.arrays, question.scalars, party="server")
    request = wire.PersonalRequest.unpack(arrays, scalars, party="server")
    arrays, scalars, uploads = detach(answer.arrays, answer.scalars, party=name)
    masked = answer.phase == wire.MaskedReply.phase
    kernels: NDArray[np.integer[Any]]
    if masked:
        order = _section(orders, Order.phase, name).read(Order, party="server")
        upload = _section(uploads, Upload.phase, name).read(Upload, party=name)
        encoding = Encoding(order.kind, order.bits, order.bound)  # type: ignore[arg-type]
        vector = encoding.decode(np.concatenate(upload.masked), party["partitions"])
        summed = full_gradient(vector[: -wire.STATISTICS], request)
        if request.selection == "shared":
            many = request.kernels_per_round
            kernels = shared_subset(len(request.theta), many, request.seed, request.round)
            gradient = summed
        else:
            kernels = np.flatnonzero(summed.any(axis=1))
            gradient = summed[kernels]
    else:
        reply = wire.PersonalReply.unpack(arrays, scalars, party=name)
        kernels = np.arange(len(request.theta)) if request.released else reply.kernels
        gradient = full_gradient(reply.gradient.reshape(-1), request)
    return Observation(
        node=answer.node,
        partition=party["partition"],
        round=request.round,
        dimension=party["features"],
        request=request,
        kernels=kernels,
        gradient=gradient,
        masked=masked,
    )


def full_gradient(values: Real, request: wire.KernelRequest) -> Real:
    """Return the gradients of kernels, (m, 2D), zero where a frequency was not chosen."""
    if not request.released:
        return values.reshape(-1, request.theta.shape[1])
    kernels = len(request.theta)
    if isinstance(request, wire.DrawnRequest):
        kernels = 1
    elif isinstance(request, wire.PersonalRequest) and request.selection == "shared":
        kernels = request.kernels_per_round
    shape = kernels, request.features
    chosen = shared_frequencies(*shape, request.released, request.seed, request.round)
    return place_frequencies(values.reshape(-1, 2), chosen, *shape)


def _section(sections: Sequence[Section], phase: str, party: str) -> Section:
    for section in sections:
        if section.phase == phase:
            return section
    raise ProtocolError(
        f"the transcript holds no {phase} of a secure round",
        remedy="record all messages as they pass",
        party=party,
    )


def invert(seen: Observation) -> Inversion | None:
    """Compute a client's sample from what the server sees in one round.

    Returns
    -------
    Inversion or None
        See :func:`invert_gradient`.
    """
    request = seen.request
    found = invert_gradient(
        seen.gradient,
        request.theta[seen.kernels],
        request_frequencies(request, seen.dimension)[seen.kernels],
        probability=known_probability(request, seen.kernels.size),
        regularization=request.regularization,
        selection=cast(Selection, request.selection),
        precision=cast(Precision, request.precision),
    )
    return None if found is None else replace(found, y=found.y + request.centre)


def invert_sum(total: Real, request: wire.PersonalRequest, dimension: int) -> list[Inversion]:
    """Compute the samples of those clients of a sum who were alone in one of their kernels.

    The sum over a cohort is what a secure round releases. A kernel that only one client chose
    holds that client's plain gradient, and one sample explains it. Kernels so wide that they are
    nearly linear on the ball are left out: there a mean of samples looks like a sample. In
    float32 the mean of a few samples close to each other may still pass for one.

    Parameters
    ----------
    total : ndarray, shape (N, 2D)
        The sum of the clients' gradients in this round.
    request : PersonalRequest
        What they were asked; with exploration 1, so that p is known.
    dimension : int
        Number d of features.

    Returns
    -------
    list of Inversion
        One per client found.

    Raises
    ------
    OptionError
        p is not known.
    """
    probability = known_probability(request, request.kernels_per_round)
    if probability is None:
        raise OptionError(f"exploration is {request.exploration}", remedy="attack runs with 1")
    frequencies = request_frequencies(request, dimension)
    curved = (frequencies**2).sum(axis=2).max(axis=1) > _CURVED * TOLERANCE[request.precision]
    found: list[Inversion] = []
    for kernel in np.flatnonzero(total.any(axis=1) & curved):
        rows = [kernel]
        inversion = invert_gradient(
            total[rows],
            request.theta[rows],
            frequencies[rows],
            probability=probability,
            regularization=request.regularization,
            precision=cast(Precision, request.precision),
        )
        if inversion is None or not inversion.consistent:
            continue
        inversion = replace(inversion, y=inversion.y + request.centre)
        if all(np.abs(other.x - inversion.x).max() > _SAME for other in found):
            found.append(inversion)
    return found


def known_probability(request: wire.PersonalRequest, chosen: int) -> float | None:
    """Return the probability of a choice of ``chosen`` kernels where the server knows it (eq. 8).

    That is with exploration 1, with all kernels, and in the first round, when all weights are
    equal. Otherwise None: the attack finds it out of the gradient.
    """
    kernels, many, exploration = len(request.theta), request.kernels_per_round, request.exploration
    if many >= kernels:
        return 1.0
    if exploration < 1.0 and request.step > 0:
        return None
    if request.selection != "bins":
        return many / kernels
    bins = -(-kernels // many)
    return (1.0 - exploration) * chosen / kernels + exploration / bins


def request_frequencies(request: wire.PersonalRequest, dimension: int) -> Floats:
    """Return rho of all kernels, as rounded by the clients, shape (N, D, d)."""
    return _draw(
        request.bandwidths,
        dimension,
        request.features,
        request.seed,
        cast(Precision, request.precision),
        cast(FrequencyDraw, request.frequency_draw),
    )


@lru_cache(maxsize=8)
def _draw(
    bandwidths: bytes,
    dimension: int,
    features: int,
    seed: int,
    precision: Precision,
    draw: FrequencyDraw,
) -> Floats:
    drawn = gaussian_frequencies(bandwidths, dimension, features, seed, precision, draw)
    return np.ascontiguousarray(drawn.T, np.float64).reshape(-1, features, dimension)
