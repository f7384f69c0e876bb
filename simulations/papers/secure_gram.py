"""The protocol of the paper on Secure Gram and FedCFK.

Polato, Gallinaro and Aiolli, "Privacy-Preserving Kernel Computation For Vertically Partitioned
Data", ESANN 2021. Each user holds a row of whole numbers, one per item. The server needs
K = sum_u x_u^T x_u (eq. 1). It is for study, not to deploy.

Functions return a result and a transcript: a list of (sender, receiver, name, array).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Integers = NDArray[np.int64]
Transcript = list[tuple[str, str, str, NDArray[Any]]]

RING = 2**32  # R of section 2.1
KEPT = 0.9  # chance that a user requests a row that it needs; the paper has no number
DECOYS = 4  # rows that a user requests in vain, for each that it needs; likewise


def masked_gram(x: NDArray[Any], rng: np.random.Generator) -> tuple[Integers, Transcript]:
    """Compute K by one-time pad masking (section 2.1), for users who all answer.

    Parameters
    ----------
    x : ndarray of int, shape (users, items)
        No entry of K may reach ``RING``.
    rng : numpy.random.Generator
        Of the pads.

    Returns
    -------
    gram : ndarray of int, shape (items, items)
    transcript : list of tuple
        ``S``, a pad from each user to each other user; ``Y``, from each user to the server.
    """
    users, items = x.shape
    transcript: Transcript = []
    contributions = [np.outer(row, row).astype(np.int64) for row in x]
    for u in range(users):
        for v in range(u + 1, users):
            s_uv, s_vu = rng.integers(0, RING, (2, items, items))
            transcript.append((f"user {u}", f"user {v}", "S", s_uv))
            transcript.append((f"user {v}", f"user {u}", "S", s_vu))
            contributions[u] += s_uv - s_vu  # P_uv
            contributions[v] += s_vu - s_uv  # P_vu = -P_uv
    gram = np.zeros((items, items), np.int64)
    for u, contribution in enumerate(contributions):
        masked = contribution % RING  # Y_u
        transcript.append((f"user {u}", "server", "Y", masked))
        gram = (gram + masked) % RING  # opposite pads cancel
    return gram, transcript


def random_users(users: int, share: float, rng: np.random.Generator) -> Integers:
    """Draw the users who answer in a round, at least two, ascending."""
    return np.sort(rng.permutation(users)[: max(2, round(share * users))])


def kernel_round(
    x: NDArray[Any] | csr_array, answering: Sequence[int] | Integers, known: Integers | None = None
) -> tuple[Integers, Transcript]:
    """Sum K over the users ``answering``; keep the maximum of each entry (section 3.1).

    ``x``, shape (users, items), has all users, and ``known`` is K_hat after the last round. The
    maximum need not be positive semi-definite. The sum is secure (section 2).

    Returns
    -------
    gram : ndarray of int, shape (items, items)
        K_hat after this round.
    transcript : list of tuple
        ``answering``, the users in the sum, and ``sum``, which the server opens.
    """
    users = np.asarray(answering, np.int64)
    some = x[users]
    product = some.T @ some
    fresh = np.asarray(product if isinstance(product, np.ndarray) else product.toarray(), np.int64)
    transcript: Transcript = [
        ("users", "server", "answering", users),
        ("users", "server", "sum", fresh),
    ]
    return fresh if known is None else np.maximum(known, fresh), transcript


def noisy_requests(
    kernel: NDArray[Any],
    positives: Sequence[int] | Integers,
    requests: int,
    rng: np.random.Generator,
    user: str = "user 0",
) -> tuple[dict[int, NDArray[Any]], Transcript]:
    """Request kernel rows for a user, each time by another noisy set of items (section 3.2).

    A request leaves out some rows of the user's positives, and names more that it does not need.

    Returns
    -------
    rows : dict
        Item -> its row of the kernel, of those that the user needs and has received.
    transcript : list of tuple
        ``request``, the items, and ``rows``, the answer.
    """
    needed = np.unique(np.asarray(positives, np.int64))
    others = np.setdiff1d(np.arange(len(kernel)), needed, assume_unique=True)
    rows: dict[int, NDArray[Any]] = {}
    transcript: Transcript = []
    for _ in range(requests):
        asked = needed[rng.random(len(needed)) < KEPT]
        wanted = np.union1d(asked, rng.permutation(others)[: DECOYS * len(needed)])
        transcript.append((user, "server", "request", wanted))
        transcript.append(("server", user, "rows", kernel[wanted]))
        rows |= {int(item): kernel[item] for item in asked}  # the most up-to-date ones
    return rows, transcript
