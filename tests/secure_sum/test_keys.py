"""The key schedule, and what travels sealed from client to client."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st
from sums_in_memory import Run, refused

from fedkern_flwr.errors import SumError
from fedkern_flwr.secure_sum.keys import (
    generate_key,
    next_root,
    pair_label,
    pair_root,
    read_key,
    sum_keys,
    sum_label,
)
from fedkern_flwr.secure_sum.party_state import order_terms
from fedkern_flwr.secure_sum.relay import BACKUP, SHARE, Route, seal, unseal

ONE, OTHER = generate_key(), generate_key()
PLACE = {"digest": bytes(32), "cohort": 0, "pair": pair_label(0, 1)}


def root_of(private: bytes, public: bytes, **place: Any) -> bytes:
    return pair_root(read_key(private)[0], public, **place)


def test_two_parties_derive_the_same_root_and_nobody_else() -> None:
    root = root_of(ONE[0], OTHER[1], **PLACE)
    assert root == root_of(OTHER[0], ONE[1], **PLACE)
    third = generate_key()
    assert root not in {root_of(third[0], k, **PLACE) for k in (ONE[1], OTHER[1])}


@pytest.mark.parametrize(
    "change", [{"digest": b"\1" + bytes(31)}, {"cohort": 1}, {"pair": pair_label(0, 2)}]
)
def test_roots_depend_on_roster_cohort_and_pair(change: dict[str, Any]) -> None:
    assert root_of(ONE[0], OTHER[1], **PLACE) != root_of(ONE[0], OTHER[1], **PLACE | change)


def test_pair_labels_are_unordered_and_unambiguous() -> None:
    assert pair_label(3, 1) == pair_label(1, 3)
    labels = {pair_label(i, j) for i in range(40) for j in range(i)}
    assert len(labels) == 40 * 39 // 2


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31), bytes(31)])
def test_improper_public_keys_are_refused(public: bytes) -> None:
    """Points of small order would give a secret that everybody knows."""
    with pytest.raises(ValueError, match=r".+"):
        root_of(ONE[0], public, **PLACE)


def test_keys_of_all_sums_pairs_and_purposes_differ() -> None:
    root = os.urandom(32)
    seen: set[bytes] = set()
    made = 0
    for session in ("a", "b"):
        for cohort in (0, 1):
            for index in (1, 2, 11):
                for name in ("g", "h"):
                    for pair in (pair_label(0, 1), pair_label(0, 11), pair_label(1, 11)):
                        seen.update(sum_keys(root, sum_label(session, cohort, index, name), pair))
                        made += 2
    for _ in range(50):
        seen.add(root)
        root = next_root(root)
        made += 1
    assert len(seen) == made


@given(
    one=st.tuples(st.text(max_size=6), st.integers(0, 30), st.integers(0, 30), st.text(max_size=6)),
    other=st.tuples(
        st.text(max_size=6), st.integers(0, 30), st.integers(0, 30), st.text(max_size=6)
    ),
)
def test_labels_tell_sums_apart(one: Any, other: Any) -> None:
    assert (sum_label(*one) == sum_label(*other)) == (one == other)


def test_the_label_holds_what_all_parties_must_have_been_told() -> None:
    order = Run(3).order(3).order
    others = {"name": "b", "length": 4, "kind": "fixed-point", "bits": 32, "bound": 8.0}
    others |= {"receiver": 0, "self_masks": False}
    told = [replace(order, **{field: value}) for field, value in others.items()]
    assert len({order_terms(order), *map(order_terms, told)}) == 8


def test_labels_resist_names_that_look_like_numbers() -> None:
    assert sum_label("a", 1, 2, 'x", 3') != sum_label('a", 1', 2, 3, "x")
    assert sum_label("a", 1, 23, "") != sum_label("a", 12, 3, "")


def test_a_ratchet_leads_forward_only() -> None:
    """What is left after a step gives neither the old root nor any key of the old sum."""
    old = os.urandom(32)
    label, pair = sum_label("run", 0, 1, "g"), pair_label(0, 1)
    secret = {old, *sum_keys(old, label, pair)}
    new = old
    for _ in range(20):
        new = next_root(new)
        assert not secret & {new, *sum_keys(new, label, pair)}
    assert secret & {old, *sum_keys(old, label, pair)}  # negative control: the old root does


# -- sealed messages

WHERE: dict[str, Any] = {"session": "run", "cohort": 1, "index": 7, "name": "g"}
ROUTE: dict[str, Any] = {"kind": SHARE, "source": 2, "destination": 3}
KEY, PLAIN = os.urandom(32), os.urandom(33)


def unseal_at(sealed: bytes, key: bytes = KEY, **change: Any) -> bytes:
    where, route = dict(WHERE), dict(ROUTE)
    for name, value in change.items():
        (where if name in where else route)[name] = value
    return unseal(key, sealed, Route(sum_label(**where), **route))


SEALED = seal(KEY, PLAIN, Route(sum_label(**WHERE), **ROUTE))


@pytest.mark.parametrize(
    "change",
    [
        {"session": "run2"},
        {"session": "ru"},
        {"cohort": 0},
        {"index": 8},
        {"index": 6},
        {"name": "h"},
        {"kind": BACKUP},
        {"source": 3},
        {"source": 3, "destination": 2},
        {"destination": 2},
        {"destination": 4},
        {"key": os.urandom(32)},
    ],
)
def test_a_message_out_of_place_stays_closed(change: dict[str, Any]) -> None:
    source = change.get("source", 2)
    text = f"what partition {source} sent through the server was changed or misplaced"
    error = refused(lambda: unseal_at(SEALED, **change), text=text)
    assert PLAIN.hex() not in repr(error)


@given(
    WHERE=st.fixed_dictionaries(
        {
            "session": st.text(max_size=8),
            "cohort": st.integers(0, 99),
            "index": st.integers(1, 2**31),
            "name": st.text(max_size=8),
        }
    ),
    plain=st.binary(max_size=80),
    data=st.data(),
)
def test_any_place_and_any_bit_are_bound(
    WHERE: dict[str, Any], plain: bytes, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from([SHARE, BACKUP]))
    source, destination = data.draw(st.permutations([0, 1, 12, 2**31 - 1]))[:2]
    label = sum_label(**WHERE)
    route = Route(label, kind, source, destination)
    sealed = seal(KEY, plain, route)
    assert unseal(KEY, sealed, route) == plain
    assert len(sealed) == len(plain) + 16
    assert len(plain) < 4 or plain not in sealed
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    changed = (int.from_bytes(sealed, "little") ^ (1 << bit)).to_bytes(len(sealed), "little")
    wrong = data.draw(
        st.sampled_from(
            [
                {"label": label + b" "},
                {"kind": 3 - kind},
                {"source": source + 1},
                {"destination": destination + 1},
            ]
        )
    )
    for broken, where in (
        (changed, route),
        (sealed, route._replace(**wrong)),
        (sealed[:-1], route),
    ):
        with pytest.raises(SumError, match="changed or misplaced"):
            unseal(KEY, broken, where)


@pytest.mark.parametrize("size", [0, 1, 15, 16])
def test_truncated_messages_fail_closed(size: int) -> None:
    refused(unseal_at, SEALED[:size], text="was changed or misplaced")


def test_two_directions_and_kinds_never_share_a_nonce() -> None:
    """The same text under the same key looks different each time."""
    label = sum_label(**WHERE)
    made = {
        seal(KEY, PLAIN, Route(label, kind, s, d))[:33]
        for kind in (SHARE, BACKUP)
        for s, d in ((2, 3), (3, 2))
    }
    assert len(made) == 4


def test_keys_of_a_sum_are_those_of_hkdf_expand() -> None:
    for root in (bytes(32), os.urandom(32)):
        label, pair = sum_label("run", 1, 2, "weights"), pair_label(3, 4)
        info = b"fedkern-flwr secure sum 1 keys " + label + pair
        both = HKDFExpand(hashes.SHA256(), 64, info).derive(root)
        assert sum_keys(root, label, pair) == (both[:32], both[32:])
