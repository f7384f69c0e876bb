"""What the server and colluding clients see: uniform numbers, until the threshold is crossed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from coalition import Coalition, whole
from sums_in_memory import Run, assert_alike, assert_uniform, refused, sparse

from fedkern_flwr.errors import SumError
from fedkern_flwr.secure_sum import CIPHERS, Encoding, add_streams
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.wire.sums import UnmaskReply

RINGS = (16, 32, 64)
LARGE = {16: 2.0**12, 32: 2.0**20, 64: 2.0**20}  # 16 bits have no room for 2^20
LENGTH = 64
UPLOADS = 250


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


def only(streams: Callable[[Any], Any]) -> Callable[..., None]:
    """A party that masks with something else."""

    def broken(target: np.ndarray, given: Any, *, cipher: str) -> None:
        add_streams(target, streams(given), cipher=cipher)

    return broken


def half(target: np.ndarray, given: Any, *, cipher: str) -> None:
    """Masks that do not reach the upper half of the ring."""
    mask = np.zeros_like(target)
    add_streams(mask, given, cipher=cipher)
    target += mask & target.dtype.type((1 << 4 * target.itemsize) - 1)


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize(
    "broken",
    [only(lambda given: []), only(lambda given: [(bytes(32), False)]), half],
    ids=["no masks", "a constant mask", "narrow masks"],
)
def test_poor_masks_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
    bits: int,
    broken: Callable[..., None],
) -> None:
    """Negative control of the uniformity of uploads."""
    monkeypatch.setattr(party_module, "add_streams", broken)
    for value in (0.0, LARGE[bits]):
        with pytest.raises(AssertionError):
            assert_uniform(collect_uploads(value, bits, CIPHERS[0]))


@pytest.mark.parametrize("bits", RINGS)
def test_bare_encodings_are_told_apart(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    """Negative control of the two-sample test, down to a bias of a quarter of a mask."""
    for broken in (only(lambda given: []), half):
        monkeypatch.setattr(party_module, "add_streams", broken)
        samples = [collect_uploads(x, bits, CIPHERS[0]) for x in (0.0, LARGE[bits])]
        with pytest.raises(AssertionError):
            assert_alike(*samples)


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


# -- 5. nothing comes twice


def check_fresh(runs: tuple[Any, Any], *attempts: Any) -> None:
    """Two uploads of the same vector, one of another run maybe, have nothing in common."""
    vector = np.arange(4096)
    one, other = (whole(r.contribute(s, 1, vector)) for r, s in zip(runs, attempts, strict=True))
    assert (one != other).all()
    assert_uniform(one - other)
    assert_uniform(one + other)


REPETITIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another round": ({}, {}),
    "another attempt for a receiver": ({"receiver": 0}, {"receiver": 0}),
    "no self masks": ({"receiver": 0, "self_masks": False},) * 2,
    "no self masks, for the server": ({"self_masks": False},) * 2,
    "own receiver": ({"receiver": 1, "self_masks": False},) * 2,
    "another cohort": ({}, {"cohort": 1}),
}


@pytest.mark.parametrize("kind", REPETITIONS)
def test_the_same_vector_is_masked_afresh(kind: str) -> None:
    run = Run(4, cohorts=[range(4), range(4)])
    check_fresh((run, run), *(run.order(4096, **options) for options in REPETITIONS[kind]))


def test_two_runs_mask_afresh() -> None:
    runs = Run(4), Run(4)
    check_fresh(runs, *(run.order(4096) for run in runs))


@pytest.mark.parametrize("kept", ["labels", "ratchet", "self masks", ""])
def test_each_of_three_precautions_suffices(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    """Without any the repetition is noticed: the negative control."""
    if kept != "labels":
        monkeypatch.setattr(party_module, "sum_label", lambda *_: b"a sum")
    if kept != "ratchet":
        monkeypatch.setattr(party_module, "next_root", lambda root: root)
    if kept != "self masks":
        monkeypatch.setattr(party_module.secrets, "token_bytes", bytes)
    run = Run(4)
    with nullcontext() if kept else pytest.raises(AssertionError):
        check_fresh((run, run), run.order(4096), run.order(4096))


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
    "all survive": {},
    "the victim is late": {"dead": [0]},
    "the victim is silent": {"silent": [0]},
    "another is dead, the victim silent": {"dead": [8], "silent": [0]},
    "the victim is late, another silent": {"dead": [0], "silent": [8]},
}


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


@pytest.mark.parametrize("dead", [[], [0], [8]], ids=["all survive", "victim late", "other dead"])
def test_without_backups_pair_seeds_are_not_shared(dead: list[int]) -> None:
    """t = 8: seven colluders learn nothing; eight hold the shares, or all pair seeds."""
    run = Run(9, threshold=8)
    running = run.order(LONG)
    assert not running.backups
    play(run, running, dead=dead)
    assert_uniform(Coalition(run, running, range(1, 7)).remainder(0))
    if dead == [8]:  # the victim is the only honest survivor: the sum itself gives it away
        assert is_open(Coalition(run, running, range(1, 8)).remainder(0))
    else:
        assert_uniform(Coalition(run, running, range(1, 8)).remainder(0))
    assert is_open(Coalition(run, running, range(1, 9)).remainder(0))


def test_t_colluders_open_a_late_vector() -> None:
    """Negative control: the threshold is real, from both sides."""
    run = Run(9)
    running = run.order(LONG)
    play(run, running, dead=[0])
    for count in range(9):
        coalition = Coalition(run, running, range(1, 1 + count))
        assert len(coalition.shares_of_self_seed(0)) == min(count, 8)
        if count < 7:
            assert coalition.self_seed(0) is None
            assert_uniform(coalition.remainder(0))
        else:
            assert coalition.self_seed(0) is not None
            assert is_open(coalition.remainder(0))


def test_t_colluders_open_pair_seeds_from_backups() -> None:
    """The seeds of pairs are shared with the same threshold, once the victim has uploaded."""
    run = Run(9)
    running = run.order(LONG)
    play(run, running)
    assert Coalition(run, running, range(2, 8)).backed_up(0, 8) is None
    full = Coalition(run, running, range(1, 8))
    assert full.backed_up(0, 8) == run.party(0).state.open[0, 1].keys[8][0]


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


def test_a_receiver_in_the_coalition_learns_the_sum_only() -> None:
    for options in ({"receiver": 1}, {"receiver": 1, "self_masks": False}):
        run = Run(9)
        running = run.order(LONG, **options)
        play(run, running)
        colluders = range(1, 7)
        assert_uniform(Coalition(run, running, colluders).remainder(0))
        assert is_open(Coalition(run, running, range(1, 9)).remainder(0))
        assert (run.result(running) == 9 * VALUE).all()


def test_the_server_alone_sees_a_padded_sum() -> None:
    """A sum with a receiver stays closed to the server, and to all clients but the receiver."""
    pads = set()
    for options in ({"receiver": 1}, {"receiver": 1, "self_masks": False}):
        run = Run(4, threshold=3)
        running = run.order(LONG, **options)
        play(run, running)
        running.open()
        assert_uniform(running._vector)
        with pytest.raises(SumError, match="gradient belongs to partition 1"):
            running.total()
        everybody_else = Coalition(run, running, [0, 2, 3])
        left = everybody_else.remainder(1)
        assert_uniform(left)  # only the pad is left
        pad = run.party(1).state.open[0, 1].pad
        add_streams(left, [(pad, True)], cipher=running.cipher)
        assert is_open(left)  # negative control
        pads.add(pad)
    assert len(pads) == 2  # none that the server could know


def test_masks_of_one_kind_would_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with pair masks alone a late vector is bare, with self masks alone any."""
    for kept, ends in (("pairs", {"dead": [0]}), ("self", {})):
        run = Run(9)
        running = run.order(LONG)
        pick = (lambda given: given[:-1]) if kept == "pairs" else (lambda given: given[-1:])
        for p in range(1, 9):
            run.upload(running, p, np.full(LONG, VALUE))
        with monkeypatch.context() as patch:
            patch.setattr(party_module, "add_streams", only(pick))
            run.contribute(running, 0, np.full(LONG, VALUE))
        if not ends:
            run.take(0, run.transcript(running).uploads[0])
        run.unmask(running)
        left = whole(run.transcript(running).uploads[0])
        coalition = Coalition(run, running, [])
        if kept == "pairs":
            seeds = [(coalition.pair_seed(0, j), True) for j in range(1, 9)]
        else:
            seeds = [(coalition.self_seed(0), True)]
        assert None not in [seed for seed, _ in seeds]
        assert_uniform(left)
        add_streams(left, seeds, cipher=running.cipher)
        assert is_open(left)
        with pytest.raises(AssertionError):
            assert_uniform(left)


