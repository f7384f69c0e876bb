"""What the sums that rounds of POF-MKL and POF-RLS release give away, masks or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from fedkern_flwr.errors import OptionError
from fedkern_flwr.kernels.random_features import gaussian_frequencies
from fedkern_flwr.online import messages as wire
from fedkern_flwr.online import ridge, ridge_plan
from fedkern_flwr.seeding import derive_seed

from ....strategies import POFMKL, POFRLS
from ..attacks.joint_inversion import Release, invert_release
from ..attacks.product_inversion import Products, invert_products
from ..attacks.sum_membership import sum_membership
from ..attacks.transcripts import (
    full_gradient,
    invert_sum,
    request_frequencies,
    summed_kernels,
)
from .evidence import CHOICES, Sheet, Subject
from .plan import Recorded

Floats = NDArray[np.float64]

SERVER, PRODUCTS = "server", "product inversion"
#: A row counts as computed when its label and all of its columns, scaled, are as near as this.
RETURNED = 1e-3


def keep_sums(strategy: Any, released: list[Any]) -> None:
    """Keep the sum of each round, as the server knows it: (round, numbers)."""
    if not isinstance(strategy, POFMKL | POFRLS):
        return
    step = strategy.step

    def stepped(total: Floats, answers: int) -> Any:
        released.append((len(strategy.history_) + 1, total.copy()))
        return step(total, answers)

    strategy.step = stepped  # type: ignore[method-assign]


def attack_lonely(
    released: Sequence[tuple[int, Floats]],
    requests: Mapping[int, wire.PersonalRequest],
    rounds: Sequence[int],
    dimension: int,
) -> Floats:
    """Return for each of ``rounds`` the samples of clients alone in a kernel, shape (n, k, d).

    The server cannot tell whose they are.
    """
    of_rounds: dict[int, list[Floats]] = {}
    for number, total in released:
        dense = np.nan_to_num(released_gradient(requests[number], total))
        try:
            solutions = invert_sum(dense, requests[number], dimension)
        except OptionError:  # probabilities are not public: nothing to compute with
            solutions = []
        of_rounds[number] = [s.x for s in solutions]
    most = max(1, *map(len, of_rounds.values()))
    found = np.full((len(rounds), most, dimension), np.nan)
    for k, number in enumerate(rounds):
        for j, x in enumerate(of_rounds[number]):
            found[k, j] = x
    return found


def attack_joint(run: Recorded, requests: Mapping[int, wire.PersonalRequest], sheet: Sheet) -> None:
    """Attack the sums of the first round, of a later one and of the last.

    The rows behind them are computed. How much nearer these are to the true ones than to others,
    and whether a row at hand is behind a sum, is shown and not judged. Sums in which clients choose
    kernels of their own are left to :func:`attack_lonely`.
    """
    if run.strategy.subset == "private" and run.strategy.kernels_per_round < run.strategy.kernels:
        return
    totals = dict(run.released)
    for name, number in _rounds(sorted(totals)).items():
        subject = Subject("joint inversion", SERVER, f"samples of {name} sum: features, label")
        if sheet.done(subject):
            continue
        request = requests[number]
        members, others = _streams(run, request.step, request.step + request.samples)
        release = release_of(request, totals[number], len(members), members.shape[1] - 1)
        found = invert_release(release, derive_seed(request.seed, "joint inversion", number))
        computed = np.column_stack([found.x, found.y + request.centre])
        sheet.counts(subject, returned(computed, members), costly=True)
        nearest = Subject("joint inversion", SERVER, f"samples of {name} sum: nearest of ten", True)
        sheet.members(nearest, computed, members, others)
        behind = Subject("membership in a sum", SERVER, f"which of ten is behind {name} sum", True)
        labels = np.append(np.zeros(release.frequencies.shape[2]), request.centre)
        _test_members(release, members - labels, others - labels, sheet, behind)


def attack_products(run: Recorded, requests: Mapping[int, Any], sheet: Sheet) -> None:
    """Attack the sums of products of the first window of rows, of a later one and of the last.

    A window ends with a message that sums features, or is the rows of a message where none are.
    """
    windows: dict[int, list[int]] = {}
    for number, _ in sorted(run.released):
        windows.setdefault(requests[number].window, []).append(number)
    totals = dict(run.released)
    for name, start in _rounds(sorted(windows)).items():
        subject = Subject(PRODUCTS, SERVER, f"samples of {name} sums: features, label")
        if sheet.done(subject):
            continue
        asked = [requests[number] for number in windows[start]]
        members, _ = _streams(run, start, asked[-1].step + asked[-1].samples)
        sums = products_of(asked, [totals[n] for n in windows[start]], run)
        x, y, _ = invert_products(sums, derive_seed(asked[0].seed, PRODUCTS, start))
        computed = np.column_stack([x, y + asked[0].centre])
        sheet.counts(subject, returned(computed, members), costly=True)


def products_of(
    requests: Sequence[wire.RidgeRequest], totals: Sequence[Floats], run: Recorded
) -> Products:
    """Return what the server knows of the rows of the messages of a window."""
    clients, dimension = len(run.prepared.clients.shards), run.prepared.clients.shards[0].x.shape[1]
    last, numbers = requests[-1], ridge.numbers(dimension + 1)
    raw = [
        total[: numbers * one.raw] / ridge_plan.scale(one.samples)
        for one, total in zip(requests, totals, strict=True)
    ]
    kernels, frequencies = 0, np.zeros((0, dimension, 0))
    if last.sums:
        kernels, how = last.shared, (last.seed, "float64", "orthogonal")
        every = gaussian_frequencies(last.bandwidths, dimension, last.features, *how)  # type: ignore[arg-type]
        every = every.reshape(dimension, last.kernels, last.features).swapaxes(0, 1)
        frequencies = every[:kernels, :, : last.summed]
    rest = totals[-1][raw[-1].size :] / ridge_plan.scale(last.step + last.samples - last.window)
    return Products(
        raw=tuple(raw),
        samples=tuple(clients * one.samples for one in requests),
        features=rest.reshape(kernels, -1) if kernels else np.zeros((0, 0)),
        frequencies=frequencies,
        scale=float(1.0 / np.sqrt(last.features)),
    )


def returned(computed: Floats, members: Floats) -> NDArray[np.bool_]:
    """Return which rows behind a sum, shape (n, d + 1), were computed, all columns of them."""
    distances = cdist(members, computed, "chebyshev")
    return np.asarray(distances.min(axis=1) < RETURNED)


def _test_members(
    release: Release, members: Floats, others: Floats, sheet: Sheet, subject: Subject
) -> None:
    """Test each row behind a sum and nine others; half of the others are what the server has."""
    familiar, decoys = np.array_split(sheet.rng.permutation(others), 2)
    if len(decoys) < CHOICES - 1:
        raise OptionError(
            f"{len(others)} rows are too few to test whether one of {CHOICES} is behind a sum",
            remedy="audit with more rounds",
        )
    inside, outside = (sum_membership(release, familiar, rows) for rows in (members, decoys))
    drawn = [sheet.rng.choice(outside, CHOICES - 1, replace=False) for _ in members]
    sheet.guesses(subject, -np.column_stack([inside, drawn]))


def released_gradient(request: wire.PersonalRequest, total: Floats) -> Floats:
    """Return the gradient that the numbers of a sum are, (N, 2D), NaN where there is none."""
    given = full_gradient(np.ones_like(total), request) > 0.0
    dense = np.full(request.theta.shape, np.nan)
    dense[summed_kernels(request)] = np.where(given, full_gradient(total, request), np.nan)
    return dense


def release_of(
    request: wire.PersonalRequest, total: Floats, samples: int, dimension: int
) -> Release:
    """Return what the server knows of a sum over all clients of gradients of the same kernels."""
    return Release(
        total=released_gradient(request, total),
        theta=np.asarray(request.theta, np.float64),
        frequencies=request_frequencies(request, dimension),
        bandwidths=np.frombuffer(request.bandwidths, "<f8"),
        samples=samples,
        regularization=request.regularization,
        scale=len(request.theta) / min(request.kernels_per_round, len(request.theta)),
        middle=0.5 - request.centre,
    )


def _rounds(numbers: Sequence[int]) -> dict[str, int]:
    """Return which sums are attacked, by name."""
    first, last = numbers[0], numbers[-1]
    named = {"the first": first, "the last": last, "a later": numbers[len(numbers) // 2]}
    return {n: k for n, k in named.items() if n == "the first" or k != first}


def _streams(run: Recorded, start: int, stop: int) -> tuple[Floats, Floats]:
    """Return the samples of a round of all clients, with labels, and all others of the run.

    They are in the order in which they came.
    """
    shards = run.prepared.clients.shards
    rows = np.stack([np.column_stack([shard.x, shard.y]) for shard in shards], axis=1)
    others = np.delete(rows, slice(start, stop), axis=0)
    return rows[start:stop].reshape(-1, rows.shape[2]), others.reshape(-1, rows.shape[2])
