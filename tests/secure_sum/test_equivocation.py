"""A server that tells different parties different survivors, with and without colluders.

Without pinned identities it opens the vector of a victim with few colluders or none: these are the
negative controls. With them it needs as many as :mod:`fedkern_flwr.secure_sum.votes` states.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from coalition import Coalition
from sums_in_memory import Run

from fedkern_flwr.errors import SumError
from fedkern_flwr.secure_sum import add_streams, graph, votes
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum.shamir import SHARE_BYTES, cut
from fedkern_flwr.wire.sums import Ballot, Recover, Unmask

VALUE = 1 << 20
VICTIM = 0
Shares = dict[int, bytes]  # point -> share


class Liar:
    """The server after all uploads, the states of its colluders, and what it finds out."""

    def __init__(self, run: Any, running: Any, colluders: Iterable[int]) -> None:
        self.run, self.running, self.cohort = run, running, running.cohort
        self.colluders, self.around = set(colluders), running.cohort.neighbours[VICTIM]
        self.known = known = Coalition(run, running, self.colluders)
        self.own: Shares = known.shares_of_self_seed(VICTIM)
        self.backed: dict[tuple[int, int], Shares] = {  # (owner, other) -> of their seed
            pair: known.backup_shares(*pair)
            for j in self.around
            for pair in ((VICTIM, j), (j, VICTIM))
            if running.backups
        }
        self.seeds: dict[int, bytes] = {}  # of the victim and another
        for c in self.colluders.intersection(self.around):
            self.seeds[c] = known.open[c].keys[VICTIM][0]
        self.votes: dict[bytes, dict[int, bytes]] = {}
        self.refused: list[str] = []

    # -- what it does

    def all_but(self, dead: Collection[int]) -> bytes:
        bits: bytes = self.cohort.pack(set(self.cohort.members).difference(dead))
        return bits

    def ask_vote(self, party: int, alive: bytes) -> None:
        ballot = Ballot(cohort=0, index=self.running.order.index, alive=alive)
        answer = self._ask(party, "vote", ballot)
        if answer is not None:
            self.votes.setdefault(alive, {})[party] = answer.signature

    def colluders_vote(self, alive: bytes) -> None:
        """Colluders vote as often as they like."""
        for c in self.colluders if self.run.identities else ():
            subject = votes.Subject("run", self.cohort, self.running.order.index, alive)
            signature = votes.sign_vote(self.run.identities[c], subject)
            self.votes.setdefault(alive, {})[c] = signature

    def tell(self, party: int, alive: bytes) -> None:
        """Ask a party to unmask, and keep what it reveals of the victim."""
        survivors = self.cohort.unpack(alive)
        others = self.cohort.neighbours[party]
        living = [j for j in others if j in survivors]
        dead = [j for j in others if j not in survivors]
        signed = sorted(self.votes.get(alive, {}).items())
        answer = self._ask(
            party,
            "unmask",
            Unmask(
                cohort=0,
                index=self.running.order.index,
                alive=alive,
                dead=self.cohort.pack(set(self.cohort.members) - survivors),
                shares=b"".join(self.running.enclosed.share(j, party) for j in living),
                voters=self.cohort.pack([p for p, _ in signed]) if signed else b"",
                votes=b"".join(signature for _, signature in signed),
            ),
        )
        if answer is None:
            return
        shares = dict(zip([party, *living], cut(answer.shares, SHARE_BYTES), strict=True))
        if VICTIM in shares:
            self.own[self.cohort.point(party)] = shares[VICTIM]
        for j, seed in zip(dead, cut(answer.seeds, 32), strict=True):
            if VICTIM in (party, j):
                self.seeds[j if party == VICTIM else party] = seed

    def recover(self, party: int, silent: Iterable[int], alive: bytes) -> None:
        survivors = self.cohort.unpack(alive)
        sources = [j for j in self.cohort.neighbours[party] if j in set(silent)]
        if not sources:
            return
        answer = self._ask(
            party,
            "recover",
            Recover(
                cohort=0,
                index=self.running.order.index,
                alive=alive,
                silent=self.cohort.pack(sources),
                backups=self.running.enclosed.backed_up(sources, party),
            ),
        )
        if answer is None:
            return
        pairs = [(i, j) for i in sources for j in self.cohort.neighbours[i] if j not in survivors]
        for pair, share in zip(pairs, cut(answer.shares, SHARE_BYTES), strict=True):
            self.backed.setdefault(pair, {})[self.cohort.point(party)] = share

    # -- what it has then

    def opens(self) -> bool:
        """Whether the victim's vector is bare."""
        left = np.concatenate(self.run.transcript(self.running).uploads[VICTIM].masked)
        committed = cut(self.run.transcript(self.running).uploads[VICTIM].commitments, 16)
        for other, digest in zip(self.around, committed[1:], strict=True):
            if other not in self.seeds:
                for pair in ((VICTIM, other), (other, VICTIM)):
                    seed = self.known.reconstruct(self.backed.get(pair, {}), digest)
                    if seed is not None:
                        self.seeds[other] = seed
        streams = [(seed, other > VICTIM) for other, seed in self.seeds.items()]
        own = self.known.reconstruct(self.own, committed[0])
        if own is not None:
            streams.append((own, True))
        add_streams(left, streams, cipher=self.running.cipher)
        return bool((left == VALUE).all())

    # -- pieces

    def _ask(self, party: int, what: str, request: Any) -> Any:
        asked = self.run.party(party)
        try:
            answer = getattr(asked, what)(request)
        except SumError as error:
            self.refused.append(error.problem)
            return None
        self.run.keep(asked)
        return answer


