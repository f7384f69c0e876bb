"""Secure Gram against whoever gets its matrix: K = X^T X of binary profiles of users.

A secure sum shows its receiver K and nothing else. But K = sum_u x_u x_u^T, and no two sets of
binary profiles are likely to have the same one. With fewer users than items every profile is found.
The attack rests on

    K - x x^T is positive semidefinite  <=>  x in the range of K and x^T K^+ x <= 1,

with equality if the profiles are linearly independent: an exact test of a single profile. A profile
that has the items i and j has no item k with K_ik = 0 or K_jk = 0, so that it lies in a space of
fewer dimensions, where :func:`binary_vector` looks for it as a decoder looks for a word. What is
found is subtracted, and the rest is easier. Of MovieLens 100k, items by support or the most popular
ones (measured; 20,000 nodes, patience 60):

    ==================  ==================  =====================================
    users               items               users found
    ==================  ==================  =====================================
    943                 1349 (support 5)    all, in 206 s
    943                 1152, 1032, 1000    all
    943                 960, 939            1 each, right
    300                 1015, 500           all
    300                 400, 350, 320, 300  34, 23, 20, 15, right
    300                 280, 240, 200, 100  none, of 8 to 196 vectors that fit
    20, 40, 100         139, 264, 552       all
    100                 100                 all
    100                 80                  1, of 12 vectors that fit
    ==================  ==================  =====================================

No number of users is known to be safe: these are what one search of a few minutes finds.

Source: follows from sections 2 and 3 of Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel
Computation For Vertically Partitioned Data"; the search: Fincke and Pohst, "Improved Methods for
Calculating Vectors of Short Length in a Lattice", Mathematics of Computation 44, 1985, in the
order of V-BLAST.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from ...clients import GramClient
from ...strategies import SecureGram
from ..engines import simulate
from ..papers import secure_gram as paper
from .phases import Floats
from .table import Attack, Seen, served

Profiles = NDArray[np.int8]

_SLACK = 1e-3  # of x^T K^+ x in the search, for rounding
_CERTAIN = 1e-4  # of x^T K^+ x of a vector that was found
_OUTSIDE = 1e5  # z^T K^+ z of a unit vector outside the range, which has none
_PRESENT = 0.5  # counts above this are one or more
_REFRESH = 20  # profiles after which the inverse is computed anew
_RETRY = 10  # profiles after which a pair of items that failed is tried again


@dataclass(frozen=True)
class Peeling:
    """Profiles computed from a kernel.

    Attributes
    ----------
    profiles : ndarray of int8, shape (k, m)
        In the order in which they were found.
    remaining : ndarray, shape (m, m)
        The kernel less theirs: that of the users who were not found.
    tries : int
        Number of searches.
    """

    profiles: Profiles
    remaining: Floats
    tries: int

    @property
    def complete(self) -> bool:
        """Whether the profiles explain the kernel to the last count."""
        return not bool(np.any(self.remaining.diagonal() > _PRESENT))


def peel_profiles(
    kernel: NDArray[Any], *, nodes: int = 20_000, patience: int = 60, limit: int | None = None
) -> Peeling:
    """Compute profiles one by one, and subtract each.

    Pairs of items that somebody has both of are tried in the order of how many items have been
    seen with both. O(m^3) for the kernel, O(s^3) for a search among s items, and O(m^2) for each
    profile found.

    Parameters
    ----------
    kernel : ndarray, shape (m, m)
        K, or a difference of such kernels.
    nodes : int (default: 20000)
        Steps of a search, at most.
    patience : int (default: 60)
        Searches in a row without success after which to give up.
    limit : int, optional
        Profiles after which to stop.

    Returns
    -------
    Peeling
        If the users are fewer than the items and their profiles are linearly independent, what is
        found is right. Else it may be a vector that nobody has, unless it is complete.
    """
    remaining = np.array(kernel, np.float64)
    found: list[Profiles] = []
    failed: dict[tuple[int, int], int] = {}
    tries = in_vain = 0
    wanted = np.inf if limit is None else limit
    while len(found) < wanted and np.any(remaining.diagonal() > _PRESENT):
        precision = _precision(remaining)
        start = len(found)
        for i, j in _pairs(remaining):
            if len(found) >= min(wanted, start + _REFRESH) or in_vain >= patience:
                break
            if remaining[i, j] < _PRESENT or len(found) < failed.get((i, j), 0):
                continue
            tries += 1
            profile = _profile_with(remaining, precision, np.unique([i, j]), nodes)
            if profile is None:
                failed[i, j] = len(found) + _RETRY
                in_vain += 1
                continue
            in_vain = 0
            found.append(profile.astype(np.int8))
            remaining -= np.outer(profile, profile)
            precision = _without(precision, profile)
        if len(found) == start:
            break
    profiles = np.array(found, np.int8).reshape(len(found), len(remaining))
    return Peeling(profiles, remaining, tries)


def binary_vector(
    precision: Floats,
    ones: NDArray[np.intp],
    together: NDArray[np.bool_],
    *,
    nodes: int = 20_000,
) -> NDArray[np.bool_] | None:
    """Search a binary z with z^T M z <= 1, depth first.

    Entries are settled in the order of how well those before them predict them, each to the value
    nearer to the prediction first; z^T M z is the sum of the squared errors in units of their
    standard deviation, and above 1 the branch is given up.

    Parameters
    ----------
    precision : ndarray, shape (s, s)
        M, positive definite.
    ones : ndarray of int
        Entries known to be 1.
    together : ndarray of bool, shape (s, s)
        Whether two entries may both be 1.
    nodes : int (default: 20000)
        Steps, at most.

    Returns
    -------
    ndarray of bool, shape (s,), or None
        The first one found.
    """
    vector = np.zeros(len(precision), np.bool_)
    vector[ones] = True
    free = np.flatnonzero(~vector)
    if not len(free):
        return vector if precision.sum() <= 1.0 + _SLACK else None
    spread = np.linalg.inv(precision[np.ix_(free, free)])
    linear = precision[np.ix_(free, ones)].sum(axis=1)
    centre = -spread @ linear
    radius = 1.0 + _SLACK - precision[np.ix_(ones, ones)].sum() - linear @ centre
    order, variance, effect = _settling((spread + spread.T) / 2.0)
    compatible = together[np.ix_(free, free)]
    nothing = np.zeros(len(free), np.bool_)
    branches = [(0, centre, 0.0, ~nothing, nothing)]
    while branches and nodes > 0:
        k, mean, cost, allowed, bits = branches.pop()
        while cost <= radius:
            if k == len(free):
                vector[free] = bits
                return vector
            nodes -= 1
            entry = order[k]
            expected = mean[entry]
            costs = (cost + expected**2 / variance[k], cost + (1.0 - expected) ** 2 / variance[k])
            near = bool(allowed[entry] and costs[1] < costs[0])
            steps = []
            for bit in (near, not near):
                if costs[bit] > radius or (bit and not allowed[entry]):
                    steps.append((k, mean, np.inf, allowed, bits))
                    continue
                then = bits
                if bit:
                    then = bits.copy()
                    then[entry] = True
                moved = mean + effect[k] * (bit - expected)
                may = allowed & compatible[entry] if bit else allowed
                steps.append((k + 1, moved, costs[bit], may, then))
            if steps[1][2] < np.inf:
                branches.append(steps[1])
            k, mean, cost, allowed, bits = steps[0]
    return None


def _precision(kernel: Floats) -> Floats:
    """Return the inverse of a kernel, huge outside its range."""
    values, vectors = eigh(kernel)
    inside = values > rounding_floor(values)
    inverse = np.full(len(values), _OUTSIDE)
    inverse[inside] = 1.0 / values[inside]
    return np.asarray((vectors * inverse) @ vectors.T)


def _without(precision: Floats, profile: Floats) -> Floats:
    """Update the inverse of a kernel from which a profile was subtracted."""
    direction = precision @ profile
    left = 1.0 - profile @ direction
    if left > _CERTAIN:
        return np.asarray(precision + np.outer(direction, direction) / left)
    # the range has lost a dimension
    direction /= np.linalg.norm(direction)
    image = precision @ direction
    cross = np.outer(direction, image)
    inside = (direction @ image + _OUTSIDE) * np.outer(direction, direction)
    return np.asarray(precision - cross - cross.T + inside)


def _pairs(kernel: Floats) -> list[tuple[int, int]]:
    present = kernel > _PRESENT
    i, j = np.nonzero(np.triu(present))
    seen = present.astype(np.float32)
    order = np.argsort((seen @ seen)[i, j], kind="stable")
    return list(zip(i[order].tolist(), j[order].tolist(), strict=True))


def _profile_with(
    kernel: Floats, precision: Floats, items: NDArray[np.intp], nodes: int
) -> Floats | None:
    support = np.flatnonzero((kernel[items] > _PRESENT).all(axis=0))
    block = np.ix_(support, support)
    ones = np.searchsorted(support, items)
    vector = binary_vector(precision[block], ones, kernel[block] > _PRESENT, nodes=nodes)
    if vector is None:
        return None
    profile = np.zeros(len(kernel))
    profile[support] = vector
    return profile if profile @ precision @ profile <= 1.0 + _CERTAIN else None


def _settling(spread: Floats) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Order entries by variance given those before; return that, and effects on the others."""
    left = spread.copy()
    count = len(left)
    order = np.zeros(count, np.intp)
    variance = np.zeros(count)
    effect = np.zeros((count, count))
    tiny = float(np.finfo(np.float64).eps)
    open_ = np.zeros(count)  # infinite once settled
    for k in range(count):
        order[k] = chosen = int((left.diagonal() + open_).argmin())
        variance[k] = max(float(left[chosen, chosen]), tiny)
        effect[k] = left[chosen] / variance[k]
        left -= np.outer(left[chosen], effect[k])
        open_[chosen] = np.inf
    return order, variance, effect


