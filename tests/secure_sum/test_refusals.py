"""What a party and a server refuse: everything that would leak, or change a sum in silence."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def begin(
    make_run: Any, parties: int = 6, dead: tuple[int, ...] = (), length: int = 3, **options: Any
) -> tuple[Any, Any]:
    """A run and a sum that has its uploads, with backups where they can help."""
    order = {name: options.pop(name) for name in ("receiver", "self_masks") if name in options}
    run = make_run(parties, **options)
    spare = parties - 1 > run.server.membership.cohorts[0].share_threshold
    running = run.order(length, backups=order.get("self_masks", True) and spare, **order)
    for p in run.members:
        if p not in dead:
            run.upload(running, p, np.full(length, SECRET + p))
    return run, running


def replaced(message: Any, **change: Any) -> Any:
    return dataclasses.replace(message, **change)


# -- 6. unmask

UNMASK: dict[str, tuple[Callable[[Any, Unmask], Unmask], str]] = {
    "a party alive and dead": (
        lambda c, m: replaced(m, dead=c.pack([3, 5])),
        "survivors and dropped parties overlap or leave gaps",
    ),
    "a gap": (
        lambda c, m: replaced(m, dead=c.pack([])),
        "survivors and dropped parties overlap or leave gaps",
    ),
    "all alive and one dead": (
        lambda c, m: replaced(m, alive=c.pack(range(6))),
        "survivors and dropped parties overlap or leave gaps",
    ),
    "one exchanged": (
        lambda c, m: replaced(m, alive=c.pack([0, 1, 2, 3, 5])),
        "survivors and dropped parties overlap or leave gaps",
    ),
    "too few survivors": (
        lambda c, m: replaced(m, alive=c.pack([0, 1, 2]), dead=c.pack([3, 4, 5])),
        "3 survivors are fewer than the threshold 4",
    ),
    "no survivors": (
        lambda c, m: replaced(m, alive=c.pack([]), dead=c.pack(range(6))),
        "0 survivors are fewer than the threshold 4",
    ),
    "itself left out": (
        lambda c, m: replaced(m, alive=c.pack([1, 2, 3, 4]), dead=c.pack([0, 5])),
        "the survivors leave out this party or the receiver",
    ),
    "the receiver left out": (
        lambda c, m: replaced(m, alive=c.pack([0, 1, 3, 4]), dead=c.pack([2, 5])),
        "the survivors leave out this party or the receiver",
    ),
    "a share too few": (
        lambda c, m: replaced(m, shares=m.shares[:-49]),
        "3 relayed shares for 4 neighbours",
    ),
    "a share too many": (
        lambda c, m: replaced(m, shares=m.shares + bytes(49)),
        "5 relayed shares for 4 neighbours",
    ),
    "a share cut short": (
        lambda c, m: replaced(m, shares=m.shares[:-1]),
        "what partition 4 sent through the server was changed or misplaced",
    ),
    "shares exchanged": (
        lambda c, m: replaced(m, shares=m.shares[49:98] + m.shares[:49] + m.shares[98:]),
        "what partition 1 sent through the server was changed or misplaced",
    ),
    "a bit flipped": (
        lambda c, m: replaced(m, shares=m.shares[:60] + bytes([m.shares[60] ^ 4]) + m.shares[61:]),
        "what partition 2 sent through the server was changed or misplaced",
    ),
}


def refuse_unmask(make_run: Any, refused: Any, kind: str) -> None:
    change, text = UNMASK.get(kind, (lambda _, m: m, ""))
    run, running = begin(make_run, dead=(5,), threshold=4, receiver=2)
    request = run.unmask_request(running, 0)
    party = run.party(0)
    before = party.state.pack()
    error = refused(party.unmask, change(running.cohort, request), text=text, party="partition 0")
    assert party.state.pack() == before  # what was refused binds to nothing
    assert str(SECRET) not in repr(error)
    assert party.unmask(request).seeds  # the honest request is answered all the same


@pytest.mark.parametrize("kind", UNMASK)
def test_unmask_refuses(make_run: Any, refused: Any, kind: str) -> None:
    refuse_unmask(make_run, refused, kind)


def test_the_honest_request_is_not_refused(make_run: Any, refused: Any) -> None:
    """Negative control of the checker above."""
    with pytest.raises(AssertionError, match="it was accepted"):
        refuse_unmask(make_run, refused, "honest")


@pytest.mark.parametrize("bits", [b"", b"\x3f\x00", b"\x40", b"\xff"])
def test_bit_sets_of_another_cohort_are_refused(make_run: Any, refused: Any, bits: bytes) -> None:
    run, running = begin(make_run)
    request = run.unmask_request(running, 0)
    text = "a set of parties is not one of 6 members"
    for field in ("alive", "dead"):
        refused(run.party(0).unmask, replaced(request, **{field: bits}), text=text)


def test_a_second_set_of_survivors_is_refused(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run, threshold=4)
    party = run.party(0)
    first = run.unmask_request(running, 0)
    running.survivors = (0, 1, 2, 3, 4)
    second = running.unmask_request(0)
    answer = party.unmask(first)
    text = "a second set of survivors for the same sum"
    refused(party.unmask, second, text=text, party="partition 0")
    run.keep(party)  # it is remembered across messages
    refused(run.party(0).unmask, second, text=text, party="partition 0")
    assert run.party(0).unmask(first) == answer
    assert party.unmask(first) == answer
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
        request = replaced(running.unmask_request(0), dead=running.cohort.pack(dead))
        try:
            reply = party.unmask(request)
        except SumError:
            continue
        answers += 1
        share_of |= alive - {0}
        seed_of |= dead
        assert len(reply.shares) == 33 * len(alive)
        assert len(reply.seeds) == 32 * len(dead)
        if forget:
            party.state.open[0, 1].alive = b""
    assert not share_of & seed_of
    return answers


EVERYBODY = set(range(6))


@settings(max_examples=40)
@given(data=st.data())
def test_never_both_seeds_of_a_party(make_run: Any, data: st.DataObject) -> None:
    run, running = begin(make_run, threshold=4)
    requests = []
    for _ in range(data.draw(st.integers(1, 6))):
        alive = data.draw(st.sets(st.integers(0, 5), min_size=3))
        odd = data.draw(st.none() | st.sets(st.integers(0, 5)))
        requests.append((alive, EVERYBODY - alive if odd is None else odd))
    check_never_both(run, running, requests)


def test_a_party_that_forgets_the_survivors_is_noticed(make_run: Any) -> None:
    """Negative control."""
    run, running = begin(make_run, threshold=4)
    requests = [(EVERYBODY, set()), (EVERYBODY - {5}, {5}), (EVERYBODY, set())]
    assert check_never_both(run, running, requests) == 2
    with pytest.raises(AssertionError):
        check_never_both(run, running, requests, forget=True)


def test_sums_without_self_masks_are_never_unmasked(make_run: Any, refused: Any) -> None:
    for receiver in (0, None):
        run, running = begin(make_run, receiver=receiver, self_masks=False)
        every, none = running.cohort.pack(range(6)), running.cohort.pack([])
        what = {"cohort": 0, "index": 1, "shares": b"", "voters": b"", "votes": b""}
        request = Unmask(alive=every, dead=none, **what)
        text = "a sum without self masks is never unmasked"
        refused(run.party(1).unmask, request, text=text, party="partition 1")
        assert run.server.unmask_sections([running]) == {}


def test_only_open_sums_are_unmasked(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run)
    request = run.unmask_request(running, 0)
    text = "the sum is closed, or this party had no part in it"
    for other in ({"index": 2}, {"index": 0}, {"cohort": 1}):
        refused(run.party(0).unmask, replaced(request, **other), text=text, party="partition 0")
    run.unmask(running)
    run.result(running)
    run.contribute(run.order(1), 0, [1])  # closes the first
    refused(run.party(0).unmask, request, text=text, party="partition 0")


def test_a_party_that_did_not_contribute_reveals_nothing(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run, dead=(5,))
    run.join()
    running.declare(2)
    with pytest.raises(SumError, match="had no part in it"):
        run.party(5).unmask(run.unmask_request(running, 0))


# -- recover


def begin_recovery(make_run: Any) -> tuple[Any, Any, Recover]:
    """Party 5 is dead, 4 silent; the request is that to party 0."""
    run, running = begin(make_run, dead=(5,), threshold=4)
    assert running.backups
    run.unmask(running, [0, 1, 2, 3])
    (request,) = run.server.recover_sections([running])[0]
    return run, running, request


RECOVER: dict[str, tuple[Callable[[Any, Recover], Recover], str]] = {
    "the dead": (
        lambda c, m: replaced(m, silent=c.pack([4, 5])),
        "seeds are asked for that stay secret in this sum",
    ),
    "only the dead": (
        lambda c, m: replaced(m, silent=c.pack([5])),
        "seeds are asked for that stay secret in this sum",
    ),
    "itself": (
        lambda c, m: replaced(m, silent=c.pack([0, 4])),
        "seeds are asked for that stay secret in this sum",
    ),
    "another set of survivors": (
        lambda c, m: replaced(m, alive=c.pack([0, 1, 2, 4])),
        "a second set of survivors for the same sum",
    ),
    "a larger set of survivors": (
        lambda c, m: replaced(m, alive=c.pack(range(6))),
        "a second set of survivors for the same sum",
    ),
    "a bit flipped": (
        lambda c, m: replaced(m, backups=bytes([m.backups[0] ^ 1]) + m.backups[1:]),
        "what partition 4 sent through the server was changed or misplaced",
    ),
    "backups cut short": (
        lambda c, m: replaced(m, backups=m.backups[:-1]),
        "what partition 4 sent through the server was changed or misplaced",
    ),
    "another party's backups": (
        lambda c, m: replaced(m, silent=c.pack([3])),
        "what partition 3 sent through the server was changed or misplaced",
    ),
    "another sum": (
        lambda c, m: replaced(m, index=2),
        "the sum is closed, or this party had no part in it",
    ),
}


def refuse_recover(make_run: Any, refused: Any, kind: str) -> None:
    run, running, request = begin_recovery(make_run)
    change, text = RECOVER.get(kind, (lambda _, m: m, ""))
    party = run.party(0)
    refused(party.recover, change(running.cohort, request), text=text, party="partition 0")


@pytest.mark.parametrize("kind", RECOVER)
def test_recover_refuses(make_run: Any, refused: Any, kind: str) -> None:
    refuse_recover(make_run, refused, kind)


def test_who_is_asked_to_recover(make_run: Any) -> None:
    """Each party gets one request: the silent the first one again, the others for their shares."""
    run, running = begin(make_run, parties=7, dead=(6,), threshold=4)
    run.unmask(running, [0, 1, 2, 3])
    requests = run.server.recover_sections([running])
    asked = {p: [m.phase for m in messages] for p, messages in requests.items()}
    assert asked == {p: ["sum-recover"] for p in (0, 1, 2, 3)} | {p: ["sum-unmask"] for p in (4, 5)}
    run.recover(running, [0, 1, 2])
    requests = run.server.recover_sections([running])
    assert sorted(requests) == [3, 4, 5]  # not those who have told all they know


def test_the_honest_recovery_is_answered(make_run: Any, refused: Any) -> None:
    """Negative control; and what is revealed is the silent party's pair with the dead one only."""
    with pytest.raises(AssertionError, match="it was accepted"):
        refuse_recover(make_run, refused, "honest")
    run, running, request = begin_recovery(make_run)
    reply = run.party(0).recover(request)
    assert len(reply.shares) == 33
    assert run.party(0).recover(request) == reply
    run.recover(running, [0, 1, 2, 3])
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3