# -- 7. a late vector stays closed


@pytest.mark.parametrize("k", [None, 6], ids=["complete", "sparse"])
def test_a_late_vector_stays_closed_after_all_pair_seeds_are_known(k: int | None) -> None:
    with sparse(k):
        run = Run(12, threshold=7)
        running = run.order(LONG)
        play(run, running, dead=[3])
        server = Coalition(run, running, [])
        known = {j: server.pair_seed(3, j) for j in running.cohort.neighbours[3]}
        truth = {j: keys[0] for j, keys in run.party(3).state.open[0, 1].keys.items()}
        assert known == truth  # all of them were revealed
        assert_uniform(server.remainder(3))
        late = run.transcript(running).uploads[3]
        before = running._vector.copy()
        text = "its vector came after the survivors were declared"
        refused(run.take, 3, late, text=text, party="partition 3")
        np.testing.assert_array_equal(running._vector, before)
        assert (run.result(running) == 11 * VALUE).all()
        refused(run.take, 3, late, text="its message belongs to no open sum", party="partition 3")


# -- retrying without a party


def attack(run: Any, full: Any, smaller: Any, late: int, receivers: list[int]) -> np.ndarray:
    """Server and receivers: sum over the larger set with the late vector, less the smaller one.

    Each sum is stripped of all that the coalition knows: revealed seeds and the receivers' pads.
    """
    totals = []
    for running in (full, smaller):
        coalition = Coalition(run, running, receivers)
        parts = [p for p in running.cohort.members if p in coalition.seen.uploads]
        if running is smaller:
            parts = [p for p in parts if p != late]
        total = sum((whole(coalition.seen.uploads[p]) for p in parts), np.zeros(LONG, np.uint64))
        streams = []
        for p in parts:
            if running.order.self_masks and (seed := coalition.self_seed(p)) is not None:
                streams.append((seed, True))
            for j in running.cohort.neighbours[p]:
                if j not in parts and (seed := coalition.pair_seed(p, j)) is not None:
                    streams.append((seed, p < j))
            opened = coalition.open.get(p)
            if opened is not None and opened.pad:
                streams.append((opened.pad, True))
        add_streams(total, streams, cipher=running.cipher)
        totals.append(total)
    return totals[0] - totals[1]