# -- the stages


@lru_cache
def stage(parties: int) -> tuple[Any, Any, dict[int, bytes]]:
    """All have contributed; what they remember then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_module, "check_key", lambda *_: None)  # 10 000 signatures for N = 100
        run = Run(parties, pinned=True)
        cohort = run.server.membership.cohorts[0]
        running = run.order(2, backups=cohort.degree > cohort.share_threshold)
        for p in run.members:
            run.upload(running, p, [VALUE, VALUE])
    return run, running, dict(run.states)


def near_first(cohort: Any) -> list[int]:
    """The victim's neighbours; those first who share most neighbours with it."""
    around = set(cohort.neighbours[VICTIM])
    return sorted(around, key=lambda j: (-len(around & set(cohort.neighbours[j])), j))


def begin(parties: int, pinned: bool, colluders: Iterable[int]) -> Liar:
    """All have contributed; from now on parties look at votes, or have no keys to check them."""
    run, running, states = stage(parties)
    run.states = dict(states)
    keys = {p: key.public_key().public_bytes_raw() for p, key in run.identities.items()}
    run.clients["trusted"] = keys if pinned else None
    return Liar(run, running, colluders)


# -- a story for each neighbour: what there was before votes


Stories = dict[int, set[int]]  # party -> whom it is told to be dead


def stories(cohort: Any, colluders: set[int], backups: bool) -> Stories | None:
    """Plan how a lying server opens the victim's vector; None if it cannot.

    Some neighbours hear that the victim lives and reveal shares of its self seed, the others that
    it is dead and reveal their seeds with it. Of the first, the victim hears that a few are dead,
    and reveals its seeds with them; the seeds of what is left are recovered from its own backups,
    of which each hears that some of the others are dead.
    """
    honest = [j for j in near_first(cohort) if j not in colluders]
    s, most = cohort.share_threshold, len(cohort.members) - cohort.threshold
    near = cohort.degree - s + 1  # dead neighbours that a party puts up with
    helpers = len(colluders & set(cohort.neighbours[VICTIM]))
    for count in range(len(honest), -1, -1):
        living, told_dead = honest[:count], honest[count:]
        gone, left = living[: min(near, most)], living[min(near, most) :]
        need = dict.fromkeys(left, s - helpers)
        if count + 1 + helpers < s or (left and not backups):
            continue
        plan: Stories = {VICTIM: set(gone)} | {j: {VICTIM} for j in told_dead}
        for g in living:
            around, dead = set(cohort.neighbours[g]), set[int]()
            for j in sorted(need, key=lambda j: -need[j]):
                fits = len(dead) < most and (j not in around or len(dead & around) < near)
                if j != g and need[j] > 0 and fits:
                    dead.add(j)
                    need[j] -= 1
            plan[g] = dead
        if all(n <= 0 for n in need.values()):
            return plan
    return None


def tell_stories(liar: Liar, plan: Stories) -> None:
    for party, dead in plan.items():
        alive = liar.all_but(dead)
        liar.tell(party, alive)
        if liar.running.backups and party != VICTIM and VICTIM not in dead:
            liar.recover(party, [VICTIM], alive)


def fewest_for_stories(cohort: Any, backups: bool) -> tuple[set[int], Stories]:
    candidates = near_first(cohort)[::-1]
    for count in range(len(candidates)):
        plan = stories(cohort, set(candidates[:count]), backups)
        if plan is not None:
            return set(candidates[:count]), plan
    raise AssertionError("no plan")


#: Parties -> colluders that sufficed before parties voted.
BEFORE = {5: 2, 10: 2, 30: 4, 31: 0, 50: 0, 100: 0}


@pytest.mark.parametrize("parties", BEFORE)
def test_without_pinned_identities_a_lying_server_needs_few(parties: int) -> None:
    """Negative control: what the votes are for."""
    _, running, _ = stage(parties)
    colluders, plan = fewest_for_stories(running.cohort, running.backups)
    assert (
        len(colluders)
        == BEFORE[parties]
        < graph.fewest_colluders(parties, running.cohort.threshold)
    )
    liar = begin(parties, False, colluders)
    tell_stories(liar, plan)
    assert not liar.refused
    assert liar.opens()


