"""Secure Gram against whoever gets its matrix: K = X^T X of binary profiles of users.

A secure sum shows its receiver K and nothing else. But K = sum_u x_u x_u^T, and no two sets of
binary profiles are likely to have the same one. With fewer users than items every profile is found.
The attack rests on

    K - x x^T is positive semidefinite  <=>  x in the range of K and x^T K^+ x <= 1,

with equality if the profiles are linearly independent: an exact test of a single profile. A profile
that has the items i and j has no item k with K_ik = 0 or K_jk = 0, so that it lies in a space of
fewer dimensions, where :func:`binary_vector` looks for it as a decoder looks for a word. What is
found is subtracted, and the rest is easier. No number of users is known to be safe.

Of a profile that somebody knows, x^T K^+ x also tells without a search whether it is in K: it is
smaller than that of a stranger, and smaller with an item that the user has than without it. Where
users are many the difference is small, and it never vanishes (:func:`known_profiles`).

Source: follows from sections 2 and 3 of Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel
Computation For Vertically Partitioned Data"; the search: Fincke and Pohst, "Improved Methods for
Calculating Vectors of Short Length in a Lattice", Mathematics of Computation 44, 1985, in the
order of V-BLAST.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from ...clients import GramClient
from ...strategies import SecureGram
from ..engines import simulate
from ..papers import secure_gram as paper
from .pof_mkl import advantage
from .seen import Floats, Seen, served

Profiles = NDArray[np.int8]

_SLACK = 1e-3  # of x^T K^+ x in the search, for rounding
_CERTAIN = 1e-4  # of x^T K^+ x of a vector that was found
_OUTSIDE = 1e5  # z^T K^+ z of a unit vector outside the range, which has none
_PRESENT = 0.5  # counts above this are one or more


def peel_profiles(
    kernel: NDArray[Any], *, nodes: int = 20_000, patience: int = 60, limit: int | None = None
) -> tuple[Profiles, Floats]:
    """Compute profiles one by one, and subtract each.

    Pairs of items that somebody has both of are tried in the order of how many items have been
    seen with both. O(m^3) for each profile found, O(s^3) for a search among s items.

    Parameters
    ----------
    kernel : ndarray, shape (m, m)
        K, or a difference of such kernels.
    nodes : int (default: 20000)
        Steps of a search, at most.
    patience : int (default: 60)
        Searches for a profile after which to give up.
    limit : int, optional
        Profiles after which to stop.

    Returns
    -------
    profiles : ndarray of int8, shape (k, m)
        If the users are fewer than the items and their profiles are linearly independent, what is
        found is right. Else it may be a vector that nobody has, unless nothing remains.
    remaining : ndarray, shape (m, m)
        The kernel less theirs: that of the users who were not found.
    """
    remaining, found = np.array(kernel, np.float64), list[Floats]()
    while (limit is None or len(found) < limit) and (remaining.diagonal() > _PRESENT).any():
        precision = _precision(remaining)
        tried = (
            _profile_with(remaining, precision, np.unique(pair), nodes)
            for pair in _pairs(remaining)[:patience]
        )
        profile = next((one for one in tried if one is not None), None)
        if profile is None:
            break
        found.append(profile)
        remaining -= np.outer(profile, profile)
    return np.array(found, np.int8).reshape(len(found), len(remaining)), remaining


def binary_vector(
    precision: Floats, ones: NDArray[np.intp], together: NDArray[np.bool_], nodes: int = 20_000
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
    spread = np.linalg.inv(precision[np.ix_(free, free)])
    linear = precision[np.ix_(free, ones)].sum(axis=1)
    centre = -spread @ linear
    radius = 1.0 + _SLACK - precision[np.ix_(ones, ones)].sum() - linear @ centre
    order, variance, effect = _settling((spread + spread.T) / 2.0)
    compatible, left = together[np.ix_(free, free)], nodes

    def search(
        mean: Floats, cost: float, allowed: NDArray[np.bool_], bits: list[int]
    ) -> list[int] | None:
        nonlocal left
        k = len(bits)
        if k == len(free):
            return bits if cost <= radius else None
        left -= 1
        entry = order[k]
        errors = -mean[entry], 1.0 - mean[entry]
        costs = [cost + error**2 / variance[k] for error in errors]
        for bit in (0, 1) if costs[0] <= costs[1] else (1, 0):
            if left > 0 and costs[bit] <= radius and (allowed[entry] or not bit):
                may = allowed & compatible[entry] if bit else allowed
                found = search(mean + effect[k] * errors[bit], costs[bit], may, [*bits, bit])
                if found is not None:
                    return found
        return None

    found = search(centre, 0.0, np.ones(len(free), np.bool_), [])
    if found is None:
        return None
    vector[free[order]] = np.array(found, np.bool_)
    return vector


def _precision(kernel: Floats) -> Floats:
    """Return the inverse of a kernel, huge outside its range."""
    values, vectors = eigh(kernel)
    rounding = 10.0 * len(values) * np.finfo(np.float64).eps * max(values[-1], 1.0)
    inside = values > rounding
    inverse = np.full(len(values), _OUTSIDE)
    inverse[inside] = 1.0 / values[inside]
    return np.asarray((vectors * inverse) @ vectors.T)


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


# -- the attack


def made_up_profiles(users: int, items: int, seed: int) -> NDArray[np.int64]:
    """Return binary profiles over items of very different popularity, (users, items)."""
    rng = np.random.default_rng(seed)
    popularity = np.clip(0.6 / np.arange(1.0, items + 1.0) ** 0.5, 0.12, 0.5)
    activity = rng.uniform(0.5, 2.0, (users, 1))
    return (rng.random((users, items)) < np.minimum(popularity * activity, 0.9)).astype(np.int64)


def known_profiles(kernel: NDArray[Any], profiles: NDArray[Any]) -> Floats:
    """Return x^T K^+ x of profiles: the smaller, the more likely they are in K."""
    inside = np.linalg.pinv(np.asarray(kernel, np.float64), hermitian=True)
    return np.asarray(np.einsum("ui,ij,uj->u", profiles, inside, profiles))


def members_told(kernel: NDArray[Any], members: NDArray[Any], others: NDArray[Any]) -> float:
    """Return the area under the curve of telling members from others, by x^T K^+ x an item."""
    scores = [-known_profiles(kernel, x) / np.maximum(x.sum(axis=1), 1) for x in (members, others)]
    return 0.5 * (1.0 + advantage(*scores))


def rating_told(kernel: NDArray[Any], members: NDArray[Any], item: int) -> float:
    """Return the area under the curve of telling who has an item, all else of them known."""
    without, with_it = (members.copy() for _ in range(2))
    without[:, item], with_it[:, item] = 0, 1
    scores = known_profiles(kernel, without) - known_profiles(kernel, with_it)
    has = members[:, item] > 0
    return 0.5 * (1.0 + advantage(scores[has], scores[~has]))


def rare_ratings_told(kernel: NDArray[Any], members: NDArray[Any], items: int = 10) -> float:
    """Return the mean of :func:`rating_told` over the items that the fewest users have."""
    rare = np.argsort(members.sum(axis=0), kind="stable")[:items]
    return float(np.mean([rating_told(kernel, members, item) for item in rare]))


def share_found(kernel: NDArray[Any], profiles: NDArray[np.int64]) -> float:
    """Return the share of users whose profile is computed from a kernel."""
    found, _ = peel_profiles(kernel, nodes=5_000, patience=20, limit=len(profiles))
    known = {row.tobytes() for row in found.astype(np.int64)}
    return float(np.mean([row.tobytes() in known for row in profiles]))


def on_paper(seed: int) -> list[Seen]:
    """Take the matrix apart that the paper's protocol shows of fewer users than items."""
    x = made_up_profiles(40, 60, seed)
    kernel, _ = paper.masked_gram(x, np.random.default_rng(seed))
    return [Seen("server, all users", share_found(kernel, x[x.any(axis=1)]))]


