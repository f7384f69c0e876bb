"""The attack on POF-MKL over a whole transcript, plain or secure, and on the sums of cohorts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
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
from fedkern_flwr.wire.message import PhaseMessage

from ...engines import Transcript
from .gradient_inversion import TOLERANCE, Floats, Inversion, invert_gradient
from .network_inversion import invert_network
from .seen import SeenRun

_SAME = 1e-3  # distance below which two solutions are one client
_CURVED = 1e5  # times the tolerance: squared frequency above which a kernel is not linear


class OnlineRun(SeenRun):
    """A recorded run of POF-MKL or of one of its baselines."""

    name, kinds, opening = "an online method", wire, wire.StreamRequest


@dataclass(frozen=True)
class Observation:
    """What the server sees of one client in one round.

    Attributes
    ----------
    partition, round : int
    dimension : int
        Number d of features of the client's rows, from its description.
    request : StreamRequest
        What the server asked, with theta or the network's parameters.
    kernels : ndarray, shape (m,)
        The kernels whose gradients it has, or those in which a masked vector is not zero; none of
        a network.
    gradient : ndarray, shape (m, 2D) or (parameters,)
        Their gradients. Of a secure run: the masked vector decoded as if it were not masked.
    masked : bool
    """

    partition: int
    round: int
    dimension: int
    request: Any
    kernels: NDArray[np.integer[Any]]
    gradient: Real
    masked: bool


_LEARNING = (wire.PersonalRequest, wire.SharedRequest, wire.DrawnRequest, wire.NetworkRequest)


def observe(transcript: Transcript) -> Iterator[Observation]:
    """Yield what the server sees of each client in each round, in the order of the replies.

    The vectors of a secure run are read as if they carried no mask: without it a client's vector
    is zero but for the kernels it chose.

    Raises
    ------
    ProtocolError
        A masked reply without its vector: the transcript was stripped, nothing can be audited.
    """
    run = OnlineRun(transcript)
    sent = {
        (v.partition, v.request.round): v for v in run.masked() if v.order.name == wire.UPDATE_SUM
    }
    for passed, request in run.answered(PhaseMessage):
        if type(request) not in _LEARNING or passed.message.round != request.round:
            continue
        masked = isinstance(passed.message, wire.MaskedReply)
        if masked:
            vector = sent[passed.partition, request.round]
            kernels, gradient = _unmasked(request, vector.read("fixed point"))
        else:
            kernels, gradient = _plain(request, passed.message)
        dimension = run.parties[passed.partition].features
        yield Observation(
            passed.partition, request.round, dimension, request, kernels, gradient, masked
        )


def observe_products(
    transcript: Transcript,
) -> Iterator[tuple[int, wire.RidgeRequest, Floats]]:
    """Yield partition, request and sums of each reply of POF-RLS, masked ones read as they came."""
    run = OnlineRun(transcript)
    sent = {
        (v.partition, v.request.round): v for v in run.masked() if v.order.name == wire.UPDATE_SUM
    }
    for passed, request in run.answered(PhaseMessage):
        if type(request) is wire.RidgeRequest and passed.message.round == request.round:
            total = getattr(passed.message, "total", None)
            if total is None:
                vector = sent[passed.partition, request.round].read("fixed point")
                total = vector[: -wire.STATISTICS]
            yield passed.partition, request, total


def _plain(request: Any, reply: Any) -> tuple[NDArray[np.integer[Any]], Real]:
    """Return whose gradients a reply has, and these."""
    kernels = _asked_kernels(request)
    if isinstance(request, wire.NetworkRequest):
        return kernels, reply.gradient
    if isinstance(request, wire.PersonalRequest) and not request.released:
        kernels = reply.kernels
    return kernels, full_gradient(reply.gradient.reshape(-1), request)


def _unmasked(request: Any, vector: Floats) -> tuple[NDArray[np.integer[Any]], Floats]:
    """Read a masked vector as if it had no mask."""
    kernels = _asked_kernels(request)
    if isinstance(request, wire.NetworkRequest):
        return kernels, vector[: -wire.STATISTICS]
    size = 2 * request.released or len(kernels) * request.theta.shape[1]
    gradient = full_gradient(vector[:size], request)
    used = gradient.any(axis=1)  # without a mask, kernels that were not chosen are zero
    return kernels[used], gradient[used]


def _asked_kernels(request: Any) -> NDArray[np.intp]:
    """Return the kernels whose gradients are asked for; none of a network."""
    if isinstance(request, wire.NetworkRequest):
        return np.zeros(0, np.intp)
    if isinstance(request, wire.DrawnRequest):
        return np.array([request.kernel], np.intp)
    return summed_kernels(request)


def summed_kernels(request: wire.KernelRequest) -> NDArray[np.intp]:
    """Return the kernels that a sum has, which all clients choose alike or each by itself."""
    kernels = len(request.theta)
    if isinstance(request, wire.PersonalRequest) and request.selection == "shared":
        many = request.kernels_per_round
        return shared_subset(kernels, many, request.seed, request.round).astype(np.intp)
    return np.arange(kernels)


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


def invert(seen: Observation) -> Inversion | None:
    """Compute a client's sample from what the server sees in one round.

    Returns
    -------
    Inversion or None
        See :func:`invert_gradient` and :func:`invert_network`. Rounds of more than one sample come
        out inconsistent.
    """
    request = seen.request
    if isinstance(request, wire.NetworkRequest):
        gradient = np.asarray(seen.gradient, np.float64)
        given = request.parameters, request.layers, request.seed, seen.dimension
        return invert_network(gradient, *given)
    probability: float | None = getattr(request, "probability", 1.0)
    if isinstance(request, wire.PersonalRequest):
        probability = known_probability(request, seen.kernels.size)
    found = invert_gradient(
        seen.gradient,
        request.theta[seen.kernels],
        request_frequencies(request, seen.dimension)[seen.kernels],
        probability=probability,
        regularization=request.regularization,
        selection=cast(Selection, getattr(request, "selection", "subset")),
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


def request_frequencies(request: wire.KernelRequest, dimension: int) -> Floats:
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
