"""Votes for survivors: one per party and sum, and enough of them before anybody answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sums_in_memory import Run, refused

from fedkern_flwr.secure_sum import graph, party_rules
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum.votes import Subject, sign_vote, votes_needed
from fedkern_flwr.wire.sums import Ballot, Unmask, Vote

N, T = 6, 4


def uploaded(parties: int = N, dead: tuple[int, ...] = (), **options: Any) -> tuple[Any, Any]:
    options = {"pinned": True, "threshold": T if parties == N else None} | options
    run = Run(parties, **options)
    return run, run.filled(dead=dead, backups=True)


def ballot(run: Any, running: Any, *dead: int) -> Ballot:
    alive = running.cohort.pack(set(run.members).difference(dead))
    return Ballot(cohort=0, index=running.order.index, alive=alive)


# -- honest runs


@pytest.mark.parametrize(
    ("parties", "dead", "asked"),
    [(6, (), 0), (6, (5,), 5), (31, (), 31), (31, (4, 9), 29)],
)
def test_sums_are_exact_and_ask_for_votes_only_where_needed(
    parties: int, dead: tuple[int, ...], asked: int
) -> None:
    run, running = uploaded(parties, dead)
    assert len(run.server.ballot_sections([running])) == asked
    run.vote(running)
    run.unmask(running)
    assert run.result(running).tolist() == [sum(set(range(parties)) - set(dead))]


def test_without_pinned_identities_nobody_votes() -> None:
    run, running = uploaded(dead=(5,), pinned=False)
    assert run.server.ballot_sections([running]) == {}
    run.unmask(running)
    assert run.result(running).tolist() == [10]


def test_some_may_miss_the_vote_and_others_the_unmasking() -> None:
    run, running = uploaded(dead=(5,))
    run.vote(running, [0, 1, 2, 3])
    assert not running.votes_missing
    run.unmask(running, [4, 1, 2, 3])  # 4 has not voted, 0 falls silent
    run.recover(running, [4, 1, 2, 3])
    assert run.result(running).tolist() == [10]


def test_too_few_votes_abort_the_sum() -> None:
    run, running = uploaded(dead=(5,))
    run.vote(running, [0, 1, 2])
    text = "3 of 5 survivors of gradient voted, 4 must"
    refused(run.unmask, running, text=text, remedy="repeat it with new values")


# -- one vote


def test_a_party_votes_once() -> None:
    run, running = uploaded()
    party = run.party(0)
    first = party.vote(ballot(run, running, 5))
    run.keep(party)
    party = run.party(0)  # it remembers nothing but bytes
    assert party.vote(ballot(run, running, 5)) == first
    text = "a second set of survivors for the same sum"
    for dead in ((), (4,), (4, 5)):
        refused(party.vote, ballot(run, running, *dead), text=text, party="partition 0")
    refused(party.unmask, run.unmask_request(running, 0), text=text, party="partition 0")


def test_an_answer_for_all_is_a_vote() -> None:
    run, running = uploaded()
    party = run.party(0)
    party.unmask(run.unmask_request(running, 0))
    text = "a second set of survivors for the same sum"
    refused(party.vote, ballot(run, running, 5), text=text, party="partition 0")


@pytest.mark.parametrize(
    ("dead", "text"),
    [
        ((3, 4, 5), "3 survivors are fewer than the threshold 4"),
        ((0,), "the survivors leave out this party or the receiver"),
    ],
)
def test_a_party_does_not_vote_for_just_anything(dead: tuple[int, ...], text: str) -> None:
    run, running = uploaded()
    refused(run.party(0).vote, ballot(run, running, *dead), text=text, party="partition 0")


def test_no_recovery_before_an_answer() -> None:
    """A party that has only voted has seen no certificate."""
    run, running = uploaded(dead=(5,))
    run.vote(running)
    run.unmask(running, [0, 1, 2, 3])
    (request,) = run.server.recover_sections([running])[0]
    assert run.party(0).recover(request).shares
    forgetful = run.party(0)
    forgetful.state.open[0, 1].answered = False
    text = "a second set of survivors for the same sum"
    refused(forgetful.recover, request, text=text, party="partition 0")


# -- certificates that are none


def sign(run: Any, running: Any, signer: int, **change: Any) -> bytes:
    alive = ballot(run, running, 5).alive
    subject = Subject("run", running.cohort, running.order.index, alive)
    return sign_vote(run.identities[signer], subject._replace(**change))


def votes_of(*signers: int, **change: Any) -> Callable[[Any, Any], tuple[list[int], bytes]]:
    return lambda run, running: (
        list(signers),
        b"".join(sign(run, running, p, **change) for p in signers),
    )


def changed_cohort(**change: Any) -> Callable[[Any, Any], tuple[list[int], bytes]]:
    def made(run: Any, running: Any) -> tuple[list[int], bytes]:
        other = replace(running.cohort, **change)
        return votes_of(1, 2, 3, 4, cohort=other)(run, running)

    return made


DAMAGED = "the votes for the survivors are damaged"
NONE = "0 votes for these survivors, 4 are needed"
THREE = "3 votes for these survivors, 4 are needed"
FALSE: dict[str, tuple[Callable[[Any, Any], tuple[list[int], bytes]], str]] = {
    "none": (lambda *_: ([], b""), NONE),
    "too few": (votes_of(1, 2, 3), THREE),
    "a dead party's": (votes_of(1, 2, 3, 5), f"{THREE}, those of partition 5 are not valid"),
    "of another run": (votes_of(1, 2, 3, 4, session="run2"), NONE),
    "of another sum": (votes_of(1, 2, 3, 4, number=2), NONE),
    "of another cohort": (changed_cohort(number=1), NONE),
    "of another roster": (changed_cohort(digest=bytes(32)), NONE),
    "for other survivors": (votes_of(1, 2, 3, 4, alive=b"\x2f"), NONE),
    "one party's, four times": (
        lambda run, running: ([1, 2, 3, 4], 4 * sign(run, running, 1)),
        "1 votes for these survivors, 4 are needed, those of partition 2, partition 3",
    ),
    "a signature cut short": (
        lambda run, running: ([1, 2, 3, 4], votes_of(1, 2, 3, 4)(run, running)[1][:-1]),
        f"{THREE}, those of partition 4 are not valid",
    ),
    "more signatures than voters": (
        lambda run, running: ([1, 2, 3], votes_of(1, 2, 3, 4)(run, running)[1]),
        DAMAGED,
    ),
}


@pytest.mark.parametrize("kind", FALSE)
def test_false_certificates_are_refused(kind: str) -> None:
    """A true one is taken afterwards."""
    made, text = FALSE[kind]
    run, running = uploaded(dead=(5,))
    run.vote(running)
    request: Unmask = run.unmask_request(running, 0)
    for certificate in (made, votes_of(0, 2, 3, 4)):
        signers, signatures = certificate(run, running)
        told = replace(request, voters=running.cohort.pack(signers), votes=signatures)
        if certificate is made:
            refused(run.party(0).unmask, told, text=text, party="partition 0")
        else:
            assert run.party(0).unmask(told).shares


def test_one_false_vote_among_enough_does_no_harm() -> None:
    run, running = uploaded(dead=(5,))
    run.vote(running)
    running._votes[2] = bytes(64)
    run.unmask(running)
    assert run.result(running).tolist() == [10]


def test_what_the_server_refuses() -> None:
    run, running = uploaded(dead=(5,))
    run.server.ballot_sections([running])
    vote = Vote(cohort=0, index=1, signature=bytes(64))
    refused(run.take, 5, vote, text="it was not asked to vote", party="partition 5")
    short = replace(vote, signature=b"")
    refused(run.take, 1, short, text="its vote has the wrong size", party="partition 1")


def test_a_party_without_an_identity() -> None:
    run, running = uploaded(dead=(5,))
    party = run.party(0)
    party.identity = None
    text = "it has no identity key to vote with"
    refused(party.vote, ballot(run, running, 5), text=text, party="partition 0")
    fresh = Run(3, pinned=True)
    party = fresh.party(0)
    party.identity = None
    text = "it pins the identities of others and has none, so it cannot vote"
    refused(party.join, fresh.server.roster, text=text, party="partition 0")


# -- the numbers


@pytest.mark.parametrize("parties", [2, 3, 5, 10, 30, 31, 50, 100, 200])
def test_enough_votes_for_the_bound_that_is_stated(parties: int) -> None:
    """Counted over all splits of the honest parties, as in the docstring of the module."""
    cohort = Run(parties).server.membership.cohorts[0]
    t, s = cohort.threshold, cohort.share_threshold
    bound = graph.fewest_colluders(parties, t)
    assert votes_needed(cohort, parties - 1) == t
    assert votes_needed(cohort, parties) == (0 if parties <= 30 else t)
    assert bound >= 1
    for c in range(bound):
        for one in range(parties - c + 1):
            other = parties - c - one
            assert not (one + c >= t and other + c >= t)  # two certified sets
            if parties <= 30:  # the full set, which needs no votes, and a certified one
                assert not (one + c >= s and other + c >= t)
        assert s - 1 - c >= 1  # an honest living neighbour


# -- backups


@pytest.mark.parametrize("unwilling", [(), (0,), (5,), (1, 2)])
def test_recovery_only_by_those_who_allow_it(unwilling: tuple[int, ...]) -> None:
    """Of 8 parties 7 is dead and 5 falls silent; t = 5."""
    run = Run(8, threshold=5)
    running = run.order(1, backups=True)
    for p in range(7):
        run.clients["allow_recovery"] = p not in unwilling
        run.upload(running, p, [p])
        assert bool(run.transcript(running).uploads[p].backups) == (p not in unwilling)
    answering = [p for p in range(7) if p != 5]
    run.unmask(running, answering)
    requests = run.server.recover_sections([running])
    asked = {p for p in requests if p != 5}
    assert not asked & set(unwilling)
    run.clients["allow_recovery"] = True
    run.recover(running, answering)
    # 5's own backups, of which its 6 helpers hold shares: 5 are enough
    assert running.complete == (5 not in unwilling and len(unwilling) < 2)


def test_a_party_that_allows_no_recovery_refuses_to_help() -> None:
    run = Run(8, threshold=5)
    running = run.filled(dead=[7], backups=True)
    run.unmask(running, [p for p in range(7) if p != 5])
    request = run.server.recover_sections([running])[0][0]
    run.clients["allow_recovery"] = False
    text = "it does not help to recover seeds of others"
    refused(run.party(0).recover, request, text=text, party="partition 0")


# -- sums of a whole cohort, and numbers


@pytest.mark.parametrize("receiver", [None, 0])
def test_one_party_that_was_shown_another_cipher_is_noticed(receiver: int | None) -> None:
    """Its masks do not cancel; without digests the sum would be rubbish within its bound."""
    run = Run(4)
    running = run.order(1, self_masks=False, receiver=receiver)
    for p in run.members:
        if p == 2:
            party = run.party(2)
            party.join(replace(run.server.roster, cipher="chacha20"))
            run.take(2, party.contribute(running.order, np.array([2])))
        else:
            run.upload(running, p, [p])
    text = "its masks in gradient do not fit those of 3 others"
    refused(run.server.unmask_sections, [running], text=text, party="partition 2")
    assert len(run.transcript(running).uploads[0].commitments) == 3 * 16


def test_a_leap_costs_a_step_per_sum_and_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert party_rules._LONGEST_LEAP <= 1024  # 30 ms with 29 neighbours
    steps = []
    step = party_module.next_root
    monkeypatch.setattr(party_module, "next_root", lambda root: steps.append(0) or step(root))
    run = Run(3)
    running = run.order(1)
    run.join()
    run.party(0).accept(replace(running.order, index=party_rules._LONGEST_LEAP))
    assert len(steps) == 2 * party_rules._LONGEST_LEAP