def test_a_pair_of_two_survivors_is_never_recovered(make_run: Any) -> None:
    """Everybody uploaded, one is silent: there is nothing to ask, and nothing is told."""
    run, running = begin(make_run, threshold=4)
    run.unmask(running, [0, 1, 2, 3, 4])
    assert running.complete
    request = Recover(
        cohort=0,
        index=1,
        alive=running.cohort.pack(range(6)),
        silent=running.cohort.pack([5]),
        backups=running.enclosed.backed_up([5], 0),
    )
    assert run.party(0).recover(request).shares == b""


def test_recovery_comes_after_unmasking(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run, dead=(5,), threshold=4)
    running.declare(2)
    request = Recover(
        cohort=0,
        index=1,
        alive=running.cohort.pack(range(5)),
        silent=running.cohort.pack([4]),
        backups=running.enclosed.backed_up([4], 0),
    )
    text = "a second set of survivors for the same sum"
    refused(run.party(0).recover, request, text=text, party="partition 0")
    refused(run.party(0).recover, replaced(request, alive=b""), text=text, party="partition 0")
    run.unmask(running, [0, 1, 2, 3])
    assert len(run.party(0).recover(request).shares) == 33


def test_recover_refuses_backups_of_the_wrong_number(make_run: Any, refused: Any) -> None:
    run, running, request = begin_recovery(make_run)
    for backups in (b"", request.backups * 2):
        with pytest.raises(SumError) as caught:
            run.party(0).recover(replaced(request, backups=backups))
        assert caught.value.party == "partition 0"
    nobody = replaced(request, silent=running.cohort.pack([]), backups=b"")
    text = "seeds are asked for that stay secret"
    refused(run.party(0).recover, nobody, text=text, party="partition 0")


