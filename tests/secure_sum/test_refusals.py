"""What a party and a server refuse: everything that would leak, or change a sum in silence."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sums_in_memory import Run, carry, refused

from fedkern_flwr.errors import (
    CohortError,
    OptionError,
    ProtocolError,
    SmallCohortError,
    SumError,
)
from fedkern_flwr.secure_sum import Encoding, PartyState, party_rules
from fedkern_flwr.wire.sums import Delivery, Recover, RecoverReply, Unmask, UnmaskReply, Upload

SECRET = 987654
NAMED = {"party": "partition 0"}
#: Kind of forgery -> what is said of it, and what is changed.
Table = dict[str, tuple[str, Callable[..., dict[str, Any]]]]


def begin(parties: int = 6, *, dead: Iterable[int] = (), **options: Any) -> tuple[Any, Any]:
    """A run and a sum that has its uploads, with backups where they can help."""
    order = {name: options.pop(name) for name in ("receiver", "self_masks") if name in options}
    run = Run(parties, **options)
    spare = parties - 1 > run.server.membership.cohorts[0].share_threshold
    backups = order.get("self_masks", True) and spare
    return run, run.filled(3, dead=dead, plus=SECRET, backups=backups, **order)


def joined(parties: int = 3) -> Any:
    run = Run(parties)
    run.join()
    return run


# -- 6. unmask

GAPS = "survivors and dropped parties overlap or leave gaps"
LEFT_OUT = "the survivors leave out this party or the receiver"
CHANGED = "what partition {} sent through the server was changed or misplaced"
UNMASK: Table = {
    "a party alive and dead": (GAPS, lambda c, m: {"dead": c.pack([3, 5])}),
    "a gap": (GAPS, lambda c, m: {"dead": c.pack([])}),
    "all alive and one dead": (GAPS, lambda c, m: {"alive": c.pack(range(6))}),
    "one exchanged": (GAPS, lambda c, m: {"alive": c.pack([0, 1, 2, 3, 5])}),
    "too few survivors": (
        "3 survivors are fewer than the threshold 4",
        lambda c, m: {"alive": c.pack([0, 1, 2]), "dead": c.pack([3, 4, 5])},
    ),
    "no survivors": (
        "0 survivors are fewer than the threshold 4",
        lambda c, m: {"alive": c.pack([]), "dead": c.pack(range(6))},
    ),
    "itself left out": (
        LEFT_OUT,
        lambda c, m: {"alive": c.pack([1, 2, 3, 4]), "dead": c.pack([0, 5])},
    ),
    "the receiver left out": (
        LEFT_OUT,
        lambda c, m: {"alive": c.pack([0, 1, 3, 4]), "dead": c.pack([2, 5])},
    ),
    "a share too few": (
        "3 relayed shares for 4 neighbours",
        lambda c, m: {"shares": m.shares[:-49]},
    ),
    "a share too many": (
        "5 relayed shares for 4 neighbours",
        lambda c, m: {"shares": m.shares + bytes(49)},
    ),
    "a share cut short": (CHANGED.format(4), lambda c, m: {"shares": m.shares[:-1]}),
    "shares exchanged": (
        CHANGED.format(1),
        lambda c, m: {"shares": m.shares[49:98] + m.shares[:49] + m.shares[98:]},
    ),
    "a bit flipped": (CHANGED.format(2), lambda c, m: {"shares": flip(m.shares, 60)}),
}


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("kind", UNMASK)
def test_unmask_refuses(kind: str) -> None:
    text, change = UNMASK[kind]
    run, running = begin(dead=[5], threshold=4, receiver=2)
    request, party = run.unmask_request(running, 0), run.party(0)
    before = party.state.pack()
    forged = replace(request, **change(running.cohort, request))
    error = refused(party.unmask, forged, text=text, **NAMED)
    assert party.state.pack() == before  # what was refused binds to nothing
    assert str(SECRET) not in repr(error)
    assert party.unmask(request).seeds  # the honest request is answered all the same


@pytest.mark.parametrize("bits", [b"", b"\x3f\x00", b"\x40", b"\xff"])
def test_bit_sets_of_another_cohort_are_refused(bits: bytes) -> None:
    run, running = begin()
    request = run.unmask_request(running, 0)
    for field in ("alive", "dead"):
        text = "a set of parties is not one of 6 members"
        refused(run.party(0).unmask, replace(request, **{field: bits}), text=text)


def test_a_second_set_of_survivors_is_refused() -> None:
    run, running = begin(threshold=4)
    party, first = run.party(0), run.unmask_request(running, 0)
    running.survivors = (0, 1, 2, 3, 4)
    second = running.unmask_request(0)
    answer = party.unmask(first)
    text = "a second set of survivors for the same sum"
    refused(party.unmask, second, text=text, **NAMED)
    run.keep(party)  # it is remembered across messages
    refused(run.party(0).unmask, second, text=text, **NAMED)
    assert run.party(0).unmask(first) == party.unmask(first) == answer
    fresh = run.party(1)  # negative control: whoever has answered nothing accepts it
    assert fresh.unmask(running.unmask_request(1)).seeds


def check_never_both(
    run: Any, running: Any, requests: Iterable[tuple[set[int], set[int]]], *, forget: bool = False
) -> int:
    """Party 0 reveals one kind of seed per other party, whatever is asked; return its answers."""
    party, answers = run.party(0), 0
    share_of: set[int] = set()
    seed_of: set[int] = set()
    for alive, dead in requests:
        running.survivors = tuple(sorted(alive))
        request = replace(running.unmask_request(0), dead=running.cohort.pack(dead))
        try:
            reply = party.unmask(request)
        except SumError:
            continue
        answers += 1
        share_of |= alive - {0}
        seed_of |= dead
        assert (len(reply.shares), len(reply.seeds)) == (33 * len(alive), 32 * len(dead))
        if forget:
            party.state.open[0, 1].alive = b""
    assert not share_of & seed_of
    return answers


EVERYBODY = set(range(6))


@settings(max_examples=40)
@given(data=st.data())
def test_never_both_seeds_of_a_party(data: st.DataObject) -> None:
    run, running = begin(threshold=4)
    requests = []
    for _ in range(data.draw(st.integers(1, 6))):
        alive = data.draw(st.sets(st.integers(0, 5), min_size=3))
        odd = data.draw(st.none() | st.sets(st.integers(0, 5)))
        requests.append((alive, EVERYBODY - alive if odd is None else odd))
    check_never_both(run, running, requests)


def test_a_party_that_forgets_the_survivors_is_noticed() -> None:
    """Negative control."""
    run, running = begin(threshold=4)
    requests = [(EVERYBODY, set()), (EVERYBODY - {5}, {5}), (EVERYBODY, set())]
    assert check_never_both(run, running, requests) == 2
    with pytest.raises(AssertionError):
        check_never_both(run, running, requests, forget=True)


@pytest.mark.parametrize("receiver", [0, None])
def test_sums_without_self_masks_are_never_unmasked(receiver: int | None) -> None:
    run, running = begin(receiver=receiver, self_masks=False)
    every, none = running.cohort.pack(range(6)), running.cohort.pack([])
    what = {"cohort": 0, "index": 1, "shares": b"", "voters": b"", "votes": b""}
    text = "a sum without self masks is never unmasked"
    refused(run.party(0).unmask, Unmask(alive=every, dead=none, **what), text=text, **NAMED)
    assert run.server.unmask_sections([running]) == {}


def test_only_open_sums_are_unmasked_and_only_by_those_who_contributed() -> None:
    run, running = begin(dead=[5], threshold=4)
    request = run.unmask_request(running, 0)
    text = "the sum is closed, or this party had no part in it"
    for other in ({"index": 2}, {"index": 0}, {"cohort": 1}):
        refused(run.party(0).unmask, replace(request, **other), text=text, **NAMED)
    run.join()
    refused(run.party(5).unmask, request, text=text, party="partition 5")
    run.unmask(running)
    run.result(running)
    run.contribute(run.order(1), 0, [1])  # closes the first
    refused(run.party(0).unmask, request, text=text, **NAMED)


# -- recover


def begin_recovery() -> tuple[Any, Any, Recover]:
    """Party 5 is dead, 4 silent; the request is that to party 0."""
    run, running = begin(dead=[5], threshold=4)
    assert running.backups
    run.unmask(running, [0, 1, 2, 3])
    (request,) = run.server.recover_sections([running])[0]
    return run, running, request


SECRETS_STAY = "seeds are asked for that stay secret in this sum"
SECOND_SET = "a second set of survivors for the same sum"
RECOVER: Table = {
    "the dead": (SECRETS_STAY, lambda c, m: {"silent": c.pack([4, 5])}),
    "only the dead": (SECRETS_STAY, lambda c, m: {"silent": c.pack([5])}),
    "itself": (SECRETS_STAY, lambda c, m: {"silent": c.pack([0, 4])}),
    "nobody": (SECRETS_STAY, lambda c, m: {"silent": c.pack([])}),
    "nobody's backups": (SECRETS_STAY, lambda c, m: {"silent": c.pack([]), "backups": b""}),
    "another set of survivors": (SECOND_SET, lambda c, m: {"alive": c.pack([0, 1, 2, 4])}),
    "a larger set of survivors": (SECOND_SET, lambda c, m: {"alive": c.pack(range(6))}),
    "a bit flipped": (CHANGED.format(4), lambda c, m: {"backups": flip(m.backups, 0)}),
    "backups cut short": (CHANGED.format(4), lambda c, m: {"backups": m.backups[:-1]}),
    "backups twice": (CHANGED.format(4), lambda c, m: {"backups": 2 * m.backups}),
    "no backups": ("relayed backups of the wrong size", lambda c, m: {"backups": b""}),
    "another party's backups": (CHANGED.format(3), lambda c, m: {"silent": c.pack([3])}),
    "another sum": (
        "the sum is closed, or this party had no part in it",
        lambda c, m: {"index": 2},
    ),
}


@pytest.mark.parametrize("kind", RECOVER)
def test_recover_refuses(kind: str) -> None:
    text, change = RECOVER[kind]
    run, running, request = begin_recovery()
    forged = replace(request, **change(running.cohort, request))
    refused(run.party(0).recover, forged, text=text, **NAMED)


def test_who_is_asked_to_recover() -> None:
    """Each party gets one request: the silent the first one again, the others for their shares."""
    run, running = begin(7, dead=[6], threshold=4)
    run.unmask(running, [0, 1, 2, 3])
    requests = run.server.recover_sections([running])
    asked = {p: [m.phase for m in messages] for p, messages in requests.items()}
    assert asked == {p: ["sum-recover"] for p in (0, 1, 2, 3)} | {p: ["sum-unmask"] for p in (4, 5)}
    run.recover(running, [0, 1, 2])
    requests = run.server.recover_sections([running])
    assert sorted(requests) == [3, 4, 5]  # not those who have told all they know


def test_the_honest_recovery_is_answered() -> None:
    """What is revealed is the silent party's pair with the dead one only."""
    run, running, request = begin_recovery()
    reply = run.party(0).recover(request)
    assert len(reply.shares) == 33
    assert run.party(0).recover(request) == reply
    run.recover(running, [0, 1, 2, 3])
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3


