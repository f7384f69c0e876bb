"""What a party and a server refuse: each forged message of a table has the code of its cause.

After each refusal the sum is as before: the honest message is taken and the total is exact.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from sums_in_memory import Run, carry, flip, refuses, sparse

from fedkern_flwr.secure_sum import CIPHERS, Encoding, Party, PartyState, SecureSum
from fedkern_flwr.secure_sum import membership as graph
from fedkern_flwr.secure_sum.crypto import generate_key
from fedkern_flwr.secure_sum.membership import Cohort, Membership, Subject, sign_vote, votes_needed
from fedkern_flwr.wire.sums import Ballot, Delivery, Recover, RecoverReply, Unmask, Upload, Vote

SECRET = 987654
Change = Callable[..., dict[str, Any]]


def begin(parties: int = 6, *, dead: Iterable[int] = (), **options: Any) -> tuple[Any, Any]:
    """A run and a sum that has its uploads, with backups where they can help."""
    order = {name: options.pop(name) for name in ("receiver", "self_masks") if name in options}
    run = Run(parties, **options)
    spare = parties - 1 > run.server.membership.cohorts[0].share_threshold
    backups = order.get("self_masks", True) and spare
    return run, run.filled(3, dead=dead, plus=SECRET, backups=backups, **order)


def joined(parties: int = 3, **options: Any) -> Any:
    run = Run(parties, **options)
    run.join()
    return run


# -- requests to unmask and to recover

UNMASK: list[tuple[str, Change]] = [
    ("FK-SUM-SET", lambda c, m: {"dead": c.pack([3, 5])}),
    ("FK-SUM-SET", lambda c, m: {"dead": c.pack([])}),
    ("FK-SUM-SET", lambda c, m: {"alive": c.pack(range(6))}),
    ("FK-SUM-SET", lambda c, m: {"alive": c.pack([0, 1, 2, 3, 5])}),
    *(
        ("FK-SUM-SET", lambda c, m, bits=bits, side=side: {side: bits})
        for bits in (b"", b"\x3f\x00", b"\x40", b"\xff")
        for side in ("alive", "dead")
    ),
    ("FK-SUM-FEW", lambda c, m: {"alive": c.pack([0, 1, 2]), "dead": c.pack([3, 4, 5])}),
    ("FK-SUM-FEW", lambda c, m: {"alive": c.pack([]), "dead": c.pack(range(6))}),
    ("FK-SUM-SET", lambda c, m: {"alive": c.pack([1, 2, 3, 4]), "dead": c.pack([0, 5])}),
    ("FK-SUM-SET", lambda c, m: {"alive": c.pack([0, 1, 3, 4]), "dead": c.pack([2, 5])}),
    ("FK-MESSAGE-SHAPE", lambda c, m: {"shares": m.shares[:-49]}),
    ("FK-MESSAGE-SHAPE", lambda c, m: {"shares": m.shares + bytes(49)}),
    ("FK-SUM-CHANGED", lambda c, m: {"shares": m.shares[:-1]}),
    ("FK-SUM-CHANGED", lambda c, m: {"shares": m.shares[49:98] + m.shares[:49] + m.shares[98:]}),
    ("FK-SUM-CHANGED", lambda c, m: {"shares": flip(m.shares, 60)}),
    *(("FK-SUM-CLOSED", lambda c, m, o=o: o) for o in ({"index": 2}, {"index": 0}, {"cohort": 1})),
]


@pytest.mark.promise("sums-threshold")
@pytest.mark.parametrize(("code", "change"), UNMASK)
def test_forged_requests_to_unmask_bind_to_nothing(code: str, change: Change) -> None:
    run, running = begin(dead=[5], threshold=4, receiver=2)
    request, party = run.unmask_request(running, 0), run.party(0)
    before = party.state.pack()
    forged = replace(request, **change(running.cohort, request))
    with refused(code) as caught:
        party.unmask(forged)
    assert caught.value.party in ("partition 0", "")  # which sets there are is no party's
    assert party.state.pack() == before
    assert str(SECRET) not in repr(caught.value)
    assert party.unmask(request).seeds


@pytest.mark.promise("sums-whole-cohort")
@pytest.mark.parametrize("receiver", [0, -1])
def test_sums_without_self_masks_are_never_unmasked(receiver: int) -> None:
    run, running = begin(receiver=receiver, self_masks=False)
    every, none = running.cohort.pack(range(6)), running.cohort.pack([])
    told = {"cohort": 0, "index": 1, "shares": b"", "voters": b"", "votes": b""}
    request = Unmask(alive=every, dead=none, **told)
    refuses("FK-SUM-SECRET", run.party(0).unmask, request, party=0)
    assert run.server.unmask_sections([running]) == {}


RECOVER: list[tuple[str, Change]] = [
    ("FK-SUM-SECRET", lambda c, m: {"silent": c.pack([4, 5])}),
    ("FK-SUM-SECRET", lambda c, m: {"silent": c.pack([5])}),
    ("FK-SUM-SECRET", lambda c, m: {"silent": c.pack([0, 4])}),
    ("FK-SUM-SECRET", lambda c, m: {"silent": c.pack([]), "backups": b""}),
    ("FK-SUM-CONTRADICTED", lambda c, m: {"alive": c.pack([0, 1, 2, 4])}),
    ("FK-SUM-CONTRADICTED", lambda c, m: {"alive": c.pack(range(6))}),
    ("FK-SUM-CHANGED", lambda c, m: {"backups": flip(m.backups, 0)}),
    ("FK-SUM-CHANGED", lambda c, m: {"backups": m.backups[:-1]}),
    ("FK-SUM-CHANGED", lambda c, m: {"backups": 2 * m.backups}),
    ("FK-SUM-CHANGED", lambda c, m: {"silent": c.pack([3])}),
    ("FK-MESSAGE-SHAPE", lambda c, m: {"backups": b""}),
    ("FK-SUM-CLOSED", lambda c, m: {"index": 2}),
]


def begin_recovery() -> tuple[Any, Any, Recover]:
    """Party 5 is dead, 4 silent; the request is that to party 0."""
    run, running = begin(dead=[5], threshold=4)
    run.unmask(running, [0, 1, 2, 3])
    (request,) = run.server.recover_sections([running])[0]
    return run, running, request


@pytest.mark.promise("sums-recovery")
@pytest.mark.parametrize(("code", "change"), RECOVER)
def test_forged_requests_to_recover_are_refused(code: str, change: Change) -> None:
    """The honest one reveals a share of the silent party's seed with the dead one, no more."""
    run, running, request = begin_recovery()
    forged = replace(request, **change(running.cohort, request))
    refuses(code, run.party(0).recover, forged, party=0)
    unwilling = run.party(0)
    unwilling.allow_recovery = False
    refuses("FK-SUM-RECOVERY", unwilling.recover, request, party=0)
    forgetful = run.party(0)  # one that has only voted has seen no certificate
    forgetful.state.open[0, 1].answered = False
    refuses("FK-SUM-CONTRADICTED", forgetful.recover, request, party=0)
    assert len(run.party(0).recover(request).shares) == 33