def test_recover_refuses_backups_for_nobody(make_run: Any, refused: Any) -> None:
    run, running, request = begin_recovery(make_run)
    nobody = replaced(request, silent=running.cohort.pack([]))
    refused(run.party(0).recover, nobody, text="", party="partition 0")


# -- orders


def test_a_number_is_never_used_twice(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run)
    values = np.zeros(3, np.int64)
    text = "number 1 of a sum has been used already"
    refused(run.party(0).contribute, running.order, values, text=text, party="partition 0")
    later = replaced(running.order, index=5)
    party = run.party(0)
    party.contribute(later, values)
    for used in (5, 4, 3, 2, 1, 0, -1):
        text = f"number {used} of a sum has been used already"
        refused(party.contribute, replaced(later, index=used), values, text=text, **NAMED)
    run.keep(party)
    refused(run.party(0).contribute, later, values, text="number 5 of a sum has been", **NAMED)
    assert run.party(1).contribute(later, values)  # negative control


NAMED = {"party": "partition 0"}


def test_a_number_far_ahead_is_refused(make_run: Any, refused: Any) -> None:
    """It would cost the party as many steps of its ratchet for each neighbour."""
    run, running = begin(make_run)
    order = replaced(running.order, index=2 + party_rules._LONGEST_LEAP)
    refused(run.party(0).contribute, order, np.zeros(3, np.int64), text="number", **NAMED)
    run.party(0).contribute(replaced(running.order, index=100), np.zeros(3, np.int64))


ORDERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another cohort": ({"cohort": 3}, "this party is not in the cohort of the sum", ""),
    "a strange receiver": ({"receiver": 9}, "the receiver is not in the cohort", ""),
    "the wrong length": ({"length": 4}, "gradient has shape (3,) instead of (4,)", ""),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_orders_that_break_a_rule_are_refused(make_run: Any, refused: Any, kind: str) -> None:
    change, text, remedy = ORDERS[kind]
    run = make_run(3)
    run.join()
    order, values = run.order(3).order, np.full(3, SECRET)
    party = run.party(0)
    before = party.state.pack()
    error = refused(
        party.contribute, replaced(order, **change), values, text=text, remedy=remedy, **NAMED
    )
    assert str(SECRET) not in repr(error)
    assert party.state.pack() == before  # the number may be used by a sum that keeps the rules
    assert party.contribute(order, values)