def recovery(running: Any, silent: int, alive: Iterable[int]) -> Recover:
    pack = running.cohort.pack
    backups = running.enclosed.backed_up([silent], 0)
    return Recover(cohort=0, index=1, alive=pack(alive), silent=pack([silent]), backups=backups)


def test_a_pair_of_two_survivors_is_never_recovered() -> None:
    """Everybody uploaded, one is silent: there is nothing to ask, and nothing is told."""
    run, running = begin(threshold=4)
    run.unmask(running, [0, 1, 2, 3, 4])
    assert running.complete
    assert run.party(0).recover(recovery(running, 5, range(6))).shares == b""


def test_recovery_comes_after_unmasking() -> None:
    run, running = begin(dead=[5], threshold=4)
    running.declare(2)
    request = recovery(running, 4, range(5))
    for alive in (request.alive, b""):
        early = replace(request, alive=alive)
        refused(run.party(0).recover, early, text=SECOND_SET, **NAMED)
    run.unmask(running, [0, 1, 2, 3])
    assert len(run.party(0).recover(request).shares) == 33


# -- orders


def test_a_number_is_never_used_twice() -> None:
    run, running = begin()
    values = np.zeros(3, np.int64)
    text = "number {} of a sum has been used already"
    refused(run.party(0).contribute, running.order, values, text=text.format(1), **NAMED)
    later, party = replace(running.order, index=5), run.party(0)
    party.contribute(later, values)
    for used in (5, 4, 3, 2, 1, 0, -1):
        earlier = replace(later, index=used)
        refused(party.contribute, earlier, values, text=text.format(used), **NAMED)
    run.keep(party)
    refused(run.party(0).contribute, later, values, text=text.format(5), **NAMED)
    assert run.party(1).contribute(later, values)  # negative control


