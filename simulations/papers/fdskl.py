"""FDSKL as the paper prints it: Algorithms 1 to 3, in one process.

Workers hold column blocks of the same rows; active workers hold labels too. The model is
f(x) = sum_i alpha_i sqrt(2) cos(omega_i^T x + b_i), with one random direction omega_i an iteration.
All workers know all directions. The masks b in [0, 2 pi) are one per worker and direction.

Line 6 of Algorithm 3 chooses l' anew in each call, which would change b_i between two rows and so
the kernel; here l' belongs to the active worker. In the star b_i is the sum of all masks.

References
----------
Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned
Data", KDD 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Floats = NDArray[np.float64]
Transcript = list[tuple[str, str, str, NDArray[Any]]]  # (sender, receiver, name, array)
Structure = Literal["trees", "star"]

#: L'(f, y), the derivative of each loss of Table 1.
SLOPES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "square": lambda f, y: 2.0 * (f - y),
    "logistic": lambda f, y: -y * expit(-y * f),
    "smooth-hinge": lambda f, y: -y * np.clip(1.0 - y * f, 0.0, 1.0),
}


class Result(NamedTuple):
    """What the active workers have at the end.

    Attributes
    ----------
    alpha, offsets : ndarray, shape (T,)
        Coefficients, and b_i, of each direction.
    outputs : ndarray, shape (T,)
        f(x_i) before the update.
    scores : ndarray, shape (len(tests),)
        f of the test rows.
    """

    alpha: Floats
    offsets: Floats
    outputs: Floats
    scores: Floats


@dataclass(frozen=True)
class Tree:
    """A tree-structured sum: (sender, receiver) in sequence (Figure 2)."""

    root: int
    sends: tuple[tuple[int, int], ...]

    @property
    def subtrees(self) -> set[frozenset[int]]:
        """Leaf sets of the subtrees with more than one leaf, one per addition."""
        leaves = {worker: frozenset({worker}) for send in self.sends for worker in send}
        found = set()
        for sender, receiver in self.sends:
            leaves[receiver] |= leaves[sender]
            found.add(leaves[receiver])
        return found

    def add_up(self, values: Mapping[int, Floats], name: str, sent: Transcript) -> Floats:
        """Return the sum of all workers' values at the root."""
        held = dict(values)
        for sender, receiver in self.sends:
            sent.append((f"worker {sender}", f"worker {receiver}", name, held[sender]))
            held[receiver] = held[receiver] + held[sender]
        return held[self.root]

    def hand_down(self, value: NDArray[Any], name: str, sent: Transcript) -> None:
        """Send the root's value to all workers, in reverse order."""
        for sender, receiver in reversed(self.sends):
            sent.append((f"worker {receiver}", f"worker {sender}", name, value))


def totally_different(t1: Tree, t2: Tree) -> bool:
    """Return whether no subtree with more than one leaf is in both trees (Definition 2)."""
    return t1.subtrees.isdisjoint(t2.subtrees)


def draw_tree(workers: Sequence[int], root: int, rng: np.random.Generator) -> Tree:
    """Pair the workers that hold a sum, at random, until the root holds the total."""
    holders, sends = list(workers), []
    while len(holders) > 1:
        shuffled = rng.permutation(holders).tolist()
        holders = shuffled[len(shuffled) & ~1 :]  # one of an odd number waits
        for one, other in zip(shuffled[::2], shuffled[1::2], strict=False):
            receiver, sender = (other, one) if other == root else (one, other)
            sends.append((sender, receiver))
            holders.append(receiver)
    return Tree(root, tuple(sends))


def draw_trees(workers: int, root: int, kept: int, seed: int) -> tuple[Tree, Tree]:
    """Draw T1 over all workers and T2 over all but l' until they are totally different."""
    rng = np.random.default_rng([seed, root, kept])
    others = [worker for worker in range(workers) if worker != kept]
    while True:
        trees = draw_tree(range(workers), root, rng), draw_tree(others, root, rng)
        if totally_different(*trees):
            return trees


def draw_directions(
    seed: int, count: int, columns: int, gamma: float, kernel: str = "rbf"
) -> Floats:
    """Draw omega_1 to omega_T from the seed that all workers share, shape (T, d) (2.2.1)."""
    rng = np.random.default_rng([seed, 0])
    if kernel == "laplacian":  # exp(-gamma |x - x'|_1)
        return np.asarray(gamma * rng.standard_cauchy((count, columns)))
    standard = rng.standard_normal((count, columns))  # exp(-gamma |x - x'|^2)
    return np.asarray(np.sqrt(2.0 * gamma) * standard)


def draw_masks(seed: int, count: int, workers: int) -> Floats:
    """Draw b, shape (T, q) (Algorithm 3, line 2)."""
    return np.random.default_rng([seed, 1]).uniform(0.0, 2.0 * np.pi, (count, workers))