def test_values_that_are_refused_use_up_the_number(make_run: Any, refused: Any) -> None:
    """Whatever becomes of an order: no keys of a number that the state does not remember."""
    run = make_run(3)
    run.join()
    order = run.order(3).order
    party = run.party(0)
    error = refused(
        party.contribute,
        replaced(order, bound=10.0),
        np.full(3, SECRET),
        text="gradient exceeds its declared bound of 10",
        remedy="scale the data, or declare a larger bound for all parties",
        **NAMED,
    )
    assert str(SECRET) not in repr(error)
    assert party.state.last == {0: 1}
    assert party.state.open == {}
    run.keep(party)
    text = "number 1 of a sum has been used already"
    refused(run.party(0).contribute, order, np.full(3, 1), text=text, **NAMED)
    assert run.party(0).contribute(replaced(order, index=2, bound=10.0), np.full(3, 1))


def test_an_accepted_order_is_contributed_to_once(make_run: Any, refused: Any) -> None:
    run = make_run(3)
    run.join()
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


def test_accepted_orders_give_the_right_sum(make_run: Any) -> None:
    run = make_run(3)
    run.join()
    sums = [run.order(1, name=name) for name in ("a", "b")]
    for p in run.members:
        party = run.party(p)
        for running in sums:
            party.accept(running.order)
        for k, running in reversed(list(enumerate(sums))):
            upload = party.contribute(running.order, np.array([p + 10 * k]))
            run.transcript(running).uploads[p] = upload
            run.take(p, upload)
        run.keep(party)
    for k, running in enumerate(sums):
        run.unmask(running)
        assert run.result(running).tolist() == [3 + 30 * k]


def test_orders_without_room_are_refused(make_run: Any) -> None:
    run = make_run(3)
    run.join()
    order = run.order(3).order
    for change in ({"bits": 16}, {"bits": 8}, {"kind": "float"}, {"bound": -1.0}):
        with pytest.raises(OptionError):
            run.party(0).contribute(replaced(order, **change), np.full(3, SECRET))


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
def test_values_that_do_not_fit_never_leave(
    make_run: Any, refused: Any, values: Any, text: str
) -> None:
    run = make_run(3)
    run.join()
    error = refused(run.party(0).contribute, run.order(3).order, values, text=text, **NAMED)
    assert str(SECRET) not in repr(error)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_never_leave(make_run: Any, refused: Any, bad: float) -> None:
    run = make_run(3)
    run.join()
    order = run.order(2, Encoding.fixed_point(1e6)).order
    text = "gradient holds NaN or infinite values"
    refused(
        run.party(0).contribute, order, np.array([bad, SECRET]), text=text, remedy="clean", **NAMED
    )


# -- uploads

UPLOADS: dict[str, tuple[Callable[[Upload], Upload], str]] = {
    "another dtype": (
        lambda m: replaced(m, masked=(m.masked[0].astype(np.uint32),)),
        "its masked vector has the wrong dtype",
    ),
    "one number less": (
        lambda m: replaced(m, masked=(m.masked[0][:-1],)),
        "its masked vector has not 3 numbers",
    ),
    "one number more": (
        lambda m: replaced(m, masked=(*m.masked, m.masked[0][:1])),
        "its masked vector has not 3 numbers",
    ),
    "no numbers": (lambda m: replaced(m, masked=()), "its masked vector has not 3 numbers"),
    "shares cut": (
        lambda m: replaced(m, shares=m.shares[:-1]),
        "its sealed shares have the wrong size",
    ),
    "no shares": (lambda m: replaced(m, shares=b""), "its sealed shares have the wrong size"),
    "backups cut": (
        lambda m: replaced(m, backups=m.backups[:-1]),
        "its sealed shares have the wrong size",
    ),
    "too many commitments": (
        lambda m: replaced(m, commitments=m.commitments + bytes(16)),
        "its sealed shares have the wrong size",
    ),
    "a future sum": (lambda m: replaced(m, index=7), "its message belongs to no open sum"),
    "another cohort": (lambda m: replaced(m, cohort=1), "its message belongs to no open sum"),
}


def refuse_upload(make_run: Any, refused: Any, kind: str) -> None:
    change, text = UPLOADS.get(kind, (lambda m: m, ""))
    run = make_run(6, threshold=4)
    running = run.order(3, backups=True)
    for p in (1, 2, 3, 4, 5):
        run.upload(running, p, np.full(3, p))
    upload = run.contribute(running, 0, np.full(3, SECRET))
    refused(run.take, 0, change(upload), text=text, party="partition 0")
    assert running.uploaded == (1, 2, 3, 4, 5)
    run.take(0, upload)  # the sum is as before: the right one still fits
    run.unmask(running)
    assert run.result(running).tolist() == [SECRET + 15] * 3


@pytest.mark.parametrize("kind", UPLOADS)
def test_wrong_uploads_are_refused_and_change_nothing(
    make_run: Any, refused: Any, kind: str
) -> None:
    refuse_upload(make_run, refused, kind)


def test_a_right_upload_is_not_refused(make_run: Any, refused: Any) -> None:
    """Negative control."""
    with pytest.raises(AssertionError, match="it was accepted"):
        refuse_upload(make_run, refused, "right")


