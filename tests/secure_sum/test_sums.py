"""Sums of every kind are exact, and what a party remembers of them is no more than it needs."""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import secrets
import tokenize
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shamirs
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raises, refused
from scipy import stats
from scipy.stats import hypergeom
from sums_in_memory import Reference, Run, assert_uniform, draw, flip, refuses

import fedkern_flwr.node.sums as client_sums
from fedkern_flwr import secure_sum
from fedkern_flwr.errors import FedKernError
from fedkern_flwr.privacy import NoisySum
from fedkern_flwr.privacy.accounting import reach
from fedkern_flwr.secure_sum import CIPHERS, Encoding, PartyState, add_streams
from fedkern_flwr.secure_sum import membership as graph
from fedkern_flwr.secure_sum import party as party_module
from fedkern_flwr.secure_sum.crypto import (
    PRIME,
    SHARE_BYTES,
    commitment,
    open_seed,
    reconstruct_seed,
    share_seeds,
)
from fedkern_flwr.secure_sum.membership import Cohort, noise_key

RINGS = (16, 32, 64)
ENCODINGS = [Encoding.circle(bits) for bits in RINGS]
ENCODINGS += [Encoding.fixed_point(8.0, bits) for bits in RINGS]
ENCODINGS += [Encoding.integers(100, bits) for bits in RINGS]
WHOLE = {"self_masks": False}
OPTIONS: list[Any] = [{}, WHOLE, {"receiver": 2}, {"receiver": 0, **WHOLE}]


@pytest.mark.promise("sums-exact")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: f"{e.kind}-{e.bits}")
def test_all_kinds_of_sums_are_exact(encoding: Encoding, options: Any) -> None:
    """A party may take part with zeros, or one number repeated: these are encoded once.

    Where there are self masks a party may be missing: its masks go, and f is that of all five.
    """
    run = Run(5, threshold=3, cipher=CIPHERS[len(options) % 2])
    rng = np.random.default_rng(0)
    values = {p: draw(encoding, 7, rng) for p in run.members}
    for same in (None, values[1][:1] * 0, values[1][:1]):
        if same is not None:
            values[1] = np.broadcast_to(same, 7)
        total = run.sum(values, encoding=encoding, **options)
        expected = Reference.total(encoding, 5, values.values())
        np.testing.assert_array_equal(total, expected)
        assert total.dtype == expected.dtype
        if same is None and options.get("self_masks", True):
            four = {p: values[p] for p in (0, 1, 2, 3)}
            total = run.sum(four, encoding=encoding, **options)
            np.testing.assert_array_equal(total, Reference.total(encoding, 5, four.values()))


def test_long_vectors_travel_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkern_flwr.secure_sum.encoding.CHUNK_BYTES", 1000)
    run = Run(3)
    values = {p: np.arange(1003) * (p + 1) for p in run.members}
    for options in ({}, {"receiver": 1}):
        encoding = Encoding.integers(10_000)
        running = run.order(1003, encoding, name=f"to {options}", **options)
        for p, vector in values.items():
            run.upload(running, p, vector)
        pieces = [part.size for part in run.transcript(running).uploads[0].masked]
        assert pieces == [125] * 8 + [3]
        run.unmask(running)
        assert run.result(running).tolist() == (6 * np.arange(1003)).tolist()


def test_values_are_overwritten_only_where_that_was_allowed() -> None:
    """The fast path may put the masked vector where the values were, and nowhere else."""
    run, encoding = Run(3), Encoding.fixed_point(4.0)
    running = run.order(3, encoding, self_masks=False)
    run.join()
    vectors = {p: np.array([0.5, 1.0, -2.0]) * p for p in range(3)}
    for p, vector in vectors.items():
        party, before = run.party(p), vector.copy()
        run.take(p, party.contribute(running.order, vector, overwrite=p > 0))
        run.keep(party)
        assert p or (vector == before).all()
    run.server.unmask_sections([running])
    np.testing.assert_array_equal(run.server.total(running), [1.5, 3.0, -6.0])


def test_partition_numbers_and_cohorts_are_any() -> None:
    run = Run([3, 17, 1000, 2**31 - 1], threshold=3)
    total = run.sum({p: np.array([k]) for k, p in enumerate(run.members)}, receiver=1000)
    assert total.tolist() == [6]
    run = Run(7, cohorts=[range(7), [0, 2, 4], [6, 5, 3, 1]])
    for cohort, members in ((0, range(7)), (1, (0, 2, 4)), (2, (1, 3, 5, 6)), (1, (0, 2, 4))):
        own = {p: np.array([10**p]) for p in members}
        total = run.sum(own, cohort=cohort, name=f"of cohort {cohort}")
        assert total.tolist() == [sum(10**p for p in members)]


