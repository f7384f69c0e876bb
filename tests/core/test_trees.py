"""Trees of FDSKL: sums are complete, Definition 2 holds, and Lemma 2 does not."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.vertical.trees import (
    ExposedSum,
    Tree,
    exposed,
    exposed_sums,
    knows,
    make_trees,
    totally_different,
)

SEEDS = st.integers(0, 2**32)


@st.composite
def drawn(draw: st.DrawFn, most: int = 16) -> tuple[list[int], int, int, tuple[Tree, Tree]]:
    """Parties in any order, root, l' and their trees."""
    parties = draw(st.lists(st.integers(0, 99), min_size=2, max_size=most, unique=True))
    root, left_out = parties[0], parties[-1]
    parties = draw(st.permutations(parties))
    return parties, root, left_out, make_trees(parties, root, left_out, draw(SEEDS))


@st.composite
def any_tree(draw: st.DrawFn, parties: int) -> Tree:
    """Any tree over range(parties) with root 0, paired or not."""
    holders, sends = list(range(parties)), []
    while len(holders) > 1:
        sender = draw(st.sampled_from(holders[1:]))
        holders.remove(sender)
        sends.append((sender, draw(st.sampled_from(holders))))
    return Tree(0, tuple(sends))


def picture(tree: Tree, party: int) -> Any:
    """The paper's picture: workers are leaves, an addition is a node of two subtrees."""
    node: Any = party
    for child in tree.children[party]:
        node = (node, picture(tree, child))
    return node


def leaves(node: Any) -> set[int]:
    return leaves(node[0]) | leaves(node[1]) if isinstance(node, tuple) else {node}


def inner(node: Any) -> list[Any]:
    return [node, *inner(node[0]), *inner(node[1])] if isinstance(node, tuple) else []


def share_a_subtree(t1: Tree, t2: Tree) -> bool:
    first, second = inner(picture(t1, t1.root)), inner(picture(t2, t2.root))
    return any(leaves(a) == leaves(b) for a in first for b in second)


def summed(tree: Tree, values: dict[int, int]) -> dict[int, list[tuple[int, int]]]:
    """Run the sum level by level. Return party -> (child, sum received from it)."""
    got: dict[int, list[tuple[int, int]]] = {party: [] for party in tree.parties}
    for level in tree.levels:
        for party in level:
            assert [child for child, _ in got[party]] == list(tree.children[party])
            total = values[party] + sum(value for _, value in got[party])
            got[tree.parent[party]].append((party, total))
        for party in tree.parties:
            got[party].sort(key=lambda pair: tree.children[party].index(pair[0]))
    return got


@given(drawn())
def test_every_party_sends_once_and_the_root_gets_the_total(case: Any) -> None:
    parties, root, left_out, trees = case
    rest = [party for party in parties if party != left_out]
    for tree, members in zip(trees, (parties, rest), strict=True):
        assert tree.root == root
        assert tree.parties == tuple(sorted(members))
        senders = [party for level in tree.levels for party in level]
        assert sorted([*senders, root]) == sorted(members)
        values = {party: 3**k for k, party in enumerate(members)}
        received = summed(tree, values)[root]
        assert values[root] + sum(value for _, value in received) == sum(values.values())


@given(drawn(most=40))
def test_parents_children_levels_and_leaves_fit_together(case: Any) -> None:
    for tree in case[3]:
        step = {party: k for k, level in enumerate(tree.levels) for party in level}
        assert set(tree.parent) == set(step) == set(tree.parties) - {tree.root}
        for party, parent in tree.parent.items():
            assert party in tree.children[parent]
            assert step[party] == max((step[c] + 1 for c in tree.children[party]), default=0)
        for party in tree.parties:
            below = [tree.leaves[child] for child in tree.children[party]]
            assert tree.leaves[party] == {party}.union(*below)
            assert len(tree.leaves[party]) == 1 + sum(map(len, below))
        # Simultaneous pairs halve the sums: never more steps than that takes.
        assert tree.depth == len(tree.levels) <= (len(tree.parties) - 1).bit_length()


@pytest.mark.parametrize("q", [2, 4, 8, 16, 32, 64])
def test_a_power_of_two_is_paired_completely(q: int) -> None:
    tree, _ = make_trees(range(q), 0, 1, seed=0)
    assert list(map(len, tree.levels)) == [q >> k for k in range(1, q.bit_length())]


