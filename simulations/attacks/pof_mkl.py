"""Attack POF-MKL at its server, and POF-RLS at its clients.

**POF-MKL.** The server of a plain run inverts each reply, that of a secure run the sum of a round,
or tests membership. A masked vector is decoded as if it had no mask.

A row adds its gradient v to the released total g. Of n rows with mean m and covariance C of their
gradients the total is about N(n m, n C). To leading order, n times the log-likelihood ratio is

    (v - m)^T C^-1 (g - n m) - (v - m)^T C^-1 (v - m) / 2

Source: for means of independent columns Homer et al., "Resolving individuals contributing trace
amounts of DNA", PLoS Genetics 2008; the likelihood ratio as in Carlini et al., "Membership
Inference Attacks From First Principles", 2022.

**POF-RLS.** A client receives (P + lambda I)^-1, where P is the sum of Phi^T Phi over all rows so
far. The inverse of it, less lambda I and the products of its own rows, is the sum over the others.
P times the coefficients gives Phi^T y. So the release limit counts the rows of all others but the
largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import rankdata

from fedkern_flwr.kernels.random_features import (
    FrequencyDraw,
    Precision,
    Real,
    gaussian_frequencies,
)
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge
from fedkern_flwr.online.learning import place_frequencies, shared_frequencies

from ...clients import OnlineKernelClient
from ...strategies import POFMKL, POFRLS
from .inversion import Equations, Inversion, Release, invert_gradient, invert_release
from .seen import Floats, SeenRun

CLIENTS, SAMPLES, COLUMNS = 5, 40, 4
#: A row counts as computed when its label and all columns are as near as this.
RETURNED = 1e-3
_SUMS = 10  # of a run, in which members are searched for
_SHRINKAGE = 0.1  # of the covariance towards a multiple of the identity


# -- what the server sees


def streams(seed: int) -> Floats:
    """Make streams, shape (clients, samples, d + 1): rows in the unit ball, labels last."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (CLIENTS, SAMPLES, COLUMNS)) / np.sqrt(COLUMNS)
    clean = 0.4 * np.sin(3.0 * x[..., 0] + 0.5 * np.arange(CLIENTS)[:, None]) + 0.5
    y = np.clip(clean + 0.02 * rng.standard_normal(clean.shape), 0.0, 1.0)
    return np.concatenate([x, y[..., None]], axis=2)


class OnlineRun(SeenRun):
    """A run of POF-MKL or POF-RLS over made-up streams.

    Attributes
    ----------
    rows : ndarray, shape (clients, samples, d + 1)
        The streams, labels last.
    totals : list of ndarray
        POF-MKL's sum of each round.
    """

    kinds, opening = wire, wire.StreamRequest

    def __init__(self, strategy: POFMKL | POFRLS, seed: int) -> None:
        rows = self.rows = streams(seed)
        self.totals: list[Floats] = []
        if isinstance(strategy, POFMKL):
            step = strategy.step

            def stepped(total: Floats, answers: int) -> Any:
                self.totals.append(total.copy())
                return step(total, answers)

            strategy.step = stepped  # type: ignore[method-assign]

        def client(context: Any, k: int) -> OnlineKernelClient:
            return OnlineKernelClient(context, rows[k, :, :-1], rows[k, :, -1])

        super().__init__(strategy, client, CLIENTS, num_rounds=SAMPLES)

    def members(self, request: wire.PersonalRequest) -> Floats:
        """Return the rows of a round, with labels, shape (n, d + 1)."""
        taken = self.rows[:, request.step : request.step + request.samples]
        return taken.reshape(-1, self.rows.shape[2])

    def release(self, number: int) -> tuple[Release, Floats]:
        """Return what the server knows of the sum of a round, and the rows in it."""
        request = list(self.requests(wire.PersonalRequest, 0))[number]
        members, total = self.members(request), self.totals[number]
        given = full_gradient(np.ones_like(total), request) > 0.0
        release = Release(
            total=np.where(given, full_gradient(total, request), np.nan),
            theta=np.asarray(request.theta, np.float64),
            frequencies=request_frequencies(request, COLUMNS),
            bandwidths=np.frombuffer(request.bandwidths, "<f8"),
            samples=len(members),
            regularization=request.regularization,
            scale=len(request.theta) / request.kernels_per_round,
            middle=0.5 - request.centre,
        )
        return release, members