def retry(first: dict[str, Any], second: dict[str, Any], bypass: bool) -> tuple[Any, Any, Any]:
    """A sum of six in which the vector of party 5 is late, then one without it, same values."""
    run = Run(6, cohorts=[range(6), range(5)], threshold=None)
    full = run.order(LONG, **first)
    for p in range(5):
        run.upload(full, p, np.full(LONG, VALUE))
    if full.order.self_masks:
        run.unmask(full)
    smaller = run.order(LONG, **second)
    for p in range(5):
        if bypass:
            party = run.party(p)
            party.state.fixed.clear()
            run.keep(party)
        run.upload(smaller, p, np.full(LONG, VALUE))
    run.unmask(smaller)
    run.contribute(full, 5, np.full(LONG, VALUE))
    return run, full, smaller


BARE = {"receiver": 0, "self_masks": False}
FOR_THE_SERVER = {"self_masks": False}
#: How a sum is repeated -> as it was, as it is then, and who puts the two together.
RETRIES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "smaller cohort": (BARE, {**BARE, "cohort": 1}, [0]),
    "with self masks": (BARE, {"receiver": 0}, [0]),
    "with self masks, smaller cohort": (BARE, {"receiver": 0, "cohort": 1}, [0]),
    "the server's, smaller cohort": (FOR_THE_SERVER, {**FOR_THE_SERVER, "cohort": 1}, [0]),
    "the server's, with self masks": (FOR_THE_SERVER, {}, [0]),
    "the server's, with self masks, smaller cohort": (FOR_THE_SERVER, {"cohort": 1}, [0]),
    "for the server": (BARE, {}, [0]),
    "for another": (BARE, {"receiver": 1}, [0, 1]),
    "for another, smaller cohort": (BARE, {**BARE, "receiver": 1, "cohort": 1}, [0, 1]),
}


@pytest.mark.parametrize("kind", RETRIES)
def test_clients_refuse_a_retry_that_would_open_the_late_vector(kind: str) -> None:
    first, second, colluders = RETRIES[kind]
    with pytest.raises(SumError) as caught:
        retry(first, second, bypass=False)
    assert caught.value.party == "partition 0"
    text = "gradient was summed before and would be repeated otherwise"
    assert caught.value.problem == text
    assert caught.value.remedy == "repeat it with the same parties, or end the run"
    run, full, smaller = retry(first, second, bypass=True)  # negative control
    assert is_open(attack(run, full, smaller, 5, colluders))