@given(drawn())
def test_drawn_trees_are_totally_different(case: Any) -> None:
    assert totally_different(*case[3])
    assert not share_a_subtree(*case[3])


@given(st.data(), st.integers(2, 6))
def test_definition_2_agrees_with_a_search_of_the_picture(data: st.DataObject, q: int) -> None:
    """Here for trees that are not drawn to differ."""
    t1, t2 = data.draw(any_tree(q + 1)), data.draw(any_tree(q))
    assert totally_different(t1, t2) is not share_a_subtree(t1, t2)
    assert not totally_different(t1, t1)


def test_definition_2_by_hand() -> None:
    """Four workers as in Figure 2a; the order of additions makes the inner nodes."""
    paired = Tree(1, ((2, 1), (4, 3), (3, 1)))
    assert paired.subtrees == {frozenset({1, 2}), frozenset({3, 4}), frozenset({1, 2, 3, 4})}
    assert paired.levels == ((2, 4), (3,))
    assert paired.children == {1: (2, 3), 2: (), 3: (4,), 4: ()}
    assert totally_different(paired, Tree(1, ((3, 1), (2, 1))))
    assert not totally_different(paired, Tree(1, ((2, 1), (3, 1))))
    assert totally_different(paired, Tree(1, ((2, 3), (3, 1))))


@given(drawn(most=9))
def test_same_seed_same_trees_in_any_order_of_parties(case: Any) -> None:
    parties, root, left_out, _ = case
    first = make_trees(parties, root, left_out, 5)
    assert first == make_trees(sorted(parties), root, left_out, 5)


def test_other_seeds_give_other_trees() -> None:
    assert len({make_trees(range(8), 0, 1, seed) for seed in range(20)}) == 20


# --- what Lemma 2 overlooks ------------------------------------------------------------------


def test_a_pair_that_passes_the_checker_exposes_a_party() -> None:
    """Worker 2 sends its value alone to worker 1 in both trees: o + b and b."""
    t1, t2 = Tree(1, ((2, 1), (4, 3), (3, 1))), Tree(1, ((3, 1), (2, 1)))
    assert totally_different(t1, t2)
    assert exposed(t1, t2, left_out=4) == [2]
    o, b = {1: 11, 2: 22, 3: 33, 4: 44}, {1: 1000, 2: 2000, 3: 3000, 4: 4000}
    first = dict(summed(t1, {p: o[p] + b[p] for p in o})[1])
    second = dict(summed(t2, {p: b[p] for p in (1, 2, 3)})[1])
    assert first[2] - second[2] == o[2]


def test_a_pair_that_passes_the_checker_exposes_a_sum_of_two() -> None:
    """Worker 1 gets 3 and 4 together in T1 and one by one in T2."""
    t1, t2 = Tree(1, ((2, 1), (4, 3), (3, 1))), Tree(1, ((3, 1), (4, 1)))
    assert totally_different(t1, t2)
    assert exposed(t1, t2, left_out=2) == []
    assert exposed_sums(t1, t2, left_out=2) == [ExposedSum(1, frozenset({3, 4}))]


def test_a_pair_may_expose_nothing() -> None:
    t1, t2 = Tree(1, ((2, 1), (4, 3), (3, 1))), Tree(1, ((2, 3), (3, 1)))
    assert totally_different(t1, t2)
    assert exposed_sums(t1, t2, left_out=4) == []


def test_messages_may_overlap_in_a_chain() -> None:
    """{2,3} + {4,5} in T1 against {3,4} + {2,5} in T2: only all together lose their masks."""
    t1 = Tree(1, ((3, 2), (5, 4), (2, 1), (4, 1), (6, 1)))
    t2 = Tree(1, ((4, 3), (5, 2), (3, 1), (2, 1)))
    assert exposed_sums(t1, t2, left_out=6) == [ExposedSum(1, frozenset({2, 3, 4, 5}))]


@given(st.data(), st.integers(3, 7))
def test_exposed_sums_are_just_what_linear_algebra_finds(data: st.DataObject, q: int) -> None:
    """Against every set of other parties and every worker, for trees of any kind."""
    t1, t2 = data.draw(any_tree(q)), data.draw(any_tree(q - 1))
    left_out = q - 1
    found = exposed_sums(t1, t2, left_out)
    for worker in range(q):
        own = [sum_.parties for sum_ in found if sum_.worker == worker]
        sums = {
            frozenset().union(*chosen)
            for size in range(1, len(own) + 1)
            for chosen in combinations(own, size)
        }
        others = [party for party in range(q) if party != worker]
        for size in range(1, q):
            for group in combinations(others, size):
                assert knows(t1, t2, worker, group) is (frozenset(group) in sums)
    alone = {party for sum_ in found if len(sum_.parties) == 1 for party in sum_.parties}
    assert exposed(t1, t2, left_out) == sorted(alone)


