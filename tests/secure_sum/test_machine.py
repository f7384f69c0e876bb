"""Secure sums whatever happens: any order of messages, losses, replays, forgeries and lies.

The machine is the server and the wire. It counts what each party was told and has revealed, from
the protocol's text alone, and so knows of every message whether it must be taken. Between two
messages a party is nothing but bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from refusals import refused
from sums_in_memory import Reference, Run, draw, flip, refuses, sparse

from fedkern_flwr.secure_sum import CIPHERS, Encoding, PartyState
from fedkern_flwr.wire import sums as wire

Parties = frozenset[int]
ENCODINGS = [Encoding.fixed_point(8.0), Encoding.integers(100), Encoding.circle(32)]
ENCODINGS += [Encoding.fixed_point(8.0, 16)]
who = st.integers(0, 30)
nobody = st.just(set[int]())
few = st.one_of(nobody, nobody, nobody, st.sets(who, max_size=1), st.sets(who, max_size=2))
which = st.integers(0, 2)
masks = st.sampled_from([True, True, True, False])
DISTURBANCES = (
    "a_vector_comes_late_or_again", "a_vector_of_another_sum_is_sent", "an_order_comes_again",
    "values_are_beyond_the_bound", "a_sum_is_repeated_otherwise", "the_server_tells_another_story",
    "a_bit_changes_on_the_way", "a_request_of_a_closed_sum_comes_again",
)  # fmt: skip
wrong = st.sampled_from(DISTURBANCES)


@dataclass
class Story:
    """A sum, as it was told and answered."""

    running: Any
    values: dict[int, np.ndarray]
    made: dict[int, wire.Upload] = field(default_factory=dict)  # as they left their parties
    spent: set[int] = field(default_factory=set)  # parties that have used up its number
    origin: dict[int, int] = field(default_factory=dict)  # party -> sum of the vector that is in
    alive: Parties | None = None
    bound: dict[int, Parties] = field(default_factory=dict)  # the one set a party answers for
    votes: dict[Parties, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    answered: set[int] = field(default_factory=set)  # by the server's books
    own: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # owner -> revealers
    pairs: dict[frozenset[int], set[int]] = field(default_factory=lambda: defaultdict(set))
    backed: dict[tuple[int, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    forged: dict[int, int] = field(default_factory=dict)  # owner -> who forged a share of its seed
    lied: bool = False
    stage: int = 0

    @property
    def cohort(self) -> Any:
        return self.running.cohort

    @property
    def order(self) -> wire.Order:
        order: wire.Order = self.running.order
        return order

    def around(self, party: int) -> Parties:
        return frozenset(self.cohort.neighbours[party])

    def at_odds(self, party: int, origin: int) -> list[int]:
        """Neighbours whose vectors are in and were masked for another sum."""
        return [j for j in self.around(party) if self.origin.get(j, origin) != origin]


class Sums(RuleBasedStateMachine):
    """A run: its sums, one after the other and side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, self.stories = ExitStack(), list[Story]()
        self.past: dict[tuple[int, int], wire.Unmask] = {}  # sum, party -> what it was asked
        self.uploads: dict[int, list[Any]] = defaultdict(list)
        self.secrets: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))

    parties, k = 4, None

    @initialize(
        threshold=st.sampled_from(["least", "default", "most"]),
        cipher=st.sampled_from(CIPHERS),
        pinned=st.booleans(),
    )
    def begin(self, threshold: str, cipher: str, pinned: bool) -> None:
        parties = self.parties
        self.stack.enter_context(sparse(self.k))
        least = {"least": parties // 2 + 1, "default": None, "most": parties}[threshold]
        self.run = Run(parties, threshold=least, cipher=cipher, pinned=pinned)
        self.pinned, self.cohort = pinned, self.run.server.membership.cohorts[0]
        private = {p: self.run.party(p).state.private.hex() for p in self.run.members}
        self.run.join()
        for p, key in private.items():
            self.secrets[p][0] = {key}
            assert key.encode() not in self.run.states[p]
        self.need = self.cohort.share_threshold
        self.complete = self.cohort.degree == parties - 1

    def teardown(self) -> None:
        for story in list(self.stories):
            self.answer(story, ())
            self.recover(story, ())
            self.end(story)
        if hasattr(self, "run"):
            self.start(ENCODINGS[0], 1, -1, True)
            (last,) = self.stories
            for p in self.run.members:  # the next order erases what is left of all before
                self.contribute(last, p)
                assert list(self.run.party(p).state.open) == [(0, last.order.index)]
            self.close(last)
        self.stack.close()

    # -- what must happen, from the text of the protocol

    def must_refuse_answer(self, story: Story, party: int, alive: Parties) -> str:
        """The code with which a party refuses a set of survivors; nothing if it does not."""
        order, living = story.order, story.around(party) & alive
        if party not in story.made:
            return "FK-SUM-CLOSED"
        if not order.self_masks:
            return "FK-SUM-SECRET"
        if story.bound.get(party, alive) != alive:
            return "FK-SUM-CONTRADICTED"
        if len(alive) < self.cohort.threshold:
            return "FK-SUM-FEW"
        if party not in alive or (order.receiver >= 0 and order.receiver not in alive):
            return "FK-SUM-SET"
        if order.receiver not in (-1, party) and len(alive) == 2:
            return "FK-SUM-SINGLE"
        return "FK-SUM-FEW" if len(living) + 1 < self.need else ""

    def votes_needed(self, alive: Parties) -> int:
        full = len(alive) == len(self.cohort.members) and self.complete
        return 0 if full or not self.pinned else self.cohort.threshold

    def must_refuse_survivors(self, story: Story) -> str:
        """The code with which the server refuses to declare those who are there."""
        here, order = set(story.origin), story.order
        if any(story.at_odds(p, origin) for p, origin in story.origin.items()):
            return "FK-SUM-MASKS"
        if len(here) < self.cohort.threshold:
            return "FK-SUM-FEW"
        if not order.self_masks and here != set(self.cohort.members):
            return "FK-SUM-WHOLE"
        if order.self_masks and any(len((story.around(p) | {p}) & here) < self.need for p in here):
            return "FK-SUM-FEW"
        if order.receiver >= 0 and order.receiver not in here:
            return "FK-SUM-RECEIVER-GONE"
        single = order.receiver >= 0 and len(here) == 2 < len(self.cohort.members)
        return "FK-SUM-SINGLE" if single else ""

    def complete_at(self, story: Story) -> bool:
        """Whether the server has all that the total needs."""
        if story.alive is None or not story.order.self_masks:
            return story.alive is not None
        enough = all(len(self.holders(story, p)) >= self.need for p in story.alive)
        return enough and all(
            p in story.answered or len(story.backed[p, j]) >= self.need
            for p in story.alive
            for j in story.around(p) - story.alive
        )

    def holders(self, story: Story, owner: int) -> list[int]:
        return sorted((story.around(owner) | {owner}) & story.answered)

    def check_secrecy(self, story: Story) -> None:
        """No party has revealed both kinds of seeds of another, and no vector is bare."""
        for owner, revealers in story.own.items():
            for j in revealers:
                assert j not in story.pairs[frozenset((owner, j))] or owner == j
        if story.lied and not self.pinned:
            return
        for p in story.made:
            known = [
                bool(story.pairs[frozenset((p, j))])
                or max(len(story.backed[p, j]), len(story.backed[j, p])) >= self.need
                for j in story.around(p)
            ]
            assert not (all(known) and len(story.own[p]) >= self.need)

    # -- what parties and the server do

    def start(self, encoding: Encoding, length: int, receiver: int, masks: bool) -> None:
        name = f"{encoding} for {receiver} {masks}"
        running = self.run.order(length, encoding, name=name, receiver=receiver, self_masks=masks)
        rng = np.random.default_rng(running.order.index)
        values = {p: draw(encoding, length, rng) for p in self.run.members}
        assert all(one.order.index < running.order.index for one in self.stories)
        self.stories.append(Story(running, values))

    def contribute(self, story: Story, p: int) -> None:
        """A party masks; nothing that it remembers leads back to a sum that is closed."""
        order, before = story.order, self.run.party(p).state
        numbers = [k for k in self.secrets[p] if k >= order.index]
        if numbers:  # it has gone on: numbers only grow
            self.refuses_number(story, p)
            return
        story.made[p] = self.run.contribute(story.running, p, story.values[p])
        self.uploads[p].append((order, story.made[p]))
        story.spent.add(p)
        self.note_secrets(p, order, before)
        assert sum(part.size for part in story.made[p].masked) == order.length
        if order.length > 8:
            bare = Reference.ring(story.running.encoding, self.parties, story.values[p][:9])
            masked = np.concatenate(story.made[p].masked)[:9]
            assert (masked != np.array(bare, masked.dtype)).sum() > 6

    def refuses_number(self, story: Story, p: int) -> None:
        values = story.values[p]
        refuses("FK-SUM-NUMBER", self.run.contribute, story.running, p, values, party=p)

    def note_secrets(self, p: int, order: wire.Order, before: PartyState) -> None:
        state, mine = self.run.party(p).state, self.secrets[p]
        mine[0] |= {root.hex() for roots in before.roots.values() for root in roots.values()}
        if (0, order.index) in state.open:
            one = state.open[0, order.index]
            keys = [key.hex() for both in one.keys.values() for key in both]
            mine[order.index] = {*keys, *filter(None, (one.own_share.hex(), one.pad.hex()))}
        mine[order.index] |= set()
        packed = self.run.states[p].decode()
        for number, secrets in mine.items():
            if number < order.open_from:
                assert not any(secret in packed for secret in secrets)
        assert all(number >= order.open_from for _, number in state.open)

    def send(self, story: Story, p: int, upload: wire.Upload, origin: int) -> None:
        """The server takes a vector, or says why not."""
        odds = story.at_odds(p, origin)
        code = ""
        if p in story.origin:
            code = "FK-SUM-NOT-ASKED"
        elif story.alive is not None:
            code = "FK-SUM-LATE"
        elif 2 * len(odds) > self.cohort.degree + 1:
            code = "FK-SUM-MASKS"
        if code:
            refuses(code, self.run.take, p, upload, party=p)
            return
        self.run.take(p, upload)
        story.origin[p] = origin
        assert set(story.running.uploaded) == set(story.origin)

    def declare(self, story: Story) -> bool:
        """Whether the survivors are declared, as they must be or must not."""
        if story.alive is not None:
            return True
        code = self.must_refuse_survivors(story)
        if code:
            with refused(code) as caught:
                self.run.server.ballot_sections([story.running])
            if code == "FK-SUM-MASKS":  # those that are at odds with most, and they are named
                odds = {p: len(story.at_odds(p, o)) for p, o in story.origin.items()}
                named = story.running.suspects
                assert named == sorted(p for p in odds if odds[p] == max(odds.values()))
                assert caught.value.party == f"partition {named[0]}"
            assert not story.running.survivors
            return False
        self.run.server.ballot_sections([story.running])
        story.alive = frozenset(story.origin)
        for p, signature in story.votes[story.alive].items():  # collected before
            self.run.take(p, wire.Vote(cohort=0, index=story.order.index, signature=signature))
        assert set(story.running.survivors) == story.alive
        return True

    def ask_vote(self, story: Story, p: int, alive: Parties) -> None:
        party = self.run.party(p)
        pack = self.cohort.pack(alive)
        ballot = wire.Ballot(cohort=0, index=story.order.index, alive=pack)
        code = self.must_refuse_answer(story, p, alive)
        if code:
            refuses(code, party.vote, ballot, party=p)
            return
        vote = party.vote(ballot)
        self.run.keep(party)
        story.bound[p] = alive
        story.votes[alive][p] = vote.signature
        if alive == story.alive:
            self.run.take(p, vote)

    def request(self, story: Story, p: int, alive: Parties) -> wire.Unmask:
        """What a server may tell, with all votes for these survivors that it could collect."""
        return self.run.told(story.running, p, alive, story.votes[alive])

    def ask(self, story: Story, p: int, alive: Parties) -> wire.UnmaskReply | None:
        """A party is told survivors; return its answer if it must give one."""
        party, request = self.run.party(p), self.request(story, p, alive)
        code = self.must_refuse_answer(story, p, alive)
        if not code and len(story.votes[alive]) < self.votes_needed(alive):
            code = "FK-SUM-VOTES"
        if not code and not story.around(p) & alive <= set(story.origin):
            code = "FK-SUM-CHANGED"
        if code:
            before = self.run.states[p]
            refuses(code, party.unmask, request, party=p)
            assert party.state.pack() == before
            return None
        reply = party.unmask(request)
        self.run.keep(party)
        self.past[story.order.index, p] = request
        story.bound[p] = alive
        living, dead = story.around(p) & alive, story.around(p) - alive
        assert len(reply.shares) == 33 * (1 + len(living))
        assert len(reply.seeds) == 32 * len(dead)
        for j in living | {p}:
            story.own[j].add(p)
        for j in dead:
            story.pairs[frozenset((p, j))].add(p)
        self.check_secrecy(story)
        return reply

    def answer(self, story: Story, silent: Iterable[int], forger: int | None = None) -> None:
        """The server asks those whom it declared; the silent do not answer."""
        if not self.declare(story) or not story.order.self_masks:
            return
        alive = story.alive or frozenset()
        answering = sorted(alive - set(silent))
        if self.votes_needed(alive):
            for p in answering:
                self.ask_vote(story, p, alive)
        votes = len(story.votes[alive])
        if votes < self.votes_needed(alive):
            refuses("FK-SUM-SILENT", self.run.server.unmask_sections, [story.running])
            return
        requests = self.run.server.unmask_sections([story.running])
        assert set(requests) == alive
        for p in answering:
            told, wanted = requests[p][0], self.request(story, p, alive)
            assert replace(told, voters=b"", votes=b"") == replace(wanted, voters=b"", votes=b"")
            reply = self.ask(story, p, alive)
            if reply is None:
                continue
            if p in story.answered:
                refuses("FK-SUM-NOT-ASKED", self.run.take, p, reply, party=p)
                continue
            if p == forger and p not in story.forged.values():
                owners = [p, *(j for j in self.cohort.neighbours[p] if j in alive)]
                place = next((k for k, j in enumerate(owners) if j not in story.forged), None)
                if place is not None:
                    story.forged[owners[place]] = p
                    reply = replace(reply, shares=flip(reply.shares, 33 * place))
            self.run.take(p, reply)
            story.answered.add(p)

    def recover(self, story: Story, silent: Iterable[int]) -> None:
        """The server asks for what replaces the silent, and each party tells no more than that."""
        running = story.running
        if story.alive is None or not story.order.self_masks or running.votes_missing:
            return
        assert running.complete == self.complete_at(story)
        requests = self.run.server.recover_sections([running])
        for p, (request,) in requests.items():
            if p in set(silent) or request.phase != wire.Recover.phase:
                continue
            party = self.run.party(p)
            reply = party.recover(request)
            asked = self.cohort.unpack(request.silent)
            owners = [i for i in self.cohort.neighbours[p] if i in asked]
            pairs = [(i, j) for i in owners for j in self.cohort.neighbours[i]]
            pairs = [(i, j) for i, j in pairs if j not in story.alive]
            assert asked <= story.alive - story.answered
            assert len(reply.shares) == 33 * len(pairs)
            for pair in pairs:
                story.backed[pair].add(p)
            self.check_secrecy(story)
            self.run.take(p, reply)

    def end(self, story: Story) -> None:
        """The total is exact if it can be had, else nothing is; then the sum is closed."""
        running, receiver = story.running, story.order.receiver
        alive = story.alive or frozenset()
        code, forgers = self.must_refuse_total(story)
        if code:
            with refused(code):
                (running.total if receiver < 0 else running.delivery)()
        else:
            total = self.run.result(running)
            vectors = [story.values[p] for p in sorted(alive)]
            parties = len(self.cohort.members)
            expected = Reference.total(running.encoding, parties, vectors)
            np.testing.assert_array_equal(total, expected)
            assert sorted(running.forgers) == sorted(forgers)
        self.close(story)

    def must_refuse_total(self, story: Story) -> tuple[str, list[int]]:
        """The code with which a total is refused, and the forgers that are found."""
        if not self.complete_at(story):
            return "FK-SUM-SILENT", []
        found: list[int] = []
        for owner in sorted(story.alive or ()) if story.order.self_masks else ():
            points, forger = self.holders(story, owner), story.forged.get(owner)
            if forger in points[: self.need]:
                if len(points) == self.need:
                    return "FK-SUM-SEED", found
                found += [] if forger in found else [forger]
        return "", found

    def close(self, story: Story) -> None:
        running = story.running
        self.run.server.close(running)
        for release in (running.total, running.delivery):
            refused_total = release == running.total and story.order.receiver >= 0
            refuses("FK-SUM-RECEIVER" if refused_total else "FK-SUM-CLOSED", release)
        self.stories.remove(story)

    # -- the rules

    def those(self, people: Iterable[int]) -> set[int]:
        return {p % self.parties for p in people}

    @rule(
        at=which,
        terms=st.tuples(st.sampled_from(ENCODINGS), st.booleans(), st.none() | who, masks),
        some=few, others=few, forger=st.none() | who, first=st.tuples(wrong, who, who),
        then=st.tuples(wrong, who, who),
    )  # fmt: skip
    def a_sum_goes_on(
        self, at: int, terms: Any, some: Any, others: Any, forger: Any, first: Any, then: Any
    ) -> None:
        """By a stage: some do not take part in it; others mask and are late.

        Before it and after it something is wrong.

        A long vector is one with which backups travel, where there may be any.
        """
        if at >= len(self.stories):
            encoding, long, receiver, self_masks = terms
            size = self.cohort.backup_bytes // encoding.dtype.itemsize + 1 if long else 3
            owner = -1 if receiver is None else receiver % self.parties
            self.start(encoding, size, owner, self_masks)
        story = self.stories[min(at, len(self.stories) - 1)]
        self.disturb(story, *first)
        story.stage += 1
        if story.stage == 1:
            for q in set(range(self.parties)) - self.those(some) - story.spent:
                self.contribute(story, q)
                if q in story.made and q not in self.those(others):
                    self.send(story, q, story.made[q], story.order.index)
        elif story.stage == 2:
            liar = None if forger is None else forger % self.parties
            self.answer(story, self.those(some), liar)
        elif story.stage == 3:
            self.recover(story, self.those(some))
        else:
            self.end(story)
        self.disturb(self.stories[0] if self.stories else story, *then)

    def disturb(self, story: Story, wrong: str, p: int, other: int) -> None:
        if story in self.stories:
            getattr(self, wrong)(story, p % self.parties, other)

    def a_vector_comes_late_or_again(self, story: Story, p: int, _: int) -> None:
        if p in story.made:
            self.send(story, p, story.made[p], story.order.index)

    def a_vector_of_another_sum_is_sent(self, story: Story, p: int, _: int) -> None:
        """Of an earlier one or of one that is open, under the number of this one."""
        order = story.order
        for old, upload in reversed(self.uploads[p]):
            names = ("bits", "length", "self_masks")
            fits = all(getattr(old, name) == getattr(order, name) for name in names)
            if fits and old.index != order.index:
                self.send(story, p, replace(upload, index=order.index), old.index)
                return

    def an_order_comes_again(self, story: Story, p: int, _: int) -> None:
        if p in story.spent:
            self.refuses_number(story, p)

    def values_are_beyond_the_bound(self, story: Story, p: int, _: int) -> None:
        """Nothing leaves, and the number is used up: its keys are gone."""
        order = story.order
        if story.running.encoding.kind == "circle" or max(self.secrets[p]) >= order.index:
            return
        party, before = self.run.party(p), PartyState.unpack(self.run.states[p])
        values = story.values[p].copy()
        values[-1] = order.bound + 1
        refuses("FK-SUM-BOUND", party.contribute, order, values, party=p)
        self.run.keep(party)
        story.spent.add(p)
        self.note_secrets(p, order, before)

    def a_sum_is_repeated_otherwise(self, story: Story, p: int, other: int) -> None:
        """Under the name of a sum of before: another receiver or another ring is refused."""
        if p not in story.made:
            return
        order, encoding = story.order, story.running.encoding
        owner = [-1, other % self.parties][other % 2]
        bits = (16, 32, 64)[other % 3]
        ring, name = replace(encoding, bits=bits), f"{order.name}#again"
        running = self.run.order(1, ring, name=name, receiver=owner, self_masks=order.self_masks)
        if (owner, bits) != (order.receiver, order.bits):
            refuses("FK-ORDER-PARTIES", self.run.contribute, running, p, [0], party=p)
        self.run.server.close(running)

    def the_server_tells_another_story(self, story: Story, p: int, other: int) -> None:
        """To some, of survivors that it has not declared; where it must it asks for votes."""
        alive = frozenset(self.run.members) - {other % self.parties}
        story.lied = story.lied or alive != story.alive
        for told in range(p, min(p + 4, self.parties)):
            if self.votes_needed(alive):
                self.ask_vote(story, told, alive)
            self.ask(story, told, alive)

    def a_bit_changes_on_the_way(self, story: Story, p: int, other: int) -> None:
        if p in story.answered and story.alive is not None:
            request, party = self.request(story, p, story.alive), self.run.party(p)
            changed = flip(request.shares, other * len(request.shares) // 31)
            with refused("FK-SUM-CHANGED"):
                party.unmask(replace(request, shares=changed))
            assert party.state.pack() == self.run.states[p]

    def a_request_of_a_closed_sum_comes_again(self, _: Story, p: int, __: int) -> None:
        known = self.run.party(p).state.open
        for (number, party), request in self.past.items():
            if party == p and (0, number) not in known:
                refuses("FK-SUM-CLOSED", self.run.party(p).unmask, request, party=p)


@pytest.mark.promise("sums-one-vote", "sums-one-answer", "sums-threshold")
@pytest.mark.promise("sums-private-key", "sums-forward-only", "sums-exact")
@pytest.mark.parametrize(
    ("parties", "k"),
    [(3, None), (5, None), (9, None), (8, 4), pytest.param(31, None, marks=pytest.mark.long)],
)
def test_sums_are_exact_or_nothing_and_no_party_says_too_much(parties: int, k: int | None) -> None:
    machine = type("Sums", (Sums,), {"parties": parties, "k": k})
    steps = settings(
        max_examples=10 if parties < 30 else 3,
        stateful_step_count=16,
        phases=[Phase.generate],  # the failing steps are told as they are, within seconds
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=steps)