@pytest.mark.promise("sums-living-pairs")
def test_a_pair_of_two_survivors_is_never_recovered() -> None:
    """Everybody uploaded, one is silent: there is nothing to ask, and nothing is told."""
    run, running = begin(threshold=4)
    run.unmask(running, [0, 1, 2, 3, 4])
    assert running.complete
    pack, backups = running.cohort.pack, running.enclosed.backed_up([5], 0)
    request = Recover(cohort=0, index=1, alive=pack(range(6)), silent=pack([5]), backups=backups)
    assert run.party(0).recover(request).shares == b""


@pytest.mark.parametrize("unwilling", [(), (0,), (5,), (1, 2)])
def test_recovery_only_by_those_who_allow_it(unwilling: tuple[int, ...]) -> None:
    """Of 8 parties 7 is dead and 5 falls silent; of the 6 that hold its backups 5 are enough."""
    run = Run(8, threshold=5)
    running = run.order(1, backups=True)
    for p in range(7):
        run.clients["allow_recovery"] = p not in unwilling
        run.upload(running, p, [p])
        assert bool(run.transcript(running).uploads[p].backups) == (p not in unwilling)
    run.unmask(running, {*range(7)} - {5})
    requests = run.server.recover_sections([running])
    assert requests[5][0].phase == "sum-unmask"
    assert {*requests}.isdisjoint({*unwilling} - {5})
    run.clients["allow_recovery"] = True
    run.recover(running, {*range(7)} - {5})
    assert running.complete == (5 not in unwilling and len(unwilling) < 2)


# -- orders and values


