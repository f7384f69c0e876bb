"""Attack Secure Gram by its matrix K = X^T X of binary profiles of users.

No two sets of binary profiles are likely to have the same K = sum_u x_u x_u^T. With fewer users
than items every profile is found, by the exact test

    K - x x^T is positive semidefinite  <=>  x in the range of K and x^T K^+ x <= 1,

with equality if the profiles are linearly independent. A profile with the items i and j has no item
k with K_ik = 0 or K_jk = 0, so :func:`binary_vector` searches fewer dimensions. A profile that was
found is subtracted. No number of users is known to be safe.

Without a search, x^T K^+ x of a known profile shows whether it is in K: it is smaller than that of
a stranger, and smaller with an item that the user has than without it.

Source: follows from sections 2 and 3 of Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel
Computation For Vertically Partitioned Data"; the search: Fincke and Pohst, "Improved Methods for
Calculating Vectors of Short Length in a Lattice", Mathematics of Computation 44, 1985, in the
order of V-BLAST.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from .seen import Floats, served

Profiles = NDArray[np.int8]

_SLACK = 1e-3  # of x^T K^+ x in the search, for rounding
_CERTAIN = 1e-4  # of x^T K^+ x of a vector that was found
_OUTSIDE = 1e5  # z^T K^+ z of a unit vector outside the range, which has none
_PRESENT = 0.5  # counts above this are one or more


def peel_profiles(
    kernel: NDArray[Any], *, nodes: int = 20_000, patience: int = 60, limit: int | None = None
) -> tuple[Profiles, Floats]:
    """Compute profiles one by one, and subtract each.

    ``nodes`` limits a search, ``patience`` failed searches, ``limit`` profiles.

    Returns
    -------
    profiles : ndarray of int8, shape (k, m)
        Right if the users are fewer than the items and their profiles linearly independent, or if
        nothing remains.
    remaining : ndarray, shape (m, m)
        The ``kernel`` less theirs.
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

    The entry that the settled ones predict best comes next, first with the nearer value. z^T M z is
    the sum of squared errors over variances; above 1 the branch ends.

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
    """Order entries by variance given those before; return order, variances and effects."""
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
    """Make binary profiles over items of very different popularity, (users, items)."""
    rng = np.random.default_rng(seed)
    popularity = np.clip(0.6 / np.arange(1.0, items + 1.0) ** 0.5, 0.12, 0.5)
    activity = rng.uniform(0.5, 2.0, (users, 1))
    return (rng.random((users, items)) < np.minimum(popularity * activity, 0.9)).astype(np.int64)


def known_profiles(kernel: NDArray[Any], profiles: NDArray[Any]) -> Floats:
    """Compute x^T K^+ x of profiles; smaller means more likely in K."""
    inside = np.linalg.pinv(np.asarray(kernel, np.float64), hermitian=True)
    return np.asarray(np.einsum("ui,ij,uj->u", profiles, inside, profiles))


def members_found(kernel: NDArray[Any], members: NDArray[Any], others: NDArray[Any]) -> float:
    """Compute the area under the curve of members and others, by x^T K^+ x an item."""
    scores = [-known_profiles(kernel, x) / np.maximum(x.sum(axis=1), 1) for x in (members, others)]
    return 0.5 * (1.0 + advantage(*scores))


def ratings_found(kernel: NDArray[Any], members: NDArray[Any], items: int = 10) -> float:
    """Compute the mean area under the curve of the owners of an item, for rare items."""
    areas = []
    for item in np.argsort(members.sum(axis=0), kind="stable")[:items]:
        without, with_it = (members.copy() for _ in range(2))
        without[:, item], with_it[:, item] = 0, 1
        scores = known_profiles(kernel, without) - known_profiles(kernel, with_it)
        has = members[:, item] > 0
        areas.append(0.5 * (1.0 + advantage(scores[has], scores[~has])))
    return float(np.mean(areas))


@dataclass(frozen=True)
class Matrix:
    """A matrix and its profiles; of the default also other profiles, and the run."""

    kernel: NDArray[Any]
    profiles: NDArray[np.int64]
    others: NDArray[np.int64] | None = None
    strategy: SecureGram | None = None

    def share_found(self, seed: int) -> float:
        """Compute the share of users with a profile that is computed from the matrix."""
        profiles = self.profiles[self.profiles.any(axis=1)]
        found, _ = peel_profiles(self.kernel, nodes=5_000, patience=20, limit=len(profiles))
        known = {row.tobytes() for row in found.astype(np.int64)}
        return float(np.mean([row.tobytes() in known for row in profiles]))

    def rating(self, seed: int) -> float:
        """Compute the advantage of a test of rare ratings."""
        return 2.0 * ratings_found(self.kernel, self.profiles) - 1.0

    def profile(self, seed: int) -> float:
        """Compute the advantage of a test of known profiles."""
        assert self.others is not None
        return 2.0 * members_found(self.kernel, self.profiles, self.others) - 1.0


def printed(seed: int, users: int, items: int) -> Matrix:
    """Run the paper's protocol."""
    x = made_up_profiles(users, items, seed)
    kernel, _ = paper.masked_gram(x, np.random.default_rng(seed))
    return Matrix(kernel, x)


@cache
def default_run(seed: int) -> Matrix:
    """Make the matrix of a deployment, which refuses fewer than two rows an item."""
    x, others = (made_up_profiles(80, 36, seed + more) for more in (0, 1))
    strategy = SecureGram(seed=seed, allow_recovery=False)
    simulate(strategy, served(lambda context, k: GramClient(context, x[k])), len(x))
    kept = strategy.items_
    return Matrix(strategy.gram_, x[:, kept], others[:, kept], strategy)