@dataclass(frozen=True)
class Observation:
    """What the server sees of one client in one round.

    Attributes
    ----------
    partition, dimension : int
        The client, and its number d of features.
    request : PersonalRequest
    kernels : ndarray, shape (m,)
        Kernels with gradients.
    gradient : ndarray, shape (m, 2D)
    """

    partition: int
    dimension: int
    request: wire.PersonalRequest
    kernels: NDArray[np.integer[Any]]
    gradient: Real


def observe(run: OnlineRun) -> Iterator[Observation]:
    """Yield what the server sees of each client in each round.

    Raises
    ------
    ProtocolError
        A masked reply lacks its vector.
    """
    sent = {
        (v.partition, v.request.round): v for v in run.masked() if v.order.name == wire.UPDATE_SUM
    }
    for passed, request in run.answered(wire.MaskedReply, wire.PersonalReply):
        if type(request) is not wire.PersonalRequest or passed.message.round != request.round:
            continue
        kernels = np.arange(len(request.theta))
        if isinstance(passed.message, wire.MaskedReply):
            numbers = 2 * request.released or request.theta.size
            vector = sent[passed.partition, request.round].read()
            gradient = full_gradient(vector[:numbers], request)
            used = gradient.any(axis=1)  # without a mask, kernels that were not chosen are zero
            kernels, gradient = kernels[used], gradient[used]
        else:
            if not request.released:
                kernels = passed.message.kernels
            gradient = full_gradient(passed.message.gradient.reshape(-1), request)
        dimension = run.parties[passed.partition].features
        yield Observation(passed.partition, dimension, request, kernels, gradient)


def full_gradient(values: Real, request: wire.PersonalRequest) -> Real:
    """Return gradients of kernels, shape (m, 2D), zero at frequencies that were not chosen."""
    if not request.released:
        return values.reshape(-1, request.theta.shape[1])
    shape = len(request.theta), request.features
    chosen = shared_frequencies(*shape, request.released, request.seed, request.round)
    return place_frequencies(values.reshape(-1, 2), chosen, *shape)


