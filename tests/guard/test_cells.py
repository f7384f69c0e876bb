"""The release limit: no rows have more equations than unknowns, however sums are combined."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from frozen_tables import EVENTS, KEY, Story, freeze, in_use, table
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused

from fedkern_flwr.errors import RefusedError
from fedkern_flwr.guard.cells import (
    Cells,
    Sum,
    check_parties,
    check_sum,
    counts,
    lot_rows,
    plan,
    unknowns,
)
from fedkern_flwr.guard.freeze import HELD_OUT, SPLIT, Freeze

PARTIES = frozenset(bytes([k] * 8) for k in range(5))
FOLDS = (1, 2, 3, 4, 5)


def one(made: Freeze, function: bytes = b"f", **change: Any) -> Sum:
    values: dict[str, Any] = {
        "function": function,
        "cohort": PARTIES,
        "blocks": frozenset(made.select(*FOLDS)),
        "numbers": 100.0,
        "row": 10.0,
        "others": 0,
    }
    return Sum(**{**values, **change})


def square(made: Freeze, others: int, function: bytes = b"f") -> Any:
    """Sums of products of so many landmarks."""
    return lambda size: one(
        made, function, numbers=size * (size + 3) / 2, others=others, width=size, row=30.0
    )


# -- what is counted


def test_columns_of_two_values_and_counts_weigh_little() -> None:
    assert unknowns(30, 10) == 20 + 10 / 64
    assert counts(64, 1023) == 10.0


def test_numbers_stay_below_unknowns_over_all_runs() -> None:
    made = freeze(100)  # 80 are learned from: 800 unknowns
    first, second = one(made, b"f", numbers=500.0), one(made, b"g", numbers=300.0)
    check_sum(made.blocks, [], first)
    with refused("FK-CELLS-NUMBERS"):
        check_sum(made.blocks, [first], second)
    check_sum(made.blocks, [first], replace(second, numbers=299.0))
    check_sum(made.blocks, [first], replace(second, others=40))


def test_the_same_again_and_fewer_landmarks_cost_nothing() -> None:
    made = freeze(100)
    first = one(made, numbers=799.0)
    check_sum(made.blocks, [first] * 9, first)
    check_sum(made.blocks, [first], replace(first, numbers=10.0))
    for change in ({"function": b"g"}, {"cohort": PARTIES - {bytes(8)}}):
        with refused("FK-CELLS-NUMBERS"):
            check_sum(made.blocks, [first], replace(first, **change))


def test_a_lot_must_pass_alone() -> None:
    """Five new rows were computed to 1e-12 from two exact runs with 64 known landmarks."""
    made = freeze(100)
    first = one(made, numbers=700.0, others=300)
    made.update(table(range(115)), needed=0)
    assert {len(made.rows_of([b])) for b in made.select(*FOLDS)} == {6, 16}
    with refused("FK-CELLS-NUMBERS"):
        check_sum(made.blocks, [first], one(made, numbers=700.0, others=300))
    with refused("FK-CELLS-NUMBERS"):  # nor at other landmarks
        check_sum(made.blocks, [first], one(made, b"g", numbers=700.0, others=300))
    made.update(table(range(250)), needed=0)
    check_sum(made.blocks, [first], one(made, numbers=700.0, others=300))


def test_a_withdrawal_that_waits_no_longer_is_not_computed() -> None:
    made = freeze(100)
    first = one(made, numbers=700.0, others=300)
    fold = made.rows_of(made.select(1))[0]
    made.withdraw([in_use(made, range(100))[fold]])
    with refused("FK-CELLS-NUMBERS"):
        check_sum(made.blocks, [first], one(made, numbers=700.0, others=300))
    check_sum(made.blocks, [first], one(made, b"1/f", numbers=700.0, others=300))


def test_a_block_that_is_in_no_other_sum_has_nothing_to_hide_behind() -> None:
    """Two disjoint sums: each is about its own blocks, whatever the other has room for."""
    made = freeze(100)  # a fold has 160 unknowns
    first = one(made, numbers=150.0, blocks=frozenset(made.select(1)))
    rest = one(made, numbers=150.0, blocks=frozenset(made.select(2, 3, 4, 5)))
    check_sum(made.blocks, [first], rest)
    with refused("FK-CELLS-NUMBERS"):
        check_sum(made.blocks, [first, rest], replace(first, function=b"g", numbers=20.0))


def test_products_need_twice_as_many_rows_as_columns() -> None:
    made = freeze(100)
    check_sum(made.blocks, [], one(made, width=40))
    with refused("FK-CELLS-WIDTH"):
        check_sum(made.blocks, [], one(made, width=41))
    with refused("FK-CELLS-WIDTH"):  # one fold has 16 rows
        check_sum(made.blocks, [], one(made, width=9, blocks=frozenset(made.select(1))))
    check_sum(made.blocks, [], one(made, width=41, others=2))


def test_folds_are_cells_of_their_own() -> None:
    made = freeze(100)
    sums = [
        one(made, b"fold %d" % k, numbers=100.0, blocks=frozenset(made.select(k))) for k in FOLDS
    ]
    for k, fold in enumerate(sums):
        check_sum(made.blocks, sums[:k], fold)
    with refused("FK-CELLS-NUMBERS"):
        check_sum(made.blocks, sums, replace(sums[0], function=b"other"))
    check_sum(made.blocks, sums, one(made, b"whole", numbers=250.0))


def test_sums_survive_the_ledger() -> None:
    first = one(freeze(40), numbers=3.5, others=7, width=2)
    assert Sum.unpack(*first.pack()) == first
    bare = replace(first, cohort=frozenset(), blocks=frozenset())
    assert Sum.unpack(*bare.pack()) == bare


# -- planning


def test_runs_plan_with_a_fifth_of_what_is_left() -> None:
    """Three nodes of 200 rows and 30 columns: sizes fall slowly, a repeated run is free."""
    made, sums, sizes = freeze(200), [], []
    for run in range(12):
        sum_of = square(made, 160, b"%d" % run)
        found = plan(made.blocks, sums, made.select(*FOLDS), sum_of, 100)
        assert sorted(found.blocks) == made.select(*FOLDS)
        sums.append(sum_of(found.size))
        check_sum(made.blocks, sums[:-1], sums[-1])
        sizes.append(found.size)
    assert (sizes[0], sizes[-1]) == (60, 17)
    assert sizes == sorted(sizes, reverse=True)
    again = plan(made.blocks, sums, made.select(*FOLDS), square(made, 160, b"0"), 100)
    assert again.size == sizes[0]


def test_a_lot_takes_a_sixth_for_each_function_or_is_left_out() -> None:
    made = freeze(500)
    sums = [square(made, 400, b"%d" % k)(50) for k in range(5)]
    needed = lot_rows(32 * 35 / 2, 30.0, 32)
    made.update(table(range(500 + needed * 5 // 4 + 6)), needed=needed)
    for k in range(5):
        found = plan(made.blocks, sums, made.select(*FOLDS), square(made, 400, b"%d" % k), 100)
        assert 30 <= found.size <= 36
        assert found.left_out == []
        sums.append(square(made, 400, b"%d" % k)(found.size))
        check_sum(made.blocks, sums[:-1], sums[-1])
    small = freeze(500)
    first = square(small, 400)(90)
    small.update(table(range(550)), needed=0)
    found = plan(small.blocks, [first], small.select(*FOLDS), square(small, 400), 100)
    assert found.size >= 90
    assert sum(small.blocks["rows"][found.left_out]) == 40


def test_nothing_left_is_said() -> None:
    made = freeze(100)
    sums = [one(made, b"%d" % k, numbers=399.9) for k in range(2)]
    assert plan(made.blocks, sums, made.select(*FOLDS), square(made, 0), 50).size == 0
    assert plan(made.blocks, sums, [], square(made, 0), 50).blocks == []


# -- parties


@pytest.mark.promise("cells-parties")
def test_blocks_hide_among_the_parties_always_summed_with_them() -> None:
    made = freeze(100)
    keys = sorted(PARTIES)
    first = one(made, cohort=frozenset(keys[:3]))
    check_parties(made.blocks, [], first, least=3)
    with refused("FK-CELLS-PARTIES"):
        check_parties(made.blocks, [], first, least=4)
    with refused("FK-CELLS-PARTIES"):
        check_parties(made.blocks, [first], one(made, cohort=frozenset(keys[1:])), least=3)
    check_parties(made.blocks, [first], one(made), least=3)
    other = one(made, cohort=frozenset(keys[:4]))
    with refused("FK-CELLS-ONE-APART"):
        check_parties(made.blocks, [first], other, least=3)
    check_parties(made.blocks, [first], other, least=3, allow_one=True)
    held = replace(other, blocks=frozenset(made.select(HELD_OUT)))
    check_parties(made.blocks, [first], held, least=3)
    check_parties(made.blocks, [first], replace(other, cohort=frozenset()), least=3)


@pytest.mark.promise("cells-parties")
def test_parts_of_a_block_remember_its_parties() -> None:
    made = freeze(100)
    first = one(made, cohort=frozenset(sorted(PARTIES)[:4]))
    made.update(table(range(12, 140)), needed=0)
    with refused("FK-CELLS-ONE-APART"):
        check_parties(made.blocks, [first], one(made), least=3)


# -- whatever is done


def own_rank(cells: Cells, sums: list[Sum], inside: set[int], *, others: bool) -> int:
    """Return how many independent combinations are about these leaves alone, by brute force."""
    member = cells.members(sums)
    columns = [
        (leaf, (member[at] == version).astype(float))
        for at, leaf in enumerate(cells.leaves)
        for version in np.unique(member[at][member[at] >= 0])
    ]
    if not others:
        columns.append((-1, np.ones(len(sums))))  # the other parties' rows, always the same
    outside: list[NDArray[np.float64]] = [c for leaf, c in columns if leaf not in inside]
    every = np.array([c for _, c in columns])
    return int(np.linalg.matrix_rank(every)) - (
        int(np.linalg.matrix_rank(np.array(outside))) if outside else 0
    )


@pytest.mark.promise("cells-numbers")
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    events=st.lists(st.sampled_from(EVENTS), max_size=8),
    needed=st.sampled_from([0, 0, 10]),
    others=st.sampled_from([0, 40]),
)
def test_no_rows_have_more_equations_than_unknowns(
    seed: int, events: list[str], needed: int, others: int
) -> None:
    """Whatever is answered: all sets of leaves, all combinations of sums, exact ranks."""
    story, random = Story(seed, 40, 3, strata=False, labels=False), np.random.default_rng(seed)
    sums: list[Sum] = []
    for event in [*events, "none"]:
        made = story.freeze
        for part in (0.85, 0.85, 0.4):
            new = one(
                made,
                b"fgh"[random.integers(3) :][:1],
                numbers=float(random.integers(1, 40)),
                blocks=frozenset(b for b in made.select() if random.random() < part),
                others=others,
                row=3.0,
            )
            try:
                check_sum(made.blocks, sums, new)
                sums.append(new)
            except RefusedError:
                pass
        story.happen(event, needed)
    cells = Cells(story.freeze.blocks, sums)
    leaves = [int(leaf) for leaf in cells.leaves]
    touched = [leaf for k, leaf in enumerate(leaves) if (cells.members(sums)[k] >= 0).any()]
    rows = dict(zip(leaves, cells.rows.tolist(), strict=True))
    sets = [set(c) for size in (1,) for c in combinations(touched, size)]
    sets += [{leaf for leaf in touched if random.random() < 0.5} for _ in range(20)] + [{*touched}]
    for inside in sets:
        for more in (False, True) if others else (True,):
            equations = 0.0
            for known in cells.functions().values():
                levels = sorted({0.0, *(s.numbers for s in known)})
                for low, high in pairwise(levels):  # numbers of equal sums
                    opened = [s for s in known if s.numbers >= high]
                    equations += (high - low) * own_rank(cells, opened, inside, others=more)
            room = 3.0 * (sum(rows[leaf] for leaf in inside) + (others if more else 0))
            assert equations <= room + 1e-6


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), events=st.lists(st.sampled_from(EVENTS), max_size=12))
def test_what_is_planned_is_answered(seed: int, events: list[str]) -> None:
    story, random = Story(seed, 150, 5, strata=False, labels=False), np.random.default_rng(seed)
    sums: list[Sum] = []
    for event in [*events, "none"]:
        made = story.freeze
        name = b"%d/%d" % (random.integers(3), made.generation)
        found = plan(made.blocks, sums, made.select(*FOLDS), square(made, 100, name), 60)
        assert not set(found.left_out) & set(found.blocks)
        if found.size:
            new = replace(square(made, 100, name)(found.size), blocks=frozenset(found.blocks))
            check_sum(made.blocks, sums, new)
            sums.append(new)
        story.happen(event, 20)


# -- cost


def test_a_check_against_fifty_runs_takes_little_time() -> None:
    made = freeze(2000)
    sums: list[Sum] = []
    for month in range(25):
        made.update(table(range(month * 3, 2000 + 40 * month)), needed=0)
        sums += [square(made, 2000, name)(10) for name in (b"f", b"g")]
    start = time.process_time()
    check_sum(made.blocks, sums, square(made, 2000)(11))
    check_parties(made.blocks, sums, one(made), least=3)
    assert time.process_time() - start < 1.0  # seconds
    assert (made.blocks["state"] == SPLIT).sum() > 10
    found = plan(made.blocks, sums, made.select(*FOLDS), square(made, 2000), 100)
    assert time.process_time() - start < 10.0
    assert found.size >= 10


@pytest.mark.parametrize("rows", [0, 3])
def test_a_node_without_blocks_limits_nothing(rows: int) -> None:
    made, _ = Freeze.deal(table(range(rows)), least=5, key=KEY)
    check_sum(made.blocks, [], one(made, numbers=5.0, others=20))
    assert plan(made.blocks, [], made.select(), square(made, 100), 50).size == 50
