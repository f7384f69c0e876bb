"""What the server and colluding clients see: uniform numbers, until the threshold is crossed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from refusals import raises
from sums_in_memory import Run, assert_alike, assert_uniform, refuses, sparse

from fedkern_flwr.errors import SumError
from fedkern_flwr.secure_sum import CIPHERS, Encoding, add_streams
from fedkern_flwr.secure_sum import crypto as relay
from fedkern_flwr.secure_sum import membership as graph
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum.crypto import SHARE_BYTES, commitment, cut, reconstruct_seed
from fedkern_flwr.wire.sums import Ballot, Recover

RINGS = (16, 32, 64)
LARGE = {16: 2.0**12, 32: 2.0**20, 64: 2.0**20}  # 16 bits have no room for 2^20
LENGTH = 64
UPLOADS = 250


# -- what they know together


def whole(upload: Any) -> np.ndarray:
    return np.concatenate(upload.masked)


class Coalition:
    """The server, with all that it has seen of a sum, and clients with their whole states.

    It computes every seed that it can: those of its members, those that were revealed, those that
    it can open from shares, be they revealed or sealed for a member.
    """

    def __init__(self, run: Any, running: Any, members: Iterable[int]) -> None:
        self.running, self.cohort, self.label = running, running.cohort, running.label
        self.members = set(members)
        key = running.order.cohort, running.order.index
        self.open = {p: run.party(p).state.open.get(key) for p in self.members}
        self.seen = run.transcript(running)

    def unseal(self, kind: int, text: bytes, source: int, holder: int) -> bytes:
        key = self.open[holder].keys[source][1]
        return relay.unseal(key, text, relay.Route(self.label, kind, source, holder))

    def shares_of_self_seed(self, owner: int) -> dict[int, bytes]:
        """Point -> share."""
        found: dict[int, bytes] = {}
        alive = set(self.running.survivors)
        for p, reply in self.seen.unmasked.items():
            owners = [p, *(j for j in self.cohort.neighbours[p] if j in alive)]
            for who, share in zip(owners, cut(reply.shares, SHARE_BYTES), strict=True):
                if who == owner:
                    found[self.cohort.point(p)] = share
        if owner in self.members and self.open[owner] is not None:
            found[self.cohort.point(owner)] = self.open[owner].own_share
        upload = self.seen.uploads.get(owner)
        if upload is not None and upload.shares:
            sealed = cut(upload.shares, SHARE_BYTES + relay.TAG_BYTES)
            for holder, text in zip(self.cohort.neighbours[owner], sealed, strict=True):
                if holder in self.members and self.open[holder] is not None:
                    share = self.unseal(relay.SHARE, text, owner, holder)
                    found[self.cohort.point(holder)] = share
        return found

    def self_seed(self, owner: int) -> bytes | None:
        committed = self.seen.uploads[owner].commitments[:16]
        return self.reconstruct(self.shares_of_self_seed(owner), committed)

    def reconstruct(self, shares: dict[int, bytes], committed: bytes) -> bytes | None:
        points = sorted(shares)[: self.cohort.share_threshold]
        seed = reconstruct_seed({x: shares[x] for x in points}) if points else None
        return seed if seed is not None and commitment(self.label, seed) == committed else None

    def pair_seed(self, one: int, other: int) -> bytes | None:
        for p, q in ((one, other), (other, one)):
            if p in self.members and self.open[p] is not None:
                return self.open[p].keys[q][0]
            reply = self.seen.unmasked.get(p)
            if reply is not None:
                dead = [j for j in self.cohort.neighbours[p] if j in self.running.dead]
                if q in dead:
                    return reply.seeds[32 * dead.index(q) :][:32]
            seed = self.backed_up(p, q)
            if seed is not None:
                return seed
        return None

    def backed_up(self, owner: int, other: int) -> bytes | None:
        """The seed of a pair from the shares that one of them made."""
        upload = self.seen.uploads.get(owner)
        if upload is None or not upload.backups:
            return None
        place = 16 * (1 + self.cohort.neighbours[owner].index(other))
        committed = upload.commitments[place : place + 16]
        return self.reconstruct(self.backup_shares(owner, other), committed)

    def backup_shares(self, owner: int, other: int) -> dict[int, bytes]:
        """Point -> share of the seed of a pair that one of them made."""
        shares: dict[int, bytes] = {}
        others = self.cohort.neighbours[owner]
        size = len(others) * SHARE_BYTES + relay.TAG_BYTES
        sealed = cut(self.seen.uploads[owner].backups, size)
        for holder, text in zip(others, sealed, strict=bool(sealed)):
            if holder in self.members and self.open[holder] is not None:
                plain = self.unseal(relay.BACKUP, text, owner, holder)
                shares[self.cohort.point(holder)] = cut(plain, SHARE_BYTES)[others.index(other)]
        for holder, (request, reply) in self.seen.recovered.items():
            silent = self.cohort.unpack(request.silent)
            owners = [i for i in self.cohort.neighbours[holder] if i in silent]
            pairs = [(i, j) for i in owners for j in self.cohort.neighbours[i]]
            pairs = [(i, j) for i, j in pairs if j in self.running.dead]
            for pair, share in zip(pairs, cut(reply.shares, SHARE_BYTES), strict=True):
                if pair == (owner, other):
                    shares[self.cohort.point(holder)] = share
        return shares

    def remainder(self, victim: int) -> np.ndarray:
        """The victim's upload without all masks that the coalition can compute."""
        left = whole(self.seen.uploads[victim])
        streams = []
        for other in self.cohort.neighbours[victim]:
            if (seed := self.pair_seed(victim, other)) is not None:
                streams.append((seed, victim < other))
        if self.running.order.self_masks and (seed := self.self_seed(victim)) is not None:
            streams.append((seed, True))
        add_streams(left, streams, cipher=self.running.cipher)
        return left


