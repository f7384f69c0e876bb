"""Who sums with whom, which items are kept, in which rings: against plain definitions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkern_flwr.errors import OptionError
from fedkern_flwr.gram import messages as wire
from fedkern_flwr.gram.messages import (
    ENCODINGS,
    check_values,
    counts_encoding,
    disjoint_cohorts,
    matrix_encoding,
    ranking_encoding,
    shows_few,
    supported,
)
from fedkern_flwr.wire.sums import bind

# -- rings


@given(
    st.integers(1, 2000),
    st.integers(1, 5000),
    st.integers(1, 2**20) | st.floats(1e-3, 1e6),
    st.integers(0, 30),
)
def test_the_ring_of_a_matrix_is_the_smallest_that_holds_every_sum(
    parties: int, rows: int, bound: float, fraction: int
) -> None:
    entry = rows * math.ceil(Fraction(bound) * 2**fraction) ** 2  # the largest of a node
    fitting = [bits for bits in (16, 32, 64) if parties * entry < 2 ** (bits - 1)]
    if not fitting:
        with pytest.raises(OptionError, match="overflows a 64-bit ring; use fewer fraction bits"):
            matrix_encoding(parties, rows, bound, fraction)
        return
    found = matrix_encoding(parties, rows, bound, fraction)
    assert found.kind == "integer"
    assert found.bits == fitting[0] or parties * float(entry) >= 2.0**63  # rounded upwards
    assert found.bound >= entry
    assert found.bound <= entry * (1 + 2**-52)
    found.check_room(parties)
    total = np.array([min(entry, 2**63 - 1)])
    found.encode(total, parties, name="the largest entry")  # is not refused
    assert matrix_encoding(parties, rows, bound, fraction) == found


def test_all_rings_come_up_at_their_ends() -> None:
    """Just below a half of each ring, and at it."""
    for bits, smaller in ((16, 2**15 - 1), (32, 2**31 - 1)):
        assert matrix_encoding(1, smaller, 1.0, 0).bits == bits
        assert matrix_encoding(1, smaller + 1, 1.0, 0).bits == 2 * bits
        assert counts_encoding(1, smaller).bits == bits
        assert counts_encoding(2, smaller).bits == 2 * bits
    with pytest.raises(OptionError, match="overflows a 64-bit ring"):
        matrix_encoding(2, 2**62, 1.0, 0)


def test_counts_need_no_more_than_the_rows() -> None:
    found = counts_encoding(5, 7)
    assert (found.kind, found.bits, found.bound) == ("integer", 16, 7.0)


def test_metrics_are_precise() -> None:
    for rows in (0, 1, 943):
        found = ranking_encoding(rows)
        assert (found.kind, found.bits, found.bound) == ("fixed-point", 64, float(max(1, rows)))
        assert found.fraction_bits(943) >= 42


BAD_OPTIONS: dict[str, tuple[tuple[Any, ...], str]] = {
    "an unknown encoding": (("text", 1.0, 0), "encoding is 'text'; choose one of counts, fixed-po"),
    "no bound": (("counts", 0.0, 0), "bound is 0.0; declare the largest absolute value"),
    "a negative bound": (("fixed-point", -1.0, 0), "bound is -1.0; declare"),
    "an infinite bound": (("fixed-point", math.inf, 0), "bound is inf; declare"),
    "a bound that is none": (("counts", math.nan, 0), "bound is nan; declare"),
    "a bound between counts": (
        ("counts", 1.5, 0),
        "whole numbers, not a bound of 1.5 with 0 fract",
    ),
    "fractions of counts": (("counts", 1.0, 4), "not a bound of 1 with 4 fraction bits; use a who"),
    "negative fractions": (("fixed-point", 1.0, -1), "fraction_bits is -1; use 0 to 30"),
    "too many fractions": (("fixed-point", 1.0, 31), "fraction_bits is 31; use 0 to 30"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_encodings_that_hold_nothing_are_refused(name: str) -> None:
    values, text = BAD_OPTIONS[name]
    with pytest.raises(OptionError, match=text):
        check_values(*values)


def test_encodings_that_hold_something_are_not() -> None:
    assert ENCODINGS == ("counts", "fixed-point")
    for values in (("counts", 1.0, 0), ("counts", 5, 0), ("fixed-point", 0.1, 0)):
        check_values(*values)
    check_values("fixed-point", 1e9, 30)


# -- who takes part


PARTITIONS = st.sets(st.integers(0, 500), min_size=2, max_size=60)


@given(PARTITIONS, st.floats(0.01, 1.0), st.integers(1, 5), st.integers(0, 9))
def test_cohorts_are_disjoint_and_as_large_as_they_can_be(
    partitions: set[int], participation: float, cohorts: int, seed: int
) -> None:
    chosen = min(len(partitions), max(2, round(participation * len(partitions))))
    listed = sorted(partitions)
    if chosen < 2 * cohorts:
        text = f"{chosen} nodes that take part do not make {cohorts} cohorts of two or more; use f"
        with pytest.raises(OptionError, match=text):
            disjoint_cohorts(listed, participation, cohorts, seed)
        return
    found = disjoint_cohorts(listed, participation, cohorts, seed)
    everybody = [p for members in found for p in members]
    assert len(found) == cohorts
    assert len(everybody) == len(set(everybody)) == chosen
    assert set(everybody) <= partitions
    sizes = [len(members) for members in found]
    assert max(sizes) - min(sizes) <= 1
    assert all(members == sorted(members) for members in found)
    assert disjoint_cohorts(listed[::-1], participation, cohorts, seed) == found


def test_who_is_in_which_cohort_depends_on_the_seed() -> None:
    drawn = {tuple(map(tuple, disjoint_cohorts(range(12), 1.0, 3, seed))) for seed in range(9)}
    assert len(drawn) == 9
    half = Counter(p for seed in range(300) for p in disjoint_cohorts(range(10), 0.5, 1, seed)[0])
    assert all(100 < half[p] < 200 for p in range(10))


@given(PARTITIONS, st.floats(0.01, 1.0), st.integers(2, 5), st.integers(0, 9))
def test_each_round_has_half_of_the_nodes_that_are_left(
    partitions: set[int], participation: float, rounds: int, seed: int
) -> None:
    (everybody,) = disjoint_cohorts(sorted(partitions), participation, 1, seed)
    if len(everybody) < 2 * rounds:
        with pytest.raises(OptionError, match=f"do not make {rounds} rounds of two or more; use f"):
            disjoint_cohorts(sorted(partitions), participation, rounds, seed, halves=True)
        return
    found = disjoint_cohorts(sorted(partitions), participation, rounds, seed, halves=True)
    assert sorted(p for members in found for p in members) == everybody
    assert all(members == sorted(members) for members in found)
    left = len(everybody)
    for number, members in enumerate(found[:-1], start=1):
        rest = left - len(members)
        assert rest >= 2 * (rounds - number)  # two for each round that follows
        assert len(members) == max(2, left // 2) or rest == 2 * (rounds - number)
        left = rest
    assert len(found[-1]) == left


def test_who_is_in_which_round_depends_on_the_seed() -> None:
    drawn = [disjoint_cohorts(range(16), 1.0, 3, seed, halves=True) for seed in range(9)]
    assert {tuple(map(len, found)) for found in drawn} == {(8, 4, 4)}
    assert len({tuple(map(tuple, found)) for found in drawn}) == 9


# -- which items


@given(
    st.integers(1, 4).flatmap(
        lambda c: st.lists(
            st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=c, max_size=c
        )
    ),
    st.integers(2, 7),
)
def test_an_item_is_kept_if_no_cohort_has_few_of_it(counts: list[list[int]], least: int) -> None:
    expected = [
        item
        for item in range(6)
        if any(c[item] for c in counts) and not any(0 < c[item] < least for c in counts)
    ]
    found = supported([np.array(c, np.int64) for c in counts], least)
    assert found.tolist() == expected
    assert found.dtype == np.int32


def test_a_difference_needs_two_nodes_and_enough_rows() -> None:
    rows = {0: 1, 1: 1, 2: 4, 3: 9, 4: 1}
    everybody = [0, 1, 2, 3, 4]
    assert not shows_few(everybody, everybody, rows, 5)
    assert shows_few(everybody, [0, 1, 2, 4], rows, 5)  # one node of nine rows
    assert shows_few(everybody, [2, 3, 4], rows, 5)  # two of one row each
    assert not shows_few(everybody, [1, 3, 4], rows, 5)  # five rows of two nodes
    assert shows_few(everybody, [1, 3, 4], rows, 6)
    assert not shows_few(everybody, [0, 1], rows, 5)
    assert not shows_few([0, 1], [0, 1, 2], rows, 5)  # one more is not in the counts
    assert shows_few([0, 1], [0, 2], rows, 1)


# -- names


def test_a_name_is_bound_to_every_field_of_a_request() -> None:
    fields: dict[str, Any] = {"session": "a", "round": 1, "encoding": "counts", "bound": 1.0}
    fields |= {"fraction_bits": 0, "rows": 3, "parties": 4}
    fields |= {"supports": False, "counted": b"\x0f", "items": np.arange(3, dtype=np.int32)}
    first = wire.MatrixRequest(**fields)
    names = {bind(wire.GRAM_SUM, first), bind("other", first)}
    other: dict[str, Any] = {"session": "b", "encoding": "fixed-point", "bound": 1.5}
    other |= {
        "supports": True,
        "counted": b"\x0e",
        "items": np.array([0, 1, 3], np.int32),
    }
    for name, value in fields.items():
        names.add(bind(wire.GRAM_SUM, replace(first, **{name: other.get(name, value)})))
        if name not in other:
            names.add(bind(wire.GRAM_SUM, replace(first, **{name: value + 1})))
    assert len(names) == 2 + len(fields)
    assert (
        len({bind(wire.GRAM_SUM, replace(first, items=np.arange(k, dtype="i4"))) for k in range(9)})
        == 9
    )
    assert bind(wire.GRAM_SUM, wire.MatrixRequest(**fields)) in names
    assert all(name.startswith(("gram matrix#", "other#")) for name in names)
    arrived = wire.MatrixRequest.unpack(first.arrays(), first.scalars(), party="")
    assert bind(wire.GRAM_SUM, arrived) == bind(wire.GRAM_SUM, first)
