"""Joining rows by keyed hashes: equal ids meet, nothing else does, and the hashes tell nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.alignment import (
    check_alignment_key,
    count_duplicates,
    find_rows,
    hash_ids,
    sort_order,
)
from fedkern_flwr.errors import OptionError

KEY = b"sixteen bytes ok"


def hashes(ids: Any) -> np.ndarray:
    return hash_ids(list(ids), KEY, "run")


small = st.lists(st.integers(0, 30), unique=True, max_size=20)


@settings(max_examples=40)
@given(wanted=st.lists(st.integers(0, 30), max_size=20), known=small)
def test_rows_are_found_where_a_dictionary_finds_them(wanted: list[int], known: list[int]) -> None:
    places = {value: place for place, value in enumerate(known)}
    found = find_rows(hashes(wanted), hashes(known))
    assert found.dtype == np.int32
    assert found.tolist() == [places.get(value, -1) for value in wanted]


words = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])


@given(
    known=st.lists(st.tuples(words, words), unique_by=lambda pair: pair[0]),
    wanted=st.lists(st.tuples(words, words)),
)
def test_both_words_of_a_hash_must_agree(known: list[Any], wanted: list[Any]) -> None:
    places = {pair: place for place, pair in enumerate(known)}
    found = find_rows(
        np.array(wanted, np.uint64).reshape(-1, 2), np.array(known, np.uint64).reshape(-1, 2)
    )
    assert found.tolist() == [places.get(pair, -1) for pair in wanted]


@given(ids=st.lists(st.integers(0, 9), max_size=25))
def test_duplicates_are_counted(ids: list[int]) -> None:
    assert count_duplicates(hashes(ids)) == len(ids) - len(set(ids))


def test_the_text_of_an_id_counts() -> None:
    same = [7, "7", np.int64(7), np.str_("7")]
    assert len(np.unique(hashes(same), axis=0)) == 1
    assert len(np.unique(hashes([7, "07", "7 ", 7.0]), axis=0)) == 4


def test_pseudonyms_depend_on_key_and_session() -> None:
    """Without the key nobody can try out ids; two runs cannot be linked."""
    ids = range(50)
    base = hash_ids(list(ids), KEY, "one")
    assert base.shape == (50, 2)
    assert base.dtype == np.uint64
    np.testing.assert_array_equal(base, hash_ids(list(ids), KEY, "one"))
    for other in (hash_ids(list(ids), KEY, "two"), hash_ids(list(ids), KEY + b"!", "one")):
        assert (find_rows(base, other) == -1).all()
        assert not np.intersect1d(base, other).size
    bits = np.unpackbits(base.view(np.uint8)).mean()
    assert 0.45 < bits < 0.55


def test_rows_are_announced_in_an_order_that_tells_nothing() -> None:
    found = hashes(range(200))
    order = sort_order(found)
    pairs = [tuple(pair) for pair in found[order].tolist()]
    assert pairs == sorted(pairs)
    assert abs(np.corrcoef(order, np.arange(200))[0, 1]) < 0.2
    ties = np.array([[1, 5], [0, 9], [1, 2]], np.uint64)
    assert sort_order(ties).tolist() == [1, 2, 0]


def test_no_rows_at_all() -> None:
    nothing = hashes([])
    assert nothing.shape == (0, 2)
    assert find_rows(nothing, nothing).tolist() == []
    assert find_rows(hashes([1, 2]), nothing).tolist() == [-1, -1]
    assert find_rows(nothing, hashes([1])).tolist() == []
    assert count_duplicates(nothing) == 0
    assert sort_order(nothing).tolist() == []


def test_a_key_that_can_be_guessed_is_refused() -> None:
    check_alignment_key(bytes(16))
    with pytest.raises(OptionError, match=r"has 15 bytes, at least 16 are needed; draw one with"):
        check_alignment_key(b"fifteen bytes!!")