@pytest.mark.parametrize(("code", "change"), [
    ("FK-SUM-STRANGER", {"cohort": 3}), ("FK-SUM-RECEIVER", {"receiver": 9}),
    ("FK-SUM-VALUES", {"length": 4}), ("FK-SUM-OVERFLOW", {"bits": 16, "name": "b"}),
    ("FK-SUM-NUMBER", {"index": 0}), ("FK-SUM-NUMBER", {"index": 1027}),
    ("FK-OPTION-CHOICE", {"bits": 8, "name": "b"}),
    ("FK-OPTION-CHOICE", {"kind": "float", "name": "b"}),
    ("FK-OPTION-RANGE", {"bound": -1.0, "name": "b"}),
    ("FK-ORDER-NOISE", {"kind": "fixed-point", "noise": 1 << 20, "fraction": 10, "name": "b"}),
])  # fmt: skip
def test_orders_that_break_a_rule_are_refused(code: str, change: dict[str, Any]) -> None:
    """The number may be used by a sum that keeps the rules."""
    run = joined()
    order, values, party = run.order(3).order, np.full(3, SECRET), run.party(0)
    before = party.state.pack()
    with refused(code) as caught:
        party.contribute(replace(order, **change), values)
    assert str(SECRET) not in repr(caught.value)
    if "name" not in change:
        assert party.state.pack() == before
    assert party.contribute(order, values)


@pytest.mark.promise("sums-number-twice")
def test_a_number_is_never_used_twice() -> None:
    """Whether the order was accepted, contributed to, or refused for its values."""
    run = joined()
    values, party = np.ones(3, np.int64), run.party(0)
    orders = [run.order(3, name=name).order for name in ("a", "b")]
    for order in orders:
        party.accept(order)
        refuses("FK-SUM-NUMBER", party.accept, order, party=0)
    run.keep(party)
    for order in reversed(orders):  # in any order once they are accepted
        assert party.contribute(order, values).index == order.index
        refuses("FK-SUM-NUMBER", party.contribute, order, values, party=0)
    # a party that lost its memory after it had accepted contributes no more
    refuses("FK-SUM-NUMBER", run.party(0).contribute, orders[1], values, party=0)
    later = replace(orders[0], index=5, bound=10.0, name="c")
    refuses("FK-SUM-BOUND", party.contribute, later, np.full(3, SECRET), party=0)
    run.keep(party)
    party = run.party(0)
    for used in range(-1, 6):
        refuses("FK-SUM-NUMBER", party.contribute, replace(later, index=used), values, party=0)
    assert party.contribute(replace(later, index=1006), values)  # a leap that is not too long


@pytest.mark.parametrize(
    "values",
    [np.full((3, 1), SECRET), SECRET, [SECRET, float("nan"), 0.0], ["987654"] * 3, None]
    + [np.broadcast_to(0.0, n) for n in (2, 4)],
)
def test_values_that_do_not_fit_never_leave(values: Any) -> None:
    run = joined()
    error = refuses("FK-SUM-VALUES", run.party(0).contribute, run.order(3).order, values, party=0)
    assert str(SECRET) not in repr(error)


@pytest.mark.promise("sums-repeated")
@pytest.mark.parametrize("change", [
    *({"cohort": 1}, {"receiver": 1}, {"self_masks": True}, {"bits": 32}, {"bound": 99.0}),
    *({"noise": 1 << 18}, {"noise": 0}, {"fraction": 9}),
])  # fmt: skip
@pytest.mark.parametrize("receiver", [0, -1])
def test_a_sum_is_repeated_only_as_it_was(receiver: int, change: dict[str, Any]) -> None:
    """test_secrecy.py shows what the two sums would give away."""
    party = (run := joined(6, cohorts=[range(6), range(5)])).party(0)
    terms: Any = {"receiver": receiver, "kind": "fixed-point", "bound": 9.0, "noise": 1 << 20}
    first = replace(run.order(3, self_masks=False).order, **terms, fraction=10)
    party.accept(first)
    for name in (first.name, f"{first.name}#1"):
        again = replace(first, index=first.index + 1, name=name)
        refuses("FK-ORDER-PARTIES", party.accept, replace(again, **change), party=0)
    party.accept(again)


def test_a_method_may_insist_on_whole_cohorts() -> None:
    """Where values are repeated, sums over different survivors would show the difference."""
    run = Run(3, clients={"whole_cohorts": True})
    refuses("FK-ORDER-TERMS", run.contribute, run.order(1), 0, [1], party=0)
    assert run.sum({p: [p] for p in range(3)}, self_masks=False).tolist() == [3]


# -- uploads, and what else comes to the server

UPLOADS: list[tuple[str, Change]] = [
    ("FK-MESSAGE-SHAPE", lambda m: {"masked": (m.masked[0].astype(np.uint32),)}),
    ("FK-MESSAGE-SHAPE", lambda m: {"masked": (m.masked[0][:-1],)}),
    ("FK-MESSAGE-SHAPE", lambda m: {"masked": (*m.masked, m.masked[0][:1])}),
    ("FK-MESSAGE-SHAPE", lambda m: {"masked": ()}),
    ("FK-MESSAGE-SHAPE", lambda m: {"shares": m.shares[:-1]}),
    ("FK-MESSAGE-SHAPE", lambda m: {"shares": b""}),
    ("FK-MESSAGE-SHAPE", lambda m: {"backups": m.backups[:-1]}),
    ("FK-MESSAGE-SHAPE", lambda m: {"commitments": m.commitments + bytes(16)}),
    ("FK-SUM-CLOSED", lambda m: {"index": 7}),
    ("FK-SUM-CLOSED", lambda m: {"cohort": 1}),
]