# -- 1. a masked upload looks random, whatever is in it


def collect_uploads(value: float, bits: int, cipher: str, uploads: int = UPLOADS) -> np.ndarray:
    """Uploads of one party, a row for each sum, always the same vector."""
    run = Run(3, cipher=cipher)
    run.join()
    party, rows = run.party(1), []
    encoding = Encoding.fixed_point(LARGE[bits], bits)
    values = np.full(LENGTH, value)
    for _ in range(uploads):
        running = run.order(LENGTH, encoding)
        rows.append(whole(party.contribute(running.order, values)))
        run.server.close(running)
    return np.stack(rows)


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("bits", RINGS)
def test_uploads_are_uniform_and_alike(bits: int, cipher: str) -> None:
    zeros = collect_uploads(0.0, bits, cipher)
    large = collect_uploads(LARGE[bits], bits, cipher)
    assert_uniform(zeros)
    assert_uniform(large)
    assert_alike(zeros, large)


def half(target: np.ndarray, given: Any, *, cipher: str) -> None:
    """Masks that do not reach the upper half of the ring."""
    mask = np.zeros_like(target)
    add_streams(mask, given, cipher=cipher)
    target += mask & target.dtype.type((1 << 4 * target.itemsize) - 1)


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("broken", [lambda *_, cipher: None, half], ids=["no masks", "narrow"])
def test_poor_masks_are_noticed(monkeypatch: pytest.MonkeyPatch, bits: int, broken: Any) -> None:
    """Negative control of the uniformity of uploads, down to a bias of a quarter of a mask."""
    monkeypatch.setattr(party_module, "add_streams", broken)
    samples = [collect_uploads(x, bits, CIPHERS[0]) for x in (0.0, LARGE[bits])]
    for sample in samples:
        raises(AssertionError, assert_uniform, sample)
    raises(AssertionError, assert_alike, *samples)


