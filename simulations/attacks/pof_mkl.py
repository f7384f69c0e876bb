"""POF-MKL against its server: plain gradients, released sums, and who is in them.

:func:`observe` reads a transcript as the server does; :func:`release_of` writes down what it knows
of the sum that a round releases. A masked vector is read as the numbers that it would be without
its mask, so that an attack on a secure run is given as many numbers as one on a plain run.

A row adds a vector v, its gradient, to the released total g; whoever has the row computes v. Of n
rows of a kind with mean m and covariance C of their vectors the total is about normal, N(n m, n C).
To leading order, n times the logarithm of the ratio of the likelihoods with the row and without is

    (v - m)^T C^-1 (g - n m) - (v - m)^T C^-1 (v - m) / 2

which :func:`sum_membership` returns. It needs no more numbers than unknowns.

Source: for means of independent columns Homer et al., "Resolving individuals contributing trace
amounts of DNA", PLoS Genetics 2008; the ratio of likelihoods as in Carlini et al., "Membership
Inference Attacks From First Principles", 2022.

**POF-RLS** against its clients: the sums of the others, from the inverses that each client gets.

A client goes on learning between messages, for which it needs (P + lambda I)^-1, where P is the sum
of Phi^T Phi over all rows so far of all clients. It inverts that, takes off lambda and the products
of its own rows, and has the sum over the others. P times the coefficients is Phi^T y, likewise.
What that sum shows is what any sum of so few rows shows: the release limit counts for it the rows
of all others but the largest.

Source: follows from what :mod:`fedkern_flwr.strategies.pof_rls` sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
from ..engines import Transcript, simulate
from .inversion import Equations, Inversion, Release, invert_gradient, invert_release
from .seen import Floats, Seen, SeenRun, served

CLIENTS, SAMPLES, COLUMNS = 5, 40, 4
#: A row counts as computed when its label and all of its columns are as near as this.
RETURNED = 1e-3
_SUMS = 10  # of a run, in which members are looked for
_SHRINKAGE = 0.1  # of the covariance towards a multiple of the identity


# -- what the server sees


class OnlineRun(SeenRun):
    """A recorded run of POF-MKL."""

    name, kinds, opening = "an online method", wire, wire.StreamRequest


@dataclass(frozen=True)
class Observation:
    """What the server sees of one client in one round.

    Attributes
    ----------
    partition, dimension : int
        The client, and the number d of its features.
    request : PersonalRequest
        What the server asked, with theta.
    kernels : ndarray, shape (m,)
        The kernels whose gradients it has, or those in which a masked vector is not zero.
    gradient : ndarray, shape (m, 2D)
        Their gradients. Of a secure run: the masked vector decoded as if it were not masked.
    """

    partition: int
    dimension: int
    request: wire.PersonalRequest
    kernels: NDArray[np.integer[Any]]
    gradient: Real


def observe(transcript: Transcript) -> Iterator[Observation]:
    """Yield what the server sees of each client in each round, in the order of the replies.

    Raises
    ------
    ProtocolError
        A masked reply without its vector: the transcript was stripped, nothing can be attacked.
    """
    run = OnlineRun(transcript)
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
    """Return the gradients of kernels, (m, 2D), zero where a frequency was not chosen."""
    if not request.released:
        return values.reshape(-1, request.theta.shape[1])
    shape = len(request.theta), request.features
    chosen = shared_frequencies(*shape, request.released, request.seed, request.round)
    return place_frequencies(values.reshape(-1, 2), chosen, *shape)


def known_probability(request: wire.PersonalRequest) -> float | None:
    """Return the probability with which a kernel is chosen (eq. 8), None where it is private."""
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
    """Compute a client's sample from what the server sees in one round, see `invert_gradient`."""
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


def release_of(
    request: wire.PersonalRequest, total: Floats, samples: int, dimension: int
) -> Release:
    """Return what the server knows of a sum over all clients of gradients of all kernels."""
    given = full_gradient(np.ones_like(total), request) > 0.0
    return Release(
        total=np.where(given, full_gradient(total, request), np.nan),
        theta=np.asarray(request.theta, np.float64),
        frequencies=request_frequencies(request, dimension),
        bandwidths=np.frombuffer(request.bandwidths, "<f8"),
        samples=samples,
        regularization=request.regularization,
        scale=len(request.theta) / request.kernels_per_round,
        middle=0.5 - request.centre,
    )