@pytest.mark.parametrize(("code", "change"), UPLOADS)
def test_wrong_uploads_change_nothing(code: str, change: Change) -> None:
    run = Run(6, threshold=4)
    running = run.filled(3, dead=[0], backups=True)
    upload = run.contribute(running, 0, np.full(3, SECRET))
    refuses(code, run.take, 0, replace(upload, **change(upload)), party=0)
    for stranger in (6, 99):
        refuses("FK-SUM-STRANGER", run.take, stranger, upload, party=stranger)
    assert running.uploaded == (1, 2, 3, 4, 5)
    run.take(0, upload)
    run.unmask(running)
    assert run.result(running).tolist() == [SECRET + 15] * 3


REPLIES: list[tuple[str, Change]] = [
    ("FK-MESSAGE-SHAPE", lambda m: {"shares": m.shares[33:]}),
    ("FK-MESSAGE-SHAPE", lambda m: {"shares": m.shares + bytes(33)}),
    ("FK-MESSAGE-SHAPE", lambda m: {"seeds": b""}),
    ("FK-MESSAGE-SHAPE", lambda m: {"seeds": m.seeds[:16]}),
    ("FK-SUM-SEED", lambda m: {"seeds": bytes(32)}),
    ("FK-SUM-SEED", lambda m: {"seeds": flip(m.seeds, 31)}),
    ("FK-SUM-CLOSED", lambda m: {"index": 2}),
]


@pytest.mark.promise("sums-forged-seed")
@pytest.mark.parametrize(("code", "change"), REPLIES)
def test_wrong_replies_change_nothing(code: str, change: Change) -> None:
    run, running = begin(dead=[5], threshold=4)
    requests = run.server.unmask_sections([running])
    replies = {p: run.party(p).unmask(request) for p, (request,) in requests.items()}
    refuses(code, run.take, 0, replace(replies[0], **change(replies[0])), party=0)
    assert running.silent == (0, 1, 2, 3, 4)
    for p in (1, 2, 3, 4, 0):
        run.take(p, replies[p])
    for p in (0, 5, 77):
        refuses("FK-SUM-NOT-ASKED", run.take, p, replies[p and 1], party=p)
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3
    refuses("FK-SUM-CLOSED", run.take, 1, replies[1], party=1)


def test_what_nobody_asked_for_is_refused() -> None:
    run, running, request = begin_recovery()
    reply = run.party(0).recover(request)
    code = "FK-SUM-NOT-ASKED"
    refuses(code, run.take, 0, RecoverReply(cohort=0, index=2, shares=b""), party=0)
    refuses("FK-MESSAGE-SHAPE", run.take, 0, replace(reply, shares=reply.shares[1:]), party=0)
    for p in (0, 4, 5, 77):  # the request of party 0 was used up by the wrong reply
        refuses(code, run.take, p, reply, party=p)
    vote = Vote(cohort=0, index=1, signature=bytes(64))
    refuses(code, run.take, 1, vote, party=1)  # identities are not pinned
    delivery = Delivery(cohort=0, index=1, padded=())
    for message in (running.order, run.server.roster, delivery):
        refuses("FK-MESSAGE-FIELD", run.take, 0, message, party=0)
    (section,) = carry([delivery])
    long = replace(section, phase="x" * 1000)
    assert len(refuses("FK-MESSAGE-FIELD", run.server.take, 0, [long], party=0).problem) < 100
    run.recover(running, [0, 1, 2, 3])
    assert run.result(running).tolist() == [5 * SECRET + 10] * 3


# -- false commitments, forged backups, garbage


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
    refuses("FK-SUM-SEED", running.total, party=2)


@pytest.mark.parametrize(
    ("liars", "parties", "places"), [(1, 6, [1]), (1, 6, [5]), (1, 6, []), (2, 9, [])]
)
def test_false_commitments_to_pair_seeds_abort(liars: int, parties: int, places: list[int]) -> None:
    """Liars are first, so at first every honest party is at odds with all that are there.

    With one pair nobody can say which of the two lies, so both are suspects.
    """
    run = Run(parties)
    running = run.order(3)
    for p in range(liars):
        told = with_false_commitment(run, running, p, places or range(liars, parties))
        run.take(p, told)
    for p in range(liars, parties):
        run.upload(running, p, np.full(3, p))
    refuses("FK-SUM-MASKS", run.unmask, running, party=0)
    assert running.suspects == ([0, *places] if places else [*range(liars)])
    assert not running.survivors