def rounding_floor(values: Floats) -> float:
    """Return the eigenvalue below which there is only rounding."""
    return 10.0 * len(values) * float(np.finfo(np.float64).eps) * max(float(values[-1]), 1.0)


# -- the attack


def made_up_profiles(users: int, items: int, seed: int) -> NDArray[np.int64]:
    """Return binary profiles over items of very different popularity, (users, items)."""
    rng = np.random.default_rng(seed)
    popularity = np.clip(0.6 / np.arange(1.0, items + 1.0) ** 0.5, 0.12, 0.5)
    activity = rng.uniform(0.5, 2.0, (users, 1))
    return (rng.random((users, items)) < np.minimum(popularity * activity, 0.9)).astype(np.int64)


def share_found(kernel: NDArray[Any], profiles: NDArray[np.int64]) -> float:
    """Return the share of users whose profile is computed from a kernel."""
    found = peel_profiles(kernel, nodes=5_000, patience=20, limit=len(profiles)).profiles
    known = {row.tobytes() for row in found.astype(np.int64)}
    return float(np.mean([row.tobytes() in known for row in profiles]))


def on_paper(seed: int) -> list[Seen]:
    """Take the matrix apart that the paper's protocol shows of fewer users than items."""
    x = made_up_profiles(40, 60, seed)
    kernel, _ = paper.masked_gram(x, np.random.default_rng(seed))
    return [Seen("server, all users", share_found(kernel, x[x.any(axis=1)]))]


def on_default(seed: int) -> list[Seen]:
    """Take the matrix apart that a deployment makes: it refuses fewer than two rows an item."""
    x = made_up_profiles(80, 36, seed)
    strategy = SecureGram(seed=seed, allow_recovery=False)
    simulate(strategy, served(lambda context, k: GramClient(context, x[k])), len(x))
    return [Seen("server, all users", share_found(strategy.gram_, x[:, strategy.items_]))]


PROFILES = Attack(
    name="profiles from the matrix",
    methods=("secure-gram", "fed-cfk"),
    claim="Secure Gram 2: the server learns the matrix and no user's items",
    protocol="the sum of 40 users over 60 items",
    measure="share of profiles computed",
    threshold=0.1,
    on_paper=on_paper,
    on_default=on_default,
)
