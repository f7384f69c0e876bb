"""Streams of masks, shares of their seeds, the randomness of both, and who masks with whom."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shamirs
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom
from sums_in_memory import assert_uniform, refuses

import fedkern_flwr.node.sums as client_sums
from fedkern_flwr import secure_sum
from fedkern_flwr.secure_sum import CIPHERS, add_streams, graph
from fedkern_flwr.secure_sum.seeds import commitment, open_seed
from fedkern_flwr.secure_sum.shamir import PRIME, SHARE_BYTES, reconstruct_seed, share_seeds

# -- no mask is made of poor randomness

FOLDER = Path(str(secure_sum.__file__)).parent
SOURCES = [*sorted(FOLDER.rglob("*.py")), Path(str(client_sums.__file__))]
BANNED = {"random", "seeding", "default_rng"}


def names_used(source: str) -> set[str]:
    """The parts of all names that a module imports or reaches into, and words it looks up by."""
    used: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            used.update(*(name.name.split(".") for name in node.names))
            used.update((getattr(node, "module", "") or "").split("."))
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.Call):
            words = [one.value for one in node.args if isinstance(one, ast.Constant)]
            used.update(*(word.split(".") for word in words if isinstance(word, str)))
    return used


def test_masks_come_from_the_operating_system() -> None:
    found = {path.stem: names_used(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {"masks", "party", "keys", "shamir", "seeds", "relay", "sums", "server"} <= set(found)
    assert {name: used & BANNED for name, used in found.items() if used & BANNED} == {}
    assert {name for name, used in found.items() if "secrets" in used} >= {"party", "shamir"}


@pytest.mark.parametrize(
    "source",
    [
        *("import random as r", "def f():\n    import numpy.random", "x = np.random"),
        *("from ..seeding import generator", "import_module('numpy.random')"),
        *("__import__('random')", "getattr(np, 'random')"),
    ],
)
def test_banned_modules_are_noticed(source: str) -> None:
    """Negative control of the scan."""
    assert names_used(source) & BANNED
    assert not names_used("import secrets, randomish\nrandom = secrets.token_bytes(3)") & BANNED


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
def test_our_shares_interpolate_elsewhere(seed: bytes, parties: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, parties))
    points = data.draw(st.permutations(range(1, parties + 1)))[:parties]
    ours = share(seed, list(points), threshold)
    theirs = [shamirs.share(x, value(s), PRIME) for x, s in ours.items()]
    assert shamirs.interpolate(theirs[:threshold]) == value(seed)
    assert shamirs.interpolate(theirs) == value(seed)
    if threshold > 1:  # negative control: one share fewer gives something else
        assert shamirs.interpolate(theirs[: threshold - 1]) != value(seed)


@settings(max_examples=40)
@given(seed=seeds, parties=st.integers(2, 12), data=st.data())
def test_foreign_shares_reconstruct_here(seed: bytes, parties: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, parties))
    theirs = shamirs.shares(value(seed), parties, modulus=PRIME, threshold=threshold)
    chosen = data.draw(st.permutations(list(theirs)))[:threshold]
    shares = {int(s[0]): int(s[1]).to_bytes(SHARE_BYTES, "little") for s in chosen}
    assert reconstruct_seed(shares) == seed
    if threshold > 1:
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
    shares[forger] = bytes([shares[forger][0] ^ 1]) + shares[forger][1:]
    used = forger <= threshold  # the first t points are tried; a later one does no harm
    assert open_seed(shares, threshold, LABEL, committed) == (seed, forger if used else None)
    if used:  # beyond repair: no share to spare, or one more that is forged
        exact = {x: shares[x] for x in list(shares)[:threshold]}
        refuses("FK-SUM-SEED", open_seed, exact, threshold, LABEL, committed)


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


DEGREES = {2: 1, 3: 2, 20: 19, 30: 29, 31: 16, 50: 16, 100: 32, 200: 46, 1000: 68}


@pytest.mark.parametrize(("parties", "k"), DEGREES.items())
def test_degrees_of_the_design(parties: int, k: int) -> None:
    assert graph.degree(parties) == k
    check_graph(draw_graph(parties), parties, k)


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


@given(parties=st.integers(31, 120), number=st.integers(0, 1000))
def test_sparse_graphs_are_regular_symmetric_and_connected(parties: int, number: int) -> None:
    check_graph(draw_graph(parties, number), parties, graph.degree(parties))


def test_the_graph_follows_the_digest() -> None:
    first = draw_graph(60, 1)
    assert first == draw_graph(60, 1)
    others = [draw_graph(60, number) for number in range(2, 12)]
    assert first not in others
    shared = [len(set(first[0]) & set(other[0])) for other in others]
    assert max(shared) < 16  # expected 16 * 16 / 59
    assert draw_graph(30, 1) == draw_graph(30, 2)  # complete: nothing to draw


@given(parties=st.integers(2, 2000))
def test_default_thresholds(parties: int) -> None:
    t = graph.default_threshold(parties)
    assert t == math.floor(2 * parties / 3) + 1
    assert parties // 2 < t <= parties
    needed = graph.share_threshold(parties, t)
    if parties <= 30:
        assert needed == t
    else:
        assert needed == math.ceil(0.65 * graph.degree(parties))
        assert needed > graph.degree(parties) / 2


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