def test_a_total_that_the_survivors_cannot_have_is_never_given_out() -> None:
    """More parties could; asking again does not unmask the vector a second time."""
    run = Run(5, threshold=3)
    running = run.order(1, Encoding.integers(100))
    for p in range(3):
        upload = run.contribute(running, p, [100])
        noise = (upload.masked[0] + np.uint64(1),) if p == 1 else upload.masked
        run.take(p, replace(upload, masked=noise))
    run.unmask(running)
    refuses("FK-SUM-TOTAL", running.total)
    refuses("FK-SUM-CLOSED", running.total)


# -- receivers


def test_deliveries_are_checked() -> None:
    run, running = begin(receiver=2)
    run.unmask(running)
    delivery = running.delivery()
    refuses("FK-SUM-RECEIVER", run.party(1).receive, delivery, party=1)
    (part,) = delivery.padded
    for padded in ((), (part[:2],), (part, part), (part.astype(np.uint32),)):
        refuses("FK-MESSAGE-SHAPE", run.party(2).receive, replace(delivery, padded=padded), party=2)
    refuses("FK-SUM-CLOSED", run.party(2).receive, replace(delivery, index=9), party=2)
    party = run.party(2)
    assert party.receive(delivery)[1].tolist() == [6 * SECRET + 15] * 3
    run.keep(party)
    other = replace(delivery, padded=(part + np.uint64(1),))
    refuses("FK-SUM-CONTRADICTED", run.party(2).receive, other, party=2)
    run, running = begin()  # a sum for the server is delivered to nobody
    run.unmask(running)
    refuses("FK-SUM-RECEIVER", run.party(0).receive, running.delivery(), party=0)


def test_a_receiver_and_one_other_party_need_permission() -> None:
    refuses("FK-SUM-SINGLE", Run(2).order, 1, receiver=0)
    run = Run(2, allow_single=True)
    running = run.order(1, receiver=0)
    run.upload(running, 0, [1])  # the receiver itself has nothing to lose
    refuses("FK-SUM-SINGLE", run.contribute, running, 1, [SECRET], party=1)
    run = Run(2, allow_single=True, clients={"allow_single": True})
    assert run.sum({0: [1], 1: [SECRET]}, receiver=0).tolist() == [SECRET + 1]
    run = Run(3, threshold=2)  # three may become two
    running = run.filled(2, dead=[2], plus=SECRET, receiver=0)
    refuses("FK-SUM-SINGLE", run.server.unmask_sections, [running])
    running.survivors = (0, 1)  # the client refuses as well
    refuses("FK-SUM-SINGLE", run.party(1).unmask, running.unmask_request(1), party=1)


# -- votes


def voting() -> tuple[Any, Any]:
    run = Run(6, pinned=True, threshold=4)
    return run, run.filled(dead=[5], backups=True)


@pytest.mark.promise("sums-one-vote")
def test_who_voted_for_one_set_of_survivors_votes_and_answers_for_no_other() -> None:
    """A false vote does no harm where there are enough."""
    run, running = voting()
    ballot = Ballot(cohort=0, index=1, alive=running.cohort.pack(range(5)))
    run.vote(running)
    party, signature = run.party(0), run.party(0).vote(ballot).signature  # the same set again
    fewer = replace(ballot, alive=running.cohort.pack([0, 1, 2, 3]))
    refuses("FK-SUM-CONTRADICTED", party.vote, fewer, party=0)
    request = run.unmask_request(running, 0)
    other = replace(request, alive=fewer.alive, dead=running.cohort.pack([4, 5]))
    refuses("FK-SUM-CONTRADICTED", party.unmask, other, party=0)
    assert party.vote(ballot).signature == signature
    running._votes[2] = bytes(64)
    run.unmask(running)
    assert run.result(running).tolist() == [10]


def sign(run: Any, running: Any, signer: int, **change: Any) -> bytes:
    alive = running.cohort.pack(range(5))
    subject = Subject("run", running.cohort, running.order.index, alive)
    return sign_vote(run.identities[signer], subject._replace(**change))


def votes_of(*signers: int, cohort: dict[str, Any] | None = None, **change: Any) -> Any:
    def made(run: Any, running: Any) -> tuple[list[int], bytes]:
        of = {"cohort": replace(running.cohort, **cohort)} if cohort else {}
        return list(signers), b"".join(sign(run, running, p, **of, **change) for p in signers)

    return made