@pytest.mark.parametrize("dtype", ["float64", "int64", ">u8", "bool", "uint8"])
def test_uploads_of_foreign_types_break_the_message(
    make_run: Any, refused: Any, dtype: str
) -> None:
    run = make_run(3)
    running = run.order(3)
    upload = run.contribute(running, 0, np.full(3, 1))
    wrong = copy.copy(upload)
    vars(wrong)["masked"] = (upload.masked[0].astype(dtype),)  # no code of ours makes such a one
    error = refused(
        run.take,
        0,
        wrong,
        text="masked has dtype",
        party="partition 0",
        kind=ProtocolError,
        remedy="run the same release of fedkern-flwr on both sides",
    )
    assert error.phase == "sum-upload"


def test_strangers_and_duplicates_are_refused(make_run: Any, refused: Any) -> None:
    run = make_run(5, cohorts=[range(5), range(3)])
    running = run.order(1, cohort=1)
    for p in range(3):
        run.upload(running, p, [p])
    copy = run.transcript(running).uploads[2]
    refused(run.take, 4, copy, text="it is not in the cohort of the sum", party="partition 4")
    refused(run.take, 99, copy, text="it is not in the cohort of the sum", party="partition 99")
    refused(run.take, 2, copy, text="a second vector for the same sum", party="partition 2")
    run.unmask(running)
    assert run.result(running).tolist() == [3]
    with pytest.raises(SumError, match="this party is not in the cohort of the sum"):
        run.party(4).contribute(running.order, np.array([1]))


def test_uploads_of_an_earlier_sum_are_refused(make_run: Any, refused: Any) -> None:
    run, first = begin(make_run)
    copy = run.transcript(first).uploads[3]
    second = run.order(3)
    refused(run.take, 3, copy, text="a second vector for the same sum", party="partition 3")
    run.unmask(first)
    run.result(first)
    text = "its message belongs to no open sum"
    refused(run.take, 3, copy, text=text, party="partition 3")
    assert second.uploaded == ()


def test_an_earlier_upload_under_a_new_number_is_refused(make_run: Any, refused: Any) -> None:
    run, first = begin(make_run, threshold=4)
    second = run.order(3, backups=first.backups)
    for p in run.members[1:]:
        run.upload(second, p, np.full(3, p))
    run.contribute(second, 0, np.full(3, 1))
    copy = replaced(run.transcript(first).uploads[0], index=2)
    text = "its masks do not fit those of 5 others"
    refused(run.take, 0, copy, text=text, party="partition 0")
    run.unmask(second)
    assert run.result(second).tolist() == [15] * 3


def test_unexpected_sections_are_refused(make_run: Any, refused: Any, sections: Any) -> None:
    run, running = begin(make_run)
    delivery = Delivery(cohort=0, index=1, padded=())
    for message in (running.order, run.server.roster, delivery):
        text = f"unexpected section {message.phase!r}"
        refused(run.take, 0, message, text=text, party="partition 0")
    (section,) = sections([delivery])
    long = dataclasses.replace(section, phase="x" * 1000)
    error = refused(run.server.take, 0, [long], text="unexpected section", party="partition 0")
    assert len(str(error)) < 100


# -- replies to unmask and recover

REPLIES: dict[str, tuple[Callable[[UnmaskReply], UnmaskReply], str]] = {
    "a share less": (
        lambda m: replaced(m, shares=m.shares[33:]),
        "its shares and seeds have the wrong size",
    ),
    "a share more": (
        lambda m: replaced(m, shares=m.shares + bytes(33)),
        "its shares and seeds have the wrong size",
    ),
    "no seeds": (lambda m: replaced(m, seeds=b""), "its shares and seeds have the wrong size"),
    "half a seed": (
        lambda m: replaced(m, seeds=m.seeds[:16]),
        "its shares and seeds have the wrong size",
    ),
    "a forged seed": (
        lambda m: replaced(m, seeds=bytes(32)),
        "a seed differs from the one it committed to",
    ),
    "another sum": (lambda m: replaced(m, index=2), "its message belongs to no open sum"),
}


@pytest.mark.parametrize("kind", REPLIES)
def test_wrong_replies_are_refused_and_change_nothing(
    make_run: Any, refused: Any, kind: str
) -> None:
    change, text = REPLIES[kind]
    run, running = begin(make_run, dead=(5,), threshold=4)
    requests = run.server.unmask_sections([running])
    replies = {p: run.party(p).unmask(requests[p][0]) for p in requests}
    refused(run.take, 0, change(replies[0]), text=text, party="partition 0")
    assert running.silent == (0, 1, 2, 3, 4)
    for p in (1, 2, 3, 4, 0):
        run.take(p, replies[p])
    again = "it was not asked to unmask, or has answered before"
    refused(run.take, 0, replies[0], text=again, party="partition 0")
    refused(run.take, 5, replies[1], text=again, party="partition 5")
    refused(run.take, 77, replies[1], text=again, party="partition 77")
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3
    refused(run.take, 1, replies[1], text="its message belongs to no open sum", party="partition 1")


def test_replies_before_the_survivors_are_declared_are_refused(make_run: Any, refused: Any) -> None:
    run, _ = begin(make_run)
    reply = UnmaskReply(cohort=0, index=1, shares=bytes(6 * 33), seeds=b"")
    refused(run.take, 0, reply, text="it was not asked to unmask", party="partition 0")