def test_a_single_bare_bit_is_noticed() -> None:
    """Negative control: one bit of one place that is never masked, or one that leans a little."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (UPLOADS, LENGTH), dtype=np.uint32)
    assert_uniform(words)
    bare = words.copy()
    bare[:, 5] &= ~np.uint32(1 << 7)
    with pytest.raises(AssertionError, match="a bit of a place"):
        assert_uniform(bare)
    leaning = words | np.where(rng.random(words.shape) < 0.08, np.uint32(1), np.uint32(0))
    with pytest.raises(AssertionError, match="a bit is"):
        assert_uniform(leaning)


# -- 2. nothing comes twice


@pytest.mark.parametrize(("one", "other"), [
    ({}, {}), ({"receiver": 0, "self_masks": False},) * 2, ({"self_masks": False},) * 2,
    ({"self_masks": False}, {"self_masks": False, "cohort": 1}),
])  # fmt: skip
def test_the_same_vector_is_masked_afresh(one: dict[str, Any], other: dict[str, Any]) -> None:
    """In another attempt, another cohort or another run."""
    run, another = (Run(4, cohorts=[range(4), range(4)]) for _ in range(2))
    vector = np.arange(4096)
    sums = [(run, one), (run, other), (another, one)]
    first, *later = (whole(r.contribute(r.order(4096, **o), 1, vector)) for r, o in sums)
    for upload in later:
        assert (first != upload).all()
        assert_uniform(first - upload)
        assert_uniform(first + upload)


# -- 3. the server and colluding clients


VALUE = 1 << 20
LONG = 4096


def play(run: Any, running: Any, dead: Iterable[int] = (), silent: Iterable[int] = ()) -> None:
    """A sum in which the dead contribute too late, and some survivors never answer."""
    dead, silent = set(dead), set(silent)
    for p in running.cohort.members:
        if p not in dead:
            run.upload(running, p, np.full(LONG, VALUE))
    for p in dead:
        run.contribute(running, p, np.full(LONG, VALUE))
    run.unmask(running, [p for p in running.survivors or running.uploaded if p not in silent])
    run.recover(running, [p for p in running.survivors if p not in silent])


def is_open(remainder: np.ndarray) -> bool:
    return bool((remainder == VALUE).all())


ENDS: dict[str, dict[str, Any]] = {
    "all survive": {}, "the victim is late": {"dead": [0]}, "the victim is silent": {"silent": [0]},
    "another is dead, the victim silent": {"dead": [8], "silent": [0]},
    "the victim is late, another silent": {"dead": [0], "silent": [8]},
}  # fmt: skip


@pytest.mark.promise("sums-t-shares")
@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_fewer_than_t_colluders_learn_nothing(ends: dict[str, Any], cipher: str) -> None:
    run = Run(9, cipher=cipher)  # t = 7
    running = run.order(LONG)
    assert running.backups
    play(run, running, **ends)
    assert running.complete
    coalition = Coalition(run, running, range(1, 7))  # t - 1 with the server
    assert_uniform(coalition.remainder(0))
    if 0 in ends.get("dead", ()):
        assert len(coalition.shares_of_self_seed(0)) == 6
        assert coalition.self_seed(0) is None
    else:
        assert coalition.self_seed(0) is not None  # revealed, as the victim survived
    assert is_open(Coalition(run, running, range(1, 8)).remainder(0))  # t do learn it


def test_a_sparse_neighbourhood_keeps_its_threshold() -> None:
    """k = 6: 3 neighbours and any strangers do not open a late vector, 4 neighbours do."""
    with sparse(6):
        run = Run(20, threshold=11)
        running = run.order(LONG)
        around = running.cohort.neighbours[0]
        strangers = [p for p in run.members if p not in around and p != 0]
        assert (len(around), running.cohort.share_threshold) == (6, 4)
        play(run, running, dead=[0])
        assert running.complete
        assert_uniform(Coalition(run, running, [*strangers, *around[:3]]).remainder(0))
        assert is_open(Coalition(run, running, around[:4]).remainder(0))


def test_a_sparse_survivor_needs_an_honest_neighbourhood_and_an_honest_neighbour() -> None:
    """With backups the seed of a pair stands with either end: both need fewer than 4 colluders."""
    with sparse(6):
        run = Run(20, threshold=11)
        running = run.order(LONG)
        assert running.backups
        play(run, running)
        neighbours = {p: set(around) for p, around in running.cohort.neighbours.items()}

        def within(colluders: set[int]) -> bool:
            honest = neighbours[0] - colluders
            return all(len(neighbours[p] & colluders) <= 3 for p in (0, *honest))

        chosen = next(set(c) for c in combinations(sorted(neighbours[0]), 3) if within(set(c)))
        for p in run.members[1:]:
            if within(chosen | {p}):
                chosen.add(p)
        assert len(chosen) > 3
        assert_uniform(Coalition(run, running, chosen).remainder(0))
        assert is_open(Coalition(run, running, running.cohort.neighbours[0][:4]).remainder(0))
        everybody_around = set(run.members) - {0} - (neighbours[0] - chosen)
        coalition = Coalition(run, running, everybody_around)
        bare = all(len(neighbours[p] & everybody_around) >= 4 for p in neighbours[0] - chosen)
        assert is_open(coalition.remainder(0)) == bare


@pytest.mark.promise("sums-receiver-pad")
def test_the_server_alone_sees_a_padded_sum() -> None:
    """A sum with a receiver stays closed to the server, and to all clients but the receiver."""
    pads = set()
    for options in ({"receiver": 1}, {"receiver": 1, "self_masks": False}):
        run = Run(4, threshold=3)
        running = run.order(LONG, **options)
        play(run, running)
        running.open()
        assert_uniform(running._vector)
        refuses("FK-SUM-RECEIVER", running.total)
        everybody_else = Coalition(run, running, [0, 2, 3])
        left = everybody_else.remainder(1)
        assert_uniform(left)  # only the pad is left
        pad = run.party(1).state.open[0, 1].pad
        add_streams(left, [(pad, True)], cipher=running.cipher)
        assert is_open(left)  # negative control
        pads.add(pad)
    assert len(pads) == 2  # none that the server could know


# -- a server that tells different survivors to different parties, with colluders: it needs as many
# as fedkern_flwr.secure_sum.membership states, where identities are pinned

VICTIM = 0


class Liar:
    """The server after all uploads, its colluders, and which shares of the victim's seeds it has.

    That the shares of s parties open a seed, and no fewer, is shown above.
    """

    def __init__(self, run: Any, running: Any, colluders: Iterable[int]) -> None:
        self.run, self.running, self.cohort = run, running, running.cohort
        self.colluders = set(colluders)
        around = {p: set(others) for p, others in self.cohort.neighbours.items()}
        self.own = self.colluders & around[VICTIM]  # who told its share of the victim's self seed
        self.seeds = set(self.own)  # neighbours whose seed with the victim is known
        self.backed: dict[tuple[int, int], set[int]] = {  # (owner, other) -> who told its share
            (i, k): self.colluders & around[i] if running.backups else set()
            for i in self.cohort.members
            for k in around[i]
        }
        self.votes: dict[bytes, dict[int, bytes]] = {}
        self.refused: list[str] = []

    def all_but(self, dead: Collection[int]) -> bytes:
        bits: bytes = self.cohort.pack(set(self.cohort.members).difference(dead))
        return bits

    def ask_vote(self, party: int, alive: bytes) -> None:
        ballot = Ballot(cohort=0, index=self.running.order.index, alive=alive)
        if (vote := self._ask(party, "vote", ballot)) is not None:
            self.votes.setdefault(alive, {})[party] = vote.signature

    def colluders_vote(self, alive: bytes) -> None:
        """Colluders vote as often as they like."""
        subject = graph.Subject("run", self.cohort, self.running.order.index, alive)
        for c in self.colluders:
            signature = graph.sign_vote(self.run.identities[c], subject)
            self.votes.setdefault(alive, {})[c] = signature

    def tell(self, party: int, alive: bytes) -> None:
        """Ask a party to unmask, and note what it reveals of the victim."""
        survivors, signed = self.cohort.unpack(alive), self.votes.get(alive, {})
        request = self.run.told(self.running, party, survivors, signed)
        if self._ask(party, "unmask", request) is None:
            return
        around = {party, *self.cohort.neighbours[party]}
        self.own |= {party} if VICTIM in around & survivors else set()
        dead = around - survivors
        self.seeds |= dead if party == VICTIM else {party} if VICTIM in dead else set()

    def recover(self, party: int, silent: Iterable[int], alive: bytes) -> None:
        sources = [j for j in self.cohort.neighbours[party] if j in set(silent)]
        request = Recover(
            cohort=0, index=self.running.order.index, alive=alive, silent=self.cohort.pack(sources),
            backups=self.running.enclosed.backed_up(sources, party),
        )  # fmt: skip
        if sources and self._ask(party, "recover", request) is not None:
            for pair, tellers in self.backed.items():
                if pair[0] in sources and pair[1] not in self.cohort.unpack(alive):
                    tellers.add(party)

    def opens(self) -> bool:
        """Whether the victim's vector is bare."""
        need = self.cohort.share_threshold
        return len(self.own) >= need and all(
            j in self.seeds or max(len(self.backed[VICTIM, j]), len(self.backed[j, VICTIM])) >= need
            for j in self.cohort.neighbours[VICTIM]
        )

    def _ask(self, party: int, what: str, request: Any) -> Any:
        asked = self.run.party(party)
        try:
            answer = getattr(asked, what)(request)
        except SumError as error:
            self.refused.append(error.code)
            return None
        self.run.keep(asked)
        return answer


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