@pytest.mark.parametrize("bare", [BARE, FOR_THE_SERVER], ids=["client", "server"])
def test_a_repetition_with_the_same_parties_is_allowed(bare: dict[str, Any]) -> None:
    run = Run(6)
    values = {p: [p] for p in run.members}
    for name in ("a", "a", "b", "a"):
        assert run.sum(values, name=name, **bare).tolist() == [15]
    assert run.sum(values, name="c", receiver=0).tolist() == [15]  # another name, other values


@pytest.mark.parametrize("second", [{"cohort": 1}, {}], ids=["smaller cohort", "same cohort"])
@pytest.mark.parametrize("receiver", [0, None])
def test_a_retry_under_self_masks_leaves_the_late_vector_closed(
    receiver: int | None, second: dict[str, Any]
) -> None:
    options = {"receiver": receiver}
    run, full, smaller = retry(options, options | second, bypass=True)
    assert_uniform(attack(run, full, smaller, 5, [0]))
    assert (run.result(full) == 5 * VALUE).all()
    assert (run.result(smaller) == 5 * VALUE).all()


@pytest.mark.parametrize("again", ["a#1", "a#2"])
def test_another_receiver_with_the_same_parties_is_refused_too(again: str) -> None:
    run = Run(3)
    values = {p: [p] for p in run.members}
    run.sum(values, receiver=0, self_masks=False, name="a#1")
    with pytest.raises(SumError, match="a was summed before and would be repeated"):
        run.sum(values, receiver=1, self_masks=False, name=again)


# -- a server that tells parties different things


@pytest.mark.parametrize("k", [None, 6], ids=["complete", "sparse"])
def test_two_stories_about_the_survivors(k: int | None) -> None:
    """The victim hears that others dropped, they hear that the victim did: no colluder."""
    with sparse(k):
        run = Run(12)  # t = 9
        running = run.order(LONG)
        for p in run.members:
            run.upload(running, p, np.full(LONG, VALUE))
        told = [p for p in run.members if p != 0]
        running.declare(2)
        replies: dict[int, UnmaskReply] = {}
        for p in told:  # the victim dropped
            running.survivors = tuple(told)
            replies[p] = run.party(p).unmask(running.unmask_request(p))
        running.survivors = tuple(run.members)
        replies[0] = run.party(0).unmask(running.unmask_request(0))
        left = whole(run.transcript(running).uploads[0])
        seeds = []
        for p, reply in replies.items():
            if p in running.cohort.neighbours[0]:
                assert len(reply.seeds) == 32
                seeds.append((reply.seeds, p > 0))
        add_streams(left, seeds, cipher=running.cipher)  # all pair masks are gone
        assert_uniform(left)  # the self mask is not: the victim revealed one share of it
        everybody = Coalition(run, running, running.cohort.neighbours[0])
        add_streams(left, [(everybody.self_seed(0), True)], cipher=running.cipher)
        assert is_open(left)  # negative control


def test_a_party_left_alone_by_its_neighbours_refuses() -> None:
    """Such a sum cannot be opened anyway; answering would reveal the seeds of all its pairs."""
    with sparse(6):
        run = Run(20, threshold=11)
        running = run.order(LONG)
        for p in run.members:
            run.upload(running, p, np.full(LONG, VALUE))
        around = running.cohort.neighbours[0]
        text = "too few neighbours of this party survived to open the sum"
        for gone in (6, 5, 4):
            running.survivors = tuple(p for p in run.members if p not in around[:gone])
            request = running.unmask_request(0)
            refused(run.party(0).unmask, request, text=text, party="partition 0")
        running.survivors = tuple(p for p in run.members if p not in around[:3])
        assert len(run.party(0).unmask(running.unmask_request(0)).seeds) == 3 * 32


def test_random_numbers_pass_the_checker() -> None:
    """The checkers do not reject what is uniform, at any width and shape that is used above."""
    for dtype in (np.uint16, np.uint32, np.uint64):
        for shape in ((UPLOADS, LENGTH), (LONG,)):
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            one, other = (np.frombuffer(os.urandom(size), dtype).reshape(shape) for _ in range(2))
            assert_uniform(one)
            assert_alike(one, other)