FALSE: dict[str, Any] = {
    "none": votes_of(), "too few": votes_of(1, 2, 3), "a dead party's": votes_of(1, 2, 3, 5),
    "of another run": votes_of(1, 2, 3, 4, session="run2"),
    "of another sum": votes_of(1, 2, 3, 4, number=2),
    "of another cohort": votes_of(1, 2, 3, 4, cohort={"number": 1}),
    "of another roster": votes_of(1, 2, 3, 4, cohort={"digest": bytes(32)}),
    "for other survivors": votes_of(1, 2, 3, 4, alive=b"\x2f"),
    "one party's, four times": lambda run, s: ([1, 2, 3, 4], 4 * sign(run, s, 1)),
    "cut short": lambda run, s: ([1, 2, 3, 4], votes_of(1, 2, 3, 4)(run, s)[1][:-1]),
    "more than voters": lambda run, s: ([1, 2, 3], votes_of(1, 2, 3, 4)(run, s)[1]),
}  # fmt: skip


@pytest.mark.promise("sums-votes")
@pytest.mark.parametrize("kind", FALSE)
def test_false_certificates_are_refused(kind: str) -> None:
    """A true one is taken afterwards."""
    run, running = voting()
    run.vote(running)
    request: Unmask = run.unmask_request(running, 0)
    for certificate in (FALSE[kind], votes_of(0, 2, 3, 4)):
        signers, signatures = certificate(run, running)
        told = replace(request, voters=running.cohort.pack(signers), votes=signatures)
        if certificate is FALSE[kind]:
            refuses("FK-SUM-VOTES", run.party(0).unmask, told, party=0)
        else:
            assert run.party(0).unmask(told).shares


def test_votes_and_identities_that_are_none() -> None:
    run, running = voting()
    run.server.ballot_sections([running])
    vote = Vote(cohort=0, index=1, signature=bytes(64))
    refuses("FK-SUM-NOT-ASKED", run.take, 5, vote, party=5)
    refuses("FK-MESSAGE-SHAPE", run.take, 1, replace(vote, signature=b""), party=1)
    party = run.party(0)
    party.identity = None
    ballot = Ballot(cohort=0, index=1, alive=running.cohort.pack(range(5)))
    refuses("FK-IDENTITY-NONE", party.vote, ballot, party=0)
    fresh = Run(3, pinned=True)
    party = fresh.party(0)
    party.identity = None
    refuses("FK-IDENTITY-NONE", party.join, fresh.server.roster, party=0)


@pytest.mark.parametrize("parties", [2, 3, 5, 10, 30, 31, 100])
def test_enough_votes_for_the_bound_that_is_stated(parties: int) -> None:
    """Counted over all splits of the honest parties, as in the docstring of the module."""
    cohort = Run(parties).server.membership.cohorts[0]
    t, s = cohort.threshold, cohort.share_threshold
    bound = graph.fewest_colluders(parties, t)
    assert votes_needed(cohort, parties - 1) == t
    assert votes_needed(cohort, parties) == (0 if parties <= 30 else t)
    assert bound >= 1

    def opens(c: int) -> bool:
        """Whether c colluders get two certified sets, or a full one, which needs no votes."""
        splits = [(one, parties - c - one) for one in range(parties - c + 1)]
        two = any(one + c >= t and other + c >= t for one, other in splits)
        full = parties <= 30 and any(one + c >= s and other + c >= t for one, other in splits)
        return two or full or s - 1 - c < 1  # or the victim has no honest living neighbour

    assert [opens(c) for c in range(bound + 1)] == [False] * bound + [True]


# -- rosters