@given(drawn())
def test_one_party_is_exposed_just_where_it_sends_alone_to_the_same_worker(case: Any) -> None:
    _, _, left_out, (t1, t2) = case
    alone = [
        party
        for party in t2.parent
        if not t1.children[party]
        and not t2.children[party]
        and t1.parent[party] == t2.parent[party]
    ]
    assert exposed(t1, t2, left_out) == sorted(alone)
    assert left_out not in alone


@given(drawn())
def test_the_party_whose_mask_stays_learns_nothing_and_is_safe(case: Any) -> None:
    _, _, left_out, (t1, t2) = case
    for sum_ in exposed_sums(t1, t2, left_out):
        assert sum_.worker != left_out
        assert left_out not in sum_.parties
        assert sum_.worker not in sum_.parties


@pytest.mark.parametrize(
    ("q", "one", "some"),
    [(3, 0.50, 0.50), (4, 1 / 3, 2 / 3), (5, 0.16, 0.59), (8, 0.06, 0.28), (16, 0.026, 0.11)],
)
def test_share_of_pairs_that_pass_the_checker_and_expose(q: int, one: float, some: float) -> None:
    draws = 600
    found = [exposed_sums(*make_trees(range(q), 0, q - 1, s), q - 1) for s in range(draws)]
    singles = sum(any(len(sum_.parties) == 1 for sum_ in sums) for sums in found)
    within = 4 * np.sqrt(0.25 / draws)
    assert singles / draws == pytest.approx(one, abs=within)
    assert sum(map(bool, found)) / draws == pytest.approx(some, abs=within)
    assert singles > 0


def test_two_parties_satisfy_definition_2_trivially() -> None:
    t1, t2 = make_trees([4, 7], root=7, left_out=4, seed=0)
    assert (t1, t2) == (Tree(7, ((4, 7),)), Tree(7))
    assert t2.parties == (7,)
    assert t2.depth == 0
    assert exposed_sums(t1, t2, 4) == []


@given(SEEDS)
def test_three_parties_differ_only_if_t1_does_not_begin_with_t2(seed: int) -> None:
    t1, t2 = make_trees([0, 1, 2], root=0, left_out=2, seed=seed)
    assert t2 == Tree(0, ((1, 0),))
    assert frozenset({0, 1}) not in t1.subtrees
    assert exposed(t1, t2, 2) == ([1] if t1.sends[0] == (2, 0) else [])


# --- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parties", "root", "left_out", "text"),
    [
        ([1], 1, 1, "a tree of 1 parties; use at least 2 parties"),
        ([1, 2, 2], 1, 2, "twice"),
        ([1, 2], 1, 1, "choose two different ones"),
        ([1, 2], 3, 1, "choose two different ones"),
        ([1, 2], 1, 3, "choose two different ones"),
    ],
)
def test_unfit_parties_are_refused(parties: Any, root: int, left_out: int, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make_trees(parties, root, left_out, seed=0)


@pytest.mark.parametrize(
    "sends",
    [((1, 1),), ((1, 0), (1, 2)), ((1, 0), (2, 1)), ((0, 1),), ((1, 0), (3, 2)), ((1, 2),)],
)
def test_messages_that_make_no_tree_are_refused(sends: Any) -> None:
    with pytest.raises(OptionError, match="once"):
        Tree(0, sends)


def test_trees_of_another_l_are_refused() -> None:
    t1, t2 = make_trees(range(5), 0, 4, seed=0)
    for left_out in (3, 9):
        with pytest.raises(OptionError, match="of one call of make_trees"):
            exposed(t1, t2, left_out)
        with pytest.raises(OptionError, match="of one call of make_trees"):
            exposed_sums(t1, t2, left_out)


@given(st.data(), st.integers(2, 6))
def test_a_tree_knows_its_subtrees_whatever_its_shape(data: st.DataObject, q: int) -> None:
    tree = data.draw(any_tree(q))
    nodes = [frozenset(leaves(node)) for node in inner(picture(tree, 0))]
    assert len(nodes) == q - 1
    assume(len(set(nodes)) == len(nodes))
    assert tree.subtrees == set(nodes)