@pytest.mark.parametrize("first", [2, 10**9])
def test_a_resumed_run_goes_on_with_new_numbers(first: int) -> None:
    """The roster says where they begin: fresh roots need not be turned there step by step."""
    run = Run(3)
    run.sum({p: np.array([p]) for p in run.members})
    progress = run.server.progress()
    assert progress["next"] == [[0, 2]]
    run = Run(3)
    run.server.go_on(progress | {"next": [[0, first]]})
    running = run.order(1)
    assert running.order.index == first
    run.join()
    party, one = run.party(0), np.array([1])
    for index in (first - 1, 2 * first + 1024):
        wrong = replace(running.order, index=index)
        refuses("FK-SUM-NUMBER", party.contribute, wrong, one, party=0)
    for p in run.members:
        run.upload(running, p, np.array([p]))
    run.unmask(running)
    assert run.result(running).tolist() == [3]


def test_the_roster_is_sent_until_a_party_has_answered() -> None:
    run = Run(3)
    running = run.order(1)
    for _ in range(2):
        assert run.server.sections(0, [running])[0] == run.server.roster
    run.upload(running, 0, [1])
    assert [m.phase for m in run.server.sections(0, [running])] == ["sum-order"]
    assert [m.phase for m in run.server.sections(1, [])] == ["sum-roster"]


# -- backups


@pytest.mark.parametrize("spool", [1, 1 << 24], ids=["on disk", "in memory"])
def test_backups_replace_seeds_of_the_silent(monkeypatch: pytest.MonkeyPatch, spool: int) -> None:
    """Without them a party that dies before it has uploaded, and one after, end the sum."""
    monkeypatch.setattr("fedkern_flwr.secure_sum.running_sum._SPOOL", spool)
    run = Run(20)
    for length in (1, 3_000):  # backups are 19 * (19 * 33 + 16) = 12 217 bytes per party
        running = run.filled(length, dead=[0, 1])
        assert running.backups == (length > 1)
        run.unmask(running, range(4, 20))
        run.recover(running, range(4, 18))
        if running.backups:
            assert (run.result(running) == sum(range(2, 20))).all()
        else:
            refuses("FK-SUM-SILENT", run.result, running)