@cache
def default_run(seed: int) -> tuple[NDArray[np.int64], SecureGram]:
    """Make the matrix of a deployment, which refuses fewer than two rows an item, and its rows."""
    x = made_up_profiles(80, 36, seed)
    strategy = SecureGram(seed=seed, allow_recovery=False)
    simulate(strategy, served(lambda context, k: GramClient(context, x[k])), len(x))
    return x[:, strategy.items_], strategy


def on_default(seed: int) -> list[Seen]:
    """Take the matrix of the default apart."""
    x, strategy = default_run(seed)
    return [Seen("server, all users", share_found(strategy.gram_, x))]


def ratings_on_paper(seed: int) -> list[Seen]:
    """Tell who has a rare item from the matrix of the paper, of two users an item."""
    x = made_up_profiles(80, 36, seed)
    kernel, _ = paper.masked_gram(x, np.random.default_rng(seed))
    return [Seen("server, one rating", 2.0 * rare_ratings_told(kernel, x) - 1.0)]


def ratings_on_default(seed: int) -> list[Seen]:
    """Tell who has a rare item, and which known profiles are in the matrix of the default."""
    x, strategy = default_run(seed)
    others = made_up_profiles(80, 36, seed + 1)[:, strategy.items_]
    said = "whether a known row, or one more item of it, is in the sum"
    found = {
        "server, one rating": rare_ratings_told(strategy.gram_, x),
        "server, a profile": members_told(strategy.gram_, x, others),
    }
    return [Seen(v, 2.0 * area - 1.0, said, strategy.privacy()) for v, area in found.items()]