def test_unasked_recoveries_are_refused(make_run: Any, refused: Any) -> None:
    run, running, request = begin_recovery(make_run)
    reply = run.party(0).recover(request)
    wrong = replaced(reply, shares=reply.shares[1:])
    text = "its shares have the wrong size"
    refused(run.take, 0, wrong, text=text, party="partition 0")
    text = "it was not asked to recover anything"
    for p in (0, 4, 5, 77):  # the request of party 0 was used up by the wrong reply
        refused(run.take, p, reply, text=text, party=f"partition {p}")
    run.recover(running, [0, 1, 2, 3])
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3


# -- forged shares


def forge(shares: bytes, place: int) -> bytes:
    """Change one of the 33-byte shares."""
    at = 33 * place
    return shares[:at] + bytes([shares[at] ^ 1]) + shares[at + 1 :]


def answer_with_forgery(run: Any, running: Any, answers: int, forger: int, place: int) -> None:
    requests = run.server.unmask_sections([running])
    for p in list(requests)[:answers]:
        reply = run.party(p).unmask(requests[p][0])
        if p == forger:
            reply = replaced(reply, shares=forge(reply.shares, place))
        run.take(p, reply)


@pytest.mark.parametrize("forger", range(6))
@pytest.mark.parametrize("place", [0, 1, 5])
def test_a_forged_share_is_left_out_and_its_maker_named(
    make_run: Any, forger: int, place: int
) -> None:
    run, running = begin(make_run, threshold=4)
    answer_with_forgery(run, running, 6, forger, place)
    total = run.result(running)
    assert total.tolist() == [6 * SECRET + 15] * 3
    # shares of the first t points are used; the others are looked at only when they are needed
    assert running.forgers == ([forger] if forger < 4 else [])


def test_honest_shares_name_nobody(make_run: Any) -> None:
    """Negative control."""
    run, running = begin(make_run, threshold=4)
    run.unmask(running)
    run.result(running)
    assert running.forgers == []


@pytest.mark.parametrize("place", range(6))
def test_without_spare_shares_a_forgery_aborts(make_run: Any, refused: Any, place: int) -> None:
    run, running = begin(make_run, threshold=4)
    answer_with_forgery(run, running, 4, forger=1, place=place)
    owner = [1, 0, 2, 3, 4, 5][place]  # its own share first, then its neighbours'
    before = running._vector.copy()
    for release in (running.total, running.delivery):
        refused(
            release,
            text="shares do not fit the seed that its owner committed to",
            party=f"partition {owner}",
        )
    np.testing.assert_array_equal(running._vector, before)


def test_two_forgers_abort(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run, threshold=4)
    requests = run.server.unmask_sections([running])
    for p in requests:
        reply = run.party(p).unmask(requests[p][0])
        if p in (1, 2):
            place = 0 if p == 1 else 2  # both forge their share of party 1's seed
            reply = replaced(reply, shares=forge(reply.shares, place))
        run.take(p, reply)
    refused(running.total, text="shares do not fit the seed", party="partition 1")


def with_false_commitment(run: Any, running: Any, liar: int, place: int) -> Upload:
    upload = run.contribute(running, liar, np.full(3, liar))
    wrong = upload.commitments[: 16 * place] + bytes(16) + upload.commitments[16 * place + 16 :]
    return replaced(upload, commitments=wrong)


def test_a_false_commitment_to_a_self_seed_names_its_owner(make_run: Any, refused: Any) -> None:
    run = make_run(6, threshold=4)
    running = run.order(3)
    for p in run.members:
        if p == 2:
            run.take(2, with_false_commitment(run, running, 2, 0))
        else:
            run.upload(running, p, np.full(3, p))
    run.unmask(running)
    refused(running.total, text="shares do not fit the seed", party="partition 2")


@pytest.mark.parametrize("backups", [True, False])
@pytest.mark.parametrize("place", [1, 5])
def test_a_false_commitment_to_a_pair_seed_is_noticed(
    make_run: Any, refused: Any, place: int, backups: bool
) -> None:
    """Nobody can say which of the two lies, so the sum is aborted and both are suspects."""
    run = make_run(6, threshold=4)
    running = run.order(3, backups=backups)
    wrong = with_false_commitment(run, running, 0, place)
    for p in run.members[1:]:
        run.upload(running, p, np.full(3, p))
    run.take(0, wrong)
    text = "do not fit those of 1 other, or those do not fit its"
    refused(run.unmask, running, text=text, party="partition 0")
    assert running.suspects == [0, place]
    assert not running.survivors


def test_one_liar_does_not_have_the_others_refused(make_run: Any, refused: Any) -> None:
    """It is first, so at first every honest party is at odds with the only one that is there."""
    run = make_run(6, threshold=4)
    running = run.order(3)
    upload = run.contribute(running, 0, np.full(3, 0))
    run.take(0, replaced(upload, commitments=upload.commitments[:16] + bytes(5 * 16)))
    for p in run.members[1:]:
        run.upload(running, p, np.full(3, p))
    text = "do not fit those of 5 others"
    refused(run.unmask, running, text=text, party="partition 0")
    assert running.suspects == [0]


