"""What methods build on: secrets of pairs, sealed messages between clients, zeros in a sum."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_in_memory import Run

from fedkern_flwr.errors import ProtocolError, SumError
from fedkern_flwr.secure_sum import Encoding
from fedkern_flwr.secure_sum.envelope import derive_key, seal_message, unseal_message

SECRET = bytes(range(32))
PLACE: tuple[str | int, ...] = ("chain", "session", 3, 0, 1)

# -- sealed messages


@settings(max_examples=40)
@given(plain=st.binary(max_size=300), place=st.lists(st.text(max_size=5) | st.integers(0, 9)))
def test_what_is_sealed_is_opened_by_the_other(plain: bytes, place: list[Any]) -> None:
    sealed = seal_message(SECRET, plain, *place)
    assert len(sealed) == len(plain) + 28
    assert unseal_message(SECRET, sealed, *place) == plain
    assert len(plain) < 4 or plain not in sealed


def test_the_same_message_is_sealed_differently_each_time() -> None:
    """A hop that is repeated may carry other content: no nonce comes twice."""
    sealed = {seal_message(SECRET, b"content", *PLACE) for _ in range(200)}
    assert len({s[:12] for s in sealed}) == len({s[12:] for s in sealed}) == 200


def test_any_changed_bit_is_noticed() -> None:
    sealed = seal_message(SECRET, b"content", *PLACE)
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError, match="was changed or misplaced"):
            unseal_message(SECRET, bytes(changed), *PLACE)


@pytest.mark.parametrize("length", range(0, 29, 4))
def test_what_was_cut_off_is_noticed(length: int) -> None:
    sealed = seal_message(SECRET, b"content", *PLACE)
    with pytest.raises(ProtocolError, match="was changed or misplaced"):
        unseal_message(SECRET, sealed[:length], *PLACE)


OTHER_PLACES: list[tuple[str | int, ...]] = [
    ("landmarks", "session", 3, 0, 1),
    ("chain", "another", 3, 0, 1),
    ("chain", "session", 4, 0, 1),
    ("chain", "session", 3, 1, 0),
    ("chain", "session", 3, 0, 2),
    ("chain", "session", 30, 1),
    ("chain", "session", "3", 0, 1),
    ("chain", "session", 3, 0),
    (),
]


@pytest.mark.parametrize("place", OTHER_PLACES)
def test_a_message_opens_in_its_own_place_only(place: tuple[str | int, ...]) -> None:
    sealed = seal_message(SECRET, b"content", *PLACE)
    with pytest.raises(ProtocolError):
        unseal_message(SECRET, sealed, *place)
    with pytest.raises(ProtocolError):
        unseal_message(SECRET[::-1], sealed, *PLACE)


def test_keys_of_places_have_nothing_in_common() -> None:
    places = [PLACE, *OTHER_PLACES, ("a", "b"), ("a b",), ('a", "b',), ("a", "", "b")]
    keys = [derive_key(SECRET, *place) for place in places]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
    assert derive_key(SECRET, *PLACE) == keys[0]
    assert derive_key(SECRET[::-1], *PLACE) not in keys
    assert SECRET not in keys


# -- secrets of pairs


def secrets_of(run: Any) -> dict[int, dict[int, bytes]]:
    run.join()
    return {p: run.party(p).state.secrets for p in run.members}


def test_two_parties_of_a_cohort_have_a_secret_that_is_theirs() -> None:
    found = secrets_of(Run(5, clients={"pair_secrets": True}))
    for i, j in combinations(range(5), 2):
        assert found[i][j] == found[j][i]
        assert len(found[i][j]) == 32
    assert len({s for mine in found.values() for s in mine.values()}) == 10
    assert all(p not in mine for p, mine in found.items())


def test_secrets_are_fresh_in_every_run_and_independent_of_all_masks() -> None:
    first = Run(3, clients={"pair_secrets": True})
    second = Run(3, clients={"pair_secrets": True})
    assert secrets_of(first)[0][1] != secrets_of(second)[0][1]
    state = first.party(0).state
    roots = [root for mine in state.roots.values() for root in mine.values()]
    assert not set(roots) & set(state.secrets.values())


def test_strangers_share_no_secret_and_common_cohorts_share_one() -> None:
    run = Run(5, clients={"pair_secrets": True}, cohorts=[[0, 1], [1, 2, 3], [0, 1, 3]])
    found = secrets_of(run)
    assert {p: sorted(mine) for p, mine in found.items()} == {
        0: [1, 3],
        1: [0, 2, 3],
        2: [1, 3],
        3: [0, 1, 2],
        4: [],
    }
    assert found[0][1] == found[1][0]
    assert found[1][3] == found[3][1]


def test_without_being_asked_for_there_are_none() -> None:
    assert secrets_of(Run(3)) == {0: {}, 1: {}, 2: {}}


# -- zeros, and sums without self masks that the server opens


@pytest.mark.parametrize("options", [{}, {"self_masks": False}, {"receiver": 1}])
def test_a_party_may_take_part_with_zeros(options: Any) -> None:
    run, encoding = Run(3), Encoding.fixed_point(4.0)
    values = {p: np.array([0.5, -1.25]) * p for p in range(3)}
    values[1] = np.broadcast_to(0.0, 2)
    total = run.sum(values, encoding=encoding, **options)
    np.testing.assert_array_equal(total, [1.0, -2.5])


def test_zeros_are_masked_like_anything_else() -> None:
    run = Run(3)
    running = run.order(4000, Encoding.fixed_point(4.0), self_masks=False)
    upload = run.contribute(running, 0, np.broadcast_to(0.0, 4000))
    words = np.concatenate(upload.masked)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    share = bits.mean(axis=0)
    assert (np.abs(share - 0.5) < 5.0 * 0.5 / np.sqrt(4000)).all()
    assert len(np.unique(words)) == 4000


def test_one_number_that_is_repeated_is_not_taken_for_zeros() -> None:
    values = {p: np.broadcast_to(float(p), 3) for p in range(3)}
    assert Run(3).sum(values, encoding=Encoding.fixed_point(4.0)).tolist() == [3.0] * 3


def test_a_method_may_insist_on_whole_cohorts() -> None:
    """Where values are repeated, sums over different survivors would show the difference."""
    run = Run(3, clients={"whole_cohorts": True})
    with pytest.raises(SumError, match="this method sums over whole cohorts, without self masks"):
        run.contribute(run.order(1), 0, [1])
    assert run.sum({p: [p] for p in range(3)}, self_masks=False).tolist() == [3]


def test_a_party_that_is_asked_twice_announces_the_same_key() -> None:
    run = Run(3)
    party = run.party(1)
    assert party.announce() == run.keys[1]
    run.keep(party)
    run.join()
    assert run.party(1).announce() != run.keys[1]  # the old one is erased


def test_a_sum_of_zeros_is_of_the_length_that_was_ordered() -> None:
    run = Run(3)
    running = run.order(4)
    for length in (3, 5):
        with pytest.raises(SumError, match=rf"has shape \({length},\) instead of \(4,\)"):
            run.contribute(running, 0, np.broadcast_to(0.0, length))


def test_values_are_overwritten_only_where_that_was_allowed() -> None:
    """The fast path may put the masked vector where the values were, and nowhere else."""
    run, encoding = Run(3), Encoding.fixed_point(4.0)
    running = run.order(3, encoding, self_masks=False)
    run.join()
    order = running.order
    vectors = {p: np.array([0.5, 1.0, -2.0]) * p for p in range(3)}
    for p, vector in vectors.items():
        party, copy = run.party(p), vector.copy()
        upload = party.contribute(order, vector, overwrite=p > 0)
        run.keep(party)
        run.take(p, upload)
        if not p:
            np.testing.assert_array_equal(vector, copy)
    run.server.unmask_sections([running])
    np.testing.assert_array_equal(run.server.total(running), [1.5, 3.0, -6.0])