@pytest.mark.parametrize("parties", BEFORE)
def test_with_pinned_identities_no_story_is_answered(parties: int) -> None:
    _, running, _ = stage(parties)
    bound = graph.fewest_colluders(parties, running.cohort.threshold)
    colluders = set(near_first(running.cohort)[::-1][: bound - 1])
    plan = stories(running.cohort, colluders, running.backups)
    assert plan is not None  # it would have been enough
    liar = begin(parties, True, colluders)
    for dead in plan.values():
        liar.colluders_vote(liar.all_but(dead))
    tell_stories(liar, plan)
    assert any("are needed" in problem for problem in liar.refused)
    assert not liar.opens()


# -- two stories, for one of which enough vote


def split(liar: Liar, believers: list[int]) -> None:
    """``believers`` hear that all live; the others vote for the set without the victim."""
    everybody, others = liar.all_but([]), liar.all_but([VICTIM])
    rest = [p for p in liar.cohort.members if p not in {*believers, *liar.colluders}]
    for p in believers if liar.cohort.degree < len(liar.cohort.members) - 1 else ():
        liar.ask_vote(p, everybody)
    liar.colluders_vote(everybody)
    for p in believers:
        liar.tell(p, everybody)
    for p in rest:
        liar.ask_vote(p, others)
    liar.colluders_vote(others)
    for p in rest:
        liar.tell(p, others)
        if liar.running.backups:
            liar.recover(p, set(believers) - {VICTIM}, others)


@pytest.mark.parametrize("parties", [5, 10, 30])
def test_on_the_complete_graph_two_stories_need_2t_n_colluders(parties: int) -> None:
    _, running, _ = stage(parties)
    t = running.cohort.threshold
    bound = graph.fewest_colluders(parties, t)
    assert bound == 2 * t - parties == {5: 3, 10: 4, 30: 12}[parties]
    for count, believers in ((bound, parties - t), (bound - 1, parties - t), (bound - 1, None)):
        colluders = set(range(parties - count, parties))
        liar = begin(parties, True, colluders)
        split(liar, list(range(believers or parties - t + 1)))
        assert liar.opens() == (count == bound)
        if believers:  # one share of the self seed is missing, nobody refused
            assert not liar.refused
            assert len(liar.own) == parties - t + count
        else:  # one vote is missing
            assert set(liar.refused) >= {f"{t - 1} votes for these survivors, {t} are needed"}


def spread(cohort: Any, count: int) -> tuple[set[int], list[int]]:
    """Colluders, and with the victim those who believe that all live: s at least hold shares."""
    far = near_first(cohort)[cohort.degree + 1 - cohort.share_threshold :]
    return set(far[:count]), [VICTIM, *far[count:]]


@pytest.mark.parametrize(("parties", "enough"), [(31, 2), (100, 4)])
def test_above_30_parties_full_sets_need_votes_too(
    monkeypatch: pytest.MonkeyPatch, parties: int, enough: int
) -> None:
    """The first is the negative control: would a full set be answered without votes."""
    _, running, _ = stage(parties)
    assert enough < graph.fewest_colluders(parties, running.cohort.threshold)
    needed = votes.votes_needed
    for shortcut in (True, False):
        if shortcut:
            monkeypatch.setattr(
                votes, "votes_needed", lambda c, n: 0 if n == len(c.members) else needed(c, n)
            )
        else:
            monkeypatch.undo()
        colluders, believers = spread(running.cohort, enough)
        liar = begin(parties, True, colluders)
        split(liar, believers)
        assert liar.opens() == shortcut


# -- one story, colluders all around


@pytest.mark.parametrize("parties", [31, 50, 100])
def test_on_a_sparse_graph_one_story_needs_s_1_neighbours(parties: int) -> None:
    _, running, _ = stage(parties)
    cohort = running.cohort
    bound = graph.fewest_colluders(parties, cohort.threshold)
    assert bound == cohort.share_threshold - 1
    for count in (bound - 1, bound):
        colluders = set(cohort.neighbours[VICTIM][:count])
        liar = begin(parties, True, colluders)
        dead = set(cohort.neighbours[VICTIM][-(cohort.degree - cohort.share_threshold + 1) :])
        assert not dead & colluders
        alive = liar.all_but(dead)
        for p in cohort.unpack(alive) - colluders:
            liar.ask_vote(p, alive)
        liar.colluders_vote(alive)
        for p in sorted(cohort.unpack(alive) - colluders):
            if VICTIM in (p, *cohort.neighbours[p]):
                liar.tell(p, alive)
        assert not liar.refused
        assert liar.opens() == (count == bound)
        # and a set that leaves the victim alone with fewer colluders is refused
        if count < bound:
            lonely = begin(parties, True, colluders)
            lonely.ask_vote(VICTIM, lonely.all_but(set(cohort.neighbours[VICTIM]) - colluders))
            assert lonely.refused == ["too few neighbours of this party survived to open the sum"]