# -- a story for each neighbour: what votes are for


def stories(cohort: Any, colluders: set[int], backups: bool) -> dict[int, set[int]] | None:
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
        plan: dict[int, set[int]] = {VICTIM: set(gone)} | {j: {VICTIM} for j in told_dead}
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


#: Parties -> colluders that suffice without votes; docs/security.md has them.
FEWEST = {5: 2, 10: 2, 30: 4, 31: 0, 50: 0}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("parties", FEWEST)
def test_without_pinned_identities_a_lying_server_needs_few(parties: int, pinned: bool) -> None:
    """With them no such story is answered, though there were all colluders below the bound."""
    _, running, _ = stage(parties)
    cohort = running.cohort
    bound = graph.fewest_colluders(parties, cohort.threshold)
    candidates = near_first(cohort)[::-1]
    found = [stories(cohort, set(candidates[:n]), running.backups) for n in range(bound)]
    fewest = next(n for n, plan in enumerate(found) if plan is not None)
    assert fewest == FEWEST[parties] < bound
    count = bound - 1 if pinned else fewest
    liar, plan = begin(parties, pinned, candidates[:count]), found[count]
    assert plan is not None
    for party, dead in plan.items():
        alive = liar.all_but(dead)
        if pinned:
            liar.colluders_vote(alive)
        liar.tell(party, alive)
        if liar.running.backups and party != VICTIM and VICTIM not in dead:
            liar.recover(party, [VICTIM], alive)
    assert liar.opens() == (not pinned)
    assert ("FK-SUM-VOTES" in liar.refused) == bool(liar.refused) == pinned


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
            assert set(liar.refused) >= {"FK-SUM-VOTES"}
