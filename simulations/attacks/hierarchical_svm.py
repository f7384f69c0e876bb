"""Attack HierarchicalSVM at its agents, by the paper's two protocols and by the default.

**Consensus.** An agent adds its center z_i to a running sum around a ring, so the agents before and
after it together have z_i. With all centers, eq. 11

    z_i = N rho / (1 + N rho) [sum_j (w_ij + r_ij) / N_i + sum_{k != i} z_k] / S

gives them the sum of w_ij + r_ij over the group between: of a lone user its own vector.

**Secure product.** A user sends its agent vectors Z orthogonal to its columns. A guess of a column
is right if it is orthogonal to Z.

By default all sums have pairwise masks, and the attack reads masked vectors as numbers.

Source: sections 3.3, 5.1.3 and eq. 11 of Jia, Guo and Fang, IEEE TNSE 2019, in the reading of
:mod:`..papers.hierarchical_svm`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from fedkern_flwr.groups import messages as wire

from ...clients import SVMClient
from ...strategies import HierarchicalSVM
from ..papers import hierarchical_svm as paper
from .seen import Floats, SeenRun, closeness, correlation, made_up_table

COLUMNS, ROUNDS = 24, 6
GROUPS = (3, 3, 3)  # users of each
ROWS = 12  # of each user
BLOCKS: tuple[tuple[int, ...], ...] = (
    (0, 1, 2),
    (3, 4, 5, 6),
    (7, 8, 9),
)  # columns of each group of a vertical split
TESTED, CHOICES = 40, 10  # rows of a vertical split; guesses of a column
READ = TESTED // 4  # iterations of it: a few outputs of each user are read
_KEY = b"a key of all parties but the server"


# -- the paper's protocols


def between_neighbours(seed: int, sizes: tuple[int, ...] = (2, 1, 2)) -> float:
    """Compute a lone user's w + r of each iteration from what agents of the ring have."""
    x, y = made_up_table(ROWS * sum(sizes), COLUMNS, seed)
    users = [(x[k : k + ROWS], 2.0 * y[k : k + ROWS] - 1.0) for k in range(0, len(x), ROWS)]
    cuts = np.cumsum([0, *sizes])
    groups = [users[a:b] for a, b in pairwise(cuts.tolist())]
    _, sent = paper.hierarchical(groups, iterations=ROUNDS, seed=seed)
    target, count = sizes.index(1), len(sizes)
    truth = [a for one, _, name, a in sent if (one, name) == (f"user {target}.0", "masked model")]
    centers = [_centers(sent, i, count) for i in range(count)]
    stiff = float(sum(sizes))
    shrink = np.append(np.full(COLUMNS, stiff / (1.0 + stiff)), 1.0)  # not of the bias
    found = [
        count * centers[target][t + 1] / shrink
        - sum(centers[i][t] for i in range(count) if i != target)
        for t in range(ROUNDS - 1)
    ]
    return closeness(found, truth[:-1])


def _centers(sent: Iterable[paper.Message], agent: int, count: int) -> list[Floats]:
    """Return z of an agent before each iteration: the sum that it sent less the one it received."""
    ring = f"ring of agent {(agent + 1) % count}"
    came = [a for _, to, name, a in sent if (to, name) == (f"agent {agent}", ring)]
    left = [a for one, _, name, a in sent if (one, name) == (f"agent {agent}", ring)]
    return [after - before for before, after in zip(came, left, strict=True)]


def guessed(columns: Floats, vectors: Floats, rng: np.random.Generator) -> float:
    """Compute how much oftener than by chance the true column is found among ten permutations.

    Columns are made uncorrelated before, so that no trial repeats another.
    """
    left, size, _ = np.linalg.svd(columns - columns.mean(axis=0), full_matrices=False)
    hits = []
    for column in left[:, size > 1e-9 * size[0]].T:
        guesses = np.column_stack([column, *(rng.permutation(column) for _ in range(CHOICES - 1))])
        misfits = np.linalg.norm(vectors.T @ guesses, axis=0)
        hits.append(misfits.argmin() == 0)
    return float(np.mean(hits) * CHOICES - 1.0) / (CHOICES - 1)