def test_backups_are_shared_where_they_cost_no_more_than_the_vector() -> None:
    run = Run(20)
    for encoding, most in ((Encoding.integers(1), 12_217 // 8), (Encoding.circle(32), 3054)):
        assert not run.order(most, encoding).backups
        assert run.order(most + 1, encoding).backups
    assert not run.order(9999, receiver=0, self_masks=False).backups
    assert not Run(5, threshold=4).order(9999).backups  # nobody could be missing
    assert Run(5, threshold=3).order(9999).backups


# -- what is remembered

Secrets = dict[str, bytes]


def secrets_of(state: PartyState) -> Secrets:
    """All that belongs to open sums, and what leads to the next ones."""
    found = {f"root {c}-{j}": r for c, roots in state.roots.items() for j, r in roots.items()}
    for place, one in state.open.items():
        found |= {f"keys {place}-{j}": key for j, keys in one.keys.items() for key in keys}
        found |= {f"share {place}": one.own_share, f"pad {place}": one.pad}
    return {name: value for name, value in found.items() if value}


def check_absent(text: bytes | str, secrets: Secrets) -> None:
    """No secret stands in a text: as bytes, in hexadecimal, or as bytes are shown."""
    data = text.encode() if isinstance(text, str) else text
    for name, secret in secrets.items():
        for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
            assert form not in data, f"there is the {name}"


def test_a_self_seed_is_never_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its shares are: the party itself could not open its own mask."""
    seen: Secrets = {}
    draw_bytes = party_module.secrets.token_bytes

    def token_bytes(size: int) -> bytes:
        value = draw_bytes(size)
        if size == 32:
            seen[f"seed {len(seen)}"] = value
        return value

    run = Run(4)
    running = run.order(3)
    run.join()
    monkeypatch.setattr(party_module.secrets, "token_bytes", token_bytes)
    run.upload(running, 1, [1, 2, 3])
    assert len(seen) == 1
    check_absent(run.states[1], seen)
    with pytest.raises(AssertionError, match="there is the"):  # negative control
        check_absent(run.states[1], secrets_of(run.party(1).state))


def test_open_sums_are_closed_by_number_and_cohort() -> None:
    run = Run(3, cohorts=[range(3), range(3)])
    run.join()
    party = run.party(1)
    sums = [run.order(1, name=f"{k}", cohort=k % 2) for k in range(6)]
    for running in sums:
        party.contribute(running.order, np.array([1]))
    assert set(party.state.open) == {(c, i) for c in (0, 1) for i in (1, 2, 3)}
    run.server.close(sums[0])
    run.server.close(sums[4])  # number 3 of cohort 0, while number 2 is open
    party.contribute(run.order(1, cohort=0).order, np.array([1]))
    assert set(party.state.open) == {(0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3)}
    for k in (1, 2, 3, 5):
        run.server.close(sums[k])
    party.contribute(run.order(1, cohort=1).order, np.array([1]))
    assert set(party.state.open) == {(0, 2), (0, 3), (0, 4), (1, 4)}


def test_a_state_shows_no_secret() -> None:
    """Neither before the roster came, nor with sums that are open; it survives packing."""
    run = Run(5, cohorts=[range(5), [0, 1, 2]])
    states = [run.party(1).state]
    running = run.filled(2, name='a "name"', receiver=1)
    bare = run.order(2, receiver=1, self_masks=False, cohort=1, name="bare")
    run.contribute(bare, 1, [1, 2])
    run.unmask(running)
    states.append(run.party(1).state)
    for state in states:
        assert PartyState.unpack(state.pack()) == state
        check_absent(repr(state), secrets_of(state))
    assert states[-1].open[0, 1].alive  # the declared survivors are remembered
    assert sorted(states[-1].fixed) == ['a "name"', "bare"]  # and how sums were ordered


def test_errors_hold_no_values_and_no_keys() -> None:
    """Whatever is raised while a party works: neither data nor secrets in its text."""
    run = Run(5, threshold=4)
    running = run.order(2, receiver=2)
    secret = np.array([987654, 123456])
    for p in range(4):
        run.upload(running, p, secret)
    party, fresh = run.party(0), replace(running.order, index=2)
    hidden = secrets_of(party.state) | {str(n): str(n).encode() for n in secret}

    def provoke(action: Any, *arguments: Any) -> None:
        caught = raises(FedKernError, action, *arguments)
        error = caught.value
        assert error.__cause__ is None
        assert error.__suppress_context__ or error.__context__ is None
        check_absent(f"{error} {error!r} {error.args} {vars(error)}", hidden)

    changes = ({"bound": 10.0}, {"length": 3}, {"index": 1}, {"receiver": 9}, {"bits": 16})
    for bad in changes:
        provoke(run.party(0).contribute, replace(fresh, **bad), secret)
    provoke(run.party(0).contribute, fresh, secret + 0.5)
    request = run.unmask_request(running, 0)
    for wrong in ({"shares": b"x" * len(request.shares)}, {"alive": b"\x07"}, {"dead": b"\x00"}):
        provoke(party.unmask, replace(request, **wrong))


def test_the_server_forgets_a_closed_sum() -> None:
    run = Run(5, threshold=3)
    running = run.filled(2, dead=[4], backups=True)
    run.unmask(running, range(3))
    run.recover(running)
    kept = (running._shares, running._seeds, running._pair_shares)
    assert all(kept)
    run.result(running)
    assert not any(kept)
    assert not running.uploaded
    assert running._vector.size == 0
    assert running.enclosed.spool.closed
    assert run.server._open == {}


# -- streams of masks, shares of their seeds, the randomness of both, and who masks with whom


# -- no mask is made of poor randomness

FOLDER = Path(str(secure_sum.__file__)).parent
SOURCES = [*sorted(FOLDER.rglob("*.py")), Path(str(client_sums.__file__))]
BANNED = {"random", "seeding", "default_rng", "numpy.random"}


def names_used(source: bytes) -> set[str]:
    """The names of a module, and its texts, by which it may look a module up."""
    found = tokenize.tokenize(io.BytesIO(source).readline)
    return {t.string.strip("'\"") for t in found if t.type in (tokenize.NAME, tokenize.STRING)}


def test_masks_come_from_the_operating_system() -> None:
    found = {path.stem: names_used(path.read_bytes()) for path in SOURCES}
    assert {"crypto", "encoding", "party", "running_sum", "sums", "server"} <= set(found)
    assert {name: used & BANNED for name, used in found.items() if used & BANNED} == {}
    assert {name for name, used in found.items() if "secrets" in used} >= {"party", "crypto"}
    for source in (b"x = np.random.bytes(3)", b"import_module('numpy.random')"):
        assert names_used(source) & BANNED


# -- streams

TYPES = (np.uint16, np.uint32, np.uint64)
BLOCK = 1 << 20


def one_shot(key: bytes, size: int, cipher: str) -> bytes:
    """The key stream in one piece, straight from ``cryptography``."""
    made: Cipher[Any]
    if cipher == "aes-256-ctr":
        made = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
    else:
        made = Cipher(algorithms.ChaCha20(key, bytes(16)), None)
    return made.encryptor().update(bytes(size))


def check_stream(dtype: Any, size: int, threads: int, cipher: str) -> None:
    """One positive and one negative stream over ``size`` bytes are those of the cipher."""
    plus, minus = os.urandom(32), os.urandom(32)
    target = np.arange(size // np.dtype(dtype).itemsize).astype(dtype)
    expected = target.copy()
    expected += np.frombuffer(one_shot(plus, target.nbytes, cipher), dtype)
    expected -= np.frombuffer(one_shot(minus, target.nbytes, cipher), dtype)
    add_streams(target, [(plus, False), (minus, True)], cipher=cipher, threads=threads)
    assert (target == expected).all()


SIZES = [0, 8, 40, BLOCK - 8, BLOCK, BLOCK + 8, 4 * BLOCK + 8, 5 * BLOCK - 8]


@pytest.mark.parametrize("cipher", CIPHERS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_streams_cross_blocks_and_threads(size: int, threads: int, cipher: str) -> None:
    for dtype in TYPES if size in (40, 4 * BLOCK + 8) else TYPES[2:]:
        check_stream(dtype, size, threads, cipher)


# -- shares of seeds

seeds = st.binary(min_size=32, max_size=32) | st.sampled_from(
    [bytes(32), b"\xff" * 32, b"\x01" + bytes(31), bytes(31) + b"\x80"]
)


def share(seed: bytes, points: list[int], threshold: int) -> dict[int, bytes]:
    return dict(zip(points, share_seeds([seed], points, threshold), strict=True))


def value(data: bytes) -> int:
    return int.from_bytes(data, "little")


def test_the_modulus_is_a_prime_above_all_seeds() -> None:
    assert PRIME > 2**256
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7))


# -- against an independent library


@settings(max_examples=40)
@given(seed=seeds, parties=st.integers(2, 12), data=st.data())
def test_an_independent_library_opens_our_shares_and_we_open_its(
    seed: bytes, parties: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, parties))
    points = data.draw(st.permutations(range(1, parties + 1)))
    ours = share(seed, list(points), threshold)
    theirs = [shamirs.share(x, value(s), PRIME) for x, s in ours.items()]
    assert shamirs.interpolate(theirs[:threshold]) == value(seed)
    assert shamirs.interpolate(theirs) == value(seed)
    theirs = shamirs.shares(value(seed), parties, modulus=PRIME, threshold=threshold)
    shares = {x: int(theirs[x - 1][1]).to_bytes(SHARE_BYTES, "little") for x in points[:threshold]}
    assert reconstruct_seed(shares) == seed
    if threshold > 1:  # negative control: one share fewer gives something else
        shares.popitem()
        assert reconstruct_seed(shares) != seed


@pytest.mark.parametrize(("parties", "threshold"), [(30, 21), (47, 30), (69, 45), (200, 134)])
def test_slots_hold_large_points_and_thresholds(parties: int, threshold: int) -> None:
    """Seeds shared at once sit side by side in long integers: none runs over into the next."""
    many = [bytes(32), b"\xff" * 32, os.urandom(32), b"\xff" * 32, bytes(32)]
    points = list(range(1001 - parties, 1001))
    joined = share_seeds(many, points, threshold)
    for place, seed in enumerate(many):
        cut = slice(place * SHARE_BYTES, (place + 1) * SHARE_BYTES)
        shares = {x: s[cut] for x, s in zip(points, joined, strict=True)}
        last = dict(list(shares.items())[-threshold:])
        assert reconstruct_seed(last) == seed
        last.popitem()
        assert reconstruct_seed(last) != seed


# -- t - 1 shares say nothing


SCALES = [(1, 0), (0, 1), (1, 1), (1, PRIME - 1), (3, PRIME - 1), (PRIME - 14, 3)]


def collect_shares(seed: bytes, count: int = 800) -> list[np.ndarray]:
    """Combinations of t - 1 = 2 shares of a seed that is shared many times: low words of each."""
    held = [share_seeds([seed], [1, 2], 3) for _ in range(count)]
    out = []
    for a, b in SCALES:
        sums = [(a * value(one) + b * value(other)) % PRIME for one, other in held]
        data = b"".join((s % 2**256).to_bytes(32, "little") for s in sums)
        out.append(np.frombuffer(data, "<u8").reshape(count, 4))
    return out


@pytest.mark.parametrize("seed", [bytes(32), b"\xff" * 32], ids=["zeros", "ones"])
def test_fewer_shares_are_uniform_whatever_the_seed(seed: bytes) -> None:
    for combination in collect_shares(seed):
        assert_uniform(combination)


# -- opening a seed in spite of a forged share

LABEL = b"a sum"


@given(seed=seeds, parties=st.integers(2, 10), data=st.data())
def test_a_forged_share_is_left_out(seed: bytes, parties: int, data: st.DataObject) -> None:
    """A commitment binds the sum and the seed."""
    threshold = data.draw(st.integers(1, parties - 1))
    shares = share(seed, list(range(1, parties + 1)), threshold)
    committed = commitment(LABEL, seed)
    assert len(committed) == 16
    assert open_seed(shares, threshold, LABEL, committed) == (seed, None)
    other = commitment(LABEL, seed[:-1] + bytes([seed[-1] ^ 1]))
    for more in ((LABEL + b"1", committed), (LABEL, other)):
        refuses("FK-SUM-SEED", open_seed, shares, threshold, *more)
    forger = data.draw(st.integers(1, parties))
    shares[forger] = flip(shares[forger], 0)
    used = forger <= threshold  # the first t points are tried; a later one does no harm
    assert open_seed(shares, threshold, LABEL, committed) == (seed, forger if used else None)
    if used:  # beyond repair: no share to spare, or one more that is forged
        exact = {x: shares[x] for x in list(shares)[:threshold]}
        refuses("FK-SUM-SEED", open_seed, exact, threshold, LABEL, committed)
        if forger < threshold:
            shares[forger + 1] = flip(shares[forger + 1], 20)
            refuses("FK-SUM-SEED", open_seed, shares, threshold, LABEL, committed)


def test_shares_that_give_no_seed_are_none() -> None:
    """2^256 .. PRIME - 1 are field elements, but no seeds."""
    for outside in (2**256, PRIME - 1):
        constant = {x: outside.to_bytes(SHARE_BYTES, "little") for x in (1, 2, 3)}
        assert reconstruct_seed(constant) is None
    edge = (2**256 - 1).to_bytes(SHARE_BYTES, "little")
    assert reconstruct_seed({1: edge, 2: edge}) == b"\xff" * 32


# -- who masks with whom: regular, symmetric, connected, and drawn by the roster's digest


Graph = dict[int, tuple[int, ...]]


def digest(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


def draw_graph(parties: int, number: int = 0) -> Graph:
    return graph.neighbourhoods(tuple(range(parties)), digest(number))


def check_graph(neighbours: Graph, parties: int, k: int) -> None:
    """Regular of degree k, symmetric, without loops, connected, neighbours ascending."""
    assert sorted(neighbours) == list(range(parties))
    for i, around in neighbours.items():
        assert list(around) == sorted(set(around))
        assert len(around) == k, f"{i} has {len(around)} neighbours"
        assert i not in around
        assert all(i in neighbours[j] for j in around), "not symmetric"
    reached, queue = {0}, deque([0])
    while queue:
        for j in neighbours[queue.popleft()]:
            if j not in reached:
                reached.add(j)
                queue.append(j)
    assert len(reached) == parties, "not connected"


@given(parties=st.integers(2, 5000))
def test_degrees_are_even_possible_and_grow(parties: int) -> None:
    k = graph.degree(parties)
    if parties <= 30:
        assert k == parties - 1
        return
    assert k % 2 == 0
    assert 16 <= k < parties - 1
    assert graph.degree(parties + 1) >= k
    assert abs(graph.degree(2 * parties) - k) <= 20  # logarithmic


@given(parties=st.integers(2, 120), number=st.integers(0, 1000))
def test_graphs_are_regular_symmetric_and_connected(parties: int, number: int) -> None:
    check_graph(draw_graph(parties, number), parties, graph.degree(parties))


def test_the_graph_follows_the_digest() -> None:
    first = draw_graph(60, 1)
    assert first == draw_graph(60, 1)
    others = [draw_graph(60, number) for number in range(2, 12)]
    assert first not in others
    shared = [len(set(first[0]) & set(other[0])) for other in others]
    assert max(shared) < 16  # expected 16 * 16 / 59
    assert draw_graph(30, 1) == draw_graph(30, 2)  # complete: nothing to draw


# -- the odds that docs/security.md states for sparse graphs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def odds(parties: int) -> list[float]:
    """Return union bounds: colluding 20, 33, 50 %, dropping out 10, 20 %."""
    k = graph.degree(parties)
    shares = graph.share_threshold(parties, graph.default_threshold(parties))
    others = parties - 1
    found = [hypergeom.sf(shares - 2, others, int(f * parties), k) for f in (0.2, 0.33, 0.5)]
    # a survivor's own share counts, so shares - 1 of its neighbours must be left
    left = [others - int(f * parties) for f in (0.1, 0.2)]
    found += [hypergeom.cdf(shares - 2, others, many, k) for many in left]
    return [min(1.0, parties * p) for p in found]


def test_the_table_of_the_security_page() -> None:
    if not PAGE.is_file():
        pytest.skip("no source tree here")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == [31, 50, 100, 200, 1000]
    for parties, k, shares, rest in rows:
        n = int(parties)
        assert int(k) == graph.degree(n)
        assert int(shares) == graph.share_threshold(n, graph.default_threshold(n))
        *stated, worst = rest.split(" | ")
        assert int(worst) == graph.fewest_colluders(n, graph.default_threshold(n))
        for text, value in zip(stated, odds(n), strict=True):
            assert float(text) == pytest.approx(value, rel=0.2, abs=1e-15), (parties, text)


# -- how numbers enter a ring and leave it: exact where it says so, refused where it must


bounds = st.floats(2.0**-40, 2.0**40)
rings = st.sampled_from(RINGS)


def encode(encoding: Encoding, values: Any, parties: int = 3) -> np.ndarray:
    return encoding.encode(np.asarray(values), parties, name="gradient")


# -- fixed point


@given(bits=rings, parties=st.integers(2, 2000), bound=bounds)
def test_the_overflow_rule_keeps_sums_to_a_quarter(bits: int, parties: int, bound: float) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    f = encoding.fraction_bits(parties)
    assert f == Reference.fraction_bits(encoding, parties)
    scaled = parties * Fraction(bound) * Fraction(2) ** f
    assert scaled <= 2 ** (bits - 2)
    assert 2 * scaled > 2 ** (bits - 2) / 4  # not a bit more is given away than two roundings


@given(bits=rings, bound=bounds, parties=st.integers(2, 50), data=st.data())
def test_a_number_is_rounded_to_the_nearest_step(
    bits: int, bound: float, parties: int, data: st.DataObject
) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    values = data.draw(st.lists(st.floats(-bound, bound), min_size=1, max_size=8))
    ring = encode(encoding, values, parties)
    assert ring.dtype == encoding.dtype
    assert ring.tolist() == Reference.ring(encoding, parties, values)
    half_step = Fraction(2) ** -(encoding.fraction_bits(parties) + 1)
    for value, element in zip(values, ring.tolist(), strict=True):
        signed = (element + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
        assert abs(Fraction(value) - 2 * half_step * signed) <= half_step
    back = encoding.decode(ring, parties)
    assert back.dtype == np.float64
    slack = 2 * bound * 2.0**-53  # of the float64 that comes out
    assert np.abs(back - values).max() <= float(half_step) + slack


# -- integers


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("parties", [2, 3, 30])
def test_integers_are_summed_exactly_up_to_the_largest_with_room(bits: int, parties: int) -> None:
    bound = min((2 ** (bits - 1) - 1) // parties, 2**52)
    encoding = Encoding.integers(bound, bits)
    encoding.check_room(parties)
    total = np.zeros(3, encoding.dtype)
    for _ in range(parties):
        total += encode(encoding, np.array([bound, -bound, 1]), parties)
    found = encoding.decode(total, parties)
    assert found.tolist() == [parties * bound, -parties * bound, parties]
    assert found.dtype == np.int64


# -- the circle


@given(bits=rings, angles=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_sums_of_angles_are_right_modulo_a_turn(bits: int, angles: list[float]) -> None:
    encoding = Encoding.circle(bits)
    total = np.zeros(1, encoding.dtype)
    for angle in angles:
        ring = encode(encoding, [angle])
        assert ring.tolist() == Reference.ring(encoding, 3, [angle])
        total += ring
    (found,) = encoding.decode(total, 3)
    assert 0.0 <= found < 2.0 * math.pi
    error = abs(np.angle(np.exp(1j * (found - math.fsum(angles)))))
    assert error <= len(angles) * (math.pi * 2.0 ** -min(bits, 53) + 1e-12)


@given(bits=rings, angles=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6))
def test_ring_elements_of_a_circle_are_encoded_already(bits: int, angles: list[float]) -> None:
    encoding = Encoding.circle(bits)
    ring = encode(encoding, angles)
    again = encode(encoding, ring)
    np.testing.assert_array_equal(again, ring)
    assert not np.shares_memory(again, ring)  # masks are added to it
    assert encoding.encode(ring, 3, name="angles", overwrite=True) is ring


# -- what is refused

SECRET = 123456.789


@pytest.mark.promise("sums-bound")
@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("bound", [1.0, 0.1, 8.0, 1e-20, 1e300])
def test_one_ulp_beyond_the_bound_is_refused(bits: int, bound: float) -> None:
    encoding = Encoding.fixed_point(bound, bits)
    for value in (bound, -bound):
        encode(encoding, [0.0, value])
        beyond = [0.0, np.nextafter(value, 2.0 * value)]
        refuses("FK-SUM-BOUND", encode, encoding, beyond)


def test_float32_is_compared_with_the_bound_as_it_is() -> None:
    """float32(0.1) is larger than 0.1."""
    encoding = Encoding.fixed_point(0.1)
    refuses("FK-SUM-BOUND", encode, encoding, np.array([0.1], np.float32))
    encode(Encoding.fixed_point(float(np.float32(0.1))), np.array([0.1], np.float32))


REALS = Encoding.fixed_point(1e6)


@pytest.mark.parametrize(("code", "encoding", "values"), [
    *(
        ("FK-VALUES-FINITE", encoding, [SECRET, bad])
        for encoding in (REALS, Encoding.circle())
        for bad in (math.nan, math.inf, -math.inf)
    ),
    ("FK-SUM-BOUND", Encoding.fixed_point(1.0), [SECRET]),
    ("FK-SUM-BOUND", Encoding.integers(3), [4]),
    ("FK-SUM-BOUND", Encoding.integers(3), [-4]),
    ("FK-SUM-BOUND", Encoding.integers(2**53), [2**53 + 1]),
    ("FK-SUM-BOUND", Encoding.integers(3), np.array([2**64 - 1], np.uint64)),
    ("FK-SUM-VALUES", Encoding.integers(3), [SECRET]),
    ("FK-SUM-VALUES", Encoding.integers(3), [1.0]),
    ("FK-SUM-VALUES", REALS, [SECRET + 0j]),
    ("FK-SUM-VALUES", REALS, ["123456.789"]),
    ("FK-SUM-VALUES", REALS, np.array([SECRET], object)),
    ("FK-SUM-VALUES", Encoding.circle(), np.array(["2020-01-01"], "datetime64[D]")),
    ("FK-SUM-VALUES", REALS, [[SECRET]]),
    ("FK-SUM-VALUES", REALS, SECRET),
])  # fmt: skip
def test_what_does_not_fit_is_refused_unquoted(code: str, encoding: Encoding, values: Any) -> None:
    error = refuses(code, encode, encoding, values)
    for shown in (str(error), repr(error), repr(error.args)):
        assert "123456" not in shown
        assert "nan" not in shown.replace("NaN", "")


def test_a_bad_number_is_found_wherever_it_stands() -> None:
    """Vectors are encoded piece by piece; the last piece counts as the first."""
    values = np.zeros((1 << 17) + 3)
    encode(Encoding.fixed_point(1.0), values)
    for place in (0, (1 << 17) - 1, 1 << 17, -1):
        bad = values.copy()
        bad[place] = 1.5
        refuses("FK-SUM-BOUND", encode, Encoding.fixed_point(1.0), bad)


@pytest.mark.parametrize(("code", "make"), [
    ("FK-OPTION-CHOICE", lambda: Encoding.fixed_point(1.0, 8)),
    ("FK-OPTION-CHOICE", lambda: Encoding.fixed_point(1.0, 128)),
    ("FK-OPTION-CHOICE", lambda: Encoding("float", 64, 1.0)),  # type: ignore[arg-type]
    *(
        ("FK-OPTION-RANGE", lambda bound=bound: Encoding.fixed_point(bound))
        for bound in (0.0, -1.0, math.nan, math.inf)
    ),
    ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(5e-324).check_room(3)),
    ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(2.0**12 + 1, 16).check_room(3)),
    ("FK-SUM-OVERFLOW", lambda: Encoding.fixed_point(1.0, 16).check_room(2**15)),
])  # fmt: skip
def test_encodings_that_cannot_be_are_refused(code: str, make: Callable[[], Any]) -> None:
    Encoding.fixed_point(2.0**12, 16).check_room(3)  # the last with room
    Encoding.fixed_point(1.0, 16).check_room(2**14)
    refuses(code, make)


@pytest.mark.parametrize("kind", ["fixed-point", "integer", "circle"])
def test_an_empty_vector_is_no_error(kind: Any) -> None:
    encoding = Encoding(kind, 32, 1.0)
    ring = encode(encoding, np.zeros(0, np.int64 if kind == "integer" else np.float64))
    assert (ring.size, ring.dtype) == (0, encoding.dtype)
    assert encoding.decode(ring, 3).size == 0


# -- the reference of these tests is itself right


def test_the_reference_finds_known_elements() -> None:
    """Negative control: the independent encoder is not a copy of the code under test."""
    fixed = Encoding.fixed_point(1.0, 16)
    assert Reference.ring(fixed, 4, [1.0, -1.0, 0.25]) == [4096, 61440, 1024]
    assert Reference.ring(Encoding.circle(16), 4, [math.pi, -math.pi / 2]) == [32768, 49152]
    assert Reference.total(Encoding.integers(9), 2, [[9, -9], [9, -9]]).tolist() == [18, -18]
    assert encode(fixed, [0.25], 4).tolist() != Reference.ring(fixed, 8, [0.25])


# -- noise


ALARM = 1e-9  # probability of a false one: the noise cannot be seeded
SMALL = NoisySum(1 << 16, 4)


def begin(parties: int) -> Run:
    """Begin a run in which each party has a key of noise."""
    run = Run(parties)
    for p in run.members:
        state = PartyState.unpack(run.states[p])
        state.noise_key = secrets.token_bytes(32)
        run.states[p] = state.pack()
    return run


NOISE_RINGS = [(16, NoisySum(1 << 16, -1)), (32, SMALL), (64, SMALL)]


@pytest.mark.parametrize(("bits", "noise"), NOISE_RINGS)
@pytest.mark.parametrize("parties", [2, 12, 50])
def test_noise_at_its_largest_does_not_wrap(bits: int, noise: NoisySum, parties: int) -> None:
    """All parties at their bound, with all of them the largest noise that there is."""
    encoding = Encoding.fixed_point(3.0, bits).noisy(noise)
    if bits == 16 and parties > 9:
        refuses("FK-SUM-OVERFLOW", encoding.check_room, parties)
        return
    encoding.check_room(parties)
    one = encoding.encode(np.array([3.0, -3.0]), parties, name="x")
    most = reach(noise.variance)
    extreme = one + np.array([most, -most]).astype(one.dtype)
    total = np.zeros_like(one)
    for _ in range(parties):
        total += extreme
    found = encoding.decode(total, parties)
    largest = parties * (3.0 + most * 2.0**-noise.fraction)
    assert np.allclose(found, [largest, -largest], rtol=0.0, atol=parties * 2.0**-noise.fraction)
    encoding.check_total(found, parties, name="x")


@pytest.mark.parametrize(("encoding", "largest"), [
    (Encoding.integers(9), 9), (Encoding.fixed_point(9.0), 9.0),
    (Encoding.fixed_point(3.0).noisy(SMALL), 3.0 + reach(SMALL.variance) / 16 + 1 / 16),
])  # fmt: skip
def test_a_total_that_the_bound_and_the_noise_do_not_explain_is_none(
    encoding: Encoding, largest: float
) -> None:
    for sign in (1, -1):
        encoding.check_total(np.array([0, 1.999 * sign * largest]), 2, name="x")
        with refused("FK-SUM-TOTAL"):
            encoding.check_total(np.array([0, 2.02 * sign * largest]), 2, name="x")


@pytest.mark.parametrize(("kind", "noise"), [
    *(("integer", SMALL), ("circle", SMALL)),
    *(("fixed-point", NoisySum(*of)) for of in ((1 << 15, 4), (1 << 33, 4), (1 << 16, 99))),
])  # fmt: skip
def test_noise_of_which_nothing_is_known_is_refused(kind: Any, noise: NoisySum) -> None:
    with refused("FK-SUM-ENCODING"):
        Encoding(kind, 64, 0.0 if kind == "circle" else 2.0, noise)


@pytest.mark.promise("noise-its-own")
@pytest.mark.parametrize(("bits", "noise"), NOISE_RINGS)
@pytest.mark.parametrize("change", ["values", "name", "length"])
def test_what_differs_has_noise_of_its_own(change: str, bits: int, noise: NoisySum) -> None:
    run, length = begin(4), 400
    encoding = Encoding.fixed_point(5.0, bits).noisy(noise)
    values = {p: np.zeros(length) for p in run.members}
    first = run.sum(values, encoding=encoding, name="a")
    if change == "values":  # by one digit, of each party
        values = {p: np.full(length, 2.0**-noise.fraction) for p in run.members}
    if change == "length":
        values = {p: np.zeros(length + 1) for p in run.members}
    name = "b" if change == "name" else "a"
    second = run.sum(values, encoding=encoding, name=name)[:length]
    apart = second - values[0][:length].sum() / length * 4 - first
    expected = math.sqrt(2.0) * noise.deviation(4)
    assert abs(apart.std() / expected - 1) < stats.norm.isf(ALARM) * math.sqrt(0.51 / length)


def test_among_other_parties_noise_is_another_whatever_the_server_calls_them() -> None:
    """Else the difference of two sums shows the parties in which they differ."""
    order = replace(Run(3).order(3, Encoding.fixed_point(1.0).noisy(SMALL)).order, index=0)
    numbers = np.zeros(3, np.uint64)
    cohorts = [((0, 1, 2), 3), ((0, 1, 2), 3), ((0, 1, 3), 3), ((0, 1, 2, 3), 3), ((0, 1, 2), 2)]
    keys = [
        noise_key(bytes(32), order, Cohort(n, members, least, b""), "asked", numbers)
        for n, (members, least) in enumerate(cohorts)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_who_forged_a_share_is_named_by_its_number() -> None:
    """Also in a cohort whose numbers have gaps."""
    run = Run((3, 5, 8, 13), threshold=3)
    run.join()
    running = run.filled(2)
    requests = run.server.unmask_sections([running])
    for p in requests:
        party = run.party(p)
        reply = party.unmask(run.unmask_request(running, p))
        run.keep(party)
        if p == 8:
            reply = replace(reply, shares=flip(reply.shares, 0))
        run.take(p, reply)
    running.open()
    assert running.forgers == [8]
    assert run.result(running).tolist() == [29, 29]
