"""The roster: who takes part, and what a party refuses to join."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_in_memory import Run, refused

from fedkern_flwr.errors import OptionError, SmallCohortError, SumError
from fedkern_flwr.secure_sum import CIPHERS, Party, PartyState, SecureSum
from fedkern_flwr.secure_sum.keys import generate_key
from fedkern_flwr.secure_sum.membership import Cohort, Membership
from fedkern_flwr.wire.sums import Roster


def joined(party: Party) -> bool:
    return bool(party.state.digest)


def test_both_sides_read_the_same_roster() -> None:
    run = Run(5, cohorts=[range(5), [1, 2, 3]], cipher="chacha20")
    run.join()
    server = run.server.membership
    for p in run.members:
        state = run.party(p).state
        assert state.digest == server.digest
        assert state.cipher == "chacha20"
        assert state.cohorts == {c.number: c for c in server.cohorts if p in c.members}
        for number, cohort in state.cohorts.items():
            assert cohort.neighbours == server.cohorts[number].neighbours
            assert set(state.roots[number]) == set(cohort.members) - {p}


def test_the_two_ends_of_a_pair_hold_the_same_root_and_no_two_pairs_do() -> None:
    run = Run(5, cohorts=[range(5), [1, 2, 3]])
    run.join()
    states = {p: run.party(p).state for p in run.members}
    roots: dict[bytes, set[tuple[int, frozenset[int]]]] = {}
    for p, state in states.items():
        for number, pairs in state.roots.items():
            for q, root in pairs.items():
                assert states[q].roots[number][p] == root
                roots.setdefault(root, set()).add((number, frozenset((p, q))))
    assert len(roots) == 10 + 3
    assert all(len(places) == 1 for places in roots.values())


CHANGES: dict[str, dict[str, Any]] = {
    "another key": {"keys": lambda keys: generate_key()[1] + keys[32:]},
    "another cipher": {"cipher": lambda _: CIPHERS[1]},
    "another threshold": {"cohorts": lambda _: "[[3,1,[0,1,2,3]]]"},
    "another cohort": {"cohorts": lambda _: "[[4,1,[0,1,2,3]],[3,1,[0,1,2]]]"},
    "a party less": {
        "cohorts": lambda _: "[[3,1,[0,1,2]]]",
        "partitions": lambda data: data[:12],
        "keys": lambda data: data[:96],
        "signatures": lambda data: data[:192],
        "counts": lambda data: data[:48],
    },
    "another number of rows": {"counts": lambda data: (9).to_bytes(8, "little") + data[8:]},
}


def change_roster(roster: Roster, change: dict[str, Any]) -> Roster:
    return replace(roster, **{name: f(getattr(roster, name)) for name, f in change.items()})


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_roster_is_another_one(kind: str) -> None:
    """The digest covers it, and a party that has joined refuses it."""
    run = Run(4, threshold=4)
    changed = change_roster(run.server.roster, CHANGES[kind])
    assert Membership.read(changed, "run").digest != run.server.membership.digest
    run.join()
    run.join()  # the same roster may come again
    refused(
        run.party(3).join,
        changed,
        text="the roster of the run has changed",
        remedy="start the run again",
        party="partition 3",
    )


def test_the_digest_covers_the_session() -> None:
    roster = Run(3).server.roster
    digests = {Membership.read(roster, session).digest for session in ("run", "run2", "")}
    assert len(digests) == 3
    assert Membership.read(roster, "run").digest in digests  # the same input, the same digest


def test_parties_shown_different_rosters_share_no_keys() -> None:
    run = Run(4)
    other = change_roster(run.server.roster, CHANGES["another cipher"])
    for p in (0, 1):
        party = run.party(p)
        party.join(run.server.roster if p == 0 else other)
        run.keep(party)
    roots = [run.party(0).state.roots[0][1], run.party(1).state.roots[0][0]]
    assert roots[0] != roots[1]


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "ids out of order": ({"partitions": np.array([1, 0, 2, 3], "<i4").tobytes()}, "is damaged"),
    "an id twice": ({"partitions": np.array([0, 0, 2, 3], "<i4").tobytes()}, "is damaged"),
    "an id cut": ({"partitions": bytes(15)}, "the roster is damaged"),
    "an id too few": ({"partitions": np.arange(3, dtype="<i4").tobytes()}, "is damaged"),
    "keys cut": ({"keys": bytes(96)}, "the roster is damaged"),
    "signatures cut": ({"signatures": bytes(64)}, "the roster is damaged"),
    "an unknown cipher": ({"cipher": "rot13" * 100}, "there is no cipher 'rot13rot13rot13rot13'"),
    "strangers": ({"cohorts": "[[4,1,[0,1,2,9]]]"}, "cohort 0 has strangers or members twice"),
    "members twice": ({"cohorts": "[[3,1,[0,1,1,2]]]"}, "cohort 0 has strangers or members twice"),
    "out of order": ({"cohorts": "[[3,1,[0,2,1]]]"}, "cohort 0 has strangers or members twice"),
} | {
    text[:20] or "nothing": ({"cohorts": text}, "the roster's cohorts are damaged")
    for text in (
        *("cohorts", "", "7", "null", "[[3]]", "[[3,0,[0,1,2,3]]]", '[["3",1,["0","1","2"]]]'),
        *("[[3,1,[0.0,1.0,2.0]]]", "[[3,1,[false,true,2]]]", "[[Infinity,1,[0,1,2]]]"),
        *("[[NaN,1,[0,1,2]]]", "[" * 100_000),
    )
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_rosters_are_refused(kind: str) -> None:
    """The whole one is taken afterwards."""
    change, text = DAMAGED[kind]
    run = Run(4)
    party = run.party(1)
    refused(party.join, replace(run.server.roster, **change), text=text)
    assert not joined(party)
    assert party.state.private
    party.join(run.server.roster)
    assert joined(party)


TWO = SecureSum("run", {p: (generate_key()[1], b"") for p in range(2)}).roster


@settings(max_examples=40)
@given(cohorts=st.text(max_size=30) | st.recursive(st.none() | st.integers(), st.lists).map(str))
def test_cohorts_of_any_text_break_nothing(cohorts: str) -> None:
    roster = replace(TWO, cohorts=cohorts)
    try:
        listed = Membership.read(roster, "run").cohorts
    except (SumError, OptionError, SmallCohortError) as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert all(set(c.members) <= {0, 1} for c in listed)


@pytest.mark.parametrize(
    ("cohorts", "kind", "text"),
    [
        ("[[1,1,[1]]]", SmallCohortError, "1 party is too few for a secure sum"),
        ("[[0,1,[]]]", SmallCohortError, "0 parties are too few for a secure sum"),
        ("[[4,1,[0,1,2,3]],[1,1,[1]]]", SmallCohortError, "1 party is too few for a secure sum"),
        ("[[2,1,[0,1,2,3]]]", OptionError, "threshold is 2 for 4 parties"),
        ("[[5,1,[0,1,2,3]]]", OptionError, "threshold is 5 for 4 parties"),
        ("[[-1,1,[0,1,2,3]]]", OptionError, "threshold is -1 for 4 parties"),
    ],
)
def test_parties_refuse_cohorts_that_protect_nobody(
    cohorts: str, kind: type[Any], text: str
) -> None:
    """In a cohort of one a party would reveal its vector by its own share."""
    run = Run(4)
    party = run.party(1)
    refused(party.join, replace(run.server.roster, cohorts=cohorts), text=text, kind=kind)
    assert not joined(party)


def test_a_party_joins_only_what_it_announced() -> None:
    run = Run(3)
    silent = Party(0, PartyState("run"))
    refused(
        silent.join,
        run.server.roster,
        text="this party has announced no key",
        remedy="start the run again",
        party="partition 0",
    )
    for change in ({"keys": generate_key()[1] + run.server.roster.keys[32:]}, {}):
        party = run.party(0)
        if not change:
            party.state.private = b""
            party.announce()  # a second key: the server still has the first
        refused(
            party.join,
            replace(run.server.roster, **change),
            text="the roster holds another key under the name of this party",
            remedy="start the run again",
            party="partition 0",
        )
        assert not joined(party)


@pytest.mark.parametrize("place", [0, 8], ids=["rows", "held-out rows"])
def test_a_roster_tells_of_the_rows_that_a_party_declared(place: int) -> None:
    run = Run(3)
    party, counts = run.party(0), run.server.roster.counts
    told = counts[:place] + (9).to_bytes(8, "little") + counts[place + 8 :]
    refused(
        party.join,
        replace(run.server.roster, counts=told),
        text="the roster tells of another number of rows of this party",
        remedy="start the run again",
        party="partition 0",
    )
    assert not joined(party)


def test_a_roster_without_the_party_is_refused() -> None:
    run = Run(4, cohorts=[[0, 1, 2]])
    roster = change_roster(run.server.roster, CHANGES["a party less"])
    refused(run.party(3).join, roster, text="the roster holds another key", party="partition 3")


def test_a_party_in_no_cohort_joins_and_contributes_to_nothing() -> None:
    run = Run(4, cohorts=[[0, 1, 2]])
    run.join()
    party = run.party(3)
    assert joined(party)
    assert party.state.roots == {}
    order = run.order(1).order
    text = "this party is not in the cohort of the sum"
    refused(party.contribute, order, np.array([1]), text=text, party="partition 3")
    assert run.server.sections(3, [run.order(1)]) == [run.server.roster]


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31)])
def test_keys_that_agree_with_everybody_are_refused(public: bytes) -> None:
    """Points of small order: by the server when they are announced, by clients in a roster."""
    run = Run(3)
    keys = dict(run.keys) | {2: (public, b"")}
    refused(
        SecureSum,
        "run",
        keys,
        text="its public key or signature is not valid",
        remedy="run the same release of fedkern-flwr on both sides",
        party="partition 2",
    )
    roster = replace(run.server.roster, keys=run.server.roster.keys[:64] + public)
    text = "its public key is not valid"
    refused(run.party(0).join, roster, text=text, party="partition 2")


def test_a_roster_that_is_refused_leaves_no_trace() -> None:
    run = Run(4, cohorts=[[0, 1, 2], [0, 1, 2, 3]])
    party = run.party(0)
    before = party.state.pack()
    roster = replace(run.server.roster, keys=run.server.roster.keys[:96] + bytes(32))
    with pytest.raises(SumError, match="partition 3: its public key is not valid"):
        party.join(roster)
    assert party.state.pack() == before


@pytest.mark.parametrize(
    ("public", "signature"),
    [(31, 0), (33, 0), (0, 0), (64, 0), (32, 1), (32, 63), (32, 65)],
)
def test_the_server_refuses_keys_of_the_wrong_size(public: int, signature: int) -> None:
    keys = {p: (generate_key()[1], b"") for p in range(3)}
    keys[1] = ((keys[1][0] * 2)[:public], bytes(signature))
    refused(
        SecureSum,
        "run",
        keys,
        text="its public key or signature is not valid",
        party="partition 1",
    )
    keys[1] = (keys[0][0], bytes(64))
    SecureSum("run", keys)  # negative control


def test_an_unknown_cipher_is_refused_by_the_server() -> None:
    refused(Run, 3, cipher="rot13", text="there is no cipher 'rot13'")


@pytest.mark.parametrize(("cohorts"), [[[0, 0, 1]], [[0, 1, 9]]])
def test_cohorts_with_strangers_or_twins_are_refused(cohorts: list[list[int]]) -> None:
    text = "cohort 0 has strangers or members twice"
    refused(Run, 3, cohorts=cohorts, text=text)


# -- bit sets


@given(members=st.sets(st.integers(0, 99), min_size=1, max_size=40), data=st.data())
def test_sets_of_parties_survive_packing(members: set[int], data: st.DataObject) -> None:
    cohort = Cohort(0, tuple(sorted(members)), 1, b"")
    chosen = data.draw(st.sets(st.sampled_from(sorted(members))))
    bits = cohort.pack(chosen)
    assert len(bits) == -(-len(members) // 8)
    assert cohort.unpack(bits) == chosen
    for place, member in enumerate(sorted(members)):
        assert bool(bits[place // 8] >> place % 8 & 1) == (member in chosen)


@given(count=st.integers(1, 40), bits=st.binary(max_size=7))
def test_a_set_has_one_form_only(count: int, bits: bytes) -> None:
    """Two requests that mean the same set are the same bytes, so that they can be compared."""
    cohort = Cohort(0, tuple(range(count)), 1, b"")
    try:
        members = cohort.unpack(bits)
    except SumError:
        fits = len(bits) == -(-count // 8)
        assert not fits or int.from_bytes(bits, "little") >> count
    else:
        assert cohort.pack(members) == bits


def test_the_roster_is_sent_until_a_party_has_answered() -> None:
    run = Run(3)
    running = run.order(1)
    for _ in range(2):
        assert run.server.sections(0, [running])[0] == run.server.roster
    run.upload(running, 0, [1])
    assert [m.phase for m in run.server.sections(0, [running])] == ["sum-order"]
    assert [m.phase for m in run.server.sections(1, [])] == ["sum-roster"]


def test_orders_tell_a_party_when_it_was_last_counted() -> None:
    run = Run(4, threshold=3)
    run.sum({p: [p] for p in range(4)})
    run.sum({p: [p] for p in range(3)})
    running = run.order(1)
    counted = {p: run.server.sections(p, [running])[-1].counted for p in range(4)}
    assert counted == {0: 2, 1: 2, 2: 2, 3: 1}


def test_sizes_of_the_roster() -> None:
    roster = Run(7).server.roster
    assert (len(roster.partitions), len(roster.keys), len(roster.signatures)) == (28, 224, 448)
    assert json.loads(roster.cohorts) == [[5, 1, list(range(7))]]


def test_a_resumed_run_goes_on_with_its_numbers_however_large() -> None:
    """The roster says where numbers begin, so fresh roots need not be turned there step by step."""
    run = Run(3)
    run.server.go_on({"next": [[0, 10**9]], "counted": [[1, 0, 10**9 - 1]]})
    running = run.order(2)
    assert running.order.index == 10**9
    for p in run.members:
        run.upload(running, p, [p, 1])
    run.unmask(running)
    assert run.result(running).tolist() == [3, 3]
    ahead = replace(running.order, index=2 * 10**9)
    text, party = "is too far ahead", run.party(0)
    refused(party.contribute, ahead, np.zeros(2, np.int64), text=text, party="partition 0")