def sum_membership(release: Release, familiar: Floats, candidates: Floats) -> Floats:
    """Return how much candidates look like rows in a sum.

    Parameters
    ----------
    release : Release
        The sum.
    familiar : ndarray, shape (r, d + 1)
        Rows and labels of the same kind that the attacker has, two or more. As in ``release``,
        labels are less what theta = 0 predicts.
    candidates : ndarray, shape (k, d + 1)
        Rows and labels that may be in the sum.

    Returns
    -------
    ndarray, shape (k,)
        The higher, the more likely in it.
    """
    sums = Equations(release)
    known, asked = sums.terms(familiar), sums.terms(candidates)
    mean = known.mean(axis=0)
    _, sizes, axes = np.linalg.svd(known - mean, full_matrices=False)
    variances = sizes**2 / (len(known) - 1)
    floor = _SHRINKAGE * variances.sum() / mean.size
    gain = 1.0 / (variances + floor) - 1.0 / floor
    asked -= mean
    rest = sums.target - release.samples * mean
    along, of_rest = asked @ axes.T, axes @ rest
    product = asked @ rest / floor + (along * gain) @ of_rest
    square = (asked**2).sum(axis=1) / floor + along**2 @ gain
    return np.asarray(product - 0.5 * square)


def advantage(members: Floats, others: Floats) -> float:
    """Return how much oftener a member has the higher score than another row, from -1 to 1."""
    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    wins = ranks.sum() - len(members) * (len(members) + 1) / 2.0
    return float(2.0 * wins / (len(members) * len(others)) - 1.0)


# -- runs


@dataclass(frozen=True)
class Recorded:
    """A run of POF-MKL: its strategy, transcript, the sum of each round, and the streams."""

    strategy: POFMKL
    transcript: Transcript
    rows: Floats  # (clients, samples, d + 1), labels last
    totals: list[Floats] = field(default_factory=list)

    @property
    def requests(self) -> list[wire.PersonalRequest]:
        """The requests of the rounds, in order."""
        return list(OnlineRun(self.transcript).requests(wire.PersonalRequest, 0))

    def members(self, request: wire.PersonalRequest) -> Floats:
        """Return the rows of a round, with labels, (n, d + 1)."""
        taken = self.rows[:, request.step : request.step + request.samples]
        return taken.reshape(-1, self.rows.shape[2])

    def release(self, number: int) -> tuple[Release, Floats]:
        """Return what the server knows of the sum of a round, and the rows in it."""
        request = self.requests[number]
        members = self.members(request)
        return release_of(request, self.totals[number], len(members), COLUMNS), members


