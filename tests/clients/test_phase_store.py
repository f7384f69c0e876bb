"""The file of phases at an active party."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkern_flwr.clients.fdskl_table import PhaseStore
from fedkern_flwr.errors import StateError

ROWS, CAPACITY = 9, 12


def truth(bits: int) -> np.ndarray:
    """The phase of every row and direction."""
    dtype = np.uint16 if bits == 16 else np.uint32
    rng = np.random.default_rng(bits)
    return rng.integers(1, np.iinfo(dtype).max, (ROWS, CAPACITY), dtype=dtype)


def make(folder: Path, bits: int = 16) -> PhaseStore:
    return PhaseStore(folder, "5e" * 8, 3, ROWS, CAPACITY, bits)


def give(store: PhaseStore, all_known: np.ndarray, rows: Any, upto: int, bits: int = 16) -> None:
    """Send what is missing of some rows, row by row."""
    places = np.asarray(rows, np.int32)
    known = all_known[places].astype(np.int32)
    missing = [truth(bits)[i, k:upto] for i, k in zip(places, known, strict=True)]
    store.take(places, known, upto, np.concatenate(missing))
    all_known[places] = upto


@settings(max_examples=60)
@given(
    data=st.data(),
    bits=st.sampled_from([16, 32]),
    steps=st.lists(
        st.tuples(
            st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True),
            st.integers(0, 3),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_whatever_comes_in_whatever_order_is_read_again(data: Any, bits: int, steps: Any) -> None:
    """Rows in any order, each with another number of phases; new objects, lost files."""
    with tempfile.TemporaryDirectory() as name:
        folder, upto = Path(name), 0
        known = np.zeros(ROWS, np.int32)
        for rows, more, lost in steps:
            upto = min(CAPACITY, upto + more)
            store = make(folder, bits)
            if lost and store.path.exists():
                store.path.unlink()
                with pytest.raises(StateError):
                    store.read(np.arange(ROWS, dtype=np.int32), upto)
                known[:] = 0  # as the server is told
            chosen = data.draw(st.sampled_from([rows, sorted(rows), list(range(ROWS))]))
            give(store, known, chosen, upto, bits)
            again = make(folder, bits)
            for some in (chosen, sorted(chosen), list(range(ROWS))):
                least = int(known[some].min())
                found = again.read(np.array(some, np.int32), least)
                np.testing.assert_array_equal(found, truth(bits)[some, :least])
                assert found.dtype.itemsize * 8 == bits


def test_phases_that_are_gone_are_never_read_as_zeros(tmp_path: Path) -> None:
    """The file was deleted, then rows came that were never here before: a file again."""
    store, known = make(tmp_path), np.zeros(ROWS, np.int32)
    give(store, known, [0, 1, 2], 4)
    store.path.unlink()
    give(store, known, [5, 6], 4)
    np.testing.assert_array_equal(store.read(np.array([5, 6]), 4), truth(16)[5:7, :4])
    text = "partition 3: the phases of this run are gone from its disk; they are sent again"
    for rows in ([0, 1, 2], [2, 5], [1]):
        with pytest.raises(StateError, match=text):
            store.read(np.array(rows), 4)
    with pytest.raises(StateError, match=text):
        give(store, known.copy(), [2, 3], 8)
    known[:] = 0
    give(store, known, [2, 3], 8)
    np.testing.assert_array_equal(store.read(np.array([2, 3]), 8), truth(16)[2:4, :8])


def test_more_than_came_is_not_read(tmp_path: Path) -> None:
    store, known = make(tmp_path), np.zeros(ROWS, np.int32)
    give(store, known, [0, 1], 4)
    store.read(np.array([0, 1]), 4)
    with pytest.raises(StateError, match="are gone from its disk"):
        store.read(np.array([0, 1]), 5)
    with pytest.raises(StateError, match="are gone from its disk"):
        store.read(np.array([7]), 1)


@pytest.mark.parametrize("size", [0, 1, -1])
def test_a_file_of_another_size_is_not_used(size: int, tmp_path: Path) -> None:
    store, known = make(tmp_path), np.zeros(ROWS, np.int32)
    give(store, known, [0, 1, 2], 4)
    text = store.path.read_bytes()
    store.path.write_bytes(text[:size] if size != 1 else text + b"x")
    with pytest.raises(StateError, match="the phases of this run are gone from its disk"):
        store.read(np.array([0]), 4)
    with pytest.raises(StateError, match="the phases of this run are gone from its disk"):
        give(store, known.copy(), [0], 6)
    known[:] = 0
    give(store, known, [0], 6)  # all is sent again
    np.testing.assert_array_equal(store.read(np.array([0]), 6), truth(16)[:1, :6])
    with pytest.raises(StateError):
        store.read(np.array([1]), 4)


def test_taking_the_same_twice_does_no_harm(tmp_path: Path) -> None:
    store, known = make(tmp_path), np.zeros(ROWS, np.int32)
    give(store, known, [0, 3], 4)
    before = known.copy()
    give(store, known, [0, 3, 4], 7)
    give(store, before, [0, 3, 4], 7)
    np.testing.assert_array_equal(store.read(np.array([0, 3, 4]), 7), truth(16)[[0, 3, 4], :7])


def test_no_rows_are_no_trouble(tmp_path: Path) -> None:
    store, known = make(tmp_path), np.zeros(ROWS, np.int32)
    give(store, known, [1], 2)
    assert store.read(np.zeros(0, np.int32), 2).shape == (0, 2)
    assert store.read(np.array([1], np.int32), 0).shape == (1, 0)