def add_phases(
    x: Sequence[Floats], omega: Floats, b: Floats, trees: Sequence[Tree], sent: Transcript
) -> Floats:
    """Return omega^T x + b of rows and directions at the root (Algorithm 3).

    Parameters
    ----------
    x : sequence of ndarray, shape (n, d_l)
        Columns of each worker.
    omega, b : ndarray, shapes (r, d) and (r, q)
        Directions and masks.
    trees : (Tree, Tree) or (Tree,)
        T1 and T2, or a star.
    sent : list
        Takes every message.

    Raises
    ------
    ValueError
        T1 and T2 are not totally different.
    """
    blocks = np.split(omega, np.cumsum([part.shape[1] for part in x])[:-1], axis=1)
    masked = {w: x[w] @ blocks[w].T + b[:, w] for w in range(len(x))}  # lines 1 to 4
    xi = trees[0].add_up(masked, "o + b", sent)  # line 5
    if len(trees) == 1:
        return xi
    t1, t2 = trees
    if not totally_different(t1, t2):
        raise ValueError("T1 and T2 have a subtree in common")
    members = {t2.root, *(worker for send in t2.sends for worker in send)}  # line 6: all but l'
    return xi - t2.add_up({w: b[:, w] for w in sorted(members)}, "b", sent)  # line 7


def fdskl(
    x: Sequence[Floats],
    y: Floats,
    leaders: Sequence[int],
    rows: Sequence[int],
    omega: Floats,
    b: Floats,
    *,
    step: float,
    regularization: float,
    loss: str = "square",
    structure: Structure = "trees",
    tests: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Result, Transcript]:
    """Train by doubly stochastic gradients over columns of q workers (Algorithm 1).

    Parameters
    ----------
    x : sequence of ndarray, shape (n, d_l)
        Columns of each worker.
    y : ndarray, shape (n,)
        +1 and -1, or numbers.
    leaders, rows : sequence of int, shape (T,)
        The active worker of each iteration, and its row.
    omega, b : ndarray, shapes (T, d) and (T, q)
        Directions and masks.
    step, regularization : float
        gamma and lambda.
    loss : {"square", "logistic", "smooth-hinge"} (default: "square")
        L of Table 1.
    structure : {"trees", "star"} (default: "trees")
        Sums of Algorithm 3.
    tests : sequence of int (default: none)
        Rows with an f that the first leader computes at the end.
    seed : int (default: 0)
        Of l' and the trees.
    """
    q, count = len(x), len(rows)
    sent: Transcript = []
    saved: dict[tuple[int, int], float] = {}  # (row, direction) -> phase, at the owner
    alpha, outputs, offsets = np.zeros(count), np.zeros(count), np.zeros(count)
    trees: dict[int, tuple[Tree, ...]] = {}
    t0: dict[int, Tree] = {}
    for leader in sorted(set(leaders)):
        rng = np.random.default_rng([seed, leader])
        kept = int(rng.choice([worker for worker in range(q) if worker != leader]))  # l'
        star = Tree(leader, tuple((w, leader) for w in range(q) if w != leader))
        is_star = structure == "star"
        trees[leader] = (star,) if is_star else draw_trees(q, leader, kept, seed)
        t0[leader] = star if is_star else draw_tree(range(q), leader, rng)
        mine = np.equal(leaders, leader)
        offsets[mine] = b[mine].sum(axis=1) if is_star else b[mine, kept]

    def features(owner: int, row: int, wanted: Sequence[int]) -> Floats:
        """Return phi of an owner's directions, from saved phases or by Algorithm 3."""
        new = [j for j in wanted if (row, j) not in saved]
        if new:
            at_row = [part[[row]] for part in x]
            found = add_phases(at_row, omega[new], b[new], trees[owner], sent)[0]
            saved.update({(row, j): phase for j, phase in zip(new, found, strict=True)})
        return np.asarray(np.sqrt(2.0) * np.cos([saved[row, j] for j in wanted]))

    def output(row: int, done: int, receiver: int) -> float:
        """Return f(x) at the receiver: Algorithm 2 at each owner, then a sum over T0."""
        parts = {worker: np.zeros(1) for worker in range(q)}
        for owner in trees:
            own = [j for j in range(done) if leaders[j] == owner]
            parts[owner] = np.array([features(owner, row, own) @ alpha[own]])
        return float(t0[receiver].add_up(parts, "f", sent)[0])

    for t, (leader, row) in enumerate(zip(leaders, rows, strict=True)):  # line 2
        t0[leader].hand_down(np.array(row), "row", sent)  # line 3
        phi = features(leader, row, [t])[0]  # lines 4, 5 and 8
        outputs[t] = output(row, t, leader)  # lines 6 and 7
        alpha[t] = -step * SLOPES[loss](outputs[t], y[row]) * phi  # line 9
        t0[leader].hand_down(np.array(1.0 - step * regularization), "shrink", sent)
        alpha[:t] *= 1.0 - step * regularization  # line 10
    scores = np.array([output(row, count, leaders[0]) for row in tests])
    return Result(alpha, offsets, outputs, scores), sent