def columns_guessed(seed: int) -> float:
    """Guess columns by the vectors of the paper's secure product."""
    rng, scores = np.random.default_rng(seed), []
    x, y = made_up_table(TESTED, 10, seed)
    for block in BLOCKS:
        columns = x[:, block] - x[:, block].mean(axis=0)
        _, sent = paper.secure_product(columns, y - y.mean(), seed=seed)
        scores.append(guessed(columns, next(a for *_, name, a in sent if name == "Z"), rng))
    return float(np.mean(scores))


# -- the default


class SVMRun(SeenRun):
    """A recorded run of HierarchicalSVM."""

    kinds, opening = wire, wire.SVMRequest


@cache
def horizontal(seed: int, **options: Any) -> SVMRun:
    """Run users with rows in groups with agents."""
    x, y = made_up_table(ROWS * sum(GROUPS), COLUMNS, seed)
    users, group_of = sum(GROUPS), np.repeat(np.arange(len(GROUPS)), GROUPS).tolist()

    def party(context: Any, k: int) -> SVMClient:
        if k >= users:
            return SVMClient(context, role="agent", group=k - users)
        mine = slice(k * ROWS, (k + 1) * ROWS)
        labels = 2.0 * y[mine] - 1.0
        return SVMClient(context, x[mine], labels, group=group_of[k], classes=(-1, 1))

    strategy = HierarchicalSVM(architecture="hierarchical", C=1.0, seed=seed, **options)
    return SVMRun(strategy, party, users + len(GROUPS), num_rounds=ROUNDS)


def models_read(run: SVMRun, seed: int) -> float:
    """Compute the mean correlation of users' masked vectors with the sum of y (x, 1)."""
    x, y = made_up_table(ROWS * sum(GROUPS), COLUMNS, seed)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    full = (2.0 * y - 1.0)[:, None] * np.column_stack([scaled, np.ones(len(x))])
    truth = full.reshape(sum(GROUPS), ROWS, -1).sum(axis=1)
    scores = [
        correlation(v.read()[: truth.shape[1]], truth[v.partition])
        for v in run.masked()
        if v.order.name.partition("#")[0] in (wire.GROUP_SUM, wire.FLAT_SUM)
        and not v.delivered
        and v.partition < len(truth)  # of users, not of agents
    ]
    return abs(float(np.mean(scores)))


@cache
def vertical(seed: int) -> SVMRun:
    """Run groups with columns, two users each, an agent each, and an owner of the labels."""
    x, y = made_up_table(TESTED, 10, seed)
    users = 2 * len(BLOCKS)
    everybody = np.arange(TESTED)

    def party(context: Any, k: int) -> SVMClient:
        if k < users:
            group, ids = k // 2, everybody[k % 2 :: 2]
            held = x[ids][:, BLOCKS[group]]
            return SVMClient(context, held, ids=ids, group=group, alignment_key=_KEY)
        if k < users + len(BLOCKS):
            return SVMClient(context, role="agent", group=k - users)
        labels = 2.0 * y - 1.0
        own: dict[str, Any] = {"ids": everybody, "y": labels, "classes": (-1, 1)}
        return SVMClient(context, role="owner", alignment_key=_KEY, **own)

    strategy = HierarchicalSVM(partition="vertical", C=1.0, seed=seed)
    return SVMRun(strategy, party, users + len(BLOCKS) + 1, num_rounds=READ)


def outputs_read(run: SVMRun, seed: int) -> float:
    """Guess columns by users' masked outputs, as if they were orthogonal to columns."""
    rng, scores = np.random.default_rng(seed), []
    outputs: dict[int, list[Floats]] = {}
    for v in run.masked():
        user = run.parties[v.partition].role == "user"
        if v.order.name == wire.OUTPUT_SUM and user and not v.delivered:
            outputs.setdefault(v.partition, []).append(v.read())
    for user, sent in outputs.items():
        request = next(run.requests(wire.ColumnsRequest, user))
        client = run.watched[user].client
        order = client.table.order(run.session, client.alignment_key)
        columns = client.table.x[order[request.take]]
        place = request.place[request.place < request.rows]
        numbers = np.stack([one.reshape(request.rows, -1)[place, 0] for one in sent], axis=1)
        few = numbers[:, : len(place) // 3]
        vectors = np.linalg.qr(few - few.mean(axis=0))[0]
        scores.append(guessed(columns[request.place < request.rows], vectors, rng))
    return max(0.0, float(np.mean(scores)))
