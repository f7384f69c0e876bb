"""HierarchicalSVM as its paper prints it: one process, arrays in, a result and a transcript.

Jia, Guo and Fang, "Efficient Privacy-Preserving Machine Learning in Hierarchical Distributed
System", IEEE TNSE 2019. The text lacks most formulas; these are our reading.

A transcript has tuples (sender, receiver, name, array). Models have the bias last, without penalty.
Labels are -1 and 1. A user is a pair of rows, shape (n, d), and labels. Do not deploy this program:
its messages show rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
User = tuple[Floats, Floats]
Message = tuple[str, str, str, Floats]

_STEPS = 60  # at most, of the interior point method; it takes 15 to 30
_PRECISION = 1e-14  # of its duality gap, relative to C n


class Result(NamedTuple):
    """The global model after each iteration, and whether the residuals were small in the end."""

    models: list[Floats]
    converged: bool


def fully_distributed(
    users: Sequence[User],
    *,
    C: float = 1.0,
    step: float = 1.0,
    iterations: int = 100,
    tolerance: float = 0.0,
) -> tuple[Result, list[Message]]:
    """Learn a linear SVM in a chain of neighbours (section 7.2, Figure 1a).

    The paper takes this from Forero, Cano and Giannakis, "Consensus-Based Distributed Support
    Vector Machines", JMLR 2010. With duals a_j and neighbours B_j::

        a_j += step / 2 sum_k (w_j - w_k)
        w_j  = argmin |w|^2 / (2 N) + C sum hinge + 2 a_j^T w + step sum_k |w - (w_j + w_k) / 2|^2

    The global model is the mean of the users' models, which no party computes. The run ends when
    the distance to the neighbours and the change of the models are at most ``tolerance``, relative
    to the models.
    """
    count, transcript, models = len(users), list[Message](), list[Floats]()
    ridge = np.append(np.ones(users[0][0].shape[1]), 0.0) / count  # 0 for the bias
    w, dual = np.zeros((2, count, len(ridge)))
    around = [[k for k in (j - 1, j + 1) if 0 <= k < count] for j in range(count)]
    for _ in range(iterations):
        for j, near in enumerate(around):
            transcript += [(f"user {j}", f"user {k}", "model", w[j]) for k in near]
            dual[j] += 0.5 * step * sum(w[j] - w[k] for k in near)
        before, w, apart = w, np.empty_like(w), 0.0
        for j, near in enumerate(around):
            penalty = ridge + 2.0 * step * len(near)
            pull = step * sum(before[j] + before[k] for k in near) - 2.0 * dual[j]
            w[j] = solve_user(users[j], pull / penalty, penalty, C)
            apart += float(np.mean([np.linalg.norm(w[j] - before[k]) for k in near]))
        models.append(w.mean(axis=0))
        change, size = np.linalg.norm(w - before, axis=1).sum(), np.linalg.norm(models[-1])
        if len(models) > 1 and max(apart, change) <= tolerance * count * size:
            return Result(models, True), transcript
    return Result(models, False), transcript


def hierarchical(
    groups: Sequence[Sequence[User]],
    *,
    C: float = 1.0,
    rho: float = 1.0,
    iterations: int = 100,
    tolerance: float = 0.0,
    equation: int = 11,
    seed: int = 0,
) -> tuple[Result, list[Message]]:
    """Learn a linear SVM of users in groups, each group with an agent (section 5.1).

    The N users solve (9), (13a) and update their duals (13e)::

        w_ij = argmin C sum hinge + rho / 2 |w - z_i + r_ij|^2        r_ij += w_ij - z_i

    Their agent receives the sum of w_ij + r_ij by secret sharing, and sums over the other groups
    around a ring. Equation 11, for S groups of N_i users each, without the first factor for the
    bias::

        z_i = N rho / (1 + N rho) [sum_j (w_ij + r_ij) / N_i + sum_{k != i} z_k] / S

    does not reach the pooled SVM. Equation 8b, the consensus of all users, does::

        z = rho sum_ij (w_ij + r_ij) / (1 + N rho)

    The run ends when both relative residuals of ADMM are at most ``tolerance``; the primal one is
    of the models at the beginning of the iteration.
    """
    rng, transcript, models = np.random.default_rng(seed), list[Message](), list[Floats]()
    count, sizes = len(groups), np.array([len(group) for group in groups])
    users = [user for group in groups for user in group]
    names = [f"user {i}.{j}" for i, group in enumerate(groups) for j in range(len(group))]
    group_of, stiff = np.repeat(np.arange(count), sizes), len(users) * rho
    ridge = np.append(np.ones(users[0][0].shape[1]), 0.0)  # 0 for the bias
    shrink, layers = stiff / (ridge + stiff), float(equation == 11)
    z, (w, r) = np.zeros((count, len(ridge))), np.zeros((2, len(users), len(ridge)))
    for _ in range(iterations):
        r += w - z[group_of]  # (13e)
        primal = np.linalg.norm(w - z[group_of], axis=1).sum()
        centers, penalty = z[group_of] - r, np.full(len(ridge), rho)
        w = np.array([solve_user(*own, penalty, C) for own in zip(users, centers, strict=True)])
        total = np.empty_like(z)
        for i in range(count):
            mine = np.flatnonzero(group_of == i)
            total[i], sent = secret_sharing((w + r)[mine], [names[j] for j in mine], i, rng)
            transcript += sent
        before, z = z, np.empty_like(z)
        for i in range(count):
            others, sent = ring_sum(total if equation == 8 else before, rng, first=i)
            transcript += sent
            mean = (total[i] / sizes[i] + others) / count  # (11)
            z[i] = shrink * ((total[i] + others) / len(users) if equation == 8 else mean)  # (8b)
        pairs = zip(group_of, names, strict=True)
        transcript += [(f"agent {i}", name, "z", z[i]) for i, name in pairs]
        models.append(z.mean(axis=0))
        middle = before.mean(axis=0)
        primal += layers * np.linalg.norm(z - middle, axis=1).sum()
        size = np.linalg.norm(z, axis=1) @ sizes + layers * count * np.linalg.norm(middle)
        change = np.linalg.norm(z - before, axis=1) @ (rho * sizes + layers * stiff / count)
        pull = rho * np.linalg.norm(r, axis=1).sum()
        if len(models) > 1 and primal <= tolerance * size and change <= tolerance * pull:
            return Result(models, True), transcript
    return Result(models, False), transcript


def secret_sharing(
    values: Floats, names: Sequence[str], agent: int, rng: np.random.Generator
) -> tuple[Floats, list[Message]]:
    """Sum vectors of users for their agent (sections 3.2 and 5.1.3).

    User j sends a random vector to each other user of the group, and to the agent its vector plus
    the sent and less the received ones. A lone user sends its vector as it is.
    """
    numbers = rng.standard_normal((len(names), *values.shape))
    transcript = [
        (one, other, "random vector", numbers[j, k])
        for j, one in enumerate(names)
        for k, other in enumerate(names)
        if j != k
    ]
    sent = values + numbers.sum(axis=1) - numbers.sum(axis=0)
    to = f"agent {agent}"
    transcript += [(one, to, "masked model", sent[j]) for j, one in enumerate(names)]
    return sent.sum(axis=0), transcript


def ring_sum(
    terms: Floats, rng: np.random.Generator, *, first: int, offline: Collection[int] = ()
) -> tuple[Floats, list[Message]]:
    """Sum the terms of all agents but the first, for the first (section 5.1.3).

    It sends a random vector around the ring. Each agent that is on-line adds its term.
    """
    mask: Floats = rng.standard_normal(terms.shape[1:])
    order = [k for k in (*range(first + 1, len(terms)), *range(first)) if k not in offline]
    transcript, running, at = list[Message](), mask, first
    for k in order:
        transcript.append((f"agent {at}", f"agent {k}", f"ring of agent {first}", running))
        running, at = running + terms[k], k
    if order:
        transcript.append((f"agent {at}", f"agent {first}", f"ring of agent {first}", running))
    return running - mask, transcript


def secure_product(
    x: Floats, c: Floats, *, vectors: int | None = None, seed: int = 0
) -> tuple[Floats, list[Message]]:
    """Compute X^T C, where a user has X and its agent C (sections 3.3 and 5.2.3).

    The user sends ``vectors`` orthonormal vectors Z orthogonal to its columns, by default half of
    the possible ones. The agent returns W = (I - Z Z^T) C, and X^T W = X^T C.

    Raises
    ------
    ValueError
        There are not so many such vectors, or a row of I - Z Z^T has one entry only: W would show
        that row of C (section 5.2.3).
    """
    n = len(x)
    basis, values, _ = np.linalg.svd(x, full_matrices=False)
    rank = int((values > values[:1].max(initial=0.0) * n * np.finfo(float).eps).sum())
    basis = basis[:, :rank]
    vectors = max(1, (n - x.shape[1]) // 2) if vectors is None else vectors
    if not 1 <= vectors <= n - rank:
        raise ValueError(f"{vectors} vectors orthogonal to columns of rank {rank} in {n} rows")
    raw = np.random.default_rng(seed).standard_normal((n, vectors))
    z, _ = np.linalg.qr(raw - basis @ (basis.T @ raw))
    z -= basis @ (basis.T @ z)  # once more, to rounding
    alone = int((np.einsum("ij,ij->i", z, z) < 1e-12).sum())
    if alone:
        raise ValueError(f"{alone} rows do not mix with others in the secure matrix product")
    w = c - z @ (z.T @ c)
    return x.T @ w, [("user", "agent", "Z", z), ("agent", "user", "W", w)]


def solve_user(user: User, v: Floats, penalty: Floats, C: float) -> Floats:
    """Minimise C sum_n max(0, 1 - y_n f_n) + sum_d penalty_d (w_d - v_d)^2 / 2.

    f_n is x_n^T w with the bias. In the dual, 0 <= a <= C, w = v + X^T (y a) / penalty; a comes
    from a primal-dual interior point method.
    """
    x, y = user
    signed, n = y[:, None] * np.column_stack([x, np.ones(len(x))]), len(y)
    a, rest = np.full((2, n), C / 2.0)  # rest = C - a
    low, high = np.ones((2, n))  # multipliers of a >= 0 and rest >= 0
    w: Floats = v + signed.T @ a / penalty
    for _ in range(_STEPS):
        wrong, gap = 1.0 - signed @ w, low @ a + high @ rest
        if gap <= _PRECISION * n * C:
            break
        aim, scale = 0.05 * gap / n, low / a + high / rest
        right = wrong + aim / a - aim / rest
        hessian = np.diag(penalty) + signed.T @ (signed / scale[:, None])
        da = (right - signed @ np.linalg.solve(hessian, signed.T @ (right / scale))) / scale
        dlow, dhigh = (aim - low * da) / a - low, (aim + high * da) / rest - high
        pairs = ((a, da), (rest, -da), (low, dlow), (high, dhigh))
        length = 0.99 / max(0.99, *(float((-d / now).max()) for now, d in pairs))
        a, rest = a + length * da, rest - length * da
        low, high = low + length * dlow, high + length * dhigh
        w = v + signed.T @ a / penalty
    return w