def test_a_number_far_ahead_is_refused() -> None:
    """It would cost the party as many steps of its ratchet for each neighbour."""
    run, running = begin()
    order, values = running.order, np.zeros(3, np.int64)
    ahead = replace(order, index=2 + party_rules._LONGEST_LEAP)
    refused(run.party(0).contribute, ahead, values, text="is too far ahead", **NAMED)
    run.party(0).contribute(replace(order, index=100), values)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cohort": 3}, "this party is not in the cohort of the sum"),
        ({"receiver": 9}, "the receiver is not in the cohort"),
        ({"length": 4}, "gradient has shape (3,) instead of (4,)"),
    ],
)
def test_orders_that_break_a_rule_are_refused(change: dict[str, Any], text: str) -> None:
    run = joined()
    order, values, party = run.order(3).order, np.full(3, SECRET), run.party(0)
    before = party.state.pack()
    error = refused(party.contribute, replace(order, **change), values, text=text, **NAMED)
    assert str(SECRET) not in repr(error)
    assert party.state.pack() == before  # the number may be used by a sum that keeps the rules
    assert party.contribute(order, values)


def test_values_that_are_refused_use_up_the_number() -> None:
    """Whatever becomes of an order: no keys of a number that the state does not remember."""
    run = joined()
    order, party = run.order(3).order, run.party(0)
    error = refused(
        party.contribute,
        replace(order, bound=10.0),
        np.full(3, SECRET),
        text="gradient exceeds its declared bound of 10",
        remedy="scale the data, or declare a larger bound for all parties",
        **NAMED,
    )
    assert str(SECRET) not in repr(error)
    assert (party.state.last, party.state.open) == ({0: 1}, {})
    run.keep(party)
    text = "number 1 of a sum has been used already"
    refused(run.party(0).contribute, order, np.full(3, 1), text=text, **NAMED)
    assert run.party(0).contribute(replace(order, index=2, bound=10.0), np.full(3, 1))