def test_two_liars_do_not_have_the_others_refused(make_run: Any, refused: Any) -> None:
    run = make_run(9)
    running = run.order(3)
    for p in (0, 1):
        upload = run.contribute(running, p, np.full(3, p))
        among = upload.commitments[:32]  # to its own seed and to that of the two
        run.take(p, replaced(upload, commitments=among + bytes(7 * 16)))
    for p in run.members[2:]:
        run.upload(running, p, np.full(3, p))
    refused(run.unmask, running, text="do not fit those of 7 others", party="partition 0")
    assert running.suspects == [0, 1]


@pytest.mark.parametrize("spare", [0, 1])
def test_forged_shares_of_pair_seeds(make_run: Any, refused: Any, spare: int) -> None:
    run, running = begin(make_run, parties=8, dead=(7,), threshold=5)
    run.unmask(running, range(5 + spare))  # 6 is silent, and 5 if nobody is spare
    requests = run.server.recover_sections([running])
    for p in range(5 + spare):
        request = requests[p][0]
        reply = run.party(p).recover(request)
        if p == 0:
            reply = replaced(reply, shares=forge(reply.shares, 0))
        run.take(p, reply)
    if spare:
        assert run.result(running).tolist() == [7 * SECRET + 21] * 3
        assert running.forgers == [0]
    else:
        refused(running.total, text="shares do not fit the seed", party="partition 5")


@pytest.mark.parametrize("backups", [True, False])
def test_a_forged_pair_seed_never_changes_a_sum_in_silence(
    make_run: Any, refused: Any, backups: bool
) -> None:
    run, running = begin(make_run, parties=5, dead=(4,), threshold=3 if backups else 4)
    assert running.backups == backups
    requests = run.server.unmask_sections([running])
    replies = {p: run.party(p).unmask(requests[p][0]) for p in requests}
    text = "a seed differs from the one it committed to"
    for forged in (bytes(32), replies[1].seeds):
        wrong = replaced(replies[0], seeds=forged)
        refused(run.take, 0, wrong, text=text, party="partition 0")
    for p, reply in replies.items():
        run.take(p, reply)
    assert run.result(running).tolist() == [4 * SECRET + 6] * 3


# -- receivers


def test_deliveries_are_checked(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run, receiver=2)
    run.unmask(running)
    delivery = running.delivery()
    text = "a sum was delivered that belongs to somebody else"
    refused(run.party(1).receive, delivery, text=text, party="partition 1")
    text = "the total of gradient has the wrong size or dtype"
    (part,) = delivery.padded
    for padded in ((), (part[:2],), (part, part), (part.astype(np.uint32),)):
        wrong = replaced(delivery, padded=padded)
        refused(run.party(2).receive, wrong, text=text, party="partition 2")
    text = "the sum is closed, or this party had no part in it"
    refused(run.party(2).receive, replaced(delivery, index=9), text=text, party="partition 2")
    refused(running.total, text="gradient belongs to partition 2")
    _, total = run.party(2).receive(delivery)
    assert total.tolist() == [6 * SECRET + 15] * 3


def test_a_sum_for_the_server_is_delivered_to_nobody(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run)
    run.unmask(running)
    text = "a sum was delivered that belongs to somebody else"
    refused(run.party(0).receive, running.delivery(), text=text, party="partition 0")


def test_two_parties_and_a_receiver_need_permission(make_run: Any, refused: Any) -> None:
    remedy = "let more parties take part, or allow it with allow_single"
    run = make_run(2)
    refused(
        run.order,
        1,
        receiver=0,
        text="partition 0 would learn the values of the only other party in gradient",
        remedy=remedy,
        kind=OptionError,
    )
    run = make_run(2, allow_single=True)
    running = run.order(1, receiver=0)
    run.upload(running, 0, [1])  # the receiver itself has nothing to lose
    refused(
        run.contribute,
        running,
        1,
        [SECRET],
        text="the receiver of this sum would learn this party's values: there is no third",
        remedy=remedy,
        party="partition 1",
    )
    run = make_run(2, allow_single=True, clients={"allow_single": True})
    assert run.sum({0: [1], 1: [SECRET]}, receiver=0).tolist() == [SECRET + 1]


def test_a_receiver_is_not_left_with_a_single_other_party(make_run: Any, refused: Any) -> None:
    """Three parties with threshold 2 may become two."""
    run = make_run(3, threshold=2)
    running = run.order(2, receiver=0)
    for p in (0, 1):
        run.upload(running, p, [SECRET, p])
    refused(
        run.server.unmask_sections,
        [running],
        text="partition 0 would learn the values of the only other survivor of gradient",
        remedy="bring the missing parties back",
    )
    assert running.survivors == ()
    running.survivors = (0, 1)  # the client refuses as well
    refused(
        run.party(1).unmask,
        running.unmask_request(1),
        text="the receiver of this sum would learn this party's values: there is no third",
        remedy="let more parties take part, or allow it with allow_single",
        party="partition 1",
    )
    running.survivors = ()
    run.upload(running, 2, [1, 1])
    run.unmask(running)
    assert run.result(running).tolist() == [2 * SECRET + 1, 2]


# -- the server's own options