def streams(seed: int) -> Floats:
    """Return made-up streams, shape (clients, samples, d + 1): rows in the ball, labels last."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (CLIENTS, SAMPLES, COLUMNS)) / np.sqrt(COLUMNS)
    clean = 0.4 * np.sin(3.0 * x[..., 0] + 0.5 * np.arange(CLIENTS)[:, None]) + 0.5
    y = np.clip(clean + 0.02 * rng.standard_normal(clean.shape), 0.0, 1.0)
    return np.concatenate([x, y[..., None]], axis=2)


def run(seed: int, **options: Any) -> Recorded:
    """Run POF-MKL with some options over made-up streams, and keep everything."""
    rows = streams(seed)
    recorded = Recorded(POFMKL(seed=seed, **options), Transcript(), rows)
    step = recorded.strategy.step

    def stepped(total: Floats, answers: int) -> Any:
        recorded.totals.append(total.copy())
        return step(total, answers)

    recorded.strategy.step = stepped  # type: ignore[method-assign]

    def client(context: Any, k: int) -> OnlineKernelClient:
        return OnlineKernelClient(context, rows[k, :, :-1], rows[k, :, -1])

    simulate(
        recorded.strategy,
        served(client),
        CLIENTS,
        transcript=recorded.transcript,
        num_rounds=SAMPLES,
    )
    return recorded


@cache
def default_run(seed: int) -> Recorded:
    """Return a run of what a deployment does by default."""
    return run(seed, secure=True)


def plain_gradients(seed: int) -> Recorded:
    """Return a run of the paper: plain gradients, divided by probabilities that are private."""
    private: dict[str, Any] = {"exploration": 0.5, "precision": "float64"}
    return run(seed, secure=False, samples_per_round=1, **private)


@cache
def whole_gradients(seed: int) -> Recorded:
    """Return a secure run that releases whole gradients of one sample of each client."""
    return run(seed, secure=True, samples_per_round=1, frequencies_per_round="all")


# -- the attacks


def samples_found(recorded: Recorded) -> float:
    """Return the share of replies out of which the server computes a sample with its label."""
    hits = []
    for seen in observe(recorded.transcript):
        found = invert(seen)
        start = seen.request.step
        true = recorded.rows[seen.partition, start : start + seen.request.samples]
        computed = np.full((1, COLUMNS + 1), np.inf)
        if found is not None and np.isfinite(found.y):
            computed = np.append(found.x, found.y)[None]
        hits.append(cdist(true, computed, "chebyshev").min() < RETURNED)
    return float(np.mean(hits))


def rows_returned(recorded: Recorded, seed: int) -> float:
    """Return the share of rows in the last sum that the server computes, all columns right."""
    release, members = recorded.release(-1)
    found, _ = invert_release(release, seed)
    computed = found + np.append(np.zeros(COLUMNS), 0.5 - release.middle)
    return float((cdist(members, computed, "chebyshev").min(axis=1) < RETURNED).mean())


def members_told(recorded: Recorded, seed: int) -> float:
    """Return the advantage of the test of membership over some sums of a run.

    The server has half of the rows that are not in a sum; the other half are the candidates.
    """
    rng = np.random.default_rng(seed)
    inside, outside = list[Floats](), list[Floats]()
    every = max(1, len(recorded.requests) // _SUMS)
    for number, request in list(enumerate(recorded.requests))[::every]:
        release, members = recorded.release(number)
        others = np.delete(
            recorded.rows, slice(request.step, request.step + request.samples), axis=1
        )
        zero = np.append(np.zeros(COLUMNS), 0.5 - release.middle)  # labels less the prediction
        mixed = rng.permutation(others.reshape(-1, COLUMNS + 1)) - zero
        familiar, absent = np.array_split(mixed, 2)
        scores = sum_membership(release, familiar, np.concatenate([members - zero, absent]))
        inside.append(scores[: len(members)])
        outside.append(scores[len(members) :])
    return advantage(np.concatenate(inside), np.concatenate(outside))


def invert_plain(seed: int) -> list[Seen]:
    """Invert each reply of a plain run."""
    return [Seen("server", samples_found(plain_gradients(seed)))]


def invert_masked(seed: int) -> list[Seen]:
    """Invert each reply of the default, as if it had no mask."""
    return [Seen("server", samples_found(default_run(seed)))]


def invert_whole(seed: int) -> list[Seen]:
    """Invert a sum of whole gradients."""
    return [Seen("server", rows_returned(whole_gradients(seed), seed))]


def invert_default(seed: int) -> list[Seen]:
    """Invert a sum of the default."""
    return [Seen("server", rows_returned(default_run(seed), seed))]


def members_of_whole(seed: int) -> list[Seen]:
    """Tell who is in sums of whole gradients."""
    return [Seen("server", members_told(whole_gradients(seed), seed))]


def members_of_default(seed: int) -> list[Seen]:
    """Tell who is in sums of the default."""
    run, said = default_run(seed), "sums over the clients of a round"
    return [Seen("server", members_told(run, seed), said, run.strategy.privacy())]


# -- POF-RLS: the sums of the others, from the inverses that each client gets


def products(rows: Floats, centre: float) -> tuple[Floats, Floats]:
    """Return Phi^T Phi and Phi^T y of rows with labels, (..., d + 1), on raw columns."""
    flat = rows.reshape(-1, rows.shape[-1])
    phi, y = ridge.raw_rows(flat[:, :-1]), flat[:, -1] - centre
    return phi.T @ phi, phi.T @ y


def sums_of_others(request: wire.RidgeRequest, own: Floats) -> tuple[Floats, Floats]:
    """Return Phi^T Phi and Phi^T y of all others' rows so far, as a client computes them.

    ``own`` are its rows before the message, with labels.
    """
    p = own.shape[1]
    inverse, theta = ridge.unpack(request.starts[: ridge.numbers(p)], p)
    total = np.linalg.inv(inverse)
    mine = products(own, request.centre)
    return total - request.regularization * np.eye(p) - mine[0], total @ theta - mine[1]


def recovered(seed: int, **options: Any) -> Seen:
    """Run POF-RLS; return what its first client computes of the others in the last message."""
    rows, transcript = streams(seed), Transcript()

    def client(context: Any, k: int) -> OnlineKernelClient:
        return OnlineKernelClient(context, rows[k, :, :-1], rows[k, :, -1])

    strategy = POFRLS(seed=seed, **options)
    simulate(strategy, served(client), CLIENTS, transcript=transcript, num_rounds=SAMPLES)
    last = list(OnlineRun(transcript).requests(wire.RidgeRequest, 0))[-1]
    found = sums_of_others(last, rows[0, : last.step])
    true = products(rows[1:, : last.step], last.centre)
    error = max(np.abs(f - t).max() / np.abs(t).max() for f, t in zip(found, true, strict=True))
    said = "inverses from which each client computes the sums of all others"
    return Seen("client", max(0.0, 1.0 - float(error)), said, strategy.privacy())


def others_on_plain(seed: int) -> list[Seen]:
    """Compute the others' sums in a plain run."""
    return [recovered(seed, secure=False)]


def others_on_default(seed: int) -> list[Seen]:
    """Compute the others' sums in a run with secure sums: masks do not change what clients get."""
    return [recovered(seed, secure=True)]