def test_an_accepted_order_is_contributed_to_once() -> None:
    run = joined()
    party = run.party(0)
    orders = [run.order(3, name=name).order for name in ("a", "b")]
    for order in orders:
        party.accept(order)
        text = f"number {order.index} of a sum has been used already"
        refused(party.accept, order, text=text, **NAMED)
    run.keep(party)
    for order in reversed(orders):  # in any order once they are accepted
        assert party.contribute(order, np.full(3, 1)).index == order.index
        text = f"number {order.index} of a sum has been used already"
        refused(party.contribute, order, np.full(3, 1), text=text, **NAMED)
    # a party that lost its memory after it had accepted contributes no more
    refused(run.party(0).contribute, orders[1], np.full(3, 1), text="number 2 of a sum", **NAMED)


def test_accepted_orders_give_the_right_sum() -> None:
    run = joined()
    sums = [run.order(1, name=name) for name in ("a", "b")]
    for p in run.members:
        party = run.party(p)
        for running in sums:
            party.accept(running.order)
        for k, running in reversed(list(enumerate(sums))):
            run.take(p, party.contribute(running.order, np.array([p + 10 * k])))
        run.keep(party)
    for k, running in enumerate(sums):
        run.unmask(running)
        assert run.result(running).tolist() == [3 + 30 * k]


@pytest.mark.parametrize("change", [{"bits": 16}, {"bits": 8}, {"kind": "float"}, {"bound": -1.0}])
def test_orders_without_room_are_refused(change: dict[str, Any]) -> None:
    run = joined()
    with pytest.raises(OptionError):
        run.party(0).contribute(replace(run.order(3).order, **change), np.full(3, SECRET))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.full((3, 1), SECRET), "has shape (3, 1) instead of (3,)"),
        (SECRET, "has shape () instead of (3,)"),
        ([SECRET, float("nan"), 0.0], "gradient has dtype float64, declared as integer"),
        (["987654"] * 3, "declared as integer"),
        (None, "has shape () instead of (3,)"),
    ],
)
def test_values_that_do_not_fit_never_leave(values: Any, text: str) -> None:
    run = joined()
    error = refused(run.party(0).contribute, run.order(3).order, values, text=text, **NAMED)
    assert str(SECRET) not in repr(error)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_never_leave(bad: float) -> None:
    run = joined()
    order, values = run.order(2, Encoding.fixed_point(1e6)).order, np.array([bad, SECRET])
    text = "gradient holds NaN or infinite values"
    refused(run.party(0).contribute, order, values, text=text, remedy="clean", **NAMED)


# -- uploads