CHANGES: dict[str, dict[str, Any]] = {
    "another key": {"keys": lambda keys: generate_key()[1] + keys[32:]},
    "another cipher": {"cipher": lambda _: CIPHERS[1]},
    "another threshold": {"cohorts": lambda _: "[[3,1,[0,1,2,3]]]"},
    "another cohort": {"cohorts": lambda _: "[[4,1,[0,1,2,3]],[3,1,[0,1,2]]]"},
    "a party less": {
        **{name: lambda data: data[: len(data) * 3 // 4]
           for name in ("partitions", "keys", "signatures", "counts")},
        "cohorts": lambda _: "[[3,1,[0,1,2]]]",
    },
    "another number of rows": {"counts": lambda data: (9).to_bytes(8, "little") + data[8:]},
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_roster_is_another_one(kind: str) -> None:
    """The digest covers it, a party that has joined refuses it, and others share no keys."""
    run = Run(4, threshold=4)
    roster = run.server.roster
    changed = replace(roster, **{n: f(getattr(roster, n)) for n, f in CHANGES[kind].items()})
    digests = [Membership.read(one, s).digest for one in (roster, changed) for s in ("run", "r")]
    assert len({*digests, run.server.membership.digest}) == 4
    roots = {}
    for p, shown in ((1, roster), (2, changed)):
        party = run.party(p)
        party.join(shown)
        roots[p] = party.state.roots[0]
    assert roots[1][2] != roots[2][1]
    run.join()
    run.join()  # the same roster may come again
    refuses("FK-SUM-ROSTER-OTHER", run.party(2).join, changed, party=2)


TEXTS = ["[[3,0,[0,1,2,3]]]", "", "7", "null", "[[3]]", '[["3",1,["0","1","2"]]]', "[" * 100_000]
TEXTS += ["[[3,1,[0.0,1.0,2.0]]]", "[[3,1,[false,true,2]]]", "[[Infinity,1,[0,1,2]]]"]
ALONE = ["[[1,1,[1]]]", "[[0,1,[]]]", "[[4,1,[0,1,2,3]],[1,1,[1]]]"]  # a share would open a vector
BAD_ROSTERS: list[tuple[str, dict[str, Any]]] = [
    *(("FK-SUM-ROSTER", {"partitions": np.array(p, "<i4").tobytes()})
      for p in ([1, 0, 2, 3], [0, 0, 2, 3], [0, 1, 2])),
    *(("FK-SUM-ROSTER", {name: bytes(size)})
      for name, size in (("partitions", 15), ("keys", 96), ("signatures", 64), ("counts", 8))),
    ("FK-SUM-ROSTER", {"counts": b"\xff" * 64}),
    ("FK-OPTION-CHOICE", {"cipher": "rot13" * 100}),
    *(("FK-SUM-COHORTS", {"cohorts": text})
      for text in ("[[4,1,[0,1,2,9]]]", "[[3,1,[0,1,1,2]]]", "[[3,1,[0,2,1]]]")),
    *(("FK-SUM-ROSTER", {"cohorts": text}) for text in TEXTS),
    *(("FK-PARTIES-FEW", {"cohorts": text}) for text in ALONE),
    *(("FK-SUM-THRESHOLD", {"cohorts": f"[[{t},1,[0,1,2,3]]]"}) for t in (2, 5, -1)),
]  # fmt: skip


@pytest.mark.parametrize(("code", "change"), BAD_ROSTERS)
def test_rosters_that_protect_nobody_leave_no_trace(code: str, change: dict[str, Any]) -> None:
    run = Run(4)
    party, before = run.party(1), run.states[1]
    refuses(code, party.join, replace(run.server.roster, **change))
    assert party.state.pack() == before
    party.join(run.server.roster)
    assert party.state.digest


@pytest.mark.promise("sums-own-key")
def test_a_party_joins_only_what_it_announced() -> None:
    run = Run(3)
    roster = run.server.roster
    refuses("FK-SUM-KEY-NONE", Party(0, PartyState("run")).join, roster, party=0)
    swapped = replace(roster, keys=generate_key()[1] + roster.keys[32:])
    refuses("FK-SUM-CHANGED", run.party(0).join, swapped, party=0)
    for place in (0, 8):  # rows and held-out rows
        told = roster.counts[:place] + (9).to_bytes(8, "little") + roster.counts[place + 8 :]
        refuses("FK-SUM-CHANGED", run.party(0).join, replace(roster, counts=told), party=0)
    party = run.party(0)
    assert party.announce() == run.keys[0]  # however often it is asked
    party.state.private = b""
    assert party.announce() != run.keys[0]  # a second key: the server still has the first
    refuses("FK-SUM-CHANGED", party.join, roster, party=0)
    assert not party.state.digest


def test_a_party_in_no_cohort_contributes_to_nothing() -> None:
    run = joined(4, cohorts=[[0, 1, 2]])
    party, running = run.party(3), run.order(1)
    assert party.state.digest
    assert party.state.roots == {}
    refuses("FK-SUM-STRANGER", party.contribute, running.order, np.array([1]), party=3)
    assert run.server.sections(3, [running]) == [run.server.roster]


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31)])
def test_keys_that_agree_with_everybody_are_refused(public: bytes) -> None:
    """Points of small order: by the server when they are announced, by clients in a roster."""
    run = Run(3)
    refuses("FK-SUM-KEY", SecureSum, "run", run.keys | {2: (public, b"")}, party=2)
    roster = replace(run.server.roster, keys=run.server.roster.keys[:64] + public)
    refuses("FK-SUM-KEY", run.party(0).join, roster, party=2)


