"""The tree-structured sums of FDSKL and what they give away.

Gu et al., "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", section
2.3.1 and Figure 2: the parties that still hold a sum are paired; in every pair one sends its sum
and the other adds it, all pairs at the same time, until the root holds the total. In Algorithm 3
a first tree T1 sums o + b, each party's part of omega^T x plus its mask, and a second tree T2 over
all but one party l' sums the masks b, so that the active party is left with omega^T x + b of l'.

Lemma 2 of the paper claims that nobody learns another's b, or a sum of them, if the trees are
"totally different" (Definition 2). That is false. Definition 2 speaks of subtrees with more than
one leaf only: a worker to which the same party sends its own value alone in both trees gets o + b
from one, b from the other and, by subtraction, o. Sums of several parties are exposed as well when
some of a worker's messages in T1 and some in T2 cover the same parties, though no single message
does. :func:`exposed` and :func:`exposed_sums` find both. The trees stay as the paper builds them;
what hides o in this package is the masked star.

Of all pairs that pass Definition 2, drawn by :func:`make_trees`, so many (per cent) expose the o of
a party, or the o of a party or a sum of several; 5000 draws, exact for 3 and 4 parties:

=========  ====  ====  ====  ====  ====  ====  ====  ====
parties       3     4     5     6     8    10    12    16
one party    50    33    15    13     6     5     4     2
any sum      50    67    58    56    28    25    16    10
=========  ====  ====  ====  ====  ====  ====  ====  ====
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkern_flwr.errors import OptionError
from fedkern_flwr.seeding import derive_seed

__all__ = [
    "ExposedSum",
    "Tree",
    "exposed",
    "exposed_sums",
    "knows",
    "make_trees",
    "totally_different",
]

_TOLERANCE = 1e-9  # of a residual; the vectors consist of zeros and ones


@dataclass(frozen=True)
class Tree:
    """How parties add up their values; every party is a leaf, and a merging node when it adds.

    Attributes
    ----------
    root : int
        The party that ends up with the total.
    sends : tuple of (int, int)
        (sender, receiver) of every message, in an order in which a sender has received all it
        waits for. A receiver adds in this order.

    Raises
    ------
    OptionError
        If the messages do not make a tree with this root.
    """

    root: int
    sends: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check that each party but the root sends once, after all that it receives."""
        sent: set[int] = set()
        for sender, receiver in self.sends:
            if sender == receiver or sender in sent or receiver in sent:
                raise OptionError(
                    f"party {sender} cannot send to party {receiver} at this point of a tree",
                    remedy="let each party send once, after all that it receives",
                )
            sent.add(sender)
        if sent != set(self.parties) - {self.root}:
            raise OptionError(
                f"the messages do not lead to root {self.root}",
                remedy="let each party but the root send once",
            )

    @cached_property
    def parties(self) -> tuple[int, ...]:
        """All parties, ascending."""
        return tuple(sorted({self.root, *(party for send in self.sends for party in send)}))

    @cached_property
    def parent(self) -> dict[int, int]:
        """Party -> the party it sends to; all but the root."""
        return dict(self.sends)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Party -> the parties that send to it, in the order in which it adds them."""
        found: dict[int, tuple[int, ...]] = dict.fromkeys(self.parties, ())
        for sender, receiver in self.sends:
            found[receiver] += (sender,)
        return found

    @cached_property
    def levels(self) -> tuple[tuple[int, ...], ...]:
        """Step -> the parties, ascending, that send in it.

        A party sends in the step after the last of its children has sent, in the first step if it
        receives nothing.
        """
        height = dict.fromkeys(self.parties, 0)
        for sender, receiver in self.sends:
            height[receiver] = max(height[receiver], height[sender] + 1)
        return tuple(
            tuple(p for p in self.parties if height[p] == step and p != self.root)
            for step in range(height[self.root])
        )

    @property
    def depth(self) -> int:
        """Number of steps."""
        return len(self.levels)

    @cached_property
    def leaves(self) -> dict[int, frozenset[int]]:
        """Party -> the parties whose values are in the sum that it sends, itself among them."""
        held = {party: frozenset({party}) for party in self.parties}
        for sender, receiver in self.sends:
            held[receiver] |= held[sender]
        return held

    @cached_property
    def subtrees(self) -> frozenset[frozenset[int]]:
        """Leaf sets of all subtrees with more than one leaf, as the paper draws them.

        In Figure 2 the leaves are workers and every inner node is one addition. A worker that adds
        several children is several inner nodes, one above the other: the first has the leaves of
        itself and its first child, the second those of its second child in addition, and so on.
        """
        held = {party: frozenset({party}) for party in self.parties}
        found = set()
        for sender, receiver in self.sends:
            held[receiver] |= held[sender]
            found.add(held[receiver])
        return frozenset(found)


@dataclass(frozen=True)
class ExposedSum:
    """What one worker finds out by subtraction.

    Attributes
    ----------
    worker : int
        Who finds it out; the root is the active party.
    parties : frozenset of int
        The other parties the sum of whose o it gets, without any mask.
    """

    worker: int
    parties: frozenset[int]


def totally_different(t1: Tree, t2: Tree) -> bool:
    """Tell whether no subtree with more than one leaf belongs to both trees (Definition 2).

    Subtrees are compared by their leaves, as in the paper's proof of Lemma 2; two subtrees with the
    same leaves and another shape count as the same, so this is the stricter reading.
    """
    return t1.subtrees.isdisjoint(t2.subtrees)


def make_trees(parties: Sequence[int], root: int, left_out: int, seed: int) -> tuple[Tree, Tree]:
    """Draw the two totally different trees of Algorithm 3.

    Pairs are drawn at random in every step; with an odd number of sums a random party waits. In a
    pair either may add, but the root always does. Draws that are not totally different are thrown
    away, a third to two fifths of them for any number of parties.

    With two parties T2 is the root alone and shares nothing with T1; but then omega^T x + b itself
    tells the active party the other's o + b. With three, T1 must not begin with the two of T2.

    Parameters
    ----------
    parties : sequence of int
        At least two, in any order.
    root : int
        The active party, which gets both totals.
    left_out : int
        l', the party whose mask stays; not the root.
    seed : int
        The same trees for the same seed and parties.

    Returns
    -------
    t1, t2 : Tree
        Over all parties and over all but ``left_out``.

    Raises
    ------
    OptionError
        If there are fewer than two parties, one comes twice, or root or l' is none of them.
    """
    members = sorted(parties)
    if len(members) < 2:
        raise OptionError(f"a tree of {len(members)} parties", remedy="use at least 2 parties")
    if len(set(members)) < len(members):
        raise OptionError("a party comes twice in a tree", remedy="name each party once")
    if root not in members or left_out not in members or left_out == root:
        raise OptionError(
            f"root {root} and party {left_out}, whose mask stays, do not fit the parties",
            remedy="choose two different ones of the parties",
        )
    rng = np.random.default_rng(derive_seed(seed, "trees", root, left_out))
    others = [party for party in members if party != left_out]
    while True:
        pair = _draw(members, root, rng), _draw(others, root, rng)
        if totally_different(*pair):
            return pair


def _draw(parties: Sequence[int], root: int, rng: np.random.Generator) -> Tree:
    """Return a random tree of simultaneous pairs."""
    holders, sends = list(parties), []
    while len(holders) > 1:
        shuffled = rng.permutation(holders).tolist()
        staying = shuffled[len(shuffled) & ~1 :]
        for one, other in zip(shuffled[::2], shuffled[1::2], strict=False):
            receiver, sender = (other, one) if other == root else (one, other)
            sends.append((sender, receiver))
            staying.append(receiver)
        holders = staying
    return Tree(root, tuple(sends))


def knows(t1: Tree, t2: Tree, worker: int, parties: Collection[int]) -> bool:
    """Tell whether the sum of o over ``parties`` is a combination of what a worker received.

    The unknowns are o and b of all parties. A message of T1 is the sum of both over the sender's
    leaves, one of T2 the sum of b over them. The worker's own o and b are in none of them.

    Parameters
    ----------
    t1, t2 : Tree
        Of o + b and of b.
    worker : int
        Who looks at its messages.
    parties : collection of int
        Whose sum it looks for.
    """
    column = {party: place for place, party in enumerate(t1.parties)}
    q = len(column)

    def indicator(members: Collection[int]) -> NDArray[np.float64]:
        row = np.zeros(q)
        row[[column[party] for party in members]] = 1.0
        return row

    nothing = np.zeros(q)
    first = [indicator(leaves) for leaves in _received(t1, worker)]
    second = [indicator(leaves) for leaves in _received(t2, worker)]
    rows = [np.r_[v, v] for v in first] + [np.r_[nothing, v] for v in second]
    if not rows:
        return False
    known = np.stack(rows)  # (messages, 2 q)
    wanted = np.r_[indicator(parties), nothing]
    weights = np.linalg.lstsq(known.T, wanted, rcond=None)[0]
    return bool(np.abs(known.T @ weights - wanted).max() < _TOLERANCE)


def exposed(t1: Tree, t2: Tree, left_out: int) -> list[int]:
    """Return the parties, ascending, whose o some other worker finds out.

    Parameters
    ----------
    t1, t2 : Tree
        Of o + b over all parties, of b over all but ``left_out``.
    left_out : int
        l'; its own o is safe, as its b is sent to nobody.

    Raises
    ------
    OptionError
        If T2 is not over the parties of T1 without ``left_out``.
    """
    _check(t1, t2, left_out)
    return [p for p in t1.parties if any(knows(t1, t2, w, {p}) for w in t1.parties if w != p)]


def exposed_sums(t1: Tree, t2: Tree, left_out: int) -> list[ExposedSum]:
    """Return the sums of o that workers find out, all others being sums of these.

    The messages that a worker gets in one tree are sums over disjoint sets of parties. Join sets of
    T1 and T2 that have a party in common. Masks cancel in a combination of messages only if joined
    sets have opposite weights, hence equal ones within T1, and if no party is in a set of one tree
    and in none of the other. So the sums without masks are those over groups of joined sets that
    cover the same parties in both trees.

    The active party, the root, is entitled to omega^T x + b and nothing else, so its finds count
    like all others'. l' receives nothing in T2 and finds nothing.

    Parameters
    ----------
    t1, t2 : Tree
        Of o + b over all parties, of b over all but ``left_out``.
    left_out : int
        l', the party whose b stays.

    Raises
    ------
    OptionError
        If T2 is not over the parties of T1 without ``left_out``.
    """
    _check(t1, t2, left_out)
    found = []
    for worker in t2.parties:
        firsts, seconds = _received(t1, worker), _received(t2, worker)
        groups: list[frozenset[int]] = []
        for leaves in (*firsts, *seconds):
            joined = [group for group in groups if group & leaves]
            groups = [group for group in groups if not group & leaves]
            groups.append(leaves.union(*joined))
        covered = frozenset().union(*firsts) & frozenset().union(*seconds)
        found += [ExposedSum(worker, group) for group in groups if group <= covered]
    return sorted(found, key=lambda sum_: (sum_.worker, sorted(sum_.parties)))


def _received(tree: Tree, worker: int) -> list[frozenset[int]]:
    """Return the leaves of each message that a worker receives."""
    return [tree.leaves[child] for child in tree.children.get(worker, ())]


def _check(t1: Tree, t2: Tree, left_out: int) -> None:
    """Check that the trees are those of Algorithm 3 for this l'."""
    if left_out not in t1.parties or set(t2.parties) != set(t1.parties) - {left_out}:
        raise OptionError(
            f"T2 is not over the parties of T1 without party {left_out}",
            remedy="use the trees and l' of one call of make_trees",
        )