NUMBERS, SIZE = "its masked vector has not 3 numbers", "its sealed shares have the wrong size"
NO_OPEN_SUM = "its message belongs to no open sum"
UPLOADS: Table = {
    "another dtype": (
        "its masked vector has the wrong dtype",
        lambda m: {"masked": (m.masked[0].astype(np.uint32),)},
    ),
    "one number less": (NUMBERS, lambda m: {"masked": (m.masked[0][:-1],)}),
    "one number more": (NUMBERS, lambda m: {"masked": (*m.masked, m.masked[0][:1])}),
    "no numbers": (NUMBERS, lambda m: {"masked": ()}),
    "shares cut": (SIZE, lambda m: {"shares": m.shares[:-1]}),
    "no shares": (SIZE, lambda m: {"shares": b""}),
    "backups cut": (SIZE, lambda m: {"backups": m.backups[:-1]}),
    "too many commitments": (SIZE, lambda m: {"commitments": m.commitments + bytes(16)}),
    "a future sum": (NO_OPEN_SUM, lambda m: {"index": 7}),
    "another cohort": (NO_OPEN_SUM, lambda m: {"cohort": 1}),
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_wrong_uploads_are_refused_and_change_nothing(kind: str) -> None:
    text, change = UPLOADS[kind]
    run = Run(6, threshold=4)
    running = run.filled(3, dead=[0], backups=True)
    upload = run.contribute(running, 0, np.full(3, SECRET))
    refused(run.take, 0, replace(upload, **change(upload)), text=text, **NAMED)
    assert running.uploaded == (1, 2, 3, 4, 5)
    run.take(0, upload)  # the sum is as before: the right one still fits
    run.unmask(running)
    assert run.result(running).tolist() == [SECRET + 15] * 3


@pytest.mark.parametrize("dtype", ["float64", "int64", ">u8", "bool", "uint8"])
def test_uploads_of_foreign_types_break_the_message(dtype: str) -> None:
    run = Run(3)
    wrong = copy.copy(run.contribute(run.order(3), 0, np.full(3, 1)))
    vars(wrong)["masked"] = (wrong.masked[0].astype(dtype),)  # no code of ours makes such a one
    error = refused(
        run.take,
        0,
        wrong,
        text="masked has dtype",
        kind=ProtocolError,
        remedy="run the same release of fedkern-flwr on both sides",
        **NAMED,
    )
    assert error.phase == "sum-upload"


def test_strangers_and_duplicates_are_refused() -> None:
    run = Run(5, cohorts=[range(5), range(3)])
    running = run.filled(cohort=1)
    copied = run.transcript(running).uploads[2]
    for p in (4, 99):
        text = "it is not in the cohort of the sum"
        refused(run.take, p, copied, text=text, party=f"partition {p}")
    refused(run.take, 2, copied, text="a second vector for the same sum", party="partition 2")
    run.unmask(running)
    assert run.result(running).tolist() == [3]
    with pytest.raises(SumError, match="this party is not in the cohort of the sum"):
        run.party(4).contribute(running.order, np.array([1]))


def test_uploads_of_an_earlier_sum_are_refused() -> None:
    run, first = begin()
    copied = run.transcript(first).uploads[3]
    second = run.order(3)
    refused(run.take, 3, copied, text="a second vector for the same sum", party="partition 3")
    run.unmask(first)
    run.result(first)
    refused(run.take, 3, copied, text=NO_OPEN_SUM, party="partition 3")
    assert second.uploaded == ()


def test_an_earlier_upload_under_a_new_number_is_refused() -> None:
    run, first = begin(threshold=4)
    second = run.filled(3, dead=[0], backups=first.backups)
    run.contribute(second, 0, np.full(3, 1))
    copied = replace(run.transcript(first).uploads[0], index=2)
    refused(run.take, 0, copied, text="its masks do not fit those of 5 others", **NAMED)
    run.unmask(second)
    assert run.result(second).tolist() == [15] * 3


def test_unexpected_sections_are_refused() -> None:
    run, running = begin()
    delivery = Delivery(cohort=0, index=1, padded=())
    for message in (running.order, run.server.roster, delivery):
        refused(run.take, 0, message, text=f"unexpected section {message.phase!r}", **NAMED)
    (section,) = carry([delivery])
    long = replace(section, phase="x" * 1000)
    error = refused(run.server.take, 0, [long], text="unexpected section", **NAMED)
    assert len(str(error)) < 100


# -- replies to unmask and recover

WRONG_SIZE = "its shares and seeds have the wrong size"
REPLIES: Table = {
    "a share less": (WRONG_SIZE, lambda m: {"shares": m.shares[33:]}),
    "a share more": (WRONG_SIZE, lambda m: {"shares": m.shares + bytes(33)}),
    "no seeds": (WRONG_SIZE, lambda m: {"seeds": b""}),
    "half a seed": (WRONG_SIZE, lambda m: {"seeds": m.seeds[:16]}),
    "a forged seed": (
        "a seed differs from the one it committed to",
        lambda m: {"seeds": bytes(32)},
    ),
    "another sum": (NO_OPEN_SUM, lambda m: {"index": 2}),
}


def answers(run: Any, running: Any) -> dict[int, UnmaskReply]:
    requests = run.server.unmask_sections([running])
    return {p: run.party(p).unmask(request) for p, (request,) in requests.items()}


@pytest.mark.parametrize("kind", REPLIES)
def test_wrong_replies_are_refused_and_change_nothing(kind: str) -> None:
    text, change = REPLIES[kind]
    run, running = begin(dead=[5], threshold=4)
    replies = answers(run, running)
    refused(run.take, 0, replace(replies[0], **change(replies[0])), text=text, **NAMED)
    assert running.silent == (0, 1, 2, 3, 4)
    for p in (1, 2, 3, 4, 0):
        run.take(p, replies[p])
    again = "it was not asked to unmask, or has answered before"
    for p in (0, 5, 77):
        refused(run.take, p, replies[0 if not p else 1], text=again, party=f"partition {p}")
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3
    refused(run.take, 1, replies[1], text=NO_OPEN_SUM, party="partition 1")


def test_replies_before_the_survivors_are_declared_are_refused() -> None:
    run, _ = begin()
    reply = UnmaskReply(cohort=0, index=1, shares=bytes(6 * 33), seeds=b"")
    refused(run.take, 0, reply, text="it was not asked to unmask", **NAMED)


def test_unasked_recoveries_are_refused() -> None:
    run, running, request = begin_recovery()
    text = "it was not asked to recover anything"
    other = RecoverReply(cohort=0, index=2, shares=b"")  # of another sum
    refused(run.take, 0, other, text=text, **NAMED)
    assert not running.complete
    reply = run.party(0).recover(request)
    wrong = replace(reply, shares=reply.shares[1:])
    refused(run.take, 0, wrong, text="its shares have the wrong size", **NAMED)
    for p in (0, 4, 5, 77):  # the request of party 0 was used up by the wrong reply
        refused(run.take, p, reply, text=text, party=f"partition {p}")
    run.recover(running, [0, 1, 2, 3])
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3


# -- forged shares


def answer_with_forgery(run: Any, running: Any, forged: dict[int, int], among: int = 6) -> None:
    """Let some unmask; forgers change one of their 33-byte shares, at the given place."""
    for p, reply in list(answers(run, running).items())[:among]:
        if p in forged:
            reply = replace(reply, shares=flip(reply.shares, 33 * forged[p]))
        run.take(p, reply)


@pytest.mark.parametrize("forger", [None, 0, 3, 4, 5])
@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_forged_share_is_left_out_and_its_maker_named(forger: int | None, place: int) -> None:
    """Without a forger nobody is named."""
    run, running = begin(threshold=4)
    answer_with_forgery(run, running, {} if forger is None else {forger: place})
    assert run.result(running).tolist() == [6 * SECRET + 15] * 3
    # shares of the first t points are used; the others are looked at only when they are needed
    assert running.forgers == ([forger] if forger in (0, 3) else [])


@pytest.mark.parametrize("place", range(6))
def test_without_spare_shares_a_forgery_aborts(place: int) -> None:
    run, running = begin(threshold=4)
    answer_with_forgery(run, running, {1: place}, among=4)
    owner = [1, 0, 2, 3, 4, 5][place]  # its own share first, then its neighbours'
    before = running._vector.copy()
    for release in (running.total, running.delivery):
        text = "shares do not fit the seed that its owner committed to"
        refused(release, text=text, party=f"partition {owner}")
    np.testing.assert_array_equal(running._vector, before)


def test_two_forgers_abort() -> None:
    run, running = begin(threshold=4)
    answer_with_forgery(run, running, {1: 0, 2: 2})  # both of a share of party 1's seed
    refused(running.total, text="shares do not fit the seed", party="partition 1")


def with_false_commitment(run: Any, running: Any, liar: int, places: Iterable[int]) -> Upload:
    """A party's upload whose digests at some places are none of its seeds."""
    upload = run.contribute(running, liar, np.full(3, liar))
    digests = [upload.commitments[k : k + 16] for k in range(0, len(upload.commitments), 16)]
    wrong = [bytes(16) if k in set(places) else d for k, d in enumerate(digests)]
    return replace(upload, commitments=b"".join(wrong))


def test_a_false_commitment_to_a_self_seed_names_its_owner() -> None:
    run = Run(6, threshold=4)
    running = run.filled(3, dead=[2])
    run.take(2, with_false_commitment(run, running, 2, [0]))
    run.unmask(running)
    refused(running.total, text="shares do not fit the seed", party="partition 2")


@pytest.mark.parametrize("backups", [True, False])
@pytest.mark.parametrize("place", [1, 5])
def test_a_false_commitment_to_a_pair_seed_is_noticed(place: int, backups: bool) -> None:
    """Nobody can say which of the two lies, so the sum is aborted and both are suspects."""
    run = Run(6, threshold=4)
    running = run.filled(3, dead=[0], backups=backups)
    run.take(0, with_false_commitment(run, running, 0, [place]))
    text = "do not fit those of 1 other, or those do not fit its"
    refused(run.unmask, running, text=text, **NAMED)
    assert running.suspects == [0, place]
    assert not running.survivors


@pytest.mark.parametrize("liars", [1, 2])
def test_liars_do_not_have_the_others_refused(liars: int) -> None:
    """They are first, so at first every honest party is at odds with all that are there.

    Two of them agree on the seed of their own pair.
    """
    parties = {1: 6, 2: 9}[liars]
    run = Run(parties)
    running = run.order(3)
    for p in range(liars):
        run.take(p, with_false_commitment(run, running, p, range(liars, parties)))
    for p in range(liars, parties):
        run.upload(running, p, np.full(3, p))
    text = f"do not fit those of {parties - liars} others"
    refused(run.unmask, running, text=text, **NAMED)
    assert running.suspects == [*range(liars)]


@pytest.mark.parametrize("spare", [0, 1])
def test_forged_shares_of_pair_seeds(spare: int) -> None:
    run, running = begin(8, dead=[7], threshold=5)
    run.unmask(running, range(5 + spare))  # 6 is silent, and 5 if nobody is spare
    requests = run.server.recover_sections([running])
    for p in range(5 + spare):
        reply = run.party(p).recover(requests[p][0])
        run.take(p, reply if p else replace(reply, shares=flip(reply.shares, 0)))
    if spare:
        assert run.result(running).tolist() == [7 * SECRET + 21] * 3
        assert running.forgers == [0]
    else:
        refused(running.total, text="shares do not fit the seed", party="partition 5")


@pytest.mark.parametrize("backups", [True, False])
def test_a_forged_pair_seed_never_changes_a_sum_in_silence(backups: bool) -> None:
    run, running = begin(5, dead=[4], threshold=3 if backups else 4)
    assert running.backups == backups
    replies = answers(run, running)
    for forged in (bytes(32), replies[1].seeds):
        text = "a seed differs from the one it committed to"
        refused(run.take, 0, replace(replies[0], seeds=forged), text=text, **NAMED)
    for p, reply in replies.items():
        run.take(p, reply)
    assert run.result(running).tolist() == [4 * SECRET + 6] * 3


# -- receivers


def test_deliveries_are_checked() -> None:
    run, running = begin(receiver=2)
    run.unmask(running)
    delivery = running.delivery()
    text = "a sum was delivered that belongs to somebody else"
    refused(run.party(1).receive, delivery, text=text, party="partition 1")
    text = "the total of gradient has the wrong size or dtype"
    (part,) = delivery.padded
    for padded in ((), (part[:2],), (part, part), (part.astype(np.uint32),)):
        wrong = replace(delivery, padded=padded)
        refused(run.party(2).receive, wrong, text=text, party="partition 2")
    text = "the sum is closed, or this party had no part in it"
    refused(run.party(2).receive, replace(delivery, index=9), text=text, party="partition 2")
    refused(running.total, text="gradient belongs to partition 2")
    _, total = run.party(2).receive(delivery)
    assert total.tolist() == [6 * SECRET + 15] * 3


def test_a_sum_for_the_server_is_delivered_to_nobody() -> None:
    run, running = begin()
    run.unmask(running)
    text = "a sum was delivered that belongs to somebody else"
    refused(run.party(0).receive, running.delivery(), text=text, **NAMED)


ALLOW = "let more parties take part, or allow it with allow_single"
NO_THIRD = "the receiver of this sum would learn this party's values: there is no third"


def test_two_parties_and_a_receiver_need_permission() -> None:
    text = "partition 0 would learn the values of the only other party in gradient"
    refused(Run(2).order, 1, receiver=0, text=text, remedy=ALLOW, kind=OptionError)
    run = Run(2, allow_single=True)
    running = run.order(1, receiver=0)
    run.upload(running, 0, [1])  # the receiver itself has nothing to lose
    one = {"text": NO_THIRD, "remedy": ALLOW, "party": "partition 1"}
    refused(run.contribute, running, 1, [SECRET], **one)
    run = Run(2, allow_single=True, clients={"allow_single": True})
    assert run.sum({0: [1], 1: [SECRET]}, receiver=0).tolist() == [SECRET + 1]


def test_a_receiver_is_not_left_with_a_single_other_party() -> None:
    """Three parties with threshold 2 may become two."""
    run = Run(3, threshold=2)
    running = run.filled(2, dead=[2], plus=SECRET, receiver=0)
    refused(
        run.server.unmask_sections,
        [running],
        text="partition 0 would learn the values of the only other survivor of gradient",
        remedy="bring the missing parties back",
    )
    assert running.survivors == ()
    running.survivors = (0, 1)  # the client refuses as well
    one = {"text": NO_THIRD, "remedy": ALLOW, "party": "partition 1"}
    refused(run.party(1).unmask, running.unmask_request(1), **one)
    running.survivors = ()
    run.upload(running, 2, [1, 1])
    run.unmask(running)
    assert run.result(running).tolist() == [2 * SECRET + 2] * 2


# -- the server's own options


def test_one_party_is_too_few() -> None:
    for parties, cohorts in ((1, None), (3, [[0]])):
        error = refused(
            Run,
            parties,
            cohorts=cohorts,
            text="1 party is too few for a secure sum, 2 are needed",
            remedy="let more parties take part, or run without secure sums",
            kind=SmallCohortError,
        )
        assert isinstance(error, CohortError)
        assert error.exit_code == 2
    too_few = {"text": "too few for a secure sum", "kind": SmallCohortError}
    refused(Run, 0, **too_few)
    refused(Run, 4, min_cohort=5, **too_few)
    refused(Run, 5, cohorts=[range(5), [0, 1]], min_cohort=3, **too_few)
    refused(Run, 3, cohorts=[], text="there is no cohort to sum over", kind=OptionError)
    Run(5, cohorts=[range(5), [0, 1, 2]], min_cohort=3)  # negative control
    for least in (1, 0, -1):
        remedy = "a sum of one party hides nothing: use 2"
        text = f"min_cohort is {least}"
        refused(Run, 3, min_cohort=least, text=text, remedy=remedy, kind=OptionError)


def test_two_parties_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    run = Run(2)
    text = (
        "a sum has two parties: with one of them, whoever opens it has the other's part; let a "
        "third take part, or take it into account: each has what the sum tells of the other"
    )
    assert text in caplog.text.replace("\n", " ")
    assert run.sum({0: [1], 1: [2]}).tolist() == [3]
    caplog.clear()
    Run(3)
    assert caplog.text == ""
    Run(4, cohorts=[range(4), [2, 3]])
    assert "a sum has two parties" in caplog.text


@pytest.mark.parametrize("parties", [2, 3, 4, 31])
def test_thresholds_at_or_below_half_are_refused(parties: int) -> None:
    least = parties // 2 + 1
    for threshold in (parties // 2, 1, 0, -1, parties + 1):
        text, remedy = (
            f"threshold is {threshold} for {parties} parties",
            f"use {least} to {parties}",
        )
        refused(Run, parties, threshold=threshold, text=text, remedy=remedy, kind=OptionError)
    for threshold in (least, parties):
        assert Run(parties, threshold=threshold).server.membership.cohorts[0].threshold


def test_orders_of_the_server_are_checked() -> None:
    run = Run(4)
    refused(run.order, 1, receiver=4, text="partition 4 is not in the cohort", kind=OptionError)
    text = "4 integers up to 9000 overflow a 16-bit ring"
    refused(run.order, 1, Encoding.integers(9000, 16), text=text, kind=OptionError)
    refused(run.order, 0, text="gradient has length 0 and cohort 0", kind=OptionError)
    refused(run.order, 1, cohort=1, text="gradient has length 1 and cohort 1", kind=OptionError)
    assert run.order(1).order.index == 1  # none of these has used up a number


def test_a_closed_sum_is_not_released_again() -> None:
    run, running = begin()
    run.unmask(running)
    assert running.total().tolist() == running.total().tolist()  # as often as you like before
    run.result(running)
    for release in (running.total, running.delivery, running.open):
        refused(release, text="gradient is closed")


def test_sessions_do_not_mix() -> None:
    """A party of another session, with the same keys, masks with other streams."""
    run = Run(3)
    running = run.filled(2, dead=[2])
    state = PartyState.unpack(run.states[2])
    state.session = "another"
    run.states[2] = state.pack()
    upload = run.contribute(running, 2, [1, 2])
    text = "its masks do not fit those of 2 others"
    refused(run.take, 2, upload, text=text, party="partition 2")


def test_a_total_beyond_the_bound_is_never_given_out() -> None:
    """Garbage of one party; asking again does not unmask the vector a second time."""
    run = Run(3)
    running = run.filled(3, dead=[1])
    noise = (np.array([1 << 60, 0, 7], np.uint64),)
    run.take(1, replace(run.contribute(running, 1, np.full(3, 1)), masked=noise))
    run.unmask(running)
    refused(running.total, text="larger than 3 vectors within the bound can be")
    refused(running.total, text="gradient is closed")


def test_a_total_that_more_parties_could_have_is_none_of_the_survivors() -> None:
    run = Run(5, threshold=3)
    running = run.order(1, Encoding.integers(100))
    for p in range(3):
        upload = run.contribute(running, p, [100])
        noise = (upload.masked[0] + np.uint64(1),) if p == 1 else upload.masked
        run.take(p, replace(upload, masked=noise))
    run.unmask(running)
    refused(running.total, text="larger than 3 vectors within the bound can be")