def known_probability(request: wire.PersonalRequest) -> float | None:
    """Return the probability of a kernel (eq. 8), None where it is private."""
    kernels, many = len(request.theta), request.kernels_per_round
    if many >= kernels:
        return 1.0
    if request.exploration < 1.0 and request.step > 0:  # all weights are equal at first
        return None
    return 1.0 / -(-kernels // many) if request.selection == "bins" else many / kernels


def request_frequencies(request: wire.KernelRequest, dimension: int) -> Floats:
    """Return rho of all kernels, as rounded by the clients, shape (N, D, d)."""
    law = cast(Precision, request.precision), cast(FrequencyDraw, request.frequency_draw)
    shape = dimension, request.features
    drawn = gaussian_frequencies(request.bandwidths, *shape, request.seed, *law)
    return np.ascontiguousarray(drawn.T, np.float64).reshape(-1, request.features, dimension)


def invert(seen: Observation) -> Inversion | None:
    """Compute the sample of an observation, see :func:`.inversion.invert_gradient`."""
    request = seen.request
    found = invert_gradient(
        seen.gradient,
        request.theta[seen.kernels],
        request_frequencies(request, seen.dimension)[seen.kernels],
        probability=known_probability(request),
        regularization=request.regularization,
        precision=cast(Precision, request.precision),
    )
    return None if found is None else replace(found, y=found.y + request.centre)


def sum_membership(release: Release, familiar: Floats, candidates: Floats) -> Floats:
    """Score how much candidates, shape (k, d + 1), look like rows in a sum.

    ``familiar``, shape (r, d + 1), are two or more rows of the same kind that the attacker has.
    Labels are less the prediction of theta = 0.
    """
    sums = Equations(release)
    known, tested = sums.terms(familiar), sums.terms(candidates)
    mean = known.mean(axis=0)
    _, sizes, axes = np.linalg.svd(known - mean, full_matrices=False)
    variances = sizes**2 / (len(known) - 1)
    floor = _SHRINKAGE * variances.sum() / mean.size
    gain = 1.0 / (variances + floor) - 1.0 / floor
    tested -= mean
    rest = sums.target - release.samples * mean
    along, of_rest = tested @ axes.T, axes @ rest
    product = tested @ rest / floor + (along * gain) @ of_rest
    square = (tested**2).sum(axis=1) / floor + along**2 @ gain
    return np.asarray(product - 0.5 * square)


def advantage(members: Floats, others: Floats) -> float:
    """Compute P(a member scores higher than another row) less P(lower)."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    wins = ranks.sum() - len(members) * (len(members) + 1) / 2.0
    return float(2.0 * wins / (len(members) * len(others)) - 1.0)


# -- runs


def run(seed: int, **options: Any) -> OnlineRun:
    """Run POF-MKL with some options."""
    return OnlineRun(POFMKL(seed=seed, **options), seed)


@cache
def default_run(seed: int) -> OnlineRun:
    """Run the default of a deployment."""
    return run(seed, secure=True)


def plain_gradients(seed: int) -> OnlineRun:
    """Run the paper's protocol: plain gradients, divided by probabilities that are private."""
    private: dict[str, Any] = {"exploration": 0.5, "precision": "float64"}
    return run(seed, secure=False, samples_per_round=1, **private)


@cache
def whole_gradients(seed: int) -> OnlineRun:
    """Run secure sums of whole gradients of one sample of each client."""
    return run(seed, secure=True, samples_per_round=1, frequencies_per_round="all")


def ridge_run(seed: int, **options: Any) -> OnlineRun:
    """Run POF-RLS with some options."""
    return OnlineRun(POFRLS(seed=seed, **options), seed)


# -- what the attacks measure


def samples_found(run: OnlineRun, seed: int = 0) -> float:
    """Compute the share of replies that give the server a sample with its label."""
    hits = []
    for seen in observe(run):
        found = invert(seen)
        start = seen.request.step
        true = run.rows[seen.partition, start : start + seen.request.samples]
        computed = np.full((1, COLUMNS + 1), np.inf)
        if found is not None and np.isfinite(found.y):
            computed = np.append(found.x, found.y)[None]
        hits.append(cdist(true, computed, "chebyshev").min() < RETURNED)
    return float(np.mean(hits))


def rows_returned(run: OnlineRun, seed: int) -> float:
    """Compute the share of rows in the last sum that the server computes."""
    release, members = run.release(-1)
    found, _ = invert_release(release, seed)
    computed = found + np.append(np.zeros(COLUMNS), 0.5 - release.middle)
    return float((cdist(members, computed, "chebyshev").min(axis=1) < RETURNED).mean())


def members_found(run: OnlineRun, seed: int) -> float:
    """Compute the advantage of the membership test over some sums of a run.

    The server has half of the rows that are not in a sum; the other half are candidates.
    """
    rng = np.random.default_rng(seed)
    inside, outside = list[Floats](), list[Floats]()
    requests = list(run.requests(wire.PersonalRequest, 0))
    for number in range(0, len(requests), max(1, len(requests) // _SUMS)):
        request = requests[number]
        release, members = run.release(number)
        others = np.delete(run.rows, slice(request.step, request.step + request.samples), axis=1)
        zero = np.append(np.zeros(COLUMNS), 0.5 - release.middle)  # labels less the prediction
        mixed = rng.permutation(others.reshape(-1, COLUMNS + 1)) - zero
        familiar, absent = np.array_split(mixed, 2)
        scores = sum_membership(release, familiar, np.concatenate([members - zero, absent]))
        inside.append(scores[: len(members)])
        outside.append(scores[len(members) :])
    return advantage(np.concatenate(inside), np.concatenate(outside))


def products(rows: Floats, centre: float) -> tuple[Floats, Floats]:
    """Return Phi^T Phi and Phi^T y of rows with labels, shape (..., d + 1), on raw columns."""
    flat = rows.reshape(-1, rows.shape[-1])
    phi, y = ridge.raw_rows(flat[:, :-1]), flat[:, -1] - centre
    return phi.T @ phi, phi.T @ y


def others_found(run: OnlineRun, seed: int) -> float:
    """Compute the others' Phi^T Phi and Phi^T y as POF-RLS's first client at the last message."""
    request = list(run.requests(wire.RidgeRequest, 0))[-1]
    p = COLUMNS + 1
    inverse, theta = ridge.unpack(request.starts[: ridge.numbers(p)], p)
    total = np.linalg.inv(inverse)
    own, true = (
        products(rows, request.centre)
        for rows in (run.rows[0, : request.step], run.rows[1:, : request.step])
    )
    found = total - request.regularization * np.eye(p) - own[0], total @ theta - own[1]
    error = max(np.abs(f - t).max() / np.abs(t).max() for f, t in zip(found, true, strict=True))
    return max(0.0, 1.0 - float(error))