@pytest.mark.parametrize(
    ("public", "signature"), [(31, 0), (33, 0), (0, 0), (64, 0), (32, 1), (32, 63), (32, 65)]
)
def test_the_server_refuses_keys_of_the_wrong_size(public: int, signature: int) -> None:
    keys = {p: (generate_key()[1], b"") for p in range(3)}
    keys[1] = ((keys[1][0] * 2)[:public], bytes(signature))
    refuses("FK-SUM-KEY", SecureSum, "run", keys, party=1)
    keys[1] = (keys[0][0], bytes(64))
    SecureSum("run", keys)


@given(count=st.integers(1, 40), bits=st.binary(max_size=7), first=st.integers(0, 9))
def test_a_set_of_parties_has_one_form_only(count: int, bits: bytes, first: int) -> None:
    """Two requests that mean the same set are the same bytes, so that they can be compared."""
    cohort = Cohort(0, tuple(range(first, first + 2 * count, 2)), 1, b"")
    value, fits = int.from_bytes(bits, "little"), len(bits) == -(-count // 8)
    if not fits or value >> count:
        refuses("FK-SUM-SET", cohort.unpack, bits)
    else:
        members = cohort.unpack(bits)
        assert members == {p for k, p in enumerate(cohort.members) if value >> k & 1}
        assert cohort.pack(members) == bits


# -- the server's own options


@pytest.mark.promise("sums-majority")
def test_cohorts_thresholds_and_orders_of_the_server() -> None:
    for parties, cohorts in ((1, None), (3, [[0]]), (0, None)):
        error = refuses("FK-PARTIES-FEW", Run, parties, cohorts=cohorts)
        assert error.exit_code == 2
    refuses("FK-PARTIES-FEW", Run, 4, min_cohort=5)
    refuses("FK-PARTIES-FEW", Run, 5, cohorts=[range(5), [0, 1]], min_cohort=3)
    for cohorts in ([], [[0, 0, 1]], [[0, 1, 9]]):
        refuses("FK-SUM-COHORTS", Run, 3, cohorts=cohorts)
    for least in (1, 0, -1):
        refuses("FK-OPTION-RANGE", Run, 3, min_cohort=least)
    refuses("FK-OPTION-CHOICE", Run, 3, cipher="rot13")
    for parties in (2, 3, 4, 31):
        half = parties // 2
        for threshold in (half, 1, 0, -1, parties + 1):
            if not half < threshold <= parties:
                refuses("FK-SUM-THRESHOLD", Run, parties, threshold=threshold)
        assert Run(parties, threshold=half + 1).server.membership.cohorts[0].threshold == half + 1
    run = Run(4)
    refuses("FK-SUM-RECEIVER", run.order, 1, receiver=4)
    refuses("FK-SUM-OVERFLOW", run.order, 1, Encoding.integers(9000, 16))
    refuses("FK-SUM-LENGTH", run.order, 0)
    refuses("FK-SUM-LENGTH", run.order, 1, cohort=1)
    assert run.order(1).order.index == 1  # none of these has used up a number


def test_the_minimum_cohort_counts_beside_the_threshold() -> None:
    run = Run(5, threshold=3, min_cohort=4)
    refuses("FK-SUM-FEW", run.server.unmask_sections, [run.filled(dead=[3, 4])])
    running = run.filled(dead=[4])
    run.unmask(running)
    assert run.result(running).tolist() == [6]


def test_two_parties_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "fedkern_flwr")
    for parties, cohorts, warned in ((3, None, 0), (2, None, 1), (4, [range(4), [2, 3]], 2)):
        Run(parties, cohorts=cohorts)
        assert len(caplog.records) == warned


@pytest.mark.promise("sums-neighbours")
def test_lonely_neighbours_are_refused_by_both_sides() -> None:
    """3 of the 4 holders that a seed needs are left: such a sum cannot be opened anyway.

    Answering would reveal the seeds of all pairs of a party.
    """
    with sparse(6):
        run = Run(20, threshold=11)
        running = run.order(1)
        around = running.cohort.neighbours[0]
        for p in run.members:
            if p not in around[:4]:
                run.upload(running, p, [p])
        refuses("FK-SUM-FEW", run.server.unmask_sections, [running])
        assert running.survivors == ()
        for p in around[:4]:
            run.upload(running, p, [p])
        for gone in (6, 5, 4):
            running.survivors = tuple(p for p in run.members if p not in around[:gone])
            request = running.unmask_request(0)
            refuses("FK-SUM-FEW", run.party(0).unmask, request, party=0)
        running.survivors = tuple(p for p in run.members if p not in around[:3])
        assert len(run.party(0).unmask(running.unmask_request(0)).seeds) == 3 * 32