def test_one_party_is_too_few(make_run: Any, refused: Any) -> None:
    for cohorts in (None, [[0]]):
        error = refused(
            make_run,
            1 if cohorts is None else 3,
            cohorts=cohorts,
            text="1 party is too few for a secure sum, 2 are needed",
            remedy="let more parties take part, or run without secure sums",
            kind=SmallCohortError,
        )
        assert isinstance(error, CohortError)
        assert error.exit_code == 2
    too_few = {"text": "too few for a secure sum", "kind": SmallCohortError}
    refused(make_run, 0, **too_few)
    refused(make_run, 4, min_cohort=5, **too_few)
    refused(make_run, 5, cohorts=[range(5), [0, 1]], min_cohort=3, **too_few)
    refused(make_run, 3, cohorts=[], text="there is no cohort to sum over", kind=OptionError)
    make_run(5, cohorts=[range(5), [0, 1, 2]], min_cohort=3)  # negative control


@pytest.mark.parametrize("least", [1, 0, -1])
def test_a_minimum_below_two_is_refused(make_run: Any, refused: Any, least: int) -> None:
    refused(
        make_run,
        3,
        min_cohort=least,
        text=f"min_cohort is {least}",
        remedy="a sum of one party hides nothing: use 2",
        kind=OptionError,
    )


def test_two_parties_are_warned_about(make_run: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    run = make_run(2)
    text = "a sum has two parties: with one of them, whoever opens it has the other's part"
    assert text in caplog.text.replace("\n", " ")
    assert run.sum({0: [1], 1: [2]}).tolist() == [3]
    caplog.clear()
    make_run(3)
    assert caplog.text == ""
    make_run(4, cohorts=[range(4), [2, 3]])
    assert "a sum has two parties" in caplog.text


@pytest.mark.parametrize("parties", [2, 3, 4, 5, 20, 31])
def test_thresholds_at_or_below_half_are_refused(make_run: Any, refused: Any, parties: int) -> None:
    least = parties // 2 + 1
    for threshold in (parties // 2, 1, 0, -1, parties + 1):
        refused(
            make_run,
            parties,
            threshold=threshold,
            text=f"threshold is {threshold} for {parties} parties",
            remedy=f"use {least} to {parties}",
            kind=OptionError,
        )
    for threshold in (least, parties):
        assert make_run(parties, threshold=threshold).server.membership.cohorts[0].threshold


def test_orders_of_the_server_are_checked(make_run: Any, refused: Any) -> None:
    run = make_run(4)
    refused(run.order, 1, receiver=4, text="partition 4 is not in the cohort", kind=OptionError)
    text = "4 integers up to 9000 overflow a 16-bit ring"
    refused(run.order, 1, Encoding.integers(9000, 16), text=text, kind=OptionError)
    refused(run.order, 0, text="gradient has length 0 and cohort 0", kind=OptionError)
    refused(run.order, 1, cohort=1, text="gradient has length 1 and cohort 1", kind=OptionError)
    assert run.order(1).order.index == 1  # none of these has used up a number


def test_a_closed_sum_is_not_released_again(make_run: Any, refused: Any) -> None:
    run, running = begin(make_run)
    run.unmask(running)
    assert running.total().tolist() == running.total().tolist()  # as often as you like before
    run.result(running)
    for release in (running.total, running.delivery, running.open):
        refused(release, text="gradient is closed")


def test_sessions_do_not_mix(make_run: Any, refused: Any) -> None:
    """A party of another session, with the same keys, masks with other streams."""
    run = make_run(3)
    running = run.order(2)
    for p in (0, 1):
        run.upload(running, p, [1, 2])
    state = PartyState.unpack(run.states[2])
    state.session = "another"
    run.states[2] = state.pack()
    upload = run.contribute(running, 2, [1, 2])
    text = "its masks do not fit those of 2 others"
    refused(run.take, 2, upload, text=text, party="partition 2")


def test_recover_replies_are_what_they_say(make_run: Any, refused: Any) -> None:
    """A reply of another kind does not pass for one that was asked for."""
    run, running, _ = begin_recovery(make_run)
    reply = RecoverReply(cohort=0, index=2, shares=b"")
    text = "it was not asked to recover anything"
    refused(run.take, 0, reply, text=text, party="partition 0")
    assert not running.complete


def test_a_total_beyond_the_bound_is_never_given_out(make_run: Any, refused: Any) -> None:
    """Garbage of one party; asking again does not unmask the vector a second time."""
    run = make_run(3)
    running = run.order(3)
    for p in run.members:
        upload = run.contribute(running, p, np.full(3, p))
        noise = (np.array([1 << 60, 0, 7], np.uint64),)
        run.take(p, replaced(upload, masked=noise) if p == 1 else upload)
    run.unmask(running)
    refused(running.total, text="larger than 3 vectors within the bound can be")
    refused(running.total, text="gradient is closed")


def test_a_total_that_more_parties_could_have_is_none_of_the_survivors(
    make_run: Any, refused: Any
) -> None:
    run = make_run(5, threshold=3)
    running = run.order(1, Encoding.integers(100))
    for p in range(3):
        upload = run.contribute(running, p, [100])
        noise = (upload.masked[0] + np.uint64(1),) if p == 1 else upload.masked
        run.take(p, replaced(upload, masked=noise))
    run.unmask(running)
    refused(running.total, text="larger than 3 vectors within the bound can be")
