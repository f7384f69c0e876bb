"""What a node keeps between two messages comes back as it was, or is refused."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from refusals import refused

from fedkern_flwr.node.kept_state import KeptState
from fedkern_flwr.node.recent import Recent


@given(arrays(np.float64, (2, 3)), st.binary(max_size=4), st.text(max_size=5))
def test_a_state_comes_back_as_it_was(found: np.ndarray, seed: bytes, text: str) -> None:
    sealed = np.arange(3, dtype=np.uint64)
    state = KeptState({"c": 0.1, "name": text}, seed, {"a": found, "b": found[:0], "s": sealed})
    again = KeptState.unpack(state.pack())
    assert (again.settings, again.seed) == ({"c": 0.1, "name": text}, seed)
    for name, one in state.arrays.items():
        assert again.arrays[name].dtype == one.dtype
        np.testing.assert_array_equal(again.arrays[name], one)
        assert again.arrays[name].flags.writeable


def test_a_state_with_a_lost_or_another_end_is_refused() -> None:
    packed = KeptState({"c": 1}, b"", {"a": np.arange(3.0)}).pack()
    for data in (packed[:-1], packed + b"x", packed[3:], packed.replace(b"<f8", b"|O8")):
        with refused("FK-CHECKPOINT-DAMAGED"):
            KeptState.unpack(data)


def test_a_message_that_fails_leaves_what_it_pinned_and_no_secret_of_another_run() -> None:
    before, failed, borrowed = KeptState({"a": 1}), KeptState({"a": 1}), KeptState()
    assert failed.pin("a", 1)
    assert failed.pin("b", 2)
    assert not failed.pin("b", 3)
    failed.settings["done"], failed.seed = 7, b"new"
    failed.leave_pins(before)
    assert (before.settings, before.seed) == ({"a": 1, "b": 2}, b"new")
    borrowed.borrow(b"of another run")
    fresh = KeptState()
    borrowed.leave_pins(fresh)
    assert not fresh.seed


def test_what_was_made_last_is_kept_as_far_as_there_is_room() -> None:
    made, recent = [], Recent(3 * 80)

    def make(key: bytes) -> tuple[np.ndarray, ...]:
        made.append(key)
        return (np.full(10, len(made)),)

    for key in (b"a", b"b", b"a", b"c", b"d", b"a", b"b"):
        (found,) = recent.get(key, lambda key=key: make(key))
        assert not found.flags.writeable
    assert made == [b"a", b"b", b"c", b"d", b"b"]  # the fourth displaced the oldest
    assert recent.get(b"large", lambda: (np.zeros(100),))[0].size == 100
    recent.get(b"large", lambda: make(b"large"))
    assert made[-1] == b"large"  # more than there is room for is not kept
